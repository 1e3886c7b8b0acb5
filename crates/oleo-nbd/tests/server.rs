//! The server as its clients see it, through sockets. The client here is made for it: it encodes by itself, so that one
//! mistake of the library cannot hide from itself.

#[path = "server/raw.rs"]
mod raw;

#[path = "server/bounds.rs"]
mod bounds;
#[path = "server/commands.rs"]
mod commands;
#[path = "server/ends.rs"]
mod ends;
#[cfg(feature = "tls")]
#[path = "server/tls.rs"]
mod tls;
