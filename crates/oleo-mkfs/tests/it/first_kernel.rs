//! New, empty file systems, verified by the kernel and `btrfs check`.

use std::path::PathBuf;
use std::sync::Arc;

use oleo_device::{Device, FileDevice, FileOptions};
use oleo_format::CsumType;
use oleo_mkfs::{FeatureSet, MkfsOptions, Profile, make};
use oleo_sim::oracle::{Oracle, Scratch, oracle};

const MIB: u64 = 1 << 20;

/// Makes, checks, mounts, scrubs.
fn sound(
    oracle: &Oracle,
    what: &str,
    lengths: &[u64],
    options: &MkfsOptions,
) -> anyhow::Result<(Scratch, Vec<PathBuf>)> {
    let scratch = oracle.scratch()?;
    let mut files: Vec<PathBuf> = Vec::new();
    for (i, len) in lengths.iter().enumerate() {
        files.push(scratch.image(&format!("dev{i}"), *len)?);
    }
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    for file in &files {
        devices.push(Arc::new(FileDevice::open(file, &FileOptions::default().write(true))?));
    }
    // The kernel knows file systems by their UUIDs, and tests run side by side.
    let seed = *CsumType::Sha256.csum(what.as_bytes()).first_chunk().unwrap_or(&[0; 32]);
    make(&devices, &options.clone().seed(seed))?;
    drop(devices);
    oracle.must_be_sound(&files, what)?;
    Ok((scratch, files))
}

/// The same, then writes to it through the kernel and checks again.
fn sound_and_writable(oracle: &Oracle, what: &str, lengths: &[u64], options: &MkfsOptions) -> anyhow::Result<()> {
    let (_scratch, files) = sound(oracle, what, lengths, options)?;
    let mounted = oracle.mount(&files, "")?;
    for i in 0..16 {
        std::fs::write(mounted.path().join(format!("file{i}")), vec![i as u8; 40_000])?;
    }
    std::fs::create_dir(mounted.path().join("dir"))?;
    mounted.unmount()?;
    oracle.must_be_sound(&files, &format!("{what}, after the kernel wrote"))
}

/// Goal: the kernel accepts what we make for every node size, checksum and feature. Method: one device each.
#[test]
fn one_device() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    for nodesize in [4096, 8192, 16384, 32768, 65536] {
        for (csum, block_group_tree, others, free_space_tree) in [
            (CsumType::Crc32c, false, true, true),
            (CsumType::Xxh64, true, true, true),
            (CsumType::Sha256, false, false, nodesize == 16384),
            (CsumType::Blake2b, true, true, true),
        ] {
            let features = FeatureSet::default()
                .block_group_tree(block_group_tree)
                .free_space_tree(free_space_tree)
                .skinny_metadata(others)
                .no_holes(others)
                .extref(others);
            let options = MkfsOptions::default().nodesize(Some(nodesize)).csum(csum).features(features);
            let what = format!(
                "nodesize {nodesize}, {csum:?}, block-group tree {block_group_tree}, others {others}, free-space tree {free_space_tree}"
            );
            sound_and_writable(&oracle, &what, &[200 * MIB], &options)?;
        }
    }
    Ok(())
}

/// Goal: the kernel takes every profile, for data and metadata. Method: one to four devices of unequal sizes.
#[test]
fn all_profiles() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let lengths = [200 * MIB, 300 * MIB, 256 * MIB, 513 * MIB];
    for count in 1..=4 {
        for profile in Profile::ALL {
            if usize::from(profile.shape().devices_min) > count {
                continue;
            }
            let options = MkfsOptions::default().data(Some(profile)).metadata(Some(profile));
            sound_and_writable(&oracle, &format!("{profile} on {count} devices"), &lengths[..count], &options)?;
        }
    }
    Ok(())
}

/// Goal: sizes at the edges, mixed groups, and superblock copies inside the first chunks.
#[test]
fn sizes_and_mixed() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let mixed = FeatureSet::default().mixed(true);
    for len in [64 * MIB + 8192, 128 * MIB, 3000 * MIB, 300 << 30] {
        let options = MkfsOptions::default().label(format!("of {len}"));
        sound_and_writable(&oracle, &format!("{len} bytes"), &[len], &options)?;
        let options = MkfsOptions::default().features(mixed);
        sound_and_writable(&oracle, &format!("{len} bytes, mixed"), &[len], &options)?;
    }
    // Enough for the kernel to mount, though not to write much.
    let options = MkfsOptions::default();
    sound(&oracle, "24 MiB", &[24 * MIB], &options)?;
    let options = MkfsOptions::default().features(mixed).metadata(Some(Profile::Raid1));
    sound_and_writable(&oracle, "mixed raid1", &[300 * MIB; 2], &options)
}
