//! Damage that takes more than one changed item: devices that cannot be read, addresses that lead elsewhere, more
//! damage than is reported in detail.

use std::sync::Arc;

use oleo::Image;
use oleo::mkfs::{MkfsOptions, Profile};
use oleo_check::{CheckOptions, Finding, Kind, check};
use oleo_device::{Device, DeviceError, MemDevice, Op};
use oleo_format::{
    BlockGroupFlags, BlockGroupItem, Chunk, ExtentRecord, FileExtentItem, Header, ItemType, Key, Logical, RootItem,
    TreeId,
};
use zerocopy::FromBytes;

use crate::check::kit::{Disk, MIB, noise, some_files};

/// A device that cannot read some bytes.
struct BadSectors {
    device: Arc<MemDevice>,
    bad: Vec<u64>,
}

impl Device for BadSectors {
    fn len(&self) -> u64 {
        self.device.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let end = offset + buf.len() as u64;
        if self.bad.iter().any(|at| (offset..end).contains(at)) {
            let source = Arc::new(std::io::Error::other("a bad sector"));
            let len = buf.len() as u64;
            return Err(DeviceError::Io { name: "bad".into(), op: Op::Read, offset, len, source });
        }
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.device.write_at(offset, buf)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.device.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.device.discard(offset, len)
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        self.device.set_len(len)
    }

    fn name(&self) -> String {
        self.device.name()
    }

    fn read_only(&self) -> bool {
        true
    }
}

/// Findings if the first bytes of these places cannot be read.
fn check_without(disk: &Disk, places: &[(usize, u64)]) -> Vec<Finding> {
    let bad = places.iter().map(|(_, offset)| *offset).collect();
    let device: Arc<dyn Device> = Arc::new(BadSectors { device: disk.devices[0].clone(), bad });
    let volume = oleo_volume::Volume::open(vec![device], &Default::default()).unwrap();
    check(&volume, &CheckOptions::default().threads(1).data(true)).unwrap().findings
}

fn kinds(findings: &[Finding]) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = findings.iter().map(|f| f.kind).collect();
    kinds.dedup();
    kinds
}

#[test]
fn blocks_that_cannot_be_read() {
    let disk = Disk::usual();
    // A leaf of one tree alone, of which nothing else depends.
    let at = disk.root(TreeId::UUID);
    let places = disk.places(at);
    assert_eq!(places.len(), 2);
    let one = check_without(&disk, &places[..1]);
    assert_eq!(kinds(&one), [Kind::BlockMirror], "{one:#?}");
    let both = check_without(&disk, &places);
    assert_eq!(kinds(&both), [Kind::BlockUnreadable], "{both:#?}");
    assert_eq!(both[0].at.block, Some(at));
}

/// Goal: a read that fails is not reported as a wrong checksum. Method: one of two copies, then both, of the first sector of an
/// extent.
#[test]
fn data_that_cannot_be_read() {
    let disk = Disk::usual();
    let (_, extent) = large(&disk);
    let at = Logical(extent.disk_bytenr.get());
    let found = check_without(&disk, &disk.places(at));
    assert_eq!(kinds(&found), [Kind::DataUnreadable], "{found:#?}");
    assert_eq!(found[0].at.block, Some(at));
    assert!(found[0].have.starts_with("4096 bytes") && found[0].have.contains("a bad sector"), "{found:#?}");

    let disk = Disk::new(&MkfsOptions::default().data(Some(Profile::Dup)), 1, some_files);
    let (_, extent) = large(&disk);
    let places = disk.places(Logical(extent.disk_bytenr.get()));
    assert_eq!(places.len(), 2);
    let found = check_without(&disk, &places[1..]);
    assert_eq!(kinds(&found), [Kind::DataMirror], "{found:#?}");
    assert!(found[0].have.contains("copy 1 cannot be read"), "{found:#?}");
    assert_eq!(kinds(&check_without(&disk, &places)), [Kind::DataUnreadable]);
}

/// Goal: the copies on a device that is missing are not verified and not reported; data that is nowhere else is reported in whole
/// runs; data that parity has is sound. Method: volumes of several devices, opened without one of them.
#[test]
fn data_on_a_missing_device() {
    let check_degraded = |disk: &Disk, missing: usize| {
        let there = disk.devices.iter().enumerate().filter(|(n, _)| *n != missing);
        let devices = there.map(|(_, device)| device.clone() as Arc<dyn Device>).collect();
        let options = oleo_volume::OpenOptions { degraded: true, ..Default::default() };
        let volume = oleo_volume::Volume::open(devices, &options).unwrap();
        check(&volume, &CheckOptions::default().threads(1).data(true)).unwrap()
    };
    let profiles = |data, metadata| MkfsOptions::default().data(Some(data)).metadata(Some(metadata));
    for (data, devices) in [(Profile::Raid1, 2), (Profile::Raid5, 3)] {
        let disk = Disk::new(&profiles(data, Profile::Raid1), devices, some_files);
        let all = disk.check();
        for missing in 0..devices {
            let report = check_degraded(&disk, missing);
            assert_eq!(report.findings, [], "{data:?} without device {missing}");
            let (have, want) = (report.counts.verified_bytes, all.counts.verified_bytes);
            assert!(have > 0 && have < want, "{data:?}: {have} of {want} bytes were verified");
        }
    }
    let disk = Disk::new(&profiles(Profile::Raid0, Profile::Raid1), 2, some_files);
    let report = check_degraded(&disk, 1);
    assert_eq!(kinds(&report.findings), [Kind::DataUnreadable], "{:#?}", report.findings);
    assert!(report.findings.len() < 20, "{:#?}", report.findings);
    assert!(report.findings.iter().all(|f| f.have.contains("missing")), "{:#?}", report.findings);
}

/// The first extent of data of the top level: of a file and of its clone.
fn large(disk: &Disk) -> (Key, FileExtentItem) {
    let fits = |key: &Key, item: &[u8]| key.item_type == ItemType::EXTENT_DATA && FileExtentItem::parse(item).is_ok();
    let (key, item) = disk.find(TreeId::FS, fits);
    (key, *FileExtentItem::parse(&item).unwrap())
}

fn is_data_record(key: &Key, item: &[u8]) -> bool {
    key.item_type == ItemType::EXTENT_ITEM
        && ExtentRecord::parse(key, item).is_ok_and(|r| r.flags.contains(oleo_format::ExtentFlags::DATA))
}

#[test]
fn data_where_no_chunk_is() {
    let disk = Disk::usual();
    let (key, _) = large(&disk);
    disk.edit(TreeId::FS, &key, |item| {
        FileExtentItem::mut_from_bytes(item).unwrap().disk_bytenr = (1u64 << 40).into();
    });
    let found = disk.check().findings;
    // Its old extent has one user less.
    assert_eq!(kinds(&found), [Kind::ExtentMissing, Kind::ExtentRefStale, Kind::CsumMissing], "{found:#?}");

    // With a record of its own it is outside of all groups.
    let disk = Disk::usual();
    let (record, item) = disk.find(TreeId::EXTENT, is_data_record);
    disk.insert(TreeId::EXTENT, Key { objectid: 1 << 40, ..record }, item);
    let have = disk.kinds();
    assert!(have.contains(&Kind::ExtentGroup), "{have:?}");
}

#[test]
fn records_of_another_sort() {
    // A file names a tree block.
    let disk = Disk::usual();
    let (key, _) = large(&disk);
    let block = disk.root(TreeId::UUID);
    disk.edit(TreeId::FS, &key, |item| {
        FileExtentItem::mut_from_bytes(item).unwrap().disk_bytenr = block.0.into();
    });
    let have = disk.kinds();
    assert!(have.contains(&Kind::ExtentFlags), "{have:?}");

    // The root of a tree is at the address of data.
    let disk = Disk::usual();
    let (_, extent) = large(&disk);
    let to = Logical(extent.disk_bytenr.get());
    let (device, offset) = disk.places(block)[0];
    let mut bytes = vec![0; disk.volume().rules().nodesize as usize];
    disk.devices[device].read_at(offset, &mut bytes).unwrap();
    disk.edit_block(to, |data| {
        data.copy_from_slice(&bytes);
        Header::mut_from_prefix(data).unwrap().0.bytenr = to.0.into();
    });
    let (root, _) = disk.root_key(TreeId::UUID);
    disk.edit(TreeId::ROOT, &root, |item| RootItem::mut_from_bytes(item).unwrap().bytenr = to.0.into());
    let have = disk.kinds();
    assert!(have.contains(&Kind::ExtentFlags), "{have:?}");
    assert!(!have.contains(&Kind::BlockChecksum) && !have.contains(&Kind::BlockHeader), "{have:?}");
}

#[test]
fn checksums_twice() {
    let disk = Disk::usual();
    let (key, item) = disk.find(TreeId::CSUM, |_, item| item.len() >= 16);
    // The second sector's again, the same value: only the overlap is wrong.
    disk.insert(TreeId::CSUM, Key { offset: key.offset + 4096, ..key }, item[4..8].to_vec());
    let found = disk.check().findings;
    let have = kinds(&found);
    assert!(have.contains(&Kind::CsumOverlap), "{found:#?}");
    assert!(have.iter().all(|k| matches!(k, Kind::CsumOverlap | Kind::BlockItem)), "{found:#?}");
}

#[test]
fn system_chunks_of_the_tree() {
    let system = |key: &Key, item: &[u8]| {
        key.item_type == ItemType::CHUNK_ITEM
            && Chunk::parse(item).is_ok_and(|c| c.flags.contains(BlockGroupFlags::SYSTEM))
    };
    let disk = Disk::usual();
    let (key, item) = disk.find(TreeId::CHUNK, system);
    // Another than in the array. Were it elsewhere, nothing could be opened at all; this is a hint.
    disk.edit(TreeId::CHUNK, &key, |item| {
        let mut chunk = Chunk::parse(item).unwrap();
        chunk.io_width /= 2;
        *item = chunk.encode();
    });
    let found = disk.check().findings;
    assert_eq!(kinds(&found), [Kind::SuperSystemChunks], "{found:#?}");

    // A chunk that is not in the array, nor known anywhere else.
    let disk = Disk::usual();
    disk.insert(TreeId::CHUNK, Key { offset: 1 << 40, ..key }, item);
    let have = disk.kinds();
    assert!(have.contains(&Kind::SuperSystemChunks), "{have:?}");
    let of_chunk = [Kind::SuperSystemChunks, Kind::ChunkStripe, Kind::ChunkWithoutGroup, Kind::DevItemUsed];
    let others = [Kind::FreeSpaceInfo, Kind::SuperDevItem];
    assert!(have.iter().all(|k| of_chunk.contains(k) || others.contains(k)), "{have:?}");
}

#[test]
fn groups_that_overlap() {
    let disk = Disk::usual();
    let groups: Vec<(Key, Vec<u8>)> =
        disk.items(TreeId::EXTENT).into_iter().filter(|(k, _)| k.item_type == ItemType::BLOCK_GROUP_ITEM).collect();
    // One that another follows directly; a chunk's length must differ too, as chunks themselves do not overlap.
    let (key, item) =
        groups.windows(2).find(|w| w[0].0.objectid + w[0].0.offset == w[1].0.objectid).unwrap()[0].clone();
    assert!(BlockGroupItem::parse(&item).is_ok());
    disk.move_item(TreeId::EXTENT, &key, Key { offset: key.offset + MIB, ..key });
    let found = disk.check().findings;
    assert_eq!(kinds(&found), [Kind::GroupLength, Kind::GroupOverlap], "{found:#?}");
}

/// Goal: of damage beyond what is examined in detail, at least the number is reported. Method: one reference too many
/// at 1200 extents.
#[test]
fn more_than_is_reported_in_detail() {
    const EXTENTS: usize = 1200;
    const DETAILED: usize = 1000;
    let fill = |image: &Image| {
        some_files(image);
        image.create_dir("many").unwrap();
        for i in 0..EXTENTS as u64 {
            image.write(format!("many/{i}"), &noise(5000, i)).unwrap();
        }
        image.sync().unwrap();
    };
    let disk = Disk::new(&MkfsOptions::default(), 1, fill);
    let mut left = EXTENTS;
    let mut from = Key::new(0, ItemType(0), 0);
    while left > 0 {
        let items = disk.items(TreeId::EXTENT);
        let (first, _) = items.iter().find(|(k, i)| *k >= from && is_data_record(k, i)).unwrap();
        let last = disk.leaf(TreeId::EXTENT, first).iter().last().unwrap().0;
        disk.edit_leaf(TreeId::EXTENT, first, |items| {
            for (key, item) in items.iter_mut().filter(|(k, i)| *k >= from && is_data_record(k, i)).take(left) {
                let mut record = ExtentRecord::parse(key, item).unwrap();
                record.refs += 1;
                record.inline[0] = record.inline[0].with_count(record.inline[0].count() + 1);
                *item = record.encode();
                left -= 1;
            }
        });
        from = Key { offset: last.offset + 1, ..last };
    }
    let options = CheckOptions::default().threads(1).kept_max(usize::MAX);
    let found = check(&disk.volume(), &options).unwrap().findings;
    let count = |kind| found.iter().filter(|f| f.kind == kind).count();
    assert_eq!((count(Kind::ExtentRefCount), count(Kind::ExtentRefs)), (DETAILED, EXTENTS - DETAILED));
    assert_eq!(found.len(), EXTENTS);
}
