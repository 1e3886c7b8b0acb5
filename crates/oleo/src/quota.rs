//! Quota by library.

use oleo_jobs::{QgroupChange, SubvolSize};
use oleo_txn::{Assigned, QuotaState};

use crate::{Image, Result};

impl Image {
    /// Quota and its groups, as the last commit left them; `None` where it is off.
    pub fn quota(&self) -> Option<QuotaState> {
        oleo_jobs::quota(self.fs())
    }

    /// Turns full quotas on and counts what is there. Durable when it returns.
    ///
    /// # Errors
    /// No space, or the image is damaged; simple quotas are on (`EEXIST`).
    pub fn quota_enable(&self) -> Result<()> {
        Ok(oleo_jobs::quota_enable(self.fs())?)
    }

    /// Turns simple quotas on: what is written from now on counts for the subvolume that writes it, whoever comes to share it,
    /// until it is gone; of tree blocks that is those which are rewritten. Costs less than full quotas, which say what
    /// a subvolume reaches and what it has alone. Durable when it returns. Volumes that have had them can be read and
    /// written by kernels from 6.7 on only.
    ///
    /// # Errors
    /// No space, or the image is damaged; full quotas are on (`EEXIST`).
    pub fn quota_enable_simple(&self) -> Result<()> {
        Ok(oleo_jobs::quota_enable_simple(self.fs())?)
    }

    /// Turns quota off; groups and limits are gone.
    ///
    /// # Errors
    /// It is off (`ENOTCONN`).
    pub fn quota_disable(&self) -> Result<()> {
        Ok(oleo_jobs::quota_disable(self.fs())?)
    }

    /// Counts what every group uses anew, while others go on.
    ///
    /// # Errors
    /// Quota is off (`ENOTCONN`) or simple (`EINVAL`), or the image is damaged.
    pub fn quota_rescan(&self) -> Result<()> {
        Ok(oleo_jobs::quota_rescan(self.fs(), &|| true)?)
    }

    /// The same, as long as `goes_on` says so; it is asked now and then. Given up, the groups stay marked as being counted.
    ///
    /// # Errors
    /// As with [`Image::quota_rescan`].
    pub fn quota_rescan_until(&self, goes_on: &dyn Fn() -> bool) -> Result<()> {
        Ok(oleo_jobs::quota_rescan(self.fs(), goes_on)?)
    }

    /// Changes a group. Where the numbers do not say what that makes of them, all are counted anew if `scan` is set, and
    /// marked as wrong otherwise.
    ///
    /// # Errors
    /// Quota is off, there is no such group, or it cannot be; the errno is the kernel's.
    pub fn qgroup_change(&self, change: QgroupChange, scan: bool) -> Result<Assigned> {
        Ok(oleo_jobs::qgroup_change(self.fs(), change, scan)?)
    }

    /// What each subvolume takes, in the order of their numbers; quota may be off.
    ///
    /// # Errors
    /// The image is damaged, or cannot be read.
    pub fn subvol_sizes(&self) -> Result<Vec<SubvolSize>> {
        Ok(oleo_jobs::subvol_sizes(self.fs())?)
    }
}
