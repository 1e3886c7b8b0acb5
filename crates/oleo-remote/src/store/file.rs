//! A store that is a directory: keys are paths below it.
//!
//! Storing: (1) the bytes go to a file of another name beside the place, which is flushed; (2) under the lock of the store
//! (`flock` of `.lock`) the condition is looked at; (3) the file is renamed; (4) the directory is flushed. A crash leaves
//! a file whose name begins with a dot, or the whole object. An error before the renaming says that nothing has changed;
//! one after it, that it is not known.
//!
//! The version of an object is the checksum of its bytes and its length. Operations are over when they have begun.
//!
//! Another user may own the directory. So objects and the lock are plain files that are not opened through links, and nothing is
//! stored or deleted below a link. A directory that is replaced by a link after that check is not noticed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{FlockOperation, OFlags, flock};

use super::{Answer, Body, Cond, Deadline, Listed, Op, Store, StoreTime, Ticket, Version, is_key, odd};
use crate::error::StoreError;
use crate::format::{Sum, xxh64};
use crate::host::Host;

/// How often the lock is tried.
const LOCK_TRIES: Duration = Duration::from_millis(2);
/// How deep folders of keys are followed.
const DEPTH_MAX: usize = 16;

/// Opens no link, and does not wait for the other end of a pipe.
const PLAIN: i32 = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits() as i32;

/// A store in a directory.
pub struct FileStore {
    root: PathBuf,
    host: Arc<dyn Host>,
}

impl FileStore {
    /// Of a directory, which need not be there before something is stored.
    pub fn new(root: &Path, host: Arc<dyn Host>) -> FileStore {
        FileStore { root: root.to_owned(), host }
    }

    fn path(&self, key: &str) -> Result<PathBuf, StoreError> {
        if is_key(key) { Ok(self.root.join(key)) } else { Err(odd(&format!("key {key:?}"))) }
    }

    fn carry_out(&self, op: Op, deadline: Deadline) -> Result<Answer, StoreError> {
        match op {
            Op::Get { key, range: Some(range), len_max, .. } => {
                let file = open_object(&self.path(&key)?).map_err(absent)?;
                let len = range.end.saturating_sub(range.start);
                if len > len_max || range.end > file.metadata().map_err(away)?.len() {
                    return Err(odd("beyond the end, or too long"));
                }
                let mut body = vec![0; len as usize];
                file.read_exact_at(&mut body, range.start).map_err(away)?;
                Ok(Answer::Object { body, version: None })
            }
            Op::Get { key, range: None, len_max, if_changed } => {
                let mut body = Vec::new();
                let file = open_object(&self.path(&key)?).map_err(absent)?;
                file.take(len_max.saturating_add(1)).read_to_end(&mut body).map_err(away)?;
                if body.len() as u64 > len_max {
                    return Err(odd("too long"));
                }
                let version = version(xxh64(&body), body.len() as u64);
                if if_changed.as_ref() == Some(&version) {
                    return Ok(Answer::NotChanged);
                }
                Ok(Answer::Object { body, version: Some(version) })
            }
            Op::Put { key, body, cond } => self.put(&self.path(&key)?, &body, &cond, deadline),
            Op::Delete { key } => {
                let path = self.path(&key)?;
                let unlinked = path.parent().map_or(Ok(()), |dir| self.check_links(dir));
                match unlinked.and_then(|()| fs::remove_file(&path)) {
                    Ok(()) => flush_dir(&path).map_err(unknown)?,
                    Err(e) if is_absent(&e) => {}
                    Err(e) => return Err(unknown(e)),
                }
                Ok(Answer::Deleted)
            }
            Op::List { prefix, after, count_max } => {
                let mut found = BTreeMap::new();
                list(&self.root, "", &prefix, &after, count_max, 0, &mut found).map_err(away)?;
                Ok(Answer::Listed(found.into_values().collect()))
            }
        }
    }

    fn put(&self, path: &Path, body: &Body, cond: &Cond, deadline: Deadline) -> Result<Answer, StoreError> {
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return Err(odd("no key")) };
        self.check_links(dir).and_then(|()| self.make_dir(dir)).map_err(away)?;
        let mark: String = self.host.random().iter().map(|b| format!("{b:02x}")).collect();
        let beside = dir.join(format!(".{}.{mark}", name.to_string_lossy()));
        let written = write_new(&beside, body).map_err(away);
        let stored = written.and_then(|version| self.rename(&beside, path, cond, deadline).map(|()| version));
        if stored.is_err() {
            // Renamed or not, nobody looks for this name.
            let _gone = fs::remove_file(&beside);
        }
        Ok(Answer::Stored(stored?))
    }

    /// Makes a directory and those above it, so that a crash does not lose them. That of the store is its owner's alone: the
    /// objects in it hold files of any mode.
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        if dir.is_dir() {
            return Ok(());
        }
        if let Some(above) = dir.parent() {
            self.make_dir(above)?;
        }
        let mode = if dir == self.root { 0o700 } else { 0o777 };
        match fs::DirBuilder::new().mode(mode).create(dir) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(e) => Err(e),
            Ok(()) => flush_dir(dir),
        }
    }

    /// Refuses links among the directories from the root of the store down to `dir`: the owner of the store would decide where
    /// an object is stored or deleted.
    fn check_links(&self, dir: &Path) -> io::Result<()> {
        for dir in dir.ancestors().take_while(|above| *above != self.root) {
            match fs::symlink_metadata(dir) {
                Ok(meta) if meta.is_symlink() => {
                    return Err(io::Error::other(format!("{} is a symbolic link", dir.display())));
                }
                Err(e) if !is_absent(&e) => return Err(e),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path, cond: &Cond, deadline: Deadline) -> Result<(), StoreError> {
        let _lock = match cond {
            Cond::None => None,
            Cond::Absent | Cond::Match(_) => Some(self.lock(deadline)?),
        };
        let holds = match cond {
            Cond::None => true,
            Cond::Absent => !to.try_exists().map_err(away)?,
            Cond::Match(version) => version_of(to).map_err(away)?.as_ref() == Some(version),
        };
        if !holds {
            return Err(StoreError::Condition);
        }
        fs::rename(from, to).map_err(away)?;
        flush_dir(to).map_err(unknown)
    }

    /// Takes the lock of all conditions of the store, which is free again when the file is dropped.
    fn lock(&self, deadline: Deadline) -> Result<File, StoreError> {
        let path = self.root.join(".lock");
        let file = File::options().create(true).append(true).custom_flags(PLAIN).open(path).map_err(away)?;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(rustix::io::Errno::WOULDBLOCK) if self.host.now() < deadline => self.host.sleep(LOCK_TRIES),
                Err(rustix::io::Errno::WOULDBLOCK) => return Err(StoreError::Away("the store is locked".into())),
                Err(e) => return Err(away(e.into())),
            }
        }
    }
}

fn write_new(path: &Path, body: &Body) -> io::Result<Version> {
    let mut file = File::options().create_new(true).write(true).open(path)?;
    let mut sum = Sum::new();
    for piece in body.pieces() {
        file.write_all(piece)?;
        sum = sum.add(piece);
    }
    file.sync_all()?;
    Ok(version(sum.get(), body.len()))
}

/// Opens an object for reading, which is a plain file.
fn open_object(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(PLAIN).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other(format!("{} is not a plain file", path.display()))),
    }
}

/// Flushes the directory that a name is in.
fn flush_dir(of: &Path) -> io::Result<()> {
    match of.parent() {
        Some(dir) => File::open(dir)?.sync_all(),
        None => Ok(()),
    }
}

/// Collects the first `count_max` keys after `after`.
fn list(
    dir: &Path,
    above: &str,
    prefix: &str,
    after: &str,
    count_max: usize,
    depth: usize,
    found: &mut BTreeMap<String, Listed>,
) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(e) if is_absent(&e) => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| is_key(name)) else { continue };
        let key = format!("{above}{name}");
        let meta = match entry.metadata() {
            Err(e) if is_absent(&e) => continue,
            meta => meta?,
        };
        if meta.is_dir() {
            let below = key + "/";
            if depth < DEPTH_MAX && (below.starts_with(prefix) || prefix.starts_with(&below)) {
                list(&entry.path(), &below, prefix, after, count_max, depth + 1, found)?;
            }
        } else if meta.is_file() && key.starts_with(prefix) && key.as_str() > after {
            let modified = meta.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            let modified = modified.map(|time| StoreTime(time.as_secs()));
            found.insert(key.clone(), Listed { key, len: meta.len(), modified });
            if found.len() > count_max {
                found.pop_last();
            }
        }
    }
    Ok(())
}

fn version_of(path: &Path) -> io::Result<Option<Version>> {
    let mut file = match open_object(path) {
        Err(e) if is_absent(&e) => return Ok(None),
        file => file?,
    };
    let (mut sum, mut len, mut buf) = (Sum::new(), 0, vec![0; 64 << 10]);
    loop {
        let count = file.read(&mut buf)?;
        if count == 0 {
            return Ok(Some(version(sum.get(), len)));
        }
        sum = sum.add(&buf[..count]);
        len += count as u64;
    }
}

fn version(sum: u64, len: u64) -> Version {
    Version { etag: format!("{sum:016x}-{len:x}"), generation: None }
}

fn is_absent(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn absent(e: io::Error) -> StoreError {
    if is_absent(&e) { StoreError::Absent } else { away(e) }
}

fn away(e: io::Error) -> StoreError {
    match e.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => StoreError::Denied(e.to_string()),
        _ => StoreError::Away(e.to_string()),
    }
}

fn unknown(e: io::Error) -> StoreError {
    StoreError::Unknown(e.to_string())
}

impl Store for FileStore {
    fn submit(&self, op: Op, deadline: Deadline) -> Ticket {
        let answer = self.carry_out(op, deadline);
        Ticket::new(move || answer)
    }
    fn describe(&self) -> String {
        format!("file://{}", self.root.display())
    }
    fn now(&self) -> Option<StoreTime> {
        let now = std::time::SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        Some(StoreTime(now.as_secs()))
    }
}
