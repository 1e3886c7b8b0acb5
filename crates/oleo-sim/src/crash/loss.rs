//! Disks that are lost after a crash: which sets a profile allows, and what is left without one.

use super::pages::Contents;

/// Disks that are gone, by their numbers, rising.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Loss(pub Vec<usize>);

impl Loss {
    /// Every set of up to `most` of so many disks, but the empty one; the small ones first.
    pub fn all(disks: usize, most: usize) -> Vec<Loss> {
        let mut sets = vec![Vec::new()];
        let mut all = Vec::new();
        for _ in 0..most {
            let longer = |set: &Vec<usize>| {
                let first = set.last().map_or(0, |last| last + 1);
                (first..disks).map(|disk| [&set[..], &[disk]].concat()).collect::<Vec<_>>()
            };
            sets = sets.iter().flat_map(longer).collect();
            all.extend(sets.iter().cloned().map(Loss));
        }
        all
    }

    /// The disks that are left.
    pub fn leaves(&self, state: &[Contents]) -> Vec<Contents> {
        let left = state.iter().enumerate().filter(|(disk, _)| !self.0.contains(disk));
        left.map(|(_, contents)| contents.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: all sets are there, each once. Method: five disks, of which up to two are lost.
    #[test]
    fn all_sets_are_there() {
        let all = Loss::all(5, 2);
        assert_eq!(all.len(), 5 + 10);
        assert!(all.iter().all(|loss| loss.0.is_sorted() && loss.0.iter().all(|disk| *disk < 5)));
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), all.len());
        assert_eq!(all[0], Loss(vec![0]));
        assert_eq!(all[14], Loss(vec![3, 4]));
    }
}
