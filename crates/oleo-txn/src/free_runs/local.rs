//! Changes of a group's free space by the items around them alone.
//!
//! As extents: of the runs that each piece lies in or touches, the old are compared with what becomes of them. As bitmaps: the bits are
//! changed in the bitmaps that the pieces lie in, and the bits beside a piece tell how the number of runs changes. That number is kept in
//! `FREE_SPACE_INFO`; it was verified when the group's free space was read for the allocator.

use oleo_format::{ItemType, Key};
use oleo_tree::{Blocks, Change, Cursor, Op, TreeRoot};

use super::{
    BITMAP_BITS, Bit, Form, FreeItems, FreeSpaceChange, GroupSpan, Piece, Stored, USING_BITMAPS, fill_bits, info_bytes,
    next_bit, run_changes, wrong,
};
use crate::TxnError;

/// The item changes, sorted; `None` if the whole group has to be looked at.
pub(super) fn changes(
    blocks: &Blocks,
    root: &TreeRoot,
    group: GroupSpan,
    space_changes: &[(Piece, FreeSpaceChange)],
) -> Result<Option<Vec<Change>>, TxnError> {
    let mut cursor = blocks.cursor(root);
    let info = Key::new(group.start, ItemType::FREE_SPACE_INFO, group.len);
    cursor.seek(&info)?;
    let stored = cursor.current().filter(|(key, data)| *key == info && data.len() == 8);
    let Some((_, data)) = stored else { return Ok(None) };
    let word = |at: usize| data.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
    let (count, flags) = (word(0), word(4));
    let (form, local) = match flags {
        0 => (Form::Extents, extents(&mut cursor, group, space_changes)?),
        USING_BITMAPS => (Form::Bitmaps, bitmaps(&mut cursor, group, space_changes)?),
        _ => return Ok(None),
    };
    let Some(Local { mut changes, more }) = local else { return Ok(None) };
    let now = u32::try_from(i64::from(count) + more)
        .map_err(|_| wrong(group.start, "extent_count", count, format!("at least {}", -more)))?;
    if form.next(group.len, u64::from(group.sectorsize), u64::from(now)) != form {
        return Ok(None);
    }
    if now != count {
        changes.push(Change::put(info, info_bytes(now, flags)));
    }
    changes.sort_unstable_by_key(|change| change.key);
    Ok(Some(changes))
}

struct Local {
    changes: Vec<Change>,
    /// How many runs more there are.
    more: i64,
}

fn extents(
    cursor: &mut Cursor<'_>,
    group: GroupSpan,
    space_changes: &[(Piece, FreeSpaceChange)],
) -> Result<Option<Local>, TxnError> {
    let mut near: Vec<Piece> = Vec::new();
    for (piece, _) in space_changes {
        // The run that the piece begins in or behind, and those up to its end.
        let mut more = cursor.seek_back(&Key::new(piece.start, ItemType::FREE_SPACE_EXTENT, u64::MAX))?;
        while more {
            let Some((key, _)) = cursor.current().filter(|(key, _)| key.objectid <= piece.end) else { break };
            if key.objectid >= group.start && key.objectid - group.start < group.len {
                match key.item_type {
                    ItemType::FREE_SPACE_EXTENT => {
                        if !note(&mut near, group, &key, piece)? {
                            return Ok(None);
                        }
                    }
                    ItemType::FREE_SPACE_INFO => {}
                    _ => return Ok(None),
                }
            }
            more = cursor.next()?;
        }
    }
    let mut free = FreeItems {
        start: group.start,
        len: group.len,
        sectorsize: u64::from(group.sectorsize),
        stored: Stored::Extents(Vec::new()),
        runs: near.clone(),
    };
    free.apply(space_changes)?;
    let more = free.runs.len() as i64 - near.len() as i64;
    Ok(Some(Local { changes: run_changes(&near, &free.runs), more }))
}

/// Adds the run of an item if the piece lies in it or touches it; `false` if the runs are not as they would be written here.
fn note(near: &mut Vec<Piece>, group: GroupSpan, key: &Key, piece: &Piece) -> Result<bool, TxnError> {
    let end = key.objectid.checked_add(key.offset).filter(|end| *end <= group.start + group.len && key.offset > 0);
    let end = end.ok_or_else(|| wrong(group.start, "free extent", key, "inside its group"))?;
    if end < piece.start {
        return Ok(true);
    }
    match near.last() {
        Some(last) if last.start == key.objectid => Ok(last.end == end),
        Some(last) if last.start > key.objectid => Ok(true),
        Some(last) if last.end >= key.objectid => Ok(false),
        _ => {
            near.push(Piece { start: key.objectid, end });
            Ok(true)
        }
    }
}

/// A bitmap that was looked at.
struct Map {
    number: u64,
    bits: Vec<u8>,
    changed: bool,
}

/// The bitmaps of a group that were looked at, in rising order.
struct Maps<'c, 'b> {
    cursor: &'c mut Cursor<'b>,
    group: GroupSpan,
    seen: Vec<Map>,
}

impl Maps<'_, '_> {
    fn key(&self, number: u64) -> Key {
        let span = BITMAP_BITS * u64::from(self.group.sectorsize);
        let at = number * span;
        Key::new(self.group.start + at, ItemType::FREE_SPACE_BITMAP, span.min(self.group.len - at))
    }

    /// The bitmap of this number, which is at most one below the highest that was asked for; `None` if there is none as it would be
    /// written here.
    fn get(&mut self, number: u64) -> Result<Option<&mut Map>, TxnError> {
        let at = self.seen.iter().rposition(|map| map.number <= number);
        let at = match at {
            Some(at) if self.seen[at].number == number => at,
            _ => {
                let key = self.key(number);
                let bytes = (key.offset / u64::from(self.group.sectorsize)).div_ceil(8) as usize;
                self.cursor.seek(&key)?;
                let Some((_, bits)) = self.cursor.current().filter(|(k, bits)| *k == key && bits.len() == bytes) else {
                    return Ok(None);
                };
                let at = at.map_or(0, |at| at + 1);
                self.seen.insert(at, Map { number, bits: bits.to_vec(), changed: false });
                at
            }
        };
        Ok(self.seen.get_mut(at))
    }

    /// Whether a sector of the group is free.
    fn is_free(&mut self, sector: u64) -> Result<Option<bool>, TxnError> {
        let map = self.get(sector / BITMAP_BITS)?;
        let bit = sector % BITMAP_BITS;
        Ok(map.map(|map| next_bit(&map.bits, bit, bit + 1, Bit::Set) == bit))
    }

    /// Changes sectors of the group, which are all the other way before; `None` as for `get`.
    fn fill(&mut self, from: u64, to: u64, to_be: Bit) -> Result<Option<()>, TxnError> {
        let start = self.group.start;
        let mut sector = from;
        while sector < to {
            let number = sector / BITMAP_BITS;
            let stop = to.min((number + 1) * BITMAP_BITS);
            let Some(map) = self.get(number)? else { return Ok(None) };
            let (a, b) = (sector - number * BITMAP_BITS, stop - number * BITMAP_BITS);
            if next_bit(&map.bits, a, b, to_be) < b {
                let what = if to_be == Bit::Set { "freed but free already" } else { "used but not free" };
                return Err(wrong(start, what, format!("sectors {from}..{to}"), "the other way").into());
            }
            fill_bits(&mut map.bits, a, b, to_be);
            map.changed = true;
            sector = stop;
        }
        Ok(Some(()))
    }
}

fn bitmaps(
    cursor: &mut Cursor<'_>,
    group: GroupSpan,
    space_changes: &[(Piece, FreeSpaceChange)],
) -> Result<Option<Local>, TxnError> {
    let sectorsize = u64::from(group.sectorsize);
    let sectors = group.len / sectorsize;
    let (mut maps, mut more) = (Maps { cursor, group, seen: Vec::new() }, 0);
    for (piece, becomes) in space_changes {
        let (from, to) = ((piece.start - group.start) / sectorsize, (piece.end - group.start) / sectorsize);
        let before = if from > 0 { maps.is_free(from - 1)? } else { Some(false) };
        let to_be = if *becomes == FreeSpaceChange::Free { Bit::Set } else { Bit::Clear };
        let done = maps.fill(from, to, to_be)?;
        let behind = if to < sectors { maps.is_free(to)? } else { Some(false) };
        let (Some(before), Some(()), Some(behind)) = (before, done, behind) else { return Ok(None) };
        let beside = i64::from(before) + i64::from(behind);
        more += if *becomes == FreeSpaceChange::Free { 1 - beside } else { beside - 1 };
    }
    let changed: Vec<(Key, Vec<u8>)> =
        maps.seen.iter().filter(|map| map.changed).map(|map| (maps.key(map.number), map.bits.clone())).collect();
    let changes = changed.into_iter().map(|(key, bits)| Change { key, op: Op::Put(bits.into()) }).collect();
    Ok(Some(Local { changes, more }))
}
