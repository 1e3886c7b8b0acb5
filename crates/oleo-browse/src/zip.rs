//! Zip archives, written from front to back (PKWARE's APPNOTE 6.3.9): deflated members with their sizes behind them, always in the form for large ones (ZIP64).
//!
//! Memory: what the central directory says of each member, some 100 bytes and its name. It ends an archive of more than [`ENTRIES_MAX`] members with an error.

use std::io::{self, Write};

use flate2::{Compress, Compression, FlushCompress, Status};
use oleo_format::print::calendar;

/// Members of an archive, at most.
const ENTRIES_MAX: usize = 4_000_000;
/// Bytes of names, at most.
const NAMES_BYTES_MAX: usize = 512 << 20;

/// Packed bytes that are handed on together.
const PACKED_LEN: usize = 32 << 10;

/// Version 4.5 of the format: ZIP64.
const VERSION: u16 = 45;
/// Sizes follow the member.
const FLAG_SIZES_BEHIND: u16 = 1 << 3;
/// The name is UTF-8.
const FLAG_UTF8: u16 = 1 << 11;
/// Made by Unix, where the upper half of the external attributes is the mode.
const MADE_BY_UNIX: u16 = 3 << 8;
const DEFLATED: u16 = 8;

/// What is known of a member before its contents.
pub(crate) struct Entry {
    pub path: Vec<u8>,
    pub mode: u32,
    /// Seconds since 1970.
    pub mtime: i64,
}

struct Written {
    entry: Entry,
    crc: u32,
    packed: u64,
    len: u64,
    at: u64,
}

/// An archive that is being written.
pub(crate) struct Zip<W: Write> {
    out: Counted<W>,
    deflate: Deflate,
    written: Vec<Written>,
    names_bytes: usize,
}

struct Counted<W> {
    out: W,
    at: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.out.write(bytes)?;
        self.at += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// What a member's contents are written to.
struct Packing<'a, W> {
    out: &'a mut Counted<W>,
    deflate: &'a mut Deflate,
    crc: flate2::Crc,
    len: u64,
}

/// The compressor of all members: a new one for each costs more than a small member does.
struct Deflate {
    state: Compress,
    packed: Vec<u8>,
}

impl<W: Write> Packing<'_, W> {
    /// Packs some bytes; returns how many, and whether the member has ended.
    fn step(&mut self, bytes: &[u8], flush: FlushCompress) -> io::Result<(usize, bool)> {
        let Deflate { state, packed } = &mut *self.deflate;
        let (taken, given) = (state.total_in(), state.total_out());
        let status = state.compress(bytes, packed, flush).map_err(io::Error::other)?;
        let (taken, given) = (state.total_in() - taken, state.total_out() - given);
        self.out.write_all(&packed[..given as usize])?;
        Ok((taken as usize, status == Status::StreamEnd))
    }
}

impl<W: Write> Write for Packing<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (taken, _) = self.step(rest, FlushCompress::None)?;
            rest = &rest[taken..];
        }
        self.crc.update(bytes);
        self.len += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<W: Write> Zip<W> {
    pub fn new(out: W) -> Zip<W> {
        let deflate = Deflate { state: Compress::new(Compression::fast(), false), packed: vec![0; PACKED_LEN] };
        Zip { out: Counted { out, at: 0 }, deflate, written: Vec::new(), names_bytes: 0 }
    }

    /// Adds a member, whose contents `write` writes. Backslashes in its path become underscores: some programs take them for slashes.
    pub fn add(&mut self, mut entry: Entry, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        entry.path.iter_mut().filter(|byte| **byte == b'\\').for_each(|byte| *byte = b'_');
        self.names_bytes += entry.path.len();
        if self.written.len() == ENTRIES_MAX || self.names_bytes > NAMES_BYTES_MAX || entry.path.len() > 0xffff {
            return Err(io::Error::other("too many files for a zip archive: take tar"));
        }
        let at = self.out.at;
        let mut head = Vec::new();
        head.extend(0x0403_4b50u32.to_le_bytes());
        head.extend(VERSION.to_le_bytes());
        common(&mut head, &entry);
        // The checksum follows; sizes that do not fit into 32 bits say that they are in the extra field.
        head.extend(0u32.to_le_bytes());
        head.extend(u32::MAX.to_le_bytes());
        head.extend(u32::MAX.to_le_bytes());
        head.extend((entry.path.len() as u16).to_le_bytes());
        head.extend(20u16.to_le_bytes());
        head.extend(&entry.path);
        head.extend(1u16.to_le_bytes());
        head.extend(16u16.to_le_bytes());
        head.extend([0; 16]);
        self.out.write_all(&head)?;
        let start = self.out.at;
        let (crc, len) = pack(&mut self.out, &mut self.deflate, write)?;
        let packed = self.out.at - start;
        let mut tail = Vec::new();
        tail.extend(0x0807_4b50u32.to_le_bytes());
        tail.extend(crc.to_le_bytes());
        tail.extend(packed.to_le_bytes());
        tail.extend(len.to_le_bytes());
        self.out.write_all(&tail)?;
        self.written.push(Written { entry, crc, packed, len, at });
        Ok(())
    }

    /// Writes the central directory.
    pub fn finish(mut self) -> io::Result<()> {
        let start = self.out.at;
        for member in &self.written {
            let mut head = Vec::new();
            head.extend(0x0201_4b50u32.to_le_bytes());
            head.extend((MADE_BY_UNIX | VERSION).to_le_bytes());
            head.extend(VERSION.to_le_bytes());
            common(&mut head, &member.entry);
            head.extend(member.crc.to_le_bytes());
            head.extend(u32::MAX.to_le_bytes());
            head.extend(u32::MAX.to_le_bytes());
            head.extend((member.entry.path.len() as u16).to_le_bytes());
            head.extend(28u16.to_le_bytes());
            // No comment, the first disk, no internal attributes.
            head.extend([0; 6]);
            head.extend((member.entry.mode << 16).to_le_bytes());
            head.extend(u32::MAX.to_le_bytes());
            head.extend(&member.entry.path);
            head.extend(1u16.to_le_bytes());
            head.extend(24u16.to_le_bytes());
            head.extend(member.len.to_le_bytes());
            head.extend(member.packed.to_le_bytes());
            head.extend(member.at.to_le_bytes());
            self.out.write_all(&head)?;
        }
        let (end, count) = (self.out.at, self.written.len() as u64);
        let mut tail = Vec::new();
        tail.extend(0x0606_4b50u32.to_le_bytes());
        tail.extend(44u64.to_le_bytes());
        tail.extend((MADE_BY_UNIX | VERSION).to_le_bytes());
        tail.extend(VERSION.to_le_bytes());
        tail.extend([0; 8]);
        tail.extend(count.to_le_bytes());
        tail.extend(count.to_le_bytes());
        tail.extend((end - start).to_le_bytes());
        tail.extend(start.to_le_bytes());
        tail.extend(0x0706_4b50u32.to_le_bytes());
        tail.extend(0u32.to_le_bytes());
        tail.extend(end.to_le_bytes());
        tail.extend(1u32.to_le_bytes());
        tail.extend(0x0605_4b50u32.to_le_bytes());
        tail.extend([0; 4]);
        tail.extend(u16::MAX.to_le_bytes());
        tail.extend(u16::MAX.to_le_bytes());
        tail.extend(u32::MAX.to_le_bytes());
        tail.extend(u32::MAX.to_le_bytes());
        tail.extend(0u16.to_le_bytes());
        self.out.write_all(&tail)?;
        self.out.flush()
    }
}

/// Writes the contents of a member; their checksum and length.
fn pack<W: Write>(
    out: &mut Counted<W>,
    deflate: &mut Deflate,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<(u32, u64)> {
    deflate.state.reset();
    let mut packing = Packing { out, deflate, crc: flate2::Crc::new(), len: 0 };
    write(&mut packing)?;
    while !packing.step(&[], FlushCompress::Finish)?.1 {}
    Ok((packing.crc.sum(), packing.len))
}

/// Flags, method and time, as both heads have them.
fn common(head: &mut Vec<u8>, entry: &Entry) {
    let utf8 = if std::str::from_utf8(&entry.path).is_ok() { FLAG_UTF8 } else { 0 };
    head.extend((FLAG_SIZES_BEHIND | utf8).to_le_bytes());
    head.extend(DEFLATED.to_le_bytes());
    let (time, date) = dos_time(entry.mtime);
    head.extend(time.to_le_bytes());
    head.extend(date.to_le_bytes());
}

/// Time and date as DOS has them, in UTC: from 1980 to 2107, in steps of two seconds.
fn dos_time(sec: i64) -> (u16, u16) {
    /// 1980-01-01 and the end of 2107.
    const SPAN: (i64, i64) = (315_532_800, 4_354_819_199);
    let sec = sec.clamp(SPAN.0, SPAN.1);
    let of_day = sec.rem_euclid(86_400);
    let (year, month, day) = calendar(sec.div_euclid(86_400));
    let time = ((of_day / 3600) << 11) | ((of_day / 60 % 60) << 5) | (of_day % 60 / 2);
    let date = ((year - 1980) << 9) | (month << 5) | day;
    (time as u16, date as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: times are as DOS has them, and clamped where it has none.
    #[test]
    fn times() {
        assert_eq!(dos_time(0), (0, (1 << 5) | 1));
        assert_eq!(
            dos_time(951_782_400 + 3 * 3600 + 4 * 60 + 7),
            ((3 << 11) | (4 << 5) | 3, (20 << 9) | (2 << 5) | 29)
        );
        assert_eq!(dos_time(i64::MAX), ((23 << 11) | (59 << 5) | 29, (127 << 9) | (12 << 5) | 31));
    }

    /// Goal: what other programs read out of an archive is what was put in. Method: Python's zipfile verifies and lists it.
    #[test]
    fn others_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.zip");
        let mut zip = Zip::new(std::fs::File::create(&path).unwrap());
        let entry = |path: &[u8]| Entry { path: path.to_vec(), mode: 0o100_644, mtime: 951_782_400 };
        zip.add(entry(b"dir/"), |_| Ok(())).unwrap();
        zip.add(entry("dir/größe".as_bytes()), |out| out.write_all(&[7; 300_000])).unwrap();
        zip.add(entry(b"empty"), |_| Ok(())).unwrap();
        zip.finish().unwrap();
        let script = "import sys,zipfile\nz=zipfile.ZipFile(sys.argv[1])\nassert z.testzip() is None\n\
                      print([(i.filename,i.file_size,i.date_time,oct(i.external_attr>>16)) for i in z.infolist()])\n\
                      assert z.read('dir/größe')==bytes([7])*300000";
        let out = std::process::Command::new("python3").arg("-c").arg(script).arg(&path).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let text = String::from_utf8(out.stdout).unwrap();
        assert!(text.contains("('dir/größe', 300000, (2000, 2, 29, 0, 0, 0), '0o100644')"), "{text}");
    }
}
