//! One block group: a stretch of the address space that a chunk backs, its free runs and its counts.
//!
//! ```text
//!             ┌──────────┐ an allocation looks inside ┌─────────┐ source answered ┌────────┐
//!  add_group ─► Unloaded ├────────────────────────────► Loading ├─────────────────► Loaded │
//!             └──▲───▲───┘                            └────┬────┘                 └───┬────┘
//!                │   └──────────── source failed ──────────┘                          │
//!                └───────────── idle, and the source says the same (`evict`) ─────────┘
//! ```
//!
//! Until it is loaded, a group is known by its summary (bytes used, number of free runs), which is enough to place it in
//! the index. Meanwhile `freed` collects what is freed and `pinned` what is pinned; when the source has
//! answered, the free runs are *source ∪ freed − pinned*, which is right whether the source read the state before or
//! after the commit in flight. An evicted group keeps its counts and its place in the index, which are exact.
//!
//! Most groups of a large volume are idle: they were never loaded, and nothing is pinned in them. Such a group is its
//! [`Group`] and nothing else; what only the others need is in a [`Live`]. Groups that are added together share one
//! piece of memory, a *block*, and have no reference counts of their own: a [`GroupRef`] keeps the block.
//!
//! Invariants: `free` is the sum of the runs and of what is held once loaded; no byte is in two of runs, `held`, `pinned`.
//! A removed group has no runs, and none are read.
//!
//! Locks: a group's `state` is held for a few steps at a time and never while the source is asked: the
//! loader marks the group `Loading`, unlocks it, asks, and comes back. Others skip it, or wait for `Wakeups`. The table
//! is taken before the state, never after.

use std::ops::Deref;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Weak};

use oleo_format::{BlockGroupFlags, ByteLen, Logical};
use oleo_lock::{Mutex, rank};

use crate::ranges::Ranges;
use crate::runs::{Fit, Rows, Runs, Wish, class_of};
use crate::{Kind, LoadError, Run};

/// Bytes of a row in each stripe (`BTRFS_STRIPE_LEN`).
pub(crate) const UNIT_LEN: u64 = 64 << 10;

/// What is known of a block group from the outside.
#[derive(Clone, Debug)]
pub struct GroupInfo {
    /// Where it starts.
    pub start: Logical,
    /// How long it is.
    pub len: ByteLen,
    /// What it is for (a mixed group has both data and metadata) and its profile.
    pub flags: BlockGroupFlags,
    /// Bytes used, as in its block group item.
    pub used: ByteLen,
    /// Bytes that nobody may have, as superblock mirrors lie there; the source leaves them out of what is free.
    pub excluded: ByteLen,
    /// The number of free runs, if it is known from the disk.
    pub free_extents: Option<u32>,
    /// Nothing is allocated from it.
    pub read_only: bool,
    /// Data bytes of a row, if it has parity; else 0. Rows are counted from its start.
    pub row_len: ByteLen,
}

/// The classes of lengths that a group's free runs have, a bit for each. Of a group whose runs are not known: one that is hoped for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Lengths(pub(crate) u64);

impl Lengths {
    pub(crate) const NONE: Lengths = Lengths(0);

    fn of(class: usize) -> Lengths {
        Lengths(1 << class)
    }

    /// Of `free` bytes in about `count` runs.
    fn hoped(free: u64, count: u64, sector_shift: u32) -> Lengths {
        if free >> sector_shift == 0 {
            return Lengths::NONE;
        }
        let average = free / count.max(1);
        // With one run, or two, there is nothing to hope for beyond what is known.
        let hope = if count <= 2 { 1 } else { HOPE };
        let longest = average.saturating_mul(hope).clamp(1 << sector_shift, free);
        // By powers of two: a hope is no measure.
        Lengths::of(class_of(1 << longest.ilog2(), sector_shift))
    }

    /// The class of the longest run, if there is any.
    pub(crate) fn longest(self) -> Option<usize> {
        (self.0 != 0).then(|| self.0.ilog2() as usize)
    }

    /// The longest of both alone: there is nothing to hope for below it that is not there.
    fn longest_of(self, other: Lengths) -> Lengths {
        Lengths(self.0 | other.0).longest().map_or(Lengths::NONE, Lengths::of)
    }
}

/// A group's free runs, as far as they are known.
pub(crate) enum Content {
    /// Nobody has looked, or they were evicted.
    Unloaded,
    /// A thread is asking the source.
    Loading,
    /// All known.
    Loaded(Box<Runs>),
}

/// What is seldom there.
#[derive(Default)]
pub(crate) struct Sets {
    /// Freed while the runs were not known.
    pub(crate) freed: Ranges,
    /// Freed by transactions that are not durable.
    pub(crate) pinned: Ranges,
    /// Free, and taken aside by [`HeldRun`](crate::HeldRun)s.
    pub(crate) held: Ranges,
}

static NO_SETS: Sets = Sets { freed: Ranges::EMPTY, pinned: Ranges::EMPTY, held: Ranges::EMPTY };

/// What was given out in one turn ([`Space::turn`](crate::Space::turn)) of a group with rows: nothing on a device names it. It may be forgotten.
#[derive(Default)]
struct Granted {
    turn: u64,
    ranges: Ranges,
}

/// Ranges of [`Granted`] of one group; further ones are not noted.
const GRANTED_MAX: usize = 4096;

/// What a group has that is not idle.
struct Live {
    content: Content,
    sets: Sets,
    granted: Granted,
    /// Grows with each change of the runs.
    changes: u32,
    /// Bytes of memory that were counted for the runs.
    memory: u32,
    /// Somebody looked at the runs since the last sweep came by.
    recent: bool,
}

/// What a group's lock covers.
#[derive(Default)]
pub(crate) struct State(Option<Box<Live>>);

impl State {
    fn live(&mut self) -> &mut Live {
        self.0.get_or_insert_with(|| {
            let content = Content::Unloaded;
            let (sets, granted) = Default::default();
            Box::new(Live { content, sets, granted, changes: 0, memory: 0, recent: true })
        })
    }

    /// Gives up the memory if nothing is left to remember.
    fn rest(&mut self) {
        let idle = |live: &Live| matches!(live.content, Content::Unloaded) && live.sets.are_empty();
        if self.0.as_deref().is_some_and(idle) {
            debug_assert!(self.0.as_ref().is_some_and(|live| live.memory == 0), "memory of no runs is counted");
            self.0 = None;
        }
    }

    pub(crate) fn content(&self) -> &Content {
        self.0.as_ref().map_or(&Content::Unloaded, |live| &live.content)
    }

    /// The runs, if they are known.
    pub(crate) fn runs(&self) -> Option<&Runs> {
        match self.content() {
            Content::Loaded(runs) => Some(runs),
            Content::Unloaded | Content::Loading => None,
        }
    }

    /// The same, to change them.
    pub(crate) fn runs_mut(&mut self) -> Option<&mut Runs> {
        match &mut self.0.as_mut()?.content {
            Content::Loaded(runs) => Some(runs),
            Content::Unloaded | Content::Loading => None,
        }
    }

    /// Changes what is known of the runs; returns by how many bytes that changes what all runs take.
    pub(crate) fn set_content(&mut self, content: Content) -> i64 {
        let live = self.live();
        if !matches!(content, Content::Loaded(_)) {
            live.granted = Granted::default();
        }
        live.content = content;
        live.recent = true;
        let delta = self.count_memory();
        self.rest();
        delta
    }

    /// Brings the count of memory up to date; returns by how many bytes it has changed.
    pub(crate) fn count_memory(&mut self) -> i64 {
        let Some(live) = &mut self.0 else { return 0 };
        let now = match &live.content {
            Content::Loaded(runs) => u32::try_from(runs.memory() + live.granted.ranges.memory()).unwrap_or(u32::MAX),
            Content::Unloaded | Content::Loading => 0,
        };
        i64::from(now) - i64::from(std::mem::replace(&mut live.memory, now))
    }

    pub(crate) fn sets(&self) -> &Sets {
        self.0.as_ref().map_or(&NO_SETS, |live| &live.sets)
    }

    /// Changes the sets.
    pub(crate) fn with_sets<T>(&mut self, change: impl FnOnce(&mut Sets) -> T) -> T {
        let answer = change(&mut self.live().sets);
        self.rest();
        answer
    }

    /// Something on a device names a run, whoever had it before in this turn.
    pub(crate) fn forget_granted(&mut self, start: u64, end: u64) {
        if let Some(live) = &mut self.0 {
            live.granted.ranges.remove(start, end);
        }
    }

    /// Notes that a run was given out in a turn.
    pub(crate) fn note_granted(&mut self, turn: u64, start: u64, end: u64) {
        let Granted { turn: of, ranges } = &mut self.live().granted;
        if *of != turn {
            (*of, *ranges) = (turn, Ranges::EMPTY);
        }
        if ranges.count() < GRANTED_MAX {
            ranges.unite(start, end);
        }
    }

    /// Whether all of a run is free.
    pub(crate) fn is_free(&self, start: u64, end: u64) -> bool {
        self.runs().and_then(|runs| runs.at_or_after(start)).is_some_and(|(from, to)| from <= start && end <= to)
    }

    /// Whether all of a run was given out in a turn; `false` if that was forgotten.
    pub(crate) fn was_granted(&self, turn: u64, start: u64, end: u64) -> bool {
        let granted = self.0.as_ref().map(|live| &live.granted).filter(|granted| granted.turn == turn);
        granted
            .and_then(|granted| granted.ranges.at_or_after(start))
            .is_some_and(|(from, to)| from <= start && end <= to)
    }

    /// Differs if the runs have changed, while they are known.
    pub(crate) fn changes(&self) -> u32 {
        self.0.as_ref().map_or(0, |live| live.changes)
    }

    /// The runs have changed.
    pub(crate) fn changed(&mut self) {
        if let Some(live) = &mut self.0 {
            live.changes = live.changes.wrapping_add(1);
        }
    }

    /// Whether somebody looked at the runs since the last sweep came by.
    pub(crate) fn recent(&self) -> bool {
        self.0.as_ref().is_some_and(|live| live.recent)
    }

    pub(crate) fn set_recent(&mut self, recent: bool) {
        if let Some(live) = &mut self.0 {
            live.recent = recent;
        }
    }
}

pub(crate) struct Group {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) flags: BlockGroupFlags,
    /// Bytes that nobody may have.
    excluded: u32,
    /// Data units of a row; 0 without parity.
    row_units: u16,
    /// Nothing is allocated from it. Changed under `state`.
    pub(crate) read_only: AtomicBool,
    /// It is not in the table any more. Changed under `state`.
    pub(crate) removed: AtomicBool,
    pub(crate) state: Mutex<rank::GroupState, State>,
    /// As the index has them. Changed under `state`.
    lengths: AtomicU64,
    /// `used` was changed since the last drain.
    pub(crate) used_dirty: AtomicBool,
    /// The number of free runs as the disk or our own last look showed; see [`COUNT_UNKNOWN`], [`COUNT_UNPUBLISHED`].
    pub(crate) count: AtomicU32,
    /// Free bytes; an estimate until loaded. Changed under `state`.
    pub(crate) free: AtomicU64,
    /// Bytes used for the block group item.
    pub(crate) used: AtomicU64,
}

/// Nobody has asked how many free runs a group has.
pub(crate) const COUNT_UNKNOWN: u32 = u32::MAX;
/// Not known from the disk.
pub(crate) const COUNT_UNPUBLISHED: u32 = u32::MAX - 1;

/// How many times the average run the longest one is hoped to be, while only their number is known. Hoping costs a look
/// that corrects itself, once a group; not hoping leaves long runs unfound until nothing else is left.
const HOPE: u64 = 16;

impl Sets {
    fn are_empty(&self) -> bool {
        self.freed.total() + self.pinned.total() + self.held.total() == 0
    }
}

impl Group {
    pub(crate) fn new(info: &GroupInfo, free: Option<Vec<(u64, u64)>>, sector_shift: u32) -> Group {
        let runs = free.map(|runs| Box::new(Runs::from_sorted(Run::new(info.start, info.len), sector_shift, &runs)));
        let free = runs
            .as_ref()
            .map_or(info.len.0.saturating_sub(info.used.0).saturating_sub(info.excluded.0), |runs| runs.total());
        let mut state = State::default();
        if let Some(runs) = runs {
            state.live().content = Content::Loaded(runs);
        }
        let group = Group {
            start: info.start.0,
            end: info.start.0 + info.len.0,
            flags: info.flags,
            // Superblock mirrors: a few of 64 KiB.
            excluded: u32::try_from(info.excluded.0).unwrap_or(u32::MAX),
            row_units: u16::try_from(info.row_len.0 / UNIT_LEN).unwrap_or(0),
            read_only: AtomicBool::new(info.read_only),
            removed: AtomicBool::new(false),
            state: Mutex::new(state),
            lengths: AtomicU64::new(0),
            used_dirty: AtomicBool::new(false),
            count: AtomicU32::new(info.free_extents.unwrap_or(COUNT_UNKNOWN)),
            free: AtomicU64::new(free),
            used: AtomicU64::new(info.used.0),
        };
        let lengths = group.lengths_now(&group.state.lock(), 0, sector_shift);
        group.set_lengths(lengths);
        group
    }

    pub(crate) fn len(&self) -> u64 {
        self.end - self.start
    }

    pub(crate) fn run(&self) -> Run {
        Run::between(self.start, self.end)
    }

    pub(crate) fn serves(&self, kind: Kind) -> bool {
        self.flags.contains(kind.flag())
    }

    /// Whether something is allocated from the group. Changes under `state`.
    pub(crate) fn is_open(&self) -> bool {
        !self.read_only.load(SeqCst) && !self.is_removed()
    }

    /// Whether the table has forgotten it.
    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(SeqCst)
    }

    /// As the index has them.
    pub(crate) fn lengths(&self) -> Lengths {
        Lengths(self.lengths.load(SeqCst))
    }

    pub(crate) fn set_lengths(&self, lengths: Lengths) {
        self.lengths.store(lengths.0, SeqCst);
    }

    /// Bytes that became free, or no longer are. Under `state`, which is why this need not be one step.
    pub(crate) fn add_free(&self, delta: i64) {
        self.free.store(self.free.load(Relaxed).wrapping_add_signed(delta), Release);
    }

    pub(crate) fn info(&self) -> GroupInfo {
        let state = self.state.lock();
        let free_extents = match state.runs() {
            Some(runs) => u32::try_from(runs.count()).ok(),
            None => Some(self.count.load(SeqCst)).filter(|&count| count < COUNT_UNPUBLISHED),
        };
        GroupInfo {
            start: Logical(self.start),
            len: ByteLen(self.len()),
            flags: self.flags,
            used: ByteLen(self.used.load(SeqCst)),
            excluded: ByteLen(self.excluded.into()),
            free_extents,
            read_only: self.read_only.load(SeqCst),
            row_len: ByteLen(self.row_len()),
        }
    }

    /// Its rows, if it has parity.
    pub(crate) fn rows(&self) -> Option<Rows> {
        (self.row_units > 0).then_some(Rows { base: self.start, len: self.row_len() })
    }

    /// Data bytes of a row; 0 without parity.
    pub(crate) fn row_len(&self) -> u64 {
        u64::from(self.row_units) * UNIT_LEN
    }

    /// What is wanted, as it lies best here: what is at least as long as a row begins with one, if it may.
    pub(crate) fn fit(&self, fit: &Fit) -> Fit {
        let rows = self.rows().filter(|rows| fit.len >= rows.len);
        Fit { rows: rows.map(|rows| (rows, Wish::May)), ..*fit }
    }

    /// What is shorter than a row, at the start of a row that is free as a whole; `None` for all else.
    pub(crate) fn fresh_row(&self, fit: &Fit) -> Option<Fit> {
        let rows = self.rows().filter(|rows| fit.len < rows.len)?;
        Some(Fit { rows: Some((rows, Wish::Must)), ..*fit })
    }

    /// What the index should hold for this group now; `freed_len` bytes in one run have just become free.
    pub(crate) fn lengths_now(&self, state: &State, freed_len: u64, sector_shift: u32) -> Lengths {
        if !self.is_open() {
            return Lengths::NONE;
        }
        let of = |len: u64| {
            if len >> sector_shift == 0 { Lengths::NONE } else { Lengths::of(class_of(len, sector_shift)) }
        };
        match state.content() {
            Content::Loaded(runs) => {
                let held = state.sets().held.iter().fold(0, |held, (start, end)| held | of(end - start).0);
                Lengths(runs.filled() | held)
            }
            // Only a part of what is free is known: keep the hope, or begin to have some.
            Content::Unloaded | Content::Loading => match self.lengths() {
                Lengths::NONE => {
                    let count = self.count.load(SeqCst);
                    let count = if count >= COUNT_UNPUBLISHED { 1 } else { u64::from(count) };
                    Lengths::hoped(self.free.load(SeqCst), count, sector_shift)
                }
                hope => hope.longest_of(of(freed_len)),
            },
        }
    }

    /// The disk says how many free runs there are: what is hoped for now. Under `state`, not loaded.
    pub(crate) fn lengths_published(&self, count: u32, sector_shift: u32) -> Lengths {
        Lengths::hoped(self.free.load(SeqCst), u64::from(count), sector_shift)
    }
}

/// Checks the source's answer: whole sectors only, neighbours merged.
pub(crate) fn check_runs(
    group: Run,
    runs: impl Iterator<Item = Run>,
    sector_shift: u32,
) -> Result<Vec<(u64, u64)>, LoadError> {
    let mut out: Vec<(u64, u64)> = Vec::new();
    let mut at = group.start;
    let unit = ByteLen(1 << sector_shift);
    for run in runs {
        let end = run.start.checked_add(run.len).filter(|&end| end <= group.end() && run.len.0 > 0 && run.start >= at);
        at = end.ok_or(LoadError::BadRun { group: group.start, run })?;
        let (from, to) = (ByteLen(run.start.0).align_up(unit).0, at.align_down(unit).0);
        match out.last_mut() {
            _ if from >= to => {}
            Some(last) if last.1 == from => last.1 = to,
            _ => out.push((from, to)),
        }
    }
    Ok(out)
}

/// Groups that were added together.
pub(crate) type Block = Arc<[Group]>;

/// A group that somebody keeps, be it in the table or not.
#[derive(Clone)]
pub(crate) struct GroupRef {
    block: Block,
    at: usize,
}

impl Deref for GroupRef {
    type Target = Group;

    fn deref(&self) -> &Group {
        &self.block[self.at]
    }
}

impl GroupRef {
    /// A reference that knows it, but does not keep it.
    pub(crate) fn downgrade(&self) -> WeakGroup {
        WeakGroup { block: Arc::downgrade(&self.block), at: self.at }
    }
}

/// A group that somebody knows.
pub(crate) struct WeakGroup {
    block: Weak<[Group]>,
    at: usize,
}

impl WeakGroup {
    pub(crate) fn upgrade(&self) -> Option<GroupRef> {
        Some(GroupRef { block: self.block.upgrade()?, at: self.at })
    }
}

/// A group in the table, which is locked.
#[derive(Clone, Copy)]
pub(crate) struct GroupHere<'a> {
    block: &'a Block,
    group: &'a Group,
    at: usize,
}

impl<'a> GroupHere<'a> {
    /// The group at a place of a block.
    pub(crate) fn new(block: &'a Block, at: usize) -> GroupHere<'a> {
        GroupHere { block, group: &block[at], at }
    }

    /// Keeps it beyond the table's lock.
    pub(crate) fn keep(self) -> GroupRef {
        GroupRef { block: self.block.clone(), at: self.at }
    }
}

impl Deref for GroupHere<'_> {
    type Target = Group;

    fn deref(&self) -> &Group {
        self.group
    }
}
