//! Log trees: what an fsync writes instead of a whole commit.
//!
//! On disk a log is one tree for each subvolume that was synced since the last commit, and the log root tree, whose
//! ROOT_ITEMs (TREE_LOG, ROOT_ITEM, subvolume) name them. The superblock of the last commit names the log root tree; its own
//! generation stays, and the blocks of the log are of the generation after it. The next one to open the volume replays the log
//! on the trees of the last commit. Log blocks are in no extent tree and in no free-space tree.
//!
//! Normal path: (1) [`Engine::record_log`] waits until what a commit has frozen is in the trees and keeps others from freezing;
//! (2) the crate above asks what the log has ([`LogRecording::logged`]) and decides what goes in, many threads at a time; (3) one of them
//! begins a log commit ([`Engine::begin_log`]), [`LogRecording::put`] applies the batches to the log trees in memory,
//! [`LogCommit::seal`] takes the new blocks; nothing is held for recording from here on; (4) [`LogCommit::write`] writes
//! the blocks, waits for the commit in flight if the log is for the transaction after it, flushes (the data too), puts the
//! superblock with the log's root on the first mirror of every device, flushes. The next commit makes the log obsolete: its
//! superblock has none.
//!
//! Log commits overlap in (2) only: the next is recorded while this one is written. Two cannot be in (4), as the superblock names one log
//! root; and a round that is put together early serves only those who came early, so (3) comes when the one before is durable, with
//! all who came meanwhile.
//!
//! Invariants:
//! - Blocks of a log that a superblock on disk may name are never written to. Each log commit copies what it changes; what it
//!   replaced is used again by the log commits after it, and becomes free space with the commit that ends the log
//!   ([`Inner::end_log`], [`Inner::pin_log`]).
//! - The log names no space in chunks that the disk does not know: those made since the last commit.
//! - Blocks of one log commit are adjacent where that is to be had, so that they are one write to each device. Up to 4 MiB of idle blocks are kept
//!   for that, where room is plenty.
//! - Log blocks are allocated from unreserved space: if there is none, the result is [`LogWritten::Refused`], and the
//!   caller commits. If only the groups are full, a new one is made, which that commit records.
//! - Before a commit writes its first superblock, the other mirrors get the log too: if that write is torn, a reader that falls
//!   back to them finds what was synced.
//!
//! If the format cannot express what happened, the log commit falls back to a full commit, for one of the reasons in [`fallback`].
//! The trees of the log stay in memory whole until the commit: they are as large as what was synced.
//!
//! Locks: `log_writer` for a log commit, over I/O; `log_recording` for (2) and (3), against freezes; `log` for a look and for (3);
//! `log_given_up` while blocks are written, so that a commit does not free their places meanwhile; `log_on_disk` while a superblock is. Commits go
//! on during (2) and (3) once their freeze is in the trees, operations always.
//! Crash: before (4)'s last flush the log of before is valid, or none is. Errors while writing poison the engine as in a commit, but
//! for want of room below the devices: then the log of before is valid, and a commit has to do.
//! Not here: what is logged (`oleo-fs`), replay.

mod commit;
mod idle;
pub(crate) mod state;

pub use commit::LogCommit;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use oleo_format::{BlockHead, ByteLen, Generation, HeaderFlags, ItemType, Key, Logical, RootItem, TreeId};
use oleo_lock::{Mutex, RwLockReadGuard, RwLockWriteGuard, rank};
use oleo_space::{Kind, Run};
use oleo_tree::{ApplyEnv, BlockAlloc, Change, ExtentInfo, ExtentState, Op, TreeError, TreeRoot};

use crate::TxnError;
use crate::barrier::FreezeGuard;
use crate::csums::{csum_key, is_csum};
use crate::engine::{Engine, Inner};
use crate::trees::find;
use idle::IdleRuns;
use state::LogState;

/// Why a log cannot be written, and a commit has to be: rules of the format, and two of ours (space, damage).
pub mod fallback {
    /// A snapshot, a new or deleted subvolume: changes of the open transaction are in the trees already, and of an inode that the
    /// log does not have whole it is not known any more what has changed. Also a subvolume that moved.
    pub const STAGED: &str = "subvolume";
    /// Data, or the only room for log blocks, lies in a chunk that the chunk tree on disk does not have.
    pub const NEW_CHUNK: &str = "new-chunk";
    /// A directory's entry for a subvolume changed: the log has no reference of roots.
    pub const SUBVOLUME_ENTRY: &str = "subvolume-entry";
    /// There is no room for log blocks.
    pub const NO_SPACE: &str = "no-space";
    /// A file with very many names got or lost some: the kernel's replay, which puts them in one after the other, has been seen to fail.
    pub const MANY_NAMES: &str = "many-names";
    /// Damage has taken a name of an inode: a replay counts the names, and ends an inode that has none.
    pub const LOST_NAME: &str = "lost-name";
    /// Something could not be read: the commit says what.
    pub const UNREADABLE: &str = "unreadable";
    /// A device was lost: a superblock with a log does not show that it is behind, one of a commit does.
    pub const LOST_DEVICE: &str = "lost-device";

    /// All of them.
    pub const ALL: [&str; 8] =
        [STAGED, NEW_CHUNK, SUBVOLUME_ENTRY, NO_SPACE, MANY_NAMES, LOST_NAME, UNREADABLE, LOST_DEVICE];
}

/// From so many changes on a batch is applied on all cores, by the threads that commits have.
const PARALLEL_CHANGES_MIN: usize = 4096;
/// Blocks of a log that may be idle so that the next ones are found adjacent to each other. Some 250 of 16 KiB: with 200 live ones most
/// log commits find a run (`log_kernel` `writes_of_random_places`).
const SPARE_BYTES: u64 = 4 << 20;
/// Blocks that are looked for side by side at most. A write of 1 MiB is as good as a longer one.
const ADJACENT_MAX: u64 = 64;
/// Unreserved bytes of metadata without which none are taken for that.
const SPARE_ROOM_MIN: u64 = 8 * SPARE_BYTES;
/// Mode of the inode that a root item carries, as that of every tree.
const ROOT_MODE: u32 = 0o040_755;
/// Its size.
const ROOT_SIZE: u64 = 3;

thread_local!(static COMMITS: Cell<u64> = const { Cell::new(0) });

/// Commits and log commits that the calling thread has made so far, on any engine: for tests that a call
/// makes none.
pub fn commits_of_this_thread() -> u64 {
    COMMITS.with(Cell::get)
}

/// One more of them.
pub(crate) fn count_commit() {
    COMMITS.with(|count| count.set(count.get() + 1));
}

/// What became of a log commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogWritten {
    /// All of it was in the log already.
    Nothing,
    /// It is durable.
    Done {
        /// Bytes of tree blocks.
        bytes: u64,
    },
    /// A commit came first, and has it all.
    Committed,
    /// The log cannot express it, for this reason out of [`fallback`]. A commit is needed.
    Refused(&'static str),
}

/// The right to look at the log and at what it is based on: while it lives, no freeze and no stage happens, so that the newest trees
/// are those of the transaction before the open one; operations go on.
pub struct LogRecording<'a> {
    inner: &'a Inner,
    generation: Generation,
    #[allow(dead_code, reason = "held for its lock")]
    held: Recording<'a>,
}

#[allow(dead_code, reason = "held for the lock only")]
enum Recording<'a> {
    Among(RwLockReadGuard<'a, rank::LogRecording, ()>),
    Alone(RwLockWriteGuard<'a, rank::LogRecording, ()>),
}

/// While it lives no operation is under way.
pub struct JoinsBlocked<'a>(#[allow(dead_code, reason = "held for its locks")] FreezeGuard<'a>);

impl Engine {
    /// Waits until what a commit or a stage has frozen is in the trees, and keeps others from freezing; many may record at a time. The
    /// caller holds no handle and no lock that an operation may hold while it joins.
    pub fn record_log(&self) -> Result<LogRecording<'_>, TxnError> {
        self.recording(|inner| Recording::Among(inner.log_recording.read()))
    }

    /// The same, and nobody else records.
    pub fn record_log_alone(&self) -> Result<LogRecording<'_>, TxnError> {
        self.recording(|inner| Recording::Alone(inner.log_recording.write()))
    }

    fn recording<'a>(&'a self, lock: impl FnOnce(&'a Inner) -> Recording<'a>) -> Result<LogRecording<'a>, TxnError> {
        let inner = &*self.0;
        inner.writable()?;
        let held = lock(inner);
        inner.writable()?;
        inner.log_is_settled()?;
        Ok(LogRecording { inner, generation: self.generation(), held })
    }

    /// The transaction that a handle is for has changed what no log can say: until it is committed, there is none.
    pub fn disable_log(&self, open: Generation) {
        self.0.log_disabled.store(open.0, Ordering::Release);
        self.0.staged.store(open.0, Ordering::Release);
    }

    /// Whether the newest roots of all trees are those on disk: no commit is in flight, and nothing was staged.
    pub fn trees_are_durable(&self) -> bool {
        let open = self.generation();
        self.durable().0 + 1 == open.0 && self.0.staged.load(Ordering::Acquire) != open.0
    }

    /// Waits for the commit in flight, if there is one; whether everything up to `generation` is durable.
    pub fn wait_durable(&self, generation: Generation) -> Result<bool, TxnError> {
        if self.durable() >= generation {
            return Ok(true);
        }
        let inner = &*self.0;
        let _one = inner.commit_lock.lock();
        inner.writable()?;
        inner.write_unwritten()?;
        Ok(self.durable() >= generation)
    }
}

/// Log blocks: idle ones if they are adjacent, then new ones while few are idle, then idle ones wherever they are.
struct LogAlloc<'a> {
    inner: &'a Inner,
    found: Mutex<rank::LogFound, Found>,
}

struct Found {
    idle: IdleRuns,
    /// Adjacent blocks for what comes next, the last one first.
    next: Vec<Logical>,
    /// Blocks that are still expected: as many as the last log commit made.
    expected: u64,
    made: u64,
    taken: Vec<Logical>,
    refused: Option<&'static str>,
}

impl LogAlloc<'_> {
    /// Whether more blocks may be taken than are needed.
    fn may_spare(&self, idle: u64) -> bool {
        let room = self.inner.space.totals(Kind::Metadata);
        let is_roomy = room.free.0.saturating_sub(room.reserved.0) >= SPARE_ROOM_MIN;
        is_roomy && idle * u64::from(self.inner.rules.nodesize) < SPARE_BYTES
    }

    /// New blocks, adjacent if possible.
    fn fresh(&self, count: u64, found: &mut Found, out: &mut Vec<Logical>) -> Result<(), Refused> {
        let nodesize = u64::from(self.inner.rules.nodesize);
        let promise = self.inner.space.reserve(Kind::Metadata, ByteLen(count * nodesize));
        let promise = promise.map_err(|_| Refused::NoRoom)?;
        let had = out.len();
        if self.inner.space.alloc_blocks_from(&promise, count as usize, out).is_err() {
            return Err(Refused::GroupsFull);
        }
        if out[had..].iter().any(|at| self.inner.growth.is_uncommitted(*at)) {
            for at in out.drain(had..) {
                self.inner.space.give_back(Run::new(at, ByteLen(nodesize)));
            }
            return Err(Refused::NewChunk);
        }
        found.taken.extend_from_slice(&out[had..]);
        Ok(())
    }
}

/// Why there are no new log blocks.
enum Refused {
    /// Everything is promised.
    NoRoom,
    /// There may be room for another group.
    GroupsFull,
    /// They lie in a chunk that the disk does not know.
    NewChunk,
}

impl BlockAlloc for LogAlloc<'_> {
    fn alloc(&self, count: usize, out: &mut Vec<Logical>) -> Result<(), TreeError> {
        let mut found = self.found.lock();
        let found = &mut *found;
        let count = count as u64;
        found.made += count;
        let missing = count.saturating_sub(found.next.len() as u64);
        if missing > 0 {
            let more = missing.max(found.expected);
            let mut got = Vec::with_capacity(more as usize);
            let adjacent = found.idle.take_adjacent(more, &mut got)
                || (self.may_spare(found.idle.len()) && self.fresh(more, found, &mut got).is_ok());
            if !adjacent {
                found.idle.take_any(missing, &mut got);
                let missing = missing - got.len() as u64;
                if missing > 0 {
                    self.fresh(missing, found, &mut got).map_err(|why| {
                        let rule = match why {
                            Refused::NoRoom => fallback::NO_SPACE,
                            Refused::NewChunk => fallback::NEW_CHUNK,
                            Refused::GroupsFull => match self.inner.grow(Kind::Metadata) {
                                Ok(true) => fallback::NEW_CHUNK,
                                Ok(false) => fallback::NO_SPACE,
                                Err(e) => return TreeError::outside(e),
                            },
                        };
                        found.refused = Some(rule);
                        let wanted = ByteLen(missing * u64::from(self.inner.rules.nodesize));
                        TreeError::outside(TxnError::NoSpace { what: "the log", wanted })
                    })?;
                }
            }
            got.reverse();
            found.next.splice(..0, got);
        }
        found.expected = found.expected.saturating_sub(count);
        out.extend(found.next.drain(found.next.len() - count as usize..).rev());
        Ok(())
    }
}

/// Log trees share no blocks: nobody asks.
struct Unshared;

impl ExtentInfo for Unshared {
    fn lookup(&self, blocks: &[(Logical, u8)]) -> Result<Vec<ExtentState>, TreeError> {
        Ok(vec![ExtentState { refs: 1, full_backref: false }; blocks.len()])
    }
}

impl<'a> LogRecording<'a> {
    /// The open generation, that of the log's blocks.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Why nothing can be logged in this transaction any more, if so.
    pub fn fallback(&self) -> Option<&'static str> {
        if self.inner.log_disabled.load(Ordering::Acquire) == self.generation.0 {
            return Some(fallback::STAGED);
        }
        let refused = self.inner.log.lock().refused;
        refused.filter(|(generation, _)| *generation == self.generation.0).map(|(_, rule)| rule)
    }

    /// Whether changes of the open transaction are in the newest trees: what an inode had before them is only known of inodes that the log
    /// has whole. The log can have these; [`fallback::STAGED`] is why it cannot have others.
    pub fn is_staged(&self) -> bool {
        self.inner.staged.load(Ordering::Acquire) == self.generation.0
    }

    /// The log tree of a subvolume, if it has one.
    pub fn logged(&self, tree: TreeId) -> Option<TreeRoot> {
        let log = self.inner.log.lock();
        if log.generation != self.generation.0 {
            return None;
        }
        log.trees.get(&tree).cloned()
    }

    /// The tree as a replay of the log finds it: as the last commit left it, or as the one in flight will.
    pub fn committed(&self, tree: TreeId) -> Result<Option<TreeRoot>, TxnError> {
        // `disable_log` stores its own mark first, and may come while a commit is in flight: such a log is refused anyway.
        if self.is_staged() && self.inner.log_disabled.load(Ordering::Acquire) != self.generation.0 {
            // A stage comes when no commit is in flight: what is on disk is the last, and its blocks stay until the next.
            let sb = self.inner.log_on_disk.lock().committed;
            debug_assert_eq!(sb.generation.get() + 1, self.generation.0, "a stage waits for the commit before");
            let (at, generation) = (Logical(sb.root.get()), Generation(sb.generation.get()));
            let root_tree = TreeRoot::on_disk(TreeId::ROOT, at, generation, sb.root_level);
            return Ok(find(&self.inner.blocks, &root_tree, tree)?.map(|t| t.root));
        }
        Ok(self.inner.trees.get(&self.inner.blocks, tree)?.map(|t| t.root))
    }

    /// Waits until no operation is under way and keeps others out: for a moment, and not over I/O.
    pub fn block_joins(&self) -> JoinsBlocked<'a> {
        JoinsBlocked(self.inner.barrier.block_joins())
    }

    /// Whether space lies in a chunk that the disk does not know yet.
    pub fn is_uncommitted(&self, at: Logical) -> bool {
        self.inner.growth.is_uncommitted(at)
    }

    /// Adds the checksum items that data in `at..at + len` needs and that are not in the checksum tree yet. The same data
    /// always gives items of the same keys.
    pub fn csum_items(&self, at: Logical, len: ByteLen, out: &mut BTreeMap<Key, Op>) {
        self.inner.csums.pending_items(self.inner.layout, at, len, out);
    }

    /// The keys of the checksum items of a log that are of data in `at..at + len` and of nothing else.
    pub fn csum_items_within(&self, log: Option<&TreeRoot>, at: Logical, len: ByteLen) -> Result<Vec<Key>, TxnError> {
        let mut found = Vec::new();
        let Some(root) = log else { return Ok(found) };
        let end = at.0.saturating_add(len.0);
        let mut cursor = self.inner.blocks.cursor(root);
        let mut more = cursor.seek(&csum_key(at.0))?;
        while more {
            let Some((key, sums)) = cursor.current() else { break };
            if !is_csum(&key) || key.offset >= end {
                break;
            }
            if self.inner.layout.end(key.offset, sums) <= end {
                found.push(key);
            }
            more = cursor.next()?;
        }
        Ok(found)
    }

    /// Makes the changes of the subvolumes' log trees (sorted, one per key), in memory. If the log cannot have them, the result is
    /// the reason, and the caller commits.
    ///
    /// # Errors
    /// A log block could not be read back.
    pub fn put(&self, batches: &[(TreeId, Vec<Change>)]) -> Result<Result<(), &'static str>, TxnError> {
        if let Some(rule) = self.fallback() {
            return Ok(Err(rule));
        }
        let (inner, generation) = (self.inner, self.generation);
        let mut log = inner.log.lock();
        if log.generation != generation.0 {
            log.begin(generation);
        }
        let idle = IdleRuns::new(std::mem::take(&mut log.idle), inner.rules.nodesize);
        let (expected, next, taken) = (log.made.min(ADJACENT_MAX), Vec::new(), Vec::new());
        let found = Found { idle, next, expected, made: 0, taken, refused: None };
        let alloc = LogAlloc { inner, found: Mutex::new(found) };
        let many = batches.iter().any(|(_, changes)| changes.len() >= PARALLEL_CHANGES_MIN);
        let env = Env { inner, generation, alloc: &alloc, threads: many };
        let grow = || grow(&env, &log, batches);
        let grown = if many { inner.commit_workers.run(grow) } else { grow() };
        let mut found = alloc.found.into_inner();
        log.taken.append(&mut found.taken);
        match (grown, found.refused) {
            (Ok(grown), _) => {
                log.idle = found.idle.into_blocks();
                log.idle.append(&mut found.next);
                log.made = found.made;
                log.trees.extend(grown.trees);
                log.root = grown.root.or(log.root.take());
                Ok(Ok(()))
            }
            (Err(_), Some(rule)) => {
                log.refused = Some((generation.0, rule));
                Ok(Err(rule))
            }
            (Err(e), None) => {
                log.refused = Some((generation.0, fallback::UNREADABLE));
                Err(e)
            }
        }
    }

    /// Nothing more goes into the log of this transaction, so that those who were promised to be in it are served by a commit.
    pub fn fall_back(&self, rule: &'static str) {
        self.inner.refuse_log(self.generation, rule);
    }
}

/// The log's trees with a batch in them.
struct Grown {
    trees: Vec<(TreeId, TreeRoot)>,
    /// `None`: nothing has changed.
    root: Option<TreeRoot>,
}

/// What one log commit works with.
struct Env<'a> {
    inner: &'a Inner,
    generation: Generation,
    alloc: &'a LogAlloc<'a>,
    threads: bool,
}

fn grow(env: &Env<'_>, log: &LogState, batches: &[(TreeId, Vec<Change>)]) -> Result<Grown, TxnError> {
    let Env { inner, generation, alloc, threads } = *env;
    let head = BlockHead {
        logical: Logical(0),
        generation,
        owner: TreeId::TREE_LOG,
        level: 0,
        flags: HeaderFlags::WRITTEN,
        fsid: inner.rules.metadata_uuid,
        chunk_tree_uuid: inner.rules.chunk_tree_uuid,
    };
    let env = ApplyEnv {
        generation,
        owner: TreeId::TREE_LOG,
        last_snapshot: None,
        dirty: &log.dirty,
        ledger: &log.ledger,
        alloc,
        extents: &Unshared,
        head: &head,
        threads,
    };
    let apply = |old: Option<&TreeRoot>, batch: &[Change]| match old {
        Some(root) => inner.blocks.apply(root, batch, &env),
        None => inner.blocks.create_tree(batch, &env),
    };
    let sealed = log.dirty.is_empty();
    let mut grown = Grown { trees: Vec::new(), root: None };
    let mut items = Vec::new();
    for (tree, batch) in batches.iter().filter(|(_, batch)| !batch.is_empty()) {
        let old = log.trees.get(tree);
        let root = apply(old, batch)?;
        // A block that is not sealed yet is rewritten at its place.
        if sealed && old.is_some_and(|old| old.same_block(&root)) {
            continue;
        }
        let key = Key::new(TreeId::TREE_LOG.0, ItemType::ROOT_ITEM, tree.0);
        items.push(Change::put(key, root_item(inner, &root, generation).encode()));
        grown.trees.push((*tree, root));
    }
    if !items.is_empty() {
        items.sort_unstable_by_key(|c| c.key);
        grown.root = Some(apply(log.root.as_ref(), &items)?);
    }
    Ok(grown)
}

fn root_item(inner: &Inner, root: &TreeRoot, generation: Generation) -> RootItem {
    let mut item = RootItem::default();
    item.inode.generation = 1.into();
    item.inode.size = ROOT_SIZE.into();
    item.inode.nlink = 1.into();
    item.inode.nbytes = u64::from(inner.rules.nodesize).into();
    item.inode.mode = ROOT_MODE.into();
    item.bytenr = root.logical.0.into();
    item.level = root.level;
    item.generation = generation.0.into();
    item.generation_v2 = generation.0.into();
    item
}

impl Inner {
    /// Nothing more goes into the log of a generation.
    fn refuse_log(&self, generation: Generation, rule: &'static str) {
        let mut log = self.log.lock();
        if log.refused.is_none_or(|(refused, _)| refused < generation.0) {
            log.refused = Some((generation.0, rule));
        }
    }

    /// A freeze ends the log: what comes now belongs to the next. Nobody records meanwhile. Returns its blocks, which are free when
    /// the commit is durable.
    pub(crate) fn end_log(&self) -> Vec<Logical> {
        let mut log = self.log.lock();
        let taken = std::mem::take(&mut log.taken);
        log.begin(Generation(0));
        taken
    }

    /// Blocks of the log that the commit in progress ends.
    pub(crate) fn pin_log(&self, generation: Generation, blocks: Vec<Logical>) -> Result<(), TxnError> {
        *self.log_given_up.lock() = generation;
        let len = ByteLen(u64::from(self.rules.nodesize));
        blocks.into_iter().try_for_each(|at| Ok(self.space.pin(Run::new(at, len))?))
    }
}
