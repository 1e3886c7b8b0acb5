//! What a device that has no keeper is asked to do by whoever has it: a command that does one thing, or a test.

use std::time::Duration;

use crate::collect::{Deleted, Orphans, Wanted, delete_dead, remove_orphans, repack};
use crate::device::RemoteDevice;
use crate::error::RemoteError;
use crate::flush::{checkpoint_now, publish, publish_behind, renew_claim};
use crate::format::ObjectId;

impl RemoteDevice {
    /// Publishes what only the local log has, and does what the claim of this writer needs now, if anything; for whoever has no keeper.
    pub fn renew(&self) {
        if self.core.write {
            publish_behind(&self.core);
            renew_claim(&self.core);
        }
    }

    /// Publishes everything, as a flush does.
    pub(crate) fn publish(&self) -> Result<(), RemoteError> {
        publish(&self.core, self.position(), false)
    }

    /// The commit id of the head that this writer took over, as long as it has published nothing.
    pub(crate) fn predecessor(&self) -> [u8; 16] {
        self.core.published.lock().head.predecessor
    }

    /// How many objects are dead and not deleted.
    pub(crate) fn dead_count(&self) -> usize {
        self.core.state.lock().graves.all().count()
    }

    /// Publishes everything and stores the map; objects that nothing needs any more get their graves by that.
    pub fn checkpoint(&self) -> Result<(), RemoteError> {
        self.writes()?;
        checkpoint_now(&self.core)
    }

    /// Deletes objects that nothing has needed for some time, except what pins keep.
    pub fn delete_dead(&self, grace: Duration) -> Result<Deleted, RemoteError> {
        self.writes()?;
        delete_dead(&self.core, grace)
    }

    /// Appends again what lives of segments of which less than half does, the emptiest first, at most about `bytes_max`
    /// bytes; returns how many that were. It is published with the next flush.
    pub fn repack(&self, bytes_max: u64) -> Result<u64, RemoteError> {
        self.writes()?;
        repack(&self.core, bytes_max, Wanted::Sparse)
    }

    /// Deletes objects of earlier writers that no head has ever named and that are older than `age`.
    pub fn remove_orphans(&self, age: Duration) -> Result<Orphans, RemoteError> {
        self.writes()?;
        remove_orphans(&self.core, age)
    }

    /// All objects that the volume names, with what lives of them: blocks of segments, bytes of map objects.
    pub fn census(&self) -> Vec<(ObjectId, u32)> {
        self.core.state.lock().census().collect()
    }

    fn writes(&self) -> Result<(), RemoteError> {
        match self.core.write {
            true => self.core.check_latch(),
            false => Err(RemoteError::Limit { what: "the volume is open for reading only".into() }),
        }
    }
}
