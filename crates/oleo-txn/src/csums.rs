//! Data checksums: those not in the checksum tree yet, and the items that hold them.
//!
//! A checksum item (`EXTENT_CSUM_OBJECTID`, `EXTENT_CSUM`, logical) holds one checksum per sector from its address on, as
//! many as fit. Items never overlap; neighbours may touch.
//!
//! Normal path: (1) a flush adds the checksums of what it wrote to `Pending`, in the open half; (2) a freeze turns the open
//! half into the frozen half; (3) settle asks `rewrite` for the item changes: frozen sums in, freed ranges out; (4) readers
//! ask `Pending` first, then the tree, so that data can be verified before its sums are committed.
//!
//! Locks: one for each half, the open one first; never held over I/O. Crash: memory only.

use std::collections::BTreeMap;

use oleo_format::{ByteLen, ItemType, Key, Logical};
use oleo_lock::{RwLock, rank};
use oleo_tree::{Blocks, Change, Op, TreeRoot};

use crate::TxnError;

/// `BTRFS_EXTENT_CSUM_OBJECTID` in the UAPI header.
pub(crate) const CSUM_OBJECT: u64 = -10i64 as u64;

/// The key of the checksum item that starts at `at`.
pub(crate) fn csum_key(at: u64) -> Key {
    Key::new(CSUM_OBJECT, ItemType::EXTENT_CSUM, at)
}

type Sums = BTreeMap<u64, Vec<u8>>;

/// Checksums on their way to the tree.
#[derive(Default)]
pub(crate) struct Pending {
    open: RwLock<rank::PendingSums, Sums>,
    frozen: RwLock<rank::PendingSums, Sums>,
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
    fn end(&self, start: u64, sums: &[u8]) -> u64 {
        start + self.sectors(sums) * self.sectorsize
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
    pub(crate) fn add(&self, at: Logical, sums: Vec<u8>) {
        self.open.write().insert(at.0, sums);
    }

    /// Joins are blocked: what is open becomes frozen. What was frozen has been settled before.
    pub(crate) fn freeze(&self) {
        let mut open = self.open.write_by([0; 3]);
        let mut frozen = self.frozen.write_by([1, 0, 0]);
        if frozen.is_empty() {
            std::mem::swap(&mut *open, &mut *frozen);
        } else {
            frozen.append(&mut open);
        }
    }

    /// Readers find these from now on; the commit under way puts them into the tree itself.
    pub(crate) fn show(&self, sums: &[(Logical, Vec<u8>)]) {
        self.frozen.write().extend(sums.iter().map(|(at, sums)| (at.0, sums.clone())));
    }

    /// The tree holds what was frozen.
    pub(crate) fn settled(&self) {
        *self.frozen.write() = Sums::new();
    }

    fn overlay(map: &Sums, l: Layout, at: u64, out: &mut [u8], have: &mut [bool]) {
        let end = at + have.len() as u64 * l.sectorsize;
        let first = map.range(..=at).next_back().map_or(at, |(start, _)| *start);
        for (start, sums) in map.range(first..end) {
            overlay(l, *start, sums, at, out, have);
        }
    }

    /// The checksum items of a log that data in a range needs: whole steps of what was added together, counted from where it
    /// began, so that items that are asked for twice are the same and none overlap.
    pub(crate) fn pending_items(&self, l: Layout, at: Logical, len: ByteLen, out: &mut BTreeMap<Key, Op>) {
        let step = (l.item_bytes_max / l.csum_len * l.csum_len) as usize;
        let end = at.0.saturating_add(len.0);
        for half in [&self.frozen, &self.open] {
            let half = half.read();
            let first = half.range(..=at.0).next_back().map_or(at.0, |(start, _)| *start);
            for (start, sums) in half.range(first..end) {
                let mut from = *start;
                for part in sums.chunks(step) {
                    let to = l.end(from, part);
                    if to > at.0 && from < end {
                        out.insert(csum_key(from), Op::Put(part.into()));
                    }
                    from = to;
                }
            }
        }
    }

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
        Self::overlay(&self.frozen.read(), l, at.0, &mut pending.0, &mut pending.1);
        Self::overlay(&self.open.read(), l, at.0, &mut pending.0, &mut pending.1);
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
        sums: Vec<(Logical, Vec<u8>)>,
    ) -> Result<Vec<Change>, TxnError> {
        let mut items: BTreeMap<u64, Option<Vec<u8>>> = BTreeMap::new();
        for (at, sums) in sums {
            insert(l, blocks, root, at.0, sums, &mut items)?;
        }
        Ok(changes_of(items))
    }

    /// What is frozen and does not lie in `freed`: sums of adjacent sectors together. A copy, since blocks are read before it is in the tree.
    fn frozen_runs(&self, l: Layout, freed: &[(Logical, ByteLen)]) -> Vec<(u64, Vec<u8>)> {
        let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
        for (start, sums) in self.frozen.read().iter() {
            for (from, to) in minus(*start, l.end(*start, sums), freed) {
                let part = &sums[l.bytes(from - start)..l.bytes(to - start)];
                match runs.last_mut() {
                    Some((at, have)) if l.end(*at, have) == from => have.extend_from_slice(part),
                    _ => runs.push((from, part.to_vec())),
                }
            }
        }
        runs
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
        let mut items: BTreeMap<u64, Option<Vec<u8>>> = BTreeMap::new();
        for (at, len) in freed {
            cut_stored(l, blocks, root, at.0, at.0 + len.0, &mut items)?;
        }
        if with_frozen {
            for (at, sums) in self.frozen_runs(l, freed) {
                insert(l, blocks, root, at, sums, &mut items)?;
            }
        }
        Ok(changes_of(items))
    }
}

fn changes_of(items: BTreeMap<u64, Option<Vec<u8>>>) -> Vec<Change> {
    let op = |v: Option<Vec<u8>>| v.map_or(Op::Delete, |v| Op::Put(v.into()));
    items.into_iter().map(|(at, v)| Change { key: csum_key(at), op: op(v) }).collect()
}

fn is_csum(key: &Key) -> bool {
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

/// Takes `from..to` out of the stored items, as changes in `items`.
fn cut_stored(
    l: Layout,
    blocks: &Blocks,
    root: &TreeRoot,
    from: u64,
    to: u64,
    items: &mut BTreeMap<u64, Option<Vec<u8>>>,
) -> Result<(), TxnError> {
    // Earlier cuts may have left the tail of an item that this cut shortens again.
    let earlier: Vec<(u64, Vec<u8>)> = items
        .range(..to)
        .rev()
        .take(1)
        .filter_map(|(at, v)| v.as_ref().map(|v| (*at, v.clone())))
        .filter(|(at, v)| l.end(*at, v) > from)
        .collect();
    let mut found: Vec<(u64, Vec<u8>)> = earlier;
    let mut cursor = blocks.cursor(root);
    let mut more = cursor.seek_back(&csum_key(from))?;
    if !more || !cursor.current().is_some_and(|(k, _)| is_csum(&k)) {
        more = cursor.seek(&csum_key(from))?;
    }
    while more {
        let Some((key, sums)) = cursor.current() else { break };
        if !is_csum(&key) || key.offset >= to {
            break;
        }
        if l.end(key.offset, sums) > from && !items.contains_key(&key.offset) {
            found.push((key.offset, sums.to_vec()));
        }
        more = cursor.next()?;
    }
    for (start, sums) in found {
        let end = l.end(start, &sums);
        items.insert(start, None);
        if start < from {
            items.insert(start, Some(sums[..l.bytes(from - start)].to_vec()));
        }
        if end > to {
            items.insert(to, Some(sums[l.bytes(to.max(start) - start)..].to_vec()));
        }
    }
    Ok(())
}

/// Puts new sums in, lengthening the item that ends where they start when there is room.
fn insert(
    l: Layout,
    blocks: &Blocks,
    root: &TreeRoot,
    at: u64,
    sums: Vec<u8>,
    items: &mut BTreeMap<u64, Option<Vec<u8>>>,
) -> Result<(), TxnError> {
    let (mut at, mut sums) = (at, sums);
    if let Some((start, mut head)) = ends_at(l, blocks, root, at, items)? {
        let room = l.item_bytes_max.saturating_sub(head.len() as u64) / l.csum_len * l.csum_len;
        let take = sums.len().min(room as usize);
        if take > 0 {
            head.extend_from_slice(&sums[..take]);
            sums.drain(..take);
            at += take as u64 / l.csum_len * l.sectorsize;
            items.insert(start, Some(head));
        }
    }
    let step = (l.item_bytes_max / l.csum_len * l.csum_len) as usize;
    for part in sums.chunks(step) {
        items.insert(at, Some(part.to_vec()));
        at = l.end(at, part);
    }
    Ok(())
}

fn ends_at(
    l: Layout,
    blocks: &Blocks,
    root: &TreeRoot,
    at: u64,
    items: &BTreeMap<u64, Option<Vec<u8>>>,
) -> Result<Option<(u64, Vec<u8>)>, TxnError> {
    if at == 0 {
        return Ok(None);
    }
    let changed = items.range(..at).rev().find_map(|(k, v)| v.as_ref().map(|v| (*k, v)));
    if let Some((k, v)) = changed.filter(|(k, v)| l.end(*k, v) == at) {
        return Ok(Some((k, v.clone())));
    }
    let mut cursor = blocks.cursor(root);
    if cursor.seek_back(&csum_key(at - 1))?
        && let Some((key, sums)) = cursor.current()
        && is_csum(&key)
        && l.end(key.offset, sums) == at
        && !items.contains_key(&key.offset)
    {
        return Ok(Some((key.offset, sums.to_vec())));
    }
    Ok(None)
}
