//! Where an inode believes that its extents end. Reads of the extent map go by that and do not ask the tree, so a bound that is too low hides extents. Everything that writes extent items is
//! here: it lives in this crate's tests since relocation and defragmentation do.

use std::sync::Arc;

use anyhow::Result;
use oleo_device::{Device, MemDevice};
use oleo_format::{BlockGroupFlags, Compression, TreeId};
use oleo_fs::data::{CloneRange, Compress, Encoded, KeepSize, Policy, Prepared, Stamp, Whole};
use oleo_fs::{Fs, FsError, FsOptions, InodeRef, NewInode, NewKind, SnapshotOptions};
use oleo_jobs::{DefragOptions, defragment};
use oleo_mkfs::{FeatureSet, MkfsOptions};
use oleo_sim::rng::Rng;
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};

const SECTOR: u64 = 4096;
/// Files are shorter.
const LEN_MAX: u64 = 1 << 20;
const FILES: u64 = 5;
const STEPS: usize = 700;

fn open(device: &Arc<MemDevice>) -> Result<Fs> {
    let device: Arc<dyn Device> = device.clone();
    let volume = Volume::open(vec![device], &OpenOptions { write: true, ..OpenOptions::default() })?;
    let engine = Engine::open(Arc::new(volume), &EngineOptions::default())?;
    let fs = Fs::open(engine, &FsOptions::default())?;
    oleo_fs::replay(&fs)?;
    Ok(fs)
}

/// Files of some subvolumes, which stay in memory as long as they are here.
struct World {
    device: Arc<MemDevice>,
    fs: Fs,
    subvols: Vec<TreeId>,
    files: Vec<(TreeId, String, InodeRef)>,
    /// How often a bound was compared that says more than that there is nothing.
    compared: u64,
}

impl World {
    fn new(no_holes: bool) -> Result<World> {
        let device = Arc::new(MemDevice::new(1 << 30));
        let features = FeatureSet::default().no_holes(no_holes);
        // Small blocks, so that files have several leaves.
        let options = MkfsOptions::default().features(features).nodesize(Some(4096)).seed([7; 32]);
        oleo_mkfs::make(&[device.clone() as Arc<dyn Device>], &options)?;
        let fs = open(&device)?;
        let mut world = World { device, fs, subvols: vec![TreeId::FS], files: Vec::new(), compared: 0 };
        for n in 0..FILES {
            world.create(&format!("f{n}"))?;
        }
        Ok(world)
    }

    fn create(&mut self, name: &str) -> Result<()> {
        let root = self.fs.root(TreeId::FS)?;
        let file = self.fs.create(&root, name.as_bytes(), &NewInode::new(NewKind::File, 0o644))?;
        self.files.push((TreeId::FS, name.to_owned(), file));
        Ok(())
    }

    /// All files of the subvolumes, as they are found.
    fn look(&mut self) -> Result<()> {
        self.files.clear();
        for tree in self.subvols.clone() {
            let root = self.fs.root(tree)?;
            for name in (0..FILES).map(|n| format!("f{n}")) {
                if let Some(file) = self.fs.lookup(&root, name.as_bytes())? {
                    self.files.push((tree, name, file));
                }
            }
        }
        Ok(())
    }

    fn any(&self, rng: &mut Rng) -> InodeRef {
        self.files[rng.below(self.files.len() as u64) as usize].2.clone()
    }

    /// No bound is too low.
    fn compare(&mut self, what: &str) -> Result<()> {
        for (tree, name, file) in &self.files {
            let (believed, end) = self.fs.extents_end(file)?;
            if let Some(believed) = believed {
                assert!(end <= believed, "{what}: {name} of {tree} reaches to {end}, and {believed} is believed");
                self.compared += u64::from(believed > 0);
            }
        }
        Ok(())
    }
}

/// A place in a file, mostly within what it has.
fn place(rng: &mut Rng) -> (u64, u64) {
    let at = rng.below(LEN_MAX);
    let len_max = [100, SECTOR, 16 * SECTOR, 60 * SECTOR][rng.below(4) as usize];
    let len = 1 + rng.below(len_max);
    match rng.below(3) {
        0 => (at, len),
        1 => (at / SECTOR * SECTOR, len.next_multiple_of(SECTOR)),
        _ => (at / 8 / SECTOR * SECTOR, len),
    }
}

/// Bytes that can be compressed, or not.
fn bytes(rng: &mut Rng, len: u64) -> Vec<u8> {
    if rng.one_in(2) { vec![rng.below(256) as u8; len as usize] } else { rng.bytes(len as usize) }
}

/// Whole sectors, or the end of a file.
fn range(rng: &mut Rng, size: u64) -> CloneRange {
    let from = rng.below(size / SECTOR + 1) * SECTOR;
    let len = [0, (1 + rng.below(20)) * SECTOR][rng.below(2) as usize];
    CloneRange { from, len, to: rng.below(LEN_MAX / SECTOR) * SECTOR }
}

/// Data that is compressed already, as a stream brings it.
fn encoded(world: &World, file: &InodeRef, rng: &mut Rng) -> Result<(), FsError> {
    let policy = world.fs.policy(file)?;
    let ram_len = (2 + rng.below(30)) * SECTOR;
    let plain = vec![rng.below(256) as u8; ram_len as usize];
    let compress = |compression| oleo_format::compress(compression, 3, &plain, SECTOR as u32);
    let Some(data) = compress(Compression::Zlib) else { return Ok(()) };
    let skip = rng.below(ram_len / SECTOR) * SECTOR;
    let len = ram_len - skip;
    let encoded = Encoded { data: &data, compression: Compression::Zlib, ram_len, skip, len };
    let at = rng.below(LEN_MAX / SECTOR) * SECTOR;
    match Prepared::encoded(&encoded, at, Whole::Part, &policy) {
        Some(prepared) => world.fs.install_many(&[(file.clone(), prepared)], Stamp::Now),
        None => Ok(()),
    }
}

fn step(world: &mut World, rng: &mut Rng, nth: usize) -> Result<&'static str> {
    let file = world.any(rng);
    let fs = world.fs.clone();
    let (at, len) = place(rng);
    let keep = if rng.one_in(2) { KeepSize::Yes } else { KeepSize::No };
    let size = fs.attr(&file).size;
    let few = 1 + rng.below(3000);
    let done: (&str, Result<(), FsError>) = match rng.below(24) {
        0..4 => ("write", fs.write(&file, at, &bytes(rng, len))),
        4 => ("write a little at the start", fs.write(&file, 0, &bytes(rng, few))),
        5 => ("truncate", fs.truncate(&file, [0, at, size / 2, size.saturating_sub(1)][rng.below(4) as usize])),
        6 => ("preallocate", fs.preallocate(&file, at, len, keep)),
        7 => ("punch", fs.punch_hole(&file, at, len)),
        8 => ("zero", fs.zero_range(&file, at, len, keep)),
        9 => ("clone", fs.clone_range(&world.any(rng), &file, &range(rng, size))),
        10 => ("dedupe", fs.dedupe_range(&world.any(rng), &file, &range(rng, size)).map(drop)),
        11 => ("flush", fs.flush(&file)),
        12 => ("fsync", fs.fsync(&file)),
        13 => ("commit", fs.commit().map(drop)),
        14 => ("sync", fs.sync().map(drop)),
        15 => ("write all", fs.write_all(&file, &bytes(rng, len), Stamp::Now)),
        16 => {
            let compress =
                Some(Compress { algorithm: Compression::Zstd, level: 1, force: false }).filter(|_| rng.one_in(2));
            let policy = Policy { compress, ..fs.policy(&file)? };
            let prepared =
                Prepared::new(bytes(rng, len.next_multiple_of(SECTOR)), at / SECTOR * SECTOR, Whole::Part, &policy);
            ("install", fs.install_many(&[(file.clone(), prepared)], Stamp::Now))
        }
        17 => ("install what is compressed", encoded(world, &file, rng)),
        18 => {
            let compress = Some((Compression::Zlib, 3)).filter(|_| rng.one_in(2));
            let options = DefragOptions::default().compress(compress);
            defragment(&fs, &file, &options, &mut |_, _| ())?;
            ("defragment", Ok(()))
        }
        19 => {
            let groups = fs.engine().space().groups();
            let data: Vec<_> = groups.iter().filter(|group| group.flags.contains(BlockGroupFlags::DATA)).collect();
            if let Some(group) = data.get(rng.below(data.len().max(1) as u64) as usize) {
                fs.engine().relocate_group(group.start, &|_| true)?;
            }
            ("relocate", Ok(()))
        }
        20 => {
            let name = format!("s{nth}");
            let tree = fs.snapshot(TreeId::FS, &fs.root(TreeId::FS)?, name.as_bytes(), SnapshotOptions::default())?;
            world.subvols.push(tree);
            world.subvols.truncate(4);
            world.look()?;
            ("snapshot", Ok(()))
        }
        21 => {
            let (tree, name, file) = world.files.swap_remove(rng.below(world.files.len() as u64) as usize);
            drop(file);
            fs.unlink(&fs.root(tree)?, name.as_bytes())?;
            if tree == TreeId::FS {
                world.create(&name)?;
            }
            ("delete", Ok(()))
        }
        22 => {
            // What is not held is forgotten, and comes from the trees again.
            world.files.clear();
            fs.shed();
            fs.engine().blocks().forget_all();
            world.look()?;
            ("forget", Ok(()))
        }
        _ => {
            // As after a crash: what was synced of files is in the log.
            fs.fsync(&file)?;
            world.device = Arc::new(world.device.copy());
            world.files.clear();
            world.fs = open(&world.device)?;
            let known = |tree: &TreeId| world.fs.root(*tree).is_ok();
            world.subvols.retain(known);
            world.look()?;
            for name in (0..FILES).map(|n| format!("f{n}")) {
                if !world.files.iter().any(|(tree, known, _)| *tree == TreeId::FS && *known == name) {
                    world.create(&name)?;
                }
            }
            ("crash", Ok(()))
        }
    };
    match done {
        // Ranges that do not fit what the files are.
        (_, Ok(()) | Err(FsError::Invalid(_) | FsError::NotSupported(_))) => Ok(done.0),
        (what, Err(e)) => Err(anyhow::Error::from(e).context(what)),
    }
}

/// Goal: whatever writes extents, no inode believes that they end before they do. Method: random operations on a few files and their snapshots, among them all that write extent items: writes,
/// truncation, preallocation, holes, clones, what streams install, defragmentation, relocation, replay of logs; after each the bound of every file in memory is compared with its items.
#[test]
fn no_bound_is_too_low() -> Result<()> {
    for (seed, no_holes) in [(1, true), (2, true), (3, false)] {
        let mut rng = Rng::new(seed);
        let mut world = World::new(no_holes)?;
        for nth in 0..STEPS {
            let what = step(&mut world, &mut rng, nth)?;
            world.compare(&format!("seed {seed}, step {nth}, {what}"))?;
        }
        assert!(world.compared > STEPS as u64 / 2, "{} bounds were compared", world.compared);
    }
    Ok(())
}
