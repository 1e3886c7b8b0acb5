//! The superblock: constants, a new one, what its fields mean, and whether they are valid.

use uuid::Uuid;
use zerocopy::IntoBytes;

use crate::csum::CsumType;
use crate::error::{Corruption, Hex, ensure};
use crate::flags::{BlockGroupFlags, CompatRo, Features, Incompat, SuperFlags};
use crate::layout::{LEVELS_MAX, NODESIZE_MAX, NODESIZE_MIN, NodeRules, SYS_CHUNK_ARRAY_LEN};
use crate::node::seal;
use crate::structs::{ChunkItem, RootBackup, Stripe, SuperBlock};
use crate::{DevId, DiskKey, Generation, Logical};

/// Offsets of the superblock's mirrors on a device; those beyond its end do not exist.
pub const SUPER_OFFSETS: [u64; 3] = [64 << 10, 64 << 20, 256 << 30];
/// The bytes of a superblock.
pub const SUPER_LEN: usize = 4096;

/// Offsets of the superblock's mirrors on a device of `len` bytes.
pub fn super_offsets(len: u64) -> impl Iterator<Item = u64> {
    SUPER_OFFSETS.into_iter().filter(move |at| at.checked_add(SUPER_LEN as u64).is_some_and(|end| end <= len))
}

/// The magic number of a btrfs volume.
pub const SUPER_MAGIC: [u8; 8] = *b"_BHRfS_M";
/// The magic number while mkfs has not finished.
pub const SUPER_MAGIC_TEMPORARY: [u8; 8] = *b"!BHRfS_M";
/// The longest label in bytes.
pub const LABEL_LEN_MAX: usize = 255;
/// How many transactions' roots the superblock remembers.
pub const ROOT_BACKUPS: usize = 4;

impl SuperBlock {
    /// The superblock in these bytes, checksum and magic checked, nothing else (see [`verify`](Self::verify)).
    pub fn read(bytes: &[u8]) -> Result<SuperBlock, Corruption> {
        let sb = *SuperBlock::parse(bytes)?;
        ensure!(sb.magic == SUPER_MAGIC, "superblock", "magic", sb.magic.escape_ascii(), SUPER_MAGIC.escape_ascii());
        let csum = sb.csum()?;
        let want = csum.csum(&bytes[32..]);
        let len = csum.csum_len();
        ensure!(sb.csum[..len] == want[..len], "superblock", "checksum", Hex(&sb.csum[..len]), Hex(&want[..len]));
        Ok(sb)
    }

    /// The bytes to write: `bytenr` set to their offset, checksum computed.
    pub fn to_bytes(&self, bytenr: u64) -> Vec<u8> {
        let mut sb = *self;
        sb.bytenr = bytenr.into();
        let mut bytes = sb.as_bytes().to_vec();
        seal(&mut bytes, CsumType::from_disk(self.csum_type.get()).unwrap_or_default());
        bytes
    }

    /// The checksum type.
    pub fn csum(&self) -> Result<CsumType, Corruption> {
        CsumType::from_disk(self.csum_type.get())
            .ok_or_else(|| Corruption::new("superblock", "csum_type", self.csum_type, "0 to 3"))
    }

    /// The fsid that users see.
    pub fn fsid(&self) -> Uuid {
        Uuid::from_bytes(self.fsid)
    }

    /// The fsid that tree blocks carry: the same unless it was changed without rewriting them.
    pub fn metadata_fsid(&self) -> Uuid {
        let separate = self.features().incompat.contains(Incompat::METADATA_UUID);
        Uuid::from_bytes(if separate { self.metadata_uuid } else { self.fsid })
    }

    /// The feature sets.
    pub fn features(&self) -> Features {
        Features::of(self)
    }

    /// The flags.
    pub fn flags(&self) -> SuperFlags {
        SuperFlags::from_bits_retain(self.flags.get())
    }

    /// The last committed transaction.
    pub fn generation(&self) -> Generation {
        Generation(self.generation.get())
    }

    /// The root of the tree of trees.
    pub fn root(&self) -> Logical {
        Logical(self.root.get())
    }

    /// The root of the chunk tree.
    pub fn chunk_root(&self) -> Logical {
        Logical(self.chunk_root.get())
    }

    /// Root, generation and level of the remap tree, which no root item names; `None` without the feature.
    pub fn remap_tree(&self) -> Option<(Logical, Generation, u8)> {
        let root =
            (Logical(self.remap_root.get()), Generation(self.remap_root_generation.get()), self.remap_root_level);
        self.features().remap_tree().then_some(root)
    }

    /// The device that this superblock was read from.
    pub fn devid(&self) -> DevId {
        DevId(self.dev_item.devid.get())
    }

    /// The label, up to its first zero.
    pub fn label(&self) -> &[u8] {
        self.label.split(|&b| b == 0).next().unwrap_or_default()
    }

    /// Sets the label; `false` if it is longer than [`LABEL_LEN_MAX`] or holds a zero.
    pub fn set_label(&mut self, label: &[u8]) -> bool {
        if label.len() > LABEL_LEN_MAX || label.contains(&0) {
            return false;
        }
        self.label = [0; 256];
        self.label[..label.len()].copy_from_slice(label);
        true
    }

    /// What every tree block of the volume has in common.
    pub fn node_rules(&self) -> Result<NodeRules, Corruption> {
        Ok(NodeRules {
            fsid: self.metadata_fsid(),
            nodesize: self.nodesize.get(),
            sectorsize: self.sectorsize.get(),
            csum: self.csum()?,
            features: self.features(),
        })
    }

    /// The system chunks: the part of `sys_chunk_array` that is used.
    pub fn sys_chunks(&self) -> Result<&[u8], Corruption> {
        let len = self.sys_chunk_array_size.get();
        self.sys_chunk_array
            .get(..len as usize)
            .ok_or_else(|| Corruption::new("superblock", "sys_chunk_array_size", len, "at most 2048"))
    }

    /// Stores a backup of the roots in the place of the oldest, or of one of the same generation.
    pub fn push_backup(&mut self, backup: RootBackup) {
        let at = match self.newest_backup() {
            Some(i) if self.super_roots[i].tree_root_gen == backup.tree_root_gen => i,
            Some(i) => (i + 1) % ROOT_BACKUPS,
            None => 0,
        };
        self.super_roots[at] = backup;
    }

    /// Replaces the roots by those of an earlier transaction: of the newest backup for `nth` 0, of the one before for
    /// 1. Returns false, and changes nothing, if there are not so many.
    pub fn use_backup(&mut self, nth: usize) -> bool {
        let Some(newest) = self.newest_backup() else { return false };
        // The kernel makes a backup while the next transaction has begun: of two that name one transaction the later one is its.
        let mut last = u64::MAX;
        let earlier = |b: &RootBackup| {
            let is_earlier = b.tree_root.get() != 0 && b.tree_root_gen.get() < last;
            if is_earlier {
                last = b.tree_root_gen.get();
            }
            is_earlier
        };
        let backwards = (0..ROOT_BACKUPS).map(|n| self.super_roots[(newest + ROOT_BACKUPS - n) % ROOT_BACKUPS]);
        let Some(backup) = backwards.filter(earlier).nth(nth) else { return false };
        self.generation = backup.tree_root_gen;
        self.root = backup.tree_root;
        self.root_level = backup.tree_root_level;
        self.chunk_root = backup.chunk_root;
        self.chunk_root_generation = backup.chunk_root_gen;
        self.chunk_root_level = backup.chunk_root_level;
        // The log belongs to the newest transaction.
        self.drop_log();
        true
    }

    /// Names no log any more: address, level and number of its root become 0.
    pub fn drop_log(&mut self) {
        (self.log_root, self.log_root_level, self.__unused_log_root_transid) = (0.into(), 0, 0.into());
    }

    /// Which backup is the newest that is not from beyond the current generation; of several the one that names the current root, the last one of those.
    pub fn newest_backup(&self) -> Option<usize> {
        let is_past = |b: &RootBackup| b.tree_root.get() != 0 && b.tree_root_gen.get() <= self.generation.get();
        (0..ROOT_BACKUPS)
            .filter(|&i| is_past(&self.super_roots[i]))
            .max_by_key(|&i| (self.super_roots[i].tree_root_gen.get(), self.super_roots[i].tree_root == self.root))
    }
}

impl SuperBlock {
    /// Checks everything about a superblock that can be checked by itself: sizes, addresses, flags, generations, the
    /// features that need each other, system chunks. `bytenr` is the offset it was read from.
    ///
    /// Whether its features are supported is another question: [`Features::unreadable`], [`Features::unwritable`].
    pub fn verify(&self, bytenr: u64) -> Result<(), Corruption> {
        self.verify_fields(bytenr).map_err(|e| e.within(format_args!("byte {bytenr} of the device")))
    }

    fn verify_fields(&self, bytenr: u64) -> Result<(), Corruption> {
        const WHAT: &str = "superblock";
        ensure!(self.magic == SUPER_MAGIC, WHAT, "magic", self.magic.escape_ascii(), SUPER_MAGIC.escape_ascii());
        ensure!(self.bytenr.get() == bytenr, WHAT, "bytenr", self.bytenr, bytenr);
        self.csum()?;
        let (sectorsize, nodesize) = (self.sectorsize.get(), self.nodesize.get());
        let is_size = |n: u32| n.is_power_of_two() && (NODESIZE_MIN..=NODESIZE_MAX).contains(&n);
        ensure!(is_size(sectorsize), WHAT, "sectorsize", sectorsize, "a power of two from 4096 to 65536");
        ensure!(is_size(nodesize), WHAT, "nodesize", nodesize, "a power of two from 4096 to 65536");
        ensure!(nodesize >= sectorsize, WHAT, "nodesize", nodesize, format_args!("at least {sectorsize}"));
        let leafsize = self.__unused_leafsize.get();
        ensure!(leafsize == nodesize, WHAT, "leafsize", leafsize, nodesize);
        ensure!(self.stripesize.get().is_power_of_two(), WHAT, "stripesize", self.stripesize, "a power of two");
        // Without the feature nobody has written these.
        let remap = if self.features().remap_tree() { (self.remap_root.get(), self.remap_root_level) } else { (0, 0) };
        for (what, at, level) in [
            ("root", self.root.get(), self.root_level),
            ("chunk_root", self.chunk_root.get(), self.chunk_root_level),
            ("log_root", self.log_root.get(), self.log_root_level),
            ("remap_root", remap.0, remap.1),
        ] {
            let aligned = at.is_multiple_of(u64::from(sectorsize)) && at.checked_add(u64::from(nodesize)).is_some();
            ensure!(aligned, WHAT, what, at, format_args!("a multiple of {sectorsize}"));
            ensure!(level < LEVELS_MAX, WHAT, format!("level of {what}"), level, "at most 7");
            let may_be_none = what == "log_root" || (what == "remap_root" && !self.features().remap_tree());
            ensure!(at != 0 || may_be_none, WHAT, what, 0, "an address");
        }
        self.verify_counts(nodesize)?;
        self.verify_features(sectorsize, nodesize)?;
        for (key, chunk) in self.parse_sys_chunks()? {
            chunk.check(Logical(key.offset), sectorsize, &self.features()).map_err(|e| e.within(key))?;
            let is_system = chunk.flags.contains(BlockGroupFlags::SYSTEM);
            ensure!(is_system, "system chunk", "type", format_args!("{:?}", chunk.flags), "system");
        }
        Ok(())
    }

    fn verify_counts(&self, nodesize: u32) -> Result<(), Corruption> {
        const WHAT: &str = "superblock";
        /// A volume has at least the root, chunk, extent, device, checksum and top-level trees.
        const TREES_MIN: u64 = 6;
        let (used, total) = (self.bytes_used.get(), self.total_bytes.get());
        ensure!(used >= TREES_MIN * u64::from(nodesize), WHAT, "bytes_used", used, "room for six trees");
        ensure!(used <= total, WHAT, "bytes_used", used, format_args!("at most {total}"));
        let devices = self.num_devices.get();
        // More devices than any volume can have: the number counts loops and must not be believed.
        ensure!((1..=1 << 20).contains(&devices), WHAT, "num_devices", devices, "1 to 2²⁰");
        let generation = self.generation.get();
        for (what, n) in [
            ("chunk_root_generation", self.chunk_root_generation.get()),
            ("uuid_tree_generation", self.uuid_tree_generation.get()),
            ("remap_root_generation", if self.features().remap_tree() { self.remap_root_generation.get() } else { 0 }),
        ] {
            ensure!(n <= generation, WHAT, what, n, format_args!("at most {generation}"));
        }
        let cache = self.cache_generation.get();
        let cache_fits = cache <= generation || cache == u64::MAX;
        ensure!(cache_fits, WHAT, "cache_generation", cache, format_args!("at most {generation}"));
        let array_len = self.sys_chunk_array_size.get() as usize;
        let min = size_of::<DiskKey>() + size_of::<ChunkItem>() + size_of::<Stripe>();
        let fits = (min..=SYS_CHUNK_ARRAY_LEN).contains(&array_len);
        ensure!(fits, WHAT, "sys_chunk_array_size", array_len, format_args!("{min} to {SYS_CHUNK_ARRAY_LEN}"));
        let dev = &self.dev_item;
        let (used, total) = (dev.bytes_used.get(), dev.total_bytes.get());
        ensure!(used <= total, WHAT, "dev_item.bytes_used", used, format_args!("at most {total}"));
        Ok(())
    }

    fn verify_features(&self, sectorsize: u32, nodesize: u32) -> Result<(), Corruption> {
        const WHAT: &str = "superblock";
        let features = self.features();
        let (dev_fsid, fsid) = (Uuid::from_bytes(self.dev_item.fsid), self.metadata_fsid());
        ensure!(dev_fsid == fsid, WHAT, "dev_item.fsid", dev_fsid, fsid);
        let mixed_fits = !features.mixed_groups() || sectorsize == nodesize;
        ensure!(mixed_fits, WHAT, "nodesize with mixed groups", nodesize, sectorsize);
        let needs = CompatRo::FREE_SPACE_TREE | CompatRo::FREE_SPACE_TREE_VALID;
        let bgt_fits = !features.block_group_tree() || (features.compat_ro.contains(needs) && features.no_holes());
        ensure!(bgt_fits, WHAT, "features", "block-group-tree", "free-space-tree and no-holes with it");
        let remap_fits = !features.remap_tree() || features.block_group_tree();
        ensure!(remap_fits, WHAT, "features", "remap-tree", "block-group-tree with it");
        Ok(())
    }

    /// The name of an unfinished operation that only the tool that began it can finish.
    pub fn unfinished(&self) -> Option<&'static str> {
        let changing = [
            (SuperFlags::CHANGING_FSID, "a change of the fsid"),
            (SuperFlags::CHANGING_FSID_V2, "a change of the fsid"),
            (SuperFlags::CHANGING_BG_TREE, "a conversion of the block-group tree"),
            (SuperFlags::CHANGING_DATA_CSUM, "a change of the checksum type"),
            (SuperFlags::CHANGING_META_CSUM, "a change of the checksum type"),
        ];
        changing.iter().find(|(flag, _)| self.flags().contains(*flag)).map(|(_, what)| *what)
    }
}

/// A superblock with a magic number and nothing else.
pub fn new_super_block() -> SuperBlock {
    SuperBlock { magic: SUPER_MAGIC, ..SuperBlock::default() }
}

#[cfg(test)]
mod tests;
