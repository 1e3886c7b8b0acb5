//! Usage of a whole volume: bytes by the exact set of subvolumes that reach them.
//!
//! One pass from the roots down, level by level, without the extent tree: a block is reached by every subvolume that
//! reaches one of its parents, so once the sets of all blocks of a level are known, so are those of the next. Every
//! block is read once, however many subvolumes share it, in the order of addresses; equal sets are stored once. So 64
//! snapshots cost hardly more than none.
//!
//! Memory: some 40 bytes for each block of one level and for each data extent.

use std::sync::Arc;

use std::collections::HashMap;

use oleo_format::{ChildPtr, Logical, NodeExpect, TreeId, data_use};
use oleo_fs::Fs;
use oleo_tree::DropProgress;
use oleo_txn::{Engine, RootSet, RootSets, ScanBase};

use crate::JobError;

/// How many blocks are read and processed together.
const BATCH_BLOCKS: usize = 256;

/// Bytes by the set of subvolumes that reaches them, in rising order of the numbers.
pub type Shares = HashMap<Arc<[TreeId]>, u64>;

/// A block to be read.
struct Due {
    /// What its parent says; `None` for a root.
    expect: NodeExpect,
    sets: Gathered,
    /// The progress of the deletion of the only tree that reaches it, if it points into this block.
    progress: Option<DropProgress>,
}

/// Collects sets; the union is computed once, when all are known.
#[derive(Default)]
struct Gathered {
    first: RootSet,
    /// May have some of them several times, but fewer than three times as many as there are.
    others: Vec<RootSet>,
    /// How many of `others` are distinct, as far as that was looked at.
    distinct: usize,
}

impl Gathered {
    fn add(&mut self, set: RootSet) {
        if self.first == RootSet::EMPTY {
            self.first = set;
        } else if self.first != set && self.others.last() != Some(&set) {
            self.others.push(set);
            if self.others.len() > 2 * self.distinct + 8 {
                self.others.sort_unstable();
                self.others.dedup();
                self.distinct = self.others.len();
            }
        }
    }

    fn union(mut self, sets: &mut RootSets) -> RootSet {
        self.others.push(self.first);
        sets.union_of(&self.others)
    }
}

/// Counts the subvolumes of a base. `goes_on` is called now and then; if it returns false, the result is `None`.
///
/// # Errors
/// The image is damaged, or cannot be read.
pub fn shares(engine: &Engine, base: &ScanBase, goes_on: &dyn Fn() -> bool) -> Result<Option<Shares>, JobError> {
    let mut sets = RootSets::default();
    let mut levels: Vec<HashMap<Logical, Due>> = Vec::new();
    levels.resize_with(usize::from(oleo_format::LEVELS_MAX), HashMap::new);
    for (root, progress) in &base.roots {
        let Some(level) = levels.get_mut(usize::from(root.level)) else { continue };
        let expect =
            NodeExpect { generation: Some(root.generation), level: Some(root.level), ..NodeExpect::at(root.logical) };
        let mut reached = Gathered::default();
        reached.add(sets.one(root.tree));
        level.insert(root.logical, Due { expect, sets: reached, progress: *progress });
    }
    let mut bytes: HashMap<RootSet, u64> = HashMap::new();
    let mut data: HashMap<Logical, (u64, RootSet)> = HashMap::new();
    // Of the few extents that leaves of several sets name.
    let mut several: HashMap<Logical, Gathered> = HashMap::new();
    let nodesize = u64::from(engine.nodesize());
    while let Some(mut level) = levels.pop() {
        let mut due: Vec<Due> = level.drain().map(|(_, due)| due).collect();
        due.sort_unstable_by_key(|due| due.expect.logical);
        let mut due = due.into_iter();
        loop {
            let batch: Vec<Due> = due.by_ref().take(BATCH_BLOCKS).collect();
            if batch.is_empty() {
                break;
            }
            if !goes_on() {
                return Ok(None);
            }
            let expects: Vec<NodeExpect> = batch.iter().map(|due| due.expect).collect();
            for (Due { sets: reached, progress, .. }, node) in
                batch.into_iter().zip(engine.volume().read_blocks(&expects))
            {
                let node = node?;
                let reached = reached.union(&mut sets);
                *bytes.entry(reached).or_default() += nodesize;
                if node.is_leaf() {
                    for (key, item) in node.iter() {
                        let Some(used) = data_use(&key, item) else { continue };
                        let (_, set) = data.entry(used.extent).or_insert((used.len.0, reached));
                        if *set != reached {
                            several.entry(used.extent).or_default().add(reached);
                        }
                    }
                    continue;
                }
                let below = levels.last_mut().expect("a node is above level 0");
                let first = progress.map_or(0, |progress| node.child_slot(&progress.key));
                for slot in first..node.len() {
                    let child: ChildPtr = node.child(slot);
                    let inside = progress.filter(|progress| slot == first && node.level() > progress.level);
                    let known = below.entry(child.logical).or_insert_with(|| Due {
                        expect: NodeExpect::child(&child, node.level()),
                        sets: Gathered::default(),
                        progress: inside,
                    });
                    known.sets.add(reached);
                }
            }
        }
    }
    for (at, (len, set)) in data {
        let set = match several.remove(&at) {
            Some(mut others) => {
                others.add(set);
                others.union(&mut sets)
            }
            None => set,
        };
        *bytes.entry(set).or_default() += len;
    }
    Ok(Some(bytes.into_iter().map(|(set, bytes)| (sets.trees(set).clone(), bytes)).collect()))
}

/// What a subvolume takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SubvolSize {
    /// Which.
    pub id: TreeId,
    /// Bytes that it reaches: data as it is on disk, each copy counted once, and tree blocks.
    pub rfer: u64,
    /// Those that no other subvolume reaches.
    pub excl: u64,
    /// Bytes that the subvolume before it reaches, too.
    pub with_previous: u64,
    /// Bytes that the subvolume after it reaches, too.
    pub with_next: u64,
}

fn shares_now(fs: &Fs) -> Result<Shares, JobError> {
    if !fs.options().read_only {
        fs.sync()?;
    }
    let base = fs.engine().scan_base(false)?;
    Ok(shares(fs.engine(), &base, &|| true)?.expect("it was told to go on"))
}

/// What each subvolume takes, in the order of their numbers.
///
/// # Errors
/// The image is damaged, or cannot be read.
pub fn subvol_sizes(fs: &Fs) -> Result<Vec<SubvolSize>, JobError> {
    let mut ids: Vec<TreeId> = fs.subvol_list()?.into_iter().map(|info| info.id).collect();
    ids.sort_unstable();
    let mut sizes: Vec<SubvolSize> =
        ids.iter().map(|id| SubvolSize { id: *id, rfer: 0, excl: 0, with_previous: 0, with_next: 0 }).collect();
    for (trees, bytes) in shares_now(fs)? {
        let mut last = None;
        for tree in trees.iter() {
            // Subvolumes that are being deleted are not listed, but what they hold is not exclusive to others.
            let Ok(place) = ids.binary_search(tree) else { continue };
            sizes[place].rfer += bytes;
            if trees.len() == 1 {
                sizes[place].excl += bytes;
            }
            if place > 0 && last == Some(place - 1) {
                sizes[place].with_previous += bytes;
                sizes[place - 1].with_next += bytes;
            }
            last = Some(place);
        }
    }
    Ok(sizes)
}

/// Bytes that deleting exactly these subvolumes would free.
///
/// # Errors
/// The image is damaged, or cannot be read.
pub fn frees(fs: &Fs, set: &[TreeId]) -> Result<u64, JobError> {
    let all = |trees: &[TreeId]| trees.iter().all(|tree| set.contains(tree));
    Ok(shares_now(fs)?.iter().filter(|(trees, _)| all(trees)).map(|(_, bytes)| bytes).sum())
}
