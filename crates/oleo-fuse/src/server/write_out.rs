//! Has the kernel write what it has cached, before the server looks at files itself.
//!
//! A snapshot, a stream, a sync and whatever else reads files on this side must find what programs have written. With the kernel's
//! write-back cache a part of that, and the times that go with it, is still in the kernel, of nodes that are open for writing (`writers`).
//!
//! Normal path: (1) a request that looks at files calls [`Server::write_out`]; (2) syncfs(2) on the mount itself starts everything, in large
//! requests, times included; (3) a notice for each of these nodes waits until its pages are written, and has those written that
//! syncfs left; (4) what was refused meanwhile is the caller's error.
//!
//! The requests that follow are answered by other threads; so whoever waits here must be none that they need: see
//! [`Handler::waits_for_another`](crate::transport::Handler::waits_for_another).
//!
//! Locks: none. Errors: a page that was refused is lost, which the kernel tells at the next fsync or close of the file.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use oleo::control::Request;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};

use super::{Errno, Server};

/// All pages of a node.
const ALL: i64 = 0;

/// What has come of the kernel's requests to write, and who waits for them.
#[derive(Default)]
pub(super) struct Unwritten {
    /// Requests that were refused.
    refused: AtomicU64,
    /// The last errno.
    why: AtomicI32,
    /// The thread that calls syncfs(2) on the mount itself; of several, one; 0: none.
    syncs: AtomicU32,
}

impl Unwritten {
    /// A request was refused.
    pub(super) fn note(&self, errno: Errno) {
        self.why.store(errno.0, Ordering::Relaxed);
        self.refused.fetch_add(1, Ordering::Release);
    }
}

/// Whether answering looks at the contents of files, or at their sizes and times.
pub(crate) fn looks_at_files(request: &Request) -> bool {
    matches!(
        request,
        Request::Snapshot { .. }
            | Request::Receive { .. }
            | Request::Send { .. }
            | Request::FindNew { .. }
            | Request::Defragment { .. }
            | Request::Du { .. }
            | Request::PropertySet { .. }
            | Request::SaveTo { .. }
            | Request::Sync
    )
}

impl Server {
    /// Has the kernel write all that it has cached. Errors: what was refused meanwhile.
    /// Without the write-back cache that would be pages that were changed through mappings. Who maps a file, the server does not know, and
    /// syncfs(2) does not wait for pages of FUSE, so these are left to msync(2).
    pub(crate) fn write_out(&self) -> Result<(), Errno> {
        if !self.writes_back() || !self.writers.any() {
            return Ok(());
        }
        self.write_out_nodes(&self.writers.nodes())
    }

    /// The same of one node.
    pub(super) fn write_out_node(&self, node: u64) -> Result<(), Errno> {
        if !self.writes_back() || !self.writers.has(node) {
            return Ok(());
        }
        self.write_out_nodes(&[node])
    }

    fn write_out_nodes(&self, nodes: &[u64]) -> Result<(), Errno> {
        let Some(notifier) = self.notifier.get() else { return Ok(()) };
        let refused = self.unwritten.refused.load(Ordering::Acquire);
        self.sync_mount();
        for node in nodes {
            // The connection is gone: nothing more can come.
            notifier.inval_inode(*node, 0, ALL).map_err(|_| Errno::EIO)?;
        }
        if self.unwritten.refused.load(Ordering::Acquire) == refused {
            return Ok(());
        }
        Err(Errno(self.unwritten.why.load(Ordering::Relaxed)))
    }

    /// Whether a FUSE_SYNCFS request comes from this server's own syncfs(2), which has pages written and needs no commit.
    pub(super) fn is_own_sync(&self, thread: u32) -> bool {
        // 0 is every thread of another namespace of processes.
        thread != 0 && self.unwritten.syncs.load(Ordering::Acquire) == thread
    }

    /// Calls syncfs(2) on the mount. What it leaves undone, for example where its directory cannot be opened, the notices do, page
    /// by page.
    fn sync_mount(&self) {
        let (Some(dir), Some(device)) = (self.dir(), self.device()) else { return };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let Ok(dir) = rustix::fs::open(dir, flags, Mode::empty()) else { return };
        // It may be mounted elsewhere by now, and something else here.
        let look = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let ours = rustix::fs::statx(&dir, "", look, StatxFlags::empty())
            .is_ok_and(|found| device == format!("{}:{}", found.stx_dev_major, found.stx_dev_minor));
        if ours {
            let syncs = &self.unwritten.syncs;
            let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
            let noted = syncs.compare_exchange(0, thread, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            let _ = rustix::fs::syncfs(&dir);
            if noted {
                syncs.store(0, Ordering::Release);
            }
        }
    }
}
