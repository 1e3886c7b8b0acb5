//! Replay of the log that a crash left, when a volume is opened: on disk, or in memory only.
//!
//! If a volume is opened for writing, its log is applied and committed before the caller gets the image. If it is opened for
//! reading, the result is the same, but the devices are not written: they are wrapped in [`Overlay`]s, the log is applied and
//! committed to these, and reads come from there. So a reader sees everything that was synced, even on a read-only image.
//!
//! A log that cannot be applied is an error with its reason: the log holds acknowledged data, which is never dropped
//! silently. Two kinds of openings continue without it: on request (`no_log_replay`), and if as much as possible
//! is to be read (`ignore_bad_trees`, `read_in_use`).

use std::sync::Arc;

use oleo_device::{Device, Overlay};
use oleo_format::SuperFlags;
use oleo_fs::Fs;
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions as VolumeOptions, Volume, read_mirrors};

use crate::{Access, Error, OpenOptions, Result};

/// Applies the log, if there is one, to a volume that was opened for writing.
pub(crate) fn replay(fs: &Fs) -> Result<()> {
    oleo_fs::replay(fs).map(drop).map_err(|error| Error::Log(Box::new(error.into())))
}

/// What to read in place of `devices`, whose volume has a log: the same with the log applied.
pub(crate) fn applied(devices: &[Arc<dyn Device>], options: &OpenOptions) -> Result<Vec<Arc<dyn Device>>> {
    let share = options.log_bytes_max / devices.len().max(1) as u64;
    let over: Vec<Arc<dyn Device>> =
        devices.iter().map(|d| Arc::new(Overlay::new(d.clone(), share)) as Arc<dyn Device>).collect();
    let done = (|| {
        over.iter().try_for_each(|device| no_dump(&**device))?;
        let volume_options = VolumeOptions {
            write: true,
            degraded: options.degraded,
            backup: None,
            super_copy: None,
            ignore_block_csums: false,
        };
        let volume = Arc::new(Volume::open(over.clone(), &volume_options)?);
        let engine_options = EngineOptions { cache_bytes: options.cache_bytes, ..EngineOptions::default() };
        let nodesize = u64::from(volume.rules().nodesize);
        let engine = Engine::open(volume, &engine_options)?;
        let log_bytes = engine.unreplayed_log().map_or(0, |log| nodesize.saturating_mul(log.blocks() as u64));
        if log_bytes > options.log_bytes_max {
            let text = format!("it has {log_bytes} bytes, and only {} may be applied in memory", options.log_bytes_max);
            return Err(Error::refused(oleo_fs::errno::ENOMEM, text));
        }
        let fs = Fs::open(engine, &options.fs.clone().read_only(false))?;
        oleo_fs::replay(&fs)?;
        Ok(())
    })();
    match done {
        Ok(()) => Ok(over),
        Err(_) if options.ignore_bad_trees || options.access == Access::ReadOnlyInUse => Ok(devices.to_vec()),
        Err(error) => Err(Error::Log(Box::new(error))),
    }
}

/// An image of `btrfs-image` must not be written; this one is in memory only.
fn no_dump(device: &dyn Device) -> Result<()> {
    for (offset, sb) in read_mirrors(device) {
        let Ok(mut sb) = sb else { continue };
        let flags = sb.flags();
        let dump = SuperFlags::METADUMP | SuperFlags::METADUMP_V2;
        if flags.intersects(dump) {
            sb.flags = (flags - dump).bits().into();
            device.write_at(offset, &sb.to_bytes(offset))?;
        }
    }
    Ok(())
}
