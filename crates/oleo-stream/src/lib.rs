//! Streams of `btrfs send`, versions 1 to 3: making, reading, applying and printing them.
//!
//! [`oleo_format::stream`] defines the bytes. [`send()`] makes streams, [`receive`](receive::receive) applies them,
//! [`Commands`] reads them from any source within bounds, [`dump`] prints them, [`lookup`] finds single files in chains of them.
//!
//! Not here: opening images and mounts, permissions, messages to the user (`oleo`, the command).

mod commands;
pub mod dump;
pub mod lookup;
pub mod receive;
mod send;

pub use commands::{Commands, Limits, Next, StreamError};
pub use send::{Hook, Progress, SendError, SendOptions, Sent, send};
