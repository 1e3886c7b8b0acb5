//! Network block devices (NBD): a server that shows [`oleo_device::Device`]s, and a client that is one.
//!
//! The wire format is in [`wire`], names of exports are [`Uri`]s, a connection is a [`channel::Channel`]. Nothing here
//! knows anything of btrfs, and nothing reads the environment.
//!
//! Durability passes through unchanged: a flush is answered when the device has flushed, a write with FUA when it is
//! durable, and after a failure nothing is promised any more.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "network block devices need Linux: use oleo with default-features = false, features = [\"zlib\", \"lzo\", \"zstd\"]"
);

pub mod channel;
mod client;
mod error;
pub mod listen;
mod server;
pub mod uri;
pub mod wire;

#[cfg(feature = "tls")]
pub use channel::{ClientTls, ServerTls};
pub use client::{ClientOptions, NbdDevice};
pub use error::NbdError;
pub use listen::{Listener, listen_at};
pub use server::{Export, Log, ServeOptions, Served, Server, Stopper};
pub use uri::{At, Uri};
