//! Histories of a subvolume with snapshots, and sending them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use oleo_format::TreeId;
use oleo_sim::manifest::{Detail, Ignore, Manifest};
use oleo_sim::oracle::{Oracle, Scratch, run};
use oleo_sim::script::{Host, Mix, Target, generate};
use oleo_stream::{SendOptions, Sent, send};

/// Bytes of an image.
const IMAGE_LEN: u64 = 2 << 30;

/// Up to this many bytes of a file the kernel stores inline by default (`max_inline`).
const INLINE_MAX: u64 = 2048;
/// What is compared.
pub const DETAIL: Detail = Detail { holes: false, sharing: true, atime_ctime: false, otime: false };

/// How streams are made.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    pub version: u32,
    pub compressed: bool,
    pub threads: usize,
    pub no_data: bool,
}

impl Default for Sender {
    fn default() -> Sender {
        Sender { version: 1, compressed: false, threads: 0, no_data: false }
    }
}

impl Sender {
    /// A stream of one snapshot.
    pub fn send(
        &self,
        image: &oleo::Image,
        snapshot: &str,
        parent: Option<&str>,
        sources: &[&str],
    ) -> Result<(Vec<u8>, Sent)> {
        let options = SendOptions::default()
            .parent(parent.map(|path| id_of(image, path)).transpose()?)
            .clone_sources(sources.iter().map(|path| id_of(image, path)).collect::<Result<_>>()?)
            .version(self.version)
            .compressed(self.compressed)
            .threads(self.threads)
            .no_data(self.no_data);
        let mut out = Vec::new();
        let sent = send(image.fs(), &[id_of(image, snapshot)?], &options, &mut out)
            .with_context(|| format!("send of {snapshot}"))?;
        ensure!(sent.bytes == out.len() as u64, "{sent:?}, {} bytes", out.len());
        Ok((out, sent))
    }
}

/// The subvolume at a path.
pub fn id_of(image: &oleo::Image, path: &str) -> Result<TreeId> {
    let infos = image.fs().subvol_list()?;
    Ok(infos.iter().find(|info| info.path == path.as_bytes()).with_context(|| format!("no subvolume {path}"))?.id)
}

/// An image with snapshots `s0`, `s1`, ….
pub struct History {
    pub scratch: Scratch,
    pub image: PathBuf,
    pub snapshots: Vec<String>,
    /// What the kernel sees of all of them.
    pub manifest: Manifest,
    pub seed: u64,
    /// With compressed extents, for all parts of which FIEMAP reports the address of the whole.
    pub packed: bool,
}

/// A new file system of the kernel.
pub fn fresh(oracle: Oracle, scratch: &Scratch, name: &str) -> Result<PathBuf> {
    let image = scratch.image(name, IMAGE_LEN)?;
    oracle.mkfs(&["-q"], &[&image])?;
    Ok(image)
}

/// Runs `btrfs` with paths.
pub fn btrfs(args: &[&str], paths: &[&Path]) -> Result<String> {
    let args = args.iter().map(|a| a.as_ref()).chain(paths.iter().map(|p| p.as_os_str()));
    run("btrfs", args.collect::<Vec<&std::ffi::OsStr>>())
}

/// A read-only snapshot, with all data on disk.
pub fn snapshot(top: &Path, from: &str, to: &str) -> Result<()> {
    btrfs(&["filesystem", "sync"], &[top])?;
    btrfs(&["subvolume", "snapshot", "-r"], &[&top.join(from), &top.join(to)])?;
    Ok(())
}

impl History {
    /// A random script in `work`, in this many pieces.
    pub fn make(oracle: Oracle, seed: u64, mix: &Mix, pieces: usize) -> Result<History> {
        let script = generate(seed, mix);
        let mut parts = script.chunks(script.len().div_ceil(pieces));
        let history = History::with(oracle, seed, pieces, |work, _| {
            let mut host = Host::new(work, mix.sectorsize);
            for op in parts.next().unwrap_or_default() {
                let _ = host.apply(op);
            }
            Ok(Vec::new())
        })?;
        Ok(History { packed: mix.compress, ..history })
    }

    /// A history of steps, after each of which there is a snapshot, before the files that it hands out are closed. The file
    /// system is mounted anew for each.
    pub fn with(
        oracle: Oracle,
        seed: u64,
        steps: usize,
        mut step: impl FnMut(&Path, usize) -> Result<Vec<std::fs::File>>,
    ) -> Result<History> {
        let scratch = oracle.scratch()?;
        let image = fresh(oracle, &scratch, "source")?;
        let mut mounted = oracle.mount(&[&image], "")?;
        btrfs(&["subvolume", "create"], &[&mounted.path().join("work")])?;
        let mut snapshots = Vec::new();
        for number in 0..steps {
            if number > 0 {
                // Numbers of inodes that are gone are given out again only after a mount.
                mounted.unmount()?;
                mounted = oracle.mount(&[&image], "")?;
            }
            let held = step(&mounted.path().join("work"), number)?;
            let name = format!("s{number}");
            snapshot(mounted.path(), "work", &name)?;
            snapshots.push(name);
            drop(held);
        }
        let work = mounted.path().join("work");
        btrfs(&["subvolume", "delete", "-C"], &[&work])?;
        mounted.sync()?;
        let manifest = Manifest::of_dir(mounted.path(), DETAIL)?;
        mounted.unmount()?;
        Ok(History { scratch, image, snapshots, manifest, seed, packed: false })
    }

    pub fn open(&self) -> Result<oleo::Image> {
        Ok(oleo::Image::open(&self.image, &oleo::OpenOptions::default())?)
    }

    /// Streams of all snapshots: the first one whole, the others on top of the one before.
    pub fn streams(&self, sender: &Sender) -> Result<Vec<Vec<u8>>> {
        let image = self.open()?;
        let mut streams = Vec::new();
        for (number, name) in self.snapshots.iter().enumerate() {
            let parent = number.checked_sub(1).map(|before| self.snapshots[before].as_str());
            streams.push(sender.send(&image, name, parent, &[])?.0);
        }
        Ok(streams)
    }

    /// Has the kernel receive all snapshots, and compares.
    pub fn to_the_kernel(&self, oracle: Oracle, sender: &Sender) -> Result<()> {
        let have = self.received(oracle, sender)?;
        let what = format!("seed {}, {sender:?}", self.seed);
        same(&self.manifest, &have, !self.packed, &what);
        Ok(())
    }

    /// Receives all snapshots ourselves, into an image of the kernel's making, and has the kernel look.
    pub fn to_us(&self, oracle: Oracle, sender: &Sender) -> Result<()> {
        let sharing = !self.packed;
        self.receive(oracle, self.streams(sender)?, sharing, &format!("to ourselves, seed {}, {sender:?}", self.seed))
    }

    /// The same with streams of the kernel's, in this version.
    pub fn kernel_to_us(&self, oracle: Oracle, version: u32) -> Result<()> {
        let mounted = oracle.mount(&[&self.image], "")?;
        let file = self.scratch.path().join("stream");
        let proto = version.to_string();
        let mut streams = Vec::new();
        for (number, name) in self.snapshots.iter().enumerate() {
            let at = |name: &str| mounted.path().join(name).display().to_string();
            let mut args = vec!["send".to_owned(), "-q".into(), "--proto".into(), proto.clone()];
            args.extend(["-f".into(), file.display().to_string()]);
            if let Some(before) = number.checked_sub(1) {
                args.extend(["-p".into(), at(&self.snapshots[before])]);
            }
            args.push(at(name));
            run("btrfs", &args)?;
            streams.push(std::fs::read(&file)?);
            std::fs::remove_file(&file)?;
        }
        mounted.unmount()?;
        // The kernel's streams share less than the snapshots do.
        self.receive(oracle, streams, false, &format!("the kernel's, seed {}, version {version}", self.seed))
    }

    fn receive(&self, oracle: Oracle, streams: Vec<Vec<u8>>, sharing: bool, what: &str) -> Result<()> {
        let image = fresh(oracle, &self.scratch, "received")?;
        {
            let into = oleo::Image::open(&image, &oleo::OpenOptions::writing())?;
            for (name, stream) in self.snapshots.iter().zip(streams) {
                into.receive(std::io::Cursor::new(stream), &oleo::receive::Receive::default())
                    .with_context(|| format!("receive of {name}"))?;
            }
            into.close()?;
        }
        oracle.must_be_sound(&[&image], "received by us")?;
        let mounted = oracle.mount(&[&image], "")?;
        let have = Manifest::of_dir(mounted.path(), DETAIL)?;
        mounted.unmount()?;
        std::fs::remove_file(&image)?;
        same(&self.manifest, &have, sharing, what);
        Ok(())
    }

    /// What the kernel has received.
    pub fn received(&self, oracle: Oracle, sender: &Sender) -> Result<Manifest> {
        let streams = self.streams(sender)?;
        let image = fresh(oracle, &self.scratch, "received")?;
        let mounted = oracle.mount(&[&image], "")?;
        let mut failed = None;
        for (name, stream) in self.snapshots.iter().zip(&streams) {
            if let Err(error) = kernel_receive(&self.scratch, stream, mounted.path()) {
                failed = Some(format!("{name}: {error:#}"));
                break;
            }
        }
        mounted.sync()?;
        let have = Manifest::of_dir(mounted.path(), DETAIL)?;
        mounted.unmount()?;
        oracle.must_be_sound(&[&image], "received")?;
        std::fs::remove_file(&image)?;
        ensure!(failed.is_none(), "seed {}, {sender:?}: {failed:?}", self.seed);
        Ok(have)
    }
}

/// Compares what was sent and what was received. With `sharing`, what is shared must be shared; the receiver may share
/// more (data written twice with the same bytes), and may have zeros in place of holes.
pub fn same(want: &Manifest, have: &Manifest, sharing: bool, what: &str) {
    want.must_equal(have, &Ignore { top: true, sharing: true, ..Ignore::default() }, what);
    if !sharing {
        return;
    }
    let places = |manifest: &Manifest| {
        let mut places: BTreeMap<(Vec<u8>, u64), (Vec<u8>, u64)> = BTreeMap::new();
        for (path, entry) in &manifest.entries {
            // Small files may or may not share anything: the receiver stores them inline. FIEMAP reports addresses of
            // compressed extents that overlap those of others.
            if entry.xattrs.contains_key(&b"btrfs.compression"[..]) {
                continue;
            }
            let shares = entry.shares.iter().flatten().filter(|share| !share.unwritten && entry.size > INLINE_MAX);
            for share in shares {
                for at in (0..share.len).step_by(4096).filter(|at| share.at + at < entry.size) {
                    places.insert((path.clone(), share.at + at), (share.seen.0.clone(), share.seen.1 + at));
                }
            }
        }
        places
    };
    let (want, have) = (places(want), places(have));
    let mut same = BTreeMap::new();
    for (place, seen) in &want {
        let Some(now) = have.get(place) else { panic!("{what}: nothing on disk at {place:?}") };
        if let Some((first, other)) = same.insert(seen, (place, now)) {
            assert_eq!(now, other, "{what}: {place:?} shares with {first:?} no more");
        }
    }
}

/// `btrfs receive` of a stream.
pub fn kernel_receive(scratch: &Scratch, stream: &[u8], into: &Path) -> Result<()> {
    let file = scratch.path().join("stream");
    std::fs::write(&file, stream)?;
    let done = btrfs(&["receive", "-f"], &[&file, into]);
    if done.is_err() {
        let _ = std::fs::copy(&file, "/tmp/failed-stream");
    }
    done?;
    std::fs::remove_file(&file)?;
    Ok(())
}
