//! A device in memory that makes writes wait, or fails them, as a test requests.
//!
//! Normal path: (1) the test shuts the gate for all writes, or for those of bytes with a mark; (2) another thread
//! writes and waits; (3) [`Gate::await_held`] returns once it does, so that the test knows where that thread is and
//! need not sleep; (4) the gate is opened and the writers continue.
//!
//! Invariant: reads and flushes always pass.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oleo_device::{Device, DeviceError, MemDevice};

/// A writer that has not arrived by then will not arrive.
const AWAITED_MAX: Duration = Duration::from_secs(60);

/// How many bytes of a write are searched for a mark.
const MARKED_LEN: usize = 64;

/// Some writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writes {
    /// All of them.
    All,
    /// Those whose first bytes are this one.
    Of(u8),
}

impl Writes {
    fn has(self, bytes: &[u8]) -> bool {
        match self {
            Writes::All => true,
            Writes::Of(mark) => bytes.iter().take(MARKED_LEN).all(|b| *b == mark),
        }
    }
}

#[derive(Default)]
struct State {
    shut: Vec<Writes>,
    /// For each writer that is waiting, why.
    held: Vec<Writes>,
}

/// The device.
pub struct Gate {
    inner: MemDevice,
    state: Mutex<State>,
    reported: Condvar,
    broken: AtomicBool,
}

impl Gate {
    /// An open one over `len` zeros.
    pub fn new(len: u64) -> Gate {
        Gate {
            inner: MemDevice::new(len),
            state: Mutex::default(),
            reported: Condvar::new(),
            broken: AtomicBool::new(false),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These wait from now on.
    pub fn shut(&self, writes: Writes) {
        self.state().shut.push(writes);
    }

    /// These wait no longer.
    pub fn open(&self, writes: Writes) {
        self.state().shut.retain(|shut| *shut != writes);
        self.reported.notify_all();
    }

    /// Returns once one of these is waiting.
    ///
    /// # Panics
    /// When none comes: the test would prove nothing.
    pub fn await_held(&self, writes: Writes) {
        let none = |state: &mut State| !state.held.contains(&writes);
        let waited = self.reported.wait_timeout_while(self.state(), AWAITED_MAX, none);
        let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            // Later writers must not wait for a test that has ended.
            state.shut.clear();
            drop(state);
            self.reported.notify_all();
            panic!("no writer came to {writes:?} in {AWAITED_MAX:?}");
        }
    }

    /// All writes fail from now on, or none.
    pub fn fail(&self, broken: bool) {
        self.broken.store(broken, Ordering::SeqCst);
    }

    fn pass(&self, bytes: &[u8]) {
        let mut state = self.state();
        while let Some(why) = state.shut.iter().copied().find(|writes| writes.has(bytes)) {
            state.held.push(why);
            self.reported.notify_all();
            state = self.reported.wait(state).unwrap_or_else(PoisonError::into_inner);
            if let Some(mine) = state.held.iter().position(|held| *held == why) {
                state.held.swap_remove(mine);
            }
        }
    }
}

impl Device for Gate {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.pass(buf);
        if self.broken.load(Ordering::SeqCst) {
            // A write behind the end fails as any device's does.
            return self.inner.write_at(self.inner.len(), &[0]);
        }
        self.inner.write_at(offset, buf)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset, len)
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        self.inner.set_len(len)
    }

    fn name(&self) -> String {
        "gate".into()
    }

    fn read_only(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: writes that are shut out wait until they are let in, others pass, and those to be failed fail.
    #[test]
    fn writes_wait_for_the_gate() {
        let gate = Gate::new(1 << 20);
        gate.shut(Writes::Of(7));
        gate.write_at(0, &[1; 100]).unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| gate.write_at(4096, &[7; 100]));
            gate.await_held(Writes::Of(7));
            let mut seen = [0; 1];
            gate.read_at(4096, &mut seen).unwrap();
            assert_eq!((seen, writer.is_finished()), ([0], false));
            gate.open(Writes::Of(7));
            writer.join().unwrap().unwrap();
            gate.read_at(4096, &mut seen).unwrap();
            assert_eq!(seen, [7]);
        });
        gate.fail(true);
        assert!(gate.write_at(0, &[2; 10]).is_err());
        gate.fail(false);
        let mut seen = [0; 1];
        gate.read_at(0, &mut seen).unwrap();
        assert_eq!(seen, [1]);
    }
}
