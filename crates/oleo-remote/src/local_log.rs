//! The log on the local disk (`durable=local`): what is in it survives a crash of this machine before the store has it, so that a
//! flush need not wait for the store.
//!
//! Normal path of a flush: (1) [`LocalLog::confirm`] takes the frames that are neither in the log nor published from memory, where
//! all of them are; (2) appends them, and flushes the file; that is all. Publishing goes on behind it (`flush::publish_behind`):
//! (3) [`LocalLog::announce`] notes the commit id of a head before it is sent, on the disk; (4) [`LocalLog::published`] notes that it
//! was, and begins a new file when much of the old one is not needed any more.
//!
//! Opening for writing after a crash: (1) [`LocalLog::open`] takes the lock; (2) [`LocalLog::settle`] compares: only if the head in the
//! store is one that this log has announced, or begun with, has nobody else written meanwhile; then (3) the opening itself is
//! announced, and (4) [`LocalLog::replay`] appends the frames behind the head's position again, which are published before (5)
//! [`LocalLog::begin`] puts a new file in the place of the old one. If somebody else has written, or the log is damaged, it is kept
//! under another name, and whoever opens is told so, once.
//!
//! Invariants: a head that covers less than what was confirmed is in the log before it is in the store. After a failure of
//! the log nothing is confirmed by it any more; since announcing comes before what is published is gathered, a head that could
//! not be announced has everything that ever was confirmed.
//!
//! Whoever has the lock (`log.lock` beside it, `flock`) has the log, and looks before each confirmation whether the file is still
//! the one at its place. Locks: `LocalLog::inner`, held while the file is written; the state is asked under it.
//!
//! A crash leaves a file with a torn end, or the old one and a new one that has not its name yet.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use oleo_format::Corruption;
use oleo_lock::{Mutex, rank};
use rustix::fs::{FlockOperation, flock};

use crate::disk_cache::volume_dir;
use crate::error::RemoteError;
use crate::format::ObjectId;
use crate::format::head::Head;
use crate::format::log::{
    Entry, LOG_HEADER_LEN, LOGGED_LEN_MAX, LogHeader, Of, Place, RECORD_LEN, off_of, push_record,
};
use crate::format::packing::Coder;
use crate::format::segment::{Bound, Frame, parse_frame};
use crate::host::{Host, nonce};
use crate::options::{Durable, StoreOptions};

mod scan;

use scan::{Records, Scanned, Unread, Volume, Wanted, confirmed, scan};

/// The shortest log, bytes.
pub(crate) const LOG_BYTES_MIN: u64 = 1 << 20;
/// So much of a log is kept for what is said of heads: an eighth, at most a MiB.
const RESERVE_SHARE: u64 = 8;
const RESERVE_MAX: u64 = 1 << 20;
/// A new file is begun when so much of the old one is used: a quarter.
const USED_SHARE: u64 = 4;
/// So much is written together, bytes.
const WRITE_LEN: usize = 1 << 20;

/// A frame in memory, with its segment and its position.
pub(crate) type Logged = (ObjectId, u64, Arc<Vec<u8>>);

/// A file, and what it has, or why it has nothing.
type Looked = (File, Result<Scanned, Corruption>);

/// A file that is written.
struct Open {
    file: File,
    id: [u8; 16],
    len: u64,
    /// Where the next record goes, its number, and the checksum of the one before.
    at: u64,
    number: u64,
    before: u64,
    /// So many bytes of it are on the disk.
    durable: u64,
}

#[derive(Default)]
struct Inner {
    open: Option<Open>,
    /// It has failed, and is only kept until what it has is in the store.
    failed: bool,
    /// Whether what it has is being appended again.
    replaying: bool,
    /// Whether flushes are confirmed.
    confirms: bool,
    /// Whether this writer lets go of the volume; then it confirms nothing any more.
    stopped: bool,
    /// The position up to which frames are in it, or published.
    logged: u64,
    /// That of the newest published head.
    published: u64,
}

/// What was done.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) confirmed: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) replayed: AtomicU64,
}

/// See the module's text.
pub(crate) struct LocalLog {
    dir: PathBuf,
    uuid: [u8; 16],
    coder: Coder,
    host: Arc<dyn Host>,
    bytes_max: u64,
    inner: Mutex<rank::RemoteLog, Inner>,
    pub(crate) counts: Counts,
    /// Held as long as this lives.
    _lock: File,
}

impl LocalLog {
    /// The log of a volume, if there is one or one is wanted, with its lock.
    pub(crate) fn open(options: &StoreOptions, head: &Head) -> Result<Option<LocalLog>, RemoteError> {
        let wanted = options.durable == Durable::Local;
        let Some(cache) = &options.cache else {
            let what = "durable=local needs cache=DIRECTORY: the log is in it".into();
            return if wanted { Err(RemoteError::Unsupported { what }) } else { Ok(None) };
        };
        let dir = volume_dir(&cache.dir, head.uuid)?;
        let path = dir.join("log");
        if !wanted && !path.try_exists().map_err(|e| local(&path, e))? {
            return Ok(None);
        }
        let at = dir.join("log.lock");
        let how = || File::options().create(true).truncate(false).write(true).mode(0o600).open(&at);
        let lock = how().map_err(|e| local(&at, e))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(RemoteError::LogBusy { path }),
            Err(e) => return Err(local(&at, e.into())),
        }
        Ok(Some(LocalLog {
            dir,
            uuid: head.uuid,
            coder: Coder::of(head),
            host: options.host.clone(),
            bytes_max: options.log_bytes_max.max(LOG_BYTES_MIN),
            inner: Mutex::default(),
            counts: Counts::default(),
            _lock: lock,
        }))
    }

    /// Whether it is of the volume of this head.
    pub(crate) fn is_of(&self, head: &Head) -> bool {
        self.uuid == head.uuid
    }

    fn path(&self) -> PathBuf {
        self.dir.join("log")
    }

    fn volume(&self) -> Volume<'_> {
        Volume { uuid: self.uuid, key: self.coder.key() }
    }

    fn of<'a>(&'a self, open: &Open) -> Of<'a> {
        Of { uuid: self.uuid, id: open.id, key: self.coder.key() }
    }

    /// What the file has, compared with a head; none: there is no file.
    fn look(&self, head: &Head) -> Result<Option<Looked>, RemoteError> {
        let path = self.path();
        let file = match File::options().read(true).write(true).open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(local(&path, e)),
        };
        let want = Wanted { epoch: head.epoch, commit: head.commit, position: head.position };
        match scan(&file, self.volume(), want) {
            Ok(found) => Ok(Some((file, Ok(found)))),
            Err(Unread::Bad(e)) => Ok(Some((file, Err(e)))),
            Err(Unread::Io(e)) => Err(local(&path, e)),
        }
    }

    /// Whether a head is one that this log has announced or begun with. Then whoever wrote it was a process of this machine, and
    /// is gone, since we have the lock.
    pub(crate) fn has(&self, head: &Head) -> Result<bool, RemoteError> {
        Ok(matches!(self.look(head)?, Some((_, Ok(found))) if found.has_head))
    }

    /// Decides what the log is to a volume with this head: to be replayed, or of no use, or to be kept aside.
    pub(crate) fn settle(&self, head: &Head) -> Result<(), RemoteError> {
        let Some((file, found)) = self.look(head)? else { return Ok(()) };
        let found = match found {
            Ok(found) => found,
            Err(e) => return Err(self.keep_aside(e.to_string())),
        };
        let wants = found.last.is_some_and(|last| last > head.position);
        if found.has_head && (!wants || found.complete) {
            let mut inner = self.inner.lock();
            let open = Open {
                file,
                id: found.header.id,
                len: found.header.len,
                at: found.end,
                number: found.number,
                before: found.before,
                durable: found.durable,
            };
            (inner.open, inner.published, inner.replaying) = (Some(open), head.position, true);
            return Ok(());
        }
        if found.has_head {
            return Err(self.keep_aside(format!("it does not go on from position {}", head.position)));
        }
        let last = match confirmed(&file, self.volume(), &found) {
            Ok(last) => last,
            Err(Unread::Io(e)) => return Err(local(&self.path(), e)),
            Err(Unread::Bad(e)) => return Err(self.keep_aside(e.to_string())),
        };
        if last <= found.published {
            // Everything that it ever confirmed was in the store before somebody else came.
            return self.remove();
        }
        let who =
            if head.owner.is_empty() { "another writer".into() } else { head.writer().escape_debug().to_string() };
        let lost = last - found.published;
        Err(self.keep_aside(format!(
            "{lost} writes that were confirmed on this machine are not in the store, where {who} has written since (epoch {})",
            head.epoch
        )))
    }

    /// Gives the file another name, and returns the error that says so.
    pub(crate) fn keep_aside(&self, what: String) -> RemoteError {
        let mark: String = self.host.random()[..4].iter().map(|byte| format!("{byte:02x}")).collect();
        let path = self.dir.join(format!("log.kept-{mark}"));
        match fs::rename(self.path(), &path).and_then(|()| sync_dir(&self.dir)) {
            Ok(()) => RemoteError::LogKept { path, what },
            Err(e) => local(&self.path(), e),
        }
    }

    fn remove(&self) -> Result<(), RemoteError> {
        let path = self.path();
        match fs::remove_file(&path) {
            Ok(()) => sync_dir(&self.dir).map_err(|e| local(&path, e)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(local(&path, e)),
        }
    }

    /// Hands out the frames that are to be appended again, from the position of the head on.
    pub(crate) fn replay(
        &self,
        mut take: impl FnMut(&Frame<'_>, &Bound) -> Result<(), RemoteError>,
    ) -> Result<(), RemoteError> {
        let (file, of, len, mut next) = {
            let inner = self.inner.lock();
            let Some(open) = &inner.open else { return Ok(()) };
            let file = open.file.try_clone().map_err(|e| local(&self.path(), e))?;
            (file, self.of(open), open.len, inner.published)
        };
        let failed = |e| local(&self.path(), e);
        let mut bytes = [0; LOG_HEADER_LEN];
        file.read_exact_at(&mut bytes, 0).map_err(failed)?;
        let (_, sum) = LogHeader::parse(&bytes, self.uuid, self.coder.key())?;
        let (mut number, mut before) = (0, sum);
        let mut records = Records::new(&file, of, LOG_HEADER_LEN as u64, len).map_err(failed)?;
        while let Some((record, frame)) = records.next(number, before).map_err(failed)? {
            (number, before) = (number + 1, record.sum);
            let Entry::Frame { id, position } = record.entry else { continue };
            if position < next {
                continue;
            }
            if position != next {
                return Err(Corruption::new("local log", "position of a frame", position, next).into());
            }
            let bound = Bound { uuid: self.uuid, id };
            take(&parse_frame(frame, off_of(frame), &bound)?, &bound)?;
            next += 1;
            self.counts.replayed.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Begins a new file, which follows a head that is published, in the place of what is there.
    pub(crate) fn begin(&self, head: &Head) -> Result<(), RemoteError> {
        let mut inner = self.inner.lock();
        inner.open = None;
        (inner.logged, inner.published) = (head.position, head.position);
        let open = self.make(head, &[]).map_err(|e| local(&self.path(), e))?;
        (inner.open, inner.replaying, inner.confirms) = (Some(open), false, true);
        Ok(())
    }

    /// A new file at its place, with some frames.
    fn make(&self, head: &Head, frames: &[Logged]) -> io::Result<Open> {
        let beside = self.dir.join("log.new");
        let how = File::options().read(true).write(true).create(true).truncate(true).mode(0o600).open(&beside);
        let file = how?;
        file.set_len(self.bytes_max)?;
        let header = LogHeader {
            uuid: self.uuid,
            id: self.host.random(),
            epoch: head.epoch,
            commit: head.commit,
            position: head.position,
            len: self.bytes_max,
        };
        let (bytes, before) = header.encode(self.coder.key(), || nonce(&*self.host));
        file.write_all_at(&bytes, 0)?;
        let at = bytes.len() as u64;
        let mut open = Open { file, id: header.id, len: header.len, at, number: 0, before, durable: at };
        self.write(&mut open, frames)?;
        open.file.sync_all()?;
        open.durable = open.at;
        fs::rename(&beside, self.path())?;
        sync_dir(&self.dir)?;
        self.note(&mut open, Entry::Durable)?;
        Ok(open)
    }

    /// Writes frames, which are there when the file is flushed.
    fn write(&self, open: &mut Open, frames: &[Logged]) -> io::Result<()> {
        let mut out = Vec::with_capacity(WRITE_LEN.min(frames.len() * LOGGED_LEN_MAX));
        for (id, position, frame) in frames {
            self.push(open, &mut out, Entry::Frame { id: *id, position: *position }, frame);
            if out.len() >= WRITE_LEN {
                put(open, &mut out)?;
            }
        }
        put(open, &mut out)
    }

    fn push(&self, open: &mut Open, out: &mut Vec<u8>, entry: Entry, frame: &[u8]) {
        let place = Place { number: open.number, before: open.before, durable: open.durable };
        let of = self.of(open);
        open.before = push_record(out, &of, place, entry, frame, || nonce(&*self.host));
        open.number += 1;
    }

    /// Writes one record without a frame.
    fn note(&self, open: &mut Open, entry: Entry) -> io::Result<()> {
        let mut out = Vec::with_capacity(RECORD_LEN);
        if open.at + RECORD_LEN as u64 > open.len {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.push(open, &mut out, entry, &[]);
        put(open, &mut out)
    }

    /// Flushes the file.
    fn flush(&self, open: &mut Open) -> io::Result<()> {
        open.file.sync_data()?;
        open.durable = open.at;
        Ok(())
    }

    /// Makes everything before a position durable on the local disk. False: it is not, and only the store can promise it.
    /// `frames` are those in memory from a position to before another.
    pub(crate) fn confirm(&self, want: u64, frames: impl FnOnce(u64, u64) -> Vec<Logged>) -> bool {
        let mut inner = self.inner.lock();
        if !inner.confirms {
            return false;
        }
        if inner.logged >= want {
            return true;
        }
        let frames = frames(inner.logged, want);
        let next = inner.logged.max(inner.published);
        // A publish may have freed some of them just now; then it has them.
        let first = frames.first().map_or(want, |(_, position, _)| *position);
        if first > next {
            return false;
        }
        let Some(open) = inner.open.as_mut() else { return false };
        let bytes: u64 = frames.iter().map(|(_, _, frame)| (RECORD_LEN + frame.len()) as u64).sum();
        if open.at + bytes + (open.len / RESERVE_SHARE).min(RESERVE_MAX) > open.len {
            return false;
        }
        let done = self.write(open, &frames).and_then(|()| self.check_place(open)).and_then(|()| self.flush(open));
        // The second is not waited for: it only helps to find damage.
        match done.and_then(|()| self.note(open, Entry::Durable)) {
            Ok(()) => {
                inner.logged = want;
                self.counts.confirmed.fetch_add(1, Ordering::Relaxed);
                self.counts.bytes.fetch_add(bytes, Ordering::Relaxed);
                true
            }
            Err(_) => {
                self.fail(&mut inner);
                false
            }
        }
    }

    /// The file must be the one at its place, as long as it was made: else somebody else has it, or has removed it.
    fn check_place(&self, open: &Open) -> io::Result<()> {
        let (have, there) = (open.file.metadata()?, fs::metadata(self.path())?);
        match (have.dev(), have.ino(), have.len()) == (there.dev(), there.ino(), open.len) {
            true => Ok(()),
            false => Err(io::Error::other("another file is in its place")),
        }
    }

    /// From now on nothing is confirmed here: what fails once is not tried again.
    fn fail(&self, inner: &mut Inner) {
        (inner.confirms, inner.failed) = (false, true);
        self.counts.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes on the disk that a head with this commit id is about to be sent. If that fails, or there is no room, nothing is
    /// confirmed any more, until a head is published that has all that was.
    pub(crate) fn announce(&self, epoch: u32, commit: [u8; 16]) {
        let mut inner = self.inner.lock();
        let failed = inner.failed;
        let Some(open) = inner.open.as_mut().filter(|_| !failed) else { return };
        match self.note(open, Entry::Announced { epoch, commit }).and_then(|()| self.flush(open)) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::StorageFull && open.at + RECORD_LEN as u64 > open.len => {
                inner.confirms = false;
            }
            Err(_) => self.fail(&mut inner),
        }
    }

    /// A head is published. `frames` as for [`LocalLog::confirm`].
    pub(crate) fn published(&self, head: &Head, frames: impl FnOnce(u64, u64) -> Vec<Logged>) {
        let mut inner = self.inner.lock();
        inner.published = inner.published.max(head.position);
        inner.logged = inner.logged.max(head.position);
        let (failed, replaying) = (inner.failed, inner.replaying);
        let Some(open) = inner.open.as_mut() else { return };
        if failed {
            // What it has is in the store.
            self.give_up(&mut inner);
            return;
        }
        let noted = self.note(open, Entry::Published { position: head.position });
        if replaying || (noted.is_ok() && open.at <= open.len / USED_SHARE) {
            return;
        }
        let place = self.check_place(open);
        // What was confirmed and is not published is in memory, all of it.
        let frames = frames(head.position, inner.logged);
        match place.and_then(|()| self.make(head, &frames)) {
            Ok(open) => (inner.open, inner.confirms) = (Some(open), !inner.stopped),
            Err(_) => self.fail(&mut inner),
        }
    }

    /// The file goes, if it is the one at its place, and nothing is confirmed any more. That it cannot be removed changes nothing:
    /// whoever opens next finds nothing in it that the store has not.
    fn give_up(&self, inner: &mut Inner) {
        inner.confirms = false;
        if let Some(open) = inner.open.take()
            && self.check_place(&open).is_ok()
        {
            let _gone = self.remove();
        }
    }

    /// How far it is confirmed, if that is further than what is published.
    pub(crate) fn waiting(&self) -> Option<u64> {
        let inner = self.inner.lock();
        (inner.logged > inner.published).then_some(inner.logged)
    }

    /// This writer is about to let go of the volume, after which only the store can promise anything.
    pub(crate) fn stop(&self) {
        let mut inner = self.inner.lock();
        (inner.confirms, inner.stopped) = (false, true);
    }

    /// Everything is in the store, and the file is not needed any more.
    pub(crate) fn end(&self) {
        self.give_up(&mut self.inner.lock());
    }

    /// What was done, by name.
    pub(crate) fn stats(&self) -> [(&'static str, u64); 4] {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [
            ("flushes confirmed by the local log", get(&self.counts.confirmed)),
            ("bytes written to the local log", get(&self.counts.bytes)),
            ("frames replayed from the local log", get(&self.counts.replayed)),
            ("failures of the local log", get(&self.counts.failures)),
        ]
    }
}

/// Writes what is put together.
fn put(open: &mut Open, out: &mut Vec<u8>) -> io::Result<()> {
    open.file.write_all_at(out, open.at)?;
    open.at += out.len() as u64;
    out.clear();
    Ok(())
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn local(path: &Path, e: io::Error) -> RemoteError {
    RemoteError::Local { path: path.into(), source: Arc::new(e) }
}

#[cfg(test)]
mod tests;
