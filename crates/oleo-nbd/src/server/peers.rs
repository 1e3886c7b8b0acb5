//! Who uses which export: a writable one serves one client at a time.
//!
//! The protocol has no locks, and two file systems on one device destroy it. A client is a process of this machine, or
//! another machine's address: it may have several connections. Of whom nothing is known, one connection is one client.

use oleo_lock::{Mutex, rank};

use crate::channel::Peer;

/// Who uses what.
pub(super) struct Peers {
    seats: Mutex<rank::NbdPeers, Vec<Option<(Peer, usize)>>>,
}

/// One connection's use of an export, until it is dropped.
pub(super) struct Seat<'a> {
    peers: &'a Peers,
    export: usize,
}

impl Peers {
    /// Nobody uses anything.
    pub(super) fn new(exports: usize) -> Peers {
        Peers { seats: Mutex::new(vec![None; exports]) }
    }

    /// Another client that uses it.
    pub(super) fn other(&self, export: usize, peer: Peer) -> Option<Peer> {
        let seats = self.seats.lock();
        let (by, _) = (*seats.get(export)?)?;
        (by != peer || peer == Peer::Unknown).then_some(by)
    }

    /// Begins to use it, unless another client does.
    pub(super) fn enter(&self, export: usize, peer: Peer) -> Result<Seat<'_>, Peer> {
        let mut seats = self.seats.lock();
        match &mut seats[export] {
            Some((by, count)) if *by == peer && peer != Peer::Unknown => *count += 1,
            Some((by, _)) => return Err(*by),
            free => *free = Some((peer, 1)),
        }
        Ok(Seat { peers: self, export })
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut seats = self.peers.seats.lock();
        let seat = &mut seats[self.export];
        match seat {
            Some((_, count)) if *count > 1 => *count -= 1,
            _ => *seat = None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: one client with many connections, and then the next one. Method: by hand.
    #[test]
    fn one_client_each() {
        let peers = Peers::new(2);
        let (ours, theirs) = (Peer::Process(7), Peer::Process(8));
        let seats = [peers.enter(0, ours), peers.enter(0, ours)].map(|seat| seat.expect("ours"));
        assert_eq!(peers.other(0, theirs), Some(ours));
        assert_eq!(peers.other(0, ours), None);
        assert_eq!(peers.enter(0, theirs).err(), Some(ours));
        let [one, two] = seats;
        drop(one);
        assert_eq!(peers.enter(0, theirs).err(), Some(ours), "the other connection is still there");
        drop(two);
        let _theirs = peers.enter(0, theirs).expect("free");
        let _unknown = peers.enter(1, Peer::Unknown).expect("free");
        assert_eq!(peers.enter(1, Peer::Unknown).err(), Some(Peer::Unknown), "who knows whether it is the same");
    }
}
