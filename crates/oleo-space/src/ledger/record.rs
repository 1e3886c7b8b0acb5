//! What is recorded, packed into 48 bytes, and how records of one extent become one.
//!
//! A record is one reference's change, or nothing but marks ("new", "full backrefs") of its extent. Records are ordered by
//! address, then by reference, marks alone first; the marks of an extent lie on the first of its records. [`Folded`] takes
//! records in that order and adds up what is of one reference: what comes to nothing leaves no record, unless its extent
//! is marked.
//!
//! A tree block's first key is in the space that only data references need, so a tree block is referenced by trees and
//! blocks, and data by files and leaves; [`Record::of`] goes by the reference if a damaged image has it otherwise.

use std::cmp::Ordering;

use oleo_format::{ByteLen, Ino, ItemType, Key, Logical, TreeId};
use smallvec::SmallVec;

use super::{ExtentKind, Head, Pending, RefChange, RefKey};

pub(super) const NEW: u8 = 1;
pub(super) const FULL_BACKREF: u8 = 2;
const MARKS: u8 = NEW | FULL_BACKREF;
const TREE: u8 = 4;
/// From here on: 0 for marks alone, else 1 + which kind of reference; then, for tree blocks, the level.
const BY_SHIFT: u8 = 3;
const BY_BITS: u8 = 7 << BY_SHIFT;
const BY_DATA_ROOT: u8 = 3 << BY_SHIFT;

/// What addresses are multiples of.
const SECTOR: u64 = 4096;

/// Records of one list in a row, in a merge, after which a longer row is expected.
const GALLOP_AFTER: i32 = 8;

#[derive(Clone, Copy)]
pub(super) struct Record {
    pub(super) at: u64,
    len: u64,
    /// Whose reference it is; for a tree block `words[1..]` and `key_type` are its first key.
    words: [u64; 3],
    /// Not zero if it is a reference's.
    delta: i32,
    flags: u8,
    key_type: u8,
    level: u8,
}

const _: () = assert!(size_of::<Record>() == 48);

impl Record {
    /// Marks of an extent.
    pub(super) fn marks(at: Logical, len: ByteLen, kind: ExtentKind, marks: u8) -> Record {
        let mut record = Record { at: at.0, len: len.0, words: [0; 3], delta: 0, flags: marks, key_type: 0, level: 0 };
        if let ExtentKind::Tree { level, first_key } = kind {
            record.flags |= TREE;
            record.level = level;
            record.key_type = first_key.item_type.0;
            record.words[1..].copy_from_slice(&[first_key.objectid, first_key.offset]);
        }
        record
    }

    /// A change of a reference.
    pub(super) fn of(change: &RefChange) -> Record {
        let kind = if let RefKey::DataRoot { .. } = change.by { ExtentKind::Data } else { change.kind };
        let mut record = Record::marks(change.at, change.len, kind, 0);
        let (by, word) = match change.by {
            RefKey::TreeRoot(root) => (1, root.0),
            RefKey::TreeParent(parent) => (2, parent.0),
            RefKey::DataRoot { root, ino, offset } => {
                record.words[1..].copy_from_slice(&[ino.0, offset]);
                (3, root.0)
            }
            RefKey::DataParent(parent) => (4, parent.0),
        };
        record.words[0] = word;
        record.flags |= by << BY_SHIFT;
        record.delta = change.delta;
        record
    }

    fn kind(&self) -> ExtentKind {
        if self.flags & TREE == 0 {
            return ExtentKind::Data;
        }
        let first_key = Key { objectid: self.words[1], item_type: ItemType(self.key_type), offset: self.words[2] };
        ExtentKind::Tree { level: self.level, first_key }
    }

    /// The reference and its change, if it is a reference's.
    pub(super) fn reference(&self) -> Option<(RefKey, i32)> {
        let [a, b, c] = self.words;
        let by = match self.flags >> BY_SHIFT {
            0 => return None,
            1 => RefKey::TreeRoot(TreeId(a)),
            2 => RefKey::TreeParent(Logical(a)),
            3 => RefKey::DataRoot { root: TreeId(a), ino: Ino(b), offset: c },
            _ => RefKey::DataParent(Logical(a)),
        };
        Some((by, self.delta))
    }

    /// The order among the records of one extent; equal is what is of one reference.
    fn compare_refs(&self, other: &Record) -> Ordering {
        let by = |record: &Record| (record.flags & BY_BITS, record.words[0]);
        by(self).cmp(&by(other)).then_with(|| match self.flags & BY_BITS {
            BY_DATA_ROOT => self.words[1..].cmp(&other.words[1..]),
            // The others' words are a key, or nothing: they do not tell references apart.
            _ => Ordering::Equal,
        })
    }

    #[inline]
    pub(super) fn compare(&self, other: &Record) -> Ordering {
        self.at.cmp(&other.at).then_with(|| self.compare_refs(other))
    }

    fn is_nothing(&self) -> bool {
        self.delta == 0 && self.flags & MARKS == 0
    }
}

/// Records in order, those of one reference added up.
#[derive(Default)]
pub(super) struct Folded {
    records: Vec<Record>,
    /// Where the last extent's records begin.
    head: usize,
}

impl Folded {
    pub(super) fn with_capacity(records: usize) -> Folded {
        Folded { records: Vec::with_capacity(records), head: 0 }
    }

    /// Adds a record that is not before the last one.
    #[inline]
    pub(super) fn push(&mut self, record: &Record) {
        match self.records.last() {
            Some(last) if last.at == record.at => self.push_same(record),
            _ => {
                self.drop_nothing();
                self.head = self.records.len();
                self.records.push(*record);
            }
        }
    }

    #[inline(never)]
    fn push_same(&mut self, record: &Record) {
        let last = self.records.len() - 1;
        if record.flags & BY_BITS != 0 {
            let here = &mut self.records[last];
            if here.flags & BY_BITS == 0 {
                // Marks alone, or a reference that came to nothing: the place is free.
                let marks = here.flags & MARKS;
                let was = *here;
                *here = *record;
                here.flags |= marks;
                self.adopt(&was);
            } else if here.compare_refs(record).is_eq() {
                // A wrong sum would be lost data; so many changes of one reference take hours, and a commit comes first.
                here.delta = here.delta.checked_add(record.delta).expect("fewer than 2^31 changes of one reference");
                if here.delta == 0 && last > self.head {
                    self.records.pop();
                } else if here.delta == 0 {
                    // Stays to carry the marks, as one of them alone.
                    here.flags &= !BY_BITS;
                    if here.flags & TREE == 0 {
                        here.words = [0; 3];
                    }
                }
            } else {
                self.records.push(Record { flags: record.flags & !MARKS, ..*record });
            }
        }
        self.records[self.head].flags |= record.flags & MARKS;
        if record.flags & NEW != 0 {
            self.adopt(record);
        }
    }

    /// The one that allocated an extent knows best what it is.
    fn adopt(&mut self, marks: &Record) {
        if marks.flags & NEW == 0 {
            return;
        }
        let head = &mut self.records[self.head];
        head.len = marks.len;
        if head.flags & marks.flags & TREE != 0 {
            (head.level, head.key_type) = (marks.level, marks.key_type);
            head.words[1..].copy_from_slice(&marks.words[1..]);
        }
    }

    /// Forgets the last extent if nothing is left of it.
    fn drop_nothing(&mut self) {
        if self.records.last().is_some_and(Record::is_nothing) {
            self.records.pop();
        }
    }

    /// Adds the records of one extent, in any order.
    fn push_extent<'a>(&mut self, records: impl ExactSizeIterator<Item = &'a Record>) {
        if records.len() == 1 {
            return records.for_each(|record| self.push(record));
        }
        let mut same: SmallVec<[&Record; 16]> = records.collect();
        if !same.is_sorted_by(|a, b| a.compare_refs(b).is_le()) {
            same.sort_by(|a, b| a.compare_refs(b));
        }
        same.into_iter().for_each(|record| self.push(record));
    }

    /// Adds records that are in order, folded, and not before what is there.
    pub(super) fn extend(&mut self, records: &[Record]) {
        // The first may add up with what is there, and the second may take the place that it leaves; the others are on their own.
        let (near, rest) = records.split_at(records.len().min(2));
        near.iter().for_each(|record| self.push(record));
        let Some(last) = rest.last() else { return };
        if self.records.last().is_none_or(|before| before.at != last.at) {
            self.head = self.records.len() + rest.partition_point(|record| record.at < last.at);
        }
        self.records.extend_from_slice(rest);
    }

    /// Adds two lists that are in order, folded, and not before what is there.
    pub(super) fn merge(&mut self, mut a: &[Record], mut b: &[Record]) {
        // If one side keeps coming first, its next records are searched for and copied in one step.
        let mut wins = 0;
        while let ([x, rest_a @ ..], [y, rest_b @ ..]) = (a, b) {
            let from_b = y.compare(x).is_lt();
            if from_b {
                self.push(y);
                b = rest_b;
                wins = if wins < 0 { wins - 1 } else { -1 };
            } else {
                self.push(x);
                a = rest_a;
                wins = if wins > 0 { wins + 1 } else { 1 };
            }
            if wins >= GALLOP_AFTER && !a.is_empty() {
                a = self.extend_while(a, |record| record.compare(y).is_le());
                wins = 0;
            } else if wins <= -GALLOP_AFTER && !b.is_empty() {
                b = self.extend_while(b, |record| record.compare(x).is_lt());
                wins = 0;
            }
        }
        self.extend(a);
        self.extend(b);
    }

    /// Adds the first records, those for which `before` holds; what is left.
    fn extend_while<'a>(&mut self, records: &'a [Record], before: impl Fn(&Record) -> bool) -> &'a [Record] {
        let (first, left) = records.split_at(count_while(records, before));
        self.extend(first);
        left
    }

    pub(super) fn finish(mut self) -> Vec<Record> {
        self.drop_nothing();
        if self.records.len() < self.records.capacity() / 8 * 7 {
            self.records.shrink_to_fit();
        }
        self.records
    }
}

/// How many of the first records `here` holds for: a search that is quick if they are few.
pub(super) fn count_while(records: &[Record], here: impl Fn(&Record) -> bool) -> usize {
    let mut reach = 1;
    while records.get(reach - 1).is_some_and(&here) {
        reach *= 2;
    }
    let (from, to) = (reach / 2, records.len().min(reach - 1));
    from + records[from..to].partition_point(here)
}

/// Adds up records in any order.
pub(super) fn fold(records: &[Record]) -> Vec<Record> {
    let mut out = Folded::with_capacity(records.len());
    if records.is_sorted_by(|a, b| a.compare(b).is_le()) {
        records.iter().for_each(|record| out.push(record));
        return out.finish();
    }
    // Eight bytes are moved quicker than 48, and compared quicker. Those of one extent stay in the order in which they came.
    let number_bits = usize::BITS - records.len().leading_zeros();
    let packs = |r: &Record| r.at.is_multiple_of(SECTOR) && (r.at / SECTOR).leading_zeros() >= number_bits;
    if records.iter().all(packs) {
        let pack = |(i, r): (u64, &Record)| (r.at / SECTOR) << number_bits | i;
        let mut order: Vec<u64> = (0..).zip(records).map(pack).collect();
        order.sort_unstable();
        let extents = order.chunk_by(|a, b| a >> number_bits == b >> number_bits);
        let numbers = (1 << number_bits) - 1;
        extents.for_each(|extent| out.push_extent(extent.iter().map(|place| &records[(place & numbers) as usize])));
    } else {
        // Only a lying image has such addresses.
        let mut order: Vec<&Record> = records.iter().collect();
        order.sort_by_key(|record| record.at);
        order.chunk_by(|a, b| a.at == b.at).for_each(|extent| out.push_extent(extent.iter().copied()));
    }
    out.finish()
}

/// Merges two lists that are in order.
pub(super) fn merge(a: &[Record], b: &[Record]) -> Vec<Record> {
    let mut out = Folded::with_capacity(a.len() + b.len());
    out.merge(a, b);
    out.finish()
}

/// Adds up what a slice of records says of one extent.
pub(super) fn pending(records: &[Record]) -> Pending {
    let marks = records.iter().fold(0, |marks, record| marks | record.flags);
    Pending {
        refs: records.iter().map(|record| i64::from(record.delta)).sum(),
        full_backref: marks & FULL_BACKREF != 0,
        is_new: marks & NEW != 0,
    }
}

/// The records of one extent, added up, as a head.
pub(super) fn head(records: &[Record]) -> Head<'_> {
    let first = &records[0];
    let Pending { full_backref, is_new, .. } = pending(records);
    Head { at: Logical(first.at), len: ByteLen(first.len), kind: first.kind(), is_new, full_backref, records }
}
