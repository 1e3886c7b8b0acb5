//! The places of the first chunks, computed from device sizes and profiles alone.
//!
//! There are two or three chunks: system, metadata, data; or system and one mixed chunk. Logical addresses start at
//! [`FIRST_LOGICAL`] and follow each other without gaps. On every device the first MiB stays free: boot loaders and the
//! first superblock are there. Later copies of the superblock may lie inside a chunk; the space they cover is not free,
//! and [`Placed::superblock_ranges`] returns it.
//!
//! Not here: chunks that are added later (`oleo-volume`), and the items that describe chunks (`trees`).

use oleo_format::{BlockGroupFlags, ByteLen, DevId, Logical, Physical};
use oleo_volume::{ChunkMap, Hints, PARITY_STRIPES_MAX, Profile, StripeAt};
use uuid::Uuid;

use crate::MkfsError;
use crate::options::Resolved;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// The first logical address of a new file system.
const FIRST_LOGICAL: Logical = Logical(MIB);
/// The part at the start of each device that no chunk may use (`BTRFS_DEVICE_RANGE_RESERVED`).
const DEVICE_RESERVED: u64 = MIB;
/// All of a device's chunks start and end at multiples of this.
const CHUNK_ALIGN: u64 = MIB;

/// Tree blocks of the smallest metadata chunk: a volume in which no chunk can be added has to have them. The kernel reserves space for
/// whole paths of tree blocks, some 5.5 MiB at 16 KiB for itself and more for each operation, and refuses every change without it. (Larger
/// tree blocks would need more; they are not for devices of this size, and are not refused there.)
const METADATA_BLOCKS_MIN: u64 = 640;

/// A chunk with its place.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub flags: BlockGroupFlags,
    pub start: Logical,
    pub len: ByteLen,
    /// Index of the device, and offset on it.
    pub stripes: Vec<(usize, Physical)>,
    /// Bytes on each device.
    pub stripe_bytes: ByteLen,
    pub profile: Profile,
}

impl Placed {
    /// The chunk as it is recorded; `uuid` is that of a device.
    pub fn map(&self, sectorsize: u32, uuid: impl Fn(usize) -> Uuid) -> ChunkMap {
        let stripe =
            |&(device, offset): &(usize, Physical)| StripeAt { devid: devid(device), dev_uuid: uuid(device), offset };
        ChunkMap {
            start: self.start,
            len: self.len,
            flags: self.flags,
            profile: self.profile,
            stripes: self.stripes.iter().map(stripe).collect(),
            hints: Hints::new(self.profile, sectorsize),
        }
    }

    /// The parts of the chunk that hold copies of a superblock on some device: sorted, not overlapping.
    pub fn superblock_ranges(&self) -> Vec<(Logical, ByteLen)> {
        self.map(0, |_| Uuid::nil()).super_ranges()
    }
}

/// The number of a device: from 1 on in the order given.
pub(crate) fn devid(device: usize) -> DevId {
    DevId(device as u64 + 1)
}

/// The chunks of a new file system and how much of each device they take.
#[derive(Debug)]
pub(crate) struct Plan {
    pub system: Placed,
    /// The mixed chunk if there is one.
    pub metadata: Placed,
    pub data: Option<Placed>,
    /// Bytes that count of each device: its length, rounded down to sectors.
    pub device_bytes: Vec<u64>,
    /// The end of the last chunk on each device.
    pub used_to: Vec<u64>,
}

impl Plan {
    /// All chunks in order of their logical addresses.
    pub fn chunks(&self) -> impl Iterator<Item = &Placed> {
        [&self.system, &self.metadata].into_iter().chain(self.data.as_ref())
    }
}

/// Places the first chunks on devices of these lengths.
///
/// # Errors
/// The devices are too small.
pub(crate) fn plan(lengths: &[u64], options: &Resolved) -> Result<Plan, MkfsError> {
    /// No chunk of the first three is larger.
    const ENOUGH: u64 = 2 << 30;
    let with_all_at_least = |len: u64| -> Vec<u64> { lengths.iter().map(|have| *have.max(&len)).collect() };
    match plan_for(lengths, options) {
        Err(MkfsError::TooSmall { device, len, .. }) => {
            // Chunks grow with devices, so adding just what is missing now would not be enough.
            let (mut low, mut high) = (len / MIB, ENOUGH / MIB);
            while low < high {
                let middle = low.midpoint(high);
                match plan_for(&with_all_at_least(middle * MIB), options) {
                    Ok(_) => high = middle,
                    Err(_) => low = middle + 1,
                }
            }
            Err(MkfsError::TooSmall { device, len, more: (high * MIB).saturating_sub(len) })
        }
        other => other,
    }
}

fn plan_for(lengths: &[u64], options: &Resolved) -> Result<Plan, MkfsError> {
    let sector = u64::from(options.sectorsize);
    let device_bytes: Vec<u64> = lengths.iter().map(|len| len / sector * sector).collect();
    if device_bytes.iter().try_fold(0u64, |sum, len| sum.checked_add(*len)).is_none() {
        return Err(MkfsError::Options(
            "the devices have 16 EiB or more together, which the format cannot record".into(),
        ));
    }
    let smallest = device_bytes.iter().copied().min().unwrap_or(0);
    let mut placer =
        Placer { device_bytes: &device_bytes, used_to: vec![DEVICE_RESERVED; lengths.len()], next: FIRST_LOGICAL };

    let system_bytes = share(smallest, 64, MIB, 8 * MIB);
    let metadata_max = options.metadata_chunk_max.unwrap_or(256 * MIB).clamp(4 * MIB, 256 * MIB);
    let metadata_min = (u64::from(options.nodesize) * METADATA_BLOCKS_MIN).clamp(4 * MIB, metadata_max.min(10 * MIB));
    let metadata_bytes = share(smallest, 10, metadata_min, metadata_max);
    let data_bytes = share(smallest, 16, MIB, 8 * MIB);
    let system = placer.place(BlockGroupFlags::SYSTEM, options.metadata, system_bytes)?;
    let (metadata, data) = if options.features.mixed {
        let both = BlockGroupFlags::DATA | BlockGroupFlags::METADATA;
        (placer.place(both, options.metadata, metadata_bytes)?, None)
    } else {
        let metadata = placer.place(BlockGroupFlags::METADATA, options.metadata, metadata_bytes)?;
        (metadata, Some(placer.place(BlockGroupFlags::DATA, options.data, data_bytes)?))
    };
    let used_to = placer.used_to;
    Ok(Plan { system, metadata, data, device_bytes, used_to })
}

/// One `nth` of the whole, in whole units of chunk alignment, within bounds.
fn share(whole: u64, nth: u64, min: u64, max: u64) -> u64 {
    (whole / nth / CHUNK_ALIGN * CHUNK_ALIGN).clamp(min, max)
}

struct Placer<'a> {
    device_bytes: &'a [u64],
    used_to: Vec<u64>,
    next: Logical,
}

impl Placer<'_> {
    fn free(&self, device: usize) -> u64 {
        self.device_bytes[device].saturating_sub(self.used_to[device])
    }

    /// Takes room for about `bytes` of contents.
    fn place(&mut self, kind: BlockGroupFlags, profile: Profile, bytes: u64) -> Result<Placed, MkfsError> {
        // Most free space first, so that devices fill evenly; ties go to the lower device.
        let mut order: Vec<usize> = (0..self.device_bytes.len()).collect();
        order.sort_by_key(|&device| (std::cmp::Reverse(self.free(device)), device));
        let shape = profile.shape();
        let most = shape.devices_max.map_or(order.len(), |max| order.len().min(usize::from(max)));
        let most = if profile.has_parity() { most.min(PARITY_STRIPES_MAX) } else { most };
        order.truncate(most - most % usize::from(shape.devices_step));
        let each = usize::from(shape.stripes_per_device);
        let devices: Vec<usize> = order.into_iter().flat_map(|device| std::iter::repeat_n(device, each)).collect();
        let spread = profile.data_stripes(devices.len() as u64);
        let stripe_bytes = bytes.div_ceil(spread).next_multiple_of(CHUNK_ALIGN);
        let mut stripes = Vec::with_capacity(devices.len());
        for &device in &devices {
            if self.free(device) < stripe_bytes {
                let more = stripe_bytes - self.free(device);
                return Err(MkfsError::TooSmall { device, len: self.device_bytes[device], more });
            }
            stripes.push((device, Physical(self.used_to[device])));
            self.used_to[device] += stripe_bytes;
        }
        let start = self.next;
        let len = ByteLen(stripe_bytes * spread);
        self.next += len;
        Ok(Placed { flags: kind | profile.bits(), start, len, stripes, stripe_bytes: ByteLen(stripe_bytes), profile })
    }
}

#[cfg(test)]
mod tests {
    use oleo_volume::STRIPE_LEN;

    use super::*;
    use crate::MkfsOptions;

    fn planned(lengths: &[u64], data: Profile, metadata: Profile) -> Plan {
        let options = MkfsOptions { data: Some(data), metadata: Some(metadata), ..MkfsOptions::default() };
        plan(lengths, &options.resolve(lengths.len()).unwrap()).unwrap()
    }

    /// Goal: no two stripes overlap and none leaves its device. Method: every pair of profiles on four devices of
    /// unequal sizes; sort all stripes by place and compare neighbours.
    #[test]
    fn stripes_are_disjoint() {
        let lengths = [300 * MIB, 500 * MIB + 4096, 400 * MIB, 1000 * MIB];
        for data in Profile::ALL {
            for metadata in Profile::ALL {
                let plan = planned(&lengths, data, metadata);
                let mut taken: Vec<(usize, u64, u64)> = plan
                    .chunks()
                    .flat_map(|c| c.stripes.iter().map(|&(dev, at)| (dev, at.0, at.0 + c.stripe_bytes.0)))
                    .collect();
                taken.sort_unstable();
                for pair in taken.windows(2) {
                    assert!(pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1, "{data} {metadata}: {pair:?}");
                }
                assert!(taken.iter().all(|&(dev, from, to)| from >= MIB && to <= lengths[dev]));
            }
        }
    }

    /// Goal: the second superblock is found in whatever chunk covers it. Method: one device of 4 GiB, whose metadata
    /// chunk covers 64 MiB; and the same place seen from a striped chunk.
    #[test]
    fn superblock_copies_are_left_out() {
        let plan = planned(&[4096 * MIB], Profile::Single, Profile::Dup);
        let (_, physical) = plan.metadata.stripes[0];
        let want = plan.metadata.start.0 + 64 * MIB - physical.0;
        assert_eq!(plan.metadata.superblock_ranges(), vec![(Logical(want), ByteLen(STRIPE_LEN))]);

        let striped = Placed {
            flags: BlockGroupFlags::DATA | BlockGroupFlags::RAID0,
            start: Logical(0),
            len: ByteLen(256 * MIB),
            stripes: vec![(0, Physical(MIB)), (1, Physical(2 * MIB))],
            stripe_bytes: ByteLen(128 * MIB),
            profile: Profile::Raid0,
        };
        let ranges = striped.superblock_ranges();
        // Device 1's copy lies 62 MiB into its stripe, device 0's 63 MiB.
        assert_eq!(ranges[0].0, Logical(62 * MIB * 2 + STRIPE_LEN));
        assert_eq!(ranges[1].0, Logical(63 * MIB * 2));
        // With parity the whole row is left out.
        let parity = Placed { profile: Profile::Raid5, len: ByteLen(128 * MIB), ..striped };
        let rows = [(Logical(62 * MIB), ByteLen(STRIPE_LEN)), (Logical(63 * MIB), ByteLen(STRIPE_LEN))];
        assert_eq!(parity.superblock_ranges(), rows);
    }

    /// Goal: a device without space is refused, one of 24 MiB is enough.
    #[test]
    fn small_devices() {
        let options = MkfsOptions::default().resolve(1).unwrap();
        assert!(plan(&[24 * MIB], &options).is_ok());
        // Growing by the reported amount is enough, and by less is not.
        for len in [100 << 10, 2 * MIB, 8 * MIB, 23 * MIB] {
            let Err(MkfsError::TooSmall { device: 0, more, .. }) = plan(&[len], &options) else { panic!("{len}") };
            assert!(plan(&[len + more], &options).is_ok(), "{len}");
            assert!(plan(&[len + more - MIB], &options).is_err(), "{len}");
        }
    }
}
