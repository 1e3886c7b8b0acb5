//! Times the ledger beside an ordered tree, and the allocator: `cargo run --release -p oleo-space --example measure`.
//!
//! Processor time, summed over the threads, so that a busy machine does not spoil the figures; the median of three runs; the mixes are those of real transactions: births (new
//! extents one after the other), overwrites (old blocks dropped at random, new ones born in sequence), records that
//! cancel, and drops of scattered extents.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use oleo_format::{BlockGroupFlags, ByteLen, Ino, ItemType, Key, Logical, TreeId};
use oleo_space::{
    ExtentKind, FreeSource, Goal, GroupInfo, Head, Kind, Ledger, LoadError, RefChange, RefKey, Run, Space, Want,
};
use parking_lot::Mutex;
use smallvec::SmallVec;

const NODE: u64 = 16384;

/// Nanoseconds that this thread has run.
fn thread_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 8
}

/// What the ledger is compared with: one lock, one ordered tree, references in a small vector.
#[derive(Default)]
struct Ordered(Mutex<BTreeMap<u64, Head>>);

trait Store: Sync {
    fn born(&self, at: Logical, len: ByteLen, kind: ExtentKind);
    fn record_batch(&self, batch: &mut Vec<RefChange>);
    fn drain(&self, max: usize) -> Vec<Head>;
}

impl Ordered {
    fn head(map: &mut BTreeMap<u64, Head>, at: Logical, len: ByteLen, kind: ExtentKind) -> &mut Head {
        let blank = || Head { at, len, kind, born: false, full_backref: false, refs: SmallVec::new() };
        map.entry(at.0).or_insert_with(blank)
    }
}

impl Store for Ordered {
    fn born(&self, at: Logical, len: ByteLen, kind: ExtentKind) {
        Self::head(&mut self.0.lock(), at, len, kind).born = true;
    }

    fn record_batch(&self, batch: &mut Vec<RefChange>) {
        let mut map = self.0.lock();
        for change in batch.drain(..) {
            let head = Self::head(&mut map, change.at, change.len, change.kind);
            match head.refs.iter().position(|(by, _)| *by == change.by) {
                Some(i) if head.refs[i].1 + change.delta == 0 => drop(head.refs.remove(i)),
                Some(i) => head.refs[i].1 += change.delta,
                None => head.refs.push((change.by, change.delta)),
            }
            if head.refs.is_empty() && !head.born {
                map.remove(&change.at.0);
            }
        }
    }

    fn drain(&self, max: usize) -> Vec<Head> {
        let mut map = self.0.lock();
        (0..max).map_while(|_| map.pop_first()).map(|(_, head)| head).collect()
    }
}

impl Store for Ledger {
    fn born(&self, at: Logical, len: ByteLen, kind: ExtentKind) {
        Ledger::born(self, at, len, kind)
    }
    fn record_batch(&self, batch: &mut Vec<RefChange>) {
        Ledger::record_batch(self, batch)
    }
    fn drain(&self, max: usize) -> Vec<Head> {
        Ledger::drain(self, max)
    }
}

fn tree_kind(at: u64) -> ExtentKind {
    ExtentKind::Tree { level: 0, first_key: Key { objectid: at, item_type: ItemType(1), offset: 0 } }
}

fn tree_change(at: u64, delta: i32) -> RefChange {
    let by = RefKey::TreeRoot(TreeId(256));
    RefChange { at: Logical(at), len: ByteLen(NODE), kind: tree_kind(at), by, delta }
}

fn data_change(at: u64, i: u64, delta: i32) -> RefChange {
    let by = RefKey::DataRoot { root: TreeId(256), ino: Ino(257 + i), offset: 0 };
    RefChange { at: Logical(at), len: ByteLen(4096), kind: ExtentKind::Data, by, delta }
}

/// One mix with about `heads` heads at the end, fed in batches of `batch_len`; returns (ns per record, ns per drained
/// head, records).
fn run_mix(store: &dyn Store, mix: &str, heads: u64, threads: u64, drain_max: usize) -> (f64, f64) {
    let (mut records, mut took) = (0, 0);
    std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..threads)
            .map(|t| {
                scope.spawn(move || {
                    let begun = thread_ns();
                    let mut seed = t + 1;
                    let mut batch = Vec::new();
                    let mut records = 0;
                    let share = heads / threads;
                    for i in t * share..(t + 1) * share {
                        match mix {
                            "create" => {
                                store.born(Logical(i * 4096), ByteLen(4096), ExtentKind::Data);
                                batch.push(data_change(i * 4096, i, 1));
                                records += 2;
                            }
                            "overwrite" if i % 2 == 0 => {
                                store.born(Logical(i * NODE), ByteLen(NODE), tree_kind(i));
                                batch.push(tree_change(i * NODE, 1));
                                records += 2;
                            }
                            "cancel" => {
                                // Three of four references meet their opposite.
                                let at = (random(&mut seed) % (heads * 16)) * NODE;
                                batch.push(tree_change(at, 1));
                                for _ in 0..3 {
                                    let at = at + NODE * 16 * heads;
                                    batch.extend([tree_change(at, 1), tree_change(at, -1)]);
                                }
                                records += 7;
                            }
                            _ => {
                                // Scattered: a snapshot's extents, or the old copies of overwritten blocks.
                                let at = (random(&mut seed) % (heads * 16)) * NODE + (1 << 50);
                                batch.push(tree_change(at, -1));
                                records += 1;
                            }
                        }
                        if batch.len() >= 128 {
                            store.record_batch(&mut batch);
                        }
                    }
                    store.record_batch(&mut batch);
                    (records, thread_ns() - begun)
                })
            })
            .collect();
        for (n, ns) in jobs.into_iter().map(|job| job.join().unwrap_or_default()) {
            records += n;
            took += ns;
        }
    });
    let record_ns = took as f64 / records as f64;
    let begun = thread_ns();
    let mut drained = 0;
    loop {
        let heads = store.drain(drain_max);
        if heads.is_empty() {
            break;
        }
        drained += heads.len();
        black_box(heads);
    }
    (record_ns, (thread_ns() - begun) as f64 / drained as f64)
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

fn median(mut of: impl FnMut() -> (f64, f64)) -> (f64, f64) {
    let runs: Vec<_> = (0..3).map(|_| of()).collect();
    let middle = |mut v: Vec<f64>| {
        v.sort_unstable_by(f64::total_cmp);
        v[1]
    };
    (middle(runs.iter().map(|r| r.0).collect()), middle(runs.iter().map(|r| r.1).collect()))
}

fn ledger() {
    println!("ledger: ns per record / ns per drained head, drained 65536 at a time");
    println!("{:>10} {:>10} {:>8} {:>16} {:>16} {:>7}", "mix", "heads", "threads", "ordered tree", "ledger", "ratio");
    for mix in ["create", "overwrite", "scatter", "cancel"] {
        for heads in [1_000, 10_000, 100_000, 1_000_000, 10_000_000] {
            for threads in [1, 2, 4] {
                if heads == 10_000_000 && (mix == "cancel" || threads > 1) {
                    continue;
                }
                let (a, b) = median(|| run_mix(&Ordered::default(), mix, heads, threads, 65536));
                let (c, d) = median(|| run_mix(&Ledger::new(), mix, heads, threads, 65536));
                let ratio = (a + b) / (c + d);
                println!("{mix:>10} {heads:>10} {threads:>8} {a:>8.0} {b:>7.0} {c:>8.0} {d:>7.0} {ratio:>7.2}");
            }
        }
    }
}

fn ledger_memory() {
    for heads in [1_000_000u64, 1_800_000, 10_000_000] {
        let before = resident_bytes();
        let ledger = Ledger::new();
        let mut seed = 1;
        for _ in 0..heads {
            let at = (random(&mut seed) >> 8) * NODE;
            ledger.record(Logical(at), ByteLen(NODE), tree_kind(at), RefKey::TreeRoot(TreeId(5)), -1);
        }
        println!("{heads} heads: {:.1} bytes resident per head", (resident_bytes() - before) as f64 / heads as f64);
    }
}

struct Empty;

impl FreeSource for Empty {
    fn load(&self, _: Logical) -> Result<Vec<(Logical, ByteLen)>, LoadError> {
        Ok(Vec::new())
    }
}

fn space_of(groups: u64, full_but: Option<u64>) -> Space {
    let space = Space::new(4096, NODE as u32, Arc::new(Empty));
    let len = 1 << 30;
    for i in 0..groups {
        let full = full_but.is_some_and(|one| one != i);
        let start = (i + 1) * len;
        let info = GroupInfo {
            start: Logical(start),
            len: ByteLen(len),
            flags: BlockGroupFlags::DATA,
            used: ByteLen(if full { len } else { 0 }),
            excluded: ByteLen(0),
            free_extents: None,
            read_only: false,
        };
        let free = (!full).then(|| vec![Run::new(Logical(start), ByteLen(len))]);
        if let Err(error) = space.add_group(info, free) {
            println!("{error}");
        }
    }
    space
}

fn churn(space: &Space, threads: u64, len_max: u64, ops: u64) -> f64 {
    let took = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for t in 0..threads {
            let took = &took;
            scope.spawn(move || {
                let begun = thread_ns();
                let mut seed = t + 7;
                let mut mine: Vec<Run> = Vec::new();
                for _ in 0..ops / threads {
                    let len = 4096 << (random(&mut seed) % len_max);
                    let goal = Goal::Stream(t);
                    let want = Want {
                        kind: Kind::Data,
                        len: ByteLen(len),
                        min_len: ByteLen(4096),
                        align: ByteLen(4096),
                        goal,
                    };
                    if let Ok(grant) = space.alloc(&want) {
                        mine.push(grant.keep());
                    }
                    if mine.len() > 1000 {
                        let i = random(&mut seed) as usize % mine.len();
                        space.give_back(mine.swap_remove(i));
                    }
                }
                took.fetch_add(thread_ns() - begun, std::sync::atomic::Ordering::Relaxed);
            });
        }
    });
    took.into_inner() as f64 / ops as f64
}

fn allocator() {
    println!("allocator: ns per allocation and free");
    for threads in [1, 2, 4, 8, 16] {
        let small = churn(&space_of(64, None), threads, 1, 1_000_000);
        let mixed = churn(&space_of(64, None), threads, 8, 1_000_000);
        println!("{threads:>3} threads: 4 KiB {small:.0}, 4 KiB to 512 KiB {mixed:.0}");
    }
    for groups in [1_000, 1_000_000] {
        let begun = Instant::now();
        let before = resident_bytes();
        let space = space_of(groups, Some(groups / 2));
        let (took, bytes) = (begun.elapsed(), (resident_bytes() - before) / groups);
        let ns = churn(&space, 1, 1, 1_000_000);
        println!("{groups} groups, one not full: {ns:.0} ns; added in {took:?}, {bytes} bytes per group");
    }
}

fn main() {
    let what = std::env::args().nth(1);
    let chosen = |name: &str| what.as_deref().is_none_or(|w| w == name);
    if chosen("memory") {
        ledger_memory();
    }
    if chosen("allocator") {
        allocator();
    }
    if chosen("ledger") {
        ledger();
    }
}
