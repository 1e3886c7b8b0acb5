//! Rename: one entry moves, replaces, is swapped, or leaves a mark behind.
//!
//! Normal path, as of all operations on names: (1) look at both entries; (2) see what they lead to; a directory that gets
//! another parent must not come to lie below itself, and `moving` keeps others from moving directories
//! meanwhile; (3) join, lock both directories and both inodes; (4) look again; (5) check everything that can refuse; (6)
//! detach and attach.

use std::sync::Arc;

use oleo_format::Ino;
use oleo_txn::Need;

use crate::FsError;
use crate::attributes::{FileKind, NewInode, NewKind, Rdev, rules};
use crate::fs::Fs;
use crate::items::dir::{self, Target};
use crate::items::refs;
use crate::names::RETRIES_MAX;
use crate::names::create::Start;
use crate::names::link::{Leaving, NAME_BYTES, NAME_ITEMS, check_dir, drop_name, stamp};
use crate::names::orphan::{self, Remains};
use crate::object::{Inode, InodeRef, Items, ItemsMut, Joined, LockedSet, lock_all};
use crate::options::Time;

/// Directories from any to the root, at most: more than the longest path has.
const DEPTH_MAX: usize = 1 << 20;
/// Items of a rename beside those of the two names: both directories, references in the root tree.
const RENAME_ITEMS: u32 = 6;
/// Items of the mark that a rename leaves: itself, its name, and what the directory hands down.
const MARK_ITEMS: u32 = 4;

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
    /// Leaves a character device 0/0, the mark of a union mount for "nothing here", at the old name.
    Whiteout {
        /// The mark's owner.
        uid: u32,
        /// Its group, unless the directory hands down its own.
        gid: u32,
        /// Refuses, with `Exists`, to replace what is at the target.
        no_replace: bool,
    },
}

impl RenameMode {
    /// Whether something at the target is in the way.
    fn keeps_target(self) -> bool {
        matches!(self, RenameMode::NoReplace | RenameMode::Whiteout { no_replace: true, .. })
    }

    /// What is left at the old name.
    fn mark(self) -> Option<NewInode<'static>> {
        let RenameMode::Whiteout { uid, gid, .. } = self else { return None };
        Some(NewInode { uid, gid, ..NewInode::new(NewKind::CharDevice(Rdev::default()), 0) })
    }
}

/// Whether two entries that lead to the same are of one file. Of two that lead to one subvolume, one at least is an empty directory in its place.
fn is_one(a: (&InodeRef, &[u8]), b: (&InodeRef, &[u8]), target: Target) -> bool {
    match target {
        Target::Inode(_) => a.0.tree() == b.0.tree(),
        Target::Subvol(_) => a.0.same(b.0) && a.1 == b.1,
    }
}

impl Fs {
    /// Moves an entry, replacing, refusing or swapping with what is at the target.
    pub fn rename(
        &self,
        src_dir: &InodeRef,
        src: &[u8],
        dst_dir: &InodeRef,
        dst: &[u8],
        mode: RenameMode,
    ) -> Result<(), FsError> {
        self.move_name(src_dir, src, dst_dir, dst, mode)?;
        self.keep_names(src_dir)?;
        if src_dir.same(dst_dir) { Ok(()) } else { self.keep_names(dst_dir) }
    }

    fn move_name(
        &self,
        src_dir: &InodeRef,
        src: &[u8],
        dst_dir: &InodeRef,
        dst: &[u8],
        mode: RenameMode,
    ) -> Result<(), FsError> {
        dir::check_name(src)?;
        dir::check_name(dst)?;
        if let Err(refused) = self.changeable(src_dir).and_then(|()| self.changeable(dst_dir)) {
            // A file that is moved to another name of its own stays as it is, so that a read-only subvolume does not refuse.
            let nothing = matches!(refused, FsError::ReadOnly(_))
                && !mode.keeps_target()
                && self.entry(src_dir, src).is_ok_and(|from| {
                    let same = is_one((src_dir, src), (dst_dir, dst), from.0);
                    same && self.entry(dst_dir, dst).is_ok_and(|to| to.0 == from.0)
                });
            return if nothing { Ok(()) } else { Err(refused) };
        }
        self.core().throttle_dirty_inodes()?;
        let _watch = self.core().log.stats.watch();
        for _ in 0..RETRIES_MAX {
            let (src_place, from, kind) = self.place(src_dir, src)?;
            let dst_place = self.place_of(dst_dir, dst)?;
            let (to, old_kind) = (dst_place.target(), dst_place.entry.map(|entry| entry.1));
            check_kinds(kind, old_kind, mode)?;
            if to == Some(from) && is_one((src_dir, src), (dst_dir, dst), from) {
                return Ok(());
            }
            let plan = Rename { src_dir, src, src_place, dst_dir, dst, dst_place, from, to, mode };
            if let Some(evict) = self.rename_once(&plan, kind, old_kind)? {
                if let Some(inode) = evict {
                    self.core().queue_eviction(inode);
                    self.erase_some();
                }
                return Ok(());
            }
        }
        Err(FsError::Busy("the directories keep changing"))
    }

    /// `None`: an entry has changed, start over. Otherwise the inode to evict.
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
        for moved in [Some(&source), target.as_ref()].into_iter().flatten() {
            if let Moved::Subvol(id) = moved {
                rules::change(self.root(*id)?.read().fields())?;
            }
        }
        let replaced = target.as_ref().filter(|_| plan.mode != RenameMode::Exchange);
        let remains = match replaced {
            Some(Moved::Inode(old)) => orphan::remains_to_erase(old)?,
            _ => None,
        };
        let h = self.core().join_in(plan.dst_dir.tree(), plan.need(remains.as_ref()))?;
        let mut inodes: smallvec::SmallVec<[&Arc<Inode>; 4]> = smallvec::smallvec![&**plan.src_dir, &**plan.dst_dir];
        inodes.extend([Some(&source), target.as_ref()].into_iter().flatten().filter_map(Moved::inode));
        let mut locked = lock_all(&inodes);
        check_dir(locked.of(plan.src_dir))?;
        check_dir(locked.of(plan.dst_dir))?;
        let src_place = plan.src_place.confirmed_by(locked.of(plan.src_dir), plan.src)?;
        let dst_place = plan.dst_place.confirmed_by(locked.of(plan.dst_dir), plan.dst)?;
        if src_place.target() != Some(plan.from) || dst_place.target() != plan.to {
            return Ok(None);
        }
        let remains = match replaced {
            Some(Moved::Inode(old)) => remains.map(|remains| remains.confirmed_by(locked.of(old))),
            _ => None,
        };
        plan.check_flags(&mut locked, &source, target.as_ref())?;
        plan.check_room(&mut locked, &source, target.as_ref(), (&src_place, &dst_place))?;
        let mark = match plan.mode.mark() {
            None => None,
            Some(mark) => {
                let start = Start::of(locked.of(plan.src_dir), &mark)?;
                Some((mark, start, plan.src_dir.subvol().give_inos(1)?))
            }
        };
        let src_leaving = self.leaving(&mut locked, plan.src_dir, plan.src, &source)?;
        let dst_leaving = match &target {
            Some(target) => Some(self.leaving(&mut locked, plan.dst_dir, plan.dst, target)?),
            None => None,
        };
        if let (Some(Moved::Inode(old)), Some(leaving)) = (replaced, &dst_leaving) {
            leaving.check_empty(locked.of(old))?;
        }
        dir::learn_next_index(locked.of(plan.dst_dir))?;
        let names = src_leaving.others + 1;
        let now = core.now();
        let done = core.poison_on_error(|| {
            self.detach(&mut locked, &h, plan.src_dir, (plan.src, Some(src_place)), &source, src_leaving)?;
            // What was seen of the other name's item holds, unless both are in one.
            let apart = !(plan.src_dir.same(plan.dst_dir) && src_place.shares_item(&dst_place));
            let dst_place = apart.then_some(dst_place);
            let mut evict = None;
            if let (Some(target), Some(leaving)) = (&target, dst_leaving) {
                let others = leaving.others;
                self.detach(&mut locked, &h, plan.dst_dir, (plan.dst, dst_place), target, leaving)?;
                match (target, plan.mode) {
                    (_, RenameMode::Exchange) => {
                        let kind = old_kind.unwrap_or(FileKind::Unknown);
                        self.attach(&mut locked, &h, plan.src_dir, (plan.src, None), (target, kind, others + 1), now)?;
                    }
                    (Moved::Inode(old), _) => {
                        if drop_name(locked.of(old), &h, (remains.as_ref(), others), now)? {
                            evict = Some(old.clone());
                        }
                    }
                    (Moved::EmptySubvolDir(_) | Moved::Subvol(_), _) => {}
                }
            }
            let dst_place = dst_place.filter(|_| target.is_none());
            self.attach(&mut locked, &h, plan.dst_dir, (plan.dst, dst_place), (&source, kind, names), now)?;
            if let Some((mark, start, ino)) = &mark {
                let kind = mark.kind.kind();
                let index = dir::add(locked.of(plan.src_dir), &h, plan.src, Target::Inode(*ino), kind)?;
                self.make(plan.src_dir, &h, mark, start, *ino, Some(refs::encode_ref(index, plan.src)), now)?;
            }
            stamp(locked.of(plan.src_dir), &h, now);
            if !plan.src_dir.same(plan.dst_dir) {
                stamp(locked.of(plan.dst_dir), &h, now);
            }
            Ok(evict)
        });
        if [Some(&source), target.as_ref()].into_iter().flatten().any(|moved| matches!(moved, Moved::Subvol(_))) {
            self.engine().disable_log(h.generation());
        }
        done.map(Some)
    }

    /// What an entry that is to be moved or replaced leads to; `None`: it has changed meanwhile.
    fn movable(&self, dir: &InodeRef, name: &[u8], target: Target) -> Result<Option<Moved>, FsError> {
        match target {
            Target::Inode(ino) => match self.core().inode(dir.subvol(), ino)? {
                Some(inode) if !inode.read().state().gone => Ok(Some(Moved::Inode(inode))),
                _ => self.check_dangling(dir, name, target).map(|()| None),
            },
            Target::Subvol(id) if self.is_subvol_here(dir, name, id)? => Ok(Some(Moved::Subvol(id))),
            Target::Subvol(id) => Ok(Some(Moved::EmptySubvolDir(id))),
        }
    }

    /// Finds the items of an entry that is to be moved or replaced.
    fn leaving(
        &self,
        locked: &mut LockedSet<'_>,
        dir: &InodeRef,
        name: &[u8],
        what: &Moved,
    ) -> Result<Leaving, FsError> {
        let known = match what {
            Moved::Subvol(id) => self.root_backref(*id)?.map(|(_, place)| place.sequence),
            _ => None,
        };
        Leaving::find(locked, dir, (name, what.target()), what.inode(), known)
    }

    /// Takes an entry out of a directory, and the directory out of what the entry leads to. `place`: where it is, if that is known.
    fn detach(
        &self,
        locked: &mut LockedSet<'_>,
        h: &dyn Joined,
        dir: &InodeRef,
        (name, place): (&[u8], Option<dir::Place>),
        what: &Moved,
        leaving: Leaving,
    ) -> Result<(), FsError> {
        if let Moved::Subvol(id) = what {
            self.remove_root_ref(h, dir.tree(), *id)?;
        }
        let place = place.map_or_else(|| dir::Place::of(locked.of(dir), name), Ok)?;
        dir::remove_at(locked.of(dir), h, place, name)?;
        leaving.remove(locked, h, dir, what.inode());
        Ok(())
    }

    /// Adds an entry for what moves. `names`: as many as an inode is known to have then.
    fn attach(
        &self,
        locked: &mut LockedSet<'_>,
        h: &dyn Joined,
        dir: &InodeRef,
        (name, place): (&[u8], Option<dir::Place>),
        (what, kind, names): (&Moved, FileKind, u32),
        now: Time,
    ) -> Result<(), FsError> {
        let place = place.map_or_else(|| dir::Place::of(locked.of(dir), name), Ok)?;
        let index = dir::add_at(locked.of(dir), h, place, name, what.target(), kind)?;
        match what {
            Moved::Inode(inode) => {
                refs::add(locked.of(inode), h, dir.ino(), name, index)?;
                let fields = locked.of(inode).fields_mut(h);
                if kind != FileKind::Dir {
                    fields.nlink = fields.nlink.max(names);
                }
                fields.ctime = now;
                fields.sequence += 1;
                Ok(())
            }
            Moved::Subvol(id) => self.add_root_ref(h, dir.tree(), dir.ino(), *id, index, name),
            Moved::EmptySubvolDir(_) => Ok(()),
        }
    }

    /// Fails when what moves is the new parent or one of its ancestors.
    fn check_loop(&self, moved: &Moved, new_parent: &InodeRef) -> Result<(), FsError> {
        let moved = match moved {
            Moved::Inode(inode) => inode.rank(),
            Moved::Subvol(id) => (*id, Ino::ROOT_DIR),
            Moved::EmptySubvolDir(_) => return Ok(()),
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
        Err(FsError::corrupt("directory", at.1, "depth", "endless", "a way to the root"))
    }
}

/// A rename's arguments and what its entries led to when they were looked at.
struct Rename<'a> {
    src_dir: &'a InodeRef,
    src: &'a [u8],
    src_place: dir::Place,
    dst_dir: &'a InodeRef,
    dst: &'a [u8],
    dst_place: dir::Place,
    from: Target,
    to: Option<Target>,
    mode: RenameMode,
}

impl Rename<'_> {
    /// What it may need if the inode that is replaced consists of this, and is to be erased.
    fn need(&self, remains: Option<&Remains>) -> Need {
        let names = (self.src.len() + self.dst.len()) as u32;
        let more = if self.mode.mark().is_some() { NAME_ITEMS + MARK_ITEMS } else { 0 };
        let items = 2 * NAME_ITEMS + RENAME_ITEMS + more + remains.map_or(orphan::erase_need(0), Remains::need).items;
        Need { items, bytes: 3 * NAME_BYTES + 3 * names, ..Need::default() }
    }

    /// Fails if the items of the directories or inodes have no room for the names.
    fn check_room(
        &self,
        locked: &mut LockedSet<'_>,
        source: &Moved,
        target: Option<&Moved>,
        (src_place, dst_place): (&dir::Place, &dir::Place),
    ) -> Result<(), FsError> {
        if let Moved::Inode(inode) = source {
            refs::check_room(locked.of(inode), self.dst_dir.ino(), self.dst)?;
        }
        if let (Some(Moved::Inode(inode)), RenameMode::Exchange) = (target, self.mode) {
            refs::check_room(locked.of(inode), self.src_dir.ino(), self.src)?;
        }
        // The mark takes the place of the old name.
        let leaves = self.src_dir.same(self.dst_dir) && src_place.shares_item(dst_place) && self.mode.mark().is_none();
        dst_place.check_room(locked.of(self.dst_dir), self.dst, leaves.then_some(self.src))
    }

    /// What the flags of directories and inodes allow.
    fn check_flags(&self, locked: &mut LockedSet<'_>, source: &Moved, target: Option<&Moved>) -> Result<(), FsError> {
        rules::take_entry(locked.of(self.src_dir).fields())?;
        match target {
            Some(_) => rules::take_entry(locked.of(self.dst_dir).fields())?,
            None => rules::add_entry(locked.of(self.dst_dir).fields())?,
        }
        for inode in [Some(source), target].into_iter().flatten().filter_map(Moved::inode) {
            rules::change(locked.of(inode).fields())?;
        }
        Ok(())
    }

    /// The rules of entries that lead to subvolumes: only these move between subvolumes, none is replaced, and the
    /// empty directory in place of one that is elsewhere does not move at all.
    fn check_subvols(&self, source: &Moved, target: Option<&Moved>) -> Result<(), FsError> {
        let swapped = target.filter(|_| self.mode == RenameMode::Exchange);
        let moved = || [Some(source), swapped].into_iter().flatten();
        if self.src_dir.tree() != self.dst_dir.tree() && moved().any(|m| !matches!(m, Moved::Subvol(_))) {
            return Err(FsError::CrossSubvolume);
        }
        let replaced = target.filter(|_| self.mode != RenameMode::Exchange);
        if moved().any(|m| matches!(m, Moved::EmptySubvolDir(_))) || matches!(replaced, Some(Moved::Subvol(_))) {
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
    EmptySubvolDir(oleo_format::TreeId),
}

impl Moved {
    fn inode(&self) -> Option<&Arc<Inode>> {
        match self {
            Moved::Inode(inode) => Some(inode),
            Moved::Subvol(_) | Moved::EmptySubvolDir(_) => None,
        }
    }

    fn target(&self) -> Target {
        match self {
            Moved::Inode(inode) => Target::Inode(inode.ino()),
            Moved::Subvol(id) | Moved::EmptySubvolDir(id) => Target::Subvol(*id),
        }
    }
}

fn check_kinds(kind: FileKind, old: Option<FileKind>, mode: RenameMode) -> Result<(), FsError> {
    match (mode, old) {
        (mode, Some(_)) if mode.keeps_target() => Err(FsError::Exists),
        (RenameMode::Exchange, None) => Err(FsError::NotFound),
        (RenameMode::Exchange, Some(_)) => Ok(()),
        (_, Some(FileKind::Dir)) if kind != FileKind::Dir => Err(FsError::IsDir),
        (_, Some(old)) if kind == FileKind::Dir && old != FileKind::Dir => Err(FsError::NotDir),
        _ => Ok(()),
    }
}
