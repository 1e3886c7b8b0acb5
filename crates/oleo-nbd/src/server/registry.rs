//! The connections there are, so that they are counted, and ended.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use oleo_lock::{Condvar, Mutex, rank};

use crate::channel::Channel;

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
    /// Adds one, unless there are `count_max`.
    pub(super) fn enter(self: &Arc<Registry>, channel: Channel, count_max: usize) -> Option<Entry> {
        let channel = Arc::new(channel);
        let mut open = self.open.lock();
        if open.channels.len() >= count_max {
            return None;
        }
        let number = open.next;
        open.next += 1;
        open.channels.insert(number, channel.clone());
        Some(Entry { registry: self.clone(), number, channel })
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
