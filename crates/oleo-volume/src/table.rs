//! The chunk map: chunks by address, each with the members that its stripes are on.
//!
//! Sums and indexes that are needed often are kept beside it, so that a new chunk or a commit costs no more among a
//! million chunks: the occupied space of each device, the chunks that the superblock lists, the sum of their lengths.
//! Chunks on the same members share one list of them.
//!
//! Who reads or writes data needs a chunk each time, so that is found without a lock and without a count that all share: [`Chunks::now`] lends the
//! [`Index`] as the last change left it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use oleo_format::{Corruption, DevId, Logical};
use oleo_lock::{RwLock, RwLockReadGuard, rank};

use crate::error::VolumeError;
use crate::geometry::ChunkMap;
use crate::member::Member;
use crate::places::Places;

/// A chunk and the members of its stripes, in the stripes' order.
#[derive(Clone)]
pub(crate) struct Placed {
    pub map: Arc<ChunkMap>,
    pub on: Arc<[Arc<Member>]>,
}

/// Chunks of one piece of the index, at most; each change of a chunk copies so many.
const PIECE_MAX: usize = 256;

/// The chunks by address. In pieces that several versions share.
#[derive(Clone, Default)]
pub(crate) struct Index {
    /// None is empty.
    pieces: Vec<Arc<Vec<Placed>>>,
}

impl Index {
    /// The last chunk that starts before `end`.
    fn last_before(&self, end: u64) -> Option<&Placed> {
        let piece = self.pieces.partition_point(|piece| piece.first().is_some_and(|p| p.map.start.0 < end));
        let piece = self.pieces.get(piece.checked_sub(1)?)?;
        let at = piece.partition_point(|p| p.map.start.0 < end);
        piece.get(at.checked_sub(1)?)
    }

    fn get(&self, start: Logical) -> Option<&Placed> {
        self.last_before(start.0.checked_add(1)?).filter(|p| p.map.start == start)
    }

    /// The chunk at an address.
    pub fn find(&self, at: Logical) -> Option<&Placed> {
        self.last_before(at.0.saturating_add(1)).filter(|p| p.map.contains(at))
    }

    /// A chunk that has something of a range, if any has.
    pub fn overlapping(&self, start: Logical, end: Logical) -> Option<&ChunkMap> {
        self.last_before(end.0).map(|p| &*p.map).filter(|other| other.end() > start)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Placed> {
        self.pieces.iter().flat_map(|piece| piece.iter())
    }

    fn last(&self) -> Option<&Placed> {
        self.pieces.last()?.last()
    }

    /// Enters a chunk that starts where no other does.
    fn insert(&mut self, placed: Placed) {
        let start = placed.map.start.0;
        let behind = self.pieces.partition_point(|piece| piece.first().is_some_and(|p| p.map.start.0 < start));
        let Some(piece) = self.pieces.get_mut(behind.saturating_sub(1)) else {
            return self.pieces.push(Arc::new(vec![placed]));
        };
        let at = piece.partition_point(|p| p.map.start.0 < start);
        if piece.len() < PIECE_MAX {
            return Arc::make_mut(piece).insert(at, placed);
        }
        let index = behind.saturating_sub(1);
        if at == PIECE_MAX {
            // As when chunks come in order.
            return self.pieces.insert(index + 1, Arc::new(vec![placed]));
        }
        let chunks = Arc::make_mut(piece);
        let mut upper = chunks.split_off(PIECE_MAX / 2);
        match at.checked_sub(chunks.len()) {
            Some(at) => upper.insert(at, placed),
            None => chunks.insert(at, placed),
        }
        self.pieces.insert(index + 1, Arc::new(upper));
    }

    fn remove(&mut self, start: Logical) -> Option<Placed> {
        let behind = self.pieces.partition_point(|piece| piece.first().is_some_and(|p| p.map.start <= start));
        let index = behind.checked_sub(1)?;
        let piece = &mut self.pieces[index];
        let at = piece.binary_search_by_key(&start, |p| p.map.start).ok()?;
        let chunks = Arc::make_mut(piece);
        let removed = chunks.remove(at);
        if chunks.is_empty() {
            self.pieces.remove(index);
        }
        Some(removed)
    }

    /// Splits a range at the borders of chunks: chunk, offset in it, length.
    pub fn spans(&self, at: Logical, len: u64) -> Result<Vec<(&Placed, u64, u64)>, VolumeError> {
        let mut spans = Vec::with_capacity(1);
        let end = at.0.checked_add(len).ok_or(VolumeError::Unmapped { at, len })?;
        let mut next = at.0;
        while next < end {
            let placed =
                self.find(Logical(next)).ok_or(VolumeError::Unmapped { at: Logical(next), len: end - next })?;
            let take = (end - next).min(placed.map.end().0 - next);
            spans.push((placed, next - placed.map.start.0, take));
            next += take;
        }
        Ok(spans)
    }
}

/// The table, and the index of its last change for those who only look up.
pub(crate) struct Chunks {
    table: RwLock<rank::Chunks, Table>,
    now: ArcSwap<Index>,
}

impl Chunks {
    pub fn new(table: Table) -> Chunks {
        Chunks { now: ArcSwap::new(table.index.clone()), table: RwLock::new(table) }
    }

    /// The index as it is now. It stays as it is while it is held, so nobody holds it for longer than one read or write.
    pub fn now(&self) -> Guard<Arc<Index>> {
        self.now.load()
    }

    pub fn read(&self) -> RwLockReadGuard<'_, rank::Chunks, Table> {
        self.table.read()
    }

    /// Changes the table; who looks up sees it when this returns.
    pub fn change<R>(&self, change: impl FnOnce(&mut Table) -> R) -> R {
        let mut table = self.table.write();
        let result = change(&mut table);
        self.now.store(table.index.clone());
        result
    }
}

#[derive(Default)]
pub(crate) struct Table {
    index: Arc<Index>,
    /// Starts of chunks that the open transaction removes. They keep their places until it is durable.
    retired: BTreeSet<u64>,
    /// Starts of system chunks, including retired ones.
    system: BTreeSet<u64>,
    /// The space of each device that chunks occupy, including retired ones.
    places: BTreeMap<DevId, Places>,
    /// Bytes of all chunks, including retired ones.
    bytes: u64,
    /// The members of the chunk added last.
    last_on: Option<Arc<[Arc<Member>]>>,
}

impl Table {
    pub fn find(&self, at: Logical) -> Option<&Placed> {
        self.index.find(at)
    }

    pub fn get(&self, start: Logical) -> Option<&Placed> {
        self.index.get(start)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Placed> {
        self.index.iter()
    }

    /// The end of the last chunk.
    pub fn end(&self) -> Option<Logical> {
        self.index.last().map(|p| p.map.end())
    }

    /// Adds a chunk whose stripes are on the members with their number and uuid; a stripe on a device that is not in
    /// the list counts as missing. A chunk that exists already is left as it is if it is the same, whatever its hints.
    pub fn insert(&mut self, map: ChunkMap, members: &[Arc<Member>]) -> Result<(), Corruption> {
        let is_same = |there: &ChunkMap| *there == ChunkMap { hints: there.hints, ..map.clone() };
        if self.get(map.start).is_some_and(|there| is_same(&there.map)) {
            return Ok(());
        }
        if let Some(other) = self.index.overlapping(map.start, map.end()) {
            let have = format_args!("{}..{}", map.start, map.end()).to_string();
            let want = format_args!("no overlap with {}..{}", other.start, other.end()).to_string();
            return Err(Corruption::new("chunk", "address range", have, want).within(map.start));
        }
        let on = self.members_of(&map, members);
        if map.is_system() {
            self.system.insert(map.start.0);
        }
        self.bytes = self.bytes.saturating_add(map.len.0);
        for (devid, start, end) in stripes(&map) {
            self.places.entry(devid).or_default().take(start, end);
        }
        Arc::make_mut(&mut self.index).insert(Placed { map: Arc::new(map), on });
        Ok(())
    }

    fn members_of(&mut self, map: &ChunkMap, members: &[Arc<Member>]) -> Arc<[Arc<Member>]> {
        let same = |on: &Arc<[Arc<Member>]>| {
            let pairs = || on.iter().zip(&map.stripes);
            on.len() == map.stripes.len() && pairs().all(|(m, s)| m.devid == s.devid && m.uuid == s.dev_uuid)
        };
        if let Some(on) = self.last_on.as_ref().filter(|on| same(on)) {
            return on.clone();
        }
        let on = map.stripes.iter().map(|s| {
            let known = members.iter().find(|m| m.devid == s.devid && m.uuid == s.dev_uuid);
            known.cloned().unwrap_or_else(|| Arc::new(Member::unknown(s.devid, s.dev_uuid)))
        });
        let on: Arc<[_]> = on.collect();
        self.last_on = Some(on.clone());
        on
    }

    /// The system chunks that stay.
    pub fn system(&self) -> impl Iterator<Item = &Placed> {
        self.system.iter().filter(|start| !self.retired.contains(start)).filter_map(|start| self.get(Logical(*start)))
    }

    /// What chunks have of a device; `None` if that is nothing.
    pub fn places(&self, devid: DevId) -> Option<&Places> {
        self.places.get(&devid)
    }

    /// Logical bytes of all chunks.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn retire(&mut self, start: Logical) -> bool {
        self.retired.insert(start.0)
    }

    pub fn is_retired(&self, start: Logical) -> bool {
        self.retired.contains(&start.0)
    }

    pub fn remove(&mut self, start: Logical) -> Option<Placed> {
        self.retired.remove(&start.0);
        self.system.remove(&start.0);
        let removed = Arc::make_mut(&mut self.index).remove(start)?;
        self.bytes = self.bytes.saturating_sub(removed.map.len.0);
        for (devid, start, end) in stripes(&removed.map) {
            if let Some(places) = self.places.get_mut(&devid) {
                places.give_back(start, end);
            }
        }
        Some(removed)
    }
}

/// Device, start and end of each stripe.
fn stripes(map: &ChunkMap) -> impl Iterator<Item = (DevId, u64, u64)> {
    let len = map.stripe_bytes().0;
    map.stripes.iter().map(move |s| (s.devid, s.offset.0, s.offset.0.saturating_add(len)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::{Hints, StripeAt};
    use crate::profile::Profile;

    const LEN: u64 = 1 << 20;

    fn placed(start: u64) -> Placed {
        let stripes =
            vec![StripeAt { devid: DevId(1), dev_uuid: uuid::Uuid::nil(), offset: oleo_format::Physical(start) }];
        let profile = Profile::Single;
        let map = ChunkMap {
            start: Logical(start),
            len: oleo_format::ByteLen(LEN),
            flags: oleo_format::BlockGroupFlags::DATA,
            profile,
            stripes,
            hints: Hints::new(profile, 4096),
        };
        Placed { map: Arc::new(map), on: Arc::new([]) }
    }

    /// Goal: the index finds what an ordered map finds, and what somebody holds stays as it was. Method: chunks come in order, at random, and go,
    /// more than fit into several pieces; before each hundredth change the index is held, and compared after the next ones.
    #[test]
    fn the_index_is_an_ordered_map() {
        let mut state = 7_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let (mut index, mut model) = (Arc::new(Index::default()), BTreeSet::new());
        let mut held: Option<(Arc<Index>, BTreeSet<u64>)> = None;
        let same = |index: &Index, model: &BTreeSet<u64>| {
            assert!(index.iter().map(|p| p.map.start.0).eq(model.iter().copied()));
            assert!(index.pieces.iter().all(|piece| (1..=PIECE_MAX).contains(&piece.len())));
        };
        for step in 0..6000_u64 {
            // First in order, then anywhere, then mostly away.
            let start = 2 * LEN * if step < 1000 { step } else { random(4000) };
            if step < 3000 || random(4) == 0 {
                if model.insert(start) {
                    Arc::make_mut(&mut index).insert(placed(start));
                }
            } else {
                let first = model.range(start..).next().or(model.first()).copied();
                let start = first.unwrap_or(start);
                let removed = Arc::make_mut(&mut index).remove(Logical(start));
                assert_eq!(removed.map(|p| p.map.start.0), model.take(&start));
                assert!(Arc::make_mut(&mut index).remove(Logical(start + 1)).is_none());
            }
            let at = random(2 * LEN * 4001);
            let there = model.range(..=at).next_back().filter(|start| at < **start + LEN);
            assert_eq!(index.find(Logical(at)).map(|p| p.map.start.0), there.copied());
            assert_eq!(index.get(Logical(start)).is_some(), model.contains(&start));
            if step % 100 == 99 {
                if let Some((index, model)) = held.replace((index.clone(), model.clone())) {
                    same(&index, &model);
                }
                same(&index, &model);
            }
        }
        assert!(index.find(Logical(u64::MAX)).is_none() && index.spans(Logical(u64::MAX), 2).is_err());
    }
}
