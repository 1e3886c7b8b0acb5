//! Which address an allocation gets.
//!
//! 1. The goal says where to begin: a stream goes on where it ended; a stream nobody has seen begins where the last
//!    new one of its lane did end, so that small files written one after the other lie side by side; a stream that finds its
//!    continuation taken leaves a few [`STRETCH_LEN`]s to whoever took it, so that two streams do not interleave piece by
//!    piece. Tree blocks go on where the last tree blocks of their lane ended.
//! 2. The goal's group is tried first, then groups from there going up and round, in [`Pass`]es of falling
//!    expectations: for an exact power of two, groups whose longest run surely holds it; for other lengths first those
//!    whose *average* run does; a few that may; order by order the best of the shorter runs; any.
//! 3. A group that another thread has locked or is loading is stepped over, except in the last pass, which waits.
//!
//! Lanes: there are several goals for what is new, as many as suit the number of processors. All threads begin in the first
//! lane; one that finds its goal's group busy is given another by its number, and its search begins behind that group. So
//! threads that disturb each other part, and the same calls, one after the other, get the same addresses on any machine:
//! no clock, thread number, number of processors or hash seed has a say in what nobody disturbs.
//!
//! Invariants: what is returned is inside one group, aligned, of a length between the least and the wanted one.
//!
//! Locks: the table (rank 18), then one group at a time (rank 20); neither while a group is loaded or waited for. Goals are
//! hints in atomic numbers.
//! Not here: whether the caller may have the space at all (`account`), how groups are loaded (`load`).

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU8, AtomicU64};

use oleo_format::{ByteLen, Logical};

use crate::deny::Ask;
use crate::group::{COUNT_UNKNOWN, Content, Group, GroupRef};
use crate::index::By;
use crate::runs::{Fit, ORDERS, order_of, order_sure};
use crate::space::{Inner, Space};
use crate::table::Table;
use crate::threads::{self, Apart};
use crate::{Grant, Kind, LoadError, Refusal, Reservation, Run};

/// Streams that are remembered. Two streams in one slot cost each other their place, nothing else.
const STREAM_SLOTS: usize = 256;

/// Goals for what is new: two for each processor, as threads that meet in one move at random.
const LANES_PER_PROCESSOR: usize = 2;

/// Threads that may have a lane of their own; more share.
const THREADS_TOLD_APART: usize = 64;

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

/// A stream's place. The two are read and written one by one: another stream's place for a moment harms nobody.
#[derive(Default)]
struct Stream {
    id: AtomicU64,
    /// Where its last allocation ended; 0 for a slot never used.
    at: AtomicU64,
}

/// Where allocations begin to look.
pub(crate) struct Goals {
    streams: Box<[Stream]>,
    /// Where the last new stream's allocation, or the last tree block, ended, by lane and kind; 0 for a lane never used.
    newest: Box<[Apart<[AtomicU64; 3]>]>,
    /// The lane of each thread, by number; 0 until it was disturbed.
    lanes: Box<[AtomicU8]>,
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
        Goals {
            streams: (0..STREAM_SLOTS).map(|_| Stream::default()).collect(),
            newest: (0..threads::spread() * LANES_PER_PROCESSOR).map(|_| Apart::default()).collect(),
            lanes: (0..THREADS_TOLD_APART).map(|_| AtomicU8::new(0)).collect(),
        }
    }

    fn slot(&self, kind: Kind, id: u64) -> &Stream {
        &self.streams[(mix(id ^ kind as u64) >> 32) as usize % STREAM_SLOTS]
    }

    fn lane(&self) -> usize {
        usize::from(self.lanes[threads::number() % THREADS_TOLD_APART].load(Relaxed)) % self.newest.len()
    }

    /// This thread was disturbed in its lane: in one of its own the next goal is another's less often. A thread that has one
    /// already stays there, and the lane goes where its next allocation ends.
    fn part(&self) {
        let (number, others) = (threads::number(), self.newest.len() - 1);
        if self.lane() == 0 && others > 0 {
            self.lanes[number % THREADS_TOLD_APART].store((1 + number % others) as u8, Relaxed);
        }
    }

    /// Where what is new begins.
    fn fresh(&self, kind: Kind) -> Aim {
        let newest = |lane: usize| self.newest[lane].0[kind as usize].load(Relaxed);
        let at = Some(newest(self.lane())).filter(|&at| at != 0).unwrap_or_else(|| newest(0));
        Aim { at, skip: 0, fresh: true }
    }

    fn aim(&self, kind: Kind, goal: Goal) -> Aim {
        match goal {
            Goal::Near(at) => Aim { at: at.0, skip: 0, fresh: false },
            Goal::Stream(id) => {
                let stream = self.slot(kind, id);
                let at = stream.at.load(Relaxed);
                if at != 0 && stream.id.load(Relaxed) == id {
                    // Not the same for all, or streams that collided once would collide again.
                    Aim { at, skip: STRETCH_LEN * (1 + (mix(id) >> 62)), fresh: false }
                } else {
                    self.fresh(kind)
                }
            }
        }
    }

    fn ended(&self, kind: Kind, goal: Goal, aim: Aim, at: u64) {
        if let Goal::Stream(id) = goal {
            let stream = self.slot(kind, id);
            stream.id.store(id, Relaxed);
            stream.at.store(at, Relaxed);
        }
        if aim.fresh {
            self.newest[self.lane()].0[kind as usize].store(at, Relaxed);
        }
    }
}

/// How much is expected of a group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Pass {
    /// It holds the whole length, or may.
    Whole,
    /// It holds less than the whole length, but the most there is.
    Best,
    /// Anything that will do, waiting for whoever is busy there.
    Any,
}

/// What came of a look into a group.
enum Visit {
    Taken(Run),
    Nothing,
    /// Another thread has it.
    Busy,
    /// Its runs are not known.
    Unloaded,
    /// What it has is held by a trimmer.
    Held,
}

impl Inner {
    /// Takes a run that fits from the groups there are.
    fn take(&self, kind: Kind, fit: &Fit, aim: Aim) -> Result<Option<Run>, LoadError> {
        let mut from = aim.at;
        match self.take_in_goal_group(kind, fit, aim)? {
            (Visit::Taken(run), _) => return Ok(Some(run)),
            (Visit::Busy, end) => {
                self.goals.part();
                from = end;
            }
            _ => {}
        }
        let sector = 1 << self.sector_shift;
        let sure = order_sure(fit.len + fit.align - fit.align.min(sector), self.sector_shift);
        let maybe = order_of(fit.len, self.sector_shift);
        let least = order_of(fit.min_len, self.sector_shift);
        let walk = |pass, by, visits_max| self.walk(kind, by, from, pass, fit, visits_max);
        // Of groups that hold an exact power of two none is better than another; other lengths leave a rest, which does
        // least harm where runs are long anyway.
        if !(fit.len >> self.sector_shift).is_power_of_two()
            && let Some(run) = walk(Pass::Whole, By::Average(sure), CHANCES_MAX)?
        {
            return Ok(Some(run));
        }
        // A top order is open-ended, so nothing is sure there.
        if let Some(run) = walk(Pass::Whole, By::Longest(sure), usize::MAX)? {
            return Ok(Some(run));
        }
        if maybe < sure
            && let Some(run) = walk(Pass::Whole, By::Longest(maybe), CHANCES_MAX)?
        {
            return Ok(Some(run));
        }
        if fit.min_len < fit.len {
            for order in (least..sure.max(least + 1).min(ORDERS)).rev() {
                if let Some(run) = walk(Pass::Best, By::Longest(order), CHANCES_MAX)? {
                    return Ok(Some(run));
                }
            }
        }
        let frees = || self.pool(kind).frees.load(SeqCst);
        for _ in 0..ROUNDS_MAX {
            let seen = frees();
            if let Some(run) = walk(Pass::Any, By::Longest(least), usize::MAX)? {
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

    /// The goal's group, and where it ends.
    fn take_in_goal_group(&self, kind: Kind, fit: &Fit, aim: Aim) -> Result<(Visit, u64), LoadError> {
        let find = |group: &Group, runs: &crate::runs::Runs| {
            let whole = Fit { min_len: fit.len, ..*fit };
            runs.find_at(aim.at, &whole).or_else(|| {
                let from = aim.at.saturating_add(aim.skip);
                runs.find_whole(if from < group.end { from } else { group.start }, fit, false)
            })
        };
        for _ in 0..2 {
            let table = self.tables.read();
            let Some(group) = table.group_of(aim.at).filter(|group| group.serves(kind)) else { break };
            let visit = self.visit(&table, group, false, &find);
            if !matches!(visit, Visit::Unloaded) {
                return Ok((visit, group.end));
            }
            let group = group.clone();
            drop(table);
            if !self.load(&group, false)? {
                break;
            }
        }
        Ok((Visit::Nothing, aim.at))
    }

    /// One pass over the groups that the index names, going up from `from` and round, once.
    fn walk(
        &self,
        kind: Kind,
        by: By,
        from: u64,
        pass: Pass,
        fit: &Fit,
        visits_max: usize,
    ) -> Result<Option<Run>, LoadError> {
        let wait = pass == Pass::Any;
        let find = |group: &Group, runs: &crate::runs::Runs| match pass {
            Pass::Whole => runs.find_whole(group.start, fit, false),
            Pass::Best => runs.find_best(fit, false),
            Pass::Any => runs.find_whole(group.start, fit, true).or_else(|| runs.find_best(fit, true)),
        };
        let mut table = self.tables.read();
        let mut first = table.slot_from(from);
        let mut at = first;
        let mut round = false;
        for _ in 0..visits_max {
            let next = table.next(kind, by, at, wait);
            let Some((slot, group)) = next.filter(|&(slot, _)| !round || slot < first) else {
                if round || first == 0 {
                    return Ok(None);
                }
                (at, round) = (0, true);
                continue;
            };
            let visit = self.visit(&table, group, wait, &find);
            if let Visit::Taken(run) = visit {
                return Ok(Some(run));
            }
            if matches!(visit, Visit::Nothing | Visit::Busy) {
                at = slot + 1;
                continue;
            }
            // What takes time is done without the table, which may be another one afterwards.
            let group: GroupRef = group.clone();
            drop(table);
            let again = match visit {
                Visit::Held => {
                    Self::wait_for_held(&group);
                    true
                }
                _ if !wait && group.count.load(SeqCst) == COUNT_UNKNOWN => {
                    self.learn_counts(kind, by, slot);
                    true
                }
                _ => self.load(&group, wait)?,
            };
            table = self.tables.read();
            first = table.slot_from(from);
            at = table.slot_from(group.start) + usize::from(!again);
        }
        Ok(None)
    }

    /// Looks into one group, and takes what `find` finds there.
    fn visit(
        &self,
        table: &Table,
        group: &GroupRef,
        wait: bool,
        find: &impl Fn(&Group, &crate::runs::Runs) -> Option<(u64, u64)>,
    ) -> Visit {
        let state = if wait { Some(group.state.lock()) } else { group.state.try_lock() };
        let Some(mut state) = state else { return Visit::Busy };
        if !state.is_open() {
            return Visit::Nothing;
        }
        state.recent = true;
        let runs = match &mut state.content {
            Content::Loaded(runs) => runs,
            Content::Loading if !wait => return Visit::Nothing,
            _ => return Visit::Unloaded,
        };
        let found = find(group, runs);
        match found.filter(|&(start, end)| Self::take_in(group, runs, start, end)) {
            Some((start, end)) => {
                self.refile(table, group, &mut state, 0);
                Visit::Taken(Run::between(start, end))
            }
            None if wait && state.sets().held.total() > 0 => Visit::Held,
            None => Visit::Nothing,
        }
    }

    /// Waits until something that is held in a group is let go. Whoever holds it only tells the devices about it.
    fn wait_for_held(group: &Group) {
        let mut state = group.state.lock();
        if state.sets().held.total() > 0 {
            group.changed.wait(&mut state);
        }
    }

    /// Takes a run for bytes that are committed already.
    fn take_committed(&self, want: &Want, fit: &Fit) -> Result<Run, Refusal> {
        if fit.len < fit.min_len {
            return Err(Refusal::NeedChunk(want.kind));
        }
        let aim = self.goals.aim(want.kind, want.goal);
        let run = self.take(want.kind, fit, aim)?.ok_or(Refusal::NeedChunk(want.kind))?;
        self.goals.ended(want.kind, want.goal, aim, run.end().0);
        Ok(run)
    }
}

impl Space {
    /// Takes a run of between `min_len` and `len` bytes, from space that is not promised to anybody.
    pub fn alloc(&self, want: &Want) -> Result<Grant, Refusal> {
        self.alloc_with(None, want)
    }

    /// The same against a promise: bytes that `hold` still has are used first and are reserved no longer.
    pub fn alloc_from(&self, hold: &Reservation, want: &Want) -> Result<Grant, Refusal> {
        self.alloc_with(Some(hold), want)
    }

    fn alloc_with(&self, hold: Option<&Reservation>, want: &Want) -> Result<Grant, Refusal> {
        let inner = &self.inner;
        inner.denials.check(Ask::Extent, want.kind)?;
        let sector = 1 << inner.sector_shift;
        let align = want.align.0.max(sector).next_power_of_two();
        let len = want.len.align_up(ByteLen(align)).0;
        let min_len = want.min_len.align_up(ByteLen(align)).0.clamp(align, len.max(align));
        let pool = inner.pool(want.kind);
        let claimed = hold.map_or(0, |hold| hold.claim(len));
        // Short of the least, the rest has to come from what nobody was promised.
        let more = if claimed == len {
            Some(0)
        } else {
            pool.commit_some(len - claimed, min_len.saturating_sub(claimed), sector)
        };
        let taken = match more {
            Some(more) => {
                let fit = Fit { len: (claimed + more) & !(align - 1), min_len, align };
                inner.take_committed(want, &fit)
            }
            None => Err(Refusal::NeedChunk(want.kind)),
        };
        // Bytes that were not used go back where they came from: into the promise first what it gave.
        let used = taken.as_ref().map_or(0, |run| run.len.0);
        let back = (claimed + more.unwrap_or(0) - used).min(claimed);
        if let Some(hold) = hold
            && claimed > 0
        {
            hold.left.fetch_add(back, SeqCst);
            pool.reserved.fetch_sub(claimed - back, SeqCst);
        }
        let rest = claimed + more.unwrap_or(0) - used - back;
        if rest > 0 {
            pool.uncommit(rest);
        }
        Ok(Grant { inner: self.share(), run: taken?, live: true })
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
        let before = out.len();
        let mut left = count as u64;
        while left > 0 {
            let fit = Fit { len: left * node, min_len: node, align: node };
            let aim = inner.goals.fresh(kind);
            let refusal = match inner.take(kind, &fit, aim) {
                Ok(Some(run)) => {
                    inner.goals.ended(kind, Goal::Near(run.start), aim, run.end().0);
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
        let group = inner.tables.read().group_of(run.start.0).cloned();
        let Some(group) = group.filter(|_| run.len.0 > 0) else { return Ok(false) };
        Ok(inner.with_loaded(&group, |table, state, inner| {
            let Content::Loaded(runs) = &mut state.content else { return false };
            let taken = Inner::take_in(&group, runs, run.start.0, run.end().0);
            if taken {
                if state.is_open() {
                    inner.pool_of(&group).overdraw(run.len.0);
                }
                inner.refile(table, &group, state, 0);
            }
            taken
        })?)
    }
}

#[cfg(test)]
mod tests;
