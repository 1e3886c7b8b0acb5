//! A reader of images that is just sufficient for tests of this crate: every chunk is read from its first stripe.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use oleo_format::*;

/// A file system whose chunks are single, dup or raid1.
pub struct Image {
    devices: HashMap<u64, File>,
    /// The first superblock of the first device.
    pub sb: SuperBlock,
    pub rules: NodeRules,
    chunks: Vec<(u64, Chunk)>,
}

impl Image {
    pub fn open(paths: &[PathBuf]) -> Image {
        let mut devices = HashMap::new();
        let mut sb = None;
        for path in paths {
            let file = File::options().read(true).write(true).open(path).unwrap();
            for offset in SUPER_OFFSETS.into_iter().filter(|o| o + 4096 <= file.metadata().unwrap().len()) {
                let mut bytes = vec![0; SUPER_LEN];
                file.read_exact_at(&mut bytes, offset).unwrap();
                let one = SuperBlock::read(&bytes).unwrap();
                one.verify(offset).unwrap();
                assert_eq!(one.to_bytes(offset), bytes, "written as it was read");
                if offset == SUPER_OFFSETS[0] {
                    sb.get_or_insert(one);
                }
            }
            let mut bytes = vec![0; SUPER_LEN];
            file.read_exact_at(&mut bytes, SUPER_OFFSETS[0]).unwrap();
            devices.insert(SuperBlock::read(&bytes).unwrap().devid().0, file);
        }
        let sb = sb.unwrap();
        assert_eq!(sb.features().unreadable(), Vec::<String>::new());
        assert_eq!(sb.features().unwritable(), Vec::<String>::new());
        let chunks = sb.parse_sys_chunks().unwrap().into_iter().map(|(k, c)| (k.offset, c)).collect();
        let mut image = Image { devices, sb, rules: sb.node_rules().unwrap(), chunks };
        let mut found = Vec::new();
        image.walk(sb.chunk_root(), sb.chunk_root_level, TreeId::CHUNK, &mut |node| {
            found.extend(
                node.iter()
                    .filter(|(k, _)| k.item_type == ItemType::CHUNK_ITEM)
                    .map(|(k, item)| (k.offset, Chunk::parse(item).unwrap())),
            );
        });
        image.chunks = found;
        image
    }

    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let (start, chunk) =
            self.chunks.iter().find(|(s, c)| (*s..s + c.length.0).contains(&at)).expect("an address in a chunk");
        let stripe = &chunk.stripes[0];
        let mut bytes = vec![0; len];
        self.devices[&stripe.devid.get()].read_exact_at(&mut bytes, stripe.offset.get() + (at - start)).unwrap();
        bytes
    }

    /// Writes to the first stripe, which must be the only one.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        let (start, chunk) =
            self.chunks.iter().find(|(s, c)| (*s..s + c.length.0).contains(&at)).expect("an address in a chunk");
        assert_eq!(chunk.stripes.len(), 1);
        self.devices[&chunk.stripes[0].devid.get()]
            .write_all_at(bytes, chunk.stripes[0].offset.get() + (at - start))
            .unwrap();
    }

    pub fn node(&self, expect: &NodeExpect) -> CheckedNode {
        let bytes = self.read(expect.logical.0, self.rules.nodesize as usize).into_boxed_slice();
        CheckedNode::verify(bytes, &self.rules, expect).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Calls `f` with every leaf below a root, in order.
    pub fn walk(&self, root: Logical, level: u8, owner: TreeId, f: &mut dyn FnMut(&CheckedNode)) {
        let expect =
            NodeExpect { level: Some(level), owner: (!owner.is_subvol()).then_some(owner), ..NodeExpect::at(root) };
        self.walk_node(&self.node(&expect), f);
    }

    fn walk_node(&self, node: &CheckedNode, f: &mut dyn FnMut(&CheckedNode)) {
        if node.is_leaf() {
            return f(node);
        }
        for slot in 0..node.len() {
            self.walk_node(&self.node(&NodeExpect::child(&node.child(slot), node.level())), f);
        }
    }

    /// Every tree: its number, and the address and level of its root.
    pub fn roots(&self) -> Vec<(TreeId, Logical, u8)> {
        let mut roots = vec![
            (TreeId::ROOT, self.sb.root(), self.sb.root_level),
            (TreeId::CHUNK, self.sb.chunk_root(), self.sb.chunk_root_level),
        ];
        self.walk(self.sb.root(), self.sb.root_level, TreeId::ROOT, &mut |leaf| {
            for (key, item) in leaf.iter().filter(|(k, _)| k.item_type == ItemType::ROOT_ITEM) {
                let root = RootItem::decode(item).unwrap();
                roots.push((TreeId(key.objectid), Logical(root.bytenr.get()), root.level));
            }
        });
        roots
    }

    /// Calls `f` with every item of every tree.
    pub fn each_item(&self, f: &mut dyn FnMut(TreeId, Key, &[u8])) {
        for (tree, root, level) in self.roots() {
            self.walk(root, level, tree, &mut |leaf| leaf.iter().for_each(|(key, item)| f(tree, key, item)));
        }
    }
}
