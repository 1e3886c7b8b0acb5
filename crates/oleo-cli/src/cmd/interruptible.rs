//! Long work in this process: a signal interrupts it, and its progress is shown.

use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::emulate_default_handler;

use crate::out::{Progress, warn};

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

/// Waits for a job that another process does. A signal ends this program alone, which says so.
pub(crate) fn watched<R>(progress: &Progress, continues: &str, work: impl FnOnce() -> R) -> std::io::Result<R> {
    interruptible(progress, || end_by_signal(continues), || {}, work)
}

/// Reports what an interruption leaves, and ends the program as the signal alone would.
pub(crate) fn end_by_signal(text: &str) -> ! {
    progress_ended();
    warn(text);
    // It returns only if the signal cannot be raised.
    let _returned = emulate_default_handler(SIGINT);
    std::process::exit(1);
}

/// Moves behind a line of progress at a terminal.
fn progress_ended() {
    if std::io::IsTerminal::is_terminal(&std::io::stderr()) {
        eprintln!();
    }
}
