//! A member of the volume: a device, what the file system knows about it, and its errors.
//!
//! ```text
//!            opened without it          a write or a flush failed
//!  Missing <------------------ Sound ----------------------------> Failed
//!     |                        ^   ^                                  |
//!     | replaced               |   | brought up to date               | opened again
//!     +------------------------+   +------------- Stale <-------------+
//! ```
//! What is not `Sound` is *lost*: nothing relies on it, every chunk has to do without it, and its superblock is not written, so that the
//! next opening finds it behind the others. A device that is replaced has a *target*, which gets all that it gets, and takes its place at
//! the end.
//!
//! Locks: none for the devices behind it: `slot` is exchanged as a whole, and who reads it counts nothing that others count.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use oleo_device::{Device, DeviceError, DeviceStats, Latched};
use oleo_format::{ByteLen, Corruption, DevId, DevItem, Generation, Physical};
use oleo_lock::{Mutex, rank};
use uuid::Uuid;

use crate::error::VolumeError;

/// Error counts of a device, in the order of the DEV_STATS item.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ErrorCounters {
    /// Writes that failed.
    pub write: u64,
    /// Reads that failed.
    pub read: u64,
    /// Flushes that failed.
    pub flush: u64,
    /// Bad checksums, and blocks with wrong contents.
    pub corruption: u64,
    /// Blocks of another generation than their parent has: lost writes.
    pub generation: u64,
}

impl ErrorCounters {
    /// The values of a DEV_STATS item.
    pub fn to_values(self) -> [u64; 5] {
        [self.write, self.read, self.flush, self.corruption, self.generation]
    }

    /// From the values of a DEV_STATS item.
    pub fn from_values(v: [u64; 5]) -> ErrorCounters {
        ErrorCounters { write: v[0], read: v[1], flush: v[2], corruption: v[3], generation: v[4] }
    }
}

/// Which of the counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Count {
    Write = 0,
    Read = 1,
    Flush = 2,
    Corruption = 3,
    Generation = 4,
}

/// A device as the volume shows it to others.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Its number in the volume.
    pub devid: DevId,
    /// Its own uuid.
    pub uuid: Uuid,
    /// The path or name that it was opened by; empty when missing.
    pub name: String,
    /// Bytes that the file system may use.
    pub total: ByteLen,
    /// Bytes in chunks.
    pub used: ByteLen,
    /// Whether no device was given for it.
    pub missing: bool,
    /// Whether it belongs to a seed: read, never written.
    pub seed: bool,
    /// Whether its superblock is older than that of others: it missed writes.
    pub stale: bool,
    /// Whether it failed since the volume was opened: it is neither read nor written any more.
    pub failed: bool,
    /// Transactions that it lacked when it was opened.
    pub behind: u64,
    /// The device that is about to take its place, by name.
    pub target: Option<String>,
    /// Its errors.
    pub errors: ErrorCounters,
    /// Its item in the chunk tree.
    pub item: DevItem,
    /// What it has been asked to do, if it counts.
    pub stats: Option<DeviceStats>,
}

/// While it lives, new chunks keep away from the end of a device.
#[must_use]
pub struct KeptFree(Arc<Member>);

impl KeptFree {
    pub(crate) fn new(member: Arc<Member>, end: ByteLen) -> KeptFree {
        member.room_end.store(end.0, Ordering::SeqCst);
        KeptFree(member)
    }
}

impl Drop for KeptFree {
    fn drop(&mut self) {
        self.0.room_end.store(u64::MAX, Ordering::SeqCst);
    }
}

/// A device's item in two transactions.
#[derive(Clone, Copy)]
pub(crate) struct Settled {
    /// The one on disk.
    pub written: DevItem,
    /// The one that is to be written.
    pub next: DevItem,
}

/// What can be relied on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// It has everything.
    Sound,
    /// It missed writes. It gets all writes but superblocks; it is read last, and never for what has no checksum, if there is a choice.
    Stale,
    /// A write or a flush failed: it is neither read nor written any more.
    Failed,
    /// It is not there.
    Missing,
}

impl Standing {
    const ALL: [Standing; 4] = [Standing::Sound, Standing::Stale, Standing::Failed, Standing::Missing];
}

/// A device as it is used.
#[derive(Clone)]
struct Used {
    latched: Arc<Latched>,
    /// The same without the latch, for healing: the volume continues if a bad copy stays bad.
    plain: Arc<dyn Device>,
}

impl Used {
    fn new(device: Arc<dyn Device>) -> Used {
        Used { latched: Arc::new(Latched::new(device.clone())), plain: device }
    }
}

/// The devices behind a member.
#[derive(Clone, Default)]
struct Slot {
    /// `None`: missing.
    device: Option<Used>,
    /// What takes its place.
    target: Option<Used>,
}

/// What is known of a target when it becomes one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TargetIs {
    /// No superblock names it yet: it gets the next one before the others.
    New,
    /// It has what it had when the volume was last in use.
    Known,
    /// It may lack something. Its superblock says so, until it is on disk that all is to be copied again ([`Member::trust_target`]).
    Behind,
}

/// A device that a member writes to.
#[derive(Clone)]
pub(crate) struct Output {
    pub member: Arc<Member>,
    pub device: Arc<Latched>,
    /// It is what takes the member's place.
    pub is_target: bool,
}

impl Output {
    /// Whether no superblock names it yet.
    pub fn is_new(&self) -> bool {
        let of = if self.is_target { &self.member.target_is_new } else { &self.member.is_new };
        of.load(Ordering::SeqCst)
    }

    /// Whether it gets superblocks: what missed writes does not.
    pub fn takes_supers(&self) -> bool {
        if self.is_target { !self.member.target_is_behind() } else { self.member.is_sound() }
    }

    /// The item for its superblock, as the trees of the one on disk have it. The number of a target is 0.
    pub fn written_item(&self) -> DevItem {
        self.as_it_is(self.member.settled.lock().written)
    }

    /// The same of the next superblock.
    pub fn next_item(&self) -> DevItem {
        self.as_it_is(self.member.settled.lock().next)
    }

    fn as_it_is(&self, item: DevItem) -> DevItem {
        if self.is_target { DevItem { devid: 0.into(), ..item } } else { item }
    }

    /// One does now.
    pub fn written(&self) {
        match self.is_target {
            true => self.member.target_is_new.store(false, Ordering::SeqCst),
            false => self.member.is_written(),
        }
    }
}

pub(crate) struct Member {
    pub devid: DevId,
    pub uuid: Uuid,
    pub item: Mutex<rank::DeviceItem, DevItem>,
    /// The item as the trees of superblocks have it: those of the last one written, and of the next one. Later changes
    /// are in no tree yet.
    pub settled: Mutex<rank::WrittenItem, Settled>,
    slot: ArcSwap<Slot>,
    standing: AtomicU8,
    pub seed: bool,
    /// The transaction of the superblock that it was found with.
    pub found: Generation,
    /// Transactions that its superblock lacked, until it gets one.
    behind: AtomicU64,
    /// No superblock names it yet: it gets the next one before the others.
    is_new: AtomicBool,
    /// The same of its target.
    target_is_new: AtomicBool,
    /// Its target gets no superblock.
    target_is_behind: AtomicBool,
    /// The next commit makes its target the device.
    pub finishing: AtomicBool,
    /// Reads prefer others: it is about to go, and may be rotten.
    avoided: AtomicBool,
    /// New chunks keep away from the space behind this offset in bytes; usually there is no limit.
    room_end: AtomicU64,
    counts: [AtomicU64; 5],
}

impl Member {
    pub fn new(item: DevItem, device: Option<Arc<dyn Device>>, seed: bool, behind: u64) -> Member {
        let standing = match &device {
            None => Standing::Missing,
            // One is what a crash between two devices' superblocks leaves, with all else in place.
            Some(_) if behind > 1 => Standing::Stale,
            Some(_) => Standing::Sound,
        };
        Member {
            devid: DevId(item.devid.get()),
            uuid: Uuid::from_bytes(item.uuid),
            item: Mutex::new(item),
            settled: Mutex::new(Settled { written: item, next: item }),
            slot: ArcSwap::from_pointee(Slot { device: device.map(Used::new), target: None }),
            standing: AtomicU8::new(standing as u8),
            seed,
            found: Generation(0),
            behind: AtomicU64::new(behind),
            is_new: AtomicBool::new(false),
            target_is_new: AtomicBool::new(false),
            target_is_behind: AtomicBool::new(false),
            finishing: AtomicBool::new(false),
            avoided: AtomicBool::new(false),
            room_end: AtomicU64::new(u64::MAX),
            counts: Default::default(),
        }
    }

    /// It has a superblock of this transaction.
    pub fn found_with(self, generation: Generation) -> Member {
        Member { found: generation, ..self }
    }

    pub fn standing(&self) -> Standing {
        Standing::ALL[usize::from(self.standing.load(Ordering::SeqCst)) % Standing::ALL.len()]
    }

    pub fn set_standing(&self, to: Standing) {
        self.standing.store(to as u8, Ordering::SeqCst);
    }

    /// Whether it has everything.
    pub fn is_sound(&self) -> bool {
        self.standing() == Standing::Sound
    }

    /// Whether it can be read at all.
    pub fn is_readable(&self) -> bool {
        matches!(self.standing(), Standing::Sound | Standing::Stale)
    }

    pub fn behind(&self) -> u64 {
        self.behind.load(Ordering::Relaxed)
    }

    /// How much reads keep away from it: 0 for what is as good as any.
    pub fn reluctance(&self) -> u8 {
        match self.standing() {
            Standing::Failed | Standing::Missing => 4,
            Standing::Stale => 3,
            Standing::Sound if self.behind() > 0 => 2,
            Standing::Sound => u8::from(self.avoided.load(Ordering::Relaxed)),
        }
    }

    pub fn set_avoided(&self, avoided: bool) {
        self.avoided.store(avoided, Ordering::Relaxed);
    }

    /// The device, if it can be read.
    pub fn device(&self) -> Option<Arc<Latched>> {
        if !self.is_readable() {
            return None;
        }
        self.any_device()
    }

    /// The same, whatever became of it.
    pub fn any_device(&self) -> Option<Arc<Latched>> {
        self.slot.load().device.as_ref().map(|used| used.latched.clone())
    }

    /// The same without the latch.
    pub fn plain(&self) -> Option<Arc<dyn Device>> {
        if !self.is_readable() {
            return None;
        }
        self.slot.load().device.as_ref().map(|used| used.plain.clone())
    }

    /// What takes its place, if that is on its way.
    pub fn target(&self) -> Option<Arc<Latched>> {
        self.slot.load().target.as_ref().map(|used| used.latched.clone())
    }

    /// The same without the latch.
    pub fn plain_target(&self) -> Option<Arc<dyn Device>> {
        self.slot.load().target.as_ref().map(|used| used.plain.clone())
    }

    /// From now on every write goes there, too.
    pub fn set_target(&self, target: Arc<dyn Device>, is: TargetIs) {
        self.target_is_new.store(is == TargetIs::New, Ordering::SeqCst);
        self.target_is_behind.store(is == TargetIs::Behind, Ordering::SeqCst);
        let used = Used::new(target);
        self.slot.rcu(|slot| Slot { device: slot.device.clone(), target: Some(used.clone()) });
    }

    /// No longer.
    pub fn drop_target(&self) -> Option<Arc<dyn Device>> {
        let before = self.slot.rcu(|slot| Slot { device: slot.device.clone(), target: None });
        self.target_is_new.store(false, Ordering::SeqCst);
        self.target_is_behind.store(false, Ordering::SeqCst);
        self.finishing.store(false, Ordering::SeqCst);
        before.target.as_ref().map(|used| used.plain.clone())
    }

    /// Whether its target gets no superblock.
    pub fn target_is_behind(&self) -> bool {
        self.target_is_behind.load(Ordering::SeqCst)
    }

    /// It does again.
    pub fn trust_target(&self) {
        self.target_is_behind.store(false, Ordering::SeqCst);
    }

    /// The target, whose superblock says so by now, is the device from now on. Returns what was there before.
    pub fn take_target(&self) -> Option<Arc<dyn Device>> {
        let before = self.slot.rcu(|slot| match &slot.target {
            Some(target) => Slot { device: Some(target.clone()), target: None },
            None => Slot::clone(slot),
        });
        before.target.as_ref()?;
        self.behind.store(0, Ordering::Relaxed);
        self.set_avoided(false);
        self.set_standing(Standing::Sound);
        self.is_new.store(false, Ordering::SeqCst);
        self.target_is_new.store(false, Ordering::SeqCst);
        before.device.as_ref().map(|used| used.plain.clone())
    }

    pub fn set_new(&self) {
        self.is_new.store(true, Ordering::SeqCst);
    }

    /// A superblock names it.
    pub fn is_written(&self) {
        self.is_new.store(false, Ordering::SeqCst);
        if self.is_sound() {
            self.behind.store(0, Ordering::Relaxed);
        }
    }

    /// A device of which nothing is known but that a chunk names it.
    pub fn unknown(devid: DevId, uuid: Uuid) -> Member {
        let item = DevItem { devid: devid.0.into(), uuid: uuid.into_bytes(), ..DevItem::default() };
        Member::new(item, None, false, 0)
    }

    pub fn count(&self, what: Count) {
        self.counts[what as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn counters(&self) -> ErrorCounters {
        ErrorCounters::from_values(std::array::from_fn(|i| self.counts[i].load(Ordering::Relaxed)))
    }

    pub fn take_counters(&self) -> ErrorCounters {
        ErrorCounters::from_values(std::array::from_fn(|i| self.counts[i].swap(0, Ordering::Relaxed)))
    }

    pub fn add_counters(&self, more: ErrorCounters) {
        for (count, value) in self.counts.iter().zip(more.to_values()) {
            count.fetch_add(value, Ordering::Relaxed);
        }
    }

    pub fn set_counters(&self, to: ErrorCounters) {
        for (count, value) in self.counts.iter().zip(to.to_values()) {
            count.store(value, Ordering::Relaxed);
        }
    }

    /// Counts a block that turned out bad.
    pub fn count_corruption(&self, why: &Corruption) {
        self.count(if why.what == "generation" { Count::Generation } else { Count::Corruption });
    }

    pub fn read(&self, at: Physical, buf: &mut [u8]) -> Result<(), VolumeError> {
        let slot = self.slot.load();
        let used = slot.device.as_ref().filter(|_| self.is_readable());
        let used = used.ok_or(VolumeError::OnMissing { devid: self.devid })?;
        used.latched.read_at(at.0, buf).map_err(|e| self.read_failed(e))
    }

    /// Overwrites what is bad there with what it has to be, past the latch: the volume continues if a bad copy stays bad. A failure is counted. The next flush makes it
    /// durable.
    pub fn heal(&self, at: Physical, good: &[u8]) -> Result<(), VolumeError> {
        let slot = self.slot.load();
        let used = slot.device.as_ref().filter(|_| self.is_readable());
        let used = used.ok_or(VolumeError::OnMissing { devid: self.devid })?;
        let done = used.plain.write_at(at.0, good);
        Ok(done.inspect_err(|_| self.count(Count::Write))?)
    }

    pub fn read_failed(&self, e: DeviceError) -> VolumeError {
        self.count(Count::Read);
        e.into()
    }

    /// The device, if this member may be written.
    pub fn to_write(&self) -> Result<Arc<Latched>, VolumeError> {
        match self.device() {
            None => Err(VolumeError::MissingForWriting { devid: self.devid, uuid: self.uuid }),
            Some(_) if self.seed => Err(VolumeError::ReadOnly),
            Some(device) => Ok(device),
        }
    }

    /// Whether new chunks may be placed on it.
    pub fn takes_chunks(&self) -> bool {
        self.is_sound() && !self.seed
    }

    /// All that a write to it goes to: nothing, if it is lost and nothing takes its place.
    pub fn outputs(self: &Arc<Self>) -> impl Iterator<Item = Output> + use<> {
        let may = self.is_readable() && !self.seed;
        let slot = self.slot.load();
        let output = |used: &Used, is_target| Output { member: self.clone(), device: used.latched.clone(), is_target };
        let own = slot.device.as_ref().filter(|_| may).map(|used| output(used, false));
        let target = slot.target.as_ref().map(|used| output(used, true));
        own.into_iter().chain(target)
    }

    /// What takes its place, to be written to.
    pub fn target_output(self: &Arc<Self>) -> Option<Output> {
        self.outputs().find(|output| output.is_target)
    }

    /// Bytes that the file system may use: the number in the item, as far as the device is long enough.
    pub fn total(&self) -> u64 {
        let total = self.item.lock().total_bytes.get();
        self.any_device().map_or(total, |d| total.min(d.len()))
    }

    /// The offset up to which new chunks may be placed.
    pub fn room_end(&self) -> u64 {
        self.total().min(self.room_end.load(Ordering::SeqCst))
    }

    pub fn info(&self) -> DeviceInfo {
        let item = *self.item.lock();
        let (standing, device) = (self.standing(), self.any_device());
        DeviceInfo {
            devid: self.devid,
            uuid: self.uuid,
            name: device.as_ref().map(|d| d.name()).unwrap_or_default(),
            total: ByteLen(item.total_bytes.get()),
            used: ByteLen(item.bytes_used.get()),
            missing: standing == Standing::Missing,
            seed: self.seed,
            stale: standing == Standing::Stale || self.behind() > 0,
            failed: standing == Standing::Failed,
            behind: self.behind(),
            target: self.target().map(|d| d.name()),
            errors: self.counters(),
            item,
            stats: device.and_then(|d| d.stats()),
        }
    }
}
