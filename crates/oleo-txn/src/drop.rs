//! Taking deleted subvolumes apart in bounded steps.
//!
//! A deleted tree has a root item without references and an orphan item in the root tree. Each step gives up what a bounded
//! number of its blocks reference, and writes how far it came into the root item (`drop_progress`, `drop_level`), in one
//! transaction; so a crash, or the kernel, goes on from there.

use oleo_format::{ItemType, Key, TreeId};
use oleo_tree::{Change, DropPlan, DropProgress, Op};

use crate::TxnError;
use crate::commit::ORPHAN_OBJECT;
use crate::engine::Engine;

/// How far a step of [`Engine::drop_step`] came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dropped {
    /// There is more to do.
    Partly,
    /// The tree is gone.
    Whole,
}
