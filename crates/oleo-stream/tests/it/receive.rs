//! Receiving, verified by the kernel: its streams into our images, beside its own receive of the same stream.

mod anything;
mod chains;
mod common;
mod crafted;
mod dir;
