//! Checksum items against the same edits made one by one in a map of items.

use std::collections::BTreeMap;
use std::sync::Arc;

use oleo_device::{Device, MemDevice};
use oleo_format::{Generation, TreeId};
use oleo_mkfs::MkfsOptions;
use oleo_sim::rng::Rng;
use oleo_volume::{OpenOptions, Volume};

use super::*;
use crate::{Engine, EngineOptions};

const LAYOUT: Layout = Layout { sectorsize: 4096, csum_len: 4, item_bytes_max: 42 };
const SECTOR: u64 = LAYOUT.sectorsize;
const BASE: u64 = 1 << 40;

fn engine() -> Engine {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(1 << 30));
    oleo_mkfs::make(std::slice::from_ref(&device), &MkfsOptions::default().seed([1; 32])).unwrap();
    let volume = Volume::open(vec![device], &OpenOptions { write: true, ..OpenOptions::default() });
    Engine::open(Arc::new(volume.unwrap()), &EngineOptions::default()).unwrap()
}

type Model = BTreeMap<u64, Vec<u8>>;

/// All cuts, then all sums, each by itself.
fn one_by_one(items: &mut Model, edits: &[Edit<'_>]) {
    let l = LAYOUT;
    for edit in edits {
        let Edit::Cut { from, to } = *edit else { continue };
        let touched: Vec<u64> =
            items.iter().filter(|(at, sums)| **at < to && l.end(**at, sums) > from).map(|(at, _)| *at).collect();
        for at in touched {
            let sums = items.remove(&at).unwrap();
            if at < from {
                items.insert(at, sums[..l.bytes(from - at)].to_vec());
            }
            if l.end(at, &sums) > to {
                items.insert(to, sums[l.bytes(to - at)..].to_vec());
            }
        }
    }
    let step = (l.item_bytes_max / l.csum_len * l.csum_len) as usize;
    for edit in edits {
        let Edit::Put { mut at, mut sums } = *edit else { continue };
        if let Some((start, head)) = items.range_mut(..at).next_back()
            && l.end(*start, head) == at
        {
            let (now, rest) = sums.split_at(sums.len().min(step.saturating_sub(head.len())));
            head.extend_from_slice(now);
            (at, sums) = (l.end(at, now), rest);
        }
        for part in sums.chunks(step) {
            items.insert(at, part.to_vec());
            at = l.end(at, part);
        }
    }
}

/// Random edits of sectors, where `has` says which have sums; many beside each other.
fn random_edits<'s>(rng: &mut Rng, has: &mut [bool], bytes: &'s [u8]) -> Vec<Edit<'s>> {
    let (mut edits, mut sector) = (Vec::new(), rng.below(3) as usize);
    while sector < has.len() {
        let most = if rng.one_in(5) { 40 } else { 4 };
        let len = 1 + rng.below(most) as usize;
        let end = has.len().min(sector + len);
        let at = BASE + sector as u64 * SECTOR;
        if has[sector] || rng.one_in(6) {
            // Freed data may have no sums, or some.
            has[sector..end].fill(false);
            edits.push(Edit::Cut { from: at, to: BASE + end as u64 * SECTOR });
            sector = end;
        } else {
            let end = (sector..end).find(|s| has[*s]).unwrap_or(end);
            has[sector..end].fill(true);
            let from = rng.below(1000) as usize;
            edits.push(Edit::Put { at, sums: &bytes[from..from + LAYOUT.bytes((end - sector) as u64 * SECTOR)] });
            sector = end;
        }
        let gap = if rng.one_in(10) { 300 } else { 6 };
        sector += if rng.one_in(2) { 0 } else { rng.below(gap) as usize };
    }
    edits
}

fn stored(engine: &Engine) -> Model {
    let inner = &*engine.0;
    let root = inner.tree(TreeId::CSUM).unwrap().root;
    let mut cursor = inner.blocks.cursor(&root);
    let mut items = Model::new();
    let mut more = cursor.seek(&csum_key(0)).unwrap();
    while more {
        let (key, sums) = cursor.current().unwrap();
        items.insert(key.offset, sums.to_vec());
        more = cursor.next().unwrap();
    }
    items
}

/// Goal: the items that many edits in one go make are those that they make one by one, whatever the number of threads.
/// Method: rounds of random edits on a tree and on a map of items; the item changes of one, two and four threads are compared, then
/// applied, then the tree with the map.
#[test]
fn edits_in_one_go_and_one_by_one() {
    for seed in 0..4 {
        let engine = engine();
        let inner = &*engine.0;
        let pools = [1, 2, 4].map(|n| rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap());
        let mut rng = Rng::new(seed);
        let mut has = vec![false; 9000];
        let bytes: Vec<u8> = (0..4000u32).map(|n| (n * 7 + n / 256) as u8).collect();
        let mut model = Model::new();
        assert_eq!(stored(&engine), model, "nothing is there yet");
        for round in 0..12 {
            let edits = random_edits(&mut rng, &mut has, &bytes);
            let root = inner.tree(TreeId::CSUM).unwrap().root;
            let [one, two, four] = pools
                .each_ref()
                .map(|pool| pool.install(|| rewrite::changes(LAYOUT, &inner.blocks, &root, &edits)).unwrap());
            assert!(one == two && two == four, "seed {seed}, round {round}: threads differ");
            inner.apply(TreeId::CSUM, &one, Generation(engine.generation().0)).unwrap();
            one_by_one(&mut model, &edits);
            let found = stored(&engine);
            let differs = found.iter().zip(&model).find(|(a, b)| a != b);
            assert!(found == model, "seed {seed}, round {round}, {} edits: {differs:?}", edits.len());
        }
        assert!(model.len() > 300, "too few items: this shows little");
    }
}

/// Goal: items that overlap in a damaged tree are an error, not a panic. Method: two that do, and a cut through both.
#[test]
fn items_that_overlap() {
    let engine = engine();
    let inner = &*engine.0;
    let items = [Change::put(csum_key(BASE), [1; 40]), Change::put(csum_key(BASE + 4 * SECTOR), [2; 40])];
    inner.apply(TreeId::CSUM, &items, engine.generation()).unwrap();
    let root = inner.tree(TreeId::CSUM).unwrap().root;
    let edits = [
        Edit::Cut { from: BASE + 2 * SECTOR, to: BASE + 3 * SECTOR },
        Edit::Cut { from: BASE + 5 * SECTOR, to: BASE + 9 * SECTOR },
    ];
    assert!(rewrite::changes(LAYOUT, &inner.blocks, &root, &edits).is_err());
}
