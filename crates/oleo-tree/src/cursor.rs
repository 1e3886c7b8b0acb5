//! A position in a tree that moves both ways.
//!
//! The path from the root to the current item is held, so a cursor reads one state of the tree however long it
//! lives. A seek keeps the part of the path that the old and the new position share.

use std::sync::Arc;

use oleo_format::{Key, TreeId};
use smallvec::SmallVec;

use crate::blocks::{Blocks, ItemRef};
use crate::kept::Lent;
use crate::node::LEVELS;
use crate::{Node, TreeError, TreeRoot};

#[derive(Debug)]
struct Step {
    node: Lent,
    slot: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Before,
    At,
    After,
}

/// A cursor over the items of a tree. A new one is before the first item; one past either end can be moved back. After
/// an error it is before the first item again.
pub struct Cursor<'b> {
    blocks: &'b Blocks,
    root: TreeRoot,
    path: SmallVec<[Step; LEVELS]>,
    place: Place,
}

impl Blocks {
    /// A cursor before the first item of a tree.
    pub fn cursor(&self, root: &TreeRoot) -> Cursor<'_> {
        Cursor { blocks: self, root: root.clone(), path: SmallVec::new(), place: Place::Before }
    }
}

impl Cursor<'_> {
    /// The tree that it is in.
    pub fn tree(&self) -> TreeId {
        self.root.tree
    }

    /// The item here, or `None` before the first and after the last.
    pub fn current(&self) -> Option<(Key, &[u8])> {
        let step = self.here()?;
        Some((step.node.key(step.slot), step.node.item(step.slot)))
    }

    /// The key here.
    pub fn key(&self) -> Option<Key> {
        self.here().map(|step| step.node.key(step.slot))
    }

    /// The item here, kept beyond the cursor's next move.
    pub fn item_ref(&self) -> Option<ItemRef> {
        self.here().map(|step| ItemRef::new(Arc::clone(&step.node), step.slot))
    }

    /// The blocks on the way from the root to the item here, the root first.
    pub fn path(&self) -> impl DoubleEndedIterator<Item = &Arc<Node>> {
        self.path.iter().map(|step| &*step.node)
    }

    fn here(&self) -> Option<&Step> {
        if self.place == Place::At { self.path.last() } else { None }
    }

    /// Moves to the first item at or above a key. Whether there is one.
    pub fn seek(&mut self, key: &Key) -> Result<bool, TreeError> {
        self.descend(|node| node.child_slot(key))?;
        let leaf = self.leaf();
        let (Ok(slot) | Err(slot)) = leaf.node.search(key);
        if slot < leaf.node.len() {
            leaf.slot = slot;
            self.place = Place::At;
            return Ok(true);
        }
        self.beyond_leaf()
    }

    /// Moves to the last item at or below a key. Whether there is one.
    pub fn seek_back(&mut self, key: &Key) -> Result<bool, TreeError> {
        self.descend(|node| node.child_slot(key))?;
        let leaf = self.leaf();
        match leaf.node.search(key) {
            Ok(slot) => leaf.slot = slot,
            // Nothing in front of the first key of a leaf but of the whole tree: a descent takes the last child not above.
            Err(0) => {
                self.place = Place::Before;
                return Ok(false);
            }
            Err(slot) => leaf.slot = slot - 1,
        }
        self.place = Place::At;
        Ok(true)
    }

    /// The block of a level on the way to a key; `None` if the tree is not that high. Nothing below it is read. The cursor is
    /// before the first item afterwards.
    pub fn seek_level(&mut self, key: &Key, level: u8) -> Result<Option<Arc<Node>>, TreeError> {
        self.place = Place::Before;
        self.descend_to(level, |node| node.child_slot(key))?;
        Ok(self.path().find(|node| node.level() == level).cloned())
    }

    /// Moves to the next item. Whether there is one.
    #[allow(clippy::should_implement_trait, reason = "it moves, it does not yield; items borrow from the cursor")]
    pub fn next(&mut self) -> Result<bool, TreeError> {
        match self.place {
            Place::Before => self.seek(&Key::MIN),
            Place::After => Ok(false),
            Place::At => {
                let leaf = self.leaf();
                if leaf.slot + 1 < leaf.node.len() {
                    leaf.slot += 1;
                    return Ok(true);
                }
                self.beyond_leaf()
            }
        }
    }

    /// Moves to the item before. Whether there is one.
    pub fn prev(&mut self) -> Result<bool, TreeError> {
        match self.place {
            Place::After => self.seek_back(&Key::MAX),
            Place::Before => Ok(false),
            Place::At => {
                let leaf = self.leaf();
                if leaf.slot > 0 {
                    leaf.slot -= 1;
                    return Ok(true);
                }
                let Some(depth) = self.path.iter().rposition(|step| !step.node.is_leaf() && step.slot > 0) else {
                    self.place = Place::Before;
                    return Ok(false);
                };
                self.path[depth].slot -= 1;
                self.path.truncate(depth + 1);
                self.fill(|node| node.len() - 1)?;
                Ok(true)
            }
        }
    }

    /// From the end of a leaf to the first item of the next.
    fn beyond_leaf(&mut self) -> Result<bool, TreeError> {
        let Some(depth) = self.path.iter().rposition(|step| !step.node.is_leaf() && step.slot + 1 < step.node.len())
        else {
            self.place = Place::After;
            return Ok(false);
        };
        self.path[depth].slot += 1;
        self.path.truncate(depth + 1);
        self.fill(|_| 0)?;
        self.place = Place::At;
        Ok(true)
    }

    fn leaf(&mut self) -> &mut Step {
        self.path.last_mut().expect("a descent ends at a leaf")
    }

    /// Goes down from the root by the slots that `choose` names, keeping the part of the path that stays the same.
    fn descend(&mut self, choose: impl Fn(&Node) -> usize) -> Result<(), TreeError> {
        self.descend_to(0, choose)
    }

    /// The same, but no further than to a level.
    fn descend_to(&mut self, level: u8, choose: impl Fn(&Node) -> usize) -> Result<(), TreeError> {
        if self.path.is_empty() {
            let node = self.blocks.lend_root(&self.root)?;
            self.path.push(Step { node, slot: 0 });
        }
        for depth in 0..self.path.len() {
            let step = &mut self.path[depth];
            if step.node.level() <= level {
                return Ok(());
            }
            let slot = choose(&step.node);
            if slot != step.slot {
                step.slot = slot;
                self.path.truncate(depth + 1);
                break;
            }
        }
        self.fill_to(level, choose)
    }

    fn fill(&mut self, choose: impl Fn(&Node) -> usize) -> Result<(), TreeError> {
        self.fill_to(0, choose)
    }

    /// Goes on down from the last block of the path to a level, 0 for a leaf. The slot that the last block has is taken as it is.
    fn fill_to(&mut self, level: u8, choose: impl Fn(&Node) -> usize) -> Result<(), TreeError> {
        loop {
            let step = self.path.last().expect("a descent begins at the root");
            if step.node.level() <= level {
                return Ok(());
            }
            match self.blocks.lend_child(self.root.tree, &step.node, step.slot) {
                Ok(child) => {
                    let slot = choose(&child);
                    self.path.push(Step { node: child, slot });
                }
                Err(error) => {
                    self.path.clear();
                    self.place = Place::Before;
                    return Err(error);
                }
            }
        }
    }
}
