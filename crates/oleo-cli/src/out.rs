//! How things are shown: lines, tables, JSON, progress, errors.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use indicatif::{ProgressBar, ProgressStyle};
use oleo::error::{Class, Classified};
use oleo::fs::Time;
use oleo::{ErrorKind, Hint};
use rustix::io::Errno;

/// Where output goes, and how much of it.
pub(crate) struct Out {
    pub quiet: bool,
    pub verbose: u8,
}

/// How often the time that has passed is drawn.
const TICK: std::time::Duration = std::time::Duration::from_millis(200);

/// Whether [`warn`] is silent.
static QUIET: AtomicBool = AtomicBool::new(false);

/// A line about what is not as one might expect, from where there is no [`Out`].
pub(crate) fn warn(line: &str) {
    if !QUIET.load(Ordering::Relaxed) {
        eprintln!("oleo: {}", plain(line, &[]));
    }
}

impl Out {
    pub fn new(quiet: bool, verbose: u8) -> Out {
        QUIET.store(quiet, Ordering::Relaxed);
        Out { quiet, verbose }
    }

    /// One line about what was done.
    pub fn note(&self, line: impl AsRef<str>) {
        if !self.quiet {
            println_or_end(&plain(line.as_ref(), &['\n', '\t']));
        }
    }

    /// The same unless somebody reads something else there.
    #[cfg(feature = "nbd")]
    pub fn note_unless(&self, silent: bool, line: impl FnOnce() -> String) {
        if !silent {
            self.note(line());
        }
    }

    /// A line that helps somebody who sits at a terminal; programs do not get it.
    pub fn advice(&self, line: impl FnOnce() -> String) {
        if !self.quiet && std::io::stderr().is_terminal() {
            eprintln!("{}", plain(&line(), &['\n', '\t']));
        }
    }

    /// A line for those who want to know more.
    pub fn detail(&self, line: impl FnOnce() -> String) {
        if self.verbose > 0 {
            eprintln!("{}", plain(&line(), &['\n', '\t']));
        }
    }

    /// Things that are not as one might expect.
    pub fn warnings(&self, warnings: &[String]) {
        if self.quiet {
            return;
        }
        const SHOWN: usize = 10;
        let shown = if self.verbose > 0 { warnings.len() } else { warnings.len().min(SHOWN) };
        for warning in &warnings[..shown] {
            eprintln!("oleo: {}", plain(warning, &[]));
        }
        if shown < warnings.len() {
            eprintln!("oleo: and {} more of these (-v shows them)", warnings.len() - shown);
        }
    }

    /// A progress display on a terminal; nothing elsewhere.
    pub fn progress(&self, what: &str) -> Progress {
        if self.quiet || !io::stderr().is_terminal() {
            return Progress { bar: None };
        }
        let style = ProgressStyle::with_template("{spinner} {prefix} {msg} [{elapsed}]");
        let bar = ProgressBar::new_spinner().with_prefix(what.to_owned());
        if let Ok(style) = style {
            bar.set_style(style);
        }
        // A long step between two reports is not taken for a hang.
        bar.enable_steady_tick(TICK);
        Progress { bar: Some(Arc::new(bar)) }
    }
}

/// A progress display.
pub(crate) struct Progress {
    bar: Option<Arc<ProgressBar>>,
}

impl Progress {
    /// What the library calls.
    pub fn callback(&self) -> Option<oleo::mkfs::OnProgress> {
        let bar = self.bar.clone()?;
        Some(Box::new(move |done: &oleo::mkfs::Progress| {
            let entries = done.files + done.dirs + done.links + done.others;
            bar.set_message(format!("{entries} entries, {}", human(done.data_bytes)));
            bar.tick();
        }))
    }
}

impl Progress {
    /// Whether anybody sees it.
    pub fn is_shown(&self) -> bool {
        self.bar.is_some()
    }

    /// Shows a line in its place.
    pub fn show(&self, line: String) {
        if let Some(bar) = &self.bar {
            bar.set_message(line);
            bar.tick();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The exit code of a program whose reader has gone.
static UNREAD_CODE: AtomicU8 = AtomicU8::new(0);

/// The image is damaged: the exit code says so, even if the reader of the output has gone.
pub(crate) fn is_damaged() {
    UNREAD_CODE.store(DAMAGED, Ordering::Relaxed);
}

/// A line on standard output; ends the program quietly when nobody reads any more.
pub(crate) fn println_or_end(line: &str) {
    print_or_end(&[line.as_bytes(), b"\n"].concat());
}

/// Bytes on standard output.
pub(crate) fn print_or_end(bytes: &[u8]) {
    let mut stdout = io::stdout().lock();
    if let Err(error) = stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        if error.kind() != io::ErrorKind::BrokenPipe {
            eprintln!("oleo: cannot write the output: {error}");
            std::process::exit(4);
        }
        std::process::exit(UNREAD_CODE.load(Ordering::Relaxed).into());
    }
}

/// A value as JSON, indented, on standard output.
pub(crate) fn json(value: &serde_json::Value) {
    println_or_end(&format!("{value:#}"));
}

/// The exit code of a damaged image.
pub(crate) const DAMAGED: u8 = 3;

/// An error of the command itself, with its kind.
#[derive(Debug)]
pub(crate) struct Said(pub ErrorKind, pub String);

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.1)
    }
}

impl std::error::Error for Said {}

/// The error of arguments that make no sense.
macro_rules! misuse {
    ($($text:tt)*) => { anyhow::Error::new($crate::out::Said(oleo::ErrorKind::Usage, format!($($text)*))) };
}
pub(crate) use misuse;

/// Prints an error after which the command continues, on one line.
pub(crate) fn failure(error: &oleo::Error) {
    let text = error.to_string().replace('\n', " ");
    eprintln!("oleo: {}", plain(&text, &[]));
}

/// Prints what went wrong and what to try, on one line, and returns the exit code.
pub(crate) fn fail(error: &anyhow::Error) -> ExitCode {
    if error.chain().find_map(library).is_some_and(oleo::Error::is_unread) {
        return ExitCode::SUCCESS;
    }
    let text = text_of(error).replace('\n', " ");
    match error.chain().find_map(library).and_then(advice_after) {
        Some(hint) => eprintln!("oleo: {}; {hint}", plain(&text, &[])),
        None => eprintln!("oleo: {}", plain(&text, &[])),
    }
    ExitCode::from(match error.chain().find_map(kind_of) {
        Some(ErrorKind::Refusal) | None => 1,
        Some(ErrorKind::Usage) => 2,
        Some(ErrorKind::Corruption) => DAMAGED,
        Some(ErrorKind::Device) => 4,
    })
}

/// What to try after an error.
fn advice_after(error: &oleo::Error) -> Option<String> {
    let hint = error.hint()?;
    let words = advice(hint)?;
    // Space is of no use to a volume that another writer took over, or whose store does not answer.
    let is_full = error.errno() == Errno::NOSPC.raw_os_error();
    Some(match hint {
        Hint::StillMounted | Hint::KeptInMemory if is_full => {
            format!("{words}; or make space in the file system below the image and unmount again")
        }
        _ => words.to_owned(),
    })
}

/// What to try, with the words of this command.
fn advice(hint: Hint) -> Option<&'static str> {
    Some(match hint {
        Hint::EndOtherUser => "unmount it, or end the program that uses it",
        Hint::Scrub => "oleo scrub start verifies a mount beside its users",
        Hint::NameOtherDevices => "--device names the others, --scan finds them, --degraded reads without them",
        Hint::MakeRoom => "make the image larger (--size), or delete something",
        Hint::ChooseOtherName => "choose another name, or remove what is there first",
        Hint::CopyInstead => "copy instead (oleo cp --reflink shares the data)",
        Hint::MakeWritable => "oleo property set IMG PATH ro false makes a subvolume writable",
        Hint::RemoveContents => "-r removes what is inside too",
        Hint::IncludeContents => "-r includes everything in it",
        Hint::SkipOrDropLog => {
            "--no-log-replay (mount option nologreplay) reads what was there at the last commit; `oleo rescue zero-log` drops \
             the log, and with it what was synced since"
        }
        Hint::GiveSize => "--size says how large it is to be",
        Hint::Overwrite => "--force overwrites it",
        Hint::AllowFewerCopies => "--force allows that",
        Hint::WriteToSnapshot => "take a snapshot to write to, or --force, which forgets what it was received from",
        Hint::NameParent => "--rebase names the directory that it is in",
        Hint::StillMounted => {
            "it is still mounted; --save-to DIR writes out all files; --force gives up what is not on disk"
        }
        Hint::KeptInMemory => {
            "the server keeps it in memory and goes on trying; --save-to DIR writes out all files; --force gives up what is not on disk"
        }
        Hint::GiveOffset => "--offset says at which byte the file system begins",
        Hint::UseNbd => {
            "serve it with `qemu-nbd -r -k /tmp/nbd.sock FILE` (without -r for changes) and name it nbd+unix:///?socket=/tmp/nbd.sock"
        }
        Hint::OpenForChanges => "it is mounted or opened for reading only (mount option ro)",
        Hint::MakeAgain => "make it again with oleo mkfs",
        Hint::RestIsOnDisk => "it is unmounted, and all else is on disk",
        _ => return None,
    })
}

/// An error with its causes, each once: the messages of many contain those of their causes.
fn text_of(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// An error of the library, or of a mount that has one.
fn library<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a oleo::Error> {
    #[cfg(feature = "fuse")]
    if let Some(oleo_fuse::MountError::Image(error)) = error.downcast_ref() {
        return Some(error);
    }
    error.downcast_ref()
}

fn kind_of(error: &(dyn std::error::Error + 'static)) -> Option<ErrorKind> {
    let of = |error: &dyn Classified| error.kind();
    let of_mount: Option<ErrorKind> = None;
    #[cfg(feature = "fuse")]
    let of_mount = of_mount
        .or_else(|| error.downcast_ref::<oleo_fuse::MountError>().map(|e| of(e)))
        .or_else(|| error.downcast_ref::<oleo_fuse::OptionError>().map(|e| of(e)));
    of_mount
        .or_else(|| error.downcast_ref::<oleo::Error>().map(|e| of(e)))
        .or_else(|| error.downcast_ref::<oleo::control::Error>().map(|e| of(e)))
        .or_else(|| error.downcast_ref::<Said>().map(|said| said.0))
        .or_else(|| error.downcast_ref::<io::Error>().map(|error| Class::of_io(error).kind))
}

/// Bytes with a unit, two decimals.
pub(crate) fn human(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (bytes.checked_ilog2().unwrap_or(0) / 10) as usize;
    format!("{:.2}{}", bytes as f64 / (1u64 << (unit * 10)) as f64, UNITS[unit])
}

/// Date and time of day in UTC, to the second.
pub(crate) fn date(time: Time) -> String {
    oleo::layers::format::print::date(time.sec)
}

/// A message as it may go to a terminal: names in it may hold anything, and what a terminal would obey, or what would turn the
/// order of letters around, is escaped, but for what is in `kept`.
pub(crate) fn plain(text: &str, kept: &[char]) -> String {
    let obeyed = |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if obeyed(c) && !kept.contains(&c) => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown
}

/// A name or path for people: bytes that are no text are escaped.
pub(crate) fn text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if plain(text, &[]) == text => text.to_owned(),
        _ => bytes.escape_ascii().to_string(),
    }
}

/// A UUID, or `-` for none.
pub(crate) fn uuid_or_dash(id: uuid::Uuid) -> String {
    if id.is_nil() { "-".into() } else { id.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an error and its causes are reported, each once, and the kind is found wherever it stands.
    #[test]
    fn causes_are_reported_once() {
        let gone = || io::Error::from_raw_os_error(2);
        let error = anyhow::Error::new(oleo::Error::Output(gone()).at("here")).context("cannot do it");
        assert_eq!(text_of(&error), format!("cannot do it: here: cannot write the output: {}", gone()));
        assert_eq!(error.chain().find_map(kind_of), Some(ErrorKind::Device));
        assert_eq!(misuse!("missing").chain().find_map(kind_of), Some(ErrorKind::Usage));
        assert_eq!(anyhow::anyhow!("no").chain().find_map(kind_of), None);
    }

    /// Goal: the command has words for whatever the library advises.
    #[test]
    fn all_hints_have_words() {
        for hint in Hint::ALL {
            assert!(advice(*hint).is_some(), "{hint:?}");
        }
    }

    /// Goal: space below the image is advised only where it is missing, not after a take-over.
    #[test]
    fn space_is_advised_where_it_is_missing() {
        for hint in [Hint::StillMounted, Hint::KeptInMemory] {
            let advised = |errno: Errno| {
                let source = Box::new(oleo::Error::Refused { errno: errno.raw_os_error(), text: String::new() });
                advice_after(&oleo::Error::Hinted { hint, source }).unwrap()
            };
            assert!(advised(Errno::NOSPC).contains("make space"));
            let overtaken = advised(Errno::STALE);
            assert!(overtaken.contains("--save-to") && !overtaken.contains("space"), "{overtaken}");
        }
    }

    /// Goal: nothing that a terminal obeys gets to one. Method: each control character, and marks of direction.
    #[test]
    fn messages_are_plain() {
        for c in (0..0xa0).filter_map(char::from_u32).chain(['\u{202e}', '\u{2066}']) {
            let reported = plain(&format!("a{c}b"), &[]);
            assert!(!reported.contains(char::is_control) && !reported.contains('\u{202e}'), "{reported:?}");
            assert_eq!(reported.len() == 3, (' '..='~').contains(&c), "{reported:?}");
        }
        assert_eq!(plain("bell\x07 \x1b[31m\u{9b}0m", &[]), "bell\\u{7} \\u{1b}[31m\\u{9b}0m");
        assert_eq!(plain("größer\n", &['\n']), "größer\n");
    }

    /// Goal: dates and sizes read as people expect, at the edges too.
    #[test]
    fn dates_and_sizes() {
        let at = |sec| date(Time { sec, nsec: 0 });
        assert_eq!(at(0), "1970-01-01 00:00:00");
        assert_eq!(at(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(at(1_795_294_405), "2026-11-21 20:53:25");
        assert_eq!(at(-1), "1969-12-31 23:59:59");
        assert_eq!((human(0), human(1023), human(1536)), ("0.00B".into(), "1023.00B".into(), "1.50KiB".into()));
        assert_eq!(human(u64::MAX), "16.00EiB");
    }
}
