//! The checker on an image that lies: findings or a typed error, never a panic or an endless loop.

#![no_main]

use libfuzzer_sys::fuzz_target;
use oleo::OpenOptions;
use oleo::check::{CheckOptions, Start, image};

mod lying;

fuzz_target!(|input: lying::Input| {
    lying::with(&input, |path| {
        let how = CheckOptions::default().threads(1).data(true);
        let _ = image(path, &OpenOptions::default(), Start::default(), &how);
    });
});
