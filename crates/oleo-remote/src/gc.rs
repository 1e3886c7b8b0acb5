//! Collecting of a volume that nobody has open, in one step: what a keeper does little by little.

use std::sync::Arc;
use std::time::Duration;

use crate::collect::{Deleted, Orphans};
use crate::create::each_listed;
use crate::device::RemoteDevice;
use crate::error::RemoteError;
use crate::options::StoreOptions;
use crate::store::{Retry, Store, StoreTime};
use crate::swap::{HEAD, read};

/// What is collected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GcOptions {
    /// For how long objects stay that nothing living names; zero: readers without a lease or a pin may find that something
    /// is gone.
    pub grace: Duration,
    /// Objects that no head has ever named go when they are so old.
    pub orphan_age: Duration,
    /// How many bytes are moved out of segments of which little lives.
    pub moved_bytes_max: u64,
}

impl Default for GcOptions {
    fn default() -> GcOptions {
        GcOptions {
            grace: Duration::from_secs(3600),
            orphan_age: Duration::from_secs(24 * 3600),
            moved_bytes_max: u64::MAX,
        }
    }
}

/// What was.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Collected {
    /// Objects that were dead.
    pub dead: Deleted,
    /// Objects that no head has ever named.
    pub orphans: Orphans,
    /// Bytes that were moved.
    pub moved_bytes: u64,
}

/// Opens a volume for writing, collects, and closes it. What dies by this itself goes the next time, unless no time of grace is
/// asked for.
pub fn gc(store: Arc<dyn Store>, how: &GcOptions, options: &StoreOptions) -> Result<Collected, RemoteError> {
    let mut options = options.clone();
    options.keeper = false;
    let (commit, quiet) = quiet_for(store.clone(), &options)?;
    let dev = RemoteDevice::open_writable(store, &options)?;
    // What has a grave has had it for as long as nobody has replaced the head.
    let waited = if dev.predecessor() == commit { quiet } else { Duration::ZERO };
    let mut out = Collected { dead: dev.delete_dead(how.grace.saturating_sub(waited))?, ..Collected::default() };
    while out.moved_bytes < how.moved_bytes_max {
        let moved = dev.repack(how.moved_bytes_max - out.moved_bytes)?;
        if moved == 0 {
            break;
        }
        out.moved_bytes += moved;
        dev.publish()?;
    }
    dev.checkpoint()?;
    if how.grace.is_zero() {
        // Once more, since the pages of one checkpoint die with the next.
        dev.checkpoint()?;
        let again = dev.delete_dead(how.grace)?;
        out.dead = Deleted { deleted: out.dead.deleted + again.deleted, ..again };
    } else {
        out.dead.waiting = dev.dead_count();
    }
    out.orphans = dev.remove_orphans(how.orphan_age)?;
    dev.close()?;
    Ok(out)
}

/// The commit id of the head, and for how long, by the store's clock, it has certainly been the same.
fn quiet_for(store: Arc<dyn Store>, options: &StoreOptions) -> Result<([u8; 16], Duration), RemoteError> {
    let store = Retry::new(store, options.host.clone());
    let deadline = options.host.now() + options.bounds.attach_max;
    let (head, _) = read(&store, HEAD, options.key.as_ref(), deadline)?;
    let mut modified = None;
    each_listed(&store, HEAD, deadline, |listed| {
        if listed.key == HEAD {
            modified = listed.modified;
        }
    })?;
    let quiet = match (modified, store.now()) {
        (Some(StoreTime(from)), Some(StoreTime(to))) => Duration::from_secs(to.saturating_sub(from)),
        _ => Duration::ZERO,
    };
    Ok((head.commit, quiet))
}
