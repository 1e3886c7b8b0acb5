//! See the body, which tests without a fuzzer feed, too.

#![no_main]

#[path = "../../crates/oleo-nbd/tests/it/mutated/server.rs"]
mod server;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _taken = server::body(data);
});
