//! What is inside the trees of files, and what binds trees to one another.
//!
//! Normal path: (1) [`Facts::of_leaf`] once for each leaf, however many trees share it; (2) [`Facts::join`] joins neighbours,
//! leaves to nodes and nodes to trees, and may be remembered per block: a snapshot costs the blocks that it does not share;
//! (3) [`Forest::tree`] judges a whole tree of files from its facts and, where something does not add up, reads that tree
//! again to name it ([`look`]); (4) [`judge_volume`] judges what is between the trees.
//!
//! Invariants: `join` is associative, so the verdict does not depend on how a tree is cut into blocks. Findings are told while
//! joining; two trees that join the same neighbours in different nodes tell the same finding twice: the receiver drops
//! doubles. Nothing keeps a list of files, so memory grows with blocks (about 500 bytes each), directories (16 bytes) and subvolumes only.
//! Blocks are verified before: what `CheckedNode` checks within an item or a leaf is not checked again; items that do not
//! parse are passed over.

mod claim;
mod extents;
mod facts;
mod forest;
mod logs;
mod look;
mod part;
mod qgroups;
mod roots;
mod uuids;

use std::fmt::Display;

use oleo_format::{Generation, Key, Logical, TreeId};

pub(crate) use facts::Facts;
pub(crate) use forest::{Forest, judge_volume};

use crate::feed::{Env, Tell};
use crate::finding::{Finding, Kind, Place, Severity};

/// Data that a file reads, in bytes of the volume. The same may be told many times over.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct DataNeed {
    /// Where it begins.
    pub start: u64,
    /// Its length.
    pub len: u64,
    /// Whether each sector must have a checksum, or else must have none (files without checksums).
    pub sums: bool,
}

/// Who is told what.
#[derive(Clone, Copy)]
pub(crate) struct Hear<'a> {
    /// Something is wrong.
    pub tell: Tell<'a>,
    /// This data needs checksums, or must not have any.
    pub data: &'a (dyn Fn(DataNeed) + Sync),
}

/// What judging needs to know beside the items.
#[derive(Clone, Copy)]
struct Context<'a> {
    /// The tree through which the items were reached.
    tree: TreeId,
    /// The leaf they are in, where it is one.
    block: Option<Logical>,
    /// Bytes of a sector.
    sectorsize: u32,
    /// Holes in files need no items.
    no_holes: bool,
    /// The transaction of the superblock; nothing in a tree is younger.
    generation: Generation,
    /// Tell which data needs checksums: not for the data relocation tree.
    data_sums: bool,
    hear: Hear<'a>,
}

impl<'a> Context<'a> {
    fn new(env: &Env, tree: TreeId, hear: Hear<'a>) -> Context<'a> {
        Context {
            tree,
            block: None,
            sectorsize: env.rules.sectorsize,
            no_holes: env.rules.features.no_holes(),
            generation: Generation(env.sb.generation.get()),
            data_sums: tree != TreeId::DATA_RELOC,
            hear,
        }
    }

    #[cold]
    fn tell(&self, severity: Severity, kind: Kind, key: Key, have: String, want: String) {
        let at = Place { tree: Some(self.tree), block: self.block, key: Some(key), device: None };
        (self.hear.tell)(Finding { severity, kind, at, have, want });
    }

    fn error(&self, kind: Kind, key: Key, have: impl Display, want: impl Display) {
        self.tell(Severity::Error, kind, key, have.to_string(), want.to_string());
    }

    fn warning(&self, kind: Kind, key: Key, have: impl Display, want: impl Display) {
        self.tell(Severity::Warning, kind, key, have.to_string(), want.to_string());
    }
}

#[cfg(test)]
mod tests;
