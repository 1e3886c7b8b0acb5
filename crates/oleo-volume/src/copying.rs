//! Which bytes of a device are being copied to what takes its place, and which are being written meanwhile.
//!
//! Whoever copies writes what he has read before: nobody may write there in between, or the target would keep what was there before. Normal path: (1) whoever
//! writes to a device that has a target names all places there together ([`Copying::write`]), and waits for those who copy any of them; (2) whoever copies a range
//! names it ([`Copying::copy`]), and waits for those who write there; (3) what they hold is given back when it is dropped. Writers do not exclude each other, and
//! those who copy take different ranges; whoever is elsewhere does not wait.
//!
//! Places are those of the device, not addresses: a chunk may give its place to another. A unit of a row with parity is computed from the others, so whoever writes
//! any of a row names its units on all devices that have a target.
//!
//! Nobody waits for ever: whoever copies is named before he waits, so that only those are in front of him who write already; and those have everything that
//! they wait for here before they begin.
//! Locks: `state`, a leaf. Crash: memory only.

use oleo_format::DevId;
use oleo_lock::{Condvar, Mutex, rank};

/// Bytes of a device that has a target.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct DeviceRange {
    pub devid: DevId,
    pub from: u64,
    pub to: u64,
}

impl DeviceRange {
    pub fn len(&self) -> u64 {
        self.to - self.from
    }

    fn touches(&self, other: &DeviceRange) -> bool {
        self.devid == other.devid && self.from < other.to && other.from < self.to
    }
}

#[derive(Default)]
struct State {
    /// By the number of who copies: named, whether he waits or not.
    copied: Vec<(u64, DeviceRange)>,
    /// By the number of who writes.
    written: Vec<(u64, Vec<DeviceRange>)>,
    last: u64,
}

impl State {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn is_written(&self, range: &DeviceRange) -> bool {
        self.written.iter().any(|(_, ranges)| ranges.iter().any(|other| other.touches(range)))
    }

    fn is_copied(&self, ranges: &[DeviceRange]) -> bool {
        self.copied.iter().any(|(_, range)| ranges.iter().any(|other| other.touches(range)))
    }
}

/// Who copies, and who writes.
#[derive(Default)]
pub(crate) struct Copying {
    state: Mutex<rank::CopiedPlaces, State>,
    changed: Condvar,
}

/// A range or some, until it is dropped.
#[must_use]
pub(crate) struct Places<'c> {
    of: &'c Copying,
    number: u64,
}

impl Drop for Places<'_> {
    fn drop(&mut self) {
        let mut state = self.of.state.lock();
        state.copied.retain(|(number, _)| *number != self.number);
        state.written.retain(|(number, _)| *number != self.number);
        drop(state);
        self.of.changed.notify_all();
    }
}

impl Copying {
    /// Waits until nobody writes to a range; until the result is dropped nobody does.
    pub fn copy(&self, range: DeviceRange) -> Places<'_> {
        let mut state = self.state.lock();
        let number = state.number();
        state.copied.push((number, range));
        while state.is_written(&range) {
            self.changed.wait(&mut state);
        }
        Places { of: self, number }
    }

    /// Waits until nobody copies any of some ranges; until the result is dropped nobody does. `None` for no ranges.
    pub fn write(&self, mut ranges: Vec<DeviceRange>) -> Option<Places<'_>> {
        if ranges.is_empty() {
            return None;
        }
        ranges.sort_unstable();
        ranges.dedup_by(|next, range| {
            let merges = range.devid == next.devid && next.from <= range.to;
            if merges {
                range.to = range.to.max(next.to);
            }
            merges
        });
        let mut state = self.state.lock();
        while state.is_copied(&ranges) {
            self.changed.wait(&mut state);
        }
        let number = state.number();
        state.written.push((number, ranges));
        Some(Places { of: self, number })
    }
}
