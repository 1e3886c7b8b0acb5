//! Groups that move beside writers and deletions.

use super::*;

/// Goal: writers, cloners and deleters continue meanwhile, and lose nothing. Method: a thread changes the world while
/// all groups move repeatedly; at the end its files have the contents of their last sync.
#[test]
fn beside_writers() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("relocate", 1 << 30)?;
    oracle.mkfs(&["-n", "4096"], &[&image])?;
    let fs = open(&image)?;
    quota_enable(&fs)?;
    let mut world = World::new(fs.clone(), 77);
    let done = AtomicBool::new(false);
    let (world, all) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| -> anyhow::Result<World> {
            for step in 0..500 {
                if let Err(e) = world.step() {
                    done.store(true, Ordering::Relaxed);
                    return Err(e);
                }
                if step % 7 == 0 {
                    world.fs.sync()?;
                }
            }
            done.store(true, Ordering::Relaxed);
            Ok(world)
        });
        let mut all = Moved::default();
        let kinds = BlockGroupFlags::DATA | BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM;
        let mut failed = None;
        while !done.load(Ordering::Relaxed) && failed.is_none() {
            for start in groups(&fs, kinds) {
                match fs.engine().relocate_group(start, &|_| !done.load(Ordering::Relaxed)) {
                    Ok(moved) => all += moved.unwrap_or_default(),
                    // Both may be short of room for a moment.
                    Err(TxnError::NoSpace { .. }) => {}
                    Err(e) => failed = Some(e),
                }
            }
        }
        let world = writer.join().expect("the writer did not panic")?;
        if let Some(e) = failed {
            return Err(e.into());
        }
        Ok::<_, anyhow::Error>((world, all))
    })?;
    assert!(all.blocks > 0 && all.extents > 0, "{all:?}");
    while fs.clean(1000)? {}
    fs.sync()?;
    must_be_exact(&fs, "in the end")?;
    let known = Known::of(&world);
    drop(world);
    let data = contents(&fs, &known)?;
    let ours = said(&fs);
    drop(fs);
    oracle.must_be_sound(&[&image], "beside writers")?;
    let (_, after) = kernel_counts(oracle, &image, "beside writers")?;
    assert_eq!(ours, after, "ours | the kernel's rescan");
    assert_eq!(contents(&open(&image)?, &known)?, data, "read again");
    Ok(())
}

/// Goal: writers in place, into preallocated space or a file that is not copied on write, lose nothing when the data
/// moves. Method: two threads write sectors of two such files and remember them, syncing now and then, while all data
/// moves repeatedly; then the remembered sectors are compared after reopening.
#[test]
fn beside_writers_in_place() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("relocate", 1 << 30)?;
    oracle.mkfs(&["-n", "4096"], &[&image])?;
    let fs = open(&image)?;
    let top = fs.root(TreeId::FS)?;
    const SECTORS: u64 = 1500;
    let mut files = Vec::new();
    for name in ["preallocated", "not copied"] {
        let dir = fs.create(&top, format!("{name}.d").as_bytes(), &NewInode::new(NewKind::Dir, 0o755))?;
        if name == "not copied" {
            let flags = Some(InodeFlags::NODATACOW | InodeFlags::NODATASUM);
            fs.set_attr(&dir, &SetAttr::default().flags(flags))?;
        }
        let file = fs.create(&dir, name.as_bytes(), &NewInode::new(NewKind::File, 0o644))?;
        fs.preallocate(&file, 0, SECTORS * SECTOR, KeepSize::No)?;
        files.push((name, file));
    }
    fs.sync()?;
    let done = AtomicBool::new(false);
    let (models, all) = std::thread::scope(|scope| {
        let writers: Vec<_> = files
            .iter()
            .zip(1..)
            .map(|((name, file), seed)| {
                let fs = &fs;
                scope.spawn(move || -> anyhow::Result<(String, Vec<u8>)> {
                    let mut rng = Rng::new(seed);
                    let mut model = vec![0; (SECTORS * SECTOR) as usize];
                    for step in 0..1500 {
                        let (at, len) = (rng.below(SECTORS) * SECTOR, rng.below(3) * SECTOR + SECTOR);
                        let len = len.min(SECTORS * SECTOR - at);
                        let bytes = rng.bytes(len as usize);
                        fs.write(file, at, &bytes)?;
                        model[at as usize..(at + len) as usize].copy_from_slice(&bytes);
                        match step % 10 {
                            0 => fs.flush(file)?,
                            5 => fs.fsync(file)?,
                            _ => {}
                        }
                    }
                    Ok(((*name).to_string(), model))
                })
            })
            .collect();
        let mover = scope.spawn(|| -> anyhow::Result<Moved> {
            let mut all = Moved::default();
            while !done.load(Ordering::Relaxed) {
                all += move_all(&fs, BlockGroupFlags::DATA)?;
            }
            Ok(all)
        });
        let models: Vec<_> = writers.into_iter().map(|writer| writer.join().expect("no writer panicked")).collect();
        done.store(true, Ordering::Relaxed);
        let all = mover.join().expect("the mover did not panic")?;
        Ok::<_, anyhow::Error>((models.into_iter().collect::<Result<Vec<_>, _>>()?, all))
    })?;
    assert!(all.extents > 20, "{all:?}");
    fs.sync()?;
    drop((files, top, fs));
    oracle.must_be_sound(&[&image], "beside writers in place")?;
    let fs = open(&image)?;
    for (name, model) in models {
        let dir = fs.lookup(&fs.root(TreeId::FS)?, format!("{name}.d").as_bytes())?.unwrap();
        let file = fs.lookup(&dir, name.as_bytes())?.unwrap();
        let mut out = vec![0; model.len()];
        fs.read(&file, 0, &mut out)?;
        let wrong = (0..SECTORS as usize).find(|n| out[n * 4096..][..4096] != model[n * 4096..][..4096]);
        assert_eq!(wrong, None, "{name}: the first sector that is not what was written last");
    }
    Ok(())
}

/// Goal: groups move while a subvolume is being deleted in steps, and what is gone already is not looked up. Method: a
/// subvolume with a snapshot that shares some of it is deleted in small steps; after each, new files overwrite what
/// became free, and everything moves.
#[test]
fn beside_a_deletion() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("relocate", 1 << 30)?;
    oracle.mkfs(&["-n", "4096"], &[&image])?;
    let fs = open(&image)?;
    let top = fs.root(TreeId::FS)?;
    let subvol = fs.subvol_create(&top, b"v", &NewSubvol::default())?;
    let root = fs.root(subvol)?;
    let mut rng = Rng::new(3);
    let write = |dir: &InodeRef, name: String, rng: &mut Rng| -> anyhow::Result<()> {
        let file = fs.create(dir, name.as_bytes(), &NewInode::new(NewKind::File, 0o644))?;
        let len = if rng.one_in(4) { 9000 } else { 500 };
        fs.write(&file, 0, &rng.bytes(len))?;
        Ok(())
    };
    for n in 0..3000 {
        write(&root, format!("file{n}"), &mut rng)?;
    }
    fs.sync()?;
    fs.snapshot(subvol, &top, b"w", SnapshotOptions::default())?;
    for n in (0..3000).step_by(5) {
        let file = fs.lookup(&root, format!("file{n}").as_bytes())?.unwrap();
        fs.write(&file, 0, &rng.bytes(700))?;
    }
    fs.sync()?;
    drop(root);
    fs.subvol_delete(subvol)?;
    let (mut steps, mut made) = (0, 0);
    while fs.clean(60)? {
        steps += 1;
        fs.sync()?;
        for _ in 0..60 {
            write(&top, format!("new{made}"), &mut rng)?;
            made += 1;
        }
        fs.sync()?;
        if steps % 3 == 0 {
            // The second time, the dropped blocks are in groups that are gone.
            for _ in 0..2 {
                fs.engine().blocks().forget_all();
                move_all(&fs, BlockGroupFlags::METADATA | BlockGroupFlags::DATA)?;
            }
        }
    }
    assert!(steps > 10, "{steps} steps");
    fs.sync()?;
    drop((top, fs));
    oracle.must_be_sound(&[&image], "moved beside a deletion")?;
    Ok(())
}
