//! Paths of inodes within one tree that does not change.

use std::sync::Arc;

use hashbrown::HashMap;
use oleo_format::{Corruption, Ino, InodeExtrefEntryRef, InodeRefEntryRef, ItemType, Key};
use oleo_fs::errno;
use oleo_tree::{Blocks, Cursor, TreeRoot};

use super::SendError;
use super::walk::Name;

/// Directories whose paths are remembered; then all are forgotten. About 100 bytes each.
const KEPT_MAX: usize = 1 << 16;
/// Bytes that a path may have (`PATH_MAX` without the byte at its end).
const PATH_LEN_MAX: usize = 4095;
/// How deep directories may lie: a path has at most 4096 bytes, two for each.
pub(super) const DEPTH_MAX: usize = 2048;

/// Paths in a tree.
pub(super) struct Paths<'e> {
    cursor: Cursor<'e>,
    dirs: HashMap<u64, Arc<[u8]>>,
}

impl<'e> Paths<'e> {
    pub fn new(blocks: &'e Blocks, root: &TreeRoot) -> Paths<'e> {
        Paths { cursor: blocks.cursor(root), dirs: HashMap::new() }
    }

    /// The first name of an inode; `None` if it has none.
    pub fn name(&mut self, ino: u64) -> Result<Option<Name>, SendError> {
        if !self.cursor.seek(&Key::new(ino, ItemType::INODE_REF, 0))? {
            return Ok(None);
        }
        let Some((key, item)) = self.cursor.current().filter(|(key, _)| key.objectid == ino) else { return Ok(None) };
        Ok(match key.item_type {
            ItemType::INODE_REF => {
                let entry = InodeRefEntryRef::iter(item).next().transpose()?;
                entry.map(|entry| Name { dir: key.offset, name: entry.name.into() })
            }
            ItemType::INODE_EXTREF => {
                let entry = InodeExtrefEntryRef::iter(item).next().transpose()?;
                entry.map(|entry| Name { dir: entry.parent.0, name: entry.name.into() })
            }
            _ => None,
        })
    }

    /// The path of a directory; the root's is empty.
    pub fn dir(&mut self, ino: u64) -> Result<Arc<[u8]>, SendError> {
        if let Some(known) = self.dirs.get(&ino) {
            return Ok(known.clone());
        }
        let mut names: Vec<(u64, Box<[u8]>)> = Vec::new();
        let mut at = ino;
        let mut path = loop {
            if at == Ino::ROOT_DIR.0 {
                break Vec::new();
            }
            if let Some(known) = self.dirs.get(&at) {
                break known.to_vec();
            }
            if names.len() >= DEPTH_MAX {
                return Err(Corruption::new("inode references", "depth", "endless", "a way to the root directory")
                    .within(format!("inode {ino}"))
                    .into());
            }
            let name = self
                .name(at)?
                .ok_or_else(|| Corruption::new("directory", "names", "none", "one").within(format!("inode {at}")))?;
            names.push((at, name.name));
            at = name.dir;
        };
        if self.dirs.len() + names.len() > KEPT_MAX {
            self.dirs.clear();
        }
        for (dir, name) in names.into_iter().rev() {
            join(&mut path, &name);
            bounded(&path)?;
            self.dirs.insert(dir, path.as_slice().into());
        }
        Ok(self.dirs.get(&ino).cloned().unwrap_or_default())
    }

    /// The path of a name.
    pub fn of_name(&mut self, name: &Name) -> Result<Vec<u8>, SendError> {
        let mut path = self.dir(name.dir)?.to_vec();
        join(&mut path, &name.name);
        bounded(&path)?;
        Ok(path)
    }

    /// A path of any inode; `None` if it has no name.
    pub fn any(&mut self, ino: u64) -> Result<Option<Vec<u8>>, SendError> {
        if ino == Ino::ROOT_DIR.0 {
            return Ok(Some(Vec::new()));
        }
        match self.name(ino)? {
            Some(name) => self.of_name(&name).map(Some),
            None => Ok(None),
        }
    }
}

/// Refuses what no receiver could open.
pub(super) fn bounded(path: &[u8]) -> Result<(), SendError> {
    if path.len() > PATH_LEN_MAX {
        let text = format!("a path of {} bytes, more than {PATH_LEN_MAX}: no receiver could open it", path.len());
        return Err(SendError::refused(errno::ENAMETOOLONG, text));
    }
    Ok(())
}

/// Appends a name to a path.
pub(super) fn join(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}
