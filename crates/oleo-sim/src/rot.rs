//! Damages images and corrects the checksums, so that the damage gets past them.
//!
//! Normal path: (1) [`Rot::survey`] finds the superblocks and tree blocks of an image of one device, every copy of
//! each; (2) [`Rot::random`] picks some [`Damage`] from a seed: bytes, fields set to awkward values, addresses that
//! point elsewhere, in a tree block or superblock, or the image cut short; [`Rot::lie`] picks damage that a reader
//! could follow without end; (3) [`Rot::inflict`] applies it to all copies alike, with new checksums; (4) dropping the
//! [`Inflicted`] guard restores the old bytes, so that one image serves many rounds.
//!
//! Invariants: damage is data and can be printed and repeated. A block counts as live if `btrfs inspect-internal
//! dump-tree` lists it; without that tool every block with a sound checksum counts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use oleo_format::{CSUM_FIELD_LEN, CsumType, SUPER_LEN, SUPER_OFFSETS, SuperBlock, seal, super_offsets};

use crate::oracle;
use crate::rng::Rng;

mod lies;
pub use lies::Lie;

/// Offset of a tree block's own address in its header.
const HEADER_BYTENR: usize = 48;
const HEADER_FSID: usize = 32;
/// Bytes of a tree block's header.
const HEADER_LEN: usize = 101;
/// Bytes of an item's or a child's entry after the header.
const ENTRY_LEN: usize = 25;

/// A tree block and the places of its copies on the device.
#[derive(Clone, Debug)]
struct Block {
    logical: u64,
    copies: Vec<u64>,
}

/// An image that is about to be lied about.
#[derive(Debug)]
pub struct Rot {
    path: PathBuf,
    len: u64,
    csum: CsumType,
    nodesize: usize,
    blocks: Vec<Block>,
    supers: Vec<u64>,
}

/// New bytes at an offset.
pub type Edit = (usize, Vec<u8>);

/// A change of an image.
#[derive(Clone, Debug)]
pub enum Damage {
    /// Changes all copies of a tree block, given by its index; the checksum is corrected.
    Block {
        /// Index in the survey.
        index: usize,
        /// Its address, for messages.
        logical: u64,
        /// The changes.
        edits: Vec<Edit>,
    },
    /// Changes all superblocks; the checksum is corrected.
    Super(Vec<Edit>),
    /// Cuts the image short.
    Truncate(u64),
}

/// Restores the old bytes when dropped. It does not keep the image open, since programs refuse an image that another
/// process may write to.
#[derive(Debug)]
pub struct Inflicted {
    path: PathBuf,
    len: u64,
    old: Vec<(u64, Vec<u8>)>,
}

impl Drop for Inflicted {
    fn drop(&mut self) {
        let back = || {
            let file = File::options().write(true).open(&self.path)?;
            file.set_len(self.len)?;
            self.old.iter().try_for_each(|(at, bytes)| file.write_all_at(bytes, *at))
        };
        if let Err(e) = back() {
            eprintln!("the image stays damaged: {e}");
        }
    }
}

impl Rot {
    /// Finds what there is to damage.
    pub fn survey(image: &Path) -> Result<Rot> {
        let file = File::open(image)?;
        let len = file.metadata()?.len();
        let mut bytes = vec![0; SUPER_LEN];
        file.read_exact_at(&mut bytes, SUPER_OFFSETS[0])?;
        let sb = SuperBlock::read(&bytes)?;
        let (csum, nodesize) = (sb.csum()?, usize::try_from(sb.nodesize.get())?);
        let supers = super_offsets(len).collect();
        let live = live_blocks(image);
        let fsid = *sb.metadata_fsid().as_bytes();
        let mut found: BTreeMap<u64, Block> = BTreeMap::new();
        let mut block = vec![0; nodesize];
        // Tree blocks are aligned to sectors at least.
        for at in (0..len.saturating_sub(nodesize as u64)).step_by(4096) {
            file.read_exact_at(&mut block[..HEADER_LEN], at)?;
            if block[HEADER_FSID..HEADER_FSID + 16] != fsid {
                continue;
            }
            file.read_exact_at(&mut block, at)?;
            let sum = csum.csum(&block[32..]);
            let logical = u64::from_le_bytes(block[HEADER_BYTENR..HEADER_BYTENR + 8].try_into()?);
            if sum[..csum.csum_len()] == block[..csum.csum_len()] && live.as_ref().is_none_or(|l| l.contains(&logical))
            {
                found.entry(logical).or_insert(Block { logical, copies: Vec::new() }).copies.push(at);
            }
        }
        ensure!(!found.is_empty(), "no tree blocks in {}", image.display());
        Ok(Rot { path: image.to_owned(), len, csum, nodesize, blocks: found.into_values().collect(), supers })
    }

    /// How many tree blocks there are.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// The address of a tree block, by its index.
    pub fn address(&self, index: usize) -> u64 {
        self.blocks[index].logical
    }

    /// The bytes of a tree block, by its index.
    pub fn block(&self, index: usize) -> Result<Vec<u8>> {
        self.read(self.blocks[index].copies[0], self.nodesize)
    }

    /// Damage that replaces a whole tree block by other bytes.
    pub fn replace(&self, index: usize, bytes: &[u8]) -> Damage {
        let edits = vec![(CSUM_FIELD_LEN, bytes[CSUM_FIELD_LEN..].to_vec())];
        Damage::Block { index, logical: self.blocks[index].logical, edits }
    }

    /// Some damage; the same for the same numbers.
    pub fn random(&self, rng: &mut Rng) -> Result<Damage> {
        match rng.below(20) {
            0 => Ok(Damage::Truncate(rng.below(self.len))),
            1..4 => {
                let old = self.read(self.supers[0], SUPER_LEN)?;
                let count = rng.between(1, 3);
                Ok(Damage::Super((0..count).map(|_| self.edit(rng, &old, 32, 1300)).collect()))
            }
            _ => {
                let index = usize::try_from(rng.below(self.blocks.len() as u64))?;
                self.random_block(rng, index)
            }
        }
    }

    /// Some damage to one of these tree blocks, named by their indices.
    pub fn random_of(&self, rng: &mut Rng, among: &[usize]) -> Result<Damage> {
        let index = *rng.pick(among).context("no block to choose")?;
        self.random_block(rng, index)
    }

    fn random_block(&self, rng: &mut Rng, index: usize) -> Result<Damage> {
        let old = self.read(self.blocks[index].copies[0], self.nodesize)?;
        let items = u32::from_le_bytes(old[96..100].try_into()?) as usize;
        let table_end = (HEADER_LEN + items * ENTRY_LEN).clamp(HEADER_LEN + 1, self.nodesize);
        let count = rng.between(1, 4);
        let edits = (0..count)
            .map(|_| match rng.below(6) {
                0 => self.edit(rng, &old, HEADER_BYTENR, HEADER_LEN),
                1 | 2 => self.edit(rng, &old, HEADER_LEN, table_end),
                // Items are at the end of a leaf; the bytes between are not used.
                _ => self.edit(rng, &old, first_used(&old, table_end), self.nodesize),
            })
            .collect();
        Ok(Damage::Block { index, logical: self.blocks[index].logical, edits })
    }

    /// One change within `from..to` of a block.
    fn edit(&self, rng: &mut Rng, old: &[u8], from: usize, to: usize) -> Edit {
        let width = *rng.pick(&[1, 1, 2, 4, 8, 8]).unwrap_or(&1);
        let room = to.saturating_sub(from).max(1);
        let mut at = from + usize::try_from(rng.below(room as u64)).unwrap_or(0);
        at = at.min(old.len() - width);
        let was = old[at..at + width].iter().rev().fold(0_u64, |v, b| (v << 8) | u64::from(*b));
        let other = rng.pick(&self.blocks).map_or(0, |b| b.logical);
        let value = match rng.below(12) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << (width * 8 - 1),
            3 => was.wrapping_add(1),
            4 => was.wrapping_sub(1),
            5 => was ^ (1 << rng.below(width as u64 * 8)),
            6 => self.nodesize as u64,
            7 | 8 => other,
            9 => self.len,
            10 => was.wrapping_mul(2),
            _ => rng.next_u64(),
        };
        (at, value.to_le_bytes()[..width].to_vec())
    }

    fn read(&self, at: u64, len: usize) -> Result<Vec<u8>> {
        let mut out = vec![0; len];
        File::open(&self.path)?.read_exact_at(&mut out, at)?;
        Ok(out)
    }

    /// Damages the image until the guard is dropped. If it was damaged before, that guard is dropped later.
    pub fn inflict(&self, damage: &Damage) -> Result<Inflicted> {
        let file = File::options().read(true).write(true).open(&self.path)?;
        let mut done = Inflicted { path: self.path.clone(), len: self.len, old: Vec::new() };
        let (places, len, edits): (&[u64], usize, &[Edit]) = match damage {
            Damage::Truncate(to) => {
                let lost = self.lost_by_cut(*to)?;
                done.old = lost;
                file.set_len(*to)?;
                return Ok(done);
            }
            Damage::Super(edits) => (&self.supers, SUPER_LEN, edits),
            Damage::Block { index, edits, .. } => {
                (&self.blocks.get(*index).context("no such block")?.copies, self.nodesize, edits)
            }
        };
        let end = file.metadata()?.len();
        for &at in places {
            // Damage before this one may have cut it off.
            if at + len as u64 > end {
                continue;
            }
            let old = self.read(at, len)?;
            let mut new = old.clone();
            for (offset, bytes) in edits {
                new[*offset..*offset + bytes.len()].copy_from_slice(bytes);
            }
            seal(&mut new, self.csum);
            done.old.push((at, old));
            file.write_all_at(&new, at)?;
        }
        Ok(done)
    }

    /// What a cut takes away: the data beyond it, holes left out.
    fn lost_by_cut(&self, to: u64) -> Result<Vec<(u64, Vec<u8>)>> {
        use rustix::fs::{SeekFrom, seek};
        let file = File::open(&self.path)?;
        let mut out = Vec::new();
        let mut at = to;
        while let Ok(data) = seek(&file, SeekFrom::Data(at)) {
            let end = seek(&file, SeekFrom::Hole(data))?;
            out.push((data, self.read(data, usize::try_from(end - data)?)?));
            at = end;
        }
        Ok(out)
    }
}

/// The beginning of the items' data in a leaf: behind the free space, which is zeros in the images here.
fn first_used(block: &[u8], table_end: usize) -> usize {
    if block[100] != 0 {
        return HEADER_LEN;
    }
    table_end + block[table_end..].iter().position(|b| *b != 0).unwrap_or(0)
}

/// The addresses of all tree blocks that are in use, as `btrfs inspect-internal dump-tree` names them.
fn live_blocks(image: &Path) -> Option<BTreeSet<u64>> {
    let text = oracle::run("btrfs", ["inspect-internal".as_ref(), "dump-tree".as_ref(), image.as_os_str()]).ok()?;
    let lines = text.lines().filter_map(|l| l.strip_prefix("leaf ").or_else(|| l.strip_prefix("node ")));
    Some(lines.filter_map(|l| l.split_whitespace().next()?.parse().ok()).collect())
}

#[cfg(test)]
mod tests;
