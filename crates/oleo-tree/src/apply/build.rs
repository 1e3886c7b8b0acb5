//! Assigns addresses, writes bytes, and records the changes for the ledger.

use std::ops::Range;
use std::sync::Arc;

use oleo_format::{
    ByteLen, CheckedNode, ChildPtr, DataUse, Key, LeafBuilder, Logical, TreeId, data_use, encode_node, seal,
};
use oleo_space::{ExtentKind, RefChange, RefKey};
use rayon::prelude::*;

use super::ApplyEnv;
use super::merge::{Flow, Step};
use super::plan::{Body, Entry, Job, Old, Pos, Run, reusable};
use super::share::Fate;
use crate::node::LEVELS;
use crate::{Node, TreeError, TreeRoot};

/// With fewer new blocks than this one thread builds them.
const PARALLEL_BLOCKS_MIN: usize = 32;

/// Collects the changes for the ledger.
pub(crate) struct Refs {
    /// The tree in whose name implicit references are.
    pub owner: TreeId,
    block_len: ByteLen,
    pub changes: Vec<RefChange>,
}

impl Refs {
    pub fn new(env: &ApplyEnv<'_>, nodesize: u32) -> Refs {
        Refs { owner: env.owner, block_len: ByteLen(u64::from(nodesize)), changes: Vec::new() }
    }

    /// The bytes of a block.
    pub fn block_len(&self) -> ByteLen {
        self.block_len
    }

    /// A reference to a block, by the tree (implicit) or by the block that has it as a child (full).
    pub fn block(&mut self, at: Logical, level: u8, first_key: Key, full: Option<Logical>, delta: i32) {
        let by = full.map_or(RefKey::TreeRoot(self.owner), RefKey::TreeParent);
        self.changes.push(RefChange {
            at,
            len: self.block_len,
            kind: ExtentKind::Tree { level, first_key },
            by,
            delta,
        });
    }

    /// A reference to a data extent, by the tree and file (implicit) or by the leaf (full).
    pub fn data(&mut self, used: &DataUse, full: Option<Logical>, delta: i32) {
        let implicit = RefKey::DataRoot { root: self.owner, ino: used.ino, offset: used.offset };
        let by = full.map_or(implicit, RefKey::DataParent);
        self.changes.push(RefChange { at: used.extent, len: used.len, kind: ExtentKind::Data, by, delta });
    }

    /// The change of references to something that both an old block and the new one reference.
    fn kept(&mut self, fate: Fate, at: Logical, mut record_ref: impl FnMut(&mut Self, Option<Logical>, i32)) {
        match fate {
            Fate::Sole => {}
            Fate::SoleFull => {
                record_ref(self, Some(at), -1);
                record_ref(self, None, 1);
            }
            Fate::SharedOurs => record_ref(self, Some(at), 1),
            Fate::SharedOther => record_ref(self, None, 1),
        }
    }

    /// What something gets that an old block references and the new one does not.
    fn lost(&mut self, fate: Fate, at: Logical, mut record_ref: impl FnMut(&mut Self, Option<Logical>, i32)) {
        match fate {
            Fate::Sole => record_ref(self, None, -1),
            Fate::SoleFull => record_ref(self, Some(at), -1),
            Fate::SharedOurs => {
                record_ref(self, None, -1);
                record_ref(self, Some(at), 1);
            }
            Fate::SharedOther => {}
        }
    }
}

/// The first key of a block; an empty leaf has none.
pub(crate) fn first_key(node: &Node) -> Key {
    if node.is_empty() { Key::MIN } else { node.key(0) }
}

type Built = (Arc<Node>, Vec<RefChange>);

impl Job<'_> {
    /// Makes the new blocks and records their references.
    pub fn build(mut self) -> Result<TreeRoot, TreeError> {
        self.give_addresses()?;
        let mut refs = Refs::new(self.env, self.blocks.nodesize());
        let mut built: Vec<Vec<Arc<Node>>> = Vec::with_capacity(self.top + 1);
        for level in 0..=self.top {
            let count = self.levels[level].outs.len();
            let below = built.last().map_or(&[][..], Vec::as_slice);
            let make = |index: usize| if level == 0 { self.leaf(index) } else { self.node(level, index, below) };
            let made: Vec<Built> = if self.env.threads && count >= PARALLEL_BLOCKS_MIN {
                (0..count).into_par_iter().map(make).collect()
            } else {
                (0..count).map(make).collect()
            };
            let mut nodes = Vec::with_capacity(count);
            for (node, mut changes) in made {
                refs.changes.append(&mut changes);
                nodes.push(node);
            }
            built.push(nodes);
        }
        self.record(refs);

        let gone: Vec<Logical> = self
            .levels
            .iter()
            .flat_map(|level| &level.runs)
            .flat_map(|run| &run.olds)
            .filter(|old| old.in_place && !old.reused)
            .map(|old| old.node.logical())
            .collect();
        self.env.dirty.replace(&gone, built.iter().flatten().cloned());
        Ok(TreeRoot::of(self.env.owner, built[self.top][0].clone()))
    }

    fn give_addresses(&mut self) -> Result<(), TreeError> {
        let mut count = 0;
        for level in &mut self.levels {
            for run in &mut level.runs {
                let mut pool = reusable(run);
                for out in &mut level.outs[run.outs.clone()] {
                    let Some(index) = pool.pop_front() else {
                        out.fresh = true;
                        count += 1;
                        continue;
                    };
                    let old = &mut run.olds[index];
                    old.reused = true;
                    out.at = Some(old.node.logical());
                    out.silent = old.parent_fate == Fate::Sole;
                }
            }
        }
        let mut addresses = Vec::with_capacity(count);
        if count > 0 {
            self.env.alloc.alloc(count, &mut addresses)?;
        }
        assert_eq!(addresses.len(), count, "the allocator gives what it is asked for or an error");
        let mut addresses = addresses.into_iter();
        for out in self.levels.iter_mut().flat_map(|level| &mut level.outs).filter(|out| out.fresh) {
            out.at = addresses.next();
        }
        Ok(())
    }

    /// Fills a new leaf.
    fn leaf(&self, index: usize) -> Built {
        let out = &self.levels[0].outs[index];
        let run = &self.levels[0].runs[out.run];
        let Body::Leaves { cuts, end, .. } = &run.body else { unreachable!("runs of the lowest level are leaves") };
        let start = cuts[out.nth].pos;
        let end = cuts.get(out.nth + 1).map_or(*end, |next| next.pos);
        let mut refs = Refs::new(self.env, self.blocks.nodesize());
        let mut leaf = LeafBuilder::new(self.blocks.nodesize());
        self.replay(run, start..end, Some(&mut leaf), &mut refs);
        let at = out.at.expect("every new block has been given an address");
        let mut bytes = leaf.finish(&self.env.head_of(at, 0));
        seal(&mut bytes, self.blocks.rules().csum);
        (Arc::new(Node::new(CheckedNode::trust(bytes))), refs.changes)
    }

    /// Goes through a part of a run again: copies items, and notes what data references come and go.
    fn replay(&self, run: &Run, part: Range<Pos>, mut leaf: Option<&mut LeafBuilder>, refs: &mut Refs) {
        let Body::Leaves { changes, .. } = &run.body else { unreachable!("runs of the lowest level are leaves") };
        let derive = self.env.shareable();
        let mut flow = Flow::at(&run.olds, &self.batch[changes.clone()], part.start);
        while flow.pos() != part.end {
            let Some(step) = flow.next() else { break };
            let (key, item) = match step {
                Step::Keep { leaf, slot, key } => {
                    let old = &run.olds[leaf];
                    let item = old.node.item(slot);
                    if derive
                        && old.fate != Fate::Sole
                        && let Some(used) = data_use(&key, item)
                    {
                        refs.kept(old.fate, old.node.logical(), |refs, full, delta| refs.data(&used, full, delta));
                    }
                    (key, item)
                }
                Step::Put { key, item, over } => {
                    if derive {
                        self.replaced(run, &key, Some(item), over, refs);
                    }
                    (key, item)
                }
                Step::Drop { leaf, slot } => {
                    if derive {
                        let key = run.olds[leaf].node.key(slot);
                        self.replaced(run, &key, None, Some((leaf, slot)), refs);
                    }
                    continue;
                }
            };
            if let Some(leaf) = &mut leaf {
                assert!(leaf.push(&key, item), "what was measured fits");
            }
        }
    }

    /// Data references of an item that comes and of the one that it replaces.
    fn replaced(&self, run: &Run, key: &Key, new: Option<&[u8]>, over: Option<(usize, usize)>, refs: &mut Refs) {
        let new_use = new.and_then(|item| data_use(key, item));
        let old = over.map(|(leaf, slot)| (&run.olds[leaf], slot));
        let old_use = old.and_then(|(old, slot)| data_use(key, old.node.item(slot)).map(|used| (old, used)));
        match (old_use, new_use) {
            (Some((old, old_use)), Some(new_use)) if old_use == new_use => {
                refs.kept(old.fate, old.node.logical(), |refs, full, delta| refs.data(&old_use, full, delta));
            }
            (old_use, new_use) => {
                if let Some((old, used)) = old_use {
                    refs.lost(old.fate, old.node.logical(), |refs, full, delta| refs.data(&used, full, delta));
                }
                if let Some(used) = new_use {
                    refs.data(&used, None, 1);
                }
            }
        }
    }

    /// Builds a new node.
    fn node(&self, level: usize, index: usize, below: &[Arc<Node>]) -> Built {
        let out = &self.levels[level].outs[index];
        let run = &self.levels[level].runs[out.run];
        let Body::Nodes { entries, cuts } = &run.body else { unreachable!("runs above the lowest level are nodes") };
        let end = cuts.get(out.nth + 1).copied().unwrap_or(entries.len());
        let entries = &entries[cuts[out.nth]..end];
        let mut children = Vec::with_capacity(entries.len());
        let mut kids = Vec::with_capacity(entries.len());
        for &(key, entry) in entries {
            let (child, kid) = match entry {
                Entry::Kept { old, slot } => {
                    let node = &run.olds[old].node;
                    (node.child(slot), node.kid(slot))
                }
                Entry::New(index) => {
                    let node = &below[index];
                    let child = ChildPtr { key, logical: node.logical(), generation: node.generation() };
                    (child, Some(node.clone()))
                }
            };
            children.push(child);
            kids.push(kid);
        }
        let at = out.at.expect("every new block has been given an address");
        let height = u8::try_from(level).expect("levels are few");
        let mut bytes = encode_node(self.blocks.nodesize(), &self.env.head_of(at, height), &children);
        seal(&mut bytes, self.blocks.rules().csum);
        (Arc::new(Node::with_kids(CheckedNode::trust(bytes), kids)), Vec::new())
    }

    /// Tells the ledger what the new leaves found and what becomes of blocks.
    fn record(&self, mut refs: Refs) {
        let ledger = self.env.ledger;
        let block_len = refs.block_len;
        for (level, here) in self.levels.iter().enumerate() {
            let height = u8::try_from(level).expect("levels are few");
            for run in &here.runs {
                if let Body::Leaves { end, .. } = &run.body
                    && run.outs.is_empty()
                {
                    // Nothing is left of these leaves, but their references are dropped.
                    self.replay(run, Pos { leaf: 0, slot: 0, change: 0 }..*end, None, &mut refs);
                }
                for old in &run.olds {
                    let (at, first) = (old.node.logical(), first_key(&old.node));
                    if !(old.reused && old.parent_fate == Fate::Sole) {
                        refs.lost(old.parent_fate, old.parent_at, |refs, full, delta| {
                            refs.block(at, height, first, full, delta);
                        });
                    }
                    if old.fate == Fate::SharedOurs {
                        ledger.set_full_backref(at, block_len, ExtentKind::Tree { level: height, first_key: first });
                    }
                    if level > 0 && old.fate != Fate::Sole {
                        kept_children(old, height, &mut refs);
                    }
                }
            }
            for out in &here.outs {
                let at = out.at.expect("every new block has been given an address");
                if out.fresh {
                    ledger.record_new_extent(
                        at,
                        block_len,
                        ExtentKind::Tree { level: height, first_key: out.first_key },
                    );
                }
                if !out.silent {
                    refs.block(at, height, out.first_key, None, 1);
                }
            }
        }
        ledger.record_batch(&mut refs.changes);
    }
}

/// References to the children of an old node that its replacement has, too.
fn kept_children(old: &Old, level: u8, refs: &mut Refs) {
    debug_assert!(usize::from(level) < LEVELS);
    let mut gone = old.gone.clone();
    gone.sort_unstable_by_key(|range| range.start);
    let mut gone = gone.into_iter().peekable();
    let at = old.node.logical();
    for slot in 0..old.node.len() {
        while gone.next_if(|range| range.end <= slot).is_some() {}
        if gone.peek().is_some_and(|range| range.contains(&slot)) {
            continue;
        }
        let child = old.node.child(slot);
        refs.kept(old.fate, at, |refs, full, delta| refs.block(child.logical, level - 1, child.key, full, delta));
    }
}
