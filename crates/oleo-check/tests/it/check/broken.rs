//! Each kind of damage is reported as what it is, with nothing else that does not follow from it.
//!
//! Method of all: a small sound volume, one change with checksums corrected, and the kinds of findings expected.

use std::sync::OnceLock;

use oleo::mkfs::{FeatureSet, MkfsOptions, Profile};
use oleo_check::{CheckOptions, Kind, Severity, check};
use oleo_device::Device;
use oleo_format::{
    BackRef, BlockGroupFlags, BlockGroupItem, BlockHead, Chunk, DevItem, DiskItem, ExtentFlags, ExtentRecord,
    FileExtentItem, HEADER_LEN, Header, HeaderFlags, InodeFlags, InodeItem, ItemType, Key, KeyPtr, LeafBuilder,
    Logical, RootItem, Stripe, SuperFlags, TreeId,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::check::kit::{Disk, MIB, some_files};

type EditSuper = fn(&mut oleo_format::SuperBlock);
type EditBlock = fn(&mut [u8]);

fn disk() -> Disk {
    static USUAL: OnceLock<Disk> = OnceLock::new();
    USUAL.get_or_init(Disk::usual).copy()
}

#[track_caller]
fn expect(disk: &Disk, kinds: &[Kind]) {
    let report = disk.check();
    let mut have: Vec<Kind> = report.findings.iter().map(|f| f.kind).collect();
    have.dedup();
    let mut want = kinds.to_vec();
    want.sort_unstable();
    assert_eq!(have, want, "{:#?}", report.findings);
}

/// The subvolume that has snapshots: its id.
fn v(disk: &Disk) -> TreeId {
    let (key, _) = disk.find(TreeId::ROOT, |key, _| key.item_type == ItemType::ROOT_ITEM && key.objectid >= 256);
    TreeId(key.objectid)
}

/// The second leaf of the subvolume, which belongs to no other tree's first level.
fn second_leaf(disk: &Disk) -> (Logical, Logical) {
    let root = disk.node(disk.root(v(disk)));
    assert_eq!(root.level(), 1);
    (root.logical(), root.child(1).logical)
}

fn header(bytes: &mut [u8]) -> &mut Header {
    Header::mut_from_prefix(bytes).unwrap().0
}

fn record_of(disk: &Disk, at: Logical) -> (Key, ExtentRecord) {
    let is_record = |key: &Key| matches!(key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM);
    let (key, item) = disk.find(TreeId::EXTENT, |key, _| key.objectid == at.0 && is_record(key));
    (key, ExtentRecord::parse(&key, &item).unwrap())
}

fn edit_record(disk: &Disk, at: Logical, edit: impl FnOnce(&mut ExtentRecord)) {
    let (key, mut record) = record_of(disk, at);
    edit(&mut record);
    disk.edit(TreeId::EXTENT, &key, |item| *item = record.encode());
}

/// The key and item of the first file extent on disk of the top level, which two files share.
fn extent_of_large(disk: &Disk) -> (Key, FileExtentItem) {
    let is_extent =
        |key: &Key, item: &[u8]| key.item_type == ItemType::EXTENT_DATA && FileExtentItem::parse(item).is_ok();
    let (key, item) = disk.find(TreeId::FS, is_extent);
    (key, *FileExtentItem::parse(&item).unwrap())
}

/// The group with these flags, and a free run of more than a mebibyte in it; of data, one directly behind an extent.
fn free_run(disk: &Disk, flags: BlockGroupFlags) -> (Key, Key) {
    let group = |key: &Key, item: &[u8]| {
        key.item_type == ItemType::BLOCK_GROUP_ITEM
            && BlockGroupItem::parse(item).is_ok_and(|g| g.flags.get() & flags.bits() != 0)
    };
    let (group, _) = disk.find(TreeId::EXTENT, group);
    let inside = |key: &Key| key.objectid >= group.objectid && key.objectid < group.objectid + group.offset;
    let runs = disk.items(TreeId::FREE_SPACE);
    let records = disk.items(TreeId::EXTENT);
    let is_behind = |key: &Key| {
        let ends = |k: &Key| k.item_type == ItemType::EXTENT_ITEM && k.objectid + k.offset == key.objectid;
        flags.contains(BlockGroupFlags::METADATA) || records.iter().any(|(k, _)| ends(k))
    };
    let free = |key: &Key| key.item_type == ItemType::FREE_SPACE_EXTENT && inside(key) && key.offset > MIB + 4096;
    let run = runs.iter().rfind(|(key, _)| free(key) && is_behind(key)).expect("free space behind data");
    (group, run.0)
}

#[test]
fn the_volume_is_sound_before() {
    expect(&disk(), &[]);
}

#[test]
fn superblock_fields() {
    let each: [(Kind, EditSuper); 6] = [
        (Kind::SuperBlock, |sb| sb.__unused_leafsize = 4096.into()),
        (Kind::SuperBlock, |sb| sb.flags = (sb.flags() | SuperFlags::CHANGING_FSID).bits().into()),
        (Kind::SuperDevices, |sb| sb.num_devices = 2.into()),
        (Kind::SuperTotalBytes, |sb| sb.total_bytes = (sb.total_bytes.get() + 4096).into()),
        (Kind::SuperDevItem, |sb| sb.dev_item.bytes_used = (sb.dev_item.bytes_used.get() - MIB).into()),
        (Kind::SuperBytesUsed, |sb| sb.bytes_used = (sb.bytes_used.get() + 4096).into()),
    ];
    for (kind, edit) in each {
        let disk = disk();
        disk.edit_super(0, None, true, edit);
        expect(&disk, &[kind]);
    }
}

#[test]
fn mirrors_of_superblocks() {
    let disk = disk();
    disk.edit_super(0, Some(1), false, |sb| sb.label[0] = 1);
    expect(&disk, &[Kind::SuperMirror]);
    assert_eq!(disk.check().findings[0].severity, Severity::Warning);
    disk.edit_super(0, Some(1), true, |sb| sb.label[0] = 1);
    expect(&disk, &[Kind::SuperMirror]);
    assert!(disk.check().has_errors());
    disk.edit_super(0, Some(1), true, |sb| sb.generation = (sb.generation.get() - 1).into());
    expect(&disk, &[Kind::SuperStale]);
    // An fsync writes the first mirrors alone.
    let disk = self::disk();
    disk.edit_super(0, Some(1), true, |sb| sb.log_root = MIB.into());
    expect(&disk, &[]);
    // The one that is read first is worse to lose.
    let disk = self::disk();
    disk.edit_super(0, Some(0), false, |sb| sb.label[0] = 1);
    expect(&disk, &[Kind::SuperMirror]);
    assert!(disk.check().has_errors());
}

#[test]
fn system_chunks() {
    let disk = disk();
    disk.edit_super(0, None, true, |sb| {
        let mut chunks = sb.parse_sys_chunks().unwrap();
        let (_, mut other) = chunks[0].clone();
        other.stripes.iter_mut().for_each(|s: &mut Stripe| s.offset = (s.offset.get() + 100 * MIB).into());
        chunks.push((Chunk::key(Logical(1 << 40)), other));
        assert!(sb.set_sys_chunks(chunks.iter().map(|(key, chunk)| (*key, chunk))));
    });
    expect(&disk, &[Kind::SuperSystemChunks]);
}

#[test]
fn one_copy_of_a_block() {
    let disk = disk();
    let (_, leaf) = second_leaf(&disk);
    disk.edit_copies(leaf, 1, false, |bytes| bytes[5000] ^= 1);
    expect(&disk, &[Kind::BlockMirror]);
    assert_eq!(disk.check().findings[0].at.device, Some(1));
    // A write that was lost: an older block, sound in itself.
    let disk = self::disk();
    disk.edit_copies(leaf, 1, true, |bytes| header(bytes).generation = 3.into());
    expect(&disk, &[Kind::BlockMirror]);
}

#[test]
fn headers_and_layout() {
    let each: [(Kind, bool, EditBlock); 9] = [
        (Kind::BlockChecksum, false, |b| b[5000] ^= 1),
        (Kind::BlockHeader, true, |b| header(b).bytenr = 4096.into()),
        (Kind::BlockHeader, true, |b| header(b).fsid[3] ^= 1),
        (Kind::BlockGeneration, true, |b| header(b).generation = 3.into()),
        (Kind::BlockLevel, true, |b| header(b).level = 1),
        (Kind::BlockHeader, true, |b| header(b).flags = 1.into()),
        (Kind::BlockHeader, true, |b| header(b).flags = (1u64 << 56).into()),
        (Kind::BlockOwner, true, |b| header(b).owner = 999.into()),
        (Kind::BlockLayout, true, |b| {
            let item = DiskItem::mut_from_prefix(&mut b[HEADER_LEN..]).unwrap().0;
            item.offset = (item.offset.get() - 1).into();
        }),
    ];
    for (kind, sealed, edit) in each {
        let disk = disk();
        let (_, leaf) = second_leaf(&disk);
        disk.edit_copies(leaf, usize::MAX, sealed, edit);
        expect(&disk, &[kind]);
    }
    // A leaf owned by a tree that holds no files has items that do not belong there.
    let disk = disk();
    let (_, leaf) = second_leaf(&disk);
    disk.edit_block(leaf, |b| header(b).owner = 10.into());
    expect(&disk, &[Kind::BlockOwner, Kind::BlockItem]);
}

#[test]
fn order_of_keys() {
    let disk = disk();
    let (_, leaf) = second_leaf(&disk);
    disk.edit_block(leaf, |bytes| {
        let (items, _) = <[DiskItem]>::mut_from_prefix_with_elems(&mut bytes[HEADER_LEN..], 3).unwrap();
        (items[1].key, items[2].key) = (items[2].key, items[1].key);
    });
    expect(&disk, &[Kind::BlockKeyOrder]);
}

#[test]
fn blocks_that_contradict_their_parents() {
    // The key in the parent is lower than the child's first.
    let disk = disk();
    let (root, leaf) = second_leaf(&disk);
    let ptr = |bytes: &mut [u8], edit: &dyn Fn(&mut KeyPtr)| {
        edit(&mut <[KeyPtr]>::mut_from_prefix_with_elems(&mut bytes[HEADER_LEN..], 2).unwrap().0[1]);
    };
    let first = disk.node(leaf).key(0);
    assert!(first.offset > 0 || first.item_type.0 > 1);
    let lower = Key {
        item_type: ItemType(first.item_type.0 - u8::from(first.offset == 0)),
        offset: first.offset.wrapping_sub(1),
        ..first
    };
    disk.edit_block(root, |bytes| ptr(bytes, &|p| p.key = lower.into()));
    expect(&disk, &[Kind::BlockFirstKey]);
    // The left neighbour has a key of the right one.
    let disk = self::disk();
    let left = disk.node(disk.node(root).child(0).logical).key(0);
    disk.edit_leaf(v(&disk), &left, |items| {
        items.pop();
        items.push((Key::new(1 << 30, ItemType::STRING_ITEM, 0), b"x".to_vec()));
    });
    assert!(disk.kinds().contains(&Kind::BlockKeyRange), "{:?}", disk.kinds());
    // Generations that have not been, in the block, its parent and its record.
    let disk = self::disk();
    let future = disk.volume().super_block().generation.get() + 5;
    let node = disk.node(root);
    let own =
        (0..node.len()).find(|&slot| record_of(&disk, node.child(slot).logical).1.refs == 1).expect("an own leaf");
    let leaf = node.child(own).logical;
    disk.edit_block(root, |bytes| {
        let (ptrs, _) = <[KeyPtr]>::mut_from_prefix_with_elems(&mut bytes[HEADER_LEN..], own + 1).unwrap();
        ptrs[own].generation = future.into();
    });
    disk.edit_block(leaf, |bytes| header(bytes).generation = future.into());
    edit_record(&disk, leaf, |record| record.generation = oleo_format::Generation(future));
    expect(&disk, &[Kind::BlockFuture, Kind::ExtentGeneration]);
}

#[test]
fn an_item() {
    let disk = disk();
    let (key, _) = disk.find(TreeId::FS, |key, _| key.item_type == ItemType::DIR_ITEM);
    disk.move_item(TreeId::FS, &key, Key { offset: key.offset + 1, ..key });
    expect(&disk, &[Kind::BlockItem]);
}

#[test]
fn root_items_wrong_or_missing() {
    let disk = disk();
    let (key, _) = disk.root_key(TreeId::FS);
    disk.edit(TreeId::ROOT, &key, |item| RootItem::mut_from_bytes(item).unwrap().last_snapshot = 1000.into());
    expect(&disk, &[Kind::RootItem]);

    let disk = self::disk();
    disk.remove(TreeId::ROOT, &Key::root_item(TreeId::FREE_SPACE));
    expect(&disk, &[Kind::RootMissing, Kind::ExtentUnused]);

    let disk = self::disk();
    let (key, _) = disk.root_key(TreeId::UUID);
    disk.edit(TreeId::ROOT, &key, |item| RootItem::mut_from_bytes(item).unwrap().bytenr = (1u64 << 40).into());
    expect(&disk, &[Kind::BlockUnmapped]);
}

#[test]
fn device_extents() {
    let (dev, chunk) = (TreeId::DEV, TreeId::CHUNK);
    let extent = |disk: &Disk| disk.find(dev, |key, _| key.item_type == ItemType::DEV_EXTENT);
    let disk = disk();
    disk.remove(dev, &extent(&disk).0);
    expect(&disk, &[Kind::ChunkStripe]);

    let disk = self::disk();
    let (key, item) = extent(&disk);
    disk.insert(dev, Key { offset: 240 * MIB, ..key }, item.clone());
    expect(&disk, &[Kind::DevExtent]);

    let disk = self::disk();
    disk.insert(dev, Key { offset: key.offset + 4096, ..key }, item.clone());
    expect(&disk, &[Kind::BlockItem, Kind::DevExtent, Kind::DevExtentOverlap]);

    let disk = self::disk();
    disk.insert(dev, Key { offset: 256 * MIB, ..key }, item);
    expect(&disk, &[Kind::DevExtent, Kind::DevExtentBeyond]);

    let disk = self::disk();
    let (key, _) = disk.find(chunk, |key, _| key.item_type == ItemType::DEV_ITEM);
    let less = |item: &mut DevItem| item.bytes_used = (item.bytes_used.get() - MIB).into();
    disk.edit(chunk, &key, |item| less(DevItem::mut_from_bytes(item).unwrap()));
    disk.edit_super(0, None, true, |sb| less(&mut sb.dev_item));
    expect(&disk, &[Kind::DevItemUsed]);
}

#[test]
fn a_device_that_is_too_small() {
    let disk = disk();
    let small = oleo_device::MemDevice::new(200 * MIB);
    let mut buf = vec![0; MIB as usize];
    for at in (0..200 * MIB).step_by(MIB as usize) {
        disk.devices[0].read_at(at, &mut buf).unwrap();
        if buf.iter().any(|b| *b != 0) {
            small.write_at(at, &buf).unwrap();
        }
    }
    let kinds = Disk { devices: vec![std::sync::Arc::new(small)] }.kinds();
    assert!(kinds.contains(&Kind::DeviceSize), "{kinds:?}");
}

#[test]
fn a_chunk_on_an_unknown_device() {
    let options = MkfsOptions::default().data(Some(Profile::Raid1)).metadata(Some(Profile::Raid1));
    let disk = Disk::new(&options, 2, some_files);
    let is_data = |key: &Key, item: &[u8]| {
        key.item_type == ItemType::CHUNK_ITEM
            && Chunk::parse(item).is_ok_and(|c| c.flags.contains(BlockGroupFlags::DATA))
    };
    let (key, _) = disk.find(TreeId::CHUNK, is_data);
    disk.edit(TreeId::CHUNK, &key, |item| {
        let mut chunk = Chunk::parse(item).unwrap();
        chunk.stripes[1].dev_uuid[0] ^= 1;
        *item = chunk.encode();
    });
    let devices = disk.devices.iter().map(|d| d.clone() as std::sync::Arc<dyn Device>).collect();
    let open = oleo_volume::OpenOptions { degraded: true, ..Default::default() };
    let volume = oleo_volume::Volume::open(devices, &open).unwrap();
    let report = check(&volume, &CheckOptions::default()).unwrap();
    let kinds: Vec<Kind> = report.findings.iter().map(|f| f.kind).collect();
    assert_eq!(kinds, [Kind::ChunkDevice], "{:#?}", report.findings);
}

#[test]
fn block_groups() {
    let tree = TreeId::EXTENT;
    let disk = disk();
    let (group, _) = free_run(&disk, BlockGroupFlags::DATA);
    let edit = |disk: &Disk, edit: fn(&mut BlockGroupItem)| {
        disk.edit(tree, &group, |item| edit(BlockGroupItem::mut_from_bytes(item).unwrap()));
    };
    edit(&disk, |g| g.used = (g.used.get() + 4096).into());
    expect(&disk, &[Kind::GroupUsed]);

    let disk = self::disk();
    edit(&disk, |g| g.flags = (BlockGroupFlags::DATA | BlockGroupFlags::DUP).bits().into());
    expect(&disk, &[Kind::GroupFlags]);

    let disk = self::disk();
    disk.move_item(tree, &group, Key { offset: group.offset + MIB, ..group });
    // The next extent begins inside it.
    let kinds = disk.kinds();
    assert!(kinds.contains(&Kind::GroupLength), "{kinds:?}");
    assert!(kinds.iter().all(|kind| matches!(kind, Kind::GroupLength | Kind::GroupOverlap)), "{kinds:?}");

    let disk = self::disk();
    disk.remove(tree, &group);
    expect(&disk, &[Kind::ChunkWithoutGroup]);

    let disk = self::disk();
    let item = disk.find(tree, |key, _| *key == group).1;
    disk.insert(tree, Key { objectid: 1 << 40, ..group }, item);
    expect(&disk, &[Kind::GroupWithoutChunk]);

    let features = FeatureSet::default().block_group_tree(true);
    let disk = Disk::new(&MkfsOptions::default().features(features), 1, some_files);
    let (key, item) = disk.find(TreeId::BLOCK_GROUP, |key, _| key.item_type == ItemType::BLOCK_GROUP_ITEM);
    disk.remove(TreeId::BLOCK_GROUP, &key);
    disk.insert(TreeId::EXTENT, key, item);
    expect(&disk, &[Kind::GroupTree]);
}

#[test]
fn free_space() {
    let tree = TreeId::FREE_SPACE;
    let disk = disk();
    let (_, run) = free_run(&disk, BlockGroupFlags::DATA);
    disk.move_item(tree, &run, Key { objectid: run.objectid - 4096, offset: run.offset + 4096, ..run });
    expect(&disk, &[Kind::FreeSpaceUsed]);

    let disk = self::disk();
    disk.move_item(tree, &run, Key { objectid: run.objectid + 4096, offset: run.offset - 4096, ..run });
    expect(&disk, &[Kind::FreeSpaceMissing]);

    let disk = self::disk();
    disk.insert(tree, Key { objectid: 1 << 40, ..run }, Vec::new());
    expect(&disk, &[Kind::FreeSpaceStray]);

    let disk = self::disk();
    let (info, _) = disk.find(tree, |key, _| key.item_type == ItemType::FREE_SPACE_INFO);
    disk.edit(tree, &info, |item| item[0] += 1);
    expect(&disk, &[Kind::FreeSpaceInfo]);
    disk.remove(tree, &info);
    expect(&disk, &[Kind::FreeSpaceInfo]);
}

#[test]
fn records_of_extents() {
    let tree = TreeId::EXTENT;
    let disk = disk();
    let (_, leaf) = second_leaf(&disk);
    edit_record(&disk, leaf, |r| r.generation.0 -= 1);
    expect(&disk, &[Kind::ExtentGeneration]);
    // The kernel and `btrfs check` accept it.
    assert!(disk.check().findings.iter().all(|finding| finding.severity == Severity::Warning));

    let disk = self::disk();
    let (key, _) = record_of(&disk, leaf);
    disk.move_item(tree, &key, Key { offset: 1, ..key });
    expect(&disk, &[Kind::ExtentLevel]);

    let disk = self::disk();
    edit_record(&disk, leaf, |r| r.refs += 1);
    expect(&disk, &[Kind::ExtentRefsSum]);

    // Full backrefs on blocks without children or data, which no other tree has.
    for owner in [TreeId::UUID, TreeId::CSUM, TreeId::DEV, TreeId::DATA_RELOC] {
        let disk = self::disk();
        let root = disk.root(owner);
        assert_eq!(disk.node(root).level(), 0);
        edit_record(&disk, root, |r| r.flags |= ExtentFlags::FULL_BACKREF);
        assert!(disk.kinds().contains(&Kind::ExtentFlags), "{owner}: {:?}", disk.kinds());
    }

    // A record that is missing, and one that nothing uses: space is counted wrongly, too.
    let disk = self::disk();
    disk.remove(tree, &key);
    let of_space = [Kind::GroupUsed, Kind::SuperBytesUsed];
    expect(&disk, &[&of_space[..], &[Kind::ExtentMissing, Kind::FreeSpaceMissing]].concat());

    let disk = self::disk();
    let (_, run) = free_run(&disk, BlockGroupFlags::DATA);
    let (_, large) = extent_of_large(&disk);
    let (_, data) = record_of(&disk, Logical(large.disk_bytenr.get()));
    disk.insert(tree, Key::new(run.objectid, ItemType::EXTENT_ITEM, 4096), data.encode());
    expect(&disk, &[&of_space[..], &[Kind::ExtentUnused, Kind::FreeSpaceUsed]].concat());

    let disk = self::disk();
    let volume = disk.volume();
    let mirror = volume.chunks().iter().find_map(|chunk| volume.super_ranges_in(chunk).first().copied());
    let mirror = mirror.expect("a mirror inside a chunk").0;
    disk.insert(tree, Key::new(mirror.0, ItemType::EXTENT_ITEM, 4096), data.encode());
    expect(&disk, &[&of_space[..], &[Kind::ExtentUnused, Kind::ExtentOverSuper]].concat());

    let disk = self::disk();
    disk.insert(tree, Key::new(0, ItemType::EXTENT_ITEM, 4096), data.encode());
    let kinds = disk.kinds();
    assert!(kinds.contains(&Kind::ExtentOverSuper), "{kinds:?}");

    let disk = self::disk();
    let (_, run) = free_run(&disk, BlockGroupFlags::METADATA);
    disk.insert(tree, Key::new(run.objectid, ItemType::EXTENT_ITEM, 4096), data.encode());
    let kinds = disk.kinds();
    assert!(kinds.contains(&Kind::ExtentGroup), "{kinds:?}");

    let disk = self::disk();
    let (at, len) = (large.disk_bytenr.get(), large.disk_num_bytes.get());
    disk.insert(tree, Key::new(at + 4096, ItemType::EXTENT_ITEM, len), data.encode());
    let kinds = disk.kinds();
    assert!(kinds.contains(&Kind::ExtentOverlap) && kinds.contains(&Kind::BlockItem), "{kinds:?}");
}

#[test]
fn file_extents_and_records() {
    let disk = disk();
    let (key, extent) = extent_of_large(&disk);
    disk.edit(TreeId::FS, &key, |item| {
        let extent = FileExtentItem::mut_from_bytes(item).unwrap();
        extent.disk_num_bytes = (extent.disk_num_bytes.get() - 4096).into();
    });
    let kinds = disk.kinds();
    assert!(kinds.contains(&Kind::ExtentSize), "{kinds:?}");
    // The root block of a tree is recorded at the address of data.
    let disk = self::disk();
    let (key, _) = disk.root_key(TreeId::UUID);
    disk.edit(TreeId::ROOT, &key, |item| RootItem::mut_from_bytes(item).unwrap().bytenr = extent.disk_bytenr);
    let kinds = disk.kinds();
    assert!(kinds.contains(&Kind::BlockChecksum), "{kinds:?}");
}

#[test]
fn references_missing_stale_or_miscounted() {
    let tree = TreeId::EXTENT;
    let disk = disk();
    let (root, _) = second_leaf(&disk);
    let children = disk.node(root);
    // A leaf that snapshots share.
    let shared = (0..children.len()).map(|slot| children.child(slot).logical);
    let shared = shared.into_iter().find(|at| record_of(&disk, *at).1.refs > 1).expect("a shared leaf");
    edit_record(&disk, shared, |r| {
        // The last is the oldest tree, which owns the leaf.
        r.inline.remove(0);
        r.refs -= 1;
    });
    expect(&disk, &[Kind::ExtentRefMissing]);

    let disk = self::disk();
    edit_record(&disk, shared, |r| {
        r.inline.push(BackRef::TreeBlock { root: TreeId(999) });
        r.refs += 1;
    });
    expect(&disk, &[Kind::ExtentRefStale]);

    let disk = self::disk();
    edit_record(&disk, shared, |r| {
        r.inline.push(r.inline[0]);
        r.refs += 1;
    });
    expect(&disk, &[Kind::ExtentRefTwice, Kind::ExtentRefCount]);

    let disk = self::disk();
    let (_, large) = extent_of_large(&disk);
    let at = Logical(large.disk_bytenr.get());
    edit_record(&disk, at, |r| {
        r.inline[0] = r.inline[0].with_count(r.inline[0].count() + 1);
        r.refs += 1;
    });
    expect(&disk, &[Kind::ExtentRefCount]);

    // The same reference in an item of its own is right; with a key that is not its hash it is not.
    let disk = self::disk();
    let (key, record) = record_of(&disk, at);
    let keyed = record.inline[0];
    edit_record(&disk, at, |r| {
        r.inline.remove(0);
    });
    disk.insert(tree, keyed.key(at), keyed.encode_keyed());
    expect(&disk, &[]);
    disk.move_item(tree, &keyed.key(at), Key { offset: keyed.key_offset() ^ 1 << 20, ..keyed.key(at) });
    expect(&disk, &[Kind::ExtentRefKey]);

    let disk = self::disk();
    let (_, run) = free_run(&disk, BlockGroupFlags::DATA);
    disk.insert(tree, keyed.key(Logical(run.objectid)), keyed.encode_keyed());
    expect(&disk, &[Kind::ExtentRefWithoutExtent]);
    assert_eq!(key.objectid, at.0);
}

#[test]
fn checksums_of_data() {
    let tree = TreeId::CSUM;
    let last = |disk: &Disk| disk.items(tree).pop().unwrap();
    let disk = disk();
    let (key, _) = last(&disk);
    disk.edit(tree, &key, |item| item.truncate(item.len() - 4));
    expect(&disk, &[Kind::CsumMissing]);

    let disk = self::disk();
    let zeros = disk.volume().rules().csum.csum(&[0; 4096]);
    let (_, run) = free_run(&disk, BlockGroupFlags::DATA);
    disk.insert(tree, Key::csum(Logical(run.objectid + MIB)), zeros[..4].to_vec());
    expect(&disk, &[Kind::CsumWithoutExtent]);

    let disk = self::disk();
    let (extent_key, large) = extent_of_large(&disk);
    disk.edit(TreeId::FS, &Key::inode(oleo_format::Ino(extent_key.objectid)), |item| {
        let inode = InodeItem::mut_from_bytes(item).unwrap();
        inode.flags = (inode.flags.get() | InodeFlags::NODATASUM.bits()).into();
    });
    expect(&disk, &[Kind::CsumOdd]);

    // Preallocated for one of the two files that share it, data for the other: sound. Preallocated for both: no file
    // has written it.
    let disk = self::disk();
    let names_it = |item: &[u8]| FileExtentItem::parse(item).is_ok_and(|e| e.disk_bytenr == large.disk_bytenr);
    let both = disk.items(TreeId::FS).into_iter().filter(|(k, i)| k.item_type == ItemType::EXTENT_DATA && names_it(i));
    for ((key, _), found) in both.zip([&[][..], &[Kind::CsumOdd]]) {
        disk.edit(TreeId::FS, &key, |item| {
            FileExtentItem::mut_from_bytes(item).unwrap().r#type = FileExtentItem::PREALLOC;
        });
        expect(&disk, found);
    }

    let disk = self::disk();
    let at = Logical(large.disk_bytenr.get());
    let (device, offset) = disk.places(at)[0];
    disk.devices[device].write_at(offset + 5, b"rot").unwrap();
    expect(&disk, &[Kind::DataChecksum]);
    assert_eq!(disk.check().findings[0].at.block, Some(at));

    let options = MkfsOptions::default().data(Some(Profile::Dup));
    let disk = Disk::new(&options, 1, some_files);
    let at = Logical(extent_of_large(&disk).1.disk_bytenr.get());
    let (device, offset) = disk.places(at)[1];
    disk.devices[device].write_at(offset + 5, b"rot").unwrap();
    expect(&disk, &[Kind::DataMirror]);
}

#[test]
fn a_log_over_data() {
    let disk = disk();
    let (_, large) = extent_of_large(&disk);
    let at = Logical(large.disk_bytenr.get());
    let head = disk.node(disk.root(TreeId::ROOT)).head();
    let generation = disk.volume().super_block().generation.get() + 1;
    let head = BlockHead {
        logical: at,
        owner: TreeId::TREE_LOG,
        generation: oleo_format::Generation(generation),
        flags: HeaderFlags::empty(),
        level: 0,
        ..head
    };
    let block = LeafBuilder::new(disk.volume().rules().nodesize).finish(&head);
    disk.edit_block(at, |bytes| bytes.copy_from_slice(&block));
    disk.edit_super(0, None, true, |sb| sb.log_root = at.0.into());
    let report = check(&disk.volume(), &CheckOptions::default().threads(1)).unwrap();
    let kinds: Vec<Kind> = report.findings.iter().map(|f| f.kind).collect();
    assert_eq!(kinds, [Kind::LogSpace], "{:#?}", report.findings);
    assert_eq!(report.counts.log_blocks, 1);
}

/// A volume with a log of one tree, the top level: its items.
fn with_log(items: &[(Key, Vec<u8>)]) -> Disk {
    let disk = disk();
    let (_, run) = free_run(&disk, BlockGroupFlags::METADATA);
    let generation = disk.volume().super_block().generation.get() + 1;
    let head = disk.node(disk.root(TreeId::ROOT)).head();
    let nodesize = u64::from(disk.volume().rules().nodesize);
    let write = |at: u64, items: &[(Key, Vec<u8>)]| {
        let head = BlockHead {
            logical: Logical(at),
            owner: TreeId::TREE_LOG,
            generation: oleo_format::Generation(generation),
            level: 0,
            ..head
        };
        let mut leaf = LeafBuilder::new(disk.volume().rules().nodesize);
        items.iter().for_each(|(key, item)| assert!(leaf.push(key, item)));
        let block = leaf.finish(&head);
        disk.edit_block(Logical(at), |bytes| bytes.copy_from_slice(&block));
    };
    let at = run.objectid.next_multiple_of(nodesize);
    write(at, items);
    let root = RootItem { bytenr: at.into(), generation: generation.into(), ..RootItem::default() };
    let key = Key::new(TreeId::TREE_LOG.0, ItemType::ROOT_ITEM, TreeId::FS.0);
    write(at + nodesize, &[(key, root.as_bytes().to_vec())]);
    disk.edit_super(0, None, true, |sb| sb.log_root = (at + nodesize).into());
    disk
}

/// Goal: data that a log names has checksums, in the log or in the tree of all, whose checksums then are not stray.
/// Method: a log with a file of two sectors in free space: without checksums, with some, with all; with those in the tree of
/// all; a file without checksums.
#[test]
fn checksums_of_a_log() {
    let plain = disk();
    let (_, run) = free_run(&plain, BlockGroupFlags::DATA);
    let at = run.objectid;
    let inode = |flags: InodeFlags| InodeItem {
        generation: 1.into(),
        mode: 0o100_644.into(),
        nlink: 1.into(),
        flags: flags.bits().into(),
        ..InodeItem::default()
    };
    let extent = FileExtentItem {
        generation: 1.into(),
        ram_bytes: 8192.into(),
        r#type: FileExtentItem::REG,
        disk_bytenr: at.into(),
        disk_num_bytes: 8192.into(),
        num_bytes: 8192.into(),
        ..FileExtentItem::default()
    };
    let file = |flags| {
        let ino = oleo_format::Ino(1000);
        vec![
            (Key::inode(ino), inode(flags).as_bytes().to_vec()),
            (Key::extent_data(ino, 0), extent.as_bytes().to_vec()),
        ]
    };
    let csums = |sectors: usize| (Key::csum(Logical(at)), vec![7; 4 * sectors]);
    let of_kind = |disk: &Disk| {
        let report = check(&disk.volume(), &CheckOptions::default().threads(1)).unwrap();
        report.findings.iter().map(|f| f.kind).collect::<Vec<_>>()
    };
    let logged = |flags, sectors| {
        let mut items = vec![];
        items.extend(file(flags));
        items.extend((sectors > 0).then(|| csums(sectors)));
        with_log(&items)
    };
    let none = InodeFlags::empty();
    assert_eq!(of_kind(&logged(none, 0)), [Kind::LogCsum]);
    assert_eq!(of_kind(&logged(none, 1)), [Kind::LogCsum]);
    assert_eq!(of_kind(&logged(none, 2)), []);
    assert_eq!(of_kind(&logged(InodeFlags::NODATASUM, 0)), []);
    let both = logged(none, 0);
    both.insert(TreeId::CSUM, csums(2).0, csums(2).1);
    assert_eq!(of_kind(&both), []);
    let stray = disk();
    stray.insert(TreeId::CSUM, csums(2).0, csums(2).1);
    assert_eq!(of_kind(&stray), [Kind::CsumWithoutExtent]);
}

/// Goal: what old versions of mkfs.btrfs have left is sound: a root directory in the uuid tree; entries of the free-space tree
/// for block groups before the first are worth a warning, and so is an extent without one.
#[test]
fn leftovers_of_mkfs() {
    let disk = disk();
    let (key, item) = disk.find(TreeId::FS, |key, _| key.item_type == ItemType::INODE_ITEM);
    let (ref_key, ref_item) = disk.find(TreeId::FS, |key, _| key.item_type == ItemType::INODE_REF);
    disk.insert(TreeId::UUID, key, item);
    disk.insert(TreeId::UUID, ref_key, ref_item);
    expect(&disk, &[]);
    let disk = self::disk();
    let (key, item) = disk.find(TreeId::FREE_SPACE, |key, _| key.item_type == ItemType::FREE_SPACE_INFO);
    assert!(key.objectid >= MIB);
    disk.insert(TreeId::FREE_SPACE, Key { objectid: 4096, offset: 8192, ..key }, item);
    expect(&disk, &[Kind::FreeSpaceLeftover]);
    let extent = |at: u64, len| Key::new(at, ItemType::FREE_SPACE_EXTENT, len);
    disk.insert(TreeId::FREE_SPACE, extent(8192, 4096), Vec::new());
    expect(&disk, &[Kind::FreeSpaceLeftover]);
    disk.insert(TreeId::FREE_SPACE, extent(16384, 4096), Vec::new());
    expect(&disk, &[Kind::FreeSpaceLeftover, Kind::FreeSpaceStray]);
    assert!(!disk.check().has_errors());
}

/// Goal: a check ends whatever is changed, and reports something if meaningful bytes changed. Method: the same block
/// made its own child; then many changes of random bytes of tree blocks, sealed.
#[test]
fn random_changes_end_in_findings() {
    let disk = disk();
    let (root, leaf) = second_leaf(&disk);
    disk.edit_block(root, |bytes| {
        let (ptrs, _) = <[KeyPtr]>::mut_from_prefix_with_elems(&mut bytes[HEADER_LEN..], 2).unwrap();
        ptrs[1].blockptr = root.0.into();
    });
    assert!(disk.check().has_errors());
    let mut rng = oleo_sim::rng::Rng::new(7);
    let blocks = [TreeId::EXTENT, TreeId::CSUM, TreeId::FREE_SPACE, TreeId::DEV, TreeId::FS, TreeId::UUID];
    for round in 0..200 {
        let disk = self::disk();
        let at = if round % 7 == 0 { leaf } else { disk.root(*rng.pick(&blocks).unwrap()) };
        let (offset, value) = (rng.below(16384) as usize, rng.next_u64().as_bytes()[0]);
        disk.edit_block(at, |bytes| bytes[offset] = value);
        let _ = disk.check();
    }
}
