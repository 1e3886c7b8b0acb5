//! Streams of ours: their result on the kernel, and their size.

mod bytes;
mod common;
mod damage;
mod links;
mod named;
mod other;
mod roundtrip;
