//! The simulated store as a [`Store`], and ways of using it wrongly that must be noticed.

use std::sync::Arc;
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
}

/// One client's way to the store.
#[derive(Clone)]
pub struct Client {
    pub world: Arc<World>,
    pub number: usize,
    pub wrong: Wrong,
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

fn answer(reply: Reply, whole: bool) -> Answer {
    match reply {
        Reply::Object(body, number) => Answer::Object { body, version: whole.then(|| version(number)) },
        Reply::Stored(number) => Answer::Stored(version(number)),
        Reply::Deleted => Answer::Deleted,
        Reply::Listed(keys) => {
            Answer::Listed(keys.into_iter().map(|(key, len)| Listed { key, len, modified: None }).collect())
        }
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
            Ok(reply) => Ok(answer(reply, whole)),
            Err(Failure::Unknown) if wrong == Wrong::TrustsUnknown && conditional => Ok(Answer::Stored(version(id))),
            Err(failure) => Err(error(failure)),
        })
    }

    fn describe(&self) -> String {
        format!("sim://{}", self.number)
    }

    fn now(&self) -> Option<StoreTime> {
        None
    }
}
