//! Volumes made and filled by the kernel, read by us: every tree block and every checksummed byte, with all devices,
//! and with one of them missing or rotten.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use oleo_device::{Device, DeviceError, FileDevice, FileOptions, User};
use oleo_format::{
    BlockGroupFlags, ByteLen, Generation, ItemType, Logical, NodeExpect, RootItem, SUPER_LEN, SUPER_OFFSETS, TreeId,
};
use oleo_sim::oracle::{Loop, Oracle, ReadOnly, oracle, run};
use oleo_sim::rng::Rng;
use oleo_volume::{ChunkMap, ChunkWant, ErrorCounters, OpenOptions, STRIPE_LEN, Volume, VolumeError, read_mirrors};

const MIB: u64 = 1 << 20;
const READ: OpenOptions =
    OpenOptions { write: false, degraded: false, backup: None, super_copy: None, ignore_block_csums: false };
const WRITE: OpenOptions =
    OpenOptions { write: true, degraded: false, backup: None, super_copy: None, ignore_block_csums: false };
const DEGRADED: OpenOptions =
    OpenOptions { write: false, degraded: true, backup: None, super_copy: None, ignore_block_csums: false };

fn open(files: &[&PathBuf], opts: &OpenOptions) -> Result<Volume, VolumeError> {
    let file_opts = FileOptions::default().write(opts.write);
    let devices: Result<Vec<_>, DeviceError> =
        files.iter().map(|p| Ok(Arc::new(FileDevice::open(p, &file_opts)?) as Arc<dyn Device>)).collect();
    Volume::open(devices?, opts)
}

/// What a walk over everything has seen.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    blocks: usize,
    data_bytes: u64,
}

/// Reads every block of every tree, and all data that has checksums.
fn walk(volume: &Volume) -> Result<Seen> {
    walk_with(volume, &mut |_, _| Ok(()))
}

/// The same; `visit` gets all of it: an address, and the bytes there.
fn walk_with(volume: &Volume, visit: &mut dyn FnMut(Logical, &[u8]) -> Result<()>) -> Result<Seen> {
    let sb = volume.super_block();
    let expect = |logical, level, generation| NodeExpect {
        level: Some(level),
        generation: Some(Generation(generation)),
        ..NodeExpect::at(Logical(logical))
    };
    let mut todo = vec![
        expect(sb.root.get(), sb.root_level, sb.generation.get()),
        expect(sb.chunk_root.get(), sb.chunk_root_level, sb.chunk_root_generation.get()),
    ];
    let mut seen = Seen::default();
    let mut known = BTreeSet::new();
    while !todo.is_empty() {
        let batch: Vec<_> = todo.drain(..).filter(|e| known.insert(e.logical)).collect();
        for node in volume.read_blocks(&batch) {
            let node = node?;
            seen.blocks += 1;
            visit(node.logical(), node.bytes())?;
            if !node.is_leaf() {
                todo.extend((0..node.len()).map(|i| NodeExpect::child(&node.child(i), node.level())));
                continue;
            }
            for (key, item) in node.iter() {
                if key.item_type == ItemType::ROOT_ITEM && node.owner() == TreeId::ROOT {
                    let root = RootItem::parse_prefix(item)?.0;
                    todo.push(expect(root.bytenr.get(), root.level, root.generation.get()));
                }
                if key.item_type == ItemType::EXTENT_CSUM {
                    let rules = volume.rules();
                    let sectors = item.len() / rules.csum.csum_len();
                    let mut buf = vec![0; sectors * rules.sectorsize as usize];
                    volume.read_data(Logical(key.offset), &mut buf, Some(item))?;
                    visit(Logical(key.offset), &buf)?;
                    seen.data_bytes += buf.len() as u64;
                }
            }
        }
    }
    Ok(seen)
}

/// Files of all sizes, enough for several stripes on each device.
fn fill(dir: &Path, seed: u64) -> Result<()> {
    let mut rng = Rng::new(seed);
    for i in 0..40 {
        let len = if i % 8 == 0 { 3 << 20 } else { rng.length(300_000) as usize };
        let sub = dir.join(format!("d{}", i % 5));
        fs::create_dir_all(&sub)?;
        fs::write(sub.join(format!("file{i}")), rng.bytes(len))?;
    }
    for i in 0..1500 {
        fs::write(dir.join(format!("d0/small{i}")), rng.bytes(100))?;
    }
    Ok(())
}

/// Overwrites parts of a device, superblocks excepted.
fn rot(file: &Path, seed: u64) -> Result<()> {
    let device = FileDevice::open(file, &FileOptions::default().write(true))?;
    let mut rng = Rng::new(seed);
    for at in (MIB..device.len() - MIB).step_by(128 << 10) {
        let (at, len) = (at + rng.below(64 << 10) / 512 * 512, 20_000);
        if SUPER_OFFSETS.iter().all(|&s| at + len <= s || s + SUPER_LEN as u64 <= at) {
            device.write_at(at, &rng.bytes(len as usize))?;
        }
    }
    Ok(())
}

struct Case {
    data: &'static str,
    meta: &'static str,
    devices: usize,
    /// Whether one device may be missing, or rotten.
    spare: bool,
    more: &'static [&'static str],
}

const fn case(data: &'static str, meta: &'static str, devices: usize, spare: bool) -> Case {
    Case { data, meta, devices, spare, more: &[] }
}

const CASES: [Case; 13] = [
    case("single", "dup", 1, false),
    case("dup", "dup", 1, false),
    case("single", "raid1", 3, false),
    case("raid0", "raid0", 3, false),
    case("raid1", "raid1", 2, true),
    case("raid1", "raid1", 3, true),
    case("raid1c3", "raid1c3", 3, true),
    case("raid1c4", "raid1c4", 4, true),
    case("raid10", "raid10", 4, true),
    case("raid5", "raid5", 3, true),
    case("raid6", "raid6", 4, true),
    Case { more: &["--mixed", "--nodesize", "4096"], ..case("single", "single", 1, false) },
    Case { more: &["--csum", "blake2", "--nodesize", "65536"], ..case("raid6", "raid1c3", 4, true) },
];

fn make(oracle: Oracle, case: &Case, files: &[PathBuf]) -> Result<()> {
    let mut args = vec!["-d", case.data, "-m", case.meta];
    args.extend(case.more);
    oracle.mkfs(&args, files)?;
    let mounted = oracle.mount(files, "")?;
    fill(mounted.path(), 11)?;
    mounted.unmount()
}

/// Goal: everything the kernel wrote with any profile is read; without one device and with one device rotten, too, if
/// the profile allows. Method: walk all trees, verify all data, compare the results.
#[test]
fn kernel_volumes_are_read() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    for (number, case) in CASES.iter().enumerate() {
        let what = format!("data {} metadata {} on {} {:?}", case.data, case.meta, case.devices, case.more);
        let scratch = oracle.scratch()?;
        let files = scratch.images("dev", case.devices, 400 * MIB)?;
        make(oracle, case, &files).with_context(|| what.clone())?;
        let all: Vec<_> = files.iter().collect();
        let volume = open(&all, &READ).with_context(|| what.clone())?;
        let seen = walk(&volume).with_context(|| what.clone())?;
        ensure!(seen.blocks > 10 && seen.data_bytes > 15 * MIB, "{what}: {seen:?}");
        ensure!(volume.error_counters().iter().all(|c| c.1 == ErrorCounters::default()), "{what}: errors counted");
        let found = Volume::scan(scratch.path(), volume.super_block().fsid())?;
        assert_eq!(found, files, "{what}");
        drop(volume);
        if !case.spare {
            continue;
        }
        for gone in 0..case.devices {
            let rest: Vec<_> = all.iter().enumerate().filter(|(i, _)| *i != gone).map(|(_, p)| *p).collect();
            assert!(matches!(open(&rest, &READ), Err(VolumeError::Missing { .. })), "{what}");
            let volume = open(&rest, &DEGRADED).with_context(|| what.clone())?;
            assert_eq!(walk(&volume).with_context(|| format!("{what} without {gone}"))?, seen);
        }
        rot(&files[number % case.devices], 5)?;
        let volume = open(&all, &READ)?;
        assert_eq!(walk(&volume).with_context(|| format!("{what} with rot"))?, seen);
        let bad: u64 = volume.error_counters().iter().map(|c| c.1.corruption).sum();
        ensure!(bad > 0, "{what}: the rot was met");
    }
    Ok(())
}

/// Goal: what we write is what the kernel expects: superblocks on all mirrors, healed copies of data and metadata.
/// Method: raid1 with one rotten device, read until everything read is healed from the other; then the kernel must read
/// everything from either device alone, and scrub finds nothing in what was healed.
#[test]
fn the_kernel_accepts_healing_and_superblocks() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let files = scratch.images("dev", 1, 400 * MIB)?;
    make(oracle, &case("dup", "dup", 1, false), &files)?;
    let volume = open(&[&files[0]], &READ)?;
    let first_copies: Vec<_> = volume.chunks().iter().map(|c| (c.stripes[0].offset.0, c.stripe_bytes().0)).collect();
    drop(volume);
    // Only first copies, which are preferred: one walk then reads, and heals, everything that is allocated.
    let device = FileDevice::open(&files[0], &FileOptions::default().write(true))?;
    for (at, len) in first_copies {
        for at in (at..at + len).step_by(64 << 10).filter(|&at| at != SUPER_OFFSETS[1]) {
            device.write_at(at + 4096, &[0x55; 4096])?;
        }
    }
    drop(device);
    ensure!(!oracle.check(&files)?.is_clean() || !oracle.mount(&files, "")?.scrub()?.is_clean(), "damage is seen");
    let volume = open(&[&files[0]], &WRITE)?;
    walk(&volume)?;
    ensure!(volume.error_counters()[0].1.corruption > 0, "nothing was met");
    let mut sb = volume.super_block();
    volume.stamp(&mut sb)?;
    assert_eq!(sb.total_bytes, volume.super_block().total_bytes);
    assert_eq!(sb.sys_chunk_array_size, volume.super_block().sys_chunk_array_size);
    let size = sb.sys_chunk_array_size.get() as usize;
    assert_eq!(sb.sys_chunk_array[..size], volume.super_block().sys_chunk_array[..size]);
    volume.write_supers(&sb)?;
    drop(volume);
    let device = FileDevice::open(&files[0], &FileOptions::default())?;
    let mirrors = read_mirrors(&device);
    ensure!(mirrors.len() == 2 && mirrors.iter().all(|m| m.1.is_ok()), "{mirrors:?}");
    drop(device);
    oracle.must_be_sound(&files, "healed")
}

/// The contents of all files below a directory, by path.
fn contents(dir: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        match path.is_dir() {
            true => contents(&path, found)?,
            false => {
                let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
                found.insert(path, bytes);
            }
        }
    }
    Ok(())
}

/// What the kernel reads on these devices.
fn kernel_reads(oracle: Oracle, files: &[&PathBuf], options: &str) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mounted = oracle.mount(files, options)?;
    let mut found = BTreeMap::new();
    contents(mounted.path(), &mut found)?;
    let top = mounted.path().to_owned();
    mounted.unmount()?;
    found.into_iter().map(|(path, bytes)| Ok((path.strip_prefix(&top)?.to_owned(), bytes))).collect()
}

/// Overwrites the parity of all rows with rubbish.
fn destroy_parity(files: &[PathBuf], chunks: &[Arc<ChunkMap>]) -> Result<()> {
    let rubbish = Rng::new(77).bytes(STRIPE_LEN as usize);
    for map in chunks.iter().filter(|map| map.profile.has_parity()) {
        let (data, parities) = (map.data_stripes() as usize, usize::from(map.profile.shape().parities));
        for row in 0..map.stripe_bytes().0 / STRIPE_LEN {
            for unit in data..data + parities {
                let stripe = map.rotated(row, unit);
                let at = map.physical(stripe, row * STRIPE_LEN).0;
                if SUPER_OFFSETS.iter().all(|&s| s < at || at + STRIPE_LEN <= s) {
                    let file =
                        fs::OpenOptions::new().write(true).open(&files[map.stripes[stripe].devid.0 as usize - 1])?;
                    file.write_all_at(&rubbish, at)?;
                }
            }
        }
    }
    Ok(())
}

/// Goal: what we write to chunks with parity survives the loss of as many devices as the profile promises, in the eyes of the kernel.
/// Method: on a kernel's volume all parity is destroyed, then every block and all data are written again by us, in pieces of random lengths
/// and in any order; the kernel mounts without each allowed set of devices and reads what it had written, finds nothing in a scrub, and
/// goes on writing.
#[test]
fn the_kernel_rebuilds_from_our_parity() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    for (data, meta, count) in [
        ("raid5", "raid5", 2),
        ("raid5", "raid1", 3),
        ("raid5", "raid5", 4),
        ("raid6", "raid6", 3),
        ("raid6", "raid1c3", 4),
        ("raid6", "raid6", 5),
        ("raid5", "raid6", 6),
    ] {
        let what = format!("data {data} metadata {meta} on {count}");
        let scratch = oracle.scratch()?;
        let files = scratch.images("dev", count, 400 * MIB)?;
        make(oracle, &case(data, meta, count, true), &files).with_context(|| what.clone())?;
        let all: Vec<_> = files.iter().collect();
        let want = kernel_reads(oracle, &all, "ro")?;
        let volume = open(&all, &READ)?;
        let chunks = volume.chunks();
        drop(volume);
        destroy_parity(&files, &chunks)?;
        let volume = open(&all, &WRITE)?;
        let mut rng = Rng::new(count as u64);
        let mut pieces: Vec<(Logical, Vec<u8>)> = Vec::new();
        let mut cut = |at: Logical, bytes: &[u8]| {
            let mut from = 0;
            while from < bytes.len() {
                let to = bytes.len().min(from + rng.between(1, 60) as usize * 4096);
                pieces.push((at + ByteLen(from as u64), bytes[from..to].to_vec()));
                from = to;
            }
            Ok(())
        };
        walk_with(&volume, &mut cut)?;
        while !pieces.is_empty() {
            let some = rng.between(1, 30).min(pieces.len() as u64);
            let batch: Vec<_> =
                (0..some).map(|_| pieces.swap_remove(rng.below(pieces.len() as u64) as usize)).collect();
            let parts: Vec<(Logical, &[u8])> = batch.iter().map(|(at, bytes)| (*at, &bytes[..])).collect();
            volume.write(&parts)?;
        }
        volume.flush()?;
        let stats = volume.row_stats();
        ensure!(stats.parts > 50 && stats.parity_bytes > 4 * MIB, "{what}: {stats:?}");
        drop(volume);
        let losses = if data == "raid6" && meta != "raid5" { 2 } else { 1 };
        for (a, b) in (0..count).flat_map(|a| (a..count).map(move |b| (a, b))).filter(|(a, b)| losses == 2 || a == b) {
            let rest: Vec<_> = files.iter().enumerate().filter(|(i, _)| ![a, b].contains(i)).map(|(_, f)| f).collect();
            let found =
                kernel_reads(oracle, &rest, "ro,degraded").with_context(|| format!("{what} without {a}, {b}"))?;
            ensure!(found == want, "{what} without {a}, {b}: other contents");
        }
        oracle.must_be_sound(&files, &what)?;
        let mounted = oracle.mount(&files, "")?;
        fill(&mounted.path().join("d1"), 12)?;
        mounted.unmount()?;
        oracle.must_be_sound(&files, &what)?;
    }
    Ok(())
}

/// Goal: chunks go where the kernel puts them, as long as it makes them.
/// Method: propose a data chunk on a kernel's volume; let the kernel grow into a new data chunk; compare.
#[test]
fn chunks_are_carved_as_by_the_kernel() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    for (profile, sizes) in [
        ("single", &[2000u64][..]),
        ("dup", &[2000]),
        ("single", &[900, 2000, 700]),
        ("raid0", &[900, 2000, 700]),
        ("raid1", &[900, 2000, 1900]),
        ("raid1c3", &[900, 2000, 700, 2100]),
        ("raid10", &[900, 2000, 700, 2100]),
        ("raid5", &[900, 2000]),
        ("raid5", &[900, 2000, 700, 2100]),
        ("raid6", &[900, 2000, 700, 2100, 1500]),
    ] {
        let scratch = oracle.scratch()?;
        let mut files = Vec::new();
        for (i, mib) in sizes.iter().enumerate() {
            files.push(scratch.image(&format!("dev{i}"), mib * MIB)?);
        }
        oracle.mkfs(&["-d", profile, "-m", if sizes.len() > 1 { "raid1" } else { "dup" }], &files)?;
        let all: Vec<_> = files.iter().collect();
        let volume = open(&all, &READ)?;
        let old = volume.chunks();
        let data = old.iter().find(|c| c.flags.contains(BlockGroupFlags::DATA)).context("no data chunk")?;
        drop(volume);
        let volume = open(&all, &WRITE)?;
        let plan = volume.propose_chunk(&ChunkWant::new(data.flags))?;
        let room = volume.unallocated(data.flags);
        drop(volume);
        let mounted = oracle.mount(&files, "")?;
        let len = (data.len.0 + plan.map.len.0 / 2).to_string();
        run("fallocate", ["-l".as_ref(), len.as_ref(), mounted.path().join("big").as_os_str()])?;
        mounted.unmount()?;
        let volume = open(&all, &READ)?;
        let new = volume.chunk_of(plan.map.start).with_context(|| format!("{profile} {sizes:?}"))?;
        assert_eq!(*new, plan.map, "{profile} {sizes:?}");
        assert!(plan.map.len <= room && room <= ByteLen(sizes.iter().sum::<u64>() * MIB));
        let used = |devid| volume.devices().iter().find(|d| d.devid == devid).map(|d| d.used.0);
        for s in &plan.map.stripes {
            let item = plan.dev_items.iter().find(|(k, _)| k.offset == s.devid.0).context("no device item")?;
            let item = oleo_format::DevItem::parse(&item.1)?;
            ensure!(used(s.devid) >= Some(item.bytes_used.get()), "{profile}: {used:?}", used = used(s.devid));
        }
    }
    Ok(())
}

/// Goal: images that the kernel has mounted are refused, by file name and by loop device, for reading unless requested.
#[test]
fn mounted_images_are_refused() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let files = scratch.images("dev", 2, 300 * MIB)?;
    oracle.mkfs(&["-d", "raid1", "-m", "raid1"], &files)?;
    let mounted = oracle.mount(&files, "")?;
    for file in &files {
        for write in [false, true] {
            let refused = FileDevice::open(file, &FileOptions::default().write(write));
            let Err(DeviceError::InUse { by: User::Mounted { .. }, .. }) = refused else { panic!("{refused:?}") };
        }
        FileDevice::open(file, &FileOptions::default().read_in_use(true))?;
    }
    let info = fs::read_to_string("/proc/self/mountinfo")?;
    let at = mounted.path().display().to_string();
    let line = info.lines().find(|l| l.contains(&at)).context("not in mountinfo")?;
    let source = line.split(" - btrfs ").nth(1).and_then(|s| s.split(' ').next()).context("no source")?;
    for write in [false, true] {
        let refused = FileDevice::open(Path::new(source), &FileOptions::default().write(write));
        assert!(matches!(refused, Err(DeviceError::InUse { .. })), "{source}: {refused:?}");
    }
    mounted.unmount()?;
    open(&files.iter().collect::<Vec<_>>(), &WRITE)?;
    Ok(())
}

/// Goal: a volume that grew out of a seed is read from both, its older blocks by the seed's fsid; the seed alone is
/// still the volume it was; neither seed nor a volume without its seed is written or read whole.
#[test]
fn seeds_and_sprouts() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let files = scratch.images("dev", 2, 400 * MIB)?;
    oracle.mkfs(&["-d", "single", "-m", "single"], &files[..1])?;
    let mounted = oracle.mount(&files[..1], "")?;
    fill(mounted.path(), 3)?;
    mounted.unmount()?;
    run("btrfstune", ["-S".as_ref(), "1".as_ref(), files[0].as_os_str()])?;
    let mounted = oracle.mount(&files[..1], "")?;
    let second = Loop::attach(&files[1], ReadOnly::No)?;
    run("btrfs", ["device".as_ref(), "add".as_ref(), second.path().as_os_str(), mounted.path().as_os_str()])?;
    run("mount", ["-o".as_ref(), "remount,rw".as_ref(), mounted.path().as_os_str()])?;
    fs::write(mounted.path().join("new"), Rng::new(4).bytes(5 << 20))?;
    mounted.unmount()?;
    drop(second);
    let seed = open(&[&files[0]], &READ)?;
    let (old, fsid) = (walk(&seed)?, seed.super_block().fsid());
    drop(seed);
    assert!(matches!(open(&[&files[0]], &WRITE), Err(VolumeError::Unsupported { .. })));
    for order in [[&files[0], &files[1]], [&files[1], &files[0]]] {
        let volume = open(&order, &READ)?;
        assert_ne!(volume.super_block().fsid(), fsid);
        let new = walk(&volume)?;
        ensure!(new.data_bytes >= old.data_bytes + 5 * MIB, "{old:?} then {new:?}");
        assert_eq!(volume.devices().iter().map(|d| d.seed).collect::<Vec<_>>(), [true, false]);
    }
    assert!(matches!(open(&[&files[1]], &READ), Err(VolumeError::Missing { .. })));
    Ok(())
}
