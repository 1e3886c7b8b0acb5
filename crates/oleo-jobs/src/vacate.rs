//! Moves everything away from a device, or from the end of one.
//!
//! The groups that have a piece there are closed together and moved one after the other, the highest address first. What was moved when it
//! ends early, or a crash comes, stays moved.

use std::collections::BTreeSet;

use oleo_format::{ByteLen, DevId, Logical};
use oleo_fs::{Fs, errno};
use oleo_txn::Engine;

use crate::JobError;
use crate::unreadable::named;

/// The chunks that have a piece of a device behind `end`, by address.
pub(crate) fn behind(fs: &Fs, devid: DevId, end: ByteLen) -> BTreeSet<Logical> {
    let chunks = fs.engine().volume().chunks();
    let reaches = |chunk: &&std::sync::Arc<oleo_volume::ChunkMap>| {
        let mut stripes = chunk.stripes.iter().filter(|s| s.devid == devid);
        stripes.any(|s| s.offset.0 + chunk.stripe_bytes().0 > end.0)
    };
    chunks.iter().filter(reaches).map(|chunk| chunk.start).collect()
}

/// Groups that nothing may come into. Dropping opens those that are left.
struct Closed<'a> {
    engine: &'a Engine,
    groups: BTreeSet<Logical>,
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        for start in std::mem::take(&mut self.groups) {
            // One that is gone needs no opening; otherwise the volume can no longer be written.
            let _ = self.engine.open_group(start);
        }
    }
}

/// Whoever watches, and may stop it.
pub(crate) struct Watch<'w> {
    /// False: it is to stop.
    pub goes_on: &'w dyn Fn() -> bool,
    /// Called with how many groups are left: before each of them, and with 0 at the end.
    pub moved: &'w dyn Fn(u64),
}

/// Moves the groups that have a piece of a device behind `end`; returns how many. The caller keeps new chunks away from there.
pub(crate) fn empty(fs: &Fs, devid: DevId, end: ByteLen, watch: &Watch<'_>) -> Result<u64, JobError> {
    let engine = fs.engine();
    let groups = behind(fs, devid, end);
    // All are closed first, so that nothing moves into a group that is to be moved. Groups that cannot be closed yet
    // are closed when it is their turn.
    let mut closed = Closed { engine, groups: BTreeSet::new() };
    for start in groups.iter().rev() {
        if engine.space().group(*start).is_ok_and(|g| !g.read_only) && engine.close_group(*start)? {
            closed.groups.insert(*start);
        }
    }
    let mut moved = 0;
    let mut left = groups.len() as u64;
    for start in groups.into_iter().rev() {
        (watch.moved)(left);
        left -= 1;
        // A group that became empty may have been removed.
        if engine.space().group(start).is_err() {
            continue;
        }
        match engine.relocate_group(start, &|_| (watch.goes_on)()) {
            Ok(Some(_)) => moved += 1,
            Ok(None) => return Err(JobError::refused(errno::ECANCELED, "it was cancelled")),
            Err(error) => return Err(named(fs, error)),
        }
        closed.groups.remove(&start);
    }
    (watch.moved)(0);
    Ok(moved)
}
