//! The baselines for the allocator: the two textbook ways, each as fast as possible with one lock.
//!
//! Both keep the free runs of the whole space and merge neighbours. *First fit* takes the lowest run that is long
//! enough, found through a tree of the longest run in each half, quarter, … of the space; *best fit* takes the shortest
//! one, of equals the lowest, found in a set ordered by length. If none is long enough both return the longest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use super::{Allocator, SECTOR};

/// Which run is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    /// The lowest.
    First,
    /// The shortest.
    Best,
}

/// The longest run that begins in each part of the space, by sectors.
struct Longest {
    leaves: usize,
    tree: Vec<u32>,
}

impl Longest {
    fn new(sectors: usize) -> Longest {
        let leaves = sectors.next_power_of_two();
        Longest { leaves, tree: vec![0; 2 * leaves] }
    }

    fn set(&mut self, sector: usize, len: u32) {
        let mut at = sector + self.leaves;
        self.tree[at] = len;
        while at > 1 {
            at /= 2;
            self.tree[at] = self.tree[2 * at].max(self.tree[2 * at + 1]);
        }
    }

    /// The first sector of the lowest run of at least `len`.
    fn first(&self, len: u32) -> Option<usize> {
        if self.tree[1] < len {
            return None;
        }
        let mut at = 1;
        while at < self.leaves {
            at *= 2;
            at += usize::from(self.tree[at] < len);
        }
        Some(at - self.leaves)
    }
}

struct State {
    base: u64,
    by_start: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
    longest: Option<Longest>,
}

impl State {
    fn add(&mut self, start: u64, len: u64) {
        self.by_start.insert(start, len);
        match &mut self.longest {
            Some(longest) => longest.set(((start - self.base) / SECTOR) as usize, (len / SECTOR) as u32),
            None => drop(self.by_len.insert((len, start))),
        }
    }

    fn drop(&mut self, start: u64, len: u64) {
        self.by_start.remove(&start);
        match &mut self.longest {
            Some(longest) => longest.set(((start - self.base) / SECTOR) as usize, 0),
            None => drop(self.by_len.remove(&(len, start))),
        }
    }

    fn find(&self, len: u64) -> Option<(u64, u64)> {
        match &self.longest {
            Some(longest) => {
                let sector = longest.first((len / SECTOR) as u32).or_else(|| longest.first(longest.tree[1].max(1)))?;
                let start = self.base + sector as u64 * SECTOR;
                Some((start, *self.by_start.get(&start)?))
            }
            None => {
                let found = self.by_len.range((len, 0)..).next().or_else(|| self.by_len.last());
                found.map(|&(len, start)| (start, len))
            }
        }
    }
}

/// One lock over all free runs.
pub struct Textbook(Mutex<State>);

impl Textbook {
    /// With these free runs, rising, as (start, length).
    pub fn new(fit: Fit, runs: &[(u64, u64)]) -> Textbook {
        let base = runs.first().map_or(0, |run| run.0);
        let end = runs.last().map_or(0, |run| run.0 + run.1);
        let longest = (fit == Fit::First).then(|| Longest::new(((end - base) / SECTOR) as usize + 1));
        let mut state = State { base, by_start: BTreeMap::new(), by_len: BTreeSet::new(), longest };
        runs.iter().for_each(|&(start, len)| state.add(start, len));
        Textbook(Mutex::new(state))
    }

    fn with<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

impl Allocator for Textbook {
    fn alloc(&self, len: u64, _: u64) -> Option<(u64, u64)> {
        self.with(|state| {
            let (start, have) = state.find(len)?;
            let got = have.min(len);
            state.drop(start, have);
            if have > got {
                state.add(start + got, have - got);
            }
            Some((start, got))
        })
    }

    fn free(&self, (start, len): (u64, u64)) {
        self.with(|state| {
            let (mut start, mut len) = (start, len);
            if let Some((&s, &l)) = state.by_start.range(..start).next_back()
                && s + l == start
            {
                state.drop(s, l);
                (start, len) = (s, len + l);
            }
            if let Some(&l) = state.by_start.get(&(start + len)) {
                state.drop(start + len, l);
                len += l;
            }
            state.add(start, len);
        });
    }

    fn runs(&self) -> Vec<(u64, u64)> {
        self.with(|state| state.by_start.iter().map(|(&start, &len)| (start, len)).collect())
    }
}
