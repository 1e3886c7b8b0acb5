//! Repairs for a volume that cannot be opened as it is.

use std::path::Path;
use std::sync::Arc;

use oleo_device::Device;
use oleo_format::{Logical, SuperBlock};
use oleo_volume::read_mirrors;

use crate::image::open_devices;
use crate::{Access, Error, OpenOptions, Result};

/// The log that [`zero_log`] discarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DroppedLog {
    /// Where its root was.
    pub root: Logical,
    /// The level of its root.
    pub level: u8,
    /// Superblocks that named one.
    pub copies: u32,
}

/// Discards the log of a volume: data synced after the last commit is lost, and the volume has the state of that commit. Returns
/// `None` if there was no log. Reads and writes superblocks only, so it works whatever else is damaged.
///
/// # Errors
/// Somebody uses the volume, a device is missing (it would keep the log; `degraded` allows that), or none has a
/// superblock.
pub fn zero_log(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Option<DroppedLog>> {
    let path = path.as_ref();
    let devices = open_devices(path, &OpenOptions { access: Access::Write, ..options.clone() });
    devices.and_then(|devices| zero_log_of(&devices, options.degraded)).map_err(|error| error.of_image(path))
}

fn zero_log_of(devices: &[Arc<dyn Device>], degraded: bool) -> Result<Option<DroppedLog>> {
    let mut newest: Option<SuperBlock> = None;
    let mut found: Vec<(&Arc<dyn Device>, u64, SuperBlock)> = Vec::new();
    for device in devices {
        let best = oleo_volume::read_super(device.as_ref())?;
        if let Some(newest) = newest.filter(|newest| newest.fsid != best.fsid) {
            return Err(Error::refused(
                oleo_fs::errno::EINVAL,
                format!("{} belongs to file system {}, not to {}", device.name(), best.fsid(), newest.fsid()),
            ));
        }
        if newest.is_none_or(|newest| best.generation.get() > newest.generation.get()) {
            newest = Some(best);
        }
        let good = read_mirrors(device.as_ref()).into_iter().filter_map(|(at, sb)| Some((device, at, sb.ok()?)));
        found.extend(good.filter(|(_, _, sb)| sb.fsid == best.fsid));
    }
    let Some(newest) = newest else { return Ok(None) };
    let missing = newest.num_devices.get().saturating_sub(devices.len() as u64);
    if missing > 0 && !degraded {
        let all = newest.num_devices;
        return Err(Error::refused(
            oleo_fs::errno::ENODEV,
            format!("the volume has {all} devices, {missing} of which were not named"),
        ));
    }
    found.retain(|(_, _, sb)| sb.log_root.get() != 0);
    let copies = u32::try_from(found.len()).unwrap_or(u32::MAX);
    for (device, at, mut sb) in found {
        sb.drop_log();
        device.write_at(at, &sb.to_bytes(at))?;
    }
    for device in devices {
        device.flush()?;
    }
    let (root, level) = (Logical(newest.log_root.get()), newest.log_root_level);
    Ok((copies > 0).then_some(DroppedLog { root, level, copies }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Image;
    use crate::device::MemDevice;
    use crate::mkfs::MkfsOptions;

    /// Goal: a log is dropped from every superblock and nothing else changes; a second call finds none; a volume that lacks a
    /// device is refused.
    /// Method: two devices in memory whose superblocks are made to name a log.
    #[test]
    fn every_superblock_forgets_it() -> Result<()> {
        let devices: Vec<Arc<dyn Device>> =
            (0..2).map(|_| Arc::new(MemDevice::new(256 << 20)) as Arc<dyn Device>).collect();
        crate::mkfs::make(&devices, &MkfsOptions::default())?;
        assert_eq!(zero_log_of(&devices, false)?, None);
        let untouched: Vec<_> = devices.iter().flat_map(|d| read_mirrors(d.as_ref())).collect();
        for device in &devices {
            for (at, sb) in read_mirrors(device.as_ref()) {
                let mut sb = sb?;
                sb.log_root.set(30 << 20);
                sb.log_root_level = 1;
                device.write_at(at, &sb.to_bytes(at))?;
            }
        }
        assert!(zero_log_of(&devices[..1], false).is_err(), "the other one would keep it");
        let dropped = zero_log_of(&devices, false)?;
        assert_eq!(dropped, Some(DroppedLog { root: Logical(30 << 20), level: 1, copies: 4 }));
        for ((at, want), (_, have)) in untouched.into_iter().zip(devices.iter().flat_map(|d| read_mirrors(d.as_ref())))
        {
            assert!(want? == have?, "the superblock at {at}");
        }
        assert_eq!(zero_log_of(&devices, false)?, None);
        Image::from_devices(devices, &OpenOptions::writing())?.close()
    }
}
