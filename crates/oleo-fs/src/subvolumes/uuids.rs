//! The UUID tree: which subvolume has a UUID, or was received from the one that has it.
//!
//! All subvolumes of one UUID are in one item. Snapshots of a received subvolume have its UUID, so any number of subvolumes may
//! have the same, and an item has room for some 500 (nodes of 4 KiB) to 2000 (16 KiB). Subvolumes beyond that are not in the
//! tree, as with newer kernels; [`Fs::find_uuid_in_roots`] finds them, too.

use std::sync::Arc;

use oleo_format::{ItemType, TreeId, item_len_max};
use uuid::Uuid;

use crate::FsError;
use crate::fs::Fs;
use crate::object::{Inode, Items, ItemsMut, Joined};

/// Bytes of a subvolume's number in an item of the UUID tree.
const ID_LEN: usize = 8;

/// Which of a subvolume's UUIDs to look for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UuidKind {
    /// Its own.
    Own,
    /// That of the subvolume that it was received from.
    Received,
}

impl Fs {
    fn uuid_object(&self, uuid: Uuid) -> Result<Option<(Arc<Inode>, u64)>, FsError> {
        if uuid.is_nil() || !self.engine().has_uuid_tree() {
            return Ok(None);
        }
        let (high, low) = halves(uuid);
        Ok(Some((self.core().object(TreeId::UUID, high)?, low)))
    }

    pub(super) fn uuid_add(&self, h: &dyn Joined, t: ItemType, uuid: Uuid, id: TreeId) -> Result<(), FsError> {
        let Some((object, offset)) = self.uuid_object(uuid)? else { return Ok(()) };
        let mut guard = object.write();
        let mut ids = guard.get(t, offset)?.map_or(Vec::new(), |old| old.to_vec());
        // Bytes behind the last whole number mean nothing.
        ids.truncate(ids.len() / ID_LEN * ID_LEN);
        let has_room = ids.len() + ID_LEN <= item_len_max(self.engine().nodesize());
        if has_room && !ids.chunks_exact(ID_LEN).any(|c| c == id.0.to_le_bytes()) {
            ids.extend_from_slice(&id.0.to_le_bytes());
            guard.put(h, t, offset, ids.into());
        }
        Ok(())
    }

    pub(super) fn uuid_remove(&self, h: &dyn Joined, t: ItemType, uuid: Uuid, id: TreeId) -> Result<(), FsError> {
        let Some((object, offset)) = self.uuid_object(uuid)? else { return Ok(()) };
        let mut guard = object.write();
        let Some(old) = guard.get(t, offset)? else { return Ok(()) };
        let kept: Vec<u8> = old.chunks_exact(ID_LEN).filter(|c| *c != id.0.to_le_bytes()).flatten().copied().collect();
        if kept.is_empty() {
            guard.delete(h, t, offset);
        } else if kept.len() < old.len() {
            guard.put(h, t, offset, kept.into());
        }
        Ok(())
    }

    /// The subvolumes of that UUID, or received from the one of that UUID, by the UUID tree: not all of them if there are
    /// more than an item has room for, none without a UUID tree.
    pub fn find_uuid(&self, uuid: Uuid, which: UuidKind) -> Result<Vec<TreeId>, FsError> {
        let t = match which {
            UuidKind::Own => ItemType::UUID_SUBVOL,
            UuidKind::Received => ItemType::UUID_RECEIVED_SUBVOL,
        };
        let Some((object, offset)) = self.uuid_object(uuid)? else { return Ok(Vec::new()) };
        let Some(item) = object.read().get(t, offset)? else { return Ok(Vec::new()) };
        let ids = item.chunks_exact(ID_LEN).filter_map(|c| c.try_into().ok());
        Ok(ids.map(|c| TreeId(u64::from_le_bytes(c))).collect())
    }

    /// The same by the root items of all subvolumes, in the order of their numbers.
    pub fn find_uuid_in_roots(&self, uuid: Uuid, which: UuidKind) -> Result<Vec<TreeId>, FsError> {
        let mut found = Vec::new();
        for id in self.subvol_ids()? {
            let item = match self.subvol(id) {
                Ok(subvol) => subvol.root_item(),
                // Deleted meanwhile.
                Err(FsError::NotFound | FsError::Stale) => None,
                Err(e) => return Err(e),
            };
            let own = item.map(|item| match which {
                UuidKind::Own => item.uuid,
                UuidKind::Received => item.received_uuid,
            });
            if own == Some(uuid.into_bytes()) && !uuid.is_nil() {
                found.push(id);
            }
        }
        Ok(found)
    }
}

/// A UUID as the key of the UUID tree has it.
fn halves(uuid: Uuid) -> (u64, u64) {
    let bytes = uuid.as_u128().to_be_bytes();
    let (mut high, mut low) = ([0; 8], [0; 8]);
    high.copy_from_slice(&bytes[..8]);
    low.copy_from_slice(&bytes[8..]);
    (u64::from_le_bytes(high), u64::from_le_bytes(low))
}
