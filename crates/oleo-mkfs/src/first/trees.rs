//! The items of the first trees, packed into blocks.
//!
//! The extent tree lists every block, the root tree holds the address of every tree, and the number of blocks depends
//! on both. [`build`] solves this in rounds: (1) assume a number of blocks for each tree, (2) assign addresses, (3)
//! write all items, (4) pack them and count the blocks; if the count differs from the assumption, begin again with the
//! count. The number of items depends on the number of blocks but not on addresses, so this ends with the second or
//! third round.
//!
//! Every item here is written once, for the generation [`FIRST_GENERATION`]; later generations are written by the
//! transaction engine.

use std::collections::BTreeMap;

use oleo_format::{
    BlockGroupItem, BlockHead, ByteLen, ChildPtr, DevExtent, DevItem, DirItem, DiskKey, ExtentFlags, ExtentInlineRef,
    ExtentItem, FileType, FreeSpaceInfo, Generation, HeaderFlags, Ino, InodeFlags, InodeItem, InodeRef, ItemType, Key,
    LeafBuilder, Logical, RootItem, Timespec, TreeBlockInfo, TreeId, dir_hash, encode_node, seal,
};
use uuid::Uuid;
use zerocopy::IntoBytes;

use super::plan::{Placed, Plan, devid};
use crate::MkfsError;
use crate::options::{Resolved, derive_uuid};

/// The generation that a new file system is in.
pub(crate) const FIRST_GENERATION: Generation = Generation(1);

/// Rounds of packing until block counts settle. Each round can only raise the counts, by the items of the blocks
/// that the round before added; a handful of blocks fits every leaf.
const ROUNDS_MAX: usize = 8;

/// Device items belong to this object of the chunk tree (`BTRFS_DEV_ITEMS_OBJECTID`).
const DEV_ITEMS: u64 = 1;
/// Chunk items belong to this object of the chunk tree (`BTRFS_FIRST_CHUNK_TREE_OBJECTID`).
const FIRST_CHUNK_TREE: u64 = 256;
/// `S_IFDIR`.
const MODE_DIR: u32 = 0o040_000;

type Items = BTreeMap<Key, Vec<u8>>;

/// Blocks and the numbers that the superblock needs to find them.
pub(crate) struct Built {
    /// Sealed blocks, each with its address, in order of address.
    pub blocks: Vec<(Logical, Box<[u8]>)>,
    pub root: (Logical, u8),
    pub chunk_root: (Logical, u8),
    pub sys_chunk_array: Vec<u8>,
    pub dev_items: Vec<DevItem>,
    pub bytes_used: ByteLen,
}

/// A tree block, as the extent tree records it.
struct Placement {
    at: Logical,
    tree: TreeId,
    level: u8,
    first_key: Key,
}

/// A tree, packed: leaves first, then the node above them if there is more than one.
struct Packed {
    leaves: Vec<Vec<(Key, Vec<u8>)>>,
}

impl Packed {
    fn block_count(&self) -> usize {
        if self.leaves.len() > 1 { self.leaves.len() + 1 } else { 1 }
    }
    fn level(&self) -> u8 {
        u8::from(self.leaves.len() > 1)
    }
    fn first_key(&self, block: usize) -> Key {
        let leaf = self.leaves.get(block).unwrap_or(&self.leaves[0]);
        leaf.first().map_or(Key::MIN, |(key, _)| *key)
    }
}

/// Builds all blocks of a new file system.
pub(crate) fn build(plan: &Plan, o: &Resolved) -> Result<Built, MkfsError> {
    let author = Author { plan, o, chunk_tree_uuid: derive_uuid(&o.seed, "chunk tree", 0) };
    let mut trees: BTreeMap<TreeId, Packed> =
        author.tree_ids().into_iter().map(|tree| (tree, Packed { leaves: vec![Vec::new()] })).collect();
    for _ in 0..ROUNDS_MAX {
        let placements = author.place_blocks(&trees)?;
        let next = author.write_items(&trees, &placements)?;
        let settled = next.iter().all(|(tree, packed)| {
            let before = &trees[tree];
            let same_keys = (0..packed.block_count()).all(|b| packed.first_key(b) == before.first_key(b));
            packed.block_count() == before.block_count() && same_keys
        });
        trees = next;
        if settled {
            return author.encode(&trees, &placements);
        }
    }
    Err(MkfsError::Options("the first trees cannot be laid out with these sizes".into()))
}

struct Author<'a> {
    plan: &'a Plan,
    o: &'a Resolved,
    chunk_tree_uuid: Uuid,
}

impl Author<'_> {
    /// All trees, in the order in which their blocks lie.
    fn tree_ids(&self) -> Vec<TreeId> {
        let mut trees =
            vec![TreeId::CHUNK, TreeId::ROOT, TreeId::EXTENT, TreeId::DEV, TreeId::FS, TreeId::CSUM, TreeId::UUID];
        if self.o.features.free_space_tree {
            trees.push(TreeId::FREE_SPACE);
        }
        trees.push(TreeId::DATA_RELOC);
        if self.o.features.block_group_tree {
            trees.push(TreeId::BLOCK_GROUP);
        }
        trees
    }

    fn nodesize(&self) -> ByteLen {
        ByteLen(u64::from(self.o.nodesize))
    }

    /// Gives every block an address: chunk tree in the system chunk, everything else in the metadata chunk.
    fn place_blocks(&self, trees: &BTreeMap<TreeId, Packed>) -> Result<BTreeMap<TreeId, Vec<Logical>>, MkfsError> {
        let mut system = Slots::new(&self.plan.system, self.nodesize());
        let mut metadata = Slots::new(&self.plan.metadata, self.nodesize());
        let mut placements = BTreeMap::new();
        for tree in self.tree_ids() {
            let slots = if tree == TreeId::CHUNK { &mut system } else { &mut metadata };
            let blocks: Vec<Logical> = slots.by_ref().take(trees[&tree].block_count()).collect();
            if blocks.len() < trees[&tree].block_count() {
                return Err(MkfsError::Options("the first trees do not fit the first chunks".into()));
            }
            placements.insert(tree, blocks);
        }
        Ok(placements)
    }

    /// Writes the items of all trees, given the addresses of their blocks.
    fn write_items(
        &self,
        trees: &BTreeMap<TreeId, Packed>,
        placements: &BTreeMap<TreeId, Vec<Logical>>,
    ) -> Result<BTreeMap<TreeId, Packed>, MkfsError> {
        let mut blocks: Vec<Placement> = Vec::new();
        for (&tree, addresses) in placements {
            let packed = &trees[&tree];
            for (index, &at) in addresses.iter().enumerate() {
                let level = u8::from(index >= packed.leaves.len());
                blocks.push(Placement { at, tree, level, first_key: packed.first_key(index) });
            }
        }
        let mut all: BTreeMap<TreeId, Items> = self.tree_ids().into_iter().map(|t| (t, Items::new())).collect();
        let group_tree = if self.o.features.block_group_tree { TreeId::BLOCK_GROUP } else { TreeId::EXTENT };
        for chunk in self.plan.chunks() {
            let end = chunk.start + chunk.len;
            let used = blocks.iter().filter(|b| b.at >= chunk.start && b.at < end).count() as u64 * self.nodesize().0;
            let item = BlockGroupItem {
                used: used.into(),
                chunk_objectid: FIRST_CHUNK_TREE.into(),
                flags: chunk.flags.bits().into(),
            };
            let key = Key::new(chunk.start.0, ItemType::BLOCK_GROUP_ITEM, chunk.len.0);
            add(&mut all, group_tree, key, item.as_bytes());
            if self.o.features.free_space_tree {
                self.free_space_items(chunk, &blocks, &mut all);
            }
        }
        for block in &blocks {
            let (key, item) = self.extent_item(block);
            add(&mut all, TreeId::EXTENT, key, &item);
        }
        self.chunk_items(&mut all);
        self.root_items(trees, placements, &mut all);
        self.directory_items(TreeId::FS, self.o.top_mode, (self.o.top_uid, self.o.top_gid), &mut all);
        self.directory_items(TreeId::DATA_RELOC, 0o755, (0, 0), &mut all);
        let (high, low) = uuid_key_parts(self.top_uuid());
        let key = Key::new(high, ItemType::UUID_SUBVOL, low);
        add(&mut all, TreeId::UUID, key, &TreeId::FS.0.to_le_bytes());
        all.into_iter().map(|(tree, items)| Ok((tree, self.pack(items)?))).collect()
    }

    fn pack(&self, items: Items) -> Result<Packed, MkfsError> {
        let mut leaves: Vec<Vec<(Key, Vec<u8>)>> = vec![Vec::new()];
        let mut room = LeafBuilder::new(self.o.nodesize);
        for (key, item) in items {
            if !room.push(&key, &item) {
                room = LeafBuilder::new(self.o.nodesize);
                leaves.push(Vec::new());
                if !room.push(&key, &item) {
                    return Err(MkfsError::Options(format!("a node size of {} is too small", self.o.nodesize)));
                }
            }
            if let Some(leaf) = leaves.last_mut() {
                leaf.push((key, item));
            }
        }
        Ok(Packed { leaves })
    }

    fn encode(
        &self,
        trees: &BTreeMap<TreeId, Packed>,
        placements: &BTreeMap<TreeId, Vec<Logical>>,
    ) -> Result<Built, MkfsError> {
        let mut blocks = Vec::new();
        for (&tree, packed) in trees {
            let addresses = &placements[&tree];
            for (leaf, &at) in packed.leaves.iter().zip(addresses) {
                let mut builder = LeafBuilder::new(self.o.nodesize);
                for (key, item) in leaf {
                    let fits = builder.push(key, item);
                    assert!(fits, "packed leaves fit");
                }
                blocks.push((at, builder.finish(&self.block_head(tree, at, 0))));
            }
            if packed.leaves.len() > 1 {
                let children: Vec<ChildPtr> = (0..packed.leaves.len())
                    .map(|leaf| ChildPtr {
                        key: packed.first_key(leaf),
                        logical: addresses[leaf],
                        generation: FIRST_GENERATION,
                    })
                    .collect();
                let at = addresses[packed.leaves.len()];
                blocks.push((at, encode_node(self.o.nodesize, &self.block_head(tree, at, 1), &children)));
            }
        }
        blocks.sort_by_key(|(at, _)| *at);
        for (_, bytes) in &mut blocks {
            seal(bytes, self.o.csum);
        }
        let system = &self.plan.system;
        let mut sys_chunk_array = Vec::new();
        let key: DiskKey = Key::new(FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, system.start.0).into();
        sys_chunk_array.extend_from_slice(key.as_bytes());
        sys_chunk_array.extend_from_slice(&self.chunk_item(system));
        let root_of = |tree: TreeId| (placements[&tree][placements[&tree].len() - 1], trees[&tree].level());
        Ok(Built {
            root: root_of(TreeId::ROOT),
            chunk_root: root_of(TreeId::CHUNK),
            sys_chunk_array,
            dev_items: (0..self.plan.device_bytes.len()).map(|d| self.dev_item(d)).collect(),
            bytes_used: ByteLen(blocks.len() as u64 * self.nodesize().0),
            blocks,
        })
    }

    fn block_head(&self, owner: TreeId, logical: Logical, level: u8) -> BlockHead {
        BlockHead {
            logical,
            generation: FIRST_GENERATION,
            owner,
            level,
            flags: HeaderFlags::WRITTEN | HeaderFlags::MIXED_BACKREF_REV,
            fsid: self.o.fsid,
            chunk_tree_uuid: self.chunk_tree_uuid,
        }
    }

    fn extent_item(&self, block: &Placement) -> (Key, Vec<u8>) {
        let head = ExtentItem {
            refs: 1.into(),
            generation: FIRST_GENERATION.0.into(),
            flags: ExtentFlags::TREE_BLOCK.bits().into(),
        };
        let mut item = head.as_bytes().to_vec();
        let key = if self.o.features.skinny_metadata {
            Key::new(block.at.0, ItemType::METADATA_ITEM, u64::from(block.level))
        } else {
            let info = TreeBlockInfo { key: block.first_key.into(), level: block.level };
            item.extend_from_slice(info.as_bytes());
            Key::new(block.at.0, ItemType::EXTENT_ITEM, self.nodesize().0)
        };
        let by = ExtentInlineRef { r#type: ItemType::TREE_BLOCK_REF.0, offset: block.tree.0.into() };
        item.extend_from_slice(by.as_bytes());
        (key, item)
    }

    /// One INFO item per chunk, and an EXTENT item for each run between blocks and superblock copies.
    fn free_space_items(&self, chunk: &Placed, blocks: &[Placement], all: &mut BTreeMap<TreeId, Items>) {
        let end = chunk.start + chunk.len;
        let mut taken = chunk.superblock_ranges();
        taken.extend(blocks.iter().filter(|b| b.at >= chunk.start && b.at < end).map(|b| (b.at, self.nodesize())));
        taken.sort_unstable();
        let mut count = 0u32;
        let mut from = chunk.start;
        for (at, len) in taken.into_iter().chain([(end, ByteLen(0))]) {
            if at > from {
                let key = Key::new(from.0, ItemType::FREE_SPACE_EXTENT, (at - from).0);
                add(all, TreeId::FREE_SPACE, key, &[]);
                count += 1;
            }
            from = from.max(at + len);
        }
        let info = FreeSpaceInfo { extent_count: count.into(), flags: 0.into() };
        let key = Key::new(chunk.start.0, ItemType::FREE_SPACE_INFO, chunk.len.0);
        add(all, TreeId::FREE_SPACE, key, info.as_bytes());
    }

    /// Devices and chunks, in both directions.
    fn chunk_items(&self, all: &mut BTreeMap<TreeId, Items>) {
        for device in 0..self.plan.device_bytes.len() {
            let key = Key::new(DEV_ITEMS, ItemType::DEV_ITEM, devid(device).0);
            add(all, TreeId::CHUNK, key, self.dev_item(device).as_bytes());
        }
        for chunk in self.plan.chunks() {
            let key = Key::new(FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, chunk.start.0);
            add(all, TreeId::CHUNK, key, &self.chunk_item(chunk));
            for &(device, physical) in &chunk.stripes {
                let extent = DevExtent {
                    chunk_tree: TreeId::CHUNK.0.into(),
                    chunk_objectid: FIRST_CHUNK_TREE.into(),
                    chunk_offset: chunk.start.0.into(),
                    length: chunk.stripe_bytes.0.into(),
                    chunk_tree_uuid: self.chunk_tree_uuid.into_bytes(),
                };
                let key = Key::new(devid(device).0, ItemType::DEV_EXTENT, physical.0);
                add(all, TreeId::DEV, key, extent.as_bytes());
            }
        }
    }

    fn chunk_item(&self, chunk: &Placed) -> Vec<u8> {
        chunk.map(self.o.sectorsize, |device| self.device_uuid(device)).chunk().encode()
    }

    fn device_uuid(&self, device: usize) -> Uuid {
        derive_uuid(&self.o.seed, "device", devid(device).0)
    }

    fn top_uuid(&self) -> Uuid {
        derive_uuid(&self.o.seed, "subvolume", TreeId::FS.0)
    }

    fn dev_item(&self, device: usize) -> DevItem {
        let used: u64 = self
            .plan
            .chunks()
            .flat_map(|chunk| chunk.stripes.iter().map(|&(on, _)| if on == device { chunk.stripe_bytes.0 } else { 0 }))
            .sum();
        DevItem {
            devid: devid(device).0.into(),
            total_bytes: self.plan.device_bytes[device].into(),
            bytes_used: used.into(),
            io_align: self.o.sectorsize.into(),
            io_width: self.o.sectorsize.into(),
            sector_size: self.o.sectorsize.into(),
            uuid: self.device_uuid(device).into_bytes(),
            fsid: self.o.fsid.into_bytes(),
            ..DevItem::default()
        }
    }

    fn time(&self) -> Timespec {
        Timespec::new(self.o.created_seconds, 0)
    }

    /// The root item of every tree but the two that the superblock points to, and the directory with the name
    /// "default" that leads to the default subvolume.
    fn root_items(
        &self,
        trees: &BTreeMap<TreeId, Packed>,
        placements: &BTreeMap<TreeId, Vec<Logical>>,
        all: &mut BTreeMap<TreeId, Items>,
    ) {
        for tree in self.tree_ids() {
            if tree == TreeId::ROOT || tree == TreeId::CHUNK {
                continue;
            }
            let blocks = &placements[&tree];
            let mut item = RootItem::default();
            item.inode.generation = 1.into();
            item.inode.size = 3.into();
            item.inode.nbytes = self.nodesize().0.into();
            item.inode.nlink = 1.into();
            item.inode.mode = (MODE_DIR | 0o755).into();
            item.generation = FIRST_GENERATION.0.into();
            item.generation_v2 = FIRST_GENERATION.0.into();
            item.bytenr = blocks[blocks.len() - 1].0.into();
            item.bytes_used = (blocks.len() as u64 * self.nodesize().0).into();
            item.refs = 1.into();
            item.level = trees[&tree].level();
            if tree.is_shareable() {
                item.inode.flags = InodeFlags::ROOT_ITEM_INIT.bits().into();
                item.root_dirid = FIRST_CHUNK_TREE.into();
            }
            if tree.is_subvol() {
                item.uuid = self.top_uuid().into_bytes();
                item.ctransid = FIRST_GENERATION.0.into();
                // The top level was not created by a transaction; mkfs.btrfs writes the same.
                item.otransid = if tree == TreeId::FS { 0 } else { FIRST_GENERATION.0 }.into();
                item.ctime = self.time();
                item.otime = self.time();
            }
            add(all, TreeId::ROOT, Key::new(tree.0, ItemType::ROOT_ITEM, 0), item.as_bytes());
        }
        let name = b"default";
        let dir = TreeId::ROOT_DIR.0;
        let mut inode = self.directory_inode(0o755, (0, 0));
        inode.nbytes = self.nodesize().0.into();
        add(all, TreeId::ROOT, Key::new(dir, ItemType::INODE_ITEM, 0), inode.as_bytes());
        add(all, TreeId::ROOT, Key::new(dir, ItemType::INODE_REF, dir), &inode_ref(b".."));
        add(all, TreeId::ROOT, Key::new(TreeId::FS.0, ItemType::INODE_REF, dir), &inode_ref(name));
        let head = DirItem {
            location: Key::new(TreeId::FS.0, ItemType::ROOT_ITEM, u64::MAX).into(),
            transid: 0.into(),
            data_len: 0.into(),
            name_len: (name.len() as u16).into(),
            r#type: FileType::Dir.to_disk(),
        };
        let entry = [head.as_bytes(), name].concat();
        let key = Key::new(dir, ItemType::DIR_ITEM, u64::from(dir_hash(name)));
        add(all, TreeId::ROOT, key, &entry);
    }

    fn directory_inode(&self, mode: u32, (uid, gid): (u32, u32)) -> InodeItem {
        InodeItem {
            generation: FIRST_GENERATION.0.into(),
            transid: FIRST_GENERATION.0.into(),
            nlink: 1.into(),
            uid: uid.into(),
            gid: gid.into(),
            mode: (MODE_DIR | mode).into(),
            atime: self.time(),
            ctime: self.time(),
            mtime: self.time(),
            otime: self.time(),
            ..InodeItem::default()
        }
    }

    /// The top directory of a tree of files.
    fn directory_items(&self, tree: TreeId, mode: u32, owner: (u32, u32), all: &mut BTreeMap<TreeId, Items>) {
        let top = Ino::ROOT_DIR.0;
        let inode = self.directory_inode(mode, owner);
        add(all, tree, Key::new(top, ItemType::INODE_ITEM, 0), inode.as_bytes());
        add(all, tree, Key::new(top, ItemType::INODE_REF, top), &inode_ref(b".."));
    }
}

/// The addresses at which blocks may lie in a chunk, in rising order.
struct Slots {
    next: Logical,
    end: Logical,
    nodesize: ByteLen,
    avoid: Vec<(Logical, ByteLen)>,
}

impl Slots {
    fn new(chunk: &Placed, nodesize: ByteLen) -> Slots {
        Slots { next: chunk.start, end: chunk.start + chunk.len, nodesize, avoid: chunk.superblock_ranges() }
    }
}

impl Iterator for Slots {
    type Item = Logical;

    fn next(&mut self) -> Option<Logical> {
        let avoid = &self.avoid;
        while let Some((at, len)) =
            avoid.iter().find(|(at, len)| *at < self.next + self.nodesize && self.next < *at + *len)
        {
            self.next = *at + *len;
        }
        let at = self.next;
        self.next += self.nodesize;
        (self.next <= self.end).then_some(at)
    }
}

fn add(all: &mut BTreeMap<TreeId, Items>, tree: TreeId, key: Key, item: &[u8]) {
    let before = all.entry(tree).or_default().insert(key, item.to_vec());
    assert!(before.is_none(), "two items of one key in a new file system: {key}");
}

fn inode_ref(name: &[u8]) -> Vec<u8> {
    let head = InodeRef { index: 0.into(), name_len: (name.len() as u16).into() };
    [head.as_bytes(), name].concat()
}

/// A UUID as the object and offset of a key: two little-endian halves.
fn uuid_key_parts(id: Uuid) -> (u64, u64) {
    let value = u128::from_le_bytes(id.into_bytes());
    (value as u64, (value >> 64) as u64)
}
