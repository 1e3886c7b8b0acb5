//! Which blocks have to be written anew for others to move: the closure, found from below.
//!
//! Everything here only looks: whatever is wrong with the image comes out before anything has changed.

use std::sync::Arc;

use hashbrown::HashMap;
use oleo_format::{Corruption, Generation, HeaderFlags, Logical, TreeId};
use oleo_space::RefKey;
use oleo_tree::Node;
use rayon::prelude::*;

use super::data::Copied;
use crate::TxnError;
use crate::backrefs::{Above, Backrefs};
use crate::engine::Inner;
use crate::root_sets::{RootSet, RootSets};

/// Bytes of blocks written anew in one transaction, at most: more if the first to be moved alone has more above it.
const CLOSURE_BYTES_MAX: usize = 128 << 20;

/// Bytes of blocks that are read before the closure goes through them: enough batches for all cores, whatever the size of blocks.
const READ_AHEAD_BYTES: usize = 16 << 20;
/// Bytes of one batch: the device reads those that lie side by side in one call.
const READ_BATCH_BYTES: usize = 1 << 20;

/// Where a reference to a block comes from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Holder {
    /// The block is this tree's root.
    Root(TreeId),
    /// A block of the closure, by its index.
    Piece(usize),
}

impl Holder {
    /// The tree, if the block is its root.
    pub(super) fn root(self) -> Option<TreeId> {
        match self {
            Holder::Root(tree) => Some(tree),
            Holder::Piece(_) => None,
        }
    }
}

/// A block of the closure.
pub(super) struct Piece {
    pub(super) node: Arc<Node>,
    /// Who refers to it, and which block that is.
    pub(super) users: Vec<(RefKey, Holder)>,
    /// What it refers to is keyed by its address.
    pub(super) full: bool,
    /// It gets a new address: it is on disk, or to be moved.
    pub(super) moves: bool,
    /// What it refers to will be keyed by its new address, and its header says that it may be shared.
    pub(super) marked: bool,
    /// Its address from now on.
    pub(super) to: Logical,
    /// Its first children that it refers to no more: a deletion is on its way through it, and has taken them apart. What is at
    /// their addresses, if anything, is not what this block names.
    pub(super) gone: usize,
}

/// Blocks to be written anew: those to move, those that name data which moves, and all above them, each once.
#[derive(Default)]
pub(super) struct Closure<'d> {
    pub(super) pieces: Vec<Piece>,
    pub(super) index: HashMap<Logical, usize>,
    /// Data that moves, by its old address.
    pub(super) data: HashMap<Logical, &'d Copied>,
    /// Of data that simple quotas count: where it goes, and who wrote it.
    pub(super) owners: Vec<(Logical, TreeId)>,
    /// How many of the blocks to move are in here.
    pub(super) wanted: u64,
    /// Blocks to move that were read ahead and are not in here yet.
    ahead: HashMap<Logical, Arc<Node>>,
}

/// What is still to be looked at for one block: itself, or, when what is above it is known, its references.
enum Todo {
    Open(Logical, u8),
    Close(Arc<Node>, bool, Vec<(RefKey, Option<TreeId>, Logical)>),
}

fn corrupt(at: Logical, what: &'static str, have: impl ToString, want: impl ToString) -> TxnError {
    Corruption::new("backref", what, have.to_string(), want.to_string()).within(format!("extent {at}")).into()
}

impl<'d> Closure<'d> {
    /// The closure of as many of these blocks and data extents as are to be moved together, in their order.
    pub(super) fn of(
        inner: &Inner,
        generation: Generation,
        blocks: &[Logical],
        data: &'d [Copied],
    ) -> Result<Closure<'d>, TxnError> {
        let mut closure = Closure::default();
        let enough = |closure: &Closure<'_>| {
            !closure.pieces.is_empty() && closure.pieces.len() * inner.rules.nodesize as usize >= CLOSURE_BYTES_MAX
        };
        let mut refs = Backrefs::new(inner)?;
        for some in blocks.chunks(READ_AHEAD_BYTES / inner.rules.nodesize as usize) {
            if enough(&closure) {
                break;
            }
            let mut there = Vec::with_capacity(some.len());
            for at in some {
                // It may have gone since it was found.
                if refs.stored(*at)?.is_some() {
                    there.push(*at);
                }
            }
            closure.read_ahead(inner, &there);
            for at in there {
                if enough(&closure) {
                    break;
                }
                closure.add(&mut refs, at)?;
                closure.wanted += 1;
            }
        }
        closure.ahead = HashMap::new();
        for copied in data {
            if enough(&closure) {
                break;
            }
            let at = copied.from.start;
            let Some(stored) = refs.stored(at)?.filter(|stored| stored.len == copied.from.len.0) else { continue };
            let naming = refs.naming(at)?;
            let named: u64 = naming.iter().map(|naming| naming.items).sum();
            if named != stored.refs {
                return Err(corrupt(at, "items that name the data", named, stored.refs));
            }
            for naming in naming {
                closure.add(&mut refs, naming.leaf.logical())?;
            }
            if let (Some(owned), Some(owner)) = (inner.owned(), stored.owner)
                && owned.counts(stored.generation)
            {
                closure.owners.push((copied.to(), owner));
            }
            closure.data.insert(at, copied);
        }
        for at in blocks {
            if let Some(&index) = closure.index.get(at) {
                closure.pieces[index].moves = true;
            }
        }
        let open = |node: &Node| node.generation() == generation && inner.dirty.contains(node.logical());
        for piece in &mut closure.pieces {
            piece.moves |= !open(&piece.node);
        }
        closure.mark(inner)?;
        closure.find_gone(inner)?;
        Ok(closure)
    }

    /// Reads blocks that are to move, in batches on all cores. Those that cannot be read are read again, one by one, when
    /// their turn comes, which says what is wrong.
    fn read_ahead(&mut self, inner: &Inner, blocks: &[Logical]) {
        let missing: Vec<Logical> = blocks.iter().copied().filter(|at| !self.index.contains_key(at)).collect();
        let batch = READ_BATCH_BYTES / inner.rules.nodesize as usize;
        let read = missing.par_chunks(batch).map(|some| inner.blocks.at_many(some, &inner.dirty));
        let read: Vec<Vec<Arc<Node>>> = read.collect();
        self.ahead = read.into_iter().flatten().map(|node| (node.logical(), node)).collect();
    }

    /// Takes in a block and all above it.
    fn add(&mut self, refs: &mut Backrefs<'_>, at: Logical) -> Result<(), TxnError> {
        // Levels rise with each step, so that no more than eight blocks are open at a time.
        let mut todo = vec![Todo::Open(at, 0)];
        while let Some(next) = todo.pop() {
            match next {
                Todo::Open(at, level_min) => {
                    if self.index.contains_key(&at) {
                        continue;
                    }
                    let node = match self.ahead.remove(&at) {
                        Some(node) => node,
                        None => refs.read(at)?,
                    };
                    if node.level() < level_min {
                        return Err(corrupt(at, "level of a parent", node.level(), level_min));
                    }
                    let Some(stored) = refs.stored(at)? else {
                        return Err(corrupt(at, "extent item", "none", "one, since it is referred to"));
                    };
                    let mut users = Vec::new();
                    for user in refs.users(at)? {
                        let (root, above) = match user {
                            RefKey::TreeParent(parent) => (None, parent),
                            RefKey::TreeRoot(tree) => match refs.above_in(tree, &node)? {
                                Above::Root => (Some(tree), Logical(0)),
                                Above::Block(parent) => (None, parent.logical()),
                                Above::Nobody => return Err(corrupt(at, "block that refers to it", "none", tree)),
                            },
                            other => return Err(corrupt(at, "reference", format!("{other:?}"), "one of a tree block")),
                        };
                        users.push((user, root, above));
                    }
                    if users.is_empty() || users.len() as u64 != stored.refs {
                        return Err(corrupt(at, "references found", users.len(), stored.refs));
                    }
                    let above: Vec<Logical> = users.iter().filter(|u| u.1.is_none()).map(|u| u.2).collect();
                    let level = node.level() + 1;
                    todo.push(Todo::Close(node, stored.full_backref, users));
                    todo.extend(above.into_iter().map(|at| Todo::Open(at, level)));
                }
                Todo::Close(node, full, users) => {
                    let at = node.logical();
                    let users = users
                        .into_iter()
                        .map(|(key, root, above)| {
                            let holder = match root {
                                Some(tree) => Holder::Root(tree),
                                None => Holder::Piece(self.index[&above]),
                            };
                            (key, holder)
                        })
                        .collect();
                    self.index.entry(at).or_insert_with(|| {
                        self.pieces.push(Piece { node, users, full, moves: false, marked: false, to: at, gone: 0 });
                        self.pieces.len() - 1
                    });
                }
            }
        }
        Ok(())
    }

    /// The pieces that are roots, and of which trees.
    pub(super) fn roots(&self) -> Vec<(usize, TreeId)> {
        let mut roots = Vec::new();
        for (index, piece) in self.pieces.iter().enumerate() {
            roots.extend(piece.users.iter().filter_map(|(_, holder)| Some((index, holder.root()?))));
        }
        roots
    }

    /// Finds the blocks that deletions are on their way through: those from a dying tree's root to its progress, which nobody else
    /// reaches. What is before the progress has been dropped, though the blocks on the way still name it.
    fn find_gone(&mut self, inner: &Inner) -> Result<(), TxnError> {
        for (root, tree) in self.roots() {
            let Some(progress) = inner.tree(tree)?.drop_progress() else { continue };
            let mut next = Some(root);
            while let Some(piece) = next.map(|index| &mut self.pieces[index])
                && piece.node.level() >= progress.level.max(1)
                && !piece.node.is_empty()
            {
                let slot = piece.node.child_slot(&progress.key);
                piece.gone = slot;
                let on_the_way = piece.node.level() > progress.level;
                let child = piece.node.child(slot).logical;
                next = self.index.get(&child).copied().filter(|_| on_the_way);
            }
        }
        Ok(())
    }

    /// Decides which of those that move get the mark of relocated blocks: whatever others than its owner may reach, or what names
    /// what it refers to by its address. Roots are never shared.
    fn mark(&mut self, inner: &Inner) -> Result<(), TxnError> {
        let mut sets = RootSets::default();
        let mut reach = vec![RootSet::EMPTY; self.pieces.len()];
        let mut order: Vec<usize> = (0..self.pieces.len()).collect();
        order.sort_by_key(|&index| std::cmp::Reverse(self.pieces[index].node.level()));
        let mut last_snapshots: HashMap<TreeId, Option<Generation>> = HashMap::new();
        for index in order {
            let piece = &self.pieces[index];
            let (mut set, mut is_root) = (RootSet::EMPTY, false);
            for (_, holder) in &piece.users {
                set = match holder {
                    Holder::Root(tree) => {
                        is_root = true;
                        sets.with(set, *tree)
                    }
                    Holder::Piece(above) => sets.union(set, reach[*above]),
                };
            }
            reach[index] = set;
            let owner = piece.node.owner();
            let marked = if piece.full {
                true
            } else if is_root || !owner.is_shareable() {
                false
            } else {
                let last = match last_snapshots.get(&owner) {
                    Some(last) => *last,
                    None => {
                        let state = inner.trees.get(&inner.blocks, owner)?;
                        let last = state.and_then(|state| state.last_snapshot());
                        last_snapshots.insert(owner, last);
                        last
                    }
                };
                let newer = last.is_some_and(|last| piece.node.generation() > last);
                let alone = newer && !piece.node.flags().contains(HeaderFlags::RELOC);
                !alone && sets.trees(set).as_ref() != [owner]
            };
            self.pieces[index].marked = marked;
        }
        Ok(())
    }

    /// References to other extents that are recorded anew when the pieces move: a measure of what settling will have to do.
    pub(super) fn refs_recorded(&self) -> u64 {
        let of = |piece: &Piece| {
            let below = if piece.moves && piece.marked || piece.node.is_leaf() { piece.node.len() as u64 } else { 0 };
            2 * piece.users.len() as u64 + below
        };
        self.pieces.iter().map(of).sum()
    }
}
