//! The extents of a file, as the kernel's FIEMAP reports them: `struct fiemap` and `struct fiemap_extent` of `linux/fiemap.h`.

use std::fs::File;

use anyhow::{Context, Result, ensure};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

use super::Piece;

/// Numbers of 32 bits of `struct fiemap` without extents, and of one extent.
const HEAD: usize = 8;
const EXTENT: usize = 14;
/// Extents of one call at most.
const ROOM: usize = 128;
/// `FS_IOC_FIEMAP` of `linux/fs.h`. Its number has the size of the struct without extents.
const FIEMAP: Opcode = opcode::read_write::<[u32; HEAD]>(b'f', 11);
/// `FIEMAP_EXTENT_LAST` and others.
const LAST: u32 = 0x1;
const ENCODED: u32 = 0x8;
const INLINE: u32 = 0x200;
const UNWRITTEN: u32 = 0x800;

/// Returns the extents of a file, in order.
///
/// # Errors
/// The file system has no FIEMAP, or answers with extents that do not follow each other.
pub(super) fn extents(file: &File) -> Result<Vec<Piece>> {
    let mut out: Vec<Piece> = Vec::new();
    loop {
        let start = out.last().map_or(0, |last| last.at + last.len);
        let found = from(file, start)?;
        let is_last = found.last().is_none_or(|(_, flags)| flags & LAST != 0);
        for (piece, _) in found {
            let end = out.last().map_or(0, |last| last.at + last.len);
            ensure!(piece.at >= end && piece.len > 0, "{piece:?} after {end}");
            out.push(piece);
        }
        if is_last {
            return Ok(out);
        }
    }
}

/// Some extents from an offset on, with their flags.
#[allow(unsafe_code, reason = "rustix has no wrapper for it")]
fn from(file: &File, start: u64) -> Result<Vec<(Piece, u32)>> {
    let mut words = [0u32; HEAD + EXTENT * ROOM];
    // Where to begin, how far to look, how many extents there is room for.
    set(&mut words[0..2], start);
    set(&mut words[2..4], u64::MAX - start);
    words[6] = ROOM as u32;
    // SAFETY: the kernel reads and writes the struct and as many extents as `words[6]` says; any numbers are a value of the array.
    let updater = unsafe { Updater::<FIEMAP, [u32; HEAD + EXTENT * ROOM]>::new(&mut words) };
    // SAFETY: the request has this number on all file systems; the array lives as long as the call.
    unsafe { ioctl(file, updater) }.context("FIEMAP")?;
    let extents = words[HEAD..].chunks_exact(EXTENT).take(words[5] as usize);
    let piece = |extent: &[u32]| {
        let flags = extent[10];
        let piece = Piece {
            at: get(&extent[0..2]),
            address: get(&extent[2..4]),
            len: get(&extent[4..6]),
            unwritten: flags & UNWRITTEN != 0,
            inline: flags & INLINE != 0,
            encoded: flags & ENCODED != 0,
        };
        (piece, flags)
    };
    Ok(extents.map(piece).collect())
}

/// A number of 64 bits lies in two of 32, in the order of the machine.
fn get(pair: &[u32]) -> u64 {
    let (first, second) = (u64::from(pair[0]), u64::from(pair[1]));
    if cfg!(target_endian = "little") { second << 32 | first } else { first << 32 | second }
}

fn set(pair: &mut [u32], number: u64) {
    let (low, high) = (number as u32, (number >> 32) as u32);
    pair.copy_from_slice(&if cfg!(target_endian = "little") { [low, high] } else { [high, low] });
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::oracle::{oracle, run};

    /// Goal: every extent is reported, also if there are more than one call has room for, with what `filefrag` shows of it. Method: a
    /// file of the kernel with extents between holes, preallocated space and an inline file.
    #[test]
    fn as_filefrag_shows() {
        let Some(oracle) = oracle() else { return };
        let scratch = oracle.scratch().unwrap();
        let image = scratch.image("image", 256 << 20).unwrap();
        oracle.mkfs(&[], &[&image]).unwrap();
        let mounted = oracle.mount(&[&image], "").unwrap();
        let (many, inline) = (mounted.path().join("many"), mounted.path().join("inline"));
        let file = File::create_new(&many).unwrap();
        for n in 0..300 {
            file.write_all_at(&[n as u8; 4096], n * 8192).unwrap();
        }
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, 3 << 20, 1 << 20).unwrap();
        drop(file);
        std::fs::write(&inline, b"few bytes").unwrap();
        mounted.sync().unwrap();
        for path in [&many, &inline] {
            let text = run("filefrag", ["-v".as_ref(), "-b1".as_ref(), path.as_os_str()]).unwrap();
            let shown: Vec<(u64, u64, bool, bool)> = text
                .lines()
                .filter_map(|line| {
                    // `   0:        0..   40959:   13631488..  13672447:  40960: last,shared`
                    let fields: Vec<&str> = line.split(':').map(str::trim).collect();
                    fields.first()?.parse::<u64>().ok()?;
                    let start = |at: usize| fields.get(at)?.split_once("..")?.0.trim().parse::<u64>().ok();
                    let flags = fields.last()?;
                    Some((start(1)?, start(2)?, flags.contains("unwritten"), flags.contains("inline")))
                })
                .collect();
            let ours = extents(&File::open(path).unwrap()).unwrap();
            let ours: Vec<_> = ours.iter().map(|p| (p.at, p.address, p.unwritten, p.inline)).collect();
            assert_eq!(ours, shown);
        }
        mounted.unmount().unwrap();
    }
}
