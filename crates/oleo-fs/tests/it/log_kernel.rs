//! What an fsync wrote, as the kernel replays it: its recovery is the oracle.
//!
//! Each test works through the library on a device in memory, syncs something, and takes a copy of the device as a crash
//! would leave it. The kernel mounts the copy, which replays the log; what was synced must be there, names gone must be gone,
//! and afterwards `btrfs check` must find nothing.

mod content;
mod cost;
mod fixture;
mod names;
mod random;
