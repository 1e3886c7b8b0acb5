//! What operations are charged at the moment, by tree and by group: sums of what writers hold, of the open transaction and of the
//! frozen one. `limits` decides who is charged what.

use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashMap;
use oleo_format::TreeId;
use oleo_lock::{Mutex, RwLock, rank};

use super::table::{QgroupId, Table};

/// What is charged at the moment.
#[derive(Default)]
pub(crate) struct Charges {
    /// Some group has a limit.
    limited: AtomicBool,
    pub(super) sums: Mutex<rank::QuotaSums, Sums>,
}

/// Bytes that are charged.
#[derive(Default)]
pub(super) struct Sums {
    /// By tree: what writers have been promised, what the open transaction may use, what the frozen one may.
    pub(super) held: HashMap<TreeId, u64>,
    pub(super) open: HashMap<TreeId, u64>,
    pub(super) frozen: HashMap<TreeId, u64>,
    /// The same by group, of whatever level.
    pub(super) groups: HashMap<QgroupId, u64>,
    /// Trees of operations that were charged the least (see `limits`).
    pub(super) lone: [Vec<TreeId>; 3],
}

/// Places in [`Sums::lone`].
pub(super) const HELD: usize = 0;
pub(super) const OPEN: usize = 1;
pub(super) const FROZEN: usize = 2;

/// Takes bytes of a tree out of a sum; returns `false`, and changes nothing, if it has fewer.
pub(super) fn take(from: &mut HashMap<TreeId, u64>, tree: TreeId, bytes: u64) -> bool {
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
    pub fn follow(&self, table: &RwLock<rank::QuotaTable, Option<Table>>) {
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

    /// Joins are blocked.
    pub fn freeze(&self) {
        if !self.limited() {
            return;
        }
        let mut sums = self.sums.lock();
        for (tree, bytes) in std::mem::take(&mut sums.open) {
            *sums.frozen.entry(tree).or_default() += bytes;
        }
        let mut lone = std::mem::take(&mut sums.lone[OPEN]);
        sums.lone[FROZEN].append(&mut lone);
    }

    /// The numbers have what the frozen transaction used.
    pub fn settled(&self, table: &RwLock<rank::QuotaTable, Option<Table>>) {
        let mut sums = self.sums.lock();
        sums.lone[FROZEN].clear();
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
