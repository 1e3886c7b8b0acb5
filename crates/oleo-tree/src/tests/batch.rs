//! Batch application, compared with an ordered map.

use oleo_format::{ITEM_LEN, item_len_max, leaf_capacity, node_capacity};

use super::*;

/// Goal: a tree holds what an ordered map holds, whatever is done to it, inside one transaction and across many.
/// Method: random batches of several styles to three trees, several per transaction, for each node size; after each
/// commit all contents, and every block's checks, with addresses used again and a cache that is too small.
#[test]
fn batches_equal_an_ordered_map() {
    for (nodesize, rounds) in [(4096, 40), (16384, 20), (65536, 8)] {
        for seed in 0..3 {
            let mut rng = Rng::new(seed * 1000 + u64::from(nodesize));
            let mut world = World::new(nodesize);
            let trees = [TreeId(256), TreeId::TREE_LOG, TreeId(257)];
            for tree in trees {
                world.create(tree);
            }
            for round in 0..rounds {
                for _ in 0..=rng.below(3) {
                    let tree = trees[rng.below(3) as usize];
                    let count = if rng.below(4) == 0 { rng.below(3000) } else { rng.below(30) };
                    let batch = random_batch(&mut rng, &world.trees[&tree].model, 6000, count, item_len_max(nodesize));
                    world.apply(tree, &batch);
                }
                let note = format!("nodesize {nodesize} seed {seed} round {round}");
                world.check_contents(&note);
                if rng.below(3) > 0 {
                    world.commit();
                    world.check_contents(&note);
                    world.check_refs(&note);
                }
                if rng.below(5) == 0 {
                    world.blocks.forget_all();
                }
            }
        }
    }
}

/// Goal: readers of an old root see the old tree while and after others change it.
/// Method: keep a root of each step inside one transaction, read all of them at its end.
#[test]
fn old_roots_stay_what_they_were() {
    let mut rng = Rng::new(5);
    let mut world = World::new(4096);
    world.create(TreeId(256));
    let mut kept = Vec::new();
    for _ in 0..20 {
        let batch = random_batch(&mut rng, &world.trees[&TreeId(256)].model, 3000, 300, 500);
        world.apply(TreeId(256), &batch);
        let tree = &world.trees[&TreeId(256)];
        kept.push((tree.root.clone(), tree.model.clone()));
    }
    for (root, model) in &kept {
        assert_eq!(&world.contents(root), model);
    }
}

/// Goal: the same changes give the same bytes at the same addresses with any number of threads.
/// Method: one script of large batches with one thread and with pools of 2 and 5; compare the disks.
#[test]
fn threads_do_not_show() {
    let script = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut rng = Rng::new(77);
            let mut world = World::new(4096);
            world.threads = threads > 1;
            world.create(TreeId(256));
            for round in 0..6 {
                let batch = random_batch(&mut rng, &world.trees[&TreeId(256)].model, 100_000, 20_000, 300);
                world.apply(TreeId(256), &batch);
                if round == 2 {
                    world.snapshot(TreeId(256), TreeId(300));
                }
                world.commit();
            }
            world.check_contents("threads");
            world.check_refs("threads");
            world.disk.blocks.lock().clone()
        })
    };
    let one = script(1);
    assert!(one.len() > 200, "the script makes many blocks: {}", one.len());
    assert_eq!(one, script(2));
    assert_eq!(one, script(5));
}

/// Goal: appended leaves are packed full; growth in the middle leaves room; a deleted range leaves no nearly empty
/// leaves. Method: count leaves.
#[test]
fn leaves_are_full_or_have_room() {
    let mut world = World::new(16384);
    world.create(TreeId::CSUM);
    let per_leaf = leaf_capacity(16384) / (ITEM_LEN + 75);
    let count = per_leaf * 40;
    let item = |n: usize| Change::put(Key::new(n as u64 * 2, ANY, 0), vec![7; 75]);
    let batch: Vec<Change> = (0..count).map(item).collect();
    for part in batch.chunks(count / 8) {
        world.apply(TreeId::CSUM, part);
    }
    let leaves = |world: &World| {
        let mut sizes = Vec::new();
        world
            .blocks
            .walk::<TreeError>(&world.trees[&TreeId::CSUM].root, |node, depth| {
                assert_eq!(depth + usize::from(node.level()), 1);
                if node.is_leaf() {
                    sizes.push(node.len());
                }
                Ok(Walk::Into)
            })
            .unwrap();
        sizes
    };
    assert_eq!(leaves(&world), vec![per_leaf; 40]);
    world.commit();
    world.apply(TreeId::CSUM, &[Change::put(Key::new(per_leaf as u64 * 21, ANY, 1), vec![7; 75])]);
    let sizes = leaves(&world);
    assert_eq!(sizes.len(), 41);
    assert!(sizes[10].abs_diff(sizes[11]) <= 1, "a leaf that splits in its middle splits evenly: {sizes:?}");
    let deletes: Vec<Change> =
        (per_leaf..per_leaf * 5 - 3).map(|n| Change::delete(Key::new(n as u64 * 2, ANY, 0))).collect();
    world.apply(TreeId::CSUM, &deletes);
    let sizes = leaves(&world);
    assert_eq!(sizes.len(), 41 - 3, "{sizes:?}");
    world.commit();
    world.check_contents("sizes");
    world.check_refs("sizes");
}

/// Goal: a tree grows by several levels, and shrinks to an empty leaf, in one batch each.
/// Method: one batch of many large items, then one that deletes all but one, then the last.
#[test]
fn trees_grow_and_shrink_by_levels() {
    let mut world = World::new(4096);
    world.create(TreeId(256));
    let count = node_capacity(4096) as u64 * 130;
    let batch: Vec<Change> =
        (0..count).map(|n| Change::put(Key::new(n, ANY, 0), vec![n as u8; item_len_max(4096)])).collect();
    world.apply(TreeId(256), &batch);
    assert_eq!(world.trees[&TreeId(256)].root.level, 3);
    world.commit();
    world.check_refs("grown");
    let deletes: Vec<Change> = (0..count).filter(|n| *n != 777).map(|n| Change::delete(Key::new(n, ANY, 0))).collect();
    world.apply(TreeId(256), &deletes);
    assert_eq!(world.trees[&TreeId(256)].root.level, 0);
    world.commit();
    world.check_contents("shrunk");
    world.check_refs("shrunk");
    world.apply(TreeId(256), &[Change::delete(Key::new(777, ANY, 0))]);
    world.commit();
    world.check_contents("empty");
    world.check_refs("empty");
}

/// Goal: an item that no leaf can hold is refused, and nothing has happened.
#[test]
fn too_large_items_are_refused() {
    let mut world = World::new(4096);
    world.create(TreeId(256));
    world.commit();
    let batch = [Change::put(Key::new(256, ANY, 0), vec![0; item_len_max(4096) + 1])];
    let t = &world.trees[&TreeId(256)];
    let result = world.with_env(TreeId(256), t.last_snapshot, |env| world.blocks.apply(&t.root, &batch, env));
    assert!(matches!(result, Err(TreeError::ItemTooLarge { .. })), "{result:?}");
    assert!(world.dirty.is_empty() && world.ledger.is_empty());
}

/// Goal: changes that change nothing rewrite nothing.
#[test]
fn what_is_already_so_is_left_alone() {
    let mut rng = Rng::new(9);
    let mut world = World::new(4096);
    world.create(TreeId(256));
    let batch = random_batch(&mut rng, &BTreeMap::new(), 5000, 3000, 300);
    world.apply(TreeId(256), &batch);
    world.commit();
    let before = world.trees[&TreeId(256)].root.clone();
    let mut same: Vec<Change> =
        world.trees[&TreeId(256)].model.iter().step_by(7).map(|(k, v)| Change::put(*k, v.clone())).collect();
    same.push(Change::delete(Key::new(1 << 50, ANY, 0)));
    world.apply(TreeId(256), &same);
    assert!(world.trees[&TreeId(256)].root.same_block(&before));
    assert!(world.dirty.is_empty() && world.ledger.is_empty());
}
