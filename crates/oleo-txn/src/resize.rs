//! A device that gets larger or smaller.
//!
//! The size is in three places: the volume's memory, which new chunks go by; the device's item in the chunk tree; and
//! the items of chunks that were made but not recorded yet, which carry that item along. All three change while no
//! chunk is made, so none goes by the old size or brings it back.

use oleo_format::{ByteLen, DevId, TreeId};
use oleo_tree::Change;

use crate::TxnError;
use crate::staged::Staged;

impl Staged<'_> {
    /// Changes how much of a device the volume may use. A file that is too long is cut by `Volume::cut_device`, when this
    /// is durable.
    ///
    /// # Errors
    /// Chunks lie behind the new end, or the device cannot grow: nothing has changed then.
    pub fn resize_device(&mut self, devid: DevId, total: ByteLen) -> Result<(), TxnError> {
        let inner = self.inner();
        let held = inner.growth.lock_chunk_alloc();
        let (key, item) = inner.volume.resize_device(devid, total)?;
        inner.growth.replace_in_plans(&held, &key, &item);
        drop(held);
        self.put(TreeId::CHUNK, &[Change::put(key, item)])
    }
}
