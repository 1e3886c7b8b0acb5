//! The end of an inode: from its last name to its last item.
//!
//! Normal path: (1) the operation that removes the last name tries to erase the inode in the same transaction; (2)
//! if somebody holds a handle, or the file has more extents than one operation may touch, it leaves the inode without a name;
//! (3) when the last handle is closed, the inode is queued for eviction; (4) [`Core::evict_some`] erases those that are queued, many small
//! ones in one operation ([`Core::erase_together`]), a large one in steps, each its own operation.
//!
//! What an inode consists of is looked for once ([`Remains`]), before the operation joins, which then announces what it really changes. Between
//! the look and the lock nothing may have changed; otherwise it is looked at again, by itself.
//!
//! A commit that comes in between writes an ORPHAN_ITEM for each inode that has no name then (`object::commit`), so that it is found when
//! the volume is opened after a crash, and removes it when the inode is erased or named. No operation touches these items.
//!
//! Orphans of a crash: [`Core::clean_orphans`] goes through a subvolume's ORPHAN_ITEMs once. Those without an inode belong to the
//! object −5, which is locked as a leaf.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use oleo_format::{Ino, ItemType};
use oleo_txn::{Claim, Need};

use crate::object::{
    Core, EVICTABLE_MAX, Inode, InodeState, Items, ItemsMut, Joined, ORPHAN_OBJECT, ReadGuard, Slot, Subvol, WriteGuard,
};
use crate::{FileKind, FsError};

/// Extents that one step of erasing removes: small enough for one reservation.
const EXTENTS_PER_STEP: usize = 128;
/// Orphan items read at a time.
const ORPHANS_PER_READ: usize = 256;

/// Items of an inode other than extents, as a rule: its own, its name, attributes.
const ITEMS_BESIDE: u32 = 4;

/// Inodes that are erased together, at the most.
pub(crate) const BATCH_INODES: usize = 64;
/// Items that go in one operation with those of others, at the most.
const BATCH_ITEMS: u32 = 512;

/// Places at which erasing an inode rewrites blocks: both ends of its items, and its orphan item.
const PLACES: u32 = 3;

/// The need of erasing an inode in one step, except its claim.
pub(crate) fn erase_need(extents: u32) -> Need {
    let items = ITEMS_BESIDE + extents;
    Need { items, row: items - PLACES, bytes: 128, ..Need::default() }
}

/// What an inode consists of, as of a look at it.
pub(crate) struct Remains {
    /// All its items, or `None` if they are to be looked for when they go.
    slots: Option<Vec<Slot>>,
    extents: u32,
    /// The inode's count of changes then.
    changes: u32,
}

impl Remains {
    /// Unknown, and not more than that many extents.
    pub(crate) fn unseen(extents: u32) -> Remains {
        Remains { slots: None, extents, changes: 0 }
    }

    /// Looks; `None` if there are more extents than one step removes.
    fn of(guard: &ReadGuard<'_>) -> Result<Option<Remains>, FsError> {
        let Some(slots) = guard.slots(EXTENTS_PER_STEP)? else { return Ok(None) };
        let extents = slots.iter().filter(|slot| slot.0 == ItemType::EXTENT_DATA).count() as u32;
        Ok(Some(Remains { slots: Some(slots), extents, changes: guard.state().changes }))
    }

    /// The same for a caller that holds the lock now: what has changed since is looked for once more.
    pub(crate) fn confirmed_by(self, inode: &WriteGuard<'_>) -> Remains {
        if self.changes == inode.state().changes { self } else { Remains { slots: None, ..self } }
    }

    /// What erasing the inode needs.
    pub(crate) fn need(&self) -> Need {
        match &self.slots {
            // And the orphan item.
            Some(slots) => {
                let items = slots.len() as u32 + 1;
                Need { items, row: items.saturating_sub(PLACES), ..erase_need(0) }
            }
            None => erase_need(self.extents),
        }
    }
}

/// What erasing an inode with its next to last name would have to remove; `None` if it is not to be erased immediately.
pub(crate) fn remains_to_erase(inode: &Inode) -> Result<Option<Remains>, FsError> {
    let guard = inode.read();
    if guard.fields().nlink > 1 || inode.handles() > 0 {
        return Ok(None);
    }
    if guard.fields().kind() == FileKind::Dir {
        // Most of what it has may be entries, for which it is not removed at all.
        return Ok(Some(Remains { changes: guard.state().changes, ..Remains::unseen(0) }));
    }
    Remains::of(&guard)
}

/// Removes what is left of an inode without names, unless it has more extents than were announced; whether it did.
pub(crate) fn erase(inode: &mut WriteGuard<'_>, h: &dyn Joined, remains: &Remains) -> Result<bool, FsError> {
    match &remains.slots {
        Some(slots) => erase_slots(inode, h, slots),
        None => match inode.slots(remains.extents as usize)? {
            Some(slots) => erase_slots(inode, h, &slots),
            None => return Ok(false),
        },
    }
    Ok(true)
}

fn erase_slots(inode: &mut WriteGuard<'_>, h: &dyn Joined, slots: &[Slot]) {
    const KNOWN: [ItemType; 6] = [
        ItemType::EXTENT_DATA,
        ItemType::INODE_REF,
        ItemType::INODE_EXTREF,
        ItemType::XATTR_ITEM,
        ItemType::VERITY_DESC_ITEM,
        ItemType::VERITY_MERKLE_ITEM,
    ];
    for (t, offset) in slots {
        if KNOWN.contains(t) {
            inode.delete(h, *t, *offset);
        }
    }
    inode.delete_item(h);
}

/// The last name of an inode is gone: erases it, if `remains` says what that is and it is no more, or leaves it to be erased. True when it must be
/// queued by [`Core::queue_eviction`] once all locks are dropped.
pub(crate) fn last_name_gone(
    inode: &mut WriteGuard<'_>,
    h: &dyn Joined,
    remains: Option<&Remains>,
) -> Result<bool, FsError> {
    let this = inode.inode();
    if this.handles() == 0 {
        this.discard();
        if let Some(remains) = remains
            && erase(inode, h, remains)?
        {
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
    if guard.extents_end() == Some(0) {
        return Ok(0);
    }
    Ok(guard.range_limit(ItemType::EXTENT_DATA, 0, u64::MAX, EXTENTS_PER_STEP + 1)?.len())
}

/// What came of some inodes that were to be erased.
pub(crate) struct Evicted {
    /// How many were taken from the queue.
    pub(crate) taken: usize,
    /// How many of these could not be erased, and are behind all others now.
    pub(crate) failed: usize,
    /// The first error.
    pub(crate) result: Result<(), FsError>,
}

/// Whether an inode is in use again, or erased, or was given its first name just before its last handle went.
fn is_busy(inode: &Inode, state: &InodeState) -> bool {
    state.gone || inode.subvol().is_deleted() || inode.handles() > 0 || state.fields.nlink > 0
}

impl Core {
    /// Erases some of the inodes that nobody holds any more, `most` at the most, or does a step of it if they are large. One that cannot be erased
    /// does not keep the others.
    pub(crate) fn evict_some(self: &Arc<Self>, most: usize) -> Evicted {
        let mut batch = self.take_evictable(most).into_iter();
        let mut evicted = Evicted { taken: batch.len(), failed: 0, result: Ok(()) };
        let (mut together, mut items, mut apart) = (Vec::new(), 0, Vec::new());
        while let Some(inode) = batch.next() {
            let looked = {
                let guard = inode.read();
                if is_busy(&inode, guard.state()) {
                    continue;
                }
                Remains::of(&guard)
            };
            match looked {
                Ok(Some(remains)) => {
                    let more = remains.need().items;
                    if items > 0 && items + more > BATCH_ITEMS {
                        // What is not in the queue nobody else erases who is short of space.
                        evicted.taken -= batch.len() + 1;
                        self.evictable.lock().extend(std::iter::once(inode).chain(batch));
                        break;
                    }
                    items += more;
                    together.push((inode, remains));
                }
                Ok(None) => apart.push(inode),
                Err(e) => self.failed_to_erase(inode, e, &mut evicted),
            }
        }
        self.erase_together(together, &mut apart);
        for inode in apart {
            match self.erase_step(&inode) {
                Ok(true) => {}
                Ok(false) => self.evictable.lock().push_back(inode),
                Err(e) => self.failed_to_erase(inode, e, &mut evicted),
            }
        }
        evicted
    }

    fn failed_to_erase(&self, inode: Arc<Inode>, error: FsError, evicted: &mut Evicted) {
        // Behind all others, which may succeed.
        self.evictable.lock().push_front(inode);
        evicted.failed += 1;
        if evicted.result.is_ok() {
            evicted.result = Err(error);
        }
    }

    /// Takes inodes from the queue; in the order of their numbers, so that neighbours are looked at one after the other, and each once.
    fn take_evictable(&self, most: usize) -> Vec<Arc<Inode>> {
        let mut evictable = self.evictable.lock();
        let from = evictable.len() - evictable.len().min(most);
        let mut batch: Vec<_> = evictable.drain(from..).collect();
        self.many_evictable.store(evictable.len() > EVICTABLE_MAX, Ordering::Relaxed);
        drop(evictable);
        batch.sort_by_key(|inode| inode.rank());
        batch.dedup_by(|a, b| Arc::ptr_eq(a, b));
        batch
    }

    /// Erases inodes in one operation. Into `apart` come those that must be looked at by themselves: somebody writes them out, or has changed
    /// them; all of them if they cannot be erased in one operation.
    fn erase_together(self: &Arc<Self>, together: Vec<(Arc<Inode>, Remains)>, apart: &mut Vec<Arc<Inode>>) {
        let mut need = Need { items: 0, row: 0, claim: Claim::Reclaim, ..erase_need(0) };
        let mut mine = Vec::with_capacity(together.len());
        for (inode, remains) in &together {
            match inode.try_lock_flush() {
                Some(flush) => {
                    let this = remains.need();
                    need = Need { items: need.items + this.items, row: need.row + this.row, ..need };
                    if self.claim_of(inode.subvol()) != Claim::Reclaim {
                        need.claim = Claim::Release;
                    }
                    mine.push((inode, remains, flush));
                }
                None => apart.push(inode.clone()),
            }
        }
        if mine.is_empty() {
            return;
        }
        let joined = self.throttle_between_steps().and_then(|()| Ok(self.engine().join(need)?));
        // A snapshot may have been made meanwhile.
        let has_claim = need.claim != Claim::Reclaim
            || mine.iter().all(|(inode, ..)| self.claim_of(inode.subvol()) == Claim::Reclaim);
        let Ok(h) = joined.and_then(|h| has_claim.then_some(h).ok_or(FsError::NoSpace)) else {
            // Each of them meets the error, or gets on, by itself.
            apart.extend(mine.into_iter().map(|(inode, ..)| inode.clone()));
            return;
        };
        for (inode, remains, _flush) in mine {
            let mut guard = inode.write();
            if is_busy(inode, guard.state()) {
                continue;
            }
            match &remains.slots {
                Some(slots) if guard.state().changes == remains.changes => {
                    inode.discard();
                    erase_slots(&mut guard, &h, slots);
                }
                _ => apart.push(inode.clone()),
            }
        }
    }

    /// Erases all inodes that nobody holds any more. If some cannot be erased, all others are, and the first error is returned.
    pub(crate) fn evict_all(self: &Arc<Self>) -> Result<(), FsError> {
        let (mut first, mut failures) = (Ok(()), 0);
        // Each failure is put behind all others: when there are as many as inodes, all that is left has failed.
        while failures <= self.evictable.lock().len() {
            let evicted = self.evict_some(BATCH_INODES);
            if evicted.taken == 0 {
                break;
            }
            failures += evicted.failed;
            first = first.and(evicted.result);
        }
        first
    }

    /// One step; true when the inode is gone, or in use again.
    fn erase_step(self: &Arc<Self>, inode: &Arc<Inode>) -> Result<bool, FsError> {
        let busy = || is_busy(inode, inode.read().state());
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
        let h = self.join_to_release(inode.subvol(), erase_need(left))?;
        let mut guard = inode.write();
        if is_busy(inode, guard.state()) {
            return Ok(true);
        }
        inode.discard();
        erase(&mut guard, &h, &Remains::unseen(left))
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
        let (mut from, mut first) = (0, Ok(()));
        loop {
            let found = object.read().range_limit(ItemType::ORPHAN_ITEM, from, u64::MAX, ORPHANS_PER_READ)?;
            let Some((last, _)) = found.last() else { return first };
            from = last + 1;
            for (ino, _) in found {
                // One that cannot be erased does not keep the others.
                first = first.and(self.clean_orphan(subvol, Ino(ino)));
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
        let h = self.join_to_release(subvol, Need { items: 1, ..Need::default() })?;
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
