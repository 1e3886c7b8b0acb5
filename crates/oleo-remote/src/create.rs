//! Making a volume: its first head.
//!
//! Names of objects are never used a second time, so a volume that is made where another was goes on with the epoch after
//! that one's. Where no head says which that was, the names of objects do, and for those that a listing does not show yet
//! a distance is kept.

use oleo_format::Corruption;

use crate::error::{RemoteError, StoreError};
use crate::format::head::Head;
use crate::format::segment::{CODEC_NONE, CODEC_ZSTD};
use crate::format::{DEVICE_LEN_MAX, ObjectId};
use crate::host::Mistake;
use crate::options::StoreOptions;
use crate::seen::note_place;
use crate::store::{Answer, Cond, Deadline, Listed, Op, Retry, Store};
use crate::swap::{Found, HEAD, Swapped, find, swap};
use std::sync::Arc;

/// How far a new epoch is from the highest that a listing shows.
const EPOCH_DISTANCE: u32 = 1 << 16;
/// Keys of one listing.
const LIST_COUNT: usize = 1000;

/// Makes a volume whose device has `len` bytes, all zeros. With `force` in the place of another: all of that is lost.
pub fn create(store: Arc<dyn Store>, len: u64, force: bool, options: &StoreOptions) -> Result<(), RemoteError> {
    if len > DEVICE_LEN_MAX {
        return Err(RemoteError::Limit { what: format!("a device of {len} bytes; {DEVICE_LEN_MAX} are the most") });
    }
    let store = Retry::new(store, options.host.clone());
    let deadline = options.host.now() + options.bounds.attach_max;
    let (epoch, predecessor, cond) = match find(&store, HEAD, None, deadline)? {
        Found::Nothing => (unused_epoch(&store, deadline)?, [0; 16], Cond::Absent),
        Found::Head(..) | Found::Closed(..) | Found::Damaged(..) if !force => {
            return Err(RemoteError::Exists { prefix: store.describe() });
        }
        Found::Head(old, version) => (next_epoch(old.epoch, 1)?, old.commit, Cond::Match(version)),
        Found::Closed(old, _, version) => (next_epoch(old.epoch, 1)?, old.commit, Cond::Match(version)),
        Found::Damaged(_, version) => (unused_epoch(&store, deadline)?, [0; 16], Cond::Match(version)),
    };
    let epoch = if options.host.makes(Mistake::RestartsEpochs) { 1 } else { epoch };
    let uuid = options.host.random();
    let key = match &options.key {
        Some(source) => Some(source.make(&store, uuid, &*options.host, deadline)?),
        None => None,
    };
    let head = Head {
        uuid,
        commit: options.host.random(),
        predecessor,
        epoch,
        sequence: 1,
        device_len: len,
        released: true,
        tail_id: ObjectId::segment(epoch, 0),
        codec: if options.compress { CODEC_ZSTD } else { CODEC_NONE },
        key,
        ..Head::default()
    };
    match swap(&store, &*options.host, &options.bounds, &head, &cond, deadline)? {
        Swapped::Mine(_) if head.key.is_some() => note_place(&store, uuid, options),
        Swapped::Mine(_) => Ok(()),
        Swapped::Other(..) => Err(RemoteError::Exists { prefix: store.describe() }),
        Swapped::Gone => Err(RemoteError::NoVolume { prefix: store.describe() }),
    }
}

/// Refuses a place where a volume is, before anything is stored there.
pub(crate) fn check_free(store: &Arc<dyn Store>, options: &StoreOptions) -> Result<(), RemoteError> {
    let store = Retry::new(store.clone(), options.host.clone());
    match find(&store, HEAD, None, options.host.now() + options.bounds.attach_max)? {
        Found::Nothing => Ok(()),
        Found::Head(..) | Found::Closed(..) | Found::Damaged(..) => {
            Err(RemoteError::Exists { prefix: store.describe() })
        }
    }
}

/// An epoch that no object's name has.
pub(crate) fn unused_epoch(store: &dyn Store, deadline: Deadline) -> Result<u32, RemoteError> {
    let mut highest = None;
    for prefix in ["seg/", "map/"] {
        each_listed(store, prefix, deadline, |listed| {
            highest = highest.max(ObjectId::of_key(&listed.key).map(|id| id.epoch));
        })?;
    }
    match highest {
        None => Ok(1),
        Some(epoch) => next_epoch(epoch, EPOCH_DISTANCE),
    }
}

/// Calls `each` with every object whose key has a prefix, as a listing has it.
pub(crate) fn each_listed(
    store: &dyn Store,
    prefix: &str,
    deadline: Deadline,
    mut each: impl FnMut(&Listed),
) -> Result<(), RemoteError> {
    let mut after = String::new();
    loop {
        let op = Op::List { prefix: prefix.into(), after: after.clone(), count_max: LIST_COUNT };
        let answer = store.submit(op, deadline).wait().map_err(|e| RemoteError::store("list", prefix, e))?;
        let Answer::Listed(listed) = answer else {
            return Err(RemoteError::store("list", prefix, StoreError::Wrong("no list".into())));
        };
        listed.iter().for_each(&mut each);
        match listed.last() {
            Some(last) if last.key > after => after = last.key.clone(),
            Some(last) => {
                return Err(Corruption::new("listing", "key", last.key.escape_debug(), "behind the one before").into());
            }
            None => return Ok(()),
        }
    }
}

/// The epoch after another.
pub(crate) fn next_epoch(epoch: u32, distance: u32) -> Result<u32, RemoteError> {
    epoch.checked_add(distance).ok_or_else(|| RemoteError::Limit { what: format!("epoch {epoch} is the last one") })
}
