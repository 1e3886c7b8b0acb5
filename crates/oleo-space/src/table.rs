//! The groups in the order of their addresses, each in a slot, and the index over the slots.
//!
//! Every allocation and every free reads the table, so it is behind as many read-write locks as there are processors: a
//! reader takes the one of its thread, which is mostly its own, a writer (a group comes or goes) all of them in order.
//!
//! Invariants: `starts` and `places` are parallel; a slot without a group has no bit in the index; the index says of each
//! group what its `lengths` say.
//!
//! Locks: each shard's, of one rank: one for reading, all in their order for writing; before the state of any group. Under it a group's state may be waited for, a load or a held run not.

use std::sync::Arc;

use oleo_lock::{RwLock, RwLockReadGuard, rank};
use smallvec::SmallVec;

use crate::group::{Block, Group, GroupHere, Lengths};
use crate::index::{By, LengthIndex};
use crate::threads::{self, CachePadded};
use crate::{Kind, SpaceError};

/// Slots of a new table; it grows by a quarter when they are taken.
const SLOTS_MIN: usize = 64;

/// The place of a slot whose group was removed.
const NO_PLACE: u32 = u32::MAX;

/// Groups that a block may have: places leave that many numbers to each.
pub(crate) const BLOCK_GROUPS_MAX: usize = 64;

/// Slots that a guess may be off, and is still worth more than halving the table: within a cache line.
const GUESS_OFF_MAX: usize = 4;

/// The groups in the order of their addresses, each in a slot whose number the index uses.
pub(crate) struct Table {
    starts: Vec<u64>,
    /// Where the group of a slot is: the number of its block, times [`BLOCK_GROUPS_MAX`], and its number there.
    places: Vec<u32>,
    /// All that places name, and some that none names any more.
    blocks: Vec<Block>,
    slots: usize,
    /// Slots for each byte between the first group and the last, for a guess.
    slots_per_byte: f64,
    /// By kind; none if no group serves the kind.
    index: [Option<LengthIndex>; 3],
}

impl Table {
    fn new() -> Table {
        Table {
            starts: Vec::new(),
            places: Vec::new(),
            blocks: Vec::new(),
            slots: SLOTS_MIN,
            slots_per_byte: 0.0,
            index: Default::default(),
        }
    }

    /// How many groups start at or before `at`.
    fn started(&self, at: u64) -> usize {
        // Groups are mostly of one length, and then a look around the guess does; else halving the table does.
        let guess =
            (at.saturating_sub(self.starts.first().copied().unwrap_or(0)) as f64 * self.slots_per_byte) as usize;
        let (low, high) = (guess.saturating_sub(GUESS_OFF_MAX), guess.saturating_add(GUESS_OFF_MAX));
        if let Some(near) = self.starts.get(low..high)
            && near.first().is_some_and(|&start| start <= at)
            && near.last().is_some_and(|&start| at < start)
        {
            return low + near.partition_point(|&start| start <= at);
        }
        self.starts.partition_point(|&start| start <= at)
    }

    /// The slot whose group holds `at`, if one does.
    pub(crate) fn slot_of(&self, at: u64) -> Option<usize> {
        let slot = self.started(at).checked_sub(1)?;
        self.group_at(slot).is_some_and(|group| at < group.end).then_some(slot)
    }

    /// The group of a slot, if it has one.
    fn group_at(&self, slot: usize) -> Option<GroupHere<'_>> {
        self.group_in(*self.places.get(slot)?)
    }

    fn group_in(&self, place: u32) -> Option<GroupHere<'_>> {
        let place = Some(place).filter(|&place| place != NO_PLACE)? as usize;
        Some(GroupHere::new(&self.blocks[place / BLOCK_GROUPS_MAX], place % BLOCK_GROUPS_MAX))
    }

    /// The group that holds `at`.
    pub(crate) fn group_of(&self, at: u64) -> Option<GroupHere<'_>> {
        self.group_at(self.started(at).checked_sub(1)?).filter(|group| at < group.end)
    }

    /// The first slot whose group ends after `at`.
    pub(crate) fn slot_from(&self, at: u64) -> usize {
        self.slot_of(at).unwrap_or_else(|| self.started(at))
    }

    /// The group that holds `at`, or the next one.
    pub(crate) fn group_from(&self, at: u64) -> Option<GroupHere<'_>> {
        self.places.get(self.slot_from(at)..)?.iter().find_map(|&place| self.group_in(place))
    }

    /// The next group of `kind` at or after slot `from` that `by` means.
    pub(crate) fn next(&self, kind: Kind, by: By, from: usize) -> Option<(usize, GroupHere<'_>)> {
        let index = self.index[kind as usize].as_ref()?;
        let mut from = from;
        loop {
            // A slot without a group has no bit; one that loses its group just now is stepped over.
            let slot = index.next(by, from)?;
            if slot >= self.places.len() {
                return None;
            }
            match self.group_at(slot) {
                Some(group) => return Some((slot, group)),
                None => from = slot + 1,
            }
        }
    }

    /// The classes that free runs of any group of `kind` have, at the moment of one look.
    pub(crate) fn classes(&self, kind: Kind) -> u64 {
        self.index[kind as usize].as_ref().map_or(0, LengthIndex::classes)
    }

    /// All groups in rising order.
    pub(crate) fn groups(&self) -> impl Iterator<Item = GroupHere<'_>> {
        self.places.iter().filter_map(|&place| self.group_in(place))
    }

    /// A group's lengths went from `old` to `new`. The caller holds the group's state, or nobody else can have it.
    pub(crate) fn change(&self, group: &Group, old: Lengths, new: Lengths) {
        let Some(slot) = self.slot_of(group.start) else { return };
        for kind in Kind::ALL {
            if let Some(index) = &self.index[kind as usize]
                && group.serves(kind)
            {
                index.change(slot, old, new);
            }
        }
    }

    /// Adds a block of groups, or none of it if one would overlap another.
    pub(crate) fn insert(&mut self, block: Block) -> Result<(), SpaceError> {
        debug_assert!(block.len() <= BLOCK_GROUPS_MAX);
        if self.starts.len() + block.len() > self.slots {
            self.rebuild(block.len());
        }
        let first = self.blocks.len() * BLOCK_GROUPS_MAX;
        self.blocks.push(block.clone());
        let mut stays = true;
        for (at, group) in block.iter().enumerate() {
            match self.place(group, (first + at) as u32) {
                Ok(is_last) => stays &= is_last,
                Err(error) => {
                    block[..at].iter().for_each(|group| self.remove(group.start));
                    self.rebuild(0);
                    return Err(error);
                }
            }
        }
        self.measure();
        let known = |group: &Group| Kind::ALL.iter().all(|&k| !group.serves(k) || self.index[k as usize].is_some());
        if stays && block.iter().all(known) {
            block.iter().for_each(|group| self.change(group, Lengths::NONE, group.lengths()));
        } else {
            self.rebuild(0);
        }
        Ok(())
    }

    /// Gives a group a slot; `false` if slots behind it have moved.
    fn place(&mut self, group: &Group, place: u32) -> Result<bool, SpaceError> {
        let slot = self.starts.partition_point(|&start| start < group.start);
        let before = (0..slot).rev().find_map(|slot| self.group_at(slot));
        let after = (slot..self.places.len()).find_map(|slot| self.group_at(slot));
        if before.is_some_and(|g| g.end > group.start) || after.is_some_and(|g| g.start < group.end) {
            return Err(SpaceError::BadGroup(group.run()));
        }
        // Slots of groups that are gone and began where this one is now: an address behind them must find this one.
        let gone = self.starts[slot..].partition_point(|&start| start < group.end);
        self.starts.splice(slot..slot + gone, [group.start]);
        self.places.splice(slot..slot + gone, [place]);
        Ok(gone == 1 || slot + 1 == self.starts.len())
    }

    /// Forgets the group that starts at `start`; its bits are gone already.
    pub(crate) fn remove(&mut self, start: u64) {
        if let Some(slot) = self.slot_of(start) {
            self.places[slot] = NO_PLACE;
        }
    }

    /// Whether the index has each group where its runs say, and nothing else; for tests, at rest.
    #[cfg(test)]
    pub(crate) fn index_agrees(&self, sector_shift: u32) -> bool {
        let found = |kind: Kind, by: By| -> Vec<u64> {
            let groups = std::iter::successors(self.next(kind, by, 0), |(slot, _)| self.next(kind, by, slot + 1));
            groups.map(|(_, group)| group.start).collect()
        };
        let lengths = |group: GroupHere<'_>| group.lengths_now(&group.state.lock(), 0, sector_shift);
        Kind::ALL.into_iter().all(|kind| {
            let want = |is_meant: &dyn Fn(Lengths) -> bool| -> Vec<u64> {
                let groups = self.groups().filter(|group| group.serves(kind) && is_meant(lengths(*group)));
                groups.map(|group| group.start).collect()
            };
            let in_class = |class: usize| want(&|lengths| lengths.0 >> class & 1 == 1);
            (0..crate::runs::CLASSES).all(|class| {
                let groups = in_class(class);
                (self.classes(kind) >> class & 1 == 1) != groups.is_empty() && found(kind, By::Class(class)) == groups
            }) && found(kind, By::Any) == want(&|lengths| lengths != Lengths::NONE)
        })
    }

    /// Makes the guess fit.
    fn measure(&mut self) {
        let bytes = self.starts.last().zip(self.starts.first()).map_or(0, |(last, first)| last - first);
        self.slots_per_byte = (self.starts.len().saturating_sub(1)) as f64 / bytes.max(1) as f64;
    }

    /// Makes the index anew, after slots have moved or for `more` groups to come, and drops blocks that have no group any
    /// more.
    fn rebuild(&mut self, more: usize) {
        let mut kept = self.places.iter().map(|&place| place != NO_PLACE);
        self.starts.retain(|_| kept.next().unwrap_or(true));
        self.places.retain(|&place| place != NO_PLACE);
        self.release_blocks();
        self.measure();
        let (len, need) = (self.starts.len(), self.starts.len() + more);
        if need > self.slots {
            self.slots = need + need / 4;
            self.starts.reserve_exact(self.slots - len);
            self.places.reserve_exact(self.slots - len);
        }
        let serves = |kind: Kind| self.groups().any(|group| group.serves(kind));
        let index = Kind::ALL.map(|kind| serves(kind).then(|| LengthIndex::new(self.slots)));
        self.index = index;
        for group in self.groups() {
            self.change(&group, Lengths::NONE, group.lengths());
        }
    }

    fn release_blocks(&mut self) {
        let number = |place: u32| place as usize / BLOCK_GROUPS_MAX;
        let mut used = vec![false; self.blocks.len()];
        self.places.iter().for_each(|&place| used[number(place)] = true);
        let mut left = 0;
        let mut renumber = |&used: &bool| {
            left += usize::from(used);
            left.saturating_sub(1)
        };
        let new: Vec<usize> = used.iter().map(&mut renumber).collect();
        for place in &mut self.places {
            let at = *place as usize % BLOCK_GROUPS_MAX;
            *place = (new[number(*place)] * BLOCK_GROUPS_MAX + at) as u32;
        }
        let mut used = used.iter();
        self.blocks.retain(|_| used.next().is_none_or(|&used| used));
    }
}

/// The table, behind one of its locks.
type Shard = RwLock<rank::GroupTable, Arc<Table>>;

/// The table and its locks.
pub(crate) struct Tables {
    /// All the same table; by number of thread.
    shards: Box<[CachePadded<Shard>]>,
    /// What is in the shards while the table is changed.
    blank: Arc<Table>,
}

impl Tables {
    pub(crate) fn new() -> Tables {
        let table = Arc::new(Table::new());
        let shards = (0..threads::spread()).map(|_| CachePadded(RwLock::new(table.clone()))).collect();
        Tables { shards, blank: Arc::new(Table::new()) }
    }

    /// The table, as it is until the guard is dropped but for the bits of the index.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, rank::GroupTable, Arc<Table>> {
        threads::own(&self.shards).0.read()
    }

    /// Changes the table while nobody reads it.
    pub(crate) fn write<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let mut guards: SmallVec<[_; threads::SPREAD_MAX]> =
            (0..).zip(&self.shards).map(|(number, shard)| shard.0.write_by([number, 0, 0])).collect();
        let mut table = self.blank.clone();
        for guard in &mut guards {
            table = std::mem::replace(&mut **guard, self.blank.clone());
        }
        // Readers borrow, they never keep a table, so with all locks held the last one left is the only one.
        let answer = change(Arc::get_mut(&mut table).expect("nobody keeps a table"));
        guards.iter_mut().for_each(|guard| **guard = table.clone());
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use oleo_format::BlockGroupFlags;

    use super::*;
    use crate::testing::{MIB, Rng, info};

    /// Goal: a group that lies where several were that are gone is found at every address, and so are those behind it.
    /// Method: groups in a row, some in the middle or at the end removed, and one put in their place.
    #[test]
    fn a_group_in_place_of_several() {
        let group = |start: u64, len: u64| -> Block {
            let info = info(start * MIB, len * MIB, BlockGroupFlags::DATA);
            [Group::new(&info, None, 12)].into_iter().collect()
        };
        for (from, to) in [(2, 6), (3, 8), (0, 8), (7, 8), (5, 7)] {
            let mut table = Table::new();
            (0..8).for_each(|n| table.insert(group(n * 10, 10)).unwrap());
            for n in from..to {
                let group = table.group_of(n * 10 * MIB).unwrap().keep();
                table.change(&group, group.lengths(), Lengths::NONE);
                table.remove(n * 10 * MIB);
            }
            assert!((from..to).all(|n| table.group_of(n * 10 * MIB).is_none()));
            let (start, len) = (from * 10 + 1, (to - from) * 10 - 1);
            table.insert(group(start, len)).unwrap();
            for at in 0..80 {
                let inside = (from * 10..to * 10).contains(&at);
                let want = if inside { start } else { at / 10 * 10 } * MIB;
                let found = table.group_of(at * MIB).map(|group| group.start);
                assert_eq!(found, (at != from * 10).then_some(want), "{from}..{to}, {at}");
            }
            assert!(table.index_agrees(12));
        }
    }

    /// Goal: the group of an address is found whatever the guess says. Method: tables of groups of one length, of two lengths, and
    /// with gaps at random; every edge of every group beside a search from the front.
    #[test]
    fn addresses_find_their_groups() {
        let mut rng = Rng::new(3);
        for shape in 0..40 {
            let mut table = Table::new();
            let mut at = rng.below(3) * MIB;
            let mut groups = Vec::new();
            for _ in 0..rng.below(200) {
                let len = if shape % 4 > 0 && rng.below(8) == 0 { 64 * MIB } else { MIB };
                groups.push((at, at + len));
                at += len + if shape % 4 > 1 { rng.below(shape % 4 * 3) * MIB } else { 0 };
            }
            let group = |&(start, end): &(u64, u64)| {
                let info = info(start, end - start, BlockGroupFlags::DATA);
                Group::new(&info, None, 12)
            };
            for some in groups.chunks(1 + shape as usize) {
                table.insert(some.iter().map(group).collect()).unwrap();
            }
            let edges = groups.iter().flat_map(|&(start, end)| [start, start + 1, end - 1, end]);
            for at in edges.chain([0, u64::MAX]) {
                let want = groups.iter().position(|&(start, end)| (start..end).contains(&at));
                assert_eq!(table.slot_of(at), want, "shape {shape}: {at}");
                let next = groups.iter().position(|&(_, end)| end > at).unwrap_or(groups.len());
                assert_eq!(table.slot_from(at), next, "shape {shape}: {at}");
            }
        }
    }

    /// Goal: groups come and go in blocks of all lengths, in any order, and the table is a map of them; a block that cannot be
    /// added whole is not added at all; blocks without groups are dropped.
    /// Method: random insertions, some of them overlapping, and removals beside a map; the order of all, each found by its
    /// address, the index; at the end everything is removed and one group more makes the table drop what it had.
    #[test]
    fn the_table_is_a_map() {
        for seed in 0..8 {
            let mut rng = Rng::new(seed);
            let mut table = Table::new();
            let mut model = BTreeMap::new();
            let mut blocks = Vec::new();
            for step in 0..200 {
                let at = format!("seed {seed} step {step}");
                if rng.below(3) > 0 || model.is_empty() {
                    let first = rng.below(4000);
                    let count_max = if rng.below(4) == 0 { BLOCK_GROUPS_MAX as u64 } else { 3 };
                    let count = 1 + rng.below(count_max);
                    let starts: Vec<u64> = (first..first + count).map(|n| n * MIB).collect();
                    let free = starts.iter().all(|start| !model.contains_key(start));
                    let flags = if rng.below(2) == 0 { BlockGroupFlags::DATA } else { BlockGroupFlags::METADATA };
                    let new = |&start: &u64| Group::new(&info(start, MIB, flags), None, 12);
                    let block: Block = starts.iter().map(new).collect();
                    blocks.push(Arc::downgrade(&block));
                    assert_eq!(table.insert(block).is_ok(), free, "{at}");
                    model.extend(starts.into_iter().filter(|_| free).map(|start| (start, flags)));
                } else {
                    let from = rng.below(4000) * MIB;
                    let next = model.range(from..).next().or(model.iter().next()).map(|(&start, _)| start);
                    let start = next.unwrap();
                    model.remove(&start);
                    let group = table.group_of(start).unwrap().keep();
                    table.change(&group, group.lengths(), Lengths::NONE);
                    table.remove(start);
                }
                let all: Vec<_> = table.groups().map(|group| (group.start, group.flags)).collect();
                assert_eq!(all, model.iter().map(|(&start, &flags)| (start, flags)).collect::<Vec<_>>(), "{at}");
                let found = |&start: &u64| table.group_of(start + MIB - 1).is_some_and(|group| group.start == start);
                assert!(model.keys().all(found), "{at}");
                assert!(table.index_agrees(12), "{at}");
            }
            model.into_keys().for_each(|start| table.remove(start));
            table
                .insert(Arc::new([Group::new(&info(u64::MAX - 2 * MIB, MIB, BlockGroupFlags::DATA), None, 12)]))
                .unwrap();
            table.rebuild(0);
            assert!(blocks.iter().all(|block| block.upgrade().is_none()), "seed {seed}");
        }
    }
}
