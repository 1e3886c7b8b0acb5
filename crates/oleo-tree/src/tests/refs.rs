//! References: the ledger's records, compared with a walk over all trees.

use super::*;

/// Goal: references are right through any history of changes, snapshots of snapshots, and drops in steps.
/// Method: random transactions; after each, the multiset of references of every block and data extent, derived from scratch
/// by walking all live trees (of one being dropped, what is not dropped yet), equals what the ledger's heads sum up to; no
/// block without references is reached; freed blocks are gone from the disk and their addresses used again. At random the
/// progress that a crash would lose is forgotten.
#[test]
fn references_equal_a_walk() {
    for seed in 0..8 {
        history(seed, 40);
    }
}

/// The same, longer.
#[test]
#[ignore = "takes minutes: for a change of the rules of sharing"]
fn references_equal_a_walk_long() {
    for seed in 100..400 {
        history(seed, 150);
    }
}

/// Some nodes are dropped piece by piece, some are not, and not always the same ones.
fn some_of(seed: u64) -> impl FnMut(&Node) -> Result<bool, TreeError> {
    move |node| Ok((node.logical().0 / 4096 + seed) % 4 < 3)
}

fn history(seed: u64, rounds: u64) {
    let mut rng = Rng::new(seed);
    let nodesize = [4096, 4096, 16384][rng.below(3) as usize];
    let mut world = World::new(nodesize);
    world.create(TreeId(256));
    world.create(TreeId::TREE_LOG);
    let mut next = 257;
    for round in 0..rounds {
        let note = format!("seed {seed} round {round}");
        for _ in 0..=rng.below(4) {
            let live: Vec<TreeId> = world.trees.iter().filter(|(_, t)| !t.dropping).map(|(id, _)| *id).collect();
            let tree = live[rng.below(live.len() as u64) as usize];
            match rng.below(12) {
                0..7 => {
                    let count = [3, 30, 30, 400, 2000][rng.below(5) as usize];
                    let space = if seed.is_multiple_of(2) { 3000 } else { 20_000 };
                    let batch = random_batch(&mut rng, &world.trees[&tree].model, space, count, 900);
                    world.apply(tree, &batch);
                }
                7..9 if live.len() < 7 && tree.is_subvol() => {
                    world.snapshot(tree, TreeId(next));
                    next += 1;
                }
                9..11 => {
                    let dropping: Vec<TreeId> =
                        world.trees.iter().filter(|(_, t)| t.dropping).map(|(id, _)| *id).collect();
                    if let Some(tree) = dropping.first() {
                        let budget = [1, 2, 5, 20, 200][rng.below(5) as usize];
                        let mut apart = some_of(seed + round);
                        let apart: Option<Choice<'_>> = if rng.below(3) > 0 { Some(&mut apart) } else { None };
                        world.drop_step_slowly(*tree, budget, apart);
                    }
                }
                11 if live.len() > 3 && tree.is_subvol() => {
                    world.drop_step(tree, rng.below(10) as usize);
                }
                _ => {}
            }
        }
        if rng.below(4) > 0 {
            world.commit();
            world.check_refs(&note);
            world.check_contents(&note);
        }
        if rng.below(4) == 0 {
            world.blocks.forget_all();
            for tree in world.trees.values_mut() {
                // A crash loses only what is not committed.
                if world.dirty.is_empty() {
                    tree.progress = tree.progress.map(|p| DropProgress { backref_conversion: None, ..p });
                }
            }
        }
    }
    // In the end all trees go, one after another, and nothing is left.
    let all: Vec<TreeId> = world.trees.keys().copied().collect();
    for tree in all {
        let mut steps = 0;
        while !world.drop_step_slowly(tree, 7, Some(&mut some_of(seed + steps))) {
            steps += 1;
            assert!(steps < 100_000, "seed {seed}: dropping tree {tree} ends");
            if steps % 16 == 0 {
                world.commit();
                world.check_refs(&format!("seed {seed} dropping {tree}"));
            }
        }
        world.commit();
        let note = format!("seed {seed} dropped {tree}");
        world.check_refs(&note);
        world.check_contents(&note);
    }
    assert!(world.records.lock().is_empty(), "seed {seed}: nothing is left");
    assert!(world.disk.blocks.lock().is_empty(), "seed {seed}: no block is left");
}

/// Goal: changing one item of a tree that a snapshot shares rewrites only the path, and records in the ledger no more
/// than that path's neighbours.
#[test]
fn one_change_after_a_snapshot_costs_one_path() {
    let mut rng = Rng::new(3);
    let mut world = World::new(4096);
    world.create(TreeId(256));
    let batch: Vec<Change> = (0..20_000).map(|n| Change::put(Key::new(n, ANY, 0), rng.bytes(50))).collect();
    world.apply(TreeId(256), &batch);
    world.snapshot(TreeId(256), TreeId(257));
    world.commit();
    world.apply(TreeId(256), &[Change::put(Key::new(9_000, ANY, 0), rng.bytes(50))]);
    let height = usize::from(world.trees[&TreeId(256)].root.level) + 1;
    assert_eq!(world.dirty.len(), height);
    world.commit();
    world.check_refs("one path");
}

/// Goal: converting a block from implicit to full backrefs records only the references that really changed.
/// Method: after a snapshot, change one item; the ledger's changes for siblings of the changed leaf are: one full reference
/// from the old parent; the implicit one stays.
#[test]
fn what_both_copies_share_cancels() {
    let mut rng = Rng::new(4);
    let mut world = World::new(4096);
    world.create(TreeId(256));
    let batch: Vec<Change> = (0..20_000).map(|n| Change::put(Key::new(n, ANY, 0), rng.bytes(50))).collect();
    world.apply(TreeId(256), &batch);
    world.snapshot(TreeId(256), TreeId(257));
    world.commit();
    world.apply(TreeId(256), &[Change::put(Key::new(9_000, ANY, 0), rng.bytes(50))]);
    let mut changes = 0;
    for head in world.ledger.drain(usize::MAX).heads() {
        for (by, delta) in head.refs() {
            changes += 1;
            match by {
                RefKey::TreeParent(_) => assert_eq!(delta, 1),
                RefKey::TreeRoot(tree) => assert_eq!(tree, TreeId(256)),
                _ => panic!("no data here: {by:?}"),
            }
        }
    }
    let fanout = 121;
    assert!(changes < 4 * fanout, "{changes} changes");
}

/// Tree 256 with three levels, some of whose leaves name data, and its unchanged snapshot 257.
fn tree_and_snapshot(rng: &mut Rng) -> World {
    let mut world = World::new(4096);
    world.create(TreeId(256));
    let extents = (0..4000).map(|n| {
        Change::put(Key::new(256, ItemType::EXTENT_DATA, n * 16384), file_extent((1 << 40) + (n % 50) * 65536, 1))
    });
    let others = (0..16_000).map(|n| Change::put(Key::new(257 + n, ANY, 0), rng.bytes(40)));
    let batch: Vec<Change> = extents.chain(others).collect();
    world.apply(TreeId(256), &batch);
    assert_eq!(world.trees[&TreeId(256)].root.level, 2);
    world.commit();
    world.snapshot(TreeId(256), TreeId(257));
    world.commit();
    world
}

/// Goal: a crash in the middle of converting a large shared subtree to full backrefs leaves nothing that later steps miss.
/// Method: a tree and its unchanged snapshot, so that dropping the first converts everything; steps of several sizes, the
/// progress that only memory has forgotten after some of them; then the snapshot is changed and dropped as well.
#[test]
fn conversion_survives_a_crash() {
    for (budget, forget_at) in [(3, 5), (10, 7), (40, 2), (1, 11)] {
        let mut rng = Rng::new(budget as u64);
        let mut world = tree_and_snapshot(&mut rng);
        let mut steps = 0;
        while !world.drop_step(TreeId(256), budget) {
            world.commit();
            steps += 1;
            if steps < 30 {
                world.check_refs(&format!("budget {budget} step {steps}"));
            }
            if steps == forget_at {
                let progress = &mut world.trees.get_mut(&TreeId(256)).unwrap().progress;
                assert!(
                    progress.is_some_and(|p| p.backref_conversion.is_some()),
                    "the crash hits a half converted subtree"
                );
                *progress = progress.map(|p| DropProgress { backref_conversion: None, ..p });
            }
        }
        world.commit();
        world.check_refs(&format!("budget {budget} dropped"));
        let batch = random_batch(&mut rng, &world.trees[&TreeId(257)].model, 20_000, 300, 300);
        world.apply(TreeId(257), &batch);
        world.commit();
        world.check_refs(&format!("budget {budget} changed"));
        world.check_contents("changed");
        while !world.drop_step(TreeId(257), 100) {}
        world.commit();
        assert!(world.records.lock().is_empty());
    }
}

/// Goal: if nothing may change hands as a whole, a step gives away no more leaves than it may look at, writes no more blocks than a
/// tree has levels, and the deletion ends; the extent tree is right after each.
/// Method: a tree and its unchanged snapshot, of which either goes, in steps of several sizes.
#[test]
fn taken_apart_leaf_by_leaf() {
    for (budget, who) in [(1, 256), (3, 257), (40, 256), (40, 257)] {
        let mut rng = Rng::new(budget as u64);
        let mut world = tree_and_snapshot(&mut rng);
        let levels = usize::from(world.trees[&TreeId(256)].root.level) + 1;
        let (mut steps, mut done) = (0, false);
        while !done {
            let records = world.records.lock().clone();
            done = world.drop_step_slowly(TreeId(who), budget, Some(&mut |_| Ok(true)));
            assert!(world.dirty.len() <= levels, "{} blocks", world.dirty.len());
            world.commit();
            let now = world.records.lock();
            let changed = now.iter().filter(|(at, record)| records.get(at) != Some(record)).count();
            // Leaves, their extents, and the children of the copies.
            assert!(changed <= budget * (1 + 50) + levels * 130, "{changed} extents in a step of {budget}");
            drop(now);
            steps += 1;
            if steps % (100 / budget) == 0 {
                world.check_refs(&format!("budget {budget} step {steps}"));
            }
        }
        world.check_refs(&format!("budget {budget} dropped"));
        let left = TreeId(513 - who);
        world.check_contents("the other one");
        assert!(steps > 300 / budget, "{steps} steps");
        while !world.drop_step(left, 100) {}
        world.commit();
        assert!(world.records.lock().is_empty());
    }
}
