//! The usage of the volume, in bytes available to files: without copies and parity.

use super::{Answer, Server};
use crate::wire::Reply;
use crate::wire::abi;

/// Bytes that a name may have.
const NAME_LEN_MAX: u32 = 255;

impl Server {
    pub(super) fn statfs(&self, reply: &mut Reply<'_>) -> Answer {
        let room = self.image.space_summary();
        let unit = self.fs.engine().sectorsize();
        let blocks = |bytes: u64| bytes / u64::from(unit);
        reply.put(&abi::StatfsOut {
            blocks: blocks(room.total.0),
            bfree: blocks(room.free.0),
            bavail: blocks(room.available.0),
            // Inodes are made as they are needed.
            files: 0,
            ffree: 0,
            bsize: unit,
            namelen: NAME_LEN_MAX,
            frsize: unit,
            padding: 0,
            spare: [0; 6],
        });
        Ok(())
    }
}
