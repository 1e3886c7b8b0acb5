//! Making the kernel forget what a control request changed.

use oleo::TreeId;
use oleo::control::Invalidate;

use super::Server;
use crate::transport::Notifier;

/// All of a file's pages; of a directory's, the cached listing.
const ALL: i64 = 0;
/// None of its pages, attributes alone.
const NONE: i64 = -1;

impl Server {
    /// Has the kernel forget something. Without a connection there is nobody to tell.
    pub(crate) fn invalidate(&self, what: &Invalidate) {
        let Some(notifier) = self.notifier.get() else { return };
        let done = match what {
            Invalidate::Entry { tree, dir, name } => {
                let dir = self.nodes.id(*tree, *dir);
                notifier.inval_entry(dir, name).and_then(|()| notifier.inval_inode(dir, ALL, ALL))
            }
            // No pages: whoever holds the inode's lock while they ask for this would wait for themselves.
            Invalidate::Inode { tree, ino } => notifier.inval_inode(self.nodes.id(*tree, *ino), NONE, ALL),
            Invalidate::Subtree { tree } => self.invalidate_tree(&**notifier, *tree),
        };
        if let Err(e) = done {
            (self.log)(&format!("the kernel does not take a notice: {e}"));
        }
    }

    fn invalidate_tree(&self, notifier: &dyn Notifier, tree: TreeId) -> std::io::Result<()> {
        self.nodes.of_tree(tree).into_iter().try_for_each(|node| notifier.inval_inode(node, ALL, ALL))
    }
}
