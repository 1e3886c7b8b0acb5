//! Requests about subvolumes: show, create, snapshot, delete, the default, what one was received from.

use oleo_format::TreeId;
use oleo_fs::{FileKind, FsError, InodeRef, NewSubvol, Received, SnapshotOptions, SubvolInfo};
use oleo_txn::QgroupId;

use super::{Done, Executor, changed};
use crate::SubvolRef;
use crate::control::caller::{READ, SEARCH, WRITE};
use crate::control::error::Error;
use crate::control::invalidation::Invalidation;
use crate::control::location::Location;
use crate::control::reply::{Reply, SubvolShown};

impl Executor<'_> {
    pub(super) fn show(&self, id: TreeId) -> Result<Reply, Error> {
        let fs = self.image.fs();
        let info = fs.subvol_info(id)?;
        let mut info = info;
        if !self.caller.privileged {
            self.caller.must_have(fs, &fs.root(id)?, READ | SEARCH)?;
            // Directories on the way may be such as the caller cannot look into.
            info.path = info.place.as_ref().map(|place| place.name.clone()).unwrap_or_default();
        }
        let mut snapshots = Vec::new();
        if !info.uuid.is_nil() && self.caller.privileged {
            let is_snapshot = |other: &SubvolInfo| other.parent_uuid == info.uuid;
            snapshots = fs.subvol_list()?.into_iter().filter(is_snapshot).map(|other| other.path.into()).collect();
        }
        Ok(Reply::Subvol(Box::new(SubvolShown { subvol: info.into(), snapshots })))
    }

    pub(super) fn create(&self, at: &Location, parents: bool, groups: &[u64]) -> Result<Done, Error> {
        let fs = self.image.fs();
        if parents && self.caller.privileged {
            let start = fs.inode(&fs.subvol(at.tree)?, at.ino)?;
            let above = at.path.0.iter().rposition(|&b| b == b'/').map_or(&[][..], |slash| &at.path.0[..slash]);
            self.image.create_dirs(&start, above)?;
        }
        let (dir, name) = self.caller.find_parent(self.image, at)?;
        self.caller.must_have(fs, &dir, WRITE | SEARCH)?;
        let (mode, uid, gid) = (self.caller.subvol_mode(), self.caller.uid, self.caller.gid);
        let groups = self.groups(groups)?;
        let id = fs.subvol_create(&dir, name, &NewSubvol::default().mode(mode).uid(uid).gid(gid).groups(groups))?;
        changed(Reply::Made(id), entry(&dir, name))
    }

    /// Where there is a directory already, the source's name in it is meant.
    pub(super) fn inside_of(&self, source: &SubvolRef, at: Location) -> Result<Location, Error> {
        let fs = self.image.fs();
        let there = match self.find(&at) {
            Ok(there) if fs.attr(&there).kind == FileKind::Dir => there,
            _ => return Ok(at),
        };
        let place = fs.subvol_info(self.subvol(source)?.tree())?.place;
        Ok(place.map_or(at, |place| Location::below(there.tree(), there.ino(), place.name)))
    }

    /// Quota groups to be put into.
    fn groups(&self, groups: &[u64]) -> Result<Vec<QgroupId>, Error> {
        if !groups.is_empty() {
            self.caller.must_be_privileged("put subvolumes into quota groups")?;
        }
        Ok(groups.iter().copied().map(QgroupId).collect())
    }

    pub(super) fn snapshot(
        &self,
        source: &SubvolRef,
        at: &Location,
        read_only: bool,
        groups: &[u64],
    ) -> Result<Done, Error> {
        let fs = self.image.fs();
        let from = self.subvol(source)?;
        self.caller.must_own(&fs.attr(&from))?;
        let (dir, name) = self.caller.find_parent(self.image, at)?;
        self.caller.must_have(fs, &dir, WRITE | SEARCH)?;
        let id = fs.snapshot(
            from.tree(),
            &dir,
            name,
            SnapshotOptions::default().read_only(read_only).groups(self.groups(groups)?),
        )?;
        fs.engine().commit()?;
        changed(Reply::Made(id), entry(&dir, name))
    }

    pub(super) fn delete(&self, which: &SubvolRef, recursive: bool) -> Result<Done, Error> {
        let id = self.subvol(which)?.tree();
        let mut invalid = Vec::new();
        if recursive {
            for inner in self.inside(id)? {
                self.delete_one(inner, &mut invalid)?;
            }
        }
        self.delete_one(id, &mut invalid)?;
        changed(Reply::Made(id), invalid)
    }

    /// All subvolumes inside one, those furthest in first.
    fn inside(&self, id: TreeId) -> Result<Vec<TreeId>, Error> {
        let list = self.image.fs().subvol_list()?;
        let mut found = vec![id];
        let mut next = 0;
        while let Some(outer) = found.get(next).copied() {
            next += 1;
            let inner = list.iter().filter(|info| info.parent == Some(outer)).map(|info| info.id);
            let fresh: Vec<TreeId> = inner.filter(|id| !found.contains(id)).collect();
            found.extend(fresh);
        }
        found.remove(0);
        found.reverse();
        Ok(found)
    }

    fn delete_one(&self, id: TreeId, invalid: &mut Vec<Invalidation>) -> Result<(), Error> {
        let fs = self.image.fs();
        if self.caller.keep == Some(id) {
            return Err(FsError::Busy("it is the root of this mount").into());
        }
        let info = fs.subvol_info(id)?;
        let (Some(parent), Some(place)) = (info.parent, info.place) else {
            return Err(FsError::NotPermitted("the top level cannot be deleted").into());
        };
        let dir = fs.inode(&fs.subvol(parent)?, place.dirid)?;
        if !self.caller.privileged {
            if !self.caller.user_subvol_rm_allowed {
                self.caller
                    .must_be_privileged("delete subvolumes (the mount option user_subvol_rm_allowed lets others)")?;
            }
            let root = fs.root(id)?;
            self.caller.must_have(fs, &root, WRITE | SEARCH)?;
            self.caller.must_remove(fs, &dir, &fs.attr(&root))?;
            // Permission to write to it is what the kernel asks for, which a read-only subvolume gives to nobody.
            if root.subvol().is_read_only() {
                return Err(FsError::ReadOnly("the subvolume is read-only").into());
            }
        }
        fs.subvol_delete(id)?;
        invalid.extend(entry(&dir, &place.name));
        invalid.push(Invalidation::Subtree { tree: id });
        Ok(())
    }

    pub(super) fn set_default(&self, which: &SubvolRef) -> Result<Done, Error> {
        self.caller.must_be_privileged("set the default subvolume")?;
        let id = self.subvol(which)?.tree();
        self.image.fs().set_default(id)?;
        changed(Reply::Made(id), vec![])
    }

    pub(super) fn set_received(&self, which: &SubvolRef, received: &Received) -> Result<Done, Error> {
        let fs = self.image.fs();
        let root = self.subvol(which)?;
        self.caller.must_own(&fs.attr(&root))?;
        if root.subvol().is_read_only() {
            return Err(FsError::ReadOnly("the subvolume is read-only").into());
        }
        fs.set_received(root.tree(), received)?;
        let noted = fs.subvol_info(root.tree())?.rtransid;
        changed(Reply::Generation(oleo_format::Generation(noted)), vec![])
    }
}

/// An entry that came or went, and the directory that it is in.
fn entry(dir: &InodeRef, name: &[u8]) -> Vec<Invalidation> {
    let (tree, dir) = (dir.tree(), dir.ino());
    vec![Invalidation::Entry { tree, dir, name: name.to_vec() }, Invalidation::Inode { tree, ino: dir }]
}
