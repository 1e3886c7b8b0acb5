//! What users do to quota groups, staged: nobody else is inside, and it becomes durable with the next commit.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use oleo_format::{Generation, Incompat, ItemType, Key, QgroupStatus, QgroupStatusFlags, RootItem, TreeId};
use oleo_tree::{Change, DropPlan, DropStep};

use super::play_back;
use super::table::{Move, Qgroup, QgroupId, QgroupLimit, Table, info_key, limit_key, relation_keys, status_key};
use crate::TxnError;
use crate::root_sets::{RootSet, RootSets};
use crate::staged::Staged;
use crate::trees::TreeState;

/// What became of the numbers when a group was put into or taken out of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Assigned {
    /// They are right.
    Exact,
    /// They are not known; all must be counted anew, and are marked so.
    NeedsScan,
}

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QuotaMode {
    /// What subvolumes reach, and what nobody else does.
    Full,
    /// What they wrote first, from now on.
    Simple,
}

/// Quota is off: ENOTCONN, as the kernel has it.
fn off() -> TxnError {
    TxnError::QuotaOff
}

fn refused(errno: i32, text: String) -> TxnError {
    TxnError::Qgroup { errno, text }
}

const ENOENT: i32 = 2;
const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;

impl Staged<'_> {
    /// Runs `f` on the groups, and writes the changes that it gives (sorted here).
    fn edit<R>(&mut self, f: impl FnOnce(&mut Table, &mut Vec<Change>) -> Result<R, TxnError>) -> Result<R, TxnError> {
        let mut changes = Vec::new();
        let done = {
            let mut table = self.inner().quota.table.write();
            f(table.as_mut().ok_or_else(off)?, &mut changes)?
        };
        let quota = &self.inner().quota;
        quota.charges.follow(&quota.table);
        changes.sort_by_key(|change: &Change| change.key);
        self.put(TreeId::QUOTA, &changes)?;
        Ok(done)
    }

    /// Turns quota on: a tree for it, and a group for every subvolume. Full quotas are to be counted next; simple ones count
    /// what is written from the next transaction on. If it is on in the same way already, nothing happens.
    pub fn quota_enable(&mut self, subvols: &[TreeId], mode: QuotaMode) -> Result<(), TxnError> {
        let simple = mode == QuotaMode::Simple;
        if let Some(table) = &*self.inner().quota.table.read() {
            if table.is_simple() == simple {
                return Ok(());
            }
            let other = if simple { "full" } else { "simple" };
            return Err(refused(EEXIST, format!("quota is on already, with {other} accounting; turn it off first")));
        }
        if self.inner().trees.get(&self.inner().blocks, TreeId::QUOTA)?.is_some() {
            self.remove_quota_tree()?;
        }
        let generation = self.generation();
        let mut item = RootItem::default();
        item.refs.set(1);
        item.bytes_used.set(u64::from(self.inner().rules.nodesize));
        self.create_tree(TreeId::QUOTA, item)?;
        let status = QgroupStatus {
            version: 1,
            generation,
            flags: QgroupStatusFlags::ON
                | if simple { QgroupStatusFlags::SIMPLE_MODE } else { QgroupStatusFlags::INCONSISTENT },
            rescan: 0,
            // What this transaction makes may have been made before quota was on.
            enable_gen: Some(if simple { Generation(generation.0 + 1) } else { Generation(0) }),
        };
        let mut table = Table::new(status);
        for tree in subvols {
            table.groups.insert(QgroupId::of(*tree), Qgroup::default());
        }
        let mut changes = vec![Change::put(status_key(), status.encode())];
        for (id, group) in &table.groups {
            changes.push(group.info_change(*id, generation));
            changes.push(group.limit_change(*id));
        }
        changes.sort_by_key(|change| change.key);
        self.put(TreeId::QUOTA, &changes)?;
        *self.inner().quota.table.write() = Some(table);
        if simple {
            self.inner().wanted_incompat.fetch_or(Incompat::SIMPLE_QUOTA.bits(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Turns quota off: its tree goes. After simple quotas the volume keeps the feature: extents say whose they are.
    pub fn quota_disable(&mut self) -> Result<(), TxnError> {
        let inner = self.inner();
        let was = inner.quota.table.write().take();
        *inner.quota.scan.lock() = None;
        inner.quota.owners.clear();
        inner.quota.charges.follow(&inner.quota.table);
        if was.is_none() && inner.trees.get(&inner.blocks, TreeId::QUOTA)?.is_none() {
            return Err(off());
        }
        self.remove_quota_tree()
    }

    fn remove_quota_tree(&mut self) -> Result<(), TxnError> {
        let (inner, generation) = (self.inner(), self.generation());
        let state = inner.tree(TreeId::QUOTA)?;
        let plan = DropPlan { created: Generation(0), from: None, budget_blocks: usize::MAX, full_root: false };
        let step = inner
            .with_env(&state, TreeId::QUOTA, generation, |env| inner.blocks.drop_tree(&state.root, &plan, env))
            .map_err(|e| inner.poison(e))?;
        debug_assert_eq!(step, DropStep::Done, "without a budget it goes to the end");
        self.put(TreeId::ROOT, &[Change::delete(Key::new(TreeId::QUOTA.0, ItemType::ROOT_ITEM, state.key_offset))])?;
        inner.trees.remove(TreeId::QUOTA);
        Ok(())
    }

    /// Makes a group of level 1 or higher.
    pub fn qgroup_create(&mut self, id: QgroupId) -> Result<(), TxnError> {
        if id.level() == 0 {
            return Err(refused(EINVAL, format!("group {id}: groups of level 0 come and go with subvolumes")));
        }
        self.new_group(id, true)
    }

    fn new_group(&mut self, id: QgroupId, exclusive: bool) -> Result<(), TxnError> {
        let generation = self.generation();
        self.edit(|table, changes| {
            if table.groups.contains_key(&id) {
                return if exclusive { Err(refused(EEXIST, format!("group {id} is there already"))) } else { Ok(()) };
            }
            let group = Qgroup::default();
            changes.push(group.info_change(id, generation));
            changes.push(group.limit_change(id));
            table.groups.insert(id, group);
            Ok(())
        })
    }

    /// Removes a group without members; one of level 0 when its subvolume is gone. As long as a deleted subvolume is being
    /// dropped, and until the commit that counts the end of it, the groups that its group is in lose with it what it still has.
    pub fn qgroup_destroy(&mut self, id: QgroupId) -> Result<(), TxnError> {
        let (mut lives, mut goes) = (false, false);
        if id.level() == 0 {
            let inner = self.inner();
            let state = inner.trees.get(&inner.blocks, TreeId(id.0))?;
            lives = state.as_ref().is_some_and(TreeState::is_alive);
            let notes = inner.quota.notes.lock();
            goes = state.is_some() || notes.dropped.iter().any(|state| state.root.tree.0 == id.0);
        }
        self.edit(|table, changes| {
            let group = table.groups.get(&id).ok_or_else(|| refused(ENOENT, format!("no group {id}")))?;
            let owns = table.is_simple() && id.level() == 0 && group.rfer > 0;
            if goes || owns || !group.children.is_empty() {
                let why = match () {
                    () if lives => "its subvolume is there",
                    () if goes => "its subvolume is being removed (subvolume sync waits for that)",
                    () if owns => "others share what its subvolume wrote",
                    () => "others are in it",
                };
                return Err(refused(EBUSY, format!("group {id} is in use: {why}")));
            }
            remove(table, id, changes);
            Ok(())
        })
    }

    /// Puts a group into another of a higher level.
    pub fn qgroup_assign(&mut self, member: QgroupId, parent: QgroupId) -> Result<Assigned, TxnError> {
        self.edit(|table, changes| {
            check_pair(table, member, parent)?;
            if table.groups[&member].parents.contains(&parent) {
                return Err(refused(EEXIST, format!("group {member} is in {parent} already")));
            }
            changes.extend(relation_keys(member, parent).map(|key| Change::put(key, [])));
            let done = table.relate_counted(member, parent);
            Ok(mark(table, done, changes))
        })
    }

    /// Takes a group out of another.
    pub fn qgroup_remove(&mut self, member: QgroupId, parent: QgroupId) -> Result<Assigned, TxnError> {
        self.edit(|table, changes| {
            check_pair(table, member, parent)?;
            if !table.groups[&member].parents.contains(&parent) {
                return Err(refused(ENOENT, format!("group {member} is not in {parent}")));
            }
            changes.extend(relation_keys(member, parent).map(Change::delete));
            let done = table.unrelate_counted(member, parent);
            Ok(mark(table, done, changes))
        })
    }

    /// Sets what a group may use.
    pub fn qgroup_limit(&mut self, id: QgroupId, limit: QgroupLimit) -> Result<(), TxnError> {
        self.edit(|table, changes| {
            let group = table.groups.get_mut(&id).ok_or_else(|| refused(ENOENT, format!("no group {id}")))?;
            group.limit = limit;
            changes.push(group.limit_change(id));
            Ok(())
        })
    }

    /// Fails if a new subvolume cannot be put into these groups.
    pub fn qgroups_are_there(&self, groups: &[QgroupId]) -> Result<(), TxnError> {
        if groups.is_empty() {
            return Ok(());
        }
        let table = self.inner().quota.table.read();
        let table = table.as_ref().ok_or_else(off)?;
        match groups.iter().find(|id| id.level() == 0 || !table.groups.contains_key(id)) {
            Some(wrong) => Err(refused(EINVAL, format!("a subvolume cannot be put into group {wrong}"))),
            None => Ok(()),
        }
    }

    /// The groups that a new subvolume comes into where these are asked for: with simple quotas, where none are, those that the
    /// subvolume is in which it is made in.
    pub fn qgroups_of_new(&self, wanted: &[QgroupId], made_in: TreeId) -> Vec<QgroupId> {
        let table = self.inner().quota.table.read();
        let Some(table) = table.as_ref().filter(|table| wanted.is_empty() && table.is_simple()) else {
            return wanted.to_vec();
        };
        table.groups.get(&QgroupId::of(made_in)).into_iter().flat_map(|group| group.parents.iter().copied()).collect()
    }

    /// Puts a subvolume that has just been made into groups. Nothing is counted yet, so that the numbers stay right.
    pub fn qgroups_join(&mut self, tree: TreeId, groups: &[QgroupId]) -> Result<(), TxnError> {
        let mut groups = groups.to_vec();
        groups.sort_unstable();
        groups.dedup();
        for parent in groups {
            self.qgroup_assign(QgroupId::of(tree), parent)?;
        }
        Ok(())
    }

    /// A new subvolume gets a group.
    pub(crate) fn quota_of_new(&mut self, tree: TreeId) -> Result<(), TxnError> {
        if !tree.is_subvol() || self.inner().quota.table.read().is_none() {
            return Ok(());
        }
        self.new_group(QgroupId::of(tree), false)
    }

    /// So does a snapshot, with full quotas one with the limits of its source, as with the kernel.
    pub(crate) fn quota_of_snapshot(&mut self, source: TreeId, target: TreeId) -> Result<(), TxnError> {
        self.quota_of_new(target)?;
        let limit = {
            let table = self.inner().quota.table.read();
            let full = table.as_ref().filter(|table| !table.is_simple());
            full.and_then(|table| table.groups.get(&QgroupId::of(source))).map(|group| group.limit)
        };
        match limit.filter(|limit| *limit != QgroupLimit::default()) {
            Some(limit) => self.qgroup_limit(QgroupId::of(target), limit),
            None => Ok(()),
        }
    }

    /// A subvolume was deleted. A group that is in no other goes immediately: what the tree still holds until it is dropped is
    /// shared with something that no group stands for. One that is in others stays until the tree is gone, with simple quotas any.
    pub(crate) fn quota_of_deleted(&mut self, tree: TreeId) -> Result<(), TxnError> {
        let id = QgroupId::of(tree);
        let group = self.inner().quota.table.read().as_ref().and_then(|table| table.groups.get(&id).cloned());
        match group {
            Some(group) if group.parents.is_empty() && !self.inner().has_simple_quota() => {
                self.edit(|table, changes| {
                    remove(table, id, changes);
                    Ok(())
                })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn scan_begin(&mut self) -> Result<(), TxnError> {
        *self.inner().quota.scan.lock() = None;
        self.edit(|table, changes| {
            if table.is_simple() {
                return Err(refused(EINVAL, "simple quotas are never counted anew".into()));
            }
            table.status.flags |= QgroupStatusFlags::RESCAN;
            table.status.rescan = 0;
            table.zero();
            changes.push(Change::put(status_key(), table.status.encode()));
            Ok(())
        })
    }

    pub(crate) fn scan_end(&mut self, shares: &HashMap<Arc<[TreeId]>, u64>) -> Result<(), TxnError> {
        let Some(scan) = self.inner().quota.scan.lock().take() else {
            return Err(refused(EINVAL, "no scan of quota is under way".into()));
        };
        let mut shares = shares.clone();
        let sound = play_back(&mut shares, scan.log);
        self.edit(|table, changes| {
            table.zero();
            let mut sets = RootSets::default();
            let moves: Vec<Move> = shares
                .iter()
                .map(|(trees, bytes)| Move { from: RootSet::EMPTY, to: sets.of(trees), bytes: *bytes })
                .collect();
            let sound = table.apply(&sets, &moves) && sound;
            table.status.flags -= QgroupStatusFlags::RESCAN;
            table.status.flags.set(QgroupStatusFlags::INCONSISTENT, !sound);
            changes.push(Change::put(status_key(), table.status.encode()));
            Ok(())
        })
    }
}

/// Removes a group with its items.
pub(super) fn remove(table: &mut Table, id: QgroupId, changes: &mut Vec<Change>) {
    let Some(group) = table.groups.get(&id) else { return };
    for parent in &group.parents {
        changes.extend(relation_keys(id, *parent).map(Change::delete));
    }
    changes.push(Change::delete(info_key(id)));
    changes.push(Change::delete(limit_key(id)));
    table.remove(id);
}

fn check_pair(table: &Table, member: QgroupId, parent: QgroupId) -> Result<(), TxnError> {
    if member.level() >= parent.level() {
        return Err(refused(EINVAL, format!("group {parent} is not of a higher level than {member}")));
    }
    match [member, parent].into_iter().find(|id| !table.groups.contains_key(id)) {
        Some(missing) => Err(refused(ENOENT, format!("no group {missing}"))),
        None => Ok(()),
    }
}

fn mark(table: &mut Table, done: Assigned, changes: &mut Vec<Change>) -> Assigned {
    if done == Assigned::NeedsScan {
        table.status.flags |= QgroupStatusFlags::INCONSISTENT;
        changes.push(Change::put(status_key(), table.status.encode()));
    }
    done
}

impl Table {
    /// Puts a group into another, and counts it there where the numbers say how.
    fn relate_counted(&mut self, member: QgroupId, parent: QgroupId) -> Assigned {
        if self.is_simple() {
            self.relate(member, parent);
            self.sum_up(parent);
            return Assigned::Exact;
        }
        let (trees, uses) = (self.trees_of(member), self.groups[&member].clone());
        let mut done = Assigned::Exact;
        for id in self.above(parent) {
            let there = self.trees_of(id);
            if trees.is_subset(&there) {
                continue;
            }
            let Some(group) = self.groups.get_mut(&id) else { continue };
            if there.is_empty() || (uses.rfer == uses.excl && there.is_disjoint(&trees)) {
                group.rfer = group.rfer.saturating_add(uses.rfer);
                group.excl = group.excl.saturating_add(uses.excl);
                self.note(id);
            } else {
                done = Assigned::NeedsScan;
            }
        }
        self.relate(member, parent);
        done
    }

    /// Takes a group out of another, likewise.
    fn unrelate_counted(&mut self, member: QgroupId, parent: QgroupId) -> Assigned {
        if self.is_simple() {
            self.unrelate(member, parent);
            self.sum_up(parent);
            return Assigned::Exact;
        }
        let (trees, uses) = (self.trees_of(member), self.groups[&member].clone());
        let above = self.above(parent);
        self.unrelate(member, parent);
        let mut done = Assigned::Exact;
        for id in above {
            let left = self.trees_of(id);
            if trees.is_subset(&left) {
                continue;
            }
            let Some(group) = self.groups.get_mut(&id) else { continue };
            if left.is_empty() {
                (group.rfer, group.excl) = (0, 0);
            } else if uses.rfer == uses.excl && left.is_disjoint(&trees) && group.excl >= uses.excl {
                group.rfer = group.rfer.saturating_sub(uses.rfer);
                group.excl -= uses.excl;
            } else {
                done = Assigned::NeedsScan;
                continue;
            }
            self.note(id);
        }
        done
    }
}

impl TreeState {
    /// Whether the tree is there and has not been deleted.
    pub(crate) fn is_alive(&self) -> bool {
        self.item.as_ref().is_none_or(|item| item.refs.get() > 0)
    }
}
