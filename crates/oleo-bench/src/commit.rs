//! The cost of a commit: time and bytes written per changed item, for batches of 1 to 1 000 000 changes, beside the
//! kernel.
//!
//! One image with a tree of files is made once; each side works on a copy of it, on a loop device in memory. A batch
//! changes the modes of files (one item each), in the order of their creation, or chosen at random; or creates empty
//! files (five items each; both count it as one change). Then everything is synced; that commit is timed. The bytes
//! that the device had to write from the first change to the end of the sync are read from its statistics, on both
//! sides. The kernel is mounted with `commit=3600`, ours never commits by itself, so each batch is one transaction
//! unless memory runs short. Both sides may keep all of the trees in memory: the kernel has the machine's, ours a cache of 1 GiB (by
//! default an image has 64 MiB; a mount a sixteenth of the memory).

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use oleo::fs::{InodeRef, NewInode, NewKind, SetAttr};
use oleo::mkfs::MkfsOptions;
use oleo::{Image, OpenOptions};
use oleo_sim::oracle::{self, Loop, Mounted, Oracle, ReadOnly};

use crate::Args;
use crate::measure::{Better, Report, quantile};
use crate::mounted::drop_caches;
use crate::peer::Peer;

/// Sparse; room for some millions of files, twice (dup).
const IMAGE_LEN: u64 = 16 << 30;
const FILES_PER_DIR: u64 = 1000;
/// Our cache of tree blocks: all that there are.
const CACHE_BYTES: usize = 1 << 30;
const SIZES: [u64; 7] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000];
/// Small batches are repeated; the median counts.
const REPEATS: usize = 5;
/// Batches up to this size are.
const REPEATED_MAX: u64 = 10_000;
/// From this size on we want to write half of what the kernel writes.
const HALVED_MIN: u64 = 1_001;
/// What `stat` of a block device counts in.
const SECTOR: f64 = 512.0;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pattern {
    Sequential,
    Random,
    Create,
}

impl Pattern {
    fn name(self) -> &'static str {
        match self {
            Pattern::Sequential => "chmod, in order",
            Pattern::Random => "chmod, at random",
            Pattern::Create => "create",
        }
    }
}

/// One change.
#[derive(Clone, Copy)]
enum Edit {
    Mode(u64, u32),
    Create(u64),
}

/// The directory of a file, and its name there.
fn place(file: u64) -> (String, String) {
    (format!("d{:05}", file / FILES_PER_DIR), format!("f{file:08}"))
}

/// The changes of a batch; `turn` makes them differ from those before.
fn edits(pattern: Pattern, count: u64, files: u64, turn: u64) -> Vec<Edit> {
    let mode = 0o600 | ((turn as u32 + 1) % 64);
    let start = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (files - count + 1);
    let mut state = turn;
    match pattern {
        Pattern::Sequential => (start..start + count).map(|n| Edit::Mode(n, mode)).collect(),
        Pattern::Create => (0..count).map(|n| Edit::Create(files + (turn << 24) + n)).collect(),
        Pattern::Random => {
            // The first of a shuffle: no file twice.
            let mut all: Vec<u64> = (0..files).collect();
            for i in 0..count {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                all.swap(i as usize, (i + (state >> 24) % (files - i)) as usize);
            }
            all.truncate(count as usize);
            all.into_iter().map(|n| Edit::Mode(n, mode)).collect()
        }
    }
}

trait Side {
    fn edit(&mut self, edits: &[Edit]) -> Result<()>;
    fn sync(&self) -> Result<()>;
}

struct Ours {
    image: Image,
    dir: Option<(String, InodeRef)>,
}

impl Ours {
    fn dir(&mut self, name: String) -> Result<InodeRef> {
        if self.dir.as_ref().is_none_or(|(known, _)| *known != name) {
            let top = self.image.top()?;
            let made = match self.image.find(&name) {
                Ok(dir) => dir,
                Err(_) => self.image.fs().create(&top, name.as_bytes(), &NewInode::new(NewKind::Dir, 0o755))?,
            };
            self.dir = Some((name, made));
        }
        Ok(self.dir.as_ref().context("it was just set")?.1.clone())
    }
}

impl Side for Ours {
    fn edit(&mut self, edits: &[Edit]) -> Result<()> {
        for edit in edits {
            match *edit {
                Edit::Mode(file, mode) => {
                    let (dir, name) = place(file);
                    let file = self.image.find(format!("{dir}/{name}"))?;
                    self.image.fs().set_attr(&file, &SetAttr::default().mode(Some(mode)))?;
                }
                Edit::Create(file) => {
                    let (dir, name) = place(file);
                    let dir = self.dir(dir)?;
                    self.image.fs().create(&dir, name.as_bytes(), &NewInode::new(NewKind::File, 0o600))?;
                }
            }
        }
        Ok(())
    }
    fn sync(&self) -> Result<()> {
        Ok(self.image.sync().map(drop)?)
    }
}

struct Kernel(Mounted);

impl Side for Kernel {
    fn edit(&mut self, edits: &[Edit]) -> Result<()> {
        for edit in edits {
            match *edit {
                Edit::Mode(file, mode) => {
                    let (dir, name) = place(file);
                    let permissions = std::fs::Permissions::from_mode(mode);
                    std::fs::set_permissions(self.0.path().join(dir).join(name), permissions)?;
                }
                Edit::Create(file) => {
                    let (dir, name) = place(file);
                    let dir = self.0.path().join(dir);
                    if file % FILES_PER_DIR == 0 || !dir.exists() {
                        std::fs::create_dir_all(&dir)?;
                    }
                    std::fs::File::create_new(dir.join(name))?;
                }
            }
        }
        Ok(())
    }
    fn sync(&self) -> Result<()> {
        self.0.sync()
    }
}

/// The path of the statistics of the loop device over a file.
fn statistics_of(image: &Path) -> Result<PathBuf> {
    for entry in std::fs::read_dir("/sys/block")? {
        let dir = entry?.path();
        let backing = std::fs::read_to_string(dir.join("loop/backing_file")).unwrap_or_default();
        if Path::new(backing.trim()) == image {
            return Ok(dir.join("stat"));
        }
    }
    Err(anyhow::anyhow!("no loop device over {}", image.display()))
}

/// Bytes that a block device was given to write: the seventh number.
fn written_bytes(statistics: &Path) -> Result<f64> {
    let text = std::fs::read_to_string(statistics)?;
    Ok(text.split_whitespace().nth(6).context("sectors written")?.parse::<f64>()? * SECTOR)
}

/// What one batch cost.
#[derive(Clone, Copy)]
struct Cost {
    /// Seconds of the sync.
    commit: f64,
    /// Seconds from the first change to the end of the sync.
    all: f64,
    bytes: f64,
}

fn batch(side: &mut dyn Side, statistics: &Path, edits: &[Edit]) -> Result<Cost> {
    side.sync()?;
    let before = written_bytes(statistics)?;
    let start = Instant::now();
    side.edit(edits)?;
    let edited = start.elapsed().as_secs_f64();
    side.sync()?;
    let all = start.elapsed().as_secs_f64();
    Ok(Cost { commit: all - edited, all, bytes: written_bytes(statistics)? - before })
}

/// All batches on one side.
fn batches(side: &mut dyn Side, statistics: &Path, plan: &[(Pattern, u64)], files: u64) -> Result<Vec<Cost>> {
    let mut costs = Vec::new();
    let mut turn = 0;
    for &(pattern, count) in plan {
        let mut found = Vec::new();
        for _ in 0..if count <= REPEATED_MAX { REPEATS } else { 1 } {
            turn += 1;
            found.push(batch(side, statistics, &edits(pattern, count, files, turn))?);
        }
        let median = |of: fn(&Cost) -> f64| quantile(&mut found.iter().map(of).collect::<Vec<_>>(), 0.5);
        costs.push(Cost { commit: median(|c| c.commit), all: median(|c| c.all), bytes: median(|c| c.bytes) });
    }
    Ok(costs)
}

fn open(attached: &Loop) -> Result<Image> {
    let mut options = OpenOptions::writing().cache_bytes(CACHE_BYTES);
    options.fs.dirty_inodes_max = usize::MAX;
    Ok(Image::open(attached.path(), &options)?)
}

fn prepare(image: &Path, files: u64) -> Result<()> {
    std::fs::File::create(image)?.set_len(IMAGE_LEN)?;
    let device = oleo::device::FileDevice::open(image, &oleo::device::FileOptions::default().write(true))?;
    oleo::mkfs::make(&[std::sync::Arc::new(device)], &MkfsOptions::default())?;
    let mut side = Ours { image: Image::open(image, &OpenOptions::writing())?, dir: None };
    side.edit(&(0..files).map(Edit::Create).collect::<Vec<_>>())?;
    Ok(side.image.close()?)
}

fn one_side(oracle: &Oracle, image: &Path, peer: Peer, plan: &[(Pattern, u64)], files: u64) -> Result<Vec<Cost>> {
    drop_caches()?;
    if peer == Peer::Kernel {
        let mounted = oracle.mount(&[image], "commit=3600")?;
        let statistics = statistics_of(image)?;
        let mut side = Kernel(mounted);
        let costs = batches(&mut side, &statistics, plan, files)?;
        side.0.unmount()?;
        return Ok(costs);
    }
    let attached = Loop::attach(image, ReadOnly::No)?;
    let mut side = Ours { image: open(&attached)?, dir: None };
    let costs = batches(&mut side, &statistics_of(image)?, plan, files)?;
    let Ours { image: opened, dir } = side;
    drop(dir);
    opened.close()?;
    drop(attached);
    oracle.must_be_sound(&[image], "the image that was measured")?;
    Ok(costs)
}

/// Runs the benchmark.
pub fn run(args: &Args, report: &mut Report) -> Result<()> {
    let oracle = oracle::oracle().context("this benchmark needs root, loop devices and the kernel's btrfs")?;
    let scratch = oracle.scratch()?;
    let files = args.files;
    ensure!(files > 0, "there must be files to change");
    report.note(&format!(
        "{files} files in directories of {FILES_PER_DIR}; up to {REPEATED_MAX} changes: median of {REPEATS}"
    ));
    let patterns = [Pattern::Sequential, Pattern::Random, Pattern::Create];
    let plan: Vec<(Pattern, u64)> = patterns
        .into_iter()
        .flat_map(|pattern| SIZES.map(|size| (pattern, size)))
        .filter(|(pattern, size)| *size <= files && args.wants(pattern.name()))
        .collect();
    let mine = scratch.path().join("ours.img");
    let theirs = scratch.path().join("kernel.img");
    prepare(&mine, files)?;
    oracle::run("cp", ["--sparse=always".as_ref(), mine.as_os_str(), theirs.as_os_str()])?;
    let ours = one_side(&oracle, &mine, Peer::Oleo, &plan, files)?;
    std::fs::remove_file(&mine)?;
    let kernel = one_side(&oracle, &theirs, Peer::Kernel, &plan, files)?;
    for ((&(pattern, count), ours), kernel) in plan.iter().zip(&ours).zip(&kernel) {
        let name = |what: &str| format!("{} {count}: {what}", pattern.name());
        let per = |whole: f64| whole / count as f64;
        let peer = Peer::Kernel.name();
        let less = |what: &str, unit: &str, ours: f64, theirs: f64, aim: &str| {
            report.compare(&name(what), unit, Better::Less, ours, peer, theirs, aim);
        };
        let aim = if count >= HALVED_MIN { "2x" } else { "1x" };
        less("written", "B/item", per(ours.bytes), per(kernel.bytes), aim);
        less("blocks", "/item", per(ours.bytes) / 16384.0, per(kernel.bytes) / 16384.0, "-");
        less("commit", "us/item", per(ours.commit) * 1e6, per(kernel.commit) * 1e6, "1x");
        less("all", "us/item", per(ours.all) * 1e6, per(kernel.all) * 1e6, "1x");
    }
    Ok(())
}
