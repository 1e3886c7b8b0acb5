//! Parts of streams and indexes as they are stored: packed if that saves an eighth, then sealed if there is a key.
//!
//! A seal is bound to the list, the stream, the part's number, its length and how it is packed, so that no part is taken for another.

use oleo_format::Corruption;
use oleo_format::compress::{looks_compressible, unzstd, zstd};
use uuid::Uuid;

use super::manifest::Row;
use crate::format::segment::{CODEC_NONE, CODEC_ZSTD, packed_len_max};
use crate::format::{ensure, xxh64};
use crate::seal::{Key, Nonce, Use};

/// The level of compression: a stream is waited for.
const LEVEL: i32 = 1;

/// Of what something is a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Of the stream.
    Part,
    /// Of its index.
    Index,
}

/// Which part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PieceId {
    /// The stream.
    pub stream: Uuid,
    /// Of what.
    pub kind: Kind,
    /// The number, from 0.
    pub n: u32,
}

/// What the keys of all objects of streams begin with.
pub(crate) const PREFIX: &str = "stream/";

impl PieceId {
    /// Its key.
    pub fn key(&self) -> String {
        let kind = match self.kind {
            Kind::Part => "part",
            Kind::Index => "index",
        };
        format!("{PREFIX}{}/{kind}-{:06x}", self.stream.simple(), self.n)
    }

    fn beside(&self, list: [u8; 16], codec: u8, plain: u32) -> Vec<u8> {
        let kind: &[u8] = match self.kind {
            Kind::Part => b"stream part",
            Kind::Index => b"stream index",
        };
        [kind, &list, self.stream.as_bytes(), &[codec], &self.n.to_le_bytes(), &plain.to_le_bytes()].concat()
    }
}

/// The key of a stream's manifest.
pub(crate) fn manifest_key(stream: Uuid) -> String {
    format!("{PREFIX}{}/manifest", stream.simple())
}

/// The stream of whose objects one is, by its key.
pub(crate) fn stream_of(key: &str) -> Option<Uuid> {
    let (id, name) = key.strip_prefix(PREFIX)?.split_once('/')?;
    let id = Uuid::try_parse(id).ok()?;
    (!name.contains('/') && key.starts_with(&format!("{PREFIX}{}/", id.simple()))).then_some(id)
}

/// How parts of a list's streams are packed.
#[derive(Clone, Copy)]
pub(crate) struct Packing<'a> {
    pub(crate) list: [u8; 16],
    pub(crate) key: Option<&'a Key>,
}

impl Packing<'_> {
    /// Packs a part, which is not empty. `nonce` is used where there is a key.
    pub(crate) fn pack(&self, id: PieceId, bytes: Vec<u8>, compress: bool, nonce: &Nonce) -> (Vec<u8>, Row) {
        let plain = bytes.len() as u32;
        let packed = (compress && looks_compressible(&bytes)).then(|| zstd(LEVEL, &bytes, packed_len_max(bytes.len())));
        let (codec, mut stored) = match packed.flatten() {
            Some(packed) => (CODEC_ZSTD, packed),
            None => (CODEC_NONE, bytes),
        };
        if let Some(key) = self.key {
            stored = key.seal(nonce, Use::Text, &[&id.beside(self.list, codec, plain)], &stored);
        }
        let row = Row { plain, stored: stored.len() as u32, codec, xxh: xxh64(&stored) };
        (stored, row)
    }

    /// The bytes of a part whose row was read with its manifest.
    pub(crate) fn unpack(&self, id: PieceId, row: &Row, stored: Vec<u8>) -> Result<Vec<u8>, Corruption> {
        let what = "part of a stream";
        ensure!(stored.len() == row.stored as usize, what, "length", stored.len(), row.stored);
        let sum = xxh64(&stored);
        ensure!(sum == row.xxh, what, "checksum", format!("{sum:#x}"), format!("{:#x}", row.xxh));
        let packed = match self.key {
            None => stored,
            Some(key) => {
                let broken = || Corruption::new(what, "seal", "broken", "that of its key");
                key.open(Use::Text, &[&id.beside(self.list, row.codec, row.plain)], &stored).ok_or_else(broken)?
            }
        };
        if row.codec == CODEC_NONE {
            ensure!(packed.len() == row.plain as usize, what, "length of its text", packed.len(), row.plain);
            return Ok(packed);
        }
        let mut out = vec![0; row.plain as usize];
        unzstd(&packed, &mut out).map_err(|e| Corruption::new(what, "compressed text", e, row.plain))?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use zeroize::Zeroizing;

    use super::*;

    /// Goal: parts are unpacked as they were packed, in their own place only, and unchanged only.
    #[test]
    fn packed_and_unpacked() {
        let key = Key::new([1; 16], Zeroizing::new([1; 32]));
        let id = PieceId { stream: Uuid::from_u128(1), kind: Kind::Part, n: 3 };
        assert_eq!(stream_of(&id.key()), Some(id.stream));
        assert_eq!(stream_of(&manifest_key(id.stream)), Some(id.stream));
        for odd in ["stream/x/manifest", "stream/00000000-0000-0000-0000-000000000001/x", "seg/1", "stream/"] {
            assert_eq!(stream_of(odd), None, "{odd}");
        }
        let text: Vec<u8> = (0..5000u32).flat_map(|n| (n / 50).to_le_bytes()).collect();
        for (key, compress) in [(None, false), (None, true), (Some(&key), false), (Some(&key), true)] {
            let packing = Packing { list: [7; 16], key };
            let (stored, row) = packing.pack(id, text.clone(), compress, &[9; 24]);
            assert_eq!(row.codec == CODEC_ZSTD, compress);
            assert_eq!(packing.unpack(id, &row, stored.clone()).unwrap(), text);
            let other = PieceId { n: 4, ..id };
            assert_eq!(packing.unpack(other, &row, stored.clone()).is_err(), key.is_some());
            let mut bad = stored.clone();
            bad[stored.len() / 2] ^= 8;
            assert!(packing.unpack(id, &row, bad.clone()).is_err());
            // Whoever changes both the part and its row meets the seal.
            let forged = Row { xxh: xxh64(&bad), ..row };
            assert!(packing.unpack(id, &forged, bad).is_err() || key.is_none());
        }
    }
}
