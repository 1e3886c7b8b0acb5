//! The newest state of a volume that this machine has seen, beside the disk cache: a store that was put back to an older state
//! would otherwise be taken for the truth, and what was written since would be lost without a word.
//!
//! The file `seen` has epoch and sequence in text. It is written when a volume is opened and, every few seconds, when it is
//! published. It is replaced by renaming, so a crash leaves the one before; a file that makes no sense counts as none.
//!
//! A store could also show one sealed volume in the place of another that has the same key. So the directory `names` of the
//! cache has a file for each place where a sealed volume, or a sealed list of streams, was seen: its UUID, and the place.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::disk_cache::place_dir;
use crate::error::RemoteError;
use crate::format::head::Head;
use crate::format::pins::hex;
use crate::format::xxh64;
use crate::options::StoreOptions;
use crate::store::Store;

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

/// Settings that lead to another store of the same name.
const ENDPOINTS: [&str; 6] = [
    "AWS_ENDPOINT",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_PROFILE",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_ENDPOINT",
];

/// The directory that notes places, and this place as text: its name, and the settings that decide which store has it.
fn note_of(store: &dyn Store, options: &StoreOptions) -> Result<Option<(PathBuf, String)>, RemoteError> {
    let Some(cache) = &options.cache else { return Ok(None) };
    let given = [&options.endpoint, &options.profile].into_iter().flatten().map(String::as_str);
    let settings = ENDPOINTS.iter().filter_map(|name| options.setting(name));
    let place: Vec<String> = [store.describe()].into_iter().chain(given.chain(settings).map(str::to_owned)).collect();
    Ok(Some((place_dir(&cache.dir)?, place.join(" ").escape_debug().to_string())))
}

/// Refuses a sealed volume in a place where another one was seen, unless that is accepted; and notes it.
pub(crate) fn check_place(store: &dyn Store, uuid: [u8; 16], options: &StoreOptions) -> Result<(), RemoteError> {
    let Some((dir, place)) = note_of(store, options)? else { return Ok(()) };
    let text = fs::read_to_string(dir.join(file_of(&place))).unwrap_or_default();
    let seen = text.trim_end().split_once(' ').filter(|(seen, of)| seen.len() == 32 && *of == place);
    match seen {
        Some((seen, _)) if seen == hex(&uuid) => Ok(()),
        Some((seen, _)) if !options.accept_older => {
            Err(RemoteError::Another { prefix: store.describe(), seen: seen.into(), found: hex(&uuid) })
        }
        Some(_) | None => note_in(&dir, &place, uuid),
    }
}

/// Notes a volume, or a list of streams, that was made in a place.
pub(crate) fn note_place(store: &dyn Store, uuid: [u8; 16], options: &StoreOptions) -> Result<(), RemoteError> {
    note_of(store, options)?.map_or(Ok(()), |(dir, place)| note_in(&dir, &place, uuid))
}

fn note_in(dir: &Path, place: &str, uuid: [u8; 16]) -> Result<(), RemoteError> {
    replace(dir, &file_of(place), &format!("{} {place}\n", hex(&uuid)))
}

fn file_of(place: &str) -> String {
    format!("{:016x}", xxh64(place.as_bytes()))
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
