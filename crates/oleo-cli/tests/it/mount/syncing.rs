//! fsync and its kin, and what statfs tells. What survives a crash is for `killed`.

use std::fs;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::mount::place::{Place, family, open, refused};

family!(
    "";
    every_kind_of_sync, of_every_kind_of_file, o_sync_writes, sync_file_range, statfs_is_true, statfs_follows, written_by_many,
    names_and_limits,
);

fn every_kind_of_sync(at: &Place) {
    let file = open(&at.at("f"), OFlags::CREATE | OFlags::RDWR).unwrap();
    for round in 0..5u64 {
        rustix::io::pwrite(&file, &[round as u8; 10_000], round * 5000).unwrap();
        rustix::fs::fdatasync(&file).unwrap();
        rustix::io::pwrite(&file, b"more", round).unwrap();
        rustix::fs::fsync(&file).unwrap();
        rustix::fs::syncfs(&file).unwrap();
    }
    assert_eq!(fs::metadata(at.at("f")).unwrap().len(), 30_000);
}

fn of_every_kind_of_file(at: &Place) {
    at.file("f", b"x");
    // Read-only descriptors and directories can be synced, bare paths cannot.
    rustix::fs::fsync(open(&at.at("f"), OFlags::RDONLY).unwrap()).unwrap();
    rustix::fs::fsync(open(&at.dir, OFlags::RDONLY).unwrap()).unwrap();
    rustix::fs::fdatasync(open(&at.dir, OFlags::RDONLY).unwrap()).unwrap();
    refused(rustix::fs::fsync(open(&at.at("f"), OFlags::PATH).unwrap()), Errno::BADF);
    let nameless = open(&at.dir, OFlags::TMPFILE | OFlags::RDWR).unwrap();
    rustix::io::pwrite(&nameless, &[1; 5000], 0).unwrap();
    rustix::fs::fsync(&nameless).unwrap();
}

fn o_sync_writes(at: &Place) {
    for (name, flags) in [("sync", OFlags::SYNC), ("dsync", OFlags::DSYNC)] {
        let file = open(&at.at(name), OFlags::CREATE | OFlags::RDWR | flags).unwrap();
        for n in 0..5u64 {
            rustix::io::pwrite(&file, &[n as u8 + 1; 3000], n * 3000).unwrap();
        }
        let now = fs::read(at.at(name)).unwrap();
        assert_eq!((now.len(), now[0], now[14_999]), (15_000, 1, 5));
    }
}

fn sync_file_range(at: &Place) {
    let path = at.file("f", &[1; 100_000]);
    let out = std::process::Command::new("sync").arg("--data").arg(&path).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let out = std::process::Command::new("sync").arg("--file-system").arg(&path).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

fn statfs_is_true(at: &Place) {
    let s = rustix::fs::statvfs(&at.dir).unwrap();
    assert_eq!((s.f_bsize, s.f_namemax), (4096, 255));
    assert_eq!(s.f_blocks * s.f_frsize, crate::mount::place::IMAGE_LEN);
    assert!(s.f_bfree <= s.f_blocks && s.f_bavail <= s.f_bfree);
    // An almost empty image: most of it can be used, but not what metadata keeps twice.
    let available = s.f_bavail * s.f_frsize;
    let len = crate::mount::place::IMAGE_LEN;
    assert!(available > len / 2 && available < len, "{available} of {len}");
    assert_eq!((s.f_files, s.f_ffree), (0, 0));
    // Of a file the same as of its directory.
    let path = at.file("f", b"x");
    let file = rustix::fs::fstatvfs(open(&path, OFlags::RDONLY).unwrap()).unwrap();
    assert_eq!((file.f_blocks, file.f_fsid), (s.f_blocks, s.f_fsid));
}

fn statfs_follows(at: &Place) {
    const LEN: u64 = 64 << 20;
    let available = || {
        at.commit();
        let s = rustix::fs::statvfs(&at.dir).unwrap();
        s.f_bavail * s.f_frsize
    };
    let before = available();
    fs::write(at.at("f"), oleo_sim::rng::Rng::new(1).bytes(LEN as usize)).unwrap();
    rustix::fs::fsync(open(&at.at("f"), OFlags::RDONLY).unwrap()).unwrap();
    let after = available();
    let taken = before.saturating_sub(after);
    let near = LEN - (1 << 20)..LEN + (16 << 20);
    assert!(near.contains(&taken), "{taken} taken by {LEN}");
    fs::remove_file(at.at("f")).unwrap();
    let again = available();
    assert!(again + (16 << 20) > before, "what was removed is available again: {again}, {before} before");
}

/// Several write and sync concurrently; all of it is there.
fn written_by_many(at: &Place) {
    const THREADS: u64 = 8;
    std::thread::scope(|s| {
        for t in 0..THREADS {
            s.spawn(move || {
                let file = open(&at.at(&format!("f{t}")), OFlags::CREATE | OFlags::RDWR).unwrap();
                for n in 0..20u64 {
                    rustix::io::pwrite(&file, &[(t * 20 + n) as u8; 4000], n * 4000).unwrap();
                    if n % 5 == t % 5 {
                        rustix::fs::fsync(&file).unwrap();
                    }
                }
            });
        }
    });
    for t in 0..THREADS {
        let now = fs::read(at.at(&format!("f{t}"))).unwrap();
        assert_eq!(now.len(), 80_000);
        assert!((0..20u64).all(|n| now[n as usize * 4000] == (t * 20 + n) as u8));
    }
}

fn names_and_limits(at: &Place) {
    // df and findmnt show a device and a type; the type says whose it is.
    let out = oleo_sim::oracle::run("findmnt", ["-no".as_ref(), "FSTYPE".as_ref(), "-M".as_ref(), at.top.as_os_str()]);
    let kind = out.unwrap();
    match at.kind {
        crate::mount::place::Kind::Kernel => assert_eq!(kind.trim(), "btrfs"),
        crate::mount::place::Kind::Oleo | crate::mount::place::Kind::WriteBack => {
            assert_eq!(kind.trim(), "fuseblk.oleo")
        }
    }
    rustix::fs::mkdir(at.at("d"), Mode::from_raw_mode(0o755)).unwrap();
    let out = std::process::Command::new("df").arg(at.at("d")).output().unwrap();
    assert!(out.status.success());
}
