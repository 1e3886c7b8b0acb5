//! Receiving into a directory of any file system.

use std::fs::{self, File};
use std::io::Cursor;
use std::os::unix::fs::{MetadataExt, symlink};

use oleo::Uuid;
use oleo::receive::{Command, Receive, header, receive_to_dir};
use oleo_sim::manifest::{Detail, Ignore, Manifest};
use oleo_sim::oracle::{Scratch, oracle};

use crate::receive::chains::{change, fill};
use crate::receive::common::Sender;

/// Goal: what the kernel sends arrives in a directory of another file system, full and incremental. Method: a specimen and random
/// changes, both snapshots in one input; compared with the source.
#[test]
fn kernel_streams() {
    let Some(oracle) = oracle() else { return };
    let sender = Sender::new(oracle, "compress-force=zstd").unwrap();
    let top = sender.subvol("work").unwrap();
    fill(&top, 8).unwrap();
    sender.snapshot("work", "a").unwrap();
    change(&top, 9, 400);
    sender.snapshot("work", "b").unwrap();
    let mut input = fs::read(sender.send(&["--proto", "2", "--compressed-data"], &["a"]).unwrap()).unwrap();
    input.extend(fs::read(sender.send(&["-p", "a"], &["b"]).unwrap()).unwrap());
    let scratch = Scratch::new().unwrap();
    let dir = scratch.dir("received").unwrap();
    let (report, result) = receive_to_dir(&dir, Cursor::new(input), &Receive::default());
    result.unwrap();
    assert_eq!((report.subvols.len(), &report.warnings[..]), (2, &[][..]));
    for name in ["a", "b"] {
        let of = |dir: &std::path::Path| Manifest::of_dir(&dir.join(name), Detail::default()).unwrap();
        let ignore = Ignore {
            holes: true,
            dir_links: true,
            xattr_prefixes: vec![b"btrfs.".to_vec()],
            ..Ignore::from_elsewhere()
        };
        of(sender.mounted.path()).must_equal(&of(&dir), &ignore, "source | received");
    }
}

/// Goal: links that others create are not followed, on the way or at the end, and nothing outside changes. Method: a
/// stream that makes a link to a directory outside and goes through it in every way.
#[test]
fn links_are_not_followed() {
    let scratch = Scratch::new().unwrap();
    let (dir, outside) = (scratch.dir("received").unwrap(), scratch.dir("outside").unwrap());
    fs::write(outside.join("f"), "untouched").unwrap();
    let before = fs::metadata(outside.join("f")).unwrap();
    let target = outside.to_str().unwrap().to_owned();
    let file = format!("{target}/f");
    let commands = [
        Command::Write { path: b"dir/f", offset: 0, data: b"bad" },
        Command::Write { path: b"file", offset: 0, data: b"bad" },
        Command::Truncate { path: b"file", size: 0 },
        Command::Chmod { path: b"dir/f", mode: 0o777 },
        Command::MkFile { path: b"dir/new", ino: 0 },
        Command::Unlink { path: b"dir/f" },
        Command::Rename { path: b"dir/f", to: b"stolen" },
        Command::Link { path: b"stolen", target: b"dir/f" },
        Command::SetXattr { path: b"dir/f", name: b"user.x", value: b"1" },
        Command::Chown { path: b"dir/f", uid: 1, gid: 1 },
    ];
    for (n, bad) in commands.iter().enumerate() {
        let mut stream = header(1).to_vec();
        let name = format!("s{n}");
        Command::Subvol { path: name.as_bytes(), uuid: Uuid::from_u128(1), ctransid: 1 }.encode(1, &mut stream);
        Command::Symlink { path: b"dir", ino: 0, target: target.as_bytes() }.encode(1, &mut stream);
        Command::Symlink { path: b"file", ino: 0, target: file.as_bytes() }.encode(1, &mut stream);
        bad.encode(1, &mut stream);
        Command::End.encode(1, &mut stream);
        let (_, result) = receive_to_dir(&dir, Cursor::new(stream), &Receive::default().atomic(true));
        assert!(result.is_err(), "{bad:?}");
        assert!(!dir.join(name).exists(), "nothing is left");
    }
    // The place of the subvolume itself may be a trap.
    symlink(&outside, dir.join("trap")).unwrap();
    let mut stream = header(1).to_vec();
    Command::Subvol { path: b"trap/s", uuid: Uuid::from_u128(1), ctransid: 1 }.encode(1, &mut stream);
    Command::End.encode(1, &mut stream);
    assert!(receive_to_dir(&dir, Cursor::new(stream), &Receive::default()).1.is_err());
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    let after = fs::metadata(outside.join("f")).unwrap();
    assert_eq!(fs::read(outside.join("f")).unwrap(), b"untouched");
    assert_eq!((before.mode(), before.ctime_nsec(), before.uid()), (after.mode(), after.ctime_nsec(), after.uid()));
    drop(File::open(&outside).unwrap());
}
