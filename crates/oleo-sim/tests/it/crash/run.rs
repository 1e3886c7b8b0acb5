//! Runs scripts on the library over recording devices, and verifies the states after a crash.
//!
//! Normal path: (1) [`Base::new`] makes a file system in memory with the contents before the run; (2) [`Base::run`]
//! runs a script, recording each moment; (3) [`Run::cuts`] names states; (4) [`Run::verify`] opens each as any program
//! would, which replays the log, has it checked, reads everything, and compares it with the model.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use anyhow::Context;
use oleo::balance::{BalanceEnd, BalanceState};
use oleo::fs::KeepSize;
use oleo::mkfs::{MkfsOptions, Profile};
use oleo::{Image, OpenOptions};
use oleo_device::Device;
use oleo_format::SuperBlock;
use oleo_fs::{Clock, FsError, FsOptions, Time};
use oleo_sim::crash::loss::Loss;
use oleo_sim::crash::model::{Commit, History, Step, verify};
use oleo_sim::crash::order::Careless;
use oleo_sim::crash::pages::{Contents, Overlay};
use oleo_sim::crash::promises::{Promises, is_owed};
use oleo_sim::crash::record::{Counts, Event, Fault, Journal};
use oleo_sim::crash::seen::Seen;
use oleo_sim::crash::states::{Cut, Kinds, Progress, cuts, progress};
use oleo_sim::rng::Rng;
use oleo_sim::script::Op;
use oleo_space::FaultSpec;

use crate::ours::{Mover, OleoTree, Ours};

/// Moments are distinguished by their times: each look at the clock is a millisecond later.
struct Ticking(AtomicI64);

impl Clock for Ticking {
    fn now(&self) -> Time {
        let ms = self.0.fetch_add(1, Ordering::Relaxed);
        Time { sec: 1_700_000_000 + ms / 1000, nsec: u32::try_from(ms % 1000).unwrap_or(0) * 1_000_000 }
    }
}

/// How quota is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    Off,
    Full,
    Simple,
}

/// What a file system is made like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub nodesize: u32,
    pub metadata: Profile,
    /// `None`: as made by default.
    pub data: Option<Profile>,
    pub disks: usize,
    /// Quota groups are counted; the checker compares them in every state.
    pub quota: Quota,
}

impl Shape {
    /// One copy of everything: nothing heals.
    pub const BARE: Shape =
        Shape { nodesize: 4096, metadata: Profile::Single, data: None, disks: 1, quota: Quota::Off };
    /// The same with quota on.
    pub const QUOTA: Shape = Shape { quota: Quota::Full, ..Shape::BARE };
    /// The same with simple quotas.
    pub const SIMPLE_QUOTA: Shape = Shape { quota: Quota::Simple, ..Shape::BARE };
    /// The default shape.
    pub const USUAL: Shape = Shape { nodesize: 16384, metadata: Profile::Dup, ..Shape::BARE };
    /// On two disks that fail independently.
    pub const PAIR: Shape = Shape { metadata: Profile::Raid1, disks: 2, ..Shape::BARE };
    /// Parity, small blocks: many sectors share columns.
    pub const RAID5: Shape = Shape { disks: 4, ..Shape::with_parity(Profile::Raid5) };
    /// The same with two.
    pub const RAID6: Shape = Shape { disks: 5, ..Shape::with_parity(Profile::Raid6) };

    const fn with_parity(profile: Profile) -> Shape {
        Shape { metadata: profile, data: Some(profile), ..Shape::BARE }
    }

    /// The most disks that may be lost.
    pub fn losses_max(self) -> usize {
        match self.metadata {
            Profile::Raid6 => 2,
            Profile::Raid1 | Profile::Raid5 => 1,
            _ => 0,
        }
    }
}

/// The devices' length: enough for a second superblock.
pub const DISK_LEN: u64 = 128 << 20;

/// The mistake of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The devices fail.
    Device(Fault),
    /// Space is refused.
    NoSpace(FaultSpec),
    /// The devices get requests in another order.
    Order(Careless),
    /// `fsync` and `fdatasync` do nothing.
    FsyncLies,
    /// `fsync` and `fdatasync` find no room.
    FsyncRefuses,
    /// Flags to keep changes do nothing.
    KeepLies,
}

/// A file system before a run.
pub struct Base {
    pub contents: Vec<Contents>,
    /// What moves groups in runs.
    pub mover: Mover,
    /// What a commit frees is discarded.
    pub discard: bool,
    /// There is next to no room, so that promises may be refused.
    pub full: bool,
}

/// How states are opened.
pub fn options(write: bool) -> OpenOptions {
    let clock = Arc::new(Ticking(AtomicI64::new(0)));
    let fs = FsOptions::default().clock(clock);
    OpenOptions::default()
        .access(if write { oleo::Access::Write } else { oleo::Access::ReadOnly })
        .cache_bytes(4 << 20)
        .fs(fs)
}

fn devices(disks: impl IntoIterator<Item = impl Device + 'static>) -> Vec<Arc<dyn Device>> {
    disks.into_iter().map(|d| Arc::new(d) as Arc<dyn Device>).collect()
}

pub fn overlays(contents: &[Contents], write: bool) -> Vec<Arc<dyn Device>> {
    let make = if write { Overlay::new } else { Overlay::read_only };
    devices(contents.iter().enumerate().map(|(i, c)| make(&format!("disk {i}"), c.clone())))
}

/// Opens a state.
pub fn open(contents: &[Contents], write: bool) -> oleo::Result<Image> {
    Image::from_devices(overlays(contents, write), &options(write))
}

/// Everything that is to be seen in an open file system.
pub fn look(image: &Image, before: Option<&Seen>) -> anyhow::Result<Seen> {
    Seen::of(&OleoTree::new(image)?, before)
}

/// The superblock in use: the first that is whole. `None` if there is none.
pub fn super_block(contents: &[Contents]) -> Option<SuperBlock> {
    const PLACES: [u64; 2] = [64 << 10, 64 << 20];
    const LEN: usize = 4096;
    let read = |(disk, at): (&Contents, u64)| {
        let mut bytes = [0; LEN];
        disk.read(at, &mut bytes);
        SuperBlock::read(&bytes).ok()
    };
    let of_disk = |disk| PLACES.iter().find_map(|at| read((disk, *at)));
    contents.iter().filter_map(of_disk).max_by_key(|sb| sb.generation.get())
}

impl Base {
    /// A file system in which `setup` was done and committed.
    pub fn new(shape: Shape, setup: &[Op]) -> Base {
        Base::with_seed(shape, setup, [7; 32])
    }

    /// The same with other ids.
    pub fn with_seed(shape: Shape, setup: &[Op], seed: [u8; 32]) -> Base {
        let empty: Vec<Contents> = (0..shape.disks).map(|_| Contents::zeros(DISK_LEN)).collect();
        let journal = Journal::new();
        let disks: Vec<_> = empty.into_iter().enumerate().map(|(i, c)| Arc::new(journal.disk(i, c))).collect();
        let devices: Vec<Arc<dyn Device>> = disks.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
        let mkfs = MkfsOptions::default().nodesize(Some(shape.nodesize)).metadata(Some(shape.metadata)).seed(seed);
        let mkfs = mkfs.data(shape.data);
        oleo::mkfs::make(&devices, &mkfs).unwrap();
        let mut ours = Ours::around(Image::from_devices(devices, &options(true)).unwrap());
        if shape.quota == Quota::Simple {
            ours.image().quota_enable_simple().unwrap();
        }
        for op in setup {
            ours.try_apply(op).unwrap_or_else(|e| panic!("{op:?}: {e}"));
        }
        if shape.quota == Quota::Full {
            ours.image().quota_enable().unwrap();
        }
        ours.close().unwrap();
        let mut contents: Vec<Contents> = disks.iter().map(|d| d.contents()).collect();
        contents.iter_mut().for_each(Contents::settle);
        Base { contents, mover: Mover::Engine, discard: false, full: false }
    }

    /// The same file system, filled up until all that is left is `room` bytes that a file has given back.
    pub fn filled(&self, room: u64) -> Base {
        let journal = Journal::new();
        let disks: Vec<_> =
            self.contents.iter().enumerate().map(|(i, c)| Arc::new(journal.disk(i, c.clone()))).collect();
        let all = disks.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
        let image = Image::from_devices(all, &options(true)).unwrap();
        // Preallocated beyond the end: nothing to look at, and the space is taken.
        let take = |name: &str, len: u64, step: u64| {
            drop(image.create_file(name).unwrap());
            let file = image.find(name).unwrap();
            let mut at = 0;
            while at < len && image.fs().preallocate(&file, at, step, KeepSize::Yes).is_ok() {
                at += step;
            }
        };
        if room > 0 {
            take("room", room, room);
        }
        take("filler", u64::MAX, 1 << 20);
        take("rest", u64::MAX, 4096);
        if room > 0 {
            image.fs().unlink(&image.top().unwrap(), b"room").unwrap();
        }
        image.clean().unwrap();
        image.sync().unwrap();
        image.close().unwrap();
        let mut contents: Vec<Contents> = disks.iter().map(|d| d.contents()).collect();
        contents.iter_mut().for_each(Contents::settle);
        Base { contents, mover: Mover::Engine, discard: false, full: true }
    }

    /// Runs a script, with something wrong from its first step on.
    pub fn run(&self, script: &[Op], wrong: Option<Wrong>) -> Run {
        let fault = match wrong {
            Some(Wrong::Device(fault)) => Some(fault),
            _ => None,
        };
        let journal = Journal::new();
        let disks = self.contents.iter().enumerate().map(|(i, c)| journal.disk(i, c.clone()));
        let how = options(true).discard(self.discard);
        let image = Image::from_devices(devices(disks), &how).unwrap_or_else(|e| panic!("the base: {e}"));
        let mut moments = vec![look(&image, None).unwrap()];
        let mut durable = vec![image.fs().engine().durable().0];
        if let Some(Wrong::NoSpace(faults)) = wrong {
            image.fs().engine().space().fail_requests(faults);
        }
        let may_fail = fault.is_some() || matches!(wrong, Some(Wrong::NoSpace(faults)) if faults.blocks);
        // What makes it right to refuse a promise.
        let planned = fault.is_some() || matches!(wrong, Some(Wrong::NoSpace(_))) || self.full;
        let mut ours = Ours::around(image).moved_by(self.mover);
        let (mut steps, mut results, mut broken) = (Vec::new(), Vec::new(), None);
        let mut promises = Promises::default();
        journal.take();
        journal.inject(fault);
        for (i, op) in script.iter().enumerate() {
            let before = &moments[moments.len() - 1];
            journal.begin(i);
            let is_fsync = matches!(op, Op::Fsync { .. } | Op::Fdatasync { .. });
            let result = match wrong {
                Some(Wrong::FsyncLies) if is_fsync => Ok(()),
                Some(Wrong::FsyncRefuses) if is_fsync => Err(FsError::NoSpace),
                Some(Wrong::KeepLies) if matches!(op, Op::Keep { .. }) => Ok(()),
                _ => ours.try_apply(op),
            };
            journal.end(i);
            // Errors with these numbers are not refusals: they come from us or the device.
            let is_fault = result.as_ref().is_err_and(|e| [5, 117].contains(&e.errno()));
            if is_fault && !may_fail {
                broken =
                    Some(format!("{op:?}: {}", result.as_ref().err().map(ToString::to_string).unwrap_or_default()));
            }
            if let Some(e) = result.as_ref().err().filter(|_| is_owed(op, before) && !planned) {
                broken = Some(format!("{op:?}: the promise is refused: {e}"));
            }
            let after = look(ours.image(), Some(before)).unwrap_or_else(|e| {
                if !may_fail {
                    broken = Some(format!("after {op:?}: {e:#}"));
                }
                before.clone()
            });
            let promise = if result.is_ok() { promises.of(op, &after) } else { None };
            steps.push(Step { label: format!("{op:?}"), promise });
            results.push(result);
            moments.push(after);
            durable.push(ours.image().fs().engine().durable().0);
            if broken.is_some() {
                break;
            }
        }
        let counts = journal.counts();
        let struck = journal.struck();
        let failed = ours.image().fs().poisoned_by();
        let asked = ours.image().fs().engine().space().requests_counted();
        let history = History { moments, steps, durable, by_kernel: false, by_byte: false };
        Run {
            base: self.contents.clone(),
            events: match wrong {
                Some(Wrong::Order(careless)) => careless.order(journal.take()),
                _ => journal.take(),
            },
            history,
            results,
            counts,
            struck,
            asked,
            failed,
            broken,
            resumed: AtomicU64::new(0),
            discard: self.discard,
        }
    }
}

/// A script that was run.
pub struct Run {
    pub base: Vec<Contents>,
    pub events: Vec<Event>,
    pub history: History,
    pub results: Vec<Result<(), FsError>>,
    pub counts: Counts,
    /// The fault has happened.
    pub struck: bool,
    /// Requests for space of the sorts that were to be refused.
    pub asked: u64,
    /// Why the file system refuses changes at the end, if it does.
    pub failed: Option<String>,
    /// An error that no script may meet.
    pub broken: Option<String>,
    /// States so far in which a balance was found, and carried on.
    pub resumed: AtomicU64,
    /// States are opened with discards, too.
    pub discard: bool,
}

/// How a state is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// For writing.
    Write,
    /// For reading only.
    Read,
    /// For writing; afterwards the volume is changed, closed and opened once more.
    GoOn,
}

impl Run {
    /// States of this run.
    pub fn cuts(&self, kinds: &Kinds, rng: &mut Rng) -> Vec<Cut> {
        cuts(&self.events, kinds, rng)
    }

    /// The progress at a cut.
    pub fn progress(&self, cut: &Cut) -> Progress {
        progress(&self.events, cut.at)
    }

    /// The contents of its superblock.
    pub fn commit_of(&self, state: &[Contents]) -> Option<Commit> {
        let sb = super_block(state)?;
        Some(Commit { generation: sb.generation.get(), log: sb.log_root.get() != 0 })
    }

    /// Promises that were made before a cut.
    pub fn promises(&self, cut: &Cut) -> u64 {
        self.history.steps[..self.progress(cut).done].iter().filter(|s| s.promise.is_some()).count() as u64
    }

    /// How many events are such.
    pub fn count(&self, what: impl Fn(&Event) -> bool) -> u64 {
        self.events.iter().filter(|e| what(e)).count() as u64
    }

    /// Everything wrong with what the crash left.
    pub fn verify(&self, cut: &Cut, state: &[Contents], way: Way) -> Vec<String> {
        let fail = |what: &str, e: &dyn std::fmt::Display| vec![format!("{what}: {e:#}")];
        let Some(commit) = self.commit_of(state) else { return fail("superblock", &"none is whole") };
        let disks = overlays(state, way != Way::Read);
        // As the crash left it, the log not applied.
        let raw = options(false).no_log_replay(true);
        match Image::from_devices(disks.clone(), &raw) {
            Ok(image) => {
                let wrong = check(&image);
                if !wrong.is_empty() {
                    return wrong.into_iter().map(|w| format!("check, before the log is applied: {w}")).collect();
                }
            }
            Err(e) => return fail("it does not open without its log", &e),
        }
        let how = options(way != Way::Read).discard(self.discard && way != Way::Read);
        let image = match Image::from_devices(disks.clone(), &how) {
            Ok(image) => image,
            Err(e) => return fail("it does not open", &e),
        };
        let last = self.history.moments.last();
        let found = match look(&image, last) {
            Ok(found) => found,
            Err(e) => return fail("it cannot be read", &e),
        };
        let mut wrong = verify(&self.history, self.progress(cut), Some(commit), &found);
        wrong.extend(check(&image).into_iter().map(|w| format!("check: {w}")));
        if way != Way::Read && wrong.is_empty() {
            match resume(&image, &found) {
                Ok(resumed) => drop(self.resumed.fetch_add(resumed.into(), Ordering::Relaxed)),
                Err(e) => wrong.push(format!("the balance does not go on: {e:#}")),
            }
        }
        if way == Way::GoOn && wrong.is_empty() {
            wrong = go_on(image, disks).err().map(|e| format!("life does not go on: {e:#}")).into_iter().collect();
        }
        wrong
    }
}

impl Run {
    /// Everything wrong with what a crash left of the disks that are not lost afterwards. `seen`: what is to be seen with all disks, the log not
    /// applied.
    pub fn verify_without(&self, cut: &Cut, state: &[Contents], loss: &Loss, seen: &Seen) -> Vec<String> {
        let fail = |what: &str, e: &dyn std::fmt::Display| vec![format!("{what}: {e:#}")];
        let left = loss.leaves(state);
        let Some(commit) = self.commit_of(&left) else { return fail("superblock", &"none is whole") };
        let raw = options(false).degraded(true).no_log_replay(true);
        match Image::from_devices(overlays(&left, false), &raw) {
            Ok(image) => {
                // Without those that have the newest superblock it is an older state.
                let is_newest = self.commit_of(state) == Some(commit);
                match look(&image, Some(seen)) {
                    Ok(found) if found == *seen || !is_newest => {}
                    Ok(_) => return fail("before the log is applied", &"other contents than with all disks"),
                    Err(e) => return fail("it cannot be read, before the log is applied", &e),
                }
                let wrong = check_without(&image, loss);
                if !wrong.is_empty() {
                    return wrong.into_iter().map(|w| format!("check, before the log is applied: {w}")).collect();
                }
            }
            Err(e) => return fail("it does not open without its log", &e),
        }
        let image = match Image::from_devices(overlays(&left, false), &options(false).degraded(true)) {
            Ok(image) => image,
            Err(e) => return fail("it does not open", &e),
        };
        let found = match look(&image, self.history.moments.last()) {
            Ok(found) => found,
            Err(e) => return fail("it cannot be read", &e),
        };
        verify(&self.history, self.progress(cut), Some(commit), &found)
    }
}

/// What a state shows with its log not applied.
pub fn look_before_log(state: &[Contents]) -> anyhow::Result<Seen> {
    let image = Image::from_devices(overlays(state, false), &options(false).no_log_replay(true))?;
    look(&image, None)
}

/// What the independent checker finds, data included. A copy of the superblock may be torn or old: that is a crash's good right.
pub fn check(image: &Image) -> Vec<String> {
    check_without(image, &Loss(Vec::new()))
}

/// The same, but that lost disks have no good copies of what was on them.
pub fn check_without(image: &Image, loss: &Loss) -> Vec<String> {
    use oleo::check::{CheckOptions, Finding, Kind, volume};
    let how = CheckOptions::default().threads(1).data(true);
    let is_lost = |f: &&Finding| {
        let disk = f.at.device.map(|devid| devid as usize - 1);
        f.kind == Kind::DataMirror && disk.is_some_and(|disk| loss.0.contains(&disk))
    };
    match volume(image.volume(), &how) {
        Ok(report) => {
            let counts = report.findings.iter().filter(|f| !matches!(f.kind, Kind::SuperMirror | Kind::SuperStale));
            counts.filter(|f| !is_lost(f)).map(|f| format!("{f:?}")).collect()
        }
        Err(e) => vec![format!("cannot run: {e}")],
    }
}

/// Goal: a balance that was cut short is found paused, is carried on to its end, and changes nothing that is to be seen. Whether there
/// was one.
fn resume(image: &Image, found: &Seen) -> anyhow::Result<bool> {
    if image.balance_status().state != BalanceState::Paused {
        return Ok(false);
    }
    match image.balance_resume()? {
        BalanceEnd::Done => {}
        // It fails as it would without a crash.
        BalanceEnd::Failed { errno, .. } if errno == oleo_fs::errno::ENOSPC => {}
        end => anyhow::bail!("{end:?}"),
    }
    anyhow::ensure!(image.balance_status().state == BalanceState::Idle, "it is still there");
    anyhow::ensure!(look(image, Some(found))? == *found, "it has changed what is to be seen");
    let wrong = check(image);
    anyhow::ensure!(wrong.is_empty(), "check: {wrong:?}");
    Ok(true)
}

/// Goal: what a crash left can be used. Method: a file is written and synced, everything dead cleaned up, and all is as it was
/// and that file there when it is opened again.
pub fn go_on(image: Image, disks: Vec<Arc<dyn Device>>) -> anyhow::Result<()> {
    let written = image.write("after the crash", &[9; 9000]);
    let synced = written.and_then(|()| Ok(image.fs().fsync(&image.find("after the crash")?)?));
    match synced {
        Ok(()) => {}
        // A full disk now reports errors to writers and to sync; what it could not take is given up.
        Err(e) if e.to_string().contains("no space left") => {
            let _ = image.fs().unlink(&image.top()?, b"after the crash");
        }
        Err(e) => return Err(e).context("writing"),
    }
    image.clean().context("cleaning")?;
    let want = look(&image, None)?;
    image.close().context("closing")?;
    let image = Image::from_devices(disks, &options(false))?;
    anyhow::ensure!(look(&image, Some(&want))? == want, "not what was closed");
    let wrong = check(&image);
    anyhow::ensure!(wrong.is_empty(), "check: {wrong:?}");
    Ok(())
}
