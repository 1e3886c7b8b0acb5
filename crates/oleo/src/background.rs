//! What goes on beside the users of an image without being asked for: commits, write-back, cleaning, balances, scrubs. A mount has it, and
//! [`Image::start_background`] gives it to any program.
//!
//! Six threads: *commit* writes everything to disk every [`commit_interval`](BackgroundOptions::commit_interval) while there is
//! something to write, and commits as soon as more inodes are dirty than should be, so that operations seldom have to;
//! *write-back* sends file data to disk as soon as more waits than should, so that writers seldom have to; *clean* erases
//! files without names and takes deleted subvolumes apart, in steps small enough for others to get in between; first of all it
//! counts quota groups, where that was cut short; *balance* runs balances that are asked for, and resumes one that was cut short
//! if it is to; *replace* does the same for the replacement of a device, always; *scrub* runs scrubs that are asked for.
//!
//! Stopping: the threads are asked to end and waited for; each looks at least every half second. What they did not get to do, the
//! next commit does, or (cleaning) [`Image::clean`] or the next opening. Locks: none; the first error waits in a channel of one
//! place. Crash: as without them, the last commit stands.
//!
//! On images that are open for reading only there is *scrub* alone, which heals nothing there.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use oleo_format::QgroupStatusFlags;
use oleo_fs::Fs;
use oleo_jobs::{BalanceEnd, BalanceState, Balancer, Replacer, ScrubEnd, Scrubber};

use crate::notices::{self, OnNotice};
use crate::{Error, Image, control};

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

/// What an error of [`Background`] is handed to.
pub type OnError = Arc<dyn Fn(&BackgroundError) + Send + Sync>;

/// How an image is looked after ([`Image::start_background`]).
#[derive(Clone)]
#[non_exhaustive]
pub struct BackgroundOptions {
    /// How long a change waits for a commit at most. Default: 30 s, as with the kernel.
    pub commit_interval: Duration,
    /// Whether a balance that was interrupted is resumed. Default: yes.
    pub resume_balance: bool,
    /// Called with every error, by the thread that met it. Default: nobody; [`Background::stop`] returns the first in any case.
    pub on_error: Option<OnError>,
}

impl Default for BackgroundOptions {
    fn default() -> BackgroundOptions {
        BackgroundOptions { commit_interval: Duration::from_secs(30), resume_balance: true, on_error: None }
    }
}

impl BackgroundOptions {
    /// Sets [`commit_interval`](BackgroundOptions::commit_interval).
    pub fn commit_interval(mut self, commit_interval: Duration) -> BackgroundOptions {
        self.commit_interval = commit_interval;
        self
    }

    /// Sets [`resume_balance`](BackgroundOptions::resume_balance).
    pub fn resume_balance(mut self, resume_balance: bool) -> BackgroundOptions {
        self.resume_balance = resume_balance;
        self
    }

    /// Sets [`on_error`](BackgroundOptions::on_error).
    pub fn on_error(mut self, on_error: impl Fn(&BackgroundError) + Send + Sync + 'static) -> BackgroundOptions {
        self.on_error = Some(Arc::new(on_error));
        self
    }
}

impl fmt::Debug for BackgroundOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BackgroundOptions { commit_interval, resume_balance, on_error } = self;
        f.debug_struct("BackgroundOptions")
            .field("commit_interval", commit_interval)
            .field("resume_balance", resume_balance)
            .field("on_error", &on_error.is_some())
            .finish()
    }
}

/// What is done in the background.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum BackgroundTask {
    /// Writing everything to disk.
    Commit,
    /// Writing the data of files.
    WriteBack,
    /// Counting quota groups, where that was cut short.
    Rescan,
    /// Erasing what was deleted.
    Clean,
    /// Resuming a balance that was interrupted.
    ResumeBalance,
    /// A balance.
    Balance,
    /// A scrub.
    Scrub,
    /// Replacing a device.
    Replace,
}

impl fmt::Display for BackgroundTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BackgroundTask::Commit => "commit",
            BackgroundTask::WriteBack => "write-back",
            BackgroundTask::Rescan => "counting quota groups",
            BackgroundTask::Clean => "cleaning",
            BackgroundTask::ResumeBalance => "resuming the balance that was interrupted",
            BackgroundTask::Balance => "balance",
            BackgroundTask::Scrub => "scrub",
            BackgroundTask::Replace => "replace",
        })
    }
}

/// Why something in the background was not done. What failed is tried again; what is committed stands.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackgroundError {
    /// A task failed.
    #[error("{task}: {source}")]
    Failed {
        /// Which.
        task: BackgroundTask,
        /// Why.
        source: Error,
    },
    /// A commit failed halfway, or a thread panicked: nothing is changed any more.
    #[error("the volume is read-only from now on, as of its last commit: {why}")]
    ReadOnly {
        /// The reason.
        why: String,
    },
    /// The system gave no thread, so that the task is never done.
    #[error("no thread for {task}: {source}")]
    Thread {
        /// For which task.
        task: BackgroundTask,
        /// What the system said.
        source: io::Error,
    },
}

/// The threads that look after an image. Dropped, or with [`Background::stop`], they end; either waits for them. They keep the
/// image in use as long as they run.
#[must_use = "the threads end when this is dropped"]
pub struct Background {
    fs: Fs,
    balancer: Arc<Balancer>,
    scrubber: Arc<Scrubber>,
    replacer: Arc<Replacer>,
    /// Dropped to have the threads end.
    alive: Option<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
    first: Receiver<BackgroundError>,
}

/// What each thread has.
#[derive(Clone)]
struct Worker {
    fs: Fs,
    /// Disconnected when the threads are to end.
    ended: Receiver<()>,
    on_error: Option<OnError>,
    on_notice: OnNotice,
    /// Has one place, for the first error.
    first: Sender<BackgroundError>,
}

impl Image {
    /// Starts what a mount has in the background: changes are committed after [`BackgroundOptions::commit_interval`] at the latest,
    /// buffered data is written before it is much, deleted files and subvolumes are taken apart, and a balance or a count of quota
    /// groups that was cut short goes on. Of an image that is open for reading only, nothing but scrubs are looked after.
    ///
    /// Without it changes are durable after [`Image::sync`] or [`Image::close`] only, operations commit by themselves when much has
    /// changed, and space of what was deleted comes back with [`Image::clean`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let image = oleo::Image::create_in_memory(256 << 20)?;
    /// let options = oleo::BackgroundOptions::default()
    ///     .commit_interval(Duration::from_secs(5))
    ///     .on_error(|error| eprintln!("{error}"));
    /// let background = image.start_background(options);
    /// image.write("file", b"on disk in five seconds")?;
    /// background.stop()?; // does not commit
    /// image.close()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn start_background(&self, options: BackgroundOptions) -> Background {
        let (alive, ended) = bounded(0);
        let (first_in, first) = bounded(1);
        let fs = self.fs().clone();
        let on_notice = self.on_notice().clone();
        let worker = Worker { fs: fs.clone(), ended, on_error: options.on_error, on_notice, first: first_in };
        let mut threads = Vec::new();
        if self.is_writable() {
            let (interval, resume) = (options.commit_interval, options.resume_balance);
            let balancer = self.balancer_shared();
            let replacer = self.replacer().clone();
            worker.start(&mut threads, BackgroundTask::Commit, move |w| w.commit(interval));
            worker.start(&mut threads, BackgroundTask::WriteBack, Worker::write_back);
            worker.start(&mut threads, BackgroundTask::Clean, Worker::clean);
            worker.start(&mut threads, BackgroundTask::Balance, move |w| w.balance(&balancer, resume));
            worker.start(&mut threads, BackgroundTask::Replace, move |w| w.replace(&replacer));
        }
        let scrubber = self.scrubber_shared();
        worker.start(&mut threads, BackgroundTask::Scrub, move |w| w.scrub(&scrubber));
        let (balancer, scrubber, replacer) = (self.balancer_shared(), self.scrubber_shared(), self.replacer().clone());
        Background { fs, balancer, scrubber, replacer, alive: Some(alive), threads, first }
    }
}

impl Background {
    /// Ends the threads and waits for them, some milliseconds if they have nothing to do. Nothing is committed by that. A balance
    /// that is under way is interrupted; [`Image::balance_resume`] goes on with it.
    ///
    /// # Errors
    /// The first of all errors since the start, also if it was handed to [`BackgroundOptions::on_error`].
    pub fn stop(mut self) -> Result<(), BackgroundError> {
        self.end();
        self.first.try_recv().map_or(Ok(()), Err)
    }

    fn end(&mut self) {
        if self.alive.take().is_none() || self.threads.is_empty() {
            return;
        }
        for thread in self.threads.drain(..) {
            while !thread.is_finished() {
                // Again and again: one may have been asked for a moment ago.
                self.balancer.interrupt();
                self.scrubber.interrupt();
                self.replacer.interrupt();
                self.fs.wake_background();
                std::thread::sleep(POLL_INTERVAL);
            }
            // A thread that panicked has reported that.
            let _ = thread.join();
        }
        self.fs.background_has_ended();
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.end();
    }
}

impl Worker {
    /// Starts a thread. Where it panics, it ends, and with it all changes: what it has changed by then nobody knows.
    fn start(
        &self,
        threads: &mut Vec<JoinHandle<()>>,
        task: BackgroundTask,
        work: impl FnOnce(&Worker) + Send + 'static,
    ) {
        let worker = self.clone();
        let guarded = move || {
            if catch_unwind(AssertUnwindSafe(|| work(&worker))).is_err() {
                let why = format!("the thread that does {task} panicked, which is a bug");
                worker.fs.refuse_changes(&why);
                worker.report(BackgroundError::ReadOnly { why });
            }
        };
        match std::thread::Builder::new().name(task.to_string()).spawn(guarded) {
            Ok(thread) => threads.push(thread),
            Err(source) => self.report(BackgroundError::Thread { task, source }),
        }
    }

    fn report(&self, error: BackgroundError) {
        if let Some(on_error) = &self.on_error {
            on_error(&error);
        }
        // Full: it is not the first.
        let _ = self.first.try_send(error);
    }

    fn failed(&self, task: BackgroundTask, source: impl Into<Error>) {
        self.report(BackgroundError::Failed { task, source: source.into() });
    }

    /// Waits that long, or until the end; whether it is the end.
    fn wait(&self, how_long: Duration) -> bool {
        self.ended.recv_timeout(how_long) == Err(RecvTimeoutError::Disconnected)
    }

    fn commit(&self, every: Duration) {
        let fs = &self.fs;
        let mut reported = false;
        let mut due = Instant::now() + every;
        loop {
            notices::of_lost(fs.engine().volume(), &self.on_notice);
            let pressed = fs.wait_commit(due.saturating_duration_since(Instant::now()).min(LOOK_UP));
            if self.wait(Duration::ZERO) {
                return;
            }
            // Whoever was left out has to be seen to be behind soon.
            let is_due = Instant::now() >= due || fs.engine().volume().owes_commit();
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
            if let Err(error) = done {
                if !reported {
                    self.failed(BackgroundTask::Commit, error);
                }
                if self.wait(AFTER_ERROR) {
                    return;
                }
            }
            if !reported && let Some(why) = fs.poisoned_by() {
                self.report(BackgroundError::ReadOnly { why });
                reported = true;
            }
        }
    }

    fn write_back(&self) {
        loop {
            let work = self.fs.wait_write_back(LOOK_UP);
            if self.wait(Duration::ZERO) {
                return;
            }
            if work && let Err(error) = self.fs.write_back() {
                self.failed(BackgroundTask::WriteBack, error);
                if self.wait(AFTER_ERROR) {
                    return;
                }
            }
        }
    }

    fn clean(&self) {
        let fs = &self.fs;
        if oleo_jobs::quota(fs).is_some_and(|quota| quota.flags.contains(QgroupStatusFlags::RESCAN))
            && let Err(error) = oleo_jobs::quota_rescan(fs, &|| !self.wait(Duration::ZERO))
        {
            self.failed(BackgroundTask::Rescan, error);
        }
        while !self.wait(CLEAN_EVERY) {
            loop {
                match fs.clean(CLEAN_BLOCKS) {
                    Ok(true) if self.wait(Duration::ZERO) => return,
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        self.failed(BackgroundTask::Clean, error);
                        if self.wait(AFTER_ERROR) {
                            return;
                        }
                        break;
                    }
                }
            }
        }
    }

    /// One that was interrupted goes on by itself, unless its target is not there.
    fn replace(&self, replacer: &Replacer) {
        let _ = replacer.resume();
        loop {
            let work = replacer.wait_work(LOOK_UP);
            if self.wait(Duration::ZERO) {
                return;
            }
            if !work {
                // Its target may have failed.
                if !self.fs.engine().volume().read_only()
                    && let Err(error) = replacer.begin_anew()
                {
                    self.failed(BackgroundTask::Replace, error);
                    if self.wait(AFTER_ERROR) {
                        return;
                    }
                }
                continue;
            }
            if let Err(error) = replacer.run() {
                if !replacer.is_wanted() {
                    self.failed(BackgroundTask::Replace, error);
                } else if self.wait(LOOK_UP) {
                    // Something is in its way for now.
                    return;
                }
            }
        }
    }

    fn balance(&self, balancer: &Balancer, resume: bool) {
        if resume
            && balancer.status().state == BalanceState::Paused
            && let Err(error) = balancer.resume()
        {
            self.failed(BackgroundTask::ResumeBalance, error);
        }
        while !self.wait(POLL_INTERVAL) {
            if balancer.wait_work(LOOK_UP)
                && let Some(BalanceEnd::Failed { errno, kind, text }) = balancer.run()
            {
                let error = control::Error { errno, kind, message: text, hint: None };
                self.failed(BackgroundTask::Balance, Error::from(error));
            }
        }
    }
}

impl Worker {
    fn scrub(&self, scrubber: &Scrubber) {
        while !self.wait(POLL_INTERVAL) {
            if scrubber.wait_work(LOOK_UP)
                && let Some(ScrubEnd::Failed { errno, kind, text }) = scrubber.run()
            {
                let error = control::Error { errno, kind, message: text, hint: None };
                self.failed(BackgroundTask::Scrub, Error::from(error));
            }
        }
    }
}

#[cfg(test)]
mod tests;
