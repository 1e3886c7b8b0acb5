//! Quota accounting of a transaction, at the end of its settling.
//!
//! Nothing is traced while trees change. Comparing a tree's old root with its new one shows which blocks it has lost and gained;
//! the leaves among them show which data. For each extent found, the extent tree, which is settled by then, gives the trees that
//! reach it now ([`Backrefs`]); the trees that reached it before are these, less those that gained it, plus those that lost it.
//!
//! - A tree reaches a block in one way at most, so a block lost or gained says all. Data may be named many times: a tree had
//!   it before where it names it more often now than it gained names.
//! - A snapshot made in the transaction gains its source's content without any block saying so. It is counted as a copy of
//!   what its source is now ([`Op::Copy`]), and then what sets the two apart. If groups of higher levels make that more
//!   than numbers show, everything in the source is looked at.
//! - A tree that is being dropped loses what the drop went over. Below a block that others keep, nothing is looked at if no
//!   number depends on it: the tree's own group went when it was deleted, and two other subvolumes share the block anyway.
//!   If numbers do depend, the drop has gone over it block by block, too, so that there is not much of it.
//! - Relocation changes who is where, not who uses what: it is not looked at at all.
//!
//! Cost: the blocks that trees lost and gained, and one look into the extent tree for each that may be shared.

use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::HashMap;
use oleo_format::{ByteLen, ChildPtr, Generation, Logical, TreeId, data_use};
use oleo_tree::{BlockChange, BlockDiff, DropMoment, DropVisit, Node, TreeRoot, Walk};

use crate::TxnError;
use crate::backrefs::Backrefs;
use crate::engine::Inner;
use crate::quota::state::{Notes, Op};
use crate::quota::table::{Move, QgroupId, Table};
use crate::root_sets::{RootSet, RootSets};
use crate::trees::{self, TreeState};

/// Who lost (below 0) and gained an extent.
type Tags = Vec<(TreeId, i64)>;

struct Account<'e> {
    inner: &'e Inner,
    generation: Generation,
    refs: Backrefs<'e>,
    /// Snapshots made in this transaction.
    news: Vec<(TreeId, TreeId)>,
    blocks: HashMap<Logical, (Arc<Node>, Tags)>,
    data: HashMap<Logical, (ByteLen, Tags)>,
    /// Trees that are gone, and when the last snapshot was taken of each.
    gone: HashMap<TreeId, Generation>,
    moves: HashMap<(RootSet, RootSet), u64>,
    /// A scan is running, and receives sets.
    scans: bool,
    /// Extents that were looked at.
    looked_at: u64,
}

/// What changed since the last commit, which `committed` is the root tree of, and the sets that it is expressed in.
pub(crate) fn account(
    inner: &Inner,
    generation: Generation,
    committed: &TreeRoot,
    notes: Notes,
) -> Result<(RootSets, Vec<Op>), TxnError> {
    let mut account = Account {
        inner,
        generation,
        refs: Backrefs::new(inner)?,
        news: notes.snapshots,
        blocks: HashMap::new(),
        data: HashMap::new(),
        gone: HashMap::new(),
        moves: HashMap::new(),
        scans: inner.quota.scan.lock().is_some(),
        looked_at: 0,
    };
    for state in &notes.dropped {
        account.gone.insert(state.root.tree, state.last_snapshot().unwrap_or(Generation(u64::MAX)));
    }
    let news: BTreeSet<TreeId> = account.news.iter().map(|(_, new)| *new).collect();
    for state in inner.trees.touched().into_iter().filter(|state| state.root.tree.is_subvol()) {
        if !news.contains(&state.root.tree) {
            let old = trees::find(&inner.blocks, committed, state.root.tree)?;
            match notes.dropping.get(&state.root.tree) {
                Some(begin) => {
                    account.changed(old.as_ref(), begin)?;
                    account.dropped(begin, Some(&state))?;
                }
                None => account.changed(old.as_ref(), &state)?,
            }
        }
    }
    for state in &notes.dropped {
        let begin = notes.dropping.get(&state.root.tree).unwrap_or(state);
        let old = trees::find(&inner.blocks, committed, state.root.tree)?;
        account.changed(old.as_ref(), begin)?;
        account.dropped(begin, None)?;
    }
    account.looked_at = account.blocks.len() as u64;
    account.account_blocks()?;
    account.account_data()?;
    let mut ops = vec![account.take_moves()];
    for nth in 0..account.news.len() {
        account.snapshot(nth, &mut ops)?;
    }
    inner.quota.dirty_extents.fetch_add(account.looked_at, std::sync::atomic::Ordering::Relaxed);
    Ok((account.refs.sets, ops))
}

impl Account<'_> {
    /// What one tree lost and gained by changes.
    fn changed(&mut self, old: Option<&TreeState>, new: &TreeState) -> Result<(), TxnError> {
        let BlockDiff { only_a, only_b } = self.inner.blocks.block_diff(old.map(|old| &old.root), Some(&new.root))?;
        for (nodes, delta) in [(only_a, -1), (only_b, 1)] {
            for node in nodes {
                self.tag(&node, new.root.tree, delta);
            }
        }
        Ok(())
    }

    /// What one tree lost and gained by being dropped, from some place on to another one, or to the end.
    fn dropped(&mut self, begin: &TreeState, end: Option<&TreeState>) -> Result<(), TxnError> {
        let tree = begin.root.tree;
        let places = (begin.drop_progress(), end.and_then(TreeState::drop_progress));
        let begin = DropMoment { root: &begin.root, progress: places.0.as_ref() };
        let end = end.map(|end| DropMoment { root: &end.root, progress: places.1.as_ref() });
        // Nobody asks for sets, and two subvolumes that reach a block are in no group together.
        let two_are_enough = {
            let table = self.inner.quota.table.read();
            let alone = |table: &Table| table.is_flat() && !table.groups.contains_key(&QgroupId::of(tree));
            !self.scans && table.as_ref().is_some_and(alone)
        };
        let inner = self.inner;
        inner.blocks.dropped(begin, end, &mut Losses { account: self, tree, two_are_enough })
    }

    /// Whether it makes no difference to numbers that a tree that is being dropped does not reach a block any more.
    fn is_free_of(&mut self, tree: TreeId, node: &Node) -> Result<bool, TxnError> {
        let left = self.refs.of_block(node)?;
        let table = self.inner.quota.table.read();
        Ok(table.as_ref().is_none_or(|table| table.is_free_of(tree, self.refs.sets.trees(left))))
    }

    /// Notes that a tree lost or gained a block, and the data that it names if it is a leaf.
    fn tag(&mut self, node: &Arc<Node>, tree: TreeId, delta: i64) {
        let (_, tags) = self.blocks.entry(node.logical()).or_insert_with(|| (node.clone(), Tags::new()));
        add(tags, tree, delta);
        if !node.is_leaf() {
            return;
        }
        for (key, item) in node.iter() {
            if let Some(used) = data_use(&key, item) {
                let (_, tags) = self.data.entry(used.extent).or_insert_with(|| (used.len, Tags::new()));
                add(tags, tree, delta);
            }
        }
    }

    /// Whether nobody else can have reached a block that a tree has or had.
    fn is_only_of(&mut self, node: &Node, tree: TreeId) -> Result<bool, TxnError> {
        if node.owner() != tree {
            return Ok(false);
        }
        if let Some(last) = self.gone.get(&tree) {
            return Ok(!node.flags().contains(oleo_format::HeaderFlags::RELOC) && node.generation() > *last);
        }
        self.refs.is_sole(node)
    }

    fn account_blocks(&mut self) -> Result<(), TxnError> {
        let mut blocks: Vec<_> = std::mem::take(&mut self.blocks).into_values().collect();
        blocks.sort_unstable_by_key(|(node, _)| node.logical());
        let bytes = u64::from(self.inner.rules.nodesize);
        for (node, tags) in blocks {
            let now = match tags.as_slice() {
                [(tree, delta)] if self.is_only_of(&node, *tree)? => match delta {
                    1.. => self.refs.sets.one(*tree),
                    _ => RootSet::EMPTY,
                },
                _ => self.refs.of_block(&node)?,
            };
            self.moved(now, |_| 1, &tags, bytes);
        }
        Ok(())
    }

    fn account_data(&mut self) -> Result<(), TxnError> {
        let mut data: Vec<_> = std::mem::take(&mut self.data).into_iter().collect();
        data.retain(|(_, (_, tags))| tags.iter().any(|(_, delta)| *delta != 0));
        data.sort_unstable_by_key(|(at, _)| *at);
        self.looked_at += data.len() as u64;
        for (at, (len, tags)) in data {
            let Some(stored) = self.refs.stored(at)? else {
                self.moved(RootSet::EMPTY, |_| 0, &tags, len.0);
                continue;
            };
            if stored.generation == self.generation && self.news.is_empty() {
                // All who name it gained it.
                let mut now: Vec<TreeId> = tags.iter().filter(|(_, delta)| *delta > 0).map(|(tree, _)| *tree).collect();
                now.sort_unstable();
                let set = self.refs.sets.of(&now);
                let gained = |tree| tags.iter().find(|(t, _)| *t == tree).map_or(0, |(_, delta)| *delta);
                self.moved(set, gained, &tags, len.0);
                continue;
            }
            if let Some(tree) = self.refs.sole_user(at, &stored)? {
                let now = self.refs.sets.one(tree);
                let names = i64::try_from(stored.refs).unwrap_or(i64::MAX);
                self.moved(now, |_| names, &tags, len.0);
                continue;
            }
            let (now, names) = self.names(at)?;
            let count = |tree| names.iter().filter(|(set, _)| self.refs.sets.has(*set, tree)).map(|(_, n)| *n).sum();
            let counts: Vec<(TreeId, i64)> = tags.iter().map(|(tree, _)| (*tree, count(*tree))).collect();
            let names = |tree| counts.iter().find(|(t, _)| *t == tree).map_or(0, |(_, n)| *n);
            self.moved(now, names, &tags, len.0);
        }
        Ok(())
    }

    /// Who names a data extent now, and how often the trees of each set do.
    fn names(&mut self, at: Logical) -> Result<(RootSet, Vec<(RootSet, i64)>), TxnError> {
        let (mut sets, mut counts) = (Vec::new(), Vec::new());
        for naming in self.refs.naming(at)? {
            let set = self.refs.of_block(&naming.leaf)?;
            sets.push(set);
            counts.push((set, naming.items as i64));
        }
        Ok((self.refs.sets.union_of(&sets), counts))
    }

    /// An extent that `now` reaches, each tree in `uses` ways: snapshots of this transaction are left to later.
    fn moved(&mut self, now: RootSet, uses: impl Fn(TreeId) -> i64, tags: &[(TreeId, i64)], bytes: u64) {
        let is_new = |tree: TreeId| self.news.iter().any(|(_, new)| *new == tree);
        let sets = &mut self.refs.sets;
        let to = sets.only(now, |tree| !is_new(tree));
        let mut from = sets.trees(to).to_vec();
        for (tree, delta) in tags.iter().filter(|(_, delta)| *delta != 0) {
            let has = from.binary_search(tree);
            let uses = if has.is_ok() { uses(*tree) } else { 0 };
            match (has, uses - delta > 0) {
                (Err(place), true) => from.insert(place, *tree),
                (Ok(place), false) => drop(from.remove(place)),
                _ => {}
            }
        }
        let from = sets.of(&from);
        self.count(from, to, bytes);
    }

    fn count(&mut self, from: RootSet, to: RootSet, bytes: u64) {
        if from != to {
            *self.moves.entry((from, to)).or_default() += bytes;
        }
    }

    fn take_moves(&mut self) -> Op {
        let mut moves: Vec<Move> = self.moves.drain().map(|((from, to), bytes)| Move { from, to, bytes }).collect();
        moves.sort_unstable_by_key(|m| (m.from, m.to));
        Op::Moves(moves)
    }

    /// The `nth` snapshot of the transaction: a copy of its source, and what is different.
    fn snapshot(&mut self, nth: usize, ops: &mut Vec<Op>) -> Result<(), TxnError> {
        let (source, new) = self.news[nth];
        let inner = self.inner;
        let (from, to) = (inner.tree(source)?.root, inner.tree(new)?.root);
        let simple = inner.quota.table.read().as_ref().is_none_or(|table| table.can_copy(source, new));
        if simple {
            ops.push(Op::Copy { source, new });
        } else {
            self.copy_in_full(nth, &from)?;
        }
        let later: Vec<TreeId> = self.news[nth..].iter().map(|(_, new)| *new).collect();
        let BlockDiff { only_a, only_b } = inner.blocks.block_diff(Some(&from), Some(&to))?;
        let mut data: Vec<(Logical, ByteLen)> = Vec::new();
        let bytes = u64::from(inner.rules.nodesize);
        for (nodes, ours) in [(only_a, false), (only_b, true)] {
            for node in nodes {
                let set = self.refs.of_block(&node)?;
                let without = self.refs.sets.only(set, |tree| !later.contains(&tree));
                let with = self.refs.sets.with(without, new);
                let (from, to) = if ours { (without, with) } else { (with, without) };
                self.count(from, to, bytes);
                if node.is_leaf() {
                    data.extend(node.iter().filter_map(|(key, item)| data_use(&key, item)).map(|u| (u.extent, u.len)));
                }
            }
        }
        data.sort_unstable();
        data.dedup_by_key(|(at, _)| *at);
        for (at, len) in data {
            let (set, _) = self.names(at)?;
            let without = self.refs.sets.only(set, |tree| !later.contains(&tree));
            let with = self.refs.sets.with(without, new);
            match (self.refs.sets.has(set, source), self.refs.sets.has(set, new)) {
                (true, false) => self.count(with, without, len.0),
                (false, true) => self.count(without, with, len.0),
                _ => {}
            }
        }
        ops.push(self.take_moves());
        Ok(())
    }

    /// Everything in the source becomes the snapshot's too, extent by extent.
    fn copy_in_full(&mut self, nth: usize, source: &TreeRoot) -> Result<(), TxnError> {
        let new = self.news[nth].1;
        let later: Vec<TreeId> = self.news[nth..].iter().map(|(_, new)| *new).collect();
        let bytes = u64::from(self.inner.rules.nodesize);
        let mut data: HashMap<Logical, ByteLen> = HashMap::new();
        self.inner.blocks.walk(source, |node, _| {
            let set = self.refs.of_block(node)?;
            self.shared(set, &later, new, bytes);
            if node.is_leaf() {
                data.extend(node.iter().filter_map(|(key, item)| data_use(&key, item)).map(|u| (u.extent, u.len)));
            }
            Ok::<_, TxnError>(Walk::Into)
        })?;
        let mut data: Vec<_> = data.into_iter().collect();
        data.sort_unstable();
        for (at, len) in data {
            let (set, _) = self.names(at)?;
            self.shared(set, &later, new, len.0);
        }
        Ok(())
    }

    fn shared(&mut self, set: RootSet, later: &[TreeId], new: TreeId, bytes: u64) {
        let without = self.refs.sets.only(set, |tree| !later.contains(&tree));
        let with = self.refs.sets.with(without, new);
        self.count(without, with, bytes);
    }
}

/// Notes what a tree that is being dropped lost and gained.
struct Losses<'a, 'e> {
    account: &'a mut Account<'e>,
    tree: TreeId,
    /// Below a block that two trees reach no number changes.
    two_are_enough: bool,
}

impl DropVisit<TxnError> for Losses<'_, '_> {
    fn passes_over(&mut self, child: &ChildPtr, level: u8) -> Result<bool, TxnError> {
        Ok(self.two_are_enough && self.account.refs.is_reached_by_two(child, level)?)
    }

    fn meet(&mut self, node: &Arc<Node>, block_change: BlockChange) -> Result<Walk, TxnError> {
        let (account, tree) = (&mut *self.account, self.tree);
        account.tag(node, tree, if block_change == BlockChange::Gained { 1 } else { -1 });
        let over =
            block_change == BlockChange::Lost && !account.is_only_of(node, tree)? && account.is_free_of(tree, node)?;
        Ok(if over { Walk::Over } else { Walk::Into })
    }
}

fn add(tags: &mut Tags, tree: TreeId, delta: i64) {
    match tags.iter_mut().find(|(t, _)| *t == tree) {
        Some((_, sum)) => *sum += delta,
        None => tags.push((tree, delta)),
    }
}
