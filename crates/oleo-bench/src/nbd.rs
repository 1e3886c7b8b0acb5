//! Network block devices: our server beside those of others on the same image, and our client beside libnbd's.
//!
//! Normal path of one run: for each peer in turn (1) its server is started on a socket, on one image in memory; (2) the image
//! is read once; (3) fio's own client runs each kind of load. What fio does is the same for all: the servers differ.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use oleo::device::{ClientOptions, Device, NbdDevice, ReadReq, Uri};

use crate::Args;
use crate::measure::{Better, Figure, Found, Report, oleo};
use crate::mounted::tool;
use crate::peer::Peer;

/// Bytes of the image.
const IMAGE_LEN: u64 = 1 << 30;
/// What fio does: its name, block size, and whether figures are requests or bytes.
const LOADS: [(&str, &str, Kind); 4] = [
    ("randread", "4k", Kind::Iops),
    ("randwrite", "4k", Kind::Iops),
    ("read", "1m", Kind::Bytes),
    ("write", "1m", Kind::Bytes),
];
/// Requests under way.
const DEPTHS: [u32; 2] = [1, 16];
/// A sequential read of all, by each client from one server.
const COPY: &str = "all read by a client";
/// How long a server may take to begin.
const BEGIN_MAX: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Iops,
    Bytes,
}

/// At qemu-nbd's speed at least.
const AIMS: &[(Peer, &str)] = &[(Peer::QemuNbd, "1x")];

fn name(rw: &str, bs: &str, depth: u32) -> String {
    format!("{rw} {bs}, {depth} under way")
}

fn synced() -> String {
    "randwrite 4k, a flush after each".to_owned()
}

fn busy(load: &str) -> String {
    format!("{load}: server's time")
}

fn figures() -> Vec<Figure> {
    let mut all = Vec::new();
    let figure = |name: String, unit, better, aims| Figure { name: name.into(), unit, better, aims };
    for (rw, bs, kind) in LOADS {
        for depth in DEPTHS {
            let unit = if kind == Kind::Iops { "1/s" } else { "MiB/s" };
            let name = name(rw, bs, depth);
            all.push(figure(name.clone(), unit, Better::More, AIMS));
            all.push(figure(busy(&name), "us/req", Better::Less, &[]));
        }
    }
    all.push(figure(synced(), "1/s", Better::More, AIMS));
    all.push(figure(COPY.to_owned(), "MiB/s", Better::More, AIMS));
    all
}

/// A server, until it is dropped.
struct Server {
    child: Child,
    socket: PathBuf,
}

impl Server {
    fn start(peer: Peer, command: &Path, image: &Path, dir: &Path) -> Result<Server> {
        let socket = dir.join("socket");
        let at = |kind: &str| format!("{kind}{}", socket.display());
        let mut run = Command::new(match peer {
            Peer::QemuNbd => "qemu-nbd".as_ref(),
            Peer::Nbdkit => "nbdkit".as_ref(),
            _ => command,
        });
        match peer {
            Peer::QemuNbd => run
                .args(["-t", "-e", "16", "-f", "raw", "--cache=writeback", "--aio=threads", "-k"])
                .arg(&socket)
                .arg(image),
            Peer::Nbdkit => run.args(["-f", "-U"]).arg(&socket).arg("file").arg(image),
            _ => run.args(["serve", "nbd", "--quiet", "--listen", &at("unix:")]).arg(image),
        };
        let child = run.stdin(Stdio::null()).stdout(Stdio::null()).spawn().with_context(|| format!("{run:?}"))?;
        let mut server = Server { child, socket };
        let start = Instant::now();
        while UnixStream::connect(&server.socket).is_err() {
            ensure!(server.child.try_wait()?.is_none(), "{run:?} ended");
            ensure!(start.elapsed() < BEGIN_MAX, "{run:?} does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    /// Processor time of the server so far; in ticks of 10 ms.
    fn busy_seconds(&self) -> Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let (_, fields) = stat.rsplit_once(')').context("no name in a stat file")?;
        let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
        Ok(ticks as f64 / 100.0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// What fio measured: a rate (requests per second or MiB/s), and how many requests there were.
fn fio(server: &Server, args: &Args, rw: &str, bs: &str, kind: Kind, more: &[String]) -> Result<(f64, f64)> {
    let out = tool(
        Command::new("fio")
            .args([
                "--name=x",
                "--ioengine=nbd",
                "--time_based",
                "--ramp_time=1",
                "--norandommap",
                "--output-format=json",
            ])
            .arg(format!("--uri={}", server.uri()))
            .args([format!("--rw={rw}"), format!("--bs={bs}"), format!("--size={IMAGE_LEN}")])
            .arg(format!("--runtime={}", args.seconds))
            .args(more),
    )?;
    // Messages may stand before it.
    let from = out.find('{').context("fio printed no figures")?;
    let parsed: serde_json::Value = serde_json::from_str(&out[from..])?;
    let side = &parsed["jobs"][0][if rw.ends_with("read") { "read" } else { "write" }];
    let number = |what: &str| side[what].as_f64().with_context(|| format!("fio tells no {what}"));
    let rate = if kind == Kind::Iops { number("iops")? } else { number("bw_bytes")? / f64::from(1 << 20) };
    Ok((rate, number("iops")? * (args.seconds as f64 + 1.0)))
}

fn one_run(bench: &Setting, peer: Peer, args: &Args, found: &mut Found) -> Result<()> {
    let start = || Server::start(peer, bench.command(peer), &bench.image, bench.dir.path());
    for (rw, bs, kind) in LOADS {
        for depth in DEPTHS {
            let name = name(rw, bs, depth);
            if !args.wants(&name) {
                continue;
            }
            let server = start()?;
            let before = server.busy_seconds()?;
            let (rate, requests) = fio(&server, args, rw, bs, kind, &[format!("--iodepth={depth}")])?;
            found.put(peer, &name, rate);
            found.put(peer, &busy(&name), (server.busy_seconds()? - before) * 1e6 / requests);
        }
    }
    if args.wants(&synced()) {
        let server = start()?;
        found.put(peer, &synced(), fio(&server, args, "randwrite", "4k", Kind::Iops, &["--fsync=1".into()])?.0);
    }
    if args.wants(COPY) {
        found.put(peer, COPY, copy(bench, peer)?);
    }
    Ok(())
}

/// All of the image, from qemu-nbd: by our client; beside it by libnbd's. MiB/s.
fn copy(bench: &Setting, peer: Peer) -> Result<f64> {
    let server = Server::start(Peer::QemuNbd, bench.command(peer), &bench.image, bench.dir.path())?;
    let start = Instant::now();
    if peer.is_oleo() {
        let device = NbdDevice::connect(&Uri::parse(&server.uri())?, false, &ClientOptions::default())?;
        const PIECE_LEN: usize = 256 << 10;
        let mut bufs = vec![vec![0; PIECE_LEN]; 32];
        for at in (0..IMAGE_LEN).step_by(PIECE_LEN * bufs.len()) {
            let offsets = (at..).step_by(PIECE_LEN);
            let mut reqs: Vec<ReadReq<'_>> = offsets.zip(&mut bufs).map(|(at, buf)| ReadReq::new(at, buf)).collect();
            device.read_batch(&mut reqs);
            reqs.into_iter().try_for_each(|req| req.result)?;
        }
    } else {
        tool(Command::new("nbdcopy").args([&server.uri(), "null:"]))?;
    }
    Ok((IMAGE_LEN >> 20) as f64 / start.elapsed().as_secs_f64())
}

/// The image that all servers serve in turn.
struct Setting {
    dir: tempfile::TempDir,
    image: PathBuf,
    new: PathBuf,
    old: Option<PathBuf>,
}

impl Setting {
    fn new(args: &Args) -> Result<Setting> {
        let dir = tempfile::tempdir_in("/dev/shm")?;
        let image = dir.path().join("image");
        let mut file = std::fs::File::create(&image)?;
        let mut random = std::io::Read::take(std::fs::File::open("/dev/urandom")?, IMAGE_LEN);
        std::io::copy(&mut random, &mut file)?;
        Ok(Setting { image, dir, new: oleo()?, old: args.old.clone() })
    }

    fn command(&self, peer: Peer) -> &Path {
        match (&self.old, peer) {
            (Some(old), Peer::Old) => old,
            _ => &self.new,
        }
    }
}

/// Runs the benchmark.
pub fn run(args: &Args, report: &mut Report) -> Result<()> {
    let setting = Setting::new(args)?;
    let version = |program: &str| tool(Command::new(program).arg("--version")).unwrap_or_default();
    let versions: Vec<String> =
        ["qemu-nbd", "nbdkit", "fio"].iter().map(|p| version(p).lines().next().unwrap_or("?").to_owned()).collect();
    report.note(&format!("{}; {} s each; median of {} runs", versions.join(", "), args.seconds, args.runs));
    let peers = args.peers(&[Peer::Oleo, Peer::QemuNbd, Peer::Nbdkit]);
    report.in_turns(&figures(), &peers, args.runs, |peer, found| one_run(&setting, peer, args, found))
}
