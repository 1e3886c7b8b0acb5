//! The reference ledger: what this transaction has added to or taken from each extent, not yet in the extent tree.
//!
//! Normal path: (1) `tree` calls [`Ledger::record_batch`] with every reference it adds or drops, `txn`
//! [`Ledger::record_new_extent`] for every extent allocated; (2) opposite changes of one reference meet and vanish; (3)
//! settling calls [`Ledger::drain`] for the rest, batch by batch in rising address order, from as many threads as it
//! likes; (4) what that does to the trees may record more, so (3) repeats until nothing comes.
//!
//! What comes out: every extent with a reference left, every one that is new (without references it is to be given
//! back), every one whose backrefs became full. Any other whose changes cancelled is forgotten.
//!
//! Shape: recording a change needs no look-up. Records (48 bytes, see `record`) are appended to the tail of a shard,
//! chosen by address; a full tail is sorted into a *run*; runs of similar length are merged, so that a shard has few, each
//! more than [`RUN_RATIO`] times as long as the next, and changes that cancel take up no memory for long. One extent
//! with a million references is a million records in order, and costs no more than a million extents.
//!
//! Draining goes by *sweeps*: the runs of all shards are taken away, and an index of them by region, in the order of
//! addresses, is made of them. A batch is some regions; the thread that draws it merges it, outside all locks. What is
//! recorded meanwhile belongs to the next sweep, which begins when all batches of this one have been dropped: no two threads
//! ever have one extent. Measured against an ordered tree, a radix tree and a hash table in `docs/decisions/0011-head-store.md`.
//!
//! Invariants: one batch holds strictly rising addresses, batches of one sweep rise in the order in which they are drawn, and
//! no address comes twice in a sweep; no head holds two changes of one reference, nor a change of zero.
//! Locks: `sweep`, held while a batch is chosen, then one shard at a time. Never held over I/O.
//! Crash: memory only; a lost ledger is an uncommitted transaction.
//! Not here: addresses (`pick`), making freed space free (`space`), the items (`txn`).

mod record;

use std::sync::Arc;

use oleo_format::{ByteLen, Ino, Key, Logical, TreeId};
use oleo_lock::rank;
use smallvec::SmallVec;

use crate::sync::{MutexLike, ParkingLot, RwLockLike, SyncPrimitives};
use record::{FULL_BACKREF, Folded, NEW, Record};

/// Shards: enough that threads seldom meet in one.
const SHARDS: usize = 64;

/// Addresses are spread over shards, and drained, in regions of this size (as a shift): neighbours share a shard, and the
/// index of a sweep is short.
const REGION_SHIFT: u32 = 24;

/// Records that are sorted into one run: what fits into a processor's first caches.
const TAIL_RECORDS_MAX: usize = 512;

/// A run that is not more than this many times as long as the next one is merged with it: few runs to ask, and no more than
/// a fifth of what is kept can be waiting to meet the rest.
const RUN_RATIO: usize = 4;

/// Who references an extent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RefKey {
    /// A tree block, by the tree that owns its parent.
    TreeRoot(TreeId),
    /// A tree block, by its parent's address.
    TreeParent(Logical),
    /// A data extent, by a file of a tree.
    DataRoot {
        /// The tree.
        root: TreeId,
        /// The file.
        ino: Ino,
        /// File offset minus offset in the extent, wrapping.
        offset: u64,
    },
    /// A data extent, by the address of the leaf that names it.
    DataParent(Logical),
}

/// What an extent is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentKind {
    /// A tree block.
    Tree {
        /// 0 for a leaf.
        level: u8,
        /// The first key in it, which volumes without skinny metadata record.
        first_key: Key,
    },
    /// Contents of files.
    Data,
}

/// One change of one reference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RefChange {
    /// Address of the extent.
    pub at: Logical,
    /// Its length.
    pub len: ByteLen,
    /// What it is.
    pub kind: ExtentKind,
    /// Whose reference it is.
    pub by: RefKey,
    /// How many references are added (or, below zero, dropped).
    pub delta: i32,
}

/// What is recorded of an extent and not drained.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pending {
    /// Sum of all changes.
    pub refs: i64,
    /// Its backrefs are to become full.
    pub full_backref: bool,
    /// It was allocated in this transaction.
    pub is_new: bool,
}

/// All that is recorded of one extent.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    /// Address.
    pub at: Logical,
    /// Length.
    pub len: ByteLen,
    /// What it is.
    pub kind: ExtentKind,
    /// It was allocated in this transaction: no item on disk.
    pub is_new: bool,
    /// Its backrefs become full.
    pub full_backref: bool,
    records: &'a [Record],
}

impl<'a> Head<'a> {
    /// The changes, in the order of references, each reference once, none of them zero.
    pub fn refs(&self) -> impl Iterator<Item = (RefKey, i32)> + Clone + use<'a> {
        self.records.iter().filter_map(Record::reference)
    }

    /// Sum of all changes.
    pub fn net(&self) -> i64 {
        record::pending(self.records).refs
    }
}

/// Heads that one drainer has in hand, in rising address order. As long as it lives, nobody else gets what was recorded of
/// these extents since.
#[derive(Default)]
pub struct Batch {
    records: Vec<Record>,
    /// Makes the next sweep wait.
    _of: Runs,
}

impl Batch {
    /// The heads.
    pub fn heads(&self) -> impl Iterator<Item = Head<'_>> {
        self.records.chunk_by(|a, b| a.at == b.at).map(record::head)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

#[derive(Default)]
struct Shard {
    tail: Vec<Record>,
    /// Each in order and folded; the last ones are the shortest.
    runs: Vec<Vec<Record>>,
    /// Records in `runs`.
    sorted: usize,
}

impl Shard {
    fn push(&mut self, record: Record) {
        if self.tail.len() >= TAIL_RECORDS_MAX {
            self.sort_tail();
        }
        self.tail.push(record);
    }

    /// Makes a run of the tail.
    fn sort_tail(&mut self) {
        let run = record::fold(&self.tail);
        self.tail.clear();
        self.sorted += run.len();
        match (self.runs.last_mut(), run.first()) {
            (_, None) => return,
            (Some(last), Some(first)) if last.last().is_some_and(|before| before.at < first.at) => {
                if last.capacity() - last.len() < run.len() {
                    // Grows by an eighth instead of doubling.
                    last.reserve_exact(run.len().max(last.len() / 8));
                }
                last.extend_from_slice(&run);
            }
            _ => self.runs.push(run),
        }
        while let [.., a, b] = self.runs.as_slice()
            && a.len() <= b.len().saturating_mul(RUN_RATIO)
        {
            let merged = record::merge(a, b);
            self.sorted -= a.len() + b.len() - merged.len();
            self.runs.truncate(self.runs.len() - 2);
            if !merged.is_empty() {
                self.runs.push(merged);
            }
        }
    }

    fn memory_bytes(&self) -> usize {
        let records = self.tail.capacity() + self.runs.iter().map(Vec::capacity).sum::<usize>();
        size_of::<Shard>() + records * size_of::<Record>() + self.runs.capacity() * size_of::<Vec<Record>>()
    }

    fn records(&self) -> usize {
        self.tail.len() + self.sorted
    }
}

/// What a list in order says of one extent.
fn find(records: &[Record], at: u64) -> Pending {
    let from = records.partition_point(|record| record.at < at);
    let same = records[from..].iter().take_while(|record| record.at == at).count();
    record::pending(&records[from..from + same])
}

impl Pending {
    fn and(self, other: Pending) -> Pending {
        Pending {
            refs: self.refs + other.refs,
            full_backref: self.full_backref || other.full_backref,
            is_new: self.is_new || other.is_new,
        }
    }
}

/// Records of one run that lie in one region.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Piece {
    region: u64,
    run: u32,
    start: u32,
    end: u32,
}

/// The runs of all shards.
type Runs = Arc<Vec<Vec<Record>>>;

/// The runs that were there when a drain last began at the lowest address.
#[derive(Default)]
struct Sweep {
    /// Each batch that was drawn and is still in use holds them too.
    runs: Runs,
    /// In the order of regions.
    pieces: Vec<Piece>,
    /// How many of `pieces` have been drawn.
    done: usize,
}

impl Sweep {
    fn of(runs: Vec<Vec<Record>>) -> Sweep {
        let mut pieces = Vec::new();
        for (run, records) in (0..).zip(&runs) {
            let mut start = 0;
            while let Some(first) = records.get(start) {
                let end = start + record::count_while(&records[start..], |r| region(r.at) == region(first.at));
                // 2³² records of one shard would be 200 GiB of them.
                pieces.push(Piece { region: region(first.at), run, start: start as u32, end: end as u32 });
                start = end;
            }
        }
        pieces.sort_unstable();
        Sweep { runs: Arc::new(runs), pieces, done: 0 }
    }

    /// The next regions, at least one, and others as long as they have no more records than that.
    fn draw(&mut self, records_max: usize) -> Vec<Piece> {
        let left = &self.pieces[self.done..];
        let (mut records, mut count) = (0, 0);
        for pieces in left.chunk_by(|a, b| a.region == b.region) {
            records += pieces.iter().map(Piece::len).sum::<usize>();
            if records > records_max && count > 0 {
                break;
            }
            count += pieces.len();
        }
        self.done += count;
        left[..count].to_vec()
    }

    fn find(&self, at: u64) -> Pending {
        let left = &self.pieces[self.done..];
        let from = left.partition_point(|piece| piece.region < region(at));
        let here = left[from..].iter().take_while(|piece| piece.region == region(at));
        here.map(|piece| find(piece.records(&self.runs), at)).fold(Pending::default(), Pending::and)
    }
}

impl Piece {
    fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    fn records<'a>(&self, runs: &'a [Vec<Record>]) -> &'a [Record] {
        &runs[self.run as usize][self.start as usize..self.end as usize]
    }
}

/// Merges what was drawn.
fn merge_pieces(runs: &[Vec<Record>], pieces: &[Piece]) -> Vec<Record> {
    let mut out = Folded::with_capacity(pieces.iter().map(Piece::len).sum());
    for region in pieces.chunk_by(|a, b| a.region == b.region) {
        let mut lists: SmallVec<[&[Record]; 8]> = region.iter().map(|piece| piece.records(runs)).collect();
        // The short ones first: most records are moved once.
        lists.sort_unstable_by_key(|list| list.len());
        match lists.as_slice() {
            [] => {}
            [one] => out.extend(one),
            [a, b] => out.merge(a, b),
            [a, b, rest @ .., last] => {
                let merged = rest.iter().fold(record::merge(a, b), |merged, list| record::merge(&merged, list));
                out.merge(&merged, last);
            }
        }
    }
    out.finish()
}

fn region(at: u64) -> u64 {
    at >> REGION_SHIFT
}

/// The ledger. Any number of threads may record and drain in parallel.
pub struct LedgerOf<L: SyncPrimitives> {
    /// A power of two of them.
    shards: Box<[L::Lock<rank::LedgerShard, Shard>]>,
    sweep: L::SharedLock<rank::Sweep, Sweep>,
}

/// The ledger of programs.
pub type Ledger = LedgerOf<ParkingLot>;

impl<L: SyncPrimitives> Default for LedgerOf<L> {
    fn default() -> Self {
        LedgerOf::with_shards(SHARDS)
    }
}

impl Ledger {
    /// An empty ledger.
    pub fn new() -> Ledger {
        Ledger::default()
    }
}

impl<L: SyncPrimitives> LedgerOf<L> {
    /// At most [`SHARDS`].
    pub(crate) fn with_shards(shards: usize) -> Self {
        assert!(shards.is_power_of_two() && shards <= SHARDS, "{shards} shards");
        LedgerOf {
            shards: (0..shards).map(|_| <L::Lock<rank::LedgerShard, Shard>>::default()).collect(),
            sweep: <L::SharedLock<rank::Sweep, Sweep>>::default(),
        }
    }

    /// Multiplication spreads upwards: high bits choose.
    fn shard_number(&self, at: u64) -> usize {
        (region(at).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SHARDS.ilog2())) as usize
            & (self.shards.len() - 1)
    }

    fn push(&self, shard: usize, records: impl Iterator<Item = Record>) {
        self.shards[shard].with(|shard| records.for_each(|record| shard.push(record)));
    }

    /// Adds `delta` references of `by` to the extent at `at`.
    pub fn record(&self, at: Logical, len: ByteLen, kind: ExtentKind, by: RefKey, delta: i32) {
        let change = RefChange { at, len, kind, by, delta };
        self.push(self.shard_number(at.0), (delta != 0).then(|| Record::of(&change)).into_iter());
    }

    /// Records many changes, in any order, and leaves the vector empty.
    pub fn record_batch(&self, changes: &mut Vec<RefChange>) {
        changes.retain(|change| change.delta != 0);
        // Counted, then listed by shard, so that each lock is taken once.
        let mut ends = [0usize; SHARDS + 1];
        changes.iter().for_each(|change| ends[self.shard_number(change.at.0) + 1] += 1);
        (0..SHARDS).for_each(|shard| ends[shard + 1] += ends[shard]);
        let mut next = ends;
        let mut order = vec![0u32; changes.len()];
        for (change, i) in changes.iter().zip(0..) {
            let place = &mut next[self.shard_number(change.at.0)];
            order[*place] = i;
            *place += 1;
        }
        for shard in (0..SHARDS).filter(|&shard| ends[shard] < ends[shard + 1]) {
            let mine = &order[ends[shard]..ends[shard + 1]];
            self.push(shard, mine.iter().map(|&i| Record::of(&changes[i as usize])));
        }
        changes.clear();
    }

    /// The extent was allocated in this transaction.
    pub fn record_new_extent(&self, at: Logical, len: ByteLen, kind: ExtentKind) {
        self.push(self.shard_number(at.0), std::iter::once(Record::marks(at, len, kind, NEW)));
    }

    /// The tree block's references to others will name it instead of its tree.
    pub fn set_full_backref(&self, at: Logical, len: ByteLen, kind: ExtentKind) {
        self.push(self.shard_number(at.0), std::iter::once(Record::marks(at, len, kind, FULL_BACKREF)));
    }

    /// What is recorded of the extent at `at` and has not been drawn.
    pub fn pending(&self, at: Logical) -> Pending {
        // Under the sweep's lock: what leaves the shards would be seen in neither, or in both.
        self.sweep.read(|sweep| {
            let old = sweep.find(at.0);
            self.shards[self.shard_number(at.0)].with(|shard| {
                shard.sort_tail();
                shard.runs.iter().map(|run| find(run, at.0)).fold(old, Pending::and)
            })
        })
    }

    /// Takes the next heads out: about `records_max` records of them, as a region of addresses is not divided; more where
    /// the first one has more. An empty batch says that there is nothing to do now: nothing is recorded, or all that is
    /// waits for batches of the sweep before to be dropped (by this thread, too).
    pub fn drain(&self, records_max: usize) -> Batch {
        // Each turn uses regions up; only where all in them has met its opposite is there another one.
        loop {
            let drawn = self.sweep.write(|sweep| {
                let any = sweep.done < sweep.pieces.len() || self.begin(sweep);
                any.then(|| (sweep.runs.clone(), sweep.draw(records_max)))
            });
            let Some((runs, pieces)) = drawn else { return Batch::default() };
            let records = merge_pieces(&runs, &pieces);
            if !records.is_empty() {
                return Batch { records, _of: runs };
            }
        }
    }

    /// Begins a sweep with all there is; `false` if there is nothing, or a batch of the last one is still in use.
    fn begin(&self, sweep: &mut Sweep) -> bool {
        if Arc::get_mut(&mut sweep.runs).is_none() {
            return false;
        }
        // What the last one held is free before the next one is made.
        *sweep = Sweep::default();
        let mut runs = Vec::new();
        for shard in &self.shards {
            shard.with(|shard| {
                shard.sort_tail();
                runs.append(&mut std::mem::take(shard).runs);
            });
        }
        *sweep = Sweep::of(runs);
        !sweep.pieces.is_empty()
    }

    /// How many records are held that have not been drawn. What has not met its opposite yet counts twice.
    pub fn len(&self) -> usize {
        // Nobody who records pays for a counter.
        self.sweep.read(|sweep| {
            let shards: usize = self.shards.iter().map(|shard| shard.with(|shard| shard.records())).sum();
            shards + sweep.pieces[sweep.done..].iter().map(Piece::len).sum::<usize>()
        })
    }

    /// Bytes allocated for what is held, slack and index included.
    pub fn memory_bytes(&self) -> usize {
        let shards: usize = self.shards.iter().map(|shard| shard.with(|shard| shard.memory_bytes())).sum();
        self.sweep.read(|sweep| {
            let runs: usize = sweep.runs.iter().map(|run| run.capacity() * size_of::<Record>()).sum();
            shards + runs + sweep.pieces.capacity() * size_of::<Piece>()
        })
    }

    /// Whether nothing is recorded that has not been drawn.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests;
