//! Removing block groups that have been empty for a while, so that their space can become groups of another kind.
//!
//! Normal path: (1) the cleaner calls [`Engine::remove_idle_group`] repeatedly; empty groups are noted with the time; (2) a group
//! that has been empty long enough, and whose kind has space left without it, is closed for allocation; (3) a commit
//! completes whatever was being written into it; (4) if the extent tree has nothing in it and all of it is free, it is
//! removed like a relocated one (`remove`); otherwise it is opened again.
//!
//! A volume may have very many groups, so they are looked at only so often while they are to stay for long, and what is free in all groups
//! like one is summed up once for each sort.
//!
//! Crash: as for `remove`: before the last commit the group is there, empty.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use oleo_format::{BlockGroupFlags, Logical};
use oleo_space::{GroupInfo, Run, SpaceError};

use crate::TxnError;
use crate::engine::Engine;

/// Looks at all groups in the time that an empty one stays.
const LOOKS: u32 = 8;
/// A group goes where groups like it have this part of its length free.
const ROOM_SHARE: u64 = 4;

impl Engine {
    /// Removes one block group that nothing has been in for that long, as earlier calls have seen; returns which one. One of each kind
    /// stays. The caller holds no handle.
    pub fn remove_idle_group(&self, idle_min: Duration) -> Result<Option<Logical>, TxnError> {
        let inner = &*self.0;
        inner.writable()?;
        {
            let (now, mut looked) = (Instant::now(), inner.growth.idle_looked.lock());
            if looked.is_some_and(|at| now.duration_since(at) < idle_min / LOOKS) {
                return Ok(None);
            }
            *looked = Some(now);
        }
        let groups = inner.space.groups();
        let uncommitted = inner.growth.uncommitted_chunks();
        let is_idle = |group: &&GroupInfo| {
            group.used.0 == 0
                && !group.read_only
                && !group.flags.contains(BlockGroupFlags::SYSTEM)
                && !uncommitted.iter().any(|run| run.start == group.start)
        };
        let idle: Vec<&GroupInfo> = groups.iter().filter(is_idle).collect();
        let ripe: Vec<&GroupInfo> = {
            let now = Instant::now();
            let starts: HashSet<Logical> = idle.iter().map(|group| group.start).collect();
            let mut since = inner.growth.idle.lock();
            since.retain(|start, _| starts.contains(start));
            let has_waited =
                |group: &&&GroupInfo| now.duration_since(*since.entry(group.start).or_insert(now)) >= idle_min;
            idle.iter().filter(has_waited).copied().collect()
        };
        if ripe.is_empty() {
            return Ok(None);
        }
        let mut rooms: HashMap<BlockGroupFlags, u64> = HashMap::new();
        for group in groups.iter().filter(|group| !group.read_only) {
            *rooms.entry(group.flags).or_default() += group.len.0.saturating_sub(group.used.0);
        }
        for group in ripe {
            // Its own is part of it.
            let room = rooms.get(&group.flags).map_or(0, |room| room.saturating_sub(group.len.0));
            if room < group.len.0 / ROOM_SHARE {
                continue;
            }
            match inner.space.set_read_only(group.start, true) {
                Ok(()) => {}
                // Its room is promised, or it is gone.
                Err(SpaceError::Reserved(_) | SpaceError::NoGroup(_)) => continue,
                Err(e) => return Err(e.into()),
            }
            let removed = self.remove_if_empty(group);
            inner.growth.idle.lock().remove(&group.start);
            if !matches!(removed, Ok(true)) && inner.writable().is_ok() && inner.space.group(group.start).is_ok() {
                self.open_group(group.start)?;
            }
            if removed? {
                // The next one need not wait for the next look.
                *inner.growth.idle_looked.lock() = None;
                return Ok(Some(group.start));
            }
        }
        Ok(None)
    }

    /// Removes a closed group unless something is in it; returns whether it did.
    fn remove_if_empty(&self, group: &GroupInfo) -> Result<bool, TxnError> {
        // As in moving: what was given out before comes to be known.
        drop(self.0.addresses.write());
        self.commit()?;
        if !self.extents_in(Run::new(group.start, group.len), 1)?.is_empty() || !self.is_empty_group(group.start)? {
            return Ok(false);
        }
        match self.remove_group(group.start) {
            Ok(()) => Ok(true),
            // Somebody has something in it after all; nothing has changed.
            Err(TxnError::Space(e)) if matches!(*e, SpaceError::Pinned(_) | SpaceError::Reserved(_)) => Ok(false),
            Err(e) => Err(e),
        }
    }
}
