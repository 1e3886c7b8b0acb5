//! The crash harness: what a run leaves on its disks whenever the power fails, and what may be found there.
//!
//! - [`pages`]: disk contents that are cheap to copy.
//! - [`record`]: devices that note what they are told.
//! - [`states`]: the states that a crash may leave of it.
//! - [`order`]: the same in an order that keeps no promise, to see that this is noticed.
//! - [`seen`]: what a program sees of a file system at one moment.
//! - [`ace`]: all short sequences of operations.
//! - [`promises`]: which steps make something durable.
//! - [`model`]: which of that may be found after a crash.
//! - [`tally`]: counting, and telling of failures.
//!
//! `tests/crash` runs the library and the kernel with these.

pub mod ace;
pub mod model;
pub mod order;
pub mod pages;
pub mod promises;
pub mod record;
pub mod seen;
pub mod states;
pub mod tally;
