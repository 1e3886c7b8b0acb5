//! The chunk map: chunks by address, each with the members that its stripes are on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use oleo_format::{Corruption, Logical};

use crate::geometry::ChunkMap;
use crate::member::Member;

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

    /// Adds a chunk whose stripes are on the members of their number and uuid; a stripe on a device that the list
    /// does not have counts as missing. A chunk that is there already is left alone if it is the same.
    pub fn insert(&mut self, map: ChunkMap, members: &[Arc<Member>]) -> Result<(), Corruption> {
        let on = map.stripes.iter().map(|s| {
            let known = members.iter().find(|m| m.devid == s.devid && m.uuid == s.dev_uuid);
            known.cloned().unwrap_or_else(|| Arc::new(Member::unknown(s.devid, s.dev_uuid)))
        });
        let on = on.collect();
        if self.get(map.start).is_some_and(|there| *there.map == map) {
            return Ok(());
        }
        let before = self.by_start.range(..map.end().0).next_back().map(|(_, p)| &p.map);
        if let Some(other) = before.filter(|other| other.end() > map.start) {
            let have = format_args!("{}..{}", map.start, map.end()).to_string();
            let want = format_args!("no overlap with {}..{}", other.start, other.end()).to_string();
            return Err(Corruption::new("chunk", "address range", have, want).within(map.start));
        }
        self.by_start.insert(map.start.0, Placed { map: Arc::new(map), on });
        Ok(())
    }

    pub fn retire(&mut self, start: Logical) -> bool {
        self.retired.insert(start.0)
    }

    pub fn is_retired(&self, start: Logical) -> bool {
        self.retired.contains(&start.0)
    }

    pub fn remove(&mut self, start: Logical) -> Option<Placed> {
        self.retired.remove(&start.0);
        self.by_start.remove(&start.0)
    }
}
