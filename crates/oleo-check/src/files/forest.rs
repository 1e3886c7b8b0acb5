//! All trees of files of a volume, and the relations between trees.

use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use oleo_format::{DirEntry, Ino, ItemType, Key, TreeId};
use parking_lot::Mutex;

use super::claim::Sums;
use super::logs::{self, Log};
use super::qgroups::Qgroups;
use super::roots::{Entry, Roots};
use super::second_pass::SecondPass;
use super::uuids::Uuids;
use super::{Context, LeafSummary, Reporter};
use crate::finding::Kind;
use crate::input::{Env, Input, ReportFinding, TreeStart, Used};

/// A consumer of a tree's items, one by one.
type Each<'a> = &'a mut dyn FnMut(&Key, &[u8]);

/// All trees of files of a volume. Shared by threads.
#[derive(Debug, Default)]
pub(crate) struct Forest {
    /// Sums that did not balance and whose trees were read again already.
    looked: Mutex<HashSet<Sums>>,
    /// Sums of directories among which rings were searched already.
    edges: Mutex<HashSet<u128>>,
}

impl Forest {
    /// Checks a whole tree of files from the summary of its root block. If that does not add up, reads the tree again
    /// to name what is wrong. Trees that hold no files are skipped. The summary of a half-deleted tree begins with
    /// [`LeafSummary::lost`].
    pub fn tree(
        &self,
        env: &Env,
        input: &Input<'_>,
        start: &TreeStart,
        summaries: LeafSummary,
        reporter: Reporter<'_>,
    ) {
        if !start.tree.is_subvol() && start.tree != TreeId::DATA_RELOC {
            return;
        }
        let c = Context::new(env, start.tree, reporter);
        let is_half = start.drop_progress().is_some();
        self.check(&c, summaries, is_half, &mut |each| {
            input.each(start, Key::MIN, Key::MAX, &mut |key, item| {
                each(key, item);
                ControlFlow::Continue(())
            });
        });
    }

    /// Does the same for a tree that `read` reads.
    pub(super) fn check(&self, c: &Context<'_>, summaries: LeafSummary, is_half: bool, read: &mut dyn FnMut(Each<'_>)) {
        let closed = summaries.finish(c);
        if closed.lost || is_half {
            return;
        }
        if closed.root_dir != Some(true) {
            c.error(Kind::RootDir, Key::inode(Ino::ROOT_DIR), "no directory", "a directory");
        }
        // Snapshots with the same directories, or the same damage, are examined once.
        if closed.upward && self.edges.lock().insert(closed.edges) {
            for dir in rings(&closed.dirs) {
                c.error(Kind::DirRing, Key::inode(Ino(dir)), "a directory below itself", "one below the root");
            }
        }
        if closed.sums.balanced() || !self.looked.lock().insert(closed.sums) {
            return;
        }
        let mut look = SecondPass::default();
        while look.again() {
            read(&mut |key, item| look.item(key, item));
        }
        look.end(c);
    }
}

/// Follows every directory upwards, each once, and returns one of each ring. `dirs` are lists of directories and their
/// parents. A path ends at a directory that is not listed: the root directory, or one that is reported as missing
/// elsewhere.
fn rings(dirs: &[Arc<[(u64, u64)]>]) -> Vec<u64> {
    let mut all: Vec<(u64, u64)> = dirs.iter().flat_map(|list| list.iter().copied()).collect();
    all.sort_unstable();
    // 0: not visited; else the number of the walk that visited it.
    let mut seen = vec![0u32; all.len()];
    let mut found = Vec::new();
    for (first, walk) in (0..all.len()).zip(1u32..) {
        let mut at = first;
        while let (Some(mark), Some(&(dir, parent))) = (seen.get_mut(at), all.get(at)) {
            if *mark != 0 {
                if *mark == walk {
                    found.push(dir);
                }
                break;
            }
            *mark = walk;
            let Ok(next) = all.binary_search_by_key(&parent, |&(dir, _)| dir) else { break };
            at = next;
        }
    }
    found
}

/// Checks the relations between trees: root references, the uuid tree, orphans of the root tree, log trees, and with
/// `used` (given if quota is on) the numbers of quota groups. `trees` are all trees with root items in the order of
/// their keys, after the root tree and, if there is one, the root of log trees.
pub(crate) fn check_volume(
    env: &Env,
    input: &Input<'_>,
    trees: &[TreeStart],
    used: Option<&Used>,
    report: ReportFinding<'_>,
) {
    let reporter = Reporter { report, data: &|_| {} };
    let context = |tree| Context::new(env, tree, reporter);
    // Logs of single trees share one number and differ in the offset.
    let find = |tree| trees.iter().find(|start| start.tree == tree && start.key.offset == 0);
    let subvols: BTreeMap<TreeId, &TreeStart> = trees.iter().map(|start| (start.tree, start)).collect();
    let mut roots = Roots::default();
    // If a block cannot be read, its items would be reported as missing everywhere.
    let Some(start) = find(TreeId::ROOT) else { return };
    if !all(input, start, &mut |key, item| roots.item(key, item)) {
        return;
    }
    roots.check(&context(TreeId::ROOT), &mut |tree, dir, index| {
        subvols.get(&tree).map_or(Entry::Unknown, |start| entry(input, start, dir, index))
    });
    if let Some(start) = find(TreeId::UUID)
        && env.sb.uuid_tree_generation == env.sb.generation
    {
        let mut uuids = Uuids::default();
        if all(input, start, &mut |key, item| uuids.item(key, item)) {
            uuids.check(&context(TreeId::UUID), &roots);
        }
    }
    if let Some(start) = find(TreeId::QUOTA) {
        let mut qgroups = Qgroups::default();
        if all(input, start, &mut |key, item| qgroups.item(key, item)) {
            qgroups.check(&context(TreeId::QUOTA), &roots, used);
        }
    }
    if let Some(start) = find(TreeId::TREE_LOG) {
        check_logs(&context(TreeId::TREE_LOG), input, start, &roots);
    }
}

/// Checks the root of log trees and all logs.
fn check_logs(c: &Context<'_>, input: &Input<'_>, start: &TreeStart, roots: &Roots) {
    let mut logs = Vec::new();
    all(input, start, &mut |key, item| {
        if key.item_type == ItemType::ROOT_ITEM
            && let Some(root) = logs::check_root(c, roots, key, item)
        {
            logs.push(TreeStart::of_item(*key, root));
        }
    });
    for start in logs {
        let mut log = Log::default();
        all(input, &start, &mut |key, item| log.item(c, key, item));
    }
}

/// Reads a tree; false if one of its blocks cannot be read.
fn all(input: &Input<'_>, start: &TreeStart, each: &mut dyn FnMut(&Key, &[u8])) -> bool {
    input.each(start, Key::MIN, Key::MAX, &mut |key, item| {
        each(key, item);
        ControlFlow::Continue(())
    })
}

/// Returns what an index of a directory leads to.
fn entry(input: &Input<'_>, start: &TreeStart, dir: Ino, index: u64) -> Entry {
    let key = Key::dir_index(dir, index);
    let mut found = Entry::Nothing;
    let whole = input.each(start, key, key, &mut |_, item| {
        found = DirEntry::parse(item).map_or(Entry::Unknown, Entry::Is);
        ControlFlow::Break(())
    });
    if whole || found != Entry::Nothing { found } else { Entry::Unknown }
}
