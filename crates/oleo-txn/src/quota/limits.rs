//! Limits: what operations under way may come to use is charged to groups before it is used, so that EDQUOT comes from the
//! call.
//!
//! Normal path: (1) a writer is charged for the data that it buffers ([`Charge`]), an operation for the items that it may add;
//! both fail where a group would come to use more than it may, with what others were charged; (2) the charge of data
//! ends when it has been recorded: it becomes one of the open transaction; (3) a freeze turns those of the open transaction
//! into those of the frozen one, and the end of that commit, whose numbers have them, drops them. Nothing is left behind.
//!
//! What may be needed is more than what will be: before an operation is refused for good, everything is committed, and it
//! is asked for the least.
//!
//! Without any limit nothing is counted, and nobody meets here. Lock: `sums` (rank 54), for additions; `table` is read under it.
//! Crash: memory only.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashMap;
use oleo_format::{ByteLen, TreeId};
use parking_lot::{Mutex, RwLock};

use super::table::{QgroupId, Table};
use crate::TxnError;
use crate::engine::{Engine, Inner, Need};

/// Bytes of an item's place in a leaf beside its data (format: `struct btrfs_item`).
const ITEM_BYTES: u64 = 25;
/// A leaf that is split is half full.
const SPLIT_FACTOR: u64 = 2;

#[derive(Default)]
struct Sums {
    /// By tree: what writers have been promised, what the open transaction may use, what the frozen one may.
    held: HashMap<TreeId, u64>,
    open: HashMap<TreeId, u64>,
    frozen: HashMap<TreeId, u64>,
    /// The same by group, of whatever level.
    groups: HashMap<QgroupId, u64>,
}

/// What is charged at the moment.
#[derive(Default)]
pub(crate) struct Charges {
    /// Some group has a limit.
    limited: AtomicBool,
    sums: Mutex<Sums>,
}

/// Bytes that a tree may come to use. Dropped, it becomes one of the open transaction.
pub(crate) struct Charge {
    inner: Arc<Inner>,
    tree: TreeId,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut sums = self.inner.quota.charges.sums.lock();
        // Gone where quota was turned off meanwhile.
        if take(&mut sums.held, self.tree, self.bytes) {
            *sums.open.entry(self.tree).or_default() += self.bytes;
        }
    }
}

fn take(from: &mut HashMap<TreeId, u64>, tree: TreeId, bytes: u64) -> bool {
    match from.get_mut(&tree) {
        Some(have) if *have >= bytes => {
            *have -= bytes;
            if *have == 0 {
                from.remove(&tree);
            }
            true
        }
        _ => false,
    }
}

impl Charges {
    pub fn limited(&self) -> bool {
        self.limited.load(Ordering::Acquire)
    }

    /// Counts anew by group, after groups or limits changed.
    pub fn follow(&self, table: &RwLock<Option<Table>>) {
        let mut sums = self.sums.lock();
        let table = table.read();
        let limited = table.as_ref().is_some_and(|t| t.groups.values().any(|g| g.limit != Default::default()));
        self.limited.store(limited, Ordering::Release);
        let Some(table) = table.as_ref().filter(|_| limited) else {
            *sums = Sums::default();
            return;
        };
        let mut groups: HashMap<QgroupId, u64> = HashMap::new();
        for map in [&sums.held, &sums.open, &sums.frozen] {
            for (tree, bytes) in map {
                for id in table.above(QgroupId::of(*tree)) {
                    *groups.entry(id).or_default() += bytes;
                }
            }
        }
        sums.groups = groups;
    }

    /// The gate is closed.
    pub fn freeze(&self) {
        if !self.limited() {
            return;
        }
        let mut sums = self.sums.lock();
        for (tree, bytes) in std::mem::take(&mut sums.open) {
            *sums.frozen.entry(tree).or_default() += bytes;
        }
    }

    /// The numbers have what the frozen transaction used.
    pub fn settled(&self, table: &RwLock<Option<Table>>) {
        let mut sums = self.sums.lock();
        let table = table.read();
        let Some(table) = table.as_ref() else { return };
        for (tree, bytes) in std::mem::take(&mut sums.frozen) {
            for id in table.above(QgroupId::of(tree)) {
                let left = sums.groups.get(&id).map_or(0, |have| have.saturating_sub(bytes));
                if left == 0 {
                    sums.groups.remove(&id)
                } else {
                    sums.groups.insert(id, left)
                };
            }
        }
    }
}

impl Inner {
    /// Charges a tree, in the open transaction or for a [`Charge`]; false where a group would exceed what it may use.
    fn charge(&self, tree: TreeId, bytes: u64, held: bool) -> bool {
        let mut sums = self.quota.charges.sums.lock();
        let table = self.quota.table.read();
        let Some(table) = table.as_ref() else { return true };
        let above = table.above(QgroupId::of(tree));
        for id in &above {
            let group = &table.groups[id];
            let more = sums.groups.get(id).copied().unwrap_or(0).saturating_add(bytes);
            let exceeds = |uses: u64, max: Option<u64>| max.is_some_and(|max| uses.saturating_add(more) > max);
            if exceeds(group.rfer, group.limit.max_rfer) || exceeds(group.excl, group.limit.max_excl) {
                return false;
            }
        }
        for id in above {
            *sums.groups.entry(id).or_default() += bytes;
        }
        let of = if held { &mut sums.held } else { &mut sums.open };
        *of.entry(tree).or_default() += bytes;
        true
    }
}

impl Engine {
    /// Bytes that operations under way were charged to a tree's own group.
    pub fn quota_charged(&self, tree: TreeId) -> u64 {
        self.0.quota.charges.sums.lock().groups.get(&QgroupId::of(tree)).copied().unwrap_or(0)
    }

    /// Charges data that is to be written.
    pub(crate) fn charge_data(&self, tree: TreeId, len: ByteLen) -> Result<Option<Charge>, TxnError> {
        if !self.0.quota.charges.limited() {
            return Ok(None);
        }
        if !self.0.charge(tree, len.0, true) {
            return Err(TxnError::QuotaExceeded(tree));
        }
        Ok(Some(Charge { inner: self.0.clone(), tree, bytes: len.0 }))
    }

    /// As [`Engine::join`], for an operation that adds to a tree what groups may not have room for. May commit.
    pub fn join_in(&self, tree: TreeId, need: Need) -> Result<crate::Handle<'_>, TxnError> {
        self.join_with(tree, need, 0)
    }

    /// The same for one that also brings `data` bytes of data into the tree that were in others.
    pub fn join_with(&self, tree: TreeId, need: Need, data: u64) -> Result<crate::Handle<'_>, TxnError> {
        if need.releasing || !self.0.quota.charges.limited() {
            return self.join(need);
        }
        let added = u64::from(need.bytes) + u64::from(need.items) * ITEM_BYTES;
        // With simple quotas it goes on counting for who wrote it.
        let data = if self.0.has_simple_quota() { 0 } else { data };
        // The second time nothing else is under way, and what is there says what is used.
        for (factor, last) in [(SPLIT_FACTOR, false), (1, true)] {
            let handle = self.join(need)?;
            if self.0.charge(tree, added * factor + data, false) {
                return Ok(handle);
            }
            drop(handle);
            if !last {
                self.commit()?;
            }
        }
        Err(TxnError::QuotaExceeded(tree))
    }
}
