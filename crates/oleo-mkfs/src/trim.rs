//! Cuts devices behind their last chunk.

use std::collections::BTreeMap;

use oleo_format::{ByteLen, DevId, TreeId};
use oleo_fs::Fs;
use oleo_tree::Change;

use crate::MkfsError;

/// What lengths are rounded up to, in bytes: a multiple of every sector size.
const ALIGN: u64 = 64 << 10;

/// Makes every device end `headroom` bytes behind its last chunk, if it ends later now; commits; cuts files.
///
/// # Errors
/// A device failed. A crash leaves the devices as they were, or a file that is longer than necessary.
pub fn trim(fs: &Fs, headroom: u64) -> Result<(), MkfsError> {
    fs.sync()?;
    let engine = fs.engine();
    let volume = engine.volume();
    let mut ends: BTreeMap<DevId, u64> = BTreeMap::new();
    for chunk in volume.chunks() {
        for stripe in &chunk.stripes {
            let end = ends.entry(stripe.devid).or_insert(0);
            *end = (*end).max(stripe.offset.0 + chunk.stripe_bytes().0);
        }
    }
    let mut resized = Vec::new();
    for device in volume.devices() {
        let Some(end) = ends.get(&device.devid) else { continue };
        let total = (end + headroom).next_multiple_of(ALIGN);
        if total < device.total.0 {
            resized.push((device.devid, volume.resize_device(device.devid, ByteLen(total))?));
        }
    }
    if resized.is_empty() {
        return Ok(());
    }
    let changes: Vec<Change> = resized.iter().map(|(_, (key, item))| Change::put(*key, item.clone())).collect();
    engine.stage(|staged| staged.put(TreeId::CHUNK, &changes))?;
    fs.sync()?;
    for (devid, _) in resized {
        volume.cut_device(devid)?;
    }
    Ok(())
}
