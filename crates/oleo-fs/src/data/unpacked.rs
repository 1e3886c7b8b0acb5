//! Compressed extents that were read in part, decompressed: so that reading a file in small steps, in any order,
//! decompresses each extent once.
//!
//! One cache for all files, bounded in bytes. An extent is known by its address and the transaction that made it, which
//! nothing else ever has in common: its space is not used again before that transaction is over.
//! Locks: those inside `quick_cache`, held for one look-up.

use std::sync::Arc;

use oleo_format::{Generation, Logical};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::data::map::Span;

/// Bytes of a usual entry, for the cache to guess how many there will be: the format's 128 KiB.
const USUAL_LEN: u64 = 128 << 10;

type Key = (Logical, Generation);

#[derive(Clone)]
struct Bytes;

impl Weighter<Key, Arc<[u8]>> for Bytes {
    fn weight(&self, _: &Key, bytes: &Arc<[u8]>) -> u64 {
        bytes.len() as u64
    }
}

pub(super) struct Unpacked(Cache<Key, Arc<[u8]>, Bytes>);

impl Unpacked {
    pub(super) fn new(bytes_max: u64) -> Unpacked {
        let usual = usize::try_from(bytes_max / USUAL_LEN).unwrap_or(usize::MAX).max(1);
        Unpacked(Cache::with_weighter(usual, bytes_max, Bytes))
    }

    pub(super) fn get(&self, span: &Span) -> Option<Arc<[u8]>> {
        self.0.get(&(span.disk, span.generation))
    }

    pub(super) fn keep(&self, span: &Span, bytes: Arc<[u8]>) {
        self.0.insert((span.disk, span.generation), bytes);
    }

    pub(super) fn drop_one(&self, span: &Span) {
        self.0.remove(&(span.disk, span.generation));
    }

    /// Bytes held now.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.0.weight()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oleo_format::Compression;

    fn span(disk: u64, generation: u64) -> Span {
        Span {
            generation: Generation(generation),
            disk: Logical(disk),
            disk_len: 4096,
            ram_len: USUAL_LEN,
            offset: 0,
            len: USUAL_LEN,
            compression: Compression::Zstd,
            prealloc: false,
        }
    }

    /// Goal: however many extents are read in part, the bound on bytes holds; an extent is known by address and
    /// transaction, not by one of them.
    /// Method: a thousand extents through a cache for eight; two that share an address.
    #[test]
    fn bounded_in_bytes() {
        let cache = Unpacked::new(8 * USUAL_LEN);
        for n in 0..1000 {
            cache.keep(&span(n << 20, 7), vec![n as u8; USUAL_LEN as usize].into());
            assert!(cache.bytes() <= 8 * USUAL_LEN, "{} bytes after {n}", cache.bytes());
        }
        cache.keep(&span(5, 1), vec![1; 10].into());
        cache.keep(&span(5, 2), vec![2; 10].into());
        assert!(cache.get(&span(5, 1)).is_none_or(|bytes| bytes[0] == 1));
        assert_eq!(cache.get(&span(5, 2)).map(|bytes| bytes[0]), Some(2));
        cache.drop_one(&span(5, 2));
        assert!(cache.get(&span(5, 2)).is_none());
    }
}
