//! Who refers to a place on disk: from a logical address to files.
//!
//! Normal path: (1) a commit, so that the extent tree tells the truth; (2) the data extent that holds the address; (3) its
//! references lead to leaves: by tree, file and offset, or by the leaf's own address; (4) from a leaf upwards: whatever
//! refers to a block is a block one level above, by its address or by the tree that owns it, up to the roots of trees.
//! Snapshots that share a leaf, or any block above it, are found on the way. What was found of a block is remembered.
//!
//! Bounds: every step up rises one level, of which there are eight; at most [`PATHS_MAX`] referrers are told.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use oleo_format::{CheckedNode, Compression, FileExtent, Ino, ItemType, Key, Logical, NodeExpect, TreeId, data_use};
use oleo_fs::{Fs, errno};
use oleo_space::RefKey;
use oleo_tree::Cursor;
use oleo_txn::Engine;

use crate::JobError;

/// The most referrers that are told: more than anybody reads, and far below what a reply can hold.
pub const PATHS_MAX: usize = 1 << 16;
/// Bytes of a file that one extent stands for, at most (format: `BTRFS_MAX_EXTENT_SIZE`, 128 MiB).
const EXTENT_LEN_MAX: u64 = 128 << 20;

/// A place in a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Referrer {
    /// The subvolume.
    pub tree: TreeId,
    /// The file.
    pub ino: Ino,
    /// Where in the file, in bytes; for a compressed extent where its part begins.
    pub at: u64,
}

/// All places in files that are kept at a logical address, in rising order.
///
/// # Errors
/// Nothing or a tree block is there, there are more than [`PATHS_MAX`], or the image lies.
pub fn referrers(fs: &Fs, at: Logical) -> Result<Vec<Referrer>, JobError> {
    if !fs.options().read_only {
        fs.sync()?;
    }
    let engine = fs.engine();
    let _reader = engine.reader();
    let extent = data_extent(engine, at)?;
    let mut walk = Walk { engine, roots: HashMap::new() };
    let mut found = BTreeSet::new();
    for (leaf, uses) in walk.leaves(extent, at)? {
        for tree in walk.roots_of(&leaf)?.iter() {
            for (ino, offset) in &uses {
                found.insert(Referrer { tree: *tree, ino: *ino, at: *offset });
                if found.len() > PATHS_MAX {
                    let text = format!("more than {PATHS_MAX} places in files refer to {at}; that is too many to tell");
                    return Err(JobError::refused(errno::EOVERFLOW, text));
                }
            }
        }
    }
    Ok(found.into_iter().collect())
}

/// The beginning of the data extent that holds an address.
fn data_extent(engine: &Engine, at: Logical) -> Result<Logical, JobError> {
    let nothing = || JobError::refused(errno::ENOENT, format!("nothing is at {at}"));
    let root = engine.root(TreeId::EXTENT)?.ok_or_else(nothing)?;
    let mut cursor = engine.blocks().cursor(&root);
    let mut there = cursor.seek_back(&Key::new(at.0, ItemType(u8::MAX), u64::MAX))?;
    // Back over references and block groups to the item of an extent; the extent before it ends before it.
    while there && let Some((key, item)) = cursor.current() {
        match key.item_type {
            ItemType::METADATA_ITEM if at.0 < key.objectid.saturating_add(u64::from(engine.nodesize())) => {
                return Err(is_block(at));
            }
            ItemType::METADATA_ITEM => return Err(nothing()),
            ItemType::EXTENT_ITEM if at.0 >= key.objectid.saturating_add(key.offset) => return Err(nothing()),
            ItemType::EXTENT_ITEM => {
                let record = oleo_format::ExtentRecord::parse(&key, item)?;
                let is_data = record.flags.contains(oleo_format::ExtentFlags::DATA);
                return if is_data { Ok(Logical(key.objectid)) } else { Err(is_block(at)) };
            }
            _ => there = cursor.prev()?,
        }
    }
    Err(nothing())
}

fn is_block(at: Logical) -> JobError {
    JobError::refused(errno::EINVAL, format!("{at} is in a tree block, which belongs to no file"))
}

/// A block, as far as going up from it needs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Block {
    at: Logical,
    level: u8,
    first: Key,
}

impl Block {
    fn of(node: &CheckedNode) -> Block {
        Block { at: node.logical(), level: node.level(), first: node.key(0) }
    }
}

/// Files and places in them that a leaf says are kept at the address.
type Uses = Vec<(Ino, u64)>;

struct Walk<'e> {
    engine: &'e Engine,
    /// The trees that reach a block.
    roots: HashMap<Logical, Arc<BTreeSet<TreeId>>>,
}

impl Walk<'_> {
    /// The leaves that refer to a data extent, and what they say of an address in it.
    fn leaves(&self, extent: Logical, at: Logical) -> Result<Vec<(Block, Uses)>, JobError> {
        let mut leaves: Vec<(Block, Uses)> = Vec::new();
        for user in self.engine.extent_users(extent)? {
            match user {
                RefKey::DataParent(leaf) => {
                    let node = self.read(leaf)?;
                    leaves.push((Block::of(&node), uses_in(&node, extent, at)?));
                }
                RefKey::DataRoot { root, ino, offset } => self.search(root, ino, offset, extent, at, &mut leaves)?,
                RefKey::TreeRoot(_) | RefKey::TreeParent(_) => {}
            }
        }
        leaves.sort_by_key(|(leaf, _)| *leaf);
        leaves.dedup_by_key(|(leaf, _)| leaf.at);
        Ok(leaves)
    }

    /// The leaves of one file of a tree that refer to an extent.
    fn search(
        &self,
        tree: TreeId,
        ino: Ino,
        offset: u64,
        extent: Logical,
        at: Logical,
        leaves: &mut Vec<(Block, Uses)>,
    ) -> Result<(), JobError> {
        let Some(root) = self.engine.root(tree)? else { return Ok(()) };
        let mut cursor = self.engine.blocks().cursor(&root);
        // A part may begin before the file does: its offset is negative then.
        let from = if offset as i64 >= 0 { offset } else { 0 };
        let end = from.saturating_add(EXTENT_LEN_MAX);
        let mut there = cursor.seek(&Key::new(ino.0, ItemType::EXTENT_DATA, from))?;
        while there && let Some((key, item)) = cursor.current() {
            if key.objectid != ino.0 || key.item_type != ItemType::EXTENT_DATA || key.offset > end {
                break;
            }
            if data_use(&key, item).is_some_and(|u| u.extent == extent)
                && let Some(leaf) = cursor.path().last()
                && leaves.iter().all(|(known, _)| known.at != leaf.logical())
            {
                leaves.push((Block::of(leaf), uses_in(leaf, extent, at)?));
            }
            there = cursor.next()?;
        }
        Ok(())
    }

    /// The trees from whose roots a block is reached.
    fn roots_of(&mut self, block: &Block) -> Result<Arc<BTreeSet<TreeId>>, JobError> {
        if let Some(known) = self.roots.get(&block.at) {
            return Ok(known.clone());
        }
        let mut trees = BTreeSet::new();
        for user in self.engine.extent_users(block.at)? {
            let parent = match user {
                RefKey::TreeRoot(tree) => match self.parent_in(tree, block)? {
                    Parent::IsRoot => {
                        trees.insert(tree);
                        continue;
                    }
                    Parent::Block(parent) => parent,
                    Parent::None => continue,
                },
                RefKey::TreeParent(parent) => Block::of(&self.read(parent)?),
                RefKey::DataRoot { .. } | RefKey::DataParent(_) => continue,
            };
            if parent.level != block.level + 1 {
                let text = format!("block {} refers to block {} from level {}", parent.at, block.at, parent.level);
                return Err(JobError::refused(errno::EUCLEAN, text));
            }
            trees.extend(self.roots_of(&parent)?.iter());
        }
        let trees = Arc::new(trees);
        self.roots.insert(block.at, trees.clone());
        Ok(trees)
    }

    /// The block of a tree that refers to a block.
    fn parent_in(&self, tree: TreeId, block: &Block) -> Result<Parent, JobError> {
        let Some(root) = self.engine.root(tree)? else { return Ok(Parent::None) };
        if root.logical == block.at {
            return Ok(Parent::IsRoot);
        }
        let mut cursor: Cursor<'_> = self.engine.blocks().cursor(&root);
        cursor.seek(&block.first)?;
        let above = cursor.path().find(|node| node.level() == block.level + 1);
        let refers = |node: &CheckedNode| (0..node.len()).any(|slot| node.child(slot).logical == block.at);
        Ok(match above {
            Some(node) if refers(node) => Parent::Block(Block::of(node)),
            // The tree has moved on since the extent tree was written.
            _ => Parent::None,
        })
    }

    fn read(&self, at: Logical) -> Result<CheckedNode, JobError> {
        Ok(self.engine.volume().read_block(&NodeExpect::at(at))?)
    }
}

enum Parent {
    /// The block is a tree's root.
    IsRoot,
    Block(Block),
    /// Nobody there.
    None,
}

/// Where in files a leaf's items say that an address is.
fn uses_in(leaf: &CheckedNode, extent: Logical, at: Logical) -> Result<Uses, JobError> {
    let mut uses = Vec::new();
    for slot in 0..leaf.len() {
        let key = leaf.key(slot);
        if data_use(&key, leaf.item(slot)).is_none_or(|u| u.extent != extent) {
            continue;
        }
        let (FileExtent::Regular(part) | FileExtent::Prealloc(part)) = FileExtent::parse(leaf.item(slot))? else {
            continue;
        };
        if part.compression != Compression::None {
            uses.push((Ino(key.objectid), key.offset));
            continue;
        }
        let inside = (at.0 - extent.0).checked_sub(part.offset.0).filter(|inside| *inside < part.num_bytes.0);
        uses.extend(inside.map(|inside| (Ino(key.objectid), key.offset.saturating_add(inside))));
    }
    Ok(uses)
}
