//! Removing streams that a policy does not keep, and objects that are no stream's.
//!
//! Streams are taken off the list first; from then on nobody finds them, and only then their objects are deleted. What a
//! stream that is kept, or an upload under way, is built on stays. A crash in between leaves objects that are on no
//! list, which the next run deletes.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use uuid::Uuid;

use super::list::{StreamEntry, StreamList};
use super::open::Streams;
use super::pieces::{PREFIX, stream_of};
use super::policy::{Policy, Reason};
use crate::create::each_listed;
use crate::error::RemoteError;
use crate::store::{Op, Ticket};

/// Deletions under way together.
const DELETIONS: usize = 32;

/// What a policy keeps and does not.
#[derive(Clone, Default, Debug)]
pub struct Pruned {
    /// The streams that stay, and why.
    pub kept: Vec<(StreamEntry, Vec<Reason>)>,
    /// Those that go.
    pub removed: Vec<StreamEntry>,
}

/// What was collected.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CollectedStreams {
    /// Objects that were deleted.
    pub deleted: u64,
    /// Their bytes.
    pub deleted_bytes: u64,
    /// Uploads that were given up since nothing of them was stored for so long.
    pub given_up: u64,
    /// Uploads that are under way.
    pub under_way: u64,
}

impl Pruned {
    fn of(list: &StreamList, policy: &Policy) -> Pruned {
        let mut reasons = policy.keep(&list.streams);
        let places: HashMap<Uuid, usize> = list.streams.iter().enumerate().map(|(at, s)| (s.id, at)).collect();
        for upload in &list.uploads {
            for at in upload.needs.iter().filter_map(|need| places.get(need)) {
                reasons[*at].push(Reason::NeededByUpload(upload.name.clone()));
            }
        }
        // What is needed has a lower number, so one way back finds all.
        for at in (0..list.streams.len()).rev() {
            if reasons[at].is_empty() {
                continue;
            }
            for need in list.streams[at].needs.iter().filter_map(|need| places.get(need)) {
                let by = Reason::NeededBy(list.streams[at].name.clone());
                if !reasons[*need].contains(&by) {
                    reasons[*need].push(by);
                }
            }
        }
        let mut out = Pruned::default();
        for (stream, why) in list.streams.iter().zip(reasons) {
            match why.is_empty() {
                true => out.removed.push(stream.clone()),
                false => out.kept.push((stream.clone(), why)),
            }
        }
        out
    }
}

impl Streams {
    /// What a policy would keep.
    ///
    /// # Errors
    /// The store fails, or the list is damaged.
    pub fn plan(&self, policy: &Policy) -> Result<Pruned, RemoteError> {
        Ok(Pruned::of(&self.list()?, policy))
    }

    /// Takes off the list what a policy does not keep. [`Streams::collect`] then deletes the objects.
    ///
    /// # Errors
    /// The store fails, the list is damaged, or the policy keeps nothing.
    pub fn prune(&self, policy: &Policy) -> Result<Pruned, RemoteError> {
        if policy.is_empty() {
            return Err(RemoteError::Limit { what: "a policy that keeps nothing would remove every stream".into() });
        }
        self.change(|list| {
            let pruned = Pruned::of(list, policy);
            let gone: HashSet<Uuid> = pruned.removed.iter().map(|stream| stream.id).collect();
            list.streams.retain(|stream| !gone.contains(&stream.id));
            Ok(pruned)
        })
    }

    /// Deletes objects of no stream and no upload, after giving up uploads of which nothing was stored for so long. With `dry` it only
    /// says what there is.
    ///
    /// # Errors
    /// The store fails, or the list is damaged.
    pub fn collect(&self, upload_age: Duration, dry: bool) -> Result<CollectedStreams, RemoteError> {
        let mut objects: HashMap<Uuid, Vec<(String, u64)>> = HashMap::new();
        let mut newest: HashMap<Uuid, u64> = HashMap::new();
        let deadline = self.options.host.now() + self.options.bounds.flush_max;
        each_listed(&*self.store, PREFIX, deadline, |listed| {
            if let Some(id) = stream_of(&listed.key) {
                objects.entry(id).or_default().push((listed.key.clone(), listed.len));
                let stored = listed.modified.map_or(0, |time| time.0);
                let last = newest.entry(id).or_default();
                *last = (*last).max(stored);
            }
        })?;
        let now = self.time();
        // An upload is on the list before its first object is stored: what is on no list that is read now is dead for ever.
        let (list, given_up) = if dry {
            let mut list = self.list()?;
            let given_up = give_up(&mut list, &newest, now, upload_age);
            (list, given_up)
        } else {
            self.change(|list| {
                let given_up = give_up(list, &newest, now, upload_age);
                Ok((list.clone(), given_up))
            })?
        };
        let streams = list.streams.iter().map(|stream| stream.id);
        let known: HashSet<Uuid> = streams.chain(list.uploads.iter().map(|upload| upload.id)).collect();
        objects.retain(|id, _| !known.contains(id));
        let dead: Vec<(String, u64)> = objects.into_values().flatten().collect();
        if !dry {
            for some in dead.chunks(DELETIONS) {
                let deadline = self.options.host.now() + self.options.bounds.flush_max;
                let delete = |key: &String| self.store.submit(Op::Delete { key: key.clone() }, deadline);
                let tickets: Vec<Ticket> = some.iter().map(|(key, _)| delete(key)).collect();
                for (ticket, (key, _)) in tickets.into_iter().zip(some) {
                    ticket.wait().map_err(|e| RemoteError::store("delete", key, e))?;
                }
            }
        }
        Ok(CollectedStreams {
            deleted: dead.len() as u64,
            deleted_bytes: dead.iter().map(|(_, len)| len).sum(),
            given_up,
            under_way: list.uploads.len() as u64,
        })
    }
}

/// Takes uploads off the list of which nothing was stored for so long; a store that tells no time keeps them.
fn give_up(list: &mut StreamList, newest: &HashMap<Uuid, u64>, now: u64, age: Duration) -> u64 {
    let before = list.uploads.len();
    if now > 0 {
        list.uploads.retain(|upload| {
            let last = newest.get(&upload.id).copied().unwrap_or_default().max(upload.begun);
            last == 0 || now.saturating_sub(last) < age.as_secs()
        });
    }
    (before - list.uploads.len()) as u64
}
