//! What is known of a store that does not answer, and of frames that are damaged, so that a mirror is not kept waiting.
//!
//! A read of a volume that has no mirror waits for its time and may still succeed: nobody else has what it wants. Where another
//! member has it, too (`StoreOptions::mirrored`), a read that has waited in vain shows that the store is away: from then on reads of it
//! fail immediately, but for one in [`PROBE_EVERY`], which waits for [`PROBE_MAX`]; the first that is answered ends it.
//!
//! A frame that was read again and again and stayed wrong is not asked for again for [`DAMAGED_FOR`]: what heals it writes it
//! elsewhere.
//!
//! Locks: those inside `quick_cache`, held for one look-up.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use quick_cache::sync::Cache;

use crate::error::{RemoteError, StoreError};
use crate::format::ObjectId;
use crate::store::Deadline;

/// How often a read asks a store that is away.
const PROBE_EVERY: Duration = Duration::from_secs(10);
/// How long such a read waits.
const PROBE_MAX: Duration = Duration::from_secs(2);
/// How long a damaged frame is not asked for again.
const DAMAGED_FOR: Duration = Duration::from_secs(30);
/// How many damaged frames are remembered: some MiB of them.
const DAMAGED_COUNT: usize = 4096;

/// See the module's text.
pub(crate) struct Away {
    is_away: AtomicBool,
    /// When the next read may ask, milliseconds of the host's clock.
    probe_at: AtomicU64,
    /// How often it went away, and how many reads were not sent because of it.
    pub(crate) times: AtomicU64,
    pub(crate) refused: AtomicU64,
    damaged: Cache<(ObjectId, u32), (Duration, RemoteError)>,
}

impl Default for Away {
    fn default() -> Away {
        Away {
            is_away: AtomicBool::new(false),
            probe_at: AtomicU64::new(0),
            times: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            damaged: Cache::new(DAMAGED_COUNT),
        }
    }
}

impl Away {
    /// Whether it is away now, as far as is known.
    pub(crate) fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Acquire)
    }

    /// Until when a read may wait; none: it is not to be sent.
    pub(crate) fn may_wait(&self, now: Duration, deadline: Deadline) -> Option<Deadline> {
        if !self.is_away() {
            return Some(deadline);
        }
        let (at, next) = (self.probe_at.load(Ordering::Acquire), (now + PROBE_EVERY).as_millis() as u64);
        let is_due = now.as_millis() as u64 >= at;
        // One of those who come together.
        if is_due && self.probe_at.compare_exchange(at, next, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return Some(deadline.min(now + PROBE_MAX));
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// What a read came to. `mirrored`: others have what it wanted.
    pub(crate) fn note<T>(&self, mirrored: bool, now: Duration, done: &Result<T, StoreError>) {
        let fails = matches!(
            done,
            Err(StoreError::Away(_) | StoreError::TimedOut | StoreError::Unknown(_) | StoreError::Throttled)
        );
        if !fails {
            self.is_away.store(false, Ordering::Release);
        } else if mirrored && !self.is_away.swap(true, Ordering::AcqRel) {
            self.probe_at.store((now + PROBE_EVERY).as_millis() as u64, Ordering::Release);
            self.times.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What is wrong with a frame, if that was found not long ago.
    pub(crate) fn damage(&self, now: Duration, id: ObjectId, off: u32) -> Option<RemoteError> {
        let (since, error) = self.damaged.get(&(id, off))?;
        (now.saturating_sub(since) < DAMAGED_FOR).then_some(error)
    }

    /// Notes that a frame is damaged, or its object missing.
    pub(crate) fn note_damage(&self, now: Duration, id: ObjectId, off: u32, error: &RemoteError) {
        if matches!(error, RemoteError::Corrupt(_) | RemoteError::Stale { .. }) {
            self.damaged.insert((id, off), (now, error.clone()));
        }
    }
}
