//! The head: read, and replaced by a conditional `Put`, with certainty about the outcome.
//!
//! Normal path of [`swap`]: one conditional `Put`, and its answer. What any other answer means is decided by what is read
//! afterwards, never by the answer: it may be lost, late, or that of a repetition below us.
//!
//! | the head then | meaning |
//! |---|---|
//! | mine, by its commit id | it was done |
//! | the one that was to be replaced | not done, or not yet: the same bytes again under the same condition |
//! | another | somebody else has replaced it |
//! | none | it was deleted; never made anew, unless it is being made |
//!
//! Repeating is safe since a condition holds once only: commit ids are random, so no content, and no version, comes back.

use std::sync::Arc;

use oleo_format::Corruption;

use crate::error::{RemoteError, StoreError};
use crate::format::head::{HEAD_LEN_MAX, Head, Outline};
use crate::host::Host;
use crate::keys::KeySource;
use crate::options::Bounds;
use crate::seal::Key;
use crate::store::{self, Body, Cond, Deadline, Store, Version, Waits, attempt};

/// The key of the head.
pub(crate) const HEAD: &str = "head";
/// How often bytes are read again that were wrong: on the way from a store bits change, too.
pub(crate) const WRONG_TRIES: u32 = 3;

/// What became of a head that was to be replaced.
pub(crate) enum Swapped {
    /// It is mine.
    Mine(Version),
    /// It is another one.
    Other(Box<Head>, Version),
    /// There is none.
    Gone,
}

/// What is read under the head's key.
pub(crate) enum Found {
    Head(Box<Head>, Version),
    /// A sealed head whose key is not at hand, and its bytes.
    Closed(Outline, Vec<u8>, Version),
    /// Bytes that are no head.
    Damaged(Corruption, Version),
    Nothing,
}

/// Reads the head, again if its bytes are wrong.
pub(crate) fn find(
    store: &dyn Store,
    key: &str,
    opens: Option<&Arc<Key>>,
    deadline: Deadline,
) -> Result<Found, RemoteError> {
    let mut tries = WRONG_TRIES;
    loop {
        tries -= 1;
        let (bytes, version) = match store::get(store, key, HEAD_LEN_MAX as u64, deadline) {
            Ok(found) => found,
            Err(StoreError::Absent) => return Ok(Found::Nothing),
            Err(StoreError::Wrong(_)) if tries > 0 => continue,
            Err(e) => return Err(RemoteError::store("get", key, e)),
        };
        let closed = Head::outline(&bytes).ok().filter(|outline| outline.sealed);
        match (Head::open(&bytes, opens), closed) {
            (Ok(head), _) => return Ok(Found::Head(Box::new(head), version)),
            // Without its key, or with that of another volume.
            (Err(_), Some(outline)) if opens.is_none() || tries == 0 => {
                return Ok(Found::Closed(outline, bytes, version));
            }
            (Err(e), _) if tries == 0 => return Ok(Found::Damaged(e.within(key), version)),
            (Err(_), _) => {}
        }
    }
}

/// Reads the head of a volume that there is, and opens it with what `source` has. A volume that is not sealed is refused with
/// a key: whoever gives one would not notice that somebody has put another in the volume's place.
pub(crate) fn read(
    store: &dyn Store,
    key: &str,
    source: Option<&KeySource>,
    deadline: Deadline,
) -> Result<(Head, Version), RemoteError> {
    match find(store, key, None, deadline)? {
        Found::Head(..) if source.is_some() => {
            Err(RemoteError::Key { what: "a key is given, and the volume is not encrypted" })
        }
        Found::Head(head, version) => Ok((*head, version)),
        Found::Closed(outline, bytes, version) => {
            let source = source.ok_or(RemoteError::Key { what: "the volume is encrypted, and no key is given" })?;
            let opens = source.unlock(store, outline.uuid, deadline)?;
            Ok((Head::open(&bytes, Some(&opens)).map_err(|e| e.within(key))?, version))
        }
        Found::Damaged(e, _) => Err(e.into()),
        Found::Nothing => Err(RemoteError::NoVolume { prefix: store.describe() }),
    }
}

/// Puts a head in the place of another, or where none is; see the module's text.
pub(crate) fn swap(
    store: &dyn Store,
    host: &dyn Host,
    bounds: &Bounds,
    head: &Head,
    cond: &Cond,
    deadline: Deadline,
) -> Result<Swapped, RemoteError> {
    let bytes = head.encode();
    if bytes.len() > HEAD_LEN_MAX {
        return Err(RemoteError::Limit {
            what: format!("a head of {} bytes; {HEAD_LEN_MAX} are the most", bytes.len()),
        });
    }
    let body = Body::from(bytes);
    let mut waits = Waits::new();
    loop {
        let until = attempt(host, deadline, bounds.publish_try);
        let failed = match store::put(store, HEAD, body.clone(), cond.clone(), until) {
            Ok(version) => return Ok(Swapped::Mine(version)),
            Err(e) => e,
        };
        match find(store, HEAD, head.key.as_ref(), deadline)? {
            Found::Head(found, version) if found.commit == head.commit => return Ok(Swapped::Mine(version)),
            Found::Closed(found, _, version) => {
                // Of a volume that is not this one.
                if *cond != Cond::Match(version.clone()) || found.commit != head.predecessor {
                    let Outline { uuid, epoch, commit, sealed: _ } = found;
                    let other = Head { uuid, epoch, commit, ..Head::default() };
                    return Ok(Swapped::Other(Box::new(other), version));
                }
            }
            Found::Head(found, version) => {
                let is_old = *cond == Cond::Match(version.clone()) && found.commit == head.predecessor;
                if !is_old {
                    return Ok(Swapped::Other(found, version));
                }
            }
            Found::Damaged(e, version) => {
                if *cond != Cond::Match(version) {
                    return Err(e.into());
                }
            }
            Found::Nothing if *cond == Cond::Absent => {}
            Found::Nothing => return Ok(Swapped::Gone),
        }
        if !waits.wait(host, deadline) {
            return Err(RemoteError::store("replace", HEAD, failed));
        }
    }
}

/// Why a writer of this epoch may write no more, when it finds this head instead of its own.
pub(crate) fn why_lost(mine: &Head, found: Option<&Head>, store: &dyn Store) -> RemoteError {
    let replaced = |what| RemoteError::Replaced { prefix: store.describe(), what };
    match found {
        None => replaced("deleted"),
        Some(found) if found.uuid != mine.uuid => replaced("made anew"),
        Some(found) if found.epoch > mine.epoch => {
            RemoteError::Overtaken { owner: found.writer().into(), epoch: found.epoch }
        }
        Some(found) if found.epoch == mine.epoch => RemoteError::Split { epoch: mine.epoch },
        Some(_) => replaced("put back to an older state"),
    }
}
