//! Opening the list of streams, and changing it.
//!
//! Changing: the list is read, edited, and put back on condition that it is still the same. Any other answer than success is
//! settled by what is read afterwards: one of our own commit ids means that it was done; everything else means again, with what is there
//! now. So edits find out by themselves whether they were applied before and somebody else's change came on top.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use uuid::Uuid;

use super::list::{LIST, LIST_LEN_MAX, Outline, StreamList};
use super::pieces::Packing;
use crate::disk_cache::volume_dir;
use crate::error::{RemoteError, StoreError};
use crate::host::nonce;
use crate::open_store::open_store;
use crate::options::StoreOptions;
use crate::seal::Key;
use crate::seen;
use crate::store::{Body, Cond, Deadline, Retry, Store, StoreTime, Version, Waits, attempt, get, put};
use crate::swap::WRONG_TRIES;
use crate::url::Url;

/// Longest owner text that is kept, bytes.
const BY_LEN_MAX: usize = 512;

/// Where streams are, and which of them is meant: a URL, perhaps with `?snapshot=NAME`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamName {
    /// Where.
    pub url: Url,
    /// The snapshot, by its name, its UUID or the id of its stream; else the newest.
    pub snapshot: Option<String>,
}

impl StreamName {
    /// Reads it.
    ///
    /// # Errors
    /// It is no URL of a store, or has a pin.
    pub fn parse(name: &str) -> Result<StreamName, RemoteError> {
        let odd = |what: &str| {
            let url = name.chars().take(200).flat_map(char::escape_debug).collect();
            RemoteError::Url { url, what: what.into() }
        };
        let (path, query) = name.split_once('?').unwrap_or((name, ""));
        let mut snapshot = None;
        let mut rest = Vec::new();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            match part.strip_prefix("snapshot=") {
                None => rest.push(part),
                Some(_) if snapshot.is_some() => return Err(odd("snapshot= is given once")),
                Some(value) => snapshot = Some(crate::url::decoded(value).map_err(|what| odd(&what))?),
            }
        }
        if snapshot.as_deref() == Some("") {
            return Err(odd("snapshot= is given the name of a snapshot"));
        }
        let rest = if rest.is_empty() { String::new() } else { format!("?{}", rest.join("&")) };
        let url = Url::parse(&format!("{path}{rest}"))?;
        if url.pin.is_some() {
            return Err(odd("streams have no pins"));
        }
        Ok(StreamName { url, snapshot })
    }
}

/// The streams under a prefix. Copies share the store.
#[derive(Clone)]
pub struct Streams {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) options: StoreOptions,
    pub(crate) uuid: [u8; 16],
    pub(crate) key: Option<Arc<Key>>,
}

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streams").field("store", &self.store.describe()).finish_non_exhaustive()
    }
}

/// What is read under the list's key.
enum Found {
    List(Vec<u8>, Outline, Version),
    Nothing,
}

impl Streams {
    /// Those that there are.
    ///
    /// # Errors
    /// There are none, they are sealed and no key is given or the other way round, or the store fails.
    pub fn open(url: &Url, options: &StoreOptions) -> Result<Streams, RemoteError> {
        Streams::open_on(open_store(url, options)?, options)
    }

    /// The same on a store.
    ///
    /// # Errors
    /// As [`Streams::open`].
    pub fn open_on(store: Arc<dyn Store>, options: &StoreOptions) -> Result<Streams, RemoteError> {
        let store: Arc<dyn Store> = Arc::new(Retry::new(store, options.host.clone()));
        match find(&*store, options.host.now() + options.bounds.attach_max)? {
            Found::List(bytes, outline, _) => Streams::of(store, options, &bytes, outline),
            Found::Nothing => Err(RemoteError::NoStreams { prefix: store.describe() }),
        }
    }

    /// Those that there are, or else an empty list of them, which is sealed if a key is given.
    ///
    /// # Errors
    /// As [`Streams::open`]; or the store keeps no conditions.
    pub fn open_or_make(url: &Url, options: &StoreOptions) -> Result<Streams, RemoteError> {
        Streams::open_or_make_on(open_store(url, options)?, options)
    }

    /// The same on a store.
    ///
    /// # Errors
    /// As [`Streams::open_or_make`].
    pub fn open_or_make_on(store: Arc<dyn Store>, options: &StoreOptions) -> Result<Streams, RemoteError> {
        let store: Arc<dyn Store> = Arc::new(Retry::new(store, options.host.clone()));
        let deadline = options.host.now() + options.bounds.attach_max;
        let mut waits = Waits::new();
        let mut made: Option<(Streams, Body)> = None;
        loop {
            if let Found::List(bytes, outline, _) = find(&*store, deadline)? {
                return match made {
                    Some((made, body)) if made.uuid == outline.uuid => made.needs_conditions(body, deadline),
                    _ => Streams::of(store, options, &bytes, outline),
                };
            }
            let (new, body) = match made.take() {
                Some(made) => made,
                None => Streams::prepare(store.clone(), options, deadline)?,
            };
            let outcome = put(&*store, LIST, body.clone(), Cond::Absent, deadline);
            made = Some((new, body));
            match outcome {
                Ok(_) => {}
                Err(error) if error.is_refusal() => return Err(failed("put", error)),
                Err(error) => {
                    if !waits.wait(&*options.host, deadline) {
                        return Err(failed("put", error));
                    }
                }
            }
        }
    }

    /// An empty list that is nowhere yet.
    fn prepare(
        store: Arc<dyn Store>,
        options: &StoreOptions,
        deadline: Deadline,
    ) -> Result<(Streams, Body), RemoteError> {
        let host = &options.host;
        let uuid = host.random();
        let key = options.key.as_ref().map(|source| source.make(&*store, uuid, &**host, deadline)).transpose()?;
        let list = StreamList { uuid, commit: host.random(), ..StreamList::default() };
        let body = Body::from(list.encode(key.as_deref(), &nonce(&**host)));
        Ok((Streams { store, options: options.clone(), uuid, key }, body))
    }

    /// Refuses a store that makes an object a second time which is to be made only once. The content is equal, so this is harmless.
    fn needs_conditions(self, body: Body, deadline: Deadline) -> Result<Streams, RemoteError> {
        match put(&*self.store, LIST, body, Cond::Absent, deadline) {
            Ok(_) => return Err(RemoteError::NoConditions { which: "making only what is not there" }),
            Err(_) if self.key.is_some() => seen::note_place(&*self.store, self.uuid, &self.options)?,
            Err(_) => {}
        }
        Ok(self)
    }

    fn of(
        store: Arc<dyn Store>,
        options: &StoreOptions,
        bytes: &[u8],
        outline: Outline,
    ) -> Result<Streams, RemoteError> {
        let deadline = options.host.now() + options.bounds.attach_max;
        let key = match (&options.key, outline.sealed) {
            (None, false) => None,
            (Some(source), true) => Some(source.unlock(&*store, outline.uuid, deadline)?),
            (Some(_), false) => {
                return Err(RemoteError::Key { what: "a key is given, and the streams are not encrypted" });
            }
            (None, true) => return Err(RemoteError::Key { what: "the streams are encrypted, and no key is given" }),
        };
        let streams = Streams { store, options: options.clone(), uuid: outline.uuid, key };
        streams.opened(bytes)?;
        if streams.key.is_some() {
            seen::check_place(&*streams.store, streams.uuid, options)?;
        }
        Ok(streams)
    }

    fn opened(&self, bytes: &[u8]) -> Result<StreamList, RemoteError> {
        let list = StreamList::open(bytes, self.key.as_deref()).map_err(|e| e.within(LIST))?;
        if list.uuid != self.uuid {
            return Err(RemoteError::Replaced { prefix: self.store.describe(), what: "made anew" });
        }
        Ok(list)
    }

    /// The list as it is now.
    ///
    /// # Errors
    /// The store fails, or the list is gone or damaged.
    pub fn list(&self) -> Result<StreamList, RemoteError> {
        Ok(self.read(self.deadline())?.0)
    }

    fn read(&self, deadline: Deadline) -> Result<(StreamList, Version), RemoteError> {
        // Before the list: what is noted meanwhile may be newer.
        let seen = self.seen()?;
        match find(&*self.store, deadline)? {
            Found::List(bytes, _, version) => {
                let list = self.opened(&bytes)?;
                if let Some((dir, seen)) = seen {
                    seen::check_list(&dir, seen, list.revision, self.options.accept_older)?;
                }
                Ok((list, version))
            }
            Found::Nothing => Err(RemoteError::Replaced { prefix: self.store.describe(), what: "deleted" }),
        }
    }

    /// The newest revision that this machine has seen, and where that is noted; nothing without a cache.
    fn seen(&self) -> Result<Option<(PathBuf, u64)>, RemoteError> {
        let Some(cache) = &self.options.cache else { return Ok(None) };
        let dir = volume_dir(&cache.dir, self.uuid)?;
        let seen = seen::list_revision(&dir);
        Ok(Some((dir, seen)))
    }

    /// Changes the list; see the module's text. `edit` may be called several times, on newer lists.
    pub(crate) fn change<T>(
        &self,
        mut edit: impl FnMut(&mut StreamList) -> Result<T, RemoteError>,
    ) -> Result<T, RemoteError> {
        let host = &*self.options.host;
        let deadline = host.now() + self.options.bounds.flush_max;
        let mut waits = Waits::new();
        let mut mine: Vec<([u8; 16], T)> = Vec::new();
        let mut last = None;
        loop {
            let (mut list, version) = self.read(deadline)?;
            if let Some(at) = mine.iter().position(|(commit, _)| *commit == list.commit) {
                return Ok(mine.swap_remove(at).1);
            }
            if let Some(error) = last.take()
                && !waits.wait(host, deadline)
            {
                return Err(failed("replace", error));
            }
            let before = list.clone();
            let out = edit(&mut list)?;
            if list == before {
                return Ok(out);
            }
            list.commit = host.random();
            list.revision = list.revision.saturating_add(1);
            list.check().map_err(|e| RemoteError::Limit { what: e.to_string() })?;
            let bytes = list.encode(self.key.as_deref(), &nonce(host));
            if bytes.len() > LIST_LEN_MAX {
                let what = format!("a list of streams of {} bytes; {LIST_LEN_MAX} are the most", bytes.len());
                return Err(RemoteError::Limit { what });
            }
            let until = attempt(host, deadline, self.options.bounds.publish_try);
            match put(&*self.store, LIST, Body::from(bytes), Cond::Match(version), until) {
                Ok(_) => return Ok(out),
                Err(error) if error.is_refusal() => return Err(failed("replace", error)),
                Err(error) => {
                    last = Some(error);
                    mine.push((list.commit, out));
                }
            }
        }
    }

    /// How parts are packed.
    pub(crate) fn packing(&self) -> Packing<'_> {
        Packing { list: self.uuid, key: self.key.as_deref() }
    }

    pub(crate) fn deadline(&self) -> Deadline {
        self.options.host.now() + self.options.bounds.read_max
    }

    /// Seconds of the store's clock since 1970; 0 if it tells none.
    pub(crate) fn time(&self) -> u64 {
        self.store.now().map_or(0, |StoreTime(seconds)| seconds)
    }

    /// Who this is, in words.
    pub(crate) fn by(&self) -> String {
        let owner = &self.options.owner;
        let fits = |end: &usize| owner.is_char_boundary(*end);
        let end = (0..=owner.len().min(BY_LEN_MAX)).rev().find(fits).unwrap_or(0);
        owner[..end].into()
    }

    pub(crate) fn new_id(&self) -> Uuid {
        Uuid::from_bytes(self.options.host.random())
    }

    /// What was asked of the store, by name.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        self.store.counts()
    }

    /// Where they are, for messages.
    pub fn describe(&self) -> String {
        self.store.describe()
    }

    /// How long the indexes may be that are read for one snapshot, bytes.
    pub fn index_bytes_max(&self) -> u64 {
        self.options.bounds.map_bytes_max
    }

    /// Whether they are encrypted.
    pub fn is_sealed(&self) -> bool {
        self.key.is_some()
    }
}

fn failed(doing: &'static str, error: StoreError) -> RemoteError {
    RemoteError::store(doing, LIST, error)
}

/// The uuid of the list on a store, and whether it is sealed; nothing if there is no list.
pub(crate) fn outline(store: &dyn Store, deadline: Deadline) -> Result<Option<Outline>, RemoteError> {
    match find(store, deadline)? {
        Found::List(_, outline, _) => Ok(Some(outline)),
        Found::Nothing => Ok(None),
    }
}

/// Reads the list's bytes, again if they are wrong.
fn find(store: &dyn Store, deadline: Deadline) -> Result<Found, RemoteError> {
    let mut tries = WRONG_TRIES;
    loop {
        tries -= 1;
        let (bytes, version) = match get(store, LIST, LIST_LEN_MAX as u64, deadline) {
            Ok(found) => found,
            Err(StoreError::Absent) => return Ok(Found::Nothing),
            Err(StoreError::Wrong(_)) if tries > 0 => continue,
            Err(e) => return Err(failed("get", e)),
        };
        match StreamList::outline(&bytes) {
            Ok(outline) => return Ok(Found::List(bytes, outline, version)),
            Err(e) if tries == 0 => return Err(e.within(LIST).into()),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: names with and without a snapshot are read, and nonsense is refused.
    #[test]
    fn names() {
        let name = StreamName::parse("s3://bucket/a?snapshot=home%202").unwrap();
        assert_eq!((name.url.to_string().as_str(), name.snapshot.as_deref()), ("s3://bucket/a", Some("home 2")));
        assert_eq!(StreamName::parse("memory://a/b?at=newest").unwrap().snapshot, None);
        for bad in [
            "s3://bucket/a?pin=b",
            "s3://bucket/a?snapshot=",
            "memory://a/b?snapshot=x&snapshot=y",
            "a",
            "memory://a/b?x=y",
        ] {
            assert!(StreamName::parse(bad).is_err(), "{bad}");
        }
    }
}
