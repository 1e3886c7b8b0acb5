//! What may be found after a crash: states of the disks, made from the events of a run.
//!
//! A [`Cut`] names a state by the number of events that had happened and the fate of the writes that no flush covered.
//! [`Maker`] makes it: it contains what was flushed; of the writes after it either all (in order), or a seeded choice,
//! in a seeded order, whole or torn at [`SECTOR_LEN`]. Cuts in rising order share the work for what was flushed.
//!
//! A discard is done or not like a write, and piece by piece if writes are torn. The bytes of one that is done (flushed
//! or not) stay what they were, or become zeros or rubbish, for good. A device whose length was changed has either
//! length until the next flush.
//!
//! Invariants: the same cut of the same events gives the same bytes. A flush covers what its disk got before it.

use super::pages::{Contents, Left};
use super::record::Event;
use crate::rng::Rng;

/// Written whole or not at all, bytes.
pub const SECTOR_LEN: usize = 512;

/// A discard is done or not in pieces of this, bytes.
const DISCARD_LEN: u64 = 64 << 10;

/// What became of the writes that were not flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rest {
    /// All are there: the machine stopped, the disk did not.
    All,
    /// None is there.
    None,
    /// Each is there or not, and they came in any order.
    Some {
        /// Of the choice.
        seed: u64,
    },
    /// The same, sector by sector.
    Torn {
        /// Of the choice.
        seed: u64,
    },
}

/// One crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cut {
    /// This many events had happened.
    pub at: usize,
    /// What became of writes that were not flushed.
    pub rest: Rest,
}

/// The progress of a run at a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Steps that had returned.
    pub done: usize,
    /// Another one had begun.
    pub begun: bool,
}

/// The progress of a run after `at` events.
pub fn progress(events: &[Event], at: usize) -> Progress {
    let done = events[..at].iter().filter(|e| matches!(e, Event::End(_))).count();
    let begun = events[..at].iter().filter(|e| matches!(e, Event::Begin(_))).count() > done;
    Progress { done, begun }
}

/// Which cuts are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds {
    /// At every flush: before and after it, with and without what it covers.
    pub flushes: bool,
    /// After every write.
    pub writes: bool,
    /// After every step.
    pub steps: bool,
    /// Seeded choices of writes for each stretch between two flushes.
    pub some: u32,
    /// Seeded choices of sectors for each stretch between two flushes.
    pub torn: u32,
}

/// All cuts of these kinds, rising, each once.
pub fn cuts(events: &[Event], kinds: &Kinds, rng: &mut Rng) -> Vec<Cut> {
    let mut out = Vec::new();
    // The start of the present stretch, and the number of writes in it.
    let (mut start, mut writes) = (0, 0_u32);
    for (i, event) in events.iter().enumerate() {
        match event {
            Event::Write { .. } | Event::Discard { .. } | Event::SetLen { .. } => {
                writes += 1;
                if kinds.writes {
                    out.push(Cut { at: i + 1, rest: Rest::All });
                }
            }
            Event::End(_) if kinds.steps => {
                out.push(Cut { at: i + 1, rest: Rest::All });
                out.push(Cut { at: i + 1, rest: Rest::None });
            }
            _ => {}
        }
        let flush = matches!(event, Event::Flush { .. });
        if !flush && i + 1 < events.len() {
            continue;
        }
        let end = if flush { i } else { i + 1 };
        if kinds.flushes {
            out.push(Cut { at: i, rest: Rest::All });
            out.push(Cut { at: i + 1, rest: Rest::None });
        }
        if writes > 0 {
            // Half of them at the end of the stretch.
            let mut anywhere = || match rng.one_in(2) {
                true => end,
                false => start + 1 + usize::try_from(rng.below((end - start) as u64)).unwrap_or(0),
            };
            let at: Vec<usize> = (0..kinds.some + kinds.torn).map(|_| anywhere()).collect();
            for (nth, at) in (0..).zip(at) {
                let seed = rng.next_u64() >> 16;
                out.push(Cut { at, rest: if nth < kinds.some { Rest::Some { seed } } else { Rest::Torn { seed } } });
            }
        }
        (start, writes) = (i + 1, 0);
    }
    out.sort();
    out.dedup();
    out
}

/// Makes states.
pub struct Maker<'a> {
    events: &'a [Event],
    /// The durable contents after the first `next` events.
    durable: Vec<Contents>,
    /// Writes among these that are not, as places in `events`.
    pending: Vec<usize>,
    next: usize,
}

impl<'a> Maker<'a> {
    /// Begins with the initial contents of the disks.
    pub fn new(base: &[Contents], events: &'a [Event]) -> Maker<'a> {
        Maker { events, durable: base.to_vec(), pending: Vec::new(), next: 0 }
    }

    /// The state of all disks. Cuts must come in rising order of `at`.
    pub fn make(&mut self, cut: &Cut) -> Vec<Contents> {
        assert!(cut.at >= self.next, "cuts come in rising order");
        while self.next < cut.at {
            match &self.events[self.next] {
                Event::Write { .. } | Event::Discard { .. } | Event::SetLen { .. } => self.pending.push(self.next),
                Event::Flush { disk } => self.flush(*disk),
                Event::Begin(_) | Event::End(_) => {}
            }
            self.next += 1;
        }
        let mut out = self.durable.clone();
        match cut.rest {
            Rest::None => {}
            Rest::All => self.pending.iter().for_each(|i| put(&mut out, self.events, *i)),
            Rest::Some { seed } => {
                let mut rng = Rng::new(seed);
                for i in shuffled(&self.pending, &mut rng) {
                    if rng.one_in(2) {
                        put(&mut out, self.events, i);
                    }
                }
            }
            Rest::Torn { seed } => {
                let mut rng = Rng::new(seed);
                // Sometimes nearly everything, mostly a part.
                let kept_of_eight = 1 + rng.below(7);
                for i in shuffled(&self.pending, &mut rng) {
                    let mut kept = || rng.below(8) < kept_of_eight;
                    match &self.events[i] {
                        Event::Write { disk, offset, data } => {
                            for (nth, sector) in data.chunks(SECTOR_LEN).enumerate().filter(|_| kept()) {
                                out[*disk].write(offset + (nth * SECTOR_LEN) as u64, sector);
                            }
                        }
                        Event::Discard { disk, offset, len } => {
                            for at in (0..*len).step_by(DISCARD_LEN as usize).filter(|_| kept()) {
                                out[*disk].discard(offset + at, DISCARD_LEN.min(len - at), left(i));
                            }
                        }
                        _ if kept() => put(&mut out, self.events, i),
                        _ => {}
                    }
                }
            }
        }
        out
    }

    fn flush(&mut self, flushed: usize) {
        let (events, durable) = (self.events, &mut self.durable);
        self.pending.retain(|i| match &events[*i] {
            Event::Write { disk, .. } | Event::Discard { disk, .. } | Event::SetLen { disk, .. }
                if *disk == flushed =>
            {
                put(durable, events, *i);
                false
            }
            _ => true,
        });
    }
}

fn put(disks: &mut [Contents], events: &[Event], nth: usize) {
    match &events[nth] {
        Event::Write { disk, offset, data } => disks[*disk].write(*offset, data),
        Event::Discard { disk, offset, len } => disks[*disk].discard(*offset, *len, left(nth)),
        Event::SetLen { disk, len } => disks[*disk].set_len(*len),
        Event::Flush { .. } | Event::Begin(_) | Event::End(_) => {}
    }
}

/// What the nth event, a discard, leaves: rubbish as often as not.
fn left(nth: usize) -> Left {
    match Rng::new(nth as u64).below(4) {
        0 => Left::Old,
        1 => Left::Zeros,
        _ => Left::Rubbish,
    }
}

fn shuffled(from: &[usize], rng: &mut Rng) -> Vec<usize> {
    let mut out = from.to_vec();
    for i in (1..out.len()).rev() {
        out.swap(i, usize::try_from(rng.below(i as u64 + 1)).unwrap_or(0));
    }
    out
}

#[cfg(test)]
mod tests;
