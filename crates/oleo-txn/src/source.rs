//! The crate above, as the engine sees it: where a freeze gets its changes from.

use oleo_format::{RootItem, TreeId};
use oleo_tree::Change;

use crate::TxnError;

/// What the crate above hands over when a transaction is frozen.
#[derive(Default)]
pub struct Stage {
    /// Item changes per tree, sorted by key, one per key.
    pub trees: Vec<(TreeId, Vec<Change>)>,
    /// Root items whose file-level fields changed. Address, level, generations and drop progress are the engine's.
    pub root_items: Vec<(TreeId, RootItem)>,
}

/// The crate above, as the engine sees it.
pub trait DeltaSource: Send + Sync {
    /// No handle is out: what is open becomes frozen. Pointer moves only, no I/O, no waiting.
    fn freeze(&self);
    /// Turns what is frozen into sorted batches. New operations go on meanwhile.
    fn itemise(&self) -> Result<Stage, TxnError>;
    /// The trees' roots hold what was frozen (they were replaced before this call): it can be dropped.
    fn published(&self);
    /// Space is short: drops promises that nothing needs; returns whether there were any. A caller who needs space may hold locks, but
    /// none that covers a promise.
    fn release_idle_reservations(&self) -> bool {
        false
    }
}
