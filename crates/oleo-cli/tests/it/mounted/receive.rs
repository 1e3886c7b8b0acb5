//! Receiving on a mount, through its server.

use std::fs;

use oleo::Uuid;
use oleo::receive::{Command, header};

use crate::mounted::{Mount, fails, ok};

fn stream(begin: &Command<'_>, commands: &[Command<'_>]) -> Vec<u8> {
    let mut out = header(2).to_vec();
    begin.encode(2, &mut out);
    commands.iter().for_each(|command| command.encode(2, &mut out));
    Command::End.encode(2, &mut out);
    out
}

/// Goal: a stream is received on a mount while it is in use, and seen immediately, also where somebody had looked before; errors are
/// told, and what is incomplete is gone on with. Method: a full stream cut short, looked at, resumed; an incremental one; a bad one with
/// --atomic; the kernel verifies the image.
#[test]
fn through_the_server() {
    let Some(mut mount) = Mount::new("") else { return };
    let dir = mount.dir().to_owned();
    let uuid = Uuid::from_u128(1);
    let data = vec![5; 300_000];
    let commands = [
        Command::MkFile { path: b"f", ino: 0 },
        Command::Write { path: b"f", offset: 0, data: &data[..100_000] },
        Command::MkFile { path: b"g", ino: 0 },
        Command::Write { path: b"g", offset: 0, data: &data },
        Command::Chmod { path: b"g", mode: 0o604 },
    ];
    let whole = stream(&Command::Subvol { path: b"s", uuid, ctransid: 9 }, &commands);
    fs::write(dir.join("whole"), &whole).unwrap();
    fs::write(dir.join("cut"), &whole[..200_000]).unwrap();
    fs::create_dir(mount.path("in")).unwrap();
    assert!(fails(&dir, &["-q", "receive", "-f", "cut", "m/in"]).contains("the stream ends at byte 200000"));
    // The kernel may remember this.
    assert_eq!(fs::read(mount.path("in/s/g")).unwrap(), b"");
    ok(&dir, &["receive", "--resume", "-f", "whole", "m/in"]);
    assert!(fs::read(mount.path("in/s/g")).unwrap() == data);
    assert!(fs::read(mount.path("in/s/f")).unwrap() == data[..100_000]);
    assert!(fs::write(mount.path("in/s/f"), "x").is_err(), "it is read-only");
    let begin =
        Command::Snapshot { path: b"t", uuid: Uuid::from_u128(2), ctransid: 12, clone_uuid: uuid, clone_ctransid: 9 };
    let step = stream(&begin, &[Command::Rename { path: b"f", to: b"h" }, Command::Unlink { path: b"g" }]);
    fs::write(dir.join("step"), step).unwrap();
    assert_eq!(ok(&dir, &["receive", "-f", "step", "m"]), "snapshot t\n");
    assert!(fs::read(mount.path("t/h")).unwrap() == data[..100_000] && !mount.path("t/g").exists());
    let bad = stream(&Command::Subvol { path: b"u", uuid, ctransid: 1 }, &[Command::Unlink { path: b"../in" }]);
    fs::write(dir.join("bad"), bad).unwrap();
    assert!(fails(&dir, &["receive", "--atomic", "-f", "bad", "m"]).contains("the name .."));
    assert!(!mount.path("u").exists());
    mount.verify(|top| assert!(fs::read(top.join("in/s/g")).unwrap() == data));
}
