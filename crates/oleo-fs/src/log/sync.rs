//! fsync: many callers, one log commit.
//!
//! Normal path: (1) the caller writes out what the file has buffered; (2) it enters its inode in the round that has not begun;
//! (3) if nobody leads, the caller leads: it waits for a commit in flight, closes the round, records all its inodes
//! (`record`), writes the log, and wakes the others; callers that came meanwhile are the next round.
//!
//! If the log cannot express a change, or anything fails on the way, the leader commits instead; if that fails too, each caller of the
//! round requests a commit of its own and so gets the error.
//!
//! Locks: the queue's is a leaf. The engine's commit lock is held by the leader through its log commit, with nothing of ours;
//! joins are blocked while inodes are recorded whose names have changed, or that are directories: what several inodes say
//! of each other must be of one moment. A pass over them with joins allowed comes first, so that nothing is read from
//! disk while it is closed.

use std::sync::Arc;
use std::time::Instant;

use oleo_format::{Generation, Ino, InodeFlags, ItemType, TreeId};
use oleo_tree::Change;
use oleo_txn::{LogCommit, LogWritten, fallback};

use crate::fs::Fs;
use crate::log::mark::Depth;
use crate::log::record::{Marking, Recorder};
use crate::log::shared::Shared;
use crate::log::stats::LogStats;
use crate::object::{Core, Inode, InodeRef, Items, ReadGuard};
use crate::{FileKind, FsError};

/// Leads a round. When it ends, however that comes about, somebody else may lead; a round that was not made durable has failed.
struct Leading<'a> {
    shared: &'a Shared,
    good: bool,
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock();
        queue.leading = false;
        queue.done = queue.begun;
        if !self.good {
            queue.failed = queue.done;
        }
        self.shared.turn.notify_all();
    }
}

/// How a round ended.
enum Outcome {
    Idle,
    Logged,
    Refused(&'static str),
}

impl Fs {
    /// Makes one file or directory durable, with the names it has; of a directory, its entries. Does nothing if it is
    /// durable already.
    pub fn fsync(&self, inode: &InodeRef) -> Result<(), FsError> {
        self.timed(inode, false)
    }

    /// The same, but for changes that reading the data does not need: times, mode, owner.
    pub fn fdatasync(&self, inode: &InodeRef) -> Result<(), FsError> {
        self.timed(inode, true)
    }

    /// What calls of [`fsync`](Fs::fsync) have cost since the file system was opened.
    pub fn log_stats(&self) -> LogStats {
        self.core().log.stats.read()
    }

    fn timed(&self, inode: &InodeRef, data_only: bool) -> Result<(), FsError> {
        let begin = Instant::now();
        let done = self.make_durable(inode, data_only);
        self.core().log.stats.fsync(begin.elapsed());
        done
    }

    fn make_durable(&self, inode: &InodeRef, data_only: bool) -> Result<(), FsError> {
        let core = self.core();
        if inode.data.is_dirty() {
            inode.flush()?;
        }
        if self.poisoned_by().is_some() || inode.subvol().is_deleted() {
            return Ok(self.engine().commit().map(drop)?);
        }
        let durable = self.engine().durable();
        {
            let guard = inode.read();
            let settled = !guard.changed_after(durable) && !has_uncommitted_place(inode, durable);
            if settled || (data_only && has_data_durable(&guard)?) {
                core.log.stats.idle();
                return Ok(());
            }
        }
        core.sync_in_round(inode)
    }
}

/// Whether the subvolume that the inode is in may have been made, or may have moved if the inode is its root, since the last
/// commit: then that has to be durable as well, though nothing in it has changed.
fn has_uncommitted_place(inode: &Inode, durable: Generation) -> bool {
    if inode.core().engine().trees_are_durable() {
        return false;
    }
    let made = inode.subvol().root_item().map_or(0, |item| item.otransid.get());
    inode.ino() == Ino::ROOT_DIR || made > durable.0
}

/// Whether nothing has changed since the last commit but what `fdatasync` does not promise.
fn has_data_durable(guard: &ReadGuard<'_>) -> Result<bool, FsError> {
    let state = guard.state();
    let fields = guard.fields();
    let in_place = InodeFlags::from_bits_retain(fields.flags).intersects(InodeFlags::NODATACOW | InodeFlags::PREALLOC);
    // Bytes that were overwritten in place are seen in the times only.
    if fields.kind() != FileKind::File || in_place || guard.is_uncommitted() || fields.nlink == 0 {
        return Ok(false);
    }
    // A commit under way has taken the changes away from the inode, and is not durable yet.
    if !guard.inode().core().engine().trees_are_durable() {
        return Ok(false);
    }
    // New names are a way to the data.
    let changed = [ItemType::EXTENT_DATA, ItemType::INODE_REF, ItemType::INODE_EXTREF];
    Ok(!changed.into_iter().any(|t| state.has_open_of(t)) && guard.committed_size()? == Some(fields.size))
}

impl Core {
    /// Enters the inode in the next round and waits for its end.
    fn sync_in_round(self: &Arc<Self>, inode: &Arc<Inode>) -> Result<(), FsError> {
        let shared = &self.log;
        let mut queue = shared.queue.lock();
        queue.waiting.push(inode.clone());
        let mine = queue.begun + 1;
        while queue.done < mine {
            if queue.leading {
                shared.turn.wait(&mut queue);
                continue;
            }
            queue.leading = true;
            drop(queue);
            let mut leading = Leading { shared, good: false };
            leading.good = self.lead();
            drop(leading);
            queue = shared.queue.lock();
        }
        let failed = queue.failed >= mine;
        drop(queue);
        if failed { Ok(self.engine().commit().map(drop)?) } else { Ok(()) }
    }

    /// Closes a round and makes it durable; false if neither the log nor a commit could.
    fn lead(self: &Arc<Self>) -> bool {
        let Ok(mut log) = self.engine().begin_log() else {
            self.close_round();
            return false;
        };
        let round = self.close_round();
        self.log.stats.batch(round.len());
        let outcome = self.write_round(&mut log, round).unwrap_or(Outcome::Refused(fallback::UNREADABLE));
        if let Outcome::Refused(rule) = outcome {
            log.fall_back(rule);
            drop(log);
            self.log.stats.full_commit(rule);
            return self.engine().commit().is_ok();
        }
        true
    }

    fn close_round(&self) -> Vec<Arc<Inode>> {
        let mut queue = self.log.queue.lock();
        queue.begun += 1;
        std::mem::take(&mut queue.waiting)
    }

    fn write_round(self: &Arc<Self>, log: &mut LogCommit<'_>, round: Vec<Arc<Inode>>) -> Result<Outcome, FsError> {
        // A commit may have been in flight that had it all.
        let changed: Vec<Arc<Inode>> = round.into_iter().filter(|inode| inode.read().state().has_open()).collect();
        if changed.is_empty() && log.fallback().is_none() {
            return Ok(Outcome::Idle);
        }
        if let Some(rule) = log.fallback() {
            return Ok(Outcome::Refused(rule));
        }
        self.check_not_poisoned()?;
        let mut trees: Vec<(TreeId, Vec<Arc<Inode>>)> = Vec::new();
        for inode in changed.into_iter().filter(|inode| !inode.subvol().is_deleted()) {
            match trees.iter_mut().find(|(tree, _)| *tree == inode.tree()) {
                Some((_, inodes)) => inodes.push(inode),
                None => trees.push((inode.tree(), vec![inode])),
            }
        }
        let mut batches: Vec<(TreeId, Vec<Change>)> = Vec::new();
        for (tree, inodes) in &trees {
            match self.record(log, *tree, inodes)? {
                Ok(changes) => batches.push((*tree, changes)),
                Err(rule) => return Ok(Outcome::Refused(rule)),
            }
        }
        Ok(match log.write(&batches)? {
            LogWritten::Nothing => Outcome::Idle,
            LogWritten::Done { bytes } => {
                self.log.stats.log_commit(bytes);
                Outcome::Logged
            }
            LogWritten::Refused(rule) => Outcome::Refused(rule),
        })
    }

    /// What the log of a subvolume needs for these inodes, or why it cannot have it.
    fn record(
        self: &Arc<Self>,
        log: &LogCommit<'_>,
        tree: TreeId,
        inodes: &[Arc<Inode>],
    ) -> Result<Result<Vec<Change>, &'static str>, FsError> {
        let alone = |inode: &Arc<Inode>| inode.read().is_nameless_change();
        let apart = inodes.iter().all(alone) && !self.log.has_renamed(tree);
        if !apart && let Ok(mut rehearsal) = Recorder::new(self, log, tree, Marking::Never) {
            // Whatever this finds or fails at: it only brings blocks and inodes into memory.
            let renamed = self.log.renamed.lock().get(&tree).cloned().unwrap_or_default();
            renamed.iter().for_each(|inode| rehearsal.add(inode.ino(), Depth::Exists));
            inodes.iter().for_each(|inode| rehearsal.ask(inode.ino()));
            let _ = rehearsal.run();
        }
        let mut recorder = Recorder::new(self, log, tree, Marking::Now)?;
        if !apart {
            recorder.block_joins();
        }
        inodes.iter().for_each(|inode| recorder.ask(inode.ino()));
        recorder.run()
    }
}
