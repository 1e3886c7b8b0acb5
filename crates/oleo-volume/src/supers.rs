//! Superblocks: finding the best mirror, verifying it, writing all of them.
//!
//! A device has up to three mirrors at fixed offsets. The best is the one with the highest generation among those whose
//! checksum, magic and own offset are right; mirrors of another file system (left over from an earlier use of the
//! device) count only if the first is not readable at all.
//!
//! The order of writing survives a crash at any point: (1) flush everything the superblock leads to; (2) write the
//! first mirror on every device; (3) flush; (4) write the other mirrors. At every moment at least one whole superblock
//! that leads to whole trees is on stable storage: while the first mirror is being written, the others (flushed by the
//! next (1) at the latest) hold the transaction before.

use crate::error::VolumeError;
use oleo_device::Device;
use oleo_format::{
    ByteLen, CompatRo, Corruption, Generation, Incompat, LEVELS_MAX, NODESIZE_MAX, NODESIZE_MIN, SUPER_LEN,
    SUPER_OFFSETS, SuperBlock, SuperFlags, super_offsets,
};

/// Smallest and largest sector in bytes.
const SECTORSIZE: std::ops::RangeInclusive<u32> = 4096..=65536;

/// The mirrors of a device, as far as it reaches: offset, and the superblock or why it is invalid.
pub fn read_mirrors(device: &dyn Device) -> Vec<(u64, Result<SuperBlock, VolumeError>)> {
    super_offsets(device.len()).map(|offset| (offset, read_mirror(device, offset))).collect()
}

fn read_mirror(device: &dyn Device, offset: u64) -> Result<SuperBlock, VolumeError> {
    let mut bytes = vec![0; SUPER_LEN];
    device.read_at(offset, &mut bytes)?;
    let place = |e: Corruption| e.within(format_args!("{} offset {offset}", device.name()));
    let sb = SuperBlock::read(&bytes).map_err(place)?;
    if sb.bytenr.get() != offset {
        return Err(place(Corruption::new("superblock", "bytenr", sb.bytenr, offset)).into());
    }
    Ok(sb)
}

/// The best superblock of a device.
pub fn read_super(device: &dyn Device) -> Result<SuperBlock, VolumeError> {
    let mut mirrors = read_mirrors(device);
    let first = mirrors.first().and_then(|(_, r)| r.as_ref().ok()).map(|sb| sb.fsid);
    let same = |sb: &&SuperBlock| first.is_none_or(|fsid| sb.fsid == fsid);
    let good = mirrors.iter().filter_map(|(_, r)| r.as_ref().ok()).filter(same);
    // Of equal generations the first in place wins: it is the one that was certainly flushed.
    let best = good.fold(None, |best: Option<&SuperBlock>, sb| match best {
        Some(b) if b.generation.get() >= sb.generation.get() => Some(b),
        _ => Some(sb),
    });
    if let Some(best) = best {
        return Ok(*best);
    }
    match mirrors.drain(..).next() {
        Some((_, Err(e))) => Err(none_on(device, e)),
        _ => Err(too_short(device, SUPER_OFFSETS[0])),
    }
}

/// The `nth` copy of a device's superblock, regardless of the others.
pub(crate) fn read_copy(device: &dyn Device, nth: usize) -> Result<SuperBlock, VolumeError> {
    let Some(&offset) = SUPER_OFFSETS.get(nth) else {
        let what = format!("copy {nth} of the superblock; there are {}", SUPER_OFFSETS.len());
        return Err(VolumeError::Unsupported { what });
    };
    match read_mirrors(device).into_iter().find(|(at, _)| *at == offset) {
        Some((_, copy)) => copy.map_err(|e| none_on(device, e)),
        None => Err(too_short(device, offset)),
    }
}

fn none_on(device: &dyn Device, error: VolumeError) -> VolumeError {
    match error {
        VolumeError::Corrupt(why) => VolumeError::NoSuper { name: device.name(), why },
        other => other,
    }
}

fn too_short(device: &dyn Device, offset: u64) -> VolumeError {
    let want = format!("{} or more", offset + SUPER_LEN as u64);
    let why = Corruption::new("device", "length", device.len(), want);
    VolumeError::NoSuper { name: device.name(), why: Box::new(why) }
}

/// Whether the numbers make sense that everything else is computed from.
pub(crate) fn check_fields(sb: &SuperBlock) -> Result<(), Corruption> {
    let bad =
        |what: &'static str, have: &dyn std::fmt::Display, want: &str| Corruption::new("superblock", what, have, want);
    let (nodesize, sectorsize) = (sb.nodesize.get(), sb.sectorsize.get());
    if !sectorsize.is_power_of_two() || !SECTORSIZE.contains(&sectorsize) {
        return Err(bad("sectorsize", &sectorsize, "a power of two from 4096 to 65536"));
    }
    if !nodesize.is_power_of_two() || !(NODESIZE_MIN..=NODESIZE_MAX).contains(&nodesize) || nodesize < sectorsize {
        return Err(bad("nodesize", &nodesize, "a power of two from the sector size to 65536"));
    }
    let (remap_root, remap_generation, remap_level) = sb.remap_tree().unwrap_or((sb.root(), Generation(0), 0));
    let levels =
        [("root_level", sb.root_level), ("chunk_root_level", sb.chunk_root_level), ("remap_root_level", remap_level)];
    for (what, level) in levels {
        if level >= LEVELS_MAX {
            return Err(bad(what, &level, "at most 7"));
        }
    }
    for (what, at) in [("root", sb.root()), ("chunk_root", sb.chunk_root()), ("remap_root", remap_root)] {
        if at.0 == 0 || !at.is_aligned(ByteLen(sectorsize.into())) {
            return Err(bad(what, &at, "a multiple of the sector size above 0"));
        }
    }
    if remap_generation > sb.generation() {
        return Err(bad("remap_root_generation", &remap_generation, "at most the generation"));
    }
    if sb.num_devices.get() == 0 {
        return Err(bad("num_devices", &0, "1 or more"));
    }
    if sb.chunk_root_generation.get() > sb.generation.get() {
        return Err(bad("chunk_root_generation", &sb.chunk_root_generation, "at most the generation"));
    }
    sb.sys_chunks().map(|_| ())
}

/// Refuses by name what cannot be read, and for writing what cannot be written.
pub(crate) fn check_features(sb: &SuperBlock, write: bool) -> Result<(), VolumeError> {
    let features = sb.features();
    let known = Incompat::all().iter_names().fold(Incompat::empty(), |all, (_, bit)| all | bit);
    // The raid-stripe tree (`moved.rs`) and the remap tree (`remap.rs`) are read, not kept up; and of the two together nobody says which counts first.
    let trees = Incompat::RAID_STRIPE_TREE | Incompat::REMAP_TREE;
    let unread = if write || features.incompat.contains(trees) { trees } else { Incompat::empty() };
    let missing = Incompat::ZONED | Incompat::EXTENT_TREE_V2 | unread;
    let refused = features.incompat & (missing | !known);
    if !refused.is_empty() {
        return Err(unsupported(
            "incompat feature",
            names(refused.iter_names().map(|n| n.0), (refused - known).bits()),
        ));
    }
    // Every block and sector that is read is verified by itself, so a volume in such a state can be read as far as it is whole.
    if write && let Some(what) = sb.unfinished() {
        let text = format!(
            "a volume on which {what} was interrupted: it can be read; the tool that began it, such as btrfstune, has to finish it"
        );
        return Err(unsupported("writing to", text));
    }
    let known = CompatRo::all().iter_names().fold(CompatRo::empty(), |all, (_, bit)| all | bit);
    let unknown = features.compat_ro - known;
    if write && !unknown.is_empty() {
        return Err(unsupported("writing with compat_ro feature", names(std::iter::empty(), unknown.bits())));
    }
    if write && sb.flags().intersects(SuperFlags::METADUMP | SuperFlags::METADUMP_V2) {
        return Err(unsupported(
            "writing to",
            "an image made by btrfs-image, which has no data; it can only be read".into(),
        ));
    }
    if write && sb.flags().contains(SuperFlags::SEEDING) {
        return Err(unsupported(
            "writing to",
            "a seed device: it can be read, and a volume that is made of it by adding a device can be written to"
                .into(),
        ));
    }
    Ok(())
}

fn unsupported(kind: &str, names: String) -> VolumeError {
    VolumeError::Unsupported { what: format!("{kind} {names}") }
}

fn names<'a>(known: impl Iterator<Item = &'a str>, unknown: u64) -> String {
    let mut all: Vec<String> = known.map(str::to_lowercase).collect();
    if unknown != 0 {
        all.push(format!("unknown bits {unknown:#x}"));
    }
    all.join(", ")
}
