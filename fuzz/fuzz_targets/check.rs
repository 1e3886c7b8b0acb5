//! The checker on an image that lies: findings or a typed error, never a panic or an endless loop.

#![no_main]

use libfuzzer_sys::fuzz_target;
use oleo::OpenOptions;
use oleo::check::{CheckOptions, Start, image};

#[path = "../../crates/oleo-sim/tests/it/mutated/lying.rs"]
mod lying;

fuzz_target!(|data: &[u8]| {
    lying::with(lying::Which::Closed, data, |damaged| {
        let how = CheckOptions::default().threads(1).data(true);
        let _ = image(damaged.path, &OpenOptions::default(), Start::default(), &how);
    });
});
