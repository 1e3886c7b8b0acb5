//! Operations on names: create, link, unlink, rmdir, rename.
//!
//! Normal path: (1) look at the entries without locks held across calls; (2) join the transaction; (3) lock the inodes
//! concerned, all at once; (4) look again, and start over if somebody was faster; (5) check everything that can refuse;
//! (6) change.
//!
//! Invariants: after (5) only reading from a broken disk can fail. Where that happens in the middle of (6) the open
//! transaction is no longer whole, and the file system refuses to commit it ([`Core::spoil`]).
//! Crash: an operation is in one transaction, so either all of it is on disk or nothing.

use std::sync::Arc;

use oleo_format::{FileExtentHead, Ino, InodeFlags, ItemType, item_len_max};
use oleo_txn::Need;
use zerocopy::IntoBytes;

use crate::attr::{FileKind, MODE_SETGID, NewInode, NewKind, Times};
use crate::core::Core;
use crate::dir::{self, Target};
use crate::fs::Fs;
use crate::inode::{Inode, InodeFields, InodeRef, Items, ItemsMut, Joined, WriteGuard, lock_all};
use crate::options::Time;
use crate::{FsError, acl, orphan, refs, xattr};

/// Times that an operation starts over because others changed what it had looked at: each time one of them got on, so
/// this many in a row means that something is wrong.
pub(crate) const RETRIES_MAX: usize = 10_000;
/// Names that a file may have (`BTRFS_LINK_MAX`).
const LINKS_MAX: u32 = 65535;
/// Bytes of a symbolic link's target: those of a path, less the zero byte that system calls add.
const TARGET_MAX: usize = 4095;
/// Directories from any to the root, at most: more than the longest path has.
const DEPTH_MAX: usize = 1 << 20;

/// Items that adding or removing one name changes: two of the directory's entry, the name in the inode, both inodes.
const NAME_ITEMS: u32 = 5;
/// Their bytes when they are new, item heads included, without the name, which stands in three of them.
const NAME_BYTES: u32 = 440;
/// Items of a rename beside those of the two names: both directories, references in the root tree.
const RENAME_ITEMS: u32 = 6;

/// What adding one name may need.
fn name_need(name: &[u8], more_bytes: u32) -> Need {
    Need { items: NAME_ITEMS, bytes: NAME_BYTES + 3 * name.len() as u32 + more_bytes, releasing: false }
}

/// How `rename` treats what is at the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RenameMode {
    /// Replaces it.
    #[default]
    Replace,
    /// Refuses with `Exists`.
    NoReplace,
    /// Swaps source and target.
    Exchange,
}

/// One change of a directory's entries: its times, its count of changes.
pub(crate) fn stamp(dir: &mut WriteGuard<'_>, h: &dyn Joined, now: Time) {
    let fields = dir.fields_mut(h);
    fields.mtime = now;
    fields.ctime = now;
    fields.sequence += 1;
}

/// Fails unless the inode is a directory that entries can be added to or removed from.
pub(crate) fn check_dir(dir: &WriteGuard<'_>) -> Result<(), FsError> {
    dir.alive()?;
    if dir.fields().kind() != FileKind::Dir {
        return Err(FsError::NotDir);
    }
    if dir.fields().nlink == 0 { Err(FsError::NotFound) } else { Ok(()) }
}

/// The one error kind that a change half done can meet; see [`Core::spoil`].
pub(crate) fn whole<R>(core: &Core, done: Result<R, FsError>) -> Result<R, FsError> {
    if let Err(e) = &done {
        core.spoil(e);
    }
    done
}

impl Fs {
    /// Makes a new inode with one name.
    pub fn create(&self, dir: &InodeRef, name: &[u8], new: &NewInode<'_>) -> Result<InodeRef, FsError> {
        dir::check_name(name)?;
        self.changeable(dir)?;
        let core = self.core();
        core.relieve()?;
        if let NewKind::Symlink(target) = new.kind {
            check_target(target, self.engine().nodesize())?;
        }
        let target_len = if let NewKind::Symlink(target) = new.kind { target.len() as u32 } else { 0 };
        let h = self.engine().join(name_need(name, target_len))?;
        let mut parent = dir.write();
        check_dir(&parent)?;
        let spot = dir::Spot::of(&parent, name)?;
        if spot.find(name)?.is_some() {
            return Err(FsError::Exists);
        }
        let start = Start::of(&mut parent, new)?;
        let ino = match new.ino {
            Some(ino) => ino,
            None => dir.subvol().give_inos(1)?,
        };
        let now = core.now();
        let index = dir::add_at(&mut parent, &h, spot, name, Target::Inode(ino), new.kind.kind())?;
        stamp(&mut parent, &h, now);
        let fields = start.fields(new, h.generation().0, now);
        let child = Arc::new(Inode::new(dir.subvol().clone(), ino, fields, true));
        let made = InodeRef::new(child);
        {
            let mut child = made.write();
            child.fields_mut(&h);
            child.put(&h, ItemType::INODE_REF, dir.ino().0, refs::encode_ref(index, name));
            child.state_mut().next_index = if fields.kind() == FileKind::Dir { dir::FIRST_INDEX } else { 0 };
            if let NewKind::Symlink(target) = new.kind {
                child.put(&h, ItemType::EXTENT_DATA, 0, inline_extent(h.generation().0, target));
            }
            for (name, value) in &start.xattrs {
                whole(core, xattr::set(&mut child, &h, name, value, xattr::XattrMode::Any))?;
            }
        }
        core.cache.insert((dir.tree(), ino.0), Arc::clone(&made));
        Ok(made)
    }

    /// Gives a file one more name.
    pub fn link(&self, file: &InodeRef, dir: &InodeRef, name: &[u8]) -> Result<(), FsError> {
        dir::check_name(name)?;
        self.changeable(dir)?;
        if file.tree() != dir.tree() {
            return Err(FsError::CrossSubvolume);
        }
        let core = self.core();
        core.relieve()?;
        let h = self.engine().join(name_need(name, 0))?;
        let mut locked = lock_all(&[dir, file]);
        let fields = *locked.of(file).fields();
        if fields.kind() == FileKind::Dir {
            return Err(FsError::NotPermitted("a directory has one name only"));
        }
        check_dir(locked.of(dir))?;
        locked.of(file).alive()?;
        if fields.nlink == 0 {
            return Err(FsError::NotFound);
        }
        if fields.nlink >= LINKS_MAX {
            return Err(FsError::TooManyLinks);
        }
        if dir::find(locked.of(dir), name)?.is_some() {
            return Err(FsError::Exists);
        }
        refs::check_room(locked.of(file), dir.ino(), name)?;
        dir::check_room(locked.of(dir), name)?;
        let now = core.now();
        let done = (|| {
            let index = dir::add(locked.of(dir), &h, name, Target::Inode(file.ino()), fields.kind())?;
            refs::add(locked.of(file), &h, dir.ino(), name, index)
        })();
        whole(core, done)?;
        stamp(locked.of(dir), &h, now);
        let fields = locked.of(file).fields_mut(&h);
        fields.nlink += 1;
        fields.ctime = now;
        fields.sequence += 1;
        Ok(())
    }

    /// Removes a name of anything but a directory. The file goes with its last name, or with the last handle to it.
    pub fn unlink(&self, dir: &InodeRef, name: &[u8]) -> Result<(), FsError> {
        self.remove_name(dir, name, false)
    }

    /// Removes an empty directory. An empty subvolume is deleted.
    pub fn rmdir(&self, dir: &InodeRef, name: &[u8]) -> Result<(), FsError> {
        self.remove_name(dir, name, true)
    }

    fn remove_name(&self, dir: &InodeRef, name: &[u8], directory: bool) -> Result<(), FsError> {
        dir::check_name(name)?;
        self.changeable(dir)?;
        self.core().relieve()?;
        for _ in 0..RETRIES_MAX {
            let (target, kind) = self.entry(dir, name)?;
            if directory && kind != FileKind::Dir {
                return Err(FsError::NotDir);
            }
            if !directory && kind == FileKind::Dir {
                return Err(FsError::IsDir);
            }
            let ino = match target {
                Target::Inode(ino) => ino,
                Target::Subvol(id) => return self.remove_subvol_entry(dir, name, id),
            };
            let Some(child) = self.core().inode(dir.subvol(), ino)? else {
                self.check_dangling(dir, name, target)?;
                continue;
            };
            if let Some(let_go) = self.remove_inode_name(dir, name, target, &child, directory)? {
                if let_go {
                    self.core().let_go(child);
                    self.erase_some()?;
                }
                return Ok(());
            }
        }
        Err(FsError::Busy("the directory keeps changing"))
    }

    /// `None`: the entry has changed, start over. Otherwise whether the inode must be let go of.
    fn remove_inode_name(
        &self,
        dir: &InodeRef,
        name: &[u8],
        target: Target,
        child: &Arc<Inode>,
        directory: bool,
    ) -> Result<Option<bool>, FsError> {
        let core = self.core();
        let extents = orphan::extents_to_erase(child)?;
        let erase = orphan::erase_need(extents);
        let h = self.engine().join(Need { items: NAME_ITEMS + erase.items, ..erase })?;
        let mut locked = lock_all(&[dir, child]);
        check_dir(locked.of(dir))?;
        if dir::find(locked.of(dir), name)?.map(|e| e.0) != Some(target) || locked.of(child).state().gone {
            return Ok(None);
        }
        if directory && !dir::is_empty(locked.of(child))? {
            return Err(FsError::NotEmpty);
        }
        let now = core.now();
        let done = (|| {
            dir::remove_item(locked.of(dir), &h, name)?;
            let index = refs::remove(locked.of(child), &h, dir.ino(), name)?;
            remove_index(locked.of(dir), &h, name, index)?;
            stamp(locked.of(dir), &h, now);
            drop_name(locked.of(child), &h, extents, now)
        })();
        whole(core, done).map(Some)
    }

    /// Moves an entry, replacing, refusing or swapping with what is at the target.
    pub fn rename(
        &self,
        src_dir: &InodeRef,
        src: &[u8],
        dst_dir: &InodeRef,
        dst: &[u8],
        mode: RenameMode,
    ) -> Result<(), FsError> {
        dir::check_name(src)?;
        dir::check_name(dst)?;
        self.changeable(src_dir)?;
        self.changeable(dst_dir)?;
        self.core().relieve()?;
        for _ in 0..RETRIES_MAX {
            let from = self.entry(src_dir, src)?;
            let to = {
                let guard = dst_dir.read();
                guard.alive()?;
                if guard.fields().kind() != FileKind::Dir {
                    return Err(FsError::NotDir);
                }
                dir::find(&guard, dst)?
            };
            check_kinds(from.1, to.map(|t| t.1), mode)?;
            if to.is_some_and(|to| to.0 == from.0 && src_dir.tree() == dst_dir.tree()) {
                return Ok(());
            }
            let plan = Rename { src_dir, src, dst_dir, dst, from: from.0, to: to.map(|t| t.0), mode };
            if let Some(let_go) = self.rename_once(&plan, from.1, to.map(|t| t.1))? {
                if let Some(inode) = let_go {
                    self.core().let_go(inode);
                    self.erase_some()?;
                }
                return Ok(());
            }
        }
        Err(FsError::Busy("the directories keep changing"))
    }

    /// `None`: an entry has changed, start over. Otherwise the inode to let go of.
    fn rename_once(
        &self,
        plan: &Rename<'_>,
        kind: FileKind,
        old_kind: Option<FileKind>,
    ) -> Result<Option<Option<Arc<Inode>>>, FsError> {
        let core = self.core();
        let moves_dir = !plan.src_dir.same(plan.dst_dir)
            && (kind == FileKind::Dir || (plan.mode == RenameMode::Exchange && old_kind == Some(FileKind::Dir)));
        let _moving = moves_dir.then(|| core.moving.lock());
        let Some(source) = self.movable(plan.src_dir, plan.src, plan.from)? else { return Ok(None) };
        let target = match plan.to {
            None => None,
            Some(to) => match self.movable(plan.dst_dir, plan.dst, to)? {
                None => return Ok(None),
                Some(target) => Some(target),
            },
        };
        if moves_dir {
            self.check_loop(&source, plan.dst_dir)?;
            if plan.mode == RenameMode::Exchange
                && let Some(target) = &target
            {
                self.check_loop(target, plan.src_dir)?;
            }
        }
        plan.check_subvols(&source, target.as_ref())?;
        let replaced = target.as_ref().filter(|_| plan.mode != RenameMode::Exchange);
        let extents = match replaced {
            Some(Moved::Inode(old)) => orphan::extents_to_erase(old)?,
            _ => 0,
        };
        let names = (plan.src.len() + plan.dst.len()) as u32;
        let items = 2 * NAME_ITEMS + RENAME_ITEMS + orphan::erase_need(extents).items;
        let h = self.engine().join(Need { items, bytes: 2 * NAME_BYTES + 3 * names, releasing: false })?;
        let mut inodes: smallvec::SmallVec<[&Arc<Inode>; 4]> = smallvec::smallvec![&**plan.src_dir, &**plan.dst_dir];
        inodes.extend([Some(&source), target.as_ref()].into_iter().flatten().filter_map(Moved::inode));
        let mut locked = lock_all(&inodes);
        check_dir(locked.of(plan.src_dir))?;
        check_dir(locked.of(plan.dst_dir))?;
        if dir::find(locked.of(plan.src_dir), plan.src)?.map(|e| e.0) != Some(plan.from)
            || dir::find(locked.of(plan.dst_dir), plan.dst)?.map(|e| e.0) != plan.to
        {
            return Ok(None);
        }
        if let Some(Moved::Inode(old)) = replaced
            && old_kind == Some(FileKind::Dir)
            && !dir::is_empty(locked.of(old))?
        {
            return Err(FsError::NotEmpty);
        }
        if let Moved::Inode(inode) = &source {
            refs::check_room(locked.of(inode), plan.dst_dir.ino(), plan.dst)?;
        }
        dir::check_room(locked.of(plan.dst_dir), plan.dst)?;
        if let (Some(Moved::Inode(inode)), RenameMode::Exchange) = (&target, plan.mode) {
            refs::check_room(locked.of(inode), plan.src_dir.ino(), plan.src)?;
        }
        if plan.mode == RenameMode::Exchange {
            dir::check_room(locked.of(plan.src_dir), plan.src)?;
        }
        let now = core.now();
        let done = (|| {
            self.detach(&mut locked, &h, plan.src_dir, plan.src, &source)?;
            let mut let_go = None;
            if let Some(target) = &target {
                self.detach(&mut locked, &h, plan.dst_dir, plan.dst, target)?;
                match (target, plan.mode) {
                    (_, RenameMode::Exchange) => {
                        let kind = old_kind.unwrap_or(FileKind::Unknown);
                        self.attach(&mut locked, &h, plan.src_dir, plan.src, target, kind, now)?;
                    }
                    (Moved::Inode(old), _) => {
                        if drop_name(locked.of(old), &h, extents, now)? {
                            let_go = Some(old.clone());
                        }
                    }
                    (Moved::Stub(_) | Moved::Subvol(_), _) => {}
                }
            }
            self.attach(&mut locked, &h, plan.dst_dir, plan.dst, &source, kind, now)?;
            stamp(locked.of(plan.src_dir), &h, now);
            if !plan.src_dir.same(plan.dst_dir) {
                stamp(locked.of(plan.dst_dir), &h, now);
            }
            Ok(let_go)
        })();
        whole(core, done).map(Some)
    }

    /// What an entry that is to be moved or replaced leads to; `None`: it has changed meanwhile.
    fn movable(&self, dir: &InodeRef, name: &[u8], target: Target) -> Result<Option<Moved>, FsError> {
        match target {
            Target::Inode(ino) => match self.core().inode(dir.subvol(), ino)? {
                Some(inode) => Ok(Some(Moved::Inode(inode))),
                None => self.check_dangling(dir, name, target).map(|()| None),
            },
            Target::Subvol(id) if self.is_subvol_here(dir, name, id)? => Ok(Some(Moved::Subvol(id))),
            Target::Subvol(id) => Ok(Some(Moved::Stub(id))),
        }
    }

    /// Takes an entry out of a directory, and the directory out of what the entry leads to.
    fn detach(
        &self,
        locked: &mut crate::inode::LockedSet<'_>,
        h: &dyn Joined,
        dir: &InodeRef,
        name: &[u8],
        what: &Moved,
    ) -> Result<(), FsError> {
        let index = match what {
            Moved::Inode(inode) => refs::remove(locked.of(inode), h, dir.ino(), name)?,
            Moved::Subvol(id) => self.remove_root_ref(h, dir.tree(), *id)?.map(|r| r.sequence),
            Moved::Stub(_) => None,
        };
        dir::remove_item(locked.of(dir), h, name)?;
        remove_index(locked.of(dir), h, name, index)
    }

    #[allow(clippy::too_many_arguments, reason = "where, what and when; each used once")]
    fn attach(
        &self,
        locked: &mut crate::inode::LockedSet<'_>,
        h: &dyn Joined,
        dir: &InodeRef,
        name: &[u8],
        what: &Moved,
        kind: FileKind,
        now: Time,
    ) -> Result<(), FsError> {
        let index = dir::add(locked.of(dir), h, name, what.target(), kind)?;
        match what {
            Moved::Inode(inode) => {
                refs::add(locked.of(inode), h, dir.ino(), name, index)?;
                let fields = locked.of(inode).fields_mut(h);
                fields.ctime = now;
                fields.sequence += 1;
                Ok(())
            }
            Moved::Subvol(id) => self.add_root_ref(h, dir.tree(), dir.ino(), *id, index, name),
            Moved::Stub(_) => Ok(()),
        }
    }

    /// Fails when what moves is the new parent or one of its ancestors.
    fn check_loop(&self, moved: &Moved, new_parent: &InodeRef) -> Result<(), FsError> {
        let moved = match moved {
            Moved::Inode(inode) => inode.rank(),
            Moved::Subvol(id) => (*id, Ino::ROOT_DIR),
            Moved::Stub(_) => return Ok(()),
        };
        let mut at = (new_parent.tree(), new_parent.ino());
        for _ in 0..DEPTH_MAX {
            let hit = at == moved;
            if hit {
                return Err(FsError::Invalid("a directory cannot move into itself"));
            }
            match self.parent_of(at.0, at.1)? {
                Some(parent) => at = parent,
                None => return Ok(()),
            }
        }
        Err(FsError::lie("directory", at.1, "depth", "endless", "a way to the root"))
    }

    /// An entry, which must exist.
    fn entry(&self, dir: &InodeRef, name: &[u8]) -> Result<(Target, FileKind), FsError> {
        let guard = dir.read();
        guard.alive()?;
        if guard.fields().kind() != FileKind::Dir {
            return Err(FsError::NotDir);
        }
        dir::find(&guard, name)?.ok_or(FsError::NotFound)
    }

    /// An entry's inode was not found: a lie, unless the entry is gone as well.
    pub(crate) fn check_dangling(&self, dir: &InodeRef, name: &[u8], target: Target) -> Result<(), FsError> {
        let guard = dir.read();
        if dir::find(&guard, name)?.map(|e| e.0) == Some(target)
            && let Target::Inode(ino) = target
            && self.core().inode(dir.subvol(), ino)?.is_none()
        {
            return Err(FsError::lie("directory", dir.ino(), "entry's inode", "missing", ino));
        }
        Ok(())
    }
}

/// A rename's arguments and what its entries led to when they were looked at.
struct Rename<'a> {
    src_dir: &'a InodeRef,
    src: &'a [u8],
    dst_dir: &'a InodeRef,
    dst: &'a [u8],
    from: Target,
    to: Option<Target>,
    mode: RenameMode,
}

impl Rename<'_> {
    /// The rules of entries that lead to subvolumes: only these move between subvolumes, none is replaced, and the
    /// stand-in of one that is elsewhere does not move at all.
    fn check_subvols(&self, source: &Moved, target: Option<&Moved>) -> Result<(), FsError> {
        let swapped = target.filter(|_| self.mode == RenameMode::Exchange);
        let moved = || [Some(source), swapped].into_iter().flatten();
        if self.src_dir.tree() != self.dst_dir.tree() && moved().any(|m| !matches!(m, Moved::Subvol(_))) {
            return Err(FsError::CrossSubvolume);
        }
        let replaced = target.filter(|_| self.mode != RenameMode::Exchange);
        if moved().any(|m| matches!(m, Moved::Stub(_))) || matches!(replaced, Some(Moved::Subvol(_))) {
            return Err(FsError::NotEmpty);
        }
        Ok(())
    }
}

/// What a moved entry leads to.
enum Moved {
    Inode(Arc<Inode>),
    /// A subvolume that is in this place.
    Subvol(oleo_format::TreeId),
    /// An entry of a subvolume that is somewhere else.
    Stub(oleo_format::TreeId),
}

impl Moved {
    fn inode(&self) -> Option<&Arc<Inode>> {
        match self {
            Moved::Inode(inode) => Some(inode),
            Moved::Subvol(_) | Moved::Stub(_) => None,
        }
    }

    fn target(&self) -> Target {
        match self {
            Moved::Inode(inode) => Target::Inode(inode.ino()),
            Moved::Subvol(id) | Moved::Stub(id) => Target::Subvol(*id),
        }
    }
}

fn check_kinds(kind: FileKind, old: Option<FileKind>, mode: RenameMode) -> Result<(), FsError> {
    match (mode, old) {
        (RenameMode::NoReplace, Some(_)) => Err(FsError::Exists),
        (RenameMode::Exchange, None) => Err(FsError::NotFound),
        (RenameMode::Replace, Some(FileKind::Dir)) if kind != FileKind::Dir => Err(FsError::IsDir),
        (RenameMode::Replace, Some(old)) if kind == FileKind::Dir && old != FileKind::Dir => Err(FsError::NotDir),
        _ => Ok(()),
    }
}

/// One name less. True when the inode must be let go of.
fn drop_name(inode: &mut WriteGuard<'_>, h: &dyn Joined, extents_max: u32, now: Time) -> Result<bool, FsError> {
    let fields = inode.fields_mut(h);
    fields.nlink = fields.nlink.saturating_sub(1);
    fields.ctime = now;
    fields.sequence += 1;
    if fields.nlink == 0 { orphan::last_name_gone(inode, h, extents_max) } else { Ok(false) }
}

/// Removes the index item of an entry; looks for it where the entry's inode does not know the index.
pub(crate) fn remove_index(
    dir: &mut WriteGuard<'_>,
    h: &dyn Joined,
    name: &[u8],
    index: Option<u64>,
) -> Result<(), FsError> {
    let index = match index {
        Some(index) => Some(index),
        None => dir::index_of(dir, name)?,
    };
    if let Some(index) = index {
        dir.delete(h, ItemType::DIR_INDEX, index);
    }
    Ok(())
}

/// What a new inode takes over from its directory.
struct Start {
    flags: InodeFlags,
    gid: u32,
    /// With type bits.
    mode: u32,
    xattrs: Vec<(&'static [u8], Vec<u8>)>,
}

impl Start {
    fn of(dir: &mut WriteGuard<'_>, new: &NewInode<'_>) -> Result<Start, FsError> {
        let parent = *dir.fields();
        let kind = new.kind.kind();
        let mut start = Start {
            flags: inherited_flags(InodeFlags::from_bits_retain(parent.flags), kind),
            gid: new.gid,
            mode: new.mode & 0o7777 | kind.mode_bits(),
            xattrs: Vec::new(),
        };
        if kind == FileKind::Symlink {
            start.mode = 0o777 | kind.mode_bits();
        }
        if parent.mode & MODE_SETGID != 0 && !new.plain {
            start.gid = parent.gid;
            if kind == FileKind::Dir {
                start.mode |= MODE_SETGID;
            }
        }
        if xattr::any(dir)? {
            start.inherit_xattrs(dir, new, kind)?;
        }
        Ok(start)
    }

    fn inherit_xattrs(&mut self, dir: &dyn Items, new: &NewInode<'_>, kind: FileKind) -> Result<(), FsError> {
        let compresses = matches!(kind, FileKind::File | FileKind::Dir) && !self.flags.contains(InodeFlags::NODATACOW);
        if compresses && let Some((value, flags)) = xattr::inherited_compression(dir)? {
            self.flags = (self.flags - InodeFlags::NOCOMPRESS) | flags;
            self.xattrs.push((xattr::COMPRESSION, value));
        }
        if new.plain || kind == FileKind::Symlink {
            return Ok(());
        }
        if let Some(default) = xattr::get(dir, acl::DEFAULT)? {
            let (mode, access) = acl::inherit(&default, self.mode);
            self.mode = mode;
            if let Some(access) = access {
                self.xattrs.push((acl::ACCESS, access));
            }
            if kind == FileKind::Dir {
                self.xattrs.push((acl::DEFAULT, default));
            }
        }
        Ok(())
    }

    fn fields(&self, new: &NewInode<'_>, generation: u64, now: Time) -> InodeFields {
        let times = new.times.unwrap_or(Times::all(now));
        let len = if let NewKind::Symlink(target) = new.kind { target.len() as u64 } else { 0 };
        let rdev = match new.kind {
            NewKind::CharDevice(rdev) | NewKind::BlockDevice(rdev) => rdev.to_disk(),
            _ => 0,
        };
        InodeFields {
            generation,
            transid: generation,
            size: len,
            nbytes: len,
            nlink: 1,
            uid: new.uid,
            gid: self.gid,
            mode: self.mode,
            rdev,
            flags: self.flags.bits(),
            sequence: 0,
            atime: times.atime,
            ctime: times.ctime,
            mtime: times.mtime,
            otime: times.otime,
        }
    }
}

/// The flags that an inode takes over from its directory.
fn inherited_flags(parent: InodeFlags, kind: FileKind) -> InodeFlags {
    let mut flags = InodeFlags::empty();
    if parent.contains(InodeFlags::NOCOMPRESS) {
        flags |= InodeFlags::NOCOMPRESS;
    } else if parent.contains(InodeFlags::COMPRESS) {
        flags |= InodeFlags::COMPRESS;
    }
    if parent.contains(InodeFlags::NODATACOW) {
        flags |= InodeFlags::NODATACOW;
        if kind == FileKind::File {
            flags |= InodeFlags::NODATASUM;
        }
    }
    flags
}

fn check_target(target: &[u8], nodesize: u32) -> Result<(), FsError> {
    if target.is_empty() || target.contains(&0) {
        return Err(FsError::Invalid("a link's target is empty or has a zero byte"));
    }
    if target.len() > TARGET_MAX.min(item_len_max(nodesize) - size_of::<FileExtentHead>()) {
        return Err(FsError::NameTooLong);
    }
    Ok(())
}

/// A file extent whose bytes stand in the item, as a symbolic link's target does.
fn inline_extent(generation: u64, bytes: &[u8]) -> Box<[u8]> {
    let head = FileExtentHead {
        generation: generation.into(),
        ram_bytes: (bytes.len() as u64).into(),
        ..FileExtentHead::default()
    };
    [head.as_bytes(), bytes].concat().into_boxed_slice()
}
