//! Directories as archives, written as they are read.

use std::io;
use std::sync::Arc;

use oleo::Image;
use oleo::fs::{Descent, DirEntryInfo, FileKind, InodeRef};
use oleo::restore::{RestoreOptions, restore_to_tar};

use super::body::Pieces;
use super::files::{copy, named};
use super::query::{Query, Refused};
use super::reply::Reply;
use super::volume::{Current, refused};
use super::zip::{Entry, Zip};

/// Entries of a directory read at a time.
const ENTRIES_AT_ONCE: usize = 1024;

fn file_name(name: &[u8], extension: &[u8]) -> Vec<u8> {
    let name: &[u8] = if name.is_empty() { b"volume" } else { name };
    [name, extension].concat()
}

/// A tar archive of a directory, nested subvolumes included.
pub(super) fn tar(volume: &Current, query: &Query<'_>) -> Result<Reply, Refused> {
    let image = volume.image().map_err(refused)?;
    let (inode, name) = named(&image, query)?;
    let file = file_name(&name, b".tar");
    let write = move |out: &mut Pieces| {
        let written = restore_to_tar(&image, &inode, &name, out, &RestoreOptions::default());
        written.map(|_| ()).map_err(|error| io::Error::other(error.to_string()))
    };
    Ok(Reply::download(&file, None, Box::new(write)))
}

/// A zip archive of a directory: files, directories and links; other kinds and attributes have no place there.
pub(super) fn zip(volume: &Current, query: &Query<'_>) -> Result<Reply, Refused> {
    let image = volume.image().map_err(refused)?;
    let (inode, name) = named(&image, query)?;
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
    let mut zip = Zip::new(out);
    let mut descent = Descent::new(&from);
    let mut open: Vec<Open> = Vec::new();
    open.extend(member(image, &mut zip, from, name)?);
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
        let Some(child) = image.fs().open_entry(&dir.inode, &entry).map_err(failed)? else { continue };
        if entry.kind == FileKind::Dir && !descent.enters(image.fs(), &dir.inode, &entry.name, &child) {
            continue;
        }
        let path = [&dir.prefix[..], &entry.name].concat();
        open.extend(member(image, &mut zip, child, path)?);
    }
    zip.finish()
}

/// Writes one member; a directory comes back to have its entries written.
fn member(image: &Image, zip: &mut Zip<&mut Pieces>, inode: InodeRef, mut path: Vec<u8>) -> io::Result<Option<Open>> {
    let attr = image.fs().attr(&inode);
    let entry = |path: Vec<u8>| Entry { path, mode: attr.mode, mtime: attr.mtime.sec };
    match attr.kind {
        FileKind::Dir => {
            path.push(b'/');
            zip.add(entry(path.clone()), |_| Ok(()))?;
            return Ok(Some(Open { inode, prefix: path, after: 0, entries: Vec::new().into_iter() }));
        }
        FileKind::File => zip.add(entry(path), |out| copy(image, &inode, attr.size, out))?,
        FileKind::Symlink => {
            let target = image.fs().read_link(&inode).map_err(|error| io::Error::other(error.to_string()))?;
            zip.add(entry(path), |out| out.write_all(&target))?;
        }
        _ => {}
    }
    Ok(None)
}
