//! Soak: processes at work on a mount while all block groups move over and over, everything is snapshotted and old snapshots are
//! deleted.
//!
//! Normal path of a [`round`]: (1) a new volume, mounted by Oleo; (2) [`WORKERS`] processes, each this test program again with
//! [`worker`] as its only test, change files in a directory of their own until the time is up, and remember what is in them
//! ([`Model`]); (3) meanwhile one thread snapshots the top every second and deletes the fourth last snapshot, another has
//! `oleo balance` move all groups; (4) the workers compare all that they have with what they remember, and write it down;
//! (5) the mount ends, and the volume goes to the oracles: our check, `btrfs check`, and a kernel mount, where each file of each
//! worker must be what it wrote down.
//!
//! `cargo xtask soak --mix balance --way classic --minutes 10` runs it for longer, `--way io_uring` with requests through that.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use oleo_sim::oracle::{Oracle, oracle, run};
use oleo_sim::rng::Rng;
use oleo_sim::served::{Limits, Served};

use crate::mount::place::{IMAGE_LEN, Kind, OLEO};

const WORKERS: u64 = 8;
/// Files and bytes that a worker has at most.
const FILES: u64 = 80;
const FILE_LEN_MAX: u64 = 300_000;
/// Snapshots that are kept.
const KEPT: usize = 3;

/// What is asked for.
#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    work: Duration,
    snapshots: Duration,
    options: String,
    quota: bool,
}

/// What a worker's files hold.
struct Model {
    dir: PathBuf,
    files: BTreeMap<String, Vec<u8>>,
    rng: Rng,
}

impl Model {
    fn at(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn some_name(&mut self) -> String {
        let n = self.rng.below(FILES);
        format!("d{}/f{n}", n % 5)
    }

    /// Something random; what was done, for a failure's message.
    fn step(&mut self) -> Result<String> {
        let name = self.some_name();
        let path = self.at(&name);
        Ok(match self.rng.below(20) {
            0..=4 => {
                let len = self.rng.length(FILE_LEN_MAX);
                let bytes = self.rng.bytes(usize::try_from(len)?);
                fs::write(&path, &bytes)?;
                self.files.insert(name.clone(), bytes);
                format!("write {name}")
            }
            5..=9 => {
                let Some(old) = self.files.get_mut(&name) else { return Ok("nothing".into()) };
                let (at, len) = (self.rng.below(FILE_LEN_MAX), self.rng.length(60_000) + 1);
                let bytes = self.rng.bytes(usize::try_from(len)?);
                let file = OpenOptions::new().write(true).open(&path)?;
                file.write_all_at(&bytes, at)?;
                let (at, end) = (usize::try_from(at)?, usize::try_from(at + len)?);
                old.resize(old.len().max(end), 0);
                old[at..end].copy_from_slice(&bytes);
                if self.rng.one_in(4) {
                    file.sync_all()?;
                }
                format!("write {name} at {at}")
            }
            10 | 11 => {
                let Some(old) = self.files.get_mut(&name) else { return Ok("nothing".into()) };
                let len = self.rng.below(FILE_LEN_MAX);
                OpenOptions::new().write(true).open(&path)?.set_len(len)?;
                old.resize(usize::try_from(len)?, 0);
                format!("cut {name} to {len}")
            }
            12 | 13 => {
                let to = self.some_name();
                if to == name || !self.files.contains_key(&name) {
                    return Ok("nothing".into());
                }
                fs::rename(&path, self.at(&to))?;
                let bytes = self.files.remove(&name).context("it is there")?;
                self.files.insert(to.clone(), bytes);
                format!("rename {name} to {to}")
            }
            14 | 15 => {
                if self.files.remove(&name).is_some() {
                    fs::remove_file(&path)?;
                }
                format!("remove {name}")
            }
            16 => {
                // Many names, so that there is metadata to move.
                let n = self.rng.below(3);
                let sub = self.at(&format!("many{n}"));
                if sub.exists() {
                    fs::remove_dir_all(&sub)?;
                } else {
                    fs::create_dir(&sub)?;
                    for n in 0..200 {
                        fs::write(sub.join(format!("{n}")), self.rng.bytes(100))?;
                    }
                }
                format!("{}", sub.display())
            }
            _ => {
                let have = fs::read(&path).ok();
                let want = self.files.get(&name);
                ensure!(have.as_ref() == want, "{name}: {}", differs(have.as_deref(), want.map(Vec::as_slice)));
                format!("read {name}")
            }
        })
    }

    /// All files, compared; their names, lengths and hashes, a line each.
    fn reported(&self) -> Result<String> {
        let mut lines = String::new();
        for (name, want) in &self.files {
            let have = fs::read(self.at(name)).with_context(|| name.clone())?;
            ensure!(have == *want, "{name}: {}", differs(Some(&have), Some(want)));
            lines += &format!("{name} {} {}\n", want.len(), hash(want));
        }
        Ok(lines)
    }
}

fn differs(have: Option<&[u8]>, want: Option<&[u8]>) -> String {
    let (Some(have), Some(want)) = (have, want) else {
        return format!("there: {}, want {}", have.is_some(), want.is_some());
    };
    let first = have.iter().zip(want).position(|(a, b)| a != b);
    format!("{} bytes, want {}; the first that differs: {first:?}", have.len(), want.len())
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// What a worker process is told in its environment: directory, seed, until when in seconds since 1970, where its files are told.
const TOLD: &str = "OLEO_SOAK_WORKER";

/// The body of a worker process.
#[test]
#[ignore = "no test: the body of a process that other tests start"]
fn worker() {
    let reported = std::env::var(TOLD).expect(TOLD);
    let reported: Vec<&str> = reported.split('|').collect();
    let [dir, seed, until, out] = reported[..] else { panic!("{TOLD}: {reported:?}") };
    let until = UNIX_EPOCH + Duration::from_secs_f64(until.parse().unwrap());
    let mut model = Model { dir: dir.into(), files: BTreeMap::new(), rng: Rng::new(seed.parse().unwrap()) };
    fs::create_dir(dir).unwrap();
    (0..5).for_each(|n| fs::create_dir(model.at(&format!("d{n}"))).unwrap());
    let mut done = Vec::new();
    while SystemTime::now() < until {
        match model.step() {
            Ok(what) => done.push(what),
            Err(e) => panic!("step {}: {e:#}; before: {:?}", done.len(), &done[done.len().saturating_sub(10)..]),
        }
    }
    fs::write(out, model.reported().unwrap()).unwrap();
}

fn start(plan: &Plan, top: &Path, number: u64, until: SystemTime, out: &Path) -> Result<Child> {
    let seed = plan.seed * WORKERS + number;
    let until = until.duration_since(UNIX_EPOCH)?.as_secs_f64();
    let reported = format!("{}|{seed}|{until}|{}", top.join(format!("w{number}")).display(), out.display());
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["--exact", "--test-threads=1", "--nocapture", "--ignored", "mount::soak::worker"])
        .env(TOLD, reported);
    Ok(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?)
}

fn oleo(args: &[&str], more: &[&Path]) -> Result<String> {
    run(OLEO, args.iter().map(std::ffi::OsStr::new).chain(more.iter().map(|path| path.as_os_str())))
}

/// The top is snapshotted again and again; the fourth last snapshot goes.
fn snapshots_come_and_go(top: &Path, every: Duration, over: &AtomicBool) -> Result<usize> {
    let dir = top.join("kept");
    fs::create_dir(&dir)?;
    let mut made: usize = 0;
    while !over.load(Ordering::Acquire) {
        oleo(&["subvolume", "snapshot"], &[top, &dir.join(made.to_string())])?;
        made += 1;
        if let Some(old) = made.checked_sub(KEPT + 1) {
            oleo(&["subvolume", "delete"], &[&dir.join(old.to_string())])?;
        }
        std::thread::sleep(every);
    }
    Ok(made)
}

/// All groups move, and again.
fn balance_over_and_over(top: &Path, over: &AtomicBool) -> Result<usize> {
    let mut rounds = 0;
    while !over.load(Ordering::Acquire) {
        oleo(&["balance", "start", "--full-balance"], &[top])?;
        rounds += 1;
    }
    Ok(rounds)
}

/// Sets a flag when it goes, so that the others end whatever happens.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// One volume from mkfs to the oracles. How often it was snapshotted and balanced.
fn round(oracle: Oracle, plan: &Plan) -> Result<(usize, usize)> {
    let scratch = oracle.scratch()?;
    let image = scratch.path().join("image");
    Kind::Oleo.mkfs(oracle, &image)?;
    fs::OpenOptions::new().write(true).open(&image)?.set_len(IMAGE_LEN)?;
    let limits = Limits { life: plan.work + Duration::from_secs(300), ..Limits::default() };
    let mount = Served::mount(Path::new(OLEO), &[&image], &plan.options, limits)?;
    let top = mount.path().to_owned();
    if plan.quota {
        oleo(&["quota", "enable"], &[&top])?;
    }
    let until = SystemTime::now() + plan.work;
    let out = |n| scratch.path().join(format!("told{n}"));
    let workers: Vec<Child> = (0..WORKERS).map(|n| start(plan, &top, n, until, &out(n))).collect::<Result<_>>()?;
    let over = AtomicBool::new(false);
    let counts = std::thread::scope(|scope| {
        let snapshots = scope.spawn(|| {
            let _over = Over(&over);
            snapshots_come_and_go(&top, plan.snapshots, &over)
        });
        let balances = scope.spawn(|| {
            let _over = Over(&over);
            balance_over_and_over(&top, &over)
        });
        let mut wrong = Vec::new();
        for (n, worker) in workers.into_iter().enumerate() {
            let end = worker.wait_with_output()?;
            if !end.status.success() {
                wrong.push(format!("worker {n}: {}", String::from_utf8_lossy(&end.stderr)));
            }
        }
        drop(Over(&over));
        let counts = (snapshots.join().expect("no panic"), balances.join().expect("no panic"));
        ensure!(wrong.is_empty(), "{wrong:#?}; snapshots, balances: {counts:?}");
        Ok::<_, anyhow::Error>((counts.0?, counts.1?))
    });
    let counts = counts.with_context(|| format!("the server said: {}", mount.log()))?;
    let log = mount.log();
    mount.unmount().with_context(|| format!("the server said: {log}"))?;
    let verified = verify(oracle, plan, &image, &out);
    if verified.is_err()
        && let Some(to) = std::env::var_os("OLEO_SOAK_KEEP")
    {
        run("cp", ["--sparse=always".as_ref(), image.as_os_str(), &to])?;
    }
    verified.map(|()| counts)
}

fn verify(oracle: Oracle, plan: &Plan, image: &Path, out: &dyn Fn(u64) -> PathBuf) -> Result<()> {
    oleo(&["check", "--data"], &[image])?;
    let found = oracle.check(&[image])?;
    // With quota it reads what a deletion has let go of, complains, and finds no error.
    ensure!(found.is_clean() || plan.quota, "btrfs check: {found}");
    let mounted = oracle.mount(&[image], "")?;
    for n in 0..WORKERS {
        let dir = mounted.path().join(format!("w{n}"));
        let mut want = 0;
        for line in fs::read_to_string(out(n))?.lines() {
            let [name, len, sum] = line.split(' ').collect::<Vec<_>>()[..] else { bail!("told: {line}") };
            let have = fs::read(dir.join(name)).with_context(|| format!("worker {n}, {name}"))?;
            let same = have.len().to_string() == len && hash(&have).to_string() == sum;
            ensure!(same, "worker {n}, {name} on the image: {} bytes, want {len}, and their hash", have.len());
            want += 1;
        }
        let have: usize = (0..5).map(|d| Ok(fs::read_dir(dir.join(format!("d{d}")))?.count())).sum::<Result<_>>()?;
        ensure!(have == want, "worker {n}: {have} files, want {want}");
    }
    let found = mounted.scrub()?;
    ensure!(found.is_clean(), "scrub: {found}");
    mounted.unmount()
}

fn must_hold(oracle: Oracle, plan: &Plan) -> (usize, usize) {
    round(oracle, plan).unwrap_or_else(|e| panic!("{plan:?}: {e:#}"))
}

/// Goal: what processes write is what they and the kernel read, while all groups move beside snapshots that come and go.
#[test]
fn beside_balance() {
    let Some(oracle) = oracle() else { return };
    let (work, snapshots) = (Duration::from_secs(8), Duration::from_millis(200));
    let plan = Plan { seed: 1, work, snapshots, options: "io_uring=off".into(), quota: false };
    let (snapshots, balances) = must_hold(oracle, &plan);
    assert!(snapshots > KEPT && balances > 0, "{snapshots} snapshots, {balances} balances");
}

/// Goal: the same for longer: `OLEO_SOAK_MINUTES`, `OLEO_SOAK_SEED`, `OLEO_SOAK_WAY`, `OLEO_SOAK_QUOTA`.
#[test]
#[ignore = "by command: `cargo xtask soak --mix balance --way classic --minutes N`; `cargo xtask nightly`"]
fn longer() {
    let Some(oracle) = oracle() else { return };
    let var = |name: &str, or: &str| std::env::var(name).unwrap_or_else(|_| or.into());
    let minutes: f64 = var("OLEO_SOAK_MINUTES", "5").parse().expect("OLEO_SOAK_MINUTES");
    let first: u64 = var("OLEO_SOAK_SEED", "1").parse().expect("OLEO_SOAK_SEED");
    let way = if var("OLEO_SOAK_WAY", "classic") == "io_uring" { "on" } else { "off" };
    let quota = std::env::var_os("OLEO_SOAK_QUOTA").is_some();
    let end = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
    for seed in first.. {
        let work = Duration::from_secs(60).min(end.saturating_duration_since(Instant::now()));
        let plan = Plan { seed, work, snapshots: Duration::from_secs(1), options: format!("io_uring={way}"), quota };
        let (snapshots, balances) = must_hold(oracle, &plan);
        println!("soak: seed {seed}: {snapshots} snapshots, {balances} balances, all is there");
        if Instant::now() >= end {
            break;
        }
    }
}
