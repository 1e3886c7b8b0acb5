//! Whether a block group's count of used bytes agrees with the extents that are recorded in it: whoever takes what is not recorded for
//! free asks this first.
//!
//! Both are as the last settling left them. Beside writers the two trees that may be asked are not of one moment: what differs is
//! looked at again after a commit.

use oleo_format::{BlockGroupItem, Corruption, ItemType, Key, Logical, TreeId};

use crate::TxnError;
use crate::engine::Engine;

/// Looks at a group that does not agree, each after a commit.
const LOOKS_MAX: usize = 3;

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

    /// The bytes that a group counts as used, and those of the extents in it; `None` if there is no such group.
    fn used_bytes(&self, start: Logical) -> Result<Option<(u64, u64)>, TxnError> {
        let inner = &*self.0;
        let _reader = self.reader();
        let Ok(chunk) = inner.volume.chunk_of(start) else { return Ok(None) };
        let extents = self.root(TreeId::EXTENT)?.ok_or(TxnError::NoTree(TreeId::EXTENT))?;
        let groups = match inner.rules.block_group_tree {
            true => self.root(TreeId::BLOCK_GROUP)?.ok_or(TxnError::NoTree(TreeId::BLOCK_GROUP))?,
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
