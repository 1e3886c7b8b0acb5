//! The one thread of a device that is open for writing.
//!
//! It flushes what was written and is followed by nothing. A commit ends with copies of the superblock and no flush, so
//! without it a quiet volume would for ever have something that a lost connection may take with it, and a server that is
//! restarted at night would end it. A flush of it that fails counts like any other.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// What a keeper keeps.
pub(super) trait Kept: Send + Sync + 'static {
    /// Waits for something to do and does it; whether there will be more.
    fn keep(&self) -> bool;
    /// Makes `keep` return false soon.
    fn stop(&self);
}

/// The thread; dropping it ends it.
pub(super) struct Keeper {
    kept: Arc<dyn Kept>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts it.
    pub(super) fn start(kept: Arc<dyn Kept>) -> io::Result<Keeper> {
        let held = kept.clone();
        let thread = std::thread::Builder::new().name("oleo-nbd".into()).spawn(move || while held.keep() {})?;
        Ok(Keeper { kept, thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.kept.stop();
        // A panic of its own has been printed by it.
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}
