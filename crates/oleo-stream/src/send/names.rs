//! Names first: turns the parent's directories into the subvolume's, before any data is sent.
//!
//! Normal path: (1) [`collect`] goes through the difference and keeps the changes of names: new directories, inodes
//! that got or lost names, inodes that are gone; (2) [`Plan::run`] turns this into commands, in three passes:
//! - directories, the topmost of the subvolume first: each is created, or moved to its place. Everything above its new
//!   place is already in place, so the new place cannot be below the directory itself, however the moves are tangled;
//! - other inodes that both sides have: renamed, or linked and unlinked;
//! - what is gone: names first, then directories, the deepest first.
//!
//! An inode in the way of a name is itself on the list, since it has another name or none in the subvolume. It is
//! unlinked if that has to happen anyway, and otherwise gets a temporary name at the top that neither side has, until
//! its turn comes.
//!
//! Afterwards every directory has its path in the subvolume, and all names of new files are free: these are created
//! when their contents are sent. So paths in the rest of the stream are those of the subvolume, and no clone source is
//! renamed, replaced or removed after it was named.
//!
//! Memory: new directories, and names that changed or were removed; new files take none.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use oleo_format::stream::Command;
use oleo_format::{DirEntryRef, Ino, InodeFlags, ItemType, Key, dir_hash};
use oleo_fs::FileKind;
use oleo_fs::InodeFields;

use super::SendError;
use super::paths::{DEPTH_MAX, Paths, bounded, join};
use super::walk::{self, Head, InodeVisitor, Name, Sides, fields, part};

/// Attributes of a directory that new entries inherit.
pub(super) const INHERITED: [&[u8]; 2] = [b"system.posix_acl_default", b"btrfs.compression"];

/// Flags that keep an inode from being changed, or its entries.
pub(super) const PROTECTED: InodeFlags = InodeFlags::IMMUTABLE.union(InodeFlags::APPEND);

/// An inode. A number may mean two inodes; `old` marks the parent's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Id {
    ino: u64,
    old: bool,
}

/// A place for a name.
type Place = (Id, Box<[u8]>);

/// An inode that both sides have, under other names.
#[derive(Default, Debug)]
struct Changed {
    is_dir: bool,
    /// Generation, for the name that it may get for a while.
    generation: u64,
    /// It has names that stay.
    keeps: bool,
    /// Names of the parent that go. Those that are still there.
    removed: Vec<Name>,
    /// Names that come.
    added: Vec<Name>,
    /// Those of them that are there.
    placed: Vec<Name>,
}

struct Gone {
    ino: u64,
    is_dir: bool,
    generation: u64,
    names: Vec<Name>,
}

/// The changes of names.
#[derive(Default)]
pub(super) struct Plan {
    replaced: HashSet<u64>,
    new_dirs: Vec<(u64, Name)>,
    changed: BTreeMap<u64, Changed>,
    gone: Vec<Gone>,
    /// Directories of the parent in which inodes are made.
    hosts: HashSet<u64>,
    /// Inodes of the parent that may not be changed as they are, and their flags.
    protected: Vec<(u64, InodeFlags)>,
}

struct Collect {
    plan: Plan,
    last_host: u64,
}

impl InodeVisitor for Collect {
    fn gone(&mut self, ino: u64, fields: &InodeFields, names: Vec<Name>) -> Result<(), SendError> {
        let is_dir = FileKind::of_mode(fields.mode) == FileKind::Dir;
        self.plan.note_protected(ino, fields);
        self.plan.gone.push(Gone { ino, is_dir, generation: fields.generation, names });
        Ok(())
    }

    fn replaced(&mut self, ino: u64) {
        self.plan.replaced.insert(ino);
    }

    fn head(&mut self, head: Head) -> Result<bool, SendError> {
        let is_dir = FileKind::of_mode(head.now.mode) == FileKind::Dir;
        if let Some(before) = &head.before {
            self.plan.note_protected(head.ino, before);
        }
        if head.ino == Ino::ROOT_DIR.0 {
            return Ok(false);
        }
        if head.before.is_none() {
            for name in &head.new.names {
                // Children of one directory come in rows.
                if name.dir != self.last_host {
                    self.last_host = name.dir;
                    self.plan.hosts.insert(name.dir);
                }
            }
            if is_dir && let Some(name) = head.new.names.into_iter().next() {
                self.plan.new_dirs.push((head.ino, name));
            }
            return Ok(false);
        }
        let before: HashSet<Name> = head.old.names.into_iter().collect();
        let now: HashSet<Name> = head.new.names.into_iter().collect();
        if before == now {
            return Ok(false);
        }
        let mut removed: Vec<Name> = before.difference(&now).cloned().collect();
        let mut added: Vec<Name> = now.difference(&before).cloned().collect();
        removed.sort();
        added.sort();
        let keeps = (head.now.nlink as usize) > added.len();
        let generation = head.now.generation;
        self.plan.changed.insert(head.ino, Changed { is_dir, generation, keeps, removed, added, placed: Vec::new() });
        Ok(false)
    }
}

/// Goes through the difference once.
pub(super) fn collect(sides: &Sides<'_>) -> Result<Plan, SendError> {
    let mut collect = Collect { plan: Plan::default(), last_host: 0 };
    walk::walk(sides, &mut collect)?;
    collect.plan.move_children(sides)?;
    Ok(collect.plan)
}

impl Plan {
    fn note_protected(&mut self, ino: u64, before: &InodeFields) {
        let flags = InodeFlags::from_bits_retain(before.flags);
        if flags.intersects(PROTECTED) {
            self.protected.push((ino, flags));
        }
    }

    /// Entries that are the same on both sides, but in a directory that is another one with the same number: no item of
    /// theirs differs, and still they move.
    fn move_children(&mut self, sides: &Sides<'_>) -> Result<(), SendError> {
        let Some(old) = &sides.old else { return Ok(()) };
        let mut dirs: Vec<u64> = self.replaced.iter().copied().collect();
        dirs.sort_unstable();
        for dir in dirs {
            let (from, to) = (Key::new(dir, ItemType::DIR_INDEX, 0), Key::new(dir, ItemType::DIR_INDEX, u64::MAX));
            let mut children = Vec::new();
            sides.blocks.scan(old, from, to, |_, item| {
                for entry in DirEntryRef::iter(item) {
                    let entry = entry?;
                    if entry.location.item_type == ItemType::INODE_ITEM {
                        children.push((entry.location.objectid, Name { dir, name: entry.name.into() }));
                    }
                }
                Ok::<_, SendError>(ControlFlow::Continue(()))
            })?;
            for (ino, name) in children {
                if self.replaced.contains(&ino) {
                    continue;
                }
                let now = fields(sides.blocks, &sides.new, ino)?.filter(|f| f.nlink > 0);
                let before = fields(sides.blocks, old, ino)?.filter(|f| f.nlink > 0);
                let (Some(now), Some(_)) = (now, before) else { continue };
                let names = part(sides.blocks, &sides.new, ino)?.names;
                if !names.contains(&name) {
                    continue;
                }
                let changed = self.changed.entry(ino).or_insert_with(|| Changed {
                    is_dir: FileKind::of_mode(now.mode) == FileKind::Dir,
                    generation: now.generation,
                    ..Changed::default()
                });
                changed.removed.push(name.clone());
                changed.added.push(name);
                changed.keeps = names.len() > changed.added.len();
            }
        }
        Ok(())
    }
}

/// The flags of an inode as the stream has them: those that describe the file itself.
pub(super) fn sent_flags(flags: InodeFlags) -> u64 {
    (flags - InodeFlags::ROOT_ITEM_INIT).bits() & u64::from(u32::MAX)
}

/// What running a plan leaves to be done later.
#[derive(Default)]
pub(super) struct Leftover {
    /// Directories of the parent whose inherited attributes were removed; they are restored.
    pub bare: Vec<u64>,
    /// Names were made for a while in the root directory.
    pub top_touched: bool,
}

/// The holder of a name of the parent that is to be removed.
#[derive(Clone, Copy)]
enum Holder {
    Gone(usize),
    Changed(u64),
}

struct Run<'r, 'e> {
    sides: &'r Sides<'e>,
    emit: &'r mut dyn FnMut(&Command<'_>) -> Result<(), SendError>,
    plan: Plan,
    old: Option<Paths<'e>>,
    new: &'r mut Paths<'e>,
    /// Names of the parent that go, and are still there.
    taken: HashMap<Place, Holder>,
    /// Inodes under a name for a while, in the root directory.
    parked: HashMap<Id, Vec<u8>>,
    /// Directories that are in place, though they were elsewhere in the parent, or nowhere.
    settled: HashSet<u64>,
    /// Paths of directories as they are now, in the last pass.
    known: Option<HashMap<Id, Arc<[u8]>>>,
    left: Leftover,
}

impl Plan {
    /// Sends the commands that turn the parent's names into the subvolume's, except for new inodes that are not
    /// directories.
    pub fn run<'e>(
        self,
        sides: &Sides<'e>,
        new: &mut Paths<'e>,
        version: u32,
        emit: &mut dyn FnMut(&Command<'_>) -> Result<(), SendError>,
    ) -> Result<Leftover, SendError> {
        let old = sides.old.as_ref().map(|root| Paths::new(sides.blocks, root));
        let mut run = Run {
            sides,
            emit,
            plan: self,
            old,
            new,
            taken: HashMap::new(),
            parked: HashMap::new(),
            settled: HashSet::new(),
            known: None,
            left: Leftover::default(),
        };
        run.take_names();
        run.unprotect(version)?;
        run.bare_hosts()?;
        run.directories()?;
        run.others()?;
        run.remove_gone()?;
        Ok(run.left)
    }
}

impl Run<'_, '_> {
    /// The parent's inode of this number.
    fn old_id(&self, ino: u64) -> Id {
        Id { ino, old: self.plan.replaced.contains(&ino) }
    }

    fn take_names(&mut self) {
        let mut taken = HashMap::new();
        for (index, gone) in self.plan.gone.iter().enumerate() {
            for name in &gone.names {
                taken.insert((self.old_id(name.dir), name.name.clone()), Holder::Gone(index));
            }
        }
        for (ino, changed) in &self.plan.changed {
            for name in &changed.removed {
                taken.insert((self.old_id(name.dir), name.name.clone()), Holder::Changed(*ino));
            }
        }
        self.taken = taken;
    }

    /// If the stream carries flags, the receiver obeys them.
    fn unprotect(&mut self, version: u32) -> Result<(), SendError> {
        if version < 2 {
            return Ok(());
        }
        for (ino, flags) in std::mem::take(&mut self.plan.protected) {
            let path = match &mut self.old {
                Some(old) => old.any(ino)?,
                None => None,
            };
            if let Some(path) = path {
                (self.emit)(&Command::FileAttr { path: &path, attr: sent_flags(flags - PROTECTED) })?;
            }
        }
        Ok(())
    }

    /// Takes from directories what entries made in them would inherit.
    fn bare_hosts(&mut self) -> Result<(), SendError> {
        let Some(root) = &self.sides.old else { return Ok(()) };
        let mut hosts: Vec<u64> = self.plan.hosts.iter().copied().collect();
        hosts.sort_unstable();
        for ino in hosts {
            if self.plan.replaced.contains(&ino) {
                continue;
            }
            for name in INHERITED {
                if walk::xattr(self.sides.blocks, root, ino, name)?.is_some() {
                    let path = self.dir_path(Id { ino, old: false })?;
                    (self.emit)(&Command::RemoveXattr { path: &path, name })?;
                    if self.left.bare.last() != Some(&ino) {
                        self.left.bare.push(ino);
                    }
                }
            }
        }
        Ok(())
    }

    /// The path that a directory has now.
    fn dir_path(&mut self, id: Id) -> Result<Arc<[u8]>, SendError> {
        let mut at = id;
        let mut names: Vec<Box<[u8]>> = Vec::new();
        let mut path = loop {
            if let Some(known) = self.known.as_ref().and_then(|known| known.get(&at)) {
                break known.to_vec();
            }
            if at.ino == Ino::ROOT_DIR.0 {
                break Vec::new();
            }
            if let Some(name) = self.parked.get(&at) {
                break name.clone();
            }
            if !at.old && self.settled.contains(&at.ino) {
                break self.new.dir(at.ino)?.to_vec();
            }
            let name = match &mut self.old {
                Some(old) => old.name(at.ino)?,
                None => None,
            };
            let Some(name) = name.filter(|_| names.len() < DEPTH_MAX) else {
                return Err(oleo_format::Corruption::new("inode references", "way to the root", "none", "one")
                    .within(format!("directory {}", at.ino))
                    .into());
            };
            names.push(name.name);
            at = self.old_id(name.dir);
        };
        for name in names.into_iter().rev() {
            join(&mut path, &name);
        }
        bounded(&path)?;
        let path: Arc<[u8]> = path.into();
        if let Some(known) = &mut self.known {
            known.insert(id, path.clone());
        }
        Ok(path)
    }

    /// The path that a name of the parent has now.
    fn old_path(&mut self, name: &Name) -> Result<Vec<u8>, SendError> {
        let mut path = self.dir_path(self.old_id(name.dir))?.to_vec();
        join(&mut path, &name.name);
        bounded(&path)?;
        Ok(path)
    }

    /// The path of a name of the subvolume whose directory is in place.
    fn new_path(&mut self, name: &Name) -> Result<Vec<u8>, SendError> {
        self.new.of_name(name)
    }

    fn rename(&mut self, path: &[u8], to: &[u8]) -> Result<(), SendError> {
        (self.emit)(&Command::Rename { path, to })
    }

    /// The path of an inode under one of its names of the parent that go, or its name for a while; it has none there
    /// afterwards.
    fn leave(&mut self, ino: u64) -> Result<Option<Vec<u8>>, SendError> {
        if let Some(name) = self.parked.remove(&Id { ino, old: false }) {
            return Ok(Some(name));
        }
        let Some(name) = self.plan.changed.get_mut(&ino).and_then(|c| c.removed.pop()) else { return Ok(None) };
        let path = self.old_path(&name)?;
        self.taken.remove(&(self.old_id(name.dir), name.name));
        Ok(Some(path))
    }

    /// Makes a name of the subvolume free.
    fn clear(&mut self, target: &Name) -> Result<(), SendError> {
        let place = (Id { ino: target.dir, old: false }, target.name.clone());
        let Some(holder) = self.taken.remove(&place) else { return Ok(()) };
        let path = self.new_path(target)?;
        match holder {
            Holder::Gone(index) => {
                let gone = &mut self.plan.gone[index];
                if gone.is_dir {
                    let id = Id { ino: gone.ino, old: self.plan.replaced.contains(&gone.ino) };
                    let generation = gone.generation;
                    return self.park(id, generation, &path);
                }
                gone.names.retain(|name| name != target);
                (self.emit)(&Command::Unlink { path: &path })
            }
            Holder::Changed(ino) => {
                let Some(changed) = self.plan.changed.get_mut(&ino) else { return Ok(()) };
                changed.removed.retain(|name| name != target);
                let has_more = changed.keeps || !changed.removed.is_empty() || !changed.placed.is_empty();
                if !changed.is_dir && has_more {
                    return (self.emit)(&Command::Unlink { path: &path });
                }
                let generation = changed.generation;
                self.park(Id { ino, old: false }, generation, &path)
            }
        }
    }

    /// Gives an inode a name for a while.
    fn park(&mut self, id: Id, generation: u64, path: &[u8]) -> Result<(), SendError> {
        let mut number = 0;
        let name = loop {
            let name = format!("o{}-{generation}-{number}", id.ino).into_bytes();
            if !self.is_used(&name)? {
                break name;
            }
            number += 1;
        };
        self.rename(path, &name)?;
        self.left.top_touched = true;
        self.parked.insert(id, name);
        Ok(())
    }

    /// Whether the root directory has an entry of that name, on either side. Names for a while are all different.
    fn is_used(&self, name: &[u8]) -> Result<bool, SendError> {
        let key = Key::new(Ino::ROOT_DIR.0, ItemType::DIR_ITEM, u64::from(dir_hash(name)));
        for root in [Some(&self.sides.new), self.sides.old.as_ref()].into_iter().flatten() {
            if self.sides.blocks.get(root, &key)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Directories that are new, or have another name: the topmost first.
    fn directories(&mut self) -> Result<(), SendError> {
        let mut dirs: Vec<(usize, u64, Name, bool)> = Vec::new();
        for (ino, name) in std::mem::take(&mut self.plan.new_dirs) {
            dirs.push((0, ino, name, true));
        }
        for (ino, changed) in &self.plan.changed {
            if changed.is_dir
                && let Some(name) = changed.added.first()
            {
                dirs.push((0, *ino, name.clone(), false));
            }
        }
        for (depth, ino, _, _) in &mut dirs {
            *depth = self.new.dir(*ino)?.iter().filter(|b| **b == b'/').count();
        }
        dirs.sort_by_key(|(depth, ino, _, _)| (*depth, *ino));
        for (_, ino, name, is_new) in dirs {
            self.clear(&name)?;
            let path = self.new_path(&name)?;
            if is_new {
                (self.emit)(&Command::MkDir { path: &path, ino })?;
            } else if let Some(from) = self.leave(ino)? {
                self.rename(&from, &path)?;
            }
            self.settled.insert(ino);
        }
        Ok(())
    }

    /// Other inodes that both sides have.
    fn others(&mut self) -> Result<(), SendError> {
        let inos: Vec<u64> = self.plan.changed.iter().filter(|(_, c)| !c.is_dir).map(|(ino, _)| *ino).collect();
        for ino in inos {
            let added = self.plan.changed.get(&ino).map_or(Vec::new(), |c| c.added.clone());
            for name in added {
                self.clear(&name)?;
                let to = self.new_path(&name)?;
                match self.leave(ino)? {
                    Some(from) => self.rename(&from, &to)?,
                    None => {
                        let target = self.existing(ino)?;
                        (self.emit)(&Command::Link { path: &to, target: &target })?;
                    }
                }
                if let Some(changed) = self.plan.changed.get_mut(&ino) {
                    changed.placed.push(name);
                }
            }
            while let Some(path) = self.leave(ino)? {
                (self.emit)(&Command::Unlink { path: &path })?;
            }
        }
        Ok(())
    }

    /// The path of a name that an inode has and keeps.
    fn existing(&mut self, ino: u64) -> Result<Vec<u8>, SendError> {
        let Some(changed) = self.plan.changed.get(&ino) else { return Ok(Vec::new()) };
        let name = match changed.placed.first() {
            Some(name) => Some(name.clone()),
            None => {
                let names = part(self.sides.blocks, &self.sides.new, ino)?.names;
                names.into_iter().find(|name| !changed.added.contains(name))
            }
        };
        let name = name.ok_or_else(|| {
            oleo_format::Corruption::new("inode", "names", "fewer than its count says", "as many")
                .within(format!("inode {ino}"))
        })?;
        self.new_path(&name)
    }

    /// What the subvolume has not.
    fn remove_gone(&mut self) -> Result<(), SendError> {
        self.known = Some(HashMap::new());
        let gone = std::mem::take(&mut self.plan.gone);
        for gone in gone.iter().filter(|gone| !gone.is_dir) {
            for name in &gone.names {
                let path = self.old_path(name)?;
                (self.emit)(&Command::Unlink { path: &path })?;
            }
        }
        let mut dirs = Vec::new();
        for gone in gone.iter().filter(|gone| gone.is_dir) {
            let path = self.dir_path(self.old_id(gone.ino))?;
            dirs.push((path.iter().filter(|b| **b == b'/').count(), path));
        }
        dirs.sort_by(|a, b| b.cmp(a));
        for (_, path) in dirs {
            (self.emit)(&Command::RmDir { path: &path })?;
        }
        Ok(())
    }
}
