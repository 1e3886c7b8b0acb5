//! The engine against the kernel: images made here and used there, and the reverse; random scripts on both; full devices;
//! damaged images; power cuts.
//!
//! `crate::ours` makes the library a [`TreeView`](oleo_sim::manifest::TreeView) and a [`Target`](oleo_sim::script::Target);
//! the modules here hold the proofs.

mod aged;
mod bad_input;
mod full;
mod log_replay;
mod matrix;
mod scripts;
mod soak;
