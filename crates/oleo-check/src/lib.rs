//! An independent checker: reads a volume through `oleo-volume` alone, rebuilds every count and compares.
//!
//! It shares no code with the crates that write (tree, space, txn, fs), so that one mistake cannot blind both. Module
//! `check` describes the steps of a check; `walk`, `refs` and `reduce` describe how memory is kept small.
//!
//! If blocks cannot be read, findings that follow from that alone are not reported. Not checked: the parity of RAID5 and RAID6,
//! the contents of free-space caches of version 1, and `bytes_used` of root items.

mod check;
mod collect;
mod csums;
mod data;
mod details;
mod extents;
mod files;
mod finding;
mod input;
mod log;
mod prealloc;
mod ranges;
mod reduce;
mod refs;
mod sets;
mod space;
mod supers;
mod trees;
mod walk;

pub use check::{CheckError, CheckOptions, Report, check};
pub use finding::{Finding, Kind, Place, Severity};
pub use trees::Counts;
pub use walk::Progress;
