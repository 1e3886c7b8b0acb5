//! The engine: what is open, and the calls that everybody above uses.
//!
//! Normal path of a change: (1) `join` reserves metadata and joins the open transaction; (2) the crate above changes its
//! objects and reports to the handle which new extents it references and which checksums belong to them; (3) `commit`
//! (see `commit`) freezes, applies, settles, writes, publishes. Data goes to the volume before an item names it:
//! `reserve_data`, `alloc_data`, `write_data`, then (1).
//!
//! Locks: the table in `docs/locking.md` has them in their order. Held over I/O are `addresses`, the commit lock and what belongs to
//! it (one transaction is in flight, by design), `growth` (a file grows, or the end of a commit), and `agreed` (devices are told what is free).
//! Crash: everything here is memory; the last commit is what remains.

use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use hashbrown::{HashMap, HashSet};
use oleo_format::{
    ByteLen, CompatRo, Corruption, CsumType, Features, Generation, Incompat, Key, Logical, RootItem, SuperBlock, TreeId,
};
use oleo_lock::{Mutex, RwLock, rank};
use oleo_space::{Grant, Kind, Ledger, RefKey, Run, Space};
use oleo_tree::{Blocks, Change, Dirty, TreeRoot};
use oleo_volume::Volume;
use uuid::Uuid;

use crate::agree::Agreed;
use crate::barrier::{JoinGuard, SHARDS, TransactionBarrier};
use crate::commit::Unwritten;
use crate::csums::{Layout, Pending};
use crate::growth::Growth;
use crate::log::LogState;
use crate::metadata_reserve::MetadataReserve;
use crate::quota::limits::Charge;
use crate::readers::{Reader, Readers};
use crate::trees::{TreeState, Trees};
use crate::workers::Workers;
use crate::{TxnError, load};

/// How to open an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Open for reading only; nothing is ever written, not even a healed copy.
    pub read_only: bool,
    /// Bytes of tree blocks kept in memory.
    pub cache_bytes: usize,
    /// Bytes of new chunks at most, as long as there is not much else; `None` leaves it to the volume. For images that
    /// are cut to size in the end.
    pub chunk_len_max: Option<ByteLen>,
    /// For reading: go on without trees that cannot be read, as far as files can be read without them.
    pub ignore_bad_trees: bool,
    /// Tell the devices what each commit frees.
    pub discard: bool,
    /// Threads that commits run on, and as many again for file data; 0: as many as there are cores.
    pub threads: usize,
    /// Records of changed references (48 bytes each) that stages may leave in memory: with more, the next stage begins with
    /// a commit. So taking a large subvolume apart, or making many snapshots, is a row of commits of bounded length, between
    /// which others get theirs.
    pub staged_ref_changes_max: usize,
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            read_only: false,
            cache_bytes: 128 << 20,
            chunk_len_max: None,
            ignore_bad_trees: false,
            discard: false,
            threads: 0,
            staged_ref_changes_max: 128 * 1024,
        }
    }
}

/// What an operation may need from the metadata space until the next commit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Need {
    /// Items that it may add, change or delete.
    pub items: u32,
    /// Bytes of item data that it may add.
    pub bytes: u32,
    /// It gives space back in the end (unlink, truncate), or records data that was promised room: it may use the last reserve and
    /// what others were promised for later.
    pub releasing: bool,
}

/// What a data allocation wants.
#[derive(Clone, Copy, Debug)]
pub struct DataWant {
    /// As many bytes as this, a multiple of the sector size.
    pub len: ByteLen,
    /// No fewer than this.
    pub min_len: ByteLen,
    /// Allocations of one stream (an inode, say) are kept together.
    pub stream: u64,
    /// A new stream begins near the last new one of the same directory; 0 for none.
    pub directory: u64,
}

/// Whether a read of data is compared with its checksums.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CsumCheck {
    /// Every sector must have a checksum and match it.
    Verify,
    /// The file has none.
    Skip,
}

/// What the crate above hands over when a transaction is frozen.
#[derive(Default)]
pub struct Stage {
    /// Item changes per tree, sorted by key, one per key.
    pub trees: Vec<(TreeId, Vec<Change>)>,
    /// Root items whose file-level fields changed. Address, level, generations and drop progress are the engine's.
    pub root_items: Vec<(TreeId, RootItem)>,
}

/// The crate above, as the engine sees it.
pub trait DeltaSource: Send + Sync {
    /// No handle is out: what is open becomes frozen. Pointer moves only, no I/O, no waiting.
    fn freeze(&self);
    /// Turns what is frozen into sorted batches. New operations go on meanwhile.
    fn itemise(&self) -> Result<Stage, TxnError>;
    /// The trees' roots hold what was frozen (they were replaced before this call): it can be dropped.
    fn published(&self);
    /// Space is short: drops promises that nothing needs; whether there were any. Whoever asks for space may hold locks, but
    /// none that covers a promise.
    fn release_idle_reservations(&self) -> bool {
        false
    }
}

/// A volume with its trees, open for transactions. Clones are the same engine.
#[derive(Clone)]
pub struct Engine(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) volume: Arc<Volume>,
    pub(crate) blocks: Blocks,
    pub(crate) space: Space,
    pub(crate) ledger: Ledger,
    /// Records that stages have left in the ledger since the last commit.
    pub(crate) staged_ref_changes: AtomicUsize,
    pub(crate) staged_ref_changes_max: usize,
    pub(crate) ref_items_read: AtomicU64,
    pub(crate) dirty: Dirty,
    pub(crate) trees: Trees,
    pub(crate) quota: crate::quota::Quota,
    pub(crate) barrier: TransactionBarrier,
    /// Read by whoever goes by an address of data that it has looked up; written while data moves (see `relocate`).
    pub(crate) addresses: RwLock<rank::Addresses, ()>,
    pub(crate) commit_lock: Mutex<rank::Commit, ()>,
    /// A transaction that found no room below the devices: written before anything else is. Changed with the commit lock held.
    pub(crate) unwritten: Mutex<rank::Unwritten, Option<Unwritten>>,
    /// Commits begun since opening; raised with the commit lock held, just before joins are blocked.
    pub(crate) begun: AtomicU64,
    /// Which of them was the last that is durable.
    pub(crate) durable: AtomicU64,
    pub(crate) commit_workers: Workers,
    data_workers: Workers,
    pub(crate) source: RwLock<rank::Source, Option<Weak<dyn DeltaSource>>>,
    /// Groups in which what commits free may be discarded; held while that is done.
    pub(crate) agreed: Mutex<rank::Agreed, Agreed>,
    pub(crate) csums: Pending,
    pub(crate) layout: Layout,
    new_extents: Vec<Mutex<rank::NewExtents, Vec<NewExtent>>>,
    pub(crate) readers: Readers,
    pub(crate) metadata_reserve: MetadataReserve,
    pub(crate) growth: Growth,
    /// Where converting a shared subtree to full backrefs continues, for trees that are being dropped (see `drop`).
    pub(crate) backref_conversion: Mutex<rank::BackrefConversion, HashMap<TreeId, (Key, u8)>>,
    /// Groups whose old free-space caches nobody can take for true any more.
    pub(crate) invalidated_caches: Mutex<rank::InvalidatedCaches, HashSet<u64>>,
    pub(crate) super_block: Mutex<rank::SuperBlock, SuperBlock>,
    pub(crate) log: Mutex<rank::Log, LogState>,
    /// The generation of the last stage: changes of it were brought into the trees before their commit.
    pub(crate) staged: AtomicU64,
    /// The log that a crash left, to be replayed before anything is committed.
    pub(crate) unreplayed_log: crate::unreplayed_log::Slot,
    /// The generation that operations join now.
    pub(crate) open_generation: AtomicU64,
    /// Something joined or was staged since the last commit.
    pub(crate) touched: AtomicBool,
    poisoned_by: RwLock<rank::Poisoned, Option<Arc<str>>>,
    /// `poisoned_by` is set: looked at by every operation, and never written to until then.
    is_poisoned: AtomicBool,
    pub(crate) wanted_incompat: AtomicU64,
    /// A group with three or four copies was removed: the last one takes the feature with it.
    pub(crate) many_copies_gone: AtomicBool,
    pub(crate) rules: Rules,
}

/// Facts of the volume that do not change while it is open.
pub(crate) struct Rules {
    pub(crate) read_only: bool,
    pub(crate) nodesize: u32,
    pub(crate) sectorsize: u32,
    pub(crate) csum: CsumType,
    pub(crate) free_space_tree: bool,
    pub(crate) block_group_tree: bool,
    pub(crate) uuid_tree: bool,
    pub(crate) skinny: bool,
    pub(crate) metadata_uuid: Uuid,
    pub(crate) chunk_tree_uuid: Uuid,
    pub(crate) mixed: bool,
    pub(crate) ignore_bad_trees: bool,
    pub(crate) discard: bool,
    pub(crate) chunk_len_max: Option<ByteLen>,
}

/// Data that came to be referenced: where, how much, and who wrote it.
pub(crate) type NewExtent = (Logical, ByteLen, TreeId);

/// A place in the open transaction. Changes made while it lives go into one commit together.
pub struct Handle<'a> {
    inner: &'a Inner,
    join_guard: JoinGuard<'a>,
    generation: Generation,
}

impl Handle<'_> {
    /// The generation that the changes will be committed under.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// An item of this transaction names the granted data from now on (or did and no longer does: then it is given back at
    /// the commit). `owner` has written it.
    pub fn record_new_extent(&self, grant: Grant, owner: TreeId) {
        self.adopt(grant.keep(), owner);
    }

    /// The same for a run that was taken when the volume was opened.
    pub(crate) fn adopt(&self, run: Run, owner: TreeId) {
        self.inner.new_extents[self.join_guard.shard].lock().push((run.start, run.len, owner));
    }

    /// The checksums of data written at `at`, one per sector.
    pub fn add_csums(&self, at: Logical, csums: Vec<u8>) {
        if !csums.is_empty() {
            self.inner.csums.add(at, csums);
        }
    }
}

/// Data space promised to a writer; allocations draw on it. Dropping it gives the rest back.
///
/// With it comes a promise of the metadata that recording the data will need.
pub struct DataReservation {
    guard: oleo_space::Reservation,
    metadata: MetadataPromise,
    /// What a quota group was charged.
    charges: Vec<Charge>,
}

impl DataReservation {
    /// Takes over what is left of another one.
    pub fn absorb(&mut self, other: DataReservation) {
        self.guard.join(other.guard);
        let mut metadata = other.metadata;
        self.charges.extend(other.charges);
        self.metadata.needs.append(&mut metadata.needs);
    }
}

/// Metadata that is counted as needed while this lives.
struct MetadataPromise {
    inner: Arc<Inner>,
    needs: Vec<Need>,
}

impl Drop for MetadataPromise {
    fn drop(&mut self) {
        for need in self.needs.drain(..) {
            self.inner.metadata_reserve.cancel_promise(need);
        }
    }
}

/// Items that recording data needs at least: the extent's, those that it splits, the inode's.
const DATA_ITEMS: u32 = 5;
/// Data that is expected to lie in one extent when space is short, bytes.
const DATA_PER_ITEM: u64 = 64 << 10;
/// Item bytes that recording data needs at least: a small file lies in its item.
const DATA_ITEM_BYTES: u32 = 4096;
/// Data bytes for each byte of items: checksums, and extents of a few sectors.
const DATA_PER_ITEM_BYTE: u64 = 64;

/// Times that an operation comes back with more room, which others may have taken meanwhile.
const TRIES_MAX: u32 = 32;
/// Commits that an operation makes to have room.
const COMMITS_MAX: u32 = 2;

fn no_metadata(inner: &Inner, need: Need) -> TxnError {
    let wanted = ByteLen(u64::from(need.bytes) + u64::from(inner.rules.nodesize));
    TxnError::NoSpace { what: "metadata", wanted }
}

/// What recording `len` bytes of data needs.
fn need_of_data(len: ByteLen) -> Need {
    let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX / 4);
    Need {
        items: DATA_ITEMS + small(len.0 / DATA_PER_ITEM),
        bytes: DATA_ITEM_BYTES + small(len.0 / DATA_PER_ITEM_BYTE),
        releasing: false,
    }
}

impl Engine {
    /// Opens the trees of `volume`. For writing it refuses what it cannot carry on: an interrupted replace of a device,
    /// features it does not know. Where there is a log, what it uses is kept, and no commit happens
    /// before [`Engine::log_applied`].
    pub fn open(volume: Arc<Volume>, opts: &EngineOptions) -> Result<Engine, TxnError> {
        load::open(volume, opts)
    }

    pub(crate) fn assemble(
        volume: Arc<Volume>,
        blocks: Blocks,
        sb: SuperBlock,
        rules: Rules,
        opts: &EngineOptions,
    ) -> Engine {
        let layout = Layout {
            sectorsize: u64::from(rules.sectorsize),
            csum_len: rules.csum.csum_len() as u64,
            // Room for one item that nearly fills a leaf would make every insert rewrite a leaf's worth of sums; half a
            // leaf keeps items long and edits cheap.
            item_bytes_max: oleo_format::leaf_capacity(rules.nodesize) as u64 / 2,
        };
        let generation = sb.generation.get();
        let growth = Growth::new(sb.bytes_used.get());
        Engine(Arc::new_cyclic(|this| Inner {
            blocks,
            space: Space::new(rules.sectorsize, rules.nodesize, Arc::new(load::Source(this.clone()))),
            ledger: Ledger::new(),
            staged_ref_changes: AtomicUsize::new(0),
            staged_ref_changes_max: opts.staged_ref_changes_max,
            ref_items_read: AtomicU64::new(0),
            dirty: Dirty::new(),
            trees: Trees::default(),
            quota: crate::quota::Quota::default(),
            barrier: TransactionBarrier::new(),
            addresses: RwLock::new(()),
            commit_lock: Mutex::new(()),
            unwritten: Mutex::new(None),
            begun: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            commit_workers: Workers::new("oleo-commit", opts.threads),
            data_workers: Workers::new("oleo-data", opts.threads),
            source: RwLock::new(None),
            agreed: Mutex::default(),
            csums: Pending::default(),
            layout,
            new_extents: (0..SHARDS).map(|_| Mutex::new(Vec::new())).collect(),
            readers: Readers::new(),
            metadata_reserve: MetadataReserve::new(rules.nodesize),
            growth,
            backref_conversion: Mutex::new(HashMap::new()),
            invalidated_caches: Mutex::new(HashSet::new()),
            super_block: Mutex::new(sb),
            log: Mutex::new(LogState::new(sb)),
            staged: AtomicU64::new(0),
            unreplayed_log: Mutex::new(None),
            open_generation: AtomicU64::new(generation + 1),
            touched: AtomicBool::new(false),
            poisoned_by: RwLock::new(None),
            is_poisoned: AtomicBool::new(false),
            wanted_incompat: AtomicU64::new(0),
            many_copies_gone: AtomicBool::new(false),
            rules,
            volume,
        }))
    }

    /// The volume below.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.0.volume
    }
    /// The block cache and tree walker.
    pub fn blocks(&self) -> &Blocks {
        &self.0.blocks
    }
    /// The allocator, for counts; allocate through the engine.
    pub fn space(&self) -> &Space {
        &self.0.space
    }
    /// Bytes per sector.
    pub fn sectorsize(&self) -> u32 {
        self.0.rules.sectorsize
    }
    /// Bytes per tree block.
    pub fn nodesize(&self) -> u32 {
        self.0.rules.nodesize
    }
    /// The checksum algorithm of the volume.
    pub fn csum_type(&self) -> CsumType {
        self.0.rules.csum
    }
    /// Whether data and metadata share block groups.
    pub fn is_mixed(&self) -> bool {
        self.0.rules.mixed
    }
    /// The features of the superblock, those asked for since included.
    pub fn features(&self) -> Features {
        let mut f = self.0.super_block.lock().features();
        f.incompat |= Incompat::from_bits_retain(self.0.wanted_incompat.load(Ordering::Relaxed));
        f
    }
    /// Whether the volume keeps a UUID tree.
    pub fn has_uuid_tree(&self) -> bool {
        self.0.rules.uuid_tree
    }
    /// The generation that operations join now.
    pub fn generation(&self) -> Generation {
        Generation(self.0.open_generation.load(Ordering::Acquire))
    }
    /// Whether it was opened for reading or turned read-only by an error; then why.
    pub fn read_only(&self) -> Option<Arc<str>> {
        self.0.writable().err().map(|e| e.to_string().into())
    }
    /// The error that turned it read-only, if one did.
    pub fn poisoned_by(&self) -> Option<Arc<str>> {
        if !self.0.is_poisoned.load(Ordering::Acquire) {
            return None;
        }
        self.0.poisoned_by.read().clone()
    }

    /// Whether anything was changed since the last commit began: whether another would write anything.
    pub fn has_changes(&self) -> bool {
        self.0.touched.load(Ordering::Acquire) || self.0.unwritten.lock().is_some()
    }

    /// Item changes that operations have announced since the last freeze: about how many the next commit has to itemise.
    pub fn open_items(&self) -> u64 {
        self.0.metadata_reserve.items()
    }

    /// Records of changed references that the next commit has to settle besides those.
    pub fn staged_ref_changes(&self) -> usize {
        self.0.staged_ref_changes.load(Ordering::Relaxed)
    }

    /// Items of extents' references that commits have looked for or met since opening: a measure of their work.
    pub fn ref_items_read(&self) -> u64 {
        self.0.ref_items_read.load(Ordering::Relaxed)
    }

    /// Bytes free in the groups of data that nobody has been promised.
    pub fn data_free(&self) -> ByteLen {
        let totals = self.0.space.totals(Kind::Data);
        ByteLen(totals.free.0.saturating_sub(totals.reserved.0))
    }

    /// The generation that is on disk.
    pub fn durable(&self) -> Generation {
        Generation(self.0.super_block.lock().generation.get())
    }

    /// Runs `f`, which computes or reads and waits for nobody, on the engine's threads for file data.
    pub fn compute<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        self.0.data_workers.run(f)
    }

    /// The superblock as last written, or opened.
    pub fn super_block(&self) -> SuperBlock {
        *self.0.super_block.lock()
    }

    /// Changes superblock fields that no tree holds (label, default flags …); they are written with the next commit.
    pub fn edit_super(&self, edit: impl FnOnce(&mut SuperBlock)) -> Result<(), TxnError> {
        self.0.writable()?;
        edit(&mut self.0.super_block.lock());
        self.0.touched.store(true, Ordering::Release);
        Ok(())
    }

    /// The volume will use `feature` from the next commit on.
    pub fn require_incompat(&self, feature: Incompat) {
        self.0.wanted_incompat.fetch_or(feature.bits(), Ordering::Relaxed);
    }

    /// While the value lives, nothing that can be reached now is overwritten.
    pub fn reader(&self) -> Reader {
        self.0.readers.enter()
    }

    /// The newest root of a tree, staged changes included.
    pub fn root(&self, tree: TreeId) -> Result<Option<TreeRoot>, TxnError> {
        if let Some(root) = self.0.trees.peek_root(tree) {
            return Ok(Some(root));
        }
        let _reader = self.reader();
        Ok(self.0.trees.get(&self.0.blocks, tree)?.map(|t| t.root))
    }

    /// How many trees are known in memory.
    #[doc(hidden)]
    pub fn trees_known(&self) -> usize {
        self.0.trees.len()
    }

    /// The root item of a tree that has one.
    pub fn root_item(&self, tree: TreeId) -> Result<Option<RootItem>, TxnError> {
        let _reader = self.reader();
        Ok(self.0.trees.get(&self.0.blocks, tree)?.and_then(|t| t.item))
    }

    /// The offset of a tree's root item key: the generation of a snapshot's making, 0 for others.
    pub fn root_key_offset(&self, tree: TreeId) -> Result<Option<u64>, TxnError> {
        let _reader = self.reader();
        Ok(self.0.trees.get(&self.0.blocks, tree)?.map(|t| t.key_offset))
    }

    /// Sets where a freeze gets its changes from: the crate above, which holds them in memory.
    pub fn set_source(&self, source: Weak<dyn DeltaSource>) {
        *self.0.source.write() = Some(source);
    }

    /// Reserves metadata for an operation and joins the open transaction. The caller holds no lock that
    /// [`DeltaSource`] needs and no other handle: where space is short, a commit happens in here.
    pub fn join(&self, need: Need) -> Result<Handle<'_>, TxnError> {
        self.0.writable()?;
        match self.join_charged(|metadata_reserve| metadata_reserve.charge(need)) {
            Some(handle) => Ok(handle),
            None => self.join_slowly(need),
        }
    }

    /// Joins the open transaction if `charge` counts the operation in.
    fn join_charged(&self, charge: impl FnOnce(&MetadataReserve) -> bool) -> Option<Handle<'_>> {
        let join_guard = self.0.barrier.join();
        if !charge(&self.0.metadata_reserve) {
            return None;
        }
        if !self.0.touched.load(Ordering::Relaxed) {
            self.0.touched.store(true, Ordering::Release);
        }
        let generation = self.generation();
        Some(Handle { inner: &self.0, join_guard, generation })
    }

    /// Makes room without being joined, then joins and tries again: others may have taken the room meanwhile.
    fn join_slowly(&self, need: Need) -> Result<Handle<'_>, TxnError> {
        let inner = &*self.0;
        let mut commits = 0;
        for _ in 0..TRIES_MAX {
            inner.metadata_reserve.wait_for_alone();
            let has_room = inner.grow_reserve_or_release_idle(need)?;
            if let Some(handle) = self.join_charged(|metadata_reserve| metadata_reserve.charge(need)) {
                return Ok(handle);
            }
            if has_room {
                continue;
            }
            if commits == COMMITS_MAX {
                break;
            }
            // Committing gives back what the open transaction holds beyond its real need, and what it freed.
            commits += 1;
            self.commit()?;
            inner.reap();
        }
        if need.releasing {
            return self.join_alone(need);
        }
        Err(no_metadata(inner, need))
    }

    /// Lets a releasing operation in that nothing covers, as the only one of its transaction so far.
    fn join_alone(&self, need: Need) -> Result<Handle<'_>, TxnError> {
        let inner = &*self.0;
        let alone = inner.metadata_reserve.alone();
        for _ in 0..TRIES_MAX {
            self.commit()?;
            inner.reap();
            let free = inner.free_metadata();
            if let Some(handle) =
                self.join_charged(|metadata_reserve| metadata_reserve.charge_alone(&alone, need, free))
            {
                return Ok(handle);
            }
        }
        Err(no_metadata(inner, need))
    }

    /// Promises space for data. May commit when space is short; the same rules as for [`Engine::join`].
    pub fn reserve_data(&self, len: ByteLen) -> Result<DataReservation, TxnError> {
        self.0.writable()?;
        let mut guard = self.0.reserve_growing(Kind::Data, len)?;
        if guard.is_none() && self.0.release_idle_reservations() {
            guard = self.0.reserve_growing(Kind::Data, len)?;
        }
        let guard = match guard {
            Some(guard) => guard,
            None => {
                self.commit()?;
                self.0.reap();
                let again = self.0.reserve_growing(Kind::Data, len)?;
                again.ok_or(TxnError::NoSpace { what: "data", wanted: len })?
            }
        };
        let metadata = self.promise_metadata(need_of_data(len))?;
        Ok(DataReservation { guard, metadata, charges: Vec::new() })
    }

    /// The same for data that a subvolume will come to reference, as far as its quota goes.
    pub fn reserve_data_in(&self, tree: TreeId, len: ByteLen) -> Result<DataReservation, TxnError> {
        let charge = self.charge_data(tree, len)?;
        let mut promise = self.reserve_data(len)?;
        promise.charges.extend(charge);
        Ok(promise)
    }

    /// The same for one that was refused for its quota, which has others counted first, as `settle` sees to, and is then charged the
    /// data alone.
    pub fn reserve_data_alone<E: From<TxnError>>(
        &self,
        tree: TreeId,
        len: ByteLen,
        settle: impl Fn() -> Result<(), E>,
    ) -> Result<DataReservation, E> {
        let charge = self.charge_data_alone(tree, len, settle)?;
        let mut promise = self.reserve_data(len)?;
        promise.charges.extend(charge);
        Ok(promise)
    }

    fn promise_metadata(&self, need: Need) -> Result<MetadataPromise, TxnError> {
        let inner = &self.0;
        {
            // No freeze comes between.
            let _join_guard = inner.barrier.join();
            inner.metadata_reserve.promise(need);
        }
        // From here on an early return takes it back.
        let promise = MetadataPromise { inner: inner.clone(), needs: vec![need] };
        let nothing_more = Need::default();
        if inner.metadata_reserve.shortfall_for(nothing_more).is_none()
            || inner.grow_reserve_or_release_idle(nothing_more)?
        {
            return Ok(promise);
        }
        for _ in 0..COMMITS_MAX {
            self.commit()?;
            inner.reap();
            if inner.grow_metadata_reserve(nothing_more)? {
                return Ok(promise);
            }
        }
        Err(no_metadata(inner, need))
    }

    /// The same out of a promise, which is drawn on before what nobody was promised: what was promised is there, however
    /// little else is.
    pub fn alloc_data_from(&self, promise: &DataReservation, want: DataWant) -> Result<Grant, TxnError> {
        self.0.writable()?;
        self.0.alloc_data(Some(&promise.guard), want)
    }

    /// Takes space for data, at most what is wanted, in one run.
    pub fn alloc_data(&self, want: DataWant) -> Result<Grant, TxnError> {
        self.0.writable()?;
        self.0.alloc_data(None, want)
    }

    /// Writes data to all its copies. Not flushed; a commit flushes before anything names it.
    pub fn write_data(&self, parts: &[(Logical, &[u8])]) -> Result<(), TxnError> {
        self.0.writable()?;
        self.0.volume.write(parts).map_err(|e| self.0.poison_unless_full(e.into()))
    }

    /// Reads data, from a copy that matches its checksums where `check` says so.
    pub fn read_data(&self, at: Logical, buf: &mut [u8], check: CsumCheck) -> Result<(), TxnError> {
        let csums = match check {
            CsumCheck::Skip => None,
            CsumCheck::Verify => match self.csums(at, ByteLen(buf.len() as u64)) {
                Ok(csums) => Some(csums),
                // There is nothing to compare with.
                Err(_) if self.0.rules.ignore_bad_trees => None,
                Err(e) => return Err(e),
            },
        };
        Ok(self.0.volume.read_data(at, buf, csums.as_deref())?)
    }

    /// The checksums of a range of data, one per sector.
    pub fn csums(&self, at: Logical, len: ByteLen) -> Result<Vec<u8>, TxnError> {
        // The pending half is asked first inside; the root is taken before it, so a settling in between is seen in one.
        let _reader = self.reader();
        for _ in 0..2 {
            let root = self.root(TreeId::CSUM)?.ok_or(TxnError::NoTree(TreeId::CSUM))?;
            if let Ok(sums) = self.0.csums.lookup(self.0.layout, &self.0.blocks, &root, at, len)? {
                return Ok(sums);
            }
        }
        Err(TxnError::NoChecksum(at))
    }

    /// Who referred to the extent at `at` when the extent tree was last settled; nobody where it is younger.
    pub fn extent_users(&self, at: Logical) -> Result<Vec<RefKey>, TxnError> {
        let _reader = self.reader();
        let root = self.root(TreeId::EXTENT)?.ok_or(TxnError::NoTree(TreeId::EXTENT))?;
        crate::extents::stored_users(&mut self.0.blocks.cursor(&root), at)
    }

    /// How many references the extent at `at` has: those on disk and in the ledger; changes that have not been frozen yet
    /// are not seen.
    pub fn extent_refs(&self, at: Logical) -> Result<u64, TxnError> {
        let root = self.root(TreeId::EXTENT)?.ok_or(TxnError::NoTree(TreeId::EXTENT))?;
        let mut cursor = self.0.blocks.cursor(&root);
        let stored = crate::extents::stored_state(&mut cursor, at)?.map_or(0, |(refs, _)| refs);
        let refs = i128::from(stored) + i128::from(self.0.ledger.pending(at).refs);
        u64::try_from(refs).map_err(|_| {
            Corruption::new("extent tree", "count", refs, "0 or more").within(format!("extent {at}")).into()
        })
    }
}

impl Engine {
    /// Refuses everything that writes from now on, as after an error that leaves memory and disk apart.
    pub fn refuse_changes(&self, why: &str) {
        self.0.poison(TxnError::Source(why.into()));
    }
}

impl Inner {
    pub(crate) fn writable(&self) -> Result<(), TxnError> {
        if self.rules.read_only {
            return Err(TxnError::ReadOnly("it was opened for reading".into()));
        }
        if !self.is_poisoned.load(Ordering::Acquire) {
            return Ok(());
        }
        match &*self.poisoned_by.read() {
            Some(why) => Err(TxnError::ReadOnly(why.clone())),
            None => Ok(()),
        }
    }

    /// The same, but for a write that found no room below: whoever wrote keeps what it was, to write it again.
    pub(crate) fn poison_unless_full(&self, error: TxnError) -> TxnError {
        if error.is_full() { error } else { self.poison(error) }
    }

    /// Remembers the first error that leaves memory and disk apart: from now on nothing is written.
    pub(crate) fn poison(&self, error: TxnError) -> TxnError {
        self.poisoned_by.write().get_or_insert_with(|| format!("an earlier error: {error}").into());
        self.is_poisoned.store(true, Ordering::Release);
        error
    }

    /// Reserves what the open transaction lacks to let `need` in, at the price of promises that nobody needs; `false` if there is
    /// no room.
    fn grow_reserve_or_release_idle(&self, need: Need) -> Result<bool, TxnError> {
        Ok(self.grow_metadata_reserve(need)?
            || (self.release_idle_reservations() && self.grow_metadata_reserve(need)?))
    }

    /// Has the crate above release reservations that it does not need; returns whether there were any.
    pub(crate) fn release_idle_reservations(&self) -> bool {
        let source = self.source.read().as_ref().and_then(Weak::upgrade);
        source.is_some_and(|source| source.release_idle_reservations())
    }

    pub(crate) fn take_new_extents(&self) -> Vec<NewExtent> {
        self.new_extents.iter().flat_map(|s| std::mem::take(&mut *s.lock())).collect()
    }

    pub(crate) fn tree(&self, tree: TreeId) -> Result<TreeState, TxnError> {
        self.trees.get(&self.blocks, tree)?.ok_or(TxnError::NoTree(tree))
    }

    /// Returns to the allocator what no reader can need any more. With `discard` it is discarded first, so the
    /// caller does not hold the commit lock: others continue meanwhile, without that space.
    pub(crate) fn reap(&self) {
        if !self.rules.discard {
            self.readers.reap().into_iter().for_each(|pins| self.space.release(pins));
            return;
        }
        // A caller in need of space waits for what another thread is discarding.
        let mut agreed = self.agreed.lock();
        for pins in self.readers.reap() {
            for run in pins.runs() {
                let group = self.space.group(run.start).map(|group| group.start);
                if group.is_ok_and(|group| self.may_discard_in(&mut agreed, group)) {
                    // A device that does not take the hint keeps what nobody needs: no harm.
                    let _ = self.volume.discard(run.start, run.len);
                }
            }
            self.space.release(pins);
        }
    }

    /// The same for a holder of the commit lock, which must be released before anything is discarded.
    pub(crate) fn reap_quickly(&self) {
        if !self.rules.discard {
            self.reap();
        }
    }

    pub(crate) fn has_free_space_tree(sb: &SuperBlock) -> bool {
        sb.features().compat_ro.contains(CompatRo::FREE_SPACE_TREE | CompatRo::FREE_SPACE_TREE_VALID)
    }
}
