//! Log trees: what was synced since the last commit, to be replayed when the volume is opened for writing.
//!
//! A log holds parts of inodes, so few things can be checked: its tree of files exists, nothing is younger than the
//! commit it belongs to, ranges of directories do not end before they begin (they may overlap: their union counts),
//! file extents do not overlap. Its blocks are of the transaction after that of the superblock.

use oleo_format::{DirLogItem, Ino, InodeItem, ItemType, Key, RootItem, TreeId};

use super::Context;
use super::extents::Extent;
use super::roots::Roots;
use crate::finding::Kind;

/// Checks the root item of a log and returns it, if it can be read.
pub(super) fn check_root(c: &Context<'_>, roots: &Roots, key: &Key, item: &[u8]) -> Option<RootItem> {
    let root = RootItem::decode(item).ok()?;
    if !roots.is_live(TreeId(key.offset)) && key.offset != TreeId::DATA_RELOC.0 {
        c.error(Kind::LogRoot, *key, format_args!("a log of tree {}", key.offset), "an existing subvolume");
    }
    Some(root)
}

/// Checks the items of one log, in the order of keys.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// The file whose extents are being fed, and where the last one ends.
    extent: Option<(u64, u64)>,
}

impl Log {
    /// Takes the next item.
    pub(super) fn item(&mut self, c: &Context<'_>, key: &Key, data: &[u8]) {
        match key.item_type {
            ItemType::INODE_ITEM => {
                if let Ok(inode) = InodeItem::parse(data) {
                    young(c, key, inode.generation.get().max(inode.transid.get()));
                }
            }
            ItemType::DIR_LOG_ITEM | ItemType::DIR_LOG_INDEX => {
                let Ok(item) = DirLogItem::parse(data) else { return };
                let end = item.end.get();
                if end < key.offset {
                    c.error(Kind::LogRange, *key, format_args!("a range that ends at {end}"), "one that ends later");
                }
            }
            ItemType::EXTENT_DATA => {
                let Some(e) = Extent::parse(key.offset, data, u64::from(c.sectorsize)) else { return };
                young(c, key, e.generation);
                if let Some((ino, end)) = self.extent
                    && ino == key.objectid
                    && end > key.offset
                {
                    let key = Key::extent_data(Ino(ino), key.offset);
                    c.error(Kind::FileExtentOverlap, key, format_args!("the one before ends at {end}"), "no overlap");
                }
                self.extent = Some((key.objectid, e.run.end));
            }
            _ => {}
        }
    }
}

fn young(c: &Context<'_>, key: &Key, generation: u64) {
    let newest = c.generation.0.saturating_add(1);
    if generation > newest {
        c.error(Kind::ItemGeneration, *key, generation, format_args!("at most {newest}, in a log"));
    }
}
