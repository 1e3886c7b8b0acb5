//! How large an image has to be for a directory of the host, as an upper bound that is not far off.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use oleo_mkfs::Made;
use oleo_volume::Profile;

/// Bytes of metadata per name: the items of an inode, its reference and its two directory entries, in leaves that are two thirds
/// full.
const ENTRY_BYTES: u64 = 600;
/// The same for each byte of the name, which is in three items.
const NAME_COPIES: u64 = 5;
/// Contents up to this many bytes lie in metadata.
const INLINE_MAX: u64 = 2048;
/// Bytes of metadata per data block: its checksum, of at most 32 bytes, and a part of an extent item.
const BLOCK_BYTES: u64 = 48;
/// Space beside the data: the first chunks, and commits.
const FIXED_BYTES: u64 = 40 << 20;

/// Bytes for everything in a directory; `None` if it cannot be listed, or does not fit any image.
pub(super) fn of_dir(top: &Path, made: &Made, device_count: u64) -> Option<u64> {
    let (sector, mut data, mut metadata) = (u64::from(made.sectorsize), 0u64, 0u64);
    let mut linked = HashSet::new();
    let mut dirs = vec![top.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).ok()? {
            let entry = entry.ok()?;
            let meta = entry.metadata().ok()?;
            metadata += ENTRY_BYTES + NAME_COPIES * entry.file_name().len() as u64;
            if meta.is_dir() {
                dirs.push(entry.path());
            } else if meta.is_file() && is_first(&meta, &mut linked) {
                let bytes = data_bytes(&meta);
                match meta.len() <= INLINE_MAX {
                    true => metadata += bytes,
                    false => {
                        data = data.checked_add(bytes.next_multiple_of(sector))?;
                        metadata += bytes.div_ceil(sector) * BLOCK_BYTES;
                    }
                }
            }
        }
    }
    let on_devices = |bytes: u64, profile: Profile| -> Option<u64> {
        let shape = profile.shape();
        let stripes =
            device_count.min(shape.devices_max.map_or(u64::MAX, u64::from)) * u64::from(shape.stripes_per_device);
        bytes.checked_mul(stripes)?.checked_div(profile.data_stripes(stripes))
    };
    // Chunks are not filled to the last byte: an eighth more.
    let used = on_devices(data, made.data)?.checked_add(on_devices(metadata, made.metadata)?)?;
    used.checked_add(used / 8)?.checked_add(FIXED_BYTES)
}

#[cfg(unix)]
fn is_first(meta: &fs::Metadata, linked: &mut HashSet<(u64, u64)>) -> bool {
    use std::os::unix::fs::MetadataExt;

    meta.nlink() < 2 || linked.insert((meta.dev(), meta.ino()))
}

#[cfg(not(unix))]
fn is_first(_: &fs::Metadata, _: &mut HashSet<(u64, u64)>) -> bool {
    true
}

/// Bytes of a file without its holes.
#[cfg(unix)]
fn data_bytes(meta: &fs::Metadata) -> u64 {
    use std::os::unix::fs::MetadataExt;

    meta.len().min(meta.blocks().saturating_mul(512))
}

#[cfg(not(unix))]
fn data_bytes(meta: &fs::Metadata) -> u64 {
    meta.len()
}
