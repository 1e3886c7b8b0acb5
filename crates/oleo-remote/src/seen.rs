//! The newest state of a volume that this machine has seen, beside the disk cache: a store that was put back to an older state
//! would otherwise be taken for the truth, and what was written since would be lost without a word.
//!
//! The file `seen` has epoch and sequence in text. It is written when a volume is opened and, every few seconds, when it is
//! published. It is replaced by renaming, so a crash leaves the one before; a file that makes no sense counts as none.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::error::RemoteError;
use crate::format::head::Head;

/// The same of a list of streams: its revision, in text.
const LIST_FILE: &str = "seen-streams";
/// How often a publish is noted at most.
pub(crate) const NOTE_EVERY: Duration = Duration::from_secs(5);

/// Epoch and sequence, in the order in which states follow each other.
type State = (u32, u64);

fn state_of(head: &Head) -> State {
    (head.epoch, head.sequence)
}

fn read(dir: &Path) -> Option<State> {
    let text = fs::read_to_string(dir.join("seen")).ok()?;
    let (epoch, sequence) = text.trim_end().split_once(' ')?;
    Some((epoch.parse().ok()?, sequence.parse().ok()?))
}

/// Refuses a head that is older than what was seen, unless that is accepted.
pub(crate) fn check(dir: &Path, head: &Head, accept_older: bool) -> Result<(), RemoteError> {
    match read(dir) {
        Some(seen) if seen > state_of(head) && !accept_older => Err(RemoteError::Older { seen, found: state_of(head) }),
        _ => Ok(()),
    }
}

/// Notes a head. With `accept_older` what was seen before does not count.
pub(crate) fn note(dir: &Path, head: &Head, accept_older: bool) -> Result<(), RemoteError> {
    let now = state_of(head);
    if !accept_older && read(dir).is_some_and(|seen| seen >= now) {
        return Ok(());
    }
    replace(dir, "seen", &format!("{} {}\n", now.0, now.1))
}

/// Replaces a file by renaming.
fn replace(dir: &Path, name: &str, text: &str) -> Result<(), RemoteError> {
    let beside: PathBuf = dir.join(format!("{name}.{}", std::process::id()));
    let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, dir.join(name)));
    written.map_err(|e| RemoteError::Local { path: beside, source: Arc::new(e) })
}

/// The newest revision of a list of streams that this machine has seen; 0: none.
pub(crate) fn list_revision(dir: &Path) -> u64 {
    fs::read_to_string(dir.join(LIST_FILE)).ok().and_then(|text| text.trim_end().parse().ok()).unwrap_or(0)
}

/// Refuses a list that is older than what was seen before it was read, unless that is accepted; and notes it.
pub(crate) fn check_list(dir: &Path, seen: u64, revision: u64, accept_older: bool) -> Result<(), RemoteError> {
    if revision < seen && !accept_older {
        return Err(RemoteError::Older { seen: (0, seen), found: (0, revision) });
    }
    if revision == seen || revision < list_revision(dir) && !accept_older {
        return Ok(());
    }
    replace(dir, LIST_FILE, &format!("{revision}\n"))
}
