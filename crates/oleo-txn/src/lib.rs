//! Transactions: begin, join, freeze, settle, write, publish; the bookkeeping trees, back references, snapshots.
//!
//! [`Engine`] is the entry point. `commit` describes the order of a commit, `extents`, `free_runs`, `csums` and
//! `bookkeeping` what it records, `growth` and `metadata_reserve` how space is promised before it is used, `load` what
//! opening does, `log` what an fsync writes.

mod agree;
mod backrefs;
mod barrier;
mod bookkeeping;
mod commit;
mod csums;
mod drop;
mod engine;
mod error;
mod extents;
mod free_runs;
mod growth;
mod load;
mod log;
mod metadata_reserve;
mod quota;
mod readers;
mod relocate;
mod resize;
mod root_sets;
mod trees;
mod trim;
mod unreplayed_log;
mod workers;

pub use backrefs::{Backrefs, Naming};
pub use commit::Staged;
pub use drop::Dropped;
pub use engine::{CsumCheck, DataReservation, DataWant, DeltaSource, Engine, EngineOptions, Handle, Need, Stage};
pub use error::TxnError;
pub use log::{JoinsBlocked, LogCommit, LogWritten, commits_of_this_thread, fallback};
pub use quota::{Assigned, Qgroup, QgroupId, QgroupLimit, QuotaMode, QuotaState, ScanBase};
pub use readers::Reader;
pub use relocate::{Addresses, Moved, NoAddresses};
pub use root_sets::{RootSet, RootSets};
pub use unreplayed_log::{LogTree, UnreplayedLog};
