//! The log on the local disk: a header, then records one after the other, and zeros up to the length that the header says.
//!
//! A record is a frame as it is in a segment, with the name of that segment; or the commit id of a head that is about to be
//! published; or what was published; or how far the log is known to be on the disk. Each has its number, and the checksum of the
//! record before it, so that none is left out, repeated, or of another log. In a volume that is sealed each has a tag; the
//! payloads of frames are sealed as they are in segments.

use oleo_format::Corruption;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::segment::{Bound, FRAME_HEADER_LEN, STORED_LEN_MAX, parse_frame};
use super::{ObjectId, RawId, Sum, VERSION, ensure, raw, xxh64};
use crate::seal::{Key, NONCE_LEN, Nonce, SEAL_LEN, Use};

/// Bytes of the header.
pub const LOG_HEADER_LEN: usize = 128;
/// Bytes of a record without its frame; records begin at multiples of 16.
pub const RECORD_LEN: usize = 112;
/// The longest frame of a record, bytes.
pub const LOGGED_LEN_MAX: usize = (FRAME_HEADER_LEN + STORED_LEN_MAX as usize).next_multiple_of(16);
/// What a record begins with.
pub(crate) const RECORD_MAGIC: [u8; 4] = *b"OLGR";

const MAGIC: [u8; 8] = *b"OLEOLOG1";
const FLAG_SEALED: u16 = 1;

raw! {
    /// What a log begins with.
    128 RawLogHeader {
        magic: [u8; 8], version: U16, flags: U16, epoch: U32, uuid: [u8; 16], id: [u8; 16], commit: [u8; 16], len: U64,
        position: U64, seal: [u8; 40], xxh: U64,
    }
    /// A record.
    112 RawRecord {
        magic: [u8; 4], kind: u8, zeros: [u8; 3], len: U32, epoch: U32, number: U64, position: U64, name: [u8; 16],
        durable: U64, before: U64, seal: [u8; 40], xxh: U64,
    }
}
const HEADER_SEALED: usize = std::mem::offset_of!(RawLogHeader, seal);
const RECORD_SEALED: usize = std::mem::offset_of!(RawRecord, seal);

/// The beginning of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogHeader {
    /// The volume.
    pub uuid: [u8; 16],
    /// The log: random.
    pub id: [u8; 16],
    /// Epoch and commit id of the head that it follows.
    pub epoch: u32,
    /// See `epoch`.
    pub commit: [u8; 16],
    /// The position of that head.
    pub position: u64,
    /// How long the file is, bytes.
    pub len: u64,
}

/// What a record says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A frame, which follows, of this segment.
    Frame {
        /// The segment.
        id: ObjectId,
        /// The frame's position.
        position: u64,
    },
    /// A head with this epoch and commit id is about to be published.
    Announced {
        /// Its epoch.
        epoch: u32,
        /// Its commit id.
        commit: [u8; 16],
    },
    /// A head is published that has all frames before this position.
    Published {
        /// The position.
        position: u64,
    },
    /// The log is on the disk as far as the record says.
    Durable,
}

/// Where a record stands in its log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// Records before it.
    pub number: u64,
    /// The checksum of the record before it, or of the header.
    pub before: u64,
    /// So many bytes of the log were on the disk when it was written.
    pub durable: u64,
}

/// What binds records to their log.
#[derive(Clone, Copy)]
pub(crate) struct Of<'a> {
    pub uuid: [u8; 16],
    pub id: [u8; 16],
    pub key: Option<&'a Key>,
}

fn seal(of: &Of<'_>, nonce: Nonce, what: &[u8], more: &[u8]) -> [u8; SEAL_LEN] {
    let mut out = [0; SEAL_LEN];
    if let Some(key) = of.key {
        out[..NONCE_LEN].copy_from_slice(&nonce);
        let tag = key.seal_in_place(&nonce, Use::Text, &[b"log", &of.uuid, &of.id, what, more], &mut []);
        out[NONCE_LEN..].copy_from_slice(&tag);
    }
    out
}

fn check_seal(of: &Of<'_>, have: &[u8; SEAL_LEN], what: &[u8], more: &[u8]) -> bool {
    let Some(key) = of.key else { return *have == [0; SEAL_LEN] };
    let Some((nonce, tag)) = have.split_first_chunk::<NONCE_LEN>() else { return false };
    key.open_in_place(nonce, Use::Text, &[b"log", &of.uuid, &of.id, what, more], &mut [], tag)
}

impl LogHeader {
    /// Its bytes, and their checksum.
    pub(crate) fn encode(&self, key: Option<&Key>, nonce: impl FnOnce() -> Nonce) -> (Vec<u8>, u64) {
        let of = Of { uuid: self.uuid, id: self.id, key };
        let mut raw = RawLogHeader {
            magic: MAGIC,
            version: VERSION.into(),
            flags: if key.is_some() { FLAG_SEALED } else { 0 }.into(),
            epoch: self.epoch.into(),
            uuid: self.uuid,
            id: self.id,
            commit: self.commit,
            len: self.len.into(),
            position: self.position.into(),
            seal: [0; SEAL_LEN],
            xxh: 0.into(),
        };
        if key.is_some() {
            raw.seal = seal(&of, nonce(), &raw.as_bytes()[..HEADER_SEALED], &[]);
        }
        let xxh = xxh64(&raw.as_bytes()[..LOG_HEADER_LEN - 8]);
        raw.xxh = xxh.into();
        (raw.as_bytes().to_vec(), xxh)
    }

    /// Reads it, and its checksum. It must be of the volume, and sealed if that is.
    pub(crate) fn parse(bytes: &[u8], uuid: [u8; 16], key: Option<&Key>) -> Result<(LogHeader, u64), Corruption> {
        let what = "local log";
        let cut = |_| Corruption::new(what, "length", bytes.len(), LOG_HEADER_LEN);
        let raw = RawLogHeader::ref_from_bytes(bytes).map_err(cut)?;
        ensure!(raw.magic == MAGIC, what, "magic", format!("{:02x?}", raw.magic), "OLEOLOG1");
        let have = xxh64(&bytes[..LOG_HEADER_LEN - 8]);
        ensure!(have == raw.xxh.get(), what, "checksum", have, raw.xxh);
        ensure!(raw.version.get() == VERSION, what, "version", raw.version, VERSION);
        let flags = if key.is_some() { FLAG_SEALED } else { 0 };
        ensure!(raw.flags.get() == flags, what, "flags", raw.flags, flags);
        ensure!(raw.uuid == uuid, what, "volume", format!("{:02x?}", raw.uuid), format!("{uuid:02x?}"));
        let of = Of { uuid, id: raw.id, key };
        let sealed = check_seal(&of, &raw.seal, &bytes[..HEADER_SEALED], &[]);
        ensure!(sealed, what, "seal", "broken", "that of the volume's key");
        let header = LogHeader {
            uuid,
            id: raw.id,
            epoch: raw.epoch.get(),
            commit: raw.commit,
            position: raw.position.get(),
            len: raw.len.get(),
        };
        Ok((header, have))
    }
}

/// Appends a record, with its frame if it is one; returns its checksum.
pub(crate) fn push_record(
    out: &mut Vec<u8>,
    of: &Of<'_>,
    place: Place,
    entry: Entry,
    frame: &[u8],
    nonce: impl FnOnce() -> Nonce,
) -> u64 {
    let (kind, epoch, position, name) = match entry {
        Entry::Frame { id, position } => {
            let mut name = [0; 16];
            name.copy_from_slice(id.raw().as_bytes());
            (1, 0, position, name)
        }
        Entry::Announced { epoch, commit } => (2, epoch, 0, commit),
        Entry::Published { position } => (3, 0, position, [0; 16]),
        Entry::Durable => (4, 0, 0, [0; 16]),
    };
    debug_assert!(frame.len().is_multiple_of(16) && frame.is_empty() != (kind == 1));
    let mut raw = RawRecord {
        magic: RECORD_MAGIC,
        kind,
        zeros: [0; 3],
        len: (frame.len() as u32).into(),
        epoch: epoch.into(),
        number: place.number.into(),
        position: position.into(),
        name,
        durable: place.durable.into(),
        before: place.before.into(),
        seal: [0; SEAL_LEN],
        xxh: 0.into(),
    };
    // The frame's own header has the checksum, and the tags, of the rest.
    let more = &frame[..frame.len().min(FRAME_HEADER_LEN)];
    if of.key.is_some() {
        raw.seal = seal(of, nonce(), &raw.as_bytes()[..RECORD_SEALED], more);
    }
    let sum = sum_of(of, raw.as_bytes(), more);
    raw.xxh = sum.into();
    out.extend_from_slice(raw.as_bytes());
    out.extend_from_slice(frame);
    sum
}

fn sum_of(of: &Of<'_>, record: &[u8], more: &[u8]) -> u64 {
    Sum::new().add(&record[..RECORD_LEN - 8]).add(&of.uuid).add(&of.id).add(more).get()
}

/// A record that was read and is whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub entry: Entry,
    pub place: Place,
    /// Its checksum.
    pub sum: u64,
}

/// How many bytes of a frame follow the record that `bytes` begin with; none: it is no record.
pub(crate) fn frame_len_of(bytes: &[u8]) -> Option<usize> {
    let raw = RawRecord::ref_from_bytes(bytes.get(..RECORD_LEN)?).ok()?;
    let len = raw.len.get() as usize;
    (raw.magic == RECORD_MAGIC && len <= LOGGED_LEN_MAX && len.is_multiple_of(16)).then_some(len)
}

/// Whether the checksum of a record fits, of whose frame `bytes` have at least the header.
pub(crate) fn has_sum(bytes: &[u8], of: &Of<'_>) -> bool {
    RawRecord::ref_from_prefix(bytes).is_ok_and(|(raw, frame)| {
        sum_of(of, raw.as_bytes(), &frame[..frame.len().min(FRAME_HEADER_LEN)]) == raw.xxh.get()
    })
}

/// Reads a record with its frame, which are exactly `bytes`. Whether it is in its place is for the caller to compare.
pub(crate) fn parse_record(bytes: &[u8], of: &Of<'_>) -> Result<Record, Corruption> {
    let what = "record of the local log";
    let cut = || Corruption::new(what, "length", bytes.len(), RECORD_LEN);
    let (raw, frame) = RawRecord::ref_from_prefix(bytes).map_err(|_| cut())?;
    ensure!(raw.magic == RECORD_MAGIC, what, "magic", format!("{:02x?}", raw.magic), "OLGR");
    ensure!(raw.len.get() as usize == frame.len(), what, "length of its frame", raw.len, frame.len());
    let more = &frame[..frame.len().min(FRAME_HEADER_LEN)];
    let sum = sum_of(of, raw.as_bytes(), more);
    ensure!(sum == raw.xxh.get(), what, "checksum", sum, raw.xxh);
    let sealed = check_seal(of, &raw.seal, &raw.as_bytes()[..RECORD_SEALED], more);
    ensure!(sealed, what, "seal", "broken", "that of the volume's key");
    ensure!(raw.zeros == [0; 3], what, "bytes that are zero", format!("{:?}", raw.zeros), 0);
    let place = Place { number: raw.number.get(), before: raw.before.get(), durable: raw.durable.get() };
    let position = raw.position.get();
    ensure!(frame.is_empty() || raw.kind == 1, what, "length of its frame", frame.len(), 0);
    let entry = match raw.kind {
        1 => {
            let name = RawId::ref_from_bytes(&raw.name).map_err(|_| cut())?;
            let id = ObjectId::of_raw(name)?.expect_map(false)?;
            let found = parse_any_frame(frame, &Bound { uuid: of.uuid, id })?;
            ensure!(found == position, what, "position of its frame", found, position);
            Entry::Frame { id, position }
        }
        2 => Entry::Announced { epoch: raw.epoch.get(), commit: raw.name },
        3 => Entry::Published { position },
        4 => Entry::Durable,
        other => return Err(Corruption::new(what, "kind", other, "1 to 4")),
    };
    Ok(Record { entry, place, sum })
}

/// The position of a frame, whatever its place in its segment is.
fn parse_any_frame(bytes: &[u8], bound: &Bound) -> Result<u64, Corruption> {
    Ok(parse_frame(bytes, off_of(bytes), bound)?.position)
}

/// The place in its segment that a frame says it has.
pub(crate) fn off_of(frame: &[u8]) -> u32 {
    // Bytes 36 to 40 of its header.
    frame.get(36..40).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
}
