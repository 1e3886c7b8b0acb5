//! The map compared with a map of blocks, and what is counted with what is there.

use std::collections::BTreeMap;

use oleo_sim::rng::Rng;

use super::*;
use crate::format::FRAME_BLOCKS_MAX;
use crate::format::map::{encode_region, parse_region};
use crate::format::segment::FRAME_HEADER_LEN;
use crate::host::SystemHost;

const BLOCKS: u64 = 3 * REGION_BLOCKS;

fn blank() -> State {
    State::new(&Head::default(), 1)
}

/// A frame whose payload says where it is for.
fn frame(first: u64, blocks: u64, mark: u64) -> NewFrame {
    let mut payload = vec![0; blocks as usize * BLOCK_LEN];
    for (n, block) in payload.chunks_mut(BLOCK_LEN).enumerate() {
        block[..8].copy_from_slice(&(mark + n as u64).to_le_bytes());
    }
    let stored = payload.len() as u32;
    NewFrame::new(Change::Data { first, blocks: blocks as u8, stored, moved: false }, &[&payload])
}

/// A place that is often near a border.
fn place(rng: &mut Rng) -> u64 {
    let around = [0, 64, REGION_BLOCKS, REGION_BLOCKS + 1024, 2 * REGION_BLOCKS][rng.below(5) as usize];
    (around + rng.below(300)).saturating_sub(rng.below(100)).min(BLOCKS - 1)
}

/// Goal: every block is where the last change put it, and each segment has as many live blocks as are found in it.
/// Method: random frames on the state and on a map of blocks; every look-up compared; sealing and publishing in between.
#[test]
fn as_a_map_of_blocks() {
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let (mut state, mut want) = (blank(), BTreeMap::<u64, u64>::new());
        let mut stored = BTreeMap::<ObjectId, Arc<Sealed>>::new();
        let mut mark = 1;
        state.append(NewFrame::new(Change::Len { len: BLOCKS * 4096 }, &[])).expect("a length");
        for _ in 0..300 {
            match rng.below(10) {
                0..5 => {
                    let first = place(&mut rng);
                    let border = (FRAME_BLOCKS_MAX - first % FRAME_BLOCKS_MAX).min(BLOCKS - first);
                    let blocks = 1 + rng.below(border);
                    state.append(frame(first, blocks, mark)).expect("data");
                    want.extend((0..blocks).map(|n| (first + n, mark + n)));
                    mark += blocks;
                }
                5 => {
                    let first = place(&mut rng);
                    let count = 1 + if rng.one_in(3) {
                        rng.below(BLOCKS - first)
                    } else {
                        rng.below(90).min(BLOCKS - first - 1)
                    };
                    state.append(NewFrame::new(Change::Zeros { first, count }, &[])).expect("zeros");
                    want.retain(|block, _| !(first..first + count).contains(block));
                }
                6 => {
                    let len = if rng.one_in(3) { place(&mut rng) * 4096 + rng.below(4096) } else { BLOCKS * 4096 };
                    state.append(NewFrame::new(Change::Len { len }, &[])).expect("a length");
                    want.retain(|block, _| block * 4096 < len);
                }
                7 => {
                    if let Some(sealed) = state.seal().expect("sealed") {
                        stored.insert(sealed.known.id, sealed);
                    }
                }
                8 => {
                    let position = state.position();
                    if state.open_len() == 0 {
                        state.published(1, position);
                        assert_eq!(state.dirty_bytes(), 0);
                    }
                }
                _ => compare(&mut rng, &mut state, &want, &stored, seed),
            }
        }
        compare(&mut rng, &mut state, &want, &stored, seed);
        state.check();
    }
}

fn compare(
    rng: &mut Rng,
    state: &mut State,
    want: &BTreeMap<u64, u64>,
    stored: &BTreeMap<ObjectId, Arc<Sealed>>,
    seed: u64,
) {
    let first = place(rng);
    let count = if rng.one_in(4) { BLOCKS - first } else { rng.below(200).min(BLOCKS - first) };
    let mut found = Vec::new();
    assert_eq!(state.look_up(first, count, &mut found).expect("found"), None);
    let mut at = first;
    for part in &found {
        assert_eq!(part.first, at, "seed {seed}");
        assert!(part.blocks > 0);
        at += part.blocks;
        let piece = match &part.source {
            Source::Zeros => {
                assert_eq!(want.range(part.first..at).next(), None, "seed {seed}");
                continue;
            }
            Source::Memory { piece, .. } => piece.clone(),
            Source::Stored { id, off, .. } => stored[id].piece(*off).expect("a piece"),
        };
        for n in 0..part.blocks {
            let from = FRAME_HEADER_LEN + (u64::from(part.skip) + n) as usize * BLOCK_LEN;
            let mark = u64::from_le_bytes(piece[from..from + 8].try_into().expect("eight"));
            assert_eq!(Some(&mark), want.get(&(part.first + n)), "seed {seed}, block {}", part.first + n);
        }
    }
    assert_eq!(at, first + count, "seed {seed}");
}

/// Goal: a region that is not in memory is changed as one that is, and the counts meet when it is loaded.
/// Method: the same random changes on a state with everything in memory and on one that lets regions go, page by page.
#[test]
fn regions_that_are_away() {
    for seed in 0..40 {
        let mut rng = Rng::new(1000 + seed);
        let (mut whole, mut lazy) = (blank(), blank());
        let mut pages: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for step in 0..200 {
            match rng.below(8) {
                0..4 => {
                    let first = place(&mut rng);
                    let blocks = 1 + rng.below((FRAME_BLOCKS_MAX - first % FRAME_BLOCKS_MAX).min(BLOCKS - first));
                    whole.append(frame(first, blocks, step)).expect("data");
                    lazy.append(frame(first, blocks, step)).expect("data");
                }
                4 => {
                    let (first, count) = (place(&mut rng), 1 + rng.below(REGION_BLOCKS * 2));
                    for state in [&mut whole, &mut lazy] {
                        state.append(NewFrame::new(Change::Zeros { first, count }, &[])).expect("zeros");
                    }
                }
                5 => load(&mut lazy, &pages),
                _ => {
                    // As a checkpoint does it.
                    load(&mut lazy, &pages);
                    let mut staged = Vec::new();
                    while let Some((number, missing)) = lazy.regions.next_dirty(0) {
                        assert_eq!(missing, None);
                        let n = pages.len() as u64;
                        let mut page = Vec::new();
                        lazy.stage(number, |region| {
                            encode_region(&mut page, number, 0, region.all());
                            ObjectRef { id: ObjectId::map(1, n), off: 0, len: page.len() as u32, xxh: 0 }
                        })
                        .expect("staged");
                        pages.insert(n, page);
                        staged.push(number);
                    }
                    // Meanwhile changes go on.
                    if rng.one_in(2) {
                        whole.append(frame(70, 3, step)).expect("data");
                        lazy.append(frame(70, 3, step)).expect("data");
                    }
                    staged.into_iter().for_each(|number| _ = lazy.regions.settle(number));
                    compare_written(&lazy, &pages);
                    lazy.regions.evict_all_but(0, if rng.one_in(2) { 0 } else { 20_000 });
                }
            }
        }
        load(&mut lazy, &pages);
        for number in 0..3 {
            let missing = |m: Missing| -> Option<&Region> { panic!("{m:?}") };
            let all = |region: Option<&Region>| region.map(|r| r.all().collect::<Vec<_>>()).unwrap_or_default();
            let left = all(whole.regions.loaded(number).unwrap_or_else(missing));
            let right = all(lazy.regions.loaded(number).unwrap_or_else(missing));
            assert_eq!(left, right, "seed {seed}");
        }
        whole.check();
        lazy.check();
        assert_eq!(whole.table.rows(), lazy.table.rows(), "seed {seed}");
    }
}

/// Loads everything that is away.
fn load(state: &mut State, pages: &BTreeMap<u64, Vec<u8>>) {
    for region in 0..3 {
        let missing = match state.regions.loaded(region) {
            Ok(_) => continue,
            Err(missing) => missing,
        };
        let runs = parse_region(&pages[&missing.page.id.n], region).expect("a page");
        state.install(missing, &runs).expect("installed");
    }
}

/// The table that would be written says of each row how often the pages that are written name it.
fn compare_written(state: &State, pages: &BTreeMap<u64, Vec<u8>>) {
    let mut live = BTreeMap::new();
    for (number, at) in state.regions.pages_of(0, 3) {
        for run in parse_region(&pages[&at.id.n], number).expect("a page") {
            *live.entry(run.row).or_insert(0) += u32::from(run.blocks);
        }
    }
    for (n, row) in state.table.page(0).iter().enumerate() {
        let row = row.as_ref().expect("no row goes");
        assert_eq!(row.live, live.get(&(n as u32)).copied().unwrap_or(0), "{}", row.id);
    }
}

/// Goal: a segment dies when nothing names it, neither the map in memory nor the pages that are written, and it is not listed for
/// replay any more: what is listed removes older runs even if nothing of it lives. Its row is another's only then.
#[test]
fn who_dies() {
    let mut state = blank();
    let mut pages = 0;
    let mut stage = |state: &mut State| {
        let page = ObjectRef { id: ObjectId::map(1, pages), off: 0, len: 100, xxh: 0 };
        state.stage(0, |_| page).expect("staged");
        state.regions.settle(0);
        pages += 1;
    };
    let seal = |state: &mut State| {
        let id = state.seal().expect("sealed").expect("a segment").known.id;
        let (sequence, position) = (state.next_sequence(), state.position());
        state.published(sequence, position);
        id
    };
    let dead = |state: &State| state.graves.all().collect::<Vec<_>>();
    state.append(frame(0, 4, 1)).expect("data");
    let first = seal(&mut state);
    stage(&mut state);
    let between = state.position();
    state.append(frame(0, 4, 5)).expect("data");
    let second = seal(&mut state);
    state.bury(state.position(), &SystemHost::new());
    assert_eq!(dead(&state), [], "the page that is written names it");
    stage(&mut state);
    state.bury(0, &SystemHost::new());
    assert_eq!(dead(&state), [], "both are listed");
    state.bury(between, &SystemHost::new());
    assert_eq!(dead(&state), [Grave { id: first, born: 1, died: 3 }]);
    assert!(state.knows(first) && state.knows(second));
    // The next one has its row, and is found there.
    state.append(frame(64, 2, 9)).expect("data");
    assert_eq!(state.table.rows().len(), 2);
    let mut found = Vec::new();
    state.look_up(64, 2, &mut found).expect("found");
    assert!(matches!(found[..], [Found { source: Source::Memory { .. }, .. }]));
    state.check();
    // One of which everything is overwritten, and which is not stored yet, stays as well.
    let third = state.seal().expect("sealed").expect("a segment").known.id;
    state.append(frame(64, 2, 11)).expect("data");
    stage(&mut state);
    state.bury(state.position(), &SystemHost::new());
    assert!(dead(&state).iter().all(|grave| grave.id != third));
    let position = state.position();
    state.published(3, position);
    state.bury(position, &SystemHost::new());
    assert_eq!(dead(&state)[1], Grave { id: third, born: 3, died: 4 });
}
