//! Preallocated data that has checksums. It is sound only if another file has written it.
//!
//! A clone of a preallocated extent that was written in place may become durable before the file that wrote it: a log
//! has the clone, with its checksums, while the first file still lists the extent as preallocated. The next writer of
//! that file finds the extent shared and writes elsewhere. So if there is such data, all trees of files are walked once
//! more to find its writers.

use std::collections::BTreeMap;

use oleo_format::{CheckedNode, FileExtentItem, ItemType};

use crate::csums::Csums;
use crate::finding::{Kind, Place};
use crate::input::TreeStart;
use crate::ranges::{joined, overlapping};
use crate::walk::{Class, Context, Visit, Visitor, first_live_slot, walk};

/// Preallocated ranges with checksums (start and length), and one place where each was found. A range is listed once,
/// however many snapshots share it.
pub(crate) type Suspects = BTreeMap<(u64, u64), Place>;

/// The range of data that an item names, if the item is of this type. For a compressed extent it is the whole extent,
/// which is read whole.
pub(crate) fn range_of(item: &[u8], wanted: u8) -> Option<(u64, u64)> {
    let extent = FileExtentItem::parse(item).ok().filter(|e| e.r#type == wanted && e.disk_bytenr.get() != 0)?;
    let at = extent.disk_bytenr.get();
    Some(match extent.compression {
        0 => (at.saturating_add(extent.offset.get()), extent.num_bytes.get()),
        _ => (at, extent.disk_num_bytes.get()),
    })
}

/// Reports the ranges that no file has written.
pub(crate) fn check(cx: &Context<'_>, csums: &Csums, trees: &[TreeStart], suspects: Suspects) {
    if suspects.is_empty() {
        return;
    }
    let of = joined(suspects.keys().map(|&(start, len)| (start, start.saturating_add(len))).collect());
    let written = joined(walk(cx, trees, &Writers { of: &of }).into_iter().flatten().collect());
    for ((start, len), place) in suspects {
        let end = start.saturating_add(len);
        let by_writers: u64 = overlapping(&written, start, end)
            .iter()
            .map(|run| csums.covered(run.0.max(start), run.1.min(end) - run.0.max(start)))
            .sum();
        let odd = csums.covered(start, len).saturating_sub(by_writers);
        if odd > 0 {
            cx.error(Kind::CsumOdd, place, format_args!("checksums of {odd} bytes"), "none: preallocated");
        }
    }
}

/// Collects the parts of the ranges that files have written.
struct Writers<'a> {
    of: &'a [(u64, u64)],
}

impl Visitor for Writers<'_> {
    type Out = Vec<(u64, u64)>;

    fn block(&self, node: &CheckedNode, visit: &Visit<'_>, out: &mut Self::Out) -> usize {
        if !node.is_leaf() {
            return first_live_slot(node, visit);
        }
        if visit.class == Class::Files {
            for (_, item) in node.iter().filter(|(key, _)| key.item_type == ItemType::EXTENT_DATA) {
                let Some((start, len)) = range_of(item, FileExtentItem::REG) else { continue };
                let end = start.saturating_add(len);
                if !overlapping(self.of, start, end).is_empty() {
                    out.push((start, end));
                }
            }
        }
        0
    }
}
