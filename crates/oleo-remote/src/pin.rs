//! Pins: moments of a volume that are kept; leases: the same, for as long as somebody reads; branches: for another volume.
//!
//! All are entries of the object `pins`, which is replaced under a condition. Making one, by whoever may read and write the
//! store: (1) the head is read; (2) its bytes are stored as `pin/NAME/ID`, except for a lease; (3) the entry is added; (4) the
//! head is read again. If a grave of it is of something that the first head needs, or its horizon is behind the first head,
//! that may be deleted already: the entry is taken back, and all begins anew. So it is if the volume has been detached from
//! what it was branched from.
//!
//! Why that is enough: who deletes publishes the grave first, and then reads `pins`. Either that sees the entry, or the entry
//! was added after it, and then (4) sees the grave.
//!
//! A crash in between leaves an object that no entry names, or an entry that nobody was told of; both only take space.

use std::sync::Arc;

use oleo_format::Corruption;

use crate::error::{RemoteError, StoreError};
use crate::fetch::{begin_page, page};
use crate::format::ensure;
use crate::format::head::Head;
use crate::format::map::{Root, parse_graves};
use crate::format::pins::{PIN_COUNT_MAX, PINS_LEN_MAX, Pin, PinKind, Pins, hex, is_pin_name, unhex};
use crate::host::nonce;
use crate::options::StoreOptions;
use crate::shared::Core;
use crate::store::{self, Body, Cond, Deadline, Op, Retry, Store, StoreTime, Version, Waits, attempt};
use crate::swap::{HEAD, WRONG_TRIES, read};

/// The key of the list.
const PINS: &str = "pins";
/// How often making a pin begins anew.
const PIN_TRIES: usize = 8;
/// For how long a lease is, seconds of the store's clock; it is renewed three times in that.
pub(crate) const LEASE_SECONDS: u64 = 1800;
/// A lease that has ended counts for so much longer: clocks of stores differ, too.
const LEASE_SLACK_SECONDS: u64 = 3600;

/// The object that has the head of a pin.
pub(crate) fn key_of(pin: &Pin) -> String {
    format!("pin/{}/{}", pin.name, pin.id)
}

/// Keeps the newest head of a volume under a name. `by`: who wants that, in words.
pub fn pin(store: Arc<dyn Store>, name: &str, by: &str, options: &StoreOptions) -> Result<Pin, RemoteError> {
    let store: Arc<dyn Store> = Arc::new(Retry::new(store, options.host.clone()));
    make(&store, name, by, PinKind::Pin, None, options).map(|(pin, _)| pin)
}

/// Ends a pin; what only it kept is deleted later. One that a branch needs is ended with `force` only: the branch is lost.
pub fn unpin(store: Arc<dyn Store>, name: &str, force: bool, options: &StoreOptions) -> Result<Pin, RemoteError> {
    let store = Retry::new(store, options.host.clone());
    let deadline = options.host.now() + options.bounds.attach_max;
    let mut found = find_pin(&store, name, deadline)?;
    if found.kind == PinKind::Branch && !force {
        let uuid = list(&store, deadline)?.map_or(String::new(), |(pins, _)| pins.uuid);
        unseal_all(std::slice::from_mut(&mut found), &uuid, &store, options, deadline)?;
        return Err(RemoteError::PinNeeded { name: name.into(), by: found.by });
    }
    withdraw(&store, &found, options, deadline)?;
    Ok(found)
}

/// All pins, leases and branches.
pub fn pins(store: Arc<dyn Store>, options: &StoreOptions) -> Result<Vec<Pin>, RemoteError> {
    let store = Retry::new(store, options.host.clone());
    let deadline = options.host.now() + options.bounds.attach_max;
    let Some((mut pins, _)) = list(&store, deadline)? else { return Ok(Vec::new()) };
    unseal_all(&mut pins.pins, &pins.uuid, &store, options, deadline)?;
    Ok(pins.pins)
}

/// Opens the seals of entries of the list of a volume, as far as there is a key: what stays sealed was not made with it.
pub(crate) fn unseal_all(
    pins: &mut [Pin],
    uuid: &str,
    store: &dyn Store,
    options: &StoreOptions,
    deadline: Deadline,
) -> Result<(), RemoteError> {
    let uuid = unhex(uuid).and_then(|uuid| <[u8; 16]>::try_from(uuid).ok());
    let (Some(source), Some(uuid), true) = (&options.key, uuid, pins.iter().any(|pin| pin.sealed.is_some())) else {
        return Ok(());
    };
    let key = source.unlock(store, uuid, deadline)?;
    for pin in pins {
        let _stays_sealed = pin.unseal(&key, uuid);
    }
    Ok(())
}

/// The head of a pin, which has to be the one that the entry was made for. That of a sealed volume has to have a seal.
pub(crate) fn read_pinned(
    store: &dyn Store,
    entry: &Pin,
    options: &StoreOptions,
    deadline: Deadline,
) -> Result<(Head, Version), RemoteError> {
    let key = key_of(entry);
    let (head, version) = read(store, &key, options.key.as_ref(), deadline)?;
    check_entry(entry, &head, options).map_err(|e| e.within(&key))?;
    Ok((head, version))
}

fn check_entry(entry: &Pin, head: &Head, options: &StoreOptions) -> Result<(), Corruption> {
    let (have, want) = (hex(&head.commit), &entry.commit);
    ensure!(have == *want, "pin", "commit of its head", have, want);
    let (have, want) = ((head.epoch, head.sequence), (entry.epoch, entry.sequence));
    ensure!(have == want, "pin", "epoch and sequence of its head", format!("{have:?}"), format!("{want:?}"));
    match &head.key {
        Some(key) if entry.sealed.is_some() || !options.accept_older => entry.clone().unseal(key, head.uuid),
        Some(_) | None => Ok(()),
    }
}

/// The list, if there is one.
pub(crate) fn list(store: &dyn Store, deadline: Deadline) -> Result<Option<(Pins, Version)>, RemoteError> {
    let mut tries = WRONG_TRIES;
    loop {
        tries -= 1;
        let (bytes, version) = match store::get(store, PINS, PINS_LEN_MAX as u64, deadline) {
            Ok(found) => found,
            Err(StoreError::Absent) => return Ok(None),
            Err(StoreError::Wrong(_)) if tries > 0 => continue,
            Err(e) => return Err(RemoteError::store("get", PINS, e)),
        };
        match Pins::parse(&bytes) {
            Ok(pins) => return Ok(Some((pins, version))),
            Err(e) if tries == 0 => return Err(e.within(PINS).into()),
            Err(_) => {}
        }
    }
}

/// The pin or branch of a name.
pub(crate) fn find_pin(store: &dyn Store, name: &str, deadline: Deadline) -> Result<Pin, RemoteError> {
    let pins = list(store, deadline)?.map_or(Vec::new(), |(pins, _)| pins.pins);
    let found = pins.into_iter().find(|pin| pin.name == name && pin.kind != PinKind::Lease);
    found.ok_or_else(|| RemoteError::NoPin { name: name.into() })
}

/// Whether something that an entry needs must stay.
pub(crate) fn holds(pin: &Pin, now: Option<StoreTime>) -> bool {
    match (pin.kind, pin.expires, now) {
        (PinKind::Lease, Some(expires), Some(now)) => now.0 <= expires.saturating_add(LEASE_SLACK_SECONDS),
        _ => true,
    }
}

/// Makes a pin or a branch, of the newest head or of that of another pin; returns the head, too.
pub(crate) fn make(
    store: &Arc<dyn Store>,
    name: &str,
    by: &str,
    kind: PinKind,
    source: Option<&Pin>,
    options: &StoreOptions,
) -> Result<(Pin, Head), RemoteError> {
    if !is_pin_name(name) {
        return Err(RemoteError::Url { url: name.into(), what: "no name of a pin".into() });
    }
    let deadline = options.host.now() + options.bounds.attach_max;
    for _ in 0..PIN_TRIES {
        let (head, _) = match source {
            None => read(&**store, HEAD, options.key.as_ref(), deadline)?,
            Some(source) => read_pinned(&**store, source, options, deadline)?,
        };
        let entry = entry_of(&**store, &head, name, by, kind, options);
        let key = key_of(&entry);
        store::put(&**store, &key, Body::from(head.encode()), Cond::None, deadline)
            .map_err(|e| RemoteError::store("put", &key, e))?;
        if let Err(e) = add(&**store, &head, &entry, source, options, deadline) {
            if matches!(e, RemoteError::PinExists { .. } | RemoteError::NoPin { .. }) {
                delete(&**store, &key, deadline)?;
            }
            return Err(e);
        }
        // What another pin keeps is kept: that one was there when this was added.
        match if source.is_some() { Ok(true) } else { is_kept(store, &head, options, deadline) } {
            Ok(true) => return Ok((entry, head)),
            Ok(false) => withdraw(&**store, &entry, options, deadline)?,
            Err(e) => {
                // The first error is what is told.
                let _also = withdraw(&**store, &entry, options, deadline);
                return Err(e);
            }
        }
    }
    Err(RemoteError::Limit { what: "the volume changes too fast to be pinned".into() })
}

/// What came of asking for a lease.
pub(crate) enum Lease {
    Taken(Pin),
    /// Something that the head needs may be gone already.
    Late,
    /// The store does not tell the time, so a lease would never end.
    NoTime,
}

/// Takes a lease of a head.
pub(crate) fn take_lease(
    store: &Arc<dyn Store>,
    head: &Head,
    options: &StoreOptions,
    deadline: Deadline,
) -> Result<Lease, RemoteError> {
    let name = format!("lease-{}", hex(&options.host.random()));
    let mut entry = entry_of(&**store, head, &name, &options.owner, PinKind::Lease, options);
    let Some(now) = store.now() else { return Ok(Lease::NoTime) };
    entry.expires = Some(now.0 + LEASE_SECONDS);
    let done =
        add(&**store, head, &entry, None, options, deadline).and_then(|()| is_kept(store, head, options, deadline));
    match done {
        Ok(true) => Ok(Lease::Taken(entry)),
        Ok(false) => withdraw(&**store, &entry, options, deadline).map(|()| Lease::Late),
        Err(e) => {
            // The first error is what is told; what is left ends by itself.
            let _also = withdraw(&**store, &entry, options, deadline);
            Err(e)
        }
    }
}

/// Makes a lease last longer.
pub(crate) fn renew_lease(store: &dyn Store, lease: &Pin, options: &StoreOptions) -> Result<(), RemoteError> {
    let deadline = options.host.now() + options.bounds.attach_max;
    change(store, options, deadline, |pins| {
        let expires = store.now().map(|now| now.0 + LEASE_SECONDS);
        match pins.pins.iter_mut().find(|pin| pin.id == lease.id) {
            Some(pin) if pin.expires >= expires => Ok(false),
            Some(pin) => {
                pin.expires = expires;
                Ok(true)
            }
            None => Err(RemoteError::NoPin { name: lease.name.clone() }),
        }
    })
}

fn entry_of(store: &dyn Store, head: &Head, name: &str, by: &str, kind: PinKind, options: &StoreOptions) -> Pin {
    let mut entry = Pin {
        name: name.into(),
        id: hex(&options.host.random()),
        sequence: head.sequence,
        epoch: head.epoch,
        commit: hex(&head.commit),
        kind,
        by: by.chars().take(500).collect(),
        made: store.now().map_or(0, |now| now.0),
        expires: None,
        sealed: None,
    };
    if let Some(key) = &head.key {
        entry.seal(key, head.uuid, &nonce(&*options.host));
    }
    entry
}

/// Adds an entry. Leases that have ended go.
fn add(
    store: &dyn Store,
    head: &Head,
    entry: &Pin,
    source: Option<&Pin>,
    options: &StoreOptions,
    deadline: Deadline,
) -> Result<(), RemoteError> {
    let uuid = hex(&head.uuid);
    change(store, options, deadline, |pins| {
        let now = store.now();
        if pins.uuid != uuid {
            if let Some(other) = pins.pins.iter().find(|pin| pin.kind != PinKind::Lease) {
                let what = format!("{} is a pin of the volume that was here before: unpin it first", other.name);
                return Err(RemoteError::Limit { what });
            }
            // The leases in it may be those of a volume that was made since the head was read.
            let (newest, _) = read(store, HEAD, options.key.as_ref(), deadline)?;
            if newest.uuid != head.uuid {
                return Err(RemoteError::Replaced { prefix: store.describe(), what: "made anew" });
            }
            (pins.uuid, pins.pins) = (uuid.clone(), Vec::new());
        }
        if pins.pins.iter().any(|pin| pin.id == entry.id) {
            return Ok(false);
        }
        if let Some(source) = source.filter(|source| pins.pins.iter().all(|pin| pin.id != source.id)) {
            return Err(RemoteError::NoPin { name: source.name.clone() });
        }
        if pins.pins.iter().any(|pin| pin.name == entry.name) {
            return Err(RemoteError::PinExists { name: entry.name.clone() });
        }
        pins.pins.retain(|pin| holds(pin, now));
        pins.pins.push(entry.clone());
        Ok(true)
    })
}

/// Takes an entry back, and deletes its object.
pub(crate) fn withdraw(
    store: &dyn Store,
    entry: &Pin,
    options: &StoreOptions,
    deadline: Deadline,
) -> Result<(), RemoteError> {
    change(store, options, deadline, |pins| {
        let before = pins.pins.len();
        pins.pins.retain(|pin| pin.id != entry.id);
        Ok(pins.pins.len() < before)
    })?;
    match entry.kind {
        PinKind::Lease => Ok(()),
        PinKind::Pin | PinKind::Branch => delete(store, &key_of(entry), deadline),
    }
}

fn delete(store: &dyn Store, key: &str, deadline: Deadline) -> Result<(), RemoteError> {
    let done = store.submit(Op::Delete { key: key.into() }, deadline).wait();
    done.map(|_| ()).map_err(|e| RemoteError::store("delete", key, e))
}

/// Replaces the list by what `change` makes of it, which says whether there is anything to do. It is asked again whenever it
/// is not clear what became of the last attempt, and whenever somebody else was first.
fn change(
    store: &dyn Store,
    options: &StoreOptions,
    deadline: Deadline,
    mut change: impl FnMut(&mut Pins) -> Result<bool, RemoteError>,
) -> Result<(), RemoteError> {
    let host = &*options.host;
    let mut waits = Waits::new();
    loop {
        let (mut pins, cond) = match list(store, deadline)? {
            Some((pins, version)) => (pins, Cond::Match(version)),
            None => (Pins { version: 1, uuid: String::new(), commit: String::new(), pins: Vec::new() }, Cond::Absent),
        };
        if !change(&mut pins)? {
            return Ok(());
        }
        pins.commit = hex(&host.random());
        let bytes = pins.encode();
        if bytes.len() > PINS_LEN_MAX || pins.pins.len() > PIN_COUNT_MAX {
            return Err(RemoteError::Limit { what: format!("{PIN_COUNT_MAX} pins and leases are the most") });
        }
        let until = attempt(host, deadline, options.bounds.publish_try);
        match store::put(store, PINS, Body::from(bytes), cond, until) {
            Ok(_) => return Ok(()),
            Err(e) if !waits.wait(host, deadline) => return Err(RemoteError::store("replace", PINS, e)),
            Err(_) => {}
        }
    }
}

/// Whether the newest head says that everything which `head` needs is there.
fn is_kept(
    store: &Arc<dyn Store>,
    head: &Head,
    options: &StoreOptions,
    deadline: Deadline,
) -> Result<bool, RemoteError> {
    let (now, version) = read(&**store, HEAD, options.key.as_ref(), deadline)?;
    if now.uuid != head.uuid {
        return Err(RemoteError::Replaced { prefix: store.describe(), what: "made anew" });
    }
    // Of what an origin has there are no graves here.
    if now.origins.len() < head.origins.len() {
        return Ok(false);
    }
    let needs = |born: u64, died: u64| born <= head.sequence && head.sequence < died;
    if now.horizon > head.sequence || now.graves.iter().any(|grave| needs(grave.born, grave.died)) {
        return Ok(false);
    }
    let Some(at) = now.root else { return Ok(true) };
    let core = Core::new(store.clone(), Head { origins: Vec::new(), ..now }, Some(version), options, false)?;
    let pages = || -> Result<bool, RemoteError> {
        let root = page(&core, at, begin_page(&core, at, deadline), deadline, Root::parse)?;
        for (number, at) in root.graves {
            let ticket = begin_page(&core, at, deadline);
            let graves = page(&core, at, ticket, deadline, |bytes| parse_graves(bytes, number))?;
            if graves.iter().any(|grave| needs(grave.born, grave.died)) {
                return Ok(false);
            }
        }
        Ok(true)
    };
    match pages() {
        // That head is history, too.
        Err(RemoteError::Stale { .. }) => Ok(false),
        other => other,
    }
}
