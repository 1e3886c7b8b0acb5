//! Volumes on object stores: a device that is a log of objects under a prefix.
//!
//! `docs/decisions/0031-remote-volumes.md` is the design. The bytes of the objects are in [`format`], names of volumes are
//! [`Url`]s. Nothing here knows anything of btrfs, and nothing reads the environment.

mod error;
pub mod format;
pub mod url;

pub use error::{RemoteError, StoreError};
pub use url::Url;
