//! Volumes in memory whose items can be changed one by one, with checksums corrected.

use std::sync::Arc;

use oleo::mkfs::MkfsOptions;
use oleo::{Image, OpenOptions};
use oleo_check::{CheckOptions, Kind, Report, check};
use oleo_device::{Device, MemDevice};
use oleo_format::{
    CheckedNode, ItemType, Key, LeafBuilder, Logical, NodeExpect, RootItem, SUPER_LEN, SUPER_OFFSETS, SuperBlock,
    TreeId, seal,
};
use oleo_volume::{ChunkMap, Volume};

pub const MIB: u64 = 1 << 20;

/// A volume in memory.
pub struct Disk {
    pub devices: Vec<Arc<MemDevice>>,
}

impl Disk {
    /// A new one, filled.
    pub fn new(options: &MkfsOptions, devices: usize, fill: impl FnOnce(&Image)) -> Disk {
        let disk = Disk { devices: (0..devices).map(|_| Arc::new(MemDevice::new(256 * MIB))).collect() };
        oleo::mkfs::make(&disk.as_dyn(), options).unwrap();
        let image = Image::from_devices(disk.as_dyn(), &OpenOptions::writing()).unwrap();
        fill(&image);
        image.close().unwrap();
        disk
    }

    /// One with a bit of everything, in few blocks.
    pub fn usual() -> Disk {
        Disk::new(&MkfsOptions::default(), 1, some_files)
    }

    pub fn copy(&self) -> Disk {
        Disk { devices: self.devices.iter().map(|d| Arc::new(d.copy())).collect() }
    }

    fn as_dyn(&self) -> Vec<Arc<dyn Device>> {
        self.devices.iter().map(|d| d.clone() as Arc<dyn Device>).collect()
    }

    pub fn volume(&self) -> Volume {
        Volume::open(self.as_dyn(), &oleo_volume::OpenOptions::default()).unwrap()
    }

    pub fn check(&self) -> Report {
        check(&self.volume(), &CheckOptions::default().threads(1).data(true)).unwrap()
    }

    /// Which kinds of findings there are, each once.
    pub fn kinds(&self) -> Vec<Kind> {
        let mut kinds: Vec<Kind> = self.check().findings.iter().map(|f| f.kind).collect();
        kinds.dedup();
        kinds
    }

    pub fn root(&self, tree: TreeId) -> Logical {
        self.root_key(tree).1
    }

    /// The key of a tree's root item and the address of its root block.
    pub fn root_key(&self, tree: TreeId) -> (Key, Logical) {
        let sb = self.volume().super_block();
        match tree {
            TreeId::ROOT => (Key::root_item(tree), sb.root()),
            TreeId::CHUNK => (Key::root_item(tree), sb.chunk_root()),
            _ => {
                let (key, item) =
                    self.find(TreeId::ROOT, |key, _| key.objectid == tree.0 && key.item_type == ItemType::ROOT_ITEM);
                (key, Logical(RootItem::decode(&item).unwrap().bytenr.get()))
            }
        }
    }

    pub fn node(&self, at: Logical) -> CheckedNode {
        self.volume().read_block(&NodeExpect::at(at)).unwrap()
    }

    /// The leaf of a tree in which a key is or would be.
    pub fn leaf(&self, tree: TreeId, key: &Key) -> CheckedNode {
        let mut node = self.node(self.root(tree));
        while !node.is_leaf() {
            node = self.node(node.child(node.child_slot(key)).logical);
        }
        node
    }

    /// All items of a tree.
    pub fn items(&self, tree: TreeId) -> Vec<(Key, Vec<u8>)> {
        let mut items = Vec::new();
        let mut stack = vec![self.root(tree)];
        while let Some(at) = stack.pop() {
            let node = self.node(at);
            match node.is_leaf() {
                true => items.extend(node.iter().map(|(key, item)| (key, item.to_vec()))),
                false => stack.extend((0..node.len()).rev().map(|slot| node.child(slot).logical)),
            }
        }
        items
    }

    /// The first item of a tree that fits.
    pub fn find(&self, tree: TreeId, fits: impl Fn(&Key, &[u8]) -> bool) -> (Key, Vec<u8>) {
        self.items(tree).into_iter().find(|(key, item)| fits(key, item)).expect("such an item")
    }

    /// Places of all copies of a block: device number from 0, offset.
    pub fn places(&self, at: Logical) -> Vec<(usize, u64)> {
        let chunk: Arc<ChunkMap> = self.volume().chunk_of(at).unwrap();
        let piece = chunk.piece(at.0 - chunk.start.0, 1);
        let one = |copy: usize| {
            let stripe = piece.stripe + copy;
            (chunk.stripes[stripe].devid.0 as usize - 1, chunk.physical(stripe, piece.offset).0)
        };
        (0..piece.copies).map(one).collect()
    }

    /// Changes all copies of a block, then seals them.
    pub fn edit_block(&self, at: Logical, edit: impl Fn(&mut [u8])) {
        self.edit_copies(at, usize::MAX, true, edit);
    }

    /// Changes the first copies of a block.
    pub fn edit_copies(&self, at: Logical, copies: usize, sealed: bool, edit: impl Fn(&mut [u8])) {
        let rules = *self.volume().rules();
        for (device, offset) in self.places(at).into_iter().take(copies) {
            let mut bytes = vec![0; rules.nodesize as usize];
            self.devices[device].read_at(offset, &mut bytes).unwrap();
            edit(&mut bytes);
            if sealed {
                seal(&mut bytes, rules.csum);
            }
            self.devices[device].write_at(offset, &bytes).unwrap();
        }
    }

    /// Makes the leaf with a key anew from other items.
    pub fn edit_leaf(&self, tree: TreeId, key: &Key, edit: impl FnOnce(&mut Vec<(Key, Vec<u8>)>)) {
        let leaf = self.leaf(tree, key);
        let mut items: Vec<_> = leaf.iter().map(|(key, item)| (key, item.to_vec())).collect();
        edit(&mut items);
        items.sort_by_key(|(key, _)| *key);
        let mut builder = LeafBuilder::new(self.volume().rules().nodesize);
        items.iter().for_each(|(key, item)| assert!(builder.push(key, item), "the leaf is full"));
        let block = builder.finish(&leaf.head());
        self.edit_block(leaf.logical(), |bytes| bytes.copy_from_slice(&block));
    }

    /// Changes an item.
    pub fn edit(&self, tree: TreeId, key: &Key, edit: impl FnOnce(&mut Vec<u8>)) {
        self.edit_leaf(tree, key, |items| {
            let (_, item) = items.iter_mut().find(|(k, _)| k == key).expect("the item");
            edit(item);
        });
    }

    pub fn remove(&self, tree: TreeId, key: &Key) {
        self.edit_leaf(tree, key, |items| {
            let before = items.len();
            items.retain(|(k, _)| k != key);
            assert_eq!(items.len() + 1, before);
        });
    }

    pub fn insert(&self, tree: TreeId, key: Key, item: Vec<u8>) {
        self.edit_leaf(tree, &key, |items| items.push((key, item)));
    }

    /// Gives an item another key.
    pub fn move_item(&self, tree: TreeId, from: &Key, to: Key) {
        self.edit_leaf(tree, from, |items| {
            let (key, _) = items.iter_mut().find(|(k, _)| k == from).expect("the item");
            *key = to;
        });
    }

    /// Changes one mirror of the superblock of a device, or all of them.
    pub fn edit_super(&self, device: usize, mirror: Option<usize>, sealed: bool, edit: impl Fn(&mut SuperBlock)) {
        let device = &self.devices[device];
        let mirrors = SUPER_OFFSETS.iter().enumerate().filter(|(i, _)| mirror.is_none_or(|m| m == *i));
        for (_, &offset) in mirrors.filter(|(_, offset)| **offset + SUPER_LEN as u64 <= device.len()) {
            let mut bytes = vec![0; SUPER_LEN];
            device.read_at(offset, &mut bytes).unwrap();
            let mut sb = *SuperBlock::parse(&bytes).unwrap();
            edit(&mut sb);
            match sealed {
                true => device.write_at(offset, &sb.to_bytes(offset)).unwrap(),
                false => device.write_at(offset, zerocopy::IntoBytes::as_bytes(&sb)).unwrap(),
            }
        }
    }
}

/// Files inline and on disk, a clone, a subvolume and two snapshots of it that differ.
pub fn some_files(image: &Image) {
    let top = image.top().unwrap();
    image.write("small", b"in the item").unwrap();
    image.write("large", &noise(300_000, 1)).unwrap();
    image.copy(&top, b"large", b"clone", oleo::fs::Depth::One, oleo::fs::Sharing::Reflink).unwrap();
    image.create_subvol("v").unwrap();
    for i in 0..300 {
        image.write(format!("v/{i}"), &noise(if i % 10 == 0 { 9000 } else { 100 }, i)).unwrap();
    }
    image.sync().unwrap();
    image.snapshot("v", "w", &Default::default()).unwrap();
    image.snapshot("v", "x", &Default::default()).unwrap();
    for i in 100..120 {
        image.write(format!("v/{i}"), &noise(5000, i)).unwrap();
        image.write(format!("w/{}", i + 50), &noise(6000, i)).unwrap();
    }
    image.sync().unwrap();
}

/// Bytes that do not compress.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    oleo_sim::rng::Rng::new(seed).bytes(len)
}
