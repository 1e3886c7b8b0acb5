//! Volumes on object stores from outside: in a directory, and on a server that speaks as S3 does (moto), with a connection to it
//! that delays and breaks.
//!
//! - `commands`: a session of commands; names and options; who holds a volume; exports and copies of one.
//! - `tools`: encryption, and the commands that verify, probe and measure.
//! - `exercised`: mounts under load, over a connection that delays and breaks.
//! - `followed`: mounts that follow what another one writes.
//! - `local`: mounts with a log on the local disk.
//! - `mirror`: raid1 over two stores, and a store and a disk.
//! - `streams`: snapshots that are kept as streams.
//! - `mounted`: mounts, and what is left when they are killed, or the connection goes.
//!
//! What is missing fails the test: `scripts/test` installs it.

mod harness;

mod commands;
mod exercised;
mod followed;
mod local;
mod mirror;
mod mounted;
mod streams;
mod tools;
