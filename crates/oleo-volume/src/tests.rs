//! Whole volumes in memory: made, opened, damaged, read, healed.
//!
//! `Sample` makes a volume the way mkfs does, but with nothing in it except the chunk tree, whose one leaf holds all
//! devices and chunks, so that `Volume::open` has something valid to read. Rows of chunks with parity the test computes itself, by the
//! definition, so that reading is tested without writing.

use std::sync::{Arc, OnceLock};

use oleo_device::{Device, MemDevice};
use oleo_format::{
    BlockGroupFlags, BlockHead, ByteLen, CheckedNode, DevId, DevItem, Generation, HeaderFlags, ItemType, Key,
    LeafBuilder, Logical, NodeExpect, SuperBlock, TreeId, new_super_block, seal,
};
use uuid::Uuid;

use super::*;

mod crash;
mod hostile;
mod lost;
mod records;
mod rot;
mod targets;

const MIB: u64 = 1 << 20;
const NODESIZE: u32 = 16384;
/// Bytes of data in a sample: more than one row, and enough for a read to be spread over copies.
const NOISE_LEN: usize = 5 << 18;

struct Sample {
    devices: Vec<Arc<MemDevice>>,
    data: Arc<ChunkMap>,
    root: NodeExpect,
    noise: Vec<u8>,
    csums: Vec<u8>,
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    std::iter::repeat_with(|| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 56) as u8
    })
    .take(len)
    .collect()
}

fn sample_super() -> SuperBlock {
    let mut sb = new_super_block();
    sb.fsid = [7; 16];
    sb.generation = 5.into();
    sb.chunk_root_generation = 5.into();
    sb.sectorsize = 4096.into();
    sb.nodesize = NODESIZE.into();
    sb.root = (1u64 << 30).into();
    sb
}

fn dev_item(devid: u64, total: u64) -> DevItem {
    let mut item = DevItem { devid: devid.into(), total_bytes: total.into(), ..DevItem::default() };
    item.uuid = [devid as u8; 16];
    item.fsid = [7; 16];
    item.sector_size = 4096.into();
    item
}

impl Sample {
    /// A volume on `count` devices with a data chunk of this profile; system and metadata are raid1 or dup.
    fn new(profile: Profile, count: usize) -> Sample {
        let copies = if count > 1 { BlockGroupFlags::RAID1 } else { BlockGroupFlags::DUP };
        Sample::with_system(profile, count, copies)
    }

    /// The same with a system chunk of another profile.
    fn with_system(profile: Profile, count: usize, system: BlockGroupFlags) -> Sample {
        let devices: Vec<_> = (1..=count).map(|i| Arc::new(MemDevice::named(&format!("disk{i}"), 300 * MIB))).collect();
        let with_items = devices.iter().enumerate();
        let with_items = with_items.map(|(i, d)| (d.clone() as Arc<dyn Device>, dev_item(i as u64 + 1, 300 * MIB)));
        let mut sb = sample_super();
        let volume = Volume::create(with_items.collect(), &sb, Uuid::from_u128(99)).expect("create");
        let want = |flags, mib: u64| ChunkWant { len_max: Some(ByteLen(mib * MIB)), ..ChunkWant::new(flags) };
        let system = volume.propose_chunk(&want(BlockGroupFlags::SYSTEM | system, 8)).expect("system");
        volume.add_chunk(&system);
        let flags = BlockGroupFlags::DATA | profile.bits();
        let data = volume.propose_chunk(&want(flags, 16)).expect("data");
        volume.add_chunk(&data);
        let mut leaf = LeafBuilder::new(NODESIZE);
        for d in volume.devices() {
            let key = Key::new(1, ItemType::DEV_ITEM, d.devid.0);
            assert!(leaf.push(&key, zerocopy::IntoBytes::as_bytes(&d.item)));
        }
        for map in volume.chunks() {
            assert!(leaf.push(&map.key(), &map.chunk().encode()));
        }
        let root = system.map.start;
        let mut block = leaf.finish(&BlockHead {
            logical: root,
            generation: Generation(5),
            owner: TreeId::CHUNK,
            level: 0,
            flags: HeaderFlags::empty(),
            fsid: sb.fsid(),
            chunk_tree_uuid: Uuid::from_u128(99),
        });
        seal(&mut block, volume.rules().csum);
        let noise = noise(NOISE_LEN, 42);
        volume.write(&[(root, &block)]).expect("write tree");
        sb.chunk_root = root.0.into();
        volume.stamp(&mut sb).expect("stamp");
        let mut sample = Sample {
            devices,
            data: Arc::new(data.map),
            root: NodeExpect { level: Some(0), ..NodeExpect::at(root) },
            csums: Vec::new(),
            noise,
        };
        volume.rules().csum.csum_sectors(&sample.noise, 4096, &mut sample.csums);
        match profile.has_parity() {
            true => sample.write_rows(),
            false => volume.write(&[(sample.data.start, &sample.noise)]).expect("write data"),
        }
        volume.write_supers(&sb).expect("supers");
        sample
    }

    /// Writes the noise and its parities, row by row.
    fn write_rows(&self) {
        let map = &self.data;
        let data = map.data_stripes() as usize;
        let mut padded = self.noise.clone();
        padded.resize(padded.len().next_multiple_of(data * STRIPE_LEN as usize), 0);
        for (row, bytes) in padded.chunks(data * STRIPE_LEN as usize).enumerate() {
            let mut units: Vec<Vec<u8>> = bytes.chunks(STRIPE_LEN as usize).map(<[u8]>::to_vec).collect();
            let double = |b: u8| (b << 1) ^ if b & 0x80 != 0 { 0x1d } else { 0 };
            let len = STRIPE_LEN as usize;
            let p = (0..len).map(|i| units.iter().fold(0, |sum, u| sum ^ u[i])).collect();
            // Horner: the last unit has the highest power of 2.
            let q = (0..len).map(|i| units.iter().rev().fold(0, |sum, u| double(sum) ^ u[i])).collect();
            units.extend([p, q]);
            for (unit, bytes) in units.iter().enumerate().take(map.stripes.len()) {
                let at = map.physical(map.rotated(row as u64, unit), row as u64 * STRIPE_LEN);
                let dev = &self.devices[map.stripes[map.rotated(row as u64, unit)].devid.0 as usize - 1];
                dev.write_at(at.0, bytes).expect("write");
            }
        }
    }

    /// Opens copies of the devices but those in `without`.
    fn open(&self, without: &[usize], opts: OpenOptions) -> Result<(Volume, Vec<Arc<MemDevice>>), VolumeError> {
        let copies: Vec<_> = self.devices.iter().map(|d| Arc::new(d.copy())).collect();
        let some = copies.iter().enumerate().filter(|(i, _)| !without.contains(i));
        let volume = Volume::open(some.map(|(_, d)| d.clone() as Arc<dyn Device>).collect(), &opts)?;
        Ok((volume, copies))
    }

    fn read_all(&self, volume: &Volume) -> Result<(), VolumeError> {
        let mut buf = vec![0xee; self.noise.len()];
        volume.read_data(self.data.start, &mut buf, Some(&self.csums))?;
        assert!(buf == self.noise);
        // An odd range as well, with the checksums that go with it.
        let (from, to) = (3 * 4096, 77 * 4096);
        volume.read_data(self.data.start + ByteLen(from as u64), &mut buf[from..to], Some(&self.csums[12..308]))?;
        assert!(buf == self.noise);
        Ok(())
    }

    /// Overwrites what one stripe holds of the noise.
    fn damage(&self, devices: &[Arc<MemDevice>], stripe: usize) {
        let s = self.data.stripes[stripe];
        devices[s.devid.0 as usize - 1].write_at(s.offset.0, &noise(NOISE_LEN, 9)).expect("write");
    }
}

const WRITE: OpenOptions =
    OpenOptions { write: true, degraded: false, backup: None, super_copy: None, ignore_block_csums: false };
const READ: OpenOptions =
    OpenOptions { write: false, degraded: false, backup: None, super_copy: None, ignore_block_csums: false };
const DEGRADED: OpenOptions =
    OpenOptions { write: false, degraded: true, backup: None, super_copy: None, ignore_block_csums: false };

/// How many devices each profile is tried on.
fn cases() -> impl Iterator<Item = (Profile, usize)> {
    use Profile::*;
    [(Single, 1), (Single, 3), (Dup, 1), (Raid0, 2), (Raid0, 3), (Raid1, 2), (Raid1, 3), (Raid1c3, 3)]
        .into_iter()
        .chain([(Raid1c4, 4), (Raid10, 4), (Raid5, 2), (Raid5, 3), (Raid5, 4), (Raid6, 3), (Raid6, 4), (Raid6, 5)])
}

/// A sample of each case, made once.
fn samples() -> impl Iterator<Item = (Profile, usize, &'static Sample)> {
    static SAMPLES: OnceLock<Vec<(Profile, usize, Sample)>> = OnceLock::new();
    let all = SAMPLES.get_or_init(|| cases().map(|(p, n)| (p, n, Sample::new(p, n))).collect());
    all.iter().map(|(p, n, s)| (*p, *n, s))
}

/// Goal: what was written is read, and the chunk tree records what was carved.
#[test]
fn every_profile_is_read_back() {
    for (profile, count, sample) in samples() {
        let (volume, _) = sample.open(&[], READ).expect("open");
        sample.read_all(&volume).unwrap_or_else(|e| panic!("{profile} on {count}: {e}"));
        assert_eq!(volume.chunk_of(sample.data.start + ByteLen(5)).expect("chunk"), sample.data);
        assert_eq!(volume.chunk_tree_uuid(), Uuid::from_u128(99));
        assert!(matches!(volume.write(&[(sample.data.start, &[0; 4096])]), Err(VolumeError::ReadOnly)));
        assert!(volume.error_counters().iter().all(|c| c.1 == ErrorCounters::default()));
        sample.open(&[], WRITE).expect("open for writing");
    }
}

/// Goal: with any one copy or, with parity, any stripe destroyed, reads return the right bytes; if opened for writing,
/// the bad copy is good again afterwards; bytes without a second copy are an error that names the place. Method: each
/// stripe of each profile in turn is overwritten; every sector of it that was read is compared afterwards.
#[test]
fn damage_is_read_around_and_healed() {
    for (profile, count, sample) in samples() {
        let shape = profile.shape();
        let mut met = false;
        for stripe in 0..sample.data.stripes.len() {
            let what = format!("{profile} on {count}, stripe {stripe}");
            let (volume, devices) = sample.open(&[], WRITE).expect("open");
            sample.damage(&devices, stripe);
            let result = sample.read_all(&volume);
            if shape.copies == 1 && shape.parities == 0 {
                let e = result.expect_err(&what);
                assert!(matches!(e, VolumeError::NoGoodCopy { .. }), "{e}");
                continue;
            }
            result.unwrap_or_else(|e| panic!("{what}: {e}"));
            let counted: u64 = volume.error_counters().iter().map(|c| c.1.corruption).sum();
            met |= counted > 0;
            let mut healed = 0;
            let csum = volume.rules().csum;
            for i in 0..sample.noise.len() / 4096 {
                let piece = sample.data.piece(i as u64 * 4096, 4096);
                if !(piece.stripe..piece.stripe + piece.copies).contains(&stripe) {
                    continue;
                }
                let mut sector = vec![0; 4096];
                let at = sample.data.physical(stripe, piece.offset);
                let dev = &devices[sample.data.stripes[stripe].devid.0 as usize - 1];
                dev.read_at(at.0, &mut sector).expect("read");
                healed += u64::from(csum.csum(&sector)[..4] == sample.csums[i * 4..i * 4 + 4]);
            }
            assert_eq!(healed, counted, "{what}: what was met was healed");
        }
        assert!(met || shape.copies + shape.parities == 1, "{profile}: reads meet some copy");
    }
}

/// Goal: two damaged stripes are too many for all but raid6 and the triple and fourfold copies.
#[test]
fn raid6_survives_two_bad_stripes() {
    let sample = Sample::new(Profile::Raid6, 5);
    for a in 0..5 {
        for b in 0..a {
            let (volume, devices) = sample.open(&[], READ).expect("open");
            sample.damage(&devices, a);
            sample.damage(&devices, b);
            sample.read_all(&volume).unwrap_or_else(|e| panic!("{a} and {b}: {e}"));
        }
    }
}

/// Goal: as many devices may be missing as the profile promises, if and only if degraded reading is requested.
#[test]
fn missing_devices() {
    for (profile, count, sample) in samples().filter(|c| c.1 > 1) {
        let shape = profile.shape();
        for gone in 0..count {
            let what = format!("{profile} on {count} without {gone}");
            assert!(matches!(sample.open(&[gone], READ), Err(VolumeError::Missing { .. })), "{what}");
            let (volume, _) = sample.open(&[gone], DEGRADED).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(volume.devices()[gone].missing);
            let touched = sample.data.stripes.iter().any(|s| s.devid.0 == gone as u64 + 1);
            match sample.read_all(&volume) {
                Ok(()) => assert!(!touched || shape.copies > 1 || shape.parities > 0, "{what}"),
                Err(e) => assert!(touched && shape.copies == 1 && shape.parities == 0, "{what}: {e}"),
            }
        }
    }
    let sample = Sample::new(Profile::Raid6, 5);
    // The system chunk is raid1 on devices 1 and 2 (numbers from 1), so one of them stays.
    for (a, b) in [(0, 2), (0, 3), (1, 4), (2, 3), (3, 4)] {
        let (volume, _) = sample.open(&[a, b], DEGRADED).expect("open");
        sample.read_all(&volume).unwrap_or_else(|e| panic!("without {a} and {b}: {e}"));
    }
}

/// Goal: tree blocks are read from a good copy, alone and in batches, and healed.
#[test]
fn blocks_are_healed() {
    let sample = Sample::new(Profile::Raid1, 2);
    for (bad, batch) in [(0usize, false), (1, false), (0, true), (1, true)] {
        let (volume, devices) = sample.open(&[], WRITE).expect("open");
        let s = volume.chunk_of(sample.root.logical).expect("chunk").stripes[bad];
        let device = &devices[s.devid.0 as usize - 1];
        device.write_at(s.offset.0 + 200, b"rot").expect("write");
        for _ in 0..2 {
            let nodes = match batch {
                false => vec![volume.read_block(&sample.root)],
                true => volume.read_blocks(&[sample.root, NodeExpect::at(Logical(4096)), sample.root]),
            };
            assert!(nodes.iter().enumerate().all(|(i, n)| n.is_ok() != (i == 1)));
        }
        // A read meets one of the two copies, and heals it if that is the bad one.
        let mut block = vec![0; NODESIZE as usize];
        device.read_at(s.offset.0, &mut block).expect("read");
        let whole = CheckedNode::verify(block.into(), volume.rules(), &sample.root).is_ok();
        let met = volume.error_counters().iter().any(|c| c.1.corruption > 0);
        assert_eq!(whole, met, "what was met was healed, copy {bad}");
    }
    let (volume, _) = sample.open(&[], WRITE).expect("open");
    let wrong = NodeExpect { generation: Some(Generation(4)), ..sample.root };
    assert!(volume.read_block(&wrong).is_err());
    assert!(volume.error_counters().iter().any(|c| c.1.generation > 0));
}

/// Goal: if checksums are ignored, a block without a copy that fits is used if all else is right, and a good copy is preferred.
/// Method: raid1; the checksum of one copy, then of both, is damaged, then the generation of one.
#[test]
fn blocks_without_fitting_checksums() {
    let sample = Sample::new(Profile::Raid1, 2);
    let ignoring = OpenOptions { ignore_block_csums: true, ..READ };
    for batch in [false, true] {
        let (volume, devices) = sample.open(&[], READ).expect("open");
        let stripes = volume.chunk_of(sample.root.logical).expect("chunk").stripes.clone();
        let damage = |nth: usize, at: u64| {
            let s = stripes[nth];
            devices[s.devid.0 as usize - 1].write_at(s.offset.0 + at, b"rot").expect("write");
        };
        let read = |options: &OpenOptions| {
            let devices = devices.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
            // Opening reads the block, too.
            let volume = Volume::open(devices, options)?;
            let mut nodes = match batch {
                false => vec![volume.read_block(&sample.root)],
                true => volume.read_blocks(&[sample.root, sample.root]),
            };
            nodes.pop().expect("a result")
        };
        let whole = read(&READ).expect("it is whole").into_bytes();
        for nth in 0..2 {
            damage(nth, 0);
            let node = read(&ignoring).expect("all but the checksum is right");
            assert_eq!(&node.bytes()[32..], &whole[32..]);
            // As long as one copy fits, it is used.
            assert_eq!(node.bytes() == &*whole, nth == 0);
            assert_eq!(read(&READ).is_ok(), nth == 0);
        }
        // The generation in the header.
        damage(0, 80);
        assert!(read(&ignoring).is_ok(), "the other copy");
        damage(1, 80);
        assert!(read(&ignoring).is_err());
    }
}

/// Goal: the newest whole mirror wins; without any the device is refused; foreign and doubled devices are refused.
#[test]
fn supers_are_chosen() {
    let sample = Sample::new(Profile::Raid1, 2);
    let (volume, devices) = sample.open(&[], WRITE).expect("open");
    let mut sb = volume.super_block();
    sb.generation = 6.into();
    volume.write_supers(&sb).expect("supers");
    drop(volume);
    let reopen =
        |devs: &[&Arc<MemDevice>]| Volume::open(devs.iter().map(|d| (*d).clone() as Arc<dyn Device>).collect(), &READ);
    for d in &devices {
        assert_eq!(read_mirrors(&**d).iter().filter(|m| m.1.is_ok()).count(), 2);
        assert_eq!(read_super(&**d).expect("super").dev_item.devid.get(), u64::from(d.name() == "disk2") + 1);
        d.write_at(65536 + 100, b"torn").expect("write");
    }
    let volume = reopen(&[&devices[0], &devices[1]]).expect("second mirrors");
    assert_eq!(volume.super_block().generation(), Generation(6));
    devices[0].write_at(64 * MIB + 100, b"torn").expect("write");
    assert!(matches!(reopen(&[&devices[0]]), Err(VolumeError::NoSuper { .. })));
    assert!(matches!(reopen(&[&devices[1], &devices[1]]), Err(VolumeError::Twins { .. })));
    assert!(matches!(reopen(&[]), Err(VolumeError::NoDevices)));
    let stale = reopen(&[&devices[1], &sample.devices[0]]).expect("one device is behind");
    assert_eq!(stale.super_block().generation(), Generation(6));
    assert!(stale.devices()[0].stale && !stale.devices()[1].stale);
    let other = Sample::new(Profile::Single, 1);
    let mut alien = sample_super();
    alien.fsid = [8; 16];
    other.devices[0].write_at(65536, &alien.to_bytes(65536)).expect("write");
    assert!(matches!(reopen(&[&devices[1], &other.devices[0]]), Err(VolumeError::Stranger { .. })));
}

/// Goal: features and states that are not understood are refused by name.
#[test]
fn the_unknown_is_refused_by_name() {
    let sample = Sample::new(Profile::Single, 1);
    let refused = |change: &dyn Fn(&mut SuperBlock), opts: OpenOptions| {
        let device = Arc::new(sample.devices[0].copy());
        let mut sb = read_super(&*device).expect("super");
        change(&mut sb);
        device.write_at(65536, &sb.to_bytes(65536)).expect("write");
        device.write_at(64 * MIB, &[0; 4096]).expect("write");
        Volume::open(vec![device], &opts).map(|_| ()).map_err(|e| e.to_string())
    };
    let e = refused(&|sb| sb.incompat_flags = (1u64 << 12).into(), READ).expect_err("zoned");
    assert!(e.contains("zoned"), "{e}");
    let e = refused(&|sb| sb.incompat_flags = (1u64 << 40).into(), READ).expect_err("unknown");
    assert!(e.contains("0x10000000000"), "{e}");
    let unknown_ro = |sb: &mut SuperBlock| sb.compat_ro_flags = (1u64 << 40).into();
    refused(&unknown_ro, READ).expect("may be read");
    refused(&unknown_ro, WRITE).expect_err("may not be written");
    refused(&|sb| sb.nodesize = 3000.into(), READ).expect_err("nodesize");
    refused(&|sb| sb.sys_chunk_array_size = 5000.into(), READ).expect_err("array");
    refused(&|sb| sb.sys_chunk_array_size = 90.into(), READ).expect_err("cut array");
    refused(&|sb| sb.sys_chunk_array_size = 0.into(), READ).expect_err("no array");
    refused(&|sb| sb.chunk_root = (1u64 << 60).into(), READ).expect_err("unmapped root");
}

/// Goal: chunks come and go, devices are chosen by free space, and space runs out in the open.
#[test]
fn chunks_come_and_go_until_space_runs_out() {
    let sizes = [400 * MIB, 300 * MIB, 300 * MIB];
    let with_items: Vec<_> = sizes
        .iter()
        .zip(1..)
        .map(|(&len, id)| (Arc::new(MemDevice::new(len)) as Arc<dyn Device>, dev_item(id, len)))
        .collect();
    let volume = Volume::create(with_items, &sample_super(), Uuid::nil()).expect("create");
    let raid1 = BlockGroupFlags::METADATA | BlockGroupFlags::RAID1;
    let plan = volume.propose_chunk(&ChunkWant::new(raid1)).expect("room");
    assert_eq!(plan, volume.propose_chunk(&ChunkWant::new(raid1)).expect("room"), "nothing changed");
    assert_eq!(plan.map.stripes.iter().map(|s| s.devid.0).collect::<Vec<_>>(), [1, 2]);
    assert!(plan.map.stripes.iter().all(|s| s.offset.0 == MIB));
    assert_eq!(plan.map.len.0, 112 * MIB, "a tenth of 1000 MiB, rounded up to 16");
    assert_eq!((plan.dev_extents.len(), plan.dev_items.len()), (2, 2));
    let before = volume.unallocated(raid1);
    volume.add_chunk(&plan);
    assert_eq!(before.0 - volume.unallocated(raid1).0, 112 * MIB);
    assert_eq!(volume.devices()[0].used.0, 112 * MIB);
    let second = volume.propose_chunk(&ChunkWant::new(raid1)).expect("room");
    assert_eq!(second.map.stripes.iter().map(|s| s.devid.0).collect::<Vec<_>>(), [3, 1], "most room first");
    // A retired chunk keeps its place until it is removed.
    let removal = volume.retire_chunk(plan.map.start).expect("there");
    assert_eq!(removal.dev_extent_keys, plan.dev_extents.iter().map(|e| e.0).collect::<Vec<_>>());
    assert_eq!(volume.devices()[0].used.0, 0);
    volume.write(&[(plan.map.start, &[1; 4096])]).expect("still mapped");
    assert_eq!(
        second,
        ChunkPlan {
            dev_items: second.dev_items.clone(),
            ..volume.propose_chunk(&ChunkWant::new(raid1)).expect("room")
        }
    );
    volume.remove_chunk(plan.map.start);
    assert!(matches!(volume.write(&[(plan.map.start, &[1; 4096])]), Err(VolumeError::Unmapped { .. })));
    assert_eq!(volume.unallocated(raid1), before);
    // With parity all devices serve, less one.
    let raid5 = BlockGroupFlags::DATA | BlockGroupFlags::RAID5;
    let plan = volume.propose_chunk(&ChunkWant::new(raid5)).expect("room");
    assert_eq!((plan.map.stripes.len(), plan.map.stripe_bytes().0), (3, 64 * MIB), "a tenth over two, rounded up");
    assert_eq!(volume.unallocated(raid5).0, 299 * 2 * MIB, "what only one device has is of no use");
    // Fill up.
    let dup = BlockGroupFlags::DATA | BlockGroupFlags::DUP;
    let mut got = 0;
    let promised = volume.unallocated(dup).0;
    loop {
        match volume.propose_chunk(&ChunkWant::new(dup)) {
            Ok(plan) => {
                got += plan.map.len.0;
                volume.add_chunk(&plan);
            }
            Err(e) => break assert!(matches!(e, VolumeError::NoRoom { .. })),
        }
    }
    assert!(got <= promised && got + 3 * 2 * STRIPE_LEN >= promised, "{got} of {promised}");
    let mut runs: Vec<_> = volume
        .chunks()
        .iter()
        .flat_map(|c| {
            let len = c.stripe_bytes().0;
            c.stripes.iter().map(move |s| (s.devid, s.offset.0, s.offset.0 + len)).collect::<Vec<_>>()
        })
        .collect();
    runs.sort();
    assert!(runs.iter().all(|r| r.1 >= MIB && r.2 <= sizes[r.0.0 as usize - 1]));
    assert!(runs.windows(2).all(|w| w[0].0 != w[1].0 || w[0].2 <= w[1].1), "places overlap");
    let more = volume.resize_device(DevId(2), ByteLen(500 * MIB)).expect("grows");
    assert_eq!(DevItem::parse(&more.1).expect("item").total_bytes.get(), 500 * MIB);
    assert_eq!(volume.unallocated(dup).0, 100 * MIB);
    let kept = volume.keep_free_behind(DevId(2), ByteLen(400 * MIB)).expect("there");
    assert_eq!(volume.unallocated(dup).0, 50 * MIB);
    let plan = volume.propose_chunk(&ChunkWant::new(dup)).expect("room");
    let ends = plan.map.stripes.iter().map(|s| s.offset.0 + plan.map.stripe_bytes().0);
    assert!(ends.max() <= Some(400 * MIB), "{plan:?}");
    drop(kept);
    assert_eq!(volume.unallocated(dup).0, 100 * MIB);
    assert!(volume.resize_device(DevId(2), ByteLen(100 * MIB)).is_err());
}

/// Goal: the outlook for new chunks is what they come to, whatever was made before them. Method: devices of uneven
/// length; ever more data chunks are made; each time the outlook for doubled and mirrored metadata is compared with
/// chunks that are really made, on a copy of the volume.
#[test]
fn outlooks_come_true() {
    let made = |data_chunks: usize| {
        let with_items: Vec<_> = [700 * MIB, 300 * MIB + 3 * STRIPE_LEN, 90 * MIB]
            .iter()
            .zip(1..)
            .map(|(&len, id)| (Arc::new(MemDevice::new(len)) as Arc<dyn Device>, dev_item(id, len)))
            .collect();
        let volume = Volume::create(with_items, &sample_super(), Uuid::nil()).expect("create");
        for n in 0..data_chunks {
            let profile = [BlockGroupFlags::empty(), BlockGroupFlags::RAID1][n % 2];
            let want = ChunkWant::new(BlockGroupFlags::DATA | profile);
            if let Ok(plan) = volume.propose_chunk(&ChunkWant { len_max: Some(ByteLen((17 + n as u64) * MIB)), ..want })
            {
                volume.add_chunk(&plan);
            }
        }
        volume
    };
    use BlockGroupFlags as F;
    for profile in [F::DUP, F::RAID1, F::empty(), F::RAID10, F::RAID5, F::RAID6] {
        let flags = BlockGroupFlags::METADATA | profile;
        for data_chunks in 0..40 {
            let volume = made(data_chunks);
            let (len_min, lost) = (ByteLen(4 * MIB), ByteLen(MIB));
            let first = Some(BlockGroupFlags::SYSTEM | profile);
            let taken = volume.propose_chunk(&ChunkWant::new(BlockGroupFlags::DATA)).ok();
            let ask = Outlook { flags, taken: taken.as_ref(), first, chunks_max: 6, len_min, lost };
            let foreseen = volume.outlook(&ask);
            taken.iter().for_each(|plan| volume.add_chunk(plan));
            if let Ok(plan) = volume.propose_chunk(&ChunkWant::new(BlockGroupFlags::SYSTEM | profile)) {
                volume.add_chunk(&plan);
            }
            let mut came = 0;
            for _ in 0..6 {
                let Ok(plan) = volume.propose_chunk(&ChunkWant::new(flags)) else { break };
                if plan.map.len < len_min {
                    break;
                }
                volume.add_chunk(&plan);
                let withheld: u64 = plan.map.withheld_ranges().iter().map(|(_, len)| len.0).sum();
                came += plan.map.len.0 - withheld - lost.0;
            }
            assert_eq!(foreseen.0, came, "{flags:?} behind {data_chunks} chunks");
        }
    }
}
