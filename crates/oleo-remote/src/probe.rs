//! Probing a store: does it keep the conditions that one writer at a time is built on, and what else is to be known of it.
//!
//! Below `probe-ID/`, objects are created twice, replaced under right and wrong conditions, and replaced by many in parallel;
//! they are read after they were written and after they were deleted, in part and in a list. A gateway that looks first and
//! writes then passes the first and fails where many race. Everything is deleted at the end, also after a failure.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{RemoteError, StoreError};
use crate::host::{Host, fill};
use crate::options::StoreOptions;
use crate::store::{
    Answer, Body, Cond, Deadline, Op, Retry, Store, StoreTime, TRY_MAX, Version, Waits, attempt, get, get_part,
    part_of, put,
};

/// Bytes of an object that is put in the place of another.
const HEAD_LEN: usize = 4096;

/// How thoroughly a store is probed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProbeOptions {
    /// How many race for one object; at least 2.
    pub racers: usize,
    /// How many races there are: one may be won by luck.
    pub rounds: u32,
    /// How often an object is replaced to find out how fast that is.
    pub replaces: u32,
}

impl ProbeOptions {
    /// What making a volume waits for.
    pub const SHORT: ProbeOptions = ProbeOptions { racers: 8, rounds: 1, replaces: 0 };
}

impl Default for ProbeOptions {
    fn default() -> Self {
        ProbeOptions { racers: 32, rounds: 3, replaces: 10 }
    }
}

/// What a store is like.
#[derive(Clone, Default, Debug)]
pub struct ProbeReport {
    /// What it does not keep; with any of these it is refused.
    pub failures: Vec<&'static str>,
    /// Whether it keeps old contents of objects: each replaced head stays and is paid for, until a rule of the bucket
    /// deletes it.
    pub versioned: bool,
    /// Its clock, and by how many seconds ours is ahead, if it tells.
    pub clock: Option<StoreTime>,
    /// Whether a listing showed what was just stored.
    pub lists_at_once: bool,
    /// How long it took to replace an object of 4 KiB under a condition, each time.
    pub replaces: Vec<Duration>,
    /// Operations that gave no clear answer.
    pub unclear: u64,
}

impl ProbeReport {
    /// An error if the store is to be refused.
    pub fn accepted(&self) -> Result<(), RemoteError> {
        match self.failures.first() {
            None => Ok(()),
            Some(which) => Err(RemoteError::NoConditions { which }),
        }
    }
}

struct Prober<'a> {
    store: Retry,
    /// Without repetitions.
    raw: &'a Arc<dyn Store>,
    host: &'a dyn Host,
    below: String,
    deadline: Deadline,
    report: ProbeReport,
}

/// Probes a store. An error means that it could not be probed.
pub fn probe(store: &Arc<dyn Store>, options: &StoreOptions, how: ProbeOptions) -> Result<ProbeReport, RemoteError> {
    let host = &*options.host;
    let mut prober = Prober {
        store: Retry::new(store.clone(), options.host.clone()),
        raw: store,
        host,
        below: format!("probe-{}", uuid::Uuid::from_bytes(host.random()).simple()),
        deadline: host.now() + options.bounds.attach_max,
        report: ProbeReport::default(),
    };
    let done = prober.all(how);
    prober.clean_up(how.rounds);
    done?;
    Ok(prober.report)
}

impl Prober<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.below)
    }

    fn fails(&mut self, what: &'static str) {
        if !self.report.failures.contains(&what) {
            self.report.failures.push(what);
        }
    }

    fn body(&self) -> Vec<u8> {
        let mut out = vec![0; HEAD_LEN];
        fill(self.host, &mut out[..32]);
        out
    }

    /// Stores, and finds out what became of it where the answer does not say; while the condition still holds it is asked for again. None: the
    /// condition did not hold.
    fn put(&mut self, name: &str, body: &[u8], cond: Cond) -> Result<Option<Version>, RemoteError> {
        let key = self.key(name);
        let mut waits = Waits::new();
        loop {
            let until = attempt(self.host, self.deadline, TRY_MAX);
            let failed = match put(&self.store, &key, Body::from(body.to_vec()), cond.clone(), until) {
                Ok(version) => return Ok(Some(version)),
                Err(StoreError::Condition | StoreError::Absent) => return Ok(None),
                Err(e @ (StoreError::Denied(_) | StoreError::NoBucket(_) | StoreError::Wrong(_))) => {
                    return Err(RemoteError::store("put", key, e));
                }
                Err(
                    e @ (StoreError::Unknown(_) | StoreError::TimedOut | StoreError::Throttled | StoreError::Away(_)),
                ) => e,
            };
            self.report.unclear += 1;
            let holds = match (self.get(name)?, &cond) {
                (Some((now, version)), _) if now == body => return Ok(Some(version)),
                (Some((_, there)), Cond::Match(version)) => there == *version,
                (None, Cond::Match(_)) | (Some(_), Cond::Absent) => false,
                (None, Cond::Absent) | (_, Cond::None) => true,
            };
            if !holds {
                return Ok(None);
            }
            if !waits.wait(self.host, self.deadline) {
                return Err(RemoteError::store("put", key, failed));
            }
        }
    }

    fn get(&self, name: &str) -> Result<Option<(Vec<u8>, Version)>, RemoteError> {
        let key = self.key(name);
        match get(&self.store, &key, HEAD_LEN as u64, self.deadline) {
            Ok(found) => Ok(Some(found)),
            Err(StoreError::Absent) => Ok(None),
            Err(e) => Err(RemoteError::store("get", key, e)),
        }
    }

    fn delete(&self, name: &str) -> Result<(), RemoteError> {
        let key = self.key(name);
        let gone = self.store.submit(Op::Delete { key: key.clone() }, self.deadline).wait();
        gone.map(|_| ()).map_err(|e| RemoteError::store("delete", key, e))
    }

    fn all(&mut self, how: ProbeOptions) -> Result<(), RemoteError> {
        self.conditions()?;
        self.reading()?;
        for round in 0..how.rounds {
            self.race(&format!("race-{round}"), how.racers.max(2))?;
        }
        self.rate(how.replaces)?;
        self.report.clock = self.store.now();
        Ok(())
    }

    /// One after the other.
    fn conditions(&mut self) -> Result<(), RemoteError> {
        let (first, second) = (self.body(), self.body());
        let Some(old) = self.put("one", &first, Cond::Absent)? else {
            self.fails("an object that is not there could not be created");
            return Ok(());
        };
        if self.put("one", &second, Cond::Absent)?.is_some() {
            self.fails("an object was created a second time");
        }
        if self.get("one")?.is_none_or(|(now, _)| now != first) {
            self.fails("what was stored is not read");
        }
        let replaced = self.put("one", &second, Cond::Match(old.clone()))?;
        let Some(new) = replaced else {
            self.fails("an object was not replaced although the condition held; with --remote bare-etags it may be");
            return Ok(());
        };
        self.report.versioned = new.generation.is_some();
        if self.put("one", &first, Cond::Match(old))?.is_some() {
            self.fails("an object that was replaced was replaced again under the old condition");
        }
        if self.get("one")?.is_none_or(|(now, _)| now != second) {
            self.fails("what was replaced is not read");
        }
        self.delete("one")?;
        if self.get("one")?.is_some() {
            self.fails("what was deleted is read");
        }
        if self.put("one", &first, Cond::Match(new))?.is_some() {
            self.fails("an object that was deleted was replaced");
        }
        Ok(())
    }

    /// Parts and lists.
    fn reading(&mut self) -> Result<(), RemoteError> {
        let body = self.body();
        self.put("part", &body, Cond::None)?;
        let key = self.key("part");
        let part = get_part(&self.store, &key, 8..24, self.deadline).wait().and_then(|answer| part_of(answer, 16));
        match part {
            Ok(part) if part == body[8..24] => {}
            Ok(_) | Err(StoreError::Wrong(_)) => self.fails("a part of an object is not read"),
            Err(e) => return Err(RemoteError::store("get", key, e)),
        }
        let list = Op::List { prefix: self.key(""), after: String::new(), count_max: 1000 };
        match self.store.submit(list, self.deadline).wait() {
            Ok(Answer::Listed(listed)) => self.report.lists_at_once = listed.iter().any(|object| object.key == key),
            Ok(_) => self.fails("a listing is none"),
            Err(e) => return Err(RemoteError::store("list", self.below.clone(), e)),
        }
        Ok(())
    }

    /// Many create one object, then many replace it: one each may succeed, and its bytes are there.
    fn race(&mut self, name: &str, racers: usize) -> Result<(), RemoteError> {
        let Some(version) = self.racers(name, racers, &Cond::Absent, "two created one object at once")? else {
            return Ok(());
        };
        self.racers(name, racers, &Cond::Match(version), "two replaced one object at once")?;
        Ok(())
    }

    fn racers(
        &mut self,
        name: &str,
        racers: usize,
        cond: &Cond,
        both: &'static str,
    ) -> Result<Option<Version>, RemoteError> {
        let bodies: Vec<Vec<u8>> = (0..racers).map(|_| self.body()).collect();
        let (key, deadline, raw) = (self.key(name), self.deadline, self.raw);
        let answers: Vec<Result<Answer, StoreError>> = std::thread::scope(|scope| {
            let begun: Vec<_> = bodies
                .iter()
                .map(|body| {
                    let op = Op::Put { key: key.clone(), body: Body::from(body.clone()), cond: cond.clone() };
                    scope.spawn(move || raw.submit(op, deadline).wait())
                })
                .collect();
            let lost = || Err(StoreError::Unknown("a thread is gone".into()));
            begun.into_iter().map(|thread| thread.join().unwrap_or_else(|_| lost())).collect()
        });
        let Some((now, version)) = self.get(name)? else {
            self.fails("what many stored at once is not there");
            return Ok(None);
        };
        let mut winners = 0;
        for (answer, body) in answers.iter().zip(&bodies) {
            match answer {
                Ok(_) => {
                    winners += 1;
                    if *body != now {
                        self.fails("what was stored is not read");
                    }
                }
                Err(StoreError::Condition | StoreError::Absent) => {}
                Err(_) => self.report.unclear += 1,
            }
        }
        if winners > 1 {
            self.fails(both);
        }
        Ok(Some(version))
    }

    /// How fast one object is replaced again and again, as flushes do.
    fn rate(&mut self, count: u32) -> Result<(), RemoteError> {
        let mut cond = Cond::Absent;
        for _ in 0..count {
            let (body, begun) = (self.body(), self.host.now());
            let Some(version) = self.put("rate", &body, cond)? else {
                self.fails(
                    "an object was not replaced although the condition held; with --remote bare-etags it may be",
                );
                return Ok(());
            };
            self.report.replaces.push(self.host.now() - begun);
            cond = Cond::Match(version);
        }
        Ok(())
    }

    fn clean_up(&self, rounds: u32) {
        let races = (0..rounds).map(|round| format!("race-{round}"));
        for name in ["one", "part", "rate"].map(String::from).into_iter().chain(races) {
            // What stays is a few KiB under a name of its own.
            let _gone = self.delete(&name);
        }
    }
}
