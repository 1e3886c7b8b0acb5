//! See the body, which tests without a fuzzer feed, too.

#![no_main]

#[path = "../../crates/oleo-nbd/tests/it/mutated/client.rs"]
mod client;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _taken = client::body(data);
});
