//! Directories as archives, written as they are read.
//!
//! An archive that is not whole does not end as if it were: what cannot be entered or has vanished ends it with an error, after everything else, which cuts the connection. What zip has no
//! place for is named in a member of its own: also files with so many holes that their zeros would have no end.

use std::io::{self, Write};

use oleo_fs::{Descent, DirEntryInfo, FileKind, Fs, FsError, InodeRef};

use crate::files::{copy, kind_name, named};
use crate::name_text;
use crate::query::Query;
use crate::refused::Unread;
use crate::reply::Reply;
use crate::zip::{Entry, Zip};

/// Entries of a directory read at a time.
const ENTRIES_AT_ONCE: usize = 1024;
/// The member of a zip archive that names what is left out, beside the directory.
const LEFT_OUT: &[u8] = b"LEFT-OUT.txt";
/// Zeros of holes in a zip archive, bytes at most: they are read and packed as if they were there.
const HOLE_BYTES_MAX: u64 = 16 << 30;
/// Bytes of names in it, about.
const LEFT_OUT_BYTES_MAX: usize = 1 << 20;

fn not_whole(why: &str) -> io::Error {
    io::Error::other(format!("the archive is not whole: {}", name_text(why.as_bytes())))
}

/// A zip archive of a directory: files, directories and links. Attributes have no place there; files of other kinds neither, they are named in a member at the end.
pub(crate) fn zip(fs: &Fs, query: &Query<'_>) -> Result<Reply, Unread> {
    let (inode, name) = named(fs, query)?;
    let name = if name.is_empty() { b"volume".to_vec() } else { name };
    let (fs, file) = (fs.clone(), [&name[..], b".zip"].concat());
    Ok(Reply::download(&file, None, move |out| write_zip(&fs, inode, name, out)))
}

/// A directory whose entries are being written.
struct Open {
    inode: InodeRef,
    /// With a slash at its end.
    prefix: Vec<u8>,
    after: u64,
    entries: std::vec::IntoIter<DirEntryInfo>,
}

fn write_zip(fs: &Fs, from: InodeRef, name: Vec<u8>, out: &mut dyn Write) -> io::Result<()> {
    let failed = |error: FsError| io::Error::other(error.to_string());
    let list_name = if name == LEFT_OUT { [LEFT_OUT, b"-2"].concat() } else { LEFT_OUT.to_vec() };
    let mut out = Members { fs, zip: Zip::new(out), left_out: Vec::new(), left_out_count: 0, hole_bytes: 0 };
    let mut missing = None;
    let mut descent = Descent::new(&from);
    let mut open: Vec<Open> = Vec::new();
    open.extend(out.member(from, name)?);
    while let Some(dir) = open.last_mut() {
        let Some(entry) = dir.entries.next() else {
            let batch = fs.readdir(&dir.inode, dir.after, ENTRIES_AT_ONCE).map_err(failed)?;
            match batch.last() {
                Some(last) => dir.after = last.index,
                None => {
                    open.pop();
                    continue;
                }
            }
            dir.entries = batch.into_iter();
            continue;
        };
        let path = [&dir.prefix[..], &entry.name].concat();
        let child = fs.open_entry(&dir.inode, &entry).map_err(failed)?;
        // The inode decides: entries may lie.
        let enters = |child: &InodeRef| {
            fs.attr(child).kind != FileKind::Dir || descent.enters(fs, &dir.inode, &entry.name, child)
        };
        match child.filter(enters) {
            Some(child) => open.extend(out.member(child, path)?),
            None => _ = missing.get_or_insert(path),
        }
    }
    out.list(list_name)?;
    match missing {
        None => out.zip.finish(),
        Some(path) => Err(not_whole(&name_text(&path))),
    }
}

/// The members of a zip archive.
struct Members<'a> {
    fs: &'a Fs,
    zip: Zip<&'a mut dyn Write>,
    /// What has no place in it: a line each.
    left_out: Vec<u8>,
    left_out_count: u64,
    hole_bytes: u64,
}

/// How many bytes of a file are holes, as far as that can be read.
fn hole_bytes(fs: &Fs, inode: &InodeRef, size: u64) -> Result<u64, FsError> {
    let (mut at, mut holes) = (0, 0);
    while at < size {
        let data = fs.seek_data(inode, at)?.unwrap_or(size).min(size);
        holes += data.saturating_sub(at);
        if data >= size {
            break;
        }
        at = fs.seek_hole(inode, data)?.unwrap_or(size).max(data + 1);
    }
    Ok(holes)
}

impl Members<'_> {
    /// Writes one; a directory comes back to have its entries written.
    fn member(&mut self, inode: InodeRef, mut path: Vec<u8>) -> io::Result<Option<Open>> {
        let fs = self.fs;
        let attr = fs.attr(&inode);
        let entry = |path: Vec<u8>| Entry { path, mode: attr.mode, mtime: attr.mtime.sec };
        match attr.kind {
            FileKind::Dir => {
                path.push(b'/');
                self.zip.add(entry(path.clone()), |_| Ok(()))?;
                return Ok(Some(Open { inode, prefix: path, after: 0, entries: Vec::new().into_iter() }));
            }
            FileKind::File => {
                // If the extents cannot be read, copying them fails.
                let holes = hole_bytes(fs, &inode, attr.size).unwrap_or(0);
                match self.hole_bytes.saturating_add(holes) {
                    all if all <= HOLE_BYTES_MAX => {
                        self.hole_bytes = all;
                        self.zip.add(entry(path), |out| copy(fs, &inode, &mut 0, attr.size, out))?;
                    }
                    _ => self.leave_out(&path, "file with large holes: take tar"),
                }
            }
            FileKind::Symlink => {
                let target = fs.read_link(&inode).map_err(|error| io::Error::other(error.to_string()))?;
                self.zip.add(entry(path), |out| out.write_all(&target))?;
            }
            kind => self.leave_out(&path, kind_name(kind)),
        }
        Ok(None)
    }

    fn leave_out(&mut self, path: &[u8], why: &str) {
        self.left_out_count += 1;
        if self.left_out.len() < LEFT_OUT_BYTES_MAX {
            let line = format!("{} ({why})\n", name_text(path));
            self.left_out.extend_from_slice(line.as_bytes());
        }
    }

    /// Names what was left out, if something was.
    fn list(&mut self, name: Vec<u8>) -> io::Result<()> {
        if self.left_out_count == 0 {
            return Ok(());
        }
        let count = self.left_out_count;
        let list = std::mem::take(&mut self.left_out);
        let cut = if list.len() < LEFT_OUT_BYTES_MAX { "" } else { "…\n" };
        self.zip.add(Entry { path: name, mode: 0o100_644, mtime: 0 }, |out| {
            writeln!(out, "{count} files are left out, which have no place in a zip archive:")?;
            out.write_all(&list)?;
            out.write_all(cut.as_bytes())
        })
    }
}
