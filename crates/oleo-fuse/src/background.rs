//! What goes on without being asked for: commits, write-back, cleaning.
//!
//! Five threads: *commit* writes everything to disk every `commit=` seconds while there is something to write, and
//! commits as soon as more inodes are dirty than should be, so that operations seldom have to;
//! *write-back* sends file data to disk as soon as more waits than should, so that writers seldom have to; *clean* erases
//! files without names and takes deleted subvolumes apart, in steps small enough for others to get in between; first of all it
//! counts quota groups, where that was cut short; *balance* runs balances that are asked for, and resumes one that was cut short,
//! unless mounted with `skip_balance`; *prune*, also of a mount that cannot be changed, has the kernel forget inodes where it knows too
//! many.
//!
//! Stopping: all of them are told and waited for; what they did not get to do, the end of the mount does, or (cleaning) the
//! next opening. Locks: `stop_signal`, a leaf.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use oleo::{BalanceEnd, BalanceState};
use oleo_lock::{Condvar, Mutex, rank};

use crate::options::MountOptions;
use crate::server::{Log, Server, guarded};

/// Blocks that one step of the cleaner takes apart: some milliseconds.
const CLEAN_BLOCKS: usize = 256;
/// How often the cleaner looks for work.
const CLEAN_EVERY: Duration = Duration::from_millis(500);
/// How long those who wait for work do so before they look whether they are to stop.
const LOOK_UP: Duration = Duration::from_millis(500);
/// How long between two looks for a balance, when nobody waits.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How long to leave alone what did not work.
const AFTER_ERROR: Duration = Duration::from_secs(5);

/// Tells the threads to stop.
#[derive(Default)]
struct StopSignal {
    stopped: Mutex<rank::StopSignal, bool>,
    rung: Condvar,
}

impl StopSignal {
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
    stop_signal: Arc<StopSignal>,
    threads: Vec<JoinHandle<()>>,
}

impl Background {
    /// Starts them; on a mount that cannot be changed only the last.
    pub(crate) fn start(server: &Arc<Server>, options: &MountOptions, log: &Log) -> Background {
        let stop_signal = Arc::new(StopSignal::default());
        let mut threads = Vec::new();
        let commit_every = Duration::from_secs(options.commit_seconds);
        let mut start = |name: &str, work: Box<dyn FnOnce() + Send>| match std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(guarded_work(server, log, name, work))
        {
            Ok(thread) => threads.push(thread),
            Err(e) => log(&format!("no thread for {name}: {e}")),
        };
        let (b, s) = (stop_signal.clone(), server.clone());
        start("prune", Box::new(move || prune(&b, &s)));
        if !options.read_only {
            let (b, s, l) = (stop_signal.clone(), server.clone(), log.clone());
            start("commit", Box::new(move || commit(&b, &s, &l, commit_every)));
            let (b, s, l) = (stop_signal.clone(), server.clone(), log.clone());
            start("write-back", Box::new(move || write_back(&b, &s, &l)));
            let (b, s, l) = (stop_signal.clone(), server.clone(), log.clone());
            start("clean", Box::new(move || clean(&b, &s, &l)));
            let (b, s, l, skip) = (stop_signal.clone(), server.clone(), log.clone(), options.skip_balance);
            start("balance", Box::new(move || balance(&b, &s, &l, skip)));
        }
        Background { stop_signal, threads }
    }

    /// Stops them.
    pub(crate) fn stop(self) {
        *self.stop_signal.stopped.lock() = true;
        self.stop_signal.rung.notify_all();
        for thread in self.threads {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// A thread that panics ends, and with it all changes.
fn guarded_work(
    server: &Arc<Server>,
    log: &Log,
    name: &str,
    work: Box<dyn FnOnce() + Send>,
) -> impl FnOnce() + Send + use<> {
    let (server, log, what) = (server.clone(), log.clone(), format!("the thread that does {name}"));
    move || {
        // What it said is all there is to know.
        let _panicked = guarded(server.image().fs(), &log, &what, work);
    }
}

fn commit(stop_signal: &StopSignal, server: &Server, log: &Log, every: Duration) {
    let fs = server.image().fs();
    let mut reported = false;
    let mut due = Instant::now() + every;
    loop {
        let pressed = fs.wait_commit(due.saturating_duration_since(Instant::now()).min(LOOK_UP));
        if stop_signal.wait(Duration::ZERO) {
            return;
        }
        let is_due = Instant::now() >= due;
        if !pressed && !is_due {
            continue;
        }
        if is_due {
            due = Instant::now() + every;
        }
        let done = match (is_due, fs.has_changes()) {
            (_, false) => Ok(()),
            (true, true) => fs.sync().map(drop),
            (false, true) => fs.commit().map(drop),
        };
        if let Err(e) = done {
            if !reported {
                log(&format!("commit: {e}"));
            }
            if stop_signal.wait(AFTER_ERROR) {
                return;
            }
        }
        if !reported && let Some(why) = fs.poisoned_by() {
            log(&format!("the volume is read-only from now on, as of its last commit: {why}"));
            reported = true;
        }
    }
}

fn prune(stop_signal: &StopSignal, server: &Server) {
    while !stop_signal.wait(LOOK_UP) {
        server.shed();
        // The kernel does what it is asked directly, but for what is in use: there may be more.
        while server.prune() {
            if stop_signal.wait(POLL_INTERVAL) {
                return;
            }
        }
    }
}

fn write_back(stop_signal: &StopSignal, server: &Server, log: &Log) {
    let fs = server.image().fs();
    loop {
        let work = fs.wait_write_back(LOOK_UP);
        if stop_signal.wait(Duration::ZERO) {
            return;
        }
        if work && let Err(e) = fs.write_back() {
            log(&format!("write-back: {e}"));
            if stop_signal.wait(AFTER_ERROR) {
                return;
            }
        }
    }
}

fn clean(stop_signal: &StopSignal, server: &Server, log: &Log) {
    let fs = server.image().fs();
    if server.image().quota().is_some_and(|quota| quota.flags.contains(oleo::QgroupStatusFlags::RESCAN))
        && let Err(e) = server.image().quota_rescan_until(&|| !stop_signal.wait(Duration::ZERO))
    {
        log(&format!("counting quota groups: {e}"));
    }
    while !stop_signal.wait(CLEAN_EVERY) {
        loop {
            match fs.clean(CLEAN_BLOCKS) {
                Ok(true) if stop_signal.wait(Duration::ZERO) => return,
                Ok(true) => {}
                Ok(false) => break,
                Err(e) => {
                    log(&format!("cleaning: {e}"));
                    if stop_signal.wait(AFTER_ERROR) {
                        return;
                    }
                    break;
                }
            }
        }
    }
}

fn balance(stop_signal: &StopSignal, server: &Server, log: &Log, skip: bool) {
    let balancer = server.image().balancer();
    if !skip
        && balancer.status().state == BalanceState::Paused
        && let Err(e) = balancer.resume()
    {
        log(&format!("the balance that was interrupted is not resumed: {e}"));
    }
    loop {
        if balancer.wait_work(LOOK_UP)
            && let Some(BalanceEnd::Failed { text, .. }) = balancer.run()
        {
            log(&format!("balance: {text}"));
        }
        if stop_signal.wait(POLL_INTERVAL) {
            return;
        }
    }
}
