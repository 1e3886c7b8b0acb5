use super::*;
use crate::{ByteLen, Chunk, STRIPE_LEN, TreeId};

fn sound() -> SuperBlock {
    let stripe = Stripe { devid: 1.into(), offset: (1 << 20).into(), dev_uuid: [4; 16] };
    let chunk = Chunk {
        length: ByteLen(8 << 20),
        owner: TreeId::EXTENT,
        stripe_len: STRIPE_LEN,
        flags: BlockGroupFlags::SYSTEM,
        io_align: 65536,
        io_width: 65536,
        sector_size: 4096,
        sub_stripes: 1,
        stripes: vec![stripe],
    };
    let mut sb = new_super_block();
    sb.fsid = [1; 16];
    sb.bytenr = SUPER_OFFSETS[0].into();
    sb.generation = 9.into();
    sb.root = (1 << 24).into();
    sb.chunk_root = (1 << 20).into();
    sb.total_bytes = (1 << 30).into();
    sb.bytes_used = (1 << 20).into();
    sb.num_devices = 1.into();
    sb.sectorsize = 4096.into();
    sb.nodesize = 16384.into();
    sb.__unused_leafsize = 16384.into();
    sb.stripesize = 4096.into();
    sb.incompat_flags = (Incompat::NO_HOLES | Incompat::SKINNY_METADATA).bits().into();
    sb.dev_item.fsid = [1; 16];
    assert!(sb.set_sys_chunks([(Chunk::key(Logical(1 << 20)), &chunk)]));
    sb
}

fn breaks(what: &str, f: impl Fn(&mut SuperBlock)) {
    let mut sb = sound();
    f(&mut sb);
    let e = sb.verify(SUPER_OFFSETS[0]).expect_err(what);
    assert_eq!(e.what, what, "{e}");
}

/// Goal: a sound superblock passes and comes back as it was written; each rule finds what breaks it.
#[test]
fn each_rule_is_checked() {
    let sb = sound();
    sb.verify(SUPER_OFFSETS[0]).unwrap();
    for csum in CsumType::ALL {
        let mut sb = sb;
        sb.csum_type = csum.to_disk().into();
        let mut bytes = sb.to_bytes(SUPER_OFFSETS[1]);
        let read = SuperBlock::read(&bytes).unwrap();
        read.verify(SUPER_OFFSETS[1]).unwrap();
        bytes[300] ^= 1;
        assert_eq!(SuperBlock::read(&bytes).unwrap_err().what, "checksum");
    }
    breaks("magic", |s| s.magic[0] = 0);
    breaks("bytenr", |s| s.bytenr = 5.into());
    breaks("csum_type", |s| s.csum_type = 4.into());
    breaks("sectorsize", |s| s.sectorsize = 5000.into());
    breaks("sectorsize", |s| s.sectorsize = 2048.into());
    breaks("nodesize", |s| s.nodesize = (128 << 10).into());
    breaks("nodesize", |s| s.sectorsize = 65536.into());
    breaks("leafsize", |s| s.__unused_leafsize = 4096.into());
    breaks("stripesize", |s| s.stripesize = 0.into());
    breaks("root", |s| s.root = 4097.into());
    breaks("root", |s| s.root = 0.into());
    breaks("chunk_root", |s| s.chunk_root = u64::MAX.into());
    breaks("log_root", |s| s.log_root = 1.into());
    breaks("level of root", |s| s.root_level = 8);
    breaks("bytes_used", |s| s.bytes_used = 4096.into());
    breaks("bytes_used", |s| s.total_bytes = 4096.into());
    breaks("num_devices", |s| s.num_devices = 0.into());
    breaks("num_devices", |s| s.num_devices = u64::MAX.into());
    breaks("chunk_root_generation", |s| s.chunk_root_generation = 10.into());
    breaks("uuid_tree_generation", |s| s.uuid_tree_generation = 10.into());
    breaks("cache_generation", |s| s.cache_generation = 10.into());
    breaks("sys_chunk_array_size", |s| s.sys_chunk_array_size = 2049.into());
    breaks("sys_chunk_array_size", |s| s.sys_chunk_array_size = 0.into());
    breaks("length of its key", |s| s.sys_chunk_array_size = 98.into());
    breaks("num_stripes", |s| s.sys_chunk_array[17 + 44] = 2);
    breaks("key", |s| s.sys_chunk_array[8] = 1);
    breaks("type", |s| s.sys_chunk_array[17 + 24] = 1);
    breaks("dev_item.bytes_used", |s| s.dev_item.bytes_used = 1.into());
    breaks("dev_item.fsid", |s| s.dev_item.fsid = [2; 16]);
    breaks("nodesize with mixed groups", |s| s.incompat_flags = Incompat::MIXED_GROUPS.bits().into());
    breaks("features", |s| s.compat_ro_flags = CompatRo::BLOCK_GROUP_TREE.bits().into());
}

/// Goal: features that prevent reading or writing are reported by name.
#[test]
fn features_are_refused_by_name() {
    let of = |incompat: u64, compat_ro: u64| {
        let features = Features {
            compat: 0,
            compat_ro: CompatRo::from_bits_retain(compat_ro),
            incompat: Incompat::from_bits_retain(incompat),
        };
        (features.unreadable(), features.unwritable())
    };
    assert_eq!(of(0xfff, 0xf), (vec![], vec![]));
    let zoned = vec!["zoned".to_owned(), "unknown feature bit 40".to_owned()];
    assert_eq!(of(1 << 12 | 1 << 40, 0), (zoned.clone(), zoned));
    assert_eq!(of(1 << 16, 0), (vec![], vec![]));
    assert_eq!(of(0, 1 << 4), (vec![], vec!["unknown feature bit 4".to_owned()]));
    let (unreadable, _) = of(1 << 13 | 1 << 14 | 1 << 15 | 1 << 17, 0);
    assert_eq!(unreadable, ["extent-tree-v2", "raid-stripe-tree", "remap-tree", "unknown feature bit 15"]);
}

/// Goal: backups go round; the one of a generation written twice is replaced.
#[test]
fn backups_go_round() {
    let mut sb = sound();
    for generation in [1u64, 2, 3, 3, 4, 5, 6] {
        sb.generation = generation.into();
        let level = sb.newest_backup().map_or(0, |i| sb.super_roots[i].tree_root_level + 1);
        let backup = RootBackup {
            tree_root: (1 << 20).into(),
            tree_root_gen: generation.into(),
            tree_root_level: level,
            ..Default::default()
        };
        sb.push_backup(backup);
        assert_eq!(sb.super_roots[sb.newest_backup().unwrap()], backup);
    }
    assert_eq!(sb.super_roots.map(|b| b.tree_root_gen.get()), [5, 6, 3, 4]);
}

/// Goal: of two backups that name one transaction, the first of which the kernel made before that was at its end, the second is used, and both count once.
#[test]
fn backups_from_beyond() {
    let mut sb = sound();
    let backup = |generation: u64, root: u64| RootBackup {
        tree_root: root.into(),
        tree_root_gen: generation.into(),
        ..RootBackup::default()
    };
    let use_backup = |sb: &SuperBlock, nth: usize| {
        let mut sb = *sb;
        sb.use_backup(nth).then(|| (sb.generation.get(), sb.root.get()))
    };
    for turn in 0..ROOT_BACKUPS {
        (sb.generation, sb.root) = (9.into(), (9 << 20).into());
        // Made in 6, 7, 8, 9.
        sb.super_roots = [backup(6, 6 << 20), backup(8, 80 << 20), backup(8, 8 << 20), backup(9, 9 << 20)];
        sb.super_roots.rotate_right(turn);
        let have: Vec<_> = (0..4).map(|nth| use_backup(&sb, nth)).collect();
        assert_eq!(have, [Some((9, 9 << 20)), Some((8, 8 << 20)), Some((6, 6 << 20)), None], "turned by {turn}");
        // Before 9 was committed; and the one made in 8 is from beyond.
        (sb.generation, sb.root) = (8.into(), (8 << 20).into());
        assert_eq!(use_backup(&sb, 0), Some((8, 8 << 20)), "turned by {turn}");
        sb.super_roots = [backup(6, 6 << 20), backup(7, 7 << 20), backup(9, 80 << 20), backup(5, 5 << 20)];
        sb.super_roots.rotate_right(turn);
        assert_eq!(use_backup(&sb, 0), Some((7, 7 << 20)), "turned by {turn}");
    }
}

/// Goal: labels that do not fit are refused.
#[test]
fn long_labels_are_refused() {
    let mut sb = sound();
    assert!(sb.set_label("größe".as_bytes()));
    assert_eq!(sb.label(), "größe".as_bytes());
    assert!(sb.set_label(&[b'x'; LABEL_LEN_MAX]) && !sb.set_label(&[b'x'; 256]) && !sb.set_label(b"a\0b"));
    assert_eq!(sb.label().len(), LABEL_LEN_MAX);
}
