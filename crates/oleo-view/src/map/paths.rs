//! Paths by the bytes that they alone hold: data extents that one file of one subvolume reaches, and nothing else.
//!
//! Memory: a node for each file and directory of what was sampled; then the largest stay, and what is below the others is summed up in their directories.

use std::collections::{BinaryHeap, HashMap};

use oleo::inspect::Inspector;
use oleo::layers::format::{Ino, InodeExtrefEntryRef, InodeRefEntryRef, ItemType, Key, TreeId};
use serde::Serialize;

use super::notes::Notes;
use super::shares::Shares;
use super::sharing::Sharing;
use super::tree::{Lookup, Roots};
use crate::name_text;

/// Directories in each other, at most; what is deeper counts for the last.
const DEPTH_MAX: usize = 1024;
/// Nodes that are kept.
const NODES_MAX: usize = 2000;

/// A path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PathNode {
    /// The node that it is in, by its place in the list; the first is the volume, and in itself.
    pub parent: usize,
    /// Its name there; of a subvolume the path from the top level.
    pub name: String,
    /// Bytes on disk that only this, or what is below it, holds.
    pub bytes: u64,
    /// Files among these.
    pub files: u64,
    /// Bytes of these that belong to files and directories which are not listed.
    pub rest: u64,
}

/// Paths, parents before children, the largest first.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Paths {
    /// The nodes.
    pub nodes: Vec<PathNode>,
    /// Files and directories that are not listed.
    pub left_out: u64,
}

impl Paths {
    /// The names from the subvolume down to a node.
    pub fn path(&self, mut at: usize) -> String {
        let mut names = Vec::new();
        while let Some(node) = self.nodes.get(at).filter(|_| at > 0) {
            names.push(node.name.as_str());
            at = node.parent;
        }
        names.reverse();
        names.join("/")
    }
}

/// A node while they are collected.
struct Node {
    parent: usize,
    name: Vec<u8>,
    bytes: u64,
    files: u64,
}

pub(super) fn read(
    inspector: &Inspector,
    roots: &Roots,
    sharing: &Sharing,
    shares: &Shares,
    notes: &mut Notes,
) -> Paths {
    let tracked = sharing.tracked();
    let mut files: HashMap<(TreeId, u64), u64> = HashMap::new();
    for extent in shares.extents().filter(|extent| extent.ino != 0 && extent.set.count() == 1) {
        let Some(tree) = extent.set.places().next().and_then(|place| tracked.get(place)) else { continue };
        let sum = files.entry((*tree, extent.ino)).or_default();
        *sum = sum.saturating_add(extent.len.saturating_mul(shares.one_in()));
    }
    let mut files: Vec<((TreeId, u64), u64)> = files.into_iter().collect();
    files.sort_unstable();
    let mut builder = Builder {
        lookup: Lookup::new(inspector),
        roots,
        nodes: vec![Node { parent: 0, name: Vec::new(), bytes: 0, files: 0 }],
        dirs: HashMap::new(),
        lost: 0,
    };
    for ((tree, ino), bytes) in files {
        builder.file(tree, ino, bytes);
    }
    notes.unread += builder.lookup.unread;
    if builder.lost > 0 {
        notes.push(format!("{} files have no path that can be read", builder.lost));
    }
    builder.finish()
}

struct Builder<'a> {
    lookup: Lookup<'a>,
    roots: &'a Roots,
    nodes: Vec<Node>,
    /// Nodes of directories.
    dirs: HashMap<(TreeId, u64), usize>,
    lost: u64,
}

impl Builder<'_> {
    fn file(&mut self, tree: TreeId, ino: u64, bytes: u64) {
        let (dir, name) = match self.name(tree, ino) {
            Some((dir, name)) => (self.dir(tree, dir), name),
            None => {
                self.lost += 1;
                (self.dir(tree, Ino::ROOT_DIR.0), format!("(inode {ino})").into_bytes())
            }
        };
        self.nodes.push(Node { parent: dir, name, bytes, files: 1 });
    }

    /// A name of an inode, and the directory that it is in.
    fn name(&mut self, tree: TreeId, ino: u64) -> Option<(u64, Vec<u8>)> {
        let start = self.roots.subvols.get(&tree)?.start;
        let (key, item) = self.lookup.first_from(&start, &Key::new(ino, ItemType::INODE_REF, 0))?;
        if key.objectid != ino {
            return None;
        }
        match key.item_type {
            ItemType::INODE_REF => {
                let name = InodeRefEntryRef::iter(&item).next()?.ok()?.name.to_vec();
                Some((key.offset, name))
            }
            ItemType::INODE_EXTREF => {
                let entry = InodeExtrefEntryRef::iter(&item).next()?.ok()?;
                Some((entry.parent.0, entry.name.to_vec()))
            }
            _ => None,
        }
    }

    /// The node of a directory, made with those above it.
    fn dir(&mut self, tree: TreeId, ino: u64) -> usize {
        let mut way: Vec<(u64, Vec<u8>)> = Vec::new();
        let mut at = ino;
        let mut node = loop {
            if let Some(known) = self.dirs.get(&(tree, at)) {
                break *known;
            }
            if at == Ino::ROOT_DIR.0 {
                break self.subvol(tree);
            }
            let in_circle = way.iter().any(|(seen, _)| *seen == at);
            match self.name(tree, at).filter(|_| !in_circle && way.len() < DEPTH_MAX) {
                Some((parent, name)) => {
                    way.push((at, name));
                    at = parent;
                }
                None => break self.subvol(tree),
            }
        };
        for (ino, name) in way.into_iter().rev() {
            self.nodes.push(Node { parent: node, name, bytes: 0, files: 0 });
            node = self.nodes.len() - 1;
            self.dirs.insert((tree, ino), node);
        }
        node
    }

    fn subvol(&mut self, tree: TreeId) -> usize {
        if let Some(known) = self.dirs.get(&(tree, Ino::ROOT_DIR.0)) {
            return *known;
        }
        let name = match self.roots.path(tree) {
            Some(path) if path.is_empty() => b"(top level)".to_vec(),
            Some(path) => path,
            None => format!("(subvolume {})", tree.0).into_bytes(),
        };
        self.nodes.push(Node { parent: 0, name, bytes: 0, files: 0 });
        self.dirs.insert((tree, Ino::ROOT_DIR.0), self.nodes.len() - 1);
        self.nodes.len() - 1
    }

    /// Sums up, and keeps the largest.
    fn finish(mut self) -> Paths {
        // Parents come before children.
        for at in (1..self.nodes.len()).rev() {
            let Node { parent, bytes, files, .. } = self.nodes[at];
            let parent = &mut self.nodes[parent];
            parent.bytes = parent.bytes.saturating_add(bytes);
            parent.files += files;
        }
        let mut children: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        for at in 1..self.nodes.len() {
            children[self.nodes[at].parent].push(at);
        }
        // The largest first; of equals the one that was found first.
        let mut due: BinaryHeap<(u64, std::cmp::Reverse<usize>, usize)> = BinaryHeap::new();
        due.push((self.nodes[0].bytes, std::cmp::Reverse(0), 0));
        let mut kept: Vec<PathNode> = Vec::new();
        while let Some((bytes, std::cmp::Reverse(at), parent)) = due.pop() {
            if kept.len() == NODES_MAX {
                break;
            }
            let node = &self.nodes[at];
            let place = kept.len();
            let rest = if children[at].is_empty() { 0 } else { bytes };
            kept.push(PathNode { parent, name: name_text(&node.name), bytes, files: node.files, rest });
            if place > 0 {
                kept[parent].rest = kept[parent].rest.saturating_sub(bytes);
            }
            due.extend(children[at].iter().map(|child| (self.nodes[*child].bytes, std::cmp::Reverse(*child), place)));
        }
        let left_out = (self.nodes.len() - kept.len()) as u64;
        Paths { nodes: kept, left_out }
    }
}
