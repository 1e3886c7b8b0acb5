//! On-disk structures: superblocks, trees, blocks.
//!
//! An [`Inspector`] needs readable chunks and nothing else, so it works on images that cannot be opened.

use std::path::Path;
use std::sync::Arc;

use oleo_format::{CheckedNode, Generation, ItemType, Key, Logical, NodeExpect, RootItem, SuperBlock, TreeId};
use oleo_volume::{OpenOptions as VolumeOptions, Volume};

use crate::device::{PlaceOptions, open_named};
use crate::image::open_devices;
use crate::{Device, Error, OpenOptions, Result};

/// The blocks of an image.
pub struct Inspector {
    volume: Volume,
}

/// Where a tree begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TreeStart {
    /// Which tree; for relocation and log trees this number is shared by several.
    pub tree: TreeId,
    /// The key of its root item; `None` for the two that the superblock points to.
    pub key: Option<Key>,
    /// The address of its root block.
    pub root: Logical,
    /// The generation of its root block.
    pub generation: Generation,
    /// The level of its root block.
    pub level: u8,
}

impl TreeStart {
    /// What its root block must be.
    pub fn expect(&self) -> NodeExpect {
        NodeExpect { generation: Some(self.generation), level: Some(self.level), ..NodeExpect::at(self.root) }
    }
}

/// What a walk does after a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Its children come next.
    Into,
    /// Its children are left out.
    Over,
}

/// Counts of one tree.
#[derive(Clone, Debug, Default)]
pub struct TreeStats {
    /// Blocks of each level, from the leaves up.
    pub blocks: Vec<u64>,
    /// Items in all leaves.
    pub items: u64,
    /// Bytes in leaves that nothing uses.
    pub free_bytes: u64,
    /// Bytes of all blocks.
    pub bytes: u64,
    /// Neighbouring blocks, in the order of keys, that do not follow each other on disk.
    pub seeks: u64,
    /// The sum of those distances in bytes.
    pub seek_bytes: u64,
    /// The lowest and highest address of a block.
    pub span: Option<(Logical, Logical)>,
}

impl Inspector {
    /// Opens the volume that an image belongs to, for reading blocks.
    ///
    /// # Errors
    /// Its superblock or chunk tree cannot be read.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Inspector> {
        let path = path.as_ref();
        open_devices(path, options)
            .and_then(|devices| Inspector::from_devices(devices, options))
            .map_err(|error| error.of_image(path))
    }

    /// The same of devices that are open already, in any order.
    ///
    /// # Errors
    /// As [`Inspector::open`].
    pub fn from_devices(devices: Vec<Arc<dyn Device>>, options: &OpenOptions) -> Result<Inspector> {
        let volume_options = VolumeOptions { degraded: options.degraded, ..VolumeOptions::default() };
        Ok(Inspector { volume: Volume::open(devices, &volume_options)? })
    }

    /// The volume: devices, chunks, superblock.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// All trees: root tree, chunk tree, remap tree, log root tree and the logs that it names, then those with root items in the order of
    /// their keys. Logs that cannot be reached are left out.
    ///
    /// # Errors
    /// The root tree cannot be read.
    pub fn trees(&self) -> Result<Vec<TreeStart>> {
        let mut first = None;
        let trees = self.trees_past(&mut |_, error| {
            first.get_or_insert(error);
        });
        first.map_or(Ok(trees), Err)
    }

    /// The same as far as the root tree can be read; calls `bad` for its blocks that have no good copy.
    pub fn trees_past(&self, bad: &mut dyn FnMut(Logical, Error)) -> Vec<TreeStart> {
        let sb = self.volume.super_block();
        let start = |tree, root: u64, generation: u64, level| TreeStart {
            tree,
            key: None,
            root: Logical(root),
            generation: Generation(generation),
            level,
        };
        let generation = sb.generation.get();
        let root = start(TreeId::ROOT, sb.root.get(), generation, sb.root_level);
        let mut trees =
            vec![root, start(TreeId::CHUNK, sb.chunk_root.get(), sb.chunk_root_generation.get(), sb.chunk_root_level)];
        if let Some((root, generation, level)) = sb.remap_tree() {
            trees.push(start(TreeId::REMAP, root.0, generation.0, level));
        }
        if sb.log_root.get() != 0 {
            let log = start(TreeId::TREE_LOG, sb.log_root.get(), generation + 1, sb.log_root_level);
            trees.push(log);
            // The log is no reason not to show the rest.
            self.trees_named_in(&log, &mut trees, &mut |_, _| {});
        }
        self.trees_named_in(&root, &mut trees, bad);
        trees
    }

    /// The trees that a tree has root items of.
    fn trees_named_in(&self, tree: &TreeStart, trees: &mut Vec<TreeStart>, bad: &mut dyn FnMut(Logical, Error)) {
        let named = |node: &CheckedNode| {
            if !node.is_leaf() {
                return Step::Into;
            }
            for (key, item) in node.iter().filter(|(key, _)| key.item_type == ItemType::ROOT_ITEM) {
                if let Ok((item, _)) = RootItem::parse_prefix(item) {
                    trees.push(TreeStart {
                        tree: TreeId(key.objectid),
                        key: Some(key),
                        root: Logical(item.bytenr.get()),
                        generation: Generation(item.generation.get()),
                        level: item.level,
                    });
                }
            }
            Step::Into
        };
        self.walk_past(tree.expect(), named, bad);
    }

    /// Calls `each` for every block of a tree, parents before children, in the order of keys.
    ///
    /// # Errors
    /// A block has no good copy.
    pub fn walk(&self, tree: &TreeStart, each: impl FnMut(&CheckedNode) -> Step) -> Result<()> {
        self.walk_from(tree.expect(), each)
    }

    /// The same from any block on.
    ///
    /// # Errors
    /// A block has no good copy.
    pub fn walk_from(&self, first: NodeExpect, mut each: impl FnMut(&CheckedNode) -> Step) -> Result<()> {
        self.go(first, &mut each, &mut |_, error| Err(error))
    }

    /// The same, but continues past blocks that have no good copy: calls `bad` with their place and the error.
    pub fn walk_past(
        &self,
        first: NodeExpect,
        mut each: impl FnMut(&CheckedNode) -> Step,
        bad: &mut dyn FnMut(Logical, Error),
    ) {
        let reported = self.go(first, &mut each, &mut |at, error| {
            bad(at, error);
            Ok(())
        });
        debug_assert!(reported.is_ok(), "whatever is wrong has been told");
    }

    fn go(
        &self,
        first: NodeExpect,
        each: &mut dyn FnMut(&CheckedNode) -> Step,
        bad: &mut dyn FnMut(Logical, Error) -> Result<()>,
    ) -> Result<()> {
        // Levels fall with every step down, so the stack holds at most the children of one block per level.
        let mut stack = vec![first];
        while let Some(expect) = stack.pop() {
            let node = match self.volume.read_block(&expect) {
                Ok(node) => node,
                Err(error) => {
                    bad(expect.logical, error.into())?;
                    continue;
                }
            };
            if each(&node) == Step::Into && !node.is_leaf() {
                stack.extend((0..node.len()).rev().map(|slot| NodeExpect::child(&node.child(slot), node.level())));
            }
        }
        Ok(())
    }

    /// Counts what is in a tree.
    ///
    /// # Errors
    /// A block has no good copy.
    pub fn stats(&self, tree: &TreeStart) -> Result<TreeStats> {
        let nodesize = u64::from(self.volume.rules().nodesize);
        let mut stats = TreeStats { blocks: vec![0; usize::from(tree.level) + 1], ..TreeStats::default() };
        let mut last: Option<Logical> = None;
        self.walk(tree, |node| {
            let at = node.logical();
            if let Some(count) = stats.blocks.get_mut(usize::from(node.level())) {
                *count += 1;
            }
            stats.bytes += nodesize;
            if node.is_leaf() {
                stats.items += node.len() as u64;
                stats.free_bytes += node.free_bytes() as u64;
            }
            if let Some(last) = last.replace(at)
                && last.0 + nodesize != at.0
            {
                stats.seeks += 1;
                stats.seek_bytes += last.0.abs_diff(at.0);
            }
            let (low, high) = stats.span.unwrap_or((at, at));
            stats.span = Some((low.min(at), high.max(at)));
            Step::Into
        })?;
        Ok(stats)
    }
}

/// The superblocks of a device, one for each place that the device has, with the place.
///
/// # Errors
/// The device cannot be opened.
pub fn superblocks(
    path: impl AsRef<Path>,
    offset: u64,
    places: &PlaceOptions,
) -> Result<Vec<(u64, Result<SuperBlock>)>> {
    let path = path.as_ref();
    let options = oleo_device::FileOptions::default().offset(offset).read_in_use(true);
    let device = open_named(path, &options, places).map_err(|error| error.of_image(path))?;
    let mirrors = oleo_volume::read_mirrors(device.as_ref());
    Ok(mirrors.into_iter().map(|(at, sb)| (at, sb.map_err(crate::Error::from))).collect())
}
