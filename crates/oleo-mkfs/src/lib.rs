//! Makes a btrfs file system: the first trees ([`make`]), and filling it from a directory or a tar.
//!
//! Everything here is deterministic: clock and randomness are handed in by [`MkfsOptions`]; only [`MkfsOptions::unique`] asks
//! the system for them.

mod error;
mod fill;
mod first;
mod options;
mod signature;
mod trim;
mod uuids;

pub use error::MkfsError;
pub use fill::{
    FillOptions, OnProgress, Progress, Reflink, Report, SubvolSpec, TopAttributes, fill_from_dir, fill_from_tar,
    fill_one,
};
pub use first::{Made, make};
pub use oleo_volume::Profile;
pub use options::{FeatureSet, MkfsOptions};
pub use signature::signature;
pub use trim::trim;
pub use uuids::SeededUuids;
