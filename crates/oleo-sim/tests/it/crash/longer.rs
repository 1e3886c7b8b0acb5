//! More than CI runs, and single scripts again: what `cargo xtask crash` calls.
//!
//! `OLEO_CRASH_STATES=N OLEO_CRASH_SEED=S OLEO_CRASH_KINDS=random,three,four` verifies at least N states of scripts from seed S on;
//! `OLEO_CRASH_SCRIPT=FILE` verifies every sort of state of the script in a file, on every sort of base.

use oleo_sim::crash::ace::{sample, setup};
use oleo_sim::crash::states::Kinds;
use oleo_sim::rng::Rng;
use oleo_sim::script::{Op, from_text, generate};

use crate::crash::random::mix;
use crate::crash::run::{Base, Shape};
use crate::crash::tally::{Tally, in_parallel, verify_script};

const ALL: Kinds = Kinds { flushes: true, writes: true, steps: true, some: 4, torn: 4 };
/// Scripts between two checks of the number of states.
const BATCH: usize = 64;
/// States of each script.
const STATES_PER_SCRIPT: usize = 100;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

struct Bases {
    small: Base,
    bare: Base,
    usual: Base,
    pair: Base,
}

impl Bases {
    fn new() -> Bases {
        let empty = |shape| Base::new(shape, &[]);
        let small = Base::new(Shape::BARE, &setup());
        Bases { small, bare: empty(Shape::BARE), usual: empty(Shape::USUAL), pair: empty(Shape::PAIR) }
    }

    fn verify(&self, kind: &str, seed: u64) -> Tally {
        let short = |len| verify_script(&self.small, &sample(len, &mut Rng::new(seed)), &ALL, seed, None);
        match kind {
            "three" => short(3),
            "four" => short(4),
            _ => {
                let base = [&self.bare, &self.usual, &self.pair][seed as usize % 3];
                verify_script(base, &generate(seed, &mix(seed)), &ALL, seed, Some(STATES_PER_SCRIPT))
            }
        }
    }

    /// On every base, since a script may mean something only on some.
    fn verify_everywhere(&self, script: &[Op]) -> Tally {
        let mut tally = Tally::default();
        for base in [&self.small, &self.bare, &self.usual, &self.pair] {
            tally.add(verify_script(base, script, &ALL, 0, None));
        }
        tally
    }
}

#[test]
#[ignore = "by command: `cargo xtask crash --states N`; `cargo xtask nightly`"]
fn every_state_keeps_its_promises() {
    let states = number("OLEO_CRASH_STATES").unwrap_or(20_000);
    let mut seed = number("OLEO_CRASH_SEED").unwrap_or(1);
    let kinds = std::env::var("OLEO_CRASH_KINDS").unwrap_or_else(|_| "random,three,four".into());
    let kinds: Vec<&str> = kinds.split(',').collect();
    assert!(kinds.iter().all(|k| ["random", "three", "four"].contains(k)), "kinds are random, three, four");
    let bases = Bases::new();
    let mut tally = Tally::default();
    while tally.states < states && tally.failures.is_empty() {
        for kind in &kinds {
            tally.add(in_parallel(BATCH, |i| bases.verify(kind, seed + i as u64)));
        }
        seed += BATCH as u64;
        println!("{}", tally.line(&format!("seeds below {seed}")));
    }
    tally.must_be_clean("longer", |s| bases.verify_everywhere(s));
}

#[test]
#[ignore = "by command, it needs a file: `cargo xtask crash --script FILE`"]
fn one_script_again() {
    let file = std::env::var("OLEO_CRASH_SCRIPT").expect("OLEO_CRASH_SCRIPT=FILE");
    let script = from_text(&std::fs::read_to_string(file).unwrap()).unwrap();
    Bases::new().verify_everywhere(&script).must_be_clean("one script", |_| Tally::default());
}
