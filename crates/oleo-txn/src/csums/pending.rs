//! Checksums that are not in the tree yet, in shards by address.
//!
//! Readers of data ask here before they ask the tree, so a lock for all would be a cache line that all of them store to. Addresses
//! are divided into regions of 4 MiB, which fall to 64 shards in turn; sums are cut where a region ends, so those of a sector are in
//! one shard. Whoever reads or writes data elsewhere touches other shards.
//!
//! Locks: one for each shard, one at a time. Crash: memory only.

use std::collections::BTreeMap;
use std::sync::Arc;

use oleo_format::{ByteLen, Key, Logical};
use oleo_lock::{RwLock, rank};
use oleo_tree::Op;

use super::{Layout, csum_key, overlay};

/// Bytes of data of a region. The sums of one are 4 KiB (CRC32C, sectors of 4 KiB), a small part of what a long write adds.
const REGION: u64 = 4 << 20;
/// Shards: with two threads for each of 32 processors, most find one of their own. A freeze, with joins blocked, takes the lock of each.
const SHARDS: usize = 64;

/// By the address of the first sector.
pub(super) type Sums = BTreeMap<u64, Vec<u8>>;

/// What a shard has. Alone on its cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Shard(RwLock<rank::PendingSums, Halves>);

#[derive(Default)]
struct Halves {
    open: Sums,
    /// Shared with a commit that puts them into the tree, which reads blocks meanwhile.
    frozen: Arc<Sums>,
}

/// Checksums on their way to the tree.
pub(crate) struct Pending {
    shards: Box<[Shard]>,
}

impl Default for Pending {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }
}

/// The parts of `from..to` by region.
fn regions(mut from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> {
    std::iter::from_fn(move || {
        let part = (from < to).then(|| (from, to.min((from / REGION + 1).saturating_mul(REGION))))?;
        from = part.1;
        Some(part)
    })
}

/// Of a region, all sums of which some may lie in `from..to`, which is a part of it.
fn range(half: &Sums, from: u64, to: u64) -> impl Iterator<Item = (&u64, &Vec<u8>)> {
    let region = from / REGION * REGION;
    let first = half.range(region..=from).next_back().map_or(from, |(start, _)| *start);
    half.range(first..to)
}

impl Pending {
    fn shard(&self, at: u64) -> &RwLock<rank::PendingSums, Halves> {
        &self.shards[(at / REGION) as usize % SHARDS].0
    }

    /// Sums that begin at `at`, cut where regions end, each given to the half of its shard that `into` picks.
    fn insert(&self, l: Layout, at: Logical, sums: Vec<u8>, into: impl Fn(&mut Halves) -> &mut Sums) {
        let end = l.end(at.0, &sums);
        if regions(at.0, end).nth(1).is_none() {
            into(&mut self.shard(at.0).write()).insert(at.0, sums);
            return;
        }
        for (from, to) in regions(at.0, end) {
            let part = sums[l.bytes(from - at.0)..l.bytes(to - at.0)].to_vec();
            into(&mut self.shard(from).write()).insert(from, part);
        }
    }

    pub(crate) fn add(&self, l: Layout, at: Logical, sums: Vec<u8>) {
        self.insert(l, at, sums, |halves| &mut halves.open);
    }

    /// Joins are blocked: what is open becomes frozen. What was frozen has been settled before.
    pub(crate) fn freeze(&self) {
        for shard in &self.shards {
            if shard.0.read().open.is_empty() {
                continue;
            }
            let halves = &mut *shard.0.write();
            if halves.frozen.is_empty() {
                halves.frozen = Arc::new(std::mem::take(&mut halves.open));
            } else {
                Arc::make_mut(&mut halves.frozen).append(&mut halves.open);
            }
        }
    }

    /// Readers find these from now on; the commit under way puts them into the tree itself.
    pub(crate) fn show(&self, l: Layout, sums: &[(Logical, Vec<u8>)]) {
        for (at, sums) in sums {
            self.insert(l, *at, sums.clone(), |halves| Arc::make_mut(&mut halves.frozen));
        }
    }

    /// The tree holds what was frozen.
    pub(crate) fn settled(&self) {
        for shard in &self.shards {
            if shard.0.read().frozen.is_empty() {
                continue;
            }
            // Given back with the lock released: readers do not wait for that.
            let _settled = std::mem::take(&mut shard.0.write().frozen);
        }
    }

    /// What is frozen, by shard.
    pub(super) fn frozen(&self) -> Vec<Arc<Sums>> {
        self.shards.iter().map(|shard| shard.0.read().frozen.clone()).collect()
    }

    /// Copies what there is of the sectors from `at` on: `out` has their sums, `have` is set for those that have one here.
    pub(super) fn overlay(&self, l: Layout, at: u64, out: &mut [u8], have: &mut [bool]) {
        for (from, to) in regions(at, at + have.len() as u64 * l.sectorsize) {
            let halves = self.shard(from).read();
            // What was added later replaces what the frozen half has of a reused address.
            for (start, sums) in range(&halves.frozen, from, to).chain(range(&halves.open, from, to)) {
                overlay(l, *start, sums, at, out, have);
            }
        }
    }

    /// The checksum items of a log that data in a range needs: whole steps of what was added together, counted from where it
    /// began in its region, so that items that are asked for twice are the same and none overlap.
    pub(crate) fn pending_items(&self, l: Layout, at: Logical, len: ByteLen, out: &mut BTreeMap<Key, Op>) {
        let step = (l.item_bytes_max / l.csum_len * l.csum_len) as usize;
        for (from, to) in regions(at.0, at.0.saturating_add(len.0)) {
            let halves = self.shard(from).read();
            for (start, sums) in range(&halves.frozen, from, to).chain(range(&halves.open, from, to)) {
                let mut first = *start;
                for part in sums.chunks(step) {
                    let end = l.end(first, part);
                    if end > from && first < to {
                        out.insert(csum_key(first), Op::Put(part.into()));
                    }
                    first = end;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use oleo_sim::rng::Rng;

    use super::*;

    const LAYOUT: Layout = Layout { sectorsize: 4096, csum_len: 4, item_bytes_max: 256 };
    const SECTOR: u64 = LAYOUT.sectorsize;
    /// Sectors around the border between two regions, and of the one behind them.
    const SECTORS: u64 = 2 * REGION / SECTOR + 100;

    /// Goal: wherever sums begin and end, each sector has the one that was added last, until it is settled; and the items of a log have
    /// them too, none beside another. Method: runs of sectors at random, not longer than what they replace, beside a map of sectors.
    #[test]
    fn sums_are_found_by_sector() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let pending = Pending::default();
            let base = 5 * REGION - 50 * SECTOR;
            let (mut open, mut frozen) = (BTreeMap::new(), BTreeMap::new());
            for round in 0..30u32 {
                let from = rng.below(SECTORS - 1);
                let long = if rng.one_in(3) { SECTORS } else { 20 };
                // Space is freed before it is written again: no sums begin or end within others.
                let taken = |s: &u64| open.contains_key(s) || frozen.contains_key(s);
                let free = (from..SECTORS.min(from + 1 + rng.below(long))).take_while(|s| !taken(s)).count() as u64;
                if free > 0 {
                    let sums: Vec<u8> = (0..free as u32).flat_map(|n| (round << 16 | n).to_le_bytes()).collect();
                    open.extend((from..from + free).zip(sums.chunks(4).map(<[u8]>::to_vec)));
                    pending.add(LAYOUT, Logical(base + from * SECTOR), sums);
                }
                if rng.one_in(6) {
                    pending.settled();
                    pending.freeze();
                    frozen = std::mem::take(&mut open);
                }
                let at = rng.below(SECTORS - 1);
                let len = 1 + rng.below(SECTORS - at);
                let (mut out, mut have) = (vec![0; len as usize * 4], vec![false; len as usize]);
                pending.overlay(LAYOUT, base + at * SECTOR, &mut out, &mut have);
                let mut items = BTreeMap::new();
                pending.pending_items(LAYOUT, Logical(base + at * SECTOR), ByteLen(len * SECTOR), &mut items);
                let mut logged = BTreeMap::new();
                for (key, op) in &items {
                    let Op::Put(sums) = op else { panic!("nothing is taken out") };
                    assert!(sums.len() <= 256);
                    for (n, sum) in sums.chunks(4).enumerate() {
                        assert_eq!(logged.insert((key.offset - base) / SECTOR + n as u64, sum.to_vec()), None, "twice");
                    }
                }
                for (n, have) in have.iter().enumerate() {
                    let sector = at + n as u64;
                    let expected = open.get(&sector).or_else(|| frozen.get(&sector));
                    let found = have.then(|| out[n * 4..n * 4 + 4].to_vec());
                    assert_eq!(found.as_ref(), expected, "seed {seed}, round {round}, sector {sector}");
                    assert_eq!(logged.get(&sector), expected, "seed {seed}, round {round}, sector {sector} in the log");
                }
            }
            let all: usize = pending.frozen().iter().flat_map(|sums| sums.values()).map(Vec::len).sum();
            assert_eq!(all, frozen.len() * 4);
        }
    }
}
