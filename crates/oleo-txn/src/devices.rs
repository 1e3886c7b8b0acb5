//! Devices that come and go: their items in the chunk tree and the device tree.
//!
//! Both are one step with the change of the volume's memory, while no chunk is made; the commit that follows makes it so on disk
//! (`Volume::attach` has what a crash leaves).

use oleo_format::{DevId, Key, ItemType, TreeId};
use oleo_tree::Change;
use oleo_volume::{DetachedDevice, NewDevice};

use crate::TxnError;
use crate::staged::Staged;

impl Staged<'_> {
    /// Makes a device part of the volume; returns its number.
    ///
    /// # Errors
    /// The volume cannot be written to.
    pub fn add_device(&mut self, new: NewDevice) -> Result<DevId, TxnError> {
        let inner = self.inner();
        let held = inner.growth.lock_chunk_alloc();
        let (devid, (key, item)) = inner.volume.attach(new)?;
        drop(held);
        self.put(TreeId::CHUNK, &[Change::put(key, item)])?;
        Ok(devid)
    }

    /// Takes a device out of the volume that no chunk is on. When this is durable, its mark may be wiped.
    ///
    /// # Errors
    /// A chunk is on it, or it is the last: nothing has changed then.
    pub fn remove_device(&mut self, devid: DevId) -> Result<DetachedDevice, TxnError> {
        let inner = self.inner();
        let held = inner.growth.lock_chunk_alloc();
        inner.volume.can_detach(devid)?;
        let detached = inner.volume.detach(devid)?;
        drop(held);
        let stats = Key::device_stats(devid);
        if inner.blocks.get(&self.root(TreeId::DEV)?, &stats)?.is_some() {
            self.put(TreeId::DEV, &[Change::delete(stats)])?;
        }
        self.put(TreeId::CHUNK, &[Change::delete(Key::new(Key::DEV_ITEMS, ItemType::DEV_ITEM, devid.0))])?;
        Ok(detached)
    }
}
