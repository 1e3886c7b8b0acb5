//! A regular file: reads and writes at offsets, from any number of threads. `File::cursor` keeps a position.

use oleo_fs::{Attr, Fs, InodeRef};

use crate::{Error, Result};

/// An open regular file of an image. Clones are the same file; all methods may be called from many threads in parallel.
#[derive(Clone)]
pub struct File {
    fs: Fs,
    inode: InodeRef,
}

impl File {
    pub(crate) fn new(fs: Fs, inode: InodeRef) -> File {
        File { fs, inode }
    }

    /// The inode, for what [`Fs`] offers beyond this.
    pub fn inode(&self) -> &InodeRef {
        &self.inode
    }

    /// What is known of the file.
    pub fn attr(&self) -> Attr {
        self.fs.attr(&self.inode)
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.attr().size
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads at a byte offset; fewer bytes than asked for mean the end of the file.
    ///
    /// # Errors
    /// No good copy of the data is left, or a device failed.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        Ok(self.fs.read(&self.inode, offset, buf)?)
    }

    /// All of it.
    ///
    /// # Errors
    /// As [`File::read_at`]; or it is larger than memory can be.
    pub fn read_to_end(&self) -> Result<Vec<u8>> {
        /// Bytes of one read: memory grows as there is data, not as the size claims.
        const STEP: usize = 4 << 20;
        let mut all = Vec::new();
        loop {
            let have = all.len();
            let want = usize::try_from(self.len().saturating_sub(have as u64)).unwrap_or(usize::MAX).min(STEP);
            if want == 0 {
                return Ok(all);
            }
            all.try_reserve(want)
                .map_err(|_| Error::refused(oleo_fs::errno::ENOMEM, "the file is larger than memory"))?;
            all.resize(have + want, 0);
            let n = self.read_at(&mut all[have..], have as u64)?;
            all.truncate(have + n);
            if n == 0 {
                return Ok(all);
            }
        }
    }

    /// Writes at a byte offset; the file grows where it must.
    ///
    /// # Errors
    /// There is no room.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        Ok(self.fs.write(&self.inode, offset, data)?)
    }

    /// Makes it this many bytes long: shorter, or longer by a hole.
    ///
    /// # Errors
    /// There is no room for the change of metadata.
    pub fn set_len(&self, len: u64) -> Result<()> {
        Ok(self.fs.truncate(&self.inode, len)?)
    }
}
