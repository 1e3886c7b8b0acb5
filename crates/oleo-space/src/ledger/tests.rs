use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::testing::Rng;

fn tree_kind(at: u64) -> ExtentKind {
    let first_key = Key { objectid: at / 7, item_type: ItemType::EXTENT_DATA, offset: at ^ 99 };
    ExtentKind::Tree { level: (at >> 14) as u8 & 7, first_key }
}

/// Even region numbers are tree blocks, odd ones data.
fn kind_at(at: u64) -> ExtentKind {
    if at >> 20 & 1 == 0 { tree_kind(at) } else { ExtentKind::Data }
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
    born: BTreeSet<u64>,
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
        self.sums.keys().map(|&(at, _)| at).chain(self.born.iter().copied()).chain(self.full.iter().copied()).collect()
    }

    fn check_and_take(&mut self, head: &Head) {
        let at = head.at.0;
        let refs: Vec<_> =
            self.sums.range((at, RefKey::TreeRoot(TreeId(0)))..).take_while(|((a, _), _)| *a == at).collect();
        let refs: Vec<_> = refs.into_iter().map(|(&(_, by), &sum)| (by, sum as i32)).collect();
        assert_eq!(head.refs.as_slice(), refs, "references of {at}");
        assert_eq!(head.born, self.born.remove(&at), "{at} born");
        assert_eq!(head.full_backref, self.full.remove(&at), "{at} full backref");
        assert_eq!((head.kind, head.len), (kind_at(at), ByteLen(16384)), "what {at} is");
        assert!(!refs.is_empty() || head.born || head.full_backref, "{at} came out for nothing");
        for (by, _) in refs {
            self.sums.remove(&(at, by));
        }
    }
}

/// Goal: the ledger is a map of sums. Method: random records, one by one and in batches, births, flags, look-ups and
/// partial drains, beside a map; every drained head and every look-up compared; in the end both are empty.
#[test]
fn the_ledger_is_a_map_of_sums() {
    for seed in 0..10 {
        let mut rng = Rng::new(seed);
        let ledger = Ledger::new();
        let mut model = Model::default();
        let mut batch = Vec::new();
        for _ in 0..4000 {
            let at = rng.below(8) << 20 | rng.below(12) << 14;
            let kind = kind_at(at);
            match rng.below(40) {
                0 => {
                    ledger.born(Logical(at), ByteLen(16384), kind);
                    model.born.insert(at);
                }
                1 => {
                    ledger.set_full_backref(Logical(at), ByteLen(16384), kind);
                    model.full.insert(at);
                }
                2 => {
                    let max = rng.below(60) as usize;
                    let heads = ledger.drain(max);
                    assert!(heads.len() <= max && heads.is_sorted_by(|a, b| a.at < b.at), "seed {seed}");
                    heads.iter().for_each(|head| model.check_and_take(head));
                }
                3..=9 => {
                    let here = |map: &BTreeMap<(u64, RefKey), i64>| {
                        map.iter().filter(|((a, _), _)| *a == at).map(|(_, s)| s).sum()
                    };
                    let want = Pending {
                        refs: here(&model.sums),
                        full_backref: model.full.contains(&at),
                        born: model.born.contains(&at),
                    };
                    assert_eq!(ledger.pending(Logical(at)), want, "seed {seed}");
                }
                10..=20 => {
                    for _ in 0..rng.below(20) {
                        let at = rng.below(8) << 20 | rng.below(12) << 14;
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
            let sweeping = !ledger.sweep.read().order.is_empty();
            assert!(ledger.len() == model.addresses().len() || sweeping, "seed {seed}");
        }
        loop {
            let heads = ledger.drain(10);
            if heads.is_empty() {
                break;
            }
            heads.iter().for_each(|head| model.check_and_take(head));
        }
        assert!(ledger.is_empty() && model.addresses().is_empty(), "seed {seed}: {model:?}");
    }
}

/// Goal: a reference added and dropped ten times over costs the extent tree nothing, but an extent that was born and
/// lost all its references comes out, so that its space can be given back.
#[test]
fn cancelled_heads_vanish_and_born_ones_do_not() {
    let ledger = Ledger::new();
    for i in 0..1000 {
        for _ in 0..10 {
            let at = Logical(i << 14);
            ledger.record(at, ByteLen(16384), tree_kind(at.0), RefKey::TreeRoot(TreeId::FS), 1);
            ledger.record(at, ByteLen(16384), tree_kind(at.0), RefKey::TreeRoot(TreeId::FS), -1);
        }
    }
    assert!(ledger.is_empty() && ledger.drain(usize::MAX).is_empty());
    let at = Logical(77 << 14);
    ledger.record(at, ByteLen(16384), tree_kind(0), RefKey::TreeRoot(TreeId::FS), 1);
    ledger.born(at, ByteLen(16384), tree_kind(5));
    ledger.record(at, ByteLen(16384), tree_kind(0), RefKey::TreeRoot(TreeId::FS), -1);
    let heads = ledger.drain(usize::MAX);
    assert_eq!(heads.len(), 1);
    assert!(heads[0].born && heads[0].refs.is_empty() && heads[0].net() == 0);
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
    let heads = ledger.drain(usize::MAX);
    assert_eq!((heads.len(), heads[0].refs.len(), heads[0].net()), (1, 1000, 1000));
    assert!(heads[0].refs.is_sorted());
}

/// Goal: many threads may record at once. Method: eight threads record, some also drain; the sum over all heads is the
/// sum of what was recorded.
#[test]
fn threads_recording_at_once_lose_nothing() {
    let ledger = Ledger::new();
    let drained = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for t in 0..8u64 {
            let (ledger, drained) = (&ledger, &drained);
            scope.spawn(move || {
                let mut rng = Rng::new(t);
                let mut batch = Vec::new();
                for i in 0..4000u64 {
                    let at = rng.below(16) << 20 | rng.below(16) << 14;
                    let by = RefKey::TreeRoot(TreeId(rng.below(3)));
                    batch.push(RefChange { at: Logical(at), len: ByteLen(16384), kind: kind_at(at), by, delta: 1 });
                    if i % 16 == 0 {
                        ledger.record_batch(&mut batch);
                    }
                    if t == 0 && i % 500 == 0 {
                        drained.lock().extend(ledger.drain(100));
                    }
                }
                ledger.record_batch(&mut batch);
            });
        }
    });
    let mut heads = drained.into_inner();
    loop {
        let more = ledger.drain(1000);
        if more.is_empty() {
            break;
        }
        heads.extend(more);
    }
    assert_eq!(heads.iter().map(Head::net).sum::<i64>(), 8 * 4000);
    assert!(ledger.is_empty());
}

/// Goal: a length that no sound image has is kept as it is.
#[test]
fn odd_and_huge_lengths_are_kept() {
    let ledger = Ledger::new();
    let lens = [0, 1, 511, 512, 4097, (u64::from(u32::MAX) - 1) * 512, u64::from(u32::MAX) * 512, u64::MAX];
    for (i, len) in (0..).zip(lens) {
        ledger.record(Logical(i << 20), ByteLen(len), ExtentKind::Data, RefKey::DataParent(Logical(5)), -1);
    }
    let heads = ledger.drain(usize::MAX);
    assert_eq!(heads.iter().map(|head| head.len.0).collect::<Vec<_>>(), lens);
}

/// Goal: what is recorded while a sweep is under way meets what the sweep still holds.
#[test]
fn changes_during_a_sweep_cancel_what_is_still_to_come() {
    let ledger = Ledger::new();
    let record = |i: u64, delta| {
        ledger.record(Logical(i << 14), ByteLen(16384), tree_kind(i), RefKey::TreeRoot(TreeId::FS), delta);
    };
    (0..100).for_each(|i| record(i, 1));
    assert_eq!(ledger.drain(10).len(), 10);
    (0..100).step_by(2).for_each(|i| record(i, -1));
    assert_eq!((ledger.pending(Logical(4 << 14)).refs, ledger.pending(Logical(50 << 14)).refs), (-1, 0));
    let rest: Vec<u64> = ledger.drain(1000).iter().map(|head| head.at.0 >> 14).collect();
    assert_eq!(rest, (10..100).filter(|i| i % 2 == 1).collect::<Vec<_>>());
    let again: Vec<u64> = ledger.drain(1000).iter().map(|head| head.at.0 >> 14).collect();
    assert_eq!(again, [0, 2, 4, 6, 8]);
    assert!(ledger.is_empty() && ledger.drain(1).is_empty());
}
