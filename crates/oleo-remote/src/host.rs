//! What the process gives: time and randomness. Tests hand in their own, so that a run is a function of its seed, and stores
//! that no name leads to.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::error::StoreError;
use crate::seal::{NONCE_LEN, Nonce};
use crate::store::Store;
use crate::url::Url;

/// Mistakes that a simulated host can ask for, so that its runs are seen to find each. No real one does.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// Objects are deleted before a head with their graves is published.
    DeletesUnpublished,
    /// A row of the segment table is free although a page of a region names it.
    FreesNamedRows,
    /// Objects of the writer's own epoch that it does not know yet are orphans.
    OwnOrphans,
    /// A volume that is made where another was begins with the first epoch.
    RestartsEpochs,
    /// A reader that follows keeps frames of tails, which are at places of its own, beside those that are stored.
    SharesTails,
    /// A flush with nothing to publish is confirmed though the claim has ended.
    ForgetsClaim,
}

/// Time and randomness.
pub trait Host: Send + Sync {
    /// Time that has passed since some moment; it never goes back.
    fn now(&self) -> Duration;
    /// Waits.
    fn sleep(&self, time: Duration);
    /// Bytes that nobody else has or can guess, for ids, nonces and keys.
    fn random(&self) -> [u8; 16];
    /// Names this process, for other processes of this machine that find the volume held: one line. None if they could not
    /// find out from it whether this process has ended.
    fn process(&self) -> Option<String> {
        None
    }
    /// Whether a process that [`Host::process`] named, maybe on another machine, is known to have ended.
    fn has_ended(&self, _process: &str) -> bool {
        false
    }
    /// A store has failed for some seconds, and the request is repeated until its deadline.
    fn store_fails(&self, _store: &str, _error: &StoreError) {}
    /// A store has not begun to answer a request for this time; the request continues until its deadline.
    fn store_is_silent(&self, _store: &str, _time: Duration) {}
    /// The store of a name, if it is not to be looked for where the name says.
    #[doc(hidden)]
    fn store(&self, _url: &Url) -> Option<Arc<dyn Store>> {
        None
    }
    /// Whether a mistake is to be made.
    #[doc(hidden)]
    fn makes(&self, _mistake: Mistake) -> bool {
        false
    }
}

/// A nonce.
pub(crate) fn nonce(host: &dyn Host) -> Nonce {
    let mut out = [0; NONCE_LEN];
    fill(host, &mut out);
    out
}

/// Fills memory with bytes that nobody can guess.
pub(crate) fn fill(host: &dyn Host, out: &mut [u8]) {
    out.chunks_mut(16).for_each(|part| part.copy_from_slice(&host.random()[..part.len()]));
}

/// Names a process on Linux, so that other processes of the same machine can find out whether it has ended: process ids are
/// unique within a boot and a namespace, and the time of the start tells two processes with one id apart.
#[derive(Clone, PartialEq, Eq, Debug)]
struct ProcessName {
    /// The kernel's random id of this boot.
    boot: String,
    /// The namespace of process ids, as the kernel names it.
    namespace: String,
    id: u32,
    /// Clock ticks from the boot to its start.
    start: u64,
}

impl ProcessName {
    fn own() -> Option<ProcessName> {
        let id = std::process::id();
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
        let namespace = std::fs::read_link("/proc/self/ns/pid").ok()?.to_str()?.to_owned();
        let (start, _) = started(id)?;
        Some(ProcessName { boot, namespace, id, start })
    }

    fn parse(text: &str) -> Option<ProcessName> {
        let mut words = text.split(' ');
        let mut word = || words.next();
        let (boot, namespace) = (word()?.to_owned(), word()?.to_owned());
        let (id, start) = (word()?.parse().ok()?, word()?.parse().ok()?);
        word().is_none().then_some(ProcessName { boot, namespace, id, start })
    }

    /// Only known of a process of this boot and namespace.
    fn has_ended(&self) -> bool {
        let Some(own) = ProcessName::own() else { return false };
        if (&own.boot, &own.namespace) != (&self.boot, &self.namespace) {
            return false;
        }
        // `/proc` may hide the processes of other users: only the kernel's word that there is none counts.
        match (started(self.id), i32::try_from(self.id).ok().and_then(rustix::process::Pid::from_raw)) {
            (Some((start, has_exited)), _) => start != self.start || has_exited,
            (None, Some(id)) => rustix::process::test_kill_process(id) == Err(rustix::io::Errno::SRCH),
            (None, None) => false,
        }
    }
}

impl std::fmt::Display for ProcessName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {} {}", self.boot, self.namespace, self.id, self.start)
    }
}

/// When a process started, in clock ticks since the boot, and whether it has exited and waits for its parent.
fn started(id: u32) -> Option<(u64, bool)> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name of the program, in parentheses, may have anything in it.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    let has_exited = matches!(fields.next()?, "Z" | "X");
    // The 22nd field of the line; the state is the third.
    Some((fields.nth(18)?.parse().ok()?, has_exited))
}

/// The function that gets a line of text when a store fails or is silent.
static ON_FAILURE: OnceLock<fn(&str)> = OnceLock::new();
/// The host's time in seconds from which on the next failure is reported: many requests fail together.
static NEXT_REPORT: AtomicU64 = AtomicU64::new(0);
/// Seconds between two reports.
const REPORT_EVERY: u64 = 30;

/// Has a line of text reported when a store does not answer for some seconds, or fails for as long and requests to it are repeated.
/// The first call counts, for the whole process.
pub fn report_failing_stores(report: fn(&str)) {
    // A second call has no effect, as documented.
    let _kept = ON_FAILURE.set(report);
}

/// The real ones.
#[derive(Debug)]
pub struct SystemHost(Instant);

impl SystemHost {
    /// Time begins.
    pub fn new() -> SystemHost {
        SystemHost(Instant::now())
    }

    /// Reports a line about a store, if the last one was long ago.
    fn report(&self, line: std::fmt::Arguments<'_>) {
        let Some(report) = ON_FAILURE.get() else { return };
        let (now, next) = (self.now().as_secs(), NEXT_REPORT.load(Ordering::Relaxed));
        let order = Ordering::Relaxed;
        if now >= next && NEXT_REPORT.compare_exchange(next, now + REPORT_EVERY, order, order).is_ok() {
            report(&line.to_string());
        }
    }
}

impl Default for SystemHost {
    fn default() -> Self {
        SystemHost::new()
    }
}

impl Host for SystemHost {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
    fn store_fails(&self, store: &str, error: &StoreError) {
        self.report(format_args!("{store}: {error}; trying again"));
    }
    fn store_is_silent(&self, store: &str, time: Duration) {
        self.report(format_args!("waiting for {store}: no answer for {} s", time.as_secs()));
    }
    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
    fn random(&self) -> [u8; 16] {
        // Without randomness nothing can be promised, not even that names are used once.
        let mut out = [0; 16];
        getrandom::fill(&mut out).expect("the system's randomness");
        out
    }
    fn process(&self) -> Option<String> {
        ProcessName::own().map(|name| name.to_string())
    }
    fn has_ended(&self, process: &str) -> bool {
        ProcessName::parse(process).is_some_and(|name| name.has_ended())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Goal: a process has ended when it was killed, waited for or not; one that runs, one of another boot, and one that cannot be
    /// read have not. Method: this process and a child.
    #[test]
    fn ended_processes() {
        let own = ProcessName::own().expect("this process");
        assert_eq!(ProcessName::parse(&own.to_string()), Some(own.clone()));
        assert!(!own.has_ended());
        let mut child = std::process::Command::new("sleep").arg("600").spawn().expect("a child");
        let (start, _) = started(child.id()).expect("its start");
        let named = ProcessName { id: child.id(), start, ..own.clone() };
        assert!(!named.has_ended());
        assert!(ProcessName { start: start + 1, ..named.clone() }.has_ended(), "its number was used again");
        child.kill().expect("killed");
        while !started(child.id()).is_some_and(|(_, has_exited)| has_exited) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(named.has_ended(), "before its parent waited");
        child.wait().expect("waited");
        assert!(named.has_ended());
        assert!(!ProcessName { boot: "another".into(), ..named.clone() }.has_ended());
        assert!(!ProcessName { namespace: "another".into(), ..named }.has_ended());
        let host = SystemHost::new();
        for text in ["", "a b c d", "a b 1", "a b 1 2 3"] {
            assert!(!host.has_ended(text), "{text}");
        }
    }
}
