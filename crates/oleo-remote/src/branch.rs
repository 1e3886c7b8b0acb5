//! Branches: volumes that begin as a moment of another, and share what they have not changed.
//!
//! Making one: (1) the parent gets an entry of the kind branch, which keeps that moment (`pin`); (2) the parent's head is
//! replayed into a state of the child, in which everything of the parent has the number of an origin; (3) the pages that name
//! objects, those of the index and of the segment table, are written anew below the child's prefix, so this takes as long as
//! there are segments, however much is in them; (4) the child's head is put where none is. A failure before (4) leaves objects
//! below the child's prefix, and takes the entry back.
//!
//! A child names objects of its parent and of the parent's origins, by their places in its head's list of origins, and never
//! deletes one. [`RemoteDevice::detach`] moves everything into objects of its own, and ends the entry.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::checkpoint::checkpoint;
use crate::collect::{Wanted, repack};
use crate::create::unused_epoch;
use crate::device::RemoteDevice;
use crate::error::RemoteError;
use crate::flush::{checkpoint_now, publish};
use crate::format::SegmentRef;
use crate::format::head::{Head, ORIGIN_COUNT_MAX, Origin};
use crate::format::pins::{Pin, PinKind, hex};
use crate::keys::copy as copy_key;
use crate::options::StoreOptions;
use crate::origins::{Source, check_origins, shifted, shifted_ref};
use crate::pin::{find_pin, holds, list, make, withdraw};
use crate::replay::{replay, take_tail};
use crate::seen::note_place;
use crate::shared::Core;
use crate::store::{Deadline, Retry, Store};
use crate::swap::{Found, HEAD, find};

/// How often what is left is looked for before a volume is found to change too fast to be detached.
const DETACH_ROUNDS: usize = 64;

/// The volume that a branch is made of.
pub struct Parent<'a> {
    /// Its store.
    pub store: Arc<dyn Store>,
    /// Its name: the child finds it by that.
    pub url: &'a str,
    /// The pin to begin from; none: the newest head.
    pub pin: Option<&'a str>,
}

/// Makes a volume below the prefix of `child` that begins as a moment of another. `by`: what the parent says of it, such as
/// its name. Returns the entry in the parent's list of pins.
pub fn branch(
    parent: &Parent<'_>,
    child: Arc<dyn Store>,
    by: &str,
    options: &StoreOptions,
) -> Result<Pin, RemoteError> {
    let host = &options.host;
    let deadline = host.now() + options.bounds.attach_max;
    let store: Arc<dyn Store> = Arc::new(Retry::new(parent.store.clone(), host.clone()));
    let child: Arc<dyn Store> = Arc::new(Retry::new(child, host.clone()));
    match find(&*child, HEAD, None, deadline)? {
        Found::Nothing => {}
        Found::Head(..) | Found::Closed(..) | Found::Damaged(..) => {
            return Err(RemoteError::Exists { prefix: child.describe() });
        }
    }
    let epoch = unused_epoch(&*child, deadline)?;
    let uuid = host.random();
    let source = parent.pin.map(|pin| find_pin(&*store, pin, deadline)).transpose()?;
    let name = entry_name(uuid);
    let (entry, head) = make(&store, &name, by, PinKind::Branch, source.as_ref(), options)?;
    let keyed = match head.key {
        Some(_) => copy_key(&*store, head.uuid, &*child, uuid, deadline),
        None => Ok(()),
    };
    let mut sent = false;
    let made = keyed
        .and_then(|()| begin_child(&head, &entry, parent.url, uuid, epoch))
        .and_then(|first| check_origins(&store.describe(), &head, options).map(|()| first))
        .and_then(|first| fill(&child, first, &head, options, &mut sent));
    if let Err(e) = made {
        // Only if there is certainly no child and never will be: a head that was sent may come to be there later, where no other
        // is.
        let none = match find(&*child, HEAD, None, host.now() + options.bounds.attach_max) {
            Ok(Found::Nothing) => !sent,
            Ok(Found::Head(other, _)) => other.uuid != uuid,
            Ok(Found::Closed(other, ..)) => other.uuid != uuid,
            Ok(Found::Damaged(..)) | Err(_) => false,
        };
        if none {
            let _also = withdraw(&*store, &entry, options, host.now() + options.bounds.attach_max);
        }
        return Err(e);
    }
    if head.key.is_some() {
        note_place(&*child, uuid, options)?;
    }
    Ok(entry)
}

/// The name of a child's entry in its parent's list of pins.
fn entry_name(child: [u8; 16]) -> String {
    format!("branch-{}", hex(&child[..6]))
}

/// What the child's first head follows: its parent's, as the child sees it.
fn begin_child(head: &Head, entry: &Pin, url: &str, uuid: [u8; 16], epoch: u32) -> Result<Head, RemoteError> {
    let mut origins = head.origins.clone();
    origins.push(Origin { uuid: head.uuid, pin: entry.name.clone(), prefix: url.into() });
    if origins.len() > ORIGIN_COUNT_MAX || url.len() > usize::from(u16::MAX) {
        return Err(RemoteError::Limit {
            what: format!("branches of branches, {ORIGIN_COUNT_MAX} deep, are the most"),
        });
    }
    let by = origins.len() as u16;
    Ok(Head {
        uuid,
        epoch,
        origins,
        branch: true,
        device_len: head.device_len,
        position: head.position,
        codec: head.codec,
        key: head.key.clone(),
        root: head.root.map(|at| shifted_ref(at, by)),
        segments: head.segments.iter().map(|s| SegmentRef { id: shifted(s.id, by), ..*s }).collect(),
        tail_id: head.tail_id,
        tail: head.tail.clone(),
        ..Head::default()
    })
}

/// Replays the parent's head into a state of the child, and publishes that. `sent`: the child's head has been sent.
fn fill(
    child: &Arc<dyn Store>,
    first: Head,
    parent: &Head,
    options: &StoreOptions,
    sent: &mut bool,
) -> Result<(), RemoteError> {
    let deadline = options.host.now() + options.bounds.attach_max;
    let shift = first.origins.len() as u16;
    // The caller has named the parent, and what that one names was checked.
    let options = &StoreOptions { trust_origins: true, ..options.clone() };
    let mut core = Core::new(child.clone(), first, None, options, true)?;
    core.source = Source { uuid: parent.uuid, shift };
    replay(&core, deadline)?;
    take_tail(&core)?;
    core.state.lock().rewrite_pages();
    let mut published = core.published.lock();
    let done = checkpoint(&core, &mut published, true);
    *sent = core.counts.head_puts.load(Ordering::Relaxed) > 0;
    done
}

impl RemoteDevice {
    /// Copies everything that is in objects of other volumes into own ones, so that it needs them no more, and ends the entry
    /// in the parent's list of pins. Whoever has pinned this volume, or made a branch of it, still needs them: that is refused.
    pub fn detach(&self) -> Result<(), RemoteError> {
        let core = &*self.core;
        core.check_latch()?;
        let deadline = core.deadline(core.options.bounds.attach_max);
        self.must_not_be_kept(u64::MAX, deadline)?;
        let origins = core.published.lock().head.origins.clone();
        let Some(parent) = origins.last() else { return Ok(()) };
        for _ in 0..DETACH_ROUNDS {
            while repack(core, u64::MAX, Wanted::Foreign)? > 0 {
                let position = core.state.lock().position();
                publish(core, position, false)?;
            }
            core.state.lock().rewrite_foreign();
            checkpoint_now(core)?;
            if !core.state.lock().names_foreign() {
                return self.end_origins(parent, deadline);
            }
        }
        Err(RemoteError::Limit { what: "the volume changes too fast to be detached".into() })
    }

    /// Refuses if a pin, lease or branch keeps a head before a sequence: that needs what the parent has.
    fn must_not_be_kept(&self, before: u64, deadline: Deadline) -> Result<(), RemoteError> {
        let core = &*self.core;
        let pins = list(&*core.store, deadline)?.map_or(Vec::new(), |(pins, _)| pins.pins);
        match pins.iter().find(|pin| pin.sequence < before && holds(pin, core.store.now())) {
            Some(pin) => Err(RemoteError::PinNeeded { name: "what it was branched from".into(), by: pin.name.clone() }),
            None => Ok(()),
        }
    }

    /// A head without origins, and then the end of the parent's entry. Who has pinned an older one meanwhile is seen in the list
    /// of pins, or sees that head (`pin`): in the first case the origins come back.
    fn end_origins(&self, parent: &Origin, deadline: Deadline) -> Result<(), RemoteError> {
        let core = &*self.core;
        let set = |origins, branch| {
            let mut published = core.published.lock();
            published.head.branch = branch;
            std::mem::replace(&mut published.head.origins, origins)
        };
        let origins = set(Vec::new(), false);
        checkpoint_now(core)?;
        let now = core.published.lock().head.sequence;
        if let Err(e) = self.must_not_be_kept(now, deadline) {
            set(origins, true);
            checkpoint_now(core)?;
            return Err(e);
        }
        let Some(store) = core.origins.iter().find(|origin| origin.uuid == parent.uuid) else { return Ok(()) };
        // Anyone may have written the head of a volume that is not sealed: it must not end the pin of another volume.
        let own = entry_name(core.uuid);
        let Some((pins, _)) = list(&*store.store, deadline)? else { return Ok(()) };
        let entry = pins.pins.iter().find(|pin| pin.name == own && pin.kind == PinKind::Branch);
        match entry.filter(|_| parent.pin == own && pins.uuid == hex(&parent.uuid)) {
            Some(entry) => withdraw(&*store.store, entry, &core.options, deadline),
            None => Ok(()),
        }
    }
}
