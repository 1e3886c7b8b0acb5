//! The crash harness: what a run leaves on its disks whenever the power fails, and what may be found there.
//!
//! - [`pages`]: disk contents that are cheap to copy.
//! - [`record`]: devices that note what they are told.
//! - [`states`]: the states that a crash may leave of it.

pub mod pages;
pub mod record;
pub mod states;
