//! The kernel's write-back cache: who is told what could not be written, and that nobody waits for ever.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

use oleo_sim::oracle::{Oracle, oracle, run};
use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;

use crate::place::{Kind, Later, Mount, OLEO, open, refused};

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
/// offered, 24 threads write and look for the end in parallel, while snapshots are made.
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

fn work_at_once(mount: &Mount) {
    let v = mount.path().join("v");
    oleo(&["subvolume", "create"], &v);
    std::thread::scope(|s| {
        for thread in 0..24u64 {
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
    for thread in 0..24u64 {
        assert!(fs::read(v.join(format!("f{thread}"))).unwrap() == vec![thread as u8; 200_000]);
    }
}
