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
//! table of their positions. A head is 56 bytes, with room for the one reference that most have (a tree block's first
//! key lies where only data references need the space); more references go to a side list. Order is made when it is
//! needed: the first drain of a sweep sorts the addresses there are, later ones go on along that list, and what was
//! recorded meanwhile waits for the next sweep unless it is on the list already. Measured against an ordered tree in
//! `docs/decisions/`.
//!
//! Invariants: no head holds two changes of one reference, nor a change of zero. One drain yields strictly rising
//! addresses, and so does a sweep.
//! Locks: one shard at a time (rank 40); a drain holds `sweep` (rank 39) over them. Never held over I/O.
//! Crash: memory only; a lost ledger is an uncommitted transaction.
//! Not here: addresses (`pick`), making freed space free (`space`), the items (`txn`).

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use hashbrown::HashTable;
use oleo_format::{ByteLen, Ino, ItemType, Key, Logical, TreeId};
use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};

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

const BORN: u8 = 1;
const FULL_BACKREF: u8 = 2;
const TREE: u8 = 4;

/// A [`Head`], packed. For a tree block `words[1..]` and `key_type` are its first key, as its references need one word.
#[derive(Clone, Copy)]
struct Slot {
    at: u64,
    len: u64,
    words: [u64; 3],
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

const _: () = assert!(size_of::<Slot>() <= 56);

impl Slot {
    fn new(at: Logical, len: ByteLen, kind: ExtentKind) -> Slot {
        let mut slot =
            Slot { at: at.0, len: len.0, words: [0; 3], delta: 0, more: 0, flags: 0, level: 0, key_type: 0, by: 0 };
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

/// The references of a head beyond the inline one.
type Side = Vec<(RefKey, i32)>;

#[derive(Default)]
struct Shard {
    slots: Vec<Slot>,
    /// Positions in `slots`, found by address.
    table: HashTable<u32>,
    sides: Vec<Side>,
    sides_free: Vec<u32>,
}

/// A region's or an address's hash. Multiplication spreads upwards, and the table looks at both ends of the word.
fn hash(word: u64) -> u64 {
    let mixed = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 32)
}

impl Shard {
    fn find(&self, at: u64) -> Option<usize> {
        self.table.find(hash(at), |&i| self.slots[i as usize].at == at).map(|&i| i as usize)
    }

    fn find_or_add(&mut self, at: Logical, len: ByteLen, kind: ExtentKind, heads: &AtomicUsize) -> usize {
        if let Some(i) = self.find(at.0) {
            return i;
        }
        let i = self.slots.len();
        let slots = &mut self.slots;
        slots.push(Slot::new(at, len, kind));
        // 2³² heads in one shard are 15 TiB of heads in all.
        self.table.insert_unique(hash(at.0), i as u32, |&i| hash(slots[i as usize].at));
        heads.fetch_add(1, SeqCst);
        i
    }

    fn change(&mut self, change: &RefChange, heads: &AtomicUsize) {
        if change.delta == 0 {
            return;
        }
        let i = self.find_or_add(change.at, change.len, change.kind, heads);
        let slot = &mut self.slots[i];
        let inline = slot.inline();
        if let Some((by, delta)) = inline
            && by == change.by
        {
            slot.delta = delta.saturating_add(change.delta);
        } else if inline.is_some() || slot.more != 0 || !slot.set_inline(change.by, change.delta) {
            self.change_side(i, change);
        }
        if self.slots[i].is_blank() {
            self.remove(i, heads);
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

    /// Takes a head out of its place; the last one moves there.
    fn remove(&mut self, i: usize, heads: &AtomicUsize) -> (Slot, Side) {
        let slot = self.slots[i];
        if let Ok(entry) = self.table.find_entry(hash(slot.at), |&n| n as usize == i) {
            entry.remove();
        }
        let last = self.slots.len() - 1;
        if i != last {
            let moved = hash(self.slots[last].at);
            if let Some(place) = self.table.find_mut(moved, |&n| n as usize == last) {
                *place = i as u32;
            }
        }
        self.slots.swap_remove(i);
        heads.fetch_sub(1, SeqCst);
        let side = match slot.more {
            0 => Side::new(),
            more => {
                self.sides_free.push(more - 1);
                std::mem::take(&mut self.sides[more as usize - 1])
            }
        };
        if self.slots.is_empty() && self.slots.capacity() > IDLE_SLOTS_MAX {
            *self = Shard::default();
        }
        (slot, side)
    }
}

fn unpack((slot, side): (Slot, Side)) -> Head {
    let mut refs: SmallVec<[(RefKey, i32); 1]> = match slot.inline() {
        Some(one) => smallvec![one],
        None => SmallVec::new(),
    };
    if !side.is_empty() {
        refs.extend(side);
        refs.sort_unstable();
    }
    Head {
        at: Logical(slot.at),
        len: ByteLen(slot.len),
        kind: slot.kind(),
        born: slot.flags & BORN != 0,
        full_backref: slot.flags & FULL_BACKREF != 0,
        refs,
    }
}

/// The ledger. Any number of threads record at once.
pub struct Ledger {
    shards: Box<[Mutex<Shard>]>,
    heads: AtomicUsize,
    /// The addresses of the current sweep that are still to come, falling.
    sweep: Mutex<Vec<u64>>,
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
            sweep: Mutex::default(),
        }
    }

    fn shard_number(at: u64) -> usize {
        (hash(at >> REGION_SHIFT) >> 58) as usize % SHARDS
    }

    fn shard(&self, at: Logical) -> &Mutex<Shard> {
        &self.shards[Self::shard_number(at.0)]
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
        let slot = &mut shard.slots[i];
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
        shard.slots[i].flags |= FULL_BACKREF;
    }

    /// What is recorded of the extent at `at`.
    pub fn pending(&self, at: Logical) -> Pending {
        let shard = self.shard(at).lock();
        let Some(i) = shard.find(at.0) else { return Pending::default() };
        let slot = &shard.slots[i];
        let side = slot.more.checked_sub(1).map_or(&[][..], |n| &shard.sides[n as usize]);
        Pending {
            refs: i64::from(slot.delta) + side.iter().map(|&(_, delta)| i64::from(delta)).sum::<i64>(),
            full_backref: slot.flags & FULL_BACKREF != 0,
            born: slot.flags & BORN != 0,
        }
    }

    /// Takes up to `max` heads out, in rising address order. When nothing comes, nothing is left.
    pub fn drain(&self, max: usize) -> Vec<Head> {
        let mut sweep = self.sweep.lock();
        let mut out = Vec::with_capacity(max.min(self.len()));
        if max == 0 {
            return out;
        }
        loop {
            let mut held: Option<(usize, parking_lot::MutexGuard<'_, Shard>)> = None;
            while out.len() < max
                && let Some(at) = sweep.pop()
            {
                let number = Self::shard_number(at);
                if held.as_ref().is_none_or(|(n, _)| *n != number) {
                    drop(held.take());
                    held = Some((number, self.shards[number].lock()));
                }
                // A head that cancelled since the sweep began is not there any more.
                if let Some((_, shard)) = &mut held
                    && let Some(i) = shard.find(at)
                {
                    out.push(unpack(shard.remove(i, &self.heads)));
                }
            }
            drop(held);
            // A call does not cross from one sweep into the next: its heads rise.
            if !out.is_empty() || !sweep.is_empty() {
                return out;
            }
            for shard in &self.shards {
                sweep.extend(shard.lock().slots.iter().map(|slot| slot.at));
            }
            if sweep.is_empty() {
                return out;
            }
            sweep.sort_unstable_by(|a, b| b.cmp(a));
        }
    }

    /// Extents that something is recorded of.
    pub fn len(&self) -> usize {
        self.heads.load(SeqCst)
    }

    /// Whether nothing is recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests;
