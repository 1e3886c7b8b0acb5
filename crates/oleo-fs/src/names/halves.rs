//! Removing half entries, which damage leaves.
//!
//! An entry is a DIR_ITEM, a DIR_INDEX, the name in the inode, and the inode. `unlink`, `rmdir` and `rename` find what there is of the second
//! and third ([`Leaving`](super::link::Leaving)). This module removes entries without an inode and those without a DIR_ITEM.
//!
//! Crash: a log cannot tell that such an entry went, so the next `fsync` is a commit.

use std::sync::Arc;

use oleo_format::ItemType;
use oleo_txn::Need;

use crate::FsError;
use crate::attributes::{FileKind, rules};
use crate::fs::Fs;
use crate::items::dir::{self, DirEntryInfo, Target};
use crate::items::refs;
use crate::names::RETRIES_MAX;
use crate::names::link::{NAME_BYTES, NAME_ITEMS, check_dir, check_empty, drop_name, stamp};
use crate::object::{Inode, InodeRef, Items, ItemsMut, lock_all};

impl Fs {
    /// Removes an entry that has nothing but itself: it leads to an inode that is missing, or to a subvolume that is elsewhere. False if it has
    /// changed meanwhile.
    pub(crate) fn remove_bare_entry(&self, dir: &InodeRef, name: &[u8], target: Target) -> Result<bool, FsError> {
        let h = self.core().join_to_release(dir.subvol(), Need { items: 4, bytes: 1024, ..Need::default() })?;
        let mut guard = dir.write();
        check_dir(&guard)?;
        let place = dir::Place::of(&guard, name)?;
        if place.target() != Some(target) {
            return Ok(false);
        }
        rules::take_entry(guard.fields())?;
        let index = dir::index_of(&guard, (name, target), None)?;
        dir::learn_next_index(&mut guard)?;
        self.core().poison_on_error(|| dir::remove_at(&mut guard, &h, place, name))?;
        match index {
            Some(index) => guard.delete(&h, ItemType::DIR_INDEX, index),
            None => dir::recount(&mut guard, &h),
        }
        stamp(&mut guard, &h, self.core().now());
        if matches!(target, Target::Inode(_)) || index.is_none() {
            self.engine().disable_log(h.generation());
        }
        Ok(true)
    }

    /// Removes a name as [`unlink`](Fs::unlink) or, for a `directory`, [`rmdir`](Fs::rmdir) does, and also one that the directory lists but does
    /// not find. A caller that often removes what is not there calls those instead: this one goes through the whole directory then.
    ///
    /// # Errors
    /// Those of `unlink` or `rmdir`.
    pub fn remove_entry(&self, dir: &InodeRef, name: &[u8], directory: bool) -> Result<(), FsError> {
        match if directory { self.rmdir(dir, name) } else { self.unlink(dir, name) } {
            Err(FsError::NotFound) => {
                self.remove_listed(dir, name, directory)?;
                self.keep_names(dir)
            }
            removed => removed,
        }
    }

    /// An entry that a directory finds but does not list, if there is one: its DIR_INDEX is missing. Asked of a directory whose list is empty.
    pub fn unlisted(&self, dir: &InodeRef) -> Result<Option<DirEntryInfo>, FsError> {
        let guard = dir.read();
        guard.alive()?;
        dir::first_found(&guard)
    }

    /// The first entry of a name in a directory's list, by going through it.
    pub fn listed(&self, dir: &InodeRef, name: &[u8]) -> Result<Option<DirEntryInfo>, FsError> {
        let guard = dir.read();
        guard.alive()?;
        dir::first_index(&guard, name)
    }

    /// Removes a name that a directory lists but does not find: its DIR_ITEM is missing. It goes through the whole directory. If the inode
    /// knows the name at that place, it has one less.
    fn remove_listed(&self, dir: &InodeRef, name: &[u8], directory: bool) -> Result<(), FsError> {
        dir::check_name(name)?;
        self.changeable(dir)?;
        for _ in 0..RETRIES_MAX {
            let listed = self.listed(dir, name)?.ok_or(FsError::NotFound)?;
            match (directory, listed.kind == FileKind::Dir) {
                (true, false) => return Err(FsError::NotDir),
                (false, true) => return Err(FsError::IsDir),
                _ => {}
            }
            let child = match listed.target {
                Target::Inode(ino) => self.core().inode(dir.subvol(), ino)?,
                Target::Subvol(id) if self.is_subvol_here(dir, name, id)? => return self.remove_subvol(id),
                Target::Subvol(_) => None,
            };
            if let Some(name) = child.as_ref().map(|child| found_name(dir, &listed, child)).transpose()?.flatten() {
                return self.remove_name(dir, &name, directory);
            }
            if let Some(evict) = self.remove_listed_once(dir, &listed, child.as_ref())? {
                if let Some(child) = child.filter(|_| evict) {
                    self.core().queue_eviction(child);
                    self.erase_some();
                }
                return Ok(());
            }
        }
        Err(FsError::Busy("the directory keeps changing"))
    }

    /// `None`: the directory has changed, start over. Otherwise whether the inode must be evicted.
    fn remove_listed_once(
        &self,
        dir: &InodeRef,
        listed: &DirEntryInfo,
        child: Option<&Arc<Inode>>,
    ) -> Result<Option<bool>, FsError> {
        // An orphan item more, if it was the last name.
        let bytes = NAME_BYTES + 3 * listed.name.len() as u32;
        let need = Need { items: NAME_ITEMS + 1, bytes, ..Need::default() };
        let h = self.core().join_to_release(dir.subvol(), need)?;
        let mut inodes: smallvec::SmallVec<[&Arc<Inode>; 2]> = smallvec::smallvec![&**dir];
        inodes.extend(child);
        let mut locked = lock_all(&inodes);
        check_dir(locked.of(dir))?;
        if dir::find(locked.of(dir), &listed.name)?.is_some() {
            // It has been made meanwhile, or whatever was not found is not the name.
            return Err(FsError::NotFound);
        }
        if dir::entry_at(locked.of(dir), listed.index)?.as_ref() != Some(listed) {
            return Ok(None);
        }
        rules::take_entry(locked.of(dir).fields())?;
        let (mut own, mut others) = (None, 0);
        if let Some(child) = child {
            own = refs::find(locked.of(child), dir.ino(), &listed.name)?;
            // Unless it is that of another entry of the name.
            if let Some(index) = own.as_ref().map(|own| own.index).filter(|index| *index != listed.index) {
                let other = dir::entry_at(locked.of(dir), index)?;
                own = own.filter(|_| !other.is_some_and(|o| o.name == listed.name && o.target == listed.target));
            }
            others = refs::all(locked.of(child))?.len().saturating_sub(usize::from(own.is_some())) as u32;
            rules::change(locked.of(child).fields())?;
            check_empty(locked.of(child), own.is_some(), others)?;
        }
        dir::learn_next_index(locked.of(dir))?;
        let now = self.core().now();
        let parent = locked.of(dir);
        parent.delete(&h, ItemType::DIR_INDEX, listed.index);
        dir::recount(parent, &h);
        stamp(parent, &h, now);
        self.engine().disable_log(h.generation());
        let (Some(child), Some(own)) = (child, own) else { return Ok(Some(false)) };
        own.remove(locked.of(child), &h);
        self.core().poison_on_error(|| drop_name(locked.of(child), &h, (None, others), now)).map(Some)
    }
}

/// The name in the DIR_ITEM of an entry whose DIR_INDEX has another one.
fn found_name(dir: &InodeRef, listed: &DirEntryInfo, child: &Arc<Inode>) -> Result<Option<Vec<u8>>, FsError> {
    let Some(name) = refs::name_at(&child.read(), dir.ino(), listed.index)? else { return Ok(None) };
    let found = dir::find(&dir.read(), &name)?.map(|found| found.0);
    Ok((found == Some(listed.target)).then_some(name))
}
