//! The groups whose free runs are in memory, and how many bytes these take. When one is evicted, `load` decides.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use oleo_lock::{Mutex, rank};

use crate::group::{Content, GroupRef, State, WeakGroup};

/// Default bound of runs in memory, in bytes: about four million runs.
const RUNS_MEMORY_MAX: u64 = 64 << 20;

/// The groups whose runs are in memory.
pub(crate) struct Residents {
    /// In the order in which they were loaded, or were last spared.
    pub(crate) queue: Mutex<rank::Residents, VecDeque<WeakGroup>>,
    /// Memory of all runs, bytes, about.
    pub(crate) bytes: AtomicU64,
    pub(crate) bytes_max: AtomicU64,
    /// A thread is evicting; others need not.
    pub(crate) busy: AtomicBool,
}

impl Residents {
    pub(crate) fn new() -> Residents {
        Residents {
            queue: Mutex::default(),
            bytes: AtomicU64::new(0),
            bytes_max: AtomicU64::new(RUNS_MEMORY_MAX),
            busy: AtomicBool::new(false),
        }
    }

    /// Brings the count of memory up to date with a group's runs.
    pub(crate) fn note(&self, state: &mut State) {
        self.add(state.count_memory());
    }

    /// Changes what is known of a group's runs.
    pub(crate) fn set_content(&self, state: &mut State, content: Content) {
        self.add(state.set_content(content));
    }

    fn add(&self, bytes: i64) {
        if bytes != 0 {
            // Wrapping addition of a negative number is subtraction.
            self.bytes.fetch_add(bytes.cast_unsigned(), Relaxed);
        }
    }

    pub(crate) fn push(&self, group: &GroupRef) {
        self.queue.lock().push_back(group.downgrade());
    }
}
