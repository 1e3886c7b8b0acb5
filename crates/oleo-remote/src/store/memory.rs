//! Stores in the memory of the process, by name, for tests and for trying things out.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use oleo_lock::{Mutex, rank};

use super::{Answer, Cond, Deadline, Listed, Op, Store, StoreTime, Ticket, Version, is_key, odd};
use crate::error::StoreError;

/// An object, and how many there were before it in this store.
struct Object {
    body: Arc<Vec<u8>>,
    number: u64,
    stored: Option<StoreTime>,
}

#[derive(Default)]
struct Objects {
    by_key: BTreeMap<String, Object>,
    stored: u64,
}

type Shared = Arc<Mutex<rank::RemoteMemory, Objects>>;

/// A store in memory; its operations are over when they have begun.
pub struct MemoryStore {
    name: String,
    prefix: String,
    objects: Shared,
}

impl MemoryStore {
    /// The store of this name in the process, and a prefix on it, without slashes around it.
    pub fn open(name: &str, prefix: &str) -> MemoryStore {
        static STORES: OnceLock<Mutex<rank::RemoteMemory, HashMap<String, Shared>>> = OnceLock::new();
        let mut stores = STORES.get_or_init(Mutex::default).lock();
        let objects = stores.entry(name.into()).or_default().clone();
        MemoryStore { name: name.into(), prefix: format!("{prefix}/"), objects }
    }

    /// A store of its own, which goes with its last copy.
    pub fn new() -> MemoryStore {
        MemoryStore { name: "unnamed".into(), prefix: String::new(), objects: Shared::default() }
    }

    /// The same store.
    pub fn copy(&self) -> MemoryStore {
        MemoryStore { name: self.name.clone(), prefix: self.prefix.clone(), objects: self.objects.clone() }
    }

    fn carry_out(&self, op: Op) -> Result<Answer, StoreError> {
        let mut objects = self.objects.lock();
        if !matches!(op, Op::List { .. }) && !is_key(op.key()) {
            return Err(odd(&format!("key {:?}", op.key())));
        }
        match op {
            Op::Get { key, range, len_max, if_changed } => {
                let object = objects.by_key.get(&(self.prefix.clone() + &key)).ok_or(StoreError::Absent)?;
                let version = version(object);
                if if_changed.as_ref() == Some(&version) {
                    return Ok(Answer::NotChanged);
                }
                let all = 0..object.body.len() as u64;
                let range = range.unwrap_or(all);
                let part = object.body.get(range.start as usize..range.end as usize);
                let part = part
                    .filter(|part| part.len() as u64 <= len_max)
                    .ok_or_else(|| odd("beyond the end, or too long"))?;
                Ok(Answer::Object { body: part.to_vec(), version: Some(version) })
            }
            Op::Put { key, body, cond } => {
                let key = self.prefix.clone() + &key;
                let there = objects.by_key.get(&key).map(version);
                let holds = match cond {
                    Cond::None => true,
                    Cond::Absent => there.is_none(),
                    Cond::Match(version) => there == Some(version),
                };
                if !holds {
                    return Err(StoreError::Condition);
                }
                objects.stored += 1;
                let object = Object { body: Arc::new(body.to_vec()), number: objects.stored, stored: time() };
                let stored = version(&object);
                objects.by_key.insert(key, object);
                Ok(Answer::Stored(stored))
            }
            Op::Delete { key } => {
                objects.by_key.remove(&(self.prefix.clone() + &key));
                Ok(Answer::Deleted)
            }
            Op::List { prefix, after, count_max } => {
                let prefix = self.prefix.clone() + &prefix;
                let after = self.prefix.clone() + &after;
                let from = objects.by_key.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(&prefix));
                let listed = from.filter(|(key, _)| **key > after).take(count_max).map(|(key, object)| Listed {
                    key: key[self.prefix.len()..].into(),
                    len: object.body.len() as u64,
                    modified: object.stored,
                });
                Ok(Answer::Listed(listed.collect()))
            }
        }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        MemoryStore::new()
    }
}

fn version(object: &Object) -> Version {
    Version { etag: object.number.to_string(), generation: None }
}

/// The clock of the machine.
fn time() -> Option<StoreTime> {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(StoreTime(since.as_secs()))
}

impl Store for MemoryStore {
    fn submit(&self, op: Op, _deadline: Deadline) -> Ticket {
        let answer = self.carry_out(op);
        Ticket::new(move || answer)
    }
    fn describe(&self) -> String {
        format!("memory://{}/{}", self.name, self.prefix.trim_end_matches('/'))
    }
    fn now(&self) -> Option<StoreTime> {
        time()
    }
}
