//! Limits: an operation is charged for what it may use before it uses it, so that EDQUOT comes from the call.
//!
//! Normal path: (1) a writer is charged for the data that it buffers ([`Charge`]), an operation for the items that it may add;
//! both fail if a group would exceed its limit, with everything charged so far; (2) when data has been recorded, its charge
//! becomes one of the open transaction; (3) a freeze turns the charges of the open transaction
//! into those of the frozen one, and the end of that commit, whose numbers include them, drops them. Nothing is left behind.
//!
//! How many tree blocks the items take is not known before they are in the trees. So an operation is charged the maximum, which is
//! more than it will use. If that exceeds the limit, everything is committed, and the operation is charged the
//! minimum, the bytes of its items and data; until it is counted, no other operation is admitted like that into a group with a
//! limit (`Sums::lone`). So a group exceeds its limit by the tree blocks of one operation at most, and a refused operation
//! had no space.
//!
//! Without any limit nothing is counted, and nobody meets here. Lock: `sums`, for additions; `table` is read under it.
//! Crash: memory only.

use std::sync::Arc;

use oleo_format::{ByteLen, TreeId};

use super::charges::{HELD, OPEN, take};
use super::table::{QgroupId, QgroupLimit};
use crate::TxnError;
use crate::engine::{Engine, Inner};
use crate::join::Handle;
use crate::options::{Claim, Need};

/// Bytes of an item's place in a leaf beside its data (format: `struct btrfs_item`).
const ITEM_BYTES: u64 = 25;
/// A leaf that is split is half full.
const SPLIT_FACTOR: u64 = 2;
/// Leaves that an operation may split: a name has items in two places of its directory and one in the inode's, and the directory's
/// own item may be elsewhere.
const LEAVES_OF_NAMES: u64 = 4;
/// The same for data of one file: the inode's item, and those of its extents, which are neighbours.
const LEAVES_OF_DATA: u64 = 2;
/// Turns that an operation waits for others that were let in alone: more than there are threads, as a rule. A commit each.
const TURNS_MAX: u32 = 32;

/// What an operation is charged.
#[derive(Clone, Copy)]
struct ChargeRequest {
    bytes: u64,
    /// For a [`Charge`], otherwise for the open transaction.
    held: bool,
    /// It is the least that it may come to.
    least: bool,
}

/// Whether there is room for it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChargeOutcome {
    /// There is, and it has been charged.
    Charged,
    /// There may be, when others have been counted.
    Later,
    /// There is none.
    None,
}

/// Bytes that a tree may come to use. Dropped, it becomes one of the open transaction.
pub(crate) struct Charge {
    inner: Arc<Inner>,
    tree: TreeId,
    bytes: u64,
    lone: bool,
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut sums = self.inner.quota.charges.sums.lock();
        if self.lone
            && let Some(at) = sums.lone[HELD].iter().position(|tree| *tree == self.tree)
        {
            sums.lone[HELD].swap_remove(at);
            sums.lone[OPEN].push(self.tree);
        }
        // Gone if quota was turned off meanwhile.
        if take(&mut sums.held, self.tree, self.bytes) {
            *sums.open.entry(self.tree).or_default() += self.bytes;
        }
    }
}

impl Inner {
    /// Charges a tree, if no group would exceed what it may use.
    fn charge(&self, tree: TreeId, request: ChargeRequest) -> ChargeOutcome {
        let mut sums = self.quota.charges.sums.lock();
        let table = self.quota.table.read();
        let Some(table) = table.as_ref() else { return ChargeOutcome::Charged };
        let above = table.above(QgroupId::of(tree));
        let limited = |id: &QgroupId| table.groups[id].limit != QgroupLimit::default();
        let mut outcome = ChargeOutcome::Charged;
        for id in above.iter().filter(|id| limited(id)) {
            let group = &table.groups[id];
            let exceeds = |more: u64| {
                let exceeds = |uses: u64, max: Option<u64>| max.is_some_and(|max| uses.saturating_add(more) > max);
                exceeds(group.rfer, group.limit.max_rfer) || exceeds(group.excl, group.limit.max_excl)
            };
            if exceeds(request.bytes) {
                return ChargeOutcome::None;
            }
            if exceeds(sums.groups.get(id).copied().unwrap_or(0).saturating_add(request.bytes)) {
                outcome = ChargeOutcome::Later;
            }
        }
        let meets = |other: &TreeId| table.above(QgroupId::of(*other)).intersection(&above).any(limited);
        if outcome == ChargeOutcome::Later || (request.least && sums.lone.iter().flatten().any(meets)) {
            return ChargeOutcome::Later;
        }
        for id in above {
            *sums.groups.entry(id).or_default() += request.bytes;
        }
        let of = if request.held { &mut sums.held } else { &mut sums.open };
        *of.entry(tree).or_default() += request.bytes;
        if request.least {
            sums.lone[if request.held { HELD } else { OPEN }].push(tree);
        }
        ChargeOutcome::Charged
    }
}

impl Engine {
    /// Bytes that operations under way were charged to a tree's own group.
    pub fn quota_charged(&self, tree: TreeId) -> u64 {
        self.0.quota.charges.sums.lock().groups.get(&QgroupId::of(tree)).copied().unwrap_or(0)
    }

    /// Charges data that is to be written, and the most that its items may come to.
    pub(crate) fn charge_data(&self, tree: TreeId, len: ByteLen) -> Result<Option<Charge>, TxnError> {
        if !self.0.quota.charges.limited() {
            return Ok(None);
        }
        let bytes = len.0 + LEAVES_OF_DATA * u64::from(self.0.rules.nodesize);
        match self.0.charge(tree, ChargeRequest { bytes, held: true, least: false }) {
            ChargeOutcome::Charged => Ok(Some(Charge { inner: self.0.clone(), tree, bytes, lone: false })),
            ChargeOutcome::Later | ChargeOutcome::None => Err(TxnError::QuotaExceeded(tree)),
        }
    }

    /// Charges no more than the data itself, if nobody else was let in like that. What is to be counted first, `settle` sees to:
    /// it commits, at least.
    pub(crate) fn charge_data_alone<E: From<TxnError>>(
        &self,
        tree: TreeId,
        len: ByteLen,
        settle: impl Fn() -> Result<(), E>,
    ) -> Result<Option<Charge>, E> {
        for _ in 0..TURNS_MAX {
            settle()?;
            if !self.0.quota.charges.limited() {
                return Ok(None);
            }
            match self.0.charge(tree, ChargeRequest { bytes: len.0, held: true, least: true }) {
                ChargeOutcome::Charged => {
                    return Ok(Some(Charge { inner: self.0.clone(), tree, bytes: len.0, lone: true }));
                }
                ChargeOutcome::Later => {}
                ChargeOutcome::None => break,
            }
        }
        Err(TxnError::QuotaExceeded(tree).into())
    }

    /// As [`Engine::join`], for an operation that adds to a tree what groups may not have room for, and brings `data` bytes of data into
    /// it that were in others. May commit; whatever else may have others counted, `settle` sees to.
    pub fn join_with<E: From<TxnError>>(
        &self,
        tree: TreeId,
        need: Need,
        data: u64,
        settle: impl Fn() -> Result<(), E>,
    ) -> Result<Handle<'_>, E> {
        if need.claim != Claim::Ordinary || !self.0.quota.charges.limited() {
            return Ok(self.join(need)?);
        }
        let added = u64::from(need.bytes) + u64::from(need.items) * ITEM_BYTES;
        // With simple quotas it goes on counting for the tree that wrote it.
        let data = if self.0.has_simple_quota() { 0 } else { data };
        let most = added * SPLIT_FACTOR + LEAVES_OF_NAMES * u64::from(self.0.rules.nodesize) + data;
        let handle = self.join(need)?;
        if self.0.charge(tree, ChargeRequest { bytes: most, held: false, least: false }) == ChargeOutcome::Charged {
            return Ok(handle);
        }
        drop(handle);
        for _ in 0..TURNS_MAX {
            settle()?;
            self.0.release_idle_reservations();
            self.commit()?;
            let handle = self.join(need)?;
            match self.0.charge(tree, ChargeRequest { bytes: added + data, held: false, least: true }) {
                ChargeOutcome::Charged => return Ok(handle),
                ChargeOutcome::Later => {}
                ChargeOutcome::None => break,
            }
        }
        Err(TxnError::QuotaExceeded(tree).into())
    }
}
