//! Rewrites blocks elsewhere with the same items: the basis of relocation.
//!
//! The caller has chosen the blocks, and records references in the ledger: a block that moves changes its address, not
//! the contents of the tree. Here a block is copied with another address, other addresses of children that have moved,
//! and other addresses of data.

use std::sync::Arc;

use oleo_format::{CheckedNode, Generation, HeaderFlags, Logical, TreeId, data_use, seal, set_child, set_data_extent};

use crate::blocks::Blocks;
use crate::{Dirty, Node, TreeRoot};

/// What changes in a block that is rewritten.
#[derive(Clone, Copy, Debug)]
pub struct Rewrite {
    /// The new address.
    pub to: Logical,
    /// The open transaction.
    pub generation: Generation,
    /// It may be shared although it is young: sets the flag for this in its header.
    pub relocated: bool,
}

impl Blocks {
    /// A block of which some children, or some data, are elsewhere now, as another block: `child` and `data` map old
    /// addresses to new ones. Nothing is copied if nobody else has the old one.
    pub fn rewritten(
        &self,
        node: Arc<Node>,
        how: &Rewrite,
        child: impl Fn(Logical) -> Option<Arc<Node>>,
        data: impl Fn(Logical) -> Option<Logical>,
    ) -> Arc<Node> {
        let mut head = node.head();
        head.logical = how.to;
        // A block of a seed becomes one of the volume that was made of it.
        head.fsid = self.rules().fsid;
        head.generation = how.generation;
        head.flags.set(HeaderFlags::RELOC, how.relocated);
        let (mut kids, mut children, mut extents) = (Vec::new(), Vec::new(), Vec::new());
        if node.is_leaf() {
            for (slot, (key, item)) in node.iter().enumerate() {
                if let Some(to) = data_use(&key, item).and_then(|used| data(used.extent)) {
                    extents.push((slot, to));
                }
            }
        } else {
            kids.reserve(node.len());
            for slot in 0..node.len() {
                let new = child(node.child(slot).logical);
                if let Some(new) = &new {
                    children.push((slot, new.logical(), new.generation()));
                }
                kids.push(new.or_else(|| node.kid(slot)));
            }
        }
        let mut bytes = Node::bytes_of(node);
        head.stamp(&mut bytes);
        for (slot, to) in extents {
            set_data_extent(&mut bytes, slot, to);
        }
        for (slot, to, generation) in children {
            set_child(&mut bytes, slot, to, generation);
        }
        seal(&mut bytes, self.rules().csum);
        let block = CheckedNode::trust(bytes);
        Arc::new(if kids.is_empty() { Node::new(block) } else { Node::with_kids(block, kids) })
    }
}

impl Dirty {
    /// Adds rewritten blocks to those to be written; they replace blocks with the same address.
    pub fn add_rewritten(&self, nodes: impl Iterator<Item = Arc<Node>>) {
        self.replace(&[], nodes);
    }
}

impl TreeRoot {
    /// The same tree under a root that was written anew.
    pub fn rewritten(tree: TreeId, node: Arc<Node>) -> TreeRoot {
        TreeRoot::of(tree, node)
    }
}
