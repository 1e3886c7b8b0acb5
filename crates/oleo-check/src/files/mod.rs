//! The contents of the trees of files, and the relations between trees.
//!
//! Normal path: (1) [`LeafSummary::of_leaf`] runs once for each leaf, however many trees share it; (2)
//! [`LeafSummary::join`] joins neighbours, leaves to nodes and nodes to trees. Results can be kept per block, so a
//! snapshot costs only the blocks it does not share; (3) [`Forest::tree`] checks a whole tree of files from its summary
//! and, if something does not add up, reads that tree again to name it ([`second_pass`]); (4) [`check_volume`] checks
//! the relations between trees.
//!
//! Invariants: `join` is associative, so the verdict does not depend on how a tree is cut into blocks. Findings are
//! reported while joining; two trees that join the same neighbours in different nodes report the same finding twice,
//! and the receiver drops duplicates. There is no list of files, so memory grows only with blocks (about 500 bytes
//! each), directories (16 bytes) and subvolumes. Blocks are verified before: what `CheckedNode` checks within an item
//! or a leaf is not checked again; items that do not parse are skipped.

pub(crate) mod claim;
mod closed;
mod extents;
mod forest;
mod inode_summary;
mod leaf_summary;
mod logs;
mod qgroups;
mod roots;
mod second_pass;
mod uuids;

use std::fmt::Display;

use oleo_format::{Generation, Key, Logical, TreeId};

pub(crate) use forest::{Forest, check_volume};
pub(crate) use leaf_summary::LeafSummary;

use crate::finding::{Finding, Kind, Place, Severity};
use crate::input::{Env, ReportFinding};

/// Data that a file reads, in bytes of the volume. The same data may be reported many times.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct DataNeed {
    /// Where it begins.
    pub start: u64,
    /// Its length.
    pub len: u64,
    /// Whether each sector must have a checksum; if not, none may have one (files without checksums).
    pub sums: bool,
}

/// Where findings go.
#[derive(Clone, Copy)]
pub(crate) struct Reporter<'a> {
    /// Takes a finding.
    pub report: ReportFinding<'a>,
    /// Takes data that needs checksums, or must not have any.
    pub data: &'a (dyn Fn(DataNeed) + Sync),
}

/// What the checks need besides the items.
#[derive(Clone, Copy)]
struct Context<'a> {
    /// The tree through which the items were reached.
    tree: TreeId,
    /// The leaf they are in, if it is one leaf.
    block: Option<Logical>,
    /// Bytes of a sector.
    sectorsize: u32,
    /// Holes in files need no items.
    no_holes: bool,
    /// The transaction of the superblock; nothing in a tree is younger.
    generation: Generation,
    /// Whether to report which data needs checksums: not for the data relocation tree.
    data_sums: bool,
    reporter: Reporter<'a>,
}

impl<'a> Context<'a> {
    fn new(env: &Env, tree: TreeId, reporter: Reporter<'a>) -> Context<'a> {
        Context {
            tree,
            block: None,
            sectorsize: env.rules.sectorsize,
            no_holes: env.rules.features.no_holes(),
            generation: Generation(env.sb.generation.get()),
            data_sums: tree != TreeId::DATA_RELOC,
            reporter,
        }
    }

    #[cold]
    fn report(&self, severity: Severity, kind: Kind, key: Key, have: String, want: String) {
        let at = Place { tree: Some(self.tree), block: self.block, key: Some(key), device: None };
        (self.reporter.report)(Finding { severity, kind, at, have, want });
    }

    fn error(&self, kind: Kind, key: Key, have: impl Display, want: impl Display) {
        self.report(Severity::Error, kind, key, have.to_string(), want.to_string());
    }

    fn warning(&self, kind: Kind, key: Key, have: impl Display, want: impl Display) {
        self.report(Severity::Warning, kind, key, have.to_string(), want.to_string());
    }
}

#[cfg(test)]
mod tests;
