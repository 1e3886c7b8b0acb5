//! Opening a volume.
//!
//! For reading: the head, and what it says (`replay`). For writing: (1) the head is read; (2) if another writer has it and
//! did not close it, that is refused, unless its claim runs out while we watch, or `take_over` is set, or the local
//! log says that it was a process of this machine, which is gone, or its claim names a process of this machine that has ended; (3) a head
//! with the next epoch and the same contents takes its place, from which moment on no older writer can publish; (4) the
//! store must refuse the same a second time, or it does not keep conditions and is refused (where no answer comes to that,
//! the head is looked at, and opening goes on if it is still this writer's); (5) what the head says is
//! replayed, and the frames of its tail are appended again to a segment of our own; (6) so are those that only the local
//! log has (`local_log`), and they are published.
//!
//! Claims are no matter of clocks: whoever wants the volume watches the head for the time of the claim by its own clock,
//! and any change of it is a sign of life. Nor does safety hang on them: only the replacement of the head decides.
//!
//! A crash or an error after (3) leaves a head with a higher epoch and the same contents.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::append::append;
use crate::create::next_epoch;
use crate::disk_cache::volume_dir;
use crate::error::{RemoteError, StoreError};
use crate::flush::publish;
use crate::format::head::{Head, OWNER_LEN_MAX, Outline};
use crate::format::pins::{Pin, is_pin_name};
use crate::local_log::LocalLog;
use crate::options::{ClaimWait, Durable, StoreOptions};
use crate::pin::{Lease, find_pin, read_pinned, take_lease, withdraw};
use crate::replay::{again, replay, take_tail};
use crate::seen;
use crate::shared::Core;
use crate::store::{Body, Cond, Deadline, Retry, Store, Version, Waits, attempt, put};
use crate::swap::{Found, HEAD, Swapped, find, read, swap, why_lost};

/// Longest claim that is waited for; longer ones count as claims for ever.
const CLAIM_MAX: Duration = Duration::from_secs(3600);
/// How often opening for reading begins anew when what a head needs is gone.
pub(crate) const STALE_TRIES: usize = 4;
/// How often a lease is asked for, when the head is replaced and what it had is gone in the meantime.
pub(crate) const LEASE_TRIES: usize = 8;
/// How often a head that was replaced is put once more when no answer comes to that: a store may well end the connection of a request that it
/// refuses before it has read all of it.
const UNCLEAR_TRIES: u32 = 3;
/// How often a head is looked at during a claim.
const CLAIM_LOOKS: u32 = 10;

/// Opens for reading: the newest head, or that of a pin.
pub(crate) fn attach_reading(
    store: Arc<dyn Store>,
    pin: Option<&str>,
    options: &StoreOptions,
) -> Result<Core, RemoteError> {
    let store: Arc<dyn Store> = Arc::new(Retry::new(store, options.host.clone()));
    for _ in 1..STALE_TRIES {
        match attach_once(&store, pin, options) {
            // What that head needs is gone, so there is a newer one; or whoever writes here has noted a newer one meanwhile.
            Err(RemoteError::Stale { .. } | RemoteError::Older { .. }) if pin.is_none() => {}
            done => return done,
        }
    }
    attach_once(&store, pin, options)
}

fn attach_once(store: &Arc<dyn Store>, pin: Option<&str>, options: &StoreOptions) -> Result<Core, RemoteError> {
    let deadline = options.host.now() + options.bounds.attach_max;
    match pin {
        None => {
            let (head, version, lease) = newest(store, options, deadline)?;
            attach_moment(store, (head, version), lease, options, |_| (), deadline)
        }
        Some(pin) if is_pin_name(pin) => {
            let entry = find_pin(&**store, pin, deadline)?;
            let (head, version) = read_pinned(&**store, &entry, options, deadline)?;
            check_place(&**store, &head, options)?;
            let mut core = Core::new(store.clone(), head, Some(version), options, false)?;
            core.pinned = true;
            replay(&core, deadline).and_then(|()| take_tail(&core)).map(|()| core)
        }
        Some(pin) => Err(RemoteError::Url { url: pin.into(), what: "no name of a pin".into() }),
    }
}

/// Opens the moment of a head that was read, whose lease ends if that fails. `prepare` may change the volume before anything
/// is read of it.
pub(crate) fn attach_moment(
    store: &Arc<dyn Store>,
    (head, version): (Head, Version),
    lease: Option<Pin>,
    options: &StoreOptions,
    prepare: impl FnOnce(&mut Core),
    deadline: Deadline,
) -> Result<Core, RemoteError> {
    let opened = check_seen(&**store, &head, options).and_then(|()| {
        let mut core = Core::new(store.clone(), head, Some(version), options, false)?;
        prepare(&mut core);
        note_seen(&core)?;
        replay(&core, deadline).and_then(|()| take_tail(&core)).map(|()| core)
    });
    match opened {
        Ok(mut core) => {
            core.lease = lease.map_or_else(OnceLock::new, OnceLock::from);
            Ok(core)
        }
        Err(e) => {
            if let Some(lease) = lease {
                // It ends by itself if not.
                let _also = withdraw(&**store, &lease, options, deadline);
            }
            Err(e)
        }
    }
}

/// The newest head, with a lease of it if that is wanted and can be had: whoever may not write is safe for the time of grace.
pub(crate) fn newest(
    store: &Arc<dyn Store>,
    options: &StoreOptions,
    deadline: Deadline,
) -> Result<(Head, Version, Option<Pin>), RemoteError> {
    for _ in 0..LEASE_TRIES {
        let (head, version) = read(&**store, HEAD, options.key.as_ref(), deadline)?;
        if !options.lease {
            return Ok((head, version, None));
        }
        match take_lease(store, &head, options, deadline) {
            Ok(Lease::Taken(lease)) => return Ok((head, version, Some(lease))),
            Ok(Lease::Late) => {}
            Ok(Lease::NoTime) | Err(_) => return Ok((head, version, None)),
        }
    }
    read(&**store, HEAD, options.key.as_ref(), deadline).map(|(head, version)| (head, version, None))
}

/// Opens for writing.
pub(crate) fn attach_writing(store: Arc<dyn Store>, options: &StoreOptions) -> Result<Core, RemoteError> {
    let store: Arc<dyn Store> = Arc::new(Retry::new(store, options.host.clone()));
    // Claims that run out would let others take over what only this machine has.
    let claim = if options.durable == Durable::Local { Duration::ZERO } else { options.claim };
    let options = &StoreOptions { claim, ..options.clone() };
    let (head, version, log) = available(&*store, options)?;
    check_seen(&*store, &head, options)?;
    if let Some(log) = &log {
        log.settle(&head)?;
    }
    let deadline = options.host.now() + options.bounds.attach_max;
    let mut owner: String = options.owner.clone();
    let process = options.host.process().map(|process| format!("\n{process}")).unwrap_or_default();
    while owner.len() + process.len() > OWNER_LEN_MAX && owner.pop().is_some() {}
    owner.push_str(&process);
    let mine = Head {
        epoch: next_epoch(head.epoch, 1)?,
        sequence: head.sequence + 1,
        commit: options.host.random(),
        predecessor: head.commit,
        claim: u32::try_from(options.claim.as_secs()).unwrap_or(u32::MAX),
        owner,
        released: false,
        next_n: 0,
        ..head
    };
    if let Some(log) = &log {
        log.announce(mine.epoch, mine.commit);
    }
    let old = Cond::Match(version);
    let began = options.host.now();
    let version = match swap(&*store, &*options.host, &options.bounds, &mine, &old, deadline)? {
        Swapped::Mine(version) => version,
        Swapped::Other(found, _) if found.uuid == mine.uuid => {
            return Err(RemoteError::Held { owner: found.writer().into() });
        }
        Swapped::Other(found, _) => return Err(why_lost(&mine, Some(&found), &*store)),
        Swapped::Gone => return Err(why_lost(&mine, None, &*store)),
    };
    check_conditions(&*store, options, (&mine, &version), old, deadline)?;
    let mut core = Core::new(store, mine, Some(version), options, true)?;
    core.published.lock().at = began;
    note_seen(&core)?;
    replay(&core, deadline)?;
    take_tail(&core)?;
    core.log = log;
    take_log(&mut core)?;
    Ok(core)
}

/// Takes what only the local log has into the volume, and begins a new log if one is wanted.
fn take_log(core: &mut Core) -> Result<(), RemoteError> {
    let Some(log) = &core.log else { return Ok(()) };
    let before = core.state.lock().position();
    log.replay(|frame, bound| {
        // A frame that cannot be read would be in the way of each opening.
        let frame = again(core, frame, bound).map_err(|e| log.keep_aside(e.to_string()))?;
        append(core, frame)
    })?;
    let position = core.state.lock().position();
    if position > before {
        publish(core, position, false)?;
    }
    if core.options.durable == Durable::Local {
        return log.begin(&core.published.lock().head);
    }
    log.end();
    core.log = None;
    Ok(())
}

/// The head, when nobody has it or whoever has it may be overtaken, and the local log of the volume.
fn available(store: &dyn Store, options: &StoreOptions) -> Result<(Head, Version, Option<LocalLog>), RemoteError> {
    let (first, version) = read(store, HEAD, options.key.as_ref(), options.host.now() + options.bounds.attach_max)?;
    let log = LocalLog::open(options, &first)?;
    let is_own = match &log {
        Some(log) => log.has(&first)?,
        None => false,
    };
    if first.released || options.take_over || is_own {
        return Ok((first, version, log));
    }
    let (head, version) = watch(store, options, first, version)?;
    let log = if log.as_ref().is_none_or(|log| log.is_of(&head)) { log } else { LocalLog::open(options, &head)? };
    Ok((head, version, log))
}

/// Watches a head until its claim has run out.
fn watch(
    store: &dyn Store,
    options: &StoreOptions,
    first: Head,
    version: Version,
) -> Result<(Head, Version), RemoteError> {
    let host = &options.host;
    let look = || read(store, HEAD, options.key.as_ref(), host.now() + options.bounds.attach_max);
    let claim = Duration::from_secs(first.claim.into());
    if claim.is_zero() || claim > CLAIM_MAX {
        return Err(RemoteError::Held { owner: first.writer().into() });
    }
    if first.process().is_some_and(|process| host.has_ended(process)) {
        return Ok((first, version));
    }
    if let Some(on_wait) = &options.on_wait {
        on_wait(&ClaimWait { owner: first.writer().into(), most: claim + claim / CLAIM_LOOKS });
    }
    let since = host.now();
    loop {
        host.sleep(claim / CLAIM_LOOKS);
        let (now, version_now) = look()?;
        if now.released {
            return Ok((now, version_now));
        }
        if version_now != version {
            return Err(RemoteError::Held { owner: now.writer().into() });
        }
        // The time of a look counts from its beginning; a look that took long proves nothing of its end.
        if host.now().saturating_sub(since) > claim {
            return Ok((now, version_now));
        }
    }
}

/// Puts the head of this writer where the one before it is expected, which must fail. Where the answers do not say, the head does: one that
/// is still this writer's, and no newer version, has not been replaced a second time, as far as anybody can know. The store was probed when the
/// volume was made, and whoever is put over finds that with the next flush.
fn check_conditions(
    store: &dyn Store,
    options: &StoreOptions,
    (mine, version): (&Head, &Version),
    old: Cond,
    deadline: Deadline,
) -> Result<(), RemoteError> {
    let again = || RemoteError::NoConditions { which: "a head that was replaced was replaced again" };
    let body = Body::from(mine.encode());
    let mut waits = Waits::new();
    for tries in 1.. {
        let until = attempt(&*options.host, deadline, options.bounds.publish_try);
        match put(store, HEAD, body.clone(), old.clone(), until) {
            Err(StoreError::Condition) => return Ok(()),
            Ok(_) => return Err(again()),
            Err(_) => {}
        }
        match find(store, HEAD, mine.key.as_ref(), deadline)? {
            Found::Head(found, seen) if found.commit == mine.commit => {
                if seen.generation.is_some() && version.generation.is_some() && seen.generation != version.generation {
                    return Err(again());
                }
            }
            Found::Head(found, _) if found.uuid == mine.uuid => {
                return Err(RemoteError::Held { owner: found.writer().into() });
            }
            Found::Head(found, _) => return Err(why_lost(mine, Some(&found), store)),
            Found::Closed(Outline { uuid, epoch, commit, sealed: _ }, ..) => {
                return Err(why_lost(mine, Some(&Head { uuid, epoch, commit, ..Head::default() }), store));
            }
            Found::Damaged(e, _) => return Err(e.into()),
            Found::Nothing => return Err(why_lost(mine, None, store)),
        }
        if tries == UNCLEAR_TRIES || !waits.wait(&*options.host, deadline) {
            break;
        }
    }
    Ok(())
}

/// Refuses a sealed volume in the place of another.
fn check_place(store: &dyn Store, head: &Head, options: &StoreOptions) -> Result<(), RemoteError> {
    // Without a key the store could give it any UUID.
    if head.key.is_some() { seen::check_place(store, head.uuid, options) } else { Ok(()) }
}

/// Refuses a state that is older than this machine has seen, and a sealed volume in the place of another.
fn check_seen(store: &dyn Store, head: &Head, options: &StoreOptions) -> Result<(), RemoteError> {
    check_place(store, head, options)?;
    match &options.cache {
        Some(cache) => seen::check(&volume_dir(&cache.dir, head.uuid)?, head, options.accept_older),
        None => Ok(()),
    }
}

/// Notes what is opened.
fn note_seen(core: &Core) -> Result<(), RemoteError> {
    match &core.disk {
        Some(disk) => seen::note(disk.dir(), &core.published.lock().head, core.options.accept_older),
        None => Ok(()),
    }
}
