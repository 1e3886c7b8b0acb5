//! The walk over tree blocks: visits every block of every tree once, level by level from the top.
//!
//! (1) The roots are put on the lists of their levels. (2) From level 7 down, the list of a level is sorted by address,
//! and pointers from several parents to one block become one entry. (3) The list is read in batches, all copies of each
//! block, and every copy is verified. (4) The visitor sees each sound block once and adds its children to the next
//! list.
//!
//! Invariants: a child that is not one level below its parent is bad, so no walk is longer than eight levels and a
//! block that is its own descendant is found. All parents of a block are visited before it.
//!
//! Memory: 80 bytes per pointer of the level that is read next, about once per distinct child thanks to sorting in
//! between; and per thread a batch of [`BATCH`] blocks with their copies.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use oleo_format::{CheckedNode, Corruption, Generation, HeaderFlags, Key, LEVELS_MAX, Logical, NodeExpect, TreeId};
use oleo_volume::{CopyRead, Volume, VolumeError};
use rayon::prelude::*;

use crate::collect::Findings;
use crate::finding::{Finding, Kind, Place, Severity};
use crate::input::{Env, TreeStart};
use crate::sets::{SetId, Sets};

/// Blocks that one thread reads in one batch.
const BATCH: usize = 32;
/// Lists up to this length are read on the calling thread.
const ALONE_MAX: usize = 8;
/// A list of children is sorted and thinned when it has grown by half, from this length on.
const THIN_MIN: usize = 1 << 16;

/// The kind of a tree: which owners its blocks may have, and which visitor sees its items.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Class {
    /// The root tree.
    Root,
    /// Extents, with or without block groups.
    Extent,
    BlockGroup,
    Chunk,
    Dev,
    Csum,
    FreeSpace,
    /// A tree of files.
    Files,
    /// The tree that relocation moves data in.
    DataReloc,
    /// A relocation tree: blocks of a subvolume.
    Reloc,
    /// The root of log trees, and the log trees.
    Log,
    /// UUID and quota trees, and trees of unknown number.
    Other,
}

impl Class {
    pub fn of(tree: TreeId) -> Class {
        match tree {
            TreeId::ROOT => Class::Root,
            TreeId::EXTENT => Class::Extent,
            TreeId::BLOCK_GROUP => Class::BlockGroup,
            TreeId::CHUNK => Class::Chunk,
            TreeId::DEV => Class::Dev,
            TreeId::CSUM => Class::Csum,
            TreeId::FREE_SPACE => Class::FreeSpace,
            TreeId::DATA_RELOC => Class::DataReloc,
            TreeId::TREE_RELOC => Class::Reloc,
            TreeId::TREE_LOG | TreeId::TREE_LOG_FIXUP => Class::Log,
            t if t.is_subvol() => Class::Files,
            _ => Class::Other,
        }
    }

    /// Whether snapshots and relocation may share its blocks with other trees.
    pub fn is_shared(self) -> bool {
        matches!(self, Class::Files | Class::DataReloc | Class::Reloc)
    }

    fn may_own(self, tree: TreeId, owner: TreeId) -> bool {
        match self {
            Class::Files => owner.is_subvol(),
            Class::Reloc => owner.is_subvol() || owner == TreeId::DATA_RELOC || owner == TreeId::TREE_RELOC,
            _ => owner == tree,
        }
    }
}

/// A block to be visited, as its parent describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub at: u64,
    pub generation: u64,
    /// The key that its parent has for it; `None` for roots.
    pub first: Option<Key>,
    /// The first key beyond it.
    pub upper: Option<Key>,
    /// A tree that it was reached from: index into the walk's trees.
    pub tree: u32,
    /// All subvolumes that it was reached from, if quota needs them.
    pub set: SetId,
}

/// What all parts of a check share.
pub(crate) struct Context<'a> {
    pub volume: &'a Volume,
    pub env: Env,
    pub findings: Findings,
    /// Whether other threads may be used.
    pub parallel: bool,
    pub progress: Option<&'a (dyn Fn(Progress) + Sync)>,
    pub done: AtomicU64,
    pub expected: u64,
    /// Whether a block had no good copy, in the extent tree and elsewhere: what it held is missing.
    pub lost_extent: AtomicBool,
    pub lost_csum: AtomicBool,
    pub lost_any: AtomicBool,
    /// Kept by the sets of roots.
    pub sets: Sets,
    /// Simple quotas are on: extents count from this transaction on.
    pub simple_since: Option<u64>,
}

/// How far a check has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// What is being done: `blocks`, `data`.
    pub what: &'static str,
    /// Blocks, or bytes of data, done so far.
    pub done: u64,
    /// An estimate of how many there will be.
    pub expected: u64,
}

impl Context<'_> {
    pub fn report(&self, severity: Severity, kind: Kind, at: Place, have: impl ToString, want: impl ToString) {
        self.findings.report(Finding { severity, kind, at, have: have.to_string(), want: want.to_string() });
    }

    pub fn error(&self, kind: Kind, at: Place, have: impl ToString, want: impl ToString) {
        self.report(Severity::Error, kind, at, have, want);
    }

    pub fn warn(&self, kind: Kind, at: Place, have: impl ToString, want: impl ToString) {
        self.report(Severity::Warning, kind, at, have, want);
    }

    fn lost(&self, class: Class) {
        self.lost_any.store(true, Ordering::Relaxed);
        match class {
            Class::Extent => self.lost_extent.store(true, Ordering::Relaxed),
            Class::Csum => self.lost_csum.store(true, Ordering::Relaxed),
            _ => {}
        }
    }
}

/// What a visitor learns about a block besides the block.
pub(crate) struct Visit<'a> {
    pub tree: &'a TreeStart,
    pub class: Class,
    pub set: SetId,
    /// The generation that its parent has for it.
    pub generation: u64,
    /// Not all of its items are sound, so they must not be trusted.
    pub tainted: bool,
}

/// Sees every block once. Makes one value per batch; these come back in no particular order.
pub(crate) trait Visitor: Sync {
    type Out: Default + Send;
    /// Sees a block. Returns the slot of the first child to visit.
    fn block(&self, node: &CheckedNode, visit: &Visit<'_>, out: &mut Self::Out) -> usize;
}

/// Visits all blocks of these trees.
pub(crate) fn walk<V: Visitor>(cx: &Context<'_>, trees: &[TreeStart], visitor: &V) -> Vec<V::Out> {
    let mut lists: [Vec<Pending>; LEVELS_MAX as usize] = Default::default();
    for (tree, start) in (0..).zip(trees) {
        // A deleted subvolume counts until it is gone completely.
        let set = if start.tree.is_subvol() { cx.sets.of_one(start.tree) } else { SetId::EMPTY };
        let Some(list) = lists.get_mut(usize::from(start.level)) else { continue };
        list.push(Pending { at: start.logical.0, generation: start.generation.0, first: None, upper: None, tree, set });
    }
    let mut outs = Vec::new();
    for level in (0..LEVELS_MAX).rev() {
        let mut list = std::mem::take(&mut lists[usize::from(level)]);
        thin(cx, &mut list);
        let below = usize::from(level.saturating_sub(1));
        let mut thinned = lists[below].len();
        let one = |batch: &[Pending]| {
            let mut out = V::Out::default();
            let mut children = Vec::new();
            visit_batch(cx, trees, level, batch, visitor, &mut out, &mut children);
            (out, children)
        };
        if !cx.parallel || list.len() <= ALONE_MAX {
            for batch in list.chunks(BATCH) {
                let (out, mut children) = one(batch);
                outs.push(out);
                lists[below].append(&mut children);
            }
            continue;
        }
        // In portions, so that the results of the batches are merged before there are many.
        for portion in list.chunks(BATCH * 64) {
            let done: Vec<_> = portion.par_chunks(BATCH).map(one).collect();
            for (out, mut children) in done {
                outs.push(out);
                lists[below].append(&mut children);
            }
            if lists[below].len() > THIN_MIN.max(thinned + thinned / 2) {
                thin(cx, &mut lists[below]);
                thinned = lists[below].len();
            }
        }
    }
    outs
}

/// Sorts the list, and merges equal entries that several parents made for one block.
fn thin(cx: &Context<'_>, list: &mut Vec<Pending>) {
    list.sort_unstable_by_key(|p| (p.at, p.generation, p.first, p.tree));
    list.dedup_by(|next, kept| {
        let same = next.at == kept.at && next.generation == kept.generation && next.first == kept.first;
        if same {
            kept.upper = match (kept.upper, next.upper) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            kept.set = cx.sets.union(kept.set, next.set);
        }
        same
    });
}

fn visit_batch<V: Visitor>(
    cx: &Context<'_>,
    trees: &[TreeStart],
    level: u8,
    batch: &[Pending],
    visitor: &V,
    out: &mut V::Out,
    children: &mut Vec<Pending>,
) {
    let nodes = read_batch(cx, trees, level, batch);
    let mut last: Option<u64> = None;
    for (pending, read) in batch.iter().zip(nodes) {
        let tree = &trees[pending.tree as usize];
        let class = Class::of(tree.tree);
        let visit = |tainted| Visit { tree, class, set: pending.set, generation: pending.generation, tainted };
        // Two parents disagree about one block: at most one is right, and the block is visited once.
        let again = last.replace(pending.at) == Some(pending.at);
        let Some((node, tainted)) = read else {
            if !again {
                cx.lost(class);
            }
            continue;
        };
        check_upper(cx, tree, pending, &node);
        if again {
            continue;
        }
        let from = visitor.block(&node, &visit(tainted), out);
        if node.is_leaf() {
            continue;
        }
        for slot in from..node.len() {
            let child = node.child(slot);
            let upper = if slot + 1 < node.len() { Some(node.key(slot + 1)) } else { pending.upper };
            children.push(Pending {
                at: child.logical.0,
                generation: child.generation.0,
                first: Some(child.key),
                upper,
                tree: pending.tree,
                set: pending.set,
            });
        }
    }
    let done = cx.done.fetch_add(batch.len() as u64, Ordering::Relaxed) + batch.len() as u64;
    if let Some(progress) = cx.progress {
        progress(Progress { what: "blocks", done, expected: cx.expected.max(done) });
    }
}

fn check_upper(cx: &Context<'_>, tree: &TreeStart, pending: &Pending, node: &CheckedNode) {
    let Some(upper) = pending.upper.filter(|_| !node.is_empty()) else { return };
    let last = node.key(node.len() - 1);
    if last >= upper {
        let place = Place { tree: Some(tree.tree), block: Some(Logical(pending.at)), ..Place::default() };
        cx.error(Kind::BlockKeyRange, place, format_args!("last key {last}"), format_args!("below {upper}"));
    }
}

/// Reads and checks all copies of the blocks of a batch. The flag says that some item of the block is not sound.
fn read_batch(cx: &Context<'_>, trees: &[TreeStart], level: u8, batch: &[Pending]) -> Vec<Option<(CheckedNode, bool)>> {
    let nodesize = cx.env.rules.nodesize as usize;
    let copies: Vec<usize> = batch.iter().map(|p| cx.volume.copies(Logical(p.at))).collect();
    let mut bufs: Vec<Vec<Box<[u8]>>> =
        copies.iter().map(|&n| (0..n).map(|_| vec![0; nodesize].into_boxed_slice()).collect()).collect();
    let mut reads: Vec<CopyRead<'_>> = Vec::new();
    for (pending, bufs) in batch.iter().zip(&mut bufs) {
        for (copy, buf) in bufs.iter_mut().enumerate() {
            reads.push(CopyRead::new(Logical(pending.at), copy, buf));
        }
    }
    cx.volume.read_copies(&mut reads);
    let mut results = reads.into_iter().map(|r| r.result).collect::<Vec<_>>().into_iter();
    batch
        .iter()
        .zip(bufs)
        .map(|(pending, bufs)| {
            let results: Vec<_> = results.by_ref().take(bufs.len()).collect();
            check(cx, &trees[pending.tree as usize], level, pending, bufs, results)
        })
        .collect()
}

/// Checks the copies of one block.
fn check(
    cx: &Context<'_>,
    tree: &TreeStart,
    level: u8,
    pending: &Pending,
    bufs: Vec<Box<[u8]>>,
    results: Vec<Result<(), VolumeError>>,
) -> Option<(CheckedNode, bool)> {
    let at = Logical(pending.at);
    let class = Class::of(tree.tree);
    let place = Place { tree: Some(tree.tree), block: Some(at), ..Place::default() };
    if bufs.is_empty() {
        cx.error(Kind::BlockUnmapped, place, "an address outside of all chunks", "a mapped one");
        return None;
    }
    let expect = NodeExpect {
        logical: at,
        generation: Some(Generation(pending.generation)),
        level: Some(level),
        owner: (!class.is_shared()).then_some(tree.tree),
        first_key: pending.first,
    };
    let mut good: Option<CheckedNode> = None;
    let mut bad: Vec<(usize, VolumeError)> = Vec::new();
    for (copy, (buf, result)) in bufs.into_iter().zip(results).enumerate() {
        if let Err(e) = result {
            bad.push((copy, e));
            continue;
        }
        match &good {
            Some(node) if node.bytes() == &*buf => {}
            Some(node) => {
                let have = match CheckedNode::verify(buf, cx.volume.rules_of(node.bytes()), &expect) {
                    Ok(_) => "another sound block".to_owned(),
                    Err(e) => e.to_string(),
                };
                report_copy(cx, &place, copy, &have);
            }
            None => {
                let rules = cx.volume.rules_of(&buf);
                match CheckedNode::verify(buf, rules, &expect) {
                    Ok(node) => good = Some(node),
                    Err(e) => bad.push((copy, e.into())),
                }
            }
        }
    }
    if good.is_none() {
        // With parity the block can be rebuilt.
        good = cx.volume.read_block(&expect).ok();
    }
    let Some(node) = good else { return check_bad(cx, tree, class, level, pending, bad) };
    for (copy, e) in bad {
        // If a device is missing, the user has asked to do without it.
        if !matches!(e, VolumeError::OnMissing { .. }) {
            report_copy(cx, &place, copy, &e.to_string());
        }
    }
    after_verify(cx, tree, class, &place, &node);
    Some((node, false))
}

fn report_copy(cx: &Context<'_>, place: &Place, copy: usize, have: &str) {
    let device = place.block.and_then(|at| cx.volume.device_of_copy(at, copy)).map(|d| d.0);
    cx.error(
        Kind::BlockMirror,
        Place { device, ..place.clone() },
        format_args!("copy {copy}: {have}"),
        "the same as the good copy",
    );
}

/// Checks what needs the tree as well as the block.
fn after_verify(cx: &Context<'_>, tree: &TreeStart, class: Class, place: &Place, node: &CheckedNode) {
    if !class.may_own(tree.tree, node.owner()) {
        cx.error(Kind::BlockOwner, place.clone(), node.owner(), format_args!("one that may be in tree {}", tree.tree));
    }
    let needed = HeaderFlags::WRITTEN | HeaderFlags::MIXED_BACKREF_REV;
    if !node.flags().contains(needed) || node.flags().bits() >> 56 != 1 {
        let have = format!("flags {:#x}", node.flags().bits());
        cx.error(Kind::BlockHeader, place.clone(), have, "written, and backrefs of revision 1");
    }
    let newest = cx.env.sb.generation.get() + u64::from(class == Class::Log);
    if node.generation().0 > newest {
        cx.error(Kind::BlockFuture, place.clone(), node.generation(), format_args!("at most {newest}"));
    }
}

/// No copy is as its parent describes it. If the block is sound by itself, or but for an item, the walk continues with
/// it.
fn check_bad(
    cx: &Context<'_>,
    tree: &TreeStart,
    class: Class,
    level: u8,
    pending: &Pending,
    bad: Vec<(usize, VolumeError)>,
) -> Option<(CheckedNode, bool)> {
    let place = Place { tree: Some(tree.tree), block: Some(Logical(pending.at)), ..Place::default() };
    let Some((copy, first)) = bad.into_iter().next() else {
        cx.error(Kind::BlockUnreadable, place, "no copy", "one that can be read");
        return None;
    };
    let VolumeError::Corrupt(why) = first else {
        cx.error(Kind::BlockUnreadable, place, first, "a copy that can be read");
        return None;
    };
    let is_item = is_item_error(&why);
    let kind = if is_item { Kind::BlockItem } else { kind_of(&why) };
    let have = format!(
        "{}{}{}: {} is {}",
        why.structure,
        if why.at.is_empty() { "" } else { " at " },
        why.at,
        why.what,
        why.have
    );
    cx.error(kind, place.clone(), have, &why.want);
    let mut bytes = vec![0; cx.env.rules.nodesize as usize].into_boxed_slice();
    let mut again = [CopyRead::new(Logical(pending.at), copy, &mut bytes)];
    cx.volume.read_copies(&mut again);
    let [again] = again;
    again.result.ok()?;
    if is_item {
        // Layout and keys are sound, so the references it holds can be counted.
        let node = CheckedNode::trust(bytes);
        after_verify(cx, tree, class, &place, &node);
        return Some((node, true));
    }
    if matches!(kind, Kind::BlockGeneration | Kind::BlockFirstKey | Kind::BlockOwner) {
        let expect = NodeExpect { level: Some(level), ..NodeExpect::at(Logical(pending.at)) };
        let rules = cx.volume.rules_of(&bytes);
        let node = CheckedNode::verify(bytes, rules, &expect).ok()?;
        return Some((node, false));
    }
    None
}

/// Whether the layout of the block was found sound and only an item is not.
fn is_item_error(why: &Corruption) -> bool {
    !matches!(why.structure, "tree block" | "node" | "leaf" | "Header") || why.what == "item type"
}

fn kind_of(why: &Corruption) -> Kind {
    match &*why.what {
        "checksum" => Kind::BlockChecksum,
        "generation" => Kind::BlockGeneration,
        "first key" => Kind::BlockFirstKey,
        "owner" => Kind::BlockOwner,
        "level" => Kind::BlockLevel,
        "order of keys" => Kind::BlockKeyOrder,
        "bytenr" | "fsid" => Kind::BlockHeader,
        _ => Kind::BlockLayout,
    }
}

/// The first child of a node that has not been dropped, in a tree that is being deleted.
pub(crate) fn first_live_slot(node: &CheckedNode, visit: &Visit<'_>) -> usize {
    let Some((key, level)) = visit.tree.drop_progress() else { return 0 };
    match node.level() {
        l if l > level => node.child_slot(&key),
        l if l == level => node.search(&key).unwrap_or_else(|slot| slot),
        _ => 0,
    }
}
