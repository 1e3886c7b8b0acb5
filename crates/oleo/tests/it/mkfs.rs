//! Images that are made: leftovers of a failed mkfs, images in parts of files, sizes, layers and owners.

use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};
use oleo::check::{self, CheckOptions, Start};
use oleo::fs::FileKind;
use oleo::mkfs::{BuildOptions, FillOptions, MkfsOptions, Source, SubvolSpec, build, parse_table};
use oleo::{Error, Hint, Image, OpenOptions};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

fn scratch() -> Result<TempDir> {
    Ok(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?)
}

fn options(source: Source) -> BuildOptions {
    BuildOptions::default().mkfs(MkfsOptions::default().seed([3; 32])).source(source)
}

fn must_be_clean(image: &Path) -> Result<()> {
    let report = check::image(image, &OpenOptions::default(), Start::default(), &CheckOptions::default().data(true))?;
    assert!(report.is_clean(), "{:?}", report.findings);
    Ok(())
}

/// A tar archive: names, and contents; `None` is a directory.
fn tar(members: &[(&str, Option<&str>)]) -> Box<dyn Read + Send> {
    let mut archive = Vec::new();
    for (name, contents) in members {
        let (kind, data) = match contents {
            Some(data) => (b'0', data.as_bytes()),
            None => (b'5', &b""[..]),
        };
        let mut header = [0u8; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        for (at, text) in [(100, "0000755"), (108, "0000001"), (116, "0000001"), (136, "00000000000")] {
            header[at..at + text.len()].copy_from_slice(text.as_bytes());
        }
        header[124..135].copy_from_slice(format!("{:011o}", data.len()).as_bytes());
        header[156] = kind;
        header[257..265].copy_from_slice(b"ustar\x0000");
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|&b| u32::from(b)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        archive.extend_from_slice(&header);
        archive.extend_from_slice(data);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.resize(archive.len() + 1024, 0);
    Box::new(std::io::Cursor::new(archive))
}

/// A stream that looks at the image that is made of it.
struct Looks<'a>(Box<dyn Read + Send>, &'a Path);

impl Read for Looks<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let mut magic = [0; 8];
        fs::File::open(self.1)?.read_exact_at(&mut magic, 0x10040)?;
        match &magic {
            b"!BHRfS_M" => self.0.read(buf),
            _ => Err(std::io::Error::other("the unfinished image can be opened")),
        }
    }
}

/// Goal: no reader takes an image for a file system while mkfs fills it, nor after mkfs has failed; a new attempt needs no force.
/// Method: the archive's stream looks at the superblock with each read; then an archive that is cut, over a file that was there.
#[test]
fn an_unfinished_image_is_none() -> Result<()> {
    let scratch = scratch()?;
    let image: &'static Path = Box::leak(scratch.path().join("i").into_boxed_path());
    fs::write(image, vec![0; 64 << 20])?;
    let whole = tar(&[("a", Some("contents"))]);
    build(&[image], options(Source::Tar(Box::new(Looks(whole, image)))))?;
    must_be_clean(image)?;

    let cut = Box::new(tar(&[("a", Some("contents"))]).take(600));
    assert!(build(&[image], options(Source::Tar(cut)).force(true)).is_err());
    let error = Image::open(image, &OpenOptions::default()).err().context("a failed mkfs left a file system")?;
    assert_eq!(error.hint(), Some(Hint::MakeAgain), "{error}");
    build(&[image], options(Source::Tar(tar(&[("b", None)]))))?;
    must_be_clean(image)
}

/// A disk image of 96 MiB with two partitions.
fn disk(path: &Path) -> Result<()> {
    let mut mbr = vec![0u8; 512];
    for (nth, (start, len)) in [(1, 16), (32, 48)].into_iter().enumerate() {
        let at = 0x1be + 16 * nth;
        mbr[at + 4] = 0x83;
        mbr[at + 8..at + 12].copy_from_slice(&(start * 2048u32).to_le_bytes());
        mbr[at + 12..at + 16].copy_from_slice(&(len * 2048u32).to_le_bytes());
    }
    mbr[0x1fe..].copy_from_slice(b"\x55\xaa");
    fs::write(path, &mbr)?;
    Ok(fs::File::options().write(true).open(path)?.set_len(96 * MIB)?)
}

/// Goal: an image in a partition ends with it, and a disk image never becomes longer. The message for a partitioned disk names the
/// byte where the file system begins.
#[test]
fn an_image_in_a_partition() -> Result<()> {
    let scratch = scratch()?;
    let path = scratch.path().join("disk");
    disk(&path)?;
    let report = build(&[&path], options(Source::Empty).offset(32 * MIB))?;
    assert_eq!(report.bytes, 48 * MIB);
    let after = |offset, size| build(&[&path], options(Source::Empty).offset(offset).size(size).force(true));
    assert_eq!(after(30 * MIB, None).err().and_then(|error| error.hint()), Some(Hint::GiveSize));
    assert!(after(32 * MIB, Some(65 * MIB)).is_err());
    assert_eq!(after(32 * MIB, Some(40 * MIB))?.bytes, 40 * MIB);
    assert_eq!(fs::metadata(&path)?.len(), 96 * MIB);

    let error = Image::open(&path, &OpenOptions::default()).err().context("a disk was opened as an image")?;
    assert!(error.to_string().contains(&(32 * MIB).to_string()) && error.hint() == Some(Hint::GiveOffset), "{error}");
    assert!(Image::open(&path, &OpenOptions::default().offset(32 * MIB)).is_ok());
    fs::write(&path, b"QFI\xfb\0\0\0\x03")?;
    let error = Image::open(&path, &OpenOptions::default()).err().context("a qcow2 file was opened as an image")?;
    assert_eq!(error.hint(), Some(Hint::UseNbd), "{error}");

    // A file system that begins before the offset reaches beyond it.
    fs::remove_file(&path)?;
    build(&[&path], options(Source::Empty).size(Some(96 * MIB)))?;
    let error =
        build(&[&path], options(Source::Empty).offset(32 * MIB)).err().context("a file system was overwritten")?;
    assert_eq!(error.hint(), Some(Hint::Overwrite), "{error}");
    must_be_clean(&path)?;
    build(&[&path], options(Source::Empty).offset(32 * MIB).force(true))?;
    Ok(())
}

/// Goal: an image that was made as short as can be is made anew from a source that has grown, and is what it would be in a new file.
#[test]
fn a_shrunk_image_grows_with_its_source() -> Result<()> {
    let scratch = scratch()?;
    let (dir, image, fresh) = (scratch.path().join("d"), scratch.path().join("i"), scratch.path().join("fresh"));
    fs::create_dir(&dir)?;
    fs::write(dir.join("a"), vec![1; 100 << 10])?;
    let make = |image: &Path| {
        // Reading changes times of access.
        let fill = FillOptions::default().epoch_seconds(Some(0));
        build(&[image], options(Source::Dir(dir.clone())).fill(fill).shrink(true).force(true))
    };
    make(&image)?;
    let short = fs::metadata(&image)?.len();
    fs::write(dir.join("b"), vec![2; 24 << 20])?;
    make(&image)?;
    make(&fresh)?;
    assert!(fs::metadata(&image)?.len() > short + (16 << 20));
    assert!(fs::read(&image)? == fs::read(&fresh)?, "the two images differ");
    // Without force nothing is emptied.
    assert!(build(&[&image], options(Source::Dir(dir.clone())).shrink(true)).is_err());
    must_be_clean(&image)
}

/// Goal: if a directory does not fit, the size that the message names suffices. Method: trees of small files, of large ones, and of
/// many names.
#[test]
fn the_size_named_suffices() -> Result<()> {
    let scratch = scratch()?;
    let long = "n".repeat(100);
    for (name, count, len) in [("small", 6000, 1800), ("large", 2, 12 << 20), (long.as_str(), 18_000, 0)] {
        let dir = scratch.path().join(name);
        fs::create_dir(&dir)?;
        for nth in 0..count {
            fs::write(dir.join(format!("{name}-{nth}")), vec![nth as u8; len])?;
        }
        let image = scratch.path().join("i");
        let make = |mib: u64| build(&[&image], options(Source::Dir(dir.clone())).size(Some(mib * MIB)).force(true));
        let error = make(24).err().with_context(|| format!("{name} fit"))?.to_string();
        let words: Vec<&str> = error.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "MiB").with_context(|| error.clone())?;
        let needed: u64 = words[at - 1].parse()?;
        make(needed).with_context(|| error.clone())?;
        assert!(needed < 240, "{error}");
    }
    Ok(())
}

/// Goal: layers lie on each other as in a container: whiteouts remove what is below, wherever they are in their archive, never
/// what their own layer has; files and directories take each other's place. Method: three layers; list what is there.
#[test]
fn layers_with_whiteouts() -> Result<()> {
    let scratch = scratch()?;
    let image = scratch.path().join("i");
    let layers = vec![
        tar(&[
            ("keep/one", Some("1")),
            ("keep/two", Some("2")),
            ("opaque/old/deep/file", Some("old")),
            ("opaque/both", Some("old")),
            ("gone/deep/file", Some("x")),
            ("dir-to-file/x", Some("x")),
            ("file-to-dir", Some("x")),
        ]),
        tar(&[
            ("keep/.wh.two", Some("")),
            ("opaque/both", Some("new")),
            ("opaque/old/new", Some("new")),
            ("opaque/.wh..wh..opq", Some("")),
            (".wh.gone", Some("")),
            (".wh.never-there", Some("")),
            ("dir-to-file", Some("file")),
            ("file-to-dir/y", Some("y")),
        ]),
        tar(&[("gone/again", Some("again")), (".wh.gone", Some(""))]),
    ];
    build(&[&image], options(Source::Layers(layers)))?;
    must_be_clean(&image)?;
    let opened = Image::open(&image, &OpenOptions::default())?;
    let mut names = Vec::new();
    let mut dirs = vec![String::new()];
    while let Some(dir) = dirs.pop() {
        for entry in opened.list(if dir.is_empty() { "/" } else { &dir })? {
            let path = format!("{dir}/{}", String::from_utf8(entry.name)?);
            match entry.kind {
                FileKind::Dir => dirs.push(path),
                _ => names.push(path),
            }
        }
    }
    names.sort();
    let want = ["/dir-to-file", "/file-to-dir/y", "/gone/again", "/keep/one", "/opaque/both", "/opaque/old/new"];
    assert_eq!(names, want);
    assert_eq!(opened.read("opaque/both")?, b"new");

    drop(opened);
    // One archive alone is taken as it is, but not an empty stream.
    build(&[&image], options(Source::Tar(tar(&[(".wh.x", Some(""))]))).force(true))?;
    assert!(Image::open(&image, &OpenOptions::default())?.find(".wh.x").is_ok());
    assert!(build(&[&image], options(Source::Tar(Box::new(std::io::empty()))).force(true)).is_err());
    Ok(())
}

/// Goal: the owners of a tree are those that were asked for, in subvolumes too, and a device table has the last word. Method: one
/// owner for all, another for the top, a table with owners, modes, and devices; a table that names what is not there.
#[test]
fn owners_and_device_tables() -> Result<()> {
    let scratch = scratch()?;
    let (dir, image) = (scratch.path().join("d"), scratch.path().join("i"));
    fs::create_dir_all(dir.join("etc"))?;
    fs::create_dir_all(dir.join("srv/u/below"))?;
    fs::write(dir.join("etc/shadow"), "secret")?;
    fs::write(dir.join("srv/u/below/file"), "")?;
    let table = "/etc/shadow f 640 0 42\n/dev d 755 0 0\n/dev/tty c 666 0 5 4 1 1 1 2\n/dev/sda b 660 0 6 8 0\n\
                 /run/initctl p 600\n/srv/u r - 1000 1000\n";
    let fill = |table: &str| -> Result<FillOptions> {
        let mut fill = FillOptions::default().uid(Some(7)).gid(Some(8)).table(parse_table(table.as_bytes())?);
        fill.top.uid = Some(9);
        Ok(fill.subvols(vec![SubvolSpec::new("srv").read_only(true)]))
    };
    fs::create_dir(dir.join("run"))?;
    build(&[&image], options(Source::Dir(dir.clone())).fill(fill(table)?))?;
    must_be_clean(&image)?;
    let opened = Image::open(&image, &OpenOptions::default())?;
    let of = |path: &str| -> Result<(u32, u32, u32)> {
        let attr = opened.attr(path)?;
        Ok((attr.uid, attr.gid, attr.mode & 0o7777))
    };
    assert_eq!((of("/")?.0, of("/")?.1, of("etc")?.0, of("srv")?.0), (9, 8, 7, 7));
    assert_eq!(of("etc/shadow")?, (0, 42, 0o640));
    assert_eq!((of("srv/u")?.0, of("srv/u/below/file")?.1), (1000, 1000));
    let tty = opened.attr("dev/tty2")?;
    assert_eq!(
        (tty.kind, tty.rdev.major, tty.rdev.minor, of("dev/tty2")?),
        (FileKind::CharDevice, 4, 2, (0, 5, 0o666))
    );
    assert_eq!(opened.attr("dev/sda")?.kind, FileKind::BlockDevice);
    assert_eq!((opened.attr("run/initctl")?.kind, of("run/initctl")?.0), (FileKind::Fifo, 0));

    drop(opened);
    for wrong in ["/none f 644 0 0", "/etc f 644 0 0", "/etc/shadow c 644 0 0 1 1"] {
        let error = build(&[&image], options(Source::Dir(dir.clone())).fill(fill(wrong)?).force(true)).unwrap_err();
        assert!(matches!(error, Error::Mkfs(_)) && error.to_string().starts_with("device table: "), "{error}");
    }
    Ok(())
}
