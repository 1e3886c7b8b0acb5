//! The processors of threads, as Linux has them.

use std::sync::OnceLock;

use rustix::io;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// What the process was given, since a thread was bound.
static ALL: OnceLock<CpuSet> = OnceLock::new();

/// The processors that the calling thread may run on, by number, in rising order. Empty if the system does not say, or
/// has more processors than [`CpuSet::MAX_CPU`].
pub fn processors() -> Vec<usize> {
    sched_getaffinity(None).map_or_else(|_| Vec::new(), |set| (0..CpuSet::MAX_CPU).filter(|n| set.is_set(*n)).collect())
}

/// Binds the calling thread to one of its processors.
///
/// # Errors
/// The system refuses, for example since the processor has been switched off. The thread is as it was.
pub fn bind(processor: usize) -> std::io::Result<()> {
    let all = sched_getaffinity(None)?;
    if processor >= CpuSet::MAX_CPU || !all.is_set(processor) {
        return Err(io::Errno::INVAL.into());
    }
    ALL.get_or_init(|| all);
    let mut one = CpuSet::new();
    one.set(processor);
    Ok(sched_setaffinity(None, &one)?)
}

/// Lets the calling thread run on all processors that the process was given, if a bound thread has started it. Does nothing if
/// no thread of the process has ever been bound.
pub fn unbind() {
    if let Some(all) = ALL.get() {
        // If that fails the thread is slower, and nothing else.
        let _ = sched_setaffinity(None, all);
    }
}

/// Gives the calling thread the class SCHED_IDLE: it runs when nobody else wants the processor. Threads that it starts inherit that.
///
/// # Errors
/// The system refuses, as sandboxes may.
pub fn only_when_idle() -> std::io::Result<()> {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads one `sched_param`, which lives until it returns; 0 is the calling thread.
    #[allow(unsafe_code, reason = "rustix has no wrapper for it")]
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const param) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a bound thread stays on its processor, a thread that it starts gets all processors back.
    #[test]
    fn threads_of_bound_threads_are_free() {
        let all = processors();
        let last = *all.last().unwrap();
        std::thread::spawn(move || {
            bind(last).unwrap();
            assert_eq!(processors(), [last]);
            let inherited = std::thread::spawn(processors).join().unwrap();
            assert_eq!(inherited, [last]);
            let free = std::thread::spawn(|| {
                unbind();
                processors()
            });
            assert_eq!(free.join().unwrap(), all);
            assert!(bind(CpuSet::MAX_CPU).is_err());
        })
        .join()
        .unwrap();
    }
}
