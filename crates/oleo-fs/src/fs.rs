//! An open file system: where everything about files and names begins.
//!
//! Locks: see `inode`. Crash: what was not committed is lost, whole operations at a time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use oleo_format::{FileExtentHead, Ino, ItemType, Key, TreeId};
use oleo_txn::{DeltaSource, Engine, TxnError};

use crate::attr::{Attr, FileKind};
use crate::core::Core;
use crate::dir::{self, DirEntryInfo, Target};
use crate::inode::{Inode, InodeFields, InodeRef, Items};
use crate::options::FsOptions;
use crate::refs::NameOf;
use crate::subvol::Subvol;
use crate::{FsError, refs};

/// Symbolic links that one path may go through (what Linux allows).
const SYMLINKS_MAX: usize = 40;
/// Bytes of a path, all links' targets included: 40 links of 4 KiB.
const PATH_MAX: usize = 41 * 4096;
/// Inodes erased by an operation that let one go, so that erasing keeps up with unlinking.
const ERASE_STEPS: usize = 4;
/// How long a block group stays that nothing is in.
const GROUP_IDLE: Duration = Duration::from_secs(10);
/// The type of a file extent whose bytes stand in the item (`BTRFS_FILE_EXTENT_INLINE`).
const INLINE: u8 = 0;
/// Permissions of the empty directory that stands in for a subvolume elsewhere.
const EMPTY_SUBVOL_DIR_MODE: u32 = 0o040_755;
/// Whether the last part of a path may be a symbolic link that is followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Follow {
    /// It is followed.
    #[default]
    Yes,
    /// The link itself is meant.
    No,
}

/// An open file system. Clones are the same one.
#[derive(Clone)]
pub struct Fs(Arc<Inner>);

struct Inner {
    core: Arc<Core>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.core.close();
    }
}

impl Fs {
    /// Opens the files of a volume.
    pub fn open(engine: Engine, opts: &FsOptions) -> Result<Fs, FsError> {
        let core = Arc::new(Core::new(engine, opts.clone()));
        let source: Arc<dyn DeltaSource> = core.clone();
        core.engine().set_source(Arc::downgrade(&source));
        Ok(Fs(Arc::new(Inner { core })))
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0.core
    }

    /// How many inodes are in memory.
    pub fn inodes_in_memory(&self) -> usize {
        self.core().cache.len()
    }

    /// Lets go of inodes beyond [`FsOptions::inodes_max`] that nobody holds any more; commits do that, too.
    pub fn shed(&self) {
        self.core().cache.shed();
    }

    /// The engine below.
    pub fn engine(&self) -> &Engine {
        self.0.core.engine()
    }

    /// How it was opened.
    pub fn options(&self) -> &FsOptions {
        &self.0.core.opts
    }

    /// The subvolume of that number.
    pub fn subvol(&self, id: TreeId) -> Result<Arc<Subvol>, FsError> {
        self.core().subvol(id)
    }

    /// The root directory of a subvolume.
    pub fn root(&self, id: TreeId) -> Result<InodeRef, FsError> {
        let subvol = self.core().subvol(id)?;
        self.inode(&subvol, Ino::ROOT_DIR)
    }

    /// The inode of that number.
    pub fn inode(&self, subvol: &Arc<Subvol>, ino: Ino) -> Result<InodeRef, FsError> {
        self.core().handle(subvol, ino)?.ok_or(FsError::NotFound)
    }

    /// Gives out `count` inode numbers in a row, for [`NewInode::ino`](crate::NewInode::ino), and returns the first.
    pub fn reserve_inos(&self, subvol: &Arc<Subvol>, count: u64) -> Result<Ino, FsError> {
        subvol.give_inos(count)
    }

    /// The inode that an entry leads to. Steps into subvolumes.
    pub fn lookup(&self, dir: &InodeRef, name: &[u8]) -> Result<Option<InodeRef>, FsError> {
        for _ in 0..crate::names::RETRIES_MAX {
            let found = {
                let guard = dir.read();
                guard.alive()?;
                if guard.fields().kind() != FileKind::Dir {
                    return Err(FsError::NotDir);
                }
                if name.len() > dir::NAME_MAX {
                    return Err(FsError::NameTooLong);
                }
                dir::find(&guard, name)?
            };
            let Some((target, _)) = found else { return Ok(None) };
            match target {
                Target::Subvol(id) => return self.enter_subvol(dir, name, id).map(Some),
                Target::Inode(ino) => match self.core().handle(dir.subvol(), ino)? {
                    Some(inode) => return Ok(Some(inode)),
                    None => self.check_dangling(dir, name, target)?,
                },
            }
        }
        Err(FsError::Busy("the directory keeps changing"))
    }

    /// The inode that an entry of a listing leads to, if it is still there.
    pub fn open_entry(&self, dir: &InodeRef, entry: &DirEntryInfo) -> Result<Option<InodeRef>, FsError> {
        match entry.target {
            Target::Inode(ino) => self.core().handle(dir.subvol(), ino),
            Target::Subvol(id) => self.enter_subvol(dir, &entry.name, id).map(Some),
        }
    }

    fn enter_subvol(&self, dir: &InodeRef, name: &[u8], id: TreeId) -> Result<InodeRef, FsError> {
        if self.is_subvol_here(dir, name, id)? {
            return self.root(id);
        }
        let parent = *dir.read().fields();
        let fields = InodeFields {
            generation: parent.generation,
            nlink: 1,
            mode: EMPTY_SUBVOL_DIR_MODE,
            atime: parent.mtime,
            ctime: parent.mtime,
            mtime: parent.mtime,
            otime: parent.mtime,
            ..InodeFields::default()
        };
        Ok(InodeRef::new(Arc::new(Inode::new_empty_subvol_dir(dir.subvol().clone(), fields))))
    }

    /// The directory that a directory is in, across subvolumes; `None` at the top.
    pub fn parent(&self, dir: &InodeRef) -> Result<Option<InodeRef>, FsError> {
        match self.parent_of(dir.tree(), dir.ino())? {
            None => Ok(None),
            Some((tree, ino)) => self.inode(&self.subvol(tree)?, ino).map(Some),
        }
    }

    pub(crate) fn parent_of(&self, tree: TreeId, ino: Ino) -> Result<Option<(TreeId, Ino)>, FsError> {
        if ino == Ino::ROOT_DIR {
            return Ok(self.root_backref(tree)?.map(|(parent, r)| (parent, r.dirid)));
        }
        let subvol = self.subvol(tree)?;
        let Some(inode) = self.core().inode(&subvol, ino)? else { return Ok(None) };
        let guard = inode.read();
        match refs::parent(&guard)? {
            Some(parent) => Ok(Some((tree, parent))),
            None if guard.fields().nlink == 0 => Ok(None),
            None => Err(FsError::corrupt("inode", ino, "names", "none", "one at least")),
        }
    }

    /// All names of an inode within its subvolume.
    pub fn names(&self, inode: &InodeRef) -> Result<Vec<NameOf>, FsError> {
        let guard = inode.read();
        guard.alive()?;
        refs::all(&guard)
    }

    /// The inode at a path. A leading slash, and links to absolute paths, start at the root directory of the
    /// subvolume that `start` is in, which ".." does not leave.
    pub fn resolve(&self, start: &InodeRef, path: &[u8], follow: Follow) -> Result<InodeRef, FsError> {
        let root = self.root(start.tree())?;
        let mut at = if path.first() == Some(&b'/') { root.clone() } else { start.clone() };
        let mut rest: Vec<Vec<u8>> = parts(path);
        let mut links = 0;
        let mut bytes = path.len();
        while let Some(part) = rest.pop() {
            match part.as_slice() {
                b"." => {
                    if at.read().fields().kind() != FileKind::Dir {
                        return Err(FsError::NotDir);
                    }
                    continue;
                }
                b".." => {
                    if at.read().fields().kind() != FileKind::Dir {
                        return Err(FsError::NotDir);
                    }
                    if !at.same(&root)
                        && let Some(parent) = self.parent(&at)?
                    {
                        at = parent;
                    }
                    continue;
                }
                _ => {}
            }
            let next = self.lookup(&at, &part)?.ok_or(FsError::NotFound)?;
            let is_link = next.read().fields().kind() == FileKind::Symlink;
            if !is_link || (rest.is_empty() && follow == Follow::No) {
                at = next;
                continue;
            }
            links += 1;
            let target = self.read_link(&next)?;
            bytes += target.len();
            if links > SYMLINKS_MAX || bytes > PATH_MAX {
                return Err(FsError::TooManySymlinks);
            }
            if target.first() == Some(&b'/') {
                at = root.clone();
            }
            rest.extend(parts(&target));
        }
        Ok(at)
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, link: &InodeRef) -> Result<Vec<u8>, FsError> {
        if link.read().fields().kind() != FileKind::Symlink {
            return Err(FsError::Invalid("not a symbolic link"));
        }
        let guard = link.read();
        guard.alive()?;
        let at = link.key(ItemType::EXTENT_DATA, 0);
        let item = guard
            .get(ItemType::EXTENT_DATA, 0)?
            .ok_or_else(|| FsError::corrupt("symbolic link", at, "target", "missing", "an inline extent"))?;
        let (head, target) = FileExtentHead::parse_prefix(&item)?;
        if head.r#type != INLINE {
            return Err(FsError::corrupt("symbolic link", at, "extent type", head.r#type, INLINE));
        }
        if head.compression != 0 {
            return Err(FsError::NotSupported("compressed targets of symbolic links"));
        }
        Ok(target.to_vec())
    }

    /// What is known of an inode.
    pub fn attr(&self, inode: &InodeRef) -> Attr {
        let guard = inode.read();
        Attr::of(inode, &crate::data::shown(&guard))
    }

    /// Fails if the inode may not be changed.
    pub(crate) fn changeable(&self, inode: &Inode) -> Result<(), FsError> {
        if inode.is_empty_subvol_dir() {
            return Err(FsError::NotPermitted("the empty directory in place of a subvolume that is elsewhere"));
        }
        inode.subvol().writable()
    }

    /// Comes after the removal of a name: where more inodes wait to be erased than should, some are. Somebody else lets go of them, and
    /// one thread that cleans may be slower than many that remove.
    pub(crate) fn keep_up(&self) {
        if self.core().many_evictable.load(Ordering::Relaxed) {
            self.erase_some();
        }
    }

    /// Erases some of the inodes that are to be evicted. A failure is reported by the next sync or cleaner step, not here.
    pub(crate) fn erase_some(&self) {
        for _ in 0..ERASE_STEPS {
            if !self.core().evict_one().unwrap_or(false) {
                break;
            }
        }
    }

    /// Refuses every change and commit from now on: somebody who was changing things did not come to an end, and nobody knows
    /// what is whole. What is on disk stays as of the last commit.
    pub fn refuse_changes(&self, why: &str) {
        self.core().poisoned.lock().get_or_insert_with(|| why.to_owned());
        self.engine().refuse_changes(why);
    }

    /// One step of cleaning: inodes without names, what a crash left, deleted subvolumes, of which at most
    /// `budget_blocks` blocks are taken apart, block groups that have been empty for a while. False when nothing is left to do.
    pub fn clean(&self, budget_blocks: usize) -> Result<bool, FsError> {
        if self.core().evict_one()? {
            return Ok(true);
        }
        self.clean_orphans()?;
        let Some(dead) = self.engine().dead_tree_from(TreeId(0))? else {
            return Ok(self.engine().remove_idle_group(GROUP_IDLE)?.is_some());
        };
        self.engine().drop_step(dead, budget_blocks)?;
        Ok(true)
    }
}

impl Fs {
    /// Erases what a crash left without names, in every subvolume that may be changed.
    fn clean_orphans(&self) -> Result<(), FsError> {
        if self.core().orphans_seen.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.clean_orphans_everywhere().inspect_err(|_| self.core().orphans_seen.store(false, Ordering::Release))
    }

    fn clean_orphans_everywhere(&self) -> Result<(), FsError> {
        for id in self.subvol_ids()? {
            match self.subvol(id) {
                Ok(subvol) if subvol.writable().is_ok() => self.core().clean_orphans(&subvol)?,
                Ok(_) | Err(FsError::NotFound) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// The parts of a path, the first one last.
fn parts(path: &[u8]) -> Vec<Vec<u8>> {
    let mut parts: Vec<Vec<u8>> = path.split(|b| *b == b'/').filter(|p| !p.is_empty()).map(<[u8]>::to_vec).collect();
    if path.last() == Some(&b'/') {
        // "dir/" is "dir/.": it must be a directory, and a link to one is followed.
        parts.push(b".".to_vec());
    }
    parts.reverse();
    parts
}

impl Core {
    /// Drops what holds the core itself in a circle.
    fn close(&self) {
        self.evictable.lock().clear();
        self.cache.clear();
        self.subvols.lock().clear();
        self.forget_dirty();
        self.data.forget();
    }

    /// An operation failed half way, which only a broken disk can do: nothing may be committed any more, or half of it
    /// would be.
    pub(crate) fn poison(&self, error: &FsError) {
        let mut poisoned = self.poisoned.lock();
        if poisoned.is_none() {
            *poisoned = Some(format!("an operation failed half way: {error}"));
        }
    }

    /// Runs changes that belong together: where one fails after others were made, nothing may be committed.
    pub(crate) fn poison_on_error<R>(&self, changes: impl FnOnce() -> Result<R, FsError>) -> Result<R, FsError> {
        changes().inspect_err(|e| self.poison(e))
    }

    pub(crate) fn check_not_poisoned(&self) -> Result<(), TxnError> {
        match &*self.poisoned.lock() {
            Some(why) => Err(TxnError::Source(why.as_str().into())),
            None => Ok(()),
        }
    }

    /// The key of the highest item at or below a key, in a tree as it stands.
    pub(crate) fn highest(&self, tree: TreeId, at_or_below: Key) -> Result<Option<Key>, FsError> {
        let _reader = self.engine().reader();
        let Some(root) = self.engine().root(tree)? else { return Ok(None) };
        let mut cursor = self.engine().blocks().cursor(&root);
        cursor.seek_back(&at_or_below)?;
        Ok(cursor.key())
    }
}
