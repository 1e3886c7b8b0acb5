//! The server as its clients see it, through sockets. The client here is made for it: it encodes by itself, so that one
//! mistake of the library cannot hide from itself.

mod raw;

mod bounds;
mod commands;
mod ends;
#[cfg(feature = "tls")]
mod tls;
