//! Random scripts with many promises, over every shape of file system.

use oleo_sim::crash::states::Kinds;
use oleo_sim::script::{Mix, generate};

use crate::run::{Base, Shape};
use crate::tally::{Tally, in_parallel, judge_script};

const KINDS: Kinds = Kinds { flushes: true, writes: true, steps: true, some: 2, torn: 2 };

fn mix(seed: u64) -> Mix {
    Mix {
        steps: 120,
        promises: [10, 25, 45][seed as usize % 3],
        subvolumes: seed % 2 == 0,
        compress: seed % 5 == 0,
        file_len_max: 60_000,
        names_max: 25,
        xattr_len_max: 800,
        ..Mix::default()
    }
}

/// Some states of each of these scripts.
pub fn scripts(shape: Shape, seeds: std::ops::Range<u64>, most: usize) -> Tally {
    let base = Base::new(shape, &[]);
    in_parallel((seeds.end - seeds.start) as usize, |i| {
        let seed = seeds.start + i as u64;
        judge_script(&base, &generate(seed, &mix(seed)), &KINDS, seed, Some(most))
    })
}

/// Goal: nothing that was promised is lost, and nothing is half there, whatever was done before.
#[test]
fn one_copy() {
    scripts(Shape::BARE, 0..90, 100).must_be_clean("random scripts, one copy of everything");
}

#[test]
fn as_usual() {
    scripts(Shape::USUAL, 1000..1030, 100).must_be_clean("random scripts, as made by default");
}

#[test]
fn two_disks() {
    scripts(Shape::PAIR, 2000..2030, 100).must_be_clean("random scripts, two disks");
}
