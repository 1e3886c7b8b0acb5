//! Which steps of a script promise what: those that request it, and those whose file or directory has a flag to keep
//! every change.

use std::collections::BTreeMap;

use super::model::Promise;
use super::seen::{Id, Seen};
use crate::manifest::Kind;
use crate::script::{Keep, Op, RenameHow};

/// What the script so far has requested to be kept.
#[derive(Clone, Debug, Default)]
pub struct Promises {
    kept: BTreeMap<Id, Keep>,
}

impl Promises {
    /// What a step that has returned well made durable.
    pub fn of(&mut self, op: &Op, after: &Seen) -> Option<Promise> {
        match op {
            Op::Keep { path, keep } => {
                let id = after.find(path)?;
                self.kept.insert(id, *keep);
                None
            }
            Op::Sync => Some(Promise::All),
            Op::Fsync { path } => after.find(path).map(Promise::Inode),
            Op::Fdatasync { path } => after.find(path).map(Promise::Data),
            Op::Tmpfile { path, sync: true, .. } => after.find(path).map(Promise::Unnamed),
            Op::Write { path, .. }
            | Op::Truncate { path, .. }
            | Op::Punch { path, .. }
            | Op::Zero { path, .. }
            | Op::Prealloc { path, .. }
            | Op::Clone { to: path, .. } => {
                let file = after.find(path)?;
                (self.kept.get(&file) == Some(&Keep::All)).then_some(Promise::Inode(file))
            }
            Op::Create { path, .. }
            | Op::Mkdir { path, .. }
            | Op::Symlink { path, .. }
            | Op::Mknod { path, .. }
            | Op::Unlink { path }
            | Op::Rmdir { path }
            | Op::Link { to: path, .. } => self.names(path, after),
            // Between two names of one file it changes nothing, and does not reach the file system.
            Op::Rename { from, to, how } => {
                let left = after.find(from);
                let changed = if *how == RenameHow::Exchange { left != after.find(to) } else { left.is_none() };
                if changed { self.names(to, after) } else { None }
            }
            _ => None,
        }
    }

    /// What a change of this name promises.
    fn names(&self, path: &str, after: &Seen) -> Option<Promise> {
        let dir = after.find(path.rsplit_once('/').map_or("", |(dir, _)| dir))?;
        self.kept.contains_key(&dir).then_some(Promise::Inode(dir))
    }
}

/// Whether a step is to make something durable that is there: nothing but a fault may be in its way.
pub fn is_owed(op: &Op, before: &Seen) -> bool {
    match op {
        Op::Sync => true,
        Op::Fsync { path } | Op::Fdatasync { path } => {
            let node = before.find(path).and_then(|id| before.nodes.get(&id));
            node.is_some_and(|node| !node.empty_subvol_dir && matches!(node.kind, Kind::File | Kind::Dir))
        }
        _ => false,
    }
}
