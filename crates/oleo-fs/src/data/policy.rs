//! How the data of a file is to be written: from the mount's options, the file's flags and its property.

use std::time::Duration;

use oleo_format::{Compression, InodeFlags, ItemType, dir_hash};

use crate::FsError;
use crate::core::Core;
use crate::data::prepare::{Compress, Policy};
use crate::inode::{InodeFields, Items};

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

/// The extended attribute that asks for compression.
const PROPERTY: &[u8] = b"btrfs.compression";

impl Core {
    /// How the data of a file with these fields and items is written.
    pub(crate) fn policy(&self, fields: &InodeFields, items: &(impl Items + ?Sized)) -> Result<Policy, FsError> {
        let flags = InodeFlags::from_bits_retain(fields.flags);
        let engine = self.engine();
        let no_sum = flags.contains(InodeFlags::NODATASUM);
        let opts = &self.opts.data;
        // Compressed data needs checksums and is never overwritten in place.
        let compress = if no_sum || flags.intersects(InodeFlags::NODATACOW | InodeFlags::NOCOMPRESS) {
            None
        } else {
            match property(items)? {
                Some(algorithm) => {
                    let level = opts.compress.filter(|c| c.algorithm == algorithm).map_or(0, |c| c.level);
                    Some(Compress { algorithm, level, force: false })
                }
                None if flags.contains(InodeFlags::COMPRESS) && opts.compress.is_none() => {
                    Some(Compress { algorithm: Compression::Zlib, level: 0, force: false })
                }
                None => opts.compress,
            }
        };
        Ok(Policy {
            sectorsize: engine.sectorsize(),
            csum: (!no_sum).then(|| engine.csum_type()),
            compress: compress.filter(|c| c.algorithm != Compression::None),
            inline_max: opts.inline_max.min(engine.sectorsize() - 1).min(inline_room(engine.nodesize())),
            threads: opts.threads,
        })
    }
}

/// The most inline bytes that fit into a leaf with one item.
fn inline_room(nodesize: u32) -> u32 {
    let room = oleo_format::item_len_max(nodesize).saturating_sub(size_of::<oleo_format::FileExtentHead>());
    u32::try_from(room).unwrap_or(u32::MAX)
}

/// The algorithm that the file's property asks for.
fn property(items: &(impl Items + ?Sized)) -> Result<Option<Compression>, FsError> {
    let Some(item) = items.get(ItemType::XATTR_ITEM, u64::from(dir_hash(PROPERTY)))? else { return Ok(None) };
    for entry in oleo_format::DirEntry::parse_all(&item)? {
        if entry.name == PROPERTY {
            return Ok(Some(match entry.data.as_slice() {
                b"zlib" => Compression::Zlib,
                b"lzo" => Compression::Lzo,
                b"zstd" => Compression::Zstd,
                _ => Compression::None,
            }));
        }
    }
    Ok(None)
}
