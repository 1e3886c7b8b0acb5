//! The list of streams: the one object that changes.
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 8 | `OLEOSTRS` |
//! | 8 | 2 | version 1 |
//! | 10 | 2 | flags: 1 sealed |
//! | 12 | 4 | bytes of the text as it is stored |
//! | 16 | 16 | uuid of the list |
//! | 32 | 16 | random, different in every version of the object |
//! | 48 | 8 | revision: one more with every version of the object |
//! | 56 | 8 | xxh64 of 0..56 and of the text |
//! | 64 | | the text: JSON; if it is sealed nonce 24, text, tag 16 ("streams", bytes 0..56) |

use std::collections::HashMap;

use oleo_format::Corruption;
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::format::{Sum, VERSION, ensure, push, raw};
use crate::seal::{Key, Nonce, SEAL_LEN, Use};

/// The key of the list.
pub(crate) const LIST: &str = "streams";
/// Longest list, bytes.
pub const LIST_LEN_MAX: usize = 16 << 20;
/// Most streams.
pub const STREAM_COUNT_MAX: usize = 16 << 10;
/// Most uploads under way.
pub const UPLOAD_COUNT_MAX: usize = 256;
/// Most streams that one is built on.
pub const NEEDS_COUNT_MAX: usize = 256;
/// Longest name, bytes.
pub const NAME_LEN_MAX: usize = 4096;

const MAGIC: [u8; 8] = *b"OLEOSTRS";
const SEALED: u16 = 1;
const WHAT: &str = "list of streams";

raw! {
    /// What the object begins with.
    64 RawList {
        magic: [u8; 8], version: U16, flags: U16, len: U32, uuid: [u8; 16], commit: [u8; 16], revision: U64, xxh: U64,
    }
}

/// A stream of one snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamEntry {
    /// Its id, random.
    #[serde(with = "as_text")]
    pub id: Uuid,
    /// Rises with every stream of the list.
    pub number: u64,
    /// The name of the snapshot; bytes that are no UTF-8 are escaped.
    pub name: String,
    /// By which receivers know it: its UUID, or that of the one it was itself received from.
    #[serde(with = "as_text")]
    pub uuid: Uuid,
    /// The transaction of its last change at its sender.
    pub ctransid: u64,
    /// Of which subvolume it is a snapshot; policies of keeping count each by itself.
    #[serde(with = "as_text")]
    pub series: Uuid,
    /// Whether it is the difference to the first of `needs`.
    pub incremental: bool,
    /// The streams that must be received before it.
    #[serde(with = "as_texts")]
    pub needs: Vec<Uuid>,
    /// When the snapshot was made, seconds since 1970.
    pub taken: i64,
    /// When it was stored, seconds of the store's clock since 1970; 0 if it tells none.
    pub stored: u64,
    /// Who sent it, in words.
    pub by: String,
    /// Bytes of the stream.
    pub bytes: u64,
    /// Bytes of its parts and its index as they are stored.
    pub stored_bytes: u64,
    /// Bytes of its index; 0: it has none.
    pub index_bytes: u64,
    /// Length of its manifest, bytes.
    pub manifest_len: u32,
    /// xxh64 of it.
    pub manifest_xxh: u64,
}

impl StreamEntry {
    /// Whether both are the same snapshot.
    pub fn is_same_snapshot(&self, other: &StreamEntry) -> bool {
        (self.uuid, self.ctransid) == (other.uuid, other.ctransid)
    }
}

/// An upload that has begun.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UploadEntry {
    /// The id that the stream will have.
    #[serde(with = "as_text")]
    pub id: Uuid,
    /// The name of the snapshot.
    pub name: String,
    /// The streams that it may need.
    #[serde(with = "as_texts")]
    pub needs: Vec<Uuid>,
    /// When it began, seconds of the store's clock since 1970; 0 if it tells none.
    pub begun: u64,
    /// Whose it is, in words.
    pub by: String,
}

/// The list.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StreamList {
    /// Random, for ever the same.
    pub uuid: [u8; 16],
    /// Random, different in every version.
    pub commit: [u8; 16],
    /// One more with every version: a store that shows a lower one than before has been put back.
    pub revision: u64,
    /// The streams, by number.
    pub streams: Vec<StreamEntry>,
    /// The uploads under way.
    pub uploads: Vec<UploadEntry>,
}

#[derive(Serialize)]
struct TextOut<'a> {
    streams: &'a [StreamEntry],
    uploads: &'a [UploadEntry],
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TextIn {
    streams: Vec<StreamEntry>,
    uploads: Vec<UploadEntry>,
}

/// What of a list can be read without its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outline {
    pub(crate) uuid: [u8; 16],
    pub(crate) commit: [u8; 16],
    pub(crate) sealed: bool,
}

impl StreamList {
    /// The stream of an id.
    pub fn stream(&self, id: Uuid) -> Option<&StreamEntry> {
        self.streams.iter().find(|stream| stream.id == id)
    }

    /// The number of the next stream.
    pub fn next_number(&self) -> u64 {
        self.streams.last().map_or(1, |last| last.number + 1)
    }

    /// Its bytes; `nonce` is used where there is a key.
    pub(crate) fn encode(&self, key: Option<&Key>, nonce: &Nonce) -> Vec<u8> {
        let text = TextOut { streams: &self.streams, uploads: &self.uploads };
        let Ok(text) = serde_json::to_vec(&text) else { unreachable!("all of it can be written as JSON") };
        let len = text.len() + if key.is_some() { SEAL_LEN } else { 0 };
        let mut raw = RawList {
            magic: MAGIC,
            version: VERSION.into(),
            flags: if key.is_some() { SEALED } else { 0 }.into(),
            len: u32::try_from(len).unwrap_or(u32::MAX).into(),
            uuid: self.uuid,
            commit: self.commit,
            revision: self.revision.into(),
            xxh: 0.into(),
        };
        let text = match key {
            None => text,
            Some(key) => key.seal(nonce, Use::Text, &[b"streams", &raw.as_bytes()[..56]], &text),
        };
        raw.xxh = Sum::new().add(&raw.as_bytes()[..56]).add(&text).get().into();
        let mut out = Vec::with_capacity(64 + text.len());
        push(&mut out, &raw);
        out.extend_from_slice(&text);
        out
    }

    /// What can be read without a key.
    pub(crate) fn outline(bytes: &[u8]) -> Result<Outline, Corruption> {
        let (raw, _) = split(bytes)?;
        Ok(Outline { uuid: raw.uuid, commit: raw.commit, sealed: raw.flags.get() == SEALED })
    }

    /// Reads it.
    pub(crate) fn open(bytes: &[u8], key: Option<&Key>) -> Result<StreamList, Corruption> {
        let (raw, text) = split(bytes)?;
        let sealed = raw.flags.get() == SEALED;
        ensure!(sealed == key.is_some(), WHAT, "flags", raw.flags.get(), if key.is_some() { "sealed" } else { "open" });
        let opened;
        let text = match key {
            None => text,
            Some(key) => {
                let beside: [&[u8]; 2] = [b"streams", &raw.as_bytes()[..56]];
                let broken = || Corruption::new(WHAT, "seal", "broken", "that of its key");
                opened = key.open(Use::Text, &beside, text).ok_or_else(broken)?;
                &opened
            }
        };
        let TextIn { streams, uploads } =
            serde_json::from_slice(text).map_err(|e| Corruption::new(WHAT, "text", e, "what it should be"))?;
        let (uuid, commit, revision) = (raw.uuid, raw.commit, raw.revision.get());
        let list = StreamList { uuid, commit, revision, streams, uploads };
        list.check()?;
        Ok(list)
    }

    /// What must hold of every list. A need that is not there is a broken chain, which whoever needs it says.
    pub(crate) fn check(&self) -> Result<(), Corruption> {
        let (streams, uploads) = (&self.streams, &self.uploads);
        ensure!(
            streams.len() <= STREAM_COUNT_MAX,
            WHAT,
            "streams",
            streams.len(),
            format!("at most {STREAM_COUNT_MAX}")
        );
        ensure!(
            uploads.len() <= UPLOAD_COUNT_MAX,
            WHAT,
            "uploads",
            uploads.len(),
            format!("at most {UPLOAD_COUNT_MAX}")
        );
        let mut numbers = HashMap::with_capacity(streams.len());
        let mut last = 0;
        for stream in streams {
            ensure!(stream.number > last, WHAT, "number of a stream", stream.number, format!("more than {last}"));
            last = stream.number;
            ensure!(numbers.insert(stream.id, last).is_none(), WHAT, "id of a stream", stream.id, "that of no other");
            let odd = stream.needs.iter().find(|need| **need == stream.id);
            ensure!(odd.is_none(), WHAT, "need of a stream", stream.id, "another stream");
            ensure!(!stream.incremental || !stream.needs.is_empty(), WHAT, "needs of a stream", 0, "1 or more");
        }
        ensure!(last < u64::MAX, WHAT, "number of a stream", last, "one that another may follow");
        for stream in streams {
            let later = stream.needs.iter().find(|need| numbers.get(need).is_some_and(|n| *n >= stream.number));
            ensure!(later.is_none(), WHAT, "need of a stream", stream.number, "a stream of a lower number");
        }
        let lists = streams.iter().map(|s| (&s.name, &s.needs)).chain(uploads.iter().map(|u| (&u.name, &u.needs)));
        for (name, needs) in lists {
            ensure!(needs.len() <= NEEDS_COUNT_MAX, WHAT, "needs", needs.len(), format!("at most {NEEDS_COUNT_MAX}"));
            let fits = (1..=NAME_LEN_MAX).contains(&name.len());
            ensure!(fits, WHAT, "length of a name", name.len(), format!("1 to {NAME_LEN_MAX}"));
        }
        Ok(())
    }
}

fn split(bytes: &[u8]) -> Result<(&RawList, &[u8]), Corruption> {
    ensure!(bytes.len() <= LIST_LEN_MAX, WHAT, "length", bytes.len(), format!("at most {LIST_LEN_MAX}"));
    let cut = |_| Corruption::new(WHAT, "length", bytes.len(), "64 or more");
    let (raw, text) = RawList::ref_from_prefix(bytes).map_err(cut)?;
    ensure!(raw.magic == MAGIC, WHAT, "magic", format!("{:02x?}", raw.magic), "OLEOSTRS");
    ensure!(raw.version.get() == VERSION, WHAT, "version", raw.version.get(), VERSION);
    ensure!(raw.flags.get() & !SEALED == 0, WHAT, "flags", raw.flags.get(), "0 or 1");
    ensure!(raw.len.get() as usize == text.len(), WHAT, "length of its text", text.len(), raw.len.get());
    let sum = Sum::new().add(&raw.as_bytes()[..56]).add(text).get();
    ensure!(raw.xxh.get() == sum, WHAT, "checksum", format!("{:#x}", raw.xxh.get()), format!("{sum:#x}"));
    Ok((raw, text))
}

/// A UUID as text, without dashes.
mod as_text {
    use serde::{Deserialize, Deserializer, Serializer};
    use uuid::Uuid;

    pub(super) fn serialize<S: Serializer>(id: &Uuid, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&id.simple())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Uuid, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
        Uuid::try_parse(&text).map_err(serde::de::Error::custom)
    }
}

/// Several.
mod as_texts {
    use serde::{Deserialize, Deserializer, Serializer};
    use uuid::Uuid;

    pub(super) fn serialize<S: Serializer>(ids: &[Uuid], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(ids.iter().map(|id| id.simple().to_string()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Uuid>, D::Error> {
        let texts = <Vec<String>>::deserialize(from)?;
        texts.iter().map(|text| Uuid::try_parse(text).map_err(serde::de::Error::custom)).collect()
    }
}

#[cfg(test)]
mod tests {
    use zeroize::Zeroizing;

    use super::*;

    /// A stream on top of others, by number.
    fn entry(number: u64, needs: &[u64]) -> StreamEntry {
        StreamEntry {
            id: Uuid::from_u128(number.into()),
            number,
            name: format!("snap{number}"),
            uuid: Uuid::from_u128(u128::from(number) << 64),
            ctransid: 7,
            series: Uuid::nil(),
            incremental: !needs.is_empty(),
            needs: needs.iter().map(|n| Uuid::from_u128((*n).into())).collect(),
            taken: -5,
            stored: 9,
            by: "somebody".into(),
            bytes: u64::MAX,
            stored_bytes: 1,
            index_bytes: 0,
            manifest_len: 64,
            manifest_xxh: u64::MAX,
        }
    }

    fn list(streams: Vec<StreamEntry>) -> StreamList {
        let upload = UploadEntry { id: Uuid::max(), name: "x".into(), needs: vec![], begun: 0, by: String::new() };
        StreamList { uuid: [1; 16], commit: [2; 16], revision: 3, streams, uploads: vec![upload] }
    }

    /// Goal: what is written is read again, sealed or not; any other byte, length or key is noticed.
    #[test]
    fn read_again() {
        let list = list(vec![entry(1, &[]), entry(4, &[1])]);
        let key = |byte| Key::new([byte; 16], Zeroizing::new([byte; 32]));
        for key in [None, Some(&key(1))] {
            let bytes = list.encode(key, &[3; 24]);
            assert_eq!(StreamList::open(&bytes, key).unwrap(), list);
            let outline = StreamList::outline(&bytes).unwrap();
            assert_eq!(outline, Outline { uuid: [1; 16], commit: [2; 16], sealed: key.is_some() });
            for at in 0..bytes.len() {
                let mut other = bytes.clone();
                other[at] ^= 1;
                assert!(StreamList::open(&other, key).is_err(), "byte {at}");
                assert!(StreamList::open(&bytes[..at], key).is_err(), "cut at {at}");
            }
        }
        let sealed = list.encode(Some(&key(1)), &[3; 24]);
        assert!(StreamList::open(&sealed, Some(&key(2))).is_err());
        assert!(StreamList::open(&sealed, None).is_err());
        assert!(!sealed.windows(4).any(|four| four == b"snap"), "names are sealed");
    }

    /// Goal: circles, numbers that fall, ids that come twice, too many and too long things are refused.
    #[test]
    fn what_cannot_be() {
        let bad = |streams| list(streams).check().is_err();
        assert!(!bad(vec![entry(2, &[1]), entry(3, &[2])]), "a missing link is no damage of the list");
        assert!(bad(vec![entry(1, &[2]), entry(2, &[])]), "later");
        assert!(bad(vec![entry(1, &[1])]), "itself");
        assert!(bad(vec![entry(2, &[]), entry(1, &[])]), "falls");
        assert!(bad(vec![entry(1, &[]), StreamEntry { id: Uuid::from_u128(1), ..entry(2, &[]) }]), "id twice");
        assert!(bad(vec![StreamEntry { incremental: true, ..entry(1, &[]) }]), "on nothing");
        assert!(bad(vec![StreamEntry { name: String::new(), ..entry(1, &[]) }]), "no name");
        assert!(bad(vec![entry(u64::MAX, &[])]), "the last number");
        let needs = vec![Uuid::from_u128(900); NEEDS_COUNT_MAX + 1];
        assert!(bad(vec![StreamEntry { needs, ..entry(1, &[]) }]), "needs");
        assert!(bad((1..=STREAM_COUNT_MAX as u64 + 1).map(|n| entry(n, &[])).collect()), "many");
    }
}
