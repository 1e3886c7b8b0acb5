//! How requests name files and directories.

use std::fmt;

use oleo_format::{Ino, TreeId};
use serde::{Deserialize, Serialize};

use super::bytes::Bytes;

/// A file or directory: a path from an inode on. The path may be empty.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Location {
    /// The tree of the inode that the path begins at.
    pub tree: TreeId,
    /// Its number.
    pub ino: Ino,
    /// The path from there on.
    #[serde(default)]
    pub path: Bytes,
}

impl Location {
    /// An inode itself.
    pub fn inode(tree: TreeId, ino: Ino) -> Location {
        Location { tree, ino, path: Bytes::default() }
    }

    /// A path from an inode on.
    pub fn below(tree: TreeId, ino: Ino, path: impl Into<Bytes>) -> Location {
        Location { tree, ino, path: path.into() }
    }

    /// A path from the top level.
    pub fn top(path: impl Into<Bytes>) -> Location {
        Location::below(TreeId::FS, Ino::ROOT_DIR, path)
    }

    /// Whether the path begins at the top level.
    pub fn is_from_top(&self) -> bool {
        (self.tree, self.ino) == (TreeId::FS, Ino::ROOT_DIR)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_from_top() {
            write!(f, "inode {} of subvolume {}", self.ino.0, self.tree.0)?;
            if !self.path.0.is_empty() {
                f.write_str(": ")?;
            }
        }
        write!(f, "{}", self.path.0.escape_ascii())
    }
}
