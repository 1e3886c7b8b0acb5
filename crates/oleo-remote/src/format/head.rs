//! The head: the one object that changes, and by whose replacement everything before it becomes part of the volume.

use std::borrow::Cow;
use std::sync::Arc;

use oleo_format::Corruption;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::segment::{ENTRY_LEN, FOOTER_LEN, FRAME_LEN_MIN, TAIL_LEN_MAX};
use super::{
    DEVICE_LEN_MAX, Grave, OBJECT_LEN_MAX, OBJECT_N_MAX, ObjectId, ObjectRef, RawId, RawRef, SegmentRef, VERSION,
    all_zero, ensure, list, push, raw, xxh64,
};
use crate::seal::{Key, NONCE_LEN, Nonce, SEAL_LEN, TAG_LEN, Use};

/// Longest head, bytes.
pub const HEAD_LEN_MAX: usize = 1 << 20;
/// Longest text that says who the writer is, bytes.
pub const OWNER_LEN_MAX: usize = 512;
/// Most volumes that a branch goes back to.
pub const ORIGIN_COUNT_MAX: usize = 16;

const MAGIC: [u8; 8] = *b"OLEOHEAD";
const FLAG_SEALED: u16 = 1;
const FLAG_RELEASED: u16 = 2;
const FLAG_BRANCH: u16 = 4;

raw! {
    /// What a head begins with.
    256 RawHead {
        magic: [u8; 8], version: U16, flags: U16, len: U32, uuid: [u8; 16], epoch: U32, claim: U32, sequence: U64,
        commit: [u8; 16], predecessor: [u8; 16], device_len: U64, next_n: U64, root: [u8; 32], segments: U32, graves: U32,
        origins: U32, owner_len: U32, tail_len: U32, zeros_a: [u8; 8], codec: u8, zeros_b: [u8; 3], horizon: U64,
        position: U64, tail_id: RawId, oldest: U64, zeros_c: [u8; 40], sections_xxh: U64, xxh: U64,
    }
    /// A segment in the list.
    40 RawSegment { id: RawId, len: U32, dir_off: U32, dir_len: U32, frames: U32, dir_xxh: U64, }
    /// A volume that a branch goes back to; both texts follow.
    20 RawOrigin { uuid: [u8; 16], pin_len: U16, prefix_len: U16, }
}
const _: () = assert!(std::mem::offset_of!(RawHead, root) == 96);
const _: () = assert!(std::mem::offset_of!(RawHead, codec) == 156);
const _: () = assert!(std::mem::offset_of!(RawHead, tail_id) == 176);
const _: () = assert!(std::mem::offset_of!(RawHead, oldest) == 192);
const _: () = assert!(std::mem::offset_of!(RawHead, sections_xxh) == 240);

const HEADER_LEN: usize = size_of::<RawHead>();
/// What the sections of a sealed head are bound to: the header without its checksums.
const BESIDE_LEN: usize = std::mem::offset_of!(RawHead, sections_xxh);

/// A volume that a branch goes back to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Origin {
    /// That volume.
    pub uuid: [u8; 16],
    /// The pin that keeps what the branch needs.
    pub pin: String,
    /// Where that volume is.
    pub prefix: String,
}

/// A head.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Head {
    /// The volume on this store; nothing to do with what is in it.
    pub uuid: [u8; 16],
    /// The writer; every attach for writing raises it.
    pub epoch: u32,
    /// For how many seconds its owner may be silent; 0: for ever.
    pub claim: u32,
    /// Whether its writer has closed it.
    pub released: bool,
    /// Whether it began as a copy of another volume's.
    pub branch: bool,
    /// Grows by one with every head.
    pub sequence: u64,
    /// Random, different in every head.
    pub commit: [u8; 16],
    /// That of the head before; zeros if there was none.
    pub predecessor: [u8; 16],
    /// Length of the device, bytes.
    pub device_len: u64,
    /// Numbers below it may have been given out by this epoch.
    pub next_n: u64,
    /// The root page of the last checkpoint.
    pub root: Option<ObjectRef>,
    /// What is to be replayed after it, in this order.
    pub segments: Vec<SegmentRef>,
    /// Objects that died after the checkpoint.
    pub graves: Vec<Grave>,
    /// The volumes whose objects it names.
    pub origins: Vec<Origin>,
    /// Who writes, in words; empty if no process does. A second line names the process, for others of its machine.
    pub owner: String,
    /// The codec of new frames.
    pub codec: u8,
    /// The highest `died` of a grave that is not listed any more.
    pub horizon: u64,
    /// No listed segment was named by a head of an earlier sequence; 0: nothing is known of that.
    pub oldest: u64,
    /// How many frames the volume has had: up to here everything is in the root, the list and the tail.
    pub position: u64,
    /// The segment whose beginning the tail is.
    pub tail_id: ObjectId,
    /// Frames of a segment that is not written yet.
    pub tail: Vec<u8>,
    /// With what the volume is sealed, if it is.
    pub key: Option<Arc<Key>>,
}

/// What a head says to everybody, with its key or without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outline {
    /// The volume.
    pub uuid: [u8; 16],
    /// The writer.
    pub epoch: u32,
    /// Which head.
    pub commit: [u8; 16],
    /// Whether everything else is sealed.
    pub sealed: bool,
}

impl Head {
    /// Who writes, in words.
    pub fn writer(&self) -> &str {
        self.owner.split_once('\n').map_or(&self.owner, |(writer, _)| writer)
    }

    /// The name of the process that writes; see [`Host::process`](crate::Host::process).
    pub fn process(&self) -> Option<&str> {
        self.owner.split_once('\n').map(|(_, process)| process)
    }

    /// Its bytes. Its parts are within their bounds, or it would not be read again: see [`Head::len`].
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len());
        out.resize(HEADER_LEN, 0);
        for s in &self.segments {
            let dir_len = s.dir_len().into();
            let (len, dir_off, frames) = (s.len.into(), s.dir_off.into(), s.frames.into());
            push(&mut out, &RawSegment { id: s.id.raw(), len, dir_off, dir_len, frames, dir_xxh: s.dir_xxh.into() });
        }
        for grave in &self.graves {
            push(&mut out, &grave.raw());
        }
        for o in &self.origins {
            let (pin_len, prefix_len) = ((o.pin.len() as u16).into(), (o.prefix.len() as u16).into());
            push(&mut out, &RawOrigin { uuid: o.uuid, pin_len, prefix_len });
            out.extend_from_slice(o.pin.as_bytes());
            out.extend_from_slice(o.prefix.as_bytes());
        }
        out.extend_from_slice(self.owner.as_bytes());
        out.extend_from_slice(&self.tail);
        let flag = |set: bool, flag: u16| if set { flag } else { 0 };
        let mut root = [0; 32];
        if let Some(r) = &self.root {
            root.copy_from_slice(r.raw().as_bytes());
        }
        let mut raw = RawHead {
            magic: MAGIC,
            version: VERSION.into(),
            flags: (flag(self.key.is_some(), FLAG_SEALED)
                | flag(self.released, FLAG_RELEASED)
                | flag(self.branch, FLAG_BRANCH))
            .into(),
            len: (self.len() as u32).into(),
            uuid: self.uuid,
            epoch: self.epoch.into(),
            claim: self.claim.into(),
            sequence: self.sequence.into(),
            commit: self.commit,
            predecessor: self.predecessor,
            device_len: self.device_len.into(),
            next_n: self.next_n.into(),
            root,
            segments: (self.segments.len() as u32).into(),
            graves: (self.graves.len() as u32).into(),
            origins: (self.origins.len() as u32).into(),
            owner_len: (self.owner.len() as u32).into(),
            tail_len: (self.tail.len() as u32).into(),
            zeros_a: [0; 8],
            codec: self.codec,
            zeros_b: [0; 3],
            horizon: self.horizon.into(),
            position: self.position.into(),
            tail_id: self.tail_id.raw(),
            oldest: self.oldest.into(),
            zeros_c: [0; 40],
            sections_xxh: 0.into(),
            xxh: 0.into(),
        };
        if let Some(key) = &self.key {
            let beside = &raw.as_bytes()[..BESIDE_LEN];
            let nonce = nonce_of(&self.commit, self.sequence);
            let tag = key.seal_in_place(&nonce, Use::Head, &[b"head", beside], &mut out[HEADER_LEN..]);
            out.extend_from_slice(&tag);
        }
        raw.sections_xxh = xxh64(&out[HEADER_LEN..]).into();
        raw.xxh = xxh64(&raw.as_bytes()[..HEADER_LEN - 8]).into();
        out[..HEADER_LEN].copy_from_slice(raw.as_bytes());
        out
    }

    /// How long its bytes are.
    pub fn len(&self) -> usize {
        let origins: usize = self.origins.iter().map(|o| size_of::<RawOrigin>() + o.pin.len() + o.prefix.len()).sum();
        HEADER_LEN
            + self.segments.len() * size_of::<RawSegment>()
            + self.graves.len() * size_of::<super::RawGrave>()
            + origins
            + self.owner.len()
            + self.tail.len()
            + self.key.as_ref().map_or(0, |_| TAG_LEN)
    }

    /// Never: it has a header.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Reads what one says to everybody.
    pub fn outline(bytes: &[u8]) -> Result<Outline, Corruption> {
        let raw = parse_header(bytes)?;
        let sealed = raw.flags.get() & FLAG_SEALED != 0;
        Ok(Outline { uuid: raw.uuid, epoch: raw.epoch.get(), commit: raw.commit, sealed })
    }

    /// Reads one that is not sealed.
    pub fn parse(bytes: &[u8]) -> Result<Head, Corruption> {
        Head::open(bytes, None)
    }

    /// Reads one, checking everything that can be checked of it alone. The key opens it, if it is sealed.
    pub fn open(bytes: &[u8], key: Option<&Arc<Key>>) -> Result<Head, Corruption> {
        let raw = parse_header(bytes)?;
        let sealed = raw.flags.get() & FLAG_SEALED != 0;
        let key = key.filter(|_| sealed);
        let sections = match key {
            None => {
                ensure!(!sealed, "head", "seal", "closed", "one that a key opens");
                Cow::Borrowed(&bytes[HEADER_LEN..])
            }
            Some(key) => {
                let broken = || Corruption::new("head", "seal", "broken", "that of its key");
                let (sections, tag) = bytes[HEADER_LEN..].split_last_chunk::<TAG_LEN>().ok_or_else(broken)?;
                let (mut sections, nonce) = (sections.to_vec(), nonce_of(&raw.commit, raw.sequence.get()));
                let beside = &bytes[..BESIDE_LEN];
                if !key.open_in_place(&nonce, Use::Head, &[b"head", beside], &mut sections, tag) {
                    return Err(broken());
                }
                Cow::Owned(sections)
            }
        };
        let (raw_segments, rest) = list::<RawSegment>(&sections, raw.segments.get(), "head")?;
        let (raw_graves, rest) = list::<super::RawGrave>(rest, raw.graves.get(), "head")?;
        let (origins, rest) = parse_origins(rest, raw.origins.get())?;
        let (owner_len, tail_len) = (raw.owner_len.get() as usize, raw.tail_len.get() as usize);
        ensure!(
            owner_len <= OWNER_LEN_MAX,
            "head",
            "length of the owner",
            owner_len,
            format!("at most {OWNER_LEN_MAX}")
        );
        ensure!(tail_len <= TAIL_LEN_MAX, "head", "length of the tail", tail_len, format!("at most {TAIL_LEN_MAX}"));
        ensure!(
            rest.len() == owner_len + tail_len,
            "head",
            "bytes of owner and tail",
            rest.len(),
            owner_len + tail_len
        );
        let (owner, tail) = rest.split_at(owner_len);
        let segments = raw_segments.iter().map(|raw| parse_segment(raw, sealed)).collect::<Result<Vec<_>, _>>()?;
        let graves = raw_graves.iter().map(Grave::of_raw).collect::<Result<Vec<_>, _>>()?;
        let root = match raw.root {
            [0, ..] if raw.root == [0; 32] => None,
            _ => Some(ObjectRef::of_raw(RawRef::ref_from_bytes(&raw.root).map_err(|_| no_root())?)?),
        };
        let head = Head {
            uuid: raw.uuid,
            epoch: raw.epoch.get(),
            claim: raw.claim.get(),
            released: raw.flags.get() & FLAG_RELEASED != 0,
            branch: raw.flags.get() & FLAG_BRANCH != 0,
            sequence: raw.sequence.get(),
            commit: raw.commit,
            predecessor: raw.predecessor,
            device_len: raw.device_len.get(),
            next_n: raw.next_n.get(),
            root,
            segments,
            graves,
            origins,
            owner: text(owner, "owner")?,
            codec: raw.codec,
            horizon: raw.horizon.get(),
            oldest: raw.oldest.get(),
            position: raw.position.get(),
            tail_id: ObjectId::of_raw(&raw.tail_id)?.expect_map(false)?,
            tail: tail.to_vec(),
            key: key.cloned(),
        };
        head.check()?;
        Ok(head)
    }

    /// What its parts say of each other.
    fn check(&self) -> Result<(), Corruption> {
        let len = self.device_len;
        ensure!(len <= DEVICE_LEN_MAX, "head", "length of the device", len, format!("at most {DEVICE_LEN_MAX}"));
        ensure!(self.next_n <= OBJECT_N_MAX, "head", "next number", self.next_n, format!("at most {OBJECT_N_MAX}"));
        ensure!(self.codec <= 1, "head", "codec", self.codec, "0 or 1");
        let origins = self.origins.len();
        let root = self.root.iter().map(|r| r.id);
        let ids = self.segments.iter().map(|s| s.id).chain(self.graves.iter().map(|g| g.id));
        for id in ids.chain(root).chain([self.tail_id]) {
            ensure!(
                usize::from(id.origin) <= origins,
                "head",
                "origin of an object",
                id.origin,
                format!("at most {origins}")
            );
            ensure!(id.epoch <= self.epoch || id.origin > 0, "head", "epoch of an object", id.epoch, self.epoch);
        }
        let mut listed: Vec<ObjectId> = self.segments.iter().map(|s| s.id).collect();
        listed.sort_unstable();
        let twice = listed.windows(2).find(|pair| pair[0] == pair[1]);
        if let Some(pair) = twice {
            ensure!(false, "head", "list of segments", format!("{} twice", pair[0]), "each once");
        }
        // A grave is final, so nothing is in both.
        let dead = self.graves.iter().find(|g| listed.binary_search(&g.id).is_ok());
        if let Some(grave) = dead {
            ensure!(false, "head", "list of segments", format!("{}, which is dead", grave.id), "what lives");
        }
        let frames: u64 = self.segments.iter().map(|s| u64::from(s.frames)).sum();
        ensure!(frames <= self.position, "head", "count of frames", frames, format!("at most {}", self.position));
        Ok(())
    }
}

/// The nonce of a head: no two have the same commit id.
fn nonce_of(commit: &[u8; 16], sequence: u64) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[..16].copy_from_slice(commit);
    nonce[16..].copy_from_slice(&sequence.to_le_bytes());
    nonce
}

fn no_root() -> Corruption {
    Corruption::new("head", "root", "odd", "a reference")
}

/// The header: magic, lengths, checksums and what must be zero.
fn parse_header(bytes: &[u8]) -> Result<&RawHead, Corruption> {
    ensure!(bytes.len() >= HEADER_LEN, "head", "length", bytes.len(), format!("at least {HEADER_LEN}"));
    ensure!(bytes.len() <= HEAD_LEN_MAX, "head", "length", bytes.len(), format!("at most {HEAD_LEN_MAX}"));
    let (raw, _) =
        RawHead::ref_from_prefix(bytes).map_err(|_| Corruption::new("head", "length", bytes.len(), HEADER_LEN))?;
    ensure!(raw.magic == MAGIC, "head", "magic", format!("{:02x?}", raw.magic), format!("{MAGIC:02x?}"));
    let (have, want) = (xxh64(&bytes[..HEADER_LEN - 8]), raw.xxh.get());
    ensure!(have == want, "head", "checksum", have, want);
    ensure!(raw.version.get() == VERSION, "head", "version", raw.version, VERSION);
    let flags = raw.flags.get();
    let known = FLAG_SEALED | FLAG_RELEASED | FLAG_BRANCH;
    ensure!(flags & !known == 0, "head", "flags", flags, format!("only those of {known}"));
    ensure!(raw.len.get() as usize == bytes.len(), "head", "length", bytes.len(), raw.len);
    all_zero(&raw.zeros_a, "head", "bytes from 148")?;
    all_zero(&raw.zeros_b, "head", "bytes from 157")?;
    all_zero(&raw.zeros_c, "head", "bytes from 200")?;
    let (have, want) = (xxh64(&bytes[HEADER_LEN..]), raw.sections_xxh.get());
    ensure!(have == want, "head", "checksum of the sections", have, want);
    Ok(raw)
}

fn parse_segment(raw: &RawSegment, sealed: bool) -> Result<SegmentRef, Corruption> {
    let id = ObjectId::of_raw(&raw.id)?.expect_map(false)?;
    let (len, dir_off, frames) = (raw.len.get(), raw.dir_off.get(), raw.frames.get());
    let want = u64::from(frames) * ENTRY_LEN as u64 + if sealed { SEAL_LEN as u64 } else { 0 };
    ensure!(u64::from(raw.dir_len.get()) == want, "segment in a head", "length of the directory", raw.dir_len, want);
    ensure!(frames > 0, "segment in a head", "count of frames", frames, "at least 1");
    let body = u64::from(frames) * FRAME_LEN_MIN as u64;
    ensure!(
        u64::from(dir_off) >= body,
        "segment in a head",
        "place of the directory",
        dir_off,
        format!("at least {body}")
    );
    let whole = u64::from(dir_off) + want + FOOTER_LEN as u64;
    ensure!(u64::from(len) == whole, "segment in a head", "length", len, whole);
    ensure!(len <= OBJECT_LEN_MAX, "segment in a head", "length", len, format!("at most {OBJECT_LEN_MAX}"));
    Ok(SegmentRef { id, len, dir_off, frames, dir_xxh: raw.dir_xxh.get() })
}

fn parse_origins(mut rest: &[u8], count: u32) -> Result<(Vec<Origin>, &[u8]), Corruption> {
    ensure!(
        count as usize <= ORIGIN_COUNT_MAX,
        "head",
        "count of origins",
        count,
        format!("at most {ORIGIN_COUNT_MAX}")
    );
    let mut out = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let short = || Corruption::new("head", "origins", "cut off", "whole");
        let (raw, after) = RawOrigin::ref_from_prefix(rest).map_err(|_| short())?;
        let (pin, after) = after.split_at_checked(raw.pin_len.get().into()).ok_or_else(short)?;
        let (prefix, after) = after.split_at_checked(raw.prefix_len.get().into()).ok_or_else(short)?;
        out.push(Origin {
            uuid: raw.uuid,
            pin: text(pin, "pin of an origin")?,
            prefix: text(prefix, "prefix of an origin")?,
        });
        rest = after;
    }
    Ok((out, rest))
}

fn text(bytes: &[u8], what: &'static str) -> Result<String, Corruption> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(e) => Err(Corruption::new("head", what, format!("odd after {} bytes", e.valid_up_to()), "UTF-8")),
    }
}
