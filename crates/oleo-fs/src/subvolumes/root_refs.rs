//! Where subvolumes are: ROOT_REF and ROOT_BACKREF in the root tree.

use std::sync::Arc;

use oleo_format::{Ino, ItemType, RootRef, TreeId};
use zerocopy::IntoBytes;

use crate::FsError;
use crate::fs::Fs;
use crate::object::{Inode, InodeRef, Items, ItemsMut, Joined};
use oleo_tree::ItemBytes;

/// Where a subvolume is, according to the root tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RootPlace {
    /// The directory in the parent subvolume.
    pub dirid: Ino,
    /// The entry's index there.
    pub sequence: u64,
    /// The entry's name.
    pub name: Vec<u8>,
}

impl RootPlace {
    fn parse(bytes: &[u8]) -> Result<RootPlace, FsError> {
        let (head, name) = RootRef::parse_prefix(bytes)?;
        if name.len() != usize::from(head.name_len.get()) {
            return Err(FsError::corrupt("root reference", "", "name length", name.len(), head.name_len.get()));
        }
        Ok(RootPlace { dirid: Ino(head.dirid.get()), sequence: head.sequence.get(), name: name.to_vec() })
    }

    fn encode(&self) -> ItemBytes {
        let head = RootRef {
            dirid: self.dirid.0.into(),
            sequence: self.sequence.into(),
            name_len: (self.name.len() as u16).into(),
        };
        [head.as_bytes(), &self.name].concat().into()
    }
}

impl Fs {
    /// The object of the root tree that holds a subvolume's references.
    pub(super) fn root_object(&self, id: TreeId) -> Result<Arc<Inode>, FsError> {
        self.core().object(TreeId::ROOT, id.0)
    }

    /// Where a subvolume is; `None` for the top level and for what is being deleted.
    pub(crate) fn root_backref(&self, id: TreeId) -> Result<Option<(TreeId, RootPlace)>, FsError> {
        let object = self.root_object(id)?;
        let guard = object.read();
        match guard.range_limit(ItemType::ROOT_BACKREF, 0, u64::MAX, 1)?.first() {
            Some((parent, item)) => Ok(Some((TreeId(*parent), RootPlace::parse(item)?))),
            None => Ok(None),
        }
    }

    /// Whether the root tree confirms that a subvolume is in this place.
    pub(crate) fn is_subvol_here(&self, dir: &InodeRef, name: &[u8], id: TreeId) -> Result<bool, FsError> {
        let object = self.root_object(dir.tree())?;
        let guard = object.read();
        let Some(item) = guard.get(ItemType::ROOT_REF, id.0)? else { return Ok(false) };
        let place = RootPlace::parse(&item)?;
        Ok(place.dirid == dir.ino() && place.name == name)
    }

    pub(crate) fn add_root_ref(
        &self,
        h: &dyn Joined,
        parent: TreeId,
        dirid: Ino,
        id: TreeId,
        sequence: u64,
        name: &[u8],
    ) -> Result<(), FsError> {
        let item = RootPlace { dirid, sequence, name: name.to_vec() }.encode();
        self.root_object(parent)?.write().put(h, ItemType::ROOT_REF, id.0, item.clone());
        self.root_object(id)?.write().put(h, ItemType::ROOT_BACKREF, parent.0, item);
        Ok(())
    }

    pub(crate) fn remove_root_ref(
        &self,
        h: &dyn Joined,
        parent: TreeId,
        id: TreeId,
    ) -> Result<Option<RootPlace>, FsError> {
        let object = self.root_object(parent)?;
        let mut guard = object.write();
        let Some(item) = guard.get(ItemType::ROOT_REF, id.0)? else { return Ok(None) };
        let place = RootPlace::parse(&item)?;
        guard.delete(h, ItemType::ROOT_REF, id.0);
        drop(guard);
        self.root_object(id)?.write().delete(h, ItemType::ROOT_BACKREF, parent.0);
        Ok(Some(place))
    }
}
