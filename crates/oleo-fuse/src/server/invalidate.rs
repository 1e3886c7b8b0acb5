//! Making the kernel forget what a control request changed.
//!
//! A notice about an entry takes the directory's lock in the kernel. Somebody who holds it may be waiting for an answer of
//! ours; so a thread that answers requests never waits for a notice without end ([`Server::invalidate_soon`]), or all of
//! them might, with nobody left to answer. Whoever serves the control socket may wait.

use std::io;
use std::sync::mpsc;
use std::time::Duration;

use oleo::control::Invalidate;

use super::Server;
use crate::transport::Notifier;

/// All of a file's pages; of a directory's, the cached listing.
const ALL: i64 = 0;
/// None of its pages, attributes alone.
const NONE: i64 = -1;
/// How long a thread that answers requests waits for the kernel to take notices: many times what they take.
const PATIENCE: Duration = Duration::from_millis(50);

/// One notice, in the kernel's numbers.
enum Notice {
    Entry { dir: u64, name: Vec<u8> },
    Inode { node: u64, pages: i64 },
}

impl Notice {
    fn send(&self, notifier: &dyn Notifier) -> io::Result<()> {
        match self {
            Notice::Entry { dir, name } => notifier.inval_entry(*dir, name),
            Notice::Inode { node, pages } => notifier.inval_inode(*node, *pages, ALL),
        }
    }
}

impl Server {
    /// Has the kernel forget something. Without a connection there is nobody to tell.
    pub(crate) fn invalidate(&self, what: &[Invalidate]) {
        let Some(notifier) = self.notifier.get() else { return };
        for notice in self.notices(what) {
            if let Err(e) = notice.send(&**notifier) {
                (self.log)(&format!("the kernel does not take a notice: {e}"));
            }
        }
    }

    /// The same from a thread that answers requests: comes back when the kernel has taken the notices, or is waiting for
    /// somebody who may be waiting for this thread.
    pub(crate) fn invalidate_soon(&self, what: &[Invalidate]) {
        let Some(notifier) = self.notifier.get().cloned() else { return };
        let (notices, log) = (self.notices(what), self.log.clone());
        if notices.is_empty() {
            return;
        }
        let (done, waiting) = mpsc::channel::<()>();
        let sender = std::thread::Builder::new().name("notices".to_owned()).spawn(move || {
            for notice in notices {
                if let Err(e) = notice.send(&*notifier) {
                    log(&format!("the kernel does not take a notice: {e}"));
                }
            }
            // Nobody may be listening any more.
            let _ = done.send(());
        });
        match sender {
            // A time-out is no error: the notices are on their way.
            Ok(_) => drop(waiting.recv_timeout(PATIENCE)),
            Err(e) => (self.log)(&format!("no thread for notices to the kernel: {e}")),
        }
    }

    fn notices(&self, what: &[Invalidate]) -> Vec<Notice> {
        let mut notices = Vec::new();
        for one in what {
            match one {
                Invalidate::Entry { tree, dir, name } => {
                    let dir = self.nodes.id(*tree, *dir);
                    notices.push(Notice::Entry { dir, name: name.clone() });
                    notices.push(Notice::Inode { node: dir, pages: ALL });
                }
                // No pages: whoever holds the inode's lock while they ask for this would wait for themselves.
                Invalidate::Inode { tree, ino } => {
                    notices.push(Notice::Inode { node: self.nodes.id(*tree, *ino), pages: NONE });
                }
                Invalidate::Subtree { tree } => {
                    let nodes = self.nodes.of_tree(*tree).into_iter();
                    notices.extend(nodes.map(|node| Notice::Inode { node, pages: ALL }));
                }
            }
        }
        notices
    }
}
