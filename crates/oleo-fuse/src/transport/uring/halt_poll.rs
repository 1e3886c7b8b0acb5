//! Keeps a processor from being halted while requests come one after another.
//!
//! A client that waits for each answer leaves its processor idle between two requests. On a virtual machine an idle processor is given
//! back to the host, and waking it takes longer than answering (docs/decisions/0021). So a ring's processor has a thread of the
//! scheduler's class SCHED_IDLE, which gets what nobody else wants: it spins while requests come in quick succession, and sleeps
//! otherwise. To the scheduler such a processor is idle, so nobody is kept from it.
//!
//! Normal path: (1) the ring's thread says that requests [`came`](HaltPoll::came); (2) after [`BURST`] waits that were each shorter than
//! [`NEAR`] it wakes the poller; (3) the poller spins until nothing came for [`KEEP`], and sleeps.
//!
//! Invariant: nothing depends on the poller. If it cannot be started, cannot have its class, or is late, requests are
//! answered as without it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    #[default]
    Auto,
    /// Always, over rings whose threads are bound to their processors.
    On,
    /// Never.
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

/// What both threads use, on a line of its own.
#[repr(align(128))]
struct Shared {
    /// How often requests came.
    count: AtomicU64,
    /// The poller sleeps, or is about to.
    asleep: AtomicBool,
    stop: AtomicBool,
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
        let shared =
            Arc::new(Shared { count: AtomicU64::new(0), asleep: AtomicBool::new(true), stop: AtomicBool::new(false) });
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
        let shared = &*self.shared;
        // Only this thread writes it.
        shared.count.store(shared.count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        if !shared.asleep.load(Ordering::Relaxed) {
            return;
        }
        let now = Instant::now();
        self.near = if now - self.last < NEAR { self.near + 1 } else { 0 };
        self.last = now;
        if self.near >= BURST {
            self.near = 0;
            self.wake();
        }
    }

    fn wake(&self) {
        self.shared.asleep.store(false, Ordering::Release);
        if let Some(poller) = &self.poller {
            poller.thread().unpark();
        }
    }
}

impl Drop for HaltPoll {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.wake();
        if let Some(poller) = self.poller.take() {
            // It cannot panic, and nothing would follow from it.
            let _ = poller.join();
        }
    }
}

/// The poller.
fn poll(shared: &Shared) {
    loop {
        while shared.asleep.load(Ordering::Acquire) && !shared.stop.load(Ordering::Acquire) {
            std::thread::park();
        }
        let (mut seen, mut last) = (shared.count.load(Ordering::Relaxed), Instant::now());
        loop {
            for _ in 0..TURNS {
                std::hint::spin_loop();
            }
            if shared.stop.load(Ordering::Acquire) {
                return;
            }
            let (count, now) = (shared.count.load(Ordering::Relaxed), Instant::now());
            if count != seen {
                (seen, last) = (count, now);
            } else if now - last > KEEP {
                break;
            }
        }
        shared.asleep.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn until(what: impl Fn() -> bool) {
        let begin = Instant::now();
        while !what() {
            assert!(begin.elapsed() < Duration::from_secs(20));
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
        assert!(shared.asleep.load(Ordering::Relaxed), "single requests cost nobody a processor");
        // Other tests may keep this thread from its processor for longer than what is near.
        let begin = Instant::now();
        while shared.asleep.load(Ordering::Relaxed) {
            assert!(begin.elapsed() < Duration::from_secs(20), "requests in succession wake it");
            halt_poll.came();
        }
        until(|| shared.asleep.load(Ordering::Relaxed));
        drop(halt_poll);
        assert_eq!(Arc::strong_count(&shared), 1, "the poller has ended");
    }

    #[test]
    fn virtual_machines_are_told_by_their_flags() {
        assert!(names_hypervisor("processor\t: 0\nflags\t\t: fpu vme hypervisor lahf_lm\n"));
        assert!(!names_hypervisor("processor\t: 0\nflags\t\t: fpu vme nohypervisor\nbugs\t: hypervisor\n"));
        assert!(!names_hypervisor(""));
        assert!(HaltPolling::On.wanted() && !HaltPolling::Off.wanted());
    }
}
