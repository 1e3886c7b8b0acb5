//! Finding single files in streams, without receiving them.
//!
//! A stream has an index: which inodes it is about, under which names they are before and after it, and where in it their
//! commands are. Normal path: (1) as a stream is made, [`Indexer`] reads its commands and keeps what they are about (`model`);
//! (2) the index is stored beside the stream (`bytes`); (3) of a snapshot, the indexes of its chain are loaded ([`Chain`]), a path is
//! followed back through renames to the stream that made the inode (`chain`), and what each stream did to it is brought
//! together (`data`); (4) what is found is read at its places in the streams, which is all that is read of them, and comes
//! out as bytes, or as the commands of a stream of its own (`extract`).
//!
//! Everything is by path, as the commands are, so that an index depends on its stream alone. An inode of the stream's parent is known by its
//! path there. Hard links: an inode may have several names before a stream, of which the stream mentions one; so all
//! names are carried forward from where the inode was made.
//!
//! Memory: that of the indexes, some 300 bytes for each inode that a stream mentions. An index beyond its bound is dropped, and
//! files of that snapshot cannot be looked up.
//!
//! Trust: indexes and streams may be anything. Counts are compared with what is there before memory is taken, paths are
//! walked by names, every step leads to an earlier stream or an earlier place in one, and steps are bounded ([`Steps`]).
//!
//! Of streams that lie in files, and have no index, [`scan()`] makes it of all subvolumes that a file has; of these any moment of a file can be
//! read ([`Chain::read_at`]), and what of it is packed, as it is stored ([`Chain::packed_at`]).
//!
//! Not supported, and refused when a file needs it: streams without data, fallocate that moves data.

mod bytes;
mod chain;
mod data;
mod extract;
mod model;
mod scan;

use std::error::Error;

use oleo_format::{Class, Classified, Corruption, errno};

pub use chain::{Chain, Found, Link};
pub use extract::Extracted;
pub use model::{FileType, Indexed, Indexer};
pub use scan::{Scanned, scan};

use crate::StreamError;

/// Where the bytes of streams come from.
pub trait Places {
    /// `len` bytes of the stream with this number in the chain, from `at` on.
    ///
    /// # Errors
    /// They are not there or damaged, or cannot be read.
    fn get(&mut self, link: usize, at: u64, len: u32) -> Result<Vec<u8>, LookupError>;
}

/// How many steps may still be taken to find out where contents are.
#[derive(Debug)]
pub struct Steps(u64);

impl Default for Steps {
    /// As many as a file may take that is read as a whole.
    fn default() -> Steps {
        Steps(1 << 28)
    }
}

impl Steps {
    /// So many.
    pub fn new(steps: u64) -> Steps {
        Steps(steps)
    }

    fn take(&mut self, steps: u64) -> Result<(), LookupError> {
        let too_many = || LookupError::Unsupported("a file is in too many pieces".into());
        self.0 = self.0.checked_sub(steps).ok_or_else(too_many)?;
        Ok(())
    }
}

/// Why something cannot be found or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// An index, or what it leads to, cannot be.
    #[error(transparent)]
    Corrupt(#[from] Corruption),
    /// There is no such path in the snapshot.
    #[error("{0} is not there")]
    NotFound(String),
    /// It is of another type.
    #[error("{0} is no {1}")]
    Type(String, &'static str),
    /// It can only be had by receiving the stream.
    #[error("{0}: receive the snapshot instead")]
    Unsupported(String),
    /// The output cannot be written.
    #[error("cannot write the output: {0}")]
    Output(#[source] std::io::Error),
    /// What is to be a stream cannot be read as one.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A stream cannot be read.
    #[error(transparent)]
    Read(Box<dyn Error + Send + Sync>),
}

impl Classified for LookupError {
    #[deny(clippy::wildcard_enum_match_arm)]
    fn class(&self) -> Class {
        match self {
            LookupError::Corrupt(error) => error.class(),
            LookupError::NotFound(_) => Class::refusal(errno::ENOENT),
            LookupError::Type(..) => Class::refusal(errno::EINVAL),
            LookupError::Unsupported(_) => Class::refusal(errno::EOPNOTSUPP),
            LookupError::Output(error) => Class { kind: oleo_format::ErrorKind::Device, ..Class::of_io(error) },
            LookupError::Stream(error) => error.class(),
            LookupError::Read(_) => Class::DEVICE,
        }
    }
}

fn shown(path: &[u8]) -> String {
    if path.is_empty() { "/".into() } else { path.escape_ascii().to_string() }
}

fn wrong(what: &'static str, have: impl ToString, want: impl ToString) -> Corruption {
    Corruption::new("index of a stream", what, have.to_string(), want.to_string())
}

#[cfg(test)]
mod tests;
