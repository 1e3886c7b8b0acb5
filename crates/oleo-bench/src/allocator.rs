//! The block allocator alone, in memory: what an allocation and a free cost, and what they leave of the free space.
//!
//! 1. `threads`: 1 to 16 threads, each with its stream, allocate pieces of one size or of all sizes and free at random, at
//!    most half of the space at a time.
//! 2. `patterns`: one thread, on free space as in an aged image of the kernel, and on hostile patterns.
//! 3. `ageing`: ten million operations on a space kept 85 % full, of all sizes, such that each power of two gets the
//!    same number of bytes, and of odd lengths; and the distribution of the rest, looked at on the way.
//!
//! Beside it, in the same run, first fit and best fit over the same free space with one lock ([`baseline`]). A time is
//! that of one call, less that of reading the clock.

mod baseline;

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use oleo::{Image, OpenOptions};
use oleo_format::{BlockGroupFlags, ByteLen, Logical};
use oleo_sim::oracle;
use oleo_sim::rng::Rng;
use oleo_sim::specimen::aged;
use oleo_space::{FreeSource, Goal, GroupInfo, Kind, LoadError, Run, Space, Want};

use crate::Args;
use crate::measure::{Better, Report, quantile};
use baseline::{Fit, Textbook};

/// Bytes of a sector.
pub const SECTOR: u64 = 4096;
const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
/// Groups that are not of a pattern of their own, of 1 GiB each.
const GROUPS: u64 = 16;
/// Calls of each figure, all threads together.
const CALLS: u64 = 400_000;
/// Calls that age a space.
const AGEING_CALLS: u64 = 10_000_000;
/// Pieces of 4 KiB to 128 MiB.
const ORDERS: u64 = 16;

/// An allocator to be measured.
pub trait Allocator: Sync {
    /// Takes up to `len` bytes for a stream; start and length.
    fn alloc(&self, len: u64, stream: u64) -> Option<(u64, u64)>;
    /// Gives a piece back.
    fn free(&self, piece: (u64, u64));
    /// The free runs, rising.
    fn runs(&self) -> Vec<(u64, u64)>;
}

/// Ours.
struct Ours(Space);

struct Nothing;

impl FreeSource for Nothing {
    fn load(&self, _: Logical) -> Result<Vec<(Logical, ByteLen)>, LoadError> {
        Ok(Vec::new())
    }
}

impl Allocator for Ours {
    fn alloc(&self, len: u64, stream: u64) -> Option<(u64, u64)> {
        let (least, goal) = (ByteLen(SECTOR), Goal::Stream(stream));
        let want = Want { kind: Kind::Data, len: ByteLen(len), min_len: least, align: least, goal };
        self.0.alloc(&want).ok().map(|grant| grant.keep()).map(|run| (run.start.0, run.len.0))
    }

    fn free(&self, (start, len): (u64, u64)) {
        self.0.give_back(Run::new(Logical(start), ByteLen(len)));
    }

    fn runs(&self) -> Vec<(u64, u64)> {
        let groups = self.0.groups();
        let runs = groups.iter().flat_map(|group| self.0.free_runs(group.start).unwrap_or_default());
        runs.map(|run| (run.start.0, run.len.0)).collect()
    }
}

/// Free space: groups (start, length), and the runs in them, rising.
#[derive(Clone, Default)]
struct Free {
    groups: Vec<(u64, u64)>,
    runs: Vec<(u64, u64)>,
}

impl Free {
    /// Groups of 1 GiB whose free runs are those of `runs`, counted from the group's start.
    fn of(groups: u64, runs: impl Fn(u64) -> Vec<(u64, u64)>) -> Free {
        let groups: Vec<(u64, u64)> = (1..=groups).map(|i| (i * GIB, GIB)).collect();
        let each = groups.iter().enumerate();
        let runs = each.flat_map(|(i, group)| runs(i as u64).into_iter().map(move |(at, len)| (group.0 + at, len)));
        Free { runs: runs.collect(), groups }
    }

    fn ours(&self) -> Result<Ours> {
        let space = Space::new(SECTOR as u32, 16384, Arc::new(Nothing));
        let mut runs = self.runs.iter().peekable();
        for &(start, len) in &self.groups {
            let mut free = Vec::new();
            while let Some((at, len)) = runs.next_if(|run| run.0 < start + len) {
                free.push(Run::new(Logical(*at), ByteLen(*len)));
            }
            let used = len - free.iter().map(|run| run.len.0).sum::<u64>();
            let info = GroupInfo {
                start: Logical(start),
                len: ByteLen(len),
                flags: BlockGroupFlags::DATA,
                used: ByteLen(used),
                excluded: ByteLen(0),
                free_extents: Some(free.len() as u32),
                read_only: false,
                row_len: ByteLen(0),
            };
            // Of a full group only the summary is known, as at mount.
            space.add_group(info, (used < len).then_some(free))?;
        }
        Ok(Ours(space))
    }

    fn total(&self) -> u64 {
        self.runs.iter().map(|run| run.1).sum()
    }
}

/// Median and 99th percentile of the calls, nanoseconds.
#[derive(Clone, Copy, Default)]
struct Cost {
    alloc: [f64; 2],
    free: [f64; 2],
}

fn quantiles(mut ns: Vec<f64>, clock: f64) -> [f64; 2] {
    [0.5, 0.99].map(|part| (quantile(&mut ns, part) - clock).max(0.0))
}

/// What asking the clock twice costs, nanoseconds.
fn clock_ns() -> f64 {
    let mut ns: Vec<f64> = (0..10_000).map(|_| Instant::now().elapsed().as_nanos() as f64).collect();
    quantile(&mut ns, 0.5)
}

/// Threads allocate and free pieces, each thread as much as its part of `budget` at a time.
fn churn(allocator: &dyn Allocator, threads: u64, budget: u64, size: impl Fn(&mut Rng) -> u64 + Sync) -> Cost {
    let clock = clock_ns();
    let timed: Vec<(Vec<f64>, Vec<f64>)> = std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..threads)
            .map(|thread| {
                let size = &size;
                scope.spawn(move || {
                    let mut rng = Rng::new(thread + 1);
                    let (mut allocs, mut frees) = (Vec::new(), Vec::new());
                    let (mut mine, mut held) = (Vec::new(), 0);
                    for call in 0..CALLS / threads {
                        let len = size(&mut rng);
                        // A thousand pieces settle; from then on one comes and one goes.
                        while !mine.is_empty() && (mine.len() >= 1000 || held + len > budget / threads) {
                            let piece: (u64, u64) = mine.swap_remove(rng.below(mine.len() as u64) as usize);
                            let begun = Instant::now();
                            allocator.free(piece);
                            frees.push(begun.elapsed().as_nanos() as f64);
                            held -= piece.1;
                        }
                        let begun = Instant::now();
                        let got = allocator.alloc(len, thread << 32 | call >> 8);
                        allocs.push(begun.elapsed().as_nanos() as f64);
                        if let Some(piece) = got {
                            held += piece.1;
                            mine.push(piece);
                        }
                    }
                    mine.into_iter().for_each(|piece| allocator.free(piece));
                    (allocs, frees)
                })
            })
            .collect();
        jobs.into_iter().filter_map(|job| job.join().ok()).collect()
    });
    let (allocs, frees): (Vec<_>, Vec<_>) = timed.into_iter().unzip();
    Cost { alloc: quantiles(allocs.concat(), clock), free: quantiles(frees.concat(), clock) }
}

fn report(report: &Report, name: &str, ours: Cost, peer: &str, theirs: Cost, aim: &str) {
    for (i, part) in ["p50", "p99"].into_iter().enumerate() {
        for (call, mine, other) in [("alloc", ours.alloc, theirs.alloc), ("free", ours.free, theirs.free)] {
            let name = format!("{name}: {call} {part}");
            report.compare(&name, "ns", Better::Less, mine[i], peer, other[i], "-");
        }
    }
    let pair = |cost: Cost| cost.alloc[0] + cost.free[0];
    report.compare(&format!("{name}: pair p50"), "ns", Better::Less, pair(ours), peer, pair(theirs), aim);
}

fn mixed(rng: &mut Rng) -> u64 {
    SECTOR << rng.below(ORDERS)
}

/// Each power of two as often as gives all of them the same bytes.
fn even_bytes(rng: &mut Rng) -> u64 {
    SECTOR << (rng.next_u64() | 1 << (ORDERS - 1)).trailing_zeros()
}

fn threads(args: &Args, out: &Report) -> Result<()> {
    let free = Free::of(GROUPS, |_| vec![(0, GIB)]);
    for count in [1, 2, 4, 8, 16] {
        for (label, size) in
            [("4 KiB", SECTOR), ("64 KiB", 64 << 10), ("1 MiB", MIB), ("128 MiB", 128 * MIB), ("all", 0)]
        {
            let name = format!("{count} threads, {label}");
            if !args.wants(&name) {
                continue;
            }
            let size = |rng: &mut Rng| if size == 0 { mixed(rng) } else { size };
            let ours = churn(&free.ours()?, count, free.total() / 2, size);
            let best = churn(&Textbook::new(Fit::Best, &free.runs), count, free.total() / 2, size);
            let aim = if count == 1 && label == "4 KiB" { "below 200 ns" } else { "-" };
            report(out, &name, ours, "best fit", best, aim);
        }
    }
    Ok(())
}

/// Free space as the kernel has left it.
fn aged_image() -> Result<Free> {
    let oracle = oracle::oracle().context("an aged image needs root, loop devices and the kernel's btrfs")?;
    let scratch = oracle.scratch()?;
    let image = aged::make(oracle, &scratch, &aged::Recipe::default())?;
    let device = image.devices.first().context("no device")?;
    let opened = Image::open(device, &OpenOptions::default())?;
    let space = opened.fs().engine().space().clone();
    let mut free = Free::default();
    for group in space.groups().into_iter().filter(|group| group.flags.contains(BlockGroupFlags::DATA)) {
        free.groups.push((group.start.0, group.len.0));
        free.runs.extend(space.free_runs(group.start)?.iter().map(|run| (run.start.0, run.len.0)));
    }
    Ok(free)
}

fn patterns(args: &Args, out: &Report) -> Result<()> {
    let full_but_one =
        |groups: u64| Free::of(groups, move |i| if i == groups / 2 { vec![(GIB / 4, GIB / 2)] } else { Vec::new() });
    type Make<'a> = &'a dyn Fn() -> Result<Free>;
    let all: [(&str, Make); 5] = [
        ("aged image", &aged_image),
        ("every other block free", &|| {
            Ok(Free::of(4, |_| (0..GIB / SECTOR / 2).map(|i| (2 * i * SECTOR, SECTOR)).collect()))
        }),
        ("one run per group", &|| Ok(Free::of(4096, |i| vec![(i % 100 * MIB, MIB)]))),
        ("1 000 groups, one not full", &|| Ok(full_but_one(1000))),
        ("1 000 000 groups, one not full", &|| Ok(full_but_one(1_000_000))),
    ];
    for (name, make) in all {
        if !args.wants(name) {
            continue;
        }
        let free = make()?;
        let longest = free.runs.iter().map(|run| run.1).max().unwrap_or(SECTOR);
        for (label, size) in [("4 KiB", SECTOR), ("longest run", longest.min(128 * MIB))] {
            let ours = churn(&free.ours()?, 1, free.total() / 2, |_| size);
            let best = churn(&Textbook::new(Fit::Best, &free.runs), 1, free.total() / 2, |_| size);
            report(out, &format!("{name}, {label}"), ours, "best fit", best, "-");
        }
    }
    Ok(())
}

/// What an aged space is like.
#[derive(Clone, Copy, Default)]
struct Aged {
    /// Free runs per GiB of free space: the mean of looks in the last three quarters, since it swings as large pieces come and go.
    runs_mean: f64,
    /// The same at the end.
    runs_end: f64,
    /// The longest run in MiB, the mean of the same looks.
    longest_mean: f64,
}

/// Lengths of pieces that age a space.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lengths {
    /// Powers of two.
    Powers,
    /// Anything from a power of two to the next.
    Odd,
}

/// Ages a space.
fn age(allocator: &dyn Allocator, total: u64, lengths: Lengths) -> Aged {
    let mut rng = Rng::new(7);
    let (mut mine, mut held): (Vec<(u64, u64)>, u64) = (Vec::new(), 0);
    let (mut calls, mut next_look, mut looks) = (0, AGEING_CALLS / 4, 0.0);
    let mut aged = Aged::default();
    while calls < AGEING_CALLS {
        let mut left = even_bytes(&mut rng);
        if lengths == Lengths::Odd {
            left += rng.below(left / SECTOR) * SECTOR;
        }
        while held + left > total / 100 * 85 {
            let piece = mine.swap_remove(rng.below(mine.len() as u64) as usize);
            allocator.free(piece);
            held -= piece.1;
            calls += 1;
        }
        // A stream for each file; pieces may stay pieces.
        let stream = calls;
        while left > 0 {
            calls += 1;
            let Some(piece) = allocator.alloc(left, stream) else { break };
            left -= piece.1;
            held += piece.1;
            mine.push(piece);
        }
        if calls >= next_look {
            next_look += AGEING_CALLS / 50;
            let runs = allocator.runs();
            let free: u64 = runs.iter().map(|run| run.1).sum();
            aged.runs_end = runs.len() as f64 / (free as f64 / GIB as f64);
            aged.runs_mean += aged.runs_end;
            aged.longest_mean += runs.iter().map(|run| run.1).max().unwrap_or(0) as f64 / MIB as f64;
            looks += 1.0;
        }
    }
    Aged { runs_mean: aged.runs_mean / looks, longest_mean: aged.longest_mean / looks, ..aged }
}

fn ageing(out: &Report) -> Result<()> {
    let free = Free::of(GROUPS, |_| vec![(0, GIB)]);
    for (label, lengths) in [("aged", Lengths::Powers), ("aged, odd lengths", Lengths::Odd)] {
        let ours = age(&free.ours()?, free.total(), lengths);
        for (peer, fit) in [("first fit", Fit::First), ("best fit", Fit::Best)] {
            let aim = if fit == Fit::Best { "1x" } else { "-" };
            let theirs = age(&Textbook::new(fit, &free.runs), free.total(), lengths);
            let runs = |what: &str, ours, theirs, aim| {
                let name = format!("{label}: runs per GiB free, {what}");
                out.compare(&name, "runs", Better::Less, ours, peer, theirs, aim);
            };
            runs("mean", ours.runs_mean, theirs.runs_mean, aim);
            runs("end", ours.runs_end, theirs.runs_end, "-");
            let name = format!("{label}: longest run");
            out.compare(&name, "MiB", Better::More, ours.longest_mean, peer, theirs.longest_mean, "-");
        }
    }
    Ok(())
}

/// Runs the benchmark.
pub fn run(args: &Args, out: &mut Report) -> Result<()> {
    out.note(&format!(
        "{CALLS} allocations of each figure; {GROUPS} groups of 1 GiB where nothing else is said; {AGEING_CALLS} operations for \
         the aged space, kept 85 % full; the textbook allocators have one lock and know nothing of groups"
    ));
    threads(args, out)?;
    patterns(args, out)?;
    if args.wants("aged") {
        ageing(out)?;
    }
    Ok(())
}
