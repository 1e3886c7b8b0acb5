//! Which streams a snapshot needs, and in which order.

use std::collections::HashSet;

use uuid::Uuid;

use super::list::{StreamEntry, StreamList};
use crate::error::RemoteError;

/// The stream that is meant: by the id of the stream, the UUID of the snapshot, or its name; without any the newest.
///
/// # Errors
/// There is none, or several different snapshots are called so.
pub fn find<'l>(list: &'l StreamList, which: Option<&str>) -> Result<&'l StreamEntry, RemoteError> {
    let Some(which) = which else {
        // A snapshot that was stored again, whole, is no newer by that.
        let mut seen = HashSet::new();
        let newest = list.streams.iter().filter(|stream| seen.insert((stream.uuid, stream.ctransid)));
        let newest = newest.fold(None, |_, stream| Some(stream));
        let newest = newest.ok_or_else(|| RemoteError::NoSnapshot { name: "at all".into() })?;
        return Ok(list.streams.iter().rev().find(|stream| stream.is_same_snapshot(newest)).unwrap_or(newest));
    };
    let missing = || RemoteError::NoSnapshot { name: which.into() };
    let id = Uuid::try_parse(which).ok();
    if let Some(stream) = id.and_then(|id| list.stream(id)) {
        return Ok(stream);
    }
    let is_meant = |stream: &&StreamEntry| stream.name == which || Some(stream.uuid) == id;
    let newest = list.streams.iter().rev().find(is_meant).ok_or_else(missing)?;
    let other = list.streams.iter().filter(is_meant).find(|stream| !stream.is_same_snapshot(newest));
    match other {
        None => Ok(newest),
        Some(other) => Err(RemoteError::Limit {
            what: format!(
                "several snapshots are called {which}: name one by the id of its stream, {} or {}",
                newest.id.simple(),
                other.id.simple()
            ),
        }),
    }
}

/// What must be received for a stream, itself last, without what is there already and what only that needs.
///
/// # Errors
/// A stream that is needed is not on the list.
pub fn chain<'l>(
    list: &'l StreamList,
    stream: &'l StreamEntry,
    is_there: impl Fn(&StreamEntry) -> bool,
) -> Result<Vec<&'l StreamEntry>, RemoteError> {
    let mut out = Vec::new();
    let mut seen = HashSet::new();
    let mut todo = vec![stream];
    while let Some(stream) = todo.pop() {
        if !seen.insert(stream.id) || is_there(stream) {
            continue;
        }
        for need in &stream.needs {
            let broken = || RemoteError::BrokenChain { name: stream.name.clone(), need: need.simple().to_string() };
            todo.push(list.stream(*need).ok_or_else(broken)?);
        }
        out.push(stream);
    }
    // What is needed has a lower number.
    out.sort_by_key(|stream| stream.number);
    Ok(out)
}
