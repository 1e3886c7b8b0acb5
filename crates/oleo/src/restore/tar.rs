//! Restores as a tar archive in pax format.
//!
//! What ustar fields cannot say goes into a pax header: long names, large numbers, nanoseconds, times of change and
//! birth (the latter as a comment, which other programs skip), extended attributes (as `SCHILY.xattr.`), holes (GNU's
//! sparse format 1.0, which GNU tar and bsdtar read).
//! Sockets, which tar does not know, are written as fifos with `SCHILY.filetype=socket`; Oleo takes them back as sockets.
//!
//! The order is that of creation, depth first. One thread reads, another writes the archive; or, on request, the caller's does both.

use std::collections::HashMap;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::Arc;
use std::thread;

use crossbeam_channel::bounded;
use oleo_format::{Ino, TreeId};
use oleo_fs::{Attr, Descent, DirEntryInfo, FileKind, FsError, InodeRef, Target, Time};
use tar::{EntryType, Header};

use super::damage;
use super::place::Place;
use super::{Failures, RestoreOptions, RestoreReport};
use crate::{Error, Image, Result};

/// Bytes of a file read at a time.
const STEP_BYTES: usize = 1 << 20;
/// Pieces of the archive that wait to be written.
const STEPS_AHEAD: usize = 16;
/// Entries of a directory read at a time.
const ENTRIES_AT_ONCE: usize = 1024;
/// Runs of data of one file; beyond that, holes are written as zeros.
const RUNS_MAX: usize = 1 << 20;
/// Bytes of holes of one file that are written as zeros, at most.
const HOLES_WRITTEN_MAX: u64 = 64 << 30;
/// Files up to this size whose inode says that they have no holes are believed: as many zeros can be written where it lies.
const BELIEVED_BYTES: u64 = 1 << 20;
const BLOCK: usize = 512;
/// The largest number in the eight octal digits of owner and group, and in the twelve of size and time.
const OCTAL_8_MAX: u64 = 0o7_777_777;
const OCTAL_12_MAX: u64 = 0o77_777_777_777;

/// Writes what is at `from`, and everything below, as a tar archive. Names in the archive begin with `name`; with an
/// empty one, with `./`.
///
/// # Errors
/// [`Error::Incomplete`] if some entries are not in the archive, or not whole. The output cannot be written.
pub fn restore_to_tar(
    image: &Image,
    from: &InodeRef,
    name: &[u8],
    mut output: impl Write + Send,
    options: &RestoreOptions,
) -> Result<RestoreReport> {
    if options.threads == 1 {
        let report =
            archived(image, from, name, &mut |bytes| output.write_all(&bytes).map_err(Error::Output), options)?;
        output.flush().map_err(Error::Output)?;
        return Ok(report);
    }
    let (sender, receiver) = bounded::<Vec<u8>>(STEPS_AHEAD);
    thread::scope(|scope| {
        let writer = scope.spawn(move || -> io::Result<()> {
            for bytes in receiver {
                output.write_all(&bytes)?;
            }
            output.flush()
        });
        // If the writer has ended, it was with an error of its own, which counts.
        let ended = |_| Error::refused(oleo_fs::errno::EPIPE, "the output was closed");
        let read = archived(image, from, name, &mut |bytes| sender.send(bytes).map_err(ended), options);
        drop(sender);
        let written = writer.join().unwrap_or_else(|_| Err(io::Error::other("the writing thread has ended")));
        written.map_err(Error::Output)?;
        read
    })
}

/// Hands on the archive, piece by piece.
fn archived(
    image: &Image,
    from: &InodeRef,
    name: &[u8],
    output: &mut dyn FnMut(Vec<u8>) -> Result<()>,
    options: &RestoreOptions,
) -> Result<RestoreReport> {
    let mut archive = Archive {
        image,
        options,
        output,
        links: HashMap::new(),
        failures: Failures::default(),
        report: RestoreReport::default(),
    };
    archive.all(from, name)?;
    if let Some(on_progress) = &options.on_progress {
        on_progress(&archive.report.done);
    }
    archive.failures.result(archive.report)
}

struct Archive<'a> {
    image: &'a Image,
    options: &'a RestoreOptions,
    output: &'a mut dyn FnMut(Vec<u8>) -> Result<()>,
    /// The first names of inodes with several.
    links: HashMap<(TreeId, Ino), FirstName>,
    failures: Failures,
    report: RestoreReport,
}

/// The first name of an inode with several.
struct FirstName {
    place: Arc<Place>,
    /// How many names are still to come at most.
    left: u32,
}

/// A directory whose entries are being written.
struct Open {
    inode: InodeRef,
    place: Arc<Place>,
    /// The length of its path with a slash at its end.
    prefix_len: usize,
    /// Where to read on; `None` at the end.
    next: Option<u64>,
    entries: std::vec::IntoIter<DirEntryInfo>,
}

impl Archive<'_> {
    fn send(&mut self, bytes: Vec<u8>) -> Result<()> {
        (self.output)(bytes)
    }

    /// Reports that something at a path is not in the archive, or not whole.
    fn fail(&mut self, path: &[u8], error: impl Into<Error>) -> Result<()> {
        self.failures.note(error.into().at(path.escape_ascii()), self.options)
    }

    fn all(&mut self, from: &InodeRef, name: &[u8]) -> Result<()> {
        let name = if name.is_empty() { b"." } else { name };
        let mut descent = Descent::new(from);
        // One path for all levels; each has a longer part of it.
        let mut path = name.to_vec();
        let mut open: Vec<Open> = Vec::new();
        open.extend(self.entry(from, &path, Place::new(name))?);
        while let Some(dir) = open.last_mut() {
            let Some(entry) = dir.entries.next() else {
                let Some(after) = dir.next else {
                    open.pop();
                    continue;
                };
                let listed = damage::list(self.image.fs(), &dir.inode, after, ENTRIES_AT_ONCE);
                (dir.entries, dir.next) = (listed.entries.into_iter(), listed.next);
                if let Some(error) = listed.lost {
                    path.truncate(dir.prefix_len);
                    let error = Error::from(error).at("some entries could not be read");
                    self.fail(&path, error)?;
                }
                continue;
            };
            path.truncate(dir.prefix_len - 1);
            path.push(b'/');
            path.extend_from_slice(&entry.name);
            if let (Target::Subvol(_), true) = (entry.target, self.options.one_subvol) {
                let mut header = Header::new_ustar();
                header.set_mode(0o755);
                self.header(header, EntryType::Directory, &[&path[..], b"/"].concat(), b"", 0, Vec::new())?;
                continue;
            }
            match self.image.fs().open_entry(&dir.inode, &entry) {
                // The inode decides: entries may lie.
                Ok(Some(child))
                    if self.image.fs().attr(&child).kind == FileKind::Dir
                        && !descent.enters(self.image.fs(), &dir.inode, &entry.name, &child) =>
                {
                    let place = path.escape_ascii();
                    self.report.warn(|| format!("{place}: left out, the directory is elsewhere too"));
                }
                Ok(Some(child)) => {
                    let place = dir.place.child(&entry.name);
                    open.extend(self.entry(&child, &path, place)?);
                }
                Ok(None) => match damage::missing_inode(self.image.fs(), &dir.inode, &entry) {
                    Some(error) => self.fail(&path, error)?,
                    None => self.report.warn(|| format!("{}: was removed meanwhile", path.escape_ascii())),
                },
                Err(error) => self.fail(&path, error)?,
            }
        }
        self.send(vec![0; 2 * BLOCK])
    }

    /// Writes one member; a directory is returned to have its entries written.
    fn entry(&mut self, inode: &InodeRef, path: &[u8], place: Arc<Place>) -> Result<Option<Open>> {
        let attr = self.image.fs().attr(inode);
        if attr.nlink > 1 && attr.kind != FileKind::Dir {
            let key = (attr.subvol, attr.ino);
            if let Some(first) = self.links.get_mut(&key) {
                first.left -= 1;
                let (target, is_last) = (first.place.path(), first.left == 0);
                if is_last {
                    self.links.remove(&key);
                }
                self.member(&attr, EntryType::Link, path, &target, 0, Vec::new())?;
                self.report.done.links += 1;
                return Ok(None);
            }
        }
        let mut pax: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        match self.image.fs().xattrs(inode) {
            Ok(all) => {
                pax.extend(all.into_iter().map(|(name, value)| ([b"SCHILY.xattr.".as_slice(), &name].concat(), value)));
            }
            Err(error) => {
                self.fail(path, Error::from(error).at("the extended attributes could not be read"))?;
            }
        }
        match attr.kind {
            FileKind::Dir => {
                self.report.done.dirs += 1;
                let prefix = [path, b"/"].concat();
                self.member(&attr, EntryType::Directory, &prefix, b"", 0, pax)?;
                let (inode, prefix_len) = (inode.clone(), prefix.len());
                return Ok(Some(Open { inode, place, prefix_len, next: Some(0), entries: Vec::new().into_iter() }));
            }
            FileKind::File => {
                self.report.done.files += 1;
                if !self.file(inode, &attr, path, pax)? {
                    return Ok(None);
                }
            }
            FileKind::Symlink => match self.image.fs().read_link(inode) {
                Ok(target) => {
                    self.report.done.others += 1;
                    self.member(&attr, EntryType::Symlink, path, &target, 0, pax)?;
                }
                Err(error) => {
                    self.fail(path, error)?;
                    return Ok(None);
                }
            },
            FileKind::CharDevice => self.special(&attr, EntryType::Char, path, pax)?,
            FileKind::BlockDevice => self.special(&attr, EntryType::Block, path, pax)?,
            FileKind::Fifo => self.special(&attr, EntryType::Fifo, path, pax)?,
            FileKind::Socket => {
                pax.push((b"SCHILY.filetype".to_vec(), b"socket".to_vec()));
                self.special(&attr, EntryType::Fifo, path, pax)?;
            }
            _ => {
                self.fail(path, damage::unknown_kind(attr.mode))?;
                return Ok(None);
            }
        }
        if attr.nlink > 1 {
            self.links.insert((attr.subvol, attr.ino), FirstName { place, left: attr.nlink - 1 });
        }
        if let Some(on_progress) = &self.options.on_progress {
            on_progress(&self.report.done);
        }
        Ok(None)
    }

    fn special(&mut self, attr: &Attr, kind: EntryType, path: &[u8], pax: Vec<(Vec<u8>, Vec<u8>)>) -> Result<()> {
        self.report.done.others += 1;
        self.member(attr, kind, path, b"", 0, pax)
    }

    /// Writes a regular file; returns whether it is in the archive. Bytes that cannot be read are zeros.
    fn file(&mut self, inode: &InodeRef, attr: &Attr, path: &[u8], mut pax: Vec<(Vec<u8>, Vec<u8>)>) -> Result<bool> {
        let believed = attr.nbytes >= attr.size && attr.size <= BELIEVED_BYTES;
        let mut lost = Lost::default();
        let runs = match believed {
            true => vec![(0, attr.size)],
            false => match self.runs(inode, attr, &mut lost) {
                Ok(runs) => runs,
                Err(error) => {
                    self.fail(path, error)?;
                    return Ok(false);
                }
            },
        };
        let total: u64 = runs.iter().map(|(start, end)| end - start).sum();
        if total == attr.size {
            self.member(attr, EntryType::Regular, path, b"", attr.size, pax)?;
        } else {
            let mut map = format!("{}\n", runs.len()).into_bytes();
            for (start, end) in &runs {
                map.extend_from_slice(format!("{start}\n{}\n", end - start).as_bytes());
            }
            map.resize(map.len().next_multiple_of(BLOCK), 0);
            for (key, value) in [("major", "1".into()), ("minor", "0".into()), ("realsize", attr.size.to_string())] {
                pax.push((format!("GNU.sparse.{key}").into_bytes(), value.into_bytes()));
            }
            pax.push((b"GNU.sparse.name".to_vec(), path.to_vec()));
            self.member(attr, EntryType::Regular, path, b"", total + map.len() as u64, pax)?;
            self.send(map)?;
        }
        for &(start, end) in &runs {
            let mut at = start;
            while at < end {
                let want = STEP_BYTES.min(usize::try_from(end - at).unwrap_or(usize::MAX));
                let bytes = self.bytes(inode, at, want, &mut lost);
                at += want as u64;
                self.report.done.data_bytes += want as u64;
                self.send(bytes)?;
            }
        }
        let padding = total.wrapping_neg() % BLOCK as u64;
        if padding > 0 {
            self.send(vec![0; padding as usize])?;
        }
        if let Some(why) = lost.why {
            let bytes = lost.bytes;
            self.fail(path, Error::from(why).at(format!("up to {bytes} bytes could not be read and are zeros")))?;
        }
        Ok(true)
    }

    /// Bytes of a file. If they cannot be read together, each sector that can be read is read by itself. The header has
    /// promised this many, so bytes that are lost or behind the end are zeros.
    fn bytes(&self, inode: &InodeRef, at: u64, len: usize, lost: &mut Lost) -> Vec<u8> {
        let fs = self.image.fs();
        let mut bytes = vec![0; len];
        let first = match fs.read(inode, at, &mut bytes) {
            Ok(n) => {
                bytes[n..].fill(0);
                return bytes;
            }
            Err(error) => error,
        };
        if !damage::is_damage(&first) {
            lost.add(len as u64, first);
            return vec![0; len];
        }
        let sector = fs.engine().sectorsize() as usize;
        let mut from = at;
        for part in bytes.chunks_mut(sector) {
            match fs.read(inode, from, part) {
                Ok(n) => part[n..].fill(0),
                Err(error) => {
                    part.fill(0);
                    lost.add(part.len() as u64, error);
                }
            }
            from += part.len() as u64;
        }
        bytes
    }

    /// The runs of a file that hold data, as start and end. Those that cannot be read count as holes.
    fn runs(&self, inode: &InodeRef, attr: &Attr, lost: &mut Lost) -> Result<Vec<(u64, u64)>> {
        let fs = self.image.fs();
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let (mut at, mut filled) = (0, 0);
        while let Some(run) = damage::next_run(fs, inode, at, attr.size) {
            let Range { start, end } = run.range;
            at = end;
            if let Some(why) = run.lost {
                lost.add(end - start, why);
                continue;
            }
            let full = runs.len() >= RUNS_MAX;
            match runs.last_mut() {
                Some(last) if last.1 == start => last.1 = end,
                Some(last) if full => {
                    filled += start - last.1;
                    if filled > HOLES_WRITTEN_MAX {
                        return Err(Error::Request(format!("more than {RUNS_MAX} holes; restore it into a directory")));
                    }
                    last.1 = end;
                }
                _ => runs.push((start, end)),
            }
        }
        Ok(runs)
    }

    fn member(
        &mut self,
        attr: &Attr,
        kind: EntryType,
        path: &[u8],
        link: &[u8],
        size: u64,
        mut pax: Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Result<()> {
        let mut header = Header::new_ustar();
        header.set_mode(attr.mode & 0o7777);
        for (key, value) in [("uid", attr.uid), ("gid", attr.gid)] {
            if u64::from(value) > OCTAL_8_MAX {
                pax.push((key.into(), value.to_string().into_bytes()));
            }
        }
        header.set_uid(u64::from(attr.uid).min(OCTAL_8_MAX));
        header.set_gid(u64::from(attr.gid).min(OCTAL_8_MAX));
        let whole = u64::try_from(attr.mtime.sec).ok().filter(|&sec| sec <= OCTAL_12_MAX);
        header.set_mtime(whole.unwrap_or(0));
        if whole.is_none() || attr.mtime.nsec != 0 {
            pax.push((b"mtime".to_vec(), stamp(attr.mtime)));
        }
        for (key, time) in [("atime", attr.atime), ("ctime", attr.ctime)] {
            if time != attr.mtime {
                pax.push((key.into(), stamp(time)));
            }
        }
        if attr.otime != attr.mtime {
            // No keyword for it is known to GNU tar, which complains about others for every file.
            pax.push((b"comment".to_vec(), [b"birth ".as_slice(), &stamp(attr.otime)].concat()));
        }
        if matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice) && kind != EntryType::Link {
            let fits = header.set_device_major(attr.rdev.major).and(header.set_device_minor(attr.rdev.minor));
            if let Err(error) = fits {
                return self.fail(path, Error::Request(error.to_string()));
            }
        }
        self.header(header, kind, path, link, size, pax)
    }

    /// Completes a header, with a pax header before it where it needs one, and writes both.
    fn header(
        &mut self,
        mut header: Header,
        kind: EntryType,
        path: &[u8],
        link: &[u8],
        size: u64,
        mut pax: Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Result<()> {
        header.set_entry_type(kind);
        // Names go into the fields as bytes; what does not fit into them goes into the pax header whole.
        for (at, len, key, value) in [(0, 100, "path", path), (157, 100, "linkpath", link)] {
            if value.len() > len || !value.is_ascii() {
                pax.push((key.into(), value.to_vec()));
            }
            let short = &value[..value.len().min(len)];
            header.as_mut_bytes()[at..at + short.len()].copy_from_slice(short);
        }
        if size > OCTAL_12_MAX {
            pax.push((b"size".to_vec(), size.to_string().into_bytes()));
        }
        header.set_size(size.min(OCTAL_12_MAX));
        header.set_cksum();
        let mut bytes = Vec::new();
        if !pax.is_empty() {
            let body: Vec<u8> = pax.iter().flat_map(|(key, value)| pax_line(key, value)).collect();
            let mut extended = Header::new_ustar();
            extended.as_mut_bytes()[..9].copy_from_slice(b"PaxHeader");
            extended.set_entry_type(EntryType::XHeader);
            extended.set_mode(0o644);
            extended.set_size(body.len() as u64);
            extended.set_cksum();
            bytes.extend_from_slice(extended.as_bytes());
            bytes.extend_from_slice(&body);
            bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        }
        bytes.extend_from_slice(header.as_bytes());
        self.send(bytes)
    }
}

/// Bytes of one file that could not be read.
#[derive(Default)]
struct Lost {
    bytes: u64,
    /// Why the first of them could not.
    why: Option<FsError>,
}

impl Lost {
    fn add(&mut self, bytes: u64, why: FsError) {
        self.bytes += bytes;
        self.why.get_or_insert(why);
    }
}

/// `length key=value\n`, where the length counts its own digits too.
fn pax_line(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    while len != rest + len.to_string().len() {
        len = rest + len.to_string().len();
    }
    [len.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}

/// Seconds with nine decimals, before 1970 with a minus sign.
fn stamp(time: Time) -> Vec<u8> {
    match (time.sec, time.nsec) {
        (sec, 0) => sec.to_string(),
        (sec, nsec) if sec >= 0 => format!("{sec}.{nsec:09}"),
        (sec, nsec) => format!("-{}.{:09}", -(sec + 1), 1_000_000_000 - nsec),
    }
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a directory behind an entry that claims to be a file is entered once, like any other. Method: in an image with sound checksums, the entry is led to the directory above.
    #[test]
    fn circles_of_entries_that_lie() {
        /// Accepts this many bytes and no more.
        struct Room(usize);
        impl Write for Room {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 = self.0.checked_sub(bytes.len()).ok_or_else(|| io::Error::other("too much"))?;
                Ok(bytes.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("disk.img");
        let image = Image::create(&path, 512 << 20).unwrap();
        image.create_dirs(&image.top().unwrap(), b"outer/inner").unwrap();
        image.write("outer/inner/leads back", b"").unwrap();
        let to = image.find("outer").unwrap().ino().0;
        image.close().unwrap();
        let rot = oleo_sim::rot::Rot::survey(&path).unwrap();
        let name = b"leads back";
        let mut led = 0;
        for index in 0..rot.blocks() {
            let mut bytes = rot.block(index).unwrap();
            // The item of an entry: the key that it leads to, 13 bytes, the name.
            let is_entry = |at: &usize| bytes[*at..].starts_with(name) && bytes[at - 1] == 1 && bytes[at - 22] == 1;
            let ats: Vec<usize> = (130..bytes.len() - name.len()).filter(is_entry).collect();
            led += ats.len();
            ats.iter().for_each(|at| bytes[at - 30..at - 22].copy_from_slice(&to.to_le_bytes()));
            if !ats.is_empty() {
                std::mem::forget(rot.inflict(&rot.replace(index, &bytes)).unwrap());
            }
        }
        assert!(led >= 2, "an entry by name and one by number");
        let image = Image::open(&path, &crate::OpenOptions::default()).unwrap();
        let outer = image.find("outer").unwrap();
        let done = restore_to_tar(&image, &outer, b"outer", Room(1 << 20), &RestoreOptions::default()).unwrap();
        assert!(matches!(&done.warnings[..], [one] if one.contains("elsewhere too")), "{:?}", done.warnings);
    }

    /// Goal: the length of a pax line counts itself, also where that adds a digit.
    #[test]
    fn pax_lengths() {
        for len in 0..300 {
            let line = pax_line(b"key", &vec![b'x'; len]);
            let reported: usize = std::str::from_utf8(&line).unwrap().split(' ').next().unwrap().parse().unwrap();
            assert_eq!(reported, line.len());
        }
    }

    /// Goal: times before 1970 keep their fractions.
    #[test]
    fn negative_times() {
        assert_eq!(stamp(Time { sec: -2, nsec: 750_000_000 }), b"-1.250000000");
        assert_eq!(stamp(Time { sec: 5, nsec: 1 }), b"5.000000001");
    }
}
