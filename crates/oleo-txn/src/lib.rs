//! Transactions: begin, join, freeze, settle, write, publish; the bookkeeping trees, back references, snapshots.
//!
//! [`Engine`] is the door. `commit` tells the order of a commit, `extents`, `free_runs`, `csums` and `books` what it records,
//! `growth` and `credit` how space is promised before it is used, `load` what opening does, `log` what an fsync writes.

mod agree;
mod backrefs;
mod books;
mod commit;
mod credit;
mod csums;
mod drop;
mod engine;
mod error;
mod extents;
mod found_log;
mod free_runs;
mod gate;
mod growth;
mod load;
mod log;
mod quota;
mod readers;
mod relocate;
mod resize;
mod root_sets;
mod trees;
mod trim;
mod workers;

pub use backrefs::{Backrefs, Naming};
pub use commit::Staged;
pub use drop::Dropped;
pub use engine::{CsumCheck, DataReservation, DataWant, DeltaSource, Engine, EngineOptions, Handle, Need, Stage};
pub use error::TxnError;
pub use found_log::{FoundLog, LogTree};
pub use log::{LogCommit, LogWritten, Still, commits_of_this_thread, refusal};
pub use quota::{Assigned, Qgroup, QgroupId, QgroupLimit, QuotaMode, QuotaState, ScanBase};
pub use readers::Reader;
pub use relocate::{Addresses, Moved, NoAddresses};
pub use root_sets::{RootSet, RootSets};
