//! Data on the device that is not what was written: an error that names the place, or the other copy; and nobody else's loss.

use std::fs;
use std::path::{Path, PathBuf};

use oleo_sim::oracle::{Oracle, Scratch, oracle, run};
use oleo_sim::served::{Limits, Served};

use crate::mount::place::OLEO;

const SECTOR: usize = 4096;
/// The sector of the file that is changed on the device.
const HURT: usize = 5;

/// Bytes of which no sector is like another.
fn content() -> Vec<u8> {
    (0..64 * SECTOR as u32 / 4).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

/// An image with one file, made with these options of mkfs; and where the copies of the file's hurt sector are, of which
/// the first is overwritten.
fn hurt(scratch: &Scratch, options: &[&str]) -> (PathBuf, Vec<usize>) {
    let (image, copies) = sound(scratch, options);
    damage(&image, copies[0]);
    (image, copies)
}

/// Overwrites a sector of the image.
fn damage(image: &Path, sector: usize) {
    let file = fs::OpenOptions::new().write(true).open(image).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xee; SECTOR], (sector * SECTOR) as u64).unwrap();
}

/// The same with nothing overwritten.
fn sound(scratch: &Scratch, options: &[&str]) -> (PathBuf, Vec<usize>) {
    let image = scratch.path().join("image");
    let file = scratch.path().join("file");
    fs::write(&file, content()).unwrap();
    let mkfs = ["mkfs", "--quiet", "--size", "300M"].iter().chain(options).map(AsRef::as_ref);
    run(OLEO, mkfs.chain([image.as_os_str()])).unwrap();
    let directory = "dir".as_ref();
    run(OLEO, ["mkdir".as_ref(), "-q".as_ref(), image.as_os_str(), directory]).unwrap();
    run(OLEO, ["put".as_ref(), "-q".as_ref(), image.as_os_str(), file.as_os_str(), "dir/file".as_ref()]).unwrap();
    let bytes = fs::read(&image).unwrap();
    let wanted = content()[HURT * SECTOR..(HURT + 1) * SECTOR].to_vec();
    let copies = (0..bytes.len() / SECTOR).filter(|n| bytes[n * SECTOR..][..SECTOR] == wanted).collect();
    (image, copies)
}

fn serve(image: &Path) -> Served {
    Served::mount(Path::new(OLEO), &[image], "", Limits::default()).unwrap()
}

/// Goal: a sector that does not match its checksum and has no other copy is an I/O error for whoever reads it, and a line of
/// the log that names the file, the place in it and the device; the rest of the file can be read.
/// Method: one sector of a file is overwritten in the image.
#[test]
fn without_another_copy() {
    let Some(oracle) = oracle() else { return };
    let oracle: Oracle = oracle;
    let scratch = oracle.scratch().unwrap();
    let (image, copies) = hurt(&scratch, &[]);
    assert_eq!(copies.len(), 1);
    let served = serve(&image);
    let file = fs::File::open(served.path().join("dir/file")).unwrap();
    let read = |sector: usize| {
        let mut bytes = vec![0; SECTOR];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, (sector * SECTOR) as u64).map(|()| bytes)
    };
    assert_eq!(read(HURT).unwrap_err().raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
    assert_eq!(read(HURT + 1).unwrap(), content()[(HURT + 1) * SECTOR..(HURT + 2) * SECTOR]);
    let log = served.log();
    let line = log.lines().find(|l| l.contains("checksum")).unwrap_or_else(|| panic!("no line about it: {log}"));
    for part in ["dir/file", "at byte", "device 1"] {
        assert!(line.contains(part), "{part:?} is not in {line:?}");
    }
    drop(file);
    served.unmount().unwrap();
}

/// Goal: where there is another copy, the reader sees nothing of it, and the bad copy is made good.
/// Method: the same with two copies of all data.
#[test]
fn with_another_copy() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let (image, copies) = hurt(&scratch, &["--data", "dup"]);
    assert_eq!(copies.len(), 2);
    let served = serve(&image);
    assert_eq!(fs::read(served.path().join("dir/file")).unwrap(), content());
    served.unmount().unwrap();
    let bytes = fs::read(&image).unwrap();
    let wanted = &content()[HURT * SECTOR..(HURT + 1) * SECTOR];
    for copy in copies {
        assert_eq!(&bytes[copy * SECTOR..(copy + 1) * SECTOR], wanted, "copy at sector {copy}");
    }
}

/// Goal: what could not be written out, since a part of a sector is overwritten whose rest cannot be read, is refused by write(2) itself,
/// as on the kernel's btrfs, so that close(2) has nothing to tell; dd tells it, nothing is left over that a later call would stumble
/// over, and nobody else notices anything.
/// Method: one sector of a file is overwritten in the image; a byte of it is written through the mount in several ways.
#[test]
fn what_lies_beside_damage_is_refused() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let (image, _) = hurt(&scratch, &[]);
    let served = serve(&image);
    let path = served.path().join("dir/file");
    let at = (HURT * SECTOR + 100) as u64;
    let eio = Some(rustix::io::Errno::IO.raw_os_error());
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let refused = std::os::unix::fs::FileExt::write_all_at(&file, b"z", at).unwrap_err();
    assert_eq!(refused.raw_os_error(), eio);
    assert_eq!(served.log().lines().filter(|l| l.contains("write") && l.contains("dir/file")).count(), 1);
    file.sync_all().unwrap();
    drop(file);
    let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::DIRECT;
    let direct = rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).unwrap();
    assert_eq!(rustix::io::pwrite(&direct, b"z", at).unwrap_err(), rustix::io::Errno::IO);
    drop(direct);
    let seek = format!("seek={at}");
    let to = format!("of={}", path.display());
    let dd = run("dd", ["if=/dev/zero", &to, "bs=1", "count=1", &seek, "conv=notrunc", "status=none"]);
    assert!(format!("{:#}", dd.unwrap_err()).contains("Input/output error"));
    // cp makes the file anew.
    run("cp", ["/etc/passwd".as_ref(), path.as_os_str()]).unwrap();
    fs::write(served.path().join("other"), "hello").unwrap();
    served.unmount().unwrap();
    let found = run(OLEO, ["cat".as_ref(), image.as_os_str(), "dir/file".as_ref()]).unwrap();
    assert_eq!(found, fs::read_to_string("/etc/passwd").unwrap());
    assert_eq!(run(OLEO, ["cat".as_ref(), image.as_os_str(), "other".as_ref()]).unwrap(), "hello");
}

/// Goal: a file that cannot be written, since a sector of which a part was overwritten cannot be read, costs nobody else anything:
/// fsync of it fails, that of others does not, and what others have done is there after the mount has ended.
/// Method: a byte of a sector is written through the mount, then the sector is overwritten in the image.
#[test]
fn what_cannot_be_written_costs_others_nothing() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let (image, copies) = sound(&scratch, &[]);
    let served = serve(&image);
    let file = fs::OpenOptions::new().write(true).open(served.path().join("dir/file")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"z", (HURT * SECTOR + 100) as u64).unwrap();
    damage(&image, copies[0]);
    let other = fs::File::create(served.path().join("other")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&other, b"hello", 0).unwrap();
    let eio = Some(rustix::io::Errno::IO.raw_os_error());
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), eio);
    other.sync_all().unwrap();
    fs::create_dir(served.path().join("after")).unwrap();
    fs::write(served.path().join("after/not-synced"), "as well").unwrap();
    // As long as it lasts.
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), eio);
    drop((file, other));
    // What is lost is said, and the rest is there.
    let out = std::process::Command::new(OLEO).arg("unmount").arg(served.path()).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(3), "{said}");
    assert!(said.contains("not everything could be written") && said.contains("all else is on disk"), "{said}");
    drop(served);
    for (path, want) in [("other", "hello"), ("after/not-synced", "as well")] {
        let found = run(OLEO, ["cat".as_ref(), image.as_os_str(), path.as_ref()]).unwrap();
        assert_eq!(found, want, "{path}");
    }
}
