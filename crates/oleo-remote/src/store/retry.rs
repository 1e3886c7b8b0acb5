//! A store whose operations are repeated until they succeed or their deadline comes, where that is safe.
//!
//! Getting, listing, deleting and unconditional storing are: the same bytes go under the same name. Conditional storing
//! is passed through, once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Answer, Deadline, Op, Store, StoreTime, Ticket};
use crate::error::StoreError;
use crate::host::Host;

/// By which name it counts what it repeats.
pub(crate) const REPEATED: &str = "requests repeated";
/// The first wait before another attempt.
const WAIT_MIN: Duration = Duration::from_millis(100);
/// The longest one.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// How long a store fails, or does not answer, before that is reported.
pub(crate) const SILENT_MAX: Duration = Duration::from_secs(2);
/// How long one attempt may take, and what is added for its bytes.
pub(crate) const TRY_MAX: Duration = Duration::from_secs(20);
pub(crate) const BYTES_PER_SECOND_MIN: u64 = 1 << 20;

/// See the module's text.
pub struct Retry {
    inner: Arc<dyn Store>,
    host: Arc<dyn Host>,
    repeated: Arc<AtomicU64>,
}

impl Retry {
    /// Around a store.
    pub fn new(inner: Arc<dyn Store>, host: Arc<dyn Host>) -> Retry {
        Retry { inner, host, repeated: Arc::default() }
    }
}

/// Waits of growing length with chance in them, so that many clients do not come back together: each is between the
/// least and three times the one before.
pub(crate) struct Waits {
    last: Duration,
}

impl Waits {
    pub(crate) fn new() -> Waits {
        Waits { last: WAIT_MIN }
    }

    /// Waits; false: the deadline would pass.
    pub(crate) fn wait(&mut self, host: &dyn Host, deadline: Deadline) -> bool {
        let [low, high, ..] = host.random();
        let span = (self.last * 3).min(WAIT_MAX).saturating_sub(WAIT_MIN);
        self.last = WAIT_MIN + span * u32::from(u16::from_le_bytes([low, high])) / 65536;
        if host.now() + self.last >= deadline {
            return false;
        }
        host.sleep(self.last);
        true
    }
}

/// When one attempt at a conditional operation is to be over: after `max`, and in any case while as much time is left to look what
/// became of it.
pub(crate) fn attempt(host: &dyn Host, deadline: Deadline, max: Duration) -> Deadline {
    let now = host.now();
    now + (deadline.saturating_sub(now) / 2).min(max)
}

fn is_passing(error: &StoreError) -> bool {
    match error {
        StoreError::Unknown(_) | StoreError::Throttled | StoreError::Away(_) | StoreError::TimedOut => true,
        // Who asked knows how often to ask again for what makes no sense.
        StoreError::Absent
        | StoreError::Condition
        | StoreError::Denied(_)
        | StoreError::NoBucket(_)
        | StoreError::Wrong(_) => false,
    }
}

impl Store for Retry {
    fn submit(&self, op: Op, deadline: Deadline) -> Ticket {
        oleo_lock::before_io();
        if !op.may_repeat() {
            return self.inner.submit(op, deadline);
        }
        let (inner, host, repeated) = (self.inner.clone(), self.host.clone(), self.repeated.clone());
        let len = match &op {
            Op::Get { len_max, .. } => *len_max,
            Op::Put { body, .. } => body.len(),
            Op::Delete { .. } | Op::List { .. } => 0,
        };
        let once = TRY_MAX + Duration::from_secs(len / BYTES_PER_SECOND_MIN);
        let began = host.now();
        let first = inner.submit(op.clone(), deadline.min(began + once));
        Ticket::new(move || {
            let mut answer = first.wait();
            let (mut waits, mut reported) = (Waits::new(), false);
            loop {
                match &answer {
                    Err(error) if is_passing(error) => {
                        if !reported && host.now().saturating_sub(began) >= SILENT_MAX {
                            host.store_fails(&inner.describe(), error);
                            reported = true;
                        }
                    }
                    Ok(
                        Answer::Object { .. }
                        | Answer::NotChanged
                        | Answer::Stored(_)
                        | Answer::Deleted
                        | Answer::Listed(_),
                    )
                    | Err(_) => return answer,
                }
                if !waits.wait(&*host, deadline) {
                    return answer;
                }
                repeated.fetch_add(1, Ordering::Relaxed);
                answer = inner.submit(op.clone(), deadline.min(host.now() + once)).wait();
            }
        })
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn now(&self) -> Option<StoreTime> {
        self.inner.now()
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let mut counts = self.inner.counts();
        counts.push((REPEATED, self.repeated.load(Ordering::Relaxed)));
        counts
    }
}
