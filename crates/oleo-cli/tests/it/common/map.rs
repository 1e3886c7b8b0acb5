//! A file in memory: mmap(2), for tests.

#![allow(unsafe_code, reason = "mmap has no safe form: a mapping is memory that others change")]
use std::os::fd::AsFd;
use std::ptr;

use rustix::io::Result;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

/// A file mapped for reading and writing.
pub struct Map {
    at: *mut std::ffi::c_void,
    len: usize,
}

impl Map {
    /// Maps `len` bytes from `offset`; `MapFlags::SHARED` or `PRIVATE`.
    pub fn new(file: impl AsFd, offset: u64, len: usize, flags: MapFlags) -> Result<Map> {
        Map::with(file, offset, len, flags, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// The same with other rights.
    pub fn with(file: impl AsFd, offset: u64, len: usize, flags: MapFlags, rights: ProtFlags) -> Result<Map> {
        // SAFETY: the kernel chooses an address that nothing else uses.
        let at = unsafe { mmap(ptr::null_mut(), len, rights, flags, file, offset) }?;
        Ok(Map { at, len })
    }

    fn check(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at <= self.len && len <= self.len - at, "outside of the mapping");
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.at.cast::<u8>().add(at) }
    }

    /// A copy of a part.
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let from = self.check(at, len);
        let mut out = vec![0; len];
        // SAFETY: `from` is the start of `len` mapped bytes, `out` is as long; tests map nothing that is beyond the file's
        // last page, so that reading does not fault.
        unsafe { ptr::copy_nonoverlapping(from, out.as_mut_ptr(), len) };
        out
    }

    /// Changes a part.
    pub fn write(&self, at: usize, data: &[u8]) {
        let to = self.check(at, data.len());
        // SAFETY: as in `read`; no Rust reference to the mapped bytes exists.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
    }

    /// Writes changed pages to the file and waits.
    pub fn sync(&self) -> Result<()> {
        // SAFETY: exactly the mapping.
        unsafe { msync(self.at, self.len, MsyncFlags::SYNC) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping; it is not used afterwards.
        let _ = unsafe { munmap(self.at, self.len) };
    }
}
