//! Frames that were read, checked and without their headers. Names are never used twice, so nothing in it becomes wrong.
//!
//! Locks: those inside `quick_cache`, held for one look-up.

use std::sync::Arc;

use quick_cache::Weighter;
use quick_cache::sync::Cache as Inner;

use crate::format::ObjectId;

/// Bytes that an entry takes besides its payload.
const ENTRY_BYTES: u64 = 128;
/// A usual payload, bytes.
const USUAL_LEN: u64 = 64 << 10;

type Key = (ObjectId, u32);

#[derive(Clone)]
struct Weight;

impl Weighter<Key, Arc<Vec<u8>>> for Weight {
    fn weight(&self, _: &Key, payload: &Arc<Vec<u8>>) -> u64 {
        payload.len() as u64 + ENTRY_BYTES
    }
}

/// Payloads by segment and offset of their frames.
pub(crate) struct Cache(Inner<Key, Arc<Vec<u8>>, Weight>);

impl Cache {
    pub(crate) fn new(bytes_max: u64) -> Cache {
        let count = (bytes_max / USUAL_LEN).max(16) as usize;
        Cache(Inner::with_weighter(count, bytes_max, Weight))
    }

    pub(crate) fn get(&self, id: ObjectId, off: u32) -> Option<Arc<Vec<u8>>> {
        self.0.get(&(id, off))
    }

    pub(crate) fn put(&self, id: ObjectId, off: u32, payload: Arc<Vec<u8>>) {
        self.0.insert((id, off), payload);
    }
}
