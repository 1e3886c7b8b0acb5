//! Walking a tree of directories that may be damaged: each directory is entered a bounded number of times.
//!
//! In a sound file system a directory has one entry, and its own back reference names it. So (1) an entry that its
//! directory confirms is followed; (2) an entry that is not confirmed is a stray, and is followed once in a walk;
//! (3) no entry leads into a stray's directory again, nor back to the start of the walk.
//!
//! Invariants: entries that are confirmed form a forest, and every circle in it is entered by a stray or at its start, so a walk
//! ends; a directory is entered at most once for each stray above it. Memory: strays only, of which a sound image has none.

use hashbrown::HashSet;
use oleo_format::{Ino, TreeId};

use crate::{Fs, FsError, InodeRef};

/// One walk.
#[derive(Debug)]
pub struct Descent {
    start: (TreeId, Ino),
    strays: HashSet<(TreeId, Ino)>,
}

fn key(inode: &InodeRef) -> (TreeId, Ino) {
    (inode.tree(), inode.ino())
}

impl Descent {
    /// A walk that begins at a directory.
    pub fn new(start: &InodeRef) -> Descent {
        Descent { start: key(start), strays: HashSet::new() }
    }

    /// Whether to enter a directory that was found in another one under a name: not if the walk has been there, or would
    /// come back to what it came from.
    pub fn enters(&mut self, fs: &Fs, dir: &InodeRef, name: &[u8], child: &InodeRef) -> bool {
        if child.is_empty_subvol_dir() {
            // It has no entries.
            return true;
        }
        if key(child) == self.start || self.strays.contains(&key(child)) {
            return false;
        }
        confirmed(fs, dir, name, child) || self.strays.insert(key(child))
    }

    /// The same; what must not be entered is an error.
    ///
    /// # Errors
    /// The directory has been entered before.
    pub fn enter(&mut self, fs: &Fs, dir: &InodeRef, name: &[u8], child: &InodeRef) -> Result<(), FsError> {
        if self.enters(fs, dir, name, child) { Ok(()) } else { Err(in_circles(child)) }
    }
}

/// A directory that leads to itself.
pub(crate) fn in_circles(dir: &InodeRef) -> FsError {
    FsError::corrupt("directory", dir.ino(), "ways to it", "several, or from itself", "one")
}

fn confirmed(fs: &Fs, dir: &InodeRef, name: &[u8], child: &InodeRef) -> bool {
    if child.ino() == Ino::ROOT_DIR {
        // The parent's reference has named this entry.
        return fs.parent_of(child.tree(), child.ino()).is_ok_and(|parent| parent == Some(key(dir)));
    }
    let Ok(names) = fs.names(child) else { return false };
    matches!(&names[..], [one] if one.parent == dir.ino() && one.name == name)
}
