//! Volumes with a remap tree are read. No kernel here makes one, so they are made by hand: data and tree blocks moved to other places, and a tree that
//! says where.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use oleo::inspect::Inspector;
use oleo::{Image, OpenOptions};
use oleo_device::{Device, FileDevice, FileOptions};
use oleo_format::{
    BlockGroupFlags, BlockGroupItemV2, BlockHead, ByteLen, ChildPtr, Chunk, ExtentFlags, ExtentRecord, Generation,
    HeaderFlags, Incompat, ItemType, Key, LeafBuilder, Logical, SUPER_OFFSETS, Stripe, SuperBlock, TreeId, encode_node,
    print,
};
use oleo_sim::oracle::Scratch;
use oleo_sim::rng::Rng;
use oleo_volume::ChunkMap;

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;
/// Where the new chunks are on the device: behind all others. Data, metadata twice, the remap tree.
const DATA_AT: u64 = 320 * MIB;
const METADATA_AT: [u64; 2] = [380 * MIB, 400 * MIB];
const TREE_AT: u64 = 420 * MIB;
const SHORT_FILES: usize = 300;

/// What is about to be written.
struct Draft {
    sb: SuperBlock,
    chunks: Vec<(Key, Chunk)>,
    /// Items of the remap tree, in order.
    items: Vec<(Key, Vec<u8>)>,
    /// The first addresses of the new chunks: data, metadata, the remap tree.
    data: u64,
    metadata: u64,
    tree: u64,
    /// A remapped metadata chunk.
    old_metadata: u64,
}

impl Draft {
    /// The first REMAP whose range is data, or else metadata.
    fn remap(&mut self, of_data: bool) -> Result<&mut (Key, Vec<u8>)> {
        let chunks = &self.chunks;
        let is_data = |at: u64| {
            let chunk = chunks.iter().find(|(key, chunk)| key.offset <= at && at - key.offset < chunk.length.0);
            chunk.is_some_and(|(_, chunk)| chunk.flags.contains(BlockGroupFlags::DATA))
        };
        let mut found = self.items.iter_mut().filter(|(key, _)| key.item_type == ItemType::REMAP);
        found.find(|(key, _)| is_data(key.objectid) == of_data).context("a remapped range")
    }

    /// Puts the items in order after a change.
    fn sort(&mut self) {
        self.items.sort_by_key(|(key, _)| *key);
    }
}

struct Made {
    image: PathBuf,
    big: Vec<u8>,
    data_used: u64,
}

fn short(nth: usize) -> Vec<u8> {
    Rng::new(nth as u64).bytes(100 + nth)
}

fn stripe(of: &ChunkMap, offset: u64) -> Stripe {
    let place = &of.stripes[0];
    Stripe { devid: place.devid.0.into(), offset: offset.into(), dev_uuid: place.dev_uuid.into_bytes() }
}

/// A range that goes somewhere else.
fn moved(from: u64, len: u64, to: u64) -> [(Key, Vec<u8>); 2] {
    [
        (Key::new(from, ItemType::REMAP, len), to.to_le_bytes().to_vec()),
        (Key::new(to, ItemType::REMAP_BACKREF, len), from.to_le_bytes().to_vec()),
    ]
}

/// The device and what of it belongs to the volume.
struct Disk {
    device: FileDevice,
    chunks: Vec<Arc<ChunkMap>>,
}

impl Disk {
    fn places(&self, at: u64, len: u64) -> Result<Vec<u64>> {
        let chunk = self.chunks.iter().find(|chunk| chunk.contains(Logical(at))).context("a chunk")?;
        let piece = chunk.piece(at - chunk.start.0, len);
        ensure!(piece.len == len);
        Ok((0..piece.copies).map(|copy| chunk.physical(piece.stripe + copy, piece.offset).0).collect())
    }

    /// Takes bytes away from where their chunk says.
    fn take(&self, at: u64, len: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(len)?];
        for place in self.places(at, len)? {
            self.device.read_at(place, &mut bytes)?;
            self.device.write_at(place, &vec![0xee; bytes.len()])?;
        }
        Ok(bytes)
    }

    fn put(&self, at: u64, bytes: &[u8]) -> Result<()> {
        for place in self.places(at, bytes.len() as u64)? {
            self.device.write_at(place, bytes)?;
        }
        Ok(())
    }
}

/// A volume whose data and tree blocks are partly somewhere else than its chunks say. `emptied`: the data chunks have no stripes any more.
/// `tamper` changes it before it is written.
fn made(scratch: &Scratch, name: &str, emptied: bool, tamper: &dyn Fn(&mut Draft) -> Result<()>) -> Result<Made> {
    let path = scratch.images(name, 1, 512 * MIB)?.remove(0);
    let writable = FileOptions::default().write(true);
    let mut options = oleo::mkfs::MkfsOptions::default();
    options.features.block_group_tree = true;
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&path, &writable)?);
    oleo::mkfs::make(std::slice::from_ref(&device), &options)?;
    drop(device);
    let big = Rng::new(1).bytes(5 << 20);
    let image = Image::open(&path, &OpenOptions::writing())?;
    image.write("big", &big)?;
    for nth in 0..SHORT_FILES {
        image.write(format!("short{nth}"), &short(nth))?;
    }
    image.sync()?;
    drop(image);
    let image = Image::open(&path, &OpenOptions::default())?;
    let data_used = used(&image);
    let (engine, volume) = (image.fs().engine().clone(), image.volume().clone());
    let rules = *volume.rules();
    let (mut extents, mut blocks) = (Vec::new(), Vec::new());
    engine.blocks().scan(&engine.root(TreeId::EXTENT)?.context("extents")?, Key::MIN, Key::MAX, |key, item| {
        match key.item_type {
            ItemType::EXTENT_ITEM if ExtentRecord::parse(key, item)?.flags.contains(ExtentFlags::DATA) => {
                extents.push((key.objectid, key.offset));
            }
            ItemType::METADATA_ITEM => blocks.push(key.objectid),
            _ => {}
        }
        Ok::<_, anyhow::Error>(ControlFlow::Continue(()))
    })?;
    let groups = engine.root(TreeId::BLOCK_GROUP)?.context("groups")?;
    let chunk_tree = engine.root(TreeId::CHUNK)?.context("chunks")?;
    let sb = volume.super_block();
    let read = |at: Logical| volume.read_block(&oleo_format::NodeExpect::at(at));
    let (group_leaf, chunk_leaf) = (read(groups.logical)?, read(chunk_tree.logical)?);
    ensure!(group_leaf.is_leaf() && chunk_leaf.is_leaf());
    let (chunks, chunk_tree_uuid) = (volume.chunks(), volume.chunk_tree_uuid());
    drop((image, engine, volume));
    let of_type = |flags| chunks.iter().filter(move |chunk: &&Arc<ChunkMap>| chunk.flags.contains(flags));
    let old_metadata = of_type(BlockGroupFlags::METADATA).next().context("a chunk")?.start.0;
    let behind = chunks.iter().map(|chunk| chunk.end().0).max().context("chunks")?;
    let (data, metadata, tree) = (behind, behind + 64 * MIB, behind + 96 * MIB);
    let like = chunks[0].clone();
    let new_chunk = |flags, len, offsets: &[u64]| Chunk {
        length: ByteLen(len),
        flags,
        sub_stripes: 1,
        stripes: offsets.iter().map(|offset| stripe(&like, *offset)).collect(),
        ..like.chunk()
    };
    let mut draft = Draft { sb, chunks: Vec::new(), items: Vec::new(), data, metadata, tree, old_metadata };
    for chunk in &chunks {
        let mut item = chunk.chunk();
        if !chunk.flags.contains(BlockGroupFlags::SYSTEM) {
            item.flags |= BlockGroupFlags::REMAPPED;
        }
        if emptied && chunk.flags.contains(BlockGroupFlags::DATA) {
            item.stripes.clear();
        }
        draft.chunks.push((chunk.key(), item));
    }
    let dup = BlockGroupFlags::METADATA | BlockGroupFlags::DUP;
    for (at, item) in [
        (data, new_chunk(BlockGroupFlags::DATA, 32 * MIB, &[DATA_AT])),
        (metadata, new_chunk(dup, 16 * MIB, &METADATA_AT)),
        (tree, new_chunk(BlockGroupFlags::METADATA_REMAP, MIB, &[TREE_AT])),
    ] {
        draft.chunks.push((Chunk::key(Logical(at)), item));
    }
    let mut all = chunks.clone();
    for (key, item) in &draft.chunks[chunks.len()..] {
        all.push(Arc::new(ChunkMap::new(Logical(key.offset), item, rules.sectorsize)?));
    }
    let disk = Disk { device: FileDevice::open(&path, &writable)?, chunks: all };

    // Data: of each extent the first part stays, unless nothing may; what is left goes in two parts, the second in front of the first.
    let mut to = data + 8 * KIB;
    for (at, len) in extents {
        let sectors = len / 4096;
        let cuts = if emptied { [0, sectors / 2, sectors] } else { [sectors / 4, sectors / 2, sectors] };
        let [stays, half, end] = cuts.map(|cut| at + cut * 4096);
        if stays > at {
            draft.items.push((Key::new(at, ItemType::IDENTITY_REMAP, stays - at), Vec::new()));
        }
        for (from, end) in [(half, end), (stays, half)] {
            if from < end {
                disk.put(to, &disk.take(from, end - from)?)?;
                draft.items.extend(moved(from, end - from, to));
                to += end - from + 12 * KIB;
            }
        }
    }
    // Tree blocks: each fourth stays, the others go backwards.
    let nodesize = u64::from(rules.nodesize);
    let mut to = metadata + 8 * MIB;
    let is_moved = |at: &u64| of_type(BlockGroupFlags::METADATA).any(|chunk| chunk.contains(Logical(*at)));
    for (nth, at) in blocks.into_iter().filter(is_moved).enumerate() {
        let mut bytes = disk.take(at, nodesize)?;
        if Logical(at) == groups.logical {
            bytes = longer_groups(&group_leaf, rules.nodesize, rules.csum)?;
        }
        if nth % 4 == 0 {
            disk.put(at, &bytes)?;
            draft.items.push((Key::new(at, ItemType::IDENTITY_REMAP, nodesize), Vec::new()));
        } else {
            disk.put(to, &bytes)?;
            draft.items.extend(moved(at, nodesize, to));
            to -= nodesize + 4096;
        }
    }
    draft.sort();
    draft.sb.incompat_flags.set(draft.sb.incompat_flags.get() | Incompat::REMAP_TREE.bits());
    draft.sb.remap_root = (tree + 2 * nodesize).into();
    draft.sb.remap_root_generation = draft.sb.generation;
    draft.sb.remap_root_level = 1;
    tamper(&mut draft)?;
    // The tree: a root and two leaves.
    let head = |at, level| BlockHead {
        logical: Logical(at),
        generation: Generation(draft.sb.remap_root_generation.get()),
        owner: TreeId::REMAP,
        level,
        flags: HeaderFlags::WRITTEN | HeaderFlags::MIXED_BACKREF_REV,
        fsid: rules.fsid,
        chunk_tree_uuid,
    };
    let mut children = Vec::new();
    for (nth, items) in draft.items.chunks(draft.items.len().div_ceil(2)).enumerate() {
        let at = tree + nth as u64 * nodesize;
        let mut leaf = LeafBuilder::new(rules.nodesize);
        for (key, item) in items {
            ensure!(leaf.push(key, item), "the leaf is full");
        }
        let mut bytes = leaf.finish(&head(at, 0)).into_vec();
        oleo_format::seal(&mut bytes, rules.csum);
        disk.put(at, &bytes)?;
        let generation = Generation(draft.sb.remap_root_generation.get());
        children.push(ChildPtr { key: items[0].0, logical: Logical(at), generation });
    }
    let mut root = encode_node(rules.nodesize, &head(draft.sb.remap_root.get(), 1), &children).into_vec();
    oleo_format::seal(&mut root, rules.csum);
    disk.put(draft.sb.remap_root.get(), &root)?;
    // The chunk tree, in its place.
    let mut leaf = LeafBuilder::new(rules.nodesize);
    for (key, item) in chunk_leaf.iter().filter(|(key, _)| key.item_type == ItemType::DEV_ITEM) {
        ensure!(leaf.push(&key, item));
    }
    for (key, chunk) in &draft.chunks {
        ensure!(leaf.push(key, &chunk.encode()));
    }
    let mut bytes = leaf.finish(&chunk_leaf.head()).into_vec();
    oleo_format::seal(&mut bytes, rules.csum);
    disk.put(chunk_tree.logical.0, &bytes)?;
    for at in SUPER_OFFSETS.into_iter().filter(|at| at + 4096 <= disk.device.len()) {
        disk.device.write_at(at, &draft.sb.to_bytes(at))?;
    }
    Ok(Made { image: path, big, data_used })
}

/// The leaf of block groups with items in the long form.
fn longer_groups(leaf: &oleo_format::CheckedNode, nodesize: u32, csum: oleo_format::CsumType) -> Result<Vec<u8>> {
    let mut longer = LeafBuilder::new(nodesize);
    for (key, item) in leaf.iter() {
        let flags = BlockGroupItemV2::decode(item)?.group_flags();
        let mut group = item.to_vec();
        let mut count = 0_u32;
        if !flags.contains(BlockGroupFlags::SYSTEM) {
            group[16..24].copy_from_slice(&(flags | BlockGroupFlags::REMAPPED).bits().to_le_bytes());
            count = 1;
        }
        group.extend(0_u64.to_le_bytes());
        group.extend(count.to_le_bytes());
        ensure!(longer.push(&key, &group));
    }
    let mut bytes = longer.finish(&leaf.head()).into_vec();
    oleo_format::seal(&mut bytes, csum);
    Ok(bytes)
}

fn used(image: &Image) -> u64 {
    let of_data = image.df().into_iter().filter(|group| group.flags.contains(BlockGroupFlags::DATA));
    of_data.map(|group| group.used.0).sum()
}

fn read_all(image: &Image, made: &Made) -> Result<()> {
    ensure!(image.read("big")? == made.big, "big");
    for nth in 0..SHORT_FILES {
        ensure!(image.read(format!("short{nth}"))? == short(nth), "short{nth}");
    }
    Ok(())
}

fn open(path: &Path) -> oleo::Result<Image> {
    Image::open(path, &OpenOptions::default())
}

/// Goal: files and trees are read from where the remap tree says, of chunks that still have something in its own place and of chunks that have no
/// stripes any more; the trees are shown; writing, scrub, check and earlier roots are refused by name. Method: images made by hand (there is no oracle
/// for them).
#[test]
fn everything_is_read_from_where_the_tree_says() -> Result<()> {
    let scratch = Scratch::new()?;
    for emptied in [false, true] {
        let made = made(&scratch, &format!("emptied-{emptied}"), emptied, &|_| Ok(()))?;
        let image = open(&made.image)?;
        read_all(&image, &made)?;
        // What is remapped to the new chunk counts where it is; no item of the test says how much, so that only the rest can be compared.
        ensure!(used(&image) <= made.data_used, "{} of {}", used(&image), made.data_used);
        ensure!(emptied == (used(&image) == 0), "{}", used(&image));
        let refused = image.scrubber().start(oleo::scrub::ScrubWant::new().repair(false));
        ensure!(refused.unwrap_err().to_string().contains("remap tree"), "scrub");
        drop(image);
        let write = Image::open(&made.image, &OpenOptions::writing()).err().context("it was opened")?;
        ensure!(write.to_string().contains("remap_tree"), "{write}");
        let check = |start| oleo::check::image(&made.image, &OpenOptions::default(), start, &Default::default());
        let checked = check(oleo::check::Start::default()).err().context("it was checked")?;
        ensure!(checked.to_string().contains("remap tree"), "{checked}");
        let mut earlier = oleo::check::Start::default();
        earlier.backup = Some(0);
        let checked = check(earlier).err().context("it was checked")?;
        ensure!(checked.to_string().contains("earlier roots of a volume with a remap tree"), "{checked}");
        let inspector = Inspector::open(&made.image, &OpenOptions::default())?;
        let trees = inspector.trees()?;
        let tree = trees.iter().find(|tree| tree.tree == TreeId::REMAP).context("the tree")?;
        let mut shown = String::new();
        inspector.walk(tree, |node| {
            shown += &print::block(node, inspector.volume().rules()).to_string();
            oleo::inspect::Step::Into
        })?;
        for word in ["REMAP", "remap address", "remap backref address", "IDENTITY_REMAP"] {
            ensure!(shown.contains(word), "{word}: {shown}");
        }
        let mut sums = String::new();
        for tree in trees.iter().filter(|tree| [TreeId::BLOCK_GROUP, TreeId::CHUNK].contains(&tree.tree)) {
            inspector.walk(tree, |node| {
                sums += &print::block(node, inspector.volume().rules()).to_string();
                sums += &print::json::block(node, inspector.volume().rules()).to_string();
                oleo::inspect::Step::Into
            })?;
        }
        for word in ["DATA|REMAPPED|single", "METADATA_REMAP|single", "identity_remap_count 1", "\"remap_bytes\""] {
            ensure!(sums.contains(word), "{word}: {sums}");
        }
    }
    Ok(())
}

type Tamper = fn(&mut Draft) -> Result<()>;

/// Goal: a remap tree that lies is an error when the volume is opened, never a loop, a panic or wrong bytes. Method: one lie each.
#[test]
fn lies_about_places_are_found() -> Result<()> {
    let lies: [(&str, bool, Tamper); 14] = [
        ("not remapped itself", false, |draft| {
            // Two steps: a range goes where another remapped one is.
            let second =
                draft.items.iter().rfind(|(key, _)| key.item_type == ItemType::REMAP).context("two")?.0.objectid;
            draft.remap(true)?.1 = second.to_le_bytes().to_vec();
            Ok(())
        }),
        ("not remapped itself", false, |draft| {
            // A loop of one.
            let one = draft.remap(true)?;
            one.1 = one.0.objectid.to_le_bytes().to_vec();
            Ok(())
        }),
        ("end of the one before it", false, |draft| {
            let one = draft.remap(true)?.clone();
            let key = Key::new(one.0.objectid + 4096, ItemType::REMAP, 4096);
            draft.items.push((key, one.1));
            draft.sort();
            Ok(())
        }),
        ("a range of one remapped chunk", false, |draft| {
            draft.items.push((Key::new(draft.data, ItemType::IDENTITY_REMAP, 4096), Vec::new()));
            draft.sort();
            Ok(())
        }),
        ("a range of one remapped chunk", false, |draft| {
            // Across the end of its chunk.
            let last = draft
                .chunks
                .iter()
                .filter(|(_, chunk)| chunk.flags.is_remapped())
                .map(|(key, chunk)| key.offset + chunk.length.0)
                .max();
            let last = last.context("a chunk")? - 4096;
            draft.items.push((Key::new(last, ItemType::IDENTITY_REMAP, 8192), Vec::new()));
            draft.sort();
            Ok(())
        }),
        ("a chunk that has stripes", true, |draft| {
            let one = draft.remap(true)?;
            (one.0.item_type, one.1) = (ItemType::IDENTITY_REMAP, Vec::new());
            Ok(())
        }),
        ("a chunk of the same type", false, |draft| {
            let to = draft.metadata;
            draft.remap(true)?.1 = to.to_le_bytes().to_vec();
            Ok(())
        }),
        ("a chunk of the same type", false, |draft| {
            let to = draft.tree;
            draft.remap(false)?.1 = to.to_le_bytes().to_vec();
            Ok(())
        }),
        ("a range of one chunk", false, |draft| {
            draft.remap(true)?.1 = (u64::MAX - 64 * MIB + 1).to_le_bytes().to_vec();
            Ok(())
        }),
        ("one that is not remapped", false, |draft| {
            draft.sb.remap_root = (draft.old_metadata + 4 * MIB).into();
            Ok(())
        }),
        ("level", false, |draft| {
            draft.sb.remap_root_level = 2;
            Ok(())
        }),
        ("remap_root_level", false, |draft| {
            draft.sb.remap_root_level = 8;
            Ok(())
        }),
        ("raid_stripe_tree, remap_tree", false, |draft| {
            draft.sb.incompat_flags.set(draft.sb.incompat_flags.get() | Incompat::RAID_STRIPE_TREE.bits());
            Ok(())
        }),
        ("nothing remapped without REMAP_TREE", false, |draft| {
            draft.sb.incompat_flags.set(draft.sb.incompat_flags.get() & !Incompat::REMAP_TREE.bits());
            Ok(())
        }),
    ];
    let scratch = Scratch::new()?;
    for (nth, (want, emptied, tamper)) in lies.into_iter().enumerate() {
        let made = made(&scratch, &format!("lie-{nth}"), emptied, &tamper)?;
        let error = open(&made.image).err().with_context(|| format!("{nth}: {want}: it was opened"))?;
        ensure!(error.to_string().contains(want), "{nth}: {error}, not {want}");
    }
    Ok(())
}

/// Goal: where the tree says nothing there is an error for whoever wants that, and for nobody else. Method: a range of the long file is left out; a tree
/// block is in two pieces.
#[test]
fn gaps_are_errors_of_who_wants_them() -> Result<()> {
    let scratch = Scratch::new()?;
    let gap = made(&scratch, "gap", true, &|draft| {
        let key = draft.remap(true)?.0;
        draft.items.retain(|(other, _)| *other != key);
        Ok(())
    })?;
    let image = open(&gap.image)?;
    ensure!(image.read("big").is_err(), "it was read");
    ensure!(image.read("short7")? == short(7));
    drop(image);
    let torn = made(&scratch, "torn", false, &|draft| {
        // All that were moved, so that one of them is needed.
        let is_block = |(key, _): &(Key, Vec<u8>)| key.item_type == ItemType::REMAP && key.offset == 16 * KIB;
        let (blocks, others) = std::mem::take(&mut draft.items).into_iter().partition(is_block);
        draft.items = others;
        let blocks: Vec<(Key, Vec<u8>)> = blocks;
        for (key, to) in blocks {
            let half = key.offset / 2;
            let other = draft.metadata + 12 * MIB;
            draft.items.push((Key::new(key.objectid, ItemType::REMAP, half), to));
            draft.items.push((Key::new(key.objectid + half, ItemType::REMAP, half), other.to_le_bytes().to_vec()));
        }
        draft.sort();
        Ok(())
    })?;
    let read = open(&torn.image).map_err(anyhow::Error::from).and_then(|image| read_all(&image, &torn));
    let error = format!("{:#}", read.err().context("blocks in pieces were read")?);
    ensure!(error.contains("place of a block"), "{error}");
    Ok(())
}
