//! The threads that read and prepare files ahead, and what they share: queues of pieces and of directories to list, and
//! the budget of bytes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex};

use super::entry::UnpreparedPiece;
use super::walk::{DirHandle, FileRange, Listing};
use crate::MkfsError;

/// A slot in which one value will appear.
pub(crate) struct Slot<T> {
    value: Mutex<Option<T>>,
    filled: Condvar,
}

impl<T> Slot<T> {
    fn new() -> Slot<T> {
        Slot { value: Mutex::new(None), filled: Condvar::new() }
    }

    fn fill(&self, value: T) {
        *self.value.lock() = Some(value);
        self.filled.notify_one();
    }

    /// Waits for the value and takes it. The value must not have been taken before.
    pub fn take(&self) -> T {
        let mut value = self.value.lock();
        loop {
            match value.take() {
                Some(value) => return value,
                None => self.filled.wait(&mut value),
            }
        }
    }
}

/// The slot for the data of one piece; several parts if the piece turns out to have holes.
pub(crate) type Filled<P> = Slot<Result<Vec<P>, MkfsError>>;

/// How far the listing of one directory is.
enum ScanState {
    /// Not begun; where the directory is.
    Waiting(Place),
    /// A worker is at it.
    Running,
    /// Done.
    Done(Result<Listing, MkfsError>),
    /// The sequencer has it.
    Taken,
}

enum Place {
    Opened(Arc<DirHandle>),
    Below(Arc<DirHandle>, Vec<u8>),
}

/// The listing of one directory, made by the first thread that needs it.
pub(crate) struct Scan {
    state: Mutex<ScanState>,
    done: Condvar,
}

impl Scan {
    pub fn opened(dir: Arc<DirHandle>) -> Scan {
        Scan::new(Place::Opened(dir))
    }
    pub fn below(parent: Arc<DirHandle>, name: Vec<u8>) -> Scan {
        Scan::new(Place::Below(parent, name))
    }
    pub fn done(listing: Listing) -> Scan {
        Scan { state: Mutex::new(ScanState::Done(Ok(listing))), done: Condvar::new() }
    }

    fn new(place: Place) -> Scan {
        Scan { state: Mutex::new(ScanState::Waiting(place)), done: Condvar::new() }
    }

    /// Makes the listing unless it is already begun; returns the number of entries.
    fn run(&self) -> usize {
        let place = {
            let mut state = self.state.lock();
            match std::mem::replace(&mut *state, ScanState::Running) {
                ScanState::Waiting(place) => place,
                other => {
                    *state = other;
                    return 0;
                }
            }
        };
        let result = match place {
            Place::Opened(dir) => Listing::of(dir),
            Place::Below(parent, name) => parent.open_dir(&name).and_then(|dir| Listing::of(Arc::new(dir))),
        };
        let count = result.as_ref().map_or(0, |listing| listing.children.len());
        *self.state.lock() = ScanState::Done(result);
        self.done.notify_one();
        count
    }
}

/// The source of a piece.
pub(crate) enum Source {
    /// It must be read.
    Range(FileRange),
    /// It is here.
    Bytes(UnpreparedPiece),
}

impl Source {
    fn get(self) -> Result<Vec<UnpreparedPiece>, MkfsError> {
        match self {
            Source::Range(range) => range.read(),
            Source::Bytes(piece) => Ok(vec![piece]),
        }
    }
}

struct Queues<P> {
    pieces: VecDeque<(Source, Arc<Filled<P>>)>,
    /// The last one is the next one.
    scans: Vec<Arc<Scan>>,
    /// Entries in listings that are made but not taken.
    entries_ahead: usize,
    entries_ahead_max: usize,
    bytes_ahead: u64,
    closed: bool,
}

impl<P> Queues<P> {
    fn may_scan(&self) -> bool {
        !self.scans.is_empty() && self.entries_ahead < self.entries_ahead_max
    }
}

type Prepare<P> = Box<dyn Fn(UnpreparedPiece) -> Result<P, MkfsError> + Send + Sync>;

/// Work for the threads of a walk.
pub(crate) struct Pool<P> {
    queues: Mutex<Queues<P>>,
    work: Condvar,
    room: Condvar,
    bytes_ahead_max: u64,
    prepare: Prepare<P>,
}

impl<P> Pool<P> {
    fn new(bytes_ahead_max: u64, prepare: Prepare<P>) -> Pool<P> {
        let queues = Queues {
            pieces: VecDeque::new(),
            scans: Vec::new(),
            entries_ahead: 0,
            entries_ahead_max: 0,
            bytes_ahead: 0,
            closed: false,
        };
        Pool { queues: Mutex::new(queues), work: Condvar::new(), room: Condvar::new(), bytes_ahead_max, prepare }
    }

    /// What a worker does until the pool closes.
    pub fn work(&self) {
        loop {
            let mut queues = self.queues.lock();
            if queues.closed {
                return;
            }
            if let Some((source, slot)) = queues.pieces.pop_front() {
                drop(queues);
                let pieces = source.get().and_then(|pieces| pieces.into_iter().map(&self.prepare).collect());
                slot.fill(pieces);
            } else if queues.may_scan() {
                let scan = queues.scans.pop();
                drop(queues);
                let count = scan.map_or(0, |scan| scan.run());
                self.queues.lock().entries_ahead += count;
            } else {
                self.work.wait(&mut queues);
            }
        }
    }

    /// Hands out a piece; it is served after all that were queued before.
    pub fn queue(&self, source: Source) -> Arc<Filled<P>> {
        let slot = Arc::new(Slot::new());
        self.queues.lock().pieces.push_back((source, slot.clone()));
        self.work.notify_one();
        slot
    }

    /// Hands out directories, the one that is wanted first last; they come before all that were queued earlier.
    pub fn queue_scans(&self, scans: impl Iterator<Item = Arc<Scan>>, entries_ahead_max: usize) {
        let mut queues = self.queues.lock();
        queues.entries_ahead_max = entries_ahead_max;
        let before = queues.scans.len();
        queues.scans.extend(scans);
        if queues.scans.len() > before {
            drop(queues);
            self.work.notify_all();
        }
    }

    /// The listing of a directory: waits for the worker that is at it, or makes it here.
    pub fn take_listing(&self, scan: &Arc<Scan>) -> Result<Listing, MkfsError> {
        let made_here = scan.run();
        let mut state = scan.state.lock();
        while matches!(*state, ScanState::Running) {
            scan.done.wait(&mut state);
        }
        let taken = std::mem::replace(&mut *state, ScanState::Taken);
        drop(state);
        match taken {
            ScanState::Done(result) => {
                if let (Ok(listing), 0) = (&result, made_here) {
                    let mut queues = self.queues.lock();
                    queues.entries_ahead = queues.entries_ahead.saturating_sub(listing.children.len());
                    drop(queues);
                    self.work.notify_one();
                }
                result
            }
            _ => unreachable!("a directory is taken once, by the sequencer"),
        }
    }

    /// Waits until `cost` bytes of the budget are free; a larger cost counts as the whole budget. `None`: the pool has
    /// closed.
    pub fn take_room(&self, cost: u64) -> Option<u64> {
        let cost = cost.min(self.bytes_ahead_max);
        let mut queues = self.queues.lock();
        while !queues.closed && queues.bytes_ahead + cost > self.bytes_ahead_max {
            self.room.wait(&mut queues);
        }
        queues.bytes_ahead += cost;
        (!queues.closed).then_some(cost)
    }

    /// Gives room back.
    pub fn give_room_back(&self, cost: u64) {
        self.queues.lock().bytes_ahead -= cost;
        self.room.notify_one();
    }

    /// Tells all threads to end.
    pub fn close(&self) {
        self.queues.lock().closed = true;
        self.work.notify_all();
        self.room.notify_all();
    }
}

/// The running threads of a pool. Dropping it closes the pool and waits for them; the channel that they send into must be
/// closed before, or one of them might wait for room in it.
pub(crate) struct Workers<P> {
    pool: Arc<Pool<P>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl<P: Send + 'static> Workers<P> {
    /// Starts threads that serve a new pool, at least one.
    pub fn start(
        count: usize,
        bytes_ahead_max: u64,
        prepare: impl Fn(UnpreparedPiece) -> Result<P, MkfsError> + Send + Sync + 'static,
    ) -> Workers<P> {
        let pool = Arc::new(Pool::new(bytes_ahead_max, Box::new(prepare)));
        let mut workers = Workers { pool: pool.clone(), threads: Vec::new() };
        for _ in 0..count.max(1) {
            let pool = pool.clone();
            workers.add(move || pool.work());
        }
        workers
    }

    /// The pool that the threads work for.
    pub fn pool(&self) -> Arc<Pool<P>> {
        self.pool.clone()
    }

    /// Starts the thread that gives them work; it ends when the pool or its channel closes.
    pub fn add(&mut self, run: impl FnOnce() + Send + 'static) {
        self.threads.push(thread::spawn(run));
    }
}

impl<P> Drop for Workers<P> {
    fn drop(&mut self) {
        self.pool.close();
        for thread in self.threads.drain(..) {
            // A thread that panicked has reported it on standard error; the receiver has seen the closed channel.
            let _ended = thread.join();
        }
    }
}
