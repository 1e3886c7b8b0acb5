//! Computes the summary of each tree of files from those of its leaves, once per subtree however many trees share it.
//!
//! (1) Each leaf was turned into a [`LeafSummary`] when it was visited; (2) nodes are folded level by level from the
//! bottom, each from its children in key order; (3) the summary of a tree is that of its root, and [`Forest::tree`]
//! checks it. A lost block marks the summaries of all nodes above it as incomplete.
//!
//! Memory: one [`LeafSummary`] per leaf, and per node of the level above; 8 bytes per child pointer.

use oleo_format::{Logical, TreeId};
use rayon::prelude::*;

use crate::csums::Csums;
use crate::files::{DataNeed, Forest, LeafSummary, Reporter};
use crate::finding::{Finding, Kind, Place};
use crate::input::{Input, TreeStart};
use crate::walk::Context;

/// Up to this many nodes are folded on the calling thread.
const ALONE_MAX: usize = 8;

/// A node of a tree of files.
#[derive(Clone, Debug)]
pub(crate) struct Inner {
    pub level: u8,
    pub at: u64,
    pub owner: TreeId,
    pub children: Box<[u64]>,
}

/// The address of no block. Among the children of a node it means that some are gone.
pub(crate) const NOWHERE: u64 = 0;

/// Summaries by address, rising.
type Level = Vec<(u64, LeafSummary)>;

fn find(level: &Level, at: u64) -> Option<&LeafSummary> {
    let i = level.binary_search_by_key(&at, |(at, _)| *at).ok()?;
    Some(&level[i].1)
}

/// Gives `f` a reporter that collects findings and checks what is reported of data: that it has checksums, or that it
/// has none.
pub(crate) fn with_reporter<R>(cx: &Context<'_>, csums: &Csums, f: impl FnOnce(Reporter<'_>) -> R) -> R {
    let report = |finding: Finding| cx.findings.report(finding);
    let data = |need: DataNeed| check_need(cx, csums, need);
    f(Reporter { report: &report, data: &data })
}

fn check_need(cx: &Context<'_>, csums: &Csums, need: DataNeed) {
    let covered = csums.covered(need.start, need.len);
    let place = || Place { block: Some(Logical(need.start)), ..Place::default() };
    if need.sums && covered < need.len {
        if !cx.lost_csum.load(std::sync::atomic::Ordering::Relaxed) {
            let want = format_args!("of all {}", need.len).to_string();
            cx.error(Kind::CsumMissing, place(), format_args!("checksums of {covered} bytes"), want);
        }
    } else if !need.sums && covered > 0 {
        cx.error(Kind::CsumOdd, place(), format_args!("checksums of {covered} bytes"), "none: NODATASUM");
    }
}

/// Folds and checks all trees of files.
pub(crate) fn check_trees(cx: &Context<'_>, trees: &[TreeStart], csums: &Csums, leaves: Level, mut nodes: Vec<Inner>) {
    nodes.sort_unstable_by_key(|node| (node.level, node.at));
    let mut below = leaves;
    below.sort_unstable_by_key(|(at, _)| *at);
    let (forest, input) = (Forest::default(), Input { volume: cx.volume });
    let mut level = 0;
    let mut rest = &nodes[..];
    with_reporter(cx, csums, |reporter| {
        loop {
            for tree in trees.iter().filter(|t| t.level == level) {
                if let Some(summaries) = find(&below, tree.logical.0) {
                    forest.tree(&cx.env, &input, tree, summaries.clone(), reporter);
                }
            }
            if rest.is_empty() {
                return;
            }
            level += 1;
            let (here, above) = rest.split_at(rest.partition_point(|node| node.level <= level));
            let one = |node: &Inner| (node.at, fold(cx, node, &below, reporter));
            let folded = match cx.parallel && here.len() > ALONE_MAX {
                true => here.par_iter().map(one).collect(),
                false => here.iter().map(one).collect(),
            };
            below = folded;
            rest = above;
        }
    });
}

/// Folds a node from its children.
fn fold(cx: &Context<'_>, node: &Inner, below: &Level, reporter: Reporter<'_>) -> LeafSummary {
    let lost = LeafSummary::lost();
    let mut children = node.children.iter().map(|child| find(below, *child).unwrap_or(&lost));
    let mut all = children.next().cloned().unwrap_or_default();
    children.for_each(|right| all.join(right, &cx.env, node.owner, reporter));
    all
}
