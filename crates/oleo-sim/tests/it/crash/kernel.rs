//! The kernel in both roles: it opens the states of our crashes, and we (and it) open the states of its crashes.
//!
//! A crash of the kernel is a copy of the file below its loop device, taken while it is mounted and idle: it contains
//! everything that the kernel has handed to the device, and nothing else.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result};
use oleo_sim::budget::budget;
use oleo_sim::crash::ace::{sample, setup};
use oleo_sim::crash::model::{Commit, History, Step, verify};
use oleo_sim::crash::pages::Contents;
use oleo_sim::crash::promises::Promises;
use oleo_sim::crash::seen::Seen;
use oleo_sim::crash::states::{Cut, Kinds, Maker, Progress, Rest};
use oleo_sim::manifest::{Attr, HostTree, Kind, Piece, TreeView};
use oleo_sim::oracle::{Loop, Oracle, ReadOnly, Scratch, retry, run};
use oleo_sim::rng::Rng;
use oleo_sim::script::{Host, Mix, Op, Target, generate};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::crash::run::{Base, Shape, Way};
use crate::crash::tally::{Failure, Tally, in_parallel, say};

/// States of ours that the kernel mounts in CI, and in full: a hundredth of as many as all tests of `crash` verify then.
const KERNEL_STATES: (u64, u64) = (150, 1430);
/// States of one run among them.
const STATES_OF_RUN: usize = 8;
/// Crashes of the kernel's in CI, and in full, each mounted two or three times.
const KERNEL_CRASHES: (u64, u64) = (20, 150);

/// A kernel mount whose subvolumes are identified by their numbers, which stay, and not by device numbers, which do
/// not.
struct KernelTree {
    inner: HostTree,
    subvols: Mutex<HashMap<u64, u64>>,
}

impl KernelTree {
    fn new(top: &Path) -> KernelTree {
        KernelTree { inner: HostTree::new(top), subvols: Mutex::default() }
    }
}

/// The number of the subvolume with this directory: the kernel reports it since 6.10 (`STATX_SUBVOL`), the tool on any
/// kernel.
fn subvol_of(path: &Path) -> Result<u64> {
    const STATX_SUBVOL: StatxFlags = StatxFlags::from_bits_retain(0x8000);
    let stat = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, STATX_SUBVOL)?;
    if stat.stx_mask & STATX_SUBVOL.bits() != 0 {
        return Ok(stat.stx_subvol);
    }
    let path = path.to_str().context("a path that is no text")?;
    Ok(run("btrfs", ["inspect-internal", "rootid", path])?.trim().parse()?)
}

impl TreeView for KernelTree {
    type Node = PathBuf;

    fn root(&self) -> Result<PathBuf> {
        self.inner.root()
    }
    fn list(&self, dir: &PathBuf) -> Result<Vec<(Vec<u8>, PathBuf)>> {
        self.inner.list(dir)
    }
    fn attr(&self, node: &PathBuf) -> Result<Attr> {
        let mut attr = self.inner.attr(node)?;
        let mut subvols = self.subvols.lock().unwrap();
        if attr.kind == Kind::Dir && attr.ino == 256 && !subvols.contains_key(&attr.tree) {
            subvols.insert(attr.tree, subvol_of(node)?);
        }
        if !attr.empty_subvol_dir {
            attr.tree = *subvols.get(&attr.tree).context("a subvolume that was not met before what is in it")?;
        }
        Ok(attr)
    }
    fn read(&self, file: &PathBuf, at: u64, buf: &mut [u8]) -> Result<usize> {
        self.inner.read(file, at, buf)
    }
    fn read_link(&self, link: &PathBuf) -> Result<Vec<u8>> {
        self.inner.read_link(link)
    }
    fn xattrs(&self, node: &PathBuf) -> Result<std::collections::BTreeMap<Vec<u8>, Vec<u8>>> {
        self.inner.xattrs(node)
    }
    fn data_runs(&self, file: &PathBuf, size: u64) -> Result<Vec<(u64, u64)>> {
        self.inner.data_runs(file, size)
    }
    fn pieces(&self, file: &PathBuf) -> Result<Vec<Piece>> {
        self.inner.pieces(file)
    }
}

/// What a kernel mount shows.
pub fn look(top: &Path, before: Option<&Seen>) -> Result<Seen> {
    Seen::of(&KernelTree::new(top), before)
}

/// A file system made by mkfs.btrfs, in which `setup` was done by the kernel.
pub struct KernelBase {
    pub contents: Contents,
}

/// What the kernel did, and what a crash after the last step finds.
pub struct KernelRun {
    pub history: History,
    pub crashed: Contents,
}

impl KernelBase {
    pub fn new(oracle: Oracle, setup: &[Op]) -> Result<KernelBase> {
        let scratch = Scratch::new()?;
        let file = scratch.image("base", crate::crash::run::DISK_LEN)?;
        oracle.mkfs(&["-m", "single"], &[&file])?;
        let mounted = oracle.mount(&[&file], "")?;
        let mut host = Host::new(mounted.path(), 4096);
        for op in setup {
            host.apply(op).map_err(|e| anyhow::anyhow!("{op:?}: {e}"))?;
        }
        mounted.unmount()?;
        Ok(KernelBase { contents: load(&file)? })
    }

    /// Runs a script on a mount, then pulls the plug.
    pub fn run(&self, oracle: Oracle, script: &[Op]) -> Result<KernelRun> {
        let scratch = Scratch::new()?;
        let file = scratch.path().join("running");
        store(&self.contents, &file)?;
        let mounted = oracle.mount(&[&file], "commit=300")?;
        let mut host = Host::new(mounted.path(), 4096);
        let mut moments = vec![look(mounted.path(), None)?];
        let (mut steps, mut promises) = (Vec::new(), Promises::default());
        for op in script {
            let result = host.apply(op);
            let after = look(mounted.path(), moments.last())?;
            let promise = if result.is_ok() { promises.of(op, &after) } else { None };
            steps.push(Step { label: format!("{op:?}"), promise });
            moments.push(after);
        }
        let crashed = load(&file)?;
        mounted.unmount()?;
        let history = History { moments, steps, durable: Vec::new(), by_kernel: true, by_byte: true };
        Ok(KernelRun { history, crashed })
    }
}

impl KernelRun {
    fn verify(&self, found: &Seen) -> Vec<String> {
        let progress = Progress { done: self.history.steps.len(), begun: false };
        verify(&self.history, progress, None, found)
    }

    /// Mistakes in what the kernel finds.
    pub fn verify_by_kernel(&self, oracle: Oracle) -> Result<Vec<String>> {
        Ok(self.verify(&mounted(oracle, std::slice::from_ref(&self.crashed))?.0))
    }

    /// Mistakes in what we find.
    pub fn verify_by_oleo(&self) -> Result<Vec<String>> {
        let image = crate::crash::run::open(std::slice::from_ref(&self.crashed), true)?;
        let mut wrong = self.verify(&crate::crash::run::look(&image, None)?);
        wrong.extend(crate::crash::run::check(&image).into_iter().map(|w| format!("check: {w}")));
        Ok(wrong)
    }
}

/// Mounts a state of the kernel's, which replays its log, and reads it; returns the contents, and the complaints of
/// `btrfs check` after unmounting.
fn mounted(oracle: Oracle, state: &[Contents]) -> Result<(Seen, Vec<String>)> {
    let scratch = Scratch::new()?;
    let files: Vec<PathBuf> = (0..state.len()).map(|i| scratch.path().join(format!("crashed{i}"))).collect();
    files.iter().zip(state).try_for_each(|(file, disk)| store(disk, file))?;
    let mounted = oracle.mount(&files, "")?;
    let seen = look(mounted.path(), None)?;
    mounted.unmount()?;
    let verdict = oracle.check(&files)?.but_for_mkfs_6_2();
    Ok((seen, if verdict.is_clean() { Vec::new() } else { vec![format!("btrfs check: {verdict}")] }))
}

/// As `disk::load`, without the parts that were never written.
pub fn load(file: &Path) -> Result<Contents> {
    use rustix::fs::SeekFrom;
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::open(file)?;
    let len = file.metadata()?.len();
    let mut out = Contents::zeros(len);
    let mut at = 0;
    while at < len {
        let Ok(data) = rustix::fs::seek(&file, SeekFrom::Data(at)) else { break };
        let hole = rustix::fs::seek(&file, SeekFrom::Hole(data))?;
        let mut bytes = vec![0; usize::try_from(hole - data)?];
        file.read_exact_at(&mut bytes, data)?;
        out.write(data, &bytes);
        at = hole;
    }
    out.settle();
    Ok(out)
}

pub fn store(contents: &Contents, file: &Path) -> Result<()> {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::create(file)?;
    file.set_len(contents.len())?;
    contents.pages().try_for_each(|(at, page)| file.write_all_at(page, at))?;
    Ok(())
}

fn note(tally: &mut Tally, state: String, script: &[Op], wrong: Vec<String>) {
    tally.states += 1;
    if !wrong.is_empty() {
        tally.failures.push(Failure { wrong, state, script: script.to_vec() });
    }
}

/// Whether the first copy of every superblock is whole: the kernel reads no other.
fn has_supers(state: &[Contents]) -> bool {
    let whole = |disk: &Contents| {
        let mut bytes = [0; 4096];
        disk.read(64 << 10, &mut bytes);
        oleo_format::SuperBlock::read(&bytes).is_ok()
    };
    state.iter().all(whole)
}

/// As `mounted`, for a state of ours, with as few processes as possible. The loop devices are new for each state:
/// others may read all block devices at any time, and what they have read stays in a device's cache.
fn ours_mounted(oracle: Oracle, state: &[Contents]) -> Result<(Seen, Vec<String>)> {
    let scratch = Scratch::new()?;
    let files: Vec<PathBuf> = (0..state.len()).map(|i| scratch.path().join(format!("crashed{i}"))).collect();
    files.iter().zip(state).try_for_each(|(file, disk)| store(disk, file))?;
    let loops = files.iter().map(|file| Loop::attach(file, ReadOnly::No)).collect::<Result<Vec<_>>>()?;
    let devices: Vec<String> = loops.iter().map(|l| format!("device={}", l.path().display())).collect();
    let data = std::ffi::CString::new(devices.join(","))?;
    let top = scratch.dir("mnt")?;
    let mount = || rustix::mount::mount(loops[0].path(), &top, "btrfs", MountFlags::NOATIME, data.as_c_str());
    retry(|| Ok(mount()?)).context("the kernel does not mount it")?;
    let seen = look(&top, None);
    retry(|| Ok(rustix::mount::unmount(&top, UnmountFlags::empty())?)).context("the kernel does not unmount it")?;
    drop(loops);
    let (seen, verdict) = (seen?, oracle.check(&files)?);
    Ok((seen, if verdict.is_clean() { Vec::new() } else { vec![format!("btrfs check: {verdict}")] }))
}

/// What one thread has the kernel verify: volumes with ids that no other thread or process has, since it mounts none twice.
struct KernelVerifier {
    oracle: Oracle,
    small: Base,
    empty: [Base; 3],
}

impl KernelVerifier {
    fn new(oracle: Oracle, nth: u8) -> KernelVerifier {
        let base = |shape, setup: &[Op], kind| {
            let mut seed = [16 * nth + kind; 32];
            seed[..4].copy_from_slice(&std::process::id().to_le_bytes());
            Base::with_seed(shape, setup, seed)
        };
        KernelVerifier {
            oracle,
            small: base(Shape::BARE, &setup(), 1),
            empty: [(Shape::USUAL, 2), (Shape::PAIR, 3), (Shape::QUOTA, 4)].map(|(shape, kind)| base(shape, &[], kind)),
        }
    }

    /// Some states of one script, opened by us and then by the kernel.
    fn verify(&self, nth: u64) -> Tally {
        const KINDS: Kinds = Kinds { flushes: true, writes: true, steps: true, some: 2, torn: 2 };
        const TRIES_MAX: usize = 200;
        let (mut rng, mut tally) = (Rng::new(nth), Tally { runs: 1, ..Tally::default() });
        let mix = crate::crash::random::mix(nth);
        let (base, script) = match nth % 6 {
            0 => (&self.empty[0], generate(nth, &mix)),
            1 => (&self.empty[1], generate(nth, &mix)),
            2 => (&self.empty[2], generate(nth, &Mix { subvolumes: true, balance: nth.is_multiple_of(4), ..mix })),
            3 => (&self.empty[0], generate(nth, &Mix { keeps: 5, ..mix })),
            _ => (&self.small, sample(2 + rng.one_in(2) as usize, &mut rng)),
        };
        let begin = Instant::now();
        let run = base.run(&script, None);
        tally.time_running = begin.elapsed();
        if let Some(broken) = run.broken {
            tally.failures.push(Failure { wrong: vec![broken], state: format!("script {nth}"), script });
            return tally;
        }
        let begin = Instant::now();
        let all = run.cuts(&KINDS, &mut rng);
        let torn: Vec<&Cut> = all.iter().filter(|cut| matches!(cut.rest, Rest::Torn { .. })).collect();
        // The end, with the log of the last promise, and anything else, torn as often as not.
        let mut chosen: Vec<Cut> = all.last().copied().into_iter().collect();
        for _ in 0..TRIES_MAX {
            let cut = if rng.one_in(2) { rng.pick(&torn).map(|cut| **cut) } else { rng.pick(&all).copied() };
            chosen.extend(cut.filter(|cut| !chosen.contains(cut)));
            if chosen.len() == STATES_OF_RUN {
                break;
            }
        }
        for cut in chosen {
            let state = Maker::new(&run.base, &run.events).make(&cut);
            if !has_supers(&state) {
                continue;
            }
            tally.with_log += u64::from(has_log(&state));
            tally.torn += u64::from(matches!(cut.rest, Rest::Torn { .. }));
            tally.promises = tally.promises.max(run.promises(&cut));
            // States that are damaged by our own verdict are not shown to the kernel.
            let mut wrong = run.verify(&cut, &state, Way::Read);
            if wrong.is_empty() {
                wrong = match ours_mounted(self.oracle, &state) {
                    Ok((found, wrong)) => {
                        // Of two disks with one generation the kernel may take either, and the log that this one has.
                        let log = state.iter().any(|disk| has_log(std::slice::from_ref(disk)));
                        let commit = run.commit_of(&state).map(|commit| Commit { log, ..commit });
                        [wrong, verify(&run.history, run.progress(&cut), commit, &found)].concat()
                    }
                    Err(e) => vec![format!("the kernel: {e:#}")],
                };
            }
            note(&mut tally, format!("script {nth}, {cut:?}, opened by the kernel"), &script, wrong);
        }
        tally.time_verifying = begin.elapsed();
        tally
    }
}

/// At least this many states of ours, of scripts from `first` on. States with a torn superblock are replaced by others.
fn the_kernel_verifies(oracle: Oracle, first: u64, count: u64) -> Tally {
    let count = count + count.div_ceil(12);
    let idle = Mutex::new(Vec::new());
    let made = std::sync::atomic::AtomicU8::new(1);
    let scripts = count.div_ceil(STATES_OF_RUN as u64);
    in_parallel(usize::try_from(scripts).unwrap_or(0), |nth| {
        let mine = idle.lock().unwrap().pop();
        let mine = mine.unwrap_or_else(|| {
            let nth = made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            KernelVerifier::new(oracle, nth)
        });
        let tally = mine.verify(first + nth as u64);
        idle.lock().unwrap().push(mine);
        tally
    })
}

/// Goal: the kernel mounts the states of our crashes, replaying our log, and finds what was promised; `btrfs check`
/// agrees. Method: some states of each of some scripts, on one disk and two, with quota and without, torn ones among them;
/// never one with a torn superblock, which the kernel cannot use.
#[test]
fn the_kernel_opens_ours() {
    let Some(oracle) = oleo_sim::oracle::oracle() else { return };
    let count = budget().count(KERNEL_STATES.0, KERNEL_STATES.1);
    let tally = the_kernel_verifies(oracle, budget().first_seed(0), count);
    let (states, torn) = (tally.states, tally.torn);
    say(&format!("crash: the kernel verified {states} states, {torn} of them torn"));
    tally.must_be_clean("states of ours that the kernel mounted and btrfs check verified", |_| Tally::default());
    tally.must_have_tested(200, 100);
    assert!(states >= count, "only {states} states");
    assert!(torn * 10 >= states * 3, "only {torn} torn states of {states}");
}

/// Goal: we open the states of the kernel's crashes, replaying its log, and find what it promised; so does the kernel,
/// which proves the model. Method: scripts on a kernel mount; a copy of the file below it after the last step.
#[test]
fn we_open_the_kernels() {
    let Some(oracle) = oleo_sim::oracle::oracle() else { return };
    let small = KernelBase::new(oracle, &setup()).unwrap();
    let empty = KernelBase::new(oracle, &[]).unwrap();
    let seeds = budget().seeds(0, KERNEL_CRASHES.0, KERNEL_CRASHES.1);
    let mut rng = Rng::new(seeds.start + 2);
    let (mut ours, mut kernels) = (Tally::default(), Tally::default());
    for nth in seeds {
        let (base, script) = match nth % 4 {
            0 => {
                let mut script = generate(nth, &Mix { steps: 60, ..crate::crash::random::mix(nth) });
                script.retain(|op| *op != Op::Reopen);
                (&empty, script)
            }
            _ => (&small, sample(2 + rng.one_in(2) as usize, &mut rng)),
        };
        let run = base.run(oracle, &script).unwrap();
        (ours.runs, kernels.runs) = (ours.runs + 1, kernels.runs + 1);
        ours.with_log += u64::from(has_log(std::slice::from_ref(&run.crashed)));
        ours.promises += run.history.steps.iter().filter(|s| s.promise.is_some()).count() as u64;
        let wrong = run.verify_by_oleo().unwrap_or_else(|e| vec![format!("{e:#}")]);
        note(&mut ours, format!("script {nth}, kernel's crash opened by us"), &script, wrong);
        // Half of them: mounting takes its time.
        if nth % 2 == 0 {
            kernels.with_log += u64::from(has_log(std::slice::from_ref(&run.crashed)));
            let wrong = run.verify_by_kernel(oracle).unwrap_or_else(|e| vec![format!("{e:#}")]);
            note(&mut kernels, format!("script {nth}, kernel's crash opened by the kernel"), &script, wrong);
        }
    }
    let again = |script: &[Op], by_us: bool| {
        let base = if script.iter().any(|op| op.paths().iter().any(|p| p.contains("foo"))) { &small } else { &empty };
        let run = base.run(oracle, script).unwrap();
        let wrong = if by_us { run.verify_by_oleo() } else { run.verify_by_kernel(oracle) };
        let mut tally = Tally::default();
        note(&mut tally, "shorter".into(), script, wrong.unwrap_or_else(|e| vec![format!("{e:#}")]));
        tally
    };
    ours.must_be_clean("crashes of the kernel, opened by us", |s| again(s, true));
    ours.must_have_tested(250, 5);
    kernels.must_be_clean("crashes of the kernel, opened by the kernel", |s| again(s, false));
}

fn has_log(state: &[Contents]) -> bool {
    crate::crash::run::super_block(state).is_some_and(|sb| sb.log_root.get() != 0)
}

/// The kernel's own view of its crashes, to find out what it promises: `OLEO_CRASH_PROBE=FILE`, scripts separated by
/// empty lines.
#[test]
#[ignore = "by command, it needs a file: OLEO_CRASH_PROBE=FILE"]
fn what_the_kernel_keeps() {
    let Some(oracle) = oleo_sim::oracle::oracle() else { return };
    let file = std::env::var("OLEO_CRASH_PROBE").expect("OLEO_CRASH_PROBE=FILE");
    let base = KernelBase::new(oracle, &oleo_sim::crash::ace::setup()).unwrap();
    for text in std::fs::read_to_string(file).unwrap().split("\n\n") {
        let script = oleo_sim::script::from_text(text).unwrap();
        let a = std::time::Instant::now();
        let run = base.run(oracle, &script).unwrap();
        let b = std::time::Instant::now();
        let log = crate::crash::run::super_block(std::slice::from_ref(&run.crashed)).unwrap().log_root.get();
        println!("{text}\n  log at {log}, kernel: {:?}", run.verify_by_kernel(oracle).unwrap());
        let c = std::time::Instant::now();
        println!("  oleo: {:?} {:?} {:?} {:?}", run.verify_by_oleo(), b - a, c - b, c.elapsed());
    }
}
