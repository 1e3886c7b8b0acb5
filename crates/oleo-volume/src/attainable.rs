//! Which profile new chunks can have when devices are lost.

use oleo_format::BlockGroupFlags;

use crate::Volume;
use crate::profile::Profile;

/// What comes next when a profile cannot be had, by what it survives and then by what it costs.
fn next(profile: Profile, is_data: bool) -> Option<Profile> {
    match profile {
        Profile::Raid1c4 => Some(Profile::Raid1c3),
        Profile::Raid6 => Some(Profile::Raid5),
        Profile::Raid1c3 | Profile::Raid5 | Profile::Raid10 => Some(Profile::Raid1),
        Profile::Raid1 if is_data => Some(Profile::Single),
        Profile::Raid1 => Some(Profile::Dup),
        Profile::Raid0 | Profile::Single | Profile::Dup => None,
    }
}

/// The flags with a profile that so many devices suffice for.
fn attainable(flags: BlockGroupFlags, devices: usize) -> BlockGroupFlags {
    let is_data = flags.contains(BlockGroupFlags::DATA);
    let mut profile = Profile::of(flags);
    // The chain is as long as there are profiles.
    for _ in Profile::ALL {
        let Some(now) = profile else { break };
        if usize::from(now.shape().devices_min) <= devices {
            return (flags - Profile::bits_all()) | now.bits();
        }
        profile = next(now, is_data);
    }
    flags
}

impl Volume {
    /// Type and profile that new chunks get where these are wanted: the same, unless devices are lost and too few are left. Then the
    /// next best profile, such as raid1 for raid1c3, dup for metadata and single for data on one device.
    pub fn attainable(&self, flags: BlockGroupFlags) -> BlockGroupFlags {
        let members = self.members.read();
        if members.iter().all(|member| member.seed || member.is_sound()) {
            return flags;
        }
        attainable(flags, members.iter().filter(|member| member.takes_chunks()).count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a profile is kept as long as there are devices for it, and the next best is taken where there are not. Method: a table.
    #[test]
    fn the_next_best() {
        use Profile::*;
        let (data, metadata) = (BlockGroupFlags::DATA, BlockGroupFlags::METADATA);
        for (wanted, devices, kind, got) in [
            (Raid1, 2, data, Raid1),
            (Raid1, 1, data, Single),
            (Raid1, 1, metadata, Dup),
            (Raid1c4, 3, metadata, Raid1c3),
            (Raid1c4, 1, metadata, Dup),
            (Raid6, 2, data, Raid5),
            (Raid6, 1, data, Single),
            (Raid5, 1, metadata, Dup),
            (Raid10, 1, data, Single),
            (Raid10, 3, data, Raid10),
            (Raid0, 1, data, Raid0),
            (Dup, 1, metadata, Dup),
        ] {
            assert_eq!(attainable(kind | wanted.bits(), devices), kind | got.bits(), "{wanted} on {devices}");
        }
    }
}
