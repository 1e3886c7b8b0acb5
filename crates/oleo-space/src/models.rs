//! The lock-free parts, and the ledger, under a scheduler that decides every step between threads, from a seed.
//!
//! A schedule that breaks something is printed, and can be played again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use oleo_format::{ByteLen, Logical, TreeId};
use shuttle::sync::atomic::AtomicU64;
use shuttle::sync::{Condvar, Mutex, RwLock};
use shuttle::thread;

use crate::account::Pool;
use crate::atomic::AtomicCell;
use crate::index::{BitTree, tell};
use crate::ledger::LedgerOf;
use crate::sync::{MutexLike, RwLockLike, SyncPrimitives};
use crate::wakeups::{Sleep, Wakeups};
use crate::{ExtentKind, RefChange, RefKey};

/// Schedules tried of each model.
const SCHEDULES: usize = 3000;
/// Changes of thread, against the order of priorities, in one schedule of the second sort.
const DEPTH: usize = 3;

/// At random, and with few but ill-timed interruptions.
fn check(model: impl Fn() + Send + Sync + 'static) {
    let model = Arc::new(model);
    let again = model.clone();
    shuttle::check_random(move || model(), SCHEDULES);
    shuttle::check_pct(move || again(), SCHEDULES, DEPTH);
}

fn threads(all: Vec<Box<dyn FnOnce() + Send>>) {
    let threads: Vec<_> = all.into_iter().map(thread::spawn).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Goal: upper bits of the index are right at rest, and a bit that stays set is always found thoroughly.
/// Method: three threads set and clear bits of one word, and of its neighbour, under one upper word; a fourth looks for a
/// bit behind them that nobody changes.
#[test]
fn upper_bits_are_right_at_rest() {
    check(|| {
        let tree: Arc<BitTree<AtomicU64>> = Arc::new(BitTree::new(200));
        tree.set(199);
        let own = |slot: usize, last: bool| -> Box<dyn FnOnce() + Send> {
            let tree = tree.clone();
            Box::new(move || {
                tree.set(slot);
                tree.clear(slot);
                if last {
                    tree.set(slot);
                }
            })
        };
        let looker = tree.clone();
        let look = Box::new(move || {
            assert_eq!(looker.next_thorough(130), Some(199));
            assert!(looker.next_thorough(0).is_some());
        });
        threads(vec![own(67, false), own(69, true), own(3, false), look]);
        // From another word, so that only the upper one tells.
        for from in [0, 4, 64, 69, 70, 199] {
            let want = if from <= 69 { 69 } else { 199 };
            assert_eq!((tree.next(from), tree.next_thorough(from)), (Some(want), Some(want)), "from {from}");
        }
    });
}

/// Goal: at rest the word over the trees says of each tree whether it is empty.
/// Method: three threads set and clear bits of one tree that is two levels deep, each telling the word; then both are compared.
#[test]
fn the_word_over_the_trees_is_right_at_rest() {
    for last in [false, true] {
        check(move || {
            let trees: Arc<(BitTree<AtomicU64>, AtomicU64)> = Arc::new((BitTree::new(200), AtomicU64::new(0)));
            let own = |slot: usize, stays: bool| -> Box<dyn FnOnce() + Send> {
                let trees = trees.clone();
                Box::new(move || {
                    let (tree, classes) = &*trees;
                    tree.set(slot);
                    tell(tree, classes, 5);
                    tree.clear(slot);
                    tell(tree, classes, 5);
                    if stays {
                        tree.set(slot);
                        tell(tree, classes, 5);
                    }
                })
            };
            threads(vec![own(67, false), own(69, last), own(3, false)]);
            assert_eq!(AtomicCell::load(&trees.1), u64::from(last) << 5);
        });
    }
}

/// Goal: what is promised never exceeds what there is, and who fits is let in.
/// Method: a pool of ten; three threads commit what fits together exactly, give it back and commit again, while a fourth
/// wants more than can ever be left.
#[test]
fn promises_are_kept_in_every_order() {
    check(|| {
        let pool: Arc<Pool<AtomicU64>> = Arc::new(Pool::default());
        pool.limit.add(10);
        let held = Arc::new(AtomicU64::new(0));
        let take = |len: u64| -> Box<dyn FnOnce() + Send> {
            let (pool, held) = (pool.clone(), held.clone());
            Box::new(move || {
                for _ in 0..2 {
                    assert_eq!(pool.commit_some(len, len, 1), Some(len), "all of them fit");
                    assert!(held.add(len) + len <= 10);
                    held.sub(len);
                    pool.uncommit(len);
                }
            })
        };
        let greedy = pool.clone();
        let greed = Box::new(move || assert_eq!(greedy.commit_some(11, 11, 1), None));
        threads(vec![take(3), take(3), take(4), greed]);
        assert_eq!(AtomicCell::load(&pool.committed), 0);
    });
}

/// Goal: who is let in beside somebody who takes space away is within what is left, also where the count is the same again.
/// Method: a pool of ten, of which one thread takes four out, as an empty group is; others commit what fits only before, or only
/// after.
#[test]
fn a_limit_that_sinks_is_seen() {
    check(|| {
        let pool: Arc<Pool<AtomicU64>> = Arc::new(Pool::default());
        pool.limit.add(10);
        let take = |len: u64| -> Box<dyn FnOnce() + Send> {
            let pool = pool.clone();
            Box::new(move || {
                let _ = pool.commit_some(len, len, 1);
            })
        };
        let sinking = pool.clone();
        let sink = Box::new(move || {
            let _ = sinking.take_out(4, 4, || {});
        });
        threads(vec![take(7), take(3), sink]);
        let (committed, limit) = (AtomicCell::load(&pool.committed), AtomicCell::load(&pool.limit));
        assert!(committed <= limit, "{committed} of {limit}");
        assert!(limit == 6 || committed > 6, "it was free to be taken out");
    });
}

/// Goal: an allocation that has a promise finds the space there is, however it moves.
/// Method: two groups of one block each, of which others hold one at most: one thread frees the first group's and takes the
/// second's, and back again; the searcher goes over the groups in order as the last pass does, and again while something was
/// freed meanwhile.
#[test]
fn who_has_a_promise_is_not_refused() {
    struct Groups {
        index: BitTree<AtomicU64>,
        free: [Mutex<bool>; 2],
        pool: Pool<AtomicU64>,
    }
    impl Groups {
        fn put_back(&self, group: usize) {
            let mut free = self.free[group].lock().unwrap();
            *free = true;
            self.index.set(group);
            self.pool.notify_searchers();
        }
        fn take(&self, group: usize) -> bool {
            let mut free = self.free[group].lock().unwrap();
            let taken = std::mem::take(&mut *free);
            if taken {
                self.index.clear(group);
            }
            taken
        }
        fn walk(&self) -> Option<usize> {
            let mut at = 0;
            while let Some(group) = self.index.next_thorough(at) {
                if self.take(group) {
                    return Some(group);
                }
                at = group + 1;
            }
            None
        }
        fn search(&self) -> Option<usize> {
            let search = self.pool.search();
            loop {
                let seen = search.frees();
                let found = self.walk();
                if found.is_some() || search.frees() == seen {
                    return found;
                }
            }
        }
    }
    check(|| {
        let free = [Mutex::new(false), Mutex::new(true)];
        let groups = Arc::new(Groups { index: BitTree::new(2), free, pool: Pool::default() });
        groups.index.set(1);
        let mover = groups.clone();
        let moves = Box::new(move || {
            let mut mine = 0;
            for _ in 0..2 {
                mover.put_back(mine);
                if !mover.take(1 - mine) {
                    return;
                }
                mine = 1 - mine;
            }
        });
        let searcher = groups.clone();
        let search = Box::new(move || assert!(searcher.search().is_some(), "one of two is free"));
        threads(vec![moves, search]);
    });
}

/// Threads that sleep, as the scheduler wakes them.
#[derive(Default)]
struct Asleep {
    waiting: Mutex<()>,
    changed: Condvar,
}

impl Sleep for Asleep {
    fn until(&self, over: impl Fn() -> bool) {
        let mut waiting = self.waiting.lock().unwrap();
        while !over() {
            waiting = self.changed.wait(waiting).unwrap();
        }
    }
    fn wake(&self, change: impl FnOnce()) {
        let waiting = self.waiting.lock().unwrap();
        change();
        drop(waiting);
        self.changed.notify_all();
    }
}

/// Goal: nobody sleeps through an event, also if it comes between the look and the wait.
/// Method: three threads take turns, each waiting for its own, which another one's change makes; the scheduler finds it if all of them
/// sleep.
#[test]
fn nobody_sleeps_through_an_event() {
    check(|| {
        let wakeups = Arc::new(Wakeups::<AtomicU64, Asleep>::default());
        let turn = Arc::new(AtomicU64::new(0));
        let own = |own: u64| -> Box<dyn FnOnce() + Send> {
            let (wakeups, turn) = (wakeups.clone(), turn.clone());
            Box::new(move || {
                for round in 0..2 {
                    loop {
                        let seen = wakeups.seen();
                        if AtomicCell::load(&*turn) == 3 * round + own {
                            break;
                        }
                        wakeups.wait(seen);
                    }
                    turn.add(1);
                    wakeups.notify();
                }
            })
        };
        threads(vec![own(0), own(1), own(2)]);
        assert_eq!(AtomicCell::load(&*turn), 6);
    });
}

/// The scheduler's locks.
struct Scheduled;

impl SyncPrimitives for Scheduled {
    type Lock<R: oleo_lock::Ranked, T: Default> = Mutex<T>;
    type SharedLock<R: oleo_lock::Ranked, T: Default> = RwLock<T>;
}

impl<T: Default> MutexLike<T> for Mutex<T> {
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.lock().unwrap())
    }
}

impl<T: Default> RwLockLike<T> for RwLock<T> {
    fn read<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        f(&self.read().unwrap())
    }
    fn write<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.write().unwrap())
    }
}

/// Goal: however threads record and drain, nothing is lost, nothing comes twice, no extent is in two hands, and a look-up
/// sees what has been recorded and not drawn, once.
/// Method: two threads record changes of three extents (in two shards) one by one and in a batch, some of which cancel; two
/// draw a region at a time, note the extents while they have them, and add up; a fifth looks extents up: one that is only added
/// to, and one that is there all the time, since it lies behind more regions than are drawn.
#[test]
fn the_ledger_neither_loses_nor_doubles() {
    type Sums = BTreeMap<(u64, RefKey), i32>;
    const REGION: u64 = 1 << 24;
    const DRAWS: u64 = 4;
    fn tree(n: u64) -> RefKey {
        RefKey::TreeRoot(TreeId(256 + n))
    }
    fn draw(ledger: &LedgerOf<Scheduled>, held: &Mutex<BTreeSet<u64>>, sums: &Mutex<Sums>) -> bool {
        let batch = ledger.drain(1);
        for head in batch.heads() {
            assert!(held.lock().unwrap().insert(head.at.0), "{} is in two hands", head.at);
        }
        thread::yield_now();
        for head in batch.heads() {
            for (by, delta) in head.refs() {
                *sums.lock().unwrap().entry((head.at.0, by)).or_default() += delta;
            }
            held.lock().unwrap().remove(&head.at.0);
        }
        !batch.is_empty()
    }
    check(|| {
        let ledger = Arc::new(LedgerOf::<Scheduled>::with_shards(2));
        let (held, sums) = (Arc::new(Mutex::new(BTreeSet::new())), Arc::new(Mutex::new(Sums::new())));
        let change = |n: u64, by, delta| RefChange {
            at: Logical(n * REGION),
            len: ByteLen(4096),
            kind: ExtentKind::Data,
            by,
            delta,
        };
        let one = |ledger: &LedgerOf<Scheduled>, c: RefChange| ledger.record(c.at, c.len, c.kind, c.by, c.delta);
        (3..=DRAWS + 3).for_each(|n| one(&ledger, change(n, tree(0), 1)));
        let mut all: Vec<Box<dyn FnOnce() + Send>> = Vec::new();
        let first = ledger.clone();
        all.push(Box::new(move || {
            one(&first, change(0, tree(0), 1));
            one(&first, change(1, tree(0), -2));
            first.record_batch(&mut vec![change(0, tree(0), -1), change(2, tree(0), 3), change(1, tree(1), 1)]);
        }));
        let second = ledger.clone();
        all.push(Box::new(move || {
            one(&second, change(0, tree(1), 1));
            one(&second, change(2, tree(0), 8));
        }));
        for _ in 0..2 {
            let (ledger, held, sums) = (ledger.clone(), held.clone(), sums.clone());
            all.push(Box::new(move || {
                for _ in 0..DRAWS / 2 {
                    draw(&ledger, &held, &sums);
                }
            }));
        }
        let looker = ledger.clone();
        all.push(Box::new(move || {
            let refs = looker.pending(Logical(2 * REGION)).refs;
            assert!([0, 3, 8, 11].contains(&refs), "{refs} references are pending");
            assert_eq!(looker.pending(Logical((DRAWS + 3) * REGION)).refs, 1, "nobody has drawn it");
        }));
        threads(all);
        while draw(&ledger, &held, &sums) {}
        assert_eq!(ledger.len(), 0);
        let mut want = vec![(0, tree(1), 1), (1, tree(0), -2), (1, tree(1), 1), (2, tree(0), 11)];
        want.extend((3..=DRAWS + 3).map(|n| (n, tree(0), 1)));
        let want: Sums = want.into_iter().map(|(n, by, sum)| ((n * REGION, by), sum)).collect();
        sums.lock().unwrap().retain(|_, sum| *sum != 0);
        assert_eq!(*sums.lock().unwrap(), want);
    });
}
