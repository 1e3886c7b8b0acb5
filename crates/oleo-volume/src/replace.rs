//! A device that takes another's place, while the volume is in use.
//!
//! Normal path: (1) [`Volume::set_target`]: from now on every write to the device goes to its target, too; superblocks as well, with
//! number 0; (2) what was there before is copied (`refill`); (3) [`Volume::finish_target`]; the next commit's `write_supers` makes the
//! target the device, while nobody writes: it gets the first superblock, with the number and UUID of the old one, which gets no
//! superblock any more; (4) [`ReplacedDevice::wipe`].
//!
//! Crash before the superblock of (3) is durable: the old device is the device. After it, before (4): two devices have the number, and the
//! newer one counts (`open`).
//! Errors: a target that fails is given up; the device stays.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use oleo_device::Device;
use oleo_format::DevId;

use crate::Volume;
use crate::attach::{DetachedDevice, NewDevice};
use crate::error::VolumeError;
use crate::member::Member;

/// A device that gave its place to another.
pub struct ReplacedDevice {
    /// The number that the other has now.
    pub devid: DevId,
    device: DetachedDevice,
}

impl ReplacedDevice {
    /// As [`DetachedDevice::wipe`].
    ///
    /// # Errors
    /// As there.
    pub fn wipe(&self) -> Result<(), VolumeError> {
        self.device.wipe()
    }
}

impl Volume {
    fn member(&self, devid: DevId) -> Result<Arc<Member>, VolumeError> {
        let members = self.members.read();
        members.iter().find(|m| m.devid == devid).cloned().ok_or(VolumeError::OnMissing { devid })
    }

    /// Has a new device get all that another gets.
    ///
    /// # Errors
    /// There is no such device, it has a target, or the new one is shorter.
    pub fn set_target(&self, devid: DevId, new: NewDevice) -> Result<(), VolumeError> {
        self.may_write()?;
        let member = self.member(devid)?;
        let (want, have) = (member.item.lock().total_bytes.get(), new.device.len());
        if have < want {
            let name = new.device.name();
            let what = format!("replacing device {devid}, which has {want} bytes, by {name}, which has {have}");
            return Err(VolumeError::Unsupported { what });
        }
        if member.seed || member.target().is_some() {
            let what = format!("replacing device {devid}, which is a seed or being replaced");
            return Err(VolumeError::Unsupported { what });
        }
        let _nobody_writes = self.copying.write();
        member.set_target(Some(new.device), true);
        Ok(())
    }

    /// The same of the device that was its target when the volume was in use before, if it was named when it was opened.
    ///
    /// # Errors
    /// There is no such device.
    pub fn resume_target(&self, devid: DevId) -> Result<bool, VolumeError> {
        let member = self.member(devid)?;
        let Some(target) = self.targets.lock().pop() else { return Ok(member.target().is_some()) };
        if target.len() < member.item.lock().total_bytes.get() {
            return Ok(false);
        }
        let _nobody_writes = self.copying.write();
        member.set_target(Some(target), false);
        Ok(true)
    }

    /// Whether a device has a target.
    pub fn has_target(&self, devid: DevId) -> bool {
        self.member(devid).is_ok_and(|member| member.target().is_some())
    }

    /// Whether parity was put in order when the volume was opened: a target may lack that.
    pub fn was_recovered(&self) -> bool {
        self.recovered
    }

    /// Takes the target away again; its mark is to be wiped.
    ///
    /// # Errors
    /// There is no such device.
    pub fn drop_target(&self, devid: DevId) -> Result<DetachedDevice, VolumeError> {
        let member = self.member(devid)?;
        let _nobody_writes = self.copying.write();
        let target = member.target();
        member.set_target(None, false);
        member.finishing.store(false, Ordering::SeqCst);
        Ok(DetachedDevice::of(target.map(|target| target as Arc<dyn Device>)))
    }

    /// With the next commit the target is the device.
    ///
    /// # Errors
    /// It has none.
    pub fn finish_target(&self, devid: DevId) -> Result<(), VolumeError> {
        let member = self.member(devid)?;
        if member.target().is_none() {
            return Err(VolumeError::OnMissing { devid });
        }
        member.finishing.store(true, Ordering::SeqCst);
        Ok(())
    }

    pub(crate) fn is_finishing(&self) -> bool {
        self.members.read().iter().any(|member| member.finishing.load(Ordering::SeqCst))
    }

    /// Targets that are finished are the devices from now on. Nobody writes meanwhile.
    pub(crate) fn exchange(&self) {
        for member in self.members.read().iter().filter(|member| member.finishing.swap(false, Ordering::SeqCst)) {
            // One that failed a moment ago is no target any more.
            if member.target().is_some() {
                let device = DetachedDevice::of(member.take_target());
                self.replaced.lock().push(ReplacedDevice { devid: member.devid, device });
            }
        }
    }

    /// Devices that gave their place to others, with the commits so far.
    pub fn take_replaced(&self) -> Vec<ReplacedDevice> {
        std::mem::take(&mut *self.replaced.lock())
    }
}
