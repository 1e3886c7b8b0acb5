//! What goes on without being asked for: commits and cleaning.
//!
//! Two threads: *commit* writes everything to disk every `commit=` seconds; *clean* erases files without names and takes
//! deleted subvolumes apart, in steps small enough for others to get in between.
//!
//! Stopping: both are told and waited for; what they did not get to do, the end of the mount does, or (cleaning) the
//! next opening. Locks: `bell`, a leaf.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::options::MountOptions;
use crate::server::{Log, Server};

/// Blocks that one step of the cleaner takes apart: some milliseconds.
const CLEAN_BLOCKS: usize = 256;
/// How often the cleaner looks for work.
const CLEAN_EVERY: Duration = Duration::from_millis(500);
/// How long to leave alone what did not work.
const AFTER_ERROR: Duration = Duration::from_secs(5);

/// Tells the threads to stop.
#[derive(Default)]
struct Bell {
    stopped: Mutex<bool>,
    rung: Condvar,
}

impl Bell {
    /// Waits that long, or until the end; whether it is the end.
    fn wait(&self, how_long: Duration) -> bool {
        let end = Instant::now() + how_long;
        let mut stopped = self.stopped.lock();
        while !*stopped && !self.rung.wait_until(&mut stopped, end).timed_out() {}
        *stopped
    }
}

/// The threads of one mount.
pub(crate) struct Background {
    bell: Arc<Bell>,
    threads: Vec<JoinHandle<()>>,
}

impl Background {
    /// Starts them; on a mount that cannot be changed there are none.
    pub(crate) fn start(server: &Arc<Server>, options: &MountOptions, log: &Log) -> Background {
        let bell = Arc::new(Bell::default());
        let mut threads = Vec::new();
        if !options.read_only {
            let commit_every = Duration::from_secs(options.commit_seconds);
            let mut start = |name: &str, work: Box<dyn FnOnce() + Send>| match std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(work)
            {
                Ok(thread) => threads.push(thread),
                Err(e) => log(&format!("no thread for {name}: {e}")),
            };
            let (b, s, l) = (bell.clone(), server.clone(), log.clone());
            start("commit", Box::new(move || commit(&b, &s, &l, commit_every)));
            let (b, s, l) = (bell.clone(), server.clone(), log.clone());
            start("clean", Box::new(move || clean(&b, &s, &l)));
        }
        Background { bell, threads }
    }

    /// Stops them.
    pub(crate) fn stop(self) {
        *self.bell.stopped.lock() = true;
        self.bell.rung.notify_all();
        for thread in self.threads {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

fn commit(bell: &Bell, server: &Server, log: &Log, every: Duration) {
    while !bell.wait(every) {
        if let Err(e) = server.sync() {
            log(&format!("commit: {e}"));
        }
    }
}

fn clean(bell: &Bell, server: &Server, log: &Log) {
    let fs = server.image().fs();
    while !bell.wait(CLEAN_EVERY) {
        loop {
            match fs.clean(CLEAN_BLOCKS) {
                Ok(true) if bell.wait(Duration::ZERO) => return,
                Ok(true) => {}
                Ok(false) => break,
                Err(e) => {
                    log(&format!("cleaning: {e}"));
                    if bell.wait(AFTER_ERROR) {
                        return;
                    }
                    break;
                }
            }
        }
    }
}
