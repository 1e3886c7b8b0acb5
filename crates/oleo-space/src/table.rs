//! The groups in the order of their addresses, each in a slot, and the index over the slots.
//!
//! Every allocation and every free reads the table, so it is behind as many read-write locks as there are processors: a
//! reader takes the one of its thread, which is mostly its own, a writer (a group comes or goes) all of them in order.
//!
//! Invariants: `starts` and `groups` are parallel; a slot without a group has no bit in the index; the index says of each
//! group what its `order` and `average` say.
//!
//! Locks: rank 18, before the state of any group. Under it a group's state may be waited for, a load or a held run not.

use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard};
use smallvec::SmallVec;

use crate::group::{Group, GroupRef, Orders};
use crate::index::{By, OrderIndex};
use crate::threads::{self, Apart};
use crate::{Kind, SpaceError};

/// Slots of a new table; it doubles when they are taken.
const SLOTS_MIN: usize = 64;

/// Slots that a guess may be off, and is still worth more than halving the table: within a cache line.
const GUESS_OFF_MAX: usize = 4;

/// The groups in the order of their addresses, each in a slot whose number the index uses.
pub(crate) struct Table {
    starts: Vec<u64>,
    groups: Vec<Option<GroupRef>>,
    slots: usize,
    /// Slots for each byte between the first group and the last, for a guess.
    slots_per_byte: f64,
    /// By kind; none where no group serves the kind.
    index: [Option<OrderIndex>; 3],
}

impl Table {
    fn new() -> Table {
        Table {
            starts: Vec::new(),
            groups: Vec::new(),
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
        self.groups[slot].as_ref().is_some_and(|group| at < group.end).then_some(slot)
    }

    /// The group that holds `at`.
    pub(crate) fn group_of(&self, at: u64) -> Option<&GroupRef> {
        self.groups[self.slot_of(at)?].as_ref()
    }

    /// The first slot whose group ends after `at`.
    pub(crate) fn slot_from(&self, at: u64) -> usize {
        self.slot_of(at).unwrap_or_else(|| self.started(at))
    }

    /// The group that holds `at`, or the next one.
    pub(crate) fn group_from(&self, at: u64) -> Option<&GroupRef> {
        self.groups.get(self.slot_from(at)..)?.iter().flatten().next()
    }

    /// The next group of `kind` at or after slot `from` that `by` means.
    pub(crate) fn next(&self, kind: Kind, by: By, from: usize) -> Option<(usize, &GroupRef)> {
        let index = self.index[kind as usize].as_ref()?;
        let mut from = from;
        loop {
            // A slot without a group has no bit; one that loses its group just now is stepped over.
            let slot = index.next(by, from)?;
            match self.groups.get(slot)? {
                Some(group) => return Some((slot, group)),
                None => from = slot + 1,
            }
        }
    }

    /// Whether `by` means no group of `kind`, as far as one look tells.
    pub(crate) fn has_none(&self, kind: Kind, by: By) -> bool {
        self.index[kind as usize].as_ref().is_none_or(|index| index.has_none(by))
    }

    /// All groups in rising order.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &GroupRef> {
        self.groups.iter().flatten()
    }

    /// A group's orders went from `old` to `new`. Whoever calls holds the group's state, or nobody else can have it.
    pub(crate) fn change(&self, group: &Group, old: Orders, new: Orders) {
        let Some(slot) = self.slot_of(group.start) else { return };
        for kind in Kind::ALL {
            if let Some(index) = &self.index[kind as usize]
                && group.serves(kind)
            {
                index.change(slot, old, new);
            }
        }
    }

    /// Adds a group.
    pub(crate) fn insert(&mut self, group: GroupRef) -> Result<(), SpaceError> {
        let slot = self.starts.partition_point(|&start| start < group.start);
        let before = self.groups[..slot].iter().rev().flatten().next();
        let after = self.groups[slot..].iter().flatten().next();
        if before.is_some_and(|g| g.end > group.start) || after.is_some_and(|g| g.start < group.end) {
            return Err(SpaceError::BadGroup(group.run()));
        }
        let last = slot == self.starts.len();
        if self.starts.get(slot) == Some(&group.start) {
            self.groups[slot] = Some(group.clone());
        } else {
            self.starts.insert(slot, group.start);
            self.groups.insert(slot, Some(group.clone()));
        }
        self.measure();
        let known = Kind::ALL.iter().all(|&kind| !group.serves(kind) || self.index[kind as usize].is_some());
        if self.starts.len() > self.slots || !last || !known {
            self.rebuild();
        } else {
            self.change(&group, Orders::NONE, group.orders());
        }
        Ok(())
    }

    /// Forgets the group that starts at `start`; its bits are gone already.
    pub(crate) fn remove(&mut self, start: u64) {
        if let Some(slot) = self.slot_of(start) {
            self.groups[slot] = None;
        }
    }

    /// Whether the index has each group where its runs say, and nothing else; for tests, at rest.
    #[cfg(test)]
    pub(crate) fn index_agrees(&self, sector_shift: u32) -> bool {
        let found = |kind: Kind, by: By| -> Vec<u64> {
            let groups = std::iter::successors(self.next(kind, by, 0), |(slot, _)| self.next(kind, by, slot + 1));
            groups.map(|(_, group)| group.start).collect()
        };
        let orders = |group: &GroupRef| group.orders_now(&group.state.lock(), 0, sector_shift);
        Kind::ALL.into_iter().all(|kind| {
            let want = |is_meant: &dyn Fn(Orders) -> bool| -> Vec<u64> {
                let groups = self.groups().filter(|group| group.serves(kind) && is_meant(orders(group)));
                groups.map(|group| group.start).collect()
            };
            let by_order = (0..crate::runs::ORDERS).all(|order| {
                let is = move |filed: u8| usize::from(filed) == order + 1;
                found(kind, By::Longest(order)) == want(&|orders| is(orders.longest))
                    && found(kind, By::Average(order)) == want(&|orders| is(orders.average))
            });
            by_order && found(kind, By::Any) == want(&|orders| orders.longest > 0)
        })
    }

    /// Makes the guess fit.
    fn measure(&mut self) {
        let bytes = self.starts.last().zip(self.starts.first()).map_or(0, |(last, first)| last - first);
        self.slots_per_byte = (self.starts.len().saturating_sub(1)) as f64 / bytes.max(1) as f64;
    }

    /// Makes the index anew, after slots have moved.
    fn rebuild(&mut self) {
        let keep: Vec<bool> = self.groups.iter().map(Option::is_some).collect();
        let mut kept = keep.iter();
        self.starts.retain(|_| kept.next().copied().unwrap_or(true));
        self.groups.retain(Option::is_some);
        self.measure();
        self.slots = self.slots.max(self.starts.len().next_power_of_two());
        let serves = |kind: Kind| self.groups.iter().flatten().any(|group| group.serves(kind));
        let index = Kind::ALL.map(|kind| serves(kind).then(|| OrderIndex::new(self.slots)));
        self.index = index;
        for group in self.groups.iter().flatten() {
            self.change(group, Orders::NONE, group.orders());
        }
    }
}

/// The table and its locks.
pub(crate) struct Tables {
    /// All the same table; by number of thread.
    shards: Box<[Apart<RwLock<Arc<Table>>>]>,
    /// What is in the shards while the table is changed.
    blank: Arc<Table>,
}

impl Tables {
    pub(crate) fn new() -> Tables {
        let table = Arc::new(Table::new());
        let shards = (0..threads::spread()).map(|_| Apart(RwLock::new(table.clone()))).collect();
        Tables { shards, blank: Arc::new(Table::new()) }
    }

    /// The table, as it is until the guard is dropped but for the bits of the index.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Arc<Table>> {
        threads::own(&self.shards).0.read()
    }

    /// Changes the table while nobody reads it.
    pub(crate) fn write<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let mut guards: SmallVec<[_; threads::SPREAD_MAX]> = self.shards.iter().map(|shard| shard.0.write()).collect();
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
    use oleo_format::BlockGroupFlags;

    use super::*;
    use crate::testing::{MIB, Rng, info};

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
            for &(start, end) in &groups {
                let info = info(start, end - start, BlockGroupFlags::DATA);
                table.insert(Arc::new(Group::new(&info, None, 12))).unwrap();
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
}
