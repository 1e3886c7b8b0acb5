//! A device that takes another's place, while the volume is in use.
//!
//! Normal path: (1) [`Volume::set_target`]: from now on every write to the device goes to its target, too; superblocks as well, with
//! number 0; (2) what was there before is copied (`refill`); (3) [`Volume::finish_target`]; the next commit's `write_supers` gives the
//! target the superblock of the device, with its number and UUID, and makes it the device, while nobody writes; the old one gets no
//! superblock any more; (4) [`ReplacedDevice::wipe`].
//!
//! Parity is of all bytes of a row, those that are of nobody included, so where a part of a row is written, the target gets those, too
//! (`Parts::free_rest`).
//!
//! Used again (volume closed between (1) and (3)): a target whose superblock leads elsewhere than the volume's missed something, nobody
//! knows what. It gets all writes, but no superblock until whoever copies has it on disk that all is to be copied again
//! ([`Volume::trust_target`]), so that it is found behind until then, however often a crash comes.
//!
//! Crash before the superblock of (3) is durable: the old device is the device. After it, before (4): two devices have the number, and the
//! newer one counts (`open`).
//! Errors: a target that fails is given up, at the superblock of (3), too; the device stays. If it fails later, the old device is not
//! wiped, though it is no device of the volume any more.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use oleo_device::Device;
use oleo_format::{DevId, SUPER_OFFSETS, SuperBlock};

use crate::Volume;
use crate::attach::{Candidate, DetachedDevice, NewDevice};
use crate::error::VolumeError;
use crate::member::{Member, Output, TargetIs};

/// A device that gave its place to another.
pub struct ReplacedDevice {
    /// The number that the other has now.
    pub devid: DevId,
    /// The other is sound. If it is not, this one may be the last that has everything.
    pub is_done_without: bool,
    device: DetachedDevice,
}

impl ReplacedDevice {
    /// As [`DetachedDevice::wipe`]. Nothing, if it is not done without.
    ///
    /// # Errors
    /// As there.
    pub fn wipe(&self) -> Result<(), VolumeError> {
        if self.is_done_without { self.device.wipe() } else { Ok(()) }
    }
}

/// A device that says that it is about to take another's place.
pub(crate) struct FoundTarget {
    pub device: Arc<dyn Device>,
    /// Its superblock leads elsewhere than the volume's.
    pub is_behind: bool,
}

impl Volume {
    fn member(&self, devid: DevId) -> Result<Arc<Member>, VolumeError> {
        let members = self.members.read();
        members.iter().find(|m| m.devid == devid).cloned().ok_or(VolumeError::OnMissing { devid })
    }

    /// Whether a device can be replaced by another.
    ///
    /// # Errors
    /// There is no such device, it has a target, or the new one is shorter.
    pub fn check_target(&self, devid: DevId, new: &Candidate) -> Result<(), VolumeError> {
        self.check_target_device(devid, &*new.device)
    }

    fn check_target_device(&self, devid: DevId, new: &dyn Device) -> Result<(), VolumeError> {
        self.may_write()?;
        let member = self.member(devid)?;
        let (want, have) = (member.item.lock().total_bytes.get(), new.len());
        if have < want {
            let name = new.name();
            let what = format!("replacing device {devid}, which has {want} bytes, by {name}, which has {have}");
            return Err(VolumeError::Unsupported { what });
        }
        if member.seed || member.target().is_some() {
            let what = format!("replacing device {devid}, which is a seed or being replaced");
            return Err(VolumeError::Unsupported { what });
        }
        Ok(())
    }

    /// Has a new device get all that another gets.
    ///
    /// # Errors
    /// As [`check_target`](Self::check_target).
    pub fn set_target(&self, devid: DevId, new: NewDevice) -> Result<(), VolumeError> {
        self.check_target_device(devid, &*new.device)?;
        let member = self.member(devid)?;
        let _nobody_writes = self.targets_stay.write();
        member.set_target(new.device, TargetIs::New);
        self.has_targets.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// The same of the device that was its target when the volume was in use before, if it was named when it was opened.
    ///
    /// # Errors
    /// There is no such device.
    pub fn resume_target(&self, devid: DevId) -> Result<bool, VolumeError> {
        let member = self.member(devid)?;
        let Some(FoundTarget { device, is_behind }) = self.targets.lock().pop() else {
            return Ok(member.target().is_some());
        };
        if device.len() < member.item.lock().total_bytes.get() {
            return Ok(false);
        }
        // Parity that was put in order is in order on the devices alone.
        let is = if is_behind || self.recovered { TargetIs::Behind } else { TargetIs::Known };
        let _nobody_writes = self.targets_stay.write();
        member.set_target(device, is);
        self.has_targets.store(true, Ordering::SeqCst);
        Ok(true)
    }

    /// Whether a device has a target.
    pub fn has_target(&self, devid: DevId) -> bool {
        self.member(devid).is_ok_and(|member| member.target().is_some())
    }

    /// Whether the target of a device may lack something: it gets no superblock until [`trust_target`](Self::trust_target).
    pub fn target_is_behind(&self, devid: DevId) -> bool {
        self.member(devid).is_ok_and(|member| member.target_is_behind())
    }

    /// It is on disk that everything is to be copied to the target of a device again.
    ///
    /// # Errors
    /// There is no such device.
    pub fn trust_target(&self, devid: DevId) -> Result<(), VolumeError> {
        self.member(devid).map(|member| member.trust_target())
    }

    /// Takes the target away again; its mark is to be wiped.
    ///
    /// # Errors
    /// There is no such device.
    pub fn drop_target(&self, devid: DevId) -> Result<DetachedDevice, VolumeError> {
        let member = self.member(devid)?;
        let _nobody_writes = self.targets_stay.write();
        let target = member.drop_target();
        self.look_for_targets();
        Ok(DetachedDevice::of(target))
    }

    /// With the next commit the target is the device.
    ///
    /// # Errors
    /// It has none, or one that lacks something.
    pub fn finish_target(&self, devid: DevId) -> Result<(), VolumeError> {
        let member = self.member(devid)?;
        if member.target().is_none() || member.target_is_behind() {
            return Err(VolumeError::OnMissing { devid });
        }
        member.finishing.store(true, Ordering::SeqCst);
        Ok(())
    }

    pub(crate) fn is_finishing(&self) -> bool {
        self.members.read().iter().any(|member| member.finishing.load(Ordering::SeqCst))
    }

    /// Finds out whether some device has a target, after one was taken away. The caller has `targets_stay`, written.
    fn look_for_targets(&self) {
        let any = self.members.read().iter().any(|member| member.target().is_some());
        self.has_targets.store(any, Ordering::SeqCst);
    }

    /// Targets that are finished get `sb` as the devices that they are from now on. Nobody writes meanwhile. One that fails at that is none any more, and
    /// the device stays.
    pub(crate) fn exchange(&self, sb: &SuperBlock) -> Result<(), VolumeError> {
        let members = self.members.read().clone();
        let finishing = members.iter().filter(|member| member.finishing.swap(false, Ordering::SeqCst));
        // One that failed a moment ago is no target any more.
        let targets: Vec<Output> = finishing.filter_map(|member| member.target_output()).collect();
        let devices: Vec<_> = targets.iter().map(|target| target.member.plain_target()).collect();
        self.write_mirrors(sb, &SUPER_OFFSETS[..1], &targets, |target| target.member.settled.lock().next)?;
        self.flush_outputs(&targets)?;
        for (Output { member, .. }, target) in targets.into_iter().zip(devices) {
            if member.target().is_none() {
                // It may say that it is the device; if it cannot even be wiped, the next superblocks tell them apart.
                let _ = DetachedDevice::of(target).wipe();
                continue;
            }
            let device = DetachedDevice::of(member.take_target());
            self.replaced.lock().push(ReplacedDevice { devid: member.devid, is_done_without: true, device });
        }
        self.look_for_targets();
        Ok(())
    }

    /// Devices that gave their place to others, with the commits so far.
    pub fn take_replaced(&self) -> Vec<ReplacedDevice> {
        let mut replaced = std::mem::take(&mut *self.replaced.lock());
        for of in &mut replaced {
            of.is_done_without = !self.read_only() && self.member(of.devid).is_ok_and(|member| member.is_sound());
        }
        replaced
    }
}
