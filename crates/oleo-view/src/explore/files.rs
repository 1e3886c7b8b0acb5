//! Downloads of files, which go on when a mount commits.

use std::sync::Arc;

use oleo::fs::Attr;
use oleo_browse::{Query, Refused, copy, file, find};

use super::body::Pieces;
use super::reply::Reply;
use super::volume::Current;

/// How often a place of a file that cannot be read is tried anew on a mount.
const TRIES_MAX: usize = 5;

/// The contents of a file. On a mount, where they may have moved away while they are read, from the newest commit on, if the file is still what it was.
pub(super) fn download(volume: &Arc<Current>, query: &Query<'_>) -> Result<Reply, Refused> {
    let (mut image, (mut inode, attr, name)) = volume.read(|image| Ok((image.clone(), file(image.fs(), query)?)))?;
    let names = query.path()?;
    let volume = volume.clone();
    let write = move |out: &mut Pieces| {
        let (mut at, mut tries) = (0, 0);
        loop {
            let before = at;
            match copy(image.fs(), &inode, &mut at, attr.size, &mut *out) {
                Err(error) if error.kind() == std::io::ErrorKind::InvalidData && tries < TRIES_MAX => {
                    // As long as it goes on it may be tried again.
                    tries = if at > before { 0 } else { tries + 1 };
                    let failed = |error: oleo::Error| std::io::Error::other(error.to_string());
                    let Some(newer) = volume.renewed().map_err(failed)? else { return Err(error) };
                    let Some(found) = find(newer.fs(), &names).map_err(|error| failed(error.into()))? else {
                        return Err(error);
                    };
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
