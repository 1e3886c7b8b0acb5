//! Where a case runs, and who runs it on both kinds of mount.
//!
//! Normal path: (1) a family of cases says with [`family!`] what they are; (2) [`run_family`] makes an image, mounts it
//! through the kernel or through Oleo, and runs each case in a directory of its own; (3) it takes a manifest, unmounts,
//! has `btrfs check` look at the image, mounts it in the kernel, compares the manifest and runs what cases want to see
//! *after*; (4) it scrubs. All failures of a family are told together.
//!
//! Invariants: the kernel is the oracle, so a case is believed only because it passes there. A case that FUSE itself rules
//! out says so, and must then fail on Oleo: when it passes, the limit is to be taken out of the list.

use std::any::Any;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Once;

use oleo_sim::manifest::{Detail, Ignore, Manifest};
use oleo_sim::oracle::{Mounted, Oracle, oracle, run};
use oleo_sim::served::{Limits, Served};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The command under test.
pub const OLEO: &str = env!("CARGO_BIN_EXE_oleo");

/// Room for everything that a family does.
pub const IMAGE_LEN: u64 = 2 << 30;

/// Who serves the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Kernel,
    Oleo,
    /// Oleo with the kernel's write-back cache.
    WriteBack,
}

/// A mount of either kind.
pub enum Mount {
    Kernel(Mounted),
    Oleo(Served),
}

impl Mount {
    pub fn path(&self) -> &Path {
        match self {
            Mount::Kernel(m) => m.path(),
            Mount::Oleo(m) => m.path(),
        }
    }

    pub fn unmount(self) -> anyhow::Result<()> {
        match self {
            Mount::Kernel(m) => m.unmount(),
            Mount::Oleo(m) => m.unmount(),
        }
    }

    /// What the server has said; nothing from the kernel.
    pub fn log(&self) -> String {
        match self {
            Mount::Kernel(_) => String::new(),
            Mount::Oleo(m) => m.log(),
        }
    }
}

impl Kind {
    /// An empty file system, made by who will serve it.
    pub fn mkfs(self, oracle: Oracle, image: &Path) -> anyhow::Result<()> {
        match self {
            Kind::Kernel => {
                fs::File::create(image)?.set_len(IMAGE_LEN)?;
                oracle.mkfs(&[], &[image])
            }
            Kind::Oleo | Kind::WriteBack => {
                let size = IMAGE_LEN.to_string();
                let args = ["mkfs", "--quiet", "--size", &size].map(std::ffi::OsStr::new);
                run(OLEO, args.into_iter().chain([image.as_os_str()])).map(drop)
            }
        }
    }

    /// Mounts it.
    pub fn mount(self, oracle: Oracle, image: &Path, options: &str) -> anyhow::Result<Mount> {
        match self {
            Kind::Kernel => oracle.mount(&[image], options).map(Mount::Kernel),
            Kind::Oleo => {
                assert!(Path::new("/dev/fuse").exists(), "this machine has no /dev/fuse: modprobe fuse");
                Served::mount(Path::new(OLEO), &[image], options, Limits::default()).map(Mount::Oleo)
            }
            Kind::WriteBack => Kind::Oleo.mount(oracle, image, &format!("writeback_cache,{options}")),
        }
    }

    /// `btrfs check` of an unmounted image.
    pub fn must_check_clean(self, oracle: Oracle, image: &Path, what: &str) {
        let mut found = oracle.check(&[image]).expect("btrfs check runs");
        if self == Kind::Kernel {
            found = found.but_for_mkfs_6_2();
        }
        assert!(found.is_clean(), "{what}: btrfs check: {found}");
    }
}

/// A case's own directory on a mount.
pub struct Place {
    pub kind: Kind,
    /// Where it is mounted.
    pub top: PathBuf,
    /// A directory on it, empty at first.
    pub dir: PathBuf,
}

impl Place {
    /// A path in the case's directory.
    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A new file with this content.
    pub fn file(&self, name: &str, data: &[u8]) -> PathBuf {
        let path = self.at(name);
        fs::write(&path, data).expect("a new file");
        path
    }

    /// A new directory.
    pub fn subdir(&self, name: &str) -> PathBuf {
        let path = self.at(name);
        fs::create_dir(&path).expect("a new directory");
        path
    }

    /// A new directory that everybody may write to.
    pub fn open_dir(&self, name: &str) -> PathBuf {
        let path = self.subdir(name);
        rustix::fs::chmod(&path, Mode::from_raw_mode(0o777)).expect("chmod");
        path
    }

    /// Writes everything out and commits. Not by syncfs, which not every kernel passes on to Oleo.
    pub fn commit(&self) {
        run(self.tool(), ["filesystem".as_ref(), "sync".as_ref(), self.top.as_os_str()]).expect("a sync");
    }

    fn tool(&self) -> &'static str {
        match self.kind {
            Kind::Kernel => "btrfs",
            Kind::Oleo | Kind::WriteBack => OLEO,
        }
    }

    /// A new subvolume, by the command of whoever serves the mount.
    pub fn subvolume(&self, name: &str) -> PathBuf {
        let path = self.at(name);
        self.subvolume_command(&["create".as_ref(), path.as_os_str()]);
        path
    }

    /// A snapshot of a subvolume.
    pub fn snapshot(&self, of: &Path, name: &str) -> PathBuf {
        let path = self.at(name);
        self.subvolume_command(&["snapshot".as_ref(), of.as_os_str(), path.as_os_str()]);
        path
    }

    /// A command that is started now and does its work later: what starts with handles of the caller's closes them, and closing a
    /// file writes it out where the kernel caches it.
    pub fn later(&self, args: &[&OsStr]) -> Later {
        Later::new(self.tool().as_ref(), args)
    }

    /// `btrfs subvolume …` or `oleo subvolume …`.
    pub fn subvolume_command(&self, args: &[&std::ffi::OsStr]) {
        run(self.tool(), [&["subvolume".as_ref()], args].concat()).expect("a subvolume command");
    }
}

/// A command that waits for its turn.
pub struct Later(Child);

impl Later {
    pub fn new(program: &OsStr, args: &[&OsStr]) -> Later {
        let mut shell = Command::new("sh");
        shell.args(["-c", "read go && exec \"$@\"", "sh"]).arg(program).args(args);
        let child = shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        Later(child.expect("a shell"))
    }

    /// Runs it to its end; what it said if it failed.
    pub fn try_run(mut self) -> Result<(), String> {
        self.0.stdin.take().expect("a pipe").write_all(b"go\n").expect("it reads");
        let out = self.0.wait_with_output().expect("it ends");
        if out.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&out.stderr).into_owned()) }
    }

    /// The same where it must succeed.
    pub fn run(self) {
        self.try_run().expect("a command");
    }
}

/// Opens with these flags; new files get 0644.
pub fn open(path: &Path, flags: OFlags) -> rustix::io::Result<std::os::fd::OwnedFd> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o644))
}

/// # Panics
/// When it is not refused with this error.
#[track_caller]
pub fn refused<T>(result: rustix::io::Result<T>, with: Errno) {
    assert_eq!(result.map(drop).map_err(name_of), Err(name_of(with)));
}

/// Error numbers by name: `Errno` prints only some of them.
fn name_of(e: Errno) -> String {
    format!("{e:?} ({})", std::io::Error::from(e))
}

/// One behaviour.
#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    pub run: fn(&Place),
    /// What the kernel must see in the image afterwards; gets the case's directory there.
    pub after: Option<fn(&Path)>,
    /// Why it cannot pass over FUSE, and words of how it then fails: other failures of the case are failures of ours.
    pub limit: Option<(&'static str, &'static str)>,
}

/// Cases whose limit is that nobody asks when a file is opened: with the write-back cache somebody does.
const LIMITED_BY_OPENING: [&str; 3] = ["immutable_open_for_writing", "append_only_open", "opening_in_a_read_only_one"];

/// Limits of the write-back cache alone: the case, why it cannot pass, and words of how it then fails.
const LIMITED_BY_CACHING: [(&str, &str, &str); 3] = [
    (
        "get_and_set",
        "the kernel keeps the change time of files and does not take over that of an ioctl",
        "ctime() > before",
    ),
    ("blocks_are_reported", "what only the kernel has is counted when it is written", "right: 2048"),
    ("reading_a_file", "the kernel's page cache answers, since it has what was written", "times of "),
];

impl Case {
    /// Why it cannot pass there.
    fn limit_on(&self, kind: Kind) -> Option<(&'static str, &'static str)> {
        match kind {
            Kind::Kernel => None,
            Kind::Oleo => self.limit,
            Kind::WriteBack => {
                let by_caching = LIMITED_BY_CACHING.iter().find(|(name, ..)| *name == self.name);
                let by_fuse = self.limit.filter(|_| !LIMITED_BY_OPENING.contains(&self.name));
                by_caching.map(|(_, why, words)| (*why, *words)).or(by_fuse)
            }
        }
    }
}

/// Says what cases a family has and makes a test of them for each kind of mount: `family!("mount options"; name, name
/// after function, name limited "why" with "words of the failure", …)`.
macro_rules! family {
    ($options:literal; $($name:ident $(after $after:ident)? $(limited $why:literal with $words:literal)?),* $(,)?) => {
        const CASES: &[crate::mount::place::Case] = &[$({
            #[allow(unused_mut)]
            let mut case = crate::mount::place::Case { name: stringify!($name), run: $name, after: None, limit: None };
            $(case.after = Some($after);)?
            $(case.limit = Some(($why, $words));)?
            case
        }),*];

        /// Goal: the cases are right: the kernel passes them.
        #[test]
        fn kernel() {
            crate::mount::place::run_family(crate::mount::place::Kind::Kernel, module_path!(), $options, CASES);
        }

        /// Goal: what the kernel's btrfs does, Oleo does.
        #[test]
        fn oleo() {
            crate::mount::place::run_family(crate::mount::place::Kind::Oleo, module_path!(), $options, CASES);
        }

        /// Goal: the same where the kernel caches what was written.
        #[test]
        fn write_back() {
            crate::mount::place::run_family(crate::mount::place::Kind::WriteBack, module_path!(), $options, CASES);
        }
    };
}
pub(crate) use family;

/// Cases count on an umask of 0.
pub fn no_umask() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        rustix::process::umask(Mode::empty());
    });
}

fn words_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned()
}

/// Runs the cases of a family on one mount; `OLEO_MOUNT_CASE` chooses those whose name holds it.
pub fn run_family(kind: Kind, family: &str, options: &str, cases: &[Case]) {
    let Some(oracle) = oracle() else { return };
    no_umask();
    let wanted = std::env::var("OLEO_MOUNT_CASE").unwrap_or_default();
    let cases: Vec<Case> = cases.iter().copied().filter(|c| c.name.contains(&wanted)).collect();
    assert!(!cases.is_empty(), "no case of this family has {wanted:?} in its name (OLEO_MOUNT_CASE)");
    let scratch = oracle.scratch().expect("scratch");
    let image = scratch.path().join("image");
    kind.mkfs(oracle, &image).expect("mkfs");
    let mount = kind.mount(oracle, &image, options).expect("mount");
    let mut wrong = Vec::new();
    for case in &cases {
        let place = Place { kind, top: mount.path().to_owned(), dir: mount.path().join(case.name) };
        let result = catch_unwind(AssertUnwindSafe(|| {
            fs::create_dir(&place.dir).expect("a directory for the case");
            (case.run)(&place);
        }));
        match (result, case.limit_on(kind)) {
            (Err(e), None) => wrong.push(format!("{}: {}", case.name, words_of(&*e))),
            (Ok(()), Some((why, _))) => wrong.push(format!("{}: passes, in spite of: {why}", case.name)),
            (Err(e), Some((_, words))) if !words_of(&*e).contains(words) => {
                wrong.push(format!("{}: fails, but not as its limit does ({words}): {}", case.name, words_of(&*e)));
            }
            (Ok(()), None) | (Err(_), Some(_)) => {}
        }
    }
    let log = mount.log();
    let detail = Detail { holes: false, ..Detail::default() };
    let before = Manifest::of_dir(mount.path(), detail);
    let end = before.map_err(|e| format!("manifest: {e:#}")).and_then(|before| {
        mount.unmount().map_err(|e| format!("unmounting: {e:#}"))?;
        catch_unwind(|| after(oracle, kind, &image, &cases, &before, detail)).map_err(|e| words_of(&*e))
    });
    wrong.extend(end.err());
    assert!(
        wrong.is_empty(),
        "{family} on {kind:?}: {} of {} cases failed:\n  {}\n{log}",
        wrong.len(),
        cases.len(),
        wrong.join("\n  ")
    );
}

/// The kernel looks at an image that has been unmounted.
fn after(oracle: Oracle, kind: Kind, image: &Path, cases: &[Case], before: &Manifest, detail: Detail) {
    kind.must_check_clean(oracle, image, "afterwards");
    let mounted = oracle.mount(&[image], "").expect("the kernel mounts it");
    let now = Manifest::of_dir(mounted.path(), detail).expect("a manifest in the kernel");
    before.must_equal(&now, &Ignore::default(), "before unmounting | in the kernel");
    for case in cases {
        if let Some(look) = case.after {
            look(&mounted.path().join(case.name));
        }
    }
    let found = mounted.scrub().expect("scrub runs");
    assert!(found.is_clean(), "scrub: {found}");
    mounted.unmount().expect("the kernel unmounts it");
}
