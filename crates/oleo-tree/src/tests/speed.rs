//! Numbers, not judgements: `cargo test --release -p oleo-tree -- --ignored --nocapture speed`.

use std::time::Duration;

use super::*;

/// Time that this thread has spent on a processor, so that a busy machine does not show.
struct Clock(Duration);

impl Clock {
    fn now() -> Clock {
        let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("a Linux");
        Clock(Duration::from_nanos(stat.split(' ').next().and_then(|n| n.parse().ok()).expect("nanoseconds")))
    }

    fn elapsed(&self) -> Duration {
        Clock::now().0 - self.0
    }
}

/// The items of `files` new empty files in one directory: what creation of many files puts into a tree.
fn new_files(files: u64) -> Vec<Change> {
    let mut batch = Vec::with_capacity(files as usize * 4);
    for n in 0..files {
        let hash = n.wrapping_mul(0x9e37_79b9) & 0xffff_ffff;
        batch.push(Change::put(Key::new(256, ANY, hash), vec![1; 40]));
        batch.push(Change::put(Key::new(256, ANY, (1 << 40) + n), vec![1; 40]));
        batch.push(Change::put(Key::new(257 + n, ANY, 0), vec![0; 160]));
        batch.push(Change::put(Key::new(257 + n, ANY, 1), vec![2; 20]));
    }
    batch.sort_unstable_by_key(|change| change.key);
    batch.dedup_by_key(|change| change.key);
    batch
}

#[test]
#[ignore = "prints speeds"]
fn speed() {
    for threads in [1, 2] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut world = World::new(16384);
            world.threads = threads > 1;
            world.create(TreeId(256));
            let batch = new_files(1_000_000);
            let root = world.trees[&TreeId(256)].root.clone();
            let time = Clock::now();
            let root =
                world.with_env(TreeId(256), Some(Generation(0)), |env| world.blocks.apply(&root, &batch, env)).unwrap();
            println!(
                "{threads} threads: {} items into an empty tree: {:?}, {} blocks",
                batch.len(),
                time.elapsed(),
                world.dirty.len()
            );
            world.trees.get_mut(&TreeId(256)).unwrap().root = root;
            world.blocks = Blocks::new(world.disk.clone(), 1 << 30);
            let time = Clock::now();
            world.commit();
            println!("commit (in memory): {:?}", time.elapsed());

            let root = world.trees[&TreeId(256)].root.clone();
            let time = Clock::now();
            let mut rng = Rng(1);
            let mut found = 0;
            for _ in 0..1_000_000 {
                let key = Key::new(257 + rng.below(1_000_000), ANY, 0);
                found += usize::from(world.blocks.get(&root, &key).unwrap().is_some());
            }
            println!(
                "get, random, cached, level {}: {:?} each ({found} found)",
                root.level,
                time.elapsed() / 1_000_000
            );
            let time = Clock::now();
            for _ in 0..1_000_000 {
                let key = Key::new(300_000 + rng.below(10_000), ANY, 0);
                found += usize::from(world.blocks.get(&root, &key).unwrap().is_some());
            }
            println!("get among 10 000 files: {:?} each ({found} found)", time.elapsed() / 1_000_000);
            let time = Clock::now();
            let mut cursor = world.blocks.cursor(&root);
            let mut count = 0u64;
            while cursor.next().unwrap() {
                count += 1;
            }
            println!("cursor next: {:?} each", time.elapsed() / count as u32);

            let some: Vec<Change> =
                (0..100_000).map(|n| Change::put(Key::new(257 + n * 10, ANY, 0), vec![3; 160])).collect();
            let time = Clock::now();
            world.with_env(TreeId(256), Some(Generation(0)), |env| world.blocks.apply(&root, &some, env)).unwrap();
            println!("{} changes all over: {:?}, {} blocks", some.len(), time.elapsed(), world.dirty.len());
            let one = [Change::put(Key::new(500_000, ANY, 0), vec![4; 160])];
            let time = Clock::now();
            for _ in 0..1000 {
                world.with_env(TreeId(256), Some(Generation(0)), |env| world.blocks.apply(&root, &one, env)).unwrap();
            }
            println!("one change: {:?}", time.elapsed() / 1000);
        });
    }
}
