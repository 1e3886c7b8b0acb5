//! Clone sources: subvolumes that the receiver has, and which of their ranges can be cloned.
//!
//! There are two ways to find the files of a source that hold an extent: [`Sources::enter_all`] goes through a source
//! once, for a subvolume that is sent whole; [`Sources::find`] looks up the references of one extent in the extent
//! tree, and checks in each source whether the file exists. A reference names a file and an offset in it; the file of
//! that number in a source need not be the one that refers, so only the source's own items count. All references are
//! tried, however many, once for an extent, as long as something of it is missing.
//!
//! An extent that is younger than the last change of every source is in none.

use std::ops::{ControlFlow, Range};

use hashbrown::{HashMap, HashSet};
use oleo_format::{DiskExtent, FileExtent, Ino, ItemType, Key, Logical};
use oleo_fs::FileKind;
use oleo_fs::InodeFields;
use oleo_tree::{Blocks, Cursor, TreeRoot};
use oleo_txn::Engine;
use uuid::Uuid;

use super::SendError;
use super::index::{Index, Known, Place};
use super::paths::Paths;

/// Extents for which it is remembered that they were looked for; then all are forgotten. About 16 bytes each.
const EXHAUSTED_MAX: usize = 1 << 22;

/// A subvolume that the receiver has.
pub(super) struct Source<'e> {
    pub root: TreeRoot,
    /// The UUID by which the receiver knows it.
    pub uuid: Uuid,
    pub ctransid: u64,
    pub paths: Paths<'e>,
    files: Cursor<'e>,
    items: Cursor<'e>,
}

impl<'e> Source<'e> {
    pub fn new(blocks: &'e Blocks, root: TreeRoot, uuid: Uuid, ctransid: u64) -> Source<'e> {
        let paths = Paths::new(blocks, &root);
        Source { paths, files: blocks.cursor(&root), items: blocks.cursor(&root), root, uuid, ctransid }
    }

    /// The size of a file, if it is one that can be cloned from.
    fn size(&mut self, ino: u64) -> Result<Option<u64>, SendError> {
        let key = Key::new(ino, ItemType::INODE_ITEM, 0);
        if !self.files.seek(&key)? {
            return Ok(None);
        }
        let Some((_, item)) = self.files.current().filter(|(found, _)| *found == key) else { return Ok(None) };
        Ok(cloneable(&InodeFields::parse(item, key)?))
    }
}

/// The size of an inode that is a file with names.
fn cloneable(fields: &InodeFields) -> Option<u64> {
    (FileKind::of_mode(fields.mode) == FileKind::File && fields.nlink > 0).then_some(fields.size)
}

/// Them all. The first is the subvolume that is being sent.
pub(super) struct Sources<'e> {
    engine: &'e Engine,
    pub list: Vec<Source<'e>>,
    /// Extents that were looked for; true: in all their length.
    tried: HashMap<Logical, bool>,
    /// How often the extent tree was asked.
    pub lookups: u64,
}

/// What of an extent is looked for.
pub(super) struct Wanted<'w> {
    pub extent: &'w DiskExtent,
    pub range: Range<u64>,
}

impl<'e> Sources<'e> {
    pub fn new(engine: &'e Engine, list: Vec<Source<'e>>) -> Sources<'e> {
        Sources { engine, list, tried: HashMap::new(), lookups: 0 }
    }

    /// Enters in the index all that the sources have.
    pub fn enter_all(&mut self, index: &mut Index) -> Result<(), SendError> {
        for number in 1..self.list.len() {
            let mut size = None;
            let source = &self.list[number];
            let (from, to) =
                (Key::new(Ino::FIRST.0, ItemType(0), 0), Key::new(Ino::LAST.0, ItemType(u8::MAX), u64::MAX));
            self.engine.blocks().scan(&source.root, from, to, |key, item| {
                match key.item_type {
                    ItemType::INODE_ITEM => size = cloneable(&InodeFields::parse(item, *key)?),
                    ItemType::EXTENT_DATA => {
                        if let Some(size) = size
                            && let FileExtent::Regular(part) = FileExtent::parse(item)?
                        {
                            enter(index, number, key, &part, size);
                        }
                    }
                    _ => {}
                }
                Ok::<_, SendError>(ControlFlow::Continue(()))
            })?;
        }
        Ok(())
    }

    /// Looks for a range of an extent in the sources, and enters what it finds in the index.
    pub fn find(&mut self, index: &mut Index, wanted: &Wanted<'_>) -> Result<(), SendError> {
        let at = wanted.extent.disk_bytenr;
        let youngest = self.list.iter().skip(1).map(|source| source.root.generation).max();
        let Some(youngest) = youngest.filter(|_| self.tried.get(&at) != Some(&true)) else { return Ok(()) };
        if self.tried.len() >= EXHAUSTED_MAX {
            self.tried.clear();
        }
        // The first time only for the range, the second time for all of the extent, so that there is no third.
        let thorough = self.tried.contains_key(&at);
        self.tried.insert(at, thorough);
        self.lookups += 1;
        let mut seen = HashSet::new();
        let engine = self.engine;
        let mut up = engine.backrefs()?;
        up.places(at, youngest, |ino, offset| {
            if !seen.insert((ino, offset)) {
                return Ok::<_, SendError>(ControlFlow::Continue(()));
            }
            let range = if thorough { 0..wanted.extent.ram_bytes.0 } else { wanted.range.clone() };
            for number in 1..self.list.len() {
                self.probe(number, ino.0, offset, at, range.clone(), index)?;
            }
            let found = !thorough && index.has(at, wanted.range.start, wanted.range.end);
            Ok(if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })
    }

    /// Checks one file of one source. `offset` is where in the file the extent would begin; it may be before the file.
    fn probe(
        &mut self,
        number: usize,
        ino: u64,
        offset: u64,
        extent: Logical,
        range: Range<u64>,
        index: &mut Index,
    ) -> Result<(), SendError> {
        let from = offset.wrapping_add(range.start);
        let to = offset.wrapping_add(range.end);
        let from = if from > i64::MAX as u64 { 0 } else { from };
        if to > i64::MAX as u64 || to <= from {
            return Ok(());
        }
        let source = &mut self.list[number];
        let Some(size) = source.size(ino)? else { return Ok(()) };
        let first = Key::new(ino, ItemType::EXTENT_DATA, from);
        let mut there = source.items.seek_back(&first)?;
        // What begins before the range may reach into it.
        if there && source.items.key().is_some_and(|key| key.objectid != ino || key.item_type != ItemType::EXTENT_DATA)
        {
            there = source.items.next()?;
        }
        while there && let Some((key, item)) = source.items.current() {
            if key.objectid != ino || key.item_type != ItemType::EXTENT_DATA || key.offset >= to {
                break;
            }
            if let FileExtent::Regular(part) = FileExtent::parse(item)?
                && part.disk_bytenr == extent
            {
                enter(index, number, &key, &part, size);
            }
            there = source.items.next()?;
        }
        Ok(())
    }
}

/// Enters an item of a file of this size.
fn enter(index: &mut Index, number: usize, key: &Key, part: &DiskExtent, size: u64) {
    if part.is_hole() || key.offset >= size {
        return;
    }
    let len = part.num_bytes.0.min(size - key.offset);
    let start = part.offset.0;
    let place = Place { source: u16::try_from(number).unwrap_or(u16::MAX), ino: key.objectid, at: key.offset };
    index.insert(part.disk_bytenr, Known { start, end: start.saturating_add(len), place });
}
