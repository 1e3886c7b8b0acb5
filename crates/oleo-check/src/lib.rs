//! An independent check: reads a volume through `oleo-volume` alone, rebuilds every count and compares.
//!
//! It shares no code with the rooms that write (tree, space, txn, fs), so that one mistake cannot blind both.

mod feed;
mod files;
mod finding;

pub use finding::{Finding, Kind, Place, Severity};
