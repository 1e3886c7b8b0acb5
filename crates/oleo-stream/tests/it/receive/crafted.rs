//! Streams made by hand: every command, hostile ones, truncated ones, other parents.

use std::io::Cursor;
use std::sync::Arc;

use oleo::device::MemDevice;
use oleo::fs::{Attr, FileKind, Follow, Rdev, Time};
use oleo::mkfs::MkfsOptions;
use oleo::receive::{Command, Receive, ReceiveOptions, Report, header};
use oleo::send::SendOptions;
use oleo::{Device, Image, OpenOptions, SnapshotOptions, Uuid};
use oleo_format::{Compression, InodeFlags, Timespec, compress};
use oleo_sim::rng::Rng;

const ID: Uuid = Uuid::from_u128(0xfeed);

/// A stream of this version with one subvolume "s" and these commands in it.
fn stream(version: u32, commands: &[Command<'_>]) -> Vec<u8> {
    let mut out = header(version).to_vec();
    Command::Subvol { path: b"s", uuid: ID, ctransid: 10 }.encode(version, &mut out);
    commands.iter().for_each(|command| command.encode(version, &mut out));
    Command::End.encode(version, &mut out);
    out
}

/// The same on top of "s", called "t".
fn incremental(commands: &[Command<'_>]) -> Vec<u8> {
    let mut out = header(2).to_vec();
    let begin =
        Command::Snapshot { path: b"t", uuid: Uuid::from_u128(2), ctransid: 20, clone_uuid: ID, clone_ctransid: 10 };
    begin.encode(2, &mut out);
    commands.iter().for_each(|command| command.encode(2, &mut out));
    Command::End.encode(2, &mut out);
    out
}

struct Memory(Vec<Arc<dyn Device>>);

impl Memory {
    fn new() -> Memory {
        let devices: Vec<Arc<dyn Device>> = vec![Arc::new(MemDevice::new(256 << 20))];
        oleo::mkfs::make(&devices, &MkfsOptions::default().seed([3; 32])).unwrap();
        Memory(devices)
    }

    fn open(&self) -> Image {
        Image::from_devices(self.0.clone(), &OpenOptions::writing()).unwrap()
    }

    fn receive(&self, stream: &[u8], how: &Receive) -> (Report, Result<(), String>) {
        let image = Image::from_devices(self.0.clone(), &how.open_options(OpenOptions::default())).unwrap();
        let (report, result) = image.receive_report(Cursor::new(stream.to_vec()), how).unwrap();
        if result.is_ok() || !how.atomic {
            image.close().unwrap();
        } else {
            drop(image);
        }
        self.must_be_sound();
        (report, result.map_err(|e| e.to_string()))
    }

    fn ok(&self, stream: &[u8]) -> Report {
        let (report, result) = self.receive(stream, &Receive::default());
        result.unwrap();
        report
    }

    fn fails(&self, stream: &[u8], how: &Receive, says: &[&str]) {
        let error = self.receive(stream, how).1.unwrap_err();
        for text in says {
            assert!(error.contains(text), "{error:?} does not say {text:?}");
        }
    }

    fn must_be_sound(&self) {
        let image = Image::from_devices(self.0.clone(), &OpenOptions::default()).unwrap();
        let options = oleo::check::CheckOptions::default().data(true);
        let report = oleo::check::volume(image.volume(), &options).unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
    }
}

fn attr(image: &Image, path: &str) -> Attr {
    let top = image.top().unwrap();
    image.fs().attr(&image.fs().resolve(&top, path.as_bytes(), Follow::No).unwrap())
}

fn t(sec: i64) -> Timespec {
    Timespec::new(sec, 500)
}

/// Goal: every command has its effect. Method: each at least once, in version 2; then everything is compared.
#[test]
fn every_command() {
    let plain: Vec<u8> = (0..100_000u32).map(|n| (n / 9 % 200) as u8).collect();
    let packed = compress(Compression::Zstd, 3, &plain, 4096).unwrap();
    let encoded = |path, offset, skip, len| Command::EncodedWrite {
        path,
        offset,
        unencoded_file_len: len,
        unencoded_len: plain.len() as u64,
        unencoded_offset: skip,
        compression: 2,
        encryption: 0,
        data: &packed,
    };
    let clone = |path, offset, from, clone_offset, len| Command::Clone {
        path,
        offset,
        len,
        clone_uuid: ID,
        clone_ctransid: 10,
        clone_path: from,
        clone_offset,
    };
    let d: &[u8] = b"d";
    let commands = [
        Command::Chmod { path: b"", mode: 0o750 },
        Command::MkDir { path: b"o257-1-0", ino: 257 },
        Command::Rename { path: b"o257-1-0", to: d },
        Command::MkFile { path: b"d/f", ino: 258 },
        Command::Write { path: b"d/f", offset: 0, data: &plain[..8192] },
        Command::Write { path: b"d/f", offset: 8192, data: &plain[8192..10_000] },
        Command::SetXattr { path: b"d/f", name: b"user.x", value: b"1" },
        Command::SetXattr { path: b"d/f", name: b"user.gone", value: b"1" },
        Command::RemoveXattr { path: b"d/f", name: b"user.gone" },
        Command::Chown { path: b"d/f", uid: 5, gid: 6 },
        Command::Chmod { path: b"d/f", mode: 0o4755 },
        Command::Utimes { path: b"d/f", atime: t(1), mtime: t(2), ctime: t(3), otime: Some(t(4)) },
        Command::Link { path: b"hard", target: b"d/f" },
        Command::MkNod { path: b"dev", ino: 259, mode: 0o60660, rdev: 0x12_3456 },
        Command::MkFifo { path: b"fifo", ino: 260 },
        Command::MkSock { path: b"sock", ino: 261 },
        Command::Symlink { path: b"link", ino: 262, target: b"/else/where" },
        Command::MkFile { path: b"e", ino: 263 },
        encoded(b"e", 0, 0, plain.len() as u64),
        Command::MkFile { path: b"part", ino: 264 },
        encoded(b"part", 0, 8192, 4096),
        Command::MkFile { path: b"c", ino: 265 },
        clone(b"c", 0, b"e", 4096, 8192),
        clone(b"c", 8192, b"d/f", 0, 10_000),
        Command::Truncate { path: b"c", size: 15_000 },
        Command::MkFile { path: b"holes", ino: 266 },
        Command::Write { path: b"holes", offset: 0, data: &plain[..16384] },
        Command::Fallocate { path: b"holes", mode: 3, offset: 4096, len: 4096 },
        Command::Fallocate { path: b"holes", mode: 0, offset: 16384, len: 8192 },
        Command::Fallocate { path: b"holes", mode: 0x10, offset: 0, len: 100 },
        Command::UpdateExtent { path: b"holes", offset: 0, len: 4096 },
        Command::Write { path: b"holes", offset: 5, data: b"not on a sector" },
        Command::MkFile { path: b"nocow", ino: 267 },
        Command::Write { path: b"nocow", offset: 0, data: &plain[..4096] },
        Command::FileAttr {
            path: b"nocow",
            attr: (InodeFlags::NODATACOW | InodeFlags::NODATASUM | InodeFlags::IMMUTABLE).bits(),
        },
        Command::Utimes { path: b"nocow", atime: t(7), mtime: t(7), ctime: t(7), otime: None },
        Command::MkFile { path: b"gone", ino: 268 },
        Command::Write { path: b"gone", offset: 0, data: &plain },
        Command::Unlink { path: b"gone" },
        Command::MkDir { path: b"empty", ino: 269 },
        Command::RmDir { path: b"empty" },
        Command::MkFile { path: b"tiny", ino: 270 },
        Command::Write { path: b"tiny", offset: 0, data: b"inline" },
    ];
    let memory = Memory::new();
    let report = memory.ok(&stream(2, &commands));
    assert_eq!((report.subvols.len(), report.commands), (1, commands.len() as u64 + 2));
    assert!(report.warnings.is_empty() && report.errors.is_empty());
    let image = memory.open();
    assert_eq!(attr(&image, "s").mode & 0o7777, 0o750);
    let f = attr(&image, "s/d/f");
    assert_eq!((f.mode & 0o7777, f.uid, f.gid, f.nlink, f.size), (0o4755, 5, 6, 2, 10_000));
    let time = |sec| Time { sec, nsec: 500 };
    assert_eq!((f.atime, f.mtime, f.otime), (time(1), time(2), time(4)));
    assert_eq!(image.read("s/hard").unwrap(), plain[..10_000]);
    let inode = image.find("s/d/f").unwrap();
    assert_eq!(image.fs().xattrs(&inode).unwrap(), [(b"user.x".to_vec(), b"1".to_vec())]);
    assert_eq!(attr(&image, "s/dev").rdev, Rdev { major: 0x234, minor: 0x156 });
    let kinds = ["dev", "fifo", "sock", "link"].map(|name| attr(&image, &format!("s/{name}")).kind);
    assert_eq!(kinds, [FileKind::BlockDevice, FileKind::Fifo, FileKind::Socket, FileKind::Symlink]);
    assert_eq!(image.read("s/e").unwrap(), plain);
    assert_eq!(image.read("s/part").unwrap(), plain[8192..12288]);
    let extents = |path: &str| image.fs().extents(&image.find(path).unwrap(), 0, 1 << 20).unwrap();
    assert!(attr(&image, "s/e").nbytes >= 100_000 && extents("s/e").len() == 1, "stored as it came");
    let cloned = [&plain[4096..12288], &plain[..6808]].concat();
    assert_eq!(image.read("s/c").unwrap(), cloned);
    let mut holes = plain[..16384].to_vec();
    holes[4096..8192].fill(0);
    holes[..100].fill(0);
    holes.resize(24_576, 0);
    holes[5..20].copy_from_slice(b"not on a sector");
    assert_eq!(image.read("s/holes").unwrap(), holes);
    let nocow = attr(&image, "s/nocow");
    assert!(nocow.flags.contains(InodeFlags::NODATACOW | InodeFlags::NODATASUM | InodeFlags::IMMUTABLE));
    assert_eq!((nocow.mtime, nocow.size), (time(7), 4096));
    assert_eq!(image.read("s/tiny").unwrap(), b"inline");
    let names: Vec<_> = image.list("s").unwrap().into_iter().map(|e| e.name).collect();
    assert!(!names.contains(&b"gone".to_vec()) && !names.contains(&b"empty".to_vec()));
    let info = image.fs().subvol_info(image.subvol("s").unwrap().tree()).unwrap();
    assert!(info.read_only && info.received_uuid == ID && info.stransid == 10);
}

/// Goal: a stream that breaks a rule is refused with position and reason, and --atomic leaves nothing. Method: one rule each.
#[test]
fn streams_that_break_a_rule_are_refused() {
    let atomic = Receive::default().atomic(true);
    let w = |path| Command::Write { path, offset: 0, data: b"x" };
    let m = |path| Command::MkFile { path, ino: 0 };
    let cases: &[(&[Command<'_>], &str)] = &[
        (&[m(b"../out")], "the name .."),
        (&[m(b"/out")], "empty name"),
        (&[m(b"a//b")], "empty name"),
        (&[m(b"a\0b")], "zero byte"),
        (&[m(&[b'n'; 256])], "256 bytes long"),
        (&[m(b"")], "path is empty"),
        (&[m(b"a"), Command::Rename { path: b"a", to: b".." }], "the name .."),
        (&[m(b"a"), Command::Link { path: b"b", target: b"../x" }], "the name .."),
        (&[Command::Symlink { path: b"l", ino: 0, target: b"/" }, m(b"l/x")], "not a directory"),
        (&[Command::Symlink { path: b"l", ino: 0, target: b"a" }, m(b"a"), w(b"l")], "not a regular file"),
        (&[w(b"missing")], "not found"),
        (&[m(b"a"), m(b"a")], "exists already"),
        (&[m(b"a"), Command::Truncate { path: b"a", size: u64::MAX }], "too large"),
        (&[m(b"a"), Command::Write { path: b"a", offset: u64::MAX - 1, data: b"xyz" }], "too large"),
        (&[m(b"a"), Command::Fallocate { path: b"a", mode: 0, offset: 0, len: 1 << 50 }], "no space left"),
        (&[m(b"a"), Command::SetXattr { path: b"", name: b"trusted.oleo.receive", value: b"" }], "not permitted"),
        (&[Command::Subvol { path: b"../x", uuid: ID, ctransid: 1 }], "the name .."),
        (&[Command::Subvol { path: b"s", uuid: ID, ctransid: 1 }], "exists already"),
    ];
    for (commands, says) in cases {
        let memory = Memory::new();
        let stream = stream(2, commands);
        memory.fails(&stream, &atomic, &["byte ", "of the stream", says]);
        let image = memory.open();
        assert!(image.list("/").unwrap().is_empty(), "{says}: something is left");
        drop(image);
        // Without it a marked subvolume stays, or nothing if it had not begun.
        memory.fails(&stream, &Receive::default(), &[says]);
    }
    let mut early = header(2).to_vec();
    m(b"a").encode(2, &mut early);
    Memory::new().fails(&early, &atomic, &["byte 17 of the stream", "before a subvolume has begun"]);
    let mut end = header(2).to_vec();
    Command::End.encode(2, &mut end);
    Memory::new().fails(&end, &atomic, &["no subvolume has begun"]);
    let mut after = stream(2, &[]);
    m(b"a").encode(2, &mut after);
    Memory::new().fails(&after, &atomic, &["magic"]);
    let mut damaged = stream(2, &[m(b"a"), w(b"a"), m(b"b")]);
    let at = damaged.len() - 20;
    damaged[at] ^= 4;
    Memory::new().fails(&damaged, &atomic, &["checksum", "of the stream"]);
    let orphan = incremental(&[]);
    Memory::new().fails(&orphan, &atomic, &["the parent", "was not received here"]);
}

/// Goal: a file with fs-verity is sealed as the sender had it: the tree and descriptor exist, and snapshots of it
/// cannot be written to either. Method: version 3, a file of several levels, an empty one; our check and `btrfs check`,
/// and the kernel mounts it.
#[test]
fn a_file_with_verity_is_sealed() {
    let data: Vec<u8> = (0..2_000_000u32).map(|n| (n % 251) as u8).collect();
    let seal =
        |path, algorithm| Command::EnableVerity { path, algorithm, block_size: 4096, salt: b"salt", signature: b"sig" };
    let mut commands = vec![Command::MkFile { path: b"f", ino: 0 }];
    for (n, piece) in data.chunks(128 << 10).enumerate() {
        commands.push(Command::Write { path: b"f", offset: (n as u64) << 17, data: piece });
    }
    commands.extend([
        seal(b"f", 2),
        Command::Utimes { path: b"f", atime: t(1), mtime: t(2), ctime: t(3), otime: None },
        Command::MkFile { path: b"empty", ino: 0 },
        seal(b"empty", 1),
    ]);
    let stream = stream(3, &commands);
    let memory = Memory::new();
    memory.ok(&stream);
    let image = memory.open();
    assert_eq!(image.read("s/f").unwrap(), data);
    assert!(attr(&image, "s/f").flags.contains(InodeFlags::RO_VERITY) && attr(&image, "s/f").mtime.sec == 2);
    image.snapshot("s", "rw", &oleo::SnapshotOptions::default()).unwrap();
    let file = image.find("rw/f").unwrap();
    assert!(image.fs().write(&file, 0, b"x").is_err() && image.fs().truncate(&file, 5).is_err());
    drop((file, image));
    let twice = [Command::MkFile { path: b"f", ino: 0 }, seal(b"f", 1), seal(b"f", 1)];
    Memory::new().fails(&self::stream(3, &twice), &Receive::default(), &["enable_verity f: exists already"]);
    let odd = [Command::MkFile { path: b"f", ino: 0 }, seal(b"f", 9)];
    Memory::new().fails(&self::stream(3, &odd), &Receive::default(), &["not supported"]);
    let huge = [Command::MkFile { path: b"f", ino: 0 }, Command::Truncate { path: b"f", size: 1 << 60 }, seal(b"f", 1)];
    Memory::new().fails(&self::stream(3, &huge), &Receive::default(), &["too large"]);
    let Some(oracle) = oleo_sim::oracle::oracle() else { return };
    let receiver = crate::receive::common::Receiver::new(oracle, &[]).unwrap();
    let path = receiver.image.with_extension("stream");
    std::fs::write(&path, &stream).unwrap();
    receiver.ours(&path).unwrap();
    receiver.must_be_sound("verity").unwrap();
    let mounted = receiver.mount().unwrap();
    assert_eq!(std::fs::metadata(mounted.path().join("s/f")).unwrap().len(), data.len() as u64);
}

/// Goal: an interrupted receive continues where it stopped, whatever it was doing, with the same result. Method: a
/// stream cut at many places, received, then the whole one with `resume`; another stream is refused.
#[test]
fn an_interrupted_receive_is_resumed() {
    let data: Vec<u8> = (0..20_000u32).map(|n| (n % 250) as u8).collect();
    let names: Vec<Vec<u8>> = (0..12).map(|n| format!("d/f{n}").into_bytes()).collect();
    let mut commands = vec![Command::MkDir { path: b"d", ino: 0 }];
    for (n, name) in names.iter().enumerate() {
        commands.push(Command::MkFile { path: name, ino: 0 });
        commands.push(Command::Write { path: name, offset: 0, data: &data[n..] });
        commands.push(Command::Utimes { path: name, atime: t(1), mtime: t(2), ctime: t(3), otime: None });
    }
    let whole = stream(1, &commands);
    let other = {
        let mut commands = commands.clone();
        commands[2] = Command::Write { path: &names[0], offset: 0, data: &data[3..] };
        stream(1, &commands)
    };
    let again = Receive::default().options(ReceiveOptions::default().resume(true));
    for cut in (100..whole.len()).step_by(whole.len() / 17).chain([whole.len() - 1]) {
        let memory = Memory::new();
        memory.fails(&whole[..cut], &Receive::default(), &["the stream ends"]);
        let image = memory.open();
        let info = image.fs().subvol_info(image.subvol("s").unwrap().tree()).unwrap();
        assert!(!info.read_only && info.received_uuid.is_nil(), "it is not complete");
        drop(image);
        if cut > 21_000 {
            memory.fails(&other, &again, &["not the stream that was being received"]);
        }
        memory.receive(&whole, &again).1.unwrap();
        let image = memory.open();
        for (n, name) in names.iter().enumerate() {
            let path = [b"s/", &name[..]].concat();
            assert_eq!(image.read(&path).unwrap(), data[n..]);
            assert_eq!(image.attr(&path).unwrap().mtime.sec, 2);
        }
        let info = image.fs().subvol_info(image.subvol("s").unwrap().tree()).unwrap();
        assert!(info.read_only && info.received_uuid == ID);
        let root = image.subvol("s").unwrap();
        assert!(image.fs().xattrs(&root).unwrap().is_empty(), "the mark has gone");
        drop((root, image));
        // Once more: it is there.
        assert!(memory.receive(&whole, &again).0.subvols[0].passed_over);
    }
}

/// Goal: an incremental stream is applied to another parent that has the same data, and refused on one that has not.
/// Method: two subvolumes made by hand.
#[test]
fn another_parent_with_the_same_data_will_do() {
    let memory = Memory::new();
    let image = memory.open();
    for name in ["has", "lacks"] {
        image.create_subvol(name).unwrap();
    }
    image.write("has/f", &[1; 8192]).unwrap();
    image.close().unwrap();
    let step = incremental(&[
        Command::Rename { path: b"f", to: b"g" },
        Command::MkFile { path: b"h", ino: 0 },
        Command::Clone {
            path: b"h",
            offset: 0,
            len: 4096,
            clone_uuid: ID,
            clone_ctransid: 10,
            clone_path: b"f",
            clone_offset: 4096,
        },
    ]);
    let on = |name: &str| Receive::default().rebase(Some(name.into())).atomic(true);
    memory.fails(&step, &Receive::default(), &["the parent"]);
    memory.fails(&step, &on("lacks"), &["rename f: not found"]);
    memory.receive(&step, &on("has")).1.unwrap();
    let image = memory.open();
    assert_eq!(image.read("t/g").unwrap(), [1; 8192]);
    assert_eq!(image.read("t/h").unwrap(), [1; 4096]);
    assert_eq!(image.read("has/f").unwrap(), [1; 8192]);
}

/// Goal: a stream that comes back is applied to the original, which its sender names by the original's UUID and the sender's own
/// transaction; an original that was changed since is refused. Method: a snapshot is received elsewhere, where other commits
/// came before, is continued there, and that is sent back with the snapshot as the parent.
#[test]
fn back_to_the_original() {
    let read_only = SnapshotOptions::default().read_only(true);
    let send = |from: &Memory, name: &str, parent: Option<&str>| {
        let image = from.open();
        let id = |path: &str| image.subvol(path).unwrap().tree();
        let mut out = Vec::new();
        image.send(&[id(name)], &SendOptions::default().parent(parent.map(id)), &mut out).unwrap();
        image.close().unwrap();
        out
    };
    for changed in [false, true] {
        let (here, there) = (Memory::new(), Memory::new());
        let image = here.open();
        image.create_subvol("work").unwrap();
        image.write("work/f", &[1; 8192]).unwrap();
        image.snapshot("work", "first", &read_only).unwrap();
        image.close().unwrap();
        let image = there.open();
        for n in 0..5 {
            image.write(format!("other{n}"), b"other").unwrap();
            image.sync().unwrap();
        }
        image.close().unwrap();
        there.ok(&send(&here, "first", None));
        let image = there.open();
        image.snapshot("first", "work", &SnapshotOptions::default()).unwrap();
        image.write("work/g", b"more").unwrap();
        image.snapshot("work", "second", &read_only).unwrap();
        image.close().unwrap();
        let back = send(&there, "second", Some("first"));
        if changed {
            let image = here.open();
            let first = image.subvol("first").unwrap();
            image.set_property(&first, "ro", "false").unwrap();
            image.write("first/f", b"changed").unwrap();
            image.sync().unwrap();
            image.set_property(&first, "ro", "true").unwrap();
            drop(first);
            image.close().unwrap();
            here.fails(&back, &Receive::default(), &["the parent", "changed since"]);
            continue;
        }
        here.ok(&back);
        let image = here.open();
        assert_eq!(image.read("second/f").unwrap(), [1; 8192]);
        assert_eq!(image.read("second/g").unwrap(), b"more");
    }
}

/// Goal: errors are skipped as far as requested, and reported.
#[test]
fn errors_passed_over() {
    let commands = [
        Command::Unlink { path: b"missing" },
        Command::MkFile { path: b"a", ino: 0 },
        Command::RmDir { path: b"a" },
        Command::Write { path: b"a", offset: 0, data: b"x" },
    ];
    let passing = |max| Receive::default().options(ReceiveOptions::default().errors_passed_max(max));
    Memory::new().fails(&stream(1, &commands), &passing(Some(1)), &["rmdir a"]);
    for max in [Some(2), None] {
        let memory = Memory::new();
        let (report, result) = memory.receive(&stream(1, &commands), &passing(max));
        result.unwrap();
        assert_eq!(report.errors.len(), 2);
        assert_eq!(memory.open().read("s/a").unwrap(), b"x");
    }
}

/// Goal: data that turns out to be unusable after later commands have been applied is reported with the position of its
/// own command, and everything else is received. Method: bytes that cannot be decoded between files, some of them after
/// another error.
#[test]
fn late_errors() {
    let nonsense = [0xa5; 100];
    let encoded = |path: &'static [u8]| Command::EncodedWrite {
        path,
        offset: 0,
        unencoded_file_len: 8192,
        unencoded_len: 8192,
        unencoded_offset: 0,
        compression: 2,
        encryption: 0,
        data: &nonsense,
    };
    let good = [7; 5000];
    let mut commands = Vec::new();
    for path in [&b"a"[..], b"b", b"c", b"d"] {
        commands.push(Command::MkFile { path, ino: 0 });
        commands.push(Command::Write { path, offset: 0, data: &good });
    }
    commands.insert(4, Command::MkFile { path: b"bad", ino: 0 });
    commands.insert(5, encoded(b"bad"));
    commands.push(Command::RmDir { path: b"nothing" });
    commands.push(Command::MkFile { path: b"worse", ino: 0 });
    commands.push(encoded(b"worse"));
    let position = stream(2, &commands[..5]).len() - 10;
    let bytes = stream(2, &commands);
    Memory::new().fails(&bytes, &Receive::default(), &[&format!("byte {position} of the stream: encoded_write bad")]);
    let options = ReceiveOptions::default().errors_passed_max(None);
    let memory = Memory::new();
    let (report, result) = memory.receive(&bytes, &Receive::default().options(options));
    result.unwrap();
    let [one, two, three] = &report.errors[..] else { panic!("{:?}", report.errors) };
    assert!(
        one.contains("encoded_write bad") && two.contains("rmdir nothing") && three.contains("encoded_write worse")
    );
    let image = memory.open();
    for path in ["s/a", "s/b", "s/c", "s/d"] {
        assert_eq!(image.read(path).unwrap(), good, "{path}");
    }
}

/// Goal: a mark is right after many commits, and data of commands applied in the background is in place at the end.
/// Method: a stream of so many commands that there are commits in between, cut, resumed.
#[test]
fn marks_hold_after_many_commits() {
    let names: Vec<Vec<u8>> = (0..9_000).map(|n| format!("f{n}").into_bytes()).collect();
    let data: Vec<u8> = (0..9000u32).map(|n| (n % 251) as u8).collect();
    let mut commands = Vec::new();
    for (n, name) in names.iter().enumerate() {
        commands.push(Command::MkFile { path: name, ino: 0 });
        commands.push(Command::Write { path: name, offset: 0, data: &data[..4096] });
        // Behind other files' data, so that it is another piece, maybe of another batch.
        if let Some(before) = n.checked_sub(3).map(|n| &names[n]) {
            commands.push(Command::Write { path: before, offset: 4096, data: &data[4096..4096 + n % 4900] });
        }
        commands.extend((0o600..0o611).map(|mode| Command::Chmod { path: name, mode }));
    }
    let whole = stream(1, &commands);
    let again = Receive::default().options(ReceiveOptions::default().resume(true));
    let memory = Memory::new();
    let generation = |memory: &Memory| memory.open().fs().engine().generation().0;
    let before = generation(&memory);
    memory.fails(&whole[..whole.len() / 100 * 97], &Receive::default(), &["the stream ends"]);
    assert!(generation(&memory) >= before + 3, "two commits in between, one at the end");
    memory.receive(&whole, &again).1.unwrap();
    let image = memory.open();
    for (n, name) in names.iter().enumerate() {
        let more = if n + 3 < names.len() { (n + 3) % 4900 } else { 0 };
        let have = image.read([b"s/", &name[..]].concat()).unwrap();
        assert!(have == data[..4096 + more], "{} of {}", have.len(), 4096 + more);
    }
}

/// Goal: no stream causes a panic or an unsound image. Method: streams from seeds, most of whose commands find what
/// they need, as in the fuzz target.
#[test]
fn any_stream_leaves_a_sound_image() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let len = rng.between(10, 900) as usize;
        crate::receive::anything::receive_anything(&rng.bytes(len));
    }
}
