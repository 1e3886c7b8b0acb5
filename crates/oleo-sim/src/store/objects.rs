//! What is stored.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{Cond, Failure, Reply, Request};

struct Object {
    bytes: Arc<Vec<u8>>,
    version: u64,
    stored: Duration,
}

/// Objects by key, and what was there before.
#[derive(Default)]
pub(super) struct Objects {
    by_key: BTreeMap<String, Object>,
    /// What a key had before its newest contents.
    before: BTreeMap<String, (Arc<Vec<u8>>, u64)>,
    stored: u64,
}

impl Objects {
    pub(super) fn all(&self) -> BTreeMap<String, Arc<Vec<u8>>> {
        self.by_key.iter().map(|(key, object)| (key.clone(), object.bytes.clone())).collect()
    }

    pub(super) fn get(&self, key: &str) -> Option<Arc<Vec<u8>>> {
        self.by_key.get(key).map(|object| object.bytes.clone())
    }

    /// Carries a request out; `old`: what is read is of some time ago, where there was something.
    pub(super) fn carry_out(&mut self, request: &Request, old: bool, now: Duration) -> Result<Reply, Failure> {
        match request {
            Request::Get(key, range) => {
                let newest = self.by_key.get(key).map(|o| (o.bytes.clone(), o.version));
                let before = self.before.get(key).cloned().filter(|_| old);
                let (bytes, version) = before.or(newest).ok_or(Failure::Absent)?;
                let part = match range {
                    None => bytes.to_vec(),
                    Some(r) => bytes.get(r.start as usize..r.end as usize).ok_or(Failure::Wrong)?.to_vec(),
                };
                Ok(Reply::Object(part, version))
            }
            Request::Put(key, bytes, cond) => {
                let there = self.by_key.get(key).map(|o| o.version);
                let holds = match cond {
                    Cond::None => true,
                    Cond::Absent => there.is_none(),
                    Cond::Version(version) => there == Some(*version),
                };
                if !holds {
                    return Err(Failure::Condition);
                }
                self.stored += 1;
                let object = Object { bytes: bytes.clone(), version: self.stored, stored: now };
                if let Some(gone) = self.by_key.insert(key.clone(), object) {
                    self.before.insert(key.clone(), (gone.bytes, gone.version));
                }
                Ok(Reply::Stored(self.stored))
            }
            Request::Delete(key) => {
                if let Some(gone) = self.by_key.remove(key) {
                    self.before.insert(key.clone(), (gone.bytes, gone.version));
                }
                Ok(Reply::Deleted)
            }
            Request::List(prefix, after, count_max) => {
                let all = self.by_key.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(prefix));
                let newest = self.stored;
                // An old listing lacks what is new.
                let some = all.filter(|(key, o)| *key > after && !(old && o.version + 3 > newest));
                Ok(Reply::Listed(
                    some.take(*count_max).map(|(k, o)| (k.clone(), o.bytes.len() as u64, o.stored)).collect(),
                ))
            }
        }
    }
}
