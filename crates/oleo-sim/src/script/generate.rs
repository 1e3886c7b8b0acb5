//! Scripts from seeds.
//!
//! The generator tracks a toy name space, so that most operations find what they need: a file to write to, an existing
//! directory, a free name. Some are aimed to fail: at what is missing, exists, is of the wrong type or lies in a
//! read-only snapshot. The toy may drift from the truth (if an exchange fails, say); then more operations fail, on both
//! targets alike, and nothing else happens.

use std::collections::BTreeMap;

use super::{GroupKind, Keep, Op, RenameHow, Style};
use crate::rng::Rng;

/// Percentage of balances in scripts that balance.
const BALANCE_PERCENT: u64 = 3;
/// Percentage of trims in scripts that trim.
const TRIM_PERCENT: u64 = 4;

/// What scripts are made of.
#[derive(Clone, Debug)]
pub struct Mix {
    /// Number of operations.
    pub steps: usize,
    /// Snapshots, subvolumes.
    pub subvolumes: bool,
    /// Clones of ranges.
    pub clones: bool,
    /// Holes, preallocation, zeroing.
    pub holes: bool,
    /// Device nodes and owners: needs root.
    pub privileged: bool,
    /// Compression properties.
    pub compress: bool,
    /// [`Op::Balance`] now and then.
    pub balance: bool,
    /// [`Op::Convert`] now and then: needs two devices.
    pub convert: bool,
    /// [`Op::Rescan`] now and then: needs quota.
    pub rescan: bool,
    /// [`Op::Trim`] now and then.
    pub trim: bool,
    /// [`Op::Resize`] now and then, between these lengths: needs one device.
    pub resize: Option<(u64, u64)>,
    /// [`Op::Reopen`] now and then.
    pub reopen: bool,
    /// Additional percentage of operations that rename directories.
    pub moves: u64,
    /// Additional percentage of operations that make something durable: for runs that crash.
    pub promises: u64,
    /// Additional percentage of operations that request that all changes of something be kept ([`Op::Keep`]).
    pub keeps: u64,
    /// No file grows beyond this, bytes.
    pub file_len_max: u64,
    /// Granularity of clones, bytes.
    pub sectorsize: u64,
    /// The longest value of an extended attribute, bytes.
    pub xattr_len_max: u64,
    /// About this many names; deletes get more frequent beyond it.
    pub names_max: usize,
}

impl Default for Mix {
    fn default() -> Mix {
        Mix {
            steps: 1000,
            subvolumes: true,
            clones: true,
            holes: true,
            privileged: true,
            compress: false,
            balance: false,
            convert: false,
            rescan: false,
            trim: false,
            resize: None,
            reopen: false,
            moves: 0,
            promises: 0,
            keeps: 0,
            file_len_max: 1 << 20,
            sectorsize: 4096,
            xattr_len_max: 3000,
            names_max: 400,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Toy {
    File,
    Dir,
    Other,
    Subvol,
    ReadOnlySubvol,
    /// The empty directory of a snapshot in place of a nested subvolume: nothing can be created in it.
    EmptySubvolDir,
}

impl Toy {
    fn is_dir(self) -> bool {
        matches!(self, Toy::Dir | Toy::Subvol | Toy::ReadOnlySubvol)
    }

    fn is_subvol(self) -> bool {
        matches!(self, Toy::Subvol | Toy::ReadOnlySubvol)
    }
}

struct Generator<'a> {
    rng: Rng,
    mix: &'a Mix,
    names: BTreeMap<String, Toy>,
    /// Makes new names unlike all others.
    counter: u64,
}

/// A script; the same for the same seed and mix.
pub fn generate(seed: u64, mix: &Mix) -> Vec<Op> {
    let mut generator = Generator { rng: Rng::new(seed), mix, names: BTreeMap::new(), counter: 0 };
    let mut out = Vec::with_capacity(mix.steps);
    while out.len() < mix.steps {
        out.push(generator.next());
    }
    out
}

impl Generator<'_> {
    fn next(&mut self) -> Op {
        if self.mix.balance && self.rng.below(100) < BALANCE_PERCENT {
            return Op::Balance { kind: self.group_kind() };
        }
        if self.mix.convert && self.rng.below(100) < BALANCE_PERCENT {
            return Op::Convert { kind: self.group_kind(), mirrored: self.rng.one_in(2) };
        }
        if self.mix.rescan && self.rng.below(100) < BALANCE_PERCENT {
            return Op::Rescan;
        }
        if self.mix.trim && self.rng.below(100) < TRIM_PERCENT {
            return Op::Trim;
        }
        if let Some((shortest, longest)) = self.mix.resize
            && self.rng.below(100) < BALANCE_PERCENT
        {
            return Op::Resize { len: self.rng.between(shortest, longest) / self.mix.sectorsize * self.mix.sectorsize };
        }
        if self.mix.moves > 0 && self.rng.below(100) < self.mix.moves {
            return self.move_dir();
        }
        if self.mix.promises > 0 && self.rng.below(100) < self.mix.promises {
            return self.promise();
        }
        if self.mix.keeps > 0 && self.rng.below(100) < self.mix.keeps {
            return self.keep();
        }
        let full = self.names.len() > self.mix.names_max;
        match self.rng.below(if full { 130 } else { 100 }) {
            0..12 => self.create(),
            12..17 => self.mkdir(),
            17..19 => self.symlink(),
            19..21 => self.mknod(),
            21..41 => self.write(),
            41..46 => self.truncate(),
            46..54 => self.holes(),
            54..60 => self.clone_range(),
            60..64 => self.link(),
            64..73 => self.rename(),
            73..78 => self.xattr(),
            78..84 => self.attributes(),
            84..89 => self.subvolume(),
            89..92 => self.sync(),
            92..96 => self.remove(),
            _ => self.remove(),
        }
    }

    fn any(&mut self, want: impl Fn(Toy) -> bool) -> Option<String> {
        // Now and then anything at all, to see it refused.
        let wrong = self.rng.one_in(40);
        // Read-only snapshots are rarely aimed at.
        let read_only_too = wrong || self.rng.one_in(30);
        let fit: Vec<&String> = self
            .names
            .iter()
            .filter(|(path, toy)| (wrong || want(**toy)) && (read_only_too || !self.in_read_only(path)))
            .map(|(path, _)| path)
            .collect();
        self.rng.pick(&fit).map(|s| (*s).clone())
    }

    fn in_read_only(&self, path: &str) -> bool {
        self.names.get(path) == Some(&Toy::ReadOnlySubvol)
            || parents(path).any(|p| self.names.get(p) == Some(&Toy::ReadOnlySubvol))
    }

    fn file(&mut self) -> String {
        self.any(|t| t == Toy::File).unwrap_or_else(|| "no-such-file".into())
    }

    /// A free name in some directory; rarely one that is taken or cannot be.
    fn new_path(&mut self) -> String {
        if self.rng.one_in(30)
            && let Some(taken) = self.any(|_| true)
        {
            return taken;
        }
        if self.rng.one_in(100) {
            return "no-such-dir/name".into();
        }
        let dir = if self.rng.one_in(3) { None } else { self.any(Toy::is_dir) };
        self.counter += 1;
        let n = self.counter;
        let name = match self.rng.below(20) {
            0 => format!("{n:0>255}"),
            1 => format!("{n:0>180}"),
            2 => format!("n{n}.with-a-name-of-middling-length"),
            3 => format!("ü{n}"),
            _ => format!("n{n}"),
        };
        match dir {
            Some(dir) if dir.len() < 2000 => format!("{dir}/{name}"),
            _ => name,
        }
    }

    fn add(&mut self, path: &str, toy: Toy) {
        let parent_is_there = parent(path).is_none_or(|p| self.names.get(p).is_some_and(|t| t.is_dir()));
        if parent_is_there && !self.in_read_only(path) {
            self.names.entry(path.to_owned()).or_insert(toy);
        }
    }

    fn take(&mut self, path: &str) -> Vec<(String, Toy)> {
        let all: Vec<String> = self.names.keys().filter(|p| inside(p, path)).cloned().collect();
        all.into_iter().filter_map(|p| self.names.remove_entry(&p)).collect()
    }

    fn put(&mut self, taken: Vec<(String, Toy)>, from: &str, to: &str) {
        for (path, toy) in taken {
            self.names.insert(format!("{to}{}", &path[from.len()..]), toy);
        }
    }

    fn create(&mut self) -> Op {
        let path = self.new_path();
        self.add(&path, Toy::File);
        Op::Create { path, mode: self.mode() }
    }

    fn mode(&mut self) -> u32 {
        self.rng.pick(&[0o644, 0o600, 0o755, 0o444, 0o777, 0]).copied().unwrap_or(0o644)
    }

    fn mkdir(&mut self) -> Op {
        let path = self.new_path();
        self.add(&path, Toy::Dir);
        Op::Mkdir { path, mode: 0o755 }
    }

    fn symlink(&mut self) -> Op {
        let path = self.new_path();
        self.add(&path, Toy::Other);
        let len = usize::try_from(1 + self.rng.length(1500)).unwrap_or(1);
        Op::Symlink { path, target: "t/".repeat(len.div_ceil(2))[..len].to_owned() }
    }

    fn mknod(&mut self) -> Op {
        let path = self.new_path();
        self.add(&path, Toy::Other);
        let (major, minor) = if self.mix.privileged && self.rng.one_in(2) { (10, 200) } else { (0, 0) };
        Op::Mknod { path, mode: 0o640, major, minor }
    }

    /// An offset in a file: often aligned, often near the start.
    fn offset(&mut self) -> u64 {
        let at = if self.rng.one_in(3) { 0 } else { self.rng.length(self.mix.file_len_max) };
        if self.rng.one_in(2) { at - at % self.mix.sectorsize } else { at }
    }

    fn range(&mut self) -> (u64, u64) {
        let at = self.offset();
        let len = 1 + self.rng.length((self.mix.file_len_max / 3).max(1));
        let len = if self.rng.one_in(2) { len.next_multiple_of(self.mix.sectorsize) } else { len };
        (at, len)
    }

    fn write(&mut self) -> Op {
        let path = self.file();
        let (at, len) = self.range();
        let style = self.rng.pick(&[Style::Random, Style::Random, Style::Text, Style::Same]).copied();
        Op::Write { path, at, len, seed: self.rng.below(1 << 32), style: style.unwrap_or(Style::Random) }
    }

    fn truncate(&mut self) -> Op {
        let path = self.file();
        Op::Truncate { path, size: self.offset() }
    }

    fn holes(&mut self) -> Op {
        if !self.mix.holes {
            return self.write();
        }
        let path = self.file();
        let (at, len) = self.range();
        let keep_size = self.rng.one_in(2);
        match self.rng.below(5) {
            0 | 1 => Op::Punch { path, at, len },
            2 => Op::Zero { path, at, len, keep_size },
            _ => Op::Prealloc { path, at, len, keep_size },
        }
    }

    fn clone_range(&mut self) -> Op {
        if !self.mix.clones {
            return self.write();
        }
        let sector = self.mix.sectorsize;
        let (from, to) = (self.file(), self.file());
        let down = |v: u64| v - v % sector;
        let (at, to_at) = (down(self.offset()), down(self.offset()));
        let len = if self.rng.one_in(20) {
            1 + self.rng.length(50_000)
        } else {
            down(self.rng.length(self.mix.file_len_max)) + sector
        };
        Op::Clone { from, at, len, to, to_at }
    }

    fn link(&mut self) -> Op {
        let from = self.any(|t| matches!(t, Toy::File | Toy::Other)).unwrap_or_else(|| "missing".into());
        // Mostly in the same subvolume: across them it is refused.
        let mut to = self.new_path();
        for _ in 0..4 {
            if self.subvol_of(&to) == self.subvol_of(&from) {
                break;
            }
            to = self.new_path();
        }
        if self.subvol_of(&to) == self.subvol_of(&from)
            && let Some(toy) = self.names.get(&from).copied().filter(|t| !t.is_dir())
        {
            self.add(&to, toy);
        }
        Op::Link { from, to }
    }

    fn subvol_of(&self, path: &str) -> String {
        parents(path).find(|p| self.names.get(*p).is_some_and(|t| t.is_subvol())).unwrap_or("").to_owned()
    }

    /// A directory under another one, or in exchange for another one.
    fn move_dir(&mut self) -> Op {
        let from = self.any(Toy::is_dir).unwrap_or_else(|| "missing".into());
        let other = self.any(Toy::is_dir).unwrap_or_else(|| "missing".into());
        let (to, how) = match self.rng.below(3) {
            0 => (other, RenameHow::Exchange),
            _ => (format!("{other}/{}", from.rsplit('/').next().unwrap_or("moved")), RenameHow::Plain),
        };
        self.note_rename(&from, &to, how);
        Op::Rename { from, to, how }
    }

    fn rename(&mut self) -> Op {
        let from = self.any(|t| t != Toy::EmptySubvolDir).unwrap_or_else(|| "missing".into());
        let how = match self.rng.below(6) {
            0 => RenameHow::Exchange,
            1 => RenameHow::NoReplace,
            _ => RenameHow::Plain,
        };
        let existing = how == RenameHow::Exchange || self.rng.one_in(4);
        let mut to =
            if existing { self.any(|t| t != Toy::EmptySubvolDir).unwrap_or_default() } else { self.new_path() };
        for _ in 0..4 {
            if self.subvol_of(&to) == self.subvol_of(&from) && !to.is_empty() {
                break;
            }
            to = if existing { self.any(|t| t != Toy::EmptySubvolDir).unwrap_or_default() } else { self.new_path() };
        }
        if to.is_empty() {
            to = "other".into();
        }
        self.note_rename(&from, &to, how);
        Op::Rename { from, to, how }
    }

    fn note_rename(&mut self, from: &str, to: &str, how: RenameHow) {
        let (Some(source), target) = (self.names.get(from).copied(), self.names.get(to).copied()) else { return };
        let parent_is_there = parent(to).is_none_or(|p| self.names.get(p).is_some_and(|t| t.is_dir()));
        let barred = inside(to, from)
            || inside(from, to)
            || !parent_is_there
            || self.in_read_only(from)
            || self.in_read_only(to)
            || (self.subvol_of(from) != self.subvol_of(to) && !source.is_subvol());
        if barred {
            return;
        }
        match (how, target) {
            (RenameHow::Exchange, Some(_)) => {
                let (a, b) = (self.take(from), self.take(to));
                self.put(a, from, to);
                self.put(b, to, from);
            }
            (RenameHow::Exchange, None) | (RenameHow::NoReplace, Some(_)) => {}
            (_, Some(target))
                if source.is_dir() != target.is_dir() || target.is_subvol() || target == Toy::EmptySubvolDir => {}
            (_, Some(_)) if self.names.keys().any(|p| p != to && inside(p, to)) => {}
            _ => {
                let taken = self.take(from);
                self.put(taken, from, to);
            }
        }
    }

    fn xattr(&mut self) -> Op {
        let path = self.any(|t| matches!(t, Toy::File | Toy::Dir | Toy::Subvol)).unwrap_or_else(|| "missing".into());
        let name = format!("user.x{}", self.rng.below(12));
        if self.rng.one_in(4) {
            return Op::RemoveXattr { path, name };
        }
        Op::SetXattr { path, name, len: self.rng.length(self.mix.xattr_len_max), seed: self.rng.below(1 << 32) }
    }

    fn attributes(&mut self) -> Op {
        let path = self.any(|t| t != Toy::EmptySubvolDir).unwrap_or_else(|| "missing".into());
        match self.rng.below(if self.mix.compress { 5 } else { 3 }) {
            0 => {
                let path = self.any(|t| matches!(t, Toy::File | Toy::Dir)).unwrap_or(path);
                Op::Chmod { path, mode: self.mode() }
            }
            1 if self.mix.privileged => {
                let (uid, gid) = (self.rng.below(70_000), self.rng.below(70_000));
                Op::Chown { path, uid: u32::try_from(uid).unwrap_or(0), gid: u32::try_from(gid).unwrap_or(0) }
            }
            3 | 4 => {
                let path = self.any(|t| matches!(t, Toy::File | Toy::Dir)).unwrap_or(path);
                let algo = self.rng.pick(&["zstd", "lzo", "zlib", ""]).copied().unwrap_or("");
                Op::Compress { path, algo: algo.into() }
            }
            _ => {
                let (sec, nsec) = (self.rng.below(1_400_000_000), self.rng.below(1_000_000_000));
                let sec = i64::try_from(sec).unwrap_or(0) - 300_000_000;
                Op::Times { path, sec, nsec: u32::try_from(nsec).unwrap_or(0) }
            }
        }
    }

    fn keep(&mut self) -> Op {
        if self.rng.one_in(2) {
            return Op::Keep { path: self.file(), keep: Keep::All };
        }
        let path = self.any(Toy::is_dir).unwrap_or_else(|| "missing".into());
        Op::Keep { path, keep: if self.rng.one_in(3) { Keep::All } else { Keep::Names } }
    }

    fn subvolume(&mut self) -> Op {
        if !self.mix.subvolumes {
            return self.create();
        }
        match self.rng.below(10) {
            0..3 => {
                let path = self.new_path();
                self.add(&path, Toy::Subvol);
                Op::Subvol { path }
            }
            3..7 => self.snapshot(),
            7..9 => {
                let path = self.any(Toy::is_subvol).unwrap_or_else(|| "missing".into());
                let nested = self.names.iter().any(|(p, t)| p != &path && inside(p, &path) && t.is_subvol());
                if !nested
                    && self.names.get(&path).is_some_and(|t| t.is_subvol())
                    && !parents(&path).any(|p| self.in_read_only(p))
                {
                    self.take(&path);
                }
                Op::DeleteSubvol { path }
            }
            _ => {
                let path = self.any(Toy::is_subvol).unwrap_or_else(|| "missing".into());
                let read_only = self.rng.one_in(2);
                if let Some(toy) = self.names.get_mut(&path).filter(|t| t.is_subvol()) {
                    *toy = if read_only { Toy::ReadOnlySubvol } else { Toy::Subvol };
                }
                Op::SetReadOnly { path, read_only }
            }
        }
    }

    fn snapshot(&mut self) -> Op {
        let from = self.any(Toy::is_subvol).unwrap_or_else(|| "missing".into());
        let to = self.new_path();
        let read_only = self.rng.one_in(3);
        let source_fits = self.names.get(&from).is_some_and(|t| t.is_subvol());
        let parent_is_there = parent(&to).is_none_or(|p| self.names.get(p).is_some_and(|t| t.is_dir()));
        if source_fits && parent_is_there && !self.names.contains_key(&to) && !self.in_read_only(&to) {
            let inner: Vec<(String, Toy)> = self
                .names
                .iter()
                .filter(|(p, _)| *p != &from && inside(p, &from))
                .map(|(p, t)| (p.clone(), *t))
                .collect();
            for (path, toy) in &inner {
                let behind_nested = parents(path)
                    .take_while(|p| *p != from)
                    .any(|p| self.names.get(p).is_some_and(|t| t.is_subvol() || *t == Toy::EmptySubvolDir));
                if !behind_nested {
                    let toy = if toy.is_subvol() { Toy::EmptySubvolDir } else { *toy };
                    self.names.insert(format!("{to}{}", &path[from.len()..]), toy);
                }
            }
            self.names.insert(to.clone(), if read_only { Toy::ReadOnlySubvol } else { Toy::Subvol });
        }
        Op::Snapshot { from, to, read_only }
    }

    fn group_kind(&mut self) -> GroupKind {
        match self.rng.below(5) {
            0..2 => GroupKind::Data,
            2..4 => GroupKind::Metadata,
            _ => GroupKind::System,
        }
    }

    fn sync(&mut self) -> Op {
        match self.rng.below(8) {
            0 if self.mix.reopen => Op::Reopen,
            0..3 => Op::Fsync { path: self.file() },
            _ => Op::Sync,
        }
    }

    /// Mostly of single files and directories.
    fn promise(&mut self) -> Op {
        match self.rng.below(16) {
            0 => Op::Sync,
            1 => {
                let path = self.new_path();
                self.add(&path, Toy::File);
                Op::Tmpfile {
                    path,
                    len: self.rng.length(9000),
                    seed: self.rng.below(1 << 32),
                    sync: self.rng.one_in(2),
                }
            }
            2..5 => Op::Fdatasync { path: self.file() },
            5..8 => Op::Fsync { path: self.any(Toy::is_dir).unwrap_or_default() },
            _ => Op::Fsync { path: self.file() },
        }
    }

    fn remove(&mut self) -> Op {
        if self.rng.one_in(5) {
            let path = self.any(|t| t == Toy::Dir).unwrap_or_else(|| "missing".into());
            if self.names.get(&path).is_none_or(|t| !t.is_dir() || !t.is_subvol()) {
                let empty = !self.names.keys().any(|p| *p != path && inside(p, &path));
                if self.names.get(&path) == Some(&Toy::Dir) && empty && !self.in_read_only(&path) {
                    self.names.remove(&path);
                }
                return Op::Rmdir { path };
            }
        }
        let path = self.any(|t| matches!(t, Toy::File | Toy::Other)).unwrap_or_else(|| "missing".into());
        if self.names.get(&path).is_some_and(|t| matches!(t, Toy::File | Toy::Other)) && !self.in_read_only(&path) {
            self.names.remove(&path);
        }
        Op::Unlink { path }
    }
}

fn parent(path: &str) -> Option<&str> {
    path.rsplit_once('/').map(|(p, _)| p)
}

/// The directories above a path, from the inside out, without the top.
fn parents(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(parent(path), |p| parent(p))
}

/// Whether `path` is `top` or lies below it.
fn inside(path: &str, top: &str) -> bool {
    path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
