//! A directory of many empty files.

use anyhow::{Result, ensure};
use oleo::Image;
use oleo::fs::{InodeRef, NewInode, NewKind};

use super::{Costs, open, scattered, volume};

/// Random look-ups measured.
const LOOKUPS: u64 = 50_000;
/// Entries of one listing call.
const LISTED: usize = 1000;

fn name(n: u64) -> Vec<u8> {
    format!("f{n:07}").into_bytes()
}

fn list(image: &Image, dir: &InodeRef) -> Result<u64> {
    let (mut count, mut after) = (0, 0);
    loop {
        let batch = image.fs().readdir(dir, after, LISTED)?;
        let Some(last) = batch.last() else { return Ok(count) };
        after = last.index;
        count += batch.len() as u64;
    }
}

pub fn run(entries: u64, costs: &mut Costs) -> Result<()> {
    let device = volume(256 << 30)?;
    let image = open(&device)?;
    let dir = image.create_dir("dir")?;
    let fs = image.fs();
    costs.each("create", entries, || {
        for n in 0..entries {
            fs.create(&dir, &name(n), &NewInode::new(NewKind::File, 0o600))?;
        }
        Ok(image.sync()?)
    })?;
    costs.put_peak("memory while creating", &device)?;
    costs.put("tree blocks, per entry", "B", device.resident_bytes() as f64 / entries as f64);
    drop(dir);
    image.close()?;

    let image = open(&device)?;
    let (fs, dir) = (image.fs(), image.find("dir")?);
    let listed = costs.each("list", entries, || list(&image, &dir))?;
    ensure!(listed == entries, "{listed} entries of {entries} were listed");
    costs.each("look up", LOOKUPS, || {
        for n in scattered(LOOKUPS, entries) {
            ensure!(fs.lookup(&dir, &name(n))?.is_some(), "entry {n} is not found");
        }
        Ok(())
    })?;
    costs.put_peak("memory while reading", &device)?;
    costs.each("one more, with its commit", 20, || {
        for n in 0..20 {
            fs.create(&dir, &name(entries + n), &NewInode::new(NewKind::File, 0o600))?;
            image.sync()?;
        }
        Ok(())
    })?;
    costs.each("unlink", entries, || {
        for n in 0..entries {
            fs.unlink(&dir, &name(n))?;
        }
        Ok(image.sync()?)
    })?;
    costs.put_peak("memory while unlinking", &device)?;
    drop(dir);
    Ok(image.close()?)
}
