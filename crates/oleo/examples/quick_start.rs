//! A quick start: an image, files, a snapshot.
//!
//! `cargo run --release -p oleo --example quick_start`

use std::error::Error;
use std::io::Write;

use oleo::{Image, OpenOptions, SnapshotOptions};

/// Runs the example; fails if what it shows is not so.
pub fn main() -> Result<(), Box<dyn Error>> {
    let scratch = tempfile::tempdir()?;
    let path = scratch.path().join("disk.img");

    let image = Image::create(&path, 1 << 30)?; // bytes; the file is sparse
    image.create_subvol("home")?;
    image.write("home/notes", b"first thoughts")?;
    writeln!(image.create_file("home/log")?.cursor(), "created by a program")?;
    image.snapshot("home", "monday", &SnapshotOptions::default().read_only(true))?;
    image.write("home/notes", b"second thoughts")?;
    image.close()?; // everything is durable from here on

    let image = Image::open(&path, &OpenOptions::default())?; // only reads
    assert_eq!(image.read("monday/notes")?, b"first thoughts");
    assert_eq!(image.read("home/notes")?, b"second thoughts");
    Ok(())
}
