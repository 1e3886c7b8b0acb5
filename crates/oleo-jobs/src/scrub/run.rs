//! One scrub, from the first byte of each device to the last.
//!
//! A thread of each device (`threads`) goes through it (`walk`): its superblocks, then its stripes in their order on it (`copies`). It says what is to be read, and
//! tells the system so, in rising order; a chunk with parity is gone through by one of its devices, for
//! all of them (`rows`), and the others wait there, so that what lies before a device's place is done. Threads for all cores and devices each read such a part and look at it
//! immediately ([`Job`]): it is in the nearest caches of their core then, and memory that was read into before is read into again. A device's
//! place is the end of what was given out before everything that is still being looked at, and never behind something that could not be looked at
//! ([`Task::leave_out`]): a scrub that is resumed comes back to that.
//!
//! Memory: a megabyte for each of the threads that read, and a plan for each device; rows of more devices than fit into a megabyte are all together in a bounded amount of it (`buffers`), so that fewer of
//! them are under way. Waiting: who gives out what is to be
//! read waits while enough of the device is under way ([`Places`]), so that a slow one does not take the threads from the others, and
//! for the throttle; a wait for another device is always for one of a lower number.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use oleo_format::{DevId, Generation, Logical, NodeExpect};
use oleo_fs::Fs;
use oleo_lock::{Mutex, rank};
use oleo_space::HoldWant;
use oleo_volume::{ChunkMap, Volume};

use super::buffers::{Buffer, Buffers, Wide, is_wide};
use super::plan::{Fault, Fit, Kind, Live, Plan, Why};
use super::throttle::Throttle;
use super::{Candidates, DeviceScrub, ScrubWant, Shared, Wanted};
use crate::JobError;

/// How often those who wait look.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Something to be read and looked at.
pub(super) trait Job: Send {
    /// Reads it into `buffer`, looks at it, and heals what is bad. `false`: not all of it could be looked at.
    fn look(self: Box<Self>, run: &Run<'_>, buffer: &mut Buffer) -> bool;
}

/// A job, and what is done with it.
pub(super) struct Given {
    job: Box<dyn Job>,
    devid: DevId,
    number: u64,
    end: u64,
    _place: Option<Place>,
}

/// How much of a device may be under way.
#[derive(Clone)]
pub(super) struct Places(Sender<()>, Receiver<()>);

/// One of the places, until it is dropped: also by a thread that panics.
struct Place(Receiver<()>);

impl Places {
    pub fn new(count: usize) -> Places {
        let (taken, back) = bounded(count);
        Places(taken, back)
    }

    /// Waits for a place. There is always one in the end, since what gives it back is here, too.
    fn take(&self) -> Option<Place> {
        self.0.send(()).ok().map(|()| Place(self.1.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.0.try_recv();
    }
}

/// How far the jobs of a device have come.
#[derive(Default)]
pub(super) struct Order {
    given: u64,
    ended: BTreeMap<u64, u64>,
    /// All before this one have ended.
    next: u64,
    /// The first that was not done.
    gap: Option<u64>,
}

impl Order {
    fn give(&mut self) -> u64 {
        self.given += 1;
        self.given - 1
    }

    /// Whether nothing was left out.
    pub fn is_whole(&self) -> bool {
        self.gap.is_none()
    }

    /// Notes that a job was not done.
    fn leave_out(&mut self, number: u64) {
        self.gap = Some(self.gap.map_or(number, |gap| gap.min(number)));
    }

    /// Notes that a job has ended, and returns where everything before is done, if that is further than before.
    fn end(&mut self, number: u64, end: u64) -> Option<u64> {
        if self.gap.is_some_and(|gap| number > gap) {
            return None;
        }
        self.ended.insert(number, end);
        let mut reached = None;
        while let Some(end) = self.ended.remove(&self.next) {
            self.next += 1;
            reached = Some(end);
        }
        reached
    }
}

/// One device's thread.
pub(super) struct Task {
    pub devid: DevId,
    pub jobs: Sender<Given>,
    /// Of all devices.
    pub places: BTreeMap<DevId, Places>,
}

impl Task {
    /// Has a job done, which counts for what is under way of device `by`; afterwards this task's device is done up to `end`, if all before is.
    pub fn hand_on(&self, run: &Run<'_>, by: DevId, job: impl Job + 'static, end: u64) {
        let place = self.places.get(&by).or_else(|| self.places.get(&self.devid)).and_then(Places::take);
        let number = run.shared.progress.lock().order(self.devid).give();
        // All who look have panicked if nobody takes it, which is reported where they are waited for.
        let _ = self.jobs.send(Given { job: Box::new(job), devid: self.devid, number, end, _place: place });
    }

    /// What comes next could not be looked at.
    pub fn leave_out(&self, run: &Run<'_>) {
        let number = run.shared.progress.lock().order(self.devid).give();
        run.leave_out(self.devid, number);
    }

    /// There is nothing to be read up to `end`.
    pub fn pass(&self, run: &Run<'_>, end: u64) {
        let number = run.shared.progress.lock().order(self.devid).give();
        run.reached(self.devid, number, end);
    }
}

/// What all threads of a scrub have.
pub(super) struct Run<'a> {
    fs: &'a Fs,
    shared: &'a Shared,
    /// The devices that are scrubbed, and where to begin on them.
    devices: &'a BTreeMap<DevId, u64>,
    repair: bool,
    /// Nobody writes meanwhile.
    alone: bool,
    offers: Option<&'a dyn Candidates>,
    /// Chunks with parity that are done with.
    whole: Mutex<rank::ScrubRun, BTreeSet<Logical>>,
    /// Why something could not be looked at.
    failed: Mutex<rank::ScrubRun, Option<JobError>>,
}

/// What is to be done, and by whom.
pub(super) struct Orders<'a> {
    pub want: &'a ScrubWant,
    /// The devices, and where to begin on them.
    pub devices: BTreeMap<DevId, u64>,
    pub alone: bool,
    pub offers: Option<&'a dyn Candidates>,
}

impl<'a> Run<'a> {
    pub fn new(fs: &'a Fs, shared: &'a Shared, orders: &'a Orders<'_>) -> Run<'a> {
        Run {
            fs,
            shared,
            devices: &orders.devices,
            repair: orders.want.repair && !fs.options().read_only,
            alone: orders.alone,
            offers: orders.offers,
            whole: Mutex::default(),
            failed: Mutex::default(),
        }
    }

    /// What could not be looked at.
    pub fn into_result(self) -> Result<(), JobError> {
        self.failed.into_inner().map_or(Ok(()), Err)
    }
}

impl Run<'_> {
    pub fn volume(&self) -> &Arc<Volume> {
        self.fs.engine().volume()
    }

    pub fn throttle(&self) -> &Throttle {
        &self.shared.throttle
    }

    pub fn buffers(&self) -> &Arc<Buffers> {
        &self.shared.buffers
    }

    /// Waits for memory for a row of a chunk, if it is one of those that take memory of their own.
    pub fn room_for_row(&self, map: &ChunkMap) -> Option<Wide> {
        is_wide(map).then(|| self.buffers().take(map, &|| self.goes_on())).flatten()
    }

    pub fn goes_on(&self) -> bool {
        !self.shared.stop.load(SeqCst)
    }

    pub fn repairs(&self) -> bool {
        self.repair
    }

    pub fn is_alone(&self) -> bool {
        self.alone
    }

    pub fn scrubs(&self, devid: DevId) -> bool {
        self.devices.contains_key(&devid)
    }

    /// Bytes of a sector.
    pub fn sector(&self) -> usize {
        self.fs.engine().sectorsize() as usize
    }

    /// What is in a range of addresses; `None` if that cannot be read, which is remembered.
    pub fn plan(&self, from: u64, to: u64) -> Option<Plan> {
        Plan::read(self.fs.engine(), from, to).map_err(|error| self.note(error)).ok()
    }

    fn note(&self, error: JobError) {
        self.failed.lock().get_or_insert(error);
    }

    /// A commit, so that what was written before is known; and what is free around an address. `false` if it fails, which is remembered.
    pub fn commit_and_load(&self, at: Logical) -> bool {
        if self.repair {
            if let Err(error) = self.fs.commit() {
                self.note(error.into());
                return false;
            }
            let sector = oleo_format::ByteLen(u64::from(self.fs.engine().sectorsize()));
            let want = HoldWant { start: at, end: Logical(u64::MAX), min_len: sector, piece_max: sector };
            let _loaded = self.fs.engine().space().hold_free(want).next();
        }
        true
    }

    /// Bytes from elsewhere that fit.
    pub fn offered(&self, plan: &Plan, fault: &Fault) -> Option<Vec<u8>> {
        let mut found = None;
        if let (Some(offers), Kind::Data) = (self.offers, fault.extent.kind) {
            let wanted = Wanted { at: Logical(fault.at), len: fault.len };
            offers.offer(self.fs, &wanted, &mut |bytes| {
                let fits = bytes.len() as u64 == fault.len
                    && matches!(plan.fit(self.volume(), &fault.extent, fault.at, bytes), Fit::Yes);
                if fits {
                    found = Some(bytes.to_vec());
                }
                fits
            });
        }
        found
    }

    pub fn has_offers(&self) -> bool {
        self.offers.is_some()
    }

    pub fn add(&self, devid: DevId, counts: &DeviceScrub) {
        self.shared.progress.lock().device(devid).add(counts);
    }

    /// Adds what was found in a chunk with parity, which is read as a whole. What is bad on a device that is not scrubbed counts for the one that
    /// the chunk is read for, so that it is not lost.
    pub fn add_of_row(&self, reader: DevId, devid: DevId, counts: &DeviceScrub) {
        match self.scrubs(devid) {
            true => self.add(devid, counts),
            false => self.add(reader, &counts.errors_alone()),
        }
    }

    /// A device that missed writes still has something of an earlier time.
    pub fn stays_stale(&self, devid: DevId) {
        self.shared.progress.lock().stays_stale.insert(devid);
    }

    pub fn unhealed(&self, devid: DevId, physical: u64, fault: &Fault) {
        self.shared.progress.lock().unhealed.add(devid, physical, fault);
    }

    pub fn healed(&self, devid: DevId, physical: u64, fault: &Fault) {
        self.shared.progress.lock().healed.add(devid, physical, fault);
    }

    fn leave_out(&self, devid: DevId, number: u64) {
        let mut progress = self.shared.progress.lock();
        progress.order(devid).leave_out(number);
        progress.device(devid).finished = false;
    }

    fn reached(&self, devid: DevId, number: u64, end: u64) {
        let mut progress = self.shared.progress.lock();
        if let Some(reached) = progress.order(devid).end(number, end) {
            progress.device(devid).last_physical = reached;
        }
    }

    /// A tree block that lies in two units is read as a whole, which looks at other copies only if the first is bad.
    pub fn look_at_straddler(&self, live: &Live, counts: &mut DeviceScrub) {
        let Kind::Block { generation, level } = live.extent.kind else { return };
        if live.at != live.extent.start {
            return;
        }
        let generation: Option<Generation> = Some(generation);
        let expect = NodeExpect { generation, level, ..NodeExpect::at(Logical(live.at)) };
        if self.volume().read_block(&expect).is_err() {
            let sectors = live.extent.len / self.sector() as u64;
            counts.verify_errors += sectors;
            counts.uncorrectable_errors += sectors;
            let fault = Fault { at: live.at, len: live.extent.len, extent: live.extent, why: Why::Read };
            if let Ok(chunk) = self.volume().stripes_of(Logical(live.at)) {
                let map = chunk.map();
                let piece = map.piece(live.at - map.start.0, 1);
                self.unhealed(chunk.devid(piece.stripe), map.physical(piece.stripe, piece.offset).0, &fault);
            }
        }
    }

    /// Reads and looks, unless the scrub is to stop.
    pub fn look_at(&self, given: Given, buffer: &mut Buffer) {
        match self.goes_on() && given.job.look(self, buffer) {
            true => self.reached(given.devid, given.number, given.end),
            false => self.leave_out(given.devid, given.number),
        }
    }

    /// A chunk with parity has been read, by the thread of one of its devices.
    pub fn chunk_done(&self, chunk: Logical) {
        self.whole.lock().insert(chunk);
    }

    /// Waits until a chunk has been read by another device's thread.
    pub fn wait_for(&self, chunk: Logical) {
        while self.goes_on() && !self.whole.lock().contains(&chunk) {
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// All of a device has been read.
    pub fn device_done(&self, devid: DevId) {
        let mut progress = self.shared.progress.lock();
        if self.goes_on() && progress.order(devid).is_whole() {
            progress.device(devid).finished = true;
        }
    }
}
