//! The profiles: how many copies and parities a chunk has, and on how many devices.
//!
//! Facts from the format documentation (profile table) and from the `BTRFS_BLOCK_GROUP_*` bits of the UAPI header.

use std::fmt;
use std::str::FromStr;

use oleo_format::{BlockGroupFlags, Incompat};

/// How the stripes of a chunk relate to its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Profile {
    /// One copy on one device.
    Single,
    /// Two copies on one device.
    Dup,
    /// One copy, striped over all devices.
    Raid0,
    /// Two copies on two devices.
    Raid1,
    /// Three copies on three devices.
    Raid1c3,
    /// Four copies on four devices.
    Raid1c4,
    /// Two copies, striped over pairs of devices.
    Raid10,
    /// Striped with one rotating parity.
    Raid5,
    /// Striped with two rotating parities.
    Raid6,
}

/// What a profile asks for, in devices and copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProfileShape {
    /// Stripes on each device.
    pub stripes_per_device: u16,
    /// Fewest devices a new chunk may have.
    pub devices_min: u16,
    /// Most devices a chunk may have; `None`: as many as there are.
    pub devices_max: Option<u16>,
    /// The number of devices is a multiple of this.
    pub devices_step: u16,
    /// Copies of each byte.
    pub copies: u16,
    /// Parity stripes in each row.
    pub parities: u16,
    /// The chunk item's `sub_stripes`.
    pub sub_stripes: u16,
}

impl Profile {
    /// Every profile there is.
    pub const ALL: [Profile; 9] = [
        Profile::Single,
        Profile::Dup,
        Profile::Raid0,
        Profile::Raid1,
        Profile::Raid1c3,
        Profile::Raid1c4,
        Profile::Raid10,
        Profile::Raid5,
        Profile::Raid6,
    ];

    /// The profile that the bits of a chunk or block group name: none is `Single`, several together are `None`.
    pub fn of(flags: BlockGroupFlags) -> Option<Profile> {
        let bits = flags & Profile::bits_all();
        if bits.is_empty() {
            return Some(Profile::Single);
        }
        Profile::ALL.into_iter().find(|p| p.bits() == bits)
    }

    /// The bit of this profile; empty for `Single`.
    pub fn bits(self) -> BlockGroupFlags {
        match self {
            Profile::Single => BlockGroupFlags::empty(),
            Profile::Dup => BlockGroupFlags::DUP,
            Profile::Raid0 => BlockGroupFlags::RAID0,
            Profile::Raid1 => BlockGroupFlags::RAID1,
            Profile::Raid1c3 => BlockGroupFlags::RAID1C3,
            Profile::Raid1c4 => BlockGroupFlags::RAID1C4,
            Profile::Raid10 => BlockGroupFlags::RAID10,
            Profile::Raid5 => BlockGroupFlags::RAID5,
            Profile::Raid6 => BlockGroupFlags::RAID6,
        }
    }

    /// The bits of all profiles.
    pub fn bits_all() -> BlockGroupFlags {
        Profile::ALL.into_iter().fold(BlockGroupFlags::empty(), |all, p| all | p.bits())
    }

    /// Its requirements.
    pub fn shape(self) -> ProfileShape {
        let shape = |stripes_per_device, devices_min, devices_max, devices_step, copies, parities| ProfileShape {
            stripes_per_device,
            devices_min,
            devices_max,
            devices_step,
            copies,
            parities,
            sub_stripes: if self == Profile::Raid10 { 2 } else { 1 },
        };
        match self {
            Profile::Single => shape(1, 1, Some(1), 1, 1, 0),
            Profile::Dup => shape(2, 1, Some(1), 1, 2, 0),
            Profile::Raid0 => shape(1, 1, None, 1, 1, 0),
            Profile::Raid1 => shape(1, 2, Some(2), 2, 2, 0),
            Profile::Raid1c3 => shape(1, 3, Some(3), 3, 3, 0),
            Profile::Raid1c4 => shape(1, 4, Some(4), 4, 4, 0),
            Profile::Raid10 => shape(1, 2, None, 2, 2, 0),
            Profile::Raid5 => shape(1, 2, None, 1, 1, 1),
            Profile::Raid6 => shape(1, 3, None, 1, 1, 2),
        }
    }

    /// The number of stripes that hold different data, of `stripes` in all.
    pub fn data_stripes(self, stripes: u64) -> u64 {
        let shape = self.shape();
        stripes.saturating_sub(shape.parities.into()) / u64::from(shape.copies)
    }

    /// How many devices of a chunk can be lost, whichever they are.
    pub fn losses_max(self) -> u16 {
        let shape = self.shape();
        match self {
            Profile::Dup => 0,
            _ => shape.parities.max(shape.copies - 1),
        }
    }

    /// The feature bits that a superblock must have before a chunk of this profile may exist.
    pub fn incompat(self) -> Incompat {
        match self {
            Profile::Raid1c3 | Profile::Raid1c4 => Incompat::RAID1C34,
            Profile::Raid5 | Profile::Raid6 => Incompat::RAID56,
            _ => Incompat::empty(),
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Single => "single",
            Profile::Dup => "dup",
            Profile::Raid0 => "raid0",
            Profile::Raid1 => "raid1",
            Profile::Raid1c3 => "raid1c3",
            Profile::Raid1c4 => "raid1c4",
            Profile::Raid10 => "raid10",
            Profile::Raid5 => "raid5",
            Profile::Raid6 => "raid6",
        }
    }

    /// Whether reads may be rebuilt from parity (and rows must be written whole).
    pub fn has_parity(self) -> bool {
        self.shape().parities > 0
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A word that names no profile.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no profile {0}; choose one of {names}", names = Profile::ALL.map(Profile::name).join(", "))]
pub struct UnknownProfile(pub String);

impl FromStr for Profile {
    type Err = UnknownProfile;

    /// Finds a profile by its name, in large or small letters.
    fn from_str(s: &str) -> Result<Profile, UnknownProfile> {
        let found = Profile::ALL.into_iter().find(|p| p.name().eq_ignore_ascii_case(s));
        found.ok_or_else(|| UnknownProfile(s.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: names and profiles belong to each other one to one. Method: there and back, for each; and a stranger.
    #[test]
    fn each_profile_has_one_name() {
        for profile in Profile::ALL {
            assert_eq!(profile.to_string().to_ascii_uppercase().parse(), Ok(profile));
        }
        let error = "raid7".parse::<Profile>().unwrap_err().to_string();
        assert!(error.contains("raid7") && error.contains("raid1c4"), "{error}");
    }
}
