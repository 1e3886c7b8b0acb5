//! Chooses the parent and the clone sources.
//!
//! The rules are those of `btrfs send`: everything that takes part is read-only. With clone sources and no parent, the
//! parent is the source that has most in common with the subvolume: the one it is a snapshot of, or else the youngest
//! snapshot of the same subvolume that is not younger than itself, or else the oldest. If there is none, the subvolume
//! is sent whole, and what it shares with the sources is cloned. Of several subvolumes each becomes a clone source for
//! those after it, unless all are sent whole.

use oleo_format::TreeId;
use oleo_fs::{Fs, FsError, SubvolInfo, errno};

use super::{Job, SendError, SendOptions};

/// The jobs for subvolumes, in their order.
pub(super) fn jobs(fs: &Fs, subvols: &[TreeId], options: &SendOptions<'_>) -> Result<Vec<Job>, SendError> {
    let parent = options.parent.map(|id| info(fs, id, "parent")).transpose()?;
    let mut sources: Vec<SubvolInfo> = Vec::new();
    for id in &options.clone_sources {
        if !sources.iter().any(|known| known.id == *id) {
            sources.push(info(fs, *id, "clone source")?);
        }
    }
    let is_whole = parent.is_none() && sources.is_empty();
    let mut jobs = Vec::new();
    for id in subvols {
        let subvol = info(fs, *id, "subvolume")?;
        if parent.as_ref().is_some_and(|parent| parent.id == subvol.id) {
            return Err(SendError::refused(errno::EINVAL, "a subvolume cannot be its own parent"));
        }
        let usable: Vec<&SubvolInfo> = sources.iter().filter(|source| source.id != subvol.id).collect();
        let parent = parent.clone().or_else(|| best(&subvol, &usable).cloned());
        let clone_sources = usable
            .into_iter()
            .filter(|source| parent.as_ref().is_none_or(|parent| parent.id != source.id))
            .cloned()
            .collect();
        if !is_whole && !sources.iter().any(|known| known.id == subvol.id) {
            sources.push(subvol.clone());
        }
        jobs.push(Job { subvol, parent, clone_sources });
    }
    Ok(jobs)
}

fn info(fs: &Fs, id: TreeId, part: &str) -> Result<SubvolInfo, SendError> {
    let info = match fs.subvol_info(id) {
        Ok(info) => info,
        Err(FsError::NotFound) => {
            return Err(SendError::refused(errno::ENOENT, format!("the {part} {id} does not exist")));
        }
        Err(e) => return Err(e.into()),
    };
    if !info.read_only {
        let path = if info.path.is_empty() { "/".into() } else { String::from_utf8_lossy(&info.path).into_owned() };
        let text = format!(
            "the {part} `{path}` is not read-only: make it so (`oleo property set … ro true`), or take a read-only snapshot"
        );
        return Err(SendError::refused(errno::EPERM, text));
    }
    Ok(info)
}

/// The best parent among clone sources.
fn best<'s>(subvol: &SubvolInfo, sources: &[&'s SubvolInfo]) -> Option<&'s SubvolInfo> {
    if subvol.parent_uuid.is_nil() {
        return None;
    }
    if let Some(parent) = sources.iter().copied().find(|source| source.uuid == subvol.parent_uuid) {
        return Some(parent);
    }
    let siblings = sources.iter().copied().filter(|source| source.parent_uuid == subvol.parent_uuid);
    let (older, younger): (Vec<&SubvolInfo>, Vec<&SubvolInfo>) =
        siblings.partition(|source| source.otransid <= subvol.otransid);
    let older = older.into_iter().max_by_key(|source| source.otransid);
    older.or_else(|| younger.into_iter().min_by_key(|source| source.otransid))
}
