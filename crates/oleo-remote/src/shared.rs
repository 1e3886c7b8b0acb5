//! What all parts of an open volume share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use oleo_lock::{Mutex, rank};

use crate::away::Away;
use crate::cache::Cache;
use crate::disk_cache::DiskCache;
use crate::error::RemoteError;
use crate::format::ObjectId;
use crate::format::head::Head;
use crate::format::packing::Coder;
use crate::format::pins::Pin;
use crate::format::segment::Bound;
use crate::local_log::LocalLog;
use crate::options::StoreOptions;
use crate::origins::{OriginStore, Source, open_origins};
use crate::state::State;
use crate::store::{Deadline, Store, Version};

/// The newest head, as far as this writer knows.
pub(crate) struct Published {
    pub(crate) head: Head,
    /// None: there is none yet.
    pub(crate) version: Option<Version>,
    /// When that was known.
    pub(crate) at: Duration,
    /// Commit ids of heads that were sent in its place and given up; they may still come to be there.
    pub(crate) given_up: Vec<[u8; 16]>,
}

impl Published {
    pub(crate) fn new(head: Head, version: Option<Version>, at: Duration) -> Published {
        Published { head, version, at, given_up: Vec::new() }
    }
}

/// An open volume.
pub(crate) struct Core {
    /// Repeats what may be repeated.
    pub(crate) store: Arc<dyn Store>,
    pub(crate) options: StoreOptions,
    pub(crate) name: Arc<str>,
    pub(crate) uuid: [u8; 16],
    pub(crate) epoch: u32,
    pub(crate) write: bool,
    pub(crate) coder: Coder,
    pub(crate) state: Mutex<rank::RemoteState, State>,
    pub(crate) published: Mutex<rank::RemotePublish, Published>,
    /// The volumes whose objects it names, by their numbers from 1.
    pub(crate) origins: Arc<Vec<OriginStore>>,
    /// Whose head it was opened from.
    pub(crate) source: Source,
    pub(crate) edges: Mutex<rank::RemoteEdges, ()>,
    /// What keeps the moment that is read, once it was taken.
    pub(crate) lease: OnceLock<Pin>,
    /// Whether a pin keeps it.
    pub(crate) pinned: bool,
    /// Whoever read is done: no lease is taken or renewed any more.
    pub(crate) given_up: AtomicBool,
    /// The failure that ended writing.
    pub(crate) latch: OnceLock<Arc<RemoteError>>,
    /// Frames that are stored.
    pub(crate) cache: Arc<Cache>,
    /// Frames in memory, unpacked. Those of a reader are in places of its own, which others have other frames in.
    pub(crate) unpacked: Arc<Cache>,
    /// Pages of the map and directories as they are stored, for a reader that follows.
    pub(crate) pages: Option<Arc<Cache>>,
    /// Frames and pages on the local disk.
    pub(crate) disk: Option<Arc<DiskCache>>,
    /// What is durable on the local disk before it is in the store.
    pub(crate) log: Option<LocalLog>,
    /// When a head was last noted beside the disk cache, milliseconds of the host's clock.
    pub(crate) noted: AtomicU64,
    pub(crate) counts: Arc<Counts>,
    /// Whether the store answers, and which frames are damaged.
    pub(crate) away: Arc<Away>,
}

/// What was done since it was opened.
#[derive(Default, Debug)]
pub(crate) struct Counts {
    pub(crate) reads: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) write_bytes: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) discards: AtomicU64,
    pub(crate) gets: AtomicU64,
    pub(crate) segment_puts: AtomicU64,
    pub(crate) head_puts: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) cache_hits: AtomicU64,
    pub(crate) deletes: AtomicU64,
    pub(crate) moved_bytes: AtomicU64,
    pub(crate) disk_hits: AtomicU64,
}

/// Adds to a count.
pub(crate) fn add(count: &AtomicU64, n: u64) {
    count.fetch_add(n, Ordering::Relaxed);
}

impl Core {
    /// An open volume of which nothing is read yet but the head.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        head: Head,
        version: Option<Version>,
        options: &StoreOptions,
        write: bool,
    ) -> Result<Core, RemoteError> {
        let disk = options.cache.as_ref().map(|cache| DiskCache::open(&cache.dir, head.uuid, cache.bytes_max));
        let cache = Arc::new(Cache::new(options.bounds.cache_bytes_max));
        Ok(Core {
            name: store.describe().into(),
            uuid: head.uuid,
            epoch: head.epoch,
            write,
            coder: Coder::of(&head),
            state: Mutex::new(State::new(&head, head.epoch)),
            origins: Arc::new(open_origins(&store.describe(), &head, options)?),
            store,
            source: Source { uuid: head.uuid, shift: 0 },
            edges: Mutex::new(()),
            lease: OnceLock::new(),
            pinned: false,
            given_up: AtomicBool::new(false),
            latch: OnceLock::new(),
            unpacked: cache.clone(),
            cache,
            pages: None,
            disk: disk.transpose()?.map(Arc::new),
            log: None,
            noted: 0.into(),
            counts: Arc::default(),
            away: Arc::default(),
            options: options.clone(),
            published: Mutex::new(Published::new(head, version, options.host.now())),
        })
    }

    /// The store that has an object, and the volume that made it.
    pub(crate) fn owner_of(&self, id: ObjectId) -> Option<(&dyn Store, [u8; 16])> {
        match id.origin {
            0 => Some((&*self.store, self.uuid)),
            n => self.origins.get(usize::from(n) - 1).map(|origin| (&*origin.store, origin.uuid)),
        }
    }

    /// Where parts of an object are kept on the local disk, and by which name: that of the volume that made it.
    pub(crate) fn disk_of(&self, id: ObjectId) -> Option<(&DiskCache, ObjectId)> {
        let disk = match id.origin {
            0 => self.disk.as_deref(),
            n => self.origins.get(usize::from(n) - 1).and_then(|origin| origin.disk.as_ref()),
        };
        disk.map(|disk| (disk, ObjectId { origin: 0, ..id }))
    }

    /// All of those.
    pub(crate) fn disks(&self) -> impl Iterator<Item = &DiskCache> {
        self.disk.as_deref().into_iter().chain(self.origins.iter().filter_map(|origin| origin.disk.as_ref()))
    }

    /// What is sealed or summed in an object is bound to it, and to the volume that made it.
    pub(crate) fn bound(&self, id: ObjectId) -> Bound {
        Bound { uuid: self.owner_of(id).map_or(self.uuid, |(_, uuid)| uuid), id }
    }

    /// The failure that ended writing, if one did.
    pub(crate) fn check_latch(&self) -> Result<(), RemoteError> {
        match self.latch.get() {
            Some(first) => Err(RemoteError::Latched { first: first.clone() }),
            None => Ok(()),
        }
    }

    /// Ends writing, by the first failure that comes here.
    pub(crate) fn close_latch(&self, error: &RemoteError) {
        let _first = self.latch.set(Arc::new(error.clone()));
    }

    /// When something must be over that may take so long.
    pub(crate) fn deadline(&self, time: Duration) -> Deadline {
        self.options.host.now() + time
    }
}
