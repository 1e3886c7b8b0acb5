//! Reading streams: one after another from the beginning, or parts of one.
//!
//! Nothing of a part is handed out before its checksum, and its seal if it has one, were compared. Bytes that are wrong are
//! asked for three times: on the way from a store bits change, too.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::{Arc, OnceLock};

use oleo_format::Corruption;
use uuid::Uuid;

use super::list::StreamEntry;
use super::manifest::{MANIFEST_LEN_MAX, Manifest, plain_len};
use super::open::Streams;
use super::pieces::{Kind, PieceId, manifest_key};
use crate::error::{RemoteError, StoreError};
use crate::format::xxh64;
use crate::store::{Answer, Op, Ticket, get};
use crate::swap::WRONG_TRIES;

/// Parts that are asked for before they are needed.
const AHEAD: usize = 3;
/// Parts that are kept, for reading here and there.
const KEPT: usize = 4;

impl Streams {
    /// The manifest of a stream.
    ///
    /// # Errors
    /// It is missing or not the one that the list names, or the store fails.
    pub fn manifest(&self, stream: &StreamEntry) -> Result<Manifest, RemoteError> {
        let key = manifest_key(stream.id);
        let len = u64::from(stream.manifest_len).min(MANIFEST_LEN_MAX);
        let mut tries = WRONG_TRIES;
        loop {
            tries -= 1;
            let error = match get(&*self.store, &key, len, self.deadline()) {
                Ok((bytes, _)) => match self.manifest_of(stream, &bytes) {
                    Ok(manifest) => return Ok(manifest),
                    Err(e) => RemoteError::Corrupt(e.within(&key)),
                },
                Err(StoreError::Absent) => return Err(missing("manifest", &key)),
                Err(e @ StoreError::Wrong(_)) => RemoteError::store("get", &key, e),
                Err(e) => return Err(RemoteError::store("get", key, e)),
            };
            if tries == 0 {
                return Err(error);
            }
        }
    }

    fn manifest_of(&self, stream: &StreamEntry, bytes: &[u8]) -> Result<Manifest, Corruption> {
        let sum = xxh64(bytes);
        if (bytes.len(), sum) != (stream.manifest_len as usize, stream.manifest_xxh) {
            let (have, want) = (format!("{sum:#x}"), format!("{:#x}", stream.manifest_xxh));
            return Err(Corruption::new("manifest of a stream", "checksum in the list", have, want));
        }
        Manifest::open(bytes, stream.id, self.uuid, self.key.as_deref())
    }

    fn ask(&self, manifest: &Manifest, id: PieceId) -> Ticket {
        let row = row(manifest, id);
        let op = Op::Get { key: id.key(), range: None, len_max: row.stored.into(), if_changed: None };
        self.store.submit(op, self.deadline())
    }

    /// A part, whole and verified. `first` is an operation under way that gets it.
    pub(crate) fn piece(
        &self,
        manifest: &Manifest,
        id: PieceId,
        first: Option<Ticket>,
    ) -> Result<Vec<u8>, RemoteError> {
        let mut first = first;
        let mut tries = WRONG_TRIES;
        loop {
            let was_first = first.is_some();
            let answer = first.take().unwrap_or_else(|| self.ask(manifest, id)).wait();
            let error = match answer {
                Ok(Answer::Object { body, .. }) => match self.packing().unpack(id, row(manifest, id), body) {
                    Ok(bytes) => return Ok(bytes),
                    Err(e) => RemoteError::Corrupt(e.within(id.key())),
                },
                Ok(_) => RemoteError::store("get", id.key(), StoreError::Wrong("no object".into())),
                Err(StoreError::Absent) => return Err(missing("part", &id.key())),
                Err(e @ StoreError::Wrong(_)) => RemoteError::store("get", id.key(), e),
                // Its time may have run out while nobody waited.
                Err(_) if was_first => continue,
                Err(e) => return Err(RemoteError::store("get", id.key(), e)),
            };
            tries -= 1;
            if tries == 0 {
                return Err(error);
            }
        }
    }

    /// The index of a stream; none if it has none.
    ///
    /// # Errors
    /// It has more than `bytes_max` bytes, a part of it is missing or damaged, or the store fails.
    pub fn index(&self, stream: &StreamEntry, bytes_max: u64) -> Result<Option<Vec<u8>>, RemoteError> {
        let manifest = self.manifest(stream)?;
        if manifest.index.is_empty() {
            return Ok(None);
        }
        let len = plain_len(&manifest.index);
        if len > bytes_max {
            let what = format!(
                "the index of {} has {len} bytes, and {bytes_max} are left for it: receive the snapshot instead, or allow more by map-memory",
                stream.name.escape_debug()
            );
            return Err(RemoteError::Limit { what });
        }
        let mut out = Vec::with_capacity(len as usize);
        for n in 0..manifest.index.len() {
            out.extend(self.piece(&manifest, PieceId { stream: stream.id, kind: Kind::Index, n: n as u32 }, None)?);
        }
        Ok(Some(out))
    }
}

fn row(manifest: &Manifest, id: PieceId) -> &super::Row {
    match id.kind {
        Kind::Part => &manifest.parts[id.n as usize],
        Kind::Index => &manifest.index[id.n as usize],
    }
}

fn missing(what: &'static str, key: &str) -> RemoteError {
    Corruption::new("stream", what, "missing", "stored").within(key).into()
}

/// Streams one after another, from the first to the last byte, read ahead.
pub struct ChainBytes {
    streams: Streams,
    manifests: Vec<Manifest>,
    /// The next part to be asked for: of which stream, and which.
    next: (usize, u32),
    asked: VecDeque<(usize, PieceId, Ticket)>,
    part: Vec<u8>,
    at: usize,
    error: Arc<OnceLock<RemoteError>>,
}

impl ChainBytes {
    /// Those of these streams, in this order. All manifests are read first, so that a chain that is not whole is found before anything of
    /// it is used.
    ///
    /// # Errors
    /// A manifest is missing or damaged, or the store fails.
    pub fn open(streams: &Streams, chain: &[&StreamEntry]) -> Result<ChainBytes, RemoteError> {
        let manifests = chain.iter().map(|stream| streams.manifest(stream)).collect::<Result<Vec<_>, _>>()?;
        Ok(ChainBytes {
            streams: streams.clone(),
            manifests,
            next: (0, 0),
            asked: VecDeque::new(),
            part: Vec::new(),
            at: 0,
            error: Arc::default(),
        })
    }

    /// The same as one for each stream.
    pub fn split(self) -> Vec<ChainBytes> {
        let alone = |manifest: &Manifest| ChainBytes {
            streams: self.streams.clone(),
            manifests: vec![manifest.clone()],
            next: (0, 0),
            asked: VecDeque::new(),
            part: Vec::new(),
            at: 0,
            error: Arc::default(),
        };
        self.manifests.iter().map(alone).collect()
    }

    /// Bytes in all.
    pub fn len(&self) -> u64 {
        self.manifests.iter().map(Manifest::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the error is found that ended reading, if one did: what reads it tells only that it could not be read.
    pub fn error(&self) -> Arc<OnceLock<RemoteError>> {
        self.error.clone()
    }

    fn next_piece(&mut self) -> Option<(usize, PieceId)> {
        loop {
            let (at, n) = self.next;
            let manifest = self.manifests.get(at)?;
            if (n as usize) < manifest.parts.len() {
                self.next.1 += 1;
                return Some((at, PieceId { stream: manifest.id, kind: Kind::Part, n }));
            }
            self.next = (at + 1, 0);
        }
    }

    /// The next part; false at the end.
    fn advance(&mut self) -> Result<bool, RemoteError> {
        while self.asked.len() < AHEAD
            && let Some((at, id)) = self.next_piece()
        {
            let ticket = self.streams.ask(&self.manifests[at], id);
            self.asked.push_back((at, id, ticket));
        }
        let Some((at, id, ticket)) = self.asked.pop_front() else { return Ok(false) };
        self.part = self.streams.piece(&self.manifests[at], id, Some(ticket))?;
        self.at = 0;
        Ok(true)
    }
}

impl Read for ChainBytes {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if let Some(error) = self.error.get() {
            return Err(io::Error::other(error.clone()));
        }
        while self.at == self.part.len() && !out.is_empty() {
            match self.advance() {
                Ok(true) => {}
                Ok(false) => return Ok(0),
                Err(error) => {
                    let _first = self.error.set(error.clone());
                    return Err(io::Error::other(error));
                }
            }
        }
        let len = out.len().min(self.part.len() - self.at);
        out[..len].copy_from_slice(&self.part[self.at..self.at + len]);
        self.at += len;
        Ok(len)
    }
}

/// Places in one stream. A few parts are kept.
pub struct StreamPieces {
    streams: Streams,
    manifest: Manifest,
    starts: Vec<u64>,
    kept: VecDeque<(u32, Arc<Vec<u8>>)>,
}

impl StreamPieces {
    /// Of a stream.
    ///
    /// # Errors
    /// Its manifest is missing or damaged, or the store fails.
    pub fn open(streams: &Streams, stream: &StreamEntry) -> Result<StreamPieces, RemoteError> {
        let manifest = streams.manifest(stream)?;
        let starts = manifest.starts();
        Ok(StreamPieces { streams: streams.clone(), manifest, starts, kept: VecDeque::new() })
    }

    /// The id of the stream.
    pub fn id(&self) -> Uuid {
        self.manifest.id
    }

    /// Bytes of the stream.
    pub fn len(&self) -> u64 {
        self.manifest.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.manifest.is_empty()
    }

    fn part(&mut self, n: u32) -> Result<Arc<Vec<u8>>, RemoteError> {
        if let Some(at) = self.kept.iter().position(|(known, _)| *known == n)
            && let Some(found) = self.kept.remove(at)
        {
            let bytes = found.1.clone();
            self.kept.push_front(found);
            return Ok(bytes);
        }
        let id = PieceId { stream: self.manifest.id, kind: Kind::Part, n };
        let bytes = Arc::new(self.streams.piece(&self.manifest, id, None)?);
        self.kept.truncate(KEPT - 1);
        self.kept.push_front((n, bytes.clone()));
        Ok(bytes)
    }

    /// The bytes from `at` on, `len` of them.
    ///
    /// # Errors
    /// They are beyond the end of the stream; a part is missing or damaged; or the store fails.
    pub fn get(&mut self, at: u64, len: u32) -> Result<Vec<u8>, RemoteError> {
        let end = at.checked_add(len.into()).filter(|end| *end <= self.len());
        let Some(end) = end else {
            let want = format!("less than {}", self.len());
            return Err(Corruption::new("index of a stream", "place", at, want).within(self.id().simple()).into());
        };
        let mut out = Vec::with_capacity(len as usize);
        let mut at = at;
        while at < end {
            // The first one begins at 0, so there is one that begins before it.
            let n = self.starts.partition_point(|start| *start <= at) - 1;
            let from = self.starts[n];
            let part = self.part(n as u32)?;
            let some = &part[(at - from) as usize..part.len().min((end - from) as usize)];
            out.extend_from_slice(some);
            at += some.len() as u64;
        }
        Ok(out)
    }
}
