//! A device takes another's place, beside the users of the file system.
//!
//! Normal path: (1) [`Replacer::start`]: the new device gets all that the other gets from now on, and the item on disk (DEV_REPLACE) says
//! so; (2) [`Replacer::run`] copies what is on the other, chunk by chunk in the order of their places, of each some pieces at a time, and every few seconds
//! writes down how far it is, the first time behind the first part of a chunk (`cursor_left`: everything before it is copied, and the commit makes it durable first); (3) at the end one commit makes the new device the
//! device, and says that it is done; (4) the old one loses its mark.
//!
//! ```text
//!        start              run                 end, cancel
//!  Idle -------> Wanted -----------> Running --------------> Idle
//!                  ^                   | stop, error, panic
//!                  +---- resume --- Suspended <--- opened with an item on disk
//! ```
//! While one is being started or cancelled, it is `Asked`, and nobody else changes it.
//!
//! A target that failed, or that is found behind when the volume is opened again (`Volume::resume_target`), may lack anything: the cursor
//! goes back to the beginning, on disk before the target gets another superblock ([`Replacer::begin_anew`]).
//!
//! The kernel goes on with ours from the cursor, and we with its. Chunks with parity are copied again from the start of each: what a crash
//! left beside live sectors of a row differs on the two devices.
//! Locks: `state`, a leaf; who waits for work does so there. Nothing else moves groups meanwhile (`Balancer::exclusively`), and nobody scrubs, as with the
//! kernel (`Scrubber::keep_out`): what is healed would be healed on one of the two.
//! Crash: what is below the cursor is on both devices.

use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use oleo_format::{BlockGroupFlags, ByteLen, DevId, DevReplaceItem, ItemType, Key, Logical, TreeId};
use oleo_fs::{Fs, errno};
use oleo_lock::{Condvar, Mutex, rank};
use oleo_txn::devices::replace_state::{CANCELLED, FINISHED, STARTED, SUSPENDED};
use oleo_volume::{Candidate, ChunkMap, RefillRun, Refilled, Verify, VolumeError};
use serde::{Deserialize, Serialize};

use crate::{Balancer, JobError, Scrubber};

/// Bytes of a stripe that are copied together, while nobody writes there: some milliseconds.
const RUN_LEN: u64 = 1 << 20;
/// Pieces that are copied at the same time, by a thread each: while some are written others are read, and looked at.
const COPIERS: u64 = 4;
/// How often the cursor is written down.
const CURSOR_EVERY: Duration = Duration::from_secs(5);
/// How often whoever cancels looks whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// What became of it.
const TARGET_FAILED: &str =
    "the device that was to take the other's place failed; it is left as it is, and the other stays";
/// `cont_reading_from_srcdev_mode`: read from the device itself, or only from it if there is nothing else (values of the format
/// documentation).
const MODE_ALWAYS: u64 = 0;
const MODE_AVOID: u64 = 1;

/// How a replacement is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplaceState {
    /// There was none yet.
    #[default]
    Never,
    /// It is under way.
    Started,
    /// It is done.
    Finished,
    /// It was cancelled.
    Cancelled,
    /// It is under way, and nobody goes on with it.
    Suspended,
}

/// A replacement, under way or the last.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReplaceStatus {
    /// How it is.
    pub state: ReplaceState,
    /// The device that is or was replaced.
    pub source: u64,
    /// What takes its place, by name; while it is under way.
    pub target: Option<String>,
    /// Bytes of chunks that were gone through. It rises with each piece; what is lost when it is stopped is taken off.
    pub done: u64,
    /// Of all.
    pub all: u64,
    /// Of `done`, those that the cursor on disk has passed: after a crash they are not gone through again, but for chunks with parity.
    #[serde(default)]
    pub on_disk: u64,
    /// When it began, seconds since 1970.
    pub started: u64,
    /// When it ended.
    pub stopped: u64,
    /// Writes to the target that failed.
    pub write_errors: u64,
    /// Sectors and blocks of which no good copy was found.
    pub unreadable: u64,
    /// Why it did not go on, if it did not.
    pub failure: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Phase {
    #[default]
    Idle,
    /// It is being started or cancelled.
    Asked,
    Wanted,
    Running,
    Suspended,
}

impl Phase {
    /// What an item on disk means when nobody works at it.
    fn of(item: &DevReplaceItem) -> Phase {
        match item.replace_state.get() {
            STARTED | SUSPENDED => Phase::Suspended,
            _ => Phase::Idle,
        }
    }
}

#[derive(Default)]
struct State {
    phase: Phase,
    item: DevReplaceItem,
    stop: bool,
    cancel: bool,
    /// Bytes of parts that were gone through as a whole, while it is running or done.
    done: u64,
    /// Bytes of the part that is being copied, of pieces that are on the target.
    in_part: u64,
    all: u64,
    failure: Option<String>,
}

/// The replacement of a device of one open file system.
pub struct Replacer {
    fs: Fs,
    balancer: Arc<Balancer>,
    scrubber: Arc<Scrubber>,
    state: Mutex<rank::ReplaceState, State>,
    /// There is something to run, or whoever waits for it is to look.
    changed: Condvar,
}

/// How one run ended.
enum Outcome {
    Done,
    Stopped,
}

/// Whoever has the replacement for himself, in the phases `Asked` and `Running`. Dropped, it is in the phase `then`, in a panic, too.
struct Turn<'a> {
    of: &'a Replacer,
    then: Phase,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.of.state.lock().phase = self.then;
        self.of.changed.notify_all();
    }
}

impl Replacer {
    /// For an open file system. A replacement that was interrupted is found suspended.
    ///
    /// # Errors
    /// The device tree cannot be read.
    pub fn new(fs: &Fs, balancer: Arc<Balancer>, scrubber: Arc<Scrubber>) -> Result<Replacer, JobError> {
        let item = fs.engine().replace_item()?.unwrap_or_default();
        let state = State { phase: Phase::of(&item), item, ..State::default() };
        Ok(Replacer { state: Mutex::new(state), ..Replacer::idle(fs, balancer, scrubber) })
    }

    /// The same for a volume whose trees cannot all be read: as if there was none.
    pub fn idle(fs: &Fs, balancer: Arc<Balancer>, scrubber: Arc<Scrubber>) -> Replacer {
        Replacer { fs: fs.clone(), balancer, scrubber, state: Mutex::default(), changed: Condvar::new() }
    }

    /// If the target is not there, or may lack something, all is to be copied again: that is on disk when this returns. For a volume that was opened
    /// for changes, before anything else; and where a target may have failed since. Nothing if somebody works at it.
    ///
    /// # Errors
    /// A device failed.
    pub fn begin_anew(&self) -> Result<(), JobError> {
        let (turn, mut item) = {
            let mut state = self.state.lock();
            if state.phase != Phase::Suspended {
                return Ok(());
            }
            state.phase = Phase::Asked;
            (Turn { of: self, then: Phase::Suspended }, state.item)
        };
        let done = self.put_beginning(&mut item);
        drop(turn);
        done
    }

    fn put_beginning(&self, item: &mut DevReplaceItem) -> Result<(), JobError> {
        let source = DevId(item.src_devid.get());
        let volume = self.fs.engine().volume();
        let is_behind = volume.target_is_behind(source);
        if volume.has_target(source) && !is_behind {
            return Ok(());
        }
        if item.cursor_left.get() != 0 || item.cursor_right.get() != 0 {
            (item.cursor_left, item.cursor_right) = (0.into(), 0.into());
            item.replace_state = SUSPENDED.into();
            self.put(item)?;
        }
        if is_behind {
            volume.trust_target(source)?;
        }
        Ok(())
    }

    /// How it is.
    pub fn status(&self) -> ReplaceStatus {
        let source = DevId(self.state.lock().item.src_devid.get());
        let parts = self.on(source);
        let state = self.state.lock();
        let item = &state.item;
        let source = item.src_devid.get();
        let shown = match (state.phase, item.replace_state.get()) {
            (Phase::Wanted | Phase::Running, _) => ReplaceState::Started,
            (Phase::Suspended, _) | (Phase::Asked, STARTED | SUSPENDED) => ReplaceState::Suspended,
            (Phase::Idle | Phase::Asked, FINISHED) => ReplaceState::Finished,
            (Phase::Idle | Phase::Asked, CANCELLED) => ReplaceState::Cancelled,
            (Phase::Idle | Phase::Asked, _) => ReplaceState::Never,
        };
        // While it goes on, `state` knows. If nobody goes on, the cursor on disk says what there is.
        let (done, all, on_disk) = match shown {
            ReplaceState::Started | ReplaceState::Suspended => {
                let on_disk = passed(&parts, item.cursor_left.get());
                match state.phase {
                    Phase::Running if state.all > 0 => (state.done + state.in_part, state.all, on_disk),
                    _ => (on_disk, parts.iter().map(Part::len).sum(), on_disk),
                }
            }
            _ => (state.done, state.all, state.done),
        };
        let status = ReplaceStatus {
            state: shown,
            source,
            target: None,
            done,
            all,
            on_disk: on_disk.min(done),
            started: item.time_started.get(),
            stopped: item.time_stopped.get(),
            write_errors: item.num_write_errors.get(),
            unreadable: item.num_uncorrectable_read_errors.get(),
            failure: state.failure.clone(),
        };
        drop(state);
        let devices = self.fs.engine().volume().devices();
        let target = devices.into_iter().find(|device| device.devid.0 == source).and_then(|device| device.target);
        ReplaceStatus { target, ..status }
    }

    /// Has a new device take another's place. It is on disk when this returns, and [`Replacer::run`] does it. Nothing is done to the new device
    /// before all else is sure. `avoid_reading`: read from other copies, where there are some.
    ///
    /// # Errors
    /// There is no such device, the new one is too short or fails, or something of the kind, or a scrub, is under way.
    pub fn start(&self, source: DevId, new: Candidate, avoid_reading: bool) -> Result<(), JobError> {
        let mut turn = {
            let mut state = self.state.lock();
            if state.phase != Phase::Idle {
                return Err(JobError::refused(errno::EINPROGRESS, "a device is being replaced"));
            }
            state.phase = Phase::Asked;
            Turn { of: self, then: Phase::Idle }
        };
        let item = DevReplaceItem {
            src_devid: source.0.into(),
            cont_reading_from_srcdev_mode: (if avoid_reading { MODE_AVOID } else { MODE_ALWAYS }).into(),
            replace_state: STARTED.into(),
            time_started: self.now().into(),
            ..DevReplaceItem::default()
        };
        // Once it has a target, whoever asks for a scrub sees that.
        let _no_scrub = self.scrubber.keep_out()?;
        self.balancer.exclusively("replacing a device", |_| {
            let engine = self.fs.engine();
            engine.volume().check_target(source, &new)?;
            let new = new.prepare()?;
            engine.stage(|staged| staged.start_replace(new, &item))?;
            Ok(self.fs.sync().map(drop)?)
        })?;
        *self.state.lock() = State { phase: Phase::Asked, item, ..State::default() };
        turn.then = Phase::Wanted;
        Ok(())
    }

    /// Goes on with one that was interrupted.
    ///
    /// # Errors
    /// There is none, or the target is not there.
    pub fn resume(&self) -> Result<(), JobError> {
        let source = DevId(self.state.lock().item.src_devid.get());
        let has_target = self.has_target(source);
        let mut state = self.state.lock();
        if state.phase != Phase::Suspended || state.item.src_devid.get() != source.0 {
            return Err(JobError::refused(errno::ENOTCONN, "no replacement was interrupted"));
        }
        if !has_target {
            return Err(JobError::refused(errno::ENODEV, "the device that is to take the other's place is not there"));
        }
        (state.phase, state.stop, state.cancel, state.failure) = (Phase::Wanted, false, false, None);
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    fn has_target(&self, source: DevId) -> bool {
        self.fs.engine().volume().has_target(source)
    }

    /// Whether there is one to run.
    pub fn is_wanted(&self) -> bool {
        self.state.lock().phase == Phase::Wanted
    }

    /// Waits until there is one to run, or until it is interrupted, for `timeout` at most; returns whether there is one.
    pub fn wait_work(&self, timeout: Duration) -> bool {
        let mut state = self.state.lock();
        if state.phase != Phase::Wanted {
            self.changed.wait_for(&mut state, timeout);
        }
        state.phase == Phase::Wanted
    }

    /// Runs the replacement that was asked for, until it ends or is stopped. Nothing if there is none.
    ///
    /// # Errors
    /// It failed, and is suspended; or a balance is under way: it is still wanted then.
    pub fn run(&self) -> Result<(), JobError> {
        let mut turn = {
            let mut state = self.state.lock();
            if state.phase != Phase::Wanted {
                return Ok(());
            }
            state.phase = Phase::Running;
            Turn { of: self, then: Phase::Suspended }
        };
        let mut began = false;
        let ended = self.balancer.exclusively("replacing a device", |goes_on| {
            began = true;
            self.copy_all(&|| {
                let stopped = {
                    let state = self.state.lock();
                    state.stop || state.cancel
                };
                !stopped && goes_on()
            })
        });
        match &ended {
            Ok(Outcome::Done) => turn.then = Phase::Idle,
            Ok(Outcome::Stopped) => {}
            Err(_) if !began => turn.then = Phase::Wanted,
            Err(error) => turn.then = self.note_failure(error),
        }
        ended.map(drop)
    }

    /// Returns the phase that follows.
    fn note_failure(&self, error: &JobError) -> Phase {
        let mut item = {
            let mut state = self.state.lock();
            state.failure = Some(error.to_string());
            state.item
        };
        let phase = Phase::of(&item);
        if phase == Phase::Suspended && !self.has_target(DevId(item.src_devid.get())) {
            item.num_write_errors = item.num_write_errors.get().saturating_add(1).into();
            (item.cursor_left, item.cursor_right, item.replace_state) = (0.into(), 0.into(), SUSPENDED.into());
            // If even that fails, the target is found behind by its superblock.
            let _ = self.put(&item);
        }
        phase
    }

    /// Stops it without waiting; it can be resumed, here or by the kernel.
    pub fn interrupt(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
    }

    /// Ends it: the device stays, and the target is no part of the volume any more.
    ///
    /// # Errors
    /// There is none.
    pub fn cancel(&self) -> Result<(), JobError> {
        let (mut turn, mut item) = loop {
            let mut state = self.state.lock();
            match state.phase {
                Phase::Idle => return Err(JobError::refused(errno::ENOTCONN, "no device is being replaced")),
                Phase::Running => state.cancel = true,
                Phase::Asked => {}
                Phase::Wanted | Phase::Suspended => {
                    (state.phase, state.cancel) = (Phase::Asked, false);
                    break (Turn { of: self, then: Phase::Suspended }, state.item);
                }
            }
            drop(state);
            std::thread::sleep(LOOK_EVERY);
        };
        item.replace_state = CANCELLED.into();
        item.time_stopped = self.now().into();
        self.put(&item)?;
        let source = DevId(item.src_devid.get());
        let volume = self.fs.engine().volume();
        if let Ok(target) = volume.drop_target(source) {
            // The volume does not mind what becomes of it.
            let _ = target.wipe();
        }
        let _ = volume.avoid(source, false);
        turn.then = Phase::Idle;
        Ok(())
    }

    fn now(&self) -> u64 {
        u64::try_from(self.fs.options().clock.now().sec).unwrap_or(0)
    }

    fn put(&self, item: &DevReplaceItem) -> Result<(), JobError> {
        self.fs.engine().stage(|staged| staged.put_replace_item(item))?;
        self.fs.sync()?;
        self.state.lock().item = *item;
        Ok(())
    }

    /// Step (2) and the rest.
    fn copy_all(&self, goes_on: GoesOn<'_>) -> Result<Outcome, JobError> {
        let volume = self.fs.engine().volume().clone();
        let mut item = self.state.lock().item;
        let source = DevId(item.src_devid.get());
        item.replace_state = STARTED.into();
        volume.avoid(source, item.cont_reading_from_srcdev_mode.get() == MODE_AVOID)?;
        // What is there by now has its place on disk.
        self.fs.sync()?;
        let mut cursor = item.cursor_left.get();
        let mut written_down = (cursor > 0).then(Instant::now);
        let resumed_at = cursor;
        // Chunks with parity below the cursor come first.
        let parts = self.on(source);
        let again: Vec<&Part> =
            parts.iter().filter(|part| part.at < resumed_at && part.chunk.profile.has_parity()).collect();
        for (nth, part) in again.iter().enumerate() {
            let left = again[nth..].iter().filter(|part| part.end() <= cursor).map(|part| part.len()).sum();
            self.note_progress(&parts, cursor, left);
            if self.copy_part(source, part, &mut item, goes_on)?.is_none() {
                return Ok(Outcome::Stopped);
            }
        }
        loop {
            let parts = self.on(source);
            self.note_progress(&parts, cursor, 0);
            let Some(next) = parts.iter().find(|part| part.end() > cursor) else { break };
            let Some(()) = self.copy_part(source, next, &mut item, goes_on)? else {
                self.put(&item)?;
                return Ok(Outcome::Stopped);
            };
            cursor = next.end();
            item.cursor_left = cursor.into();
            // The first time immediately: from then on a crash does not lose everything.
            if written_down.is_none_or(|at| at.elapsed() >= CURSOR_EVERY) {
                self.put(&item)?;
                written_down = Some(Instant::now());
            }
        }
        item.replace_state = FINISHED.into();
        item.time_stopped = self.now().into();
        self.fs.engine().stage(|staged| staged.finish_replace(&item))?;
        self.fs.sync()?;
        let replaced = volume.take_replaced();
        let Some(old) = replaced.iter().find(|of| of.devid == source) else {
            return Err(JobError::refused(errno::EIO, TARGET_FAILED));
        };
        // It is on disk, and no way back.
        self.state.lock().item = item;
        if !old.is_done_without {
            let text = "the new device failed as soon as it had taken the other's place; the old one is left as it is";
            return Err(JobError::refused(errno::EIO, text));
        }
        // It may be broken; the newer one counts.
        let _ = old.wipe();
        Ok(Outcome::Done)
    }

    /// Says how far it is: the cursor has passed these parts, of which `left` bytes are being copied again.
    fn note_progress(&self, parts: &[Part], cursor: u64, left: u64) {
        let mut state = self.state.lock();
        state.all = parts.iter().map(Part::len).sum();
        state.done = passed(parts, cursor).saturating_sub(left);
        state.in_part = 0;
    }

    /// The parts of chunks on a device by their places there.
    fn on(&self, devid: DevId) -> Vec<Part> {
        let chunks = self.fs.engine().volume().chunks();
        let parts = chunks.into_iter().flat_map(|chunk| {
            let stripes = chunk.stripes.iter().enumerate().filter(|(_, s)| s.devid == devid);
            let places: Vec<_> = stripes.map(|(stripe, s)| (stripe, s.offset.0)).collect();
            places.into_iter().map(move |(stripe, at)| Part { at, stripe, chunk: chunk.clone() })
        });
        let mut parts: Vec<_> = parts.collect();
        parts.sort_by_key(|part| part.at);
        parts
    }

    /// Copies a part of a chunk, some pieces at a time; `None`: it was stopped. All of it is on the target when this returns `Some`.
    fn copy_part(&self, devid: DevId, part: &Part, item: &mut DevReplaceItem, goes_on: GoesOn<'_>) -> Copied {
        let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let copying = &CopyingPart { of: self, devid, part, goes_on, next, stop };
        let pieces = part.len().div_ceil(RUN_LEN);
        let others = pieces.min(COPIERS).saturating_sub(1);
        let ended: Vec<Result<(Option<()>, u64), JobError>> = std::thread::scope(|threads| {
            // If no thread can be started, the others copy what it would have.
            let started = (0..others).filter_map(|_| {
                let named = std::thread::Builder::new().name("replace".into());
                named.spawn_scoped(threads, move || copying.copy()).ok()
            });
            let started: Vec<_> = started.collect();
            let own = copying.copy();
            let joined = started.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            std::iter::once(own).chain(joined).collect()
        });
        let mut all = Some(());
        let mut failed = None;
        for ended in ended {
            match ended {
                Ok((some, bad)) => {
                    all = all.and(some);
                    let before = item.num_uncorrectable_read_errors.get();
                    item.num_uncorrectable_read_errors = before.saturating_add(bad).into();
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(all), Err)
    }
}

/// Says whether to go on; asked by several threads.
type GoesOn<'g> = &'g (dyn Fn() -> bool + Sync);

/// `None`: it was stopped.
type Copied = Result<Option<()>, JobError>;

/// A part of a chunk that several threads copy.
struct CopyingPart<'a> {
    of: &'a Replacer,
    devid: DevId,
    part: &'a Part,
    goes_on: GoesOn<'a>,
    /// Where the next piece begins, in bytes.
    next: AtomicU64,
    /// One has failed, or was stopped.
    stop: AtomicBool,
}

/// Has the others stop, unless it comes to its end.
struct StopsOthers<'a>(&'a AtomicBool, bool);

impl Drop for StopsOthers<'_> {
    fn drop(&mut self) {
        self.0.fetch_or(!self.1, SeqCst);
    }
}

impl CopyingPart<'_> {
    /// Copies one piece after the other, as long as there are some; `None`: it was stopped. Returns how much was bad, too.
    fn copy(&self) -> Result<(Option<()>, u64), JobError> {
        let mut stops_others = StopsOthers(&self.stop, false);
        let (fs, chunk) = (&self.of.fs, &self.part.chunk);
        let mut bad = 0;
        loop {
            if self.stop.load(SeqCst) || !(self.goes_on)() {
                return Ok((None, bad));
            }
            let from = self.next.fetch_add(RUN_LEN, SeqCst);
            if from >= self.part.len() {
                break;
            }
            if !self.of.has_target(self.devid) {
                return Err(JobError::refused(errno::EIO, TARGET_FAILED));
            }
            let run = RefillRun { devid: self.devid, chunk: chunk.start, stripe: self.part.stripe, from, len: RUN_LEN };
            // What is next for whoever is done first.
            fs.engine().volume().will_refill(&RefillRun { from: from + RUN_LEN * COPIERS, ..run });
            match fill(fs, chunk, &run) {
                // It is gone.
                Err(JobError::Volume(error)) if matches!(*error, VolumeError::Unmapped { .. }) => break,
                done => bad += done?.bad,
            }
            self.of.state.lock().in_part += RUN_LEN.min(self.part.len() - from);
        }
        stops_others.1 = true;
        Ok((Some(()), bad))
    }
}

/// What a device has of a chunk.
struct Part {
    /// Where it begins on the device.
    at: u64,
    /// Which stripe it is.
    stripe: usize,
    chunk: Arc<ChunkMap>,
}

impl Part {
    fn len(&self) -> u64 {
        self.chunk.stripe_bytes().0
    }

    fn end(&self) -> u64 {
        self.at.saturating_add(self.len())
    }
}

/// Bytes of the parts that a cursor has passed.
fn passed(parts: &[Part], cursor: u64) -> u64 {
    parts.iter().filter(|part| part.end() <= cursor).map(Part::len).sum()
}

/// Fills a run again, with what is known of it by then; once more if something is bad, which may have been written meanwhile.
fn fill(fs: &Fs, chunk: &ChunkMap, run: &RefillRun) -> Result<Refilled, JobError> {
    let mut last = Refilled::default();
    for _ in 0..2 {
        let known = Known::of(fs, chunk, run)?;
        last = fs.engine().volume().refill(run, &known).map_err(JobError::from)?;
        if last.bad == 0 {
            break;
        }
        fs.sync()?;
    }
    Ok(last)
}

/// What is known of the bytes of a run.
struct Known<'f> {
    fs: &'f Fs,
    start: Logical,
    /// Checksums of sectors, in runs: where each begins, in bytes from `start`. `None`: tree blocks.
    sums: Option<Vec<(u64, Vec<u8>)>>,
    /// Where tree blocks are; elsewhere is nothing, whatever the bytes say.
    blocks: BTreeSet<Logical>,
}

impl Known<'_> {
    fn of<'f>(fs: &'f Fs, chunk: &ChunkMap, run: &RefillRun) -> Result<Known<'f>, JobError> {
        // Rows, or the bytes themselves where there are none.
        let width = chunk.data_stripes();
        let (from, to) = ((run.from * width).min(chunk.len.0), ((run.from + run.len) * width).min(chunk.len.0));
        let (start, len) = (chunk.start + ByteLen(from), ByteLen(to - from));
        if chunk.flags.contains(BlockGroupFlags::DATA) {
            // Of blocks among data nothing is known: they are read from the device itself.
            return Ok(Known { fs, start, sums: Some(fs.engine().csum_runs(start, len)?), blocks: BTreeSet::new() });
        }
        Ok(Known { fs, start, sums: None, blocks: blocks_in(fs, start, len)? })
    }
}

impl Verify for Known<'_> {
    fn grain(&self) -> usize {
        let engine = self.fs.engine();
        if self.sums.is_some() { engine.sectorsize() as usize } else { engine.nodesize() as usize }
    }

    fn is_good(&self, at: Logical, bytes: &[u8]) -> bool {
        let engine = self.fs.engine();
        let csum = engine.csum_type();
        let len = csum.csum_len();
        let Some(sums) = &self.sums else {
            // A block says itself whether it is whole.
            let is_whole =
                bytes.get(..len).is_some_and(|have| csum.csum(bytes.get(32..).unwrap_or_default())[..len] == *have);
            return is_whole || !self.blocks.contains(&at);
        };
        let offset = at.0.saturating_sub(self.start.0);
        let before = sums.partition_point(|(start, _)| *start <= offset);
        let Some((start, sums)) = before.checked_sub(1).and_then(|nth| sums.get(nth)) else { return true };
        let nth = ((offset - start) / u64::from(engine.sectorsize())) as usize;
        sums.get(nth * len..(nth + 1) * len).is_none_or(|want| csum.csum(bytes)[..len] == *want)
    }
}

/// The tree blocks that begin in a range, as the newest extent tree has them.
fn blocks_in(fs: &Fs, start: Logical, len: ByteLen) -> Result<BTreeSet<Logical>, JobError> {
    let engine = fs.engine();
    let _reader = engine.reader();
    let mut found = BTreeSet::new();
    let Some(root) = engine.root(TreeId::EXTENT)? else { return Ok(found) };
    let mut cursor = engine.blocks().cursor(&root);
    let mut more = cursor.seek(&Key::new(start.0, ItemType(0), 0))?;
    while more {
        let Some((key, _)) = cursor.current() else { break };
        if key.objectid >= (start + len).0 {
            break;
        }
        if matches!(key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM) {
            found.insert(Logical(key.objectid));
        }
        more = cursor.next()?;
    }
    Ok(found)
}
