//! Which call changes which time of which file.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FallocateFlags, Gid, Mode, OFlags, RenameFlags, SeekFrom, StatxFlags, XattrFlags};
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid};

use crate::mount::place::{Place, family, open};

family!(
    "strictatime";
    making_names, linking, removing_names, renaming, renaming_across, exchanging, writing, truncating, opening_with_trunc,
    attributes, setting_times, far_times after far_times_after, btime_stays, looking_changes_nothing, reading_a_file,
    reading_a_file_again limited "the kernel's page cache answers, and a FUSE inode's atime is the server's business" with "times of ",
    reading_a_directory, reading_a_link, space, copying, mapping, through_an_open_descriptor,
);

/// Longer than the coarsest clock that stamps are taken from.
const TICK: Duration = Duration::from_millis(25);

#[derive(Clone, Copy, Debug, PartialEq)]
struct Stamps {
    a: (i64, u32),
    m: (i64, u32),
    c: (i64, u32),
    birth: (i64, u32),
}

fn stamps(path: &Path) -> Stamps {
    let want = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let s = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, want).unwrap();
    assert!(s.stx_mask & StatxFlags::BTIME.bits() != 0, "a birth time is told");
    let t = |t: rustix::fs::StatxTimestamp| (t.tv_sec, t.tv_nsec);
    Stamps { a: t(s.stx_atime), m: t(s.stx_mtime), c: t(s.stx_ctime), birth: t(s.stx_btime) }
}

/// Does it, and looks which times have moved: each path comes with the letters of those that must (`a`, `m`, `c`); no
/// other may, and none backwards.
#[track_caller]
fn changes(watched: &[(PathBuf, &str)], act: impl FnOnce()) {
    let before: Vec<Stamps> = watched.iter().map(|(p, _)| stamps(p)).collect();
    std::thread::sleep(TICK);
    act();
    for ((path, want), old) in watched.iter().zip(&before) {
        let new = stamps(path);
        let moved: String = [("a", old.a, new.a), ("m", old.m, new.m), ("c", old.c, new.c)]
            .iter()
            .filter(|(_, old, new)| old != new)
            .map(|(name, old, new)| {
                assert!(new > old, "{name} of {} went back: {old:?} to {new:?}", path.display());
                *name
            })
            .collect();
        assert_eq!(&moved, want, "times of {}", path.display());
        assert_eq!(old.birth, new.birth);
    }
}

fn making_names(at: &Place) {
    let dir = at.subdir("d");
    changes(&[(dir.clone(), "mc")], || fs::write(dir.join("f"), b"").unwrap());
    changes(&[(dir.clone(), "mc")], || fs::create_dir(dir.join("e")).unwrap());
    changes(&[(dir.clone(), "mc")], || rustix::fs::symlink("f", dir.join("l")).unwrap());
    let fifo = rustix::fs::FileType::Fifo;
    changes(&[(dir.clone(), "mc")], || {
        rustix::fs::mknodat(CWD, dir.join("p"), fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    });
    // What is new has all its times alike, and later than its directory's last change before.
    let new = stamps(&dir.join("p"));
    assert_eq!((new.a, new.m), (new.c, new.c));
    // A file without a name changes no directory.
    changes(&[(dir.clone(), "")], || drop(open(&dir, OFlags::TMPFILE | OFlags::RDWR).unwrap()));
    // Opening what exists makes nothing.
    let file = dir.join("f");
    changes(&[(dir.clone(), ""), (file.clone(), "")], || drop(open(&file, OFlags::CREATE | OFlags::RDWR).unwrap()));
}

fn linking(at: &Place) {
    let file = at.file("f", b"x");
    let dir = at.subdir("d");
    changes(&[(dir.clone(), "mc"), (file.clone(), "c"), (at.dir.clone(), "")], || {
        rustix::fs::link(&file, dir.join("l")).unwrap();
    });
}

fn removing_names(at: &Place) {
    let file = at.file("f", b"x");
    rustix::fs::link(&file, at.at("l")).unwrap();
    changes(&[(at.dir.clone(), "mc"), (file.clone(), "c")], || fs::remove_file(at.at("l")).unwrap());
    at.subdir("d");
    changes(&[(at.dir.clone(), "mc"), (file, "")], || fs::remove_dir(at.at("d")).unwrap());
    // Refusals change nothing.
    at.subdir("e");
    at.file("e/f", b"");
    changes(&[(at.dir.clone(), ""), (at.at("e"), "")], || drop(fs::remove_dir(at.at("e")).unwrap_err()));
}

fn renaming(at: &Place) {
    at.file("f", b"x");
    let held = fs::File::open(at.at("f")).unwrap();
    let before = rustix::fs::fstat(&held).unwrap();
    changes(&[(at.dir.clone(), "mc")], || fs::rename(at.at("f"), at.at("g")).unwrap());
    let after = rustix::fs::fstat(&held).unwrap();
    assert_ne!((before.st_ctime, before.st_ctime_nsec), (after.st_ctime, after.st_ctime_nsec));
    assert_eq!((before.st_mtime, before.st_mtime_nsec), (after.st_mtime, after.st_mtime_nsec));
    // Over another: that one loses a name.
    at.file("old", b"");
    rustix::fs::link(at.at("old"), at.at("kept")).unwrap();
    changes(&[(at.dir.clone(), "mc"), (at.at("kept"), "c")], || fs::rename(at.at("g"), at.at("old")).unwrap());
}

fn renaming_across(at: &Place) {
    let (from, to) = (at.subdir("from"), at.subdir("to"));
    at.file("from/f", b"x");
    at.subdir("from/d");
    rustix::fs::link(at.at("from/f"), at.at("f")).unwrap();
    let watched = [(from.clone(), "mc"), (to.clone(), "mc"), (at.at("f"), "c")];
    changes(&watched, || fs::rename(from.join("f"), to.join("f")).unwrap());
    changes(&[(from.clone(), "mc"), (to.clone(), "mc")], || fs::rename(from.join("d"), to.join("d")).unwrap());
}

fn exchanging(at: &Place) {
    let (one, two) = (at.subdir("one"), at.subdir("two"));
    at.file("one/a", b"a");
    at.file("two/b", b"b");
    rustix::fs::link(one.join("a"), at.at("a")).unwrap();
    rustix::fs::link(two.join("b"), at.at("b")).unwrap();
    let watched = [(one.clone(), "mc"), (two.clone(), "mc"), (at.at("a"), "c"), (at.at("b"), "c")];
    changes(&watched, || {
        rustix::fs::renameat_with(CWD, one.join("a"), CWD, two.join("b"), RenameFlags::EXCHANGE).unwrap();
    });
}

fn writing(at: &Place) {
    let path = at.file("f", &[1; 10_000]);
    let file = open(&path, OFlags::WRONLY).unwrap();
    let put = |data: &[u8], at| assert_eq!(rustix::io::pwrite(&file, data, at), Ok(data.len()));
    changes(&[(path.clone(), "mc"), (at.dir.clone(), "")], || put(b"x", 5));
    changes(&[(path.clone(), "mc")], || put(b"x", 100_000));
    changes(&[(path.clone(), "")], || put(b"", 0));
    changes(&[(path.clone(), "")], || rustix::fs::fsync(&file).unwrap());
    changes(&[(path, "")], || drop(file));
}

fn truncating(at: &Place) {
    let path = at.file("f", &[1; 10_000]);
    let file = open(&path, OFlags::WRONLY).unwrap();
    changes(&[(path.clone(), "mc")], || rustix::fs::ftruncate(&file, 5000).unwrap());
    changes(&[(path.clone(), "mc")], || rustix::fs::ftruncate(&file, 50_000).unwrap());
    // To the size it has: a change all the same.
    changes(&[(path.clone(), "mc")], || rustix::fs::ftruncate(&file, 50_000).unwrap());
}

fn opening_with_trunc(at: &Place) {
    let path = at.file("f", &[1; 10_000]);
    let cut = || drop(open(&path, OFlags::WRONLY | OFlags::TRUNC).unwrap());
    changes(&[(path.clone(), "mc"), (at.dir.clone(), "")], cut);
    // An empty file too.
    changes(&[(path.clone(), "mc")], cut);
}

fn attributes(at: &Place) {
    let path = at.file("f", b"x");
    let c = [(path.clone(), "c"), (at.dir.clone(), "")];
    changes(&c, || rustix::fs::chmod(&path, Mode::from_raw_mode(0o600)).unwrap());
    changes(&c, || rustix::fs::chmod(&path, Mode::from_raw_mode(0o600)).unwrap());
    changes(&c, || rustix::fs::chown(&path, Some(Uid::from_raw(7)), Some(Gid::from_raw(7))).unwrap());
    changes(&c, || rustix::fs::setxattr(&path, "user.x", b"y", XattrFlags::empty()).unwrap());
    changes(&c, || rustix::fs::removexattr(&path, "user.x").unwrap());
    let dir = at.subdir("d");
    changes(&[(dir.clone(), "c")], || rustix::fs::chmod(&dir, Mode::from_raw_mode(0o700)).unwrap());
}

fn setting_times(at: &Place) {
    let path = at.file("f", b"x");
    let set = |a: (i64, i64), m: (i64, i64)| {
        let spec = |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec };
        let times = Timestamps { last_access: spec(a), last_modification: spec(m) };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
    };
    set((1000, 1), (2000, 999_999_999));
    let old = stamps(&path);
    assert_eq!((old.a, old.m), ((1000, 1), (2000, 999_999_999)));
    std::thread::sleep(TICK);
    set((0, UTIME_OMIT), (3000, 0));
    let new = stamps(&path);
    assert_eq!((new.a, new.m), ((1000, 1), (3000, 0)));
    assert!(new.c > old.c);
    set((0, UTIME_NOW), (0, UTIME_OMIT));
    assert!(stamps(&path).a > new.c && stamps(&path).m == (3000, 0));
    changes(&[(path.clone(), "")], || set((0, UTIME_OMIT), (0, UTIME_OMIT)));
    // Of a symlink itself.
    rustix::fs::symlink("f", at.at("l")).unwrap();
    let times = Timestamps {
        last_access: Timespec { tv_sec: 5, tv_nsec: 5 },
        last_modification: Timespec { tv_sec: 6, tv_nsec: 6 },
    };
    rustix::fs::utimensat(CWD, at.at("l"), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    assert_eq!((stamps(&at.at("l")).a, stamps(&at.at("l")).m), ((5, 5), (6, 6)));
    assert_eq!(stamps(&path).m, (3000, 0));
}

const FAR: [(&str, i64); 5] = [
    ("before-1970", -5),
    ("before-1901", -3_000_000_000),
    ("2038", 1 << 31),
    ("2106", 1 << 32),
    ("2446", 15_032_385_536),
];

/// The format keeps 64 bits of seconds.
fn far_times(at: &Place) {
    for (name, sec) in FAR {
        let path = at.file(name, b"");
        let spec = Timespec { tv_sec: sec, tv_nsec: 123_456_789 };
        let times = Timestamps { last_access: spec, last_modification: spec };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
    }
    far_times_after(&at.dir);
}

fn far_times_after(dir: &Path) {
    for (name, sec) in FAR {
        assert_eq!(stamps(&dir.join(name)).m, (sec, 123_456_789), "{name}");
    }
}

fn btime_stays(at: &Place) {
    let path = at.file("f", b"x");
    let born = stamps(&path).birth;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs().cast_signed();
    assert!((now - born.0).abs() < 100, "{born:?} is now");
    std::thread::sleep(TICK);
    fs::write(&path, b"longer").unwrap();
    rustix::fs::rename(&path, at.at("g")).unwrap();
    assert_eq!(stamps(&at.at("g")).birth, born);
}

fn looking_changes_nothing(at: &Place) {
    let path = at.file("f", b"x");
    rustix::fs::setxattr(&path, "user.x", b"y", XattrFlags::empty()).unwrap();
    changes(&[(path.clone(), ""), (at.dir.clone(), "")], || {
        let file = open(&path, OFlags::RDWR).unwrap();
        rustix::fs::seek(&file, SeekFrom::Hole(0)).unwrap();
        rustix::fs::getxattr(&path, "user.x", &mut [0; 10][..]).unwrap();
        rustix::fs::listxattr(&path, &mut [0; 100][..]).unwrap();
        rustix::fs::access(&path, rustix::fs::Access::READ_OK).unwrap();
        rustix::fs::stat(&path).unwrap();
    });
}

fn reading_a_file(at: &Place) {
    let path = at.file("f", &[1; 100]);
    changes(&[(path.clone(), "a"), (at.dir.clone(), "")], || drop(fs::read(&path).unwrap()));
}

fn reading_a_file_again(at: &Place) {
    let path = at.file("f", &[1; 100]);
    fs::read(&path).unwrap();
    for _ in 0..3 {
        changes(&[(path.clone(), "a")], || drop(fs::read(&path).unwrap()));
    }
}

fn reading_a_directory(at: &Place) {
    let dir = at.subdir("d");
    at.file("d/f", b"");
    changes(&[(dir.clone(), "a"), (dir.join("f"), "")], || assert_eq!(fs::read_dir(&dir).unwrap().count(), 1));
}

fn reading_a_link(at: &Place) {
    rustix::fs::symlink("target", at.at("l")).unwrap();
    changes(&[(at.at("l"), "a"), (at.dir.clone(), "")], || drop(fs::read_link(at.at("l")).unwrap()));
}

fn space(at: &Place) {
    let path = at.file("f", &[1; 100_000]);
    let file = open(&path, OFlags::RDWR).unwrap();
    let mc = [(path.clone(), "mc")];
    let go = |flags, at, len| rustix::fs::fallocate(&file, flags, at, len).unwrap();
    changes(&mc, || go(FallocateFlags::empty(), 0, 200_000));
    changes(&mc, || go(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 8192));
    changes(&mc, || go(FallocateFlags::ZERO_RANGE, 8192, 8192));
}

fn copying(at: &Place) {
    let from = open(&at.file("from", &[1; 65_536]), OFlags::RDONLY).unwrap();
    let to = open(&at.file("to", b""), OFlags::WRONLY).unwrap();
    changes(&[(at.at("to"), "mc")], || {
        rustix::fs::copy_file_range(&from, Some(&mut 0), &to, Some(&mut 0), 65_536).unwrap();
    });
}

fn mapping(at: &Place) {
    let path = at.file("f", &[1; 8192]);
    let file = open(&path, OFlags::RDWR).unwrap();
    let map = crate::mount::sys::Map::new(&file, 0, 8192, rustix::mm::MapFlags::SHARED).unwrap();
    map.read(0, 10);
    let before = stamps(&path);
    std::thread::sleep(TICK);
    map.write(100, b"changed");
    map.sync().unwrap();
    let after = stamps(&path);
    assert!(after.m > before.m && after.c > before.c, "{before:?} {after:?}");
}

/// What a descriptor tells is what the path tells.
fn through_an_open_descriptor(at: &Place) {
    let path = at.file("f", b"x");
    let file = open(&path, OFlags::RDWR).unwrap();
    let same = || {
        let (a, b) = (rustix::fs::fstat(&file).unwrap(), rustix::fs::stat(&path).unwrap());
        assert_eq!((a.st_mtime, a.st_mtime_nsec, a.st_size), (b.st_mtime, b.st_mtime_nsec, b.st_size));
        assert_eq!((a.st_ctime, a.st_ctime_nsec, a.st_blocks), (b.st_ctime, b.st_ctime_nsec, b.st_blocks));
    };
    same();
    rustix::io::pwrite(&file, &[1; 5000], 3).unwrap();
    same();
    rustix::fs::futimens(
        &file,
        &Timestamps {
            last_access: Timespec { tv_sec: 1, tv_nsec: 2 },
            last_modification: Timespec { tv_sec: 3, tv_nsec: 4 },
        },
    )
    .unwrap();
    same();
    assert_eq!(stamps(&path).m, (3, 4));
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o640)).unwrap();
    same();
}
