//! The kernel's volumes with parity after the crashes and losses that ours go through (`lost`): how much of what it promised is gone. It keeps no record of the stripes that it is
//! writing, so a crash leaves parity that does not fit (the write hole), and a disk that is lost then cannot be rebuilt there.
//!
//! Normal path: (1) a FUSE server of this process shows the disks as files, and records every write and flush that they get ([`Files`]); (2) loop devices over these are mounted by the
//! kernel, which runs a script; (3) states are made of what was recorded; (4) each is mounted without a disk, by the kernel, and read by us too, and compared with what was promised.
//!
//! A state in which something is wrong with all disks in place does not count: it is not the loss that took it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use oleo_device::Device;
use oleo_fuse::transport::{DevFuse, Handler, Outcome, Transport};
use oleo_fuse::wire::{Op as Asked, Reply, Request, abi};
use oleo_fuse::{AttachOptions, attach, detach};
use oleo_sim::budget::budget;
use oleo_sim::crash::loss::Loss;
use oleo_sim::crash::model::{History, Step, verify};
use oleo_sim::crash::pages::Contents;
use oleo_sim::crash::promises::Promises;
use oleo_sim::crash::record::{Event, Journal, Recorder};
use oleo_sim::crash::seen::Seen;
use oleo_sim::crash::states::{Cut, Maker, cuts, progress};
use oleo_sim::oracle::{Oracle, Scratch};
use oleo_sim::rng::Rng;
use oleo_sim::script::{Host, Op, Target};
use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::crash::kernel::{load, look, store};
use crate::crash::lost::{KINDS, script, small_files};
use crate::crash::tally::say;

/// Bytes of a disk: mkfs.btrfs makes no volume with parity on less than about half of this.
const DISK_LEN: u64 = 256 << 20;
/// States of each script, chosen by the seed.
const STATES_MAX: usize = 12;

/// The disks of a run as files `d0`, `d1` … of a file system.
struct Files(Vec<Recorder>);

/// The node of the directory is 1, so that of a disk is its number and two.
const FIRST_NODE: u64 = abi::ROOT_ID + 1;
/// Seconds that the kernel may rely on names and attributes: longer than a run.
const VALID_S: u64 = 3600;

impl Files {
    fn disk(&self, node: u64) -> Option<&Recorder> {
        self.0.get(usize::try_from(node.checked_sub(FIRST_NODE)?).ok()?)
    }

    fn attr(&self, node: u64) -> Result<abi::Attr, Errno> {
        const DIR: u32 = 0o040_700;
        const FILE: u32 = 0o100_600;
        let attr = abi::Attr { ino: node, nlink: 1, blksize: 4096, ..abi::Attr::default() };
        match self.disk(node) {
            _ if node == abi::ROOT_ID => Ok(abi::Attr { mode: DIR, ..attr }),
            Some(disk) => Ok(abi::Attr { mode: FILE, size: disk.len(), blocks: disk.len() / 512, ..attr }),
            None => Err(Errno::NOENT),
        }
    }

    fn answer(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<Outcome, Errno> {
        let node = request.head.nodeid;
        let disk = || self.disk(node).ok_or(Errno::ISDIR);
        match &request.op {
            Asked::Lookup { name } => {
                let nth = std::str::from_utf8(name).ok().and_then(|name| name.strip_prefix('d')?.parse::<u64>().ok());
                let nodeid = FIRST_NODE + nth.ok_or(Errno::NOENT)?;
                let attr = self.attr(nodeid)?;
                let entry = abi::EntryOut {
                    nodeid,
                    entry_valid: VALID_S,
                    attr_valid: VALID_S,
                    attr,
                    ..abi::EntryOut::default()
                };
                reply.put(&entry);
            }
            Asked::GetAttr => {
                reply.put(&abi::AttrOut { attr_valid: VALID_S, attr: self.attr(node)?, ..abi::AttrOut::default() });
            }
            Asked::Open(_) | Asked::OpenDir(_) => reply.put(&abi::OpenOut::default()),
            Asked::Read(args) => {
                let (disk, left) = (disk()?, disk()?.len().saturating_sub(args.offset));
                let len = usize::try_from(left.min(args.size.into())).unwrap_or(0);
                let read = |buf: &mut [u8]| disk.read_at(args.offset, buf).map(|()| buf.len());
                reply.fill(len, read).map_err(|_| Errno::IO)?;
            }
            Asked::Write { args, data } => {
                disk()?.write_at(args.offset, data).map_err(|_| Errno::IO)?;
                reply.put(&abi::WriteOut { size: args.size, padding: 0 });
            }
            Asked::Fsync { .. } => disk()?.flush().map_err(|_| Errno::IO)?,
            Asked::StatFs => {
                reply.put(&abi::StatfsOut { bsize: 4096, namelen: 255, frsize: 4096, ..abi::StatfsOut::default() })
            }
            Asked::Release(_) | Asked::ReleaseDir | Asked::Flush | Asked::Destroy => {}
            Asked::Forget { .. } | Asked::BatchForget(_) | Asked::Interrupt => return Ok(Outcome::Silent),
            _ => return Err(Errno::NOSYS),
        }
        Ok(Outcome::Done)
    }
}

impl Handler for Files {
    fn handle(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Outcome {
        self.answer(request, reply).unwrap_or_else(|e| Outcome::Failed(e.raw_os_error()))
    }
}

/// The files, shown until this is dropped.
struct Shown {
    dir: PathBuf,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Shown {
    fn new(dir: PathBuf, files: Files) -> Result<Shown> {
        const THREADS: usize = 4;
        let options = AttachOptions {
            source: "disks".into(),
            subtype: "recorded".into(),
            read_only: false,
            allow_other: false,
            block: false,
            flags: MountFlags::empty(),
        };
        let connection = DevFuse::new(attach(&dir, &options).context("mounting FUSE")?, THREADS);
        let mut shown = Shown { dir, thread: None };
        connection.handshake(&|init| {
            let wanted = (abi::InitFlags::BIG_WRITES | abi::InitFlags::MAX_PAGES).bits() as u32;
            Ok(abi::InitOut {
                major: abi::MAJOR,
                minor: abi::MINOR.min(init.minor),
                max_readahead: 128 << 10,
                flags: init.flags & wanted,
                max_background: 16,
                congestion_threshold: 12,
                max_write: 1 << 20,
                time_gran: 1,
                max_pages: 256,
                ..abi::InitOut::default()
            })
        })?;
        shown.thread = Some(std::thread::spawn(move || connection.serve(Arc::new(files))));
        Ok(shown)
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Err(e) = detach(&self.dir, None, false) {
            eprintln!("{} stays mounted: {e}", self.dir.display());
            return;
        }
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(matches!(ended, None | Some(Ok(Ok(())))), "the server of the files: {ended:?}");
    }
}

/// A volume that mkfs.btrfs made.
fn made(oracle: Oracle, profile: &str, disks: usize) -> Result<Vec<Contents>> {
    let scratch = Scratch::new()?;
    let files = scratch.images("base", disks, DISK_LEN)?;
    oracle.mkfs(&["-d", profile, "-m", profile, "-n", "4096"], &files)?;
    files.iter().map(|file| load(file)).collect()
}

/// What the kernel did, and what its disks got.
struct Ran {
    base: Vec<Contents>,
    events: Vec<Event>,
    history: History,
}

/// Runs a script on a mount over disks that record.
fn run(oracle: Oracle, base: Vec<Contents>, script: &[Op]) -> Result<Ran> {
    let journal = Journal::new();
    let disks = base.iter().enumerate().map(|(nth, contents)| journal.disk(nth, contents.clone())).collect();
    let scratch = Scratch::new()?;
    let shown = Shown::new(scratch.dir("disks")?, Files(disks))?;
    let files: Vec<PathBuf> = (0..base.len()).map(|nth| shown.dir.join(format!("d{nth}"))).collect();
    let mounted = oracle.mount(&files, "commit=300,nodiscard")?;
    let mut host = Host::new(mounted.path(), 4096);
    let mut moments = vec![look(mounted.path(), None)?];
    let (mut steps, mut promises) = (Vec::new(), Promises::default());
    // Mounting has written, too: states begin behind it.
    mounted.sync()?;
    let before = journal.take();
    let base = Maker::new(&base, &before).make(&Cut { at: before.len(), rest: oleo_sim::crash::states::Rest::All });
    for (nth, op) in script.iter().enumerate() {
        journal.begin(nth);
        let result = host.apply(op);
        journal.end(nth);
        let after = look(mounted.path(), moments.last())?;
        let promise = if result.is_ok() { promises.of(op, &after) } else { None };
        steps.push(Step { label: format!("{op:?}"), promise });
        moments.push(after);
    }
    let events = journal.take();
    mounted.unmount()?;
    drop(shown);
    let history = History { moments, steps, durable: Vec::new(), by_kernel: true, by_byte: true };
    Ok(Ran { base, events, history })
}

/// What the kernel shows of disks, `degraded` where some are missing.
fn by_kernel(oracle: Oracle, state: &[Contents], options: &str) -> Result<Seen> {
    let scratch = Scratch::new()?;
    let files: Vec<PathBuf> = (0..state.len()).map(|nth| scratch.path().join(format!("d{nth}"))).collect();
    files.iter().zip(state).try_for_each(|(file, disk): (&PathBuf, _)| store(disk, Path::new(file)))?;
    let mounted = oracle.mount(&files, options)?;
    let seen = look(mounted.path(), None);
    mounted.unmount()?;
    seen
}

/// The same as we read it.
fn by_oleo(state: &[Contents]) -> Result<Seen> {
    let image = oleo::Image::from_devices(
        crate::crash::run::overlays(state, false),
        &crate::crash::run::options(false).degraded(true),
    )?;
    crate::crash::run::look(&image, None)
}

/// What was found of all states.
#[derive(Default, Debug)]
struct Found {
    states: u64,
    /// With something wrong though all disks were there.
    unsound: u64,
    /// Mounts without disks that are allowed to be lost.
    losses: u64,
    /// Of these, with a promise broken or nothing to be read: by the kernel, and by us.
    lost: u64,
    lost_to_us: u64,
    /// States with any such, by the kernel.
    states_lost: u64,
    promises: u64,
    first: Option<String>,
}

impl Found {
    fn state(&mut self, oracle: Oracle, ran: &Ran, cut: &Cut, state: &[Contents], losses: &[Loss]) {
        let wrong = |seen: Result<Seen>| match seen {
            Ok(seen) => verify(&ran.history, progress(&ran.events, cut.at), None, &seen),
            Err(e) => vec![format!("{e:#}")],
        };
        self.states += 1;
        let whole = wrong(by_kernel(oracle, state, ""));
        if !whole.is_empty() {
            self.unsound += 1;
            say(&format!("crash: write hole: with all disks, {cut:?}: {}", whole[0]));
            return;
        }
        let before = self.lost;
        for loss in losses {
            let left = loss.leaves(state);
            self.losses += 1;
            let found = wrong(by_kernel(oracle, &left, "degraded"));
            if !found.is_empty() {
                self.lost += 1;
                self.first.get_or_insert_with(|| format!("{cut:?} without {:?}: {}", loss.0, found[0]));
            }
            self.lost_to_us += u64::from(!wrong(by_oleo(&left)).is_empty());
        }
        self.states_lost += u64::from(self.lost > before);
    }
}

/// Runs scripts on a profile, and takes disks away from states of them.
fn measure(oracle: Oracle, (profile, disks): (&str, usize), what: &str, scripts: &[(u64, Vec<Op>)]) -> Found {
    let base = made(oracle, profile, disks).unwrap();
    let losses = Loss::all(disks, if profile == "raid6" { 2 } else { 1 });
    let mut found = Found::default();
    for (seed, script) in scripts {
        let script: Vec<Op> = script.iter().filter(|op| **op != Op::Reopen).cloned().collect();
        let ran = run(oracle, base.clone(), &script).unwrap();
        found.promises += ran.history.steps.iter().filter(|step| step.promise.is_some()).count() as u64;
        let mut rng = Rng::new(*seed);
        let mut chosen = cuts(&ran.events, &KINDS, &mut rng);
        while chosen.len() > STATES_MAX {
            chosen.remove(rng.below(chosen.len() as u64) as usize);
        }
        let mut maker = Maker::new(&ran.base, &ran.events);
        for cut in &chosen {
            let state = maker.make(cut);
            found.state(oracle, &ran, cut, &state, &losses);
        }
    }
    say(&format!("crash: write hole: the kernel on {profile} of {disks}, {what}: {found:?}"));
    assert!(found.unsound * 10 <= found.states, "something else than losses is wrong: {found:?}");
    assert!(found.promises > 0, "{found:?}");
    found
}

/// Goal: how many of the states that our volumes survive the kernel's do not is known, and that the scripts are hard enough to show it. Method: those of
/// `lost`, on the kernel's mount.
#[test]
#[ignore = "takes minutes: `cargo xtask nightly`"]
fn what_the_kernel_loses() {
    let Some(oracle) = oleo_sim::oracle::oracle() else { return };
    let scripts = |of: &dyn Fn(u64) -> Vec<Op>, first: u64, count: u64| -> Vec<(u64, Vec<Op>)> {
        budget().seeds(first, count, count).map(|seed| (seed, of(seed))).collect()
    };
    measure(oracle, ("raid5", 4), "random scripts", &scripts(&script, 50_000, 12));
    let raid5 = measure(oracle, ("raid5", 4), "small files", &scripts(&small_files, 53_000, 12));
    measure(oracle, ("raid6", 5), "small files", &scripts(&small_files, 53_000, 3));
    assert!(raid5.lost > 0, "nothing is lost: say so in decision 0032: {raid5:?}");
}
