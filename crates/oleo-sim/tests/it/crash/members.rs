//! Crashes while a device is added, removed or replaced, beside somebody who writes.
//!
//! Normal path: (1) a run: files are written and synced while the volume's devices change; (2) states of it; (3) each is opened with all devices that say that they are of
//! the volume, as a scan would find them: what was there before, and what was synced, is there; it is sound; (4) the same without each device that may be lost; (5) opened
//! for changes, a replacement is carried on to its end, and all is there without the device that is replaced.

use std::sync::Arc;
use std::time::Instant;

use oleo::devices::ReplaceState;
use oleo::mkfs::Profile;
use oleo::{Device, Image};
use oleo_format::DevId;
use oleo_sim::budget::budget;
use oleo_sim::crash::pages::{Contents, Overlay};
use oleo_sim::crash::record::{Event, Journal, Recorder};
use oleo_sim::crash::states::{Cut, Kinds, Maker, cuts, progress};
use oleo_sim::faulty::{Faulty, Trouble};
use oleo_sim::rng::Rng;
use oleo_sim::script::{Op, Style};
use oleo_volume::{Candidate, read_super};

use crate::crash::run::{Base, DISK_LEN, Quota, Shape, check_without, options};
use crate::crash::tally::{Failure, Tally, in_parallel};

/// The states: after every write, and between any two flushes with any choice of writes, whole and torn.
const KINDS: Kinds = Kinds { flushes: true, writes: true, steps: true, some: 1, torn: 1 };
/// States of each run, chosen by the seed.
const STATES_MAX: usize = 40;
/// Files that are synced beside.
const FILES: usize = 8;
/// Files that are there before.
const BEFORE: u64 = 12;

/// What becomes of the devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    Add,
    /// The last goes.
    Remove,
    /// The last is replaced, in two goes.
    Replace,
    /// The same, but the new device fails in the first go, and is there again in the second.
    ReplaceByOneThatFails,
}

impl Change {
    fn replaces(self) -> bool {
        matches!(self, Change::Replace | Change::ReplaceByOneThatFails)
    }
}

/// A volume, and what is done with it.
#[derive(Clone, Copy, Debug)]
struct Case {
    change: Change,
    profile: Profile,
    disks: usize,
}

fn content(name: &str) -> Vec<u8> {
    let seed = name.bytes().fold(7u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
    Rng::new(seed).bytes(120_000)
}

fn beside(nth: usize) -> String {
    format!("beside{nth}")
}

/// A replacement was over before it could be stopped.
#[derive(Debug)]
struct TooSoon;

impl std::fmt::Display for TooSoon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("it was over too soon")
    }
}

impl std::error::Error for TooSoon {}

/// What was run.
struct Ran {
    case: Case,
    base: Vec<Contents>,
    events: Vec<Event>,
    /// What the base holds.
    seen: Vec<(String, Vec<u8>)>,
}

impl Case {
    fn shape(self) -> Shape {
        Shape { nodesize: 4096, metadata: self.profile, data: Some(self.profile), disks: self.disks, quota: Quota::Off }
    }

    /// The disk that is added, or takes another's place: the last of the states.
    fn new_disk(self) -> usize {
        self.disks
    }

    /// The disk that goes.
    fn old_disk(self) -> usize {
        self.disks - 1
    }

    fn base(self) -> Base {
        let files = (0..BEFORE).flat_map(|n| {
            let (path, len) = (format!("f{n}"), 300_000);
            let written = Op::Write { path: path.clone(), at: 0, len, seed: n, style: Style::Random };
            [Op::Create { path, mode: 0o644 }, written]
        });
        Base::new(self.shape(), &files.chain([Op::Sync]).collect::<Vec<_>>())
    }

    /// Runs it. Whatever fails is a failure of the run.
    fn run(self, seed: u64) -> anyhow::Result<Ran> {
        let mut base = self.base().contents;
        // What was on it before is of nobody.
        let mut new = Contents::zeros(DISK_LEN);
        let noise = Rng::new(seed).bytes(1 << 20);
        (1..6).for_each(|at| new.write(at << 20, &noise));
        base.push(new);
        let journal = Journal::new();
        let disks: Vec<Arc<Recorder>> =
            base.iter().enumerate().map(|(i, contents)| Arc::new(journal.disk(i, contents.clone()))).collect();
        let faulty = Arc::new(Faulty::new(disks[self.new_disk()].clone()));
        let own: Vec<Arc<dyn Device>> =
            disks[..self.disks].iter().map(|disk| disk.clone() as Arc<dyn Device>).collect();
        let image = Image::from_devices(own.clone(), &options(true))?;
        let seen = (0..BEFORE).map(|n| format!("f{n}"));
        let seen = seen.map(|name| Ok((name.clone(), image.read(&name)?))).collect::<anyhow::Result<_>>()?;
        journal.take();
        let candidate = || Candidate::new(faulty.clone(), uuid::Uuid::from_u128(seed.into()), true);
        let write = |image: &Image, nth: usize| -> anyhow::Result<()> {
            image.write(beside(nth), &content(&beside(nth)))?;
            journal.begin(nth);
            image.fs().fsync(&image.find(beside(nth))?)?;
            journal.end(nth);
            Ok(())
        };
        match self.change {
            Change::Add | Change::Remove => std::thread::scope(|threads| -> anyhow::Result<()> {
                let works = threads.spawn(|| -> anyhow::Result<()> {
                    match self.change {
                        Change::Add => drop(image.members().add(candidate()?)?),
                        _ => drop(image.members().remove(DevId(self.disks as u64), false)?),
                    }
                    Ok(())
                });
                (0..FILES).try_for_each(|nth| write(&image, nth))?;
                journal.begin(FILES);
                works.join().map_err(|_| anyhow::anyhow!("it panicked"))??;
                journal.end(FILES);
                Ok(())
            })?,
            Change::Replace => {
                image.replacer().start(DevId(self.disks as u64), candidate()?, false)?;
                std::thread::scope(|threads| -> anyhow::Result<()> {
                    let runs = threads.spawn(|| image.replacer().run());
                    (0..FILES / 2).try_for_each(|nth| write(&image, nth))?;
                    image.replacer().interrupt();
                    Ok(runs.join().map_err(|_| anyhow::anyhow!("it panicked"))??)
                })?;
                if image.replacer().status().state == ReplaceState::Suspended {
                    image.replacer().resume()?;
                }
                std::thread::scope(|threads| -> anyhow::Result<()> {
                    let runs = threads.spawn(|| image.replacer().run());
                    (FILES / 2..FILES).try_for_each(|nth| write(&image, nth))?;
                    journal.begin(FILES);
                    runs.join().map_err(|_| anyhow::anyhow!("it panicked"))??;
                    journal.end(FILES);
                    Ok(())
                })?;
            }
            Change::ReplaceByOneThatFails => {
                image.replacer().start(DevId(self.disks as u64), candidate()?, false)?;
                std::thread::scope(|threads| -> anyhow::Result<()> {
                    let runs = threads.spawn(|| image.replacer().run());
                    // The cursor on disk is behind something: that is what the target is not believed later.
                    while image.replacer().status().on_disk == 0 && !runs.is_finished() {
                        std::thread::yield_now();
                    }
                    image.replacer().interrupt();
                    Ok(runs.join().map_err(|_| anyhow::anyhow!("it panicked"))??)
                })?;
                anyhow::ensure!(image.replacer().status().state == ReplaceState::Suspended, TooSoon);
                faulty.fail(Trouble::Writes);
                (0..FILES / 2).try_for_each(|nth| write(&image, nth))?;
                drop(image);
                faulty.fail(Trouble::None);
                let all = own.into_iter().chain([faulty.clone() as Arc<dyn Device>]).collect();
                let image = Image::from_devices(all, &options(true))?;
                image.replacer().resume()?;
                std::thread::scope(|threads| -> anyhow::Result<()> {
                    let runs = threads.spawn(|| image.replacer().run());
                    (FILES / 2..FILES).try_for_each(|nth| write(&image, nth))?;
                    journal.begin(FILES);
                    runs.join().map_err(|_| anyhow::anyhow!("it panicked"))??;
                    journal.end(FILES);
                    Ok(())
                })?;
            }
        }
        Ok(Ran { case: self, base, events: journal.take(), seen })
    }
}

/// The disks that say that they are of a volume, by their numbers.
fn found(state: &[Contents]) -> Vec<usize> {
    let is_one = |contents: &Contents| read_super(&Overlay::read_only("disk", contents.clone())).is_ok();
    (0..state.len()).filter(|&nth| is_one(&state[nth])).collect()
}

fn some(state: &[Contents], which: &[usize]) -> Vec<Arc<Overlay>> {
    which.iter().map(|&nth| Arc::new(Overlay::new(&format!("disk {nth}"), state[nth].clone()))).collect()
}

fn open(disks: &[Arc<Overlay>], write: bool, degraded: bool) -> oleo::Result<Image> {
    let devices = disks.iter().map(|disk| disk.clone() as Arc<dyn Device>).collect();
    Image::from_devices(devices, &options(write).degraded(degraded))
}

impl Ran {
    /// What a volume lacks of what has to be there at a cut, and what else is wrong with it.
    fn must_hold(&self, cut: &Cut, image: &Image, is_whole: bool) -> anyhow::Result<()> {
        for (name, bytes) in &self.seen {
            anyhow::ensure!(image.read(name)? == *bytes, "{name} is another");
        }
        let synced = progress(&self.events, cut.at).done.min(FILES);
        for nth in 0..synced {
            anyhow::ensure!(image.read(beside(nth))? == content(&beside(nth)), "{} is another", beside(nth));
        }
        if is_whole {
            let wrong = check_without(image, &oleo_sim::crash::loss::Loss(Vec::new()));
            anyhow::ensure!(wrong.is_empty(), "check: {wrong:?}");
        }
        Ok(())
    }

    fn verify(&self, cut: &Cut, state: &[Contents]) -> anyhow::Result<()> {
        use anyhow::Context;
        let case = self.case;
        let is_done = progress(&self.events, cut.at).done > FILES;
        let mut there = found(state);
        if is_done {
            match case.change {
                Change::Add => anyhow::ensure!(there.len() == case.disks + 1, "the new one is not known"),
                _ => there.retain(|&nth| nth != case.old_disk()),
            }
        }
        let image = open(&some(state, &there), false, false).context("opened for reading")?;
        self.must_hold(cut, &image, true).context("opened for reading")?;
        // Of those that the volume needs, each may be lost.
        let count = image.volume().devices().len();
        drop(image);
        if case.profile.losses_max() > 0 {
            for lost in &there {
                let left: Vec<usize> = there.iter().copied().filter(|nth| nth != lost).collect();
                let image = open(&some(state, &left), false, true).with_context(|| format!("without disk {lost}"))?;
                self.must_hold(cut, &image, false).with_context(|| format!("without disk {lost}"))?;
            }
        }
        // Life goes on.
        let disks = some(state, &there);
        let image = open(&disks, true, false).context("opened for changes")?;
        self.must_hold(cut, &image, true).context("opened for changes")?;
        image.write("after", &content("after"))?;
        image.sync()?;
        let suspended = image.replacer().status().state == ReplaceState::Suspended;
        anyhow::ensure!(case.change.replaces() || !suspended, "nothing is replaced");
        if suspended {
            image.replacer().resume().context("resumed")?;
            image.replacer().run().context("carried on")?;
        }
        image.close().context("closed")?;
        let state: Vec<Contents> = disks.iter().map(|disk| disk.contents()).collect();
        let now = found(&state);
        let left: Vec<usize> = match suspended {
            true => now.iter().copied().filter(|&nth| there[nth] != case.old_disk()).collect(),
            false => now,
        };
        let image = open(&some(&state, &left), false, false).context("closed and opened")?;
        anyhow::ensure!(image.volume().devices().len() == count, "another number of devices");
        anyhow::ensure!(image.read("after")? == content("after"), "what was written afterwards");
        self.must_hold(cut, &image, true).context("closed and opened")
    }
}

fn verify(case: Case, seed: u64) -> Tally {
    let mut tally = Tally { runs: 1, ..Tally::default() };
    let mut failed = |wrong: String, state: String| {
        tally.failures.push(Failure { wrong: vec![wrong], state, script: Vec::new() });
    };
    let begun = Instant::now();
    // A replacement may be over before it can be stopped.
    let ran = (0..20).map(|_| case.run(seed)).find(|ran| !ran.as_ref().is_err_and(|e| e.is::<TooSoon>()));
    let ran = match ran.unwrap_or_else(|| Err(TooSoon.into())) {
        Ok(ran) => ran,
        Err(e) => {
            failed(format!("while running: {e:#}"), format!("{case:?}, seed {seed}"));
            return tally;
        }
    };
    let time_running = begun.elapsed();
    let mut rng = Rng::new(seed);
    let mut all = cuts(&ran.events, &KINDS, &mut rng);
    while all.len() > STATES_MAX {
        // Not the last: it is done then.
        all.remove(rng.below(all.len() as u64 - 1) as usize);
    }
    let mut maker = Maker::new(&ran.base, &ran.events);
    for cut in &all {
        let state = maker.make(cut);
        if let Err(e) = ran.verify(cut, &state) {
            let supers: Vec<String> = state
                .iter()
                .map(|contents| match read_super(&Overlay::read_only("disk", contents.clone())) {
                    Ok(sb) => format!("{} at {}, log {:x}", sb.devid(), sb.generation(), sb.log_root.get()),
                    Err(_) => "none".to_owned(),
                })
                .collect();
            let when = progress(&ran.events, cut.at);
            failed(format!("{e:#}"), format!("{case:?}, seed {seed}, {cut:?}, {when:?}, superblocks {supers:?}"));
        }
    }
    tally.time_running = time_running;
    tally.states = all.len() as u64;
    tally.promises = FILES as u64;
    tally
}

/// Cases of each change in CI.
const CASES_CI: u64 = 2;

fn cases(what: &str, change: Change, on: &[(Profile, usize)], first: u64) {
    let seeds = budget().seeds(first, CASES_CI.min(on.len() as u64), 2 * on.len() as u64);
    let tally = in_parallel((seeds.end - seeds.start) as usize, |i| {
        // With each seed of the run other cases come first.
        let (profile, disks) = on[(budget().seed as usize + i) % on.len()];
        verify(Case { change, profile, disks }, seeds.start + i as u64)
    });
    tally.must_be_clean(what, |_| Tally::default());
    tally.must_have_tested(100 * FILES as u64, 0);
}

/// Goal: whenever the power fails while a device is added, the volume is whole with the devices that say that they are of it, and so without any that may be lost.
#[test]
fn while_a_device_is_added() {
    let on = [(Profile::Single, 1), (Profile::Raid1, 2), (Profile::Raid5, 3)];
    cases("a device is added", Change::Add, &on, 60_000);
}

/// Goal: the same while one is removed; once it is, the volume does without it.
#[test]
fn while_a_device_is_removed() {
    let on = [(Profile::Single, 2), (Profile::Raid1, 3), (Profile::Raid5, 4)];
    cases("a device is removed", Change::Remove, &on, 61_000);
}

/// Goal: the same while one is replaced; what was cut short is carried on, and nothing is needed of the old device then.
#[test]
fn while_a_device_is_replaced() {
    let on = [(Profile::Single, 1), (Profile::Raid1, 2), (Profile::Raid5, 3)];
    cases("a device is replaced", Change::Replace, &on, 62_000);
}

/// Goal: the same by a device that fails meanwhile and is there again: what it missed is not believed to be there, wherever the power fails then.
#[test]
fn while_a_device_is_replaced_by_one_that_fails() {
    let on = [(Profile::Single, 1), (Profile::Raid1, 2), (Profile::Raid5, 3)];
    cases("a device is replaced by one that fails", Change::ReplaceByOneThatFails, &on, 63_000);
}
