//! What all parts of an open volume share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use oleo_lock::{Mutex, rank};

use crate::cache::Cache;
use crate::error::RemoteError;
use crate::format::head::Head;
use crate::options::StoreOptions;
use crate::state::State;
use crate::store::{Deadline, Store, Version};

/// The newest head, as far as this writer knows.
pub(crate) struct Published {
    pub(crate) head: Head,
    pub(crate) version: Version,
}

/// An open volume.
pub(crate) struct Core {
    /// Repeats what may be repeated.
    pub(crate) store: Arc<dyn Store>,
    pub(crate) options: StoreOptions,
    pub(crate) name: Arc<str>,
    pub(crate) uuid: [u8; 16],
    pub(crate) epoch: u32,
    pub(crate) write: bool,
    pub(crate) state: Mutex<rank::RemoteState, State>,
    pub(crate) published: Mutex<rank::RemotePublish, Published>,
    pub(crate) edges: Mutex<rank::RemoteEdges, ()>,
    /// The failure that ended writing.
    pub(crate) latch: OnceLock<Arc<RemoteError>>,
    pub(crate) cache: Cache,
    pub(crate) counts: Counts,
}

/// What was done since it was opened.
#[derive(Default, Debug)]
pub(crate) struct Counts {
    pub(crate) reads: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) write_bytes: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) discards: AtomicU64,
    pub(crate) gets: AtomicU64,
    pub(crate) segment_puts: AtomicU64,
    pub(crate) head_puts: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) cache_hits: AtomicU64,
}

/// Adds to a count.
pub(crate) fn add(count: &AtomicU64, n: u64) {
    count.fetch_add(n, Ordering::Relaxed);
}

impl Core {
    /// The failure that ended writing, if one did.
    pub(crate) fn check_latch(&self) -> Result<(), RemoteError> {
        match self.latch.get() {
            Some(first) => Err(RemoteError::Latched { first: first.clone() }),
            None => Ok(()),
        }
    }

    /// Ends writing, by the first failure that comes here.
    pub(crate) fn close_latch(&self, error: &RemoteError) {
        let _first = self.latch.set(Arc::new(error.clone()));
    }

    /// When something must be over that may take so long.
    pub(crate) fn deadline(&self, time: std::time::Duration) -> Deadline {
        self.options.host.now() + time
    }
}
