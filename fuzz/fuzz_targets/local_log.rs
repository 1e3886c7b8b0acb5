//! See the body, which tests without a fuzzer feed, too.

#![no_main]

#[path = "../../crates/oleo-remote/tests/it/mutated/local_log.rs"]
mod local_log;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _taken = local_log::body(data);
});
