//! The body of the fuzz target `map`, fed with changes of an image: a little in CI, and for a minute by
//! `cargo test --release -p oleo-view --test it -- --ignored mutated::`.

#[path = "../../../oleo-sim/tests/it/mutated/lying.rs"]
mod lying;
mod map;

use std::time::Duration;

use oleo_sim::mutate::feed;

/// No change, and one that cuts nothing.
fn changes() -> Vec<Vec<u8>> {
    let cut = [&[5, 0, 0, 0, 0], &(128u64 << 20).to_le_bytes()[..]].concat();
    vec![Vec::new(), cut]
}

/// Goal: no image makes the map panic, or takes without end. Method: see the module's text.
#[test]
fn a_little() {
    println!("inputs: {}", feed("map", &changes(), 1, Duration::from_millis(200), map::body));
}

/// The same for a minute.
#[test]
#[ignore = "a minute"]
fn for_a_minute() {
    println!("inputs: {}", feed("map", &changes(), 1, Duration::from_secs(60), map::body));
}
