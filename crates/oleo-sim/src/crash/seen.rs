//! What a program sees of a file system at one moment, by inode rather than by path, so that moments of a run and the
//! contents after a crash can be compared piece by piece.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};

use crate::manifest::{Kind, Time, TreeView};

/// Files longer than this are none that a crash run makes.
const LEN_MAX: u64 = 16 << 20;
/// What space is given in, bytes.
const SECTOR_LEN: u64 = 4096;
/// Deeper nesting of directories counts as a loop.
const DEPTH_MAX: usize = 100;

/// An inode: neither number is used twice in a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Id {
    /// The number of its subvolume.
    pub tree: u64,
    /// Its number in there.
    pub ino: u64,
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.tree, self.ino)
    }
}

/// Names and values of extended attributes.
pub type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// All of an inode but its names.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Node {
    pub kind: Kind,
    /// Mode, owner, group, device number.
    pub owner: (u32, u32, u32, (u32, u32)),
    /// The count that it reports, not the number of names found.
    pub nlink: u64,
    /// Of files; others have none here.
    pub mtime: Option<Time>,
    /// Times of the last changes of contents and of the inode; subvolumes that a snapshot left out have none.
    pub times: Option<(Time, Time)>,
    /// Inode flags, if the view reports them.
    pub flags: Option<u64>,
    /// The allocated parts of a file in sectors, if the view reports them; the rest is holes.
    pub room: Option<Vec<Room>>,
    pub xattrs: Xattrs,
    /// The contents of a file, the target of a symlink.
    pub data: Vec<u8>,
    /// An empty directory in place of a subvolume that a snapshot left out: has neither attributes nor a number.
    pub empty_subvol_dir: bool,
}

/// Sectors of a file that have space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The first of them.
    pub first: u64,
    /// The one behind the last.
    pub end: u64,
    /// Nothing was written there yet.
    pub unwritten: bool,
}

/// A name: the directory and its bytes.
pub type Name = (Id, Vec<u8>);

/// A file system at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The top directory.
    pub top: Id,
    /// Every inode that a path leads to.
    pub nodes: BTreeMap<Id, Arc<Node>>,
    /// Every name.
    pub entries: BTreeMap<Name, Id>,
}

impl Seen {
    /// Reads everything. Nodes that equal those in `before` share their memory, which makes comparing them free.
    pub fn of<V: TreeView>(view: &V, before: Option<&Seen>) -> Result<Seen> {
        let top = view.root()?;
        let attr = view.attr(&top)?;
        let id = Id { tree: attr.tree, ino: attr.ino };
        let mut out = Seen { top: id, nodes: BTreeMap::new(), entries: BTreeMap::new() };
        out.add(view, id, &top, before)?;
        let mut dirs = vec![(id, top, 0)];
        while let Some((dir, node, depth)) = dirs.pop() {
            ensure!(depth < DEPTH_MAX, "directories nested {depth} deep");
            for (name, child) in view.list(&node)? {
                let place = || format!("{} in directory {dir}", name.escape_ascii());
                let attr = view.attr(&child).with_context(place)?;
                // The empty directory in place of a subvolume has no number of its own.
                let tree = if attr.empty_subvol_dir { dir.tree } else { attr.tree };
                let id = Id { tree, ino: if attr.empty_subvol_dir { 2 } else { attr.ino } };
                let known = out.nodes.contains_key(&id);
                if !known {
                    out.add(view, id, &child, before).with_context(place)?;
                }
                if attr.kind == Kind::Dir && !attr.empty_subvol_dir {
                    ensure!(!known, "directory {id} has two names, one of them {}", place());
                    dirs.push((id, child, depth + 1));
                }
                if let Some(other) = out.entries.insert((dir, name.clone()), id) {
                    bail!("{} is listed twice, as {other} and {id}", place());
                }
            }
        }
        Ok(out)
    }

    fn add<V: TreeView>(&mut self, view: &V, id: Id, node: &V::Node, before: Option<&Seen>) -> Result<()> {
        let attr = view.attr(node)?;
        let mut new = Node {
            kind: attr.kind,
            owner: (attr.mode, attr.uid, attr.gid, attr.rdev),
            nlink: attr.nlink,
            mtime: (attr.kind == Kind::File).then_some(attr.mtime),
            xattrs: if attr.empty_subvol_dir { Xattrs::new() } else { view.xattrs(node)? },
            times: (!attr.empty_subvol_dir).then_some((attr.mtime, attr.ctime)),
            flags: if attr.empty_subvol_dir { None } else { view.flags(node)? },
            room: None,
            data: Vec::new(),
            empty_subvol_dir: attr.empty_subvol_dir,
        };
        if attr.empty_subvol_dir {
            (new.owner, new.nlink) = ((0, 0, 0, (0, 0)), 1);
        }
        match attr.kind {
            Kind::File => {
                ensure!(attr.size <= LEN_MAX, "{} bytes long", attr.size);
                new.data = vec![0; usize::try_from(attr.size)?];
                let got = view.read(node, 0, &mut new.data)?;
                ensure!(got == new.data.len(), "{got} bytes where the size is {}", attr.size);
                new.room = view.room(node)?.map(|all| in_sectors(&all));
            }
            Kind::Symlink => new.data = view.read_link(node)?,
            _ => {}
        }
        let same = before.and_then(|b| b.nodes.get(&id)).filter(|old| ***old == new).cloned();
        self.nodes.insert(id, same.unwrap_or_else(|| Arc::new(new)));
        Ok(())
    }

    /// The inode at a path below the top, symlinks not followed.
    pub fn find(&self, path: &str) -> Option<Id> {
        let mut at = self.top;
        for name in path.split('/').filter(|n| !n.is_empty()) {
            at = *self.entries.get(&(at, name.as_bytes().to_vec()))?;
        }
        Some(at)
    }

    /// All names of an inode.
    pub fn names_of(&self, id: Id) -> BTreeSet<&Name> {
        self.entries.iter().filter(|(_, to)| **to == id).map(|(name, _)| name).collect()
    }
}

/// Alike neighbours are merged: how a file is cut into extents does not matter.
fn in_sectors(all: &[(u64, u64, bool)]) -> Vec<Room> {
    let mut out: Vec<Room> = Vec::new();
    for (at, len, unwritten) in all {
        let (first, end) = (at / SECTOR_LEN, (at + len).div_ceil(SECTOR_LEN));
        match out.last_mut() {
            Some(last) if last.end == first && last.unwritten == *unwritten => last.end = end,
            _ => out.push(Room { first, end, unwritten: *unwritten }),
        }
    }
    out
}
