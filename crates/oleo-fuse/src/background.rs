//! Background work: what any program may have ([`oleo::Background`]: commits, write-back, cleaning, balances), and
//! *prune*, which asks the kernel to forget inodes if it knows too many; that also runs on a read-only mount.
//!
//! Stopping: all threads are told to stop and joined; what they did not finish is done at the end of the mount, or
//! (cleaning) at the next opening. Locks: none.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use oleo::BackgroundOptions;

use crate::options::MountOptions;
use crate::server::{Log, Server, guarded};

/// How often to check whether the kernel knows too many inodes.
const LOOK_UP: Duration = Duration::from_millis(500);
/// The pause between two requests to forget some.
const PRUNE_AGAIN: Duration = Duration::from_millis(10);

/// The threads of one mount.
pub(crate) struct Background {
    of_image: oleo::Background,
    /// Dropped to have `prune` end.
    alive: Sender<()>,
    prune: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts them; on a mount that cannot be changed only prune, and what scrubs without healing.
    pub(crate) fn start(
        server: &Arc<Server>,
        options: &MountOptions,
        commit_interval: Duration,
        log: &Log,
    ) -> Background {
        let report = log.clone();
        let background = BackgroundOptions::default()
            .commit_interval(commit_interval)
            .resume_balance(!options.skip_balance)
            .on_error(move |error| report(&error.to_string()));
        if let Some(dir) = &options.scrub_state {
            server.image().keep_scrubs_in(dir);
        }
        let of_image = server.image().start_background(background);
        let (alive, ended) = channel();
        let (server, said) = (server.clone(), log.clone());
        let work = move || {
            // It has reported the panic.
            let _panicked =
                guarded(server.image().fs(), &said, "the thread that does prune", || prune(&ended, &server));
        };
        let prune = std::thread::Builder::new().name("prune".to_owned()).spawn(work);
        let prune = prune.map_err(|e| log(&format!("cannot start the thread for prune: {e}"))).ok();
        Background { of_image, alive, prune }
    }

    /// Stops them.
    pub(crate) fn stop(self) {
        drop(self.alive);
        // Errors have been logged as they came.
        let _ = self.of_image.stop();
        if let Some(thread) = self.prune {
            // A thread that panicked has reported it.
            let _ = thread.join();
        }
    }
}

/// Waits that long, or until the end; whether it is the end.
fn wait(ended: &Receiver<()>, how_long: Duration) -> bool {
    ended.recv_timeout(how_long) == Err(RecvTimeoutError::Disconnected)
}

fn prune(ended: &Receiver<()>, server: &Server) {
    while !wait(ended, LOOK_UP) {
        server.shed();
        // The kernel prunes immediately all nodes that are not in use: there may be more.
        while server.prune() {
            if wait(ended, PRUNE_AGAIN) {
                return;
            }
        }
    }
}
