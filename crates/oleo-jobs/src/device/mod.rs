//! Devices that come and go, beside the users of the file system.
//!
//! Normal path of adding: the device becomes a member and its item is put into the chunk tree in one step, then a commit.
//! Of removing: (1) it is made sure that all profiles can be had without the device; (2) new chunks keep away from it, and all groups
//! with a piece on it are moved (`vacate`); (3) its items go and it is no member any more, in one step, then a commit; (4) its superblocks
//! lose their mark. A chunk that was being made when (2) began may still be placed there: (3) finds it, and (2) begins again.
//!
//! Locks: none. Nothing else moves groups meanwhile (`Balancer::exclusively`).
//! Crash or cancelling before (3): what was moved stays moved, and the device is part of the volume. After it, it is not.

mod replace;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use oleo_format::{ByteLen, DevId};
use oleo_fs::{Fs, errno};
use oleo_txn::devices::replace_state::{STARTED, SUSPENDED};
use oleo_volume::{Candidate, Profile};
use serde::{Deserialize, Serialize};

use crate::vacate::{Watch, behind, empty};
use crate::{Balancer, JobError};

pub use replace::{ReplaceState, ReplaceStatus, Replacer};

/// How often a device is emptied: each time but the first there was a chunk that was being made when it began.
const ROUNDS_MAX: u32 = 8;
/// How often whoever cancels looks whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What the removal of a device did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Removed {
    /// The device.
    pub devid: DevId,
    /// Block groups that were moved for that.
    pub groups: u64,
    /// Its mark was wiped; it is not where the device is missing or fails.
    pub wiped: bool,
}

/// What is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DeviceJob {
    /// The device that is being removed.
    pub removing: Option<DevId>,
    /// Block groups that were moved.
    pub done: u64,
    /// Those that are to be moved.
    pub left: u64,
}

/// The devices of one open file system.
pub struct Members {
    fs: Fs,
    balancer: Arc<Balancer>,
    /// The number of the device that is being removed; 0: none.
    removing: AtomicU64,
    cancelled: AtomicBool,
    done: AtomicU64,
    left: AtomicU64,
}

/// It is over, however it ended.
struct Ended<'a>(&'a Members);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.removing.store(0, Ordering::SeqCst);
    }
}

impl Members {
    /// For an open file system and its balances, which do not run beside.
    pub fn new(fs: &Fs, balancer: Arc<Balancer>) -> Members {
        Members {
            fs: fs.clone(),
            balancer,
            removing: AtomicU64::new(0),
            cancelled: AtomicBool::new(false),
            done: AtomicU64::new(0),
            left: AtomicU64::new(0),
        }
    }

    /// How it is.
    pub fn status(&self) -> DeviceJob {
        let removing = self.removing.load(Ordering::SeqCst);
        DeviceJob {
            removing: (removing != 0).then_some(DevId(removing)),
            done: self.done.load(Ordering::Relaxed),
            left: self.left.load(Ordering::Relaxed),
        }
    }

    /// Makes a device part of the volume; returns its number. It is on disk when this returns. Nothing is done to the device before all else is
    /// sure.
    ///
    /// # Errors
    /// A balance is under way, the volume cannot be written to, or the device fails.
    pub fn add(&self, new: Candidate) -> Result<DevId, JobError> {
        self.balancer.exclusively("adding a device", |_| {
            self.fs.engine().volume().can_attach()?;
            let new = new.prepare()?;
            let devid = self.fs.engine().stage(|staged| staged.add_device(new))?;
            self.fs.sync()?;
            Ok(devid)
        })
    }

    /// Moves everything away from a device and takes it out of the volume. `avoid_reading`: what is on it is read from other copies, as
    /// long as there are some.
    ///
    /// # Errors
    /// There is no such device, a profile cannot be had without it, there is no room for what is on it, it was cancelled, or a balance is
    /// under way.
    pub fn remove(&self, devid: DevId, avoid_reading: bool) -> Result<Removed, JobError> {
        self.balancer.exclusively("removing a device", |goes_on| {
            self.cancelled.store(false, Ordering::SeqCst);
            self.done.store(0, Ordering::Relaxed);
            self.left.store(0, Ordering::Relaxed);
            self.removing.store(devid.0, Ordering::SeqCst);
            let _ended = Ended(self);
            self.fs.sync()?;
            self.is_possible_without(devid)?;
            let volume = self.fs.engine().volume();
            volume.avoid(devid, avoid_reading).map_err(JobError::from)?;
            let removed = self.empty_and_detach(devid, &|| goes_on() && !self.cancelled.load(Ordering::SeqCst));
            if removed.is_err() {
                // It stays.
                let _ = volume.avoid(devid, false);
            }
            removed
        })
    }

    fn empty_and_detach(&self, devid: DevId, goes_on: &dyn Fn() -> bool) -> Result<Removed, JobError> {
        let (fs, none) = (&self.fs, ByteLen(0));
        let _kept = fs.engine().keep_free_behind(devid, none)?;
        let mut groups = 0;
        let moved = |left: u64| {
            let before = self.left.swap(left, Ordering::Relaxed);
            self.done.fetch_add(before.saturating_sub(left), Ordering::Relaxed);
        };
        for _ in 0..ROUNDS_MAX {
            groups += empty(fs, devid, none, &Watch { goes_on, moved: &moved })
                .map_err(|error| if error.errno() == errno::ENOSPC { no_room(devid) } else { error })?;
            // Space that data has moved from becomes free once the move is durable.
            fs.sync()?;
            match fs.engine().stage(|staged| staged.remove_device(devid)) {
                Ok(detached) => {
                    fs.sync()?;
                    return Ok(Removed { devid, groups, wiped: detached.wipe().is_ok() });
                }
                Err(_) if !behind(fs, devid, none).is_empty() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(JobError::refused(errno::EBUSY, format!("new chunks keep being placed on device {devid}")))
    }

    /// Refuses if a profile that is in use could not be had, or if the device is being replaced.
    fn is_possible_without(&self, devid: DevId) -> Result<(), JobError> {
        let volume = self.fs.engine().volume();
        let devices = volume.devices();
        if !devices.iter().any(|device| device.devid == devid) {
            return Err(JobError::refused(errno::ENODEV, format!("there is no device {devid}")));
        }
        let replaced = self.fs.engine().replace_item()?;
        let goes_on = |state: u64| matches!(state, STARTED | SUSPENDED);
        if replaced.is_some_and(|item| item.src_devid.get() == devid.0 && goes_on(item.replace_state.get())) {
            let text =
                format!("device {devid} is being replaced: `oleo replace resume` or `oleo replace cancel` first");
            return Err(JobError::refused(errno::EBUSY, text));
        }
        let stays =
            |d: &&oleo_volume::DeviceInfo| d.devid != devid && !d.seed && !d.missing && !d.failed && d.behind <= 1;
        let left = devices.iter().filter(stays).count();
        if left == 0 {
            return Err(JobError::refused(errno::EINVAL, format!("device {devid} is the last that can be written to")));
        }
        let profiles = volume.chunks().into_iter().filter_map(|chunk| Profile::of(chunk.flags));
        let impossible = profiles.filter(|profile| usize::from(profile.shape().devices_min) > left);
        let Some(profile) = impossible.max_by_key(|profile| profile.shape().devices_min) else { return Ok(()) };
        let min = profile.shape().devices_min;
        let text = format!(
            "{profile} needs {min} devices, and without device {devid} {left} would be left: add another, or convert what is {profile}"
        );
        Err(JobError::refused(errno::EINVAL, text))
    }

    /// Ends a removal that is under way, and waits until it has ended. The device stays; what was moved stays moved.
    ///
    /// # Errors
    /// None is under way.
    pub fn cancel(&self) -> Result<(), JobError> {
        if self.removing.load(Ordering::SeqCst) == 0 {
            return Err(JobError::refused(errno::ENOTCONN, "no device is being removed"));
        }
        self.cancelled.store(true, Ordering::SeqCst);
        while self.removing.load(Ordering::SeqCst) != 0 && self.cancelled.load(Ordering::SeqCst) {
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Asks a removal to end, without waiting.
    pub fn interrupt(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
    }
}

fn no_room(devid: DevId) -> JobError {
    let text = format!("device {devid} cannot be removed: there is no room on the others for what is on it");
    JobError::refused(errno::ENOSPC, text)
}
