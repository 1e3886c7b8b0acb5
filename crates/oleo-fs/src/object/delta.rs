//! The delta of one object: which of its items differ from the tree, and reading through that difference.
//!
//! All items of an inode have its number as objectid, so a change is named by (item type, offset) alone. An
//! [`ItemMap`] holds the changes of one object in one transaction: most objects have one to three, a directory may
//! have millions, so the map is a short sorted vector that turns into a B-tree once it grows past [`SMALL_MAX`].
//!
//! A read looks at the open map, the frozen map and the tree, in that order ([`Layers`]): the first that knows the
//! item wins, and a tombstone hides what is below it.
//!
//! A walk passes over tombstones and over the items that they hide. A file may have a million of them in a row, and each look-up of
//! an extent is a walk back from an offset. So an operation that deletes items notes the ranges of offsets that are empty afterwards
//! ([`Layers::empty`]); a walk that comes into such a range continues at its other end.
//!
//! Not here: who owns the maps and when they move from open to frozen (`inode`, `commit`).

use std::cmp::Ordering;
use std::collections::{BTreeMap, btree_map};
use std::ops::{ControlFlow, Deref};
use std::slice;

use hashbrown::HashMap;
use oleo_format::{ItemType, work};
use oleo_tree::{ItemBytes, ItemRef};
use smallvec::SmallVec;

use crate::FsError;
use crate::ranges::Ranges;

/// The name of an item within its object.
pub(crate) type Slot = (ItemType, u64);

/// What became of an item: its new bytes, or `None` when it was deleted.
pub(crate) type Fate = Option<ItemBytes>;

/// Entries beyond which the vector becomes a B-tree: moving 32 entries of 32 bytes costs less than a tree node.
const SMALL_MAX: usize = 32;

/// Steps that a walk takes towards the end of an empty range before it searches for it: a search costs about as much.
pub(crate) const NEAR: usize = 4;

/// Bytes of one item: by themselves, or a place inside a tree block that stays in memory as long as this lives.
pub enum Value {
    /// Beside the tree, shared with the delta if it is in one.
    Owned(ItemBytes),
    /// Inside a block of a tree.
    InTree(ItemRef),
}

impl Deref for Value {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Value::Owned(bytes) => bytes,
            Value::InTree(item) => item,
        }
    }
}

impl std::fmt::Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

/// A sorted map from slot to fate.
pub(crate) enum ItemMap {
    /// Up to [`SMALL_MAX`] entries, sorted.
    Small(SmallVec<[(Slot, Fate); 2]>),
    /// More. Boxed so that an inode that changed little stays small.
    Big(Box<BigMap>),
}

/// Many entries. Those of directories by the hash of their names are found one by one and never in order, until they
/// are itemised: a hash table finds them several times faster.
#[derive(Default)]
pub(crate) struct BigMap {
    hashed: HashMap<u64, Fate>,
    /// All but DIR_ITEMs.
    sorted: BTreeMap<Slot, Fate>,
}

impl BigMap {
    fn get(&self, slot: Slot) -> Option<&Fate> {
        if slot.0 == ItemType::DIR_ITEM { self.hashed.get(&slot.1) } else { self.sorted.get(&slot) }
    }

    fn set(&mut self, slot: Slot, fate: Fate) {
        if slot.0 == ItemType::DIR_ITEM {
            self.hashed.insert(slot.1, fate)
        } else {
            self.sorted.insert(slot, fate)
        };
    }

    fn forget(&mut self, slot: Slot) {
        if slot.0 == ItemType::DIR_ITEM {
            self.hashed.remove(&slot.1)
        } else {
            self.sorted.remove(&slot)
        };
    }

    fn len(&self) -> usize {
        self.hashed.len() + self.sorted.len()
    }

    /// The DIR_ITEMs in order, within bounds.
    fn hashed_in_order(&self, from: u64, to_incl: u64) -> Vec<(Slot, &Fate)> {
        let within = self.hashed.iter().filter(|(at, _)| (from..=to_incl).contains(*at));
        let mut all: Vec<_> = within.map(|(at, fate)| ((ItemType::DIR_ITEM, *at), fate)).collect();
        all.sort_unstable_by_key(|e| e.0.1);
        all
    }
}

impl Default for ItemMap {
    fn default() -> Self {
        ItemMap::Small(SmallVec::new())
    }
}

impl ItemMap {
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            ItemMap::Small(v) => v.is_empty(),
            ItemMap::Big(m) => m.len() == 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            ItemMap::Small(v) => v.len(),
            ItemMap::Big(m) => m.len(),
        }
    }

    /// Whether it has so many entries that passing over them is worth avoiding.
    pub(crate) fn is_big(&self) -> bool {
        matches!(self, ItemMap::Big(_))
    }

    /// What this map knows of the slot; `None`: nothing.
    pub(crate) fn get(&self, slot: Slot) -> Option<&Fate> {
        work::step();
        match self {
            ItemMap::Small(v) => v.binary_search_by(|e| e.0.cmp(&slot)).ok().map(|i| &v[i].1),
            ItemMap::Big(m) => m.get(slot),
        }
    }

    /// Records a fate, over an earlier one.
    pub(crate) fn set(&mut self, slot: Slot, fate: Fate) {
        match self {
            ItemMap::Small(v) => {
                // Most items arrive in rising order.
                let at = if v.last().is_none_or(|e| e.0 < slot) {
                    Err(v.len())
                } else {
                    v.binary_search_by(|e| e.0.cmp(&slot))
                };
                match at {
                    Ok(i) => v[i].1 = fate,
                    Err(i) if v.len() < SMALL_MAX => v.insert(i, (slot, fate)),
                    Err(_) => {
                        let mut big = BigMap::default();
                        for (slot, fate) in std::mem::take(v) {
                            big.set(slot, fate);
                        }
                        big.set(slot, fate);
                        *self = ItemMap::Big(Box::new(big));
                    }
                }
            }
            ItemMap::Big(m) => m.set(slot, fate),
        }
    }

    /// Forgets a slot: for items that no layer below has.
    pub(crate) fn forget(&mut self, slot: Slot) {
        match self {
            ItemMap::Small(v) => {
                if let Ok(i) = v.binary_search_by(|e| e.0.cmp(&slot)) {
                    v.remove(i);
                }
            }
            ItemMap::Big(m) => m.forget(slot),
        }
    }

    /// Calls `visit` for everything, in order.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(Slot, &Fate)) {
        match self {
            ItemMap::Small(v) => v.iter().for_each(|(slot, fate)| visit(*slot, fate)),
            ItemMap::Big(m) => {
                let dir_items = (ItemType::DIR_ITEM, 0);
                m.sorted.range(..dir_items).for_each(|(slot, fate)| visit(*slot, fate));
                m.hashed_in_order(0, u64::MAX).into_iter().for_each(|(slot, fate)| visit(slot, fate));
                m.sorted.range(dir_items..).for_each(|(slot, fate)| visit(*slot, fate));
            }
        }
    }

    /// The slots of one type with offsets from `from` to `to_incl`, in order.
    pub(crate) fn range(&self, t: ItemType, from: u64, to_incl: u64) -> MapRange<'_> {
        if from > to_incl {
            return MapRange::Small([].iter());
        }
        match self {
            ItemMap::Small(v) => {
                let start = v.partition_point(|e| e.0 < (t, from));
                let end = v.partition_point(|e| e.0 <= (t, to_incl));
                MapRange::Small(v[start..end].iter())
            }
            ItemMap::Big(m) if t == ItemType::DIR_ITEM => {
                MapRange::Hashed(m.hashed_in_order(from, to_incl).into_iter())
            }
            ItemMap::Big(m) => MapRange::Big(m.sorted.range((t, from)..=(t, to_incl))),
        }
    }
}

/// Iterates over a part of an [`ItemMap`], from both ends.
pub(crate) enum MapRange<'a> {
    Small(slice::Iter<'a, (Slot, Fate)>),
    Big(btree_map::Range<'a, Slot, Fate>),
    Hashed(std::vec::IntoIter<(Slot, &'a Fate)>),
}

impl<'a> Iterator for MapRange<'a> {
    type Item = (Slot, &'a Fate);
    fn next(&mut self) -> Option<Self::Item> {
        work::step();
        match self {
            MapRange::Small(i) => i.next().map(|e| (e.0, &e.1)),
            MapRange::Big(i) => i.next().map(|(slot, fate)| (*slot, fate)),
            MapRange::Hashed(i) => i.next(),
        }
    }
}

impl DoubleEndedIterator for MapRange<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        work::step();
        match self {
            MapRange::Small(i) => i.next_back().map(|e| (e.0, &e.1)),
            MapRange::Big(i) => i.next_back().map(|(slot, fate)| (*slot, fate)),
            MapRange::Hashed(i) => i.next_back(),
        }
    }
}

/// Which way a walk goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Rising offsets.
    Up,
    /// Falling offsets.
    Down,
}

/// What a walk calls for each item.
pub type Visit<'a> = dyn FnMut(u64, &[u8]) -> ControlFlow<()> + 'a;

/// The same of a layer below: after an item in an empty range, the walk continues at the offset that is returned, or beyond it.
pub(crate) type BaseVisit<'a> = dyn FnMut(u64, &[u8]) -> ControlFlow<(), Option<u64>> + 'a;

/// What a look-up calls with the item, or without.
pub type Seen<'a> = dyn FnMut(Option<&[u8]>) + 'a;

/// The layer below the maps: one object's items in a tree.
pub(crate) trait Base {
    fn get(&self, slot: Slot) -> Result<Option<Value>, FsError>;
    /// Calls `seen` once with what `get` would return: nothing is counted or copied.
    fn see(&self, slot: Slot, seen: &mut Seen<'_>) -> Result<(), FsError>;
    /// Calls `visit` for every item of type `t` with an offset in `from..=to_incl`, in the order of `direction`. Items before an
    /// offset that `visit` returns may be left out.
    fn walk(
        &self,
        t: ItemType,
        from: u64,
        to_incl: u64,
        direction: Direction,
        visit: &mut BaseVisit<'_>,
    ) -> Result<(), FsError>;

    /// Calls `visit` for the slot of every item, rising, until it breaks.
    fn slots(&self, visit: &mut dyn FnMut(Slot) -> ControlFlow<()>) -> Result<(), FsError>;
}

/// The three layers that a read goes through.
pub(crate) struct Layers<'a> {
    pub(crate) open: &'a ItemMap,
    pub(crate) frozen: Option<&'a ItemMap>,
    /// `None` for an object that has nothing in the tree yet.
    pub(crate) base: Option<&'a dyn Base>,
    /// Offsets without items of one type: all that the layers have there is tombstones and what these hide. `None`: none are known.
    pub(crate) empty: Option<(ItemType, &'a Ranges)>,
}

impl Layers<'_> {
    pub(crate) fn get(&self, slot: Slot) -> Result<Option<Value>, FsError> {
        let known = self.open.get(slot).or_else(|| self.frozen.and_then(|f| f.get(slot)));
        match known {
            Some(fate) => Ok(fate.as_ref().map(|bytes| Value::Owned(bytes.clone()))),
            None => self.base.map_or(Ok(None), |base| base.get(slot)),
        }
    }

    /// Calls `seen` once with what [`get`](Self::get) would return.
    pub(crate) fn see(&self, slot: Slot, seen: &mut Seen<'_>) -> Result<(), FsError> {
        let known = self.open.get(slot).or_else(|| self.frozen.and_then(|f| f.get(slot)));
        match (known, self.base) {
            (Some(fate), _) => seen(fate.as_deref()),
            (None, Some(base)) => base.see(slot, seen)?,
            (None, None) => seen(None),
        }
        Ok(())
    }

    /// The slots of all items as they stand, rising; `None` if more than `limit` are of type `limited`. Slots of that
    /// type are looked at no further than that.
    pub(crate) fn slots(&self, limited: ItemType, limit: usize) -> Result<Option<Vec<Slot>>, FsError> {
        // Much of it may have been deleted: then there is more in the maps, and in the tree, than there is to be found.
        if self.empty.is_some() {
            let mut left = limit;
            let mut is_over = false;
            self.walk(limited, 0, u64::MAX, Direction::Up, &mut |_, _| match left.checked_sub(1) {
                Some(less) => {
                    left = less;
                    ControlFlow::Continue(())
                }
                None => {
                    is_over = true;
                    ControlFlow::Break(())
                }
            })?;
            if is_over {
                return Ok(None);
            }
        }
        let known = |slot: Slot| self.open.get(slot).or_else(|| self.frozen.and_then(|f| f.get(slot)));
        // Most of a large file may be in the maps.
        let over = |map: &ItemMap| {
            let live =
                map.range(limited, 0, u64::MAX).filter(|(slot, _)| known(*slot).is_some_and(|fate| fate.is_some()));
            live.take(limit.saturating_add(1)).count() > limit
        };
        if over(self.open) || self.frozen.is_some_and(over) {
            return Ok(None);
        }
        let mut found: Vec<Slot> = Vec::new();
        let mut count = 0;
        if let Some(base) = self.base {
            base.slots(&mut |slot| {
                if known(slot).is_none() {
                    found.push(slot);
                    count += usize::from(slot.0 == limited);
                }
                if count > limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
        }
        for map in [self.frozen, Some(self.open)].into_iter().flatten() {
            map.for_each(|slot, _| {
                if known(slot).is_some_and(|fate| fate.is_some()) {
                    found.push(slot);
                }
            });
        }
        // A slot may be in both maps.
        found.sort_unstable();
        found.dedup();
        let count = found.iter().filter(|slot| slot.0 == limited).count();
        Ok((count <= limit).then_some(found))
    }

    /// Calls `visit` for the items of one type as they stand, in the order of `direction`.
    pub(crate) fn walk(
        &self,
        t: ItemType,
        from: u64,
        to_incl: u64,
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), FsError> {
        if from > to_incl {
            return Ok(());
        }
        let none = ItemMap::default();
        let side = |map| Side::new(map, t, (from, to_incl), direction);
        let mut changes = Overlay { open: side(self.open), frozen: side(self.frozen.unwrap_or(&none)), direction };
        let ranges = self.empty.and_then(|(of, ranges)| (of == t).then_some(ranges));
        let mut empty = EmptyAhead { ranges, direction, next: None };
        let mut stopped = false;
        if let Some(base) = self.base {
            base.walk(t, from, to_incl, direction, &mut |offset, bytes| {
                let mut hidden = false;
                while let Some(next) = changes.peek()
                    && direction.compare(next, offset) != Ordering::Greater
                {
                    hidden = next == offset;
                    if changes.pass(&mut empty, visit).is_break() {
                        stopped = true;
                        return ControlFlow::Break(());
                    }
                }
                let flow = match empty.spot(offset) {
                    Spot::Outside if hidden => ControlFlow::Continue(None),
                    Spot::Outside => visit(offset, bytes).map_continue(|()| None),
                    Spot::Before(past) => ControlFlow::Continue(Some(past)),
                    Spot::End => ControlFlow::Break(()),
                };
                stopped = flow.is_break();
                flow
            })?;
        }
        while !stopped && changes.peek().is_some() {
            stopped = changes.pass(&mut empty, visit).is_break();
        }
        Ok(())
    }
}

impl Direction {
    /// Which of two offsets a walk comes to first.
    fn compare(self, a: u64, b: u64) -> Ordering {
        match self {
            Direction::Up => a.cmp(&b),
            Direction::Down => b.cmp(&a),
        }
    }
}

/// The place of a walk with regard to empty ranges.
#[derive(Clone, Copy)]
enum Spot {
    /// In none of them.
    Outside,
    /// In one: it continues at this offset.
    Before(u64),
    /// In one behind which no offset is left.
    End,
}

/// The empty ranges before a walk.
struct EmptyAhead<'a> {
    /// `None`: there are no more.
    ranges: Option<&'a Ranges>,
    direction: Direction,
    /// The one that was found last.
    next: Option<(u64, u64)>,
}

impl EmptyAhead<'_> {
    /// Looks at an offset; those of one walk come in its order.
    fn spot(&mut self, offset: u64) -> Spot {
        let Some(ranges) = self.ranges else { return Spot::Outside };
        if let Some(spot) = self.next.and_then(|range| self.spot_of(offset, range)) {
            return spot;
        }
        self.next = match self.direction {
            Direction::Up => ranges.first_at_or_above(offset),
            Direction::Down => ranges.first_at_or_below(offset),
        };
        match self.next {
            Some(range) => self.spot_of(offset, range).unwrap_or(Spot::Outside),
            None => {
                self.ranges = None;
                Spot::Outside
            }
        }
    }

    /// `None` if the walk is beyond the range.
    fn spot_of(&self, offset: u64, (start, end): (u64, u64)) -> Option<Spot> {
        match self.direction {
            Direction::Up if offset < start => Some(Spot::Outside),
            Direction::Up => (offset < end).then_some(Spot::Before(end)),
            Direction::Down if offset >= end => Some(Spot::Outside),
            Direction::Down => (offset >= start).then(|| start.checked_sub(1).map_or(Spot::End, Spot::Before)),
        }
    }
}

/// One map's changes within the bounds of a walk, in its order.
struct Side<'a> {
    map: &'a ItemMap,
    t: ItemType,
    bounds: (u64, u64),
    direction: Direction,
    rest: MapRange<'a>,
    next: Option<(u64, &'a Fate)>,
}

impl<'a> Side<'a> {
    fn new(map: &'a ItemMap, t: ItemType, bounds: (u64, u64), direction: Direction) -> Side<'a> {
        let mut side = Side { map, t, bounds, direction, rest: map.range(t, bounds.0, bounds.1), next: None };
        side.advance();
        side
    }

    /// Moves on, and returns what was next.
    fn advance(&mut self) -> Option<&'a Fate> {
        let following = match self.direction {
            Direction::Up => self.rest.next(),
            Direction::Down => self.rest.next_back(),
        };
        std::mem::replace(&mut self.next, following.map(|(slot, fate)| (slot.1, fate))).map(|(_, fate)| fate)
    }

    fn is_before(&self, offset: u64) -> bool {
        self.next.is_some_and(|(at, _)| self.direction.compare(at, offset) == Ordering::Less)
    }

    /// Passes over all that comes before an offset.
    fn skip_to(&mut self, offset: u64) {
        for _ in 0..NEAR {
            if !self.is_before(offset) {
                return;
            }
            self.advance();
        }
        if self.is_before(offset) {
            let (from, to_incl) = match self.direction {
                Direction::Up => (offset, self.bounds.1),
                Direction::Down => (self.bounds.0, offset),
            };
            self.rest = self.map.range(self.t, from, to_incl);
            self.advance();
        }
    }
}

/// Two maps' changes merged in the order of a walk; the open one wins.
struct Overlay<'a> {
    open: Side<'a>,
    frozen: Side<'a>,
    direction: Direction,
}

impl<'a> Overlay<'a> {
    /// The offset of the next change.
    fn peek(&self) -> Option<u64> {
        match (self.open.next, self.frozen.next) {
            (Some((o, _)), Some((f, _))) => Some(if self.direction.compare(f, o) == Ordering::Less { f } else { o }),
            (Some((at, _)), None) | (None, Some((at, _))) => Some(at),
            (None, None) => None,
        }
    }

    fn next(&mut self) -> Option<(u64, &'a Fate)> {
        let at = self.peek()?;
        let mut fate = None;
        for side in [&mut self.frozen, &mut self.open] {
            if side.next.is_some_and(|(next, _)| next == at) {
                fate = side.advance();
            }
        }
        fate.map(|fate| (at, fate))
    }

    /// Passes over one change, which is visited unless it is a tombstone, and over the empty range that it is in.
    fn pass(&mut self, empty: &mut EmptyAhead<'_>, visit: &mut Visit<'_>) -> ControlFlow<()> {
        match self.next() {
            Some((at, Some(bytes))) => return visit(at, bytes),
            Some((at, None)) => match empty.spot(at) {
                Spot::Outside => {}
                Spot::Before(past) => {
                    self.open.skip_to(past);
                    self.frozen.skip_to(past);
                }
                Spot::End => return ControlFlow::Break(()),
            },
            None => {}
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests;
