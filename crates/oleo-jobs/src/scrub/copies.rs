//! Stripes of chunks without parity: each is read in order, and every copy is looked at by itself.
//!
//! Normal path: (1) [`read_stripe`] takes a stripe slice by slice: what is in it (`plan`), joined over small holes into reads of a megabyte
//! ([`reads`]), which the thread of the device gives out; (2) whoever has time reads one and looks at the bytes ([`CopyRead::check`]); (3) what does not fit is counted, and healed
//! from another copy, or from what is offered from elsewhere ([`CopyRead::heal`]).
//!
//! Healing: a copy is overwritten only with bytes that fit, after a second look found it bad still. Nobody else can have been given the place:
//! the plan's reader is there. What was written is read again. What nothing is known of on a device that missed writes ([`Why::Stale`]) is made what
//! another device has; if none has it, it is named as what could not be healed, and the device does not become sound.

use std::sync::Arc;

use oleo_volume::{ChunkMap, ChunkStripes, Profile, STRIPE_LEN};

use super::DeviceScrub;
use super::buffers::{Buffer, READ_LEN};
use super::plan::{Fault, Fit, Kind, Live, Plan, Why};
use super::run::{Job, Run, Task};

/// Holes up to this length are read, too, bytes.
const HOLE_MAX: u64 = 64 << 10;
/// What a plan covers of a stripe, bytes.
const SLICE_LEN: u64 = 8 << 20;
/// What a plan covers of the chunk at most, bytes, except that it is a row at least.
const SLICE_LOGICAL_MAX: u64 = 64 << 20;

/// A part of an extent, and where it is in a stripe.
#[derive(Clone, Copy)]
pub(super) struct Placed {
    pub offset: u64,
    pub live: Live,
}

/// A read of a stripe, with what is in it.
pub(super) struct Read {
    pub offset: u64,
    pub len: u64,
    pub parts: Vec<Placed>,
}

/// How much of a stripe one plan covers.
pub(super) fn slice_len(map: &ChunkMap) -> u64 {
    let widest = SLICE_LOGICAL_MAX / map.data_stripes();
    (SLICE_LEN.min(widest) / STRIPE_LEN * STRIPE_LEN).max(STRIPE_LEN)
}

/// The runs of a chunk that lie in a range of a stripe, in its order: offset in the stripe, byte of the chunk, length.
fn runs(map: &ChunkMap, stripe: usize, from: u64, to: u64) -> Vec<(u64, u64, u64)> {
    let is_striped = matches!(map.profile, Profile::Raid0 | Profile::Raid10);
    let mut runs = Vec::new();
    let mut offset = from;
    while offset < to {
        let len = if is_striped { (STRIPE_LEN - offset % STRIPE_LEN).min(to - offset) } else { to - offset };
        if let Some(at) = map.logical_of(stripe, offset) {
            runs.push((offset, at, len.min(map.len.0 - at)));
        }
        offset += len;
    }
    runs
}

/// What is to be read of a range of a stripe. No read ends inside of a tree block.
fn reads(plan: &Plan, map: &ChunkMap, stripe: usize, from: u64, to: u64) -> Vec<Read> {
    let mut reads: Vec<Read> = Vec::new();
    for (offset, at, len) in runs(map, stripe, from, to) {
        let start = map.start.0 + at;
        for live in plan.live(start, start + len) {
            let mut rest = Placed { offset: offset + (live.at - start), live };
            while rest.live.len > 0 {
                let joined = reads.last_mut().filter(|last| {
                    let end = last.offset + last.len;
                    rest.offset >= end && rest.offset - end <= HOLE_MAX && rest.offset - last.offset < READ_LEN
                });
                let begun = joined.as_ref().map_or(rest.offset, |last| last.offset);
                let room = begun + READ_LEN - rest.offset;
                let is_block = matches!(live.extent.kind, Kind::Block { .. });
                let take = if is_block { rest.live.len } else { rest.live.len.min(room) };
                let part = Placed { live: Live { len: take, ..rest.live }, ..rest };
                match joined {
                    Some(last) => {
                        last.len = rest.offset + take - last.offset;
                        last.parts.push(part);
                    }
                    None => reads.push(Read { offset: rest.offset, len: take, parts: vec![part] }),
                }
                rest.offset += take;
                rest.live.at += take;
                rest.live.len -= take;
            }
        }
    }
    reads
}

/// Goes through a stripe from an offset on, and gives out what is to be read. Stops where the run does.
pub(super) fn read_stripe(run: &Run<'_>, task: &Task, chunk: ChunkStripes, stripe: usize, from: u64) {
    let chunk = Arc::new(chunk);
    let map = chunk.map().clone();
    let (mut from, end) = (from, map.stripe_bytes().0);
    while from < end && run.goes_on() {
        let to = (from + slice_len(&map)).min(end);
        let (low, high) = bounds(&map, stripe, from, to);
        if let Some(plan) = run.plan(low, high).map(Arc::new) {
            for read in reads(&plan, &map, stripe, from, to) {
                if !run.throttle().take(task.devid, read.len, &|| run.goes_on()) {
                    return;
                }
                chunk.will_read(stripe, read.offset, read.len);
                let end = map.physical(stripe, read.offset + read.len).0;
                let job = CopyRead { chunk: chunk.clone(), stripe, plan: plan.clone(), read };
                task.hand_on(run, task.devid, job, end);
            }
            task.pass(run, map.physical(stripe, to).0);
        } else {
            task.leave_out(run);
        }
        from = to;
    }
}

/// The addresses that may lie in a range of a stripe.
fn bounds(map: &ChunkMap, stripe: usize, from: u64, to: u64) -> (u64, u64) {
    let runs = runs(map, stripe, from, to);
    let low = runs.iter().map(|(_, at, _)| *at).min().unwrap_or(0);
    let high = runs.iter().map(|(_, at, len)| at + len).max().unwrap_or(0);
    (map.start.0 + low, map.start.0 + high)
}

/// Bytes of a stripe that are to be read.
pub(super) struct CopyRead {
    chunk: Arc<ChunkStripes>,
    stripe: usize,
    plan: Arc<Plan>,
    read: Read,
}

impl CopyRead {
    /// Looks at the bytes, and heals what does not fit. `failed`: they could not be read as a whole.
    fn check(&self, run: &Run<'_>, bytes: &mut [u8], failed: bool) {
        let (mut faults, mut counts) = (Vec::new(), DeviceScrub::default());
        for part in &self.read.parts {
            counts.add_live(&part.live);
            let from = (part.offset - self.read.offset) as usize;
            let bytes = &mut bytes[from..from + part.live.len as usize];
            let (chunk, stripe) = (&self.chunk, self.stripe);
            let mut read = |at: u64, unit: &mut [u8]| {
                !failed || chunk.read(stripe, part.offset + (at - part.live.at), unit).is_ok()
            };
            let before = faults.len();
            counts.no_csum += self.plan.check(run.volume(), &part.live, bytes, &mut read, &mut faults);
            if part.live.is_part_of_block() {
                run.look_at_straddler(&part.live, &mut counts);
            }
            // Whoever overwrites data in place must not meet us.
            if self.chunk.is_stale(self.stripe) && run.is_alone() {
                let outdated: Vec<Fault> = self.plan.outdated(&part.live, &faults[before..]).collect();
                faults.extend(outdated);
            }
        }
        for fault in &faults {
            counts.count(&fault.why, self.plan.sectors(fault.len));
            count_on_device(&self.chunk, self.stripe, &fault.why);
        }
        for fault in faults {
            let sectors = self.plan.sectors(fault.len);
            let place = self.chunk.map().physical(self.stripe, self.offset_of(&fault)).0;
            match self.heal(run, &fault) {
                // Nothing was known to be wrong with it.
                Healed::Yes if matches!(fault.why, Why::Stale) => {}
                Healed::Yes => {
                    counts.corrected_errors += sectors;
                    run.healed(self.chunk.devid(self.stripe), place, &fault);
                }
                Healed::NotAsked => {}
                Healed::No => {
                    counts.uncorrectable_errors += sectors;
                    run.unhealed(self.chunk.devid(self.stripe), place, &fault);
                }
            }
        }
        run.add(self.chunk.devid(self.stripe), &counts);
    }

    fn offset_of(&self, fault: &Fault) -> u64 {
        let map = self.chunk.map();
        map.piece(fault.at - map.start.0, fault.len).offset
    }

    /// The stripes with the other copies.
    fn others(&self, at: u64) -> impl Iterator<Item = usize> + use<> {
        let map = self.chunk.map();
        let piece = map.piece(at - map.start.0, 1);
        let mine = self.stripe;
        (piece.stripe..piece.stripe + piece.copies).filter(move |&stripe| stripe != mine)
    }

    /// The right bytes, if another copy or somebody else has them.
    fn good_bytes(&self, run: &Run<'_>, fault: &Fault) -> Option<Vec<u8>> {
        let offset = self.offset_of(fault);
        let mut bytes = vec![0; fault.len as usize];
        for stripe in self.others(fault.at) {
            if self.chunk.read(stripe, offset, &mut bytes).is_err() {
                continue;
            }
            match self.plan.fit_of(run.volume(), fault, &bytes) {
                Fit::Yes => return Some(bytes),
                // Without a checksum any copy is as good as another that can be read, unless it missed writes.
                // Whoever overwrites it in place must not meet us.
                Fit::Unknown if !self.chunk.is_stale(stripe) && run.is_alone() => return Some(bytes),
                // It is counted when its own turn comes.
                Fit::Unknown | Fit::No(_) => {}
            }
        }
        run.offered(&self.plan, fault)
    }

    fn heal(&self, run: &Run<'_>, fault: &Fault) -> Healed {
        let Some(good) = self.good_bytes(run, fault) else { return Healed::No };
        if !run.repairs() {
            return Healed::NotAsked;
        }
        self.overwrite(fault.at, &good)
    }

    /// Puts good bytes over a copy that is bad still.
    fn overwrite(&self, at: u64, good: &[u8]) -> Healed {
        let map = self.chunk.map();
        let offset = map.piece(at - map.start.0, good.len() as u64).offset;
        let mut there = vec![0; good.len()];
        if self.chunk.read(self.stripe, offset, &mut there).is_ok() && there == good {
            return Healed::Yes; // a reader was here before
        }
        if self.chunk.heal(self.stripe, offset, good).is_err()
            || self.chunk.read(self.stripe, offset, &mut there).is_err()
        {
            return Healed::No;
        }
        if there == good { Healed::Yes } else { Healed::No }
    }
}

impl Job for CopyRead {
    fn look(self: Box<Self>, run: &Run<'_>, buffer: &mut Buffer) -> bool {
        let bytes = buffer.of_len(self.read.len as usize);
        let failed = self.chunk.read(self.stripe, self.read.offset, bytes).is_err();
        self.check(run, bytes, failed);
        true
    }
}

/// Counts a fault on the device that has it. Reads that failed are counted where they fail.
pub(super) fn count_on_device(chunk: &ChunkStripes, stripe: usize, why: &Why) {
    match why {
        Why::Sum => chunk.count_bad(stripe),
        Why::Block(why) => chunk.count_bad_block(stripe, why),
        Why::Read | Why::Stale => {}
    }
}

/// What became of a fault.
pub(super) enum Healed {
    Yes,
    No,
    /// It could be.
    NotAsked,
}
