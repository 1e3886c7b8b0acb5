//! Applies streams.
//!
//! Normal path of [`receive`]: (1) a thread of its own reads the input, verifies it and gathers commands into blocks
//! (`blocks`); (2) the interpreter takes block after block and checks the order of commands and every path in them
//! (`interpret`, `paths`); (3) it passes runs of commands on one subvolume to the [`Target`] together, so that the
//! target can prepare their data on all cores and install it in batches while it applies later commands; (4) at the
//! END, or when the next subvolume begins, the target finishes the subvolume: it records what was received and makes it
//! read-only.
//!
//! Targets: [`FsTarget`], a btrfs file system opened by Oleo; on Linux `DirTarget`, too, a directory of any file system.
//!
//! Invariants: only the subvolume being received is changed. No path leaves it: components are names, links on the way
//! are not followed, other subvolumes are not entered. Memory is bounded whatever the stream contains: a few blocks,
//! and caches of fixed size.
//!
//! Errors and crashes: a subvolume that is being received carries a mark (`mark`), the extended attribute [`MARK`],
//! which is removed when it is complete. After an error the mark records up to which byte the stream was applied, if
//! that is known exactly; `resume` continues there. If nothing is to be left, incomplete subvolumes are deleted. The
//! caller commits.
//! Not here: opening images, permissions, committing at the end.

mod blocks;
#[cfg(target_os = "linux")]
mod copy_tree;
#[cfg(target_os = "linux")]
mod dir_target;
mod fs_target;
mod interpret;
mod mark;
mod paths;

use std::io;
use std::sync::Arc;

use oleo_format::stream::Command;
use oleo_format::{Class, Classified};
use oleo_fs::FsError;
use uuid::Uuid;

use crate::{Limits, StreamError};

#[cfg(target_os = "linux")]
pub use dir_target::{DirOptions, DirTarget};
pub(crate) use fs_target::unpack;
pub use fs_target::{FsTarget, FsTargetOptions};
pub use interpret::receive;
pub use mark::{MARK, Mark};

/// Commands between two commits, below what the file system lets wait of changed inodes.
const COMMANDS_PER_COMMIT: usize = 48_000;

/// How a stream is applied.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReceiveOptions {
    /// Stop at the first END; otherwise continue with what follows it.
    pub one_stream: bool,
    /// How many failed commands are skipped before an error ends the work; `None`: any number. What is received then
    /// differs from what was sent.
    pub errors_passed_max: Option<u64>,
    /// Go on with subvolumes that an earlier receive of the same stream left incomplete, and pass over complete ones.
    pub resume: bool,
    /// What becomes of a subvolume that is not complete when the work ends with an error.
    pub incomplete: Incomplete,
    /// After at least this many commands (one or more), a position up to which everything is applied is made durable.
    pub commands_per_commit: usize,
    /// How much of a stream is believed.
    pub limits: Limits,
}

impl Default for ReceiveOptions {
    fn default() -> ReceiveOptions {
        ReceiveOptions {
            one_stream: false,
            errors_passed_max: Some(0),
            resume: false,
            incomplete: Incomplete::Marked,
            commands_per_commit: COMMANDS_PER_COMMIT,
            limits: Limits::default(),
        }
    }
}

oleo_format::setters!(ReceiveOptions {
    one_stream: bool,
    errors_passed_max: Option<u64>,
    resume: bool,
    incomplete: Incomplete,
    commands_per_commit: usize,
    limits: Limits,
});

/// What becomes of a subvolume that is not complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Incomplete {
    /// It stays, writable and marked.
    Marked,
    /// It is deleted, and so are those of the same run that were complete before it.
    Deleted,
}

/// What was done.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Subvolumes received, in order.
    pub subvols: Vec<ReceivedSubvol>,
    /// Commands read.
    pub commands: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Errors that were passed over.
    pub errors: Vec<String>,
    /// Things that are not as one might expect.
    pub warnings: Vec<String>,
}

impl Report {
    /// Takes in what was done after it.
    pub fn add(&mut self, more: Report) {
        self.subvols.extend(more.subvols);
        self.commands += more.commands;
        self.bytes += more.bytes;
        self.errors.extend(more.errors);
        self.warnings.extend(more.warnings);
    }
}

/// One subvolume of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReceivedSubvol {
    /// Its path where it was received.
    pub path: Vec<u8>,
    /// Of the one that was sent.
    pub uuid: Uuid,
    /// Its transaction at the sender's.
    pub ctransid: u64,
    /// It is a snapshot of one that was there.
    pub incremental: bool,
    /// It was complete before.
    pub passed_over: bool,
}

/// What a SUBVOL or SNAPSHOT command begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Begin<'a> {
    /// Its path, one name or several.
    pub path: &'a [u8],
    /// Of the subvolume that was sent.
    pub uuid: Uuid,
    /// Its transaction.
    pub ctransid: u64,
    /// The snapshot's source: UUID and transaction.
    pub parent: Option<(Uuid, u64)>,
}

/// A command for a target, with safe paths.
#[derive(Clone, Copy, Debug)]
pub struct Item<'s> {
    /// The byte of the stream at which it begins.
    pub position: u64,
    /// The command; no SUBVOL, SNAPSHOT or END.
    pub command: Command<'s>,
    /// What the command borrows from.
    block: &'s Arc<blocks::Buffer>,
}

/// What exists of a subvolume that is to be resumed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// All of it.
    Complete,
    /// A part, which is open now for more.
    Part(Mark),
}

/// Applies a stream. Between `begin` (or a `reopen` that found a part) and `finish` or `abandon`, one subvolume is
/// open.
pub trait Target {
    /// Begins a subvolume.
    fn begin(&mut self, new: &Begin<'_>) -> Result<(), ApplyError>;
    /// Opens a subvolume that an earlier run began, if it is there.
    fn reopen(&mut self, new: &Begin<'_>) -> Result<Found, ApplyError>;
    /// Applies commands in order; data may still be written later. On error, returns which command failed; those before
    /// it were applied.
    fn apply(&mut self, items: &[Item<'_>]) -> Result<(), Failed>;
    /// Returns the commands whose data could not be written after they had been applied, in order, each once. With
    /// [`Wait::Yes`] it first waits until all data is written.
    fn late(&mut self, wait: Wait) -> Vec<Late>;
    /// Everything up to here was applied. The target may note it, and make it durable.
    fn checkpoint(&mut self, mark: &Mark) -> Result<(), ApplyError>;
    /// The subvolume is complete.
    fn finish(&mut self) -> Result<(), ApplyError>;
    /// Ends the subvolume incomplete. `applied`: the position up to which the stream was applied, if it is known
    /// exactly.
    fn abandon(&mut self, applied: Option<&Mark>, incomplete: Incomplete) -> Result<(), ApplyError>;
    /// Returns the warnings since the last call.
    fn take_warnings(&mut self) -> Vec<String>;
}

/// Which of some commands failed.
#[derive(Debug)]
pub struct Failed {
    /// Its index.
    pub index: usize,
    /// Whether all commands before it were applied, and nothing of it or of later ones.
    pub exact: bool,
    /// Why.
    pub error: ApplyError,
}

/// Whether to wait for data that is being written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Until all is written.
    Yes,
    /// Not at all.
    No,
}

/// A command that failed after later ones had been applied.
#[derive(Debug)]
pub struct Late {
    /// The byte of the stream at which it begins.
    pub position: u64,
    /// Its name.
    pub command: &'static str,
    /// The path it is about.
    pub path: Vec<u8>,
    /// Why.
    pub error: ApplyError,
}

/// Why a command could not be applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// The file system refuses.
    #[error(transparent)]
    Fs(Box<FsError>),
    /// The host's file system refuses.
    #[error("{what}: {source}")]
    Host {
        /// The operation.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// It makes no sense here.
    #[error("{0}")]
    Refused(String),
    /// The subvolume that the stream builds on is not there, and none was named in its place.
    #[error("the parent, {0}, is not known here")]
    UnknownParent(Uuid),
}

/// Why a receive ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The stream cannot be read.
    #[error(transparent)]
    Stream(Box<StreamError>),
    /// The stream breaks a rule: of order, or of paths.
    #[error("byte {position} of the stream: {command}: {what}")]
    Rule {
        /// The byte of the stream at which the command begins.
        position: u64,
        /// Its name.
        command: &'static str,
        /// Which rule.
        what: String,
    },
    /// A command could not be applied.
    #[error("byte {position} of the stream: {command} {path}: {source}")]
    Command {
        /// The byte of the stream at which the command begins.
        position: u64,
        /// Its name.
        command: &'static str,
        /// The path it is about.
        path: String,
        /// Why.
        source: Box<ApplyError>,
    },
    /// Something else failed.
    #[error("{what}: {source}")]
    Target {
        /// The operation.
        what: &'static str,
        /// Why not.
        source: Box<ApplyError>,
    },
}

oleo_format::error_from!(ApplyError { Fs(FsError), });
oleo_format::error_from!(ReceiveError { Stream(StreamError), });

impl ReceiveError {
    /// The errno that comes nearest.
    pub fn errno(&self) -> i32 {
        self.class().errno
    }
}

impl Classified for ApplyError {
    #[deny(clippy::wildcard_enum_match_arm)]
    fn class(&self) -> Class {
        match self {
            ApplyError::Fs(error) => error.class(),
            ApplyError::Host { source, .. } => Class::of_io(source),
            ApplyError::Refused(_) | ApplyError::UnknownParent(_) => Class::refusal(oleo_fs::errno::EINVAL),
        }
    }
}

impl Classified for ReceiveError {
    #[deny(clippy::wildcard_enum_match_arm)]
    fn class(&self) -> Class {
        match self {
            ReceiveError::Stream(error) => error.class(),
            ReceiveError::Rule { .. } => Class::refusal(oleo_fs::errno::EINVAL),
            ReceiveError::Command { source, .. } | ReceiveError::Target { source, .. } => source.class(),
        }
    }
}

#[cfg(test)]
mod tests {
    use oleo_format::errno;

    use super::*;

    /// Goal: every error is of its kind and has its errno.
    #[test]
    fn every_error_has_its_class() {
        let (position, command) = (0, "write");
        let host = |errno| ApplyError::Host { what: "write", source: io::Error::from_raw_os_error(errno) };
        let lie = || StreamError::from(oleo_format::Corruption::new("stream", "magic", 1, 2));
        oleo_format::assert_classes!(StreamError {
            Corrupt: lie() => Class::refusal(errno::EINVAL),
            Truncated: StreamError::Truncated { at: 0, within: "so" } => Class::refusal(errno::EINVAL),
            Io: StreamError::Io { at: 0, source: io::Error::from_raw_os_error(errno::EIO) } => Class::DEVICE,
        });
        oleo_format::assert_classes!(ApplyError {
            Fs: FsError::NoSpace.into() => Class::refusal(errno::ENOSPC),
            Host: host(errno::EACCES) => Class::refusal(errno::EACCES),
            Host: host(errno::EIO) => Class::DEVICE,
            Refused: ApplyError::Refused("so".into()) => Class::refusal(errno::EINVAL),
            UnknownParent: ApplyError::UnknownParent(Uuid::nil()) => Class::refusal(errno::EINVAL),
        });
        let source = || Box::new(ApplyError::from(FsError::NoSpace));
        let path = || "a".to_owned();
        oleo_format::assert_classes!(ReceiveError {
            Stream: lie().into() => Class::refusal(errno::EINVAL),
            Rule: ReceiveError::Rule { position, command, what: path() } => Class::refusal(errno::EINVAL),
            Command: ReceiveError::Command { position, command, path: path(), source: source() } => Class::refusal(errno::ENOSPC),
            Target: ReceiveError::Target { what: "so", source: source() } => Class::refusal(errno::ENOSPC),
        });
    }
}
