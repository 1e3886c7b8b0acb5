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
    let beside: PathBuf = dir.join(format!("seen.{}", std::process::id()));
    let written =
        fs::write(&beside, format!("{} {}\n", now.0, now.1)).and_then(|()| fs::rename(&beside, dir.join("seen")));
    written.map_err(|e| RemoteError::Local { path: beside, source: Arc::new(e) })
}
