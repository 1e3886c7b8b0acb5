//! One file on a mount, changed in every way that there is, compared with what it should hold, as fsx does; with snapshots in
//! between, each of which must hold what was written until then, whoever had it: the program, a mapping, the kernel, the server.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use oleo_sim::oracle::run;
use oleo_sim::rng::Rng;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::mm::MapFlags;

use super::map::Map;

const OLEO: &str = env!("CARGO_BIN_EXE_oleo");
/// Bytes that the file has at most.
const LEN_MAX: u64 = 300_000;
/// Bytes of one change at most.
const PART_MAX: u64 = 70_000;
/// Steps between two snapshots, about.
const SNAPSHOT_EVERY: u64 = 60;

/// The file, below the top of a mount, and what it should hold.
pub struct Exercise {
    top: PathBuf,
    file: OwnedFd,
    model: Vec<u8>,
    rng: Rng,
    /// What was done to it.
    pub done: Vec<String>,
    snapshots: u64,
}

fn open(path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o644))
}

impl Exercise {
    /// An empty file in a subvolume of its own. The seed says what is done to it.
    pub fn new(top: &Path, seed: u64) -> Exercise {
        run(OLEO, ["subvolume".as_ref(), "create".as_ref(), top.join("v").as_os_str()]).unwrap();
        let file = open(&top.join("v/f"), OFlags::RDWR | OFlags::CREATE).unwrap();
        let (top, rng) = (top.to_owned(), Rng::new(seed));
        Exercise { top, file, model: Vec::new(), rng, done: Vec::new(), snapshots: 0 }
    }

    /// Closes the file; what it should hold, and how many snapshots were compared.
    pub fn end(self) -> (Vec<u8>, u64) {
        (self.model, self.snapshots)
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.top.join("v/f")
    }

    /// A place in the file, or a little behind it, and a length from there.
    fn part(&mut self) -> (u64, u64) {
        let at = self.rng.below((self.model.len() as u64 + PART_MAX).min(LEN_MAX));
        (at, (self.rng.length(PART_MAX) + 1).min(LEN_MAX - at))
    }

    /// The same within the file.
    fn inside(&mut self) -> Option<(u64, u64)> {
        let len = self.model.len() as u64;
        let at = (len > 0).then(|| self.rng.below(len))?;
        Some((at, (self.rng.length(PART_MAX) + 1).min(len - at)))
    }

    fn set(&mut self, at: u64, bytes: &[u8]) {
        let end = at as usize + bytes.len();
        self.model.resize(self.model.len().max(end), 0);
        self.model[at as usize..end].copy_from_slice(bytes);
    }

    /// Changes the file, or reads a part of it.
    pub fn step(&mut self) {
        let done = match self.rng.below(24) {
            0..=7 => {
                let (at, len) = self.part();
                let bytes = self.rng.bytes(len as usize);
                assert_eq!(rustix::io::pwrite(&self.file, &bytes, at), Ok(bytes.len()));
                self.set(at, &bytes);
                format!("write {len} at {at}")
            }
            8..=10 => {
                let Some((at, len)) = self.inside() else { return };
                let (from, bytes) = (at / 4096 * 4096, self.rng.bytes(len as usize));
                let map = Map::new(&self.file, from, (at + len - from) as usize, MapFlags::SHARED).unwrap();
                map.write((at - from) as usize, &bytes);
                self.set(at, &bytes);
                format!("map {len} at {at}")
            }
            11 | 12 => {
                let len = self.rng.below(LEN_MAX);
                rustix::fs::ftruncate(&self.file, len).unwrap();
                self.model.resize(len as usize, 0);
                format!("cut to {len}")
            }
            13 | 14 => {
                let Some((at, len)) = self.inside() else { return };
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&self.file, flags, at, len).unwrap();
                self.set(at, &vec![0; len as usize]);
                format!("hole of {len} at {at}")
            }
            15 => {
                let (at, len) = self.part();
                rustix::fs::fallocate(&self.file, FallocateFlags::empty(), at, len).unwrap();
                let end = (at + len) as usize;
                self.model.resize(self.model.len().max(end), 0);
                format!("room for {len} at {at}")
            }
            16 => {
                let Some((from, len)) = self.inside() else { return };
                let to = self.rng.below(LEN_MAX - len);
                if from.abs_diff(to) < len {
                    return;
                }
                let (mut off_in, mut off_out) = (from, to);
                let mut left = len as usize;
                while left > 0 {
                    let copied = rustix::fs::copy_file_range(
                        &self.file,
                        Some(&mut off_in),
                        &self.file,
                        Some(&mut off_out),
                        left,
                    );
                    left -= copied.unwrap();
                }
                let bytes = self.model[from as usize..(from + len) as usize].to_vec();
                self.set(to, &bytes);
                format!("copy {len} from {from} to {to}")
            }
            17 => {
                rustix::fs::fsync(&self.file).unwrap();
                "fsync".into()
            }
            18 => {
                self.file = open(&self.path(), OFlags::RDWR).unwrap();
                "open again".into()
            }
            _ => {
                let (at, len) = self.part();
                let mut bytes = vec![1; len as usize];
                let got = rustix::io::pread(&self.file, &mut bytes, at).unwrap();
                let wanted = self.model.get(at as usize..).unwrap_or_default();
                assert_eq!(got, wanted.len().min(len as usize), "bytes at {at}: {:#?}", self.done);
                self.must_be(&wanted[..got], &bytes[..got], at);
                format!("read {len} at {at}")
            }
        };
        self.done.push(done);
        if self.rng.one_in(SNAPSHOT_EVERY) {
            self.snapshot();
        }
    }

    #[track_caller]
    fn must_be(&self, wanted: &[u8], found: &[u8], at: u64) {
        let wrong = wanted.iter().zip(found).position(|(wanted, found)| wanted != found);
        assert!(wrong.is_none(), "byte {} is wrong: {:#?}", at + wrong.unwrap_or(0) as u64, self.done);
    }

    /// A copy holds the same.
    #[track_caller]
    pub fn must_hold(&self, file: &Path) {
        let found = fs::read(file).unwrap();
        assert_eq!(found.len(), self.model.len(), "{}: {:#?}", file.display(), self.done);
        self.must_be(&self.model, &found, 0);
    }

    /// A snapshot has what the file has.
    pub fn snapshot(&mut self) {
        self.snapshots += 1;
        let (v, to) = (self.top.join("v"), self.top.join("s"));
        run(OLEO, ["subvolume".as_ref(), "snapshot".as_ref(), v.as_os_str(), to.as_os_str()]).unwrap();
        self.must_hold(&to.join("f"));
        run(OLEO, ["subvolume".as_ref(), "delete".as_ref(), to.as_os_str()]).unwrap();
        self.done.push("snapshot".into());
    }
}
