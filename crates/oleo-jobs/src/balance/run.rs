//! One balance, from the first group to the last.
//!
//! Normal path: (1) the groups that match the filters are chosen; (2) new groups get the profiles that are converted
//! to; (3) from the highest address down, each of them is checked again (the usage of a group changes when
//! something is moved into it), moved ([`Engine::relocate_group`]), and removed from what the item lists as left. A
//! group that matches only because something was moved into it is not moved.
//!
//! So that nothing is moved into a group that is about to be moved itself, the next groups are closed ahead
//! ([`Ahead`]), as long as that leaves writers at least half of the free space. They are opened again however the
//! balance ends.
//!
//! A group that does not fit anywhere, or that is in use for minutes, is skipped; the others are moved, and the balance
//! ends with an error.

use std::collections::{BTreeMap, BTreeSet};

use oleo_format::{BlockGroupFlags, ByteLen, Logical};
use oleo_fs::Fs;
use oleo_space::{GroupInfo, Kind};
use oleo_txn::{Engine, Moved, TxnError};
use oleo_volume::Profile;

use super::filters::{Bound, Filters};
use super::item::{TYPES, type_of};
use super::{BalanceArgs, Watch, put_item, since};
use crate::JobError;
use crate::unreadable::named;

/// How a run ended.
pub(super) enum Outcome {
    Done,
    Interrupted,
    /// So many groups could not be moved.
    NoSpace(u64),
}

/// Moves the groups that match `args`; `left` is what is left of the request at each moment.
pub(super) fn run(fs: &Fs, args: &BalanceArgs, watch: &Watch<'_>, left: &mut BalanceArgs) -> Result<Outcome, JobError> {
    let engine = fs.engine();
    let ran = Run {
        fs,
        args,
        watch,
        ahead: Ahead { engine, closed: BTreeMap::new(), next: 0 },
        done: [0; 3],
        chosen: BTreeSet::new(),
    }
    .run(left);
    // While it is paused, new groups are made as it wants them.
    if !matches!(ran, Ok(Outcome::Interrupted)) {
        go_by_newest_groups(engine);
    }
    ran
}

/// New groups are made like the newest of their type, as they would be if the volume were opened anew.
pub(super) fn go_by_newest_groups(engine: &Engine) {
    for bit in TYPES {
        if let Some(newest) = engine.space().groups().iter().rfind(|g| TYPES[type_of(g.flags)] == bit) {
            // If that fails, new groups keep the balance's profile until the volume is opened again.
            let _ = engine.set_profile(newest.flags);
        }
    }
}

struct Run<'a> {
    fs: &'a Fs,
    args: &'a BalanceArgs,
    watch: &'a Watch<'a>,
    ahead: Ahead<'a>,
    /// Groups done with, by type: moved, or skipped since they fit nowhere or are in use.
    done: [u64; 3],
    /// Those that the filters took at the beginning.
    chosen: BTreeSet<Logical>,
}

impl Run<'_> {
    fn run(mut self, left: &mut BalanceArgs) -> Result<Outcome, JobError> {
        let engine = self.fs.engine();
        self.fs.sync()?;
        let mut groups = engine.space().groups();
        groups.reverse();
        let plan = self.plan(&groups);
        self.convert()?;
        let (mut no_space, mut in_use) = (0, None);
        for (nth, group) in groups.iter().enumerate() {
            if !self.watch.goes_on() {
                return Ok(Outcome::Interrupted);
            }
            let wanted = self.wants(group.start, &plan);
            let Some(group) = wanted else {
                self.ahead.open(group.start)?;
                self.watch.update(|p| p.considered += 1);
                continue;
            };
            let kind = type_of(group.flags);
            self.close_ahead(&groups, nth, &plan)?;
            match self.relocate(&group) {
                Ok(Some(_)) => {
                    self.ahead.closed.remove(&group.start);
                    self.watch.update(|p| p.completed += 1);
                }
                Ok(None) => return Ok(Outcome::Interrupted),
                Err(TxnError::NoSpace { .. }) => {
                    no_space += 1;
                    self.watch.update(|p| p.no_space += 1);
                    self.ahead.open(group.start)?;
                }
                Err(error @ TxnError::StillUsed(_)) => {
                    in_use.get_or_insert(error);
                    self.ahead.open(group.start)?;
                }
                Err(error) => return Err(named(self.fs, error)),
            }
            self.watch.update(|p| p.considered += 1);
            self.done[kind] += 1;
            *left = self.args.left_below(group.start, &self.done);
            put_item(self.fs, Some(left))?;
        }
        if let Some(error) = in_use {
            return Err(error.into());
        }
        Ok(if no_space == 0 { Outcome::Done } else { Outcome::NoSpace(no_space) })
    }

    /// What new groups are to be like.
    fn convert(&self) -> Result<(), JobError> {
        let engine = self.fs.engine();
        for (filters, bit) in self.args.each().into_iter().zip(TYPES) {
            let Some(target) = filters.and_then(|f| f.convert) else { continue };
            engine.require_incompat(target.incompat());
            let mixed = engine.is_mixed() && bit != BlockGroupFlags::SYSTEM;
            let kind = if mixed { BlockGroupFlags::DATA | BlockGroupFlags::METADATA } else { bit };
            engine.set_profile(kind | target.bits())?;
        }
        Ok(())
    }

    fn filters(&self, flags: BlockGroupFlags) -> Option<&Filters> {
        self.args.each()[type_of(flags)]
    }

    /// Chooses groups and reports the number expected; returns how many of each type may be moved.
    fn plan(&mut self, groups: &[GroupInfo]) -> [u64; 3] {
        let (mut found, mut bytes) = ([0u64; 3], 0);
        let mut may = [0; 3];
        for kind in 0..3 {
            let Some(filters) = self.args.each()[kind] else { continue };
            let takes = |g: &&GroupInfo| type_of(g.flags) == kind && self.takes(filters, g);
            let max = filters.limit.map_or(u64::MAX, Bound::max);
            let taken: Vec<&GroupInfo> = groups.iter().filter(takes).collect();
            let enough = taken.len() as u64 >= filters.limit.map_or(0, Bound::min);
            may[kind] = if enough { max } else { 0 };
            found[kind] = may[kind].min(taken.len() as u64);
            self.chosen.extend(taken.iter().map(|g| g.start));
            bytes += taken.iter().take(found[kind] as usize).map(|g| g.used.0).sum::<u64>();
        }
        self.watch.update(|p| (p.expected, p.bytes_expected) = (found.iter().sum(), bytes));
        may
    }

    fn takes(&self, filters: &Filters, group: &GroupInfo) -> bool {
        let Ok(chunk) = self.fs.engine().volume().chunk_of(group.start) else { return false };
        chunk.start == group.start && filters.takes(group, &chunk)
    }

    /// The group at an address as it is now, if it is there and is to be moved.
    fn wants(&self, start: Logical, may: &[u64; 3]) -> Option<GroupInfo> {
        let chosen = self.chosen.contains(&start);
        let group = self.fs.engine().space().group(start).ok().filter(|g| chosen && g.start == start)?;
        let kind = type_of(group.flags);
        let filters = self.filters(group.flags).filter(|_| self.done[kind] < may[kind])?;
        // If there is nothing to move and the last group of its type would be removed, no group would be left to
        // determine the profile of new ones.
        let pointless = group.used.0 == 0 && filters.convert.is_none_or(|to| Some(to) == Profile::of(group.flags));
        (self.takes(filters, &group) && !(pointless && self.is_last(&group))).then_some(group)
    }

    fn is_last(&self, group: &GroupInfo) -> bool {
        self.fs.engine().space().totals(KINDS[type_of(group.flags)]).total == group.len
    }

    /// Moves the contents of a group. If it is the last data group and empty, it gets a successor, so that its profile,
    /// or the one it is converted to, is not forgotten.
    fn relocate(&self, group: &GroupInfo) -> Result<Option<Moved>, TxnError> {
        let engine = self.fs.engine();
        let before = self.progress();
        let reported = std::cell::Cell::new(Moved::default());
        let update = |now: &Moved| {
            let new = since(now, &reported.replace(*now));
            let most = group.used.0;
            self.watch.update(|p| {
                p.blocks += new.blocks;
                p.rewritten += new.rewritten;
                p.extents += new.extents;
                p.data_bytes += new.bytes;
                let moved = now.bytes + now.blocks * u64::from(engine.nodesize());
                p.bytes_done = before + moved.min(most);
            });
            self.watch.goes_on()
        };
        if group.used.0 == 0 && self.is_last(group) && group.flags.contains(BlockGroupFlags::DATA) {
            engine.close_group(group.start)?;
            drop(engine.reserve_data(ByteLen(u64::from(engine.sectorsize())))?);
        }
        let moved = engine.relocate_group(group.start, &update)?;
        if let Some(moved) = &moved {
            update(moved);
            self.watch.update(|p| p.bytes_done = before + group.used.0);
        }
        Ok(moved)
    }

    /// Bytes done so far.
    fn progress(&self) -> u64 {
        let mut done = 0;
        self.watch.update(|p| done = p.bytes_done);
        done
    }

    /// Closes the groups that come next, including the current one, as far as there is space elsewhere.
    fn close_ahead(&mut self, groups: &[GroupInfo], nth: usize, may: &[u64; 3]) -> Result<(), TxnError> {
        self.ahead.next = self.ahead.next.max(nth);
        while self.ahead.closed.len() < AHEAD_MAX
            && let Some(group) = groups.get(self.ahead.next)
        {
            if let Some(group) = self.wants(group.start, may).filter(|g| !g.read_only) {
                let kind = type_of(group.flags);
                let within_limit = self.done[kind] + self.ahead.count(kind) < may[kind];
                if within_limit && !(self.has_room_without(&group) && self.ahead.close(&group)?) {
                    break;
                }
            }
            self.ahead.next += 1;
        }
        Ok(())
    }

    /// Whether half of the free space is left to writers when the group is closed and its contents have moved.
    fn has_room_without(&self, group: &GroupInfo) -> bool {
        let (engine, kind) = (self.fs.engine(), type_of(group.flags));
        let (used, closed) = self.ahead.sums(kind);
        let open = engine.space().totals(KINDS[kind]).free.0;
        let room = open + engine.volume().unallocated(self.new_flags(group.flags)).0 + closed;
        let left = room.saturating_sub(closed + free_in(group)).saturating_sub(used + group.used.0);
        left >= room / 2
    }

    /// What new groups of this type are like.
    fn new_flags(&self, flags: BlockGroupFlags) -> BlockGroupFlags {
        let target = self.filters(flags).and_then(|f| f.convert);
        target.map_or(flags, |target| flags.types() | target.bits())
    }
}

/// What the allocator calls the types.
const KINDS: [Kind; 3] = [Kind::Data, Kind::Metadata, Kind::System];
/// How many groups are closed ahead at most: enough to be ahead, few enough to be checked each time.
const AHEAD_MAX: usize = 64;

fn free_in(group: &GroupInfo) -> u64 {
    group.len.0.saturating_sub(group.used.0 + group.excluded.0)
}

/// Groups that were closed before their turn. Dropping opens those that are left.
struct Ahead<'a> {
    engine: &'a Engine,
    /// As they were when they were closed, by address.
    closed: BTreeMap<Logical, GroupInfo>,
    /// The first of the list that was not considered for closing yet.
    next: usize,
}

impl Ahead<'_> {
    fn close(&mut self, group: &GroupInfo) -> Result<bool, TxnError> {
        let closed = self.engine.close_group(group.start)?;
        if closed {
            self.closed.insert(group.start, group.clone());
        }
        Ok(closed)
    }

    fn open(&mut self, start: Logical) -> Result<(), TxnError> {
        if self.closed.remove(&start).is_some() { self.engine.open_group(start) } else { Ok(()) }
    }

    /// How many of a type.
    fn count(&self, kind: usize) -> u64 {
        self.closed.values().filter(|g| type_of(g.flags) == kind).count() as u64
    }

    /// Used bytes and free bytes of those of a type.
    fn sums(&self, kind: usize) -> (u64, u64) {
        let of_kind = self.closed.values().filter(|g| type_of(g.flags) == kind);
        of_kind.fold((0, 0), |(used, free), g| (used + g.used.0, free + free_in(g)))
    }
}

impl Drop for Ahead<'_> {
    fn drop(&mut self) {
        for start in std::mem::take(&mut self.closed).into_keys() {
            // A group that cannot be opened is one of a volume that can no longer be written.
            let _ = self.engine.open_group(start);
        }
    }
}
