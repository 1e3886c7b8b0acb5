//! The members of a file system: superblocks, chunk map, RAID geometry, mirrors and healing reads.
