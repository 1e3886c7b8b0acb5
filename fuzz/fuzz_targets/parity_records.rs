//! See the body, which tests without a fuzzer feed, too.

#![no_main]

#[path = "../../crates/oleo-sim/tests/it/mutated/parity.rs"]
mod parity;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _taken = parity::body(data);
});
