//! Which nodes are open for writing: with the kernel's write-back cache, these are the ones of which it may have bytes and times that
//! this server has not seen. (Closing writes them out, and a mapping keeps its file open.)
//!
//! Locks: one shard at a time, a leaf.

use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;
use oleo_lock::{Mutex, rank};

const SHARDS: usize = 64;

/// How a handle was opened; its number in the protocol says so again when it is released.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Opened {
    /// For reading.
    Reads,
    /// For writing to the cache.
    Writes,
    /// For writing past the cache.
    WritesThrough,
}

impl Opened {
    pub(crate) fn handle(self) -> u64 {
        match self {
            Opened::Reads => 0,
            Opened::Writes => 1,
            Opened::WritesThrough => 2,
        }
    }

    pub(crate) fn of_handle(handle: u64) -> Opened {
        match handle {
            1 => Opened::Writes,
            2 => Opened::WritesThrough,
            _ => Opened::Reads,
        }
    }
}

/// The handles of one node that are open for writing.
#[derive(Clone, Copy, Default)]
struct Handles {
    cached: u32,
    through: u32,
}

/// The table of nodes that are open for writing.
pub(crate) struct Writers {
    shards: Vec<Mutex<rank::FuseWriters, HashMap<u64, Handles>>>,
    /// How many nodes it has.
    count: AtomicUsize,
}

impl Default for Writers {
    fn default() -> Writers {
        Writers { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), count: AtomicUsize::new(0) }
    }
}

impl Writers {
    fn shard(&self, node: u64) -> &Mutex<rank::FuseWriters, HashMap<u64, Handles>> {
        &self.shards[(node % SHARDS as u64) as usize]
    }

    /// A handle was opened.
    pub(crate) fn enter(&self, node: u64, opened: Opened) {
        if opened == Opened::Reads {
            return;
        }
        let mut shard = self.shard(node).lock();
        let handles = shard.entry(node).or_default();
        if handles.cached + handles.through == 0 {
            self.count.fetch_add(1, Ordering::AcqRel);
        }
        match opened {
            Opened::Writes => handles.cached += 1,
            Opened::WritesThrough | Opened::Reads => handles.through += 1,
        }
    }

    /// A handle is released.
    pub(crate) fn leave(&self, node: u64, opened: Opened) {
        if opened == Opened::Reads {
            return;
        }
        let mut shard = self.shard(node).lock();
        let Some(handles) = shard.get_mut(&node) else { return };
        match opened {
            Opened::Writes => handles.cached = handles.cached.saturating_sub(1),
            Opened::WritesThrough | Opened::Reads => handles.through = handles.through.saturating_sub(1),
        }
        if handles.cached + handles.through == 0 {
            shard.remove(&node);
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Whether the kernel may have bytes of any node.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Whether it may have bytes of this one.
    pub(crate) fn has(&self, node: u64) -> bool {
        self.any() && self.shard(node).lock().contains_key(&node)
    }

    /// Whether somebody has opened it when its flags allowed every write.
    pub(crate) fn may_write(&self, node: u64) -> bool {
        self.shard(node).lock().get(&node).is_some_and(|handles| handles.cached > 0)
    }

    /// All of them.
    pub(crate) fn nodes(&self) -> Vec<u64> {
        if !self.any() {
            return Vec::new();
        }
        self.shards.iter().flat_map(|shard| shard.lock().keys().copied().collect::<Vec<_>>()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a node is there exactly while a handle is open for writing, and every handle's number says how it was opened.
    #[test]
    fn counted() {
        let writers = Writers::default();
        for opened in [Opened::Reads, Opened::Writes, Opened::WritesThrough] {
            assert_eq!(Opened::of_handle(opened.handle()), opened);
            writers.enter(300, opened);
            writers.enter(300, opened);
            assert_eq!((writers.any(), writers.has(300)), (opened != Opened::Reads, opened != Opened::Reads));
            assert_eq!(writers.may_write(300), opened == Opened::Writes);
            writers.leave(300, opened);
            assert_eq!(writers.has(300), opened != Opened::Reads);
            writers.leave(300, opened);
            assert!(!writers.any() && writers.nodes().is_empty());
        }
        writers.leave(300, Opened::Writes);
        writers.enter(7, Opened::Writes);
        writers.enter(8, Opened::WritesThrough);
        let mut nodes = writers.nodes();
        nodes.sort_unstable();
        assert_eq!(nodes, [7, 8]);
    }
}
