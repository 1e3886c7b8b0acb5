//! The geometry of chunks: pure functions from an offset in a chunk to places on its devices, and back.
//!
//! A chunk is a range of logical addresses, spread over *stripes*: equally long extents of devices. Copies profiles
//! (single, dup, raid1*) keep the whole chunk in each stripe. Striped profiles cut the chunk into units of
//! [`STRIPE_LEN`], and put a *row* of them, one per data stripe, at the same offset in all stripes: raid0 in order,
//! raid10 each unit on a pair of neighbouring stripes, raid5 and raid6 with parity units after the data units and the
//! whole row rotated by one stripe per row.
//!
//! Invariants (tested): every byte of a chunk has as many places as the profile has copies, all different; no two bytes
//! share a place; all places are inside the stripes; `logical_of` is the inverse.

use oleo_format::{BlockGroupFlags, ByteLen, Chunk, Corruption, DevId, Key, Logical, Physical, Stripe, TreeId};
use uuid::Uuid;

use crate::profile::Profile;

/// The unit of striping in bytes; the format has a field for it, but no other value.
pub const STRIPE_LEN: u64 = 64 << 10;

/// One of a chunk's extents on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StripeAt {
    /// The device.
    pub devid: DevId,
    /// The device's own uuid.
    pub dev_uuid: Uuid,
    /// The offset of the extent on the device.
    pub offset: Physical,
}

/// A chunk: a range of logical addresses and its stripes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChunkMap {
    /// The first logical address.
    pub start: Logical,
    /// Logical bytes.
    pub len: ByteLen,
    /// Its type, and the bit of its profile.
    pub flags: BlockGroupFlags,
    /// How its bytes are spread.
    pub profile: Profile,
    /// Its extents on devices.
    pub stripes: Vec<StripeAt>,
    /// Other fields of its item, which are not used.
    pub hints: Hints,
}

/// Fields of a chunk item that are kept as they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hints {
    /// Bytes of a sector.
    pub sector_size: u32,
    /// Bytes.
    pub io_align: u32,
    /// Bytes.
    pub io_width: u32,
    /// 2 for raid10.
    pub sub_stripes: u16,
}

impl Hints {
    /// Those of a new chunk.
    pub fn new(profile: Profile, sector_size: u32) -> Hints {
        let unit = STRIPE_LEN as u32;
        Hints { sector_size, io_align: unit, io_width: unit, sub_stripes: profile.shape().sub_stripes }
    }
}

/// A run of a chunk's bytes that is contiguous on every device with a copy of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Bytes from the start of the chunk.
    pub at: u64,
    /// Bytes.
    pub len: u64,
    /// The stripe with the first copy; further copies are in the stripes that follow.
    pub stripe: usize,
    /// Number of copies.
    pub copies: usize,
    /// Bytes from the start of the stripe, in each of them.
    pub offset: u64,
}

impl ChunkMap {
    /// The map of a chunk that starts at `start`, everything about it checked that can be without others.
    pub fn new(start: Logical, chunk: &Chunk, sectorsize: u32) -> Result<ChunkMap, Corruption> {
        let flags = chunk.flags;
        let known = BlockGroupFlags::TYPE_MASK | BlockGroupFlags::PROFILE_MASK | BlockGroupFlags::REMAPPED;
        let profile = Profile::of(flags)
            .filter(|_| known.contains(flags) && types_are_sound(flags))
            .ok_or_else(|| bad(start, "type", format_args!("{:#x}", flags.bits()), "a type and at most one profile"))?;
        if chunk.stripe_len.0 != STRIPE_LEN {
            return Err(bad(start, "stripe_len", chunk.stripe_len, STRIPE_LEN));
        }
        if profile == Profile::Raid10 && chunk.sub_stripes != 2 {
            return Err(bad(start, "sub_stripes", chunk.sub_stripes, 2));
        }
        let map = ChunkMap {
            start,
            len: chunk.length,
            flags,
            profile,
            stripes: chunk.stripes.iter().map(StripeAt::from).collect(),
            hints: Hints {
                sector_size: chunk.sector_size,
                io_align: chunk.io_align,
                io_width: chunk.io_width,
                sub_stripes: chunk.sub_stripes,
            },
        };
        map.check(sectorsize)?;
        Ok(map)
    }

    /// The same from the bytes of a CHUNK_ITEM.
    pub fn parse(start: Logical, item: &[u8], sectorsize: u32) -> Result<ChunkMap, Corruption> {
        let chunk = Chunk::parse(item).map_err(|e| e.within(start))?;
        ChunkMap::new(start, &chunk, sectorsize)
    }

    /// Numbers of stripes that fit the profile, and lengths that leave room for arithmetic.
    pub(crate) fn check(&self, sectorsize: u32) -> Result<(), Corruption> {
        let count = self.stripes.len();
        let shape = self.profile.shape();
        let per_device = usize::from(shape.stripes_per_device);
        let min = usize::from(shape.devices_min) * per_device;
        let max = shape.devices_max.map_or(usize::MAX, |n| usize::from(n) * per_device);
        if count < min || count > max || !count.is_multiple_of(usize::from(shape.devices_step)) {
            return Err(bad(self.start, "number of stripes", count, format_args!("right for {}", self.profile)));
        }
        let unit = u64::from(sectorsize);
        if !self.start.0.is_multiple_of(unit) {
            return Err(bad(self.start, "start", self.start, format_args!("a multiple of {unit}")));
        }
        if self.len.0 == 0 || !self.len.0.is_multiple_of(unit) || self.start.checked_add(self.len).is_none() {
            return Err(bad(self.start, "length", self.len, format_args!("a multiple of {unit} that fits")));
        }
        // Places are computed in whole stripe units, so the last may reach one unit beyond the stripe's length.
        let room = self.stripe_bytes().0.checked_add(STRIPE_LEN);
        for stripe in &self.stripes {
            if room.and_then(|room| stripe.offset.0.checked_add(room)).is_none() {
                return Err(bad(self.start, "offset of a stripe", stripe.offset, "one that leaves room"));
            }
        }
        Ok(())
    }

    /// The chunk as it is written.
    pub fn chunk(&self) -> Chunk {
        let stripe = |s: &StripeAt| Stripe {
            devid: s.devid.0.into(),
            offset: s.offset.0.into(),
            dev_uuid: s.dev_uuid.into_bytes(),
        };
        Chunk {
            length: self.len,
            owner: TreeId::EXTENT,
            stripe_len: ByteLen(STRIPE_LEN),
            flags: self.flags,
            io_align: self.hints.io_align,
            io_width: self.hints.io_width,
            sector_size: self.hints.sector_size,
            sub_stripes: self.hints.sub_stripes,
            stripes: self.stripes.iter().map(stripe).collect(),
        }
    }

    /// The key of its item.
    pub fn key(&self) -> Key {
        Chunk::key(self.start)
    }

    /// The first logical address behind it.
    pub fn end(&self) -> Logical {
        self.start + self.len
    }

    /// Whether an address is in it.
    pub fn contains(&self, at: Logical) -> bool {
        self.start <= at && at < self.end()
    }

    /// Number of stripes with different data.
    pub fn data_stripes(&self) -> u64 {
        self.profile.data_stripes(self.stripes.len() as u64).max(1)
    }

    /// The length of each stripe: of the extent on the device, in bytes.
    pub fn stripe_bytes(&self) -> ByteLen {
        ByteLen(self.len.0 / self.data_stripes())
    }

    /// Data bytes of a row, if it has parity; else 0.
    pub fn row_len(&self) -> ByteLen {
        ByteLen(if self.profile.has_parity() { self.data_stripes() * STRIPE_LEN } else { 0 })
    }

    /// Whether it is for the chunk tree.
    pub(crate) fn is_system(&self) -> bool {
        self.flags.contains(BlockGroupFlags::SYSTEM)
    }

    /// Whether each stripe is as long as its units together, so that every row is whole.
    pub fn has_whole_rows(&self) -> bool {
        self.len.0.is_multiple_of(self.data_stripes() * STRIPE_LEN)
    }

    /// The piece that begins at byte `at` of the chunk (inside it) and is at most `len_max` bytes long.
    pub fn piece(&self, at: u64, len_max: u64) -> Piece {
        debug_assert!(at < self.len.0);
        let len = len_max.min(self.len.0 - at);
        let copies = usize::from(self.profile.shape().copies);
        match self.profile {
            Profile::Single | Profile::Dup | Profile::Raid1 | Profile::Raid1c3 | Profile::Raid1c4 => {
                Piece { at, len, stripe: 0, copies, offset: at }
            }
            Profile::Raid0 | Profile::Raid10 | Profile::Raid5 | Profile::Raid6 => {
                let (unit, in_unit) = (at / STRIPE_LEN, at % STRIPE_LEN);
                let (row, index) = (unit / self.data_stripes(), (unit % self.data_stripes()) as usize);
                let stripe = if self.profile.has_parity() { self.rotated(row, index) } else { index * copies };
                let len = len.min(STRIPE_LEN - in_unit);
                Piece { at, len, stripe, copies, offset: row * STRIPE_LEN + in_unit }
            }
        }
    }

    /// All pieces of a range that is inside the chunk.
    pub fn pieces(&self, at: u64, len: u64) -> impl Iterator<Item = Piece> {
        let end = at + len;
        debug_assert!(end <= self.len.0);
        let mut next = at;
        std::iter::from_fn(move || {
            let piece = (next < end).then(|| self.piece(next, end - next))?;
            next += piece.len;
            Some(piece)
        })
    }

    /// The place of a piece's byte in one of the stripes that have it.
    pub fn physical(&self, stripe: usize, offset: u64) -> Physical {
        Physical(self.stripes[stripe].offset.0 + offset)
    }

    /// For chunks with parity: the stripe that holds unit `index` of a row. Data units come first, then P, then Q.
    pub fn rotated(&self, row: u64, index: usize) -> usize {
        let count = self.stripes.len() as u64;
        ((row % count + index as u64) % count) as usize
    }

    /// For chunks with parity: which unit of the row at `offset` a stripe holds.
    pub fn unit_of(&self, stripe: usize, offset: u64) -> usize {
        let count = self.stripes.len() as u64;
        ((stripe as u64 + count - (offset / STRIPE_LEN) % count) % count) as usize
    }

    /// The byte of the chunk that lies at `offset` of a stripe; `None` for parity, and beyond the chunk's end.
    pub fn logical_of(&self, stripe: usize, offset: u64) -> Option<u64> {
        if offset >= self.stripe_bytes().0.next_multiple_of(STRIPE_LEN) {
            return None;
        }
        let (row, in_unit) = (offset / STRIPE_LEN, offset % STRIPE_LEN);
        let data = self.data_stripes();
        let index = match self.profile {
            Profile::Raid0 => stripe as u64,
            Profile::Raid10 => stripe as u64 / 2,
            Profile::Raid5 | Profile::Raid6 => Some(self.unit_of(stripe, offset) as u64).filter(|&u| u < data)?,
            _ => return Some(offset).filter(|&at| at < self.len.0),
        };
        Some((row * data + index) * STRIPE_LEN + in_unit).filter(|&at| at < self.len.0)
    }

    /// Logical ranges that must not be given out because a superblock mirror lies in them, or beside them in the same
    /// stripe unit; for chunks with parity, the whole row. Sorted, without overlaps.
    pub fn super_ranges(&self) -> Vec<(Logical, ByteLen)> {
        let mut starts = Vec::new();
        let row_len = if self.profile.has_parity() { STRIPE_LEN * self.data_stripes() } else { STRIPE_LEN };
        for (index, stripe) in self.stripes.iter().enumerate() {
            for mirror in oleo_format::SUPER_OFFSETS {
                let Some(offset) = mirror.checked_sub(stripe.offset.0).filter(|&o| o < self.stripe_bytes().0) else {
                    continue;
                };
                let row = offset / STRIPE_LEN;
                let at = match self.profile.has_parity() {
                    true => Some(row * row_len),
                    false => self.logical_of(index, row * STRIPE_LEN),
                };
                starts.extend(at.filter(|&at| at < self.len.0));
            }
        }
        starts.sort_unstable();
        starts.dedup();
        starts.iter().map(|&at| (self.start + ByteLen(at), ByteLen(row_len.min(self.len.0 - at)))).collect()
    }

    /// Logical ranges that must not be allocated: [`super_ranges`](Self::super_ranges), and addresses before that of
    /// the first superblock, which chunks of old volumes may have. No superblock could name a block at address 0, since
    /// 0 means none. Sorted, without overlaps.
    pub fn withheld_ranges(&self) -> Vec<(Logical, ByteLen)> {
        let mut ranges = self.super_ranges();
        let end = self.end().0.min(oleo_format::SUPER_OFFSETS[0]);
        if self.start.0 < end {
            // A part of it inside a mirror's unit or row is withheld anyway.
            let end = ranges.first().map_or(end, |(first, _)| end.min(first.0));
            if self.start.0 < end {
                ranges.insert(0, (self.start, ByteLen(end - self.start.0)));
            }
        }
        ranges
    }
}

impl From<&Stripe> for StripeAt {
    fn from(s: &Stripe) -> StripeAt {
        StripeAt {
            devid: DevId(s.devid.get()),
            dev_uuid: Uuid::from_bytes(s.dev_uuid),
            offset: Physical(s.offset.get()),
        }
    }
}

/// System or the remap tree, each alone and in its place; or data, metadata, or both.
fn types_are_sound(flags: BlockGroupFlags) -> bool {
    let types = flags.types();
    let alone = [BlockGroupFlags::SYSTEM, BlockGroupFlags::METADATA_REMAP];
    !types.is_empty()
        && alone.iter().all(|kind| !types.contains(*kind) || flags.difference(BlockGroupFlags::PROFILE_MASK) == *kind)
}

#[cold]
fn bad(start: Logical, what: &'static str, have: impl std::fmt::Display, want: impl std::fmt::Display) -> Corruption {
    Corruption::new("chunk", what, have, want).within(start)
}

#[cfg(test)]
mod tests;
