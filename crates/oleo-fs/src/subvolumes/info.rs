//! What is known of subvolumes: one, all, and their paths.

use std::sync::Arc;

use hashbrown::HashMap;
use oleo_format::{Ino, ItemType, Key, TreeId};
use uuid::Uuid;

use crate::FsError;
use crate::fs::Fs;
use crate::items::refs;
use crate::object::{Subvol, time_of};
use crate::options::Time;
use crate::subvolumes::root_refs::RootPlace;

/// Subvolumes from one to the top level, at most: as deep as a path can be.
const NESTING_MAX: usize = 4096;

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
    /// What is known of a subvolume.
    pub fn subvol_info(&self, id: TreeId) -> Result<SubvolInfo, FsError> {
        self.info_of(id, &HashMap::new())
    }

    /// The same, for a caller that knows the paths of some of those that it may be in.
    fn info_of(&self, id: TreeId, paths: &HashMap<TreeId, Vec<u8>>) -> Result<SubvolInfo, FsError> {
        let subvol = self.subvol(id)?;
        let item = subvol.root_item().ok_or(FsError::NotFound)?;
        let generation = self.engine().root(id)?.map_or(0, |root| root.generation.0);
        let place = self.root_backref(id)?;
        Ok(SubvolInfo {
            id,
            parent: place.as_ref().map(|p| p.0),
            path: self.path_of_subvol(id, paths)?,
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
        // Most have a higher number than the one that they are in.
        let mut paths = HashMap::new();
        for id in self.subvol_ids()? {
            match self.info_of(id, &paths) {
                Ok(info) => {
                    paths.insert(id, info.path.clone());
                    infos.push(info);
                }
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
    fn path_of_subvol(&self, id: TreeId, known: &HashMap<TreeId, Vec<u8>>) -> Result<Vec<u8>, FsError> {
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let mut at = id;
        for _ in 0..NESTING_MAX {
            if let Some(path) = known.get(&at).filter(|path| !path.is_empty()) {
                parts.push(path.clone());
                parts.reverse();
                return Ok(parts.join(&b'/'));
            }
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
}
