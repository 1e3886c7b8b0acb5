//! Snapshots.
//!
//! A snapshot is a new root block with the content of the source's. From then on both roots reference the same children:
//! each gains a reference, and nothing else is read or written. The source's root block is never shared.
//!
//! After `copy_root` the caller sets `last_snapshot` of both trees to the open transaction. A trap of the format: the
//! key of a snapshot's root item has the generation of its creation as offset, and when the kernel deletes the
//! snapshot, it takes blocks of that generation (or an older one) for blocks of the source. So a snapshot must not be
//! changed in the transaction that creates it.

use std::sync::Arc;

use oleo_format::{CheckedNode, TreeId, data_use, seal};
use oleo_space::ExtentKind;

use crate::apply::{ApplyEnv, Refs, first_key};
use crate::blocks::Blocks;
use crate::{Node, TreeError, TreeRoot};

impl Blocks {
    /// A snapshot: the tree `new_owner`, which is to be `env.owner`, with the content of `source`. References are recorded as by
    /// [`apply`](Self::apply).
    ///
    /// The caller then sets `last_snapshot` of both trees to the open transaction, and does not change the new tree in this
    /// transaction: when the kernel deletes the snapshot, it takes blocks of that generation for blocks of the source.
    pub fn copy_root(&self, source: &TreeRoot, new_owner: TreeId, env: &ApplyEnv<'_>) -> Result<TreeRoot, TreeError> {
        assert_eq!(new_owner, env.owner, "the environment is that of the new tree");
        let _sharing = env.shareable().then(|| env.dirty.sharing());
        let old = self.root_node_in(source, env.dirty)?;
        let at = one_address(env)?;
        let mut bytes: Box<[u8]> = old.bytes().into();
        env.head_of(at, old.level()).stamp(&mut bytes);
        let mut refs = Refs::new(env, self.nodesize());
        if !old.is_leaf() {
            for slot in 0..old.len() {
                let child = old.child(slot);
                refs.block(child.logical, old.level() - 1, child.key, None, 1);
            }
        } else if env.shareable() {
            for (key, item) in old.iter() {
                if let Some(used) = data_use(&key, item) {
                    refs.data(&used, None, 1);
                }
            }
        }
        env.ledger.record_batch(&mut refs.changes);
        Ok(self.plant(env, bytes, |block| Node::over_kids_of(block, &old)))
    }

    /// Makes a built block the root of a new tree.
    fn plant(&self, env: &ApplyEnv<'_>, mut bytes: Box<[u8]>, wrap: impl FnOnce(CheckedNode) -> Node) -> TreeRoot {
        seal(&mut bytes, self.rules().csum);
        let node = Arc::new(wrap(CheckedNode::trust(bytes)));
        let mut refs = Refs::new(env, self.nodesize());
        let (at, level, first_key) = (node.logical(), node.level(), first_key(&node));
        env.ledger.record_new_extent(at, refs.block_len(), ExtentKind::Tree { level, first_key });
        refs.block(at, level, first_key, None, 1);
        env.ledger.record_batch(&mut refs.changes);
        env.dirty.replace(&[], std::iter::once(node.clone()));
        TreeRoot::of(env.owner, node)
    }
}

fn one_address(env: &ApplyEnv<'_>) -> Result<oleo_format::Logical, TreeError> {
    let mut out = Vec::with_capacity(1);
    env.alloc.alloc(1, &mut out)?;
    assert_eq!(out.len(), 1, "the allocator gives what it is asked for or an error");
    Ok(out[0])
}
