//! Keeps writes in memory over a device that is never written.
//!
//! Shows what a volume would be after a change that must not happen, as when a log is replayed for a reader. Pages that
//! were written are in memory and hide those of the base; all others are read from the base.
//!
//! Invariants: the base is only read. Memory is bounded: a write that would need more pages than allowed is an error,
//! as on a full device, and changes nothing. Discards do nothing; the length is the base's.
//! Locks: one, shared while a read copies, exclusive while a write does. Crash: all writes are lost, by design.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use oleo_lock::{RwLock, rank};

use crate::{Device, DeviceError, Extent, ExtentKind, Limits, Op, ReadReq, WriteReq, check_range};

/// Bytes per page: the smallest tree block there is.
const PAGE_LEN: u64 = 4096;

/// A device whose writes stay in memory.
pub struct Overlay {
    base: Arc<dyn Device>,
    name: Arc<str>,
    pages: RwLock<rank::Overlay, HashMap<u64, Box<[u8]>>>,
    pages_max: usize,
}

impl Overlay {
    /// Over `base`, with at most `bytes_max` bytes of writes in memory.
    pub fn new(base: Arc<dyn Device>, bytes_max: u64) -> Overlay {
        let name = base.name().into();
        let pages_max = usize::try_from(bytes_max / PAGE_LEN).unwrap_or(usize::MAX);
        Overlay { base, name, pages: RwLock::default(), pages_max }
    }

    /// Bytes of memory that the writes take.
    pub fn resident_bytes(&self) -> u64 {
        self.pages.read().len() as u64 * PAGE_LEN
    }

    /// Copies the written pages of a range over `buf`, which holds the base's bytes.
    fn patch(pages: &HashMap<u64, Box<[u8]>>, offset: u64, buf: &mut [u8]) {
        if pages.is_empty() {
            return;
        }
        for piece in pieces(offset, buf.len()) {
            if let Some(page) = pages.get(&piece.page) {
                buf[piece.at..piece.at + piece.len].copy_from_slice(&page[piece.in_page..piece.in_page + piece.len]);
            }
        }
    }

    /// The page as the base has it, for a write to a part of it.
    fn page_of_base(&self, page: u64) -> Result<Box<[u8]>, DeviceError> {
        let mut bytes = vec![0; PAGE_LEN as usize].into_boxed_slice();
        let start = page * PAGE_LEN;
        // The last page may be cut short.
        let len = self.base.len().saturating_sub(start).min(PAGE_LEN) as usize;
        self.base.read_at(start, &mut bytes[..len])?;
        Ok(bytes)
    }
}

/// The part of a request that lies in one page.
struct Piece {
    page: u64,
    in_page: usize,
    /// Offset in the request's buffer.
    at: usize,
    len: usize,
}

fn pieces(offset: u64, len: usize) -> impl Iterator<Item = Piece> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at == len {
            return None;
        }
        let pos = offset + at as u64;
        let in_page = (pos % PAGE_LEN) as usize;
        let take = (PAGE_LEN as usize - in_page).min(len - at);
        let piece = Piece { page: pos / PAGE_LEN, in_page, at, len: take };
        at += take;
        Some(piece)
    })
}

impl Device for Overlay {
    fn len(&self) -> u64 {
        self.base.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let pages = self.pages.read();
        self.base.read_at(offset, buf)?;
        Overlay::patch(&pages, offset, buf);
        Ok(())
    }

    fn read_batch(&self, reqs: &mut [ReadReq<'_>]) {
        let pages = self.pages.read();
        self.base.read_batch(reqs);
        for req in reqs.iter_mut().filter(|r| r.result.is_ok()) {
            Overlay::patch(&pages, req.offset, req.buf);
        }
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        check_range(&self.name, Op::Write, offset, buf.len() as u64, self.len())?;
        let mut pages = self.pages.write();
        let fresh = pieces(offset, buf.len()).filter(|p| !pages.contains_key(&p.page)).count();
        if pages.len() + fresh > self.pages_max {
            let bytes = self.pages_max as u64 * PAGE_LEN;
            let source = io::Error::new(io::ErrorKind::StorageFull, format!("more than {bytes} bytes in memory"));
            let (name, len) = (self.name.clone(), buf.len() as u64);
            return Err(DeviceError::Io { name, op: Op::Write, offset, len, source: Arc::new(source) });
        }
        for piece in pieces(offset, buf.len()) {
            let bytes = &buf[piece.at..piece.at + piece.len];
            if let Some(page) = pages.get_mut(&piece.page) {
                page[piece.in_page..piece.in_page + piece.len].copy_from_slice(bytes);
            } else if piece.len == PAGE_LEN as usize {
                pages.insert(piece.page, bytes.into());
            } else {
                let mut page = self.page_of_base(piece.page)?;
                page[piece.in_page..piece.in_page + piece.len].copy_from_slice(bytes);
                pages.insert(piece.page, page);
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_range(&self.name, Op::Discard, offset, len, self.len()).map(drop)
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        if len == self.len() {
            return Ok(());
        }
        Err(DeviceError::Unsupported { name: self.name.clone(), op: Op::Resize })
    }

    fn name(&self) -> String {
        self.name.to_string()
    }

    fn read_only(&self) -> bool {
        false
    }

    fn limits(&self) -> Limits {
        self.base.limits()
    }

    fn barrier(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn write_durable(&self, reqs: &[WriteReq<'_>]) -> Result<(), DeviceError> {
        self.write_batch(reqs)
    }

    fn extents(&self, offset: u64, len: u64, count_max: usize) -> Result<Vec<Extent>, DeviceError> {
        let end = check_range(&self.name, Op::Status, offset, len, self.len())?;
        let pages = self.pages.read();
        let within = offset / PAGE_LEN..end.div_ceil(PAGE_LEN);
        if pages.keys().any(|page| within.contains(page)) {
            let all = Extent { len, kind: ExtentKind::Data };
            return Ok(if len == 0 || count_max == 0 { Vec::new() } else { vec![all] });
        }
        self.base.extents(offset, len, count_max)
    }

    fn will_read(&self, offset: u64, len: u64) {
        self.base.will_read(offset, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDevice;

    const LEN: u64 = 10 * PAGE_LEN + 100;

    /// Goal: an overlay reads as a device that was written, and the base stays as it was.
    /// Method: random writes to an overlay and to an array; random reads, alone and in batches, compared; the base compared
    /// with its copy.
    #[test]
    fn like_an_array_over_an_untouched_base() {
        let base = MemDevice::new(LEN);
        let mut model: Vec<u8> = (0..LEN).map(|i| (i * 7 % 251) as u8).collect();
        base.write_at(0, &model).unwrap();
        let untouched = model.clone();
        let base: Arc<dyn Device> = Arc::new(base);
        let over = Overlay::new(base.clone(), LEN + PAGE_LEN);
        let mut state = 88172645463325252u64;
        let mut below = |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % n
        };
        for round in 0..400u64 {
            let at = below(LEN);
            let len = (below(3 * PAGE_LEN) + 1).min(LEN - at);
            let (from, to) = (at as usize, (at + len) as usize);
            if below(3) == 0 {
                let bytes = vec![round as u8; len as usize];
                over.write_at(at, &bytes).unwrap();
                model[from..to].copy_from_slice(&bytes);
            }
            let mut have = vec![0; len as usize];
            over.read_at(at, &mut have).unwrap();
            assert!(have == model[from..to], "round {round}");
            let mut batch = vec![0; len as usize];
            let mut reqs = [ReadReq::new(at, &mut batch)];
            over.read_batch(&mut reqs);
            assert!(reqs[0].result.is_ok());
            assert!(batch == model[from..to], "round {round}");
        }
        assert!(model != untouched, "something was written");
        let mut have = vec![0; LEN as usize];
        base.read_at(0, &mut have).unwrap();
        assert!(have == untouched, "the base was written");
    }

    /// Goal: memory is bounded, and a refused write changes nothing. Method: room for two pages, writes to three.
    #[test]
    fn is_full_at_its_bound() {
        let over = Overlay::new(Arc::new(MemDevice::new(LEN)), 2 * PAGE_LEN);
        over.write_at(0, &[1; 2 * PAGE_LEN as usize]).unwrap();
        over.write_at(100, &[2; 50]).unwrap();
        let full = over.write_at(2 * PAGE_LEN - 1, &[3; 2]).unwrap_err();
        assert!(full.to_string().contains("in memory"), "{full}");
        let mut byte = [0];
        over.read_at(2 * PAGE_LEN - 1, &mut byte).unwrap();
        assert_eq!(byte, [1]);
        assert_eq!(over.resident_bytes(), 2 * PAGE_LEN);
        assert!(over.write_at(LEN - 1, &[0; 2]).is_err(), "beyond the end");
        assert!(over.set_len(1).is_err());
        over.discard(0, 10).unwrap();
    }
}
