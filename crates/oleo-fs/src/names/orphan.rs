//! The end of an inode: from its last name to its last item.
//!
//! Normal path: (1) the operation that removes the last name tries to erase the inode in the same transaction; (2)
//! if somebody holds a handle, or the file has more extents than one operation may touch, it leaves the inode without a name;
//! (3) when the last handle is closed, the inode is queued for eviction; (4) [`Core::evict_one`] erases it in steps, each its own
//! operation.
//!
//! A commit that comes in between writes an ORPHAN_ITEM for each inode that has no name then (`object::commit`), so that it is found when
//! the volume is opened after a crash, and removes it when the inode is erased or named. No operation touches these items.
//!
//! Orphans of a crash: [`Core::clean_orphans`] goes through a subvolume's ORPHAN_ITEMs once. Those without an inode belong to the
//! object −5, which is locked as a leaf.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use oleo_format::{Ino, ItemType};
use oleo_txn::Need;

use crate::object::{Core, Inode, Items, ItemsMut, Joined, ORPHAN_OBJECT, Subvol, WriteGuard};
use crate::{FileKind, FsError};

/// Extents that one step of erasing removes: small enough for one reservation.
const EXTENTS_PER_STEP: usize = 128;
/// Orphan items read at a time.
const ORPHANS_PER_READ: usize = 256;

/// Items of an inode other than extents, as a rule: its own, its name, attributes.
const ITEMS_BESIDE: u32 = 4;

/// What erasing an inode in one step may need.
pub(crate) fn erase_need(extents: u32) -> Need {
    Need { items: ITEMS_BESIDE + extents, bytes: 128, releasing: true }
}

/// How many extents erasing an inode with its next to last name would have to remove; 0 if it is not to be erased
/// immediately.
pub(crate) fn extents_to_erase(inode: &Inode) -> Result<u32, FsError> {
    let guard = inode.read();
    if guard.fields().nlink > 1 || inode.handles() > 0 {
        return Ok(0);
    }
    drop(guard);
    let extents = extents_left(inode)?;
    Ok(if extents > EXTENTS_PER_STEP { 0 } else { extents as u32 })
}

/// Removes what is left of an inode without names, unless it has more than that many extents; whether it did.
pub(crate) fn erase(inode: &mut WriteGuard<'_>, h: &dyn Joined, extents_max: u32) -> Result<bool, FsError> {
    let Some(slots) = inode.slots(extents_max as usize)? else { return Ok(false) };
    for (t, offset) in slots {
        let known = [
            ItemType::EXTENT_DATA,
            ItemType::INODE_REF,
            ItemType::INODE_EXTREF,
            ItemType::XATTR_ITEM,
            ItemType::VERITY_DESC_ITEM,
            ItemType::VERITY_MERKLE_ITEM,
        ];
        if known.contains(&t) {
            inode.delete(h, t, offset);
        }
    }
    inode.delete_item(h);
    Ok(true)
}

/// The last name of an inode is gone: erases it if it has no more than `extents_max` extents, or leaves it to be
/// erased. True when it must be queued by [`Core::queue_eviction`] once all locks are dropped.
pub(crate) fn last_name_gone(inode: &mut WriteGuard<'_>, h: &dyn Joined, extents_max: u32) -> Result<bool, FsError> {
    let this = inode.inode();
    if this.handles() == 0 {
        this.discard();
        if erase(inode, h, extents_max)? {
            return Ok(false);
        }
    }
    this.unlinked.store(true, Ordering::SeqCst);
    // The last handle may have been dropped before its holder could see the mark.
    let evict = this.handles() == 0;
    if !evict {
        this.core().note_nameless();
    }
    Ok(evict)
}

/// How many extents an inode has, up to one more than a step takes.
fn extents_left(inode: &Inode) -> Result<usize, FsError> {
    let guard = inode.read();
    if guard.state().extents_end == Some(0) {
        return Ok(0);
    }
    Ok(guard.range_limit(ItemType::EXTENT_DATA, 0, u64::MAX, EXTENTS_PER_STEP + 1)?.len())
}

impl Core {
    /// One step of erasing the inodes that nobody holds any more; false when there are none.
    pub(crate) fn evict_one(self: &Arc<Self>) -> Result<bool, FsError> {
        let Some(inode) = self.evictable.lock().pop_back() else {
            self.many_evictable.store(false, Ordering::Relaxed);
            return Ok(false);
        };
        if inode.subvol().is_deleted() {
            return Ok(true);
        }
        match self.erase_step(&inode) {
            Ok(true) => {}
            Ok(false) => self.evictable.lock().push_back(inode),
            Err(e) => {
                // Behind all others, which may succeed.
                self.evictable.lock().push_front(inode);
                return Err(e);
            }
        }
        Ok(true)
    }

    /// Erases all inodes that nobody holds any more. If some cannot be erased, all others are, and the first error is returned.
    pub(crate) fn evict_all(self: &Arc<Self>) -> Result<(), FsError> {
        let (mut first, mut failures) = (Ok(()), 0);
        // Each failure is put behind all others: when there are as many as inodes, all that is left has failed.
        while failures <= self.evictable.lock().len() {
            match self.evict_one() {
                Ok(true) => {}
                Ok(false) => break,
                Err(e) => {
                    failures += 1;
                    first = first.and(Err(e));
                }
            }
        }
        first
    }

    /// One step; true when the inode is gone, or in use again.
    fn erase_step(self: &Arc<Self>, inode: &Arc<Inode>) -> Result<bool, FsError> {
        // In use again, or given its first name just before its last handle went.
        let busy = || {
            let guard = inode.read();
            guard.alive().is_err() || inode.handles() > 0 || guard.fields().nlink > 0
        };
        if busy() {
            return Ok(true);
        }
        let mut left = extents_left(inode)?;
        if left > EXTENTS_PER_STEP && inode.read().fields().kind() == FileKind::File {
            if !inode.drop_data_step()? {
                return Ok(busy());
            }
            left = extents_left(inode)?;
        }
        let left = left.min(EXTENTS_PER_STEP) as u32;
        // As a rule that was all, and this is the only step.
        self.throttle_between_steps()?;
        let _flush = inode.lock_flush();
        let h = self.engine().join(erase_need(left))?;
        let mut guard = inode.write();
        if guard.state().gone || inode.handles() > 0 || guard.fields().nlink > 0 {
            return Ok(true);
        }
        inode.discard();
        erase(&mut guard, &h, left)
    }

    /// Erases what a crash left in a subvolume without names; once per opening.
    pub(crate) fn clean_orphans(self: &Arc<Self>, subvol: &Arc<Subvol>) -> Result<(), FsError> {
        if subvol.orphans_seen.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        // After an error the next caller looks again.
        self.clean_all_orphans(subvol).inspect_err(|_| subvol.orphans_seen.store(false, Ordering::Release))
    }

    fn clean_all_orphans(self: &Arc<Self>, subvol: &Arc<Subvol>) -> Result<(), FsError> {
        let object = self.object(subvol.id(), ORPHAN_OBJECT)?;
        let mut from = 0;
        loop {
            let found = object.read().range_limit(ItemType::ORPHAN_ITEM, from, u64::MAX, ORPHANS_PER_READ)?;
            let Some((last, _)) = found.last() else { return Ok(()) };
            from = last + 1;
            for (ino, _) in found {
                self.clean_orphan(subvol, Ino(ino))?;
            }
        }
    }

    fn clean_orphan(self: &Arc<Self>, subvol: &Arc<Subvol>, ino: Ino) -> Result<(), FsError> {
        let inode = self.inode(subvol, ino)?;
        if let Some(inode) = &inode
            && inode.read().fields().nlink == 0
        {
            // It may be held if the orphan is of this session: then it is erased after the last handle.
            while inode.handles() == 0 && !self.erase_step(inode)? {}
            return Ok(());
        }
        let h = self.engine().join(Need { items: 1, bytes: 0, releasing: true })?;
        if let Some(inode) = inode {
            // A truncation that was cut short, which its size shows to be complete.
            let mut guard = inode.write();
            if guard.alive().is_ok() {
                guard.forget_orphan(&h);
            }
            return Ok(());
        }
        let object = self.object(subvol.id(), ORPHAN_OBJECT)?;
        object.write().delete(&h, ItemType::ORPHAN_ITEM, ino.0);
        Ok(())
    }
}
