//! The pictures of the README are what the command draws and prints now: a map, a terminal, the explorer. `scripts/pictures` makes them anew.
//!
//! They are of a volume that is made here, of files whose names, contents and times are always the same, so that they change only if Oleo does. Of a browser's picture only what it shows and the sources of its layout can be
//! compared: fonts and edges differ from one version to the next.

#[path = "../../../oleo-view/tests/it/browser/chromium.rs"]
#[allow(dead_code, reason = "each test program uses a part")]
mod chromium;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use chromium::Chromium;
use oleo_sim::oracle::{self, Scratch};
use oleo_sim::rng::Rng;
use serde_json::json;

const TOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Set: they are written, not compared.
const WRITES: &str = "OLEO_WRITE_PICTURES";
/// 2026-01-01.
const EPOCH: &str = "1767225600";
const COLUMNS: usize = 108;
/// The window of the explorer, in CSS pixels.
const WINDOW: (u32, u32) = (1100, 760);

/// What is shown running.
const SESSION: [&str; 7] = [
    "oleo mkfs --rootdir tree --subvol src --compress zstd --label store --size 128M store.img",
    "oleo subvolume snapshot -r store.img src src@monday",
    "oleo put store.img CHANGELOG.md src/docs/",
    "oleo subvolume snapshot -r store.img src src@tuesday",
    "oleo subvolume find-new store.img src 4",
    "oleo subvolume list --sizes store.img",
    "oleo check --data store.img",
];

/// Compares a picture with the one that is kept, or keeps it.
fn compare(name: &str, made: &[u8]) {
    let path = Path::new(TOP).join("docs/pictures").join(name);
    if std::env::var_os(WRITES).is_some() {
        std::fs::write(&path, made).unwrap();
    }
    let kept = std::fs::read(&path).unwrap_or_default();
    assert!(
        kept == made,
        "docs/pictures/{name} is not what is drawn now: run scripts/pictures, and look at what has changed"
    );
}

/// Text that looks like some and compresses like some.
fn text(rng: &mut Rng, len: usize) -> String {
    const WORDS: [&str; 24] = [
        "let", "tree", "block", "of", "the", "extent", "and", "root", "if", "return", "copy", "volume", "a", "chunk",
        "is", "read", "until", "write", "for", "each", "level", "key", "in", "to",
    ];
    let mut text = String::new();
    while text.len() < len {
        for _ in 0..rng.between(3, 14) {
            text.push_str(rng.pick(&WORDS).unwrap());
            text.push(' ');
        }
        let _infallible = writeln!(text, "{}", rng.below(1000));
    }
    text.truncate(len);
    text
}

/// The files of a small project, below `dir/tree`, and a file beside it.
fn files(dir: &Path) {
    let mut rng = Rng::new(2026);
    let put = |path: &str, bytes: &[u8]| {
        let path = dir.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    };
    for module in ["device", "format", "fs", "space", "stream", "tree", "volume"] {
        for n in 0..rng.between(12, 40) {
            let len = rng.between(700, 30_000) as usize;
            put(&format!("tree/src/crates/{module}/src/part{n:02}.rs"), text(&mut rng, len).as_bytes());
        }
        put(&format!("tree/src/crates/{module}/Cargo.toml"), text(&mut rng, 900).as_bytes());
    }
    for name in ["architecture", "format", "locking", "overview", "testing"] {
        let len = rng.between(8_000, 60_000) as usize;
        put(&format!("tree/src/docs/{name}.md"), text(&mut rng, len).as_bytes());
    }
    for n in 0..6 {
        let len = rng.between(100_000, 900_000) as usize;
        put(&format!("tree/src/images/photo{n}.jpg"), &rng.bytes(len));
    }
    let table = text(&mut rng, 3_000_000);
    put("tree/src/data/table.csv", table.as_bytes());
    put("tree/src/README.md", text(&mut rng, 6_000).as_bytes());
    put("CHANGELOG.md", text(&mut rng, 36_000).as_bytes());
}

fn command(dir: &Path, line: &str) -> Command {
    let bin = Path::new(env!("CARGO_BIN_EXE_oleo")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("sh");
    command.args(["-c", line]).current_dir(dir).env("PATH", path);
    command.env("SOURCE_DATE_EPOCH", EPOCH).env("COLUMNS", COLUMNS.to_string()).env("TZ", "UTC");
    command
}

fn shell(dir: &Path, line: &str) -> String {
    let done = command(dir, line).output().unwrap();
    let text = [done.stdout, done.stderr].concat();
    let text = String::from_utf8(text).unwrap();
    assert!(done.status.success(), "{line}: {text}");
    text
}

/// The commands and what they printed.
fn session(dir: &Path) -> Vec<(&'static str, String)> {
    files(dir);
    // Whatever the umask.
    shell(dir, "chmod -R u=rwX,go=rX tree CHANGELOG.md");
    SESSION.into_iter().map(|line| (line, shell(dir, line))).collect()
}

/// A terminal as SVG, in the fonts of the machine that shows it.
fn terminal(said: &[(&str, String)]) -> String {
    let (wide, high, edge) = (8.4, 19.0, 16.0);
    let mut lines: Vec<(bool, String)> = Vec::new();
    for (command, printed) in said {
        for (is_command, text) in
            std::iter::once((true, format!("$ {command}"))).chain(printed.lines().map(|l| (false, l.to_owned())))
        {
            let letters: Vec<char> = text.chars().collect();
            lines.extend(
                letters.chunks(COLUMNS).enumerate().map(|(n, part)| (is_command && n == 0, part.iter().collect())),
            );
        }
    }
    let (width, height) = (COLUMNS as f64 * wide + 2.0 * edge, lines.len() as f64 * high + 2.0 * edge);
    let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"A terminal\">\n\
         <style>text{{font:14px ui-monospace,Menlo,Consolas,monospace;fill:#d0d4d2;white-space:pre}}.p{{fill:#8fbf5a}}.c{{font-weight:bold}}</style>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#22272b\"/>\n"
    );
    for (n, (is_command, line)) in lines.iter().enumerate() {
        // The length keeps columns where they are, whatever the font.
        let (y, length) = (edge + 14.0 + n as f64 * high, line.chars().count() as f64 * wide);
        let place = format!("x=\"{edge:.0}\" y=\"{y:.0}\" textLength=\"{length:.1}\" xml:space=\"preserve\"");
        let shown = match line.strip_prefix("$ ").filter(|_| *is_command) {
            Some(command) => {
                format!("<text {place} class=\"c\"><tspan class=\"p\">$ </tspan>{}</text>\n", escaped(command))
            }
            None => format!("<text {place}>{}</text>\n", escaped(line)),
        };
        svg.push_str(&shown);
    }
    svg + "</svg>\n"
}

/// A program that ends when this is dropped.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

/// What a browser shows of the explorer, and a picture of it.
fn explorer(dir: &Path) -> (String, Vec<u8>) {
    let child = command(dir, "exec oleo explore store.img").stdout(Stdio::piped()).spawn().unwrap();
    let mut server = Ended(child);
    let mut address = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(server.0.stdout.take().unwrap()), &mut address).unwrap();
    let mut browser = Chromium::start(dir);
    browser.call(
        "Emulation.setDeviceMetricsOverride",
        json!({ "width": WINDOW.0, "height": WINDOW.1, "deviceScaleFactor": 1, "mobile": false }),
    );
    browser.open(&format!("{}#src/crates/tree/src", address.trim()));
    browser.wait(
        "document.querySelectorAll('#rows tr').length > 10 && document.querySelectorAll('#subvolumes li').length === 4",
    );
    let shown = browser.eval("document.body.innerText").as_str().unwrap().to_owned();
    let picture = browser.call("Page.captureScreenshot", json!({ "format": "png" }));
    (shown, BASE64.decode(picture["data"].as_str().unwrap()).unwrap())
}

/// Width and height in the head of a PNG.
fn size(png: &[u8]) -> (u32, u32) {
    let number = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap());
    (number(16), number(20))
}

/// What decides how the explorer looks.
fn layout() -> String {
    let assets = Path::new(TOP).join("crates/oleo-browse/assets");
    let read = |name: &str| -> PathBuf { assets.join(name) };
    let sum = Command::new("sha256sum").args(["index.html", "app.css"].map(read)).output().unwrap();
    String::from_utf8(sum.stdout).unwrap().lines().map(|line| line[..64].to_owned() + "\n").collect()
}

/// A map whose snapshots were made on the day of all files.
fn on_one_day(map: &str) -> String {
    const DAY: &str = "2026-01-01";
    let is_day = |text: &str| {
        text.len() == DAY.len() && text.bytes().zip(DAY.bytes()).all(|(a, b)| a == b || a.is_ascii_digit() && b != b'-')
    };
    let texts = map.split_inclusive('<').map(|part| match part.rsplit_once('>') {
        Some((tag, text)) if is_day(text.trim_end_matches('<')) => format!("{tag}>{DAY}<"),
        _ => part.to_owned(),
    });
    texts.collect()
}

/// Goal: the pictures show Oleo as it is. Method: the volume is made again, drawn again, and shown again; the map and the terminal are the same byte for byte, the explorer shows the same text with the same layout.
#[test]
fn are_current() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    let said = session(dir);
    compare("terminal.svg", terminal(&said).as_bytes());
    shell(dir, "oleo map -o map.svg store.img");
    compare("map.svg", on_one_day(&std::fs::read_to_string(dir.join("map.svg")).unwrap()).as_bytes());
    let kept = std::fs::read(Path::new(TOP).join("docs/pictures/explorer.png")).unwrap_or_default();
    assert!(std::env::var_os(WRITES).is_some() || size(&kept) == WINDOW);
    if !Command::new("chromium").arg("--version").output().is_ok_and(|out| out.status.success()) {
        return oracle::skip("there is no chromium (scripts/test installs it)");
    }
    let (shown, picture) = explorer(dir);
    assert_eq!(size(&picture), WINDOW);
    compare("explorer.txt", format!("{}\n{shown}\n", layout()).as_bytes());
    if std::env::var_os(WRITES).is_some() {
        compare("explorer.png", &picture);
    }
}
