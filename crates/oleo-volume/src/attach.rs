//! Devices that come and go while the volume is open.
//!
//! Normal path of one that comes: (1) [`Candidate::prepare`] wipes what could be taken for something of ours, once nothing else is in the
//! way; (2) in a transaction, [`Volume::attach`] makes it a member, and returns its item for the chunk tree; (3) the commit writes its superblock before those of the
//! others (`write`). Of one that goes: (1) no chunk is on it any more; (2) in a transaction that takes its item out, [`Volume::detach`];
//! (3) when that is durable, [`DetachedDevice::wipe`].
//!
//! Crash of (3) of the first: the device has a superblock of a generation that the others lack, and all that it names is durable. Of (3) of
//! the second: the device says that it is of the volume, which has no item for it: it is left out (`open`).
//! Not here: moving chunks away (`oleo-jobs`), items in trees (`oleo-txn`).

use std::sync::Arc;

use oleo_device::{Device, DeviceError, Zeroing};
use oleo_format::{DevId, DevItem, Key, SUPER_LEN, super_offsets};
use uuid::Uuid;

use crate::Volume;
use crate::carve::{DEVICE_HEAD_LEN, dev_item};
use crate::error::VolumeError;
use crate::member::Member;
use crate::places::Places;

/// Fewest bytes of a device: the part that no chunk uses, and a chunk of some use.
pub const NEW_DEVICE_MIN: u64 = DEVICE_HEAD_LEN + (16 << 20);
/// Where the magic number is in a superblock.
const MAGIC: std::ops::Range<usize> = 64..72;

/// A device that is to become part of a volume, as it was found.
pub struct Candidate {
    pub(crate) device: Arc<dyn Device>,
    uuid: Uuid,
    discard: bool,
}

/// A device that is ready to become part of a volume.
pub struct NewDevice {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) uuid: Uuid,
}

impl Candidate {
    /// It will have this UUID. `discard`: all of it, when it is prepared. Nothing is done to it yet.
    ///
    /// # Errors
    /// It is too small, or cannot be written to.
    pub fn new(device: Arc<dyn Device>, uuid: Uuid, discard: bool) -> Result<Candidate, VolumeError> {
        let len = device.len();
        if len < NEW_DEVICE_MIN {
            let what =
                format!("{} as a device of a volume: it has {len} bytes, {NEW_DEVICE_MIN} are needed", device.name());
            return Err(VolumeError::Unsupported { what });
        }
        if device.read_only() {
            return Err(VolumeError::ReadOnly);
        }
        Ok(Candidate { device, uuid, discard })
    }

    /// Wipes the places of superblocks and of what Oleo keeps at the beginning, and discards the rest, if that is wanted.
    ///
    /// # Errors
    /// It fails.
    pub fn prepare(self) -> Result<NewDevice, VolumeError> {
        let Candidate { device, uuid, discard } = self;
        let len = device.len();
        if discard {
            match device.discard(0, len) {
                Ok(()) | Err(DeviceError::Unsupported { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        device.write_zeroes(0, DEVICE_HEAD_LEN, Zeroing::default())?;
        for at in super_offsets(len) {
            device.write_zeroes(at, SUPER_LEN as u64, Zeroing::default())?;
        }
        device.flush()?;
        Ok(NewDevice { device, uuid })
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
        for at in super_offsets(device.len()) {
            let mut bytes = vec![0; SUPER_LEN];
            device.read_at(at, &mut bytes)?;
            bytes[MAGIC].fill(0);
            device.write_at(at, &bytes)?;
        }
        Ok(device.flush()?)
    }
}

impl Volume {
    /// The number that the next device has.
    fn free_devid(&self) -> Result<DevId, VolumeError> {
        let last = self.members.read().iter().map(|member| member.devid.0).max().unwrap_or(0);
        let none = || VolumeError::Unsupported { what: format!("another device: the last has the number {last}") };
        last.checked_add(1).map(DevId).ok_or_else(none)
    }

    /// Whether a device could be added.
    ///
    /// # Errors
    /// The volume cannot be written to, or there is no number for it.
    pub fn can_attach(&self) -> Result<(), VolumeError> {
        self.may_write()?;
        self.free_devid().map(drop)
    }

    /// Makes a device a member, with the next free number; returns its number, and its item for the chunk tree. The caller makes sure that
    /// no chunk is made meanwhile, and commits.
    ///
    /// # Errors
    /// As [`can_attach`](Self::can_attach).
    pub fn attach(&self, new: NewDevice) -> Result<(DevId, (Key, Vec<u8>)), VolumeError> {
        self.may_write()?;
        let devid = self.free_devid()?;
        let sectorsize = self.rules.sectorsize;
        let item = DevItem {
            devid: devid.0.into(),
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
        let mut members = self.members.write();
        members.push(member);
        members.sort_by_key(|member| member.devid);
        Ok((devid, item))
    }

    /// The items of the devices of seeds, for the chunk tree of a volume that was made of them: each says the generation of the device's
    /// superblock, which readers of the volume compare (`btrfs_dev_item.generation` in the UAPI header: what is expected of the device).
    pub fn seed_items(&self) -> Vec<(Key, Vec<u8>)> {
        let members = self.members.read();
        let there = members.iter().filter(|member| member.seed && member.is_readable());
        let item = |member: &Arc<Member>| {
            member.item.lock().generation = member.found.0.into();
            dev_item(member, 0)
        };
        there.map(item).collect()
    }

    /// Whether a device could go: no chunk is on it, and it is not the last.
    fn can_detach(&self, members: &[Arc<Member>], devid: DevId) -> Result<(), VolumeError> {
        self.may_write()?;
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
    /// There is no such device, a chunk is on it, or it is the last.
    pub fn detach(&self, devid: DevId) -> Result<DetachedDevice, VolumeError> {
        let mut members = self.members.write();
        self.can_detach(&members, devid)?;
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
