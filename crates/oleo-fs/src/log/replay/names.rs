//! Names of the log: entries that go, entries that come, and what becomes of inodes by it.

use std::collections::BTreeSet;
use std::sync::Arc;

use oleo_format::{Ino, ItemType, Key};

use super::{BATCH, LoggedNames, Replay};
use crate::FsError;
use crate::attributes::FileKind;
use crate::items::dir::{self, DirEntryInfo, Target};
use crate::items::refs::{self, NameOf};
use crate::names::{Remains, last_name_gone};
use crate::object::{Inode, Items, ItemsMut, lock_all};

/// Extents that are erased together with an inode; one with more is left as an orphan, to be erased in steps.
const EXTENTS_MAX: u32 = 128;
/// The highest index that an entry may have: there must be room for more behind it.
const INDEX_MAX: u64 = i64::MAX as u64;

impl Replay<'_> {
    /// Entries in the ranges that the log speaks for, and that it does not have, go.
    pub(super) fn drop_entries(&mut self, dir: &Arc<Inode>) -> Result<(), FsError> {
        let start = Key::new(dir.ino().0, ItemType::DIR_LOG_INDEX, 0);
        let mut cursor = self.blocks.cursor(&self.log.root);
        let mut more = cursor.seek(&start)?;
        while more && let Some((key, item)) = cursor.current() {
            if key.objectid != start.objectid || key.item_type != ItemType::DIR_LOG_INDEX {
                break;
            }
            let end = item.first_chunk::<8>().map_or(0, |b| u64::from_le_bytes(*b));
            self.drop_entries_in(dir, key.offset, end)?;
            more = cursor.next()?;
        }
        Ok(())
    }

    fn drop_entries_in(&mut self, dir: &Arc<Inode>, first: u64, last: u64) -> Result<(), FsError> {
        let mut after = first.saturating_sub(1).max(1);
        loop {
            let found = dir::list(&dir.read(), after, BATCH)?;
            let Some(end) = found.last().map(|e| e.index) else { return Ok(()) };
            for entry in found {
                if entry.index > last {
                    return Ok(());
                }
                let Target::Inode(ino) = entry.target else { continue };
                let kept = match self.logged(dir.ino(), ItemType::DIR_INDEX, entry.index)? {
                    Some(item) => dir::info(entry.index, &item)?.name == entry.name,
                    None => false,
                };
                if !kept {
                    self.unlink_known(dir, &entry.name, ino)?;
                }
            }
            after = end;
        }
    }

    /// Takes a name away whose inode must be there.
    fn unlink_known(&mut self, dir: &Arc<Inode>, name: &[u8], ino: Ino) -> Result<(), FsError> {
        match self.inode(ino)? {
            Some(child) => self.unlink(dir, name, &child),
            None => Err(FsError::corrupt("directory", dir.ino(), "entry's inode", "missing", ino)),
        }
    }

    /// Takes one name of an inode away: the entry, and what the inode knows of it.
    fn unlink(&mut self, dir: &Arc<Inode>, name: &[u8], child: &Arc<Inode>) -> Result<(), FsError> {
        let mut locked = lock_all(&[dir, child]);
        let hint = refs::remove(locked.of(child), self.handle, dir.ino(), name)?;
        let parent = locked.of(dir);
        let found = dir::find(parent, name)?;
        if found.is_some_and(|(target, _)| target == Target::Inode(child.ino())) {
            dir::remove_item(parent, self.handle, name)?;
            if let Some(index) = dir::index_of(parent, (name, Target::Inode(child.ino())), hint)? {
                parent.delete(self.handle, ItemType::DIR_INDEX, index);
            }
        }
        parent.fields_mut(self.handle).sequence += 1;
        self.fixups.insert(child.ino().0);
        Ok(())
    }

    /// Gives an inode one more name, which is free, at an index of its directory or, if that is taken, at a new one.
    fn link(&mut self, dir: &Arc<Inode>, name: &[u8], index: u64, child: &Arc<Inode>) -> Result<(), FsError> {
        if dir::check_name(name).is_err() {
            return Err(self.corrupt(child.ino(), "name", name.escape_ascii(), "one that an entry can have"));
        }
        if !(dir::FIRST_INDEX..=INDEX_MAX).contains(&index) {
            return Err(self.corrupt(child.ino(), "index of its entry", index, "2 or more"));
        }
        let mut locked = lock_all(&[dir, child]);
        if locked.of(dir).fields().kind() != FileKind::Dir {
            return Err(self.corrupt(child.ino(), "parent", dir.ino(), "a directory"));
        }
        let kind = locked.of(child).fields().kind();
        // What it may know of a name that has no entry.
        refs::remove(locked.of(child), self.handle, dir.ino(), name)?;
        let index = dir::add_near(locked.of(dir), self.handle, name, Target::Inode(child.ino()), kind, index)?;
        refs::add(locked.of(child), self.handle, dir.ino(), name, index)?;
        if kind == FileKind::Dir {
            self.moved.insert(child.ino().0, (dir.ino(), name.to_vec()));
        }
        self.fixups.insert(child.ino().0);
        Ok(())
    }

    /// Step 2: one entry of a directory.
    pub(super) fn entries(&mut self, key: Key, item: &[u8]) -> Result<(), FsError> {
        if key.item_type != ItemType::DIR_INDEX {
            return Ok(());
        }
        let Some(dir) = self.subject(key)? else { return Ok(()) };
        let DirEntryInfo { name, index, target, .. } = dir::info(key.offset, item)?;
        // Making and deleting a subvolume is a commit: a log brings none.
        let Target::Inode(ino) = target else { return Ok(()) };
        if dir.read().fields().kind() != FileKind::Dir {
            return Err(self.corrupt(key, "owner of an entry", "another kind", "a directory"));
        }
        let (found, at_index) = {
            let guard = dir.read();
            (dir::find(&guard, &name)?.map(|e| e.0), dir::entry_at(&guard, index)?.map(|e| e.target))
        };
        if found == Some(target) && at_index == Some(target) {
            return Ok(());
        }
        let Some(child) = self.inode(ino)? else { return Ok(()) };
        match found {
            Some(other) if other == target => return Ok(()),
            Some(Target::Inode(other)) => self.unlink_known(&dir, &name, other)?,
            Some(Target::Subvol(id)) => return Err(self.corrupt(key, "entry", ino, format_args!("subvolume {id}"))),
            None => {}
        }
        if self.logged_names(ino)?.get(&dir.ino().0).is_some_and(|names| names.contains(&*name)) {
            return Ok(());
        }
        self.link(&dir, &name, index, &child)
    }

    /// The names that the log has of an inode, by directory. Read once for each: an inode may have any number of names.
    fn logged_names(&mut self, ino: Ino) -> Result<&LoggedNames, FsError> {
        if !self.names.contains_key(&ino.0) {
            let mut names = LoggedNames::new();
            let mut cursor = self.blocks.cursor(&self.log.root);
            let mut more = cursor.seek(&Key::new(ino.0, ItemType::INODE_REF, 0))?;
            while more && let Some((key, item)) = cursor.current() {
                if key.objectid != ino.0 || key.item_type > ItemType::INODE_EXTREF {
                    break;
                }
                for name in refs::parse(key.item_type, key.offset, item)? {
                    names.entry(name.parent.0).or_default().insert(name.name);
                }
                more = cursor.next()?;
            }
            self.names.insert(ino.0, names);
        }
        Ok(self.names.entry(ino.0).or_default())
    }

    /// Step 3: the names that one item of the log holds.
    pub(super) fn refs(&mut self, child: &Arc<Inode>, key: Key, item: &[u8]) -> Result<(), FsError> {
        let names = match key.item_type {
            ItemType::INODE_REF => refs::parse_refs(Ino(key.offset), item)?,
            _ => refs::parse_extrefs(item)?,
        };
        let mut cleared = false;
        for name in &names {
            if name.parent == child.ino() {
                // The root directory is its own parent.
                if child.ino() == Ino::ROOT_DIR {
                    continue;
                }
                return Err(self.corrupt(key, "parent", name.parent, "another inode"));
            }
            if child.ino() == Ino::ROOT_DIR {
                return Err(self.corrupt(key, "name of the root directory", name.name.escape_ascii(), "none"));
            }
            let Some(dir) = self.inode(name.parent)? else { continue };
            if !std::mem::replace(&mut cleared, true) {
                self.drop_old_names(child, key)?;
            }
            self.put_name(&dir, child, name, key)?;
        }
        Ok(())
    }

    /// Names that an item of an inode holds and that the log, which has the same item, no longer has, here or elsewhere, go. Of
    /// items that the log does not have nothing is known: the kernel logs only those near what has changed.
    fn drop_old_names(&mut self, child: &Arc<Inode>, key: Key) -> Result<(), FsError> {
        let Some(item) = child.read().get(key.item_type, key.offset)? else { return Ok(()) };
        let mut old = refs::parse(key.item_type, key.offset, &item)?;
        let logged = self.logged_names(child.ino())?;
        old.retain(|name| !logged.get(&name.parent.0).is_some_and(|names| names.contains(&name.name)));
        for name in old {
            if let Some(dir) = self.inode(name.parent)? {
                self.unlink(&dir, &name.name, child)?;
            }
        }
        Ok(())
    }

    fn put_name(&mut self, dir: &Arc<Inode>, child: &Arc<Inode>, name: &NameOf, key: Key) -> Result<(), FsError> {
        let target = Target::Inode(child.ino());
        let found = dir::find(&dir.read(), &name.name)?.map(|e| e.0);
        if found == Some(target) {
            let there = dir::entry_at(&dir.read(), name.index)?;
            let known = there.is_some_and(|e| e.name == name.name && e.target == target)
                && refs::all_in(&child.read(), dir.ino(), &name.name)?.contains(name);
            if known {
                return Ok(());
            }
        }
        match found {
            Some(Target::Inode(other)) => self.unlink_known(dir, &name.name, other)?,
            Some(Target::Subvol(id)) => {
                return Err(self.corrupt(key, "name", child.ino(), format_args!("subvolume {id}")));
            }
            None => {}
        }
        self.link(dir, &name.name, name.index, child)
    }

    /// Step 5: link counts, and the end of those that have no name. Answers how many ended.
    pub(super) fn settle_links(&mut self) -> Result<u64, FsError> {
        let mut deleted = 0;
        while let Some(ino) = self.fixups.pop_first() {
            if ino == Ino::ROOT_DIR.0 {
                continue;
            }
            let Some(inode) = self.inode(Ino(ino))? else { continue };
            let (names, fields) = {
                let guard = inode.read();
                (refs::all(&guard)?, *guard.fields())
            };
            if fields.kind() == FileKind::Dir && names.len() > 1 {
                self.leave_one_name(&inode, &names)?;
                continue;
            }
            let nlink = u32::try_from(names.len()).unwrap_or(u32::MAX);
            if nlink != fields.nlink {
                inode.write().fields_mut(self.handle).nlink = nlink;
            }
            if nlink > 0 {
                continue;
            }
            deleted += 1;
            if fields.kind() == FileKind::Dir {
                self.empty(&inode)?;
            }
            let mut guard = inode.write();
            let evict = last_name_gone(&mut guard, self.handle, Some(&Remains::unseen(EXTENTS_MAX)))?;
            drop(guard);
            if evict {
                self.core.queue_eviction(inode);
            }
        }
        Ok(deleted)
    }

    /// A directory has one name: the one that the log brought.
    fn leave_one_name(&mut self, inode: &Arc<Inode>, names: &[NameOf]) -> Result<(), FsError> {
        let brought = self.moved.get(&inode.ino().0);
        let keep = brought.and_then(|(parent, name)| names.iter().position(|n| n.parent == *parent && n.name == *name));
        let keep = keep.unwrap_or(0);
        for (at, name) in names.iter().enumerate() {
            if at == keep {
                continue;
            }
            match self.inode(name.parent)? {
                Some(dir) => self.unlink(&dir, &name.name, inode)?,
                None => {
                    refs::remove(&mut inode.write(), self.handle, name.parent, &name.name)?;
                }
            }
        }
        self.fixups.insert(inode.ino().0);
        Ok(())
    }

    /// Everything in a directory that has no name goes.
    fn empty(&mut self, dir: &Arc<Inode>) -> Result<(), FsError> {
        loop {
            // From the beginning: what was found before is gone.
            let found = dir::list(&dir.read(), 0, BATCH)?;
            if found.is_empty() {
                return Ok(());
            }
            for entry in found {
                match entry.target {
                    Target::Inode(ino) => {
                        self.unlink_known(dir, &entry.name, ino)?;
                        // Also if the directory is wrong about it.
                        dir.write().delete(self.handle, ItemType::DIR_INDEX, entry.index);
                    }
                    Target::Subvol(id) => {
                        return Err(self.corrupt(dir.ino(), "deleted directory's entry", id, "no subvolume"));
                    }
                }
            }
        }
    }

    /// Directories that got a new parent lie below the root directory, not below themselves.
    pub(super) fn check_moved(&self) -> Result<(), FsError> {
        let mut good: BTreeSet<u64> = BTreeSet::from([Ino::ROOT_DIR.0]);
        for start in self.moved.keys() {
            let mut way: BTreeSet<u64> = BTreeSet::new();
            let mut at = *start;
            while !good.contains(&at) {
                let Some(inode) = self.inode(Ino(at))? else { break };
                if !way.insert(at) {
                    return Err(self.corrupt(Ino(*start), "way to the root directory", "a loop", "an end"));
                }
                match refs::parent(&inode.read())? {
                    Some(parent) => at = parent.0,
                    None => break,
                }
            }
            good.extend(way);
        }
        Ok(())
    }
}
