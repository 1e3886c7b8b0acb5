//! fsync, and rename and link after it: our calls in-process, and system calls on Oleo's mount and on the kernel's.
//!
//! All work on a loop device, over a file in memory and over one on disk, on a volume made the same way, with 10 000
//! committed files in the directory. A thread appends to its file and syncs it, each time; then files that were just
//! synced are renamed and linked, names relative to an open directory on all sides.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};
use oleo::fs::{InodeRef, NewInode, NewKind, RenameMode};
use oleo::mkfs::MkfsOptions;
use oleo::{Image, OpenOptions};
use oleo_sim::oracle::{Loop, ReadOnly};
use rustix::fs::{AtFlags, Mode, OFlags};

use crate::Args;
use crate::measure::{Better, Figure, Found, Report, quantile};
use crate::mounted::Fixture;
use crate::peer::Peer;

const IMAGE_LEN: u64 = 4 << 30;
/// Files that are in the directory before anything is measured.
const NEIGHBOURS: usize = 10_000;
/// Bytes that are appended before each fsync.
const APPENDED: usize = 100;
const THREADS: usize = 8;
/// Calls of each kind on a device in memory, and on a disk, whose flushes take time.
const ROUNDS: [usize; 2] = [4000, 400];
const DEVICES: [&str; 2] = ["memory", "disk"];

/// A directory of files, ours or the kernel's.
trait Store: Sync {
    type File: Sync;
    fn create(&self, name: &str) -> Result<Self::File>;
    fn append(&self, file: &Self::File, at: u64, data: &[u8]) -> Result<()>;
    fn fsync(&self, file: &Self::File) -> Result<()>;
    fn rename(&self, from: &str, to: &str) -> Result<()>;
    fn link(&self, file: &Self::File, from: &str, to: &str) -> Result<()>;
    fn sync(&self) -> Result<()>;
}

struct Ours {
    image: Image,
    dir: InodeRef,
}

impl Store for Ours {
    type File = InodeRef;

    fn create(&self, name: &str) -> Result<InodeRef> {
        Ok(self.image.fs().create(&self.dir, name.as_bytes(), &NewInode::new(NewKind::File, 0o600))?)
    }
    fn append(&self, file: &InodeRef, at: u64, data: &[u8]) -> Result<()> {
        Ok(self.image.fs().write(file, at, data)?)
    }
    fn fsync(&self, file: &InodeRef) -> Result<()> {
        Ok(self.image.fs().fsync(file)?)
    }
    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (fs, dir) = (self.image.fs(), &self.dir);
        Ok(fs.rename(dir, from.as_bytes(), dir, to.as_bytes(), RenameMode::Replace)?)
    }
    fn link(&self, file: &InodeRef, _: &str, to: &str) -> Result<()> {
        Ok(self.image.fs().link(file, &self.dir, to.as_bytes())?)
    }
    fn sync(&self) -> Result<()> {
        Ok(self.image.sync().map(drop)?)
    }
}

/// A directory on a mount, the kernel's or Oleo's.
struct Calls {
    dir: File,
}

impl Calls {
    /// A new directory `dir` on the mount.
    fn new(mounted: &Path) -> Result<Calls> {
        let dir = mounted.join("dir");
        std::fs::create_dir(&dir)?;
        Ok(Calls { dir: File::open(dir)? })
    }
}

impl Store for Calls {
    type File = File;

    fn create(&self, name: &str) -> Result<File> {
        let how = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.dir, name, how, Mode::from_raw_mode(0o600))?.into())
    }
    fn append(&self, file: &File, at: u64, data: &[u8]) -> Result<()> {
        Ok(file.write_all_at(data, at)?)
    }
    fn fsync(&self, file: &File) -> Result<()> {
        Ok(file.sync_all()?)
    }
    fn rename(&self, from: &str, to: &str) -> Result<()> {
        Ok(rustix::fs::renameat(&self.dir, from, &self.dir, to)?)
    }
    fn link(&self, _: &File, from: &str, to: &str) -> Result<()> {
        Ok(rustix::fs::linkat(&self.dir, from, &self.dir, to, AtFlags::empty())?)
    }
    fn sync(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(&self.dir)?)
    }
}

/// Appends and syncs so often; the microseconds that each took.
fn appends<S: Store>(store: &S, name: &str, rounds: usize) -> Result<Vec<f64>> {
    let file = store.create(name)?;
    let data = [b'x'; APPENDED];
    let one = |n: usize| {
        let start = Instant::now();
        store.append(&file, (n * APPENDED) as u64, &data)?;
        store.fsync(&file)?;
        Ok(start.elapsed().as_secs_f64() * 1e6)
    };
    (0..rounds).map(one).collect()
}

/// Times one call after each fsync of a new file.
fn after_fsync<S: Store>(
    store: &S,
    what: &str,
    rounds: usize,
    call: impl Fn(&S::File, &str, &str) -> Result<()>,
) -> Result<Vec<f64>> {
    let mut took = Vec::with_capacity(rounds);
    for n in 0..rounds {
        let (from, to) = (format!("{what}-{n}"), format!("{what}-{n}-new"));
        let file = store.create(&from)?;
        store.append(&file, 0, &[b'y'; APPENDED])?;
        store.fsync(&file)?;
        let start = Instant::now();
        call(&file, &from, &to)?;
        took.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(took)
}

fn measure<S: Store>(store: &S, device: &str, rounds: usize, found: &mut Found, peer: Peer) -> Result<()> {
    for n in 0..NEIGHBOURS {
        let file = store.create(&format!("neighbour-{n:05}"))?;
        store.append(&file, 0, &[b'z'; APPENDED])?;
    }
    store.sync()?;
    let mut put = |what: &str, mut took: Vec<f64>| {
        for (which, part) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
            found.put(peer, &name(what, which, device), quantile(&mut took, part));
        }
    };
    put(ALONE, appends(store, "alone", rounds)?);
    let start = Instant::now();
    let each = std::thread::scope(|s| -> Result<Vec<Vec<f64>>> {
        let threads: Vec<_> =
            (0..THREADS).map(|t| s.spawn(move || appends(store, &format!("thread-{t}"), rounds / 2))).collect();
        threads.into_iter().map(|t| t.join().map_err(|_| anyhow!("a thread panicked"))?).collect()
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let all: Vec<f64> = each.into_iter().flatten().collect();
    let rate = all.len() as f64 / seconds;
    put(TOGETHER, all);
    put(RENAME, after_fsync(store, "rename", rounds, |_, from, to| store.rename(from, to))?);
    put(LINK, after_fsync(store, "link", rounds, |file, from, to| store.link(file, from, to))?);
    found.put(peer, &rate_name(device), rate);
    Ok(())
}

const ALONE: &str = "append+fsync";
const TOGETHER: &str = "the same, 8 threads";
const RENAME: &str = "rename after fsync";
const LINK: &str = "link after fsync";

fn name(what: &str, which: &str, device: &str) -> String {
    format!("{what}, {which}, {device}")
}

fn rate_name(device: &str) -> String {
    format!("fsyncs of 8 threads, {device}")
}

fn figures() -> Vec<Figure> {
    let mut all = Vec::new();
    for device in DEVICES {
        for what in [ALONE, TOGETHER, RENAME, LINK] {
            for which in ["p50", "p99", "max"] {
                let aimed = which == "p50" && matches!(what, ALONE | RENAME);
                let aims: &[_] = if aimed { &[(Peer::Kernel, "1x")] } else { &[] };
                all.push(Figure { name: name(what, which, device).into(), unit: "us", better: Better::Less, aims });
            }
        }
        all.push(Figure { name: rate_name(device).into(), unit: "1/s", better: Better::More, aims: &[] });
    }
    all
}

fn one_run(fixture: &Fixture, image: &Path, device: usize, peer: Peer, found: &mut Found) -> Result<()> {
    let (label, rounds, oracle) = (DEVICES[device], ROUNDS[device], fixture.oracle());
    let _ = std::fs::remove_file(image);
    File::create(image)?.set_len(IMAGE_LEN)?;
    if peer == Peer::Kernel {
        oracle.mkfs(&[], &[image])?;
        let mounted = oracle.mount(&[image], "")?;
        measure(&Calls::new(mounted.path())?, label, rounds, found, peer)?;
        return mounted.unmount();
    }
    let attached = Loop::attach(image, ReadOnly::No)?;
    let options = oleo::device::FileOptions::default().write(true);
    oleo::mkfs::make(
        &[std::sync::Arc::new(oleo::device::FileDevice::open(attached.path(), &options)?)],
        &MkfsOptions::default(),
    )?;
    if peer.is_oleo() {
        let mounted = fixture.serve(peer, attached.path())?;
        measure(&Calls::new(mounted.path())?, label, rounds, found, peer)?;
        mounted.unmount()?;
        drop(attached);
        return oracle.must_be_sound(&[image], "the image that was measured");
    }
    let opened = Image::open(attached.path(), &OpenOptions::writing())?;
    let dir = opened.fs().create(&opened.top()?, b"dir", &NewInode::new(NewKind::Dir, 0o755))?;
    let store = Ours { image: opened, dir };
    measure(&store, label, rounds, found, peer)?;
    let stats = store.image.fs().log_stats();
    eprintln!("  {stats:?}");
    ensure!(stats.commits_by_link_rename == 0, "link or rename made a commit");
    let Ours { image: opened, dir } = store;
    drop(dir);
    opened.close()?;
    drop(attached);
    oracle.must_be_sound(&[image], "the image that was measured")
}

/// Runs the benchmark.
pub fn run(args: &Args, report: &mut Report) -> Result<()> {
    let fixture = Fixture::new(args.old.as_deref())?;
    let memory = fixture.oracle().scratch()?;
    let disk = tempfile::Builder::new().prefix("oleo-bench-").tempdir_in(&args.disk)?;
    report.note(&format!(
        "append of {APPENDED} bytes and fsync in a directory of {NEIGHBOURS} files, in-process, on Oleo's mount and on the kernel's, all on \
         a loop device; {ROUNDS:?} calls of each kind in memory and on disk ({}); median of {} runs",
        args.disk.display(),
        args.runs
    ));
    let peers = args.peers(&[Peer::Library, Peer::Oleo, Peer::Kernel]);
    report.in_turns(&figures(), &peers, args.runs, |peer, found| {
        let devices = [memory.path(), disk.path()].into_iter().enumerate();
        for (device, dir) in devices.filter(|(device, _)| args.wants(DEVICES[*device])) {
            one_run(&fixture, &dir.join("fsync.img"), device, peer, found)?;
        }
        Ok(())
    })
}
