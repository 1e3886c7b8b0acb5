//! fsync: many callers, one log commit.
//!
//! Normal path: (1) the caller writes out what the file has buffered; (2) it records what the log needs of its inode and enters that
//! in the open round ([`Recorder::alone`]); if other inodes are concerned, or an earlier record of the inode is not in the log's
//! trees yet, it enters the inode, and the leader records it; (3) if nobody leads, the caller leads: it closes the round, merges what the
//! callers have recorded, records the rest (`record`), writes the log, tells one of those who came meanwhile to lead, and wakes the callers of
//! its round, each by itself. While it writes, others record for the next round.
//!
//! If the log cannot express a change, or anything fails on the way, the leader commits instead; if that fails too, each caller of the
//! round requests a commit of its own and so gets the error.
//!
//! Invariant: an inode's record is made from the log's trees with all earlier records of it in them, and enters the round under the
//! inode's lock. So the lists of one round have no key in common, but for checksums, which are equal.
//!
//! Locks: the queue's is a leaf. The engine's `log_recording` is read while a caller records its inode, and written while the leader
//! records inodes that others have entered. Joins are blocked while inodes are recorded whose names have changed, or that are
//! directories: what several inodes say of each other must be of one moment. A pass over them with joins allowed comes first, so that
//! nothing is read from disk while it is closed.

use std::sync::Arc;
use std::time::Instant;

use oleo_format::{Generation, Ino, InodeFlags, ItemType, TreeId};
use oleo_tree::Change;
use oleo_txn::{LogCommit, LogRecording, LogWritten, fallback};

use crate::fs::Fs;
use crate::log::mark::Depth;
use crate::log::record::{Marking, Recorder};
use crate::log::shared::{Lists, Role, Round, Shared};
use crate::log::stats::LogStats;
use crate::log::waiter::{Ended, Waiter};
use crate::object::{Core, Inode, InodeRef, Items, ReadGuard};
use crate::{FileKind, FsError};

/// How often a leader lets others run before it closes its round: each takes no longer than those that run have to record.
const GATHER_MAX: usize = 8;

/// Leads a round. When it ends, however that comes about, the next is led by somebody else; a round that was not made durable has
/// failed.
struct Leading<'a> {
    shared: &'a Shared,
    closed: bool,
    good: bool,
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        if !self.closed {
            self.shared.queue.lock().close();
        }
        self.shared.finish(self.good);
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
    /// Enters the inode in the open round and waits for its end.
    fn sync_in_round(self: &Arc<Self>, inode: &Arc<Inode>) -> Result<(), FsError> {
        let good = match self.enter(inode) {
            Ok(Role::Lead) => self.lead(),
            Ok(Role::Wait(waiter)) => self.wait(&waiter),
            Ok(Role::Durable) => true,
            Ok(Role::Refused) | Err(_) => false,
        };
        // The commit says what is wrong.
        if good { Ok(()) } else { Ok(self.engine().commit().map(drop)?) }
    }

    /// Waits for the end of the round that a caller has entered, or leads it.
    fn wait(self: &Arc<Self>, waiter: &Arc<Waiter>) -> bool {
        match waiter.wait(|waiter| self.log.queue.lock().look(waiter)) {
            Ended::Leads => self.lead(),
            Ended::Durable => true,
            Ended::Failed => false,
        }
    }

    /// Enters the inode in the open round: with its changes, if they concern no other inode, or for the leader to record them.
    fn enter(self: &Arc<Self>, inode: &Arc<Inode>) -> Result<Role, FsError> {
        let recording = self.engine().record_log()?;
        if recording.fallback().is_some()
            || inode.subvol().is_deleted()
            || self.log.has_renamed(inode.tree(), recording.generation())
        {
            return Ok(self.log.queue.lock().enter_named(inode));
        }
        let (open, put) = {
            let queue = self.log.queue.lock();
            (queue.open, queue.put)
        };
        // After `put` was read: what was put by then is in it.
        // Whatever is wrong, the leader finds it too, and commits.
        let Ok(recorder) = Recorder::new(self, &recording, inode.tree(), Marking::Now(open)) else {
            return Ok(self.log.queue.lock().enter_named(inode));
        };
        let mut guard = inode.write();
        let generation = recording.generation();
        let staged = recording.is_staged();
        if !guard.state().has_open() && !staged {
            // A commit in flight has it all.
            drop((guard, recorder));
            drop(recording);
            let durable = self.engine().wait_durable(Generation(generation.0 - 1))?;
            return Ok(if durable { Role::Durable } else { Role::Refused });
        }
        let mark = guard.state().log.as_ref().filter(|mark| mark.generation == generation);
        let in_a_round = mark.map(|mark| (mark.round, mark.has(Depth::Whole)));
        let state = guard.state();
        let alone = state.is_nameless_change(generation) && !state.gone && state.fields.nlink > 0;
        match in_a_round {
            Some((round, true)) if alone => return Ok(self.log.queue.lock().enter_with(round)),
            Some((round, _)) if round > put => return Ok(self.log.queue.lock().enter_named(inode)),
            _ if !alone => return Ok(self.log.queue.lock().enter_named(inode)),
            // What it had before a stage is known of what the log has whole.
            _ if staged && mark.is_none_or(|mark| mark.depth != Depth::Whole) => {
                return Ok(self.log.queue.lock().enter_named(inode));
            }
            _ => {}
        }
        let Ok(Ok(changes)) = recorder.alone(&mut guard, open) else {
            return Ok(self.log.queue.lock().enter_named(inode));
        };
        let mut queue = self.log.queue.lock();
        if let Some(mark) = &mut guard.state_mut().log {
            mark.round = queue.open;
        }
        Ok(queue.enter_list(generation, inode.tree(), changes))
    }

    /// Closes a round and makes it durable; false if neither the log nor a commit could.
    fn lead(self: &Arc<Self>) -> bool {
        let mut leading = Leading { shared: &self.log, closed: false, good: false };
        let Ok(mut log) = self.engine().begin_log() else { return false };
        let outcome = self.write_round(&mut log, &mut leading).unwrap_or(Outcome::Refused(fallback::UNREADABLE));
        drop(log);
        leading.good = match outcome {
            Outcome::Idle | Outcome::Logged => true,
            Outcome::Refused(rule) => {
                self.log.stats.full_commit(rule);
                self.engine().commit().is_ok()
            }
        };
        leading.good
    }

    /// Lets others enter first if the round before had several callers, who are on their way again: a flush for many costs what one for
    /// few does. Whoever syncs alone waits for nobody.
    fn gather(&self) {
        for _ in 0..GATHER_MAX {
            let (waiting, before) = self.log.queue.lock().callers();
            if waiting + 1 >= before {
                break;
            }
            std::thread::yield_now();
        }
    }

    fn write_round(self: &Arc<Self>, log: &mut LogCommit<'_>, leading: &mut Leading<'_>) -> Result<Outcome, FsError> {
        let engine = self.engine();
        self.gather();
        let mut recording = None;
        if !self.log.queue.lock().has_named() {
            recording = Some(engine.record_log()?);
        }
        let mut queue = self.log.queue.lock();
        let recording = match recording.filter(|_| !queue.has_named()) {
            Some(recording) => recording,
            None => {
                drop(queue);
                // Nobody records meanwhile, so that what all have recorded is in the round.
                let recording = engine.record_log_alone()?;
                queue = self.log.queue.lock();
                recording
            }
        };
        let round = queue.close();
        drop(queue);
        leading.closed = true;
        self.log.stats.batch(round.callers);
        let generation = recording.generation();
        let put = self.put_round(&recording, round);
        let put = put.inspect_err(|_| recording.fall_back(fallback::UNREADABLE))?;
        if let Err(rule) = put {
            recording.fall_back(rule);
            return Ok(Outcome::Refused(rule));
        }
        log.seal(&recording);
        drop(recording);
        match log.write()? {
            LogWritten::Nothing if !engine.wait_durable(Generation(generation.0 - 1))? => {
                Ok(Outcome::Refused(fallback::UNREADABLE))
            }
            LogWritten::Nothing | LogWritten::Committed => Ok(Outcome::Idle),
            LogWritten::Done { bytes } => {
                self.log.stats.log_commit(bytes);
                Ok(Outcome::Logged)
            }
            LogWritten::Refused(rule) => Ok(Outcome::Refused(rule)),
        }
    }

    /// Puts what a round has recorded, and what its leader has to record, into the log's trees.
    fn put_round(
        self: &Arc<Self>,
        recording: &LogRecording<'_>,
        round: Round,
    ) -> Result<Result<(), &'static str>, FsError> {
        let Round { number, generation, lists, named, .. } = round;
        if recording.is_staged() && !named.is_empty() {
            return Ok(Err(fallback::STAGED));
        }
        let changed: Vec<Arc<Inode>> = named.into_iter().filter(|inode| inode.read().state().has_open()).collect();
        // Lists of an earlier generation are part of its commit.
        let lists = if generation == recording.generation() { lists } else { Lists::new() };
        if let Some(rule) = recording.fallback() {
            return Ok(Err(rule));
        }
        self.check_not_poisoned()?;
        if !lists.is_empty()
            && let Err(rule) = recording.put(&merged(lists))?
        {
            return Ok(Err(rule));
        }
        let mut trees: Vec<(TreeId, Vec<Arc<Inode>>)> = Vec::new();
        for inode in changed.into_iter().filter(|inode| !inode.subvol().is_deleted()) {
            match trees.iter_mut().find(|(tree, _)| *tree == inode.tree()) {
                Some((_, inodes)) => inodes.push(inode),
                None => trees.push((inode.tree(), vec![inode])),
            }
        }
        let mut batches: Lists = Vec::new();
        for (tree, inodes) in &trees {
            match self.record(recording, *tree, inodes, number)? {
                Ok(changes) => batches.push((*tree, changes)),
                Err(rule) => return Ok(Err(rule)),
            }
        }
        if !batches.is_empty()
            && let Err(rule) = recording.put(&batches)?
        {
            return Ok(Err(rule));
        }
        self.log.queue.lock().put = number;
        Ok(Ok(()))
    }

    /// What the log of a subvolume needs for these inodes, or why it cannot have it.
    fn record(
        self: &Arc<Self>,
        recording: &LogRecording<'_>,
        tree: TreeId,
        inodes: &[Arc<Inode>],
        round: u64,
    ) -> Result<Result<Vec<Change>, &'static str>, FsError> {
        let alone = |inode: &Arc<Inode>| inode.read().is_nameless_change();
        let apart = inodes.iter().all(alone) && !self.log.has_renamed(tree, recording.generation());
        if !apart && let Ok(mut rehearsal) = Recorder::new(self, recording, tree, Marking::Never) {
            // Whatever this finds or fails at: it only brings blocks and inodes into memory.
            let renamed = self.log.all_renamed(tree, recording.generation());
            renamed.iter().for_each(|inode| rehearsal.add(inode.ino(), Depth::Exists));
            inodes.iter().for_each(|inode| rehearsal.ask(inode.ino()));
            let _ = rehearsal.run();
        }
        let mut recorder = Recorder::new(self, recording, tree, Marking::Now(round))?;
        if !apart {
            recorder.block_joins();
        }
        inodes.iter().for_each(|inode| recorder.ask(inode.ino()));
        recorder.run()
    }
}

/// The lists of one subvolume as one, sorted. The same key comes from several of them only with the same content: checksums.
fn merged(lists: Lists) -> Lists {
    let mut merged: Lists = Vec::new();
    for (tree, mut changes) in lists {
        match merged.iter_mut().find(|(known, _)| *known == tree) {
            Some((_, all)) => all.append(&mut changes),
            None => merged.push((tree, changes)),
        }
    }
    for (_, changes) in &mut merged {
        changes.sort_by_key(|change| change.key);
        changes.dedup_by_key(|change| change.key);
    }
    merged
}
