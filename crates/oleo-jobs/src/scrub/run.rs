//! One scrub, from the first byte of each device to the last.
//!
//! A thread of each device reads: its superblocks, then its stripes in their order on it (`copies`). A chunk with parity is read by one of its devices, of
//! all of them (`rows`); the others wait there, so that what lies before a device's place is done. Threads for all cores look at what was read. A device's
//! place is the end of what was read before everything that is still being looked at.
//!
//! Memory: a few megabytes for each core, a megabyte and a plan for each device. Waiting: those who read wait when more was read than is looked at, and
//! for the throttle; a wait for another device is always for one of a lower number.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use oleo_format::{DevId, Generation, Logical, NodeExpect};
use oleo_fs::Fs;
use oleo_lock::{Mutex, rank};
use oleo_space::HoldWant;
use oleo_volume::{ChunkMap, ChunkStripes, Volume, read_mirrors};

use super::copies::{self, CopyRead};
use super::plan::{Fault, Fit, Kind, Live, Plan, Why};
use super::rows::{self, RowsRead};
use super::throttle::Throttle;
use super::{Candidates, DeviceScrub, ScrubWant, Shared, Wanted};
use crate::JobError;

/// How often the state is kept.
const KEEP_EVERY: Duration = Duration::from_secs(5);
/// How often those who wait look.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How often a superblock that is not as expected is looked at again, since it may be being written.
const SUPER_LOOKS_MAX: usize = 5;
/// Reads that wait to be looked at, for each core.
const AHEAD_PER_CORE: usize = 2;

/// What was read, to be looked at.
pub(super) enum Job {
    Copy(CopyRead),
    Rows(RowsRead),
}

/// A job, and what is done with it.
struct Given {
    job: Job,
    devid: DevId,
    number: u64,
    end: u64,
}

/// How far the jobs of a device have come.
#[derive(Default)]
pub(super) struct Order {
    given: u64,
    ended: BTreeMap<u64, u64>,
    /// All before this one have ended.
    next: u64,
}

impl Order {
    fn give(&mut self) -> u64 {
        self.given += 1;
        self.given - 1
    }

    /// Notes that a job has ended, and returns where everything before is done.
    fn end(&mut self, number: u64, end: u64) -> Option<u64> {
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
    jobs: Sender<Given>,
}

impl Task {
    /// Has a job done; afterwards the device is done up to `end`, if all before is.
    pub fn hand_on(&self, run: &Run<'_>, job: Job, end: u64) {
        let number = run.shared.progress.lock().order(self.devid).give();
        // All who look have panicked if nobody takes it, which is reported where they are waited for.
        let _ = self.jobs.send(Given { job, devid: self.devid, number, end });
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
    repair: bool,
    /// Nobody writes meanwhile.
    alone: bool,
    offers: Option<&'a dyn Candidates>,
    spare: (Sender<Vec<u8>>, Receiver<Vec<u8>>),
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

/// Scrubs; `keep` is called every few seconds. What could not be looked at is the error, when all else is done.
pub(super) fn run(fs: &Fs, shared: &Shared, orders: &Orders<'_>, keep: &dyn Fn()) -> Result<(), JobError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let run = Run {
        fs,
        shared,
        repair: orders.want.repair && !fs.options().read_only,
        alone: orders.alone,
        offers: orders.offers,
        spare: bounded(cores * AHEAD_PER_CORE + orders.devices.len()),
        whole: Mutex::default(),
        failed: Mutex::default(),
    };
    let chunks = run.volume().chunks();
    let left = AtomicUsize::new(orders.devices.len());
    std::thread::scope(|threads| {
        let (jobs, work) = bounded(cores * AHEAD_PER_CORE);
        for _ in 0..cores {
            let (run, work) = (&run, work.clone());
            threads.spawn(move || work.iter().for_each(|given| run.look_at(given)));
        }
        drop(work);
        for (&devid, &from) in &orders.devices {
            let task = Task { devid, jobs: jobs.clone() };
            let (run, chunks, left) = (&run, &chunks, Leaves(&left, shared));
            threads.spawn(move || {
                let _left = left;
                run.device(&task, chunks, &orders.devices, from);
            });
        }
        drop(jobs);
        let mut kept = Instant::now();
        while left.load(SeqCst) > 0 {
            std::thread::sleep(LOOK_EVERY);
            if kept.elapsed() >= KEEP_EVERY {
                keep();
                kept = Instant::now();
            }
        }
    });
    run.failed.into_inner().map_or(Ok(()), Err)
}

/// Counts a thread that ends, however it does: for one that panicked nobody shall wait.
struct Leaves<'a>(&'a AtomicUsize, &'a Shared);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.1.stop.store(true, SeqCst);
        }
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Run<'_> {
    pub fn volume(&self) -> &std::sync::Arc<Volume> {
        self.fs.engine().volume()
    }

    pub fn throttle(&self) -> &Throttle {
        &self.shared.throttle
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

    /// A buffer of this length with anything in it.
    pub fn buffer(&self, len: usize) -> Vec<u8> {
        let mut buffer = self.spare.1.try_recv().unwrap_or_default();
        buffer.resize(len, 0);
        buffer
    }

    /// A commit, so that what was written before is known; and what is free around an address.
    pub fn commit_and_load(&self, at: Logical) {
        if self.repair {
            if let Err(error) = self.fs.commit() {
                self.note(error.into());
            }
            let sector = oleo_format::ByteLen(u64::from(self.fs.engine().sectorsize()));
            let want = HoldWant { start: at, end: Logical(u64::MAX), min_len: sector, piece_max: sector };
            let _loaded = self.fs.engine().space().hold_free(want).next();
        }
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

    pub fn unhealed(&self, devid: DevId, physical: u64, fault: &Fault) {
        self.shared.progress.lock().unhealed(devid, physical, fault);
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

    /// Looks at what was read.
    fn look_at(&self, given: Given) {
        let buffers = match given.job {
            Job::Copy(mut read) => {
                read.check(self);
                vec![read.bytes]
            }
            Job::Rows(mut read) => {
                read.check(self);
                read.into_buffers()
            }
        };
        for buffer in buffers {
            // Full: there are enough.
            let _ = self.spare.0.try_send(buffer);
        }
        self.reached(given.devid, given.number, given.end);
    }

    /// Reads a device.
    fn device(&self, task: &Task, chunks: &[std::sync::Arc<ChunkMap>], devices: &BTreeMap<DevId, u64>, from: u64) {
        if from == 0 {
            self.superblocks(task.devid);
        }
        let of_chunk = |chunk: &std::sync::Arc<ChunkMap>| {
            let mine = chunk.stripes.iter().enumerate().filter(|(_, stripe)| stripe.devid == task.devid);
            mine.map(|(nth, stripe)| (stripe.offset.0, chunk.start, nth)).collect::<Vec<_>>()
        };
        let mut stripes: Vec<(u64, Logical, usize)> = chunks.iter().flat_map(of_chunk).collect();
        stripes.sort_unstable();
        for (physical, start, stripe) in stripes {
            if !self.goes_on() {
                return;
            }
            // One that is gone, or is another one by now, was emptied meanwhile.
            let Ok(chunk) = self.volume().stripes_of(start) else { continue };
            let is_same = chunk.map().start == start
                && chunk.map().stripes.get(stripe).is_some_and(|s| (s.devid, s.offset.0) == (task.devid, physical));
            let end = physical.saturating_add(chunk.map().stripe_bytes().0);
            if !is_same || end <= from {
                continue;
            }
            let skip = from.saturating_sub(physical);
            if !chunk.map().profile.has_parity() {
                copies::read_stripe(self, task, chunk, stripe, skip);
            } else if reads_for_all(&chunk, devices) == Some(task.devid) {
                rows::read_rows(self, task, chunk, stripe, skip);
                self.whole.lock().insert(start);
            } else {
                self.wait_for(start);
            }
        }
        if self.goes_on() {
            self.shared.progress.lock().device(task.devid).finished = true;
        }
    }

    /// Waits until a chunk has been read by another device's thread.
    fn wait_for(&self, chunk: Logical) {
        while self.goes_on() && !self.whole.lock().contains(&chunk) {
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Looks at the superblocks of a device. Those that are wrong are written anew by the commit at the end.
    fn superblocks(&self, devid: DevId) {
        let Some(device) = self.volume().device(devid) else { return };
        let fsid = self.volume().super_block().fsid;
        let is_stale = self.volume().devices().iter().any(|info| info.devid == devid && (info.stale || info.seed));
        let mut bad = 0;
        for look in 1..=SUPER_LOOKS_MAX {
            let newest = self.volume().super_block().generation.get();
            // The other mirrors come after the first.
            let oldest = if is_stale { 0 } else { newest.saturating_sub(u64::from(!self.alone)) };
            let mirrors = read_mirrors(&*device);
            let is_bad = |(_, mirror): &&(u64, Result<oleo_format::SuperBlock, _>)| {
                mirror.as_ref().map_or(true, |sb| (sb.fsid != fsid && !is_stale) || sb.generation.get() < oldest)
            };
            bad = mirrors.iter().filter(is_bad).count() as u64;
            if bad == 0 || look == SUPER_LOOKS_MAX {
                break;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        if bad > 0 {
            self.add(devid, &DeviceScrub { super_errors: bad, ..DeviceScrub::default() });
        }
    }
}

/// Which device's thread reads a chunk with parity: of those that are scrubbed, and there, that of the lowest number.
fn reads_for_all(chunk: &ChunkStripes, devices: &BTreeMap<DevId, u64>) -> Option<DevId> {
    let stripes = 0..chunk.map().stripes.len();
    stripes.filter(|&stripe| chunk.is_present(stripe)).map(|s| chunk.devid(s)).filter(|d| devices.contains_key(d)).min()
}
