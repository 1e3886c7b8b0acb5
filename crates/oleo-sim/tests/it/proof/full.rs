//! Full devices: filling until nothing fits, deleting, filling again. Nothing accepted may be lost, ENOSPC must come
//! from the call and never from the commit, and the image must stay sound.

use std::collections::BTreeMap;
use std::sync::Arc;

use oleo::fs::KeepSize;
use oleo::mkfs::MkfsOptions;
use oleo::{Image, OpenOptions};
use oleo_device::{Device, FileDevice, FileOptions};
use oleo_fs::{FsError, NewInode, NewKind};
use oleo_sim::oracle::oracle;
use oleo_sim::rng::Rng;

use crate::ours::{open, open_to_read};

const MIB: u64 = 1 << 20;

/// The files that were accepted: name, seed, length.
type Accepted = BTreeMap<String, (u64, usize)>;

/// When written bytes are flushed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flush {
    /// After each file: then its refusal is known immediately.
    Each,
    /// Only with everything else: then nothing that was accepted may be refused later.
    WithSync,
    /// The same, and all files are so small that they lie in tree blocks: it is metadata that runs out.
    Tiny,
}

/// Creates files until one is refused for lack of space; returns the bytes that were accepted.
fn fill(image: &Image, accepted: &mut Accepted, rng: &mut Rng, round: u32, flush: Flush) -> u64 {
    const FILES_MAX: u32 = 200_000;
    let fs = image.fs();
    let top = image.top().unwrap();
    let mut bytes = 0;
    for i in 0..FILES_MAX {
        let name = format!("round-{round}-file-{i}");
        // Many small files, so that metadata fills up too, and some that are larger than a chunk's rest.
        let len = match flush {
            Flush::Tiny => rng.below(1500),
            _ if i % 10 == 0 => rng.below(4 * MIB),
            _ => rng.length(60_000),
        };
        let len = usize::try_from(len).unwrap();
        let seed = rng.next_u64();
        let file = match fs.create(&top, name.as_bytes(), &NewInode::new(NewKind::File, 0o644)) {
            Ok(file) => file,
            Err(FsError::NoSpace) => return bytes,
            Err(e) => panic!("create {name}: {e}"),
        };
        let written = fs.write(&file, 0, &Rng::new(seed).bytes(len));
        match written.and_then(|()| if flush == Flush::Each { fs.flush(&file) } else { Ok(()) }) {
            Ok(()) => {}
            Err(FsError::NoSpace) => {
                // A file that was refused half way is not promised.
                fs.unlink(&top, name.as_bytes()).expect("deleting must always be possible");
                return bytes;
            }
            Err(e) => panic!("write of {len} bytes to {name}: {e}"),
        }
        bytes += len as u64;
        accepted.insert(name, (seed, len));
        if i % 500 == 499 {
            fs.sync().expect("a commit must never run out of space");
        }
    }
    panic!("it never fills up");
}

fn verify(image: &Image, accepted: &Accepted) {
    let names = image.list("").unwrap();
    assert_eq!(names.len(), accepted.len(), "number of files");
    for (name, (seed, len)) in accepted {
        let data = image.read(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(data == Rng::new(*seed).bytes(*len), "{name} has changed");
    }
}

fn fill_delete_refill(name: &str, len: u64, mkfs: &[&str], flush: Flush, rounds: u32) {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let device = scratch.image(name, len).unwrap();
    oracle.mkfs(mkfs, &[&device]).unwrap();
    let devices = [device.clone()];
    let mut rng = Rng::new(len);
    let mut accepted = Accepted::new();
    let options = OpenOptions::default().access(oleo::Access::Write);

    let image = open(&devices, options.clone()).unwrap();
    let first = fill(&image, &mut accepted, &mut rng, 0, flush);
    assert!(flush == Flush::Tiny || first * 10 > len * 4, "only {first} of {len} bytes went in");
    image.fs().sync().unwrap_or_else(|e| panic!("a commit must never run out of space: {e:?}"));
    verify(&image, &accepted);
    image.close().unwrap();
    oracle.must_be_sound(&[&device], "full").unwrap();

    for round in 1..=rounds {
        let image = open(&devices, options.clone()).unwrap();
        let doomed: Vec<String> = accepted.keys().filter(|_| rng.one_in(2)).cloned().collect();
        let mut freed = 0;
        for name in &doomed {
            image
                .fs()
                .unlink(&image.top().unwrap(), name.as_bytes())
                .unwrap_or_else(|e| panic!("deleting {name}: {e}"));
            freed += accepted.remove(name).unwrap().1 as u64;
        }
        image.clean().unwrap();
        image.sync().unwrap();
        let again = fill(&image, &mut accepted, &mut rng, round, flush);
        assert!(again * 10 > freed * 7, "round {round}: {freed} bytes were freed, only {again} went in");
        image.sync().expect("a commit must never run out of space");
        image.close().unwrap();
        let image = open_to_read(&devices).unwrap();
        verify(&image, &accepted);
        drop(image);
        oracle.must_be_sound(&[&device], "refilled").unwrap();
    }

    // Once emptied, all of it can be used again.
    let image = open(&devices, options.clone()).unwrap();
    for name in std::mem::take(&mut accepted).keys() {
        image.fs().unlink(&image.top().unwrap(), name.as_bytes()).unwrap();
    }
    image.clean().unwrap();
    image.sync().unwrap();
    let last = fill(&image, &mut accepted, &mut rng, 9, flush);
    assert!(last * 10 > first * 8, "{first} bytes went in at first, {last} at last");
    image.close().unwrap();
    oracle.must_be_sound(&[&device], "filled again").unwrap();
    let image = open_to_read(&devices).unwrap();
    verify(&image, &accepted);
}

/// Goal: nothing is placed over a superblock mirror, also in groups of the kernel, whose free-space tree lists the
/// mirrors as free. Method: the kernel makes the groups for a file over the second mirror, and the file is replaced by
/// one of ours; the scrub reads what the superblocks of the commits have left of it.
#[test]
fn over_a_superblock() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let device = scratch.image("mirror.img", 300 * MIB).unwrap();
    oracle.mkfs(&["-m", "single"], &[&device]).unwrap();
    let mounted = oracle.mount(&[&device], "").unwrap();
    let kernels = std::fs::File::create(mounted.path().join("theirs")).unwrap();
    rustix::fs::fallocate(&kernels, rustix::fs::FallocateFlags::empty(), 0, 200 * MIB).unwrap();
    drop(kernels);
    mounted.sync().unwrap();
    std::fs::remove_file(mounted.path().join("theirs")).unwrap();
    mounted.unmount().unwrap();

    let options = OpenOptions::default().access(oleo::Access::Write);
    let image = open(std::slice::from_ref(&device), options).unwrap();
    let (fs, top) = (image.fs(), image.top().unwrap());
    let ours = fs.create(&top, b"ours", &NewInode::new(NewKind::File, 0o644)).unwrap();
    for at in 0..180 {
        fs.write(&ours, at * MIB, &Rng::new(at).bytes(MIB as usize)).unwrap();
    }
    image.close().unwrap();
    oracle.must_be_sound(&[&device], "over a mirror").unwrap();
}

/// Goal: on a disk without a free sector a write is refused by its call, not by the fsync after it. Method:
/// preallocation takes all space, the last sectors one by one; data accepted after that must survive an fsync.
#[test]
fn not_a_sector_left() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let theirs: [&[&str]; 3] = [&["-m", "single"], &["-m", "dup"], &["--mixed"]];
    for (i, mkfs) in theirs.into_iter().map(Some).chain([None]).enumerate() {
        let device = scratch.image(&format!("no-sector-{i}.img"), 150 * MIB).unwrap();
        match mkfs {
            Some(args) => oracle.mkfs(args, &[&device]).unwrap(),
            None => {
                let made: Arc<dyn Device> =
                    Arc::new(FileDevice::open(&device, &FileOptions::default().write(true)).unwrap());
                oleo::mkfs::make(&[made], &MkfsOptions::default()).unwrap();
            }
        }
        let options = OpenOptions::default().access(oleo::Access::Write);
        let mut at = 0;
        for _ in 0..3 {
            let image = open(std::slice::from_ref(&device), options.clone()).unwrap();
            let (fs, top) = (image.fs(), image.top().unwrap());
            let get = |name: &str| match image.find(name) {
                Ok(file) => file,
                Err(_) => fs.create(&top, name.as_bytes(), &NewInode::new(NewKind::File, 0o644)).unwrap(),
            };
            let filler = get("filler");
            let ours = get("ours");
            let write = || {
                if fs.write(&ours, 0, &Rng::new(1).bytes(9000)).is_ok() {
                    fs.fsync(&ours).unwrap_or_else(|e| panic!("{mkfs:?}: accepted, and then {e}"));
                }
                fs.sync().unwrap();
            };
            // Before the free space was first counted, and after.
            write();
            for step in [MIB, 4096] {
                while fs.preallocate(&filler, at, step, KeepSize::Yes).is_ok() {
                    at += step;
                }
            }
            write();
            image.close().unwrap();
        }
        oracle.must_be_sound(&[&device], "no sector left").unwrap();
    }
}

#[test]
fn a_small_device_is_filled_and_refilled() {
    fill_delete_refill("small.img", 128 * MIB, &["-m", "single"], Flush::Each, 3);
}

#[test]
fn a_small_mixed_device_is_filled_and_refilled() {
    fill_delete_refill("mixed.img", 128 * MIB, &["--mixed"], Flush::Each, 3);
}

#[test]
fn a_middle_device_is_filled_and_refilled() {
    fill_delete_refill("middle.img", 300 * MIB, &[], Flush::Each, 3);
}

#[test]
fn a_large_device_is_filled_and_refilled() {
    fill_delete_refill("large.img", 1024 * MIB, &["-n", "4096"], Flush::Each, 3);
}

#[test]
fn small_delayed() {
    fill_delete_refill("delayed.img", 128 * MIB, &["-m", "single"], Flush::WithSync, 3);
}

#[test]
fn middle_delayed() {
    fill_delete_refill("middle-delayed.img", 400 * MIB, &["-n", "4096"], Flush::WithSync, 3);
}

#[test]
fn tiny_files() {
    fill_delete_refill("tiny.img", 64 * MIB, &["-m", "single"], Flush::Tiny, 1);
}

#[test]
#[ignore = "takes three minutes: `cargo xtask nightly`"]
fn tiny_files_again_and_again() {
    fill_delete_refill("tiny-again.img", 128 * MIB, &["-m", "single"], Flush::Tiny, 3);
}
