//! Records of stripes in flight: what a crash must not take from those who share a column with what is being written.
//!
//! A column is the sectors of a row at one offset of their units. Some of them are live (a state on disk names them), others are about to be
//! written. Between the writing of a sector and that of the parity the column's parity fits nothing, and a live sector whose device is lost then
//! could not be rebuilt. So before such a column is written, the parity of its live sectors alone is stored, on the device of the parity that it is
//! of: P on that of P, Q on that of Q. With that, whatever became of the others, as many devices can be lost as the profile promises.
//!
//! Normal path: (1) [`Records::write`] puts a record on all devices and flushes them; (2) the caller writes the columns and returns the
//! right to write records. The next record's flush makes that durable too, so two halves in turn are enough.
//! On opening (3) [`find`] reads both halves of every device, and (4) [`parity_after`] computes for each column what its parity has to be.
//!
//! Place: bytes 512 KiB to 1 MiB of a device, where no chunk is (`BTRFS_DEVICE_RANGE_RESERVED`) and the kernel neither reads nor writes. Boot
//! loaders might: a device is recorded on only if all of the place is zeros or bears our mark.
//!
//! Invariants: a record names the superblocks that may be the newest while its columns are being written: the last one, that which is being
//! written, if one is, and one whose writing failed; a superblock with another log is another. With any other superblock it is done with: what it is for was written before the
//! barrier of a later one. That one may name what was written beside the live sectors, too, so a record that is done with must not be applied: it would
//! take what it does not have for something that nothing names. So the names are those of the moment when it was asked what is live (`Rows::bases`), and not of
//! when the record is written: a superblock that came in between may name what was not live when that was asked.
//! Locks: one record at a time, held until what it is for is written. Crash: before (1)'s flush the columns are as they were.

use std::collections::BTreeMap;
use std::sync::Arc;

use oleo_device::{Device, DeviceError};
use oleo_format::raid6::{self, Parity, sums};
use oleo_format::{DevId, Logical, NodeRules, SuperBlock};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::geometry::{ChunkMap, STRIPE_LEN};
use crate::losses::Failure;
use crate::member::{Member, Output};

/// Where records are, bytes of a device.
const PLACE: u64 = 512 << 10;
/// Bytes of each of the two halves.
const HALF_LEN: u64 = 256 << 10;
const HALVES: u64 = 2;
/// Bytes of a header; the payload follows.
const HEADER_LEN: usize = 4096;
/// Bytes of payload that fit into a half.
pub(crate) const PAYLOAD_MAX: usize = HALF_LEN as usize - HEADER_LEN;
/// Entries that fit into a header.
pub(crate) const ENTRIES_MAX: usize = (HEADER_LEN - size_of::<HeadBytes>()) / size_of::<EntryBytes>();
/// Data units of a row that an entry can name.
const UNITS_MAX: usize = 256;
/// Superblocks that may be the newest at the same time: the last one, one with a log whose writing failed (no other log is
/// written before the next commit), and that of a commit.
const BASES_MAX: usize = 3;
const MAGIC: [u8; 8] = *b"OleoStrp";

/// A superblock.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct BaseBytes {
    generation: U64,
    root: U64,
    log_root: U64,
    log_number: U64,
}

/// What tells a superblock from others of its volume; all zeros is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Base {
    pub generation: u64,
    /// Address of the root tree.
    pub root: u64,
    /// Address of the root of the log tree; 0 for none.
    pub log_root: u64,
    /// Which log of its transaction it is: addresses of logs are used again within one.
    pub log_number: u64,
}

impl From<&SuperBlock> for Base {
    fn from(sb: &SuperBlock) -> Base {
        Base {
            generation: sb.generation.get(),
            root: sb.root.get(),
            log_root: sb.log_root.get(),
            log_number: sb.__unused_log_root_transid.get(),
        }
    }
}

impl From<BaseBytes> for Base {
    fn from(BaseBytes { generation, root, log_root, log_number }: BaseBytes) -> Base {
        let (generation, root) = (generation.get(), root.get());
        Base { generation, root, log_root: log_root.get(), log_number: log_number.get() }
    }
}

impl From<Base> for BaseBytes {
    fn from(Base { generation, root, log_root, log_number }: Base) -> BaseBytes {
        let (generation, root) = (generation.into(), root.into());
        BaseBytes { generation, root, log_root: log_root.into(), log_number: log_number.into() }
    }
}

/// The superblocks that may be the newest: the last one, then those that are being written or whose writing failed.
#[derive(Clone, Copy, Default)]
pub(crate) struct Bases([Base; BASES_MAX]);

impl Bases {
    /// `base` is the superblock on disk, and no other can be.
    pub fn only(base: Base) -> Bases {
        let mut bases = Bases::default();
        bases.0[0] = base;
        bases
    }

    /// `base` may be the superblock on disk from here on, until one is for sure; `false`, and records would not name it, if too many may.
    #[must_use]
    pub fn add(&mut self, base: Base) -> bool {
        let mut places = self.0.iter_mut().skip(1);
        places.find(|known| **known == base || **known == Base::default()).is_some_and(|known| {
            *known = base;
            true
        })
    }

    /// Those that are not known to be on disk.
    #[cfg(test)]
    pub fn others(&self) -> impl Iterator<Item = &Base> {
        self.0[1..].iter().filter(|base| **base != Base::default())
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HeadBytes {
    /// Of the header from its 32nd byte on.
    csum: [u8; 32],
    magic: [u8; 8],
    fsid: [u8; 16],
    dev_uuid: [u8; 16],
    bases: [BaseBytes; BASES_MAX],
    /// Rises by one with each record.
    number: U64,
    entries: U32,
    payload_len: U32,
    payload_csum: [u8; 32],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct EntryBytes {
    chunk: U64,
    row: U64,
    /// Bytes from the start of a unit.
    from: U32,
    len: U32,
    /// In the payload.
    at: U32,
    /// 0: P, 1: Q.
    parity: U32,
    /// A bit for each data unit whose sectors are live.
    live: [U64; UNITS_MAX / 64],
}

const _: () = assert!(size_of::<HeadBytes>() == 216 && size_of::<EntryBytes>() == 64 && ENTRIES_MAX == 60);

/// Data units of a row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Units([u64; UNITS_MAX / 64]);

impl Units {
    /// Rows of more are not recorded.
    pub const MAX: usize = UNITS_MAX;

    pub fn add(&mut self, unit: usize) {
        self.0[unit / 64] |= 1 << (unit % 64);
    }

    pub fn has(&self, unit: usize) -> bool {
        self.0.get(unit / 64).is_some_and(|word| word >> (unit % 64) & 1 == 1)
    }

    pub fn is_empty(&self) -> bool {
        *self == Units::default()
    }

    fn end(&self) -> usize {
        (0..UNITS_MAX).rev().find(|&unit| self.has(unit)).map_or(0, |unit| unit + 1)
    }
}

/// Columns with the same live units.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Columns {
    pub chunk: Logical,
    pub row: u64,
    /// Bytes from the start of a unit.
    pub from: usize,
    /// Bytes.
    pub len: usize,
    pub live: Units,
}

/// The parity of the live sectors of columns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LiveParity {
    pub columns: Columns,
    /// P, and Q if the profile has it. In a record that was read: what was found.
    pub sums: [Option<Vec<u8>>; 2],
}

impl LiveParity {
    /// Of the data units of a row in this run.
    pub fn of(columns: Columns, map: &ChunkMap, units: &[&[u8]]) -> LiveParity {
        let zeros = vec![0; columns.len];
        let live: Vec<&[u8]> = units
            .iter()
            .enumerate()
            .map(|(unit, bytes)| if columns.live.has(unit) { *bytes } else { &zeros[..] })
            .collect();
        let (mut p, mut q) = (vec![0; columns.len], vec![0; columns.len]);
        let with_q = map.profile.shape().parities > 1;
        sums(&live, &mut p, with_q.then_some(&mut q[..]));
        LiveParity { columns, sums: [Some(p), with_q.then_some(q)] }
    }
}

/// What is known of writing records. There is one, and whoever has it writes.
#[derive(Default)]
pub(crate) struct Records {
    pub number: u64,
    /// Which devices have room for them, once that was looked up.
    usable: BTreeMap<DevId, bool>,
}

/// What one record says on each device: entries and payload.
#[derive(Default)]
struct OnDevice {
    entries: Vec<EntryBytes>,
    payload: Vec<u8>,
}

impl Records {
    /// Whether records can be kept on a device. The place is read the first time.
    pub fn is_usable(&mut self, member: &Member) -> bool {
        *self.usable.entry(member.devid).or_insert_with(|| {
            let mut bytes = vec![0; (HALF_LEN * HALVES) as usize];
            let read = member.device().is_some_and(|device| device.read_at(PLACE, &mut bytes).is_ok());
            let ours = |half: &[u8]| half[32..40] == MAGIC || half.iter().all(|&byte| byte == 0);
            read && bytes.chunks(HALF_LEN as usize).all(ours)
        })
    }

    /// Makes the place of a device ours, whatever is there; whether that was something else's. Not durable.
    pub fn claim(&mut self, member: &Member) -> Result<bool, DeviceError> {
        let Ok(device) = member.to_write() else { return Ok(false) };
        if self.is_usable(member) {
            return Ok(false);
        }
        device.write_at(PLACE, &vec![0; (HALF_LEN * HALVES) as usize])?;
        self.usable.insert(member.devid, true);
        Ok(true)
    }

    /// Puts a record on all devices that can have one. Not durable: the caller flushes them all.
    /// `bases`: as they were when it was asked what is live. `parities`: with the member that each sum belongs to. They fit (see [`Budget`]).
    /// Returns what failed.
    pub fn write(
        &mut self,
        outputs: &[Output],
        rules: &NodeRules,
        bases: Bases,
        parities: &[(&LiveParity, [Option<DevId>; 2])],
    ) -> Vec<Failure> {
        let mut on: BTreeMap<DevId, OnDevice> = BTreeMap::new();
        for (live, devices) in parities {
            for (nth, (sum, devid)) in live.sums.iter().zip(devices).enumerate() {
                let (Some(sum), Some(devid)) = (sum, devid) else { continue };
                let of = on.entry(*devid).or_default();
                of.entries.push(EntryBytes {
                    chunk: live.columns.chunk.0.into(),
                    row: live.columns.row.into(),
                    from: (live.columns.from as u32).into(),
                    len: (live.columns.len as u32).into(),
                    at: (of.payload.len() as u32).into(),
                    parity: (nth as u32).into(),
                    live: live.columns.live.0.map(U64::new),
                });
                of.payload.extend_from_slice(sum);
            }
        }
        let number = self.number + 1;
        let at = PLACE + number % HALVES * HALF_LEN;
        let mut failed = Vec::new();
        // What takes another's place is copied from it after a crash, too.
        for output in outputs.iter().filter(|output| !output.is_target) {
            let member = &output.member;
            if !self.is_usable(member) {
                continue;
            }
            let of = on.remove(&member.devid).unwrap_or_default();
            let head = header(rules, member, bases, number, &of);
            let done = output.device.write_batch(&[oleo_device::WriteReq { offset: at, parts: &[&head, &of.payload] }]);
            failed.extend(done.err().map(|error| Failure::new(output, error)));
        }
        // One that found no room takes the same half again, since the other may still be needed.
        if !failed.iter().any(|failure| failure.is_full()) {
            self.number = number;
        }
        failed
    }
}

fn header(rules: &NodeRules, member: &Member, bases: Bases, number: u64, of: &OnDevice) -> Vec<u8> {
    let head = HeadBytes {
        csum: [0; 32],
        magic: MAGIC,
        fsid: rules.fsid.into_bytes(),
        dev_uuid: member.uuid.into_bytes(),
        bases: bases.0.map(BaseBytes::from),
        number: number.into(),
        entries: (of.entries.len() as u32).into(),
        payload_len: (of.payload.len() as u32).into(),
        payload_csum: rules.csum.csum(&of.payload),
    };
    let mut bytes = vec![0; HEADER_LEN];
    bytes[..size_of::<HeadBytes>()].copy_from_slice(head.as_bytes());
    let entries = of.entries.as_bytes();
    bytes[size_of::<HeadBytes>()..][..entries.len()].copy_from_slice(entries);
    let csum = rules.csum.csum(&bytes[32..]);
    bytes[..32].copy_from_slice(&csum);
    bytes
}

/// How much of one record is used, by device.
#[derive(Default)]
pub(crate) struct Budget(BTreeMap<DevId, (usize, usize)>);

impl Budget {
    /// Takes room for some sums of these lengths; `false`, and nothing is taken, if there is not enough.
    pub fn take(&mut self, wanted: &[(DevId, usize)]) -> bool {
        let mut after = self.0.clone();
        for (devid, len) in wanted {
            let (entries, bytes) = after.entry(*devid).or_default();
            (*entries, *bytes) = (*entries + 1, *bytes + len);
            if *entries > ENTRIES_MAX || *bytes > PAYLOAD_MAX {
                return false;
            }
        }
        self.0 = after;
        true
    }
}

/// The number of the newest record, and all that the two newest say, the older first. What cannot be read or is not whole is no record.
pub(crate) fn find(members: &[Arc<Member>], rules: &NodeRules, committed: Base) -> (u64, Vec<LiveParity>) {
    let mut found: BTreeMap<u64, BTreeMap<Columns, LiveParity>> = BTreeMap::new();
    for member in members.iter().filter(|m| m.is_sound() && !m.seed) {
        let Some(device) = member.device() else { continue };
        for half in 0..HALVES {
            let Some((number, entries)) = read_half(&*device, member, half, rules, committed) else { continue };
            let record = found.entry(number).or_default();
            for (columns, parity, sum) in entries {
                let live = record.entry(columns).or_insert_with(|| LiveParity { columns, sums: [None, None] });
                live.sums[parity] = Some(sum);
            }
        }
    }
    let newest = found.keys().next_back().copied().unwrap_or(0);
    let older = found.len().saturating_sub(HALVES as usize);
    (newest, found.into_values().skip(older).flat_map(BTreeMap::into_values).collect())
}

type Found = (Columns, usize, Vec<u8>);

fn read_half(
    device: &dyn Device,
    member: &Member,
    half: u64,
    rules: &NodeRules,
    committed: Base,
) -> Option<(u64, Vec<Found>)> {
    let at = PLACE + half * HALF_LEN;
    let mut bytes = vec![0; HEADER_LEN];
    device.read_at(at, &mut bytes).ok()?;
    let (head, entries) = HeadBytes::read_from_prefix(&bytes).ok()?;
    let is_ours = head.magic == MAGIC
        && head.fsid == rules.fsid.into_bytes()
        && head.dev_uuid == member.uuid.into_bytes()
        && head.bases.into_iter().any(|base| committed == base.into())
        && rules.csum.csum(&bytes[32..]) == head.csum;
    let (count, len) = (head.entries.get() as usize, head.payload_len.get() as usize);
    if !is_ours || count > ENTRIES_MAX || len > PAYLOAD_MAX {
        return None;
    }
    let mut payload = vec![0; len];
    device.read_at(at + HEADER_LEN as u64, &mut payload).ok()?;
    if rules.csum.csum(&payload) != head.payload_csum {
        return None;
    }
    let entries = <[EntryBytes]>::ref_from_prefix_with_elems(entries, count).ok()?.0;
    let one = |entry: &EntryBytes| {
        let (at, len) = (entry.at.get() as usize, entry.len.get() as usize);
        let columns = Columns {
            chunk: Logical(entry.chunk.get()),
            row: entry.row.get(),
            from: entry.from.get() as usize,
            len,
            live: Units(entry.live.map(U64::get)),
        };
        let sum = payload.get(at..at.checked_add(len)?)?.to_vec();
        Some((columns, usize::try_from(entry.parity.get()).ok().filter(|&nth| nth < 2)?, sum))
    };
    Some((head.number.get(), entries.iter().filter_map(one).collect()))
}

impl Columns {
    /// Whether a chunk has such columns.
    pub fn fit(&self, map: &ChunkMap) -> bool {
        let end = self.from.checked_add(self.len);
        map.start == self.chunk
            && map.profile.has_parity()
            && self.row < map.stripe_bytes().0 / STRIPE_LEN
            && end.is_some_and(|end| end as u64 <= STRIPE_LEN)
            && self.live.end() as u64 <= map.data_stripes()
    }
}

/// What the parity of recorded columns has to be, so that it fits what is there; `None` if the record does not say: it is done with, or
/// something rotted. `units` are the data units in these columns, as far as they can be read.
pub(crate) fn parity_after(live: &LiveParity, map: &ChunkMap, units: &[Option<Vec<u8>>]) -> Option<[Vec<u8>; 2]> {
    let columns = &live.columns;
    let parities = usize::from(map.profile.shape().parities);
    let zeros = || vec![0; columns.len];
    // The row as it would be if nothing but the live sectors were in it.
    let mut row: Vec<Vec<u8>> = units
        .iter()
        .enumerate()
        .map(|(unit, bytes)| match bytes {
            Some(bytes) if columns.live.has(unit) => bytes.clone(),
            _ => zeros(),
        })
        .collect();
    let mut lost: Vec<usize> =
        (0..units.len()).filter(|&unit| columns.live.has(unit) && units[unit].is_none()).collect();
    let nothing_lost = lost.is_empty();
    for (nth, sum) in live.sums.iter().take(parities).enumerate() {
        lost.extend(sum.is_none().then_some(units.len() + nth));
        row.push(sum.clone().unwrap_or_else(zeros));
    }
    let recorded = row[units.len()..].to_vec();
    let kind = if parities == 1 { Parity::Raid5 } else { Parity::Raid6 };
    if nothing_lost {
        // What is recorded must fit what is there.
        let all: Vec<&[u8]> = row[..units.len()].iter().map(Vec::as_slice).collect();
        let (mut p, mut q) = (zeros(), zeros());
        sums(&all, &mut p, Some(&mut q));
        let fits =
            [p, q].iter().zip(&live.sums).zip(&recorded).all(|((sum, had), found)| had.is_none() || sum == found);
        if !fits {
            return None;
        }
    } else {
        let mut views: Vec<&mut [u8]> = row.iter_mut().map(Vec::as_mut_slice).collect();
        raid6::rebuild(&mut views, kind, &lost).ok()?;
    }
    // And now with what else is there. What is not has no name yet: any bytes will do.
    let whole: Vec<&[u8]> = (0..units.len())
        .map(|unit| match &units[unit] {
            Some(bytes) if !columns.live.has(unit) => bytes.as_slice(),
            _ => row[unit].as_slice(),
        })
        .collect();
    let (mut p, mut q) = (zeros(), zeros());
    sums(&whole, &mut p, Some(&mut q));
    Some([p, q])
}

/// Writes zeros over what records a device has. Not durable.
pub(crate) fn forget(member: &Member) -> Result<(), DeviceError> {
    let Ok(device) = member.to_write() else { return Ok(()) };
    for half in 0..HALVES {
        let mut bytes = vec![0; HEADER_LEN];
        if device.read_at(PLACE + half * HALF_LEN, &mut bytes).is_ok() && bytes[32..40] == MAGIC {
            device.write_at(PLACE + half * HALF_LEN, &[0; HEADER_LEN])?;
        }
    }
    Ok(())
}
