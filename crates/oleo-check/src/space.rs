//! Chunks, device extents, block groups and free space: the same facts in several forms, compared with each other.

use std::sync::atomic::Ordering;

use oleo_format::{BlockGroupFlags, ByteLen, Chunk, DevExtent, DevId, DevItem, FreeSpaceFlags, Key, Logical, TreeId};
use oleo_volume::{ChunkMap, Profile};

use crate::extents::{Group, extent_place};
use crate::finding::{Kind, Place};
use crate::ranges::without;
use crate::refs::Extents;
use crate::trees::FreeItem;
use crate::walk::Context;

fn device_place(devid: u64, offset: u64) -> Place {
    let key = Key::new(devid, oleo_format::ItemType::DEV_EXTENT, offset);
    Place { tree: Some(TreeId::DEV), key: Some(key), device: Some(devid), ..Place::default() }
}

fn chunk_place(start: u64) -> Place {
    Place { tree: Some(TreeId::CHUNK), block: Some(Logical(start)), ..Place::default() }
}

fn group_place(group: &Group) -> Place {
    Place { tree: Some(group.tree), block: Some(Logical(group.start)), ..Place::default() }
}

/// A part of a device: device, offset, length, chunk.
type Stripe = (u64, u64, u64, u64);

/// Compares stripes of chunks with device extents, and these with each other and with the devices.
pub(crate) fn check_devices(
    cx: &Context<'_>,
    chunks: &[(Key, Chunk)],
    dev_items: &[DevItem],
    dev_extents: &[(Key, DevExtent)],
) {
    let mut stripes: Vec<Stripe> = Vec::new();
    for (key, chunk) in chunks {
        let Some(profile) = Profile::of(chunk.flags) else { continue };
        let len = chunk.length.0 / profile.data_stripes(chunk.stripes.len() as u64).max(1);
        for stripe in &chunk.stripes {
            stripes.push((stripe.devid.get(), stripe.offset.get(), len, key.offset));
            let item = dev_items.iter().find(|item| item.devid == stripe.devid);
            if item.is_none_or(|item| item.uuid != stripe.dev_uuid) {
                let have = format!("a stripe on device {}", stripe.devid);
                cx.error(Kind::ChunkDevice, chunk_place(key.offset), have, "a device that has an item, and its uuid");
            }
        }
    }
    let mut extents: Vec<Stripe> =
        dev_extents.iter().map(|(key, e)| (key.objectid, key.offset, e.length.get(), e.chunk_offset.get())).collect();
    stripes.sort_unstable();
    extents.sort_unstable();
    let show = |s: &Stripe| format!("device {} {}+{} of chunk {}", s.0, s.1, s.2, s.3);
    for stripe in stripes.iter().filter(|s| extents.binary_search(s).is_err()) {
        cx.error(Kind::ChunkStripe, chunk_place(stripe.3), show(stripe), "a device extent that says the same");
    }
    for extent in extents.iter().filter(|e| stripes.binary_search(e).is_err()) {
        cx.error(Kind::DevExtent, device_place(extent.0, extent.1), show(extent), "a stripe of a chunk");
    }
    for pair in extents.windows(2) {
        if pair[0].0 == pair[1].0 && pair[0].1.saturating_add(pair[0].2) > pair[1].1 {
            cx.error(Kind::DevExtentOverlap, device_place(pair[1].0, pair[1].1), show(&pair[1]), "no overlap");
        }
    }
    for item in dev_items {
        let devid = item.devid.get();
        let of = extents.iter().filter(|e| e.0 == devid);
        let used = stripes.iter().filter(|s| s.0 == devid).fold(0u64, |sum, s| sum.saturating_add(s.2));
        let place = Place { tree: Some(TreeId::CHUNK), device: Some(devid), ..Place::default() };
        if item.bytes_used.get() != used {
            cx.error(Kind::DevItemUsed, place, item.bytes_used, used);
        }
        if let Some(beyond) = { of }.find(|e| e.1.saturating_add(e.2) > item.total_bytes.get()) {
            let want = format!("before {}", item.total_bytes);
            cx.error(Kind::DevExtentBeyond, device_place(devid, beyond.1), show(beyond), want);
        }
    }
    for extent in &extents {
        if !dev_items.iter().any(|item| item.devid.get() == extent.0) && cx.volume.device(DevId(extent.0)).is_none() {
            cx.error(Kind::DevExtent, device_place(extent.0, extent.1), show(extent), "a device that has an item");
        }
    }
}

/// Compares block groups with chunks. Returns one group for each chunk, as long as the chunk, also for those that are
/// missing.
pub(crate) fn check_groups(cx: &Context<'_>, chunks: &[(Key, Chunk)], groups: &[Group]) -> Vec<Group> {
    let home = if cx.env.rules.features.block_group_tree() { TreeId::BLOCK_GROUP } else { TreeId::EXTENT };
    let mut of_chunks: Vec<Option<Group>> = vec![None; chunks.len()];
    for group in groups {
        let Ok(i) = chunks.binary_search_by_key(&group.start, |(key, _)| key.offset) else {
            cx.error(Kind::GroupWithoutChunk, group_place(group), "a block group", "a chunk there");
            continue;
        };
        let chunk = &chunks[i].1;
        if chunk.length.0 != group.len {
            cx.error(Kind::GroupLength, group_place(group), group.len, chunk.length);
        }
        if chunk.flags != group.flags {
            let show = |f: BlockGroupFlags| format!("{:#x}", f.bits());
            cx.error(Kind::GroupFlags, group_place(group), show(group.flags), show(chunk.flags));
        }
        if group.tree != home {
            cx.error(Kind::GroupTree, group_place(group), group.tree, home);
        }
        of_chunks[i] = Some(Group { len: chunk.length.0, flags: chunk.flags, ..*group });
    }
    for pair in groups.windows(2) {
        if pair[0].start.saturating_add(pair[0].len) > pair[1].start {
            cx.error(Kind::GroupOverlap, group_place(&pair[1]), pair[1].start, "an address behind the group before it");
        }
    }
    let lost = cx.lost_extent.load(Ordering::Relaxed);
    let complete = |(of_chunk, (key, chunk)): (Option<Group>, &(Key, Chunk))| {
        of_chunk.unwrap_or_else(|| {
            if !lost {
                cx.error(Kind::ChunkWithoutGroup, chunk_place(key.offset), "no block group", "one");
            }
            Group { start: key.offset, len: chunk.length.0, used: None, flags: chunk.flags, tree: home }
        })
    };
    of_chunks.into_iter().zip(chunks).map(complete).collect()
}

/// Compares extents with the block groups that they are in.
pub(crate) fn check_used(cx: &Context<'_>, groups: &[Group], extents: &Extents) {
    let unit = u64::from(cx.env.rules.sectorsize);
    let mut used = vec![0u64; groups.len()];
    let supers: Vec<(u64, u64)> =
        groups.iter().flat_map(|group| ranges_in(cx, group, ChunkMap::super_ranges)).collect();
    for i in 0..extents.len() {
        let (start, end) = (extents.at[i], extents.end(i, unit));
        if let Some(mirror) = supers.get(supers.partition_point(|mirror| mirror.1 <= start)).filter(|m| m.0 < end) {
            let have = format_args!("{start}..{end}").to_string();
            let want = format_args!("nothing in {}..{}", mirror.0, mirror.1).to_string();
            cx.error(Kind::ExtentOverSuper, extent_place(start), have, want);
        }
        if start == 0 {
            // No superblock and no item can name it, since 0 means none.
            cx.error(Kind::ExtentOverSuper, extent_place(start), "an extent", "nothing at address 0");
        }
        let at = groups.partition_point(|g| g.start <= start).checked_sub(1);
        let Some((at, group)) = at.map(|at| (at, &groups[at])).filter(|(_, g)| end <= g.start.saturating_add(g.len))
        else {
            cx.error(Kind::ExtentGroup, extent_place(start), format_args!("{start}..{end}"), "inside one block group");
            continue;
        };
        used[at] += end - start;
        let fits = match extents.of[i].is_data() {
            true => group.flags.contains(BlockGroupFlags::DATA),
            false => group.flags.intersects(BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM),
        };
        if !fits {
            let have = if extents.of[i].is_data() { "data" } else { "a tree block" };
            cx.error(Kind::ExtentGroup, extent_place(start), have, format_args!("what fits {:?}", group.flags));
        }
    }
    if cx.lost_extent.load(Ordering::Relaxed) {
        return;
    }
    for (group, used) in groups.iter().zip(&used) {
        if let Some(have) = group.used.filter(|have| have != used) {
            cx.error(Kind::GroupUsed, group_place(group), have, used);
        }
    }
    let total = used.iter().sum::<u64>();
    if cx.env.sb.bytes_used.get() != total {
        cx.error(Kind::SuperBytesUsed, Place::default(), cx.env.sb.bytes_used, total);
    }
}

/// Compares the free-space tree with what the extent tree leaves free. Space under superblock mirrors is never
/// allocated, so what the tree says of it does not matter.
pub(crate) fn check_free_space(cx: &Context<'_>, groups: &[Group], extents: &Extents, free: &mut [FreeItem]) {
    // By address; an info item sorts before the entry that begins with it.
    free.sort_unstable_by_key(|item| match *item {
        FreeItem::Info(at, len, ..) => (at, 0, len),
        FreeItem::Bitmap(at, len) => (at, 1, len),
        FreeItem::Extent(at, len) | FreeItem::Bits(at, len) => (at, 2, len),
    });
    let at = |item: &FreeItem| match *item {
        FreeItem::Info(at, ..) | FreeItem::Extent(at, _) | FreeItem::Bitmap(at, _) | FreeItem::Bits(at, _) => at,
    };
    // mkfs.btrfs (until 6.x) leaves entries for its first groups, which it replaces. Addresses only rise, so nothing is
    // ever allocated there again.
    let first = groups.first().map_or(0, |group| group.start);
    let (leftovers, mut rest) = free.split_at(free.partition_point(|item| at(item) < first));
    let mut leftover = 0..0;
    for item in leftovers {
        let (kind, at, len) = match *item {
            FreeItem::Info(at, len, ..) => {
                leftover = at..at.saturating_add(len);
                (Kind::FreeSpaceLeftover, at, len)
            }
            FreeItem::Extent(at, len) | FreeItem::Bitmap(at, len)
                if !leftover.contains(&at) || at.saturating_add(len) > leftover.end =>
            {
                (Kind::FreeSpaceStray, at, len)
            }
            _ => continue,
        };
        cx.warn(kind, free_place(at), format_args!("{at}+{len}").to_string(), "inside a block group");
    }
    for group in groups {
        let end = group.start.saturating_add(group.len);
        let (before, from) = rest.split_at(rest.partition_point(|item| at(item) < group.start));
        strays(cx, before);
        let (of_group, after) = from.split_at(from.partition_point(|item| at(item) < end));
        check_group_free(cx, group, extents, of_group);
        rest = after;
    }
    strays(cx, rest);
}

fn free_place(start: u64) -> Place {
    Place { tree: Some(TreeId::FREE_SPACE), block: Some(Logical(start)), ..Place::default() }
}

fn strays(cx: &Context<'_>, items: &[FreeItem]) {
    for item in items {
        if let FreeItem::Info(at, len, ..) | FreeItem::Extent(at, len) | FreeItem::Bitmap(at, len) = *item {
            cx.error(Kind::FreeSpaceStray, free_place(at), format_args!("{at}+{len}"), "inside a block group");
        }
    }
}

fn check_group_free(cx: &Context<'_>, group: &Group, extents: &Extents, items: &[FreeItem]) {
    let unit = u64::from(cx.env.rules.sectorsize);
    let mut info = None;
    let mut runs: Vec<(u64, u64)> = Vec::new();
    let (mut extent_items, mut bitmaps) = (0u64, 0u64);
    for item in items {
        let (at, len) = match *item {
            FreeItem::Info(at, len, count, flags) => {
                if (at, len) != (group.start, group.len) || info.is_some() {
                    let have = format_args!("{at}+{len}").to_string();
                    cx.error(Kind::FreeSpaceStray, free_place(at), have, format_args!("{}+{}", group.start, group.len));
                }
                info.get_or_insert((count, flags));
                continue;
            }
            FreeItem::Bitmap(at, len) => {
                bitmaps += 1;
                if at.saturating_add(len) > group.start.saturating_add(group.len) {
                    cx.error(Kind::FreeSpaceStray, free_place(at), format_args!("{at}+{len}"), "inside its group");
                }
                continue;
            }
            FreeItem::Extent(at, len) => {
                extent_items += 1;
                (at, len)
            }
            FreeItem::Bits(at, len) => (at, len),
        };
        let end = at.saturating_add(len);
        if end > group.start.saturating_add(group.len) {
            cx.error(Kind::FreeSpaceStray, free_place(at), format_args!("{at}..{end}"), "inside its group");
        }
        match runs.last_mut() {
            // Bitmaps may touch each other; extents never do.
            Some((_, last)) if *last == at && bitmaps > 0 => *last = end,
            _ => runs.push((at, end)),
        }
    }
    let Some((count, flags)) = info else {
        cx.error(Kind::FreeSpaceInfo, free_place(group.start), "no FREE_SPACE_INFO", "one for each block group");
        return;
    };
    if u64::from(count) != runs.len() as u64 {
        cx.error(Kind::FreeSpaceInfo, free_place(group.start), format_args!("extent_count {count}"), runs.len());
    }
    let uses_bitmaps = flags & FreeSpaceFlags::USING_BITMAPS.bits() != 0;
    if (uses_bitmaps && extent_items > 0) || (!uses_bitmaps && bitmaps > 0) {
        let have = format!("{extent_items} extents and {bitmaps} bitmaps with flags {flags:#x}");
        cx.error(Kind::FreeSpaceInfo, free_place(group.start), have, "one or the other, as the flags say");
    }
    if cx.lost_extent.load(Ordering::Relaxed) {
        return;
    }
    // The free space according to the extent tree.
    let end = group.start.saturating_add(group.len);
    let mut want: Vec<(u64, u64)> = Vec::new();
    let mut next = group.start;
    let mut i = extents.first_beyond(group.start, unit);
    while i < extents.len() && extents.at[i] < end {
        if extents.at[i] > next {
            want.push((next, extents.at[i]));
        }
        next = next.max(extents.end(i, unit));
        i += 1;
    }
    if next < end {
        want.push((next, end));
    }
    if runs == want {
        return;
    }
    let withheld = ranges_in(cx, group, ChunkMap::withheld_ranges);
    let (have, want) = (without(&runs, &withheld), without(&want, &withheld));
    for (start, end) in without(&have, &want) {
        let have = format!("{start}..{end} is free");
        cx.error(Kind::FreeSpaceUsed, free_place(start), have, "used by an extent");
    }
    for (start, end) in without(&want, &have) {
        let have = format!("{start}..{end} is not there");
        cx.error(Kind::FreeSpaceMissing, free_place(start), have, "free: no extent is there");
    }
}

/// Ranges of a group's chunk, from `start` to `end`.
fn ranges_in(cx: &Context<'_>, group: &Group, of: fn(&ChunkMap) -> Vec<(Logical, ByteLen)>) -> Vec<(u64, u64)> {
    let ranges = cx.volume.chunk_of(Logical(group.start)).map_or_else(|_| Vec::new(), |map| of(&map));
    ranges.iter().map(|(at, len)| (at.0, at.0 + len.0)).collect()
}
