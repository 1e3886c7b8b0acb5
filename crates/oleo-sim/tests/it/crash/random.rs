//! Random scripts with many promises, over every shape of file system.

use oleo_sim::crash::states::Kinds;
use oleo_sim::script::{Mix, Op, generate};

use crate::crash::run::{Base, Shape};
use crate::crash::tally::{in_parallel, say, seed_from, share, verify_script};
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

/// Verifies some states of each of these scripts.
fn scripts(what: &str, shape: Shape, first: u64, count: u64) {
    let base = Base::new(shape, &[]);
    let tally = in_parallel(share(count) as usize, |i| {
        let seed = seed_from(first) + i as u64;
        verify_script(&base, &generate(seed, &mix(seed)), &KINDS, seed, Some(100))
    });
    tally.must_be_clean(what, |s| verify_script(&base, s, &KINDS, 0, None));
    // A third of them has few.
    tally.must_have_tested(25 * count, 50 * count);
}

/// Goal: nothing promised is lost, and nothing is half done, whatever was done before.
#[test]
fn one_copy() {
    scripts("random scripts, one copy of everything", Shape::BARE, 0, 90);
}

#[test]
fn as_usual() {
    scripts("random scripts, as made by default", Shape::USUAL, 1000, 30);
}

#[test]
fn two_disks() {
    scripts("random scripts, two disks", Shape::PAIR, 2000, 30);
}

/// Goal: what changes files and directories that are to keep every change (`chattr +S`, `+D`) is durable when it returns.
/// Method: scripts that set the flags now and then and ask for little else.
#[test]
fn with_flags_that_keep() {
    let bases = [Shape::BARE, Shape::PAIR].map(|shape| Base::new(shape, &[]));
    let script = |seed| generate(seed, &Mix { promises: 3, keeps: 8, ..mix(seed) });
    let tally = in_parallel(share(24) as usize, |i| {
        let seed = seed_from(12_000) + i as u64;
        verify_script(&bases[i % 2], &script(seed), &KINDS, seed, Some(100))
    });
    tally.must_be_clean("random scripts with flags that keep", |s| verify_script(&bases[0], s, &KINDS, 0, None));
    tally.must_have_tested(500, 500);
}

/// Goal: with quota on, the numbers match the contents in every state, snapshots and deletions included.
#[test]
fn with_quota() {
    let base = Base::new(Shape::QUOTA, &[]);
    let tally = in_parallel(share(40) as usize, |i| {
        let seed = seed_from(3000) + i as u64;
        verify_script(&base, &generate(seed, &Mix { subvolumes: true, ..mix(seed) }), &KINDS, seed, Some(100))
    });
    tally.must_be_clean("random scripts, quota on", |s| verify_script(&base, s, &KINDS, 0, None));
    tally.must_have_tested(1100, 2300);
}

/// Goal: the same with simple quotas: what a log restores and what a balance moves still counts for its writer.
#[test]
fn with_simple_quota() {
    let base = Base::new(Shape::SIMPLE_QUOTA, &[]);
    let tally = in_parallel(share(40) as usize, |i| {
        let seed = seed_from(8000) + i as u64;
        let mix = Mix { subvolumes: true, balance: seed.is_multiple_of(2), ..mix(seed) };
        verify_script(&base, &generate(seed, &mix), &KINDS, seed, Some(100))
    });
    tally.must_be_clean("random scripts, simple quotas", |s| verify_script(&base, s, &KINDS, 0, None));
    tally.must_have_tested(1100, 1900);
}

/// Goal: a balance that is interrupted anywhere loses nothing: each of its transactions is whole by itself.
#[test]
fn with_balance() {
    let base = Base::new(Shape::USUAL, &[]);
    let tally = in_parallel(share(30) as usize, |i| {
        let seed = seed_from(4000) + i as u64;
        let mix = Mix { subvolumes: true, balance: true, ..mix(seed) };
        verify_script(&base, &generate(seed, &mix), &KINDS, seed, Some(100))
    });
    tally.must_be_clean("random scripts with balances", |s| verify_script(&base, s, &KINDS, 0, None));
    tally.must_have_tested(800, 1100);
}

/// Goal: the same while groups turn from one profile into another, and back.
#[test]
fn with_conversions() {
    let base = Base::new(Shape::PAIR, &[]);
    let tally = in_parallel(share(30) as usize, |i| {
        let seed = seed_from(6000) + i as u64;
        let mix = Mix { subvolumes: true, convert: true, ..mix(seed) };
        verify_script(&base, &generate(seed, &mix), &KINDS, seed, Some(100))
    });
    tally.must_be_clean("random scripts with conversions", |s| verify_script(&base, s, &KINDS, 0, None));
    tally.must_have_tested(800, 1200);
}

/// Goal: a count of quota that is cut short anywhere leaves numbers that are right, or marked as being counted.
#[test]
fn with_rescans() {
    let base = Base::new(Shape::QUOTA, &[]);
    let tally = in_parallel(share(30) as usize, |i| {
        let seed = seed_from(7000) + i as u64;
        let mix = Mix { subvolumes: true, rescan: true, balance: true, ..mix(seed) };
        verify_script(&base, &generate(seed, &mix), &KINDS, seed, Some(100))
    });
    tally.must_be_clean("random scripts with counts of quota", |s| verify_script(&base, s, &KINDS, 0, None));
    tally.must_have_tested(750, 850);
}

/// Goal: no discarded byte is part of a state that a crash would return to, and a device is made longer before it is
/// counted, shorter after. Method: volumes that discard what a commit frees, trims and changes of length in between,
/// balances too. The discarded bytes stay, or become zeros or rubbish, immediately or later.
#[test]
fn with_discards() {
    const LENGTHS: (u64, u64) = (80 << 20, 160 << 20);
    let bases = [Shape::BARE, Shape::USUAL, Shape::PAIR].map(|shape| Base { discard: true, ..Base::new(shape, &[]) });
    let one = |base: &Base, script: &[Op], seed, most| verify_script(base, script, &KINDS, seed, most);
    let tally = in_parallel(share(45) as usize, |i| {
        let seed = seed_from(10_000) + i as u64;
        let resize = (i % 3 != 2).then_some(LENGTHS);
        let mix = Mix { subvolumes: true, balance: seed.is_multiple_of(2), trim: true, resize, ..mix(seed) };
        one(&bases[i % 3], &generate(seed, &mix), seed, Some(100))
    });
    let (discards, lengths) = (tally.discards, tally.lengths);
    say(&format!("crash: {discards} discards, {lengths} changes of length"));
    tally.must_be_clean("random scripts with discards", |s| {
        let mut both = one(&bases[0], s, 0, None);
        both.add(one(&bases[1], s, 0, None));
        both
    });
    tally.must_have_tested(1000, 900);
    assert!(discards > 5000 && lengths > 50, "{discards} discards, {lengths} changes of length");
}

/// Goal: the same with quota on: the numbers stay right.
#[test]
fn with_balance_and_quota() {
    let base = Base::new(Shape::QUOTA, &[]);
    let tally = in_parallel(share(30) as usize, |i| {
        let seed = seed_from(5000) + i as u64;
        let mix = Mix { subvolumes: true, balance: true, ..mix(seed) };
        verify_script(&base, &generate(seed, &mix), &KINDS, seed, Some(100))
    });
    tally.must_be_clean("random scripts with balances, quota on", |s| verify_script(&base, s, &KINDS, 0, None));
    tally.must_have_tested(800, 1200);
}

/// Goal: the balance job, with its item on disk: interrupted anywhere, the volume is sound, the balance is paused after
/// reopening, and it ends when it is resumed. Method: every move of groups in the scripts is a balance that is started,
/// paused, resumed and ended; half of the bases have quota, half two disks, whose groups are converted from one profile
/// into another.
#[test]
fn with_the_balance_job() {
    let bases = [Shape::QUOTA, Shape::PAIR].map(|shape| Base { mover: Mover::Balance, ..Base::new(shape, &[]) });
    let tally = in_parallel(share(30) as usize, |i| {
        let seed = seed_from(9000) + i as u64;
        let two = seed.is_multiple_of(2);
        let mix = Mix { subvolumes: true, balance: !two, convert: two, ..mix(seed) };
        verify_script(&bases[usize::from(two)], &generate(seed, &mix), &KINDS, seed, Some(100))
    });
    let (states, resumed) = (tally.states, tally.resumed);
    // A script that fails on either is one that fails.
    tally.must_be_clean("random scripts with the job of balancing", |s| {
        let mut both = verify_script(&bases[0], s, &KINDS, 0, None);
        both.add(verify_script(&bases[1], s, &KINDS, 0, None));
        both
    });
    tally.must_have_tested(850, 900);
    assert!(resumed * 20 > states, "{resumed} of {states} states had a balance to be carried on");
}
