//! One pass over the extent tree: what is where, how old, in how many pieces; and how full block groups are.

use oleo::inspect::Inspector;
use oleo::layers::format::{BlockGroupItemV2, ExtentItem, ItemType, SuperBlock};
use serde::Serialize;

use super::cells::{Cells, Grid, Steps};
use super::devices::Group;
use super::notes::Notes;
use super::shares::Shares;
use super::tree::{Leaves, Roots};

/// Bars of the picture of generations, at most.
const BARS_MAX: u64 = 96;
/// Snapshots and subvolumes that are marked there, at most.
const MARKS_MAX: usize = 512;

/// The space map.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Space {
    /// Bytes of all block groups.
    pub bytes: u64,
    /// Bytes of one cell.
    pub cell_bytes: u64,
    /// The square has two to this many cells on each side.
    pub order: u32,
    /// Bytes of data extents.
    pub data: u64,
    /// Bytes of tree blocks.
    pub metadata: u64,
    /// Data extents.
    pub data_extents: u64,
    /// Tree blocks.
    pub tree_blocks: u64,
    /// Bytes of data that are compressed, and what they are decompressed.
    pub compressed: u64,
    /// Bytes that the compressed data stands for.
    pub compressed_ram: u64,
    /// Bytes that several subvolumes reach.
    pub shared: u64,
    /// The cells.
    pub cells: Cells,
    /// From addresses to cells.
    #[serde(skip)]
    pub(super) grid: Grid,
}

impl Space {
    /// The first and last address of a cell, by its number.
    pub fn addresses(&self, cell: usize) -> Option<(u64, u64)> {
        self.grid.addresses(cell)
    }
}

/// When what is there was written: bytes by generation.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Generations {
    /// Generations in one bar.
    pub per_bar: u64,
    /// Bytes of data, oldest first.
    pub data: Vec<u64>,
    /// Bytes of tree blocks.
    pub metadata: Vec<u64>,
    /// When subvolumes and snapshots were made: generation, seconds since 1970 (0: not known), number of the subvolume.
    pub made: Vec<(u64, i64, u64)>,
}

/// What the pass fills.
pub(super) struct Builder {
    space: Space,
    generations: Generations,
    /// Sums of generation times bytes for each cell.
    weights: Vec<u128>,
    nodesize: u64,
    generation: u64,
    /// The end of the last extent, for free runs.
    last_end: u64,
    steps: Steps,
}

impl Builder {
    pub fn new(groups: &[Group], sb: &SuperBlock) -> Builder {
        let nodesize = u64::from(sb.nodesize.get());
        let grid = Grid::new(groups, nodesize);
        let generation = sb.generation.get();
        let per_bar = generation.saturating_add(1).div_ceil(BARS_MAX).max(1);
        let bars = usize::try_from(generation / per_bar + 1).unwrap_or(1);
        let weights = vec![0; grid.count()];
        Builder {
            steps: Steps::new(&grid),
            space: Space {
                bytes: grid.bytes,
                cell_bytes: grid.cell_bytes,
                order: grid.order,
                cells: Cells::new(&grid, groups),
                grid,
                ..Space::default()
            },
            generations: Generations { per_bar, data: vec![0; bars], metadata: vec![0; bars], made: Vec::new() },
            weights,
            nodesize,
            generation,
            last_end: 0,
        }
    }

    /// Reads the extent tree, and how full the groups are.
    pub fn read(&mut self, inspector: &Inspector, roots: &Roots, groups: &mut [Group], notes: &mut Notes) {
        let mut leaves = Leaves::new(inspector);
        let ends: Vec<(u64, u64)> =
            groups.iter().map(|group| (group.start, group.start.saturating_add(group.len))).collect();
        if roots.extents.is_empty() {
            notes.push("the extent tree cannot be found: the space map is empty".into());
        }
        for tree in roots.extents.iter().chain(&roots.groups) {
            leaves.each(tree.expect(), |_, leaf| {
                for (key, item) in leaf.iter() {
                    match key.item_type {
                        ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => {
                            let Ok((head, _)) = ExtentItem::parse_prefix(item) else { continue };
                            let is_data =
                                key.item_type == ItemType::EXTENT_ITEM && head.flags.get() & EXTENT_FLAG_DATA != 0;
                            let len = if key.item_type == ItemType::METADATA_ITEM { self.nodesize } else { key.offset };
                            self.extent(&ends, key.objectid, len, head.generation.get(), is_data);
                        }
                        ItemType::BLOCK_GROUP_ITEM => {
                            let Ok(item) = BlockGroupItemV2::decode(item) else { continue };
                            if let Ok(at) = groups.binary_search_by_key(&key.objectid, |group| group.start) {
                                groups[at].used = Some(item.used.get());
                            }
                        }
                        _ => {}
                    }
                }
            });
        }
        self.free_run(&ends, u64::MAX);
        leaves.note("the extent tree", notes);
    }

    fn extent(&mut self, ends: &[(u64, u64)], at: u64, len: u64, generation: u64, is_data: bool) {
        self.free_run(ends, at);
        self.last_end = self.last_end.max(at.saturating_add(len));
        let space = &mut self.space;
        let (sum, count) = match is_data {
            true => (&mut space.data, &mut space.data_extents),
            false => (&mut space.metadata, &mut space.tree_blocks),
        };
        *sum = sum.saturating_add(len);
        *count += 1;
        if let Some(cell) = space.grid.cell(at) {
            space.cells.extents[cell] += 1;
        }
        let bytes = if is_data { &mut space.cells.data } else { &mut space.cells.metadata };
        let spread = self.steps.take(&space.grid, len);
        space.grid.spread(at, spread, |cell, here| {
            bytes[cell] = bytes[cell].saturating_add(here);
            self.weights[cell] += u128::from(generation) * u128::from(here);
        });
        let bars = if is_data { &mut self.generations.data } else { &mut self.generations.metadata };
        let bar = usize::try_from(generation.min(self.generation) / self.generations.per_bar).unwrap_or(0);
        if let Some(bar) = bars.get_mut(bar) {
            *bar = bar.saturating_add(len);
        }
    }

    /// Counts the free runs between the last extent and this address: one in each block group that has room there.
    fn free_run(&mut self, ends: &[(u64, u64)], to: u64) {
        let mut from = self.last_end;
        if from >= to {
            return;
        }
        let first = ends.partition_point(|(_, end)| *end <= from);
        for &(start, end) in &ends[first..] {
            if start >= to {
                break;
            }
            from = from.max(start);
            if from < end.min(to)
                && let Some(cell) = self.space.grid.cell(from)
            {
                self.space.cells.free_runs[cell] += 1;
            }
            from = end;
        }
        self.last_end = to.min(ends.last().map_or(0, |last| last.1)).max(self.last_end);
    }

    /// How many tree blocks there are.
    pub fn blocks(&self) -> u64 {
        self.space.tree_blocks
    }

    /// Adds what is shared and compressed.
    pub fn fill(&mut self, shares: &Shares) {
        let space = &mut self.space;
        let grid = space.grid.clone();
        let cells = &mut space.cells;
        for (at, len) in shares.shared_blocks() {
            grid.spread(at, len, |cell, here| cells.shared[cell] = cells.shared[cell].saturating_add(here));
            space.shared = space.shared.saturating_add(len);
        }
        let one_in = shares.one_in();
        for extent in shares.extents() {
            let len = extent.len.saturating_mul(one_in);
            if extent.set.count() > 1 {
                grid.spread(extent.at, extent.len, |cell, here| {
                    cells.shared[cell] = cells.shared[cell].saturating_add(here.saturating_mul(one_in));
                });
                space.shared = space.shared.saturating_add(len);
            }
            if extent.is_compressed {
                grid.spread(extent.at, extent.len, |cell, here| {
                    cells.compressed[cell] = cells.compressed[cell].saturating_add(here.saturating_mul(one_in));
                });
                space.compressed = space.compressed.saturating_add(len);
                space.compressed_ram = space.compressed_ram.saturating_add(extent.ram.saturating_mul(one_in));
            }
        }
    }

    pub fn finish(mut self, roots: &Roots) -> (Space, Generations) {
        let cells = &mut self.space.cells;
        for (cell, weight) in self.weights.iter().enumerate() {
            let bytes = u128::from(cells.data[cell]) + u128::from(cells.metadata[cell]);
            cells.generation[cell] = u64::try_from(weight.checked_div(bytes).unwrap_or(0)).unwrap_or(u64::MAX);
        }
        let made = roots.subvols.iter().filter(|(_, root)| root.made.0 > 0);
        self.generations.made = made.map(|(id, root)| (root.made.0, root.made.1, id.0)).collect();
        self.generations.made.sort_unstable();
        self.generations.made.truncate(MARKS_MAX);
        (self.space, self.generations)
    }
}

/// `BTRFS_EXTENT_FLAG_DATA` (linux/btrfs_tree.h).
const EXTENT_FLAG_DATA: u64 = 1;
