use std::collections::BTreeSet;

use super::*;
use crate::testing::Rng;

const SHIFT: u32 = 12;
const SECTOR: u64 = 1 << SHIFT;

fn free_for(model: &BTreeSet<u64>, start: u64, len: u64) -> bool {
    (start..start + len).step_by(SECTOR as usize).all(|at| model.contains(&at))
}

/// The longest aligned stretch of free sectors, in bytes.
fn longest(model: &BTreeSet<u64>, align: u64) -> u64 {
    let (mut best, mut start, mut end) = (0, 0u64, 0);
    for &at in model {
        if at != end {
            start = at;
        }
        end = at + SECTOR;
        let from = start.next_multiple_of(align);
        best = best.max(end.saturating_sub(from) & !(align - 1));
    }
    best
}

/// Goal: runs are a set of sectors, the index by size agrees with them, and what fits is found.
/// Method: random takes, finds and insertions on 600 sectors beside a set of sector addresses.
#[test]
fn runs_are_a_set_of_sectors() {
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let base = 1 << 30;
        let mut runs = Runs::new(SHIFT);
        let mut model: BTreeSet<u64> = (0..600).map(|i| base + i * SECTOR).collect();
        runs.insert(base, base + 600 * SECTOR);
        for step in 0..1500 {
            let align = SECTOR << rng.below(3);
            let len = (1 + rng.below(24)) * SECTOR / align * align;
            let fit = Fit { len: len.max(align), min_len: align, align };
            let from = base + rng.below(600) * SECTOR;
            let at = format!("seed {seed} step {step} {fit:?} from {from}");
            let (found, least) = match rng.below(4) {
                0 => (runs.find_whole(from, &fit, true), fit.len),
                1 => (runs.find_best(&fit, true), fit.min_len),
                2 => (runs.find_at(from, &fit), fit.min_len),
                _ => {
                    let end = (from + len).min(base + 600 * SECTOR);
                    for sector in (from..end).step_by(SECTOR as usize) {
                        if model.insert(sector) {
                            runs.insert(sector, sector + SECTOR);
                        }
                    }
                    assert!(runs.is_consistent(), "{at}");
                    continue;
                }
            };
            if let Some((start, end)) = found {
                assert!(start % align == 0 && end - start >= least && end - start <= fit.len, "{at}");
                assert!(free_for(&model, start, end - start), "{at}");
                assert!(runs.take(start, end), "{at}");
                assert!(!runs.take(start, end), "{at}: taken twice");
                (start..end).step_by(SECTOR as usize).for_each(|s| assert!(model.remove(&s)));
            }
            assert!(runs.is_consistent(), "{at}");
            assert_eq!(runs.ranges().total(), model.len() as u64 * SECTOR, "{at}");
            assert!(runs.ranges().count() == 0 || runs.top_order().is_some());
        }
    }
}

/// Goal: a thorough search misses nothing. Method: random patterns; it finds a run exactly when the model has one.
#[test]
fn a_thorough_search_finds_what_there_is() {
    for seed in 0..300 {
        let mut rng = Rng::new(1000 + seed);
        let mut runs = Runs::new(SHIFT);
        let mut model = BTreeSet::new();
        for i in 0..200 {
            if rng.below(4) > 0 {
                model.insert(i * SECTOR);
                runs.insert(i * SECTOR, (i + 1) * SECTOR);
            }
        }
        for align in [SECTOR, 4 * SECTOR] {
            for len in (1..20).map(|n| n * align) {
                let fit = Fit { len, min_len: align, align };
                let longest = longest(&model, align);
                let from = rng.below(200) * SECTOR;
                assert_eq!(runs.find_whole(from, &fit, true).is_some(), longest >= len, "seed {seed} {fit:?}");
                let best = runs.find_best(&fit, true).map_or(0, |(s, e)| e - s);
                assert!(best > 0 || longest == 0, "seed {seed} {fit:?}");
            }
        }
    }
}

/// Goal: ranges unite and remove like sets. Method: random unions and removals beside a set of sectors.
#[test]
fn ranges_unite_and_remove_like_sets() {
    let mut rng = Rng::new(7);
    let mut ranges = Ranges::default();
    let mut model = BTreeSet::new();
    for _ in 0..5000 {
        let start = rng.below(200);
        let end = start + 1 + rng.below(20);
        if rng.below(2) == 0 {
            let added = (start..end).filter(|&at| model.insert(at)).count();
            assert_eq!(ranges.unite(start, end), added as u64);
        } else {
            let removed = (start..end).filter(|at| model.remove(at)).count();
            assert_eq!(ranges.remove(start, end), removed as u64);
        }
        assert_eq!(ranges.total(), model.len() as u64);
        let flat: BTreeSet<u64> = ranges.iter().flat_map(|(s, e)| s..e).collect();
        assert_eq!(flat, model);
        assert!(ranges.iter().zip(ranges.iter().skip(1)).all(|(a, b)| a.1 < b.0), "neighbours not merged");
    }
}
