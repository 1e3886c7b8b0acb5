//! Fills a new file system from a directory or a tar archive.
//!
//! 1. A source (`walk`, `tar`) lists files in a fixed order, and reads and prepares their data ahead on all cores.
//! 2. The *installer* (`install`) takes them in that order: it creates inodes, gathers prepared data into batches, and
//!    hands each batch to the file system, which assigns addresses in order and writes.
//! 3. After many changes since the last commit it commits; memory stays bounded whatever the input's size.
//! 4. At the end subvolumes become read-only, the default is set, and the last commit makes all of it durable.
//!
//! One thread assigns names, addresses and numbers, in an order that depends on the source alone. So the same source
//! gives the same image, whatever the number of threads.

mod entry;
mod from_dir;
mod from_tar;
mod install;
#[cfg(not(target_os = "linux"))]
mod no_reflink;
mod pool;
#[cfg(target_os = "linux")]
mod reflink;
mod table;
mod tar;
mod walk;

use std::path::PathBuf;

use oleo_fs::data::Compress;

use self::entry::{UnpreparedPiece, Whole};
pub use self::from_dir::{fill_from_dir, fill_one};
pub use self::from_tar::{fill_from_layers, fill_from_tar};
#[cfg(not(target_os = "linux"))]
pub use self::no_reflink::Reflink;
#[cfg(target_os = "linux")]
pub use self::reflink::Reflink;
pub use self::table::{TableEntry, parse_table};
use crate::MkfsError;

/// Default of the bytes of file data that are read but not installed.
const BYTES_AHEAD_MAX: u64 = 64 << 20;

/// A directory of the source that becomes a subvolume.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SubvolSpec {
    /// Its path from the top.
    pub path: PathBuf,
    /// Make it read-only.
    pub read_only: bool,
    /// Make it the one that a mount without options shows.
    pub default: bool,
}

oleo_format::setters!(SubvolSpec { read_only: bool, default: bool });

impl SubvolSpec {
    /// One that is neither read-only nor the default.
    pub fn new(path: impl Into<PathBuf>) -> SubvolSpec {
        SubvolSpec { path: path.into(), read_only: false, default: false }
    }
}

/// Progress.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Regular files.
    pub files: u64,
    /// Directories, without the top.
    pub dirs: u64,
    /// Names of files that have a name already.
    pub links: u64,
    /// Symbolic links, devices, fifos, sockets.
    pub others: u64,
    /// Subvolumes.
    pub subvols: u64,
    /// Bytes of file data, without holes.
    pub data_bytes: u64,
}

/// What a fill did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The numbers.
    pub done: Progress,
    /// What was left out or differs from the source.
    pub warnings: Vec<String>,
}

/// Called from time to time with the progress.
pub type OnProgress = Box<dyn Fn(&Progress) + Send + Sync>;

/// Attributes of the top directory; `None` takes the source's.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct TopAttributes {
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Permission bits.
    pub mode: Option<u32>,
}

oleo_format::setters!(TopAttributes { uid: Option<u32>, gid: Option<u32>, mode: Option<u32> });

/// How to fill.
#[non_exhaustive]
pub struct FillOptions {
    /// Directories that become subvolumes.
    pub subvols: Vec<SubvolSpec>,
    /// How data is compressed, if at all.
    pub compress: Option<Compress>,
    /// Makes times reproducible: the time of modification replaces all four, and is cut to this many seconds since
    /// 1970.
    pub epoch_seconds: Option<i64>,
    /// Threads that read and prepare; 0 for one per core.
    pub threads: usize,
    /// Bytes of file data that may be read ahead.
    pub bytes_ahead_max: u64,
    /// Called as work goes on.
    pub on_progress: Option<OnProgress>,
    /// Let the host share the data of source files with the image, if it is stored there uncompressed and in one copy.
    pub reflink: Option<Reflink>,
    /// Attributes of the top that are not taken from the source.
    pub top: TopAttributes,
    /// Owner of everything, in place of the owners in the source; `top` and `table` come first.
    pub uid: Option<u32>,
    /// Group of everything, likewise.
    pub gid: Option<u32>,
    /// Owners and modes of single files and directories, and devices to be made, when everything else is there.
    pub table: Vec<TableEntry>,
    /// Host files (device and inode number) that are not part of the source: the image that is being made.
    pub skip: Vec<(u64, u64)>,
}

impl Default for FillOptions {
    fn default() -> FillOptions {
        FillOptions {
            subvols: Vec::new(),
            compress: None,
            epoch_seconds: None,
            threads: 0,
            bytes_ahead_max: BYTES_AHEAD_MAX,
            on_progress: None,
            reflink: None,
            top: TopAttributes::default(),
            uid: None,
            gid: None,
            table: Vec::new(),
            skip: Vec::new(),
        }
    }
}

oleo_format::setters!(FillOptions {
    subvols: Vec<SubvolSpec>,
    compress: Option<Compress>,
    epoch_seconds: Option<i64>,
    threads: usize,
    bytes_ahead_max: u64,
    on_progress: Option<OnProgress>,
    reflink: Option<Reflink>,
    top: TopAttributes,
    uid: Option<u32>,
    gid: Option<u32>,
    table: Vec<TableEntry>,
    skip: Vec<(u64, u64)>,
});

impl FillOptions {
    fn thread_count(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, |n| n.get());
        if self.threads == 0 { cores() } else { self.threads }
    }

    /// Refuses options that contradict each other.
    fn check(&self) -> Result<(), MkfsError> {
        if self.subvols.iter().filter(|spec| spec.default).count() > 1 {
            return Err(MkfsError::Options("only one subvolume can be the default".into()));
        }
        for (i, spec) in self.subvols.iter().enumerate() {
            if self.subvols[..i].iter().any(|other| other.path == spec.path) {
                return Err(MkfsError::Options(format!("subvolume {} is requested twice", spec.path.display())));
            }
        }
        Ok(())
    }
}
