//! The end of a mount: from the moment when the kernel has detached it until everything is on disk.
//!
//! ```text
//! Serving --(unmounted)--> Writing --(written, or given up)--> Over
//!                            ^  |
//!     (time, or asked again) |  v (it cannot be written)
//!                            Stuck
//! ```
//!
//! What cannot be written is kept: a commit that found no room below the image is tried again every [`AGAIN`] and on
//! every request ([`Ending::wait`], `oleo unmount`), for as long as it takes. A volume that has turned read-only can
//! still be read, and so saved elsewhere: it is kept for [`KEPT_FAILED`]. A server that was told to end (SIGTERM)
//! continues for [`HURRY`]. Bytes that waiting cannot save (the rest of their sector cannot be read) delay nothing:
//! everything else is on disk, the server ends, and the error is reported to the caller.
//!
//! From `Writing` on requests that change something are refused, and those under way are waited for, so that nothing is
//! changed after the last commit.
//!
//! Of a mount on a block device, umount(2) sends FUSE_DESTROY and waits for the answer, uninterruptibly. A process that waits in
//! [`Ending::wait`] when it calls umount(2) learns the result there and can be interrupted there, so the request is answered
//! immediately: `oleo unmount --force` can be interrupted while the device does not answer.
//!
//! Locks: `state`, a leaf, never held over I/O. Crash: the image stays as of the last commit.

use std::time::{Duration, Instant};

use oleo::control::Error;
use oleo_fs::errno;
use oleo_lock::{Condvar, Mutex, rank};

/// How long between two tries.
const AGAIN: Duration = Duration::from_secs(5);
/// How long a server that was told to end tries.
const HURRY: Duration = Duration::from_secs(10);
/// How long a volume that can be read but no longer written is kept, to be saved elsewhere.
const KEPT_FAILED: Duration = Duration::from_secs(600);
/// How long the caller of unmount waits for the kernel to notify the server.
const DETACHING: Duration = Duration::from_secs(10);

#[derive(Default)]
enum Phase {
    #[default]
    Serving,
    Writing,
    Stuck(Error),
    /// With what could not be saved, and will not be.
    Over(Option<Error>),
}

#[derive(Default)]
struct State {
    phase: Phase,
    /// Requests under way that may change something.
    requests: usize,
    /// Somebody wants another try.
    again: bool,
    /// The user gives up what is not on disk.
    give_up: bool,
    /// The time when this server was told to end.
    hurry: Option<Instant>,
    /// The processes in `wait`.
    waiting: Vec<u32>,
}

/// How far the end has come.
#[derive(Default)]
pub(crate) struct Ending {
    state: Mutex<rank::FuseEnding, State>,
    changed: Condvar,
}

/// A request under way.
pub(crate) struct Request<'a>(&'a Ending);

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.0.state.lock().requests -= 1;
        self.0.changed.notify_all();
    }
}

fn unmounted() -> Error {
    Error::refused(errno::ENODEV, "it has been unmounted")
}

impl Ending {
    /// Announces a request that may change something.
    pub(crate) fn enter(&self) -> Result<Request<'_>, Error> {
        let mut state = self.state.lock();
        if !matches!(state.phase, Phase::Serving) {
            return Err(unmounted());
        }
        state.requests += 1;
        Ok(Request(self))
    }

    /// The kernel has detached the mount: waits for the requests under way.
    pub(crate) fn begin(&self) {
        let mut state = self.state.lock();
        state.phase = Phase::Writing;
        self.changed.notify_all();
        while state.requests > 0 {
            self.changed.wait(&mut state);
        }
    }

    /// It could not be written. Waits until it is to be tried again; false: it is given up. `failed`: another try cannot do
    /// better, and saving it elsewhere is all that is left; since when.
    pub(crate) fn stuck(&self, error: Error, failed: Option<Instant>) -> bool {
        let mut state = self.state.lock();
        state.phase = Phase::Stuck(error);
        self.changed.notify_all();
        let next = Instant::now() + AGAIN;
        while !state.again && !state.give_up && Instant::now() < next {
            let hurry = state.hurry.map(|since| since + HURRY);
            self.changed.wait_until(&mut state, hurry.map_or(next, |hurry| next.min(hurry)));
            if state.hurry.is_some_and(|since| since.elapsed() >= HURRY) {
                state.give_up = true;
            }
        }
        state.give_up |= failed.is_some_and(|since| since.elapsed() >= KEPT_FAILED);
        state.again = false;
        state.phase = Phase::Writing;
        !state.give_up
    }

    /// Nothing is left to do. `lost`: what is not on disk and cannot be written by another attempt.
    pub(crate) fn over(&self, lost: Option<Error>) {
        self.state.lock().phase = Phase::Over(lost);
        self.changed.notify_all();
    }

    /// This server was told to end.
    pub(crate) fn hurry(&self) {
        self.state.lock().hurry.get_or_insert_with(Instant::now);
        self.changed.notify_all();
    }

    /// Whether the kernel still has it, and what could not be written.
    pub(crate) fn shown(&self) -> (bool, Option<String>) {
        let state = self.state.lock();
        match &state.phase {
            Phase::Serving => (true, None),
            Phase::Stuck(error) => (false, Some(error.message.clone())),
            Phase::Writing | Phase::Over(_) => (false, None),
        }
    }

    /// Whether a process waits in [`Ending::wait`]. One that has ended meanwhile could not unmount.
    pub(crate) fn is_waited_for(&self) -> bool {
        let waiting = self.state.lock().waiting.clone();
        waiting.iter().any(|pid| std::path::Path::new("/proc").join(pid.to_string()).exists())
    }

    /// Waits until everything is on disk, or could not be written once more. `pid`: the process that asks.
    pub(crate) fn wait(&self, pid: Option<u32>) -> Result<(), Error> {
        self.state.lock().waiting.extend(pid);
        let result = self.wait_for_end();
        let mut state = self.state.lock();
        if let Some(at) = state.waiting.iter().position(|waits| Some(*waits) == pid) {
            state.waiting.swap_remove(at);
        }
        result
    }

    fn wait_for_end(&self) -> Result<(), Error> {
        let mut state = self.detached()?;
        if matches!(state.phase, Phase::Stuck(_)) {
            state.phase = Phase::Writing;
            state.again = true;
            self.changed.notify_all();
        }
        while matches!(state.phase, Phase::Writing) {
            self.changed.wait(&mut state);
        }
        match &state.phase {
            Phase::Stuck(error) | Phase::Over(Some(error)) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Lets the server end without what is not on disk, and waits for its end.
    pub(crate) fn give_up(&self) -> Result<(), Error> {
        let mut state = self.detached()?;
        state.give_up = true;
        self.changed.notify_all();
        while !matches!(state.phase, Phase::Over(_)) {
            self.changed.wait(&mut state);
        }
        Ok(())
    }

    fn detached(&self) -> Result<oleo_lock::MutexGuard<'_, rank::FuseEnding, State>, Error> {
        let end = Instant::now() + DETACHING;
        let mut state = self.state.lock();
        while matches!(state.phase, Phase::Serving) {
            if self.changed.wait_until(&mut state, end).timed_out() {
                return Err(Error::refused(errno::EBUSY, "it is still mounted elsewhere, or in another namespace"));
            }
        }
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a caller that asks for the end gets a failure, asks again, and gets success; changes in between are
    /// refused. Method: a server that fails three times, beside two callers that wait.
    #[test]
    fn asked_again() {
        let ending = Ending::default();
        std::thread::scope(|threads| {
            let first = threads.spawn(|| ending.wait(None));
            let request = ending.enter().unwrap();
            let server = threads.spawn(|| {
                ending.begin();
                for _ in 0..3 {
                    assert!(ending.stuck(Error::refused(errno::ENOSPC, "full"), None), "nobody gives up");
                }
                ending.over(None);
            });
            while ending.shown().0 {
                std::thread::yield_now();
            }
            assert_eq!(ending.enter().map(drop).unwrap_err().errno, errno::ENODEV);
            assert!(!server.is_finished());
            drop(request);
            assert_eq!(first.join().unwrap().unwrap_err().message, "full");
            while let Err(error) = ending.wait(None) {
                assert_eq!(error.message, "full");
            }
            assert_eq!(ending.shown(), (false, None));
            server.join().unwrap();
        });
    }

    /// Goal: umount(2) does not wait for the server if its caller waits here, and does otherwise. Method: waits by this process, and by
    /// one that has ended.
    #[test]
    fn the_caller_of_umount_waits_once() {
        // The kernel's greatest process number is 2^22.
        let ended = (1 << 22) + 1;
        for (pid, waits) in [(std::process::id(), true), (ended, false)] {
            let ending = Ending::default();
            assert!(!ending.is_waited_for());
            std::thread::scope(|threads| {
                let caller = threads.spawn(|| ending.wait(Some(pid)));
                while ending.state.lock().waiting.is_empty() {
                    std::thread::yield_now();
                }
                assert_eq!(ending.is_waited_for(), waits);
                ending.begin();
                ending.over(None);
                caller.join().unwrap().unwrap();
            });
            assert!(!ending.is_waited_for());
        }
    }

    /// Goal: a server whose changes are given up ends immediately.
    #[test]
    fn given_up() {
        let ending = Ending::default();
        std::thread::scope(|threads| {
            threads.spawn(|| {
                ending.begin();
                while ending.stuck(Error::refused(errno::EIO, "gone"), Some(Instant::now())) {}
                ending.over(None);
            });
            ending.give_up().unwrap();
        });
    }
}
