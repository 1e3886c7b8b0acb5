//! How the data of all files is to be written.

use std::time::Duration;

use oleo_format::InodeFlags;

use crate::data::prepare::Compress;

/// How file data is written.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DataOptions {
    /// Bytes that may wait in memory before a writer has to write them out.
    pub dirty_bytes_max: u64,
    /// Bytes from which on [`Fs::write_back`](crate::Fs::write_back) has something to do; `None`: a quarter of
    /// `dirty_bytes_max`.
    pub dirty_background_max: Option<u64>,
    /// Files with bytes that have waited for longer than this are written back however few there are.
    pub dirty_age_max: Duration,
    /// Decompressed bytes of compressed extents kept for reads of other parts of them.
    pub unpacked_bytes_max: u64,
    /// Files up to this many bytes are kept in their item; at most a sector less one byte.
    pub inline_max: u32,
    /// Compress new data of all files.
    pub compress: Option<Compress>,
    /// Flags that new files get beside those of their directory; of use are NODATASUM, and both of NODATACOW and NODATASUM.
    pub new_file_flags: InodeFlags,
    /// For reading: take data as it is, whatever its checksums say.
    pub ignore_csums: bool,
    /// Compress and compute checksums of large writes on all cores.
    pub threads: bool,
}

impl Default for DataOptions {
    fn default() -> DataOptions {
        DataOptions {
            dirty_bytes_max: 128 << 20,
            dirty_background_max: None,
            dirty_age_max: Duration::from_secs(30),
            unpacked_bytes_max: 16 << 20,
            // The kernel's default of max_inline.
            inline_max: 2048,
            compress: None,
            new_file_flags: InodeFlags::empty(),
            ignore_csums: false,
            threads: true,
        }
    }
}

oleo_format::setters!(DataOptions {
    dirty_bytes_max: u64,
    dirty_background_max: Option<u64>,
    dirty_age_max: Duration,
    unpacked_bytes_max: u64,
    inline_max: u32,
    compress: Option<Compress>,
    new_file_flags: InodeFlags,
    ignore_csums: bool,
    threads: bool,
});

impl DataOptions {
    /// Bytes from which on they are written back in the background.
    pub fn background_max(&self) -> u64 {
        self.dirty_background_max.unwrap_or(self.dirty_bytes_max / 4)
    }
}
