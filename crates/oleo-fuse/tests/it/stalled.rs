//! A device that does not answer, and the callers that do not need it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use oleo::mkfs::MkfsOptions;
use oleo::serve::{Export, Listener, ServeOptions, Server, listen_at};
use oleo::{Device, Image};
use oleo_device::{DeviceError, MemDevice};
use oleo_fuse::{MountError, MountOptions, Mounted, Plan, Stopper, Uring, detach};
use oleo_sim::stall;

use crate::uring::Switch;

/// Directories that are not in memory: more than a mount has threads.
const COLD_DIRS: usize = 12;
/// Entries of each: several blocks of the tree.
const COLD_FILES: usize = 150;

/// A gate that reads of a device wait at while it is closed.
#[derive(Default)]
struct Gate {
    closed: Mutex<bool>,
    moved: Condvar,
    /// Reads that wait.
    waiting: AtomicUsize,
}

impl Gate {
    fn set(&self, closed: bool) {
        *self.closed.lock().unwrap() = closed;
        self.moved.notify_all();
    }

    fn pass(&self) {
        let mut closed = self.closed.lock().unwrap();
        self.waiting.fetch_add(1, Ordering::AcqRel);
        while *closed {
            closed = self.moved.wait(closed).unwrap();
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A device whose reads each pass a gate.
struct Gated {
    memory: MemDevice,
    gate: Arc<Gate>,
}

impl Device for Gated {
    fn len(&self) -> u64 {
        self.memory.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.gate.pass();
        self.memory.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.memory.write_at(offset, buf)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.memory.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.memory.discard(offset, len)
    }
    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        self.memory.set_len(len)
    }
    fn name(&self) -> String {
        "gated".to_owned()
    }
    fn read_only(&self) -> bool {
        false
    }
}

fn file_of(number: usize) -> String {
    format!("a-name-that-takes-some-room-in-a-block-of-the-tree-{number:06}")
}

/// A volume with a small directory, and large ones.
fn volume(memory: MemDevice, gate: &Arc<Gate>) -> Arc<Gated> {
    let device = Arc::new(Gated { memory, gate: gate.clone() });
    let image = Image::create_on(vec![device.clone()], &MkfsOptions::default(), &oleo::OpenOptions::writing()).unwrap();
    image.create_dir("warm").unwrap();
    image.write("warm/file", b"warm").unwrap();
    for dir in 0..COLD_DIRS {
        image.create_dir(format!("cold{dir}")).unwrap();
        (0..COLD_FILES).for_each(|file| image.write(format!("cold{dir}/{}", file_of(file)), b"cold").unwrap());
    }
    image.close().unwrap();
    device
}

/// A mount of a network block device that is served by this process.
struct Served {
    dir: PathBuf,
    stopper: Stopper,
    thread: JoinHandle<Result<(), MountError>>,
    server: oleo::serve::Stopper,
    serving: JoinHandle<()>,
    _scratch: tempfile::TempDir,
}

fn mount(device: Arc<Gated>, uring: Uring) -> Served {
    let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
    let (socket, dir) = (scratch.path().join("socket"), scratch.path().join("mnt"));
    fs::create_dir(&dir).unwrap();
    let export = Export { name: String::new(), description: String::new(), device, read_only: false };
    let listener = Listener::bind(&listen_at(&format!("unix:{}", socket.display())).unwrap()).unwrap();
    let log = Box::new(|line: &str| eprintln!("server: {line}"));
    let server = Server::start(vec![export], vec![listener], ServeOptions::default(), log).unwrap();
    let stop_server = server.stopper();
    let serving = std::thread::spawn(move || {
        server.serve().unwrap();
    });
    let options =
        MountOptions { uring, commit_seconds: Some(300), cache_bytes: Some(1 << 20), ..MountOptions::default() };
    let log = Arc::new(|line: &str| eprintln!("{line}"));
    let images = vec![PathBuf::from(format!("nbd+unix:///?socket={}", socket.display()))];
    let mounted = Mounted::new(Plan { images, scan: Vec::new(), offset: 0, dir: dir.clone(), options, log }).unwrap();
    let stopper = mounted.stopper();
    let thread = std::thread::spawn(move || mounted.serve());
    Served { dir, stopper, thread, server: stop_server, serving, _scratch: scratch }
}

/// Goal: requests that wait for a device that does not answer keep no others waiting. Method: look more cold names up than a mount has
/// threads, on a network block device whose reads do not return; meanwhile change, make and list names in memory; then the reads return, and
/// all names are found.
fn others_are_answered(uring: Uring) {
    let gate = Arc::<Gate>::default();
    let served = mount(volume(MemDevice::new(1 << 30), &gate), uring);
    let cold = |dir| served.dir.join(format!("cold{dir}")).join(file_of(COLD_FILES / 2));
    let cold: Vec<PathBuf> = (0..COLD_DIRS).map(cold).collect();
    let is_asked = || gate.waiting.load(Ordering::Acquire) > 0;
    let answered =
        stall::others_are_answered(&served.dir.join("warm"), (&cold, 4), &|silent| gate.set(silent), &is_asked);
    served.stopper.stop();
    served.thread.join().unwrap().unwrap();
    let _ = detach(&served.dir, None, true);
    served.server.stop();
    served.serving.join().unwrap();
    answered.unwrap();
}

#[test]
fn others_are_answered_by_dev_fuse() {
    if !Path::new("/dev/fuse").exists() {
        return oleo_sim::oracle::skip("no mounts here");
    }
    others_are_answered(Uring::Off);
}

/// Goal: if the kernel offers io_uring, a network block device is served through `/dev/fuse` unless io_uring is required. (Over io_uring
/// the kernel puts a request that finds no slot into a list, and takes it from there only if a slot of that queue comes back with a reply.)
#[test]
fn others_are_answered_where_io_uring_is_offered() {
    let Some(_switch) = Switch::to("Y") else { return };
    others_are_answered(Uring::Auto);
}
