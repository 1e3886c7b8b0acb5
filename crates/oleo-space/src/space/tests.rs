use std::collections::{BTreeMap, BTreeSet};
use std::sync::Barrier;
use std::sync::mpsc;

use super::*;
use crate::testing::{MIB, MapSource, NODE, Rng, SECTOR, info, run, space_of};
use crate::{Goal, LoadError, Want};
use parking_lot::Mutex;

const DATA: BlockGroupFlags = BlockGroupFlags::DATA;
const METADATA: BlockGroupFlags = BlockGroupFlags::METADATA;

fn want(len: u64, min_len: u64) -> Want {
    let goal = Goal::Stream(1);
    Want { kind: Kind::Data, len: ByteLen(len), min_len: ByteLen(min_len), align: ByteLen(SECTOR), goal }
}

/// One group in the model: its sectors by state.
#[derive(Default)]
struct ModelGroup {
    free: BTreeSet<u64>,
    pinned: BTreeSet<u64>,
    taken: BTreeSet<u64>,
    read_only: bool,
    len: u64,
}

fn sectors(run: Run) -> impl Iterator<Item = u64> {
    (run.start.0..run.end().0).step_by(SECTOR as usize)
}

/// A space, what is held of it, and its model: sector sets by the starts of groups.
struct Modelled {
    rng: Rng,
    source: Arc<MapSource>,
    space: Space,
    model: BTreeMap<u64, ModelGroup>,
    mine: Vec<Run>,
    holds: Vec<Reservation>,
    sets: Vec<PinSet>,
}

impl Modelled {
    fn new(seed: u64) -> Modelled {
        let source = Arc::new(MapSource::default());
        let space = Space::new(SECTOR as u32, NODE as u32, source.clone());
        let model = BTreeMap::new();
        Modelled { rng: Rng::new(seed), source, space, model, mine: Vec::new(), holds: Vec::new(), sets: Vec::new() }
    }

    /// The group of the model that an address is in.
    fn group_of(&mut self, at: u64) -> &mut ModelGroup {
        self.model.range_mut(..=at).next_back().unwrap().1
    }

    /// A group of random free sectors, which are told, or loaded when they are needed.
    fn add_group(&mut self) {
        let start = (1 + self.rng.below(20)) * 8 * MIB;
        if self.model.contains_key(&start) {
            return;
        }
        let len = MIB / 2;
        let mut group = ModelGroup { len, ..Default::default() };
        let mut runs: Vec<(Logical, ByteLen)> = Vec::new();
        for sector in sectors(run(start, len)) {
            if self.rng.below(3) > 0 {
                group.free.insert(sector);
                match runs.last_mut() {
                    Some((s, l)) if s.0 + l.0 == sector => l.0 += SECTOR,
                    _ => runs.push((Logical(sector), ByteLen(SECTOR))),
                }
            } else {
                group.taken.insert(sector);
                self.mine.push(run(sector, SECTOR));
            }
        }
        let used = ByteLen(group.taken.len() as u64 * SECTOR);
        let info = GroupInfo { used, free_extents: Some(runs.len() as u32), ..info(start, len, DATA) };
        if self.rng.below(2) == 0 {
            self.source.free.lock().insert(start, runs);
            self.space.add_group(info, None).unwrap();
        } else {
            let runs = runs.into_iter().map(|(start, len)| Run { start, len }).collect();
            self.space.add_group(info, Some(runs)).unwrap();
        }
        self.model.insert(start, group);
    }

    fn remove_group(&mut self, at: &str) {
        let Some(&start) = self.model.keys().nth(self.rng.below(12) as usize) else { return };
        match self.space.remove_group(Logical(start)) {
            Ok(_) => {
                let group = self.model.remove(&start).unwrap();
                self.mine.retain(|run| !(start..start + group.len).contains(&run.start.0));
            }
            Err(SpaceError::Pinned(_)) => assert!(!self.model[&start].pinned.is_empty(), "{at}"),
            Err(error) => assert!(matches!(error, SpaceError::Reserved(_)) && !self.holds.is_empty(), "{at}"),
        }
    }

    fn close_or_open_group(&mut self, at: &str) {
        let Some((&start, group)) = self.model.iter_mut().nth(self.rng.below(12) as usize) else { return };
        let read_only = !group.read_only;
        match self.space.set_read_only(Logical(start), read_only) {
            Ok(()) => group.read_only = read_only,
            Err(error) => assert!(matches!(error, SpaceError::Reserved(_)) && !self.holds.is_empty(), "{at}"),
        }
    }

    fn reserve(&mut self) {
        if let Ok(hold) = self.space.reserve(Kind::Data, ByteLen((1 + self.rng.below(64)) * SECTOR)) {
            self.holds.push(hold);
        }
    }

    fn release(&mut self) {
        let set = self.sets.swap_remove(self.rng.below(self.sets.len() as u64) as usize);
        for sector in set.runs().iter().flat_map(|&run| sectors(run)) {
            if let Some((_, group)) = self.model.range_mut(..=sector).next_back()
                && group.pinned.remove(&sector)
            {
                group.free.insert(sector);
            }
        }
        self.space.release(set);
    }

    /// Pins a run that was taken, or gives it back.
    fn free(&mut self, at: &str) {
        let run = self.mine.swap_remove(self.rng.below(self.mine.len() as u64) as usize);
        let (pins, space) = (self.rng.below(2) == 0, self.space.clone());
        let group = self.group_of(run.start.0);
        sectors(run).for_each(|s| assert!(group.taken.remove(&s)));
        if pins {
            group.pinned.extend(sectors(run));
            space.pin(run).unwrap();
            assert!(matches!(space.pin(run), Err(SpaceError::FreedTwice(_))), "{at}");
        } else {
            group.free.extend(sectors(run));
            space.give_back(run);
            if self.rng.below(8) == 0 {
                assert!(matches!(space.pin(run), Err(SpaceError::FreedTwice(_))), "{at}");
            }
        }
    }

    /// An allocation may fail only if the model has no room.
    fn alloc(&mut self, at: &str) {
        let len = (1 + self.rng.below(32)) * SECTOR;
        let want = want(len, SECTOR);
        let hold = self.holds.last().filter(|_| self.rng.below(2) == 0);
        let got = match hold {
            Some(hold) => self.space.alloc_from(hold, &want),
            None => self.space.alloc(&want),
        };
        let totals = self.space.totals(Kind::Data);
        let Ok(grant) = got else {
            let empty = self.model.values().all(|g| g.read_only || g.free.is_empty());
            let promised = totals.reserved >= totals.free;
            assert!(empty || promised, "{at}: refused with {totals:?}");
            return;
        };
        let run = grant.run();
        let keeps = self.rng.below(4) > 0;
        let group = self.group_of(run.start.0);
        assert!(!group.read_only && run.len.0 >= SECTOR && run.len.0 <= len, "{at}");
        sectors(run).for_each(|s| assert!(group.free.contains(&s), "{at}: {run:?} is not free"));
        if keeps {
            sectors(run).for_each(|s| assert!(group.free.remove(&s)));
            group.taken.extend(sectors(run));
            self.mine.push(grant.keep());
        }
    }

    fn check_totals(&self, at: &str) {
        let totals = self.space.totals(Kind::Data);
        let count = |f: fn(&ModelGroup) -> usize| self.model.values().map(f).sum::<usize>() as u64 * SECTOR;
        assert_eq!(totals.pinned.0, count(|g| g.pinned.len()), "{at}");
        assert_eq!(totals.free.0, count(|g| if g.read_only { 0 } else { g.free.len() }), "{at}");
        assert_eq!(totals.reserved.0, self.holds.iter().map(|h| h.left().0).sum::<u64>(), "{at}");
        assert_eq!(totals.total.0, self.model.values().map(|g| g.len).sum::<u64>(), "{at}");
    }

    fn check_index(&self, at: &str) {
        let tables = &self.space.inner.tables;
        assert!(tables.read().index_agrees(SECTOR.trailing_zeros()), "{at}");
        for (&start, group) in self.model.iter().filter(|(_, group)| group.read_only || group.free.is_empty()) {
            let lengths = tables.read().group_of(start).unwrap().lengths();
            assert_eq!(lengths, crate::group::Lengths::NONE, "{at}: {} free", group.free.len());
        }
    }
}

/// Goal: space is a set of free sectors per group, with exact counters, whatever happens to groups.
/// Method: all calls at random from one thread, groups added, removed, closed and opened on the way, half of them lazily
/// loaded and fragmented; a model of sector sets follows; an allocation may fail only when the model has no room.
#[test]
fn space_is_sets_of_sectors() {
    for seed in 0..25 {
        let mut all = Modelled::new(seed);
        for step in 0..2500 {
            let at = format!("seed {seed} step {step}");
            match all.rng.below(32) {
                0 if all.model.len() < 12 => all.add_group(),
                1 if all.rng.below(6) == 0 => all.remove_group(&at),
                2 => all.close_or_open_group(&at),
                3 => all.reserve(),
                4 if !all.holds.is_empty() => {
                    let hold = all.rng.below(all.holds.len() as u64) as usize;
                    drop(all.holds.swap_remove(hold));
                }
                5 => all.sets.push(all.space.take_pinned()),
                6 if !all.sets.is_empty() => all.release(),
                7..=11 if !all.mine.is_empty() => all.free(&at),
                12..=24 => all.alloc(&at),
                _ => {}
            }
            all.check_totals(&at);
            if step % 16 == 0 {
                all.check_index(&at);
            }
        }
        for (&start, group) in &all.model {
            let runs = all.space.free_runs(Logical(start)).unwrap();
            let free: BTreeSet<u64> = runs.into_iter().flat_map(sectors).collect();
            assert_eq!(free, group.free, "seed {seed}");
        }
    }
}

/// Goal: reservations never promise more than there is. Method: threads reserve, convert and give up at random; after
/// each step what the threads hold together fits; at the end everything is free again.
#[test]
fn reservations_never_promise_more_than_there_is() {
    let space = space_of(4, 2 * MIB, DATA);
    let growth = 3 * MIB;
    space.set_growth(Kind::Data, ByteLen(growth));
    let held = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for t in 0..4 {
            let (space, held) = (&space, &held);
            scope.spawn(move || {
                let mut rng = Rng::new(t);
                let mut holds: Vec<Reservation> = Vec::new();
                let mut runs: Vec<Run> = Vec::new();
                for _ in 0..5000 {
                    match rng.below(5) {
                        0 | 1 => {
                            let len = (1 + rng.below(100)) * SECTOR;
                            if let Ok(hold) = space.reserve(Kind::Data, ByteLen(len)) {
                                assert!(held.fetch_add(len, SeqCst) + len <= 8 * MIB + growth);
                                holds.push(hold);
                            }
                        }
                        2 if !holds.is_empty() => {
                            let hold = holds.swap_remove(rng.below(holds.len() as u64) as usize);
                            held.fetch_sub(hold.left().0, SeqCst);
                            drop(hold);
                        }
                        3 if !holds.is_empty() => {
                            let hold = &holds[rng.below(holds.len() as u64) as usize];
                            let want = want(hold.left().0.min(10 * SECTOR), SECTOR);
                            if want.len.0 > 0
                                && let Ok(grant) = space.alloc_from(hold, &want)
                            {
                                runs.push(grant.keep());
                            }
                        }
                        _ if !runs.is_empty() => {
                            let run = runs.swap_remove(rng.below(runs.len() as u64) as usize);
                            held.fetch_sub(run.len.0, SeqCst);
                            space.give_back(run);
                        }
                        _ => {}
                    }
                }
                held.fetch_sub(holds.iter().map(|hold| hold.left().0).sum(), SeqCst);
                held.fetch_sub(runs.iter().map(|run| run.len.0).sum(), SeqCst);
                runs.into_iter().for_each(|run| space.give_back(run));
            });
        }
    });
    let totals = space.totals(Kind::Data);
    assert_eq!((totals.free.0, totals.reserved.0), (8 * MIB, 0));
}

/// Goal: a promise is counted once: reserved until it has an address, used from then on.
#[test]
fn a_grant_against_a_reservation_is_counted_once() {
    let space = space_of(1, 16 * MIB, DATA);
    let hold = space.reserve(Kind::Data, ByteLen(16 * MIB)).unwrap();
    assert!(space.reserve(Kind::Data, ByteLen(1)).is_err(), "all is promised");
    assert!(space.alloc(&want(SECTOR, SECTOR)).is_err(), "and not to be had without the promise");
    let grant = space.alloc_from(&hold, &want(4 * MIB, SECTOR)).unwrap();
    assert_eq!(hold.left().0, 12 * MIB);
    assert!(space.reserve(Kind::Data, ByteLen(1)).is_err(), "still all is promised or used");
    let part = hold.split(ByteLen(2 * MIB));
    assert_eq!(hold.give_up(ByteLen(100 * MIB)).0, 10 * MIB);
    let other = space.reserve(Kind::Data, ByteLen(10 * MIB)).unwrap();
    other.join(part);
    assert_eq!((other.left().0, space.totals(Kind::Data).reserved.0), (12 * MIB, 12 * MIB));
    assert!(other.grow(ByteLen(SECTOR)).is_err());
    drop((hold, other));
    assert_eq!(space.totals(Kind::Data).free.0, 12 * MIB);
    drop(grant);
    assert_eq!(space.totals(Kind::Data).free.0, 16 * MIB);
    // More than the promise holds: the rest comes from what nobody was promised, and what is not needed goes back there.
    let hold = space.reserve(Kind::Data, ByteLen(MIB)).unwrap();
    let run = space.alloc_from(&hold, &want(3 * MIB, SECTOR)).unwrap().keep();
    assert_eq!((run.len.0, hold.left().0, space.totals(Kind::Data).reserved.0), (3 * MIB, 0, 0));
}

/// Goal: growth counts, and a commit's tree blocks may use what others were promised.
#[test]
fn growth_is_promised_and_commits_may_overdraw() {
    let space = space_of(1, 16 * MIB, METADATA);
    space.set_growth(Kind::Metadata, ByteLen(4 * MIB));
    let hold = space.reserve(Kind::Metadata, ByteLen(20 * MIB)).unwrap();
    assert!(space.reserve(Kind::Metadata, ByteLen(NODE)).is_err());
    let mut out = Vec::new();
    space.alloc_blocks(Kind::Metadata, 4, &mut out).unwrap();
    space.alloc_blocks_from(&hold, 1020, &mut out).unwrap();
    assert_eq!(hold.left().0, 20 * MIB - 1020 * NODE);
    let refused = space.alloc_blocks_from(&hold, 1, &mut out);
    assert!(matches!(refused, Err(Refusal::NeedChunk(Kind::Metadata))));
    assert_eq!(hold.left().0, 20 * MIB - 1020 * NODE, "a refusal changes nothing");
    assert!(!space.offer_growth(Kind::Metadata, ByteLen(4 * MIB - NODE)), "all of it is promised");
    space.add_grown(info(0, 4 * MIB, METADATA), vec![run(0, 4 * MIB)], ByteLen(0)).unwrap();
    assert!(space.reserve(Kind::Metadata, ByteLen(NODE)).is_err(), "as much as before");
    space.alloc_blocks_from(&hold, 200, &mut out).unwrap();
    drop(hold);
    assert_eq!(space.totals(Kind::Metadata).free.0, 56 * NODE);
    out.iter().for_each(|at| space.give_back(run(at.0, NODE)));
    assert_eq!(space.totals(Kind::Metadata).free.0, 20 * MIB);
}

/// Goal: freed space is not given out before its commit is durable, and comes back in one piece.
#[test]
fn pins_hold_until_released() {
    let space = space_of(1, MIB, DATA);
    let all = space.alloc(&want(MIB, MIB)).unwrap().keep();
    let half = MIB / 2;
    for at in (0..half).step_by(SECTOR as usize) {
        // From the back, so that neighbours meet in the wrong order.
        space.pin(run(all.start.0 + half - SECTOR - at, SECTOR)).unwrap();
    }
    let first = space.take_pinned();
    assert_eq!(first.runs(), [run(all.start.0, half)], "merged");
    space.pin(run(all.start.0 + half, half)).unwrap();
    assert!(space.alloc(&want(SECTOR, SECTOR)).is_err());
    assert_eq!(space.totals(Kind::Data).pinned.0, MIB);
    space.release(first);
    assert_eq!(space.totals(Kind::Data).free.0, half);
    assert_eq!(space.alloc(&want(MIB, SECTOR)).unwrap().run(), run(all.start.0, half), "the second half is pinned");
    space.release(space.take_pinned());
    assert_eq!(space.free_runs(all.start).unwrap(), [all]);
}

/// Goal: what is freed and pinned before or while a group is loaded is right afterwards, whether the source is of
/// before or after the commit. Method: a source that waits; pins and releases in the meantime; both kinds of answer.
#[test]
fn pins_and_releases_around_a_load_are_not_lost() {
    struct Waiting {
        answer: Vec<(Logical, ByteLen)>,
        begun: Barrier,
        go: Mutex<mpsc::Receiver<()>>,
    }
    impl FreeSource for Waiting {
        fn load(&self, _: Logical) -> Result<Vec<(Logical, ByteLen)>, LoadError> {
            self.begun.wait();
            let _ = self.go.lock().recv();
            Ok(self.answer.clone())
        }
    }
    let start = 1 << 30;
    for old_answer in [true, false] {
        // On disk: the first 64 KiB used; the commit that is going on frees them in two halves.
        let answer = if old_answer { vec![(start + (64 << 10), MIB - (64 << 10))] } else { vec![(start, MIB)] };
        let answer = answer.into_iter().map(|(s, l)| (Logical(s), ByteLen(l))).collect();
        let (tell, go) = mpsc::channel();
        let source = Arc::new(Waiting { answer, begun: Barrier::new(2), go: Mutex::new(go) });
        let space = Space::new(SECTOR as u32, NODE as u32, source.clone());
        space.add_group(GroupInfo { used: ByteLen(64 << 10), ..info(start, MIB, DATA) }, None).unwrap();
        space.pin(run(start, 32 << 10)).unwrap();
        let released = space.take_pinned();
        space.pin(run(start + (32 << 10), 32 << 10)).unwrap();
        std::thread::scope(|scope| {
            let loaders: Vec<_> = (0..2).map(|_| scope.spawn(|| space.free_runs(Logical(start)).unwrap())).collect();
            source.begun.wait();
            space.release(released);
            tell.send(()).unwrap();
            for loader in loaders {
                let got = loader.join().unwrap();
                assert_eq!(got, [run(start, 32 << 10), run(start + (64 << 10), MIB - (64 << 10))]);
            }
        });
        assert_eq!(space.totals(Kind::Data).free.0, MIB - (32 << 10));
        space.release(space.take_pinned());
        assert_eq!(space.free_runs(Logical(start)).unwrap(), [run(start, MIB)]);
        assert_eq!(space.totals(Kind::Data).free.0, MIB);
    }
}

/// Goal: a source that fails or lies is a typed error, and the group can be asked again.
#[test]
fn a_bad_source_is_an_error_and_can_be_asked_again() {
    let source = Arc::new(MapSource::default());
    let space = Space::new(SECTOR as u32, NODE as u32, source.clone());
    space.add_group(info(MIB, MIB, DATA), None).unwrap();
    assert!(matches!(space.alloc(&want(SECTOR, SECTOR)), Err(Refusal::Load(LoadError::Source { .. }))));
    let lies = [
        vec![(0, SECTOR)],
        vec![(MIB, 2 * MIB)],
        vec![(MIB, 0)],
        vec![(MIB, 2 * SECTOR), (MIB + SECTOR, SECTOR)],
        vec![(MIB + SECTOR, SECTOR), (MIB, SECTOR)],
        vec![(u64::MAX - 4095, SECTOR)],
    ];
    for lie in lies {
        source.free.lock().insert(MIB, lie.iter().map(|&(s, l)| (Logical(s), ByteLen(l))).collect());
        assert!(matches!(space.alloc(&want(SECTOR, SECTOR)), Err(Refusal::Load(LoadError::BadRun { .. }))), "{lie:?}");
    }
    assert_eq!(space.totals(Kind::Data).reserved.0, 0);
    source.free.lock().insert(MIB, vec![(Logical(MIB), ByteLen(MIB))]);
    assert!(space.alloc(&want(SECTOR, SECTOR)).is_ok());
}

/// Goal: used bytes follow what settling says, never leave the group, and are drained once.
#[test]
fn used_bytes_are_drained_once() {
    let space = space_of(3, MIB, DATA);
    let base = 1 << 30;
    space.note_used(Logical(base + 2 * MIB + 5 * SECTOR), 8192).unwrap();
    space.note_used(Logical(base), 4096).unwrap();
    space.note_used(Logical(base), -4096).unwrap();
    assert!(matches!(space.note_used(Logical(base), -1), Err(SpaceError::UsedOutOfRange { .. })));
    assert!(matches!(space.note_used(Logical(base), 1 + (1 << 20)), Err(SpaceError::UsedOutOfRange { .. })));
    assert!(matches!(space.note_used(Logical(0), 1), Err(SpaceError::NoGroup(_))));
    let drained = space.drain_used();
    assert_eq!(drained, [(Logical(base), ByteLen(0)), (Logical(base + 2 * MIB), ByteLen(8192))]);
    assert!(space.drain_used().is_empty());
    assert_eq!((space.totals(Kind::Data).used.0, space.used(Logical(base + 2 * MIB)).unwrap().0), (8192, 8192));
}

/// Goal: groups that cannot be are refused, and the order of adding does not matter.
#[test]
fn groups_do_not_overlap() {
    let space = space_of(0, MIB, DATA);
    for start in [5, 1, 3, 9, 7] {
        space.add_group(info(start * MIB, MIB, DATA), Some(vec![run(start * MIB, MIB)])).unwrap();
    }
    let bad = [(5 * MIB, MIB), (4 * MIB + SECTOR, MIB), (2 * MIB, 8 * MIB), (0, 0), (u64::MAX - MIB, 2 * MIB)];
    for (start, len) in bad {
        assert!(matches!(space.add_group(info(start, len, DATA), None), Err(SpaceError::BadGroup(_))), "{start} {len}");
    }
    let starts: Vec<u64> = space.groups().iter().map(|g| g.start.0 / MIB).collect();
    assert_eq!(starts, [1, 3, 5, 7, 9]);
    space.remove_group(Logical(3 * MIB)).unwrap();
    space.remove_group(Logical(9 * MIB)).unwrap();
    space.add_group(info(2 * MIB, 2 * MIB, DATA), Some(vec![run(2 * MIB, 2 * MIB)])).unwrap();
    let mut taken: Vec<u64> = (0..5).map(|_| space.alloc(&want(MIB, MIB)).unwrap().keep().start.0 / MIB).collect();
    taken.sort_unstable();
    assert_eq!(taken, [1, 2, 3, 5, 7]);
    assert!(space.alloc(&want(SECTOR, SECTOR)).is_err());
}

/// Goal: a group of more than 2³² sectors is a group like others.
/// Method: one of 20 TiB, read from the source, free but for its middle; space taken on both sides of 16 TiB, to the last
/// sector, pinned, released and given back; it closes and opens; the source's own answer lets it be evicted.
#[test]
fn a_group_of_more_than_two_to_the_32nd_sectors_is_allocated_from() {
    const TIB: u64 = 1 << 40;
    let (start, len) = (TIB, 20 * TIB);
    let free = [(start, 8 * TIB), (start + 15 * TIB, 5 * TIB)];
    let source = Arc::new(MapSource::default());
    source.free.lock().insert(start, free.map(|(at, len)| (Logical(at), ByteLen(len))).to_vec());
    let space = Space::new(SECTOR as u32, NODE as u32, source);
    space.add_group(GroupInfo { used: ByteLen(7 * TIB), ..info(start, len, DATA) }, None).unwrap();
    let near = |at: u64, len: u64| Want { goal: Goal::Near(Logical(at)), ..want(len, len) };
    let edge = start + (SECTOR << 32);
    let mut mine = Vec::new();
    for at in [edge - SECTOR, edge, edge + SECTOR, start + len - SECTOR, start] {
        let got = space.alloc(&near(at, SECTOR)).unwrap().keep();
        assert_eq!(got, run(at, SECTOR));
        mine.push(got);
    }
    let long = space.alloc(&want(8 * TIB - SECTOR, SECTOR)).unwrap().keep();
    assert_eq!(long, run(start + SECTOR, 8 * TIB - SECTOR));
    let rest = space.totals(Kind::Data).free;
    let low = space.alloc(&near(start + 15 * TIB, TIB - SECTOR)).unwrap().keep();
    let high = space.alloc(&near(edge, rest.0 - low.len.0)).unwrap().keep();
    assert_eq!((low.end().0, high), (edge - SECTOR, run(edge + 2 * SECTOR, 4 * TIB - 3 * SECTOR)));
    assert!(matches!(space.alloc(&want(SECTOR, SECTOR)), Err(Refusal::NeedChunk(_))));
    space.pin(high).unwrap();
    assert!(space.pin(run(edge + 2 * SECTOR, SECTOR)).is_err());
    let pins = space.take_pinned();
    space.release(pins);
    mine.extend([long, low]);
    mine.into_iter().for_each(|run| space.give_back(run));
    assert_eq!(space.free_runs(Logical(edge)).unwrap(), free.map(|(at, len)| run(at, len)));
    space.set_read_only(Logical(start), true).unwrap();
    assert!(space.alloc(&want(SECTOR, SECTOR)).is_err());
    space.set_read_only(Logical(start), false).unwrap();
    assert_eq!(space.totals(Kind::Data).free, ByteLen(13 * TIB));
    assert!(space.alloc(&near(start + 19 * TIB, SECTOR)).is_ok());
}
