//! The index over groups: "the next group, going up from here, that has a free run of this class", and "… that has anything
//! free".
//!
//! One [`BitTree`] per class of lengths, one bit per group slot; a group is in the trees of all classes that its runs have, and in one for all that
//! are not full. Most changes of its runs change none of them: others of the same classes are left. A search goes class by
//! class, from the shortest that will do, which keeps long runs whole. A tree is a bitmap with bitmaps over it (64 to one), read and
//! changed by atomic operations: no thread waits for another, and a million groups are four steps deep. A full group has no bit
//! set, so it costs a search nothing. One more word says which trees are not empty.
//!
//! Invariants: at rest, an upper bit is set exactly when the word under it is not zero. While one thread clears the
//! last bit of a word and another sets one, the upper bit may be missing for a moment; and a search that goes class by class
//! may have passed the class that a group just comes into. [`By::Any`] reads the lowest level of a tree alone whose bit stays set while
//! anything is free: it cannot miss a group, and the last pass of an allocation uses it.
//!
//! Locks: none. The caller serialises changes of one group (by the group's lock).

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use crate::atomic::AtomicCell;
use crate::group::Lengths;
use crate::runs::find::bits;
use crate::runs::{CLASSES, class_of};

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
            let (word, bit) = (&level[at / 64], 1 << (at % 64));
            let mut left = word.and(!bit) & !bit;
            // Another thread may have set a bit below between our look at that word and the clearing of this bit; or have
            // cleared it again before we put ours back.
            while depth > 0 && self.levels[depth - 1][at].load() != 0 {
                word.or(bit);
                if self.levels[depth - 1][at].load() != 0 {
                    return;
                }
                left = word.and(!bit) & !bit;
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
    /// They have a free run of this class.
    Class(usize),
    /// They have something free; none is missed.
    Any,
}

impl By {
    /// Whether a search among these groups is content with a run of that many bytes: there may be others as long as it elsewhere.
    pub(crate) fn takes(self, run_len: u64, sector_shift: u32) -> bool {
        match self {
            By::Class(class) => class_of(run_len, sector_shift) <= class,
            By::Any => true,
        }
    }
}

/// Sets or clears a class's bit as its tree has something or nothing, after the tree was changed. Whoever changes the bit looks
/// again, and whoever changes the tree looks afterwards, so at rest they agree.
pub(crate) fn tell<W: AtomicCell>(tree: &BitTree<W>, classes: &W, class: usize) {
    let bit = 1 << class;
    // Another turn is one in which another thread has changed the tree.
    loop {
        let has = !tree.is_empty();
        if has == (classes.load() & bit != 0) {
            return;
        }
        if has {
            classes.or(bit)
        } else {
            classes.and(!bit)
        };
    }
}

/// The groups of one kind by the classes of their free runs.
pub(crate) struct LengthIndex {
    /// Each is made for the first group that has the class: groups that nobody has looked into have few.
    of_class: [OnceLock<BitTree>; CLASSES],
    slots: usize,
    /// A bit for each class whose tree is not empty: an upper level of all trees, with the same rules.
    classes: AtomicU64,
    any: BitTree,
}

impl LengthIndex {
    pub(crate) fn new(slots: usize) -> LengthIndex {
        let of_class = std::array::from_fn(|_| OnceLock::new());
        LengthIndex { of_class, slots, classes: AtomicU64::new(0), any: BitTree::new(slots) }
    }

    /// A group's lengths went from `old` to `new`.
    pub(crate) fn change(&self, slot: usize, old: Lengths, new: Lengths) {
        match (old == Lengths::NONE, new == Lengths::NONE) {
            (true, false) => self.any.set(slot),
            (false, true) => self.any.clear(slot),
            _ => {}
        }
        // In this order, so that a search sees it twice rather than not at all.
        for class in bits(new.0 & !old.0) {
            let tree = self.of_class[class].get_or_init(|| BitTree::new(self.slots));
            tree.set(slot);
            tell(tree, &self.classes, class);
        }
        for class in bits(old.0 & !new.0) {
            let Some(tree) = self.of_class[class].get() else { continue };
            tree.clear(slot);
            tell(tree, &self.classes, class);
        }
    }

    /// The next such slot at or after `from`.
    pub(crate) fn next(&self, by: By, from: usize) -> Option<usize> {
        match by {
            By::Class(class) => self.of_class[class].get()?.next(from),
            By::Any => self.any.next_thorough(from),
        }
    }

    /// The classes that any group has, at the moment of one look.
    pub(crate) fn classes(&self) -> u64 {
        AtomicCell::load(&self.classes)
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
