//! Reads a tar archive, plain or compressed, as a source of files.
//!
//! 1. [`read_tar`] recognises the compression by the first bytes and chooses the decompressor.
//! 2. A thread goes through the archive: it frames members (`records`), reserves space in the budget for every piece of
//!    data, and hands pieces to workers, which prepare them (checksums, compression).
//! 3. The receiver takes [`Event`]s in the order of the archive and waits for each piece.
//!
//! The order is that of the archive; the receiver creates parent directories that have no entry of their own, and
//! replaces entries that occur twice, as tar does.

mod records;

use std::io::{self, BufReader, Read};
use std::path::PathBuf;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};

use self::records::{Kind, Record, Records};
use super::entry::{Meta, Stamps, UnpreparedPiece, Whole};
use super::pool::{Pool, Source, Workers};
use super::walk::{PIECE_BYTES, Piece, pieces_of};
use crate::MkfsError;

/// Members that wait for the receiver at most.
const EVENTS_AHEAD_MAX: usize = 4096;
/// Room that a piece takes in the budget at least.
const PIECE_COST_MIN: u64 = 4096;
/// Bytes of the buffer between the decompressor and the framing.
const BUFFER_BYTES: usize = 256 << 10;

/// One member of the archive.
pub(crate) struct Member<P> {
    /// Names from the top; empty for the top itself.
    pub path: Vec<Vec<u8>>,
    pub meta: Meta,
    pub body: MemberBody<P>,
}

pub(crate) enum MemberBody<P> {
    Dir,
    /// Its size and the first piece of its data; others follow in [`Event::More`].
    File {
        size: u64,
        first: Option<Piece<P>>,
    },
    /// Another name of what this path names.
    HardLink(Vec<Vec<u8>>),
    Symlink(Vec<u8>),
    Node {
        major: u32,
        minor: u32,
    },
}

pub(crate) enum Event<P> {
    Member(Member<P>),
    More(Piece<P>),
    /// Something of the archive is left out.
    Warning(String),
}

/// A running reader. Dropping it ends it, also in the middle.
pub(crate) struct TarRead<P> {
    /// Stands before the workers: fields are dropped in this order.
    pub events: Receiver<Result<Event<P>, MkfsError>>,
    _workers: Workers<P>,
}

/// Starts to read an archive.
///
/// # Errors
/// The first bytes cannot be read, or the compression is not supported.
pub(crate) fn read_tar<P, F>(
    stream: Box<dyn Read + Send>,
    workers: usize,
    bytes_ahead_max: u64,
    prepare: F,
) -> Result<TarRead<P>, MkfsError>
where
    P: Send + 'static,
    F: Fn(UnpreparedPiece) -> Result<P, MkfsError> + Send + Sync + 'static,
{
    let stream = BufReader::with_capacity(BUFFER_BYTES, decompressed(stream)?);
    let mut workers = Workers::start(workers, bytes_ahead_max, prepare);
    let (sender, events) = bounded(EVENTS_AHEAD_MAX);
    let reader = Reader { records: Records::new(stream), pool: workers.pool(), sender };
    workers.add(move || reader.run());
    Ok(TarRead { events, _workers: workers })
}

/// Puts the decompressor in front that the first bytes ask for.
fn decompressed(mut stream: Box<dyn Read + Send>) -> Result<Box<dyn Read + Send>, MkfsError> {
    let failed = |cause: io::Error| MkfsError::Tar { at: 0, what: cause.to_string() };
    let mut magic = Vec::new();
    stream.by_ref().take(6).read_to_end(&mut magic).map_err(failed)?;
    if magic.is_empty() {
        // It is what a program leaves that has failed before a pipe.
        return Err(MkfsError::Tar { at: 0, what: "the stream is empty, which no archive is".into() });
    }
    let whole = io::Cursor::new(magic.clone()).chain(stream);
    Ok(match magic.as_slice() {
        #[cfg(feature = "zlib")]
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(whole)),
        #[cfg(not(feature = "zlib"))]
        [0x1f, 0x8b, ..] => {
            let what =
                "tar compressed with gzip: this program was built without the feature `zlib`; pipe it through gzip -dc";
            return Err(MkfsError::Unsupported(what.into()));
        }
        #[cfg(feature = "zstd")]
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(zstd::stream::read::Decoder::new(whole).map_err(failed)?),
        #[cfg(not(feature = "zstd"))]
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let what =
                "tar compressed with zstd: this program was built without the feature `zstd`; pipe it through zstd -dc";
            return Err(MkfsError::Unsupported(what.into()));
        }
        [0xfd, b'7', b'z', b'X', b'Z', 0] => {
            return Err(MkfsError::Unsupported("tar compressed with xz; pipe it through xz -dc".into()));
        }
        [b'B', b'Z', b'h', ..] => {
            return Err(MkfsError::Unsupported("tar compressed with bzip2; pipe it through bzip2 -dc".into()));
        }
        _ => Box::new(whole),
    })
}

struct Reader<R, P> {
    records: Records<R>,
    pool: Arc<Pool<P>>,
    sender: Sender<Result<Event<P>, MkfsError>>,
}

/// Why a reader ends early: an error, or `None` when the receiver has gone.
type Stop = Option<MkfsError>;

impl<R: Read, P: Send + 'static> Reader<R, P> {
    fn run(mut self) {
        loop {
            match self.records.next().map_err(Some).and_then(|record| match record {
                Some(record) => self.member(record).map(|()| true),
                None => Ok(false),
            }) {
                Ok(true) => {}
                Ok(false) => {
                    if self.records.has_more() {
                        let text =
                            "what follows the end of the archive is left out (another archive, if several were joined)";
                        // A receiver that has gone does not want the warning.
                        let _gone = self.send(Event::Warning(text.into()));
                    }
                    return;
                }
                Err(None) => return,
                Err(Some(error)) => {
                    // A receiver that has gone does not want the error either.
                    let _gone = self.sender.send(Err(error));
                    return;
                }
            }
        }
    }

    fn send(&self, event: Event<P>) -> Result<(), Stop> {
        self.sender.send(Ok(event)).map_err(|_| None)
    }

    fn member(&mut self, record: Record) -> Result<(), Stop> {
        let path = names(&record.path).map_err(Some)?;
        if record.text_acls {
            let name = record.path.escape_ascii();
            self.send(Event::Warning(format!("{name}: access lists in text form are left out")))?;
        }
        let meta = Meta {
            mode: type_bits(record.kind) | record.mode,
            uid: record.uid,
            gid: record.gid,
            times: Stamps {
                access: record.atime.unwrap_or(record.mtime),
                modify: record.mtime,
                change: record.ctime.unwrap_or(record.mtime),
                birth: record.birth.unwrap_or(record.mtime),
            },
            xattrs: record.xattrs,
        };
        let body = match record.kind {
            Kind::File => return self.file(path, meta, record.size, &record.runs),
            Kind::Dir => MemberBody::Dir,
            Kind::HardLink => MemberBody::HardLink(names(&record.link).map_err(Some)?),
            Kind::Symlink => MemberBody::Symlink(record.link),
            Kind::CharDevice | Kind::BlockDevice => MemberBody::Node { major: record.major, minor: record.minor },
            Kind::Fifo | Kind::Socket => MemberBody::Node { major: 0, minor: 0 },
        };
        self.send(Event::Member(Member { path, meta, body }))
    }

    fn file(&mut self, path: Vec<Vec<u8>>, meta: Meta, size: u64, runs: &[(u64, u64)]) -> Result<(), Stop> {
        let mut member = Some((path, meta));
        // Every piece but the last ends at a multiple of the piece size, and runs of sparse files begin anywhere: a
        // piece that begins inside a sector is the writer's business.
        for (from, to) in runs.iter().flat_map(|&(start, len)| pieces_of(start, start + len)) {
            let cost = self.pool.take_room((to - from).max(PIECE_COST_MIN)).ok_or(None)?;
            let mut bytes = vec![0; usize::try_from(to - from).unwrap_or(0)];
            self.records.read_data(&mut bytes).map_err(Some)?;
            let whole = Whole::of(from, to, size);
            let slot = self.pool.queue(Source::Bytes(UnpreparedPiece { offset: from, bytes, whole }));
            let piece = Piece::new(slot, cost, self.pool.clone());
            let event = match member.take() {
                Some((path, meta)) => {
                    Event::Member(Member { path, meta, body: MemberBody::File { size, first: Some(piece) } })
                }
                None => Event::More(piece),
            };
            self.send(event)?;
        }
        match member {
            Some((path, meta)) => {
                self.send(Event::Member(Member { path, meta, body: MemberBody::File { size, first: None } }))
            }
            None => Ok(()),
        }
    }
}

fn type_bits(kind: Kind) -> u32 {
    match kind {
        Kind::File | Kind::HardLink => 0o100_000,
        Kind::Symlink => 0o120_000,
        Kind::CharDevice => 0o020_000,
        Kind::BlockDevice => 0o060_000,
        Kind::Dir => 0o040_000,
        Kind::Fifo => 0o010_000,
        Kind::Socket => 0o140_000,
    }
}

/// The names of a path, without what means nothing; a path that climbs is refused.
fn names(path: &[u8]) -> Result<Vec<Vec<u8>>, MkfsError> {
    let parts = path.split(|&b| b == b'/').filter(|part| !part.is_empty() && *part != b".");
    let parts: Vec<Vec<u8>> = parts.map(<[u8]>::to_vec).collect();
    if parts.iter().any(|part| part == b"..") {
        return Err(MkfsError::Tar { at: 0, what: format!("{}: a path with ..", path.escape_ascii()) });
    }
    Ok(parts)
}

/// A path for messages.
pub(crate) fn shown(path: &[Vec<u8>]) -> PathBuf {
    path.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

const _: () = assert!(PIECE_BYTES.is_power_of_two());

#[cfg(test)]
mod tests;
