//! The cost of operations on a volume a hundred times as large. Ours alone, in-process, on a device in memory that
//! stores tree blocks and no data: space is preallocated, and all writes are zeros, which such a device does not store.
//!
//! Each part makes its volume twice, at a hundredth of the full size and at the full size, and prints the cost of each
//! kind of operation per piece at both. Costs that grow by more than deeper trees and colder caches explain are bugs.
//! Memory is the process's peak beyond the device's contents.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use oleo::device::MemDevice;
use oleo::mkfs::{FeatureSet, MkfsOptions, Profile};
use oleo::{Device, Image, OpenOptions, TreeId};

use crate::Args;
use crate::measure::{Report, busy_seconds, memory, reset_peak};

mod directory;
mod extents;
mod groups;
mod snapshots;
mod subvolumes;

/// The smaller size is this part of the larger.
const PARTS: u64 = 100;
/// Costs per operation may grow that much from the smaller size to the larger.
const AIM: f64 = 2.0;

struct Part {
    name: &'static str,
    /// Pieces at full size.
    full: u64,
    /// Builds, measures.
    run: fn(u64, &mut Costs) -> Result<()>,
}

const ALL: &[Part] = &[
    Part { name: "groups", full: 1 << 20, run: groups::in_a_tree },
    Part { name: "groups-without-tree", full: 1 << 20, run: groups::without_tree },
    Part { name: "directory", full: 10_000_000, run: directory::run },
    Part { name: "extents", full: 10_000_000, run: extents::run },
    Part { name: "subvolumes", full: 100_000, run: subvolumes::run },
    Part { name: "snapshots", full: 10_000, run: snapshots::run },
];

/// The costs measured at one size, in the order of measurement.
#[derive(Default)]
pub struct Costs {
    found: Vec<(&'static str, &'static str, f64)>,
    /// Bytes that the device held when memory was last measured.
    stored: u64,
}

impl Costs {
    /// Microseconds per operation, of `count`. The busy time of the processors, of all threads, is shown beside it: on
    /// a machine that does other work it is more reliable.
    fn each<R>(&mut self, name: &'static str, count: u64, f: impl FnOnce() -> Result<R>) -> Result<R> {
        let (start, busy) = (Instant::now(), busy_seconds()?);
        let done = f()?;
        let per_piece = 1e6 / count.max(1) as f64;
        let (taken, busy) = (start.elapsed().as_secs_f64(), busy_seconds()? - busy);
        eprintln!("  {name}, processors: {:.2} µs", busy * per_piece);
        self.put(name, "µs", taken * per_piece);
        Ok(done)
    }

    fn put(&mut self, name: &'static str, unit: &'static str, value: f64) {
        eprintln!("  {name}: {value:.2} {unit}");
        self.found.push((name, unit, value));
    }

    /// The peak of memory since the last call, beyond what was stored on the device at its beginning or end.
    fn put_peak(&mut self, name: &'static str, device: &MemDevice) -> Result<()> {
        let before = std::mem::replace(&mut self.stored, device.resident_bytes());
        let peak = memory("VmHWM:")?.saturating_sub(self.stored.max(before));
        self.put(name, "MiB", peak as f64 / f64::from(1 << 20));
        reset_peak();
        Ok(())
    }
}

/// A volume on a device of `len` bytes, one copy of everything, block groups in a tree of their own.
fn volume(len: u64) -> Result<Arc<MemDevice>> {
    volume_with(len, FeatureSet::default().block_group_tree(true))
}

fn volume_with(len: u64, features: FeatureSet) -> Result<Arc<MemDevice>> {
    let device = Arc::new(MemDevice::new(len));
    let single = Some(Profile::Single);
    let options = MkfsOptions::default().data(single).metadata(single).features(features);
    let devices: [Arc<dyn Device>; 1] = [device.clone()];
    oleo::mkfs::make(&devices, &options)?;
    Ok(device)
}

/// Opens the image; freed space is discarded, so that the device forgets it.
fn open(device: &Arc<MemDevice>) -> Result<Image> {
    let options = OpenOptions::writing().discard(true);
    Ok(Image::from_devices(vec![device.clone()], &options)?)
}

/// Deletes subvolumes, `per_commit` between two syncs, and cleans them up.
fn delete(image: &Image, ids: &[TreeId], per_commit: u64, costs: &mut Costs) -> Result<()> {
    let count = ids.len() as u64;
    costs.each("delete", count, || {
        for (n, id) in (1..).zip(ids) {
            image.fs().subvol_delete(*id)?;
            if n % per_commit == 0 {
                image.sync()?;
            }
        }
        Ok(image.sync()?)
    })?;
    costs.each("take apart", count, || {
        image.clean()?;
        Ok(image.sync().map(drop)?)
    })
}

/// Numbers below `bound` without an order that a cache would like.
fn scattered(count: u64, bound: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % bound)
}

/// Runs the benchmark.
pub fn run(args: &Args, report: &mut Report) -> Result<()> {
    let chosen = |p: &&Part| args.wants(p.name);
    ensure!(ALL.iter().any(|p| chosen(&p)), "no part of volume-scale is called {:?}", args.only);
    for part in ALL.iter().filter(chosen) {
        let large = (part.full / args.part.max(1)).max(PARTS);
        let mut both = Vec::new();
        for size in [large / PARTS, large] {
            eprintln!("{} of {size}:", part.name);
            let mut costs = Costs::default();
            reset_peak();
            (part.run)(size, &mut costs)?;
            both.push(costs);
        }
        report.note(&format!("{}: {} and {large}", part.name, large / PARTS));
        for ((name, unit, small), (.., large)) in both[0].found.iter().zip(&both[1].found) {
            report.scaled(&format!("{}: {name}", part.name), unit, *small, *large, AIM);
        }
    }
    Ok(())
}
