//! How requests are received and replies sent: a trait, with implementations for `/dev/fuse` and io_uring between which
//! the server sees no difference.
//!
//! A transport owns the buffers. It calls [`Handler::handle`] from several threads in parallel, with a request that
//! borrows from the transport's buffer and a reply to fill, and sends the result. [`Transport::serve`] returns when the
//! file system is unmounted and every request has been answered.
//!
//! [`connect`] chooses: io_uring if the kernel offers it, else `/dev/fuse`.
//!
//! Not here: what requests mean (`server`), how the connection was made (`attach`).

mod dev;
mod stalled;
mod uring;

use std::io;
use std::path::Path;
use std::sync::Arc;

pub use dev::DevFuse;
pub use uring::{AgreeOn, HaltPolling, connect};

use crate::wire::abi::opcode;
use crate::wire::{Reply, Request, abi};

/// Bytes that one request may write or read; what the kernel allows without a setting of root's (256 pages).
pub const IO_LEN_MAX: usize = 1 << 20;

/// The outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The reply is in the buffer.
    Done,
    /// An errno, positive.
    Failed(i32),
    /// This kind of request has no reply.
    Silent,
}

/// How long answering takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BlockingClass {
    /// Memory and processor alone, as a rule. If it waits for a device all the same, `stalled` sees that.
    Quick,
    /// It may wait for a device, or for room in memory.
    MayWait,
    /// It is sure to take long, or to wait for a commit.
    Waits,
}

fn blocking_class(code: u32) -> BlockingClass {
    match code {
        opcode::READ | opcode::WRITE | opcode::SETATTR => BlockingClass::MayWait,
        opcode::FSYNC | opcode::FSYNCDIR | opcode::SYNCFS | opcode::DESTROY | opcode::IOCTL => BlockingClass::Waits,
        opcode::FALLOCATE | opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => BlockingClass::Waits,
        _ => BlockingClass::Quick,
    }
}

/// Answers requests.
pub trait Handler: Send + Sync {
    /// Answers one request. Called by many threads in parallel.
    fn handle(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Outcome;

    /// Whether the reply to this request may have to wait for the reply to another one, which must then not depend on
    /// the same thread or the same memory. `args` is the beginning of what follows the header.
    fn waits_for_another(&self, head: &abi::InHeader, args: &[u8]) -> bool {
        let _ = (head, args);
        false
    }
}

/// A connection to the kernel.
pub trait Transport: Send + Sync {
    /// Answers requests with `handler` until the file system is unmounted.
    ///
    /// # Errors
    /// The connection broke.
    fn serve(&self, handler: Arc<dyn Handler>) -> io::Result<()>;

    /// Notifies the kernel of changes.
    fn notifier(&self) -> Arc<dyn Notifier>;

    /// The file in which root can switch on a faster way, which the kernel has and does not offer.
    fn switch(&self) -> Option<&'static Path> {
        None
    }
}

/// Makes the kernel drop what it must not rely on any longer. It is not an error if the kernel does not know it.
pub trait Notifier: Send + Sync {
    /// The attributes of a node, and its pages from `off` on, `len` bytes (0: to the end; negative `off`: no pages).
    ///
    /// # Errors
    /// The connection is gone.
    fn inval_inode(&self, node: u64, off: i64, len: i64) -> io::Result<()>;

    /// A name in a directory.
    ///
    /// # Errors
    /// The connection is gone.
    fn inval_entry(&self, dir: u64, name: &[u8]) -> io::Result<()>;

    /// Nodes to be forgotten if they are not in use; not too many in one call.
    ///
    /// # Errors
    /// The connection is gone; `Unsupported`: this kernel does not support it.
    fn prune(&self, nodes: &[u64]) -> io::Result<()>;
}

/// Agrees with the kernel before the first request.
pub type Agree<'a> = &'a dyn Fn(&abi::InitIn) -> Result<abi::InitOut, i32>;
