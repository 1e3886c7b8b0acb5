//! All trees of files of a volume, and what binds them.

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

/// Takes the items of a tree, one by one.
type Each<'a> = &'a mut dyn FnMut(&Key, &[u8]);

/// All trees of files of a volume. Shared by threads.
#[derive(Debug, Default)]
pub(crate) struct Forest {
    /// Sums that did not balance and were looked into already.
    looked: Mutex<HashSet<Sums>>,
    /// Sums of directories among which rings were searched already.
    edges: Mutex<HashSet<u128>>,
}

impl Forest {
    /// Checks a whole tree of files from the summaries of its root block; where they do not add up, reads it again to name what
    /// is wrong. Trees that hold no files are passed over. Where a tree is half deleted, its summaries begin with
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

    /// The same for a tree that `read` reads.
    pub(super) fn check(&self, c: &Context<'_>, summaries: LeafSummary, is_half: bool, read: &mut dyn FnMut(Each<'_>)) {
        let closed = summaries.finish(c);
        if closed.lost || is_half {
            return;
        }
        if closed.root_dir != Some(true) {
            c.error(Kind::RootDir, Key::inode(Ino::ROOT_DIR), "no directory", "a directory");
        }
        // Snapshots with the same directories, or of one damage, are looked into once.
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

/// Follows every directory upwards, each once, and returns one of each ring. In the lists are directories and where they
/// are; what is not there ends a way: the root directory, and directories of which others say that they are missing.
fn rings(dirs: &[Arc<[(u64, u64)]>]) -> Vec<u64> {
    let mut all: Vec<(u64, u64)> = dirs.iter().flat_map(|list| list.iter().copied()).collect();
    all.sort_unstable();
    // 0: not yet; else the number of the walk that came by.
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

/// Checks what ties trees to each other: root references, the uuid tree, orphans of the root tree, log trees, and with
/// `used` (given when quota is on) the numbers of quota groups. `trees` are all trees that have root items, in the order of
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
    // Logs of single trees have the number of all of them, and offsets.
    let find = |tree| trees.iter().find(|start| start.tree == tree && start.key.offset == 0);
    let subvols: BTreeMap<TreeId, &TreeStart> = trees.iter().map(|start| (start.tree, start)).collect();
    let mut roots = Roots::default();
    // Where a block cannot be read, what is in it would be missed everywhere.
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

/// Reads a tree; false if a block of it cannot be read.
fn all(input: &Input<'_>, start: &TreeStart, each: &mut dyn FnMut(&Key, &[u8])) -> bool {
    input.each(start, Key::MIN, Key::MAX, &mut |key, item| {
        each(key, item);
        ControlFlow::Continue(())
    })
}

/// What is at an index of a directory.
fn entry(input: &Input<'_>, start: &TreeStart, dir: Ino, index: u64) -> Entry {
    let key = Key::dir_index(dir, index);
    let mut found = Entry::Nothing;
    let whole = input.each(start, key, key, &mut |_, item| {
        found = DirEntry::parse(item).map_or(Entry::Unknown, Entry::Is);
        ControlFlow::Break(())
    });
    if whole || found != Entry::Nothing { found } else { Entry::Unknown }
}
