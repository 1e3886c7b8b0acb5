//! Simple quotas: an extent counts for the subvolume that first wrote it, whatever others come to share it, until it is gone.
//!
//! Normal path: (1) data that is new has an owner, noted by address as the ledger records it (`Owners::note`); (2) as the
//! ledger is settled, that goes into the extent's item, and what began or ended counts for its owner ([`Owned`]); (3) the sums by
//! subvolume come to [`Table::own`], which adds them to groups. Nothing is looked up but the header of each tree block
//! that comes or goes.
//!
//! Facts of the format: the owner of data is in a reference of its own kind (`EXTENT_OWNER_REF`), which comes before all others;
//! that of a tree block is in its header. An extent counts if its item is not older than `enable_gen` of the status item.
//! What relocation moves keeps its owner. Data that does not count is given none in its new place, which is younger, so
//! that it still does not count; of tree blocks the header cannot be changed, so those that move count from then on.
//!
//! Groups of higher levels have the sum of the subvolumes' groups in them, each once.
//! Lock: `new_data`, a leaf, held for a look-up. Crash: memory only; numbers and extents are in the same transaction.

use hashbrown::HashMap;
use oleo_format::{Generation, Logical, QgroupStatusFlags, TreeId};
use oleo_space::{ExtentKind, Head, RefKey};

use super::table::{QgroupId, Table};
use crate::TxnError;
use crate::engine::{Inner, NewExtent};

/// Bytes that subvolumes came to own (below 0: no longer own).
pub(crate) type OwnedBytes = HashMap<TreeId, i64>;

/// What settling has to know to keep simple quotas.
#[derive(Clone, Copy)]
pub(crate) struct Owned<'a> {
    inner: &'a Inner,
    enable_gen: Generation,
}

impl Owned<'_> {
    /// Whom data is to be accounted to that has no item yet.
    pub fn of_new_data(&self, at: Logical) -> Option<TreeId> {
        self.inner.quota.owners.new_data.read().get(&at).copied()
    }

    /// Whether an extent of that generation counts.
    pub fn counts(&self, generation: Generation) -> bool {
        generation >= self.enable_gen
    }

    /// An extent of that generation came (or goes): data with that owner, or a tree block.
    pub fn count(
        &self,
        head: &Head<'_>,
        owner: Option<TreeId>,
        generation: Generation,
        comes: bool,
        sums: &mut OwnedBytes,
    ) -> Result<(), TxnError> {
        if !self.counts(generation) {
            return Ok(());
        }
        let owner = match head.kind {
            ExtentKind::Data => owner,
            // Blocks of other trees are never shared, and most of what is settled.
            ExtentKind::Tree { .. } if head.refs().any(|(who, _)| is_of_one_tree(&who)) => None,
            ExtentKind::Tree { .. } => Some(self.inner.blocks.at(head.at, &self.inner.dirty)?.owner()),
        };
        if let Some(owner) = owner.filter(|owner| owner.is_subvol()) {
            let bytes = i64::try_from(head.len.0).unwrap_or(i64::MAX);
            *sums.entry(owner).or_default() += if comes { bytes } else { -bytes };
        }
        Ok(())
    }
}

/// Whether who refers to a tree block is a tree that shares nothing.
fn is_of_one_tree(who: &RefKey) -> bool {
    matches!(who, RefKey::TreeRoot(tree) if !tree.is_shareable())
}

impl Inner {
    /// Simple quotas are on: from which transaction on they count.
    fn simple_since(&self) -> Option<Generation> {
        let table = self.quota.table.read();
        let status = table.as_ref()?.status;
        // A status without the field is damage that the checker reports; everything counts then.
        status.flags.contains(QgroupStatusFlags::SIMPLE_MODE).then(|| status.enable_gen.unwrap_or(Generation(0)))
    }

    /// Whether simple quotas are on.
    pub(crate) fn has_simple_quota(&self) -> bool {
        self.simple_since().is_some()
    }

    /// What settling has to know of simple quotas; `None` if these are off. What is on does not change while a commit
    /// settles.
    pub(crate) fn owned(&self) -> Option<Owned<'_>> {
        self.simple_since().map(|enable_gen| Owned { inner: self, enable_gen })
    }

    /// Notes who wrote data that the ledger records now.
    pub(crate) fn note_owners(&self, new_extents: &[NewExtent]) {
        if self.has_simple_quota() {
            self.quota.owners.note(new_extents.iter().map(|(at, _, owner)| (*at, *owner)));
        }
    }
}

impl Table {
    /// Whether extents count for the subvolume that wrote them.
    pub fn is_simple(&self) -> bool {
        self.status.flags.contains(QgroupStatusFlags::SIMPLE_MODE)
    }

    /// Counts what subvolumes came to own, in their groups and all above. Returns whether the numbers could be right: if more
    /// is taken than there is, they were wrong before.
    pub fn own(&mut self, sums: &OwnedBytes) -> bool {
        let mut sound = true;
        for (tree, delta) in sums.iter().filter(|(_, delta)| **delta != 0) {
            for id in self.above(QgroupId::of(*tree)) {
                let Some(group) = self.groups.get_mut(&id) else { continue };
                let now = group.rfer.checked_add_signed(*delta);
                sound &= now.is_some();
                group.rfer = now.unwrap_or(0);
                group.excl = group.rfer;
                self.note(id);
            }
        }
        sound
    }

    /// Sums up a group and all that it is in, after something came into it or left it.
    pub(super) fn sum_up(&mut self, id: QgroupId) {
        for id in self.above(id).into_iter().filter(|id| id.level() > 0) {
            let of = |tree: TreeId| self.groups.get(&QgroupId::of(tree)).map_or(0, |group| group.rfer);
            let sum = self.trees_of(id).into_iter().fold(0, |sum: u64, tree| sum.saturating_add(of(tree)));
            if let Some(group) = self.groups.get_mut(&id) {
                (group.rfer, group.excl) = (sum, sum);
                self.note(id);
            }
        }
    }
}
