//! What is inside the trees of files: one judge per tree, fed with its items in key order.
//!
//! How it is fed is told in `feed`.

use oleo_format::{CheckedNode, Key};

use crate::feed::{Env, Feed, Share, Tell, TreeStart};

/// What of a run of leaves matters beyond it. Kept for every leaf and node of the volume that a tree of files has, so
/// small: a few hundred bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {}

impl Facts {
    /// Judges a leaf by itself; findings name its owner. Called once for each leaf, from many threads.
    pub fn of_leaf(_env: &Env, _leaf: &CheckedNode, _tell: Tell<'_>) -> Facts {
        Facts {}
    }

    /// Those of this run and the one that follows it directly.
    pub fn join(&mut self, _right: &Facts) {}

    /// Whether these, as those of a whole tree, add up. If not, the tree is read again and fed to a [`TreeJudge`].
    pub fn is_closed(&self, _env: &Env, _tree: &TreeStart) -> bool {
        true
    }
}

/// Judges one tree from all its items.
pub(crate) struct TreeJudge {}

impl TreeJudge {
    /// For this tree.
    pub fn new(_env: &Env, _tree: &TreeStart) -> TreeJudge {
        TreeJudge {}
    }

    /// The next item; keys rise.
    pub fn item(&mut self, _key: &Key, _item: &[u8], _tell: Tell<'_>) {}

    /// That was the last.
    pub fn end(self, _tell: Tell<'_>) {}
}

/// Judges what ties trees to each other: root references, the uuid tree, orphans of the root tree, log trees, and with
/// `shares` (given when quota is on) the numbers of quota groups. `trees` are all trees that have root items, in the order of
/// their keys, after the root tree and, if there is one, the root of log trees.
pub(crate) fn judge_volume(
    _env: &Env,
    _feed: &Feed<'_>,
    _trees: &[TreeStart],
    _shares: Option<&[Share]>,
    _tell: Tell<'_>,
) {
}
