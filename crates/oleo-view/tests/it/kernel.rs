//! A map of a volume that the kernel has made, beside what the kernel counts.

use oleo::OpenOptions;
use oleo::inspect::Inspector;
use oleo_sim::oracle::{self, oracle};
use oleo_view::{Map, MapOptions};

/// Goal: what each of 64 snapshots reaches, and reaches alone, is what the kernel's quota counts; space by type is what its block groups say. Method: a subvolume with files that change between snapshots, quota
/// of the kernel with a rescan, then the map of the image.
#[test]
fn snapshots_as_the_kernel_counts_them() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let image = scratch.image("disk.img", 1 << 30).unwrap();
    oracle.mkfs(&[], &[&image]).unwrap();
    let mounted = oracle.mount(&[&image], "noatime").unwrap();
    let dir = mounted.path().to_owned();
    let btrfs = |args: &[&str]| oracle::run("btrfs", args).unwrap();
    let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    btrfs(&["subvolume", "create", &at("v")]);
    for n in 0..200u32 {
        let bytes: Vec<u8> =
            (0..20_000u32).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(n * 77) >> 13) as u8).collect();
        std::fs::write(dir.join(format!("v/f{n}")), bytes).unwrap();
    }
    for n in 0..64u32 {
        let bytes: Vec<u8> =
            (0..30_000u32).map(|i| (i.wrapping_mul(40_503).wrapping_add(n * 7919) >> 7) as u8).collect();
        std::fs::write(dir.join(format!("v/f{}", n % 200)), &bytes).unwrap();
        btrfs(&["subvolume", "snapshot", "-r", &at("v"), &at(&format!("s{n}"))]);
    }
    btrfs(&["quota", "enable", &at("")]);
    btrfs(&["quota", "rescan", "-w", &at("")]);
    mounted.sync().unwrap();
    let groups = mounted.qgroups().unwrap();
    mounted.unmount().unwrap();

    let map = Map::read(&Inspector::open(&image, &OpenOptions::default()).unwrap(), &MapOptions::default()).unwrap();
    assert_eq!((map.notes.as_slice(), map.sharing.subvols.len()), (&[][..], 66));
    let mut compared = 0;
    for (id, group) in &groups {
        let Some(subvol) = map.sharing.subvol(*id) else { continue };
        assert_eq!((subvol.reached, subvol.alone), (Some(group.rfer), Some(group.excl)), "subvolume {id}");
        compared += 1;
    }
    assert_eq!(compared, 66);
    // Shares are told apart by exactly who has them, and all of them together are what is there.
    let files: u64 = map.sharing.sets.iter().map(|set| set.bytes).sum::<u64>() + map.sharing.other_sets;
    let alone: u64 = map.sharing.subvols.iter().filter_map(|subvol| subvol.alone).sum();
    assert!(alone < files && files <= map.space.data + map.space.metadata);
    for group in map.groups.iter().filter(|group| group.used.is_some()) {
        assert!(group.used.unwrap() <= group.len);
    }
    let used: u64 = map.groups.iter().map(|group| group.used.unwrap()).sum();
    assert_eq!(used, map.space.data + map.space.metadata);
}
