//! The members of a file system: superblocks, chunk map, RAID geometry, mirrors and healing reads.
//!
//! A [`Volume`] maps logical addresses to places on devices. It does not know what is stored there, except for the
//! chunk tree, which defines the map.
//!
//! Normal path: (1) `open` takes devices, reads their superblocks (`supers`), matches them to each other, finds the
//! system chunks in the superblock's array, and with them reads the chunk tree (`open`); (2) `read_block` and
//! `read_data` fetch bytes from the copy most likely to be good, verify them, and if they are bad try the other copies,
//! or parity (`read`, `rebuild`); (3) `write` sends bytes to all copies, `write_supers` makes a transaction the newest
//! (`write`, `put_rows`, `supers`); (4) `propose_chunk` returns the place and the items of a new chunk; once the caller has put
//! those into the trees, `add_chunk` makes it usable (`carve`).
//!
//! Invariants: chunks do not overlap, in logical space nor on devices; every stripe is on a member (which may be
//! missing). Every byte is written to every copy that is on a sound device, which are enough to do without the others, or the volume is
//! poisoned: nothing more is written (`losses`).
//! Locks: rows of chunks with parity (`rows`), held over I/O; `members`, then `chunks`, shared for lookups; then a member's item; leaves are
//! `super_block` and a member's `settled`. None of these is held over I/O.
//! Crash: see `supers`; everything else is not durable before a flush that succeeded.
//! Not here: what is free inside a chunk; when a chunk is needed; caching.

mod apart;
mod attach;
mod attainable;
mod batch;
mod carve;
mod copies;
mod copying;
mod discover;
mod doubt;
mod error;
mod flushers;
mod geometry;
mod level;
mod losses;
mod member;
mod moved;
mod open;
mod outlook;
mod parallel;
mod places;
mod profile;
mod put_rows;
mod read;
mod rebuild;
mod records;
mod recover;
mod refill;
mod remap;
mod replace;
mod rows;
mod stripes;
mod stripes_of;
mod supers;
mod table;
mod trim;
mod write;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use oleo_device::DeviceError;
use oleo_format::{ByteLen, Logical, NodeRules, SuperBlock};
use oleo_lock::{Mutex, RwLock, rank};
use uuid::Uuid;

pub use attach::{Candidate, DetachedDevice, NEW_DEVICE_MIN, NewDevice};
pub use carve::{ChunkPlan, ChunkRemoval, ChunkWant, PARITY_STRIPES_MAX};
pub use copies::CopyRead;
#[cfg(target_os = "linux")]
pub use discover::block_devices;
pub use discover::{FoundDevice, FoundVolume, discover};
pub use error::VolumeError;
pub use geometry::{ChunkMap, Hints, Piece, STRIPE_LEN, StripeAt};
pub use losses::LostDevice;
pub use member::{DeviceInfo, ErrorCounters, KeptFree};
pub use moved::{Placement, PlacementSource};
pub use open::{LeftOut, OpenOptions, WhyLeftOut};
pub use outlook::Outlook;
pub use profile::{Profile, ProfileShape, UnknownProfile};
pub use refill::{RefillRun, Refilled, Verify};
pub use replace::ReplacedDevice;
pub use rows::{GRAIN, Occupancy, RowStats, Verdict, Witness};
pub use stripes_of::{ChunkStripes, RowHeld, StripeRead};
pub use supers::{read_mirrors, read_super};
pub use trim::{DevicePlace, Discarded};

use copying::Copying;
use flushers::Flushers;
use losses::Losses;
use member::Member;
use remap::Remaps;
use replace::FoundTarget;
use rows::Rows;
use table::{Chunks, Placed};

/// A file system's devices and the map from logical addresses to them. See the crate's text. Share it by `Arc`: all methods take
/// `&self` and may be called from many threads.
pub struct Volume {
    members: RwLock<rank::DeviceMembers, Vec<Arc<Member>>>,
    chunks: Chunks,
    super_block: RwLock<rank::VolumeSuper, SuperBlock>,
    rules: NodeRules,
    /// Rules of blocks that were written before a seed sprouted this volume: they carry the seed's fsid.
    seed_rules: Vec<NodeRules>,
    chunk_tree_uuid: Uuid,
    write: bool,
    /// Tree blocks are used without a fitting checksum, if everything else about them is right.
    ignore_block_csums: bool,
    /// It was opened to be used even if devices are missing.
    degraded: bool,
    flushers: Flushers,
    rows: Rows,
    losses: Losses,
    /// Read by whoever writes or copies; written while devices get targets, or give their place to them.
    targets_stay: RwLock<rank::Targets, ()>,
    /// Some device may have a target. Changed while `targets_stay` is written.
    has_targets: AtomicBool,
    /// What is copied to targets, and what is written there.
    copying: Copying,
    /// Parity was put in order when it was opened.
    recovered: bool,
    /// Devices that gave their place to others, until they are wiped.
    replaced: Mutex<rank::ReplaceTargets, Vec<ReplacedDevice>>,
    /// Devices that were named and are not used.
    left_out: Vec<LeftOut>,
    /// Where bytes are that are not where their chunks say.
    remaps: Remaps,
    /// Devices that say they are about to take another's place.
    targets: Mutex<rank::ReplaceTargets, Vec<FoundTarget>>,
    placement: OnceLock<std::sync::Weak<dyn PlacementSource>>,
    /// The write or flush that poisoned the volume.
    poisoned: OnceLock<DeviceError>,
    /// The superblocks on disk have the magic number of an unfinished file system, which no reader takes for one.
    unfinished: AtomicBool,
}

impl Volume {
    /// A copy of the superblock that was opened, or of the last one written.
    pub fn super_block(&self) -> SuperBlock {
        *self.super_block.read()
    }

    /// The rules all tree blocks follow.
    pub fn rules(&self) -> &NodeRules {
        &self.rules
    }

    /// The uuid that every tree block's header carries besides the fsid.
    pub fn chunk_tree_uuid(&self) -> Uuid {
        self.chunk_tree_uuid
    }

    /// Whether writes are refused.
    pub fn read_only(&self) -> bool {
        !self.write || self.poisoned.get().is_some()
    }

    /// The chunk that maps an address.
    pub fn chunk_of(&self, at: Logical) -> Result<Arc<ChunkMap>, VolumeError> {
        Ok(self.placed(at)?.map.clone())
    }

    /// All chunks by address. Copies the whole list, so it is not for what is done often.
    pub fn chunks(&self) -> Vec<Arc<ChunkMap>> {
        self.chunks.read().iter().map(|p| p.map.clone()).collect()
    }

    /// Bytes of all chunks together.
    pub fn mapped_bytes(&self) -> ByteLen {
        ByteLen(self.chunks.read().bytes())
    }

    /// All devices by number, missing ones too.
    pub fn devices(&self) -> Vec<DeviceInfo> {
        self.members.read().iter().map(|m| m.info()).collect()
    }

    /// Devices that were named when it was opened and are not used.
    pub fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// The error counters of each device, by number. The volume only counts: `oleo-txn` loads them from the DEV_STATS items and
    /// stores them there.
    pub fn error_counters(&self) -> Vec<(oleo_format::DevId, ErrorCounters)> {
        self.members.read().iter().map(|m| (m.devid, m.counters())).collect()
    }

    /// From now on asks `by` what is free, while it lives; until then everything on disk counts as something that must not be lost. Once.
    pub fn set_occupancy(&self, by: std::sync::Weak<dyn Occupancy>) {
        self.rows.set_occupancy(by);
    }

    /// From now on asks `by` what sectors should be whose parity does not fit, while it lives; until then parity counts as wrong. Once.
    pub fn set_witness(&self, by: std::sync::Weak<dyn Witness>) {
        self.rows.set_witness(by);
    }

    /// Whether any chunk has parity.
    pub fn has_parity(&self) -> bool {
        self.chunks.read().iter().any(|placed| placed.map.profile.has_parity())
    }

    /// How rows of chunks with parity were written.
    pub fn row_stats(&self) -> RowStats {
        self.rows.stats()
    }

    /// Sets a device's counters to those of its DEV_STATS item, or to zero.
    pub fn set_error_counters(&self, devid: oleo_format::DevId, to: ErrorCounters) {
        if let Some(member) = self.members.read().iter().find(|m| m.devid == devid) {
            member.set_counters(to);
        }
    }

    /// Sets all counters to zero and returns what they were. An error that is counted meanwhile is in one or the other.
    pub fn take_error_counters(&self) -> Vec<(oleo_format::DevId, ErrorCounters)> {
        self.members.read().iter().map(|m| (m.devid, m.take_counters())).collect()
    }

    /// Counts errors that [`take_error_counters`](Self::take_error_counters) took once more, in addition to what has come since.
    pub fn add_error_counters(&self, devid: oleo_format::DevId, more: ErrorCounters) {
        if let Some(member) = self.members.read().iter().find(|m| m.devid == devid) {
            member.add_counters(more);
        }
    }

    /// Parts of a chunk that must not be allocated because mirrors of the superblock are there.
    pub fn super_ranges_in(&self, chunk: &ChunkMap) -> Vec<(Logical, ByteLen)> {
        chunk.super_ranges()
    }

    /// Parts of a chunk that must not be allocated for any reason: see [`ChunkMap::withheld_ranges`].
    pub fn withheld_ranges_in(&self, chunk: &ChunkMap) -> Vec<(Logical, ByteLen)> {
        chunk.withheld_ranges()
    }

    /// Whether a chunk is on a seed device, at least in part: nothing in it can be written.
    pub fn is_on_seed(&self, chunk: &ChunkMap) -> bool {
        let members = self.members.read();
        members.iter().filter(|m| m.seed).any(|m| chunk.stripes.iter().any(|s| s.devid == m.devid))
    }

    fn members_of(&self, devid: oleo_format::DevId) -> Vec<Arc<Member>> {
        self.members.read().iter().filter(|m| m.devid == devid).cloned().collect()
    }

    /// The chunk at an address with its members.
    fn placed(&self, at: Logical) -> Result<Placed, VolumeError> {
        self.chunks.now().find(at).cloned().ok_or(VolumeError::Unmapped { at, len: 1 })
    }
}

#[cfg(test)]
mod tests;
