//! Puts files into the file system, in the order of the source.
//!
//! Small writes are gathered: data goes to the file system in batches of [`BATCH_BYTES`] or [`BATCH_PIECES`], each of
//! which is one run of writes. Changes that must follow a file's data (its size, if it ends in a hole) wait in the same
//! queue.
//!
//! Memory: the queue, and what the file system keeps of changed inodes. After [`INODES_PER_COMMIT`] of those the
//! installer commits.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use oleo_format::TreeId;
use oleo_fs::data::{Compress, Policy, Prepared, Stamp as Stamping};
use oleo_fs::{Fs, FsError, InodeRef, NewInode, NewKind, NewSubvol, Rdev, ReadOnly, SetAttr, Time, Times, XattrMode};

use super::entry::{Meta, Stamp, Stamps};
use super::{FillOptions, Progress, Report, SubvolSpec, UnpreparedPiece, Whole, table};
use crate::MkfsError;

/// Bytes of data that go to the file system in one batch.
const BATCH_BYTES: usize = 8 << 20;
/// Pieces of data that go to the file system in one batch.
const BATCH_PIECES: usize = 512;
/// Inodes created between commits.
const INODES_PER_COMMIT: u64 = 40_000;
/// Entries between two calls of the progress function.
const ENTRIES_PER_REPORT: u64 = 256;
/// Bytes of data between two calls of it.
const BYTES_PER_REPORT: u64 = 32 << 20;
/// How many warnings are kept.
const WARNINGS_MAX: usize = 1000;

/// A piece as workers leave it.
pub(super) enum Ready {
    /// The offset, and what will be written.
    Prepared(u64, Prepared<'static>),
    /// It begins, or ends before its file ends, inside a sector: it goes through the file's buffer.
    Raw(UnpreparedPiece),
}

impl Ready {
    /// What workers do with a piece.
    pub fn of(piece: UnpreparedPiece, policy: &Policy) -> Ready {
        let sector = u64::from(policy.sectorsize);
        let end = piece.offset + piece.bytes.len() as u64;
        if !piece.offset.is_multiple_of(sector) || (piece.whole == Whole::Part && !end.is_multiple_of(sector)) {
            return Ready::Raw(piece);
        }
        let whole = match piece.whole {
            Whole::File => oleo_fs::data::Whole::File,
            Whole::End | Whole::Part => oleo_fs::data::Whole::Part,
        };
        Ready::Prepared(piece.offset, Prepared::new(Cow::Owned(piece.bytes), piece.offset, whole, policy))
    }

    /// Bytes of the file.
    fn len(&self) -> u64 {
        match self {
            Ready::Prepared(_, prepared) => prepared.len(),
            Ready::Raw(piece) => piece.bytes.len() as u64,
        }
    }

    fn held_bytes(&self) -> usize {
        match self {
            Ready::Prepared(_, prepared) => prepared.held_bytes(),
            Ready::Raw(piece) => piece.bytes.len(),
        }
    }
}

/// What waits for its turn.
enum Step {
    Data(InodeRef, Ready, Option<Arc<Path>>),
    /// All data of the file has been received.
    Finish(InodeRef, SetAttr),
}

/// Data that goes to the file system in one batch.
#[derive(Default)]
struct Batch {
    pieces: Vec<(InodeRef, Prepared<'static>)>,
    /// The ranges that the host is to share: file, source, offset and length.
    shares: Vec<(InodeRef, Arc<Path>, u64, u64)>,
}

/// A file whose data is being received.
struct OpenFile {
    inode: InodeRef,
    size: u64,
    /// The end of its data so far.
    end: u64,
    raw: bool,
    times: Times,
    /// Its path on the host, if its data is to be shared.
    source: Option<Arc<Path>>,
}

pub(super) struct Installer<'a> {
    fs: &'a Fs,
    options: &'a FillOptions,
    pub report: Report,
    steps: Vec<Step>,
    steps_bytes: usize,
    file: Option<OpenFile>,
    inodes_since_commit: u64,
    entries_since_report: u64,
    bytes_since_report: u64,
    /// Subvolumes made, each with its spec.
    subvols: Vec<(TreeId, SubvolSpec)>,
}

impl<'a> Installer<'a> {
    pub fn new(fs: &'a Fs, options: &'a FillOptions) -> Installer<'a> {
        Installer {
            fs,
            options,
            report: Report::default(),
            steps: Vec::new(),
            steps_bytes: 0,
            file: None,
            inodes_since_commit: 0,
            entries_since_report: 0,
            bytes_since_report: 0,
            subvols: Vec::new(),
        }
    }

    /// What workers need to know about data.
    pub fn policy(fs: &Fs, compress: Option<Compress>) -> Result<Policy, MkfsError> {
        let top = fs.root(TreeId::FS)?;
        // Pieces are prepared on all cores already, one on each.
        Ok(Policy { compress, threads: false, ..fs.policy(&top)? })
    }

    pub fn warn(&mut self, text: String) {
        if self.report.warnings.len() < WARNINGS_MAX {
            self.report.warnings.push(text);
        }
    }

    /// Counts an entry; reports progress; commits when it is time.
    fn count(&mut self, add: impl FnOnce(&mut Progress)) -> Result<(), MkfsError> {
        add(&mut self.report.done);
        self.entries_since_report += 1;
        if self.entries_since_report >= ENTRIES_PER_REPORT {
            self.report_progress();
        }
        self.inodes_since_commit += 1;
        if self.inodes_since_commit >= INODES_PER_COMMIT {
            self.inodes_since_commit = 0;
            self.run_steps()?;
            self.fs.sync()?;
        }
        Ok(())
    }

    fn report_progress(&mut self) {
        (self.entries_since_report, self.bytes_since_report) = (0, 0);
        if let Some(on_progress) = &self.options.on_progress {
            on_progress(&self.report.done);
        }
    }

    fn times(&self, stamps: Stamps) -> Times {
        let stamps = self.options.epoch_seconds.map_or(stamps, |epoch| stamps.reproducible(epoch));
        let time = |stamp: Stamp| Time { sec: stamp.seconds, nsec: stamp.nanoseconds };
        Times {
            atime: time(stamps.access),
            mtime: time(stamps.modify),
            ctime: time(stamps.change),
            otime: time(stamps.birth),
        }
    }

    fn create(&mut self, dir: &InodeRef, name: &[u8], kind: NewKind<'_>, meta: &Meta) -> Result<InodeRef, MkfsError> {
        let times = self.times(meta.times);
        let new = NewInode::new(kind, meta.mode & 0o7777);
        let (uid, gid) = (self.options.uid.unwrap_or(meta.uid), self.options.gid.unwrap_or(meta.gid));
        let new = new.uid(uid).gid(gid).times(Some(times)).plain(true);
        let inode = self.fs.create(dir, name, &new)?;
        self.xattrs(&inode, meta)?;
        if !meta.xattrs.is_empty() {
            self.fs.set_attr(&inode, &SetAttr::default().all_times(times))?;
        }
        Ok(inode)
    }

    fn xattrs(&mut self, inode: &InodeRef, meta: &Meta) -> Result<(), MkfsError> {
        for (name, value) in &meta.xattrs {
            match self.fs.xattr_set(inode, name, value, XattrMode::Any) {
                Ok(()) => {}
                Err(
                    error @ (FsError::NotSupported(_)
                    | FsError::TooBig
                    | FsError::Range(_)
                    | FsError::Overflow(_)
                    | FsError::NotPermitted(_)
                    | FsError::Invalid(_)),
                ) => {
                    self.warn(format!("extended attribute {} is left out: {error}", name.escape_ascii()));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// A new directory; its own attributes come with [`Self::dir_meta`] when nothing in it changes any more.
    pub fn dir(&mut self, parent: &InodeRef, name: &[u8], meta: &Meta) -> Result<InodeRef, MkfsError> {
        self.end_file()?;
        let bare = Meta { xattrs: Vec::new(), ..*meta };
        let inode = self.create(parent, name, NewKind::Dir, &bare)?;
        self.count(|done| done.dirs += 1)?;
        Ok(inode)
    }

    /// A directory that becomes a subvolume.
    pub fn subvol(&mut self, parent: &InodeRef, name: &[u8], spec: &SubvolSpec) -> Result<InodeRef, MkfsError> {
        self.end_file()?;
        self.run_steps()?;
        let tree = self.fs.subvol_create(parent, name, &NewSubvol::default())?;
        self.subvols.push((tree, spec.clone()));
        self.count(|done| done.subvols += 1)?;
        let root = self.fs.root(tree)?;
        // An archive need not have an entry for it, from which it would get its owner later.
        if self.options.uid.is_some() || self.options.gid.is_some() {
            self.fs.set_attr(&root, &SetAttr::default().uid(self.options.uid).gid(self.options.gid))?;
        }
        Ok(root)
    }

    /// Gives the top directory its attributes: those of the source, unless others are requested.
    pub fn top_meta(&mut self, dir: &InodeRef, mut meta: Meta) -> Result<(), MkfsError> {
        let top = &self.options.top;
        meta.uid = top.uid.or(self.options.uid).unwrap_or(meta.uid);
        meta.gid = top.gid.or(self.options.gid).unwrap_or(meta.gid);
        meta.mode = top.mode.unwrap_or(meta.mode);
        self.set_dir(dir, &meta)
    }

    /// Gives a directory its attributes.
    pub fn dir_meta(&mut self, dir: &InodeRef, mut meta: Meta) -> Result<(), MkfsError> {
        meta.uid = self.options.uid.unwrap_or(meta.uid);
        meta.gid = self.options.gid.unwrap_or(meta.gid);
        self.set_dir(dir, &meta)
    }

    fn set_dir(&mut self, dir: &InodeRef, meta: &Meta) -> Result<(), MkfsError> {
        self.end_file()?;
        self.xattrs(dir, meta)?;
        let attributes = SetAttr::default()
            .all_times(self.times(meta.times))
            .mode(Some(meta.mode & 0o7777))
            .uid(Some(meta.uid))
            .gid(Some(meta.gid));
        self.fs.set_attr(dir, &attributes)?;
        Ok(())
    }

    /// A new regular file; its data follows in [`Self::data`], up to the next entry.
    pub fn file(
        &mut self,
        dir: &InodeRef,
        name: &[u8],
        meta: &Meta,
        size: u64,
        source: Option<&Path>,
    ) -> Result<InodeRef, MkfsError> {
        let source = source.filter(|_| self.options.reflink.is_some()).map(Arc::from);
        self.end_file()?;
        let inode = self.create(dir, name, NewKind::File, meta)?;
        let times = self.times(meta.times);
        self.file = Some(OpenFile { inode: inode.clone(), size, end: 0, raw: false, times, source });
        self.count(|done| done.files += 1)?;
        Ok(inode)
    }

    /// Data of the current file.
    pub fn data(&mut self, pieces: Vec<Ready>) -> Result<(), MkfsError> {
        pieces.into_iter().try_for_each(|ready| self.piece(ready))
    }

    fn piece(&mut self, ready: Ready) -> Result<(), MkfsError> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let (offset, len) = match &ready {
            Ready::Prepared(at, prepared) => (*at, prepared.len()),
            Ready::Raw(piece) => (piece.offset, piece.bytes.len() as u64),
        };
        file.end = offset + len;
        file.raw |= matches!(ready, Ready::Raw(_));
        let inode = file.inode.clone();
        self.report.done.data_bytes += ready.len();
        self.bytes_since_report += ready.len();
        self.steps_bytes += ready.held_bytes();
        let source = file.source.clone();
        self.steps.push(Step::Data(inode, ready, source));
        if self.bytes_since_report >= BYTES_PER_REPORT {
            self.report_progress();
        }
        if self.steps_bytes >= BATCH_BYTES || self.steps.len() >= BATCH_PIECES {
            self.run_steps()?;
        }
        Ok(())
    }

    fn end_file(&mut self) -> Result<(), MkfsError> {
        if let Some(file) = self.file.take()
            && (file.end != file.size || file.raw)
        {
            let set = SetAttr::default().all_times(file.times).size(Some(file.size));
            self.steps.push(Step::Finish(file.inode, set));
        }
        Ok(())
    }

    /// Another name of a file.
    pub fn link(&mut self, file: &InodeRef, dir: &InodeRef, name: &[u8], meta: &Meta) -> Result<(), MkfsError> {
        self.end_file()?;
        self.fs.link(file, dir, name)?;
        let times = self.times(meta.times);
        self.fs.set_attr(file, &SetAttr::default().all_times(times))?;
        self.count(|done| done.links += 1)
    }

    pub fn symlink(&mut self, dir: &InodeRef, name: &[u8], target: &[u8], meta: &Meta) -> Result<InodeRef, MkfsError> {
        self.end_file()?;
        let inode = self.create(dir, name, NewKind::Symlink(target), meta)?;
        self.count(|done| done.others += 1)?;
        Ok(inode)
    }

    pub fn node(&mut self, dir: &InodeRef, name: &[u8], rdev: Rdev, meta: &Meta) -> Result<InodeRef, MkfsError> {
        self.end_file()?;
        let kind = match meta.mode & 0o170_000 {
            0o020_000 => NewKind::CharDevice(rdev),
            0o060_000 => NewKind::BlockDevice(rdev),
            0o010_000 => NewKind::Fifo,
            _ => NewKind::Socket,
        };
        let inode = self.create(dir, name, kind, meta)?;
        self.count(|done| done.others += 1)?;
        Ok(inode)
    }

    /// Carries out all that waits.
    pub fn settle(&mut self) -> Result<(), MkfsError> {
        self.end_file()?;
        self.run_steps()
    }

    /// Carries out what waits, in order; neighbouring pieces of data in one go.
    fn run_steps(&mut self) -> Result<(), MkfsError> {
        self.steps_bytes = 0;
        let mut batch = Batch::default();
        for step in std::mem::take(&mut self.steps) {
            match step {
                Step::Data(inode, Ready::Prepared(at, prepared), source) => {
                    if let Some(source) = source {
                        batch.shares.push((inode.clone(), source, at, prepared.len()));
                    }
                    batch.pieces.push((inode, prepared));
                }
                Step::Data(inode, Ready::Raw(piece), _) => {
                    self.install(&mut batch)?;
                    self.fs.write(&inode, piece.offset, &piece.bytes)?;
                }
                Step::Finish(inode, set) => {
                    self.install(&mut batch)?;
                    self.fs.flush(&inode)?;
                    self.fs.set_attr(&inode, &set)?;
                }
            }
        }
        self.install(&mut batch)
    }

    fn install(&mut self, batch: &mut Batch) -> Result<(), MkfsError> {
        if !batch.pieces.is_empty() {
            self.fs.install_many(&batch.pieces, Stamping::Keep)?;
            batch.pieces.clear();
        }
        for (inode, source, at, len) in batch.shares.drain(..) {
            if let Some(reflink) = &self.options.reflink {
                reflink.share(self.fs, &inode, &source, at, len)?;
            }
        }
        Ok(())
    }

    /// Ends the work: everything is durable afterwards.
    pub fn finish(mut self) -> Result<Report, MkfsError> {
        self.end_file()?;
        self.run_steps()?;
        self.fs.sync()?;
        if !self.options.table.is_empty() {
            // Entries that the table makes have the time of the file system itself.
            let now = self.fs.attr(&self.fs.root(TreeId::FS)?).otime;
            let times = Times { atime: now, mtime: now, ctime: now, otime: now };
            table::apply(self.fs, &self.options.table, times)?;
        }
        for (tree, spec) in std::mem::take(&mut self.subvols) {
            if spec.default {
                self.fs.set_default(tree)?;
            }
            if spec.read_only {
                self.fs.set_read_only(tree, ReadOnly::Yes)?;
            }
        }
        self.fs.sync()?;
        self.report_progress();
        Ok(self.report)
    }
}
