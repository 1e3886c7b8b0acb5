//! Streams on a store: what `btrfs send` writes, kept under a prefix as chains of snapshots, each on top of another.
//!
//! | object | mutable | holds |
//! |---|---|---|
//! | `streams` | yes, under a condition only | the list ([`StreamList`]): which streams there are, what each is built on, which uploads are under way |
//! | `stream/<id>/part-<n>` | no | a part of a stream ([`mod@pieces`]) |
//! | `stream/<id>/index-<n>` | no | a part of its index: where the commands of which file are |
//! | `stream/<id>/manifest` | no | lengths and checksums of these ([`Manifest`]) |
//! | `key/<uuid>` | as of volumes | the key, if they are sealed |
//!
//! Normal path of an upload ([`Upload`]): (1) its random id is put on the list, with what the stream needs; (2) parts are stored
//! as the stream is made, several side by side, then the index, then the manifest; (3) the list is replaced once more: the
//! upload has become a stream. Before that nobody sees it.
//!
//! Invariants. Ids are used once, so an object whose id is on no list that was read after the object was seen is dead for
//! ever, whatever arrives late: no clock decides that. A stream is entered only while its upload and all it needs are
//! on the list; what is needed by a stream or by an upload under way is not taken off it. Needs have lower numbers, so that there is
//! no circle.
//!
//! Crashes: an upload that was cut is on the list until [`Streams::collect`] finds that nothing of it was stored for a while. Its
//! sender, if it comes back, is refused. Objects that are on no list are deleted by the same.
//!
//! Not here: what is in streams and indexes (`oleo-stream`), which snapshots an image has (`oleo`).

mod chain;
mod check;
mod collect;
mod list;
mod manifest;
mod open;
pub mod pieces;
mod policy;
mod read;
mod upload;

pub use chain::{chain, find};
pub use check::{CheckedStreams, StreamFinding};
pub use collect::{CollectedStreams, Pruned};
pub use list::{StreamEntry, StreamList, UploadEntry};
pub use manifest::{Manifest, Row};
pub(crate) use open::outline;
pub use open::{StreamName, Streams};
pub use policy::{Policy, Reason};
pub use read::{ChainBytes, StreamPieces};
pub use upload::{NewStream, Upload};
