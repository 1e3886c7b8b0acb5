//! Any bytes, made into a stream, into an image in memory: typed errors or a sound image, never a panic.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/oleo-stream/tests/it/receive/anything.rs"]
mod anything;

fuzz_target!(|data: &[u8]| anything::receive_anything(data));
