//! Superblocks, blocks and items as JSON. Field names are those of the format; numbers are numbers, uuids and names are
//! strings, bytes that are not text are `{"hex": "…"}`, flags are a number and a list of names.

use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::items::DEV_STATS;
use super::{group_type, tree_name, type_name};
use crate::error::Corruption;
use crate::extent::{BackRef, ExtentRecord};
use crate::file_extent::{DiskExtent, FileExtent};
use crate::flags::{HeaderFlags, InodeFlags};
use crate::layout::NodeRules;
use crate::names::{DirEntryRef, InodeExtrefEntryRef, InodeRefEntryRef, RootRefEntry};
use crate::node::CheckedNode;
use crate::records::{QgroupStatus, RaidStripe, UuidItem, bitmap_runs};
use crate::structs::{
    BalanceItem, BlockGroupItemV2, DevExtent, DevItem, DevReplaceItem, DirLogItem, DiskBalanceArgs, FreeSpaceHeader,
    FreeSpaceInfo, InodeItem, QgroupInfoItem, QgroupLimitItem, RemapItem, RootBackup, RootItem, Stripe, SuperBlock,
    Timespec, VerityDescriptorItem,
};
use crate::{Chunk, ItemType, Key, Logical, TreeId};

/// An object of the named number fields of a struct.
macro_rules! numbers {
    ($s:expr, $($field:ident)*) => {{
        let mut map = Map::new();
        $(map.insert(stringify!($field).trim_start_matches("r#").trim_start_matches("__unused_").to_owned(), number($s.$field));)*
        map
    }};
}

/// What a number field becomes.
trait Number {
    fn value(self) -> u64;
}
impl Number for u8 {
    fn value(self) -> u64 {
        self.into()
    }
}
impl Number for zerocopy::byteorder::little_endian::U16 {
    fn value(self) -> u64 {
        self.get().into()
    }
}
impl Number for zerocopy::byteorder::little_endian::U32 {
    fn value(self) -> u64 {
        self.get().into()
    }
}
impl Number for zerocopy::byteorder::little_endian::U64 {
    fn value(self) -> u64 {
        self.get()
    }
}

fn number(n: impl Number) -> Value {
    n.value().into()
}

/// A string if the bytes are text, else their hexadecimal form.
pub fn bytes(b: &[u8]) -> Value {
    match std::str::from_utf8(b) {
        Ok(s) => s.into(),
        Err(_) => json!({ "hex": hex(b) }),
    }
}

fn hex(b: &[u8]) -> String {
    b.iter().map(|b| format!("{b:02x}")).collect()
}

fn uuid(b: [u8; 16]) -> Value {
    Uuid::from_bytes(b).to_string().into()
}

fn time(t: &Timespec) -> Value {
    json!({ "sec": t.seconds(), "nsec": t.nsec.get() })
}

/// The names of the set bits of a bitflags value.
macro_rules! names {
    ($flags:expr) => {
        $flags.iter_names().map(|(name, _)| Value::from(name)).collect::<Vec<Value>>()
    };
}

/// A key.
pub fn key(k: &Key) -> Value {
    json!({ "objectid": k.objectid, "type": k.item_type.0, "type_name": type_name(k.item_type), "offset": k.offset })
}

/// A block with everything in it.
pub fn block(node: &CheckedNode, rules: &NodeRules) -> Value {
    let h = node.header();
    let flags = HeaderFlags::from_bits_retain(h.flags.get());
    let mut map = numbers!(h, bytenr generation owner nritems level);
    map.insert("owner_name".to_owned(), tree_name(node.owner()).into());
    map.insert("flags".to_owned(), flags.bits().into());
    map.insert("flag_names".to_owned(), names!(flags).into());
    map.insert("fsid".to_owned(), uuid(h.fsid));
    map.insert("chunk_tree_uuid".to_owned(), uuid(h.chunk_tree_uuid));
    if node.is_leaf() {
        let items =
            node.iter().map(|(k, data)| json!({ "key": key(&k), "size": data.len(), "item": item(&k, data, rules) }));
        map.insert("items".to_owned(), items.collect());
    } else {
        let children = (0..node.len()).map(|slot| node.child(slot));
        let children =
            children.map(|c| json!({ "key": key(&c.key), "blockptr": c.logical.0, "generation": c.generation.0 }));
        map.insert("children".to_owned(), children.collect());
    }
    map.into()
}

/// An item's contents. One that cannot be parsed yields `error` and `hex`, one of an unknown type `hex`.
pub fn item(k: &Key, data: &[u8], rules: &NodeRules) -> Value {
    match known(k, data, rules) {
        Ok(Some(value)) => value,
        Ok(None) => json!({ "hex": hex(data) }),
        Err(e) => json!({ "error": e.to_string(), "hex": hex(data) }),
    }
}

fn known(k: &Key, data: &[u8], rules: &NodeRules) -> Result<Option<Value>, Corruption> {
    Ok(Some(match k.item_type {
        ItemType::INODE_ITEM => inode(InodeItem::parse(data)?),
        ItemType::INODE_REF => InodeRefEntryRef::iter(data)
            .map(|e| e.map(|e| json!({ "index": e.index, "name": bytes(e.name) })))
            .collect::<Result<Value, _>>()?,
        ItemType::INODE_EXTREF => InodeExtrefEntryRef::iter(data)
            .map(|e| e.map(|e| json!({ "parent_objectid": e.parent.0, "index": e.index, "name": bytes(e.name) })))
            .collect::<Result<Value, _>>()?,
        ItemType::DIR_ITEM | ItemType::DIR_INDEX | ItemType::XATTR_ITEM => {
            DirEntryRef::iter(data).map(|e| e.map(|e| dir_entry(&e))).collect::<Result<Value, _>>()?
        }
        ItemType::EXTENT_DATA => file_extent(&FileExtent::parse(data)?),
        ItemType::ROOT_ITEM => root(&RootItem::decode(data)?),
        ItemType::ROOT_REF | ItemType::ROOT_BACKREF => {
            let e = RootRefEntry::parse(data)?;
            json!({ "dirid": e.dirid.0, "sequence": e.sequence, "name": bytes(&e.name) })
        }
        ItemType::DIR_LOG_ITEM | ItemType::DIR_LOG_INDEX => numbers!(DirLogItem::parse(data)?, end).into(),
        ItemType::VERITY_DESC_ITEM if k.offset == 0 => {
            numbers!(VerityDescriptorItem::parse(data)?, size encryption).into()
        }
        ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => extent(k, &ExtentRecord::parse(k, data)?),
        ItemType::EXTENT_DATA_REF
        | ItemType::SHARED_DATA_REF
        | ItemType::TREE_BLOCK_REF
        | ItemType::SHARED_BLOCK_REF => back_ref(&BackRef::parse_keyed(k, data)?),
        ItemType::ORPHAN_ITEM | ItemType::FREE_SPACE_EXTENT | ItemType::QGROUP_RELATION => json!({}),
        _ => return of_volume(k, data, rules),
    }))
}

fn of_volume(k: &Key, data: &[u8], rules: &NodeRules) -> Result<Option<Value>, Corruption> {
    Ok(Some(match k.item_type {
        ItemType::EXTENT_CSUM => data.chunks(rules.csum.csum_len()).map(|c| Value::from(hex(c))).collect(),
        ItemType::BLOCK_GROUP_ITEM => {
            let g = BlockGroupItemV2::decode(data)?;
            let mut map = match data.len() == size_of::<BlockGroupItemV2>() {
                true => numbers!(g, used chunk_objectid flags remap_bytes identity_remap_count),
                false => numbers!(g, used chunk_objectid flags),
            };
            map.insert("flag_names".to_owned(), group_type(g.group_flags()).split('|').collect());
            map.into()
        }
        ItemType::FREE_SPACE_INFO => numbers!(FreeSpaceInfo::parse_start(data)?, extent_count flags).into(),
        ItemType::FREE_SPACE_BITMAP => {
            let runs = bitmap_runs(Logical(k.objectid), data, rules.sectorsize);
            runs.iter().map(|(at, len)| json!({ "start": at.0, "length": len.0 })).collect()
        }
        ItemType::CHUNK_ITEM => chunk(&Chunk::parse(data)?),
        ItemType::DEV_ITEM => device(DevItem::parse(data)?),
        ItemType::DEV_EXTENT => {
            let e = DevExtent::parse_start(data)?;
            let mut map = numbers!(e, chunk_tree chunk_objectid chunk_offset length);
            map.insert("chunk_tree_uuid".to_owned(), uuid(e.chunk_tree_uuid));
            map.into()
        }
        ItemType::RAID_STRIPE => {
            RaidStripe::parse(data)?.strides.iter().map(|s| Value::from(numbers!(s, devid physical))).collect()
        }
        ItemType::IDENTITY_REMAP => json!({}),
        ItemType::REMAP | ItemType::REMAP_BACKREF => numbers!(RemapItem::parse(data)?, address).into(),
        ItemType::QGROUP_STATUS => {
            let s = QgroupStatus::parse(data)?;
            json!({
                "version": s.version, "generation": s.generation.0, "flags": s.flags.bits(), "flag_names": names!(s.flags),
                "rescan": s.rescan, "enable_gen": s.enable_gen.map(|g| g.0),
            })
        }
        ItemType::QGROUP_INFO => {
            numbers!(QgroupInfoItem::parse_start(data)?, generation rfer rfer_cmpr excl excl_cmpr).into()
        }
        ItemType::QGROUP_LIMIT => {
            numbers!(QgroupLimitItem::parse_start(data)?, flags max_rfer max_excl rsv_rfer rsv_excl).into()
        }
        ItemType::UUID_SUBVOL | ItemType::UUID_RECEIVED_SUBVOL => {
            let subvols: Vec<u64> = UuidItem::parse(data).subvols.iter().map(|id| id.0).collect();
            json!({ "uuid": k.as_uuid().to_string(), "subvols": subvols })
        }
        ItemType::PERSISTENT_ITEM if k.objectid == Key::DEV_STATS => {
            let counts = data.as_chunks::<8>().0.iter().map(|n| Value::from(u64::from_le_bytes(*n)));
            DEV_STATS.iter().map(|name| (*name).to_owned()).zip(counts).collect::<Map<_, _>>().into()
        }
        ItemType::TEMPORARY_ITEM if k.objectid == Key::BALANCE => balance(BalanceItem::parse_start(data)?),
        ItemType::DEV_REPLACE => {
            let r = DevReplaceItem::parse_start(data)?;
            numbers!(r, src_devid cursor_left cursor_right cont_reading_from_srcdev_mode replace_state time_started time_stopped
                num_write_errors num_uncorrectable_read_errors)
            .into()
        }
        ItemType::STRING_ITEM => bytes(data),
        ItemType(0) if k.objectid == Key::FREE_SPACE => {
            let h = FreeSpaceHeader::parse(data)?;
            let mut map = numbers!(h, generation num_entries num_bitmaps);
            map.insert("location".to_owned(), key(&h.location.into()));
            map.into()
        }
        _ => return Ok(None),
    }))
}

fn inode(i: &InodeItem) -> Value {
    let mut map = numbers!(i, generation transid size nbytes block_group nlink uid gid mode rdev flags sequence);
    map.insert("flag_names".to_owned(), names!(InodeFlags::from_bits_retain(i.flags.get())).into());
    for (name, t) in [("atime", &i.atime), ("ctime", &i.ctime), ("mtime", &i.mtime), ("otime", &i.otime)] {
        map.insert(name.to_owned(), time(t));
    }
    map.into()
}

fn dir_entry(e: &DirEntryRef<'_>) -> Value {
    json!({
        "location": key(&e.location), "transid": e.transid.0, "type": e.file_type.to_disk(), "name": bytes(e.name),
        "data": bytes(e.data),
    })
}

fn file_extent(e: &FileExtent) -> Value {
    let disk = |kind: &str, e: &DiskExtent| {
        json!({
            "type": kind, "generation": e.generation.0, "ram_bytes": e.ram_bytes.0, "compression": e.compression.name(),
            "disk_bytenr": e.disk_bytenr.0, "disk_num_bytes": e.disk_num_bytes.0, "offset": e.offset.0,
            "num_bytes": e.num_bytes.0,
        })
    };
    match e {
        FileExtent::Regular(e) => disk("regular", e),
        FileExtent::Prealloc(e) => disk("prealloc", e),
        FileExtent::Inline { generation, ram_bytes, compression, data } => json!({
            "type": "inline", "generation": generation.0, "ram_bytes": ram_bytes.0, "compression": compression.name(),
            "size": data.len(), "data": hex(data),
        }),
    }
}

fn root(r: &RootItem) -> Value {
    let mut map = numbers!(r, generation root_dirid bytenr byte_limit bytes_used last_snapshot flags refs drop_level level
        generation_v2 ctransid otransid stransid rtransid);
    map.insert("inode".to_owned(), inode(&r.inode));
    map.insert("flag_names".to_owned(), names!(r.root_flags()).into());
    map.insert("drop_progress".to_owned(), key(&r.drop_progress.into()));
    for (name, value) in [("uuid", r.uuid), ("parent_uuid", r.parent_uuid), ("received_uuid", r.received_uuid)] {
        map.insert(name.to_owned(), uuid(value));
    }
    for (name, t) in [("ctime", &r.ctime), ("otime", &r.otime), ("stime", &r.stime), ("rtime", &r.rtime)] {
        map.insert(name.to_owned(), time(t));
    }
    map.into()
}

fn back_ref(r: &BackRef) -> Value {
    let kind = type_name(r.item_type());
    match *r {
        BackRef::Owner { root } | BackRef::TreeBlock { root } => json!({ "type": kind, "root": root.0 }),
        BackRef::SharedBlock { parent } => json!({ "type": kind, "parent": parent.0 }),
        BackRef::SharedData { parent, count } => json!({ "type": kind, "parent": parent.0, "count": count }),
        BackRef::Data { root, ino, offset, count } => {
            json!({ "type": kind, "root": root.0, "objectid": ino.0, "offset": offset, "count": count })
        }
    }
}

fn extent(k: &Key, e: &ExtentRecord) -> Value {
    let level = match e.tree_block {
        Some((_, level)) => Some(u64::from(level)),
        None => (k.item_type == ItemType::METADATA_ITEM).then_some(k.offset),
    };
    json!({
        "refs": e.refs, "generation": e.generation.0, "flags": e.flags.bits(), "flag_names": names!(e.flags), "level": level,
        "first_key": e.tree_block.map(|(first, _)| key(&first)), "inline": e.inline.iter().map(back_ref).collect::<Value>(),
    })
}

fn stripe(s: &Stripe) -> Value {
    json!({ "devid": s.devid.get(), "offset": s.offset.get(), "dev_uuid": uuid(s.dev_uuid) })
}

fn chunk(c: &Chunk) -> Value {
    json!({
        "length": c.length.0, "owner": c.owner.0, "stripe_len": c.stripe_len.0, "type": c.flags.bits(),
        "type_names": group_type(c.flags).split('|').collect::<Value>(), "io_align": c.io_align, "io_width": c.io_width,
        "sector_size": c.sector_size, "sub_stripes": c.sub_stripes, "stripes": c.stripes.iter().map(stripe).collect::<Value>(),
    })
}

fn device(d: &DevItem) -> Value {
    let mut map = numbers!(d, devid total_bytes bytes_used io_align io_width sector_size r#type generation start_offset dev_group
        seek_speed bandwidth);
    map.insert("uuid".to_owned(), uuid(d.uuid));
    map.insert("fsid".to_owned(), uuid(d.fsid));
    map.into()
}

fn balance(b: &BalanceItem) -> Value {
    let args = |a: &DiskBalanceArgs| {
        Value::from(
            numbers!(a, profiles usage devid pstart pend vstart vend target flags limit stripes_min stripes_max),
        )
    };
    json!({ "flags": b.flags.get(), "data": args(&b.data), "meta": args(&b.meta), "sys": args(&b.sys) })
}

fn backup(b: &RootBackup) -> Value {
    numbers!(b, tree_root tree_root_gen tree_root_level chunk_root chunk_root_gen chunk_root_level extent_root extent_root_gen
        extent_root_level fs_root fs_root_gen fs_root_level dev_root dev_root_gen dev_root_level csum_root csum_root_gen
        csum_root_level total_bytes bytes_used num_devices)
    .into()
}

/// A superblock with everything in it.
pub fn super_block(sb: &SuperBlock) -> Value {
    let mut map = numbers!(sb, bytenr flags generation root chunk_root log_root __unused_log_root_transid total_bytes bytes_used
        root_dir_objectid num_devices sectorsize nodesize __unused_leafsize stripesize sys_chunk_array_size
        chunk_root_generation compat_flags compat_ro_flags incompat_flags csum_type root_level chunk_root_level log_root_level
        cache_generation uuid_tree_generation nr_global_roots);
    if sb.remap_tree().is_some() {
        map.extend(numbers!(sb, remap_root remap_root_generation remap_root_level));
    }
    let features = sb.features();
    let chunks = match sb.parse_sys_chunks() {
        Ok(chunks) => chunks.iter().map(|(k, c)| json!({ "key": key(k), "item": chunk(c) })).collect(),
        Err(e) => json!({ "error": e.to_string() }),
    };
    for (name, value) in [
        ("csum", hex(&sb.csum).into()),
        ("csum_name", sb.csum().map(|c| c.name()).ok().into()),
        ("magic", bytes(&sb.magic)),
        ("fsid", uuid(sb.fsid)),
        ("metadata_uuid", sb.metadata_fsid().to_string().into()),
        ("label", bytes(sb.label())),
        ("flag_names", names!(sb.flags()).into()),
        ("compat_ro_names", names!(features.compat_ro).into()),
        ("incompat_names", names!(features.incompat).into()),
        ("dev_item", device(&sb.dev_item)),
        ("sys_chunks", chunks),
        ("backup_roots", sb.super_roots.iter().map(backup).collect()),
    ] {
        map.insert(name.to_owned(), value);
    }
    map.into()
}

/// A tree by number and name, for the head of a dump.
pub fn tree(id: TreeId) -> Value {
    json!({ "id": id.0, "name": tree_name(id) })
}
