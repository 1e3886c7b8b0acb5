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
//! [`Handler::waits_for_another`](crate::transport::Handler::waits_for_another). A ring has few slots, and the request that waits holds
//! one; so no more wait at a time than leave each ring one ([`Server::set_waiting_max`]).
//!
//! Locks: none. Errors: a page that was refused is lost, which the kernel tells at the next fsync or close of the file.

use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use oleo::control::Request;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};

use super::{Errno, Server};

/// All pages of a node.
const ALL: i64 = 0;
/// How long a request waits until fewer others wait, and how often it looks. If all slots of a ring are taken by such requests, the
/// one that none of them lets through comes through then.
const TURN_WAIT: Duration = Duration::from_secs(30);
const TURN_AGAIN: Duration = Duration::from_millis(1);

/// What has come of the kernel's requests to write, and who waits for them.
#[derive(Default)]
pub(super) struct Unwritten {
    /// Requests that were refused.
    refused: AtomicU64,
    /// The last errno.
    why: AtomicI32,
    /// Requests of callers in the kernel that wait.
    waiting: AtomicUsize,
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
    pub(crate) fn write_out(&self) -> Result<(), Errno> {
        if !self.writes_back() || !self.writers.any() {
            return Ok(());
        }
        self.write_out_nodes(&self.writers.nodes())
    }

    /// The same of one node, for a request of a caller in the kernel, which holds a slot of a ring meanwhile.
    pub(super) fn write_out_node(&self, node: u64) -> Result<(), Errno> {
        if !self.writes_back() || !self.writers.has(node) {
            return Ok(());
        }
        let _turn = self.wait_turn()?;
        self.write_out_nodes(&[node])
    }

    /// The same of everything, for such a request.
    pub(crate) fn write_out_by_call(&self) -> Result<(), Errno> {
        if !self.writes_back() || !self.writers.any() {
            return Ok(());
        }
        let _turn = self.wait_turn()?;
        self.write_out()
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
            let _ = rustix::fs::syncfs(&dir);
        }
    }

    /// How many requests of callers in the kernel may wait for others. Called before the first request.
    pub(crate) fn set_waiting_max(&self, max: usize) {
        let _ = self.waiting_max.set(max);
    }

    /// Waits until few enough others wait.
    fn wait_turn(&self) -> Result<Turn<'_>, Errno> {
        let max = self.waiting_max.get().copied().unwrap_or(usize::MAX);
        let waiting = &self.unwritten.waiting;
        let begun = Instant::now();
        loop {
            let taken = waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < max).then_some(n + 1));
            if taken.is_ok() {
                return Ok(Turn(waiting));
            }
            if begun.elapsed() > TURN_WAIT {
                return Err(Errno::EBUSY);
            }
            std::thread::sleep(TURN_AGAIN);
        }
    }
}

/// One of those that wait.
struct Turn<'a>(&'a AtomicUsize);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
