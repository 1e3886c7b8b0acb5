//! Block groups that were remapped instead of moved: where their bytes are now.
//!
//! With the remap tree, a relocation leaves everything that refers to the moved bytes as it is. The block group gets the flag REMAPPED; from then on the
//! remap tree says of each of its ranges that is in use whether it is still where the chunk says (IDENTITY_REMAP), or at another address (REMAP). When
//! nothing is left in its own place, the chunk has no stripes any more. The facts are from the UAPI header `linux/btrfs_tree.h` and the texts of the
//! patches that brought the feature (kernel 7.0); `docs/format.md` has them.
//!
//! Normal path: (1) [`Remaps::read`] reads the whole tree when the volume is opened, right after the chunk tree, since any other tree may be in a group that
//! is remapped; the superblock names its root, and its own blocks are never remapped; (2) whoever reads asks [`Remaps::runs`] where a range is, and
//! reads there.
//!
//! Invariants, checked as the tree is read: ranges rise and do not overlap; each is inside one remapped chunk; where one leads is inside one chunk that
//! is of the same type and is not remapped itself. So one look-up is enough, and there are no loops.
//! Locks: none; it never changes, since such volumes are only read.
//! Not here: keeping the tree up. Writing, scrub and check are refused by name.

use oleo_format::{
    BlockGroupFlags, ByteLen, CheckedNode, Chunk, Corruption, Incompat, ItemType, Logical, NodeExpect, RemapItem,
    SuperBlock, TreeId,
};

use crate::Volume;
use crate::error::VolumeError;
use crate::geometry::ChunkMap;
use crate::table::Index;

/// Blocks that a remap tree may have, at most: more than [`RUNS_MAX`] items have room in so many, however short the blocks are.
const BLOCKS_MAX: usize = 1 << 18;
/// Ranges that are kept, at most, 24 bytes each. Neighbours that lead to neighbours are one.
const RUNS_MAX: usize = 1 << 24;

/// A range and where it is now: `to` is `from` if that is its own place. Bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    from: u64,
    len: u64,
    to: u64,
}

/// A remapped chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Area {
    start: u64,
    end: u64,
    types: BlockGroupFlags,
    /// It has stripes, so that something may be in its own place.
    has_stripes: bool,
}

/// A chunk that has no stripes any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Emptied {
    start: Logical,
    len: ByteLen,
    types: BlockGroupFlags,
}

impl Emptied {
    /// The chunk of a CHUNK_ITEM, if it is one of these.
    pub fn of(start: Logical, item: &[u8]) -> Result<Option<Emptied>, Corruption> {
        let chunk = Chunk::parse(item).map_err(|e| e.within(start))?;
        let is_emptied = chunk.stripes.is_empty() && chunk.flags.is_remapped();
        Ok(is_emptied.then(|| Emptied { start, len: chunk.length, types: chunk.flags.types() }))
    }
}

/// Where remapped bytes are. Empty without the feature.
#[derive(Default, Debug)]
pub(crate) struct Remaps {
    /// Sorted, without overlaps.
    areas: Vec<Area>,
    /// Sorted, without overlaps, each in one area.
    runs: Vec<Run>,
}

impl Remaps {
    /// Reads the tree of a volume whose chunks are known, those without stripes apart.
    pub fn read(volume: &Volume, sb: &SuperBlock, emptied: &[Emptied]) -> Result<Remaps, VolumeError> {
        let Some((logical, generation, level)) = sb.remap_tree() else { return Ok(Remaps::default()) };
        let chunks = volume.chunks.now();
        let mut remaps = Remaps { areas: areas(&chunks, emptied)?, runs: Vec::new() };
        let root = NodeExpect {
            logical,
            generation: Some(generation),
            level: Some(level),
            owner: Some(TreeId::REMAP),
            first_key: None,
        };
        volume.walk_tree("remap tree", root, BLOCKS_MAX, &mut |node| remaps.learn(node, &chunks))?;
        remaps.runs.shrink_to_fit();
        Ok(remaps)
    }

    /// Takes up a leaf.
    fn learn(&mut self, node: &CheckedNode, chunks: &Index) -> Result<(), VolumeError> {
        // Its bytes were read from where the chunk says, which would be wrong.
        if self.area(node.logical().0).is_some() {
            let want = "one that is not remapped";
            return Err(Corruption::new("remap tree", "chunk of a block", "a remapped one", want)
                .within(node.logical())
                .into());
        }
        if !node.is_leaf() {
            return Ok(());
        }
        for (key, item) in node.iter() {
            let to = match key.item_type {
                ItemType::IDENTITY_REMAP => key.objectid,
                ItemType::REMAP => RemapItem::parse(item)?.address.get(),
                _ => continue,
            };
            let run = Run { from: key.objectid, len: key.offset, to };
            let is_moved = key.item_type == ItemType::REMAP;
            self.check(run, is_moved, chunks).map_err(|e| e.within(key))?;
            self.push(run)?;
        }
        Ok(())
    }

    fn check(&self, run: Run, is_moved: bool, chunks: &Index) -> Result<(), Corruption> {
        const WHAT: &str = "remap item";
        let bad = |what: &'static str, have: u64, want: &str| Err(Corruption::new(WHAT, what, have, want));
        let end = run.from.checked_add(run.len).filter(|_| run.len > 0);
        let area = end.and_then(|end| self.area(run.from).filter(|area| end <= area.end));
        let Some(area) = area else {
            return bad("start", run.from, "a range of one remapped chunk");
        };
        if self.runs.last().is_some_and(|last| last.from + last.len > run.from) {
            return bad("start", run.from, "behind the end of the one before it");
        }
        if !is_moved {
            return match area.has_stripes {
                true => Ok(()),
                false => bad("start", run.from, "a chunk that has stripes, since the range is in its own place"),
            };
        }
        let there = chunks.find(Logical(run.to)).map(|placed| &placed.map);
        let there = there.filter(|map| run.to.checked_add(run.len).is_some_and(|end| end <= map.end().0));
        match there {
            None => bad("address", run.to, "a range of one chunk"),
            Some(map) if map.flags.is_remapped() => bad("address", run.to, "a chunk that is not remapped itself"),
            Some(map) if !map.flags.types().contains(area.types) => bad("address", run.to, "a chunk of the same type"),
            Some(_) => Ok(()),
        }
    }

    fn push(&mut self, run: Run) -> Result<(), VolumeError> {
        let goes_on = |last: &Run| {
            let follows = last.from + last.len == run.from && last.to + last.len == run.to;
            follows && self.area(last.from) == self.area(run.from)
        };
        let joins = self.runs.last().is_some_and(goes_on);
        if let Some(last) = self.runs.last_mut().filter(|_| joins) {
            last.len += run.len;
        } else if self.runs.len() < RUNS_MAX {
            self.runs.push(run);
        } else {
            let what = format!("a remap tree of more than {RUNS_MAX} ranges");
            return Err(VolumeError::Unsupported { what });
        }
        Ok(())
    }

    /// The remapped chunk at an address.
    fn area(&self, at: u64) -> Option<Area> {
        let behind = self.areas.partition_point(|area| area.start <= at);
        self.areas.get(behind.checked_sub(1)?).copied().filter(|area| at < area.end)
    }

    /// Whether there are any: without, every address is where its chunk says.
    pub fn is_empty(&self) -> bool {
        self.areas.is_empty()
    }

    /// Where a range is: addresses that are where their chunks say, and lengths, in order.
    ///
    /// # Errors
    /// The tree knows nothing of a part of it.
    pub fn runs(&self, at: Logical, len: u64) -> Result<Vec<(Logical, u64)>, VolumeError> {
        let end = at.0.checked_add(len).ok_or(VolumeError::Unmapped { at, len })?;
        let mut found = Vec::with_capacity(1);
        let mut next = at.0;
        while next < end {
            let (to, take) = match self.area(next) {
                Some(_) => {
                    let behind = self.runs.partition_point(|run| run.from <= next);
                    let run = behind.checked_sub(1).map(|index| self.runs[index]);
                    let run = run.filter(|run| next - run.from < run.len);
                    let run = run.ok_or(VolumeError::Unmapped { at: Logical(next), len: end - next })?;
                    (run.to + (next - run.from), run.from + run.len - next)
                }
                None => {
                    let behind = self.areas.partition_point(|area| area.start <= next);
                    (next, self.areas.get(behind).map_or(u64::MAX, |area| area.start) - next)
                }
            };
            let take = take.min(end - next);
            found.push((Logical(to), take));
            next += take;
        }
        Ok(found)
    }

    /// Bytes of a remapped chunk that are in their own places.
    fn kept_in(&self, chunk: std::ops::Range<Logical>) -> u64 {
        let from = self.runs.partition_point(|run| run.from < chunk.start.0);
        let inside = self.runs[from..].iter().take_while(|run| run.from < chunk.end.0);
        inside.filter(|run| run.from == run.to).map(|run| run.len).sum()
    }
}

/// The remapped chunks: those of the map that are, and those without stripes.
fn areas(chunks: &Index, emptied: &[Emptied]) -> Result<Vec<Area>, VolumeError> {
    let mut areas = Vec::new();
    for placed in chunks.iter().filter(|placed| placed.map.flags.is_remapped()) {
        let map = &placed.map;
        areas.push(Area { start: map.start.0, end: map.end().0, types: map.flags.types(), has_stripes: true });
    }
    for one in emptied {
        let bad = |what: &'static str, want: &str| Corruption::new("chunk", what, one.len, want).within(one.start);
        let end = one.start.checked_add(one.len).ok_or_else(|| bad("length", "one that fits"))?;
        if chunks.overlapping(one.start, end).is_some() {
            return Err(bad("address range", "no overlap with other chunks").into());
        }
        areas.push(Area { start: one.start.0, end: end.0, types: one.types, has_stripes: false });
    }
    areas.sort_unstable_by_key(|area| area.start);
    for pair in areas.windows(2) {
        if pair[0].end > pair[1].start {
            let want = format!("at most {}", pair[1].start);
            return Err(Corruption::new("chunk", "end", pair[0].end, want).within(Logical(pair[0].start)).into());
        }
    }
    Ok(areas)
}

impl Volume {
    /// Whether the volume has a remap tree. It is read, not kept up.
    pub fn has_remap_tree(&self) -> bool {
        self.rules.features.incompat.contains(Incompat::REMAP_TREE)
    }

    /// What cannot be written, scrubbed or checked yet because a tree has the addresses of what is on it; the name of that tree.
    pub fn tree_that_moves(&self) -> Option<&'static str> {
        match (self.has_placement_tree(), self.has_remap_tree()) {
            (true, _) => Some("raid-stripe tree"),
            (_, true) => Some("remap tree"),
            _ => None,
        }
    }

    /// How many bytes of a remapped chunk are still where it says; `None` if it is not remapped.
    pub fn unmoved_bytes(&self, chunk: &ChunkMap) -> Option<ByteLen> {
        chunk.flags.is_remapped().then(|| ByteLen(self.remaps.kept_in(chunk.start..chunk.end())))
    }

    /// Where a tree block is, or one byte: it is moved as a whole.
    pub(crate) fn remapped(&self, at: Logical, len: u64) -> Result<Logical, VolumeError> {
        if self.remaps.is_empty() {
            return Ok(at);
        }
        let runs = self.remaps.runs(at, len)?;
        let first = runs.first().map_or(at, |run| run.0);
        let is_whole = runs.windows(2).all(|pair| pair[0].0.0 + pair[0].1 == pair[1].0.0);
        if !is_whole {
            let have = format!("{} ranges", runs.len());
            return Err(Corruption::new("remap tree", "place of a block", have, "one").within(at).into());
        }
        Ok(first)
    }
}

#[cfg(test)]
mod tests;
