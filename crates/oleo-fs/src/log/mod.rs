//! The log: what an fsync writes instead of a commit.
//!
//! A replay (ours or the kernel's) starts from the subvolume's tree of the last commit and has nothing but the log. So a log
//! commit contains not only what the caller asked for, but everything that the result needs to be a state that programs may
//! see: what was synced as it was, everything else as of the last commit or newer, each name once.
//!
//! Normal path: `sync` gathers the callers of one moment into a round; `record` turns their inodes into items, each caller its own where
//! it can, which the engine writes (`oleo_txn::LogCommit`). What changed follows from the delta that every inode keeps since the last commit
//! or, once it was logged, from its [`LogMark`]: so the second fsync logs what changed since the first, and one with nothing
//! changed writes nothing. Link and rename only mark: the next log commit of the subvolume brings
//! the names of all marked inodes up to date. They mark no ancestor, so that a directory that is synced later is logged.
//!
//! The rules, each with the shortest sequence that goes wrong without it ("sync" is a commit, then a crash after the last
//! operation):
//!
//! 1. *A logged inode brings its item, all its names and all its extended attributes.* A replay removes the attributes that the
//!    log does not have. `setxattr f a; sync; setxattr f b; fsync f`: with b alone a would be gone.
//! 2. *That an inode exists is said by generation 0 and size 0 in its item.* The replay then leaves what it finds as it is.
//!    `write f; sync; write f (not synced); link f g; fsync .`: f's new size without its data would be zeros. A symbolic
//!    link is always logged whole: its target is an extent.
//! 3. *New directories on the way to a logged name are logged as existing, up to the first that is committed.*
//!    `mkdir d; creat d/f; fsync d/f`: f would have a name in nothing.
//! 4. *So are ancestors that have another name than in the last commit.* `mkdir p p/q; sync; mv p/q q; mv p q/p; fsync q/p`:
//!    p would lie below q and q still below p, and neither below the root.
//! 5. *A committed name that a logged inode has no more is a range of deleted indices (DIR_LOG_INDEX) of its directory*, which is
//!    logged as existing. `creat a/f; sync; mv a/f b/f; fsync b/f`: f would have both names.
//! 6. *A name of the log that the inode has no more leaves the log with its entry.* `creat a/f; fsync a; mv a/f b/f; fsync x`:
//!    the entry in a would bring the old name back.
//! 7. *An inode that loses a committed name to the replay and lives is logged with the names it has.* It loses one by a deleted index
//!    (`sync; mv a/f b/f; fsync a`: f would be lost), to the new owner of the name (`sync; mv f g; mv h f; fsync f`: what is now
//!    g would be lost), and
//! 8. *with all others in it, when its directory is gone.* `creat d/f; sync; mv d/f f; rmdir d; fsync .`: the replay
//!    empties d before it goes, f with it.
//! 9. *The inode that by now has a name that a logged inode lost is logged*, so that a name that always had an owner has one.
//!    `creat b/f; exchange a/f b/f; fsync b`: nothing would be called a/f. Without the log: `creat f; fsync f; mv g f; fsync x`.
//! 10. *An inode without names leaves the log, and its committed names go.* `creat f; fsync f; unlink f; creat f; fsync f`: the
//!     first f would be back under the second's name. So do those of one that a logged inode replaced, when that leaves the
//!     name: `creat d/f; sync; mv x d/f; fsync d/f; mv d/f y; fsync z`: the first d/f would be back. A file that never had a name (O_TMPFILE) is logged whole
//!     when it is synced, though a replay passes over inodes without links: `fsync t; link t b/f; fsync b`: f would be empty.
//! 11. *A synced directory brings the entries that were added (with their inodes, as existing; new directories whole) and, as
//!     ranges, the indices that went*; only DIR_INDEX items, from which a replay makes the others. An index is not given out again
//!     in the transaction that freed it. `creat d/f; fsync d`: the entry would lead to an inode that is not there.
//! 12. *Where extents went, a hole says so, also on volumes whose holes have no items, and behind the end of the file.*
//!     `write f 0..9; sync; punch f 3..6; fsync f`: the old bytes would be seen. `truncate f 0; fsync f; truncate f 9; fsync f`:
//!     the first replayed size that says 0 is overwritten by the second, and with it what cut the old extents away.
//! 13. *All space behind the end is logged with the file*, also of one that only exists in the log: a replay cuts each
//!     logged file at its size. `fallocate -n f; fsync f`: the space would be lost.
//! 14. *The log's extents do not overlap*: what reaches into a changed range leaves the log and is logged anew (`record_data`).
//!     `punch f 0..9; fsync f; write f 3..6; fsync f`: the kernel would refuse the log as damaged.
//! 15. *Data that the checksum tree does not know brings its checksums*, of compressed extents those of the whole extent, of which
//!     a reader unpacks all. `write f; clone f g; fsync g`: g could not be read. They leave the log with the extent, unless others may
//!     need them: a file that grows by a few bytes with each fsync would else carry the sums of every sector that its end ever had.
//! 16. *What was overwritten in place is flushed though no extent has changed*: such files are never passed over by
//!     `fdatasync`. Nor are files whose names have changed: a name is a way to the data.
//! 17. *A synced file that was linked, renamed or unlinked in the transaction brings the directories it is in, and was in at the last
//!     commit, as if they were synced*: programs expect what happened to other names there before to be there, as with the kernel.
//!     `ln d/f d/g; mv e/h d/h; fsync d/g`: h would be in e. Once for each such change; a file that was only made brings no
//!     more than the new directories above it.
//!
//! What the log cannot say makes the round commit instead, counted by name in [`LogStats::full_commits_by`]
//! (`oleo_txn::fallback`): a subvolume or snapshot was made or deleted in the transaction, and the file is not in the log as a whole
//! (`subvolume`: `write f; snapshot; fsync f`: the snapshot has brought the change into the trees, and the inode does not know any more
//! what it was. Of a file that was logged before its mark knows. A new subvolume has no committed root that a log could be replayed
//! on), or concerns others (a directory, a new name); a subvolume was moved (`subvolume`, too); an entry of a
//! subvolume came or went (`subvolume-entry`: `mv subvol s2; fsync .`: a replay takes its number for that of a file); a
//! file with hundreds of names got or lost some (`many-names`: `ln f 1; …; ln f 1000; fsync f`: a kernel has been seen
//! to fail in its replay of such a log); data lies in a chunk that no chunk tree on disk has (`new-chunk`); there is no
//! room for log blocks (`no-space`); something could not be read (`unreadable`).
//!
//! An unsynced unlink may persist after a replay, and so may any change of an inode that the rules added to the log:
//! nothing is promised of what was not synced.
//!
//! `replay` applies a log that a crash left to the subvolumes it belongs to.
//!
//! Locks: see `sync`. Crash: a replay finds the last log commit, or the one before it, never a part.
//! Not here: the trees of the log and the superblock (`oleo_txn`).

mod mark;
mod record;
mod record_data;
mod record_names;
mod replay;
mod shared;
mod stats;
mod sync;
mod waiter;

pub(crate) use mark::LogMark;
pub use replay::{Replayed, replay};
pub(crate) use shared::Shared;
pub use stats::LogStats;
