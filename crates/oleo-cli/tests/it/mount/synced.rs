//! sync(2) and syncfs(2) on mounts of image files, which the kernel passes on to servers of block devices only: a loop device
//! is the source of such a mount.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use oleo_sim::oracle::{Loop, ReadOnly, oracle, run};
use oleo_sim::served::{Limits, Served};
use rustix::fs::OFlags;
use rustix::mm::MapFlags;
use rustix::process::{Pid, Signal, kill_process};

use crate::mount::place::{OLEO, open};
use crate::mount::sys::Map;

/// How long something may take that needs no waiting.
const PATIENCE: Duration = Duration::from_secs(60);

fn mkfs(args: &[&OsStr]) {
    let all = ["mkfs", "--quiet", "--size", "256M"].map(OsStr::new);
    run(OLEO, all.iter().chain(args)).unwrap();
}

fn serve(images: &[&OsStr], options: &str) -> Served {
    Served::mount(Path::new(OLEO), images, options, Limits::default()).unwrap()
}

/// Type and source of a mount.
fn shown(dir: &Path) -> String {
    run("findmnt", ["-no".as_ref(), "FSTYPE,SOURCE".as_ref(), "-M".as_ref(), dir.as_os_str()]).unwrap()
}

/// The loop devices that a file is attached to. Below one that was attached in a mount namespace that has ended, the kernel shows the
/// path without where its file system was mounted.
fn loops(file: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir("/sys/block").unwrap().map(|entry| entry.unwrap().path());
    let backing = |device: &Path| fs::read_to_string(device.join("loop/backing_file"));
    let is_it = |path: String| file.ends_with(path.trim_end().trim_start_matches('/'));
    all.filter(|device| backing(device).is_ok_and(is_it)).collect()
}

#[track_caller]
fn soon(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what}: not after {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Goal: data that was written before sync(2) or syncfs(2) returned is there after the server was killed; a user of the dead mount
/// does not prevent a new one, and no loop device stays behind. Method: a file that is open and mapped, a sync, SIGKILL, a new mount,
/// for an image of one file, of two, at an offset, and with the kernel's write-back cache.
#[test]
fn synced_images_survive_their_server() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let at = |name: &str| fs::canonicalize(scratch.path()).unwrap().join(name);
    let (one, first, second, inside) = (at("one"), at("first"), at("second"), at("inside"));
    mkfs(&[one.as_ref()]);
    mkfs(&["-d".as_ref(), "raid1".as_ref(), first.as_ref(), second.as_ref()]);
    mkfs(&["--offset".as_ref(), "1048576".as_ref(), inside.as_ref()]);
    let offset = ["--offset", "1048576"].map(OsStr::new);
    let volumes: [(&Path, &[&OsStr], &str); 4] = [
        (&one, &[one.as_ref()], "commit=300"),
        (&first, &[first.as_ref(), second.as_ref()], "commit=300"),
        (&inside, &[offset[0], offset[1], inside.as_ref()], "commit=300"),
        (&one, &[one.as_ref()], "commit=300,writeback_cache"),
    ];
    for (n, (image, places, options)) in volumes.into_iter().enumerate() {
        let mut served = serve(places, options);
        assert!(shown(served.path()).starts_with("fuseblk.oleo /dev/loop"), "{}", shown(served.path()));
        assert_eq!(loops(image).len(), 1);
        let dir = format!("d{n}");
        fs::create_dir(served.path().join(&dir)).unwrap();
        let file = open(&served.path().join(&dir).join("f"), OFlags::CREATE | OFlags::RDWR).unwrap();
        rustix::io::pwrite(&file, &[n as u8; 100_000], 0).unwrap();
        let map = Map::new(&file, 0, 100_000, MapFlags::SHARED).unwrap();
        map.write(50_000, b"mapped");
        let user = File::open(served.path().join(&dir)).unwrap();
        match n {
            0 => rustix::fs::sync(),
            _ => rustix::fs::syncfs(&user).unwrap(),
        }
        served.kill().unwrap();
        drop(served);
        let again = serve(places, "commit=300");
        let mut found = fs::read(again.path().join(&dir).join("f")).unwrap();
        assert_eq!(&found[50_000..50_006], b"mapped", "{} {options}", image.display());
        found[50_000..50_006].fill(n as u8);
        assert_eq!(found, [n as u8; 100_000], "{} {options}", image.display());
        again.unmount().unwrap();
        drop((user, map, file));
        soon("the loop devices are gone", || loops(image).is_empty());
    }
    let found = oracle.check(&[&one]).unwrap();
    assert!(found.is_clean(), "{found}");
}

/// Goal: an image is mounted without a loop device where there are none, if it cannot be changed, and if its source is to have
/// another name. Method: a namespace in which loop-control is another device; `ro`; `fsname=`.
#[test]
fn without_a_loop_device() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let (image, dir) = (scratch.path().join("image"), scratch.dir("m").unwrap());
    mkfs(&[image.as_ref()]);
    const SCRIPT: &str = r#"mount --bind /dev/null /dev/loop-control && "$0" mount "$1" "$2" && findmnt -no FSTYPE,SOURCE -M "$2" &&
        echo written > "$2/f" && "$0" unmount --quiet "$2""#;
    let script = ["-m", "sh", "-c", SCRIPT].map(OsStr::new);
    let out = run("unshare", script.into_iter().chain([OLEO.as_ref(), image.as_ref(), dir.as_ref()])).unwrap();
    let source = image.to_str().unwrap();
    assert_eq!(out.split_whitespace().collect::<Vec<_>>(), ["fuse.oleo", source]);
    for (options, source) in [("ro", source), ("fsname=name", "name")] {
        let served = serve(&[image.as_ref()], options);
        assert_eq!(shown(served.path()).split_whitespace().collect::<Vec<_>>(), ["fuse.oleo", source]);
        assert_eq!(fs::read(served.path().join("f")).unwrap(), b"written\n");
        assert!(loops(&image).is_empty());
        served.unmount().unwrap();
    }
}

/// Goal: with a container that is killed its mount and the loop device end: no thread waits for a dead server's answer, which no signal
/// could end. Method: a mount in namespaces of its own, for an image and for a loop device; SIGKILL to their first process.
#[test]
fn a_killed_container_leaves_no_mount() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let image = fs::canonicalize(scratch.path()).unwrap().join("image");
    let dir = scratch.dir("m").unwrap();
    mkfs(&[image.as_ref()]);
    const SCRIPT: &str =
        r#""$0" mount --quiet "$1" "$2" && echo written > "$2/f" && findmnt -no FSTYPE -M "$2" && exec sleep 1000"#;
    for is_device in [false, true] {
        let device = is_device.then(|| Loop::attach(&image, ReadOnly::No).unwrap());
        let source = device.as_ref().map_or(image.as_path(), |device| device.path());
        let namespaces =
            ["-m", "-p", "-f", "--mount-proc", "--propagation", "private", "--kill-child", "sh", "-c", SCRIPT];
        let mut container = Command::new("unshare")
            .args(namespaces)
            .args([OLEO.as_ref(), source.as_os_str(), dir.as_os_str()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut kind = String::new();
        BufReader::new(container.stdout.take().unwrap()).read_line(&mut kind).unwrap();
        assert_eq!(kind.trim_end(), "fuseblk.oleo");
        container.kill().unwrap();
        container.wait().unwrap();
        drop(device);
        let begun = Instant::now();
        while !loops(&image).is_empty() && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
        let left = loops(&image);
        left.iter().for_each(|device| abort(&scratch.dir("control").unwrap(), device));
        assert!(left.is_empty(), "still held after {PATIENCE:?}: {left:?}");
        let served = serve(&[image.as_ref()], "noatime");
        served.unmount().unwrap();
    }
}

/// Ends the connection of a mount, so that a failed test leaves nothing that waits. `dir` is for the kernel's list of connections.
fn abort(dir: &Path, device: &Path) {
    let number = fs::read_to_string(device.join("dev")).unwrap();
    let (major, minor) = number.trim_end().split_once(':').unwrap();
    let connection = (major.parse::<u64>().unwrap() << 20) + minor.parse::<u64>().unwrap();
    run("mount", ["-t".as_ref(), "fusectl".as_ref(), "none".as_ref(), dir.as_os_str()]).unwrap();
    let _ = fs::write(dir.join(connection.to_string()).join("abort"), "1");
    run("umount", [dir]).unwrap();
}

/// A server that does not run until the guard is gone.
struct Stopped(Pid);

impl Stopped {
    fn new(served: &Served) -> Stopped {
        let pid = Pid::from_raw(served.pid().cast_signed()).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Goal: `oleo unmount --force` takes a mount away although the file system below the image does not answer, and waits for the server
/// in a way that can be interrupted; the server ends when it can write. Method: an image on another mount, whose server is stopped;
/// the command is killed meanwhile.
#[test]
fn forced_beside_a_device_that_does_not_answer() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let below_image = scratch.path().join("below");
    mkfs(&[below_image.as_ref()]);
    let below = serve(&[below_image.as_ref()], "");
    let image = below.path().join("image");
    mkfs(&[image.as_ref()]);
    let served = serve(&[image.as_ref()], "commit=300");
    fs::write(served.path().join("f"), [1; 100_000]).unwrap();
    let is_mounted = || fs::read_to_string("/proc/self/mountinfo").unwrap().contains(served.path().to_str().unwrap());
    let stopped = Stopped::new(&below);
    let mut command = Command::new(OLEO);
    command.args(["unmount", "--force"]).arg(served.path()).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    let in_time = |is_so: &mut dyn FnMut() -> bool| {
        let start = Instant::now();
        while !is_so() && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
        is_so()
    };
    let gone = in_time(&mut || !is_mounted());
    // It is in umount(2), or waits at the control socket.
    std::thread::sleep(Duration::from_millis(200));
    let waits = child.try_wait().unwrap().is_none();
    child.kill().unwrap();
    let ended = in_time(&mut || child.try_wait().unwrap().is_some());
    drop(stopped);
    assert!(gone && waits && ended, "taken away: {gone}, waited for the server: {waits}, could be killed: {ended}");
    served.terminate().unwrap();
    let again = serve(&[image.as_ref()], "");
    assert_eq!(fs::read(again.path().join("f")).unwrap(), [1; 100_000]);
    again.unmount().unwrap();
    below.unmount().unwrap();
}
