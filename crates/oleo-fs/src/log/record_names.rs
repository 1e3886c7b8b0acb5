//! Names in the log: a directory's entries, an inode's references, and who else is concerned by them.
//!
//! A replay starts from the tree of the last commit and has only the inodes in the log. Whatever it takes away from a name
//! must not be the last one of an inode that lives: those inodes are logged too, with the names they have now. The rules are
//! in the essay of this module's parent.

use hashbrown::HashSet;
use oleo_format::{DirItem, Ino, ItemType, Key, dir_hash};
use oleo_txn::fallback;

use crate::items::dir::{self, Target};
use crate::items::refs::{self, NameOf};
use crate::log::mark::Depth;
use crate::log::record::{Item, Recorder};
use crate::object::{InodeFields, Items, WriteGuard};
use crate::ranges::Ranges;
use crate::{FileKind, FsError};

/// Directories from any to the root at most: more than the longest path has.
const DEPTH_MAX: usize = 1 << 20;

/// What an entry item of a directory leads to.
fn target_of(item: &[u8]) -> Result<Target, FsError> {
    Target::of(Key::from(DirItem::parse_prefix(item)?.0.location))
}

/// The names in reference items.
fn names_of(items: &[Item]) -> Result<Vec<NameOf>, FsError> {
    let mut names = Vec::new();
    for (key, item) in items {
        names.append(&mut refs::parse(key.item_type, key.offset, item)?);
    }
    Ok(names)
}

impl Recorder<'_> {
    /// The entries of a directory that have changed. Answers whose committed entries go.
    pub(super) fn entries(
        &mut self,
        guard: &WriteGuard<'_>,
        indices: &[u64],
        uncommitted: bool,
    ) -> Result<Vec<Ino>, FsError> {
        let ino = guard.inode().ino();
        let mut gone = Vec::new();
        for &index in indices {
            let key = Key::new(ino.0, ItemType::DIR_INDEX, index);
            if let Some(item) = guard.get(ItemType::DIR_INDEX, index)? {
                match target_of(&item)? {
                    Target::Inode(target) => self.named(target, &item)?,
                    Target::Subvol(_) => self.refused = Some(fallback::SUBVOLUME_ENTRY),
                }
                self.put(key, (*item).into());
                continue;
            }
            self.delete(key);
            let old = if uncommitted { None } else { self.committed(&key)? };
            if let Some(old) = old {
                match target_of(&old)? {
                    Target::Inode(target) => gone.push(target),
                    Target::Subvol(_) => self.refused = Some(fallback::SUBVOLUME_ENTRY),
                }
                self.range(ino, index);
            }
        }
        Ok(gone)
    }

    /// An entry of a logged directory names it. New directories are logged with what is in them.
    fn named(&mut self, target: Ino, entry: &[u8]) -> Result<(), FsError> {
        let kind = FileKind::of_disk(DirItem::parse_prefix(entry)?.0.r#type)?;
        let committed = Key::new(target.0, ItemType::INODE_ITEM, 0);
        let new_dir = kind == FileKind::Dir && self.committed(&committed)?.is_none();
        self.add(target, if new_dir { Depth::Whole } else { Depth::Exists });
        Ok(())
    }

    /// At this index of a directory a replay deletes the entry, unless the log has it.
    fn range(&mut self, dir: Ino, index: u64) {
        self.gone.entry(dir).or_default().add(index, index + 1);
    }

    /// Puts ranges of deleted indices: those of the log that they touch become part of them.
    pub(super) fn put_ranges(&mut self, dir: Ino, mut ranges: Ranges) -> Result<(), FsError> {
        let key = |index| Key::new(dir.0, ItemType::DIR_LOG_INDEX, index);
        // The log's own ranges do not touch each other: the second round finds what the first has widened, and no more.
        loop {
            let before = ranges.list();
            for (from, to) in &before {
                let mut near = self.logged_items(dir, ItemType::DIR_LOG_INDEX, *from, *to)?;
                near.extend(self.last_logged(key(*from))?);
                for (at, item) in near {
                    let end = item.first_chunk::<8>().map_or(at.offset, |bytes| u64::from_le_bytes(*bytes));
                    let end = end.saturating_add(1).max(at.offset);
                    if end >= *from {
                        ranges.add(at.offset, end);
                        self.delete(at);
                    }
                }
            }
            if ranges.list() == before {
                break;
            }
        }
        for (from, to) in ranges.list() {
            self.put(key(from), (to - 1).to_le_bytes().into());
        }
        Ok(())
    }

    /// What the names of a logged inode mean for others.
    pub(super) fn names(&mut self, ino: Ino, now: &[NameOf], uncommitted: bool) -> Result<(), FsError> {
        let committed = if uncommitted { Vec::new() } else { self.committed_names(ino)? };
        // There may be tens of thousands of names.
        let of_now: HashSet<&NameOf> = now.iter().collect();
        let of_commit: HashSet<&NameOf> = committed.iter().collect();
        for name in now.iter().filter(|name| !of_commit.contains(name)) {
            self.conflict(ino, name)?;
            self.climb(name.parent)?;
        }
        for name in committed.iter().filter(|name| !of_now.contains(name)) {
            self.left(name)?;
        }
        for name in self.logged_names(ino)?.iter().filter(|name| !of_now.contains(name)) {
            self.delete(Key::new(name.parent.0, ItemType::DIR_INDEX, name.index));
            self.successor(name)?;
            self.uncovered(name)?;
        }
        Ok(())
    }

    /// A name goes from the log or in the replay. If another inode has it by now, it has had an owner all the time, and
    /// must have one in the replay: that inode is logged too.
    fn successor(&mut self, name: &NameOf) -> Result<(), FsError> {
        let Some(dir) = self.core.inode(&self.subvol, name.parent)? else { return Ok(()) };
        let guard = dir.read();
        let found = dir::find(&guard, &name.name)?;
        drop(guard);
        match found {
            Some((Target::Inode(owner), _)) => self.add(owner, Depth::Exists),
            Some((Target::Subvol(_), _)) => self.refused = Some(fallback::SUBVOLUME_ENTRY),
            None => {}
        }
        Ok(())
    }

    pub(super) fn committed_names(&self, ino: Ino) -> Result<Vec<NameOf>, FsError> {
        let mut items = self.committed_items(ino, ItemType::INODE_REF, 0)?;
        items.append(&mut self.committed_items(ino, ItemType::INODE_EXTREF, 0)?);
        names_of(&items)
    }

    fn logged_names(&self, ino: Ino) -> Result<Vec<NameOf>, FsError> {
        let mut items = self.logged_items(ino, ItemType::INODE_REF, 0, u64::MAX)?;
        items.append(&mut self.logged_items(ino, ItemType::INODE_EXTREF, 0, u64::MAX)?);
        names_of(&items)
    }

    /// The inode that had the name in the last commit loses it to `ino` in the replay.
    fn conflict(&mut self, ino: Ino, name: &NameOf) -> Result<(), FsError> {
        match self.committed_owner(name)? {
            Some(Target::Inode(old)) if old != ino => self.displaced(old)?,
            Some(Target::Subvol(_)) => self.refused = Some(fallback::SUBVOLUME_ENTRY),
            _ => {}
        }
        Ok(())
    }

    /// A name leaves the log with which a logged inode took the place of another: one that is gone since would be back.
    fn uncovered(&mut self, name: &NameOf) -> Result<(), FsError> {
        let Some(Target::Inode(old)) = self.committed_owner(name)? else { return Ok(()) };
        if let Some(inode) = self.core.inode(&self.subvol, old)? {
            let guard = inode.read();
            if !guard.state().gone && guard.fields().nlink > 0 {
                return Ok(());
            }
        }
        self.end(old);
        Ok(())
    }

    fn committed_owner(&self, name: &NameOf) -> Result<Option<Target>, FsError> {
        let key = Key::new(name.parent.0, ItemType::DIR_ITEM, u64::from(dir_hash(&name.name)));
        let Some(item) = self.committed(&key)? else { return Ok(None) };
        for entry in dir::entries(&item) {
            let entry = entry?;
            if entry.name != name.name {
                continue;
            }
            return Ok(Some(Target::of(Key::from(entry.head.location))?));
        }
        Ok(None)
    }

    /// An inode loses a name that it had in the last commit. If it lives, its names of now are logged; if it is a directory
    /// that is gone, the same goes for all that it held.
    pub(super) fn displaced(&mut self, ino: Ino) -> Result<(), FsError> {
        if let Some(inode) = self.core.inode(&self.subvol, ino)? {
            let guard = inode.read();
            let (dead, kind) = (guard.state().gone || guard.fields().nlink == 0, guard.fields().kind());
            drop(guard);
            if !dead {
                self.add(ino, Depth::Exists);
                return Ok(());
            }
            if kind != FileKind::Dir {
                return Ok(());
            }
        }
        self.end(ino);
        Ok(())
    }

    /// A name of the last commit that is no more: its entry must go.
    fn left(&mut self, name: &NameOf) -> Result<(), FsError> {
        let dead = match self.core.inode(&self.subvol, name.parent)? {
            None => true,
            Some(dir) => {
                let guard = dir.read();
                guard.state().gone || guard.fields().nlink == 0
            }
        };
        if dead {
            self.end(name.parent);
            return Ok(());
        }
        self.add(name.parent, Depth::Exists);
        self.range(name.parent, name.index);
        self.successor(name)
    }

    /// The directories from one to the root: those that are new, or have another name than in the last commit, are logged.
    fn climb(&mut self, from: Ino) -> Result<(), FsError> {
        let mut at = from;
        for _ in 0..DEPTH_MAX {
            if at == Ino::ROOT_DIR || !self.climbed.insert(at) {
                return Ok(());
            }
            let Some(dir) = self.core.inode(&self.subvol, at)? else { return Ok(()) };
            let guard = dir.read();
            let state = guard.state();
            let moved = state.has_open_of(ItemType::INODE_REF) || state.has_open_of(ItemType::INODE_EXTREF);
            let parent = refs::parent(&guard)?;
            drop(guard);
            if moved {
                self.add(at, Depth::Exists);
            }
            let Some(parent) = parent else { return Ok(()) };
            at = parent;
        }
        Err(FsError::corrupt("directory", at, "depth", "endless", "a way to the root"))
    }

    /// An inode that has no name any more: the log forgets it, and its committed names go.
    pub(super) fn record_end(&mut self, ino: Ino) -> Result<(), FsError> {
        for name in self.logged_names(ino)? {
            self.delete(Key::new(name.parent.0, ItemType::DIR_INDEX, name.index));
            self.successor(&name)?;
            self.uncovered(&name)?;
        }
        let sector = u64::from(self.core.engine().sectorsize());
        for (key, item) in self.all_logged_items(ino)? {
            self.delete(key);
            if key.item_type == ItemType::EXTENT_DATA {
                self.drop_csums(&key, &item, sector)?;
            }
        }
        let key = Key::new(ino.0, ItemType::INODE_ITEM, 0);
        let Some(item) = self.committed(&key)? else { return Ok(()) };
        let kind = InodeFields::parse(&item, key)?.kind();
        for name in self.committed_names(ino)? {
            self.left(&name)?;
        }
        if kind == FileKind::Dir {
            for (_, entry) in self.committed_items(ino, ItemType::DIR_INDEX, 0)? {
                match target_of(&entry)? {
                    Target::Inode(child) => self.displaced(child)?,
                    Target::Subvol(_) => self.refused = Some(fallback::SUBVOLUME_ENTRY),
                }
            }
        }
        Ok(())
    }
}
