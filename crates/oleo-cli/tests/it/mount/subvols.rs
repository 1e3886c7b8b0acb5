//! Subvolumes and snapshots on a mount, as programs that know nothing of them see them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, RenameFlags};
use rustix::io::Errno;

use crate::mount::place::{Kind, Place, family, open, refused};

family!(
    "";
    made_and_used after made_after, borders, rmdir_of_an_empty_one, snapshot_keeps_the_past after snapshot_after, snapshot_of_unsynced_data after unsynced_after,
    read_only_snapshot, read_only_ones_keep_their_parent, opening_in_a_read_only_one limited "the kernel checks this on opening, and does not know of subvolumes" with "Read-only file system (os error 30)", numbers_are_unique, deleted_while_in_use, deleted_with_files after deleted_after, renaming_a_subvolume after renamed_after,
    nested_are_left_out, clones_into_a_snapshot, parent_of_the_top,
);

fn made_and_used(at: &Place) {
    let v = at.subvolume("v");
    fs::write(v.join("f"), b"in a subvolume").unwrap();
    fs::create_dir(v.join("d")).unwrap();
    fs::write(v.join("d/g"), b"deeper").unwrap();
    fs::rename(v.join("f"), v.join("d/f")).unwrap();
    fs::hard_link(v.join("d/f"), v.join("link")).unwrap();
    let meta = fs::metadata(&v).unwrap();
    assert!(meta.is_dir());
    assert_eq!(meta.nlink(), 1);
    made_after(&at.dir);
}

fn made_after(dir: &Path) {
    assert_eq!(fs::read(dir.join("v/link")).unwrap(), b"in a subvolume");
    assert_eq!(fs::read(dir.join("v/d/g")).unwrap(), b"deeper");
    assert_eq!(fs::metadata(dir.join("v/d/f")).unwrap().nlink(), 2);
}

fn borders(at: &Place) {
    let (v, w) = (at.subvolume("v"), at.subvolume("w"));
    at.file("f", b"x");
    fs::write(v.join("f"), b"y").unwrap();
    let swap = RenameFlags::EXCHANGE;
    refused(rustix::fs::link(at.at("f"), v.join("g")), Errno::XDEV);
    refused(rustix::fs::link(v.join("f"), w.join("g")), Errno::XDEV);
    refused(rustix::fs::rename(at.at("f"), v.join("g")), Errno::XDEV);
    refused(rustix::fs::rename(v.join("f"), w.join("g")), Errno::XDEV);
    refused(rustix::fs::rename(v.join("f"), at.at("g")), Errno::XDEV);
    refused(rustix::fs::renameat_with(CWD, at.at("f"), CWD, v.join("f"), swap), Errno::XDEV);
    at.subdir("d");
    refused(rustix::fs::rename(at.at("d"), v.join("d")), Errno::XDEV);
    // mv copies then.
    let out = std::process::Command::new("mv").arg(at.at("f")).arg(v.join("g")).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(fs::read(v.join("g")).unwrap(), b"x");
}

fn rmdir_of_an_empty_one(at: &Place) {
    let v = at.subvolume("v");
    fs::write(v.join("f"), b"x").unwrap();
    refused(rustix::fs::rmdir(&v), Errno::NOTEMPTY);
    fs::remove_file(v.join("f")).unwrap();
    rustix::fs::rmdir(&v).unwrap();
    refused(rustix::fs::lstat(&v), Errno::NOENT);
    at.subdir("v");
}

fn snapshot_keeps_the_past(at: &Place) {
    let v = at.subvolume("v");
    fs::write(v.join("f"), b"before").unwrap();
    fs::write(v.join("gone"), b"x").unwrap();
    let s = at.snapshot(&v, "s");
    fs::write(v.join("f"), b"after").unwrap();
    fs::write(v.join("new"), b"x").unwrap();
    fs::remove_file(v.join("gone")).unwrap();
    fs::write(s.join("only-here"), b"x").unwrap();
    snapshot_after(&at.dir);
}

fn snapshot_after(dir: &Path) {
    let names = |of: &str| {
        let mut all: Vec<String> =
            fs::read_dir(dir.join(of)).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        all.sort();
        all
    };
    assert_eq!(names("v"), ["f", "new"]);
    assert_eq!(names("s"), ["f", "gone", "only-here"]);
    assert_eq!(fs::read(dir.join("v/f")).unwrap(), b"after");
    assert_eq!(fs::read(dir.join("s/f")).unwrap(), b"before");
}

/// What was written before the snapshot is in it, whether it was on disk or not.
fn snapshot_of_unsynced_data(at: &Place) {
    let v = at.subvolume("v");
    let data = oleo_sim::rng::Rng::new(5).bytes(1 << 20);
    let file = fs::File::create_new(v.join("f")).unwrap();
    rustix::io::pwrite(&file, &data, 0).unwrap();
    rustix::fs::ftruncate(&file, 900_000).unwrap();
    for n in 0..100 {
        fs::write(v.join(format!("{n}")), format!("{n}")).unwrap();
    }
    at.snapshot(&v, "s");
    rustix::io::pwrite(&file, &[0; 900_000], 0).unwrap();
    unsynced_after(&at.dir);
}

fn unsynced_after(dir: &Path) {
    let data = oleo_sim::rng::Rng::new(5).bytes(1 << 20);
    assert!(fs::read(dir.join("s/f")).unwrap() == data[..900_000]);
    for n in 0..100 {
        assert_eq!(fs::read_to_string(dir.join(format!("s/{n}"))).unwrap(), format!("{n}"));
    }
    assert!(fs::read(dir.join("v/f")).unwrap().iter().all(|b| *b == 0));
}

fn read_only_snapshot(at: &Place) {
    let v = at.subvolume("v");
    fs::write(v.join("f"), b"x").unwrap();
    at.subvolume_command(&["snapshot".as_ref(), "-r".as_ref(), v.as_os_str(), at.at("s").as_os_str()]);
    let s = at.at("s");
    let flags = rustix::fs::OFlags::WRONLY;
    refused(open(&s.join("new"), flags | rustix::fs::OFlags::CREATE), Errno::ROFS);
    refused(rustix::fs::unlink(s.join("f")), Errno::ROFS);
    refused(rustix::fs::mkdir(s.join("d"), Mode::from_raw_mode(0o755)), Errno::ROFS);
    refused(rustix::fs::chmod(s.join("f"), Mode::from_raw_mode(0o600)), Errno::ROFS);
    refused(rustix::fs::rename(s.join("f"), s.join("g")), Errno::ROFS);
    refused(rustix::fs::link(s.join("f"), s.join("g")), Errno::ROFS);
    refused(rustix::fs::setxattr(s.join("f"), "user.a", b"x", rustix::fs::XattrFlags::empty()), Errno::ROFS);
    assert_eq!(fs::read(s.join("f")).unwrap(), b"x");
}

/// A directory that gets another parent is written to; one that gets another name is not.
fn read_only_ones_keep_their_parent(at: &Place) {
    let v = at.subvolume("v");
    fs::create_dir(v.join("d")).unwrap();
    at.subvolume_command(&["snapshot".as_ref(), "-r".as_ref(), v.as_os_str(), at.at("s").as_os_str()]);
    at.subdir("other");
    at.subdir("other/plain");
    refused(rustix::fs::rename(at.at("s"), at.at("other/s")), Errno::ROFS);
    let swap = RenameFlags::EXCHANGE;
    refused(rustix::fs::renameat_with(CWD, at.at("s"), CWD, at.at("other/plain"), swap), Errno::ROFS);
    refused(rustix::fs::renameat_with(CWD, at.at("other/plain"), CWD, at.at("s"), swap), Errno::ROFS);
    rustix::fs::rename(at.at("s"), at.at("again")).unwrap();
    rustix::fs::renameat_with(CWD, at.at("again"), CWD, at.at("other"), swap).unwrap();
    assert!(at.at("other/d").is_dir() && at.at("again/plain").is_dir());
    // What can be written moves.
    rustix::fs::rename(&v, at.at("again/v")).unwrap();
}

fn opening_in_a_read_only_one(at: &Place) {
    let v = at.subvolume("v");
    fs::write(v.join("f"), b"x").unwrap();
    at.subvolume_command(&["snapshot".as_ref(), "-r".as_ref(), v.as_os_str(), at.at("s").as_os_str()]);
    refused(open(&at.at("s/f"), rustix::fs::OFlags::WRONLY), Errno::ROFS);
}

/// (device, inode) tells files apart all over a mount, subvolumes and snapshots included.
fn numbers_are_unique(at: &Place) {
    let v = at.subvolume("v");
    fs::create_dir(v.join("d")).unwrap();
    for n in 0..10 {
        fs::write(v.join(format!("d/{n}")), b"").unwrap();
    }
    at.snapshot(&v, "s");
    at.snapshot(&at.at("s"), "t");
    at.subvolume("w");
    at.file("f", b"");
    let mut seen: BTreeMap<(u64, u64), std::path::PathBuf> = BTreeMap::new();
    let mut todo = vec![at.dir.clone()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            if let Some(other) = seen.insert((meta.dev(), meta.ino()), path.clone()) {
                panic!("{} and {} have the same numbers", path.display(), other.display());
            }
            if meta.is_dir() {
                todo.push(path);
            }
        }
    }
    assert_eq!(seen.len(), 3 * 12 + 2);
    if at.kind != Kind::Kernel {
        // There, all of a mount has one device number, so inode numbers alone must do.
        let inos: std::collections::BTreeSet<u64> = seen.keys().map(|(_, ino)| *ino).collect();
        assert_eq!(inos.len(), seen.len());
    }
}

/// Deleting goes on behind what is open in it; what is open ends with an error or as before, never with other data.
fn deleted_while_in_use(at: &Place) {
    let v = at.subvolume("v");
    fs::write(v.join("f"), [5; 10_000]).unwrap();
    let file = open(&v.join("f"), rustix::fs::OFlags::RDWR).unwrap();
    at.subvolume_command(&["delete".as_ref(), v.as_os_str()]);
    refused(rustix::fs::lstat(&v), Errno::NOENT);
    let mut buf = [0; 10];
    if let Ok(n) = rustix::io::pread(&file, &mut buf[..], 100) {
        assert_eq!(buf[..n], [5; 10]);
    }
    drop(file);
    at.subdir("v");
}

fn deleted_with_files(at: &Place) {
    let v = at.subvolume("v");
    for n in 0..500 {
        fs::write(v.join(format!("{n}")), vec![1; n * 10]).unwrap();
    }
    at.snapshot(&v, "s");
    at.commit();
    at.subvolume_command(&["delete".as_ref(), v.as_os_str()]);
    assert!(!v.exists());
    deleted_after(&at.dir);
}

fn deleted_after(dir: &Path) {
    assert_eq!(fs::read_dir(dir.join("s")).unwrap().count(), 500);
    assert_eq!(fs::read(dir.join("s/499")).unwrap(), vec![1; 4990]);
}

fn renaming_a_subvolume(at: &Place) {
    let v = at.subvolume("v");
    fs::write(v.join("f"), b"x").unwrap();
    at.subdir("d");
    fs::rename(&v, at.at("d/w")).unwrap();
    assert!(!v.exists());
    let w = at.subvolume("w");
    fs::write(w.join("g"), b"y").unwrap();
    rustix::fs::renameat_with(CWD, at.at("d/w"), CWD, &w, RenameFlags::EXCHANGE).unwrap();
    renamed_after(&at.dir);
}

fn renamed_after(dir: &Path) {
    assert_eq!(fs::read(dir.join("d/w/g")).unwrap(), b"y");
    assert_eq!(fs::read(dir.join("w/f")).unwrap(), b"x");
}

/// Where a snapshot does not reach into a nested subvolume there is an empty directory.
fn nested_are_left_out(at: &Place) {
    let v = at.subvolume("v");
    at.subvolume("v/nested");
    fs::write(v.join("nested/f"), b"x").unwrap();
    at.snapshot(&v, "s");
    let empty_subvol_dir = at.at("s/nested");
    assert!(fs::metadata(&empty_subvol_dir).unwrap().is_dir());
    assert_eq!(fs::read_dir(&empty_subvol_dir).unwrap().count(), 0);
    refused(rustix::fs::lstat(empty_subvol_dir.join("f")), Errno::NOENT);
    let made = rustix::fs::mkdir(empty_subvol_dir.join("d"), Mode::from_raw_mode(0o755));
    assert!(made.is_err(), "nothing can be made in it");
    rustix::fs::rmdir(&empty_subvol_dir).unwrap();
}

fn clones_into_a_snapshot(at: &Place) {
    let v = at.subvolume("v");
    let data = oleo_sim::rng::Rng::new(6).bytes(256 << 10);
    fs::write(v.join("f"), &data).unwrap();
    let s = at.snapshot(&v, "s");
    fs::copy(v.join("f"), s.join("copy")).unwrap();
    fs::write(v.join("f"), b"gone").unwrap();
    assert!(fs::read(s.join("copy")).unwrap() == data);
    assert!(fs::read(s.join("f")).unwrap() == data);
}

fn parent_of_the_top(at: &Place) {
    let v = at.subvolume("v");
    fs::create_dir(v.join("d")).unwrap();
    let up = fs::metadata(v.join("..")).unwrap();
    assert_eq!(up.ino(), fs::metadata(&at.dir).unwrap().ino());
    assert_eq!(fs::metadata(v.join("d/..")).unwrap().ino(), fs::metadata(&v).unwrap().ino());
    assert_eq!(fs::canonicalize(v.join("d/../..")).unwrap(), at.dir.canonicalize().unwrap());
}
