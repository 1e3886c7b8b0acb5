//! Payloads of frames and pages of maps as they are stored: compressed if that saves enough, then sealed if the volume is.
//!
//! | bytes of a sealed payload | |
//! |---|---|
//! | 24 | nonce, random |
//! | any | the text: blocks, or one frame of zstd |
//! | 16 | tag of the text, bound to the volume, the blocks and the codec |
//! | 16 | tag of the place, bound to the tag before it, to the header and to the segment |
//!
//! There are two tags since the text takes time and its place is known only when it is appended, under a lock. Changes
//! without a payload are sealed where they are listed: in directories, and in the tail of a head.

use std::borrow::Cow;
use std::sync::Arc;

use oleo_format::Corruption;
use oleo_format::compress::{looks_compressible, unzstd, zstd};
use zerocopy::IntoBytes;

use super::head::Head;
use super::segment::{
    Bound, CODEC_NONE, CODEC_ZSTD, Change, FRAME_HEADER_LEN, FRAME_SEAL_LEN, Frame, PayloadSum, frame_len,
    packed_len_max,
};
use super::{BLOCK_LEN, ObjectId, ensure};
use crate::seal::{Key, NONCE_LEN, Nonce, TAG_LEN, Use};

/// The level of compression: what is written is waited for.
const LEVEL: i32 = 1;

/// How a volume's payloads are packed.
#[derive(Clone, Debug)]
pub(crate) struct Coder {
    pub(crate) uuid: [u8; 16],
    pub(crate) key: Option<Arc<Key>>,
    codec: u8,
}

/// A frame that has no place yet.
pub(crate) struct Packed {
    /// The change, with the length of the payload as it is stored.
    pub(crate) change: Change,
    pub(crate) codec: u8,
    /// Room for the header, the payload (if it is sealed with room for the tag of its place), and what fills it up.
    pub(crate) bytes: Vec<u8>,
    /// The sum of the payload without that tag.
    pub(crate) sum: PayloadSum,
    /// Of the seal, in a volume that is sealed.
    pub(crate) nonce: Option<Nonce>,
}

impl Packed {
    /// As it is: neither compressed nor sealed.
    pub(crate) fn new(change: Change, parts: &[&[u8]]) -> Packed {
        let len = frame_len(change);
        let mut bytes = Vec::with_capacity(len);
        bytes.resize(FRAME_HEADER_LEN, 0);
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        let sum = PayloadSum::of(&bytes[FRAME_HEADER_LEN..]);
        debug_assert!(bytes.len() <= len && bytes.len() + 16 > len);
        bytes.resize(len, 0);
        Packed { change, codec: CODEC_NONE, bytes, sum, nonce: None }
    }

    /// Bytes that it takes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }
}

impl Coder {
    /// That of a volume.
    pub(crate) fn of(head: &Head) -> Coder {
        Coder { uuid: head.uuid, key: head.key.clone(), codec: head.codec }
    }

    /// What its texts are sealed with.
    pub(crate) fn key(&self) -> Option<&Key> {
        self.key.as_deref()
    }

    /// Packs what a change brings, which is as long as its blocks. `nonce` is asked where something is sealed.
    pub(crate) fn pack(&self, change: Change, parts: &[&[u8]], nonce: impl FnOnce() -> Nonce) -> Packed {
        let nonce = self.key.as_ref().map(|_| nonce());
        let Change::Data { first, blocks, moved, .. } = change else {
            return Packed { nonce, ..Packed::new(change, parts) };
        };
        let compressed = if self.codec == CODEC_ZSTD { compress(parts) } else { None };
        let codec = if compressed.is_some() { CODEC_ZSTD } else { CODEC_NONE };
        let whole = compressed.as_deref();
        let parts = whole.as_ref().map_or(parts, std::slice::from_ref);
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let change = |len: usize| Change::Data { first, blocks, stored: len as u32, moved };
        let (Some(key), Some(nonce)) = (&self.key, nonce) else {
            return Packed { codec, ..Packed::new(change(len), parts) };
        };
        let change = change(len + FRAME_SEAL_LEN);
        let mut bytes = Vec::with_capacity(frame_len(change));
        bytes.resize(FRAME_HEADER_LEN, 0);
        bytes.extend_from_slice(&nonce);
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        let text = &mut bytes[FRAME_HEADER_LEN + NONCE_LEN..];
        let tag = key.seal_in_place(&nonce, Use::Text, &[&beside_blocks(self.uuid, first, blocks, codec)], text);
        bytes.extend_from_slice(&tag);
        let sum = PayloadSum::of(&bytes[FRAME_HEADER_LEN..]);
        bytes.resize(frame_len(change), 0);
        Packed { change, codec, bytes, sum, nonce: Some(nonce) }
    }

    /// The blocks of a frame, whose checksum has been compared.
    pub(crate) fn unpack<'a>(&self, frame: &Frame<'a>, bound: &Bound) -> Result<Cow<'a, [u8]>, Corruption> {
        let Change::Data { first, blocks, .. } = frame.entry.change else { return Ok(Cow::Borrowed(&[])) };
        let whole = usize::from(blocks) * BLOCK_LEN;
        let text = match &self.key {
            None => Cow::Borrowed(frame.payload),
            Some(key) => {
                let opened = open(key, frame, bound, &beside_blocks(bound.uuid, first, blocks, frame.entry.codec));
                let broken = || Corruption::new("frame", "seal", "broken", "that of its key").within(bound.id);
                Cow::Owned(opened.ok_or_else(broken)?)
            }
        };
        if frame.entry.codec == CODEC_NONE {
            ensure!(text.len() == whole, "frame", "length of its blocks", text.len(), whole);
            return Ok(text);
        }
        let mut out = vec![0; whole];
        unzstd(&text, &mut out)
            .map_err(|e| Corruption::new("frame", "compressed blocks", e, whole).within(bound.id))?;
        Ok(Cow::Owned(out))
    }

    /// A page of a map as it is stored at its place.
    pub(crate) fn pack_page(&self, page: Vec<u8>, id: ObjectId, off: u32, nonce: impl FnOnce() -> Nonce) -> Vec<u8> {
        match &self.key {
            None => page,
            Some(key) => key.seal(&nonce(), Use::Text, &[&beside_page(self.uuid, id, off)], &page),
        }
    }

    /// A page as it was before it was stored. `uuid` is the volume that the object is of.
    pub(crate) fn unpack_page<'a>(
        &self,
        bytes: &'a [u8],
        uuid: [u8; 16],
        id: ObjectId,
        off: u32,
    ) -> Result<Cow<'a, [u8]>, Corruption> {
        let Some(key) = &self.key else { return Ok(Cow::Borrowed(bytes)) };
        let broken = || Corruption::new("map page", "seal", "broken", "that of its key").within(id);
        Ok(Cow::Owned(key.open(Use::Text, &[&beside_page(uuid, id, off)], bytes).ok_or_else(broken)?))
    }
}

/// What the text of a frame is bound to.
fn beside_blocks(uuid: [u8; 16], first: u64, blocks: u8, codec: u8) -> Vec<u8> {
    [&b"blocks"[..], &uuid, &[codec, blocks], &first.to_le_bytes()].concat()
}

/// What a page is bound to.
fn beside_page(uuid: [u8; 16], id: ObjectId, off: u32) -> Vec<u8> {
    let own = ObjectId { origin: 0, ..id }.raw();
    [&b"page"[..], &uuid, own.as_bytes(), &off.to_le_bytes()].concat()
}

/// The text of a sealed frame.
fn open(key: &Key, frame: &Frame<'_>, bound: &Bound, beside: &[u8]) -> Option<Vec<u8>> {
    let (payload, place_tag) = frame.payload.split_last_chunk::<TAG_LEN>()?;
    let (nonce, place) = bound.place(payload, frame.header)?;
    if !key.open_in_place(nonce, Use::Place, &[&place], &mut [], place_tag) {
        return None;
    }
    let (text, tag) = payload.get(NONCE_LEN..)?.split_last_chunk::<TAG_LEN>()?;
    let mut text = text.to_vec();
    key.open_in_place(nonce, Use::Text, &[beside], &mut text, tag).then_some(text)
}

/// Shorter by at least an eighth, or nothing.
fn compress(parts: &[&[u8]]) -> Option<Vec<u8>> {
    let whole = match parts {
        [one] => Cow::Borrowed(*one),
        _ => Cow::Owned(parts.concat()),
    };
    looks_compressible(&whole).then(|| zstd(LEVEL, &whole, packed_len_max(whole.len()))).flatten()
}
