//! Send and receive, beside the kernel's on the same image.
//!
//! Streams are written to, and read from, files in memory on both sides. Ours opens the image file and is done when the
//! stream is written, or, receiving, when everything is committed and the image closed; the kernel's side is mounted
//! anew before the clock starts, and what it receives is synced within the clock. Images are in memory, so that reading
//! one costs the same on both sides; neither has anything of it in its caches.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use oleo::fs::{CloneRange, InodeRef, NewInode, NewKind};
use oleo::{Image, OpenOptions, SnapshotOptions};
use oleo_sim::oracle::{self, Oracle, Scratch, run as tool};
use oleo_sim::rng::Rng;

use crate::Args;
use crate::measure::{Report, Sample, median, oleo, program, time};

/// Files that are shared, by default; `--files` of 10 000 and 50 000 are the other sizes of the kernel's series.
const SHARED_FILES: u64 = 3000;
const SHARED_COPIES: u64 = 50;
const DIR_FILES: u64 = 1000;
/// The other setting: few extents, each shared very often.
const OFTEN_FILES: u64 = 20;
const OFTEN_LEN: u64 = 128 << 10;
/// An ordinary tree.
const TREE_FILES: u64 = 60_000;
const TREE_BYTES: u64 = 850 << 20;
const TREE_DIR_FILES: u64 = 60;

fn create(path: &Path, len: u64) -> Result<Image> {
    std::fs::File::create(path)?.set_len(len)?;
    let device = oleo::device::FileDevice::open(path, &oleo::device::FileOptions::default().write(true))?;
    oleo::mkfs::make(
        &[std::sync::Arc::new(device)],
        &oleo::mkfs::MkfsOptions::default().seed(oleo::mkfs::random_seed()),
    )?;
    Ok(Image::open(path, &OpenOptions::writing())?)
}

fn snapshot(image: &Image, name: &str) -> Result<()> {
    image.sync()?;
    image.snapshot("/live", name, &SnapshotOptions::default().read_only(true))?;
    Ok(())
}

fn new_file(image: &Image, dir: &InodeRef, name: &str) -> Result<InodeRef> {
    Ok(image.fs().create(dir, name.as_bytes(), &NewInode::new(NewKind::File, 0o644))?)
}

fn new_dir(image: &Image, dir: &InodeRef, name: &str) -> Result<InodeRef> {
    Ok(image.fs().create(dir, name.as_bytes(), &NewInode::new(NewKind::Dir, 0o755))?)
}

/// Files of one extent each, and reflinks of each: half of them in the first snapshot, the rest in the second.
fn build_shared(path: &Path, files: u64, len: u64, copies: u64) -> Result<()> {
    let image = create(path, 32 << 30)?;
    let top = image.fs().root(image.create_subvol("/live")?)?;
    let mut rng = Rng::new(len);
    let originals = new_dir(&image, &top, "originals")?;
    let mut sources = Vec::new();
    for n in 0..files {
        let file = new_file(&image, &originals, &format!("file-{n:06}"))?;
        image.fs().write(&file, 0, &rng.bytes(usize::try_from(len)?))?;
        image.fs().flush(&file)?;
        sources.push(file);
    }
    for copy in 0..copies {
        let mut dir = None;
        for (n, source) in (0u64..).zip(&sources) {
            if n % DIR_FILES == 0 {
                dir = Some(new_dir(&image, &top, &format!("copies-{copy:06}-{n:06}"))?);
            }
            let dir = dir.as_ref().context("the first file makes a directory")?;
            let file = new_file(&image, dir, &format!("file-{n:06}"))?;
            image.fs().clone_range(source, &file, &CloneRange { from: 0, len, to: 0 })?;
        }
        if copy + 1 == copies / 2 {
            snapshot(&image, "/first")?;
        }
    }
    snapshot(&image, "/second")?;
    drop((sources, originals, top));
    Ok(image.close()?)
}

/// An ordinary tree: many small files, some large ones; then one in a hundred is written anew, in part or whole, and some are
/// renamed, removed and made.
fn build_tree(path: &Path) -> Result<()> {
    let image = create(path, 4 << 30)?;
    let fs = image.fs();
    let top = fs.root(image.create_subvol("/live")?)?;
    let mut rng = Rng::new(60);
    let mut all = Vec::new();
    let mut bytes = 0;
    let mut dir = None;
    for n in 0..TREE_FILES {
        if n % TREE_DIR_FILES == 0 {
            dir = Some(new_dir(&image, &top, &format!("directory-{n:06}"))?);
        }
        let dir = dir.as_ref().context("the first file makes a directory")?;
        let average = (TREE_BYTES - bytes) / (TREE_FILES - n);
        let len = match rng.below(100) {
            0..70 => rng.below(average / 2),
            70..97 => rng.below(average * 2),
            _ => rng.below(average * 36),
        };
        bytes += len.min(TREE_BYTES - bytes);
        let file = new_file(&image, dir, &format!("file-{n:06}"))?;
        fs.write(&file, 0, &rng.bytes(usize::try_from(len)?))?;
        all.push((dir.clone(), n, file));
    }
    snapshot(&image, "/first")?;
    for (dir, n, file) in all.iter().filter(|(_, n, _)| n % 100 == 7) {
        match n / 100 % 5 {
            0 => fs.write(file, 0, &rng.bytes(20_000))?,
            1 => fs.unlink(dir, format!("file-{n:06}").as_bytes())?,
            2 => {
                let new = new_file(&image, dir, &format!("new-{n:06}"))?;
                fs.write(&new, 0, &rng.bytes(10_000))?;
            }
            3 => fs.rename(
                dir,
                format!("file-{n:06}").as_bytes(),
                &top,
                format!("moved-{n:06}").as_bytes(),
                oleo::fs::RenameMode::Replace,
            )?,
            _ => fs.write(file, 4096, &rng.bytes(4096))?,
        }
    }
    snapshot(&image, "/second")?;
    drop((all, dir, top));
    Ok(image.close()?)
}

/// One stream: its snapshot, its parent, and its file.
struct Stream<'s> {
    image: &'s Path,
    snapshot: &'static str,
    parent: Option<&'static str>,
}

impl Stream<'_> {
    fn ours(&self, command: &Path, to: &Path) -> Result<Sample> {
        let mut args = vec!["send".to_owned(), "-f".into(), to.display().to_string(), self.image.display().to_string()];
        args.extend(["--subvol".into(), format!("/{}", self.snapshot)]);
        if let Some(parent) = self.parent {
            args.extend(["-p".into(), format!("/{parent}")]);
        }
        program(command, &args)
    }

    fn theirs(&self, oracle: &Oracle, to: &Path) -> Result<Sample> {
        let mounted = oracle.mount(&[self.image], "ro")?;
        let at = |name: &str| mounted.path().join(name).display().to_string();
        let mut args = vec!["send".to_owned(), "-q".into(), "-f".into(), to.display().to_string()];
        if let Some(parent) = self.parent {
            args.extend(["-p".into(), at(parent)]);
        }
        args.push(at(self.snapshot));
        let taken = time(|| tool("btrfs", &args).map(drop))?;
        mounted.unmount()?;
        Ok(taken)
    }

    /// Both sides in turns; the streams of the last turn are left.
    fn measure(&self, bench: &Setting<'_>, name: &str, aim: &str) -> Result<(PathBuf, Option<PathBuf>)> {
        let (mine, kernels) = (bench.scratch.path().join("ours.stream"), bench.scratch.path().join("kernel.stream"));
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..bench.args.runs {
            let _ = std::fs::remove_file(&mine);
            ours.push(self.ours(&bench.command, &mine)?);
            let _ = std::fs::remove_file(&kernels);
            theirs.push(self.theirs(&bench.oracle, &kernels)?);
        }
        bench.report.seconds(name, median(ours), "kernel", median(theirs), aim);
        let (a, b) = (std::fs::metadata(&mine)?.len(), std::fs::metadata(&kernels)?.len());
        bench.report.note(&format!("{name}: {a} bytes, the kernel's stream {b}"));
        Ok((mine, Some(kernels)))
    }
}

struct Setting<'s> {
    args: &'s Args,
    report: &'s Report,
    oracle: Oracle,
    scratch: Scratch,
    command: PathBuf,
}

impl<'s> Setting<'s> {
    fn new(args: &'s Args, report: &'s Report) -> Result<Setting<'s>> {
        let oracle = oracle::oracle().context("this benchmark needs the kernel's btrfs")?;
        report.note(&format!("median of {} runs", args.runs));
        Ok(Setting { args, report, oracle, scratch: oracle.scratch()?, command: oleo()? })
    }

    fn wants(&self, what: &str) -> bool {
        self.args.wants(what)
    }

    /// The file system received must be the one sent: the numbers of names are compared.
    fn receive(&self, name: &str, streams: &[&Path], kernel_streams: &[&Path], aim: &str) -> Result<()> {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..self.args.runs {
            let path = self.scratch.path().join("received.img");
            create(&path, 16 << 30)?.close()?;
            let mut taken = Sample { seconds: 0.0, peak_bytes: 0 };
            for stream in streams {
                let one = program(
                    &self.command,
                    &["receive", "-f", &stream.display().to_string(), &path.display().to_string()],
                )?;
                taken.seconds += one.seconds;
                taken.peak_bytes = taken.peak_bytes.max(one.peak_bytes);
            }
            ours.push(taken);
            std::fs::remove_file(&path)?;
            std::fs::File::create(&path)?.set_len(16 << 30)?;
            self.oracle.mkfs(&["-q"], &[&path])?;
            let mounted = self.oracle.mount(&[&path], "")?;
            let at = mounted.path().display().to_string();
            theirs.push(time(|| {
                for stream in kernel_streams {
                    tool("btrfs", ["receive", "-q", "-f", &stream.display().to_string(), &at])?;
                }
                tool("btrfs", ["filesystem", "sync", &at]).map(drop)
            })?);
            mounted.unmount()?;
            std::fs::remove_file(&path)?;
        }
        self.report.seconds(name, median(ours), "kernel", median(theirs), aim);
        Ok(())
    }
}

/// `send-shared`
pub fn shared(args: &Args, report: &mut Report) -> Result<()> {
    let bench = Setting::new(args, report)?;
    let files = if args.files == 1_000_000 { SHARED_FILES } else { args.files };
    let image = bench.scratch.path().join("shared.img");
    for len in [4096u64, 8192] {
        let what = format!("{files} files of {} KiB, each {SHARED_COPIES} times more", len >> 10);
        if !bench.wants(&what) {
            continue;
        }
        build_shared(&image, files, len, SHARED_COPIES)?;
        let least = files * len;
        let whole = Stream { image: &image, snapshot: "second", parent: None };
        let (stream, _) = whole.measure(&bench, &format!("{what}, full"), "10x")?;
        let bytes = std::fs::metadata(&stream)?.len();
        ensure!(bytes > least, "less than the contents");
        report.note(&format!("{what}: contents are {least} bytes of {bytes}"));
        let change = Stream { image: &image, snapshot: "second", parent: Some("first") };
        change.measure(&bench, &format!("{what}, incremental"), "10x")?;
    }
    let mut small = None;
    for copies in [1000u64, 1100, 100_000] {
        let what = format!("{OFTEN_FILES} files of 128 KiB, each {copies} times more");
        if !bench.wants(&what) {
            continue;
        }
        build_shared(&image, OFTEN_FILES, OFTEN_LEN, copies)?;
        let whole = Stream { image: &image, snapshot: "second", parent: None };
        let change = Stream { image: &image, snapshot: "second", parent: Some("first") };
        if copies < 10_000 {
            whole.measure(&bench, &format!("{what}, full"), "100x")?;
            change.measure(&bench, &format!("{what}, incremental"), "100x")?;
        }
        let out = bench.scratch.path().join("ours.stream");
        for (kind, stream) in [("full", &whole), ("incremental", &change)] {
            let mut taken = Vec::new();
            for _ in 0..args.runs {
                taken.push(stream.ours(&bench.command, &out)?);
            }
            let taken = median(taken);
            let each = taken.seconds * 1e6 / (OFTEN_FILES * copies) as f64;
            report.note(&format!(
                "{what}, {kind}: {:.3} s, {} MiB, {each:.3} us a reference",
                taken.seconds,
                taken.peak_bytes >> 20
            ));
            if kind == "full" {
                let first = *small.get_or_insert(each);
                if copies == 100_000 {
                    report.scaled("1000 and 100 000 references, each", "us", first, each, 1.1);
                }
            }
        }
    }
    Ok(())
}

/// `send-tree`, `send-incremental` and `receive`
fn of_tree(args: &Args, report: &Report, whole: bool, change: bool, receive: bool) -> Result<()> {
    let bench = Setting::new(args, report)?;
    let image = bench.scratch.path().join("tree.img");
    build_tree(&image)?;
    let what = format!("{TREE_FILES} files, {} MiB", TREE_BYTES >> 20);
    let full = Stream { image: &image, snapshot: "first", parent: None };
    let step = Stream { image: &image, snapshot: "second", parent: Some("first") };
    if whole {
        full.measure(&bench, &format!("{what}, full"), "3x")?;
    }
    if change {
        step.measure(&bench, "1 % changed, incremental", "5x")?;
    }
    if receive {
        let at = |name: &str| bench.scratch.path().join(name);
        let (a, b, c, d) = (at("a.stream"), at("b.stream"), at("c.stream"), at("d.stream"));
        full.ours(&bench.command, &a)?;
        full.theirs(&bench.oracle, &c)?;
        bench.receive(&format!("receive, {what}"), &[&a], &[&c], "5x")?;
        bench.receive(&format!("receive, {what}, kernel's stream"), &[&c], &[&c], "5x")?;
        step.ours(&bench.command, &b)?;
        step.theirs(&bench.oracle, &d)?;
        bench.receive("receive, and 1 % changed", &[&a, &b], &[&c, &d], "5x")?;
        if !bench.wants("shared") {
            return Ok(());
        }
        for path in [&a, &b, &c, &d, &image] {
            std::fs::remove_file(path)?;
        }
        build_shared(&image, SHARED_FILES, 8192, SHARED_COPIES)?;
        let shared = Stream { image: &image, snapshot: "second", parent: None };
        shared.ours(&bench.command, &a)?;
        shared.theirs(&bench.oracle, &c)?;
        bench.receive("receive, shared, each its own stream", &[&a], &[&c], "5x")?;
        bench.receive("receive, shared, our stream", &[&a], &[&a], "5x")?;
    }
    Ok(())
}

/// `send-tree`
pub fn tree(args: &Args, report: &mut Report) -> Result<()> {
    of_tree(args, report, true, false, false)
}

/// `send-incremental`
pub fn incremental(args: &Args, report: &mut Report) -> Result<()> {
    of_tree(args, report, false, true, false)
}

/// `receive`
pub fn receive(args: &Args, report: &mut Report) -> Result<()> {
    of_tree(args, report, false, false, true)
}
