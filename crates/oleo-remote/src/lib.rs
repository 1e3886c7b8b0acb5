//! Volumes on object stores: a device that is a log of objects under a prefix.
//!
//! A volume is a log of immutable segments, one object `head` that is replaced under a condition, and a map from addresses to
//! places in segments. `docs/decisions/0031-remote-volumes.md` is the design. The normal path of a write: (1) it becomes
//! frames of the open segment, and runs of the map (`append`, `state`); (2) a flush stores what is long in segments of its
//! own, and the rest in the head (`flush`, `publish`); (3) the head takes the place of the one before (`swap`), and with that it is
//! durable; (4) now and then the map is stored, so that opening need not replay everything (`checkpoint`).
//!
//! One writes, and many read. Opening for writing raises the epoch in the head (`attach`), and whoever had it before finds
//! at its next flush that its condition does not hold.
//!
//! Names of volumes are [`Url`]s, a store is a [`store::Store`], and what comes of both is a [`RemoteDevice`]. The bytes of
//! the objects are in [`mod@format`]. What `btrfs send` writes is kept on a store without any volume: [`mod@streams`]. Nothing here knows anything of btrfs, and nothing reads the environment.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "volumes on object stores need Linux: use oleo with default-features = false, features = [\"zlib\", \"lzo\", \"zstd\"]"
);

mod append;
mod attach;
mod away;
mod bench;
mod branch;
mod cache;
mod checkpoint;
mod collect;
mod create;
mod device;
mod disk_cache;
mod error;
mod fetch;
mod flush;
mod follow;
pub mod format;
mod gc;
mod host;
mod keeper;
mod key_slots;
mod keys;
mod local_log;
mod open;
mod open_store;
mod options;
mod origins;
mod pin;
mod probe;
mod publish;
mod read;
mod replay;
mod seal;
mod seen;
mod shared;
mod show;
mod state;
pub mod store;
pub mod streams;
mod swap;
mod upkeep;
pub mod url;
mod verify;

pub use bench::{BenchRow, bench};
pub use branch::{Parent, branch};
pub use collect::{Deleted, Orphans};
pub use create::create;
pub use device::RemoteDevice;
pub use error::{OptionError, RemoteError, StoreError};
pub use follow::Follower;
pub use format::key::Opener;
pub use gc::{Collected, GcOptions, gc};
#[doc(hidden)]
pub use host::Mistake;
pub use host::{Host, SystemHost, report_failing_stores};
pub use key_slots::KeySlots;
pub use keys::{KeySource, SlotInfo};
pub use open::{create_at, follow_at, open_at};
pub use open_store::open_store;
pub use options::{Bounds, CacheOptions, ClaimWait, Durable, OnWait, StoreOptions};
pub use pin::{pin, pins, unpin};
pub use probe::{ProbeOptions, ProbeReport, probe};
pub use seal::Key;
pub use show::{Shown, show};
pub use url::{Cloud, Place, Url};
pub use verify::{Finding, VerifyOptions, VerifyReport, verify};
