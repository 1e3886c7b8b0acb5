//! Processes at work on a mount over devices that record.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use oleo::mkfs::{MkfsOptions, Profile};
use oleo::{Device, Image, OpenOptions};
use oleo_fuse::{MountOptions, Mounted, Plan, Stopper, Uring};
use oleo_sim::crash::model::{History, Promise, Step as Noted};
use oleo_sim::crash::pages::Contents;
use oleo_sim::crash::promises::{Promises, is_owed};
use oleo_sim::crash::record::{Event, Fault, Journal};
use oleo_sim::crash::seen::Seen;
use oleo_sim::manifest::{Attr, HostTree, Kind, Piece, TreeView};
use oleo_sim::oracle::{Scratch, run};
use oleo_sim::script::Op;
use rustix::io::Errno;

use crate::OLEO;
use crate::worker::{Deaf, How, Step, Worker, script, script_for};

/// Processes at work.
pub const WORKERS: u64 = 3;
/// The steps of worker n are numbered from n times this on.
pub const STRIDE: usize = 1 << 32;
/// Of each device, bytes.
const DISK_LEN: u64 = 256 << 20;
/// Bits of an inode's number below those of its tree, as the mount shows them.
const INO_BITS: u32 = 40;
/// Snapshots that are kept.
const SNAPSHOTS_KEPT: usize = 2;

/// What the volume is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One copy of everything, small nodes.
    Bare,
    /// The same with quota.
    Quota,
    /// Two disks that fail independently.
    Pair,
}

impl Shape {
    pub const ALL: [Shape; 3] = [Shape::Bare, Shape::Quota, Shape::Pair];
}

/// A load that has been run.
pub struct Load {
    pub base: Vec<Contents>,
    pub events: Vec<Event>,
    /// What each worker did and saw.
    pub histories: Vec<History>,
    /// Promises that were refused, which nothing allowed.
    pub refused: Vec<String>,
    pub commits: u64,
    pub snapshots: u64,
    pub balances: u64,
}

/// A worker's directory, with inodes numbered as the library numbers them.
struct MountTree(HostTree);

impl TreeView for MountTree {
    type Node = PathBuf;

    fn root(&self) -> Result<PathBuf> {
        self.0.root()
    }
    fn list(&self, dir: &PathBuf) -> Result<Vec<(Vec<u8>, PathBuf)>> {
        self.0.list(dir)
    }
    fn attr(&self, node: &PathBuf) -> Result<Attr> {
        let attr = self.0.attr(node)?;
        Ok(Attr { tree: attr.ino >> INO_BITS, ino: attr.ino % (1 << INO_BITS), ..attr })
    }
    fn read(&self, file: &PathBuf, at: u64, buf: &mut [u8]) -> Result<usize> {
        self.0.read(file, at, buf)
    }
    fn read_link(&self, link: &PathBuf) -> Result<Vec<u8>> {
        self.0.read_link(link)
    }
    fn xattrs(&self, node: &PathBuf) -> Result<std::collections::BTreeMap<Vec<u8>, Vec<u8>>> {
        self.0.xattrs(node)
    }
    fn data_runs(&self, file: &PathBuf, size: u64) -> Result<Vec<(u64, u64)>> {
        self.0.data_runs(file, size)
    }
    fn pieces(&self, file: &PathBuf) -> Result<Vec<Piece>> {
        self.0.pieces(file)
    }
}

/// A mount that this process serves; unmounted at the end, also after a panic.
pub struct Serving {
    stopper: Stopper,
    thread: Option<JoinHandle<Result<(), oleo_fuse::MountError>>>,
}

impl Serving {
    pub fn start(devices: Vec<Arc<dyn Device>>, dir: &Path, uring: Uring, writeback_cache: bool) -> Result<Serving> {
        let log: oleo_fuse::Log = Arc::new(|line: &str| eprintln!("the server: {line}"));
        let options = MountOptions { commit_seconds: Some(1), uring, writeback_cache, ..MountOptions::default() };
        let plan = Plan { images: vec![], scan: vec![], offset: 0, dir: dir.to_owned(), options, log };
        let mounted = Mounted::over(devices, &plan)?;
        let stopper = mounted.stopper();
        Ok(Serving { stopper, thread: Some(std::thread::spawn(move || mounted.serve())) })
    }

    pub fn stop(mut self) -> Result<()> {
        self.stopper.stop();
        let ended = self.thread.take().context("served once")?.join();
        ended.map_err(|_| anyhow::anyhow!("the server panicked"))??;
        Ok(())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.stopper.stop();
        }
    }
}

fn name(worker: u64) -> String {
    format!("w{worker}")
}

/// With the kernel's write-back cache its change times of files are shown, and come to the server a moment after its own.
fn forget_times_of_files(history: &mut History) {
    let nodes = history.moments.iter_mut().flat_map(|moment| moment.nodes.values_mut());
    nodes.filter(|node| node.kind == Kind::File).for_each(|node| Arc::make_mut(node).times = None);
}

/// A volume with a directory for each worker in a subvolume.
fn make(shape: Shape) -> Result<Vec<Contents>> {
    let journal = Journal::new();
    let count = if shape == Shape::Pair { 2 } else { 1 };
    let disks: Vec<_> = (0..count).map(|i| Arc::new(journal.disk(i, Contents::zeros(DISK_LEN)))).collect();
    let devices = || disks.iter().map(|d| d.clone() as Arc<dyn Device>).collect::<Vec<_>>();
    let mkfs = MkfsOptions::default()
        .nodesize(Some(4096))
        .metadata(Some(if shape == Shape::Pair { Profile::Raid1 } else { Profile::Single }))
        .seed([9; 32]);
    oleo::mkfs::make(&devices(), &mkfs)?;
    let image = Image::from_devices(devices(), &OpenOptions::default().access(oleo::Access::Write))?;
    if shape == Shape::Quota {
        image.quota_enable()?;
    }
    image.create_subvol("work")?;
    for worker in 0..WORKERS {
        image.create_dir(format!("work/{}", name(worker)))?;
    }
    image.close()?;
    let mut contents: Vec<Contents> = disks.iter().map(|d| d.contents()).collect();
    contents.iter_mut().for_each(Contents::settle);
    Ok(contents)
}

/// What a step that has returned well made durable.
fn promise_of(step: &Step, after: &Seen, promises: &mut Promises) -> Option<Promise> {
    let promise = promises.of(&step.op, after);
    match (&step.op, step.how) {
        (Op::Write { path, .. }, How::Sync | How::DirectSync) => after.find(path).map(Promise::Inode),
        (Op::Write { path, .. }, How::DataSync | How::DirectDataSync) => {
            promise.or(after.find(path).map(Promise::Data))
        }
        _ => promise,
    }
}

/// What is wrong with a mount that is to be noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The devices fail.
    Device(Fault),
    /// Something that promises does nothing.
    Deaf(Deaf),
    /// Nothing is; but the script is the same as with that.
    Nothing(Deaf),
}

/// Has a worker do its steps, and notes what it sees. What was refused is told beside it.
fn work(
    top: &Path,
    number: u64,
    steps: Vec<Step>,
    deaf: Option<Deaf>,
    journal: &Journal,
) -> Result<(History, Vec<String>)> {
    let dir = top.join("work").join(name(number));
    let view = MountTree(HostTree::new(&dir));
    let mut worker = Worker::start(&dir)?;
    let mut moments = vec![Seen::of(&view, None)?];
    let (mut noted, mut refused, mut promises) = (Vec::new(), Vec::new(), Promises::default());
    for (nth, step) in steps.iter().enumerate() {
        let id = usize::try_from(number)? * STRIDE + nth;
        journal.begin(id);
        let heard = deaf.map_or(Some(step.clone()), |deaf| deaf.done(step));
        let done = match (&step.op, heard) {
            (_, None) => Ok(()),
            // syncfs(2) of a mount like this reaches no server.
            (Op::Sync, _) => {
                run(OLEO, ["filesystem".as_ref(), "sync".as_ref(), top.as_os_str()]).map(drop).map_err(|_| Errno::IO)
            }
            (_, Some(heard)) => worker.run(&heard)?,
        };
        journal.end(id);
        let before = moments.last().context("one at least")?;
        let after =
            Seen::of(&view, Some(before)).with_context(|| format!("worker {number}, after step {nth}, {step:?}"))?;
        if let Err(e) = done
            && (is_owed(&step.op, before) || [Errno::IO, Errno::UCLEAN, Errno::ROFS].contains(&e))
        {
            refused.push(format!("worker {number}, step {nth}, {step:?}: {e}"));
        }
        let promise = if done.is_ok() { promise_of(step, &after, &mut promises) } else { None };
        noted.push(Noted { label: format!("{step:?}"), promise });
        moments.push(after);
    }
    worker.end()?;
    let history = History { moments, steps: noted, durable: Vec::new(), by_kernel: false, by_byte: true };
    Ok((history, refused))
}

/// Makes and deletes snapshots and moves groups until told to stop; how many of each.
fn manage(top: &Path, stop: &AtomicBool) -> Result<(u64, u64)> {
    const PAUSE: Duration = Duration::from_millis(50);
    let at = |n: u64| top.join(format!("snapshot{n}")).display().to_string();
    let (work, mount) = (top.join("work").display().to_string(), top.display().to_string());
    let (mut snapshots, mut balances) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        let how: &[&str] = if snapshots % 2 == 0 { &["-r"] } else { &[] };
        run(OLEO, [&["subvolume", "snapshot"], how, &[&work, &at(snapshots)]].concat())?;
        snapshots += 1;
        if snapshots > SNAPSHOTS_KEPT as u64 {
            run(OLEO, ["subvolume", "delete", &at(snapshots - 1 - SNAPSHOTS_KEPT as u64)])?;
        }
        let kind = ["--data", "--metadata"][snapshots as usize % 2];
        match run(OLEO, ["balance", "start", kind, &mount]) {
            Ok(_) => balances += 1,
            // A small volume may have no room for another group.
            Err(e) if format!("{e:#}").contains("space") => {}
            Err(e) => return Err(e),
        }
        std::thread::sleep(PAUSE);
    }
    Ok((snapshots, balances))
}

impl Load {
    /// Runs one: `steps` of each worker.
    pub fn run(shape: Shape, seed: u64, steps: usize, wrong: Option<Wrong>) -> Result<Load> {
        let (fault, deaf, of) = match wrong {
            Some(Wrong::Device(fault)) => (Some(fault), None, None),
            Some(Wrong::Deaf(deaf)) => (None, Some(deaf), Some(deaf)),
            Some(Wrong::Nothing(deaf)) => (None, None, Some(deaf)),
            None => (None, None, None),
        };
        let script_of = |n| of.map_or_else(|| script(seed, n, steps), |of| script_for(of, seed, n, steps));
        let base = make(shape)?;
        let scratch = Scratch::new()?;
        let top = scratch.dir("mnt")?;
        let journal = Journal::new();
        journal.inject(fault);
        let disks = base.iter().enumerate().map(|(i, c)| Arc::new(journal.disk(i, c.clone())) as Arc<dyn Device>);
        // Over io_uring where the kernel offers it, and each second time over /dev/fuse.
        let uring = if seed.is_multiple_of(2) { Uring::Auto } else { Uring::Off };
        // Each third pair with the kernel's write-back cache.
        let writeback_cache = (seed / 2).is_multiple_of(3);
        let serving = Serving::start(disks.collect(), &top, uring, writeback_cache)?;
        let stop = AtomicBool::new(false);
        let manager = Mutex::new(Ok((0, 0)));
        let done: Result<Vec<(History, Vec<String>)>> = std::thread::scope(|scope| {
            let managing = scope.spawn(|| manage(&top, &stop));
            let (top, journal) = (&top, &journal);
            let one = |n| {
                let steps = script_of(n);
                scope.spawn(move || work(top, n, steps, deaf, journal))
            };
            let workers: Vec<_> = (0..WORKERS).map(one).collect();
            let joined = workers.into_iter().map(|w| w.join().unwrap_or_else(|_| bail!("a thread panicked"))).collect();
            stop.store(true, Ordering::Relaxed);
            *manager.lock().unwrap() = managing.join().unwrap_or_else(|_| bail!("the manager panicked"));
            joined
        });
        let events = journal.take();
        serving.stop()?;
        let (mut histories, refused): (Vec<_>, Vec<_>) = done?.into_iter().unzip();
        if writeback_cache {
            histories.iter_mut().for_each(forget_times_of_files);
        }
        let (snapshots, balances) = manager.into_inner().unwrap().context("snapshots and balances")?;
        ensure!(snapshots > 0, "no snapshot was made");
        const SUPER: u64 = 64 << 10;
        let is_commit = |e: &&Event| matches!(e, Event::Write { disk: 0, offset: SUPER, .. });
        let commits = events.iter().filter(is_commit).count() as u64;
        Ok(Load { base, events, histories, refused: refused.concat(), commits, snapshots, balances })
    }
}
