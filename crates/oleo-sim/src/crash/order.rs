//! The requests of an engine without discipline: the events of a run, in an order that keeps no promise. A harness that
//! accepts such a run notices nothing.
//!
//! The events of a run form *turns*: writes, flushes, the first copy of the superblock, flushes. A turn is a commit, or
//! a commit of the log. Each mistake is made in every turn.

use super::record::Event;

/// Offset of the first copy of the superblock, in bytes.
const SUPER_AT: u64 = 64 << 10;
/// Offsets of the others.
const MIRRORS: [u64; 2] = [64 << 20, 256 << 30];
/// Place of the file system's id in a superblock and in a tree block.
const FSID: std::ops::Range<usize> = 32..48;

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Careless {
    /// The superblock is written before the flush that makes what it names durable.
    SuperBeforeFlush,
    /// The superblock is written, and flushed, before the tree blocks that it names.
    SuperBeforeTrees,
    /// Data is written when the superblock that names it is durable.
    DataAfterMetadata,
    /// What a commit frees is discarded before the superblock is written.
    DiscardBeforeSuper,
    /// A step returns before the flush that it waits for.
    FlushAfterReturn,
}

impl Careless {
    /// All of them.
    pub const ALL: [Careless; 5] = [
        Careless::SuperBeforeFlush,
        Careless::SuperBeforeTrees,
        Careless::DataAfterMetadata,
        Careless::DiscardBeforeSuper,
        Careless::FlushAfterReturn,
    ];

    /// The events in that order.
    pub fn order(self, mut events: Vec<Event>) -> Vec<Event> {
        if self == Careless::FlushAfterReturn {
            // From the back, so that all flushes before a return go behind it.
            for i in (1..events.len()).rev() {
                if matches!((&events[i - 1], &events[i]), (Event::Flush { .. }, Event::End(_))) {
                    let mut at = i;
                    while at > 0 && matches!(events[at - 1], Event::Flush { .. }) {
                        events.swap(at - 1, at);
                        at -= 1;
                    }
                }
            }
            return events;
        }
        let mut out = Vec::with_capacity(events.len());
        let mut turn = Vec::new();
        let mut rest = events.into_iter().peekable();
        while let Some(event) = rest.next() {
            let is_super = is_at(&event, &[SUPER_AT]);
            turn.push(event);
            if is_super {
                // Other disks' superblocks, and the flushes of all.
                while let Some(next) = rest.next_if(|e| is_at(e, &[SUPER_AT]) || matches!(e, Event::Flush { .. })) {
                    turn.push(next);
                }
                // What the commit frees comes behind its superblocks.
                let behind = |e: &Event| matches!(e, Event::Discard { .. }) || is_at(e, &MIRRORS);
                while let Some(next) = rest.next_if(behind) {
                    turn.push(next);
                }
                out.extend(self.order_turn(std::mem::take(&mut turn)));
            }
        }
        out.extend(turn);
        out
    }

    fn order_turn(self, turn: Vec<Event>) -> Vec<Event> {
        let Some(first) = turn.iter().position(|e| is_at(e, &[SUPER_AT])) else { return turn };
        let fsid = match &turn[first] {
            Event::Write { data, .. } => data.get(FSID).map(<[u8]>::to_vec),
            _ => None,
        };
        let mut before = turn;
        let mut behind = before.split_off(first);
        let flushes = before.iter().rev().take_while(|e| matches!(e, Event::Flush { .. })).count();
        match self {
            Careless::SuperBeforeFlush => {
                let flushes = before.split_off(before.len() - flushes);
                let supers = take(&mut behind, |e| is_at(e, &[SUPER_AT]));
                [before, supers, flushes, behind].concat()
            }
            Careless::SuperBeforeTrees => {
                let trees = take(&mut before, |e| is_tree_block(e, fsid.as_deref()));
                [before, behind, trees].concat()
            }
            Careless::DataAfterMetadata => {
                let known = |e: &Event| is_tree_block(e, fsid.as_deref()) || is_at(e, &MIRRORS);
                let data = take(&mut before, |e| matches!(e, Event::Write { .. }) && !known(e));
                [before, behind, data].concat()
            }
            Careless::DiscardBeforeSuper => {
                let discards = take(&mut behind, |e| matches!(e, Event::Discard { .. }));
                [before, discards, behind].concat()
            }
            Careless::FlushAfterReturn => [before, behind].concat(),
        }
    }
}

/// Takes some events out, in their order.
fn take(events: &mut Vec<Event>, wanted: impl Fn(&Event) -> bool) -> Vec<Event> {
    let (out, left) = std::mem::take(events).into_iter().partition(|e| wanted(e));
    *events = left;
    out
}

fn is_at(event: &Event, places: &[u64]) -> bool {
    matches!(event, Event::Write { offset, .. } if places.contains(offset))
}

fn is_tree_block(event: &Event, fsid: Option<&[u8]>) -> bool {
    matches!(event, Event::Write { data, .. } if fsid.is_some() && data.get(FSID) == fsid)
        && !is_at(event, &[SUPER_AT])
        && !is_at(event, &MIRRORS)
}
