//! Where this crate learns what is free on disk: the crate above implements it.

use oleo_format::{ByteLen, Logical};

use crate::LoadError;

/// Where the free space of a group is known: the free-space tree, or the extent tree if there is none.
///
/// What it returns must be at least as new as the newest state whose pins were released, and leave out the superblock
/// mirrors. No lock of this crate that another thread needs is held during the call.
pub trait FreeSource: Send + Sync {
    /// The free runs of the group that starts at `group`, rising, not overlapping.
    fn load(&self, group: Logical) -> Result<Vec<(Logical, ByteLen)>, LoadError>;

    /// How many free runs each of these groups has, if that costs less than reading them. It is taken for a
    /// hint.
    fn counts(&self, groups: &[Logical]) -> Vec<Option<u32>> {
        vec![None; groups.len()]
    }

    /// These groups will probably be loaded next, in this order. It is taken for a hint.
    fn expect(&self, groups: &[Logical]) {
        let _ = groups;
    }
}
