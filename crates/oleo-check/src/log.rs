//! Log trees as far as space is concerned: their blocks and the data that only they name have no records yet, and must not
//! lie where a record is.

use std::collections::BTreeSet;

use oleo_format::{CheckedNode, ItemType, RootItem, data_use};

use crate::extents::extent_place;
use crate::feed::{Feed, TreeStart};
use crate::finding::Kind;
use crate::refs::Extents;
use crate::trees::Counts;
use crate::walk::{Context, Visit, Visitor, walk};

#[derive(Default)]
struct LogPart {
    trees: Vec<TreeStart>,
    blocks: Vec<u64>,
    leaves: u64,
    data: Vec<(u64, u64)>,
}

struct LogVisitor;

impl Visitor for LogVisitor {
    type Out = LogPart;

    fn block(&self, node: &CheckedNode, _: &Visit<'_>, out: &mut LogPart) -> usize {
        out.blocks.push(node.logical().0);
        if node.is_leaf() {
            out.leaves += 1;
            for (key, item) in node.iter() {
                if key.item_type == ItemType::ROOT_ITEM
                    && let Ok(item) = RootItem::decode(item)
                {
                    out.trees.push(TreeStart::of_item(key, item));
                }
                out.data.extend(data_use(&key, item).map(|used| (used.extent.0, used.len.0)));
            }
        }
        0
    }
}

/// Walks the log and sets it against the extents.
pub(crate) fn judge_log(cx: &Context<'_>, _feed: &Feed<'_>, root: &TreeStart, extents: &Extents, counts: &mut Counts) {
    let mut parts = walk(cx, std::slice::from_ref(root), &LogVisitor);
    let trees: Vec<TreeStart> = parts.iter_mut().flat_map(|p| std::mem::take(&mut p.trees)).collect();
    parts.extend(walk(cx, &trees, &LogVisitor));
    let unit = u64::from(cx.env.rules.sectorsize);
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
}
