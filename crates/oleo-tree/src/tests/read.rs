//! Reading: single items, cursors, scans, differences; and damaged images.

use oleo_format::ChildPtr;

use super::*;

fn grown(seed: u64, space: u64, count: u64) -> World {
    let mut rng = Rng::new(seed);
    let mut world = World::new(4096);
    world.create(TreeId(256));
    let batch = random_batch(&mut rng, &BTreeMap::new(), space, count, 600);
    world.apply(TreeId(256), &batch);
    world.commit();
    world
}

/// Goal: a cursor goes where an ordered map's iterator goes.
/// Method: random seeks both ways and steps, mirrored in the map.
#[test]
fn cursors_equal_a_map() {
    for seed in [1, 5, 6] {
        let world = grown(seed, 20_000, 4000);
        let tree = &world.trees[&TreeId(256)];
        let mut rng = Rng::new(seed);
        let mut cursor = world.blocks.cursor(&tree.root);
        let first = *tree.model.first_key_value().unwrap().0;
        let mut at: Option<Key> = None;
        for _ in 0..5000 {
            let key = random_key(&mut rng, 20_100);
            if rng.below(8) == 0 {
                // In between, a look at a block on the way. The cursor can go anywhere from there.
                let (level, mut other) = (rng.below(5) as u8, world.blocks.cursor(&tree.root));
                other.seek(&key).unwrap();
                let above = cursor.seek_level(&key, level).unwrap();
                assert_eq!(
                    above.is_some(),
                    u64::from(level) < other.path().count() as u64,
                    "seed {seed} level {level}"
                );
                assert!(above.is_none_or(|node| node.level() == level && (node.key(0) <= key || node.key(0) == first)));
                assert_eq!(cursor.current(), None, "seed {seed}");
                at = None;
            }
            let want = match rng.below(6) {
                0 => {
                    cursor.seek(&key).unwrap();
                    tree.model.range(key..).next()
                }
                1 => {
                    cursor.seek_back(&key).unwrap();
                    tree.model.range(..=key).next_back()
                }
                2 | 3 => {
                    let Some(at) = at else { continue };
                    cursor.next().unwrap();
                    tree.model.range(at..).nth(1)
                }
                _ => {
                    let Some(at) = at else { continue };
                    cursor.prev().unwrap();
                    tree.model.range(..at).next_back()
                }
            };
            assert_eq!(cursor.current(), want.map(|(key, item)| (*key, &**item)), "seed {seed}");
            at = cursor.key();
        }
        // Past an end and back.
        assert!(!cursor.seek(&Key::MAX).unwrap() && !cursor.next().unwrap());
        assert!(cursor.prev().unwrap());
        assert_eq!(cursor.key(), tree.model.last_key_value().map(|(key, _)| *key));
        assert!(!cursor.seek_back(&Key::MIN).unwrap() && !cursor.prev().unwrap());
        assert!(cursor.next().unwrap());
        assert_eq!(cursor.key(), tree.model.first_key_value().map(|(key, _)| *key));
    }
}

/// Goal: get, get_many and scan return what a map returns.
#[test]
fn lookups_equal_a_map() {
    let world = grown(11, 20_000, 4000);
    let tree = &world.trees[&TreeId(256)];
    let mut rng = Rng::new(12);
    let mut keys: Vec<Key> = (0..3000).map(|_| random_key(&mut rng, 20_100)).collect();
    for key in &keys {
        let have = world.blocks.get(&tree.root, key).unwrap();
        assert_eq!(have.as_deref(), tree.model.get(key).map(|item| &**item));
        assert!(have.is_none_or(|item| item.key() == *key));
    }
    keys.sort();
    let mut count = 0;
    world
        .blocks
        .get_many(&tree.root, &keys, |index, item| {
            assert_eq!(index, count);
            assert_eq!(item, tree.model.get(&keys[index]).map(|item| &**item));
            count += 1;
        })
        .unwrap();
    assert_eq!(count, keys.len());
    for _ in 0..50 {
        let (a, b) = (random_key(&mut rng, 20_100), random_key(&mut rng, 20_100));
        let (from, to) = (a.min(b), a.max(b));
        let mut have = Vec::new();
        world
            .blocks
            .scan::<TreeError>(&tree.root, from, to, |key, item| {
                have.push((*key, Box::<[u8]>::from(item)));
                Ok(ControlFlow::Continue(()))
            })
            .unwrap();
        let want: Vec<_> = tree.model.range(from..=to).map(|(key, item)| (*key, item.clone())).collect();
        assert_eq!(have, want);
    }
}

/// Goal: the difference of two trees is that of their maps, and what they share is not read. Method: a tree, its
/// snapshot, random changes to both; compare both ways; count blocks read from a cold cache.
#[test]
fn differences_equal_maps() {
    for seed in 0..10 {
        let mut world = grown(seed + 20, 30_000, 6000);
        world.snapshot(TreeId(256), TreeId(257));
        let mut rng = Rng::new(seed);
        for tree in [TreeId(256), TreeId(257), TreeId(256)] {
            let count = rng.below(200);
            let batch = random_batch(&mut rng, &world.trees[&tree].model, 30_000, count, 600);
            world.apply(tree, &batch);
            if seed % 2 == 0 {
                world.commit();
            }
        }
        for (a, b) in [(256, 257), (257, 256), (256, 256)] {
            let (a, b) = (&world.trees[&TreeId(a)], &world.trees[&TreeId(b)]);
            let mut have: BTreeMap<Key, [Option<Box<[u8]>>; 2]> = BTreeMap::new();
            let mut last = None;
            world
                .blocks
                .diff::<TreeError>(&a.root, &b.root, |diff| {
                    let (key, sides) = match diff {
                        Diff::OnlyA { key, a } => (key, [Some(a.into()), None]),
                        Diff::OnlyB { key, b } => (key, [None, Some(b.into())]),
                        Diff::Changed { key, a, b } => (key, [Some(a.into()), Some(b.into())]),
                    };
                    assert!(last < Some(key), "keys rise");
                    last = Some(key);
                    have.insert(key, sides);
                    Ok(ControlFlow::Continue(()))
                })
                .unwrap();
            let keys: BTreeSet<Key> = a.model.keys().chain(b.model.keys()).copied().collect();
            let want: BTreeMap<_, _> = keys
                .into_iter()
                .map(|key| (key, [a.model.get(&key).cloned(), b.model.get(&key).cloned()]))
                .filter(|(_, [a, b])| a != b)
                .collect();
            assert_eq!(have, want, "seed {seed}");
        }
    }
}

/// Goal: two trees that share all but one leaf are compared by reading one path of each.
#[test]
fn differences_skip_what_is_shared() {
    let mut world = World::new(4096);
    world.create(TreeId(256));
    let batch: Vec<Change> = (0..50_000).map(|n| Change::put(Key::new(n, ANY, 0), vec![1; 40])).collect();
    world.apply(TreeId(256), &batch);
    world.snapshot(TreeId(256), TreeId(257));
    world.commit();
    world.apply(TreeId(256), &[Change::put(Key::new(25_000, ANY, 0), vec![2; 40])]);
    world.commit();
    world.blocks.forget_all();
    let mut count = 0;
    world
        .blocks
        .diff::<TreeError>(&world.trees[&TreeId(256)].root, &world.trees[&TreeId(257)].root, |_| {
            count += 1;
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    assert_eq!(count, 1);
    let per_block = 4096 + 160;
    assert!(world.blocks.cached_bytes() <= 2 * 3 * per_block, "{} bytes were read", world.blocks.cached_bytes());
}

/// Goal: blocks that lie about themselves or their children give a typed error, never another block's contents and never an
/// endless descent.
/// Method: damage the pointer, generation, key or level of one child in a node with a correct checksum.
#[test]
fn lying_nodes_are_refused() {
    let world = grown(31, 20_000, 4000);
    let root = world.trees[&TreeId(256)].root.clone();
    let node = world.blocks.root_node(&root).unwrap();
    assert!(!node.is_leaf());
    let children: Vec<ChildPtr> = (0..node.len()).map(|slot| node.child(slot)).collect();
    let damages: [fn(&mut Vec<ChildPtr>); 4] = [
        |c| c[1].logical = c[0].logical,
        |c| c[1].generation.0 += 1,
        |c| c[1].key.offset -= 1,
        |c| c[1].logical = Logical(1 << 20),
    ];
    let read = |root: &TreeRoot, key: &Key| {
        let cold = Blocks::new(world.disk.clone(), 1 << 20);
        [cold.get(root, key).map(drop), world.blocks.get(root, key).map(drop)]
    };
    let key = children[1].key;
    for damage in damages {
        let mut lying = children.clone();
        damage(&mut lying);
        let key = key.min(lying[1].key);
        let mut bytes = oleo_format::encode_node(4096, &node.head(), &lying);
        oleo_format::seal(&mut bytes, CsumType::Crc32c);
        world.disk.blocks.lock().insert(root.logical.0, bytes);
        world.blocks.forget_all();
        // Warm everything that the lie could lead to.
        world.blocks.get(&root, &Key::MIN).unwrap();
        for result in read(&root, &key.max(lying[1].key)) {
            assert!(matches!(result, Err(TreeError::Corrupt(_))), "{result:?}");
        }
    }
    // A node that is its own child.
    let mut lying = children.clone();
    lying[0].logical = root.logical;
    let mut bytes = oleo_format::encode_node(4096, &node.head(), &lying);
    oleo_format::seal(&mut bytes, CsumType::Crc32c);
    world.disk.blocks.lock().insert(root.logical.0, bytes);
    world.blocks.forget_all();
    for result in read(&root, &Key::MIN) {
        assert!(matches!(result, Err(TreeError::Corrupt(_))), "{result:?}");
    }
    let high = TreeRoot::on_disk(TreeId(256), root.logical, root.generation, 200);
    assert!(matches!(world.blocks.get(&high, &Key::MIN), Err(TreeError::Corrupt(_))));
}

/// Goal: blocks read in one batch by address are those that are read one by one, the open transaction's included; damage is left
/// out, for the single read to report; leaves are the caller's alone, and only blocks above them go into the cache.
/// Method: a committed tree and one that is not, asked for together; one block on disk is broken.
#[test]
fn many_at_their_addresses() {
    let mut world = grown(17, 20_000, 4000);
    let mut all: Vec<Logical> = world.disk.blocks.lock().keys().map(|at| Logical(*at)).collect();
    world.create(TreeId(257));
    let open = world.trees[&TreeId(257)].root.logical;
    let broken = all[all.len() / 2];
    world.disk.blocks.lock().get_mut(&broken.0).unwrap()[200] ^= 1;
    all.push(open);
    let found = world.blocks.at_many(&all, &world.dirty);
    let found: BTreeMap<Logical, Arc<Node>> = found.into_iter().map(|node| (node.logical(), node)).collect();
    let is_alone = |node: &Arc<Node>| Arc::strong_count(node) == 1;
    let (leaves, above): (Vec<_>, Vec<_>) =
        found.values().filter(|node| node.logical() != open).partition(|node| node.is_leaf());
    assert!(!leaves.is_empty() && leaves.into_iter().all(is_alone));
    assert!(above.into_iter().any(|node| !is_alone(node)));
    for at in all {
        let single = world.blocks.at(at, &world.dirty);
        assert_eq!(found.contains_key(&at), at != broken);
        assert_eq!(single.is_ok(), at != broken);
        if let (Some(node), Ok(single)) = (found.get(&at), single) {
            assert_eq!(node.bytes(), single.bytes());
        }
    }
}

/// Goal: what a thread keeps is found without counting it, and never instead of what the cache would have. Method: look-ups and cursors
/// between commits, each compared with the map; the count of the root's holders is the same before and in a look-up; after a commit, and
/// when everything is forgotten, nothing of before is kept.
#[test]
fn kept_blocks_are_those_of_the_cache() {
    let mut world = grown(41, 20_000, 4000);
    let mut rng = Rng::new(41);
    for round in 0..8 {
        let (root, model) = (world.trees[&TreeId(256)].root.clone(), world.trees[&TreeId(256)].model.clone());
        assert_eq!(crate::kept::count(world.blocks.number()), 0, "round {round}: they are of before");
        let mut cursor = world.blocks.cursor(&root);
        for _ in 0..2000 {
            let key = random_key(&mut rng, 20_100);
            let found = world.blocks.get_with(&root, &key, |item| item.map(<[u8]>::to_vec)).unwrap();
            assert_eq!(found.as_deref(), model.get(&key).map(|item| &**item), "round {round}");
            assert_eq!(cursor.seek(&key).unwrap(), model.range(key..).next().is_some());
        }
        drop(cursor);
        assert!(crate::kept::count(world.blocks.number()) > 0);
        let node = world.blocks.root_node(&root).unwrap();
        let key = *model.first_key_value().unwrap().0;
        world.blocks.get_with(&root, &key, |_| ()).unwrap();
        let before = Arc::strong_count(&node);
        let within = world.blocks.get_with(&root, &key, |_| Arc::strong_count(&node)).unwrap();
        assert_eq!((within, Arc::strong_count(&node)), (before, before), "round {round}");
        if round % 2 == 0 {
            world.blocks.forget_all();
        } else {
            let batch = random_batch(&mut rng, &model, 20_000, 200, 600);
            world.apply(TreeId(256), &batch);
            world.commit();
        }
    }
}
