//! See the body, which tests without a fuzzer feed, too.

#![no_main]

#[path = "../../crates/oleo-remote/tests/it/mutated/segment.rs"]
mod segment;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _taken = segment::body(data);
});
