//! How a map is made, and what of it is an estimate.

use serde::Serialize;

/// How a map is made.
#[derive(Clone, Debug)]
pub struct MapOptions {
    /// About how many bytes of memory tables may take; a sample is taken of what does not fit.
    pub table_bytes: u64,
    /// Leaves out who reaches what and the paths, which takes reading all trees of files.
    pub space_only: bool,
}

impl Default for MapOptions {
    fn default() -> MapOptions {
        MapOptions { table_bytes: 256 << 20, space_only: false }
    }
}

/// How data extents were sampled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Sample {
    /// One of so many data extents was looked at, chosen by its address; numbers are multiplied by this.
    pub one_in: u64,
    /// So many were looked at.
    pub extents: u64,
}
