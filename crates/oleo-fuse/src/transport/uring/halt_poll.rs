//! Keeps a processor from being halted while requests come one after another.
//!
//! A client that waits for each answer leaves its processor idle between two requests. On a virtual machine an idle processor is given
//! back to the host, and waking it takes longer than answering (docs/decisions/0021). So a ring's processor has a thread of the
//! scheduler's class SCHED_IDLE, which gets what nobody else wants: it spins while requests come in quick succession, and sleeps
//! otherwise. To the scheduler such a processor is idle, so other threads of the same group run before it.
//!
//! Off unless it is asked for: the class counts only within one group of the scheduler. A mount in the background has a session,
//! and so with autogroups a group, of its own, whose thread takes as much of a busy processor as all programs of another session.
//!
//! Normal path: (1) the ring's thread says that requests [`came`](HaltPoll::came); (2) after [`BURST`] waits that were each shorter than
//! [`NEAR`] it wakes the poller; (3) the poller spins until nothing came for [`KEEP`], and sleeps.
//!
//! Invariant: nothing depends on the poller. If it cannot be started, cannot have its class, or is late, requests are
//! answered as without it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use oleo_device::affinity;

/// Waits that are called near are shorter than this: some ten times what a request takes over rings.
const NEAR: Duration = Duration::from_micros(500);
/// Near waits in succession before the poller is woken, so that single requests cost nobody a processor.
const BURST: u32 = 16;
/// How long the poller goes on after the last request.
const KEEP: Duration = Duration::from_micros(1000);
/// Turns between two looks at the clock and the count; some microseconds.
const TURNS: u32 = 64;

/// Whether processors are kept from being halted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HaltPolling {
    /// On virtual machines, as far as they can be told (x86).
    Auto,
    /// Always, over rings whose threads are bound to their processors.
    On,
    /// Never.
    #[default]
    Off,
}

impl HaltPolling {
    /// What it comes to on this machine.
    pub fn wanted(self) -> bool {
        match self {
            HaltPolling::On => true,
            HaltPolling::Off => false,
            HaltPolling::Auto => std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| names_hypervisor(&text)),
        }
    }
}

/// Whether the flags of the first processor say that there is a hypervisor (CPUID leaf 1, ECX bit 31).
fn names_hypervisor(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find_map(|line| line.strip_prefix("flags")?.split_once(':'));
    flags.is_some_and(|(_, flags)| flags.split_ascii_whitespace().any(|flag| flag == "hypervisor"))
}

/// An atomic number. Tests substitute one whose every step `shuttle`'s scheduler decides, so that orders weaker than those of the
/// scheduler are argued here: nothing but the numbers themselves passes from thread to thread, and each is late at worst.
trait Word {
    fn new(value: u64) -> Self;
    fn get(&self) -> u64;
    fn set(&self, value: u64);
}

macro_rules! word {
    ($atomic:ty, $read:expr, $write:expr) => {
        impl Word for $atomic {
            fn new(value: u64) -> Self {
                Self::new(value)
            }
            fn get(&self) -> u64 {
                self.load($read)
            }
            fn set(&self, value: u64) {
                self.store(value, $write);
            }
        }
    };
}

word!(AtomicU64, Ordering::Acquire, Ordering::Release);
#[cfg(test)]
word!(shuttle::sync::atomic::AtomicU64, Ordering::SeqCst, Ordering::SeqCst);

/// What both threads use, on a line of its own.
#[repr(align(128))]
struct Shared<W = AtomicU64> {
    /// How often requests came.
    count: W,
    /// 1: the poller sleeps, or is about to.
    asleep: W,
    stop: W,
}

impl<W: Word> Shared<W> {
    fn new() -> Shared<W> {
        Shared { count: W::new(0), asleep: W::new(1), stop: W::new(0) }
    }

    fn is_asleep(&self) -> bool {
        self.asleep.get() > 0
    }

    fn is_over(&self) -> bool {
        self.stop.get() > 0
    }

    /// Requests came; only one thread says so.
    fn add(&self) {
        self.count.set(self.count.get() + 1);
    }

    fn wake(&self, unpark: impl FnOnce()) {
        self.asleep.set(0);
        unpark();
    }

    fn end(&self, unpark: impl FnOnce()) {
        self.stop.set(1);
        self.wake(unpark);
    }

    /// The poller: sleeps, and when it is woken takes turns until `is_quiet` says so of the count.
    fn poll(&self, park: impl Fn(), mut is_quiet: impl FnMut(u64) -> bool) {
        loop {
            while self.is_asleep() && !self.is_over() {
                park();
            }
            loop {
                if self.is_over() {
                    return;
                }
                if is_quiet(self.count.get()) {
                    break;
                }
            }
            self.asleep.set(1);
        }
    }
}

/// The side of the ring's thread. Dropped, it ends the poller.
pub struct HaltPoll {
    shared: Arc<Shared>,
    poller: Option<JoinHandle<()>>,
    last: Instant,
    near: u32,
}

impl HaltPoll {
    /// Starts a poller for a processor.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(processor: usize) -> io::Result<HaltPoll> {
        let shared = Arc::new(Shared::new());
        let name = format!("fuse-poll-{processor}");
        let poller = std::thread::Builder::new().name(name).spawn({
            let shared = shared.clone();
            move || {
                // On another processor, or in the usual class, it would be in the way.
                if affinity::bind(processor).is_ok() && affinity::only_when_idle().is_ok() {
                    poll(&shared);
                }
            }
        })?;
        Ok(HaltPoll { shared, poller: Some(poller), last: Instant::now(), near: 0 })
    }

    /// A wait has ended with requests.
    pub fn came(&mut self) {
        self.shared.add();
        if !self.shared.is_asleep() {
            return;
        }
        let now = Instant::now();
        self.near = if now - self.last < NEAR { self.near + 1 } else { 0 };
        self.last = now;
        if self.near >= BURST {
            self.near = 0;
            self.shared.wake(|| self.unpark());
        }
    }

    fn unpark(&self) {
        if let Some(poller) = &self.poller {
            poller.thread().unpark();
        }
    }
}

impl Drop for HaltPoll {
    fn drop(&mut self) {
        self.shared.end(|| self.unpark());
        if let Some(poller) = self.poller.take() {
            // It cannot panic, and nothing would follow from it.
            let _ = poller.join();
        }
    }
}

/// The poller.
fn poll(shared: &Shared) {
    // The count that was seen last, and when it was new.
    let mut seen: Option<(u64, Instant)> = None;
    shared.poll(std::thread::park, |count| {
        let now = Instant::now();
        match seen {
            Some((last, since)) if last == count => {
                if now - since > KEEP {
                    seen = None;
                    return true;
                }
            }
            _ => seen = Some((count, now)),
        }
        for _ in 0..TURNS {
            std::hint::spin_loop();
        }
        false
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn until(what: impl Fn() -> bool) {
        let begin = Instant::now();
        while !what() {
            assert!(begin.elapsed() < Duration::from_secs(30));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Goal: a few requests wake nobody, many in succession wake the poller, it sleeps again when they stop, and it ends.
    #[test]
    fn spins_while_requests_come() {
        let processor = *affinity::processors().last().unwrap();
        let mut halt_poll = HaltPoll::start(processor).unwrap();
        let shared = halt_poll.shared.clone();
        halt_poll.came();
        halt_poll.came();
        assert!(shared.is_asleep(), "single requests cost nobody a processor");
        // Other tests may keep this thread from its processor for longer than what is near.
        let begin = Instant::now();
        while shared.is_asleep() {
            assert!(begin.elapsed() < Duration::from_secs(30), "requests in succession wake it");
            halt_poll.came();
        }
        until(|| shared.is_asleep());
        drop(halt_poll);
        assert_eq!(Arc::strong_count(&shared), 1, "the poller has ended");
    }

    /// Goal: a poller that is woken wakes up, whenever it was about to sleep, and ends when it is to. Method: a thread says that requests came, wakes
    /// the poller whenever it says that it sleeps, and waits until it has taken a turn; the poller sleeps after each second turn without requests. A
    /// scheduler decides every step, and finds it if both sleep.
    #[test]
    fn whoever_is_woken_wakes_up() {
        use shuttle::sync::atomic::AtomicU64 as Scheduled;
        use shuttle::sync::{Condvar, Mutex};
        let model = || {
            let shared = Arc::new(Shared::<Scheduled>::new());
            let turns = Arc::new((Mutex::new(0u64), Condvar::new()));
            let poller = shuttle::thread::spawn({
                let (shared, turns) = (shared.clone(), turns.clone());
                move || {
                    let mut seen = None;
                    shared.poll(shuttle::thread::park, |count| {
                        *turns.0.lock().unwrap() += 1;
                        turns.1.notify_all();
                        seen.replace(count) == Some(count)
                    });
                }
            });
            for _ in 0..3 {
                shared.add();
                if shared.is_asleep() {
                    let before = *turns.0.lock().unwrap();
                    shared.wake(|| poller.thread().unpark());
                    let mut now = turns.0.lock().unwrap();
                    while *now == before {
                        now = turns.1.wait(now).unwrap();
                    }
                }
            }
            shared.end(|| poller.thread().unpark());
            poller.join().unwrap();
        };
        shuttle::check_random(model, 3000);
        shuttle::check_pct(model, 3000, 3);
    }

    #[test]
    fn virtual_machines_are_told_by_their_flags() {
        assert!(names_hypervisor("processor\t: 0\nflags\t\t: fpu vme hypervisor lahf_lm\n"));
        assert!(!names_hypervisor("processor\t: 0\nflags\t\t: fpu vme nohypervisor\nbugs\t: hypervisor\n"));
        assert!(!names_hypervisor(""));
        assert!(HaltPolling::On.wanted() && !HaltPolling::Off.wanted());
    }
}
