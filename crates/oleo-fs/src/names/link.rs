//! Operations on names: link, unlink, rmdir, and what all of them share (`create` and `rename` have the others).
//!
//! Normal path: (1) read the entries, without locks held across calls; (2) join the transaction; (3) lock all inodes
//! concerned together; (4) read again, and start over if an entry has changed; (5) make all checks that can refuse;
//! (6) change.
//!
//! Invariants: after (5) only reading from a broken disk can fail. If that happens in the middle of (6), the open
//! transaction is poisoned, and the file system refuses to commit it ([`Core::poison`](crate::object::Core::poison)).
//! Crash: an operation is in one transaction, so either all of it is on disk or nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use oleo_format::ItemType;
use oleo_txn::{Need, TxnError};

use crate::FsError;
use crate::attributes::{FileKind, rules};
use crate::data::Flushing;
use crate::fs::Fs;
use crate::items::dir::{self, Target};
use crate::items::refs;
use crate::names::RETRIES_MAX;
use crate::names::orphan::{self, Remains};
use crate::object::{Inode, InodeRef, Items, ItemsMut, Joined, LockedSet, WriteGuard, lock_all};
use crate::options::Time;

/// Names that a file may have (`BTRFS_LINK_MAX`).
const LINKS_MAX: u32 = 65535;

/// Items that adding or removing one name changes: two of the directory's entry, the name in the inode, both inodes.
pub(crate) const NAME_ITEMS: u32 = 5;
/// Their bytes when they are new, item heads included, without the name, which is in three of them.
pub(crate) const NAME_BYTES: u32 = 440;

/// What adding one name may need.
pub(crate) fn name_need(name: &[u8], more_bytes: u32) -> Need {
    Need { items: NAME_ITEMS, bytes: NAME_BYTES + 3 * name.len() as u32 + more_bytes, ..Need::default() }
}

/// One change of a directory's entries: its times, its count of changes.
pub(crate) fn stamp(dir: &mut WriteGuard<'_>, h: &dyn Joined, now: Time) {
    let fields = dir.fields_mut(h);
    fields.mtime = now;
    fields.ctime = now;
    fields.sequence += 1;
}

/// Fails unless the inode is a directory that entries can be added to or removed from.
pub(crate) fn check_dir(dir: &WriteGuard<'_>) -> Result<(), FsError> {
    dir.alive()?;
    if dir.fields().kind() != FileKind::Dir {
        return Err(FsError::NotDir);
    }
    if dir.fields().nlink == 0 { Err(FsError::NotFound) } else { Ok(()) }
}

impl Fs {
    /// Gives a file one more name; one that was made without any ([`tmpfile`](Fs::tmpfile)) its first. Like all changes of names it
    /// is durable when it returns, if the directory's flags say so ([`InodeFlags::DIRSYNC`](oleo_format::InodeFlags), SYNC).
    pub fn link(&self, file: &InodeRef, dir: &InodeRef, name: &[u8]) -> Result<(), FsError> {
        let flags = self.add_name(file, dir, name)?;
        self.keep_names_by(flags, dir)
    }

    /// Returns the directory's flags.
    fn add_name(&self, file: &InodeRef, dir: &InodeRef, name: &[u8]) -> Result<u64, FsError> {
        dir::check_name(name)?;
        self.changeable(dir)?;
        if file.tree() != dir.tree() {
            return Err(FsError::CrossSubvolume);
        }
        let core = self.core();
        core.throttle_dirty_inodes()?;
        let _watch = core.log.stats.watch();
        let need = name_need(name, 0);
        // An orphan item more, if it is the first name.
        let h = self.core().join_in(dir.tree(), Need { items: need.items + 1, ..need })?;
        let mut locked = lock_all(&[dir, file]);
        let fields = *locked.of(file).fields();
        if fields.kind() == FileKind::Dir {
            return Err(FsError::NotPermitted("a directory has one name only"));
        }
        check_dir(locked.of(dir))?;
        locked.of(file).alive()?;
        let first = fields.nlink == 0;
        if first && !file.may_be_linked.load(Ordering::SeqCst) {
            return Err(FsError::NotFound);
        }
        if fields.nlink >= LINKS_MAX {
            return Err(FsError::TooManyLinks);
        }
        let place = dir::Place::of(locked.of(dir), name)?;
        if place.entry.is_some() {
            return Err(FsError::Exists);
        }
        rules::add_entry(locked.of(dir).fields())?;
        rules::change(&fields)?;
        refs::check_room(locked.of(file), dir.ino(), name)?;
        place.check_room(locked.of(dir), name, None)?;
        dir::learn_next_index(locked.of(dir))?;
        let now = core.now();
        core.poison_on_error(|| {
            let index = dir::add_at(locked.of(dir), &h, place, name, Target::Inode(file.ino()), fields.kind())?;
            refs::add(locked.of(file), &h, dir.ino(), name, index)
        })?;
        if first {
            file.unlinked.store(false, Ordering::SeqCst);
            file.may_be_linked.store(false, Ordering::SeqCst);
        }
        stamp(locked.of(dir), &h, now);
        let fields = locked.of(file).fields_mut(&h);
        fields.nlink += 1;
        fields.ctime = now;
        fields.sequence += 1;
        Ok(locked.of(dir).fields().flags)
    }

    /// Removes a name of anything but a directory. The file goes with its last name, or with the last handle to it.
    pub fn unlink(&self, dir: &InodeRef, name: &[u8]) -> Result<(), FsError> {
        self.remove_name(dir, name, false)?;
        self.keep_names(dir)
    }

    /// Removes an empty directory. An empty subvolume is deleted.
    pub fn rmdir(&self, dir: &InodeRef, name: &[u8]) -> Result<(), FsError> {
        self.remove_name(dir, name, true)?;
        self.keep_names(dir)
    }

    pub(crate) fn remove_name(&self, dir: &InodeRef, name: &[u8], directory: bool) -> Result<(), FsError> {
        dir::check_name(name)?;
        self.changeable(dir)?;
        self.core().throttle_dirty_inodes()?;
        let mut has_made_room = false;
        for _ in 0..RETRIES_MAX {
            let (place, target, kind) = self.place(dir, name)?;
            if directory && kind != FileKind::Dir {
                return Err(FsError::NotDir);
            }
            if !directory && kind == FileKind::Dir {
                return Err(FsError::IsDir);
            }
            let ino = match target {
                Target::Inode(ino) => ino,
                Target::Subvol(id) => return self.remove_subvol_entry(dir, name, id),
            };
            // One that is being erased had other names, and not this one.
            let child = self.core().inode(dir.subvol(), ino)?.filter(|child| !child.read().state().gone);
            let Some(child) = child else {
                if self.remove_bare_entry(dir, name, target)? {
                    return Ok(());
                }
                continue;
            };
            let removed = match self.remove_inode_name(dir, name, (place, target), &child) {
                Err(FsError::NoSpace) if !std::mem::replace(&mut has_made_room, true) => {
                    // Buffered data was promised space that this operation might take.
                    self.core().make_room(Flushing::None)?;
                    continue;
                }
                removed => removed?,
            };
            if let Some(evict) = removed {
                if evict {
                    self.core().queue_eviction(child);
                    self.erase_some();
                }
                self.keep_up();
                return Ok(());
            }
        }
        Err(FsError::Busy("the directory keeps changing"))
    }

    /// `None`: the entry has changed, start over. Otherwise whether the inode must be evicted.
    fn remove_inode_name(
        &self,
        dir: &InodeRef,
        name: &[u8],
        (place, target): (dir::Place, Target),
        child: &Arc<Inode>,
    ) -> Result<Option<bool>, FsError> {
        let core = self.core();
        let remains = orphan::remains_to_erase(child)?;
        let subvol = dir.subvol();
        let need = |erase: Need| Need { items: NAME_ITEMS + erase.items, ..erase };
        let least = orphan::erase_need(0);
        let (h, remains) = match core.join_with_claim(subvol, need(remains.as_ref().map_or(least, Remains::need))) {
            // Then it goes later, in shorter steps.
            Err(TxnError::NoSpace { .. }) => (core.join_to_release(subvol, need(least))?, None),
            h => (h?, remains),
        };
        let mut locked = lock_all(&[dir, child]);
        check_dir(locked.of(dir))?;
        let place = place.confirmed_by(locked.of(dir), name)?;
        if place.target() != Some(target) || locked.of(child).state().gone {
            return Ok(None);
        }
        let remains = remains.map(|remains| remains.confirmed_by(locked.of(child)));
        rules::take_entry(locked.of(dir).fields())?;
        rules::change(locked.of(child).fields())?;
        let leaving = Leaving::find(&mut locked, dir, (name, target), Some(child), None)?;
        leaving.check_empty(locked.of(child))?;
        let now = core.now();
        let evict = core.poison_on_error(|| {
            dir::remove_at(locked.of(dir), &h, place, name)?;
            let others = leaving.others;
            leaving.remove(&mut locked, &h, dir, Some(child));
            stamp(locked.of(dir), &h, now);
            drop_name(locked.of(child), &h, (remains.as_ref(), others), now)
        })?;
        Ok(Some(evict))
    }

    /// An entry, which must exist.
    pub(crate) fn entry(&self, dir: &InodeRef, name: &[u8]) -> Result<(Target, FileKind), FsError> {
        self.place(dir, name).map(|(_, target, kind)| (target, kind))
    }

    /// The same, and where it is.
    pub(crate) fn place(&self, dir: &InodeRef, name: &[u8]) -> Result<(dir::Place, Target, FileKind), FsError> {
        let place = self.place_of(dir, name)?;
        let (target, kind) = place.entry.ok_or(FsError::NotFound)?;
        Ok((place, target, kind))
    }

    /// Where an entry is or would be.
    pub(crate) fn place_of(&self, dir: &InodeRef, name: &[u8]) -> Result<dir::Place, FsError> {
        let guard = dir.read();
        guard.alive()?;
        if guard.fields().kind() != FileKind::Dir {
            return Err(FsError::NotDir);
        }
        dir::Place::seen(&guard, name)
    }

    /// An entry's inode was not found: damage, unless the entry is gone as well.
    pub(crate) fn check_dangling(&self, dir: &InodeRef, name: &[u8], target: Target) -> Result<(), FsError> {
        let Target::Inode(ino) = target else { return Ok(()) };
        // An inode goes after its entries.
        let is_gone = self.core().inode(dir.subvol(), ino)?.is_none_or(|inode| inode.read().state().gone);
        if is_gone && dir::find(&dir.read(), name)?.map(|e| e.0) == Some(target) {
            return Err(FsError::corrupt("directory", dir.ino(), "entry's inode", "missing", ino));
        }
        Ok(())
    }
}

/// One name less; the inode is known to have `others`. True when the inode must be evicted.
pub(crate) fn drop_name(
    inode: &mut WriteGuard<'_>,
    h: &dyn Joined,
    (remains, others): (Option<&Remains>, u32),
    now: Time,
) -> Result<bool, FsError> {
    let fields = inode.fields_mut(h);
    fields.nlink = fields.nlink.saturating_sub(1).max(others);
    fields.ctime = now;
    fields.sequence += 1;
    if fields.nlink == 0 { orphan::last_name_gone(inode, h, remains) } else { Ok(false) }
}

/// Refuses to leave a directory that has entries without a name: one that knows the name which goes (`is_own`), or has no `others`. The
/// entry's type is not asked: damage may have changed it.
pub(crate) fn check_empty(child: &WriteGuard<'_>, is_own: bool, others: u32) -> Result<(), FsError> {
    let is_last = is_own || others == 0;
    match is_last && child.fields().kind() == FileKind::Dir && !dir::is_empty(child)? {
        true => Err(FsError::NotEmpty),
        false => Ok(()),
    }
}

/// Items of an entry that is about to go, found before the first of them goes: if one cannot be read, the operation is refused and nothing has
/// changed.
pub(crate) struct Leaving {
    /// The name in the inode.
    own: Option<refs::Found>,
    /// The place of the DIR_INDEX.
    index: Option<u64>,
    /// One of them is missing or has another name, or the inode names another place. A log cannot tell that such an entry went.
    is_half: bool,
    /// The directory's size may not have counted the DIR_INDEX, or another length of its name.
    recounts: bool,
    /// Names that the inode has beside this one, if its count of names may be wrong.
    pub(crate) others: u32,
}

impl Leaving {
    /// Finds them. `child`: the inode that the entry leads to, unless it is of another subvolume; `known`: the place of the
    /// DIR_INDEX by the reference to that one.
    pub(crate) fn find(
        locked: &mut LockedSet<'_>,
        dir: &Arc<Inode>,
        (name, target): (&[u8], Target),
        child: Option<&Arc<Inode>>,
        known: Option<u64>,
    ) -> Result<Leaving, FsError> {
        let mut own = match child {
            Some(child) => refs::find(locked.of(child), dir.ino(), name)?,
            None => None,
        };
        let known = own.as_ref().map(|own| own.index).or(known);
        let mut index = dir::index_of(locked.of(dir), (name, target), known)?;
        let recounts = index.is_none();
        if let Some(known) = known.filter(|_| recounts)
            && dir::is_misspelled(locked.of(dir), target, known)?
        {
            index = Some(known);
        }
        let is_half = recounts || child.is_some() && own.as_ref().map(|own| own.index) != index;
        if let (Some(child), Some(index)) = (child, index.filter(|_| own.is_none()))
            && let Some(misspelled) = refs::name_at(locked.of(child), dir.ino(), index)?
            && dir::find(locked.of(dir), &misspelled)?.is_none_or(|found| found.0 != target)
        {
            own = refs::find(locked.of(child), dir.ino(), &misspelled)?;
        }
        // An index that was freed is not given out again in the same transaction: a log refers to entries that went and came by their indices.
        dir::learn_next_index(locked.of(dir))?;
        let mut others = 0;
        if let Some(child) = child {
            let child = locked.of(child);
            let has_others = |own: &refs::Found| Ok::<_, FsError>(own.has_others() || refs::has_elsewhere(child)?);
            if is_half || child.fields().nlink <= 1 && own.as_ref().map(has_others).transpose()?.unwrap_or(false) {
                others = refs::all(child)?.len().saturating_sub(usize::from(own.is_some())) as u32;
            }
        }
        Ok(Leaving { own, index, is_half, recounts, others })
    }

    /// See [`check_empty`].
    pub(crate) fn check_empty(&self, child: &WriteGuard<'_>) -> Result<(), FsError> {
        check_empty(child, self.own.is_some(), self.others)
    }

    /// Removes them. The DIR_ITEM has been removed.
    pub(crate) fn remove(
        self,
        locked: &mut LockedSet<'_>,
        h: &dyn Joined,
        dir: &Arc<Inode>,
        child: Option<&Arc<Inode>>,
    ) {
        if let (Some(own), Some(child)) = (self.own, child) {
            own.remove(locked.of(child), h);
        }
        if let Some(index) = self.index {
            locked.of(dir).delete(h, ItemType::DIR_INDEX, index);
        }
        if self.recounts {
            dir::recount(locked.of(dir), h);
        }
        if self.is_half {
            dir.core().engine().disable_log(h.generation());
        }
    }
}
