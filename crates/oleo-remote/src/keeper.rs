//! The threads of an open volume, for what has to be done although no caller asks for it at the moment.
//!
//! For a writer: (0) what only the local log has is published, every second; (1) the claim is renewed ([`renew_claim`]). (2) Dead objects are deleted after their time of grace, and orphans once a day. (3) When nothing was written
//! for a while, a checkpoint gives what died its graves, and segments of which little lives are emptied, slowly. For a
//! reader: a lease is taken when it has been open for some time, and renewed.
//!
//! A writer has a thread of its own for (0) and (1): collecting may take longer than the claim. Nothing depends on them but space and how long others wait for the volume: what fails here is tried again the next time, or
//! has ended writing and is told to whoever writes next.
//!
//! They end when the device is dropped, which waits for the requests that are under way.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::collect::{Wanted, delete_dead, remove_orphans, repack};
use crate::error::RemoteError;
use crate::flush::{checkpoint_now, publish, publish_behind, renew_claim};
use crate::pin::{LEASE_SECONDS, Lease, renew_lease, take_lease, withdraw};
use crate::shared::Core;

/// The longest and the shortest time between two looks.
const LOOK_MAX: Duration = Duration::from_secs(10);
const LOOK_MIN: Duration = Duration::from_millis(50);
/// How often what only the local log has is published.
const BEHIND_EVERY: Duration = Duration::from_secs(1);
/// How often what is dead is deleted.
const DELETE_EVERY: Duration = Duration::from_secs(300);
/// How often orphans are looked for, and how old they are then.
const ORPHANS_EVERY: Duration = Duration::from_secs(24 * 3600);
/// For how long nothing is written before segments are emptied, and how often, and how much.
const IDLE_MIN: Duration = Duration::from_secs(30);
const REPACK_EVERY: Duration = Duration::from_secs(60);
const REPACK_BYTES: u64 = 64 << 20;
/// How often a lease is renewed.
const LEASE_EVERY: Duration = Duration::from_secs(LEASE_SECONDS / 3);
/// A checkpoint is made for the sake of what it gives graves to, when there are so many segments of which nothing lives.
const DEAD_COUNT_MIN: usize = 4;

/// The threads of an open volume.
pub(crate) struct Keeper {
    threads: Vec<(Sender<()>, JoinHandle<()>)>,
}

impl Keeper {
    /// Starts them.
    pub(crate) fn start(core: Arc<Core>) -> Result<Keeper, RemoteError> {
        let mut keeper = Keeper { threads: Vec::new() };
        if core.write {
            keeper.spawn("oleo-claim", core.clone(), hold_claim)?;
        }
        keeper.spawn("oleo-keeper", core, keep)?;
        Ok(keeper)
    }

    fn spawn(&mut self, name: &str, core: Arc<Core>, body: fn(&Core, &Receiver<()>)) -> Result<(), RemoteError> {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || body(&core, &stopped));
        let thread = thread.map_err(|e| RemoteError::Limit { what: format!("no thread for the volume: {e}") })?;
        self.threads.push((stop, thread));
        Ok(())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let (stops, threads): (Vec<_>, Vec<_>) = self.threads.drain(..).unzip();
        drop(stops);
        for thread in threads {
            // It has nothing to say: a panic of it was printed.
            let _ended = thread.join();
        }
    }
}

/// Renews the claim of a writer, and publishes what only the local log has.
fn hold_claim(core: &Core, stopped: &Receiver<()>) {
    let look = match core.options.claim {
        _ if core.log.is_some() => BEHIND_EVERY,
        Duration::ZERO => return,
        claim => (claim / 8).clamp(LOOK_MIN, LOOK_MAX),
    };
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(look) {
        if core.latch.get().is_some() {
            return;
        }
        publish_behind(core);
        renew_claim(core);
    }
}

fn keep(core: &Core, stopped: &Receiver<()>) {
    let position = core.state.lock().position();
    let mut schedule = Schedule::new(core.options.host.now(), position);
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(LOOK_MAX) {
        if core.latch.get().is_some() || core.given_up.load(Ordering::Acquire) {
            return;
        }
        let position = core.state.lock().position();
        for duty in schedule.due(core.options.host.now(), position, core.write) {
            // What fails is tried again the next time.
            let _later = perform(core, duty);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Duty {
    Delete,
    Orphans,
    Repack,
    Lease,
}

fn perform(core: &Core, duty: Duty) -> Result<(), RemoteError> {
    match duty {
        // A read of our own that is under way may still want it.
        Duty::Delete => _ = delete_dead(core, core.options.grace.max(core.options.bounds.read_max))?,
        Duty::Orphans => _ = remove_orphans(core, ORPHANS_EVERY)?,
        Duty::Repack => {
            if core.state.lock().dead_count() >= DEAD_COUNT_MIN {
                checkpoint_now(core)?;
            }
            if repack(core, REPACK_BYTES, Wanted::Sparse)? > 0 {
                let position = core.state.lock().position();
                publish(core, position, false)?;
            }
        }
        Duty::Lease => keep_moment(core)?,
    }
    Ok(())
}

/// Renews the lease of a reader, or takes the first: who reads for a short time needs none, since what dies stays for a while.
fn keep_moment(core: &Core) -> Result<(), RemoteError> {
    if let Some(lease) = core.lease.get() {
        return renew_lease(&*core.store, lease, &core.options);
    }
    let head = core.published.lock().head.clone();
    let deadline = core.deadline(core.options.bounds.attach_max);
    if let Lease::Taken(lease) = take_lease(&core.store, &head, &core.options, deadline)? {
        let lease = core.lease.get_or_init(|| lease);
        // Whoever gives up says so and then looks for a lease: either sees the other.
        if core.given_up.load(Ordering::SeqCst) {
            return withdraw(&*core.store, lease, &core.options, deadline);
        }
    }
    Ok(())
}

/// When what is to be done next.
struct Schedule {
    delete: Duration,
    orphans: Duration,
    repack: Duration,
    lease: Duration,
    /// The position at the last look, and since when it is that.
    position: u64,
    since: Duration,
}

impl Schedule {
    fn new(now: Duration, position: u64) -> Schedule {
        // Orphans for the first time after an hour: many volumes are never open for a day.
        let orphans = now + ORPHANS_EVERY / 24;
        Schedule { delete: now, orphans, repack: now, lease: now + LEASE_EVERY, position, since: now }
    }

    /// What is to be done now.
    fn due(&mut self, now: Duration, position: u64, write: bool) -> Vec<Duty> {
        let mut out = Vec::new();
        let mut every = |next: &mut Duration, time: Duration, duty| {
            if now >= *next {
                *next = now + time;
                out.push(duty);
            }
        };
        if !write {
            every(&mut self.lease, LEASE_EVERY, Duty::Lease);
            return out;
        }
        if position != self.position {
            (self.position, self.since) = (position, now);
        }
        every(&mut self.delete, DELETE_EVERY, Duty::Delete);
        every(&mut self.orphans, ORPHANS_EVERY, Duty::Orphans);
        if now.saturating_sub(self.since) >= IDLE_MIN {
            every(&mut self.repack, REPACK_EVERY, Duty::Repack);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: everything is done in its time, what takes the store's time only when nobody writes, and for a reader its lease.
    /// Method: looks every ten seconds for two days; something is written all of the first.
    #[test]
    fn two_days() {
        let mut schedule = Schedule::new(Duration::ZERO, 0);
        let mut reader = Schedule::new(Duration::ZERO, 0);
        let (day, mut done) = (24 * 360, Vec::new());
        for look in 1..=2 * day {
            let now = Duration::from_secs(look * 10);
            let position = look.min(day);
            for duty in schedule.due(now, position, true) {
                assert!(duty != Duty::Repack || look > day + 2, "busy at {look}");
                done.push(duty);
            }
            done.extend(reader.due(now, 0, false));
        }
        let count = |duty| done.iter().filter(|&&d| d == duty).count() as u64;
        assert_eq!(count(Duty::Delete), 2 * day / 30);
        assert_eq!(count(Duty::Orphans), 2);
        assert_eq!(count(Duty::Lease), 2 * day / 60);
        assert!((day / 6 - 2..=day / 6).contains(&count(Duty::Repack)), "{}", count(Duty::Repack));
    }
}
