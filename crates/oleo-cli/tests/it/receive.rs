//! `oleo receive` on images and directories, and `--dump`.

use std::fs;
use std::path::Path;

use oleo::Uuid;
use oleo::receive::{Command, header};
use oleo_sim::oracle::Scratch;

use crate::common::{fails_with, json, ok, run};

/// A stream with a file in a subvolume; in pieces, so that it can be cut.
pub fn stream() -> Vec<u8> {
    let mut out = header(2).to_vec();
    let commands = [
        Command::Subvol { path: b"s", uuid: Uuid::from_u128(1), ctransid: 9 },
        Command::MkDir { path: b"o257-1-0", ino: 257 },
        Command::Rename { path: b"o257-1-0", to: b"dir" },
        Command::MkFile { path: b"dir/f", ino: 258 },
        Command::Write { path: b"dir/f", offset: 0, data: b"contents" },
        Command::Chmod { path: b"dir/f", mode: 0o640 },
        Command::End,
    ];
    commands.iter().for_each(|command| command.encode(2, &mut out));
    out
}

fn scratch() -> Scratch {
    let scratch = Scratch::new().unwrap();
    fs::write(scratch.path().join("stream"), stream()).unwrap();
    ok(scratch.path(), &["mkfs", "--size", "256M", "i"]);
    scratch
}

fn fails(dir: &Path, args: &[&str]) -> String {
    fails_with(dir, 1, args)
}

/// Goal: a stream is applied to an image, from a file and from standard input, into any directory of it, once. Method: each, and what the
/// image says afterwards.
#[test]
fn into_an_image() {
    let scratch = scratch();
    let dir = scratch.path();
    assert_eq!(ok(dir, &["receive", "-f", "stream", "i"]), "subvolume s\n");
    assert_eq!(ok(dir, &["cat", "i", "s/dir/f"]), "contents");
    let shown = json(dir, &["subvolume", "show", "--json", "i", "s"]);
    assert!(shown.to_string().contains("00000000-0000-0000-0000-000000000001"), "{shown}");
    assert!(fails(dir, &["receive", "-f", "stream", "i"]).contains("byte 17 of the stream: subvol s: exists already"));
    ok(dir, &["mkdir", "i", "in"]);
    let input = fs::File::open(dir.join("stream")).unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_oleo"));
    let output = command.current_dir(dir).args(["-q", "receive", "--into", "in", "i"]).stdin(input).output().unwrap();
    assert!(output.status.success() && output.stdout.is_empty());
    assert_eq!(ok(dir, &["cat", "i", "in/s/dir/f"]), "contents");
    ok(dir, &["check", "i"]);
}

/// Goal: a stream that is cut short leaves nothing with --atomic, else what --resume goes on with.
#[test]
fn cut_short() {
    let scratch = scratch();
    let dir = scratch.path();
    let whole = stream();
    fs::write(dir.join("cut"), &whole[..whole.len() - 30]).unwrap();
    let before = fs::read(dir.join("i")).unwrap();
    assert!(fails(dir, &["receive", "--atomic", "-f", "cut", "i"]).contains("the stream ends at byte"));
    assert_eq!(ok(dir, &["ls", "i"]), "");
    assert!(before[..65536 + 4096] == fs::read(dir.join("i")).unwrap()[..65536 + 4096], "no commit");
    let output = run(dir, &["receive", "-f", "cut", "i"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("s is incomplete; --resume") && said.contains("the stream ends at byte"), "{said}");
    assert!(fails(dir, &["receive", "-f", "stream", "i"]).contains("exists already"));
    ok(dir, &["receive", "--resume", "-f", "stream", "i"]);
    assert_eq!(ok(dir, &["cat", "i", "s/dir/f"]), "contents");
    assert_eq!(ok(dir, &["receive", "--resume", "-f", "stream", "i"]), "subvolume s: complete already\n");
    ok(dir, &["check", "i"]);
}

/// Goal: a stream is shown as text and as JSON, and received into a plain directory.
#[test]
fn shown_and_into_a_directory() {
    let scratch = scratch();
    let dir = scratch.path();
    let text = ok(dir, &["receive", "--dump", "-f", "stream"]);
    let lines: Vec<_> = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(lines[0], "subvol ./s uuid=00000000-0000-0000-0000-000000000001 transid=9");
    assert_eq!(lines[2], "rename ./s/o257-1-0 dest=./s/dir");
    assert_eq!((lines[4].as_str(), lines.len()), ("write ./s/dir/f offset=0 len=8", 6));
    let rows = ok(dir, &["receive", "--dump", "--json", "-f", "stream"]);
    let rows: Vec<serde_json::Value> = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((rows.len(), &rows[6]["command"], &rows[5]["mode"]), (7, &"end".into(), &"640".into()));
    assert_eq!(rows[0]["position"], 17);
    fs::create_dir(dir.join("d")).unwrap();
    ok(dir, &["receive", "--to-dir", "-f", "stream", "d"]);
    assert_eq!(fs::read(dir.join("d/s/dir/f")).unwrap(), b"contents");
    fs::write(dir.join("bad"), &stream()[..40]).unwrap();
    assert!(fails(dir, &["receive", "--dump", "-f", "bad"]).contains("the stream ends at byte 40"));
}
