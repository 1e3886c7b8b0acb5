//! An upload: a stream on its way to the store.
//!
//! Normal path: (1) [`Upload::begin`] puts it on the list; (2) what is written is cut into parts, which are packed and
//! stored while the next one fills; (3) [`Upload::finish`] stores the index and the manifest, waits for all of it, and enters
//! the stream into the list.
//!
//! Memory: one part that fills, and [`UNDER_WAY_MAX`] that are being stored, or fewer if so many bytes may not wait.
//! Errors: nothing was entered. [`Upload::abandon`] takes it off the list and deletes what was stored, as far as it can;
//! the rest is for [`Streams::collect`].

use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::Duration;

use uuid::Uuid;

use super::list::{StreamEntry, StreamList, UPLOAD_COUNT_MAX, UploadEntry};
use super::manifest::{INDEX_LEN_MAX, MANIFEST_LEN_MAX, Manifest, PART_COUNT_MAX, PART_LEN_MAX, Row};
use super::open::Streams;
use super::pieces::{Kind, PieceId, manifest_key};
use crate::error::RemoteError;
use crate::format::xxh64;
use crate::host::nonce;
use crate::store::{Body, Cond, Op, Ticket, put};

/// Most parts that are being stored beside the one that fills.
const UNDER_WAY_MAX: u64 = 4;
/// Shortest part that is aimed at, bytes.
const PART_LEN_MIN: u32 = 64 << 10;
/// How long cleaning up after an error may take, all in all.
const ABANDON_MAX: Duration = Duration::from_secs(10);

/// What is to be sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewStream {
    /// The name of the snapshot.
    pub name: String,
    /// By which receivers know it.
    pub uuid: Uuid,
    /// The transaction of its last change.
    pub ctransid: u64,
    /// Of which subvolume it is a snapshot.
    pub series: Uuid,
    /// When it was made, seconds since 1970.
    pub taken: i64,
    /// The stream that it is the difference to.
    pub parent: Option<Uuid>,
    /// Other streams whose data it may clone.
    pub clone_sources: Vec<Uuid>,
}

impl NewStream {
    fn needs(&self) -> Vec<Uuid> {
        self.parent.iter().chain(&self.clone_sources).copied().collect()
    }

    /// Fails if the same is there already: the same snapshot, built on the same.
    fn is_new(&self, list: &StreamList) -> Result<(), RemoteError> {
        let same = |stream: &&StreamEntry| {
            let parent = stream.needs.first().filter(|_| stream.incremental);
            (stream.uuid, stream.ctransid) == (self.uuid, self.ctransid) && parent == self.parent.as_ref()
        };
        match list.streams.iter().find(same) {
            Some(_) => Err(RemoteError::SnapshotExists { name: self.name.clone() }),
            None => Ok(()),
        }
    }
}

struct UnderWay {
    key: String,
    body: Body,
    ticket: Ticket,
}

/// See the module's text.
pub struct Upload {
    streams: Streams,
    new: NewStream,
    id: Uuid,
    part_len: usize,
    under_way_max: usize,
    buffer: Vec<u8>,
    under_way: VecDeque<UnderWay>,
    manifest: Manifest,
    error: Option<RemoteError>,
}

impl Upload {
    /// Puts it on the list.
    ///
    /// # Errors
    /// The same snapshot is there already, built on the same; what it needs is not; or the store fails.
    pub fn begin(streams: &Streams, new: NewStream) -> Result<Upload, RemoteError> {
        let id = streams.new_id();
        let (by, needs) = (streams.by(), new.needs());
        streams.change(|list| {
            new.is_new(list)?;
            if needs.iter().any(|need| list.stream(*need).is_none()) {
                return Err(RemoteError::UploadGone { name: new.name.clone() });
            }
            if !list.uploads.iter().any(|upload| upload.id == id) {
                if list.uploads.len() >= UPLOAD_COUNT_MAX {
                    let what =
                        format!("{UPLOAD_COUNT_MAX} uploads are under way, or were cut: collect those first (gc)");
                    return Err(RemoteError::Limit { what });
                }
                let (name, needs, by) = (new.name.clone(), needs.clone(), by.clone());
                list.uploads.push(UploadEntry { id, name, needs, begun: streams.time(), by });
            }
            Ok(())
        })?;
        let part_len = streams.options.bounds.segment_aim.clamp(PART_LEN_MIN, PART_LEN_MAX);
        let room = streams.options.bounds.dirty_bytes_max / u64::from(part_len);
        Ok(Upload {
            streams: streams.clone(),
            new,
            id,
            part_len: part_len as usize,
            under_way_max: room.saturating_sub(1).clamp(1, UNDER_WAY_MAX) as usize,
            buffer: Vec::new(),
            under_way: VecDeque::new(),
            manifest: Manifest { id, parts: Vec::new(), index: Vec::new() },
            error: None,
        })
    }

    /// Its id.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// Why writing failed, if it did.
    pub fn take_error(&mut self) -> Option<RemoteError> {
        self.error.take()
    }

    fn store_piece(&mut self, kind: Kind, bytes: Vec<u8>, compress: bool) -> Result<(), RemoteError> {
        while self.under_way.len() >= self.under_way_max {
            self.wait_for_one()?;
        }
        let rows = match kind {
            Kind::Part => &mut self.manifest.parts,
            Kind::Index => &mut self.manifest.index,
        };
        let n = rows.len() as u32;
        if n >= PART_COUNT_MAX {
            let what = format!("a stream has at most {PART_COUNT_MAX} parts; longer ones (segment=) hold more");
            return Err(RemoteError::Limit { what });
        }
        let id = PieceId { stream: self.id, kind, n };
        let host = &*self.streams.options.host;
        let (stored, row) = self.streams.packing().pack(id, bytes, compress, &nonce(host));
        rows.push(row);
        let (key, body) = (id.key(), Body::from(stored));
        let deadline = host.now() + self.streams.options.bounds.flush_max;
        let op = Op::Put { key: key.clone(), body: body.clone(), cond: Cond::None };
        let ticket = self.streams.store.submit(op, deadline);
        self.under_way.push_back(UnderWay { key, body, ticket });
        Ok(())
    }

    /// Waits for the oldest part. Its time may have run out while nobody waited, so it has another chance.
    fn wait_for_one(&mut self) -> Result<(), RemoteError> {
        let Some(UnderWay { key, body, ticket }) = self.under_way.pop_front() else { return Ok(()) };
        if ticket.wait().is_ok() {
            return Ok(());
        }
        let deadline = self.streams.options.host.now() + self.streams.options.bounds.flush_max;
        let again = put(&*self.streams.store, &key, body, Cond::None, deadline);
        again.map(drop).map_err(|e| RemoteError::store("put", key, e))
    }

    fn end_part(&mut self) -> Result<(), RemoteError> {
        let bytes = std::mem::take(&mut self.buffer);
        match bytes.is_empty() {
            true => Ok(()),
            false => self.store_piece(Kind::Part, bytes, self.streams.options.compress),
        }
    }

    /// Ends the stream and enters it into the list. `used` are the streams that it really clones from; `index` may be empty.
    ///
    /// # Errors
    /// The store fails; or the upload was given up by somebody meanwhile. Nothing was entered, and what was stored is
    /// deleted as far as possible.
    pub fn finish(mut self, used: &[Uuid], index: &[u8]) -> Result<StreamEntry, RemoteError> {
        let entered = self.enter(used, index);
        if entered.is_err() {
            self.abandon();
        }
        entered
    }

    fn enter(&mut self, used: &[Uuid], index: &[u8]) -> Result<StreamEntry, RemoteError> {
        self.end_part()?;
        // An index that is too long is left out: everything but looking up single files works without.
        let index = if index.len() as u64 <= INDEX_LEN_MAX { index } else { &[] };
        for piece in index.chunks(self.part_len) {
            self.store_piece(Kind::Index, piece.to_vec(), true)?;
        }
        while !self.under_way.is_empty() {
            self.wait_for_one()?;
        }
        let streams = self.streams.clone();
        let host = &*streams.options.host;
        let manifest = self.manifest.encode(streams.uuid, streams.key.as_deref(), &nonce(host));
        debug_assert!(manifest.len() as u64 <= MANIFEST_LEN_MAX);
        let entry = StreamEntry {
            id: self.id,
            number: 0,
            name: self.new.name.clone(),
            uuid: self.new.uuid,
            ctransid: self.new.ctransid,
            series: self.new.series,
            incremental: self.new.parent.is_some(),
            needs: self
                .new
                .parent
                .iter()
                .chain(self.new.clone_sources.iter().filter(|id| used.contains(id)))
                .copied()
                .collect(),
            taken: self.new.taken,
            stored: streams.time(),
            by: streams.by(),
            bytes: self.manifest.len(),
            stored_bytes: self.manifest.stored_len(),
            index_bytes: index.len() as u64,
            manifest_len: manifest.len() as u32,
            manifest_xxh: xxh64(&manifest),
        };
        let key = manifest_key(self.id);
        let deadline = host.now() + streams.options.bounds.flush_max;
        let stored = put(&*streams.store, &key, Body::from(manifest), Cond::None, deadline);
        stored.map_err(|e| RemoteError::store("put", key, e))?;
        streams.change(|list| {
            if let Some(there) = list.stream(self.id) {
                return Ok(there.clone());
            }
            self.new.is_new(list)?;
            let gone = || RemoteError::UploadGone { name: self.new.name.clone() };
            let at = list.uploads.iter().position(|upload| upload.id == self.id).ok_or_else(gone)?;
            if entry.needs.iter().any(|need| list.stream(*need).is_none()) {
                return Err(gone());
            }
            list.uploads.remove(at);
            let entry = StreamEntry { number: list.next_number(), ..entry.clone() };
            list.streams.push(entry.clone());
            Ok(entry)
        })
    }

    /// Takes it off the list and deletes what was stored, as far as that goes within a short time.
    pub fn abandon(&mut self) {
        let mut streams = self.streams.clone();
        let bounds = &mut streams.options.bounds;
        bounds.flush_max = bounds.flush_max.min(ABANDON_MAX);
        self.under_way.clear();
        let gone = streams.change(|list| {
            list.uploads.retain(|upload| upload.id != self.id);
            Ok(list.stream(self.id).is_none())
        });
        // If it was entered after all, it is whole; and while it may be, nothing of it is deleted.
        if !matches!(gone, Ok(true)) {
            return;
        }
        let deadline = streams.options.host.now() + ABANDON_MAX;
        let piece = |kind, n| PieceId { stream: self.id, kind, n: n as u32 }.key();
        let parts = (0..self.manifest.parts.len()).map(|n| piece(Kind::Part, n));
        let index = (0..self.manifest.index.len()).map(|n| piece(Kind::Index, n));
        let keys: Vec<String> = parts.chain(index).chain([manifest_key(self.id)]).collect();
        for some in keys.chunks(16) {
            let tickets: Vec<Ticket> =
                some.iter().map(|key| streams.store.submit(Op::Delete { key: key.clone() }, deadline)).collect();
            if tickets.into_iter().any(|ticket| ticket.wait().is_err()) {
                return;
            }
        }
    }

    /// Rows of its parts so far.
    pub fn parts(&self) -> &[Row] {
        &self.manifest.parts
    }
}

impl Write for Upload {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.capacity() == 0 {
            self.buffer.reserve_exact(self.part_len);
        }
        let some = &bytes[..bytes.len().min(self.part_len - self.buffer.len())];
        self.buffer.extend_from_slice(some);
        if self.buffer.len() == self.part_len
            && let Err(error) = self.end_part()
        {
            let shown = io::Error::other(error.clone());
            self.error = Some(error);
            return Err(shown);
        }
        Ok(some.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
