//! Groups that are empty, stopped half way, on full devices, at odd addresses, or damaged.

use super::*;

/// Goal: groups that have become empty are removed by themselves, one of each kind stays, the image is sound for the
/// kernel, and their space can be used again. Method: files in several groups of data are deleted; groups that have
/// been empty for no time at all, and for long enough, are requested to go; then as much is written once more.
#[test]
fn empty_groups_go() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("relocate", 2 << 30)?;
    oracle.mkfs(&[], &[&image])?;
    let fs = open(&image)?;
    let top = fs.root(TreeId::FS)?;
    for _ in 0..2 {
        let before = groups(&fs, BlockGroupFlags::DATA).len();
        let file = fs.create(&top, b"large", &NewInode::new(NewKind::File, 0o644))?;
        fs.preallocate(&file, 0, 1 << 30, KeepSize::No)?;
        fs.write(&file, 12345, &[7; 100_000])?;
        fs.sync()?;
        let full = groups(&fs, BlockGroupFlags::DATA).len();
        assert!(full > 2 && full > before, "{full} groups of data after {before}");
        let idle = || fs.engine().remove_idle_group(Duration::ZERO);
        while idle()?.is_some() {}
        assert!(groups(&fs, BlockGroupFlags::DATA).len() * 8 > full * 6, "what is in use stays");
        drop(file);
        fs.unlink(&top, b"large")?;
        fs.sync()?;
        let emptied = groups(&fs, BlockGroupFlags::DATA).len();
        assert!(emptied > 2);
        assert_eq!(fs.engine().remove_idle_group(Duration::from_secs(3600))?, None, "not that long");
        let mut gone = 0;
        while idle()?.is_some() {
            gone += 1;
        }
        assert_eq!(groups(&fs, BlockGroupFlags::DATA).len(), emptied - gone);
        assert_eq!(groups(&fs, BlockGroupFlags::DATA).len(), 1, "one stays");
        assert!(!groups(&fs, BlockGroupFlags::METADATA).is_empty());
    }
    drop((top, fs));
    oracle.must_be_sound(&[&image], "empty groups are gone")?;
    must_be_sound(oracle, &image, &BLOCK_GROUP_TREE, "empty groups are gone, for the kernel")
}

/// Goal: a job that is stopped leaves the group open, with the rest of its contents in it.
#[test]
fn a_stopped_job_leaves_the_group_open() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("relocate", 512 << 20)?;
    oracle.mkfs(&["-n", "4096"], &[&image])?;
    let fs = open(&image)?;
    let mut world = World::new(fs.clone(), 5);
    for _ in 0..60 {
        world.step()?;
    }
    fs.sync()?;
    let start = groups(&fs, BlockGroupFlags::METADATA)[0];
    assert_eq!(fs.engine().relocate_group(start, &|_| false)?, None);
    assert!(fs.engine().space().group(start).is_ok_and(|group| !group.read_only));
    assert!(quota(&fs).is_none());
    fs.engine().relocate_group(start, &|_| true)?.expect("nobody stops it");
    drop((fs, world));
    oracle.must_be_sound(&[&image], "stopped, then moved")?;
    Ok(())
}

/// Goal: on a full device nothing is lost: what cannot move stays, the group is open again, and writing continues.
/// Method: the device is filled completely; every group is requested to move; then space is made, and all move.
#[test]
fn a_full_device_loses_nothing() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    for mkfs in [&["-n", "4096"][..], &["-n", "16384", "-m", "single"]] {
        let scratch = oracle.scratch()?;
        let image = scratch.image("relocate", 256 << 20)?;
        oracle.mkfs(mkfs, &[&image])?;
        let fs = open(&image)?;
        let top = fs.root(TreeId::FS)?;
        let mut world = Vec::new();
        'full: for n in 0.. {
            let file = fs.create(&top, format!("file{n}").as_bytes(), &NewInode::new(NewKind::File, 0o644));
            let Ok(file) = file else { break };
            let mut rng = Rng::new(n);
            for at in 0..8 {
                if fs.write(&file, at << 19, &rng.bytes(1 << 19)).is_err() {
                    break 'full;
                }
            }
            if fs.sync().is_err() {
                break;
            }
            world.push((n, file));
        }
        fs.sync()?;
        let kinds = BlockGroupFlags::DATA | BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM;
        let mut refused = 0;
        for start in groups(&fs, kinds) {
            match fs.engine().relocate_group(start, &|_| true) {
                Ok(moved) => assert!(moved.is_some()),
                Err(TxnError::NoSpace { .. }) => {
                    refused += 1;
                    let group = fs.engine().space().group(start)?;
                    assert!(!group.read_only, "group {start} is open again");
                }
                Err(e) => return Err(e.into()),
            }
        }
        assert!(refused > 0, "{mkfs:?}: there was room, so this shows nothing");
        assert!(fs.poisoned_by().is_none());
        for (n, _) in world.iter().step_by(2) {
            fs.unlink(&top, format!("file{n}").as_bytes())?;
        }
        let kept: Vec<_> = world.into_iter().skip(1).step_by(2).collect();
        fs.sync()?;
        while fs.clean(1000)? {}
        fs.sync()?;
        // Data first: the space that it frees on the device is used for metadata.
        move_all(&fs, BlockGroupFlags::DATA)?;
        move_all(&fs, BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM)?;
        for (n, file) in &kept {
            let mut rng = Rng::new(*n);
            let mut out = vec![0; 1 << 19];
            for at in 0..8 {
                fs.read(file, at << 19, &mut out)?;
                assert!(out == rng.bytes(1 << 19), "{mkfs:?}: file {n} at {at}");
            }
        }
        drop((kept, top, fs));
        oracle.must_be_sound(&[&image], &format!("{mkfs:?}: full, then moved"))?;
    }
    Ok(())
}

/// Goal: nothing is placed at address 0, nor anywhere before the first superblock's, even if a volume has a group
/// there, as old ones do: a root at 0 would count as none. Method: a volume gets an empty group at 0; all groups like
/// it move, more than once, so that it is the place to move to.
#[test]
fn a_group_at_address_zero() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    /// Chunks of a new volume begin at 1 MiB.
    const LEN: ByteLen = ByteLen(1 << 20);
    for flags in [BlockGroupFlags::SYSTEM, BlockGroupFlags::METADATA, BlockGroupFlags::DATA] {
        let what = format!("{flags:?} at 0");
        let scratch = oracle.scratch()?;
        let image = scratch.image("zero", 512 << 20)?;
        let options = FileOptions::default().write(true);
        let features = FeatureSet::default().free_space_tree(false);
        let device = Arc::new(FileDevice::open(&image, &options)?);
        let mkfs = MkfsOptions::default().features(features).nodesize(Some(4096)).seed([3; 32]);
        oleo_mkfs::make(&[device], &mkfs)?;

        let fs = open(&image)?;
        let volume = fs.engine().volume();
        let plan = volume.propose_chunk(&ChunkWant { flags, len_max: Some(LEN), start: Some(Logical(0)) })?;
        volume.add_chunk(&plan);
        let put = |(key, item): &(Key, Vec<u8>)| Change::put(*key, item.clone());
        let mut chunk_tree: Vec<Change> = plan.dev_items.iter().chain([&plan.chunk_item]).map(put).collect();
        chunk_tree.sort_unstable_by_key(|change| change.key);
        let dev_tree: Vec<Change> = plan.dev_extents.iter().map(put).collect();
        let group =
            BlockGroupItem { used: 0.into(), chunk_objectid: Key::FIRST_CHUNK_TREE.into(), flags: flags.bits().into() };
        let group = Change::put(Key::new(0, ItemType::BLOCK_GROUP_ITEM, plan.map.len.0), group.as_bytes().to_vec());
        fs.engine().stage(|staged| {
            staged.put(TreeId::CHUNK, &chunk_tree)?;
            staged.put(TreeId::DEV, &dev_tree)?;
            staged.put(TreeId::EXTENT, &[group])
        })?;
        fs.sync()?;
        drop(fs);
        must_be_clean(&image, &what)?;

        let fs = open(&image)?;
        let root = fs.root(TreeId::FS)?;
        let mut rng = Rng::new(1);
        for n in 0..300 {
            let file = fs.create(&root, format!("file{n}").as_bytes(), &NewInode::new(NewKind::File, 0o644))?;
            fs.write(&file, 0, &rng.bytes(9000))?;
        }
        fs.sync()?;
        for start in groups(&fs, flags).into_iter().filter(|start| start.0 > 0) {
            fs.engine().relocate_group(start, &|_| true)?.expect("nobody stops it");
        }
        let used = fs.engine().space().group(Logical(0))?.used;
        assert!(used.0 > 0, "{what}: nothing went there, so this shows nothing");
        drop((root, fs));
        must_be_clean(&image, &what)?;
        oracle.must_be_sound(&[&image], &what)?;
        // And it can be emptied.
        let fs = open(&image)?;
        fs.engine().relocate_group(Logical(0), &|_| true)?.expect("nobody stops it");
        assert!(!groups(&fs, flags).contains(&Logical(0)), "{what}: it is still there");
        drop(fs);
        must_be_clean(&image, &what)?;
        oracle.must_be_sound(&[&image], &what)?;
    }
    Ok(())
}

/// Goal: if a group counts more bytes as used than are recorded in it, as if a record was lost, none of its seemingly
/// free space is discarded, and moving it soon ends with an error that says so. Method: the count in a group's item is
/// changed; trim and relocation of that group and of another.
#[test]
fn a_group_that_lacks_a_record() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("damaged", 512 << 20)?;
    oracle.mkfs(&["-n", "4096"], &[&image])?;
    let fs = open(&image)?;
    let root = fs.root(TreeId::FS)?;
    let mut rng = Rng::new(1);
    let bytes = rng.bytes(3 << 20);
    let file = fs.create(&root, b"file", &NewInode::new(NewKind::File, 0o644))?;
    fs.write(&file, 0, &bytes)?;
    fs.sync()?;
    trim(&fs, &TrimRange::default())?;
    let data = groups(&fs, BlockGroupFlags::DATA)[0];
    let info = fs.engine().space().group(data)?;
    let group = BlockGroupItem {
        used: (info.used.0 + 4096).into(),
        chunk_objectid: Key::FIRST_CHUNK_TREE.into(),
        flags: info.flags.bits().into(),
    };
    let group = Change::put(Key::new(data.0, ItemType::BLOCK_GROUP_ITEM, info.len.0), group.as_bytes().to_vec());
    fs.engine().stage(|staged| staged.put(TreeId::EXTENT, &[group]))?;
    fs.sync()?;
    drop((file, root, fs));

    let fs = open(&image)?;
    // Free space of the group, marked.
    let mark = fs.engine().space().free_runs(data).expect("its free runs")[0].start;
    let marked = rng.bytes(4096);
    fs.engine().volume().write(&[(mark, &marked)])?;
    let error = trim(&fs, &TrimRange::default()).expect_err("it is damaged").to_string();
    assert!(error.contains("block group") && error.contains("used"), "{error}");
    let mut have = vec![0; 4096];
    fs.engine().volume().read_data(mark, &mut have, None)?;
    assert!(have == marked, "what looks free there is discarded");
    let begun = Instant::now();
    let error = fs.engine().relocate_group(data, &|_| true).expect_err("it cannot be emptied").to_string();
    assert!(error.contains("block group") && error.contains("used"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    for start in groups(&fs, BlockGroupFlags::METADATA) {
        fs.engine().relocate_group(start, &|_| true)?.expect("nobody stops it");
    }
    let file = fs.lookup(&fs.root(TreeId::FS)?, b"file")?.unwrap();
    let mut have = vec![0; bytes.len()];
    fs.read(&file, 0, &mut have)?;
    assert!(have == bytes);
    Ok(())
}
