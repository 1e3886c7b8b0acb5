//! Each test case breaks one thing in a sound block and expects exactly that finding.

use uuid::Uuid;
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::*;

type Items = Vec<(Key, Vec<u8>)>;

fn rules() -> NodeRules {
    NodeRules {
        fsid: Uuid::from_u128(7),
        nodesize: 4096,
        sectorsize: 4096,
        csum: CsumType::Crc32c,
        features: Features { incompat: Incompat::SKINNY_METADATA | Incompat::NO_HOLES, ..Features::default() },
    }
}

fn head(owner: TreeId, level: u8) -> BlockHead {
    BlockHead {
        logical: Logical(1 << 20),
        generation: Generation(9),
        owner,
        level,
        flags: HeaderFlags::empty(),
        fsid: Uuid::from_u128(7),
        chunk_tree_uuid: Uuid::from_u128(8),
    }
}

fn expect() -> NodeExpect {
    NodeExpect::at(Logical(1 << 20))
}

fn leaf(owner: TreeId, items: &[(Key, Vec<u8>)]) -> Box<[u8]> {
    let mut builder = LeafBuilder::new(4096);
    for (key, data) in items {
        assert!(builder.push(key, data), "{key} fits");
    }
    builder.finish(&head(owner, 0))
}

fn verify(mut bytes: Box<[u8]>) -> Result<CheckedNode, Corruption> {
    seal(&mut bytes, CsumType::Crc32c);
    CheckedNode::verify(bytes, &rules(), &expect())
}

fn key(objectid: u64, item_type: ItemType, offset: u64) -> Key {
    Key::new(objectid, item_type, offset)
}

fn inode(mode: u32) -> Vec<u8> {
    InodeItem { mode: mode.into(), nlink: 1.into(), ..Default::default() }.as_bytes().to_vec()
}

fn entry(name: &[u8], file_type: FileType, location: Key) -> Vec<u8> {
    DirEntry { location, transid: Generation(3), file_type, name: name.to_vec(), data: Vec::new() }.encode()
}

fn disk_extent() -> DiskExtent {
    DiskExtent {
        generation: Generation(3),
        ram_bytes: ByteLen(16384),
        compression: Compression::None,
        disk_bytenr: Logical(1 << 24),
        disk_num_bytes: ByteLen(16384),
        offset: ByteLen(4096),
        num_bytes: ByteLen(8192),
    }
}

/// A leaf of a subvolume with every kind of item of files.
fn files() -> (TreeId, Items) {
    let (dir, file) = (Ino(256), Ino(257));
    let attr = DirEntry {
        location: Key::MIN,
        transid: Generation(3),
        file_type: FileType::Xattr,
        name: b"user.x".to_vec(),
        data: b"value".to_vec(),
    };
    let inline = FileExtent::Inline {
        generation: Generation(3),
        ram_bytes: ByteLen(5),
        compression: Compression::None,
        data: b"hello".to_vec(),
    };
    let extref = InodeExtrefEntry { parent: dir, index: 3, name: b"b".to_vec() };
    let items = vec![
        (Key::inode(dir), inode(0o40755)),
        (Key::inode_ref(dir, dir), InodeRefEntry { index: 0, name: b"..".to_vec() }.encode()),
        (Key::dir_item(dir, b"a"), entry(b"a", FileType::RegFile, Key::inode(file))),
        (Key::dir_index(dir, 2), entry(b"a", FileType::RegFile, Key::inode(file))),
        (Key::inode(file), inode(0o100644)),
        (Key::inode_ref(file, dir), InodeRefEntry { index: 2, name: b"a".to_vec() }.encode()),
        (Key::inode_extref(file, dir, b"b"), extref.encode()),
        (Key::xattr(file, b"user.x"), attr.encode()),
        (key(257, ItemType::VERITY_DESC_ITEM, 0), VerityDescriptorItem::default().as_bytes().to_vec()),
        (Key::extent_data(file, 0), inline.encode()),
        (Key::extent_data(file, 4096), FileExtent::Regular(disk_extent()).encode()),
        (Key::extent_data(file, 12288), FileExtent::Prealloc(disk_extent()).encode()),
        (Key::orphan(257), Vec::new()),
    ];
    (TreeId(300), items)
}

fn extents() -> (TreeId, Items) {
    let data = |root, ino, count| BackRef::Data { root: TreeId(root), ino: Ino(ino), offset: 0, count };
    let record = ExtentRecord {
        refs: 10,
        generation: Generation(3),
        flags: ExtentFlags::DATA,
        tree_block: None,
        inline: vec![data(5, 257, 2), data(300, 258, 1), BackRef::SharedData { parent: Logical(1 << 20), count: 3 }],
    };
    let block = ExtentRecord {
        refs: 2,
        flags: ExtentFlags::TREE_BLOCK | ExtentFlags::FULL_BACKREF,
        inline: vec![BackRef::TreeBlock { root: TreeId(5) }, BackRef::SharedBlock { parent: Logical(1 << 20) }],
        ..record.clone()
    };
    let at = Logical(1 << 24);
    let far = BackRef::Data { root: TreeId(5), ino: Ino(999), offset: 4096, count: 2 };
    let group = BlockGroupItem { used: 4096.into(), chunk_objectid: 256.into(), flags: 1.into() };
    let items = vec![
        (key(at.0, ItemType::EXTENT_ITEM, 16384), record.encode()),
        (far.key(at), far.encode_keyed()),
        (Key::block_group(at, ByteLen(1 << 23)), group.as_bytes().to_vec()),
        (key((1 << 24) + 16384, ItemType::METADATA_ITEM, 1), block.encode()),
    ];
    (TreeId::EXTENT, items)
}

fn chunks() -> (TreeId, Items) {
    let stripe = |offset: u64| Stripe { devid: 1.into(), offset: offset.into(), dev_uuid: [3; 16] };
    let chunk = Chunk {
        length: ByteLen(8 << 20),
        owner: TreeId::EXTENT,
        stripe_len: STRIPE_LEN,
        flags: BlockGroupFlags::METADATA | BlockGroupFlags::DUP,
        io_align: 65536,
        io_width: 65536,
        sector_size: 4096,
        sub_stripes: 1,
        stripes: vec![stripe(1 << 20), stripe(16 << 20)],
    };
    let dev =
        DevItem { devid: 1.into(), total_bytes: (1 << 30).into(), bytes_used: (16 << 20).into(), ..Default::default() };
    let items = vec![
        (key(1, ItemType::DEV_ITEM, 1), dev.as_bytes().to_vec()),
        (Chunk::key(Logical(1 << 24)), chunk.encode()),
        (Chunk::key(Logical(2 << 24)), chunk.encode()),
    ];
    (TreeId::CHUNK, items)
}

fn devices() -> (TreeId, Items) {
    let extent = DevExtent {
        chunk_tree: 3.into(),
        chunk_objectid: 256.into(),
        chunk_offset: (1 << 24).into(),
        length: (8 << 20).into(),
        chunk_tree_uuid: [0; 16],
    };
    let items = vec![
        (key(0, ItemType::PERSISTENT_ITEM, 1), DevStatsItem::default().as_bytes().to_vec()),
        (key(0, ItemType::DEV_REPLACE, 0), DevReplaceItem::default().as_bytes().to_vec()),
        (key(1, ItemType::DEV_EXTENT, 1 << 20), extent.as_bytes().to_vec()),
        (key(1, ItemType::DEV_EXTENT, 16 << 20), extent.as_bytes().to_vec()),
    ];
    (TreeId::DEV, items)
}

fn free_space() -> (TreeId, Items) {
    let info = FreeSpaceInfo { extent_count: 2.into(), flags: 0.into() };
    let items = vec![
        (key(1 << 24, ItemType::FREE_SPACE_INFO, 8 << 20), info.as_bytes().to_vec()),
        (key(1 << 24, ItemType::FREE_SPACE_EXTENT, 8192), Vec::new()),
        (key((1 << 24) + 16384, ItemType::FREE_SPACE_BITMAP, 65536), vec![0x0f, 0xf0]),
    ];
    (TreeId::FREE_SPACE, items)
}

fn roots() -> (TreeId, Items) {
    let root = RootItem { bytenr: (1 << 20).into(), generation: 3.into(), ..Default::default() };
    let link = RootRefEntry { dirid: Ino(256), sequence: 2, name: b"sub".to_vec() };
    let items = vec![
        (key(5, ItemType::ROOT_ITEM, 0), root.encode()),
        (Key::root_ref(TreeId(5), TreeId(300)), link.encode()),
        (key(300, ItemType::ROOT_ITEM, 7), root.encode()[..ROOT_ITEM_SHORT_LEN].to_vec()),
        (Key::root_backref(TreeId(300), TreeId(5)), link.encode()),
        (Key::balance(), BalanceItem::default().as_bytes().to_vec()),
    ];
    (TreeId::ROOT, items)
}

fn sorted(mut items: Items) -> Items {
    items.sort_by_key(|(key, _)| *key);
    items
}

fn quota() -> (TreeId, Items) {
    let items = vec![
        (key(0, ItemType::QGROUP_STATUS, 0), vec![0; 40]),
        (key(0, ItemType::QGROUP_INFO, 5), vec![0; 40]),
        (key(0, ItemType::QGROUP_LIMIT, 5), vec![0; 40]),
        (key(5, ItemType::QGROUP_RELATION, 1 << 48), Vec::new()),
    ];
    (TreeId::QUOTA, items)
}

fn csums() -> (TreeId, Items) {
    (
        TreeId::CSUM,
        vec![(Key::csum(Logical(1 << 24)), vec![1; 16]), (Key::csum(Logical((1 << 24) + 16384)), vec![1; 4])],
    )
}

fn uuids() -> (TreeId, Items) {
    let at = |t| Key::uuid(Uuid::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10), t);
    (TreeId::UUID, vec![(at(ItemType::UUID_SUBVOL), vec![0; 8]), (at(ItemType::UUID_RECEIVED_SUBVOL), vec![0; 16])])
}

fn all() -> [(TreeId, Items); 9] {
    [files(), extents(), chunks(), devices(), free_space(), roots(), quota(), csums(), uuids()]
}

/// Goal: sound blocks pass, and what was built is read.
#[test]
fn sound_leaves_pass() {
    for (owner, items) in all() {
        let node = verify(leaf(owner, &items)).unwrap();
        assert_eq!(node.len(), items.len());
        for (slot, (key, data)) in items.iter().enumerate() {
            assert_eq!((node.key(slot), node.item(slot)), (*key, &data[..]));
            assert_eq!(node.search(key), Ok(slot));
        }
        let used: usize = items.iter().map(|(_, d)| d.len() + ITEM_LEN).sum();
        assert_eq!(node.free_bytes(), leaf_capacity(4096) - used);
    }
}

/// Breaks one item of a sound leaf: its key, its bytes.
fn broken(sound: fn() -> (TreeId, Items), slot: usize, change: impl Fn(&mut Key, &mut Vec<u8>)) -> Corruption {
    let (owner, mut items) = sound();
    let (key, data) = &mut items[slot];
    change(key, data);
    let broken = sorted(items);
    verify(leaf(owner, &broken)).expect_err("the damage is found")
}

/// Puts a struct over the start of an item.
fn edit<T: FromBytes + IntoBytes + zerocopy::KnownLayout + zerocopy::Immutable>(data: &mut [u8], f: impl Fn(&mut T)) {
    f(T::mut_from_prefix(data).unwrap().0);
}

macro_rules! finds {
    ($sound:ident[$slot:expr], $what:literal, $change:expr) => {{
        let e = broken($sound, $slot, $change);
        assert_eq!(e.what, $what, "{e}");
        assert!(e.at.starts_with("block 1048576, slot "), "{e}");
    }};
}

/// Goal: each rule about items of files is checked, and named.
#[test]
fn files_are_checked() {
    finds!(files[0], "mode", |_, d| edit::<InodeItem>(d, |i| i.mode = 0o000644.into()));
    finds!(files[0], "mode", |_, d| edit::<InodeItem>(d, |i| i.mode = 0o1040755.into()));
    finds!(files[0], "nlink of a directory", |_, d| edit::<InodeItem>(d, |i| i.nlink = 2.into()));
    finds!(files[4], "flags", |_, d| edit::<InodeItem>(d, |i| i.flags = (1 << 20).into()));
    finds!(files[4], "length in bytes", |_, d| d.truncate(159));
    finds!(files[4], "offset of its key", |k, _| k.offset = 1);
    finds!(files[1], "length of its name", |_, d| edit::<InodeRef>(d, |r| r.name_len = 3.into()));
    finds!(files[1], "length of its name", |_, d| {
        d.truncate(10);
        edit::<InodeRef>(d, |r| r.name_len = 0.into());
    });
    finds!(files[1], "length", |_, d| d.clear());
    finds!(files[6], "length of its name", |_, d| edit::<InodeExtref>(d, |r| r.name_len = 9.into()));
    finds!(files[2], "hash of its name", |_, d| *d.last_mut().unwrap() = b'c');
    finds!(files[2], "type", |_, d| edit::<DirItem>(d, |e| e.r#type = 9));
    finds!(files[2], "type", |_, d| edit::<DirItem>(d, |e| e.r#type = 8));
    finds!(files[2], "location", |_, d| edit::<DirItem>(d, |e| e.location = Key::inode(Ino(9)).into()));
    finds!(files[2], "location", |_, d| edit::<DirItem>(d, |e| e.location = key(257, ItemType::DIR_ITEM, 0).into()));
    finds!(files[3], "name", |_, d| *d.last_mut().unwrap() = b'/');
    finds!(files[3], "name", |_, d| *d.last_mut().unwrap() = 0);
    finds!(files[3], "name", |_, d| *d.last_mut().unwrap() = b'.');
    finds!(files[3], "index", |k, _| k.offset = u64::MAX);
    for bad in [b'/', b'.', 0] {
        finds!(files[5], "name", |_, d| *d.last_mut().unwrap() = bad);
        finds!(files[6], "name", |_, d| *d.last_mut().unwrap() = bad);
    }
    finds!(files[3], "entries of one index", |_, d| d.extend_from_within(..));
    finds!(files[7], "type", |_, d| edit::<DirItem>(d, |e| e.r#type = 1));
    finds!(files[7], "location", |_, d| edit::<DirItem>(d, |e| e.location.objectid = 1.into()));
    finds!(files[7], "length of its name", |_, d| edit::<DirItem>(d, |e| e.data_len = 6.into()));
    finds!(files[8], "encryption", |_, d| edit::<VerityDescriptorItem>(d, |v| v.encryption = 1));
    // An item of an inode after those of another inode.
    finds!(files[5], "item before it", |k, _| k.objectid = 256 + 2);
}

/// Goal: each rule about file extents is checked.
#[test]
fn file_extents_are_checked() {
    type E = FileExtentItem;
    finds!(files[9], "length of its data", |_, d| d.push(0));
    finds!(files[9], "compression", |_, d| edit::<FileExtentHead>(d, |e| e.compression = 4));
    finds!(files[9], "encryption", |_, d| edit::<FileExtentHead>(d, |e| e.encryption = 1));
    finds!(files[9], "ram_bytes", |_, d| edit::<FileExtentHead>(d, |e| {
        e.compression = 1;
        e.ram_bytes = 4097.into();
    }));
    finds!(files[10], "type", |_, d| edit::<E>(d, |e| e.r#type = 3));
    finds!(files[10], "length in bytes", |_, d| d.truncate(52));
    finds!(files[10], "offset of its key", |k, _| k.offset += 1);
    finds!(files[10], "ram_bytes", |_, d| edit::<E>(d, |e| e.ram_bytes = 16385.into()));
    finds!(files[10], "disk_bytenr", |_, d| edit::<E>(d, |e| e.disk_bytenr = 16385.into()));
    finds!(files[10], "disk_num_bytes", |_, d| edit::<E>(d, |e| e.disk_num_bytes = 16385.into()));
    finds!(files[10], "offset", |_, d| edit::<E>(d, |e| e.offset = 1.into()));
    finds!(files[10], "num_bytes", |_, d| edit::<E>(d, |e| e.num_bytes = 1.into()));
    finds!(files[10], "length", |_, d| edit::<E>(d, |e| e.num_bytes = 0.into()));
    finds!(files[10], "num_bytes", |_, d| edit::<E>(d, |e| e.num_bytes = (!4095).into()));
    finds!(files[10], "offset and num_bytes", |_, d| edit::<E>(d, |e| e.offset = 12288.into()));
    // Whatever the length of an uncompressed extent claims to be, it does not continue behind its end on disk.
    finds!(files[10], "offset and num_bytes", |_, d| edit::<E>(d, |e| {
        e.ram_bytes = (1 << 20).into();
        e.offset = 16384.into();
    }));
    finds!(files[10], "disk_num_bytes", |_, d| edit::<E>(d, |e| e.disk_bytenr = (!4095).into()));
    finds!(files[10], "disk_num_bytes of a hole", |_, d| edit::<E>(d, |e| e.disk_bytenr = 0.into()));
    finds!(files[10], "ram_bytes of a compressed one", |_, d| edit::<E>(d, |e| {
        e.compression = 3;
        e.ram_bytes = (256 << 10).into();
    }));
    finds!(files[11], "compression of a preallocated one", |_, d| edit::<E>(d, |e| e.compression = 3));
    finds!(files[11], "end of the one before it", |k, _| k.offset = 8192);
}

/// Goal: each rule about extent items and references is checked.
#[test]
fn extents_are_checked() {
    type E = ExtentItem;
    finds!(extents[0], "address", |k, _| k.objectid += 1);
    finds!(extents[0], "length", |k, _| k.offset += 1);
    finds!(extents[0], "refs", |_, d| edit::<E>(d, |e| e.refs = 0.into()));
    finds!(extents[0], "flags", |_, d| edit::<E>(d, |e| e.flags = 3.into()));
    finds!(extents[0], "flags", |_, d| edit::<E>(d, |e| e.flags = 0x101.into()));
    finds!(extents[0], "sum of counts", |_, d| edit::<E>(d, |e| e.refs = 5.into()));
    finds!(extents[0], "type", |_, d| d[24] = 99);
    finds!(extents[0], "type", |_, d| {
        d.truncate(24);
        d.extend([ItemType::TREE_BLOCK_REF.0, 5, 0, 0, 0, 0, 0, 0, 0]);
    });
    finds!(extents[0], "length", |_, d| d.truncate(d.len() - 1));
    finds!(extents[0], "order", |_, d| {
        let (first, second) = d[24..24 + 58].split_at_mut(29);
        first.swap_with_slice(second);
    });
    finds!(extents[0], "root", |_, d| d[25..33].copy_from_slice(&2u64.to_le_bytes()));
    finds!(extents[0], "count", |_, d| d[24 + 25] = 0);
    finds!(extents[0], "parent", |_, d| d[24 + 58 + 1] = 1);
    finds!(extents[1], "objectid", |_, d| edit::<ExtentDataRef>(d, |r| r.objectid = 3.into()));
    finds!(extents[1], "offset", |_, d| edit::<ExtentDataRef>(d, |r| r.offset = 3.into()));
    finds!(extents[1], "length in bytes", |_, d| d.truncate(27));
    finds!(extents[1], "type of its key", |k, _| k.item_type = ItemType::EXTENT_REF_V0);
    finds!(extents[2], "used", |_, d| edit::<BlockGroupItem>(d, |g| g.used = (1 << 30).into()));
    finds!(extents[2], "chunk_objectid", |_, d| edit::<BlockGroupItem>(d, |g| g.chunk_objectid = 1.into()));
    finds!(extents[2], "type", |_, d| edit::<BlockGroupItem>(d, |g| g.flags = 5.into()));
    finds!(extents[2], "profile", |_, d| edit::<BlockGroupItem>(d, |g| g.flags = 0x19.into()));
    finds!(extents[3], "level", |k, _| k.offset = 8);
    finds!(extents[3], "flags", |_, d| edit::<E>(d, |e| e.flags = 1.into()));
    let e = {
        let (owner, mut items) = extents();
        items.truncate(1);
        items.push((key((1 << 24) + 8192, ItemType::METADATA_ITEM, 0), extents().1[3].1.clone()));
        verify(leaf(owner, &items)).unwrap_err()
    };
    assert_eq!(e.what, "end of the one before it");
}

/// Goal: each rule about chunks, devices, free space, roots, quota, checksums is checked.
#[test]
fn the_rest_is_checked() {
    finds!(chunks[0], "devid", |_, d| edit::<DevItem>(d, |v| v.devid = 2.into()));
    finds!(chunks[0], "bytes_used", |_, d| edit::<DevItem>(d, |v| v.bytes_used = (2 << 30).into()));
    finds!(chunks[1], "length", |_, d| edit::<ChunkItem>(d, |c| c.length = 100.into()));
    finds!(chunks[1], "stripe_len", |_, d| edit::<ChunkItem>(d, |c| c.stripe_len = 4096.into()));
    finds!(chunks[1], "sector_size", |_, d| edit::<ChunkItem>(d, |c| c.sector_size = 512.into()));
    finds!(chunks[1], "type", |_, d| edit::<ChunkItem>(d, |c| c.r#type = (1 << 30 | 1).into()));
    finds!(chunks[1], "profile", |_, d| edit::<ChunkItem>(d, |c| c.r#type = 0x31.into()));
    finds!(chunks[1], "num_stripes", |_, d| edit::<ChunkItem>(d, |c| c.r#type = 4.into()));
    finds!(chunks[1], "num_stripes", |_, d| edit::<ChunkItem>(d, |c| c.num_stripes = 3.into()));
    finds!(chunks[1], "length of the item", |_, d| edit::<ChunkItem>(d, |c| c.num_stripes = 1.into()));
    finds!(chunks[1], "sub_stripes", |_, d| edit::<ChunkItem>(d, |c| c.r#type = 0x44.into()));
    finds!(chunks[1], "offset of a stripe", |_, d| d[48 + 8] = 1);
    finds!(chunks[1], "objectid", |k, _| k.objectid = 1);
    finds!(chunks[1], "end of the one before it", |_, d| edit::<ChunkItem>(d, |c| c.length = (32 << 20).into()));
    finds!(devices[1], "length in bytes", |_, d| d.truncate(71));
    finds!(devices[2], "chunk_tree", |_, d| edit::<DevExtent>(d, |e| e.chunk_tree = 4.into()));
    finds!(devices[2], "length", |_, d| edit::<DevExtent>(d, |e| e.length = 0.into()));
    finds!(devices[2], "end of the one before it", |_, d| edit::<DevExtent>(d, |e| e.length = (32 << 20).into()));
    finds!(free_space[0], "length in bytes", |_, d| d.truncate(7));
    finds!(free_space[1], "length", |k, _| k.offset = 0);
    finds!(free_space[2], "length of its bitmap", |_, d| d.push(0));
    finds!(free_space[2], "end of the one before it", |k, _| k.objectid = (1 << 24) + 4096);
    finds!(roots[0], "bytenr", |_, d| edit::<RootItem>(d, |r| r.bytenr = 5.into()));
    finds!(roots[0], "level", |_, d| edit::<RootItem>(d, |r| r.level = 8));
    finds!(roots[0], "flags", |_, d| edit::<RootItem>(d, |r| r.flags = 2.into()));
    finds!(roots[0], "length", |_, d| d.truncate(300));
    finds!(roots[0], "offset of its key", |k, _| *k = key(7, ItemType::ROOT_ITEM, 1));
    finds!(roots[1], "name", |_, d| *d.last_mut().unwrap() = b'/');
    finds!(roots[1], "length of its name", |_, d| edit::<RootRef>(d, |r| r.name_len = 30.into()));
    finds!(roots[4], "length in bytes", |_, d| d.truncate(300));
    finds!(quota[0], "length in bytes", |_, d| d.truncate(31));
    finds!(quota[1], "length in bytes", |_, d| d.truncate(39));
    finds!(csums[0], "length", |_, d| d.push(0));
    finds!(csums[0], "end of the one before it", |_, d| d.extend([0; 4]));
    finds!(csums[0], "objectid", |k, _| k.objectid -= 1);
    finds!(uuids[0], "length", |_, d| d.truncate(7));
    finds!(uuids[0], "item type", |k, _| k.item_type = ItemType::CHUNK_ITEM);
}

/// Goal: blocks are accepted whose items have what the kernel does not look at (docs/tolerance.md).
#[test]
fn leftovers_are_accepted() {
    macro_rules! accepts {
        ($sound:ident[$slot:expr], $change:expr) => {{
            let (owner, mut items) = $sound();
            let (key, data) = &mut items[$slot];
            let change: fn(&mut Key, &mut Vec<u8>) = $change;
            change(key, data);
            verify(leaf(owner, &items)).unwrap();
        }};
    }
    accepts!(files[4], |_, d| edit::<InodeItem>(d, |i| i.flags = (1 << 40).into()));
    accepts!(files[4], |_, d| edit::<InodeItem>(d, |i| i.mtime.nsec = 2_000_000_000.into()));
    accepts!(files[2], |_, d| edit::<DirItem>(d, |e| e.r#type |= 0x80));
    accepts!(files[10], |_, d| edit::<FileExtentItem>(d, |e| e.other_encoding = 1.into()));
    accepts!(files[12], |_, d| d.push(0));
    accepts!(devices[0], |_, d| d.truncate(39));
    accepts!(devices[1], |_, d| d.push(0));
    accepts!(devices[2], |_, d| d.push(0));
    accepts!(free_space[0], |_, d| edit::<FreeSpaceInfo>(d, |i| i.flags = 2.into()));
    accepts!(free_space[0], |_, d| d.push(0));
    accepts!(free_space[1], |_, d| d.push(0));
    for slot in 0..4 {
        let (owner, mut items) = quota();
        items[slot].1.push(0);
        verify(leaf(owner, &items)).unwrap();
    }
    accepts!(uuids[0], |_, d| d.push(0));
}

/// Goal: everything about the block itself is checked.
#[test]
fn the_block_is_checked() {
    let (owner, items) = files();
    let sound = || leaf(owner, &items);
    let what = |r: Result<CheckedNode, Corruption>| r.unwrap_err().what.into_owned();
    let header = |f: &dyn Fn(&mut Header)| {
        let mut bytes = sound();
        edit::<Header>(&mut bytes, f);
        what(verify(bytes))
    };
    assert_eq!(header(&|h| h.bytenr = 5.into()), "bytenr");
    assert_eq!(header(&|h| h.fsid = [0; 16]), "fsid");
    assert_eq!(header(&|h| h.level = 8), "level");
    assert_eq!(header(&|h| h.owner = 0.into()), "owner");
    assert_eq!(header(&|h| h.nritems = 14.into()), "order of keys");
    assert_eq!(header(&|h| h.nritems = 1_000_000.into()), "nritems");
    assert_eq!(header(&|h| h.nritems = u32::MAX.into()), "nritems");

    let mut bytes = sound();
    seal(&mut bytes, CsumType::Crc32c);
    let expected =
        |e: NodeExpect| CheckedNode::verify(bytes.clone(), &rules(), &e).map_err(|e| e.what.into_owned()).err();
    assert_eq!(expected(expect()), None);
    assert_eq!(expected(NodeExpect { generation: Some(Generation(8)), ..expect() }).unwrap(), "generation");
    assert_eq!(expected(NodeExpect { level: Some(1), ..expect() }).unwrap(), "level");
    assert_eq!(expected(NodeExpect { owner: Some(TreeId(5)), ..expect() }).unwrap(), "owner");
    assert_eq!(expected(NodeExpect { first_key: Some(Key::MIN), ..expect() }).unwrap(), "first key");
    let mut flipped = bytes.clone();
    flipped[4000] ^= 1;
    assert_eq!(what(CheckedNode::verify(flipped, &rules(), &expect())), "checksum");
    assert_eq!(what(CheckedNode::verify(vec![0; 8192].into(), &rules(), &expect())), "length");

    let item = |f: &dyn Fn(&mut DiskItem)| {
        let mut bytes = sound();
        edit::<DiskItem>(&mut bytes[HEADER_LEN..], f);
        what(verify(bytes))
    };
    assert_eq!(item(&|i| i.size = 159.into()), "place of the item's data");
    assert_eq!(item(&|i| i.offset = u32::MAX.into()), "place of the item's data");
    assert_eq!(item(&|i| i.key.objectid = 400.into()), "order of keys");
    assert_eq!(what(verify(leaf(TreeId::FS, &[]))), "nritems");
    assert!(verify(leaf(TreeId::CSUM, &[])).is_ok());
}

/// Goal: nodes are checked too.
#[test]
fn nodes_are_checked() {
    let child = |n: u64| ChildPtr { key: Key::inode(Ino(n)), logical: Logical(n << 16), generation: Generation(n) };
    let node = |children: &[ChildPtr]| verify(encode_node(4096, &head(TreeId::FS, 1), children));
    let what = |r: Result<CheckedNode, Corruption>| r.unwrap_err().what.into_owned();
    let sound = node(&[child(256), child(300)]).unwrap();
    assert_eq!(sound.child(1), child(300));
    assert_eq!([255, 256, 299, 300, 999].map(|n| sound.child_slot(&Key::inode(Ino(n)))), [0, 0, 0, 1, 1]);
    assert_eq!(what(node(&[])), "nritems");
    assert_eq!(what(node(&[child(300), child(256)])), "order of keys");
    assert_eq!(what(node(&[ChildPtr { logical: Logical(0), ..child(256) }])), "blockptr");
    assert_eq!(what(node(&[ChildPtr { logical: Logical(100), ..child(256) }])), "blockptr");
    assert_eq!(what(node(&[ChildPtr { logical: Logical(!4095), ..child(256) }])), "blockptr");
    let full: Vec<ChildPtr> = (0..node_capacity(4096) as u64).map(|n| child(256 + n)).collect();
    assert_eq!(node(&full).unwrap().len(), 121);
}

mod random {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        /// Goal: no damage makes the verifier or the printers panic, and what the verifier accepts can be read. Method:
        /// flip bytes of sound leaves, checksums corrected; walk everything that passes.
        #[test]
        fn damage_does_not_panic(which in 0usize..9, flips in prop::collection::vec((32usize..4096, any::<u8>()), 1..6), in_items: bool) {
            let (owner, items) = all()[which].clone();
            let mut bytes = leaf(owner, &items);
            for (at, with) in flips {
                // The middle of a leaf is empty: most damage goes to the used parts.
                let at = if in_items { 4095 - at % 1200 } else { 32 + at % 500 };
                bytes[at] = with;
            }
            if let Ok(node) = verify(bytes) {
                for (key, data) in node.iter() {
                    data_use(&key, data);
                    prop_assert!(print::json::item(&key, data, &rules()).get("error").is_none(), "{key}");
                }
                let _ = print::block(&node, &rules()).to_string();
            }
        }

        /// Goal: noise in place of an item never makes parsing or printing panic.
        #[test]
        fn noise_does_not_panic(item_type: u8, objectid: u64, offset: u64, data in prop::collection::vec(any::<u8>(), 0..500)) {
            let key = Key::new(objectid, ItemType(item_type), offset);
            let _ = print::item(&key, &data, &rules());
            let _ = print::json::item(&key, &data, &rules());
            let _ = super::super::item(&Item { rules: &rules(), owner: TreeId::FS, key, data: &data, prev: None });
        }
    }
}
