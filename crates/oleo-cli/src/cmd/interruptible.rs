//! Long work in this process: a signal interrupts it, and its progress is shown.

use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::out::Progress;

/// How often the progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Ends the threads beside the work when it has ended, however it did.
struct Closes(Handle);

impl Drop for Closes {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Does `work`. SIGINT and SIGTERM call `interrupt`; `show` is called now and then while the progress is shown.
pub(crate) fn interruptible<R>(
    progress: &Progress,
    interrupt: impl Fn() + Sync,
    show: impl Fn() + Sync,
    work: impl FnOnce() -> R,
) -> std::io::Result<R> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let closes = Closes(signals.handle());
    let handle = closes.0.clone();
    Ok(thread::scope(|threads| {
        let _closes = closes;
        threads.spawn(|| signals.forever().for_each(|_| interrupt()));
        threads.spawn(|| {
            while progress.is_shown() && !handle.is_closed() {
                show();
                thread::sleep(LOOK_EVERY);
            }
        });
        work()
    }))
}
