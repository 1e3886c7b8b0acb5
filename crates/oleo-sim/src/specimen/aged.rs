//! File systems that the kernel has made and used for a while, which Oleo must be able to read and to continue with.
//!
//! Normal path: (1) a [`Recipe`] describes how to make and how to mount it; (2) [`make`] runs mkfs.btrfs, mounts it,
//! and fills it with a specimen, a random script with subvolumes and snapshots, compressed and nodatacow files,
//! reflinks; it deletes enough small files that free space becomes bitmaps, and deletes subvolumes just before the last
//! unmount, so that some are not cleaned up yet; (3) it is mounted once more, read-only, and its contents are recorded
//! in an [`Aged`].

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::manifest::{Detail, Manifest};
use crate::oracle::{Oracle, Scratch, run};
use crate::rng::Rng;
use crate::script::{Host, Mix, Target, generate};
use crate::specimen::{self, Options};

/// How an aged file system is made.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// For messages and file names.
    pub name: &'static str,
    /// Everything random follows from it.
    pub seed: u64,
    /// Arguments of mkfs.btrfs, separated by blanks.
    pub mkfs: &'static str,
    /// Arguments of btrfstune, separated by blanks; none: it is not run.
    pub tune: &'static str,
    /// Mount options while it ages.
    pub mount: &'static str,
    /// Number of devices.
    pub devices: usize,
    /// Size of each device, bytes.
    pub device_len: u64,
    /// Steps of the random script.
    pub steps: usize,
    /// The default subvolume is another than the top level.
    pub default_subvol: bool,
}

impl Default for Recipe {
    fn default() -> Recipe {
        Recipe {
            name: "plain",
            seed: 1,
            mkfs: "",
            tune: "",
            mount: "",
            devices: 1,
            device_len: 768 << 20,
            steps: 600,
            default_subvol: false,
        }
    }
}

/// Recipes that cover the features: node sizes, checksums, profiles, compression, old and new trees.
pub fn recipes() -> Vec<Recipe> {
    let plain = Recipe::default();
    vec![
        Recipe { default_subvol: true, ..plain.clone() },
        Recipe {
            name: "zstd-xxhash-4k",
            seed: 2,
            mkfs: "-n 4096 --csum xxhash",
            mount: "compress-force=zstd:3",
            ..plain.clone()
        },
        Recipe {
            name: "lzo-sha256-64k",
            seed: 3,
            mkfs: "-n 65536 --csum sha256",
            mount: "compress=lzo",
            ..plain.clone()
        },
        Recipe {
            name: "zlib-blake2-raid1",
            seed: 4,
            mkfs: "--csum blake2 -d raid1 -m raid1",
            mount: "compress=zlib",
            devices: 2,
            ..plain.clone()
        },
        Recipe {
            name: "raid10-raid1c3",
            seed: 5,
            mkfs: "-d raid10 -m raid1c3",
            devices: 4,
            device_len: 512 << 20,
            default_subvol: true,
            ..plain.clone()
        },
        Recipe {
            name: "raid0-raid1c4",
            seed: 6,
            mkfs: "-d raid0 -m raid1c4",
            devices: 4,
            device_len: 512 << 20,
            ..plain.clone()
        },
        Recipe { name: "mixed", seed: 7, mkfs: "--mixed -n 4096", device_len: 500 << 20, ..plain.clone() },
        Recipe {
            name: "old",
            seed: 8,
            mkfs: "-O ^no-holes -R ^free-space-tree -d single -m single",
            mount: "nospace_cache",
            ..plain.clone()
        },
        Recipe { name: "metadata-uuid", seed: 12, tune: "-f -m", ..plain.clone() },
        Recipe { name: "holes-items", seed: 9, mkfs: "-O ^no-holes -m dup", mount: "max_inline=0", ..plain.clone() },
        Recipe {
            name: "raid5",
            seed: 10,
            mkfs: "-d raid5 -m raid1",
            devices: 3,
            device_len: 512 << 20,
            ..plain.clone()
        },
        Recipe {
            name: "raid6",
            seed: 11,
            mkfs: "-d raid6 -m raid6",
            mount: "compress=zstd",
            devices: 4,
            device_len: 512 << 20,
            ..plain
        },
    ]
}

/// A subvolume as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its id.
    pub id: u64,
    /// Path from the top level.
    pub path: String,
    /// Cannot be written to.
    pub read_only: bool,
}

/// An aged file system, unmounted, and all that is in it.
#[derive(Debug)]
pub struct Aged {
    /// Its devices, as files.
    pub devices: Vec<PathBuf>,
    /// The top level and everything below, nested subvolumes included.
    pub manifest: Manifest,
    /// Every subvolume but the top level.
    pub subvols: Vec<Listed>,
    /// Id of the default subvolume.
    pub default_subvol: u64,
    /// Deleted subvolumes that were not cleaned up when it was unmounted; their number varies from run to run.
    pub dead: usize,
}

impl Aged {
    /// The contents of one subvolume and those nested in it.
    pub fn manifest_of(&self, subvol: &Listed) -> Manifest {
        self.manifest.below(subvol.path.as_bytes())
    }
}

/// What [`look`] records.
pub const DETAIL: Detail = Detail { holes: true, sharing: true, atime_ctime: true, otime: true };

/// Makes an aged file system in `scratch`.
pub fn make(oracle: Oracle, scratch: &Scratch, recipe: &Recipe) -> Result<Aged> {
    age(oracle, scratch, recipe).with_context(|| format!("making the aged file system {recipe:?}"))
}

fn age(oracle: Oracle, scratch: &Scratch, recipe: &Recipe) -> Result<Aged> {
    let devices = scratch.images(recipe.name, recipe.devices, recipe.device_len)?;
    let args: Vec<&str> = recipe.mkfs.split_whitespace().collect();
    oracle.mkfs(&args, &devices)?;
    if !recipe.tune.is_empty() {
        run("btrfstune", recipe.tune.split_whitespace().map(OsStr::new).chain([devices[0].as_os_str()]))?;
    }
    use_it(oracle, devices, recipe)
}

/// Ages an existing file system, whoever made it; then records its contents.
pub fn use_it(oracle: Oracle, devices: Vec<PathBuf>, recipe: &Recipe) -> Result<Aged> {
    let mounted = oracle.mount(&devices, recipe.mount)?;
    let top = mounted.path();
    let mut rng = Rng::new(recipe.seed);

    let made = top.join("specimen");
    fs::create_dir(&made)?;
    // Small node sizes bound the length of attributes.
    specimen::make(&made, &Options { seed: rng.next_u64(), large_len: 3 << 20, wide: 400, ..Options::default() })?;

    let play = top.join("play");
    subvol(&["create"], &[&play])?;
    let mix = Mix { steps: recipe.steps, compress: true, ..Mix::default() };
    let mut host = Host::new(&play, 4096);
    for op in generate(rng.next_u64(), &mix) {
        // Operations may be refused.
        let _ = host.apply(&op);
    }
    rewrite(&play.join("database"), &mut rng)?;
    subvol(&["snapshot", "-r"], &[&play, &top.join("snap-ro")])?;
    fragment(&top.join("fragments"), &mut rng)?;
    mounted.sync()?;
    reflinks(top, &mut rng)?;
    subvol(&["snapshot"], &[&play, &top.join("snap-rw")])?;
    diverge(&top.join("snap-rw"), &mut rng)?;
    if recipe.default_subvol {
        run("btrfs", ["subvolume".as_ref(), "set-default".as_ref(), top.join("snap-rw").as_os_str()])?;
    }
    // Subvolumes that die: one long before the end, three at it.
    let doomed: Vec<PathBuf> = (0..4).map(|i| top.join(format!("doomed-{i}"))).collect();
    for path in &doomed {
        subvol(&["snapshot"], &[&play, path])?;
        diverge(path, &mut rng)?;
    }
    subvol(&["delete", "--commit-each"], &[&doomed[0]])?;
    run("btrfs", ["subvolume".as_ref(), "sync".as_ref(), top.as_os_str()])?;
    mounted.sync()?;
    subvol(&["delete"], &doomed[1..].iter().collect::<Vec<_>>())?;
    mounted.unmount()?;
    look(oracle, devices)
}

/// Records the contents of these devices, mounting them read-only.
pub fn look(oracle: Oracle, devices: Vec<PathBuf>) -> Result<Aged> {
    let mounted = oracle.mount(&devices, "ro,subvolid=5")?;
    let listed = |option: &[&str]| -> Result<Vec<Listed>> {
        let mut args: Vec<&OsStr> = vec!["subvolume".as_ref(), "list".as_ref()];
        args.extend(option.iter().map(OsStr::new));
        args.push(mounted.path().as_os_str());
        Ok(run("btrfs", args)?.lines().filter_map(parse_listed).collect())
    };
    let read_only: Vec<u64> = listed(&["-r"])?.iter().map(|s| s.id).collect();
    let mut subvols = listed(&[])?;
    subvols.iter_mut().for_each(|s| s.read_only = read_only.contains(&s.id));
    let dead = run("btrfs", ["subvolume".as_ref(), "list".as_ref(), "-d".as_ref(), mounted.path().as_os_str()])?
        .lines()
        .count();
    let default = run("btrfs", ["subvolume".as_ref(), "get-default".as_ref(), mounted.path().as_os_str()])?;
    let default_subvol =
        default.split_whitespace().nth(1).and_then(|id| id.parse().ok()).context("the default subvolume")?;
    let manifest = Manifest::of_dir(mounted.path(), DETAIL)?;
    mounted.unmount()?;
    Ok(Aged { devices, manifest, subvols, default_subvol, dead })
}

/// A line of `btrfs subvolume list`: `ID 256 gen 8 top level 5 path a/b`.
fn parse_listed(line: &str) -> Option<Listed> {
    let id = line.strip_prefix("ID ")?.split_whitespace().next()?.parse().ok()?;
    Some(Listed { id, path: line.split_once(" path ")?.1.to_owned(), read_only: false })
}

fn subvol<P: AsRef<Path>>(words: &[&str], paths: &[P]) -> Result<()> {
    let words = words.iter().map(OsStr::new);
    let all: Vec<&OsStr> = [OsStr::new("subvolume")]
        .into_iter()
        .chain(words)
        .chain(paths.iter().map(|p| p.as_ref().as_os_str()))
        .collect();
    run("btrfs", all).map(drop)
}

/// A file that is written in place, here and there, with syncs in between: many extents, partly covered.
fn rewrite(path: &Path, rng: &mut Rng) -> Result<()> {
    use std::os::unix::fs::FileExt;
    const LEN: u64 = 2 << 20;
    let file = fs::File::create(path)?;
    file.write_all_at(&rng.text(LEN.try_into()?), 0)?;
    for round in 0..60 {
        let len = usize::try_from(rng.length(30_000))?;
        file.write_all_at(&rng.bytes(len), rng.below(LEN))?;
        if round % 6 == 0 {
            file.sync_all()?;
        }
    }
    Ok(file.sync_all()?)
}

/// Thousands of extents of one block, every other one freed again: more free runs in one block group than the
/// free-space tree keeps as extents.
fn fragment(dir: &Path, rng: &mut Rng) -> Result<()> {
    const FILES: u32 = 3000;
    fs::create_dir(dir)?;
    for i in 0..FILES {
        fs::write(dir.join(format!("{i}")), rng.bytes(4096))?;
    }
    rustix::fs::syncfs(fs::File::open(dir)?)?;
    for i in (0..FILES).filter(|i| i % 2 == 1 || i % 100 < 30) {
        fs::remove_file(dir.join(format!("{i}")))?;
    }
    Ok(rustix::fs::syncfs(fs::File::open(dir)?)?)
}

/// Whole-file clones, within and across subvolumes; and a directory whose files are neither copied nor checksummed.
fn reflinks(top: &Path, rng: &mut Rng) -> Result<()> {
    let from = top.join("specimen/sizes");
    for to in ["clones", "play/clones"] {
        let to = top.join(to);
        run("cp", ["-a".as_ref(), "--reflink=always".as_ref(), from.as_os_str(), to.as_os_str()])?;
        for name in ["large-text", "text-131073"] {
            overwrite(&to.join(name), rng, 5)?;
        }
    }
    let nocow = top.join("nocow");
    fs::create_dir(&nocow)?;
    run("chattr", ["+C".as_ref(), nocow.as_os_str()])?;
    fs::write(nocow.join("file"), rng.bytes(500_000))?;
    rustix::fs::syncfs(fs::File::open(top)?)?;
    overwrite(&nocow.join("file"), rng, 10)
}

fn overwrite(path: &Path, rng: &mut Rng, times: u32) -> Result<()> {
    use std::os::unix::fs::FileExt;
    let file = fs::File::options().write(true).open(path)?;
    let len = file.metadata()?.len();
    for _ in 0..times {
        let part = usize::try_from(1 + rng.length(20_000.min(len)))?;
        file.write_all_at(&rng.bytes(part), rng.below(len.saturating_sub(part as u64)))?;
    }
    Ok(file.sync_all()?)
}

/// Makes a snapshot differ from its source.
fn diverge(top: &Path, rng: &mut Rng) -> Result<()> {
    overwrite(&top.join("database"), rng, 20)?;
    for i in 0..150 {
        let len = usize::try_from(rng.length(9000))?;
        fs::write(top.join(format!("new in the snapshot {i}")), rng.text(len))?;
    }
    let names: Vec<PathBuf> = fs::read_dir(top)?.filter_map(|e| Some(e.ok()?.path())).collect();
    for path in names.iter().filter(|p| p.is_file() && !p.ends_with("database")) {
        if rng.one_in(5) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
