//! Streams of `btrfs send`, versions 1 to 3: reading, applying and printing them.
//!
//! What the bytes mean is in [`oleo_format::stream`]. [`Commands`] reads them from anywhere, within bounds.
//!
//! Not here: which image or mount it is about, who may do it, and how it is told to the user (`oleo`, the command).

mod commands;
pub mod dump;
pub mod receive;
mod send;

pub use commands::{Commands, Limits, Next, StreamError};
pub use send::{Hook, Progress, SendError, SendOptions, Sent, send};
