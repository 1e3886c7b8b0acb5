//! One chunk, stripe by stripe, for those who look at every copy and at parity: scrub.
//!
//! Nothing is verified here. What is written by [`ChunkStripes::heal`] goes round the latch: the volume continues if a bad sector stays bad.
//!
//! Locks: [`ChunkStripes::hold_row`] takes a row of a chunk with parity, before whose bytes are compared or healed.

use std::sync::Arc;

use oleo_format::{ByteLen, Corruption, DevId, Logical};
use oleo_lock::{MutexGuard, rank};

use crate::Volume;
use crate::batch::Batch;
use crate::error::VolumeError;
use crate::geometry::ChunkMap;
use crate::member::{Count, Standing};
use crate::table::Placed;

/// A chunk and the devices of its stripes, as they were when it was asked for.
pub struct ChunkStripes {
    volume: Arc<Volume>,
    placed: Placed,
}

/// While it lives, nobody else changes, rebuilds or compares this row.
#[must_use]
pub struct RowHeld<'v>(#[allow(dead_code, reason = "held")] MutexGuard<'v, rank::StripeRow, ()>);

/// A read of a stripe and its result.
#[derive(Debug)]
pub struct StripeRead<'a> {
    /// Which stripe.
    pub stripe: usize,
    /// Bytes from its start.
    pub offset: u64,
    /// Filled.
    pub buf: &'a mut [u8],
    /// The result.
    pub result: Result<(), VolumeError>,
}

impl<'a> StripeRead<'a> {
    /// A read to be done.
    pub fn new(stripe: usize, offset: u64, buf: &'a mut [u8]) -> StripeRead<'a> {
        StripeRead { stripe, offset, buf, result: Ok(()) }
    }
}

impl Volume {
    /// The chunk at an address, stripe by stripe.
    ///
    /// # Errors
    /// There is none.
    pub fn stripes_of(self: &Arc<Self>, at: Logical) -> Result<ChunkStripes, VolumeError> {
        Ok(ChunkStripes { volume: self.clone(), placed: self.placed(at)? })
    }

    /// A device that missed writes has got all of them now: it is as good as any, and the next commit gives it its superblock. Returns whether there
    /// was such a device.
    pub fn mark_sound(&self, devid: DevId) -> bool {
        let stale: Vec<_> = self.members_of(devid).into_iter().filter(|m| m.standing() == Standing::Stale).collect();
        stale.iter().for_each(|member| member.set_standing(Standing::Sound));
        !stale.is_empty()
    }
}

impl ChunkStripes {
    /// The chunk.
    pub fn map(&self) -> &Arc<ChunkMap> {
        &self.placed.map
    }

    /// The device of a stripe.
    pub fn devid(&self, stripe: usize) -> DevId {
        self.placed.on[stripe].devid
    }

    /// Whether the device of a stripe is there.
    pub fn is_present(&self, stripe: usize) -> bool {
        self.placed.on[stripe].is_readable()
    }

    /// Whether the device of a stripe missed writes: what has no checksum is believed of others first.
    pub fn is_stale(&self, stripe: usize) -> bool {
        self.placed.on[stripe].standing() == Standing::Stale
    }

    /// Says that this will be read soon.
    pub fn will_read(&self, stripe: usize, offset: u64, len: u64) {
        if let Some(device) = self.placed.on[stripe].plain() {
            device.will_read(self.placed.map.physical(stripe, offset).0, len);
        }
    }

    /// Reads a part of a stripe. A failure is counted.
    ///
    /// # Errors
    /// The device is missing or fails.
    pub fn read(&self, stripe: usize, offset: u64, buf: &mut [u8]) -> Result<(), VolumeError> {
        self.placed.on[stripe].read(self.placed.map.physical(stripe, offset), buf)
    }

    /// Reads parts of several stripes, devices in parallel. Failures are in the results, and counted.
    pub fn read_all(&self, reads: &mut [StripeRead<'_>]) {
        let mut batch = Batch::default();
        let mut failed = Vec::new();
        for (index, read) in reads.iter_mut().enumerate() {
            let member = &self.placed.on[read.stripe];
            match member.is_readable() {
                true => batch.add(member, self.placed.map.physical(read.stripe, read.offset).0, read.buf, index),
                false => failed.push((index, VolumeError::OnMissing { devid: member.devid })),
            }
        }
        let results = batch.run();
        for (index, result) in results {
            if let Err(e) = result {
                failed.push((index, self.placed.on[reads[index].stripe].read_failed(e)));
            }
        }
        for (index, e) in failed {
            reads[index].result = Err(e);
        }
    }

    /// Puts what is known to be right over parity that was read: what a record says of rows that were in flight.
    pub fn patch(&self, stripe: usize, offset: u64, bytes: &mut [u8]) {
        self.volume.rows.patch(self.devid(stripe), self.placed.map.physical(stripe, offset).0, bytes);
    }

    /// Counts bytes of a stripe that do not fit their checksum.
    pub fn count_bad(&self, stripe: usize) {
        self.placed.on[stripe].count(Count::Corruption);
    }

    /// Counts a tree block of a stripe that turned out bad.
    pub fn count_bad_block(&self, stripe: usize, why: &Corruption) {
        self.placed.on[stripe].count_corruption(why);
    }

    /// Whether a stripe may be written at all.
    pub fn is_writable(&self, stripe: usize) -> bool {
        let member = &self.placed.on[stripe];
        !self.volume.read_only() && !member.seed && member.plain().is_some_and(|device| !device.read_only())
    }

    /// Overwrites a part of a stripe with what belongs there. Of chunks with parity the caller has the row. A failure is counted.
    ///
    /// # Errors
    /// The device is missing, must not be written, or fails.
    pub fn heal(&self, stripe: usize, offset: u64, good: &[u8]) -> Result<(), VolumeError> {
        let member = &self.placed.on[stripe];
        if member.plain().is_some() && !self.is_writable(stripe) {
            return Err(VolumeError::ReadOnly);
        }
        member.heal(self.placed.map.physical(stripe, offset), good)
    }

    /// Waits until nobody else has a row of a chunk with parity.
    pub fn hold_row(&self, row: u64) -> RowHeld<'_> {
        RowHeld(self.volume.rows.lock_one(self.placed.map.start, row))
    }

    /// Whether it is known that nobody names any of these bytes of the chunk, and nobody will before they are written anew. Of chunks with
    /// parity it stays so while the caller has the row.
    pub fn is_free(&self, at: u64, len: u64) -> bool {
        self.volume.rows.is_free(self.placed.map.start + ByteLen(at), ByteLen(len))
    }
}
