//! Making subvolumes: empty ones and snapshots.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use oleo_format::{FileType, Generation, Ino, InodeFlags, ItemType, Key, RootFlags, RootItem, TreeId};
use oleo_tree::{Change, Op};
use oleo_txn::{QgroupId, Staged};
use uuid::Uuid;

use crate::FsError;
use crate::attributes::{FileKind, Times, acl, rules, xattr};
use crate::fs::Fs;
use crate::items::dir::{self, Target};
use crate::items::refs;
use crate::names::{check_dir, stamp};
use crate::object::{Core, InodeFields, InodeRef, Items, Subvol, timespec_of};
use crate::options::Time;

/// The size in a root item's inode, as the format has it.
const ROOT_INODE_SIZE: u64 = 3;

/// What a new subvolume starts with.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NewSubvol {
    /// Its UUID, or a fresh one.
    pub uuid: Option<Uuid>,
    /// Permission bits of its root directory.
    pub mode: u32,
    /// Owner of its root directory.
    pub uid: u32,
    /// Group of its root directory.
    pub gid: u32,
    /// Times of its root directory, or the clock's.
    pub times: Option<Times>,
    /// Quota groups that it becomes part of. With simple quotas none means those of the subvolume that it is made in.
    pub groups: Vec<QgroupId>,
}

impl Default for NewSubvol {
    fn default() -> Self {
        NewSubvol { uuid: None, mode: 0o755, uid: 0, gid: 0, times: None, groups: Vec::new() }
    }
}

oleo_format::setters!(NewSubvol {
    uuid: Option<Uuid>,
    mode: u32,
    uid: u32,
    gid: u32,
    times: Option<Times>,
    groups: Vec<QgroupId>,
});

/// How to take a snapshot.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SnapshotOptions {
    /// Refuse changes in the snapshot.
    pub read_only: bool,
    /// Its UUID, or a fresh one.
    pub uuid: Option<Uuid>,
    /// Quota groups that it becomes part of, as with [`NewSubvol::groups`].
    pub groups: Vec<QgroupId>,
}

oleo_format::setters!(SnapshotOptions {
    read_only: bool,
    uuid: Option<Uuid>,
    groups: Vec<QgroupId>,
});

impl Fs {
    /// Makes an empty subvolume.
    pub fn subvol_create(&self, dir: &InodeRef, name: &[u8], new: &NewSubvol) -> Result<TreeId, FsError> {
        dir::check_name(name)?;
        self.changeable(dir)?;
        let uuid = new.uuid.unwrap_or_else(|| self.options().uuids.fresh());
        let inherited = self.inherited(dir, new.mode)?;
        self.staged_to_make(|s| {
            self.check_free(dir, name)?;
            let groups = s.qgroups_of_new(&new.groups, dir.tree());
            s.qgroups_are_there(&groups)?;
            let id = self.core().give_tree()?;
            let (now, generation) = (self.core().now(), s.generation());
            let item = self.new_root_item(uuid, now, generation);
            s.create_tree(id, item)?;
            s.qgroups_join(id, &groups)?;
            let fields = root_dir_fields(new, &inherited, generation.0, now);
            s.put(id, &root_dir_changes(&fields, &inherited, generation.0))?;
            self.core().poison_on_error(|| self.enter(s, dir, name, id, &item))?;
            Ok(id)
        })
    }

    /// Makes a subvolume that shares everything with `source` as it is now. Subvolumes inside it are not taken along.
    pub fn snapshot(
        &self,
        source: TreeId,
        dir: &InodeRef,
        name: &[u8],
        opts: SnapshotOptions,
    ) -> Result<TreeId, FsError> {
        dir::check_name(name)?;
        self.changeable(dir)?;
        let from = self.subvol(source)?;
        let uuid = opts.uuid.unwrap_or_else(|| self.options().uuids.fresh());
        // From here on nothing is accepted because the file has space for it; what was before is written out.
        let being_shared = from.begin_snapshot();
        from.note_sharing();
        drop(self.engine().bar_addresses());
        self.core().flush_all(Some(source))?;
        // A thread that writes to data in place has looked before whether a snapshot shares it, and looks again only for the next write.
        let addresses = self.engine().bar_addresses();
        let id = self.staged_to_make(|s| {
            self.check_free(dir, name)?;
            let old = from.root_item().ok_or(FsError::NotFound)?;
            if from.is_deleted() {
                return Err(FsError::NotFound);
            }
            let groups = s.qgroups_of_new(&opts.groups, dir.tree());
            s.qgroups_are_there(&groups)?;
            let id = self.core().give_tree()?;
            let (now, generation) = (self.core().now(), s.generation());
            let item = snapshot_item(&old, uuid, opts.read_only, now, generation);
            s.snapshot(source, id, item)?;
            s.qgroups_join(id, &groups)?;
            self.core().poison_on_error(|| self.enter(s, dir, name, id, &item))?;
            Ok(id)
        })?;
        drop((addresses, being_shared));
        // Files that are in use in the source without a name: no path leads to them in the snapshot, which is made in any case.
        let _later = self.subvol(id).and_then(|snapshot| self.core().clean_orphans(&snapshot));
        Ok(id)
    }

    /// Fails if an entry of that name cannot be added.
    fn check_free(&self, dir: &InodeRef, name: &[u8]) -> Result<(), FsError> {
        let guard = dir.write();
        check_dir(&guard)?;
        if dir::find(&guard, name)?.is_some() {
            return Err(FsError::Exists);
        }
        rules::add_entry(guard.fields())?;
        dir::check_room(&guard, name)
    }

    /// Adds a new subvolume's entry, references and UUID items.
    fn enter(&self, s: &Staged<'_>, dir: &InodeRef, name: &[u8], id: TreeId, item: &RootItem) -> Result<(), FsError> {
        let mut guard = dir.write();
        let index = dir::add(&mut guard, s, name, Target::Subvol(id), FileKind::Dir)?;
        stamp(&mut guard, s, self.core().now());
        drop(guard);
        self.add_root_ref(s, dir.tree(), dir.ino(), id, index, name)?;
        self.uuid_add(s, ItemType::UUID_SUBVOL, Uuid::from_bytes(item.uuid), id)?;
        self.uuid_add(s, ItemType::UUID_RECEIVED_SUBVOL, Uuid::from_bytes(item.received_uuid), id)?;
        self.core().enter_subvol(id, *item);
        Ok(())
    }

    fn new_root_item(&self, uuid: Uuid, now: Time, generation: Generation) -> RootItem {
        let mut item = RootItem::default();
        item.inode.generation = 1.into();
        item.inode.size = ROOT_INODE_SIZE.into();
        item.inode.nbytes = u64::from(self.engine().nodesize()).into();
        item.inode.nlink = 1.into();
        item.inode.mode = 0o040_755.into();
        item.inode.flags = InodeFlags::ROOT_ITEM_INIT.bits().into();
        item.root_dirid = Ino::ROOT_DIR.0.into();
        item.bytes_used = u64::from(self.engine().nodesize()).into();
        item.refs = 1.into();
        item.generation = generation.0.into();
        item.generation_v2 = generation.0.into();
        item.uuid = uuid.into_bytes();
        item.ctransid = generation.0.into();
        item.otransid = generation.0.into();
        item.ctime = timespec_of(now);
        item.otime = timespec_of(now);
        item
    }

    /// What a new subvolume's root directory takes over: the compression of its parent subvolume's root directory, and
    /// what the default ACL of the directory that it is made in leaves of the mode. The ACL itself does not cross into
    /// another subvolume, as with the kernel.
    fn inherited(&self, dir: &InodeRef, mode: u32) -> Result<Inherited, FsError> {
        let mut inherited = Inherited { mode: mode & 0o7777, flags: InodeFlags::empty(), property: None };
        let root = self.inode(dir.subvol(), Ino::ROOT_DIR)?;
        if let Some((value, flags)) = xattr::inherited_compression(&root.read())? {
            inherited.flags |= flags;
            inherited.property = Some(value);
        }
        if let Some(default) = xattr::get(&dir.read(), acl::DEFAULT)? {
            inherited.mode = acl::inherit(&default, inherited.mode).0;
        }
        Ok(inherited)
    }
}

fn snapshot_item(old: &RootItem, uuid: Uuid, read_only: bool, now: Time, generation: Generation) -> RootItem {
    let mut item = *old;
    let mut flags = RootFlags::from_bits_retain(old.flags.get());
    flags.set(RootFlags::SUBVOL_RDONLY, read_only);
    item.flags = flags.bits().into();
    item.refs = 1.into();
    item.generation = generation.0.into();
    item.generation_v2 = generation.0.into();
    // It shares its blocks as its source does.
    item.last_snapshot = generation.0.into();
    item.uuid = uuid.into_bytes();
    item.parent_uuid = old.uuid;
    item.otransid = generation.0.into();
    item.otime = timespec_of(now);
    if !read_only {
        // What can change is no longer what was received.
        item.received_uuid = [0; 16];
        item.stransid = 0.into();
        item.rtransid = 0.into();
        item.stime = timespec_of(Time::default());
        item.rtime = timespec_of(Time::default());
    }
    item
}

/// What a new subvolume's root directory takes over.
struct Inherited {
    /// Permission bits.
    mode: u32,
    flags: InodeFlags,
    /// The compression property.
    property: Option<Vec<u8>>,
}

fn root_dir_fields(new: &NewSubvol, inherited: &Inherited, generation: u64, now: Time) -> InodeFields {
    let times = new.times.unwrap_or(Times::all(now));
    InodeFields {
        generation,
        transid: generation,
        nlink: 1,
        uid: new.uid,
        gid: new.gid,
        mode: FileKind::Dir.mode_bits() | inherited.mode,
        flags: inherited.flags.bits(),
        atime: times.atime,
        ctime: times.ctime,
        mtime: times.mtime,
        otime: times.otime,
        ..InodeFields::default()
    }
}

/// The items of a new subvolume: its root directory, which is its own parent, by the name of "..".
fn root_dir_changes(fields: &InodeFields, inherited: &Inherited, generation: u64) -> Vec<Change> {
    let ino = Ino::ROOT_DIR.0;
    let mut changes = vec![
        Change { key: Key::new(ino, ItemType::INODE_ITEM, 0), op: Op::Put(fields.encode()) },
        Change { key: Key::new(ino, ItemType::INODE_REF, ino), op: Op::Put(refs::encode_ref(0, b"..")) },
    ];
    if let Some(value) = &inherited.property {
        let hash = u64::from(oleo_format::dir_hash(xattr::COMPRESSION));
        let entry = dir::encode(Key::MIN, generation, FileType::Xattr, xattr::COMPRESSION, value);
        changes.push(Change { key: Key::new(ino, ItemType::XATTR_ITEM, hash), op: Op::Put(entry.into()) });
    }
    changes
}

impl Core {
    /// The number that the next subvolume gets.
    fn give_tree(&self) -> Result<TreeId, FsError> {
        self.know_next_tree()?;
        let id = TreeId(self.next_tree.fetch_add(1, Ordering::AcqRel));
        if id > TreeId::LAST_FREE { Err(FsError::NoSpace) } else { Ok(id) }
    }

    /// Sets the next number from the highest in the root tree. A subvolume is deleted only after this: its files may still be in
    /// use, so no other subvolume may get its number while this file system is open.
    pub(super) fn know_next_tree(&self) -> Result<(), FsError> {
        if self.next_tree.load(Ordering::Acquire) == 0 {
            let top = Key::new(TreeId::LAST_FREE.0, ItemType(u8::MAX), u64::MAX);
            let stored = self.highest(TreeId::ROOT, top)?.map_or(0, |key| key.objectid);
            let known = self.subvols.lock().ids().map(|id| id.0).filter(|id| *id <= TreeId::LAST_FREE.0).max();
            let next = stored.max(known.unwrap_or(0)).max(TreeId::FIRST_FREE.0 - 1) + 1;
            let _ = self.next_tree.compare_exchange(0, next, Ordering::AcqRel, Ordering::Acquire);
        }
        Ok(())
    }

    /// Enters a subvolume that has just been made.
    fn enter_subvol(self: &Arc<Self>, id: TreeId, item: RootItem) {
        let subvol = Arc::new(Subvol::new(self.clone(), id, Some(item)));
        let mut subvols = self.subvols.lock();
        subvols.insert(subvol.clone());
        self.note_subvol(&subvols, &subvol);
        drop(subvols);
        // A snapshot has the orphans of its source.
        self.orphans_seen.store(false, Ordering::Release);
    }
}
