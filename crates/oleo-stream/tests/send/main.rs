//! Streams of ours: what the kernel makes of them, and how large they are.

mod bytes;
mod common;
mod damage;
mod named;
mod other;
mod roundtrip;
