//! What the volume is told of sectors when it writes rows with parity: what is free, and what those should be whose parity does not fit.
//!
//! Data is known by its checksums: those on their way to the tree, those in the newest tree, and those in the tree of the last commit, which has what
//! the open transaction frees, and a crash would bring back. Tree blocks are known by themselves: what is none has rotted if the extent tree of the last
//! commit names a block there; else nobody may have written it yet. Data without checksums, blocks of the log that have rotted, and blocks of
//! which only a part is shown, are known by nothing.
//!
//! Locks: none are held. Whoever writes to the volume may hold the commit lock and others before it; reading blocks is allowed under these.
//! Crash: nothing is written here.

use oleo_format::{
    BlockGroupFlags, ByteLen, CheckedNode, ExtentFlags, ExtentRecord, ItemType, Key, Logical, NodeExpect, TreeId,
};
use oleo_space::Run;
use oleo_tree::TreeRoot;
use oleo_volume::{GRAIN, Occupancy, Verdict, Witness};

use crate::TxnError;
use crate::engine::Inner;
use crate::trees::{self, TreeState};

impl Occupancy for Inner {
    fn is_free(&self, at: Logical, len: ByteLen) -> bool {
        self.space.is_free(Run::new(at, len))
    }

    fn is_unnamed(&self, at: Logical, len: ByteLen) -> bool {
        self.space.is_unnamed(Run::new(at, len))
    }
}

impl Witness for Inner {
    fn verdicts(&self, at: Logical, bytes: &[u8]) -> Vec<Verdict> {
        let mut verdicts = vec![Verdict::Unknown; bytes.len().div_ceil(GRAIN)];
        let Ok(flags) = self.space.group(at).map(|group| group.flags) else { return verdicts };
        if flags.contains(BlockGroupFlags::DATA) {
            // What cannot be read says nothing.
            let _ = self.by_checksums(at, bytes, &mut verdicts);
        }
        if !flags.types().difference(BlockGroupFlags::DATA).is_empty() {
            let _ = self.by_blocks(at, bytes, &mut verdicts);
        }
        verdicts
    }
}

impl Inner {
    fn by_checksums(&self, at: Logical, bytes: &[u8], verdicts: &mut [Verdict]) -> Result<(), TxnError> {
        let (sector, csum_len) = (self.rules.sectorsize as usize, self.rules.csum.csum_len());
        let (start, end) = (at.0.next_multiple_of(sector as u64), at.0 + bytes.len() as u64);
        let len = ByteLen(end.saturating_sub(start) / sector as u64 * sector as u64);
        if len.0 == 0 {
            return Ok(());
        }
        let _reader = self.readers.enter();
        let committed = self.committed(TreeId::CSUM)?;
        // The newest last: it is right if both know.
        for root in committed.into_iter().chain([self.tree(TreeId::CSUM)?]).map(|state| state.root) {
            for (from, sums) in self.csums.runs(self.layout, &self.blocks, &root, Logical(start), len)? {
                for (nth, sum) in sums.chunks_exact(csum_len).enumerate() {
                    let first = (start - at.0 + from) as usize + nth * sector;
                    let fits = self.rules.csum.csum(&bytes[first..first + sector])[..csum_len] == *sum;
                    verdicts[first / GRAIN..(first + sector) / GRAIN].fill(if fits {
                        Verdict::Good
                    } else {
                        Verdict::Bad
                    });
                }
            }
        }
        Ok(())
    }

    /// A tree as of the last commit. The caller is a reader.
    fn committed(&self, tree: TreeId) -> Result<Option<TreeState>, TxnError> {
        let sb = self.volume.super_block();
        let root = TreeRoot::on_disk(TreeId::ROOT, sb.root(), sb.generation(), sb.root_level);
        trees::find(&self.blocks, &root, tree)
    }

    fn by_blocks(&self, at: Logical, bytes: &[u8], verdicts: &mut [Verdict]) -> Result<(), TxnError> {
        let len = self.rules.nodesize as usize;
        let skipped = (at.0.next_multiple_of(len as u64) - at.0) as usize;
        let _reader = self.readers.enter();
        let mut extents = None;
        for (nth, bytes) in bytes.get(skipped..).unwrap_or_default().chunks_exact(len).enumerate() {
            let from = skipped + nth * len;
            let of_block = &mut verdicts[from / GRAIN..(from + len) / GRAIN];
            if of_block.iter().all(|known| *known != Verdict::Unknown) {
                continue;
            }
            let start = at + ByteLen(from as u64);
            let good = CheckedNode::verify(bytes.into(), self.volume.rules(), &NodeExpect::at(start)).is_ok();
            let verdict = match good {
                true => Verdict::Good,
                false if self.names_block(&mut extents, start)? => Verdict::Bad,
                false => continue,
            };
            of_block.iter_mut().filter(|known| **known == Verdict::Unknown).for_each(|known| *known = verdict);
        }
        Ok(())
    }

    /// Whether the extent tree of the last commit has a tree block at an address; its root is kept in `extents`. The caller is a reader.
    fn names_block(&self, extents: &mut Option<TreeRoot>, at: Logical) -> Result<bool, TxnError> {
        if extents.is_none() {
            *extents = self.committed(TreeId::EXTENT)?.map(|state| state.root);
        }
        let Some(root) = extents else { return Ok(false) };
        let mut cursor = self.blocks.cursor(root);
        if !cursor.seek(&Key::new(at.0, ItemType(0), 0))? {
            return Ok(false);
        }
        let Some((key, item)) = cursor.current().filter(|(key, _)| key.objectid == at.0) else { return Ok(false) };
        let is_extent = matches!(key.item_type, ItemType::METADATA_ITEM | ItemType::EXTENT_ITEM);
        Ok(is_extent && ExtentRecord::parse_head(&key, item)?.0.flags.contains(ExtentFlags::TREE_BLOCK))
    }
}
