//! Scrub: reads every copy of everything, and parity, verifies it, and heals what is bad from what is good.
//!
//! Normal path: (1) [`Scrubber::start`] or [`Scrubber::resume`] asks for a scrub, and leaves it to the caller of [`Scrubber::run`]: the command itself on
//! an image, a background thread on a mount; (2) `run` reads all devices (`run`, `walk`, `copies`, `rows`), and keeps its state every few seconds (`record`); (3) at the
//! end the counters of devices are committed.
//!
//! ```text
//!         start, resume            run               end, cancel, stop
//!  Idle ----------------> Wanted ---------> Running --------------------> Idle
//! ```
//! Invariants: a sector is overwritten only with bytes that fit its checksum, after it was found bad; never while it may belong to somebody else (`plan`).
//! Parity is written only if all that it stands for is known to be right (`rows`).
//! Locks: `state`, a leaf, held to read or change it, never over I/O; `progress` and those of a run likewise.
//! Crash: the state that was kept last says where to go on. Healing is a write of what belongs there, so any part of it may be lost.
//! Not here: permissions and names of files (`oleo::control`); where the state is kept is told ([`Scrubber::keep_in`]).

mod buffers;
mod copies;
mod plan;
mod record;
mod rows;
mod run;
mod threads;
mod throttle;
mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use oleo_format::{Classified, DevId, ErrorKind, Logical};
use oleo_fs::{Fs, errno};
use oleo_lock::{Condvar, Mutex, rank};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::JobError;
use buffers::Buffers;
use plan::{Fault, Kind, Live, Why};
use record::Record;
use run::{Order, Orders};
use throttle::Throttle;

pub use buffers::WIDE_ROWS_LEN_MAX;

/// Places that could not be healed and are named; of more only the number is known.
pub const UNHEALED_MAX: usize = 10_000;

/// What is asked for.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ScrubWant {
    /// Which devices; none: all that are there.
    #[serde(default)]
    pub devices: Vec<DevId>,
    /// Whether what is bad is healed.
    pub repair: bool,
    /// Bytes a second of all devices together; 0: as it was before.
    #[serde(default)]
    pub bytes_per_second: u64,
    /// Bytes a second of single devices; 0: no limit. Others are as they were before.
    #[serde(default)]
    pub limits: BTreeMap<DevId, u64>,
}

impl ScrubWant {
    /// All devices, healing what is bad.
    pub fn new() -> ScrubWant {
        ScrubWant { repair: true, ..ScrubWant::default() }
    }

    /// Whether what is bad is healed.
    pub fn repair(mut self, repair: bool) -> ScrubWant {
        self.repair = repair;
        self
    }

    /// Only these devices.
    pub fn devices(mut self, devices: Vec<DevId>) -> ScrubWant {
        self.devices = devices;
        self
    }

    /// Bytes a second of all devices together; 0: as it was before.
    pub fn bytes_per_second(mut self, bytes_per_second: u64) -> ScrubWant {
        self.bytes_per_second = bytes_per_second;
        self
    }

    /// Bytes a second of single devices; 0: no limit.
    pub fn limits(mut self, limits: BTreeMap<DevId, u64>) -> ScrubWant {
        self.limits = limits;
        self
    }
}

/// What was found on a device. Errors are counted in sectors, except those of superblocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceScrub {
    /// Data extents that begin on it.
    pub data_extents_scrubbed: u64,
    /// Tree blocks.
    pub tree_extents_scrubbed: u64,
    /// Bytes of data.
    pub data_bytes_scrubbed: u64,
    /// Bytes of tree blocks.
    pub tree_bytes_scrubbed: u64,
    /// Bytes of parity.
    pub parity_bytes_scrubbed: u64,
    /// Sectors that could not be read.
    pub read_errors: u64,
    /// Sectors that do not fit their checksum.
    pub csum_errors: u64,
    /// Sectors of tree blocks that are not what belongs there.
    pub verify_errors: u64,
    /// Sectors of data without checksum.
    pub no_csum: u64,
    /// Always 0.
    pub csum_discards: u64,
    /// Superblocks that are bad.
    pub super_errors: u64,
    /// Always 0.
    pub malloc_errors: u64,
    /// Sectors of parity that do not fit the data.
    pub parity_errors: u64,
    /// Bad sectors that could not be healed.
    pub uncorrectable_errors: u64,
    /// Bad sectors that were.
    pub corrected_errors: u64,
    /// The place on the device up to which all is done, bytes.
    pub last_physical: u64,
    /// When it was started, seconds since 1970.
    pub t_start: u64,
    /// When it was resumed; 0: it was not.
    pub t_resumed: u64,
    /// Seconds that it took so far.
    pub duration: u64,
    /// It was cancelled.
    pub canceled: bool,
    /// It is done.
    pub finished: bool,
    /// Bytes that are in use on the device, about: what there is to be scrubbed.
    pub expected_bytes: u64,
}

impl DeviceScrub {
    /// Bytes done.
    pub fn bytes(&self) -> u64 {
        self.data_bytes_scrubbed + self.tree_bytes_scrubbed + self.parity_bytes_scrubbed
    }

    /// All errors, healed or not.
    pub fn errors(&self) -> u64 {
        self.read_errors + self.csum_errors + self.verify_errors + self.super_errors + self.parity_errors
    }

    /// The errors, healed or not, without what was done.
    fn errors_alone(&self) -> DeviceScrub {
        DeviceScrub {
            read_errors: self.read_errors,
            csum_errors: self.csum_errors,
            verify_errors: self.verify_errors,
            super_errors: self.super_errors,
            parity_errors: self.parity_errors,
            uncorrectable_errors: self.uncorrectable_errors,
            corrected_errors: self.corrected_errors,
            ..DeviceScrub::default()
        }
    }

    /// Adds the counts of another; places and times stay.
    pub fn add(&mut self, more: &DeviceScrub) {
        for (count, more) in [
            (&mut self.data_extents_scrubbed, more.data_extents_scrubbed),
            (&mut self.tree_extents_scrubbed, more.tree_extents_scrubbed),
            (&mut self.data_bytes_scrubbed, more.data_bytes_scrubbed),
            (&mut self.tree_bytes_scrubbed, more.tree_bytes_scrubbed),
            (&mut self.parity_bytes_scrubbed, more.parity_bytes_scrubbed),
            (&mut self.read_errors, more.read_errors),
            (&mut self.csum_errors, more.csum_errors),
            (&mut self.verify_errors, more.verify_errors),
            (&mut self.no_csum, more.no_csum),
            (&mut self.super_errors, more.super_errors),
            (&mut self.parity_errors, more.parity_errors),
            (&mut self.uncorrectable_errors, more.uncorrectable_errors),
            (&mut self.corrected_errors, more.corrected_errors),
        ] {
            *count = count.saturating_add(more);
        }
    }

    fn add_live(&mut self, live: &Live) {
        let begins = u64::from(live.at == live.extent.start);
        match live.extent.kind {
            Kind::Data => {
                self.data_extents_scrubbed += begins;
                self.data_bytes_scrubbed += live.len;
            }
            Kind::Block { .. } => {
                self.tree_extents_scrubbed += begins;
                self.tree_bytes_scrubbed += live.len;
            }
        }
    }

    fn count(&mut self, why: &Why, sectors: u64) {
        match why {
            Why::Sum => self.csum_errors += sectors,
            Why::Block(_) => self.verify_errors += sectors,
            Why::Read => self.read_errors += sectors,
            Why::Stale => {}
        }
    }
}

/// What could not be healed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Unhealed {
    /// Its address.
    pub at: Logical,
    /// Bytes.
    pub len: u64,
    /// The device.
    pub devid: DevId,
    /// Where on it, bytes from its start.
    pub offset: u64,
    /// What it is.
    pub what: What,
    /// What is wrong with it.
    pub why: String,
}

/// What is stored at a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// Data of files.
    Data,
    /// A tree block.
    Block,
}

/// How a scrub ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScrubEnd {
    /// Everything was looked at.
    Done,
    /// It was cancelled, and can be resumed.
    Cancelled,
    /// The file system was closed, or the command was interrupted; it can be resumed.
    Interrupted,
    /// Not everything could be looked at.
    Failed {
        /// The errno of a system call.
        errno: i32,
        /// What it is.
        kind: ErrorKind,
        /// Why.
        text: String,
    },
}

/// A scrub, as it is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// Whether it is under way.
    pub running: bool,
    /// Whether it heals.
    pub repair: bool,
    /// How many were started or resumed here so far; the status is that of the last one.
    pub number: u64,
    /// What it found so far, or what is known of the last one.
    pub devices: BTreeMap<DevId, DeviceScrub>,
    /// Since it began or was resumed here.
    pub elapsed_ms: u64,
    /// Estimated time to the end, at the present rate.
    pub remaining_ms: Option<u64>,
    /// Places that could not be healed beyond those that are named ([`Scrubber::unhealed`]).
    pub unhealed_more: u64,
    /// Places that were healed beyond those that are named ([`Scrubber::healed`]).
    #[serde(default)]
    pub healed_more: u64,
    /// How the last one ended, if it did here.
    pub end: Option<ScrubEnd>,
    /// Bytes a second of all devices together; 0: no limit.
    pub limit: u64,
    /// The same of each device that has a limit.
    pub limits: BTreeMap<DevId, u64>,
}

impl ScrubStatus {
    /// All devices together. The place is that of the last device, as with btrfs-progs.
    pub fn total(&self) -> DeviceScrub {
        let mut total = DeviceScrub::default();
        for device in self.devices.values() {
            total.add(device);
            total.expected_bytes = total.expected_bytes.saturating_add(device.expected_bytes);
            total.last_physical = device.last_physical;
            total.duration = total.duration.max(device.duration);
            total.t_resumed = total.t_resumed.max(device.t_resumed);
            total.t_start = if total.t_start == 0 { device.t_start } else { total.t_start.min(device.t_start) };
            total.canceled |= device.canceled;
        }
        total.finished = !self.devices.is_empty() && self.devices.values().all(|device| device.finished);
        total
    }
}

/// Data that is bad, for those who may have it.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Its address.
    pub at: Logical,
    /// A sector's length.
    pub len: u64,
}

/// Somebody who may have bytes that are bad here: a copy of the files, a backup.
pub trait Candidates: Send + Sync {
    /// Offers bytes to `fits`, until it takes some. What it takes fits the checksum.
    fn offer(&self, fs: &Fs, wanted: &Wanted, fits: &mut dyn FnMut(&[u8]) -> bool);
}

/// What a run reports.
#[derive(Default)]
struct Progress {
    devices: BTreeMap<DevId, DeviceScrub>,
    orders: BTreeMap<DevId, Order>,
    unhealed: Places,
    healed: Places,
    /// Devices that missed writes and still have something of an earlier time, which is not counted as an error of theirs.
    stays_stale: BTreeSet<DevId>,
    /// When it began here, and seconds that each device had before.
    began: Option<Instant>,
    before: BTreeMap<DevId, u64>,
    bytes_before: u64,
}

/// Places where something was bad.
#[derive(Default)]
struct Places {
    /// The first [`UNHEALED_MAX`].
    named: Vec<Unhealed>,
    /// How many more there were.
    more: u64,
}

impl Places {
    fn add(&mut self, devid: DevId, offset: u64, fault: &Fault) {
        let what = if matches!(fault.extent.kind, Kind::Data) { What::Data } else { What::Block };
        let why = match &fault.why {
            Why::Sum => "does not fit its checksum".to_owned(),
            Why::Block(why) => why.to_string(),
            Why::Read => "cannot be read".to_owned(),
            Why::Stale => "may be of an earlier time, since its device missed writes".to_owned(),
        };
        if let Some(last) = self.named.last_mut()
            && (last.devid, last.what, &last.why) == (devid, what, &why)
            && (last.at.0 + last.len, last.offset + last.len) == (fault.at, offset)
            && what == What::Data
        {
            last.len += fault.len;
        } else if self.named.len() < UNHEALED_MAX {
            self.named.push(Unhealed { at: Logical(fault.at), len: fault.len, devid, offset, what, why });
        } else {
            self.more += 1;
        }
    }
}

impl Progress {
    fn device(&mut self, devid: DevId) -> &mut DeviceScrub {
        self.devices.entry(devid).or_default()
    }

    fn order(&mut self, devid: DevId) -> &mut Order {
        self.orders.entry(devid).or_default()
    }

    /// Brings the times up to now.
    fn turn_clock(&mut self) {
        let Some(began) = self.began else { return };
        let lasted = began.elapsed().as_secs();
        for (devid, device) in &mut self.devices {
            if let Some(before) = self.before.get(devid).filter(|_| !device.finished || device.duration == 0) {
                device.duration = before + lasted;
            }
        }
    }
}

/// What a run and those who ask about it have.
#[derive(Default)]
struct Shared {
    progress: Mutex<rank::ScrubRun, Progress>,
    throttle: Throttle,
    buffers: Arc<Buffers>,
    stop: AtomicBool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Phase {
    #[default]
    Idle,
    /// It is being prepared.
    Asked,
    Wanted,
    Running,
}

#[derive(Default)]
struct State {
    phase: Phase,
    want: ScrubWant,
    /// Where the devices begin.
    from: BTreeMap<DevId, u64>,
    number: u64,
    cancelled: bool,
    /// None runs any more, since the volume is about to be closed.
    stopping: bool,
    /// A device is about to be replaced ([`KeptOut`]).
    kept_out: bool,
    end: Option<ScrubEnd>,
    dir: Option<PathBuf>,
    offers: Option<Arc<dyn Candidates>>,
    /// Why the state cannot be kept.
    unkept: Option<String>,
}

/// The scrub of one open file system.
///
/// Memory: parts of a megabyte are read, two of each device at a time, or one more than there are cores for each. Rows of chunks with parity over more than 16
/// devices are more than that: of them as many are under way as fit into [`WIDE_ROWS_LEN_MAX`], however many devices there are.
pub struct Scrubber {
    fs: Fs,
    fsid: Uuid,
    shared: Shared,
    state: Mutex<rank::ScrubState, State>,
    changed: Condvar,
}

/// Keeps scrubs out until it is dropped.
#[must_use]
pub(crate) struct KeptOut<'s>(&'s Scrubber);

impl Drop for KeptOut<'_> {
    fn drop(&mut self) {
        self.0.state.lock().kept_out = false;
    }
}

impl Scrubber {
    /// For an open file system.
    pub fn new(fs: &Fs) -> Scrubber {
        let fsid = fs.engine().super_block().fsid();
        Scrubber { fs: fs.clone(), fsid, shared: Shared::default(), state: Mutex::default(), changed: Condvar::new() }
    }

    /// From now on keeps the state in a file of this directory, where btrfs-progs look for it, too, if it is `/var/lib/btrfs`.
    pub fn keep_in(&self, dir: impl Into<PathBuf>) {
        self.state.lock().dir = Some(dir.into());
    }

    /// Asks for a scrub, which [`Scrubber::run`] does. Answers with its number.
    ///
    /// # Errors
    /// One is under way, a device is being replaced, or the devices are not there.
    pub fn start(&self, want: ScrubWant) -> Result<u64, JobError> {
        self.start_from(want, None)
    }

    /// The same with somebody who is asked for what no copy has.
    ///
    /// # Errors
    /// As those of [`Scrubber::start`].
    pub fn start_from(&self, want: ScrubWant, offers: Option<Arc<dyn Candidates>>) -> Result<u64, JobError> {
        let devices = self.devices(&want)?;
        let now = now();
        let new = |&(devid, expected_bytes): &(DevId, u64)| {
            (devid, DeviceScrub { t_start: now, expected_bytes, ..DeviceScrub::default() })
        };
        let record: Record = devices.iter().map(new).collect();
        self.want(want, offers, record, &devices)
    }

    /// Asks for the rest of one that was interrupted, here or by btrfs-progs.
    ///
    /// # Errors
    /// One is under way; a device is being replaced; there is nothing to resume ([`JobError::NothingToResume`]); or its state cannot be read.
    pub fn resume(&self, want: ScrubWant) -> Result<u64, JobError> {
        self.resume_from(want, None)
    }

    /// The same with somebody who is asked for what no copy has.
    ///
    /// # Errors
    /// As those of [`Scrubber::resume`].
    pub fn resume_from(&self, want: ScrubWant, offers: Option<Arc<dyn Candidates>>) -> Result<u64, JobError> {
        let devices = self.devices(&want)?;
        let known = self.known()?;
        let mut record = Record::new();
        for (devid, expected_bytes) in &devices {
            let found = known.get(devid).copied().filter(|device| device.t_start != 0);
            let mut device = found.unwrap_or(DeviceScrub { t_start: now(), ..DeviceScrub::default() });
            device.expected_bytes = *expected_bytes;
            record.insert(*devid, device);
        }
        let is_known = devices.iter().any(|(devid, _)| known.get(devid).is_some_and(|device| device.t_start != 0));
        if !is_known || record.values().all(|device| device.finished) {
            return Err(JobError::NothingToResume);
        }
        for device in record.values_mut().filter(|device| !device.finished) {
            (device.t_resumed, device.canceled) = (now(), false);
        }
        self.want(want, offers, record, &devices)
    }

    /// While the result lives, none is asked for.
    ///
    /// # Errors
    /// One is under way.
    pub(crate) fn keep_out(&self) -> Result<KeptOut<'_>, JobError> {
        let mut state = self.state.lock();
        if state.phase != Phase::Idle || state.kept_out {
            return Err(JobError::refused(errno::EINPROGRESS, "a scrub is under way"));
        }
        state.kept_out = true;
        Ok(KeptOut(self))
    }

    /// Has it for whoever asks, unless one is under way or a device is being replaced.
    fn begin(&self) -> Result<(), JobError> {
        {
            let mut state = self.state.lock();
            if state.phase != Phase::Idle || state.stopping {
                let text = if state.stopping { "the file system is being closed" } else { "a scrub is under way" };
                return Err(JobError::refused(errno::EINPROGRESS, text));
            }
            if state.kept_out {
                return Err(JobError::refused(errno::EINPROGRESS, "a device is being replaced"));
            }
            state.phase = Phase::Asked;
        }
        // From here on no replacement begins.
        let devices = self.fs.engine().volume().devices();
        let Some(device) = devices.iter().find(|device| device.target.is_some()) else { return Ok(()) };
        self.state.lock().phase = Phase::Idle;
        self.changed.notify_all();
        Err(JobError::refused(errno::EINPROGRESS, format!("device {} is being replaced", device.devid)))
    }

    fn want(
        &self,
        want: ScrubWant,
        offers: Option<Arc<dyn Candidates>>,
        record: Record,
        devices: &[(DevId, u64)],
    ) -> Result<u64, JobError> {
        self.begin()?;
        let mut state = self.state.lock();
        (state.cancelled, state.end, state.unkept) = (false, None, None);
        state.number += 1;
        let unfinished = devices.iter().filter(|(devid, _)| record.get(devid).is_some_and(|device| !device.finished));
        state.from = unfinished.map(|(devid, _)| (*devid, record[devid].last_physical)).collect();
        (state.want, state.offers) = (want.clone(), offers);
        let number = state.number;
        drop(state);
        self.shared.stop.store(false, SeqCst);
        if want.bytes_per_second > 0 {
            self.shared.throttle.set(None, want.bytes_per_second);
        }
        want.limits.iter().for_each(|(devid, limit)| self.shared.throttle.set(Some(*devid), *limit));
        let before = record.iter().map(|(devid, device)| (*devid, device.duration)).collect();
        let bytes_before = record.values().map(DeviceScrub::bytes).sum();
        *self.shared.progress.lock() = Progress { devices: record, before, bytes_before, ..Progress::default() };
        let mut state = self.state.lock();
        if state.stopping {
            drop(state);
            self.ended(ScrubEnd::Interrupted);
        } else {
            state.phase = Phase::Wanted;
            drop(state);
            self.changed.notify_all();
        }
        Ok(number)
    }

    /// The devices to be scrubbed, and how many bytes of each are in use, about.
    fn devices(&self, want: &ScrubWant) -> Result<Vec<(DevId, u64)>, JobError> {
        let volume = self.fs.engine().volume();
        let used = self.used();
        let all = volume.devices();
        for devid in want.devices.iter().chain(want.limits.keys()) {
            if !all.iter().any(|info| info.devid == *devid && !info.missing) {
                return Err(JobError::refused(errno::ENODEV, format!("there is no device {devid}")));
            }
        }
        let wanted = all.iter().filter(|info| !info.missing);
        let wanted = wanted.filter(|info| want.devices.is_empty() || want.devices.contains(&info.devid));
        if let Some(tree) = volume.tree_that_moves() {
            return Err(JobError::refused(errno::EOPNOTSUPP, format!("volumes with a {tree} cannot be scrubbed yet")));
        }
        let devices = wanted.map(|info| (info.devid, used.get(&info.devid).copied().unwrap_or_default())).collect();
        if want.repair && self.fs.options().read_only {
            let text = "the volume is open for reading only, so that nothing can be healed";
            return Err(JobError::refused(errno::EROFS, text));
        }
        Ok(devices)
    }

    /// Bytes in use on each device: of each group its part.
    fn used(&self) -> BTreeMap<DevId, u64> {
        let engine = self.fs.engine();
        let groups: BTreeMap<Logical, u64> = engine.space().groups().iter().map(|g| (g.start, g.used.0)).collect();
        let mut used = BTreeMap::new();
        for chunk in engine.volume().chunks() {
            let of_group = groups.get(&chunk.start).copied().unwrap_or_default();
            for stripe in &chunk.stripes {
                *used.entry(stripe.devid).or_insert(0) += of_group / chunk.data_stripes();
            }
        }
        used
    }

    /// Waits until there is a scrub to run, for `timeout` at most; returns whether there is one.
    pub fn wait_work(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.state.lock();
        if state.phase != Phase::Wanted && !state.stopping {
            let _timed_out = self.changed.wait_until(&mut state, deadline);
        }
        state.phase == Phase::Wanted
    }

    /// Waits until the scrub with this number is no longer under way.
    pub fn wait_end(&self, number: u64) -> ScrubStatus {
        let mut state = self.state.lock();
        while state.number == number && state.phase != Phase::Idle {
            self.changed.wait(&mut state);
        }
        drop(state);
        self.status()
    }

    /// Runs the scrub that was requested, until it ends or is stopped, beside whoever uses the volume. `None` if there is no request.
    pub fn run(&self) -> Option<ScrubEnd> {
        self.run_with(false)
    }

    /// The same where nobody changes anything meanwhile: then what has no checksum is healed, too, where it can be read elsewhere.
    pub fn run_alone(&self) -> Option<ScrubEnd> {
        self.run_with(true)
    }

    fn run_with(&self, alone: bool) -> Option<ScrubEnd> {
        let (want, devices, offers) = {
            let mut state = self.state.lock();
            if state.phase != Phase::Wanted {
                return None;
            }
            state.phase = Phase::Running;
            (state.want.clone(), state.from.clone(), state.offers.take())
        };
        let mut running = Running { scrubber: self, end: None };
        self.shared.progress.lock().began = Some(Instant::now());
        self.keep();
        let orders = Orders { want: &want, devices, alone, offers: offers.as_deref() };
        let synced = if want.repair { self.fs.sync().map(drop) } else { Ok(()) };
        let worked = synced
            .map_err(JobError::from)
            .and_then(|()| threads::run(&self.fs, &self.shared, &orders, &|| self.keep()));
        let is_sound = worked.is_ok() && want.repair && alone && self.mark_sound(&orders.devices);
        let counted = if want.repair { self.write_counters(is_sound) } else { Ok(()) };
        let cancelled = self.state.lock().cancelled;
        let stopped = self.shared.stop.load(SeqCst);
        let end = match worked.and(counted) {
            Err(error) => ScrubEnd::Failed { errno: error.errno(), kind: error.kind(), text: error.to_string() },
            Ok(()) if !stopped => ScrubEnd::Done,
            Ok(()) if cancelled => ScrubEnd::Cancelled,
            Ok(()) => ScrubEnd::Interrupted,
        };
        running.end = Some(end.clone());
        Some(end)
    }

    /// Nothing is under way any more.
    fn ended(&self, end: ScrubEnd) {
        let cancelled = self.state.lock().cancelled;
        {
            let mut progress = self.shared.progress.lock();
            progress.turn_clock();
            progress.began = None;
            for device in progress.devices.values_mut() {
                device.canceled = !device.finished && cancelled;
            }
        }
        self.keep();
        let mut state = self.state.lock();
        (state.phase, state.end) = (Phase::Idle, Some(end));
        drop(state);
        self.changed.notify_all();
    }

    /// Devices that missed writes and have been read from their beginning to their end, with all that was bad on them healed, are as good as the
    /// others. Returns whether there were any. What lies in rows is read for one device by another, so none of these may have begun further on, or
    /// have left something out.
    fn mark_sound(&self, from: &BTreeMap<DevId, u64>) -> bool {
        let whole: Vec<DevId> = {
            let progress = self.shared.progress.lock();
            let is_whole = |devid: &DevId| {
                let device = progress.devices.get(devid);
                device.is_some_and(|device| device.finished && device.uncorrectable_errors == 0)
                    && !progress.stays_stale.contains(devid)
            };
            let all = from.values().all(|at| *at == 0) && progress.orders.values().all(Order::is_whole);
            from.keys().copied().filter(|devid| all && is_whole(devid)).collect()
        };
        let volume = self.fs.engine().volume();
        whole.into_iter().filter(|devid| volume.mark_sound(*devid)).count() > 0
    }

    /// Writes the errors of devices, and superblocks that were bad, with a commit. Nothing is written if nothing was found, except where devices
    /// are to have superblocks.
    fn write_counters(&self, always: bool) -> Result<(), JobError> {
        if !always && self.shared.progress.lock().devices.values().all(|device| device.errors() == 0) {
            return Ok(());
        }
        // Nothing is changed but what the commit writes of its own accord.
        self.fs.engine().edit_super(|_| ())?;
        Ok(self.fs.sync().map(drop)?)
    }

    /// Interrupts the scrub under way, which can be resumed, and waits until it has ended.
    ///
    /// # Errors
    /// None is under way.
    pub fn cancel(&self) -> Result<(), JobError> {
        let mut state = self.state.lock();
        let number = state.number;
        match state.phase {
            Phase::Idle | Phase::Asked => return Err(JobError::refused(errno::ENOTCONN, "no scrub is under way")),
            Phase::Wanted => {
                (state.phase, state.cancelled) = (Phase::Asked, true);
                drop(state);
                self.ended(ScrubEnd::Cancelled);
                return Ok(());
            }
            Phase::Running => state.cancelled = true,
        }
        self.shared.stop.store(true, SeqCst);
        while state.phase == Phase::Running && state.number == number {
            self.changed.wait(&mut state);
        }
        Ok(())
    }

    /// Asks the scrub under way to stop, without waiting; it can be resumed.
    pub fn interrupt(&self) {
        self.shared.stop.store(true, SeqCst);
        self.changed.notify_all();
    }

    /// No scrub runs any more: the file system is about to be closed.
    pub fn stop(&self) {
        let mut state = self.state.lock();
        state.stopping = true;
        let is_wanted = state.phase == Phase::Wanted;
        if is_wanted {
            state.phase = Phase::Asked;
        }
        drop(state);
        if is_wanted {
            self.ended(ScrubEnd::Interrupted);
        }
        self.interrupt();
    }

    /// Limits how fast a device is read, or all together, in bytes a second; 0 for no limit. It holds for the scrub under way and those that follow.
    pub fn limit(&self, device: Option<DevId>, bytes_per_second: u64) {
        self.shared.throttle.set(device, bytes_per_second);
    }

    /// How it is: the one under way, the last one here, or what is kept of the last one.
    pub fn status(&self) -> ScrubStatus {
        let (limit, limits) = self.shared.throttle.limits();
        let state = self.state.lock();
        let mut status = ScrubStatus {
            running: state.phase != Phase::Idle,
            repair: state.want.repair,
            number: state.number,
            devices: BTreeMap::new(),
            elapsed_ms: 0,
            remaining_ms: None,
            unhealed_more: 0,
            healed_more: 0,
            end: state.end.clone(),
            limit,
            limits,
        };
        drop(state);
        if status.number == 0 {
            let used = self.used();
            // What cannot be read is not known.
            status.devices = self.known().unwrap_or_default();
            for (devid, device) in &mut status.devices {
                device.expected_bytes = used.get(devid).copied().unwrap_or_default();
            }
            return status;
        }
        let mut progress = self.shared.progress.lock();
        progress.turn_clock();
        status.devices = progress.devices.clone();
        (status.unhealed_more, status.healed_more) = (progress.unhealed.more, progress.healed.more);
        if let Some(began) = progress.began {
            let elapsed = began.elapsed().as_millis();
            let total = status.total();
            let done = total.bytes().saturating_sub(progress.bytes_before);
            let left = total.expected_bytes.saturating_sub(total.bytes());
            let estimate = elapsed * u128::from(left) / u128::from(done.max(1));
            status.remaining_ms = u64::try_from(estimate).ok().filter(|_| done > 0);
            status.elapsed_ms = u64::try_from(elapsed).unwrap_or(u64::MAX);
        }
        status
    }

    /// What the one under way could not heal, or the last one that was done here; [`UNHEALED_MAX`] places at most.
    pub fn unhealed(&self) -> Vec<Unhealed> {
        self.shared.progress.lock().unhealed.named.clone()
    }

    /// Places that the scrub under way has healed, or the last one here; [`UNHEALED_MAX`] at most. A device that missed
    /// writes has those bytes counted, not named.
    pub fn healed(&self) -> Vec<Unhealed> {
        self.shared.progress.lock().healed.named.clone()
    }

    /// Why the state of the last one could not be kept.
    pub fn unkept(&self) -> Option<String> {
        self.state.lock().unkept.clone()
    }

    fn dir(&self) -> Option<PathBuf> {
        self.state.lock().dir.clone()
    }

    /// What is kept of the last scrub.
    fn known(&self) -> Result<Record, JobError> {
        let Some(dir) = self.dir() else { return Ok(Record::new()) };
        let read = |dir: &Path| record::read(dir, self.fsid);
        let failed =
            |error| JobError::refused(errno::EIO, format!("the state of the last scrub cannot be read: {error}"));
        Ok(read(&dir).map_err(failed)?.unwrap_or_default())
    }

    /// Keeps the state, if that is wanted. Of devices that are not scrubbed what was kept stays.
    fn keep(&self) {
        let Some(dir) = self.dir() else { return };
        let mut record = record::read(&dir, self.fsid).ok().flatten().unwrap_or_default();
        let present: Vec<DevId> = self.fs.engine().volume().devices().iter().map(|info| info.devid).collect();
        record.retain(|devid, _| present.contains(devid));
        {
            let mut progress = self.shared.progress.lock();
            progress.turn_clock();
            record.extend(progress.devices.iter().map(|(devid, device)| (*devid, *device)));
        }
        let kept = record::write(&dir, self.fsid, &record);
        self.state.lock().unkept = kept.err().map(|error| format!("{}: {error}", dir.display()));
    }
}

/// Ends a run, however it does: nobody shall wait for one that panicked.
struct Running<'a> {
    scrubber: &'a Scrubber,
    /// How it ended; none: it panicked.
    end: Option<ScrubEnd>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let panicked = || {
            let text = "the scrub panicked, which is a bug".to_owned();
            ScrubEnd::Failed { errno: errno::EIO, kind: ErrorKind::Refusal, text }
        };
        self.scrubber.ended(self.end.take().unwrap_or_else(panicked));
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
