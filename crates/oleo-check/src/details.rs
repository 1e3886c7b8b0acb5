//! Examines extents whose references do not add up: which reference is missing, stale, or miscounted.
//!
//! Runs only on a broken volume. The records of the first [`DETAILED_MAX`] such extents are read again, and all trees
//! are walked once more, keeping the references to these extents only.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use hashbrown::HashSet;
use oleo_format::{BackRef, CheckedNode, ExtentRecord, InlineRefs, ItemType, Key, data_use};

use crate::extents::extent_place;
use crate::finding::Kind;
use crate::input::{Input, TreeStart};
use crate::refs::{ExtentKind, Extents, RefKey};
use crate::walk::{Class, Context, Visit, Visitor, first_live_slot, walk};

/// How many extents are examined; the others are only counted.
const DETAILED_MAX: usize = 1000;
/// How many references of one extent are kept.
const REFS_MAX: usize = 100_000;

/// Reports what is wrong with references.
pub(crate) fn check_refs(
    cx: &Context<'_>,
    extents: &Extents,
    claiming: &[TreeStart],
    walked: &[TreeStart],
    root_data: &[(u64, RefKey)],
) {
    let bad: Vec<usize> = (0..extents.len()).filter(|&i| !extents.of[i].adds_up()).collect();
    if bad.is_empty() || cx.lost_extent.load(Ordering::Relaxed) {
        return;
    }
    let lost = cx.lost_any.load(Ordering::Relaxed);
    let (detailed, rest) = bad.split_at(bad.len().min(DETAILED_MAX));
    for &i in rest.iter().filter(|_| !lost) {
        cx.error(
            Kind::ExtentRefs,
            extent_place(extents.at[i]),
            "references that do not add up",
            "the same as the trees",
        );
    }
    let wanted: HashSet<u64> = detailed.iter().map(|&i| extents.at[i]).collect();
    let mut found: BTreeMap<(u64, RefKey), u64> = BTreeMap::new();
    let mut count = |at: u64, key: RefKey| {
        if wanted.contains(&at) {
            *found.entry((at, key)).or_default() += 1;
        }
    };
    for tree in walked {
        let key = match Class::of(tree.tree) {
            Class::Reloc => RefKey::Parent(tree.logical),
            _ => RefKey::Tree(tree.tree),
        };
        count(tree.logical.0, key);
    }
    root_data.iter().for_each(|(at, key)| count(*at, *key));
    for part in walk(cx, walked, &Again { extents, wanted: &wanted }) {
        part.into_iter().for_each(|(at, key)| count(at, key));
    }
    for &i in detailed {
        let at = extents.at[i];
        let claims = claims(cx, claiming, at);
        let of_trees: BTreeMap<RefKey, u64> =
            found.range((at, RefKey::MIN)..).take_while(|((a, _), _)| *a == at).map(|((_, k), n)| (*k, *n)).collect();
        if of_trees.is_empty() {
            // If blocks are lost, an extent that nothing is seen to use may have been used by them.
            if !lost {
                let have = format!("{} references and no user", claims.values().sum::<u64>());
                cx.error(Kind::ExtentUnused, extent_place(at), have, "a tree that uses it");
            }
            continue;
        }
        compare(cx, at, &claims, &of_trees, lost);
    }
}

fn compare(cx: &Context<'_>, at: u64, claims: &BTreeMap<RefKey, u64>, found: &BTreeMap<RefKey, u64>, lost: bool) {
    for (key, &claimed) in claims {
        match found.get(key) {
            None if !lost => {
                cx.error(Kind::ExtentRefStale, extent_place(at), format_args!("a reference by {key}"), "none");
            }
            Some(&there) if there > claimed || (there < claimed && !lost) => {
                let have = format!("count {claimed} of references by {key}");
                cx.error(Kind::ExtentRefCount, extent_place(at), have, there);
            }
            _ => {}
        }
    }
    for key in found.keys().filter(|key| !claims.contains_key(key)) {
        cx.error(Kind::ExtentRefMissing, extent_place(at), "no such reference", format_args!("a reference by {key}"));
    }
}

/// The references that the records claim for one extent.
fn claims(cx: &Context<'_>, claiming: &[TreeStart], at: u64) -> BTreeMap<RefKey, u64> {
    let mut all: BTreeMap<RefKey, u64> = BTreeMap::new();
    let mut add = |backref: &BackRef| {
        if let Some((key, count)) = RefKey::of(backref) {
            *all.entry(key).or_default() += u64::from(count);
        }
        if all.len() < REFS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let input = Input { volume: cx.volume };
    let (from, to) = (Key::new(at, ItemType(0), 0), Key::new(at, ItemType(u8::MAX), u64::MAX));
    for tree in claiming.iter().filter(|t| Class::of(t.tree) == Class::Extent) {
        input.each(tree, from, to, &mut |key, item| match key.item_type {
            ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => {
                let Ok((_, inline)) = ExtentRecord::parse_head(key, item) else { return ControlFlow::Continue(()) };
                InlineRefs(inline).flatten().try_for_each(|backref| add(&backref))
            }
            _ => BackRef::parse_keyed(key, item).map_or(ControlFlow::Continue(()), |backref| add(&backref)),
        });
    }
    all
}

/// Keeps the references to the extents in question.
struct Again<'a> {
    extents: &'a Extents,
    wanted: &'a HashSet<u64>,
}

impl Visitor for Again<'_> {
    type Out = Vec<(u64, RefKey)>;

    fn block(&self, node: &CheckedNode, visit: &Visit<'_>, out: &mut Self::Out) -> usize {
        let at = node.logical();
        let full = self.extents.get(at.0).is_some_and(|r| r.kind == ExtentKind::FullBlock);
        if !node.is_leaf() {
            let from = first_live_slot(node, visit);
            let key = if full { RefKey::Parent(at) } else { RefKey::Tree(node.owner()) };
            let children = node.key_ptrs()[from..].iter().map(|p| p.blockptr.get());
            out.extend(children.filter(|child| self.wanted.contains(child)).map(|child| (child, key)));
            return from;
        }
        if visit.class.is_shared() {
            for (key, item) in node.iter() {
                let Some(used) = data_use(&key, item).filter(|u| self.wanted.contains(&u.extent.0)) else { continue };
                let key = match full {
                    true => RefKey::DataParent(at),
                    false => RefKey::Data { root: node.owner(), ino: used.ino, offset: used.offset },
                };
                out.push((used.extent.0, key));
            }
        }
        0
    }
}
