//! Quota by library.

use crate::{Image, Result};

pub use oleo_format::QgroupStatusFlags;
pub use oleo_jobs::{QgroupChange, Recount, SubvolSize};
pub use oleo_txn::{Assigned, Qgroup, QgroupId, QgroupLimit, QuotaState};

impl Image {
    /// Quota and its groups, as of the last commit; `None` if quota is off.
    pub fn quota(&self) -> Option<QuotaState> {
        oleo_jobs::quota(self.fs())
    }

    /// Enables full quotas and counts existing data. Durable when it returns.
    ///
    /// # Errors
    /// No space, or the image is damaged; simple quotas are on (`EEXIST`).
    pub fn quota_enable(&self) -> Result<()> {
        Ok(oleo_jobs::quota_enable(self.fs())?)
    }

    /// Enables simple quotas: data written from now on, and tree blocks rewritten from now on, count for the subvolume that
    /// writes them, whoever shares them later, until they are freed. They cost less than full quotas, which count what
    /// a subvolume reaches and what it alone reaches. Durable when it returns. Afterwards only kernels from 6.7 on can
    /// read and write the volume, also when quota is off again.
    ///
    /// # Errors
    /// No space, or the image is damaged; full quotas are on (`EEXIST`).
    pub fn quota_enable_simple(&self) -> Result<()> {
        Ok(oleo_jobs::quota_enable_simple(self.fs())?)
    }

    /// Disables quota, and deletes groups and limits.
    ///
    /// # Errors
    /// It is off (`ENOTCONN`).
    pub fn quota_disable(&self) -> Result<()> {
        Ok(oleo_jobs::quota_disable(self.fs())?)
    }

    /// Counts the usage of every group again, while other operations continue.
    ///
    /// # Errors
    /// Quota is off (`ENOTCONN`) or simple (`EINVAL`), or the image is damaged.
    pub fn quota_rescan(&self) -> Result<()> {
        Ok(oleo_jobs::quota_rescan(self.fs(), &|| true)?)
    }

    /// The same, until `goes_on`, which is called now and then, returns `false`; the groups then stay marked as being counted.
    ///
    /// # Errors
    /// As with [`Image::quota_rescan`].
    pub fn quota_rescan_until(&self, goes_on: &dyn Fn() -> bool) -> Result<()> {
        Ok(oleo_jobs::quota_rescan(self.fs(), goes_on)?)
    }

    /// Changes a group, and counts all anew if the numbers do not say what the change makes of them.
    ///
    /// # Errors
    /// Quota is off, there is no such group, or it cannot be; the errno is the kernel's.
    pub fn qgroup_change(&self, change: QgroupChange, recount: Recount) -> Result<Assigned> {
        Ok(oleo_jobs::qgroup_change(self.fs(), change, recount)?)
    }

    /// The space that each subvolume takes, in the order of their IDs; quota may be off.
    ///
    /// # Errors
    /// The image is damaged, or cannot be read.
    pub fn subvol_sizes(&self) -> Result<Vec<SubvolSize>> {
        Ok(oleo_jobs::subvol_sizes(self.fs())?)
    }
}
