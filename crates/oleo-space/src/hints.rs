//! Where an allocation begins to look: behind the last one of its stream or its directory, or at a start cursor (see `pick`).
//!
//! Invariants: turns rise. Nothing depends on the other numbers: they are hints, and what another thread writes meanwhile harms nobody.
//! Locks: none, atomics only.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU8, AtomicU64};

use oleo_format::Logical;

use crate::Kind;
use crate::threads::{self, CachePadded};

/// Streams that are remembered. Two streams in one slot cost each other their place, nothing else.
const STREAM_SLOTS: usize = 256;

/// Goals for what is new: two for each processor, as threads that meet in one move at random.
const CURSORS_PER_PROCESSOR: usize = 2;

/// Threads that may have a start cursor of their own; more share.
const THREADS_WITH_CURSOR_MAX: usize = 64;

/// Directories that are remembered; the same holds for them.
const DIRECTORY_SLOTS: usize = 256;

/// What a stream leaves free in front of it when another has taken its place.
pub(crate) const STRETCH_LEN: u64 = 8 << 20;

/// What the files of a directory leave free then.
const DIRECTORY_STRETCH_LEN: u64 = 1 << 20;

/// Where an allocation would like to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Goal {
    /// Behind the last allocation of the same stream: a hash of whatever is written in sequence.
    Stream(u64),
    /// The same; and a new stream begins behind the last one of its directory that did.
    File {
        /// As above.
        stream: u64,
        /// The directory's name; not 0.
        directory: u64,
    },
    /// At or after an address.
    Near(Logical),
}

/// A stream's place, or a directory's. The two are read and written one by one: another's place for a moment harms nobody.
#[derive(Default)]
struct StreamHint {
    id: AtomicU64,
    /// Where its last allocation ended; 0 for a slot never used.
    at: AtomicU64,
    /// The turn of that.
    turn: AtomicU64,
}

impl StreamHint {
    fn of(slots: usize) -> Box<[StreamHint]> {
        (0..slots).map(|_| StreamHint::default()).collect()
    }

    fn find(stream_hints: &[StreamHint], kind: Kind, id: u64) -> &StreamHint {
        &stream_hints[(mix(id ^ kind as u64) >> 32) as usize & (stream_hints.len() - 1)]
    }

    fn next_address(&self, id: u64) -> Option<u64> {
        let at = self.at.load(Relaxed);
        (at != 0 && self.id.load(Relaxed) == id).then_some(at)
    }

    fn note(&self, id: u64, at: u64, turn: u64) {
        self.id.store(id, Relaxed);
        self.at.store(at, Relaxed);
        self.turn.store(turn, Relaxed);
    }
}

/// Where a start cursor begins, by kind; 0 for one never used.
#[derive(Default)]
pub(crate) struct StartCursor {
    /// Where the last tree blocks ended.
    blocks: [AtomicU64; 3],
    /// The turn of that.
    blocks_turn: [AtomicU64; 3],
    /// The lowest place for what is new: where a search that was disturbed ended.
    pub(crate) first: [AtomicU64; 3],
}

/// Where allocations begin to look.
pub(crate) struct AllocationHints {
    streams: Box<[StreamHint]>,
    directories: Box<[StreamHint]>,
    cursors: Box<[CachePadded<StartCursor>]>,
    /// The start cursor of each thread, by number; 0 until it was disturbed.
    cursor_of_thread: Box<[AtomicU8]>,
    /// Rises when what was allocated before is about to become durable: what is written into its rows from then on endangers it.
    turn: AtomicU64,
    /// By kind: where what was last put into a fresh row ended.
    fresh: [StreamHint; 3],
}

/// Where one allocation begins to look.
#[derive(Clone, Copy)]
pub(crate) struct SearchStart {
    pub(crate) at: u64,
    /// Bytes to leave when `at` itself is taken.
    pub(crate) skip: u64,
    /// Bytes that shall be free behind, if that many are left.
    pub(crate) rest_len: u64,
    pub(crate) kind_of_start: StartKind,
    /// What is in front of the place is of an earlier turn.
    pub(crate) is_old: bool,
}

/// What is at the place where a search begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StartKind {
    /// The last of the same stream, or of the same directory.
    Continuation,
    /// The last tree blocks, or what the caller named.
    Address,
    /// Nothing: groups are searched from there up.
    New,
}

/// Spreads the bits of a stream's name upwards.
fn mix(id: u64) -> u64 {
    id.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl AllocationHints {
    pub(crate) fn new() -> AllocationHints {
        AllocationHints {
            streams: StreamHint::of(STREAM_SLOTS),
            directories: StreamHint::of(DIRECTORY_SLOTS),
            cursors: (0..threads::spread() * CURSORS_PER_PROCESSOR).map(|_| CachePadded::default()).collect(),
            cursor_of_thread: (0..THREADS_WITH_CURSOR_MAX).map(|_| AtomicU8::new(0)).collect(),
            turn: AtomicU64::new(0),
            fresh: Default::default(),
        }
    }

    /// What was allocated so far is about to become durable.
    pub(crate) fn next_turn(&self) {
        self.turn.fetch_add(1, SeqCst);
    }

    /// The present turn. Something does depend on this one ([`Space::is_unnamed`](crate::Space::is_unnamed)): whoever begins to write a row that a flush does
    /// not wait for sees the turn that began before the flush.
    pub(crate) fn turn(&self) -> u64 {
        self.turn.load(SeqCst)
    }

    /// Something was put into a fresh row.
    pub(crate) fn began_row(&self, kind: Kind, at: u64) {
        self.fresh[kind as usize].note(0, at, self.turn());
    }

    pub(crate) fn cursor_number(&self) -> usize {
        usize::from(threads::own(&self.cursor_of_thread).load(Relaxed)) & (self.cursors.len() - 1)
    }

    pub(crate) fn cursor(&self) -> &StartCursor {
        &self.cursors[self.cursor_number()].0
    }

    /// This thread met another at its cursor: with a cursor of its own it meets others less often. A thread that has one
    /// already keeps it, and the cursor moves to where its next allocation ends.
    pub(crate) fn move_to_own_cursor(&self) {
        let (number, others) = (threads::number(), self.cursors.len() - 1);
        if self.cursor_number() == 0 && others > 0 {
            threads::own(&self.cursor_of_thread).store((1 + number % others) as u8, Relaxed);
        }
    }

    /// Where tree blocks begin.
    pub(crate) fn blocks(&self, kind: Kind) -> SearchStart {
        let of = |cursor: &StartCursor| {
            let [at, turn] = [&cursor.blocks, &cursor.blocks_turn].map(|of| of[kind as usize].load(Relaxed));
            (at != 0).then_some((at, turn))
        };
        let (at, turn) = of(self.cursor()).or_else(|| of(&self.cursors[0].0)).unwrap_or_default();
        let is_old = turn != self.turn();
        SearchStart { at, skip: 0, rest_len: 0, kind_of_start: StartKind::Address, is_old }
    }

    pub(crate) fn blocks_ended(&self, kind: Kind, at: u64) {
        self.cursor().blocks[kind as usize].store(at, Relaxed);
        self.cursor().blocks_turn[kind as usize].store(self.turn(), Relaxed);
    }

    pub(crate) fn search_start(&self, kind: Kind, goal: Goal) -> SearchStart {
        let (stream, directory) = match goal {
            Goal::Near(at) => {
                return SearchStart { at: at.0, skip: 0, rest_len: 0, kind_of_start: StartKind::Address, is_old: true };
            }
            Goal::Stream(stream) => (stream, None),
            Goal::File { stream, directory } => (stream, Some(directory)),
        };
        // Not the same for all, or streams that collided once would collide again.
        let now = self.turn();
        let continuation = |hint: &StreamHint, id, stretch_len| {
            Some(SearchStart {
                at: hint.next_address(id)?,
                skip: stretch_len * (1 + (mix(id) >> 62)),
                rest_len: stretch_len,
                kind_of_start: StartKind::Continuation,
                is_old: hint.turn.load(Relaxed) != now,
            })
        };
        let of_stream = continuation(StreamHint::find(&self.streams, kind, stream), stream, STRETCH_LEN);
        let of_directory = || {
            let directory = directory?;
            continuation(StreamHint::find(&self.directories, kind, directory), directory, DIRECTORY_STRETCH_LEN)
        };
        if let Some(found) = of_stream.or_else(of_directory) {
            return found;
        }
        let at = self.cursor().first[kind as usize].load(Relaxed);
        SearchStart { at, skip: 0, rest_len: 0, kind_of_start: StartKind::New, is_old: false }
    }

    /// Where what was last put into a fresh row ended, if that was in this turn.
    pub(crate) fn in_fresh_row(&self, kind: Kind) -> Option<u64> {
        let hint = &self.fresh[kind as usize];
        hint.next_address(0).filter(|_| hint.turn.load(Relaxed) == self.turn())
    }

    pub(crate) fn ended(&self, kind: Kind, goal: Goal, at: u64) {
        let (stream, directory) = match goal {
            Goal::Near(_) => return,
            Goal::Stream(stream) => (stream, None),
            Goal::File { stream, directory } => (stream, Some(directory)),
        };
        let hint = StreamHint::find(&self.streams, kind, stream);
        if let Some(directory) = directory
            && hint.next_address(stream).is_none()
        {
            StreamHint::find(&self.directories, kind, directory).note(directory, at, self.turn());
        }
        hint.note(stream, at, self.turn());
    }
}
