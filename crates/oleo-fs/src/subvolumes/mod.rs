//! Subvolumes: creating, snapshotting, deleting, listing, the default one, and the UUID tree.
//!
//! A subvolume's place is recorded three times: as an entry in a directory of its parent, and as ROOT_REF and
//! ROOT_BACKREF in the root tree. An entry that the ROOT_REF does not confirm (as a snapshot has them for its source's
//! nested subvolumes) stands for an empty directory.
//!
//! Normal path of create, snapshot and delete: (1) reserve; (2) `Engine::stage` brings all changes into the trees and
//! keeps others out; (3) look whether the names allow it; (4) the engine makes, copies or condemns the tree; (5) the
//! entry, the references and the UUID items go into the delta of the same transaction.
//!
//! Items of the root tree and the UUID tree are kept like those of inodes, as objects of these trees; their locks are
//! leaves.
//! Crash: all of one call is in one transaction.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use oleo_format::{
    FileType, Generation, Incompat, Ino, InodeFlags, ItemType, Key, RootFlags, RootItem, RootRef, TreeId,
};
use oleo_tree::{Change, Op};
use oleo_txn::{Need, QgroupId, Staged, TxnError};
use uuid::Uuid;
use zerocopy::IntoBytes;

use crate::FsError;
use crate::attributes::{FileKind, Times, acl, rules, xattr};
use crate::fs::Fs;
use crate::items::dir::{self, Target};
use crate::items::refs;
use crate::names::{check_dir, poison_on_error, remove_index, stamp};
use crate::object::{Core, InodeFields, InodeRef, Items, ItemsMut, Joined, Subvol, time_of, timespec_of};
use crate::options::Time;

/// The name of the entry in the root tree's directory that says which subvolume is mounted by default.
const DEFAULT_NAME: &[u8] = b"default";
/// What making, copying or condemning a tree may need: paths in four trees.
const TREE_NEED: Need = Need { items: 64, bytes: 8192, releasing: false };
/// The size in a root item's inode, as the format has it.
const ROOT_INODE_SIZE: u64 = 3;
/// Bytes of a subvolume's number in an item of the UUID tree.
const ID_LEN: usize = 8;
/// Subvolumes from one to the top level, at most: as deep as a path can be.
const NESTING_MAX: usize = 4096;

/// Where a subvolume is, according to the root tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RootPlace {
    /// The directory in the parent subvolume.
    pub dirid: Ino,
    /// The entry's index there.
    pub sequence: u64,
    /// The entry's name.
    pub name: Vec<u8>,
}

impl RootPlace {
    fn parse(bytes: &[u8]) -> Result<RootPlace, FsError> {
        let (head, name) = RootRef::parse_prefix(bytes)?;
        if name.len() != usize::from(head.name_len.get()) {
            return Err(FsError::corrupt("root reference", "", "name length", name.len(), head.name_len.get()));
        }
        Ok(RootPlace { dirid: Ino(head.dirid.get()), sequence: head.sequence.get(), name: name.to_vec() })
    }

    fn encode(&self) -> Box<[u8]> {
        let head = RootRef {
            dirid: self.dirid.0.into(),
            sequence: self.sequence.into(),
            name_len: (self.name.len() as u16).into(),
        };
        [head.as_bytes(), &self.name].concat().into_boxed_slice()
    }
}

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

/// What a subvolume was received from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Received {
    /// The UUID of the subvolume that was sent; nil: none.
    pub uuid: Uuid,
    /// The sender's transaction.
    pub stransid: u64,
    /// When it was sent.
    pub stime: Time,
}

/// What is known of a subvolume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubvolInfo {
    /// Its number.
    pub id: TreeId,
    /// The subvolume that it is in; `None` for the top level.
    pub parent: Option<TreeId>,
    /// Its place there; `None` for the top level.
    pub place: Option<RootPlace>,
    /// Its path from the top level, without a leading slash; empty for the top level.
    pub path: Vec<u8>,
    /// The transaction that last wrote it.
    pub generation: u64,
    /// Changes are refused.
    pub read_only: bool,
    /// Its own UUID; nil on very old file systems.
    pub uuid: Uuid,
    /// Of the subvolume that it is a snapshot of.
    pub parent_uuid: Uuid,
    /// Of the subvolume that it was received from.
    pub received_uuid: Uuid,
    /// The transactions: last change, creation, sent, received.
    pub ctransid: u64,
    /// Creation.
    pub otransid: u64,
    /// Sent.
    pub stransid: u64,
    /// Received.
    pub rtransid: u64,
    /// Last change.
    pub ctime: Time,
    /// Creation.
    pub otime: Time,
    /// Sent.
    pub stime: Time,
    /// Received.
    pub rtime: Time,
}

impl Fs {
    /// The object of the root tree that holds a subvolume's references.
    fn root_object(&self, id: TreeId) -> Result<Arc<crate::object::Inode>, FsError> {
        self.core().object(TreeId::ROOT, id.0)
    }

    /// Where a subvolume is; `None` for the top level and for what is being deleted.
    pub(crate) fn root_backref(&self, id: TreeId) -> Result<Option<(TreeId, RootPlace)>, FsError> {
        let object = self.root_object(id)?;
        let guard = object.read();
        match guard.range_limit(ItemType::ROOT_BACKREF, 0, u64::MAX, 1)?.first() {
            Some((parent, item)) => Ok(Some((TreeId(*parent), RootPlace::parse(item)?))),
            None => Ok(None),
        }
    }

    /// Whether the root tree confirms that a subvolume is in this place.
    pub(crate) fn is_subvol_here(&self, dir: &InodeRef, name: &[u8], id: TreeId) -> Result<bool, FsError> {
        let object = self.root_object(dir.tree())?;
        let guard = object.read();
        let Some(item) = guard.get(ItemType::ROOT_REF, id.0)? else { return Ok(false) };
        let place = RootPlace::parse(&item)?;
        Ok(place.dirid == dir.ino() && place.name == name)
    }

    pub(crate) fn add_root_ref(
        &self,
        h: &dyn Joined,
        parent: TreeId,
        dirid: Ino,
        id: TreeId,
        sequence: u64,
        name: &[u8],
    ) -> Result<(), FsError> {
        let item = RootPlace { dirid, sequence, name: name.to_vec() }.encode();
        self.root_object(parent)?.write().put(h, ItemType::ROOT_REF, id.0, item.clone());
        self.root_object(id)?.write().put(h, ItemType::ROOT_BACKREF, parent.0, item);
        Ok(())
    }

    pub(crate) fn remove_root_ref(
        &self,
        h: &dyn Joined,
        parent: TreeId,
        id: TreeId,
    ) -> Result<Option<RootPlace>, FsError> {
        let object = self.root_object(parent)?;
        let mut guard = object.write();
        let Some(item) = guard.get(ItemType::ROOT_REF, id.0)? else { return Ok(None) };
        let place = RootPlace::parse(&item)?;
        guard.delete(h, ItemType::ROOT_REF, id.0);
        drop(guard);
        self.root_object(id)?.write().delete(h, ItemType::ROOT_BACKREF, parent.0);
        Ok(Some(place))
    }

    /// Runs `f` with all changes in the trees and everybody else kept out.
    fn staged<R: Send>(&self, f: impl FnOnce(&mut Staged<'_>) -> Result<R, FsError> + Send) -> Result<R, FsError> {
        self.staged_with(TREE_NEED, f)
    }

    /// The same for whoever needs as much as this. What `f` refuses is no failure of the file system.
    pub fn staged_with<R: Send>(
        &self,
        need: Need,
        f: impl FnOnce(&mut Staged<'_>) -> Result<R, FsError> + Send,
    ) -> Result<R, FsError> {
        // Reserves for the open transaction; what it reserved stays taken until the commit.
        drop(self.engine().join(need)?);
        self.on_stage(f)
    }

    fn on_stage<R: Send>(&self, f: impl FnOnce(&mut Staged<'_>) -> Result<R, FsError> + Send) -> Result<R, FsError> {
        let mut outcome = None;
        self.engine().stage(|s| {
            outcome = Some(f(s));
            Ok::<(), TxnError>(())
        })?;
        outcome.unwrap_or(Err(FsError::Invalid("the stage did not run")))
    }

    /// Makes an empty subvolume.
    pub fn subvol_create(&self, dir: &InodeRef, name: &[u8], new: &NewSubvol) -> Result<TreeId, FsError> {
        dir::check_name(name)?;
        self.changeable(dir)?;
        let uuid = new.uuid.unwrap_or_else(|| self.options().uuids.fresh());
        let inherited = self.inherited(dir, new.mode)?;
        self.staged(|s| {
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
            poison_on_error(self.core(), self.enter(s, dir, name, id, &item))?;
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
        let _being_shared = from.begin_snapshot();
        drop(self.engine().bar_addresses());
        self.core().flush_all(Some(source))?;
        drop(self.engine().join(TREE_NEED)?);
        // Whoever is writing to data in place has looked before whether a snapshot shares it, and looks again only for the next write.
        let _nobody_writes_in_place = self.engine().bar_addresses();
        self.on_stage(|s| {
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
            poison_on_error(self.core(), self.enter(s, dir, name, id, &item))?;
            Ok(id)
        })
    }

    /// Deletes a subvolume with everything in it, except when others are inside it or it is the default one. Its space
    /// comes back as [`clean`](Fs::clean) gets on.
    pub fn subvol_delete(&self, id: TreeId) -> Result<(), FsError> {
        self.delete_subvol(id, false)
    }

    pub(crate) fn remove_subvol_entry(&self, dir: &InodeRef, name: &[u8], id: TreeId) -> Result<(), FsError> {
        if self.is_subvol_here(dir, name, id)? {
            return self.delete_subvol(id, true);
        }
        // The empty directory in place of a subvolume that is elsewhere: an entry and nothing more.
        let h = self.engine().join(Need { items: 4, bytes: 1024, releasing: true })?;
        let mut guard = dir.write();
        check_dir(&guard)?;
        if dir::find(&guard, name)?.map(|e| e.0) != Some(Target::Subvol(id)) {
            return Err(FsError::NotFound);
        }
        rules::change(guard.fields())?;
        let now = self.core().now();
        dir::remove_item(&mut guard, &h, name)?;
        let done = remove_index(&mut guard, &h, name, None);
        poison_on_error(self.core(), done)?;
        stamp(&mut guard, &h, now);
        Ok(())
    }

    fn delete_subvol(&self, id: TreeId, only_if_empty: bool) -> Result<(), FsError> {
        if id == TreeId::FS {
            return Err(FsError::NotPermitted("the top level cannot be deleted"));
        }
        let subvol = self.subvol(id)?;
        let Some((parent, place)) = self.root_backref(id)? else { return Err(FsError::NotFound) };
        let dir = self.inode(&self.subvol(parent)?, place.dirid)?;
        self.changeable(&dir)?;
        self.staged(|s| {
            let confirmed = self.root_backref(id)?;
            if confirmed != Some((parent, place.clone())) || subvol.is_deleted() {
                return Err(FsError::Busy("the subvolume was moved meanwhile"));
            }
            if self.default_subvol()? == id {
                return Err(FsError::NotPermitted("the default subvolume cannot be deleted"));
            }
            if !self.root_object(id)?.read().range_limit(ItemType::ROOT_REF, 0, u64::MAX, 1)?.is_empty() {
                return Err(FsError::NotEmpty);
            }
            let root = self.core().inode(&subvol, Ino::ROOT_DIR)?.ok_or(FsError::NotFound)?;
            rules::change(dir.read().fields())?;
            rules::change(root.read().fields())?;
            if only_if_empty && !dir::is_empty(&root.read())? {
                return Err(FsError::NotEmpty);
            }
            let item = subvol.root_item().ok_or(FsError::NotFound)?;
            s.orphan_tree(id)?;
            poison_on_error(self.core(), self.leave(s, &dir, &place, id, &item))?;
            subvol.set_deleted();
            self.core().subvols.lock().remove(id);
            Ok(())
        })?;
        // What its files have buffered is dropped: each finds that it is stale.
        self.core().flush_all(Some(id))
    }

    /// Fails if an entry of that name cannot be added.
    fn check_free(&self, dir: &InodeRef, name: &[u8]) -> Result<(), FsError> {
        let guard = dir.write();
        check_dir(&guard)?;
        if dir::find(&guard, name)?.is_some() {
            return Err(FsError::Exists);
        }
        rules::grow(guard.fields())?;
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

    /// Removes a subvolume's entry, references and UUID items.
    fn leave(
        &self,
        s: &Staged<'_>,
        dir: &InodeRef,
        place: &RootPlace,
        id: TreeId,
        item: &RootItem,
    ) -> Result<(), FsError> {
        let mut guard = dir.write();
        dir::remove_item(&mut guard, s, &place.name)?;
        remove_index(&mut guard, s, &place.name, Some(place.sequence))?;
        stamp(&mut guard, s, self.core().now());
        drop(guard);
        self.remove_root_ref(s, dir.tree(), id)?;
        self.uuid_remove(s, ItemType::UUID_SUBVOL, Uuid::from_bytes(item.uuid), id)?;
        self.uuid_remove(s, ItemType::UUID_RECEIVED_SUBVOL, Uuid::from_bytes(item.received_uuid), id)
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

    /// The subvolume that is mounted where none is named.
    pub fn default_subvol(&self) -> Result<TreeId, FsError> {
        let object = self.core().object(TreeId::ROOT, TreeId::ROOT_DIR.0)?;
        let guard = object.read();
        match dir::find(&guard, DEFAULT_NAME)? {
            Some((Target::Subvol(id), _)) => Ok(id),
            _ => Ok(TreeId::FS),
        }
    }

    /// Sets the subvolume that is mounted where none is named.
    pub fn set_default(&self, id: TreeId) -> Result<(), FsError> {
        self.fs_writable()?;
        self.subvol(id)?;
        let h = self.engine().join(Need { items: 2, bytes: 256, releasing: false })?;
        let object = self.core().object(TreeId::ROOT, TreeId::ROOT_DIR.0)?;
        let mut guard = object.write();
        let hash = u64::from(oleo_format::dir_hash(DEFAULT_NAME));
        let location = Target::Subvol(id).location();
        let entry = dir::encode(location, h.generation().0, FileType::Dir, DEFAULT_NAME, &[]);
        guard.put(&h, ItemType::DIR_ITEM, hash, entry.into_boxed_slice());
        drop(guard);
        if id != TreeId::FS {
            self.engine().require_incompat(Incompat::DEFAULT_SUBVOL);
        }
        Ok(())
    }

    fn fs_writable(&self) -> Result<(), FsError> {
        if self.options().read_only { Err(FsError::ReadOnly("opened for reading")) } else { Ok(()) }
    }

    /// Makes a subvolume refuse changes, or allow them again.
    pub fn set_read_only(&self, id: TreeId, options: ReadOnly) -> Result<(), FsError> {
        self.fs_writable()?;
        let subvol = self.subvol(id)?;
        self.core().flush_all(Some(id))?;
        let _h = self.engine().join(Need { items: 2, bytes: 512, releasing: false })?;
        subvol.edit_root(|item| {
            let mut flags = RootFlags::from_bits_retain(item.flags.get());
            flags.set(RootFlags::SUBVOL_RDONLY, options == ReadOnly::Yes);
            item.flags = flags.bits().into();
        });
        Ok(())
    }

    /// Notes what a subvolume was received from, and when.
    pub fn set_received(&self, id: TreeId, received: &Received) -> Result<(), FsError> {
        self.fs_writable()?;
        let subvol = self.subvol(id)?;
        let h = self.engine().join(Need { items: 4, bytes: 512, releasing: false })?;
        let (now, generation) = (self.core().now(), h.generation());
        let old = subvol.root_item().map_or(Uuid::nil(), |item| Uuid::from_bytes(item.received_uuid));
        if old != received.uuid {
            self.uuid_remove(&h, ItemType::UUID_RECEIVED_SUBVOL, old, id)?;
            self.uuid_add(&h, ItemType::UUID_RECEIVED_SUBVOL, received.uuid, id)?;
        }
        subvol.edit_root(|item| {
            item.received_uuid = received.uuid.into_bytes();
            item.stransid = received.stransid.into();
            item.stime = timespec_of(received.stime);
            item.rtransid = generation.0.into();
            item.rtime = timespec_of(now);
        });
        Ok(())
    }

    /// What is known of a subvolume.
    pub fn subvol_info(&self, id: TreeId) -> Result<SubvolInfo, FsError> {
        let subvol = self.subvol(id)?;
        let item = subvol.root_item().ok_or(FsError::NotFound)?;
        let generation = self.engine().root(id)?.map_or(0, |root| root.generation.0);
        let place = self.root_backref(id)?;
        Ok(SubvolInfo {
            id,
            parent: place.as_ref().map(|p| p.0),
            path: self.path_of_subvol(id)?,
            place: place.map(|p| p.1),
            generation,
            read_only: subvol.is_read_only(),
            uuid: Uuid::from_bytes(item.uuid),
            parent_uuid: Uuid::from_bytes(item.parent_uuid),
            received_uuid: Uuid::from_bytes(item.received_uuid),
            ctransid: item.ctransid.get(),
            otransid: item.otransid.get(),
            stransid: item.stransid.get(),
            rtransid: item.rtransid.get(),
            ctime: time_of(&item.ctime),
            otime: time_of(&item.otime),
            stime: time_of(&item.stime),
            rtime: time_of(&item.rtime),
        })
    }

    /// All subvolumes, the top level first, in the order of their numbers.
    pub fn subvol_list(&self) -> Result<Vec<SubvolInfo>, FsError> {
        let mut infos = Vec::new();
        for id in self.subvol_ids()? {
            match self.subvol_info(id) {
                Ok(info) => infos.push(info),
                // Being deleted, or deleted while we went through the list.
                Err(FsError::NotFound | FsError::Stale) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(infos)
    }

    /// How many subvolumes are known in memory.
    #[doc(hidden)]
    pub fn subvols_known(&self) -> usize {
        self.core().subvols.lock().ids().count()
    }

    pub(crate) fn subvol_ids(&self) -> Result<Vec<TreeId>, FsError> {
        let mut ids: Vec<TreeId> = self.core().subvols.lock().ids().collect();
        let engine = self.engine();
        let _reader = engine.reader();
        if let Some(root) = engine.root(TreeId::ROOT)? {
            let mut cursor = engine.blocks().cursor(&root);
            let mut more = cursor.seek(&Key::new(TreeId::FS.0, ItemType::ROOT_ITEM, 0))?;
            while more && let Some(key) = cursor.key() {
                let id = TreeId(key.objectid);
                if key.item_type == ItemType::ROOT_ITEM && id.is_subvol() {
                    ids.push(id);
                }
                let Some(next) = key.objectid.checked_add(1) else { break };
                let next = Key::new(next.max(TreeId::FIRST_FREE.0), ItemType::ROOT_ITEM, 0);
                more = if key.item_type < ItemType::ROOT_ITEM { cursor.next()? } else { cursor.seek(&next)? };
            }
        }
        ids.retain(|id| id.is_subvol());
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// The path of a subvolume from the top level.
    fn path_of_subvol(&self, id: TreeId) -> Result<Vec<u8>, FsError> {
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let mut at = id;
        for _ in 0..NESTING_MAX {
            let Some((parent, place)) = self.root_backref(at)? else {
                parts.reverse();
                return Ok(parts.join(&b'/'));
            };
            parts.push(place.name);
            self.push_dirs(&mut parts, &self.subvol(parent)?, place.dirid)?;
            at = parent;
        }
        Err(FsError::corrupt("root reference", id, "depth", "endless", "a way to the top level"))
    }

    /// Pushes the names of a directory and those above it, within one subvolume.
    fn push_dirs(&self, parts: &mut Vec<Vec<u8>>, subvol: &Arc<Subvol>, mut dir: Ino) -> Result<(), FsError> {
        // Of all subvolumes on the way together.
        while parts.len() <= NESTING_MAX {
            if dir == Ino::ROOT_DIR {
                return Ok(());
            }
            let inode = self.inode(subvol, dir)?;
            let Some(name) = refs::all(&inode.read())?.into_iter().next() else { return Err(FsError::NotFound) };
            dir = name.parent;
            parts.push(name.name);
        }
        Err(FsError::corrupt("inode reference", dir, "depth", "endless", "a way to the root directory"))
    }

    fn uuid_object(&self, uuid: Uuid) -> Result<Option<(Arc<crate::object::Inode>, u64)>, FsError> {
        if uuid.is_nil() || !self.engine().has_uuid_tree() {
            return Ok(None);
        }
        let (high, low) = halves(uuid);
        Ok(Some((self.core().object(TreeId::UUID, high)?, low)))
    }

    fn uuid_add(&self, h: &dyn Joined, t: ItemType, uuid: Uuid, id: TreeId) -> Result<(), FsError> {
        let Some((object, offset)) = self.uuid_object(uuid)? else { return Ok(()) };
        let mut guard = object.write();
        let mut ids = guard.get(t, offset)?.map_or(Vec::new(), |old| old.to_vec());
        if !ids.chunks_exact(ID_LEN).any(|c| c == id.0.to_le_bytes()) {
            ids.extend_from_slice(&id.0.to_le_bytes());
            guard.put(h, t, offset, ids.into_boxed_slice());
        }
        Ok(())
    }

    fn uuid_remove(&self, h: &dyn Joined, t: ItemType, uuid: Uuid, id: TreeId) -> Result<(), FsError> {
        let Some((object, offset)) = self.uuid_object(uuid)? else { return Ok(()) };
        let mut guard = object.write();
        let Some(old) = guard.get(t, offset)? else { return Ok(()) };
        let kept: Vec<u8> = old.chunks_exact(ID_LEN).filter(|c| *c != id.0.to_le_bytes()).flatten().copied().collect();
        if kept.is_empty() {
            guard.delete(h, t, offset);
        } else {
            guard.put(h, t, offset, kept.into_boxed_slice());
        }
        Ok(())
    }

    /// The subvolumes of that UUID, or received from the one of that UUID.
    pub fn find_uuid(&self, uuid: Uuid, which: UuidKind) -> Result<Vec<TreeId>, FsError> {
        let t = match which {
            UuidKind::Own => ItemType::UUID_SUBVOL,
            UuidKind::Received => ItemType::UUID_RECEIVED_SUBVOL,
        };
        let Some((object, offset)) = self.uuid_object(uuid)? else { return Ok(Vec::new()) };
        let Some(item) = object.read().get(t, offset)? else { return Ok(Vec::new()) };
        let ids = item.chunks_exact(ID_LEN).filter_map(|c| c.try_into().ok());
        Ok(ids.map(|c| TreeId(u64::from_le_bytes(c))).collect())
    }
}

/// Whether a subvolume refuses changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum ReadOnly {
    Yes,
    No,
}

/// Which of a subvolume's UUIDs to look for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UuidKind {
    /// Its own.
    Own,
    /// That of the subvolume that it was received from.
    Received,
}

/// A UUID as the key of the UUID tree has it.
fn halves(uuid: Uuid) -> (u64, u64) {
    let bytes = uuid.as_u128().to_be_bytes();
    let (mut high, mut low) = ([0; 8], [0; 8]);
    high.copy_from_slice(&bytes[..8]);
    low.copy_from_slice(&bytes[8..]);
    (u64::from_le_bytes(high), u64::from_le_bytes(low))
}

fn snapshot_item(old: &RootItem, uuid: Uuid, read_only: bool, now: Time, generation: Generation) -> RootItem {
    let mut item = *old;
    let mut flags = RootFlags::from_bits_retain(old.flags.get());
    flags.set(RootFlags::SUBVOL_RDONLY, read_only);
    item.flags = flags.bits().into();
    item.refs = 1.into();
    item.generation = generation.0.into();
    item.generation_v2 = generation.0.into();
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
        changes.push(Change { key: Key::new(ino, ItemType::XATTR_ITEM, hash), op: Op::Put(entry.into_boxed_slice()) });
    }
    changes
}

impl Core {
    /// The number that the next subvolume gets.
    fn give_tree(&self) -> Result<TreeId, FsError> {
        if self.next_tree.load(Ordering::Acquire) == 0 {
            let top = Key::new(TreeId::LAST_FREE.0, ItemType(u8::MAX), u64::MAX);
            let stored = self.highest(TreeId::ROOT, top)?.map_or(0, |key| key.objectid);
            let known = self.subvols.lock().ids().map(|id| id.0).filter(|id| *id <= TreeId::LAST_FREE.0).max();
            let next = stored.max(known.unwrap_or(0)).max(TreeId::FIRST_FREE.0 - 1) + 1;
            let _ = self.next_tree.compare_exchange(0, next, Ordering::AcqRel, Ordering::Acquire);
        }
        let id = TreeId(self.next_tree.fetch_add(1, Ordering::AcqRel));
        if id > TreeId::LAST_FREE { Err(FsError::NoSpace) } else { Ok(id) }
    }

    /// Enters a subvolume that has just been made.
    fn enter_subvol(self: &Arc<Self>, id: TreeId, item: RootItem) {
        let subvol = Arc::new(Subvol::new(self.clone(), id, Some(item)));
        self.subvols.lock().insert(subvol);
        // A snapshot has the orphans of its source.
        self.orphans_seen.store(false, Ordering::Release);
    }
}
