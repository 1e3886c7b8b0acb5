//! Every short sequence: see `oleo_sim::crash::ace`.

use oleo_sim::budget::{Size, budget};
use oleo_sim::crash::ace::{objects, operations, sample, setup};
use oleo_sim::crash::states::Kinds;
use oleo_sim::rng::Rng;
use oleo_sim::script::Op;

use crate::crash::run::{Base, Shape};
use crate::crash::tally::{Tally, in_parallel, verify_script};

const ALL: Kinds = Kinds { flushes: true, writes: true, steps: true, some: 2, torn: 2 };
const FEW: Kinds = Kinds { flushes: true, writes: false, steps: true, some: 1, torn: 1 };

/// Goal: one operation and one promise, and a crash at each write, flush and step.
#[test]
fn one_operation() {
    let (base, first) = (Base::new(Shape::BARE, &setup()), budget().first_seed(0));
    let scripts: Vec<[Op; 2]> =
        operations().iter().flat_map(|op| objects().into_iter().map(|o| [op.clone(), o])).collect();
    let tally = in_parallel(scripts.len(), |i| verify_script(&base, &scripts[i], &ALL, first + i as u64, None));
    tally.must_be_clean("one operation", |s| verify_script(&base, s, &ALL, 0, None));
    tally.must_have_tested(50, 90);
}

/// All pairs of operations, then a promise about one of the things there are: each pair with one of `every`, which the
/// seed of the run selects.
fn pairs(every: usize) {
    let (base, first) = (Base::new(Shape::BARE, &setup()), budget().first_seed(0));
    let (ops, objects) = (operations(), objects());
    let tally = in_parallel(ops.len() * ops.len(), |i| {
        let (a, b) = (&ops[i / ops.len()], &ops[i % ops.len()]);
        let mut tally = Tally::default();
        let turn = i + budget().seed as usize;
        for (nth, object) in objects.iter().enumerate().filter(|(nth, _)| (turn + nth).is_multiple_of(every)) {
            let script = [a.clone(), b.clone(), object.clone()];
            tally.add(verify_script(&base, &script, &FEW, first + (i * 100 + nth) as u64, Some(2)));
        }
        tally
    });
    tally.must_be_clean("two operations", |s| verify_script(&base, s, &ALL, 0, None));
    tally.must_have_tested(40, 20);
}

/// Goal: all pairs of operations, then a promise about some of the things there are, for each pair others: one in twelve in
/// CI, each at night.
#[test]
fn two_operations() {
    pairs(match budget().size {
        Size::Ci => 12,
        Size::Full => 3,
        Size::Nightly => 1,
    });
}

/// Goal: more operations than can be tried in all orders, with promises in between.
#[test]
fn three_operations() {
    let (base, seeds) = (Base::new(Shape::BARE, &setup()), budget().seeds(0, 600, 4000));
    let tally = in_parallel((seeds.end - seeds.start) as usize, |i| {
        let seed = seeds.start + i as u64;
        verify_script(&base, &sample(3, &mut Rng::new(seed)), &FEW, seed, Some(3))
    });
    tally.must_be_clean("three operations", |s| verify_script(&base, s, &ALL, 0, None));
    tally.must_have_tested(100, 45);
}
