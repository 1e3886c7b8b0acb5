//! The closure written anew, and what the ledger records of it.
//!
//! A block that moves takes its references along: each user drops the old address and takes the new one. What a moved block
//! refers to is recorded only if it is keyed by the block's address, or becomes so: a block that others may reach is converted
//! to full backrefs as it moves, since its new generation would say that it is its tree's alone, and readers of the format
//! (`btrfs check`) expect just that of a block with the flag.

use std::sync::Arc;

use oleo_format::{ByteLen, Generation, Key, Logical, TreeId, data_use};
use oleo_space::{ExtentKind, Kind, RefChange, RefKey, Reservation};
use oleo_tree::{Node, Rewrite, TreeRoot};
use rayon::prelude::*;

use super::Moved;
use super::plan::{Closure, Holder, Piece};
use crate::TxnError;
use crate::engine::Inner;
use crate::trees::TreeState;

/// Bytes of new references in items, each: an inline one has 9 or 29, an item of its own 29 more for its head, twice for
/// leaves that split.
const BYTES_PER_REF: u64 = 96;
/// Checksums go into new leaves, which may be half full, and leave others, which are written anew.
const SUMS_FACTOR: u64 = 4;
/// Blocks that any transaction needs: paths of the bookkeeping trees.
const BASE_BLOCKS: u64 = 64;

fn kind_of(node: &Node) -> ExtentKind {
    ExtentKind::Tree { level: node.level(), first_key: if node.is_empty() { Key::MIN } else { node.key(0) } }
}

fn space_of(owner: TreeId) -> Kind {
    if owner == TreeId::CHUNK { Kind::System } else { Kind::Metadata }
}

impl Closure<'_> {
    /// Promises what moving needs, so that the commit cannot meet a full disk; `None` if there is not that much.
    pub(super) fn reserve(&self, inner: &Inner) -> Result<Option<Reservation>, TxnError> {
        let node = u64::from(inner.rules.nodesize);
        let moving = self.pieces.iter().filter(|piece| piece.moves && space_of(piece.node.owner()) == Kind::Metadata);
        let blocks = moving.count() as u64;
        let reported = self.refs_recorded();
        let mut bookkeeping = 0;
        let trees = [TreeId::EXTENT, TreeId::FREE_SPACE, TreeId::BLOCK_GROUP, TreeId::CSUM, TreeId::ROOT, TreeId::DEV];
        for tree in trees {
            if let Some(item) = inner.trees.get(&inner.blocks, tree)?.and_then(|state| state.item) {
                bookkeeping += item.bytes_used.get();
            }
        }
        let touched = (reported * 2 * node).min(bookkeeping);
        let data: u64 = self.data.values().map(|copied| copied.from.len.0).sum();
        let sums = data / inner.layout.sectorsize * inner.layout.csum_len;
        // The transaction has its bookkeeping trees reserved already.
        let held = inner.metadata_reserve.frozen().map_or(0, |frozen| frozen.left().0);
        let rewritten = (touched + BASE_BLOCKS * node).saturating_sub(held);
        let need = blocks * node + rewritten + reported * BYTES_PER_REF + sums * SUMS_FACTOR;
        inner.reserve_growing(Kind::Metadata, ByteLen(need))
    }

    /// Writes all of it anew. From here on memory and disk part.
    pub(super) fn apply(
        mut self,
        inner: &Inner,
        generation: Generation,
        hold: &Reservation,
    ) -> Result<Moved, TxnError> {
        self.give_addresses(inner, hold)?;
        for copied in self.data.values() {
            let (at, len) = (copied.to(), copied.from.len);
            inner.ledger.record_new_extent(at, len, ExtentKind::Data);
        }
        inner.quota.owners.note(self.owners.iter().copied());
        let sums = self.csums(inner)?;
        inner.csums.show(inner.layout, &sums);
        let mut changes: Vec<RefChange> = self
            .pieces
            .par_iter()
            .flat_map_iter(|piece| {
                let mut changes = Vec::new();
                self.record_refs(piece, &mut changes);
                changes
            })
            .collect();
        let block_len = ByteLen(u64::from(inner.rules.nodesize));
        for piece in self.pieces.iter().filter(|piece| piece.moves) {
            inner.ledger.record_new_extent(piece.to, block_len, kind_of(&piece.node));
            if piece.marked {
                inner.ledger.set_full_backref(piece.to, block_len, kind_of(&piece.node));
            }
        }
        inner.ledger.record_batch(&mut changes);
        drop(changes);
        let rewritten = self.pieces.len() as u64;
        let roots = self.roots();
        let built = self.build(inner, generation);
        inner.dirty.add_rewritten(built.iter().cloned());
        for (index, tree) in roots {
            let state = inner.tree(tree)?;
            let root = TreeRoot::rewritten(tree, built[index].clone());
            inner.trees.set(TreeState { root, changed: true, ..state });
        }
        // Only now: blocks of this tree may have moved, too.
        let root = inner.tree(TreeId::CSUM)?.root;
        let batch = inner.csums.insert_all(inner.layout, &inner.blocks, &root, &sums)?;
        inner.apply(TreeId::CSUM, &batch, generation)?;
        let bytes = self.data.values().map(|copied| copied.from.len.0).sum();
        Ok(Moved { blocks: self.wanted, rewritten, extents: self.data.len() as u64, bytes })
    }

    /// New addresses, those of one tree and level in the order of keys.
    fn give_addresses(&mut self, inner: &Inner, hold: &Reservation) -> Result<(), TxnError> {
        for kind in [Kind::Metadata, Kind::System] {
            let mut moving: Vec<usize> = (0..self.pieces.len())
                .filter(|&i| self.pieces[i].moves && space_of(self.pieces[i].node.owner()) == kind)
                .collect();
            moving.sort_by_cached_key(|&i| {
                let node = &self.pieces[i].node;
                (node.level(), node.owner(), if node.is_empty() { Key::MIN } else { node.key(0) }, node.logical())
            });
            let mut addresses = Vec::with_capacity(moving.len());
            let hold = (kind == Kind::Metadata).then_some(hold);
            inner.alloc_blocks_from(hold, kind, moving.len(), &mut addresses)?;
            for (index, to) in moving.into_iter().zip(addresses) {
                self.pieces[index].to = to;
            }
        }
        Ok(())
    }

    /// Checksums go where their data goes; the old ones go with the old extent.
    fn csums(&self, inner: &Inner) -> Result<Vec<(Logical, Vec<u8>)>, TxnError> {
        let mut sums: Vec<(Logical, Vec<u8>)> = Vec::new();
        let root = inner.tree(TreeId::CSUM)?.root;
        for copied in self.data.values() {
            let runs = inner.csums.runs(inner.layout, &inner.blocks, &root, copied.from.start, copied.from.len)?;
            for (skip, part) in runs {
                sums.push((copied.to() + ByteLen(skip), part));
            }
        }
        sums.sort_unstable_by_key(|(at, _)| *at);
        Ok(sums)
    }

    /// The new blocks in the order of their pieces, which are used up, made children before their parents.
    fn build(&mut self, inner: &Inner, generation: Generation) -> Vec<Arc<Node>> {
        let mut by_level: Vec<Vec<(usize, Piece)>> = Vec::new();
        let pieces = std::mem::take(&mut self.pieces);
        let mut built: Vec<Option<Arc<Node>>> = vec![None; pieces.len()];
        for (index, piece) in pieces.into_iter().enumerate() {
            let level = usize::from(piece.node.level());
            by_level.resize_with(by_level.len().max(level + 1), Vec::new);
            by_level[level].push((index, piece));
        }
        let data = |at: Logical| self.data.get(&at).map(|copied| copied.to());
        for level in by_level {
            let child = |at: Logical| self.index.get(&at).and_then(|index| built[*index].clone());
            let made: Vec<(usize, Arc<Node>)> = level
                .into_par_iter()
                .map(|(index, piece)| {
                    let flagged = piece.node.flags().contains(oleo_format::HeaderFlags::RELOC);
                    let relocated = if piece.moves { piece.marked } else { flagged };
                    let how = Rewrite { to: piece.to, generation, relocated };
                    (index, inner.blocks.rewritten(piece.node, &how, child, data))
                })
                .collect();
            for (index, node) in made {
                built[index] = Some(node);
            }
        }
        built.into_iter().map(|node| node.expect("each piece has a level, and becomes a block")).collect()
    }

    /// How a reference of a block's parent is keyed from now on.
    fn user_now(&self, user: RefKey, holder: Holder) -> RefKey {
        match holder {
            Holder::Root(_) => user,
            Holder::Piece(above) => {
                let above = &self.pieces[above];
                if above.is_full_now() { RefKey::TreeParent(above.to) } else { user }
            }
        }
    }

    /// What the ledger records of one block: its own references, and those it has.
    fn record_refs(&self, piece: &Piece, changes: &mut Vec<RefChange>) {
        let node = &piece.node;
        let (old, new, kind) = (node.logical(), piece.to, kind_of(node));
        let len = ByteLen(node.bytes().len() as u64);
        for (user, holder) in &piece.users {
            let now = self.user_now(*user, *holder);
            if (old, *user) != (new, now) {
                changes.push(RefChange { at: old, len, kind, by: *user, delta: -1 });
                changes.push(RefChange { at: new, len, kind, by: now, delta: 1 });
            }
        }
        let full = |full: bool, at: Logical| full.then_some(at);
        let (before, after) = (full(piece.full, old), full(piece.is_full_now(), new));
        let owner = node.owner();
        if !node.is_leaf() {
            if before == after {
                return;
            }
            let by = |full: Option<Logical>| full.map_or(RefKey::TreeRoot(owner), RefKey::TreeParent);
            for slot in piece.gone..node.len() {
                let child = node.child(slot);
                // Those of the closure record it themselves.
                if self.index.contains_key(&child.logical) {
                    continue;
                }
                let kind = ExtentKind::Tree { level: node.level() - 1, first_key: child.key };
                changes.push(RefChange { at: child.logical, len, kind, by: by(before), delta: -1 });
                changes.push(RefChange { at: child.logical, len, kind, by: by(after), delta: 1 });
            }
            return;
        }
        for (key, item) in node.iter() {
            let Some(used) = data_use(&key, item) else { continue };
            let by = |full: Option<Logical>| {
                let implicit = RefKey::DataRoot { root: owner, ino: used.ino, offset: used.offset };
                full.map_or(implicit, RefKey::DataParent)
            };
            let to = self.data.get(&used.extent).map_or(used.extent, |copied| copied.to());
            if (before, used.extent) != (after, to) {
                let kind = ExtentKind::Data;
                changes.push(RefChange { at: used.extent, len: used.len, kind, by: by(before), delta: -1 });
                changes.push(RefChange { at: to, len: used.len, kind, by: by(after), delta: 1 });
            }
        }
    }
}

impl Piece {
    /// Whether what it refers to is keyed by its address from now on.
    fn is_full_now(&self) -> bool {
        if self.moves { self.marked } else { self.full }
    }
}
