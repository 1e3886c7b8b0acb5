//! Compares `docs/format.md` with the structures: its offsets, sizes, names, numbers and bytes are right.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;

use oleo_format::stream::{self, AttrKind, Command, CommandHead, CommandKind};
use oleo_format::*;
use uuid::Uuid;
use zerocopy::FromBytes;

/// A field: its offset, its size and its type's name.
type Field = (usize, usize, &'static str);

/// A structure as the code has it.
struct Structure {
    size: usize,
    fields: BTreeMap<&'static str, Field>,
}

/// The offset of the field, and its type, which is derived from the field itself.
macro_rules! structures {
    ($($name:ident { $($field:ident),* $(,)? })*) => {
        BTreeMap::from([$((stringify!($name), {
            #[allow(unused_variables, reason = "a structure without fields has none to ask")]
            let zero: $name = zerocopy::FromZeros::new_zeroed();
            let fields = BTreeMap::from([$((
                stringify!($field).trim_start_matches("r#"),
                (offset_of!($name, $field), size_of_val(&zero.$field), std::any::type_name_of_val(&zero.$field)),
            )),*]);
            Structure { size: size_of::<$name>(), fields }
        })),*])
    };
}

fn structures() -> BTreeMap<&'static str, Structure> {
    structures! {
        DiskKey { objectid, item_type, offset }
        SuperBlock {
            csum, fsid, bytenr, flags, magic, generation, root, chunk_root, log_root, __unused_log_root_transid,
            total_bytes, bytes_used, root_dir_objectid, num_devices, sectorsize, nodesize, __unused_leafsize,
            stripesize, sys_chunk_array_size, chunk_root_generation, compat_flags, compat_ro_flags, incompat_flags,
            csum_type, root_level, chunk_root_level, log_root_level, dev_item, label, cache_generation,
            uuid_tree_generation, metadata_uuid, nr_global_roots, remap_root, remap_root_generation, remap_root_level,
            reserved, sys_chunk_array, super_roots, padding,
        }
        RootBackup {
            tree_root, tree_root_gen, chunk_root, chunk_root_gen, extent_root, extent_root_gen, fs_root, fs_root_gen,
            dev_root, dev_root_gen, csum_root, csum_root_gen, total_bytes, bytes_used, num_devices, unused_64,
            tree_root_level, chunk_root_level, extent_root_level, fs_root_level, dev_root_level, csum_root_level,
            unused_8,
        }
        ChunkItem {
            length, owner, stripe_len, r#type, io_align, io_width, sector_size, num_stripes, sub_stripes,
        }
        Stripe { devid, offset, dev_uuid }
        DevItem {
            devid, total_bytes, bytes_used, io_align, io_width, sector_size, r#type, generation, start_offset,
            dev_group, seek_speed, bandwidth, uuid, fsid,
        }
        DevExtent { chunk_tree, chunk_objectid, chunk_offset, length, chunk_tree_uuid }
        Header { csum, fsid, bytenr, flags, chunk_tree_uuid, generation, owner, nritems, level }
        KeyPtr { key, blockptr, generation }
        DiskItem { key, offset, size }
        RootItem {
            inode, generation, root_dirid, bytenr, byte_limit, bytes_used, last_snapshot, flags, refs, drop_progress,
            drop_level, level, generation_v2, uuid, parent_uuid, received_uuid, ctransid, otransid, stransid,
            rtransid, ctime, otime, stime, rtime, reserved,
        }
        RootRef { dirid, sequence, name_len }
        InodeItem {
            generation, transid, size, nbytes, block_group, nlink, uid, gid, mode, rdev, flags, sequence, reserved,
            atime, ctime, mtime, otime,
        }
        Timespec { sec, nsec }
        InodeRef { index, name_len }
        InodeExtref { parent_objectid, index, name_len }
        DirItem { location, transid, data_len, name_len, r#type }
        FileExtentItem {
            generation, ram_bytes, compression, encryption, other_encoding, r#type, disk_bytenr, disk_num_bytes,
            offset, num_bytes,
        }
        FileExtentHead { generation, ram_bytes, compression, encryption, other_encoding, r#type }
        ExtentItem { refs, generation, flags }
        ExtentDataRef { root, objectid, offset, count }
        SharedDataRef { count }
        TreeBlockInfo { key, level }
        BlockGroupItem { used, chunk_objectid, flags }
        BlockGroupItemV2 { used, chunk_objectid, flags, remap_bytes, identity_remap_count }
        RemapItem { address }
        FreeSpaceInfo { extent_count, flags }
        QgroupStatusItem { version, generation, flags, rescan }
        QgroupInfoItem { generation, rfer, rfer_cmpr, excl, excl_cmpr }
        QgroupLimitItem { flags, max_rfer, max_excl, rsv_rfer, rsv_excl }
        DirLogItem { end }
    }
}

fn document() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format.md");
    std::fs::read_to_string(path).expect("docs/format.md is in the repository")
}

/// A row of a table of fields.
struct Row {
    at: usize,
    size: usize,
    /// As in the document: `` `field` ``, or `*what follows*`.
    field: String,
    bytes: Vec<u8>,
    /// Whether more bytes follow that are not shown.
    cut: bool,
    value: String,
}

/// The cells of a Markdown row.
fn cells(line: &str) -> Vec<&str> {
    line.trim().trim_matches('|').split('|').map(str::trim).collect()
}

fn hex(text: &str) -> Vec<u8> {
    text.split_whitespace().map(|b| u8::from_str_radix(b, 16).expect("bytes in hexadecimal")).collect()
}

/// Every table of fields: its name, the size behind the name, its rows.
fn tables(text: &str) -> Vec<(String, Option<usize>, Vec<Row>)> {
    let mut out: Vec<(String, Option<usize>, Vec<Row>)> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if let Some((name, rest)) = line.strip_prefix("**").and_then(|l| l.split_once("**")) {
            let size = rest.strip_prefix(", ").and_then(|r| r.strip_suffix(" bytes"));
            out.push((name.to_owned(), size.map(|n| n.parse().expect("a number of bytes")), Vec::new()));
            inside = true;
        } else if inside && line.starts_with('|') {
            let cells = cells(line);
            let Ok(at) = cells[0].parse() else { continue };
            let shown = cells[3].trim_matches('`');
            let row = Row {
                at,
                size: cells[1].parse().expect("a size"),
                field: cells[2].to_owned(),
                bytes: hex(shown.trim_end_matches('…')),
                cut: shown.ends_with('…'),
                value: cells[4].to_owned(),
            };
            out.last_mut().expect("a table has a name").2.push(row);
        } else if !line.is_empty() {
            inside = false;
        }
    }
    out
}

/// The number that a value names: decimal, negative or hexadecimal.
fn number(value: &str) -> Option<u64> {
    if let Some(digits) = value.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).ok();
    }
    value.parse().ok().or_else(|| value.parse::<i64>().ok().map(i64::cast_unsigned))
}

/// Whether these bytes mean this value.
fn means(bytes: &[u8], value: &str) -> bool {
    if let Some(text) = value.strip_prefix('"').and_then(|v| v.strip_suffix('"')) {
        return bytes.starts_with(text.as_bytes());
    }
    match bytes.len() {
        1 | 2 | 4 | 8 => {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            number(value) == Some(u64::from_le_bytes(padded))
        }
        12 => {
            let time = Timespec::parse(bytes).expect("12 bytes");
            format!("{}.{:09}", time.seconds(), time.nsec) == value
        }
        16 => Uuid::from_slice(bytes).expect("16 bytes").to_string() == value,
        17 => DiskKey::read_from_bytes(bytes).is_ok_and(|k| Key::from(k).to_string() == value),
        _ => false,
    }
}

/// Goal: no table of the document differs from the structure in the code. Method: offsets, sizes and names of all fields are
/// compared, each structure is there once and whole, and the bytes of the example mean the value beside them.
#[test]
fn tables_are_the_structures() {
    let structures = structures();
    let mut seen = BTreeSet::new();
    for (name, size, rows) in tables(&document()) {
        let mut end = 0;
        for row in &rows {
            let place = format!("{name}.{}", row.field);
            assert_eq!(row.at, end, "{place} does not begin at the end of the field before");
            end += row.size;
            assert!(row.cut || row.bytes.is_empty() || row.bytes.len() == row.size, "{place}: number of bytes");
            assert!(row.bytes.len() <= row.size, "{place}: too many bytes");
            let shown = row.value.is_empty() || means(&row.bytes, &row.value);
            assert!(shown, "{place}: {:02x?} is not {}", row.bytes, row.value);
        }
        let Some(structure) = structures.get(name.as_str()) else {
            assert_eq!(size, None, "{name} is no structure that this test knows");
            continue;
        };
        assert!(seen.insert(name.clone()), "{name} is there twice");
        assert_eq!(size, Some(structure.size), "{name}");
        let mut fields = BTreeSet::new();
        for row in rows.iter().filter(|r| r.at < structure.size) {
            let field = row.field.trim_matches('`');
            let (at, len, kind) = *structure.fields.get(field).unwrap_or_else(|| panic!("{name} has no {field}"));
            assert_eq!((row.at, row.size), (at, len), "{name}.{field}");
            let numeric = kind == "u8" || kind.starts_with("zerocopy::byteorder::U");
            assert!(!numeric || row.bytes.is_empty() || !row.value.is_empty(), "{name}.{field} has no value");
            fields.insert(field);
        }
        assert_eq!(fields, structure.fields.keys().copied().collect(), "fields of {name}");
    }
    assert_eq!(seen, structures.keys().map(|s| (*s).to_owned()).collect(), "structures of the document");
}

/// The bytes of the tables with this name, one behind the other.
fn example(text: &str, name: &str) -> Vec<u8> {
    let (_, _, rows) = tables(text).into_iter().find(|t| t.0 == name).expect("the table is there");
    rows.into_iter().flat_map(|r| r.bytes).collect()
}

/// Goal: examples are whole items. Method: the parsers accept them, with the contents that the text gives.
#[test]
fn examples_are_items() {
    let text = document();
    let entry = DirEntry::parse(&example(&text, "DirItem")).unwrap();
    assert_eq!(
        (entry.name.as_slice(), Key::dir_item(Ino(256), &entry.name).offset),
        (&b"hello.txt"[..], 1_096_805_209)
    );
    let name = InodeRefEntry::parse(&example(&text, "InodeRef")).unwrap();
    assert_eq!((name.index, name.name.as_slice()), (4, &b"hello.txt"[..]));
    assert_eq!(RootRefEntry::parse(&example(&text, "RootRef")).unwrap().name, b"snap");
    let FileExtent::Inline { data, .. } = FileExtent::parse(&example(&text, "FileExtentHead")).unwrap() else {
        panic!("the short file is inline")
    };
    assert_eq!(data, b"hello, world\n");
    assert!(matches!(FileExtent::parse(&example(&text, "FileExtentItem")).unwrap(), FileExtent::Regular(_)));
    let csums: Vec<u8> = [b'A', b'B', b'C'].iter().flat_map(|b| crc_of(*b)).collect();
    assert!(dumps(&text).contains(&csums), "the checksums of three sectors");
    let bytes = example(&text, "ExtentDataRef");
    let reference = ExtentDataRef::parse(&bytes).unwrap();
    let hash = data_ref_hash(TreeId(reference.root.get()), Ino(reference.objectid.get()), reference.offset.get());
    assert!(text.contains(&format!("{hash:#x}:")), "the hash of the reference");
}

fn crc_of(byte: u8) -> [u8; 4] {
    CsumType::Crc32c.csum(&[byte; 4096])[..4].try_into().expect("4 bytes")
}

/// The hexadecimal pictures: lines of an offset, bytes, and the bytes as text.
fn dumps(text: &str) -> Vec<Vec<u8>> {
    let mut out: Vec<Vec<u8>> = Vec::new();
    let mut next = None;
    for line in text.lines() {
        let Some((head, ascii)) = line.strip_suffix('|').and_then(|l| l.split_once("  |")) else {
            next = None;
            continue;
        };
        let Some((offset, bytes)) = head.split_once("  ") else { continue };
        let Ok(offset) = usize::from_str_radix(offset, 16) else { continue };
        let bytes = hex(bytes);
        let shown: String = bytes.iter().map(|b| if (32..127).contains(b) { char::from(*b) } else { '.' }).collect();
        assert_eq!(shown, ascii, "the text beside the bytes at {offset:#x}");
        match next {
            Some(at) => assert_eq!(at, offset, "offsets go on"),
            None => out.push(Vec::new()),
        }
        next = Some(offset + bytes.len());
        out.last_mut().expect("begun").extend(bytes);
    }
    out
}

/// Goal: the example of a stream is valid. Method: header, checksums and commands are parsed as a receiver does; the
/// tables of their headers have its bytes.
#[test]
fn the_stream_is_one() {
    let text = document();
    let dump = dumps(&text).into_iter().find(|d| d.starts_with(stream::MAGIC)).expect("a stream");
    let (head, mut rest) = dump.split_first_chunk::<{ stream::HEADER_LEN }>().unwrap();
    let version = stream::version(head).unwrap();
    let mut names = Vec::new();
    while let Some((head, after)) = rest.split_first_chunk::<{ stream::COMMAND_HEAD_LEN }>() {
        let command = CommandHead::parse(head);
        let (attrs, after) = after.split_at_checked(command.len as usize).expect("a whole command");
        assert_eq!(command.checksum(attrs), command.crc);
        names.push(Command::decode(version, command.kind, attrs).unwrap().kind().name());
        rest = after;
    }
    assert_eq!((names, rest), (vec!["subvol", "mkdir", "mkfile"], &[][..]));
    let sizes = |name| -> Vec<usize> {
        let (_, _, rows) = tables(&text).into_iter().find(|t| t.0 == name).expect("the table is there");
        rows.iter().map(|r| r.size).collect()
    };
    assert_eq!(sizes("StreamHeader"), [stream::MAGIC.len(), 4]);
    assert_eq!(sizes("CommandHeader"), [4, 2, 4]);
    assert_eq!(sizes("AttributeHeader"), [2, 2]);
    assert_eq!(example(&text, "CommandHeader"), dump[stream::HEADER_LEN..][..stream::COMMAND_HEAD_LEN]);
    assert_eq!(example(&text, "AttributeHeader"), dump[stream::HEADER_LEN + stream::COMMAND_HEAD_LEN..][..4]);
}

/// Goal: types, commands and attributes have the numbers that the document gives them.
#[test]
fn numbers_are_right() {
    let text = document();
    let (disk, stream) = text.split_once("## The send stream").expect("there is such a section");
    let mut types = 0;
    for row in disk.lines().filter(|l| l.starts_with("| `")).map(cells) {
        let Ok(number) = row[1].parse() else { continue };
        assert_eq!(ItemType(number).name(), Some(row[0].trim_matches('`')), "type {number}");
        types += 1;
    }
    assert!(types >= 30, "{types} types");
    let (mut commands, mut attributes) = (BTreeSet::new(), BTreeSet::new());
    for row in stream.lines().filter(|l| l.starts_with("| ")).map(cells) {
        if row.len() == 8 {
            for pair in row.chunks(2).filter(|p| !p[0].is_empty() && p[0] != "attribute") {
                let number = pair[1].parse().expect("a number");
                assert_eq!(AttrKind::from_number(number).map(AttrKind::name), Some(pair[0]), "attribute {number}");
                attributes.insert(number);
            }
        } else if row.len() == 3 && row[0] != "command" {
            let (numbers, since) = row[1].split_once(", version ").unwrap_or((row[1], "1"));
            let names = row[0].split(", ");
            for (name, number) in names.zip(numbers.split(", ")) {
                let kind = CommandKind::from_number(number.parse().expect("a number")).expect("a command");
                assert_eq!((kind.name(), kind.since().to_string().as_str()), (name, since));
                commands.insert(kind);
            }
        }
    }
    assert_eq!((commands.len(), attributes.len()), (CommandKind::ALL.len(), AttrKind::ALL.len()));
}
