//! Random scripts with many promises, over every shape of file system.

use oleo_sim::budget::budget;
use oleo_sim::crash::states::Kinds;
use oleo_sim::script::{Mix, Op, generate};

use crate::crash::run::{Base, Shape};
use crate::crash::tally::{Tally, in_parallel, say, verify_script};
use crate::ours::Mover;

/// Which states are verified.
pub const KINDS: Kinds = Kinds { flushes: true, writes: true, steps: true, some: 2, torn: 2 };

/// What the script of a seed is made of.
pub fn mix(seed: u64) -> Mix {
    Mix {
        steps: 120,
        promises: [10, 25, 45][seed as usize % 3],
        subvolumes: seed.is_multiple_of(2),
        compress: seed.is_multiple_of(5),
        file_len_max: 60_000,
        names_max: 25,
        xattr_len_max: 800,
        ..Mix::default()
    }
}

/// Scripts of each proof in CI. `mutants::the_order_matters` finds each mistake with fewer.
const SCRIPTS_CI: u64 = 8;
/// States of each script.
const STATES: usize = 100;

/// A proof over random scripts.
struct Proof {
    what: &'static str,
    /// The first seed, and how many scripts there are in full.
    seeds: (u64, u64),
    /// Promises, and states with a log, of a hundred scripts at least.
    least: (u64, u64),
}

impl Proof {
    /// Verifies states of each script; each runs on the base that its seed selects. Returns the counts, which are clean.
    fn run(&self, bases: &[Base], script: impl Fn(u64) -> Vec<Op> + Sync) -> Tally {
        let (named, full) = self.seeds;
        let seeds = budget().seeds(named, SCRIPTS_CI, full);
        let tally = in_parallel((seeds.end - seeds.start) as usize, |i| {
            let seed = seeds.start + i as u64;
            let base = &bases[(seed % bases.len() as u64) as usize];
            verify_script(base, &script(seed), &KINDS, seed, Some(STATES))
        });
        tally.must_be_clean(self.what, |script| {
            let mut all = Tally::default();
            for base in bases {
                all.add(verify_script(base, script, &KINDS, 0, None));
            }
            all
        });
        tally.must_have_tested(self.least.0, self.least.1);
        tally
    }
}

/// Verifies scripts of the usual mix on one shape.
fn usual_scripts(what: &'static str, shape: Shape, seeds: (u64, u64)) {
    // A third of the scripts has few promises.
    let proof = Proof { what, seeds, least: (1500, 3000) };
    proof.run(&[Base::new(shape, &[])], |seed| generate(seed, &mix(seed)));
}

/// Goal: nothing promised is lost, and nothing is half done, whatever was done before.
#[test]
fn one_copy() {
    usual_scripts("random scripts, one copy of everything", Shape::BARE, (0, 90));
}

#[test]
fn as_usual() {
    usual_scripts("random scripts, as made by default", Shape::USUAL, (1000, 30));
}

#[test]
fn two_disks() {
    usual_scripts("random scripts, two disks", Shape::PAIR, (2000, 30));
}

/// Goal: changes of files and directories that are to keep every change (`chattr +S`, `+D`) are durable when they return.
/// Method: scripts that set the flags now and then and ask for little else.
#[test]
fn with_flags_that_keep() {
    let bases = [Shape::BARE, Shape::PAIR].map(|shape| Base::new(shape, &[]));
    let proof = Proof { what: "random scripts with flags that keep", seeds: (12_000, 24), least: (1000, 1000) };
    proof.run(&bases, |seed| generate(seed, &Mix { promises: 3, keeps: 8, ..mix(seed) }));
}

/// Goal: with quota on, the numbers match the contents in every state, snapshots and deletions included.
#[test]
fn with_quota() {
    let proof = Proof { what: "random scripts, quota on", seeds: (3000, 40), least: (1500, 3000) };
    let script = |seed| generate(seed, &Mix { subvolumes: true, ..mix(seed) });
    proof.run(&[Base::new(Shape::QUOTA, &[])], script);
}

/// Goal: the same with simple quotas: data that a log restores or a balance moves stays charged to its writer.
#[test]
fn with_simple_quota() {
    let proof = Proof { what: "random scripts, simple quotas", seeds: (8000, 40), least: (1500, 2500) };
    let script = |seed: u64| generate(seed, &Mix { subvolumes: true, balance: seed.is_multiple_of(2), ..mix(seed) });
    proof.run(&[Base::new(Shape::SIMPLE_QUOTA, &[])], script);
}

/// Goal: a balance that is interrupted anywhere loses nothing: each of its transactions is whole by itself.
#[test]
fn with_balance() {
    let proof = Proof { what: "random scripts with balances", seeds: (4000, 30), least: (1300, 1800) };
    let script = |seed| generate(seed, &Mix { subvolumes: true, balance: true, ..mix(seed) });
    proof.run(&[Base::new(Shape::USUAL, &[])], script);
}

/// Goal: the same while groups turn from one profile into another, and back.
#[test]
fn with_conversions() {
    let proof = Proof { what: "random scripts with conversions", seeds: (6000, 30), least: (1300, 2000) };
    let script = |seed| generate(seed, &Mix { subvolumes: true, convert: true, ..mix(seed) });
    proof.run(&[Base::new(Shape::PAIR, &[])], script);
}

/// Goal: a count of quota that is cut short anywhere leaves numbers that are right, or marked as being counted.
#[test]
fn with_rescans() {
    let proof = Proof { what: "random scripts with counts of quota", seeds: (7000, 30), least: (1200, 1400) };
    let script = |seed| generate(seed, &Mix { subvolumes: true, rescan: true, balance: true, ..mix(seed) });
    proof.run(&[Base::new(Shape::QUOTA, &[])], script);
}

/// Goal: no discarded byte is part of a state that a crash would return to, and a device is made longer before it is
/// counted, shorter after. Method: volumes that discard what a commit frees, trims and changes of length in between,
/// balances too. The discarded bytes stay, or become zeros or rubbish, immediately or later.
#[test]
fn with_discards() {
    const LENGTHS: (u64, u64) = (80 << 20, 160 << 20);
    let bases = [Shape::BARE, Shape::USUAL, Shape::PAIR].map(|shape| Base { discard: true, ..Base::new(shape, &[]) });
    let proof = Proof { what: "random scripts with discards", seeds: (10_000, 45), least: (1100, 1000) };
    let tally = proof.run(&bases, |seed| {
        let resize = (seed % 3 != 2).then_some(LENGTHS);
        generate(seed, &Mix { subvolumes: true, balance: seed.is_multiple_of(2), trim: true, resize, ..mix(seed) })
    });
    let Tally { runs, discards, lengths, .. } = tally;
    say(&format!("crash: {discards} discards, {lengths} changes of length"));
    assert!(discards > 50 * runs && lengths * 2 > runs, "{discards} discards, {lengths} changes of length");
}

/// Goal: the same with quota on: the numbers stay right.
#[test]
fn with_balance_and_quota() {
    let proof = Proof { what: "random scripts with balances, quota on", seeds: (5000, 30), least: (1300, 2000) };
    let script = |seed| generate(seed, &Mix { subvolumes: true, balance: true, ..mix(seed) });
    proof.run(&[Base::new(Shape::QUOTA, &[])], script);
}

/// Goal: the balance job, with its item on disk: interrupted anywhere, the volume is sound, the balance is paused after
/// reopening, and it ends when it is resumed. Method: every move of groups in the scripts is a balance that is started,
/// paused, resumed and ended; half of the bases have quota, half two disks, whose groups are converted from one profile
/// into another.
#[test]
fn with_the_balance_job() {
    let bases = [Shape::PAIR, Shape::QUOTA].map(|shape| Base { mover: Mover::Balance, ..Base::new(shape, &[]) });
    let proof = Proof { what: "random scripts with the job of balancing", seeds: (9000, 30), least: (1400, 1500) };
    let tally = proof.run(&bases, |seed| {
        let two = seed.is_multiple_of(2);
        generate(seed, &Mix { subvolumes: true, balance: !two, convert: two, ..mix(seed) })
    });
    let Tally { states, resumed, .. } = tally;
    assert!(resumed * 40 > states, "{resumed} of {states} states had a balance to be carried on");
}
