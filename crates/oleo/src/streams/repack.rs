//! A snapshot at the end of a chain, stored once more as one whole stream, so that the chain before it can go.
//!
//! (1) The chain is received into an image that is made for that, in a file beside which nothing is needed; (2) the snapshot is sent
//! from there, whole, under the name, identifier and transaction by which it is known already; (3) the image is removed. What is built on
//! the old streams stays as it is: those are needed until that goes, too. What is sent later is built on the new one.
//!
//! A crash leaves the file, and an upload that is given up like any other.

use std::path::Path;

use super::{Stored, StoredUpload, Streams, is_of};
use crate::receive::Receive;
use crate::send::SendOptions;
use crate::{Error, Image, Result, TreeId};
use oleo_remote::streams::{NewStream, StreamEntry, StreamList, chain};

/// Length of the image, bytes: it is sparse, and takes what the snapshots take.
const IMAGE_LEN: u64 = 4 << 40;

/// What came of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Repack {
    /// What was stored.
    pub stored: Stored,
    /// How many streams were received for it.
    pub received: usize,
}

/// Stores a snapshot once more, whole. `scratch` is the file for the image, which is not there yet; it takes as much room as all
/// snapshots of the chain, and is removed. `None`: the stream is whole already.
///
/// # Errors
/// Something of the chain is missing or damaged, the file is there or has no room, or the store fails.
pub fn repack(
    streams: &Streams,
    list: &StreamList,
    stream: &StreamEntry,
    scratch: &Path,
    options: &SendOptions<'_>,
) -> Result<Option<Repack>> {
    if stream.needs.is_empty() {
        return Ok(None);
    }
    create_private(scratch).map_err(Error::host("create", scratch))?;
    let done = Image::create(scratch, IMAGE_LEN).and_then(|image| through(&image, streams, list, stream, options));
    let removed = std::fs::remove_file(scratch).map_err(Error::host("remove", scratch));
    let done = done?;
    removed.map(|()| Some(done))
}

/// Makes a file that only its owner may open, where none is, and no link either: the snapshots in it may be encrypted on the store.
fn create_private(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::File::options().write(true).create_new(true).mode(0o600).open(path).map(drop)
}

fn through(
    image: &Image,
    streams: &Streams,
    list: &StreamList,
    stream: &StreamEntry,
    options: &SendOptions<'_>,
) -> Result<Repack> {
    let all = chain(list, stream, |_| false)?;
    image.receive_from_store(streams, &all, &Receive::default())?;
    let there = image.subvols()?;
    let made = there.iter().find(|subvol| is_of(subvol, stream)).map(|subvol| subvol.id);
    let made: TreeId = made.ok_or_else(|| {
        Error::refused(oleo_fs::errno::ENOENT, format!("{} did not come of its own chain", stream.name))
    })?;
    let new = NewStream {
        name: stream.name.clone(),
        uuid: stream.uuid,
        ctransid: stream.ctransid,
        series: stream.series,
        taken: stream.taken,
        parent: None,
        clone_sources: Vec::new(),
    };
    let mut upload = StoredUpload::begin(streams, new, options.memory_bytes.saturating_mul(2))?;
    let how = options.clone().parent(None).ctransid(Some(stream.ctransid));
    let sent = image.send(&[made], &how, &mut upload);
    let (entry, sent) = upload.finish(list, sent)?;
    Ok(Repack { stored: Stored { entry, sent, parent: None }, received: all.len() })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Goal: the file of a repack is its owner's alone, and takes the place of no file and no link. Method: a table of what is there;
    /// the image that is made in it keeps its mode.
    #[test]
    fn the_file_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "").unwrap();
        std::os::unix::fs::symlink(at("nowhere"), at("link")).unwrap();
        for name in ["file", "link"] {
            assert!(create_private(&at(name)).is_err(), "{name}");
        }
        assert!(!at("nowhere").exists());
        create_private(&at("new")).unwrap();
        Image::create(at("new"), 1 << 30).unwrap().close().unwrap();
        assert_eq!(at("new").metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}
