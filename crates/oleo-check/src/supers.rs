//! Superblocks: compares every mirror of every device with the one the volume was opened with and with the trees.

use oleo_format::{BlockGroupFlags, Chunk, DevItem, Key, SUPER_LEN, SuperBlock};
use oleo_volume::{Volume, read_mirrors};
use zerocopy::IntoBytes;

use crate::finding::{Kind, Place};
use crate::walk::Context;

/// Checks every mirror of every device that is present.
pub(crate) fn check_mirrors(cx: &Context<'_>) {
    let main = &cx.env.sb;
    for info in cx.volume.devices() {
        let Some(device) = cx.volume.device(info.devid).filter(|_| !info.seed) else { continue };
        let place = Place { device: Some(info.devid.0), ..Place::default() };
        for (offset, mirror) in read_mirrors(&*device) {
            let first = offset == oleo_format::SUPER_OFFSETS[0];
            let sb = match mirror {
                Ok(sb) => sb,
                Err(e) => {
                    // Opening reads the first mirror alone, unless asked for another.
                    let have = format!("mirror at {offset}: {e}");
                    match first {
                        true => cx.error(Kind::SuperMirror, place.clone(), have, "a whole superblock"),
                        false => cx.warn(Kind::SuperMirror, place.clone(), have, "a whole superblock"),
                    }
                    continue;
                }
            };
            if sb.generation.get() < main.generation.get() {
                let have = format!("mirror at {offset} of generation {}", sb.generation);
                cx.warn(Kind::SuperStale, place.clone(), have, main.generation);
            } else if let Some(what) = difference(&sb, main) {
                let have = format!("mirror at {offset}: {what} differs");
                cx.error(Kind::SuperMirror, place.clone(), have, "the same in all mirrors");
            }
            if first && let Err(e) = sb.verify(offset) {
                cx.error(Kind::SuperBlock, place.clone(), format_args!("{} is {}", e.what, e.have), e.want);
            }
        }
    }
    if let Some(what) = main.unfinished() {
        cx.warn(Kind::SuperBlock, Place::default(), what, "nothing unfinished: the tool that began it has to end it");
    }
}

/// The field in which two superblocks of one transaction differ, apart from their position, their device, and the log:
/// an fsync writes the first mirrors alone.
fn difference(a: &SuperBlock, b: &SuperBlock) -> Option<&'static str> {
    let plain = |sb: &SuperBlock| {
        let mut sb = *sb;
        (sb.csum, sb.bytenr, sb.dev_item) = ([0; 32], 0.into(), DevItem::default());
        sb.drop_log();
        sb
    };
    let (a, b) = (plain(a), plain(b));
    let fields: [(&'static str, bool); 5] = [
        ("root", a.root == b.root && a.root_level == b.root_level),
        ("chunk_root", a.chunk_root == b.chunk_root && a.chunk_root_level == b.chunk_root_level),
        ("bytes_used", a.bytes_used == b.bytes_used),
        ("sys_chunk_array", a.sys_chunk_array == b.sys_chunk_array),
        ("a field", a.as_bytes() == b.as_bytes()),
    ];
    debug_assert_eq!(a.as_bytes().len(), SUPER_LEN);
    fields.into_iter().find(|(_, same)| !same).map(|(what, _)| what)
}

/// Compares the superblock with the chunk tree: system chunks and devices.
pub(crate) fn check_chunks(cx: &Context<'_>, chunks: &[(Key, Chunk)], dev_items: &[DevItem]) {
    let sb = &cx.env.sb;
    let place = Place::default();
    let Ok(array) = sb.parse_sys_chunks() else {
        cx.error(Kind::SuperSystemChunks, place, "an array that cannot be read", "chunks");
        return;
    };
    for (key, chunk) in &array {
        match chunks.iter().find(|(k, _)| k == key) {
            None => {
                let place = Place { key: Some(*key), ..Place::default() };
                cx.error(
                    Kind::SuperSystemChunks,
                    place,
                    "a chunk that the chunk tree has not",
                    "those of the chunk tree",
                );
            }
            Some((_, of_tree)) if of_tree != chunk => {
                let place = Place { key: Some(*key), ..Place::default() };
                let (have, want) = ("a chunk other than in the chunk tree", "the same");
                // Fields that have no effect on where the bytes are; nothing else compares them.
                let hints = Chunk {
                    owner: of_tree.owner,
                    io_align: of_tree.io_align,
                    io_width: of_tree.io_width,
                    sub_stripes: if chunk.flags.contains(BlockGroupFlags::RAID10) {
                        chunk.sub_stripes
                    } else {
                        of_tree.sub_stripes
                    },
                    ..chunk.clone()
                };
                match hints == *of_tree {
                    true => cx.warn(Kind::SuperSystemChunks, place, have, want),
                    false => cx.error(Kind::SuperSystemChunks, place, have, want),
                }
            }
            Some(_) => {}
        }
    }
    for (key, chunk) in chunks {
        let is_system = chunk.flags.contains(BlockGroupFlags::SYSTEM);
        if is_system && !array.iter().any(|(k, _)| k == key) {
            let place = Place { key: Some(*key), ..Place::default() };
            cx.error(Kind::SuperSystemChunks, place, "no such chunk", "every system chunk of the chunk tree");
        }
    }
    let count = dev_items.len() as u64;
    if sb.num_devices.get() != count {
        cx.error(Kind::SuperDevices, place.clone(), format_args!("num_devices {}", sb.num_devices), count);
    }
    let total = dev_items.iter().fold(0u64, |sum, item| sum.saturating_add(item.total_bytes.get()));
    if sb.total_bytes.get() != total {
        cx.error(Kind::SuperTotalBytes, place, sb.total_bytes, total);
    }
    check_dev_items(cx, cx.volume, dev_items);
}

/// Compares the copy of the device item in each device's superblock with the item.
fn check_dev_items(cx: &Context<'_>, volume: &Volume, dev_items: &[DevItem]) {
    for info in volume.devices() {
        let Some(device) = volume.device(info.devid).filter(|_| !info.seed && !info.stale) else { continue };
        let Ok(sb) = oleo_volume::read_super(&*device) else { continue };
        let Some(item) = dev_items.iter().find(|item| item.devid == sb.dev_item.devid) else { continue };
        let place = Place { device: Some(info.devid.0), ..Place::default() };
        let same = |a: &DevItem, b: &DevItem| {
            (a.uuid, a.fsid, a.total_bytes, a.bytes_used) == (b.uuid, b.fsid, b.total_bytes, b.bytes_used)
        };
        if !same(&sb.dev_item, item) {
            let show = |i: &DevItem| format!("total {} used {}", i.total_bytes, i.bytes_used);
            cx.error(Kind::SuperDevItem, place.clone(), show(&sb.dev_item), show(item));
        }
        if device.len() < item.total_bytes.get() {
            cx.error(Kind::DeviceSize, place, device.len(), format_args!("{} or more", item.total_bytes));
        }
    }
}
