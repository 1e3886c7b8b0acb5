//! Segments that are sealed and not yet published: their bytes stay in memory until a head names them.

use std::sync::Arc;

use super::Sealed;
use crate::format::ObjectId;
use crate::store::Ticket;

struct Stored {
    sealed: Arc<Sealed>,
    /// How it is being stored; none: nobody has begun, or somebody waits for it, or it is done.
    ticket: Option<Ticket>,
    done: bool,
}

/// See the module's text.
#[derive(Default)]
pub(crate) struct UnderWay(Vec<Stored>);

impl UnderWay {
    /// Bytes of all.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|stored| u64::from(stored.sealed.known.len)).sum()
    }

    pub(crate) fn push(&mut self, sealed: Arc<Sealed>) {
        self.0.push(Stored { sealed, ticket: None, done: false });
    }

    /// Storing a segment has begun.
    pub(crate) fn begun(&mut self, sealed: &Arc<Sealed>, ticket: Ticket) {
        if let Some(stored) = self.0.iter_mut().find(|stored| Arc::ptr_eq(&stored.sealed, sealed)) {
            stored.ticket = Some(ticket);
        }
    }

    /// What is not known to be stored, up to a position, with how it is being stored.
    pub(crate) fn unfinished(&mut self, position: u64) -> Vec<(Arc<Sealed>, Option<Ticket>)> {
        let open = self.0.iter_mut().filter(|stored| !stored.done && stored.sealed.after <= position);
        open.map(|stored| (stored.sealed.clone(), stored.ticket.take())).collect()
    }

    /// Whether anything is not known to be stored.
    pub(crate) fn is_busy(&self) -> bool {
        self.0.iter().any(|stored| !stored.done)
    }

    /// The first that is being stored, and how, if nobody waits for it.
    pub(crate) fn oldest(&mut self) -> Option<(Arc<Sealed>, Ticket)> {
        let stored = self.0.iter_mut().find(|stored| !stored.done && stored.ticket.is_some())?;
        Some((stored.sealed.clone(), stored.ticket.take()?))
    }

    /// A segment is stored.
    pub(crate) fn done(&mut self, sealed: &Arc<Sealed>) {
        if let Some(stored) = self.0.iter_mut().find(|stored| Arc::ptr_eq(&stored.sealed, sealed)) {
            stored.done = true;
        }
    }

    /// A head is published that names everything up to a position.
    pub(crate) fn free(&mut self, position: u64) {
        self.0.retain(|stored| stored.sealed.after > position);
    }

    /// Segments in their order.
    pub(crate) fn sealed(&self) -> impl Iterator<Item = &Sealed> {
        self.0.iter().map(|stored| &*stored.sealed)
    }

    /// All segments.
    pub(crate) fn ids(&self) -> impl Iterator<Item = ObjectId> + '_ {
        self.0.iter().map(|stored| stored.sealed.known.id)
    }

    /// The segment of a row.
    pub(crate) fn of_row(&self, row: u32) -> Option<&Sealed> {
        self.0.iter().map(|stored| &*stored.sealed).find(|sealed| sealed.row == row)
    }
}
