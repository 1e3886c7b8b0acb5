//! How the data of a file is to be written: from the mount's options, the file's flags and its property.

use oleo_format::compress::is_supported;
use oleo_format::{Compression, InodeFlags, ItemType, dir_hash};

use crate::FsError;
use crate::data::prepare::{Compress, Policy};
use crate::object::{Core, InodeFields, Items};

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
            compress: compress.filter(|c| c.algorithm != Compression::None && is_supported(c.algorithm)),
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
