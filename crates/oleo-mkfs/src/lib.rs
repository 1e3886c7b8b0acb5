//! Makes a btrfs file system: the first trees ([`make`]), and filling it from a directory or a tar.
//!
//! Everything here is deterministic: clock and randomness are handed in by [`MkfsOptions`].

mod error;
mod first;
mod options;

pub use error::MkfsError;
pub use first::{Made, make};
pub use options::{FeatureSet, MkfsOptions, Profile};
