//! Single files out of streams on a store: only the indexes of a chain are read, and the parts that have what is asked for.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use oleo_remote::RemoteError;
use oleo_remote::streams::{StreamEntry, StreamList, StreamPieces, Streams, chain};
use oleo_stream::lookup::{Chain, Extracted, FileType, Link, LookupError, Places};

use crate::receive::{Receive, receive_to_dir};
use crate::{Error, Result};

/// An entry of a directory in a snapshot on a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundEntry {
    /// Its name.
    pub name: Vec<u8>,
    /// What it is.
    pub kind: FileType,
    /// How long it is, if it is a file; bytes.
    pub size: u64,
}

/// The files of a snapshot on a store.
pub struct StoredFiles {
    chain: Chain,
    places: StreamPlaces,
}

struct StreamPlaces {
    streams: Streams,
    entries: Vec<StreamEntry>,
    /// Of each stream, once something of it was asked for.
    open: Vec<Option<StreamPieces>>,
}

impl Places for StreamPlaces {
    fn get(&mut self, link: usize, at: u64, len: u32) -> std::result::Result<Vec<u8>, LookupError> {
        let read = |error: RemoteError| LookupError::Read(Box::new(error));
        let pieces = match &mut self.open[link] {
            Some(pieces) => pieces,
            none => none.insert(StreamPieces::open(&self.streams, &self.entries[link]).map_err(read)?),
        };
        pieces.get(at, len).map_err(read)
    }
}

/// A path as models have it: names without slashes around them.
fn path_of(path: &[u8]) -> Result<Vec<u8>> {
    let names: Vec<&[u8]> = path.split(|b| *b == b'/').filter(|name| !name.is_empty() && *name != b".").collect();
    if names.contains(&&b".."[..]) {
        return Err(Error::Request("a path in a snapshot on a store has no ..".into()));
    }
    Ok(names.join(&b'/'))
}

impl StoredFiles {
    /// Those of a snapshot. The indexes of its stream and of all that it is built on are read: together no more bytes than the
    /// store's `map_bytes_max`, and twice as much memory while they are looked at.
    ///
    /// # Errors
    /// One of them is missing or damaged, they take more, something that it is built on is not there, or the store fails.
    pub fn open(streams: &Streams, list: &StreamList, stream: &StreamEntry) -> Result<StoredFiles> {
        let entries = chain(list, stream, |_| false)?;
        let mut indexes = Vec::with_capacity(entries.len());
        let bytes_max = streams.index_bytes_max();
        let mut left = bytes_max;
        for entry in &entries {
            let without = || {
                let text = format!("the stream of {} has no index: receive the snapshot instead", entry.name);
                Error::refused(oleo_fs::errno::EOPNOTSUPP, text)
            };
            let index = streams.index(entry, left)?.ok_or_else(without)?;
            left -= index.len() as u64;
            indexes.push(index);
        }
        let place = |id| entries.iter().position(|entry| entry.id == id);
        let links: Vec<Link<'_>> = entries
            .iter()
            .zip(&indexes)
            .map(|(entry, index)| {
                let parent = entry.needs.first().filter(|_| entry.incremental).and_then(|id| place(*id));
                Link { uuid: entry.uuid, parent, index }
            })
            .collect();
        let chain = Chain::new(&links, usize::try_from(bytes_max.saturating_mul(2)).unwrap_or(usize::MAX))?;
        let open = entries.iter().map(|_| None).collect();
        let entries = entries.into_iter().cloned().collect();
        Ok(StoredFiles { chain, places: StreamPlaces { streams: streams.clone(), entries, open } })
    }

    /// What is at a path.
    ///
    /// # Errors
    /// There is nothing.
    pub fn find(&self, path: &[u8]) -> Result<FoundEntry> {
        let path = path_of(path)?;
        let found = self.chain.find(&path)?;
        let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default().to_vec();
        Ok(FoundEntry { name, kind: found.kind, size: found.size })
    }

    /// What is in a directory, by name.
    ///
    /// # Errors
    /// There is none.
    pub fn list(&self, path: &[u8]) -> Result<Vec<FoundEntry>> {
        let path = path_of(path)?;
        let names = self.chain.list(&path)?;
        names.into_iter().map(|name| self.find(&[&path, &b"/"[..], &name].concat())).collect()
    }

    /// Writes the contents of a file.
    ///
    /// # Errors
    /// It is no file, it cannot be read, or not be written.
    pub fn cat(&mut self, path: &[u8], to: &mut dyn Write) -> Result<()> {
        let found = self.chain.find(&path_of(path)?)?;
        Ok(self.chain.cat(&found, &mut self.places, to)?)
    }

    /// Where a symbolic link points to.
    ///
    /// # Errors
    /// It is none, or cannot be read.
    pub fn link_target(&mut self, path: &[u8]) -> Result<Vec<u8>> {
        let found = self.chain.find(&path_of(path)?)?;
        Ok(self.chain.link_target(&found, &mut self.places)?)
    }

    /// Makes the directory `dest` with what is at a path, and everything below if that is a directory. The rules are those of
    /// [`receive_to_dir`]: paths stay inside, attributes that the user may not set are left out, with a warning. After an error nothing
    /// is left.
    ///
    /// # Errors
    /// `dest` is there already, or what is to be copied is not or cannot be read.
    pub fn restore(&mut self, path: &[u8], dest: &Path, exact_modes: bool) -> Result<(Extracted, Vec<String>)> {
        let path = path_of(path)?;
        let Some(name) = dest.file_name().map(OsStr::as_bytes) else {
            return Err(Error::Request(format!("{} does not end in a name", dest.display())));
        };
        let into = match dest.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let (from, mut to) = std::io::pipe().map_err(Error::Output)?;
        let how = Receive::default().atomic(true).exact_modes(exact_modes);
        let (extracted, (report, received)) = std::thread::scope(|scope| {
            let receiver = scope.spawn(|| receive_to_dir(into, from, &how));
            let extracted = self.chain.extract(&path, name, &mut self.places, &mut to);
            drop(to);
            let received = receiver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (extracted, received)
        });
        match (extracted, received) {
            // What could not be written was refused by the other end, which knows why.
            (Err(LookupError::Output(_)), Err(error)) => Err(error),
            (Err(error), _) => Err(error.into()),
            (Ok(_), Err(error)) => Err(error),
            (Ok(extracted), Ok(())) => Ok((extracted, report.warnings)),
        }
    }
}
