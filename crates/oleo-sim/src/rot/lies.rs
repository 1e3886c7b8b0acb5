//! Damage that a reader could follow without end: each structure is sound by itself (checksums, order, lengths), and
//! together they make no sense.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::{Damage, ENTRY_LEN, Edit, HEADER_LEN, Rot};
use crate::rng::Rng;

const INODE_ITEM: u8 = 1;
const INODE_REF: u8 = 12;
const DIR_ITEM: u8 = 84;
const DIR_INDEX: u8 = 96;
const EXTENT_DATA: u8 = 108;
/// The owner of the tree of files at the top level; those of subvolumes are above [`FIRST_FREE`].
const FS_TREE: u64 = 5;
const FIRST_FREE: u64 = 256;
/// More than any machine has, less than signed offsets can express.
const ABSURD: u64 = 1 << 61;

/// The structure that is damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// A directory's entry leads to the directory itself, or to the top.
    Circle,
    /// The same, and the entry says that it is a file.
    FalseFile,
    /// A file has an absurd size, and uses as many bytes.
    Size,
    /// An extent has an absurd length; one on disk, or a hole.
    Extent,
    /// The last entry of a directory has the highest number, after which there is no next.
    LastIndex,
    /// A name is a path, or leads upwards.
    Name,
}

impl Lie {
    /// All of them.
    pub const ALL: [Lie; 6] = [Lie::Circle, Lie::FalseFile, Lie::Size, Lie::Extent, Lie::LastIndex, Lie::Name];
}

/// An item of a tree of files.
struct Item {
    index: usize,
    /// Offset of its key in the block.
    key: usize,
    owner: u64,
    objectid: u64,
    item_type: u8,
    offset: u64,
    /// Offset of its bytes in the block.
    at: usize,
    bytes: Vec<u8>,
}

impl Item {
    fn u64_at(&self, at: usize) -> u64 {
        self.bytes.get(at..at + 8).map_or(0, number)
    }

    /// Whether it is an entry of a directory that leads to something of this type in the same tree.
    fn leads_to(&self, file_type: u8) -> bool {
        matches!(self.item_type, DIR_ITEM | DIR_INDEX)
            && self.bytes.get(8) == Some(&INODE_ITEM)
            && self.bytes.get(29) == Some(&file_type)
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |v, b| (v << 8) | u64::from(*b))
}

impl Rot {
    /// A lie of that kind as damage to some blocks, all of which belongs together; `None` if the image has nothing to lie about.
    pub fn lie(&self, lie: Lie, rng: &mut Rng) -> Result<Option<Vec<Damage>>> {
        let items = self.items_of_files()?;
        let of = |item_type: u8| items.iter().filter(move |i| i.item_type == item_type);
        let mut edits: Vec<(usize, Edit)> = Vec::new();
        let mut put = |index: usize, at: usize, bytes: &[u8]| edits.push((index, (at, bytes.to_vec())));
        match lie {
            Lie::Circle | Lie::FalseFile => {
                const FILE: u8 = 1;
                const DIR: u8 = 2;
                let file_type = if lie == Lie::Circle { DIR } else { FILE };
                let all: Vec<&Item> = of(DIR_INDEX).filter(|i| i.leads_to(file_type)).collect();
                let Some(entry) = rng.pick(&all) else { return Ok(None) };
                let to = if rng.one_in(2) { entry.objectid } else { FIRST_FREE };
                let child = entry.u64_at(0);
                let same = |i: &&Item| i.leads_to(file_type) && i.owner == entry.owner && i.u64_at(0) == child;
                items.iter().filter(same).for_each(|i| put(i.index, i.at, &to.to_le_bytes()));
            }
            Lie::Size => {
                const FILE: u64 = 0o100_000;
                let file = |i: &&Item| number(&i.bytes[52..56]) & 0o170_000 == FILE;
                let files: Vec<&Item> = of(INODE_ITEM).filter(|i| i.bytes.len() >= 160).filter(file).collect();
                let Some(file) = rng.pick(&files) else { return Ok(None) };
                put(file.index, file.at + 16, &ABSURD.to_le_bytes());
                put(file.index, file.at + 24, &ABSURD.to_le_bytes());
            }
            Lie::Extent => {
                let all: Vec<&Item> = of(EXTENT_DATA).filter(|i| i.bytes.len() == 53).collect();
                let Some(extent) = rng.pick(&all) else { return Ok(None) };
                let on_disk = extent.u64_at(21) != 0 && rng.one_in(2);
                let fields: &[usize] = if on_disk { &[8, 29, 45] } else { &[8, 45] };
                fields.iter().for_each(|field| put(extent.index, extent.at + field, &ABSURD.to_le_bytes()));
                // The file is as long as the extent then is.
                let inode = of(INODE_ITEM).find(|i| (i.owner, i.objectid) == (extent.owner, extent.objectid));
                let inode = inode.context("a file with an extent has an inode")?;
                put(inode.index, inode.at + 16, &ABSURD.to_le_bytes());
                if on_disk {
                    put(inode.index, inode.at + 24, &ABSURD.to_le_bytes());
                }
            }
            Lie::LastIndex => {
                let mut last: BTreeMap<(u64, u64), &Item> = BTreeMap::new();
                for item in of(DIR_INDEX) {
                    let known = last.entry((item.owner, item.objectid)).or_insert(item);
                    if item.offset > known.offset {
                        *known = item;
                    }
                }
                let last: Vec<&Item> = last.into_values().collect();
                let Some(entry) = rng.pick(&last) else { return Ok(None) };
                put(entry.index, entry.key + 9, &(u64::MAX - rng.below(2)).to_le_bytes());
            }
            Lie::Name => {
                let all: Vec<&Item> = of(DIR_INDEX).filter(|i| i.bytes.len() >= 33).collect();
                let Some(entry) = rng.pick(&all) else { return Ok(None) };
                let (name, child) = (entry.bytes[30..].to_vec(), entry.u64_at(0));
                let evil: &[u8] = if rng.one_in(2) { b"../" } else { b"/./" };
                for item in items.iter().filter(|i| i.owner == entry.owner) {
                    let at = match item.item_type {
                        DIR_ITEM | DIR_INDEX if item.bytes.ends_with(&name) && item.u64_at(0) == child => 30,
                        INODE_REF if item.bytes.ends_with(&name) && item.objectid == child => 10,
                        _ => continue,
                    };
                    if item.bytes.len() >= at + evil.len() {
                        put(item.index, item.at + at, evil);
                    }
                }
            }
        }
        let mut blocks: BTreeMap<usize, Vec<Edit>> = BTreeMap::new();
        edits.into_iter().for_each(|(index, edit)| blocks.entry(index).or_default().push(edit));
        let damage = |(index, edits)| Damage::Block { index, logical: self.address(index), edits };
        Ok(Some(blocks.into_iter().map(damage).collect()))
    }

    /// All items of trees of files, in no order.
    fn items_of_files(&self) -> Result<Vec<Item>> {
        let mut out = Vec::new();
        for index in 0..self.blocks() {
            let block = self.block(index)?;
            let owner = number(&block[88..96]);
            if block[100] != 0 || !(owner == FS_TREE || (FIRST_FREE..1 << 48).contains(&owner)) {
                continue;
            }
            let count = usize::try_from(number(&block[96..100]))?;
            for key in (0..count).map(|n| HEADER_LEN + n * ENTRY_LEN) {
                let field = |at: usize, len: usize| number(&block[key + at..key + at + len]);
                let (at, len) = (HEADER_LEN + usize::try_from(field(17, 4))?, usize::try_from(field(21, 4))?);
                out.push(Item {
                    index,
                    key,
                    owner,
                    objectid: field(0, 8),
                    item_type: block[key + 8],
                    offset: field(9, 8),
                    at,
                    bytes: block.get(at..at + len).context("an item within its block")?.to_vec(),
                });
            }
        }
        Ok(out)
    }
}
