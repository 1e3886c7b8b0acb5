//! See the body, which tests without a fuzzer feed, too.

#![no_main]

#[path = "../../crates/oleo-sim/tests/it/mutated/lying.rs"]
mod lying;

#[path = "../../crates/oleo-sim/tests/it/mutated/log_replay.rs"]
mod log_replay;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _taken = log_replay::body(data);
});
