//! Builds replies.

use zerocopy::{Immutable, IntoBytes};

use super::abi;

/// The reply to one request: a buffer of the transport's, without the header.
#[derive(Debug)]
pub struct Reply<'b> {
    out: &'b mut [u8],
    len: usize,
}

impl<'b> Reply<'b> {
    /// An empty reply in that buffer.
    pub fn new(out: &'b mut [u8]) -> Reply<'b> {
        Reply { out, len: 0 }
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that still fit.
    pub fn room(&self) -> usize {
        self.out.len() - self.len
    }

    /// Lets no more than `len` bytes in all be written.
    pub fn limit(&mut self, len: usize) {
        let out = std::mem::take(&mut self.out);
        let len = len.clamp(self.len, out.len());
        self.out = &mut out[..len];
    }

    /// What was written so far, to be changed.
    pub fn written(&mut self) -> &mut [u8] {
        &mut self.out[..self.len]
    }

    /// Takes back everything behind `len`.
    pub fn cut(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Appends bytes; false, and nothing appended, when they do not fit.
    #[must_use]
    pub fn bytes(&mut self, bytes: &[u8]) -> bool {
        let Some(to) = self.out.get_mut(self.len..self.len + bytes.len()) else { return false };
        to.copy_from_slice(bytes);
        self.len += bytes.len();
        true
    }

    /// Appends a struct.
    ///
    /// # Panics
    /// It does not fit, which no struct of the protocol can do in a transport's buffer.
    pub fn put<T: IntoBytes + Immutable>(&mut self, value: &T) {
        assert!(self.bytes(value.as_bytes()), "reply buffers hold every struct of the protocol");
    }

    /// Lets `fill` write at most `len` bytes; it returns how many it wrote.
    pub fn fill<E>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> Result<usize, E>) -> Result<(), E> {
        let len = len.min(self.room());
        let wrote = fill(&mut self.out[self.len..self.len + len])?;
        self.len += wrote.min(len);
        Ok(())
    }

    /// Appends a directory entry, preceded by its inode if the listing has inodes; false if it does not fit.
    #[must_use]
    pub fn entry(&mut self, entry: Option<&abi::EntryOut>, dirent: &abi::Dirent, name: &[u8]) -> bool {
        const ALIGN: usize = 8;
        let whole = entry.map_or(0, |_| size_of::<abi::EntryOut>()) + size_of::<abi::Dirent>() + name.len();
        let padded = whole.next_multiple_of(ALIGN);
        if self.room() < padded {
            return false;
        }
        if let Some(entry) = entry {
            self.put(entry);
        }
        self.put(dirent);
        self.bytes(name) && self.bytes(&[0; ALIGN][..padded - whole])
    }
}
