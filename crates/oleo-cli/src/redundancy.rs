//! Block groups that survive the loss of fewer devices than others of their type.
//!
//! A volume that is written while a device is missing gets block groups of the profile that the remaining devices allow. A new
//! device, or the removal of the missing one, does not change the profile of existing block groups: only a balance converts them.

use oleo::control::{GroupUsed, Reply, Request};
use oleo::format::BlockGroupFlags;
use oleo::volume::Profile;

use crate::out::{Out, Said, human};
use crate::target::{Target, VolumeArg, answer};

/// The types that a balance converts.
const TYPES: BlockGroupFlags = BlockGroupFlags::DATA.union(BlockGroupFlags::METADATA).union(BlockGroupFlags::SYSTEM);

/// What to do about reduced redundancy after a change of devices.
#[derive(clap::Args, Default)]
pub(crate) struct RedundancyArg {
    /// Exit with 1 if some block groups survive the loss of fewer devices than others of their type.
    #[arg(long)]
    require_redundancy: bool,
}

/// Block groups of one type and profile.
#[derive(PartialEq, Eq, Debug)]
struct Reduced {
    types: BlockGroupFlags,
    kind: String,
    profile: Profile,
    used: u64,
    /// The profile of the same type that survives the loss of more devices.
    wanted: Profile,
}

/// The block groups with data that survive the loss of fewer devices than others of their type.
fn reduced(groups: &[GroupUsed]) -> Vec<Reduced> {
    let all: Vec<(BlockGroupFlags, Profile, &GroupUsed)> = groups
        .iter()
        .filter_map(|group| {
            let flags = BlockGroupFlags::from_bits_retain(group.flags);
            Some((flags & TYPES, Profile::of(flags)?, group))
        })
        .filter(|(types, ..)| !types.is_empty())
        .collect();
    let best = |types: BlockGroupFlags| {
        all.iter().filter(|(other, ..)| *other == types).map(|(_, profile, _)| *profile).max_by_key(|p| p.losses_max())
    };
    let found = all.iter().filter(|(_, _, group)| group.used.0 > 0).filter_map(|(types, profile, group)| {
        let wanted = best(*types).filter(|best| best.losses_max() > profile.losses_max())?;
        Some(Reduced { types: *types, kind: group.kind.clone(), profile: *profile, used: group.used.0, wanted })
    });
    found.collect()
}

/// The line about reduced block groups with the command that converts them; `None` if there are none.
fn advice(reduced: &[Reduced]) -> Option<String> {
    if reduced.is_empty() {
        return None;
    }
    let what: Vec<String> = reduced
        .iter()
        .map(|r| format!("{} of {} is {} and not {}", human(r.used), r.kind.to_lowercase(), r.profile, r.wanted))
        .collect();
    let wanted = |types: BlockGroupFlags| reduced.iter().find(|r| r.types.intersects(types)).map(|r| r.wanted);
    let data = wanted(BlockGroupFlags::DATA).map(|to| format!(" -dconvert={to},soft"));
    // The filters of metadata are those of the chunk tree, too.
    let metadata = wanted(BlockGroupFlags::METADATA).or_else(|| wanted(BlockGroupFlags::SYSTEM));
    let metadata = metadata.map(|to| format!(" -mconvert={to},soft"));
    let (data, metadata) = (data.unwrap_or_default(), metadata.unwrap_or_default());
    let what = what.join(", ");
    Some(format!("not all block groups are redundant: {what}; `oleo balance start{data}{metadata}` converts them"))
}

/// The line about reduced redundancy of a volume; `None` if there is nothing to report.
pub(crate) fn look(target: &Target) -> anyhow::Result<Option<String>> {
    let groups = answer!(target.ask(Request::Df)?, Reply::Df(groups) => groups)?;
    Ok(advice(&reduced(&groups)))
}

impl RedundancyArg {
    /// Whether reduced redundancy is an error.
    pub fn is_required(&self) -> bool {
        self.require_redundancy
    }

    /// Reports what [`look`] found: as an error if the user requires redundancy, otherwise as a warning.
    pub fn report(&self, found: Option<String>, on: &VolumeArg, out: &Out) -> anyhow::Result<()> {
        let Some(text) = found else { return Ok(()) };
        let text = format!("{}: {text}", on.path.display());
        if self.require_redundancy {
            return Err(Said(oleo::ErrorKind::Refusal, text).into());
        }
        out.warnings(&[text]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use oleo::format::ByteLen;

    use super::*;

    fn group(types: BlockGroupFlags, profile: Profile, used: u64) -> GroupUsed {
        let flags = (types | profile.bits()).bits();
        let kind = if types.contains(BlockGroupFlags::DATA) { "Data" } else { "Metadata" };
        let (kind, profile) = (kind.to_owned(), profile.name().to_owned());
        GroupUsed { flags, kind, profile, total: ByteLen(1 << 30), used: ByteLen(used), on_devices: Vec::new() }
    }

    /// Goal: only groups with data are reported, against the best profile of their own type, with the command that converts
    /// them. Method: lists of groups and the advice for each.
    #[test]
    fn advice_for_groups() {
        const DATA: BlockGroupFlags = BlockGroupFlags::DATA;
        const METADATA: BlockGroupFlags = BlockGroupFlags::METADATA;
        let advice = |groups: &[GroupUsed]| advice(&reduced(groups));
        assert_eq!(advice(&[]), None);
        assert_eq!(advice(&[group(DATA, Profile::Single, 5), group(METADATA, Profile::Raid1, 5)]), None);
        assert_eq!(advice(&[group(DATA, Profile::Single, 0), group(DATA, Profile::Raid1, 5)]), None, "it is empty");
        assert_eq!(advice(&[group(DATA, Profile::Raid10, 5), group(DATA, Profile::Raid1, 5)]), None, "one each");
        let both = [
            group(DATA, Profile::Single, 1 << 20),
            group(DATA, Profile::Raid1, 0),
            group(METADATA, Profile::Dup, 1 << 20),
            group(METADATA, Profile::Raid1c3, 5),
            group(METADATA, Profile::Raid1, 1 << 21),
        ];
        let text = advice(&both).expect("it is reduced");
        assert_eq!(
            text,
            "not all block groups are redundant: 1.00MiB of data is single and not raid1, 1.00MiB of metadata is dup and not \
             raid1c3, 2.00MiB of metadata is raid1 and not raid1c3; \
             `oleo balance start -dconvert=raid1,soft -mconvert=raid1c3,soft` converts them"
        );
    }
}
