//! Requests about quota.

use oleo_format::{QgroupStatusFlags, TreeId};
use oleo_fs::{Fs, errno};
use oleo_jobs::{
    QgroupChange, Recount, qgroup_change, qgroups_clear_stale, quota, quota_disable, quota_enable, quota_enable_simple,
    quota_rescan,
};
use oleo_txn::QgroupId;

use crate::SubvolRef;
use crate::control::error::Error;
use crate::control::reply::{QgroupShown, QuotaShown};
use crate::control::request::{NewLimit, QuotaChange, WhichGroup};

/// Quota as it is.
pub(super) fn show(fs: &Fs) -> Result<Option<QuotaShown>, Error> {
    let Some(state) = quota(fs) else { return Ok(None) };
    let mut paths: std::collections::BTreeMap<TreeId, Vec<u8>> =
        fs.subvol_list()?.into_iter().map(|info| (info.id, info.path)).collect();
    let numbers = |ids: &std::collections::BTreeSet<QgroupId>| ids.iter().map(|id| id.0).collect();
    let groups = state.groups.iter().map(|(id, group)| QgroupShown {
        id: id.0,
        rfer: group.rfer,
        excl: group.excl,
        max_rfer: group.limit.max_rfer,
        max_excl: group.limit.max_excl,
        parents: numbers(&group.parents),
        children: numbers(&group.children),
        path: paths.remove(&TreeId(id.0)).map(Into::into),
    });
    Ok(Some(QuotaShown {
        inconsistent: state.flags.contains(QgroupStatusFlags::INCONSISTENT),
        rescan: state.flags.contains(QgroupStatusFlags::RESCAN),
        simple: state.flags.contains(QgroupStatusFlags::SIMPLE_MODE),
        generation: state.generation,
        groups: groups.collect(),
    }))
}

/// Changes it. `subvol` finds the subvolume that is meant.
pub(super) fn change(
    fs: &Fs,
    change: QuotaChange,
    subvol: impl Fn(&SubvolRef) -> Result<TreeId, Error>,
) -> Result<(), Error> {
    let group = |change, rescan| -> Result<(), Error> {
        let recount = if rescan { Recount::Now } else { Recount::Later };
        Ok(qgroup_change(fs, change, recount).map(drop)?)
    };
    match change {
        QuotaChange::Enable => Ok(quota_enable(fs)?),
        QuotaChange::EnableSimple => Ok(quota_enable_simple(fs)?),
        QuotaChange::Disable => Ok(quota_disable(fs)?),
        QuotaChange::Rescan => Ok(quota_rescan(fs, &|| true)?),
        QuotaChange::Create { id } => group(QgroupChange::Create(QgroupId(id)), false),
        QuotaChange::Destroy { id } => group(QgroupChange::Destroy(QgroupId(id)), false),
        QuotaChange::Assign { member, parent, rescan } => {
            group(QgroupChange::Assign(QgroupId(member), QgroupId(parent)), rescan)
        }
        QuotaChange::Remove { member, parent, rescan } => {
            group(QgroupChange::Remove(QgroupId(member), QgroupId(parent)), rescan)
        }
        QuotaChange::ClearStale => Ok(qgroups_clear_stale(fs)?),
        QuotaChange::Limit { group: which, rfer, excl } => {
            let id = match which {
                WhichGroup::Id(id) => QgroupId(id),
                WhichGroup::Of(which) => QgroupId::of(subvol(&which)?),
            };
            let state = quota(fs).ok_or_else(off)?;
            let have = state.groups.iter().find(|(other, _)| *other == id).map(|(_, group)| group.limit);
            let mut limit = have.unwrap_or_default();
            for (value, new) in [(&mut limit.max_rfer, rfer), (&mut limit.max_excl, excl)] {
                match new {
                    NewLimit::Keep => {}
                    NewLimit::None => *value = None,
                    NewLimit::Bytes(bytes) => *value = Some(bytes),
                }
            }
            group(QgroupChange::Limit(id, limit), false)
        }
    }
}

fn off() -> Error {
    Error::refused(errno::ENOTCONN, "quota is off")
}
