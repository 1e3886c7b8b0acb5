//! Data checksums: those not in the checksum tree yet, and the items that hold them.
//!
//! A checksum item (`EXTENT_CSUM_OBJECTID`, `EXTENT_CSUM`, logical) holds one checksum per sector from its address on, as
//! many as fit. Items never overlap; neighbours may touch.
//!
//! Normal path: (1) a flush adds the checksums of what it wrote to `Pending`, in the open half; (2) a freeze turns the open
//! half into the frozen half; (3) settle asks `rewrite` for the item changes: frozen sums in, freed ranges out (how: see
//! `rewrite`); (4) readers ask `Pending` first, then the tree, so that data can be verified before its sums are committed.
//!
//! Locks: those of `pending`; never held over I/O. Crash: memory only.

mod pending;
mod rewrite;

use oleo_format::{ByteLen, ItemType, Key, Logical};
use oleo_tree::{Blocks, Change, TreeRoot};

use crate::TxnError;
pub(crate) use pending::Pending;
use rewrite::Edit;

/// `BTRFS_EXTENT_CSUM_OBJECTID` in the UAPI header.
pub(crate) const CSUM_OBJECT: u64 = -10i64 as u64;

/// The key of the checksum item that starts at `at`.
pub(crate) fn csum_key(at: u64) -> Key {
    Key::new(CSUM_OBJECT, ItemType::EXTENT_CSUM, at)
}

/// How checksums are laid out: bytes of data and bytes of sum per sector, and how large an item may grow.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) sectorsize: u64,
    pub(crate) csum_len: u64,
    pub(crate) item_bytes_max: u64,
}

impl Layout {
    fn sectors(&self, sums: &[u8]) -> u64 {
        sums.len() as u64 / self.csum_len
    }
    pub(crate) fn end(&self, start: u64, sums: &[u8]) -> u64 {
        start.saturating_add(self.sectors(sums) * self.sectorsize)
    }
    fn bytes(&self, data_len: u64) -> usize {
        (data_len / self.sectorsize * self.csum_len) as usize
    }
}

/// Copies from `sums`, which start at `start`, what lies in `at..at+len` into `out` (sums of the whole range); `have`
/// notes the sectors covered.
fn overlay(l: Layout, start: u64, sums: &[u8], at: u64, out: &mut [u8], have: &mut [bool]) {
    let end = at + have.len() as u64 * l.sectorsize;
    let (from, to) = (start.max(at), l.end(start, sums).min(end));
    if from >= to {
        return;
    }
    let (src, dst, n) = (l.bytes(from - start), l.bytes(from - at), l.bytes(to - from));
    out[dst..dst + n].copy_from_slice(&sums[src..src + n]);
    let first = ((from - at) / l.sectorsize) as usize;
    have[first..first + ((to - from) / l.sectorsize) as usize].fill(true);
}

impl Pending {
    /// The checksums of `len` bytes at `at`, or the address of the first sector that has none.
    pub(crate) fn lookup(
        &self,
        l: Layout,
        blocks: &Blocks,
        root: &TreeRoot,
        at: Logical,
        len: ByteLen,
    ) -> Result<Result<Vec<u8>, Logical>, TxnError> {
        let (out, have) = self.gather(l, blocks, root, at, len)?;
        Ok(match have.iter().position(|h| !h) {
            None => Ok(out),
            Some(i) => Err(Logical(at.0 + i as u64 * l.sectorsize)),
        })
    }

    /// The parts of `len` bytes at `at` that have no checksums, as start and end.
    pub(crate) fn missing(
        &self,
        l: Layout,
        blocks: &Blocks,
        root: &TreeRoot,
        at: Logical,
        len: ByteLen,
    ) -> Result<Vec<(u64, u64)>, TxnError> {
        let (_, have) = self.gather(l, blocks, root, at, len)?;
        let mut gaps: Vec<(u64, u64)> = Vec::new();
        for (i, _) in have.iter().enumerate().filter(|(_, h)| !**h) {
            let (start, end) = (at.0 + i as u64 * l.sectorsize, at.0 + (i as u64 + 1) * l.sectorsize);
            match gaps.last_mut() {
                Some(last) if last.1 == start => last.1 = end,
                _ => gaps.push((start, end)),
            }
        }
        Ok(gaps)
    }

    /// The checksums of `len` bytes at `at`, and for which sectors there are any.
    fn gather(
        &self,
        l: Layout,
        blocks: &Blocks,
        root: &TreeRoot,
        at: Logical,
        len: ByteLen,
    ) -> Result<(Vec<u8>, Vec<bool>), TxnError> {
        let sectors = (len.0 / l.sectorsize) as usize;
        let (mut out, mut have) = (vec![0; l.bytes(len.0)], vec![false; sectors]);
        // The oldest first: what a younger map holds of a reused address replaces it.
        let mut pending = (out.clone(), have.clone());
        self.overlay(l, at.0, &mut pending.0, &mut pending.1);
        if pending.1.iter().any(|h| !h) {
            let mut cursor = blocks.cursor(root);
            let mut found = cursor.seek_back(&csum_key(at.0))?;
            if !found || !cursor.current().is_some_and(|(k, _)| is_csum(&k)) {
                found = cursor.seek(&csum_key(at.0))?;
            }
            while found {
                let Some((key, sums)) = cursor.current() else { break };
                if !is_csum(&key) || key.offset >= at.0 + len.0 {
                    break;
                }
                overlay(l, key.offset, sums, at.0, &mut out, &mut have);
                found = cursor.next()?;
            }
        }
        let c = l.csum_len as usize;
        for (i, _) in pending.1.iter().enumerate().filter(|(_, h)| **h) {
            out[i * c..(i + 1) * c].copy_from_slice(&pending.0[i * c..(i + 1) * c]);
            have[i] = true;
        }
        Ok((out, have))
    }

    /// The checksums of `len` bytes at `at`, in runs: where each begins, in bytes from `at`, and what it is.
    pub(crate) fn runs(
        &self,
        l: Layout,
        blocks: &Blocks,
        root: &TreeRoot,
        at: Logical,
        len: ByteLen,
    ) -> Result<Vec<(u64, Vec<u8>)>, TxnError> {
        let (sums, have) = self.gather(l, blocks, root, at, len)?;
        let c = l.csum_len as usize;
        let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
        let mut before = false;
        for (i, have) in have.into_iter().enumerate() {
            if have {
                if !before {
                    runs.push((i as u64 * l.sectorsize, Vec::new()));
                }
                if let Some((_, run)) = runs.last_mut() {
                    run.extend_from_slice(&sums[i * c..(i + 1) * c]);
                }
            }
            before = have;
        }
        Ok(runs)
    }

    /// The item changes that put checksums where there were none, each given with the address of its first sector, rising.
    pub(crate) fn insert_all(
        &self,
        l: Layout,
        blocks: &Blocks,
        root: &TreeRoot,
        sums: &[(Logical, Vec<u8>)],
    ) -> Result<Vec<Change>, TxnError> {
        let edits: Vec<Edit<'_>> = sums.iter().map(|(at, sums)| Edit::Put { at: at.0, sums }).collect();
        rewrite::changes(l, blocks, root, &edits)
    }

    /// The item changes for one settling: what is frozen goes in (less what lies in `freed`), what lies in `freed` goes out.
    /// `freed` is sorted and without overlap; `with_frozen` only the first time in a transaction.
    pub(crate) fn rewrite(
        &self,
        l: Layout,
        blocks: &Blocks,
        root: &TreeRoot,
        freed: &[(Logical, ByteLen)],
        with_frozen: bool,
    ) -> Result<Vec<Change>, TxnError> {
        let frozen = if with_frozen { self.frozen() } else { Vec::new() };
        let mut edits: Vec<Edit<'_>> = Vec::with_capacity(frozen.iter().map(|f| f.len()).sum::<usize>() + freed.len());
        for (start, sums) in frozen.iter().flat_map(|f| f.iter()) {
            edits.extend(
                minus(*start, l.end(*start, sums), freed)
                    .into_iter()
                    .map(|(from, to)| Edit::Put { at: from, sums: &sums[l.bytes(from - start)..l.bytes(to - start)] }),
            );
        }
        edits.extend(freed.iter().map(|(at, len)| Edit::Cut { from: at.0, to: at.0 + len.0 }));
        edits.sort_by_key(Edit::start);
        rewrite::changes(l, blocks, root, &edits)
    }
}

/// Whether a key is that of a checksum item.
pub(crate) fn is_csum(key: &Key) -> bool {
    key.objectid == CSUM_OBJECT && key.item_type == ItemType::EXTENT_CSUM
}

/// The parts of `start..end` that lie outside `cuts` (sorted, without overlap).
fn minus(start: u64, end: u64, cuts: &[(Logical, ByteLen)]) -> Vec<(u64, u64)> {
    let mut parts = Vec::new();
    let mut from = start;
    let first = cuts.partition_point(|(at, len)| at.0 + len.0 <= start);
    for (at, len) in cuts[first..].iter().take_while(|(at, _)| at.0 < end) {
        if at.0 > from {
            parts.push((from, at.0));
        }
        from = from.max(at.0 + len.0);
    }
    if from < end {
        parts.push((from, end));
    }
    parts
}

#[cfg(test)]
mod tests;
