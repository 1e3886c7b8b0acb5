//! What a program has written and not closed yet, looked at from elsewhere: a hole's end, a snapshot, another handle, a program that
//! copies. Where the kernel caches what was written, it must write it first, or not be asked.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FallocateFlags, IFlags, OFlags, SeekFrom, Timestamps, XattrFlags};
use rustix::io::Errno;
use rustix::mm::MapFlags;

use crate::mount::place::{Later, Place, family, open};
use crate::mount::sys::Map;

family!(
    "noatime";
    holes_while_open, ends_while_open, mapped_holes, copied_while_open after copied_after, snapshots_have_it after snapshots_after, snapshots_of_mapped_files after mapped_after,
    read_only_has_it, times_stay_when_forgotten, times_of_an_open_file after times_after, two_append after appended_after, appended_behind_a_truncation after cut_after,
    direct_beside_buffered, direct_behind_buffered after direct_after, holes_are_punched_beside after punched_after, ranges_are_copied_beside after ranges_after,
    several_names after names_after, replaced_while_open after replaced_after, capability_set_after_a_write, no_cow_after_a_write, defragmented_while_open after defragmented_after,
    unlinked_while_dirty, truncated_by_opening, synced_by_the_volume,
);

const K: u64 = 1 << 10;

fn data(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i / 7) as u8 ^ seed).collect()
}

fn new(at: &Place, name: &str) -> OwnedFd {
    open(&at.at(name), OFlags::RDWR | OFlags::CREATE).unwrap()
}

fn put(file: impl AsFd, bytes: &[u8], at: u64) {
    let mut done = 0;
    while done < bytes.len() {
        done += rustix::io::pwrite(&file, &bytes[done..], at + done as u64).unwrap();
    }
}

fn seek(file: &OwnedFd, to: SeekFrom) -> Result<u64, Errno> {
    rustix::fs::seek(file, to)
}

/// Data and holes as they were written, through the writer's handle and through one for reading.
fn holes_while_open(at: &Place) {
    let writer = new(at, "f");
    put(&writer, &data(8192, 1), 0);
    put(&writer, &data(4096, 2), K * K);
    let reader = open(&at.at("f"), OFlags::RDONLY).unwrap();
    for file in [&reader, &writer] {
        assert_eq!(seek(file, SeekFrom::Data(0)), Ok(0));
        assert_eq!(seek(file, SeekFrom::Hole(0)), Ok(8192));
        assert_eq!(seek(file, SeekFrom::Data(8192)), Ok(K * K));
        assert_eq!(seek(file, SeekFrom::Hole(K * K)), Ok(K * K + 4096));
    }
    put(&writer, &data(100, 3), 100 * K);
    assert_eq!(seek(&reader, SeekFrom::Data(8192)), Ok(100 * K));
}

fn ends_while_open(at: &Place) {
    let writer = new(at, "f");
    let reader = open(&at.at("f"), OFlags::RDONLY).unwrap();
    for n in 1..50 {
        put(&writer, &data(777, 1), (n - 1) * 777);
        assert_eq!(seek(&reader, SeekFrom::Hole(0)), Ok(n * 777));
        assert_eq!(seek(&reader, SeekFrom::End(0)), Ok(n * 777));
        assert_eq!(seek(&reader, SeekFrom::Data(n * 777)), Err(Errno::NXIO));
        assert_eq!(rustix::fs::fstat(&reader).unwrap().st_size, (n * 777).cast_signed());
    }
}

fn mapped_holes(at: &Place) {
    let file = new(at, "f");
    rustix::fs::ftruncate(&file, K * K).unwrap();
    let map = Map::new(&file, 0, 1 << 20, MapFlags::SHARED).unwrap();
    map.write(500 << 10, b"mapped");
    drop(file);
    let reader = open(&at.at("f"), OFlags::RDONLY).unwrap();
    // The kernel's btrfs does not say so before it is written, either.
    map.sync().unwrap();
    assert_eq!(seek(&reader, SeekFrom::Data(0)), Ok(500 * K));
}

/// cp and tar look for holes.
fn copied_while_open(at: &Place) {
    let (f, out) = (at.at("f"), at.subdir("out"));
    let copy = |how: &str, to: &str| {
        Later::new("cp".as_ref(), &[format!("--sparse={how}").as_ref(), f.as_os_str(), at.at(to).as_os_str()])
    };
    let tar = "cd \"$0\" && tar -Scf tar f && tar -C \"$1\" -xf tar";
    let tar = Later::new("sh".as_ref(), &["-c".as_ref(), tar.as_ref(), at.dir.as_os_str(), out.as_os_str()]);
    let copies = [copy("auto", "copy"), copy("always", "sparse"), tar];
    let writer = new(at, "f");
    for (n, copy) in (0..).zip(copies) {
        put(&writer, &data(300_000, 1), 0);
        put(&writer, &data(300_000, 2), 3 * K * K + n * 300_000);
        copy.run();
    }
    copied_after(&at.dir);
}

fn copied_after(dir: &Path) {
    for (n, name) in ["copy", "sparse", "out/f"].iter().enumerate() {
        let have = fs::read(dir.join(name)).unwrap();
        assert_eq!((have.len(), &have[..1000]), ((3 << 20) + (n + 1) * 300_000, &data(1000, 1)[..]), "{name}");
        assert!(have[(3 << 20) + n * 300_000..] == data(300_000, 2), "{name}");
    }
}

fn snapshot(at: &Place, of: &Path) -> Later {
    at.later(&["subvolume".as_ref(), "snapshot".as_ref(), of.as_os_str(), at.at("s").as_os_str()])
}

/// A snapshot has what was written before, of files large and small, and their times.
fn snapshots_have_it(at: &Place) {
    let v = at.subvolume("v");
    let snapshot = snapshot(at, &v);
    let files: Vec<OwnedFd> =
        (0..40).map(|n| open(&v.join(format!("f{n}")), OFlags::RDWR | OFlags::CREATE).unwrap()).collect();
    for (n, file) in files.iter().enumerate() {
        put(file, &data(if n == 0 { 20 << 20 } else { 5000 * n }, n as u8), 0);
    }
    snapshot.run();
    for (n, file) in files.iter().enumerate() {
        put(file, b"later", 0);
        let stat = rustix::fs::stat(at.at("s").join(format!("f{n}"))).unwrap();
        let now = rustix::fs::fstat(file).unwrap();
        assert!((stat.st_mtime, stat.st_mtime_nsec) <= (now.st_mtime, now.st_mtime_nsec), "f{n}");
    }
    snapshots_after(&at.dir);
}

fn snapshots_after(dir: &Path) {
    for n in 0..40 {
        let want = data(if n == 0 { 20 << 20 } else { 5000 * n }, n as u8);
        assert!(fs::read(dir.join(format!("s/f{n}"))).unwrap() == want, "f{n}");
        assert_eq!(fs::read(dir.join(format!("v/f{n}"))).unwrap()[..5], *b"later");
    }
}

fn snapshots_of_mapped_files(at: &Place) {
    let v = at.subvolume("v");
    let snapshot = snapshot(at, &v);
    let file = open(&v.join("f"), OFlags::RDWR | OFlags::CREATE).unwrap();
    put(&file, &[1; 100_000], 0);
    let map = Map::new(&file, 0, 100_000, MapFlags::SHARED).unwrap();
    map.write(50_000, b"mapped");
    map.sync().unwrap();
    drop(file);
    map.write(60_000, b"again");
    map.sync().unwrap();
    snapshot.run();
    mapped_after(&at.dir);
}

fn mapped_after(dir: &Path) {
    let have = fs::read(dir.join("s/f")).unwrap();
    assert_eq!((&have[50_000..50_006], &have[60_000..60_005]), (&b"mapped"[..], &b"again"[..]));
}

/// A subvolume that is made read-only has what was written before.
fn read_only_has_it(at: &Place) {
    let v = at.subvolume("v");
    let set = |to: &str| at.later(&["property".as_ref(), "set".as_ref(), v.as_os_str(), "ro".as_ref(), to.as_ref()]);
    let (on, off) = (set("true"), set("false"));
    let file = open(&v.join("f"), OFlags::RDWR | OFlags::CREATE).unwrap();
    put(&file, &data(3 << 20, 1), 0);
    drop(open(&v.join("g"), OFlags::RDWR | OFlags::CREATE).unwrap());
    on.run();
    assert!(fs::read(v.join("f")).unwrap() == data(3 << 20, 1));
    rustix::fs::fsync(&file).unwrap();
    off.run();
    at.snapshot(&v, "s");
    assert!(fs::read(at.at("s/f")).unwrap() == data(3 << 20, 1));
}

fn stamp(path: &Path) -> (i64, u64, i64, u64) {
    let s = rustix::fs::lstat(path).unwrap();
    (s.st_mtime, s.st_mtime_nsec, s.st_size, u64::from(s.st_mode))
}

/// A name, and what is done to its file.
type Act = (&'static str, fn(&OwnedFd));

/// What the kernel has cached of files and forgets, it finds again as it was.
fn times_stay_when_forgotten(at: &Place) {
    let acts: [Act; 6] = [
        ("written", |f| put(f, b"more", 0)),
        ("allocated", |f| rustix::fs::fallocate(f, FallocateFlags::empty(), 0, 100_000).unwrap()),
        ("punched", |f| {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(f, punch, 0, 8192).unwrap();
        }),
        ("cut", |f| rustix::fs::ftruncate(f, 10).unwrap()),
        ("copied", |f| {
            rustix::fs::copy_file_range(f, Some(&mut 0), f, Some(&mut 16_384), 4096).unwrap();
        }),
        ("direct", |f| {
            rustix::fs::fcntl_setfl(f, OFlags::DIRECT).unwrap();
            let map = Map::new(f, 0, 4096, MapFlags::PRIVATE).unwrap();
            let _ = map.read(0, 1);
            rustix::fs::fcntl_setfl(f, OFlags::empty()).unwrap();
        }),
    ];
    for (name, act) in acts {
        let file = new(at, name);
        put(&file, &data(20_000, 1), 0);
        rustix::fs::fsync(&file).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        act(&file);
        drop(file);
        rustix::fs::chmod(at.at(name), 0o640.into()).unwrap();
    }
    let before: Vec<_> = acts.iter().map(|(name, _)| stamp(&at.at(name))).collect();
    rustix::fs::syncfs(fs::File::open(&at.top).unwrap()).unwrap();
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    for ((name, _), before) in acts.iter().zip(before) {
        assert_eq!(stamp(&at.at(name)), before, "{name}");
    }
}

/// Times that are set while bytes are only cached stay.
fn times_of_an_open_file(at: &Place) {
    let file = new(at, "f");
    put(&file, &data(100_000, 1), 0);
    let spec = |s| rustix::fs::Timespec { tv_sec: s, tv_nsec: 5 };
    rustix::fs::futimens(&file, &Timestamps { last_access: spec(1_000_000), last_modification: spec(2_000_000) })
        .unwrap();
    rustix::fs::fsync(&file).unwrap();
    drop(file);
    times_after(&at.dir);
}

fn times_after(dir: &Path) {
    assert_eq!(stamp(&dir.join("f")).0, 2_000_000);
}

fn two_append(at: &Place) {
    let files = [0, 1].map(|_| open(&at.at("f"), OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE).unwrap());
    std::thread::scope(|s| {
        for (n, file) in files.iter().enumerate() {
            s.spawn(move || {
                for i in 0..500 {
                    let line = format!("{n} {i:06}\n");
                    assert_eq!(rustix::io::write(file, line.as_bytes()), Ok(9));
                }
            });
        }
    });
    appended_after(&at.dir);
}

fn appended_after(dir: &Path) {
    let text = fs::read_to_string(dir.join("f")).unwrap();
    for n in ["0", "1"] {
        let own: Vec<&str> = text.lines().filter(|l| l.starts_with(n)).collect();
        assert_eq!(own, (0..500).map(|i| format!("{n} {i:06}")).collect::<Vec<_>>());
    }
}

fn appended_behind_a_truncation(at: &Place) {
    let file = open(&at.at("f"), OFlags::RDWR | OFlags::APPEND | OFlags::CREATE).unwrap();
    for n in 0..20u64 {
        rustix::io::write(&file, &data(10_000, 1)).unwrap();
        rustix::fs::ftruncate(&file, 5000 + n).unwrap();
        rustix::io::write(&file, b"end").unwrap();
    }
    cut_after(&at.dir);
}

fn cut_after(dir: &Path) {
    let have = fs::read(dir.join("f")).unwrap();
    assert_eq!((have.len(), &have[5019..]), (5022, &b"end"[..]));
    assert_eq!(have[..5000], data(10_000, 1)[..5000]);
}

/// A buffer as direct I/O wants it.
#[repr(align(4096))]
struct Page([u8; 4096]);

fn direct_beside_buffered(at: &Place) {
    let file = new(at, "f");
    let direct = open(&at.at("f"), OFlags::RDWR | OFlags::DIRECT).unwrap();
    for n in 1..30u8 {
        put(&file, &[n; 8192], 0);
        let mut page = Page([0; 4096]);
        assert_eq!(rustix::io::pread(&direct, &mut page.0[..], 4096), Ok(4096));
        assert!(page.0 == [n; 4096], "buffered {n}, read direct");
        let page = Page([n ^ 0x80; 4096]);
        assert_eq!(rustix::io::pwrite(&direct, &page.0, 0), Ok(4096));
        let mut seen = [0; 4096];
        rustix::io::pread(&file, &mut seen[..], 0).unwrap();
        assert!(seen == page.0, "direct {n}, read buffered");
    }
}

fn direct_behind_buffered(at: &Place) {
    let file = new(at, "f");
    let direct = open(&at.at("f"), OFlags::RDWR | OFlags::DIRECT | OFlags::APPEND).unwrap();
    for n in 0..20 {
        rustix::fs::seek(&file, SeekFrom::End(0)).unwrap();
        rustix::io::write(&file, &[n; 4096]).unwrap();
        rustix::io::write(&direct, &Page([n + 100; 4096]).0).unwrap();
    }
    direct_after(&at.dir);
}

fn direct_after(dir: &Path) {
    let have = fs::read(dir.join("f")).unwrap();
    assert_eq!(have.len(), 40 * 4096);
    for n in 0..20u8 {
        let pair = &have[usize::from(n) * 8192..][..8192];
        assert!(pair[..4096] == [n; 4096] && pair[4096..] == [n + 100; 4096], "{n}");
    }
}

fn holes_are_punched_beside(at: &Place) {
    let file = new(at, "f");
    put(&file, &data(100_000, 1), 0);
    rustix::fs::fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 10_000, 50_000).unwrap();
    put(&file, b"inside", 30_000);
    punched_after(&at.dir);
}

fn punched_after(dir: &Path) {
    let mut want = data(100_000, 1);
    want[10_000..60_000].fill(0);
    want[30_000..30_006].copy_from_slice(b"inside");
    assert!(fs::read(dir.join("f")).unwrap() == want);
}

fn ranges_are_copied_beside(at: &Place) {
    let (from, to) = (new(at, "from"), new(at, "to"));
    put(&from, &data(200_000, 1), 0);
    put(&to, &data(300_000, 2), 0);
    let mut done = 0;
    while done < 131_072 {
        let (mut a, mut b) = (4096 + done, 65_536 + done);
        let n = rustix::fs::copy_file_range(&from, Some(&mut a), &to, Some(&mut b), 131_072 - done as usize).unwrap();
        done += n as u64;
    }
    put(&to, b"behind", 299_999);
    ranges_after(&at.dir);
}

fn ranges_after(dir: &Path) {
    let mut want = data(300_000, 2);
    want[65_536..196_608].copy_from_slice(&data(200_000, 1)[4096..135_168]);
    want.truncate(299_999);
    want.extend(b"behind");
    assert!(fs::read(dir.join("to")).unwrap() == want);
}

fn several_names(at: &Place) {
    let file = new(at, "a");
    put(&file, &data(10_000, 1), 0);
    rustix::fs::link(at.at("a"), at.at("b")).unwrap();
    let other = open(&at.at("b"), OFlags::RDWR).unwrap();
    put(&other, b"by the other name", 5000);
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_nlink, 2);
    put(&file, b"end", 10_000);
    drop((file, other));
    names_after(&at.dir);
}

fn names_after(dir: &Path) {
    let a = fs::read(dir.join("a")).unwrap();
    assert_eq!((a.len(), &a[5000..5017]), (10_003, &b"by the other name"[..]));
    assert_eq!(fs::read(dir.join("b")).unwrap(), a);
}

fn replaced_while_open(at: &Place) {
    let old = open(&at.file("f", b"old"), OFlags::RDWR).unwrap();
    put(&old, b"OLD", 0);
    let next = new(at, "next");
    put(&next, &data(50_000, 9), 0);
    rustix::fs::rename(at.at("next"), at.at("f")).unwrap();
    put(&old, b"nobody sees this", 0);
    replaced_after(&at.dir);
}

fn replaced_after(dir: &Path) {
    assert_eq!(fs::read(dir.join("f")).unwrap(), data(50_000, 9));
}

/// What was written before a capability was given does not take it away later.
fn capability_set_after_a_write(at: &Place) {
    const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let file = new(at, "f");
    put(&file, &data(10_000, 1), 0);
    rustix::fs::fsetxattr(&file, "security.capability", &CAPABILITY, XattrFlags::empty()).unwrap();
    rustix::fs::fsync(&file).unwrap();
    drop(file);
    assert_eq!(rustix::fs::getxattr(at.at("f"), "security.capability", &mut [0; 64][..]), Ok(20));
    // And one more write does.
    put(open(&at.at("f"), OFlags::RDWR).unwrap(), b"x", 0);
    assert_eq!(rustix::fs::getxattr(at.at("f"), "security.capability", &mut [0; 64][..]), Err(Errno::NODATA));
}

/// A file that has bytes, though only the kernel has them, keeps being copied on write.
fn no_cow_after_a_write(at: &Place) {
    let file = new(at, "f");
    put(&file, &data(10_000, 1), 0);
    let _ = rustix::fs::ioctl_setflags(&file, IFlags::NOCOW);
    assert!(!rustix::fs::ioctl_getflags(&file).unwrap().contains(IFlags::NOCOW));
}

fn defragmented_while_open(at: &Place) {
    let path = at.at("f");
    let defragment = at.later(&["filesystem".as_ref(), "defragment".as_ref(), path.as_os_str()]);
    let file = new(at, "f");
    for n in (0..64).rev() {
        put(&file, &data(4096, n as u8), n * 4096);
        if n % 8 == 0 {
            rustix::fs::fsync(&file).unwrap();
        }
    }
    put(&file, &data(4096, 77), 64 * 4096);
    defragment.run();
    put(&file, b"end", 65 * 4096);
    drop(file);
    defragmented_after(&at.dir);
}

fn defragmented_after(dir: &Path) {
    let have = fs::read(dir.join("f")).unwrap();
    assert_eq!(have.len(), 65 * 4096 + 3);
    for n in 0..64 {
        assert!(have[n * 4096..][..4096] == data(4096, n as u8), "{n}");
    }
    assert!(have[64 * 4096..][..4096] == data(4096, 77) && have.ends_with(b"end"));
}

fn unlinked_while_dirty(at: &Place) {
    let file = new(at, "f");
    put(&file, &data(3 << 20, 1), 0);
    rustix::fs::unlink(at.at("f")).unwrap();
    put(&file, b"still", 0);
    let mut seen = [0; 5];
    rustix::io::pread(&file, &mut seen[..], 0).unwrap();
    assert_eq!(&seen, b"still");
    rustix::fs::fsync(&file).unwrap();
    assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(3 << 20));
}

fn truncated_by_opening(at: &Place) {
    let file = new(at, "f");
    put(&file, &data(100_000, 1), 0);
    let other = open(&at.at("f"), OFlags::RDWR | OFlags::TRUNC).unwrap();
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_size, 0);
    put(&file, b"behind", 5000);
    let mut seen = [9; 5006];
    assert_eq!(rustix::io::pread(&other, &mut seen[..], 0), Ok(5006));
    assert!(seen[..5000] == [0; 5000] && seen.ends_with(b"behind"));
}

fn synced_by_the_volume(at: &Place) {
    let sync = at.later(&["filesystem".as_ref(), "sync".as_ref(), at.top.as_os_str()]);
    let file = new(at, "f");
    put(&file, &data(1 << 20, 1), 0);
    sync.run();
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks, 2048);
}
