//! Free space of one block group as the free-space tree holds it: runs in memory, items on disk.
//!
//! The tree keeps a group in one of two forms: one `FREE_SPACE_EXTENT` item per run, or `FREE_SPACE_BITMAP` items of
//! 256 bytes, a bit per sector, set where free. `FREE_SPACE_INFO` says which and counts the runs.
//!
//! Normal path: [`group_changes`] turns the sorted changes of a settling round into item changes. It reads and writes only the items
//! around them (`local`), and keeps the count: a group may have thousands of items, and each round of each commit that touches it
//! comes by here. If the other form is smaller now, or the items are not as they would be written here, the whole group is read:
//! (1) `FreeItems::read` takes its items as they are; (2) `apply` merges the changes into the runs; (3) `changes` compares what should
//! be on disk with what is and emits the difference.
//!
//! Invariants: runs are sorted, do not touch, and lie in the group; taking what is not free and freeing what is free are
//! errors, never absorbed: they mean a wrong reference count.

mod local;

use std::collections::BTreeMap;

use oleo_format::{ByteLen, Corruption, ItemType, Key, Logical};
use oleo_space::Run;
use oleo_tree::{Blocks, Change, ItemBytes, Op, TreeError, TreeRoot};

use crate::TxnError;

/// Bytes of one bitmap item (`BTRFS_FREE_SPACE_BITMAP_SIZE`, format documentation of the free-space tree).
pub const BITMAP_BYTES: u64 = 256;
/// Sectors that one bitmap item covers.
const BITMAP_BITS: u64 = BITMAP_BYTES * 8;
/// `FREE_SPACE_INFO.flags`: the group is kept as bitmaps (`BTRFS_FREE_SPACE_USING_BITMAPS`).
pub const USING_BITMAPS: u32 = 1;
/// Bytes that a leaf spends on an item besides its data (`struct btrfs_item`).
const ITEM_HEAD_BYTES: u64 = 25;
/// A group goes back from bitmaps to extents only when it has this many runs fewer than the point where it went over,
/// or half as many, so that a group at the border does not change form with every commit.
const FORM_HYSTERESIS_RUNS: u64 = 100;

/// A piece of logical space: where it starts and how long it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Piece {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

impl Piece {
    /// Of the item that says that it is free.
    fn key(&self) -> Key {
        Key::new(self.start, ItemType::FREE_SPACE_EXTENT, self.end - self.start)
    }
}

/// What a settling round does to a group's free space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreeSpaceChange {
    /// The piece is now used.
    Used,
    /// The piece is now free.
    Free,
}

/// How long all of them are.
pub(crate) fn sum_of(runs: &[(Logical, ByteLen)]) -> ByteLen {
    ByteLen(runs.iter().map(|(_, len)| len.0).sum())
}

/// `all` without `cut`, which is sorted and may go beyond it.
pub(crate) fn without(all: Run, cut: &[(Logical, ByteLen)]) -> Vec<(Logical, ByteLen)> {
    let (mut free, mut from) = (Vec::new(), all.start);
    for (at, len) in cut.iter().take_while(|(at, _)| *at < all.end()) {
        if *at > from {
            free.push((from, *at - from));
        }
        from = from.max(*at + *len);
    }
    if from < all.end() {
        free.push((from, all.end() - from));
    }
    free
}

/// Items with their keys, in the order of the tree.
type ItemList = Vec<(Key, Box<[u8]>)>;

/// The free-space items whose keys lie in a group.
pub(crate) fn group_items(
    blocks: &Blocks,
    root: &TreeRoot,
    start: Logical,
    len: ByteLen,
) -> Result<ItemList, TreeError> {
    let mut items = Vec::new();
    let mut cursor = blocks.cursor(root);
    let mut more = cursor.seek(&Key::new(start.0, ItemType(0), 0))?;
    while more {
        let Some((key, data)) = cursor.current() else { break };
        if key.objectid - start.0 >= len.0 {
            break;
        }
        items.push((key, data.into()));
        more = cursor.next()?;
    }
    Ok(items)
}

/// The free space of one group and the items that represent it in the tree.
#[derive(Debug)]
pub struct FreeItems {
    start: u64,
    len: u64,
    sectorsize: u64,
    runs: Vec<Piece>,
    stored: Stored,
}

/// What the tree holds of a group.
#[derive(Debug)]
enum Stored {
    /// As written here: an item for each of these runs.
    Extents(Vec<Piece>),
    /// As written here: bitmaps side by side, each but the last of full length, and a count of runs.
    Bitmaps { maps: Vec<Box<[u8]>>, count: u32 },
    /// Nothing, or items that say the same in another way: key to item bytes.
    Other { items: Items, bitmaps: bool },
}

type Items = BTreeMap<Key, Box<[u8]>>;

/// How the tree represents a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Extents,
    Bitmaps,
}

impl Form {
    /// The form that a group of `len` bytes is to have when it has so many runs.
    fn next(self, len: u64, sectorsize: u64, runs: u64) -> Form {
        let bitmaps = len.div_ceil(BITMAP_BITS * sectorsize);
        let high = bitmaps * (BITMAP_BYTES + ITEM_HEAD_BYTES) / ITEM_HEAD_BYTES;
        let goes_over = match self {
            Form::Extents => runs > high,
            Form::Bitmaps => runs >= high - FORM_HYSTERESIS_RUNS.min(high / 2),
        };
        if goes_over { Form::Bitmaps } else { Form::Extents }
    }
}

/// A group of which items are changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupSpan {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) sectorsize: u32,
}

/// The changes of the free-space tree, sorted, that these changes of free space in one group make: sorted by start, without overlap.
///
/// # Errors
/// Something becomes free that is, or used that was not free; or the items contradict each other as far as they are looked at.
pub(crate) fn group_changes(
    blocks: &Blocks,
    root: &TreeRoot,
    group: GroupSpan,
    space_changes: &[(Piece, FreeSpaceChange)],
) -> Result<Vec<Change>, TxnError> {
    if let Some(changes) = local::changes(blocks, root, group, space_changes)? {
        return Ok(changes);
    }
    let items = group_items(blocks, root, Logical(group.start), ByteLen(group.len))?;
    let mut whole = FreeItems::read(Logical(group.start), ByteLen(group.len), group.sectorsize, items)?;
    whole.apply(space_changes)?;
    Ok(whole.changes())
}

fn info_bytes(count: u32, flags: u32) -> Box<[u8]> {
    let mut v = Vec::with_capacity(8);
    v.extend_from_slice(&count.to_le_bytes());
    v.extend_from_slice(&flags.to_le_bytes());
    v.into()
}

fn wrong(at: u64, what: &'static str, have: impl ToString, want: impl ToString) -> Corruption {
    Corruption::new("free space", what, have.to_string(), want.to_string()).within(format!("group {at}"))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Bit {
    Set,
    Clear,
}

/// The first bit from `from` on that is as wanted, or `end`: a byte at a time, since a group has a quarter of a million.
fn next_bit(data: &[u8], from: u64, end: u64, want: Bit) -> u64 {
    let flip = if want == Bit::Set { 0 } else { u8::MAX };
    let mut bit = from;
    while bit < end {
        let byte = data.get((bit / 8) as usize).copied().unwrap_or(0) ^ flip;
        let rest = byte >> (bit % 8);
        if rest != 0 {
            return end.min(bit + u64::from(rest.trailing_zeros()));
        }
        bit = (bit / 8 + 1) * 8;
    }
    end
}

/// Makes the bits `from..to` so.
fn fill_bits(map: &mut [u8], from: u64, to: u64, to_be: Bit) {
    let mut bit = from;
    while bit < to {
        let count = (8 - bit % 8).min(to - bit);
        if let Some(byte) = map.get_mut((bit / 8) as usize) {
            let mask = (u8::MAX >> (8 - count)) << (bit % 8);
            *byte = if to_be == Bit::Set { *byte | mask } else { *byte & !mask };
        }
        bit += count;
    }
}

impl FreeItems {
    /// A group that is not in the tree yet, with what is free in it.
    pub fn new(start: Logical, len: ByteLen, sectorsize: u32, runs: &[(Logical, ByteLen)]) -> FreeItems {
        let runs = runs.iter().map(|(s, l)| Piece { start: s.0, end: s.0 + l.0 }).collect();
        let sectorsize = u64::from(sectorsize);
        let stored = Stored::Other { items: Items::new(), bitmaps: false };
        FreeItems { start: start.0, len: len.0, sectorsize, runs, stored }
    }

    /// A group as the tree has it: `items` are all free-space items whose keys lie in it.
    pub fn read(
        start: Logical,
        len: ByteLen,
        sectorsize: u32,
        items: Vec<(Key, Box<[u8]>)>,
    ) -> Result<FreeItems, Corruption> {
        let mut group = FreeItems::new(start, len, sectorsize, &[]);
        let end = group.start + group.len;
        let mut info = None;
        for (key, data) in &items {
            match key.item_type {
                ItemType::FREE_SPACE_INFO if key.objectid == start.0 && key.offset == len.0 && data.len() >= 8 => {
                    let word = |at: usize| data.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
                    info = word(0).zip(word(4));
                }
                ItemType::FREE_SPACE_EXTENT => {
                    let piece_end = key.objectid.checked_add(key.offset).filter(|e| *e <= end && key.offset > 0);
                    let piece_end = piece_end.ok_or_else(|| wrong(start.0, "free extent", key, "inside its group"))?;
                    group.push(key.objectid, piece_end)?;
                }
                ItemType::FREE_SPACE_BITMAP => group.push_bitmap(key, data, end)?,
                _ => return Err(wrong(start.0, "item", key, "one of the free-space tree")),
            }
        }
        let Some((count, flags)) = info else { return Err(wrong(start.0, "FREE_SPACE_INFO", "none", "one")) };
        if group.runs.len() as u64 != u64::from(count) {
            return Err(wrong(start.0, "extent_count", count, group.runs.len()));
        }
        group.stored = group.as_stored(items, count, flags);
        Ok(group)
    }

    /// The items in the tree that were found to mean `self.runs`.
    fn as_stored(&self, items: Vec<(Key, Box<[u8]>)>, count: u32, flags: u32) -> Stored {
        let bitmaps = flags & USING_BITMAPS != 0;
        let rest = items.iter().filter(|(key, _)| key.item_type != ItemType::FREE_SPACE_INFO);
        let as_here = match flags {
            0 => rest.map(|(key, _)| *key).eq(self.runs.iter().map(Piece::key)),
            USING_BITMAPS => rest.map(|(key, _)| *key).eq(self.bitmap_keys()),
            _ => false,
        };
        if !as_here {
            return Stored::Other { items: items.into_iter().collect(), bitmaps };
        }
        if !bitmaps {
            return Stored::Extents(self.runs.clone());
        }
        let maps = items.into_iter().filter(|(key, _)| key.item_type != ItemType::FREE_SPACE_INFO).map(|(_, map)| map);
        Stored::Bitmaps { maps: maps.collect(), count }
    }

    fn push(&mut self, start: u64, end: u64) -> Result<(), Corruption> {
        match self.runs.last_mut() {
            Some(last) if last.end > start => Err(wrong(self.start, "free extents overlap at", start, last.end)),
            Some(last) if last.end == start => {
                last.end = end;
                Ok(())
            }
            _ => {
                self.runs.push(Piece { start, end });
                Ok(())
            }
        }
    }

    fn push_bitmap(&mut self, key: &Key, data: &[u8], end: u64) -> Result<(), Corruption> {
        let covers = key.objectid.checked_add(key.offset).filter(|e| *e <= end && key.objectid >= self.start);
        let bits = key.offset / self.sectorsize;
        if covers.is_none() || bits > BITMAP_BITS || data.len() as u64 != bits.div_ceil(8) {
            return Err(wrong(self.start, "bitmap", key, "a bitmap inside its group"));
        }
        let mut bit = next_bit(data, 0, bits, Bit::Set);
        while bit < bits {
            let end = next_bit(data, bit, bits, Bit::Clear);
            self.push(key.objectid + bit * self.sectorsize, key.objectid + end * self.sectorsize)?;
            bit = next_bit(data, end, bits, Bit::Set);
        }
        Ok(())
    }

    /// What is free, sorted.
    pub fn runs(&self) -> impl Iterator<Item = (Logical, ByteLen)> + '_ {
        self.runs.iter().map(|p| (Logical(p.start), ByteLen(p.end - p.start)))
    }

    /// Merges `space_changes`, sorted by start and without overlap, into the runs.
    pub fn apply(&mut self, space_changes: &[(Piece, FreeSpaceChange)]) -> Result<(), Corruption> {
        let mut out: Vec<Piece> = Vec::with_capacity(self.runs.len() + space_changes.len());
        let mut add = |piece: Piece| match out.last_mut() {
            Some(last) if last.end == piece.start => last.end = piece.end,
            _ => out.push(piece),
        };
        let mut old = self.runs.iter().copied();
        let mut current = old.next();
        for (piece, new_state) in space_changes {
            while let Some(run) = current.filter(|run| run.end <= piece.start) {
                add(run);
                current = old.next();
            }
            match (new_state, current) {
                (FreeSpaceChange::Free, Some(run)) if run.start < piece.end => {
                    return Err(wrong(self.start, "freed but free already", piece.start, run.start));
                }
                (FreeSpaceChange::Free, _) => add(*piece),
                (FreeSpaceChange::Used, Some(run)) if run.start <= piece.start && run.end >= piece.end => {
                    if run.start < piece.start {
                        add(Piece { start: run.start, end: piece.start });
                    }
                    current = Some(Piece { start: piece.end, end: run.end }).filter(|r| r.start < r.end);
                    current = current.or_else(|| old.next());
                }
                (FreeSpaceChange::Used, run) => {
                    return Err(wrong(
                        self.start,
                        "used but not free",
                        format!("{}..{}", piece.start, piece.end),
                        format!("{run:?}"),
                    ));
                }
            }
        }
        while let Some(run) = current {
            add(run);
            current = old.next();
        }
        self.runs = out;
        Ok(())
    }

    fn wants_bitmaps(&self) -> bool {
        let has = if self.has_bitmaps() { Form::Bitmaps } else { Form::Extents };
        has.next(self.len, self.sectorsize, self.runs.len() as u64) == Form::Bitmaps
    }

    fn has_bitmaps(&self) -> bool {
        match &self.stored {
            Stored::Extents(_) => false,
            Stored::Bitmaps { .. } => true,
            Stored::Other { bitmaps, .. } => *bitmaps,
        }
    }

    fn count(&self) -> u32 {
        u32::try_from(self.runs.len()).unwrap_or(u32::MAX)
    }

    fn info(&self, count: u32, flags: u32) -> (Key, Box<[u8]>) {
        (Key::new(self.start, ItemType::FREE_SPACE_INFO, self.len), info_bytes(count, flags))
    }

    /// The keys of all bitmaps, in order.
    fn bitmap_keys(&self) -> impl Iterator<Item = Key> + '_ {
        let span = BITMAP_BITS * self.sectorsize;
        (0..self.len.div_ceil(span)).map(move |n| {
            let at = n * span;
            Key::new(self.start + at, ItemType::FREE_SPACE_BITMAP, span.min(self.len - at))
        })
    }

    /// The bitmaps that say what is free now, in order.
    fn bitmaps(&self) -> Vec<Box<[u8]>> {
        let empty = |key: Key| vec![0; (key.offset / self.sectorsize).div_ceil(8) as usize].into_boxed_slice();
        let mut maps: Vec<Box<[u8]>> = self.bitmap_keys().map(empty).collect();
        for p in &self.runs {
            let mut sector = (p.start - self.start) / self.sectorsize;
            let last = (p.end - self.start) / self.sectorsize;
            while sector < last {
                let n = sector / BITMAP_BITS;
                let stop = last.min((n + 1) * BITMAP_BITS);
                if let Some(map) = maps.get_mut(n as usize) {
                    fill_bits(map, sector - n * BITMAP_BITS, stop - n * BITMAP_BITS, Bit::Set);
                }
                sector = stop;
            }
        }
        maps
    }

    /// All items of a form that the tree holds, or is to hold.
    fn items_of(&self, form: &Stored) -> Items {
        match form {
            Stored::Extents(runs) => {
                let count = u32::try_from(runs.len()).unwrap_or(u32::MAX);
                runs.iter().map(|p| (p.key(), Box::default())).chain([self.info(count, 0)]).collect()
            }
            Stored::Bitmaps { maps, count } => {
                let maps = self.bitmap_keys().zip(maps.iter().cloned());
                maps.chain([self.info(*count, USING_BITMAPS)]).collect()
            }
            Stored::Other { items, .. } => items.clone(),
        }
    }

    /// The item changes that make the tree say what the runs say, sorted; afterwards they count as stored.
    pub fn changes(&mut self) -> Vec<Change> {
        let wanted = if self.wants_bitmaps() {
            Stored::Bitmaps { maps: self.bitmaps(), count: self.count() }
        } else {
            Stored::Extents(self.runs.clone())
        };
        let put = |(key, data): (Key, Box<[u8]>)| Change { key, op: Op::Put(data.into()) };
        let mut changes = Vec::new();
        match (&self.stored, &wanted) {
            (Stored::Extents(old), Stored::Extents(new)) => {
                changes.extend(run_changes(old, new));
                if old.len() != new.len() {
                    changes.push(put(self.info(self.count(), 0)));
                }
            }
            (Stored::Bitmaps { maps: old, count: before }, Stored::Bitmaps { maps: new, count }) => {
                let pairs = self.bitmap_keys().zip(old.iter().zip(new));
                changes.extend(pairs.filter(|(_, (a, b))| a != b).map(|(key, (_, map))| put((key, map.clone()))));
                if before != count {
                    changes.push(put(self.info(*count, USING_BITMAPS)));
                }
            }
            (old, new) => {
                let (old, new) = (self.items_of(old), self.items_of(new));
                let gone = old.keys().filter(|key| !new.contains_key(key));
                changes.extend(gone.map(|key| Change { key: *key, op: Op::Delete }));
                changes.extend(new.into_iter().filter(|(key, data)| old.get(key) != Some(data)).map(put));
            }
        }
        changes.sort_unstable_by_key(|c| c.key);
        self.stored = wanted;
        changes
    }
}

/// The item changes that make extents of `old` those of `new`.
fn run_changes(old: &[Piece], new: &[Piece]) -> Vec<Change> {
    let mut changes = Vec::new();
    differences(old, new, |piece, stays| {
        let op = if stays { Op::Put(ItemBytes::default()) } else { Op::Delete };
        changes.push(Change { key: piece.key(), op });
    });
    changes
}

/// Calls `each` for what only one of two sorted lists has, with `true` for what only the second has.
fn differences(old: &[Piece], new: &[Piece], mut each: impl FnMut(&Piece, bool)) {
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    loop {
        match (old.peek(), new.peek()) {
            (Some(a), Some(b)) if a == b => {
                old.next();
                new.next();
            }
            (Some(a), b) if b.is_none_or(|b| a < b) => {
                each(a, false);
                old.next();
            }
            (_, Some(b)) => {
                each(b, true);
                new.next();
            }
            (_, None) => break,
        }
    }
}

#[cfg(test)]
mod tests;
