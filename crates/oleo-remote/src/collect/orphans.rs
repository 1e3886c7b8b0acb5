//! Objects that no head has ever named: those of writers that were lost or overtaken before they published them.
//!
//! Whatever a head has ever named is a row of the segment table, a map object or a grave, until it is deleted. So an object
//! of an earlier epoch that is none of these is nobody's: its writer cannot publish any more. A listing that is old shows
//! too little, or what is deleted already; neither does harm.

use std::collections::HashSet;
use std::time::Duration;

use crate::create::each_listed;
use crate::error::RemoteError;
use crate::format::ObjectId;
use crate::format::pins::{PinKind, hex};
use crate::host::Mistake;
use crate::pin;
use crate::shared::{Core, add};
use crate::store::{Op, StoreTime};

/// Heads of pins that no entry names are deleted when they are as old as this, seconds: whoever makes a pin stores its head
/// first, and has long given up by then.
const PIN_AGE_SECONDS: u64 = 24 * 3600;

/// What was found.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Orphans {
    /// Deleted now.
    pub deleted: usize,
    /// Younger than was asked for, or of unknown age.
    pub young: usize,
    /// Pins of a volume that was here before: nothing is deleted as long as there are any.
    pub other_pins: usize,
}

/// Deletes orphans that are older than `age`, by the store's clock.
pub(crate) fn remove_orphans(core: &Core, age: Duration) -> Result<Orphans, RemoteError> {
    let deadline = core.deadline(core.options.bounds.flush_max);
    let store = &*core.store;
    let mut out = Orphans::default();
    // Before the listing, so that a pin which is made meanwhile is taken for one that is not ready.
    let list = pin::list(store, deadline)?.map(|(pins, _)| pins);
    if let Some(pins) = &list
        && pins.uuid != hex(&core.uuid)
    {
        out.other_pins = pins.pins.iter().filter(|p| p.kind != PinKind::Lease).count();
        if out.other_pins > 0 {
            return Ok(out);
        }
    }
    let entries = list.map_or(Vec::new(), |pins| pins.pins);
    let named: HashSet<String> = entries.iter().map(pin::key_of).collect();
    let mut keys = Vec::new();
    for prefix in ["seg/", "map/", "pin/"] {
        each_listed(store, prefix, deadline, |listed| {
            let least = match prefix {
                "pin/" if named.contains(&listed.key) => return,
                "pin/" => PIN_AGE_SECONDS.max(age.as_secs()),
                _ if !ObjectId::of_key(&listed.key).is_some_and(|id| is_orphan(core, id)) => return,
                _ => age.as_secs(),
            };
            match is_older(listed.modified, store.now(), least) {
                true => keys.push(listed.key.clone()),
                false => out.young += 1,
            }
        })?;
    }
    for key in keys {
        core.check_latch()?;
        let deleted = store.submit(Op::Delete { key: key.clone() }, deadline).wait();
        deleted.map_err(|e| RemoteError::store("delete", key, e))?;
        out.deleted += 1;
        add(&core.counts.deletes, 1);
    }
    Ok(out)
}

fn is_orphan(core: &Core, id: ObjectId) -> bool {
    let own = id.epoch == core.epoch && core.options.host.makes(Mistake::OwnOrphans);
    (id.epoch < core.epoch || own) && !core.state.lock().knows(id)
}

fn is_older(modified: Option<StoreTime>, now: Option<StoreTime>, seconds: u64) -> bool {
    match (modified, now) {
        (Some(modified), Some(now)) => now.0 >= modified.0.saturating_add(seconds),
        _ => false,
    }
}
