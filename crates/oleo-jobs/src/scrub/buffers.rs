//! The memory that a scrub reads into, and how much of it there may be.
//!
//! Each thread that reads has a [`Buffer`] for a megabyte, used again and again. Rows of more stripes than fit into that ([`is_wide`]) are read into memory of their own, which comes
//! and goes with the part that is read ([`Wide`]). Whoever gives out such parts takes it first ([`Buffers::take`]), and waits while there is [`WIDE_ROWS_LEN_MAX`] of it: so the wider rows are,
//! the fewer of them are under way. What was used is used again, as long as there is room for it beside what is taken.
//!
//! Invariants: what is taken and what is kept to be used again are never more than `WIDE_ROWS_LEN_MAX`, unless one row is. Who has some waits for nobody who wants some.
//! Locks: `state`, a leaf.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use oleo_lock::{Condvar, Mutex, rank};
use oleo_volume::{ChunkMap, STRIPE_LEN};

/// Bytes that are read into memory before they are looked at, unless what belongs together is more: in the nearest caches of a core.
pub(super) const READ_LEN: u64 = 1 << 20;

/// Bytes of rows with parity that are read or settled in parallel, of those that are wider than 16 devices, all together.
///
/// Twice what 16 devices come to, with two megabytes for each of their 32 parts on a machine of few cores: of 60 devices 17 rows are under way then, of 255, the most that a chunk
/// has, 4. More would not be read faster, since what is to be read is announced to all devices before (`rows`), and one for each core is
/// enough to look at it.
pub const WIDE_ROWS_LEN_MAX: u64 = 128 << 20;

/// How much of a part's memory is read into; as much again is for settling a row.
const SHARES: u64 = 2;
/// How often those who wait look whether the scrub is to stop.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Whether a row of a chunk with parity does not fit into the buffer of a thread.
pub(super) fn is_wide(map: &ChunkMap) -> bool {
    row_len(map) > READ_LEN
}

/// Bytes of a row, parity and all.
pub(super) fn row_len(map: &ChunkMap) -> u64 {
    map.stripes.len() as u64 * STRIPE_LEN
}

/// What there is of a run's memory.
#[derive(Default)]
pub(super) struct Buffers {
    state: Mutex<rank::ScrubRun, State>,
    freed: Condvar,
    held: AtomicU64,
    held_most: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Bytes of all [`Wide`].
    taken: u64,
    /// What was read into, to be used again.
    idle: Vec<Vec<u8>>,
}

impl State {
    fn idle_len(&self) -> u64 {
        self.idle.iter().map(|bytes| bytes.len() as u64).sum()
    }
}

impl Buffers {
    /// Memory of a thread.
    pub fn of_thread(self: &Arc<Self>) -> Buffer {
        Buffer { bytes: Vec::new(), of: self.clone() }
    }

    /// Waits until there is room for a part with one row of a chunk; `None` if the scrub is to stop.
    pub fn take(self: &Arc<Self>, map: &ChunkMap, goes_on: &dyn Fn() -> bool) -> Option<Wide> {
        let len = SHARES * row_len(map);
        let mut state = self.state.lock();
        while state.taken > 0 && state.taken + len > WIDE_ROWS_LEN_MAX {
            if !goes_on() {
                return None;
            }
            let _timed_out = self.freed.wait_until(&mut state, Instant::now() + LOOK_EVERY);
        }
        state.taken += len;
        // Of wider rows it would be more than what is taken.
        let fits = |bytes: &Vec<u8>| bytes.len() as u64 <= row_len(map);
        let bytes = state.idle.iter().rposition(fits).map(|nth| state.idle.swap_remove(nth)).unwrap_or_default();
        while state.taken + state.idle_len() > WIDE_ROWS_LEN_MAX
            && let Some(bytes) = state.idle.pop()
        {
            self.gone(bytes.len() as u64);
        }
        Some(Wide { buffer: Buffer { bytes, of: self.clone() }, len })
    }

    /// Lets go of what is kept to be used again.
    pub fn let_go(&self) {
        let idle = std::mem::take(&mut self.state.lock().idle);
        self.gone(idle.iter().map(|bytes| bytes.len() as u64).sum());
    }

    /// Counts memory for as long as the result lives.
    pub fn count(self: &Arc<Self>, len: u64) -> Counted {
        self.come(len);
        Counted { len, of: self.clone() }
    }

    /// The most bytes that there were.
    #[cfg(test)]
    pub fn held_most(&self) -> u64 {
        self.held_most.load(SeqCst)
    }

    fn come(&self, len: u64) {
        let held = self.held.fetch_add(len, SeqCst) + len;
        self.held_most.fetch_max(held, SeqCst);
    }

    fn gone(&self, len: u64) {
        self.held.fetch_sub(len, SeqCst);
    }
}

/// Memory that is read into.
pub(super) struct Buffer {
    bytes: Vec<u8>,
    of: Arc<Buffers>,
}

impl Buffer {
    /// So many bytes, with anything in them.
    pub fn of_len(&mut self, len: usize) -> &mut [u8] {
        let old = self.bytes.len();
        if old < len {
            let new = len.max((2 * old).min(READ_LEN as usize));
            // What is in it nobody wants moved.
            self.bytes = Vec::new();
            self.of.come((new - old) as u64);
            self.bytes = vec![0; new];
        }
        &mut self.bytes[..len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.of.gone(self.bytes.len() as u64);
    }
}

/// The memory of a part of rows that are wide.
pub(super) struct Wide {
    buffer: Buffer,
    /// Of [`WIDE_ROWS_LEN_MAX`].
    len: u64,
}

impl Wide {
    /// What it is read into.
    pub fn buffer(&mut self) -> &mut Buffer {
        &mut self.buffer
    }
}

impl Drop for Wide {
    fn drop(&mut self) {
        let mut state = self.buffer.of.state.lock();
        state.taken -= self.len;
        let bytes = std::mem::take(&mut self.buffer.bytes);
        if !bytes.is_empty() {
            state.idle.push(bytes);
        }
        drop(state);
        self.buffer.of.freed.notify_one();
    }
}

/// Memory that somebody has besides.
pub(super) struct Counted {
    len: u64,
    of: Arc<Buffers>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.of.gone(self.len);
    }
}

#[cfg(test)]
mod tests;
