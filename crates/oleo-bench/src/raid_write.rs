//! Writing to raid5 and raid6: our calls in-process, and system calls on Oleo's mount and on the kernel's.
//!
//! All work on loop devices over files in memory, on volumes that mkfs.btrfs made. One thread writes a file in order, and then all over it, the same
//! bytes to the same places on all sides. The clock of a load runs until its last fsync has returned; what is left then (a commit, say) is
//! done before the next load begins, and does not count. Afterwards the kernel checks and scrubs what we wrote.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use oleo::control::RowCounts;
use oleo::fs::{InodeRef, NewInode, NewKind};
use oleo::{BackgroundOptions, Image, OpenOptions};
use oleo_sim::oracle::{self, Oracle};
use oleo_sim::rng::Rng;
use oleo_sim::served::{Limits, Served};

use crate::Args;
use crate::many_devices::{attach, images};
use crate::measure::{self, Better, Report, median_of};
use crate::mounted::tool;
use crate::peer::Peer;

/// Sparse: room for the file three times.
const DEVICE_LEN: u64 = 2 << 30;
/// Bytes of the file.
const FILE_LEN: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
const PEERS: &[Peer] = &[Peer::Library, Peer::Oleo, Peer::Kernel];

/// A volume: its name, profiles of data and metadata, and devices.
const VOLUMES: [(&str, &str, &str, usize); 2] =
    [("raid5 of 4", "raid5", "raid1", 4), ("raid6 of 6", "raid6", "raid1c3", 6)];

/// Whether each write is synced, or only the last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fsync {
    AtTheEnd,
    Each,
}

struct Load {
    name: &'static str,
    /// Bytes of a write.
    block: u64,
    /// At random places, so many; otherwise all of the file in order.
    random: Option<u64>,
    fsync: Fsync,
}

const LOADS: [Load; 4] = [
    Load { name: "1 MiB in order", block: MIB, random: None, fsync: Fsync::AtTheEnd },
    Load { name: "64 KiB at random", block: 64 << 10, random: Some(4096), fsync: Fsync::AtTheEnd },
    Load { name: "4 KiB at random", block: 4 << 10, random: Some(8192), fsync: Fsync::AtTheEnd },
    Load { name: "4 KiB, fsync each", block: 4 << 10, random: Some(2048), fsync: Fsync::Each },
];

impl Load {
    fn unit(&self) -> &'static str {
        if self.block >= 64 << 10 { "MiB/s" } else { "1/s" }
    }

    /// How fast it was, in its unit.
    fn rate(&self, writes: u64, seconds: f64) -> f64 {
        let each = if self.unit() == "MiB/s" { self.block as f64 / MIB as f64 } else { 1.0 };
        writes as f64 * each / seconds
    }
}

/// A file, ours or on a mount, and the file system that it is in.
trait Store {
    fn write(&self, at: u64, bytes: &[u8]) -> Result<()>;
    fn fsync(&self) -> Result<()>;
    fn sync(&self) -> Result<()>;
    /// How rows were written so far, where that is counted.
    fn rows(&self) -> Result<Option<RowCounts>>;
}

struct Ours {
    image: Image,
    file: InodeRef,
}

impl Store for Ours {
    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.image.fs().write(&self.file, at, bytes)?)
    }
    fn fsync(&self) -> Result<()> {
        Ok(self.image.fs().fsync(&self.file)?)
    }
    fn sync(&self) -> Result<()> {
        Ok(self.image.sync().map(drop)?)
    }
    fn rows(&self) -> Result<Option<RowCounts>> {
        Ok(Some(self.image.volume().row_stats().into()))
    }
}

struct OnMount<'a> {
    file: File,
    /// The command and the mount, if it is ours.
    counts: Option<(&'a Path, &'a Path)>,
}

impl Store for OnMount<'_> {
    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.file.write_all_at(bytes, at)?)
    }
    fn fsync(&self) -> Result<()> {
        Ok(self.file.sync_all()?)
    }
    fn sync(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(&self.file)?)
    }
    fn rows(&self) -> Result<Option<RowCounts>> {
        let Some((oleo, mount)) = self.counts else { return Ok(None) };
        let said = tool(Command::new(oleo).args(["filesystem", "stats", "--json"]).arg(mount))?;
        let said: serde_json::Value = serde_json::from_str(&said)?;
        Ok(Some(serde_json::from_value(said["rows"].clone()).context("the counters of rows")?))
    }
}

/// What is written, in the order of writing.
fn places(load: &Load, len: u64, part: u64) -> Vec<u64> {
    let Some(count) = load.random else { return (0..len).step_by(load.block as usize).collect() };
    let mut rng = Rng::new(load.block);
    (0..(count / part).max(1)).map(|_| rng.below(len / load.block) * load.block).collect()
}

/// Results of one figure: values of all runs, by peer.
type Values = BTreeMap<String, BTreeMap<&'static str, Vec<f64>>>;

/// What is found of all runs.
#[derive(Default)]
struct All {
    rates: Values,
    /// Of the last run.
    rows: BTreeMap<String, RowCounts>,
}

struct Run<'a> {
    args: &'a Args,
    peer: Peer,
    volume: &'static str,
}

impl Run<'_> {
    fn loads(&self, store: &dyn Store, all: &mut All) -> Result<()> {
        let part = self.args.part.max(1);
        let len = (FILE_LEN / part / MIB).max(1) * MIB;
        // Bytes that differ from write to write, and do not compress.
        let bytes = Rng::new(9).bytes(2 * MIB as usize);
        store.sync()?;
        for load in &LOADS {
            let places = places(load, len, part);
            let before = store.rows()?;
            let start = Instant::now();
            for (nth, at) in places.iter().enumerate() {
                let from = nth * 4099 % MIB as usize;
                store.write(*at, &bytes[from..from + load.block as usize])?;
                if load.fsync == Fsync::Each {
                    store.fsync()?;
                }
            }
            store.fsync()?;
            let rate = load.rate(places.len() as u64, start.elapsed().as_secs_f64());
            store.sync()?;
            let figure = format!("{}, {}", self.volume, load.name);
            eprintln!("  {} {figure}: {rate:.2} {}", self.peer.name(), load.unit());
            if let (Some(before), Some(after)) = (before, store.rows()?) {
                all.rows.insert(format!("{figure}, {}", self.peer.name()), since(&after, &before));
            }
            all.rates.entry(figure).or_default().entry(self.peer.name()).or_default().push(rate);
        }
        Ok(())
    }
}

/// What was counted between.
fn since(after: &RowCounts, before: &RowCounts) -> RowCounts {
    RowCounts {
        whole: after.whole - before.whole,
        parts: after.parts - before.parts,
        recorded: after.recorded - before.recorded,
        records: after.records - before.records,
        ..*after
    }
}

fn one_run(run: &Run<'_>, oracle: &Oracle, oleo: &Path, images: &[PathBuf], all: &mut All) -> Result<()> {
    if run.peer == Peer::Kernel {
        let mounted = oracle.mount(images, "")?;
        let file = File::create(mounted.path().join("file"))?;
        run.loads(&OnMount { file, counts: None }, all)?;
        return mounted.unmount();
    }
    let (loops, paths) = attach(images)?;
    if run.peer.is_oleo() {
        let limits = Limits { life: Duration::from_secs(3600), unmount: Duration::from_secs(300), ..Limits::default() };
        let mounted = Served::mount(oleo, &paths, "noatime", limits)?;
        let file = File::create(mounted.path().join("file"))?;
        run.loads(&OnMount { file, counts: Some((oleo, mounted.path())) }, all)?;
        mounted.unmount()?;
    } else {
        let image = Image::open(&paths[0], &OpenOptions::writing().devices(paths[1..].to_vec()))?;
        let background = image.start_background(BackgroundOptions::default());
        let file = image.fs().create(&image.top()?, b"file", &NewInode::new(NewKind::File, 0o644))?;
        let store = Ours { image, file };
        run.loads(&store, all)?;
        background.stop()?;
        let Ours { image, file } = store;
        drop(file);
        image.close()?;
    }
    drop(loops);
    oracle.must_be_sound(images, "the volume that was measured")
}

/// Runs the benchmark.
pub fn run(args: &Args, report: &mut Report) -> Result<()> {
    let oracle = oracle::oracle().context("this benchmark needs root, loop devices and the kernel's btrfs")?;
    let oleo = measure::oleo()?;
    report.note(&format!(
        "a file of {} MiB; {}; one thread; median of {} runs; metadata is raid1 and raid1c3",
        FILE_LEN / args.part.max(1) / MIB,
        LOADS
            .map(|load| format!("{} writes of {}", places(&load, FILE_LEN, args.part.max(1)).len(), load.name))
            .join(", "),
        args.runs
    ));
    let peers = args.peers(PEERS);
    for (volume, data, metadata, count) in VOLUMES.into_iter().filter(|(name, ..)| args.wants(name)) {
        let mut all = All::default();
        for _ in 0..args.runs {
            for &peer in &peers {
                let scratch = oracle.scratch()?;
                let images = images(scratch.path(), count, DEVICE_LEN)?;
                oracle.mkfs(&["-d", data, "-m", metadata], &images)?;
                let command =
                    if peer == Peer::Old { args.old.as_deref().context("no older command")? } else { oleo.as_path() };
                one_run(&Run { args, peer, volume }, &oracle, command, &images, &mut all)?;
            }
        }
        for load in &LOADS {
            let figure = format!("{volume}, {}", load.name);
            let rate = |peer: Peer| all.rates.get(&figure)?.get(peer.name()).and_then(|values| median_of(values));
            let Some(kernel) = rate(Peer::Kernel) else { continue };
            for peer in peers.iter().filter(|peer| **peer != Peer::Kernel) {
                let Some(ours) = rate(*peer) else { continue };
                let name = format!("{figure}, {}", peer.name());
                report.compare(&name, load.unit(), Better::More, ours, Peer::Kernel.name(), kernel, "2x");
            }
        }
        for (name, rows) in &all.rows {
            let counts = [("whole", rows.whole), ("parts", rows.parts), ("recorded", rows.recorded)];
            counts.iter().for_each(|(what, count)| report.value(&format!("{name}: {what}"), "rows", *count as f64));
        }
    }
    Ok(())
}
