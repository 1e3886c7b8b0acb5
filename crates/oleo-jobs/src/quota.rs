//! Quota: turning it on and off, recounting, and changing groups. Each change is durable before the call returns.

use oleo_format::{TreeId, errno};
use oleo_fs::Fs;
use oleo_txn::{Assigned, Claim, Need, Qgroup, QgroupId, QgroupLimit, QuotaMode, QuotaState, Staged, TxnError};

use crate::JobError;
use crate::shares::shares;

/// What a change of quota may need: paths in the quota tree and the root tree. Turning it off gives space back.
const NEED: Need = Need { items: 64, row: 64, bytes: 8192, claim: Claim::Release };
/// Bytes of the two items of a group, with their heads.
const GROUP_BYTES: usize = 130;

/// A change of quota groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QgroupChange {
    /// A new group, of level 1 or higher.
    Create(QgroupId),
    /// A group goes that nothing is in.
    Destroy(QgroupId),
    /// A group becomes part of another.
    Assign(QgroupId, QgroupId),
    /// Remove the first group from the second.
    Remove(QgroupId, QgroupId),
    /// Set the limits of a group.
    Limit(QgroupId, QgroupLimit),
}

fn staged<R: Send>(fs: &Fs, f: impl FnOnce(&mut Staged<'_>) -> Result<R, TxnError> + Send) -> Result<R, JobError> {
    staged_with(fs, NEED, f)
}

fn staged_with<R: Send>(
    fs: &Fs,
    need: Need,
    f: impl FnOnce(&mut Staged<'_>) -> Result<R, TxnError> + Send,
) -> Result<R, JobError> {
    let done = fs.staged_with(need, |s| Ok(f(s)?))?;
    fs.sync()?;
    Ok(done)
}

/// What quota is; `None` if it is off.
pub fn quota(fs: &Fs) -> Option<QuotaState> {
    fs.engine().quota()
}

/// Turns full quotas on and counts.
///
/// # Errors
/// No space, or the image is damaged; simple quotas are on (`EEXIST`).
pub fn quota_enable(fs: &Fs) -> Result<(), JobError> {
    if turn_on(fs, QuotaMode::Full)? { quota_rescan(fs, &|| true) } else { Ok(()) }
}

/// Turns simple quotas on: data written from now on counts for the subvolume that writes it.
///
/// # Errors
/// No space, or the image is damaged; full quotas are on (`EEXIST`).
pub fn quota_enable_simple(fs: &Fs) -> Result<(), JobError> {
    turn_on(fs, QuotaMode::Simple).map(drop)
}

/// Whether it was off.
fn turn_on(fs: &Fs, mode: QuotaMode) -> Result<bool, JobError> {
    if fs.engine().quota().is_some() {
        return staged(fs, |s| s.quota_enable(&[], mode)).map(|()| false);
    }
    fs.sync()?;
    let base = fs.engine().scan_base(false)?;
    let subvols: Vec<_> = base.roots.iter().filter(|(_, dropping)| dropping.is_none()).map(|(r, _)| r.tree).collect();
    drop(base);
    let dead = fs.engine().dead_trees()?;
    let subvols: Vec<_> = subvols.into_iter().filter(|tree| !dead.contains(tree)).collect();
    let groups = u32::try_from(GROUP_BYTES.saturating_mul(subvols.len())).unwrap_or(u32::MAX);
    let need = Need { bytes: NEED.bytes.saturating_add(groups), claim: Claim::Ordinary, ..NEED };
    staged_with(fs, need, |s| s.quota_enable(&subvols, mode))?;
    Ok(true)
}

/// Turns quota off.
///
/// # Errors
/// It is off.
pub fn quota_disable(fs: &Fs) -> Result<(), JobError> {
    staged(fs, |s| s.quota_disable())
}

/// Recounts what every group uses. Other work continues meanwhile. `goes_on` is called now and then; if it returns
/// false, the groups stay marked as being counted.
///
/// # Errors
/// Quota is off, or simple (`EINVAL`), or the image is damaged.
pub fn quota_rescan(fs: &Fs, goes_on: &dyn Fn() -> bool) -> Result<(), JobError> {
    fs.sync()?;
    let base = fs.engine().scan_begin()?;
    let Some(shares) = shares(fs.engine(), &base, goes_on)? else {
        fs.engine().scan_give_up();
        return Ok(());
    };
    drop(base);
    fs.sync()?;
    fs.engine().scan_end(&shares)?;
    fs.sync()?;
    Ok(())
}

/// When groups are counted anew whose numbers a change leaves open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recount {
    /// Before the change returns.
    Now,
    /// Later: they are marked as wrong until [`quota_rescan`].
    Later,
}

/// Changes a group, and recounts everything if the new numbers do not follow from the change.
///
/// # Errors
/// Quota is off, there is no such group, or the change is not possible.
pub fn qgroup_change(fs: &Fs, change: QgroupChange, recount: Recount) -> Result<Assigned, JobError> {
    let done = staged(fs, |s| match change {
        QgroupChange::Create(id) => s.qgroup_create(id).map(|()| Assigned::Exact),
        QgroupChange::Destroy(id) => s.qgroup_destroy(id).map(|()| Assigned::Exact),
        QgroupChange::Assign(member, parent) => s.qgroup_assign(member, parent),
        QgroupChange::Remove(member, parent) => s.qgroup_remove(member, parent),
        QgroupChange::Limit(id, limit) => s.qgroup_limit(id, limit).map(|()| Assigned::Exact),
    })?;
    if done == Assigned::NeedsScan && recount == Recount::Now {
        quota_rescan(fs, &|| true)?;
        return Ok(Assigned::Exact);
    }
    Ok(done)
}

/// Removes the groups of subvolumes that are gone, together; those that others are in, that still count something, or whose
/// subvolume is still being removed stay.
///
/// # Errors
/// Quota is off.
pub fn qgroups_clear_stale(fs: &Fs) -> Result<(), JobError> {
    let there: Vec<TreeId> = fs.subvol_list()?.into_iter().map(|info| info.id).collect();
    let state = quota(fs).ok_or(TxnError::QuotaOff)?;
    let is_stale = |id: QgroupId, g: &Qgroup| {
        id.level() == 0 && !there.contains(&TreeId(id.0)) && g.rfer == 0 && g.children.is_empty()
    };
    let stale: Vec<QgroupId> = state.groups.iter().filter(|(id, g)| is_stale(*id, g)).map(|(id, _)| *id).collect();
    staged(fs, |s| {
        stale.iter().try_for_each(|id| match s.qgroup_destroy(*id) {
            Err(TxnError::Qgroup { errno: errno::EBUSY, .. }) => Ok(()),
            other => other,
        })
    })
}
