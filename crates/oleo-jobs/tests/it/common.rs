//! Shared by the tests of jobs: a world of subvolumes that changes at random, and quota's numbers from three sources.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use oleo_device::{Device, FileDevice, FileOptions};
use oleo_format::{QgroupStatusFlags, TreeId};
use oleo_fs::data::CloneRange;
use oleo_fs::{Fs, FsOptions, InodeRef, NewInode, NewKind, NewSubvol, SnapshotOptions};
use oleo_jobs::{QgroupChange, Recount, qgroup_change, quota, shares};
use oleo_sim::oracle::{Oracle, run};
use oleo_sim::rng::Rng;
use oleo_txn::{Engine, EngineOptions, QgroupId};
use oleo_volume::{OpenOptions, Volume};

pub const SECTOR: u64 = 4096;

pub fn open(image: &Path) -> anyhow::Result<Fs> {
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(image, &FileOptions::default().write(true))?);
    let volume = Volume::open(vec![device], &OpenOptions { write: true, ..OpenOptions::default() })?;
    let engine = Engine::open(Arc::new(volume), &EngineOptions::default())?;
    Ok(Fs::open(engine, &FsOptions::default())?)
}

/// Our checker finds no error.
pub fn must_be_clean(image: &Path, what: &str) -> anyhow::Result<()> {
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(image, &FileOptions::default())?);
    let volume = Volume::open(vec![device], &OpenOptions::default())?;
    let report = oleo_check::check(&volume, &oleo_check::CheckOptions::default().data(true))?;
    assert!(!report.has_errors(), "{what}: {:#?}", report.findings);
    Ok(())
}

pub type Numbers = BTreeMap<QgroupId, (u64, u64)>;

/// Quota's numbers.
pub fn said(fs: &Fs) -> Numbers {
    quota(fs).expect("quota is on").groups.into_iter().map(|(id, g)| (id, (g.rfer, g.excl))).collect()
}

/// The numbers of a count from the roots down of the same groups, as of the last commit.
pub fn counted(fs: &Fs) -> anyhow::Result<Numbers> {
    let base = fs.engine().scan_base(false)?;
    let shares = shares(fs.engine(), &base, &|| true)?.unwrap();
    let groups: BTreeMap<QgroupId, _> = quota(fs).unwrap().groups.into_iter().collect();
    let mut numbers: Numbers = groups.keys().map(|id| (*id, (0, 0))).collect();
    for (trees, bytes) in shares {
        let mut in_group: BTreeMap<QgroupId, usize> = BTreeMap::new();
        for tree in trees.iter() {
            let mut todo = vec![QgroupId::of(*tree)];
            let mut seen = std::collections::BTreeSet::new();
            while let Some(id) = todo.pop() {
                if groups.contains_key(&id) && seen.insert(id) {
                    *in_group.entry(id).or_default() += 1;
                    todo.extend(&groups[&id].parents);
                }
            }
        }
        for (id, n) in in_group {
            let (rfer, excl) = numbers.get_mut(&id).unwrap();
            *rfer += bytes;
            *excl += if n == trees.len() { bytes } else { 0 };
        }
    }
    Ok(numbers)
}

pub fn must_be_exact(fs: &Fs, what: &str) -> anyhow::Result<()> {
    let flags = quota(fs).unwrap().flags;
    assert_eq!(flags, QgroupStatusFlags::ON, "{what}");
    let (said, counted) = (said(fs), counted(fs)?);
    let wrong: Vec<_> = said.iter().filter(|(id, n)| counted.get(id) != Some(n)).collect();
    let want: Vec<_> = wrong.iter().map(|(id, _)| (*id, counted.get(id))).collect();
    assert!(wrong.is_empty(), "{what}: says {wrong:?}, counted {want:?}");
    Ok(())
}

/// The numbers of the kernel's own rescan.
pub fn kernel_counts(oracle: Oracle, image: &Path, what: &str) -> anyhow::Result<(Numbers, Numbers)> {
    let mounted = oracle.mount(&[image], "")?;
    let at = mounted.path().display().to_string();
    let show = || -> anyhow::Result<Numbers> {
        let text = run("btrfs", ["qgroup", "show", "--raw", &at])?;
        let mut numbers = Numbers::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let Some((level, number)) = words.first().and_then(|id| id.split_once('/')) else { continue };
            let (Ok(level), Ok(number)) = (level.parse(), number.parse()) else { continue };
            numbers.insert(QgroupId::new(level, number), (words[1].parse()?, words[2].parse()?));
        }
        assert!(!numbers.is_empty(), "{what}: {text}");
        Ok(numbers)
    };
    let before = show()?;
    run("btrfs", ["quota", "rescan", "-w", &at])?;
    let after = show()?;
    mounted.unmount()?;
    Ok((before, after))
}

pub struct World {
    pub fs: Fs,
    pub rng: Rng,
    pub subvols: Vec<TreeId>,
    pub made: u32,
}

/// Creates the groups of two higher levels that a [`World`] joins and leaves.
pub fn create_levels(fs: &Fs) -> anyhow::Result<()> {
    for id in [QgroupId::new(1, 0), QgroupId::new(1, 1), QgroupId::new(2, 0)] {
        qgroup_change(fs, QgroupChange::Create(id), Recount::Now)?;
    }
    Ok(())
}

/// Node sizes in turns: small blocks and usual ones.
pub fn nodesize(seed: u64) -> &'static str {
    if seed.is_multiple_of(2) { "4096" } else { "16384" }
}

impl World {
    pub fn new(fs: Fs, seed: u64) -> World {
        World { fs, rng: Rng::new(seed), subvols: vec![TreeId::FS], made: 0 }
    }

    /// A random history of this many steps. After about every third it is committed and `verify` is called, and
    /// sometimes the volume is reopened; at the end it is cleaned and verified once more.
    pub fn live(
        mut self,
        image: &Path,
        steps: usize,
        what: &str,
        verify: impl Fn(&Fs, &str) -> anyhow::Result<()>,
    ) -> anyhow::Result<World> {
        let mut done = Vec::new();
        for step in 0..steps {
            done.push(self.step()?);
            if self.rng.one_in(3) {
                self.fs.sync()?;
                let last = &done[done.len().saturating_sub(8)..];
                verify(&self.fs, &format!("{what}, step {step}, after {last:#?}"))?;
            }
            if self.rng.one_in(40) {
                self.fs.sync()?;
                drop(self.fs);
                self.fs = open(image)?;
            }
        }
        while self.fs.clean(1000)? {}
        self.fs.sync()?;
        verify(&self.fs, &format!("{what} at the end"))?;
        Ok(self)
    }

    fn some_subvol(&mut self) -> TreeId {
        self.subvols[self.rng.below(self.subvols.len() as u64) as usize]
    }

    fn file(&mut self, tree: TreeId) -> anyhow::Result<InodeRef> {
        let root = self.fs.root(tree)?;
        let name = format!("file{}", self.rng.below(8));
        if let Some(file) = self.fs.lookup(&root, name.as_bytes())? {
            return Ok(file);
        }
        Ok(self.fs.create(&root, name.as_bytes(), &NewInode::new(NewKind::File, 0o644))?)
    }

    pub fn step(&mut self) -> anyhow::Result<String> {
        let fs = self.fs.clone();
        let tree = self.some_subvol();
        Ok(match self.rng.below(24) {
            0..=7 => {
                let file = self.file(tree)?;
                let (at, len) = (self.rng.below(60) * SECTOR, self.rng.length(120_000) + 1);
                fs.write(&file, at, &self.rng.bytes(len as usize))?;
                format!("write {tree} {at} {len}")
            }
            8 => {
                let file = self.file(tree)?;
                let size = self.rng.below(100_000);
                fs.truncate(&file, size)?;
                format!("truncate {tree} {size}")
            }
            9..=11 => {
                let (src, other) = (self.file(tree)?, self.some_subvol());
                let dst = self.file(other)?;
                fs.flush(&src)?;
                let size = fs.attr(&src).size / SECTOR * SECTOR;
                let from = self.rng.below(size / SECTOR + 1) * SECTOR;
                let to = self.rng.below(40) * SECTOR;
                let range = CloneRange { from, len: size - from, to };
                let done = if size > from { fs.clone_range(&src, &dst, &range) } else { Ok(()) };
                // Overlapping ranges of one file are refused.
                format!("clone {tree} {from}.. -> {other} {to}: {}", done.is_ok())
            }
            12 => {
                let root = fs.root(tree)?;
                let names: Vec<u32> = (0..30).collect();
                for n in &names {
                    let name = format!("small{}", self.made * 100 + n);
                    let file = fs.create(&root, name.as_bytes(), &NewInode::new(NewKind::File, 0o644))?;
                    fs.write(&file, 0, &self.rng.bytes(1500))?;
                }
                self.made += 1;
                format!("30 small files in {tree}")
            }
            13..=15 if self.subvols.len() < 14 => {
                let (top, name) = (fs.root(TreeId::FS)?, format!("snap{}", self.made));
                self.made += 1;
                let id = fs.snapshot(tree, &top, name.as_bytes(), SnapshotOptions::default())?;
                self.subvols.push(id);
                format!("snapshot {id} of {tree}")
            }
            16 if self.subvols.len() < 14 => {
                let (top, name) = (fs.root(TreeId::FS)?, format!("subvol{}", self.made));
                self.made += 1;
                let id = fs.subvol_create(&top, name.as_bytes(), &NewSubvol::default())?;
                self.subvols.push(id);
                format!("subvolume {id}")
            }
            17 if tree != TreeId::FS => {
                fs.subvol_delete(tree)?;
                self.subvols.retain(|id| *id != tree);
                format!("delete {tree}")
            }
            18 => format!("clean: {}", fs.clean(5)?),
            19 => {
                while fs.clean(1000)? {}
                "clean all".into()
            }
            20 => {
                let (member, parent) = self.some_pair();
                let done = qgroup_change(&fs, QgroupChange::Assign(member, parent), Recount::Now).is_ok();
                format!("assign {member} to {parent}: {done}")
            }
            21 => {
                let (member, parent) = self.some_pair();
                let done = qgroup_change(&fs, QgroupChange::Remove(member, parent), Recount::Now).is_ok();
                format!("remove {member} from {parent}: {done}")
            }
            _ => {
                let file = self.file(tree)?;
                let at = self.rng.below(30) * SECTOR;
                fs.punch_hole(&file, at, self.rng.below(9) * SECTOR + 1)?;
                format!("punch {tree} {at}")
            }
        })
    }

    fn some_pair(&mut self) -> (QgroupId, QgroupId) {
        let (tree, n) = (self.some_subvol(), self.rng.below(2));
        match self.rng.below(4) {
            0 => (QgroupId::new(1, n), QgroupId::new(2, 0)),
            _ => (QgroupId::of(tree), QgroupId::new(1, n)),
        }
    }
}
