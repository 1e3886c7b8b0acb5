//! Sets of subvolumes, interned: equal sets are stored once and are equal numbers.
//!
//! Used only when quota is on: the walk carries, from the roots down, which subvolumes reach a block. With 64 snapshots
//! that share almost everything there are a handful of sets.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use oleo_format::TreeId;
use parking_lot::Mutex;

/// The number of a set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct SetId(pub u32);

impl SetId {
    /// The empty set; also the result while sets are not tracked.
    pub const EMPTY: SetId = SetId(0);
}

#[derive(Default)]
struct Inner {
    sets: Vec<Vec<TreeId>>,
    numbers: HashMap<Vec<TreeId>, u32>,
    unions: HashMap<(u32, u32), u32>,
}

/// The sets of one check.
pub(crate) struct Sets {
    on: bool,
    inner: Mutex<Inner>,
}

impl Sets {
    /// `on`: whether sets are tracked.
    pub fn new(on: bool) -> Sets {
        let mut inner = Inner::default();
        inner.number(Vec::new());
        Sets { on, inner: Mutex::new(inner) }
    }

    pub fn is_on(&self) -> bool {
        self.on
    }

    /// The set of one tree.
    pub fn of_one(&self, tree: TreeId) -> SetId {
        if !self.on {
            return SetId::EMPTY;
        }
        SetId(self.inner.lock().number(vec![tree]))
    }

    /// The union of two sets.
    pub fn union(&self, a: SetId, b: SetId) -> SetId {
        if !self.on || a == b || b == SetId::EMPTY {
            return a;
        }
        if a == SetId::EMPTY {
            return b;
        }
        let pair = (a.0.min(b.0), a.0.max(b.0));
        let mut inner = self.inner.lock();
        if let Some(&known) = inner.unions.get(&pair) {
            return SetId(known);
        }
        let mut both = inner.sets[a.0 as usize].clone();
        both.extend_from_slice(&inner.sets[b.0 as usize]);
        both.sort_unstable();
        both.dedup();
        let number = inner.number(both);
        inner.unions.insert(pair, number);
        SetId(number)
    }

    /// The sets with their bytes, without the empty one.
    pub fn shares(&self, bytes: &BTreeMap<u32, u64>) -> Vec<crate::input::Share> {
        let inner = self.inner.lock();
        let share =
            |(&set, &bytes): (&u32, &u64)| crate::input::Share { trees: inner.sets[set as usize].clone(), bytes };
        bytes.iter().filter(|(set, _)| **set != 0).map(share).collect()
    }
}

impl Inner {
    fn number(&mut self, set: Vec<TreeId>) -> u32 {
        if let Some(&known) = self.numbers.get(&set) {
            return known;
        }
        let number = u32::try_from(self.sets.len()).unwrap_or(0);
        self.sets.push(set.clone());
        self.numbers.insert(set, number);
        number
    }
}
