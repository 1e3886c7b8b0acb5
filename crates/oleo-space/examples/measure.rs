//! Times the allocator: `cargo run --release -p oleo-space --example measure`.
//!
//! Processor time, summed over the threads, so that a busy machine does not distort the figures.

use std::sync::Arc;
use std::time::Instant;

use oleo_format::{BlockGroupFlags, ByteLen, Logical};
use oleo_space::{FreeSource, Goal, GroupInfo, Kind, LoadError, Run, Space, Want};

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

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
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
    let mut idle = Vec::new();
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
            row_len: ByteLen(0),
        };
        if full {
            idle.push(info);
        } else if let Err(error) = space.add_group(info, Some(vec![Run::new(Logical(start), ByteLen(len))])) {
            println!("{error}");
        }
        if (idle.len() == 1024 || i == groups - 1)
            && let Err(error) = space.add_groups(&std::mem::take(&mut idle))
        {
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
    allocator();
}
