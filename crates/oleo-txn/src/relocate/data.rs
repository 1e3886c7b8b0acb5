//! Data on its way to another place: found, copied, not yet named there.

use oleo_format::{ByteLen, ExtentFlags, ExtentRecord, ItemType, Key, Logical, TreeId};
use oleo_space::{Grant, Run};
use rayon::prelude::*;

use crate::TxnError;
use crate::engine::Engine;
use crate::options::DataWant;

/// Bytes that are copied in one transaction, about: what one extent has more than this comes on top.
const COPY_BYTES_MAX: u64 = 64 << 20;
/// Extents in one transaction, at most.
const EXTENTS_MAX: usize = 8192;
/// Bytes of one extent that are in memory at a time.
const PIECE_LEN: u64 = 4 << 20;
/// What is moved is kept together.
const STREAM: u64 = u64::MAX - 1;

/// An extent whose bytes are in two places.
pub(super) struct Copied {
    /// Where it is.
    pub(super) from: Run,
    /// Where it will be.
    pub(super) grant: Grant,
}

impl Copied {
    pub(super) fn to(&self) -> Logical {
        self.grant.run().start
    }
}

/// What was found in a group.
#[derive(Default)]
pub(super) struct Found {
    pub(super) blocks: Vec<Logical>,
    pub(super) data: Vec<Run>,
}

impl Found {
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.data.is_empty()
    }
}

impl Engine {
    /// The first extents of a group, by the extent tree as last settled: as many as are moved together, `blocks_max` at most.
    pub(super) fn extents_in(&self, group: Run, blocks_max: usize) -> Result<Found, TxnError> {
        let _reader = self.reader();
        let root = self.root(TreeId::EXTENT)?.ok_or(TxnError::NoTree(TreeId::EXTENT))?;
        let mut found = Found::default();
        let mut bytes = 0;
        let mut cursor = self.0.blocks.cursor(&root);
        let mut more = cursor.seek(&Key::new(group.start.0, ItemType::EXTENT_ITEM, 0))?;
        while more && let Some((key, item)) = cursor.current() {
            let extents_max = EXTENTS_MAX.min(blocks_max);
            let enough = found.blocks.len() >= blocks_max || found.data.len() >= extents_max || bytes >= COPY_BYTES_MAX;
            if key.objectid >= group.end().0 || enough {
                break;
            }
            match key.item_type {
                ItemType::METADATA_ITEM => found.blocks.push(Logical(key.objectid)),
                ItemType::EXTENT_ITEM => {
                    if ExtentRecord::parse(&key, item)?.flags.contains(ExtentFlags::TREE_BLOCK) {
                        found.blocks.push(Logical(key.objectid));
                    } else {
                        found.data.push(Run::new(Logical(key.objectid), ByteLen(key.offset)));
                        bytes += key.offset;
                    }
                }
                _ => {}
            }
            more = cursor.next()?;
        }
        Ok(found)
    }

    /// Gives extents new places, as many as there is room for, and copies them there, on all cores.
    pub(super) fn copy_extents(&self, extents: &[Run]) -> Result<Vec<Copied>, TxnError> {
        let mut copied = Vec::with_capacity(extents.len());
        for from in extents {
            // An extent stays one: its items name it whole.
            let want = DataWant { len: from.len, min_len: from.len, stream: STREAM, directory: 0 };
            match self.alloc_data(want) {
                Ok(grant) => copied.push(Copied { from: *from, grant }),
                Err(TxnError::NoSpace { .. }) if !copied.is_empty() => break,
                Err(e) => return Err(e),
            }
        }
        self.compute(|| copied.par_iter().try_for_each(|copied| self.copy_extent(copied)))?;
        Ok(copied)
    }

    /// What has checksums comes from a copy that matches them.
    fn copy_extent(&self, copied: &Copied) -> Result<(), TxnError> {
        let inner = &self.0;
        let mut buf = Vec::new();
        let mut done = 0;
        while done < copied.from.len.0 {
            let len = (copied.from.len.0 - done).min(PIECE_LEN);
            let at = copied.from.start + ByteLen(done);
            buf.resize(len as usize, 0);
            let root = inner.tree(TreeId::CSUM)?.root;
            let runs = inner.csums.runs(inner.layout, &inner.blocks, &root, at, ByteLen(len))?;
            let mut plain = 0;
            for (skip, sums) in &runs {
                let bytes = sums.len() as u64 / inner.layout.csum_len * inner.layout.sectorsize;
                let (skip, end) = (*skip as usize, (*skip + bytes) as usize);
                if skip > plain {
                    inner.volume.read_data(at + ByteLen(plain as u64), &mut buf[plain..skip], None)?;
                }
                inner.volume.read_data(at + ByteLen(skip as u64), &mut buf[skip..end], Some(sums))?;
                plain = end;
            }
            if plain < buf.len() {
                inner.volume.read_data(at + ByteLen(plain as u64), &mut buf[plain..], None)?;
            }
            self.write_data(&[(copied.to() + ByteLen(done), &buf)])?;
            done += len;
        }
        Ok(())
    }
}
