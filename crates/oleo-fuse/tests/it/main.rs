//! All integration tests of `oleo-fuse` in one program: it is linked once, and the runner queues its tests with all others.

#[cfg(feature = "nbd")]
mod stalled;
mod uring;
