//! Requests through io_uring: a reply and the next request in one system call.
//!
//! The kernel has one queue per processor and puts a request into that of the processor it came from. Normal path: (1)
//! [`connect`] makes the rings before it announces them to the kernel: from then on there is no way back;
//! (2) [`serve`](Transport::serve) starts as many threads as there are processors available, which register the slots
//! of their queues; when every queue has one, the kernel begins to use them; (3) a thread waits, handles, submits the
//! reply and waits for the next request in the same call; (4) long requests go to [`Helpers`], which return the slot
//! and raise the thread's event; (5) when the file system is unmounted every slot comes back with ENOTCONN, and a
//! thread without slots ends.
//!
//! FORGET and INTERRUPT still come through `/dev/fuse`, and notifications go there: `DevFuse` serves it beside the
//! rings.
//!
//! Invariants: every slot is in one place: with the kernel, a queue thread, a helper, or on the way back in `Done`.
//! Every request is answered, also if the handler panics (EIO). Locks: `Done::slots` and the helpers' queue, both
//! leaves.
//!
//! A request that waits for others keeps its slot meanwhile, and those others come through slots, perhaps of the same queue. So its queue
//! gets another slot when it begins to wait, up to a limit; who comes after that is told EBUSY and holds nothing.
//!
//! Trap: a kernel that was promised io_uring holds all requests back until every queue has a slot, including those of
//! processors that are switched off. So a thread serves several queues if there are more of them than processors
//! available.
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
use std::sync::atomic::{AtomicBool, Ordering};
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
use super::{BlockingClass, DevFuse, Handler, IO_LEN_MAX, Notifier, Outcome, Transport, blocking_class};
use crate::options::Uring;
use crate::wire::abi;
use crate::wire::{Reply, Request};

/// The slots of all queues together, if that gives each queue a sensible number. Each may come to hold [`IO_LEN_MAX`]
/// bytes.
const SLOTS: usize = 32;
/// Slots of one queue, at least and at most. Requests that find none wait in the kernel.
const SLOTS_PER_QUEUE: (usize, usize) = (2, 8);
/// Slots that a queue may get beside these for requests that wait for others: in all queues together, and in one at least.
const WAITING_SLOTS: usize = 512;
const WAITING_SLOTS_PER_QUEUE_MIN: usize = 16;
/// Requests with a payload up to this are copied out of it, so that the reply can be written straight into it.
const COPIED_MAX: usize = 4096;
/// The largest reply to requests with a larger payload than that (ioctls: 16 KiB in either direction).
const SMALL_REPLY_MAX: usize = 64 * 1024;
/// Reads of so many bytes go to helper threads (measured: docs/decisions/0007-fuse-io-uring.md).
const LARGE_READ_MIN: u32 = 128 << 10;
/// Threads at `/dev/fuse` beside the rings: one that forgets, another when that takes long.
const FORGET_THREADS: usize = 2;
/// How many processors there may ever be, which is how many queues the kernel has: ranges, as in `0-3,8`.
const POSSIBLE_CPUS: &str = "/sys/devices/system/cpu/possible";

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

/// The rings, each with the slots of its queues, which are not registered yet.
struct Rings {
    plans: Vec<RingPlan>,
}

struct RingPlan {
    /// Where its thread is to run, if anywhere in particular.
    processor: Option<usize>,
    ring: Ring,
    slots: Vec<Slot>,
    room: Room,
    done: Arc<Done>,
}

/// The slots of the queues that one thread serves.
struct Room {
    /// Of one queue, that are not held by requests which wait for others.
    depth: usize,
    /// Of one queue, in all.
    max: usize,
    queues: Vec<QueueSlots>,
}

struct QueueSlots {
    queue: u16,
    all: usize,
    /// Held by requests that wait for others.
    waiting: usize,
}

/// Whether a request may wait for others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// The queue has slots enough.
    Enough,
    /// If the queue gets another slot.
    WithAnother,
    /// The queue has as many as it may have.
    None,
}

impl Room {
    fn new(queues: &[u16], depth: usize, max: usize) -> Room {
        let queues = queues.iter().map(|queue| QueueSlots { queue: *queue, all: depth, waiting: 0 }).collect();
        Room { depth, max, queues }
    }

    fn of(&mut self, queue: u16) -> Option<&mut QueueSlots> {
        self.queues.iter_mut().find(|slots| slots.queue == queue)
    }

    /// A request in a slot of the queue is about to wait.
    fn begin(&mut self, queue: u16) -> Place {
        let (depth, max) = (self.depth, self.max);
        let Some(slots) = self.of(queue) else { return Place::None };
        // Its own counts as free still.
        let enough = slots.all - slots.waiting > depth;
        if !enough && slots.all == max {
            return Place::None;
        }
        slots.all += usize::from(!enough);
        slots.waiting += 1;
        if enough { Place::Enough } else { Place::WithAnother }
    }

    /// It has been answered.
    fn end(&mut self, queue: u16) {
        if let Some(slots) = self.of(queue) {
            slots.waiting -= 1;
        }
    }
}

impl Rings {
    fn new(channel: &Arc<File>) -> io::Result<Rings> {
        let queues = count_ranges(&std::fs::read_to_string(POSSIBLE_CPUS)?)
            .ok_or_else(|| io::Error::other(format!("{POSSIBLE_CPUS} cannot be parsed")))?;
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        let (min, max) = SLOTS_PER_QUEUE;
        let depth = (SLOTS / queues).clamp(min, max);
        let most = depth + (WAITING_SLOTS / queues).max(WAITING_SLOTS_PER_QUEUE_MIN);
        let rings = shares(queues, threads, &affinity::processors()).into_iter().map(|Share { processor, queues }| {
            let owners = queues.iter().flat_map(|queue| std::iter::repeat_n(*queue, depth));
            let slots: Vec<Slot> = owners.enumerate().map(|(i, queue)| Slot::new(i, queue, IO_LEN_MAX)).collect();
            let done = Arc::new(Done::new()?);
            let ring = Ring::new(channel.clone(), done.event(), queues.len() * most)?;
            Ok(RingPlan { processor, ring, slots, room: Room::new(&queues, depth, most), done })
        });
        Ok(Rings { plans: rings.collect::<io::Result<_>>()? })
    }
}

/// What one thread serves.
#[derive(Debug, PartialEq, Eq)]
struct Share {
    /// The processor that it is bound to.
    processor: Option<usize>,
    queues: Vec<u16>,
}

/// Who serves which queues: with a thread for each processor that we may use, each its own and some of those whose processors are not
/// ours. With fewer threads (a limit of processor time, for example) none is bound. There are fewer processors than sixteen bits count,
/// which is what the protocol has.
fn shares(queues: usize, threads: usize, processors: &[usize]) -> Vec<Share> {
    let threads = threads.clamp(1, queues);
    let bound = processors.len() == threads && processors.iter().all(|processor| *processor < queues);
    let own: &[usize] = if bound { processors } else { &[] };
    let mut shares: Vec<Share> = match bound {
        true => own.iter().map(|n| Share { processor: Some(*n), queues: vec![*n as u16] }).collect(),
        false => (0..threads).map(|_| Share { processor: None, queues: Vec::new() }).collect(),
    };
    for (at, queue) in (0..queues).filter(|queue| !own.contains(queue)).enumerate() {
        shares[at % threads].queues.push(queue as u16);
    }
    shares
}

/// How many numbers a list of ranges names.
fn count_ranges(list: &str) -> Option<usize> {
    list.trim().split(',').try_fold(0, |count, range| {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (from, to) = (from.parse::<usize>().ok()?, to.parse::<usize>().ok()?);
        Some(count + (to.checked_sub(from)? + 1))
    })
}

impl Transport for UringFuse {
    fn serve(&self, handler: Arc<dyn Handler>) -> io::Result<()> {
        let Some(Rings { plans }) = self.rings.lock().take() else {
            return Err(io::Error::other("the rings of a connection serve once"));
        };
        let helpers = Arc::new(Helpers::new(self.threads_max, handler.clone()));
        // A thread for each: their number is that of slots.
        let waiters_max = plans.iter().map(|plan| plan.room.queues.len() * plan.room.max).sum();
        let waiters = Arc::new(Helpers::new(waiters_max, handler.clone()));
        let stop = Arc::new(AtomicBool::new(false));
        let events: Vec<Arc<Done>> = plans.iter().map(|plan| plan.done.clone()).collect();
        let stop_all = || {
            stop.store(true, Ordering::Release);
            events.iter().for_each(|done| done.wake());
        };
        let polls = self.polling.wanted();
        let (ready, readies) = mpsc::channel();
        let mut threads: Vec<JoinHandle<io::Result<()>>> = Vec::with_capacity(plans.len());
        let mut started = Ok(());
        for plan in plans {
            let queue = Queue {
                left: plan.slots.len(),
                plan,
                handler: handler.clone(),
                helpers: helpers.clone(),
                waiters: waiters.clone(),
                stop: stop.clone(),
                scratch: Scratch::new(),
                polls,
            };
            let ready = ready.clone();
            let name = format!("fuse-ring-{}", threads.len());
            match std::thread::Builder::new().name(name).spawn(move || queue.run(&ready)) {
                Ok(thread) => threads.push(thread),
                Err(e) => started = started.and(Err(e)),
            }
        }
        drop(ready);
        for one in readies.iter().take(threads.len()) {
            started = started.and(one);
        }
        // From here on the kernel uses the rings, and `/dev/fuse` for the rest.
        let mut result = match started {
            Ok(()) => self.dev.serve(handler),
            Err(e) => {
                stop_all();
                Err(e)
            }
        };
        for thread in threads {
            let ended =
                thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread that answers requests panicked")));
            result = result.and(ended);
        }
        helpers.close();
        waiters.close();
        result
    }

    fn notifier(&self) -> Arc<dyn Notifier> {
        self.dev.notifier()
    }
}

/// One thread's ring and what it needs to answer.
struct Queue {
    plan: RingPlan,
    /// Slots that have not ended.
    left: usize,
    handler: Arc<dyn Handler>,
    helpers: Arc<Helpers>,
    /// For requests that wait for others, which may need a helper.
    waiters: Arc<Helpers>,
    /// Set when the rings could not all be started.
    stop: Arc<AtomicBool>,
    scratch: Scratch,
    /// Whether its processor is kept from being halted, if it is bound to one.
    polls: bool,
}

impl Queue {
    fn run(mut self, ready: &mpsc::Sender<io::Result<()>>) -> io::Result<()> {
        let mut halt_poll = None;
        if let Some(processor) = self.plan.processor {
            // One that is switched off meanwhile: then it runs anywhere.
            let bound = affinity::bind(processor).is_ok();
            // Without a poller it is slower, and nothing else.
            halt_poll = if bound && self.polls { HaltPoll::start(processor).ok() } else { None };
        }
        let mut back = Vec::new();
        let begun = self.begin(&mut back);
        let failed = begun.is_err();
        // The starter of the threads waits for this.
        let _ = ready.send(begun);
        let mut strange = Ok(());
        while !failed && self.left > 0 && !self.stop.load(Ordering::Acquire) {
            let mut requests = Vec::with_capacity(back.len());
            for one in back.drain(..) {
                match one {
                    Back::Request(slot) => requests.push(slot),
                    Back::Ended(slot, errno) => {
                        drop(slot);
                        self.left -= 1;
                        if !is_end(errno) {
                            strange = Err(io::Error::from_raw_os_error(errno));
                        }
                    }
                }
            }
            self.answer_all(requests)?;
            if self.left > 0 {
                self.plan.ring.wait(&mut back)?;
                if let Some(halt_poll) = &mut halt_poll {
                    halt_poll.came();
                }
                for (slot, waited) in self.plan.done.take() {
                    if waited {
                        self.plan.room.end(slot.queue());
                    }
                    self.plan.ring.commit(slot)?;
                }
            }
        }
        strange
    }

    /// A request that waits for others gets a thread of its own, and its queue another slot if it needs one.
    fn wait_elsewhere(&mut self, mut slot: Slot) -> io::Result<()> {
        match self.plan.room.begin(slot.queue()) {
            Place::Enough => {}
            Place::WithAnother => {
                let another = self.plan.ring.another_slot(slot.queue(), IO_LEN_MAX);
                self.plan.ring.register(another)?;
                self.left += 1;
            }
            Place::None => {
                let reply = (Outcome::Failed(Errno::BUSY.raw_os_error()), 0);
                put_reply(slot.parts().0, reply);
                return self.plan.ring.commit(slot);
            }
        }
        self.waiters.give_waiting(slot, &self.plan.done);
        Ok(())
    }

    /// Registers all slots; the kernel rejects an invalid one immediately.
    fn begin(&mut self, back: &mut Vec<Back>) -> io::Result<()> {
        self.plan.ring.enable()?;
        for slot in std::mem::take(&mut self.plan.slots) {
            self.plan.ring.register(slot)?;
        }
        self.plan.ring.submit()?;
        self.plan.ring.collect(back)?;
        let refused = back.iter().find_map(|one| if let Back::Ended(_, errno) = one { Some(*errno) } else { None });
        refused.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }

    fn answer_all(&mut self, requests: Vec<Slot>) -> io::Result<()> {
        let crowded = requests.len() > 1;
        let mut here = Vec::with_capacity(requests.len());
        for mut slot in requests {
            let head = head_of(&mut slot);
            // The other request may come through this queue, too.
            let waits = self.handler.waits_for_another(&head, &slot.parts().0.op_in);
            match blocking_class(head.opcode) {
                _ if waits => self.wait_elsewhere(slot)?,
                BlockingClass::Waits => self.helpers.give(slot, &self.plan.done),
                _ if is_large_read(&head, &mut slot) => self.helpers.give(slot, &self.plan.done),
                BlockingClass::MayWait if crowded => self.helpers.give(slot, &self.plan.done),
                BlockingClass::MayWait | BlockingClass::Quick => here.push(slot),
            }
        }
        let mut here = here.into_iter().peekable();
        while let Some(mut slot) = here.next() {
            answer(&*self.handler, &mut slot, &mut self.scratch);
            self.plan.ring.commit(slot)?;
            if here.peek().is_some() {
                // The other requests do not have to wait for this one's reply.
                self.plan.ring.submit()?;
            }
        }
        Ok(())
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
