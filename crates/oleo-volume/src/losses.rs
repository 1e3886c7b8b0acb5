//! Devices that fail while the volume is open, and whether it can do without them.
//!
//! A device whose write or flush failed has lost something, nobody knows what. Normal path: (1) whoever writes collects the failures of
//! all devices and hands them to [`Volume::bear`]; (2) if every chunk can do without the device, beside those that are lost already, it is
//! `Failed` from then on: left out of writes, reads and superblocks; the write counts as done; (3) the next commit is followed by another
//! ([`Volume::owes_commit`]), so that the device is two transactions behind when it comes back, and is not taken for one that a crash left
//! between two superblocks. If a chunk cannot do without it, the volume is poisoned, and the last transaction stays the newest.
//!
//! The target of a device (`replace`) that fails is given up, whatever chunks need, and commits follow in the same way: next time it is found
//! behind. Missing room below a device is no loss: the caller gets the error, and writes again.
//!
//! Invariants: at least one device is sound; what a chunk needs is on sound devices.
//! Locks: `losing`, so that one loss is counted before the next is borne. Crash before (3): see `docs/crash-model.md`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use oleo_device::{Device, DeviceError};
use oleo_format::{DevId, Logical};
use oleo_lock::{Mutex, rank};

use crate::Volume;
use crate::error::VolumeError;
use crate::geometry::ChunkMap;
use crate::member::{Member, Output, Standing};
use crate::table::{Placed, Table};

/// Commits after which a device that was left out cannot be taken for one that a crash left behind.
const COMMITS: u32 = 2;
/// Losses that are remembered until somebody asks: more than any volume has devices in practice.
const LOST_MAX: usize = 1024;

/// A write or flush that failed.
pub(crate) struct Failure {
    output: Output,
    error: DeviceError,
}

impl Failure {
    pub fn new(output: &Output, error: DeviceError) -> Failure {
        Failure { output: output.clone(), error }
    }

    /// Whether it only found no room.
    pub fn is_full(&self) -> bool {
        self.error.is_full()
    }
}

/// A device that failed, and that the volume does without.
#[derive(Clone, Debug)]
pub struct LostDevice {
    /// Its number; of a device that was to take another's place, that one's.
    pub devid: DevId,
    /// Its name.
    pub name: String,
    /// It was to take another's place.
    pub is_target: bool,
    /// What failed.
    pub error: DeviceError,
}

/// What was lost, and what is owed for it.
#[derive(Default)]
pub(crate) struct Losses {
    losing: Mutex<rank::DeviceLosses, Vec<LostDevice>>,
    count: AtomicU64,
    owed: AtomicU32,
}

impl Losses {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Commits have to show who was not there.
    pub fn owe(&self) {
        self.owed.store(COMMITS, Ordering::SeqCst);
    }

    /// A superblock was written; `before`: the losses when that began. One that came meanwhile may have had it.
    pub fn superblock_written(&self, before: u64) {
        if self.count() == before {
            let _ = self.owed.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |owed| owed.checked_sub(1));
        }
    }
}

/// Whether all bytes of a chunk are somewhere without the stripes that are lost.
pub(crate) fn bears(map: &ChunkMap, lost: impl Fn(usize) -> bool) -> bool {
    let (shape, stripes) = (map.profile.shape(), map.stripes.len());
    if shape.parities > 0 {
        return (0..stripes).filter(|&stripe| lost(stripe)).count() <= usize::from(shape.parities);
    }
    // Copies lie side by side.
    let copies = usize::from(shape.copies);
    (0..stripes).step_by(copies).all(|first| (first..stripes.min(first + copies)).any(|stripe| !lost(stripe)))
}

/// A chunk that cannot do without what is lost, and a device that it lacks.
pub(crate) fn not_borne(table: &Table, lost: impl Fn(&Arc<Member>) -> bool) -> Option<(Logical, DevId)> {
    // Neighbours are often on the same devices.
    let needs = |placed: &&Placed| !bears(&placed.map, |stripe| lost(&placed.on[stripe]));
    let placed = table.iter().find(needs)?;
    let device = placed.on.iter().find(|member| lost(member))?;
    Some((placed.map.start, device.devid))
}

impl Volume {
    /// Does without the devices that failed, if every chunk can.
    ///
    /// # Errors
    /// One cannot: nothing is written any more. Or a device has no room: nothing is lost.
    pub(crate) fn bear(&self, failures: Vec<Failure>) -> Result<(), VolumeError> {
        if failures.is_empty() {
            return Ok(());
        }
        let mut full = None;
        for Failure { output, error } in failures {
            // A full target must not keep the volume from going on.
            if error.is_full() && !output.is_target {
                full.get_or_insert(error);
                continue;
            }
            self.lose(&output, error)?;
        }
        full.map_or(Ok(()), |error| Err(error.into()))
    }

    fn lose(&self, output: &Output, error: DeviceError) -> Result<(), VolumeError> {
        let mut lost = self.losses.losing.lock();
        let member = &output.member;
        if output.is_target {
            // Another target may be there by now.
            if member.target().is_none_or(|now| !Arc::ptr_eq(&now, &output.device)) {
                return Ok(());
            }
            member.drop_target();
        } else {
            match member.standing() {
                Standing::Failed | Standing::Missing => return Ok(()),
                // What took its place was not there yet when this began.
                _ if member.any_device().is_none_or(|now| !Arc::ptr_eq(&now, &output.device)) => return Ok(()),
                Standing::Sound | Standing::Stale => {}
            }
            let others_are_sound =
                self.members.read().iter().any(|m| !m.seed && m.is_sound() && !Arc::ptr_eq(m, member));
            let needed = not_borne(&self.chunks.read(), |m| !m.is_sound() || Arc::ptr_eq(m, member));
            if !others_are_sound || needed.is_some() || self.poisoned.get().is_some() {
                return Err(self.stop(error));
            }
            member.set_standing(Standing::Failed);
        }
        self.losses.owe();
        self.losses.count.fetch_add(1, Ordering::SeqCst);
        if lost.len() < LOST_MAX {
            let name = output.device.name();
            lost.push(LostDevice { devid: member.devid, name, is_target: output.is_target, error });
        }
        Ok(())
    }

    /// The devices that failed since the volume was opened, or since this was last asked, and that it goes on without.
    pub fn take_lost(&self) -> Vec<LostDevice> {
        std::mem::take(&mut *self.losses.losing.lock())
    }

    /// Whether a commit is needed even if nothing else has changed: who was left out has to be seen to be behind.
    pub fn owes_commit(&self) -> bool {
        self.losses.owed.load(Ordering::SeqCst) > 0 && !self.read_only()
    }

    /// Whether it was opened to be used even if devices are missing.
    pub fn may_lack_devices(&self) -> bool {
        self.degraded
    }

    /// Whether a device is lost, so that chunks are placed on the others alone.
    pub fn is_degraded(&self) -> bool {
        self.members.read().iter().any(|member| !member.seed && !member.is_sound())
    }
}
