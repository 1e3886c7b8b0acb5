//! Free space of one block group as the free-space tree holds it: runs in memory, items on disk.
//!
//! The tree keeps a group in one of two forms: one `FREE_SPACE_EXTENT` item per run, or `FREE_SPACE_BITMAP` items of
//! 256 bytes, a bit per sector, set where free. `FREE_SPACE_INFO` says which and counts the runs.
//!
//! Normal path: (1) `FreeItems::read` takes a group's items as they stand; (2) `apply` merges the sorted changes of a
//! settling round into the runs; (3) `changes` compares what should be on disk with what is and emits only the difference,
//! switching form where the other is smaller.
//!
//! Invariants: runs are sorted, do not touch, and lie in the group; taking what is not free and freeing what is free are
//! errors, never absorbed: they mean a wrong reference count.

use std::collections::BTreeMap;

use oleo_format::{ByteLen, Corruption, ItemType, Key, Logical};
use oleo_tree::{Change, Op};

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

/// What a settling round does to a group's free space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// The piece is now used.
    Used,
    /// The piece is now free.
    Free,
}

/// The free space of one group and the items that stand for it in the tree.
#[derive(Debug)]
pub struct FreeItems {
    start: u64,
    len: u64,
    sectorsize: u64,
    runs: Vec<Piece>,
    bitmaps: bool,
    /// What the tree holds: key to item bytes.
    stored: BTreeMap<Key, Box<[u8]>>,
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

impl FreeItems {
    /// A group that is not in the tree yet, with what is free in it.
    pub fn new(start: Logical, len: ByteLen, sectorsize: u32, runs: &[(Logical, ByteLen)]) -> FreeItems {
        let runs = runs.iter().map(|(s, l)| Piece { start: s.0, end: s.0 + l.0 }).collect();
        let sectorsize = u64::from(sectorsize);
        FreeItems { start: start.0, len: len.0, sectorsize, runs, bitmaps: false, stored: BTreeMap::new() }
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
        for (key, data) in items {
            match key.item_type {
                ItemType::FREE_SPACE_INFO if key.objectid == start.0 && key.offset == len.0 && data.len() == 8 => {
                    let word = |at: usize| data.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
                    info = word(0).zip(word(4));
                }
                ItemType::FREE_SPACE_EXTENT => {
                    let piece_end = key.objectid.checked_add(key.offset).filter(|e| *e <= end && key.offset > 0);
                    let piece_end = piece_end.ok_or_else(|| wrong(start.0, "free extent", key, "inside its group"))?;
                    group.push(key.objectid, piece_end)?;
                }
                ItemType::FREE_SPACE_BITMAP => group.push_bitmap(&key, &data, end)?,
                _ => return Err(wrong(start.0, "item", key, "one of the free-space tree")),
            }
            group.stored.insert(key, data);
        }
        let Some((count, flags)) = info else { return Err(wrong(start.0, "FREE_SPACE_INFO", "none", "one")) };
        group.bitmaps = flags & USING_BITMAPS != 0;
        if group.runs.len() as u64 != u64::from(count) {
            return Err(wrong(start.0, "extent_count", count, group.runs.len()));
        }
        Ok(group)
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
        let mut bit = 0;
        while bit < bits {
            let set = |b: u64| data.get((b / 8) as usize).is_some_and(|byte| byte & (1 << (b % 8)) != 0);
            if !set(bit) {
                bit += 1;
                continue;
            }
            let from = bit;
            while bit < bits && set(bit) {
                bit += 1;
            }
            self.push(key.objectid + from * self.sectorsize, key.objectid + bit * self.sectorsize)?;
        }
        Ok(())
    }

    /// What is free, sorted.
    pub fn runs(&self) -> impl Iterator<Item = (Logical, ByteLen)> + '_ {
        self.runs.iter().map(|p| (Logical(p.start), ByteLen(p.end - p.start)))
    }

    /// Merges `turns`, sorted by start and without overlap, into the runs.
    pub fn apply(&mut self, turns: &[(Piece, Turn)]) -> Result<(), Corruption> {
        let mut out: Vec<Piece> = Vec::with_capacity(self.runs.len() + turns.len());
        let mut add = |piece: Piece| match out.last_mut() {
            Some(last) if last.end == piece.start => last.end = piece.end,
            _ => out.push(piece),
        };
        let mut old = self.runs.iter().copied();
        let mut current = old.next();
        for (piece, turn) in turns {
            while let Some(run) = current.filter(|run| run.end <= piece.start) {
                add(run);
                current = old.next();
            }
            match (turn, current) {
                (Turn::Free, Some(run)) if run.start < piece.end => {
                    return Err(wrong(self.start, "freed but free already", piece.start, run.start));
                }
                (Turn::Free, _) => add(*piece),
                (Turn::Used, Some(run)) if run.start <= piece.start && run.end >= piece.end => {
                    if run.start < piece.start {
                        add(Piece { start: run.start, end: piece.start });
                    }
                    current = Some(Piece { start: piece.end, end: run.end }).filter(|r| r.start < r.end);
                    current = current.or_else(|| old.next());
                }
                (Turn::Used, run) => {
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
        let bitmaps = self.len.div_ceil(BITMAP_BITS * self.sectorsize);
        let high = bitmaps * (BITMAP_BYTES + ITEM_HEAD_BYTES) / ITEM_HEAD_BYTES;
        let runs = self.runs.len() as u64;
        if self.bitmaps { runs >= high - FORM_HYSTERESIS_RUNS.min(high / 2) } else { runs > high }
    }

    fn wanted(&self, bitmaps: bool) -> BTreeMap<Key, Box<[u8]>> {
        let mut items = BTreeMap::new();
        let flags = if bitmaps { USING_BITMAPS } else { 0 };
        let count = u32::try_from(self.runs.len()).unwrap_or(u32::MAX);
        items.insert(Key::new(self.start, ItemType::FREE_SPACE_INFO, self.len), info_bytes(count, flags));
        if !bitmaps {
            for p in &self.runs {
                items.insert(Key::new(p.start, ItemType::FREE_SPACE_EXTENT, p.end - p.start), Box::default());
            }
            return items;
        }
        let span = BITMAP_BITS * self.sectorsize;
        let mut at = 0;
        while at < self.len {
            let covers = span.min(self.len - at);
            let bytes = (covers / self.sectorsize).div_ceil(8) as usize;
            items.insert(
                Key::new(self.start + at, ItemType::FREE_SPACE_BITMAP, covers),
                vec![0; bytes].into_boxed_slice(),
            );
            at += span;
        }
        for p in &self.runs {
            let mut sector = (p.start - self.start) / self.sectorsize;
            let last = (p.end - self.start) / self.sectorsize;
            while sector < last {
                let key_at = self.start + sector / BITMAP_BITS * span;
                let covers = span.min(self.start + self.len - key_at);
                let stop = last.min((sector / BITMAP_BITS + 1) * BITMAP_BITS);
                if let Some(map) = items.get_mut(&Key::new(key_at, ItemType::FREE_SPACE_BITMAP, covers)) {
                    for bit in sector..stop {
                        let bit = bit % BITMAP_BITS;
                        if let Some(byte) = map.get_mut((bit / 8) as usize) {
                            *byte |= 1 << (bit % 8);
                        }
                    }
                }
                sector = stop;
            }
        }
        items
    }

    /// The item changes that make the tree say what the runs say, sorted; afterwards they count as stored.
    pub fn changes(&mut self) -> Vec<Change> {
        self.bitmaps = self.wants_bitmaps();
        let wanted = self.wanted(self.bitmaps);
        let mut changes = Vec::new();
        for key in self.stored.keys() {
            if !wanted.contains_key(key) {
                changes.push(Change { key: *key, op: Op::Delete });
            }
        }
        for (key, data) in &wanted {
            if self.stored.get(key) != Some(data) {
                changes.push(Change { key: *key, op: Op::Put(data.clone()) });
            }
        }
        changes.sort_unstable_by_key(|c| c.key);
        self.stored = wanted;
        changes
    }
}

#[cfg(test)]
mod tests;
