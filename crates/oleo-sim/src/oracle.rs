//! The kernel and `btrfs-progs` as oracles for what Oleo writes.
//!
//! Normal path: (1) a test calls [`oracle`] and returns if there is none; (2) [`Oracle::scratch`] returns a directory
//! in memory; (3) images are made in it, by Oleo or by [`Oracle::mkfs`]; (4) [`Oracle::mount`] attaches loop devices
//! and mounts; (5) the guard is dropped or [`Mounted::unmount`] called; (6) [`Oracle::check`] and [`Mounted::scrub`]
//! return a [`Verdict`], which must be clean.
//!
//! Invariants: everything attached or mounted is removed with its guard, also if a test panics; a mount before its loop
//! devices, loop devices before the scratch directory (fields are dropped in the order they are declared). On a machine
//! that is root and has loop devices and a kernel with btrfs, a missing tool is a failure. Elsewhere the test is
//! skipped: a line on standard error names it and the reason, and how many were skipped so far in this process;
//! [`skip`] also adds it to the file that `OLEO_SKIPPED` names, from which `cargo xtask ci` counts. If
//! `OLEO_DEMAND_ORACLE` is set, as in CI, a test that cannot be verified fails.
//!
//! A trap: the kernel remembers every btrfs device it has seen, by file system id. It takes two images with the same
//! id, on different loop devices, for one file system on two paths: the second is refused or, worse, joined to the
//! first. So loop devices are forgotten (`btrfs device scan --forget`) after each unmount, and a process that attaches an
//! id keeps others from attaching it meanwhile (`claims`). Tests of one process must not share an id.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use oleo_format::{Incompat, SUPER_LEN, SUPER_OFFSETS, SuperBlock};

mod claims;
mod qgroups;
mod verdict;
pub use qgroups::{ShownQgroup, ShownQgroups};
pub use verdict::Verdict;

/// How often a busy mount, unmount or detach is tried again, 20 ms apart: ten seconds are enough for a scanner to close a device, and for a
/// process with a mount namespace of its own, which keeps copies of mounts, to end.
const BUSY_RETRIES_MAX: u32 = 500;
const BUSY_WAIT: Duration = Duration::from_millis(20);

/// The tools that an oracle needs, by the package that has them.
const TOOLS: [(&str, &str); 7] = [
    ("btrfs", "btrfs-progs"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("losetup", "mount"),
    ("mount", "mount"),
    ("umount", "mount"),
    ("unshare", "util-linux"),
    ("filefrag", "e2fsprogs"),
];

static SKIPPED: AtomicU32 = AtomicU32::new(0);

/// Proof that this machine can verify images. Made by [`oracle`].
#[derive(Clone, Copy, Debug)]
pub struct Oracle(());

/// The oracle, or `None` if the machine cannot be one (not root, no loop devices, no btrfs in the kernel).
///
/// # Panics
/// When the machine could be an oracle but a tool is missing: a test that silently proves nothing is worse than none.
pub fn oracle() -> Option<Oracle> {
    match machine() {
        Ok(()) => {
            let missing: Vec<_> = TOOLS.iter().filter(|(tool, _)| find_tool(tool).is_none()).collect();
            assert!(
                missing.is_empty(),
                "this machine can run the kernel oracle, but (tool, package) are missing: {missing:?}"
            );
            Some(Oracle(()))
        }
        Err(why) => {
            skip(&format!("no kernel oracle here ({why})"));
            None
        }
    }
}

/// Notes that the calling test proves nothing on this machine, and why.
///
/// # Panics
/// If `OLEO_DEMAND_ORACLE` is set: there a proof that cannot run is a failure.
pub fn skip(why: &str) {
    let name = std::thread::current().name().unwrap_or("?").to_owned();
    assert!(std::env::var_os("OLEO_DEMAND_ORACLE").is_none(), "{name} must not be skipped here: {why}");
    let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
    // Not eprintln!: the test runner swallows that of tests that pass.
    let line = format!("SKIPPED {name}: {why}; {count} skipped so far in this process\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(file) = std::env::var_os("OLEO_SKIPPED") {
        let mut file = fs::OpenOptions::new().append(true).create(true).open(file).expect("the file of OLEO_SKIPPED");
        file.write_all(format!("{name}\n").as_bytes()).expect("the file of OLEO_SKIPPED");
    }
}

/// Whether root, loop devices and a kernel with btrfs are there.
fn machine() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("not root".into());
    }
    if !Path::new("/dev/loop-control").exists() {
        return Err("no /dev/loop-control".into());
    }
    let known = || fs::read_to_string("/proc/filesystems").unwrap_or_default().contains("\tbtrfs");
    if !known() {
        // A module that is not loaded yet is not a reason to skip.
        let _ = Command::new("modprobe").arg("btrfs").output();
        if !known() {
            return Err("the kernel has no btrfs".into());
        }
    }
    // A container may be root by name only.
    match Command::new("losetup").arg("--find").output() {
        Ok(out) if !out.status.success() => Err(format!("losetup: {}", text(&out.stderr).trim())),
        _ => Ok(()),
    }
}

fn find_tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a tool and returns its output whatever its exit code.
fn run_raw<I, S>(tool: &str, args: I) -> Result<Output>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let path = find_tool(tool).with_context(|| format!("{tool} is not installed"))?;
    Command::new(path).args(args).env("LC_ALL", "C").output().with_context(|| format!("cannot run {tool}"))
}

/// Runs a tool that must succeed and gives its standard output.
pub fn run<I, S>(tool: &str, args: I) -> Result<String>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let args: Vec<OsString> = args.into_iter().map(|a| a.as_ref().to_owned()).collect();
    let out = run_raw(tool, &args)?;
    if !out.status.success() {
        bail!("{tool} {args:?}: {}\n{}{}", out.status, text(&out.stdout), text(&out.stderr));
    }
    Ok(text(&out.stdout))
}

/// A directory in memory (`/dev/shm`, or the usual place for temporary files) that goes away with the guard.
#[derive(Debug)]
pub struct Scratch {
    dir: tempfile::TempDir,
}

/// Copies a program so that it can be run immediately. A process of its own copies: a child that another thread starts
/// here meanwhile would hold the copy open for writing, and a file open for writing cannot be run ("Text file busy").
pub fn copy_program(from: &Path, to: &Path) -> Result<()> {
    run("cp", [from, to]).map(drop)
}

impl Scratch {
    /// A new directory. Needs no oracle.
    pub fn new() -> Result<Scratch> {
        let shm = Path::new("/dev/shm");
        let mut builder = tempfile::Builder::new();
        // `xtask/test-wrapper` removes those of a program that it ends.
        let prefix = format!("oleo-test-{}-", std::process::id());
        builder.prefix(&prefix);
        let dir = if shm.is_dir() { builder.tempdir_in(shm).or_else(|_| builder.tempdir()) } else { builder.tempdir() };
        Ok(Scratch { dir: dir.context("no scratch directory")? })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Makes a subdirectory.
    pub fn dir(&self, name: &str) -> Result<PathBuf> {
        let path = self.path().join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// Makes a sparse file of `len` bytes.
    pub fn image(&self, name: &str, len: u64) -> Result<PathBuf> {
        let path = self.path().join(name);
        File::create(&path)?.set_len(len)?;
        Ok(path)
    }

    /// Makes `count` sparse files of `len` bytes each.
    pub fn images(&self, name: &str, count: usize, len: u64) -> Result<Vec<PathBuf>> {
        (0..count).map(|i| self.image(&format!("{name}-{i}.img"), len)).collect()
    }
}

/// A loop device over a file; detached with the guard.
#[derive(Debug)]
pub struct Loop {
    device: PathBuf,
    /// The kernel's record of the file below the device; it changes when the file is removed.
    backing: PathBuf,
    was: Vec<u8>,
    // Dropped after the device is detached.
    _claim: Option<claims::Claim>,
}

impl Loop {
    /// Attaches the next free loop device to a file.
    pub fn attach(file: &Path, read_only: ReadOnly) -> Result<Loop> {
        let claim = claims::claim(file)?;
        let mut args: Vec<&OsStr> = vec!["--find".as_ref(), "--show".as_ref()];
        if read_only == ReadOnly::Yes {
            args.push("--read-only".as_ref());
        }
        args.push(file.as_os_str());
        // Another process may take the device between finding and attaching.
        let mut last = None;
        for _ in 0..BUSY_RETRIES_MAX {
            match run("losetup", &args) {
                Ok(out) => {
                    let device = PathBuf::from(out.trim());
                    let name = device.file_name().context("a device without a name")?;
                    let backing = Path::new("/sys/block").join(name).join("loop/backing_file");
                    let was = fs::read(&backing)?.trim_ascii_end().to_vec();
                    return Ok(Loop { device, backing, was, _claim: claim });
                }
                Err(e) => last = Some(e),
            }
            std::thread::sleep(BUSY_WAIT);
        }
        Err(last.expect("tried at least once"))
    }

    /// The path of the device.
    pub fn path(&self) -> &Path {
        &self.device
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = run_raw("btrfs", [OsStr::new("device"), "scan".as_ref(), "--forget".as_ref(), self.device.as_os_str()]);
        // An open device keeps all that is on it: `btrfs check` and others open every block device now and then.
        let gone = || match fs::read(&self.backing) {
            Ok(file) if file.starts_with(&self.was) => bail!("it is open somewhere"),
            _ => Ok(()),
        };
        let done = retry(|| run("losetup", [OsStr::new("--detach"), self.device.as_os_str()]).map(drop))
            .and_then(|()| retry(gone));
        if let Err(e) = done {
            eprintln!("{} stays attached: {e:#}", self.device.display());
        }
    }
}

/// Whether a loop device or mount may be written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOnly {
    /// Reading only.
    Yes,
    /// Reading and writing.
    No,
}

/// Does it until it succeeds, for as long as another process may keep a device or mount busy.
///
/// # Errors
/// The last one.
pub fn retry(mut f: impl FnMut() -> Result<()>) -> Result<()> {
    let mut result = f();
    for _ in 0..BUSY_RETRIES_MAX {
        if result.is_ok() {
            break;
        }
        std::thread::sleep(BUSY_WAIT);
        result = f();
    }
    result
}

/// A file system mounted by the kernel. Unmounted with the guard.
#[derive(Debug)]
pub struct Mounted {
    dir: MountPoint,
    // Dropped after the mount, in this order.
    _loops: Vec<Loop>,
    _own: Option<tempfile::TempDir>,
}

#[derive(Debug)]
struct MountPoint {
    path: PathBuf,
    mounted: bool,
}

impl MountPoint {
    fn unmount(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.mounted, false) {
            retry(|| run("umount", [&self.path]).map(drop))?;
        }
        Ok(())
    }
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        if let Err(e) = self.unmount() {
            eprintln!("{} stays mounted: {e:#}", self.path.display());
        }
    }
}

impl Mounted {
    /// The directory that it is mounted on.
    pub fn path(&self) -> &Path {
        &self.dir.path
    }

    /// Writes everything out and commits.
    pub fn sync(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(File::open(self.path())?)?)
    }

    /// Unmounts and detaches. An error here is a failure of the test, so report it.
    pub fn unmount(mut self) -> Result<()> {
        self.dir.unmount()
    }

    /// Reads everything back in the kernel and verifies all copies.
    pub fn scrub(&self) -> Result<Verdict> {
        let out = run_raw(
            "btrfs",
            [OsStr::new("scrub"), "start".as_ref(), "-B".as_ref(), "-R".as_ref(), self.path().as_os_str()],
        )?;
        Ok(Verdict::from_scrub(out.status.success(), &text(&out.stdout), &text(&out.stderr)))
    }

    /// The sum of the kernel's error counters over all devices.
    pub fn device_errors(&self) -> Result<u64> {
        let out = run("btrfs", [OsStr::new("device"), "stats".as_ref(), self.path().as_os_str()])?;
        Ok(out.lines().filter_map(|l| l.split_whitespace().next_back()?.parse::<u64>().ok()).sum())
    }
}

impl Oracle {
    /// A directory in memory for images.
    pub fn scratch(&self) -> Result<Scratch> {
        Scratch::new()
    }

    /// `mkfs.btrfs` over the given files, all of them as one file system.
    pub fn mkfs<P: AsRef<Path>>(&self, args: &[&str], devices: &[P]) -> Result<()> {
        let mut all: Vec<OsString> = vec!["--quiet".into(), "--force".into()];
        all.extend(args.iter().map(OsString::from));
        if devices.len() < 2 {
            all.extend(devices.iter().map(|d| d.as_ref().as_os_str().to_owned()));
            return run("mkfs.btrfs", all).map(drop);
        }
        let loops = attach(devices, ReadOnly::No)?;
        all.extend(loops.iter().map(|l| l.path().as_os_str().to_owned()));
        run("mkfs.btrfs", all).map(drop)
    }

    /// Mounts the file system that lies on these files, with mount options (`""` for none); `noatime`, so that looking
    /// changes nothing.
    pub fn mount<P: AsRef<Path>>(&self, devices: &[P], options: &str) -> Result<Mounted> {
        self.mount_as("btrfs", devices, options)
    }

    /// The same for a file system of another kind, to be measured beside.
    pub fn mount_as<P: AsRef<Path>>(&self, kind: &str, devices: &[P], options: &str) -> Result<Mounted> {
        let loops = attach(devices, if options.split(',').any(|o| o == "ro") { ReadOnly::Yes } else { ReadOnly::No })?;
        let Some(first) = loops.first() else { bail!("nothing to mount") };
        let own = Scratch::new()?.dir;
        let mut all = String::from("noatime");
        if !options.is_empty() {
            all.push_str(&format!(",{options}"));
        }
        for other in loops.iter().filter(|_| loops.len() > 1) {
            all.push_str(&format!(",device={}", other.path().display()));
        }
        let mut args: Vec<&OsStr> = vec!["-t".as_ref(), kind.as_ref(), "-o".as_ref(), all.as_ref()];
        args.extend([first.path().as_os_str(), own.path().as_os_str()]);
        // Programs of other tests that search all block devices have one open for a moment. The kernel then says that it is
        // busy, or that there is no such file.
        let passes = |e: &anyhow::Error| {
            let text = format!("{e:#}");
            text.contains("busy") || text.contains("No such file")
        };
        let mut mounted = run("mount", &args);
        for _ in 0..BUSY_RETRIES_MAX {
            if !mounted.as_ref().is_err_and(passes) {
                break;
            }
            std::thread::sleep(BUSY_WAIT);
            mounted = run("mount", &args);
        }
        mounted.with_context(|| format!("the kernel does not mount it{}", kernel_says(first.path())))?;
        let dir = MountPoint { path: own.path().to_owned(), mounted: true };
        Ok(Mounted { dir, _loops: loops, _own: Some(own) })
    }

    /// `btrfs check --readonly` of an unmounted file system, data checksums included.
    pub fn check<P: AsRef<Path>>(&self, devices: &[P]) -> Result<Verdict> {
        let found = match devices {
            [] => bail!("nothing to check"),
            [one] if is_block_device(one.as_ref()) => check_alone(one.as_ref(), &[one.as_ref()]),
            [one] => check_alone(one.as_ref(), &[]),
            many => {
                let loops = attach(many, ReadOnly::Yes)?;
                let devices: Vec<&Path> = loops.iter().map(Loop::path).collect();
                check_alone(devices[0], &devices)
            }
        }?;
        Ok(if devices.iter().any(|device| has_parity(device.as_ref())) {
            found.but_for_rebuilt_mirrors()
        } else {
            found
        })
    }

    /// Mounts, scrubs, unmounts and checks: what every image that we have written must survive.
    ///
    /// # Panics
    /// With what the oracles found.
    pub fn must_be_sound<P: AsRef<Path>>(&self, devices: &[P], what: &str) -> Result<()> {
        let found = self.check(devices)?;
        assert!(found.is_clean(), "{what}: btrfs check: {found}");
        let mounted = self.mount(devices, "")?;
        // The mount itself may change something. A commit beside a scrub has the kernel report all superblocks as wrong.
        mounted.sync()?;
        let found = mounted.scrub()?;
        assert!(found.is_clean(), "{what}: scrub: {found}");
        mounted.unmount()
    }

    /// The same for a volume whose writer was killed. A kill between two writes of superblocks leaves copies of the commit before, and
    /// scrub counts each as an error until the next commit, which this makes.
    ///
    /// # Panics
    /// With what the oracles found.
    pub fn must_be_sound_after_a_kill<P: AsRef<Path>>(&self, devices: &[P], what: &str) -> Result<()> {
        let found = self.check(devices)?;
        assert!(found.is_clean(), "{what}: btrfs check: {found}");
        let mounted = self.mount(devices, "")?;
        File::open(mounted.path())?.set_modified(SystemTime::now())?;
        mounted.unmount()?;
        self.must_be_sound(devices, what)
    }
}

/// Whether a device is of a volume that may have chunks with parity.
fn has_parity(device: &Path) -> bool {
    read_super(device).is_some_and(|sb| sb.features().incompat.contains(Incompat::RAID56))
}

/// Reads the first superblock of a device or image; `None` if there is none.
fn read_super(device: &Path) -> Option<SuperBlock> {
    let mut bytes = vec![0; SUPER_LEN];
    File::open(device).ok()?.read_exact_at(&mut bytes, SUPER_OFFSETS[0]).ok()?;
    SuperBlock::read(&bytes).ok()
}

/// `btrfs check` of a file or device in a namespace without other block devices than those given. It searches all that
/// exist for others of the same file system and for mounts, and those of other tests disappear while it searches. The mounts of other tests,
/// which the namespace has copies of, leave it first, except one that has the file: a copy keeps a device busy after an unmount.
fn check_alone(what: &Path, devices: &[&Path]) -> Result<Verdict> {
    const ALONE: &str = r#"
        own=$1; devices=$2; what=$3; shift 3
        findmnt --list --noheadings --output TARGET --types btrfs,fuse,fuseblk,fuse.oleo,fuseblk.oleo | while read -r at; do
            case $what in "$at"/*) ;; *) umount --lazy "$at";; esac
        done 2>/dev/null
        mount -t tmpfs -o mode=755 none "$own" && mkdir "$own/shm" && mount --rbind /dev/shm "$own/shm" &&
        cp -a /dev/null $devices "$own" && mount --rbind "$own" /dev && exec "$@""#;
    let btrfs = find_tool("btrfs").context("btrfs is not installed")?;
    let own = Scratch::new()?;
    let devices = devices.iter().map(|d| d.as_os_str()).collect::<Vec<_>>().join(OsStr::new(" "));
    let args = ["--mount", "sh", "-c", ALONE, "sh"].map(OsStr::new).into_iter().chain([
        own.path().as_os_str(),
        &devices,
        what.as_os_str(),
        btrfs.as_os_str(),
    ]);
    let args = args.chain(["check", "--readonly", "--check-data-csum"].map(OsStr::new)).chain([what.as_os_str()]);
    let out = run_raw("unshare", args)?;
    Ok(Verdict::from_check(out.status.success(), &text(&out.stdout), &text(&out.stderr)))
}

fn is_block_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device())
}

fn attach<P: AsRef<Path>>(files: &[P], read_only: ReadOnly) -> Result<Vec<Loop>> {
    files.iter().map(|file| Loop::attach(file.as_ref(), read_only)).collect()
}

/// The kernel log's lines about a device, for a failure's message; empty if the log cannot be read.
fn kernel_says(device: &Path) -> String {
    let name = device.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let Ok(out) = run_raw("dmesg", [""; 0]) else { return String::new() };
    let all = text(&out.stdout);
    let lines: Vec<&str> = all.lines().filter(|l| l.contains(&name)).collect();
    let tail = lines.len().saturating_sub(8);
    lines[tail..].iter().map(|l| format!("\n  kernel: {l}")).collect()
}

#[cfg(test)]
mod tests;
