//! The chunk map: chunks by address, each with the members that its stripes are on.
//!
//! Sums and indexes that are needed often are kept beside it, so that a new chunk or a commit costs no more among a
//! million chunks: the occupied space of each device, the chunks that the superblock lists, the sum of their lengths.
//! Chunks on the same members share one list of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use oleo_format::{Corruption, DevId, Logical};

use crate::geometry::ChunkMap;
use crate::member::Member;
use crate::places::Places;

/// A chunk and the members of its stripes, in the stripes' order.
#[derive(Clone)]
pub(crate) struct Placed {
    pub map: Arc<ChunkMap>,
    pub on: Arc<[Arc<Member>]>,
}

#[derive(Default)]
pub(crate) struct Table {
    by_start: BTreeMap<u64, Placed>,
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
        self.by_start.range(..=at.0).next_back().map(|(_, p)| p).filter(|p| p.map.contains(at))
    }

    pub fn get(&self, start: Logical) -> Option<&Placed> {
        self.by_start.get(&start.0)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Placed> {
        self.by_start.values()
    }

    /// The end of the last chunk.
    pub fn end(&self) -> Option<Logical> {
        self.by_start.values().next_back().map(|p| p.map.end())
    }

    /// Adds a chunk whose stripes are on the members with their number and uuid; a stripe on a device that is not in
    /// the list counts as missing. A chunk that exists already is left as it is if it is the same, whatever its hints.
    pub fn insert(&mut self, map: ChunkMap, members: &[Arc<Member>]) -> Result<(), Corruption> {
        let is_same = |there: &ChunkMap| *there == ChunkMap { hints: there.hints, ..map.clone() };
        if self.get(map.start).is_some_and(|there| is_same(&there.map)) {
            return Ok(());
        }
        let before = self.by_start.range(..map.end().0).next_back().map(|(_, p)| &p.map);
        if let Some(other) = before.filter(|other| other.end() > map.start) {
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
        self.by_start.insert(map.start.0, Placed { map: Arc::new(map), on });
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
        self.system.iter().filter(|start| !self.retired.contains(start)).filter_map(|start| self.by_start.get(start))
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
        let removed = self.by_start.remove(&start.0)?;
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
