//! File systems to measure beside each other: Oleo's mount, the kernel's btrfs on a loop device, and a FUSE server that
//! only passes through to a tmpfs, which is about what FUSE itself allows.
//!
//! The pass-through is libfuse's example `passthrough_ll`, compiled when it is needed from the sources in the package
//! libfuse3-dev, with caching switched on. It keeps inodes in a list that it searches at each look-up, so for many
//! files bindfs replaces it, which works by names and is slower: no aim with many files refers to it. The fourth peer
//! only replies: a server on our transport that keeps nothing (`examples/null.rs` of oleo-fuse). All keep their bytes
//! in memory.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use oleo_sim::oracle::{self, Mounted, Oracle, Scratch};
use oleo_sim::served::{Limits, Served};

use crate::measure::{self, Built};
use crate::peer::Peer;

/// Image files are sparse: this costs only what is written.
const IMAGE_LEN: u64 = 12 << 30;
const EXAMPLE: &str = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c";
/// How long the kernel caches names and attributes for the pass-through: longer than any run.
const KEPT_SECONDS: &str = "timeout=86400";

/// How many files the kernel will know at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// Fewer than any limit of descriptors.
    Few,
    /// Hundreds of thousands.
    Many,
}

/// The directory and programs of a run.
pub struct Fixture {
    oracle: Oracle,
    scratch: Scratch,
    oleo: PathBuf,
    old: Option<PathBuf>,
    pass: PathBuf,
    null: PathBuf,
}

/// Something mounted; gone with the guard.
pub enum Mount {
    /// By the kernel.
    Kernel(Mounted),
    /// By a server.
    Served(Served),
}

impl Mount {
    /// The directory.
    pub fn path(&self) -> &Path {
        match self {
            Mount::Kernel(m) => m.path(),
            Mount::Served(m) => m.path(),
        }
    }

    /// Unmounts; all writes are complete then.
    pub fn unmount(self) -> Result<()> {
        match self {
            Mount::Kernel(m) => m.unmount(),
            Mount::Served(m) => m.unmount(),
        }
    }
}

impl Fixture {
    /// Builds the servers; `old` is an older `oleo`.
    pub fn new(old: Option<&Path>) -> Result<Fixture> {
        let oracle = oracle::oracle().context("this benchmark needs root, loop devices and the kernel's btrfs")?;
        let scratch = oracle.scratch()?;
        let pass = scratch.path().join("passthrough_ll");
        let flags = oracle::run("pkg-config", ["fuse3", "--cflags", "--libs"])?;
        let mut args = vec!["-O2", "-o", pass.to_str().context("path")?, EXAMPLE];
        args.extend(flags.split_whitespace());
        oracle::run("gcc", args).context("the pass-through needs gcc and libfuse3-dev")?;
        let (oleo, null) = (measure::oleo()?, measure::built("oleo-fuse", "null", Built::Example)?);
        Ok(Fixture { oracle, oleo, old: old.map(Path::to_owned), scratch, pass, null })
    }

    /// The program used as pass-through, for the report.
    pub fn pass_through(&self, files: Files) -> &'static str {
        // passthrough_ll looks each inode up in a list: with many files that is what would be measured.
        if files == Files::Many { "bindfs" } else { "passthrough_ll" }
    }

    /// A directory for logs and archives.
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// The kernel, which verifies.
    pub fn oracle(&self) -> &Oracle {
        &self.oracle
    }

    /// The command that serves a peer of ours.
    fn command(&self, peer: Peer) -> Result<&Path> {
        match peer {
            Peer::Old => self.old.as_deref().context("no older command was named"),
            _ => Ok(&self.oleo),
        }
    }

    fn image(&self, peer: Peer) -> PathBuf {
        self.scratch.path().join(format!("{}.image", peer.name().replace('/', "-")))
    }

    /// An empty mount; earlier contents are removed.
    pub fn fresh(&self, peer: Peer, files: Files) -> Result<Mount> {
        let image = self.image(peer);
        match peer {
            Peer::Oleo | Peer::Old | Peer::AtDevice => {
                let _ = std::fs::remove_file(&image);
                let size = IMAGE_LEN.to_string();
                let args = ["mkfs", "-q", "--size", &size, image.to_str().context("path")?];
                oracle::run(self.command(peer)?.to_str().context("path")?, args)?;
            }
            Peer::Kernel => {
                let _ = std::fs::remove_file(&image);
                std::fs::File::create(&image)?.set_len(IMAGE_LEN)?;
                self.oracle.mkfs(&[], &[&image])?;
            }
            Peer::Ext4 | Peer::Ext4Scan => {
                std::fs::File::create(&image)?.set_len(IMAGE_LEN)?;
                make_ext4(&image)?;
            }
            Peer::Pass => {
                let _ = std::fs::remove_dir_all(&image);
                std::fs::create_dir(&image)?;
            }
            Peer::Null | Peer::Library | Peer::QemuNbd | Peer::Nbdkit | Peer::S3backer | Peer::NbdkitS3 => {}
        }
        self.mount(peer, files)
    }

    /// Oleo's mount of an existing volume.
    pub fn serve(&self, peer: Peer, device: &Path) -> Result<Served> {
        let limits = Limits { life: Duration::from_secs(3600), unmount: Duration::from_secs(300), ..Limits::default() };
        Served::mount(self.command(peer)?, &[device], "noatime", limits)
    }

    /// Mounts the present contents.
    pub fn mount(&self, peer: Peer, files: Files) -> Result<Mount> {
        let image = self.image(peer);
        let limits = Limits { life: Duration::from_secs(3600), unmount: Duration::from_secs(300), ..Limits::default() };
        match peer {
            Peer::Oleo | Peer::Old => {
                Served::mount(self.command(peer)?, &[image], "noatime", limits).map(Mount::Served)
            }
            Peer::AtDevice => {
                Served::mount(self.command(peer)?, &[image], "noatime,io_uring=off", limits).map(Mount::Served)
            }
            Peer::Kernel => self.oracle.mount(&[image], "").map(Mount::Kernel),
            Peer::Ext4 | Peer::Ext4Scan => mount_ext4(&self.oracle, &image, peer).map(Mount::Kernel),
            Peer::Library | Peer::QemuNbd | Peer::Nbdkit | Peer::S3backer | Peer::NbdkitS3 => {
                bail!("{} mounts nothing", peer.name())
            }
            Peer::Pass if self.pass_through(files) == "bindfs" => {
                let mut command = Command::new("bindfs");
                let kept = "attr_timeout=86400,entry_timeout=86400,negative_timeout=86400";
                command.args(["-f", "--multithreaded", "-o", kept]).arg(image);
                Served::start(command, vec!["umount".into()], limits).map(Mount::Served)
            }
            Peer::Pass => {
                let mut command = Command::new(&self.pass);
                let source = format!("source={},cache=always,{KEPT_SECONDS}", image.display());
                command.args(["-f", "-o", &source]);
                Served::start(command, vec!["umount".into()], limits).map(Mount::Served)
            }
            Peer::Null => Served::start(Command::new(&self.null), vec!["umount".into()], limits).map(Mount::Served),
        }
    }

    /// The same files with nothing of them in any cache: unmounted, the kernel's caches dropped, mounted again.
    pub fn cold(&self, peer: Peer, files: Files, mount: Mount) -> Result<Mount> {
        mount.unmount()?;
        drop_caches()?;
        self.mount(peer, files)
    }

    /// What Oleo has written must be sound; otherwise its figures count for nothing.
    pub fn must_be_sound(&self, peer: Peer) -> Result<()> {
        if peer.is_oleo() {
            self.oracle.must_be_sound(&[self.image(peer)], "the image that was measured")?;
        }
        Ok(())
    }

    /// Frees the space of a peer that is no longer measured.
    pub fn remove(&self, peer: Peer) {
        let image = self.image(peer);
        let _ = std::fs::remove_file(&image);
        let _ = std::fs::remove_dir_all(&image);
    }
}

/// An empty ext4 in an image file.
pub fn make_ext4(image: &Path) -> Result<()> {
    oracle::run("mkfs.ext4", ["-q".as_ref(), "-F".as_ref(), image.as_os_str()]).map(drop)
}

/// Has the kernel mount an ext4, with or without the search that was measured against.
pub fn mount_ext4(oracle: &Oracle, image: &Path, peer: Peer) -> Result<Mounted> {
    let scan = if peer == Peer::Ext4Scan { "mb_optimize_scan=1" } else { "mb_optimize_scan=0" };
    oracle.mount_as("ext4", &[image], scan)
}

/// Empties the kernel's caches of pages, names and inodes. Files in a tmpfs stay, for all peers alike.
pub fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3").context("dropping caches")
}

/// Runs a program that must succeed; its standard output.
pub fn tool(command: &mut Command) -> Result<String> {
    let out = command.env("LC_ALL", "C").output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(out.status.success(), "{command:?} failed: {}", String::from_utf8_lossy(&out.stderr));
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}
