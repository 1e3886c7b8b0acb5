//! The simulated store as a [`Store`], and ways of using it wrongly that must be noticed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use oleo_remote::store::{Answer, Cond, Deadline, Listed, Op, Store, StoreTime, Ticket, Version};
use oleo_remote::{Host, StoreError};
use oleo_sim::store::{self as sim, Failure, Reply, Request, World};

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
}

/// One client's way to the store.
#[derive(Clone)]
pub struct Client {
    /// Whether the volume is.
    pub sealed: bool,
    pub world: Arc<World>,
    pub number: usize,
    pub wrong: Wrong,
    /// What is found under `head`, for one that makes a pin and looks once.
    pub seen: Option<Arc<Mutex<Option<Answer>>>>,
}

impl Host for Client {
    fn now(&self) -> Duration {
        self.world.now(self.number)
    }
    fn sleep(&self, time: Duration) {
        self.world.sleep(self.number, time);
    }
    fn random(&self) -> [u8; 16] {
        self.world.random(self.number)
    }
}

fn version(number: u64) -> Version {
    Version { etag: number.to_string(), generation: None }
}

fn listed((key, len, stored): (String, u64, Duration)) -> Listed {
    Listed { key, len, modified: Some(StoreTime(stored.as_secs())) }
}

fn answer(reply: Reply, whole: bool) -> Answer {
    match reply {
        Reply::Object(body, number) => Answer::Object { body, version: whole.then(|| version(number)) },
        Reply::Stored(number) => Answer::Stored(version(number)),
        Reply::Deleted => Answer::Deleted,
        Reply::Listed(keys) => Answer::Listed(keys.into_iter().map(listed).collect()),
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
        if self.wrong == Wrong::IgnoresPins && is_pins && self.number < crate::WRITERS {
            return Ticket::new(|| Err(StoreError::Absent));
        }
        let seen = self.seen.clone().filter(|_| is_head && self.wrong == Wrong::LooksOnce);
        if let Some(head) = seen.as_ref().and_then(|seen| seen.lock().expect("lock").clone()) {
            return Ticket::new(|| Ok(head));
        }
        let is_segment = op.key().starts_with("seg/") && matches!(op, Op::Put { .. });
        let request = match op {
            Op::Get { key, range, .. } => Request::Get(key, range),
            Op::Put { key, body, cond } => {
                let cond = match cond {
                    Cond::None => sim::Cond::None,
                    Cond::Absent => sim::Cond::Absent,
                    Cond::Match(version) => sim::Cond::Version(version.etag.parse().unwrap_or(0)),
                };
                // The probe of an attach puts what is there already; a gateway that keeps no conditions may notice that.
                let same = || self.world.stored().get(&key).is_some_and(|there| **there == body.to_vec());
                let ignored = self.wrong == Wrong::NoConditions && !same();
                Request::Put(key, Arc::new(body.to_vec()), if ignored { sim::Cond::None } else { cond })
            }
            Op::Delete { key } => Request::Delete(key),
            Op::List { prefix, after, count_max } => Request::List(prefix, after, count_max),
        };
        let (world, number, wrong) = (self.world.clone(), self.number, self.wrong);
        let id = world.send(number, request, deadline);
        if wrong == Wrong::DoesNotWait && is_segment {
            return Ticket::new(|| Ok(Answer::Stored(version(0))));
        }
        Ticket::new(move || match world.wait(number, id) {
            Ok(reply) => {
                let answer = answer(reply, whole);
                if let Some(seen) = seen {
                    *seen.lock().expect("lock") = Some(answer.clone());
                }
                Ok(answer)
            }
            Err(Failure::Unknown) if wrong == Wrong::TrustsUnknown && conditional => Ok(Answer::Stored(version(id))),
            Err(failure) => Err(error(failure)),
        })
    }

    fn describe(&self) -> String {
        format!("sim://{}", self.number)
    }

    fn now(&self) -> Option<StoreTime> {
        Some(StoreTime(self.world.store_now().as_secs()))
    }
}
