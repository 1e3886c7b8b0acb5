//! Snapshots of images kept as streams on a store: whole ones and differences, each received with all that it needs.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use oleo::remote::{StoreOptions, streams::StreamName};
//! use oleo::{send::SendOptions, streams::{Base, Streams, missing}};
//!
//! # let image = oleo::Image::create_in_memory(256 << 20)?;
//! image.create_subvol("home")?;
//! let read_only = oleo::SnapshotOptions::default().read_only(true);
//! let first = image.snapshot("home", "first", &read_only)?;
//! image.write("home/file", b"contents")?;
//! let second = image.snapshot("home", "second", &read_only)?;
//!
//! let name = StreamName::parse("memory://example/backups")?;
//! let streams = Streams::open_or_make(&name.url, &StoreOptions::default())?;
//! image.send_to_store(&streams, first, Base::Whole, &SendOptions::default())?;
//! let stored = image.send_to_store(&streams, second, Base::Best, &SendOptions::default())?;
//! assert!(stored.entry.incremental);
//!
//! let other = oleo::Image::create_in_memory(256 << 20)?;
//! let list = streams.list()?;
//! let chain = missing(&list, None, &other.subvols()?)?;
//! assert_eq!(chain.len(), 2);
//! other.receive_from_store(&streams, &chain, &Default::default())?;
//! assert_eq!(other.read("second/file")?, b"contents");
//! # Ok(())
//! # }
//! ```

use std::io::{self, Write};

use oleo_remote::RemoteError;
use oleo_remote::streams::{ChainBytes, Upload, chain, find};
use oleo_stream::lookup::{Indexed, Indexer};
use uuid::Uuid;

use crate::control::Subvol;
use crate::receive::{Receive, Report};
use crate::send::{SendOptions, Sent};
use crate::{Error, Image, Result, TreeId};

pub use files::{FoundEntry, StoredFiles};
pub use oleo_remote::streams::{NewStream, StreamEntry, StreamList, Streams};
pub use oleo_stream::lookup::{Extracted, FileType};
pub use repack::{Repack, repack};

mod files;
mod repack;

/// What a snapshot is sent as the difference to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Base {
    /// To nothing: all of it is sent.
    #[default]
    Whole,
    /// To this snapshot, which is among the streams.
    Parent(TreeId),
    /// To the best snapshot that the image has and that is among the streams, or else to nothing: the one it is a snapshot of, or the
    /// youngest snapshot of the same subvolume that is not younger than itself.
    Best,
}

/// What was sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored {
    /// Its entry among the streams.
    pub entry: StreamEntry,
    /// The numbers.
    pub sent: Sent,
    /// The name of the snapshot that it is the difference to.
    pub parent: Option<String>,
}

/// How a snapshot is to be sent, decided by what there is and what is among the streams.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredPlan {
    /// What is put on the list.
    pub new: NewStream,
    /// The parent, in the image.
    pub parent: Option<TreeId>,
    /// Its name.
    pub parent_name: Option<String>,
}

/// Whether a subvolume is the one that a stream makes, or the one it was made of.
pub fn is_of(subvol: &Subvol, stream: &StreamEntry) -> bool {
    let received = (subvol.received_uuid, subvol.stransid) == (stream.uuid, stream.ctransid);
    let own = (subvol.uuid, subvol.ctransid) == (stream.uuid, stream.ctransid);
    subvol.read_only && (received || own)
}

/// What must be received, in this order, for a snapshot (the newest if none is named) to be among these subvolumes. Nothing: it is there.
///
/// # Errors
/// There is no such snapshot, or something that it is built on is not among the streams.
pub fn missing<'l>(list: &'l StreamList, which: Option<&str>, there: &[Subvol]) -> Result<Vec<&'l StreamEntry>> {
    let stream = find(list, which)?;
    Ok(chain(list, stream, |stream| there.iter().any(|subvol| is_of(subvol, stream)))?)
}

/// A name as it is put on the list.
fn name_of(subvol: &Subvol) -> String {
    let name = if subvol.name.0.is_empty() { &b"/"[..] } else { &subvol.name.0 };
    std::str::from_utf8(name).map_or_else(|_| name.escape_ascii().to_string(), str::to_owned)
}

impl StoredPlan {
    /// Decides it. `there` are all subvolumes.
    ///
    /// # Errors
    /// There is no such subvolume; it is among the streams already, as it is to be sent; or the parent or a clone source is not.
    pub fn new(
        list: &StreamList,
        there: &[Subvol],
        which: TreeId,
        base: Base,
        clone_sources: &[TreeId],
    ) -> Result<StoredPlan> {
        let of = |id: TreeId| {
            let missing = || Error::refused(oleo_fs::errno::ENOENT, format!("no subvolume {id}"));
            there.iter().find(|subvol| subvol.id == id).ok_or_else(missing)
        };
        let subvol = of(which)?;
        let newest = |subvol: &Subvol| list.streams.iter().rev().find(|stream| is_of(subvol, stream));
        let stored = |id: TreeId| {
            let subvol = of(id)?;
            let name = name_of(subvol);
            newest(subvol).map(|stream| (subvol, stream)).ok_or_else(|| {
                let text = format!("{name} is not among the streams: send it first, or send without it");
                Error::refused(oleo_fs::errno::ENOENT, text)
            })
        };
        let parent = match base {
            Base::Whole => None,
            Base::Parent(id) => Some(stored(id)?),
            Base::Best => best(subvol, there).find_map(|subvol| newest(subvol).map(|stream| (subvol, stream))),
        };
        let again = |stream: &&StreamEntry| {
            let on = stream.needs.first().filter(|_| stream.incremental);
            is_of(subvol, stream) && (base == Base::Best || on == parent.map(|(_, parent)| &parent.id))
        };
        if list.streams.iter().any(|stream| again(&stream)) {
            return Err(RemoteError::SnapshotExists { name: name_of(subvol) }.into());
        }
        let mut sources = Vec::new();
        for id in clone_sources {
            sources.push(stored(*id)?.1.id);
        }
        let known_by = if subvol.received_uuid.is_nil() { subvol.uuid } else { subvol.received_uuid };
        let new = NewStream {
            name: name_of(subvol),
            uuid: known_by,
            ctransid: subvol.ctransid,
            series: if subvol.parent_uuid.is_nil() { subvol.uuid } else { subvol.parent_uuid },
            taken: subvol.otime.0,
            parent: parent.map(|(_, stream)| stream.id),
            clone_sources: sources,
        };
        Ok(StoredPlan {
            new,
            parent: parent.map(|(subvol, _)| subvol.id),
            parent_name: parent.map(|(subvol, _)| name_of(subvol)),
        })
    }
}

/// What a subvolume may be sent as the difference to, the best first.
fn best<'s>(subvol: &Subvol, there: &'s [Subvol]) -> impl Iterator<Item = &'s Subvol> {
    let (parent, id, made) = (subvol.parent_uuid, subvol.id, subvol.otransid);
    let usable = |other: &&Subvol| other.read_only && other.id != id && !parent.is_nil();
    let mut siblings: Vec<&Subvol> =
        there.iter().filter(usable).filter(|other| other.parent_uuid == parent && other.otransid <= made).collect();
    siblings.sort_by_key(|other| std::cmp::Reverse((other.otransid, other.id)));
    there
        .iter()
        .filter(usable)
        .filter(move |other| other.uuid == parent)
        .collect::<Vec<_>>()
        .into_iter()
        .chain(siblings)
}

/// An upload of a stream that is written to it, and the index of that.
pub struct StoredUpload {
    upload: Upload,
    indexer: Indexer,
}

impl StoredUpload {
    /// Begins one. The index takes up to `index_bytes_max` of memory; if that is not enough, there is none.
    ///
    /// # Errors
    /// What it needs is not among the streams any more, or the store fails.
    pub fn begin(streams: &Streams, new: NewStream, index_bytes_max: usize) -> Result<StoredUpload> {
        Ok(StoredUpload { upload: Upload::begin(streams, new)?, indexer: Indexer::new(index_bytes_max) })
    }

    /// Ends it. `made` is what making the stream came to: if that failed, nothing is entered, and what was stored is deleted.
    ///
    /// # Errors
    /// Making it failed, or storing it.
    pub fn finish<T>(mut self, list: &StreamList, made: Result<T>) -> Result<(StreamEntry, T)> {
        let made = match made {
            Ok(made) => made,
            Err(error) => {
                let stored = self.upload.take_error();
                self.upload.abandon();
                // The sender only knows that it could not write.
                return Err(stored.map_or(error, Error::from));
            }
        };
        let Indexed { index, clone_sources, complete } = self.indexer.finish();
        if !complete {
            self.upload.abandon();
            return Err(Error::refused(
                oleo_fs::errno::EINVAL,
                "what was to be stored is not one whole stream of one subvolume",
            ));
        }
        let used = |stream: &&StreamEntry| clone_sources.contains(&stream.uuid);
        let used: Vec<Uuid> = list.streams.iter().filter(used).map(|stream| stream.id).collect();
        Ok((self.upload.finish(&used, &index.unwrap_or_default())?, made))
    }
}

impl Write for StoredUpload {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.upload.write(bytes)?;
        self.indexer.add(&bytes[..len]);
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Image {
    /// All subvolumes of the image.
    ///
    /// # Errors
    /// The image is damaged.
    pub fn subvols(&self) -> Result<Vec<Subvol>> {
        Ok(self.fs().subvol_list()?.into_iter().map(Subvol::from).collect())
    }

    /// Sends a snapshot to a store, as it is made. `options.parent` is not used, `base` is; `options.clone_sources` must be among the streams.
    /// The index may take twice `options.memory_bytes`.
    ///
    /// # Errors
    /// It is there already, something that it is to be built on is not, the stream could not be made or not be stored. Nothing was
    /// entered then, and what was stored is deleted as far as possible.
    pub fn send_to_store(
        &self,
        streams: &Streams,
        which: TreeId,
        base: Base,
        options: &SendOptions<'_>,
    ) -> Result<Stored> {
        if options.no_data {
            return Err(Error::Request(
                "a stream without data cannot be kept: nothing could be received from it".into(),
            ));
        }
        let list = streams.list()?;
        let plan = StoredPlan::new(&list, &self.subvols()?, which, base, &options.clone_sources)?;
        let mut upload = StoredUpload::begin(streams, plan.new, options.memory_bytes.saturating_mul(2))?;
        let made = self.send(&[which], &options.clone().parent(plan.parent), &mut upload);
        let (entry, sent) = upload.finish(&list, made)?;
        Ok(Stored { entry, sent, parent: plan.parent_name })
    }

    /// Receives streams of a store in this order, as [`missing`] gives it; each part is verified before it is applied.
    ///
    /// # Errors
    /// Something of the chain is missing or damaged, or cannot be applied. Subvolumes that are complete stay; an incomplete one is
    /// marked, writable, and has no received UUID.
    pub fn receive_from_store(&self, streams: &Streams, chain: &[&StreamEntry], how: &Receive) -> Result<Report> {
        let mut report = Report::default();
        // Each by itself, so that one that was cut can be resumed.
        for bytes in ChainBytes::open(streams, chain)?.split() {
            let error = bytes.error();
            match (self.receive(bytes, how), error.get()) {
                (Ok(more), _) => report.add(more),
                (Err(_), Some(error)) => return Err(error.clone().into()),
                (Err(error), None) => return Err(error),
            }
        }
        Ok(report)
    }
}
