//! Jobs on whole file systems or whole files: scrubbing, balancing, adding, removing and resizing devices, defragmenting, trimming, reclaiming groups,
//! quota, and finding what is new or what refers to an address. Each job works on an open file system, mounted or not,
//! while it is in use.
//!
//! Not here: permissions (`oleo::control`); files and transactions (`oleo-fs`, `oleo-txn`).

mod backrefs;
mod balance;
mod defragment;
mod device;
mod error;
mod find_new;
mod quota;
mod reclaim;
mod resize;
mod scrub;
mod shares;
mod trim;
mod unreadable;
mod vacate;

pub use backrefs::{PATHS_MAX, Referrer, referrers, referrers_at_commit};
pub use balance::{
    BalanceArgs, BalanceEnd, BalanceProgress, BalanceState, BalanceStatus, Balancer, Bound, Filters, Span,
};
pub use defragment::{DefragOptions, Defragmented, defragment};
pub use device::{DeviceJob, Members, Removed, ReplaceState, ReplaceStatus, Replacer};
pub use error::JobError;
pub use find_new::{NewExtent, NewExtents, find_new};
pub use quota::{
    QgroupChange, Recount, qgroup_change, qgroups_clear_stale, quota, quota_disable, quota_enable, quota_enable_simple,
    quota_rescan,
};
pub use reclaim::{Reclaimed, reclaim};
pub use resize::{NewSize, Resized, resize};
pub use scrub::{
    Candidates, DeviceScrub, ScrubEnd, ScrubStatus, ScrubWant, Scrubber, UNHEALED_MAX, Unhealed, WIDE_ROWS_LEN_MAX,
    Wanted, What,
};
pub use shares::{Shares, SubvolSize, frees, shares, subvol_sizes};
pub use trim::{TrimRange, trim};
