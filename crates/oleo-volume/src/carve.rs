//! Carves chunks out of devices: where a new one would be placed, how long it may be, and the items that record it.
//!
//! Normal path: (1) the caller needs space and calls `propose_chunk`, which changes nothing; (2) it calls `add_chunk`,
//! after which the addresses can be read and written and the devices' used bytes include it; (3) it puts the plan's
//! items into the chunk and device trees of its transaction, and, for a system chunk, stamps the superblock. For a
//! chunk that has become empty: (1) `retire_chunk` returns the items to delete and to change; (2) once that transaction
//! is durable, `remove_chunk` frees the places on the devices.
//!
//! Rules, as in btrfs: devices with the longest free run first, then with the most free space, then by number; the
//! first MiB of a device is never used; lengths as in [`Limits`]. Superblock mirrors may lie inside chunks;
//! `ChunkMap::withheld_ranges` keeps them from being allocated.
//! Deterministic: the same chunks and sizes give the same plan. There are no random numbers in it: devices' UUIDs are those of
//! their DEV_ITEMs, the chunk tree's UUID is that of the blocks on disk or was given to `create`.

use std::collections::BTreeMap;
use std::sync::Arc;

use oleo_device::Device;
use oleo_format::{
    BlockGroupFlags, ByteLen, ChunkItem, DevExtent, DevId, DiskKey, ItemType, Key, Logical, Physical,
    SYS_CHUNK_ARRAY_LEN, Stripe, TreeId, item_len_max,
};
use zerocopy::IntoBytes;

use crate::Volume;
use crate::error::VolumeError;
use crate::geometry::{ChunkMap, Hints, STRIPE_LEN, StripeAt};
use crate::member::{KeptFree, Member};
use crate::places::Places;
use crate::profile::{Profile, ProfileShape};
use crate::table::Table;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The beginning of every device that chunks keep away from, in bytes.
pub(crate) const DEVICE_HEAD_LEN: u64 = MIB;
/// The least logical address of a chunk: lower ones would be mistaken for the place of the superblock.
const LOGICAL_MIN: u64 = MIB;

/// Most stripes of a chunk with parity: the weights of Q, powers of 2 in GF(2⁸), repeat after 255.
pub const PARITY_STRIPES_MAX: usize = 255;

/// What a chunk is wanted for.
#[derive(Clone, Copy, Debug)]
pub struct ChunkWant {
    /// Its type, and the bit of its profile.
    pub flags: BlockGroupFlags,
    /// Most logical bytes; `None`: as is usual.
    pub len_max: Option<ByteLen>,
    /// Its logical start; `None`: behind the last chunk.
    pub start: Option<Logical>,
}

impl ChunkWant {
    /// A chunk of the usual length behind the last.
    pub fn new(flags: BlockGroupFlags) -> ChunkWant {
        ChunkWant { flags, len_max: None, start: None }
    }
}

/// A chunk that could be made, and the items that record it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChunkPlan {
    /// The chunk.
    pub map: ChunkMap,
    /// Its item in the chunk tree.
    pub chunk_item: (Key, Vec<u8>),
    /// Its items in the device tree.
    pub dev_extents: Vec<(Key, Vec<u8>)>,
    /// The items of its devices in the chunk tree, as they are with this chunk.
    pub dev_items: Vec<(Key, Vec<u8>)>,
}

/// What to take out of the trees, and what to change, when a chunk goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChunkRemoval {
    /// The chunk.
    pub map: Arc<ChunkMap>,
    /// Its item in the chunk tree.
    pub chunk_key: Key,
    /// Its items in the device tree.
    pub dev_extent_keys: Vec<Key>,
    /// The items of its devices in the chunk tree, as they are without this chunk.
    pub dev_items: Vec<(Key, Vec<u8>)>,
}

/// Most bytes of a stripe and of a whole chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Limits {
    stripe_max: u64,
    chunk_max: u64,
}

impl Limits {
    /// Data (and mixed) 10 GiB, metadata 256 MiB or from 50 GiB of devices on 1 GiB, system 32 MiB; a stripe at most
    /// 1 GiB; a chunk at most a tenth of all devices.
    fn of(flags: BlockGroupFlags, devices_bytes: u64) -> Limits {
        let usual = if flags.contains(BlockGroupFlags::DATA) {
            10 * GIB
        } else if flags.contains(BlockGroupFlags::SYSTEM) {
            32 * MIB
        } else if devices_bytes > 50 * GIB {
            GIB
        } else {
            256 * MIB
        };
        Limits { stripe_max: usual.min(GIB), chunk_max: usual.min(devices_bytes / 10) }
    }
}

/// The free space of a device that may get chunks.
pub(crate) struct Room {
    member: Arc<Member>,
    /// Free runs, start and length, in whole stripe units.
    holes: Vec<(u64, u64)>,
}

impl Room {
    /// A stripe lies there from now on.
    pub(crate) fn take(&mut self, devid: DevId, start: u64, len: u64) {
        if devid != self.member.devid {
            return;
        }
        let end = start.saturating_add(len);
        let cut = |(from, have): (u64, u64)| {
            let before = (from, have.min(start.saturating_sub(from)));
            let after = (from.max(end), (from + have).saturating_sub(from.max(end)));
            [before, after].into_iter().filter(|hole| hole.1 > 0)
        };
        self.holes = std::mem::take(&mut self.holes).into_iter().flat_map(cut).collect();
    }

    fn candidate(&self, want: u64, min: u64) -> Option<Candidate> {
        let fits = self.holes.iter().find(|hole| hole.1 >= want);
        // Of equally long ones the first.
        let longest = || self.holes.iter().rev().max_by_key(|hole| hole.1);
        let hole = fits.or_else(longest).filter(|hole| hole.1 >= min)?;
        let free = self.holes.iter().map(|hole| hole.1).sum();
        Some(Candidate { member: self.member.clone(), hole: (hole.0, hole.1.min(want)), free })
    }
}

/// A device with room.
struct Candidate {
    member: Arc<Member>,
    /// The run that would be used: the first that is as long as could be wanted, or else the longest.
    hole: (u64, u64),
    /// All free bytes.
    free: u64,
}

impl Volume {
    /// Proposes a place for a new chunk. Changes nothing.
    ///
    /// # Errors
    /// [`VolumeError::NoRoom`]: too few devices have space for a stripe.
    pub fn propose_chunk(&self, want: &ChunkWant) -> Result<ChunkPlan, VolumeError> {
        let (map, candidates) = self.place_chunk(&self.rooms(), want)?;
        map.check(self.rules.sectorsize)?;
        if map.is_system() && !self.fits_system_array(&map) {
            return Err(VolumeError::SystemArrayFull);
        }
        Ok(self.plan(map, &candidates))
    }

    /// Places a chunk in the given free space.
    pub(crate) fn place(&self, rooms: &[Room], want: &ChunkWant) -> Result<ChunkMap, VolumeError> {
        Ok(self.place_chunk(rooms, want)?.0)
    }

    fn place_chunk(&self, rooms: &[Room], want: &ChunkWant) -> Result<(ChunkMap, Vec<Candidate>), VolumeError> {
        let profile = Profile::of(want.flags)
            .ok_or_else(|| VolumeError::Unsupported { what: format!("chunk type {:#x}", want.flags.bits()) })?;
        let shape = profile.shape();
        let per_device = u64::from(shape.stripes_per_device);
        let limits = Limits::of(want.flags, self.writable_bytes());
        let (most, least) = (limits.stripe_max * per_device, STRIPE_LEN * per_device);
        let mut candidates: Vec<Candidate> = rooms.iter().filter_map(|room| room.candidate(most, least)).collect();
        candidates.sort_by_key(|c| (std::cmp::Reverse(c.hole.1), std::cmp::Reverse(c.free), c.member.devid));
        let count = self.device_count(want.flags, shape, candidates.len())?;
        candidates.truncate(count);
        let stripe_len = stripe_len(&candidates, profile, limits, want.len_max);
        if stripe_len == 0 {
            return Err(VolumeError::NoRoom { flags: want.flags, devices: 0, want: count });
        }
        let mut stripes = Vec::new();
        for c in &candidates {
            for i in 0..per_device {
                let offset = Physical(c.hole.0 + i * stripe_len);
                stripes.push(StripeAt { devid: c.member.devid, dev_uuid: c.member.uuid, offset });
            }
        }
        let data_stripes = profile.data_stripes(stripes.len() as u64);
        let end = self.chunks.read().end().unwrap_or(Logical(0));
        let start = want.start.unwrap_or(Logical(end.0.max(LOGICAL_MIN).next_multiple_of(STRIPE_LEN)));
        let map = ChunkMap {
            start,
            len: ByteLen(stripe_len * data_stripes),
            flags: want.flags,
            profile,
            stripes,
            hints: Hints::new(profile, self.rules.sectorsize),
        };
        Ok((map, candidates))
    }

    /// Makes a proposed chunk part of the map. Two chunks at one address are a mistake of the caller.
    pub fn add_chunk(&self, plan: &ChunkPlan) {
        let members = self.members.read();
        let added = self.chunks.change(|chunks| chunks.insert(plan.map.clone(), &members));
        assert!(added.is_ok(), "a plan is added before the next is made: {added:?}");
        for stripe in &plan.map.stripes {
            change_used(&members, stripe.devid, |used| used.saturating_add(plan.map.stripe_bytes().0));
        }
    }

    /// Begins to remove a chunk: it no longer counts as used, but keeps its place, and can be read, until
    /// [`remove_chunk`](Self::remove_chunk).
    pub fn retire_chunk(&self, start: Logical) -> Result<ChunkRemoval, VolumeError> {
        let members = self.members.read();
        let map = self.chunks.change(|chunks| {
            let placed = chunks.get(start).cloned().ok_or(VolumeError::Unmapped { at: start, len: 1 })?;
            if chunks.retire(start) {
                give_back(&members, &placed.map);
            }
            Ok::<_, VolumeError>(placed.map)
        })?;
        let extents = map.stripes.iter().map(|s| Key::new(s.devid.0, ItemType::DEV_EXTENT, s.offset.0));
        let of_chunk = members.iter().filter(|m| map.stripes.iter().any(|s| s.devid == m.devid));
        Ok(ChunkRemoval {
            chunk_key: map.key(),
            dev_extent_keys: extents.collect(),
            dev_items: of_chunk.map(|m| dev_item(m, 0)).collect(),
            map,
        })
    }

    /// Forgets a chunk; its places on the devices become free. Unknown chunks are ignored.
    pub fn remove_chunk(&self, start: Logical) {
        let members = self.members.read();
        self.chunks.change(|chunks| {
            let retired = chunks.is_retired(start);
            if let Some(placed) = chunks.remove(start)
                && !retired
            {
                give_back(&members, &placed.map);
            }
        });
    }

    /// Logical bytes that new chunks of this profile could have in all. Free space that only very small or oddly
    /// placed chunks could use counts too, so the last chunks may turn out smaller.
    pub fn unallocated(&self, flags: BlockGroupFlags) -> ByteLen {
        let Some(profile) = Profile::of(flags) else { return ByteLen(0) };
        let shape = profile.shape();
        let rooms = self.rooms();
        let free: Vec<u64> =
            rooms.iter().filter_map(|room| room.candidate(u64::MAX, STRIPE_LEN)).map(|c| c.free).collect();
        if free.len() < usize::from(shape.devices_min) {
            return ByteLen(0);
        }
        let copies = u64::from(shape.copies);
        let bytes = match profile {
            Profile::Dup => free.iter().map(|f| f / copies).sum(),
            Profile::Raid5 | Profile::Raid6 => parity_max(free, shape),
            _ => spread_max(&free, copies),
        };
        ByteLen(bytes / STRIPE_LEN * STRIPE_LEN)
    }

    /// Changes how much of a device the volume may use, and returns the device's item. A file grows immediately; it is cut
    /// only by [`cut_device`](Self::cut_device), when the change is durable. Space that chunks have is not given up.
    pub fn resize_device(&self, devid: DevId, total: ByteLen) -> Result<(Key, Vec<u8>), VolumeError> {
        let member = find(&self.members.read(), devid)?.clone();
        let device = member.to_write()?;
        let end = self.chunks.read().places(devid).and_then(Places::end);
        if end.unwrap_or(DEVICE_HEAD_LEN) > total.0 {
            let what = format!("shrinking device {devid} to {total} bytes while there are chunks beyond that");
            return Err(VolumeError::Unsupported { what });
        }
        if let Some(target) = member.target().filter(|target| target.len() < total.0) {
            let (name, len) = (target.name(), target.len());
            let what =
                format!("resizing device {devid} to {total} bytes while {name}, which has {len}, takes its place");
            return Err(VolumeError::Unsupported { what });
        }
        if device.len() < total.0 {
            device.set_len(total.0)?;
        }
        member.item.lock().total_bytes = total.0.into();
        Ok(dev_item(&member, 0))
    }

    /// Keeps new chunks away from the space behind `end` of a device, as long as the result lives, so that chunks can
    /// be moved away from there before it shrinks. A chunk that was proposed already may still be placed there.
    pub fn keep_free_behind(&self, devid: DevId, end: ByteLen) -> Result<KeptFree, VolumeError> {
        Ok(KeptFree::new(find(&self.members.read(), devid)?.clone(), end))
    }

    /// The length of a device in bytes, however much of it the volume uses.
    pub fn device_len(&self, devid: DevId) -> Result<ByteLen, VolumeError> {
        Ok(ByteLen(find(&self.members.read(), devid)?.to_write()?.len()))
    }

    /// Cuts a file off behind the part that the volume may use.
    pub fn cut_device(&self, devid: DevId) -> Result<(), VolumeError> {
        let member = find(&self.members.read(), devid)?.clone();
        let total = member.item.lock().total_bytes.get();
        let device = member.to_write()?;
        if device.len() > total {
            device.set_len(total)?;
        }
        Ok(())
    }

    /// The free space of the devices that may get chunks.
    pub(crate) fn rooms(&self) -> Vec<Room> {
        let members = self.members.read();
        let chunks = self.chunks.read();
        let none = Places::default();
        let room = |member: &Arc<Member>| Room {
            member: member.clone(),
            holes: chunks.places(member.devid).unwrap_or(&none).holes(DEVICE_HEAD_LEN, member.room_end()).collect(),
        };
        members.iter().filter(|m| m.takes_chunks()).map(room).collect()
    }

    fn writable_bytes(&self) -> u64 {
        let members = self.members.read();
        members.iter().filter(|m| m.takes_chunks()).fold(0, |sum: u64, m| sum.saturating_add(m.total()))
    }

    /// How many of `there` devices a chunk gets.
    fn device_count(&self, flags: BlockGroupFlags, shape: ProfileShape, there: usize) -> Result<usize, VolumeError> {
        let per_device = usize::from(shape.stripes_per_device);
        let room = match flags.contains(BlockGroupFlags::SYSTEM) {
            // Two system chunks must fit into the superblock's array, or none could ever be replaced.
            true => SYS_CHUNK_ARRAY_LEN / 2 - size_of::<DiskKey>(),
            false => item_len_max(self.rules.nodesize),
        };
        let stripes_max = (room - size_of::<ChunkItem>()) / size_of::<Stripe>();
        let stripes_max = if shape.parities > 0 { stripes_max.min(PARITY_STRIPES_MAX) } else { stripes_max };
        let max = shape.devices_max.map_or(usize::MAX, usize::from).min(stripes_max / per_device);
        let step = usize::from(shape.devices_step);
        let count = there.min(max) / step * step;
        let want = usize::from(shape.devices_min);
        if count < want {
            return Err(VolumeError::NoRoom { flags, devices: there, want });
        }
        Ok(count)
    }

    fn plan(&self, map: ChunkMap, candidates: &[Candidate]) -> ChunkPlan {
        let extent = DevExtent {
            chunk_tree: TreeId::CHUNK.0.into(),
            chunk_objectid: Key::FIRST_CHUNK_TREE.into(),
            chunk_offset: map.start.0.into(),
            length: map.stripe_bytes().0.into(),
            chunk_tree_uuid: self.chunk_tree_uuid.into_bytes(),
        };
        let key = |s: &StripeAt| Key::new(s.devid.0, ItemType::DEV_EXTENT, s.offset.0);
        let mut dev_extents: Vec<_> = map.stripes.iter().map(|s| (key(s), extent.as_bytes().to_vec())).collect();
        dev_extents.sort();
        let grows = map.stripe_bytes().0 * u64::from(map.profile.shape().stripes_per_device);
        let mut dev_items: Vec<_> = candidates.iter().map(|c| dev_item(&c.member, grows)).collect();
        dev_items.sort();
        ChunkPlan { chunk_item: (map.key(), map.chunk().encode()), dev_extents, dev_items, map }
    }
}

/// The bytes of each stripe: as long as the shortest hole allows, within the limits, in whole stripe units.
fn stripe_len(candidates: &[Candidate], profile: Profile, limits: Limits, len_max: Option<ByteLen>) -> u64 {
    let shape = profile.shape();
    let per_device = u64::from(shape.stripes_per_device);
    let data_stripes = profile.data_stripes(candidates.len() as u64 * per_device).max(1);
    let mut len = candidates.iter().map(|c| c.hole.1).min().unwrap_or(0) / per_device;
    if len.saturating_mul(data_stripes) > limits.chunk_max {
        len = len.min((limits.chunk_max / data_stripes).next_multiple_of(16 * MIB));
    }
    if let Some(max) = len_max {
        len = len.min((max.0 / data_stripes).max(STRIPE_LEN));
    }
    len / STRIPE_LEN * STRIPE_LEN
}

/// The most bytes that can be stored `copies` times on devices with this much room, each copy on another device: the
/// largest `n` for which the rooms, none counted beyond `n`, add up to `copies · n`.
fn spread_max(free: &[u64], copies: u64) -> u64 {
    let fits = |n: u64| {
        let room: u128 = free.iter().map(|&f| u128::from(f.min(n))).sum();
        room >= u128::from(n) * u128::from(copies)
    };
    let total: u128 = free.iter().map(|&f| u128::from(f)).sum();
    let (mut low, mut high) = (0, u64::try_from(total / u128::from(copies)).unwrap_or(u64::MAX));
    if copies == 1 {
        return high;
    }
    // 64 halvings at most.
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

/// The most data that chunks with parity can have on devices with this much room, each over all devices that have some left.
fn parity_max(mut free: Vec<u64>, shape: ProfileShape) -> u64 {
    free.sort_unstable();
    let (mut below, mut bytes) = (0, 0_u64);
    for (index, &room) in free.iter().enumerate() {
        let devices = free.len() - index;
        if devices < usize::from(shape.devices_min) {
            break;
        }
        let data = (devices - usize::from(shape.parities)) as u64;
        bytes = bytes.saturating_add((room - below).saturating_mul(data));
        below = room;
    }
    bytes
}

/// The stripes on each device: start and end, sorted.
pub(crate) fn used_runs(chunks: &Table) -> BTreeMap<DevId, Vec<(u64, u64)>> {
    let mut runs: BTreeMap<DevId, Vec<(u64, u64)>> = BTreeMap::new();
    for placed in chunks.iter() {
        let len = placed.map.stripe_bytes().0;
        for s in &placed.map.stripes {
            runs.entry(s.devid).or_default().push((s.offset.0, s.offset.0.saturating_add(len)));
        }
    }
    runs.values_mut().for_each(|r| r.sort_unstable());
    runs
}

fn find(members: &[Arc<Member>], devid: DevId) -> Result<&Arc<Member>, VolumeError> {
    members.iter().find(|m| m.devid == devid).ok_or(VolumeError::OnMissing { devid })
}

/// Key and bytes of a device's item, with `more` bytes used.
pub(crate) fn dev_item(member: &Member, more: u64) -> (Key, Vec<u8>) {
    let mut item = *member.item.lock();
    item.bytes_used = item.bytes_used.get().saturating_add(more).into();
    (Key::new(Key::DEV_ITEMS, ItemType::DEV_ITEM, member.devid.0), item.as_bytes().to_vec())
}

fn give_back(members: &[Arc<Member>], map: &ChunkMap) {
    for stripe in &map.stripes {
        change_used(members, stripe.devid, |used| used.saturating_sub(map.stripe_bytes().0));
    }
}

fn change_used(members: &[Arc<Member>], devid: DevId, change: impl Fn(u64) -> u64) {
    if let Some(member) = members.iter().find(|m| m.devid == devid) {
        let mut item = member.item.lock();
        item.bytes_used = change(item.bytes_used.get()).into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: room for copies is neither promised twice nor forgotten.
    #[test]
    fn copies_need_different_devices() {
        assert_eq!(spread_max(&[10, 10, 10], 2), 15);
        assert_eq!(spread_max(&[100, 10, 10], 2), 20);
        assert_eq!(spread_max(&[100, 10, 10], 3), 10);
        assert_eq!(spread_max(&[100, 10], 1), 110);
        assert_eq!(spread_max(&[100], 2), 0);
    }

    /// Goal: parity takes its part of what devices have in common, and too few devices have nothing.
    #[test]
    fn parity_takes_its_part() {
        let (five, six) = (Profile::Raid5.shape(), Profile::Raid6.shape());
        assert_eq!(parity_max(vec![10, 10, 10], five), 20);
        assert_eq!(parity_max(vec![30, 10, 20], five), 10 * 2 + 10);
        assert_eq!(parity_max(vec![30, 10, 20], six), 10);
        assert_eq!(parity_max(vec![30, 40], six), 0);
        assert_eq!(parity_max(vec![30], five), 0);
    }

    #[test]
    fn lengths_are_the_usual_ones() {
        let data = BlockGroupFlags::DATA;
        let meta = BlockGroupFlags::METADATA;
        assert_eq!(Limits::of(data, 100 * GIB), Limits { stripe_max: GIB, chunk_max: 10 * GIB });
        assert_eq!(Limits::of(data, GIB), Limits { stripe_max: GIB, chunk_max: GIB / 10 });
        assert_eq!(Limits::of(meta, 20 * GIB), Limits { stripe_max: 256 * MIB, chunk_max: 256 * MIB });
        assert_eq!(Limits::of(meta, 60 * GIB).chunk_max, GIB);
        assert_eq!(Limits::of(BlockGroupFlags::SYSTEM, 60 * GIB).chunk_max, 32 * MIB);
    }
}
