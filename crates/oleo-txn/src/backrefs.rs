//! Resolving backrefs: which trees reach a block, and which leaves name a data extent.
//!
//! A block is referenced by blocks one level above, by address or by the tree that owns it, up to the roots of
//! trees; snapshots that share the block, or any block above it, are found on the way. The result for each block is
//! remembered, and equal sets of trees are kept once, so that 64 snapshots cost little more than one.
//!
//! Shortcut: a block younger than the last snapshot of the tree that owns it is that tree's alone, unless relocation moved
//! it (its flag shows that).
//!
//! The extent tree must be settled: between transactions, or at the end of settling one. Bounds: eight levels.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use hashbrown::HashMap;
use oleo_format::{
    CheckedNode, ChildPtr, Corruption, Generation, HeaderFlags, Ino, ItemType, Key, LEVELS_MAX, Logical, TreeId,
    compress, data_use,
};
use oleo_space::RefKey;
use oleo_tree::{Cursor, Node, TreeRoot};

use crate::TxnError;
use crate::engine::{Engine, Inner};
use crate::extents::{StoredExtent, stored_extent, stored_state, stored_users};
use crate::root_sets::{RootSet, RootSets};

/// What goes upwards, with what it found so far.
pub struct Backrefs<'e> {
    inner: &'e Inner,
    /// The sets that it returns.
    pub sets: RootSets,
    blocks: HashMap<Logical, RootSet>,
    /// Whether at least two trees reach a block; and the last block that was found to be the only parent of one, on each level.
    by_two: HashMap<Logical, bool>,
    only_parents: [Option<Arc<Node>>; LEVELS_MAX as usize],
    trees: HashMap<TreeId, Option<Tree<'e>>>,
    extents: Cursor<'e>,
}

struct Tree<'e> {
    root: TreeRoot,
    /// Younger blocks are the tree's alone.
    last_snapshot: Generation,
    /// Of a tree that is being taken apart: what is before this is gone, its blocks are others' by now.
    gone_before: Key,
    cursor: Cursor<'e>,
}

/// A leaf that names a data extent.
pub struct Naming {
    /// The leaf.
    pub leaf: Arc<Node>,
    /// How many of its items do.
    pub items: u64,
}

/// Where a block is referred to from.
pub(crate) enum Above {
    Root,
    Block(Arc<Node>),
    Nobody,
}

impl Engine {
    /// Goes upwards in the trees as the last commit left them. The caller keeps a [`Reader`](crate::Reader).
    pub fn backrefs(&self) -> Result<Backrefs<'_>, TxnError> {
        Backrefs::new(&self.0)
    }

    /// Who referred to the extent at `at` when the extent tree was last settled; empty if it is younger.
    pub fn extent_users(&self, at: Logical) -> Result<Vec<RefKey>, TxnError> {
        let _reader = self.reader();
        let root = self.root(TreeId::EXTENT)?.ok_or(TxnError::NoTree(TreeId::EXTENT))?;
        stored_users(&mut self.0.blocks.cursor(&root), at)
    }

    /// How many references the extent at `at` has: those on disk and in the ledger; changes that have not been frozen yet
    /// are not seen.
    pub fn extent_refs(&self, at: Logical) -> Result<u64, TxnError> {
        let root = self.root(TreeId::EXTENT)?.ok_or(TxnError::NoTree(TreeId::EXTENT))?;
        let mut cursor = self.0.blocks.cursor(&root);
        let stored = stored_state(&mut cursor, at)?.map_or(0, |(refs, _)| refs);
        let refs = i128::from(stored) + i128::from(self.0.ledger.pending(at).refs);
        u64::try_from(refs).map_err(|_| {
            Corruption::new("extent tree", "count", refs, "0 or more").within(format!("extent {at}")).into()
        })
    }
}

impl<'e> Backrefs<'e> {
    pub(crate) fn new(inner: &'e Inner) -> Result<Backrefs<'e>, TxnError> {
        let extents = inner.blocks.cursor(&inner.tree(TreeId::EXTENT)?.root);
        Ok(Backrefs {
            inner,
            sets: RootSets::default(),
            blocks: HashMap::new(),
            by_two: HashMap::new(),
            only_parents: Default::default(),
            trees: HashMap::new(),
            extents,
        })
    }

    /// What the extent tree says of an extent, if it is there.
    pub(crate) fn stored(&mut self, at: Logical) -> Result<Option<StoredExtent>, TxnError> {
        stored_extent(&mut self.extents, at)
    }

    /// Who refers to an extent.
    pub(crate) fn users(&mut self, at: Logical) -> Result<Vec<RefKey>, TxnError> {
        stored_users(&mut self.extents, at)
    }

    fn tree(&mut self, tree: TreeId) -> Result<Option<&mut Tree<'e>>, TxnError> {
        if !self.trees.contains_key(&tree) {
            let inner = self.inner;
            let found = inner.trees.get(&inner.blocks, tree)?.map(|state| Tree {
                cursor: inner.blocks.cursor(&state.root),
                last_snapshot: state.last_snapshot().unwrap_or(Generation(u64::MAX)),
                gone_before: state.item.as_ref().map_or(Key::MIN, |item| Key::from(item.drop_progress)),
                root: state.root,
            });
            self.trees.insert(tree, found);
        }
        Ok(self.trees.get_mut(&tree).and_then(Option::as_mut))
    }

    /// Whether a block can only be its owner's: where it is reached at all.
    pub(crate) fn is_sole(&mut self, node: &CheckedNode) -> Result<bool, TxnError> {
        if node.flags().contains(HeaderFlags::RELOC) {
            return Ok(false);
        }
        Ok(self.tree(node.owner())?.is_some_and(|tree| node.generation() > tree.last_snapshot))
    }

    /// The subvolumes from whose roots a block is reached; none if nothing refers to it any more.
    pub fn of_block(&mut self, node: &CheckedNode) -> Result<RootSet, TxnError> {
        let at = node.logical();
        if let Some(known) = self.blocks.get(&at) {
            return Ok(*known);
        }
        let mut found = Vec::new();
        if self.is_sole(node)? && self.stored(at)?.is_some() {
            found.push(self.sets.one(node.owner()));
        } else {
            for user in self.users(at)? {
                let above = match user {
                    RefKey::TreeRoot(tree) => match self.above_in(tree, node)? {
                        Above::Root => {
                            found.push(self.sets.one(tree));
                            continue;
                        }
                        above => above,
                    },
                    RefKey::TreeParent(parent) => Above::Block(self.read(parent)?),
                    RefKey::DataRoot { .. } | RefKey::DataParent(_) => Above::Nobody,
                };
                let Above::Block(parent) = above else { continue };
                // Levels rise, so that this ends whatever the image says.
                if parent.level() != node.level() + 1 {
                    return Err(Corruption::new("backref", "level of the parent", parent.level(), node.level() + 1)
                        .within(format!("block {}, parent {}", node.logical(), parent.logical()))
                        .into());
                }
                found.push(self.of_block(&parent)?);
            }
        }
        let set = self.sets.union_of(&found);
        self.blocks.insert(at, set);
        Ok(set)
    }

    /// Whether at least two trees reach a block. Each parent is reached by trees of its own, so two parents are enough, of the block or of
    /// any above it as long as there is one: cheaper than to find out which trees.
    pub(crate) fn is_reached_by_two(&mut self, block: &ChildPtr, level: u8) -> Result<bool, TxnError> {
        let at = block.logical;
        if let Some(known) = self.by_two.get(&at) {
            return Ok(*known);
        }
        let by_two = match self.stored(at)?.map_or(0, |stored| stored.refs) {
            0 => false,
            1 => match self.only_parent(block, level)? {
                // Levels rise, so that this ends whatever the image says.
                Some(parent) if parent.level() == level + 1 && !parent.is_empty() => {
                    let (key, logical, generation) = (parent.key(0), parent.logical(), parent.generation());
                    self.is_reached_by_two(&ChildPtr { key, logical, generation }, parent.level())?
                }
                _ => false,
            },
            2.. => true,
        };
        self.by_two.insert(at, by_two);
        Ok(by_two)
    }

    /// The block above one that has a single reference; `None` above roots. Neighbours have the same, as a rule.
    fn only_parent(&mut self, block: &ChildPtr, level: u8) -> Result<Option<Arc<Node>>, TxnError> {
        let last = self.only_parents.get(usize::from(level)).and_then(Option::as_ref);
        if let Some(parent) = last.filter(|parent| parent.child(parent.child_slot(&block.key)).logical == block.logical)
        {
            return Ok(Some(parent.clone()));
        }
        for user in self.users(block.logical)? {
            let parent = match user {
                RefKey::TreeParent(parent) => self.read(parent)?,
                RefKey::TreeRoot(tree) => match self.above_place(tree, block.logical, Some(block.key), level)? {
                    Above::Block(parent) => parent,
                    Above::Root | Above::Nobody => continue,
                },
                RefKey::DataRoot { .. } | RefKey::DataParent(_) => continue,
            };
            if let Some(last) = self.only_parents.get_mut(usize::from(level))
                && !parent.is_leaf()
                && !parent.is_empty()
            {
                *last = Some(parent.clone());
            }
            return Ok(Some(parent));
        }
        Ok(None)
    }

    /// What refers to a block in a tree by the tree's name.
    pub(crate) fn above_in(&mut self, tree: TreeId, node: &CheckedNode) -> Result<Above, TxnError> {
        let key = (!node.is_empty()).then(|| node.key(0));
        self.above_place(tree, node.logical(), key, node.level())
    }

    /// The same for a block of which the place is known; without a key it has nothing in it.
    fn above_place(&mut self, tree: TreeId, at: Logical, key: Option<Key>, level: u8) -> Result<Above, TxnError> {
        let Some(tree) = self.tree(tree)? else { return Ok(Above::Nobody) };
        if tree.root.logical == at {
            return Ok(Above::Root);
        }
        let Some(key) = key else { return Ok(Above::Nobody) };
        // Of a tree that is being taken apart, what is left of a block on the way to the place.
        let above = tree.cursor.seek_level(&key.max(tree.gone_before), level + 1)?;
        let refers = |above: &Arc<Node>| (0..above.len()).any(|slot| above.child(slot).logical == at);
        Ok(above.filter(refers).map_or(Above::Nobody, Above::Block))
    }

    /// The subvolume that alone names a data extent, if that is known without looking at its leaves: all references are by
    /// its name, and the extent is younger than its last snapshot, so that no leaf that names it is shared.
    pub(crate) fn sole_user(&mut self, at: Logical, stored: &StoredExtent) -> Result<Option<TreeId>, TxnError> {
        let mut sole = None;
        for user in self.users(at)? {
            match user {
                RefKey::DataRoot { root, .. } if sole.is_none_or(|tree| tree == root) => sole = Some(root),
                _ => return Ok(None),
            }
        }
        let Some(tree) = sole else { return Ok(None) };
        Ok(self.tree(tree)?.is_some_and(|t| stored.generation > t.last_snapshot).then_some(tree))
    }

    /// The leaves that name a data extent, each once.
    pub fn naming(&mut self, extent: Logical) -> Result<Vec<Naming>, TxnError> {
        let mut leaves: BTreeMap<Logical, Arc<Node>> = BTreeMap::new();
        let Some(stored) = self.stored(extent)? else { return Ok(Vec::new()) };
        // It represents as many bytes of a file as it has, or, compressed, for a few more.
        let span = stored.len.max(compress::EXTENT_LEN_MAX as u64);
        for user in self.users(extent)? {
            match user {
                RefKey::DataParent(leaf) => {
                    leaves.insert(leaf, self.read(leaf)?);
                }
                RefKey::DataRoot { root, ino, offset } => self.search(root, ino, offset, span, extent, &mut leaves)?,
                RefKey::TreeRoot(_) | RefKey::TreeParent(_) => {}
            }
        }
        let items = |leaf: &Node| {
            leaf.iter().filter(|(key, item)| data_use(key, item).is_some_and(|u| u.extent == extent)).count()
        };
        Ok(leaves.into_values().map(|leaf| Naming { items: items(&leaf) as u64, leaf }).collect())
    }

    /// Shows `visit` where files name a data extent: the file's number, and where in the file the extent would begin (below zero,
    /// wrapped, if it would begin before the file). `visit` gets a place for each reference, until it breaks off, but not the trees
    /// that the place is in; it need not be in the tree that the reference names. It gets nothing of an extent that
    /// was made after `not_after`, which no tree that old can name. (A file's own item does not say when: splitting and cloning
    /// make it younger.)
    pub fn places<E: From<TxnError>>(
        &mut self,
        extent: Logical,
        not_after: Generation,
        mut visit: impl FnMut(Ino, u64) -> Result<ControlFlow<()>, E>,
    ) -> Result<(), E> {
        if self.stored(extent)?.is_none_or(|stored| stored.generation > not_after) {
            return Ok(());
        }
        for user in self.users(extent)? {
            match user {
                RefKey::DataRoot { ino, offset, .. } => {
                    if visit(ino, offset)?.is_break() {
                        return Ok(());
                    }
                }
                RefKey::DataParent(leaf) => {
                    for (key, item) in self.read(leaf)?.iter() {
                        if let Some(found) = data_use(&key, item).filter(|found| found.extent == extent)
                            && visit(found.ino, found.offset)?.is_break()
                        {
                            return Ok(());
                        }
                    }
                }
                RefKey::TreeRoot(_) | RefKey::TreeParent(_) => {}
            }
        }
        Ok(())
    }

    /// The leaves of one file of a tree that name an extent.
    fn search(
        &mut self,
        tree: TreeId,
        ino: Ino,
        offset: u64,
        span: u64,
        extent: Logical,
        leaves: &mut BTreeMap<Logical, Arc<Node>>,
    ) -> Result<(), TxnError> {
        let Some(tree) = self.tree(tree)? else { return Ok(()) };
        // A part may begin before the file does: its offset is negative then.
        let from = if offset as i64 >= 0 { offset } else { 0 };
        // Wraps if the offset is below zero.
        let end = offset.wrapping_add(span);
        let cursor = &mut tree.cursor;
        let first = Key::new(ino.0, ItemType::EXTENT_DATA, from).max(tree.gone_before);
        let mut there = cursor.seek(&first)?;
        while there && let Some((key, item)) = cursor.current() {
            if key >= Key::new(ino.0, ItemType::EXTENT_DATA, end) {
                break;
            }
            if data_use(&key, item).is_some_and(|u| u.extent == extent && u.offset == offset)
                && let Some(leaf) = cursor.path().last()
            {
                leaves.entry(leaf.logical()).or_insert_with(|| leaf.clone());
            }
            there = cursor.next()?;
        }
        Ok(())
    }

    pub(crate) fn read(&self, at: Logical) -> Result<Arc<Node>, TxnError> {
        Ok(self.inner.blocks.at(at, &self.inner.dirty)?)
    }
}
