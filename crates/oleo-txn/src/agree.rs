//! Whether a block group's count of used bytes agrees with the extents that are recorded in it: asked before
//! what is not recorded is taken for free.
//!
//! Both are as the last settling left them. Beside writers the two trees that may be asked are not of one moment: what differs is
//! looked at again after a commit.

use oleo_format::{BlockGroupItem, Corruption, ItemType, Key, Logical, TreeId};

use crate::TxnError;
use crate::engine::{Agreed, Engine, Inner};

/// Looks at a group that does not agree, each after a commit.
const LOOKS_MAX: usize = 3;

/// Looks at a group, before discarding in it, that may find it in disagreement: beside commits under way a sound one may, too.
const LOOKS_TO_DISCARD: u32 = 8;

impl Engine {
    /// Sums up the extents that are recorded in a block group. A group that is gone meanwhile agrees. The caller holds no handle.
    ///
    /// # Errors
    /// They are not as many bytes as the group counts: something that is used is not recorded, or the other way round.
    pub fn verify_group(&self, start: Logical) -> Result<(), TxnError> {
        for look in 1.. {
            let Some((counted, recorded)) = self.used_bytes(start)? else { break };
            if counted == recorded {
                break;
            }
            if look == LOOKS_MAX {
                let want = format!("{recorded}, as the extents in it have");
                return Err(Corruption::new("block group", "used", counted, want)
                    .within(format!("group {start}"))
                    .into());
            }
            self.commit()?;
        }
        Ok(())
    }

    fn used_bytes(&self, start: Logical) -> Result<Option<(u64, u64)>, TxnError> {
        let _reader = self.reader();
        self.0.used_bytes(start)
    }
}

impl Inner {
    /// Whether what a commit freed in a group may be discarded: if something is used that is not recorded, what seems to be free may be
    /// it. The whole group is read the first time, then it is remembered. The caller keeps what is in it from being used again.
    pub(crate) fn may_discard_in(&self, agreed: &mut Agreed, start: Logical) -> bool {
        let looks = agreed.entry(start).or_insert(1);
        if *looks > 0 && *looks <= LOOKS_TO_DISCARD {
            let _reader = self.readers.enter();
            // What cannot be read is no reason to trust the rest.
            let agrees = matches!(self.used_bytes(start), Ok(Some((counted, recorded))) if counted == recorded);
            *looks = if agrees { 0 } else { *looks + 1 };
        }
        *looks == 0
    }

    /// The bytes that a group counts as used, and those of the extents in it; `None` if there is no such group. The caller has a reader.
    fn used_bytes(&self, start: Logical) -> Result<Option<(u64, u64)>, TxnError> {
        let inner = self;
        let Ok(chunk) = inner.volume.chunk_of(start) else { return Ok(None) };
        let extents = inner.tree(TreeId::EXTENT)?.root;
        let groups = match inner.rules.block_group_tree {
            true => inner.tree(TreeId::BLOCK_GROUP)?.root,
            false => extents.clone(),
        };
        let key = Key::new(start.0, ItemType::BLOCK_GROUP_ITEM, chunk.len.0);
        let Some(item) = inner.blocks.get(&groups, &key)? else { return Ok(None) };
        let counted = BlockGroupItem::parse(&item)?.used.get();
        let mut recorded = 0u64;
        let mut cursor = inner.blocks.cursor(&extents);
        let mut more = cursor.seek(&Key::new(start.0, ItemType(0), 0))?;
        while more && let Some(key) = cursor.key().filter(|key| key.objectid < chunk.end().0) {
            recorded = recorded.saturating_add(match key.item_type {
                ItemType::EXTENT_ITEM => key.offset,
                ItemType::METADATA_ITEM => u64::from(inner.rules.nodesize),
                _ => 0,
            });
            more = cursor.next()?;
        }
        Ok(Some((counted, recorded)))
    }
}
