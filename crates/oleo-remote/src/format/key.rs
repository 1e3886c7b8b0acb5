//! The key object: the key of a volume, sealed once for each of those that may open it.
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 8 | `OLEOKEY1` |
//! | 8 | 4 | count of slots, 1 to 8 |
//! | 12 | 4 | zeros |
//! | 16 | 16 | name of the key, random |
//! | 32 | 16 | random, different in every version of the object |
//! | 48 | 128 each | slots |
//! | | 8 | xxh64 of all before |
//!
//! A slot: kind, 3 zeros, memory in KiB, passes, lanes (4 each), salt 16, nonce 24, the key with its tag 48, name 16, 8 zeros.

use oleo_format::Corruption;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::{all_zero, ensure, list, push, raw, xxh64};
use crate::seal::{NONCE_LEN, SECRET_LEN, TAG_LEN};

/// Most slots.
pub const SLOT_COUNT_MAX: usize = 8;
/// Longest object, bytes.
pub const KEY_LEN_MAX: usize = 48 + SLOT_COUNT_MAX * 128 + 8;
/// Most memory that a passphrase may ask for, KiB: four times what is asked for now. The store decides it, and each slot is tried.
const MEMORY_MAX: u32 = 256 << 10;
/// Most passes over it, and lanes of it.
const PASSES_MAX: u32 = 4;

const MAGIC: [u8; 8] = *b"OLEOKEY1";

raw! {
    /// What the object begins with.
    48 RawKey { magic: [u8; 8], slots: U32, zeros: U32, id: [u8; 16], commit: [u8; 16], }
    /// A slot.
    128 RawSlot {
        kind: u8, zeros_a: [u8; 3], memory: U32, passes: U32, lanes: U32, salt: [u8; 16], nonce: [u8; NONCE_LEN],
        wrapped: [u8; SECRET_LEN + TAG_LEN], id: [u8; 16], zeros_b: [u8; 8],
    }
}

/// How a slot is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Opener {
    /// By the 32 bytes of a key file.
    File,
    /// By a passphrase, through argon2id.
    Passphrase {
        /// Memory, KiB.
        memory: u32,
        /// Passes.
        passes: u32,
        /// Lanes.
        lanes: u32,
    },
}

/// The key, sealed for somebody.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slot {
    /// How it is opened.
    pub opener: Opener,
    /// Random, for passphrases.
    pub salt: [u8; 16],
    /// Of the seal.
    pub nonce: [u8; NONCE_LEN],
    /// The sealed key and its tag.
    pub wrapped: [u8; SECRET_LEN + TAG_LEN],
    /// Its name, random.
    pub id: [u8; 16],
}

/// The object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyObject {
    /// The name of the key.
    pub id: [u8; 16],
    /// Random, different in every version.
    pub commit: [u8; 16],
    /// The slots.
    pub slots: Vec<Slot>,
}

impl Slot {
    fn raw(&self) -> RawSlot {
        let (kind, [memory, passes, lanes]) = match self.opener {
            Opener::File => (1, [0; 3]),
            Opener::Passphrase { memory, passes, lanes } => (2, [memory, passes, lanes]),
        };
        RawSlot {
            kind,
            zeros_a: [0; 3],
            memory: memory.into(),
            passes: passes.into(),
            lanes: lanes.into(),
            salt: self.salt,
            nonce: self.nonce,
            wrapped: self.wrapped,
            id: self.id,
            zeros_b: [0; 8],
        }
    }

    fn of_raw(raw: &RawSlot) -> Result<Slot, Corruption> {
        let what = "key slot";
        all_zero(&raw.zeros_a, what, "bytes from 1")?;
        all_zero(&raw.zeros_b, what, "bytes from 120")?;
        let (memory, passes, lanes) = (raw.memory.get(), raw.passes.get(), raw.lanes.get());
        let opener = match raw.kind {
            1 => {
                ensure!((memory, passes, lanes) == (0, 0, 0), what, "memory of a key file", memory, 0);
                Opener::File
            }
            2 => {
                ensure!((1..=PASSES_MAX).contains(&passes), what, "passes", passes, format!("1 to {PASSES_MAX}"));
                ensure!((1..=PASSES_MAX).contains(&lanes), what, "lanes", lanes, format!("1 to {PASSES_MAX}"));
                let enough = (lanes * 8..=MEMORY_MAX).contains(&memory);
                ensure!(enough, what, "memory", memory, format!("{} to {MEMORY_MAX} KiB", lanes * 8));
                Opener::Passphrase { memory, passes, lanes }
            }
            kind => return Err(Corruption::new(what, "kind", kind, "1 or 2")),
        };
        Ok(Slot { opener, salt: raw.salt, nonce: raw.nonce, wrapped: raw.wrapped, id: raw.id })
    }

    /// What the wrapped key is bound to: everything of the slot before it, its name, and the name of the key.
    pub(crate) fn beside(&self, key: [u8; 16]) -> Vec<u8> {
        let raw = self.raw();
        let bytes = raw.as_bytes();
        let wrapped = std::mem::offset_of!(RawSlot, wrapped);
        [&b"slot"[..], &bytes[..wrapped], &self.id, &key].concat()
    }
}

impl KeyObject {
    /// The key of the object of a volume. It has the volume's name in it, so that who makes a volume in the place of another
    /// never touches that one's key.
    pub fn key(uuid: [u8; 16]) -> String {
        format!("key/{}", uuid::Uuid::from_bytes(uuid).simple())
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(KEY_LEN_MAX);
        let slots = (self.slots.len() as u32).into();
        push(&mut out, &RawKey { magic: MAGIC, slots, zeros: 0.into(), id: self.id, commit: self.commit });
        self.slots.iter().for_each(|slot| push(&mut out, &slot.raw()));
        let sum = U64::new(xxh64(&out));
        push(&mut out, &sum);
        out
    }

    /// Reads it.
    pub fn parse(bytes: &[u8]) -> Result<KeyObject, Corruption> {
        let what = "key";
        let cut = || Corruption::new(what, "length", bytes.len(), "that of a key");
        let (body, sum) = bytes.split_last_chunk::<8>().ok_or_else(cut)?;
        let (have, want) = (xxh64(body), u64::from_le_bytes(*sum));
        ensure!(have == want, what, "checksum", have, want);
        let (raw, rest) = RawKey::ref_from_prefix(body).map_err(|_| cut())?;
        ensure!(raw.magic == MAGIC, what, "magic", format!("{:02x?}", raw.magic), "OLEOKEY1");
        ensure!(raw.zeros.get() == 0, what, "bytes from 12", raw.zeros, 0);
        let count = raw.slots.get();
        ensure!((1..=SLOT_COUNT_MAX as u32).contains(&count), what, "count of slots", count, "1 to 8");
        let (slots, rest) = list::<RawSlot>(rest, count, what)?;
        ensure!(rest.is_empty(), what, "bytes behind its slots", rest.len(), 0);
        let slots = slots.iter().map(Slot::of_raw).collect::<Result<_, _>>()?;
        Ok(KeyObject { id: raw.id, commit: raw.commit, slots })
    }
}
