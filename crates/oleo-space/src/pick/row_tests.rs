//! Allocations in groups with parity: rows, and what shares columns with what.

use std::collections::{BTreeMap, BTreeSet};

use oleo_format::BlockGroupFlags;

use super::*;
use crate::GroupInfo;
use crate::testing::{MapSource, NODE, Rng, SECTOR, info, run};

const DATA: BlockGroupFlags = BlockGroupFlags::DATA;
const START: u64 = 1 << 30;
/// Three data units, as of RAID5 on four devices.
const ROW: u64 = 3 * UNIT_LEN;

/// One group of so many rows, with parity or without.
fn space(flags: BlockGroupFlags, rows: u64, row_len: u64) -> Space {
    let space = Space::new(SECTOR as u32, NODE as u32, std::sync::Arc::new(MapSource::default()));
    let len = rows * ROW;
    let info = GroupInfo { row_len: ByteLen(row_len), ..info(START, len, flags) };
    space.add_group(info, Some(vec![run(START, len)])).unwrap();
    space
}

fn take(space: &Space, len: u64, goal: Goal) -> Run {
    let want = Want { kind: Kind::Data, len: ByteLen(len), min_len: ByteLen(SECTOR), align: ByteLen(SECTOR), goal };
    space.alloc(&want).unwrap().keep()
}

fn file(stream: u64, directory: u64) -> Goal {
    Goal::File { stream, directory }
}

fn in_row(at: Logical) -> u64 {
    (at.0 - START) % ROW
}

/// Goal: what is small lies side by side as long as nothing of it is durable, whatever directory it is in, and then goes to columns that nothing is in: to the next ones of
/// the first unit, or the next row. Method: files of a sector; a turn now and then.
#[test]
fn small_files_keep_out_of_columns_that_are_durable() {
    let space = space(DATA, 100, ROW);
    let some: Vec<Run> = (1..=20).map(|n| take(&space, SECTOR, file(n, n / 4 + 1))).collect();
    assert!(some.windows(2).all(|w| w[0].end() == w[1].start), "{some:?}");
    assert_eq!(in_row(some[0].start), 0);
    // 20 sectors are more than the first unit.
    space.turn();
    let next = take(&space, SECTOR, file(21, 6));
    assert_eq!((in_row(next.start), next.start.0 - START), (0, ROW), "{next:?}");
    space.turn();
    let beside = take(&space, SECTOR, file(22, 6));
    assert_eq!(beside.start, next.end(), "the next column is whole");
    space.turn();
    let long = take(&space, UNIT_LEN, file(22, 6));
    assert_eq!(in_row(long.start), 0, "the columns of the first unit that are left are too few: {long:?}");
}

/// Goal: files that are changed here and there in one turn share rows, instead of taking one each; a file that is changed alone goes on in its own row. Method: files
/// of several rows, and a sector of each in a later turn.
#[test]
fn small_changes_of_a_turn_lie_side_by_side() {
    let space = space(DATA, 1000, ROW);
    for n in 1..=40 {
        take(&space, 3 * ROW, file(n, 1));
    }
    for _ in 0..3 {
        space.turn();
        let some: Vec<Run> = (1..=40).map(|n| take(&space, SECTOR, file(n, 1))).collect();
        let rows: BTreeSet<u64> = some.iter().map(|run| (run.start.0 - START) / ROW).collect();
        // The last file has a free row of its own behind it.
        assert!(rows.len() <= 2, "{rows:?}: {some:?}");
    }
    space.turn();
    let alone = take(&space, SECTOR, file(7, 1));
    assert_eq!(in_row(alone.start), 0, "{alone:?}");
    space.turn();
    assert_eq!(take(&space, SECTOR, file(7, 1)).start, alone.end(), "the next column is whole");
}

/// Goal: what was given out is named by nothing on a device until the turn after, and free space is not, either; what is in use is. Method: runs in two
/// turns; one that is given back.
#[test]
fn what_was_given_out_lately_is_unnamed() {
    let space = space(DATA, 100, ROW);
    let old = take(&space, 5 * SECTOR, file(1, 1));
    space.turn();
    let new = take(&space, 5 * SECTOR, file(2, 1));
    let free = run(START + 50 * ROW, SECTOR);
    let unnamed = |run: Run| (space.is_free(run), space.is_unnamed(run));
    assert_eq!([unnamed(old), unnamed(new), unnamed(free)], [(false, false), (false, true), (true, true)]);
    space.turn();
    assert_eq!([unnamed(old), unnamed(new), unnamed(free)], [(false, false), (false, false), (true, true)]);
    space.give_back(old);
    assert_eq!(unnamed(old), (true, true));
    let again = take(&space, 5 * SECTOR, file(3, 1));
    assert_eq!(unnamed(again), (false, true));
    // A log that is not replayed may name what somebody had for a moment.
    let claimed = take(&space, 5 * SECTOR, file(4, 1));
    space.give_back(claimed);
    assert!(space.claim(claimed).expect("loaded"));
    assert_eq!([unnamed(claimed), unnamed(again)], [(false, false), (false, true)]);
    let unknown = self::space(DATA, 100, 0);
    let without_rows = take(&unknown, SECTOR, file(1, 1));
    assert!(!unknown.is_unnamed(without_rows));
}

/// Goal: what is at least a row long begins with one. Method: a few sectors in front of it, in the same turn and before; a stream goes on
/// in its turn, and at the next row in another.
#[test]
fn long_runs_begin_with_a_row() {
    let space = space(DATA, 1000, ROW);
    take(&space, SECTOR, Goal::Stream(1));
    let long = take(&space, 4 * ROW + 5 * SECTOR, Goal::Stream(2));
    assert_eq!(in_row(long.start), 0);
    let more = take(&space, 4 * ROW, Goal::Stream(2));
    assert_eq!(more.start, long.end(), "it goes on");
    space.turn();
    let later = take(&space, 4 * ROW, Goal::Stream(2));
    assert_eq!(later.start.0, more.end().0 + ROW - in_row(more.end()), "at the next row");
}

/// Goal: nothing is refused for the sake of rows: all of a group can be given out. Method: random lengths and turns until there is no more.
#[test]
fn nothing_is_refused() {
    for seed in 0..20 {
        let space = space(DATA, 50, ROW);
        let mut rng = Rng::new(seed);
        let mut left = 50 * ROW;
        while left > 0 {
            let len = SECTOR * [1, 4, 16, 60, 200][rng.below(5) as usize].min(left / SECTOR);
            let got = take(&space, len, file(rng.below(30) + 1, rng.below(5) + 1));
            left -= got.len.0;
            if rng.below(3) == 0 {
                space.turn();
            }
        }
        let none = space.alloc(&Want {
            kind: Kind::Data,
            len: ByteLen(SECTOR),
            min_len: ByteLen(SECTOR),
            align: ByteLen(SECTOR),
            goal: Goal::Stream(1),
        });
        assert!(none.is_err(), "seed {seed}");
    }
}

/// How many of the sectors taken share a column with one of an earlier turn that is in use, of how many.
fn shared(row_len: u64, seed: u64) -> (u64, u64) {
    let space = space(DATA, 2000, row_len);
    let mut rng = Rng::new(seed);
    // By row and sector of the unit: in use, by turn.
    let mut columns: BTreeMap<(u64, u64), BTreeMap<u64, u64>> = BTreeMap::new();
    let mut live: Vec<Run> = Vec::new();
    let column = |at: u64| ((at - START) / ROW, (at - START) % UNIT_LEN / SECTOR);
    let sectors = |run: Run| (run.start.0..run.end().0).step_by(SECTOR as usize);
    let (mut shared, mut all, mut used) = (0, 0, 0);
    for turn in 0..1500 {
        for _ in 0..rng.below(6) {
            let len = SECTOR * [1, 2, 8, 40][rng.below(4) as usize];
            let got = take(&space, len, file(rng.below(1000) + 1, rng.below(50) + 1));
            for at in sectors(got) {
                let others = columns.entry(column(at)).or_default();
                shared += u64::from(others.values().any(|of| *of != turn));
                others.insert(at, turn);
                all += 1;
            }
            used += got.len.0;
            live.push(got);
        }
        space.turn();
        // At most four fifths are in use.
        while used > 2000 * ROW * 4 / 5 {
            let gone = live.swap_remove(rng.below(live.len() as u64) as usize);
            used -= gone.len.0;
            for at in sectors(gone) {
                columns.entry(column(at)).or_default().remove(&at);
            }
            space.give_back(gone);
        }
    }
    (shared, all)
}

/// Goal: as long as there is room, small data shares next to no columns with what is durable; without the preference most of it does. Method: a model of columns beside random files
/// and turns.
#[test]
fn columns_are_shared_seldom() {
    for seed in 0..3 {
        let (with, all) = shared(ROW, seed);
        let (without, all_without) = shared(0, seed);
        assert_eq!(all, all_without);
        assert!(with * 20 < all, "seed {seed}: {with} of {all}");
        assert!(without * 3 > all, "seed {seed}: {without} of {all}");
    }
}

/// Goal: tree blocks keep to the same. Method: blocks in several turns, single ones and many.
#[test]
fn tree_blocks_begin_rows() {
    let space = space(BlockGroupFlags::METADATA, 1000, ROW);
    let mut out = Vec::new();
    space.alloc_blocks(Kind::Metadata, 30, &mut out).unwrap();
    assert_eq!(in_row(out[0]), 0);
    space.alloc_blocks(Kind::Metadata, 2, &mut out).unwrap();
    assert_eq!(out[30], out[29] + ByteLen(NODE), "they go on in their turn");
    space.turn();
    let had = out.len();
    space.alloc_blocks(Kind::Metadata, 1, &mut out).unwrap();
    assert_eq!(in_row(out[had]), 0, "{out:?}");
    space.turn();
    space.alloc_blocks(Kind::Metadata, 1, &mut out).unwrap();
    assert_eq!(out[had + 1], out[had] + ByteLen(NODE), "further on in the first unit");
}

/// Goal: a fresh row is found behind many groups without parity; when the last group with parity is gone, nobody looks for one any more. Method: twenty groups, and one with rows.
#[test]
fn groups_without_rows_are_passed_over() {
    let space = Space::new(SECTOR as u32, NODE as u32, std::sync::Arc::new(MapSource::default()));
    let len = 100 * ROW;
    let add = |nth: u64, row_len: u64| {
        let start = START + nth * len;
        let info = GroupInfo { row_len: ByteLen(row_len), ..info(start, len, DATA) };
        space.add_group(info, Some(vec![run(start, len)])).unwrap();
        start
    };
    (0..20).for_each(|nth| {
        add(nth, 0);
    });
    let with_rows = add(20, ROW);
    let small = take(&space, SECTOR, file(1, 1));
    assert_eq!(small.start.0, with_rows, "a fresh row");
    space.remove_group(Logical(with_rows)).unwrap();
    assert_eq!(space.inner.row_len(Kind::Data), 0);
    assert!(take(&space, SECTOR, file(2, 1)).start.0 < with_rows);
}
