use std::collections::BTreeSet;

use super::*;
use crate::testing::Rng;

const SHIFT: u32 = 12;
const SECTOR: u64 = 1 << SHIFT;
const BASE: u64 = 1 << 30;

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
    runs_are_a_set_of_sectors_in::<u32>();
    runs_are_a_set_of_sectors_in::<u64>();
}

fn runs_are_a_set_of_sectors_in<S: Sector>() {
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let base = BASE;
        let mut runs = RunsIn::<S>::new(base, SHIFT);
        let mut model: BTreeSet<u64> = (0..600).map(|i| base + i * SECTOR).collect();
        runs.insert(base, base + 600 * SECTOR);
        for step in 0..1500 {
            let align = SECTOR << rng.below(3);
            let len = (1 + rng.below(24)) * SECTOR / align * align;
            let fit = Fit { len: len.max(align), min_len: align, align, rows: None };
            let from = base + rng.below(600) * SECTOR;
            let at = format!("seed {seed} step {step} {fit:?} from {from}");
            let (found, least) = match rng.below(6) {
                3 => (runs.find_tight(&fit), fit.len),
                4 => (runs.find_apart(from, rng.below(100) * SECTOR, &fit), fit.len),
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
            if let Some(Found { start, end, .. }) = found {
                assert!(start % align == 0 && end - start >= least && end - start <= fit.len, "{at}");
                assert!(free_for(&model, start, end - start), "{at}");
                assert!(runs.take(start, end), "{at}");
                assert!(!runs.take(start, end), "{at}: taken twice");
                (start..end).step_by(SECTOR as usize).for_each(|s| assert!(model.remove(&s)));
            }
            assert!(runs.is_consistent(), "{at}");
            assert_eq!(runs.total(), model.len() as u64 * SECTOR, "{at}");
            assert!(runs.count() == 0 || runs.top_class().is_some());
        }
    }
}

/// Goal: a thorough search misses nothing. Method: random patterns; it finds a run exactly when the model has one.
#[test]
fn a_thorough_search_finds_what_there_is() {
    a_thorough_search_finds_what_there_is_in::<u32>();
    a_thorough_search_finds_what_there_is_in::<u64>();
}

fn a_thorough_search_finds_what_there_is_in<S: Sector>() {
    for seed in 0..300 {
        let mut rng = Rng::new(1000 + seed);
        let mut runs = RunsIn::<S>::new(0, SHIFT);
        let mut model = BTreeSet::new();
        for i in 0..200 {
            if rng.below(4) > 0 {
                model.insert(i * SECTOR);
                runs.insert(i * SECTOR, (i + 1) * SECTOR);
            }
        }
        for align in [SECTOR, 4 * SECTOR] {
            for len in (1..20).map(|n| n * align) {
                let fit = Fit { len, min_len: align, align, rows: None };
                let longest = longest(&model, align);
                let from = rng.below(200) * SECTOR;
                assert_eq!(runs.find_whole(from, &fit, true).is_some(), longest >= len, "seed {seed} {fit:?}");
                let best = runs.find_best(&fit, true).map_or(0, |found| found.len());
                assert!(best > 0 || longest == 0, "seed {seed} {fit:?}");
            }
        }
    }
}

/// Goal: leaves are cut and joined without losing a run, and every class is found from anywhere.
/// Method: 20 000 sectors, every other one freed, then filled and emptied at random in long and short strokes beside a set;
/// all runs compared at the end, and each class asked for from many places.
#[test]
fn many_runs_are_kept_in_order() {
    many_runs_are_kept_in_order_in::<u32>();
    many_runs_are_kept_in_order_in::<u64>();
}

fn many_runs_are_kept_in_order_in<S: Sector>() {
    for seed in 0..4 {
        let mut rng = Rng::new(seed);
        let sectors = 20_000;
        let mut runs = RunsIn::<S>::new(BASE, SHIFT);
        let mut model = BTreeSet::new();
        for i in (0..sectors).step_by(2) {
            let at = BASE + i * SECTOR;
            assert!(runs.insert(at, at + SECTOR) && model.insert(at));
        }
        assert_eq!(runs.count() as u64, sectors / 2);
        for step in 0..3000 {
            let stroke_max = if rng.below(8) == 0 { 3000 } else { 12 };
            let (at, len) = (rng.below(sectors), 1 + rng.below(stroke_max));
            let stroke = (at..sectors.min(at + len)).map(|i| BASE + i * SECTOR);
            let range = (BASE + at * SECTOR, BASE + sectors.min(at + len) * SECTOR);
            if rng.below(2) == 0 {
                let added = stroke.filter(|&at| model.insert(at)).count() as u64;
                assert_eq!(runs.unite(range.0, range.1), added * SECTOR, "seed {seed} step {step}");
            } else {
                for at in stroke {
                    model.remove(&at);
                }
                runs.remove(range.0, range.1);
            }
            assert!(step % 64 != 0 || runs.is_consistent(), "seed {seed} step {step}");
        }
        assert!(runs.is_consistent(), "seed {seed}");
        let flat: BTreeSet<u64> = runs.iter().flat_map(|(s, e)| (s..e).step_by(SECTOR as usize)).collect();
        assert_eq!(flat, model, "seed {seed}");
        for class in 0..CLASSES {
            let all: Vec<_> = runs.iter().filter(|(s, e)| class_of(e - s, SHIFT) == class).collect();
            for _ in 0..20 {
                let from = BASE + rng.below(sectors + 10) * SECTOR;
                let (before, behind): (Vec<_>, Vec<_>) = all.iter().copied().partition(|&(_, end)| end <= from);
                let places = runs.of_class(class, runs.seek(runs.sector(from)));
                let got: Vec<_> = places.map(|place| runs.bytes(runs.run(place))).collect();
                assert_eq!(got, [behind, before].concat(), "seed {seed} class {class}");
            }
        }
    }
}

/// Goal: runs of a group that has more than 2³² sectors are distinguished and merged on both sides of that number.
/// Method: single sectors freed and taken around 2³² and near the end; what lies 2³² sectors apart is not mistaken for one.
#[test]
fn runs_beyond_two_to_the_32nd_sector() {
    let edge = BASE + (SECTOR << 32);
    let group = crate::Run::between(BASE, BASE + 3 * (SECTOR << 32));
    let mut runs = Runs::from_sorted(group, SHIFT, &[(edge - 4 * SECTOR, edge + 4 * SECTOR)]);
    assert!(runs.take(edge - SECTOR, edge + SECTOR) && !runs.take(edge, edge + SECTOR));
    assert!(!runs.take(BASE, BASE + SECTOR), "sector 0 is not sector 2³²");
    assert!(runs.insert(edge, edge + SECTOR) && !runs.insert(edge, edge + SECTOR));
    let fit = Fit { len: SECTOR, min_len: SECTOR, align: SECTOR, rows: None };
    assert_eq!(runs.find_at(edge, &fit).map(|found| (found.start, found.end)), Some((edge, edge + SECTOR)));
    assert!(runs.insert(edge - SECTOR, edge));
    assert_eq!(runs.iter().collect::<Vec<_>>(), [(edge - 4 * SECTOR, edge + 4 * SECTOR)]);
    assert!(runs.insert(group.end().0 - SECTOR, group.end().0));
    assert_eq!((runs.count(), runs.total()), (2, 9 * SECTOR));
    assert_eq!(runs.at_or_after(edge + 4 * SECTOR), Some((group.end().0 - SECTOR, group.end().0)));
}
