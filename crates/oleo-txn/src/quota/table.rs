//! The quota groups in memory: what each uses, may use, and is part of.
//!
//! A group of level 0 is that of the subvolume of its number, those of higher levels for all subvolumes below them. What a
//! group uses is a matter of sets: an extent counts as referenced in every group that one of the trees which reach it is in,
//! and as exclusive in those that all of them are in. So what a transaction did to the numbers is given as bytes that moved
//! from one set of trees to another ([`Move`]).

use std::collections::{BTreeMap, BTreeSet};

use oleo_format::{Generation, ItemType, Key, QgroupInfoItem, QgroupLimitFlags, QgroupLimitItem, QgroupStatus, TreeId};
use oleo_tree::{Blocks, Change, TreeRoot};
use zerocopy::IntoBytes;

use crate::TxnError;
use crate::root_sets::{RootSet, RootSets};

/// The number of a quota group: the level in the upper 16 bits, below it a number, which at level 0 is that of a subvolume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QgroupId(pub u64);

impl QgroupId {
    /// A group by level and number, of which 48 bits count.
    pub fn new(level: u16, number: u64) -> QgroupId {
        QgroupId(u64::from(level) << 48 | number & ((1 << 48) - 1))
    }

    /// The group of a subvolume.
    pub fn of(tree: TreeId) -> QgroupId {
        QgroupId(tree.0)
    }

    /// How far it is above subvolumes.
    pub fn level(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// The number without the level.
    pub fn number(self) -> u64 {
        self.0 & ((1 << 48) - 1)
    }
}

impl std::fmt::Display for QgroupId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.level(), self.number())
    }
}

/// What a group may use; `None`: as much as there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QgroupLimit {
    /// Referenced bytes at most.
    pub max_rfer: Option<u64>,
    /// Exclusive bytes at most.
    pub max_excl: Option<u64>,
}

impl QgroupLimit {
    fn of(item: &QgroupLimitItem) -> QgroupLimit {
        let flags = QgroupLimitFlags::from_bits_retain(item.flags.get());
        let set = |flag, value: u64| flags.contains(flag).then_some(value);
        QgroupLimit {
            max_rfer: set(QgroupLimitFlags::MAX_RFER, item.max_rfer.get()),
            max_excl: set(QgroupLimitFlags::MAX_EXCL, item.max_excl.get()),
        }
    }

    fn item(self) -> QgroupLimitItem {
        let mut flags = QgroupLimitFlags::empty();
        flags.set(QgroupLimitFlags::MAX_RFER, self.max_rfer.is_some());
        flags.set(QgroupLimitFlags::MAX_EXCL, self.max_excl.is_some());
        QgroupLimitItem {
            flags: flags.bits().into(),
            max_rfer: self.max_rfer.unwrap_or(0).into(),
            max_excl: self.max_excl.unwrap_or(0).into(),
            ..QgroupLimitItem::default()
        }
    }
}

/// A quota group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Qgroup {
    /// Bytes that its subvolumes reach.
    pub rfer: u64,
    /// Bytes that nobody else reaches.
    pub excl: u64,
    /// What it may use.
    pub limit: QgroupLimit,
    /// The groups that it is in.
    pub parents: BTreeSet<QgroupId>,
    /// The groups that are in it.
    pub children: BTreeSet<QgroupId>,
    /// Bytes that operations under way may come to use.
    pub reserved: u64,
}

/// Bytes that moved from what one set of trees reaches to what another does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Move {
    pub from: RootSet,
    pub to: RootSet,
    pub bytes: u64,
}

/// All groups.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub status: QgroupStatus,
    pub groups: BTreeMap<QgroupId, Qgroup>,
    /// Groups whose numbers on disk are older.
    dirty: BTreeSet<QgroupId>,
}

impl Table {
    pub fn new(status: QgroupStatus) -> Table {
        Table { status, groups: BTreeMap::new(), dirty: BTreeSet::new() }
    }

    /// Reads the quota tree; `None` if it says that quota is off.
    pub fn load(blocks: &Blocks, root: &TreeRoot) -> Result<Option<Table>, TxnError> {
        let mut status = None;
        let mut groups: BTreeMap<QgroupId, Qgroup> = BTreeMap::new();
        let mut relations = Vec::new();
        blocks.scan(root, Key::MIN, Key::MAX, |key, item| {
            let id = QgroupId(key.offset);
            match key.item_type {
                ItemType::QGROUP_STATUS => status = Some(QgroupStatus::parse(item)?),
                ItemType::QGROUP_INFO => {
                    let info = QgroupInfoItem::parse_start(item)?;
                    let group = groups.entry(id).or_default();
                    (group.rfer, group.excl) = (info.rfer.get(), info.excl.get());
                }
                ItemType::QGROUP_LIMIT => {
                    groups.entry(id).or_default().limit = QgroupLimit::of(QgroupLimitItem::parse_start(item)?);
                }
                ItemType::QGROUP_RELATION => relations.push((QgroupId(key.objectid), id)),
                _ => {}
            }
            Ok::<_, TxnError>(std::ops::ControlFlow::Continue(()))
        })?;
        let Some(status) = status else { return Ok(None) };
        let mut table = Table { groups, ..Table::new(status) };
        for (a, b) in relations {
            // Each is there from both sides; groups that are gone have none, and levels rise.
            if a.level() < b.level() && table.groups.contains_key(&a) && table.groups.contains_key(&b) {
                table.relate(a, b);
            }
        }
        Ok(Some(table))
    }

    pub fn relate(&mut self, member: QgroupId, parent: QgroupId) {
        self.groups.entry(member).or_default().parents.insert(parent);
        self.groups.entry(parent).or_default().children.insert(member);
    }

    pub fn unrelate(&mut self, member: QgroupId, parent: QgroupId) {
        if let Some(group) = self.groups.get_mut(&member) {
            group.parents.remove(&parent);
        }
        if let Some(group) = self.groups.get_mut(&parent) {
            group.children.remove(&member);
        }
    }

    /// A group and all that it is in, at any level; empty if there is no such group. Levels rise, so this ends.
    pub fn above(&self, id: QgroupId) -> BTreeSet<QgroupId> {
        let mut all = BTreeSet::new();
        let mut todo = vec![id];
        while let Some(next) = todo.pop() {
            let Some(group) = self.groups.get(&next) else { continue };
            if all.insert(next) {
                todo.extend(&group.parents);
            }
        }
        all
    }

    /// The subvolumes of a group.
    pub fn trees_of(&self, id: QgroupId) -> BTreeSet<TreeId> {
        let mut all = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let mut todo = vec![id];
        while let Some(next) = todo.pop() {
            if !seen.insert(next) {
                continue;
            }
            if next.level() == 0 && self.groups.contains_key(&next) {
                all.insert(TreeId(next.0));
            }
            todo.extend(self.groups.get(&next).into_iter().flat_map(|group| &group.children));
        }
        all
    }

    pub fn note(&mut self, id: QgroupId) {
        self.dirty.insert(id);
    }

    pub fn remove(&mut self, id: QgroupId) {
        let Some(group) = self.groups.remove(&id) else { return };
        for parent in group.parents {
            if let Some(parent) = self.groups.get_mut(&parent) {
                parent.children.remove(&id);
            }
        }
        for child in group.children {
            if let Some(child) = self.groups.get_mut(&child) {
                child.parents.remove(&id);
            }
        }
        self.dirty.remove(&id);
    }

    /// Counts bytes that moved. Returns whether the numbers could be right: if more is taken than there is, they were wrong before.
    pub fn apply(&mut self, sets: &RootSets, moves: &[Move]) -> bool {
        let mut sound = true;
        let mut above: BTreeMap<TreeId, BTreeSet<QgroupId>> = BTreeMap::new();
        // How many trees of either set are in a group.
        let mut counts: BTreeMap<QgroupId, (usize, usize)> = BTreeMap::new();
        for m in moves.iter().filter(|m| m.from != m.to) {
            let (from, to) = (sets.trees(m.from), sets.trees(m.to));
            counts.clear();
            for (trees, old) in [(from, true), (to, false)] {
                for tree in trees.iter() {
                    let groups = above.entry(*tree).or_insert_with(|| self.above(QgroupId::of(*tree)));
                    for group in groups.iter() {
                        let count = counts.entry(*group).or_default();
                        *(if old { &mut count.0 } else { &mut count.1 }) += 1;
                    }
                }
            }
            for (id, (old, new)) in &counts {
                let Some(group) = self.groups.get_mut(id) else { continue };
                let mut shift = |value: &mut u64, was: bool, is: bool| {
                    let now = match (was, is) {
                        (true, false) => value.checked_sub(m.bytes),
                        (false, true) => value.checked_add(m.bytes),
                        _ => return false,
                    };
                    sound &= now.is_some();
                    *value = now.unwrap_or(0);
                    true
                };
                let all = |count: usize, of: usize| count > 0 && count == of;
                let rfer = shift(&mut group.rfer, *old > 0, *new > 0);
                let excl = shift(&mut group.excl, all(*old, from.len()), all(*new, to.len()));
                if rfer || excl {
                    self.dirty.insert(*id);
                }
            }
        }
        sound
    }

    /// Counts that a tree is now what another one is, block by block. Only if [`Table::can_copy`] holds.
    pub fn apply_copy(&mut self, source: TreeId, new: TreeId) {
        let rfer = self.groups.get(&QgroupId::of(source)).map_or(0, |group| group.rfer);
        let (olds, news) = (self.above(QgroupId::of(source)), self.above(QgroupId::of(new)));
        for id in news.difference(&olds) {
            let group = self.groups.entry(*id).or_default();
            group.rfer = group.rfer.saturating_add(rfer);
            self.dirty.insert(*id);
        }
        for id in olds.difference(&news) {
            self.groups.entry(*id).or_default().excl = 0;
            self.dirty.insert(*id);
        }
    }

    /// Whether the numbers say what a copy of a tree does to them: groups that only one of the two is in have no other
    /// subvolumes.
    pub fn can_copy(&self, source: TreeId, new: TreeId) -> bool {
        let (olds, news) = (self.above(QgroupId::of(source)), self.above(QgroupId::of(new)));
        olds.contains(&QgroupId::of(source)) && olds.symmetric_difference(&news).all(|id| self.trees_of(*id).len() == 1)
    }

    /// Whether it makes no difference to any number that a tree without groups no longer reaches what all of `others` do,
    /// and perhaps more trees.
    pub fn is_free_of(&self, tree: TreeId, others: &[TreeId]) -> bool {
        if others.is_empty() || self.groups.contains_key(&QgroupId::of(tree)) {
            return false;
        }
        let mut common: Option<BTreeSet<QgroupId>> = None;
        for other in others {
            let above = self.above(QgroupId::of(*other));
            common = Some(match common {
                None => above,
                Some(common) => &common & &above,
            });
            if common.as_ref().is_some_and(BTreeSet::is_empty) {
                return true;
            }
        }
        false
    }

    /// Whether no group of any level has two subvolumes, or another group, in it.
    pub fn is_flat(&self) -> bool {
        self.groups.values().all(|group| group.children.is_empty())
    }

    /// Sets all numbers to nothing.
    pub fn zero(&mut self) {
        for (id, group) in &mut self.groups {
            (group.rfer, group.excl) = (0, 0);
            self.dirty.insert(*id);
        }
    }

    /// The items of what changed, sorted: numbers and status.
    pub fn take_changes(&mut self, generation: Generation) -> Vec<Change> {
        self.status.generation = generation;
        let mut changes = vec![Change::put(status_key(), self.status.encode())];
        for id in std::mem::take(&mut self.dirty) {
            if let Some(group) = self.groups.get(&id) {
                changes.push(group.info_change(id, generation));
            }
        }
        changes
    }
}

impl Qgroup {
    pub(crate) fn info_change(&self, id: QgroupId, generation: Generation) -> Change {
        let (rfer, excl) = (self.rfer.into(), self.excl.into());
        let info = QgroupInfoItem { generation: generation.0.into(), rfer, rfer_cmpr: rfer, excl, excl_cmpr: excl };
        Change::put(info_key(id), info.as_bytes().to_vec())
    }

    pub(crate) fn limit_change(&self, id: QgroupId) -> Change {
        Change::put(limit_key(id), self.limit.item().as_bytes().to_vec())
    }
}

pub(crate) fn status_key() -> Key {
    Key::new(0, ItemType::QGROUP_STATUS, 0)
}

pub(crate) fn info_key(id: QgroupId) -> Key {
    Key::new(0, ItemType::QGROUP_INFO, id.0)
}

pub(crate) fn limit_key(id: QgroupId) -> Key {
    Key::new(0, ItemType::QGROUP_LIMIT, id.0)
}

/// The two items of a relation, sorted.
pub(crate) fn relation_keys(member: QgroupId, parent: QgroupId) -> [Key; 2] {
    let key = |a: QgroupId, b: QgroupId| Key::new(a.0, ItemType::QGROUP_RELATION, b.0);
    let mut keys = [key(member, parent), key(parent, member)];
    keys.sort_unstable();
    keys
}
