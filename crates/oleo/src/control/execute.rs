//! Carrying out requests on an open image.
//!
//! A request is whole or an error, but for those that say otherwise. What a snapshot is of is on disk when its request
//! is done, as with the kernel, and so is a new label; other changes are durable with the next commit.

use oleo_format::{Ino, Logical, TreeId};
use oleo_fs::{FileKind, FsError, InodeRef, NewSubvol, ReadOnly, Received, SnapshotOptions, SubvolInfo, Time, errno};
use oleo_jobs::{DefragOptions, TrimRange};
use oleo_txn::QgroupId;

use super::caller::{Caller, READ, SEARCH, WRITE, is_subvol_root};
use super::request::{
    Bytes, DuLine, Error, Location, NewPart, Place, Property, QgroupStats, Reply, Request, Stats, Subvol, SubvolRef,
    SubvolShown,
};
use super::space;
use crate::fs::PROPERTIES;
use crate::{Hint, Image};

/// What a kernel that caches names and attributes has to forget.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Invalidation {
    /// An entry of a directory, whether it was there or not.
    Entry {
        /// The directory's tree.
        tree: TreeId,
        /// The directory.
        dir: Ino,
        /// The entry's name.
        name: Vec<u8>,
    },
    /// Attributes of an inode.
    Inode {
        /// Its tree.
        tree: TreeId,
        /// Its number.
        ino: Ino,
    },
    /// Everything in a subvolume.
    Subtree {
        /// The subvolume.
        tree: TreeId,
    },
}

type Done = (Reply, Vec<Invalidation>);

/// Carries out a request for a caller.
///
/// # Errors
/// The caller may not, or it cannot be done.
pub fn execute(image: &Image, caller: &Caller, request: Request) -> Result<(Reply, Vec<Invalidation>), Error> {
    let ask = Executor { image, caller };
    match request {
        Request::SubvolCreate { at, parents, groups } => ask.create(&at, parents, &groups),
        Request::Snapshot { source, at, read_only, into, groups } => {
            let at = if into { ask.inside_of(&source, at)? } else { at };
            ask.snapshot(&source, &at, read_only, &groups)
        }
        Request::SubvolDelete { which, recursive } => ask.delete(&which, recursive),
        Request::SetDefault { which } => ask.set_default(&which),
        Request::SetReceived { which, uuid, stransid, stime } => {
            let stime = Time { sec: stime.0, nsec: stime.1 };
            ask.set_received(&which, &Received { uuid, stransid, stime })
        }
        Request::Receive { into, feed, rebase, how } => {
            let rebase = rebase.map(|which| ask.subvol(&which).map(|root| root.tree())).transpose()?;
            super::receive::receive(image, caller, &into, &feed, rebase, &how)
        }
        Request::Send { subvols, parent, clone_sources, feed, how } => {
            caller.must_be_privileged("send")?;
            let id = |which: &SubvolRef| ask.subvol(which).map(|root| root.tree());
            let parts = super::send::Parts {
                subvols: subvols.iter().map(id).collect::<Result<_, _>>()?,
                parent: parent.as_ref().map(id).transpose()?,
                clone_sources: clone_sources.iter().map(id).collect::<Result<_, _>>()?,
            };
            changed(super::send::send(image, caller, parts, &feed, &how)?, vec![])
        }
        Request::PropertySet { at, property, force } => ask.set_property(&at, &property, force),
        Request::SetLabel { label } => {
            caller.must_be_privileged("change the label")?;
            image.set_label(&label.0)?;
            image.fs().commit()?;
            changed(Reply::Done, vec![])
        }
        Request::Resize { devid, to } => {
            caller.must_be_privileged("resize")?;
            changed(Reply::Resized(oleo_jobs::resize(image.fs(), image.balancer(), devid, to)?), vec![])
        }
        Request::Defragment { at, recursive, options } => ask.defragment(&at, recursive, &options),
        Request::Trim { start, len, min_len } => {
            caller.must_be_privileged("trim")?;
            let range = TrimRange { start, len, min_len };
            changed(Reply::Bytes(oleo_jobs::trim(image.fs(), &range)?), vec![])
        }
        Request::QuotaChange { change } => {
            caller.must_be_privileged("change quota")?;
            super::quota::change(image.fs(), change, |which| Ok(ask.subvol(which)?.tree()))?;
            changed(Reply::Done, vec![])
        }
        Request::Balance { change } => {
            caller.must_be_privileged("balance")?;
            changed(super::balance::change(image.balancer(), change)?, vec![])
        }
        Request::Reclaim { percent } => {
            caller.must_be_privileged("move block groups")?;
            changed(Reply::Reclaimed(oleo_jobs::reclaim(image.fs(), image.balancer(), percent)?), vec![])
        }
        Request::Sync => changed(Reply::Generation(image.sync()?), vec![]),
        reads => Ok((ask.look(reads)?, Vec::new())),
    }
}

fn changed(reply: Reply, invalid: Vec<Invalidation>) -> Result<Done, Error> {
    Ok((reply, invalid))
}

/// A request's surroundings.
struct Executor<'a> {
    image: &'a Image,
    caller: &'a Caller,
}

impl Executor<'_> {
    /// Requests that change nothing.
    fn look(&self, request: Request) -> Result<Reply, Error> {
        let fs = self.image.fs();
        Ok(match request {
            Request::SubvolList => {
                self.caller.must_be_privileged("list all subvolumes")?;
                Reply::Subvols(fs.subvol_list()?.into_iter().map(Subvol::from).collect())
            }
            Request::SubvolShow { which } => self.show(self.subvol(&which)?.tree())?,
            Request::GetDefault => {
                self.caller.must_be_privileged("ask for the default subvolume")?;
                self.show(fs.default_subvol()?)?
            }
            Request::SubvolPending { ids } => {
                if ids.is_empty() {
                    self.caller.must_be_privileged("list what was deleted")?;
                }
                let mut dead = fs.engine().dead_trees()?;
                dead.retain(|id| ids.is_empty() || ids.contains(id));
                Reply::Subvolumes(dead)
            }
            Request::FindNew { which, since } => self.find_new(&which, since)?,
            Request::LogicalResolve { at, paths } => {
                self.caller.must_be_privileged("turn numbers into names")?;
                self.places(at, paths)?
            }
            Request::Quota => {
                self.caller.must_be_privileged("list quota groups")?;
                Reply::Quota(super::quota::show(fs)?.map(Box::new))
            }
            Request::BalanceStatus => {
                self.caller.must_be_privileged("ask for the balance")?;
                Reply::Balance(Box::new(self.image.balancer().status()))
            }
            Request::SubvolSizes => {
                self.caller.must_be_privileged("list all subvolumes")?;
                Reply::Sizes(oleo_jobs::subvol_sizes(fs)?.into_iter().map(Into::into).collect())
            }
            Request::Frees { subvols } => {
                self.caller.must_be_privileged("sum up subvolumes")?;
                let set: Vec<TreeId> =
                    subvols.iter().map(|which| Ok(self.subvol(which)?.tree())).collect::<Result<_, Error>>()?;
                Reply::Bytes(oleo_format::ByteLen(oleo_jobs::frees(fs, &set)?))
            }
            Request::Df => Reply::Df(space::groups(self.image)),
            Request::Stats => Reply::Stats(Box::new(Stats {
                log: fs.log_stats().into(),
                qgroup: QgroupStats { dirty_extents: fs.engine().quota_dirty_extents() },
                inodes: fs.inodes_in_memory() as u64,
                nodes: None,
            })),
            Request::Usage => {
                let mut usage = space::usage(self.image);
                if !self.caller.privileged {
                    // Where files are on the machine is nobody else's business.
                    for device in &mut usage.devices {
                        device.path = device.path.file_name().map(Into::into).unwrap_or_default();
                    }
                }
                Reply::Usage(Box::new(usage))
            }
            Request::Du { at } => {
                let inode = self.find(&at)?;
                match fs.attr(&inode).kind {
                    // What is below may belong to anybody.
                    FileKind::Dir => self.caller.must_be_privileged("sum up directories")?,
                    _ => self.caller.must_have(fs, &inode, READ)?,
                }
                let mut lines = Vec::new();
                let whole = self.image.du(&inode, |name, usage| lines.push(DuLine { path: name.into(), usage }))?;
                lines.push(DuLine { path: Default::default(), usage: whole });
                Reply::Du(lines)
            }
            Request::Label => Reply::Label(self.image.label().into()),
            Request::PropertyGet { at, name } => Reply::Properties(self.properties(&at, name.as_deref())?),
            Request::InodeResolve { tree, ino } => {
                self.caller.must_be_privileged("turn numbers into names")?;
                let inode = fs.inode(&fs.subvol(tree)?, ino)?;
                let paths = self.image.paths(&inode)?;
                Reply::Paths(paths.into_iter().map(Into::into).collect())
            }
            Request::SubvolPath { id } => {
                self.caller.must_be_privileged("turn numbers into names")?;
                Reply::Paths(vec![fs.subvol_info(id)?.path.into()])
            }
            Request::Rootid { at } => Reply::Made(self.find(&at)?.tree()),
            other => return Err(Error::refused(errno::EOPNOTSUPP, format!("{other:?} changes something"))),
        })
    }

    fn find(&self, at: &Location) -> Result<InodeRef, Error> {
        self.caller.find(self.image, at)
    }

    /// The root directory of a subvolume.
    fn subvol(&self, which: &SubvolRef) -> Result<InodeRef, Error> {
        match which {
            SubvolRef::Id(id) => {
                self.caller.must_be_privileged("name subvolumes by number")?;
                Ok(self.image.fs().root(*id)?)
            }
            SubvolRef::At(at) => {
                let inode = self.find(at)?;
                if !is_subvol_root(&inode) {
                    return Err(Error::refused(errno::EINVAL, "not a subvolume"));
                }
                Ok(inode)
            }
        }
    }

    fn show(&self, id: TreeId) -> Result<Reply, Error> {
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

    fn find_new(&self, which: &SubvolRef, since: u64) -> Result<Reply, Error> {
        let fs = self.image.fs();
        let root = self.subvol(which)?;
        self.caller.must_be_privileged("list what is new")?;
        let found = oleo_jobs::find_new(fs, root.tree(), since)?;
        let mut known: Option<(Ino, Bytes)> = None;
        let mut parts = Vec::with_capacity(found.extents.len());
        for extent in found.extents {
            let path = match &known {
                Some((ino, path)) if *ino == extent.ino => path.clone(),
                _ => self.first_path(&root, extent.ino)?,
            };
            known = Some((extent.ino, path.clone()));
            parts.push(NewPart { extent, path });
        }
        Ok(Reply::New { parts, marker: found.marker })
    }

    /// A path of a file in the subvolume that `root` is of; empty where it has none any more.
    fn first_path(&self, root: &InodeRef, ino: Ino) -> Result<Bytes, Error> {
        match self.image.fs().inode(root.subvol(), ino) {
            Ok(inode) => Ok(self.image.paths(&inode)?.into_iter().next().unwrap_or_default().into()),
            Err(FsError::NotFound | FsError::Stale) => Ok(Bytes::default()),
            Err(error) => Err(error.into()),
        }
    }

    fn places(&self, at: Logical, paths: bool) -> Result<Reply, Error> {
        let fs = self.image.fs();
        let mut places = Vec::new();
        for found in oleo_jobs::referrers(fs, at)? {
            let mut place = Place { tree: found.tree, ino: found.ino, at: found.at, paths: Vec::new() };
            if paths {
                // Deleted subvolumes that are not gone yet have no names.
                match fs.subvol(found.tree).and_then(|subvol| fs.inode(&subvol, found.ino)) {
                    Ok(inode) => place.paths = self.image.paths(&inode)?.into_iter().map(Into::into).collect(),
                    Err(FsError::NotFound | FsError::Stale) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            places.push(place);
        }
        Ok(Reply::Places(places))
    }

    fn defragment(&self, at: &Location, recursive: bool, options: &DefragOptions) -> Result<Done, Error> {
        let fs = self.image.fs();
        let inode = self.find(at)?;
        match fs.attr(&inode).kind {
            FileKind::Dir if !recursive => {
                let mut error: Error = FsError::IsDir.into();
                error.hint = Some(Hint::IncludeContents);
                return Err(error);
            }
            FileKind::Dir => self.caller.must_be_privileged("defragment whole directories")?,
            _ => self.caller.must_have(fs, &inode, WRITE)?,
        }
        if inode.subvol().is_read_only() {
            return Err(FsError::ReadOnly("the subvolume is read-only").into());
        }
        let mut skipped = Vec::new();
        let done = oleo_jobs::defragment(fs, &inode, options, &mut |file, why| {
            let name = self.first_path(file, file.ino()).unwrap_or_default();
            skipped.push(format!("{}: {why}", String::from_utf8_lossy(&name.0)));
        })?;
        changed(
            Reply::Defragmented { done, skipped },
            vec![Invalidation::Inode { tree: inode.tree(), ino: inode.ino() }],
        )
    }

    fn create(&self, at: &Location, parents: bool, groups: &[u64]) -> Result<Done, Error> {
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
    fn inside_of(&self, source: &SubvolRef, at: Location) -> Result<Location, Error> {
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

    fn snapshot(&self, source: &SubvolRef, at: &Location, read_only: bool, groups: &[u64]) -> Result<Done, Error> {
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

    fn delete(&self, which: &SubvolRef, recursive: bool) -> Result<Done, Error> {
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

    fn set_default(&self, which: &SubvolRef) -> Result<Done, Error> {
        self.caller.must_be_privileged("set the default subvolume")?;
        let id = self.subvol(which)?.tree();
        self.image.fs().set_default(id)?;
        changed(Reply::Made(id), vec![])
    }

    fn set_received(&self, which: &SubvolRef, received: &Received) -> Result<Done, Error> {
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

    fn properties(&self, at: &Location, name: Option<&str>) -> Result<Vec<Property>, Error> {
        let inode = self.find(at)?;
        self.caller.must_have(self.image.fs(), &inode, READ)?;
        let names = name.map_or_else(|| PROPERTIES.iter().map(|(name, _)| *name).collect(), |name| vec![name]);
        let mut found = Vec::new();
        for name in names {
            if let Some(value) = self.image.property(&inode, name)? {
                found.push(Property { name: name.to_owned(), value });
            }
        }
        Ok(found)
    }

    fn set_property(&self, at: &Location, property: &Property, force: bool) -> Result<Done, Error> {
        let fs = self.image.fs();
        let inode = self.find(at)?;
        if property.name == "label" {
            self.caller.must_be_privileged("change the label")?;
        } else {
            self.caller.must_own(&fs.attr(&inode))?;
        }
        if property.name == "ro" && property.value == "false" && is_subvol_root(&inode) {
            self.forget_received(&inode, force)?;
        }
        self.image.set_property(&inode, &property.name, &property.value)?;
        if property.name == "label" {
            fs.commit()?;
        }
        changed(Reply::Done, vec![Invalidation::Inode { tree: inode.tree(), ino: inode.ino() }])
    }

    /// What becomes writable is no longer what was received: the next incremental send would build on a lie.
    fn forget_received(&self, root: &InodeRef, force: bool) -> Result<(), Error> {
        let fs = self.image.fs();
        if fs.subvol_info(root.tree())?.received_uuid.is_nil() {
            return Ok(());
        }
        if !force {
            let mut error = Error::refused(errno::EPERM, "it was received, and incremental receives build on it");
            error.hint = Some(Hint::WriteToSnapshot);
            return Err(error);
        }
        fs.set_read_only(root.tree(), ReadOnly::No)?;
        Ok(fs.set_received(root.tree(), &Received::default())?)
    }
}

/// An entry that came or went, and the directory that it is in.
fn entry(dir: &InodeRef, name: &[u8]) -> Vec<Invalidation> {
    let (tree, dir) = (dir.tree(), dir.ino());
    vec![Invalidation::Entry { tree, dir, name: name.to_vec() }, Invalidation::Inode { tree, ino: dir }]
}

impl Image {
    /// All paths of an inode from the top level, without a leading slash.
    ///
    /// # Errors
    /// The inode is gone, or the image is damaged.
    pub fn paths(&self, inode: &InodeRef) -> crate::Result<Vec<Vec<u8>>> {
        /// Directories on the way up, at most: as deep as a path can be.
        const DEPTH_MAX: usize = 4096;
        let subvol = self.fs().subvol_info(inode.tree())?.path;
        let mut paths = Vec::new();
        let mut bytes = 0;
        let too_many = || Error::refused(errno::EOVERFLOW, "its names are too many, or too deep");
        if inode.ino() == Ino::ROOT_DIR {
            return Ok(vec![subvol]);
        }
        for name in self.fs().names(inode)? {
            let mut parts = vec![name.name];
            let mut dir = name.parent;
            for _ in 0..DEPTH_MAX {
                if dir == Ino::ROOT_DIR {
                    break;
                }
                let inode = self.fs().inode(inode.subvol(), dir)?;
                let Some(name) = self.fs().names(&inode)?.into_iter().next() else {
                    return Err(FsError::NotFound.into());
                };
                dir = name.parent;
                parts.push(name.name);
            }
            if dir != Ino::ROOT_DIR {
                return Err(too_many().into());
            }
            if !subvol.is_empty() {
                parts.push(subvol.clone());
            }
            parts.reverse();
            let path = parts.join(&b'/');
            bytes += path.len();
            if bytes > super::REPLY_MAX {
                return Err(too_many().into());
            }
            paths.push(path);
        }
        Ok(paths)
    }
}
