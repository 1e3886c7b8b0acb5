//! How much a seeded proof tries, and from which seed on.
//!
//! A proof names two counts: a sample for CI, and the full count. `OLEO_BUDGET` selects one: `ci` (the default), `full`,
//! or `nightly`, which is [`NIGHTLY_FACTOR`] times `full`. `OLEO_SEED` shifts the seeds of all proofs, so that each commit
//! and each night tries other inputs; `cargo xtask ci` and `cargo xtask nightly` set both and print them. Running a test
//! again with the same two variables repeats it. The tests with planted bugs (`mutants`, `what_is_wrong_is_found`) show what seeds find;
//! docs/testing.md has how often the sample of CI finds each of them.

use std::str::FromStr;

/// How many times the full count `nightly` tries.
pub const NIGHTLY_FACTOR: u64 = 3;

/// Distance between the seeds of two values of `OLEO_SEED`: more than any proof uses in one run.
const SEED_STRIDE: u64 = 10_000_000;

/// Sizes of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Size {
    /// A sample, for each commit.
    Ci,
    /// Everything that a proof names, for `scripts/test --all`.
    Full,
    /// More than that, at night.
    Nightly,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        match text {
            "ci" => Ok(Size::Ci),
            "full" => Ok(Size::Full),
            "nightly" => Ok(Size::Nightly),
            _ => Err(format!("OLEO_BUDGET is ci, full or nightly, not {text}")),
        }
    }
}

/// The budget of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Its size.
    pub size: Size,
    /// `OLEO_SEED`.
    pub seed: u64,
}

/// Reads the budget of this run from the environment.
///
/// # Panics
/// If a variable is set to something else than its values.
pub fn budget() -> Budget {
    let var = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let size = var("OLEO_BUDGET").map_or(Ok(Size::Ci), |text| text.parse());
    let seed = var("OLEO_SEED").map_or(Ok(0), |text| text.parse());
    Budget { size: size.unwrap_or_else(|e| panic!("{e}")), seed: seed.expect("OLEO_SEED is a number") }
}

impl Budget {
    /// Returns how many seeds, states or rounds a proof tries: `ci`, `full`, or a multiple of `full`.
    pub fn count(self, ci: u64, full: u64) -> u64 {
        match self.size {
            Size::Ci => ci,
            Size::Full => full,
            Size::Nightly => full * NIGHTLY_FACTOR,
        }
    }

    /// Returns the first seed of a proof: the one that it names (below 10 million), shifted by the seed of the run.
    pub fn first_seed(self, named: u64) -> u64 {
        named + self.seed * SEED_STRIDE
    }

    /// Returns the cases that a proof tries: `ci` of them in CI, others with each seed, and all otherwise.
    pub fn sample<T>(self, mut cases: Vec<T>, ci: usize) -> Vec<T> {
        if self.size == Size::Ci && ci < cases.len() {
            // Neighbours in the list are alike, so the sample is spread over it.
            let (len, step) = (cases.len(), cases.len().div_ceil(ci));
            cases.rotate_left((self.seed % len as u64) as usize);
            cases = cases.into_iter().step_by(step).collect();
        }
        cases
    }

    /// Returns the seeds of a proof from the one that it names on.
    pub fn seeds(self, named: u64, ci: u64, full: u64) -> std::ops::Range<u64> {
        let first = self.first_seed(named);
        first..first + self.count(ci, full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each size tries what it should, and two runs share no seed.
    #[test]
    fn sizes_and_seeds() {
        let of = |size, seed| Budget { size, seed };
        assert_eq!([Size::Ci, Size::Full, Size::Nightly].map(|size| of(size, 0).count(3, 20)), [3, 20, 60]);
        assert_eq!(of(Size::Ci, 0).seeds(5, 3, 20), 5..8);
        assert_eq!(of(Size::Full, 7).sample(vec![0, 1, 2, 3], 2), [0, 1, 2, 3]);
        assert_eq!(of(Size::Ci, 5).sample(vec![0, 1, 2, 3], 2), [1, 3]);
        // Every case is tried by some seed.
        for (len, ci) in [(14, 4), (31, 10), (3, 2), (5, 1), (4, 4)] {
            let all: Vec<usize> = (0..len).collect();
            let mut tried: Vec<usize> =
                (0..len as u64).flat_map(|seed| of(Size::Ci, seed).sample(all.clone(), ci)).collect();
            tried.sort_unstable();
            tried.dedup();
            assert_eq!(tried, all);
            assert!((0..40).all(|seed| (1..=ci).contains(&of(Size::Ci, seed).sample(all.clone(), ci).len())));
        }
        assert!(of(Size::Nightly, 1).seeds(0, 1, 60_000).end < of(Size::Nightly, 2).first_seed(0));
        assert_eq!("nightly".parse(), Ok(Size::Nightly));
        assert!("quick".parse::<Size>().is_err());
    }
}
