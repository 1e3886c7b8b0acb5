//! Test tools: oracles, models, simulated disks and generators that the proofs of all crates use.
//!
//! - [`oracle`]: the kernel and `btrfs-progs` as oracles. Scratch images, loop devices, mounts, `btrfs check`, scrub.
//! - [`manifest`]: everything that a program can see of a directory tree, as data that can be compared.
//! - [`specimen`]: directories with every kind of file, and file systems that the kernel has made and aged.
//! - [`script`]: random operation scripts as data, run on any [`script::Target`], compared step by step, shrunk.
//! - [`rot`]: images with bytes changed and the checksums corrected.
//! - [`served`]: Oleo's own mount, as a guard.
//! - [`disk`]: a disk in memory that loses power and what was not flushed.
//! - [`faulty`]: a device that fails as a test asks for.
//! - [`gate`]: a device in memory that makes writes wait.
//! - [`stall`]: callers on a mount that do not need a device or store that is silent.
//! - [`budget`]: how much a seeded proof tries in CI and at night.
//! - [`crash`]: which states a crash may leave of a run, and which of them are right.
//! - [`store`]: an object store and its clients, with everything that networks do to requests.
//! - [`moto`], [`proxy`]: a server that speaks as S3 does, and a connection to it that delays and breaks.
//! - [`mutate`]: inputs that are nearly right.
//! - [`rng`]: the seeded numbers that all of these use.
//!
//! Everything random here takes a seed and prints it on failure, so that a failure found by chance can be repeated and
//! kept.
//!
//! This crate uses nothing of the engine but `oleo-format` and `oleo-device`, so that any crate may use it in its
//! tests; proofs that need the library are in `tests/`.

pub mod budget;
pub mod crash;
pub mod disk;
pub mod faulty;
pub mod gate;
pub mod manifest;
pub mod moto;
pub mod mutate;
pub mod oracle;
pub mod proxy;
pub mod rng;
pub mod rot;
pub mod script;
pub mod served;
pub mod specimen;
pub mod stall;
pub mod store;
