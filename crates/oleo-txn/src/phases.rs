//! Short looks, counted so that many threads at a time write to no line that others use: for [`Readers`](crate::readers).
//!
//! There are two phases, one of them open. A look counts itself into the open phase, in the slot of its thread, and out again
//! when it ends. The phases change places ([`Phases::turn`]) only when the closed one is empty in all slots. So whoever looked when
//! something was set aside is gone after two turns: the first one waits for those of the closed phase, the second for those of the open one.
//!
//! Invariants: a look ends in the slot and phase in which it began. A look that was delayed between reading which phase is open and counting
//! itself in reads it again, and begins anew if it has changed; if it has changed twice, it is the same as if the look had begun now.
//! All steps are sequentially consistent: the second reading is what orders a look before or after a turn.
//! Locks: none; one thread turns at a time.

use std::sync::atomic::AtomicU64;

use crate::count::Count;

/// On lines of its own: two, since processors fetch them in pairs.
#[repr(align(128))]
struct Slot<C>([C; 2]);

/// The looks under way.
pub(crate) struct Phases<C = AtomicU64> {
    slots: Box<[Slot<C>]>,
    /// Turns so far; the lowest bit says which phase is open. Written by turns alone, so that looks share the line.
    turns: Slot<C>,
}

/// What [`Phases::begin`] returned, for the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Began {
    slot: usize,
    phase: usize,
}

impl<C: Count> Phases<C> {
    pub(crate) fn new(slots: usize) -> Phases<C> {
        let new = || Slot([C::new(), C::new()]);
        Phases { slots: (0..slots).map(|_| new()).collect(), turns: new() }
    }

    /// Turns so far.
    pub(crate) fn turns(&self) -> u64 {
        self.turns.0[0].get()
    }

    /// A look begins, in one of the slots.
    pub(crate) fn begin(&self, slot: usize) -> Began {
        loop {
            let phase = self.turns() as usize % 2;
            self.slots[slot].0[phase].add(1);
            if self.turns() as usize % 2 == phase {
                return Began { slot, phase };
            }
            self.slots[slot].0[phase].sub(1);
        }
    }

    pub(crate) fn end(&self, began: Began) {
        self.slots[began.slot].0[began.phase].sub(1);
    }

    /// Opens the closed phase if nobody is left in it. One thread at a time.
    pub(crate) fn turn(&self) -> bool {
        let closed = (self.turns() as usize + 1) % 2;
        let is_empty = self.slots.iter().all(|slot| slot.0[closed].get() == 0);
        if is_empty {
            self.turns.0[0].add(1);
        }
        is_empty
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Goal: what was set aside is not released while somebody who may have seen it looks. Method: two threads look at the newest of a row of
    /// values and must find it unreleased until they end; a third publishes values and releases the one before each after two
    /// turns; under a scheduler that decides every step, at random and with few ill-timed interruptions.
    #[test]
    fn nothing_is_released_under_a_look() {
        use shuttle::sync::atomic::AtomicU64 as Scheduled;
        const VALUES: u64 = 3;
        let model = || {
            let phases = Arc::new(Phases::<Scheduled>::new(2));
            let (newest, released) = (Arc::new(Scheduled::new(1)), Arc::new(Scheduled::new(0)));
            let mut threads = Vec::new();
            for slot in 0..2 {
                let (phases, newest, released) = (phases.clone(), newest.clone(), released.clone());
                threads.push(shuttle::thread::spawn(move || {
                    for _ in 0..2 {
                        let began = phases.begin(slot);
                        let seen = newest.get();
                        assert!(released.get() < seen, "released under a look");
                        phases.end(began);
                    }
                }));
            }
            threads.push(shuttle::thread::spawn(move || {
                for value in 2..=VALUES {
                    newest.add(1);
                    let after = phases.turns() + 2;
                    // Bounded, so that a schedule in which nobody leaves ends.
                    for _ in 0..6 {
                        let _ = phases.turn();
                        if phases.turns() >= after {
                            released.add(value - 1 - released.get());
                            break;
                        }
                        shuttle::thread::yield_now();
                    }
                    if phases.turns() < after {
                        return;
                    }
                }
            }));
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        };
        shuttle::check_random(model, 3000);
        shuttle::check_pct(model, 3000, 3);
    }
}
