//! Random histories, in which groups move now and then.

use super::*;

fn play(oracle: Oracle, seed: u64, mkfs: &[&str], with_quota: bool) -> anyhow::Result<()> {
    let scratch = oracle.scratch()?;
    let image = scratch.image("relocate", 512 << 20)?;
    make(oracle, &image, mkfs)?;
    let fs = open(&image)?;
    if with_quota {
        quota_enable(&fs)?;
        create_levels(&fs)?;
    }
    let mut world = World::new(fs, seed);
    let kinds = [BlockGroupFlags::METADATA, BlockGroupFlags::DATA, BlockGroupFlags::SYSTEM];
    for step in 0..120 {
        let reported = world.step()?;
        if !world.rng.one_in(8) {
            continue;
        }
        world.fs.sync()?;
        let what = format!("seed {seed}, step {step}, after {reported}");
        let (before, data) = (sharing(&world.fs)?, contents(&world.fs, &Known::of(&world))?);
        let dirty = world.fs.engine().quota_dirty_extents();
        let kind = kinds[world.rng.below(3) as usize];
        let there = groups(&world.fs, kind);
        let start = there[world.rng.below(there.len() as u64) as usize];
        world.fs.engine().relocate_group(start, &|_| true)?.expect("nobody stops it");
        assert!(!groups(&world.fs, kind).contains(&start), "{what}: group {start} is still there");
        assert_eq!(sharing(&world.fs)?, before, "{what}: who shares what");
        assert_eq!(contents(&world.fs, &Known::of(&world))?, data, "{what}: what files hold");
        if with_quota {
            assert_eq!(world.fs.engine().quota_dirty_extents(), dirty, "{what}: extents looked at for quota");
            must_be_exact(&world.fs, &what)?;
        }
        if world.rng.one_in(4) {
            drop(world.fs);
            must_be_sound(oracle, &image, mkfs, &what)?;
            world.fs = open(&image)?;
        }
    }
    world.fs.sync()?;
    let data = contents(&world.fs, &Known::of(&world))?;
    let moved = move_all(&world.fs, kinds[0] | kinds[1] | kinds[2])?;
    assert!(moved.blocks > 10 && moved.extents > 0, "seed {seed}: {moved:?}");
    assert!(moved.rewritten >= moved.blocks, "seed {seed}: {moved:?}");
    assert_eq!(contents(&world.fs, &Known::of(&world))?, data, "seed {seed}: at the end");
    // The kernel would continue with deletions before it counts.
    while world.fs.clean(1000)? {}
    world.fs.sync()?;
    let ours = with_quota.then(|| said(&world.fs));
    drop(world.fs);
    must_be_sound(oracle, &image, mkfs, &format!("seed {seed}"))?;
    if let Some(ours) = ours {
        let (_, after) = kernel_counts(oracle, &image, &format!("seed {seed}"))?;
        assert_eq!(ours, after, "seed {seed}: ours | the kernel's rescan");
    }
    // Read again with nothing in memory.
    world.fs = open(&image)?;
    assert_eq!(contents(&world.fs, &Known::of(&world))?, data, "seed {seed}: read again");
    Ok(())
}

/// Goal: moving groups changes neither the contents of files nor their sharing, and `btrfs check` finds nothing.
/// Method: random histories with snapshots, clones, deletions under way; now and then a random group of a random kind
/// is emptied; at the end all of them.
#[test]
fn random_groups() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    (1..5).try_for_each(|seed| play(oracle, seed, &["-n", nodesize(seed)], false))
}

/// Goal: the same on volumes of other kinds: mixed groups, a tree of block groups, no free-space tree, no skinny metadata.
#[test]
fn kinds_of_volumes() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let kinds: [&[&str]; 5] = [
        &["-n", "4096", "-M"],
        &BLOCK_GROUP_TREE,
        &["-n", "16384", "-R", "^free-space-tree"],
        &["-n", "4096", "-O", "^skinny-metadata,^no-holes"],
        &["-n", "4096", "--csum", "sha256", "-d", "dup"],
    ];
    for (mkfs, seed) in kinds.into_iter().zip(21..) {
        play(oracle, seed, mkfs, false)?;
    }
    Ok(())
}

/// Goal: quota's numbers do not change, and no extent is processed for quota.
#[test]
fn with_quota() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    (31..34).try_for_each(|seed| play(oracle, seed, &["-n", nodesize(seed)], true))
}
