//! Directories as archives, written as they are read.
//!
//! An archive that is not whole does not end as if it were: what cannot be entered or has vanished ends it with an error, after everything else, which cuts the connection. What zip has no
//! place for is named in a member of its own.

use std::io;
use std::sync::Arc;

use oleo::Image;
use oleo::fs::{Descent, DirEntryInfo, FileKind, InodeRef};
use oleo::restore::{RestoreOptions, restore_to_tar};

use super::body::Pieces;
use super::files::{copy, kind_name, named};
use super::query::{Query, Refused};
use super::reply::Reply;
use super::volume::Current;
use super::zip::{Entry, Zip};
use crate::name_text;

/// Entries of a directory read at a time.
const ENTRIES_AT_ONCE: usize = 1024;
/// The member of a zip archive that names what is left out, beside the directory.
const LEFT_OUT: &[u8] = b"LEFT-OUT.txt";
/// Bytes of names in it, about.
const LEFT_OUT_BYTES_MAX: usize = 1 << 20;

fn file_name(name: &[u8], extension: &[u8]) -> Vec<u8> {
    let name: &[u8] = if name.is_empty() { b"volume" } else { name };
    [name, extension].concat()
}

/// A tar archive of a directory, nested subvolumes included.
pub(super) fn tar(volume: &Current, query: &Query<'_>) -> Result<Reply, Refused> {
    let (image, (inode, name)) = volume.read(|image| Ok((image.clone(), named(image, query)?)))?;
    let file = file_name(&name, b".tar");
    let write = move |out: &mut Pieces| {
        let written = restore_to_tar(&image, &inode, &name, out, &RestoreOptions::default());
        match written.map_err(|error| io::Error::other(error.to_string()))?.warnings.first() {
            None => Ok(()),
            Some(warning) => Err(not_whole(warning)),
        }
    };
    Ok(Reply::download(&file, None, Box::new(write)))
}

fn not_whole(why: &str) -> io::Error {
    io::Error::other(format!("the archive is not whole: {}", name_text(why.as_bytes())))
}

/// A zip archive of a directory: files, directories and links. Attributes have no place there; files of other kinds neither, they are named in a member at the end.
pub(super) fn zip(volume: &Current, query: &Query<'_>) -> Result<Reply, Refused> {
    let (image, (inode, name)) = volume.read(|image| Ok((image.clone(), named(image, query)?)))?;
    let file = file_name(&name, b".zip");
    let name = if name.is_empty() { b"volume".to_vec() } else { name };
    Ok(Reply::download(&file, None, Box::new(move |out| write_zip(&image, inode, name, out))))
}

/// A directory whose entries are being written.
struct Open {
    inode: InodeRef,
    /// With a slash at its end.
    prefix: Vec<u8>,
    after: u64,
    entries: std::vec::IntoIter<DirEntryInfo>,
}

fn write_zip(image: &Arc<Image>, from: InodeRef, name: Vec<u8>, out: &mut Pieces) -> io::Result<()> {
    let failed = |error: oleo::fs::FsError| io::Error::other(error.to_string());
    let list_name = if name == LEFT_OUT { [LEFT_OUT, b"-2"].concat() } else { LEFT_OUT.to_vec() };
    let mut out = Members { image, zip: Zip::new(out), left_out: Vec::new(), left_out_count: 0 };
    let mut missing = None;
    let mut descent = Descent::new(&from);
    let mut open: Vec<Open> = Vec::new();
    open.extend(out.member(from, name)?);
    while let Some(dir) = open.last_mut() {
        let Some(entry) = dir.entries.next() else {
            let batch = image.fs().readdir(&dir.inode, dir.after, ENTRIES_AT_ONCE).map_err(failed)?;
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
        let child = image.fs().open_entry(&dir.inode, &entry).map_err(failed)?;
        // The inode decides: entries may lie.
        let enters = |child: &InodeRef| {
            image.fs().attr(child).kind != FileKind::Dir || descent.enters(image.fs(), &dir.inode, &entry.name, child)
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
    image: &'a Image,
    zip: Zip<&'a mut Pieces>,
    /// What has no place in it: a line each.
    left_out: Vec<u8>,
    left_out_count: u64,
}

impl Members<'_> {
    /// Writes one; a directory comes back to have its entries written.
    fn member(&mut self, inode: InodeRef, mut path: Vec<u8>) -> io::Result<Option<Open>> {
        let image = self.image;
        let attr = image.fs().attr(&inode);
        let entry = |path: Vec<u8>| Entry { path, mode: attr.mode, mtime: attr.mtime.sec };
        match attr.kind {
            FileKind::Dir => {
                path.push(b'/');
                self.zip.add(entry(path.clone()), |_| Ok(()))?;
                return Ok(Some(Open { inode, prefix: path, after: 0, entries: Vec::new().into_iter() }));
            }
            FileKind::File => self.zip.add(entry(path), |out| copy(image, &inode, attr.size, out))?,
            FileKind::Symlink => {
                let target = image.fs().read_link(&inode).map_err(|error| io::Error::other(error.to_string()))?;
                self.zip.add(entry(path), |out| out.write_all(&target))?;
            }
            kind => {
                self.left_out_count += 1;
                if self.left_out.len() < LEFT_OUT_BYTES_MAX {
                    let line = format!("{} ({})\n", name_text(&path), kind_name(kind));
                    self.left_out.extend_from_slice(line.as_bytes());
                }
            }
        }
        Ok(None)
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
            writeln!(out, "{count} files are left out, whose kind has no place in a zip archive:")?;
            out.write_all(&list)?;
            out.write_all(cut.as_bytes())
        })
    }
}
