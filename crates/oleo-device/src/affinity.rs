//! Which processors a thread may run on.
//!
//! A thread that answers the requests of one processor is fastest on that processor (`bind`). A thread inherits the processors of the
//! one that starts it, so threads that bound threads may start call [`unbind`] first. Where there is no Linux below, no thread is ever bound.

#[cfg(target_os = "linux")]
mod linux;

#[cfg(target_os = "linux")]
pub use linux::{bind, only_when_idle, processors, unbind};

/// Does nothing: no thread has ever been bound.
#[cfg(not(target_os = "linux"))]
pub fn unbind() {}
