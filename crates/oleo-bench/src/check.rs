//! Checking an image: `oleo check` beside `btrfs check`, both of its modes.

use std::path::Path;

use anyhow::{Context, Result};
use oleo::fs::{NewInode, NewKind};
use oleo::mkfs::MkfsOptions;
use oleo::{Image, OpenOptions, SnapshotOptions};
use oleo_sim::oracle;

use crate::Args;
use crate::measure::{self, Report, median, program};

const IMAGE_LEN: u64 = 8 << 30;
const FILES: usize = 200_000;
const DIRS: usize = 400;
const SNAPSHOTS: usize = 16;
/// Files of each directory that change between two snapshots.
const CHANGED: usize = 1;
/// Content of every fourth file; others lie in their item.
const DATA_LEN: usize = 8 << 10;
const INLINE_LEN: usize = 200;

/// Files in directories, and snapshots with a few changes before each.
fn build(path: &Path) -> Result<()> {
    std::fs::File::create(path)?.set_len(IMAGE_LEN)?;
    let device = oleo::device::FileDevice::open(path, &oleo::device::FileOptions::default().write(true))?;
    oleo::mkfs::make(&[std::sync::Arc::new(device)], &MkfsOptions::default())?;
    let image = Image::open(path, &OpenOptions::writing())?;
    let fs = image.fs();
    let live = image.create_subvol("/live")?;
    let top = fs.root(live)?;
    let content: Vec<u8> = (0..DATA_LEN).map(|n| (n * 7 + n / 251) as u8).collect();
    let mut firsts = Vec::new();
    for d in 0..DIRS {
        let dir = fs.create(&top, format!("directory-{d:04}").as_bytes(), &NewInode::new(NewKind::Dir, 0o755))?;
        for n in 0..FILES / DIRS {
            let name = format!("file-{n:04}");
            let file = fs.create(&dir, name.as_bytes(), &NewInode::new(NewKind::File, 0o644))?;
            let len = if n % 4 == 0 { DATA_LEN } else { INLINE_LEN };
            fs.write(&file, 0, &content[..len])?;
            if n < CHANGED {
                firsts.push(file);
            }
        }
    }
    for s in 0..SNAPSHOTS {
        for file in &firsts {
            fs.write(file, (s * 64) as u64, format!("changed before snapshot {s}").as_bytes())?;
        }
        image.snapshot("/live", format!("/snapshot-{s:02}"), &SnapshotOptions::default())?;
    }
    drop(firsts);
    drop(top);
    Ok(image.close()?)
}

/// Runs the benchmark.
pub fn run(args: &Args, report: &mut Report) -> Result<()> {
    let oracle = oracle::oracle().context("this benchmark needs btrfs check")?;
    let scratch = oracle.scratch()?;
    let image = scratch.path().join("check.img");
    build(&image)?;
    report.note(&format!(
        "{FILES} files in {DIRS} directories, {SNAPSHOTS} snapshots with {} files changed before each; the image in memory; \
         no data checksums on either side; median of {} runs",
        DIRS * CHANGED,
        args.runs
    ));
    let oleo = measure::oleo()?;
    let at = image.to_str().context("path")?;
    let (btrfs, aim) = (Path::new("/usr/bin/btrfs"), "5x, half the memory");
    let wanted = |name: &str| args.wants(name);
    let (mut ours, mut original) = (Vec::new(), Vec::new());
    for _ in 0..args.runs {
        ours.push(program(&oleo, &["check", at])?);
        if wanted("original") {
            original.push(program(btrfs, &["check", "--readonly", at])?);
        }
    }
    if !original.is_empty() {
        report.seconds("check", median(ours.clone()), "btrfs original", median(original), aim);
    }
    if wanted("lowmem") {
        // It takes minutes.
        let once = program(btrfs, &["check", "--readonly", "--mode=lowmem", at])?;
        report.seconds("check", median(ours), "btrfs lowmem, once", once, "-");
    }
    Ok(())
}
