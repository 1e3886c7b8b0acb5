//! Devices that come and go while the volume is open.
//!
//! Normal path of one that comes: (1) [`NewDevice::prepare`] wipes what could be taken for something of ours; (2) in a transaction,
//! [`Volume::attach`] makes it a member, and returns its item for the chunk tree; (3) the commit writes its superblock before those of the
//! others (`write`). Of one that goes: (1) no chunk is on it any more; (2) in a transaction that takes its item out, [`Volume::detach`];
//! (3) when that is durable, [`DetachedDevice::wipe`].
//!
//! Crash of (3) of the first: the device has a superblock of a generation that the others lack, and all that it names is durable. Of (3) of
//! the second: the device says that it is of the volume, which has no item for it: it is left out (`open`).
//! Not here: moving chunks away (`oleo-jobs`), items in trees (`oleo-txn`).

use std::sync::Arc;

use oleo_device::{Device, DeviceError, Zeroing};
use oleo_format::{ByteLen, DevId, DevItem, Key, SUPER_LEN, SUPER_OFFSETS};
use uuid::Uuid;

use crate::Volume;
use crate::carve::{DEVICE_HEAD_LEN, dev_item};
use crate::error::VolumeError;
use crate::member::Member;
use crate::places::Places;
use crate::supers::read_super;

/// Fewest bytes of a device: the part that no chunk uses, and a chunk of some use.
pub const NEW_DEVICE_MIN: u64 = DEVICE_HEAD_LEN + (16 << 20);
/// Where the magic number is in a superblock.
const MAGIC: std::ops::Range<usize> = 64..72;

/// A device that is ready to become part of a volume.
pub struct NewDevice {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) uuid: Uuid,
}

impl NewDevice {
    /// Wipes the places of superblocks and of what Oleo keeps at the beginning, and discards the rest, if that is wanted.
    ///
    /// # Errors
    /// It is too small, cannot be written to, or fails.
    pub fn prepare(device: Arc<dyn Device>, uuid: Uuid, discard: bool) -> Result<NewDevice, VolumeError> {
        let len = device.len();
        if len < NEW_DEVICE_MIN {
            let what =
                format!("{} as a device of a volume: it has {len} bytes, {NEW_DEVICE_MIN} are needed", device.name());
            return Err(VolumeError::Unsupported { what });
        }
        if device.read_only() {
            return Err(VolumeError::ReadOnly);
        }
        if discard {
            match device.discard(0, len) {
                Ok(()) | Err(DeviceError::Unsupported { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        device.write_zeroes(0, DEVICE_HEAD_LEN, Zeroing::default())?;
        for at in SUPER_OFFSETS.into_iter().filter(|at| at.saturating_add(SUPER_LEN as u64) <= len) {
            device.write_zeroes(at, SUPER_LEN as u64, Zeroing::default())?;
        }
        device.flush()?;
        Ok(NewDevice { device, uuid })
    }

    /// Its name.
    pub fn name(&self) -> String {
        self.device.name()
    }

    /// Its bytes.
    pub fn len(&self) -> ByteLen {
        ByteLen(self.device.len())
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.device.len() == 0
    }
}

/// A device that was part of the volume.
pub struct DetachedDevice(Option<Arc<dyn Device>>);

impl DetachedDevice {
    pub(crate) fn of(device: Option<Arc<dyn Device>>) -> DetachedDevice {
        DetachedDevice(device)
    }

    /// Takes the mark from its superblocks, so that nobody takes it for a device of the volume; all else stays, so that it can be told
    /// what it was. Call it when the volume on disk does without the device.
    ///
    /// # Errors
    /// It failed. The volume does not mind.
    pub fn wipe(&self) -> Result<(), VolumeError> {
        let Some(device) = &self.0 else { return Ok(()) };
        for at in SUPER_OFFSETS.into_iter().filter(|at| at.saturating_add(SUPER_LEN as u64) <= device.len()) {
            let mut bytes = vec![0; SUPER_LEN];
            device.read_at(at, &mut bytes)?;
            bytes[MAGIC].fill(0);
            device.write_at(at, &bytes)?;
        }
        Ok(device.flush()?)
    }
}

impl Volume {
    /// Makes a device a member, with the next free number; returns its number, and its item for the chunk tree. The caller makes sure that
    /// no chunk is made meanwhile, and commits.
    ///
    /// # Errors
    /// The volume cannot be written to.
    pub fn attach(&self, new: NewDevice) -> Result<(DevId, (Key, Vec<u8>)), VolumeError> {
        self.may_write()?;
        let mut members = self.members.write();
        let devid = members.iter().map(|member| member.devid.0).max().unwrap_or(0) + 1;
        let sectorsize = self.rules.sectorsize;
        let item = DevItem {
            devid: devid.into(),
            total_bytes: (new.device.len() / u64::from(sectorsize) * u64::from(sectorsize)).into(),
            io_align: sectorsize.into(),
            io_width: sectorsize.into(),
            sector_size: sectorsize.into(),
            uuid: new.uuid.into_bytes(),
            fsid: self.rules.fsid.into_bytes(),
            ..DevItem::default()
        };
        let member = Arc::new(Member::new(item, Some(new.device), false, 0));
        member.set_new();
        let item = dev_item(&member, 0);
        members.push(member);
        members.sort_by_key(|member| member.devid);
        Ok((DevId(devid), item))
    }

    /// The items of the devices of seeds, for the chunk tree of a volume that was made of them: each says the generation of the device's
    /// superblock, which readers of the volume compare (`btrfs_dev_item.generation` in the UAPI header: what is expected of the device).
    ///
    /// # Errors
    /// A superblock of a seed cannot be read.
    pub fn seed_items(&self) -> Result<Vec<(Key, Vec<u8>)>, VolumeError> {
        let members = self.members.read();
        let mut items = Vec::new();
        for member in members.iter().filter(|member| member.seed) {
            let Some(device) = member.plain() else { continue };
            member.item.lock().generation = read_super(device.as_ref())?.generation;
            items.push(dev_item(member, 0));
        }
        Ok(items)
    }

    /// Whether a device could go: no chunk is on it.
    ///
    /// # Errors
    /// There is no such device, a chunk is on it, or it is the last.
    pub fn can_detach(&self, devid: DevId) -> Result<(), VolumeError> {
        self.may_write()?;
        let members = self.members.read();
        let member = members.iter().find(|member| member.devid == devid).ok_or(VolumeError::OnMissing { devid })?;
        let others_are_sound = members.iter().any(|m| m.takes_chunks() && !Arc::ptr_eq(m, member));
        let end = self.chunks.read().places(devid).and_then(Places::end);
        if let Some(end) = end {
            let what = format!("removing device {devid} while there are chunks on it, up to {end}");
            return Err(VolumeError::Unsupported { what });
        }
        if !others_are_sound {
            return Err(VolumeError::Unsupported { what: format!("removing device {devid}, the last") });
        }
        Ok(())
    }

    /// Takes a device out of the volume; its superblock is not written any more. The caller makes sure that no chunk is made meanwhile.
    ///
    /// # Errors
    /// As [`can_detach`](Self::can_detach).
    pub fn detach(&self, devid: DevId) -> Result<DetachedDevice, VolumeError> {
        self.can_detach(devid)?;
        let mut members = self.members.write();
        let at = members.iter().position(|member| member.devid == devid).ok_or(VolumeError::OnMissing { devid })?;
        let member = members.remove(at);
        // A seed stays what it is, for others.
        Ok(DetachedDevice::of(member.plain().filter(|_| !member.seed)))
    }

    /// Whether reads prefer other copies to what is on a device, which may be rotten.
    ///
    /// # Errors
    /// There is no such device.
    pub fn avoid(&self, devid: DevId, avoided: bool) -> Result<(), VolumeError> {
        let members = self.members.read();
        let member = members.iter().find(|member| member.devid == devid).ok_or(VolumeError::OnMissing { devid })?;
        member.set_avoided(avoided);
        Ok(())
    }
}
