//! A log commit: what was put into the log's trees becomes durable.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use oleo_format::{Generation, Incompat, Logical};
use oleo_lock::{MutexGuard, rank};
use oleo_tree::{Node, TreeRoot};

use crate::TxnError;
use crate::engine::{Engine, Inner};
use crate::log::state::LogOnDisk;
use crate::log::{LogRecording, LogWritten, count_commit, fallback};

/// The right to write a log commit: no other is written while it lives; operations go on, and so do those who record.
pub struct LogCommit<'a> {
    inner: &'a Inner,
    sealed: Option<Sealed>,
    _one: MutexGuard<'a, rank::LogWriter, ()>,
}

/// What one log commit writes.
struct Sealed {
    generation: Generation,
    root: TreeRoot,
    blocks: Vec<Arc<Node>>,
    /// Blocks that nothing on disk leads to once it is written.
    replaced: Vec<Logical>,
}

impl Engine {
    /// Waits until no other log commit is in flight. The caller holds nothing.
    pub fn begin_log(&self) -> Result<LogCommit<'_>, TxnError> {
        let inner = &*self.0;
        inner.writable()?;
        let one = inner.log_writer.lock();
        inner.writable()?;
        Ok(LogCommit { inner, sealed: None, _one: one })
    }
}

impl LogCommit<'_> {
    /// Takes what was put into the log so far: it is what [`write`](Self::write) makes durable. What is put from now on is for the
    /// next log commit.
    pub fn seal(&mut self, recording: &LogRecording<'_>) {
        let mut log = self.inner.log.lock();
        let generation = recording.generation();
        if log.generation != generation.0 || log.dirty.is_empty() {
            return;
        }
        let Some(root) = log.root.clone() else { return };
        let (blocks, replaced) = (log.dirty.drain_sorted(), log.take_replaced());
        self.sealed = Some(Sealed { generation, root, blocks, replaced });
    }

    /// Makes what was sealed durable, with all data written before. Waits for a commit whose superblock the log is to be in. After a
    /// refusal the caller drops this and commits.
    ///
    /// # Errors
    /// Something could not be written; unless it was only for want of space, the engine is read-only from now on.
    pub fn write(&mut self) -> Result<LogWritten, TxnError> {
        let Some(sealed) = self.sealed.take() else { return Ok(LogWritten::Nothing) };
        let done = self.write_sealed(&sealed);
        if done.is_err() {
            // A superblock may name the new blocks already: they stay taken, and a commit says how this ends.
            self.inner.refuse_log(sealed.generation, fallback::NO_SPACE);
        }
        if let Ok(LogWritten::Done { .. }) = done {
            // Nothing on disk leads to what was replaced, now that the new superblock is durable.
            let mut log = self.inner.log.lock();
            if log.generation == sealed.generation.0 {
                log.idle.extend(sealed.replaced);
            }
        }
        done
    }

    fn write_sealed(&self, sealed: &Sealed) -> Result<LogWritten, TxnError> {
        let inner = self.inner;
        count_commit();
        let parts: Vec<(Logical, &[u8])> = sealed.blocks.iter().map(|n| (n.logical(), n.bytes())).collect();
        // While a commit settles and writes, too: no committed generation, that one included, names their places. Not when a commit
        // has given the places up.
        let given_up = inner.log_given_up.lock();
        let ours = *given_up < sealed.generation;
        if ours {
            inner.volume.write(&parts).map_err(|e| inner.poison_unless_full(e.into()))?;
        }
        drop(given_up);
        let mut commit_lock = None;
        let mut disk = inner.log_on_disk.lock();
        let is_due = |disk: &LogOnDisk| disk.has(sealed.generation) || (ours && disk.takes(sealed.generation));
        if !is_due(&disk) {
            drop(disk);
            commit_lock = Some(inner.commit_lock.lock());
            inner.writable()?;
            inner.write_unwritten()?;
            disk = inner.log_on_disk.lock();
        }
        if disk.has(sealed.generation) {
            return Ok(LogWritten::Committed);
        }
        if !ours {
            return Ok(LogWritten::Refused(fallback::NO_SPACE));
        }
        assert!(disk.takes(sealed.generation), "a log is for the transaction after the one on disk");
        if inner.volume.owes_commit() {
            return Ok(LogWritten::Refused(fallback::LOST_DEVICE));
        }
        disk.number += 1;
        let mut sb = disk.committed;
        sb.__unused_log_root_transid.set(disk.number);
        sb.log_root.set(sealed.root.logical.0);
        sb.log_root_level = sealed.root.level;
        let incompat = Incompat::from_bits_retain(inner.wanted_incompat.load(Ordering::Relaxed));
        sb.incompat_flags.set((sb.features().incompat | incompat).bits());
        inner.space.turn();
        inner.volume.write_log_super(&sb).map_err(|e| inner.poison_unless_full(e.into()))?;
        disk.logged = Some(sb);
        // Before the log is refused, whose lock comes before these.
        drop(disk);
        drop(commit_lock);
        if inner.volume.owes_commit() {
            // A device failed meanwhile: what it has looks as good as this.
            inner.refuse_log(sealed.generation, fallback::LOST_DEVICE);
            return Ok(LogWritten::Refused(fallback::LOST_DEVICE));
        }
        Ok(LogWritten::Done { bytes: parts.iter().map(|(_, bytes)| bytes.len() as u64).sum() })
    }
}
