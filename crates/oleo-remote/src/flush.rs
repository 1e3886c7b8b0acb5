//! A flush: what was written is published, and now and then a checkpoint is made after it.
//!
//! One thread does that, and others who want it wait for the lock and find it done. Any failure ends writing.

use std::sync::atomic::Ordering;
use std::time::Duration;

use oleo_lock::{MutexGuard, rank};

use crate::checkpoint::{checkpoint, checkpoint_if_due};
use crate::error::RemoteError;
use crate::format::head::Head;
use crate::host::Mistake;
use crate::local_log::LocalLog;
use crate::publish::{
    GIVEN_UP_MAX, How, is_renewal_due, publish_again, publish_now, renewal_deadline, wait_for_oldest,
};
use crate::seen::{NOTE_EVERY, note};
use crate::shared::{Core, Published};

/// How long one attempt to publish behind the local log may take.
const BEHIND_TRY: Duration = Duration::from_secs(30);

/// Publishes everything, and makes a checkpoint.
pub(crate) fn checkpoint_now(core: &Core) -> Result<(), RemoteError> {
    let mut published = lock(core)?;
    core.check_latch()?;
    let release = published.head.released;
    let how = How { release, ..How::default() };
    let done = publish_now(core, &mut published, how, core.deadline(core.options.bounds.flush_max));
    done.and_then(|()| checkpoint(core, &mut published, release)).inspect_err(|e| core.close_latch(e))
}

/// Renews the claim if a third of it has passed, with all that is stored. A writer that releases the volume when idle (`release_idle`)
/// publishes instead, after a whole claim with nothing to write, that no writer has the volume. A store that does not answer
/// ends nothing here: safety does not hang on claims.
pub(crate) fn renew_claim(core: &Core) {
    let claim = core.options.claim;
    // Whoever has the lock publishes, and renews it by that.
    let Some(mut published) = core.published.try_lock() else { return };
    if claim.is_zero() || core.latch.get().is_some() || published.given_up.len() >= GIVEN_UP_MAX {
        return;
    }
    let silent = core.options.host.now().saturating_sub(published.at);
    let is_clean = core.state.lock().position() == published.head.position;
    let lets_go = is_clean && core.options.release_idle && silent >= claim;
    let due = match is_clean {
        true if published.head.released => false,
        true if core.options.release_idle => lets_go,
        _ => is_renewal_due(core, &published),
    };
    if !due {
        return;
    }
    // Others who want to publish wait for the lock.
    let deadline = renewal_deadline(core);
    let done = if is_clean && !lets_go {
        publish_again(core, &mut published, deadline)
    } else {
        let how = How { release: lets_go, may_give_up: true, no_wait: true, ..How::default() };
        publish_now(core, &mut published, how, deadline)
    };
    match done {
        Ok(()) | Err(RemoteError::Store { .. }) => {}
        Err(e) => core.close_latch(&e),
    }
    drop(published);
    if !is_clean {
        // Behind everybody else, so that what is stored is published the next time.
        wait_for_oldest(core);
    }
}

/// Publishes what is confirmed by the local log, if the store answers. That it does not ends nothing: the log has it, and memory
/// and log have bounds.
pub(crate) fn publish_behind(core: &Core) {
    let Some(want) = core.log.as_ref().and_then(LocalLog::waiting) else { return };
    // Whoever has the lock publishes.
    let Some(mut published) = core.published.try_lock() else { return };
    if core.latch.get().is_some() || published.head.position >= want || published.given_up.len() >= GIVEN_UP_MAX {
        return;
    }
    let how = How { may_give_up: true, ..How::default() };
    let done = publish_now(core, &mut published, how, core.deadline(BEHIND_TRY.min(core.options.bounds.flush_max)));
    match done {
        Ok(()) => {
            note_seen(core, &published.head, false);
            let _ended = checkpoint_if_due(core, &mut published).inspect_err(|e| core.close_latch(e));
        }
        Err(RemoteError::Store { .. }) => {}
        Err(e) => core.close_latch(&e),
    }
}

fn lock(core: &Core) -> Result<MutexGuard<'_, rank::RemotePublish, Published>, RemoteError> {
    let wait = core.options.bounds.flush_max * 2;
    core.published.try_lock_for(wait).ok_or(RemoteError::Stalled { after: wait })
}

/// Makes everything up to `want` durable: in the local log if there is one, else in the store.
pub(crate) fn flush(core: &Core, want: u64) -> Result<(), RemoteError> {
    if let Some(log) = &core.log {
        core.check_latch()?;
        if log.confirm(want, |from, to| core.state.lock().frames(from, to)) {
            return Ok(());
        }
    }
    publish(core, want, false)
}

/// Publishes everything up to `want`, and says with `release` that this writer is done.
pub(crate) fn publish(core: &Core, want: u64, release: bool) -> Result<(), RemoteError> {
    let bounds = &core.options.bounds;
    let mut published = lock(core)?;
    if published.head.position >= want && (published.head.released || !release) {
        return check_claim(core, &mut published);
    }
    core.check_latch()?;
    let deadline = core.deadline(bounds.flush_max);
    let how = How { release, ..How::default() };
    let done = publish_now(core, &mut published, how, deadline).and_then(|()| match release {
        true => Ok(()),
        false => checkpoint_if_due(core, &mut published),
    });
    if done.is_ok() {
        note_seen(core, &published.head, release);
    }
    done.inspect_err(|e| core.close_latch(e))
}

/// Finds out whether this writer still has the volume, if its claim has ended: a process that was stopped for so long may have
/// been overtaken, and does not know it. All that was published is durable either way, so a store that does not answer fails
/// this call alone.
fn check_claim(core: &Core, published: &mut Published) -> Result<(), RemoteError> {
    let silent = core.options.host.now().saturating_sub(published.at);
    let has_ended = !core.options.claim.is_zero() && silent > core.options.claim;
    if !core.write || !has_ended || core.options.host.makes(Mistake::ForgetsClaim) {
        return Ok(());
    }
    core.check_latch()?;
    if published.given_up.len() >= GIVEN_UP_MAX {
        return Err(RemoteError::Stalled { after: silent });
    }
    let checked = publish_again(core, published, core.deadline(core.options.bounds.flush_max));
    checked.inspect_err(|e| {
        if !matches!(e, RemoteError::Store { .. }) {
            core.close_latch(e);
        }
    })
}

/// Notes beside the disk cache how far the volume has come, now and then. It is no part of any promise, so a disk that fails is
/// no error.
fn note_seen(core: &Core, head: &Head, always: bool) {
    let Some(disk) = &core.disk else { return };
    let now = core.options.host.now().as_millis() as u64;
    let due = core.noted.load(Ordering::Relaxed) + NOTE_EVERY.as_millis() as u64 <= now;
    if due || always {
        core.noted.store(now, Ordering::Relaxed);
        let _noted = note(disk.dir(), head, false);
    }
}
