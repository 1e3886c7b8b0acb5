//! The store of delayed refs beside an ordered tree, a radix tree and sorted hash tables: time per record and per drained
//! head, and memory.
//!
//! The mixes have the shape of transactions: new extents come first, in the order of addresses, then what batch
//! application found, tree by tree.
//!
//! | mix | records |
//! |---|---|
//! | create | every new extent, then its first reference, both in the order of addresses |
//! | overwrite | half the heads are new blocks (new, +1) in order, half are old ones (−1) at random; a third as many pairs of +1 and −1 of one reference come to nothing |
//! | delete | a snapshot's extents: −1 in random order, one in eight a block that is converted to full backrefs (−1 by tree, +1 by parent) |
//! | clone | a thousand references each on few extents, a file at a time |

mod stores;

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::{Result, ensure};
use oleo_format::{ByteLen, Ino, ItemType, Key, Logical, TreeId};
use oleo_space::{ExtentKind, Ledger, RefChange, RefKey};

use crate::Args;
use crate::measure::{Better, Report};
use stores::{Hashed, Ordered, Radix, Store};

const NODE: u64 = 16384;
const SIZES: [u64; 5] = [1_000, 10_000, 100_000, 1_000_000, 10_000_000];
const THREADS: [u64; 3] = [1, 2, 4];
const MIXES: [&str; 4] = ["create", "overwrite", "delete", "clone"];
/// Changes of one batch that is recorded.
const BATCH: usize = 256;
/// Heads of one batch that is drained.
const DRAIN: usize = 4096;
/// References of one extent in the mix of clones.
const CLONES: u64 = 1000;
/// Small runs are repeated until this many heads have gone through.
const HEADS_MIN: u64 = 1_000_000;
/// From this size on the aim holds.
const AIMED_HEADS: u64 = 100_000;

/// Nanoseconds that this thread has run: others on the machine do not count.
fn thread_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 8
}

fn tree_kind(at: u64) -> ExtentKind {
    ExtentKind::Tree { level: 0, first_key: Key { objectid: at, item_type: ItemType(1), offset: 0 } }
}

fn block(at: u64, by: RefKey, delta: i32) -> RefChange {
    RefChange { at: Logical(at), len: ByteLen(NODE), kind: tree_kind(at), by, delta }
}

fn data(at: u64, ino: u64, delta: i32) -> RefChange {
    let by = RefKey::DataRoot { root: TreeId(256), ino: Ino(257 + ino), offset: 0 };
    RefChange { at: Logical(at), len: ByteLen(4096), kind: ExtentKind::Data, by, delta }
}

/// Records by one thread, in batches.
struct Recorder<'a> {
    store: &'a dyn Store,
    batch: Vec<RefChange>,
    records: u64,
}

impl Recorder<'_> {
    fn put(&mut self, changes: impl IntoIterator<Item = RefChange>) {
        self.batch.extend(changes);
        if self.batch.len() >= BATCH {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.records += self.batch.len() as u64;
        self.store.record_batch(&mut self.batch);
    }

    fn record_new_extent(&mut self, at: u64, len: u64, kind: ExtentKind) {
        self.records += 1;
        self.store.record_new_extent(Logical(at), ByteLen(len), kind);
    }

    /// What one of several threads records of a mix with `heads` heads in all.
    fn mix(&mut self, mix: &str, heads: u64, share: std::ops::Range<u64>) {
        let mut seed = share.start + 1;
        // One in four blocks of the old space, and all that is new beyond it.
        let old = |seed: &mut u64| (random(seed) % (heads * 4)) * NODE;
        let new = heads * 4 * NODE;
        let tree = RefKey::TreeRoot(TreeId(256));
        match mix {
            "create" => {
                share.clone().for_each(|i| self.record_new_extent(new + i * 4096, 4096, ExtentKind::Data));
                share.for_each(|i| self.put([data(new + i * 4096, i, 1)]));
            }
            "overwrite" => {
                for i in share {
                    if i % 2 == 0 {
                        self.record_new_extent(new + i * NODE, NODE, tree_kind(i));
                        self.put([block(new + i * NODE, tree, 1)]);
                    } else {
                        let at = old(&mut seed);
                        self.put([block(at, tree, -1)]);
                    }
                    if i % 3 == 0 {
                        let at = old(&mut seed) + 2 * new;
                        self.put([block(at, tree, 1), block(at, tree, -1)]);
                    }
                }
            }
            "delete" => {
                for i in share {
                    let at = old(&mut seed);
                    if i % 8 == 0 {
                        let parent = RefKey::TreeParent(Logical(at / 64));
                        self.put([block(at, tree, -1), block(at, parent, 1)]);
                    } else {
                        self.put([data(at + new, at, -1)]);
                    }
                }
            }
            _ => {
                let extents = heads.div_ceil(CLONES);
                share.for_each(|i| self.put([data(i % extents * 65536, i / extents, 1)]));
            }
        }
        self.flush();
    }
}

/// Nanoseconds per record and per drained head (of clones: per drained reference).
fn run_mix(store: &dyn Store, mix: &str, heads: u64, threads: u64) -> Result<(f64, f64)> {
    let (records, took) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for t in 0..threads {
            let (records, took) = (&records, &took);
            scope.spawn(move || {
                let begun = thread_ns();
                let mut recorder = Recorder { store, batch: Vec::with_capacity(BATCH + 2), records: 0 };
                recorder.mix(mix, heads, t * heads / threads..(t + 1) * heads / threads);
                took.fetch_add(thread_ns() - begun, Relaxed);
                records.fetch_add(recorder.records, Relaxed);
            });
        }
    });
    let begun = thread_ns();
    let (mut drained, mut last, mut rising) = (0, None, true);
    loop {
        let count = store.drain(DRAIN, &mut |at, net| {
            rising &= last < Some(at);
            last = Some(at);
            black_box(net);
        });
        if count == 0 {
            break;
        }
        drained += count;
    }
    // Heads of clones have a thousand references each: one of these is the measure there.
    let measure = if mix == "clone" { heads as f64 } else { drained as f64 };
    let drain_ns = (thread_ns() - begun) as f64 / measure;
    ensure!(rising, "{mix}: not in the order of addresses");
    Ok((took.into_inner() as f64 / records.into_inner() as f64, drain_ns))
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A name and how to make one that is empty.
type Maker = (&'static str, fn() -> Box<dyn Store>);

const STORES: [Maker; 4] = [
    ("ledger", || Box::new(Ledger::new())),
    ("ordered tree", || Box::<Ordered>::default()),
    ("radix tree", || Box::<Radix>::default()),
    ("hash, sorted", || Box::<Hashed>::default()),
];

/// Times one mix at one size on all stores, in turns.
fn measure(report: &Report, runs: usize, mix: &str, heads: u64, threads: u64) -> Result<()> {
    let turns = usize::try_from((HEADS_MIN / heads).clamp(1, 200))?.max(runs.min(3));
    let mut found: [Vec<(f64, f64)>; STORES.len()] = Default::default();
    for _ in 0..turns {
        for (found, (_, make)) in found.iter_mut().zip(&STORES) {
            found.push(run_mix(make().as_ref(), mix, heads, threads)?);
        }
    }
    let medians = found.map(|runs| {
        let (records, drains): (Vec<f64>, Vec<f64>) = runs.into_iter().unzip();
        (middle(records), middle(drains))
    });
    let (record, drain) = medians[0];
    for ((peer, _), (their_record, their_drain)) in STORES.iter().zip(medians).skip(1) {
        let aim = if *peer == "ordered tree" && heads >= AIMED_HEADS { "3x" } else { "-" };
        let name = |what: &str| format!("{mix} {heads} x{threads}: {what}");
        report.compare(&name("record"), "ns", Better::Less, record, peer, their_record, "-");
        report.compare(&name("drain"), "ns", Better::Less, drain, peer, their_drain, "-");
        report.compare(&name("both"), "ns", Better::Less, record + drain, peer, their_record + their_drain, aim);
    }
    Ok(())
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// Memory per head of the ledger: the largest amount allocated, index and slack included.
fn memory(report: &Report, mix: &str, heads: u64) {
    let ledger = Ledger::new();
    let before = resident_bytes();
    let mut recorder = Recorder { store: &ledger, batch: Vec::new(), records: 0 };
    recorder.mix(mix, heads, 0..heads);
    let (bytes, resident) = (ledger.memory_bytes(), resident_bytes().saturating_sub(before));
    let counted = heads as f64;
    report.note(&format!(
        "{mix} {heads}: {:.1} bytes allocated per head, {:.1} resident ({} records held; aim 64)",
        bytes as f64 / counted,
        resident as f64 / counted,
        ledger.len(),
    ));
}

/// Runs the benchmark.
pub fn run(args: &Args, report: &mut Report) -> Result<()> {
    report.note(&format!(
        "processor time; recorded in batches of {BATCH}, drained in batches of {DRAIN} by one thread; the ledger beside the others"
    ));
    let wanted = |name: &str| args.wants(name);
    for mix in MIXES {
        for heads in SIZES {
            if !wanted(&format!("{mix} {heads}")) {
                continue;
            }
            memory(report, mix, heads);
            for threads in THREADS {
                measure(report, args.runs, mix, heads, threads)?;
            }
        }
    }
    Ok(())
}
