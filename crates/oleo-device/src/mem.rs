//! Sparse memory, for tests and for images that never touch a disk.
//!
//! Pages that were never written, written only with zeros, or discarded whole take no memory and read as zeros; so a
//! device of any length costs only what is stored on it.
//! Locks: one per shard of pages, held for one page at a time; a read and a write of the same bytes at the same time
//! may tear at page borders, as on a disk. Flush does nothing. Crash: everything is lost.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use oleo_lock::{RwLock, rank};

use crate::extent::push_extent;
use crate::{Device, DeviceError, Extent, ExtentKind, Op, Zeroing, check_range};

/// Bytes per page.
const PAGE_LEN: usize = 16 << 10;
/// Number of shards; neighbouring pages lie in different ones.
const SHARD_COUNT: usize = 32;

type Shard = RwLock<rank::MemDevice, HashMap<u64, Box<[u8]>>>;

/// A device in memory.
pub struct MemDevice {
    name: Arc<str>,
    len: AtomicU64,
    shards: Vec<Shard>,
}

impl MemDevice {
    /// A device of `len` zero bytes.
    pub fn new(len: u64) -> MemDevice {
        MemDevice::named("memory", len)
    }

    /// The same, with a name for messages.
    pub fn named(name: &str, len: u64) -> MemDevice {
        let shards = (0..SHARD_COUNT).map(|_| Shard::default()).collect();
        MemDevice { name: name.into(), len: AtomicU64::new(len), shards }
    }

    /// Returns a second device with the same contents. There must be no writes meanwhile.
    pub fn copy(&self) -> MemDevice {
        let shards = self.shards.iter().map(|s| RwLock::new(s.read().clone())).collect();
        MemDevice { name: self.name.clone(), len: AtomicU64::new(self.len()), shards }
    }

    /// Bytes of memory that the contents take.
    pub fn resident_bytes(&self) -> u64 {
        self.shards.iter().map(|s| s.read().len() as u64).sum::<u64>() * PAGE_LEN as u64
    }

    fn shard(&self, page: u64) -> &Shard {
        &self.shards[(page % SHARD_COUNT as u64) as usize]
    }

    /// Splits a range into (page number, byte in page, byte in buffer, length) pieces.
    fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            if done == len {
                return None;
            }
            let at = offset + done as u64;
            let in_page = (at % PAGE_LEN as u64) as usize;
            let take = (PAGE_LEN - in_page).min(len - done);
            let piece = (at / PAGE_LEN as u64, in_page, done, take);
            done += take;
            Some(piece)
        })
    }

    /// Zeros `offset..end`; whole pages are forgotten. Costs as many steps as the range has pages, or as there are pages
    /// with contents if those are fewer.
    fn zero(&self, offset: u64, end: u64) {
        let pages = offset / PAGE_LEN as u64..end.div_ceil(PAGE_LEN as u64);
        if pages.end.saturating_sub(pages.start) <= self.resident_bytes() / PAGE_LEN as u64 {
            for page in pages {
                let mut shard = self.shard(page).write();
                if let Entry::Occupied(mut bytes) = shard.entry(page)
                    && !zero_in_page(page, bytes.get_mut(), offset, end)
                {
                    bytes.remove();
                }
            }
            return;
        }
        for shard in &self.shards {
            shard.write().retain(|&page, bytes| zero_in_page(page, bytes, offset, end));
        }
    }
}

/// Zeros the part of a page in `offset..end`; `false` if that is the whole page.
fn zero_in_page(page: u64, bytes: &mut [u8], offset: u64, end: u64) -> bool {
    let start = page * PAGE_LEN as u64;
    let (from, to) = (offset.max(start), end.min(start + PAGE_LEN as u64));
    if to.saturating_sub(from) == PAGE_LEN as u64 {
        return false;
    }
    if from < to {
        bytes[(from - start) as usize..(to - start) as usize].fill(0);
    }
    true
}

/// The first chunk tells most contents from zeros; the rest is compared many bytes at a time.
fn is_zero(bytes: &[u8]) -> bool {
    const CHUNK: usize = 64;
    bytes.chunks(CHUNK).all(|chunk| chunk.iter().fold(0, |or, b| or | b) == 0)
}

impl Device for MemDevice {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        check_range(&self.name, Op::Read, offset, buf.len() as u64, self.len())?;
        for (page, in_page, at, take) in MemDevice::pieces(offset, buf.len()) {
            let out = &mut buf[at..at + take];
            match self.shard(page).read().get(&page) {
                Some(bytes) => out.copy_from_slice(&bytes[in_page..in_page + take]),
                None => out.fill(0),
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        check_range(&self.name, Op::Write, offset, buf.len() as u64, self.len())?;
        for (page, in_page, at, take) in MemDevice::pieces(offset, buf.len()) {
            let part = &buf[at..at + take];
            let mut shard = self.shard(page).write();
            match shard.entry(page) {
                Entry::Occupied(mut bytes) => bytes.get_mut()[in_page..in_page + take].copy_from_slice(part),
                Entry::Vacant(_) if is_zero(part) => {}
                Entry::Vacant(none) => {
                    let mut bytes = vec![0; PAGE_LEN].into_boxed_slice();
                    bytes[in_page..in_page + take].copy_from_slice(part);
                    none.insert(bytes);
                }
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let end = check_range(&self.name, Op::Discard, offset, len, self.len())?;
        self.zero(offset, end);
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        let old = self.len.swap(len, Ordering::AcqRel);
        if len < old {
            self.zero(len, u64::MAX);
        }
        Ok(())
    }

    fn name(&self) -> String {
        self.name.to_string()
    }

    fn read_only(&self) -> bool {
        false
    }

    /// Nothing is kept allocated: memory is not promised to anybody.
    fn write_zeroes(&self, offset: u64, len: u64, _: Zeroing) -> Result<(), DeviceError> {
        let end = check_range(&self.name, Op::Zero, offset, len, self.len())?;
        self.zero(offset, end);
        Ok(())
    }

    fn extents(&self, offset: u64, len: u64, count_max: usize) -> Result<Vec<Extent>, DeviceError> {
        /// Pages that one call looks at: a device may be larger than can be walked through.
        const PAGES_MAX: u64 = 1 << 16;
        let mut end = check_range(&self.name, Op::Status, offset, len, self.len())?;
        let first = offset / PAGE_LEN as u64;
        end = end.min((first + PAGES_MAX).saturating_mul(PAGE_LEN as u64));
        let mut out: Vec<Extent> = Vec::new();
        let mut at = offset;
        while at < end {
            let page = at / PAGE_LEN as u64;
            let next = end.min((page + 1) * PAGE_LEN as u64);
            let kind = match self.shard(page).read().contains_key(&page) {
                true => ExtentKind::Data,
                false => ExtentKind::Hole,
            };
            if out.len() >= count_max && out.last().is_none_or(|last| last.kind != kind) {
                break;
            }
            push_extent(&mut out, next - at, kind);
            at = next;
        }
        Ok(out)
    }
}
