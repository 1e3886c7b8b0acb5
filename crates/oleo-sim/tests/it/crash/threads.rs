//! Several threads on one volume, beside timed commits, write-back, cleaning, snapshots that come and go. So a crash
//! comes while several fsyncs, a commit and a log commit are under way together.
//!
//! Each thread works in a directory of its own, in which nobody else changes anything: the rules of the model hold for
//! it alone, except those about commits, since their order is unknown. A write under way may be there in any part.
//! those about commits, since nobody knows which came when. A write under way may be there in any part.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use oleo::Image;
use oleo::fs::Follow;
use oleo_device::Device;
use oleo_sim::budget::budget;
use oleo_sim::crash::model::{History, Step, verify};
use oleo_sim::crash::pages::Contents;
use oleo_sim::crash::promises::{Promises, is_owed};
use oleo_sim::crash::record::{Event, Fault, Journal};
use oleo_sim::crash::seen::Seen;
use oleo_sim::crash::states::{Cut, Kinds, Maker, Progress, cuts};
use oleo_sim::rng::Rng;
use oleo_sim::script::{Mix, Op, generate};

use crate::crash::run::{Base, Shape, check, go_on, options, overlays, super_block};
use crate::crash::tally::{Failure, Tally, in_parallel, say};
use crate::ours::{OleoTree, Ours};

const KINDS: Kinds = Kinds { flushes: true, writes: true, steps: true, some: 2, torn: 2 };
/// Threads at work.
const THREADS: usize = 4;
/// The steps of thread n are numbered from n times this on.
const STRIDE: usize = 1 << 32;
/// Blocks that one step of the cleaner takes apart.
const CLEAN_BLOCKS: usize = 64;

/// What the threads have done.
struct Run {
    base: Vec<Contents>,
    events: Vec<Event>,
    histories: Vec<History>,
    refused: Vec<String>,
    snapshots: u64,
}

fn name(thread: usize) -> String {
    format!("t{thread}")
}

/// A directory for each thread in a subvolume.
fn setup() -> Vec<Op> {
    let work = Op::Subvol { path: "work".into() };
    let dirs = (0..THREADS).map(|n| Op::Mkdir { path: format!("work/{}", name(n)), mode: 0o755 });
    [work].into_iter().chain(dirs).chain([Op::Sync]).collect()
}

fn view(image: &Image, thread: usize) -> Result<OleoTree<'_>> {
    let path = format!("work/{}", name(thread));
    let top = image.fs().resolve(&image.top()?, path.as_bytes(), Follow::No);
    Ok(OleoTree::below(image, top.with_context(|| path)?))
}

/// One thread's steps; returns what it saw, and which promises were refused.
fn work(image: &Arc<Image>, thread: usize, script: &[Op], journal: &Journal) -> Result<(History, Vec<String>)> {
    let mut ours = Ours::sharing(image.clone(), &format!("work/{}", name(thread)));
    let mut moments = vec![Seen::of(&view(image, thread)?, None)?];
    let (mut steps, mut refused, mut promises) = (Vec::new(), Vec::new(), Promises::default());
    for (nth, op) in script.iter().enumerate() {
        let before = moments.last().context("one at least")?;
        journal.begin(thread * STRIDE + nth);
        let result = ours.try_apply(op);
        journal.end(thread * STRIDE + nth);
        let after = Seen::of(&view(image, thread)?, Some(before)).with_context(|| format!("after {op:?}"))?;
        if let Err(e) = &result
            && (is_owed(op, before) || [5, 30, 117].contains(&e.errno()))
        {
            refused.push(format!("thread {thread}, {op:?}: {e}"));
        }
        let promise = if result.is_ok() { promises.of(op, &after) } else { None };
        steps.push(Step { label: format!("{op:?}"), promise });
        moments.push(after);
    }
    Ok((History { moments, steps, durable: Vec::new(), by_kernel: false, by_byte: true }, refused))
}

/// Makes and deletes snapshots; how many.
fn snapshots(image: &Arc<Image>, stop: &AtomicBool) -> Result<u64> {
    let mut ours = Ours::sharing(image.clone(), "");
    let mut made = 0;
    while !stop.load(Ordering::Relaxed) {
        let path = |n: u64| format!("snapshot{n}");
        ours.try_apply(&Op::Snapshot { from: "work".into(), to: path(made), read_only: made.is_multiple_of(2) })?;
        if made > 0 {
            ours.try_apply(&Op::DeleteSubvol { path: path(made - 1) })?;
        }
        made += 1;
        std::thread::sleep(Duration::from_millis(7));
    }
    Ok(made)
}

impl Run {
    fn new(base: &Base, seed: u64, steps: usize, fault: Option<Fault>) -> Result<Run> {
        let journal = Journal::new();
        let disks: Vec<Arc<dyn Device>> = (0..base.contents.len())
            .map(|i| Arc::new(journal.disk(i, base.contents[i].clone())) as Arc<dyn Device>)
            .collect();
        let how = options(true).discard(base.discard);
        let image = Arc::new(Image::from_devices(disks, &how)?);
        journal.take();
        journal.inject(fault);
        let stop = AtomicBool::new(false);
        // Background work, repeated until the others are done.
        let background = |pause: u64, act: &(dyn Fn() -> Result<()> + Sync)| -> Result<()> {
            while !stop.load(Ordering::Relaxed) {
                act()?;
                std::thread::sleep(Duration::from_millis(pause));
            }
            Ok(())
        };
        let fs = image.fs();
        let (done, made, beside) = std::thread::scope(|scope| {
            let beside = [
                scope.spawn(|| background(9, &|| Ok(fs.sync().map(drop)?))),
                scope.spawn(|| background(4, &|| Ok(fs.commit().map(drop)?))),
                scope.spawn(|| background(2, &|| Ok(fs.write_back().map(drop)?))),
                scope.spawn(|| background(5, &|| Ok(fs.clean(CLEAN_BLOCKS).map(drop)?))),
            ];
            let snapshots = scope.spawn(|| snapshots(&image, &stop));
            let workers: Vec<_> = (0..THREADS)
                .map(|n| {
                    let (image, journal) = (&image, &journal);
                    let mix = Mix {
                        steps,
                        promises: 30,
                        keeps: 3,
                        subvolumes: false,
                        file_len_max: 40_000,
                        names_max: 10,
                        ..Mix::default()
                    };
                    scope.spawn(move || work(image, n, &generate(seed * 100 + n as u64, &mix), journal))
                })
                .collect();
            let done: Vec<_> = workers.into_iter().map(|w| w.join().unwrap()).collect();
            stop.store(true, Ordering::Relaxed);
            let beside: Result<Vec<()>> = beside.into_iter().map(|b| b.join().unwrap()).collect();
            (done.into_iter().collect::<Result<Vec<_>>>(), snapshots.join().unwrap(), beside)
        });
        beside.context("beside the threads")?;
        let (histories, refused): (Vec<_>, Vec<_>) = done?.into_iter().unzip();
        let base = base.contents.clone();
        Ok(Run {
            base,
            events: journal.take(),
            histories,
            refused: refused.concat(),
            snapshots: made.context("snapshots")?,
        })
    }

    /// The progress of a thread.
    fn progress(&self, thread: usize, at: usize) -> Progress {
        let own = |id: &usize| id / STRIDE == thread;
        let done = self.events[..at].iter().filter(|e| matches!(e, Event::End(id) if own(id))).count();
        let begun = self.events[..at].iter().filter(|e| matches!(e, Event::Begin(id) if own(id))).count();
        Progress { done, begun: begun > done }
    }

    fn verify(&self, cut: &Cut, state: &[Contents], write: bool) -> Result<Vec<String>> {
        let disks = overlays(state, write);
        let raw = options(false).no_log_replay(true);
        let image = Image::from_devices(disks.clone(), &raw).context("it does not open without its log")?;
        let before = check(&image).into_iter().map(|w| format!("check, before the log is applied: {w}"));
        let mut wrong: Vec<String> = before.collect();
        drop(image);
        let image = Image::from_devices(disks.clone(), &options(write)).context("it does not open")?;
        for (thread, history) in self.histories.iter().enumerate() {
            let found = Seen::of(&view(&image, thread)?, history.moments.last())?;
            let progress = self.progress(thread, cut.at);
            let found = verify(history, progress, None, &found);
            wrong.extend(found.into_iter().map(|w| format!("thread {thread}: {w} at {progress:?}")));
        }
        wrong.extend(check(&image).into_iter().map(|w| format!("check: {w}")));
        if write && wrong.is_empty() && cut.at.is_multiple_of(8) {
            go_on(image, disks).context("life does not go on")?;
        }
        Ok(wrong)
    }
}

fn verify_some(base: &Base, seed: u64, steps: usize, most: usize, fault: Option<Fault>) -> (Tally, u64) {
    let begin = Instant::now();
    let run = Run::new(base, seed, steps, fault).unwrap_or_else(|e| panic!("seed {seed}: {e:#}"));
    let promises = |h: &History| h.steps.iter().filter(|s| s.promise.is_some()).count() as u64;
    let promises = run.histories.iter().map(promises).sum();
    let mut tally = Tally { runs: 1, promises, time_running: begin.elapsed(), ..Tally::default() };
    let begin = Instant::now();
    let fail = |wrong, state| Failure { wrong, state, script: Vec::new() };
    if !run.refused.is_empty() {
        tally.failures.push(fail(run.refused.clone(), format!("seed {seed}, refused")));
    }
    let mut rng = Rng::new(seed);
    let mut all = cuts(&run.events, &KINDS, &mut rng);
    while all.len() > most {
        // Not the last: that is what the last steps have promised.
        all.remove(usize::try_from(rng.below(all.len() as u64 - 1)).unwrap_or(0));
    }
    let mut maker = Maker::new(&run.base, &run.events);
    for cut in &all {
        let state = maker.make(cut);
        tally.states += 1;
        tally.with_log += u64::from(super_block(&state).is_some_and(|sb| sb.log_root.get() != 0));
        let wrong = run.verify(cut, &state, !rng.one_in(4)).unwrap_or_else(|e| vec![format!("{e:#}")]);
        if !wrong.is_empty() {
            tally.failures.push(fail(wrong, format!("threads, seed {seed}, {cut:?}")));
        }
    }
    tally.time_verifying = begin.elapsed();
    (tally, run.snapshots)
}

/// Goal: everything that any thread had made durable is there, and the volume is sound, whatever the others and the
/// volume itself were doing. Method: threads with a directory each, on one disk and two, with quota, with discards; the
/// states verified as everywhere. Interleavings do not follow from the seed.
#[test]
fn at_once() {
    let shapes = [Shape::BARE, Shape::QUOTA, Shape::PAIR, Shape::USUAL];
    let bases = shapes.map(|shape| Base { discard: shape == Shape::USUAL, ..Base::new(shape, &setup()) });
    let snapshots = std::sync::atomic::AtomicU64::new(0);
    let seeds = budget().seeds(20_000, bases.len() as u64, 8);
    let tally = in_parallel((seeds.end - seeds.start) as usize, |i| {
        let (tally, made) = verify_some(&bases[i % bases.len()], seeds.start + i as u64, 100, 400, None);
        snapshots.fetch_add(made, Ordering::Relaxed);
        tally
    });
    say(&format!("crash: {} snapshots beside the threads", snapshots.load(Ordering::Relaxed)));
    tally.must_be_clean("threads at once, with commits, write-back and cleaning beside them", |_| Tally::default());
    tally.must_have_tested(5000, 5000);
}

/// Goal: verification of threads can fail: devices that do not flush are noticed.
#[test]
fn threads_without_flushes_are_noticed() {
    let base = Base::new(Shape::BARE, &setup());
    let (tally, _) = verify_some(&base, 30_000, 60, 60, Some(Fault::DropFlushes));
    assert!(!tally.failures.is_empty(), "{}", tally.line("no flush, and no failure"));
}
