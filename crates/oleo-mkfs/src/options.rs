//! The options of a new file system: sizes, checksum, features, profiles, names, and the seed of its UUIDs.
//!
//! `MkfsOptions` is plain data with the defaults of a current mkfs.btrfs. `Resolved` is the same after every open
//! choice has been made for a given number of devices and the whole was found consistent; only it reaches the code that
//! makes trees.

use oleo_format::{CsumType, Incompat};
use oleo_fs::{Clock, RandomUuids, SystemClock, UuidSource};
use oleo_volume::Profile;
use uuid::Uuid;

use crate::MkfsError;

/// The optional parts of the format that a new file system may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FeatureSet {
    /// More hard links to one file in one directory than fit in a single item.
    pub extref: bool,
    /// Extent items of tree blocks without the redundant first key.
    pub skinny_metadata: bool,
    /// No items for holes in files.
    pub no_holes: bool,
    /// Keep free space in a tree.
    pub free_space_tree: bool,
    /// Keep block groups in a tree of their own: large file systems mount faster.
    pub block_group_tree: bool,
    /// Data and metadata in the same block groups, for very small devices.
    pub mixed: bool,
    /// Marks profiles with three or four copies; set automatically if a profile needs it.
    pub raid1c34: bool,
    /// Marks profiles with parity; set automatically if a profile has it.
    pub raid56: bool,
    /// Quota is on. It needs the engine, so the program that fills the file system turns it on at the end;
    /// [`make`](crate::make) alone does not.
    pub quota: bool,
    /// Simple quotas are on, before anything is written; the rest as with `quota`, in place of which they are.
    pub simple_quota: bool,
}

impl Default for FeatureSet {
    fn default() -> FeatureSet {
        FeatureSet {
            extref: true,
            skinny_metadata: true,
            no_holes: true,
            free_space_tree: true,
            block_group_tree: false,
            mixed: false,
            raid1c34: false,
            raid56: false,
            quota: false,
            simple_quota: false,
        }
    }
}

oleo_format::setters!(FeatureSet {
    extref: bool,
    skinny_metadata: bool,
    no_holes: bool,
    free_space_tree: bool,
    block_group_tree: bool,
    mixed: bool,
    raid1c34: bool,
    raid56: bool,
    quota: bool,
    simple_quota: bool,
});

impl FeatureSet {
    /// The names that [`FeatureSet::apply`] accepts, with a line of description each.
    pub const NAMES: [(&'static str, &'static str); 10] = [
        ("extref", "more hard links to one file in one directory (default)"),
        ("skinny-metadata", "smaller extent items of tree blocks (default)"),
        ("no-holes", "no items for holes in files (default)"),
        ("free-space-tree", "free space in a tree (default)"),
        ("block-group-tree", "block groups in a tree of their own"),
        ("mixed-bg", "data and metadata in the same block groups"),
        ("raid1c34", "profiles with three or four copies (set by itself)"),
        ("raid56", "profiles with parity (set by itself)"),
        ("quota", "quota groups, counted from the start"),
        ("squota", "simple quotas: what is written counts for the subvolume that writes it"),
    ];

    /// Switches one feature on, or off if the name begins with `^`.
    ///
    /// # Errors
    /// The name is unknown, or known and not supported.
    pub fn apply(&mut self, word: &str) -> Result<(), MkfsError> {
        let (name, on) = match word.strip_prefix('^') {
            Some(name) => (name, false),
            None => (word, true),
        };
        let field = match name {
            "extref" => &mut self.extref,
            "skinny-metadata" => &mut self.skinny_metadata,
            "no-holes" => &mut self.no_holes,
            "free-space-tree" => &mut self.free_space_tree,
            "block-group-tree" | "bgt" => &mut self.block_group_tree,
            "mixed-bg" => &mut self.mixed,
            "raid1c34" => &mut self.raid1c34,
            "raid56" => &mut self.raid56,
            "quota" => &mut self.quota,
            "squota" => &mut self.simple_quota,
            "zoned" | "raid-stripe-tree" | "extent-tree-v2" => {
                return Err(MkfsError::Unsupported(format!("feature {name}")));
            }
            _ => {
                let names: Vec<&str> = FeatureSet::NAMES.iter().map(|(n, _)| *n).collect();
                return Err(MkfsError::Options(format!(
                    "there is no feature {name}; choose from {}",
                    names.join(", ")
                )));
            }
        };
        *field = on;
        Ok(())
    }
}

/// The options of a new file system. `Default` is what a current mkfs.btrfs makes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MkfsOptions {
    /// Bytes of a tree block: a power of two from `sectorsize` to 65536. `None`: 16384, or `sectorsize` when mixed.
    pub nodesize: Option<u32>,
    /// Bytes of a data block: a power of two from 4096 to 65536.
    pub sectorsize: u32,
    /// The checksum of everything.
    pub csum: CsumType,
    /// Optional parts of the format.
    pub features: FeatureSet,
    /// Profile of data. `None`: single.
    pub data: Option<Profile>,
    /// Profile of tree blocks. `None`: dup on one device, raid1 on several.
    pub metadata: Option<Profile>,
    /// Bytes that the first metadata chunk has at most, for images that are cut to size in the end.
    pub metadata_chunk_max: Option<u64>,
    /// A name of at most 255 bytes, without a line feed.
    pub label: String,
    /// The UUID of the file system. `None`: made from `seed`.
    pub fsid: Option<Uuid>,
    /// All other UUIDs are derived from this; equal options and seeds give equal bytes. Pass random bytes if that is
    /// not wanted.
    pub seed: [u8; 32],
    /// The time of creation, in seconds since 1970.
    pub created_seconds: i64,
    /// Owner of the top directory.
    pub top_uid: u32,
    /// Group of the top directory.
    pub top_gid: u32,
    /// Permission bits of the top directory.
    pub top_mode: u32,
}

impl Default for MkfsOptions {
    fn default() -> MkfsOptions {
        MkfsOptions {
            nodesize: None,
            sectorsize: 4096,
            csum: CsumType::Crc32c,
            features: FeatureSet::default(),
            data: None,
            metadata: None,
            metadata_chunk_max: None,
            label: String::new(),
            fsid: None,
            seed: [0; 32],
            created_seconds: 0,
            top_uid: 0,
            top_gid: 0,
            top_mode: 0o755,
        }
    }
}

oleo_format::setters!(MkfsOptions {
    nodesize: Option<u32>,
    sectorsize: u32,
    csum: CsumType,
    features: FeatureSet,
    data: Option<Profile>,
    metadata: Option<Profile>,
    metadata_chunk_max: Option<u64>,
    label: String,
    fsid: Option<Uuid>,
    seed: [u8; 32],
    created_seconds: i64,
    top_uid: u32,
    top_gid: u32,
    top_mode: u32,
});

/// The longest label: the field has 256 bytes and ends in a zero byte.
const LABEL_BYTES_MAX: usize = 255;
/// The largest tree block the format allows (`BTRFS_MAX_METADATA_BLOCKSIZE`).
const NODESIZE_MAX: u32 = 65536;

/// Options with every choice made, which are consistent and fit the devices.
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    pub nodesize: u32,
    pub sectorsize: u32,
    pub csum: CsumType,
    pub features: FeatureSet,
    pub data: Profile,
    pub metadata: Profile,
    pub metadata_chunk_max: Option<u64>,
    pub label: String,
    pub fsid: Uuid,
    pub seed: [u8; 32],
    pub created_seconds: i64,
    pub top_uid: u32,
    pub top_gid: u32,
    pub top_mode: u32,
}

impl MkfsOptions {
    /// The default, with random identifiers and the time that the system's clock shows: for file systems that need not be
    /// made alike a second time.
    pub fn unique() -> MkfsOptions {
        let mut seed = [0; 32];
        for half in seed.chunks_exact_mut(16) {
            half.copy_from_slice(RandomUuids.fresh().as_bytes());
        }
        MkfsOptions { seed, created_seconds: SystemClock.now().sec, ..MkfsOptions::default() }
    }

    /// Makes the open choices and refuses what is not consistent.
    pub(crate) fn resolve(&self, device_count: usize) -> Result<Resolved, MkfsError> {
        let sizes = self.sectorsize..=NODESIZE_MAX;
        if !self.sectorsize.is_power_of_two() || !(4096..=65536).contains(&self.sectorsize) {
            return Err(MkfsError::Options(format!(
                "a sector size of {} is not a power of two from 4096 to 65536",
                self.sectorsize
            )));
        }
        let usual = if self.features.mixed { self.sectorsize } else { self.sectorsize.max(16384) };
        let nodesize = self.nodesize.unwrap_or(usual);
        if !nodesize.is_power_of_two() || !sizes.contains(&nodesize) {
            return Err(MkfsError::Options(format!(
                "a node size of {nodesize} is not a power of two from {} to {NODESIZE_MAX}",
                self.sectorsize
            )));
        }
        if self.features.mixed && nodesize != self.sectorsize {
            return Err(MkfsError::Options(format!(
                "mixed block groups need equal node and sector sizes, not {nodesize} and {}",
                self.sectorsize
            )));
        }
        for (on, name) in [(self.features.free_space_tree, "free-space-tree"), (self.features.no_holes, "no-holes")] {
            if self.features.block_group_tree && !on {
                return Err(MkfsError::Options(format!("block-group-tree needs {name}, which is switched off")));
            }
        }
        if self.features.quota && self.features.simple_quota {
            return Err(MkfsError::Options("quota and squota exclude each other".into()));
        }
        if self.label.len() > LABEL_BYTES_MAX || self.label.contains(['\n', '\0']) {
            return Err(MkfsError::Options(format!("a label has at most {LABEL_BYTES_MAX} bytes and no line feed")));
        }
        if self.fsid.is_some_and(|id| id.is_nil()) {
            return Err(MkfsError::Options("the file system's UUID may not be all zeros".into()));
        }
        let metadata = self.metadata.unwrap_or(if device_count > 1 { Profile::Raid1 } else { Profile::Dup });
        let data = match (self.data, self.features.mixed) {
            (Some(data), _) => data,
            (None, false) => Profile::Single,
            (None, true) => self.metadata.unwrap_or(Profile::Single),
        };
        let metadata = if self.features.mixed { self.metadata.unwrap_or(data) } else { metadata };
        if self.features.mixed && data != metadata {
            return Err(MkfsError::Options(format!(
                "mixed block groups have one profile, but data is {data} and metadata is {metadata}"
            )));
        }
        for (what, profile) in [("data", data), ("metadata", metadata)] {
            let least = usize::from(profile.shape().devices_min);
            if device_count < least {
                return Err(MkfsError::Options(format!(
                    "profile {profile} for {what} needs {least} devices, but there are {device_count}"
                )));
            }
        }
        let mut features = self.features;
        let needed = data.incompat() | metadata.incompat();
        features.raid1c34 |= needed.contains(Incompat::RAID1C34);
        features.raid56 |= needed.contains(Incompat::RAID56);
        Ok(Resolved {
            nodesize,
            sectorsize: self.sectorsize,
            csum: self.csum,
            features,
            data,
            metadata,
            metadata_chunk_max: self.metadata_chunk_max,
            label: self.label.clone(),
            fsid: self.fsid.unwrap_or_else(|| derive_uuid(&self.seed, "file system", 0)),
            seed: self.seed,
            created_seconds: self.created_seconds,
            top_uid: self.top_uid,
            top_gid: self.top_gid,
            top_mode: self.top_mode & 0o7777,
        })
    }
}

/// A UUID (version 4 in form) derived from the seed and its purpose.
pub(crate) fn derive_uuid(seed: &[u8; 32], purpose: &str, number: u64) -> Uuid {
    let mut text = Vec::with_capacity(64);
    text.extend_from_slice(seed);
    text.extend_from_slice(&number.to_le_bytes());
    text.extend_from_slice(purpose.as_bytes());
    let digest = CsumType::Blake2b.csum(&text);
    let mut bytes = [0u8; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_random_bytes(bytes).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what mkfs.btrfs decides by itself is decided alike. Method: resolve the defaults for one and two devices.
    #[test]
    fn defaults_follow_the_number_of_devices() {
        let one = MkfsOptions::default().resolve(1).unwrap();
        assert_eq!((one.nodesize, one.data, one.metadata), (16384, Profile::Single, Profile::Dup));
        let two = MkfsOptions::default().resolve(2).unwrap();
        assert_eq!((two.data, two.metadata), (Profile::Single, Profile::Raid1));
        let features = FeatureSet { mixed: true, ..FeatureSet::default() };
        let mixed = MkfsOptions { features, ..MkfsOptions::default() }.resolve(1).unwrap();
        assert_eq!((mixed.nodesize, mixed.data, mixed.metadata), (4096, Profile::Single, Profile::Single));
    }

    /// Goal: what does not fit together is refused. Method: one option wrong at a time.
    #[test]
    fn misfits_are_refused() {
        let ok = MkfsOptions::default();
        let with = |features| MkfsOptions { features, ..MkfsOptions::default() };
        let bad = [
            MkfsOptions { nodesize: Some(5000), ..ok.clone() },
            MkfsOptions { nodesize: Some(131072), ..ok.clone() },
            MkfsOptions { sectorsize: 2048, ..ok.clone() },
            MkfsOptions { label: "x".repeat(256), ..ok.clone() },
            MkfsOptions { metadata: Some(Profile::Raid1), ..ok.clone() },
            MkfsOptions { fsid: Some(Uuid::nil()), ..ok.clone() },
            MkfsOptions { data: Some(Profile::Raid6), ..ok.clone() },
            with(FeatureSet { block_group_tree: true, free_space_tree: false, ..FeatureSet::default() }),
            with(FeatureSet { quota: true, simple_quota: true, ..FeatureSet::default() }),
            with(FeatureSet { block_group_tree: true, no_holes: false, ..FeatureSet::default() }),
        ];
        for options in bad {
            assert!(options.resolve(1).is_err(), "{options:?}");
        }
        assert!(FeatureSet::default().apply("zoned").is_err());
    }
}
