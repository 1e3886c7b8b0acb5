//! The wish to end, which all who wait for a socket wait for too.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::EventfdFlags;

/// Ends a server: from any thread, any number of times.
#[derive(Clone, Debug)]
pub struct Stopper {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    is_set: AtomicBool,
    /// Readable from then on: nobody ever reads it.
    event: OwnedFd,
}

impl Stopper {
    pub(super) fn new() -> io::Result<Stopper> {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Stopper { inner: Arc::new(Inner { is_set: AtomicBool::new(false), event }) })
    }

    /// Ends the server: see [`crate::Server::serve`].
    pub fn stop(&self) {
        self.inner.is_set.store(true, Ordering::Release);
        let one = 1u64;
        // The counter cannot be full, and every reader only polls.
        let _ = rustix::io::write(&self.inner.event, &one.to_le_bytes());
    }

    /// Whether that was asked for.
    pub fn is_set(&self) -> bool {
        self.inner.is_set.load(Ordering::Acquire)
    }

    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.inner.event.as_fd()
    }
}
