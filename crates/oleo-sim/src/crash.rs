//! The crash harness: which states a run may leave on its disks when the power fails, and which of them are right.
//!
//! - [`pages`]: disk contents that are cheap to copy.
//! - [`record`]: devices that record their requests.
//! - [`states`]: the states that a crash may leave of them.
//! - [`loss`]: disks that are gone after it.
//! - [`order`]: the same in an order that keeps no promise, to see that this is noticed.
//! - [`seen`]: what a program sees of a file system at one moment.
//! - [`ace`]: all short sequences of operations.
//! - [`promises`]: which steps make something durable.
//! - [`model`]: what may be found after a crash.
//! - [`tally`]: counts, and reports of failures.
//!
//! `tests/crash` runs the library and the kernel with these.

pub mod ace;
pub mod loss;
pub mod model;
pub mod order;
pub mod pages;
pub mod promises;
pub mod record;
pub mod seen;
pub mod states;
pub mod tally;
