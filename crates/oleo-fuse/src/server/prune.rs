//! Bounds the number of inodes that the kernel knows.
//!
//! Each of them is held here ([`nodes`](crate::nodes)), and the kernel, which does not see that memory, forgets them
//! only when its own runs short. So above `nodes=` it is asked to forget those that no request has named for a while:
//! by their numbers (FUSE_NOTIFY_PRUNE, Linux 6.18), or, on older kernels, by the names of files. Open files stay. And
//! listings return names only while there are nearly too many (`dir`).
//!
//! Inodes that the kernel has forgotten stay in the file system's cache until a commit sweeps it; a mount that is only
//! read has no commits. So the cache is also swept when half of the known inodes are forgotten.

use std::io;
use std::sync::atomic::Ordering;

use oleo::fs::FileKind;

use super::Server;
use crate::transport::Notifier;

/// Nodes that one notice names.
pub(super) const AT_ONCE: usize = 256;
/// Fewer nodes than this are not worth a sweep.
const SHED_MIN: usize = 16 << 10;

impl Server {
    /// Whether listings should leave inodes out.
    pub(super) fn has_many_nodes(&self) -> bool {
        self.nodes.count() > self.nodes_max / 8 * 7
    }

    /// Asks the kernel to forget some nodes, if it knows too many; returns whether it has forgotten any.
    pub(crate) fn prune(&self) -> bool {
        let count = self.nodes.count();
        let Some(notifier) = self.notifier.get().filter(|_| count > self.nodes_max) else { return false };
        // A sixteenth more, so that this does not run for every single one.
        let idle = self.nodes.idle(count - self.nodes_max + self.nodes_max / 16);
        let numbers: Vec<u64> = idle.iter().map(|(node, _)| *node).collect();
        for part in numbers.chunks(AT_ONCE) {
            match notifier.prune(part) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::Unsupported => {
                    self.prune_names(&**notifier, &idle);
                    break;
                }
                // The end of the mount, most likely.
                Err(_) => return false,
            }
        }
        // Nodes in use now may be idle next time; the loop ends if all stay in use.
        numbers.is_empty() || self.nodes.count() < count
    }

    /// Makes the file system sweep its cache if the kernel has forgotten at least half of the inodes that it knew.
    pub(crate) fn shed(&self) {
        // The prune thread alone comes here.
        let mut most = self.nodes_most.load(Ordering::Relaxed);
        if has_halved(&mut most, self.nodes.count()) {
            self.fs.shed();
        }
        self.nodes_most.store(most, Ordering::Relaxed);
    }

    /// The same as `prune` for kernels that cannot be asked by number. Directories stay: the kernel would detach what
    /// is mounted on them.
    fn prune_names(&self, notifier: &dyn Notifier, idle: &[(u64, oleo_fs::InodeRef)]) {
        for (_, inode) in idle {
            if inode.is_empty_subvol_dir() || self.fs.attr(inode).kind == FileKind::Dir {
                continue;
            }
            for name in self.fs.names(inode).unwrap_or_default() {
                let dir = self.nodes.id(inode.tree(), name.parent);
                if notifier.inval_entry(dir, &name.name).is_err() {
                    return;
                }
            }
        }
    }
}

/// Whether `count` is at most half of the highest count since this last returned true.
fn has_halved(most: &mut usize, count: usize) -> bool {
    let halved = *most >= SHED_MIN && count <= *most / 2;
    *most = if halved { count } else { count.max(*most) };
    halved
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: one sweep is requested when half of the nodes are forgotten, however slowly, and none for a few.
    #[test]
    fn one_sweep_when_half_is_forgotten() {
        let mut most = 0;
        let mut halved = |count| has_halved(&mut most, count);
        assert!(!halved(100) && !halved(0));
        assert!(!halved(100_000) && !halved(90_000) && !halved(50_001) && halved(50_000));
        assert!(!halved(49_000) && !halved(60_000) && !halved(30_001) && halved(20_000));
        assert!(halved(10_000) && !halved(1));
    }
}
