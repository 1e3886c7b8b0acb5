//! The FUSE protocol: parses requests as the kernel sends them, and builds replies.
//!
//! A request has three parts: the header, one fixed struct that depends on the request, and the rest (names, values,
//! data). `/dev/fuse` sends them in one piece, io_uring in three; [`Request::parse`] separates them once, so that the
//! server sees no difference. A request that does not fit is [`Malformed`] and fails with EIO; nothing here trusts a
//! length.
//!
//! Replies are written into a buffer of fixed size that the transport owns ([`Reply`]), so that a read goes from the
//! file straight to where the kernel takes it.
//!
//! fuser, the usual library, was considered: it has neither FUSE_TMPFILE, FUSE_STATX and FUSE_SYNCFS nor any transport
//! other than `/dev/fuse` (docs/decisions).

pub mod abi;
mod reply;
mod request;

pub use reply::Reply;
pub use request::{Malformed, Op, Request, fixed_len};
