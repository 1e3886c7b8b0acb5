//! Names against a toy tree, and then before the kernel.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use oleo_device::{Device, FileDevice, FileOptions};
use oleo_format::{TreeId, dir_hash};
use oleo_fs::{
    FileKind, FixedClock, Fs, FsError, FsOptions, InodeRef, NewInode, NewKind, NewSubvol, Rdev, ReadOnly, RenameMode,
    SetAttr, SnapshotOptions, Time, XattrMode, errno,
};
use oleo_mkfs::{MkfsOptions, make};
use oleo_sim::budget::budget;
use oleo_sim::oracle::oracle;
use oleo_sim::rng::Rng;
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};

const IMAGE_LEN: u64 = 512 << 20;

fn open(image: &Path) -> Result<Fs> {
    let device = FileDevice::open(image, &FileOptions::default().write(true))?;
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device)];
    let volume = Volume::open(devices, &OpenOptions { write: true, ..OpenOptions::default() })?;
    let engine = Engine::open(Arc::new(volume), &EngineOptions::default())?;
    let clock = Arc::new(FixedClock(Time { sec: 1_700_000_000, nsec: 7 }));
    Ok(Fs::open(engine, &FsOptions::default().clock(clock).inodes_max(64).dirty_inodes_max(300))?)
}

fn fresh(image: &Path, nodesize: u32) -> Result<Fs> {
    std::fs::File::create(image)?.set_len(IMAGE_LEN)?;
    let device = FileDevice::open(image, &FileOptions::default().write(true))?;
    make(&[Arc::new(device)], &MkfsOptions::default().nodesize(Some(nodesize)))?;
    open(image)
}

fn scratch_file(dir: &Path, name: &str) -> PathBuf {
    dir.join(name)
}

/// Names with the same hash, found by trying.
fn colliding() -> Vec<Vec<u8>> {
    let mut seen: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    // A CRC never gives short names that differ little the same value: these differ all over.
    for n in 1..400_000u64 {
        let name = format!("{:x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)).into_bytes();
        if let Some(other) = seen.insert(dir_hash(&name), name.clone()) {
            return vec![other, name];
        }
    }
    panic!("400 000 names without a collision of a 32-bit hash")
}

/// A file or directory of the model.
#[derive(Clone, Debug)]
struct Node {
    kind: FileKind,
    mode: u32,
    nlink: u32,
    target: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    entries: BTreeMap<Vec<u8>, usize>,
    parent: usize,
    /// The node of the subvolume's root directory; its own for a root.
    subvol: usize,
    /// The tree, for roots of subvolumes.
    tree: Option<TreeId>,
    empty_subvol_dir: bool,
}

struct Model {
    nodes: Vec<Node>,
}

type Outcome = std::result::Result<(), i32>;

impl Model {
    fn new() -> Model {
        let root = Node {
            kind: FileKind::Dir,
            mode: 0o755,
            nlink: 1,
            target: Vec::new(),
            xattrs: BTreeMap::new(),
            entries: BTreeMap::new(),
            parent: 0,
            subvol: 0,
            tree: Some(TreeId::FS),
            empty_subvol_dir: false,
        };
        Model { nodes: vec![root] }
    }

    fn node(&self, n: usize) -> &Node {
        &self.nodes[n]
    }

    /// All directories that can be reached.
    fn dirs(&self) -> Vec<usize> {
        let mut found = vec![0];
        let mut at = 0;
        while at < found.len() {
            let more = self.nodes[found[at]].entries.values();
            let more: Vec<usize> = more.copied().filter(|n| self.nodes[*n].kind == FileKind::Dir).collect();
            found.extend(more);
            at += 1;
        }
        found
    }

    fn path(&self, mut dir: usize) -> Vec<Vec<u8>> {
        let mut parts = Vec::new();
        while dir != 0 {
            let parent = &self.nodes[self.nodes[dir].parent];
            let name = parent.entries.iter().find(|e| *e.1 == dir).expect("a directory is in its parent").0;
            parts.push(name.clone());
            dir = self.nodes[dir].parent;
        }
        parts.reverse();
        parts
    }

    fn create(&mut self, dir: usize, name: &[u8], kind: FileKind, mode: u32, target: &[u8]) -> Outcome {
        if self.nodes[dir].empty_subvol_dir {
            return Err(errno::EPERM);
        }
        if self.nodes[dir].entries.contains_key(name) {
            return Err(errno::EEXIST);
        }
        let mode = if kind == FileKind::Symlink { 0o777 } else { mode };
        let node = Node {
            kind,
            mode,
            target: target.to_vec(),
            parent: dir,
            subvol: self.nodes[dir].subvol,
            entries: BTreeMap::new(),
            xattrs: BTreeMap::new(),
            nlink: 1,
            tree: None,
            empty_subvol_dir: false,
        };
        self.nodes.push(node);
        let new = self.nodes.len() - 1;
        self.nodes[dir].entries.insert(name.to_vec(), new);
        Ok(())
    }

    fn link(&mut self, file: usize, dir: usize, name: &[u8]) -> Outcome {
        if self.nodes[dir].empty_subvol_dir {
            return Err(errno::EPERM);
        }
        if self.nodes[file].subvol != self.nodes[dir].subvol {
            return Err(errno::EXDEV);
        }
        if self.nodes[file].kind == FileKind::Dir {
            return Err(errno::EPERM);
        }
        if self.nodes[dir].entries.contains_key(name) {
            return Err(errno::EEXIST);
        }
        self.nodes[file].nlink += 1;
        self.nodes[dir].entries.insert(name.to_vec(), file);
        Ok(())
    }

    fn remove(&mut self, dir: usize, name: &[u8], directory: bool) -> Outcome {
        if self.nodes[dir].empty_subvol_dir {
            return Err(errno::EPERM);
        }
        let Some(&node) = self.nodes[dir].entries.get(name) else { return Err(errno::ENOENT) };
        let is_dir = self.nodes[node].kind == FileKind::Dir;
        match (directory, is_dir) {
            (true, false) => return Err(errno::ENOTDIR),
            (false, true) => return Err(errno::EISDIR),
            (true, true) if !self.nodes[node].entries.is_empty() => return Err(errno::ENOTEMPTY),
            _ => {}
        }
        self.nodes[dir].entries.remove(name);
        self.nodes[node].nlink -= 1;
        Ok(())
    }

    fn is_below(&self, mut dir: usize, top: usize) -> bool {
        loop {
            if dir == top {
                return true;
            }
            if dir == 0 {
                return false;
            }
            dir = self.nodes[dir].parent;
        }
    }

    fn rename(&mut self, from: (usize, &[u8]), to: (usize, &[u8]), mode: RenameMode) -> Outcome {
        if self.nodes[from.0].empty_subvol_dir || self.nodes[to.0].empty_subvol_dir {
            return Err(errno::EPERM);
        }
        let Some(&source) = self.nodes[from.0].entries.get(from.1) else { return Err(errno::ENOENT) };
        let target = self.nodes[to.0].entries.get(to.1).copied();
        let is_dir = |n: usize| self.nodes[n].kind == FileKind::Dir;
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(errno::ENOENT),
            (RenameMode::Replace, Some(t)) if is_dir(t) && !is_dir(source) => return Err(errno::EISDIR),
            (RenameMode::Replace, Some(t)) if !is_dir(t) && is_dir(source) => return Err(errno::ENOTDIR),
            _ => {}
        }
        if target == Some(source) {
            return Ok(());
        }
        let exchanges = mode == RenameMode::Exchange;
        if is_dir(source) && self.is_below(to.0, source) {
            return Err(errno::EINVAL);
        }
        if exchanges && target.is_some_and(|t| is_dir(t) && self.is_below(from.0, t)) {
            return Err(errno::EINVAL);
        }
        let crosses = self.nodes[from.0].subvol != self.nodes[to.0].subvol;
        let swapped = target.filter(|_| exchanges);
        let moved = || [Some(source), swapped].into_iter().flatten();
        if crosses && moved().any(|n| self.nodes[n].tree.is_none()) {
            return Err(errno::EXDEV);
        }
        if moved().any(|n| self.nodes[n].empty_subvol_dir) {
            return Err(errno::ENOTEMPTY);
        }
        if let Some(t) = target
            && !exchanges
            && (self.nodes[t].tree.is_some() || !self.nodes[t].entries.is_empty())
        {
            return Err(errno::ENOTEMPTY);
        }
        self.nodes[from.0].entries.remove(from.1);
        if let Some(t) = target {
            self.nodes[to.0].entries.remove(to.1);
            if exchanges {
                self.nodes[from.0].entries.insert(from.1.to_vec(), t);
                self.nodes[t].parent = from.0;
            } else {
                self.nodes[t].nlink -= 1;
            }
        }
        self.nodes[to.0].entries.insert(to.1.to_vec(), source);
        self.nodes[source].parent = to.0;
        Ok(())
    }

    /// A copy of a subvolume below `dir`; nested ones become empty subvolume directories.
    fn snapshot(&mut self, source: usize, dir: usize, name: &[u8], tree: TreeId) {
        let mut copies = BTreeMap::new();
        let new = self.copy(source, dir, None, &mut copies);
        self.nodes[new].tree = Some(tree);
        self.nodes[dir].entries.insert(name.to_vec(), new);
    }

    fn copy(
        &mut self,
        node: usize,
        parent: usize,
        subvol: Option<usize>,
        copies: &mut BTreeMap<usize, usize>,
    ) -> usize {
        if let Some(done) = copies.get(&node) {
            return *done;
        }
        let new = self.nodes.len();
        let mut copied = self.nodes[node].clone();
        let nested = subvol.is_some() && (copied.tree.is_some() || copied.empty_subvol_dir);
        copied.parent = parent;
        copied.subvol = subvol.unwrap_or(new);
        copied.entries.clear();
        if nested {
            copied.tree = None;
            copied.empty_subvol_dir = true;
            copied.mode = 0o755;
            copied.xattrs.clear();
        }
        self.nodes.push(copied);
        copies.insert(node, new);
        if !nested {
            for (name, child) in self.nodes[node].entries.clone() {
                let child = self.copy(child, new, Some(subvol.unwrap_or(new)), copies);
                self.nodes[new].entries.insert(name, child);
            }
        }
        new
    }

    fn has_nested(&self, root: usize) -> bool {
        self.dirs()
            .into_iter()
            .any(|d| d != root && self.nodes[d].tree.is_some() && { self.nodes[self.nodes[d].parent].subvol == root })
    }
}

fn find(fs: &Fs, parts: &[Vec<u8>]) -> Result<InodeRef> {
    let mut at = fs.root(TreeId::FS)?;
    for part in parts {
        at = fs.lookup(&at, part)?.with_context(|| format!("{} is missing", part.escape_ascii()))?;
    }
    Ok(at)
}

/// Compares the whole tree below a directory.
fn compare(fs: &Fs, model: &Model, dir: usize, inode: &InodeRef) -> Result<()> {
    let node = model.node(dir);
    check_node(fs, node, inode)?;
    if node.kind != FileKind::Dir {
        return Ok(());
    }
    let mut have = BTreeMap::new();
    let mut after = 0;
    loop {
        let some = fs.readdir(inode, after, 3)?;
        let Some(last) = some.last() else { break };
        after = last.index;
        have.extend(some.into_iter().map(|e| (e.name.clone(), e)));
    }
    ensure!(have.keys().eq(node.entries.keys()), "entries: have {:?}, want {:?}", have.keys(), node.entries.keys());
    let size: usize = node.entries.keys().map(|n| n.len() * 2).sum();
    ensure!(fs.attr(inode).size == size as u64, "size: have {}, want {size}", fs.attr(inode).size);
    for (name, child) in &node.entries {
        let place = || format!("in {} of {inode:?}", name.escape_ascii());
        let by_list = fs.open_entry(inode, &have[name])?.with_context(place)?;
        let by_name = fs.lookup(inode, name)?.with_context(place)?;
        ensure!(model.node(*child).empty_subvol_dir || by_list.same(&by_name), "two inodes {}", place());
        ensure!(have[name].kind == model.node(*child).kind, "kind {}", place());
        compare(fs, model, *child, &by_name).with_context(place)?;
    }
    Ok(())
}

fn check_node(fs: &Fs, node: &Node, inode: &InodeRef) -> Result<()> {
    let attr = fs.attr(inode);
    ensure!(attr.kind == node.kind, "kind: have {:?}, want {:?}", attr.kind, node.kind);
    ensure!(attr.mode & 0o7777 == node.mode, "mode: have {:o}, want {:o}", attr.mode, node.mode);
    ensure!(attr.nlink == node.nlink, "nlink: have {}, want {}", attr.nlink, node.nlink);
    if node.kind == FileKind::Symlink {
        ensure!(fs.read_link(inode)? == node.target, "target");
    }
    let xattrs: BTreeMap<_, _> = fs.xattrs(inode)?.into_iter().collect();
    ensure!(xattrs == node.xattrs, "xattrs: have {xattrs:?}, want {:?}", node.xattrs);
    if node.empty_subvol_dir != inode.is_empty_subvol_dir() {
        bail!("stub: have {}, want {}", inode.is_empty_subvol_dir(), node.empty_subvol_dir);
    }
    Ok(())
}

fn outcome<T>(done: std::result::Result<T, FsError>) -> (Option<T>, Outcome) {
    match done {
        Ok(value) => (Some(value), Ok(())),
        Err(e) => (None, Err(e.errno())),
    }
}

struct Run {
    fs: Fs,
    model: Model,
    rng: Rng,
    names: Vec<Vec<u8>>,
    held: Vec<InodeRef>,
}

impl Run {
    fn some_name(&mut self) -> Vec<u8> {
        self.rng.pick(&self.names).expect("there are names").clone()
    }

    fn some_dir(&mut self) -> Result<(usize, InodeRef)> {
        let dir = *self.rng.pick(&self.model.dirs()).expect("there is a root");
        Ok((dir, find(&self.fs, &self.model.path(dir))?))
    }

    /// A random entry, most of the time one that exists.
    fn some_entry(&mut self) -> Result<(usize, InodeRef, Vec<u8>)> {
        let (dir, inode) = self.some_dir()?;
        let existing: Vec<Vec<u8>> = self.model.node(dir).entries.keys().cloned().collect();
        let name = match self.rng.pick(&existing) {
            Some(name) if !self.rng.one_in(8) => name.clone(),
            _ => self.some_name(),
        };
        Ok((dir, inode, name))
    }

    fn step(&mut self) -> Result<()> {
        match self.rng.below(40) {
            0..=8 => self.create(),
            9..=11 => self.link(),
            12..=18 => self.remove(),
            19..=27 => self.rename(),
            28..=31 => self.xattr(),
            32..=33 => self.chmod(),
            34 => self.subvol_create(),
            35 => self.snapshot(),
            36 => self.subvol_delete(),
            37 => self.hold(),
            38 => {
                self.held.clear();
                Ok(())
            }
            _ => {
                if self.rng.one_in(4) {
                    self.fs.sync()?;
                }
                self.fs.clean(10)?;
                Ok(())
            }
        }
    }

    fn create(&mut self) -> Result<()> {
        let (dir, inode) = self.some_dir()?;
        let (name, mode) = (self.some_name(), self.rng.below(0o1000) as u32);
        let len = self.rng.between(1, 200) as usize;
        let target = self.rng.text(len);
        let rdev = Rdev { major: 259, minor: 70_000 };
        let kinds = [
            NewKind::File,
            NewKind::Dir,
            NewKind::Dir,
            NewKind::Symlink(&target),
            NewKind::CharDevice(rdev),
            NewKind::Fifo,
            NewKind::Socket,
        ];
        let kind = *self.rng.pick(&kinds).expect("some");
        let (_, have) = outcome(self.fs.create(&inode, &name, &NewInode::new(kind, mode)));
        let target: &[u8] = if let NewKind::Symlink(target) = kind { target } else { &[] };
        let want = self.model.create(dir, &name, kind.kind(), mode, target);
        ensure!(have == want, "create: have {have:?}, want {want:?}");
        Ok(())
    }

    fn link(&mut self) -> Result<()> {
        let (from, from_dir, from_name) = self.some_entry()?;
        let Some(&file) = self.model.node(from).entries.get(&from_name) else { return Ok(()) };
        let (dir, inode) = self.some_dir()?;
        let name = self.some_name();
        let file_inode = self.fs.lookup(&from_dir, &from_name)?.context("the model has it")?;
        if self.model.node(file).empty_subvol_dir {
            return Ok(());
        }
        let (_, have) = outcome(self.fs.link(&file_inode, &inode, &name));
        let want = self.model.link(file, dir, &name);
        ensure!(have == want, "link: have {have:?}, want {want:?}");
        Ok(())
    }

    fn remove(&mut self) -> Result<()> {
        let (dir, inode, name) = self.some_entry()?;
        let directory = self.rng.one_in(2);
        if directory && self.model.node(dir).entries.get(&name).is_some_and(|n| self.model.node(*n).tree.is_some()) {
            return Ok(());
        }
        let done = if directory { self.fs.rmdir(&inode, &name) } else { self.fs.unlink(&inode, &name) };
        let (_, have) = outcome(done);
        let want = self.model.remove(dir, &name, directory);
        ensure!(have == want, "remove {directory}: have {have:?}, want {want:?}");
        Ok(())
    }

    fn rename(&mut self) -> Result<()> {
        let (from, from_dir, from_name) = self.some_entry()?;
        let (to, to_dir, to_name) = self.some_entry()?;
        let mode = *self.rng.pick(&[RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange]).expect("some");
        let (_, have) = outcome(self.fs.rename(&from_dir, &from_name, &to_dir, &to_name, mode));
        let want = self.model.rename((from, &from_name), (to, &to_name), mode);
        ensure!(have == want, "rename {mode:?}: have {have:?}, want {want:?}");
        Ok(())
    }

    fn some_inode(&mut self) -> Result<Option<(usize, InodeRef)>> {
        let (dir, inode, name) = self.some_entry()?;
        let Some(&node) = self.model.node(dir).entries.get(&name) else { return Ok(None) };
        if self.model.node(node).empty_subvol_dir {
            return Ok(None);
        }
        let child = self.fs.lookup(&inode, &name)?.context("the model has it")?;
        Ok(Some((node, child)))
    }

    fn xattr(&mut self) -> Result<()> {
        let Some((node, inode)) = self.some_inode()? else { return Ok(()) };
        let name = [b"user.".as_slice(), &self.some_name()].concat();
        let fits = matches!(self.model.nodes[node].kind, FileKind::File | FileKind::Dir);
        if self.rng.one_in(3) {
            let (_, have) = outcome(self.fs.xattr_remove(&inode, &name));
            let want = if fits {
                self.model.nodes[node].xattrs.remove(&name).map(drop).ok_or(errno::ENODATA)
            } else {
                Err(errno::EPERM)
            };
            ensure!(have == want, "xattr remove: have {have:?}, want {want:?}");
            return Ok(());
        }
        let len = self.rng.below(300) as usize;
        let value = self.rng.bytes(len);
        let mode = *self.rng.pick(&[XattrMode::Any, XattrMode::Create, XattrMode::Replace]).expect("some");
        let (_, have) = outcome(self.fs.xattr_set(&inode, &name, &value, mode));
        let xattrs = &mut self.model.nodes[node].xattrs;
        let want = match (mode, xattrs.contains_key(&name)) {
            _ if !fits => Err(errno::EPERM),
            (XattrMode::Create, true) => Err(errno::EEXIST),
            (XattrMode::Replace, false) => Err(errno::ENODATA),
            _ => Ok(()),
        };
        if want.is_ok() {
            xattrs.insert(name, value);
        }
        ensure!(have == want, "xattr set: have {have:?}, want {want:?}");
        Ok(())
    }

    fn chmod(&mut self) -> Result<()> {
        let Some((node, inode)) = self.some_inode()? else { return Ok(()) };
        let mode = self.rng.below(0o10000) as u32;
        // Set-group-id is handed down; the model need not know.
        let mode = if self.model.node(node).kind == FileKind::Dir { mode & 0o777 } else { mode };
        self.fs.set_attr(&inode, &SetAttr::default().mode(Some(mode)))?;
        self.model.nodes[node].mode = mode;
        Ok(())
    }

    fn subvol_create(&mut self) -> Result<()> {
        let (dir, inode) = self.some_dir()?;
        let name = self.some_name();
        let (id, have) = outcome(self.fs.subvol_create(&inode, &name, &NewSubvol::default()));
        let want = self.model.create(dir, &name, FileKind::Dir, 0o755, b"");
        ensure!(have == want, "subvol create: have {have:?}, want {want:?}");
        if id.is_some() {
            let new = self.model.nodes.len() - 1;
            self.model.nodes[new].tree = id;
            self.model.nodes[new].subvol = new;
        }
        Ok(())
    }

    fn some_subvol(&mut self) -> Option<(usize, TreeId)> {
        let subvols: Vec<usize> =
            self.model.dirs().into_iter().filter(|d| self.model.node(*d).tree.is_some()).collect();
        let root = *self.rng.pick(&subvols)?;
        Some((root, self.model.node(root).tree?))
    }

    fn snapshot(&mut self) -> Result<()> {
        // Every snapshot doubles something.
        if self.model.dirs().len() > 300 {
            return Ok(());
        }
        let Some((source, tree)) = self.some_subvol() else { return Ok(()) };
        let (dir, inode) = self.some_dir()?;
        let name = self.some_name();
        let (id, have) = outcome(self.fs.snapshot(tree, &inode, &name, SnapshotOptions::default()));
        let want = if self.model.node(dir).empty_subvol_dir {
            Err(errno::EPERM)
        } else if self.model.node(dir).entries.contains_key(&name) {
            Err(errno::EEXIST)
        } else {
            Ok(())
        };
        ensure!(have == want, "snapshot: have {have:?}, want {want:?}");
        if let Some(id) = id {
            self.model.snapshot(source, dir, &name, id);
        }
        Ok(())
    }

    fn subvol_delete(&mut self) -> Result<()> {
        let Some((root, tree)) = self.some_subvol() else { return Ok(()) };
        let (_, have) = outcome(self.fs.subvol_delete(tree));
        let want = if root == 0 {
            Err(errno::EPERM)
        } else if self.model.has_nested(root) {
            Err(errno::ENOTEMPTY)
        } else {
            Ok(())
        };
        ensure!(have == want, "subvol delete: have {have:?}, want {want:?}");
        if want.is_ok() {
            let parent = self.model.node(root).parent;
            self.model.nodes[parent].entries.retain(|_, n| *n != root);
        }
        Ok(())
    }

    fn hold(&mut self) -> Result<()> {
        if let Some((_, inode)) = self.some_inode()? {
            self.held.push(inode);
        }
        Ok(())
    }
}

/// Goal: names behave as those of a plain tree, before and after commits and reopening, and the kernel agrees with
/// what is on disk.
/// Method: seeded random operations on the library and on a toy tree of nodes, outcomes compared at each step, whole
/// trees every so often; the image is reopened in between, checked, and in the end listed by the kernel.
#[test]
fn names_behave_like_a_plain_tree() -> Result<()> {
    let dir = std::env::temp_dir().join(format!("oleo-names-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    // One of each node size.
    for seed in budget().seeds(1, 3, 4) {
        let image = scratch_file(&dir, &format!("names-{seed}.img"));
        run_seed(&image, seed).with_context(|| format!("seed {seed}"))?;
        std::fs::remove_file(&image)?;
    }
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

fn run_seed(image: &Path, seed: u64) -> Result<()> {
    let nodesize = [4096, 16384, 65536][seed as usize % 3];
    let mut names = colliding();
    names.extend([b"a".to_vec(), b"b".to_vec(), b"c".to_vec(), vec![b'x'; 250], b"d d".to_vec()]);
    let fs = fresh(image, nodesize)?;
    let mut run = Run { fs, model: Model::new(), rng: Rng::new(seed), names, held: Vec::new() };
    for step in 0..1500 {
        run.step().with_context(|| format!("step {step}"))?;
        if step % 100 == 99 {
            let root = run.fs.root(TreeId::FS)?;
            compare(&run.fs, &run.model, 0, &root).with_context(|| format!("after step {step}"))?;
        }
        if step % 500 == 499 {
            // Some inodes that are held have no names: like after a crash, the next opening has to erase them.
            run.fs.sync()?;
            run.held.clear();
            drop(run.fs);
            if let Some(oracle) = oracle() {
                let found = oracle.check(&[image])?;
                ensure!(found.is_clean(), "after step {step}: btrfs check: {found}");
            }
            run.fs = open(image)?;
            let root = run.fs.root(TreeId::FS)?;
            compare(&run.fs, &run.model, 0, &root).with_context(|| format!("reopened after step {step}"))?;
        }
    }
    while run.fs.clean(1000)? {}
    run.fs.sync()?;
    while run.fs.clean(1000)? {}
    run.fs.sync()?;
    ensure!(
        run.fs.subvol_list()?.len() == run.model.dirs().iter().filter(|d| run.model.node(**d).tree.is_some()).count()
    );
    drop(run.fs);
    let Some(oracle) = oracle() else { return Ok(()) };
    oracle.must_be_sound(&[image], &format!("seed {seed}"))?;
    let mounted = oracle.mount(&[image], "")?;
    kernel_agrees(&run.model, 0, mounted.path())?;
    mounted.unmount()
}

/// Compares names, modes and links with what the kernel shows.
fn kernel_agrees(model: &Model, dir: usize, path: &Path) -> Result<()> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::os::unix::fs::MetadataExt;
    let node = model.node(dir);
    let meta = std::fs::symlink_metadata(path)?;
    ensure!(node.empty_subvol_dir || meta.mode() & 0o7777 == node.mode, "mode of {}", path.display());
    if node.kind != FileKind::Dir {
        ensure!(meta.nlink() == u64::from(node.nlink), "links of {}", path.display());
        return Ok(());
    }
    let mut have = Vec::new();
    for entry in std::fs::read_dir(path)? {
        have.push(entry?.file_name().into_vec());
    }
    have.sort();
    let want: Vec<Vec<u8>> = node.entries.keys().cloned().collect();
    ensure!(have == want, "{}: have {have:?}, want {want:?}", path.display());
    for (name, child) in &node.entries {
        kernel_agrees(model, *child, &path.join(std::ffi::OsStr::from_bytes(name)))?;
    }
    Ok(())
}

/// Goal: many names in one directory switch to extended references and back; the limit on names holds.
/// Method: hard links until two items' worth of names are there, checked by `btrfs check`, then removed one by one.
#[test]
fn many_links_use_extended_references() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.path().join("links.img");
    let fs = fresh(&image, 4096)?;
    let root = fs.root(TreeId::FS)?;
    let file = fs.create(&root, b"file", &NewInode::new(NewKind::File, 0o600))?;
    let name = |n: usize| format!("{n:0>200}").into_bytes();
    for n in 0..100 {
        fs.link(&file, &root, &name(n))?;
    }
    ensure!(fs.names(&file)?.len() == 101);
    fs.sync()?;
    oracle.must_be_sound(&[&image], "100 links")?;
    let fs = {
        drop((file, root));
        drop(fs);
        open(&image)?
    };
    let root = fs.root(TreeId::FS)?;
    for n in (0..100).step_by(3).chain((0..100).filter(|n| n % 3 != 0)) {
        fs.unlink(&root, &name(n))?;
    }
    let file = fs.lookup(&root, b"file")?.context("file")?;
    ensure!(fs.attr(&file).nlink == 1 && fs.names(&file)?.len() == 1);
    fs.sync()?;
    drop((file, root));
    drop(fs);
    oracle.must_be_sound(&[&image], "one link")
}

/// Goal: default subvolume, read-only subvolumes, received fields and UUIDs are as the kernel understands them.
/// Method: set them, refuse what must be refused, and let the kernel mount and list.
#[test]
fn subvolume_properties() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.path().join("subvols.img");
    let fs = fresh(&image, 16384)?;
    let root = fs.root(TreeId::FS)?;
    let a = fs.subvol_create(&root, b"a", &NewSubvol::default())?;
    let a_root = fs.root(a)?;
    let inside = fs.create(&a_root, b"inside", &NewInode::new(NewKind::File, 0o644))?;
    fs.link(&inside, &a_root, b"also")?;
    drop(inside);
    let b = fs.subvol_create(&a_root, b"b", &NewSubvol::default())?;
    ensure!(matches!(fs.subvol_delete(a), Err(FsError::NotEmpty)));
    ensure!(matches!(fs.rmdir(&root, b"a"), Err(FsError::NotEmpty)));
    let snap = fs.snapshot(a, &root, b"snap", SnapshotOptions::default().read_only(true))?;
    let snap_root = fs.root(snap)?;
    let file = NewInode::new(NewKind::File, 0o644);
    ensure!(matches!(fs.create(&snap_root, b"x", &file), Err(FsError::ReadOnly(_))));
    let rename = |to: &[u8]| fs.rename(&snap_root, b"inside", &snap_root, to, RenameMode::Replace);
    ensure!(matches!(rename(b"x"), Err(FsError::ReadOnly(_))));
    rename(b"also").context("two names of one file: nothing changes")?;
    ensure!(fs.lookup(&snap_root, b"b")?.context("stub")?.is_empty_subvol_dir());
    fs.set_default(b)?;
    ensure!(fs.default_subvol()? == b);
    ensure!(matches!(fs.subvol_delete(b), Err(FsError::NotPermitted(_))));
    fs.set_read_only(a, ReadOnly::Yes)?;
    ensure!(matches!(fs.create(&a_root, b"x", &file), Err(FsError::ReadOnly(_))));
    let info = fs.subvol_info(b)?;
    ensure!(info.path == b"a/b" && info.parent == Some(a), "{info:?}");
    let snap_info = fs.subvol_info(snap)?;
    ensure!(snap_info.parent_uuid == fs.subvol_info(a)?.uuid);
    ensure!(fs.find_uuid(snap_info.uuid, oleo_fs::UuidKind::Own)? == [snap]);
    fs.sync()?;
    drop((root, a_root, snap_root));
    drop(fs);
    oracle.must_be_sound(&[&image], "subvolumes")?;
    let mounted = oracle.mount(&[&image], "subvolid=5")?;
    let listed = oleo_sim::oracle::run("btrfs", ["subvolume", "list", "-u", &mounted.path().to_string_lossy()])?;
    for path in ["path a\n", "path a/b\n", "path snap\n"] {
        ensure!(listed.contains(path), "{path:?} is missing in {listed}");
    }
    ensure!(listed.contains(&snap_info.uuid.to_string()), "{listed}");
    let default = oleo_sim::oracle::run("btrfs", ["subvolume", "get-default", &mounted.path().to_string_lossy()])?;
    ensure!(default.starts_with(&format!("ID {} ", b.0)), "{default}");
    ensure!(std::fs::write(mounted.path().join("snap/x"), b"").is_err());
    ensure!(std::fs::write(mounted.path().join("a/x"), b"").is_err());
    let [inside, also, other] = ["inside", "also", "x"].map(|name| mounted.path().join("snap").join(name));
    ensure!(std::fs::rename(&inside, &other).is_err());
    std::fs::rename(&inside, &also).context("the kernel changes nothing either")?;
    std::fs::write(mounted.path().join("a/b/x"), b"kernel")?;
    mounted.unmount()?;
    let fs = open(&image)?;
    let b_root = fs.root(b)?;
    ensure!(fs.lookup(&b_root, b"x")?.is_some());
    Ok(())
}

/// Goal: a file with more extents than one operation removes goes with its last name, in steps, and one that was still
/// held when everything stopped goes at the next opening; the space of both comes back.
/// Method: two files of a thousand extents; one is unlinked outright, one while it is held, read meanwhile, and left
/// behind; what data takes is compared with before.
#[test]
fn large_files_go_in_steps() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.path().join("steps.img");
    let fs = fresh(&image, 4096)?;
    let root = fs.root(TreeId::FS)?;
    let used = |fs: &Fs| -> u64 {
        let groups = fs.engine().space().groups();
        groups.iter().filter(|g| g.flags.contains(oleo_format::BlockGroupFlags::DATA)).map(|g| g.used.0).sum()
    };
    let large = |name: &[u8]| -> Result<InodeRef> {
        let file = fs.create(&root, name, &NewInode::new(NewKind::File, 0o600))?;
        for n in 0..1000u64 {
            fs.write(&file, n * 8192, &[n as u8; 4096])?;
        }
        Ok(file)
    };
    fs.sync()?;
    let before = used(&fs);
    drop(large(b"outright")?);
    let held = large(b"held")?;
    fs.sync()?;
    ensure!(used(&fs) >= before + 8_000_000, "the files are there");
    fs.unlink(&root, b"outright")?;
    fs.unlink(&root, b"held")?;
    ensure!(fs.attr(&held).nlink == 0 && fs.lookup(&root, b"held")?.is_none());
    let mut out = [0; 4096];
    ensure!(fs.read(&held, 8192 * 7, &mut out)? == 4096 && out == [7; 4096]);
    fs.sync()?;
    ensure!(used(&fs) < before + 5_000_000, "the first is gone, the second is held");
    let left = scratch.path().join("left.img");
    std::fs::copy(&image, &left)?;
    drop((held, root));
    fs.sync()?;
    fs.sync()?;
    ensure!(used(&fs) == before, "have {}, want {before}", used(&fs));
    drop(fs);
    oracle.must_be_sound(&[&image], "both gone")?;
    let fs = open(&left)?;
    while fs.clean(100)? {}
    fs.sync()?;
    fs.sync()?;
    ensure!(used(&fs) == before, "left behind: have {}, want {before}", used(&fs));
    drop(fs);
    oracle.must_be_sound(&[&left], "left behind")
}

/// Everything below a directory, in words.
fn listing(fs: &Fs, dir: &InodeRef, path: &str, out: &mut Vec<String>) -> Result<()> {
    for entry in fs.readdir(dir, 0, usize::MAX)? {
        let child = fs.open_entry(dir, &entry)?.with_context(|| format!("{path}: {entry:?} leads nowhere"))?;
        let attr = fs.attr(&child);
        let path = format!("{path}/{}", entry.name.escape_ascii());
        let ino = if child.is_empty_subvol_dir() { 0 } else { attr.ino.0 };
        let xattrs = fs.xattr_list(&child)?.len();
        out.push(format!("{path} {ino} {:?} {} {} {xattrs}", attr.kind, attr.nlink, attr.size));
        if attr.kind == FileKind::Dir {
            listing(fs, &child, &path, out)?;
        }
    }
    Ok(())
}

/// Goal: operations of many threads on the same few names, with commits and snapshots going on, neither hang nor lose
/// anything nor leave anything half done.
/// Method: threads do random operations whose outcome does not matter, others sync, snapshot and delete snapshots; what
/// can be listed afterwards is listed again after reopening, and `btrfs check` is asked.
#[test]
fn threads_on_the_same_names() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.path().join("threads.img");
    let fs = fresh(&image, 16384)?;
    let root = fs.root(TreeId::FS)?;
    for name in ["0", "1", "2"] {
        fs.create(&root, name.as_bytes(), &NewInode::new(NewKind::Dir, 0o755))?;
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4u64)
            .map(|seed| {
                scope.spawn({
                    let fs = fs.clone();
                    move || thread_of_names(&fs, seed)
                })
            })
            .collect();
        let syncer = scope.spawn({
            let fs = fs.clone();
            move || -> Result<()> {
                for n in 0..12u64 {
                    fs.sync()?;
                    let root = fs.root(TreeId::FS)?;
                    let name = format!("snap{}", n % 3).into_bytes();
                    if let Some(old) = fs.lookup(&root, &name)? {
                        fs.subvol_delete(old.tree())?;
                    }
                    fs.snapshot(TreeId::FS, &root, &name, SnapshotOptions::default())?;
                    fs.clean(50)?;
                }
                Ok(())
            }
        });
        for thread in threads {
            thread.join().expect("a thread panicked")?;
        }
        syncer.join().expect("the syncing thread panicked")
    })?;
    let mut before = Vec::new();
    listing(&fs, &root, "", &mut before)?;
    fs.sync()?;
    drop(root);
    drop(fs);
    oracle.must_be_sound(&[&image], "threads")?;
    let fs = open(&image)?;
    let mut after = Vec::new();
    listing(&fs, &fs.root(TreeId::FS)?, "", &mut after)?;
    ensure!(before == after, "the listing changed by reopening");
    Ok(())
}

fn thread_of_names(fs: &Fs, seed: u64) -> Result<()> {
    let mut rng = Rng::new(seed);
    let root = fs.root(TreeId::FS)?;
    for step in 0..2500 {
        let path = |rng: &mut Rng| {
            let depth = rng.below(3);
            (0..depth).map(|_| format!("{}", rng.below(3)).into_bytes()).collect::<Vec<_>>().join(&b'/')
        };
        let (Ok(dir), Ok(other)) = (
            fs.resolve(&root, &path(&mut rng), oleo_fs::Follow::No),
            fs.resolve(&root, &path(&mut rng), oleo_fs::Follow::No),
        ) else {
            continue;
        };
        let name = format!("{}", rng.below(5)).into_bytes();
        let to = format!("{}", rng.below(5)).into_bytes();
        let kind = if rng.one_in(2) { NewKind::Dir } else { NewKind::File };
        let mode = *rng.pick(&[RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange]).expect("some");
        let done = match rng.below(8) {
            0..=1 => fs.create(&dir, &name, &NewInode::new(kind, 0o755)).map(drop),
            2 => fs.unlink(&dir, &name),
            3 => fs.rmdir(&dir, &name),
            4..=5 => fs.rename(&dir, &name, &other, &to, mode),
            6 => match fs.lookup(&dir, &name) {
                Ok(Some(file)) => fs.link(&file, &other, &to),
                other => other.map(drop),
            },
            _ => fs.xattr_set(&dir, b"user.x", &name, XattrMode::Any),
        };
        if let Err(e @ (FsError::Corruption(_) | FsError::Tree(_) | FsError::Txn(_) | FsError::Busy(_))) = done {
            bail!("thread {seed}, step {step}: {e}");
        }
    }
    Ok(())
}
