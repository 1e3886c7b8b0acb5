//! Relocation: moving everything in a block group elsewhere, and removing the group.
//!
//! Normal path of [`Engine::relocate_group`]:
//! 1. `close_group`: nothing new comes into the group. A writer that overwrites existing data without copying it looks whether the group
//!    is open, and holds `addresses` while it writes: when all holds taken before have ended, nobody writes any more.
//! 2. In steps of bounded size: some extents of the group are found (`data`); data is copied to new places; then a commit, with
//!    everybody kept out from its freeze on if data moves, brings in all changes, settles, and *moves*:
//!    `plan` finds the blocks to write anew, which are those that move, the leaves that name data that moves, and all above
//!    them in all trees, each once; `apply` copies them, records the new references in the ledger, replaces the roots of trees. Settling
//!    goes on with what that makes, and the commit is written like any other.
//! 3. `remove`: when the group is empty and nobody reads what was in it, it goes, in a commit of its own.
//!
//! Invariants: what trees say does not change but for addresses, nor who shares what; each step is one transaction, whole by
//! itself. Quota is counted before the move, and the roots that the next count begins from are those after it: nothing is
//! traced.
//! A step reserves everything it needs before it changes anything; if there is no space it does nothing.
//! Locks: `addresses` around the whole commit of a step, written; others hold it read from looking up where data is until
//! they have named or written it. Until the step's commit is settled it is unknown who shares the data.
//! Crash: before a step's commit is durable, nothing has happened; the copies are free space. After it, it has.
//! Bounds: memory of a step is its blocks, twice what others have in memory, too, and a few pieces of data.
//!
//! Not here: choosing groups, and reporting progress (`oleo-jobs`).

mod apply;
mod data;
mod idle;
mod plan;
mod recover;
mod remove;

use std::time::Duration;

use hashbrown::HashSet;
use oleo_format::{BlockGroupFlags, Generation, Logical};
use oleo_lock::{RwLockReadGuard, RwLockWriteGuard, rank};
use oleo_space::{GroupInfo, Kind, Reservation, Run, SpaceError};

use crate::TxnError;
use crate::commit::LastStep;
use crate::engine::{Engine, Inner};
use data::Copied;
use plan::Closure;

/// Blocks to move in one transaction: their bytes, about.
const STEP_BYTES: u64 = 48 << 20;
/// A step that finds no room is tried again with half as much, down to this many blocks.
const STEP_BLOCKS_MIN: usize = 16;
/// Steps in a row that may find nothing to move before it is given up. What others had taken before the group was closed comes with a
/// commit or two; somebody who reads all of an old state may take minutes.
const IDLE_STEPS_MAX: u32 = 6000;
/// How long the first idle step waits for others; each of the next ones that much longer, as far as [`IDLE_WAIT_MAX`].
const IDLE_WAIT: Duration = Duration::from_millis(2);
const IDLE_WAIT_MAX: Duration = Duration::from_millis(100);
/// Steps in a row, each with a commit, in which a group counts bytes as used and no extent is recorded: that is no writer's doing: what a
/// writer uses is counted and recorded together.
const UNRECORDED_STEPS_MAX: u32 = 5;
/// Steps in a row in which what is there cannot be moved: nobody is known who would be the reason.
const STUCK_STEPS_MAX: u32 = 100;

/// What moving a group has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Tree blocks that moved.
    pub blocks: u64,
    /// Tree blocks that were written anew, those above and those that name moved data included.
    pub rewritten: u64,
    /// Data extents that moved.
    pub extents: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl std::ops::AddAssign for Moved {
    fn add_assign(&mut self, more: Moved) {
        self.blocks += more.blocks;
        self.rewritten += more.rewritten;
        self.extents += more.extents;
        self.bytes += more.bytes;
    }
}

/// While it lives, data stays where it was found.
pub struct Addresses<'a>(
    #[allow(dead_code, reason = "held for the lock only")] RwLockReadGuard<'a, rank::Addresses, ()>,
);

/// While it lives, nobody holds [`Addresses`].
pub struct NoAddresses<'a>(
    #[allow(dead_code, reason = "held for the lock only")] RwLockWriteGuard<'a, rank::Addresses, ()>,
);

/// What one commit is to move, as its last step.
struct Moving<'a> {
    blocks: &'a [Logical],
    data: Vec<Copied>,
    /// What came of it: `None` if there was no room.
    done: Result<Option<Moved>, TxnError>,
    hold: Option<Reservation>,
}

impl LastStep for Moving<'_> {
    /// Only data's addresses are known outside of trees.
    fn keeps_out(&self) -> bool {
        !self.data.is_empty()
    }

    fn run(&mut self, inner: &Inner, generation: Generation) -> Result<bool, TxnError> {
        inner.relocate(self, generation)
    }
}

impl Inner {
    fn plan_move<'d>(
        &self,
        generation: Generation,
        blocks: &[Logical],
        data: &'d [Copied],
    ) -> Result<Option<(Closure<'d>, Reservation)>, TxnError> {
        let closure = Closure::of(self, generation, blocks, data)?;
        Ok(closure.reserve(self)?.map(|hold| (closure, hold)))
    }

    /// Moves, all else being settled; returns whether there is anything to settle after it.
    fn relocate(&self, moving: &mut Moving<'_>, generation: Generation) -> Result<bool, TxnError> {
        let data = std::mem::take(&mut moving.data);
        let (closure, hold) = match self.plan_move(generation, moving.blocks, &data) {
            Ok(Some(planned)) => planned,
            // Nothing has changed: the commit goes on without.
            Ok(None) => return Ok(false),
            Err(e) => {
                moving.done = Err(e);
                return Ok(false);
            }
        };
        if closure.pieces.is_empty() {
            moving.done = Ok(Some(Moved::default()));
            return Ok(false);
        }
        let moved: HashSet<Logical> = closure.data.keys().copied().collect();
        let done = closure.apply(self, generation, &hold)?;
        for copied in data.into_iter().filter(|copied| moved.contains(&copied.from.start)) {
            copied.grant.keep();
        }
        moving.hold = Some(hold);
        moving.done = Ok(Some(done));
        Ok(true)
    }
}

impl Engine {
    /// Held by a caller that looks up where data is, and then names it elsewhere or writes to it; taken before the caller joins the
    /// open transaction.
    pub fn hold_addresses(&self) -> Addresses<'_> {
        Addresses(self.0.addresses.read())
    }

    /// Waits until nobody holds addresses, and keeps others from it: for a caller that is about to share all data of a tree, which
    /// somebody may be writing over. The caller holds no lock that comes after, and no handle.
    pub fn bar_addresses(&self) -> NoAddresses<'_> {
        NoAddresses(self.0.addresses.write())
    }

    /// Whether data here may be written to without being copied: not if it is on its way to another place.
    pub fn is_open_place(&self, at: Logical) -> bool {
        self.0.space.group(at).is_ok_and(|group| !group.read_only)
    }

    /// Closes a group for allocation. If its room is promised, or nothing else is open for its kind, a new one is made first.
    /// Returns `false` if that cannot be.
    pub fn close_group(&self, start: Logical) -> Result<bool, TxnError> {
        let inner = &*self.0;
        inner.writable()?;
        let info = inner.space.group(start)?;
        if info.read_only {
            return Ok(true);
        }
        let groups = inner.space.groups();
        let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| info.flags.contains(kind.flag())).collect();
        for &kind in &kinds {
            let is_other = |group: &GroupInfo| group.start != start && !group.read_only;
            let alone = !groups.iter().any(|group| is_other(group) && group.flags.contains(kind.flag()));
            // Without another group, writers of data wait for the end; nobody waits for what cannot be moved.
            if alone && !inner.grow(kind)? && (kind != Kind::Data || info.used.0 > 0) {
                return Ok(false);
            }
            if kind == Kind::System && !inner.grow_system_without(start)? {
                return Ok(false);
            }
        }
        loop {
            match inner.space.set_read_only(start, true) {
                Ok(()) => return Ok(inner.space.group(start)?.read_only),
                Err(SpaceError::Reserved(_)) => {
                    if !inner.widen_limit(kinds.first().copied().unwrap_or(Kind::Data))? {
                        return Ok(false);
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Opens a group again, unless it lies on a seed device.
    pub fn open_group(&self, start: Logical) -> Result<(), TxnError> {
        let chunk = self.0.volume.chunk_of(start)?;
        if self.0.volume.is_on_seed(&chunk) {
            return Ok(());
        }
        Ok(self.0.space.set_read_only(start, false)?)
    }

    /// Moves everything out of a block group, in transactions of bounded size, and removes the group. `goes_on` is asked
    /// between them: if it says no, the group is opened again, and `None` is returned. The caller holds no handle.
    ///
    /// # Errors
    /// There is no room for what is in it, a device failed, or the image is damaged: the group is open again, what has moved
    /// has moved.
    pub fn relocate_group(&self, start: Logical, goes_on: &dyn Fn(&Moved) -> bool) -> Result<Option<Moved>, TxnError> {
        let group = self.0.space.group(start)?;
        if !self.close_group(start)? {
            let what = if group.flags.contains(BlockGroupFlags::DATA) { "data" } else { "metadata" };
            return Err(TxnError::NoSpace { what, wanted: group.used });
        }
        let done = self.empty_group(Run::new(group.start, group.len), goes_on);
        if !matches!(done, Ok(Some(_))) && self.0.writable().is_ok() {
            self.open_group(start)?;
        }
        done
    }

    fn empty_group(&self, group: Run, goes_on: &dyn Fn(&Moved) -> bool) -> Result<Option<Moved>, TxnError> {
        // What was given out before comes to be known, and everybody who writes in place has seen that the group is closed.
        drop(self.0.addresses.write());
        self.commit()?;
        let mut all = Moved::default();
        let blocks_max = ((STEP_BYTES / u64::from(self.nodesize())) as usize).max(STEP_BLOCKS_MIN);
        let (mut blocks_now, mut idle) = (blocks_max, 0);
        loop {
            if !goes_on(&all) {
                return Ok(None);
            }
            let found = self.extents_in(group, blocks_now)?;
            if found.is_empty() {
                if self.is_empty_group(group.start)? {
                    self.remove_group(group.start)?;
                    return Ok(Some(all));
                }
            } else {
                match self.move_step(&found)? {
                    Some(moved) if moved.blocks + moved.extents > 0 => {
                        all += moved;
                        (idle, blocks_now) = (0, blocks_max.min(blocks_now * 2));
                        continue;
                    }
                    Some(_) => {}
                    None if blocks_now > STEP_BLOCKS_MIN => {
                        blocks_now = (blocks_now / 2).max(STEP_BLOCKS_MIN);
                        continue;
                    }
                    None => {
                        return Err(TxnError::NoSpace {
                            what: "metadata",
                            wanted: oleo_format::ByteLen(u64::from(self.nodesize()) * STEP_BLOCKS_MIN as u64),
                        });
                    }
                }
            }
            // Others have something in it that no tree names yet, or read what was in it.
            idle += 1;
            if found.is_empty() && idle >= UNRECORDED_STEPS_MAX {
                self.verify_group(group.start)?;
            }
            if idle > if found.is_empty() { IDLE_STEPS_MAX } else { STUCK_STEPS_MAX } {
                return Err(TxnError::StillUsed(group.start));
            }
            self.commit()?;
            std::thread::sleep((IDLE_WAIT * idle).min(IDLE_WAIT_MAX));
        }
    }

    /// One transaction's worth.
    fn move_step(&self, found: &data::Found) -> Result<Option<Moved>, TxnError> {
        let data = self.copy_extents(&found.data)?;
        let inner = &*self.0;
        let mut moving = Moving { blocks: &found.blocks, data, done: Ok(None), hold: None };
        {
            let _nobody_knows_an_address = inner.addresses.write();
            let _one = inner.commit_lock.lock();
            inner.writable()?;
            inner.write_unwritten()?;
            inner.log_is_settled()?;
            inner.commit_workers.run(|| inner.commit_locked(Some(&mut moving), &|| {}))?;
        }
        moving.done
    }
}
