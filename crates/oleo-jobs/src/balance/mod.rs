//! Balance: moves the contents of block groups, to spread them, to pack them or to change their profile.
//!
//! Normal path: (1) [`Balancer::start`] checks whether the request is possible, writes the balance item and leaves the
//! work to the caller of [`Balancer::run`]: the command itself on an image, a background thread on a mount; (2) `run`
//! goes through the groups (`run`); (3) at the end the item is deleted.
//!
//! ```text
//!         start               run                end, cancel
//!  Idle ---------> Wanted ---------> Running -----------------> Idle
//!                     ^                 | pause, stop
//!                     +---- resume --- Paused <--- opened with an item on disk
//! ```
//! Shrinking a device and reclaiming move groups too: while one of them is `Busy`, no balance starts, and vice versa.
//!
//! Invariants: the item is on disk from before the first group is moved until after the last; a paused balance has one.
//! Only one thread moves groups.
//! Locks: `state`, a leaf, held to read or change it, never over I/O; `changed` is notified of every change.
//! Crash: what was moved stays moved. The item records what is left, and the balance is paused when the volume is
//! opened again.
//! Not here: how a group is moved (`Engine::relocate_group`), permissions (`oleo::control`).

mod check;
mod filters;
mod item;
mod run;

use std::time::{Duration, Instant};

use oleo_format::{BalanceItem, Classified, ErrorKind, Key, TreeId};
use oleo_fs::{Fs, errno};
use oleo_lock::{Condvar, Mutex, MutexGuard, rank};
use oleo_tree::Change;
use oleo_txn::{Claim, Moved, Need};
use serde::{Deserialize, Serialize};

use crate::JobError;
pub use filters::{Bound, Filters, Span};
pub use item::BalanceArgs;

/// What a change of the item may need: a path in the root tree.
const NEED: Need = Need { items: 4, row: 4, bytes: 1024, claim: Claim::Release };

/// Whether there is a balance.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BalanceState {
    /// There is none.
    #[default]
    Idle,
    /// It is under way, or about to be.
    Running,
    /// It was interrupted, and can be resumed.
    Paused,
}

/// How far a balance has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct BalanceProgress {
    /// Groups to be moved, as counted at the beginning.
    pub expected: u64,
    /// Groups that were considered.
    pub considered: u64,
    /// Groups that were moved.
    pub completed: u64,
    /// Groups that there was no room for elsewhere.
    pub no_space: u64,
    /// Used bytes of the groups that are to be moved.
    pub bytes_expected: u64,
    /// Of those, bytes that were moved.
    pub bytes_done: u64,
    /// Tree blocks that were moved.
    pub blocks: u64,
    /// Tree blocks that were written anew for that, those above them included.
    pub rewritten: u64,
    /// Extents of data that were moved.
    pub extents: u64,
    /// Bytes of data that were moved.
    pub data_bytes: u64,
    /// Since it began, or was resumed.
    pub elapsed_ms: u64,
    /// Estimated time to the end, at the present rate.
    pub remaining_ms: Option<u64>,
}

/// How a balance ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BalanceEnd {
    /// It has done everything requested.
    Done,
    /// It was interrupted and can be resumed.
    Paused,
    /// It was cancelled.
    Cancelled,
    /// It could not do (all of) it.
    Failed {
        /// The errno of a system call.
        errno: i32,
        /// What it is.
        kind: ErrorKind,
        /// Why.
        text: String,
    },
}

/// A balance, as it is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct BalanceStatus {
    /// Whether there is one.
    pub state: BalanceState,
    /// The request, or what is left of it when it is paused.
    pub args: Option<BalanceArgs>,
    /// How far the one under way is, or how far the last one came.
    pub progress: BalanceProgress,
    /// How many balances were started or resumed here so far; the status is that of the last one.
    pub number: u64,
    /// How the last one ended, if it did.
    pub end: Option<BalanceEnd>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Phase {
    #[default]
    Idle,
    /// A request is being checked.
    Asked,
    Wanted,
    Running,
    Paused,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StopRequest {
    Pause,
    Cancel,
}

#[derive(Default)]
struct State {
    phase: Phase,
    /// Somebody else moves groups.
    busy: Option<&'static str>,
    stop_request: Option<StopRequest>,
    /// No balance runs any more, since the volume is about to be closed.
    stopping: bool,
    args: Option<BalanceArgs>,
    /// What this program does not know in the item on disk.
    unknown: Option<String>,
    progress: BalanceProgress,
    number: u64,
    end: Option<BalanceEnd>,
}

/// The balance of one open file system.
pub struct Balancer {
    fs: Fs,
    state: Mutex<rank::BalanceState, State>,
    changed: Condvar,
}

/// Why no balance can start, in the words of the kernel's errors.
fn in_the_way(state: &State) -> Option<JobError> {
    let text = match (state.busy, state.phase) {
        (Some(what), _) => format!("{what} is under way"),
        (None, Phase::Asked | Phase::Wanted | Phase::Running) => "a balance is under way".to_owned(),
        (None, Phase::Paused) => "a balance is paused: resume or cancel it".to_owned(),
        (None, Phase::Idle) if state.stopping => "the file system is being closed".to_owned(),
        (None, Phase::Idle) => return None,
    };
    Some(JobError::refused(errno::EINPROGRESS, text))
}

fn none_there() -> JobError {
    JobError::refused(errno::ENOTCONN, "there is no balance")
}

impl Balancer {
    /// For an open file system. A balance that was interrupted is found paused.
    ///
    /// # Errors
    /// The root tree cannot be read.
    pub fn new(fs: &Fs) -> Result<Balancer, JobError> {
        let mut state = State::default();
        if let Some(bytes) = read_item(fs)? {
            state.phase = Phase::Paused;
            match BalanceItem::parse_start(&bytes).map_err(|e| e.to_string()).and_then(BalanceArgs::from_item) {
                Ok(args) => state.args = Some(args),
                Err(why) => state.unknown = Some(why),
            }
        }
        Ok(Balancer { fs: fs.clone(), state: Mutex::new(state), changed: Condvar::new() })
    }

    /// The same for a volume whose trees cannot all be read: as if there was no balance.
    pub fn idle(fs: &Fs) -> Balancer {
        Balancer { fs: fs.clone(), state: Mutex::default(), changed: Condvar::new() }
    }

    /// How it is.
    pub fn status(&self) -> BalanceStatus {
        let state = self.state.lock();
        BalanceStatus {
            state: match state.phase {
                Phase::Idle | Phase::Asked => BalanceState::Idle,
                Phase::Wanted | Phase::Running => BalanceState::Running,
                Phase::Paused => BalanceState::Paused,
            },
            args: state.args.clone(),
            progress: state.progress,
            number: state.number,
            end: state.end.clone(),
        }
    }

    /// Asks for a balance. It is on disk when this returns, and [`Balancer::run`] does it. Answers with its number.
    ///
    /// # Errors
    /// There is one, or it cannot be as asked.
    pub fn start(&self, args: BalanceArgs) -> Result<u64, JobError> {
        {
            let mut state = self.state.lock();
            if let Some(error) = in_the_way(&state) {
                return Err(error);
            }
            state.phase = Phase::Asked;
        }
        let asked = check::check(&self.fs, &args).and_then(|()| {
            put_item(&self.fs, Some(&args))?;
            Ok(self.fs.sync()?)
        });
        let mut state = self.state.lock();
        state.phase = Phase::Idle;
        asked?;
        state.args = Some(args);
        Ok(self.want(state))
    }

    /// Asks for the rest of a balance that is paused. Answers with its number.
    ///
    /// # Errors
    /// None is, or it cannot be done here.
    pub fn resume(&self) -> Result<u64, JobError> {
        let mut args = {
            let mut state = self.state.lock();
            match state.phase {
                Phase::Paused if state.busy.is_none() && !state.stopping => {}
                Phase::Idle => return Err(none_there()),
                _ => return Err(in_the_way(&state).unwrap_or_else(none_there)),
            }
            let args = state.args.clone();
            let unknown = || JobError::refused(errno::EOPNOTSUPP, state.unknown.clone().unwrap_or_default());
            let args = args.ok_or_else(unknown)?;
            state.phase = Phase::Asked;
            args
        };
        args.resumed();
        let checked = check::check_resumed(&self.fs, &args);
        let mut state = self.state.lock();
        state.phase = Phase::Paused;
        checked?;
        state.args = Some(args);
        Ok(self.want(state))
    }

    fn want(&self, mut state: MutexGuard<'_, rank::BalanceState, State>) -> u64 {
        state.phase = Phase::Wanted;
        state.stop_request = None;
        state.end = None;
        state.progress = BalanceProgress::default();
        state.number += 1;
        let number = state.number;
        drop(state);
        self.changed.notify_all();
        number
    }

    /// Waits until there is a balance to run, for `timeout` at most; returns whether there is one. Returns earlier if
    /// the state of balances changes, and if [`interrupt`](Balancer::interrupt) is called.
    pub fn wait_work(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.state.lock();
        if state.phase != Phase::Wanted && !state.stopping {
            let _timed_out = self.changed.wait_until(&mut state, deadline);
        }
        state.phase == Phase::Wanted
    }

    /// Waits until the balance with this number is no longer under way.
    pub fn wait_end(&self, number: u64) -> BalanceStatus {
        let mut state = self.state.lock();
        while state.number == number && matches!(state.phase, Phase::Wanted | Phase::Running) {
            self.changed.wait(&mut state);
        }
        drop(state);
        self.status()
    }

    /// Runs the balance that was requested, until it ends or is stopped. `None` if there is no request.
    pub fn run(&self) -> Option<BalanceEnd> {
        let args = {
            let mut state = self.state.lock();
            if state.phase != Phase::Wanted {
                return None;
            }
            state.phase = Phase::Running;
            state.args.clone().unwrap_or_default()
        };
        let _ran = Ran(self);
        let watch = Watch { balancer: self, began: Instant::now() };
        let mut left = args.clone();
        let worked = run::run(&self.fs, &args, &watch, &mut left);
        let stop_request = self.stop_request();
        let paused = matches!(worked, Ok(run::Outcome::Interrupted)) && stop_request != Some(StopRequest::Cancel);
        let put = put_item(&self.fs, if paused { Some(&left) } else { None });
        let put = put.and_then(|()| Ok(self.fs.sync().map(drop)?));
        let gone = put.is_ok();
        let end = match (worked, put) {
            (Err(error), _) | (Ok(_), Err(error)) => {
                BalanceEnd::Failed { errno: error.errno(), kind: error.kind(), text: error.to_string() }
            }
            (Ok(run::Outcome::Done), Ok(())) => BalanceEnd::Done,
            (Ok(run::Outcome::Interrupted), Ok(())) if paused => BalanceEnd::Paused,
            (Ok(run::Outcome::Interrupted), Ok(())) => BalanceEnd::Cancelled,
            (Ok(run::Outcome::NoSpace(groups)), Ok(())) => BalanceEnd::Failed {
                errno: errno::ENOSPC,
                kind: ErrorKind::Refusal,
                text: format!("there was no space to move {groups} block groups; the others were moved"),
            },
        };
        let mut state = self.state.lock();
        // If the item could not be deleted, it is still there the next time the volume is opened.
        let stays = paused || !gone;
        state.phase = if stays { Phase::Paused } else { Phase::Idle };
        state.args = stays.then_some(left);
        state.stop_request = None;
        state.progress.remaining_ms = None;
        state.end = Some(end.clone());
        drop(state);
        self.changed.notify_all();
        Some(end)
    }

    /// Interrupts the balance under way, and waits until it is. It can be resumed, here or by the kernel.
    ///
    /// # Errors
    /// None is under way.
    pub fn pause(&self) -> Result<(), JobError> {
        let mut state = self.state.lock();
        match state.phase {
            Phase::Running => self.request_stop_and_wait(state, StopRequest::Pause),
            Phase::Wanted => (state.phase, state.end) = (Phase::Paused, Some(BalanceEnd::Paused)),
            Phase::Paused => return Err(JobError::refused(errno::ENOTCONN, "the balance is paused already")),
            _ => return Err(none_there()),
        }
        Ok(())
    }

    /// Requests a pause without waiting. Does nothing if no balance is under way.
    pub fn interrupt(&self) {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Wanted | Phase::Running) {
            state.stop_request.get_or_insert(StopRequest::Pause);
        }
        self.changed.notify_all();
    }

    /// Ends the balance, under way or paused, and waits until it has ended. What was moved stays where it is.
    ///
    /// # Errors
    /// There is none, or its item cannot be deleted.
    pub fn cancel(&self) -> Result<(), JobError> {
        let mut state = self.state.lock();
        match state.phase {
            Phase::Running => {
                self.request_stop_and_wait(state, StopRequest::Cancel);
                return Ok(());
            }
            Phase::Wanted | Phase::Paused if state.busy.is_none() => state.phase = Phase::Asked,
            Phase::Wanted | Phase::Paused | Phase::Asked => return Err(in_the_way(&state).unwrap_or_else(none_there)),
            Phase::Idle => return Err(none_there()),
        }
        drop(state);
        let gone = put_item(&self.fs, None).and_then(|()| Ok(self.fs.sync().map(drop)?));
        let mut state = self.state.lock();
        state.phase = if gone.is_ok() { Phase::Idle } else { Phase::Paused };
        if gone.is_ok() {
            (state.args, state.unknown) = (None, None);
            state.end = Some(BalanceEnd::Cancelled);
        }
        drop(state);
        if gone.is_ok() {
            run::go_by_newest_groups(self.fs.engine());
        }
        gone
    }

    /// Waits until the balance is no longer under way.
    fn request_stop_and_wait(&self, mut state: MutexGuard<'_, rank::BalanceState, State>, stop_request: StopRequest) {
        let number = state.number;
        state.stop_request = Some(stop_request);
        while state.phase == Phase::Running && state.number == number {
            self.changed.wait(&mut state);
        }
    }

    /// Stops moving groups for good, before the file system is closed; a balance stays paused.
    pub fn stop(&self) {
        let mut state = self.state.lock();
        state.stopping = true;
        if state.phase == Phase::Wanted {
            state.phase = Phase::Paused;
            state.end = Some(BalanceEnd::Paused);
        }
        drop(state);
        self.changed.notify_all();
    }

    fn stop_request(&self) -> Option<StopRequest> {
        let state = self.state.lock();
        state.stop_request.or(state.stopping.then_some(StopRequest::Pause))
    }

    /// Runs other work that moves groups and excludes balances. `goes_on` returns false when it has to stop.
    pub(crate) fn exclusively<R>(
        &self,
        what: &'static str,
        work: impl FnOnce(&(dyn Fn() -> bool + Sync)) -> Result<R, JobError>,
    ) -> Result<R, JobError> {
        {
            let mut state = self.state.lock();
            // A balance that is paused moves nothing.
            match in_the_way(&state) {
                Some(error) if state.busy.is_some() || state.phase != Phase::Paused || state.stopping => {
                    return Err(error);
                }
                _ => state.busy = Some(what),
            }
        }
        let _busy = Busy(self);
        work(&|| !self.state.lock().stopping)
    }
}

/// A run. Where it panics, the balance is paused, as its item on disk says, and whoever waits for its end goes on.
struct Ran<'a>(&'a Balancer);

impl Drop for Ran<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        if state.phase == Phase::Running {
            (state.phase, state.stop_request) = (Phase::Paused, None);
            let text = "the balance panicked, which is a bug".to_owned();
            state.end = Some(BalanceEnd::Failed { errno: errno::EIO, kind: ErrorKind::Device, text });
            drop(state);
            self.0.changed.notify_all();
        }
    }
}

/// Gives the place free again.
struct Busy<'a>(&'a Balancer);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.state.lock().busy = None;
    }
}

/// What a run reports and asks.
struct Watch<'a> {
    balancer: &'a Balancer,
    began: Instant,
}

impl Watch<'_> {
    fn goes_on(&self) -> bool {
        self.balancer.stop_request().is_none()
    }

    /// Changes the reported progress.
    fn update(&self, change: impl FnOnce(&mut BalanceProgress)) {
        let mut state = self.balancer.state.lock();
        let progress = &mut state.progress;
        change(progress);
        let elapsed = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        progress.elapsed_ms = elapsed;
        let left = progress.bytes_expected.saturating_sub(progress.bytes_done);
        let estimate = u128::from(elapsed) * u128::from(left) / u128::from(progress.bytes_done.max(1));
        progress.remaining_ms = u64::try_from(estimate).ok().filter(|_| progress.bytes_done > 0);
    }
}

/// What was moved of a group since it was last reported.
fn since(now: &Moved, before: &Moved) -> Moved {
    Moved {
        blocks: now.blocks.saturating_sub(before.blocks),
        rewritten: now.rewritten.saturating_sub(before.rewritten),
        extents: now.extents.saturating_sub(before.extents),
        bytes: now.bytes.saturating_sub(before.bytes),
    }
}

fn read_item(fs: &Fs) -> Result<Option<Vec<u8>>, JobError> {
    let engine = fs.engine();
    let _reader = engine.reader();
    let Some(root) = engine.root(TreeId::ROOT)? else { return Ok(None) };
    Ok(engine.blocks().get(&root, &Key::balance())?.map(|item| item.to_vec()))
}

/// Writes the item, or deletes it, in the open transaction.
fn put_item(fs: &Fs, args: Option<&BalanceArgs>) -> Result<(), JobError> {
    let change = match args {
        Some(args) => Change::put(Key::balance(), item::bytes(args)),
        None => Change::delete(Key::balance()),
    };
    if args.is_none() && read_item(fs)?.is_none() {
        return Ok(());
    }
    Ok(fs.staged_with(NEED, |staged| Ok(staged.put(TreeId::ROOT, &[change])?))?)
}
