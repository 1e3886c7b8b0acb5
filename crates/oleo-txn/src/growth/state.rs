//! What the engine knows of growth: chunks that wait to be recorded, groups that nothing is in, profiles of groups to come.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use hashbrown::HashMap;
use oleo_format::{BlockGroupFlags, ByteLen, Key, Logical};
use oleo_lock::{Mutex, MutexGuard, rank};
use oleo_space::{Kind, Run};
use oleo_tree::Change;
use oleo_volume::Profile;

/// A chunk on its way into the trees.
pub(crate) struct NewChunk {
    pub(crate) start: Logical,
    pub(crate) len: ByteLen,
    pub(crate) flags: BlockGroupFlags,
    pub(crate) free: Vec<(Logical, ByteLen)>,
    pub(crate) chunk_tree: Vec<Change>,
    pub(crate) dev_tree: Vec<Change>,
}

pub(crate) struct Growth {
    pub(super) plans: Mutex<rank::ChunkPlans, Vec<NewChunk>>,
    pub(super) growing: Mutex<rank::Growing, ()>,
    /// Groups that nothing is in, and since when that is known (see `relocate::idle`).
    pub(crate) idle: Mutex<rank::IdleGroups, HashMap<Logical, Instant>>,
    /// When all groups were last looked at for that.
    pub(crate) idle_looked: Mutex<rank::IdleGroups, Option<Instant>>,
    bytes_used: AtomicI64,
    /// How much of the devices was unallocated when metadata's growth was set; `u64::MAX` until then. While that is the same, so is the
    /// growth.
    pub(super) reported_of: AtomicU64,
    /// Type and profile of a group of each kind ([`note_found`](Growth::note_found)) as the volume was opened, which those to come are
    /// made like; 0 if there was none.
    pub(super) profiles: [AtomicU64; 3],
}

impl Growth {
    pub(crate) fn new(bytes_used: u64) -> Growth {
        Growth {
            plans: Mutex::new(Vec::new()),
            growing: Mutex::new(()),
            idle: Mutex::new(HashMap::new()),
            idle_looked: Mutex::new(None),
            bytes_used: AtomicI64::new(i64::try_from(bytes_used).unwrap_or(i64::MAX)),
            reported_of: AtomicU64::new(u64::MAX),
            profiles: Default::default(),
        }
    }

    /// A group that the volume has; called for all of them, in the order of their addresses.
    pub(crate) fn note_group(&self, flags: BlockGroupFlags) {
        for kind in Kind::ALL.into_iter().filter(|kind| flags.contains(kind.flag())) {
            self.profiles[kind as usize].store(flags.bits(), Ordering::Relaxed);
        }
    }

    /// The same of those that there are when the volume is opened. Of several profiles the one that survives most, since groups that were
    /// made while devices were lost are no model; of equal ones that of the newest.
    pub(crate) fn note_found(&self, flags: BlockGroupFlags) {
        let losses = |flags| Profile::of(flags).map_or(0, Profile::losses_max);
        for kind in Kind::ALL.into_iter().filter(|kind| flags.contains(kind.flag())) {
            let noted = BlockGroupFlags::from_bits_retain(self.profiles[kind as usize].load(Ordering::Relaxed));
            if noted.is_empty() || losses(flags) >= losses(noted) {
                self.profiles[kind as usize].store(flags.bits(), Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn take_plans(&self) -> Vec<NewChunk> {
        std::mem::take(&mut *self.plans.lock())
    }

    /// An item of the chunk tree is another now: chunks that wait to be recorded must not bring back the old one. No
    /// chunk is made meanwhile.
    pub(crate) fn replace_in_plans(&self, _held: &MutexGuard<'_, rank::Growing, ()>, key: &Key, item: &[u8]) {
        for plan in self.plans.lock().iter_mut() {
            for change in plan.chunk_tree.iter_mut().filter(|change| change.key == *key) {
                *change = Change::put(*key, item.to_vec());
            }
        }
    }

    /// Whether space lies in a chunk that is not recorded yet.
    pub(crate) fn is_uncommitted(&self, at: Logical) -> bool {
        self.plans.lock().iter().any(|plan| at >= plan.start && at < Run::new(plan.start, plan.len).end())
    }

    /// The space of chunks that are not recorded yet.
    pub(crate) fn uncommitted_chunks(&self) -> Vec<Run> {
        self.plans.lock().iter().map(|plan| Run::new(plan.start, plan.len)).collect()
    }

    pub(crate) fn has_plans(&self) -> bool {
        !self.plans.lock().is_empty()
    }

    /// While held, no chunk is made.
    pub(crate) fn lock_chunk_alloc(&self) -> MutexGuard<'_, rank::Growing, ()> {
        self.growing.lock()
    }

    pub(crate) fn add_bytes_used(&self, delta: i64) {
        self.bytes_used.fetch_add(delta, Ordering::Relaxed);
    }

    pub(crate) fn bytes_used(&self) -> u64 {
        u64::try_from(self.bytes_used.load(Ordering::Relaxed)).unwrap_or(0)
    }
}
