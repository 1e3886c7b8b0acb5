//! A directory in which all workers work in parallel, doing only what ends the same way in whatever order.
//!
//! - `cells`: one file; cell n of 1000 bytes belongs to worker n mod workers, so that pages belong to several. Written with
//!   pwrite and through a mapping.
//! - `log`: records of one length, appended. In any order, so [`settle`] sorts them in the end.
//! - `names`: each worker makes, moves, links and removes names that begin with its number; `target` gets links from all.
//! - `a`, `b`: exchanged, by each worker an even number of times.
//! - attributes of the directory itself, named after the worker.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use oleo_sim::rng::Rng;
use rustix::fs::{AtFlags, CWD, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use rustix::mm::MapFlags;

use crate::mount::sys::Map;

const CELL: usize = 1000;
const CELLS: u64 = 400;
const RECORD: usize = 32;
/// Names that a worker has at most.
const NAMES: u64 = 20;

/// What is done.
#[derive(Clone, Debug)]
pub enum Act {
    Cell { n: u64, seed: u64, mapped: bool },
    Append { value: u64 },
    Make { n: u64 },
    Move { from: u64, to: u64 },
    LinkTarget { n: u64 },
    Remove { n: u64 },
    Exchange,
    Attribute { n: u64, value: u64 },
    List,
}

impl Act {
    /// Some act.
    pub fn random(rng: &mut Rng) -> Act {
        match rng.below(9) {
            0 | 1 => Act::Cell { n: rng.below(CELLS), seed: rng.next_u64(), mapped: rng.one_in(2) },
            2 => Act::Append { value: rng.next_u64() },
            3 => Act::Make { n: rng.below(NAMES) },
            4 => Act::Move { from: rng.below(NAMES), to: rng.below(NAMES) },
            5 => Act::LinkTarget { n: rng.below(NAMES) },
            6 => Act::Remove { n: rng.below(NAMES) },
            7 => Act::Exchange,
            _ if rng.one_in(4) => Act::List,
            _ => Act::Attribute { n: rng.below(5), value: rng.next_u64() },
        }
    }
}

/// The directory as a worker uses it.
pub struct Shared {
    dir: PathBuf,
    worker: u64,
    exchanges: u64,
    appended: u64,
}

/// Fills the directory, before anybody works in it.
pub fn prepare(dir: &Path) -> Result<()> {
    fs::create_dir(dir)?;
    fs::create_dir(dir.join("names"))?;
    File::create(dir.join("cells"))?.set_len(CELLS * CELL as u64)?;
    for name in ["log", "target", "a", "b"] {
        fs::write(dir.join(name), if name == "log" { "" } else { name })?;
    }
    Ok(())
}

/// Looks at what all have left, and brings it into an order.
pub fn settle(dir: &Path, workers: u64) -> Result<()> {
    let log = fs::read(dir.join("log"))?;
    ensure!(log.len().is_multiple_of(RECORD), "a torn record: the log has {} bytes", log.len());
    let mut records: Vec<&[u8]> = log.chunks(RECORD).collect();
    ensure!(records.iter().all(|r| r.ends_with(b"\n") && r.starts_with(b"w")), "a mixed record");
    for worker in 0..workers {
        let mine = format!("w{worker} ");
        let own: Vec<&&[u8]> = records.iter().filter(|r| r.starts_with(mine.as_bytes())).collect();
        ensure!(own.is_sorted(), "the records of worker {worker} are out of order");
    }
    records.sort_unstable();
    fs::write(dir.join("log"), records.concat())?;
    Ok(())
}

impl Shared {
    /// The directory, for one worker.
    pub fn new(dir: &Path, worker: u64) -> Shared {
        Shared { dir: dir.to_owned(), worker, exchanges: 0, appended: 0 }
    }

    fn name(&self, n: u64) -> PathBuf {
        self.dir.join("names").join(format!("{}-{n}", self.worker))
    }

    fn exchange(&mut self) -> Result<(), Errno> {
        self.exchanges += 1;
        rustix::fs::renameat_with(CWD, self.dir.join("a"), CWD, self.dir.join("b"), RenameFlags::EXCHANGE)
    }

    /// Does it.
    pub fn run(&mut self, act: &Act) -> Result<(), Errno> {
        let errno = |e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
        match *act {
            Act::Cell { n, seed, mapped } => {
                let n = n - n % super::WORKERS + self.worker;
                let at = n * CELL as u64;
                let data = Rng::new(seed).bytes(CELL);
                let file = rustix::fs::open(self.dir.join("cells"), OFlags::RDWR, rustix::fs::Mode::empty())?;
                if mapped {
                    let len = usize::try_from(CELLS).unwrap_or(0) * CELL;
                    let map = Map::new(&file, 0, len, MapFlags::SHARED)?;
                    map.write(usize::try_from(at).unwrap_or(0), &data);
                    Ok(())
                } else {
                    File::from(file).write_all_at(&data, at).map_err(errno)
                }
            }
            Act::Append { value } => {
                let file = fs::OpenOptions::new().append(true).open(self.dir.join("log")).map_err(errno)?;
                self.appended += 1;
                let text = format!("w{} {:06} {:016x}", self.worker, self.appended, value);
                (&file).write_all(format!("{text:31}\n").as_bytes()).map_err(errno)
            }
            Act::Make { n } => fs::write(self.name(n), format!("{n}")).map_err(errno),
            Act::Move { from, to } => fs::rename(self.name(from), self.name(to)).map_err(errno),
            Act::LinkTarget { n } => {
                rustix::fs::linkat(CWD, self.dir.join("target"), CWD, self.name(n + NAMES), AtFlags::empty())
            }
            Act::Remove { n } => fs::remove_file(self.name(n)).or(fs::remove_file(self.name(n + NAMES))).map_err(errno),
            Act::Exchange => self.exchange(),
            Act::Attribute { n, value } => {
                let name = format!("user.w{}.{n}", self.worker);
                rustix::fs::setxattr(&self.dir, name, &value.to_le_bytes(), XattrFlags::empty())
            }
            Act::List => {
                // What is seen depends on the others; that it can be listed does not.
                for entry in fs::read_dir(self.dir.join("names")).map_err(errno)? {
                    entry.map_err(errno)?;
                }
                Ok(())
            }
        }
    }

    /// Leaves an even number of exchanges behind.
    pub fn finish(&mut self) -> Result<(), Errno> {
        if self.exchanges % 2 == 1 { self.exchange() } else { Ok(()) }
    }
}
