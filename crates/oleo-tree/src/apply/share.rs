//! The fate of a block that must change: who references it besides the tree that changes it.

use std::sync::Arc;

use oleo_format::{Generation, HeaderFlags, Logical};

use super::{ApplyEnv, ExtentState};
use crate::{Node, TreeError};

/// See the table in `apply`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// Ours alone, its references implicit.
    Sole,
    /// Ours alone, its references full.
    SoleFull,
    /// Shared, and it references in our name.
    SharedOurs,
    /// Shared, and its references have nothing to do with us.
    SharedOther,
}

impl Fate {
    /// Whether others keep the block.
    pub fn stays(self) -> bool {
        matches!(self, Fate::SharedOurs | Fate::SharedOther)
    }
}

/// Whether a block that is not a root may have references from other trees. If not, it has one reference, implicit.
pub(crate) fn may_be_shared(last_snapshot: Option<Generation>, generation: Generation, flags: HeaderFlags) -> bool {
    last_snapshot.is_some_and(|last| generation <= last || flags.contains(HeaderFlags::RELOC))
}

/// Looks up what the ledger and the disk know of blocks, in the order of addresses; returns it in the order of the
/// request.
pub(crate) fn lookup_states(env: &ApplyEnv<'_>, blocks: &[(Logical, u8)]) -> Result<Vec<ExtentState>, TreeError> {
    if blocks.is_empty() {
        return Ok(Vec::new());
    }
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    order.sort_unstable_by_key(|&index| blocks[index]);
    let sorted: Vec<(Logical, u8)> = order.iter().map(|&index| blocks[index]).collect();
    let states = env.extents.lookup(&sorted)?;
    assert_eq!(states.len(), sorted.len(), "every question has an answer");
    let mut out = vec![ExtentState { refs: 0, full_backref: false }; blocks.len()];
    for (index, state) in order.into_iter().zip(states) {
        if state.refs == 0 {
            let place = format!("block {}", blocks[index].0);
            return Err(TreeError::corrupt(env.owner, "count of references", 0, "1 or more", place));
        }
        out[index] = state;
    }
    Ok(out)
}

/// The fates of blocks (not roots) given those of their parents.
pub(crate) fn fates(env: &ApplyEnv<'_>, blocks: &[(&Arc<Node>, Fate)]) -> Result<Vec<Fate>, TreeError> {
    if !env.shareable() {
        return Ok(vec![Fate::Sole; blocks.len()]);
    }
    let asks =
        |node: &Node, parent: Fate| parent.stays() || may_be_shared(env.last_snapshot, node.generation(), node.flags());
    let questions: Vec<(Logical, u8)> = blocks
        .iter()
        .filter(|(node, parent)| asks(node, *parent))
        .map(|(node, _)| (node.logical(), node.level()))
        .collect();
    let mut answers = lookup_states(env, &questions)?.into_iter();
    blocks
        .iter()
        .map(|(node, parent)| {
            let state = if asks(node, *parent) {
                answers.next().expect("every question has an answer")
            } else {
                ExtentState { refs: 1, full_backref: false }
            };
            // The new copy of a parent that stays references the block, too.
            let refs = state.refs.saturating_add(u64::from(parent.stays()));
            fate_of(env, node, refs, state.full_backref)
        })
        .collect()
}

fn fate_of(env: &ApplyEnv<'_>, node: &Node, refs: u64, full_backref: bool) -> Result<Fate, TreeError> {
    let ours = node.owner() == env.owner;
    match (refs, full_backref) {
        (1, true) => Ok(Fate::SoleFull),
        (1, false) => {
            check_owner(env, node)?;
            Ok(Fate::Sole)
        }
        (_, false) if ours => Ok(Fate::SharedOurs),
        _ => Ok(Fate::SharedOther),
    }
}

/// A block that only this tree references, implicitly, must be the tree's own.
pub(crate) fn check_owner(env: &ApplyEnv<'_>, node: &Node) -> Result<(), TreeError> {
    if node.owner() == env.owner {
        return Ok(());
    }
    let place = format!("block {}", node.logical());
    Err(TreeError::corrupt(env.owner, "owner of an unshared block", node.owner(), env.owner, place))
}
