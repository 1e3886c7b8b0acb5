//! Reading trees past what is damaged: which there are, all their leaves, single items.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use oleo::inspect::{Inspector, TreeStart};
use oleo::layers::format::{
    CheckedNode, Ino, ItemType, Key, LEVELS_MAX, Logical, NodeExpect, RootFlags, RootItem, RootRefEntry, TreeId,
};

use super::error::MapError;
use super::notes::Notes;

/// Leaves that are read together.
const BATCH_BLOCKS: usize = 256;
/// Subvolumes that are known by name; more are counted.
const ROOTS_MAX: usize = 1 << 17;
/// Tree blocks that [`Lookup`] keeps.
const KEPT_BLOCKS: usize = 1024;

/// How far the deletion of a subvolume has come: everything before the key is gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dropped {
    pub key: Key,
    /// The level of the node in which the key is.
    pub level: u8,
}

/// The root of a subvolume.
#[derive(Clone, Debug)]
pub(super) struct Root {
    pub start: TreeStart,
    pub read_only: bool,
    /// Nobody sees it any more.
    pub deleted: bool,
    pub dropped: Option<Dropped>,
    pub uuid: [u8; 16],
    pub parent_uuid: [u8; 16],
    /// The transaction that made it, and when: seconds since 1970.
    pub made: (u64, i64),
    /// The subvolume and directory that it is in, and its name there.
    pub place: Option<(TreeId, Ino, Vec<u8>)>,
}

/// The trees of a volume.
#[derive(Debug)]
pub(super) struct Roots {
    /// Subvolumes by number.
    pub subvols: BTreeMap<TreeId, Root>,
    /// The extent trees.
    pub extents: Vec<TreeStart>,
    /// The tree of block groups, if there is one.
    pub groups: Option<TreeStart>,
}

impl Roots {
    pub fn read(inspector: &Inspector, notes: &mut Notes) -> Result<Roots, MapError> {
        let sb = inspector.volume().super_block();
        let top = NodeExpect {
            generation: Some(sb.generation()),
            level: Some(sb.root_level),
            ..NodeExpect::at(Logical(sb.root.get()))
        };
        let mut roots = Roots { subvols: BTreeMap::new(), extents: Vec::new(), groups: None };
        let mut places: BTreeMap<TreeId, (TreeId, Ino, Vec<u8>)> = BTreeMap::new();
        let mut left_out = 0;
        let mut leaves = Leaves::new(inspector);
        leaves.each(top, |_, leaf| {
            for (key, item) in leaf.iter() {
                let tree = TreeId(key.objectid);
                match key.item_type {
                    ItemType::ROOT_ITEM => {
                        let Ok(item) = RootItem::decode(item) else { continue };
                        let start = TreeStart {
                            tree,
                            key: Some(key),
                            root: Logical(item.bytenr.get()),
                            generation: oleo::format::Generation(item.generation.get()),
                            level: item.level,
                        };
                        match tree {
                            TreeId::EXTENT => roots.extents.push(start),
                            TreeId::BLOCK_GROUP => roots.groups = Some(start),
                            _ if !tree.is_subvol() => {}
                            _ if roots.subvols.len() >= ROOTS_MAX => left_out += 1,
                            _ => _ = roots.subvols.insert(tree, root_of(start, &item)),
                        }
                    }
                    ItemType::ROOT_BACKREF if places.len() < ROOTS_MAX => {
                        if let Ok(place) = RootRefEntry::parse(item) {
                            places.insert(tree, (TreeId(key.offset), place.dirid, place.name));
                        }
                    }
                    _ => {}
                }
            }
        });
        if roots.subvols.is_empty()
            && roots.extents.is_empty()
            && let Some(error) = leaves.first_error.take()
        {
            return Err(error.into());
        }
        leaves.note("the root tree", notes);
        if left_out > 0 {
            notes.push(format!("{left_out} subvolumes are left out: there are more than {ROOTS_MAX}"));
        }
        for (id, root) in &mut roots.subvols {
            root.place = places.remove(id);
        }
        Ok(roots)
    }

    /// The path of a subvolume from the top level; `None` if it has none.
    pub fn path(&self, id: TreeId) -> Option<Vec<u8>> {
        /// Subvolumes in each other, at most.
        const DEPTH_MAX: usize = 256;
        let mut parts: Vec<&[u8]> = Vec::new();
        let mut at = id;
        while at != TreeId::FS {
            let (parent, _, name) = self.subvols.get(&at)?.place.as_ref()?;
            parts.push(name);
            at = *parent;
            if parts.len() > DEPTH_MAX {
                return None;
            }
        }
        parts.reverse();
        Some(parts.join(&b'/'))
    }
}

fn root_of(start: TreeStart, item: &RootItem) -> Root {
    let deleted = item.refs.get() == 0;
    let dropped =
        (deleted && item.drop_level > 0).then(|| Dropped { key: item.drop_progress.into(), level: item.drop_level });
    Root {
        start,
        read_only: item.root_flags().contains(RootFlags::SUBVOL_RDONLY),
        deleted,
        dropped,
        uuid: item.uuid,
        parent_uuid: item.parent_uuid,
        made: (item.otransid.get(), item.otime.sec.get().cast_signed()),
        place: None,
    }
}

/// A walk over the leaves of trees, past what cannot be read.
pub(super) struct Leaves<'a> {
    inspector: &'a Inspector,
    /// Blocks that could not be read.
    pub unread: u64,
    pub first_error: Option<oleo::Error>,
}

impl<'a> Leaves<'a> {
    pub fn new(inspector: &'a Inspector) -> Leaves<'a> {
        Leaves { inspector, unread: 0, first_error: None }
    }

    /// Calls `each` for every leaf of a tree, in the order of keys, with the number of blocks above the leaves that were read so far.
    pub fn each(&mut self, root: NodeExpect, mut each: impl FnMut(u64, &CheckedNode)) {
        // Levels fall with every step down, so that the stack holds at most the children of one block per level.
        let mut stack = vec![root];
        let mut inner = 0;
        while let Some(expect) = stack.pop() {
            let Some(node) = self.block(&expect) else { continue };
            if node.is_leaf() {
                each(inner, &node);
                continue;
            }
            inner += 1;
            let children: Vec<NodeExpect> =
                (0..node.len()).map(|slot| NodeExpect::child(&node.child(slot), node.level())).collect();
            if node.level() > 1 {
                stack.extend(children.into_iter().rev());
                continue;
            }
            for batch in children.chunks(BATCH_BLOCKS) {
                for leaf in self.blocks(batch).into_iter().flatten() {
                    each(inner, &leaf);
                }
            }
        }
    }

    pub fn block(&mut self, expect: &NodeExpect) -> Option<CheckedNode> {
        self.blocks(std::slice::from_ref(expect)).pop().flatten()
    }

    pub fn blocks(&mut self, expects: &[NodeExpect]) -> Vec<Option<CheckedNode>> {
        let read = self.inspector.volume().read_blocks(expects);
        let mut count = |error: oleo::volume::VolumeError| {
            self.unread += 1;
            self.first_error.get_or_insert_with(|| error.into());
        };
        read.into_iter().map(|node| node.map_err(&mut count).ok()).collect()
    }

    /// Says so if something could not be read.
    pub fn note(&self, what: &str, notes: &mut Notes) {
        notes.unread += self.unread;
        if self.unread > 0 {
            notes.push(format!("{} blocks of {what} cannot be read: what is below them is missing", self.unread));
        }
    }
}

/// Single items of a tree.
pub(super) struct Lookup<'a> {
    inspector: &'a Inspector,
    kept: HashMap<Logical, Rc<CheckedNode>>,
    /// How often a block could not be read.
    pub unread: u64,
}

impl<'a> Lookup<'a> {
    pub fn new(inspector: &'a Inspector) -> Lookup<'a> {
        Lookup { inspector, kept: HashMap::new(), unread: 0 }
    }

    /// The first item from a key on, if it is in the same leaf as the key or would be, or begins the next; nothing if the way there cannot be read.
    pub fn first_from(&mut self, tree: &TreeStart, key: &Key) -> Option<(Key, Vec<u8>)> {
        let mut expect = tree.expect();
        // Where the next leaf begins, for keys behind the last item of theirs.
        let mut next: Option<NodeExpect> = None;
        for _ in 0..LEVELS_MAX {
            let node = self.block(&expect)?;
            if node.is_leaf() {
                let slot = node.search(key).unwrap_or_else(|slot| slot);
                if slot < node.len() {
                    return Some((node.key(slot), node.item(slot).to_vec()));
                }
                return self.leftmost(next?);
            }
            let slot = node.child_slot(key);
            if slot + 1 < node.len() {
                next = Some(NodeExpect::child(&node.child(slot + 1), node.level()));
            }
            expect = NodeExpect::child(&node.child(slot), node.level());
        }
        None
    }

    fn leftmost(&mut self, mut expect: NodeExpect) -> Option<(Key, Vec<u8>)> {
        for _ in 0..LEVELS_MAX {
            let node = self.block(&expect)?;
            if node.is_empty() {
                return None;
            }
            if node.is_leaf() {
                return Some((node.key(0), node.item(0).to_vec()));
            }
            expect = NodeExpect::child(&node.child(0), node.level());
        }
        None
    }

    fn block(&mut self, expect: &NodeExpect) -> Option<Rc<CheckedNode>> {
        if let Some(node) = self.kept.get(&expect.logical)
            && expect.generation.is_none_or(|generation| generation == node.generation())
        {
            return Some(node.clone());
        }
        let Ok(node) = self.inspector.volume().read_block(expect) else {
            self.unread += 1;
            return None;
        };
        let node = Rc::new(node);
        if self.kept.len() >= KEPT_BLOCKS {
            self.kept.clear();
        }
        self.kept.insert(expect.logical, node.clone());
        Some(node)
    }
}
