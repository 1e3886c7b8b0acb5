//! fs-verity: a Merkle tree over a file's bytes and a descriptor, of which the digest is made, kept with the file, which cannot be
//! written to any more.
//!
//! Normal path of [`Fs::enable_verity`]: (1) what is buffered is written out; (2) the file is read once, and every block hashed; the hashes
//! fill blocks, which are hashed in turn, up to the root (`Levels`); (3) the blocks, the highest level first, and the descriptor
//! become items, a bounded number under each handle; (4) the inode gets its flag, the volume the feature.
//!
//! Facts (the kernel's documentation of fs-verity; items of btrfs: `VERITY_DESC_ITEM` at offset 0 has the descriptor's length, from offset 1 on
//! its bytes; `VERITY_MERKLE_ITEM` at the byte offset in the tree): a hash is over the salt, filled up with zeros to the input size of the hash
//! function, and one block, the last one filled up with zeros. A file of one block at most has no tree, and its root hash is that of
//! the block; that of an empty file is zeros.
//!
//! Crash: items without the flag mean nothing; they go with the file, or are written over by the next try.
//! Not here: verifying data that is read, and signatures, which are kept as they are.

use oleo_format::{CompatRo, Features, InodeFlags, ItemType, VerityDescriptor, VerityDescriptorItem};
use oleo_txn::Need;
use sha2::{Digest, Sha256, Sha512};
use zerocopy::IntoBytes;

use crate::object::{InodeRef, ItemsMut};
use crate::{FileKind, Fs, FsError};

/// Bytes of one item.
const ITEM_LEN: usize = 2048;
/// Items that are put under one handle.
const ITEMS_PER_JOIN: usize = 16;
/// Levels of the tree: 2⁶³ bytes in blocks of 1 KiB with 16 hashes each.
const LEVELS_MAX: usize = 16;
/// The longest salt.
const SALT_LEN_MAX: usize = 32;
/// The longest signature (`FS_VERITY_MAX_SIGNATURE_SIZE`).
const SIGNATURE_LEN_MAX: usize = 16128;
/// The largest tree, which is in memory while it is made: of 32 GiB in blocks of 4 KiB with SHA-256.
const TREE_LEN_MAX: u64 = 256 << 20;
/// Bytes read at a time.
const READ_LEN: usize = 1 << 20;

/// The parameters of a file's verity.
#[derive(Clone, Copy, Debug)]
pub struct Verity<'a> {
    /// The hash function: 1 SHA-256, 2 SHA-512 (`FS_VERITY_HASH_ALG_*`).
    pub algorithm: u8,
    /// Bytes of a block: a power of two from 1024 up to the sector size.
    pub block_size: u32,
    /// At most 32 bytes.
    pub salt: &'a [u8],
    /// A PKCS#7 signature of the digest; empty: none.
    pub signature: &'a [u8],
}

#[derive(Clone, Copy)]
enum Algorithm {
    Sha256,
    Sha512,
}

/// Hashes blocks.
struct Hasher {
    algorithm: Algorithm,
    /// Filled up; empty if there is no salt.
    salt: Vec<u8>,
}

impl Hasher {
    fn new(verity: &Verity<'_>) -> Result<Hasher, FsError> {
        let (algorithm, input_len) = match verity.algorithm {
            1 => (Algorithm::Sha256, 64),
            2 => (Algorithm::Sha512, 128),
            _ => return Err(FsError::NotSupported("this hash function of fs-verity")),
        };
        let mut salt = verity.salt.to_vec();
        if !salt.is_empty() {
            salt.resize(input_len, 0);
        }
        Ok(Hasher { algorithm, salt })
    }

    fn len(&self) -> usize {
        match self.algorithm {
            Algorithm::Sha256 => 32,
            Algorithm::Sha512 => 64,
        }
    }

    fn plain(&self, data: &[u8]) -> Vec<u8> {
        match self.algorithm {
            Algorithm::Sha256 => Sha256::digest(data).to_vec(),
            Algorithm::Sha512 => Sha512::digest(data).to_vec(),
        }
    }

    fn block(&self, data: &[u8]) -> Vec<u8> {
        match self.algorithm {
            Algorithm::Sha256 => Sha256::new().chain_update(&self.salt).chain_update(data).finalize().to_vec(),
            Algorithm::Sha512 => Sha512::new().chain_update(&self.salt).chain_update(data).finalize().to_vec(),
        }
    }
}

/// The levels of a tree as they grow, the lowest first: whole blocks, and one that is not full.
struct Levels<'h> {
    hasher: &'h Hasher,
    block_len: usize,
    levels: Vec<Vec<u8>>,
}

impl Levels<'_> {
    /// Adds the hash of a block of data.
    fn add(&mut self, hash: Vec<u8>) {
        self.raise(0, hash);
    }

    /// Fills up what is not full. The root hash, and the levels, the highest first.
    fn finish(mut self) -> (Vec<u8>, Vec<Vec<u8>>) {
        let mut level = 0;
        // A level of one hash is the root; blocks that were full are in the level above already.
        while self.levels[level].len() > self.hasher.len() {
            let bytes = &mut self.levels[level];
            let whole = bytes.len().next_multiple_of(self.block_len);
            if whole != bytes.len() {
                bytes.resize(whole, 0);
                let hash = self.hasher.block(&bytes[whole - self.block_len..]);
                self.raise(level + 1, hash);
            }
            level += 1;
        }
        let root = self.levels.swap_remove(level);
        self.levels.truncate(level);
        self.levels.reverse();
        (root, self.levels)
    }

    /// Adds a hash to a level; whenever that fills a block, its hash goes one level up.
    fn raise(&mut self, from: usize, mut hash: Vec<u8>) {
        for level in from..LEVELS_MAX {
            if level == self.levels.len() {
                self.levels.push(Vec::new());
            }
            let bytes = &mut self.levels[level];
            bytes.extend_from_slice(&hash);
            if !bytes.len().is_multiple_of(self.block_len) {
                return;
            }
            hash = self.hasher.block(&bytes[bytes.len() - self.block_len..]);
        }
    }
}

impl Fs {
    /// Protects a file by fs-verity: it cannot be written to from now on. Returns its digest, as `fsverity measure` prints it.
    pub fn enable_verity(&self, file: &InodeRef, verity: &Verity<'_>) -> Result<Vec<u8>, FsError> {
        self.changeable(file)?;
        let hasher = Hasher::new(verity)?;
        let block_len = verity.block_size as usize;
        let sector = self.engine().sectorsize() as usize;
        if !block_len.is_power_of_two() || !(1024..=sector).contains(&block_len) {
            return Err(FsError::NotSupported("blocks of this size with fs-verity"));
        }
        if verity.salt.len() > SALT_LEN_MAX || verity.signature.len() > SIGNATURE_LEN_MAX {
            return Err(FsError::Invalid("a salt or signature that is too long"));
        }
        self.flush(file)?;
        let attr = self.attr(file);
        if attr.kind != FileKind::File {
            return Err(FsError::Invalid("not a regular file"));
        }
        if attr.flags.contains(InodeFlags::RO_VERITY) {
            return Err(FsError::Exists);
        }
        let (root, levels) = self.merkle_tree(file, attr.size, block_len, &hasher)?;
        let mut descriptor = descriptor(verity, attr.size, &root);
        let digest = hasher.plain(descriptor.as_bytes());
        descriptor.sig_size = (verity.signature.len() as u32).into();
        let descriptor = [descriptor.as_bytes(), verity.signature].concat();
        self.put_pieces(file, ItemType::VERITY_MERKLE_ITEM, 0, &levels.concat())?;
        self.put_pieces(file, ItemType::VERITY_DESC_ITEM, 1, &descriptor)?;
        self.require_verity()?;
        let head = VerityDescriptorItem { size: (descriptor.len() as u64).into(), ..Default::default() };
        let h = self.engine().join(Need { items: 2, bytes: 256, ..Need::default() })?;
        let mut guard = file.write();
        guard.alive()?;
        guard.put(&h, ItemType::VERITY_DESC_ITEM, 0, head.as_bytes().into());
        guard.fields_mut(&h).flags |= InodeFlags::RO_VERITY.bits();
        Ok(digest)
    }

    /// The root hash and the tree.
    fn merkle_tree(
        &self,
        file: &InodeRef,
        size: u64,
        block_len: usize,
        hasher: &Hasher,
    ) -> Result<(Vec<u8>, Vec<Vec<u8>>), FsError> {
        if size == 0 {
            return Ok((vec![0; hasher.len()], Vec::new()));
        }
        if size / block_len as u64 * hasher.len() as u64 > TREE_LEN_MAX {
            return Err(FsError::FileTooBig);
        }
        let mut levels = Levels { hasher, block_len, levels: Vec::new() };
        let mut buffer = vec![0; READ_LEN];
        let mut at = 0;
        while at < size {
            let len = self.read(file, at, &mut buffer)?;
            if len == 0 {
                return Err(FsError::Busy("the file changes"));
            }
            let whole = len.next_multiple_of(block_len);
            buffer[len..whole].fill(0);
            buffer[..whole].chunks(block_len).for_each(|block| levels.add(hasher.block(block)));
            at += len as u64;
        }
        Ok(levels.finish())
    }

    fn put_pieces(&self, file: &InodeRef, t: ItemType, first: u64, bytes: &[u8]) -> Result<(), FsError> {
        let mut offset = first;
        for pieces in bytes.chunks(ITEM_LEN * ITEMS_PER_JOIN) {
            let (items, len) = (pieces.len().div_ceil(ITEM_LEN) as u32, pieces.len() as u32);
            let h = self.engine().join(Need { items: items + 1, bytes: len + items * 64, ..Need::default() })?;
            let mut guard = file.write();
            guard.alive()?;
            for piece in pieces.chunks(ITEM_LEN) {
                guard.put(&h, t, offset, piece.into());
                offset += piece.len() as u64;
            }
        }
        Ok(())
    }

    /// Says in the superblock that there are such files.
    fn require_verity(&self) -> Result<(), FsError> {
        let Features { compat_ro, .. } = self.engine().features();
        if !compat_ro.contains(CompatRo::VERITY) {
            self.engine().edit_super(|sb| {
                sb.compat_ro_flags = (sb.compat_ro_flags.get() | CompatRo::VERITY.bits()).into();
            })?;
        }
        Ok(())
    }
}

/// The descriptor without signature, as the digest is over it.
fn descriptor(verity: &Verity<'_>, size: u64, root: &[u8]) -> VerityDescriptor {
    let mut out = VerityDescriptor {
        version: 1,
        hash_algorithm: verity.algorithm,
        log_blocksize: verity.block_size.ilog2() as u8,
        salt_size: verity.salt.len() as u8,
        data_size: size.into(),
        ..Default::default()
    };
    out.root_hash[..root.len()].copy_from_slice(root);
    out.salt[..verity.salt.len()].copy_from_slice(verity.salt);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(data: &[u8], verity: &Verity<'_>) -> (Vec<u8>, Vec<Vec<u8>>) {
        let hasher = Hasher::new(verity).unwrap();
        let block_len = verity.block_size as usize;
        let mut levels = Levels { hasher: &hasher, block_len, levels: Vec::new() };
        for block in data.chunks(block_len) {
            let mut block = block.to_vec();
            block.resize(block_len, 0);
            levels.add(hasher.block(&block));
        }
        levels.finish()
    }

    /// The tree level by level, from whole lists.
    fn naive(data: &[u8], verity: &Verity<'_>) -> (Vec<u8>, Vec<Vec<u8>>) {
        let hasher = Hasher::new(verity).unwrap();
        let block_len = verity.block_size as usize;
        let hash_all = |bytes: &[u8]| -> Vec<u8> {
            let block = |b: &[u8]| [b, &vec![0; block_len - b.len()]].concat();
            bytes.chunks(block_len).flat_map(|b| hasher.block(&block(b))).collect()
        };
        let (mut hashes, mut levels) = (hash_all(data), Vec::new());
        while hashes.len() > hasher.len() {
            hashes.resize(hashes.len().next_multiple_of(block_len), 0);
            levels.insert(0, hashes.clone());
            hashes = hash_all(&hashes);
        }
        (hashes, levels)
    }

    /// Goal: trees of any height are right. Method: sizes around full blocks and levels, compared with whole lists.
    #[test]
    fn trees() {
        let data: Vec<u8> = (0..40u32 << 14).map(|n| (n % 251) as u8).collect();
        for (algorithm, salt) in [(1, &b""[..]), (1, b"salt"), (2, b"a salt of thirty-two bytes here!")] {
            let verity = Verity { algorithm, block_size: 1024, salt, signature: b"" };
            let full = 1024 / if algorithm == 1 { 32 } else { 64 };
            for blocks in [1, 2, full - 1, full, full + 1, 2 * full, full * full, full * full + 1] {
                for len in [blocks * 1024 - 7, blocks * 1024] {
                    let data = &data[..len.min(data.len())];
                    assert_eq!(tree(data, &verity), naive(data, &verity), "{blocks} blocks");
                }
            }
        }
    }

    /// Goal: the digest is that of fsverity-utils. Method: the published digest of an empty file (SHA-256, blocks of 4 KiB).
    #[test]
    fn digest_of_an_empty_file() {
        let verity = Verity { algorithm: 1, block_size: 4096, salt: b"", signature: b"" };
        let digest = Sha256::digest(descriptor(&verity, 0, &[0; 32]).as_bytes());
        let hex: String = digest.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "3d248ca542a24fc62d1c43b916eae5016878e2533c88238480b26128a1f1af95");
    }
}
