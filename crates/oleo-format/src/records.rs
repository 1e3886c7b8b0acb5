//! The smaller owned items: roots, uuids, quota status, raid stripes, free-space bitmaps; and the fixed numbers in keys.

use uuid::Uuid;
use zerocopy::IntoBytes;
use zerocopy::byteorder::little_endian::U64;

use crate::error::{Corruption, ensure};
use crate::flags::{BlockGroupFlags, QgroupStatusFlags, RootFlags};
use crate::structs::{BlockGroupItem, BlockGroupItemV2, QgroupStatusItem, ROOT_ITEM_SHORT_LEN, RaidStride, RootItem};
use crate::{ByteLen, DevId, Generation, Ino, ItemType, Key, Logical, TreeId};

/// Fixed object numbers in keys (`BTRFS_*_OBJECTID` that are not trees).
impl Key {
    /// Device stats, in the device tree.
    pub const DEV_STATS: u64 = 0;
    /// Device items, in the chunk tree.
    pub const DEV_ITEMS: u64 = 1;
    /// Chunk items, in the chunk tree.
    pub const FIRST_CHUNK_TREE: u64 = 256;
    /// A balance under way.
    pub const BALANCE: u64 = -4i64 as u64;
    /// Orphans: unlinked files, subvolumes being deleted.
    pub const ORPHAN: u64 = -5i64 as u64;
    /// Data checksums.
    pub const EXTENT_CSUM: u64 = -10i64 as u64;
    /// Version-1 free-space caches.
    pub const FREE_SPACE: u64 = -11i64 as u64;
    /// Caches of free inode numbers, no longer used.
    pub const FREE_INO: u64 = -12i64 as u64;
    /// Stands for several objects.
    pub const MULTIPLE: u64 = -255i64 as u64;

    /// The root item of a tree that is not a snapshot.
    pub fn root_item(tree: TreeId) -> Key {
        Key::new(tree.0, ItemType::ROOT_ITEM, 0)
    }
    /// The orphan item of an inode (in its subvolume) or of a subvolume (in the root tree).
    pub fn orphan(number: u64) -> Key {
        Key::new(Key::ORPHAN, ItemType::ORPHAN_ITEM, number)
    }
    /// The error counters of a device, in the device tree.
    pub fn device_stats(devid: DevId) -> Key {
        Key::new(Key::DEV_STATS, ItemType::PERSISTENT_ITEM, devid.0)
    }
    /// The balance under way.
    pub fn balance() -> Key {
        Key::new(Key::BALANCE, ItemType::TEMPORARY_ITEM, 0)
    }
    /// A block group.
    pub fn block_group(start: Logical, len: ByteLen) -> Key {
        Key::new(start.0, ItemType::BLOCK_GROUP_ITEM, len.0)
    }
    /// The checksums from here on.
    pub fn csum(start: Logical) -> Key {
        Key::new(Key::EXTENT_CSUM, ItemType::EXTENT_CSUM, start.0)
    }
    /// A part of a file.
    pub fn extent_data(ino: Ino, at: u64) -> Key {
        Key::new(ino.0, ItemType::EXTENT_DATA, at)
    }

    /// The key of a uuid in the uuid tree; the type is `UUID_SUBVOL` or `UUID_RECEIVED_SUBVOL`.
    pub fn uuid(uuid: Uuid, item_type: ItemType) -> Key {
        let (high, low) = uuid.as_bytes().split_at(8);
        let number = |half: &[u8]| U64::from_bytes(half.try_into().expect("half a uuid is 8 bytes")).get();
        Key::new(number(high), item_type, number(low))
    }

    /// The uuid in a key of the uuid tree.
    pub fn as_uuid(&self) -> Uuid {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.objectid.to_le_bytes());
        bytes[8..].copy_from_slice(&self.offset.to_le_bytes());
        Uuid::from_bytes(bytes)
    }
}

impl RootItem {
    /// The root in an item: the short form of old kernels is filled with zeros, and so is what an old kernel left stale.
    pub fn decode(item: &[u8]) -> Result<RootItem, Corruption> {
        let mut root = RootItem::default();
        ensure!(
            item.len() == size_of::<RootItem>() || item.len() == ROOT_ITEM_SHORT_LEN,
            "root item",
            "length",
            item.len(),
            "439 or 239"
        );
        let bytes = root.as_mut_bytes();
        bytes[..item.len()].copy_from_slice(item);
        if root.generation_v2 != root.generation {
            root.as_mut_bytes()[ROOT_ITEM_SHORT_LEN..].fill(0);
        }
        Ok(root)
    }

    /// The item, in the full form; `generation_v2` marks all of it as valid.
    pub fn encode(&self) -> Vec<u8> {
        RootItem { generation_v2: self.generation, ..*self }.as_bytes().to_vec()
    }

    /// The flags.
    pub fn root_flags(&self) -> RootFlags {
        RootFlags::from_bits_retain(self.flags.get())
    }
}

/// The subvolumes with one uuid.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UuidItem {
    /// Their numbers, in the order of the item.
    pub subvols: Vec<TreeId>,
}

impl UuidItem {
    /// The list in an item; bytes behind the last whole number are ignored, as by the kernel.
    pub fn parse(item: &[u8]) -> UuidItem {
        let (numbers, _) = item.as_chunks::<8>();
        UuidItem { subvols: numbers.iter().map(|n| TreeId(U64::from_bytes(*n).get())).collect() }
    }

    /// The item.
    pub fn encode(&self) -> Vec<u8> {
        self.subvols.iter().flat_map(|id| id.0.to_le_bytes()).collect()
    }
}

/// The state of quota.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QgroupStatus {
    /// 1.
    pub version: u64,
    /// The transaction whose numbers these are.
    pub generation: Generation,
    /// On, scanning, inconsistent, simple.
    pub flags: QgroupStatusFlags,
    /// How far the rescan has come, a logical address.
    pub rescan: u64,
    /// The transaction from which simple quota counts; only there with simple quota.
    pub enable_gen: Option<Generation>,
}

impl QgroupStatus {
    /// The status in an item.
    pub fn parse(item: &[u8]) -> Result<QgroupStatus, Corruption> {
        let (head, rest) = QgroupStatusItem::parse_prefix(item)?;
        // With simple quota; readers take no notice of what is behind it.
        let enable_gen = rest.first_chunk::<8>().map(|bytes| Generation(u64::from_le_bytes(*bytes)));
        Ok(QgroupStatus {
            version: head.version.get(),
            generation: Generation(head.generation.get()),
            flags: QgroupStatusFlags::from_bits_retain(head.flags.get()),
            rescan: head.rescan.get(),
            enable_gen,
        })
    }

    /// The item.
    pub fn encode(&self) -> Vec<u8> {
        let head = QgroupStatusItem {
            version: self.version.into(),
            generation: self.generation.0.into(),
            flags: self.flags.bits().into(),
            rescan: self.rescan.into(),
        };
        let mut out = head.as_bytes().to_vec();
        if let Some(generation) = self.enable_gen {
            out.extend_from_slice(&generation.0.to_le_bytes());
        }
        out
    }
}

/// The places of an extent on the devices, with the raid-stripe tree; keyed by the extent's start and length.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RaidStripe {
    /// One place per copy or stripe.
    pub strides: Vec<RaidStride>,
}

impl RaidStripe {
    /// The places in an item.
    pub fn parse(item: &[u8]) -> Result<RaidStripe, Corruption> {
        let strides = <[RaidStride] as zerocopy::FromBytes>::ref_from_bytes(item)
            .map_err(|_| Corruption::new("raid stripe", "length", item.len(), "a multiple of 16"))?;
        Ok(RaidStripe { strides: strides.to_vec() })
    }

    /// The item.
    pub fn encode(&self) -> Vec<u8> {
        self.strides.as_bytes().to_vec()
    }
}

impl BlockGroupItemV2 {
    /// The group in an item of either form: what the shorter one does not have is 0.
    pub fn decode(item: &[u8]) -> Result<BlockGroupItemV2, Corruption> {
        let lens = [size_of::<BlockGroupItem>(), size_of::<BlockGroupItemV2>()];
        ensure!(lens.contains(&item.len()), "block group item", "length", item.len(), "24 or 36");
        let mut group = BlockGroupItemV2::default();
        group.as_mut_bytes()[..item.len()].copy_from_slice(item);
        Ok(group)
    }

    /// The type, the profile, and whether it is remapped.
    pub fn group_flags(&self) -> BlockGroupFlags {
        BlockGroupFlags::from_bits_retain(self.flags.get())
    }
}

/// The bytes of a full free-space bitmap; it covers 8 × 256 sectors.
pub const FREE_SPACE_BITMAP_LEN: usize = 256;

/// The runs of ones in a free-space bitmap that starts at `start`: sorted, not touching each other.
pub fn bitmap_runs(start: Logical, bitmap: &[u8], sectorsize: u32) -> Vec<(Logical, ByteLen)> {
    let unit = u64::from(sectorsize);
    let mut runs: Vec<(Logical, ByteLen)> = Vec::new();
    for (i, word) in bitmap.chunks(8).enumerate() {
        let mut padded = [0; 8];
        padded[..word.len()].copy_from_slice(word);
        let mut bits = u64::from_le_bytes(padded);
        let mut at = Logical(start.0 + i as u64 * 64 * unit);
        while bits != 0 {
            let zeros = bits.trailing_zeros();
            bits >>= zeros;
            let ones = bits.trailing_ones();
            at += ByteLen(u64::from(zeros) * unit);
            let len = ByteLen(u64::from(ones) * unit);
            match runs.last_mut() {
                Some((s, l)) if *s + *l == at => *l += len,
                _ => runs.push((at, len)),
            }
            at += len;
            bits = bits.checked_shr(ones).unwrap_or(0);
        }
    }
    runs
}

/// Sets (free) or clears (used) the bits of a run in a free-space bitmap that starts at `start`; parts outside are ignored.
pub fn bitmap_set(start: Logical, bitmap: &mut [u8], sectorsize: u32, run: (Logical, ByteLen), free: bool) {
    let unit = u64::from(sectorsize);
    let bits = bitmap.len() as u64 * 8;
    let first = run.0.0.saturating_sub(start.0) / unit;
    let end = ((run.0.0 + run.1.0).saturating_sub(start.0) / unit).min(bits);
    for bit in first..end {
        let byte = &mut bitmap[usize::try_from(bit / 8).expect("inside the bitmap")];
        let mask = 1 << (bit % 8);
        if free { *byte |= mask } else { *byte &= !mask }
    }
}
