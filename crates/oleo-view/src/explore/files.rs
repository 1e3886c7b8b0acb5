//! Directories in pages, and contents: as text, as bytes, as a picture, to be saved.

use std::io::Write;
use std::sync::Arc;

use hyper::StatusCode;
use oleo::Image;
use oleo::fs::{Attr, DirEntryInfo, FileKind, InodeRef, Target};
use serde_json::{Value, json};

use super::body::Pieces;
use super::query::{Query, Refused, encoded, wrong};
use super::reply::Reply;
use super::volume::{Current, Unread, find};
use crate::name_text;

/// Entries on a page, at most.
const PAGE_ENTRIES_MAX: u64 = 1000;
/// Bytes of text on a page.
const TEXT_BYTES: usize = 64 << 10;
/// Bytes of hex on a page.
const HEX_BYTES: usize = 4 << 10;
/// Bytes of a picture, at most.
const PICTURE_BYTES_MAX: u64 = 32 << 20;
/// How often a place of a file that cannot be read is tried anew on a mount.
const TRIES_MAX: usize = 5;
/// Bytes that are read at a time.
const STEP_BYTES: usize = 1 << 20;

/// The beginnings of pictures that are shown; nothing that can hold scripts.
const PICTURES: [(&[u8], &str); 5] = [
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"RIFF", "image/webp"),
];

pub(super) fn missing() -> Refused {
    (StatusCode::NOT_FOUND, "there is nothing at this path".into())
}

pub(super) fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Dir => "dir",
        FileKind::Symlink => "symlink",
        FileKind::CharDevice => "char device",
        FileKind::BlockDevice => "block device",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        _ => "unknown",
    }
}

/// The file or directory that a request names.
pub(super) fn named(image: &Image, query: &Query<'_>) -> Result<(InodeRef, Vec<u8>), Unread> {
    let names = query.path()?;
    let found = find(image, &names)?.ok_or_else(missing)?;
    Ok((found, names.last().cloned().unwrap_or_default()))
}

fn described(image: &Image, entry: &DirEntryInfo, inode: Option<&InodeRef>) -> Value {
    let attr = inode.map(|inode| image.fs().attr(inode));
    let link = inode.filter(|_| entry.kind == FileKind::Symlink).and_then(|inode| image.fs().read_link(inode).ok());
    json!({
        "name": name_text(&entry.name),
        "raw": encoded(&entry.name),
        "kind": kind_name(entry.kind),
        "subvolume": match entry.target { Target::Subvol(id) => Some(id.0), _ => None },
        "size": attr.as_ref().map(|attr| attr.size),
        "mode": attr.as_ref().map(|attr| format!("{:04o}", attr.mode & 0o7777)),
        "uid": attr.as_ref().map(|attr| attr.uid),
        "gid": attr.as_ref().map(|attr| attr.gid),
        "mtime": attr.as_ref().map(|attr| attr.mtime.sec),
        "link": link.map(|target| name_text(&target)),
    })
}

/// A page of a directory, in the order of creation; or what a file is.
pub(super) fn list(volume: &Arc<Current>, query: &Query<'_>) -> Result<Reply, Refused> {
    let (after, limit) = (query.number("after", 0)?, query.number("limit", 200)?);
    let limit = usize::try_from(limit.clamp(1, PAGE_ENTRIES_MAX)).unwrap_or(1);
    let listed = volume.read(|image| {
        let (dir, _) = named(image, query)?;
        let attr = image.fs().attr(&dir);
        if attr.kind != FileKind::Dir {
            return Ok(of_file(image, &dir, &attr));
        }
        let page = image.fs().readdir_plus(&dir, after, limit)?;
        let next = page.last().map(|(entry, _)| entry.index).filter(|_| page.len() == limit);
        let entries = page.iter().map(|(entry, inode)| described(image, entry, inode.as_ref())).collect::<Vec<_>>();
        Ok(json!({ "kind": "dir", "subvolume": dir.tree().0, "entries": entries, "next": next }))
    })?;
    Ok(Reply::json(&listed))
}

fn of_file(image: &Image, inode: &InodeRef, attr: &Attr) -> Value {
    let mut start = [0; 16];
    // What is damaged is no picture; that it is damaged is said when its contents are asked for.
    let picture = (attr.kind == FileKind::File && attr.size <= PICTURE_BYTES_MAX)
        .then(|| image.fs().read(inode, 0, &mut start).ok().and_then(|n| picture_kind(&start[..n])))
        .flatten();
    json!({
        "kind": kind_name(attr.kind),
        "subvolume": inode.tree().0,
        "inode": inode.ino().0,
        "size": attr.size,
        "on_disk": attr.nbytes,
        "mode": format!("{:04o}", attr.mode & 0o7777),
        "uid": attr.uid,
        "gid": attr.gid,
        "links": attr.nlink,
        "mtime": attr.mtime.sec,
        "picture": picture.is_some(),
        "link": (attr.kind == FileKind::Symlink).then(|| image.fs().read_link(inode).ok().map(|target| name_text(&target))),
    })
}

fn picture_kind(start: &[u8]) -> Option<&'static str> {
    let (_, kind) = PICTURES.iter().find(|(magic, _)| start.starts_with(magic))?;
    (*kind != "image/webp" || start.get(8..12) == Some(b"WEBP")).then_some(kind)
}

/// A regular file that a request names.
fn file(image: &Image, query: &Query<'_>) -> Result<(InodeRef, Attr, Vec<u8>), Unread> {
    let (inode, name) = named(image, query)?;
    let attr = image.fs().attr(&inode);
    match attr.kind {
        FileKind::File => Ok((inode, attr, name)),
        _ => Err(wrong("not a regular file").into()),
    }
}

/// A part of a file's contents.
fn part(volume: &Current, query: &Query<'_>, len: usize) -> Result<(Vec<u8>, u64, u64), Refused> {
    let at = query.number("at", 0)?;
    volume.read(|image| {
        let (inode, attr, _) = file(image, query)?;
        let mut bytes = vec![0; len];
        let n = image.fs().read(&inode, at, &mut bytes)?;
        bytes.truncate(n);
        Ok((bytes, at, attr.size))
    })
}

pub(super) fn text(volume: &Current, query: &Query<'_>) -> Result<Reply, Refused> {
    let (bytes, at, size) = part(volume, query, TEXT_BYTES)?;
    // A character that the page cuts is left for the next.
    let whole = match std::str::from_utf8(&bytes) {
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => error.valid_up_to(),
        _ => bytes.len(),
    };
    let is_text = !bytes[..whole].contains(&0) && std::str::from_utf8(&bytes[..whole]).is_ok();
    let next = at.saturating_add(whole as u64);
    Ok(Reply::json(&json!({
        "text": String::from_utf8_lossy(&bytes[..whole]),
        "is_text": is_text,
        "size": size,
        "next": (next < size && whole > 0).then_some(next),
    })))
}

pub(super) fn hex(volume: &Current, query: &Query<'_>) -> Result<Reply, Refused> {
    let (bytes, at, size) = part(volume, query, HEX_BYTES)?;
    let rows: Vec<String> = bytes
        .chunks(16)
        .enumerate()
        .map(|(n, row)| {
            let mut line = format!("{:08x} ", at.saturating_add(16 * n as u64));
            for byte in row {
                line.push_str(&format!(" {byte:02x}"));
            }
            line.push_str(&"   ".repeat(16 - row.len()));
            line.push_str("  ");
            line.extend(
                row.iter().map(|byte| if byte.is_ascii_graphic() || *byte == b' ' { *byte as char } else { '.' }),
            );
            line
        })
        .collect();
    let next = at.saturating_add(bytes.len() as u64);
    Ok(Reply::json(&json!({ "rows": rows, "size": size, "next": (next < size && !bytes.is_empty()).then_some(next) })))
}

pub(super) fn picture(volume: &Current, query: &Query<'_>) -> Result<Reply, Refused> {
    let bytes = volume.read(|image| {
        let (inode, attr, _) = file(image, query)?;
        if attr.size > PICTURE_BYTES_MAX {
            return Err(wrong("too large for a picture").into());
        }
        let mut bytes = vec![0; usize::try_from(attr.size).unwrap_or(0)];
        let mut have = 0;
        while have < bytes.len() {
            match image.fs().read(&inode, have as u64, &mut bytes[have..])? {
                0 => break,
                n => have += n,
            }
        }
        bytes.truncate(have);
        Ok(bytes)
    })?;
    let kind = picture_kind(&bytes).ok_or_else(|| wrong("no picture of a kind that is shown"))?;
    Ok(Reply::picture(kind, bytes))
}

/// The contents of a file, to a writer.
pub(super) fn copy(image: &Image, inode: &InodeRef, size: u64, out: impl Write) -> std::io::Result<()> {
    copy_from(image, inode, &mut 0, size, out)
}

/// The same from a place on, which moves along; what cannot be read is invalid data.
fn copy_from(image: &Image, inode: &InodeRef, at: &mut u64, size: u64, mut out: impl Write) -> std::io::Result<()> {
    let mut buffer = vec![0; STEP_BYTES];
    while *at < size {
        let want = STEP_BYTES.min(usize::try_from(size - *at).unwrap_or(STEP_BYTES));
        let read = image.fs().read(inode, *at, &mut buffer[..want]);
        let n = read.map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidData, error.to_string()))?;
        if n == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        out.write_all(&buffer[..n])?;
        *at += n as u64;
    }
    Ok(())
}

/// The contents of a file. On a mount, where they may have moved away while they are read, from the newest commit on, if the file is still what it was.
pub(super) fn download(volume: &Arc<Current>, query: &Query<'_>) -> Result<Reply, Refused> {
    let (mut image, (mut inode, attr, name)) = volume.read(|image| Ok((image.clone(), file(image, query)?)))?;
    let names = query.path()?;
    let volume = volume.clone();
    let write = move |out: &mut Pieces| {
        let (mut at, mut tries) = (0, 0);
        loop {
            let before = at;
            match copy_from(&image, &inode, &mut at, attr.size, &mut *out) {
                Err(error) if error.kind() == std::io::ErrorKind::InvalidData && tries < TRIES_MAX => {
                    // As long as it goes on it may be tried again.
                    tries = if at > before { 0 } else { tries + 1 };
                    let failed = |error: oleo::Error| std::io::Error::other(error.to_string());
                    let Some(newer) = volume.renewed().map_err(failed)? else { return Err(error) };
                    let Some(found) = find(&newer, &names).map_err(failed)? else { return Err(error) };
                    let now = Attr { atime: attr.atime, ..newer.fs().attr(&found) };
                    if now != attr {
                        return Err(error);
                    }
                    (image, inode) = (newer, found);
                }
                other => return other,
            }
        }
    };
    Ok(Reply::download(&name, Some(attr.size), Box::new(write)))
}

#[cfg(test)]
mod tests;
