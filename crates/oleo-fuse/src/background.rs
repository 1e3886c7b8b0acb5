//! What goes on without being asked for: what any program may have ([`oleo::Background`]: commits, write-back, cleaning, balances),
//! and *prune*, also of a mount that cannot be changed, which has the kernel forget inodes where it knows too many.
//!
//! Stopping: all of them are told and waited for; what they did not get to do, the end of the mount does, or (cleaning) the
//! next opening. Locks: none.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use oleo::BackgroundOptions;

use crate::options::MountOptions;
use crate::server::{Log, Server, guarded};

/// How long to wait before looking whether the kernel knows too many inodes.
const LOOK_UP: Duration = Duration::from_millis(500);
/// How long between two times that it is asked to forget some.
const PRUNE_AGAIN: Duration = Duration::from_millis(10);

/// The threads of one mount.
pub(crate) struct Background {
    of_image: oleo::Background,
    /// Dropped to have `prune` end.
    alive: Sender<()>,
    prune: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts them; on a mount that cannot be changed only the last.
    pub(crate) fn start(server: &Arc<Server>, options: &MountOptions, log: &Log) -> Background {
        let report = log.clone();
        let background = BackgroundOptions::default()
            .commit_interval(Duration::from_secs(options.commit_seconds))
            .resume_balance(!options.skip_balance)
            .on_error(move |error| report(&error.to_string()));
        let of_image = server.image().start_background(background);
        let (alive, ended) = channel();
        let (server, said) = (server.clone(), log.clone());
        let work = move || {
            // What it said is all there is to know.
            let _panicked =
                guarded(server.image().fs(), &said, "the thread that does prune", || prune(&ended, &server));
        };
        let prune = std::thread::Builder::new().name("prune".to_owned()).spawn(work);
        let prune = prune.map_err(|e| log(&format!("no thread for prune: {e}"))).ok();
        Background { of_image, alive, prune }
    }

    /// Stops them.
    pub(crate) fn stop(self) {
        drop(self.alive);
        // Errors have been logged as they came.
        let _ = self.of_image.stop();
        if let Some(thread) = self.prune {
            // A thread that panicked has said so.
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
        // The kernel does what it is asked directly, but for what is in use: there may be more.
        while server.prune() {
            if wait(ended, PRUNE_AGAIN) {
                return;
            }
        }
    }
}
