//! Opening, walking and reading an image that lies: a typed error or the truth, never a panic or an endless loop.

#![no_main]

use std::io;

use libfuzzer_sys::fuzz_target;
use oleo::restore::{RestoreOptions, restore_to_tar};
use oleo::{Access, Image, OpenOptions};

#[path = "../../crates/oleo-sim/tests/it/mutated/lying.rs"]
mod lying;

fuzz_target!(|data: &[u8]| {
    lying::with(lying::Which::Closed, data, |damaged| {
        let options = OpenOptions::default().access(Access::ReadOnlyInUse);
        if let Ok(image) = Image::open(damaged.path, &options)
            && let Ok(top) = image.top()
        {
            let _ = image.fs().subvol_list();
            let _ = restore_to_tar(&image, &top, b"", io::sink(), &RestoreOptions::default());
        }
    });
});
