//! Transactions: begin, join, freeze, settle, write, publish; the bookkeeping trees, back references, snapshots.
//!
//! [`Engine`] is the entry point. `engine` is what all other files work on: state and options below it know nothing of it. `commit`
//! describes the order of a commit, `extents`, `free_runs`, `csums` and `bookkeeping` what it records, `growth` and
//! `metadata_reserve` how space is promised before it is used, `load` what opening does, `log` what an fsync writes. Relocation is the
//! last step of a commit that is given one (`commit::LastStep`).

mod agree;
mod apply;
mod backrefs;
mod barrier;
mod bookkeeping;
mod commit;
mod copies;
mod count;
mod counted;
mod csums;
mod data_ahead;
pub mod devices;
mod drop;
mod engine;
mod error;
mod extents;
mod file_data;
mod free_runs;
mod growth;
mod join;
mod load;
mod log;
mod metadata_reserve;
mod new_free_space;
mod options;
mod phases;
mod placement;
mod quota;
mod readers;
mod relocate;
mod resize;
mod root_sets;
mod slabs;
mod source;
mod staged;
mod trees;
mod trim;
mod unreplayed_log;
mod witness;
mod workers;

pub use backrefs::{Backrefs, Naming};
pub use barrier::thread_number;
pub use drop::Dropped;
pub use engine::Engine;
pub use error::TxnError;
pub use file_data::DataReservation;
pub use join::Handle;
pub use log::{JoinsBlocked, LogCommit, LogRecording, LogWritten, commits_of_this_thread, fallback};
pub use options::{Claim, CsumCheck, DataWant, EngineOptions, Need};
pub use quota::{Assigned, Qgroup, QgroupId, QgroupLimit, QuotaMode, QuotaState, ScanBase};
pub use readers::{Look, Reader};
pub use relocate::{Addresses, Moved, NoAddresses};
pub use root_sets::{RootSet, RootSets};
pub use source::{DeltaSource, Stage};
pub use staged::Staged;
pub use unreplayed_log::found::{LogTree, UnreplayedLog};
