//! Every short sequence: see `oleo_sim::crash::ace`.

use oleo_sim::crash::ace::{objects, operations, sample, setup};
use oleo_sim::crash::states::Kinds;
use oleo_sim::rng::Rng;
use oleo_sim::script::Op;

use crate::crash::run::{Base, Shape};
use crate::crash::tally::{Tally, in_parallel, seed_from, share, verify_script};

const ALL: Kinds = Kinds { flushes: true, writes: true, steps: true, some: 2, torn: 2 };
const FEW: Kinds = Kinds { flushes: true, writes: false, steps: true, some: 1, torn: 1 };

/// Goal: one operation and one promise, and a crash at each write, flush and step.
#[test]
fn one_operation() {
    let base = Base::new(Shape::BARE, &setup());
    let scripts: Vec<[Op; 2]> =
        operations().iter().flat_map(|op| objects().into_iter().map(|o| [op.clone(), o])).collect();
    let tally = in_parallel(scripts.len(), |i| verify_script(&base, &scripts[i], &ALL, seed_from(0) + i as u64, None));
    tally.must_be_clean("one operation", |s| verify_script(&base, s, &ALL, 0, None));
    tally.must_have_tested(400, 700);
}

/// All pairs of operations, then a promise about one of the things there are: each pair with one of `every`.
fn pairs(every: usize) -> Tally {
    let base = Base::new(Shape::BARE, &setup());
    let (ops, objects) = (operations(), objects());
    let tally = in_parallel(ops.len() * ops.len(), |i| {
        let (a, b) = (&ops[i / ops.len()], &ops[i % ops.len()]);
        let mut tally = Tally::default();
        for (nth, object) in objects.iter().enumerate().filter(|(nth, _)| (i + nth) % every == 0) {
            let script = [a.clone(), b.clone(), object.clone()];
            tally.add(verify_script(&base, &script, &FEW, seed_from(0) + (i * 100 + nth) as u64, Some(2)));
        }
        tally
    });
    tally.must_be_clean("two operations", |s| verify_script(&base, s, &ALL, 0, None));
    tally
}

/// Goal: all pairs of operations, then a promise about a third of the things there are, for each pair others.
#[test]
fn two_operations() {
    pairs(3).must_have_tested(7_000, 3_300);
}

/// Goal: all pairs of operations, then a promise about each thing there is.
#[test]
#[ignore = "minutes: `cargo xtask nightly`"]
fn two_operations_and_each_thing() {
    pairs(1).must_have_tested(20_000, 10_000);
}

/// Goal: more operations than can be tried in all orders, with promises in between.
#[test]
fn three_operations() {
    let base = Base::new(Shape::BARE, &setup());
    let tally = in_parallel(share(4000) as usize, |i| {
        let script = sample(3, &mut Rng::new(seed_from(0) + i as u64));
        verify_script(&base, &script, &FEW, i as u64, Some(3))
    });
    tally.must_be_clean("three operations", |s| verify_script(&base, s, &ALL, 0, None));
    tally.must_have_tested(5000, 2300);
}
