//! What the engine keeps in memory for quota, beside the table of groups: what operations of the open transaction note, who wrote new
//! data, and the log of a scan.

use std::sync::atomic::AtomicU64;

use hashbrown::HashMap;
use oleo_format::{Logical, TreeId};
use oleo_lock::{Mutex, RwLock, rank};

use super::charges::Charges;
use super::table::{Move, Table};
use crate::root_sets::RootSets;
use crate::trees::TreeState;

/// Quota of one volume.
#[derive(Default)]
pub(crate) struct Quota {
    /// `None`: quota is off.
    pub table: RwLock<rank::QuotaTable, Option<Table>>,
    pub notes: Mutex<rank::QuotaNotes, Notes>,
    pub charges: Charges,
    /// Of simple quotas.
    pub owners: Owners,
    /// Extents that commits have looked at for quota since opening.
    pub dirty_extents: AtomicU64,
    pub(super) scan: Mutex<rank::QuotaScan, Option<Scan>>,
}

/// A scan under way.
pub(super) struct Scan {
    /// What the commits since its base did.
    pub(super) log: Vec<(RootSets, Vec<Op>)>,
}

/// One step from the old numbers to the new ones.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// Bytes that moved.
    Moves(Vec<Move>),
    /// A tree now has all that another one has.
    Copy { source: TreeId, new: TreeId },
}

/// What the operations of a transaction note for quota.
#[derive(Default)]
pub(crate) struct Notes {
    /// Snapshots, in the order of their making: source, snapshot.
    pub snapshots: Vec<(TreeId, TreeId)>,
    /// Trees that were dropped to the end, as they were.
    pub dropped: Vec<TreeState>,
    /// Trees that steps of dropping were made of, as they were before the first of them.
    pub dropping: HashMap<TreeId, TreeState>,
    /// Blocks that those steps looked at, and that the count of the transaction may so look at again.
    pub drop_blocks: usize,
}

/// Who wrote the data that is new in the transaction, as long as no item says so.
#[derive(Default)]
pub(crate) struct Owners {
    pub(super) new_data: RwLock<rank::NewData, HashMap<Logical, TreeId>>,
}

impl Owners {
    /// Whose the data at these addresses is.
    pub fn note(&self, data: impl IntoIterator<Item = (Logical, TreeId)>) {
        self.new_data.write().extend(data.into_iter().filter(|(_, owner)| owner.is_subvol()));
    }

    /// What was noted is in items by now, or of no use.
    pub fn clear(&self) {
        let mut new_data = self.new_data.write();
        if !new_data.is_empty() {
            *new_data = HashMap::new();
        }
    }
}
