//! One block group: a stretch of the address space that a chunk backs, its free runs and its counts.
//!
//! ```text
//!             ┌─────────┐ an allocation looks inside ┌─────────┐ source answered ┌────────┐
//!  add_group ─► Unloaded ├───────────────────────────► Loading ├────────────────► Loaded │
//!             └────▲────┘                            └────┬────┘                 └────────┘
//!                  └──────────── source failed ───────────┘
//! ```
//!
//! Until it is loaded a group is known by its summary (bytes used, number of free runs), which is enough to place it in
//! the index. What is freed meanwhile is kept in `freed`, and what is pinned in `pinned`; when the source has
//! answered, the free runs are *source ∪ freed − pinned*, which is right whether the source read the state before or
//! after the commit that is going on.
//!
//! Invariants: `free` is the sum of the runs once loaded; no byte is both free and pinned.
//!
//! Locks: a group's `state` (rank 20) is held for a few tree steps at a time and never while the source is asked: the
//! loader marks the group `Loading`, lets go, asks, and comes back. Others skip it, or wait on `changed`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::SeqCst};

use oleo_format::{BlockGroupFlags, ByteLen, Logical};
use parking_lot::{Condvar, Mutex};

use crate::runs::{Ranges, Runs, order_of};
use crate::{LoadError, Run};

/// What space is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// Contents of files.
    Data,
    /// Tree blocks.
    Metadata,
    /// Blocks of the chunk tree.
    System,
}

impl Kind {
    /// All kinds, in order.
    pub const ALL: [Kind; 3] = [Kind::Data, Kind::Metadata, Kind::System];

    fn flag(self) -> BlockGroupFlags {
        match self {
            Kind::Data => BlockGroupFlags::DATA,
            Kind::Metadata => BlockGroupFlags::METADATA,
            Kind::System => BlockGroupFlags::SYSTEM,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Data => "data",
            Kind::Metadata => "metadata",
            Kind::System => "system",
        })
    }
}

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
    /// The number of free runs, where the disk tells.
    pub free_extents: Option<u32>,
    /// Nothing is allocated from it.
    pub read_only: bool,
}

/// A group's free runs, as far as they are known.
pub(crate) enum Content {
    /// Nobody has looked; `freed` since the group was added.
    Unloaded { freed: Ranges },
    /// A thread is asking the source; `freed` since the group was added.
    Loading { freed: Ranges },
    /// All known.
    Loaded(Runs),
}

pub(crate) struct State {
    pub(crate) content: Content,
    /// Freed by transactions that are not durable.
    pub(crate) pinned: Ranges,
    /// Free, and taken aside by [`HeldRun`](crate::HeldRun)s.
    pub(crate) held: Ranges,
    pub(crate) read_only: bool,
    pub(crate) removed: bool,
}

pub(crate) struct Group {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) flags: BlockGroupFlags,
    /// Bytes that nobody may have.
    excluded: ByteLen,
    pub(crate) state: Mutex<State>,
    /// Told when a load has ended, well or not, and when what was held is let go.
    pub(crate) changed: Condvar,
    /// 1 + order of the longest free run as the index has it, 0 for none. Changed under `state`.
    pub(crate) order: AtomicU8,
    /// Free bytes; an estimate until loaded. Changed under `state`.
    pub(crate) free: AtomicU64,
    /// Bytes used for the block group item.
    pub(crate) used: AtomicU64,
    /// `used` was changed since the last drain.
    pub(crate) used_dirty: AtomicBool,
}

impl Group {
    pub(crate) fn new(info: &GroupInfo, free: Option<Ranges>, sector_shift: u32) -> Group {
        let end = info.start.0 + info.len.0;
        let (free_bytes, longest, content) = match free {
            None => {
                let free = info.len.0.saturating_sub(info.used.0).saturating_sub(info.excluded.0);
                // The longest run is at least the average one; without a count, hope for one run.
                let longest = free / u64::from(info.free_extents.unwrap_or(1).max(1));
                (free, longest.max(free.min(1 << sector_shift)), Content::Unloaded { freed: Ranges::default() })
            }
            Some(ranges) => {
                let longest = ranges.iter().map(|(s, e)| e - s).max().unwrap_or(0);
                (ranges.total(), longest, Content::Loaded(Runs::from_ranges(ranges, sector_shift)))
            }
        };
        let order =
            if longest >> sector_shift == 0 || info.read_only { 0 } else { order_of(longest, sector_shift) + 1 };
        Group {
            start: info.start.0,
            end,
            flags: info.flags,
            excluded: info.excluded,
            state: Mutex::new(State {
                content,
                pinned: Ranges::default(),
                held: Ranges::default(),
                read_only: info.read_only,
                removed: false,
            }),
            changed: Condvar::new(),
            order: AtomicU8::new(order as u8),
            free: AtomicU64::new(free_bytes),
            used: AtomicU64::new(info.used.0),
            used_dirty: AtomicBool::new(false),
        }
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

    pub(crate) fn info(&self) -> GroupInfo {
        let state = self.state.lock();
        let free_extents = match &state.content {
            Content::Loaded(runs) => u32::try_from(runs.ranges().count()).ok(),
            _ => None,
        };
        GroupInfo {
            start: Logical(self.start),
            len: ByteLen(self.len()),
            flags: self.flags,
            used: ByteLen(self.used.load(SeqCst)),
            excluded: self.excluded,
            free_extents,
            read_only: state.read_only,
        }
    }

    /// What the index should hold for this group now; `freed_len` bytes in one run have just become free.
    pub(crate) fn order_now(&self, state: &State, freed_len: u64, sector_shift: u32) -> u8 {
        if state.read_only || state.removed {
            return 0;
        }
        let filed = |len: u64| if len >> sector_shift == 0 { 0 } else { order_of(len, sector_shift) as u8 + 1 };
        match &state.content {
            Content::Loaded(runs) => {
                let held = state.held.iter().map(|(start, end)| filed(end - start)).max().unwrap_or(0);
                runs.top_order().map_or(0, |order| order as u8 + 1).max(held)
            }
            // Only a part of what is free is known: keep the hope, or begin to have some.
            Content::Unloaded { .. } | Content::Loading { .. } => match self.order.load(SeqCst) {
                0 => filed(self.free.load(SeqCst)),
                hope => hope.max(filed(freed_len)),
            },
        }
    }
}

/// Checks the source's answer and makes a set of it, whole sectors only.
pub(crate) fn check_runs(group: Run, runs: impl Iterator<Item = Run>, sector_shift: u32) -> Result<Ranges, LoadError> {
    let mut ranges = Ranges::default();
    let mut at = group.start;
    let unit = ByteLen(1 << sector_shift);
    for run in runs {
        let end = run.start.checked_add(run.len).filter(|&end| end <= group.end() && run.len.0 > 0 && run.start >= at);
        at = end.ok_or(LoadError::BadRun { group: group.start, run })?;
        let (from, to) = (ByteLen(run.start.0).align_up(unit).0, at.align_down(unit).0);
        if from < to {
            ranges.insert(from, to);
        }
    }
    Ok(ranges)
}

/// A group and its place in the address space, shared by all who hold it.
pub(crate) type GroupRef = Arc<Group>;
