//! Requests through io_uring: a reply and the next request in one system call.
//!
//! The kernel has one queue per processor and puts a request into a slot of the queue of the processor it came from. Each slot has a
//! thread of its own, with a ring of its own: a slot belongs to the thread that registered it, so what the kernel put into the slot of a
//! thread that is stuck would be stuck as well. Normal path: (1)
//! [`connect`] makes the first ring of each queue before it announces them to the kernel, which cannot be taken back;
//! (2) [`serve`](Transport::serve) starts the threads, which register their slots; when every queue has one, the kernel begins to use
//! them; (3) a thread waits, handles, submits the reply and waits for the next request in the same call; (4) long requests go to
//! [`Helpers`], which return the slot and raise the thread's event; (5) a queue whose threads all have a request gets another one, at once if
//! that one may wait, up to a few, and else when `stalled` sees that it is stuck, up to `KernelQueue::max`; (6) when the file system is unmounted
//! every slot comes back with ENOTCONN, and a thread without slots ends.
//!
//! The kernel takes the slot that came back last, so the further threads of a queue sleep as long as one suffices.
//!
//! FORGET and INTERRUPT still come through `/dev/fuse`, and notifications go there: `DevFuse` serves it beside the
//! rings.
//!
//! Invariants: every slot is in one place: with the kernel, a queue thread, a helper, or on the way back in `Done`.
//! Every request is answered, also if the handler panics (EIO). Locks: `Done::slots`, the helpers' queue and `Pool::unjoined`, all
//! leaves.
//!
//! A request that waits for others keeps its slot meanwhile, and those others come through slots, perhaps of the same queue. So it is only
//! begun when its queue has another one. If the queue is at its limit, the request fails with EBUSY and holds nothing.
//!
//! Trap: a kernel that was promised io_uring holds all requests back until every queue has a slot, including those of
//! processors that are switched off. These have one thread together, which answers nothing itself.
//!
//! Each thread is bound to the processor whose queue it serves, if there is one for each processor that we may use: the caller waits
//! there, and waking a thread elsewhere costs several times what answering does (docs/decisions/0007). Threads that a bound thread
//! starts call `affinity::unbind` first.

mod halt_poll;
mod helpers;
mod ring;

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

use oleo_device::affinity;
use oleo_lock::{Mutex, rank};
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

pub use self::halt_poll::HaltPolling;

use self::halt_poll::HaltPoll;
use self::helpers::{Done, Helpers};
use self::ring::{Back, ReqHeader, Ring, Slot};
use super::stalled::{Crew, Look, Relief, Watch, Watching};
use super::{BlockingClass, DevFuse, Handler, IO_LEN_MAX, Notifier, Outcome, Transport, blocking_class};
use crate::options::Uring;
use crate::wire::abi;
use crate::wire::{Reply, Request};

/// The slots of all queues together as a rule, if that gives each queue a sensible number. Each may come to hold [`IO_LEN_MAX`]
/// bytes.
const SLOTS: usize = 32;
/// Slots of one queue, at least and at most.
const SLOTS_PER_QUEUE: (usize, usize) = (2, 8);
/// Slots that a queue may get beside these for requests that are stuck: in all queues together, and in one at least. Requests that find
/// none wait in the kernel.
const STUCK_SLOTS: usize = 512;
const STUCK_SLOTS_PER_QUEUE_MIN: usize = 16;
/// Requests with a payload up to this are copied out of it, so that the reply can be written straight into it.
const COPIED_MAX: usize = 4096;
/// The largest reply to requests with a larger payload than that (ioctls: 16 KiB in either direction).
const SMALL_REPLY_MAX: usize = 64 * 1024;
/// Reads of so many bytes go to helper threads (measured: docs/decisions/0007-fuse-io-uring.md).
const LARGE_READ_MIN: u32 = 128 << 10;
/// Threads at `/dev/fuse` beside the rings: one that forgets, another when that takes long.
const FORGET_THREADS: usize = 2;
/// The list of possible processors, as in `0-3,8`. Each has a queue.
const POSSIBLE_CPUS: &str = "/sys/devices/system/cpu/possible";
/// Those that are switched on.
const ONLINE_CPUS: &str = "/sys/devices/system/cpu/online";

/// Root switches it on with this file; kernels before 6.14 do not have it.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Agrees with the kernel; the flag says whether io_uring is offered.
pub type AgreeOn<'a> = &'a dyn Fn(&abi::InitIn, bool) -> Result<abi::InitOut, i32>;

/// Agrees with the kernel on a mounted channel, and so chooses the transport. At most `threads_max` threads will handle
/// long requests.
///
/// # Errors
/// The kernel has another version of the protocol, or does not offer io_uring although it is required; the connection
/// broke.
pub fn connect(
    fd: File,
    threads_max: usize,
    (wish, polling): (Uring, HaltPolling),
    agree: AgreeOn<'_>,
) -> io::Result<Arc<dyn Transport>> {
    let mut dev = DevFuse::new(fd, threads_max);
    // Made before anything is promised. Containers often forbid io_uring.
    let rings = match wish {
        Uring::Off => None,
        Uring::On => Some(Rings::new(dev.channel())?),
        Uring::Auto => Rings::new(dev.channel()).ok(),
    };
    let (used, refused) = (Cell::new(false), Cell::new(false));
    let agreed = dev.handshake(&|init| {
        let offered = u64::from(init.flags2) << 32 & abi::InitFlags::OVER_IO_URING.bits() != 0;
        refused.set(wish == Uring::On && !offered);
        if refused.get() {
            return Err(Errno::OPNOTSUPP.raw_os_error());
        }
        used.set(offered && rings.is_some());
        agree(init, used.get())
    });
    if refused.get() {
        return Err(io::Error::new(io::ErrorKind::Unsupported, format!("FUSE over io_uring is off: see {SWITCH}")));
    }
    agreed?;
    match rings {
        Some(rings) if used.get() => {
            dev.limit_threads(FORGET_THREADS);
            Ok(Arc::new(UringFuse { dev, rings: Mutex::new(Some(rings)), threads_max, polling }))
        }
        // Rings can be had, and were not offered.
        Some(_) if std::fs::read_to_string(SWITCH).is_ok_and(|state| state.trim() == "N") => {
            dev.note_switch(Path::new(SWITCH));
            Ok(Arc::new(dev))
        }
        _ => Ok(Arc::new(dev)),
    }
}

/// A connection whose requests come through io_uring.
struct UringFuse {
    /// For what does not come that way.
    dev: DevFuse,
    /// Until they are used.
    rings: Mutex<rank::FuseRings, Option<Rings>>,
    threads_max: usize,
    polling: HaltPolling,
}

/// The rings of the first threads, and all queues.
struct Rings {
    queues: Vec<KernelQueue>,
    /// For the first queues of `queues`, one for each.
    own: Vec<SlotRing>,
    /// For the other queues, those of processors that are switched off.
    spare: Option<SlotRing>,
}

/// A ring, and its slots, which are not registered yet.
struct SlotRing {
    ring: Ring,
    slots: Vec<Slot>,
    done: Arc<Done>,
}

/// One of the kernel's queues; on lines of memory of its own, since each request is counted in it.
#[repr(align(128))]
struct KernelQueue {
    number: u16,
    /// The processor that its threads are bound to.
    processor: Option<usize>,
    crew: Crew,
    /// Threads there are, and as many slots.
    threads: AtomicUsize,
    /// Threads that are started before any of them is stuck.
    depth: usize,
    /// Threads in all.
    max: usize,
}

impl KernelQueue {
    /// Returns the state that the watching thread compares. A processor that is switched off has no threads and no callers.
    fn look(&self) -> Look {
        let look = self.crew.look();
        Look { free: look.free || self.threads.load(Ordering::Acquire) == 0, ..look }
    }
}

impl SlotRing {
    /// With a slot for each of some queues.
    fn new(channel: &Arc<File>, queues: &[u16]) -> io::Result<SlotRing> {
        let done = Arc::new(Done::new()?);
        let ring = Ring::new(channel.clone(), done.event(), queues.len())?;
        let slots = queues.iter().enumerate().map(|(at, queue)| Slot::new(at, *queue, IO_LEN_MAX)).collect();
        Ok(SlotRing { ring, slots, done })
    }
}

impl Rings {
    fn new(channel: &Arc<File>) -> io::Result<Rings> {
        let possible = ranges(&std::fs::read_to_string(POSSIBLE_CPUS)?)
            .ok_or_else(|| io::Error::other(format!("{POSSIBLE_CPUS} cannot be parsed")))?
            .len();
        // If that is not known, each may be.
        let online = std::fs::read_to_string(ONLINE_CPUS).ok().and_then(|list| ranges(&list));
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        let Shares { own, spare } = shares(possible, threads, &affinity::processors(), online.as_deref());
        let (min, max) = SLOTS_PER_QUEUE;
        let depth = (SLOTS / possible).clamp(min, max);
        let max = depth + (STUCK_SLOTS / possible).max(STUCK_SLOTS_PER_QUEUE_MIN);
        let queue = |number: u16, processor: Option<usize>, threads: usize| {
            let (crew, threads) = (Crew::default(), AtomicUsize::new(threads));
            KernelQueue { number, processor, crew, threads, depth, max }
        };
        let mut queues: Vec<KernelQueue> =
            own.iter().map(|(number, processor)| queue(*number, *processor, 1)).collect();
        queues.extend(spare.iter().map(|number| queue(*number, None, 0)));
        let own = own.iter().map(|(number, _)| SlotRing::new(channel, &[*number])).collect::<io::Result<_>>()?;
        let spare = (!spare.is_empty()).then(|| SlotRing::new(channel, &spare)).transpose()?;
        Ok(Rings { queues, own, spare })
    }
}

/// Who serves which queues.
#[derive(Debug, PartialEq, Eq)]
struct Shares {
    /// Queues that have threads of their own, and the processor that these are bound to.
    own: Vec<(u16, Option<usize>)>,
    /// Those of processors that are switched off.
    spare: Vec<u16>,
}

/// Shares the queues out. With a thread for each processor that we may use, the threads are bound; with fewer threads (a limit of processor
/// time, for example) none is. There are fewer processors than sixteen bits count, which is what the protocol has.
fn shares(queues: usize, threads: usize, processors: &[usize], online: Option<&[usize]>) -> Shares {
    let threads = threads.clamp(1, queues);
    let bound = processors.len() == threads && processors.iter().all(|processor| *processor < queues);
    let own_processors: &[usize] = if bound { processors } else { &[] };
    let mut shares = Shares { own: Vec::new(), spare: Vec::new() };
    for queue in 0..queues {
        let is_ours = own_processors.contains(&queue);
        if is_ours || online.is_none_or(|online| online.contains(&queue)) {
            shares.own.push((queue as u16, is_ours.then_some(queue)));
        } else {
            shares.spare.push(queue as u16);
        }
    }
    shares
}

/// The numbers that a list of ranges names.
fn ranges(list: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for range in list.trim().split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (from, to) = (from.parse::<usize>().ok()?, to.parse::<usize>().ok()?);
        // As many as there may be queues.
        if to < from || to > usize::from(u16::MAX) {
            return None;
        }
        numbers.extend(from..=to);
    }
    Some(numbers)
}

/// State that all threads of a connection share.
struct Pool {
    channel: Arc<File>,
    handler: Arc<dyn Handler>,
    helpers: Arc<Helpers>,
    queues: Vec<KernelQueue>,
    watch: Watch,
    /// Whether processors are kept from being halted, if threads are bound to them.
    polls: bool,
    /// There will be no more requests.
    over: AtomicBool,
    /// The rings could not all be started.
    stop: AtomicBool,
    /// Threads that were not joined yet.
    unjoined: Mutex<rank::FusePool, Vec<JoinHandle<io::Result<()>>>>,
}

impl Pool {
    /// The place of a queue in the list.
    fn number_of(&self, queue: u16) -> Option<usize> {
        self.queues.iter().position(|known| known.number == queue)
    }

    /// Starts a thread; `which`: of a queue, or of those of processors that are switched off.
    fn start(
        self: &Arc<Self>,
        which: Option<usize>,
        with: SlotRing,
        ready: Option<mpsc::Sender<io::Result<()>>>,
    ) -> io::Result<()> {
        let SlotRing { ring, slots, done } = with;
        let (left, pool) = (slots.len(), self.clone());
        let first = ready.is_some();
        let thread = QueueThread { pool, which, first, ring, slots, done, left, scratch: Scratch::new() };
        let name = which.map_or("fuse-ring-x".to_owned(), |at| format!("fuse-ring-{}", self.queues[at].number));
        let thread = std::thread::Builder::new().name(name).spawn(move || thread.run(ready))?;
        self.unjoined.lock().push(thread);
        Ok(())
    }

    /// Starts another thread of a queue, unless there are so many.
    fn start_another(self: &Arc<Self>, at: usize, most: usize) -> bool {
        let queue = &self.queues[at];
        let more = |threads: usize| (threads < most && !self.over.load(Ordering::Acquire)).then_some(threads + 1);
        if queue.threads.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_err() {
            return false;
        }
        let started = SlotRing::new(&self.channel, &[queue.number]).and_then(|with| self.start(Some(at), with, None));
        if started.is_err() {
            queue.threads.fetch_sub(1, Ordering::AcqRel);
        }
        started.is_ok()
    }

    /// Joins all threads, and those that they have started; the first error.
    fn join_all(&self) -> io::Result<()> {
        let mut result = Ok(());
        loop {
            let Some(thread) = self.unjoined.lock().pop() else { return result };
            let ended =
                thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread that answers requests panicked")));
            result = result.and(ended);
        }
    }
}

impl Relief for Pool {
    fn looks(&self) -> Vec<Look> {
        self.queues.iter().map(KernelQueue::look).chain([self.helpers.look()]).collect()
    }

    fn relieve(self: Arc<Self>, crew: usize) {
        match self.queues.get(crew) {
            Some(queue) => drop(self.start_another(crew, queue.max)),
            None => self.helpers.relieve(),
        }
    }
}

impl Transport for UringFuse {
    fn serve(&self, handler: Arc<dyn Handler>) -> io::Result<()> {
        let Some(Rings { queues, own, spare }) = self.rings.lock().take() else {
            return Err(io::Error::other("the rings of a connection serve once"));
        };
        let polls = self.polling.wanted();
        let (pool, watching) = Watching::start(|watch| {
            Arc::new(Pool {
                channel: self.dev.channel().clone(),
                handler: handler.clone(),
                helpers: Arc::new(Helpers::new(self.threads_max, handler.clone(), watch.clone())),
                queues,
                watch,
                polls,
                over: AtomicBool::new(false),
                stop: AtomicBool::new(false),
                unjoined: Mutex::default(),
            })
        })?;
        let events: Vec<Arc<Done>> = own.iter().chain(&spare).map(|with| with.done.clone()).collect();
        let (ready, readies) = mpsc::channel();
        let mut started = Ok(());
        let whose = (0..own.len()).map(Some);
        for (which, with) in whose.zip(own).chain(spare.map(|with| (None, with))) {
            started = started.and(pool.start(which, with, Some(ready.clone())));
        }
        drop(ready);
        for one in readies {
            started = started.and(one);
        }
        // From here on the kernel uses the rings, and `/dev/fuse` for the rest.
        let mut result = match started {
            Ok(()) => self.dev.serve(handler),
            Err(e) => {
                pool.over.store(true, Ordering::Release);
                pool.stop.store(true, Ordering::Release);
                events.iter().for_each(|done| done.wake());
                Err(e)
            }
        };
        result = result.and(pool.join_all());
        // No thread starts others any more.
        drop(watching);
        result = result.and(pool.join_all());
        pool.helpers.close();
        result
    }

    fn notifier(&self) -> Arc<dyn Notifier> {
        self.dev.notifier()
    }
}

/// One thread, its ring and what it needs to answer.
struct QueueThread {
    pool: Arc<Pool>,
    /// Its queue; `None`: several, of processors that are switched off.
    which: Option<usize>,
    /// It was there from the beginning.
    first: bool,
    ring: Ring,
    /// To be registered.
    slots: Vec<Slot>,
    done: Arc<Done>,
    /// Slots that have not ended.
    left: usize,
    scratch: Scratch,
}

impl QueueThread {
    fn run(mut self, ready: Option<mpsc::Sender<io::Result<()>>>) -> io::Result<()> {
        let mut halt_poll = self.bind();
        let mut back = Vec::new();
        if let Some(queue) = self.queue() {
            queue.crew.waits();
        }
        let begun = self.begin(&mut back);
        let failed = begun.is_err();
        if failed && let Some(queue) = self.queue() {
            // It waits for no request. It still counts as a thread, so that failures cannot repeat without a bound.
            queue.crew.takes();
        }
        // The starter of the first threads waits for this. Without the others requests wait.
        if let Some(ready) = ready {
            let _ = ready.send(begun);
        }
        let mut strange = Ok(());
        while !failed && self.left > 0 && !self.pool.stop.load(Ordering::Acquire) {
            for one in back.drain(..) {
                match one {
                    Back::Request(slot) => self.take(slot)?,
                    Back::Ended(slot, errno) => {
                        drop(slot);
                        self.left -= 1;
                        self.pool.over.store(true, Ordering::Release);
                        if !is_end(errno) {
                            strange = Err(io::Error::from_raw_os_error(errno));
                        }
                    }
                }
            }
            if self.left > 0 {
                self.ring.wait(&mut back)?;
                if let Some(halt_poll) = &mut halt_poll {
                    halt_poll.came();
                }
                for slot in self.done.take() {
                    self.commit(slot)?;
                }
            }
        }
        strange
    }

    fn queue(&self) -> Option<&KernelQueue> {
        self.which.map(|at| &self.pool.queues[at])
    }

    /// Runs where it is to run. The poller of a processor belongs to its first thread.
    fn bind(&self) -> Option<HaltPoll> {
        let Some(processor) = self.queue().and_then(|queue| queue.processor) else {
            affinity::unbind();
            return None;
        };
        // One that is switched off meanwhile: then it runs anywhere.
        let bound = affinity::bind(processor).is_ok();
        // Without a poller it is slower, and nothing else.
        if bound && self.first && self.pool.polls { HaltPoll::start(processor).ok() } else { None }
    }

    /// Registers all slots; the kernel rejects an invalid one immediately.
    fn begin(&mut self, back: &mut Vec<Back>) -> io::Result<()> {
        self.ring.enable()?;
        for slot in std::mem::take(&mut self.slots) {
            self.ring.register(slot)?;
        }
        self.ring.submit()?;
        self.ring.collect(back)?;
        let refused = back.iter().find_map(|one| if let Back::Ended(_, errno) = one { Some(*errno) } else { None });
        refused.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }

    /// Answers a request, or has a helper do so.
    fn take(&mut self, mut slot: Slot) -> io::Result<()> {
        let pool = &self.pool;
        let head = head_of(&mut slot);
        let waits = pool.handler.waits_for_another(&head, &slot.parts().0.op_in);
        let class = blocking_class(head.opcode);
        let Some(at) = self.which.or_else(|| pool.number_of(slot.queue())) else {
            return Err(io::Error::other("a request from a queue that is not there"));
        };
        let (queue, is_own) = (&pool.queues[at], self.which.is_some());
        let waiting = if is_own { queue.crew.takes() } else { queue.crew.waiting() };
        let is_crowded = queue.threads.load(Ordering::Acquire) > waiting + 1;
        if waiting == 0 {
            let most = match class {
                // The other request may come through this queue, too. And a processor that was switched on gets a thread.
                _ if waits || !is_own => queue.max,
                BlockingClass::Quick => 0,
                BlockingClass::MayWait | BlockingClass::Waits => queue.depth,
            };
            if !pool.start_another(at, most) {
                if waits {
                    put_reply(slot.parts().0, (Outcome::Failed(Errno::BUSY.raw_os_error()), 0));
                    return self.commit(slot);
                }
                pool.watch.wake();
            }
        }
        let is_here = match class {
            _ if !is_own => false,
            _ if waits => true,
            BlockingClass::Quick => true,
            BlockingClass::MayWait => !is_crowded && !is_large_read(&head, &mut slot),
            BlockingClass::Waits => false,
        };
        if is_here {
            answer(&*pool.handler, &mut slot, &mut self.scratch);
            self.commit(slot)
        } else {
            pool.helpers.give(slot, &self.done);
            Ok(())
        }
    }

    /// Gives a slot with a reply to the kernel, at the next wait, for the next request.
    fn commit(&mut self, slot: Slot) -> io::Result<()> {
        if let Some(queue) = self.queue() {
            queue.crew.answered();
            queue.crew.waits();
        }
        self.ring.commit(slot)
    }
}

/// Whether it is better read on another processor, while the caller copies what came before.
fn is_large_read(head: &abi::InHeader, slot: &mut Slot) -> bool {
    head.opcode == abi::opcode::READ
        && abi::ReadIn::read_from_prefix(&slot.parts().0.op_in).is_ok_and(|(args, _)| args.size >= LARGE_READ_MIN)
}

/// The errnos after the file system is unmounted, or the connection aborted.
fn is_end(errno: i32) -> bool {
    [Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED, Errno::NODEV].iter().any(|e| e.raw_os_error() == errno)
}

fn head_of(slot: &mut Slot) -> abi::InHeader {
    // The area is longer than the header: see the sizes of both types.
    abi::InHeader::read_from_prefix(&slot.parts().0.in_out).map_or_else(|_| abi::InHeader::default(), |(head, _)| head)
}

/// What one thread needs besides a slot.
struct Scratch {
    request: Box<[u8]>,
    reply: Box<[u8]>,
}

impl Scratch {
    fn new() -> Scratch {
        Scratch { request: vec![0; COPIED_MAX].into(), reply: vec![0; SMALL_REPLY_MAX].into() }
    }
}

/// Answers the request in a slot; the reply replaces it. The payload area serves both: small requests are copied out of
/// it, small replies to large requests are copied into it.
fn answer(handler: &dyn Handler, slot: &mut Slot, scratch: &mut Scratch) {
    let head = head_of(slot);
    let (header, payload) = slot.parts();
    let (op_in, size) = (header.op_in, (header.ent.payload_sz as usize).min(payload.len()));
    let args_len = (head.len as usize).saturating_sub(size_of::<abi::InHeader>() + size).min(op_in.len());
    let args = &op_in[..args_len];
    let (outcome, len) = if let Some(copy) = scratch.request.get_mut(..size) {
        copy.copy_from_slice(&payload[..size]);
        handle(handler, head, args, copy, payload)
    } else {
        let (outcome, len) = handle(handler, head, args, &payload[..size], &mut scratch.reply);
        payload[..len].copy_from_slice(&scratch.reply[..len]);
        (outcome, len)
    };
    put_reply(header, (outcome, len));
}

/// The header of a reply takes the place of the request's.
fn put_reply(header: &mut ReqHeader, (outcome, len): (Outcome, usize)) {
    let unique = abi::InHeader::read_from_prefix(&header.in_out).map_or(0, |(head, _)| head.unique);
    let (len, error) = match outcome {
        Outcome::Done => (len, 0),
        // Nothing that has no reply comes this way; the slot must go back all the same.
        Outcome::Silent => (0, 0),
        Outcome::Failed(errno) => (0, -errno),
    };
    let reply = abi::OutHeader { len: (size_of::<abi::OutHeader>() + len) as u32, error, unique };
    header.in_out[..size_of::<abi::OutHeader>()].copy_from_slice(reply.as_bytes());
    header.ent.flags = 0;
    header.ent.payload_sz = len as u32;
}

fn handle(handler: &dyn Handler, head: abi::InHeader, args: &[u8], rest: &[u8], out: &mut [u8]) -> (Outcome, usize) {
    let mut reply = Reply::new(out);
    let failed = Outcome::Failed(Errno::IO.raw_os_error());
    let outcome = match Request::parse(head, args, rest) {
        // A request that is never answered blocks its caller, and the slot's queue, for ever. The panic has been
        // reported on standard error.
        Ok(request) => catch_unwind(AssertUnwindSafe(|| handler.handle(&request, &mut reply))).unwrap_or(failed),
        Err(_) => failed,
    };
    (outcome, reply.len())
}

#[cfg(test)]
mod tests;
