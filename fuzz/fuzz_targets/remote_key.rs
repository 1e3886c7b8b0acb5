//! See the body, which tests without a fuzzer feed, too.

#![no_main]

#[path = "../../crates/oleo-remote/tests/it/mutated/key.rs"]
mod key;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _taken = key::body(data);
});
