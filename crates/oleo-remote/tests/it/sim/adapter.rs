//! The simulated store as a [`Store`], and ways of using it wrongly that must be noticed.

use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oleo_remote::store::{Answer, Cond, Deadline, Listed, Op, Store, StoreTime, Ticket, Version};
use oleo_remote::{Host, Mistake, Place, StoreError, Url};
use oleo_sim::rng::Rng;
use oleo_sim::store::{self as sim, Failure, Reply, Request, World};

/// Where the branch is.
pub const BRANCH: &str = "branch/";
/// What a branch calls its parent.
pub const PARENT_URL: &str = "memory://world/parent";
/// How far the store's clock is off at most, seconds, for one client: together at most what leases allow.
const STORE_CLOCK_OFF: i64 = 1700;
/// When the store's clock says 0.
const STORE_CLOCK: i64 = 1_000_000;

/// How a store, or the use of it, is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// Not at all.
    Nothing,
    /// An answer that says nothing is taken for success.
    TrustsUnknown,
    /// A head is published without waiting for its segments.
    DoesNotWait,
    /// Conditions are ignored, except by the probe of an attach.
    NoConditions,
    /// Who deletes does not know of pins.
    IgnoresPins,
    /// Who makes a pin does not look at the head again.
    LooksOnce,
    /// For readers the store's clock is hours back.
    ClockFarBack,
    /// What a simulated host can ask for.
    Makes(Mistake),
}

thread_local! {
    /// The number of the client that this thread is.
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

/// This thread is a client from now on.
pub fn be(number: usize) {
    NUMBER.set(number);
}

/// Which client this thread is.
pub fn here() -> usize {
    NUMBER.get()
}

/// The clocks of a machine.
#[derive(Default)]
pub struct Clocks {
    /// How far its own is ahead, seconds: that of no machine is that of another, and one that was suspended jumps.
    own: AtomicU64,
    /// How far the store's is off for it, seconds.
    store: AtomicI64,
}

impl Clocks {
    /// Those of a machine that begins.
    pub fn new(number: usize) -> Clocks {
        Clocks { own: (number as u64 * 1_000_003).into(), store: 0.into() }
    }

    /// They change: its own jumps at times, that of the store goes forth and back.
    pub fn change(&self, rng: &mut Rng, wrong: Wrong, number: usize) {
        if rng.one_in(4) {
            self.own.fetch_add(rng.below(60), Ordering::Relaxed);
        }
        let off = rng.below(2 * STORE_CLOCK_OFF as u64) as i64 - STORE_CLOCK_OFF;
        let far = wrong == Wrong::ClockFarBack && number >= crate::sim::WRITERS;
        self.store.store(if far { off - 4 * 3600 } else { off }, Ordering::Relaxed);
    }
}

type Hook = Box<dyn Fn() + Send + Sync>;

/// One client's way to the store.
#[derive(Clone)]
pub struct Client {
    /// Whether the volume is.
    pub sealed: bool,
    pub world: Arc<World>,
    pub number: usize,
    /// Where the volume is: nothing, or [`BRANCH`].
    pub prefix: &'static str,
    pub wrong: Wrong,
    pub clocks: Arc<Clocks>,
    /// Called before others go on.
    pub before_others: Arc<Mutex<Option<Hook>>>,
    /// What is found under `head`, for one that makes a pin and looks once.
    pub seen: Option<Arc<Mutex<Option<Answer>>>>,
}

impl Client {
    fn ahead(&self) -> Duration {
        Duration::from_secs(self.clocks.own.load(Ordering::Relaxed))
    }

    /// The same one's way to another prefix.
    pub fn at(&self, prefix: &'static str) -> Client {
        Client { prefix, ..self.clone() }
    }

    fn others_go_on(&self) {
        if let Some(hook) = &*self.before_others.lock().expect("lock") {
            hook();
        }
    }
}

impl Host for Client {
    fn now(&self) -> Duration {
        self.world.now(here()) + self.ahead()
    }
    fn sleep(&self, time: Duration) {
        self.others_go_on();
        self.world.sleep(here(), time);
    }
    fn random(&self) -> [u8; 16] {
        self.world.random(here())
    }
    fn store(&self, url: &Url) -> Option<Arc<dyn Store>> {
        let parent = matches!(&url.place, Place::Memory { name, .. } if name == "world");
        parent.then(|| Arc::new(self.at("")) as Arc<dyn Store>)
    }
    fn makes(&self, mistake: Mistake) -> bool {
        self.wrong == Wrong::Makes(mistake)
    }
}

fn version(number: u64) -> Version {
    Version { etag: number.to_string(), generation: None }
}

fn listed((key, len, stored): (String, u64, Duration), prefix: &str) -> Listed {
    let key = key.strip_prefix(prefix).unwrap_or(&key).to_owned();
    Listed { key, len, modified: Some(StoreTime(STORE_CLOCK as u64 + stored.as_secs())) }
}

fn answer(reply: Reply, whole: bool, prefix: &str) -> Answer {
    match reply {
        Reply::Object(body, number) => Answer::Object { body, version: whole.then(|| version(number)) },
        Reply::Stored(number) => Answer::Stored(version(number)),
        Reply::Deleted => Answer::Deleted,
        Reply::Listed(keys) => Answer::Listed(keys.into_iter().map(|key| listed(key, prefix)).collect()),
    }
}

fn error(failure: Failure) -> StoreError {
    match failure {
        Failure::Absent => StoreError::Absent,
        Failure::Condition => StoreError::Condition,
        Failure::Unknown => StoreError::Unknown("cut off".into()),
        Failure::Throttled => StoreError::Throttled,
        Failure::Away => StoreError::Away("gone".into()),
        Failure::Wrong => StoreError::Wrong("beyond the end".into()),
        Failure::TimedOut => StoreError::TimedOut,
    }
}

impl Store for Client {
    fn submit(&self, op: Op, deadline: Deadline) -> Ticket {
        let whole = matches!(op, Op::Get { range: None, .. });
        let conditional = !op.may_repeat();
        let (is_head, is_pins) = (op.key() == "head" && whole, op.key() == "pins" && whole);
        if self.wrong == Wrong::IgnoresPins && is_pins && self.number < crate::sim::WRITERS {
            return Ticket::new(|| Err(StoreError::Absent));
        }
        let seen = self.seen.clone().filter(|_| is_head && self.wrong == Wrong::LooksOnce);
        if let Some(head) = seen.as_ref().and_then(|seen| seen.lock().expect("lock").clone()) {
            return Ticket::new(|| Ok(head));
        }
        let is_segment = op.key().starts_with("seg/") && matches!(op, Op::Put { .. });
        let prefix = self.prefix;
        let below = |key: String| format!("{prefix}{key}");
        let mut known = None;
        let request = match op {
            Op::Get { key, range, if_changed, .. } => {
                known = if_changed;
                Request::Get(below(key), range)
            }
            Op::Put { key, body, cond } => {
                let key = below(key);
                let cond = match cond {
                    Cond::None => sim::Cond::None,
                    Cond::Absent => sim::Cond::Absent,
                    Cond::Match(version) => sim::Cond::Version(version.etag.parse().unwrap_or(0)),
                };
                // The probe of an attach puts what is there already; a gateway that keeps no conditions may notice that.
                let same = || self.world.object(&key).is_some_and(|there| *there == body.to_vec());
                let ignored = self.wrong == Wrong::NoConditions && !same();
                Request::Put(key, Arc::new(body.to_vec()), if ignored { sim::Cond::None } else { cond })
            }
            Op::Delete { key } => Request::Delete(below(key)),
            Op::List { prefix, after, count_max } => Request::List(below(prefix), below(after), count_max),
        };
        let (client, wrong) = (self.clone(), self.wrong);
        let id = self.world.send(here(), request, deadline.saturating_sub(self.ahead()));
        if wrong == Wrong::DoesNotWait && is_segment {
            return Ticket::new(|| Ok(Answer::Stored(version(0))));
        }
        Ticket::new(move || {
            client.others_go_on();
            match client.world.wait(here(), id) {
                Ok(Reply::Object(_, number)) if known == Some(version(number)) => Ok(Answer::NotChanged),
                Ok(reply) => {
                    let answer = answer(reply, whole, prefix);
                    if let Some(seen) = seen {
                        *seen.lock().expect("lock") = Some(answer.clone());
                    }
                    Ok(answer)
                }
                Err(Failure::Unknown) if wrong == Wrong::TrustsUnknown && conditional => {
                    Ok(Answer::Stored(version(id)))
                }
                Err(failure) => Err(error(failure)),
            }
        })
    }

    fn describe(&self) -> String {
        format!("sim://{}", self.number)
    }

    fn now(&self) -> Option<StoreTime> {
        let off = self.clocks.store.load(Ordering::Relaxed);
        Some(StoreTime((self.world.store_now().as_secs() as i64 + STORE_CLOCK + off) as u64))
    }
}
