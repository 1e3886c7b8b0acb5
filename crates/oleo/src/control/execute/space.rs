//! Where the space is, as `df` and `usage` tell it.

use std::collections::BTreeMap;

use oleo_format::{BlockGroupFlags, ByteLen, DevId};
use oleo_volume::{DeviceInfo, ErrorCounters};

use crate::control::reply::{DeviceErrors, DeviceUsage, GroupUsed, Usage};
use crate::{Image, Result};

/// Space by type and profile, with the bytes on each device.
pub(super) fn groups(image: &Image) -> Vec<GroupUsed> {
    let mut on_devices: BTreeMap<u64, BTreeMap<DevId, ByteLen>> = BTreeMap::new();
    for chunk in image.volume().chunks() {
        for stripe in &chunk.stripes {
            let flags = chunk.flags - BlockGroupFlags::REMAPPED;
            *on_devices.entry(flags.bits()).or_default().entry(stripe.devid).or_default() += chunk.stripe_bytes();
        }
    }
    let line = |g: crate::usage::GroupUsage| GroupUsed {
        flags: g.flags.bits(),
        kind: g.type_name().to_owned(),
        profile: g.flags.profile_name().to_owned(),
        total: g.total,
        used: g.used,
        on_devices: on_devices.remove(&g.flags.bits()).unwrap_or_default().into_iter().collect(),
    };
    image.df().into_iter().map(line).collect()
}

/// Everything about space.
pub(super) fn usage(image: &Image) -> Usage {
    let volume = image.volume();
    let sb = image.fs().engine().super_block();
    let groups = groups(image);
    let devices: Vec<DeviceUsage> = volume.devices().into_iter().map(DeviceUsage::from).collect();
    let data = BlockGroupFlags::DATA.bits();
    let mine: Vec<&GroupUsed> = groups.iter().filter(|g| g.flags & data != 0).collect();
    let inside: u64 = mine.iter().map(|g| g.total.0.saturating_sub(g.used.0)).sum();
    let flags = mine.last().map_or(BlockGroupFlags::DATA, |g| BlockGroupFlags::from_bits_retain(g.flags));
    let unallocated: u64 = devices.iter().map(|d| d.total.0.saturating_sub(d.allocated.0)).sum();
    let copies = groups.iter().map(copies).max().unwrap_or(1).max(1);
    let fits = image.fits(flags).0;
    Usage {
        label: image.label().into(),
        fsid: sb.fsid(),
        generation: sb.generation(),
        data_free: ByteLen(inside + fits),
        data_free_min: ByteLen(inside + fits.min(unallocated / copies)),
        statfs_free: image.space_summary().available,
        devices,
        groups,
    }
}

/// The errors of each device.
pub(super) fn errors(image: &Image) -> Vec<DeviceErrors> {
    image.volume().devices().into_iter().map(|device| line(&device, device.errors)).collect()
}

/// The same of some devices; they are zero afterwards, on disk as well.
pub(super) fn reset_errors(image: &Image, of: &dyn Fn(DevId) -> bool) -> Result<Vec<DeviceErrors>> {
    let volume = image.volume();
    // Before the commit is asked for: one that was under way may have written the old counters.
    let (taken, others): (Vec<_>, Vec<_>) = volume.take_error_counters().into_iter().partition(|(devid, _)| of(*devid));
    others.iter().for_each(|(devid, counters)| volume.add_error_counters(*devid, *counters));
    // Nothing is changed but what the commit writes of its own accord.
    let asked = image.fs().engine().edit_super(|_| ()).map_err(oleo_fs::FsError::from);
    if let Err(error) = asked.and_then(|()| image.fs().commit()) {
        taken.iter().for_each(|(devid, counters)| volume.add_error_counters(*devid, *counters));
        return Err(error.into());
    }
    let devices = volume.devices();
    let of = |devid| devices.iter().find(|device| device.devid == devid);
    Ok(taken.into_iter().filter_map(|(devid, counters)| Some(line(of(devid)?, counters))).collect())
}

fn line(device: &DeviceInfo, errors: ErrorCounters) -> DeviceErrors {
    let [write, read, flush, corruption, generation] = errors.to_values();
    let path = if device.missing { Default::default() } else { device.name.clone().into() };
    DeviceErrors { devid: device.devid, path, write, read, flush, corruption, generation }
}

/// Bytes on devices for each byte of a group, rounded up.
fn copies(group: &GroupUsed) -> u64 {
    let raw: u64 = group.on_devices.iter().map(|(_, len)| len.0).sum();
    raw.div_ceil(group.total.0.max(1))
}
