//! Long work on a thread of its own, while the calling one sees to signals and tells how far it is.

use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;

/// How often signals and progress are looked at.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Does `work` with the interpreter released. Now and then looks for signals and calls `look`; the first exception of these calls `stop`,
/// and is raised when the work has ended.
pub(crate) fn watched<T: Send>(
    py: Python<'_>,
    mut look: impl FnMut(Python<'_>) -> PyResult<()> + Send,
    stop: impl Fn() + Send,
    work: impl FnOnce() -> T + Send,
) -> PyResult<T> {
    py.detach(move || {
        thread::scope(|scope| {
            let (alive, ended) = sync_channel::<()>(0);
            let worker = scope.spawn(move || {
                let _alive = alive;
                work()
            });
            let mut seen = Ok(());
            while ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                if seen.is_ok() {
                    seen = Python::attach(|py| {
                        py.check_signals()?;
                        look(py)
                    });
                    if seen.is_err() {
                        stop();
                    }
                }
            }
            let done = worker.join().unwrap_or_else(|panic| resume_unwind(panic));
            seen.map(|()| done)
        })
    })
}
