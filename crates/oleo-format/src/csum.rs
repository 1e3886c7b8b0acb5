//! Checksums and hashes: the four checksum types of tree blocks, superblocks and data, and the hashes in keys.

use blake2::digest::consts::U32;
use blake2::{Blake2b, Digest};
use sha2::Sha256;
use twox_hash::XxHash64;

use crate::{Ino, TreeId};

/// The bytes of the checksum field in tree blocks and superblocks, whatever the type.
pub const CSUM_FIELD_LEN: usize = 32;

/// How a volume computes checksums (`csum_type` in the superblock).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CsumType {
    /// CRC-32C (Castagnoli), 4 bytes.
    #[default]
    Crc32c,
    /// xxHash64 with seed 0, 8 bytes.
    Xxh64,
    /// SHA-256, 32 bytes.
    Sha256,
    /// BLAKE2b with a 256-bit digest, 32 bytes.
    Blake2b,
}

impl CsumType {
    /// Every type there is.
    pub const ALL: [CsumType; 4] = [CsumType::Crc32c, CsumType::Xxh64, CsumType::Sha256, CsumType::Blake2b];

    /// The type with this number.
    pub fn from_disk(value: u16) -> Option<CsumType> {
        CsumType::ALL.get(usize::from(value)).copied()
    }

    /// Its number on disk.
    pub fn to_disk(self) -> u16 {
        self as u16
    }

    /// The bytes of one checksum.
    pub fn csum_len(self) -> usize {
        match self {
            CsumType::Crc32c => 4,
            CsumType::Xxh64 => 8,
            CsumType::Sha256 | CsumType::Blake2b => 32,
        }
    }

    /// The name that commands use.
    pub fn name(self) -> &'static str {
        match self {
            CsumType::Crc32c => "crc32c",
            CsumType::Xxh64 => "xxhash64",
            CsumType::Sha256 => "sha256",
            CsumType::Blake2b => "blake2",
        }
    }

    /// The checksum of `data`, as stored on disk, zeros after [`csum_len`](Self::csum_len) bytes.
    pub fn csum(self, data: &[u8]) -> [u8; CSUM_FIELD_LEN] {
        let mut out = [0; CSUM_FIELD_LEN];
        match self {
            CsumType::Crc32c => out[..4].copy_from_slice(&crc32c(data).to_le_bytes()),
            CsumType::Xxh64 => out[..8].copy_from_slice(&XxHash64::oneshot(0, data).to_le_bytes()),
            CsumType::Sha256 => out.copy_from_slice(&Sha256::digest(data)),
            CsumType::Blake2b => out.copy_from_slice(&Blake2b::<U32>::digest(data)),
        }
        out
    }

    /// Appends the checksum of every sector of `data` to `out`. A last part shorter than a sector counts as it is.
    pub fn csum_sectors(self, data: &[u8], sectorsize: u32, out: &mut Vec<u8>) {
        let sector_len = sectorsize as usize;
        let len = self.csum_len();
        out.reserve(data.len().div_ceil(sector_len) * len);
        for sector in data.chunks(sector_len) {
            out.extend_from_slice(&self.csum(sector)[..len]);
        }
    }
}

impl std::fmt::Display for CsumType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for CsumType {
    type Err = String;
    fn from_str(s: &str) -> Result<CsumType, String> {
        Ok(match s {
            "crc32c" => CsumType::Crc32c,
            "xxhash" | "xxhash64" | "xxh64" => CsumType::Xxh64,
            "sha256" => CsumType::Sha256,
            "blake2" | "blake2b" => CsumType::Blake2b,
            _ => return Err(format!("unknown checksum type {s:?}: crc32c, xxhash, sha256 and blake2 exist")),
        })
    }
}

/// CRC-32C of sectors and tree blocks. Folding by multiplication without carries is some three times as fast there as the processor's own instruction for it.
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
#[allow(clippy::cast_possible_truncation, reason = "it has 32 bits")]
fn crc32c(data: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, data) as u32
}

#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
fn crc32c(data: &[u8]) -> u32 {
    crc32c::crc32c(data)
}

/// CRC-32C from a seed, without the inversion before and after that the checksum type has.
pub(crate) fn crc32c_raw(seed: u32, data: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, data)
}

/// The offset in the key of a DIR_ITEM or XATTR_ITEM.
pub fn dir_hash(name: &[u8]) -> u32 {
    crc32c_raw(!1, name)
}

/// The offset in the key of an INODE_EXTREF. Only the low half of the parent's number counts.
#[allow(clippy::cast_possible_truncation, reason = "the format takes the low 32 bits as the seed")]
pub fn extref_hash(parent: Ino, name: &[u8]) -> u64 {
    u64::from(crc32c_raw(parent.0 as u32, name))
}

/// The offset in the key of an EXTENT_DATA_REF, which also sorts inline references.
pub fn data_ref_hash(root: TreeId, ino: Ino, offset: u64) -> u64 {
    let high = crc32c_raw(!0, &root.0.to_le_bytes());
    let low = crc32c_raw(crc32c_raw(!0, &ino.0.to_le_bytes()), &offset.to_le_bytes());
    (u64::from(high) << 31) ^ u64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: hashes are those of the format. Method: the entry "default" of every root tree has this key offset.
    #[test]
    fn hash_of_default() {
        assert_eq!(dir_hash(b"default"), 2_378_154_706);
    }

    /// Goal: the fast sum is CRC-32C at every length and alignment. Method: its standard check value; noise, compared with the other implementation.
    #[test]
    fn crc32c_is_one() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(b""), 0);
        let noise = oleo_sim::rng::Rng::new(1).bytes(70_000);
        let lens = (0..1200).chain([4064, 4095, 4096, 4097, 16_352, 16_384, 32_736, 65_504, 65_536, 65_537]);
        for (nth, len) in lens.enumerate() {
            for from in [0, 1 + nth % 63, 64, 65] {
                let data = &noise[from..from + len];
                assert_eq!(crc32c(data), crc32c::crc32c(data), "{len} bytes from {from}");
            }
        }
    }
}
