//! Disk contents that are cheap to copy: pages shared until one of them is written to.
//!
//! [`Contents`] are a value: a shared base, and the pages that were written since. A copy costs one counted pointer for
//! each of the latter; [`Contents::settle`] makes them part of a new base. [`Overlay`] is a device over such contents,
//! with a lock around them.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use oleo_device::{Device, DeviceError, Op};

use crate::rng::Rng;

/// Bytes per page: what one write copies at least.
const PAGE_LEN: usize = 4096;

type Page = Arc<[u8; PAGE_LEN]>;
type Pages = HashMap<u64, Page>;

static ZEROS: LazyLock<Page> = LazyLock::new(|| Arc::new([0; PAGE_LEN]));
static RUBBISH: LazyLock<Page> = LazyLock::new(|| {
    let mut page = [0; PAGE_LEN];
    Rng::new(0xd15c_a4d0).fill(&mut page);
    Arc::new(page)
});

/// What a discarded range reads as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// The old bytes.
    Old,
    /// Zeros.
    Zeros,
    /// Bytes that were never written.
    Rubbish,
}

/// The contents of a disk. Pages that were never written are zeros.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    len: u64,
    base: Arc<Pages>,
    own: Pages,
}

/// Splits a range into (page number, byte in page, byte in buffer, length) pieces.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let in_page = (at % PAGE_LEN as u64) as usize;
        let take = (PAGE_LEN - in_page).min(len - done);
        let piece = (at / PAGE_LEN as u64, in_page, done, take);
        done += take;
        (take > 0).then_some(piece)
    })
}

impl Contents {
    /// Zeros, `len` bytes of them.
    pub fn zeros(len: u64) -> Contents {
        Contents { len, ..Contents::default() }
    }

    /// The present contents of a device.
    pub fn of(device: &dyn Device) -> Result<Contents, DeviceError> {
        const STEP: usize = 64 * PAGE_LEN;
        let mut out = Contents::zeros(device.len());
        let mut buf = vec![0; STEP];
        for at in (0..out.len).step_by(STEP) {
            let part = &mut buf[..usize::try_from(out.len - at).unwrap_or(STEP).min(STEP)];
            device.read_at(at, part)?;
            for (i, page) in part.chunks(PAGE_LEN).enumerate().filter(|(_, page)| **page != ZEROS[..page.len()]) {
                out.write(at + (i * PAGE_LEN) as u64, page);
            }
        }
        out.settle();
        Ok(out)
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fills `buf` from `offset`; beyond the end there are zeros.
    pub fn read(&self, offset: u64, buf: &mut [u8]) {
        for (page, in_page, at, take) in pieces(offset, buf.len()) {
            let out = &mut buf[at..at + take];
            match self.own.get(&page).or_else(|| self.base.get(&page)) {
                Some(bytes) => out.copy_from_slice(&bytes[in_page..in_page + take]),
                None => out.fill(0),
            }
        }
    }

    /// Writes `data` at `offset`; what lies beyond the end is dropped.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let room = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let data = &data[..data.len().min(room)];
        for (page, in_page, at, take) in pieces(offset, data.len()) {
            let base = &self.base;
            let bytes = self.own.entry(page).or_insert_with(|| match base.get(&page) {
                Some(shared) => shared.clone(),
                None => Arc::new([0; PAGE_LEN]),
            });
            Arc::make_mut(bytes)[in_page..in_page + take].copy_from_slice(&data[at..at + take]);
        }
    }

    /// Replaces the contents of a range; bytes beyond the end stay.
    pub fn discard(&mut self, offset: u64, len: u64, left: Left) {
        let page = match left {
            Left::Old => return,
            Left::Zeros => &*ZEROS,
            Left::Rubbish => &*RUBBISH,
        };
        let end = offset.saturating_add(len).min(self.len);
        let mut at = offset;
        while at < end {
            let in_page = at % PAGE_LEN as u64;
            let take = (PAGE_LEN as u64 - in_page).min(end - at);
            if take == PAGE_LEN as u64 {
                // A page that does not exist is zeros already.
                let nth = at / PAGE_LEN as u64;
                if left == Left::Rubbish || self.own.contains_key(&nth) || self.base.contains_key(&nth) {
                    self.own.insert(nth, page.clone());
                }
            } else {
                let from = usize::try_from(in_page).unwrap_or(0);
                self.write(at, &page[from..from + usize::try_from(take).unwrap_or(0)]);
            }
            at += take;
        }
    }

    /// Cuts the end off, or adds zeros.
    pub fn set_len(&mut self, len: u64) {
        // If the device grows again, the new part is zeros.
        self.discard(len, self.len.saturating_sub(len), Left::Zeros);
        self.len = len;
    }

    /// The pages that were ever written, with their offsets, in no order.
    pub fn pages(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let base = self.base.iter().filter(|(page, _)| !self.own.contains_key(*page));
        base.chain(&self.own).map(|(page, bytes)| (page * PAGE_LEN as u64, &bytes[..]))
    }

    /// Makes all written pages part of the base, so that copies made from now on cost nothing.
    pub fn settle(&mut self) {
        if !self.own.is_empty() {
            Arc::make_mut(&mut self.base).extend(std::mem::take(&mut self.own));
        }
    }
}

/// A device over contents.
pub struct Overlay {
    name: Arc<str>,
    contents: RwLock<Contents>,
    read_only: bool,
}

impl Overlay {
    /// A device that holds these contents at first.
    pub fn new(name: &str, contents: Contents) -> Overlay {
        Overlay { name: name.into(), contents: RwLock::new(contents), read_only: false }
    }

    /// The same, refusing writes.
    pub fn read_only(name: &str, contents: Contents) -> Overlay {
        Overlay { read_only: true, ..Overlay::new(name, contents) }
    }

    /// The present contents.
    pub fn contents(&self) -> Contents {
        self.contents.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn check(&self, op: Op, offset: u64, len: usize) -> Result<(), DeviceError> {
        let (len, size) = (len as u64, self.len());
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(DeviceError::OutOfRange { name: self.name.clone(), op, offset, len, size }),
        }
    }
}

impl Device for Overlay {
    fn len(&self) -> u64 {
        self.contents.read().unwrap_or_else(PoisonError::into_inner).len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.check(Op::Read, offset, buf.len())?;
        self.contents.read().unwrap_or_else(PoisonError::into_inner).read(offset, buf);
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        if self.read_only {
            return Err(DeviceError::ReadOnly { name: self.name.clone(), op: Op::Write });
        }
        self.check(Op::Write, offset, buf.len())?;
        self.contents.write().unwrap_or_else(PoisonError::into_inner).write(offset, buf);
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Discarded bytes are replaced by rubbish immediately.
    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        if self.read_only {
            return Err(DeviceError::ReadOnly { name: self.name.clone(), op: Op::Discard });
        }
        self.check(Op::Discard, offset, usize::try_from(len).unwrap_or(usize::MAX))?;
        self.contents.write().unwrap_or_else(PoisonError::into_inner).discard(offset, len, Left::Rubbish);
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        if self.read_only {
            return Err(DeviceError::ReadOnly { name: self.name.clone(), op: Op::Resize });
        }
        self.contents.write().unwrap_or_else(PoisonError::into_inner).set_len(len);
        Ok(())
    }

    fn name(&self) -> String {
        self.name.to_string()
    }

    fn read_only(&self) -> bool {
        self.read_only
    }
}
