//! Finds the files that refer to a logical address.
//!
//! Normal path: (1) a commit, so that the extent tree is up to date; (2) find the data extent that holds the address;
//! (3) find the leaves that name it, and the trees that reach these ([`oleo_txn::Backrefs`]); (4) compute the offsets
//! in files.
//!
//! Bounds: at most [`PATHS_MAX`] referrers are returned.

use std::collections::BTreeSet;

use oleo_format::{CheckedNode, Compression, FileExtent, Ino, ItemType, Key, Logical, TreeId, data_use};
use oleo_fs::{Fs, errno};
use oleo_txn::Engine;

use crate::JobError;

/// The most referrers that are returned: more than anybody reads, and far less than a reply can hold.
pub const PATHS_MAX: usize = 1 << 16;

/// A place in a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Referrer {
    /// The subvolume.
    pub tree: TreeId,
    /// The file.
    pub ino: Ino,
    /// Offset in the file, in bytes; for a compressed extent that of its part of the file.
    pub at: u64,
}

/// Returns all files and offsets whose data is at a logical address, in rising order.
///
/// # Errors
/// The address holds nothing or a tree block, there are more than [`PATHS_MAX`], or the image is damaged.
pub fn referrers(fs: &Fs, at: Logical) -> Result<Vec<Referrer>, JobError> {
    if !fs.options().read_only {
        fs.sync()?;
    }
    referrers_at_commit(fs, at)
}

/// The same as of the last commit.
///
/// # Errors
/// As there.
pub fn referrers_at_commit(fs: &Fs, at: Logical) -> Result<Vec<Referrer>, JobError> {
    let engine = fs.engine();
    let _reader = engine.reader();
    let extent = data_extent(engine, at)?;
    let mut up = engine.backrefs()?;
    let mut found = BTreeSet::new();
    for naming in up.naming(extent)? {
        let uses = uses_in(&naming.leaf, extent, at)?;
        let set = up.of_block(&naming.leaf)?;
        for tree in up.sets.trees(set).iter() {
            for (ino, offset) in &uses {
                found.insert(Referrer { tree: *tree, ino: *ino, at: *offset });
                if found.len() > PATHS_MAX {
                    let text = format!("more than {PATHS_MAX} places in files refer to {at}: too many to list");
                    return Err(JobError::refused(errno::EOVERFLOW, text));
                }
            }
        }
    }
    Ok(found.into_iter().collect())
}

/// The beginning of the data extent that holds an address.
fn data_extent(engine: &Engine, at: Logical) -> Result<Logical, JobError> {
    let nothing = || JobError::refused(errno::ENOENT, format!("there is no extent at {at}"));
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

/// Files and offsets in them that a leaf maps to the address.
type Uses = Vec<(Ino, u64)>;

/// The files and offsets that a leaf's items map to an address.
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
