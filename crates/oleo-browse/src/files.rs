//! Directories in pages, and contents: as text, as bytes, as a picture, to be saved.

use std::io::Write;

use oleo_format::TreeId;
use oleo_fs::{Attr, DirEntryInfo, FileKind, Fs, FsError, InodeRef, Target};
use serde::Serialize;
use serde_json::{Value, json};

use crate::name_text;
use crate::query::{Query, encoded};
use crate::refused::{Refused, Unread, wrong};
use crate::reply::Reply;

/// Entries on a page, at most.
const PAGE_ENTRIES_MAX: u64 = 1000;
/// Bytes of text on a page.
const TEXT_BYTES: usize = 64 << 10;
/// Bytes of hex on a page.
const HEX_BYTES: usize = 4 << 10;
/// Bytes of a picture, at most.
const PICTURE_BYTES_MAX: u64 = 32 << 20;
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

fn missing() -> Refused {
    Refused { status: 404, why: "there is nothing at this path".into() }
}

pub(crate) fn kind_name(kind: FileKind) -> &'static str {
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

/// What is at a path from the top level. Links are not followed.
///
/// # Errors
/// The way there cannot be read.
pub fn find(fs: &Fs, names: &[Vec<u8>]) -> Result<Option<InodeRef>, FsError> {
    let mut at = fs.root(TreeId::FS)?;
    for name in names {
        if fs.attr(&at).kind != FileKind::Dir {
            return Ok(None);
        }
        match fs.lookup(&at, name)? {
            Some(next) => at = next,
            None => return Ok(None),
        }
    }
    Ok(Some(at))
}

/// The file or directory that a request names, and the last of its names.
///
/// # Errors
/// There is none, or the way there cannot be read.
pub fn named(fs: &Fs, query: &Query<'_>) -> Result<(InodeRef, Vec<u8>), Unread> {
    let names = query.path()?;
    let found = find(fs, &names)?.ok_or_else(missing)?;
    Ok((found, names.last().cloned().unwrap_or_default()))
}

/// An entry of a directory. Pages have many: no tree of values is made of them.
#[derive(Serialize)]
struct Described {
    name: String,
    raw: String,
    kind: &'static str,
    subvolume: Option<u64>,
    size: Option<u64>,
    mode: Option<String>,
    uid: Option<u32>,
    gid: Option<u32>,
    mtime: Option<i64>,
    link: Option<String>,
}

/// A page of a directory.
#[derive(Serialize)]
struct Page {
    kind: &'static str,
    subvolume: u64,
    entries: Vec<Described>,
    next: Option<u64>,
}

fn described(fs: &Fs, entry: &DirEntryInfo, inode: Option<&InodeRef>) -> Described {
    let attr = inode.map(|inode| fs.attr(inode));
    let link = inode.filter(|_| entry.kind == FileKind::Symlink).and_then(|inode| fs.read_link(inode).ok());
    Described {
        name: name_text(&entry.name),
        raw: encoded(&entry.name),
        kind: kind_name(entry.kind),
        subvolume: match entry.target {
            Target::Subvol(id) => Some(id.0),
            _ => None,
        },
        size: attr.as_ref().map(|attr| attr.size),
        mode: attr.as_ref().map(|attr| format!("{:04o}", attr.mode & 0o7777)),
        uid: attr.as_ref().map(|attr| attr.uid),
        gid: attr.as_ref().map(|attr| attr.gid),
        mtime: attr.as_ref().map(|attr| attr.mtime.sec),
        link: link.map(|target| name_text(&target)),
    }
}

/// A page of a directory, in the order of creation; or what a file is.
pub(crate) fn list(fs: &Fs, query: &Query<'_>) -> Result<Reply, Unread> {
    let (after, limit) = (query.number("after", 0)?, query.number("limit", 200)?);
    let limit = usize::try_from(limit.clamp(1, PAGE_ENTRIES_MAX)).unwrap_or(1);
    let (dir, _) = named(fs, query)?;
    let attr = fs.attr(&dir);
    if attr.kind != FileKind::Dir {
        return Ok(Reply::json(&of_file(fs, &dir, &attr)));
    }
    let page = fs.readdir_plus(&dir, after, limit)?;
    let next = page.last().map(|(entry, _)| entry.index).filter(|_| page.len() == limit);
    let entries = page.iter().map(|(entry, inode)| described(fs, entry, inode.as_ref())).collect();
    Ok(Reply::json(&Page { kind: "dir", subvolume: dir.tree().0, entries, next }))
}

fn of_file(fs: &Fs, inode: &InodeRef, attr: &Attr) -> Value {
    let mut start = [0; 16];
    // What is damaged is no picture; that it is damaged is said when its contents are asked for.
    let picture = (attr.kind == FileKind::File && attr.size <= PICTURE_BYTES_MAX)
        .then(|| fs.read(inode, 0, &mut start).ok().and_then(|n| picture_kind(&start[..n])))
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
        "link": (attr.kind == FileKind::Symlink).then(|| fs.read_link(inode).ok().map(|target| name_text(&target))),
    })
}

fn picture_kind(start: &[u8]) -> Option<&'static str> {
    let (_, kind) = PICTURES.iter().find(|(magic, _)| start.starts_with(magic))?;
    (*kind != "image/webp" || start.get(8..12) == Some(b"WEBP")).then_some(kind)
}

/// A regular file that a request names.
///
/// # Errors
/// There is none, or the way there cannot be read.
pub fn file(fs: &Fs, query: &Query<'_>) -> Result<(InodeRef, Attr, Vec<u8>), Unread> {
    let (inode, name) = named(fs, query)?;
    let attr = fs.attr(&inode);
    match attr.kind {
        FileKind::File => Ok((inode, attr, name)),
        _ => Err(wrong("not a regular file").into()),
    }
}

/// A part of a file's contents.
fn part(fs: &Fs, query: &Query<'_>, len: usize) -> Result<(Vec<u8>, u64, u64), Unread> {
    let at = query.number("at", 0)?;
    let (inode, attr, _) = file(fs, query)?;
    let mut bytes = vec![0; len];
    let n = fs.read(&inode, at, &mut bytes)?;
    bytes.truncate(n);
    Ok((bytes, at, attr.size))
}

pub(crate) fn text(fs: &Fs, query: &Query<'_>) -> Result<Reply, Unread> {
    let (bytes, at, size) = part(fs, query, TEXT_BYTES)?;
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

pub(crate) fn hex(fs: &Fs, query: &Query<'_>) -> Result<Reply, Unread> {
    let (bytes, at, size) = part(fs, query, HEX_BYTES)?;
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

pub(crate) fn picture(fs: &Fs, query: &Query<'_>) -> Result<Reply, Unread> {
    let (inode, attr, _) = file(fs, query)?;
    if attr.size > PICTURE_BYTES_MAX {
        return Err(wrong("too large for a picture").into());
    }
    let mut bytes = vec![0; usize::try_from(attr.size).unwrap_or(0)];
    let mut have = 0;
    while have < bytes.len() {
        match fs.read(&inode, have as u64, &mut bytes[have..])? {
            0 => break,
            n => have += n,
        }
    }
    bytes.truncate(have);
    let kind = picture_kind(&bytes).ok_or_else(|| wrong("no picture of a kind that is shown"))?;
    Ok(Reply::picture(kind, bytes))
}

/// The contents of a file from a place on, which moves along, to a writer; what cannot be read is invalid data.
///
/// # Errors
/// As said, and those of the writer.
pub fn copy(fs: &Fs, inode: &InodeRef, at: &mut u64, size: u64, mut out: impl Write) -> std::io::Result<()> {
    let mut buffer = vec![0; STEP_BYTES];
    while *at < size {
        let want = STEP_BYTES.min(usize::try_from(size - *at).unwrap_or(STEP_BYTES));
        let read = fs.read(inode, *at, &mut buffer[..want]);
        let n = read.map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidData, error.to_string()))?;
        if n == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        out.write_all(&buffer[..n])?;
        *at += n as u64;
    }
    Ok(())
}

/// The contents of a file.
pub(crate) fn download(fs: &Fs, query: &Query<'_>) -> Result<Reply, Unread> {
    let (inode, attr, name) = file(fs, query)?;
    let fs = fs.clone();
    Ok(Reply::download(&name, Some(attr.size), move |out| copy(&fs, &inode, &mut 0, attr.size, out)))
}
