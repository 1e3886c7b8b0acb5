//! From mounting to unmounting: background and foreground, options, signals, ordinary users.
//!
//! Only Oleo's mount: the kernel's is no oracle here, but it verifies the images that are left.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use oleo_sim::oracle::{Loop, Oracle, ReadOnly, Scratch, oracle, run};
use oleo_sim::served::{Limits, Served};
use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use crate::mount::place::{Kind, OLEO, open, refused};
use crate::mount::sys::{Who, act_as};

/// An image with some content, made without mounting it.
struct Fixture {
    oracle: Oracle,
    scratch: Scratch,
    image: PathBuf,
}

impl Fixture {
    fn new() -> Option<Fixture> {
        let oracle = oracle()?;
        let scratch = oracle.scratch().unwrap();
        let image = scratch.path().join("image");
        run(OLEO, ["mkfs".as_ref(), "--quiet".as_ref(), "--size".as_ref(), "300M".as_ref(), image.as_os_str()])
            .unwrap();
        fs::write(scratch.path().join("file"), b"content").unwrap();
        let fixture = Fixture { oracle, scratch, image };
        fixture.oleo_ok(&["subvolume".as_ref(), "create".as_ref(), fixture.image.as_os_str(), "v".as_ref()]);
        for to in ["file", "v/inner"] {
            let from = fixture.scratch.path().join("file");
            fixture.oleo_ok(&["put".as_ref(), fixture.image.as_os_str(), from.as_os_str(), to.as_ref()]);
        }
        Some(fixture)
    }

    fn oleo(&self, args: &[&OsStr]) -> Output {
        Command::new(OLEO).args(args).output().unwrap()
    }

    #[track_caller]
    fn oleo_ok(&self, args: &[&OsStr]) -> String {
        let out = self.oleo(args);
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    fn serve(&self, options: &str) -> Served {
        Served::mount(Path::new(OLEO), &[&self.image], options, Limits::default()).unwrap()
    }

    /// The kernel finds the image sound and this file in it.
    fn must_hold(&self, name: &str, content: &[u8]) {
        Kind::Oleo.must_check_clean(self.oracle, &self.image, "after unmounting");
        let mounted = self.oracle.mount(&[&self.image], "").unwrap();
        assert_eq!(fs::read(mounted.path().join(name)).unwrap(), content);
        mounted.unmount().unwrap();
    }
}

fn is_mounted(dir: &Path) -> bool {
    let list = fs::read_to_string("/proc/self/mountinfo").unwrap();
    list.lines().any(|l| l.split(' ').nth(4) == dir.to_str())
}

/// Unmounts, whatever has become of the test.
struct Unmounted<'a>(&'a Path);

impl Drop for Unmounted<'_> {
    fn drop(&mut self) {
        if is_mounted(self.0) {
            let _ = run("umount", ["-l".as_ref(), self.0.as_os_str()]);
        }
    }
}

/// Goal: without `--foreground` the command returns when the mount is there, and `oleo unmount` when the image is complete.
#[test]
fn background() {
    let Some(fixture) = Fixture::new() else { return };
    let dir = fixture.scratch.dir("mnt").unwrap();
    fixture.oleo_ok(&["mount".as_ref(), fixture.image.as_os_str(), dir.as_os_str()]);
    let _guard = Unmounted(&dir);
    assert_eq!(fs::read(dir.join("file")).unwrap(), b"content");
    fs::write(dir.join("new"), [7; 100_000]).unwrap();
    fixture.oleo_ok(&["unmount".as_ref(), dir.as_os_str()]);
    assert!(!is_mounted(&dir));
    fixture.must_hold("new", &[7; 100_000]);
}

/// Goal: SIGTERM unmounts, completes the image and ends well.
#[test]
fn sigterm() {
    let Some(fixture) = Fixture::new() else { return };
    let served = fixture.serve("");
    fs::write(served.path().join("new"), b"written").unwrap();
    served.terminate().unwrap();
    fixture.must_hold("new", b"written");
}

/// Goal: whoever may rename what is above a mount does not make its server unmount what others have mounted. Method: a directory
/// above the mount gets another name, and another file system comes to where the mount was; then the server is asked to end.
#[test]
fn moved_by_what_is_above() {
    let Some(fixture) = Fixture::new() else { return };
    let served = fixture.serve("");
    fs::write(served.path().join("new"), b"written").unwrap();
    let (dir, above) = (served.path().to_owned(), served.path().parent().unwrap().to_owned());
    let aside = above.with_extension("aside");
    fs::rename(&above, &aside).unwrap();
    fs::create_dir_all(&dir).unwrap();
    run("mount", ["-t".as_ref(), "tmpfs".as_ref(), "others".as_ref(), dir.as_os_str()]).unwrap();
    let guard = Unmounted(&dir);
    let pid = rustix::process::Pid::from_raw(served.pid().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let start = Instant::now();
    while is_mounted(&aside.join("mnt")) {
        assert!(is_mounted(&dir), "the server has unmounted what is not its own");
        assert!(start.elapsed() < Duration::from_secs(60), "it does not end: {}", served.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(is_mounted(&dir), "the server has unmounted what is not its own");
    run("umount", [dir.as_os_str()]).unwrap();
    drop(guard);
    fs::remove_dir_all(&above).unwrap();
    fs::rename(&aside, &above).unwrap();
    served.terminate().unwrap();
    fixture.must_hold("new", b"written");
}

/// Goal: after a plain umount the server completes the image and ends.
#[test]
fn plain_umount() {
    let Some(fixture) = Fixture::new() else { return };
    let dir = fixture.scratch.dir("mnt").unwrap();
    let mut server = Command::new(OLEO)
        .args([
            OsStr::new("mount"),
            "--quiet".as_ref(),
            "--foreground".as_ref(),
            fixture.image.as_os_str(),
            dir.as_os_str(),
        ])
        .spawn()
        .unwrap();
    let _guard = Unmounted(&dir);
    let wait = |what: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !what() && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    wait(&|| is_mounted(&dir));
    fs::write(dir.join("new"), b"written").unwrap();
    run("umount", [&dir]).unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = server.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > Duration::from_secs(60) {
            server.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(status.success(), "{status}");
    fixture.must_hold("new", b"written");
}

/// Goal: a read-only mount refuses every change and leaves not a byte changed.
#[test]
fn read_only() {
    let Some(fixture) = Fixture::new() else { return };
    let before = run("sha256sum", [&fixture.image]).unwrap();
    let served = fixture.serve("ro");
    let at = |name: &str| served.path().join(name);
    assert_eq!(fs::read(at("v/inner")).unwrap(), b"content");
    refused(open(&at("new"), OFlags::CREATE | OFlags::WRONLY), Errno::ROFS);
    refused(open(&at("file"), OFlags::WRONLY), Errno::ROFS);
    refused(rustix::fs::unlink(at("file")), Errno::ROFS);
    refused(rustix::fs::mkdir(at("d"), Mode::from_raw_mode(0o755)), Errno::ROFS);
    refused(rustix::fs::rename(at("file"), at("g")), Errno::ROFS);
    refused(rustix::fs::chmod(at("file"), Mode::from_raw_mode(0o600)), Errno::ROFS);
    fs::File::open(at("file")).unwrap().sync_all().unwrap();
    served.unmount().unwrap();
    assert_eq!(run("sha256sum", [&fixture.image]).unwrap(), before);
}

/// Goal: `subvol=` and `subvolid=` show one subvolume as the root.
#[test]
fn subvolume_as_root() {
    let Some(fixture) = Fixture::new() else { return };
    for option in ["subvol=v", "subvol=/v", "subvolid=256"] {
        let served = fixture.serve(option);
        assert_eq!(fs::read(served.path().join("inner")).unwrap(), b"content", "{option}");
        assert!(!served.path().join("file").exists());
        let meta = fs::metadata(served.path()).unwrap();
        assert!(meta.is_dir() && meta.nlink() == 1);
        fs::write(served.path().join("by-option"), option).unwrap();
        served.unmount().unwrap();
    }
    fixture.must_hold("v/by-option", b"subvolid=256");
}

/// Goal: what is not understood is refused with its name, and nothing is mounted.
#[test]
fn refusals() {
    let Some(fixture) = Fixture::new() else { return };
    let dir = fixture.scratch.dir("mnt").unwrap();
    let _guard = Unmounted(&dir);
    let named = [("nonsense", "nonsense"), ("commit=often", "often"), ("compress=rar", "rar"), ("ro,size=5", "size")];
    for (option, word) in named.into_iter().chain([("subvol=none", "none"), ("subvolid=77", "77")]) {
        let out = fixture.oleo(&[
            "mount".as_ref(),
            "-o".as_ref(),
            option.as_ref(),
            fixture.image.as_os_str(),
            dir.as_os_str(),
        ]);
        let errors = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && !is_mounted(&dir), "{option}: {errors}");
        assert!(errors.contains(word), "{option}: {errors}");
    }
    let missing = fixture.scratch.path().join("missing");
    assert!(!fixture.oleo(&["mount".as_ref(), fixture.image.as_os_str(), missing.as_os_str()]).status.success());
    assert!(!fixture.oleo(&["mount".as_ref(), missing.as_os_str(), dir.as_os_str()]).status.success());
    assert!(!fixture.oleo(&["unmount".as_ref(), dir.as_os_str()]).status.success());
}

/// Goal: nobody opens for writing what is mounted.
#[test]
fn not_twice() {
    let Some(fixture) = Fixture::new() else { return };
    let dir = fixture.scratch.dir("second").unwrap();
    let _guard = Unmounted(&dir);
    let served = fixture.serve("");
    assert!(!fixture.oleo(&["mount".as_ref(), fixture.image.as_os_str(), dir.as_os_str()]).status.success());
    assert!(!is_mounted(&dir));
    assert!(!fixture.oleo(&["mkdir".as_ref(), fixture.image.as_os_str(), "d".as_ref()]).status.success());
    fs::write(served.path().join("new"), b"written").unwrap();
    served.unmount().unwrap();
    fixture.must_hold("new", b"written");
}

/// Goal: called as mount(8) calls its helpers, it mounts: device, directory, options behind them.
#[test]
fn as_a_helper() {
    let Some(fixture) = Fixture::new() else { return };
    let dir = fixture.scratch.dir("mnt").unwrap();
    let _guard = Unmounted(&dir);
    for name in ["mount.oleo", "mount.fuse.oleo"] {
        let helper = fixture.scratch.path().join(name);
        std::os::unix::fs::symlink(OLEO, &helper).unwrap();
        let out = Command::new(&helper)
            .args([fixture.image.as_os_str(), dir.as_os_str(), "-o".as_ref(), "rw,noatime,nosuid".as_ref()])
            .output()
            .unwrap();
        assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
        assert_eq!(fs::read(dir.join("file")).unwrap(), b"content");
        let shown =
            run("findmnt", ["-no".as_ref(), "SOURCE,OPTIONS".as_ref(), "-M".as_ref(), dir.as_os_str()]).unwrap();
        assert!(shown.starts_with("/dev/loop") && shown.contains("nosuid"), "{shown}");
        fixture.oleo_ok(&["unmount".as_ref(), dir.as_os_str()]);
    }
}

/// Goal: without fsync, what was done is on disk after the time between commits.
#[test]
fn commits_by_the_clock() {
    let Some(fixture) = Fixture::new() else { return };
    let mut served = fixture.serve("commit=1");
    fs::write(served.path().join("new"), [3; 50_000]).unwrap();
    std::thread::sleep(Duration::from_millis(3500));
    served.kill().unwrap();
    drop(served);
    fixture.must_hold("new", &[3; 50_000]);
}

/// The device of FUSE, open to all as most systems have it; as it was, afterwards.
pub struct OpenToAll {
    before: u32,
    /// Locked: one test at a time, or one would close what another needs. Tests are processes of their own.
    _one: fs::File,
}

impl OpenToAll {
    const DEVICE: &'static str = "/dev/fuse";

    pub fn new() -> OpenToAll {
        let one = fs::File::open(OpenToAll::DEVICE).unwrap();
        one.lock().unwrap();
        let before = fs::metadata(OpenToAll::DEVICE).unwrap().mode();
        rustix::fs::chmod(OpenToAll::DEVICE, Mode::from_raw_mode(0o666)).unwrap();
        OpenToAll { before, _one: one }
    }
}

impl Drop for OpenToAll {
    fn drop(&mut self) {
        let _ = rustix::fs::chmod(OpenToAll::DEVICE, Mode::from_raw_mode(self.before & 0o7777));
    }
}

const NOBODY: Who<'static> = Who { uid: 65_534, gid: 65_534, groups: &[] };

/// The command as an ordinary user, with a directory of that user's.
struct AsNobody {
    program: PathBuf,
    home: PathBuf,
    _device: OpenToAll,
}

impl AsNobody {
    fn new(scratch: &Scratch) -> AsNobody {
        let _device = OpenToAll::new();
        let top = scratch.path();
        rustix::fs::chmod(top, Mode::from_raw_mode(0o755)).unwrap();
        // The program may lie where this user cannot go.
        let program = top.join("oleo");
        oleo_sim::oracle::copy_program(Path::new(OLEO), &program).unwrap();
        rustix::fs::chmod(&program, Mode::from_raw_mode(0o755)).unwrap();
        let nobody = AsNobody { program, home: scratch.dir("home").unwrap(), _device };
        nobody.give(&nobody.home);
        nobody
    }

    fn give(&self, path: &Path) {
        rustix::fs::chown(path, Some(Uid::from_raw(NOBODY.uid)), Some(Gid::from_raw(NOBODY.gid))).unwrap();
    }

    /// A directory to mount on.
    fn dir(&self) -> PathBuf {
        let dir = self.home.join("mnt");
        fs::create_dir(&dir).unwrap();
        self.give(&dir);
        dir
    }

    /// Any program.
    fn command(&self, program: &OsStr) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(program);
        command
    }

    fn run(&self, args: &[&OsStr]) -> Output {
        self.command(self.program.as_os_str()).args(args).output().unwrap()
    }

    #[track_caller]
    fn ok(&self, args: &[&OsStr]) {
        let out = self.run(args);
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    }

    /// Unmounting is refused; returns the complaint.
    #[track_caller]
    fn cannot_unmount(&self, dir: &Path) -> String {
        let out = self.run(&["unmount".as_ref(), dir.as_os_str()]);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(1), "{said}");
        said
    }
}

/// Goal: a user without privileges can mount an image of his, and nobody else gets in.
#[test]
fn as_an_ordinary_user() {
    let Some(fixture) = Fixture::new() else { return };
    let nobody = AsNobody::new(&fixture.scratch);
    let dir = nobody.dir();
    let _guard = Unmounted(&dir);
    nobody.give(&fixture.image);
    nobody.ok(&["mount".as_ref(), fixture.image.as_os_str(), dir.as_os_str()]);
    act_as(NOBODY, || {
        assert_eq!(fs::read(dir.join("file")).unwrap(), b"content");
        // The top belongs to root in the image: what cannot be done there cannot be done here.
        refused(open(&dir.join("new"), OFlags::CREATE | OFlags::WRONLY), Errno::ACCESS);
    });
    refused(act_as(crate::mount::sys::ALICE, || rustix::fs::stat(dir.join("file"))), Errno::ACCESS);
    nobody.ok(&["unmount".as_ref(), dir.as_os_str()]);
    assert!(!is_mounted(&dir));
    fixture.must_hold("file", b"content");
}

/// Goal: an image that an ordinary user makes is that user's to write to, and is committed every five seconds: such a mount is passed no
/// sync(2). A busy mount is not unmounted, and neither is what is not mounted: exit code 1. Method: the generation in the superblock,
/// within less than the 30 s of other mounts; a program in the mount.
#[test]
fn an_image_of_an_ordinary_user() {
    let Some(fixture) = Fixture::new() else { return };
    let nobody = AsNobody::new(&fixture.scratch);
    let dir = nobody.dir();
    let image = nobody.home.join("image");
    let _guard = Unmounted(&dir);
    nobody.ok(&["mkfs".as_ref(), "--size".as_ref(), "300M".as_ref(), image.as_os_str()]);
    nobody.ok(&["mount".as_ref(), image.as_os_str(), dir.as_os_str()]);
    let generation = || {
        let mut bytes = [0; 8];
        std::os::unix::fs::FileExt::read_exact_at(&fs::File::open(&image).unwrap(), &mut bytes, 0x1_0048).unwrap();
        u64::from_le_bytes(bytes)
    };
    nobody.ok(&["filesystem".as_ref(), "sync".as_ref(), dir.as_os_str()]);
    let (before, start) = (generation(), Instant::now());
    act_as(NOBODY, || fs::write(dir.join("file"), b"content").unwrap());
    while generation() == before {
        assert!(start.elapsed() < Duration::from_secs(60), "no commit");
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut user = nobody.command("sh".as_ref());
    let mut user = user.args(["-c", "cd \"$1\" && exec sleep 60", "sh"]).arg(&dir).spawn().unwrap();
    let cwd = PathBuf::from(format!("/proc/{}/cwd", user.id()));
    while fs::read_link(&cwd).unwrap() != dir {
        assert!(start.elapsed() < Duration::from_secs(60) && user.try_wait().unwrap().is_none(), "it is not there");
        std::thread::sleep(Duration::from_millis(10));
    }
    let said = nobody.cannot_unmount(&dir);
    user.kill().unwrap();
    user.wait().unwrap();
    assert!(said.contains(&format!("(process {})", user.id())), "{said}");
    nobody.ok(&["unmount".as_ref(), dir.as_os_str()]);
    assert!(nobody.cannot_unmount(&dir).contains("nothing is mounted"));
    let mounted = fixture.oracle.mount(&[&image], "ro").unwrap();
    assert_eq!(fs::read(mounted.path().join("file")).unwrap(), b"content");
    assert_eq!(fs::metadata(mounted.path().join("file")).unwrap().uid(), NOBODY.uid);
    mounted.unmount().unwrap();
}

/// Goal: right after umount(8) the device or image can be opened, and mounted again: who opens it waits for the server that is
/// ending. A server that serves a mount is named in the error. Method: an image and a loop device, several rounds.
#[test]
fn again_at_once() {
    let Some(fixture) = Fixture::new() else { return };
    let dir = fixture.scratch.dir("mnt").unwrap();
    let _guard = Unmounted(&dir);
    let device = Loop::attach(&fixture.image, ReadOnly::No).unwrap();
    for place in [fixture.image.as_path(), device.path()] {
        for round in 0..4u8 {
            fixture.oleo_ok(&["mount".as_ref(), place.as_os_str(), dir.as_os_str()]);
            fs::write(dir.join("new"), vec![round; 3 << 20]).unwrap();
            let out = fixture.oleo(&["check".as_ref(), place.as_os_str()]);
            let said = String::from_utf8_lossy(&out.stderr);
            assert!(!out.status.success() && said.contains("served to the mount at"), "{said}");
            run("umount", [&dir]).unwrap();
            fixture.oleo_ok(&["check".as_ref(), place.as_os_str()]);
            fixture.oleo_ok(&["mount".as_ref(), place.as_os_str(), dir.as_os_str()]);
            run("umount", [&dir]).unwrap();
            fixture.oleo_ok(&["mount".as_ref(), place.as_os_str(), dir.as_os_str()]);
            assert_eq!(fs::read(dir.join("new")).unwrap(), vec![round; 3 << 20]);
            fixture.oleo_ok(&["unmount".as_ref(), dir.as_os_str()]);
        }
    }
    drop(device);
    fixture.must_hold("file", b"content");
}

/// Goal: a device is waited for that the kernel has not let go of yet, since the mount before is just ending; not for long.
/// Method: a loop device held here in the kernel's place, for a moment, and for good.
#[test]
fn held_a_moment_longer() {
    let Some(fixture) = Fixture::new() else { return };
    let dir = fixture.scratch.dir("mnt").unwrap();
    let _guard = Unmounted(&dir);
    let device = Loop::attach(&fixture.image, ReadOnly::No).unwrap();
    let mount = ["mount".as_ref(), device.path().as_os_str(), dir.as_os_str()];
    let hold =
        || rustix::fs::open(device.path(), OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let held = hold();
    std::thread::scope(|threads| {
        threads.spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            drop(held);
        });
        fixture.oleo_ok(&mount);
    });
    fixture.oleo_ok(&["unmount".as_ref(), dir.as_os_str()]);
    let held = hold();
    let out = fixture.oleo(&mount);
    assert!(
        !out.status.success() && String::from_utf8_lossy(&out.stderr).contains("the kernel holds it exclusively"),
        "{out:?}"
    );
    drop(held);
    drop(device);
    fixture.must_hold("file", b"content");
}

/// Goal: the kernel knows about as many inodes as `nodes=` says, however many were looked at; what is open stays, and what was
/// forgotten is found again. Method: many files, listed, looked at and read, some held open; the count as `filesystem stats` has it.
#[test]
fn nodes_are_bounded() {
    const FILES: usize = 6000;
    const MAX: u64 = 500;
    let Some(fixture) = Fixture::new() else { return };
    let served = fixture.serve(&format!("nodes={MAX},cache=8M"));
    let name = |n: usize| served.path().join(format!("d{}/f{n}", n % 7));
    (0..7).for_each(|n| fs::create_dir(served.path().join(format!("d{n}"))).unwrap());
    (0..FILES).for_each(|n| fs::write(name(n), n.to_string()).unwrap());
    let held: Vec<fs::File> = (0..100).map(|n| fs::File::open(name(n)).unwrap()).collect();
    fs::remove_file(name(3)).unwrap();
    let known = || {
        let out = fixture.oleo_ok(&["filesystem".as_ref(), "stats".as_ref(), served.path().as_os_str()]);
        let line = out.lines().find(|line| line.starts_with("inodes known")).unwrap().to_owned();
        line.split(' ').next_back().unwrap().parse::<u64>().unwrap()
    };
    for round in 0..3 {
        for n in 0..7 {
            for entry in fs::read_dir(served.path().join(format!("d{n}"))).unwrap() {
                assert!(entry.unwrap().metadata().unwrap().is_file());
            }
        }
        let start = Instant::now();
        while known() > MAX {
            assert!(start.elapsed() < Duration::from_secs(30), "round {round}: {}", known());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    for (n, file) in held.iter().enumerate() {
        assert_eq!(std::io::read_to_string(file).unwrap(), n.to_string());
    }
    (0..FILES).filter(|n| *n != 3).for_each(|n| assert_eq!(fs::read_to_string(name(n)).unwrap(), n.to_string()));
    drop(held);
    served.unmount().unwrap();
    fixture.must_hold("d6/f6", b"6");
}

/// Goal: threads of the server that come and go leave nothing behind, so that a mount serves for months. Requests that take
/// long, many at a time and then none, make it start threads and end them; what it has mapped must not grow with that.
#[test]
fn threads_that_end_leave_nothing_behind() {
    const WORKERS: usize = 12;
    let Some(fixture) = Fixture::new() else { return };
    let served = fixture.serve("io_uring=off");
    let mappings = || fs::read_to_string(format!("/proc/{}/maps", served.pid())).unwrap().lines().count();
    let work = |rounds: usize| {
        let (dir, begin) = (served.path(), std::sync::Barrier::new(WORKERS));
        std::thread::scope(|threads| {
            for worker in 0..WORKERS {
                let begin = &begin;
                threads.spawn(move || {
                    for _ in 0..rounds {
                        begin.wait();
                        let file = fs::File::create(dir.join(format!("w{worker}"))).unwrap();
                        file.sync_all().unwrap();
                    }
                });
            }
        });
    };
    work(20);
    let before = mappings();
    work(400);
    let after = mappings();
    // Two for each thread that there may be at a time, and what the allocator takes.
    assert!(after < before + 200, "{before} mappings, and {after} after more of the same");
    served.unmount().unwrap();
}
