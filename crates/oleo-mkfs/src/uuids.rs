//! UUIDs derived from a seed, for everything after the first trees.

use std::sync::atomic::{AtomicU64, Ordering};

use oleo_fs::UuidSource;
use uuid::Uuid;

use crate::options::derive_uuid;

/// A row of UUIDs: the same for the same seed.
#[derive(Debug)]
pub struct SeededUuids {
    seed: [u8; 32],
    next: AtomicU64,
}

impl SeededUuids {
    /// The row of this seed.
    pub fn new(seed: [u8; 32]) -> SeededUuids {
        SeededUuids { seed, next: AtomicU64::new(0) }
    }
}

impl UuidSource for SeededUuids {
    fn fresh(&self) -> Uuid {
        derive_uuid(&self.seed, "later", self.next.fetch_add(1, Ordering::Relaxed))
    }
}
