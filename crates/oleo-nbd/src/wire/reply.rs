//! Replies to requests: simple ones, and the chunks of structured ones.

use super::option::error_text;
use super::{AllocationFlags, CHUNK_MAGIC, ChunkFlags, Fields, ReplyError, SIMPLE_REPLY_MAGIC};

/// Chunk: nothing.
pub const NONE: u16 = 0;
/// Chunk: data at an offset.
pub const OFFSET_DATA: u16 = 1;
/// Chunk: zeros at an offset.
pub const OFFSET_HOLE: u16 = 2;
/// Chunk: extents of a context.
pub const BLOCK_STATUS: u16 = 5;
/// The bit of all chunks that are errors.
pub const ERROR_BIT: u16 = 1 << 15;
/// Chunk: the request failed.
pub const ERROR: u16 = ERROR_BIT + 1;
/// Chunk: it failed at an offset.
pub const ERROR_OFFSET: u16 = ERROR_BIT + 2;

/// Bytes before the data of an [`OFFSET_DATA`].
pub const DATA_HEAD_LEN: usize = 8;
/// Bytes of an extent of a [`BLOCK_STATUS`].
pub const EXTENT_LEN: usize = 8;

/// A simple reply, without the data of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimpleReply {
    /// Zero, or an error; see [`ReplyError::of`].
    pub error: u32,
    /// The request's.
    pub cookie: u64,
}

impl SimpleReply {
    /// Bytes of a header.
    pub const LEN: usize = 16;

    /// The header.
    pub fn encode(&self) -> [u8; SimpleReply::LEN] {
        let mut out = [0; SimpleReply::LEN];
        out[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
        out[4..8].copy_from_slice(&self.error.to_be_bytes());
        out[8..].copy_from_slice(&self.cookie.to_be_bytes());
        out
    }

    /// Reads a header; `None` if the magic is wrong.
    pub fn decode(bytes: &[u8; SimpleReply::LEN]) -> Option<SimpleReply> {
        let mut at = Fields(bytes);
        (at.u32()? == SIMPLE_REPLY_MAGIC).then_some(())?;
        Some(SimpleReply { error: at.u32()?, cookie: at.u64()? })
    }
}

/// The header of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Flags.
    pub flags: ChunkFlags,
    /// What the payload is.
    pub kind: u16,
    /// The request's.
    pub cookie: u64,
    /// Bytes of payload that follow.
    pub len: u32,
}

impl Chunk {
    /// Bytes of a header.
    pub const LEN: usize = 20;

    /// The header.
    pub fn encode(&self) -> [u8; Chunk::LEN] {
        let mut out = [0; Chunk::LEN];
        out[..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
        out[4..6].copy_from_slice(&self.flags.bits().to_be_bytes());
        out[6..8].copy_from_slice(&self.kind.to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out[16..].copy_from_slice(&self.len.to_be_bytes());
        out
    }

    /// Reads a header; `None` if the magic is wrong.
    pub fn decode(bytes: &[u8; Chunk::LEN]) -> Option<Chunk> {
        let mut at = Fields(bytes);
        (at.u32()? == CHUNK_MAGIC).then_some(())?;
        Some(Chunk {
            flags: ChunkFlags::from_bits_retain(at.u16()?),
            kind: at.u16()?,
            cookie: at.u64()?,
            len: at.u32()?,
        })
    }

    /// Whether it is the last of its reply.
    pub fn is_done(&self) -> bool {
        self.flags.contains(ChunkFlags::DONE)
    }

    /// Whether it is an error of its request, known or not.
    pub fn is_error(&self) -> bool {
        self.kind & ERROR_BIT != 0
    }
}

/// The payload of an [`ERROR`] or [`ERROR_OFFSET`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChunkError {
    /// Never zero; see [`ReplyError::of`].
    pub error: u32,
    /// For people, as it was sent.
    pub text: Vec<u8>,
    /// Where, in bytes.
    pub offset: Option<u64>,
}

impl ChunkError {
    /// The kind of chunk, and its payload.
    pub fn encode(error: ReplyError, text: &str, offset: Option<u64>) -> (u16, Vec<u8>) {
        let text = error_text(text);
        let mut out = error.number().to_be_bytes().to_vec();
        out.extend_from_slice(&(text.len() as u16).to_be_bytes());
        out.extend_from_slice(text);
        out.extend(offset.iter().flat_map(|at| at.to_be_bytes()));
        (if offset.is_some() { ERROR_OFFSET } else { ERROR }, out)
    }

    /// Reads the payload of an error chunk of any kind; `None` if it is none. Of unknown kinds only the head is read.
    pub fn decode(kind: u16, payload: &[u8]) -> Option<ChunkError> {
        let mut at = Fields(payload);
        let error = at.u32()?;
        let len = usize::from(at.u16()?);
        let text = at.take(len)?.to_vec();
        let offset = match kind {
            ERROR_OFFSET => Some(at.u64()?),
            _ => None,
        };
        let whole = at.0.is_empty() || !matches!(kind, ERROR | ERROR_OFFSET);
        (error != 0 && whole).then_some(ChunkError { error, text, offset })
    }
}

/// An extent of a [`BLOCK_STATUS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatusExtent {
    /// Bytes, not zero.
    pub len: u32,
    /// What is known of them.
    pub flags: AllocationFlags,
}

/// The payload of a [`BLOCK_STATUS`].
pub fn status_data(context: u32, extents: &[StatusExtent]) -> Vec<u8> {
    let mut out = Vec::with_capacity(4 + extents.len() * EXTENT_LEN);
    out.extend_from_slice(&context.to_be_bytes());
    for extent in extents {
        out.extend_from_slice(&extent.len.to_be_bytes());
        out.extend_from_slice(&extent.flags.bits().to_be_bytes());
    }
    out
}

/// Reads a [`BLOCK_STATUS`]: the context, and at least one extent; `None` if it is none, or an extent is empty.
pub fn status_of(payload: &[u8]) -> Option<(u32, Vec<StatusExtent>)> {
    let mut at = Fields(payload);
    let context = at.u32()?;
    if at.0.is_empty() || !at.0.len().is_multiple_of(EXTENT_LEN) {
        return None;
    }
    let mut extents = Vec::with_capacity(at.0.len() / EXTENT_LEN);
    while !at.0.is_empty() {
        let (len, flags) = (at.u32()?, AllocationFlags::from_bits_retain(at.u32()?));
        (len != 0).then_some(())?;
        extents.push(StatusExtent { len, flags });
    }
    Some((context, extents))
}
