//! Many subvolumes in one directory, each with one file.

use anyhow::{Result, ensure};
use oleo::TreeId;
use oleo::fs::NewSubvol;

use super::{Costs, delete, open, scattered, volume};

/// Random look-ups measured.
const LOOKUPS: u64 = 2000;
/// Subvolumes between two syncs.
const PER_COMMIT: u64 = 1000;

fn name(n: u64) -> Vec<u8> {
    format!("s{n:06}").into_bytes()
}

pub fn run(count: u64, costs: &mut Costs) -> Result<()> {
    let device = volume(256 << 30)?;
    let image = open(&device)?;
    let (fs, dir) = (image.fs(), image.create_dir("dir")?);
    let mut ids: Vec<TreeId> = Vec::new();
    costs.each("create", count, || {
        for n in 0..count {
            ids.push(fs.subvol_create(&dir, &name(n), &NewSubvol::default())?);
            if n % PER_COMMIT == PER_COMMIT - 1 {
                image.sync()?;
            }
        }
        Ok(image.sync()?)
    })?;
    costs.put_peak("memory while creating", &device)?;
    costs.put("tree blocks, each", "B", device.resident_bytes() as f64 / count as f64);
    costs.each("commit after one change", 20, || {
        for n in 0..20 {
            image.write(format!("dir/s{n:06}/file"), b"small")?;
            image.sync()?;
        }
        Ok(())
    })?;
    drop(dir);
    image.close()?;

    let image = costs.each("open", 1, || open(&device))?;
    let (fs, dir) = (image.fs(), image.find("dir")?);
    let listed = costs.each("list", count, || Ok(fs.subvol_list()?))?;
    ensure!(listed.len() as u64 > count, "{} of {count} subvolumes were listed", listed.len());
    costs.each("look up", LOOKUPS, || {
        for n in scattered(LOOKUPS, count) {
            ensure!(fs.lookup(&dir, &name(n))?.is_some_and(|i| !i.is_empty_subvol_dir()), "subvolume {n} is not found");
        }
        Ok(())
    })?;
    costs.put_peak("memory while reading", &device)?;
    delete(&image, &ids, PER_COMMIT, costs)?;
    costs.put_peak("memory while deleting", &device)?;
    drop(dir);
    Ok(image.close()?)
}
