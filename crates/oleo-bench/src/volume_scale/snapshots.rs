//! Many snapshots of one subvolume of some thousand files, one of which changes before each. Few of the files ever
//! change, so most tree blocks belong to all snapshots.

use anyhow::{Result, ensure};
use oleo::fs::NewSubvol;
use oleo::{SnapshotOptions, TreeId};

use super::{Costs, delete, open, scattered, volume};

/// Files of the subvolume.
const FILES: u64 = 2000;
/// Those that change.
const HOT: u64 = 20;
/// Bytes of each: an extent of its own.
const FILE_LEN: usize = 8192;
/// Snapshots that are searched.
const LOOKUPS: u64 = 500;
/// Snapshots between two syncs.
const PER_COMMIT: u64 = 10;

pub fn run(count: u64, costs: &mut Costs) -> Result<()> {
    let device = volume(256 << 30)?;
    let image = open(&device)?;
    let (fs, top) = (image.fs(), image.top()?);
    let source = fs.subvol_create(&top, b"source", &NewSubvol::default())?;
    let dir = image.create_dir("dir")?;
    let zeros = [0; FILE_LEN];
    for n in 0..FILES {
        image.write(format!("source/f{n}"), &zeros)?;
    }
    image.sync()?;
    let mut ids: Vec<TreeId> = Vec::new();
    costs.each("change a file, take a snapshot", count, || {
        for n in 0..count {
            image.write(format!("source/f{}", n % HOT), &zeros)?;
            ids.push(fs.snapshot(source, &dir, format!("s{n:05}").as_bytes(), SnapshotOptions::default())?);
            if n % PER_COMMIT == PER_COMMIT - 1 {
                image.sync()?;
            }
        }
        Ok(image.sync()?)
    })?;
    costs.put_peak("memory while taking them", &device)?;
    costs.put("tree blocks, each", "B", device.resident_bytes() as f64 / count as f64);
    costs.each("commit after one change", 20, || {
        for n in 0..20 {
            image.write(format!("source/f{n}"), &zeros)?;
            image.sync()?;
        }
        Ok(())
    })?;
    costs.each("commit after one in a snapshot", 20, || {
        for n in 0..20 {
            image.write(format!("dir/s{:05}/f{}", n * (count / 20), n * 89), &zeros)?;
            image.sync()?;
        }
        Ok(())
    })?;
    drop((top, dir));
    image.close()?;

    let image = costs.each("open", 1, || open(&device))?;
    costs.each("look up", LOOKUPS, || {
        for n in scattered(LOOKUPS, count) {
            ensure!(image.find(format!("dir/s{n:05}/f7")).is_ok(), "a file in snapshot {n} is not found");
        }
        Ok(())
    })?;
    delete(&image, &ids, PER_COMMIT, costs)?;
    costs.put_peak("memory while deleting", &device)?;
    Ok(image.close()?)
}
