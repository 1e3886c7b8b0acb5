use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use oleo_format::BlockGroupFlags;

use super::*;
use crate::testing::{MIB, NODE, Rng, SECTOR, info, run};
use crate::{FreeSource, Goal, GroupInfo, PinSet, Want};
use parking_lot::Mutex;

const DATA: BlockGroupFlags = BlockGroupFlags::DATA;
const LEN: u64 = MIB;
const BASE: u64 = 1 << 30;

/// What the disk says is free: sectors by group, and who was asked for what.
#[derive(Default)]
struct Disk {
    free: Mutex<BTreeMap<u64, BTreeSet<u64>>>,
    tells_counts: bool,
    loads: Mutex<Vec<u64>>,
    counted: AtomicU64,
    /// What was expected to come.
    expected: Mutex<Vec<u64>>,
}

fn runs_of(sectors: &BTreeSet<u64>) -> Vec<(Logical, ByteLen)> {
    let mut runs: Vec<(Logical, ByteLen)> = Vec::new();
    for &at in sectors {
        match runs.last_mut() {
            Some((start, len)) if start.0 + len.0 == at => len.0 += SECTOR,
            _ => runs.push((Logical(at), ByteLen(SECTOR))),
        }
    }
    runs
}

impl FreeSource for Disk {
    fn load(&self, group: Logical) -> Result<Vec<(Logical, ByteLen)>, LoadError> {
        self.loads.lock().push(group.0);
        Ok(self.free.lock().get(&group.0).map(runs_of).unwrap_or_default())
    }

    fn counts(&self, groups: &[Logical]) -> Vec<Option<u32>> {
        self.counted.fetch_add(groups.len() as u64, SeqCst);
        let free = self.free.lock();
        let count = |group: &Logical| Some(runs_of(&free[&group.0]).len() as u32);
        groups.iter().map(|group| self.tells_counts.then(|| count(group)).flatten()).collect()
    }

    fn expect(&self, groups: &[Logical]) {
        self.expected.lock().extend(groups.iter().map(|group| group.0));
    }
}

/// A space of groups in which the sectors are free that `is_free` says.
fn space_of(disk: &Arc<Disk>, groups: u64, is_free: impl Fn(u64, u64) -> bool) -> Space {
    let space = Space::new(SECTOR as u32, NODE as u32, disk.clone());
    for i in 0..groups {
        let start = BASE + i * LEN;
        let free: BTreeSet<u64> = (0..LEN / SECTOR).filter(|&s| is_free(i, s)).map(|s| start + s * SECTOR).collect();
        let used = ByteLen(LEN - free.len() as u64 * SECTOR);
        disk.free.lock().insert(start, free);
        space.add_group(GroupInfo { used, ..info(start, LEN, DATA) }, None).unwrap();
    }
    space
}

fn want(len: u64) -> Want {
    let (len, align) = (ByteLen(len), ByteLen(SECTOR));
    Want { kind: Kind::Data, len, min_len: len, align, goal: Goal::Stream(1) }
}

/// Goal: which groups are worth reading is learnt from the disk's summary, many at a time, before any is read.
/// Method: a hundred groups half free, all in single sectors but two in one run each; a run of 64 sectors is wanted, twice
/// what one such group has, one after the other; without counts as many groups are read as there are before the first.
#[test]
fn groups_are_chosen_from_the_summary() {
    for tells_counts in [true, false] {
        let disk = Arc::new(Disk { tells_counts, ..Disk::default() });
        let space = space_of(&disk, 100, |i, s| if i == 40 || i == 70 { s < 128 } else { s % 2 == 0 });
        for turn in 0..4 {
            let got = space.alloc(&want(64 * SECTOR)).unwrap().keep();
            let group = BASE + if turn < 2 { 40 } else { 70 } * LEN;
            assert_eq!(got.start.0, group + turn % 2 * 64 * SECTOR, "{tells_counts} {turn}");
        }
        let loads = disk.loads.lock().clone();
        // The group that the very first search began in is read whatever it is.
        let hoped: Vec<u64> = loads.iter().map(|at| (at - BASE) / LEN).filter(|i| ![0, 40, 70].contains(i)).collect();
        assert_eq!(hoped.is_empty(), tells_counts, "{hoped:?}");
        assert_eq!(disk.counted.load(SeqCst), 100, "each was asked about once");
    }
}

/// Goal: a scan over groups that have to be read is announced to the source ahead of need, a look into one group is not.
/// Method: a hundred groups that promise sixteen sectors in a row and have one, but the ninetieth; after one of them was read
/// in vain each must have been announced before it is read.
#[test]
fn a_scan_is_read_ahead() {
    let disk = Arc::new(Disk { tells_counts: true, ..Disk::default() });
    let space = space_of(&disk, 100, |i, s| s % 2 == 0 || i == 90 && s < 32);
    space.alloc(&want(SECTOR)).unwrap().keep();
    assert_eq!((disk.loads.lock().len(), disk.expected.lock().len()), (1, 0));
    assert_eq!(space.alloc(&want(16 * SECTOR)).unwrap().keep().start.0, BASE + 90 * LEN);
    let (loads, expected) = (disk.loads.lock().clone(), disk.expected.lock().clone());
    assert_eq!(loads.len(), 91, "{loads:?}");
    assert_eq!(loads[2..], expected[..89], "{expected:?}");
    assert!(expected.len() < 89 + AHEAD_GROUPS);
}

/// Goal: memory for free runs is bounded while groups are idle, and what is not on disk is never forgotten.
/// Method: groups of every other sector, a bound of three of them; one has an allocation that the disk does not know; all
/// are looked into, again and again; then the disk learns of it.
#[test]
fn idle_groups_are_evicted_and_busy_ones_are_not() {
    let disk = Arc::new(Disk::default());
    let space = space_of(&disk, 20, |_, s| s % 2 == 0);
    let mine = space.alloc(&want(SECTOR)).unwrap().keep();
    assert_eq!(mine, run(BASE, SECTOR));
    let one = space.runs_memory().0;
    space.set_runs_memory_max(ByteLen(3 * one));
    let look = || {
        for i in (0..20).cycle().take(60) {
            let free = space.free_runs(Logical(BASE + i * LEN)).unwrap();
            assert_eq!(free.len(), if i == 0 { 127 } else { 128 });
            assert!(i == 0 || free.len() == disk.free.lock()[&(BASE + i * LEN)].len());
            assert!(space.runs_memory().0 <= 5 * one, "{} of {one}", space.runs_memory().0);
        }
    };
    let loads_of_first = || disk.loads.lock().iter().filter(|&&at| at == BASE).count();
    let loaded =
        || matches!(space.inner.tables.read().group_of(BASE).unwrap().state.lock().content(), Content::Loaded(_));
    look();
    assert!(loads_of_first() > 1 && loaded(), "asked about, and kept");
    assert!(disk.loads.lock().len() > 40, "others went and came");
    disk.free.lock().get_mut(&BASE).unwrap().remove(&mine.start.0);
    for i in (1..20).cycle().take(60) {
        drop(space.free_runs(Logical(BASE + i * LEN)).unwrap());
    }
    assert!(!loaded(), "let go, as the disk knows all");
    assert_eq!(space.free_runs(Logical(BASE)).unwrap().len(), 127);
    assert_eq!(space.totals(Kind::Data).free.0, (20 * 128 - 1) * SECTOR);
}

/// Goal: whatever is allocated, freed, committed and evicted in any order, no sector is given twice and counts are exact.
/// Method: a model of transactions: allocations become used on disk at a commit; frees are pinned, become free on disk at
/// the commit and in memory when it is durable; a tiny bound evicts all the time; a set of who owns what follows.
#[test]
fn eviction_is_exact_in_the_midst_of_transactions() {
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let disk = Arc::new(Disk { tells_counts: seed % 2 == 0, ..Disk::default() });
        let space = space_of(&disk, 8, |i, s| (s * 7 + i * 3) % 5 < 3);
        space.set_runs_memory_max(ByteLen(1));
        let group = |at: u64| BASE + (at - BASE) / LEN * LEN;
        let mut owned: BTreeSet<u64> = BTreeSet::new();
        let mut recorded: BTreeSet<u64> = BTreeSet::new();
        let mut durable: Option<PinSet> = None;
        let free_at_first: u64 = disk.free.lock().values().map(|free| free.len() as u64).sum();
        let mut pinned = 0;
        for step in 0..1500 {
            let at = format!("seed {seed} step {step}");
            match rng.below(12) {
                0..=4 => {
                    let len = (1 + rng.below(6)) * SECTOR;
                    let near = Logical(BASE + rng.below(8) * LEN);
                    let least = ByteLen(SECTOR);
                    let want = Want { min_len: least, goal: Goal::Near(near), ..want(len) };
                    let Ok(grant) = space.alloc(&want) else { continue };
                    let run = grant.keep();
                    for sector in (run.start.0..run.end().0).step_by(SECTOR as usize) {
                        assert!(owned.insert(sector), "{at}: {sector} given twice");
                    }
                }
                5..=8 => {
                    let from = BASE + rng.below(8 * LEN / SECTOR) * SECTOR;
                    let Some(&sector) = owned.range(from..).next() else { continue };
                    owned.remove(&sector);
                    if recorded.contains(&sector) {
                        // The settling records the free and pins it.
                        space.pin(run(sector, SECTOR)).unwrap();
                        recorded.remove(&sector);
                        disk.free.lock().get_mut(&group(sector)).unwrap().insert(sector);
                        pinned += 1;
                    } else {
                        space.give_back(run(sector, SECTOR));
                    }
                }
                9 => {
                    // What was given out is referenced and recorded, at times only some of it.
                    let all = rng.below(3) > 0;
                    for &sector in owned.iter().filter(|_| all || rng.below(2) == 0) {
                        if recorded.insert(sector) {
                            assert!(disk.free.lock().get_mut(&group(sector)).unwrap().remove(&sector), "{at}");
                        }
                    }
                    if let Some(pins) = durable.replace(space.take_pinned()) {
                        pinned -= pins.len().0 / SECTOR;
                        space.release(pins);
                    }
                }
                _ => drop(space.free_runs(Logical(BASE + rng.below(8) * LEN)).unwrap()),
            }
            let free = space.totals(Kind::Data).free.0 / SECTOR;
            assert_eq!(free, free_at_first - owned.len() as u64 - pinned, "{at}");
        }
        durable.into_iter().for_each(|pins| space.release(pins));
        space.release(space.take_pinned());
        for i in 0..8 {
            let start = BASE + i * LEN;
            let free = space.free_runs(Logical(start)).unwrap();
            let free: BTreeSet<u64> =
                free.iter().flat_map(|run| (run.start.0..run.end().0).step_by(SECTOR as usize)).collect();
            let mut disk_says = disk.free.lock()[&start].clone();
            disk_says.retain(|at| !owned.contains(at));
            assert_eq!(free, disk_says, "seed {seed}");
        }
        assert!(disk.loads.lock().len() > 16, "seed {seed}: nothing was ever evicted");
    }
}

/// Goal: an idle group costs little. Method: the sizes of what there is per group.
#[test]
fn an_idle_group_is_small() {
    // Its own fields, its start and place in the table, its part of a block; the index is a bit a slot and class that occurs.
    let bytes = size_of::<Group>() + 12 + 1;
    assert!(bytes <= 93, "{bytes} bytes");
}

/// Goal: a removed group gives its memory back, although others of its block stay. Method: two groups added together and
/// loaded; one removed; what runs take is what the other's take, and nothing of the first is read or held any more.
#[test]
fn a_removed_group_has_no_runs() {
    let disk = Arc::new(Disk::default());
    let space = space_of(&disk, 2, |_, sector| sector % 2 == 0);
    let one = space.free_runs(Logical(BASE)).map(|_| space.runs_memory()).unwrap();
    space.free_runs(Logical(BASE + LEN)).unwrap();
    assert_eq!(space.runs_memory().0, 2 * one.0);
    let group = space.inner.tables.read().group_of(BASE + LEN).unwrap().keep();
    space.remove_group(Logical(BASE + LEN)).unwrap();
    assert_eq!(space.runs_memory(), one);
    let loads = disk.loads.lock().len();
    assert!(space.inner.load(&group, true).unwrap());
    let held = space.inner.with_loaded(&group, |_, state, _| state.runs().is_some()).unwrap();
    assert_eq!((held, disk.loads.lock().len()), (false, loads));
}
