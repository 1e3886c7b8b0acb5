//! From a directory into an image and out again: nothing may be lost on the way, and the kernel must agree.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use oleo::mkfs::{BuildOptions, FillOptions, MkfsOptions, Source, SubvolSpec, build};
use oleo::restore::{RestoreOptions, restore_to_dir, restore_to_tar};
use oleo::{Image, OpenOptions};
use oleo_sim::manifest::{Detail, Ignore, Manifest};
use oleo_sim::oracle::{Scratch, oracle};
use oleo_sim::specimen;

fn detail() -> Detail {
    Detail { holes: true, sharing: false, atime_ctime: false, otime: false }
}

fn specimen_in(scratch: &Scratch) -> Result<PathBuf> {
    let dir = scratch.dir("source")?;
    specimen::make(&dir, &specimen::Options { wide: 300, ..specimen::Options::default() })?;
    Ok(dir)
}

fn options(source: Source, seed: u8) -> BuildOptions {
    let mkfs = MkfsOptions::default().seed([seed; 32]).created_seconds(1_700_000_000);
    BuildOptions::default().mkfs(mkfs).source(source).shrink(true)
}

/// Everything of `dir` again, out of an image of it, in two ways: as a directory, and as a tar read by GNU tar.
fn must_come_out_equal(image: &Path, dir: &Path, scratch: &Scratch) -> Result<()> {
    let want = Manifest::of_dir(dir, detail())?;
    let image = Image::open(image, &OpenOptions::default())?;
    let out = scratch.path().join("restored");
    let report = restore_to_dir(&image, &image.top()?, b"", &out, &RestoreOptions::default())?;
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
    want.must_equal(&Manifest::of_dir(&out, detail())?, &Ignore::from_elsewhere(), "restored into a directory");
    fs::remove_dir_all(&out)?;

    let tar = scratch.path().join("out.tar");
    restore_to_tar(&image, &image.top()?, b"", fs::File::create(&tar)?, &RestoreOptions::default())?;
    let again = scratch.path().join("again.img");
    build(&[&again], options(Source::Tar(Box::new(fs::File::open(&tar)?)), 77))?;
    let again = Image::open(&again, &OpenOptions::default())?;
    restore_to_dir(&again, &again.top()?, b"", &out, &RestoreOptions::default())?;
    want.must_equal(&Manifest::of_dir(&out, detail())?, &Ignore::from_elsewhere(), "through a tar of ours and back");
    fs::remove_dir_all(&out)?;
    Ok(())
}

/// Goal: a tree with every kind of file survives the way into an image and out of it; the kernel sees it alike.
#[test]
fn every_kind_of_file() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let dir = specimen_in(&scratch)?;
    let image = scratch.path().join("image");
    build(&[&image], options(Source::Dir(dir.clone()), 1))?;
    oracle.must_be_sound(&[&image], "an image of a specimen")?;
    let mounted = oracle.mount(&[&image], "ro")?;
    let want = Manifest::of_dir(&dir, detail())?;
    want.must_equal(&Manifest::of_dir(mounted.path(), detail())?, &Ignore::from_elsewhere(), "as the kernel sees it");
    mounted.unmount()?;
    must_come_out_equal(&image, &dir, &scratch)
}

/// Goal: what GNU tar writes becomes the same as the directory it was made from.
#[test]
fn from_gnu_tar() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let dir = specimen_in(&scratch)?;
    // GNU tar does not keep sockets.
    let tar = scratch.path().join("source.tar.zst");
    let made = Command::new("tar")
        .args(["--format=pax", "--xattrs", "--xattrs-include=*", "-S", "--zstd", "-cf"])
        .arg(&tar)
        .arg("-C")
        .arg(&dir)
        .arg(".")
        .output()?;
    assert!(made.status.success() || String::from_utf8_lossy(&made.stderr).contains("socket ignored"));
    let plain = scratch.dir("plain")?;
    let unpacked = Command::new("tar")
        .args(["--xattrs", "--xattrs-include=*", "-xpf"])
        .arg(&tar)
        .arg("-C")
        .arg(&plain)
        .output()?;
    assert!(unpacked.status.success(), "{}", String::from_utf8_lossy(&unpacked.stderr));
    let image = scratch.path().join("image");
    build(&[&image], options(Source::Tar(Box::new(fs::File::open(&tar)?)), 2))?;
    oracle.must_be_sound(&[&image], "an image of a tar")?;
    let out = scratch.path().join("restored");
    let image = Image::open(&image, &OpenOptions::default())?;
    restore_to_dir(&image, &image.top()?, b"", &out, &RestoreOptions::default())?;
    let want = Manifest::of_dir(&plain, detail())?;
    want.must_equal(&Manifest::of_dir(&out, detail())?, &Ignore::from_elsewhere(), "through a tar of GNU tar's");
    Ok(())
}

/// Goal: same input, same bytes, whatever the number of threads; and another seed gives another image.
#[test]
fn reproducible() -> Result<()> {
    let scratch = Scratch::new()?;
    let dir = specimen_in(&scratch)?;
    let image_of = |name: &str, seed: u8, threads: usize| -> Result<Vec<u8>> {
        let path = scratch.path().join(name);
        let mut options = options(Source::Dir(dir.clone()), seed);
        options.fill = FillOptions::default()
            .threads(threads)
            .epoch_seconds(Some(1_600_000_000))
            .compress(oleo::fs::parse_compress("zstd:1")?)
            .subvols(vec![SubvolSpec::new("deep").read_only(true)]);
        fs::create_dir_all(dir.join("deep"))?;
        build(&[&path], options)?;
        Ok(fs::read(&path)?)
    };
    let first = image_of("one", 3, 1)?;
    assert!(first == image_of("two", 3, 2)?, "two threads give other bytes than one");
    assert!(first == image_of("seven", 3, 7)?, "seven threads give other bytes than one");
    assert!(first != image_of("other", 4, 2)?, "the seed changes nothing");
    Ok(())
}

/// Goal: directories become subvolumes: nested, read-only, default; and a link across their border becomes a copy.
#[test]
fn subvolumes() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let dir = scratch.dir("source")?;
    fs::create_dir_all(dir.join("a/inner"))?;
    fs::create_dir(dir.join("b"))?;
    fs::write(dir.join("file"), "shared")?;
    for place in ["a/one", "a/two", "a/inner/three", "b/four"] {
        fs::hard_link(dir.join("file"), dir.join(place))?;
    }
    let wish = |path: &str, read_only, default| SubvolSpec::new(path).read_only(read_only).default(default);
    let image = scratch.path().join("image");
    let mut options = options(Source::Dir(dir.clone()), 5);
    options.fill.subvols = vec![wish("a", false, true), wish("a/inner", true, false)];
    let report = build(&[&image], options)?;
    assert_eq!((report.filled.done.subvols, report.filled.done.files), (2, 3));
    oracle.must_be_sound(&[&image], "subvolumes")?;
    let mounted = oracle.mount(&[&image], "")?;
    assert_eq!(fs::read_to_string(mounted.path().join("one"))?, "shared");
    assert!(fs::write(mounted.path().join("inner/three"), "x").is_err());
    fs::write(mounted.path().join("two"), "x")?;
    mounted.unmount()?;
    let image = Image::open(&image, &OpenOptions::default())?;
    assert_eq!(image.read("a/one")?, b"x");
    assert_eq!(image.read("a/inner/three")?, b"shared");
    assert_eq!(image.attr("b/four")?.nlink, 2);
    let list = image.fs().subvol_list()?;
    let shown: Vec<(String, bool)> =
        list.iter().map(|s| (String::from_utf8_lossy(&s.path).into_owned(), s.read_only)).collect();
    assert_eq!(shown, [(String::new(), false), ("a".into(), false), ("a/inner".into(), true)]);
    Ok(())
}

/// Goal: with a host that can share blocks, the data of an image takes no room of its own, and the image is sound.
/// Method: source and image on a kernel btrfs; ask it what the image has for itself.
#[test]
fn reflinks() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let host = scratch.image("host", 1 << 30)?;
    oracle.mkfs(&[], &[&host])?;
    let mounted = oracle.mount(&[&host], "")?;
    let dir = mounted.path().join("source");
    fs::create_dir(&dir)?;
    for i in 0..5u32 {
        let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761 + i) >> 16) as u8).collect();
        fs::write(dir.join(format!("file{i}")), bytes)?;
    }
    let image = mounted.path().join("image");
    build(&[&image], options(Source::Dir(dir.clone()), 6).reflink(true))?;
    mounted.sync()?;
    let shown = oleo_sim::oracle::run("btrfs", ["filesystem", "du", "-s", "--raw", &image.display().to_string()])?;
    let exclusive: u64 = shown.lines().last().unwrap_or_default().split_whitespace().nth(1).unwrap_or("?").parse()?;
    assert!(exclusive < 2_000_000, "{shown}");
    let copy = scratch.path().join("copy");
    fs::copy(&image, &copy)?;
    mounted.unmount()?;
    oracle.must_be_sound(&[&copy], "an image that shares data")
}
