//! For tests only: what proves the engine.
//!
//! - [`oracle`]: the kernel and `btrfs-progs` as oracles. Scratch images, loop devices, mounts, `btrfs check`, scrub.
//! - [`manifest`]: everything that a program can see of a directory tree, as data that can be compared.
//! - [`specimen`]: directories with every kind of file, and file systems that the kernel has made and aged.
//! - [`script`]: random operation scripts as data, run on any [`script::Target`], compared step by step, shrunk.
//! - [`rot`]: images with bytes changed and the checksums put right again.
//! - [`served`]: Oleo's own mount, as a guard.
//! - [`disk`]: a disk in memory that loses power and what was not flushed.
//! - [`gate`]: a device in memory that keeps writes waiting.
//! - [`crash`]: what a crash leaves of a run, state by state, and which of that is right.
//! - [`rng`]: the seeded numbers that all of these draw from.
//!
//! A failure found by chance is worth keeping: every random thing here takes a seed and says it when it fails.
//!
//! This crate knows nothing of the engine above `oleo-format`, so that any room may use it in its tests; what binds it
//! to the library lives in `tests/`.

pub mod crash;
pub mod disk;
pub mod gate;
pub mod manifest;
pub mod oracle;
pub mod rng;
pub mod rot;
pub mod script;
pub mod served;
pub mod specimen;
