//! The superblock: constants, a new one, and what its fields mean.

use uuid::Uuid;
use zerocopy::IntoBytes;

use crate::csum::CsumType;
use crate::error::{Corruption, ensure};
use crate::flags::{Features, Incompat, SuperFlags};
use crate::node::{NodeRules, seal};
use crate::structs::{RootBackup, SuperBlock};
use crate::{DevId, Generation, Logical};

/// Where the mirrors of the superblock stand on a device; those beyond its end do not exist.
pub const SUPER_OFFSETS: [u64; 3] = [64 << 10, 64 << 20, 256 << 30];
/// The bytes of a superblock.
pub const SUPER_LEN: usize = 4096;
/// The magic number of a btrfs volume.
pub const SUPER_MAGIC: [u8; 8] = *b"_BHRfS_M";
/// The magic number while mkfs has not finished.
pub const SUPER_MAGIC_TEMPORARY: [u8; 8] = *b"!BHRfS_M";
/// The bytes of the array that holds the system chunks.
pub const SYS_CHUNK_ARRAY_LEN: usize = 2048;
/// The longest label in bytes.
pub const LABEL_LEN_MAX: usize = 255;
/// Trees have levels 0 to 7.
pub const LEVELS_MAX: u8 = 8;
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

    /// The bytes to write: `bytenr` set to where they go, checksum computed.
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

    /// Which backup is the newest that is not from beyond the current generation.
    pub fn newest_backup(&self) -> Option<usize> {
        let is_past = |b: &RootBackup| b.tree_root.get() != 0 && b.tree_root_gen.get() <= self.generation.get();
        (0..ROOT_BACKUPS)
            .filter(|&i| is_past(&self.super_roots[i]))
            .max_by_key(|&i| self.super_roots[i].tree_root_gen.get())
    }
}

/// Bytes in hexadecimal, for messages.
pub(crate) struct Hex<'a>(pub &'a [u8]);

impl std::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("0x")?;
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// A superblock with a magic number and nothing else.
pub fn new_super_block() -> SuperBlock {
    SuperBlock { magic: SUPER_MAGIC, ..SuperBlock::default() }
}
