//! Shared blocks whose reference is not dropped at their top: what is below them changes owners bit by bit.
//!
//! Dropping the reference to a shared block leaves everything below it to the trees that keep it, in one transaction,
//! however much that is. Instead a copy replaces the block in our tree, as if we changed it: from then on the block
//! belongs to the others, its children to them and to us, and we drop one child after another, in the same way. A leaf
//! is dropped as a whole. So a step gives away as many leaves as it visits, and each state in between is a tree like
//! any other: any reader, the kernel too, can continue from its progress.
//!
//! Only the copies on the path to the place where the step ends are written, at most one block for each level. They
//! hold what is left: the first item of each is where the next step continues. References that would come and go within
//! the step are not recorded.

use super::*;
use oleo_format::{CheckedNode, ChildPtr, encode_node, seal};

impl Dropper<'_> {
    /// Continues with a copy of the node at the current slot, which others reference too, if the caller requests it.
    pub(super) fn take_apart(&mut self, frame: &Frame) -> Result<Option<Frame>, TreeError> {
        if frame.node.level() < 2 {
            return Ok(None);
        }
        let state = frame.state();
        let Some(takes_apart) = self.takes_apart.as_mut().filter(|t| state.refs <= t.refs_max) else { return Ok(None) };
        let node = self.blocks.child(self.env.owner, &frame.node, frame.slot)?;
        if !(takes_apart.asks)(&node)? {
            return Ok(None);
        }
        self.looked_at += usize::from(!frame.copied);
        if node.owner() == self.env.owner {
            // Our name is what the copy references by.
            self.refs.owner = self.env.owner;
            self.convert_block(&node, state.full_backref);
        }
        let mut states = self.states(&node, 0)?;
        for state in &mut states {
            state.refs = state.refs.saturating_add(1);
        }
        Ok(Some(Frame { node, full: false, copied: true, slot: 0, states, first: 0, ahead: VecDeque::new() }))
    }

    /// Makes the copies that a step ends in, and writes the nodes above them anew; the root is the last.
    pub(super) fn make_copies(&mut self, path: &[Frame]) -> Result<Vec<Arc<Node>>, TreeError> {
        if !path.iter().any(|frame| frame.copied) {
            return Ok(Vec::new());
        }
        let mut at = Vec::with_capacity(path.len());
        self.env.alloc.alloc(path.len(), &mut at)?;
        let mut made: Vec<Arc<Node>> = Vec::with_capacity(path.len());
        for (depth, frame) in path.iter().enumerate().rev() {
            let below = made.last().cloned();
            let node = self.copy_rest(frame, at[depth], below.as_ref());
            let parent = depth.checked_sub(1).map(|above| &path[above]);
            self.drop_reference(parent, frame.node.logical(), frame.node.level(), first_key(&frame.node));
            self.refs.owner = self.env.owner;
            self.refs.block(node.logical(), node.level(), first_key(&node), None, 1);
            made.push(node);
        }
        Ok(made)
    }

    /// What is left of a node as a block of ours; `below` replaces its first child.
    fn copy_rest(&mut self, frame: &Frame, at: Logical, below: Option<&Arc<Node>>) -> Arc<Node> {
        let old = &frame.node;
        let level = old.level();
        let mut children: Vec<ChildPtr> = (frame.slot..old.len()).map(|slot| old.child(slot)).collect();
        let mut kids: Vec<Option<Arc<Node>>> = (frame.slot..old.len()).map(|slot| old.kid(slot)).collect();
        let kept = usize::from(below.is_some());
        for child in &children[kept..] {
            if frame.full {
                self.refs.block(child.logical, level - 1, child.key, frame.by(), -1);
            }
            if frame.full || frame.copied {
                self.refs.owner = self.env.owner;
                self.refs.block(child.logical, level - 1, child.key, None, 1);
            }
        }
        if let Some(below) = below {
            let (logical, generation) = (below.logical(), below.generation());
            children[0] = ChildPtr { key: first_key(below), logical, generation };
            kids[0] = Some(below.clone());
        }
        let mut bytes = encode_node(self.blocks.nodesize(), &self.env.head_of(at, level), &children);
        seal(&mut bytes, self.blocks.rules().csum);
        Arc::new(Node::with_kids(CheckedNode::trust(bytes), kids))
    }
}
