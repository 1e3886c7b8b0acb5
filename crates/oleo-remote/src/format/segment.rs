//! Segments: frames, each with a header and its payload, then a directory of them, then a footer.
//!
//! A frame is a change of the device: blocks written, blocks that are zeros now, or another length. Its place (segment
//! and offset) is known when it is appended and never changes: the same bytes are at first the tail of a head and later
//! the front of the segment.

use std::borrow::Cow;

use oleo_format::Corruption;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::seal::{Key, NONCE_LEN, SEAL_LEN, TAG_LEN, Use};

use super::{
    BLOCK_LEN, DEVICE_LEN_MAX, FRAME_BLOCKS_MAX, OBJECT_LEN_MAX, ObjectId, RawId, SegmentRef, Sum, VERSION, all_zero,
    ensure, list, push, raw, xxh64,
};

/// Bytes of a frame's header.
pub const FRAME_HEADER_LEN: usize = 48;
/// Bytes of an entry in the directory.
pub const ENTRY_LEN: usize = 32;
/// Bytes of the footer.
pub const FOOTER_LEN: usize = 64;
/// Frames begin at multiples of it.
pub const FRAME_ALIGN: usize = 16;
/// The shortest frame, bytes: a header without a payload.
pub const FRAME_LEN_MIN: usize = FRAME_HEADER_LEN;
/// By how much a sealed payload is longer: its nonce, its tag, and the tag of its place.
pub const FRAME_SEAL_LEN: usize = SEAL_LEN + TAG_LEN;
/// Longest payload as it is stored, bytes.
pub const STORED_LEN_MAX: u32 = (FRAME_BLOCKS_MAX as usize * BLOCK_LEN + FRAME_SEAL_LEN) as u32;
/// The codec of payloads that are as they are.
pub const CODEC_NONE: u8 = 0;
/// The codec of payloads that are one frame of zstd.
pub const CODEC_ZSTD: u8 = 1;
/// Longest tail of a head, bytes.
pub const TAIL_LEN_MAX: usize = 512 << 10;
/// Blocks of the longest device.
const BLOCKS_MAX: u64 = DEVICE_LEN_MAX / BLOCK_LEN as u64;

const FRAME_MAGIC: [u8; 4] = *b"OFRM";
const FOOTER_MAGIC: [u8; 8] = *b"OLEOSEGF";

raw! {
    /// A frame's header.
    48 RawFrame {
        magic: [u8; 4], kind: u8, codec: u8, blocks: U16, first: U64, position: U64, count: U64, stored: U32, off: U32, xxh: U64,
    }
    /// A frame in the directory.
    32 RawEntry { kind: u8, codec: u8, blocks: U16, off: U32, first: U64, stored: U32, zero: U32, count: U64, }
    /// The end of a segment.
    64 RawFooter {
        magic: [u8; 8], version: U16, flags: U16, dir_off: U32, dir_len: U32, frames: U32, id: RawId, position: U64,
        dir_xxh: U64, xxh: U64,
    }
}

/// What a frame does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Blocks that are written.
    Data {
        /// The first block on the device.
        first: u64,
        /// How many, 1 to 64, not crossing a multiple of 64.
        blocks: u8,
        /// Length of the payload, bytes.
        stored: u32,
        /// Whether a collector moved them here: they are older than the frame.
        moved: bool,
    },
    /// Blocks that read as zeros.
    Zeros {
        /// The first block on the device.
        first: u64,
        /// How many, at least 1.
        count: u64,
    },
    /// The device has another length.
    Len {
        /// Bytes.
        len: u64,
    },
}

/// A frame's place and what it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Offset in the segment, bytes, a multiple of 16.
    pub off: u32,
    /// What it does.
    pub change: Change,
    /// How its payload is compressed.
    pub codec: u8,
}

impl Entry {
    /// Where the next frame may begin.
    pub fn end(&self) -> u64 {
        u64::from(self.off) + frame_len(self.change) as u64
    }

    fn raw(&self) -> RawEntry {
        let (kind, blocks, first, stored, count) = fields(self.change);
        let (first, stored, count) = (first.into(), stored.into(), count.into());
        RawEntry {
            kind,
            codec: self.codec,
            blocks: blocks.into(),
            off: self.off.into(),
            first,
            stored,
            zero: 0.into(),
            count,
        }
    }
}

/// How long a frame is, with what fills it up to the next.
pub fn frame_len(change: Change) -> usize {
    let stored = match change {
        Change::Data { stored, .. } => stored as usize,
        Change::Zeros { .. } | Change::Len { .. } => 0,
    };
    (FRAME_HEADER_LEN + stored).next_multiple_of(FRAME_ALIGN)
}

fn fields(change: Change) -> (u8, u16, u64, u32, u64) {
    match change {
        Change::Data { first, blocks, stored, moved } => (if moved { 4 } else { 1 }, blocks.into(), first, stored, 0),
        Change::Zeros { first, count } => (2, 0, first, 0, count),
        Change::Len { len } => (3, 0, len, 0, 0),
    }
}

/// The change of a frame's fields.
fn change_of(kind: u8, codec: u8, blocks: u16, first: u64, stored: u32, count: u64) -> Result<Change, Corruption> {
    let what = "frame";
    ensure!(codec <= CODEC_ZSTD, what, "codec", codec, "0 or 1");
    match kind {
        1 | 4 => {
            let border = FRAME_BLOCKS_MAX - first % FRAME_BLOCKS_MAX;
            ensure!((1..=border).contains(&blocks.into()), what, "blocks", blocks, format!("1 to {border}"));
            ensure!(first < BLOCKS_MAX, what, "first block", first, format!("less than {BLOCKS_MAX}"));
            let whole = u32::from(blocks) * BLOCK_LEN as u32;
            // Whether it is sealed is said by the head; who opens it sees whether that agrees.
            let fits = match codec {
                CODEC_NONE => stored == whole || stored == whole + FRAME_SEAL_LEN as u32,
                _ => (1..=packed_len_max(whole as usize) + FRAME_SEAL_LEN).contains(&(stored as usize)),
            };
            ensure!(fits, what, "length of the payload", stored, format!("that of {whole} bytes in codec {codec}"));
            ensure!(count == 0, what, "count", count, 0);
            Ok(Change::Data { first, blocks: blocks as u8, stored, moved: kind == 4 })
        }
        2 => {
            ensure!(blocks == 0 && stored == 0 && codec == 0, what, "payload of zeros", stored, 0);
            let fits = count > 0 && first.checked_add(count).is_some_and(|end| end <= BLOCKS_MAX);
            ensure!(
                fits,
                what,
                "range of zeros",
                format!("{count} from {first}"),
                format!("at least 1, to {BLOCKS_MAX}")
            );
            Ok(Change::Zeros { first, count })
        }
        3 => {
            let bare = blocks == 0 && stored == 0 && count == 0 && codec == 0;
            ensure!(bare, what, "payload of a length", stored, 0);
            ensure!(first <= DEVICE_LEN_MAX, what, "length of the device", first, format!("at most {DEVICE_LEN_MAX}"));
            Ok(Change::Len { len: first })
        }
        _ => Err(Corruption::new(what, "kind", kind, "1 to 4")),
    }
}

/// The longest that a payload of so many bytes may be compressed: what saves less is kept as it is.
pub(crate) fn packed_len_max(whole: usize) -> usize {
    whole - whole / 8
}

/// What the checksums of frames are bound to: a frame is of one place in one segment of one volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bound {
    /// The volume whose segment it is.
    pub uuid: [u8; 16],
    /// The segment.
    pub id: ObjectId,
}

impl Bound {
    fn sum(&self, payload: Sum, header: &[u8]) -> u64 {
        payload.add(header).add(&self.uuid).add(&self.own_id()).get()
    }

    /// The bytes of the segment's name. Numbers of origins are a head's own way of naming volumes; in the segment it is
    /// always the own one.
    fn own_id(&self) -> [u8; 16] {
        let mut out = [0; 16];
        out.copy_from_slice(ObjectId { origin: 0, ..self.id }.raw().as_bytes());
        out
    }

    /// What says that a sealed payload, all but the tag of its place, is at the place of this header.
    pub(super) fn place<'a>(&self, payload: &'a [u8], header: &[u8]) -> Option<(&'a [u8; NONCE_LEN], Vec<u8>)> {
        let (nonce, _) = payload.split_first_chunk()?;
        let (_, tag) = payload.split_last_chunk::<TAG_LEN>()?;
        Some((nonce, [&b"place"[..], tag, header, &self.uuid, &self.own_id()].concat()))
    }
}

/// The checksum of a payload, which the header's checksum continues: it takes long, and needs no place to be known.
pub(crate) struct PayloadSum(Sum);

impl PayloadSum {
    pub(crate) fn of(payload: &[u8]) -> PayloadSum {
        PayloadSum(Sum::new().add(payload))
    }
}

/// Gives a frame its place: its header, and what binds a sealed payload to it. `frame` has room for the header, then the payload
/// with room for the tag of its place, which `payload` does not sum, then what fills it up.
pub(crate) fn close_frame(
    frame: &mut [u8],
    entry: &Entry,
    position: u64,
    payload: PayloadSum,
    bound: &Bound,
    key: Option<&Key>,
) {
    let (kind, blocks, first, stored, count) = fields(entry.change);
    let mut raw = RawFrame {
        magic: FRAME_MAGIC,
        kind,
        codec: entry.codec,
        blocks: blocks.into(),
        first: first.into(),
        position: position.into(),
        count: count.into(),
        stored: stored.into(),
        off: entry.off.into(),
        xxh: 0.into(),
    };
    let mut sum = payload.0;
    if let Some(key) = key.filter(|_| stored > 0) {
        let at = FRAME_HEADER_LEN + stored as usize - TAG_LEN;
        let place = bound.place(&frame[FRAME_HEADER_LEN..at], &raw.as_bytes()[..FRAME_HEADER_LEN - 8]);
        let tag = place.map(|(nonce, place)| key.seal_in_place(nonce, Use::Place, &[&place], &mut []));
        let tag = tag.unwrap_or_default();
        frame[at..at + TAG_LEN].copy_from_slice(&tag);
        sum = sum.add(&tag);
    }
    raw.xxh = bound.sum(sum, &raw.as_bytes()[..FRAME_HEADER_LEN - 8]).into();
    frame[..FRAME_HEADER_LEN].copy_from_slice(raw.as_bytes());
}

/// A frame that was read and is whole.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Its place and what it does.
    pub entry: Entry,
    /// Its number since the volume was made.
    pub position: u64,
    /// Its payload, as it is stored.
    pub payload: &'a [u8],
    /// Its header without the checksum.
    pub(super) header: &'a [u8],
}

/// Whether the payload of a frame of ours is not compressed.
pub(crate) fn is_plain(frame: &[u8]) -> bool {
    frame.get(std::mem::offset_of!(RawFrame, codec)) == Some(&CODEC_NONE)
}

/// Reads the frame that `bytes` begin with, which must be the one of `off`.
pub fn parse_frame<'a>(bytes: &'a [u8], off: u32, bound: &Bound) -> Result<Frame<'a>, Corruption> {
    let place = || format!("{} at {off}", bound.id);
    let parse = || -> Result<Frame<'a>, Corruption> {
        let cut = || Corruption::new("frame", "length", bytes.len(), "that of a whole frame");
        let (raw, rest) = RawFrame::ref_from_prefix(bytes).map_err(|_| cut())?;
        ensure!(raw.magic == FRAME_MAGIC, "frame", "magic", format!("{:02x?}", raw.magic), "OFRM");
        ensure!(raw.off.get() == off, "frame", "its own place", raw.off, off);
        let stored = raw.stored.get();
        ensure!(
            stored <= STORED_LEN_MAX,
            "frame",
            "length of the payload",
            stored,
            format!("at most {STORED_LEN_MAX}")
        );
        let payload = rest.get(..stored as usize).ok_or_else(cut)?;
        let have = bound.sum(Sum::new().add(payload), &bytes[..FRAME_HEADER_LEN - 8]);
        ensure!(have == raw.xxh.get(), "frame", "checksum", have, raw.xxh);
        let (blocks, first, count) = (raw.blocks.get(), raw.first.get(), raw.count.get());
        let change = change_of(raw.kind, raw.codec, blocks, first, stored, count)?;
        let entry = Entry { off, change, codec: raw.codec };
        Ok(Frame { entry, position: raw.position.get(), payload, header: &bytes[..FRAME_HEADER_LEN - 8] })
    };
    parse().map_err(|e| e.within(place()))
}

/// Reads the frames of a tail, one after the other, all of them checked. `last` is the position after the last one.
pub fn parse_tail<'a>(bytes: &'a [u8], bound: &Bound, last: u64) -> Result<Vec<Frame<'a>>, Corruption> {
    let mut out = Vec::new();
    let mut off = 0;
    while off < bytes.len() {
        let frame = parse_frame(&bytes[off..], off as u32, bound)?;
        let end = frame.entry.end() as usize;
        ensure!(end <= bytes.len(), "tail", "length", bytes.len(), end);
        all_zero(&bytes[off + FRAME_HEADER_LEN + frame.payload.len()..end], "tail", "bytes between frames")?;
        out.push(frame);
        off = end;
    }
    let first = last.checked_sub(out.len() as u64);
    ensure!(first.is_some(), "tail", "count of frames", out.len(), format!("at most {last}"));
    for (frame, want) in out.iter().zip(first.unwrap_or(0)..) {
        ensure!(frame.position == want, "tail", "position of a frame", frame.position, want);
    }
    Ok(out)
}

impl SegmentRef {
    /// Length of the directory as it is stored, bytes.
    pub fn dir_len(&self) -> u32 {
        self.len.saturating_sub(self.dir_off).saturating_sub(FOOTER_LEN as u32)
    }
}

/// What a directory is sealed with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectorySeal<'a> {
    pub(crate) key: &'a Key,
    pub(crate) uuid: [u8; 16],
    pub(crate) nonce: [u8; NONCE_LEN],
}

/// The directory and the footer of a segment whose frames end at `dir_off`, and what a head says of it.
pub(crate) fn close_segment(
    id: ObjectId,
    entries: &[Entry],
    dir_off: u32,
    position: u64,
    seal: Option<DirectorySeal<'_>>,
) -> (Vec<u8>, SegmentRef) {
    let mut out = Vec::with_capacity(entries.len() * ENTRY_LEN + SEAL_LEN + FOOTER_LEN);
    for entry in entries {
        push(&mut out, &entry.raw());
    }
    if let Some(DirectorySeal { key, uuid, nonce }) = seal {
        let bound = Bound { uuid, id };
        out = key.seal(&nonce, Use::Directory, &[b"directory", &uuid, &bound.own_id()], &out);
    }
    let frames = entries.len() as u32;
    let dir_xxh = xxh64(&out);
    let dir_len = out.len() as u32;
    let mut raw = RawFooter {
        magic: FOOTER_MAGIC,
        version: VERSION.into(),
        flags: 0.into(),
        dir_off: dir_off.into(),
        dir_len: dir_len.into(),
        frames: frames.into(),
        id: id.raw(),
        position: position.into(),
        dir_xxh: dir_xxh.into(),
        xxh: 0.into(),
    };
    raw.xxh = xxh64(&raw.as_bytes()[..FOOTER_LEN - 8]).into();
    push(&mut out, &raw);
    let len = dir_off + dir_len + FOOTER_LEN as u32;
    (out, SegmentRef { id, len, dir_off, frames, dir_xxh })
}

/// Reads the directory of a segment, as the head says it is. Its frames are in rising places without a gap. `key` opens it, in a
/// volume that is sealed.
pub fn parse_directory(
    bytes: &[u8],
    segment: &SegmentRef,
    uuid: [u8; 16],
    key: Option<&Key>,
) -> Result<Vec<Entry>, Corruption> {
    let what = "directory";
    let parse = || -> Result<Vec<Entry>, Corruption> {
        let have = xxh64(bytes);
        ensure!(have == segment.dir_xxh, what, "checksum", have, segment.dir_xxh);
        let bound = Bound { uuid, id: segment.id };
        let opened = match key {
            None => Cow::Borrowed(bytes),
            Some(key) => {
                let opened = key.open(Use::Directory, &[b"directory", &uuid, &bound.own_id()], bytes);
                Cow::Owned(opened.ok_or_else(|| Corruption::new(what, "seal", "broken", "that of its key"))?)
            }
        };
        let len = segment.frames as usize * ENTRY_LEN;
        ensure!(opened.len() == len, what, "length", opened.len(), len);
        let (raws, _) = list::<RawEntry>(&opened, segment.frames, what)?;
        let mut out = Vec::with_capacity(raws.len());
        let mut next = 0;
        for raw in raws {
            ensure!(raw.zero.get() == 0, what, "bytes that are zero", raw.zero, 0);
            let (blocks, first, count) = (raw.blocks.get(), raw.first.get(), raw.count.get());
            let change = change_of(raw.kind, raw.codec, blocks, first, raw.stored.get(), count)?;
            let entry = Entry { off: raw.off.get(), change, codec: raw.codec };
            ensure!(u64::from(entry.off) == next, what, "place of a frame", entry.off, next);
            next = entry.end();
            out.push(entry);
        }
        ensure!(next == u64::from(segment.dir_off), what, "end of the frames", next, segment.dir_off);
        Ok(out)
    };
    parse().map_err(|e| e.within(segment.id))
}

/// Reads the footer of a whole segment: what a head would say of it, and the position of its first frame.
pub fn parse_footer(bytes: &[u8]) -> Result<(SegmentRef, u64), Corruption> {
    parse_footer_of(bytes, bytes.len() as u64)
}

/// The same from the end of a segment that is so long.
pub fn parse_footer_of(bytes: &[u8], whole: u64) -> Result<(SegmentRef, u64), Corruption> {
    let what = "footer";
    let raw = bytes.len().checked_sub(FOOTER_LEN).and_then(|at| RawFooter::ref_from_bytes(&bytes[at..]).ok());
    let raw = raw.ok_or_else(|| Corruption::new(what, "length", bytes.len(), format!("at least {FOOTER_LEN}")))?;
    ensure!(raw.magic == FOOTER_MAGIC, what, "magic", format!("{:02x?}", raw.magic), "OLEOSEGF");
    let have = xxh64(&raw.as_bytes()[..FOOTER_LEN - 8]);
    ensure!(have == raw.xxh.get(), what, "checksum", have, raw.xxh);
    ensure!(raw.version.get() == VERSION, what, "version", raw.version, VERSION);
    ensure!(raw.flags.get() == 0, what, "flags", raw.flags, 0);
    let (dir_off, frames, dir_len) = (raw.dir_off.get(), raw.frames.get(), raw.dir_len.get());
    let (have, want) = (u64::from(dir_len), u64::from(frames) * ENTRY_LEN as u64);
    ensure!(have == want || have == want + SEAL_LEN as u64, what, "length of the directory", have, want);
    let len = u64::from(dir_off) + u64::from(dir_len) + FOOTER_LEN as u64;
    ensure!(len == whole, what, "length of the segment", whole, len);
    let id = ObjectId::of_raw(&raw.id)?.expect_map(false)?;
    ensure!(len <= u64::from(OBJECT_LEN_MAX), what, "length of the segment", len, format!("at most {OBJECT_LEN_MAX}"));
    Ok((SegmentRef { id, len: len as u32, dir_off, frames, dir_xxh: raw.dir_xxh.get() }, raw.position.get()))
}
