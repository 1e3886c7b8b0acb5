//! Volumes with a raid-stripe tree are read. No kernel here makes one, so they are made by hand: data moved to other places, and a tree that says where.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use oleo::{Image, OpenOptions};
use oleo_device::{Device, FileDevice, FileOptions};
use oleo_format::{
    BlockGroupFlags, ExtentFlags, ExtentRecord, Incompat, ItemType, Key, LeafBuilder, Logical, NodeExpect, RootItem,
    SUPER_OFFSETS, TreeId,
};
use oleo_sim::oracle::Scratch;
use oleo_sim::rng::Rng;
use oleo_volume::STRIPE_LEN;

/// Where moved data goes: behind all chunks, which are in the lower part of the devices.
const MOVED_TO: u64 = 400 << 20;

/// A volume whose data is somewhere else than its chunks say, and the contents of its file.
fn made(scratch: &Scratch, profile: &str, devices: usize) -> Result<(Vec<PathBuf>, Vec<u8>)> {
    let images = scratch.images(profile, devices, 512 << 20)?;
    let disks: Result<Vec<Arc<dyn Device>>> = images
        .iter()
        .map(|path| Ok(Arc::new(FileDevice::open(path, &FileOptions::default().write(true))?) as Arc<dyn Device>))
        .collect();
    let disks = disks?;
    let mut options = oleo::mkfs::MkfsOptions::default();
    options.data = Some(profile.parse()?);
    oleo::mkfs::make(&disks, &options)?;
    let bytes = Rng::new(1).bytes(3 << 20);
    let open = || OpenOptions::writing().devices(images[1..].to_vec());
    drop(disks);
    let image = Image::open(&images[0], &open())?;
    image.write("f", &bytes)?;
    image.sync()?;
    // An empty tree of that number.
    image.fs().engine().stage(|staged| {
        let mut item = RootItem::default();
        item.refs.set(1);
        staged.create_tree(TreeId::RAID_STRIPE, item)
    })?;
    image.sync()?;
    let engine = image.fs().engine();
    let volume = image.volume().clone();
    let rules = *volume.rules();
    let root = engine.root(TreeId::RAID_STRIPE)?.context("the tree")?;
    let block = volume.read_block(&NodeExpect::at(root.logical))?;
    let mut extents = Vec::new();
    engine.blocks().scan(&engine.root(TreeId::EXTENT)?.context("extents")?, Key::MIN, Key::MAX, |key, item| {
        if key.item_type == ItemType::EXTENT_ITEM && ExtentRecord::parse(key, item)?.flags.contains(ExtentFlags::DATA) {
            extents.push((key.objectid, key.offset));
        }
        Ok::<_, anyhow::Error>(ControlFlow::Continue(()))
    })?;
    let mut leaf = LeafBuilder::new(rules.nodesize);
    let mut to = vec![MOVED_TO; devices];
    let device = |devid: u64| volume.device(oleo_format::DevId(devid)).context("a device");
    for (at, len) in extents {
        let chunk = volume.chunk_of(Logical(at))?;
        ensure!(chunk.flags.contains(BlockGroupFlags::DATA));
        for piece in chunk.pieces(at - chunk.start.0, len) {
            ensure!(piece.len <= STRIPE_LEN || chunk.data_stripes() == 1);
            let mut strides = Vec::new();
            for stripe in piece.stripe..piece.stripe + piece.copies {
                let place = &chunk.stripes[stripe];
                let device = device(place.devid.0)?;
                let mut there = vec![0; usize::try_from(piece.len)?];
                device.read_at(place.offset.0 + piece.offset, &mut there)?;
                device.write_at(place.offset.0 + piece.offset, &vec![0xee; there.len()])?;
                let new = &mut to[usize::try_from(place.devid.0)? - 1];
                device.write_at(*new, &there)?;
                strides.extend(place.devid.0.to_le_bytes());
                strides.extend(new.to_le_bytes());
                // Not side by side: nothing may be computed from the chunk.
                *new += piece.len + 12 * 4096;
            }
            let key = Key::new(chunk.start.0 + piece.at, ItemType::RAID_STRIPE, piece.len);
            ensure!(leaf.push(&key, &strides), "the leaf is full");
        }
    }
    let mut sealed = leaf.finish(&block.head()).into_vec();
    oleo_format::seal(&mut sealed, rules.csum);
    let chunk = volume.chunk_of(root.logical)?;
    for piece in chunk.pieces(root.logical.0 - chunk.start.0, u64::from(rules.nodesize)) {
        for stripe in piece.stripe..piece.stripe + piece.copies {
            let place = &chunk.stripes[stripe];
            let from = usize::try_from(chunk.start.0 + piece.at - root.logical.0)?;
            let part = &sealed[from..from + usize::try_from(piece.len)?];
            device(place.devid.0)?.write_at(place.offset.0 + piece.offset, part)?;
        }
    }
    for info in volume.devices() {
        let device = device(info.devid.0)?;
        for at in SUPER_OFFSETS.into_iter().filter(|at| at + 4096 <= device.len()) {
            let mut bytes = vec![0; 4096];
            device.read_at(at, &mut bytes)?;
            let mut sb = oleo_format::SuperBlock::read(&bytes)?;
            sb.incompat_flags.set(sb.incompat_flags.get() | Incompat::RAID_STRIPE_TREE.bits());
            device.write_at(at, &sb.to_bytes(at))?;
        }
    }
    Ok((images, bytes))
}

/// Goal: files are read from where the tree says, of every profile that it is for; a bad copy is passed over; writing, scrub and check are refused by
/// name. Method: images made by hand (there is no oracle for them).
#[test]
fn data_is_read_from_where_the_tree_says() -> Result<()> {
    for (profile, devices, copies) in
        [("raid1", 2, 2), ("raid0", 2, 1), ("raid10", 4, 2), ("dup", 1, 2), ("raid1c3", 3, 3)]
    {
        let scratch = Scratch::new()?;
        let (images, bytes) = made(&scratch, profile, devices)?;
        let others = images[1..].to_vec();
        let options = OpenOptions::default().devices(others.clone());
        let image = Image::open(&images[0], &options)?;
        ensure!(image.read("f")? == bytes, "{profile}");
        drop(image);
        // The first sector of each device's moved data rots: with copies that costs nothing, without it is an error.
        let file = std::fs::OpenOptions::new().write(true).open(&images[0])?;
        std::os::unix::fs::FileExt::write_all_at(&file, &[0x55; 4096], MOVED_TO)?;
        drop(file);
        let image = Image::open(&images[0], &options)?;
        let read = image.read("f");
        ensure!(if copies > 1 { read? == bytes } else { read.is_err() }, "{profile}: rotten");
        let refused = image.scrubber().start(oleo::scrub::ScrubWant::new().repair(false));
        ensure!(refused.unwrap_err().to_string().contains("raid-stripe tree"), "scrub");
        drop(image);
        let write = Image::open(&images[0], &OpenOptions::writing().devices(others)).err().context("it was opened")?;
        ensure!(write.to_string().contains("raid_stripe_tree"), "{write}");
        let check = oleo::check::image(&images[0], &options, Default::default(), &Default::default());
        ensure!(check.err().context("it was checked")?.to_string().contains("raid-stripe tree"), "check");
    }
    Ok(())
}
