//! From delayed refs to extent items: what one drain of the ledger does to the extent tree.
//!
//! An extent has one main item (`EXTENT_ITEM`, or `METADATA_ITEM` for a tree block of a skinny volume) that holds its total
//! count, flags and, sorted, as many references inline as fit; the rest are items of their own behind it with the same
//! objectid. This module owns that layout.
//!
//! Normal path: (1) `settle_ledger` draws batches of heads, on as many threads as there are, and puts what comes of them
//! together in the order of addresses; `settle_heads` works through one; (2) an extent made in this transaction needs
//! no look at the tree; for every other head one cursor reads its main item and those references that the head names,
//! never all: an extent may have a million; (3) the head's deltas are merged and the extent's items written anew,
//! deleted, or created; (4) what became used or free, what vanished unrecorded and how many blocks each tree gained is
//! returned to the caller, which updates free space, checksums, block groups and root items.
//!
//! A reference by a file has its hash for a key; if two meet, the later one takes the next offset that is free. What was
//! before it may be gone since, so a search goes on over gaps: for one that is dropped until it is found, for one that is added as
//! far as such rows are long ([`CHAIN_LIKELY`]).
//!
//! Invariants: no count goes below zero, a reference that is dropped exists, and the total equals the sum of the references:
//! each is checked here and is a typed error, since it means lost data otherwise.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::ControlFlow;

use hashbrown::HashMap;
use oleo_format::{
    BackRef, ByteLen, Corruption, ExtentFlags, ExtentRecord, Generation, ItemType, Key, Logical, TreeId,
    extent_record_len_max,
};
use oleo_space::{Batch, ExtentKind, Head, Ledger, RefKey};
use oleo_tree::{Blocks, Change, Cursor, Op, TreeRoot};
use rayon::prelude::*;

use crate::TxnError;
use crate::free_runs::{FreeSpaceChange, Piece};
use crate::quota::simple::{Owned, OwnedBytes};

/// How extent items are written on this volume.
pub(crate) struct ItemRules<'q> {
    pub(crate) skinny: bool,
    pub(crate) nodesize: u32,
    pub(crate) generation: Generation,
    /// Bytes of the main item; references that would make it longer get items of their own.
    pub(crate) item_bytes_max: usize,
    /// Simple quotas are on.
    owned: Option<Owned<'q>>,
}

impl<'q> ItemRules<'q> {
    pub(crate) fn new(skinny: bool, nodesize: u32, generation: Generation) -> ItemRules<'q> {
        let item_bytes_max = extent_record_len_max(nodesize);
        ItemRules { skinny, nodesize, generation, item_bytes_max, owned: None }
    }

    /// The same, with simple quotas.
    pub(crate) fn owned(self, owned: Option<Owned<'q>>) -> ItemRules<'q> {
        ItemRules { owned, ..self }
    }
}

/// What a drain did, besides the item changes.
#[derive(Default)]
pub(crate) struct Settled {
    pub(crate) changes: Vec<Change>,
    pub(crate) space_changes: Vec<(Piece, FreeSpaceChange)>,
    pub(crate) freed_data: Vec<(Logical, ByteLen)>,
    pub(crate) freed_blocks: Vec<Logical>,
    /// Born and dropped again before anything was recorded.
    pub(crate) vanished: Vec<(Logical, ByteLen)>,
    pub(crate) vanished_data: Vec<(Logical, ByteLen)>,
    /// Change in the number of tree blocks that each tree refers to by its own name.
    pub(crate) tree_blocks: HashMap<TreeId, i64>,
    /// Items of references that were looked for or met: a measure of work.
    pub(crate) items_read: u64,
    /// With simple quotas: bytes that subvolumes came to own.
    pub(crate) owned: OwnedBytes,
}

/// How far from its hash a file's reference may be: an extent never had more references than that at a time.
const CHAIN_MAX: u64 = 1 << 32;

/// How far from its hash a reference is looked for that is added to, and may be new. Hashes of one tree's references are spread over
/// 2³² keys: a million of them leave one other within this reach. Only somebody who makes thousands meet on purpose gets a reference
/// into two items, which counts the same.
const CHAIN_LIKELY: u64 = 4096;

/// One extent's main item.
struct Stored {
    main: Key,
    record: ExtentRecord,
    /// Some references have items of their own.
    has_keyed: bool,
}

/// Reads extents' items. The cursor moves forwards from extent to extent, and mostly inside them.
struct Finder<'c, 'a> {
    cursor: &'c mut Cursor<'a>,
    /// Items of references that were looked for or met.
    items_read: u64,
}

fn corrupt(at: Logical, what: &'static str, have: impl ToString, want: impl ToString) -> TxnError {
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

impl Finder<'_, '_> {
    fn main(&mut self, at: Logical) -> Result<Option<Stored>, TxnError> {
        self.cursor.seek(&Key::new(at.0, ItemType::EXTENT_ITEM, 0))?;
        let Some((main, data)) = self.cursor.current().filter(|(key, _)| is_item_of(key, at)) else { return Ok(None) };
        if !matches!(main.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM) {
            return Err(corrupt(at, "first item", main, "its extent item"));
        }
        let record = ExtentRecord::parse(&main, data)?;
        let inline = record.inline.iter().map(|r| u64::from(r.count())).sum();
        if record.refs < inline {
            return Err(corrupt(at, "total count", record.refs, format!("{inline} or more, which stand inline")));
        }
        Ok(Some(Stored { main, has_keyed: record.refs > inline, record }))
    }

    /// Shows the items of `who`, first that at `first`, then those up to `reach` behind it, until `see` has seen enough. Returns the first
    /// key that is free behind `first`.
    fn keyed(
        &mut self,
        first: Key,
        who: &RefKey,
        reach: u64,
        mut see: impl FnMut(Key, u32) -> ControlFlow<()>,
    ) -> Result<Key, TxnError> {
        let at = Logical(first.objectid);
        let reach = if matches!(who, RefKey::DataRoot { .. }) { reach } else { 0 };
        let mut free = first;
        self.items_read += 1;
        let mut more = self.cursor.seek(&first)?;
        while more {
            let Some((key, data)) = self.cursor.current() else { break };
            if (key.objectid, key.item_type) != (first.objectid, first.item_type) || key.offset - first.offset > reach {
                break;
            }
            self.items_read += u64::from(key != first);
            let there = split(&BackRef::parse_keyed(&key, data)?);
            let (there, count) = there.ok_or_else(|| corrupt(at, "keyed reference", key, "a known one"))?;
            if there == *who && see(key, count).is_break() {
                break;
            }
            if key == free {
                free.offset = free.offset.wrapping_add(1);
            }
            more = self.cursor.next()?;
        }
        Ok(free)
    }

    /// Adds to a reference that has an item of its own; if it has none, returns the key that it may have.
    fn add_keyed(
        &mut self,
        first: Key,
        who: &RefKey,
        delta: i32,
        touched: &mut Touched,
    ) -> Result<Option<Key>, TxnError> {
        let mut found = None;
        let free = self.keyed(first, who, CHAIN_LIKELY, |key, count| {
            found = Some((key, count));
            ControlFlow::Break(())
        })?;
        let Some((key, have)) = found else { return Ok(Some(free)) };
        let now = changed(Logical(first.objectid), who, have, delta)?;
        touched.insert(key, Some((*who, now)));
        Ok(None)
    }

    /// Takes from a reference that has items of its own, one but for odd cases.
    fn drop_keyed(&mut self, first: Key, who: &RefKey, delta: i32, touched: &mut Touched) -> Result<(), TxnError> {
        let mut left = delta.unsigned_abs();
        self.keyed(first, who, CHAIN_MAX, |key, count| {
            let taken = count.min(left);
            left -= taken;
            touched.insert(key, (taken < count).then_some((*who, count - taken)));
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if left > 0 {
            let have = format!("{who:?}, {left} less than are dropped");
            return Err(corrupt(Logical(first.objectid), "count of a reference", have, "0 or more"));
        }
        Ok(())
    }

    /// The first key from `key` on, which is free on disk, that is still free when those in `touched` are written.
    fn free_key(&mut self, mut key: Key, touched: &Touched) -> Result<Key, TxnError> {
        let on_disk = key;
        // Ends after at most as many steps as the extent has references.
        loop {
            match touched.get(&key) {
                Some(None) => return Ok(key),
                Some(Some(_)) => {}
                None if key == on_disk || !self.cursor.seek(&key)? || self.cursor.key() != Some(key) => return Ok(key),
                None => self.items_read += 1,
            }
            key.offset = key.offset.wrapping_add(1);
        }
    }

    /// The first item of the extent behind its main one that is not in `gone`.
    fn left(&mut self, at: Logical, main: &Key, gone: &Touched) -> Result<Option<Key>, TxnError> {
        let mut more = (self.cursor.key() == Some(*main) || self.cursor.seek(main)?) && self.cursor.next()?;
        while more {
            let Some(key) = self.cursor.key().filter(|key| is_item_of(key, at)) else { break };
            if !gone.contains_key(&key) {
                return Ok(Some(key));
            }
            self.items_read += 1;
            more = self.cursor.next()?;
        }
        Ok(None)
    }
}

/// References with items of their own that are written anew, or (`None`) deleted.
type Touched = BTreeMap<Key, Option<(RefKey, u32)>>;

fn is_item_of(key: &Key, at: Logical) -> bool {
    key.objectid == at.0 && key.item_type <= ItemType::SHARED_DATA_REF
}

/// Records that a thread draws at a time: enough that drawing costs little, few enough that all threads have work to the end.
const BATCH_RECORDS: usize = 4096;

/// Drains the ledger and works through all that it held; `None` if that was nothing. The caller makes sure that nobody
/// records meanwhile.
pub(crate) fn settle_ledger(
    ledger: &Ledger,
    rules: &ItemRules<'_>,
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
        self.space_changes.append(&mut later.space_changes);
        self.freed_data.append(&mut later.freed_data);
        self.freed_blocks.append(&mut later.freed_blocks);
        self.vanished.append(&mut later.vanished);
        self.vanished_data.append(&mut later.vanished_data);
        for (tree, blocks) in later.tree_blocks {
            *self.tree_blocks.entry(tree).or_default() += blocks;
        }
        self.items_read += later.items_read;
        for (tree, bytes) in later.owned {
            *self.owned.entry(tree).or_default() += bytes;
        }
    }
}

fn settle_heads(
    batch: &Batch,
    rules: &ItemRules<'_>,
    blocks: &Blocks,
    extent_root: &TreeRoot,
) -> Result<Settled, TxnError> {
    let mut out = Settled::default();
    let mut finder = Finder { cursor: &mut blocks.cursor(extent_root), items_read: 0 };
    for head in batch.heads() {
        settle_one(&head, &mut finder, rules, &mut out)?;
    }
    out.items_read = finder.items_read;
    Ok(out)
}

fn settle_one(
    head: &Head<'_>,
    finder: &mut Finder<'_, '_>,
    rules: &ItemRules<'_>,
    out: &mut Settled,
) -> Result<(), TxnError> {
    let at = head.at;
    let data = matches!(head.kind, ExtentKind::Data);
    for (who, delta) in head.refs() {
        if let RefKey::TreeRoot(tree) = who {
            *out.tree_blocks.entry(tree).or_default() += i64::from(delta);
        }
    }
    if head.is_new && head.net() == 0 {
        if let Some((who, _)) = head.refs().next() {
            return Err(corrupt(at, "reference dropped", format!("{who:?}"), "one that was added"));
        }
        out.vanished.push((at, head.len));
        if data {
            out.vanished_data.push((at, head.len));
        } else {
            out.freed_blocks.push(at);
        }
        return Ok(());
    }
    let stored = if head.is_new { Some(fresh(head, rules)) } else { finder.main(at)? };
    let Some(Stored { main, mut record, has_keyed }) = stored else {
        return Err(corrupt(at, "extent item", "none", format!("one for {:?}", head.refs().next())));
    };
    let total = i128::from(record.refs) + i128::from(head.net());
    let owner = record.inline.iter().find(|r| split(r).is_none()).copied();
    if let Some(owned) = rules.owned.filter(|_| head.is_new || total == 0) {
        owned.count(head, owner_of(&record), record.generation, head.is_new, &mut out.owned)?;
    }
    let Merged { mut inline, mut touched, fresh_refs } = merge(head, &record, has_keyed, finder)?;
    let piece = Piece { start: at.0, end: at.0 + head.len.0 };
    if total == 0 {
        let left = inline.len() + fresh_refs.len() + touched.values().flatten().count();
        if left > 0 {
            return Err(corrupt(at, "references left", left, 0));
        }
        if let Some(key) = finder.left(at, &main, &touched)? {
            return Err(corrupt(at, "references left", key, "none"));
        }
        out.changes.push(Change { key: main, op: Op::Delete });
        out.changes.extend(touched.into_keys().map(|key| Change { key, op: Op::Delete }));
        out.space_changes.push((piece, FreeSpaceChange::Free));
        if data {
            out.freed_data.push((at, head.len));
        } else {
            out.freed_blocks.push(at);
        }
        return Ok(());
    }
    if head.is_new {
        out.space_changes.push((piece, FreeSpaceChange::Used));
    }
    record.refs = u64::try_from(total).map_err(|_| corrupt(at, "total count", total, "0 or more"))?;
    if head.full_backref {
        record.flags |= ExtentFlags::FULL_BACKREF;
    }
    record.inline = owner.into_iter().collect();
    let mut bytes = record.encoded_len() + inline.keys().map(inline_len).sum::<usize>();
    let mut all_inline = !has_keyed;
    for (who, count, key) in fresh_refs {
        // If some references have items of their own, new ones join them: a reader that finds none inline looks there.
        if all_inline && bytes + inline_len(&who) <= rules.item_bytes_max {
            bytes += inline_len(&who);
            inline.insert(who, count);
        } else {
            all_inline = false;
            touched.insert(finder.free_key(key, &touched)?, Some((who, count)));
        }
    }
    record.inline.extend(inline.iter().map(|(who, count)| back_ref(who, *count)));
    out.changes.push(Change { key: main, op: Op::Put(record.encode().into()) });
    out.changes.extend(touched.into_iter().map(|(key, now)| Change {
        key,
        op: now.map_or(Op::Delete, |(who, count)| Op::Put(back_ref(&who, count).encode_keyed().into())),
    }));
    Ok(())
}

/// An extent's references after a head's changes.
struct Merged {
    /// Those that stood inline and are left.
    inline: BTreeMap<RefKey, u32>,
    /// Those with items of their own that changed.
    touched: Touched,
    /// New ones, and the key that each may have.
    fresh_refs: Vec<(RefKey, u32, Key)>,
}

fn merge(
    head: &Head<'_>,
    record: &ExtentRecord,
    has_keyed: bool,
    finder: &mut Finder<'_, '_>,
) -> Result<Merged, TxnError> {
    let at = head.at;
    let mut inline: BTreeMap<RefKey, u32> = record.inline.iter().filter_map(split).collect();
    let mut others: Vec<(Key, RefKey, i32)> = Vec::new();
    for (who, delta) in head.refs() {
        if let Entry::Occupied(mut place) = inline.entry(who) {
            let now = changed(at, &who, *place.get(), delta)?;
            let _ = if now == 0 { place.remove() } else { place.insert(now) };
        } else {
            others.push((back_ref(&who, 1).key(at), who, delta));
        }
    }
    // So that the search moves forwards.
    others.sort_unstable();
    let (mut touched, mut fresh_refs) = (Touched::new(), Vec::new());
    for (first, who, delta) in others {
        if delta < 0 && has_keyed {
            finder.drop_keyed(first, &who, delta, &mut touched)?;
            continue;
        }
        let place = if has_keyed { finder.add_keyed(first, &who, delta, &mut touched)? } else { Some(first) };
        if let Some(key) = place {
            fresh_refs.push((who, changed(at, &who, 0, delta)?, key));
        }
    }
    fresh_refs.sort_unstable();
    Ok(Merged { inline, touched, fresh_refs })
}

/// A reference's count after a change.
fn changed(at: Logical, who: &RefKey, have: u32, delta: i32) -> Result<u32, TxnError> {
    let now = i64::from(have) + i64::from(delta);
    let now =
        u32::try_from(now).map_err(|_| corrupt(at, "count of a reference", format!("{who:?} {now}"), "0 or more"))?;
    if data_less(who) && now > 1 {
        return Err(corrupt(at, "count of a tree reference", format!("{who:?} {now}"), "0 or 1"));
    }
    Ok(now)
}

fn data_less(who: &RefKey) -> bool {
    matches!(who, RefKey::TreeRoot(_) | RefKey::TreeParent(_))
}

fn inline_len(who: &RefKey) -> usize {
    back_ref(who, 1).inline_len()
}

fn fresh(head: &Head<'_>, rules: &ItemRules<'_>) -> Stored {
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
    let owner = rules.owned.filter(|_| flags == ExtentFlags::DATA).and_then(|owned| owned.of_new_data(head.at));
    let inline = owner.map(|root| BackRef::Owner { root }).into_iter().collect();
    let record = ExtentRecord { refs: 0, generation: rules.generation, flags, tree_block, inline };
    Stored { main, record, has_keyed: false }
}

/// What the extent tree has of an extent, but for who refers to it.
pub(crate) struct StoredExtent {
    pub(crate) refs: u64,
    /// Of data: bytes on disk.
    pub(crate) len: u64,
    /// The transaction that allocated it.
    pub(crate) generation: Generation,
    pub(crate) full_backref: bool,
    /// Whom data is accounted to by simple quotas.
    pub(crate) owner: Option<TreeId>,
}

fn owner_of(record: &ExtentRecord) -> Option<TreeId> {
    record.inline.iter().find_map(|r| match r {
        BackRef::Owner { root } => Some(*root),
        _ => None,
    })
}

/// The extent at `at` as the extent tree has it.
pub(crate) fn stored_extent(cursor: &mut Cursor<'_>, at: Logical) -> Result<Option<StoredExtent>, TxnError> {
    if !cursor.seek(&Key::new(at.0, ItemType::EXTENT_ITEM, 0))? {
        return Ok(None);
    }
    let Some((key, data)) = cursor.current() else { return Ok(None) };
    if key.objectid != at.0 || !matches!(key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM) {
        return Ok(None);
    }
    let record = ExtentRecord::parse(&key, data)?;
    let full_backref = record.flags.contains(ExtentFlags::FULL_BACKREF);
    let len = if key.item_type == ItemType::EXTENT_ITEM { key.offset } else { 0 };
    let owner = owner_of(&record);
    Ok(Some(StoredExtent { refs: record.refs, len, generation: record.generation, full_backref, owner }))
}

/// Count and flags of the extent at `at` as the extent tree has them.
pub(crate) fn stored_state(cursor: &mut Cursor<'_>, at: Logical) -> Result<Option<(u64, bool)>, TxnError> {
    Ok(stored_extent(cursor, at)?.map(|stored| (stored.refs, stored.full_backref)))
}

/// Who refers to the extent at `at`, as the extent tree has it; empty if it is not in there yet.
pub(crate) fn stored_users(cursor: &mut Cursor<'_>, at: Logical) -> Result<Vec<RefKey>, TxnError> {
    let mut finder = Finder { cursor, items_read: 0 };
    let Some(Stored { record, has_keyed, .. }) = finder.main(at)? else { return Ok(Vec::new()) };
    let mut users: Vec<RefKey> = record.inline.iter().filter_map(split).map(|(who, _)| who).collect();
    let mut more = has_keyed && finder.cursor.next()?;
    while more {
        let Some((key, data)) = finder.cursor.current().filter(|(key, _)| is_item_of(key, at)) else { break };
        let who = split(&BackRef::parse_keyed(&key, data)?);
        users.push(who.ok_or_else(|| corrupt(at, "keyed reference", key, "a known one"))?.0);
        more = finder.cursor.next()?;
    }
    Ok(users)
}
