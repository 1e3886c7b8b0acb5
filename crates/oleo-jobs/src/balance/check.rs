//! Checks whether a balance is possible as requested.

use oleo_format::BlockGroupFlags;
use oleo_fs::{Fs, errno};
use oleo_volume::Profile;

use super::BalanceArgs;
use super::item::{TYPES, type_of};
use crate::JobError;

/// Checks what new and resumed balances have in common.
///
/// # Errors
/// The reason why it is not possible.
pub(super) fn check_resumed(fs: &Fs, args: &BalanceArgs) -> Result<(), JobError> {
    let refuse = |text: String| Err(JobError::refused(errno::EINVAL, text));
    if args.each().iter().all(Option::is_none) {
        return refuse("no type of block group is selected".to_owned());
    }
    let (data, metadata) = (&args.data, &args.metadata);
    if fs.engine().is_mixed() && data != metadata {
        return refuse("data and metadata share block groups here: the filters of both must be the same".to_owned());
    }
    // A power cut between two superblocks leaves one that is a transaction behind, and nothing missing.
    let volume = fs.engine().volume();
    let writable = volume.devices().iter().filter(|d| !d.missing && !d.seed && d.behind <= 1).count();
    for filters in args.each().into_iter().flatten() {
        let Some(target) = filters.convert else { continue };
        let min = usize::from(target.shape().devices_min);
        if writable < min {
            return refuse(format!("{target} needs {min} devices, there are {writable}"));
        }
    }
    if args.force {
        return Ok(());
    }
    // New block groups would be of the next best profile, on the devices that are left.
    for (filters, bit) in args.each().into_iter().zip(TYPES) {
        if filters.is_none_or(|f| f.convert.is_some()) {
            continue;
        }
        for group in fs.engine().space().groups().iter().filter(|g| g.flags.contains(bit)) {
            let (had, gets) = (Profile::of(group.flags), Profile::of(volume.attainable(group.flags)));
            if let (Some(had), Some(gets)) = (had, gets)
                && had != gets
            {
                let text = format!(
                    "{had} would become {gets}, since a device is missing or missed transactions: replace it, or scrub the volume \
                     while it is not mounted"
                );
                return Err(JobError::FewerCopies(text));
            }
        }
    }
    Ok(())
}

/// The same for a new one, which must not give up redundancy unless that is wanted.
///
/// # Errors
/// What speaks against it.
pub(super) fn check(fs: &Fs, args: &BalanceArgs) -> Result<(), JobError> {
    check_resumed(fs, args)?;
    if args.force {
        return Ok(());
    }
    let groups = fs.engine().space().groups();
    for (filters, bit) in args.each().into_iter().zip(TYPES) {
        let Some(target) = filters.and_then(|f| f.convert).filter(|target| !is_redundant(*target)) else { continue };
        let had =
            groups.iter().filter(|g| TYPES[type_of(g.flags)] == bit || (g.flags.is_mixed() && g.flags.contains(bit)));
        let had = had.filter_map(|g| Profile::of(g.flags)).find(|p| is_redundant(*p));
        if let Some(had) = had.filter(|_| bit != BlockGroupFlags::DATA) {
            let what = if bit == BlockGroupFlags::SYSTEM { "system" } else { "metadata" };
            let text = format!("{what} has copies now ({had}), and would have none as {target}");
            return Err(JobError::FewerCopies(text));
        }
    }
    Ok(())
}

/// Whether something that is lost once is there once more.
fn is_redundant(profile: Profile) -> bool {
    profile.shape().copies > 1 || profile.has_parity()
}
