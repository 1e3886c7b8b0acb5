//! What a sorted list of edits makes of the checksum items.
//!
//! Normal path: (1) edits are cut into parts between which no item is touched by both (`parts`), so that each can be worked through by
//! itself, on any core; (2) in a part one cursor moves forwards from edit to edit. The item that was changed last is kept open, since
//! the next edit may change it again: a cut shortens it, sums that begin where it ends lengthen it.
//!
//! Sums lengthen the item that ends where they begin, as far as an item may grow; what is left becomes items as long as may be. A cut
//! leaves what lies before and behind it. So the items that result depend on the edits and the tree alone, not on the parts.
//!
//! Invariants: edits are sorted and do not overlap; changes come out sorted. Items that overlap in the tree are an error.

use oleo_format::{Corruption, Key};
use oleo_tree::{Blocks, Change, Cursor, TreeRoot};
use rayon::prelude::*;

use super::{Layout, csum_key, is_csum};
use crate::TxnError;

/// One edit.
#[derive(Clone, Copy, Debug)]
pub(super) enum Edit<'s> {
    /// Sums of sectors from an address on, where there were none.
    Put { at: u64, sums: &'s [u8] },
    /// Sums of this range go, as far as there are any.
    Cut { from: u64, to: u64 },
}

impl Edit<'_> {
    pub(super) fn start(&self) -> u64 {
        match *self {
            Edit::Put { at, .. } => at,
            Edit::Cut { from, .. } => from,
        }
    }

    fn end(&self, l: Layout) -> u64 {
        match *self {
            Edit::Put { at, sums } => l.end(at, sums),
            Edit::Cut { to, .. } => to,
        }
    }
}

/// Edits that one task works through: enough to hide the cost of handing out the task. Few in builds for tests.
const PART_EDITS: usize = if cfg!(debug_assertions) { 16 } else { 512 };

/// The item changes, sorted.
pub(super) fn changes(
    l: Layout,
    blocks: &Blocks,
    root: &TreeRoot,
    edits: &[Edit<'_>],
) -> Result<Vec<Change>, TxnError> {
    let work = |part: &[Edit<'_>]| {
        let mut writer = Writer::new(l, blocks.cursor(root));
        part.iter().try_for_each(|edit| writer.edit(edit))?;
        writer.end()
    };
    let parts = parts(l, blocks, root, edits)?;
    if let [part] = parts.as_slice() {
        return work(part);
    }
    let done: Vec<Result<Vec<Change>, TxnError>> = parts.into_par_iter().map(work).collect();
    let mut all: Vec<Change> = Vec::new();
    for part in done {
        let mut part = part?;
        if let (Some(last), Some(first)) = (all.last(), part.first())
            && first.key <= last.key
        {
            return Err(overlap(first.key.offset, Some(last.key.offset)));
        }
        all.append(&mut part);
    }
    Ok(all)
}

/// Cuts edits into parts of some length, where no item concerns the edits on both sides.
fn parts<'e, 's>(
    l: Layout,
    blocks: &Blocks,
    root: &TreeRoot,
    edits: &'e [Edit<'s>],
) -> Result<Vec<&'e [Edit<'s>]>, TxnError> {
    let (mut parts, mut from) = (Vec::new(), 0);
    let mut cursor = blocks.cursor(root);
    let mut at = PART_EDITS;
    while at < edits.len() {
        let (before, edit) = (edits[at - 1].end(l), &edits[at]);
        let apart = before < edit.start() && first_touched(l, &mut cursor, edit)?.is_none_or(|item| item >= before);
        if apart {
            parts.push(&edits[from..at]);
            from = at;
            at += PART_EDITS;
        } else {
            at += 1;
        }
    }
    parts.push(&edits[from..]);
    Ok(parts)
}

/// Where the item begins that an edit may change and that began before it.
fn first_touched(l: Layout, cursor: &mut Cursor<'_>, edit: &Edit<'_>) -> Result<Option<u64>, TxnError> {
    let at = edit.start();
    if at == 0 || !cursor.seek_back(&csum_key(at - 1))? {
        return Ok(None);
    }
    let found = cursor.current().filter(|(key, sums)| is_csum(key) && l.end(key.offset, sums) >= at);
    Ok(found.map(|(key, _)| key.offset))
}

/// The changes so far, and the item that may still change.
struct Items {
    changes: Vec<Change>,
    /// Where the open item begins; its sums are in `sums`.
    open: Option<u64>,
    sums: Vec<u8>,
    /// Whether the open item differs from the one in the tree.
    changed: bool,
    /// The last item that was opened or deleted.
    last: Option<u64>,
}

impl Items {
    /// Writes the open item, if it has changed, and goes on to one that begins at `at`.
    fn pass(&mut self, at: u64) -> Result<(), TxnError> {
        self.close();
        if self.last.is_some_and(|last| at <= last) {
            return Err(overlap(at, self.last));
        }
        self.last = Some(at);
        Ok(())
    }

    fn open(&mut self, at: u64, sums: &[u8], changed: bool) -> Result<(), TxnError> {
        self.pass(at)?;
        self.sums.clear();
        self.sums.extend_from_slice(sums);
        (self.open, self.changed) = (Some(at), changed);
        Ok(())
    }

    fn delete(&mut self, at: u64) -> Result<(), TxnError> {
        self.pass(at)?;
        self.changes.push(Change::delete(csum_key(at)));
        Ok(())
    }

    fn close(&mut self) {
        if let Some(at) = self.open.take()
            && self.changed
        {
            self.changes.push(Change::put(csum_key(at), self.sums.as_slice()));
        }
    }

    /// Takes `from..to` out of an item of the tree, which overlaps it.
    fn cut(&mut self, l: Layout, (from, to): (u64, u64), start: u64, sums: &[u8]) -> Result<(), TxnError> {
        if start < from {
            self.open(start, &sums[..l.bytes(from - start)], true)?;
        } else {
            self.delete(start)?;
        }
        if l.end(start, sums) > to {
            self.open(to, &sums[l.bytes(to - start)..], true)?;
        }
        Ok(())
    }

    /// Takes `from..to` out of the open item, which overlaps it.
    fn cut_open(&mut self, l: Layout, (from, to): (u64, u64), start: u64) -> Result<(), TxnError> {
        let tail = if l.end(start, &self.sums) > to { self.sums.split_off(l.bytes(to - start)) } else { Vec::new() };
        if start < from {
            self.sums.truncate(l.bytes(from - start));
            self.changed = true;
        } else {
            // It began here only in this batch, or it is in the tree.
            self.open = None;
            self.changes.push(Change::delete(csum_key(start)));
        }
        if tail.is_empty() { Ok(()) } else { self.open(to, &tail, true) }
    }
}

fn overlap(at: u64, last: Option<u64>) -> TxnError {
    let want = last.map_or_else(String::new, |last| format!("behind {last}"));
    Corruption::new("checksum tree", "items overlap at", at.to_string(), want).into()
}

struct Writer<'b> {
    l: Layout,
    cursor: Cursor<'b>,
    /// The last item of the tree that was changed or deleted here.
    done: Option<u64>,
    items: Items,
}

impl<'b> Writer<'b> {
    fn new(l: Layout, cursor: Cursor<'b>) -> Writer<'b> {
        let items = Items { changes: Vec::new(), open: None, sums: Vec::new(), changed: false, last: None };
        Writer { l, cursor, done: None, items }
    }

    fn edit(&mut self, edit: &Edit<'_>) -> Result<(), TxnError> {
        match *edit {
            Edit::Put { at, sums } => self.put(at, sums),
            Edit::Cut { from, to } => self.cut(from, to),
        }
    }

    fn end(mut self) -> Result<Vec<Change>, TxnError> {
        self.items.close();
        Ok(self.items.changes)
    }

    /// Whether an item of the tree was changed or deleted here already.
    fn is_new(&self, key: &Key) -> bool {
        self.done.is_none_or(|done| key.offset > done)
    }

    fn put(&mut self, at: u64, sums: &[u8]) -> Result<(), TxnError> {
        let l = self.l;
        let continues = self.items.open.is_some_and(|start| l.end(start, &self.items.sums) == at);
        if !continues {
            self.items.close();
            if at > 0
                && self.cursor.seek_back(&csum_key(at - 1))?
                && let Some((key, stored)) = self.cursor.current()
                && is_csum(&key)
                && l.end(key.offset, stored) == at
                && self.is_new(&key)
            {
                self.done = Some(key.offset);
                self.items.open(key.offset, stored, false)?;
            }
        }
        let step = (l.item_bytes_max / l.csum_len * l.csum_len) as usize;
        let room = if self.items.open.is_some() {
            l.item_bytes_max.saturating_sub(self.items.sums.len() as u64) / l.csum_len * l.csum_len
        } else {
            0
        };
        let (head, rest) = sums.split_at(sums.len().min(room as usize));
        if !head.is_empty() {
            self.items.sums.extend_from_slice(head);
            self.items.changed = true;
        }
        let mut at = l.end(at, head);
        for part in rest.chunks(step) {
            self.items.open(at, part, true)?;
            at = l.end(at, part);
        }
        Ok(())
    }

    fn cut(&mut self, from: u64, to: u64) -> Result<(), TxnError> {
        let l = self.l;
        if let Some(start) = self.items.open
            && start < to
            && l.end(start, &self.items.sums) > from
        {
            self.items.cut_open(l, (from, to), start)?;
        }
        let mut more = self.cursor.seek_back(&csum_key(from))?;
        if !more || !self.cursor.key().is_some_and(|key| is_csum(&key)) {
            more = self.cursor.seek(&csum_key(from))?;
        }
        while more {
            let Some((key, sums)) = self.cursor.current() else { break };
            if !is_csum(&key) || key.offset >= to {
                break;
            }
            if l.end(key.offset, sums) > from && self.is_new(&key) {
                self.done = Some(key.offset);
                self.items.cut(l, (from, to), key.offset, sums)?;
            }
            more = self.cursor.next()?;
        }
        Ok(())
    }
}
