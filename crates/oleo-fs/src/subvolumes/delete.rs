//! Deleting subvolumes. What is in one goes later, step by step (`cleaner`).

use oleo_format::{Ino, ItemType, RootItem, TreeId};
use oleo_txn::Staged;
use uuid::Uuid;

use crate::FsError;
use crate::attributes::rules;
use crate::fs::Fs;
use crate::items::dir::{self, Target};
use crate::names::stamp;
use crate::object::{InodeRef, Items, ItemsMut};

impl Fs {
    /// Deletes a subvolume with everything in it, except when others are inside it or it is the default one. Its space
    /// comes back as [`clean`](Fs::clean) gets on.
    pub fn subvol_delete(&self, id: TreeId) -> Result<(), FsError> {
        self.delete_subvol(id, false)
    }

    /// The same for an empty one.
    pub(crate) fn remove_subvol(&self, id: TreeId) -> Result<(), FsError> {
        self.delete_subvol(id, true)
    }

    pub(crate) fn remove_subvol_entry(&self, dir: &InodeRef, name: &[u8], id: TreeId) -> Result<(), FsError> {
        if self.is_subvol_here(dir, name, id)? {
            return self.remove_subvol(id);
        }
        // The empty directory in place of a subvolume that is elsewhere: an entry and nothing more.
        if self.remove_bare_entry(dir, name, Target::Subvol(id))? { Ok(()) } else { Err(FsError::NotFound) }
    }

    fn delete_subvol(&self, id: TreeId, only_if_empty: bool) -> Result<(), FsError> {
        if id == TreeId::FS {
            return Err(FsError::NotPermitted("the top level cannot be deleted"));
        }
        let subvol = self.subvol(id)?;
        let Some((parent, place)) = self.root_backref(id)? else { return Err(FsError::NotFound) };
        let dir = self.inode(&self.subvol(parent)?, place.dirid)?;
        self.changeable(&dir)?;
        self.core().know_next_tree()?;
        self.staged_to_condemn(|s| {
            let confirmed = self.root_backref(id)?;
            if confirmed != Some((parent, place.clone())) || subvol.is_deleted() {
                return Err(FsError::Busy("the subvolume was moved meanwhile"));
            }
            if self.default_subvol()? == id {
                return Err(FsError::NotPermitted("the default subvolume cannot be deleted"));
            }
            if !self.root_object(id)?.read().range_limit(ItemType::ROOT_REF, 0, u64::MAX, 1)?.is_empty() {
                return Err(FsError::NotEmpty);
            }
            let root = self.core().inode(&subvol, Ino::ROOT_DIR)?.ok_or(FsError::NotFound)?;
            rules::take_entry(dir.read().fields())?;
            rules::change(root.read().fields())?;
            if only_if_empty && !dir::is_empty(&root.read())? {
                return Err(FsError::NotEmpty);
            }
            let item = subvol.root_item().ok_or(FsError::NotFound)?;
            let entry = {
                let mut guard = dir.write();
                dir::learn_next_index(&mut guard)?;
                let index = dir::index_of(&guard, (&place.name, Target::Subvol(id)), Some(place.sequence))?;
                (dir::Place::of(&guard, &place.name)?, index)
            };
            s.orphan_tree(id)?;
            self.core().poison_on_error(|| self.leave(s, &dir, (&place.name, entry), id, &item))?;
            subvol.set_deleted();
            self.core().subvols.lock().remove(id);
            Ok(())
        })?;
        // What its files have buffered is dropped: each finds that it is stale.
        self.core().flush_all(Some(id))
    }

    /// Removes a subvolume's entry, references and UUID items.
    fn leave(
        &self,
        s: &Staged<'_>,
        dir: &InodeRef,
        (name, (place, index)): (&[u8], (dir::Place, Option<u64>)),
        id: TreeId,
        item: &RootItem,
    ) -> Result<(), FsError> {
        let mut guard = dir.write();
        let place = place.confirmed_by(&guard, name)?;
        // Damage may have taken either.
        let is_found = place.target() == Some(Target::Subvol(id));
        if is_found {
            dir::remove_at(&mut guard, s, place, name)?;
        }
        if let Some(index) = index {
            guard.delete(s, ItemType::DIR_INDEX, index);
        }
        if !is_found || index.is_none() {
            dir::recount(&mut guard, s);
        }
        stamp(&mut guard, s, self.core().now());
        drop(guard);
        self.remove_root_ref(s, dir.tree(), id)?;
        self.uuid_remove(s, ItemType::UUID_SUBVOL, Uuid::from_bytes(item.uuid), id)?;
        self.uuid_remove(s, ItemType::UUID_RECEIVED_SUBVOL, Uuid::from_bytes(item.received_uuid), id)
    }
}
