//! What the volume is told of sectors when it writes rows with parity: what is free, and what those should be whose parity does not fit.
//!
//! Data is known by its checksums: those on their way to the tree, those in the newest tree, and those in the tree of the last commit, which has what
//! the open transaction frees, and a crash would bring back. Tree blocks are known by themselves. Data without checksums, and blocks of which
//! only a part is shown, are known by nothing.
//!
//! Locks: none are held. Whoever writes to the volume may hold the commit lock and others before it; reading blocks is allowed under these.
//! Crash: nothing is written here.

use oleo_format::{BlockGroupFlags, ByteLen, CheckedNode, Logical, NodeExpect, TreeId};
use oleo_space::Run;
use oleo_tree::TreeRoot;
use oleo_volume::{Occupancy, Verdict, Witness};

use crate::TxnError;
use crate::engine::Inner;
use crate::trees;

/// Bytes that one verdict is of.
const GRAIN: usize = 4096;

impl Occupancy for Inner {
    fn is_free(&self, at: Logical, len: ByteLen) -> bool {
        self.space.is_free(Run::new(at, len))
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
            // In a mixed group, what has no checksum need not be a block.
            self.by_blocks(at, bytes, !flags.contains(BlockGroupFlags::DATA), &mut verdicts);
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
        let sb = self.volume.super_block();
        let committed = TreeRoot::on_disk(TreeId::ROOT, sb.root(), sb.generation(), sb.root_level);
        let committed = trees::find(&self.blocks, &committed, TreeId::CSUM)?;
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

    fn by_blocks(&self, at: Logical, bytes: &[u8], must_be: bool, verdicts: &mut [Verdict]) {
        let len = self.rules.nodesize as usize;
        let skipped = (at.0.next_multiple_of(len as u64) - at.0) as usize;
        for (nth, bytes) in bytes.get(skipped..).unwrap_or_default().chunks_exact(len).enumerate() {
            let from = skipped + nth * len;
            let expect = NodeExpect::at(at + ByteLen(from as u64));
            let good = CheckedNode::verify(bytes.into(), self.volume.rules(), &expect).is_ok();
            let verdict = match good {
                true => Verdict::Good,
                false if must_be => Verdict::Bad,
                false => continue,
            };
            let of_block = &mut verdicts[from / GRAIN..(from + len) / GRAIN];
            of_block.iter_mut().filter(|known| **known == Verdict::Unknown).for_each(|known| *known = verdict);
        }
    }
}
