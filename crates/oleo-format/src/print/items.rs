//! The lines under an item's key.

use uuid::Uuid;

use super::{flag_names, group_type, key as show_key, octal, text, time, tree_name};
use crate::error::Corruption;
use crate::extent::{BackRef, ExtentRecord};
use crate::file_extent::FileExtent;
use crate::flags::{FileType, InodeFlags, QgroupStatusFlags};
use crate::layout::NodeRules;
use crate::names::{DirEntryRef, InodeExtrefEntryRef, InodeRefEntryRef, RootRefEntry};
use crate::records::{QgroupStatus, RaidStripe, UuidItem};
use crate::structs::{
    BalanceItem, BlockGroupItemV2, DevExtent, DevItem, DevReplaceItem, DirLogItem, DiskBalanceArgs, FreeSpaceHeader,
    FreeSpaceInfo, InodeItem, QgroupInfoItem, QgroupLimitItem, RemapItem, RootItem, VerityDescriptorItem,
};
use crate::{Chunk, Compression, ItemType, Key, TreeId};

/// The lines that describe an item. An item that cannot be parsed yields its error, one of an unknown type nothing.
pub fn item(key: &Key, data: &[u8], rules: &NodeRules) -> Vec<String> {
    let mut lines = Vec::new();
    if let Err(e) = describe(key, data, rules, &mut lines) {
        lines.push(format!("error: {e}"));
    }
    lines
}

fn describe(key: &Key, data: &[u8], rules: &NodeRules, out: &mut Vec<String>) -> Result<(), Corruption> {
    match key.item_type {
        ItemType::INODE_ITEM => inode(InodeItem::parse(data)?, out),
        ItemType::INODE_REF => {
            for e in InodeRefEntryRef::iter(data) {
                let e = e?;
                out.push(format!("index {} namelen {} name: {}", e.index, e.name.len(), octal(e.name)));
            }
        }
        ItemType::INODE_EXTREF => {
            for e in InodeExtrefEntryRef::iter(data) {
                let e = e?;
                let name = octal(e.name);
                out.push(format!("index {} parent {} namelen {} name: {name}", e.index, e.parent, e.name.len()));
            }
        }
        ItemType::DIR_ITEM | ItemType::DIR_INDEX | ItemType::XATTR_ITEM => {
            for e in DirEntryRef::iter(data) {
                dir_entry(&e?, out);
            }
        }
        ItemType::EXTENT_DATA => file_extent(data, out)?,
        ItemType::ROOT_ITEM => root(&RootItem::decode(data)?, out),
        ItemType::ROOT_REF | ItemType::ROOT_BACKREF => {
            let e = RootRefEntry::parse(data)?;
            let kind = if key.item_type == ItemType::ROOT_REF { "ref" } else { "backref" };
            out.push(format!("root {kind} key dirid {} sequence {} name {}", e.dirid, e.sequence, octal(&e.name)));
        }
        ItemType::ORPHAN_ITEM => out.push("orphan item".to_owned()),
        ItemType::DIR_LOG_ITEM | ItemType::DIR_LOG_INDEX => {
            out.push(format!("dir log end {}", DirLogItem::parse(data)?.end));
        }
        ItemType::VERITY_DESC_ITEM if key.offset == 0 => {
            let d = VerityDescriptorItem::parse(data)?;
            out.push(format!("verity descriptor size {} encryption {}", d.size, d.encryption));
        }
        ItemType::VERITY_DESC_ITEM | ItemType::VERITY_MERKLE_ITEM => {
            out.push(format!("verity data size {}", data.len()))
        }
        ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => extent(key, data, out)?,
        ItemType::EXTENT_DATA_REF
        | ItemType::SHARED_DATA_REF
        | ItemType::TREE_BLOCK_REF
        | ItemType::SHARED_BLOCK_REF => {
            out.push(back_ref(&BackRef::parse_keyed(key, data)?));
        }
        _ => describe_volume(key, data, rules, out)?,
    }
    Ok(())
}

/// Items that have nothing to do with files and extents.
fn describe_volume(key: &Key, data: &[u8], rules: &NodeRules, out: &mut Vec<String>) -> Result<(), Corruption> {
    match key.item_type {
        ItemType::EXTENT_CSUM => {
            let len = (data.len() / rules.csum.csum_len()) as u64 * u64::from(rules.sectorsize);
            let end = key.offset.saturating_add(len);
            out.push(format!("range start {} end {end} length {len}", key.offset));
        }
        ItemType::BLOCK_GROUP_ITEM => {
            let g = BlockGroupItemV2::decode(data)?;
            let flags = group_type(g.group_flags());
            out.push(format!("block group used {} chunk_objectid {} flags {flags}", g.used, g.chunk_objectid));
            if data.len() == size_of::<BlockGroupItemV2>() {
                let (bytes, count) = (g.remap_bytes, g.identity_remap_count);
                out.push(format!("remap_bytes {bytes} identity_remap_count {count}"));
            }
        }
        ItemType::FREE_SPACE_INFO => {
            let i = FreeSpaceInfo::parse_start(data)?;
            out.push(format!("free space info extent count {} flags {}", i.extent_count, i.flags));
        }
        ItemType::FREE_SPACE_EXTENT => out.push("free space extent".to_owned()),
        ItemType::FREE_SPACE_BITMAP => out.push("free space bitmap".to_owned()),
        ItemType::CHUNK_ITEM => out.extend(chunk(&Chunk::parse(data)?)),
        ItemType::DEV_ITEM => device(DevItem::parse(data)?, out),
        ItemType::DEV_EXTENT => {
            let e = DevExtent::parse_start(data)?;
            out.push(format!("dev extent chunk_tree {}", e.chunk_tree));
            let (objectid, offset) = (e.chunk_objectid, e.chunk_offset);
            out.push(format!("chunk_objectid {objectid} chunk_offset {offset} length {}", e.length));
            out.push(format!("chunk_tree_uuid {}", Uuid::from_bytes(e.chunk_tree_uuid)));
        }
        ItemType::RAID_STRIPE => {
            for (i, s) in RaidStripe::parse(data)?.strides.iter().enumerate() {
                out.push(format!("stripe {i} devid {} physical {}", s.devid, s.physical));
            }
        }
        ItemType::IDENTITY_REMAP => out.push("identity remap".to_owned()),
        ItemType::REMAP => out.push(format!("remap address {}", RemapItem::parse(data)?.address)),
        ItemType::REMAP_BACKREF => out.push(format!("remap backref address {}", RemapItem::parse(data)?.address)),
        ItemType::QGROUP_STATUS | ItemType::QGROUP_INFO | ItemType::QGROUP_LIMIT => quota(key, data, out)?,
        ItemType::UUID_SUBVOL | ItemType::UUID_RECEIVED_SUBVOL => {
            out.extend(UuidItem::parse(data).subvols.iter().map(|id| format!("subvol_id {id}")));
        }
        ItemType::PERSISTENT_ITEM => persistent(key, data, out),
        ItemType::TEMPORARY_ITEM if key.objectid == Key::BALANCE => balance(BalanceItem::parse_start(data)?, out),
        ItemType::TEMPORARY_ITEM => {
            out.push(format!("temporary item objectid {} offset {}", tree_name(TreeId(key.objectid)), key.offset));
        }
        ItemType::DEV_REPLACE => dev_replace(DevReplaceItem::parse_start(data)?, out),
        ItemType::STRING_ITEM => out.push(format!("item data {}", text(data))),
        ItemType(0) if key.objectid == Key::FREE_SPACE => {
            let h = FreeSpaceHeader::parse(data)?;
            out.push(format!("location {}", show_key(&h.location.into())));
            out.push(format!("cache generation {} entries {} bitmaps {}", h.generation, h.num_entries, h.num_bitmaps));
        }
        _ => {}
    }
    Ok(())
}

fn inode(i: &InodeItem, out: &mut Vec<String>) {
    out.push(format!("generation {} transid {} size {} nbytes {}", i.generation, i.transid, i.size, i.nbytes));
    let (mode, rdev) = (i.mode.get(), i.rdev);
    out.push(format!(
        "block group {} mode {mode:o} links {} uid {} gid {} rdev {rdev}",
        i.block_group, i.nlink, i.uid, i.gid
    ));
    let flags = InodeFlags::from_bits_retain(i.flags.get());
    out.push(format!("sequence {} flags {:#x}({})", i.sequence, flags.bits(), flag_names!(flags)));
    for (name, t) in [("atime", &i.atime), ("ctime", &i.ctime), ("mtime", &i.mtime), ("otime", &i.otime)] {
        out.push(format!("{name} {}", time(t)));
    }
}

/// The short name of what an entry points at.
fn file_type(t: FileType) -> &'static str {
    match t {
        FileType::Unknown => "UNKNOWN.0",
        FileType::RegFile => "FILE",
        FileType::Dir => "DIR",
        FileType::ChrDev => "CHRDEV",
        FileType::BlkDev => "BLKDEV",
        FileType::Fifo => "FIFO",
        FileType::Sock => "SOCK",
        FileType::Symlink => "SYMLINK",
        FileType::Xattr => "XATTR",
    }
}

/// Bytes of an attribute's value that are shown.
const DATA_SHOWN_MAX: usize = 255;

fn dir_entry(e: &DirEntryRef<'_>, out: &mut Vec<String>) {
    out.push(format!("location key {} type {}", show_key(&e.location), file_type(e.file_type)));
    out.push(format!("transid {} data_len {} name_len {}", e.transid, e.data.len(), e.name.len()));
    out.push(format!("name: {}", octal(e.name)));
    if !e.data.is_empty() {
        out.push(format!("data {}", octal(&e.data[..e.data.len().min(DATA_SHOWN_MAX)])));
    }
}

fn file_extent(data: &[u8], out: &mut Vec<String>) -> Result<(), Corruption> {
    let compression = |c: Compression| format!("compression {} ({})", c.to_disk(), c.name());
    match FileExtent::parse(data)? {
        FileExtent::Inline { generation, ram_bytes, compression: c, data } => {
            out.push(format!("generation {generation} type 0 (inline)"));
            out.push(format!("inline extent data size {} ram_bytes {ram_bytes} {}", data.len(), compression(c)));
        }
        FileExtent::Regular(e) => {
            out.push(format!("generation {} type 1 (regular)", e.generation));
            out.push(format!("extent data disk byte {} nr {}", e.disk_bytenr, e.disk_num_bytes));
            out.push(format!("extent data offset {} nr {} ram {}", e.offset, e.num_bytes, e.ram_bytes));
            out.push(format!("extent {}", compression(e.compression)));
        }
        FileExtent::Prealloc(e) => {
            out.push(format!("generation {} type 2 (prealloc)", e.generation));
            out.push(format!("prealloc data disk byte {} nr {}", e.disk_bytenr, e.disk_num_bytes));
            out.push(format!("prealloc data offset {} nr {}", e.offset, e.num_bytes));
        }
    }
    Ok(())
}

fn root(r: &RootItem, out: &mut Vec<String>) {
    let (byte_limit, bytes_used) = (r.byte_limit, r.bytes_used);
    out.push(format!(
        "generation {} root_dirid {} bytenr {} byte_limit {byte_limit} bytes_used {bytes_used}",
        r.generation, r.root_dirid, r.bytenr
    ));
    let flags = r.root_flags();
    let names = flag_names!(flags).replace("SUBVOL_", "");
    out.push(format!("last_snapshot {} flags {:#x}({names}) refs {}", r.last_snapshot, flags.bits(), r.refs));
    out.push(format!("drop_progress key {} drop_level {}", show_key(&r.drop_progress.into()), r.drop_level));
    out.push(format!("level {} generation_v2 {}", r.level, r.generation_v2));
    if r.generation_v2 != r.generation {
        return;
    }
    for (name, uuid) in [("uuid", r.uuid), ("parent_uuid", r.parent_uuid), ("received_uuid", r.received_uuid)] {
        out.push(format!("{name} {}", Uuid::from_bytes(uuid)));
    }
    let (stransid, rtransid) = (r.stransid, r.rtransid);
    out.push(format!("ctransid {} otransid {} stransid {stransid} rtransid {rtransid}", r.ctransid, r.otransid));
    for (name, t) in [("ctime", &r.ctime), ("otime", &r.otime), ("stime", &r.stime), ("rtime", &r.rtime)] {
        out.push(format!("{name} {}", time(t)));
    }
    if r.drop_progress.objectid.get() != 0 {
        out.push(format!("drop key {} level {}", show_key(&r.drop_progress.into()), r.drop_level));
    }
}

fn back_ref(r: &BackRef) -> String {
    match *r {
        BackRef::Owner { root } => format!("extent owner root {}", tree_name(root)),
        BackRef::TreeBlock { root } => format!("tree block backref root {}", tree_name(root)),
        BackRef::SharedBlock { parent } => format!("shared block backref parent {parent}"),
        BackRef::SharedData { parent, count } => format!("shared data backref parent {parent} count {count}"),
        BackRef::Data { root, ino, offset, count } => {
            let root = tree_name(root);
            format!("extent data backref root {root} objectid {ino} offset {offset} count {count}")
        }
    }
}

fn extent(key: &Key, data: &[u8], out: &mut Vec<String>) -> Result<(), Corruption> {
    let e = ExtentRecord::parse(key, data)?;
    out.push(format!("refs {} gen {} flags {}", e.refs, e.generation, flag_names!(e.flags)));
    if let Some((first, level)) = e.tree_block {
        out.push(format!("tree block key {} level {level}", show_key(&first)));
    } else if key.item_type == ItemType::METADATA_ITEM {
        out.push(format!("tree block skinny level {}", key.offset));
    }
    // Inline references have no key of their own to show.
    out.extend(e.inline.iter().map(|r| format!("({} {:#x}) {}", r.item_type().0, r.key_offset(), back_ref(r))));
    Ok(())
}

pub(super) fn chunk(c: &Chunk) -> Vec<String> {
    let flags = group_type(c.flags);
    let mut out = vec![
        format!("length {} owner {} stripe_len {} type {flags}", c.length, c.owner, c.stripe_len),
        format!("io_align {} io_width {} sector_size {}", c.io_align, c.io_width, c.sector_size),
        format!("num_stripes {} sub_stripes {}", c.stripes.len(), c.sub_stripes),
    ];
    for (i, s) in c.stripes.iter().enumerate() {
        out.push(format!("\tstripe {i} devid {} offset {}", s.devid, s.offset));
        out.push(format!("\tdev_uuid {}", Uuid::from_bytes(s.dev_uuid)));
    }
    out
}

fn device(d: &DevItem, out: &mut Vec<String>) {
    out.push(format!("devid {} total_bytes {} bytes_used {}", d.devid, d.total_bytes, d.bytes_used));
    let (sector_size, kind) = (d.sector_size, d.r#type);
    out.push(format!("io_align {} io_width {} sector_size {sector_size} type {kind}", d.io_align, d.io_width));
    out.push(format!("generation {} start_offset {} dev_group {}", d.generation, d.start_offset, d.dev_group));
    out.push(format!("seek_speed {} bandwidth {}", d.seek_speed, d.bandwidth));
    out.push(format!("uuid {}", Uuid::from_bytes(d.uuid)));
    out.push(format!("fsid {}", Uuid::from_bytes(d.fsid)));
}

fn quota(key: &Key, data: &[u8], out: &mut Vec<String>) -> Result<(), Corruption> {
    match key.item_type {
        ItemType::QGROUP_STATUS => {
            let s = QgroupStatus::parse(data)?;
            let flags = if s.flags.contains(QgroupStatusFlags::ON) { flag_names!(s.flags) } else { "OFF".to_owned() };
            out.push(format!("version {} generation {} flags {flags} scan {}", s.version, s.generation, s.rescan));
            if let Some(generation) = s.enable_gen.filter(|_| s.flags.contains(QgroupStatusFlags::SIMPLE_MODE)) {
                out.push(format!("enable_gen {generation}"));
            }
        }
        ItemType::QGROUP_INFO => {
            let i = QgroupInfoItem::parse_start(data)?;
            out.push(format!("generation {}", i.generation));
            out.push(format!("referenced {} referenced_compressed {}", i.rfer, i.rfer_cmpr));
            out.push(format!("exclusive {} exclusive_compressed {}", i.excl, i.excl_cmpr));
        }
        _ => {
            let l = QgroupLimitItem::parse_start(data)?;
            out.push(format!("flags {:x}", l.flags.get()));
            out.push(format!("max_referenced {} max_exclusive {}", l.max_rfer, l.max_excl));
            out.push(format!("rsv_referenced {} rsv_exclusive {}", l.rsv_rfer, l.rsv_excl));
        }
    }
    Ok(())
}

/// The names of a device's error counters in the order of the item.
pub(super) const DEV_STATS: [&str; 5] = ["write_errs", "read_errs", "flush_errs", "corruption_errs", "generation"];

fn persistent(key: &Key, data: &[u8], out: &mut Vec<String>) {
    let is_stats = key.objectid == Key::DEV_STATS;
    let name = if is_stats { "DEV_STATS".to_owned() } else { tree_name(TreeId(key.objectid)) };
    out.push(format!("persistent item objectid {name} offset {}", key.offset));
    if is_stats {
        out.push("device stats".to_owned());
        let counts = data.as_chunks::<8>().0.iter().map(|n| u64::from_le_bytes(*n));
        out.push(DEV_STATS.iter().zip(counts).map(|(name, n)| format!("{name} {n}")).collect::<Vec<_>>().join(" "));
    }
}

fn balance_args(kind: &str, a: &DiskBalanceArgs, out: &mut Vec<String>) {
    out.push(kind.to_owned());
    out.push(format!("profiles {} devid {} target {} flags {}", a.profiles, a.devid, a.target, a.flags));
    let usage = a.usage.get();
    out.push(format!(
        "usage_min {} usage_max {} pstart {} pend {}",
        usage & 0xffff_ffff,
        usage >> 32,
        a.pstart,
        a.pend
    ));
    let limit = a.limit.get();
    out.push(format!(
        "vstart {} vend {} limit_min {} limit_max {}",
        a.vstart,
        a.vend,
        limit & 0xffff_ffff,
        limit >> 32
    ));
    out.push(format!("stripes_min {} stripes_max {}", a.stripes_min, a.stripes_max));
}

fn balance(b: &BalanceItem, out: &mut Vec<String>) {
    out.push("temporary item objectid BALANCE offset 0".to_owned());
    out.push(format!("balance status flags {}", b.flags));
    balance_args("DATA", &b.data, out);
    balance_args("METADATA", &b.meta, out);
    balance_args("SYSTEM", &b.sys, out);
}

fn dev_replace(r: &DevReplaceItem, out: &mut Vec<String>) {
    out.push(format!("src devid {} cursor left {} cursor right {}", r.src_devid, r.cursor_left, r.cursor_right));
    let mode = r.cont_reading_from_srcdev_mode;
    out.push(format!("mode {mode} state {} start {} stop {}", r.replace_state, r.time_started, r.time_stopped));
    let reads = r.num_uncorrectable_read_errors;
    out.push(format!("write errors {} uncorrectable read errors {reads}", r.num_write_errors));
}
