//! Stores of heads to compare the ledger with: an ordered tree, a radix tree, and hash tables that are sorted when drained.
//!
//! The first two are under one lock, as such trees are; the third has 64 shards by address. All keep a head as a
//! program would that does not pack it: references in a small sorted vector, so that extents with many are found
//! quickly.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use oleo_format::{ByteLen, Logical};
use oleo_space::{ExtentKind, Ledger, RefChange, RefKey};
use parking_lot::Mutex;
use smallvec::SmallVec;

/// What all of them can.
pub trait Store: Sync {
    /// The extent was allocated just now.
    fn record_new_extent(&self, at: Logical, len: ByteLen, kind: ExtentKind);
    /// Takes changes in.
    fn record_batch(&self, batch: &mut Vec<RefChange>);
    /// Takes about `max` heads out, lowest address first, and passes address and sum of each to `see`; returns how
    /// many.
    fn drain(&self, max: usize, see: &mut dyn FnMut(u64, i64)) -> usize;
}

impl Store for Ledger {
    fn record_new_extent(&self, at: Logical, len: ByteLen, kind: ExtentKind) {
        Ledger::record_new_extent(self, at, len, kind);
    }
    fn record_batch(&self, batch: &mut Vec<RefChange>) {
        Ledger::record_batch(self, batch);
    }
    fn drain(&self, max: usize, see: &mut dyn FnMut(u64, i64)) -> usize {
        Ledger::drain(self, max).heads().map(|head| see(head.at.0, head.net())).count()
    }
}

/// A head, not packed.
pub struct Head {
    at: u64,
    _len: ByteLen,
    _kind: ExtentKind,
    record_new_extent: bool,
    refs: SmallVec<[(RefKey, i32); 1]>,
}

impl Head {
    fn new(at: Logical, len: ByteLen, kind: ExtentKind) -> Head {
        Head { at: at.0, _len: len, _kind: kind, record_new_extent: false, refs: SmallVec::new() }
    }

    fn change(&mut self, by: RefKey, delta: i32) {
        match self.refs.binary_search_by(|(known, _)| known.cmp(&by)) {
            Err(place) => self.refs.insert(place, (by, delta)),
            Ok(place) => {
                self.refs[place].1 += delta;
                if self.refs[place].1 == 0 {
                    self.refs.remove(place);
                }
            }
        }
    }

    fn is_blank(&self) -> bool {
        self.refs.is_empty() && !self.record_new_extent
    }

    fn net(&self) -> i64 {
        self.refs.iter().map(|(_, delta)| i64::from(*delta)).sum()
    }
}

/// The standard library's B-tree.
#[derive(Default)]
pub struct Ordered(Mutex<BTreeMap<u64, Head>>);

impl Store for Ordered {
    fn record_new_extent(&self, at: Logical, len: ByteLen, kind: ExtentKind) {
        self.0.lock().entry(at.0).or_insert_with(|| Head::new(at, len, kind)).record_new_extent = true;
    }

    fn record_batch(&self, batch: &mut Vec<RefChange>) {
        let mut map = self.0.lock();
        for change in batch.drain(..) {
            let head = map.entry(change.at.0).or_insert_with(|| Head::new(change.at, change.len, change.kind));
            head.change(change.by, change.delta);
            if head.is_blank() {
                map.remove(&change.at.0);
            }
        }
    }

    fn drain(&self, max: usize, see: &mut dyn FnMut(u64, i64)) -> usize {
        let mut map = self.0.lock();
        (0..max).map_while(|_| map.pop_first()).map(|(_, head)| see(head.at, head.net())).count()
    }
}

const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// Addresses are multiples of a sector.
const SECTOR_SHIFT: u32 = 12;

/// A node of the radix tree: 64 slots and a bit for each that is taken.
struct Slots {
    taken: u64,
    slots: [u32; SLOTS],
}

/// A radix tree by sector number, six bits a level, as high as the highest address needs; nodes and heads lie in two arenas.
#[derive(Default)]
pub struct RadixTree {
    nodes: Vec<Slots>,
    idle_nodes: Vec<u32>,
    heads: Vec<Head>,
    idle_heads: Vec<u32>,
    root: u32,
    /// Levels of nodes; 0 while there is nothing.
    height: u32,
}

impl RadixTree {
    fn node(&mut self) -> u32 {
        if let Some(idle) = self.idle_nodes.pop() {
            return idle;
        }
        self.nodes.push(Slots { taken: 0, slots: [0; SLOTS] });
        self.nodes.len() as u32 - 1
    }

    fn slot(index: u64, level: u32) -> usize {
        (index >> (level * SLOT_BITS)) as usize % SLOTS
    }

    fn entry(&mut self, at: Logical, len: ByteLen, kind: ExtentKind) -> u32 {
        let index = at.0 >> SECTOR_SHIFT;
        let levels = (u64::BITS - index.leading_zeros()).div_ceil(SLOT_BITS).max(1);
        if self.height == 0 {
            (self.root, self.height) = (self.node(), levels);
        }
        while self.height < levels {
            let above = self.node();
            let node = &mut self.nodes[above as usize];
            (node.taken, node.slots[0]) = (1, self.root);
            (self.root, self.height) = (above, self.height + 1);
        }
        let mut node = self.root;
        for level in (0..self.height).rev() {
            let slot = Self::slot(index, level);
            let here = &self.nodes[node as usize];
            if here.taken & 1 << slot != 0 {
                node = here.slots[slot];
                continue;
            }
            let next = if level > 0 {
                self.node()
            } else if let Some(idle) = self.idle_heads.pop() {
                self.heads[idle as usize] = Head::new(at, len, kind);
                idle
            } else {
                self.heads.push(Head::new(at, len, kind));
                self.heads.len() as u32 - 1
            };
            let here = &mut self.nodes[node as usize];
            here.taken |= 1 << slot;
            here.slots[slot] = next;
            node = next;
        }
        node
    }

    /// Takes a head out, and the nodes that are empty then.
    fn remove(&mut self, at: u64) {
        let index = at >> SECTOR_SHIFT;
        let mut path = SmallVec::<[u32; 10]>::new();
        let mut node = self.root;
        for level in (0..self.height).rev() {
            path.push(node);
            node = self.nodes[node as usize].slots[Self::slot(index, level)];
        }
        self.idle_heads.push(node);
        for (level, node) in path.into_iter().rev().enumerate() {
            let here = &mut self.nodes[node as usize];
            here.taken &= !(1 << Self::slot(index, level as u32));
            if here.taken != 0 {
                return;
            }
            self.idle_nodes.push(node);
        }
        self.height = 0;
    }

    fn first(&self) -> Option<&Head> {
        if self.height == 0 {
            return None;
        }
        let mut node = self.root;
        for _ in 0..self.height {
            let here = &self.nodes[node as usize];
            node = here.slots[here.taken.trailing_zeros() as usize];
        }
        Some(&self.heads[node as usize])
    }
}

/// The radix tree under its lock.
#[derive(Default)]
pub struct Radix(Mutex<RadixTree>);

impl Store for Radix {
    fn record_new_extent(&self, at: Logical, len: ByteLen, kind: ExtentKind) {
        let mut tree = self.0.lock();
        let head = tree.entry(at, len, kind);
        tree.heads[head as usize].record_new_extent = true;
    }

    fn record_batch(&self, batch: &mut Vec<RefChange>) {
        let mut tree = self.0.lock();
        for change in batch.drain(..) {
            let head = tree.entry(change.at, change.len, change.kind) as usize;
            tree.heads[head].change(change.by, change.delta);
            if tree.heads[head].is_blank() {
                tree.remove(change.at.0);
            }
        }
    }

    fn drain(&self, max: usize, see: &mut dyn FnMut(u64, i64)) -> usize {
        let mut tree = self.0.lock();
        let mut next = || {
            let head = tree.first()?;
            let at = head.at;
            see(at, head.net());
            tree.remove(at);
            Some(())
        };
        (0..max).map_while(|_| next()).count()
    }
}

const SHARDS: usize = 64;
/// As in the ledger: regions of 1 MiB.
const REGION_SHIFT: u32 = 20;

/// Hash tables by address; the first drain takes them all and sorts.
pub struct Hashed {
    shards: Vec<Mutex<HashMap<u64, Head>>>,
    sorted: Mutex<Vec<Head>>,
}

impl Default for Hashed {
    fn default() -> Hashed {
        Hashed { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), sorted: Mutex::default() }
    }
}

impl Hashed {
    fn shard(&self, at: Logical) -> &Mutex<HashMap<u64, Head>> {
        let mixed = (at.0 >> REGION_SHIFT).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(mixed >> 58) as usize % SHARDS]
    }
}

impl Store for Hashed {
    fn record_new_extent(&self, at: Logical, len: ByteLen, kind: ExtentKind) {
        self.shard(at).lock().entry(at.0).or_insert_with(|| Head::new(at, len, kind)).record_new_extent = true;
    }

    fn record_batch(&self, batch: &mut Vec<RefChange>) {
        batch.sort_unstable_by_key(|change| change.at);
        for run in batch.chunk_by(|a, b| a.at.0 >> REGION_SHIFT == b.at.0 >> REGION_SHIFT) {
            let mut shard = self.shard(run[0].at).lock();
            for change in run {
                let head = shard.entry(change.at.0).or_insert_with(|| Head::new(change.at, change.len, change.kind));
                head.change(change.by, change.delta);
                if head.is_blank() {
                    shard.remove(&change.at.0);
                }
            }
        }
        batch.clear();
    }

    fn drain(&self, max: usize, see: &mut dyn FnMut(u64, i64)) -> usize {
        let mut sorted = self.sorted.lock();
        if sorted.is_empty() {
            sorted.extend(self.shards.iter().flat_map(|shard| std::mem::take(&mut *shard.lock()).into_values()));
            // The last one is the lowest.
            sorted.sort_unstable_by_key(|head| std::cmp::Reverse(head.at));
        }
        (0..max).map_while(|_| sorted.pop()).map(|head| see(head.at, head.net())).count()
    }
}
