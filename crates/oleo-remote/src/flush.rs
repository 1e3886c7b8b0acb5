//! A flush: what was written is published, and now and then a checkpoint is made after it.
//!
//! One thread does that, and others who want it wait for the lock and find it done. Any failure ends writing.

use crate::checkpoint::checkpoint_if_due;
use crate::error::RemoteError;
use crate::publish::publish_now;
use crate::shared::Core;

/// Publishes everything up to `want`, and says with `release` that this writer is done.
pub(crate) fn publish(core: &Core, want: u64, release: bool) -> Result<(), RemoteError> {
    let bounds = &core.options.bounds;
    let wait = bounds.flush_max * 2;
    let Some(mut published) = core.published.try_lock_for(wait) else {
        return Err(RemoteError::Stalled { after: wait });
    };
    if published.head.position >= want && (published.head.released || !release) {
        // It was promised by a head that was published, whoever writes now.
        return Ok(());
    }
    core.check_latch()?;
    let deadline = core.deadline(bounds.flush_max);
    let done = publish_now(core, &mut published, release, None, deadline).and_then(|()| match release {
        true => Ok(()),
        false => checkpoint_if_due(core, &mut published),
    });
    done.inspect_err(|e| core.close_latch(e))
}
