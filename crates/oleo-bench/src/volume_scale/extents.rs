//! A file of many extents: sectors of zeros, each before a hole of one sector.

use anyhow::{Context, Result, ensure};
use oleo::fs::KeepSize;

use super::{Costs, open, scattered, volume};

const SECTOR: u64 = 4096;
/// From one extent to the next.
const STRIDE: u64 = 2 * SECTOR;
/// Random reads, and random overwrites.
const RANDOM: u64 = 50_000;

pub fn run(extents: u64, costs: &mut Costs) -> Result<()> {
    let device = volume(1 << 40)?;
    let image = open(&device)?;
    let data = [0; SECTOR as usize];
    let file = image.create_file("file")?;
    costs.each("write", extents, || {
        for n in 0..extents {
            file.write_at(&data, n * STRIDE)?;
        }
        Ok(image.sync()?)
    })?;
    costs.put_peak("memory while writing", &device)?;
    costs.put("tree blocks, per extent", "B", device.resident_bytes() as f64 / extents as f64);
    drop(file);
    image.close()?;

    let image = open(&device)?;
    let file = image.open_file("file")?;
    let inode = image.find("file")?;
    let mapped = costs.each("map", extents, || {
        let (mut at, mut found) = (0, 0);
        while let Some(data) = image.fs().seek_data(&inode, at)? {
            at = image.fs().seek_hole(&inode, data)?.context("data ends in a hole")?;
            found += 1;
        }
        Ok(found)
    })?;
    ensure!(mapped == extents, "{mapped} extents of {extents} were found");
    costs.each("random read", RANDOM, || {
        let mut buf = [1; SECTOR as usize];
        for n in scattered(RANDOM, extents) {
            file.read_at(&mut buf, n * STRIDE)?;
            ensure!(buf == data, "extent {n} reads as something else");
        }
        Ok(())
    })?;
    costs.put_peak("memory while reading", &device)?;
    costs.each("random overwrite", RANDOM, || {
        for n in scattered(RANDOM, extents) {
            file.write_at(&data, n * STRIDE)?;
        }
        Ok(image.sync()?)
    })?;
    costs.each("one more, with its commit", 20, || {
        for n in 0..20 {
            image.fs().preallocate(&inode, (extents + n) * STRIDE, SECTOR, KeepSize::No)?;
            image.sync()?;
        }
        Ok(())
    })?;
    costs.put_peak("memory while overwriting", &device)?;
    costs.each("truncate", extents, || {
        file.set_len(0)?;
        Ok(image.sync()?)
    })?;
    costs.put_peak("memory while truncating", &device)?;
    drop((file, inode));
    Ok(image.close()?)
}
