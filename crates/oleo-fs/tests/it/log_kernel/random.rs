//! Random operations, syncs and crashes, against a memory of what was synced.
//!
//! After a crash, of what was in the last commit or was synced since and still lives: everything is there; an inode's names
//! are all those of one moment since the last commit; a synced inode has the names, the content and the attributes that
//! it had then, unless something changed since; a synced directory has the entries of then, or of later.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use oleo_fs::data::{CloneRange, KeepSize};
use oleo_fs::{FileKind, Follow, FsError, FsOptions, InodeRef, NewInode, NewKind, RenameMode, XattrMode};
use oleo_sim::budget::budget;
use oleo_sim::rng::Rng;
use oleo_txn::Need;

use crate::log_kernel::fixture::{Fixture, forms};

type Name = (u64, Vec<u8>);
type Names = BTreeSet<Name>;
/// Content and attributes.
type State = (Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>);

/// What is known of one inode.
#[derive(Clone, Default)]
struct Known {
    /// All sets of names that it had since the last commit; the last is that of now.
    names: Vec<Names>,
    /// Content and attributes when it was last durable; `None` where they have changed since or are not known.
    state: Option<State>,
    /// It has to be there as long as it has names.
    durable: bool,
    /// The place in `names` from which on its names count: when it was last synced itself.
    since: usize,
}

struct World<'a> {
    fixture: &'a Fixture,
    rng: Rng,
    known: BTreeMap<u64, Known>,
    steps: Vec<String>,
    /// Names that have led somewhere at every moment since they were durable.
    held: Names,
}

const FILES: [&str; 5] = ["f", "g", "h", "i", "j"];
const DIRS: [&str; 3] = ["d", "e", "k"];

impl World<'_> {
    fn dir(&mut self) -> InodeRef {
        let mut at = self.fixture.top();
        while !self.rng.one_in(3) {
            let name = *self.rng.pick(&DIRS).unwrap();
            match self.fixture.fs.lookup(&at, name.as_bytes()).unwrap() {
                Some(dir) if self.fixture.fs.attr(&dir).kind == FileKind::Dir => at = dir,
                _ => break,
            }
        }
        at
    }

    fn name(&mut self) -> &'static str {
        if self.rng.one_in(4) { self.rng.pick(&DIRS).unwrap() } else { self.rng.pick(&FILES).unwrap() }
    }

    /// An entry that exists, most of the time.
    fn entry(&mut self) -> (InodeRef, &'static str) {
        for _ in 0..10 {
            let (dir, name) = (self.dir(), self.name());
            if self.fixture.fs.lookup(&dir, name.as_bytes()).unwrap().is_some() {
                return (dir, name);
            }
        }
        (self.dir(), self.name())
    }

    fn file(&mut self) -> Option<InodeRef> {
        let (dir, name) = self.entry();
        let found = self.fixture.fs.lookup(&dir, name.as_bytes()).unwrap()?;
        (self.fixture.fs.attr(&found).kind == FileKind::File).then_some(found)
    }

    /// One operation, which may be refused.
    fn step(&mut self) -> Result<String, FsError> {
        let fs = &self.fixture.fs.clone();
        let number = |dir: &InodeRef| dir.ino().0;
        Ok(match self.rng.below(20) {
            0..=3 => {
                let (dir, name) = (self.dir(), self.name());
                let kind = match name {
                    name if DIRS.contains(&name) => NewKind::Dir,
                    "j" => NewKind::Symlink(b"target"),
                    _ => NewKind::File,
                };
                let made = fs.create(&dir, name.as_bytes(), &NewInode::new(kind, 0o755))?;
                format!("create {} {name} -> {}", number(&dir), number(&made))
            }
            4..=6 => {
                let Some(file) = self.file() else { return Ok(String::new()) };
                let at = self.rng.below(60_000);
                let len = 1 + self.rng.length(40_000) as usize;
                fs.write(&file, at, &self.rng.bytes(len))?;
                format!("write {} {at} {len}", number(&file))
            }
            7 => {
                let Some(file) = self.file() else { return Ok(String::new()) };
                let size = self.rng.below(90_000);
                fs.truncate(&file, size)?;
                format!("truncate {} {size}", number(&file))
            }
            8 => {
                let Some(file) = self.file() else { return Ok(String::new()) };
                let (at, len) = (self.rng.below(60_000), 1 + self.rng.below(50_000));
                fs.punch_hole(&file, at, len)?;
                format!("punch {} {at} {len}", number(&file))
            }
            9 => {
                let Some(file) = self.file() else { return Ok(String::new()) };
                let (at, len) = (self.rng.below(60_000), 1 + self.rng.below(50_000));
                let keep = if self.rng.one_in(2) { KeepSize::Yes } else { KeepSize::No };
                fs.preallocate(&file, at, len, keep)?;
                format!("preallocate {} {at} {len} {keep:?}", number(&file))
            }
            10 => {
                let (Some(from), Some(to)) = (self.file(), self.file()) else { return Ok(String::new()) };
                let (a, b) = (self.rng.below(8) * 4096, self.rng.below(8) * 4096);
                let len = (1 + self.rng.below(5)) * 4096;
                fs.clone_range(&from, &to, &CloneRange { from: a, len, to: b })?;
                format!("clone {} {a} {len} {} {b}", number(&from), number(&to))
            }
            11 => {
                let (dir, name) = self.entry();
                let Some(inode) = fs.lookup(&dir, name.as_bytes())? else { return Ok(String::new()) };
                let key = format!("user.{}", self.rng.below(3));
                if self.rng.one_in(3) {
                    fs.xattr_remove(&inode, key.as_bytes())?;
                } else {
                    let value = self.rng.bytes(10);
                    fs.xattr_set(&inode, key.as_bytes(), &value, XattrMode::Any)?;
                }
                format!("xattr {} {key}", number(&inode))
            }
            12 => {
                let Some(file) = self.file() else { return Ok(String::new()) };
                let (dir, name) = (self.dir(), self.name());
                fs.link(&file, &dir, name.as_bytes())?;
                format!("link {} {} {name}", number(&file), number(&dir))
            }
            13 | 14 => {
                let (dir, name) = self.entry();
                match fs.unlink(&dir, name.as_bytes()) {
                    Err(FsError::IsDir) => fs.rmdir(&dir, name.as_bytes())?,
                    other => other?,
                }
                format!("remove {} {name}", number(&dir))
            }
            _ => {
                let ((from_dir, from), (to_dir, to)) = (self.entry(), (self.dir(), self.name()));
                let mode = match self.rng.below(6) {
                    0 => RenameMode::Exchange,
                    1 => RenameMode::NoReplace,
                    _ => RenameMode::Replace,
                };
                fs.rename(&from_dir, from.as_bytes(), &to_dir, to.as_bytes(), mode)?;
                format!("rename {} {from} {} {to} {mode:?}", number(&from_dir), number(&to_dir))
            }
        })
    }

    fn state(&self, inode: &InodeRef) -> State {
        let attr = self.fixture.fs.attr(inode);
        let mut content = Vec::new();
        if attr.kind == FileKind::File {
            content = vec![0; attr.size as usize];
            assert_eq!(self.fixture.fs.read(inode, 0, &mut content).unwrap(), content.len());
        }
        let mut xattrs = self.fixture.fs.xattrs(inode).unwrap();
        xattrs.sort();
        (content, xattrs)
    }

    /// Every inode that has a name now, with its names.
    fn now(&self) -> BTreeMap<u64, (InodeRef, Names)> {
        let mut found: BTreeMap<u64, (InodeRef, Names)> = BTreeMap::new();
        let mut todo = vec![self.fixture.top()];
        while let Some(dir) = todo.pop() {
            for entry in self.fixture.fs.readdir(&dir, 0, 1000).unwrap() {
                let inode = self.fixture.fs.open_entry(&dir, &entry).unwrap().unwrap();
                if entry.kind == FileKind::Dir {
                    todo.push(inode.clone());
                }
                let slot = found.entry(inode.ino().0).or_insert_with(|| (inode, Names::new()));
                slot.1.insert((dir.ino().0, entry.name));
            }
        }
        found
    }

    /// Takes note of where everything is.
    fn note(&mut self) {
        let now = self.now();
        let all: Names = now.values().flat_map(|(_, names)| names.clone()).collect();
        self.held.retain(|name| all.contains(name));
        for (ino, (inode, names)) in &now {
            let state = self.state(inode);
            let known = self.known.entry(*ino).or_default();
            if known.names.last() != Some(names) {
                known.names.push(names.clone());
            }
            if known.state.as_ref().is_some_and(|was| *was != state) {
                known.state = None;
            }
        }
        for (ino, known) in &mut self.known {
            if !now.contains_key(ino) && known.names.last().is_some_and(|names| !names.is_empty()) {
                known.names.push(Names::new());
            }
        }
    }

    fn synced(&mut self, inode: &InodeRef) {
        let state = self.state(inode);
        let Some(known) = self.known.get_mut(&inode.ino().0) else { return };
        known.state = Some(state);
        known.durable = true;
        self.held.extend(known.names.last().cloned().unwrap_or_default());
        known.since = known.names.len() - 1;
    }

    fn committed(&mut self) {
        self.held = self.now().into_values().flat_map(|(_, names)| names).collect();
        for (ino, (inode, names)) in self.now() {
            let state = Some(self.state(&inode));
            self.known.insert(ino, Known { names: vec![names], state, durable: true, since: 0 });
        }
        self.known.retain(|_, known| known.names.last().is_some_and(|names| !names.is_empty()));
    }

    fn verify(&self, top: &Path, synced_dir: Option<(u64, BTreeSet<Vec<u8>>)>) {
        let mut found: BTreeMap<u64, (std::path::PathBuf, Names)> = BTreeMap::new();
        let mut lists: BTreeMap<u64, BTreeSet<Vec<u8>>> = BTreeMap::new();
        let mut todo = vec![(top.to_owned(), 256)];
        while let Some((path, ino)) = todo.pop() {
            let list = lists.entry(ino).or_default();
            for entry in std::fs::read_dir(&path).unwrap() {
                let entry = entry.unwrap();
                let meta = entry.path().symlink_metadata().unwrap();
                let name = entry.file_name().as_bytes().to_vec();
                list.insert(name.clone());
                found.entry(meta.ino()).or_insert_with(|| (entry.path(), Names::new())).1.insert((ino, name));
                if meta.is_dir() {
                    todo.push((entry.path(), meta.ino()));
                }
            }
        }
        for (ino, known) in &self.known {
            let alive = known.names.last().is_some_and(|names| !names.is_empty());
            let here = found.get(ino);
            if alive && known.durable {
                assert!(here.is_some(), "inode {ino} is lost; its names: {:?}", known.names);
            }
            let Some((path, names)) = here else { continue };
            if alive {
                let allowed = &known.names[if known.durable { known.since } else { 0 }..];
                assert!(allowed.contains(names), "inode {ino} is called {names:?}, not one of {allowed:?}");
                let meta = path.symlink_metadata().unwrap();
                if !meta.is_dir() {
                    assert_eq!(meta.nlink(), names.len() as u64, "links of inode {ino}");
                }
                if let Some((content, xattrs)) = &known.state {
                    if meta.is_file() {
                        let have = std::fs::read(path).unwrap();
                        assert_eq!(have.len(), content.len(), "the size of inode {ino}");
                        let differs = have.iter().zip(content).position(|(a, b)| a != b);
                        assert_eq!(differs, None, "inode {ino} differs at");
                    }
                    let have = oleo_sim::manifest::xattrs_of(path).unwrap();
                    let have: Vec<_> = have.into_iter().collect();
                    assert_eq!(have, *xattrs, "attributes of inode {ino}");
                }
            }
        }
        for (dir, name) in &self.held {
            let there = lists.get(dir).is_none_or(|list| list.contains(name));
            assert!(there, "{} of directory {dir} leads nowhere", name.escape_ascii());
        }
        if let Some((dir, want)) = synced_dir {
            assert_eq!(lists.get(&dir), Some(&want), "entries of directory {dir}");
        }
    }
}

/// Whether changes come into the trees between commits now and then, as with a snapshot.
#[derive(Clone, Copy, PartialEq)]
enum Stages {
    Some,
    None,
}

fn run(form: &[&str], seed: u64, crashes: usize, stages: Stages) {
    let Some(fixture) = Fixture::new(form, FsOptions::default()) else { return };
    let mut world =
        World { fixture: &fixture, rng: Rng::new(seed), known: BTreeMap::new(), steps: Vec::new(), held: Names::new() };
    let mut crashed = 0;
    while crashed < crashes {
        let steps = 1 + world.rng.below(8);
        for _ in 0..steps {
            if let Ok(step) = world.step()
                && !step.is_empty()
            {
                world.steps.push(step);
            }
            world.note();
        }
        if world.rng.one_in(12) {
            world.steps.push("sync".into());
            fixture.sync();
            world.committed();
            continue;
        }
        if stages == Stages::Some && world.rng.one_in(4) {
            world.steps.push("stage".into());
            fixture.fs.staged_with(Need { items: 1, ..Need::default() }, |_| Ok(())).unwrap();
        }
        let (dir, name) = world.entry();
        let inode = if world.rng.one_in(3) {
            dir
        } else {
            match fixture.fs.resolve(&dir, name.as_bytes(), Follow::No) {
                Ok(inode) => inode,
                Err(_) => continue,
            }
        };
        world.steps.push(format!("fsync {}", inode.ino().0));
        fixture.fs.fsync(&inode).unwrap();
        world.synced(&inode);
        let entries = (fixture.fs.attr(&inode).kind == FileKind::Dir).then(|| {
            let list = fixture.fs.readdir(&inode, 0, 1000).unwrap();
            (inode.ino().0, list.into_iter().map(|e| e.name).collect::<BTreeSet<_>>())
        });
        if let Some((dir, names)) = &entries {
            world.held.extend(names.iter().map(|name| (*dir, name.clone())));
        }
        if world.rng.one_in(3) {
            continue;
        }
        crashed += 1;
        let verified = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            fixture.after_crash(|found| world.verify(&found.path(""), entries.clone()));
            fixture.after_our_replay(|found| world.verify(&found.path(""), entries));
        }));
        if let Err(panic) = verified {
            eprintln!("seed {seed} on {form:?}, after:\n{}", world.steps.join("\n"));
            std::panic::resume_unwind(panic);
        }
    }
    let stats = fixture.stats();
    let by_stages = stats.full_commits_by.iter().find(|(name, _)| *name == "subvolume").map_or(0, |(_, n)| *n);
    assert_eq!((stats.full_commits, stats.commits_by_link_rename), (by_stages, 0), "{stats:?}");
    assert!(stages == Stages::Some || by_stages == 0, "{stats:?}");
}

/// Goal: as the module says. Method: a seed on each form of volume.
#[test]
fn random_operations() {
    for seed in budget().seeds(1, 1, 1) {
        for form in forms() {
            run(form, seed, 15, Stages::None);
            run(form, seed, 10, Stages::Some);
        }
    }
}
