//! Immutable tree blocks: verified cache, cursors, sorted batch application, walk and difference.
//!
//! A tree is a value: a [`TreeRoot`]. Blocks in memory ([`Node`]) never change once they are built, so the holder of a root
//! can read that tree for any length of time, without locks and without waiting.
//!
//! Reading: [`Blocks`] finds blocks among the children that an unwritten block holds, in the cache, or on the volume, in this
//! order. Whatever comes from the volume is verified completely, and against what its parent says of it: level one lower,
//! the same generation, the same first key. So a descent ends after at most eight blocks, whatever the image says.
//!
//! Writing: [`Blocks::apply`] takes one sorted list of changes and makes the tree that has them (see `apply`). References
//! are derived there from what blocks hold, and recorded in the ledger. [`Blocks::copy_root`] makes a snapshot,
//! [`Blocks::drop_tree`] takes away in steps what a deleted tree references.
//!
//! Not here: what an item means (but for what it references), where blocks go (`space`), extent items (`txn`).

mod apply;
mod block_diff;
mod blocks;
mod cursor;
mod diff;
mod dirty;
mod drop;
mod error;
mod node;
mod rewrite;
mod scan;
mod snapshot;

pub use apply::{ApplyEnv, BlockAlloc, Change, ExtentInfo, ExtentState, Op};
pub use block_diff::{BlockChange, BlockDiff, DropMoment, DropVisit};
pub use blocks::{BlockReader, Blocks, ItemRef};
pub use cursor::Cursor;
pub use diff::Diff;
pub use dirty::Dirty;
pub use drop::{DropPlan, DropProgress, DropStep, Dropping, TakesApart};
pub use error::TreeError;
pub use node::{Node, TreeRoot};
pub use rewrite::Rewrite;
pub use scan::Walk;

#[cfg(test)]
mod tests;
