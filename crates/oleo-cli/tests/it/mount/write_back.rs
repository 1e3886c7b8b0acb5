//! The kernel's write-back cache: who is told what could not be written, and that nobody waits for ever.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

use oleo_sim::oracle::{Oracle, oracle, run};
use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::mm::MapFlags;

use crate::mount::place::{Kind, Later, Mount, OLEO, open, refused};
use crate::mount::sys::Map;

fn oleo(args: &[&str], path: &Path) {
    run(OLEO, args.iter().map(OsStr::new).chain([path.as_os_str()])).unwrap();
}

/// A mount with a subvolume `v` that may have 1 MiB.
fn limited(oracle: Oracle, image: &Path) -> Mount {
    Kind::Oleo.mkfs(oracle, image).unwrap();
    let mount = Kind::WriteBack.mount(oracle, image, "").unwrap();
    let v = mount.path().join("v");
    oleo(&["quota", "enable"], mount.path());
    oleo(&["subvolume", "create"], &v);
    oleo(&["qgroup", "limit", "1M"], &v);
    mount
}

/// Goal: what quota refuses is reported by fsync(2) and close(2), and nothing else of it is lost. Method: a limit of 1 MiB on a
/// subvolume; 8 MiB by write(2), which succeeds, then fsync; the same by cp, which looks at what close returns.
#[test]
fn quota_is_reported_at_fsync_and_close() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let image = scratch.path().join("image");
    let mount = limited(oracle, &image);
    let v = mount.path().join("v");
    let file = open(&v.join("f"), OFlags::RDWR | OFlags::CREATE).unwrap();
    for n in 0..8 {
        assert_eq!(rustix::io::pwrite(&file, &[7; 1 << 20], n << 20), Ok(1 << 20));
    }
    refused(rustix::fs::fsync(&file), Errno::DQUOT);
    drop(file);
    fs::remove_file(v.join("f")).unwrap();
    let big = mount.path().join("big");
    fs::write(&big, vec![8; 8 << 20]).unwrap();
    let copied =
        Command::new("cp").args(["--reflink=never", "--sparse=never"]).arg(&big).arg(v.join("g")).output().unwrap();
    assert!(!copied.status.success(), "cp was not told");
    oleo(&["filesystem", "sync"], mount.path());
    assert!(fs::read(&big).unwrap() == vec![8; 8 << 20]);
    mount.unmount().unwrap();
    Kind::Oleo.must_check_clean(oracle, &image, "afterwards");
}

/// Goal: what is refused while everything is written for a sync is that sync's error.
#[test]
fn a_sync_reports_what_it_could_not_take_over() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let image = scratch.path().join("image");
    let mount = limited(oracle, &image);
    let v = mount.path().join("v");
    let sync = Later::new(OLEO.as_ref(), &["filesystem".as_ref(), "sync".as_ref(), mount.path().as_os_str()]);
    let file = open(&v.join("f"), OFlags::RDWR | OFlags::CREATE).unwrap();
    rustix::io::pwrite(&file, &[7; 4 << 20], 0).unwrap();
    let told = sync.try_run().unwrap_err();
    assert!(told.contains("not everything that was written"), "{told}");
    refused(rustix::fs::fsync(&file), Errno::DQUOT);
    drop(file);
    oleo(&["filesystem", "sync"], mount.path());
    mount.unmount().unwrap();
}

/// Goal: requests that wait for the kernel's writes leave room for these. Method: on a server of one thread, and of rings where they are
/// offered, several times as many threads as a ring of two processors has slots write and look for the end in parallel, while snapshots
/// are made.
#[test]
fn many_wait_at_once() {
    let Some(oracle) = oracle() else { return };
    for options in ["thread_pool=1,io_uring=off", "thread_pool=1"] {
        let scratch = oracle.scratch().unwrap();
        let image = scratch.path().join("image");
        Kind::Oleo.mkfs(oracle, &image).unwrap();
        let mount = Kind::WriteBack.mount(oracle, &image, options).unwrap();
        work_at_once(&mount);
        mount.unmount().unwrap();
        Kind::Oleo.must_check_clean(oracle, &image, options);
    }
}

/// Slots are sixteen on two processors.
const AT_ONCE: u64 = 64;

fn work_at_once(mount: &Mount) {
    let v = mount.path().join("v");
    oleo(&["subvolume", "create"], &v);
    std::thread::scope(|s| {
        for thread in 0..AT_ONCE {
            let path = v.join(format!("f{thread}"));
            s.spawn(move || {
                let file = open(&path, OFlags::RDWR | OFlags::CREATE).unwrap();
                for n in 1..=20u64 {
                    rustix::io::pwrite(&file, &[thread as u8; 10_000], (n - 1) * 10_000).unwrap();
                    assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(0)), Ok(n * 10_000));
                    let flags = rustix::fs::ioctl_getflags(&file).unwrap();
                    rustix::fs::ioctl_setflags(&file, flags ^ rustix::fs::IFlags::NODUMP).unwrap();
                }
            });
        }
        for n in 0..5 {
            let to = mount.path().join(format!("s{n}"));
            run(OLEO, ["subvolume".as_ref(), "snapshot".as_ref(), v.as_os_str(), to.as_os_str()]).unwrap();
        }
    });
    for thread in 0..AT_ONCE {
        assert!(fs::read(v.join(format!("f{thread}"))).unwrap() == vec![thread as u8; 200_000]);
    }
}

/// Goal: a snapshot has what was changed through a mapping before. Method: a page of a mapped file is changed, and its subvolume's snapshot
/// read while the mapping stands.
#[test]
fn mapped_pages_are_in_snapshots() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let image = scratch.path().join("image");
    Kind::Oleo.mkfs(oracle, &image).unwrap();
    let mount = Kind::WriteBack.mount(oracle, &image, "").unwrap();
    let (v, to) = (mount.path().join("v"), mount.path().join("s"));
    oleo(&["subvolume", "create"], &v);
    fs::write(v.join("f"), vec![1; 100_000]).unwrap();
    let map = Map::new(open(&v.join("f"), OFlags::RDWR).unwrap(), 0, 100_000, MapFlags::SHARED).unwrap();
    map.write(50_000, b"mapped");
    run(OLEO, ["subvolume".as_ref(), "snapshot".as_ref(), v.as_os_str(), to.as_os_str()]).unwrap();
    assert_eq!(&fs::read(to.join("f")).unwrap()[50_000..50_006], b"mapped");
    drop(map);
    mount.unmount().unwrap();
}

/// Goal: on a full volume fsync(2) reports ENOSPC, what else is there stays, and there is room again when the file is gone. Method: a file
/// larger than the volume, by write(2), which succeeds.
#[test]
fn a_full_volume_is_reported_at_fsync() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let image = scratch.path().join("image");
    run(OLEO, ["mkfs", "--quiet", "--size", "256M"].map(OsStr::new).into_iter().chain([image.as_os_str()])).unwrap();
    let mount = Kind::WriteBack.mount(oracle, &image, "").unwrap();
    let kept = mount.path().join("kept");
    fs::write(&kept, vec![3; 1 << 20]).unwrap();
    let full = mount.path().join("full");
    let file = open(&full, OFlags::RDWR | OFlags::CREATE).unwrap();
    let part = vec![7; 1 << 20];
    let refused_at = (0..400).find(|n| rustix::io::pwrite(&file, &part, n << 20).is_err());
    let told = rustix::fs::fsync(&file);
    assert!(refused_at.is_some() || told == Err(Errno::NOSPC), "{told:?}");
    drop(file);
    fs::remove_file(&full).unwrap();
    oleo(&["filesystem", "sync"], mount.path());
    assert!(fs::read(&kept).unwrap() == vec![3; 1 << 20]);
    fs::write(&full, vec![4; 10 << 20]).unwrap();
    assert_eq!(rustix::fs::fsync(open(&full, OFlags::RDWR).unwrap()), Ok(()));
    mount.unmount().unwrap();
    Kind::Oleo.must_check_clean(oracle, &image, "afterwards");
}

/// Goal: what is written and not synced is in a stream, and what is received can be read, with files of both open. Method: a subvolume
/// whose file is held open is copied by a snapshot, a stream, and receiving it into the same mount.
#[test]
fn streams_out_of_and_into_the_mount() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let image = scratch.path().join("image");
    Kind::Oleo.mkfs(oracle, &image).unwrap();
    let mount = Kind::WriteBack.mount(oracle, &image, "").unwrap();
    let (v, to, into) = (mount.path().join("v"), mount.path().join("s"), mount.path().join("into"));
    oleo(&["subvolume", "create"], &v);
    fs::create_dir(&into).unwrap();
    let file = open(&v.join("f"), OFlags::RDWR | OFlags::CREATE).unwrap();
    let other = open(&into.join("other"), OFlags::RDWR | OFlags::CREATE).unwrap();
    rustix::io::pwrite(&file, &[5; 70_000], 0).unwrap();
    rustix::io::pwrite(&other, &[6; 70_000], 0).unwrap();
    let snapshot = ["subvolume".as_ref(), "snapshot".as_ref(), "-r".as_ref(), v.as_os_str(), to.as_os_str()];
    run(OLEO, snapshot).unwrap();
    rustix::io::pwrite(&file, &[8; 70_000], 0).unwrap();
    let stream = scratch.path().join("stream");
    run(OLEO, ["send".as_ref(), "-f".as_ref(), stream.as_os_str(), to.as_os_str()]).unwrap();
    run(OLEO, ["receive".as_ref(), "-f".as_ref(), stream.as_os_str(), into.as_os_str()]).unwrap();
    assert!(fs::read(into.join("s/f")).unwrap() == vec![5; 70_000]);
    assert!(fs::read(v.join("f")).unwrap() == vec![8; 70_000]);
    drop((file, other));
    assert!(fs::read(into.join("other")).unwrap() == vec![6; 70_000]);
    mount.unmount().unwrap();
    Kind::Oleo.must_check_clean(oracle, &image, "afterwards");
}
