//! The objects of a volume, byte for byte: `docs/decisions/0031-remote-volumes.md` has the tables.
//!
//! Everything here is a pure function between bytes and owned values. What is parsed comes from a store and may be
//! anything: every count is compared with the length that is there before memory is taken for it, and what is accepted
//! is written again as the same bytes. All numbers are little-endian.
//!
//! - [`head`]: the one object that changes.
//! - [`segment`]: frames, their directory, and the footer.
//! - `packing`: payloads and pages, compressed and sealed.
//! - [`log`]: the log on the local disk.
//! - [`key`]: the key of a volume, sealed with those of whoever may open it.
//! - [`map`]: where the blocks of the device are, in pages.
//! - [`pins`]: which heads are to be kept.

use std::fmt;
use std::hash::Hasher;

use oleo_format::Corruption;
use twox_hash::XxHash64;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub mod head;
pub mod key;
pub mod log;
pub mod map;
pub(crate) mod packing;
pub mod pins;
pub mod segment;

/// The version of the format, of all objects.
pub const VERSION: u16 = 1;
/// Bytes of a block: the unit in which the log keeps a device.
pub const BLOCK_LEN: usize = 4096;
/// Most blocks of one frame; a frame crosses no multiple of it.
pub const FRAME_BLOCKS_MAX: u64 = 64;
/// Blocks of a region, the unit in which the map is loaded: 1 GiB.
pub const REGION_BLOCKS: u64 = 1 << 18;
/// Longest device, bytes: its regions have numbers of 32 bits, with some to spare.
pub const DEVICE_LEN_MAX: u64 = 1 << 60;
/// Longest segment or map object, bytes.
pub const OBJECT_LEN_MAX: u32 = 64 << 20;
/// Numbers of objects are below this: keys have twelve digits for them.
pub const OBJECT_N_MAX: u64 = 1 << 48;

/// Declares structs that are written as they are, and asserts their size.
macro_rules! raw {
    ($($(#[$doc:meta])* $size:literal $name:ident { $($field:ident: $ty:ty,)* })*) => { $(
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout,
            zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub(crate) struct $name { $(pub(crate) $field: $ty,)* }
        const _: () = assert!(size_of::<$name>() == $size);
    )* };
}
pub(crate) use raw;

/// Returns a [`Corruption`] unless the condition holds.
macro_rules! ensure {
    ($cond:expr, $structure:expr, $what:expr, $have:expr, $want:expr $(,)?) => {
        if !$cond {
            return Err(oleo_format::Corruption::new($structure, $what, $have, $want));
        }
    };
}
pub(crate) use ensure;

/// Bit of [`RawId::kind`]: a map object, not a segment.
const IS_MAP: u16 = 0x8000;

raw! {
    /// The name of an object.
    16 RawId { origin: U16, kind: U16, epoch: U32, n: U64, }
    /// A part of an object, with the checksum of its bytes.
    32 RawRef { id: RawId, off: U32, len: U32, xxh: U64, }
}

/// The name of a segment or of a map object. Names are never used a second time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct ObjectId {
    /// The epoch of the writer that made it.
    pub epoch: u32,
    /// The number that this writer gave it.
    pub n: u64,
    /// Whether it is a map object; else a segment.
    pub map: bool,
    /// Whose it is: 0 the volume's own, else the place in the head's list of origins, from 1.
    pub origin: u16,
}

impl ObjectId {
    /// A segment of the volume itself.
    pub fn segment(epoch: u32, n: u64) -> ObjectId {
        ObjectId { epoch, n, map: false, origin: 0 }
    }

    /// A map object of the volume itself.
    pub fn map(epoch: u32, n: u64) -> ObjectId {
        ObjectId { epoch, n, map: true, origin: 0 }
    }

    /// Its key below the prefix of its owner. The folder spreads keys, since stores divide their load by the beginning of keys.
    pub fn key(&self) -> String {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[4..].copy_from_slice(&self.n.to_le_bytes());
        let folder = xxh64(&bytes) & 0xff;
        let kind = if self.map { "map" } else { "seg" };
        format!("{kind}/{folder:02x}/{:08x}-{:012x}", self.epoch, self.n)
    }

    /// The object that a key names, if it names one.
    pub fn of_key(key: &str) -> Option<ObjectId> {
        let mut parts = key.split('/');
        let map = match parts.next()? {
            "seg" => false,
            "map" => true,
            _ => return None,
        };
        let (_folder, name) = (parts.next()?, parts.next()?);
        let (epoch, n) = name.split_once('-')?;
        let id = ObjectId {
            epoch: u32::from_str_radix(epoch, 16).ok()?,
            n: u64::from_str_radix(n, 16).ok().filter(|&n| n < OBJECT_N_MAX)?,
            map,
            origin: 0,
        };
        (parts.next().is_none() && id.key() == key).then_some(id)
    }

    pub(crate) fn raw(&self) -> RawId {
        let kind = if self.map { IS_MAP } else { 0 };
        RawId { origin: self.origin.into(), kind: kind.into(), epoch: self.epoch.into(), n: self.n.into() }
    }

    fn of_raw(raw: &RawId) -> Result<ObjectId, Corruption> {
        let (kind, n) = (raw.kind.get(), raw.n.get());
        ensure!(kind & !IS_MAP == 0, "object id", "kind", kind, "0 or 32768");
        ensure!(n < OBJECT_N_MAX, "object id", "number", n, format!("less than {OBJECT_N_MAX}"));
        Ok(ObjectId { origin: raw.origin.get(), map: kind == IS_MAP, epoch: raw.epoch.get(), n })
    }

    fn expect_map(self, map: bool) -> Result<ObjectId, Corruption> {
        let name = |map| if map { "a map object" } else { "a segment" };
        ensure!(self.map == map, "object id", "kind", name(self.map), name(map));
        Ok(self)
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.map { "map" } else { "seg" };
        write!(f, "{kind} {:x}-{:x}", self.epoch, self.n)?;
        if self.origin > 0 { write!(f, " of origin {}", self.origin) } else { Ok(()) }
    }
}

/// A part of a map object, and the checksum that its bytes must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectRef {
    /// The object.
    pub id: ObjectId,
    /// Offset of the part, bytes.
    pub off: u32,
    /// Length of the part, bytes, never zero.
    pub len: u32,
    /// xxh64 of its bytes.
    pub xxh: u64,
}

impl ObjectRef {
    pub(crate) fn raw(&self) -> RawRef {
        RawRef { id: self.id.raw(), off: self.off.into(), len: self.len.into(), xxh: self.xxh.into() }
    }

    fn of_raw(raw: &RawRef) -> Result<ObjectRef, Corruption> {
        let id = ObjectId::of_raw(&raw.id)?.expect_map(true)?;
        let (off, len) = (raw.off.get(), raw.len.get());
        ensure!(len > 0, "object reference", "length", len, "more than 0");
        let fits = off.checked_add(len).is_some_and(|end| end <= OBJECT_LEN_MAX);
        ensure!(fits, "object reference", "end", u64::from(off) + u64::from(len), format!("at most {OBJECT_LEN_MAX}"));
        Ok(ObjectRef { id, off, len, xxh: raw.xxh.get() })
    }
}

/// A segment that a head lists: what replaying it needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentRef {
    /// Its name.
    pub id: ObjectId,
    /// Its whole length, bytes.
    pub len: u32,
    /// Where the directory begins.
    pub dir_off: u32,
    /// How many frames it has, each with an entry in the directory.
    pub frames: u32,
    /// xxh64 of the directory.
    pub dir_xxh: u64,
}

/// An object that nothing living names, and when that was so.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Grave {
    /// The object.
    pub id: ObjectId,
    /// Sequence of the first head that named it.
    pub born: u64,
    /// Sequence of the first head in which nothing of it lives.
    pub died: u64,
}

raw! {
    /// A grave, in a head or a page.
    32 RawGrave { id: RawId, born: U64, died: U64, }
}

impl Grave {
    pub(crate) fn raw(&self) -> RawGrave {
        RawGrave { id: self.id.raw(), born: self.born.into(), died: self.died.into() }
    }

    fn of_raw(raw: &RawGrave) -> Result<Grave, Corruption> {
        let grave = Grave { id: ObjectId::of_raw(&raw.id)?, born: raw.born.get(), died: raw.died.get() };
        ensure!(grave.born <= grave.died, "grave", "born", grave.born, format!("at most {}", grave.died));
        Ok(grave)
    }
}

/// xxh64 with the seed 0.
pub fn xxh64(bytes: &[u8]) -> u64 {
    XxHash64::oneshot(0, bytes)
}

/// xxh64 over several pieces.
pub(crate) struct Sum(XxHash64);

impl Sum {
    pub(crate) fn new() -> Sum {
        Sum(XxHash64::with_seed(0))
    }

    pub(crate) fn add(mut self, bytes: &[u8]) -> Sum {
        self.0.write(bytes);
        self
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.finish()
    }
}

/// The structs of a list of `count`, and what is behind it. `count` may be anything.
pub(crate) fn list<'a, T: FromBytes + Immutable + KnownLayout + Unaligned>(
    bytes: &'a [u8],
    count: u32,
    structure: &'static str,
) -> Result<(&'a [T], &'a [u8]), Corruption> {
    <[T]>::ref_from_prefix_with_elems(bytes, count as usize).map_err(|_| {
        Corruption::new(structure, "count", count, format!("at most {}", bytes.len() / size_of::<T>().max(1)))
    })
}

pub(crate) fn all_zero(bytes: &[u8], structure: &'static str, what: &'static str) -> Result<(), Corruption> {
    let odd = bytes.iter().find(|&&b| b != 0);
    ensure!(odd.is_none(), structure, what, odd.copied().unwrap_or(0), "zeros");
    Ok(())
}

pub(crate) fn push(out: &mut Vec<u8>, raw: &(impl IntoBytes + Immutable)) {
    out.extend_from_slice(raw.as_bytes());
}

#[cfg(test)]
mod tests;
