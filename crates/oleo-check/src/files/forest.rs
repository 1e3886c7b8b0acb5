//! All trees of files of a volume, and what binds them.

use std::collections::HashSet;
use std::ops::ControlFlow;

use oleo_format::{Ino, Key, TreeId};
use parking_lot::Mutex;

use super::claim::Sums;
use super::look::Look;
use super::{Context, Facts, Hear};
use crate::feed::{Env, Feed, Share, Tell, TreeStart};
use crate::finding::Kind;

/// All trees of files of a volume. Shared by threads.
#[derive(Debug, Default)]
pub(crate) struct Forest {
    /// Sums that did not balance, and sums of directories that may form a ring: those that were looked into already.
    looked: Mutex<HashSet<(Sums, u128)>>,
}

impl Forest {
    /// Judges a whole tree of files from the facts of its root block; where they do not add up, reads it again to name what
    /// is wrong. Trees that hold no files are passed over. Where a tree is half deleted, its facts begin with [`Facts::lost`].
    pub fn tree(&self, env: &Env, feed: &Feed<'_>, start: &TreeStart, facts: Facts, hear: Hear<'_>) {
        if !start.tree.is_subvol() && start.tree != TreeId::DATA_RELOC {
            return;
        }
        let c = Context::new(env, start.tree, hear);
        let is_half = start.drop_progress().is_some();
        self.judge(&c, facts, is_half, &mut |each| {
            feed.each(start, Key::MIN, Key::MAX, &mut |key, item| {
                each(key, item);
                ControlFlow::Continue(())
            });
        });
    }

    /// The same for a tree that `read` reads.
    pub(super) fn judge(
        &self,
        c: &Context<'_>,
        facts: Facts,
        is_half: bool,
        read: &mut dyn FnMut(&mut dyn FnMut(&Key, &[u8])),
    ) {
        let closed = facts.finish(c);
        if closed.lost || is_half {
            return;
        }
        if closed.root_dir != Some(true) {
            c.error(Kind::RootDir, Key::inode(Ino::ROOT_DIR), "no directory", "a directory");
        }
        let edges = if closed.upward { closed.edges } else { 0 };
        // Snapshots of one damage, or with the same directories, are looked into once.
        if closed.sums.balanced() && edges == 0 || !self.looked.lock().insert((closed.sums, edges)) {
            return;
        }
        let mut look = Look::new(&closed);
        while look.again() {
            read(&mut |key, item| look.item(key, item));
        }
        look.end(c);
    }
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
