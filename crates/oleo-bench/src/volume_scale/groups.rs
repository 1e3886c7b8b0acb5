//! A device with many block groups of 1 GiB, all but a few of them full: filling it, opening it, allocating from the
//! rest, committing.

use anyhow::{Context, Result};
use oleo::Image;
use oleo::fs::{InodeRef, KeepSize, NewInode, NewKind};
use oleo::mkfs::FeatureSet;

use super::{Costs, memory, open, volume_with};

const GIB: u64 = 1 << 30;
/// Bytes of one file, so that no map is unlike those of real files.
const FILE_LEN: u64 = 1 << 42;
/// Groups left for metadata and for the operations after the filling.
const LEFT: u64 = 40;
/// Groups filled by one transaction.
const FILLED_PER_COMMIT: u64 = 2048;
/// Small allocations measured.
const SMALL: u64 = 20_000;
/// Chunks made while measuring.
const CHUNKS: u64 = 8;

fn file(image: &Image, name: &str) -> Result<InodeRef> {
    Ok(image.fs().create(&image.top()?, name.as_bytes(), &NewInode::new(NewKind::File, 0o600))?)
}

fn fill(image: &Image, groups: u64) -> Result<()> {
    let mut at = None;
    for n in 0..groups {
        let offset = n * GIB % FILE_LEN;
        if offset == 0 {
            at = Some(file(image, &format!("full-{}", n * GIB / FILE_LEN))?);
        }
        let into = at.as_ref().context("the first offset is 0")?;
        image.fs().preallocate(into, offset, GIB, KeepSize::No)?;
        if n % FILLED_PER_COMMIT == FILLED_PER_COMMIT - 1 {
            image.sync()?;
        }
    }
    Ok(image.sync().map(drop)?)
}

/// With block groups in a tree of their own.
pub fn in_a_tree(groups: u64, costs: &mut Costs) -> Result<()> {
    run(groups, true, costs)
}

/// With block groups between the extents of the extent tree, nine to a group.
pub fn without_tree(groups: u64, costs: &mut Costs) -> Result<()> {
    run(groups, false, costs)
}

fn run(groups: u64, block_group_tree: bool, costs: &mut Costs) -> Result<()> {
    let device = volume_with((groups + LEFT) * GIB, FeatureSet::default().block_group_tree(block_group_tree))?;
    let image = open(&device)?;
    costs.each("fill, per group", groups, || fill(&image, groups))?;
    image.close()?;
    costs.put_peak("memory while filling", &device)?;

    let before = memory("VmRSS:")?;
    let image = costs.each("open, per group", groups, || open(&device))?;
    let held = memory("VmRSS:")?.saturating_sub(before);
    costs.put("memory when open, per group", "B", held as f64 / groups as f64);
    measure(&image, costs)?;
    image.close()?;
    costs.put_peak("memory after opening", &device)
}

fn measure(image: &Image, costs: &mut Costs) -> Result<()> {
    let fs = image.fs();
    let small = file(image, "small")?;
    costs.each("first allocation", 1, || Ok(fs.preallocate(&small, 0, 8192, KeepSize::No)?))?;
    costs.each("8 KiB more", SMALL, || {
        (1..=SMALL).try_for_each(|n| fs.preallocate(&small, n * 16384, 8192, KeepSize::No)).map_err(Into::into)
    })?;
    costs.each("free 8 KiB", SMALL, || {
        (1..=SMALL).try_for_each(|n| fs.punch_hole(&small, n * 16384, 8192)).map_err(Into::into)
    })?;
    costs.each("commit of that", 1, || Ok(image.sync()?))?;
    let grown = file(image, "grown")?;
    costs.each("a new chunk", CHUNKS, || {
        (0..CHUNKS).try_for_each(|n| fs.preallocate(&grown, n * GIB, GIB, KeepSize::No)).map_err(Into::into)
    })?;
    costs.each("commit of new chunks", 1, || Ok(image.sync()?))?;
    // Room in one group far from the end: it must be found among all the full ones.
    let full = image.find("full-0")?;
    costs.each("free a full group, commit", 1, || {
        fs.punch_hole(&full, 3 * GIB, GIB)?;
        Ok(image.sync()?)
    })?;
    costs.each("commit after one change", 20, || {
        (0..20).try_for_each(|n| {
            fs.preallocate(&grown, (100 + n) * GIB, 4096, KeepSize::No)?;
            image.sync().map(drop)?;
            Ok(())
        })
    })
}
