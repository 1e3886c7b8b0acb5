//! Devices that come, go and are replaced: their items in the chunk tree and the device tree.
//!
//! Both are one step with the change of the volume's memory, while no chunk is made; the commit that follows makes it so on disk
//! (`Volume::attach` has what a crash leaves).

use oleo_format::{DevId, DevReplaceItem, ItemType, Key, TreeId};
use oleo_tree::Change;
use oleo_volume::{DetachedDevice, NewDevice};
use zerocopy::IntoBytes;

use crate::TxnError;
use crate::engine::{Engine, Inner};
use crate::staged::Staged;

/// Values of `replace_state` (`BTRFS_IOCTL_DEV_REPLACE_STATE_*` of the UAPI header `linux/btrfs.h`).
pub mod replace_state {
    /// It is under way.
    pub const STARTED: u64 = 1;
    /// It is done.
    pub const FINISHED: u64 = 2;
    /// It was cancelled.
    pub const CANCELLED: u64 = 3;
    /// It is under way, and nobody goes on with it.
    pub const SUSPENDED: u64 = 4;
}

/// Where the volume says which device is being replaced.
const REPLACE_KEY: Key = Key { objectid: 0, item_type: ItemType::DEV_REPLACE, offset: 0 };

impl Engine {
    /// What the volume says of a replacement, under way or past.
    pub fn replace_item(&self) -> Result<Option<DevReplaceItem>, TxnError> {
        let _reader = self.reader();
        self.0.replace_item()
    }
}

impl Inner {
    fn replace_item(&self) -> Result<Option<DevReplaceItem>, TxnError> {
        let Some(dev) = self.trees.get(&self.blocks, TreeId::DEV)? else { return Ok(None) };
        let item = self.blocks.get(&dev.root, &REPLACE_KEY)?;
        Ok(item.as_deref().map(DevReplaceItem::parse_start).transpose()?.copied())
    }

    /// A replacement that is under way goes on: what is written from now on goes to the target, too.
    ///
    /// # Errors
    /// The target is not there, and nobody said that devices may be missing: what is written would be missing on it.
    pub(crate) fn carry_replace_on(&self) -> Result<(), TxnError> {
        let Some(item) = self.replace_item()? else { return Ok(()) };
        if !matches!(item.replace_state.get(), replace_state::STARTED | replace_state::SUSPENDED) {
            return Ok(());
        }
        let source = DevId(item.src_devid.get());
        if self.volume.resume_target(source)? || self.volume.may_lack_devices() || self.volume.is_degraded() {
            return Ok(());
        }
        let text = format!(
            "device {source} is being replaced, and the device that is to take its place is not there: name it"
        );
        Err(TxnError::Refused(text))
    }
}

impl Staged<'_> {
    /// Makes a device part of the volume; returns its number.
    ///
    /// # Errors
    /// The volume cannot be written to.
    pub fn add_device(&mut self, new: NewDevice) -> Result<DevId, TxnError> {
        let inner = self.inner();
        let held = inner.growth.lock_chunk_alloc();
        let (devid, item) = inner.volume.attach(new)?;
        drop(held);
        let items = inner.volume.seed_items().into_iter().chain([item]);
        let mut changes: Vec<Change> = items.map(|(key, item)| Change::put(key, item)).collect();
        changes.sort_by_key(|change| change.key);
        self.put(TreeId::CHUNK, &changes)?;
        Ok(devid)
    }

    /// Has a new device get all that another gets, to take its place; `item` says so on disk.
    ///
    /// # Errors
    /// There is no such device, or the new one is too short: nothing has changed then.
    pub fn start_replace(&mut self, new: NewDevice, item: &DevReplaceItem) -> Result<(), TxnError> {
        self.inner().volume.set_target(DevId(item.src_devid.get()), new)?;
        self.put_replace_item(item)
    }

    /// The target takes the place with the commit that follows.
    ///
    /// # Errors
    /// It is gone: nothing has changed then.
    pub fn finish_replace(&mut self, item: &DevReplaceItem) -> Result<(), TxnError> {
        self.inner().volume.finish_target(DevId(item.src_devid.get()))?;
        self.put_replace_item(item)
    }

    /// Says on disk how far a replacement is.
    pub fn put_replace_item(&mut self, item: &DevReplaceItem) -> Result<(), TxnError> {
        self.put(TreeId::DEV, &[Change::put(REPLACE_KEY, item.as_bytes().to_vec())])
    }

    /// Takes a device out of the volume that no chunk is on. When this is durable, its mark may be wiped.
    ///
    /// # Errors
    /// A chunk is on it, or it is the last: nothing has changed then.
    pub fn remove_device(&mut self, devid: DevId) -> Result<DetachedDevice, TxnError> {
        let inner = self.inner();
        let held = inner.growth.lock_chunk_alloc();
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
