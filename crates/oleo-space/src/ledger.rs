//! The reference ledger: what this transaction has added to or taken from each extent, not yet in the extent tree.
//!
//! Normal path: (1) `tree` calls [`Ledger::record`] (or [`Ledger::record_batch`]) for every reference it adds or
//! drops, `txn` [`Ledger::born`] for every extent allocated; (2) opposite changes of one reference meet and vanish;
//! (3) settling calls [`Ledger::drain`] for the rest in rising address order; (4) `txn` applies them to the extent tree
//! as one sorted batch, which may record more, so (3) repeats until nothing comes.
//!
//! What comes out: every extent with a reference left, every one that was born (without references it is to be given
//! back), every one whose backrefs became full. Any other whose changes cancelled is forgotten on the spot.
//!
//! Shape: heads are spread by address over [`SHARDS`] shards; a shard has its heads side by side in a vector and a hash
//! table of their positions. A head is 48 bytes, with room for the one reference that most have (a tree block's first
//! key lies where only data references need the space); more references go to a side list.
//!
//! Order is made when it is needed. The first drain begins a *sweep*: it takes the vectors of all shards away, sorts the
//! addresses and forgets the hash tables; the drains after it go on along the sorted list. What is recorded during a
//! sweep goes into the shards as always, and a head that is drained is first joined with what its shard has got of
//! it since, so opposite changes still meet. What is left in the shards is the next sweep. Measured against an ordered
//! tree in `docs/decisions/0002-ledger.md`.
//!
//! Invariants: no head holds two changes of one reference, nor a change of zero. One drain yields strictly rising
//! addresses, and so does a sweep, in which no address comes twice.
//! Locks: `sweep` (rank 39, a drain holds it), then one shard at a time (rank 40). Never held over I/O.
//! Crash: memory only; a lost ledger is an uncommitted transaction.
//! Not here: addresses (`pick`), making freed space free (`space`), the items (`txn`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use oleo_format::{ByteLen, Ino, ItemType, Key, Logical, TreeId};
use parking_lot::{Mutex, MutexGuard, RwLock};
use smallvec::SmallVec;

/// Shards: enough that threads seldom meet in one.
const SHARDS: usize = 64;

/// Addresses are spread over shards in regions of this size (as a shift), so that neighbours share a shard.
const REGION_SHIFT: u32 = 20;

/// Slots that an empty shard keeps room for; a shard that had more gives its memory back.
const IDLE_SLOTS_MAX: usize = 1024;

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
    pub born: bool,
}

/// All that is recorded of one extent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// Address.
    pub at: Logical,
    /// Length.
    pub len: ByteLen,
    /// What it is.
    pub kind: ExtentKind,
    /// It was allocated in this transaction: no item on disk.
    pub born: bool,
    /// Its backrefs become full.
    pub full_backref: bool,
    /// The changes, sorted, none of them zero.
    pub refs: SmallVec<[(RefKey, i32); 1]>,
}

impl Head {
    /// Sum of all changes.
    pub fn net(&self) -> i64 {
        self.refs.iter().map(|&(_, delta)| i64::from(delta)).sum()
    }
}

/// What lengths are counted in; every sector size is a multiple.
const LEN_UNIT: u64 = 512;

/// The length is odd or huge, as only a lying image has it, and stands in the shard's list of those.
const LEN_ODD: u32 = u32::MAX;

const BORN: u8 = 1;
const FULL_BACKREF: u8 = 2;
const TREE: u8 = 4;

/// A [`Head`], packed. For a tree block `words[1..]` and `key_type` are its first key, as its references need one word.
#[derive(Clone, Copy)]
struct Slot {
    at: u64,
    words: [u64; 3],
    /// In units of [`LEN_UNIT`], or [`LEN_ODD`].
    len: u32,
    /// The inline reference's change; 0 for none.
    delta: i32,
    /// 1 + position in the shard's side lists; 0 for none.
    more: u32,
    flags: u8,
    level: u8,
    key_type: u8,
    /// Which kind of reference the inline one is.
    by: u8,
}

const _: () = assert!(size_of::<Slot>() == 48);

impl Slot {
    fn new(at: Logical, len: ByteLen, kind: ExtentKind) -> Slot {
        let units =
            u32::try_from(len.0 / LEN_UNIT).ok().filter(|&units| len.0.is_multiple_of(LEN_UNIT) && units != LEN_ODD);
        let len = units.unwrap_or(LEN_ODD);
        let mut slot = Slot { at: at.0, words: [0; 3], len, delta: 0, more: 0, flags: 0, level: 0, key_type: 0, by: 0 };
        slot.set_kind(kind);
        slot
    }

    fn set_kind(&mut self, kind: ExtentKind) {
        match kind {
            ExtentKind::Data => self.flags &= !TREE,
            ExtentKind::Tree { level, first_key } => {
                self.flags |= TREE;
                self.level = level;
                self.key_type = first_key.item_type.0;
                self.words[1] = first_key.objectid;
                self.words[2] = first_key.offset;
            }
        }
    }

    fn kind(&self) -> ExtentKind {
        if self.flags & TREE == 0 {
            return ExtentKind::Data;
        }
        let first_key = Key { objectid: self.words[1], item_type: ItemType(self.key_type), offset: self.words[2] };
        ExtentKind::Tree { level: self.level, first_key }
    }

    /// The inline reference, if there is one.
    fn inline(&self) -> Option<(RefKey, i32)> {
        let [a, b, c] = self.words;
        let by = match self.by {
            0 => RefKey::TreeRoot(TreeId(a)),
            1 => RefKey::TreeParent(Logical(a)),
            2 => RefKey::DataRoot { root: TreeId(a), ino: Ino(b), offset: c },
            _ => RefKey::DataParent(Logical(a)),
        };
        (self.delta != 0).then_some((by, self.delta))
    }

    /// Stores a reference inline; `false` for one that needs the words of a tree block's key.
    fn set_inline(&mut self, by: RefKey, delta: i32) -> bool {
        let (number, word) = match by {
            RefKey::TreeRoot(root) => (0, root.0),
            RefKey::TreeParent(parent) => (1, parent.0),
            RefKey::DataParent(parent) => (3, parent.0),
            RefKey::DataRoot { .. } if self.flags & TREE != 0 => return false,
            RefKey::DataRoot { root, ino, offset } => {
                self.words[1..].copy_from_slice(&[ino.0, offset]);
                (2, root.0)
            }
        };
        (self.by, self.words[0], self.delta) = (number, word, delta);
        true
    }

    fn is_blank(&self) -> bool {
        self.delta == 0 && self.more == 0 && self.flags & (BORN | FULL_BACKREF) == 0
    }
}

/// The references of a head beyond the inline one, sorted.
type Side = Vec<(RefKey, i32)>;

/// Heads, in no order.
#[derive(Default)]
struct Heap {
    slots: Vec<Slot>,
    sides: Vec<Side>,
    sides_free: Vec<u32>,
    odd_lens: BTreeMap<u64, ByteLen>,
}

impl Heap {
    fn side(&self, slot: &Slot) -> &[(RefKey, i32)] {
        slot.more.checked_sub(1).map_or(&[], |number| &self.sides[number as usize])
    }

    fn pending(&self, i: usize) -> Pending {
        let slot = &self.slots[i];
        Pending {
            refs: i64::from(slot.delta) + self.side(slot).iter().map(|&(_, delta)| i64::from(delta)).sum::<i64>(),
            full_backref: slot.flags & FULL_BACKREF != 0,
            born: slot.flags & BORN != 0,
        }
    }

    fn change_side(&mut self, i: usize, change: &RefChange) {
        let slot = &mut self.slots[i];
        if slot.more == 0 {
            let free = self.sides_free.pop().unwrap_or_else(|| {
                self.sides.push(Side::new());
                self.sides.len() as u32 - 1
            });
            slot.more = free + 1;
        }
        let number = slot.more - 1;
        let side = &mut self.sides[number as usize];
        // Sorted, so that an extent with thousands of references (a clone of clones) is still found quickly.
        match side.binary_search_by(|(by, _)| by.cmp(&change.by)) {
            Err(place) => side.insert(place, (change.by, change.delta)),
            Ok(place) => {
                side[place].1 = side[place].1.saturating_add(change.delta);
                if side[place].1 == 0 {
                    side.remove(place);
                }
            }
        }
        if side.is_empty() {
            slot.more = 0;
            *side = Side::new();
            self.sides_free.push(number);
        }
    }

    /// The head at a position, in full. What it has outside its slot is taken away.
    fn unpack(&mut self, i: usize) -> Head {
        let slot = self.slots[i];
        let mut refs: SmallVec<[(RefKey, i32); 1]> = slot.inline().into_iter().collect();
        if slot.more != 0 {
            refs.extend(std::mem::take(&mut self.sides[slot.more as usize - 1]));
            refs.sort_unstable();
        }
        let len = match slot.len {
            LEN_ODD => self.odd_lens.remove(&slot.at).unwrap_or_default(),
            units => ByteLen(u64::from(units) * LEN_UNIT),
        };
        Head {
            at: Logical(slot.at),
            len,
            kind: slot.kind(),
            born: slot.flags & BORN != 0,
            full_backref: slot.flags & FULL_BACKREF != 0,
            refs,
        }
    }
}

impl Head {
    /// Adds what was recorded later.
    fn join(&mut self, later: Head) {
        for (by, delta) in later.refs {
            match self.refs.iter_mut().find(|(known, _)| *known == by) {
                Some((_, sum)) => *sum = sum.saturating_add(delta),
                None => self.refs.push((by, delta)),
            }
        }
        self.refs.retain(|(_, delta)| *delta != 0);
        self.refs.sort_unstable();
        if later.born {
            (self.kind, self.len) = (later.kind, later.len);
        }
        self.born |= later.born;
        self.full_backref |= later.full_backref;
    }
}

#[derive(Default)]
struct Shard {
    heap: Heap,
    /// Positions in the heap, found by address.
    table: HashTable<u32>,
}

/// A region's or an address's hash. Multiplication spreads upwards, and the table looks at both ends of the word.
fn hash(word: u64) -> u64 {
    let mixed = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 32)
}

impl Shard {
    fn find(&self, at: u64) -> Option<usize> {
        self.table.find(hash(at), |&i| self.heap.slots[i as usize].at == at).map(|&i| i as usize)
    }

    fn find_or_add(&mut self, at: Logical, len: ByteLen, kind: ExtentKind, heads: &AtomicUsize) -> usize {
        let slots = &mut self.heap.slots;
        let same = |&i: &u32| slots[i as usize].at == at.0;
        match self.table.entry(hash(at.0), same, |&i| hash(slots[i as usize].at)) {
            Entry::Occupied(entry) => *entry.get() as usize,
            Entry::Vacant(entry) => {
                let i = slots.len();
                // 2³² heads in one shard would be 13 TiB of heads in all.
                entry.insert(i as u32);
                let slot = Slot::new(at, len, kind);
                if slot.len == LEN_ODD {
                    self.heap.odd_lens.insert(at.0, len);
                }
                slots.push(slot);
                heads.fetch_add(1, Relaxed);
                i
            }
        }
    }

    fn change(&mut self, change: &RefChange, heads: &AtomicUsize) {
        if change.delta == 0 {
            return;
        }
        let i = self.find_or_add(change.at, change.len, change.kind, heads);
        let slot = &mut self.heap.slots[i];
        let inline = slot.inline();
        if let Some((by, delta)) = inline
            && by == change.by
        {
            slot.delta = delta.saturating_add(change.delta);
        } else if inline.is_some() || slot.more != 0 || !slot.set_inline(change.by, change.delta) {
            self.heap.change_side(i, change);
        }
        if self.heap.slots[i].is_blank() {
            self.remove(i, heads);
        }
    }

    /// Takes a head out of its place; the last one moves there.
    fn remove(&mut self, i: usize, heads: &AtomicUsize) -> Head {
        let head = self.heap.unpack(i);
        let Shard { heap: Heap { slots, sides_free, .. }, table } = self;
        if let Ok(entry) = table.find_entry(hash(slots[i].at), |&n| n as usize == i) {
            entry.remove();
        }
        let last = slots.len() - 1;
        if i != last
            && let Some(place) = table.find_mut(hash(slots[last].at), |&n| n as usize == last)
        {
            *place = i as u32;
        }
        sides_free.extend(slots.swap_remove(i).more.checked_sub(1));
        heads.fetch_sub(1, Relaxed);
        if slots.is_empty() && slots.capacity() > IDLE_SLOTS_MAX {
            *self = Shard::default();
        }
        head
    }
}

/// The heads that were there when a drain last began at the lowest address.
#[derive(Default)]
struct Sweep {
    /// One per shard.
    heaps: Vec<Heap>,
    /// Address and position in the heap of its shard, rising.
    order: Vec<(u64, u32)>,
    /// How many of `order` are drained.
    done: usize,
}

impl Sweep {
    fn find(&self, at: u64) -> Option<Pending> {
        let left = self.order.get(self.done..)?;
        let i = left.binary_search_by_key(&at, |&(at, _)| at).ok()?;
        Some(self.heaps.get(shard_number(at))?.pending(left[i].1 as usize))
    }
}

fn shard_number(at: u64) -> usize {
    (hash(at >> REGION_SHIFT) >> 58) as usize % SHARDS
}

/// The ledger. Any number of threads record at once.
pub struct Ledger {
    shards: Box<[Mutex<Shard>]>,
    /// Heads in the shards and in what is left of the sweep.
    heads: AtomicUsize,
    sweep: RwLock<Sweep>,
}

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger::new()
    }
}

impl Ledger {
    /// An empty ledger.
    pub fn new() -> Ledger {
        Ledger {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            heads: AtomicUsize::new(0),
            sweep: RwLock::default(),
        }
    }

    fn shard(&self, at: Logical) -> &Mutex<Shard> {
        &self.shards[shard_number(at.0)]
    }

    /// Adds `delta` references of `by` to the extent at `at`.
    pub fn record(&self, at: Logical, len: ByteLen, kind: ExtentKind, by: RefKey, delta: i32) {
        self.shard(at).lock().change(&RefChange { at, len, kind, by, delta }, &self.heads);
    }

    /// Records many changes, in any order, and leaves the vector empty.
    pub fn record_batch(&self, changes: &mut Vec<RefChange>) {
        // Sorted, neighbours are in one shard, and one look at its lock does for them all.
        changes.sort_unstable_by_key(|change| change.at);
        for run in changes.chunk_by(|a, b| a.at.0 >> REGION_SHIFT == b.at.0 >> REGION_SHIFT) {
            let mut shard = self.shard(run[0].at).lock();
            run.iter().for_each(|change| shard.change(change, &self.heads));
        }
        changes.clear();
    }

    /// The extent was allocated in this transaction.
    pub fn born(&self, at: Logical, len: ByteLen, kind: ExtentKind) {
        let mut shard = self.shard(at).lock();
        let i = shard.find_or_add(at, len, kind, &self.heads);
        let slot = &mut shard.heap.slots[i];
        slot.flags |= BORN;
        // Whoever allocated it knows best what it is; a reference recorded earlier may not have.
        if slot.flags & TREE != 0 && kind != ExtentKind::Data {
            slot.set_kind(kind);
        }
    }

    /// The tree block's references to others will name it instead of its tree.
    pub fn set_full_backref(&self, at: Logical, len: ByteLen, kind: ExtentKind) {
        let mut shard = self.shard(at).lock();
        let i = shard.find_or_add(at, len, kind, &self.heads);
        shard.heap.slots[i].flags |= FULL_BACKREF;
    }

    /// What is recorded of the extent at `at`.
    pub fn pending(&self, at: Logical) -> Pending {
        let sweep = self.sweep.read();
        let old = sweep.find(at.0).unwrap_or_default();
        let shard = self.shard(at).lock();
        let new = shard.find(at.0).map(|i| shard.heap.pending(i)).unwrap_or_default();
        Pending {
            refs: old.refs + new.refs,
            full_backref: old.full_backref || new.full_backref,
            born: old.born || new.born,
        }
    }

    /// Takes up to `max` heads out, in rising address order. When nothing comes, nothing is left.
    pub fn drain(&self, max: usize) -> Vec<Head> {
        let mut sweep = self.sweep.write();
        let mut out = Vec::new();
        // Ends when a sweep gives something or finds nothing to begin with; each turn uses one sweep up.
        while max > 0 && out.is_empty() {
            if sweep.done == sweep.order.len() && !self.begin(&mut sweep) {
                break;
            }
            self.go_on(&mut sweep, max, &mut out);
        }
        out
    }

    /// Begins a sweep with all there is; `false` when there is nothing.
    fn begin(&self, sweep: &mut Sweep) -> bool {
        *sweep = Sweep::default();
        sweep.heaps = self.shards.iter().map(|shard| std::mem::take(&mut *shard.lock()).heap).collect();
        sweep.order.reserve_exact(sweep.heaps.iter().map(|heap| heap.slots.len()).sum());
        for heap in &sweep.heaps {
            sweep.order.extend(heap.slots.iter().zip(0..).map(|(slot, i)| (slot.at, i)));
        }
        sweep.order.sort_unstable();
        !sweep.order.is_empty()
    }

    /// Drains up to `max` heads of the current sweep.
    fn go_on(&self, sweep: &mut Sweep, max: usize, out: &mut Vec<Head>) {
        let Sweep { heaps, order, done } = sweep;
        out.reserve_exact(max.min(order.len() - *done));
        let mut held: Option<(usize, MutexGuard<'_, Shard>)> = None;
        while out.len() < max
            && let Some(&(at, i)) = order.get(*done)
        {
            *done += 1;
            let number = shard_number(at);
            if held.as_ref().is_none_or(|(n, _)| *n != number) {
                // Never two at once.
                drop(held.take());
                held = Some((number, self.shards[number].lock()));
            }
            let mut head = heaps[number].unpack(i as usize);
            self.heads.fetch_sub(1, Relaxed);
            if let Some((_, shard)) = &mut held
                && !shard.heap.slots.is_empty()
                && let Some(i) = shard.find(at)
            {
                head.join(shard.remove(i, &self.heads));
                if head.refs.is_empty() && !head.born && !head.full_backref {
                    continue;
                }
            }
            out.push(head);
        }
        if *done == order.len() {
            *sweep = Sweep::default();
        }
    }

    /// Extents that something is recorded of. While a sweep is going on, an extent of which more was recorded since it
    /// began counts twice.
    pub fn len(&self) -> usize {
        self.heads.load(Relaxed)
    }

    /// Whether nothing is recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests;
