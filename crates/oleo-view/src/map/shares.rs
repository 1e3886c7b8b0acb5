//! Which subvolumes reach what: one pass from all roots down, level by level, as quota is counted.
//!
//! A block is reached by every subvolume that reaches one of its parents, so that once the sets of all blocks of a level are known, so are those of the next; each block is read
//! once, however many subvolumes share it. A set has one bit for each of [`SUBVOLS_MAX`] subvolumes and one for all others, so that it takes the same memory whatever a volume is made of.
//!
//! Memory: the blocks above the leaves are in tables, which are a hundredth of all. Leaves are done in parts by their addresses if they would not fit, each of
//! which reads the nodes above the leaves again. Data extents are sampled by their addresses if they would not fit: when the table is full, every other is taken out, and so on.

use std::collections::HashMap;

use oleo::inspect::Inspector;
use oleo::layers::format::{Compression, FileExtent, LEVELS_MAX, Logical, NodeExpect, TreeId, data_use};

use super::error::MapError;
use super::notes::Notes;
use super::options::{MapOptions, Sample};
use super::tree::{Dropped, Leaves, Roots};

/// Subvolumes that have a bit of their own.
pub(super) const SUBVOLS_MAX: usize = 511;
/// Words of a set.
const WORDS: usize = (SUBVOLS_MAX + 1) / 64;
/// Blocks that are read together.
const BATCH_BLOCKS: usize = 256;
/// Bytes that an entry of a table takes, about, with what a hash table keeps free.
const ENTRY_BYTES: u64 = 256;

/// A set of subvolumes, by their places in the list of those that are looked at.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(super) struct SubvolSet([u64; WORDS]);

impl SubvolSet {
    fn one(place: usize) -> SubvolSet {
        let mut set = SubvolSet::default();
        set.0[place / 64] |= 1 << (place % 64);
        set
    }

    fn join(&mut self, other: &SubvolSet) {
        for (word, more) in self.0.iter_mut().zip(other.0) {
            *word |= more;
        }
    }

    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// The places in it, rising.
    pub fn places(&self) -> impl Iterator<Item = usize> + '_ {
        (0..SUBVOLS_MAX + 1).filter(|place| self.0[place / 64] >> (place % 64) & 1 == 1)
    }
}

/// A data extent that is looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub at: u64,
    pub len: u64,
    /// Bytes that it is decompressed.
    pub ram: u64,
    pub is_compressed: bool,
    pub set: SubvolSet,
    /// The file, if it is only one; 0 if there are several.
    pub ino: u64,
}

/// A block that is to be read.
struct Due {
    expect: NodeExpect,
    set: SubvolSet,
    dropped: Option<Dropped>,
}

/// What the pass found.
pub(super) struct Shares {
    nodesize: u64,
    extents: HashMap<u64, Extent>,
    /// One of two to this many is kept.
    shift: u32,
    extents_max: usize,
    /// Bytes of tree blocks by set; exact.
    pub blocks: HashMap<SubvolSet, u64>,
    /// Tree blocks that several subvolumes reach.
    shared: Vec<u64>,
    shared_max: usize,
}

impl Shares {
    /// Reads all trees of files. `tracked` are the subvolumes with a bit of their own; `blocks` is how many tree blocks there are.
    pub fn read(
        inspector: &Inspector,
        roots: &Roots,
        tracked: &[TreeId],
        blocks: u64,
        options: &MapOptions,
        notes: &mut Notes,
    ) -> Result<Shares, MapError> {
        let entries = (options.table_bytes / 2 / ENTRY_BYTES).max(64);
        let mut shares = Shares {
            nodesize: u64::from(inspector.volume().rules().nodesize),
            extents: HashMap::new(),
            shift: 0,
            extents_max: usize::try_from(entries).unwrap_or(usize::MAX),
            blocks: HashMap::new(),
            shared: Vec::new(),
            shared_max: usize::try_from(entries).unwrap_or(usize::MAX),
        };
        let mut levels: Vec<HashMap<Logical, Due>> = Vec::new();
        levels.resize_with(usize::from(LEVELS_MAX), HashMap::new);
        for (id, root) in &roots.subvols {
            let place = tracked.binary_search(id).unwrap_or(SUBVOLS_MAX);
            let Some(level) = levels.get_mut(usize::from(root.start.level)) else { continue };
            let due = Due { expect: root.start.expect(), set: SubvolSet::default(), dropped: root.dropped };
            level.entry(root.start.root).or_insert(due).set.join(&SubvolSet::one(place));
        }
        let mut leaves = Leaves::new(inspector);
        let mut parents: Vec<Due> = Vec::new();
        while levels.len() > 1 {
            let Some(mut level) = levels.pop() else { break };
            let mut due: Vec<Due> = level.drain().map(|(_, due)| due).collect();
            due.sort_unstable_by_key(|due| due.expect.logical);
            if levels.len() == 1 {
                parents = due;
                break;
            }
            let Some(below) = levels.last_mut() else { break };
            for batch in due.chunks(BATCH_BLOCKS) {
                shares.nodes(&mut leaves, batch, true, |_| true, below);
            }
        }
        let parts = blocks.div_ceil(entries).max(1);
        let single: HashMap<Logical, Due> = levels.pop().unwrap_or_default();
        let mut single: Vec<Due> = single.into_values().collect();
        single.sort_unstable_by_key(|due| due.expect.logical);
        for part in 0..parts {
            let mut below = HashMap::new();
            let here = |at: Logical| hash(at.0) % parts == part;
            for batch in parents.chunks(BATCH_BLOCKS) {
                shares.nodes(&mut leaves, batch, part == 0, here, &mut below);
                if below.len() as u64 > entries.saturating_mul(4) {
                    notes
                        .push("the extent tree names fewer tree blocks than there are: sharing is not complete".into());
                    break;
                }
            }
            let mut due: Vec<Due> = below.into_values().collect();
            if part == 0 {
                // Trees that are a single leaf.
                due.append(&mut single);
            }
            due.sort_unstable_by_key(|due| due.expect.logical);
            for batch in due.chunks(BATCH_BLOCKS) {
                shares.leaves(&mut leaves, batch);
            }
        }
        leaves.note("subvolumes", notes);
        Ok(shares)
    }

    fn count_block(&mut self, due: &Due) {
        // Beyond the bound, bytes of further sets are nobody's.
        let known = self.blocks.len() < self.shared_max || self.blocks.contains_key(&due.set);
        let set = if known { due.set } else { SubvolSet::default() };
        *self.blocks.entry(set).or_default() += self.nodesize;
        if due.set.count() > 1 && self.shared.len() < self.shared_max {
            self.shared.push(due.expect.logical.0);
        }
    }

    /// Hands the sets of nodes down to those of their children that are `wanted`.
    fn nodes(
        &mut self,
        leaves: &mut Leaves<'_>,
        batch: &[Due],
        counts: bool,
        wanted: impl Fn(Logical) -> bool,
        below: &mut HashMap<Logical, Due>,
    ) {
        let expects: Vec<NodeExpect> = batch.iter().map(|due| due.expect).collect();
        let unread = leaves.unread;
        for (due, node) in batch.iter().zip(leaves.blocks(&expects)) {
            let Some(node) = node.filter(|node| !node.is_leaf()) else { continue };
            if counts {
                self.count_block(due);
            }
            let first = due.dropped.map_or(0, |dropped| node.child_slot(&dropped.key));
            for slot in first..node.len() {
                let child = node.child(slot);
                if !wanted(child.logical) {
                    continue;
                }
                let inside = due.dropped.filter(|dropped| slot == first && node.level() > dropped.level);
                let known = below.entry(child.logical).or_insert_with(|| Due {
                    expect: NodeExpect::child(&child, node.level()),
                    set: SubvolSet::default(),
                    dropped: inside,
                });
                known.set.join(&due.set);
            }
        }
        if !counts {
            // They were counted the first time.
            leaves.unread = unread;
        }
    }

    fn leaves(&mut self, leaves: &mut Leaves<'_>, batch: &[Due]) {
        let expects: Vec<NodeExpect> = batch.iter().map(|due| due.expect).collect();
        for (due, node) in batch.iter().zip(leaves.blocks(&expects)) {
            let Some(node) = node.filter(|node| node.is_leaf()) else { continue };
            self.count_block(due);
            for (key, item) in node.iter() {
                let Some(used) = data_use(&key, item) else { continue };
                if !self.is_kept(used.extent.0) {
                    continue;
                }
                let known = self.extents.entry(used.extent.0).or_insert_with(|| {
                    let (ram, compression) = match FileExtent::parse(item) {
                        Ok(FileExtent::Regular(extent) | FileExtent::Prealloc(extent)) => {
                            (extent.ram_bytes.0, extent.compression)
                        }
                        _ => (used.len.0, Compression::None),
                    };
                    Extent {
                        at: used.extent.0,
                        len: used.len.0,
                        ram,
                        is_compressed: compression != Compression::None,
                        set: SubvolSet::default(),
                        ino: used.ino.0,
                    }
                });
                known.set.join(&due.set);
                if known.ino != used.ino.0 {
                    known.ino = 0;
                }
            }
            while self.extents.len() > self.extents_max {
                self.shift += 1;
                let shift = self.shift;
                self.extents.retain(|at, _| is_kept(*at, shift));
            }
        }
    }

    fn is_kept(&self, at: u64) -> bool {
        is_kept(at, self.shift)
    }

    /// What the bytes of a sampled extent stand for.
    pub fn one_in(&self) -> u64 {
        1 << self.shift
    }

    pub fn extents(&self) -> impl Iterator<Item = &Extent> {
        self.extents.values()
    }

    pub fn shared_blocks(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.shared.iter().map(|at| (*at, self.nodesize))
    }

    pub fn sample(&self) -> Option<Sample> {
        (self.shift > 0).then(|| Sample { one_in: self.one_in(), extents: self.extents.len() as u64 })
    }
}

/// Spreads addresses over all numbers (the finalizer of splitmix64).
fn hash(at: u64) -> u64 {
    let mut x = at.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn is_kept(at: u64, shift: u32) -> bool {
    shift == 0 || hash(at) >> (64 - shift.min(63)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each step of sampling keeps about half, and only of those that were kept before.
    #[test]
    fn samples_are_nested_halves() {
        let all: Vec<u64> = (0..40_000).map(|n| n * 4096).collect();
        let mut kept = all;
        for shift in 1..6 {
            let fewer: Vec<u64> = kept.iter().copied().filter(|at| is_kept(*at, shift)).collect();
            let half = kept.len() as f64 / 2.0;
            assert!((fewer.len() as f64 - half).abs() < half / 5.0, "{shift}: {} of {}", fewer.len(), kept.len());
            assert!((0..40_000).map(|n| n * 4096).filter(|at| is_kept(*at, shift)).count() == fewer.len());
            kept = fewer;
        }
    }

    /// Goal: sets join, count and list what is in them, at the edges of words too.
    #[test]
    fn sets() {
        let mut set = SubvolSet::default();
        for place in [0, 63, 64, SUBVOLS_MAX] {
            set.join(&SubvolSet::one(place));
        }
        assert_eq!((set.count(), set.places().collect::<Vec<_>>()), (4, vec![0, 63, 64, SUBVOLS_MAX]));
    }
}
