//! Beginning, ending and finding subvolumes; the mark on incomplete ones.

use oleo_format::TreeId;
use oleo_fs::{
    COMPRESSION, Fs, FsError, InodeRef, NewSubvol, ReadOnly, Received, SetAttr, SnapshotOptions, SubvolInfo, Time,
    UuidKind, XattrMode,
};
use uuid::Uuid;

use super::super::mark::Stored;
use super::super::paths::split;
use super::super::{ApplyError, Begin, Found, Incomplete, Mark};
use super::paths::Finder;
use super::{FsTarget, MARK_NAME, Open, refused};

impl FsTarget {
    /// The directory that a subvolume is to be in, and its name.
    fn place<'p>(&self, path: &'p [u8]) -> Result<(InodeRef, &'p [u8]), ApplyError> {
        let (dir, name) = split(path);
        Ok((Finder::new(self.into.clone()).dir(&self.fs, dir)?, name))
    }

    pub(super) fn begin_subvol(&mut self, new: &Begin<'_>) -> Result<(), ApplyError> {
        let (dir, name) = self.place(new.path)?;
        let mut parent = None;
        let tree = match new.parent {
            None => self.fs.subvol_create(&dir, name, &NewSubvol::default())?,
            Some((uuid, ctransid)) => {
                let source = self.parent(uuid, ctransid)?;
                parent = Some((uuid, source));
                self.fs.snapshot(source, &dir, name, SnapshotOptions::default())?
            }
        };
        self.enter(tree, new, parent)?;
        if new.parent.is_none() {
            let root = self.open()?.root.clone();
            if self.fs.xattr_get(&root, COMPRESSION)?.is_some() {
                // The stream sets everything; nothing is inherited.
                self.fs.xattr_remove(&root, COMPRESSION)?;
            }
        }
        let root = self.open()?.root.clone();
        self.unlock(&root)?;
        self.set_mark(None)
    }

    fn enter(&mut self, tree: TreeId, new: &Begin<'_>, parent: Option<(Uuid, TreeId)>) -> Result<(), ApplyError> {
        let root = self.fs.root(tree)?;
        self.open = Some(Open {
            uuid: new.uuid,
            ctransid: new.ctransid,
            finder: Finder::new(root.clone()),
            root,
            current: None,
            parent,
            sources: Default::default(),
            locked: Default::default(),
            waiting: Default::default(),
        });
        Ok(())
    }

    /// What an incremental stream is to be applied on.
    fn parent(&self, uuid: Uuid, ctransid: u64) -> Result<TreeId, ApplyError> {
        if let Some(tree) = self.options.rebase {
            return Ok(tree);
        }
        self.find_subvol(uuid, ctransid)?.ok_or_else(|| {
            let what =
                format!("the parent, {uuid} (transaction {ctransid}), was not received here, or was changed since");
            refused(what)
        })
    }

    /// Finds the subvolume that was received from the one with this UUID, or has it. A sender that received the
    /// subvolume itself names the first sender's UUID but its own transaction, so the transaction only decides which of
    /// several is best. The subvolume must not have changed since it was sent.
    pub(super) fn find_subvol(&self, uuid: Uuid, ctransid: u64) -> Result<Option<TreeId>, ApplyError> {
        let best =
            |received: Vec<SubvolInfo>| received.into_iter().max_by_key(|s| (s.stransid == ctransid, s.otransid, s.id));
        let best_listed = best(self.unchanged(self.fs.find_uuid(uuid, UuidKind::Received)?)?);
        if let Some(exact) = best_listed.filter(|subvol| subvol.stransid == ctransid) {
            return Ok(Some(exact.id));
        }
        // The UUID tree does not list all of them if there are thousands.
        if let Some(best) = best(self.unchanged(self.fs.find_uuid_in_roots(uuid, UuidKind::Received)?)?) {
            return Ok(Some(best.id));
        }
        let mut own = self.unchanged(self.fs.find_uuid(uuid, UuidKind::Own)?)?;
        if own.is_empty() {
            own = self.unchanged(self.fs.find_uuid_in_roots(uuid, UuidKind::Own)?)?;
        }
        // A sender that received the subvolume from here names its own transaction. A snapshot that has not changed since it was
        // made is the same there.
        let fits = |subvol: &&SubvolInfo| subvol.ctransid == ctransid || subvol.ctransid <= subvol.otransid;
        Ok(own.iter().find(fits).map(|subvol| subvol.id))
    }

    /// Those of some subvolumes that are read-only, and not the one that is being received.
    fn unchanged(&self, ids: Vec<TreeId>) -> Result<Vec<SubvolInfo>, FsError> {
        let open = self.open.as_ref().map(|open| open.root.tree());
        let mut found = Vec::with_capacity(ids.len());
        for id in ids.into_iter().filter(|id| Some(*id) != open) {
            match self.fs.subvol_info(id) {
                Ok(info) if info.read_only => found.push(info),
                // One that has been deleted may still be listed.
                Ok(_) | Err(FsError::NotFound | FsError::Stale) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(found)
    }

    pub(super) fn reopen_subvol(&mut self, new: &Begin<'_>) -> Result<Found, ApplyError> {
        let (dir, name) = self.place(new.path)?;
        let Some(root) = self.fs.lookup(&dir, name)? else { return Ok(Found::Nothing) };
        let tree = root.tree();
        if tree == dir.tree() || root.is_empty_subvol_dir() {
            return Err(FsError::Exists.into());
        }
        let info = self.fs.subvol_info(tree)?;
        if info.read_only && info.received_uuid == new.uuid && info.stransid == new.ctransid {
            return Ok(Found::Complete);
        }
        let stored = self.fs.xattr_get(&root, MARK_NAME)?.and_then(|value| Stored::parse(&value));
        let Some(stored) = stored.filter(|s| s.uuid == new.uuid && s.ctransid == new.ctransid) else {
            return Err(refused("the existing subvolume does not come from receiving this one"));
        };
        let written = self.fs.attr(&root).transid;
        let Some(mark) = stored.mark.filter(|_| written == stored.generation && info.generation <= written) else {
            let what = "how far it was received is not known exactly: delete it and receive it anew";
            return Err(refused(what));
        };
        let parent = match new.parent {
            None => None,
            Some((uuid, ctransid)) => Some((uuid, self.parent(uuid, ctransid)?)),
        };
        self.enter(tree, new, parent)?;
        Ok(Found::Part(mark))
    }

    /// Writes the mark, in the transaction of what it describes.
    pub(super) fn set_mark(&mut self, mark: Option<&Mark>) -> Result<(), ApplyError> {
        /// A commit may come between looking at the transaction's number and writing it.
        const TRIES: usize = 3;
        let fs = self.fs.clone();
        let open = self.open()?;
        let mut generation = fs.engine().generation().0;
        for _ in 0..TRIES {
            let stored = Stored { uuid: open.uuid, ctransid: open.ctransid, generation, mark: mark.cloned() };
            unseen(&fs, &open.root, || fs.xattr_set(&open.root, MARK_NAME, &stored.encode(), XattrMode::Any))?;
            let written = fs.attr(&open.root).transid;
            if written == generation {
                return Ok(());
            }
            generation = written;
        }
        Ok(())
    }

    pub(super) fn finish_subvol(&mut self) -> Result<(), ApplyError> {
        self.settle()?;
        let fs = self.fs.clone();
        let open = self.open()?;
        let (tree, received) =
            (open.root.tree(), Received { uuid: open.uuid, stransid: open.ctransid, stime: Time::default() });
        unseen(&fs, &open.root, || fs.xattr_remove(&open.root, MARK_NAME))?;
        self.lock_again()?;
        fs.set_received(tree, &received)?;
        fs.set_read_only(tree, ReadOnly::Yes)?;
        self.open = None;
        self.done.push(tree);
        Ok(())
    }

    pub(super) fn abandon_subvol(&mut self, applied: Option<&Mark>, incomplete: Incomplete) -> Result<(), ApplyError> {
        let settled = self.settle();
        match incomplete {
            Incomplete::Marked => {
                if self.open.is_some() {
                    self.lock_again()?;
                    self.set_mark(applied.filter(|_| settled.is_ok()))?;
                }
            }
            Incomplete::Deleted => {
                let open = self.open.take().map(|open| open.root.tree());
                for tree in open.into_iter().chain(self.done.drain(..).rev()) {
                    self.fs.subvol_delete(tree)?;
                }
            }
        }
        self.open = None;
        Ok(())
    }
}

/// Changes the mark without changing the time of the last change, which is the sender's.
fn unseen(fs: &Fs, root: &InodeRef, change: impl FnOnce() -> Result<(), FsError>) -> Result<(), FsError> {
    let ctime = Some(fs.attr(root).ctime);
    change()?;
    fs.set_attr(root, &SetAttr::default().ctime(ctime)).map(drop)
}
