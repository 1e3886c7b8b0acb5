//! The space and data of log trees. Their blocks, and the data that only they name, have no records yet and must not
//! overlap any record; data that is read through them has checksums, in the log or in the checksum tree.

use std::collections::{BTreeMap, BTreeSet};

use oleo_format::{CheckedNode, FileExtentItem, InodeFlags, InodeItem, ItemType, Key, RootItem, TreeId, data_use};

use crate::csums::Csums;
use crate::extents::extent_place;
use crate::finding::{Kind, Place};
use crate::input::TreeStart;
use crate::refs::Extents;
use crate::trees::Counts;
use crate::walk::{Context, Visit, Visitor, walk};
use crate::{prealloc, ranges};

/// Data that is read through a log.
struct Need {
    /// The subvolume the log belongs to, and the file.
    file: (u64, u64),
    key: Key,
    start: u64,
    len: u64,
}

#[derive(Default)]
struct LogPart {
    trees: Vec<TreeStart>,
    blocks: Vec<u64>,
    leaves: u64,
    data: Vec<(u64, u64)>,
    needs: Vec<Need>,
    /// Whether data of a file has checksums.
    files: Vec<((u64, u64), bool)>,
    /// Bytes with checksums: start, end.
    csums: Vec<(u64, u64)>,
}

struct LogVisitor {
    csum_len: usize,
    sectorsize: u64,
}

impl Visitor for LogVisitor {
    type Out = LogPart;

    fn block(&self, node: &CheckedNode, visit: &Visit<'_>, out: &mut LogPart) -> usize {
        out.blocks.push(node.logical().0);
        if node.is_leaf() {
            out.leaves += 1;
            node.iter().for_each(|(key, item)| self.item(visit.tree.key.offset, key, item, out));
        }
        0
    }
}

impl LogVisitor {
    fn item(&self, tree: u64, key: Key, item: &[u8], out: &mut LogPart) {
        let file = (tree, key.objectid);
        match key.item_type {
            ItemType::ROOT_ITEM => {
                out.trees.extend(RootItem::decode(item).ok().map(|item| TreeStart::of_item(key, item)));
            }
            ItemType::INODE_ITEM => {
                let flags = InodeItem::parse(item).map(|inode| InodeFlags::from_bits_retain(inode.flags.get()));
                out.files.extend(flags.ok().map(|flags| (file, !flags.contains(InodeFlags::NODATASUM))));
            }
            ItemType::EXTENT_DATA => {
                out.data.extend(data_use(&key, item).map(|used| (used.extent.0, used.len.0)));
                let range = prealloc::range_of(item, FileExtentItem::REG);
                out.needs.extend(range.map(|(start, len)| Need { file, key, start, len }));
            }
            ItemType::EXTENT_CSUM => {
                let len = (item.len() / self.csum_len) as u64 * self.sectorsize;
                out.csums.push((key.offset, key.offset.saturating_add(len)));
            }
            _ => {}
        }
    }
}

/// Walks the log, compares it with extents and checksums, and returns all data that it names: start and end, rising.
pub(crate) fn check_log(
    cx: &Context<'_>,
    root: &TreeStart,
    extents: &Extents,
    csums: &Csums,
    counts: &mut Counts,
) -> Vec<(u64, u64)> {
    let unit = u64::from(cx.env.rules.sectorsize);
    let visitor = LogVisitor { csum_len: cx.env.rules.csum.csum_len(), sectorsize: unit };
    let mut parts = walk(cx, std::slice::from_ref(root), &visitor);
    let trees: Vec<TreeStart> = parts.iter_mut().flat_map(|p| std::mem::take(&mut p.trees)).collect();
    parts.extend(walk(cx, &trees, &visitor));
    check_csums(cx, csums, &mut parts);
    let nodesize = u64::from(cx.env.rules.nodesize);
    let meets = |at: u64, len: u64| {
        let i = extents.first_beyond(at, unit);
        (i < extents.len() && extents.at[i] < at.saturating_add(len)).then(|| extents.at[i])
    };
    let mut only_log = BTreeSet::new();
    for part in &parts {
        counts.blocks += part.blocks.len() as u64;
        counts.log_blocks += part.blocks.len() as u64;
        counts.leaves += part.leaves;
        for &at in &part.blocks {
            if let Some(other) = meets(at, nodesize) {
                let have = format!("a block of a log tree over extent {other}");
                cx.error(Kind::LogSpace, extent_place(at), have, "space that no record has");
            }
        }
        for &(at, len) in &part.data {
            match extents.get(at) {
                Some(record) if record.is_data() && u64::from(record.sectors) * unit == len => {}
                _ => {
                    if let Some(other) = meets(at, len) {
                        let have = format!("data that a log tree names, {len} bytes, over extent {other}");
                        cx.error(Kind::LogSpace, extent_place(at), have, "that extent, or space that no record has");
                    } else {
                        only_log.insert(at);
                    }
                }
            }
        }
    }
    counts.log_extents = only_log.len() as u64;
    let ends = |&(at, len): &(u64, u64)| (at, at.saturating_add(len));
    ranges::joined(parts.iter().flat_map(|part| &part.data).map(ends).collect())
}

/// Checks that data read through a log has checksums: a replay copies those of the log into the checksum tree.
fn check_csums(cx: &Context<'_>, csums: &Csums, parts: &mut [LogPart]) {
    if cx.lost_any.load(std::sync::atomic::Ordering::Relaxed) {
        return;
    }
    let logged = Csums::of_runs(ranges::joined(parts.iter_mut().flat_map(|p| std::mem::take(&mut p.csums)).collect()));
    let files: BTreeMap<(u64, u64), bool> = parts.iter().flat_map(|part| part.files.iter().copied()).collect();
    for need in parts.iter().flat_map(|part| &part.needs) {
        // If a file's inode is not in the log, it is not known whether it has checksums.
        if files.get(&need.file) != Some(&true) {
            continue;
        }
        let end = need.start.saturating_add(need.len);
        let mut at = need.start;
        // `at` rises with every step, over runs that touch.
        while at < end
            && let Some(next) = logged.end_of_run(at).max(csums.end_of_run(at))
        {
            at = next;
        }
        if at < end {
            let place = Place { tree: Some(TreeId::TREE_LOG), key: Some(need.key), ..Place::default() };
            let have = format!("no checksum of {at}, of a file of tree {}", need.file.0);
            cx.error(Kind::LogCsum, place, have, format_args!("checksums of {}..{end}", need.start).to_string());
        }
    }
}
