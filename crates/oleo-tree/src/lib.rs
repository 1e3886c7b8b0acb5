//! Immutable tree blocks: verified cache, cursors, sorted batch application, walk and difference.
//!
//! A tree is a value: a [`TreeRoot`]. Blocks in memory ([`Node`]) never change once they are built, so the holder of a
//! root can read that tree for any length of time, without locks and without waiting.
//!
//! Reading: [`Blocks`] looks for a block among the children that an unwritten block holds, in the cache, and on the
//! volume, in this order. A block from the volume is verified completely, and compared with its parent's pointer: level
//! one lower, the same generation, the same first key. So a descent ends after at most eight blocks, whatever the image
//! contains.
//!
//! Writing: [`Blocks::apply`] takes one sorted list of changes and makes the changed tree (see `apply`). There,
//! references are derived from the contents of blocks and recorded in the ledger. [`Blocks::copy_root`] makes a
//! snapshot; [`Blocks::drop_tree`] removes the references of a deleted tree in steps.
//!
//! Not here: what an item means (except what it references), the choice of addresses (`oleo-space`), extent items
//! (`oleo-txn`).

mod apply;
mod block_diff;
mod blocks;
mod cursor;
mod diff;
mod dirty;
mod drop;
mod error;
mod item_bytes;
mod kept;
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
pub use item_bytes::ItemBytes;
pub use node::{Node, TreeRoot};
pub use rewrite::Rewrite;
pub use scan::Walk;

#[cfg(test)]
mod tests;
