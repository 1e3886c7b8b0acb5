//! The log: what an fsync writes, so that it need not commit.
//!
//! (Rules: see `record`; `replay` brings a log that a crash left into the subvolumes it belongs to.)

mod mark;
mod record;
mod record_data;
mod record_names;
mod replay;
mod stats;
mod sync;

pub(crate) use mark::LogMark;
pub use replay::{Replayed, replay};
pub use stats::LogStats;
pub(crate) use sync::Shared;
