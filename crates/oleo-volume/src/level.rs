//! Superblocks of different moments, as a crash leaves them that comes while they are written, made one.
//!
//! The newest names what the others do not know: if it is on one device only, and that is lost later, the others lead to the state before. Its blocks may
//! be overwritten by then, since the newest says that they are free. The same goes for the log: of two superblocks of one generation, one names a log. So
//! before anything else is written, all devices get the superblock that the volume was opened by.
//!
//! Crash: some have it, some have what they had before.

use oleo_format::{DevId, SUPER_OFFSETS, SuperBlock};

use crate::Volume;
use crate::error::VolumeError;
use crate::member::Output;

/// Whether two superblocks of a volume lead to the same.
pub(crate) fn leads_elsewhere(a: &SuperBlock, b: &SuperBlock) -> bool {
    let of = |sb: &SuperBlock| (sb.generation, sb.root, sb.chunk_root, sb.log_root);
    of(a) != of(b)
}

impl Volume {
    /// Gives `sb`, which is the volume's, to the devices that have another. Durable.
    pub(crate) fn level_supers(&self, sb: &SuperBlock, others: &[DevId]) -> Result<(), VolumeError> {
        let is_other = |output: &Output| !output.is_target && !output.is_new() && others.contains(&output.member.devid);
        let on: Vec<Output> = self.outputs().into_iter().filter(is_other).collect();
        self.write_mirrors(sb, &SUPER_OFFSETS[..1], &on, Output::written_item)?;
        self.flush_outputs(&on)
    }
}
