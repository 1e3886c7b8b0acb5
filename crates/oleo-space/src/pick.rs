//! Which address an allocation gets.
//!
//! 1. The goal says where to begin: a stream goes on where it ended; a stream nobody has seen begins where the last
//!    new one did end, so that small files written one after the other lie side by side; a stream that finds its
//!    continuation taken leaves a few [`STRETCH_LEN`]s to whoever took it, so that two streams do not interleave piece by
//!    piece. Tree blocks go on where the last tree blocks ended.
//! 2. The goal's group is tried first, then groups from there going up and round, in [`Pass`]es of falling
//!    expectations: groups that surely hold the whole length; a few that may; the best of the shorter runs; any.
//! 3. A group that another thread has locked or is loading is stepped over, except in the last pass, which waits.
//!
//! The same calls from one thread get the same addresses, on any machine: the number of stream slots is fixed, and
//! no clock, thread number or hash seed has a say.
//!
//! Invariants: what is returned is inside one group, aligned, of a length between the least and the wanted one.
//!
//! Locks: one goal slot for a moment (rank 15), then one group at a time (rank 20).
//! Not here: whether the caller may have the space at all (`account`).

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use oleo_format::{ByteLen, Logical};
use parking_lot::Mutex;

use crate::deny::Ask;
use crate::group::{Content, GroupRef};
use crate::runs::{Fit, ORDERS, order_of, order_sure};
use crate::space::{Inner, Space};
use crate::{Grant, Kind, LoadError, Refusal, Reservation, Run};

/// Streams that are remembered. Two streams in one slot cost each other their place, nothing else.
const STREAM_SLOTS: usize = 256;

/// What a stream leaves free in front of it when another has taken its place.
const STRETCH_LEN: u64 = 8 << 20;

/// Groups looked into, in one pass, on the mere chance that they hold enough.
const CHANCES_MAX: usize = 8;

/// Turns of the last pass while others free and take: each turn is one in which somebody else got on.
const ROUNDS_MAX: usize = 1000;

/// Where an allocation would like to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Goal {
    /// Behind the last allocation of the same stream: a hash of whatever is written in sequence.
    Stream(u64),
    /// At or after an address.
    Near(Logical),
}

/// An allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Want {
    /// What for.
    pub kind: Kind,
    /// Bytes wanted.
    pub len: ByteLen,
    /// Bytes that will do, when no free run holds `len`.
    pub min_len: ByteLen,
    /// Start and length will be multiples of this power of two; the sector size at least.
    pub align: ByteLen,
    /// Where.
    pub goal: Goal,
}

#[derive(Clone, Copy, Default)]
struct Stream {
    id: u64,
    /// Where its last allocation ended; 0 for a slot never used.
    at: u64,
}

/// Where allocations begin to look.
pub(crate) struct Goals {
    streams: Box<[Mutex<Stream>]>,
    /// Where the last new stream's allocation, or the last tree block, ended, by kind.
    newest: [AtomicU64; 3],
}

/// Where one allocation begins to look.
#[derive(Clone, Copy)]
struct Aim {
    at: u64,
    /// Bytes to leave when `at` itself is taken.
    skip: u64,
    /// The stream is a new one.
    fresh: bool,
}

/// Spreads the bits of a stream's name upwards.
fn mix(id: u64) -> u64 {
    id.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Goals {
    pub(crate) fn new() -> Goals {
        Goals { streams: (0..STREAM_SLOTS).map(|_| Mutex::default()).collect(), newest: Default::default() }
    }

    fn slot(&self, kind: Kind, id: u64) -> &Mutex<Stream> {
        &self.streams[(mix(id ^ kind as u64) >> 32) as usize % STREAM_SLOTS]
    }

    fn aim(&self, kind: Kind, goal: Goal) -> Aim {
        match goal {
            Goal::Near(at) => Aim { at: at.0, skip: 0, fresh: false },
            Goal::Stream(id) => {
                let stream = *self.slot(kind, id).lock();
                if stream.at != 0 && stream.id == id {
                    // Not the same for all, or streams that collided once would collide again.
                    Aim { at: stream.at, skip: STRETCH_LEN * (1 + (mix(id) >> 62)), fresh: false }
                } else {
                    Aim { at: self.newest[kind as usize].load(SeqCst), skip: 0, fresh: true }
                }
            }
        }
    }

    fn ended(&self, kind: Kind, goal: Goal, aim: Aim, at: u64) {
        if let Goal::Stream(id) = goal {
            *self.slot(kind, id).lock() = Stream { id, at };
            if aim.fresh {
                self.newest[kind as usize].store(at, SeqCst);
            }
        }
    }
}

/// How much is expected of a group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Pass {
    /// It holds the whole length, says the index.
    Whole,
    /// It may hold the whole length.
    Maybe,
    /// It holds less than the whole length, but the most there is.
    Best,
    /// Anything that will do, waiting for whoever is busy there.
    Any,
}

impl Inner {
    /// Takes a run that fits from the groups there are.
    fn take(&self, kind: Kind, fit: &Fit, aim: Aim) -> Result<Option<Run>, LoadError> {
        if let Some(group) = self.group_of(aim.at)
            && group.serves(kind)
            && let Some(run) = self.take_in_goal_group(&group, fit, aim)?
        {
            return Ok(Some(run));
        }
        let sector = 1 << self.sector_shift;
        let sure = order_sure(fit.len + fit.align - fit.align.min(sector), self.sector_shift);
        let maybe = order_of(fit.len, self.sector_shift);
        let least = order_of(fit.min_len, self.sector_shift);
        let walk = |pass, order, visits_max| self.walk(kind, order, aim.at, pass, fit, visits_max);
        // A top order is open-ended, so nothing is sure there.
        if let Some(run) = walk(Pass::Whole, sure, usize::MAX)? {
            return Ok(Some(run));
        }
        if let Some(run) = walk(Pass::Maybe, maybe, CHANCES_MAX)? {
            return Ok(Some(run));
        }
        if fit.min_len < fit.len {
            for order in (least..sure.max(least + 1).min(ORDERS)).rev() {
                if let Some(run) = walk(Pass::Best, order, CHANCES_MAX)? {
                    return Ok(Some(run));
                }
            }
        }
        let frees = || self.pool(kind).frees.load(SeqCst);
        for _ in 0..ROUNDS_MAX {
            let seen = frees();
            if let Some(run) = walk(Pass::Any, least, usize::MAX)? {
                return Ok(Some(run));
            }
            // What became free behind our back, while what was in front of us was taken, is not to be missed: who has a
            // promise must not be refused.
            if frees() == seen {
                break;
            }
        }
        Ok(None)
    }

    fn take_in_goal_group(&self, group: &GroupRef, fit: &Fit, aim: Aim) -> Result<Option<Run>, LoadError> {
        let Some(state) = group.state.try_lock() else { return Ok(None) };
        let Some(mut state) = self.load(group, state, false)? else { return Ok(None) };
        let state = &mut *state;
        let Content::Loaded(runs) = &mut state.content else { return Ok(None) };
        if state.read_only || state.removed {
            return Ok(None);
        }
        let whole = Fit { min_len: fit.len, ..*fit };
        let found = runs.find_at(aim.at, &whole).or_else(|| {
            let from = aim.at.saturating_add(aim.skip);
            runs.find_whole(if from < group.end { from } else { group.start }, fit, false)
        });
        let taken = found.filter(|&(start, end)| self.take_in(group, runs, start, end));
        if taken.is_some() {
            self.refile(group, state, 0);
        }
        Ok(taken.map(|(start, end)| Run::between(start, end)))
    }

    /// One pass over the groups whose longest run has at least `order`, going up from `from` and round, once.
    fn walk(
        &self,
        kind: Kind,
        order: usize,
        from: u64,
        pass: Pass,
        fit: &Fit,
        visits_max: usize,
    ) -> Result<Option<Run>, LoadError> {
        let first = self.table.read().slot_from(from);
        let mut at = first;
        let mut round = false;
        for _ in 0..visits_max {
            let next = self.table.read().next(kind, order, at, pass == Pass::Any);
            let next = next.filter(|&(slot, _)| !round || slot < first);
            match next {
                Some((slot, group)) => {
                    at = slot + 1;
                    if let ControlFlow::Break(run) = self.visit(&group, pass, fit)? {
                        return Ok(Some(run));
                    }
                }
                None if round || first == 0 => return Ok(None),
                None => (at, round) = (0, true),
            }
        }
        Ok(None)
    }

    fn visit(&self, group: &GroupRef, pass: Pass, fit: &Fit) -> Result<ControlFlow<Run>, LoadError> {
        let wait = pass == Pass::Any;
        let state = if wait { Some(group.state.lock()) } else { group.state.try_lock() };
        let Some(state) = state else { return Ok(ControlFlow::Continue(())) };
        let Some(mut guard) = self.load(group, state, wait)? else { return Ok(ControlFlow::Continue(())) };
        loop {
            let state = &mut *guard;
            let Content::Loaded(runs) = &mut state.content else { return Ok(ControlFlow::Continue(())) };
            if state.read_only || state.removed {
                return Ok(ControlFlow::Continue(()));
            }
            let found = match pass {
                Pass::Whole | Pass::Maybe => runs.find_whole(group.start, fit, false),
                Pass::Best => runs.find_best(fit, false),
                Pass::Any => runs.find_whole(group.start, fit, true).or_else(|| runs.find_best(fit, true)),
            };
            let taken = found.filter(|&(start, end)| self.take_in(group, runs, start, end));
            if let Some((start, end)) = taken {
                self.refile(group, state, 0);
                return Ok(ControlFlow::Break(Run::between(start, end)));
            }
            if !wait || state.held.total() == 0 {
                return Ok(ControlFlow::Continue(()));
            }
            // Whoever holds what is free here only tells the devices about it.
            group.changed.wait(&mut guard);
        }
    }

    /// Takes a run for bytes already committed as reserved; turns as many of them into used ones. What was claimed and
    /// not needed stays reserved, and its length is returned beside the run.
    fn take_claimed(&self, want: &Want, fit: &Fit, claimed: u64) -> Result<(Run, u64), Refusal> {
        if fit.len < fit.min_len {
            return Err(Refusal::NeedChunk(want.kind));
        }
        let aim = self.goals.aim(want.kind, want.goal);
        let run = self.take(want.kind, fit, aim)?.ok_or(Refusal::NeedChunk(want.kind))?;
        self.goals.ended(want.kind, want.goal, aim, run.end().0);
        self.pool(want.kind).reserved.fetch_sub(run.len.0, SeqCst);
        Ok((run, claimed - run.len.0))
    }
}

impl Space {
    /// Takes a run of between `min_len` and `len` bytes, from space that is not promised to anybody.
    pub fn alloc(&self, want: &Want) -> Result<Grant, Refusal> {
        let hold = Reservation { inner: self.inner.clone(), kind: want.kind, left: AtomicU64::new(0) };
        self.alloc_from(&hold, want)
    }

    /// The same against a promise: bytes that `hold` still has are used first and are reserved no longer.
    pub fn alloc_from(&self, hold: &Reservation, want: &Want) -> Result<Grant, Refusal> {
        let inner = &self.inner;
        inner.denials.check(Ask::Extent, want.kind)?;
        let sector = 1 << inner.sector_shift;
        let align = want.align.0.max(sector).next_power_of_two();
        let len = want.len.align_up(ByteLen(align)).0;
        let min_len = want.min_len.align_up(ByteLen(align)).0.clamp(align, len.max(align));
        let mut claimed = hold.claim(len);
        let more = len - claimed;
        if more > 0 {
            // Short of the least, the rest has to come from what nobody was promised.
            match inner.reserve_some(want.kind, more, min_len.saturating_sub(claimed)) {
                Ok(got) => claimed += got,
                Err(refusal) => {
                    hold.left.fetch_add(claimed, SeqCst);
                    return Err(refusal);
                }
            }
        }
        let fit = Fit { len: claimed & !(align - 1), min_len, align };
        match inner.take_claimed(want, &fit, claimed) {
            Ok((run, rest)) => {
                // Bytes that came from outside the promise go back there, not into the promise.
                self.settle_rest(hold, rest, len - more);
                Ok(Grant { inner: inner.clone(), run, live: true })
            }
            Err(refusal) => {
                self.settle_rest(hold, claimed, len - more);
                Err(refusal)
            }
        }
    }

    /// `rest` reserved bytes were not used: up to `from_hold` of them are the promise's, others nobody's.
    fn settle_rest(&self, hold: &Reservation, rest: u64, from_hold: u64) {
        let back = rest.min(from_hold);
        hold.left.fetch_add(back, SeqCst);
        if rest > back {
            self.inner.unreserve(hold.kind, rest - back);
        }
    }

    /// Takes `count` tree blocks of the node size, appends their addresses to `out`: in one run where one is long
    /// enough, else in the longest there are. Nothing is taken when not all can be had.
    ///
    /// This is for a commit, which must go on: it takes free space even if it was promised to others. What the caller
    /// had promised to itself it gives up ([`Reservation::give_up`]) or lets [`Space::alloc_blocks_from`] convert.
    pub fn alloc_blocks(&self, kind: Kind, count: usize, out: &mut Vec<Logical>) -> Result<(), Refusal> {
        let inner = &self.inner;
        inner.denials.check(Ask::Blocks, kind)?;
        inner.pool(kind).overdraw(count as u64 * inner.nodesize);
        let taken = self.take_blocks(kind, count, out);
        if taken.is_err() {
            inner.pool(kind).uncommit(count as u64 * inner.nodesize);
        }
        taken
    }

    /// The same against a promise: bytes that `hold` still has are reserved no longer, only the rest is overdrawn.
    pub fn alloc_blocks_from(&self, hold: &Reservation, count: usize, out: &mut Vec<Logical>) -> Result<(), Refusal> {
        let inner = &self.inner;
        inner.denials.check(Ask::Blocks, hold.kind)?;
        let pool = inner.pool(hold.kind);
        let need = count as u64 * inner.nodesize;
        let claimed = hold.claim(need);
        pool.overdraw(need - claimed);
        let taken = self.take_blocks(hold.kind, count, out);
        if taken.is_ok() {
            pool.reserved.fetch_sub(claimed, SeqCst);
        } else {
            pool.uncommit(need - claimed);
            hold.left.fetch_add(claimed, SeqCst);
        }
        taken
    }

    /// Takes blocks whose bytes are committed already. On refusal all are free again, and still committed.
    fn take_blocks(&self, kind: Kind, count: usize, out: &mut Vec<Logical>) -> Result<(), Refusal> {
        let inner = &self.inner;
        let node = inner.nodesize;
        let newest = &inner.goals.newest[kind as usize];
        let before = out.len();
        let mut left = count as u64;
        while left > 0 {
            let fit = Fit { len: left * node, min_len: node, align: node };
            let aim = Aim { at: newest.load(SeqCst), skip: 0, fresh: true };
            let refusal = match inner.take(kind, &fit, aim) {
                Ok(Some(run)) => {
                    newest.store(run.end().0, SeqCst);
                    out.extend((0..run.len.0 / node).map(|i| Logical(run.start.0 + i * node)));
                    left -= run.len.0 / node;
                    continue;
                }
                Ok(None) => Refusal::NeedChunk(kind),
                Err(error) => Refusal::Load(error),
            };
            for at in out.drain(before..) {
                inner.pool(kind).overdraw(node);
                inner.put_back(Run::new(at, ByteLen(node)));
            }
            return Err(refusal);
        }
        Ok(())
    }

    /// Takes exactly `run`, if it is free; for addresses that something outside names. The bytes are overdrawn.
    pub fn claim(&self, run: Run) -> Result<bool, Refusal> {
        let inner = &self.inner;
        let Some(group) = inner.group_of(run.start.0) else { return Ok(false) };
        let state = group.state.lock();
        let Some(mut state) = inner.load(&group, state, true)? else { return Ok(false) };
        let state = &mut *state;
        let Content::Loaded(runs) = &mut state.content else { return Ok(false) };
        let taken = run.len.0 > 0 && inner.take_in(&group, runs, run.start.0, run.end().0);
        if taken {
            if !state.read_only && !state.removed {
                inner.pool_of(&group).overdraw(run.len.0);
            }
            inner.refile(&group, state, 0);
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests;
