//! A subvolume in which all threads work in parallel. The order of their acts is unknown; what must hold in any order
//! is verified after each act.
//!
//! - `cells`: one file; each sector belongs to one thread, which stamps it with its number, the cell's, and the number
//!   of changes of the cell. Every fourth change makes a hole or zeros instead. A reader of the sector sees one stamp
//!   throughout, none older than what was complete before the read, none newer than what had begun after it.
//! - `copies-T`: sectors cloned from any thread's cells; each keeps its contents of the time of cloning.
//! - `d0` … `d3`: each thread creates, links, moves, exchanges and removes files and directories with names of its own,
//!   and knows at any time which exist.
//! - `../snaps`: snapshots of it all. In them cells obey the rule above, a thread finds its names and copies exactly as
//!   they are, and a read-only one never changes until it is deleted, however long others continue.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use oleo::fs::{CloneRange, Fs, InodeRef, KeepSize, NewInode, NewKind, NewSubvol, RenameMode};
use oleo::{Image, SnapshotOptions, TreeId};
use oleo_fs::{FileKind, FsError};
use oleo_sim::rng::Rng;

const SECTOR: u64 = 4096;
/// Cells of each thread.
const CELLS: u64 = 12;
/// Sectors of a `copies` file.
const COPIES: u64 = 24;
const DIRS: u64 = 4;
/// Names that a thread has at most.
const NAMES: u64 = 16;
/// Snapshots that a thread keeps.
const SNAPS_MAX: usize = 2;

type Done<T = ()> = Result<T, String>;

/// An act.
#[derive(Clone, Debug)]
pub enum Act {
    Cell { n: u64 },
    Look { cell: u64 },
    Copy { cell: u64, to: u64 },
    MakeFile { k: u64, dir: u64 },
    MakeDir { k: u64, dir: u64 },
    Move { k: u64, to: u64, dir: u64 },
    Exchange { k: u64, with: u64 },
    Link { k: u64, to: u64, dir: u64 },
    Remove { k: u64 },
    List { dir: u64 },
    Snapshot { read_only: bool },
    DropSnapshot,
    Fsync,
    Sync,
}

/// A sector of one stamp all over: whose, which cell, which change. `None` for zeros.
type Stamp = Option<(u64, u64, u64)>;

fn sector_of(stamp: Stamp) -> Vec<u8> {
    let Some((thread, cell, change)) = stamp else { return vec![0; SECTOR as usize] };
    [thread + 1, cell, change, !change].map(u64::to_le_bytes).concat().repeat(SECTOR as usize / 32)
}

/// The stamp that a sector has all over.
fn stamp_of(sector: &[u8]) -> Done<Stamp> {
    let word = |at: usize| u64::from_le_bytes(sector[at..at + 8].try_into().unwrap_or_default());
    let stamp = (word(0) != 0).then(|| (word(0) - 1, word(8), word(16)));
    if sector == sector_of(stamp) { Ok(stamp) } else { Err(format!("a torn sector that begins with {stamp:?}")) }
}

/// Changes of a cell that leave zeros.
fn leaves_zeros(change: u64) -> bool {
    change.is_multiple_of(4)
}

/// How far a cell is: changes begun and changes complete.
#[derive(Default)]
struct Progress {
    begun: AtomicU64,
    complete: AtomicU64,
}

/// The subvolume, for all threads.
pub struct Shared<'a> {
    image: &'a Image,
    threads: u64,
    cells: Vec<Progress>,
    top: InodeRef,
    snaps: InodeRef,
    file: InodeRef,
    dirs: Vec<InodeRef>,
}

/// What a snapshot looked like when it was taken.
struct Taken {
    id: TreeId,
    name: String,
    read_only: bool,
    cells: Vec<u8>,
}

/// One thread's part in it.
pub struct Hand<'a> {
    shared: &'a Shared<'a>,
    thread: u64,
    copies: InodeRef,
    copied: Vec<Stamp>,
    /// Own names: directory, file or directory, inode number.
    names: BTreeMap<u64, (u64, FileKind, u64)>,
    snaps: Vec<Taken>,
    snaps_made: u64,
}

fn reported(e: FsError) -> String {
    e.to_string()
}

impl<'a> Shared<'a> {
    /// Makes the subvolume.
    pub fn new(image: &'a Image, threads: usize) -> Done<Shared<'a>> {
        let fs = image.fs();
        let root = fs.root(TreeId::FS).map_err(reported)?;
        let id = fs.subvol_create(&root, b"shared", &NewSubvol::default()).map_err(reported)?;
        let top = fs.root(id).map_err(reported)?;
        let dir = |at: &InodeRef, name: &str| fs.create(at, name.as_bytes(), &NewInode::new(NewKind::Dir, 0o755));
        let snaps = dir(&root, "snaps").map_err(reported)?;
        let dirs = (0..DIRS).map(|n| dir(&top, &format!("d{n}"))).collect::<Result<_, _>>().map_err(reported)?;
        let file = fs.create(&top, b"cells", &NewInode::new(NewKind::File, 0o644)).map_err(reported)?;
        fs.truncate(&file, CELLS * threads as u64 * SECTOR).map_err(reported)?;
        let cells = (0..CELLS * threads as u64).map(|_| Progress::default()).collect();
        Ok(Shared { image, threads: threads as u64, cells, top, snaps, file, dirs })
    }

    /// A thread's part.
    pub fn hand(&'a self, thread: usize) -> Hand<'a> {
        let name = format!("copies-{thread}");
        let copies = self.fs().create(&self.top, name.as_bytes(), &NewInode::new(NewKind::File, 0o644));
        let copies = copies.expect("a file for copies");
        self.fs().truncate(&copies, COPIES * SECTOR).expect("its length");
        Hand {
            shared: self,
            thread: thread as u64,
            copies,
            copied: vec![None; COPIES as usize],
            names: BTreeMap::new(),
            snaps: Vec::new(),
            snaps_made: 0,
        }
    }

    fn fs(&self) -> &Fs {
        self.image.fs()
    }

    fn owner(&self, cell: u64) -> u64 {
        cell % self.threads
    }

    fn read(&self, file: &InodeRef, sector: u64) -> Done<Vec<u8>> {
        let mut buf = vec![0xee; SECTOR as usize];
        let got = self.fs().read(file, sector * SECTOR, &mut buf).map_err(reported)?;
        if got == buf.len() { Ok(buf) } else { Err(format!("{got} bytes of sector {sector}")) }
    }

    fn complete(&self) -> Vec<u64> {
        self.cells.iter().map(|c| c.complete.load(SeqCst)).collect()
    }

    fn begun(&self) -> Vec<u64> {
        self.cells.iter().map(|c| c.begun.load(SeqCst)).collect()
    }

    /// Whether a cell may look like this, if `complete` changes were complete before the read and `begun` had begun
    /// after it.
    fn compare(&self, cell: u64, sector: &[u8], complete: u64, begun: u64) -> Done<Stamp> {
        let stamp = stamp_of(sector).map_err(|e| format!("cell {cell}: {e}"))?;
        let fits = match stamp {
            None => (complete..=begun).any(leaves_zeros),
            Some((thread, n, change)) => {
                thread == self.owner(cell) && n == cell && (complete..=begun).contains(&change) && !leaves_zeros(change)
            }
        };
        if fits { Ok(stamp) } else { Err(format!("cell {cell} shows {stamp:?}, not a change of {complete}..={begun}")) }
    }

    /// After all threads have finished: every cell shows its last change.
    pub fn verify(&self) -> Done {
        for (n, cell) in self.cells.iter().enumerate() {
            let last = cell.complete.load(SeqCst);
            self.compare(n as u64, &self.read(&self.file, n as u64)?, last, last)?;
        }
        Ok(())
    }
}

impl Hand<'_> {
    /// Some act.
    pub fn act(&self, rng: &mut Rng) -> Act {
        let cell = rng.below(CELLS * self.shared.threads);
        let (k, to, dir) = (rng.below(NAMES), rng.below(NAMES), rng.below(DIRS));
        match rng.below(60) {
            0..14 => Act::Cell { n: rng.below(CELLS) * self.shared.threads + self.thread },
            14..20 => Act::Look { cell },
            20..27 => Act::Copy { cell, to: rng.below(COPIES) },
            27..33 => Act::MakeFile { k, dir },
            33..36 => Act::MakeDir { k, dir },
            36..43 => Act::Move { k, to, dir },
            43..45 => Act::Exchange { k, with: to },
            45..48 => Act::Link { k, to, dir },
            48..52 => Act::Remove { k },
            52..54 => Act::List { dir },
            54 => Act::Snapshot { read_only: rng.one_in(2) },
            55 => Act::DropSnapshot,
            56..59 => Act::Fsync,
            _ => Act::Sync,
        }
    }

    fn name(&self, k: u64) -> Vec<u8> {
        format!("{}-{k}", self.thread).into_bytes()
    }

    /// Does it and looks whether what must hold does.
    pub fn run(&mut self, act: &Act) -> Done {
        let (shared, fs) = (self.shared, self.shared.fs());
        match *act {
            Act::Cell { n } => self.change(n),
            Act::Look { cell } => self.look(cell).map(drop),
            Act::Copy { cell, to } => self.copy(cell, to),
            Act::MakeFile { k, dir } => self.make(k, dir, NewKind::File),
            Act::MakeDir { k, dir } => self.make(k, dir, NewKind::Dir),
            Act::Move { k, to, dir } => self.rename(k, to, dir),
            Act::Exchange { k, with } => self.exchange(k, with),
            Act::Link { k, to, dir } => self.link(k, to, dir),
            Act::Remove { k } => self.remove(k),
            Act::List { dir } => self.list(&shared.dirs[dir as usize], dir),
            Act::Snapshot { read_only } => self.snapshot(read_only),
            Act::DropSnapshot => self.drop_snapshot(),
            Act::Fsync => fs.fsync(&shared.file).map_err(reported),
            Act::Sync => fs.sync().map(drop).map_err(reported),
        }
    }

    fn change(&self, cell: u64) -> Done {
        let (shared, fs) = (self.shared, self.shared.fs());
        let progress = &shared.cells[cell as usize];
        let change = progress.begun.fetch_add(1, SeqCst) + 1;
        let at = cell * SECTOR;
        match change % 16 {
            4 => fs.punch_hole(&shared.file, at, SECTOR),
            8 => fs.zero_range(&shared.file, at, SECTOR, KeepSize::Yes),
            n if n % 4 == 0 => fs.write(&shared.file, at, &sector_of(None)),
            _ => fs.write(&shared.file, at, &sector_of(Some((self.thread, cell, change)))),
        }
        .map_err(reported)?;
        progress.complete.store(change, SeqCst);
        self.look(cell).map(drop)
    }

    fn look(&self, cell: u64) -> Done<Stamp> {
        let progress = &self.shared.cells[cell as usize];
        let complete = progress.complete.load(SeqCst);
        let sector = self.shared.read(&self.shared.file, cell)?;
        self.shared.compare(cell, &sector, complete, progress.begun.load(SeqCst))
    }

    fn copy(&mut self, cell: u64, to: u64) -> Done {
        let shared = self.shared;
        let progress = &shared.cells[cell as usize];
        let complete = progress.complete.load(SeqCst);
        let range = CloneRange { from: cell * SECTOR, len: SECTOR, to: to * SECTOR };
        shared.fs().clone_range(&shared.file, &self.copies, &range).map_err(reported)?;
        let begun = progress.begun.load(SeqCst);
        self.copied[to as usize] = shared.compare(cell, &shared.read(&self.copies, to)?, complete, begun)?;
        Ok(())
    }

    /// All copies have their contents.
    fn check_copies(&self, copies: &InodeRef, but: &str) -> Done {
        for (n, want) in self.copied.iter().enumerate() {
            let have = stamp_of(&self.shared.read(copies, n as u64)?)?;
            if have != *want {
                return Err(format!("copy {n}{but}: {have:?}, it was {want:?}"));
            }
        }
        Ok(())
    }

    fn make(&mut self, k: u64, dir: u64, kind: NewKind<'_>) -> Done {
        let (fs, at, name) = (self.shared.fs(), &self.shared.dirs[dir as usize], self.name(k));
        if self.names.get(&k).is_some_and(|have| have.0 != dir) {
            return Ok(());
        }
        match (fs.create(at, &name, &NewInode::new(kind, 0o755)), self.names.contains_key(&k)) {
            (Err(FsError::Exists), true) => return Ok(()),
            (Ok(made), false) => {
                let kind = fs.attr(&made).kind;
                self.names.insert(k, (dir, kind, made.ino().0));
            }
            (answer, had) => return Err(format!("made: {:?}, was there: {had}", answer.err())),
        }
        self.check_name(k)
    }

    /// A name leads to what it should.
    fn check_name(&self, k: u64) -> Done {
        let want = self.names.get(&k);
        for (n, dir) in self.shared.dirs.iter().enumerate() {
            let want = want.filter(|w| w.0 == n as u64).map(|w| w.2);
            let have = self.shared.fs().lookup(dir, &self.name(k)).map_err(reported)?.map(|i| i.ino().0);
            if have != want {
                return Err(format!("name {k} in d{n}: {have:?}, not {want:?}"));
            }
        }
        Ok(())
    }

    fn dir_of(&self, k: u64) -> Option<&InodeRef> {
        self.names.get(&k).map(|n| &self.shared.dirs[n.0 as usize])
    }

    fn rename(&mut self, k: u64, to: u64, dir: u64) -> Done {
        let Some(from) = self.dir_of(k) else { return Ok(()) };
        // Onto another name only in the same directory; names stay unique.
        if to != k && self.names.contains_key(&to) {
            return Ok(());
        }
        let target = &self.shared.dirs[dir as usize];
        let renamed = self.shared.fs().rename(from, &self.name(k), target, &self.name(to), RenameMode::Replace);
        renamed.map_err(reported)?;
        if let Some((_, kind, ino)) = self.names.remove(&k) {
            self.names.insert(to, (dir, kind, ino));
        }
        self.check_name(k)?;
        self.check_name(to)
    }

    fn exchange(&mut self, k: u64, with: u64) -> Done {
        let (Some(a), Some(b)) = (self.dir_of(k), self.dir_of(with)) else { return Ok(()) };
        let done = self.shared.fs().rename(a, &self.name(k), b, &self.name(with), RenameMode::Exchange);
        done.map_err(reported)?;
        if let (Some(a), Some(b)) = (self.names.get(&k).copied(), self.names.get(&with).copied()) {
            self.names.insert(k, (a.0, b.1, b.2));
            self.names.insert(with, (b.0, a.1, a.2));
        }
        self.check_name(k)?;
        self.check_name(with)
    }

    fn link(&mut self, k: u64, to: u64, dir: u64) -> Done {
        let fs = self.shared.fs();
        let Some((_, kind, ino)) = self.names.get(&k).copied() else { return Ok(()) };
        if kind != FileKind::File || self.names.contains_key(&to) {
            return Ok(());
        }
        let from = self.dir_of(k).ok_or("no directory")?;
        let file = fs.lookup(from, &self.name(k)).map_err(reported)?.ok_or("a name is gone")?;
        fs.link(&file, &self.shared.dirs[dir as usize], &self.name(to)).map_err(reported)?;
        self.names.insert(to, (dir, kind, ino));
        self.check_name(to)?;
        let links = self.names.values().filter(|n| n.2 == ino).count();
        let have = fs.attr(&file).nlink;
        if u64::from(have) == links as u64 { Ok(()) } else { Err(format!("{have} links, not {links}")) }
    }

    fn remove(&mut self, k: u64) -> Done {
        let Some(dir) = self.dir_of(k) else { return Ok(()) };
        let (fs, name) = (self.shared.fs(), self.name(k));
        let is_dir = self.names.get(&k).is_some_and(|n| n.1 == FileKind::Dir);
        if is_dir { fs.rmdir(dir, &name) } else { fs.unlink(dir, &name) }.map_err(reported)?;
        self.names.remove(&k);
        self.check_name(k)
    }

    /// A listing shows each own name once, whatever others do meanwhile.
    fn list(&self, dir: &InodeRef, number: u64) -> Done {
        let mine = format!("{}-", self.thread).into_bytes();
        let (mut found, mut after) = (Vec::new(), 0);
        loop {
            let batch = self.shared.fs().readdir(dir, after, 7).map_err(reported)?;
            let Some(last) = batch.last() else { break };
            after = last.index;
            found.extend(batch.into_iter().filter(|e| e.name.starts_with(&mine)).map(|e| e.name));
        }
        found.sort_unstable();
        let mut want: Vec<_> = self.names.iter().filter(|n| n.1.0 == number).map(|n| self.name(*n.0)).collect();
        want.sort_unstable();
        if found == want { Ok(()) } else { Err(format!("listed {} own names, there are {}", found.len(), want.len())) }
    }

    fn snapshot(&mut self, read_only: bool) -> Done {
        if self.snaps.len() >= SNAPS_MAX {
            return self.drop_snapshot();
        }
        let (shared, fs) = (self.shared, self.shared.fs());
        let name = format!("s{}-{}", self.thread, self.snaps_made);
        self.snaps_made += 1;
        let complete = shared.complete();
        let options = SnapshotOptions::default().read_only(read_only);
        let id = fs.snapshot(shared.top.tree(), &shared.snaps, name.as_bytes(), options).map_err(reported)?;
        let begun = shared.begun();
        let top = fs.root(id).map_err(reported)?;
        let find = |name: &str| fs.lookup(&top, name.as_bytes()).map_err(reported)?.ok_or(format!("no {name} in it"));
        let cells = find("cells")?;
        for n in 0..shared.cells.len() {
            let sector = shared.read(&cells, n as u64)?;
            shared.compare(n as u64, &sector, complete[n], begun[n]).map_err(|e| format!("in {name}: {e}"))?;
        }
        self.check_copies(&find(&format!("copies-{}", self.thread))?, " in a snapshot")?;
        for n in 0..DIRS {
            self.list(&find(&format!("d{n}"))?, n).map_err(|e| format!("in {name}: {e}"))?;
        }
        if !read_only {
            // What is written there stays there.
            let cell = self.thread;
            fs.write(&cells, cell * SECTOR, &sector_of(Some((u64::MAX - 1, 0, 0)))).map_err(reported)?;
            self.look(cell)?;
        }
        let cells = self.cells_of(id)?;
        self.snaps.push(Taken { id, name, read_only, cells });
        Ok(())
    }

    fn cells_of(&self, id: TreeId) -> Done<Vec<u8>> {
        let fs = self.shared.fs();
        let top = fs.root(id).map_err(reported)?;
        let cells = fs.lookup(&top, b"cells").map_err(reported)?.ok_or("no cells")?;
        let mut all = vec![0; self.shared.cells.len() * SECTOR as usize];
        fs.read(&cells, 0, &mut all).map_err(reported)?;
        Ok(all)
    }

    fn drop_snapshot(&mut self) -> Done {
        if self.snaps.is_empty() {
            return Ok(());
        }
        let taken = self.snaps.remove(0);
        self.check_snapshot(&taken)?;
        self.shared.fs().subvol_delete(taken.id).map_err(reported)?;
        match self.shared.fs().lookup(&self.shared.snaps, taken.name.as_bytes()).map_err(reported)? {
            None => Ok(()),
            Some(_) => Err(format!("{} is still there", taken.name)),
        }
    }

    fn check_snapshot(&self, taken: &Taken) -> Done {
        if self.cells_of(taken.id)? == taken.cells {
            return Ok(());
        }
        Err(format!(
            "{} has changed ({})",
            taken.name,
            if taken.read_only { "read-only" } else { "nobody wrote to it" }
        ))
    }

    /// Everything is as it was left.
    pub fn finish(&mut self) -> Done {
        (0..NAMES).try_for_each(|k| self.check_name(k))?;
        self.check_copies(&self.copies, "")?;
        self.snaps.iter().try_for_each(|taken| self.check_snapshot(taken))
    }
}
