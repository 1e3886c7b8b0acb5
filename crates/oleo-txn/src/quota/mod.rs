//! Quota groups: kept exact by every commit, changed by staged operations, counted anew by a scan.
//!
//! Two ways of counting: *full* quotas count what subvolumes reach, and what they reach alone; *simple* ones (`simple`)
//! what they wrote first. The groups, their limits and what users can do with them are the same.
//!
//! Normal path of full quotas: (1) operations note what trees alone do not show: snapshots made, trees dropped; (2) when a commit has
//! settled everything else, `account` finds the extents whose owners changed; (3) `table` turns that into numbers; (4) the items that
//! changed go to the quota tree, with a status that names this transaction, and settling continues with the changes that this makes.
//!
//! A scan counts everything from the roots of one commit, outside of transactions. Until it ends, the numbers and the progress on disk
//! are zero, so that a later scan, ours or the kernel's, starts from the beginning. Commits meanwhile keep what they would have
//! counted (`Scan::log`); it is added to what the scan found.
//!
//! Locks: `table`, `notes` and `scan`, in this order, held for look-ups and stores, never over I/O; `limits` has one more. What groups there are and
//! how they hang together changes only with the commit lock held.
//! Crash: numbers and what they count are in the same transaction.

mod account;
pub(crate) mod charges;
mod edit;
pub(crate) mod limits;
pub(crate) mod simple;
pub(crate) mod state;
pub(crate) mod table;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use oleo_format::{Generation, ItemType, Key, QgroupStatusFlags, TreeId};
use oleo_tree::{DropProgress, TreeRoot};

use crate::TxnError;
use crate::engine::{Engine, Inner};
use crate::readers::Reader;
use crate::root_sets::RootSets;
use crate::trees::TreeState;

pub use edit::{Assigned, QuotaMode};
pub use table::{Qgroup, QgroupId, QgroupLimit};

use simple::OwnedBytes;
use state::{Op, Scan};
use table::{Move, Table};

/// What quota is at the moment.
#[derive(Clone, Debug)]
pub struct QuotaState {
    /// Flags of the status item.
    pub flags: QgroupStatusFlags,
    /// The transaction that the numbers are of.
    pub generation: Generation,
    /// With simple quotas: extents count from this transaction on.
    pub since: Option<Generation>,
    /// All groups, in the order of their numbers.
    pub groups: Vec<(QgroupId, Qgroup)>,
}

/// The trees of one commit, for a scan to count. They stay as they are while this lives.
pub struct ScanBase {
    /// Every subvolume's root, those being deleted included, and how far the deletion of it has come.
    pub roots: Vec<(TreeRoot, Option<DropProgress>)>,
    _reader: Reader,
}

impl Engine {
    /// What quota is; `None` if it is off.
    pub fn quota(&self) -> Option<QuotaState> {
        self.0.quota.table.read().as_ref().map(|table| QuotaState {
            flags: table.status.flags,
            generation: table.status.generation,
            since: table.status.enable_gen.filter(|_| table.is_simple()),
            groups: table.groups.iter().map(|(id, group)| (*id, group.clone())).collect(),
        })
    }

    /// Extents that commits have looked at for quota since the volume was opened: what trees lost and gained, the counter
    /// `qgroup.dirty_extents`.
    pub fn quota_dirty_extents(&self) -> u64 {
        self.0.quota.dirty_extents.load(Ordering::Relaxed)
    }

    /// Begins to count anew: numbers are zero until [`Engine::scan_end`].
    pub fn scan_begin(&self) -> Result<ScanBase, TxnError> {
        self.stage(|staged| staged.scan_begin())?;
        self.commit()?;
        self.scan_base(true)
    }

    /// The subvolumes of the last commit; with `log`, what is committed from now on is kept for [`Engine::scan_end`].
    pub fn scan_base(&self, log: bool) -> Result<ScanBase, TxnError> {
        let inner = &*self.0;
        // No commit begins or ends meanwhile.
        let _one = inner.commit_lock.lock();
        inner.write_unwritten()?;
        let reader = self.reader();
        if log {
            *inner.quota.scan.lock() = Some(Scan { log: Vec::new() });
        }
        let committed = inner.committed_root_tree();
        let mut roots = Vec::new();
        let from = Key::new(TreeId::FS.0, ItemType::ROOT_ITEM, 0);
        inner.blocks.scan(&committed, from, Key::MAX, |key, item| {
            let tree = TreeId(key.objectid);
            if tree.is_subvol() && key.item_type == ItemType::ROOT_ITEM {
                let state = TreeState::of(tree, key, item)?;
                let progress = state.drop_progress();
                roots.push((state.root, progress));
            }
            Ok::<_, TxnError>(std::ops::ControlFlow::Continue(()))
        })?;
        Ok(ScanBase { roots, _reader: reader })
    }

    /// A count is not carried on: the groups stay marked as being counted.
    pub fn scan_give_up(&self) {
        *self.0.quota.scan.lock() = None;
    }

    /// Ends a count: bytes by the set of trees that reaches them, as of the base. Durable with the next commit.
    pub fn scan_end(&self, shares: &HashMap<Arc<[TreeId]>, u64>) -> Result<(), TxnError> {
        // What has been staged would be counted by the commit after the numbers are set.
        self.commit()?;
        self.stage(|staged| staged.scan_end(shares))
    }
}

impl Inner {
    /// The root tree of the last commit.
    pub(crate) fn committed_root_tree(&self) -> TreeRoot {
        let sb = self.super_block.lock();
        TreeRoot::on_disk(TreeId::ROOT, sb.root(), sb.generation(), sb.root_level)
    }

    /// Reads the quota tree when a volume is opened for writing.
    pub(crate) fn load_quota(&self) -> Result<(), TxnError> {
        let Some(state) = self.trees.get(&self.blocks, TreeId::QUOTA)? else { return Ok(()) };
        let mut table = Table::load(&self.blocks, &state.root)?;
        if let Some(table) = &mut table
            && !table.status.flags.contains(QgroupStatusFlags::SIMPLE_MODE)
            && table.status.generation != self.super_block.lock().generation()
        {
            // Somebody who does not keep quota has written meanwhile.
            table.status.flags |= QgroupStatusFlags::INCONSISTENT;
        }
        if let Some(table) = &mut table
            && table.status.flags.contains(QgroupStatusFlags::RESCAN)
        {
            // Somebody's count was cut short. What commits do from now on is not in what it counted, so it begins anew:
            // a later scan, the kernel's too, finds nothing counted and no progress.
            table.zero();
            table.status.rescan = 0;
        }
        let table = table.filter(|table| table.status.flags.contains(QgroupStatusFlags::ON));
        *self.quota.table.write() = table;
        self.quota.charges.follow(&self.quota.table);
        Ok(())
    }

    /// No commit is under way. If the open transaction is empty, too, whatever was charged to it is not used.
    pub(crate) fn quota_idle(&self) {
        if !self.quota.charges.limited() {
            return;
        }
        // An operation that is joined may have been charged.
        let _freeze_guard = self.barrier.block_joins();
        if !self.touched.load(Ordering::Acquire) {
            self.quota.charges.freeze();
            self.quota.charges.settled(&self.quota.table);
        }
    }

    /// The commit is durable: what it may have used is in the numbers.
    pub(crate) fn quota_settled(&self) {
        if self.quota.charges.limited() {
            self.quota.charges.settled(&self.quota.table);
        }
    }

    /// Counts what the transaction changed, all else being settled; returns whether there was anything to write. With simple quotas
    /// that is what subvolumes came to own.
    pub(crate) fn count_quota(&self, generation: Generation, owned: &OwnedBytes) -> Result<bool, TxnError> {
        let notes = std::mem::take(&mut *self.quota.notes.lock());
        let dropped: Vec<TreeId> = notes.dropped.iter().map(|state| state.root.tree).collect();
        let Some(flags) = self.quota.table.read().as_ref().map(|table| table.status.flags) else { return Ok(false) };
        let simple = flags.contains(QgroupStatusFlags::SIMPLE_MODE);
        let counts = !flags.intersects(QgroupStatusFlags::INCONSISTENT | QgroupStatusFlags::RESCAN);
        let scans = self.quota.scan.lock().is_some();
        if let Some(table) = self.quota.table.write().as_mut().filter(|_| simple) {
            if !table.own(owned) {
                table.status.flags |= QgroupStatusFlags::INCONSISTENT;
            }
        } else if counts || scans {
            let (sets, ops) = account::account(self, generation, &self.committed_root_tree(), notes)?;
            if counts {
                let mut table = self.quota.table.write();
                if let Some(table) = table.as_mut() {
                    table.play(&sets, &ops);
                }
            }
            if let Some(scan) = &mut *self.quota.scan.lock() {
                scan.log.push((sets, ops));
            }
        }
        let changes = {
            let mut table = self.quota.table.write();
            let Some(table) = table.as_mut() else { return Ok(false) };
            let mut gone = Vec::new();
            for id in dropped.into_iter().map(QgroupId::of) {
                // What others share with it still counts for the tree that wrote it.
                if !simple || table.groups.get(&id).is_some_and(|group| group.rfer == 0) {
                    edit::remove(table, id, &mut gone);
                }
            }
            let mut changes = table.take_changes(generation);
            changes.append(&mut gone);
            changes.sort_by_key(|change| change.key);
            changes
        };
        self.apply(TreeId::QUOTA, &changes, generation)?;
        Ok(true)
    }
}

impl Table {
    fn play(&mut self, sets: &RootSets, ops: &[Op]) {
        for op in ops {
            match op {
                Op::Moves(moves) => {
                    if !self.apply(sets, moves) {
                        self.status.flags |= QgroupStatusFlags::INCONSISTENT;
                    }
                }
                Op::Copy { source, new } => self.apply_copy(*source, *new),
            }
        }
    }
}

/// Plays on what a scan counted what commits did since its base.
fn play_back(shares: &mut HashMap<Arc<[TreeId]>, u64>, log: Vec<(RootSets, Vec<Op>)>) -> bool {
    let mut sound = true;
    for (sets, ops) in log {
        for op in ops {
            match op {
                Op::Moves(moves) => {
                    for Move { from, to, bytes } in moves {
                        let (from, to) = (sets.trees(from), sets.trees(to));
                        if !from.is_empty() {
                            let have = shares.entry(from.clone()).or_default();
                            sound &= *have >= bytes;
                            *have = have.saturating_sub(bytes);
                        }
                        if !to.is_empty() {
                            *shares.entry(to.clone()).or_default() += bytes;
                        }
                    }
                }
                Op::Copy { source, new } => {
                    let old = std::mem::take(shares);
                    for (trees, bytes) in old {
                        let trees = match (trees.binary_search(&source), trees.binary_search(&new)) {
                            (Ok(_), Err(place)) => {
                                let mut more = trees.to_vec();
                                more.insert(place, new);
                                more.into()
                            }
                            _ => trees,
                        };
                        *shares.entry(trees).or_default() += bytes;
                    }
                }
            }
        }
    }
    sound
}
