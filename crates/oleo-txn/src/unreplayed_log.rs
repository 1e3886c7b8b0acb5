//! The log that a crash left on the volume: reading it, reserving its space, releasing it.
//!
//! A log holds what was synced after the last commit. Its blocks and the data that only it names are free space to the trees,
//! so before anything is allocated they must be taken out of it: else the first commit would write over the log it replays,
//! or over data that the log is about to give to a file.
//!
//! Normal path: (1) [`read`], while a volume is opened for writing, walks the log and claims; until (4) no commit is
//! possible; (2) the crate above joins once and applies the log ([`Engine::unreplayed_log`]); (3) inside the same transaction
//! [`Handle::adopt_log`] records the data of the log as new extents, [`Handle::add_log_csums`] adds its checksums; (4)
//! [`Engine::log_applied`] pins the log's blocks; (5) the commit, which names no log any more, makes them free.
//!
//! Invariants: a block of the log is in it once (so a walk ends, whatever the image says) and is free space to the trees; an
//! extent that the log names is either one of the extent tree, of the same length, or wholly free space of data.
//! Crash: nothing is written before (5): the log is there until the commit that contains it is durable.
//! Not here: what the items of the log mean.

pub(crate) mod found;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hashbrown::HashSet;
use oleo_format::{
    BlockGroupFlags, ByteLen, Compression, Corruption, ExtentFlags, ExtentRecord, FileExtent, Generation, ItemType,
    Key, Logical, RootItem, TreeId,
};
use oleo_space::{Refusal, Run};
use oleo_tree::{TreeRoot, Walk};

use crate::TxnError;
use crate::engine::{Engine, Inner};
use crate::join::Handle;
use found::{LogTree, UncommittedExtents, UnreplayedLog};

/// Bytes of tree blocks that a log may have. What is replayed is held in memory, a few times this size. A log holds the
/// changes of one transaction; nobody has made one that comes near.
const LOG_BYTES_MAX: u64 = 1 << 30;

fn corrupt(what: &'static str, at: impl std::fmt::Display, have: impl ToString, want: impl ToString) -> TxnError {
    Corruption::new("log tree", what, have.to_string(), want.to_string()).within(at).into()
}

/// Reads the log that the superblock names and claims what it uses; `None` if there is none.
pub(crate) fn read(inner: &Inner) -> Result<Option<UnreplayedLog>, TxnError> {
    let sb = *inner.super_block.lock();
    if sb.log_root.get() == 0 {
        return Ok(None);
    }
    let generation = Generation(sb.generation.get() + 1);
    let root = TreeRoot::on_disk(TreeId::TREE_LOG, Logical(sb.log_root.get()), generation, sb.log_root_level);
    let mut reading = Reading { inner, seen: HashSet::new(), extents: BTreeMap::new(), items: 0, item_bytes: 0 };
    let mut roots: Vec<(Key, RootItem)> = Vec::new();
    reading.walk(&root, |key, item| {
        if key.objectid == TreeId::TREE_LOG.0 && key.item_type == ItemType::ROOT_ITEM {
            roots.push((*key, RootItem::decode(item)?));
        }
        Ok(())
    })?;
    let mut trees = Vec::with_capacity(roots.len());
    for (key, item) in roots {
        let subvol = TreeId(key.offset);
        if !subvol.is_subvol() {
            return Err(corrupt("subvolume", key, subvol, "the number of a subvolume"));
        }
        let at = Logical(item.bytenr.get());
        let tree = TreeRoot::on_disk(TreeId::TREE_LOG, at, Generation(item.generation.get()), item.level);
        let mut extents = std::mem::take(&mut reading.extents);
        reading.walk(&tree, |key, item| note_extent(&mut extents, subvol, key, item))?;
        reading.extents = extents;
        trees.push(LogTree { subvol, root: tree });
    }
    let Reading { seen, extents, items, item_bytes, .. } = reading;
    let mut blocks: Vec<Logical> = seen.into_iter().map(Logical).collect();
    blocks.sort_unstable();
    let nodesize = ByteLen(inner.rules.nodesize.into());
    for at in &blocks {
        claim(inner, *at, nodesize, BlockGroupFlags::METADATA)?;
    }
    let uncommitted = claim_data(inner, extents)?;
    Ok(Some(UnreplayedLog { trees, blocks, uncommitted, items, item_bytes }))
}

struct Reading<'a> {
    inner: &'a Inner,
    /// Addresses of the blocks met so far.
    seen: HashSet<u64>,
    /// The data that is named.
    extents: UncommittedExtents,
    items: u64,
    item_bytes: u64,
}

impl Reading<'_> {
    /// Goes through one tree of the log, every block of which must be new.
    fn walk(
        &mut self,
        root: &TreeRoot,
        mut each: impl FnMut(&Key, &[u8]) -> Result<(), TxnError>,
    ) -> Result<(), TxnError> {
        let inner = self.inner;
        let nodesize = u64::from(inner.rules.nodesize);
        inner.blocks.walk(root, |node, _| {
            if !self.seen.insert(node.logical().0) {
                return Err(corrupt("block", node.logical(), "named twice", "once"));
            }
            if self.seen.len() as u64 * nodesize > LOG_BYTES_MAX {
                return Err(TxnError::Refused(format!("the log has more than {LOG_BYTES_MAX} bytes")));
            }
            if node.is_leaf() {
                for slot in 0..node.len() {
                    let item = node.item(slot);
                    self.items += 1;
                    self.item_bytes += item.len() as u64;
                    each(&node.key(slot), item)?;
                }
            }
            Ok::<Walk, TxnError>(Walk::Into)
        })
    }
}

/// Notes the data that an item names. Two items may name parts of the same, never overlap otherwise.
fn note_extent(extents: &mut UncommittedExtents, subvol: TreeId, key: &Key, item: &[u8]) -> Result<(), TxnError> {
    if key.item_type != ItemType::EXTENT_DATA {
        return Ok(());
    }
    let extent = match FileExtent::parse(item)? {
        FileExtent::Inline { .. } => return Ok(()),
        FileExtent::Regular(e) | FileExtent::Prealloc(e) if e.is_hole() => return Ok(()),
        FileExtent::Regular(e) | FileExtent::Prealloc(e) => e,
    };
    let (at, len) = (extent.disk_bytenr.0, extent.disk_num_bytes.0);
    let end = at.checked_add(len).filter(|end| *end > at).ok_or_else(|| corrupt("extent", key, len, "a length"))?;
    // An uncompressed extent has as many bytes in the file as on disk.
    if extent.compression == Compression::None && extent.offset.0.saturating_add(extent.num_bytes.0) > len {
        return Err(corrupt("extent", key, extent.num_bytes, "bytes that are on disk"));
    }
    if let Some((_, owner)) = extents.get_mut(&at).filter(|(have, _)| *have == len) {
        *owner = (*owner).max(subvol);
        return Ok(());
    }
    let before = extents.range(..end).next_back().map(|(start, (len, _))| (start, len));
    if let Some((start, len)) = before.filter(|(start, len)| *start + *len > at) {
        return Err(corrupt("extent", key, format!("{at}+{len}"), format!("none that overlaps {start}+{len}")));
    }
    extents.insert(at, (len, subvol));
    Ok(())
}

/// Claims the extents that the extent tree does not know, and returns them.
fn claim_data(inner: &Inner, extents: UncommittedExtents) -> Result<UncommittedExtents, TxnError> {
    let mut uncommitted = UncommittedExtents::new();
    if extents.is_empty() {
        return Ok(uncommitted);
    }
    let root = inner.tree(TreeId::EXTENT)?.root;
    for (at, (len, subvol)) in extents {
        let key = Key::new(at, ItemType::EXTENT_ITEM, len);
        if let Some(item) = inner.blocks.get(&root, &key)? {
            if !ExtentRecord::parse(&key, &item)?.flags.contains(ExtentFlags::DATA) {
                return Err(corrupt("extent", Logical(at), "a tree block", "data"));
            }
            continue;
        }
        claim(inner, Logical(at), ByteLen(len), BlockGroupFlags::DATA)?;
        uncommitted.insert(at, (len, subvol));
    }
    Ok(uncommitted)
}

/// Takes space of one kind that the log uses out of what is free.
fn claim(inner: &Inner, at: Logical, len: ByteLen, kind: BlockGroupFlags) -> Result<(), TxnError> {
    let group = inner.space.group(at).ok();
    if !group.is_some_and(|g| g.flags.contains(kind)) {
        return Err(corrupt("address", at, at, format!("one in a block group of {kind:?}")));
    }
    match inner.space.claim(Run::new(at, len)) {
        Ok(true) => Ok(()),
        Ok(false) => Err(corrupt("address", at, format!("{len} bytes that are not free"), "space that no tree uses")),
        Err(Refusal::Load(e)) => Err(e.into()),
        Err(Refusal::NeedChunk(_) | Refusal::NoSpace(_)) => Err(TxnError::NoSpace { what: "the log", wanted: len }),
    }
}

impl Engine {
    /// The log that the volume was opened with, as long as it has not been applied.
    pub fn unreplayed_log(&self) -> Option<Arc<UnreplayedLog>> {
        self.0.unreplayed_log.lock().clone()
    }

    /// The log's changes are part of the open transaction: its next commit names no log any more, and gives the log's
    /// blocks back. The caller holds no handle.
    ///
    /// # Errors
    /// The allocator's records contradict each other.
    pub fn log_applied(&self) -> Result<(), TxnError> {
        let inner = &*self.0;
        let Some(log) = inner.unreplayed_log.lock().take() else { return Ok(()) };
        let nodesize = ByteLen(inner.rules.nodesize.into());
        for at in &log.blocks {
            inner.space.pin(Run::new(*at, nodesize))?;
        }
        // Even if nothing else changed: the superblock still names the log.
        inner.touched.store(true, Ordering::Release);
        Ok(())
    }

    /// Which parts of a range of data have no checksum yet, as start and end.
    fn without_csums(&self, at: Logical, len: ByteLen) -> Result<Vec<(u64, u64)>, TxnError> {
        let inner = &*self.0;
        let root = inner.tree(TreeId::CSUM)?.root;
        inner.csums.missing(inner.layout, &inner.blocks, &root, at, len)
    }
}

impl Inner {
    /// Nothing may be committed before the log is part of it.
    pub(crate) fn log_is_settled(&self) -> Result<(), TxnError> {
        match &*self.unreplayed_log.lock() {
            None => Ok(()),
            Some(_) => Err(TxnError::Refused("the log has not been replayed".into())),
        }
    }
}

impl Handle<'_> {
    /// The data that only the log names becomes part of this transaction: what no item names at its end is free again.
    pub fn adopt_log(&self, log: &UnreplayedLog) {
        for (at, (len, subvol)) in &log.uncommitted {
            self.adopt(Run::new(Logical(*at), ByteLen(*len)), *subvol);
        }
    }

    /// Adds checksums of the log, one per sector from `at` on, if there are none yet: data that was in the trees before
    /// has its own.
    ///
    /// # Errors
    /// The checksum tree cannot be read.
    pub fn add_log_csums(&self, engine: &Engine, at: Logical, csums: &[u8]) -> Result<(), TxnError> {
        let layout = engine.0.layout;
        let len = ByteLen(csums.len() as u64 / layout.csum_len * layout.sectorsize);
        for (from, to) in engine.without_csums(at, len)? {
            let bytes = |to: u64| ((to - at.0) / layout.sectorsize * layout.csum_len) as usize;
            if let Some(part) = csums.get(bytes(from)..bytes(to)) {
                self.add_csums(Logical(from), part.to_vec());
            }
        }
        Ok(())
    }

    /// Whether every sector of a range of data has a checksum by now.
    ///
    /// # Errors
    /// The checksum tree cannot be read.
    pub fn has_csums(&self, engine: &Engine, at: Logical, len: ByteLen) -> Result<bool, TxnError> {
        Ok(engine.without_csums(at, len)?.is_empty())
    }

    /// Whether a sector of a range of data has one.
    ///
    /// # Errors
    /// The checksum tree cannot be read.
    pub fn has_a_csum(&self, engine: &Engine, at: Logical, len: ByteLen) -> Result<bool, TxnError> {
        Ok(engine.without_csums(at, len)?.iter().map(|(from, to)| to - from).sum::<u64>() < len.0)
    }
}
