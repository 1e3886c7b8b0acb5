//! A mount whose requests come through io_uring.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use oleo_fuse::{MountError, MountOptions, Mounted, Plan, Stopper, Uring, detach};
use oleo_sim::oracle::skip;

/// The switch that root sets.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// How long a mount may take to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// The switch in a position, and back in the old one when dropped.
pub struct Switch {
    before: String,
    /// Locked: the switch is one for the whole machine, so tests that need it take turns. They are processes of their own.
    _turn: fs::File,
}

impl Switch {
    /// `None`, with the reason printed, if it cannot be moved.
    pub fn to(position: &str) -> Option<Switch> {
        if !rustix::process::geteuid().is_root() {
            skip("only root switches FUSE over io_uring");
            return None;
        }
        // The module may not be loaded before its device is opened.
        let turn = fs::File::open("/dev/fuse").unwrap();
        turn.lock().unwrap();
        let Ok(before) = fs::read_to_string(SWITCH) else {
            skip(&format!("this kernel has no FUSE over io_uring ({SWITCH})"));
            return None;
        };
        fs::write(SWITCH, position).unwrap();
        Some(Switch { before, _turn: turn })
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        fs::write(SWITCH, self.before.trim()).unwrap();
    }
}

/// A mount of a new image, served by threads of this process.
struct Served {
    dir: PathBuf,
    image: PathBuf,
    stopper: Stopper,
    thread: JoinHandle<Result<(), MountError>>,
    held: Held,
}

/// What goes when a test is over: the loop device first.
struct Held {
    _device: Option<Loop>,
    _scratch: tempfile::TempDir,
}

/// An image as a block device.
struct Loop(PathBuf);

impl Loop {
    fn of(image: &Path) -> Loop {
        let out = Command::new("losetup").args(["--find", "--show"]).arg(image).output().unwrap();
        assert!(out.status.success(), "{out:?}");
        Loop(PathBuf::from(String::from_utf8(out.stdout).unwrap().trim()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let done = Command::new("losetup").arg("--detach").arg(&self.0).status();
        assert!(done.is_ok_and(|status| status.success()), "{} is in use", self.0.display());
    }
}

/// `block`: the image as a block device, whose end the kernel reports to the server by a request.
fn mount(block: bool) -> Result<Served, MountError> {
    let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
    let (image, dir) = (scratch.path().join("image"), scratch.path().join("mnt"));
    fs::create_dir(&dir).unwrap();
    let mut options = oleo::mkfs::BuildOptions::default().size(Some(512 << 20));
    options.mkfs.seed = oleo::mkfs::random_seed();
    oleo::mkfs::build(&[&image], options).unwrap();
    let options = MountOptions { uring: Uring::On, ..MountOptions::default() };
    let log = Arc::new(|line: &str| eprintln!("{line}"));
    let device = block.then(|| Loop::of(&image));
    let images = vec![device.as_ref().map_or_else(|| image.clone(), |device| device.0.clone())];
    let mounted = Mounted::new(Plan { images, scan: Vec::new(), offset: 0, dir: dir.clone(), options, log })?;
    let stopper = mounted.stopper();
    let thread = std::thread::spawn(move || mounted.serve());
    Ok(Served { dir, image, stopper, thread, held: Held { _device: device, _scratch: scratch } })
}

impl Served {
    /// Waits for the end.
    fn ended(self) -> (Result<(), MountError>, PathBuf, Held) {
        let begun = Instant::now();
        while !self.thread.is_finished() {
            assert!(begun.elapsed() < PATIENCE, "it does not end; threads: {:?}", threads());
            std::thread::sleep(Duration::from_millis(5));
        }
        (self.thread.join().unwrap(), self.image, self.held)
    }
}

/// The names of this process's threads that serve. The kernel's list may leave out a thread while another ends, so it counts
/// when it was the same twice.
fn threads() -> Vec<String> {
    let mut before = listed();
    loop {
        let now = listed();
        if now == before {
            return now;
        }
        before = now;
    }
}

/// The same, in one look.
fn listed() -> Vec<String> {
    let names = fs::read_dir("/proc/self/task").unwrap();
    let names = names.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    let mut names: Vec<String> = names.map(|name| name.trim().to_owned()).filter(|n| n.starts_with("fuse-")).collect();
    names.sort();
    names
}

/// Fails if serving threads are left, except `left`: the engine's pool of threads may have been started by one of ours,
/// and has its name then. A joined thread is still listed for a moment.
fn at_most(left: usize) {
    let begun = Instant::now();
    while threads().len() > left {
        assert!(begun.elapsed() < PATIENCE, "more than {left}: {:?}", threads());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The same for the threads at the rings, of which none may be left.
fn rings_are_gone() {
    let begun = Instant::now();
    while threads().iter().any(|name| name.starts_with("fuse-ring")) {
        assert!(begun.elapsed() < PATIENCE, "{:?}", threads());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What a user does: files by the hundred, from several threads; large ones; all kinds of calls.
fn use_it(dir: &Path, files: usize) {
    std::thread::scope(|scope| {
        for worker in 0..4 {
            scope.spawn(move || {
                let dir = dir.join(format!("worker-{worker}"));
                fs::create_dir(&dir).unwrap();
                for n in 0..files {
                    fs::write(dir.join(format!("file-{n}")), format!("{worker} {n}")).unwrap();
                }
                let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
                let mut large = fs::File::create(dir.join("large")).unwrap();
                large.write_all(&bytes).unwrap();
                large.sync_all().unwrap();
                rustix::fs::fsetxattr(&large, "user.long", &[7; 5000], rustix::fs::XattrFlags::empty()).unwrap();
                let mut value = vec![0; 6000];
                assert_eq!(rustix::fs::fgetxattr(&large, "user.long", &mut value[..]).unwrap(), 5000);
                rustix::fs::fadvise(&large, 0, None, rustix::fs::Advice::DontNeed).unwrap();
                let mut back = Vec::new();
                fs::File::open(dir.join("large")).unwrap().read_to_end(&mut back).unwrap();
                assert!(back == bytes, "what was written is read");
                fs::copy(dir.join("large"), dir.join("copy")).unwrap();
                assert!(fs::read(dir.join("copy")).unwrap() == bytes);
                fs::rename(dir.join("copy"), dir.join("renamed")).unwrap();
                large.set_len(1000).unwrap();
                assert_eq!(fs::metadata(dir.join("large")).unwrap().size(), 1000);
                std::os::unix::fs::symlink("large", dir.join("link")).unwrap();
                assert_eq!(fs::read_link(dir.join("link")).unwrap(), Path::new("large"));
                for n in (0..files).step_by(2) {
                    fs::remove_file(dir.join(format!("file-{n}"))).unwrap();
                }
                assert_eq!(fs::read_dir(&dir).unwrap().count(), files / 2 + 3);
                assert!(fs::metadata(dir.join("file-0")).is_err());
            });
        }
    });
}

/// Goal: a mount over io_uring is a mount like any other, and ends without leaving threads behind.
/// Method: use it from four threads, unmount, look for threads, and look at the image again.
#[test]
fn mounts_serves_and_ends() {
    let Some(_switch) = Switch::to("Y") else { return };
    let mut left = None;
    for block in [false, false, true] {
        let served = mount(block).unwrap();
        use_it(&served.dir, 500);
        let serving = threads();
        assert!(serving.iter().any(|name| name == "fuse-ring-0"), "{serving:?}");
        served.stopper.stop();
        let (result, image, held) = served.ended();
        result.unwrap();
        rings_are_gone();
        at_most(*left.get_or_insert_with(|| threads().len()));
        let image = oleo::Image::open(&image, &oleo::OpenOptions::default()).unwrap();
        assert_eq!(image.read("worker-3/file-499").unwrap(), b"3 499");
        assert_eq!(image.read("worker-2/renamed").unwrap().len(), 3_000_000);
        drop((image, held));
    }
}

/// The file system in which connections can be cut.
struct Fusectl(tempfile::TempDir);

impl Fusectl {
    fn new() -> Fusectl {
        let dir = tempfile::tempdir().unwrap();
        rustix::mount::mount("none", dir.path(), "fusectl", rustix::mount::MountFlags::empty(), None).unwrap();
        Fusectl(dir)
    }
}

impl Drop for Fusectl {
    fn drop(&mut self) {
        detach(self.0.path(), None, true).unwrap();
    }
}

/// Goal: requests that are under way when the connection is cut do not hold anything up.
/// Method: cut it (`N/abort` in fusectl) while four threads write and sync.
#[test]
fn ends_when_the_connection_is_cut() {
    let Some(_switch) = Switch::to("Y") else { return };
    let served = mount(false).unwrap();
    let dir = served.dir.clone();
    // The kernel's form of a device number (MKDEV): that of a loop device has a major part, too.
    let device = fs::metadata(&dir).unwrap().dev();
    let number = rustix::fs::major(device) << 20 | rustix::fs::minor(device);
    let control = Fusectl::new();
    let abort = control.0.path().join(number.to_string()).join("abort");
    let synced: [AtomicU32; 4] = Default::default();
    let all_at_it = std::thread::scope(|scope| {
        for (worker, synced) in synced.iter().enumerate() {
            let dir = &dir;
            scope.spawn(move || {
                for n in 0.. {
                    let done = fs::File::create(dir.join(format!("{worker}-{n}"))).and_then(|mut file| {
                        file.write_all(&[1; 200_000])?;
                        file.sync_all()
                    });
                    if done.is_err() {
                        break;
                    }
                    synced.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let (begun, mut all_at_it) = (Instant::now(), false);
        while !all_at_it && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
            all_at_it = synced.iter().all(|count| count.load(Ordering::Relaxed) > 1);
        }
        fs::write(&abort, "1").unwrap();
        all_at_it
    });
    assert!(all_at_it, "somebody did nothing before the cut: {synced:?}");
    let (result, _image, _held) = served.ended();
    detach(&dir, None, true).unwrap();
    result.unwrap();
    rings_are_gone();
}

/// Goal: a mount that requires io_uring and cannot have it fails with that error, and nothing stays mounted.
#[test]
fn is_refused_where_it_is_off() {
    let Some(_switch) = Switch::to("N") else { return };
    match mount(false) {
        Err(MountError::Attach { dir, source }) => {
            assert!(source.to_string().contains("enable_uring"), "{source}");
            let table = fs::read_to_string("/proc/self/mounts").unwrap();
            assert!(!table.contains(dir.to_str().unwrap()), "{table}");
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("mounted without"),
    }
}
