//! The engine: what is open, and what can be asked about it. Everything that it does is in the files above this one.
//!
//! Normal path of a change: (1) `join` (see `join`) reserves metadata and joins the open transaction; (2) the crate above changes its
//! objects and reports to the handle which new extents it references and which checksums belong to them; (3) `commit`
//! (see `commit`) freezes, applies, settles, writes, publishes. Data goes to the volume before an item names it:
//! `reserve_data`, `alloc_data`, `write_data` (see `file_data`), then (1).
//!
//! Locks: the table in `docs/locking.md` has them in their order. Held over I/O are `addresses`, the commit lock and what belongs to
//! it (one transaction is in flight, by design), `growth` (a file grows, or the end of a commit), and `agreed` (devices discard what is free).
//! Crash: everything here is memory; the last commit is what remains.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{OnceLock, Weak};

use hashbrown::{HashMap, HashSet};
use oleo_format::{
    BlockGroupFlags, ByteLen, CsumType, Features, Generation, Incompat, Key, Logical, RootItem, SuperBlock, TreeId,
};
use oleo_lock::{Mutex, RwLock, rank};
use oleo_space::{FreeSource, GroupInfo, Kind, Ledger, PinSet, Space};
use oleo_tree::{Blocks, Dirty, Node, TreeRoot};
use oleo_volume::Volume;
use uuid::Uuid;

use crate::TxnError;
use crate::barrier::{SHARDS, TransactionBarrier, thread_shard};
use crate::csums::{Layout, Pending};
use crate::data_ahead::DataAhead;
use crate::growth::state::Growth;
use crate::log::state::{LogOnDisk, LogState};
use crate::metadata_reserve::MetadataReserve;
use crate::options::EngineOptions;
use crate::quota::state::Quota;
use crate::readers::{Look, Reader, Readers};
use crate::source::DeltaSource;
use crate::trees::{TreeState, Trees};
use crate::unreplayed_log::found::UnreplayedLog;
use crate::workers::Workers;

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
    /// Blocks of the root tree, whose size no root item has.
    pub(crate) root_tree_blocks: AtomicU64,
    /// Blocks that commits took beyond what was reserved for them.
    pub(crate) overdrawn: AtomicU64,
    pub(crate) quota: Quota,
    pub(crate) barrier: TransactionBarrier,
    /// Read while an address of data that was looked up is used; written while data moves (see `relocate`).
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
    pub(crate) new_extents: Vec<OnLines<Mutex<rank::NewExtents, Vec<NewExtent>>>>,
    pub(crate) readers: Readers,
    pub(crate) metadata_reserve: Arc<MetadataReserve>,
    pub(crate) data_ahead: Arc<DataAhead>,
    /// What promises hold of these two.
    pub(crate) promise_shares: Box<[PromiseShares]>,
    pub(crate) growth: Growth,
    /// Where converting a shared subtree to full backrefs continues, for trees that are being dropped (see `drop`).
    pub(crate) backref_conversion: Mutex<rank::BackrefConversion, HashMap<TreeId, (Key, u8)>>,
    /// Groups whose old free-space caches are marked as invalid on disk.
    pub(crate) invalidated_caches: Mutex<rank::InvalidatedCaches, HashSet<u64>>,
    pub(crate) super_block: Mutex<rank::SuperBlock, SuperBlock>,
    /// Held by who writes a log commit.
    pub(crate) log_writer: Mutex<rank::LogWriter, ()>,
    /// Read by those who find out what the log needs; written while changes are frozen and brought into the trees.
    pub(crate) log_recording: RwLock<rank::LogRecording, ()>,
    pub(crate) log: Mutex<rank::Log, LogState>,
    /// The last generation whose log a commit has ended: nothing is written to the places of its blocks any more.
    pub(crate) log_given_up: Mutex<rank::LogGivenUp, Generation>,
    /// Held while a superblock is written.
    pub(crate) log_on_disk: Mutex<rank::LogOnDisk, LogOnDisk>,
    /// The generation of the last stage: changes of it were brought into the trees before their commit.
    pub(crate) staged: AtomicU64,
    /// The last generation that no log can say anything of.
    pub(crate) log_disabled: AtomicU64,
    /// The log that a crash left, to be replayed before anything is committed.
    pub(crate) unreplayed_log: Mutex<rank::UnreplayedLog, Option<Arc<UnreplayedLog>>>,
    /// Set when it is open; see [`Engine::not_read`].
    pub(crate) not_read: OnceLock<Vec<(&'static str, TxnError)>>,
    /// The generation that operations join now.
    pub(crate) open_generation: AtomicU64,
    /// Something joined or was staged since the last commit.
    pub(crate) touched: AtomicBool,
    poisoned_by: RwLock<rank::Poisoned, Option<Arc<str>>>,
    /// `poisoned_by` is set: looked at by every operation, and never written to until then.
    is_poisoned: AtomicBool,
    pub(crate) wanted_incompat: AtomicU64,
    /// Features that the profiles of removed groups need: the last group takes its feature with it.
    pub(crate) profile_gone: AtomicU64,
    pub(crate) rules: Rules,
}

/// Where promises come from. Each thread's promises are counted in one place, so that threads do not share a count.
pub(crate) struct PromiseSource {
    pub(crate) metadata: Arc<MetadataReserve>,
    pub(crate) data: Arc<DataAhead>,
}

/// The count of some threads' promises.
#[repr(align(128))]
pub(crate) struct PromiseShares(Arc<OnLines<PromiseSource>>);

/// On lines of its own, its count included.
#[repr(align(128))]
pub(crate) struct OnLines<T>(pub(crate) T);

impl PromiseShares {
    fn new(metadata: &Arc<MetadataReserve>, data: &Arc<DataAhead>) -> PromiseShares {
        PromiseShares(Arc::new(OnLines(PromiseSource { metadata: metadata.clone(), data: data.clone() })))
    }
}

/// Facts of the volume that do not change while it is open.
pub(crate) struct Rules {
    pub(crate) read_only: bool,
    pub(crate) nodesize: u32,
    pub(crate) sectorsize: u32,
    pub(crate) csum: CsumType,
    pub(crate) free_space_tree: bool,
    /// It is being made, so that what is free is read from the extent tree.
    pub(crate) free_from_extents: bool,
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

/// A transaction that is settled and not on disk.
pub(crate) struct Unwritten {
    /// Which of the commits begun.
    pub(crate) number: u64,
    pub(crate) generation: Generation,
    /// The superblock with the log that ends, for the mirrors that do not have it.
    pub(crate) logged: Option<SuperBlock>,
    pub(crate) blocks: Vec<Arc<Node>>,
    /// The superblock that `sb` was made from.
    pub(crate) before: SuperBlock,
    pub(crate) sb: SuperBlock,
}

/// How often a look at a group in which something is to be discarded found that its count does not agree (see `agree`); 0 for groups
/// that agreed once: from then on all that changes is ours.
pub(crate) type Agreed = HashMap<Logical, u32>;

impl Engine {
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
        let inner = &*self.0;
        inner.touched.load(Ordering::Acquire) || inner.unwritten.lock().is_some() || inner.volume.owes_commit()
    }

    /// Item changes that operations have announced since the last freeze: about how many the next commit has to itemise.
    pub fn open_items(&self) -> u64 {
        self.0.metadata_reserve.items()
    }

    /// Whether they are more than so many. Cheap as long as they are far from it.
    pub fn has_open_items_over(&self, max: u64) -> bool {
        self.0.metadata_reserve.items_at_most() > max && self.open_items() > max
    }

    /// So many subvolumes that may be changed are in memory; called before one more is changed.
    pub fn note_subvols(&self, count: usize) {
        self.0.metadata_reserve.note_subvols(count as u64);
    }

    /// Blocks that commits took beyond what was reserved for them, since opening: none, if all bounds hold.
    #[doc(hidden)]
    pub fn overdrawn(&self) -> u64 {
        self.0.overdrawn.load(Ordering::Relaxed)
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

    /// The same for a look-up, on this thread: it takes no lock and writes to no line that other threads use.
    pub fn look(&self) -> Look<'_> {
        self.0.readers.look()
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

    /// Refuses everything that writes from now on, as after an error that leaves memory and disk apart.
    pub fn refuse_changes(&self, why: &str) {
        self.0.poison(TxnError::Source(why.into()));
    }
}

impl Inner {
    /// An engine without trees and block groups; `free_space` knows what is free in a group.
    pub(crate) fn new(
        volume: Arc<Volume>,
        blocks: Blocks,
        rules: Rules,
        opts: &EngineOptions,
        free_space: Arc<dyn FreeSource>,
    ) -> Inner {
        let sb = volume.super_block();
        let layout = Layout {
            sectorsize: u64::from(rules.sectorsize),
            csum_len: rules.csum.csum_len() as u64,
            // Room for one item that nearly fills a leaf would make every insert rewrite a leaf's worth of sums; half a
            // leaf keeps items long and edits cheap.
            item_bytes_max: oleo_format::leaf_capacity(rules.nodesize) as u64 / 2,
        };
        let generation = sb.generation.get();
        let growth = Growth::new(sb.bytes_used.get());
        let trees = Trees::default();
        let metadata_reserve = Arc::new(MetadataReserve::new(rules.nodesize, trees.levels.clone()));
        let data_ahead = Arc::new(DataAhead::new());
        Inner {
            blocks,
            space: Space::new(rules.sectorsize, rules.nodesize, free_space),
            ledger: Ledger::new(),
            staged_ref_changes: AtomicUsize::new(0),
            staged_ref_changes_max: opts.staged_ref_changes_max,
            ref_items_read: AtomicU64::new(0),
            dirty: Dirty::new(),
            trees,
            root_tree_blocks: AtomicU64::new(0),
            overdrawn: AtomicU64::new(0),
            quota: Quota::default(),
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
            new_extents: (0..SHARDS).map(|_| OnLines(Mutex::new(Vec::new()))).collect(),
            readers: Readers::new(),
            promise_shares: (0..SHARDS).map(|_| PromiseShares::new(&metadata_reserve, &data_ahead)).collect(),
            metadata_reserve,
            data_ahead,
            growth,
            backref_conversion: Mutex::new(HashMap::new()),
            invalidated_caches: Mutex::new(HashSet::new()),
            super_block: Mutex::new(sb),
            log_writer: Mutex::new(()),
            log_recording: RwLock::new(()),
            log: Mutex::default(),
            log_given_up: Mutex::new(Generation(0)),
            log_on_disk: Mutex::new(LogOnDisk::new(sb)),
            staged: AtomicU64::new(0),
            log_disabled: AtomicU64::new(0),
            unreplayed_log: Mutex::new(None),
            not_read: OnceLock::new(),
            open_generation: AtomicU64::new(generation + 1),
            touched: AtomicBool::new(false),
            poisoned_by: RwLock::new(None),
            is_poisoned: AtomicBool::new(false),
            wanted_incompat: AtomicU64::new(0),
            profile_gone: AtomicU64::new(0),
            rules,
            volume,
        }
    }

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

    /// The same, but for a write that found no room below: the caller keeps what it was, to write it again.
    pub(crate) fn poison_unless_full(&self, error: TxnError) -> TxnError {
        if error.is_full() { error } else { self.poison(error) }
    }

    /// Remembers the first error that leaves memory and disk apart: from now on nothing is written.
    pub(crate) fn poison(&self, error: TxnError) -> TxnError {
        self.poisoned_by.write().get_or_insert_with(|| format!("an earlier error: {error}").into());
        self.is_poisoned.store(true, Ordering::Release);
        error
    }

    /// What a promise of this thread holds.
    pub(crate) fn promise_source(&self) -> Arc<OnLines<PromiseSource>> {
        self.promise_shares[thread_shard()].0.clone()
    }

    /// Joins are blocked meanwhile, so nothing is copied: a list for each shard.
    pub(crate) fn take_new_extents(&self) -> Vec<Vec<NewExtent>> {
        self.new_extents.iter().map(|shard| std::mem::take(&mut *shard.0.lock())).collect()
    }

    pub(crate) fn tree(&self, tree: TreeId) -> Result<TreeState, TxnError> {
        self.trees.get(&self.blocks, tree)?.ok_or(TxnError::NoTree(tree))
    }

    /// Returns to the allocator what no reader can need any more. With `discard` it is discarded first, so the
    /// caller does not hold the commit lock: others continue meanwhile, without that space.
    pub(crate) fn reap(&self) {
        if !self.rules.discard {
            for pins in self.readers.reap() {
                self.forget_blocks(&pins);
                self.space.release(pins);
            }
            return;
        }
        // A caller in need of space waits for what another thread is discarding.
        let mut agreed = self.agreed.lock();
        for pins in self.readers.reap() {
            self.forget_blocks(&pins);
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

    /// Tree blocks that no reader can come to any more leave the cache, so that it holds no more than the volume has.
    fn forget_blocks(&self, pins: &PinSet) {
        let mut group: Option<GroupInfo> = None;
        for run in pins.runs() {
            if !group.as_ref().is_some_and(|group| (group.start..group.start + group.len).contains(&run.start)) {
                group = self.space.group(run.start).ok();
            }
            let has_blocks = BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM;
            if group.as_ref().is_some_and(|group| group.flags.intersects(has_blocks)) {
                self.blocks.forget(run.start, run.len);
            }
        }
    }
}
