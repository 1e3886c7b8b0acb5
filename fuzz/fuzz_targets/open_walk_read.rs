//! Opening, walking and reading an image that lies: a typed error or the truth, never a panic or an endless loop.

#![no_main]

use std::io;

use libfuzzer_sys::fuzz_target;
use oleo::restore::{RestoreOptions, restore_to_tar};
use oleo::{Access, Image, OpenOptions};

mod lying;

fuzz_target!(|input: lying::Input| {
    lying::with(&input, |path| {
        let options = OpenOptions::default().access(Access::ReadOnlyInUse);
        if let Ok(image) = Image::open(path, &options)
            && let Ok(top) = image.top()
        {
            let _ = image.fs().subvol_list();
            let _ = restore_to_tar(&image, &top, b"", io::sink(), &RestoreOptions::default());
        }
    });
});
