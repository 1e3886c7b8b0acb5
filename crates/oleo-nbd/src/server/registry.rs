//! The connections there are, so that they are counted, and ended.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use oleo_lock::{Condvar, Mutex, rank};

use super::share_of;
use crate::channel::{Channel, Peer};

/// The connections.
#[derive(Default)]
pub(super) struct Registry {
    open: Mutex<rank::NbdConnections, Open>,
    gone: Condvar,
}

#[derive(Default)]
struct Open {
    next: u64,
    channels: HashMap<u64, Arc<Channel>>,
}

/// One of them, until it is dropped.
pub(super) struct Entry {
    registry: Arc<Registry>,
    number: u64,
    pub(super) channel: Arc<Channel>,
}

impl Registry {
    /// Adds one, unless there are `count_max`, or as many from its address as one may have. Others get in then.
    pub(super) fn enter(self: &Arc<Registry>, channel: Channel, count_max: usize) -> Result<Entry, &'static str> {
        let channel = Arc::new(channel);
        let mut open = self.open.lock();
        if open.channels.len() >= count_max {
            return Err("there are as many connections as are allowed");
        }
        let peer = channel.peer();
        // A process of this machine has opened a socket of its owner: that is no stranger.
        let of_it = || open.channels.values().filter(|other| other.peer() == peer).count() as u64;
        if matches!(peer, Peer::Address(_)) && of_it() >= share_of(count_max as u64) {
            return Err("it has as many connections as one address is allowed");
        }
        let number = open.next;
        open.next += 1;
        open.channels.insert(number, channel.clone());
        Ok(Entry { registry: self.clone(), number, channel })
    }

    /// How many there have been.
    pub(super) fn count(&self) -> u64 {
        self.open.lock().next
    }

    /// Waits until all are gone, or the time is over: then there are some.
    pub(super) fn wait_until(&self, deadline: Instant) -> bool {
        let mut open = self.open.lock();
        while !open.channels.is_empty() {
            if self.gone.wait_until(&mut open, deadline).timed_out() {
                return open.channels.is_empty();
            }
        }
        true
    }

    /// Ends the streams of all, and waits until they are gone.
    pub(super) fn end(&self) {
        let mut open = self.open.lock();
        open.channels.values().for_each(|channel| channel.shutdown());
        while !open.channels.is_empty() {
            self.gone.wait(&mut open);
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut open = self.registry.open.lock();
        open.channels.remove(&self.number);
        drop(open);
        self.registry.gone.notify_all();
    }
}
