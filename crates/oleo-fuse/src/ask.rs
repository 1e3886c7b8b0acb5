//! The thread that asks for the newest state of a volume that is followed, and lets go of what nobody needs any more.
//!
//! A failure is logged when it begins and when it ends; asking goes on. It ends when [`Asking::stop`] says so.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use oleo::{Follower, Image, Moment};
use oleo_fs::InodeRef;

use crate::follow::Following;
use crate::server::Server;

/// Nodes that one notice names.
const AT_ONCE: usize = 256;
/// How long the end waits for a request that is under way, and how often it looks.
const STOP_MAX: Duration = Duration::from_secs(2);
const STOP_LOOK: Duration = Duration::from_millis(5);
/// Finds the root directory of what is shown in a moment; or why there is none.
pub(crate) type FindRoot = Box<dyn Fn(&Image) -> Result<InodeRef, String> + Send>;

/// The thread.
pub(crate) struct Asking {
    alive: Sender<()>,
    thread: JoinHandle<()>,
}

impl Asking {
    /// Starts it.
    pub(crate) fn start(
        following: &Arc<Following>,
        follower: Follower,
        find_root: FindRoot,
    ) -> std::io::Result<Asking> {
        let (alive, ended) = channel();
        let following = following.clone();
        let work = move || ask(&following, follower, &find_root, &ended);
        Ok(Asking { alive, thread: std::thread::Builder::new().name("follow".to_owned()).spawn(work)? })
    }

    /// Ends it. A request under way is waited for only for a moment: a store that is away must not hold up the end of a mount, and what
    /// it has opened by then is dropped.
    pub(crate) fn stop(self) {
        drop(self.alive);
        let begun = Instant::now();
        while !self.thread.is_finished() && begun.elapsed() < STOP_MAX {
            std::thread::sleep(STOP_LOOK);
        }
        if self.thread.is_finished() {
            // A panic of it was printed.
            let _ended = self.thread.join();
        }
    }
}

fn ask(following: &Following, mut follower: Follower, find_root: &FindRoot, ended: &Receiver<()>) {
    let log = following.front().log().clone();
    let mut failing = false;
    while ended.recv_timeout(following.every()) == Err(RecvTimeoutError::Timeout) {
        let asked = Instant::now();
        let shown = follower.newer().map_err(|e| e.to_string()).and_then(|next| match next {
            None => {
                following.is_newest(asked);
                Ok(())
            }
            Some(moment) => show(following, moment, find_root, asked),
        });
        match shown {
            Ok(()) if std::mem::take(&mut failing) => log("the newest state can be read again"),
            Ok(()) => {}
            Err(why) if !std::mem::replace(&mut failing, true) => {
                log(&format!("the newest state cannot be read: {why}"))
            }
            Err(_) => {}
        }
        following.let_go();
        forget_some(following);
    }
}

fn show(following: &Following, moment: Moment, find_root: &FindRoot, asked: Instant) -> Result<(), String> {
    let Moment { image, committed } = moment;
    let front = following.front();
    let root = find_root(&image)?;
    let server = Server::new(Arc::new(image), root, front.options().clone(), front.log().clone());
    following.shows(server, committed, asked);
    Ok(())
}

/// Asks the kernel to forget nodes, if it knows too many and can be asked.
fn forget_some(following: &Following) {
    let Some(notifier) = following.front().notifier() else { return };
    for part in following.too_many().chunks(AT_ONCE) {
        if notifier.prune(part).is_err() {
            return;
        }
    }
}
