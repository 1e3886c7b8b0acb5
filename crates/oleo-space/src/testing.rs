//! What the tests of this crate share.

/// A small seeded generator (splitmix64), so that a seed names a run for ever.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use oleo_format::{BlockGroupFlags, ByteLen, Logical};
use parking_lot::Mutex;

use crate::{FreeSource, GroupInfo, LoadError, Run, Space};

pub(crate) const SECTOR: u64 = 4096;
pub(crate) const NODE: u64 = 16384;
pub(crate) const MIB: u64 = 1 << 20;

/// A source of free space from a map, which counts how often it was asked.
#[derive(Default)]
pub(crate) struct MapSource {
    pub(crate) free: Mutex<BTreeMap<u64, Vec<(Logical, ByteLen)>>>,
    pub(crate) loads: AtomicUsize,
}

impl FreeSource for MapSource {
    fn load(&self, group: Logical) -> Result<Vec<(Logical, ByteLen)>, LoadError> {
        self.loads.fetch_add(1, SeqCst);
        std::thread::yield_now();
        self.free
            .lock()
            .get(&group.0)
            .cloned()
            .ok_or_else(|| LoadError::source(group, crate::SpaceError::Pinned(group)))
    }
}

pub(crate) fn info(start: u64, len: u64, flags: BlockGroupFlags) -> GroupInfo {
    GroupInfo {
        start: Logical(start),
        len: ByteLen(len),
        flags,
        used: ByteLen(0),
        excluded: ByteLen(0),
        free_extents: None,
        read_only: false,
        row_len: ByteLen(0),
    }
}

pub(crate) fn run(start: u64, len: u64) -> Run {
    Run::new(Logical(start), ByteLen(len))
}

/// A space with `count` empty groups of one kind, `len` bytes each, from 1 GiB on.
pub(crate) fn space_of(count: u64, len: u64, flags: BlockGroupFlags) -> Space {
    let space = Space::new(SECTOR as u32, NODE as u32, Arc::new(MapSource::default()));
    for i in 0..count {
        let start = (1 << 30) + i * len;
        space.add_group(info(start, len, flags), Some(vec![run(start, len)])).unwrap();
    }
    space
}
