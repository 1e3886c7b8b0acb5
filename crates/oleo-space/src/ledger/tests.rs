use std::collections::{BTreeMap, BTreeSet};

use oleo_format::ItemType;

use super::*;
use crate::testing::Rng;

fn tree_kind(at: u64) -> ExtentKind {
    let first_key = Key { objectid: at / 7, item_type: ItemType::EXTENT_DATA, offset: at ^ 99 };
    ExtentKind::Tree { level: (at >> 14) as u8 & 7, first_key }
}

/// Half of each region is tree blocks, half data.
fn kind_at(at: u64) -> ExtentKind {
    if at >> 23 & 1 == 0 { tree_kind(at) } else { ExtentKind::Data }
}

fn random_ref(rng: &mut Rng, kind: ExtentKind) -> RefKey {
    let n = 256 + rng.below(6);
    match (kind, rng.below(3)) {
        (ExtentKind::Data, 0) => RefKey::DataParent(Logical(n << 14)),
        (ExtentKind::Data, _) => RefKey::DataRoot { root: TreeId(n), ino: Ino(257), offset: rng.below(3) << 12 },
        (_, 0) => RefKey::TreeParent(Logical(n << 14)),
        _ => RefKey::TreeRoot(TreeId(n)),
    }
}

#[derive(Default, Debug)]
struct Model {
    sums: BTreeMap<(u64, RefKey), i64>,
    is_new: BTreeSet<u64>,
    full: BTreeSet<u64>,
}

impl Model {
    fn add(&mut self, at: u64, by: RefKey, delta: i64) {
        let sum = self.sums.entry((at, by)).or_default();
        *sum += delta;
        if *sum == 0 {
            self.sums.remove(&(at, by));
        }
    }

    fn addresses(&self) -> BTreeSet<u64> {
        self.sums
            .keys()
            .map(|&(at, _)| at)
            .chain(self.is_new.iter().copied())
            .chain(self.full.iter().copied())
            .collect()
    }

    fn check_and_take(&mut self, head: &Head<'_>) {
        let at = head.at.0;
        let refs: Vec<_> =
            self.sums.range((at, RefKey::TreeRoot(TreeId(0)))..).take_while(|((a, _), _)| *a == at).collect();
        let refs: Vec<_> = refs.into_iter().map(|(&(_, by), &sum)| (by, sum as i32)).collect();
        assert_eq!(head.refs().collect::<Vec<_>>(), refs, "references of {at}");
        assert_eq!(head.is_new, self.is_new.remove(&at), "{at} new");
        assert_eq!(head.full_backref, self.full.remove(&at), "{at} full backref");
        assert_eq!((head.kind, head.len), (kind_at(at), ByteLen(16384)), "what {at} is");
        assert!(!refs.is_empty() || head.is_new || head.full_backref, "{at} came out for nothing");
        for (by, _) in refs {
            self.sums.remove(&(at, by));
        }
    }
}

/// What the sweep that is under way has left, and what was recorded since.
#[derive(Default)]
struct Models {
    sweep: Model,
    later: Model,
}

impl Models {
    fn drained(&mut self, batch: &Batch) {
        if self.sweep.addresses().is_empty() {
            self.sweep = std::mem::take(&mut self.later);
        }
        assert!(batch.heads().is_sorted_by(|a, b| a.at < b.at));
        assert_eq!(batch.is_empty(), self.sweep.addresses().is_empty());
        if let Some(last) = batch.heads().last() {
            batch.heads().for_each(|head| self.sweep.check_and_take(&head));
            assert!(self.sweep.addresses().first().is_none_or(|next| *next > last.at.0), "lower ones come first");
        }
    }
}

/// Goal: the ledger is a map of sums. Method: random records, one by one and in batches, new extents, flags, look-ups and
/// partial drains, beside a map; every drained head and every look-up compared; in the end both are empty.
#[test]
fn the_ledger_is_a_map_of_sums() {
    for seed in 0..10 {
        let mut rng = Rng::new(seed);
        let ledger = Ledger::new();
        let mut models = Models::default();
        let mut batch = Vec::new();
        for _ in 0..4000 {
            let model = &mut models.later;
            let at = rng.below(8) << 23 | rng.below(12) << 14;
            let kind = kind_at(at);
            match rng.below(40) {
                0 => {
                    ledger.record_new_extent(Logical(at), ByteLen(16384), kind);
                    model.is_new.insert(at);
                }
                1 => {
                    ledger.set_full_backref(Logical(at), ByteLen(16384), kind);
                    model.full.insert(at);
                }
                2 => {
                    models.drained(&ledger.drain(rng.below(60) as usize));
                }
                3..=9 => {
                    let here = |map: &BTreeMap<(u64, RefKey), i64>| {
                        map.iter().filter(|((a, _), _)| *a == at).map(|(_, s)| s).sum::<i64>()
                    };
                    let Models { sweep, later } = &models;
                    let want = Pending {
                        refs: here(&sweep.sums) + here(&later.sums),
                        full_backref: sweep.full.contains(&at) || later.full.contains(&at),
                        is_new: sweep.is_new.contains(&at) || later.is_new.contains(&at),
                    };
                    assert_eq!(ledger.pending(Logical(at)), want, "seed {seed}");
                }
                10..=20 => {
                    for _ in 0..rng.below(20) {
                        let at = rng.below(8) << 23 | rng.below(12) << 14;
                        let (kind, delta) = (kind_at(at), rng.below(5) as i32 - 2);
                        let by = random_ref(&mut rng, kind);
                        batch.push(RefChange { at: Logical(at), len: ByteLen(16384), kind, by, delta });
                        model.add(at, by, delta.into());
                    }
                    ledger.record_batch(&mut batch);
                    assert!(batch.is_empty());
                }
                _ => {
                    let (by, delta) = (random_ref(&mut rng, kind), rng.below(5) as i32 - 2);
                    ledger.record(Logical(at), ByteLen(16384), kind, by, delta);
                    model.add(at, by, delta.into());
                }
            }
            let waiting = models.sweep.addresses().len() + models.later.addresses().len();
            assert!(ledger.len() >= waiting, "seed {seed}");
        }
        loop {
            let batch = ledger.drain(10);
            models.drained(&batch);
            if batch.is_empty() {
                break;
            }
        }
        assert!(ledger.is_empty() && models.later.addresses().is_empty(), "seed {seed}: {:?}", models.later);
    }
}

/// Goal: a reference added and dropped ten times over costs the extent tree nothing, but an extent that is new and
/// lost all its references comes out, so that its space can be given back.
#[test]
fn cancelled_heads_vanish_and_new_ones_do_not() {
    let ledger = Ledger::new();
    for i in 0..1000 {
        for _ in 0..10 {
            let at = Logical(i << 14);
            ledger.record(at, ByteLen(16384), tree_kind(at.0), RefKey::TreeRoot(TreeId::FS), 1);
            ledger.record(at, ByteLen(16384), tree_kind(at.0), RefKey::TreeRoot(TreeId::FS), -1);
        }
    }
    assert!(ledger.drain(usize::MAX).is_empty() && ledger.is_empty());
    let at = Logical(77 << 14);
    ledger.record(at, ByteLen(16384), tree_kind(0), RefKey::TreeRoot(TreeId::FS), 1);
    ledger.record_new_extent(at, ByteLen(16384), tree_kind(5));
    ledger.record(at, ByteLen(16384), tree_kind(0), RefKey::TreeRoot(TreeId::FS), -1);
    let batch = ledger.drain(usize::MAX);
    let heads: Vec<Head<'_>> = batch.heads().collect();
    assert_eq!(heads.len(), 1);
    assert!(heads[0].is_new && heads[0].refs().count() == 0 && heads[0].net() == 0);
    assert_eq!(heads[0].kind, tree_kind(5), "the birth knows the first key");
    assert!(ledger.is_empty());
}

/// Goal: an extent with very many references (clones) keeps them all, and cancels them.
#[test]
fn one_extent_with_many_references() {
    let ledger = Ledger::new();
    let clone = |i: u64| RefKey::DataRoot { root: TreeId(256 + i % 7), ino: Ino(300 + i), offset: 0 };
    let record = |i, delta| ledger.record(Logical(1 << 30), ByteLen(4096), ExtentKind::Data, clone(i), delta);
    (0..5000).for_each(|i| record(i, 1));
    assert_eq!(ledger.pending(Logical(1 << 30)).refs, 5000);
    (0..5000).filter(|i| i % 5 > 0).for_each(|i| record(i, -1));
    let batch = ledger.drain(1);
    let heads: Vec<Head<'_>> = batch.heads().collect();
    assert_eq!((heads.len(), heads[0].refs().count(), heads[0].net()), (1, 1000, 1000));
    assert!(heads[0].refs().is_sorted());
}

/// Goal: many threads record while several drain, nothing is lost, and no two drainers have one extent in hand at the same time.
/// Method: recorders add and drop at random addresses and keep their sums; drainers mark each head's address while they hold
/// its batch, and add up; the sums per extent must be equal in the end.
#[test]
fn threads_record_and_drain_at_once() {
    use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
    const PLACES: usize = 1 << 10;
    let at_of = |place: usize| (place as u64 % 16) << REGION_SHIFT | (place as u64 / 16) << 14;
    let place_of = |at: u64| (at >> REGION_SHIFT) as usize + ((at >> 14) as usize % (PLACES / 16)) * 16;
    let ledger = Ledger::new();
    let sums: Vec<AtomicI64> = (0..PLACES).map(|_| AtomicI64::new(0)).collect();
    let held: Vec<AtomicBool> = (0..PLACES).map(|_| AtomicBool::new(false)).collect();
    let over = AtomicBool::new(false);
    let drain_some = || {
        let batch = ledger.drain(100);
        for head in batch.heads() {
            assert!(!held[place_of(head.at.0)].swap(true, Relaxed), "one drainer at a time has {}", head.at);
        }
        std::thread::yield_now();
        for head in batch.heads() {
            sums[place_of(head.at.0)].fetch_sub(head.net(), Relaxed);
            held[place_of(head.at.0)].store(false, Relaxed);
        }
        batch.is_empty()
    };
    std::thread::scope(|scope| {
        let recorders: Vec<_> = (0..6u64)
            .map(|t| {
                let (ledger, sums) = (&ledger, &sums);
                scope.spawn(move || {
                    let mut rng = Rng::new(t);
                    let mut batch = Vec::new();
                    for i in 0..6000u64 {
                        let (place, delta) = (rng.below(PLACES as u64) as usize, rng.below(7) as i32 - 3);
                        let (at, by) = (at_of(place), RefKey::TreeRoot(TreeId(rng.below(3))));
                        sums[place].fetch_add(delta.into(), Relaxed);
                        batch.push(RefChange { at: Logical(at), len: ByteLen(16384), kind: tree_kind(at), by, delta });
                        if i % 16 == 0 {
                            ledger.record_batch(&mut batch);
                        }
                    }
                    ledger.record_batch(&mut batch);
                })
            })
            .collect();
        for _ in 0..3 {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    drain_some();
                }
            });
        }
        recorders.into_iter().for_each(|recorder| recorder.join().unwrap());
        over.store(true, Relaxed);
    });
    while !drain_some() {}
    assert!(sums.iter().all(|sum| sum.load(Relaxed) == 0));
    assert!(ledger.is_empty());
}

/// Goal: a batch in hand keeps the next sweep, which may hold the same extents, from beginning.
#[test]
fn a_sweep_waits_for_the_batches_of_the_one_before() {
    let ledger = Ledger::new();
    let record = |i: u64, delta| {
        ledger.record(Logical(i << REGION_SHIFT), ByteLen(16384), tree_kind(i), RefKey::TreeRoot(TreeId::FS), delta);
    };
    let places = |batch: &Batch| batch.heads().map(|head| head.at.0 >> REGION_SHIFT).collect::<Vec<_>>();
    (0..100).for_each(|i| record(i, 1));
    let first = ledger.drain(10);
    assert_eq!(places(&first), (0..10).collect::<Vec<_>>());
    (0..100).step_by(2).for_each(|i| record(i, -1));
    let pending = |i: u64| ledger.pending(Logical(i << REGION_SHIFT)).refs;
    assert_eq!((pending(3), pending(4), pending(50), pending(51)), (0, -1, 0, 1));
    let second = ledger.drain(1000);
    assert_eq!(places(&second), (10..100).collect::<Vec<_>>());
    drop(second);
    assert!(ledger.drain(1000).is_empty() && !ledger.is_empty(), "the first batch is still in use");
    drop(first);
    assert_eq!(places(&ledger.drain(1000)), (0..100).step_by(2).collect::<Vec<_>>());
    assert!(ledger.drain(1).is_empty() && ledger.is_empty());
}

/// Goal: what is added and dropped again and again takes no more room than some tails and one copy.
#[test]
fn what_cancels_does_not_pile_up() {
    let ledger = Ledger::new();
    let mut batch = Vec::new();
    for turn in 0..100 {
        for i in 0..4000u64 {
            let (at, delta) = (Logical(i << 20), if turn % 2 == 0 { 1 } else { -1 });
            let by = RefKey::TreeRoot(TreeId::FS);
            batch.push(RefChange { at, len: ByteLen(16384), kind: tree_kind(i), by, delta });
        }
        ledger.record_batch(&mut batch);
        assert!(ledger.len() <= SHARDS * TAIL_RECORDS_MAX + 2 * 4000, "{} after {turn}", ledger.len());
    }
    assert!(ledger.drain(1).is_empty());
}

/// Goal: a length that no sound image has is kept as it is.
#[test]
fn odd_and_huge_lengths_are_kept() {
    let ledger = Ledger::new();
    let lens = [0, 1, 511, 512, 4097, (u64::from(u32::MAX) - 1) * 512, u64::from(u32::MAX) * 512, u64::MAX];
    for (i, len) in (0..).zip(lens) {
        ledger.record(Logical(i << 20), ByteLen(len), ExtentKind::Data, RefKey::DataParent(Logical(5)), -1);
    }
    let batch = ledger.drain(usize::MAX);
    assert_eq!(batch.heads().map(|head| head.len.0).collect::<Vec<_>>(), lens);
}

/// Goal: merging what is in order is the same as sorting all of it, however long the stretches of one side are.
/// Method: records in stretches of one list or the other, with references that meet, cancel and carry marks; both lists are
/// folded and merged, and compared with all of it folded in one step and with a map of sums.
#[test]
fn merging_is_sorting() {
    let heads = |records: &[Record]| -> Vec<_> {
        let heads = records.chunk_by(|a, b| a.at == b.at).map(record::head);
        heads.map(|h| (h.at, h.len, h.kind, h.is_new, h.full_backref, h.refs().collect::<Vec<_>>())).collect()
    };
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let (mut lists, mut sums) = ([Vec::new(), Vec::new()], BTreeMap::new());
        let (places, owners) = (1 + rng.below(200), 1 + rng.below(60));
        for _ in 0..rng.below(40) {
            let into = rng.below(2) as usize;
            let mut place = rng.below(places);
            for _ in 0..rng.below(100) {
                if rng.below(4) == 0 {
                    place += 1;
                }
                let at = Logical(place << 14);
                if rng.below(30) == 0 {
                    let mark = if rng.below(2) == 0 { NEW } else { FULL_BACKREF };
                    lists[into].push(Record::marks(at, ByteLen(4096), ExtentKind::Data, mark));
                    continue;
                }
                let by = RefKey::DataRoot { root: TreeId(256), ino: Ino(rng.below(owners)), offset: rng.below(2) };
                let delta = rng.below(2) as i32 * 2 - 1;
                let change = RefChange { at, len: ByteLen(4096), kind: ExtentKind::Data, by, delta };
                *sums.entry((at, by)).or_insert(0) += delta;
                lists[into].push(Record::of(&change));
            }
        }
        let merged = record::merge(&record::fold(&lists[0]), &record::fold(&lists[1]));
        assert!(merged.is_sorted_by(|a, b| a.compare(b).is_lt()), "seed {seed}");
        assert_eq!(heads(&merged), heads(&record::fold(&lists.concat())), "seed {seed}");
        sums.retain(|_, sum| *sum != 0);
        let found: BTreeMap<_, _> = heads(&merged)
            .into_iter()
            .flat_map(|h| h.5.into_iter().map(move |(by, delta)| ((h.0, by), delta)))
            .collect();
        assert_eq!(found, sums, "seed {seed}");
    }
}

/// Goal: an image that gives out an address twice, as data and as a tree block, is only wrong about what the extent is.
/// Method: marks and references of both sorts at few addresses, enough for a sort to notice an order that is none.
#[test]
fn lying_kinds_are_in_one_order() {
    let mut rng = Rng::new(3);
    let ledger = Ledger::new();
    let mut sums = BTreeMap::new();
    for _ in 0..20_000 {
        let at = Logical(rng.below(40) << 14);
        let kind = if rng.below(2) == 0 { ExtentKind::Data } else { tree_kind(rng.below(1 << 30)) };
        match rng.below(4) {
            0 => ledger.record_new_extent(at, ByteLen(16384), kind),
            1 => ledger.set_full_backref(at, ByteLen(16384), kind),
            _ => {
                let any = if rng.below(2) == 0 { ExtentKind::Data } else { tree_kind(0) };
                let by = random_ref(&mut rng, any);
                ledger.record(at, ByteLen(16384), kind, by, 1);
                *sums.entry((at, by)).or_insert(0) += 1;
            }
        }
    }
    let batch = ledger.drain(usize::MAX);
    let found: BTreeMap<_, _> = batch.heads().flat_map(|h| h.refs().map(move |(by, d)| ((h.at, by), d))).collect();
    assert_eq!(found, sums);
}
