//! Makes the kernel forget what a control request changed.
//!
//! A notice about an entry takes the directory's lock in the kernel. The holder of that lock may be waiting for a reply
//! from this server. So a thread that answers requests waits for a notice only for a limited time
//! ([`Server::invalidate_soon`]); otherwise all threads might wait, with none left to reply. The thread of the control
//! socket may wait.

use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use oleo::control::Invalidation;
use oleo_device::affinity;
use oleo_lock::{Mutex, rank};

use super::prune::AT_ONCE;
use super::{Log, Server};
use crate::transport::Notifier;

/// All of a file's pages; of a directory's, the cached listing.
const ALL: i64 = 0;
/// None of its pages, attributes alone.
const NONE: i64 = -1;
/// How long a thread that answers requests waits for the kernel to process notices: many times what that takes.
const PATIENCE: Duration = Duration::from_millis(50);

/// One notice, in the kernel's numbers.
enum Notice {
    Entry { dir: u64, name: Vec<u8> },
    Inode { node: u64, pages: i64 },
    Forget { nodes: Vec<u64> },
}

impl Notice {
    fn send(&self, notifier: &dyn Notifier) -> io::Result<()> {
        match self {
            Notice::Entry { dir, name } => notifier.inval_entry(*dir, name),
            Notice::Inode { node, pages } => notifier.inval_inode(*node, *pages, ALL),
            // Kernels before 6.18 keep what they believe until they forget it by themselves.
            Notice::Forget { nodes } => match notifier.prune(nodes) {
                Err(e) if e.kind() == io::ErrorKind::Unsupported => Ok(()),
                done => done,
            },
        }
    }
}

impl Server {
    /// Makes the kernel forget something. Does nothing without a connection.
    pub(crate) fn invalidate(&self, what: &[Invalidation]) {
        let Some(notifier) = self.notifier.get() else { return };
        for notice in self.notices(what) {
            if let Err(e) = notice.send(&**notifier) {
                (self.log)(&format!("the kernel refused a notice: {e}"));
            }
        }
    }

    /// Makes the kernel forget the attributes of a node, and none of its pages. That takes no lock that a process
    /// waiting for a reply could hold, so any thread may do it.
    pub(super) fn forget_attributes(&self, node: u64) {
        let reported = self.notifier.get().map_or(Ok(()), |notifier| notifier.inval_inode(node, NONE, ALL));
        if let Err(e) = reported {
            (self.log)(&format!("the kernel refused a notice: {e}"));
        }
    }

    /// The same from a thread that answers requests: returns when the kernel has processed the notices, or after a
    /// while, since it may be waiting for a process that waits for this thread.
    pub(crate) fn invalidate_soon(&self, what: &[Invalidation]) {
        let Some(notifier) = self.notifier.get().cloned() else { return };
        let (notices, log) = (self.notices(what), self.log.clone());
        if notices.is_empty() {
            return;
        }
        let (done, waiting) = mpsc::channel::<()>();
        let sender = std::thread::Builder::new().name("notices".to_owned()).spawn(move || {
            affinity::unbind();
            for notice in notices {
                if let Err(e) = notice.send(&*notifier) {
                    log(&format!("the kernel refused a notice: {e}"));
                }
            }
            // Nobody may be listening any more.
            let _ = done.send(());
        });
        match sender {
            // A time-out is not an error: the notices are on their way.
            Ok(_) => drop(waiting.recv_timeout(PATIENCE)),
            Err(e) => (self.log)(&format!("cannot start a thread for notices to the kernel: {e}")),
        }
    }

    /// Makes the kernel forget some pages of a node. The kernel waits for the lock of each page, and one that is being
    /// read is locked until the reply. So another thread sends the notice, and this one waits for a while.
    pub(super) fn forget_pages(&self, node: u64, at: u64, len: u64) {
        let Some(notifier) = self.notifier.get() else { return };
        let notice_thread = self.notice_thread.get_or_init(|| NoticeThread::start(notifier.clone(), self.log.clone()));
        notice_thread.notify(Pages { node, at, len });
    }

    fn notices(&self, what: &[Invalidation]) -> Vec<Notice> {
        let mut notices = Vec::new();
        for one in what {
            match one {
                Invalidation::Entry { tree, dir, name } => {
                    let dir = self.nodes.id(*tree, *dir);
                    notices.push(Notice::Entry { dir, name: name.clone() });
                    notices.push(Notice::Inode { node: dir, pages: ALL });
                }
                // Not the pages: a caller that holds the inode's lock meanwhile would wait for itself.
                Invalidation::Inode { tree, ino } => {
                    notices.push(Notice::Inode { node: self.nodes.id(*tree, *ino), pages: NONE });
                }
                Invalidation::Subtree { tree } => {
                    let nodes = self.nodes.of_tree(*tree);
                    notices.extend(nodes.iter().map(|node| Notice::Inode { node: *node, pages: ALL }));
                    // A kernel that writes back believes in its own sizes and times, of every file that it knows.
                    if self.writes_back() {
                        notices.extend(nodes.chunks(AT_ONCE).map(|nodes| Notice::Forget { nodes: nodes.to_vec() }));
                    }
                }
            }
        }
        notices
    }
}

/// Pages that are not to be believed any longer.
struct Pages {
    node: u64,
    at: u64,
    len: u64,
}

/// Pages, and the channel to report that the kernel was notified.
type Order = (Pages, mpsc::Sender<()>);

/// A thread that notifies the kernel about pages.
pub(super) struct NoticeThread(Option<Mutex<rank::FuseNotices, mpsc::Sender<Order>>>);

impl NoticeThread {
    fn start(notifier: Arc<dyn Notifier>, log: Log) -> NoticeThread {
        let (orders, list) = mpsc::channel::<Order>();
        let said = log.clone();
        let work = move || {
            affinity::unbind();
            for (pages, done) in list {
                let Pages { node, at, len } = pages;
                // No page lies beyond what the protocol can express.
                if let (Ok(at), Ok(len)) = (i64::try_from(at), i64::try_from(len))
                    && let Err(e) = notifier.inval_inode(node, at, len)
                {
                    log(&format!("the kernel refused a notice: {e}"));
                }
                // The requester may have stopped waiting.
                let _ = done.send(());
            }
        };
        match std::thread::Builder::new().name("pages".to_owned()).spawn(work) {
            Ok(_) => NoticeThread(Some(Mutex::new(orders))),
            Err(e) => {
                said(&format!("cannot start a thread for notices to the kernel: {e}"));
                NoticeThread(None)
            }
        }
    }

    /// Returns when the kernel has forgotten them, or after a while, since it may be waiting for a process that waits
    /// for this thread.
    fn notify(&self, pages: Pages) {
        let Some(orders) = &self.0 else { return };
        let (done, waiting) = mpsc::channel();
        if orders.lock().send((pages, done)).is_ok() {
            // A time-out is not an error: the notice is on its way.
            let _ = waiting.recv_timeout(PATIENCE);
        }
    }
}
