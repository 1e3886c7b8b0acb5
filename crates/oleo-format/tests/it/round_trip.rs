//! Owned items: encoding and parsing are inverse to each other.

use oleo_format::*;
use proptest::collection::vec;
use proptest::prelude::*;

fn name() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 1..=255)
}

fn key() -> impl Strategy<Value = Key> {
    (any::<u64>(), any::<u8>(), any::<u64>()).prop_map(|(o, t, f)| Key::new(o, ItemType(t), f))
}

fn compression() -> impl Strategy<Value = Compression> {
    (0u8..4).prop_map(|c| Compression::from_disk(c).unwrap())
}

fn disk_extent() -> impl Strategy<Value = DiskExtent> {
    (any::<[u64; 6]>(), compression()).prop_map(|([g, r, b, n, o, l], compression)| DiskExtent {
        generation: Generation(g),
        ram_bytes: ByteLen(r),
        compression,
        disk_bytenr: Logical(b),
        disk_num_bytes: ByteLen(n),
        offset: ByteLen(o),
        num_bytes: ByteLen(l),
    })
}

fn file_extent() -> impl Strategy<Value = FileExtent> {
    prop_oneof![
        disk_extent().prop_map(FileExtent::Regular),
        disk_extent().prop_map(FileExtent::Prealloc),
        (any::<u64>(), any::<u64>(), compression(), vec(any::<u8>(), 0..300)).prop_map(|(g, r, compression, data)| {
            FileExtent::Inline { generation: Generation(g), ram_bytes: ByteLen(r), compression, data }
        }),
    ]
}

fn back_ref() -> impl Strategy<Value = BackRef> {
    prop_oneof![
        any::<u64>().prop_map(|n| BackRef::Owner { root: TreeId(n) }),
        any::<u64>().prop_map(|n| BackRef::TreeBlock { root: TreeId(n) }),
        any::<u64>().prop_map(|n| BackRef::SharedBlock { parent: Logical(n) }),
        any::<(u64, u32)>().prop_map(|(n, count)| BackRef::SharedData { parent: Logical(n), count }),
        any::<(u64, u64, u64, u32)>().prop_map(|(root, ino, offset, count)| BackRef::Data {
            root: TreeId(root),
            ino: Ino(ino),
            offset,
            count
        }),
    ]
}

fn record() -> impl Strategy<Value = (Key, ExtentRecord)> {
    (any::<[u64; 3]>(), 0usize..3, key(), any::<u8>(), vec(back_ref(), 0..12)).prop_map(
        |([refs, generation, at], kind, first, level, inline)| {
            let key = Key::new(at, if kind == 0 { ItemType::METADATA_ITEM } else { ItemType::EXTENT_ITEM }, 4096);
            let flags = if kind == 2 { ExtentFlags::DATA } else { ExtentFlags::TREE_BLOCK };
            let tree_block = (kind == 1).then_some((first, level));
            (key, ExtentRecord { refs, generation: Generation(generation), flags, tree_block, inline })
        },
    )
}

fn chunk() -> impl Strategy<Value = Chunk> {
    let stripe = any::<(u64, u64, [u8; 16])>().prop_map(|(devid, offset, dev_uuid)| Stripe {
        devid: devid.into(),
        offset: offset.into(),
        dev_uuid,
    });
    (any::<[u64; 4]>(), any::<[u32; 3]>(), any::<u16>(), vec(stripe, 0..9)).prop_map(
        |(n, small, sub_stripes, stripes)| Chunk {
            length: ByteLen(n[0]),
            owner: TreeId(n[1]),
            stripe_len: ByteLen(n[2]),
            flags: BlockGroupFlags::from_bits_retain(n[3]),
            io_align: small[0],
            io_width: small[1],
            sector_size: small[2],
            sub_stripes,
            stripes,
        },
    )
}

fn entry() -> impl Strategy<Value = DirEntry> {
    (key(), any::<u64>(), 0u8..9, name(), vec(any::<u8>(), 0..50)).prop_map(|(location, transid, t, name, data)| {
        DirEntry { location, transid: Generation(transid), file_type: FileType::from_disk(t).unwrap(), name, data }
    })
}

proptest! {
    #[test]
    fn keys_come_back(k in key()) {
        prop_assert_eq!(Key::from(DiskKey::from(k)), k);
        prop_assert!(k.next().is_none_or(|n| n > k));
    }

    #[test]
    fn file_extents_come_back(e in file_extent()) { prop_assert_eq!(FileExtent::parse(&e.encode()).unwrap(), e); }

    /// Goal: inline references come out in the order of the format, whatever the order they went in.
    #[test]
    fn records_come_back_in_order((key, record) in record()) {
        let item = record.encode();
        prop_assert_eq!(item.len(), record.encoded_len());
        let parsed = ExtentRecord::parse(&key, &item).unwrap();
        prop_assert!(parsed.inline.is_sorted_by_key(BackRef::order));
        let sorted = |r: &ExtentRecord| { let mut r = r.clone(); r.inline.sort_by_key(|i| (i.order(), i.count())); r };
        prop_assert_eq!(sorted(&parsed), sorted(&record));
        prop_assert_eq!(parsed.encode(), item);
    }

    #[test]
    fn keyed_references_come_back(r in back_ref(), at: u64) {
        let parsed = BackRef::parse_keyed(&r.key(Logical(at)), &r.encode_keyed());
        match r {
            BackRef::Owner { .. } => prop_assert!(parsed.is_err(), "owners have no item of their own"),
            _ => prop_assert_eq!(parsed.unwrap(), r),
        }
    }

    #[test]
    fn chunks_come_back(c in chunk()) {
        prop_assert_eq!(&Chunk::parse(&c.encode()).unwrap(), &c);
        let mut sb = new_super_block();
        let key = Chunk::key(Logical(7));
        let fits = sb.set_sys_chunks([(key, &c), (key, &c)]);
        prop_assert_eq!(fits, 2 * (17 + 48 + 32 * c.stripes.len()) <= 2048);
        if fits {
            prop_assert_eq!(sb.parse_sys_chunks().unwrap(), vec![(key, c.clone()), (key, c)]);
        }
    }

    #[test]
    fn names_come_back(entries in vec(entry(), 1..5), refs in vec((any::<u64>(), name()), 1..5), number: u64) {
        prop_assert_eq!(DirEntry::parse_all(&DirEntry::encode_all(&entries)).unwrap(), entries.clone());
        prop_assert_eq!(DirEntry::parse(&entries[0].encode()).unwrap(), entries[0].clone());
        let inode: Vec<_> = refs.iter().map(|(index, name)| InodeRefEntry { index: *index, name: name.clone() }).collect();
        prop_assert_eq!(InodeRefEntry::parse_all(&InodeRefEntry::encode_all(&inode)).unwrap(), inode);
        let ext: Vec<_> = refs
            .iter()
            .map(|(index, name)| InodeExtrefEntry { parent: Ino(number), index: *index, name: name.clone() })
            .collect();
        prop_assert_eq!(InodeExtrefEntry::parse_all(&InodeExtrefEntry::encode_all(&ext)).unwrap(), ext);
        let root = RootRefEntry { dirid: Ino(number), sequence: refs[0].0, name: refs[0].1.clone() };
        prop_assert_eq!(RootRefEntry::parse(&root.encode()).unwrap(), root);
    }

    /// Goal: the runs of a bitmap are those that were set, merged if they touch. Model: a list of booleans.
    #[test]
    fn bitmaps_hold_the_runs_that_were_set(len in 1usize..300, runs in vec((0u64..2500, 0u64..300, any::<bool>()), 0..20)) {
        let start = Logical(1 << 30);
        let mut bitmap = vec![0; len];
        let mut model = vec![false; len * 8];
        for (at, count, free) in runs {
            bitmap_set(start, &mut bitmap, 4096, (start + ByteLen(at * 4096), ByteLen(count * 4096)), free);
            model.iter_mut().skip(at as usize).take(count as usize).for_each(|bit| *bit = free);
        }
        let mut back = vec![false; len * 8];
        let found = bitmap_runs(start, &bitmap, 4096);
        for pair in found.windows(2) {
            prop_assert!(pair[0].0 + pair[0].1 < pair[1].0, "runs neither touch nor overlap");
        }
        for (at, run_len) in found {
            let first = ((at.0 - start.0) / 4096) as usize;
            back[first..first + (run_len.0 / 4096) as usize].fill(true);
        }
        prop_assert_eq!(back, model);
    }

    #[test]
    fn small_items(subvols in vec(any::<u64>(), 0..9), n: [u64; 5], simple: bool, uuid: u128) {
        let item = UuidItem { subvols: subvols.iter().map(|n| TreeId(*n)).collect() };
        prop_assert_eq!(UuidItem::parse(&item.encode()), item);
        let status = QgroupStatus {
            version: n[0],
            generation: Generation(n[1]),
            flags: QgroupStatusFlags::from_bits_retain(n[2]),
            rescan: n[3],
            enable_gen: simple.then_some(Generation(n[4])),
        };
        prop_assert_eq!(QgroupStatus::parse(&status.encode()).unwrap(), status);
        let uuid = uuid::Uuid::from_u128(uuid);
        prop_assert_eq!(Key::uuid(uuid, ItemType::UUID_SUBVOL).as_uuid(), uuid);
        let strides = n.iter().map(|n| RaidStride { devid: (*n).into(), physical: (n ^ 5).into() }).collect();
        let stripe = RaidStripe { strides };
        prop_assert_eq!(RaidStripe::parse(&stripe.encode()).unwrap(), stripe);
    }

    /// Goal: bytes that are not an item never make parsing panic.
    #[test]
    fn noise_does_not_panic(item in vec(any::<u8>(), 0..600), key in key()) {
        let _ = FileExtent::parse(&item);
        let _ = ExtentRecord::parse(&key, &item);
        let _ = BackRef::parse_keyed(&key, &item);
        let _ = Chunk::parse(&item);
        let _ = DirEntry::parse_all(&item);
        let _ = InodeRefEntry::parse_all(&item);
        let _ = InodeExtrefEntry::parse_all(&item);
        let _ = RootRefEntry::parse(&item);
        let _ = RootItem::decode(&item);
        let _ = UuidItem::parse(&item);
        let _ = QgroupStatus::parse(&item);
        let _ = RaidStripe::parse(&item);
        let _ = BlockGroupItemV2::decode(&item);
        let _ = data_use(&key, &item);
    }
}

/// Goal: the short root item of old kernels reads with zeros, and what an old kernel left stale is not believed.
#[test]
fn root_items_of_old_kernels() {
    let full =
        RootItem { generation: 9.into(), uuid: [7; 16], ctransid: 5.into(), refs: 1.into(), ..Default::default() };
    let item = full.encode();
    let decoded = RootItem::decode(&item).unwrap();
    assert_eq!((decoded.uuid, decoded.generation_v2.get()), ([7; 16], 9));
    let short = RootItem::decode(&item[..ROOT_ITEM_SHORT_LEN]).unwrap();
    assert_eq!((short.refs.get(), short.uuid, short.ctransid.get()), (1, [0; 16], 0));
    let mut stale = item.clone();
    stale[160] = 10; // `generation` went on, `generation_v2` did not
    assert_eq!(RootItem::decode(&stale).unwrap().uuid, [0; 16]);
    assert!(RootItem::decode(&item[..300]).is_err());
}
