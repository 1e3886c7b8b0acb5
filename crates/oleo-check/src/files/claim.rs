//! Claims: what one item says of another, as numbers that add up.
//!
//! A name is written three times (DIR_ITEM, DIR_INDEX, INODE_REF), its type twice (entry, mode), a file without names
//! twice (`nlink` 0, ORPHAN_ITEM). Each of these is a claim; the two sides of a pair are added and subtracted as
//! 128-bit hashes. If a sum is zero, both sides agree, wherever they are and however many leaves lie between them. Sums
//! of leaves add up to those of trees in any grouping, so a leaf that a hundred snapshots share is read once.
//!
//! A sum other than zero shows that something is wrong, but not what: for that, [`second_pass`](super::second_pass)
//! reads the tree again.

use oleo_format::{FileType, Key};

/// The pairs of claims.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(usize)]
pub(crate) enum Pair {
    /// DIR_ITEM with DIR_INDEX: (directory, name, where to, type).
    Entries,
    /// DIR_INDEX with INODE_REF or INODE_EXTREF: (directory, index, name, inode).
    Names,
    /// The type in DIR_INDEX with the mode of the inode, once per name.
    Types,
    /// An inode with `nlink` 0 with its ORPHAN_ITEM.
    Orphans,
}

/// How many pairs there are.
pub(crate) const PAIRS: usize = 4;

/// The sums of all pairs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Sums(pub [u128; PAIRS]);

impl Sums {
    /// Adds a claim of one side of a pair.
    pub(crate) fn plus(&mut self, pair: Pair, hash: u128) {
        let sum = &mut self.0[pair as usize];
        *sum = sum.wrapping_add(hash);
    }

    /// Subtracts a claim of the other side, `times` times.
    pub(crate) fn minus(&mut self, pair: Pair, hash: u128, times: u64) {
        let sum = &mut self.0[pair as usize];
        *sum = sum.wrapping_sub(hash.wrapping_mul(u128::from(times)));
    }

    pub(crate) fn add(&mut self, other: &Sums) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum = sum.wrapping_add(more);
        }
    }

    /// Whether all sides agree.
    pub(crate) fn balanced(&self) -> bool {
        self.0.iter().all(|&sum| sum == 0)
    }
}

/// A 128-bit hash for sums: fast, the same on every machine, not safe against deliberate collisions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hash(u64, u64);

const K: [u64; 4] = [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93, 0xa076_1d64_78bd_642f, 0xe703_7ed1_a0b4_28db];

/// Both halves of the product folded into one word.
fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    #[allow(clippy::cast_possible_truncation, reason = "the halves are meant")]
    let (low, high) = (wide as u64, (wide >> 64) as u64);
    low ^ high
}

impl Hash {
    /// Begins with a key of the caller.
    pub(crate) fn from_key(a: u64, b: u64) -> Hash {
        Hash(a, b)
    }

    pub(crate) fn new(pair: Pair) -> Hash {
        Hash(K[0] ^ pair as u64, K[1].wrapping_add(pair as u64))
    }

    pub(crate) fn word(self, w: u64) -> Hash {
        Hash(fold(self.0 ^ w, K[2]).wrapping_add(w), fold(self.1.rotate_left(29) ^ w, K[3]) ^ self.1)
    }

    pub(crate) fn bytes(self, bytes: &[u8]) -> Hash {
        let mut hash = self.word(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            hash = hash.word(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let word = rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            hash = hash.word(word);
        }
        hash
    }

    pub(crate) fn end(self) -> u128 {
        let Hash(a, b) = self.word(K[0]).word(K[1]);
        u128::from(a) << 64 | u128::from(b)
    }
}

/// A name in a directory: the common part of [`entry`] and [`name`].
pub(crate) fn named(dir: u64, name: &[u8]) -> Hash {
    Hash::new(Pair::Names).word(dir).bytes(name)
}

/// [`Pair::Entries`]: an entry as its directory records it.
pub(crate) fn entry(named: Hash, to: Key, kind: FileType) -> u128 {
    named.word(to.objectid ^ K[1]).word(u64::from(to.item_type.0) << 8 | u64::from(kind.to_disk())).end()
}

/// [`Pair::Names`]: a name as both its directory and its inode record it.
pub(crate) fn name(named: Hash, index: u64, ino: u64) -> u128 {
    named.word(index).word(ino).end()
}

/// [`Pair::Types`]: an inode is of this kind.
pub(crate) fn kind(ino: u64, kind: FileType) -> u128 {
    Hash::new(Pair::Types).word(ino).word(u64::from(kind.to_disk())).end()
}

/// [`Pair::Orphans`]: an inode has no name.
pub(crate) fn orphan(ino: u64) -> u128 {
    Hash::new(Pair::Orphans).word(ino).end()
}

/// A directory and the one that it is in. Not a pair: trees whose sums are equal have the same directories.
pub(crate) fn edge(dir: u64, parent: u64) -> u128 {
    Hash(K[2], K[3]).word(dir).word(parent).end()
}

#[cfg(test)]
mod tests {
    use oleo_format::ItemType;

    use super::*;

    /// Goal: no two of many near claims look alike, and each half of the hash alone tells them apart.
    #[test]
    fn near_claims_differ() {
        let mut all = Vec::new();
        for dir in 256..280 {
            for index in 2..40 {
                for len in 0..12 {
                    all.push(name(named(dir, &b"aaaaaaaaaaab"[..len]), index, dir + index));
                }
            }
        }
        let total = all.len();
        for half in
            [all.clone(), all.iter().map(|h| h >> 64).collect(), all.iter().map(|h| h & u128::from(u64::MAX)).collect()]
        {
            let mut half: Vec<u128> = half;
            half.sort_unstable();
            half.dedup();
            assert_eq!(half.len(), total);
        }
    }

    /// Goal: no bit of a claim is without effect on either half of its hash. Method: change each bit of each field, also
    /// together with the highest bit.
    #[test]
    fn each_bit_counts() {
        let to = |objectid| Key { objectid, item_type: ItemType::INODE_ITEM, offset: 0 };
        let base = named(256, b"a name");
        let makers: [&dyn Fn(u64) -> u128; 8] = [
            &|mask| name(named(256 ^ mask, b"a name"), 2, 257),
            &|mask| name(base, 2 ^ mask, 257),
            &|mask| name(base, 2, 257 ^ mask),
            &|mask| entry(base, to(257 ^ mask), FileType::RegFile),
            &|mask| kind(257 ^ mask, FileType::RegFile),
            &|mask| orphan(257 ^ mask),
            &|mask| edge(257 ^ mask, 256),
            &|mask| edge(257, 256 ^ mask),
        ];
        for (n, make) in makers.iter().enumerate() {
            for bit in (0..64).map(|bit| 1 << bit) {
                for (a, b) in [(0, bit), (1 << 63, bit | 1 << 62), (1 << 63, 1 << 63 ^ bit)] {
                    let changed = make(a) ^ make(b);
                    assert!(changed as u64 != 0 && (changed >> 64) as u64 != 0, "{n}: {a:#x} and {b:#x}");
                }
            }
        }
    }
}
