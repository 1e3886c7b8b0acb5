//! How a file system is opened, and the two things that come from outside: the time and fresh UUIDs.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use uuid::Uuid;

/// A point in time: seconds since 1970 (negative before) and nanoseconds within the second (below 10⁹).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Time {
    /// Seconds since 1970-01-01 00:00 UTC.
    pub sec: i64,
    /// Nanoseconds within the second.
    pub nsec: u32,
}

/// A source of the time. What it returns reaches the disk, so a fixed clock makes images reproducible.
pub trait Clock: Send + Sync {
    /// The time now.
    fn now(&self) -> Time;
}

/// The clock of the machine.
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Time {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(d) => Time { sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX), nsec: d.subsec_nanos() },
            Err(_) => Time::default(),
        }
    }
}

/// A clock that always returns the same time.
pub struct FixedClock(pub Time);

impl Clock for FixedClock {
    fn now(&self) -> Time {
        self.0
    }
}

/// Gives fresh UUIDs, for subvolumes that come without.
pub trait UuidSource: Send + Sync {
    /// One that was never given before.
    fn fresh(&self) -> Uuid;
}

/// Random UUIDs from the system. Where there is none below (WebAssembly) nobody makes volumes or subvolumes: only that asks for any.
pub struct RandomUuids;

impl UuidSource for RandomUuids {
    fn fresh(&self) -> Uuid {
        #[cfg(not(target_family = "wasm"))]
        {
            Uuid::new_v4()
        }
        #[cfg(target_family = "wasm")]
        {
            unreachable!("something is made without a source of random numbers")
        }
    }
}

/// How to open the files of a volume.
#[derive(Clone)]
#[non_exhaustive]
pub struct FsOptions {
    /// Refuse every change.
    pub read_only: bool,
    /// Where timestamps come from that the caller does not give.
    pub clock: Arc<dyn Clock>,
    /// Where the UUIDs of new subvolumes come from that the caller does not give.
    pub uuids: Arc<dyn UuidSource>,
    /// Inodes kept in memory after their last use; changed ones and those in use are kept beyond it.
    pub inodes_max: usize,
    /// Changed inodes that may wait in memory before an operation commits by itself. Each takes about 1.5 KiB until it
    /// is on disk: itself, its items, and their share of the batch and the blocks that the commit makes of them. Of files
    /// with many items (extents, names), sixteen items count as an inode.
    pub dirty_inodes_max: usize,
    /// How file data is written.
    pub data: crate::data::DataOptions,
}

impl Default for FsOptions {
    fn default() -> Self {
        FsOptions {
            read_only: false,
            clock: Arc::new(SystemClock),
            uuids: Arc::new(RandomUuids),
            inodes_max: 64 * 1024,
            dirty_inodes_max: 64 * 1024,
            data: crate::data::DataOptions::default(),
        }
    }
}

oleo_format::setters!(FsOptions {
    read_only: bool,
    clock: Arc<dyn Clock>,
    uuids: Arc<dyn UuidSource>,
    inodes_max: usize,
    dirty_inodes_max: usize,
    data: crate::data::DataOptions,
});

impl fmt::Debug for FsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FsOptions").field("read_only", &self.read_only).field("inodes_max", &self.inodes_max).finish()
    }
}
