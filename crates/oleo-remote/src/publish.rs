//! Making what was appended part of the volume.
//!
//! (1) What is appended is gathered, as of one moment: a long open segment is ended, a short one is the tail. (2) All
//! segments up to there must be stored. (3) A head that names them takes the place of the one before (`swap`). Then it is
//! durable, and only then is anybody told so.
//!
//! Any failure ends writing: what was appended may be in the volume or not, and a second attempt with other contents could
//! contradict the first. Only a claim that is renewed may fail: what it has sent can still come to be there, so its commit id
//! is remembered, and a head with it is taken for the predecessor of the next.
//!
//! The thread that publishes has the lock of `Published`, so it renews the claim itself while it waits for segments
//! ([`renewing`]): a claim does not depend on how much there is to store.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::error::RemoteError;
use crate::format::ObjectRef;
use crate::format::head::Head;
use crate::shared::{Core, Published, add};
use crate::state::{Gathered, Sealed};
use crate::store::{Answer, Cond, Deadline, Op, Ticket, put};
use crate::swap::{Swapped, swap, why_lost};

/// The shortest time between two looks whether a renewal is due.
const RENEWAL_LOOK_MIN: Duration = Duration::from_millis(20);
/// Most abandoned heads that may still arrive: a day of attempts.
pub(crate) const GIVEN_UP_MAX: usize = 4096;

/// What a checkpoint has stored, for the head that is published with it.
#[derive(Clone, Copy)]
pub(crate) struct Checkpoint {
    pub(crate) root: ObjectRef,
    pub(crate) position: u64,
    pub(crate) horizon: u64,
}

/// How it is published.
#[derive(Clone, Copy, Default)]
pub(crate) struct How {
    /// Saying that nobody writes at the moment.
    pub(crate) release: bool,
    pub(crate) checkpoint: Option<Checkpoint>,
    /// Whether writing goes on if the store does not answer: the head may come to be there later.
    pub(crate) may_give_up: bool,
    /// Whether no segment is waited for: then what is published is published once more, to show that the writer lives.
    pub(crate) no_wait: bool,
}

/// Publishes everything that is appended, and a new root if there is one.
pub(crate) fn publish_now(
    core: &Core,
    published: &mut Published,
    how: How,
    deadline: Deadline,
) -> Result<(), RemoteError> {
    let commit = core.options.host.random();
    if let Some(log) = &core.log {
        // Before anything is gathered: see there.
        log.announce(core.epoch, commit);
    }
    let (sealed, gathered) = {
        let mut state = core.state.lock();
        let is_long = state.open_len() > core.options.bounds.inline_max.into();
        if how.no_wait && (is_long || state.under_way.is_busy()) {
            let sealed = if is_long { state.seal()? } else { None };
            drop(state);
            if let Some(sealed) = sealed {
                begin_storing(core, &sealed);
            }
            return publish_again(core, published, deadline);
        }
        let sealed = match state.open_len() > core.options.bounds.inline_max.into() {
            true => state.seal()?,
            false => None,
        };
        (sealed, state.gather(how.checkpoint.map_or(0, |checkpoint| checkpoint.position)))
    };
    if let Some(sealed) = sealed {
        begin_storing(core, &sealed);
    }
    let position = gathered.position;
    if core.state.lock().under_way.is_busy() {
        let may_give_up = OnFailure::GiveUp;
        renewing(core, published, deadline, may_give_up, || store_segments(core, position, deadline))??;
    }
    loop {
        let began = core.options.host.now();
        let head = head_of(core, &published.head, &gathered, how, commit);
        add(&core.counts.head_puts, 1);
        let cond = published.version.clone().map_or(Cond::Absent, Cond::Match);
        let swapped = swap(&*core.store, &*core.options.host, &core.options.bounds, &head, &cond, deadline);
        if swapped.is_err() && how.may_give_up {
            published.given_up.push(head.commit);
        }
        match swapped? {
            Swapped::Mine(version) => {
                let mut state = core.state.lock();
                state.published(head.sequence, position);
                if let Some(checkpoint) = how.checkpoint {
                    state.checkpointed(checkpoint.root, checkpoint.position, core.options.host.now());
                }
                drop(state);
                if let Some(log) = &core.log {
                    log.published(&head, |from, to| core.state.lock().frames(from, to));
                }
                *published = Published::new(head, Some(version), began);
                return Ok(());
            }
            // One that was given up has arrived after all, so it is what everything else follows.
            Swapped::Other(found, version) if published.given_up.contains(&found.commit) => {
                core.state.lock().published(found.sequence, found.position);
                // It arrived at an unknown time.
                *published = Published::new(*found, Some(version), published.at);
            }
            Swapped::Other(found, _) => return Err(why_lost(&head, Some(&found), &*core.store)),
            Swapped::Gone => return Err(why_lost(&head, None, &*core.store)),
        }
    }
}

/// The reaction to a renewal that fails because the store does not answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnFailure {
    /// It is abandoned, and the work continues; the head may still arrive.
    GiveUp,
    /// It fails, and so does the work: no head may still be under way when the work ends.
    Fail,
}

/// Whether a third of the claim has passed since the last head.
pub(crate) fn is_renewal_due(core: &Core, published: &Published) -> bool {
    let silent = core.options.host.now().saturating_sub(published.at);
    !core.options.claim.is_zero() && silent >= core.options.claim / 3
}

/// How long a renewal may take that may be abandoned.
pub(crate) fn renewal_deadline(core: &Core) -> Deadline {
    core.deadline((core.options.claim / 3).min(core.options.bounds.publish_try))
}

/// Does work that waits for the store in a thread of its own, while this thread renews the claim. Without a keeper the work
/// is done by this thread.
///
/// # Errors
/// A renewal failed: the writer was overtaken, or the store does not answer and `on_failure` is [`OnFailure::Fail`]. The work
/// has ended then, too.
pub(crate) fn renewing<T: Send>(
    core: &Core,
    published: &mut Published,
    deadline: Deadline,
    on_failure: OnFailure,
    work: impl Fn() -> T + Sync,
) -> Result<T, RemoteError> {
    let claim = core.options.claim;
    if claim.is_zero() || !core.options.keeper {
        return Ok(work());
    }
    std::thread::scope(|scope| {
        let (working, ended) = channel::<()>();
        let thread = std::thread::Builder::new().name("oleo-storing".into());
        let work = &work;
        let worker = thread.spawn_scoped(scope, move || {
            let done = work();
            drop(working);
            done
        });
        let Ok(worker) = worker else { return Ok(work()) };
        let mut renewed = Ok(());
        while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout((claim / 8).max(RENEWAL_LOOK_MIN)) {
            if renewed.is_err() || !is_renewal_due(core, published) || published.given_up.len() >= GIVEN_UP_MAX {
                continue;
            }
            let until = if on_failure == OnFailure::Fail { deadline } else { renewal_deadline(core) };
            renewed = match publish_again(core, published, until) {
                Err(RemoteError::Store { .. }) if on_failure == OnFailure::GiveUp => Ok(()),
                done => done,
            };
        }
        let done = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        renewed.map(|()| done)
    })
}

/// Publishes what is published, as a sign of life. If the store does not answer, it is abandoned.
pub(crate) fn publish_again(core: &Core, published: &mut Published, deadline: Deadline) -> Result<(), RemoteError> {
    let (before, commit, began) = (&published.head, core.options.host.random(), core.options.host.now());
    let head =
        Head { sequence: before.sequence + 1, commit, predecessor: before.commit, released: false, ..before.clone() };
    add(&core.counts.head_puts, 1);
    let cond = published.version.clone().map_or(Cond::Absent, Cond::Match);
    let swapped = swap(&*core.store, &*core.options.host, &core.options.bounds, &head, &cond, deadline);
    if swapped.is_err() {
        published.given_up.push(head.commit);
    }
    let (now, version, at) = match swapped? {
        Swapped::Mine(version) => (head, version, began),
        // One that was given up has arrived after all; that is a sign of life, too.
        Swapped::Other(found, version) if published.given_up.contains(&found.commit) => (*found, version, published.at),
        Swapped::Other(found, _) => return Err(why_lost(&head, Some(&found), &*core.store)),
        Swapped::Gone => return Err(why_lost(&head, None, &*core.store)),
    };
    core.state.lock().published(now.sequence, now.position);
    *published = Published::new(now, Some(version), at);
    Ok(())
}

/// Waits for the oldest segment that is being stored; what became of it is known then.
pub(crate) fn wait_for_oldest(core: &Core) {
    let oldest = core.state.lock().under_way.oldest();
    if let Some((sealed, ticket)) = oldest
        && let Ok(Answer::Stored(_)) = ticket.wait()
    {
        core.state.lock().under_way.done(&sealed);
    }
}

/// Waits until all segments up to a position are stored.
fn store_segments(core: &Core, position: u64, deadline: Deadline) -> Result<(), RemoteError> {
    let unfinished = core.state.lock().under_way.unfinished(position);
    for (sealed, ticket) in unfinished {
        let stored = matches!(ticket.map(Ticket::wait), Some(Ok(Answer::Stored(_))));
        if !stored {
            // It began when the segment was sealed, which may be long ago: that its time has run out says nothing of now.
            let key = sealed.known.id.key();
            put(&*core.store, &key, sealed.body(), Cond::None, deadline)
                .map_err(|e| RemoteError::store("put", key, e))?;
        }
        core.state.lock().under_way.done(&sealed);
    }
    Ok(())
}

/// The head after another, with what was gathered.
fn head_of(core: &Core, before: &Head, gathered: &Gathered, how: How, commit: [u8; 16]) -> Head {
    let mut tail = Vec::with_capacity(gathered.tail.iter().map(|piece| piece.len()).sum());
    gathered.tail.iter().for_each(|piece| tail.extend_from_slice(piece));
    Head {
        epoch: core.epoch,
        released: how.release,
        sequence: before.sequence + 1,
        commit,
        predecessor: before.commit,
        device_len: gathered.device_len,
        next_n: gathered.next_n,
        root: how.checkpoint.map(|checkpoint| checkpoint.root).or(before.root),
        segments: gathered.segments.clone(),
        oldest: gathered.oldest,
        // A checkpoint has them in its pages.
        graves: if how.checkpoint.is_some() { Vec::new() } else { before.graves.clone() },
        position: gathered.position,
        tail_id: gathered.tail_id,
        tail,
        uuid: before.uuid,
        claim: before.claim,
        branch: before.branch,
        origins: before.origins.clone(),
        owner: before.owner.clone(),
        codec: before.codec,
        horizon: how.checkpoint.map_or(before.horizon, |checkpoint| checkpoint.horizon),
        key: before.key.clone(),
    }
}

/// Begins to store a segment.
pub(crate) fn begin_storing(core: &Core, sealed: &Arc<Sealed>) {
    add(&core.counts.segment_puts, 1);
    let op = Op::Put { key: sealed.known.id.key(), body: sealed.body(), cond: Cond::None };
    let ticket = core.store.submit(op, core.deadline(core.options.bounds.flush_max));
    core.state.lock().under_way.begun(sealed, ticket);
}
