//! Data of files: reserved, allocated, written before an item names it, and read with its checksums.
//!
//! Normal path: (1) [`Engine::reserve_data_in`] promises space for data, and for the metadata that recording it will need; (2)
//! [`Engine::alloc_data_from`] takes addresses out of the promise; (3) [`Engine::write_data`] writes all copies; (4) the caller joins
//! and records what it has written ([`Handle::record_new_extent`](crate::Handle::record_new_extent)).

use std::sync::Arc;

use oleo_format::{ByteLen, Logical, TreeId};
use oleo_space::{Grant, Kind, Refusal};
use smallvec::{SmallVec, smallvec};

use crate::TxnError;
use crate::barrier::thread_shard;
use crate::engine::{Engine, OnLines, PromiseSource};
use crate::join::{COMMITS_MAX, no_metadata};
use crate::options::{CsumCheck, DataWant, Need};
use crate::quota::limits::Charge;

/// Data space promised to a writer; allocations draw on it. Dropping it gives the rest back.
///
/// With it comes a promise of the metadata that recording the data will need.
pub struct DataReservation {
    /// `None` only while it is dropped.
    guard: Option<oleo_space::Reservation>,
    metadata: MetadataPromise,
    /// What a quota group was charged.
    charges: Vec<Charge>,
}

impl DataReservation {
    /// Takes over what is left of another one.
    pub fn absorb(&mut self, mut other: DataReservation) {
        if let (Some(guard), Some(more)) = (&self.guard, other.guard.take()) {
            guard.join(more);
        }
        self.charges.append(&mut other.charges);
        self.metadata.needs.append(&mut other.metadata.needs);
    }
}

impl Drop for DataReservation {
    fn drop(&mut self) {
        if let Some(left) = self.guard.take() {
            self.metadata.source.0.data.put(left);
        }
    }
}

/// Metadata that is counted as needed while this lives.
struct MetadataPromise {
    source: Arc<OnLines<PromiseSource>>,
    needs: SmallVec<[Need; 1]>,
}

impl Drop for MetadataPromise {
    fn drop(&mut self) {
        for need in self.needs.drain(..) {
            self.source.0.metadata.cancel_promise(need, thread_shard());
        }
    }
}

/// Items that recording data needs at least: the extent's, those that it splits, the inode's.
const DATA_ITEMS: u32 = 5;
/// Data that is expected to lie in one extent when space is short, bytes.
const DATA_PER_ITEM: u64 = 64 << 10;
/// Item bytes that recording data needs at least: a small file lies in its item.
const DATA_ITEM_BYTES: u32 = 4096;
/// Data bytes for each byte of items: checksums, and extents of a few sectors.
const DATA_PER_ITEM_BYTE: u64 = 64;

/// What recording `len` bytes of data needs.
fn need_of_data(len: ByteLen) -> Need {
    let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX / 4);
    Need {
        items: DATA_ITEMS + small(len.0 / DATA_PER_ITEM),
        bytes: DATA_ITEM_BYTES + small(len.0 / DATA_PER_ITEM_BYTE),
        ..Need::default()
    }
}

impl Engine {
    /// Promises space for data. May commit when space is short; the same rules as for [`Engine::join`].
    pub fn reserve_data(&self, len: ByteLen) -> Result<DataReservation, TxnError> {
        self.0.writable()?;
        let mut guard = match self.0.data_ahead.take(&self.0.space, len) {
            Ok(guard) => Some(guard),
            Err(Refusal::NeedChunk(_)) => {
                // Metadata has its part before data takes what is unallocated.
                self.0.grow_metadata_reserve(Need::default())?;
                self.0.reserve_growing(Kind::Data, len)?
            }
            Err(_) => None,
        };
        if guard.is_none() && self.0.release_idle_reservations() {
            guard = self.0.reserve_growing(Kind::Data, len)?;
        }
        let guard = match guard {
            Some(guard) => guard,
            None => {
                self.commit()?;
                self.0.reap();
                self.0.data_ahead.release();
                let again = self.0.reserve_growing(Kind::Data, len)?;
                again.ok_or(TxnError::NoSpace { what: "data", wanted: len })?
            }
        };
        let metadata = self.promise_metadata(need_of_data(len))?;
        Ok(DataReservation { guard: Some(guard), metadata, charges: Vec::new() })
    }

    /// The same for data that a subvolume will come to reference, as far as its quota goes.
    pub fn reserve_data_in(&self, tree: TreeId, len: ByteLen) -> Result<DataReservation, TxnError> {
        let charge = self.charge_data(tree, len)?;
        let mut promise = self.reserve_data(len)?;
        promise.charges.extend(charge);
        Ok(promise)
    }

    /// The same for one that was refused for its quota, which has others counted first, as `settle` sees to, and is then charged the
    /// data alone.
    pub fn reserve_data_alone<E: From<TxnError>>(
        &self,
        tree: TreeId,
        len: ByteLen,
        settle: impl Fn() -> Result<(), E>,
    ) -> Result<DataReservation, E> {
        let charge = self.charge_data_alone(tree, len, settle)?;
        let mut promise = self.reserve_data(len)?;
        promise.charges.extend(charge);
        Ok(promise)
    }

    fn promise_metadata(&self, need: Need) -> Result<MetadataPromise, TxnError> {
        let inner = &self.0;
        let is_covered = {
            // No freeze comes between.
            let join_guard = inner.barrier.join();
            inner.metadata_reserve.promise(need, join_guard.shard)
        };
        // From here on an early return takes it back.
        let promise = MetadataPromise { source: inner.promise_source(), needs: smallvec![need] };
        let nothing_more = Need::default();
        if is_covered
            || inner.metadata_reserve.shortfall_for(nothing_more).is_none()
            || inner.grow_reserve_or_release_idle(nothing_more)?
        {
            return Ok(promise);
        }
        for _ in 0..COMMITS_MAX {
            self.commit()?;
            inner.reap();
            if inner.grow_metadata_reserve(nothing_more)? {
                return Ok(promise);
            }
        }
        Err(no_metadata(inner, need))
    }

    /// The same out of a promise, which is drawn on before what nobody was promised: what was promised is there, however
    /// little else is.
    pub fn alloc_data_from(&self, promise: &DataReservation, want: DataWant) -> Result<Grant, TxnError> {
        self.0.writable()?;
        self.0.alloc_data(promise.guard.as_ref(), want)
    }

    /// Takes space for data, at most what is wanted, in one run. A new chunk is made if it is needed.
    pub fn alloc_data(&self, want: DataWant) -> Result<Grant, TxnError> {
        self.0.writable()?;
        self.0.alloc_data(None, want)
    }

    /// Writes data to all its copies. Not flushed; a commit flushes before anything names it.
    pub fn write_data(&self, parts: &[(Logical, &[u8])]) -> Result<(), TxnError> {
        self.0.writable()?;
        self.0.volume.write(parts).map_err(|e| self.0.poison_unless_full(e.into()))
    }

    /// Reads data, from a copy that matches its checksums if `check` says so.
    pub fn read_data(&self, at: Logical, buf: &mut [u8], check: CsumCheck) -> Result<(), TxnError> {
        let csums = match check {
            CsumCheck::Skip => None,
            CsumCheck::Verify => match self.csums(at, ByteLen(buf.len() as u64)) {
                Ok(csums) => Some(csums),
                // There is nothing to compare with.
                Err(_) if self.0.rules.ignore_bad_trees => None,
                Err(e) => return Err(e),
            },
        };
        Ok(self.0.volume.read_data(at, buf, csums.as_deref())?)
    }

    /// The checksums of those sectors of a range that have some, in runs: where each begins, in bytes from `at`, and what it is.
    pub fn csum_runs(&self, at: Logical, len: ByteLen) -> Result<Vec<(u64, Vec<u8>)>, TxnError> {
        let _reader = self.reader();
        let root = self.root(TreeId::CSUM)?.ok_or(TxnError::NoTree(TreeId::CSUM))?;
        self.0.csums.runs(self.0.layout, &self.0.blocks, &root, at, len)
    }

    /// The checksums of a range of data, one per sector.
    pub fn csums(&self, at: Logical, len: ByteLen) -> Result<Vec<u8>, TxnError> {
        // The pending half is asked first inside; the root is taken before it, so a settling in between is seen in one.
        let _reader = self.reader();
        for _ in 0..2 {
            let root = self.root(TreeId::CSUM)?.ok_or(TxnError::NoTree(TreeId::CSUM))?;
            if let Ok(sums) = self.0.csums.lookup(self.0.layout, &self.0.blocks, &root, at, len)? {
                return Ok(sums);
            }
        }
        Err(TxnError::NoChecksum(at))
    }
}
