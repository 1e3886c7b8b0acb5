//! Items that are longer than they need be, or have unknown fields set: Oleo reads all that the kernel reads, and reports no error
//! for a volume that `btrfs check` accepts. `docs/tolerance.md` has the table that [`as_the_kernel`] prints.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use oleo::mkfs::MkfsOptions;
use oleo::restore::{RestoreOptions, restore_to_dir};
use oleo::{Device, Image, OpenOptions};
use oleo_check::Severity;
use oleo_format::{
    BlockGroupItem, ChunkItem, DevExtent, DevItem, DirItem, ExtentItem, FileExtentHead, FreeSpaceInfo, InodeItem,
    ItemType, Key, QgroupStatusItem, RootItem, TreeId,
};
use oleo_sim::disk;
use oleo_sim::oracle::{Oracle, oracle};
use zerocopy::FromBytes;

use crate::check::kit::{Disk, noise};

/// A change of a sound volume.
struct Case {
    /// The item.
    item: &'static str,
    /// The change of it.
    change: &'static str,
    apply: Box<dyn Fn(&Disk)>,
}

/// What readers make of a volume.
#[derive(PartialEq, Eq, Debug)]
struct Seen {
    /// Files by path, with content or target; `None` if it is refused.
    files: Option<BTreeMap<PathBuf, Option<Vec<u8>>>>,
    /// Whether a file can be added.
    writes: bool,
    /// Whether the checker has no complaint.
    clean: bool,
}

fn sound() -> Disk {
    Disk::new(&MkfsOptions::default(), 1, |image| {
        let top = image.top().unwrap();
        image.quota_enable().unwrap();
        image.write("inline", b"some bytes").unwrap();
        image.write("regular", &noise(50_000, 1)).unwrap();
        image.symlink(&top, b"inline", b"link").unwrap();
        image.create_dirs(&top, b"dir/sub").unwrap();
        image.write("dir/file", b"in a directory").unwrap();
        let regular = image.find("regular").unwrap();
        image.fs().xattr_set(&regular, b"user.one", b"value", oleo::fs::XattrMode::Any).unwrap();
        drop(regular);
        image.create_subvol("vol").unwrap();
        image.write("vol/file", &noise(9000, 2)).unwrap();
        image.snapshot("vol", "snap", &Default::default()).unwrap();
    })
}

/// A case that changes the first item that fits.
fn case(
    item: &'static str,
    change: &'static str,
    tree: TreeId,
    fits: impl Fn(&Key, &[u8]) -> bool + 'static,
    edit: impl Fn(&mut Vec<u8>) + 'static,
) -> Case {
    let apply = move |disk: &Disk| {
        let (key, _) = disk.find(tree, &fits);
        disk.edit(tree, &key, &edit);
    };
    Case { item, change, apply: Box::new(apply) }
}

fn of(item_type: ItemType) -> impl Fn(&Key, &[u8]) -> bool {
    move |key, _| key.item_type == item_type
}

/// Items of the file of that content or target: its inode, if `item_type` says so.
fn of_size(item_type: ItemType, size: u64) -> impl Fn(&Disk, TreeId) -> Key {
    move |disk, tree| {
        let (inode, _) = disk.find(tree, |key, item| {
            key.item_type == ItemType::INODE_ITEM && InodeItem::parse(item).unwrap().size.get() == size
        });
        disk.find(tree, |key, _| key.objectid == inode.objectid && key.item_type == item_type).0
    }
}

fn of_file(
    item: &'static str,
    change: &'static str,
    item_type: ItemType,
    size: u64,
    edit: impl Fn(&mut Vec<u8>) + 'static,
) -> Case {
    let find = of_size(item_type, size);
    let apply = move |disk: &Disk| {
        let key = find(disk, TreeId::FS);
        disk.edit(TreeId::FS, &key, &edit);
    };
    Case { item, change, apply: Box::new(apply) }
}

/// A case with one more item of zeros.
fn inserted(item: &'static str, change: &'static str, tree: TreeId, key: Key, len: usize) -> Case {
    Case { item, change, apply: Box::new(move |disk: &Disk| disk.insert(tree, key, vec![0; len])) }
}

/// A case with counters of device 1, of this many bytes.
fn statistics(change: &'static str, len: usize) -> Case {
    inserted("device statistics", change, TreeId::DEV, Key::device_stats(oleo_format::DevId(1)), len)
}

/// Appends bytes to an inline extent, which counts them.
fn counted(more: &'static [u8]) -> impl Fn(&mut Vec<u8>) {
    move |item| {
        item.extend(more);
        let head = FileExtentHead::mut_from_prefix(item).unwrap().0;
        head.ram_bytes = (head.ram_bytes.get() + more.len() as u64).into();
    }
}

/// The same; the inode counts them, too.
fn both(item: &'static str, change: &'static str, size: u64, more: &'static [u8]) -> Case {
    let (inode, extent) = (of_size(ItemType::INODE_ITEM, size), of_size(ItemType::EXTENT_DATA, size));
    let apply = move |disk: &Disk| {
        disk.edit(TreeId::FS, &extent(disk, TreeId::FS), counted(more));
        disk.edit(TreeId::FS, &inode(disk, TreeId::FS), |bytes| {
            let inode = InodeItem::mut_from_prefix(bytes).unwrap().0;
            inode.nbytes = (inode.nbytes.get() + more.len() as u64).into();
        });
    };
    Case { item, change, apply: Box::new(apply) }
}

fn longer(count: usize) -> impl Fn(&mut Vec<u8>) {
    move |item| item.extend(std::iter::repeat_n(0, count))
}

fn longer_by_ones(count: usize) -> impl Fn(&mut Vec<u8>) {
    move |item| item.extend(std::iter::repeat_n(1, count))
}

macro_rules! with {
    ($type:ident, |$item:ident| $change:expr) => {
        |bytes: &mut Vec<u8>| {
            let $item = $type::mut_from_prefix(bytes).unwrap().0;
            $change;
        }
    };
}

const LINK: u64 = 6;
const INLINE: u64 = 10;
const REGULAR: u64 = 50_000;

#[allow(clippy::too_many_lines, reason = "a list")]
fn cases() -> Vec<Case> {
    let fs = TreeId::FS;
    let mut all = vec![
        of_file("inode", "8 bytes more", ItemType::INODE_ITEM, INLINE, longer(8)),
        of_file(
            "inode",
            "an unknown flag, bit 20",
            ItemType::INODE_ITEM,
            INLINE,
            with!(InodeItem, |i| i.flags = (i.flags.get() | 1 << 20).into()),
        ),
        of_file(
            "inode",
            "an unknown flag, bit 40",
            ItemType::INODE_ITEM,
            INLINE,
            with!(InodeItem, |i| i.flags = (i.flags.get() | 1 << 40).into()),
        ),
        of_file(
            "inode",
            "reserved bytes set",
            ItemType::INODE_ITEM,
            INLINE,
            with!(InodeItem, |i| i.reserved[1] = 7.into()),
        ),
        of_file(
            "inode",
            "mode of more than 16 bits",
            ItemType::INODE_ITEM,
            INLINE,
            with!(InodeItem, |i| i.mode = (i.mode.get() | 1 << 20).into()),
        ),
        of_file("inode", "mode of no type", ItemType::INODE_ITEM, INLINE, with!(InodeItem, |i| i.mode = 0o644.into())),
        of_file(
            "inode",
            "nanoseconds of 2 s",
            ItemType::INODE_ITEM,
            INLINE,
            with!(InodeItem, |i| i.mtime.nsec = 2_000_000_000.into()),
        ),
        of_file(
            "inode",
            "nanoseconds of otime of 2 s",
            ItemType::INODE_ITEM,
            INLINE,
            with!(InodeItem, |i| i.otime.nsec = 2_000_000_000.into()),
        ),
        of_file(
            "inode",
            "a device number of a file",
            ItemType::INODE_ITEM,
            INLINE,
            with!(InodeItem, |i| i.rdev = 77.into()),
        ),
        of_file(
            "inode",
            "transid of the future",
            ItemType::INODE_ITEM,
            INLINE,
            with!(InodeItem, |i| i.transid = 9999.into()),
        ),
        of_file(
            "inode",
            "generation of the future",
            ItemType::INODE_ITEM,
            INLINE,
            with!(InodeItem, |i| i.generation = 9999.into()),
        ),
        of_file(
            "inode",
            "block_group set",
            ItemType::INODE_ITEM,
            INLINE,
            with!(InodeItem, |i| i.block_group = 77.into()),
        ),
        of_file("inode reference", "4 zero bytes more", ItemType::INODE_REF, INLINE, longer(4)),
        of_file("inode reference", "20 zero bytes more", ItemType::INODE_REF, INLINE, longer(20)),
        of_file("symbolic link", "a zero byte more, counted in ram_bytes", ItemType::EXTENT_DATA, LINK, counted(b"\0")),
        both("symbolic link", "a zero byte more, counted in ram_bytes and nbytes", LINK, b"\0"),
        both("symbolic link", "5 bytes more, counted in both", LINK, b"trail"),
        of_file("symbolic link", "a zero byte more, not counted", ItemType::EXTENT_DATA, LINK, longer(1)),
        of_file(
            "inline extent",
            "5 bytes more, counted in ram_bytes",
            ItemType::EXTENT_DATA,
            INLINE,
            counted(b"trail"),
        ),
        both("inline extent", "5 bytes more, counted in both", INLINE, b"trail"),
        of_file("inline extent", "4 bytes more, not counted", ItemType::EXTENT_DATA, INLINE, longer_by_ones(4)),
        of_file(
            "inline extent",
            "ram_bytes 4 less",
            ItemType::EXTENT_DATA,
            INLINE,
            with!(FileExtentHead, |e| e.ram_bytes = (e.ram_bytes.get() - 4).into()),
        ),
        of_file(
            "inline extent",
            "generation 0",
            ItemType::EXTENT_DATA,
            INLINE,
            with!(FileExtentHead, |e| e.generation = 0.into()),
        ),
        of_file(
            "inline extent",
            "encryption 1",
            ItemType::EXTENT_DATA,
            INLINE,
            with!(FileExtentHead, |e| e.encryption = 1),
        ),
        of_file(
            "inline extent",
            "other_encoding 1",
            ItemType::EXTENT_DATA,
            INLINE,
            with!(FileExtentHead, |e| e.other_encoding = 1.into()),
        ),
        of_file("file extent", "8 bytes more", ItemType::EXTENT_DATA, REGULAR, longer(8)),
        of_file(
            "file extent",
            "encryption 1",
            ItemType::EXTENT_DATA,
            REGULAR,
            with!(FileExtentHead, |e| e.encryption = 1),
        ),
        of_file(
            "file extent",
            "other_encoding 1",
            ItemType::EXTENT_DATA,
            REGULAR,
            with!(FileExtentHead, |e| e.other_encoding = 1.into()),
        ),
        of_file(
            "file extent",
            "compression 9",
            ItemType::EXTENT_DATA,
            REGULAR,
            with!(FileExtentHead, |e| e.compression = 9),
        ),
        of_file("file extent", "type 9", ItemType::EXTENT_DATA, REGULAR, with!(FileExtentHead, |e| e.r#type = 9)),
        of_file(
            "file extent",
            "ram_bytes of one sector",
            ItemType::EXTENT_DATA,
            REGULAR,
            with!(FileExtentHead, |e| e.ram_bytes = 4096.into()),
        ),
        of_file(
            "file extent",
            "ram_bytes larger",
            ItemType::EXTENT_DATA,
            REGULAR,
            with!(FileExtentHead, |e| e.ram_bytes = (1 << 20).into()),
        ),
        of_file(
            "file extent",
            "generation of the future",
            ItemType::EXTENT_DATA,
            REGULAR,
            with!(FileExtentHead, |e| e.generation = 9999.into()),
        ),
        of_file(
            "file extent",
            "generation 0",
            ItemType::EXTENT_DATA,
            REGULAR,
            with!(FileExtentHead, |e| e.generation = 0.into()),
        ),
        of_file("attribute", "4 zero bytes more", ItemType::XATTR_ITEM, REGULAR, longer(4)),
        of_file(
            "attribute",
            "a location",
            ItemType::XATTR_ITEM,
            REGULAR,
            with!(DirItem, |e| e.location.objectid = 300.into()),
        ),
        of_file("attribute", "type 0", ItemType::XATTR_ITEM, REGULAR, with!(DirItem, |e| e.r#type = 0)),
        of_file(
            "attribute",
            "transid of the future",
            ItemType::XATTR_ITEM,
            REGULAR,
            with!(DirItem, |e| e.transid = 9999.into()),
        ),
    ];
    for (name, item_type) in [("directory entry", ItemType::DIR_ITEM), ("directory index", ItemType::DIR_INDEX)] {
        let to_inode = move |key: &Key, item: &[u8]| {
            key.item_type == item_type
                && DirItem::parse_prefix(item).unwrap().0.location.item_type == ItemType::INODE_ITEM.0
        };
        let to_subvol = move |key: &Key, item: &[u8]| {
            key.item_type == item_type
                && DirItem::parse_prefix(item).unwrap().0.location.item_type == ItemType::ROOT_ITEM.0
        };
        all.extend([
            case(name, "4 zero bytes more", fs, to_inode, longer(4)),
            case(name, "40 zero bytes more", fs, to_inode, longer(40)),
            case(name, "data after the name, counted in data_len", fs, to_inode, |item| {
                item.extend(b"data");
                DirItem::mut_from_prefix(item).unwrap().0.data_len = 4.into();
            }),
            case(name, "type 0", fs, to_inode, with!(DirItem, |e| e.r#type = 0)),
            case(name, "type of another kind", fs, to_inode, with!(DirItem, |e| e.r#type = 4)),
            case(name, "type with the bit of encryption", fs, to_inode, with!(DirItem, |e| e.r#type |= 0x80)),
            case(name, "type 100", fs, to_inode, with!(DirItem, |e| e.r#type = 100)),
            case(name, "transid of the future", fs, to_inode, with!(DirItem, |e| e.transid = 9999.into())),
            case(
                name,
                "an offset in the key of an inode",
                fs,
                to_inode,
                with!(DirItem, |e| e.location.offset = 5.into()),
            ),
            case(
                name,
                "an offset in the key of a subvolume",
                fs,
                to_subvol,
                with!(DirItem, |e| e.location.offset = 5.into()),
            ),
        ]);
    }
    let subvol = |key: &Key, _: &[u8]| {
        key.item_type == ItemType::ROOT_ITEM && key.objectid >= 256 && TreeId(key.objectid).is_subvol()
    };
    let root = TreeId::ROOT;
    all.extend([
        case("root item", "8 bytes more", root, subvol, longer(8)),
        case("root item", "the form of 239 bytes", root, subvol, |item| item.truncate(239)),
        case("root item", "10 bytes less", root, subvol, |item| item.truncate(item.len() - 10)),
        case(
            "root item",
            "an unknown flag",
            root,
            subvol,
            with!(RootItem, |i| i.flags = (i.flags.get() | 1 << 20).into()),
        ),
        case("root item", "a byte limit", root, subvol, with!(RootItem, |i| i.byte_limit = 5.into())),
        case("root item", "reserved bytes set", root, subvol, with!(RootItem, |i| i.reserved[2] = 5.into())),
        case("root item", "refs 2", root, subvol, with!(RootItem, |i| i.refs = 2.into())),
        case("root item", "bytes_used wrong", root, subvol, with!(RootItem, |i| i.bytes_used = 5.into())),
        case("root item", "generation_v2 differs", root, subvol, with!(RootItem, |i| i.generation_v2 = 1.into())),
        case(
            "root item",
            "last_snapshot of the future",
            root,
            subvol,
            with!(RootItem, |i| i.last_snapshot = 9999.into()),
        ),
        case("root reference", "4 zero bytes more", root, of(ItemType::ROOT_REF), longer(4)),
        case("root back reference", "4 zero bytes more", root, of(ItemType::ROOT_BACKREF), longer(4)),
        case("uuid item", "4 zero bytes more", TreeId::UUID, of(ItemType::UUID_SUBVOL), longer(4)),
        case("uuid item", "a subvolume that is not there", TreeId::UUID, of(ItemType::UUID_SUBVOL), |item| {
            item.extend(7777u64.to_le_bytes())
        }),
        case("quota status", "8 bytes more", TreeId::QUOTA, of(ItemType::QGROUP_STATUS), longer(8)),
        case("quota status", "16 bytes more", TreeId::QUOTA, of(ItemType::QGROUP_STATUS), longer(16)),
        case(
            "quota status",
            "an unknown flag",
            TreeId::QUOTA,
            of(ItemType::QGROUP_STATUS),
            with!(QgroupStatusItem, |s| s.flags = (s.flags.get() | 1 << 20).into()),
        ),
        case(
            "quota status",
            "version 2",
            TreeId::QUOTA,
            of(ItemType::QGROUP_STATUS),
            with!(QgroupStatusItem, |s| s.version = 2.into()),
        ),
        case("quota numbers", "8 bytes more", TreeId::QUOTA, of(ItemType::QGROUP_INFO), longer(8)),
        case("quota limit", "8 bytes more", TreeId::QUOTA, of(ItemType::QGROUP_LIMIT), longer(8)),
        case("quota limit", "an unknown flag", TreeId::QUOTA, of(ItemType::QGROUP_LIMIT), |item| item[2] = 0x10),
        case("block group", "8 bytes more", TreeId::EXTENT, of(ItemType::BLOCK_GROUP_ITEM), longer(8)),
        case(
            "block group",
            "an unknown flag",
            TreeId::EXTENT,
            of(ItemType::BLOCK_GROUP_ITEM),
            with!(BlockGroupItem, |g| g.flags = (g.flags.get() | 1 << 40).into()),
        ),
        case("chunk", "32 zero bytes more", TreeId::CHUNK, of(ItemType::CHUNK_ITEM), longer(32)),
        case(
            "chunk",
            "an unknown flag",
            TreeId::CHUNK,
            of(ItemType::CHUNK_ITEM),
            with!(ChunkItem, |c| c.r#type = (c.r#type.get() | 1 << 40).into()),
        ),
        case(
            "chunk",
            "io_align 1, io_width 1",
            TreeId::CHUNK,
            of(ItemType::CHUNK_ITEM),
            with!(ChunkItem, |c| (c.io_align, c.io_width) = (1.into(), 1.into())),
        ),
        case(
            "chunk",
            "sector_size 512",
            TreeId::CHUNK,
            of(ItemType::CHUNK_ITEM),
            with!(ChunkItem, |c| c.sector_size = 512.into()),
        ),
        case("chunk", "owner 3", TreeId::CHUNK, of(ItemType::CHUNK_ITEM), with!(ChunkItem, |c| c.owner = 3.into())),
        case(
            "chunk",
            "sub_stripes 7 without RAID10",
            TreeId::CHUNK,
            of(ItemType::CHUNK_ITEM),
            with!(ChunkItem, |c| c.sub_stripes = 7.into()),
        ),
        case("device", "8 bytes more", TreeId::CHUNK, of(ItemType::DEV_ITEM), longer(8)),
        case(
            "device",
            "type 9, group 9",
            TreeId::CHUNK,
            of(ItemType::DEV_ITEM),
            with!(DevItem, |d| (d.r#type, d.dev_group) = (9.into(), 9.into())),
        ),
        case(
            "device",
            "start_offset",
            TreeId::CHUNK,
            of(ItemType::DEV_ITEM),
            with!(DevItem, |d| d.start_offset = 4096.into()),
        ),
        case("device extent", "8 bytes more", TreeId::DEV, of(ItemType::DEV_EXTENT), longer(8)),
        case(
            "device extent",
            "another chunk_tree_uuid",
            TreeId::DEV,
            of(ItemType::DEV_EXTENT),
            with!(DevExtent, |d| d.chunk_tree_uuid = [9; 16]),
        ),
        case(
            "device extent",
            "chunk_tree 0",
            TreeId::DEV,
            of(ItemType::DEV_EXTENT),
            with!(DevExtent, |d| d.chunk_tree = 0.into()),
        ),
        statistics("40 bytes", 40),
        statistics("48 bytes", 48),
        statistics("32 bytes", 32),
        statistics("44 bytes", 44),
        inserted("orphan item", "of no subvolume", TreeId::ROOT, Key::orphan(9999), 0),
        inserted("orphan item", "of no subvolume, a byte", TreeId::ROOT, Key::orphan(9999), 1),
        inserted(
            "replacement of a device",
            "none, 8 bytes more",
            TreeId::DEV,
            Key::new(0, ItemType::DEV_REPLACE, 0),
            80,
        ),
        case("checksums", "a byte more", TreeId::CSUM, of(ItemType::EXTENT_CSUM), longer(1)),
        case("free space", "8 bytes more", TreeId::FREE_SPACE, of(ItemType::FREE_SPACE_INFO), longer(8)),
        case(
            "free space",
            "an unknown flag",
            TreeId::FREE_SPACE,
            of(ItemType::FREE_SPACE_INFO),
            with!(FreeSpaceInfo, |i| i.flags = (i.flags.get() | 1 << 20).into()),
        ),
        case("free extent", "a byte", TreeId::FREE_SPACE, of(ItemType::FREE_SPACE_EXTENT), longer(1)),
        case("record of data", "8 zero bytes more", TreeId::EXTENT, of(ItemType::EXTENT_ITEM), longer(8)),
        case(
            "record of data",
            "an unknown flag",
            TreeId::EXTENT,
            of(ItemType::EXTENT_ITEM),
            with!(ExtentItem, |e| e.flags = (e.flags.get() | 1 << 20).into()),
        ),
        case(
            "record of data",
            "generation 0",
            TreeId::EXTENT,
            of(ItemType::EXTENT_ITEM),
            with!(ExtentItem, |e| e.generation = 0.into()),
        ),
        case(
            "record of data",
            "another generation",
            TreeId::EXTENT,
            of(ItemType::EXTENT_ITEM),
            with!(ExtentItem, |e| e.generation = 1.into()),
        ),
        case(
            "record of data",
            "generation of the future",
            TreeId::EXTENT,
            of(ItemType::EXTENT_ITEM),
            with!(ExtentItem, |e| e.generation = 9999.into()),
        ),
        case("record of a block", "8 zero bytes more", TreeId::EXTENT, of(ItemType::METADATA_ITEM), longer(8)),
        case(
            "record of a block",
            "an unknown flag",
            TreeId::EXTENT,
            of(ItemType::METADATA_ITEM),
            with!(ExtentItem, |e| e.flags = (e.flags.get() | 1 << 20).into()),
        ),
        case(
            "record of a block",
            "generation 0",
            TreeId::EXTENT,
            of(ItemType::METADATA_ITEM),
            with!(ExtentItem, |e| e.generation = 0.into()),
        ),
        case(
            "record of a block",
            "another generation",
            TreeId::EXTENT,
            of(ItemType::METADATA_ITEM),
            with!(ExtentItem, |e| e.generation = (e.generation.get().max(3) - 1).into()),
        ),
        case(
            "record of a block",
            "generation of the future",
            TreeId::EXTENT,
            of(ItemType::METADATA_ITEM),
            with!(ExtentItem, |e| e.generation = 9999.into()),
        ),
    ]);
    for (change, edit) in [
        (
            "an unknown flag, bit 20",
            (|sb| sb.flags = (sb.flags.get() | 1 << 20).into()) as fn(&mut oleo_format::SuperBlock),
        ),
        ("an unknown compatible feature", |sb| sb.compat_flags = (1 << 40).into()),
        ("an unknown read-only compatible feature", |sb| {
            sb.compat_ro_flags = (sb.compat_ro_flags.get() | 1 << 40).into()
        }),
        ("reserved bytes set", |sb| sb.reserved[100] = 7),
        ("padding set", |sb| sb.padding[100] = 7),
        ("stripesize 4096 and leafsize 0", |sb| (sb.stripesize, sb.__unused_leafsize) = (4096.into(), 0.into())),
        ("stripesize 64 KiB", |sb| sb.stripesize = 65536.into()),
        ("a label without a zero byte", |sb| sb.label = [b'x'; 256]),
        ("__unused_log_root_transid set", |sb| sb.__unused_log_root_transid = 9.into()),
        ("root_dir_objectid 7", |sb| sb.root_dir_objectid = 7.into()),
        ("a root backup of noise", |sb| sb.super_roots[1].tree_root = 12345.into()),
    ] {
        all.push(Case {
            item: "superblock",
            change,
            apply: Box::new(move |disk| disk.edit_super(0, None, true, edit)),
        });
    }
    all
}

/// All files below a directory; one that cannot be read is there without content.
fn read_all(top: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        let Ok(entries) = fs::read_dir(top.join(&dir)) else {
            found.insert(dir, None);
            continue;
        };
        for entry in entries {
            let Ok(entry) = entry else {
                found.insert(dir.join("?"), None);
                continue;
            };
            let path = dir.join(entry.file_name());
            let full = top.join(&path);
            match fs::symlink_metadata(&full) {
                Ok(meta) if meta.is_dir() => dirs.push(path),
                Ok(meta) if meta.is_symlink() => {
                    use std::os::unix::ffi::OsStringExt;
                    let target = fs::read_link(&full).ok().map(|target| target.into_os_string().into_vec());
                    found.insert(path, target);
                }
                Ok(_) => {
                    found.insert(path, fs::read(&full).ok());
                }
                Err(_) => {
                    found.insert(path, None);
                }
            }
        }
    }
    found
}

fn by_kernel(oracle: Oracle, disk: &Disk) -> Result<Seen> {
    let scratch = oracle.scratch()?;
    let image = scratch.image("image", disk.devices[0].len())?;
    disk::store(&*disk.devices[0], &image)?;
    let clean = oracle.check(&[&image])?.is_clean();
    let files = oracle.mount(&[&image], "ro").ok().map(|mounted| {
        let files = read_all(mounted.path());
        mounted.unmount().map(|()| files)
    });
    let writes = oracle.mount(&[&image], "").ok().is_some_and(|mounted| {
        let written = fs::write(mounted.path().join("new"), "new").is_ok() && mounted.sync().is_ok();
        mounted.unmount().is_ok() && written
    });
    Ok(Seen { files: files.transpose()?, writes, clean })
}

fn by_us(oracle: Oracle, disk: &Disk) -> Result<Seen> {
    let scratch = oracle.scratch()?;
    let devices = || disk.devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect();
    let volume = oleo_volume::Volume::open(devices(), &oleo_volume::OpenOptions::default());
    let report = volume
        .ok()
        .and_then(|volume| oleo_check::check(&volume, &oleo_check::CheckOptions::default().threads(1).data(true)).ok());
    let clean = report.is_some_and(|report| report.findings.iter().all(|f| f.severity != Severity::Error));
    let files = Image::from_devices(devices(), &OpenOptions::default()).ok().and_then(|image| {
        let out = scratch.path().join("out");
        let _ = restore_to_dir(&image, &image.top().ok()?, b"", &out, &RestoreOptions::default());
        Some(read_all(&out))
    });
    let writes = Image::from_devices(devices(), &OpenOptions::writing())
        .and_then(|image| image.write("new", b"new").and_then(|()| image.close()))
        .is_ok();
    Ok(Seen { files, writes, clean })
}

/// Cases in which we are stricter than the kernel, on purpose.
const STRICTER: [(&str, &str); 0] = [];

/// Goal: a volume that the kernel reads whole is read whole by us, one that it writes to is written to, and one that
/// `btrfs check` accepts, too, has no errors. Method: one change of a sound volume at a time, behind sound checksums.
#[test]
fn as_the_kernel() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let sound = sound();
    let all = by_kernel(oracle, &sound)?.files.expect("it mounts");
    assert!(all.values().all(Option::is_some) && all.len() == 6, "{:?}", all.keys());
    let mut wrong = Vec::new();
    println!(
        "| item | changed | kernel reads | writes | `btrfs check` | Oleo reads | writes | `oleo check` |\n|---|---|---|---|---|---|---|---|"
    );
    for Case { item, change, apply } in cases() {
        let disk = sound.copy();
        apply(&disk);
        let (kernel, ours) = (by_kernel(oracle, &disk)?, by_us(oracle, &disk)?);
        let shown = |seen: &Seen| {
            let reads = match &seen.files {
                None => "refused".to_owned(),
                Some(files) => match all.iter().filter(|(path, content)| files.get(*path) == Some(content)).count() {
                    count if count == all.len() => "all".to_owned(),
                    count => format!("{count} of {}", all.len()),
                },
            };
            format!(
                "{reads} | {} | {}",
                if seen.writes { "yes" } else { "no" },
                if seen.clean { "clean" } else { "errors" }
            )
        };
        println!("| {item} | {change} | {} | {} |", shown(&kernel), shown(&ours));
        let good = |seen: &Seen| {
            let files = seen.files.as_ref();
            files.map_or(0, |files| all.iter().filter(|(path, content)| files.get(*path) == Some(content)).count())
        };
        let stricter = good(&ours) < good(&kernel)
            || (kernel.writes && !ours.writes)
            || (kernel.writes && kernel.clean && good(&kernel) == all.len() && !ours.clean);
        if stricter != STRICTER.contains(&(item, change)) {
            wrong.push(format!("{item}, {change}: the kernel: {}, Oleo: {}", shown(&kernel), shown(&ours)));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}
