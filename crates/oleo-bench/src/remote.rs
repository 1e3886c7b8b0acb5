//! Volumes on an object store beside block devices on one: [`Peer::S3backer`] and [`Peer::NbdkitS3`].
//!
//! Normal path of one run: (1) a server that speaks as S3 does is started, empty, and a proxy in front of it that answers
//! late; (2) a file system is made on the store and mounted; (3) programs work on it, each step timed, with the requests and
//! bytes that pass the proxy meanwhile; (4) it is unmounted, and ours is checked.
//!
//! The peers are block devices, so the kernel's btrfs is on them, by way of a loop device, since not every kernel has a client
//! of network block devices. Whatever was synced is on the store, for all of them: s3backer ignores fsync, so its cache writes
//! through; nbdkit's plugin keeps nothing.
//!
//! A server that has not finished after [`LIFE`] is killed; what used it fails then, and the run has no figures from there on.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use oleo_sim::moto::{BUCKET, KEY, Moto};
use oleo_sim::oracle::{self, Mounted, Oracle, Scratch};
use oleo_sim::proxy::{Faults, Proxy};
use oleo_sim::rng::Rng;
use oleo_sim::served::{Limits, Served};

use crate::Args;
use crate::measure::{Better, Figure, Found, Report, oleo, quantile};
use crate::mounted::{drop_caches, tool};
use crate::peer::Peer;

/// How late answers are, milliseconds, with the MiB of the large file.
const DELAYS: [(u64, u64); 2] = [(0, 256), (30, 16)];
/// Files of the archive, and bytes of each, at most.
const UNTARRED: u64 = 1000;
const FILE_LEN: u64 = 8 << 10;
/// Appends with a sync of each, and bytes of each.
const APPENDS: u64 = 40;
const APPENDED: usize = 4096;
/// Files that are created.
const CREATED: u64 = 500;
/// Bytes of the device.
const DEVICE_LEN: &str = "8G";
/// Bytes of the objects of the peers' devices: the most that nbdkit 1.32 takes from its plugin.
const BLOCK_LEN: &str = "64k";
/// How long a server of a peer may live, and how long it may take to begin or end.
const LIFE: Duration = Duration::from_secs(140);
const BEGIN_MAX: Duration = Duration::from_secs(20);

/// Untarring on a store that is far away, where each request that waits for another costs.
const AIMS: &[(Peer, &str)] = &[(Peer::S3backer, "5x")];

/// The steps of a run, with their units, which way they are better, and whether requests are counted.
const STEPS: [(&str, &str, Better, bool); 6] = [
    ("untar, synced", "s", Better::Less, true),
    ("append and fsync, p50", "ms", Better::Less, true),
    ("append and fsync, p99", "ms", Better::Less, false),
    ("create", "1/s", Better::More, true),
    ("write, synced", "MiB/s", Better::More, true),
    ("read", "MiB/s", Better::More, true),
];

fn name(delay: u64, step: &str) -> String {
    format!("{delay} ms: {step}")
}

fn figures() -> Vec<Figure> {
    let mut all = Vec::new();
    for (delay, _) in DELAYS {
        for (step, unit, better, counted) in STEPS {
            let aims = if (delay, step) == (30, "untar, synced") { AIMS } else { &[] };
            let of = name(delay, step);
            let counts = counted.then_some([("requests", "1"), ("sent and got", "MiB")]).into_iter().flatten();
            let counts: Vec<Figure> = counts
                .map(|(what, unit)| Figure {
                    name: format!("{of}, {what}").into(),
                    unit,
                    better: Better::Less,
                    aims: &[],
                })
                .collect();
            all.push(Figure { name: of.into(), unit, better, aims });
            all.extend(counts);
        }
    }
    all
}

/// A process that is killed with its guard.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// A file system on the store. Fields are dropped in their order: mounts before what is below them.
enum Mount {
    Ours(Served),
    Kernel { mounted: Option<Mounted>, file: Served, _server: Option<Killed> },
}

impl Mount {
    fn path(&self) -> &Path {
        match self {
            Mount::Ours(served) => served.path(),
            Mount::Kernel { mounted: Some(mounted), .. } => mounted.path(),
            Mount::Kernel { file, .. } => file.path(),
        }
    }

    /// Everything that was written is on the store afterwards.
    fn sync(&self, setting: &Setting) -> Result<()> {
        match self {
            // The kernel tells no FUSE server of syncfs.
            Mount::Ours(served) => {
                tool(Command::new(&setting.oleo).args(["filesystem", "sync"]).arg(served.path())).map(drop)
            }
            Mount::Kernel { .. } => Ok(rustix::fs::syncfs(File::open(self.path())?)?),
        }
    }

    fn unmount(self) -> Result<()> {
        match self {
            Mount::Ours(served) => served.unmount(),
            Mount::Kernel { mounted, file, _server } => {
                mounted.map_or(Ok(()), Mounted::unmount)?;
                file.unmount()
            }
        }
    }
}

/// What all runs share.
struct Setting {
    oracle: Oracle,
    scratch: Scratch,
    oleo: PathBuf,
    old: Option<PathBuf>,
    archive: PathBuf,
    part: u64,
}

impl Setting {
    fn new(args: &Args) -> Result<Setting> {
        let oracle = oracle::oracle().context("this benchmark needs root, loop devices and the kernel's btrfs")?;
        let scratch = oracle.scratch()?;
        let (part, mut rng) = (args.part.max(1), Rng::new(1));
        let tree = scratch.dir("tree")?;
        for n in 0..(UNTARRED / part).max(10) {
            let dir = tree.join(format!("d{}", n / 50));
            fs::create_dir_all(&dir)?;
            let len = 1 + rng.below(FILE_LEN);
            fs::write(dir.join(format!("f{n}")), rng.text(len as usize))?;
        }
        let archive = scratch.path().join("tree.tar");
        tool(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&tree).arg("."))?;
        Ok(Setting { oracle, scratch, oleo: oleo()?, old: args.old.clone(), archive, part })
    }

    fn command(&self, peer: Peer) -> &Path {
        match (&self.old, peer) {
            (Some(old), Peer::Old) => old,
            _ => &self.oleo,
        }
    }

    /// Our command at the store behind a proxy.
    fn ours(&self, peer: Peer, at: SocketAddr) -> Command {
        let mut command = Command::new(self.command(peer));
        command.env("OLEO_REMOTE", Moto::options(at));
        command
    }

    fn url() -> String {
        format!("s3://{BUCKET}/volume")
    }

    /// Makes a file system on the store and mounts it.
    fn mount(&self, peer: Peer, at: SocketAddr) -> Result<Mount> {
        let limits = Limits { life: LIFE, mount: BEGIN_MAX, unmount: LIFE };
        match peer {
            Peer::S3backer => {
                let mut command = Command::new("s3backer");
                command.args(["-f", "--quiet", "--force", "--blockCacheSync", "--blockCacheWriteDelay=0"]);
                command.args(["--blockCacheSize=100", "--md5CacheSize=0", "--md5CacheTime=0", "--minWriteDelay=0"]);
                command.args([format!("--baseURL=http://{at}/"), format!("--size={DEVICE_LEN}")]);
                command.args([
                    format!("--blockSize={BLOCK_LEN}"),
                    format!("--accessId={KEY}"),
                    format!("--accessKey={KEY}"),
                ]);
                command.args(["-o", "big_writes", BUCKET]);
                self.kernel(Served::start(command, vec!["umount".into()], limits)?, "file", None)
            }
            Peer::NbdkitS3 => {
                let socket = self.scratch.path().join("socket");
                let _earlier = fs::remove_file(&socket);
                let mut command = Command::new("nbdkit");
                command
                    .args(["-f", "--filter=blocksize", "-U"])
                    .arg(&socket)
                    .arg("S3")
                    .arg(format!("endpoint-url=http://{at}"));
                command.args([format!("access-key={KEY}"), format!("secret-key={KEY}"), format!("bucket={BUCKET}")]);
                command.args(["key=volume".into(), format!("size={DEVICE_LEN}"), format!("object-size={BLOCK_LEN}")]);
                // What is shorter than an object is read and written again by the filter.
                command.arg(format!("minblock={BLOCK_LEN}"));
                command.env("AWS_DEFAULT_REGION", "us-east-1").stdin(Stdio::null()).stdout(Stdio::null());
                let mut server = Killed(command.spawn().context("cannot run nbdkit")?);
                let start = Instant::now();
                while !socket.exists() {
                    ensure!(server.0.try_wait()?.is_none() && start.elapsed() < BEGIN_MAX, "nbdkit does not listen");
                    std::thread::sleep(Duration::from_millis(10));
                }
                let mut command = Command::new("sh");
                command.args([
                    "-c".into(),
                    format!("exec nbdfuse \"$0/file\" 'nbd+unix:///?socket={}'", socket.display()),
                ]);
                self.kernel(Served::start(command, vec!["umount".into()], limits)?, "file", Some(server))
            }
            _ => {
                tool(self.ours(peer, at).args(["mkfs", "-q", "--size", DEVICE_LEN, &Self::url()]))?;
                self.mount_ours(peer, at)
            }
        }
    }

    fn mount_ours(&self, peer: Peer, at: SocketAddr) -> Result<Mount> {
        let limits = Limits { life: LIFE, mount: BEGIN_MAX, unmount: LIFE };
        let mut command = self.ours(peer, at);
        command.args(["mount", "--foreground", "-o", "noatime", &Self::url()]);
        Served::start(command, vec![self.command(peer).into(), "unmount".into()], limits).map(Mount::Ours)
    }

    /// The kernel's btrfs on a file that a server shows.
    fn kernel(&self, file: Served, name: &str, server: Option<Killed>) -> Result<Mount> {
        let device = file.path().join(name);
        // As few bytes as may be: what is not there need not be discarded.
        self.oracle.mkfs(&["--nodiscard"], &[&device])?;
        let mounted = Some(self.oracle.mount(&[&device], "noatime")?);
        Ok(Mount::Kernel { mounted, file, _server: server })
    }

    /// The same files with nothing of them in memory, as far as it is the kernel's or ours.
    fn cold(&self, peer: Peer, at: SocketAddr, mount: Mount) -> Result<Mount> {
        match mount {
            Mount::Ours(served) => {
                served.unmount()?;
                drop_caches()?;
                self.mount_ours(peer, at)
            }
            Mount::Kernel { mounted, file, _server } => {
                let device = file.path().join("file");
                mounted.map_or(Ok(()), Mounted::unmount)?;
                drop_caches()?;
                let mounted = Some(self.oracle.mount(&[&device], "noatime")?);
                Ok(Mount::Kernel { mounted, file, _server })
            }
        }
    }
}

/// One peer at one distance, with a store of its own.
struct One<'a> {
    setting: &'a Setting,
    peer: Peer,
    proxy: Proxy,
    delay: u64,
}

impl One<'_> {
    /// A step: what it took, in seconds, and what passed the proxy.
    fn step(&self, found: &mut Found, step: &str, value: impl FnOnce() -> Result<f64>) -> Result<()> {
        let of = name(self.delay, step);
        let before = (self.proxy.requests(), self.proxy.bytes());
        let value = value().with_context(|| of.clone())?;
        let after = (self.proxy.requests(), self.proxy.bytes());
        found.put(self.peer, &of, value);
        found.put(self.peer, &format!("{of}, requests"), (after.0 - before.0) as f64);
        let bytes = after.1.0 + after.1.1 - before.1.0 - before.1.1;
        found.put(self.peer, &format!("{of}, sent and got"), bytes as f64 / f64::from(1 << 20));
        Ok(())
    }

    fn run(&self, large: u64, found: &mut Found) -> Result<()> {
        let (setting, part) = (self.setting, self.setting.part);
        let mount = setting.mount(self.peer, self.proxy.address())?;
        self.step(found, STEPS[0].0, || {
            let start = Instant::now();
            tool(Command::new("tar").arg("-xf").arg(&setting.archive).arg("-C").arg(mount.path()))?;
            mount.sync(setting)?;
            Ok(start.elapsed().as_secs_f64())
        })?;
        let mut times = Vec::new();
        self.step(found, STEPS[1].0, || {
            times = appends(&mount.path().join("appended"), (APPENDS / part).max(3))?;
            Ok(quantile(&mut times, 0.5))
        })?;
        found.put(self.peer, &name(self.delay, STEPS[2].0), quantile(&mut times, 0.99));
        self.step(found, STEPS[3].0, || {
            let (count, start) = ((CREATED / part).max(10), Instant::now());
            let dir = mount.path().join("created");
            fs::create_dir(&dir)?;
            (0..count).try_for_each(|n| File::create(dir.join(format!("c{n}"))).map(drop))?;
            mount.sync(setting)?;
            Ok(count as f64 / start.elapsed().as_secs_f64())
        })?;
        let (large, file) = ((large / part).max(1), "large");
        self.step(found, STEPS[4].0, || {
            let start = Instant::now();
            write(&mount.path().join(file), large)?;
            Ok(large as f64 / start.elapsed().as_secs_f64())
        })?;
        let mount = setting.cold(self.peer, self.proxy.address(), mount)?;
        self.step(found, STEPS[5].0, || {
            let start = Instant::now();
            read(&mount.path().join(file), large)?;
            Ok(large as f64 / start.elapsed().as_secs_f64())
        })?;
        mount.unmount()
    }
}

/// Appends and syncs; milliseconds of each.
fn appends(path: &Path, count: u64) -> Result<Vec<f64>> {
    let mut file = File::create(path)?;
    let bytes = Rng::new(2).bytes(APPENDED);
    let one = |_| {
        let start = Instant::now();
        file.write_all(&bytes)?;
        file.sync_all()?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    };
    (0..count).map(one).collect()
}

/// Writes a file of so many MiB that nothing can shorten, and syncs it.
fn write(path: &Path, mib: u64) -> Result<()> {
    let mut file = File::create(path)?;
    let mut rng = Rng::new(3);
    (0..mib).try_for_each(|_| file.write_all(&rng.bytes(1 << 20)))?;
    Ok(file.sync_all()?)
}

fn read(path: &Path, mib: u64) -> Result<()> {
    let (mut file, mut rng, mut bytes) = (File::open(path)?, Rng::new(3), vec![0; 1 << 20]);
    for _ in 0..mib {
        file.read_exact(&mut bytes)?;
        ensure!(bytes == rng.bytes(1 << 20), "the file is not what was written");
    }
    Ok(())
}

fn one_run(setting: &Setting, peer: Peer, found: &mut Found) -> Result<()> {
    for (delay, large) in DELAYS {
        let moto = Moto::start()?;
        let faults = Faults { delay: Duration::from_millis(delay), ..Faults::default() };
        let proxy = Proxy::start(moto.address(), faults, 1)?;
        let one = One { setting, peer, proxy, delay };
        let done = one.run(large, found);
        match (peer.is_oleo(), done) {
            (true, done) => {
                done?;
                one.proxy.set(Faults::default());
                tool(setting.ours(peer, one.proxy.address()).args(["check", "--data", &Setting::url()]))?;
            }
            // A peer that fails or is too slow has no figures from there on, and says so.
            (false, Err(e)) => eprintln!("  {} ended: {e:#}", peer.name()),
            (false, Ok(())) => {}
        }
    }
    Ok(())
}

/// Runs the benchmark.
pub fn run(args: &Args, report: &mut Report) -> Result<()> {
    let setting = Setting::new(args)?;
    // One of them prints it as an error.
    let version =
        |program| tool(Command::new("sh").args(["-c", &format!("{program} --version 2>&1")])).unwrap_or_default();
    let versions = ["s3backer", "nbdkit"].map(|p| version(p).lines().next().unwrap_or("?").to_owned());
    report.note(&format!(
        "{}, moto; objects of the peers {BLOCK_LEN}; median of {} runs, with the requests and bytes of each step",
        versions.join(", "),
        args.runs
    ));
    let peers = args.peers(&[Peer::Oleo, Peer::S3backer, Peer::NbdkitS3]);
    report.in_turns(&figures(), &peers, args.runs, |peer, found| one_run(&setting, peer, found))
}
