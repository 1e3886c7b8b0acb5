//! A tree of files as a list of items, built from the format's documentation and not with the code that writes volumes.

use std::collections::BTreeMap;

use oleo_format::{
    ByteLen, Compression, DirEntry, DiskExtent, FileExtent, FileType, Generation, Ino, InodeExtrefEntry, InodeItem,
    InodeRefEntry, Key, Logical, TreeId,
};
use parking_lot::Mutex;
use zerocopy::{FromBytes, IntoBytes};

use super::super::{Context, DataNeed, Forest, LeafSummary, Reporter};
use crate::finding::{Finding, Kind};

pub const SECTOR: u64 = 4096;
pub const GENERATION: u64 = 100;
pub const ROOT: u64 = 256;

/// A tree of files. All changes keep it sound; the items may be damaged afterwards.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    pub items: BTreeMap<Key, Vec<u8>>,
    next_ino: u64,
    next_index: BTreeMap<u64, u64>,
    next_disk: u64,
}

pub fn kind_bits(kind: FileType) -> u32 {
    match kind {
        FileType::Dir => 0o040_755,
        FileType::Symlink => 0o120_777,
        FileType::Fifo => 0o010_644,
        FileType::ChrDev => 0o020_644,
        _ => 0o100_644,
    }
}

impl Tree {
    pub fn new() -> Tree {
        let mut tree = Tree { next_ino: ROOT, next_disk: 1 << 20, ..Tree::default() };
        let root = tree.inode(FileType::Dir);
        tree.edit(root, |i| i.nlink = 1.into());
        let entry = InodeRefEntry { index: 0, name: b"..".to_vec() };
        tree.items.insert(Key::inode_ref(Ino(ROOT), Ino(ROOT)), entry.encode());
        tree
    }

    /// A new inode without a name.
    pub fn inode(&mut self, kind: FileType) -> u64 {
        let ino = self.next_ino;
        self.next_ino += 1;
        let item =
            InodeItem { generation: 7.into(), transid: 8.into(), mode: kind_bits(kind).into(), ..InodeItem::default() };
        self.items.insert(Key::inode(Ino(ino)), item.as_bytes().to_vec());
        ino
    }

    pub fn get(&self, ino: u64) -> InodeItem {
        *InodeItem::ref_from_bytes(&self.items[&Key::inode(Ino(ino))]).unwrap()
    }

    pub fn edit(&mut self, ino: u64, f: impl FnOnce(&mut InodeItem)) {
        let bytes = self.items.get_mut(&Key::inode(Ino(ino))).unwrap();
        f(InodeItem::mut_from_bytes(bytes).unwrap());
    }

    pub fn kind(&self, ino: u64) -> FileType {
        FileType::of_mode(self.get(ino).mode.get())
    }

    /// Puts both entries of a name into a directory, and returns the index.
    pub fn entry(&mut self, dir: u64, name: &[u8], to: Key, kind: FileType) -> u64 {
        let next = self.next_index.entry(dir).or_insert(2);
        let index = *next;
        *next += 1;
        let entry =
            DirEntry { location: to, transid: Generation(8), file_type: kind, name: name.to_vec(), data: Vec::new() };
        self.items.insert(Key::dir_index(Ino(dir), index), entry.encode());
        self.items.entry(Key::dir_item(Ino(dir), name)).or_default().extend(entry.encode());
        self.edit(dir, |i| i.size = (i.size.get() + 2 * name.len() as u64).into());
        index
    }

    /// Gives an inode a name.
    pub fn link(&mut self, ino: u64, dir: u64, name: &[u8]) -> u64 {
        let index = self.entry(dir, name, Key::inode(Ino(ino)), self.kind(ino));
        let entry = InodeRefEntry { index, name: name.to_vec() };
        self.items.entry(Key::inode_ref(Ino(ino), Ino(dir))).or_default().extend(entry.encode());
        self.edit(ino, |i| i.nlink = (i.nlink.get() + 1).into());
        index
    }

    /// Gives an inode a name by an extended reference.
    pub fn link_extended(&mut self, ino: u64, dir: u64, name: &[u8]) {
        let index = self.entry(dir, name, Key::inode(Ino(ino)), self.kind(ino));
        let entry = InodeExtrefEntry { parent: Ino(dir), index, name: name.to_vec() };
        self.items.entry(Key::inode_extref(Ino(ino), Ino(dir), name)).or_default().extend(entry.encode());
        self.edit(ino, |i| i.nlink = (i.nlink.get() + 1).into());
    }

    pub fn make(&mut self, kind: FileType, dir: u64, name: &[u8]) -> u64 {
        let ino = self.inode(kind);
        self.link(ino, dir, name);
        ino
    }

    /// Puts data that begins at `offset`, and returns its address on disk. The size does not change.
    pub fn data(&mut self, ino: u64, offset: u64, len: u64) -> u64 {
        let at = self.next_disk;
        self.next_disk += len;
        let extent = DiskExtent {
            generation: Generation(9),
            ram_bytes: ByteLen(len),
            compression: Compression::None,
            disk_bytenr: Logical(at),
            disk_num_bytes: ByteLen(len),
            offset: ByteLen(0),
            num_bytes: ByteLen(len),
        };
        self.items.insert(Key::extent_data(Ino(ino), offset), FileExtent::Regular(extent).encode());
        self.edit(ino, |i| i.nbytes = (i.nbytes.get() + len).into());
        at
    }

    pub fn hole(&mut self, ino: u64, offset: u64, len: u64) {
        let hole = FileExtent::Regular(DiskExtent::hole(Generation(9), ByteLen(len)));
        self.items.insert(Key::extent_data(Ino(ino), offset), hole.encode());
    }

    pub fn inline(&mut self, ino: u64, data: &[u8]) {
        let inline = FileExtent::Inline {
            generation: Generation(9),
            ram_bytes: ByteLen(data.len() as u64),
            compression: Compression::None,
            data: data.to_vec(),
        };
        self.items.insert(Key::extent_data(Ino(ino), 0), inline.encode());
        self.edit(ino, |i| {
            i.nbytes = (data.len() as u64).into();
            i.size = (data.len() as u64).into();
        });
    }

    pub fn set_size(&mut self, ino: u64, size: u64) {
        self.edit(ino, |i| i.size = size.into());
    }

    pub fn xattr(&mut self, ino: u64, name: &[u8], value: &[u8]) {
        let entry = DirEntry {
            location: Key::MIN,
            transid: Generation(8),
            file_type: FileType::Xattr,
            name: name.to_vec(),
            data: value.to_vec(),
        };
        self.items.entry(Key::xattr(Ino(ino), name)).or_default().extend(entry.encode());
    }

    pub fn orphan(&mut self, ino: u64) {
        self.items.insert(Key::orphan(ino), Vec::new());
    }

    /// Applies `f` to the only entry of an item of names.
    pub fn respell(&mut self, key: Key, f: impl FnOnce(&mut DirEntry)) {
        let mut entry = DirEntry::parse(&self.items[&key]).unwrap();
        f(&mut entry);
        self.items.insert(key, entry.encode());
    }

    pub fn remove(&mut self, key: Key) {
        assert!(self.items.remove(&key).is_some(), "{key} is there");
    }

    pub fn list(&self) -> Vec<(Key, Vec<u8>)> {
        self.items.iter().map(|(k, v)| (*k, v.clone())).collect()
    }
}

/// What checking a tree gave.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    pub findings: Vec<Finding>,
    pub needs: Vec<DataNeed>,
}

impl Verdict {
    pub fn kinds(&self) -> Vec<Kind> {
        let mut kinds: Vec<Kind> = self.findings.iter().map(|f| f.kind).collect();
        kinds.sort_unstable();
        kinds
    }
}

#[derive(Clone, Copy)]
pub struct How {
    pub no_holes: bool,
    pub tree: TreeId,
}

impl Default for How {
    fn default() -> How {
        How { no_holes: true, tree: TreeId::FS }
    }
}

/// How leaves are joined.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    FromLeft,
    FromRight,
    Halves,
}

fn join(leaves: &[LeafSummary], order: Order, c: &Context<'_>) -> LeafSummary {
    match order {
        Order::FromLeft => leaves.iter().fold(LeafSummary::default(), |a, b| a.then(b, c)),
        Order::FromRight => leaves.iter().rev().fold(LeafSummary::default(), |b, a| a.then(&b, c)),
        Order::Halves => match leaves {
            [] => LeafSummary::default(),
            [one] => one.clone(),
            _ => {
                let (a, b) = leaves.split_at(leaves.len() / 2);
                join(a, order, c).then(&join(b, order, c), c)
            }
        },
    }
}

/// Runs `f` with a context and returns its reports; findings and needs sorted, needs without duplicates.
pub fn reported(how: How, f: impl FnOnce(&Context<'_>)) -> Verdict {
    let findings = Mutex::new(Vec::new());
    let needs = Mutex::new(Vec::new());
    let report = |f: Finding| findings.lock().push(f);
    let data = |n: DataNeed| needs.lock().push(n);
    f(&Context {
        tree: how.tree,
        block: None,
        sectorsize: 4096,
        no_holes: how.no_holes,
        generation: Generation(GENERATION),
        data_sums: true,
        reporter: Reporter { report: &report, data: &data },
    });
    let mut verdict = Verdict { findings: findings.into_inner(), needs: needs.into_inner() };
    verdict.findings.sort_by_key(|f| (f.kind, f.at.key, f.have.clone(), f.want.clone()));
    verdict.needs.sort_unstable();
    verdict.needs.dedup();
    verdict
}

/// Checks items cut into leaves at the given places.
pub fn check_cut(items: &[(Key, Vec<u8>)], cuts: &[usize], order: Order, how: How) -> Verdict {
    reported(how, |c| {
        let mut leaves = Vec::new();
        let mut from = 0;
        for &cut in cuts.iter().chain([&items.len()]) {
            let leaf = items[from..cut].iter().map(|(k, v)| (*k, v.as_slice()));
            leaves.push(LeafSummary::of_items(c, leaf));
            from = cut;
        }
        let summaries = join(&leaves, order, c);
        Forest::default().check(c, summaries, false, &mut |each| items.iter().for_each(|(k, v)| each(k, v)));
    })
}

pub fn check_with(tree: &Tree, how: How) -> Verdict {
    check_cut(&tree.list(), &[], Order::FromLeft, how)
}

pub fn check(tree: &Tree) -> Verdict {
    check_with(tree, How::default())
}
