//! The hand-over between callers of fsync, as `shuttle` runs it: every order of the steps of a few threads may come.

use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};
use shuttle::thread::{self, Thread};

use super::*;
use crate::log::waiter::Ended;

struct Modelled {
    word: AtomicU8,
    thread: Thread,
}

impl Parking for Modelled {
    fn new() -> Modelled {
        Modelled { word: AtomicU8::new(0), thread: thread::current() }
    }
    fn word(&self) -> u8 {
        self.word.load(SeqCst)
    }
    fn replace(&self, old: u8, new: u8) -> bool {
        self.word.compare_exchange(old, new, SeqCst, SeqCst).is_ok()
    }
    fn say(&self, word: u8) {
        self.word.store(word, SeqCst);
    }
    fn park() {
        thread::park();
    }
    fn unpark(&self) {
        self.thread.unpark();
    }
}

/// Rounds, and how they have ended.
#[derive(Default)]
struct World {
    queue: Mutex<Queue<Modelled>>,
    /// The last round that is on disk, or has failed.
    written: AtomicU64,
    /// Leaders at a time.
    leading: AtomicU64,
}

/// Every third round fails.
fn fails(round: u64) -> bool {
    round.is_multiple_of(3)
}

impl World {
    fn lead(&self) -> bool {
        assert_eq!(self.leading.fetch_add(1, SeqCst), 0, "one leads at a time");
        let round = self.queue.lock().unwrap().close().number;
        thread::yield_now();
        assert_eq!(self.written.swap(round, SeqCst) + 1, round, "rounds are written in their order");
        self.leading.fetch_sub(1, SeqCst);
        let over = self.queue.lock().unwrap().finish(!fails(round));
        over.wake();
        !fails(round)
    }

    /// A call; with `again`, of a file that the same thread has entered before in the round with this number. The round it was in.
    fn call(&self, again: Option<u64>) -> u64 {
        let mut queue = self.queue.lock().unwrap();
        let round = again.unwrap_or(queue.open);
        let role = match again {
            Some(round) => queue.enter_with(round),
            None => queue.enter_list(Generation(1), TreeId::FS, Vec::new()),
        };
        drop(queue);
        let good = match role {
            Role::Lead => self.lead(),
            Role::Wait(waiter) => match waiter.wait(|waiter| self.queue.lock().unwrap().look(waiter)) {
                Ended::Leads => self.lead(),
                Ended::Durable => true,
                Ended::Failed => false,
            },
            Role::Durable => true,
            Role::Refused => false,
        };
        assert!(self.written.load(SeqCst) >= round, "told before its round was over");
        // Once a later round has failed, nobody remembers how those before it ended: who asks late commits.
        assert!(good != fails(round) || (again.is_some() && !good), "round {round}: {good}");
        round
    }
}

/// Goal: every caller hears of the end of its round, not before it, and as it was; nobody waits for ever; one leads at a time. Method:
/// three threads enter twice each and one looks again at what it has entered; rounds take a step, and every third fails.
#[test]
fn everybody_hears_of_their_round() {
    let run = || {
        let world = Arc::new(World::default());
        let threads: Vec<_> = (0..3)
            .map(|n| {
                let world = world.clone();
                thread::spawn(move || {
                    let round = world.call(None);
                    if n == 0 {
                        world.call(Some(round));
                    }
                    world.call(None);
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let mut queue = world.queue.lock().unwrap();
        assert!(queue.waiting.is_empty() && queue.of_written.is_empty() && !queue.leading);
        assert_eq!(queue.close().number, world.written.load(SeqCst) + 1);
    };
    shuttle::check_random(run, 3000);
    shuttle::check_pct(run, 3000, 4);
}
