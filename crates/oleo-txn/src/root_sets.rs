//! Sets of trees, each kept once: what 64 snapshots share counts as one set, however many blocks it is.

use std::sync::Arc;

use hashbrown::HashMap;
use oleo_format::TreeId;

/// A set of a [`RootSets`]: equal sets have equal numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RootSet(u32);

impl RootSet {
    /// The set without trees.
    pub const EMPTY: RootSet = RootSet(0);
}

/// Sets of trees. Memory: the numbers of the trees in all distinct sets, 8 bytes each, and some 100 bytes a set.
#[derive(Debug)]
pub struct RootSets {
    all: Vec<Arc<[TreeId]>>,
    known: HashMap<Arc<[TreeId]>, RootSet>,
    unions: HashMap<(RootSet, RootSet), RootSet>,
    withs: HashMap<(RootSet, TreeId), RootSet>,
}

impl Default for RootSets {
    fn default() -> RootSets {
        let mut sets =
            RootSets { all: Vec::new(), known: HashMap::new(), unions: HashMap::new(), withs: HashMap::new() };
        sets.of(&[]);
        sets
    }
}

impl RootSets {
    /// The set of these trees, which rise.
    pub fn of(&mut self, trees: &[TreeId]) -> RootSet {
        debug_assert!(trees.is_sorted_by(|a, b| a < b));
        if let Some(set) = self.known.get(trees) {
            return *set;
        }
        let set = RootSet(u32::try_from(self.all.len()).expect("fewer sets than memory has room for"));
        let trees: Arc<[TreeId]> = trees.into();
        self.all.push(trees.clone());
        self.known.insert(trees, set);
        set
    }

    /// The set of one tree.
    pub fn one(&mut self, tree: TreeId) -> RootSet {
        self.with(RootSet::EMPTY, tree)
    }

    /// The trees of a set, rising.
    pub fn trees(&self, set: RootSet) -> &Arc<[TreeId]> {
        &self.all[set.0 as usize]
    }

    /// Whether a tree is in a set.
    pub fn has(&self, set: RootSet, tree: TreeId) -> bool {
        self.trees(set).binary_search(&tree).is_ok()
    }

    /// What is in either.
    pub fn union(&mut self, a: RootSet, b: RootSet) -> RootSet {
        if a == b || b == RootSet::EMPTY {
            return a;
        }
        if a == RootSet::EMPTY {
            return b;
        }
        let pair = (a.min(b), a.max(b));
        if let Some(known) = self.unions.get(&pair) {
            return *known;
        }
        let mut trees = [&**self.trees(a), &**self.trees(b)].concat();
        trees.sort_unstable();
        trees.dedup();
        let set = self.of(&trees);
        self.unions.insert(pair, set);
        set
    }

    /// Returns the union of all of these. Unlike repeated [`union`](Self::union) it keeps no sets in between, whose memory would be the
    /// square of their number.
    pub fn union_of(&mut self, sets: &[RootSet]) -> RootSet {
        let mut distinct = sets.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        match *distinct {
            [] => RootSet::EMPTY,
            [one] => one,
            [a, b] => self.union(a, b),
            _ => {
                let mut trees: Vec<TreeId> = distinct.iter().flat_map(|set| self.trees(*set).iter().copied()).collect();
                trees.sort_unstable();
                trees.dedup();
                self.of(&trees)
            }
        }
    }

    /// A set and one tree more.
    pub fn with(&mut self, set: RootSet, tree: TreeId) -> RootSet {
        if let Some(known) = self.withs.get(&(set, tree)) {
            return *known;
        }
        let mut trees = self.trees(set).to_vec();
        if let Err(place) = trees.binary_search(&tree) {
            trees.insert(place, tree);
        }
        let new = self.of(&trees);
        self.withs.insert((set, tree), new);
        new
    }

    /// The trees of a set that `keep` wants.
    pub fn only(&mut self, set: RootSet, keep: impl Fn(TreeId) -> bool) -> RootSet {
        if self.trees(set).iter().all(|tree| keep(*tree)) {
            return set;
        }
        let trees: Vec<TreeId> = self.trees(set).iter().copied().filter(|tree| keep(*tree)).collect();
        self.of(&trees)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: equal sets are one, and operations are those of sets.
    /// Method: small sets against `BTreeSet`, every pair of them.
    #[test]
    fn against_ordered_sets() {
        use std::collections::BTreeSet;
        let mut sets = RootSets::default();
        let of = |bits: u64| (0..5).filter(|b| bits >> b & 1 == 1).map(TreeId).collect::<BTreeSet<_>>();
        let list = |s: &BTreeSet<TreeId>| s.iter().copied().collect::<Vec<_>>();
        for a in 0..32 {
            for b in 0..32 {
                let (x, y) = (of(a), of(b));
                let (sx, sy) = (sets.of(&list(&x)), sets.of(&list(&y)));
                assert_eq!(sx == sy, x == y);
                let union = sets.union(sx, sy);
                assert_eq!(sets.trees(union).to_vec(), list(&(&x | &y)));
                let other = sets.of(&list(&of(a & 5)));
                assert_eq!(sets.union_of(&[sy, other, sx, sy]), union);
                let rest = sets.only(sx, |tree| !y.contains(&tree));
                assert_eq!(sets.trees(rest).to_vec(), list(&(&x - &y)));
                for tree in 0..5 {
                    let with = sets.with(sx, TreeId(tree));
                    assert!(sets.has(with, TreeId(tree)));
                    assert_eq!(sets.has(sx, TreeId(tree)), x.contains(&TreeId(tree)));
                }
            }
        }
        assert_eq!(sets.all.len(), 32, "each set once");
        assert_eq!(sets.of(&[]), RootSet::EMPTY);
        assert_eq!(sets.union_of(&[]), RootSet::EMPTY);
    }

    /// Goal: the union of many sets takes memory for itself only.
    #[test]
    fn unions_of_many() {
        let mut sets = RootSets::default();
        let ones: Vec<RootSet> = (0..100).map(|tree| sets.one(TreeId(tree))).collect();
        let union = sets.union_of(&ones);
        assert_eq!((sets.trees(union).len(), sets.all.len()), (100, 102));
    }
}
