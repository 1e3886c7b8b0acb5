//! Makes an image from a directory, lists what is in it, and checks it.
//!
//! `cargo run --release -p oleo --example build_image [DIR IMG]`

use std::error::Error;
use std::path::{Path, PathBuf};

use oleo::check::Start;
use oleo::mkfs::{BuildOptions, FillOptions, MkfsOptions, Source};
use oleo::{Image, OpenOptions};

/// Makes the image; the same directory gives the same bytes each time.
pub fn make_image(dir: &Path, img: &Path) -> Result<u64, Box<dyn Error>> {
    let report = oleo::mkfs::build(
        &[img],
        BuildOptions::default()
            .source(Source::Dir(dir.into()))
            .fill(FillOptions::default().compress(oleo::fs::parse_compress("zstd:3")?))
            .mkfs(
                MkfsOptions::default()
                    .label("example".into())
                    // All UUIDs follow from the seed. `oleo::mkfs::random_seed()` makes each image unique.
                    .seed(oleo::mkfs::seed_from_text("example"))
                    .created_seconds(1_700_000_000),
            )
            .shrink(true),
    )?;
    Ok(report.filled.done.files)
}

/// Runs the example; fails if what it shows is not so.
pub fn main() -> Result<(), Box<dyn Error>> {
    let scratch = tempfile::tempdir()?;
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let (dir, img) = match (args.next(), args.next()) {
        (Some(dir), Some(img)) if dir.is_dir() => (dir, img),
        _ => {
            let dir = scratch.path().join("source");
            std::fs::create_dir_all(dir.join("docs"))?;
            std::fs::write(dir.join("readme"), "hello\n")?;
            std::fs::write(dir.join("docs/manual"), "much to read\n".repeat(1000))?;
            (dir, scratch.path().join("disk.img"))
        }
    };
    println!("{} files", make_image(&dir, &img)?);

    let image = Image::open(&img, &OpenOptions::default())?;
    for entry in image.list("")? {
        println!("{:?} {}", entry.kind, entry.name.escape_ascii());
    }
    image.close()?;

    let report = oleo::check::image(&img, &OpenOptions::default(), Start::default(), &Default::default())?;
    if !report.is_clean() {
        return Err(format!("{} findings", report.findings.len()).into());
    }
    println!("sound");
    Ok(())
}
