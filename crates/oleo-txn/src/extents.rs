//! From delayed refs to extent items: what one drain of the ledger does to the extent tree.
//!
//! An extent has one main item (`EXTENT_ITEM`, or `METADATA_ITEM` for a tree block of a skinny volume) that holds its total
//! count, flags and, sorted, as many references inline as fit; the rest are items of their own behind it with the same
//! objectid. This module owns that layout.
//!
//! Normal path: (1) `settle_ledger` draws batches of heads, on as many threads as there are, and puts what comes of them
//! together in the order of addresses; `settle_heads` works through one; (2) an extent born in this transaction needs no look at the
//! tree; for every other head one cursor, moving forwards, collects its items (`Stored`); (3) the head's deltas are merged
//! and the extent's items written anew, deleted, or created; (4) what became used or free, what vanished unrecorded and how
//! many blocks each tree gained is told to the caller, who updates free space, checksums, block groups and root items.
//!
//! Invariants: no count goes below zero, a reference that is dropped exists, and the total equals the sum of the references:
//! each is checked here and is a typed error, since it means lost data otherwise.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use hashbrown::HashMap;
use oleo_format::{
    BackRef, ByteLen, Corruption, ExtentFlags, ExtentRecord, Generation, ItemType, Key, Logical, TreeId,
    extent_record_len_max,
};
use oleo_space::{Batch, ExtentKind, Head, Ledger, RefKey};
use oleo_tree::{Blocks, Change, Cursor, Op, TreeRoot};
use rayon::prelude::*;

use crate::TxnError;
use crate::free_runs::{Piece, Turn};

/// How extent items are written on this volume.
pub(crate) struct ItemRules {
    pub(crate) skinny: bool,
    pub(crate) nodesize: u32,
    pub(crate) generation: Generation,
    /// Inline references stop where the main item would grow past this.
    pub(crate) item_bytes_max: usize,
}

impl ItemRules {
    pub(crate) fn new(skinny: bool, nodesize: u32, generation: Generation) -> ItemRules {
        let item_bytes_max = extent_record_len_max(nodesize);
        ItemRules { skinny, nodesize, generation, item_bytes_max }
    }
}

/// What a drain did, besides the item changes.
#[derive(Default)]
pub(crate) struct Settled {
    pub(crate) changes: Vec<Change>,
    pub(crate) turns: Vec<(Piece, Turn)>,
    pub(crate) freed_data: Vec<(Logical, ByteLen)>,
    pub(crate) freed_blocks: Vec<Logical>,
    /// Born and dropped again before anything was recorded.
    pub(crate) vanished: Vec<(Logical, ByteLen)>,
    pub(crate) vanished_data: Vec<(Logical, ByteLen)>,
    /// Change in the number of tree blocks that each tree refers to by its own name.
    pub(crate) tree_blocks: HashMap<TreeId, i64>,
}

/// One extent's items as the tree has them.
struct Stored {
    main: Key,
    record: ExtentRecord,
    /// Keyed references: who, under which key, how often.
    keyed: BTreeMap<RefKey, (Key, u32)>,
}

fn lies(at: Logical, what: &'static str, have: impl ToString, want: impl ToString) -> TxnError {
    Corruption::new("extent tree", what, have.to_string(), want.to_string()).within(format!("extent {at}")).into()
}

/// The referrer and its count, or `None` for what is no reference.
fn split(r: &BackRef) -> Option<(RefKey, u32)> {
    Some(match *r {
        BackRef::TreeBlock { root } => (RefKey::TreeRoot(root), 1),
        BackRef::SharedBlock { parent } => (RefKey::TreeParent(parent), 1),
        BackRef::Data { root, ino, offset, count } => (RefKey::DataRoot { root, ino, offset }, count),
        BackRef::SharedData { parent, count } => (RefKey::DataParent(parent), count),
        BackRef::Owner { .. } => return None,
    })
}

fn back_ref(who: &RefKey, count: u32) -> BackRef {
    match *who {
        RefKey::TreeRoot(root) => BackRef::TreeBlock { root },
        RefKey::TreeParent(parent) => BackRef::SharedBlock { parent },
        RefKey::DataRoot { root, ino, offset } => BackRef::Data { root, ino, offset, count },
        RefKey::DataParent(parent) => BackRef::SharedData { parent, count },
    }
}

/// The key of a reference's own item. References whose hashes meet take the next free one.
fn key_for(at: Logical, who: &RefKey, taken: &BTreeMap<RefKey, (Key, u32)>) -> Key {
    let mut key = back_ref(who, 1).key(at);
    if matches!(who, RefKey::DataRoot { .. }) {
        // At most as many tries as there are references.
        for _ in 0..taken.len() {
            if !taken.values().any(|(k, _)| *k == key) {
                break;
            }
            key.offset = key.offset.wrapping_add(1);
        }
    }
    key
}

/// Collects the items of the extent at `at`; the cursor only ever moves forwards over the drain.
fn read_stored(cursor: &mut Cursor<'_>, at: Logical) -> Result<Option<Stored>, TxnError> {
    let mut stored: Option<Stored> = None;
    let mut more = cursor.seek(&Key::new(at.0, ItemType::EXTENT_ITEM, 0))?;
    while more {
        let Some((key, data)) = cursor.current() else { break };
        if key.objectid != at.0 || key.item_type > ItemType::SHARED_DATA_REF {
            break;
        }
        match (key.item_type, &mut stored) {
            (ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM, None) => {
                let record = ExtentRecord::parse(&key, data)?;
                stored = Some(Stored { main: key, record, keyed: BTreeMap::new() });
            }
            (_, Some(s)) => {
                let r = BackRef::parse_keyed(&key, data)?;
                let (who, count) = split(&r).ok_or_else(|| lies(at, "keyed reference", key, "a known one"))?;
                if s.keyed.insert(who, (key, count)).is_some() {
                    return Err(lies(at, "reference", key, "one item for each"));
                }
            }
            (_, None) => return Err(lies(at, "first item", key, "its extent item")),
        }
        more = cursor.next()?;
    }
    Ok(stored)
}

/// Records that a thread draws at once: enough that drawing costs little, few enough that all threads have work to the end.
const BATCH_RECORDS: usize = 4096;

/// Drains the ledger and works through all that it held; `None` where that was nothing. The caller sees to it that nobody
/// records meanwhile.
pub(crate) fn settle_ledger(
    ledger: &Ledger,
    rules: &ItemRules,
    blocks: &Blocks,
    extent_root: &TreeRoot,
) -> Result<Option<Settled>, TxnError> {
    let threads = ledger.len().div_ceil(BATCH_RECORDS).clamp(1, rayon::current_num_threads());
    let work = |_| {
        let draw = || Some(ledger.drain(BATCH_RECORDS)).filter(|batch| !batch.is_empty());
        let settle = |batch: Batch| {
            Ok((batch.heads().next().map(|head| head.at), settle_heads(&batch, rules, blocks, extent_root)?))
        };
        std::iter::from_fn(draw).map(settle).collect::<Result<Vec<_>, TxnError>>()
    };
    let done = if threads == 1 { vec![work(0)] } else { (0..threads).into_par_iter().map(work).collect() };
    let mut parts: Vec<_> = done.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    parts.sort_unstable_by_key(|(first, _)| *first);
    Ok(parts.into_iter().map(|(_, part)| part).reduce(|mut all, part| {
        all.append(part);
        all
    }))
}

impl Settled {
    /// Adds what came of higher addresses.
    fn append(&mut self, mut later: Settled) {
        self.changes.append(&mut later.changes);
        self.turns.append(&mut later.turns);
        self.freed_data.append(&mut later.freed_data);
        self.freed_blocks.append(&mut later.freed_blocks);
        self.vanished.append(&mut later.vanished);
        self.vanished_data.append(&mut later.vanished_data);
        for (tree, blocks) in later.tree_blocks {
            *self.tree_blocks.entry(tree).or_default() += blocks;
        }
    }
}

fn settle_heads(
    batch: &Batch,
    rules: &ItemRules,
    blocks: &Blocks,
    extent_root: &TreeRoot,
) -> Result<Settled, TxnError> {
    let mut out = Settled::default();
    let mut cursor = blocks.cursor(extent_root);
    for head in batch.heads() {
        let stored = if head.born { None } else { read_stored(&mut cursor, head.at)? };
        settle_one(&head, stored, rules, &mut out)?;
    }
    Ok(out)
}

fn settle_one(head: &Head<'_>, stored: Option<Stored>, rules: &ItemRules, out: &mut Settled) -> Result<(), TxnError> {
    let at = head.at;
    let data = matches!(head.kind, ExtentKind::Data);
    for (who, delta) in head.refs() {
        if let RefKey::TreeRoot(tree) = who {
            *out.tree_blocks.entry(tree).or_default() += i64::from(delta);
        }
    }
    if head.born && head.net() == 0 {
        if let Some((who, _)) = head.refs().next() {
            return Err(lies(at, "reference dropped", format!("{who:?}"), "one that was added"));
        }
        out.vanished.push((at, head.len));
        if data {
            out.vanished_data.push((at, head.len));
        } else {
            out.freed_blocks.push(at);
        }
        return Ok(());
    }
    let Some(mut s) = stored.or_else(|| head.born.then(|| fresh(head, rules))) else {
        return Err(lies(at, "extent item", "none", format!("one for {:?}", head.refs().next())));
    };
    // What the extent has now, by referrer; inline places are kept in order by the encoder.
    let mut inline: BTreeMap<RefKey, u32> = BTreeMap::new();
    let mut owner = None;
    for r in &s.record.inline {
        match split(r) {
            Some((who, count)) => {
                inline.insert(who, count);
            }
            None => owner = Some(*r),
        }
    }
    let had_keyed = !s.keyed.is_empty();
    let mut total = i128::from(s.record.refs);
    let mut touched: BTreeMap<Key, Option<(RefKey, u32)>> = BTreeMap::new();
    let mut fresh_refs: Vec<(RefKey, u32)> = Vec::new();
    for (who, delta) in head.refs() {
        total += i128::from(delta);
        let have = inline.get(&who).copied().or_else(|| s.keyed.get(&who).map(|(_, c)| *c));
        let now = i64::from(have.unwrap_or(0)) + i64::from(delta);
        let now =
            u32::try_from(now).map_err(|_| lies(at, "count of a reference", format!("{who:?} {now}"), "0 or more"))?;
        if data_less(&who) && now > 1 {
            return Err(lies(at, "count of a tree reference", format!("{who:?} {now}"), "0 or 1"));
        }
        if let Entry::Occupied(mut place) = inline.entry(who) {
            let _ = if now == 0 { place.remove() } else { place.insert(now) };
        } else if let Some((key, _)) = s.keyed.get(&who).copied() {
            if now == 0 {
                s.keyed.remove(&who);
                touched.insert(key, None);
            } else {
                s.keyed.insert(who, (key, now));
                touched.insert(key, Some((who, now)));
            }
        } else if now > 0 {
            fresh_refs.push((who, now));
        }
    }
    let piece = Piece { start: at.0, end: at.0 + head.len.0 };
    if total == 0 {
        if !inline.is_empty() || !s.keyed.is_empty() || !fresh_refs.is_empty() {
            return Err(lies(at, "references left", inline.len() + s.keyed.len(), 0));
        }
        out.changes.push(Change { key: s.main, op: Op::Delete });
        out.changes.extend(touched.into_keys().map(|key| Change { key, op: Op::Delete }));
        out.turns.push((piece, Turn::Free));
        if data {
            out.freed_data.push((at, head.len));
        } else {
            out.freed_blocks.push(at);
        }
        return Ok(());
    }
    if head.born {
        out.turns.push((piece, Turn::Used));
    }
    s.record.refs = u64::try_from(total).map_err(|_| lies(at, "total count", total, "0 or more"))?;
    if head.full_backref {
        s.record.flags |= ExtentFlags::FULL_BACKREF;
    }
    s.record.inline = owner.into_iter().collect();
    let mut bytes = s.record.encoded_len() + inline.keys().map(inline_len).sum::<usize>();
    fresh_refs.sort_unstable();
    for (who, count) in fresh_refs {
        // Where some references have items of their own, new ones join them: a reader that finds none inline looks there.
        if !had_keyed && s.keyed.is_empty() && bytes + inline_len(&who) <= rules.item_bytes_max {
            bytes += inline_len(&who);
            inline.insert(who, count);
        } else {
            let key = key_for(at, &who, &s.keyed);
            s.keyed.insert(who, (key, count));
            touched.insert(key, Some((who, count)));
        }
    }
    s.record.inline.extend(inline.iter().map(|(who, count)| back_ref(who, *count)));
    out.changes.push(Change { key: s.main, op: Op::Put(s.record.encode().into_boxed_slice()) });
    out.changes.extend(touched.into_iter().map(|(key, now)| Change {
        key,
        op: now.map_or(Op::Delete, |(who, count)| Op::Put(back_ref(&who, count).encode_keyed().into())),
    }));
    Ok(())
}

fn data_less(who: &RefKey) -> bool {
    matches!(who, RefKey::TreeRoot(_) | RefKey::TreeParent(_))
}

fn inline_len(who: &RefKey) -> usize {
    back_ref(who, 1).inline_len()
}

fn fresh(head: &Head<'_>, rules: &ItemRules) -> Stored {
    let (main, flags, tree_block) = match &head.kind {
        ExtentKind::Data => (Key::new(head.at.0, ItemType::EXTENT_ITEM, head.len.0), ExtentFlags::DATA, None),
        ExtentKind::Tree { level, .. } if rules.skinny => {
            (Key::new(head.at.0, ItemType::METADATA_ITEM, u64::from(*level)), ExtentFlags::TREE_BLOCK, None)
        }
        ExtentKind::Tree { level, first_key } => (
            Key::new(head.at.0, ItemType::EXTENT_ITEM, u64::from(rules.nodesize)),
            ExtentFlags::TREE_BLOCK,
            Some((*first_key, *level)),
        ),
    };
    let record = ExtentRecord { refs: 0, generation: rules.generation, flags, tree_block, inline: Vec::new() };
    Stored { main, record, keyed: BTreeMap::new() }
}

/// Count and flags of the extent at `at` as the extent tree has them.
pub(crate) fn stored_state(cursor: &mut Cursor<'_>, at: Logical) -> Result<Option<(u64, bool)>, TxnError> {
    if !cursor.seek(&Key::new(at.0, ItemType::EXTENT_ITEM, 0))? {
        return Ok(None);
    }
    let Some((key, data)) = cursor.current() else { return Ok(None) };
    if key.objectid != at.0 || !matches!(key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM) {
        return Ok(None);
    }
    let record = ExtentRecord::parse(&key, data)?;
    Ok(Some((record.refs, record.flags.contains(ExtentFlags::FULL_BACKREF))))
}

/// Who refers to the extent at `at`, as the extent tree has it; nobody where it is not in there yet.
pub(crate) fn stored_users(cursor: &mut Cursor<'_>, at: Logical) -> Result<Vec<RefKey>, TxnError> {
    let Some(stored) = read_stored(cursor, at)? else { return Ok(Vec::new()) };
    let inline = stored.record.inline.iter().filter_map(split).map(|(who, _)| who);
    Ok(inline.chain(stored.keyed.into_keys()).collect())
}
