//! Sound volumes are clean, and `btrfs check` agrees.

use std::path::Path;
use std::sync::Arc;

use oleo::mkfs::{FeatureSet, MkfsOptions, Profile};
use oleo_check::{CheckOptions, Kind, Report, check};
use oleo_device::{Device, FileDevice, FileOptions};
use oleo_sim::budget::budget;
use oleo_sim::oracle::{oracle, run};
use oleo_sim::specimen::aged;
use oleo_volume::{OpenOptions, Volume};

use crate::check::kit::{Disk, some_files};

fn check_images<P: AsRef<Path>>(images: &[P]) -> Report {
    let open =
        |path: &P| Arc::new(FileDevice::open(path.as_ref(), &FileOptions::default()).unwrap()) as Arc<dyn Device>;
    let volume = Volume::open(images.iter().map(open).collect(), &OpenOptions::default()).unwrap();
    check(&volume, &CheckOptions::default().data(true)).unwrap()
}

/// Nothing but what mkfs.btrfs 6.2 leaves behind.
#[track_caller]
fn assert_sound(what: &str, report: &Report) {
    let odd: Vec<_> = report.findings.iter().filter(|f| f.kind != Kind::FreeSpaceLeftover).collect();
    assert!(odd.is_empty() && !report.has_errors(), "{what}: {odd:#?}");
}

/// Goal: volumes made and used by the kernel are clean, whatever their features. Method: all recipes of the simulator;
/// both checks.
#[test]
fn aged_by_the_kernel_even() {
    aged_by_the_kernel(0);
}

#[test]
fn aged_by_the_kernel_odd() {
    aged_by_the_kernel(1);
}

/// Every second recipe of the sample from this one: two tests of half the time.
fn aged_by_the_kernel(from: usize) {
    let Some(oracle) = oracle() else { return };
    for recipe in budget().sample(aged::recipes(), 2).into_iter().skip(from).step_by(2) {
        let scratch = oracle.scratch().unwrap();
        let made = aged::make(oracle, &scratch, &recipe).unwrap();
        let report = check_images(&made.devices);
        assert_sound(recipe.name, &report);
        let verdict = oracle.check(&made.devices).unwrap();
        assert!(verdict.is_clean(), "{}: {verdict}", recipe.name);
        assert!(report.counts.verified_bytes > 0 && report.counts.inodes > 1000, "{:?}", report.counts);
    }
}

/// Goal: quota, balance, half-deleted subvolumes, preallocation, files without checksums, old and new trees.
/// Method: a kernel mount for each, taken down at an awkward moment; both checks.
#[test]
fn odd_states_of_the_kernel() {
    let Some(oracle) = oracle() else { return };
    for (name, mkfs) in [("quota", ""), ("groups", ""), ("v1", "-R ^free-space-tree")] {
        let scratch = oracle.scratch().unwrap();
        let image = scratch.image("i", 700 << 20).unwrap();
        let args: Vec<&str> = mkfs.split_whitespace().collect();
        match name {
            // Not every mkfs.btrfs can make, nor every btrfs check read, one with a block-group tree. The kernel can.
            "groups" => {
                let options = FileOptions::default().write(true);
                let device = Arc::new(FileDevice::open(&image, &options).unwrap());
                let features = FeatureSet::default().block_group_tree(true);
                oleo::mkfs::make(&[device], &MkfsOptions::default().features(features).seed([9; 32])).unwrap();
            }
            _ => oracle.mkfs(&args, &[&image]).unwrap(),
        }
        let mounted = oracle.mount(&[&image], if name == "v1" { "space_cache=v1" } else { "" }).unwrap();
        let top = mounted.path();
        if name == "quota" {
            run("btrfs", ["quota".as_ref(), "enable".as_ref(), top.as_os_str()]).unwrap();
        }
        let script = "set -e; btrfs -q subvolume create v; mkdir v/d; \
            for i in $(seq 2000); do head -c $((i * 7 % 5000)) /dev/urandom > v/d/$i; done; sync; \
            btrfs -q subvolume snapshot v w; btrfs -q subvolume snapshot v x; \
            for i in $(seq 1 3 2000); do echo $i > v/d/$i; echo $i > w/d/n$i; done; \
            fallocate -l 4M p; dd if=/dev/urandom of=p bs=4k seek=100 count=7 conv=notrunc status=none; \
            mkdir c; chattr +C c; dd if=/dev/urandom of=c/f bs=1M count=6 status=none; cp --reflink c/f c/g; \
            dd if=/dev/urandom of=c/g bs=4k seek=50 count=9 conv=notrunc status=none; \
            setfattr -n user.x -v y v/d/5; mknod v/pipe p; ln -s a v/link; sync";
        run("sh", ["-c".as_ref(), format!("cd {} && {script}", top.display()).as_ref() as &std::ffi::OsStr]).unwrap();
        if name == "quota" {
            run("btrfs", ["quota".as_ref(), "rescan".as_ref(), "-w".as_ref(), top.as_os_str()]).unwrap();
            run("sh", ["-c".to_owned(), format!("cd {}; echo more > x/d/4; rm v/d/7; sync", top.display())]).unwrap();
        }
        if name == "groups" {
            run("btrfs", ["balance".as_ref(), "start".as_ref(), "--full-balance".as_ref(), top.as_os_str()]).unwrap();
        }
        // The cleaner is interrupted by the unmount, most of the time.
        run("btrfs", ["subvolume".as_ref(), "delete".as_ref(), top.join("v").as_os_str()]).unwrap();
        mounted.unmount().unwrap();
        let report = check_images(&[&image]);
        assert_sound(name, &report);
        if name != "groups" {
            let verdict = oracle.check(&[&image]).unwrap();
            assert!(verdict.is_clean(), "{name}: {verdict}");
        }
    }
}

/// Goal: volumes made by us are clean for every profile and feature, on one thread and on all. Method: small volumes in
/// memory with clones and snapshots.
#[test]
fn made_by_us() {
    let features = FeatureSet::default;
    let with = |data, metadata| MkfsOptions::default().data(Some(data)).metadata(Some(metadata));
    let cases = [
        (1, MkfsOptions::default()),
        (1, with(Profile::Single, Profile::Single)),
        (1, MkfsOptions::default().nodesize(Some(4096))),
        (1, MkfsOptions::default().features(features().block_group_tree(true))),
        (1, MkfsOptions::default().features(features().free_space_tree(false))),
        (1, MkfsOptions::default().features(features().skinny_metadata(false))),
        (1, MkfsOptions::default().features(features().mixed(true))),
        (2, with(Profile::Raid0, Profile::Raid1)),
        (4, with(Profile::Raid10, Profile::Raid1c3)),
        (4, with(Profile::Raid1c4, Profile::Raid10)),
    ];
    for (devices, options) in cases {
        let disk = Disk::new(&options, devices, some_files);
        for threads in [1, 0, 3] {
            let report = check(&disk.volume(), &CheckOptions::default().threads(threads).data(true)).unwrap();
            assert!(report.is_clean(), "{options:?} on {devices} devices, {threads} threads: {:#?}", report.findings);
            assert_eq!(report.counts.subvolumes, 4);
            assert!(report.counts.verified_bytes >= report.counts.csum_bytes);
        }
    }
}

/// Goal: a subvolume that is half dropped is sound wherever the drop has stopped, also between the items of one file.
/// Method: files whose items fill most of a leaf, so that most leaves begin in the middle of one; a snapshot of them goes
/// in small steps.
#[test]
fn half_dropped_in_the_middle_of_files() {
    let scratch = oleo_sim::oracle::Scratch::new().unwrap();
    let image = scratch.image("i", 256 << 20).unwrap();
    let options = FileOptions::default().write(true);
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&image, &options).unwrap());
    oleo::mkfs::make(&[device], &MkfsOptions::default().nodesize(Some(4096)).seed([3; 32])).unwrap();
    let writing = oleo::Image::open(&image, &oleo::OpenOptions::writing()).unwrap();
    let top = writing.top().unwrap();
    for n in 0..200 {
        writing.write(format!("f{n}"), &vec![n as u8; 1500]).unwrap();
    }
    let snapshot = writing.fs().snapshot(oleo::TreeId::FS, &top, b"s", oleo::SnapshotOptions::default()).unwrap();
    // Blocks of its own, below which it shares nothing.
    for n in 0..200 {
        writing.write(format!("f{n}"), &vec![!n as u8; 1500]).unwrap();
    }
    writing.fs().subvol_delete(snapshot).unwrap();
    writing.sync().unwrap();
    let mut states = 0;
    while writing.fs().clean(3).unwrap() {
        writing.sync().unwrap();
        let copy = scratch.path().join("copy");
        std::fs::copy(&image, &copy).unwrap();
        let report = check_images(&[&copy]);
        assert!(report.is_clean(), "state {states}: {:#?}", report.findings);
        states += 1;
    }
    assert!(states > 10, "only {states} states");
}
