//! The log: what an fsync writes, so that it need not commit.
//!
//! (Rules: see `record`.)

mod mark;
mod record;
mod record_data;
mod record_names;
mod stats;
mod sync;

pub(crate) use mark::LogMark;
pub use stats::LogStats;
pub(crate) use sync::Shared;
