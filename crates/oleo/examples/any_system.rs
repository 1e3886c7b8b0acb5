//! What works on every system, Windows and macOS included: an image is made, files are written and read, and it is opened by one program at a time.
//!
//! `cargo run -p oleo --example any_system [IMAGE]`. For Windows, from Linux: `cargo xtask foreign`.

use std::error::Error;
use std::path::Path;

use oleo::fs::parse_compress;
use oleo::mkfs::{BuildOptions, FillOptions, MkfsOptions, Source};
use oleo::{Image, OpenOptions, SnapshotOptions};

/// `EBUSY`, `ENOENT`, `EISDIR`: the numbers are Linux's on every system.
const EBUSY: i32 = 16;
const ENOENT: i32 = 2;
const EISDIR: i32 = 21;

/// Runs the example; fails if what it shows is not so.
pub fn main() -> Result<(), Box<dyn Error>> {
    let scratch = tempfile::tempdir()?;
    let named = std::env::args().nth(1).filter(|name| name.ends_with(".img"));
    let path = named.map_or_else(|| scratch.path().join("disk.img"), Into::into);
    write(&path)?;
    read(&path)?;
    errors(&path, scratch.path())
}

/// What file number `n` holds: text that can be compressed, each different.
fn contents(n: usize) -> Vec<u8> {
    format!("line of file {n}\n").repeat(1 << (2 * n)).into_bytes()
}

fn write(path: &Path) -> Result<(), Box<dyn Error>> {
    let mkfs = MkfsOptions::unique().label("any system".into());
    let image = Image::create_with(path, 256 << 20, mkfs, &OpenOptions::writing())?;
    image.create_dir("files")?;
    for n in 0..8 {
        image.write(format!("files/{n}"), &contents(n))?;
    }
    for algorithm in ["zlib", "lzo", "zstd"] {
        image.create_subvol(algorithm)?;
        image.set_property(&image.subvol(algorithm)?, "compression", algorithm)?;
        image.write(format!("{algorithm}/text"), &contents(7))?;
    }
    image.snapshot("zstd", "snapshot", &SnapshotOptions::default().read_only(true))?;
    image.close()?;
    Ok(())
}

fn read(path: &Path) -> Result<(), Box<dyn Error>> {
    let image = Image::open(path, &OpenOptions::default())?;
    let mut names = Vec::new();
    for entry in image.list("files")? {
        names.push(String::from_utf8(entry.name)?);
    }
    names.sort();
    assert_eq!(names, ["0", "1", "2", "3", "4", "5", "6", "7"]);
    for (n, name) in names.iter().enumerate() {
        let bytes = image.read(format!("files/{name}"))?;
        assert!(bytes == contents(n));
        println!("files/{name}: {} bytes", bytes.len());
    }
    for subvolume in ["zlib", "lzo", "zstd", "snapshot"] {
        assert!(image.read(format!("{subvolume}/text"))? == contents(7), "{subvolume}");
    }
    assert_eq!(image.read("files/none").map(drop).unwrap_err().errno(), ENOENT);
    Ok(())
}

fn errors(path: &Path, scratch: &Path) -> Result<(), Box<dyn Error>> {
    let writer = Image::open(path, &OpenOptions::writing())?;
    for options in [OpenOptions::writing(), OpenOptions::default()] {
        assert_eq!(Image::open(path, &options).map(drop).unwrap_err().errno(), EBUSY, "one writer, alone");
    }
    assert_eq!(writer.write("files", b"").unwrap_err().errno(), EISDIR);
    writer.close()?;
    let readers = [Image::open(path, &OpenOptions::default())?, Image::open(path, &OpenOptions::default())?];
    assert_eq!(Image::open(path, &OpenOptions::writing()).map(drop).unwrap_err().errno(), EBUSY);
    drop(readers);
    let gone = Image::open(scratch.join("gone"), &OpenOptions::default()).map(drop).unwrap_err();
    assert_eq!(gone.errno(), ENOENT, "{gone}");

    let fill = FillOptions::default().compress(parse_compress("zstd")?);
    let options = BuildOptions::default().source(Source::Dir(scratch.to_owned())).fill(fill).shrink(true);
    let filled = oleo::mkfs::build(&[scratch.join("filled.img")], options);
    if cfg!(target_os = "linux") {
        filled?;
    } else {
        println!("as it has to be: {}", filled.unwrap_err());
    }
    Ok(())
}
