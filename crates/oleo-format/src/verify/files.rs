//! Items of files: inodes, names, attributes, file extents.

use zerocopy::FromBytes;

use super::Item;
use crate::compress::EXTENT_LEN_MAX;
use crate::csum::dir_hash;
use crate::error::{Corruption, ensure};
use crate::flags::{FileType, InodeFlags};
use crate::layout::item_len_max;
use crate::names::{DirEntryRef, InodeExtrefEntryRef, InodeRefEntryRef, NAME_LEN_MAX};
use crate::structs::{DirItem, FileExtentHead, FileExtentItem, InodeItem, VerityDescriptorItem};
use crate::{Compression, Ino, ItemType, Key, TreeId};

/// The inode flags that exist. Unknown ones in the upper half only forbid changes.
const INODE_FLAGS: InodeFlags = InodeFlags::from_bits_retain(0xfff | 1 << 31 | InodeFlags::RO_COMPAT.bits());
/// The inode of a version-1 cache of free inode numbers, in every old subvolume.
const FREE_INO: u64 = Key::FREE_INO;

/// Whether an inode may have this number. The root tree has one directory of its own.
pub(super) fn is_ino(n: u64) -> bool {
    (Ino::FIRST.0..=Ino::LAST.0).contains(&n) || n == TreeId::ROOT_DIR.0 || n == FREE_INO
}

/// The items of an inode follow its inode item, if that is in the same leaf. In subvolumes only: a log need not hold the
/// inode item, and the root tree has a reference to the top level without one.
fn follows_inode(i: &Item<'_>, structure: &'static str) -> Result<(), Corruption> {
    if let Some((prev, _)) = i.prev
        && i.owner.is_subvol()
    {
        ensure!(prev.objectid == i.key.objectid, structure, "item before it", prev, "one of the same inode");
    }
    Ok(())
}

pub(super) fn inode_item(i: &Item<'_>) -> Result<(), Corruption> {
    ensure!(is_ino(i.key.objectid), "inode item", "inode number", i.key.objectid, "256 to -256");
    ensure!(i.key.offset == 0, "inode item", "offset of its key", i.key.offset, 0);
    let inode = InodeItem::parse(i.data)?;
    let mode = inode.mode.get();
    ensure!(mode & !0o177_777 == 0, "inode item", "mode", format_args!("{mode:#o}"), "16 bits");
    let kind = FileType::of_mode(mode);
    ensure!(kind != FileType::Unknown, "inode item", "mode", format_args!("{mode:#o}"), "the mode of a kind of file");
    if kind == FileType::Dir {
        ensure!(inode.nlink.get() <= 1, "inode item", "nlink of a directory", inode.nlink, "0 or 1");
    }
    let unknown = InodeFlags::from_bits_retain(inode.flags.get()).difference(INODE_FLAGS);
    ensure!(unknown.is_empty(), "inode item", "flags", format_args!("{:#x}", inode.flags), "known ones");
    Ok(())
}

pub(super) fn name_len(structure: &'static str, len: usize) -> Result<(), Corruption> {
    ensure!((1..=NAME_LEN_MAX).contains(&len), structure, "length of its name", len, "1 to 255");
    Ok(())
}

/// Checks a name in a directory, so that a path made of it leads nowhere else.
pub(super) fn plain_name(structure: &'static str, name: &[u8]) -> Result<(), Corruption> {
    let plain = !name.contains(&b'/') && !name.contains(&0) && !matches!(name, b"." | b"..");
    ensure!(plain, structure, "name", name.escape_ascii(), "one without slash and zero, not . or ..");
    Ok(())
}

pub(super) fn inode_ref(i: &Item<'_>) -> Result<(), Corruption> {
    names(i, "inode reference", InodeRefEntryRef::iter(i.data).map(|e| e.map(|e| e.name)))
}

pub(super) fn inode_extref(i: &Item<'_>) -> Result<(), Corruption> {
    names(i, "extended inode reference", InodeExtrefEntryRef::iter(i.data).map(|e| e.map(|e| e.name)))
}

/// Checks a list of names of an inode.
fn names<'a>(
    i: &Item<'_>,
    structure: &'static str,
    mut all: impl Iterator<Item = Result<&'a [u8], Corruption>>,
) -> Result<(), Corruption> {
    follows_inode(i, structure)?;
    ensure!(!i.data.is_empty(), structure, "length", 0, "a name");
    // The root directory of a tree refers to itself.
    let is_root = i.key.objectid == i.key.offset && i.key.item_type == ItemType::INODE_REF;
    all.try_for_each(|name| {
        let name = name?;
        name_len(structure, name.len())?;
        if is_root && name == b".." { Ok(()) } else { plain_name(structure, name) }
    })
}

/// The most bytes that one entry of a list may have.
fn entry_len_max(i: &Item<'_>) -> usize {
    item_len_max(i.rules.nodesize) - size_of::<DirItem>()
}

pub(super) fn dir_entries(i: &Item<'_>) -> Result<(), Corruption> {
    let is_xattr = i.key.item_type == ItemType::XATTR_ITEM;
    let structure = if is_xattr { "attribute" } else { "directory entry" };
    follows_inode(i, structure)?;
    ensure!(!i.data.is_empty(), structure, "length", 0, "an entry");
    let mut count = 0usize;
    for entry in DirEntryRef::iter(i.data) {
        let entry = entry?;
        count += 1;
        name_len(structure, entry.name.len())?;
        let len = entry.name.len() + entry.data.len();
        ensure!(
            len <= entry_len_max(i),
            structure,
            "length of name and value",
            len,
            format_args!("at most {}", entry_len_max(i))
        );
        if i.key.item_type != ItemType::DIR_INDEX {
            let hash = u64::from(dir_hash(entry.name));
            ensure!(hash == i.key.offset, structure, "hash of its name", hash, i.key.offset);
        }
        if is_xattr { xattr(&entry)? } else { dir_entry(&entry)? }
    }
    if i.key.item_type == ItemType::DIR_INDEX {
        // The position to continue reading from is one more.
        let max = i64::MAX as u64;
        ensure!(i.key.offset < max, structure, "index", i.key.offset, format_args!("less than {max}"));
    }
    ensure!(count == 1 || i.key.item_type != ItemType::DIR_INDEX, structure, "entries of one index", count, 1);
    Ok(())
}

fn xattr(entry: &DirEntryRef<'_>) -> Result<(), Corruption> {
    ensure!(entry.file_type == FileType::Xattr, "attribute", "type", format_args!("{:?}", entry.file_type), "Xattr");
    ensure!(entry.location == Key::MIN, "attribute", "location", entry.location, Key::MIN);
    Ok(())
}

fn dir_entry(entry: &DirEntryRef<'_>) -> Result<(), Corruption> {
    ensure!(entry.file_type != FileType::Xattr, "directory entry", "type", "Xattr", "that of a file");
    ensure!(entry.data.is_empty(), "directory entry", "data_len", entry.data.len(), 0);
    plain_name("directory entry", entry.name)?;
    let to = entry.location;
    let known = match to.item_type {
        ItemType::ROOT_ITEM => TreeId(to.objectid).is_subvol(),
        ItemType::INODE_ITEM => is_ino(to.objectid) && to.offset == 0,
        _ => false,
    };
    ensure!(known, "directory entry", "location", to, "an inode or a subvolume");
    Ok(())
}

pub(super) fn extent_data(i: &Item<'_>) -> Result<(), Corruption> {
    const WHAT: &str = "file extent";
    follows_inode(i, WHAT)?;
    i.aligned(WHAT, "offset of its key", i.key.offset)?;
    let (head, inline) = FileExtentHead::parse_prefix(i.data)?;
    let compression = Compression::from_disk(head.compression)
        .ok_or_else(|| Corruption::new(WHAT, "compression", head.compression, "0 to 3"))?;
    ensure!(head.encryption == 0, WHAT, "encryption", head.encryption, 0);
    let end = if head.r#type == FileExtentItem::INLINE {
        inline_extent(i, head.ram_bytes.get(), inline.len(), compression)?
    } else {
        disk_extent(i, compression)?
    };
    ensure!(end > i.key.offset, WHAT, "length", 0, "more");
    if let Some((prev, data)) = i.sibling() {
        let prev_end = extent_end(prev, data, i.sectorsize());
        i.begins_behind(WHAT, i.key.offset, prev_end)?;
    }
    Ok(())
}

/// The end of a file extent that was checked.
fn extent_end(key: Key, data: &[u8], sectorsize: u64) -> u64 {
    let len = match FileExtentItem::ref_from_bytes(data) {
        Ok(e) if e.r#type != FileExtentItem::INLINE => e.num_bytes.get(),
        _ => FileExtentHead::ref_from_prefix(data).map_or(0, |(h, _)| h.ram_bytes.get()),
    };
    key.offset.saturating_add(len).checked_next_multiple_of(sectorsize).unwrap_or(u64::MAX)
}

/// Checks an inline extent and returns its end.
fn inline_extent(i: &Item<'_>, ram_bytes: u64, len: usize, compression: Compression) -> Result<u64, Corruption> {
    const WHAT: &str = "inline extent";
    ensure!(i.key.offset == 0, WHAT, "offset of its key", i.key.offset, 0);
    let max = u64::from(i.rules.nodesize.max(i.rules.sectorsize));
    ensure!(ram_bytes <= max, WHAT, "ram_bytes", ram_bytes, format_args!("at most {max}"));
    if compression == Compression::None {
        ensure!(len as u64 == ram_bytes, WHAT, "length of its data", len, ram_bytes);
    }
    // An empty inline extent reads as nothing; it still takes its sector.
    Ok(ram_bytes.max(1).next_multiple_of(i.sectorsize()))
}

/// Checks a regular or preallocated extent and returns its end.
fn disk_extent(i: &Item<'_>, compression: Compression) -> Result<u64, Corruption> {
    const WHAT: &str = "file extent";
    let e = FileExtentItem::parse(i.data)?;
    let known = matches!(e.r#type, FileExtentItem::REG | FileExtentItem::PREALLOC);
    ensure!(known, WHAT, "type", e.r#type, "0 to 2");
    let (ram_bytes, start, len) = (e.ram_bytes.get(), e.disk_bytenr.get(), e.disk_num_bytes.get());
    let (offset, num_bytes) = (e.offset.get(), e.num_bytes.get());
    i.aligned(WHAT, "ram_bytes", ram_bytes)?;
    i.aligned(WHAT, "disk_bytenr", start)?;
    i.aligned(WHAT, "disk_num_bytes", len)?;
    i.aligned(WHAT, "offset", offset)?;
    i.aligned(WHAT, "num_bytes", num_bytes)?;
    let end = i.key.offset.checked_add(num_bytes);
    let end = end.ok_or_else(|| Corruption::new(WHAT, "num_bytes", num_bytes, "less than 2⁶⁴ less its offset"))?;
    if start == 0 {
        ensure!(len == 0, WHAT, "disk_num_bytes of a hole", len, 0);
        return Ok(end);
    }
    ensure!(len > 0 && start.checked_add(len).is_some(), WHAT, "disk_num_bytes", len, "the length of an extent");
    // Some kernels wrote a `ram_bytes` that is too small for parts of uncompressed extents; the length on disk is right.
    let whole = if compression == Compression::None { len } else { ram_bytes };
    let inside = offset.checked_add(num_bytes).is_some_and(|part_end| part_end <= whole);
    ensure!(
        inside,
        WHAT,
        "offset and num_bytes",
        format_args!("{offset}+{num_bytes}"),
        format_args!("at most {whole}")
    );
    if compression != Compression::None {
        let max = EXTENT_LEN_MAX as u64;
        ensure!(ram_bytes <= max, WHAT, "ram_bytes of a compressed one", ram_bytes, format_args!("at most {max}"));
        ensure!(len <= max, WHAT, "disk_num_bytes of a compressed one", len, format_args!("at most {max}"));
        ensure!(e.r#type == FileExtentItem::REG, WHAT, "compression of a preallocated one", e.compression, 0);
    }
    Ok(end)
}

pub(super) fn verity_desc(i: &Item<'_>) -> Result<(), Corruption> {
    if i.key.offset == 0 {
        let d = VerityDescriptorItem::parse(i.data)?;
        ensure!(d.encryption == 0, "verity descriptor", "encryption", d.encryption, 0);
    }
    Ok(())
}
