//! Deleting what is dead.
//!
//! The order is what makes it safe: a head with the grave is published, then the pins are read, and then is deleted what none
//! of them needs (`pin` has the other half). A pin of sequence p needs what was born at p or before, and died after it.

use std::collections::HashSet;
use std::time::Duration;

use crate::error::RemoteError;
use crate::format::pins::hex;
use crate::format::{Grave, ObjectId};
use crate::host::Mistake;
use crate::pin;
use crate::shared::{Core, add};
use crate::store::{Answer, Op, Ticket};

/// How many are deleted at the same time.
const DELETES_COUNT: usize = 32;

/// What became of objects that are dead.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Deleted {
    /// Deleted now.
    pub deleted: usize,
    /// Kept by pins.
    pub kept: usize,
    /// Dead for less than the time of grace, or not known to be deleted.
    pub waiting: usize,
}

/// Deletes what has been dead in a published head for `grace` and is needed by no pin.
pub(crate) fn delete_dead(core: &Core, grace: Duration) -> Result<Deleted, RemoteError> {
    let Some(before) = core.options.host.now().checked_sub(grace) else { return Ok(Deleted::default()) };
    let (mut ripe, all) = {
        let state = core.state.lock();
        let ripe = match core.options.host.makes(Mistake::DeletesUnpublished) {
            true => state.graves.all().collect(),
            false => state.graves.ripe(before),
        };
        (ripe, state.graves.all().count())
    };
    let mut out = Deleted { waiting: all - ripe.len(), ..Deleted::default() };
    if ripe.is_empty() {
        return Ok(out);
    }
    let kept = kept_sequences(core)?;
    let before = ripe.len();
    ripe.retain(|grave| !is_needed(grave, &kept));
    out.kept = before - ripe.len();
    let mut gone: HashSet<ObjectId> = HashSet::new();
    let deadline = core.deadline(core.options.bounds.flush_max);
    for some in ripe.chunks(DELETES_COUNT) {
        core.check_latch()?;
        let delete = |grave: &Grave| core.store.submit(Op::Delete { key: grave.id.key() }, deadline);
        let begun: Vec<(ObjectId, Ticket)> = some.iter().map(|grave| (grave.id, delete(grave))).collect();
        for (id, ticket) in begun {
            match ticket.wait() {
                Ok(Answer::Deleted) => _ = gone.insert(id),
                // The next time.
                _ => out.waiting += 1,
            }
        }
    }
    out.deleted = gone.len();
    add(&core.counts.deletes, gone.len() as u64);
    core.state.lock().graves.deleted(&gone);
    Ok(out)
}

/// The sequences of heads that are kept, in order.
fn kept_sequences(core: &Core) -> Result<Vec<u64>, RemoteError> {
    let list = pin::list(&*core.store, core.deadline(core.options.bounds.read_max))?;
    let uuid = hex(&core.uuid);
    // Pins of a volume that was here before name none of this one's objects.
    let Some((pins, _)) = list.filter(|(pins, _)| pins.uuid == uuid) else { return Ok(Vec::new()) };
    let now = core.store.now();
    let mut kept: Vec<u64> = pins.pins.iter().filter(|p| pin::holds(p, now)).map(|p| p.sequence).collect();
    kept.sort_unstable();
    Ok(kept)
}

fn is_needed(grave: &Grave, kept: &[u64]) -> bool {
    let from = kept.partition_point(|&sequence| sequence < grave.born);
    kept.get(from).is_some_and(|&sequence| sequence < grave.died)
}
