//! From inodes to the items of a log: which inodes belong in, and what of each.
//!
//! Normal path: (1) the caller adds the inodes that are synced, whole, and those in the log whose names have changed; (2)
//! [`Recorder::run`] takes one after the other: its item, names and attributes, its content (`record_data`, `record_dir`),
//! and what its names mean for others (`record_names`), which adds more inodes; (3) the items come out sorted.
//!
//! Three views of one subvolume meet here: the tree as the last commit left it, which a replay starts from; the log as it
//! is, which is changed; and the inodes in memory, which the replay must lead to as far as they are logged.
//!
//! Locks: an inode's lock at a time. The caller holds a [`LogRecording`], and joins are blocked if the inodes must
//! agree.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hashbrown::{HashMap, HashSet};
use oleo_format::{Generation, Ino, InodeFlags, ItemType, Key, TreeId};
use oleo_tree::{Change, ItemBytes, Op, TreeRoot};
use oleo_txn::{JoinsBlocked, LogRecording, fallback};

use crate::data::Extent;
use crate::items::refs::{self, NameOf};
use crate::log::mark::{Depth, LogMark};
use crate::object::{Core, Inode, InodeFields, Items, Subvol, WriteGuard};
use crate::ranges::Ranges;
use crate::{FileKind, FsError};

/// Whether recorded inodes are marked as logged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Marking {
    /// They are, in this round: what is recorded will be written.
    Now(u64),
    /// They are not: it is for reading ahead only.
    Never,
}

/// Names of a file that may be in a log when some have changed: a kernel has been seen to fail in its replay of a thousand new ones,
/// and never with a few hundred.
const NAMES_MAX: usize = 256;

/// What is left to be recorded.
enum Task {
    /// An inode that lives, or is found not to.
    Inode(Ino, Depth),
    /// One without names.
    End(Ino),
}

/// Collects the changes of one log tree.
pub(super) struct Recorder<'a> {
    pub(super) core: &'a Arc<Core>,
    pub(super) log: &'a LogRecording<'a>,
    pub(super) subvol: Arc<Subvol>,
    /// What a replay starts from.
    committed: TreeRoot,
    /// The log as it is.
    pub(super) logged: Option<TreeRoot>,
    marking: Marking,
    todo: Vec<Task>,
    /// Nobody else changes anything until this goes.
    joins_blocked: Option<JoinsBlocked<'a>>,
    /// Inodes added so far, and how much of them.
    added: HashMap<Ino, Depth>,
    /// Those that somebody syncs.
    asked: HashSet<Ino>,
    /// Inodes without names whose end is recorded.
    pub(super) ended: HashSet<Ino>,
    /// Directories whose way to the root has been looked at.
    pub(super) climbed: HashSet<Ino>,
    pub(super) items: BTreeMap<Key, Op>,
    /// Indices of directories whose entries a replay deletes, beside those that the log has already.
    pub(super) gone: BTreeMap<Ino, Ranges>,
    /// Why the log cannot have it.
    pub(super) refused: Option<&'static str>,
}

/// What recording one inode leaves to do.
struct Parts {
    /// Its names, if they have changed.
    names: Option<Vec<NameOf>>,
    /// Whose committed entries in it go.
    gone: Vec<Ino>,
}

/// The items of one inode, or why the log cannot have them.
pub(super) type Alone = Result<Vec<Change>, &'static str>;

/// An item and its key.
pub(super) type Item = (Key, ItemBytes);

impl<'a> Recorder<'a> {
    pub(super) fn new(
        core: &'a Arc<Core>,
        log: &'a LogRecording<'a>,
        tree: TreeId,
        marking: Marking,
    ) -> Result<Recorder<'a>, FsError> {
        Ok(Recorder {
            core,
            log,
            subvol: core.subvol(tree)?,
            committed: log.committed(tree)?.ok_or(FsError::NotFound)?,
            logged: log.logged(tree),
            marking,
            todo: Vec::new(),
            joins_blocked: None,
            added: HashMap::new(),
            asked: HashSet::new(),
            ended: HashSet::new(),
            climbed: HashSet::new(),
            items: BTreeMap::new(),
            gone: BTreeMap::new(),
            refused: None,
        })
    }

    /// Adds an inode that somebody syncs.
    pub(super) fn ask(&mut self, ino: Ino) {
        self.asked.insert(ino);
        self.add(ino, Depth::Whole);
    }

    /// Adds an inode, unless it was added at least as deep.
    pub(super) fn add(&mut self, ino: Ino, depth: Depth) {
        let known = self.added.get(&ino);
        if known.is_none_or(|known| *known < depth) {
            self.added.insert(ino, depth);
            self.todo.push(Task::Inode(ino, depth));
        }
    }

    /// The end of an inode without names is to be recorded.
    pub(super) fn end(&mut self, ino: Ino) {
        if self.ended.insert(ino) {
            self.todo.push(Task::End(ino));
        }
    }

    /// Keeps operations out from here on. What was recorded before concerns no other inode; if it was renamed since, it
    /// is recorded again.
    pub(super) fn block_joins(&mut self) {
        if self.marking != Marking::Never && self.joins_blocked.is_none() {
            self.joins_blocked = Some(self.log.block_joins());
            for inode in self.core.log.take_renamed(self.subvol.id(), self.log.generation()) {
                self.todo.push(Task::Inode(inode.ino(), Depth::Exists));
            }
        }
    }

    /// Records what was added and all that it brings along.
    pub(super) fn run(mut self) -> Result<Result<Vec<Change>, &'static str>, FsError> {
        // Each inode comes a few times at most: for each depth, when it was renamed, for its end.
        while let Some(task) = self.todo.pop() {
            if let Some(rule) = self.refused {
                return Ok(Err(rule));
            }
            match task {
                Task::Inode(ino, depth) => self.inode(ino, depth)?,
                Task::End(ino) => self.record_end(ino)?,
            }
        }
        for (dir, ranges) in std::mem::take(&mut self.gone) {
            self.put_ranges(dir, ranges)?;
        }
        Ok(self.changes())
    }

    fn changes(self) -> Result<Vec<Change>, &'static str> {
        match self.refused {
            Some(rule) => Err(rule),
            None => Ok(self.items.into_iter().map(|(key, op)| Change { key, op }).collect()),
        }
    }

    /// One inode that somebody syncs and that concerns no other (see `is_nameless_change`), as its guard has it. The caller enters
    /// what comes out in a round before it lets the guard go.
    pub(super) fn alone(mut self, guard: &mut WriteGuard<'_>, round: u64) -> Result<Alone, FsError> {
        let generation = self.log.generation();
        let depth = Depth::Whole;
        let mark = guard.state_mut().log.take().filter(|mark| mark.generation == generation);
        let uncommitted = guard.is_fresh();
        let found = self.parts(guard, depth, mark.as_deref(), false, uncommitted);
        let changes = match found {
            Ok(_) => Ok(self.changes()),
            Err(e) => Err(e),
        };
        guard.state_mut().log = match &changes {
            Ok(Ok(_)) => Some(Box::new(LogMark::new(generation, depth, round))),
            _ => mark,
        };
        changes
    }

    /// An item of the tree as committed.
    pub(super) fn committed(&self, key: &Key) -> Result<Option<oleo_tree::ItemRef>, FsError> {
        Ok(self.core.engine().blocks().get(&self.committed, key)?)
    }

    /// The items of one type of an inode in the tree as committed, from an offset on.
    pub(super) fn committed_items(&self, ino: Ino, t: ItemType, from: u64) -> Result<Vec<Item>, FsError> {
        self.items_of(&self.committed, Key::new(ino.0, t, from), Key::new(ino.0, t, u64::MAX))
    }

    /// The same of the log as it is.
    pub(super) fn logged_items(&self, ino: Ino, t: ItemType, from: u64, to_incl: u64) -> Result<Vec<Item>, FsError> {
        match &self.logged {
            Some(root) => self.items_of(root, Key::new(ino.0, t, from), Key::new(ino.0, t, to_incl)),
            None => Ok(Vec::new()),
        }
    }

    /// The last item of the same inode and type in the log at or before a key.
    pub(super) fn last_logged(&self, key: Key) -> Result<Option<Item>, FsError> {
        let Some(root) = &self.logged else { return Ok(None) };
        let mut cursor = self.core.engine().blocks().cursor(root);
        cursor.seek_back(&key)?;
        let found = cursor.current().filter(|(at, _)| (at.objectid, at.item_type) == (key.objectid, key.item_type));
        Ok(found.map(|(at, bytes)| (at, bytes.into())))
    }

    /// All items of an inode in the log as it is.
    pub(super) fn all_logged_items(&self, ino: Ino) -> Result<Vec<Item>, FsError> {
        match &self.logged {
            Some(root) => {
                let (first, last) = (Key::new(ino.0, ItemType(0), 0), Key::new(ino.0, ItemType(u8::MAX), u64::MAX));
                self.items_of(root, first, last)
            }
            None => Ok(Vec::new()),
        }
    }

    fn items_of(&self, root: &TreeRoot, from: Key, to_incl: Key) -> Result<Vec<Item>, FsError> {
        let mut found = Vec::new();
        let mut cursor = self.core.engine().blocks().cursor(root);
        let mut more = cursor.seek(&from)?;
        while more {
            let Some((key, bytes)) = cursor.current() else { break };
            if key > to_incl {
                break;
            }
            found.push((key, bytes.into()));
            more = cursor.next()?;
        }
        Ok(found)
    }

    pub(super) fn put(&mut self, key: Key, item: ItemBytes) {
        self.items.insert(key, Op::Put(item));
    }

    pub(super) fn delete(&mut self, key: Key) {
        self.items.insert(key, Op::Delete);
    }

    /// One inode, as it is now.
    fn inode(&mut self, ino: Ino, depth: Depth) -> Result<(), FsError> {
        let Some(inode) = self.core.inode(&self.subvol, ino)? else {
            self.end(ino);
            return Ok(());
        };
        let mut guard = inode.write();
        // A file that has no name yet is logged whole when it is synced: it may be given one. A replay passes over it until then.
        let may_be_linked = guard.inode().may_be_linked.load(Ordering::SeqCst);
        if guard.state().gone || (guard.fields().nlink == 0 && !may_be_linked) {
            drop(guard);
            self.end(ino);
            return Ok(());
        }
        // What a symbolic link says is part of its being there.
        let depth = if guard.fields().kind() == FileKind::Symlink { Depth::Whole } else { depth };
        let generation = self.log.generation();
        let mark = guard.state_mut().log.take().filter(|mark| mark.generation == generation);
        let state = guard.state();
        let moved = state.moved == generation && self.asked.contains(&ino);
        if !moved && mark.as_ref().is_some_and(|mark| mark.has(depth)) {
            guard.state_mut().log = mark;
            return Ok(());
        }
        let renamed = match &mark {
            Some(mark) => mark.renamed,
            None => state.has_open_of(ItemType::INODE_REF) || state.has_open_of(ItemType::INODE_EXTREF),
        };
        let others = renamed || moved || guard.fields().kind() == FileKind::Dir;
        if self.marking != Marking::Never && self.joins_blocked.is_none() && others {
            guard.state_mut().log = mark;
            drop(guard);
            self.todo.push(Task::Inode(ino, depth));
            self.block_joins();
            return Ok(());
        }
        let uncommitted = guard.is_fresh();
        let found = self.parts(&guard, depth, mark.as_deref(), renamed, uncommitted);
        guard.state_mut().log = match &found {
            Ok(_) if let Marking::Now(round) = self.marking => {
                let depth = depth.max(mark.map_or(depth, |mark| mark.depth));
                Some(Box::new(LogMark::new(generation, depth, round)))
            }
            _ => mark,
        };
        let now = if moved { refs::all(&guard)? } else { Vec::new() };
        if moved && self.marking != Marking::Never {
            guard.state_mut().moved = Generation(0);
        }
        drop(guard);
        let Parts { names, gone } = found?;
        // Only now: others are looked at, and locked.
        if moved {
            let before = if uncommitted { Vec::new() } else { self.committed_names(ino)? };
            now.iter().chain(&before).for_each(|name| self.add(name.parent, Depth::Whole));
        }
        if let Some(names) = names {
            self.names(ino, &names, uncommitted)?;
        }
        gone.into_iter().try_for_each(|target| self.displaced(target))
    }

    /// The items of one inode, of which the log has what `mark` says.
    fn parts(
        &mut self,
        guard: &WriteGuard<'_>,
        depth: Depth,
        mark: Option<&LogMark>,
        renamed: bool,
        uncommitted: bool,
    ) -> Result<Parts, FsError> {
        let fields = *guard.fields();
        let was = mark.map(|mark| mark.depth);
        let again = was == Some(Depth::Whole);
        let whole = again || depth == Depth::Whole;
        let key = guard.inode().key(ItemType::INODE_ITEM, 0);
        if whole {
            // Whatever old tools have left in it: 0 would say something else here.
            self.put(key, InodeFields { generation: fields.generation.max(1), ..fields }.encode());
        } else if was.is_none() {
            // That an inode is there, and no more, is said by generation 0: a replay leaves the rest as it finds it.
            self.put(key, InodeFields { generation: 0, size: 0, ..fields }.encode());
        }
        if was.is_none() || renamed {
            let found = self.all_of(guard, ItemType::INODE_REF)? + self.all_of(guard, ItemType::INODE_EXTREF)?;
            let names = if fields.kind() == FileKind::Dir { fields.nlink.min(1) } else { fields.nlink };
            if found < names as usize {
                // A replay counts the names, and ends an inode that has none.
                self.refused = Some(fallback::LOST_NAME);
            }
        }
        if mark.is_none_or(|mark| mark.xattrs) {
            self.all_of(guard, ItemType::XATTR_ITEM)?;
        }
        let offsets = |t: ItemType| match mark {
            Some(mark) if again => mark.slots.iter().filter(|slot| slot.0 == t).map(|slot| slot.1).collect(),
            _ => guard.state().open_offsets(t),
        };
        let mut gone = Vec::new();
        match fields.kind() {
            FileKind::Dir if whole => gone = self.entries(guard, &offsets(ItemType::DIR_INDEX), uncommitted)?,
            FileKind::File | FileKind::Symlink if whole => {
                self.extents(guard, &offsets(ItemType::EXTENT_DATA), uncommitted, again)?;
            }
            FileKind::File if was.is_none() && !uncommitted => self.committed_beyond_end(guard.inode())?,
            _ => {}
        }
        let names = if renamed { Some(refs::all(guard)?) } else { None };
        if names.as_ref().is_some_and(|names| names.len() > NAMES_MAX) {
            self.refused = Some(fallback::MANY_NAMES);
        }
        Ok(Parts { names, gone })
    }

    /// All items of one type, and none that the log has beside them. Returns how many names of the inode they have.
    fn all_of(&mut self, guard: &WriteGuard<'_>, t: ItemType) -> Result<usize, FsError> {
        let inode = guard.inode();
        for (key, _) in self.logged_items(inode.ino(), t, 0, u64::MAX)? {
            self.delete(key);
        }
        let mut names = 0;
        for (offset, item) in guard.range(t, 0, u64::MAX)? {
            names += refs::count(t, &item);
            self.put(inode.key(t, offset), (*item).into());
        }
        Ok(names)
    }

    /// Preallocated space behind the end of a file of which only the being there is logged: the replay cuts every logged
    /// file at its size.
    fn committed_beyond_end(&mut self, inode: &Inode) -> Result<(), FsError> {
        let key = inode.key(ItemType::INODE_ITEM, 0);
        let Some(item) = self.committed(&key)? else { return Ok(()) };
        let fields = InodeFields::parse(&item, key)?;
        if !InodeFlags::from_bits_retain(fields.flags).contains(InodeFlags::PREALLOC) {
            return Ok(());
        }
        let sector = u64::from(self.core.engine().sectorsize());
        let end = fields.size.next_multiple_of(sector);
        for (key, item) in self.committed_items(inode.ino(), ItemType::EXTENT_DATA, 0)? {
            if end_of(&key, &item, sector)? > end {
                self.put(key, item);
            }
        }
        Ok(())
    }
}

/// Where the file range of an extent item ends.
pub(super) fn end_of(key: &Key, item: &[u8], sector: u64) -> Result<u64, FsError> {
    Ok(key.offset.saturating_add(Extent::parse(key.offset, item, sector)?.len(sector)))
}
