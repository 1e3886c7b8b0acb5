//! Soak: many threads on one open volume, each running random scripts that a kernel mount runs beside it, and all of
//! them working in one shared subvolume at the same time.
//!
//! Normal path of a [`round`]: (1) a fresh volume of some [`Shape`] and a fresh kernel btrfs; (2) each thread takes a
//! random script and runs it step by step in a directory of its own on both, comparing every result, and its tree now
//! and then; between its steps it performs an act in the directory that all share ([`shared`]), where outcomes are
//! verified by invariants; (3) meanwhile one thread cleans deleted subvolumes and one writes back and commits; in a
//! round with [`Balance`], two more take snapshots of everything, delete old ones, and move all block groups,
//! repeatedly; (4) at the end all trees are compared, and the oracles verify the volume: our check, `btrfs check`, a
//! kernel mount that must show the same, a scrub; if everything is on two devices, each of them alone must show the
//! same as well.
//!
//! Invariants: a thread's script does not touch what other threads own, so its results do not depend on the order. A
//! thread without progress for [`STUCK`] counts as a deadlock: what each one was doing is printed, and the process
//! ends.
//!
//! Interleavings do not follow from the seed; scripts, shapes and acts do. `cargo xtask soak --minutes 10 --threads 8
//! --seed S` runs rounds with rising seeds until the time is up; with `--mix balance` rounds with a balance.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use oleo::balance::{BalanceArgs, BalanceEnd};
use oleo::fs::{NewInode, NewKind};
use oleo::{Image, OpenOptions, SnapshotOptions, TreeId};
use oleo_sim::manifest::{Detail, Ignore, Manifest};
use oleo_sim::oracle::{Oracle, Scratch, oracle};
use oleo_sim::rng::Rng;
use oleo_sim::script::{Compare, Host, Mix, Op, Target, blur_times, generate, run_both};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::ours::{OleoTree, Ours, open};

mod shared;

use shared::{Hand, Shared};

/// Bytes of each image; both are sparse, in memory.
const IMAGE_LEN: u64 = 6 << 30;
/// The longest that one step may take on a loaded machine.
const STUCK: Duration = Duration::from_secs(180);
/// Blocks that one step of cleaning takes apart: few, so that scripts run between the steps.
const CLEAN_BLOCKS: usize = 16;

/// What a volume is made like.
#[derive(Clone, Copy, Debug)]
struct Shape {
    mkfs: &'static [&'static str],
    devices: usize,
}

const SHAPES: [Shape; 4] = [
    Shape { mkfs: &["-n", "4096"], devices: 1 },
    Shape { mkfs: &[], devices: 1 },
    Shape { mkfs: &["--mixed", "-n", "4096"], devices: 1 },
    Shape { mkfs: &["-d", "raid1", "-m", "raid1", "-n", "4096"], devices: 2 },
];

/// One round.
#[derive(Clone, Copy, Debug)]
struct Plan {
    seed: u64,
    threads: usize,
    /// Steps of each thread's script.
    steps: usize,
    /// The latest time for steps.
    until: Option<Instant>,
    balance: Balance,
    /// Quota is counted all along.
    quota: bool,
}

impl Plan {
    /// A short round.
    fn new(seed: u64) -> Plan {
        Plan { seed, threads: 8, steps: 250, until: None, balance: Balance::No, quota: false }
    }
}

/// Whether block groups move all along, beside snapshots that come and go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Balance {
    No,
    Over {
        /// From one snapshot to the next.
        snapshots: Duration,
    },
}

/// Snapshots that are kept while groups move.
const SNAPSHOTS_KEPT: usize = 3;

/// What the threads are doing, to be printed if they make no progress.
struct Watch {
    doing: Vec<Mutex<String>>,
    steps: AtomicU64,
    over: AtomicBool,
}

impl Watch {
    fn say(&self, thread: usize, what: String) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        if let Ok(mut doing) = self.doing[thread].lock() {
            *doing = what;
        }
    }

    /// Ends the process if nothing makes progress.
    fn guard(&self, plan: &Plan) {
        let (mut last, mut since) = (0, Instant::now());
        while !self.over.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(50));
            let steps = self.steps.load(Ordering::Relaxed);
            if steps != last {
                (last, since) = (steps, Instant::now());
            }
            if since.elapsed() > STUCK {
                eprintln!("{plan:?}: nothing moves since {} s; the threads are at:", STUCK.as_secs());
                for (thread, doing) in self.doing.iter().enumerate() {
                    eprintln!("  {thread}: {}", doing.lock().map_or_else(|_| "(poisoned)".into(), |d| d.clone()));
                }
                std::process::abort();
            }
        }
    }
}

/// The library as a target whose user has other things to do between the steps.
struct Busy<'a> {
    ours: Ours,
    hand: Hand<'a>,
    rng: Rng,
    watch: &'a Watch,
    thread: usize,
    plan: Plan,
}

impl Target for Busy<'_> {
    fn apply(&mut self, op: &Op) -> Result<(), Errno> {
        self.watch.say(self.thread, format!("{op:?}"));
        let answer = self.ours.apply(op);
        for _ in 0..self.rng.below(3) {
            let act = self.hand.act(&mut self.rng);
            self.watch.say(self.thread, format!("{act:?}"));
            if let Err(what) = self.hand.run(&act) {
                panic!("{:?}, thread {}, {act:?} after {op:?}: {what}", self.plan, self.thread);
            }
        }
        answer
    }

    fn manifest(&mut self, detail: Detail) -> anyhow::Result<Manifest> {
        self.watch.say(self.thread, "manifest".into());
        self.ours.manifest(detail)
    }
}

/// The kernel's side, with its directories held in memory. The kernel sometimes forgets that new files inherit a
/// directory's compression when it reads the directory again (seen on 6.18 after dropping its caches, if the
/// directory's attributes cross from one leaf to the next).
struct Held {
    host: Host,
    top: PathBuf,
    dirs: Vec<OwnedFd>,
}

impl Target for Held {
    fn apply(&mut self, op: &Op) -> Result<(), Errno> {
        self.host.apply(op)?;
        if let Op::Mkdir { path, .. } = op {
            let dir = rustix::fs::open(self.top.join(path), OFlags::PATH | OFlags::NOFOLLOW, Mode::empty());
            self.dirs.push(dir.expect("a directory that was just made"));
        }
        Ok(())
    }

    fn manifest(&mut self, detail: Detail) -> anyhow::Result<Manifest> {
        self.host.manifest(detail)
    }
}

/// One thread: its script in pieces, until it is through or the time is up.
fn work(plan: &Plan, mut busy: Busy<'_>, mut host: Held) -> Result<usize, String> {
    const PIECE: usize = 400;
    let thread = busy.thread;
    let mix = Mix {
        steps: plan.steps,
        compress: thread % 3 == 1,
        file_len_max: 256 << 10,
        names_max: 120,
        xattr_len_max: 2000,
        ..Mix::default()
    };
    let script = generate(plan.seed.wrapping_mul(1000) + thread as u64, &mix);
    let compare = Compare { every_syncs: 12, ..Compare::default() };
    let mut done = 0;
    for piece in script.chunks(PIECE) {
        if plan.until.is_some_and(|until| Instant::now() > until) {
            break;
        }
        let ran = run_both(piece, &mut host, &mut busy, &compare);
        done += ran.map_err(|e| format!("{plan:?}, thread {thread}, from step {done}: {e}"))?;
    }
    busy.hand.finish().map_err(|e| format!("{plan:?}, thread {thread}: {e}"))?;
    Ok(done)
}

/// Deleted subvolumes go, dirty bytes are written, transactions are committed: all in the background.
fn housekeeping(image: &Image, watch: &Watch, plan: &Plan) {
    std::thread::scope(|scope| {
        if let Balance::Over { snapshots } = plan.balance {
            scope.spawn(move || snapshots_come_and_go(image, watch, snapshots));
            scope.spawn(|| balance_over_and_over(image, watch));
        }
        scope.spawn(|| {
            while !watch.over.load(Ordering::Acquire) {
                if !image.fs().clean(CLEAN_BLOCKS).expect("cleaning") {
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        });
        scope.spawn(|| {
            let mut rng = Rng::new(7);
            while !watch.over.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(rng.below(150)));
                image.fs().commit().expect("committing");
            }
        });
    });
}

/// Everything is snapshotted again and again; the fourth last snapshot goes.
fn snapshots_come_and_go(image: &Image, watch: &Watch, every: Duration) {
    let fs = image.fs();
    let top = fs.root(TreeId::FS).expect("the top");
    let dir = fs.create(&top, b"kept", &NewInode::new(NewKind::Dir, 0o755)).expect("a directory for snapshots");
    let mut kept = VecDeque::new();
    for n in 0.. {
        if watch.over.load(Ordering::Acquire) {
            break;
        }
        let name = format!("{n}");
        kept.push_back(fs.snapshot(TreeId::FS, &dir, name.as_bytes(), SnapshotOptions::default()).expect("a snapshot"));
        if kept.len() > SNAPSHOTS_KEPT {
            fs.subvol_delete(kept.pop_front().expect("the oldest")).expect("deleting a snapshot");
        }
        std::thread::sleep(every);
    }
}

/// All groups move, and again.
fn balance_over_and_over(image: &Image, watch: &Watch) {
    let mut rounds = 0;
    while !watch.over.load(Ordering::Acquire) {
        match image.balance(BalanceArgs::full().force(true)).expect("a balance") {
            BalanceEnd::Done => rounds += 1,
            end => panic!("a balance ended with {end:?}"),
        }
    }
    println!("soak: {rounds} balances");
}

/// One volume from mkfs to the oracles. Returns how many steps succeeded on both sides.
fn round(oracle: Oracle, plan: &Plan) -> Result<usize, String> {
    let say = |e: anyhow::Error| format!("{plan:?}: {e:#}");
    let shape = SHAPES[usize::try_from(plan.seed).unwrap_or(0) % SHAPES.len()];
    let scratch = oracle.scratch().map_err(say)?;
    let theirs = scratch.image("kernel.img", IMAGE_LEN).map_err(say)?;
    oracle.mkfs(&[], &[&theirs]).map_err(say)?;
    let mounted = oracle.mount(&[&theirs], "").map_err(say)?;
    let devices = scratch.images("ours", shape.devices, IMAGE_LEN).map_err(say)?;
    oracle.mkfs(shape.mkfs, &devices).map_err(say)?;
    let image = Arc::new(open(&devices, OpenOptions::writing()).map_err(say)?);
    if plan.quota {
        image.quota_enable().map_err(|e| say(e.into()))?;
    }
    let tops: Vec<String> = (0..plan.threads).map(|t| format!("t{t}")).collect();
    for top in &tops {
        std::fs::create_dir(mounted.path().join(top)).map_err(|e| say(e.into()))?;
        image.create_dir(top).map_err(|e| say(e.into()))?;
    }
    let shared = Shared::new(&image, plan.threads).map_err(|e| format!("{plan:?}: {e}"))?;
    let watch = Watch {
        doing: tops.iter().map(|_| Mutex::default()).collect(),
        steps: AtomicU64::new(0),
        over: AtomicBool::new(false),
    };
    let done = std::thread::scope(|scope| {
        scope.spawn(|| watch.guard(plan));
        scope.spawn(|| housekeeping(&image, &watch, plan));
        let workers: Vec<_> = tops
            .iter()
            .enumerate()
            .map(|(thread, top)| {
                let busy = Busy {
                    ours: Ours::sharing(image.clone(), top),
                    hand: shared.hand(thread),
                    rng: Rng::new(plan.seed ^ (thread as u64) << 32 ^ 0x50a4),
                    watch: &watch,
                    thread,
                    plan: *plan,
                };
                let top = mounted.path().join(top);
                let host = Held { host: Host::new(&top, 4096), top, dirs: Vec::new() };
                scope.spawn(move || work(plan, busy, host))
            })
            .collect();
        let ends: Vec<_> = workers.into_iter().map(|w| w.join()).collect();
        watch.over.store(true, Ordering::Release);
        let mut done = 0;
        for end in ends {
            done += end.map_err(|_| format!("{plan:?}: a thread panicked; its message is above"))??;
        }
        Ok::<_, String>(done)
    })?;
    shared.verify().map_err(|e| format!("{plan:?}: at the end: {e}"))?;
    drop(shared);
    verify(oracle, image, &devices, &mounted, &tops, &scratch).map_err(|e| format!("{plan:?}, {shape:?}: {e}"))?;
    Ok(done)
}

fn manifest(dir: &std::path::Path) -> anyhow::Result<Manifest> {
    let mut manifest = Manifest::of_dir(dir, Detail::default())?;
    blur_times(&mut manifest);
    Ok(manifest)
}

/// What we see is what each thread's kernel side sees; the volume is sound; what the kernel sees in it is what we saw.
fn verify(
    oracle: Oracle,
    image: Arc<Image>,
    devices: &[PathBuf],
    mounted: &oleo_sim::oracle::Mounted,
    tops: &[String],
    scratch: &Scratch,
) -> Result<(), String> {
    let say = |e: anyhow::Error| format!("{e:#}");
    let lib = |e: oleo::Error| format!("{e}");
    image.clean().map_err(lib)?;
    image.sync().map_err(lib)?;
    let mut have = Manifest::of(&OleoTree::new(&image).map_err(say)?, Detail::default()).map_err(say)?;
    blur_times(&mut have);
    let want = manifest(mounted.path()).map_err(say)?;
    for top in tops {
        let (want, have) = (want.below(top.as_bytes()), have.below(top.as_bytes()));
        let differences = want.differences(&have, &Ignore::default());
        if !differences.is_empty() {
            return Err(format!("{top}: the kernel's side and ours (want | have): {}", differences.join("\n  ")));
        }
    }
    Arc::into_inner(image).ok_or("somebody still uses the image")?.close().map_err(lib)?;
    let options = OpenOptions::default().devices(devices[1..].to_vec());
    let report = oleo::check::image(&devices[0], &options, Default::default(), &Default::default()).map_err(lib)?;
    // mkfs.btrfs leaves something to warn of.
    if report.has_errors() {
        return Err(keep(scratch, devices, format!("oleo check: {:#?}", report.findings)));
    }
    let found = oracle.check(devices).map_err(say)?.but_for_mkfs_6_2();
    if !found.is_clean() {
        return Err(keep(scratch, devices, format!("btrfs check: {found}")));
    }
    let again = oracle.mount(devices, "").map_err(say)?;
    let differences = have.differences(&manifest(again.path()).map_err(say)?, &Ignore::default());
    if !differences.is_empty() {
        return Err(format!("ours and the kernel on our image (want | have): {}", differences.join("\n  ")));
    }
    let found = again.scrub().map_err(say)?;
    if !found.is_clean() {
        return Err(format!("scrub: {found}"));
    }
    again.unmount().map_err(say)?;
    for device in devices.iter().filter(|_| devices.len() > 1) {
        let alone = open(std::slice::from_ref(device), OpenOptions::default().degraded(true));
        let mut seen =
            Manifest::of(&OleoTree::new(&alone.map_err(say)?).map_err(say)?, Detail::default()).map_err(say)?;
        blur_times(&mut seen);
        let differences = have.differences(&seen, &Ignore::default());
        if !differences.is_empty() {
            return Err(format!("both devices and {} (want | have): {}", device.display(), differences.join("\n  ")));
        }
    }
    Ok(())
}

/// Keeps the devices of an unsound volume in the directory `OLEO_SOAK_KEEP`, to be examined.
fn keep(scratch: &Scratch, devices: &[PathBuf], what: String) -> String {
    let Some(to) = std::env::var_os("OLEO_SOAK_KEEP") else { return what };
    let status = std::process::Command::new("cp").arg("--sparse=always").args(devices).arg(&to).status();
    format!("{what}\n(from {}, copied to {}: {status:?})", scratch.path().display(), to.display())
}

fn must_hold(oracle: Oracle, plan: &Plan) -> usize {
    match round(oracle, plan) {
        Ok(done) => done,
        Err(what) => panic!("{what}"),
    }
}

/// Goal: eight threads on one volume get the results of a single thread, and leave a sound volume, also with small
/// nodes, with mixed groups, and on two devices.
#[test]
fn eight_threads() {
    let Some(oracle) = oracle() else { return };
    for seed in [4, 6, 7] {
        must_hold(oracle, &Plan::new(seed));
    }
}

/// Goal: the same while everything is snapshotted, old snapshots are deleted and all block groups move, over and over.
#[test]
fn eight_threads_beside_balance() {
    let Some(oracle) = oracle() else { return };
    let balance = Balance::Over { snapshots: Duration::from_millis(150) };
    for (seed, quota) in [(4, false), (5, true)] {
        must_hold(oracle, &Plan { balance, quota, ..Plan::new(seed) });
    }
}

/// Rounds for `OLEO_SOAK_MINUTES`, from `OLEO_SOAK_SEED` on, with `OLEO_SOAK_THREADS`, `OLEO_SOAK_MIX` and `OLEO_SOAK_QUOTA`.
#[test]
#[ignore = "by command: `cargo xtask soak --minutes N`; `cargo xtask nightly`"]
fn longer() {
    let minutes = std::env::var("OLEO_SOAK_MINUTES").unwrap_or_else(|_| "10".into());
    let Some(oracle) = oracle() else { return };
    let number = |name: &str, or: u64| std::env::var(name).map_or(or, |s| s.parse().expect(name));
    let minutes: f64 = minutes.parse().expect("OLEO_SOAK_MINUTES");
    let (first, threads) = (number("OLEO_SOAK_SEED", 1), number("OLEO_SOAK_THREADS", 8) as usize);
    let mix = std::env::var("OLEO_SOAK_MIX").unwrap_or_default();
    let balance = match mix.as_str() {
        "" => Balance::No,
        "balance" => Balance::Over { snapshots: Duration::from_secs(1) },
        other => panic!("OLEO_SOAK_MIX is {other}"),
    };
    let quota = std::env::var_os("OLEO_SOAK_QUOTA").is_some();
    let end = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
    let mut total = 0;
    for seed in first.. {
        // A round is a few minutes at most, so that all shapes get their turn.
        let until = end.min(Instant::now() + Duration::from_secs(90));
        let done = must_hold(oracle, &Plan { seed, threads, steps: 6000, until: Some(until), balance, quota });
        total += done;
        println!("soak: seed {seed}: {done} steps agree");
        if Instant::now() > end {
            break;
        }
    }
    println!("soak: {total} steps of {threads} threads agree");
}
