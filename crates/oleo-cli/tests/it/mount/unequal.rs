//! Space on devices of unequal sizes: what `statfs` and `oleo filesystem usage` promise can be had.

use std::fs::File;
use std::path::{Path, PathBuf};

use oleo_sim::oracle::{oracle, run};
use oleo_sim::served::{Limits, Served};
use rustix::fs::{FallocateFlags, StatVfs, fallocate, statvfs};

use crate::mount::place::OLEO;

const GIB: u64 = 1 << 30;
/// Bytes that may be left, too few for another chunk.
const REST: u64 = 1 << 20;

/// Takes space until there is none, and returns how much that was.
fn fill(dir: &Path) -> u64 {
    let (mut taken, mut step) = (0, 64 << 20);
    let file = File::create(dir.join("all")).unwrap();
    while step >= 4096 {
        match fallocate(&file, FallocateFlags::empty(), taken, step) {
            Ok(()) => taken += step,
            Err(error) => {
                assert_eq!(error, rustix::io::Errno::NOSPC);
                step /= 2;
            }
        }
    }
    taken
}

/// Goal: neither f_bavail nor `Free (estimated)` is more than what can be written, and f_bfree is more only by what is free in block groups for
/// metadata. The kernel's f_bfree counts what has no other device for its copies, too.
/// Method: volumes of the kernel's mkfs, sparse; preallocation until there is no space.
#[test]
fn no_more_is_promised_than_fits() {
    let Some(oracle) = oracle() else { return };
    for (profile, sizes, fits) in [
        ("raid1", [1, 1, 4], 2),
        ("raid1", [2, 2, 2], 3),
        ("raid1c3", [1, 2, 4], 1),
        ("raid5", [1, 1, 4], 2),
        ("single", [1, 1, 2], 4),
    ] {
        let what = format!("{profile} on {sizes:?}");
        let scratch = oracle.scratch().unwrap();
        let images: Vec<PathBuf> =
            (0..).zip(sizes).map(|(nth, gib)| scratch.image(&format!("i{nth}"), gib * GIB).unwrap()).collect();
        oracle.mkfs(&["-d", profile, "-m", if profile == "raid5" { "raid1" } else { profile }], &images).unwrap();
        let theirs = {
            let mounted = oracle.mount(&images, "").unwrap();
            let theirs = statvfs(mounted.path()).unwrap();
            mounted.unmount().unwrap();
            theirs
        };
        let mut args = vec!["filesystem".into(), "usage".into(), "--json".into(), images[0].clone().into_os_string()];
        images[1..].iter().for_each(|other| args.extend(["--device".into(), other.clone().into_os_string()]));
        let usage: serde_json::Value = serde_json::from_str(&run(OLEO, args).unwrap()).unwrap();
        let served = Served::mount(Path::new(OLEO), &images, "", Limits::default()).unwrap();
        let ours = statvfs(served.path()).unwrap();
        let taken = fill(served.path());
        served.unmount().unwrap();
        let bytes = |s: &StatVfs| [s.f_blocks, s.f_bfree, s.f_bavail].map(|blocks| blocks * s.f_frsize);
        let ([total, free, available], shown) =
            (bytes(&ours), format!("{:?}, the kernel {:?}", bytes(&ours), bytes(&theirs)));
        println!("{what}: {taken} taken of {shown}");
        let groups = usage["groups"].as_array().unwrap().iter().filter(|group| group["type"] != "Data");
        let slack: u64 = groups.map(|group| group["total"].as_u64().unwrap() - group["used"].as_u64().unwrap()).sum();
        assert!(
            available <= taken + REST && usage["free_estimated"].as_u64().unwrap() <= taken + REST,
            "{what}: {taken} of {shown}, {usage}"
        );
        assert!(available <= free && free <= total && free <= taken + REST + 2 * slack, "{what}: {taken} of {shown}");
        // The kernel's f_blocks has parity in it.
        if profile != "raid5" {
            assert_eq!(total, theirs.f_blocks * theirs.f_frsize, "{what}: {shown}");
        }
        assert!(available > fits * GIB / 2, "{what}: {shown}");
    }
}
