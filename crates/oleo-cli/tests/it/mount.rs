//! The mount, from outside: what a program sees on it, beside what it sees on the kernel's.
//!
//! - Families of POSIX cases, each run on a kernel mount (which proves the case) and on Oleo's: `opening`, `names`, `errors`,
//!   `rights`, `setid`, `times`, `xattrs`, `acls`, `flags`, `holes`, `clones`, `maps`, `cached`, `syncing`, `unlinked`, `dirs`, `subvols`, `handles`.
//! - Many in parallel, compared with the kernel: `concurrent`; beside balances and snapshots: `soak`. Real programs: `programs`. A killed server: `killed`; after sync(2): `synced`. Damaged data: `damage`. Space on devices of unequal sizes: `unequal`. Mounting and unmounting: `lifecycle`; without room to write: `ending`; errors of the write-back cache: `write_back`.
//! - `place` mounts, runs and verifies; `sys` has the system calls without a safe wrapper.

mod place;
mod sys;

mod acls;
mod cached;
mod clones;
mod concurrent;
mod damage;
mod dirs;
mod ending;
mod errors;
mod exercised;
mod flags;
mod handles;
mod holes;
mod killed;
mod lifecycle;
mod maps;
mod names;
mod opening;
mod programs;
mod rights;
mod setid;
mod soak;
mod subvols;
mod synced;
mod syncing;
mod times;
mod unequal;
mod unlinked;
mod write_back;
mod xattrs;
