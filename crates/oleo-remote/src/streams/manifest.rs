//! The manifest of a stream: how long its parts are, and their checksums.
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 8 | `OLEOSTRM` |
//! | 8 | 2 | version 1 |
//! | 10 | 2 | flags: 1 sealed |
//! | 12 | 4 | parts of the stream |
//! | 16 | 4 | parts of the index |
//! | 20 | 4 | zeros |
//! | 24 | 16 | id of the stream |
//! | 40 | 8 | bytes of the stream |
//! | 48 | 8 | bytes of the index |
//! | 56 | 8 | xxh64 of 0..56 and of the rows as they are stored |
//! | 64 | 24 each | rows, first of the stream, then of the index; if it is sealed nonce 24, rows, tag 16 |
//!
//! A row: bytes of the part (4), bytes as it is stored (4), codec (0 none, 1 zstd), 7 zeros, xxh64 of it as it is stored.

use std::ops::Range;

use oleo_format::Corruption;
use uuid::Uuid;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::format::segment::{CODEC_NONE, CODEC_ZSTD};
use crate::format::{OBJECT_LEN_MAX, Sum, VERSION, all_zero, ensure, list, push, raw};
use crate::seal::{Key, Nonce, SEAL_LEN, Use};

/// Longest part, bytes.
pub const PART_LEN_MAX: u32 = OBJECT_LEN_MAX;
/// Most parts of a stream: at 16 MiB each that is 16 TiB.
pub const PART_COUNT_MAX: u32 = 1 << 20;
/// Longest index, bytes.
pub const INDEX_LEN_MAX: u64 = 1 << 30;
/// Longest manifest, bytes.
pub const MANIFEST_LEN_MAX: u64 = 64 + 24 * (PART_COUNT_MAX as u64 + 4096) + SEAL_LEN as u64;

const MAGIC: [u8; 8] = *b"OLEOSTRM";
const SEALED: u16 = 1;
const WHAT: &str = "manifest of a stream";

raw! {
    /// What the object begins with.
    64 RawManifest {
        magic: [u8; 8], version: U16, flags: U16, parts: U32, index_parts: U32, zeros: [u8; 4], id: [u8; 16], len: U64,
        index_len: U64, xxh: U64,
    }
    /// A part.
    24 RawRow { plain: U32, stored: U32, codec: u8, zeros: [u8; 7], xxh: U64, }
}

/// A part as it is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// Bytes of the stream or index in it.
    pub plain: u32,
    /// Its length on the store, bytes.
    pub stored: u32,
    /// How they are packed: 0 not at all, 1 zstd.
    pub codec: u8,
    /// xxh64 of it as it is stored.
    pub xxh: u64,
}

/// The manifest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Manifest {
    /// The stream's id.
    pub id: Uuid,
    /// Parts of the stream.
    pub parts: Vec<Row>,
    /// Parts of its index; none if it has none.
    pub index: Vec<Row>,
}

/// Bytes in all.
pub(crate) fn plain_len(rows: &[Row]) -> u64 {
    rows.iter().map(|row| u64::from(row.plain)).sum()
}

impl Manifest {
    /// Its bytes. `list` is the uuid of the list it belongs to; `nonce` is used where there is a key.
    pub(crate) fn encode(&self, list: [u8; 16], key: Option<&Key>, nonce: &Nonce) -> Vec<u8> {
        let mut rows = Vec::with_capacity((self.parts.len() + self.index.len()) * 24);
        for Row { plain, stored, codec, xxh } in self.parts.iter().chain(&self.index) {
            let (plain, stored, xxh) = ((*plain).into(), (*stored).into(), (*xxh).into());
            push(&mut rows, &RawRow { plain, stored, codec: *codec, zeros: [0; 7], xxh });
        }
        let mut raw = RawManifest {
            magic: MAGIC,
            version: VERSION.into(),
            flags: if key.is_some() { SEALED } else { 0 }.into(),
            parts: (self.parts.len() as u32).into(),
            index_parts: (self.index.len() as u32).into(),
            zeros: [0; 4],
            id: *self.id.as_bytes(),
            len: plain_len(&self.parts).into(),
            index_len: plain_len(&self.index).into(),
            xxh: 0.into(),
        };
        if let Some(key) = key {
            rows = key.seal(nonce, Use::Text, &[b"stream manifest", &list, &raw.as_bytes()[..56]], &rows);
        }
        raw.xxh = Sum::new().add(&raw.as_bytes()[..56]).add(&rows).get().into();
        let mut out = Vec::with_capacity(64 + rows.len());
        push(&mut out, &raw);
        out.extend_from_slice(&rows);
        out
    }

    /// Reads that of a stream.
    pub(crate) fn open(bytes: &[u8], id: Uuid, uuid: [u8; 16], key: Option<&Key>) -> Result<Manifest, Corruption> {
        let cut = |_| Corruption::new(WHAT, "length", bytes.len(), "64 or more");
        let (raw, rows) = RawManifest::ref_from_prefix(bytes).map_err(cut)?;
        ensure!(raw.magic == MAGIC, WHAT, "magic", format!("{:02x?}", raw.magic), "OLEOSTRM");
        ensure!(raw.version.get() == VERSION, WHAT, "version", raw.version.get(), VERSION);
        let flags = if key.is_some() { SEALED } else { 0 };
        ensure!(raw.flags.get() == flags, WHAT, "flags", raw.flags.get(), flags);
        all_zero(&raw.zeros, WHAT, "bytes from 20")?;
        ensure!(raw.id == *id.as_bytes(), WHAT, "id", Uuid::from_bytes(raw.id), id);
        let sum = Sum::new().add(&raw.as_bytes()[..56]).add(rows).get();
        ensure!(raw.xxh.get() == sum, WHAT, "checksum", format!("{:#x}", raw.xxh.get()), format!("{sum:#x}"));
        let opened;
        let rows = match key {
            None => rows,
            Some(key) => {
                let beside: [&[u8]; 3] = [b"stream manifest", &uuid, &raw.as_bytes()[..56]];
                let broken = || Corruption::new(WHAT, "seal", "broken", "that of its key");
                opened = key.open(Use::Text, &beside, rows).ok_or_else(broken)?;
                &opened
            }
        };
        let (parts, rest) = list::<RawRow>(rows, raw.parts.get(), WHAT)?;
        let (index, rest) = list::<RawRow>(rest, raw.index_parts.get(), WHAT)?;
        ensure!(rest.is_empty(), WHAT, "bytes behind its rows", rest.len(), 0);
        let sealed = if key.is_some() { SEAL_LEN as u32 } else { 0 };
        let read = |rows: &[RawRow]| rows.iter().map(|row| row_of(row, sealed)).collect::<Result<Vec<_>, _>>();
        let manifest = Manifest { id, parts: read(parts)?, index: read(index)? };
        let len = plain_len(&manifest.parts);
        ensure!(raw.len.get() == len, WHAT, "bytes of the stream", raw.len.get(), len);
        let len = plain_len(&manifest.index);
        ensure!(raw.index_len.get() == len, WHAT, "bytes of the index", raw.index_len.get(), len);
        ensure!(len <= INDEX_LEN_MAX, WHAT, "bytes of the index", len, format!("at most {INDEX_LEN_MAX}"));
        Ok(manifest)
    }

    /// Bytes of the stream.
    pub fn len(&self) -> u64 {
        plain_len(&self.parts)
    }

    /// Whether the stream has no bytes.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Bytes of parts and index as they are stored.
    pub fn stored_len(&self) -> u64 {
        self.parts.iter().chain(&self.index).map(|row| u64::from(row.stored)).sum()
    }

    /// Where each part of the stream begins in it, and at last the end.
    pub fn starts(&self) -> Vec<u64> {
        let mut at = 0;
        let mut out = Vec::with_capacity(self.parts.len() + 1);
        out.push(0);
        out.extend(self.parts.iter().map(|row| {
            at += u64::from(row.plain);
            at
        }));
        out
    }
}

/// A row that may be anything. `sealed`: by how much a seal makes parts longer.
fn row_of(raw: &RawRow, sealed: u32) -> Result<Row, Corruption> {
    let row = Row { plain: raw.plain.get(), stored: raw.stored.get(), codec: raw.codec, xxh: raw.xxh.get() };
    all_zero(&raw.zeros, WHAT, "bytes from 9 of a row")?;
    let plain: Range<u32> = 1..PART_LEN_MAX + 1;
    ensure!(plain.contains(&row.plain), WHAT, "length of a part", row.plain, format!("1 to {PART_LEN_MAX}"));
    let fits = match row.codec {
        CODEC_NONE => row.stored == row.plain + sealed,
        CODEC_ZSTD => row.stored > sealed && row.stored < row.plain + sealed,
        codec => return Err(Corruption::new(WHAT, "codec of a part", codec, "0 or 1")),
    };
    ensure!(fits, WHAT, "stored length of a part", row.stored, format!("that of {} bytes", row.plain));
    Ok(row)
}

#[cfg(test)]
mod tests {
    use zeroize::Zeroizing;

    use super::*;

    fn row(plain: u32, stored: u32, codec: u8) -> Row {
        Row { plain, stored, codec, xxh: 5 }
    }

    /// Goal: a manifest is read again, sealed or not; any other byte, length, key, id or list is noticed.
    #[test]
    fn read_again() {
        let id = Uuid::from_u128(8);
        let key = Key::new([1; 16], Zeroizing::new([1; 32]));
        for (key, more) in [(None, 0), (Some(&key), SEAL_LEN as u32)] {
            let parts = vec![row(100, 100 + more, 0), row(100, 60 + more, 1)];
            let manifest = Manifest { id, parts, index: vec![row(9, 9 + more, 0)] };
            assert_eq!((manifest.len(), manifest.starts()), (200, vec![0, 100, 200]));
            let bytes = manifest.encode([4; 16], key, &[3; 24]);
            assert_eq!(Manifest::open(&bytes, id, [4; 16], key).unwrap(), manifest);
            assert!(Manifest::open(&bytes, Uuid::nil(), [4; 16], key).is_err());
            assert_eq!(Manifest::open(&bytes, id, [5; 16], key).is_err(), key.is_some());
            for at in 0..bytes.len() {
                let mut other = bytes.clone();
                other[at] ^= 1;
                assert!(Manifest::open(&other, id, [4; 16], key).is_err(), "byte {at}");
                assert!(Manifest::open(&bytes[..at], id, [4; 16], key).is_err(), "cut at {at}");
            }
        }
    }

    /// Goal: lengths and counts that cannot be are refused, whatever the checksum says.
    #[test]
    fn what_cannot_be() {
        let id = Uuid::from_u128(8);
        for odd in [row(0, 0, 0), row(5, 6, 0), row(5, 5, 1), row(5, 0, 1), row(5, 4, 2), row(u32::MAX, u32::MAX, 0)] {
            let bytes = Manifest { id, parts: vec![odd], index: vec![] }.encode([4; 16], None, &[0; 24]);
            assert!(Manifest::open(&bytes, id, [4; 16], None).is_err(), "{odd:?}");
        }
        let mut many = Manifest { id, parts: vec![row(1, 1, 0)], index: vec![] }.encode([4; 16], None, &[0; 24]);
        many[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        let sum = Sum::new().add(&many[..56]).add(&many[64..]).get();
        many[56..64].copy_from_slice(&sum.to_le_bytes());
        assert!(Manifest::open(&many, id, [4; 16], None).unwrap_err().to_string().contains("count"));
    }
}
