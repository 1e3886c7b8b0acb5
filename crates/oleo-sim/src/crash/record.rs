//! A device that records every write, discard, change of length and flush, with the step of the run during which it
//! came.
//!
//! Normal path: (1) [`Journal::new`]; (2) [`Journal::disk`] for each device of a volume; (3) the volume is used, each
//! step of the run between [`Journal::begin`] and [`Journal::end`]; (4) [`Journal::take`] returns the events, in the
//! order in which the devices got them.
//!
//! Invariants: reads see every write immediately, as through a drive's cache. A request of a batch is one write,
//! however many parts it has. A write is recorded before it returns, a flush when it is requested.
//! A [`Fault`] makes the devices lose requests or fail: to prove that lost writes are noticed, and to test errors.
//! Locks: the journal's, held for each request, so that "before the flush" has a meaning.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oleo_device::{Device, DeviceError, Op, WriteReq};

use super::pages::{Contents, Overlay};

/// Something that happened to the devices of a run.
#[derive(Clone, Debug)]
pub enum Event {
    /// Bytes were written.
    Write {
        /// Which device, by the order in which they were made.
        disk: usize,
        /// Offset in bytes.
        offset: u64,
        /// What.
        data: Arc<[u8]>,
    },
    /// A device got a discard.
    Discard {
        /// Which device.
        disk: usize,
        /// Offset in bytes.
        offset: u64,
        /// How many.
        len: u64,
    },
    /// A device (a file) was made longer or shorter.
    SetLen {
        /// Which device.
        disk: usize,
        /// Bytes now.
        len: u64,
    },
    /// A device was requested to make its writes durable.
    Flush {
        /// Which device.
        disk: usize,
    },
    /// A step of the run begins, by its number from 0.
    Begin(usize),
    /// The step has returned to its caller.
    End(usize),
}

/// What the devices do wrong. Numbers count from 0, over all disks of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The nth write fails.
    FailWrite(u64),
    /// The nth flush fails.
    FailFlush(u64),
    /// The nth read fails.
    FailRead(u64),
    /// The nth read gives bytes with one bit changed.
    RotRead(u64),
    /// The nth write is taken and never reaches the disk: reads still see it, a crash does not.
    SwallowWrite(u64),
    /// The nth flush succeeds and does nothing.
    DropFlush(u64),
    /// No flush does anything.
    DropFlushes,
}

#[derive(Default)]
struct State {
    events: Vec<Event>,
    fault: Option<Fault>,
    writes: u64,
    flushes: u64,
    reads: u64,
    /// A fault with a number has happened.
    struck: bool,
}

/// What happens to a set of devices; see the module's text.
#[derive(Clone, Default)]
pub struct Journal(Arc<Mutex<State>>);

/// How often the devices were asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Counts {
    pub writes: u64,
    pub flushes: u64,
    pub reads: u64,
}

impl Journal {
    /// One without events.
    pub fn new() -> Journal {
        Journal::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves nothing half done in here.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A device that writes its history here. `disk` is its number in the events.
    pub fn disk(&self, disk: usize, contents: Contents) -> Recorder {
        let name = format!("disk {disk}");
        Recorder { seen: Overlay::new(&name, contents), name: name.into(), disk, journal: self.clone() }
    }

    /// Counts begin again, and the fault, if any, will happen.
    pub fn inject(&self, fault: Option<Fault>) {
        let mut state = self.state();
        (state.writes, state.flushes, state.reads) = (0, 0, 0);
        (state.fault, state.struck) = (fault, false);
    }

    /// Whether the fault has happened.
    pub fn struck(&self) -> bool {
        self.state().struck
    }

    /// Requests since the beginning, or since the last [`Journal::inject`].
    pub fn counts(&self) -> Counts {
        let state = self.state();
        Counts { writes: state.writes, flushes: state.flushes, reads: state.reads }
    }

    /// A step begins.
    pub fn begin(&self, step: usize) {
        self.state().events.push(Event::Begin(step));
    }

    /// The step is over.
    pub fn end(&self, step: usize) {
        self.state().events.push(Event::End(step));
    }

    /// Everything that happened so far; the journal is empty afterwards.
    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.state().events)
    }
}

/// A device that writes its history to a [`Journal`].
pub struct Recorder {
    /// With every write.
    seen: Overlay,
    name: Arc<str>,
    disk: usize,
    journal: Journal,
}

impl Recorder {
    /// With every write.
    pub fn contents(&self) -> Contents {
        self.seen.contents()
    }

    fn fails(&self, op: Op, offset: u64, len: usize) -> DeviceError {
        let source = Arc::new(io::Error::other("a fault that a test asked for"));
        DeviceError::Io { name: self.name.clone(), op, offset, len: len as u64, source }
    }
}

impl Device for Recorder {
    fn len(&self) -> u64 {
        self.seen.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let fault = {
            let mut state = self.journal.state();
            let nth = state.reads;
            state.reads += 1;
            let fault = state.fault.filter(|f| matches!(f, Fault::FailRead(n) | Fault::RotRead(n) if *n == nth));
            state.struck |= fault.is_some();
            fault
        };
        match fault {
            Some(Fault::FailRead(_)) => Err(self.fails(Op::Read, offset, buf.len())),
            Some(_) => {
                self.seen.read_at(offset, buf)?;
                if let Some(byte) = buf.get_mut(buf.len() / 2) {
                    *byte ^= 0x10;
                }
                Ok(())
            }
            None => self.seen.read_at(offset, buf),
        }
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        let mut state = self.journal.state();
        let nth = state.writes;
        state.writes += 1;
        if state.fault == Some(Fault::FailWrite(nth)) {
            state.struck = true;
            return Err(self.fails(Op::Write, offset, buf.len()));
        }
        self.seen.write_at(offset, buf)?;
        if state.fault == Some(Fault::SwallowWrite(nth)) {
            state.struck = true;
        } else {
            state.events.push(Event::Write { disk: self.disk, offset, data: buf.into() });
        }
        Ok(())
    }

    fn write_batch(&self, reqs: &[WriteReq<'_>]) -> Result<(), DeviceError> {
        reqs.iter().try_for_each(|req| match req.parts {
            [one] => self.write_at(req.offset, one),
            many => self.write_at(req.offset, &many.concat()),
        })
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let mut state = self.journal.state();
        let nth = state.flushes;
        state.flushes += 1;
        match state.fault {
            Some(Fault::FailFlush(n)) if n == nth => {
                state.struck = true;
                return Err(self.fails(Op::Flush, 0, 0));
            }
            Some(Fault::DropFlush(n)) if n == nth => state.struck = true,
            Some(Fault::DropFlushes) => state.struck = true,
            _ => state.events.push(Event::Flush { disk: self.disk }),
        }
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let mut state = self.journal.state();
        self.seen.discard(offset, len)?;
        state.events.push(Event::Discard { disk: self.disk, offset, len });
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        let mut state = self.journal.state();
        self.seen.set_len(len)?;
        state.events.push(Event::SetLen { disk: self.disk, len });
        Ok(())
    }

    fn name(&self) -> String {
        self.name.to_string()
    }

    fn read_only(&self) -> bool {
        false
    }
}
