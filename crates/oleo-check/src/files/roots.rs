//! The root tree: which subvolumes there are, how they are nested, which are being deleted.
//!
//! The place of a subvolume is recorded four times: ROOT_REF (parent to child) and ROOT_BACKREF (child to parent) in
//! the root tree, and two entries in a directory of the parent, which [`second_pass`](super::second_pass) compares with
//! each other. A snapshot copies entries but not references: an entry without a ROOT_REF is an empty directory and
//! sound.
//!
//! Memory: about a kilobyte per subvolume.

use std::collections::{BTreeMap, BTreeSet};

use oleo_format::{DirEntry, FreeSpaceHeader, Ino, ItemType, Key, RootItem, RootRefEntry, TreeId};

use super::Context;
use crate::finding::Kind;

/// What is at an index of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Entry {
    Is(DirEntry),
    Nothing,
    /// Its block cannot be read.
    Unknown,
}

/// What the root tree holds.
#[derive(Default, Debug)]
pub(super) struct Roots {
    /// Trees of files by number, with the offset of the root item's key.
    pub trees: BTreeMap<TreeId, (u64, RootItem)>,
    /// (parent, child).
    refs: BTreeMap<(TreeId, TreeId), RootRefEntry>,
    /// (parent, child).
    backrefs: BTreeMap<(TreeId, TreeId), RootRefEntry>,
    orphans: BTreeSet<u64>,
    /// Files that hold caches of free space.
    inodes: BTreeSet<u64>,
    caches: Vec<(Key, Key)>,
    default: Option<(Key, DirEntry)>,
}

/// The name of the entry that leads to the default subvolume.
const DEFAULT: &[u8] = b"default";

impl Roots {
    /// Takes the next item of the root tree.
    pub(super) fn item(&mut self, key: &Key, data: &[u8]) {
        let tree = TreeId(key.objectid);
        match key.item_type {
            ItemType::ROOT_ITEM if tree.is_subvol() => {
                if let Ok(root) = RootItem::decode(data) {
                    self.trees.insert(tree, (key.offset, root));
                }
            }
            ItemType::ROOT_REF => {
                if let Ok(entry) = RootRefEntry::parse(data) {
                    self.refs.insert((tree, TreeId(key.offset)), entry);
                }
            }
            ItemType::ROOT_BACKREF => {
                if let Ok(entry) = RootRefEntry::parse(data) {
                    self.backrefs.insert((TreeId(key.offset), tree), entry);
                }
            }
            ItemType::ORPHAN_ITEM if key.objectid == Key::ORPHAN => {
                self.orphans.insert(key.offset);
            }
            ItemType::INODE_ITEM => {
                self.inodes.insert(key.objectid);
            }
            ItemType(0) if key.objectid == Key::FREE_SPACE => {
                if let Ok(header) = FreeSpaceHeader::parse(data) {
                    self.caches.push((*key, header.location.into()));
                }
            }
            ItemType::DIR_ITEM if tree == TreeId::ROOT_DIR => {
                let entries = DirEntry::parse_all(data).unwrap_or_default();
                if let Some(entry) = entries.into_iter().find(|e| e.name == DEFAULT) {
                    self.default = Some((*key, entry));
                }
            }
            _ => {}
        }
    }

    /// Whether this subvolume exists and is not deleted.
    pub(super) fn is_live(&self, tree: TreeId) -> bool {
        self.trees.get(&tree).is_some_and(|(_, root)| root.refs.get() > 0)
    }

    /// Checks the root tree after all its items. `entry` looks up an index of a directory of a tree.
    pub(super) fn check(&self, c: &Context<'_>, entry: &mut dyn FnMut(TreeId, Ino, u64) -> Entry) {
        self.check_refs(c, entry);
        self.check_trees(c);
        self.check_rings(c);
        self.check_orphans(c);
        self.check_default(c);
        for (key, location) in &self.caches {
            if !self.inodes.contains(&location.objectid) {
                c.warning(Kind::SpaceCache, *key, format_args!("a cache in {location}"), "an existing inode");
            }
        }
    }

    fn check_refs(&self, c: &Context<'_>, entry: &mut dyn FnMut(TreeId, Ino, u64) -> Entry) {
        for (&(parent, child), want) in &self.refs {
            let key = Key::root_ref(parent, child);
            if !self.trees.contains_key(&parent) || !self.trees.contains_key(&child) {
                c.error(Kind::RootRefDangling, key, "a reference", "two subvolumes that are there");
                continue;
            }
            match self.backrefs.get(&(parent, child)) {
                Some(have) if have == want => {}
                have => {
                    let have = have.map_or_else(|| "nothing".to_owned(), show);
                    c.error(Kind::RootBackref, Key::root_backref(child, parent), have, show(want));
                }
            }
            if !self.is_live(parent) {
                continue;
            }
            match entry(parent, want.dirid, want.sequence) {
                Entry::Unknown => {}
                Entry::Is(e)
                    if e.name == want.name
                        && e.location.item_type == ItemType::ROOT_ITEM
                        && e.location.objectid == child.0 => {}
                other => {
                    let have = match other {
                        Entry::Is(e) => format!("`{}` to {}", e.name.escape_ascii(), e.location),
                        _ => "nothing".to_owned(),
                    };
                    let want = format_args!("`{}` to subvolume {child}", want.name.escape_ascii()).to_string();
                    c.error(Kind::RootEntry, key, have, want);
                }
            }
        }
        for (&(parent, child), have) in &self.backrefs {
            if !self.refs.contains_key(&(parent, child)) {
                let key = Key::root_ref(parent, child);
                c.error(Kind::RootRef, key, "nothing", format_args!("{}, as the child says", show(have)));
            }
        }
    }

    fn check_trees(&self, c: &Context<'_>) {
        let placed: BTreeSet<TreeId> = self.refs.keys().chain(self.backrefs.keys()).map(|&(_, child)| child).collect();
        for (&tree, (offset, root)) in &self.trees {
            let key = Key::new(tree.0, ItemType::ROOT_ITEM, *offset);
            if root.root_dirid.get() != Ino::ROOT_DIR.0 {
                c.error(Kind::RootDirid, key, root.root_dirid, Ino::ROOT_DIR);
            }
            if root.refs.get() == 0 {
                if tree == TreeId::FS {
                    c.error(Kind::RootUnreachable, key, "refs 0", "the top level is never deleted");
                } else if !self.orphans.contains(&tree.0) {
                    c.error(Kind::RootOrphanMissing, key, "refs 0 and no orphan item", "an orphan item");
                }
            } else if tree != TreeId::FS && !placed.contains(&tree) {
                c.error(Kind::RootUnreachable, key, "in no directory", "a reference from another subvolume");
            }
        }
    }

    /// Follows every subvolume upwards, each once.
    fn check_rings(&self, c: &Context<'_>) {
        let parents: BTreeMap<TreeId, TreeId> = self.backrefs.keys().map(|&(parent, child)| (child, parent)).collect();
        let mut seen: BTreeMap<TreeId, TreeId> = BTreeMap::new();
        for &first in parents.keys() {
            let mut at = first;
            while let Some(&parent) = parents.get(&at) {
                if let Some(&by) = seen.get(&at) {
                    if by == first {
                        let key = Key::root_backref(at, parent);
                        c.error(Kind::RootRing, key, "a subvolume inside itself", "one below the top level");
                    }
                    break;
                }
                seen.insert(at, first);
                at = parent;
            }
        }
    }

    fn check_orphans(&self, c: &Context<'_>) {
        for &number in &self.orphans {
            let is_root = self.trees.get(&TreeId(number)).is_some_and(|(_, root)| root.refs.get() == 0);
            // Files of free-space caches may be orphans, too.
            if !is_root && !self.inodes.contains(&number) {
                c.warning(Kind::RootOrphanStale, Key::orphan(number), "an orphan", "a deleted subvolume");
            }
        }
    }

    fn check_default(&self, c: &Context<'_>) {
        let Some((key, entry)) = &self.default else { return };
        let to = entry.location;
        if to.item_type != ItemType::ROOT_ITEM || !self.is_live(TreeId(to.objectid)) {
            c.error(Kind::DefaultSubvol, *key, to, "an existing subvolume");
        }
    }
}

fn show(entry: &RootRefEntry) -> String {
    format!("`{}` in directory {} at index {}", entry.name.escape_ascii(), entry.dirid, entry.sequence)
}
