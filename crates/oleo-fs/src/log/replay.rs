//! Replay: what a crash left in the log becomes part of the subvolumes, in one transaction.
//!
//! A log holds, per subvolume, copies of items of inodes that were synced after the last commit, under their own keys: the
//! inode item, all names, all attributes; of files the extents that changed, holes included, and the checksums of their
//! data; of directories the entries that are new (DIR_INDEX) and the ranges of indices that the log speaks for
//! (DIR_LOG_INDEX). Older kernels add DIR_ITEM and DIR_LOG_ITEM; both say the same again and are passed over.
//!
//! Normal path, per subvolume, each step one pass over its log in key order:
//! 1. `inodes`: an inode that exists takes the logged fields over, one that does not is made. What the log speaks for and does
//!    not have goes: attributes, entries in logged ranges, data behind the logged end.
//! 2. `entries`: logged entries whose inodes exist; those that have a logged name wait for 3.
//! 3. `rest`: names (a name in the way loses), attributes, extents.
//! 4. `csums` (module `data`): checksums of the data that was put.
//! 5. `settle_links` (`replay::names`): link counts are the names that are there; who has none left goes, and what was in
//!    it; who has a new parent must not lie below itself.
//!
//! Traps, each with what springs it:
//! - An inode item of generation 0 says only that the inode exists: `write f; sync; touch d/g; fsync d`, with `f` in `d`.
//!   Taking size 0 from it would empty `f`; so its size counts only if it is not 0.
//! - A logged link count of 0 is a file that never got a name before the crash (O_TMPFILE): nothing of it is replayed.
//! - `mv a b; mv c a; fsync a`: `a` stands in the way of itself. Names are taken away before others are put, and links are
//!   counted at the end, so that no inode dies in between.
//! - `fallocate -k f; fsync f`: space behind the end. The file is cut to its size before extents are put, never after. If the log says only
//!   that the file exists, that gives committed space behind the end up, as the kernel's replay does.
//! - A name's parent may be in no log and no tree (it was deleted): the name is passed over, the inode goes if it was its last.
//! - `rm -r d; fsync .`: entries of a directory that lost its name go as well, whatever the log says of them.
//!
//! Invariants: one handle is held from the first change to the last, so all of it is one transaction; the engine refuses to
//! commit before [`Engine::log_applied`](oleo_txn::Engine::log_applied). Loops end: passes follow rising keys, and each round of
//! `settle_links` takes an entry away for good. Memory: the log's own size a few times over, and a tombstone for each item that goes.
//! Errors: whatever the log says that cannot be is an error that names it; nothing is committed then, and the log stays.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use oleo_format::{Ino, InodeFlags, ItemType, Key, TreeId};
use oleo_tree::Blocks;
use oleo_txn::{Claim, Handle, LogTree, Need, UnreplayedLog};

use crate::FsError;
use crate::attributes::FileKind;
use crate::fs::Fs;
use crate::object::{Core, Inode, InodeFields, Items, ItemsMut, Subvol, Value};
use crate::ranges::Ranges;

mod data;
mod names;

/// Items that one item of a log may change: a name has five.
const ITEMS_PER_ITEM: u64 = 5;
/// Places at which a replay is expected to rewrite blocks, if there is no room for more.
const PLACES_MIN: u32 = 16;
/// Bytes that one byte of a log may become: a name is in three items.
const BYTES_PER_BYTE: u64 = 3;
/// Items that are read from a subvolume in one batch.
const BATCH: usize = 256;

/// What a replay did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Subvolumes whose logs were applied.
    pub subvols: u64,
    /// Logs of subvolumes that are deleted: nothing of them is left to apply.
    pub gone: u64,
    /// Inodes that the logs had.
    pub inodes: u64,
    /// Inodes that were left without a name, and deleted.
    pub deleted: u64,
    /// Tree blocks of the log.
    pub blocks: u64,
}

/// Applies the log that the volume was opened with, if there is one, and commits, all in one transaction. Called before anything
/// else when a volume was opened for writing.
///
/// # Errors
/// The log says what cannot be, or there is no space. Nothing is committed then, and nothing can be: drop `fs`.
pub fn replay(fs: &Fs) -> Result<Replayed, FsError> {
    let engine = fs.engine();
    let Some(log) = engine.unreplayed_log() else { return Ok(Replayed::default()) };
    let core = fs.core();
    let mut done = Replayed { blocks: log.blocks() as u64, ..Replayed::default() };
    core.poison_on_error(|| {
        let _reader = engine.reader();
        let handle = engine.join(need(&log))?;
        handle.adopt_log(&log);
        for tree in log.trees() {
            match core.subvol(tree.subvol) {
                Ok(subvol) => Replay::new(core, &handle, subvol, &log, tree).run(&mut done)?,
                Err(FsError::NotFound) => done.gone += 1,
                Err(e) => return Err(e),
            }
        }
        drop(handle);
        Ok(engine.log_applied()?)
    })?;
    fs.sync()?;
    Ok(done)
}

fn need(log: &UnreplayedLog) -> Need {
    let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX / 4);
    let items = small(log.items().saturating_mul(ITEMS_PER_ITEM).saturating_add(64));
    Need {
        items,
        // The transaction that the log is of had room for it. If that is not to be seen now, the volume could not be opened.
        row: items - PLACES_MIN,
        bytes: small(log.item_bytes().saturating_mul(BYTES_PER_BYTE).saturating_add(4096)),
        claim: Claim::Promised,
    }
}

/// An inode's names by the number of the directory.
type LoggedNames = HashMap<u64, HashSet<Vec<u8>>>;

/// One subvolume's replay.
struct Replay<'a> {
    core: &'a Arc<Core>,
    handle: &'a Handle<'a>,
    subvol: Arc<Subvol>,
    found: &'a UnreplayedLog,
    log: &'a LogTree,
    blocks: &'a Blocks,
    sector: u64,
    no_holes: bool,
    /// Logged without a name.
    ignored: HashSet<u64>,
    /// The names that inodes have in the log, as far as somebody has asked.
    names: HashMap<u64, LoggedNames>,
    /// Whose links are to be counted.
    fixups: BTreeSet<u64>,
    /// Files whose extents may have gaps.
    files: BTreeSet<u64>,
    /// The parent and name that a directory got.
    moved: BTreeMap<u64, (Ino, Vec<u8>)>,
    /// Data that has checksums.
    summed: Ranges,
    /// The part of it that the log brought.
    uncommitted: Ranges,
    /// Files that have no checksums by the log, and are new or had some before.
    unsummed: BTreeSet<u64>,
}

impl<'a> Replay<'a> {
    fn new(
        core: &'a Arc<Core>,
        handle: &'a Handle<'a>,
        subvol: Arc<Subvol>,
        found: &'a UnreplayedLog,
        log: &'a LogTree,
    ) -> Replay<'a> {
        let engine = core.engine();
        Replay {
            core,
            handle,
            subvol,
            found,
            log,
            blocks: engine.blocks(),
            sector: u64::from(engine.sectorsize()),
            no_holes: engine.features().no_holes(),
            ignored: HashSet::new(),
            names: HashMap::new(),
            fixups: BTreeSet::new(),
            files: BTreeSet::new(),
            moved: BTreeMap::new(),
            summed: Ranges::default(),
            uncommitted: Ranges::default(),
            unsummed: BTreeSet::new(),
        }
    }

    fn run(&mut self, done: &mut Replayed) -> Result<(), FsError> {
        self.pass(Replay::inodes)?;
        done.inodes += self.fixups.len() as u64;
        self.pass(Replay::entries)?;
        self.pass(Replay::rest)?;
        self.fill_holes()?;
        self.csums()?;
        self.no_csums()?;
        done.deleted += self.settle_links()?;
        self.check_moved()?;
        done.subvols += 1;
        Ok(())
    }

    /// Calls `step` for each item of the log, in key order.
    fn pass(&mut self, step: fn(&mut Self, Key, &[u8]) -> Result<(), FsError>) -> Result<(), FsError> {
        let mut cursor = self.blocks.cursor(&self.log.root);
        let mut more = cursor.seek(&Key::MIN)?;
        while more && let Some((key, item)) = cursor.current() {
            step(self, key, item)?;
            more = cursor.next()?;
        }
        Ok(())
    }

    /// What the log has under a key.
    fn logged(&self, ino: Ino, t: ItemType, offset: u64) -> Result<Option<Value>, FsError> {
        Ok(self.blocks.get(&self.log.root, &Key::new(ino.0, t, offset))?.map(Value::InTree))
    }

    /// The inode of that number, unless there is none.
    fn inode(&self, ino: Ino) -> Result<Option<Arc<Inode>>, FsError> {
        let found = self.core.inode(&self.subvol, ino)?;
        Ok(found.filter(|inode| inode.read().alive().is_ok()))
    }

    /// The inode that an item of the log is about; `None` if that one is passed over.
    fn subject(&self, key: Key) -> Result<Option<Arc<Inode>>, FsError> {
        if self.ignored.contains(&key.objectid) {
            return Ok(None);
        }
        match self.inode(Ino(key.objectid))? {
            Some(inode) => Ok(Some(inode)),
            None => Err(self.corrupt(key, "inode", "missing", "in the log or the subvolume")),
        }
    }

    fn corrupt(
        &self,
        at: impl std::fmt::Display,
        what: &'static str,
        have: impl std::fmt::Display,
        want: impl std::fmt::Display,
    ) -> FsError {
        let TreeId(tree) = self.log.subvol;
        FsError::corrupt("log tree", format_args!("subvolume {tree} {at}"), what, have, want)
    }

    /// Step 1.
    fn inodes(&mut self, key: Key, item: &[u8]) -> Result<(), FsError> {
        if key.item_type != ItemType::INODE_ITEM {
            return Ok(());
        }
        let ino = Ino(key.objectid);
        if !(Ino::ROOT_DIR.0..=Ino::LAST.0).contains(&ino.0) {
            return Err(self.corrupt(key, "inode number", ino, "256 to -256"));
        }
        let logged = InodeFields::parse(item, key)?;
        if logged.kind() != FileKind::Dir && logged.size > crate::data::FILE_LEN_MAX {
            return Err(self.corrupt(key, "size", logged.size, "a size that a file can have"));
        }
        let generation = self.handle.generation().0;
        if logged.generation > generation {
            return Err(self.corrupt(key, "generation", logged.generation, format_args!("at most {generation}")));
        }
        if logged.nlink == 0 {
            self.ignored.insert(ino.0);
            return Ok(());
        }
        self.fixups.insert(ino.0);
        let only_exists = logged.generation == 0;
        let Some(inode) = self.inode(ino)? else { return self.make(ino, logged) };
        let kind = inode.read().fields().kind();
        if kind != logged.kind() {
            return Err(self.corrupt(key, "kind", format_args!("{:?}", logged.kind()), format_args!("{kind:?}")));
        }
        self.drop_xattrs(&inode)?;
        if kind == FileKind::Dir {
            self.drop_entries(&inode)?;
        }
        let mut guard = inode.write();
        let fields = guard.fields_mut(self.handle);
        let kept = *fields;
        let sized = !only_exists || (logged.size != 0 && kind == FileKind::File);
        if !only_exists {
            *fields = InodeFields { nbytes: kept.nbytes, nlink: kept.nlink, transid: kept.transid, ..logged };
        }
        // Names are counted as they come and go.
        fields.size = if sized && kind != FileKind::Dir { logged.size } else { kept.size };
        drop(guard);
        if kind == FileKind::File {
            if !only_exists && has_no_sums(&logged) && !has_no_sums(&kept) {
                self.unsummed.insert(ino.0);
            }
            self.files.insert(ino.0);
            self.cut(&inode)?;
        }
        Ok(())
    }

    /// An inode that the subvolume does not have yet.
    fn make(&mut self, ino: Ino, logged: InodeFields) -> Result<(), FsError> {
        let generation = self.handle.generation().0;
        let is_dir = logged.kind() == FileKind::Dir;
        let fields = InodeFields {
            generation: if logged.generation == 0 { generation } else { logged.generation },
            nbytes: 0,
            nlink: 0,
            size: if is_dir { 0 } else { logged.size },
            ..logged
        };
        // Not taken for fresh: a subvolume that lies may have items of an inode that it does not have.
        let inode = Arc::new(Inode::new(&self.subvol, ino, fields, false));
        inode.write().fields_mut(self.handle);
        if logged.kind() == FileKind::File {
            self.files.insert(ino.0);
            if has_no_sums(&logged) {
                self.unsummed.insert(ino.0);
            }
        }
        self.core.cache.insert((self.subvol.id(), ino.0), inode);
        Ok(())
    }

    /// Attributes that the log does not have go. It has all of an inode's, if it has the inode.
    fn drop_xattrs(&self, inode: &Arc<Inode>) -> Result<(), FsError> {
        let mut from = 0;
        loop {
            let found = inode.read().range_limit(ItemType::XATTR_ITEM, from, u64::MAX, BATCH)?;
            let Some((last, _)) = found.last() else { return Ok(()) };
            let next = last.checked_add(1);
            let mut guard = inode.write();
            for (hash, _) in found {
                if self.logged(inode.ino(), ItemType::XATTR_ITEM, hash)?.is_none() {
                    guard.delete(self.handle, ItemType::XATTR_ITEM, hash);
                }
            }
            guard.state_mut().has_xattrs = None;
            let Some(next) = next else { return Ok(()) };
            from = next;
        }
    }

    /// Step 3.
    fn rest(&mut self, key: Key, item: &[u8]) -> Result<(), FsError> {
        let known = [ItemType::INODE_REF, ItemType::INODE_EXTREF, ItemType::XATTR_ITEM, ItemType::EXTENT_DATA];
        if !known.contains(&key.item_type) {
            return Ok(());
        }
        let Some(inode) = self.subject(key)? else { return Ok(()) };
        match key.item_type {
            ItemType::XATTR_ITEM => {
                let mut guard = inode.write();
                guard.put(self.handle, ItemType::XATTR_ITEM, key.offset, item.into());
                guard.state_mut().has_xattrs = None;
                inode.nosec.store(false, Ordering::Relaxed);
                Ok(())
            }
            ItemType::EXTENT_DATA => self.extent(&inode, key.offset, item),
            _ => self.refs(&inode, key, item),
        }
    }
}

fn has_no_sums(fields: &InodeFields) -> bool {
    InodeFlags::from_bits_retain(fields.flags).contains(InodeFlags::NODATASUM)
}
