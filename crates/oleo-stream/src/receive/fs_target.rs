//! Applies commands to a btrfs file system opened by Oleo.
//!
//! Normal path of `apply`: (1) commands are applied in order; (2) data is gathered (`batch`) until a command needs it
//! in place, or the run of commands ends. Then it is prepared on all cores and installed together, while the next run
//! is applied; (3) attributes of one file, which arrive one by one, wait until the stream moves on to another path
//! (`Current`) and are set together, or not at all if the file was created with them: the attributes of a new file are
//! looked up in the commands that follow; (4) a new inode, which senders create under a temporary name and rename
//! immediately, is created under its final name.
//!
//! What the stream says of an inode is applied literally: changes of owner do not remove privileges, times include
//! those of the last change and of the creation, nothing is inherited from directories. Flags that forbid changes are
//! set when the subvolume is complete (`locked`).
//!
//! Memory: caches of directories (`paths`), the commands of one run, and those whose data is being installed.
//! Checkpoints commit after a number of commands or bytes, before too many inodes are dirty: so a mark and what it
//! describes are in one transaction. Later commands are applied while that is written (`commits`).

mod attrs;
mod batch;
mod clone;
mod commits;
mod inodes;
mod paths;
mod subvols;

use std::collections::HashMap;

use oleo_format::stream::Command;
use oleo_format::{Ino, InodeFlags, TreeId};
use oleo_fs::data::Policy;
use oleo_fs::{FileKind, Fs, InodeRef, SetAttr, Verity};
use uuid::Uuid;

use super::mark::MARK as MARK_NAME;
use super::{ApplyError, Begin, Failed, Found, Incomplete, Item, Late, Mark, Target, Wait};
use batch::Installer;
pub(crate) use batch::unpack;
use commits::Commits;
use paths::Finder;

/// Bytes of data between two commits.
const BYTES_PER_COMMIT: u64 = 1 << 30;
/// How many warnings are kept.
const WARNINGS_MAX: usize = 1000;

/// How to receive into a file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct FsTargetOptions {
    /// Use this subvolume in place of the parent that the stream names, and as the source of clones from that parent.
    pub rebase: Option<TreeId>,
    /// Commands between two commits; `None`: commit nothing in between.
    pub commands_per_commit: Option<usize>,
}

/// A btrfs file system, and the directory in it in which subvolumes are created.
pub struct FsTarget {
    fs: Fs,
    installer: Installer,
    commits: Commits,
    into: InodeRef,
    options: FsTargetOptions,
    open: Option<Open>,
    /// Complete ones of this run.
    done: Vec<TreeId>,
    warnings: Vec<String>,
    /// Since the last commit.
    commands: usize,
    bytes: u64,
}

/// The subvolume being received.
struct Open {
    uuid: Uuid,
    ctransid: u64,
    root: InodeRef,
    finder: Finder,
    current: Option<Current>,
    /// The subvolume used as the parent, with the UUID that the stream has for it.
    parent: Option<(Uuid, TreeId)>,
    /// Other subvolumes that data was cloned from, by UUID and transaction.
    sources: HashMap<(Uuid, u64), Finder>,
    /// Flags that the inodes get when nothing is changed any more.
    locked: HashMap<Ino, InodeFlags>,
    /// Files that have data that is not in its place.
    waiting: HashMap<Ino, Waiting>,
}

/// Data of a file that is not in its place.
struct Waiting {
    /// How long the file will be.
    size: u64,
    /// The last batch that has some.
    batch: u64,
}

/// The inode that the commands are about at the moment.
struct Current {
    path: Vec<u8>,
    inode: InodeRef,
    kind: FileKind,
    /// What the size will be when everything waiting is in place.
    size: u64,
    /// Set when the stream moves on to another path.
    attrs: SetAttr,
    /// Some bytes are in the file's buffer.
    buffered: bool,
    /// This stream created it, and it has only what was written: nothing behind its end.
    plain: bool,
    policy: Option<Policy>,
}

impl FsTarget {
    /// Receives into a directory of `fs`.
    ///
    /// # Errors
    /// A thread could not be started.
    pub fn new(fs: &Fs, into: &InodeRef, options: FsTargetOptions) -> Result<FsTarget, ApplyError> {
        Ok(FsTarget {
            fs: fs.clone(),
            installer: Installer::new(fs)?,
            commits: Commits::default(),
            into: into.clone(),
            options,
            open: None,
            done: Vec::new(),
            warnings: Vec::new(),
            commands: 0,
            bytes: 0,
        })
    }

    fn warn(&mut self, text: String) {
        if self.warnings.len() < WARNINGS_MAX {
            self.warnings.push(text);
        }
    }

    fn open(&mut self) -> Result<&mut Open, ApplyError> {
        self.open.as_mut().ok_or_else(|| refused("no subvolume is being received"))
    }

    /// Applies one command; returns how many were used.
    fn one(&mut self, items: &[Item<'_>], at: usize) -> Result<usize, ApplyError> {
        match items[at].command {
            Command::MkFile { .. }
            | Command::MkDir { .. }
            | Command::MkNod { .. }
            | Command::MkFifo { .. }
            | Command::MkSock { .. }
            | Command::Symlink { .. } => return self.create(items, at),
            Command::Rename { path, to } => self.rename(path, to)?,
            Command::Link { path, target } => self.link(path, target)?,
            Command::Unlink { path } => self.unlink(path)?,
            Command::RmDir { path } => self.rmdir(path)?,
            Command::SetXattr { path, name, value } => self.set_xattr(path, name, value)?,
            Command::RemoveXattr { path, name } => self.remove_xattr(path, name)?,
            Command::Write { path, offset, data } => self.write(&items[at], path, offset, data)?,
            Command::EncodedWrite { path, .. } => self.encoded_write(&items[at], path)?,
            Command::Clone { .. } => self.clone_range(&items[at].command)?,
            Command::Truncate { path, size } => self.truncate(path, size)?,
            Command::Fallocate { path, mode, offset, len } => self.fallocate(path, mode, offset..len)?,
            Command::Chmod { path, mode } => {
                let mode = u32::try_from(mode & 0o7777).unwrap_or_default();
                self.attrs(path)?.mode = Some(mode);
            }
            Command::Chown { path, uid, gid } => {
                let id = |id: u64| u32::try_from(id).map_err(|_| refused("an owner's number beyond 32 bits"));
                let (uid, gid) = (id(uid)?, id(gid)?);
                let attrs = self.attrs(path)?;
                (attrs.uid, attrs.gid) = (Some(uid), Some(gid));
            }
            Command::Utimes { path, atime, mtime, ctime, otime } => {
                let attrs = self.attrs(path)?;
                attrs.atime = Some(attrs::time(&atime));
                attrs.mtime = Some(attrs::time(&mtime));
                attrs.ctime = Some(attrs::time(&ctime));
                attrs.otime = otime.as_ref().map(attrs::time).or(attrs.otime);
            }
            // Data that the sender left out.
            Command::UpdateExtent { .. } => {}
            Command::FileAttr { path, attr } => self.file_attr(path, attr)?,
            Command::EnableVerity { path, algorithm, block_size, salt, signature } => {
                self.enable_verity(path, &Verity { algorithm, block_size, salt, signature })?;
            }
            Command::Subvol { .. } | Command::Snapshot { .. } | Command::End => {
                return Err(refused("not a command for a file"));
            }
        }
        Ok(1)
    }
}

impl Target for FsTarget {
    fn begin(&mut self, new: &Begin<'_>) -> Result<(), ApplyError> {
        self.begin_subvol(new)
    }

    fn reopen(&mut self, new: &Begin<'_>) -> Result<Found, ApplyError> {
        self.reopen_subvol(new)
    }

    fn apply(&mut self, items: &[Item<'_>]) -> Result<(), Failed> {
        let mut at = 0;
        while at < items.len() {
            match self.one(items, at) {
                Ok(used) => at += used,
                Err(error) => {
                    // Commands before it are applied as far as possible.
                    self.install();
                    let exact = !self.installer.is_late() && self.settle().is_ok();
                    return Err(Failed { index: at, exact, error });
                }
            }
        }
        self.begin_install();
        self.commands += items.len();
        Ok(())
    }

    fn late(&mut self, wait: Wait) -> Vec<Late> {
        if wait == Wait::Yes {
            self.install();
        }
        self.installer.take_late()
    }

    fn checkpoint(&mut self, mark: &Mark) -> Result<(), ApplyError> {
        let Some(most) = self.options.commands_per_commit else { return Ok(()) };
        if self.commands < most && self.bytes < BYTES_PER_COMMIT {
            return Ok(());
        }
        self.install();
        if self.installer.is_late() {
            // The failure is reported with the next commands; not everything is applied so far.
            return Ok(());
        }
        self.settle()?;
        self.set_mark(Some(mark))?;
        self.commits.begin(&self.fs)?;
        (self.commands, self.bytes) = (0, 0);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), ApplyError> {
        self.commits.finish()?;
        self.finish_subvol()
    }

    fn abandon(&mut self, applied: Option<&Mark>, incomplete: Incomplete) -> Result<(), ApplyError> {
        self.install();
        let applied = applied.filter(|_| !self.installer.is_late());
        self.abandon_subvol(applied, incomplete)
    }

    fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }
}

pub(super) fn refused(what: impl Into<String>) -> ApplyError {
    ApplyError::Refused(what.into())
}
