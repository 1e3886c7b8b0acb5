//! How a volume is opened, and what bounds it.

use std::sync::Arc;
use std::time::Duration;

use crate::host::{Host, SystemHost};

/// How a volume is opened.
#[derive(Clone)]
#[non_exhaustive]
pub struct StoreOptions {
    /// Time and randomness.
    pub host: Arc<dyn Host>,
    /// Who writes, in words, for others who find the volume held: host, process, user. At most 512 bytes are kept.
    pub owner: String,
    /// For how long others take the writer for alive when it is silent; whole seconds; zero: until somebody takes over by
    /// word.
    pub claim: Duration,
    /// Write although another writer has it, or had it and did not close it.
    pub take_over: bool,
    /// Sizes and times.
    pub bounds: Bounds,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions {
            host: Arc::new(SystemHost::new()),
            owner: String::new(),
            claim: Duration::ZERO,
            take_over: false,
            bounds: Bounds::default(),
        }
    }
}

/// What memory and time a volume may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Bounds {
    /// A segment is ended when it would become longer than this, bytes; at most 64 MiB.
    pub segment_aim: u32,
    /// Frames up to so many bytes go into the head instead of a segment of their own; at most 512 KiB.
    pub inline_max: u32,
    /// More bytes in memory than this that are not published make a writer publish.
    pub dirty_bytes_max: u64,
    /// Memory of the map, bytes; more is let go of, and read again when it is needed.
    pub map_bytes_max: u64,
    /// Memory of frames that were read, bytes.
    pub cache_bytes_max: u64,
    /// A checkpoint is made after so many segments.
    pub replay_count_max: usize,
    /// Or after so many bytes of segments.
    pub replay_bytes_max: u64,
    /// How long one attempt to replace the head may take.
    pub publish_try: Duration,
    /// How long a flush may take; after that it fails, and nothing is written any more.
    pub flush_max: Duration,
    /// How long a read may take.
    pub read_max: Duration,
    /// How long opening may take, besides waiting for a claim to run out.
    pub attach_max: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            segment_aim: 16 << 20,
            inline_max: 256 << 10,
            dirty_bytes_max: 128 << 20,
            map_bytes_max: 256 << 20,
            cache_bytes_max: 64 << 20,
            replay_count_max: 64,
            replay_bytes_max: 1 << 30,
            publish_try: Duration::from_secs(10),
            flush_max: Duration::from_secs(120),
            read_max: Duration::from_secs(60),
            attach_max: Duration::from_secs(120),
        }
    }
}
