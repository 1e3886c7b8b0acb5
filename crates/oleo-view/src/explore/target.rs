//! What is explored.

use oleo::OpenOptions;
use oleo::control::{Reply, Request};

/// What a mount is asked.
pub type Ask = Box<dyn Fn(Request) -> oleo::Result<Reply> + Send + Sync>;

/// What is explored.
pub struct Target {
    /// The image or device.
    pub image: std::path::PathBuf,
    /// How to open it; for reading in any case.
    pub options: OpenOptions,
    /// The mount that has it, if one has: for what it is doing.
    pub mount: Option<Ask>,
    /// Memory for the tables of maps, in bytes, about.
    pub map_bytes: u64,
}
