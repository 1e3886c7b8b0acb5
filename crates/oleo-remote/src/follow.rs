//! A reader that goes on: a device for each moment of a volume that it finds, the newest at the time of asking.
//!
//! Normal path: (1) [`Follower::open`] opens the newest head; (2) [`Follower::newer`] asks for the head unless it is still that one,
//! and opens what it finds beside the one before. Each device shows its one moment for as long as it is open, and has a keeper
//! and, after a time, a lease of its own; so what is open stays whole, whatever the writer and the collector do, and several
//! moments may be open together.
//!
//! What moments share: frames, pages and directories that were read. Their names are never used twice, so what is kept is right
//! for all of them; pages and directories are compared with the checksum in their reference again. Frames of a head's tail are
//! not shared: a reader has them at places of its own. After another writer has opened the volume, frames are kept anew: whoever
//! puts a store back to an older state begins an epoch again.
//!
//! A head that is older than the one before is an error, and so is another volume; the moment that is open stays good. After an
//! error asking again is fine.
//!
//! Locks: none; it is asked by one thread.

use std::sync::Arc;

use crate::attach::{LEASE_TRIES, STALE_TRIES, attach_moment, newest};
use crate::cache::Cache;
use crate::device::RemoteDevice;
use crate::error::{RemoteError, StoreError};
use crate::format::head::{HEAD_LEN_MAX, Head};
use crate::format::pins::Pin;
use crate::host::Mistake;
use crate::options::StoreOptions;
use crate::pin::{Lease, take_lease};
use crate::shared::Core;
use crate::store::{Answer, Deadline, Op, Retry, Store, Version};
use crate::swap::{Found, HEAD, find};

/// Memory of pages and directories that moments share, bytes: those of 64 segments and of some hundred regions.
const PAGES_BYTES_MAX: u64 = 32 << 20;

/// See the module's text.
pub struct Follower {
    store: Arc<dyn Store>,
    options: StoreOptions,
    /// The newest moment that was found.
    last: Arc<Core>,
    pages: Arc<Cache>,
}

impl Follower {
    /// Opens the newest moment, and the way to later ones.
    ///
    /// # Errors
    /// As those of [`RemoteDevice::open`].
    pub fn open(store: Arc<dyn Store>, options: &StoreOptions) -> Result<(Follower, RemoteDevice), RemoteError> {
        let store: Arc<dyn Store> = Arc::new(Retry::new(store, options.host.clone()));
        let pages = Arc::new(Cache::new(PAGES_BYTES_MAX));
        let deadline = options.host.now() + options.bounds.attach_max;
        let open = || {
            let (head, version, lease) = newest(&store, options, deadline)?;
            let first = |core: &mut Core| own(core, options, &pages);
            attach_moment(&store, (head, version), lease, options, first, deadline)
        };
        let mut opened = open();
        for _ in 1..STALE_TRIES {
            if !matches!(opened, Err(RemoteError::Stale { .. } | RemoteError::Older { .. })) {
                break;
            }
            opened = open();
        }
        let device = RemoteDevice::of(opened?)?;
        let last = device.core.clone();
        Ok((Follower { store, options: options.clone(), last, pages }, device))
    }

    /// The device of the newest moment; none: it is the one that was found last. Takes one request if nothing is new.
    ///
    /// # Errors
    /// The store fails, has an older state than before, or another volume; what is new is damaged.
    pub fn newer(&mut self) -> Result<Option<RemoteDevice>, RemoteError> {
        let deadline = self.last.deadline(self.options.bounds.attach_max);
        let mut tries = STALE_TRIES;
        loop {
            tries -= 1;
            let Some((head, version, lease)) = self.newest(deadline)? else { return Ok(None) };
            let beside = |core: &mut Core| self.share(core);
            match attach_moment(&self.store, (head, version), lease, &self.options, beside, deadline) {
                // What that head needs is gone, so there is a newer one; or whoever writes here has noted a newer one meanwhile.
                Err(RemoteError::Stale { .. } | RemoteError::Older { .. }) if tries > 0 => {}
                Err(e) => return Err(e),
                Ok(core) => {
                    let device = RemoteDevice::of(core)?;
                    self.last = device.core.clone();
                    return Ok(Some(device));
                }
            }
        }
    }

    /// Takes over what moments share.
    fn share(&self, core: &mut Core) {
        let before = &self.last;
        core.counts = before.counts.clone();
        core.away = before.away.clone();
        core.disk = before.disk.clone();
        let then = before.published.lock().head.origins.clone();
        let is_same = core.published.lock().head.origins == then;
        if is_same {
            core.origins = before.origins.clone();
            if core.epoch == before.epoch {
                core.cache = before.cache.clone();
            }
        }
        own(core, &self.options, &self.pages);
    }

    /// The newest head, if it is another one, with a lease of it if that is wanted.
    fn newest(&self, deadline: Deadline) -> Result<Option<(Head, Version, Option<Pin>)>, RemoteError> {
        let mut found = self.changed(deadline)?;
        for _ in 0..LEASE_TRIES {
            let Some((head, version)) = found else { return Ok(None) };
            if !self.options.lease {
                return Ok(Some((head, version, None)));
            }
            match take_lease(&self.store, &head, &self.options, deadline) {
                Ok(Lease::Taken(lease)) => return Ok(Some((head, version, Some(lease)))),
                Ok(Lease::Late) => found = self.changed(deadline)?,
                Ok(Lease::NoTime) | Err(_) => return Ok(Some((head, version, None))),
            }
        }
        Ok(found.map(|(head, version)| (head, version, None)))
    }

    /// The head, if it is not the one that was found last.
    fn changed(&self, deadline: Deadline) -> Result<Option<(Head, Version)>, RemoteError> {
        let (last, known) = {
            let published = self.last.published.lock();
            (published.head.clone(), published.version.clone())
        };
        let op = Op::Get { key: HEAD.into(), range: None, len_max: HEAD_LEN_MAX as u64, if_changed: known };
        let replaced = |what| RemoteError::Replaced { prefix: self.store.describe(), what };
        let found = match self.store.submit(op, deadline).wait() {
            Ok(Answer::NotChanged) => return Ok(None),
            Ok(Answer::Object { body, version: Some(version) }) => match Head::open(&body, last.key.as_ref()) {
                Ok(head) => Found::Head(Box::new(head), version),
                // Wrong bytes, perhaps of the way here alone.
                Err(_) => find(&*self.store, HEAD, last.key.as_ref(), deadline)?,
            },
            Ok(_) | Err(StoreError::Wrong(_)) => find(&*self.store, HEAD, last.key.as_ref(), deadline)?,
            Err(StoreError::Absent) => Found::Nothing,
            Err(e) => return Err(RemoteError::store("get", HEAD, e)),
        };
        let (head, version) = match found {
            Found::Head(head, version) => (head, version),
            Found::Closed(outline, ..) if outline.uuid == last.uuid => {
                return Err(RemoteError::Key { what: "the volume is encrypted with another key than before" });
            }
            Found::Closed(..) => return Err(replaced("made anew")),
            Found::Damaged(e, _) => return Err(e.into()),
            Found::Nothing => return Err(replaced("deleted")),
        };
        if head.uuid != last.uuid || head.key.is_some() != last.key.is_some() {
            return Err(replaced("made anew"));
        }
        let (seen, found) = ((last.epoch, last.sequence), (head.epoch, head.sequence));
        match found.cmp(&seen) {
            std::cmp::Ordering::Less => Err(RemoteError::Older { seen, found }),
            std::cmp::Ordering::Equal => Ok(None),
            std::cmp::Ordering::Greater => Ok(Some((*head, version))),
        }
    }
}

/// What each moment has of its own, and the pages of all.
fn own(core: &mut Core, options: &StoreOptions, pages: &Arc<Cache>) {
    core.pages = Some(pages.clone());
    core.unpacked = match options.host.makes(Mistake::SharesTails) {
        true => core.cache.clone(),
        false => Arc::new(Cache::new(options.bounds.cache_bytes_max)),
    };
}
