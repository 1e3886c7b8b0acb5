//! Reading directories: their entries, and with them the inodes that the entries lead to.
//!
//! Normal path of `readdir_plus`: (1) list entries under the directory's lock; (2) check which inodes are in memory; (3)
//! find the others in one pass over the tree, sorted by number, which reads leaves ahead; (4) enter them in the cache,
//! where an inode that was overtaken by an eviction is looked up alone.

use std::sync::Arc;

use oleo_format::{Ino, ItemType, Key};

use crate::fs::Fs;
use crate::items::dir::{self, DirEntryInfo, Target};
use crate::object::{Inode, InodeFields, InodeRef, Items, Subvol};
use crate::{FileKind, FsError};

/// An entry, and a handle to what it leads to unless that has just gone.
pub type EntryAndInode = (DirEntryInfo, Option<InodeRef>);

impl Fs {
    /// At most `limit` entries of a directory that were created after the one of index `after` (0: from the start).
    pub fn readdir(&self, dir: &InodeRef, after: u64, limit: usize) -> Result<Vec<DirEntryInfo>, FsError> {
        let guard = dir.read();
        guard.alive()?;
        if guard.fields().kind() != FileKind::Dir {
            return Err(FsError::NotDir);
        }
        dir::list(&guard, after, limit)
    }

    /// The highest index that an entry of a directory has had, as far as is known: entries made from now on have
    /// higher ones.
    pub fn last_index(&self, dir: &InodeRef) -> Result<u64, FsError> {
        {
            let guard = dir.read();
            if guard.state().next_index != 0 {
                return Ok(guard.state().next_index - 1);
            }
        }
        let mut guard = dir.write();
        guard.alive()?;
        if guard.fields().kind() != FileKind::Dir {
            return Err(FsError::NotDir);
        }
        dir::learn_next_index(&mut guard)?;
        Ok(guard.state().next_index - 1)
    }

    /// The same with the inodes, which are loaded together. The inode of a directory is left out if a look-up of its name does not find it:
    /// a caller may remove everything below an entry.
    pub fn readdir_plus(&self, dir: &InodeRef, after: u64, limit: usize) -> Result<Vec<EntryAndInode>, FsError> {
        let entries = self.readdir(dir, after, limit)?;
        let mut inos: Vec<Ino> = Vec::with_capacity(entries.len());
        inos.extend(entries.iter().filter_map(|e| if let Target::Inode(ino) = e.target { Some(ino) } else { None }));
        inos.sort_unstable();
        inos.dedup();
        let found = self.load_many(dir.subvol(), &inos)?;
        let mut listed = Vec::with_capacity(entries.len());
        for entry in entries {
            let inode = match entry.target {
                Target::Inode(_) if entry.kind == FileKind::Dir && !is_found(dir, &entry) => None,
                Target::Inode(ino) => match inos.binary_search(&ino) {
                    Ok(at) => found[at].clone(),
                    Err(_) => None,
                },
                Target::Subvol(_) => self.open_entry(dir, &entry)?,
            };
            listed.push((entry, inode));
        }
        Ok(listed)
    }

    /// Handles to inodes of one subvolume, whose numbers rise; `None` for those that are deleted.
    fn load_many(&self, subvol: &Arc<Subvol>, inos: &[Ino]) -> Result<Vec<Option<InodeRef>>, FsError> {
        let cache = &self.core().cache;
        let mut found: Vec<Option<Arc<Inode>>> = Vec::with_capacity(inos.len());
        // Those not in memory, and what the cache needs when they are.
        let mut absent = Vec::new();
        for (at, ino) in inos.iter().enumerate() {
            match cache.peek((subvol.id(), ino.0)) {
                Ok(inode) => found.push(Some(inode)),
                Err(ticket) => {
                    absent.push((at, ticket));
                    found.push(None);
                }
            }
        }
        if !absent.is_empty() {
            let keys: Vec<Key> = absent.iter().map(|(at, _)| Key::new(inos[*at].0, ItemType::INODE_ITEM, 0)).collect();
            let mut parsed: Vec<Option<Result<InodeFields, FsError>>> = Vec::with_capacity(keys.len());
            let engine = self.engine();
            let _reader = engine.reader();
            let root = engine.root(subvol.id())?.ok_or(FsError::NotFound)?;
            engine.blocks().get_many(&root, &keys, |index, item| {
                parsed.push(item.map(|item| InodeFields::parse(item, keys[index])));
            })?;
            for ((at, ticket), fields) in absent.into_iter().zip(parsed) {
                let ino = inos[at];
                let Some(fields) = fields.transpose()? else { continue };
                let loaded = Arc::new(Inode::new(subvol, ino, fields, false));
                found[at] = match cache.enter((subvol.id(), ino.0), loaded, ticket) {
                    Some(inode) => Some(inode),
                    None => self.core().inode(subvol, ino)?,
                };
            }
        }
        Ok(found.into_iter().map(|inode| inode.and_then(alive_handle)).collect())
    }
}

/// Whether a name leads where the list of its directory says.
fn is_found(dir: &InodeRef, entry: &DirEntryInfo) -> bool {
    dir::find(&dir.read(), &entry.name).is_ok_and(|found| found.is_some_and(|found| found.0 == entry.target))
}

fn alive_handle(inode: Arc<Inode>) -> Option<InodeRef> {
    let handle = InodeRef::new(inode);
    let alive = handle.read().alive().is_ok();
    alive.then_some(handle)
}
