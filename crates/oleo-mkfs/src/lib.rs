//! Makes a btrfs file system: writes the first trees ([`make`]), and fills it from a directory ([`fill_from_dir`]) or a
//! tar archive ([`fill_from_tar`]).
//!
//! Directories are walked on Linux only; elsewhere a fill from one is refused (`EOPNOTSUPP`).
//!
//! Everything here is deterministic: [`MkfsOptions`] supplies clock and randomness; only [`MkfsOptions::unique`] asks
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
    FillOptions, OnProgress, Progress, Reflink, Report, SubvolSpec, TableEntry, TopAttributes, fill_from_dir,
    fill_from_layers, fill_from_tar, fill_one, parse_table,
};
pub use first::{Made, make};
pub use oleo_volume::Profile;
pub use options::{FeatureSet, MkfsOptions};
pub use signature::{BTRFS, Partition, QCOW, UNFINISHED, partitions, signature};
pub use trim::trim;
pub use uuids::SeededUuids;
