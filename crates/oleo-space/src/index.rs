//! The index over groups: "the next group, going up from here, whose longest free run has this order", "… whose free runs
//! have this order on average", and "… that has anything free".
//!
//! One [`BitTree`] per order, one bit per group slot; a group is in the tree of the order of its longest run, in that of its
//! average one, and in one for all that are not full. So most changes of its runs do not change the index, and the others
//! move it from one tree to another; a search goes order by order, from the shortest that will do, which keeps
//! long runs whole. A tree is a bitmap with bitmaps over it (64 to one), read and changed by atomic operations: no thread
//! waits for another, and a million groups are four steps deep. A full group has no bit set, so it costs a search nothing.
//!
//! Invariants: at rest, an upper bit is set exactly when the word under it is not zero. While one thread clears the
//! last bit of a word and another sets one, the upper bit may be missing for a moment; and a search that goes order by order
//! may have passed the order that a group just comes into. [`By::Any`] reads the lowest level of a tree alone whose bit stays set while
//! anything is free: it cannot miss a group, and the last pass of an allocation uses it.
//!
//! Locks: none. The caller serialises changes of one group (by the group's lock).

use std::sync::atomic::AtomicU64;

use crate::atomic::AtomicCell;
use crate::group::Orders;
use crate::runs::ORDERS;

/// Levels that a tree can have: 64⁶ slots are more groups than 64 bits of address hold.
const LEVELS_MAX: usize = 6;

/// A set of slot numbers.
pub(crate) struct BitTree<W = AtomicU64> {
    /// `levels[0]` has a bit per slot, each further level a bit per word of the one below.
    levels: Vec<Box<[W]>>,
}

impl<W: AtomicCell> BitTree<W> {
    pub(crate) fn new(slots: usize) -> BitTree<W> {
        let mut levels = Vec::new();
        let mut words = slots.div_ceil(64).max(1);
        loop {
            levels.push((0..words).map(|_| W::new(0)).collect());
            if words == 1 || levels.len() == LEVELS_MAX {
                return BitTree { levels };
            }
            words = words.div_ceil(64);
        }
    }

    /// Whether nothing is in the set, according to the topmost level.
    fn is_empty(&self) -> bool {
        self.levels.last().is_none_or(|top| top.iter().all(|word| word.load() == 0))
    }

    pub(crate) fn set(&self, slot: usize) {
        let mut at = slot;
        for level in &self.levels {
            level[at / 64].or(1 << (at % 64));
            at /= 64;
        }
    }

    pub(crate) fn clear(&self, slot: usize) {
        let mut at = slot;
        for (depth, level) in self.levels.iter().enumerate() {
            let bit = 1 << (at % 64);
            let left = level[at / 64].and(!bit) & !bit;
            // Another thread may have set a bit below between our look at that word and the clearing of this bit.
            if depth > 0 && self.levels[depth - 1][at].load() != 0 {
                level[at / 64].or(bit);
                return;
            }
            if left != 0 {
                return;
            }
            at /= 64;
        }
    }

    /// The first slot at or after `from` that is in the set.
    pub(crate) fn next(&self, from: usize) -> Option<usize> {
        let mut at = from;
        let mut depth = 0;
        // Up until a word has something at or after us, …
        loop {
            let word = self.levels[depth].get(at / 64)?.load() & (u64::MAX << (at % 64));
            if word != 0 {
                at = at / 64 * 64 + word.trailing_zeros() as usize;
                break;
            }
            at = at / 64 + 1;
            depth += 1;
            if depth == self.levels.len() {
                return None;
            }
        }
        // … then down along first bits.
        while depth > 0 {
            depth -= 1;
            let word = self.levels[depth][at].load();
            if word == 0 {
                // Cleared between the two looks; rare, and the plain scan is always right.
                return self.next_thorough(from);
            }
            at = at * 64 + word.trailing_zeros() as usize;
        }
        Some(at)
    }

    /// The same, from the lowest level alone.
    pub(crate) fn next_thorough(&self, from: usize) -> Option<usize> {
        let mut mask = u64::MAX << (from % 64);
        for (i, word) in self.levels[0].iter().enumerate().skip(from / 64) {
            let word = word.load() & mask;
            if word != 0 {
                return Some(i * 64 + word.trailing_zeros() as usize);
            }
            mask = u64::MAX;
        }
        None
    }
}

/// Which groups a search means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    /// Their longest free run has this order.
    Longest(usize),
    /// Their free runs have this order on average.
    Average(usize),
    /// They have something free; none is missed.
    Any,
}

/// The groups of one kind by the order of their longest free run, and by that of their average one.
pub(crate) struct OrderIndex {
    longest: [BitTree; ORDERS],
    average: [BitTree; ORDERS],
    any: BitTree,
}

impl OrderIndex {
    pub(crate) fn new(slots: usize) -> OrderIndex {
        let trees = || std::array::from_fn(|_| BitTree::new(slots));
        OrderIndex { longest: trees(), average: trees(), any: BitTree::new(slots) }
    }

    /// A group's orders went from `old` to `new`.
    pub(crate) fn change(&self, slot: usize, old: Orders, new: Orders) {
        match (old.longest > 0, new.longest > 0) {
            (false, true) => self.any.set(slot),
            (true, false) => self.any.clear(slot),
            _ => {}
        }
        Self::change_in(&self.longest, slot, old.longest, new.longest);
        Self::change_in(&self.average, slot, old.average, new.average);
    }

    fn change_in(trees: &[BitTree; ORDERS], slot: usize, old: u8, new: u8) {
        let tree = |filed: u8| trees.get(usize::from(filed).checked_sub(1)?);
        if old != new {
            // In this order, so that a search sees it twice rather than not at all.
            tree(new).into_iter().for_each(|tree| tree.set(slot));
            tree(old).into_iter().for_each(|tree| tree.clear(slot));
        }
    }

    /// The next such slot at or after `from`.
    pub(crate) fn next(&self, by: By, from: usize) -> Option<usize> {
        match by {
            By::Longest(order) => self.longest[order].next(from),
            By::Average(order) => self.average[order].next(from),
            By::Any => self.any.next_thorough(from),
        }
    }

    /// Whether there is no such group, at the moment of one look.
    pub(crate) fn has_none(&self, by: By) -> bool {
        match by {
            By::Longest(order) => self.longest[order].is_empty(),
            By::Average(order) => self.average[order].is_empty(),
            By::Any => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Rng;
    use std::collections::BTreeSet;

    /// Goal: the tree is a set. Method: random sets and clears beside a `BTreeSet`; every answer compared.
    #[test]
    fn a_bit_tree_is_a_set_of_slots() {
        for slots in [1, 64, 65, 5000, 300_000] {
            let mut rng = Rng::new(slots as u64);
            let tree: BitTree = BitTree::new(slots);
            let mut model = BTreeSet::new();
            for _ in 0..3000 {
                let slot = rng.below(slots as u64) as usize;
                if rng.below(2) == 0 {
                    tree.set(slot);
                    model.insert(slot);
                } else {
                    let slot = model.range(slot..).next().copied().unwrap_or(slot);
                    tree.clear(slot);
                    model.remove(&slot);
                }
                let from = rng.below(slots as u64) as usize;
                let want = model.range(from..).next().copied();
                assert_eq!((tree.next(from), tree.next_thorough(from)), (want, want), "slots {slots}");
            }
        }
    }

    /// Goal: upper bits are right after threads have set and cleared bits of the same words.
    /// Method: each thread owns every fourth slot of a few words; at the end each slot must be found exactly if set.
    #[test]
    fn threads_changing_one_word_leave_the_upper_levels_right() {
        for seed in 0..20 {
            let tree: BitTree = BitTree::new(64 * 64 * 2);
            std::thread::scope(|scope| {
                for t in 0..4u64 {
                    let tree = &tree;
                    scope.spawn(move || {
                        let mut rng = Rng::new(seed * 4 + t);
                        for _ in 0..4000 {
                            let slot = (rng.below(8) * 512 + rng.below(2) * 4 + t) as usize;
                            if rng.below(2) == 0 { tree.set(slot) } else { tree.clear(slot) }
                        }
                    });
                }
            });
            let mut from = 0;
            while let Some(slot) = tree.next_thorough(from) {
                assert_eq!(tree.next(from), Some(slot), "seed {seed}");
                from = slot + 1;
            }
            assert_eq!(tree.next(from), None, "seed {seed}");
        }
    }
}
