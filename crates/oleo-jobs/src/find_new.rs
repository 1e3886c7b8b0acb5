//! Finds which parts of which files of a subvolume were written since a generation.
//!
//! The generation of a block is at least that of everything below it, so older blocks are not read: the cost depends on
//! what has changed.

use oleo_format::{Compression, DiskExtent, FileExtent, Ino, ItemType, TreeId};
use oleo_fs::{Fs, FsError};
use oleo_tree::Walk;
use serde::{Deserialize, Serialize};

use crate::JobError;

/// A part of a file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewExtent {
    /// The file.
    pub ino: Ino,
    /// Offset in the file, in bytes.
    pub at: u64,
    /// Bytes of the file.
    pub len: u64,
    /// Logical address of the extent; 0 for a hole and for inline data.
    pub disk: u64,
    /// Offset of the part in the extent.
    pub offset: u64,
    /// The transaction that wrote it.
    pub generation: u64,
    /// It is compressed.
    pub compressed: bool,
    /// It has space and reads as zeros.
    pub prealloc: bool,
    /// Its bytes are inline in the item.
    pub inline: bool,
}

/// The extents found.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NewExtents {
    /// In the order of files and places.
    pub extents: Vec<NewExtent>,
    /// The subvolume's generation: what to ask for the next time.
    pub marker: u64,
}

/// Finds the extents of a subvolume that were written in generation `since` or later.
///
/// # Errors
/// There is no such subvolume, or the image is damaged.
pub fn find_new(fs: &Fs, tree: TreeId, since: u64) -> Result<NewExtents, JobError> {
    if !fs.options().read_only {
        fs.sync()?;
    }
    fs.subvol(tree)?;
    let engine = fs.engine();
    let _reader = engine.reader();
    let root = engine.root(tree)?.ok_or(FsError::NotFound)?;
    let mut found = NewExtents { extents: Vec::new(), marker: root.generation.0 };
    engine.blocks().walk(&root, |node, _| {
        if node.generation().0 < since {
            return Ok::<_, JobError>(Walk::Over);
        }
        if node.is_leaf() {
            for slot in 0..node.len() {
                let key = node.key(slot);
                if key.item_type == ItemType::EXTENT_DATA {
                    found.extents.extend(describe(Ino(key.objectid), key.offset, node.item(slot), since)?);
                }
            }
        }
        Ok(Walk::Into)
    })?;
    Ok(found)
}

fn describe(ino: Ino, at: u64, item: &[u8], since: u64) -> Result<Option<NewExtent>, JobError> {
    let extent = FileExtent::parse(item)?;
    let disk = |d: &DiskExtent, prealloc| NewExtent {
        ino,
        at,
        len: d.num_bytes.0,
        disk: d.disk_bytenr.0,
        offset: d.offset.0,
        generation: d.generation.0,
        compressed: d.compression != Compression::None,
        prealloc,
        inline: false,
    };
    let new = match &extent {
        FileExtent::Regular(d) => disk(d, false),
        FileExtent::Prealloc(d) => disk(d, true),
        FileExtent::Inline { generation, ram_bytes, compression, .. } => NewExtent {
            ino,
            at,
            len: ram_bytes.0,
            disk: 0,
            offset: 0,
            generation: generation.0,
            compressed: *compression != Compression::None,
            prealloc: false,
            inline: true,
        },
    };
    Ok(Some(new).filter(|new| new.generation >= since))
}
