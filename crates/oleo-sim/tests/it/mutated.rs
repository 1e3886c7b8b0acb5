//! The bodies of the fuzz targets `log_replay` and `parity_records`, fed with changes of sound images: a little in CI, and for a minute each by
//! `cargo test --release -p oleo-sim --test it -- --ignored mutated::`.

mod log_replay;
mod lying;
mod parity;

use std::time::Duration;

use oleo_sim::mutate::feed;

/// Changes of the label, which stop no reader, and none.
fn changes() -> Vec<Vec<u8>> {
    const LABEL: u16 = 0x12b;
    let label = |kind: u8| [&[kind, 0, 0], &LABEL.to_le_bytes()[..], &[b'a'; 8]].concat();
    vec![Vec::new(), label(0), [label(1), label(3)].concat()]
}

fn run(time: Duration) {
    let seeds: Vec<Vec<u8>> = [0, 1, 2, 3, 4].map(parity::seed).into();
    let fed = [
        feed("log_replay", &changes(), 1, time, log_replay::body),
        feed("parity_records", &seeds, 2, time, parity::body),
    ];
    println!("inputs: {fed:?}");
}

/// Goal: no log and no record of parity makes its reader panic, and a log that is replayed leaves a sound volume. Method: see the module's text.
#[test]
fn a_little() {
    run(Duration::from_millis(200));
}

/// The same for a minute each.
#[test]
#[ignore = "two minutes"]
fn for_minutes() {
    run(Duration::from_secs(60));
}
