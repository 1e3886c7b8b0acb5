//! Kernel file systems that send, and both receivers.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use oleo::receive::{Receive, Report};
use oleo::{Image, OpenOptions};
use oleo_sim::manifest::{Detail, Ignore, Manifest};
use oleo_sim::oracle::{Mounted, Oracle, Scratch, run};

pub const IMAGE_LEN: u64 = 1 << 30;

/// A kernel file system to send from.
pub struct Sender {
    scratch: Scratch,
    pub mounted: Mounted,
}

impl Sender {
    pub fn new(oracle: Oracle, options: &str) -> Result<Sender> {
        let scratch = oracle.scratch()?;
        let image = scratch.image("sender.img", IMAGE_LEN)?;
        oracle.mkfs(&[], &[&image])?;
        let mounted = oracle.mount(&[&image], options)?;
        Ok(Sender { scratch, mounted })
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.mounted.path().join(name)
    }

    pub fn subvol(&self, name: &str) -> Result<PathBuf> {
        run("btrfs", ["subvolume".as_ref(), "create".as_ref(), self.at(name).as_os_str()])?;
        Ok(self.at(name))
    }

    /// A read-only snapshot.
    pub fn snapshot(&self, from: &str, name: &str) -> Result<()> {
        let (from, to) = (self.at(from), self.at(name));
        run("btrfs", ["subvolume".as_ref(), "snapshot".as_ref(), "-r".as_ref(), from.as_os_str(), to.as_os_str()])?;
        Ok(())
    }

    /// A stream in a file.
    pub fn send(&self, options: &[&str], names: &[&str]) -> Result<PathBuf> {
        let file =
            self.scratch.path().join(format!("{}{}.stream", names.join("+"), options.join("")).replace('/', "_"));
        let mut command = Command::new("btrfs");
        command.current_dir(self.mounted.path()).arg("send").args(options).arg("-f").arg(&file).args(names);
        let out = command.output()?;
        ensure!(out.status.success(), "btrfs send: {}", String::from_utf8_lossy(&out.stderr));
        Ok(file)
    }
}

/// An image that both kinds of receivers may fill.
pub struct Receiver {
    oracle: Oracle,
    _scratch: Scratch,
    pub image: PathBuf,
}

impl Receiver {
    pub fn new(oracle: Oracle, mkfs: &[&str]) -> Result<Receiver> {
        let scratch = oracle.scratch()?;
        let image = scratch.image("receiver.img", IMAGE_LEN)?;
        oracle.mkfs(mkfs, &[&image])?;
        Ok(Receiver { oracle, _scratch: scratch, image })
    }

    pub fn ours(&self, stream: &Path) -> Result<Report> {
        self.ours_with(stream, &Receive::default())
    }

    pub fn ours_with(&self, stream: &Path, how: &Receive) -> Result<Report> {
        let image = Image::open(&self.image, &how.open_options(OpenOptions::default()))?;
        let (report, result) = image.receive_report(File::open(stream)?, how)?;
        image.close()?;
        result?;
        ensure!(report.errors.is_empty(), "{:?}", report.errors);
        Ok(report)
    }

    pub fn kernel(&self, stream: &Path) -> Result<()> {
        let mounted = self.mount()?;
        let out = Command::new("btrfs").args(["receive", "-f"]).arg(stream).arg(mounted.path()).output()?;
        ensure!(out.status.success(), "btrfs receive: {}", String::from_utf8_lossy(&out.stderr));
        mounted.unmount()
    }

    pub fn mount(&self) -> Result<Mounted> {
        self.oracle.mount(&[&self.image], "")
    }

    /// The kernel and our own check find nothing.
    pub fn must_be_sound(&self, what: &str) -> Result<()> {
        self.oracle.must_be_sound(&[&self.image], what)?;
        let options = oleo::check::CheckOptions::default().data(true);
        let report = oleo::check::image(&self.image, &OpenOptions::default(), Default::default(), &options)?;
        ensure!(!report.has_errors(), "{what}: {:?}", report.findings);
        Ok(())
    }
}

pub fn all() -> Detail {
    Detail { holes: true, sharing: true, otime: false, atime_ctime: false }
}

pub fn manifest(mounted: &Mounted, name: &str) -> Result<Manifest> {
    mounted.sync()?;
    Manifest::of_dir(&mounted.path().join(name), all()).with_context(|| name.to_owned())
}

/// Fails unless subvolumes of both mounts look the same to programs.
pub fn must_equal(want: &Mounted, have: &Mounted, name: &str, ignore: &Ignore) -> Result<()> {
    let found = manifest(want, name)?.differences(&manifest(have, name)?, ignore);
    let lines: String = found.iter().take(20).map(|l| format!("\n  {l}")).collect();
    ensure!(found.is_empty(), "{name}: {} differences (want | have):{lines}", found.len());
    Ok(())
}
