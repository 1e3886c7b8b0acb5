//! One ring, and the memory that it shares with the kernel: the only unsafe code of this crate.
//!
//! A [`Slot`] is the memory of one request at a time: a header, which the kernel fills and reads, and a payload. The
//! owner of the slot may access it. [`Ring::register`] and [`Ring::commit`] give it to the kernel, [`Ring::wait`]
//! returns the slots that came back; in between nobody owns it: it is in `away`, out of reach.
//!
//! Invariants: a slot is with us, or away, never both. The memory of a slot that is away lives until the kernel has
//! given it back, even if the ring is dropped first (it is leaked then, which only an error in the middle can cause). A
//! slot's memory never moves, and always belongs to the same entry of the kernel: the addresses given when it was
//! registered stay valid. A ring is used by one thread from [`Ring::enable`] on.
#![allow(unsafe_code, reason = "memory shared with the kernel; docs/decisions/0007-fuse-io-uring.md")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::Errno;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// `FUSE_IO_URING_CMD_REGISTER`: here is memory for a request.
const CMD_REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`: here is a reply, and the memory for the next request.
const CMD_COMMIT_AND_FETCH: u32 = 2;
/// What the event that ends a wait is called; slots are called by their numbers.
const WAKE: u64 = u64::MAX;
/// Offset of `len` in a submission queue entry (`struct io_uring_sqe`, linux/io_uring.h).
const SQE_LEN_OFFSET: usize = 24;

/// `struct fuse_uring_ent_in_out`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EntInOut {
    pub flags: u64,
    /// Names the request when its reply is handed in.
    pub commit_id: u64,
    /// Bytes in the payload.
    pub payload_sz: u32,
    pub padding: u32,
    pub reserved: u64,
}

/// `struct fuse_uring_req_header`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReqHeader {
    /// The header of the request, later that of the reply.
    pub in_out: [u8; 128],
    /// The fixed struct of the request.
    pub op_in: [u8; 128],
    pub ent: EntInOut,
}
const _: () = assert!(size_of::<ReqHeader>() == 288);

/// `struct fuse_uring_cmd_req`, in the command area of a submission.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct CmdReq {
    flags: u64,
    commit_id: u64,
    qid: u16,
    padding: [u8; 6],
}
const _: () = assert!(size_of::<CmdReq>() == 24);

/// `struct iovec`.
#[derive(Clone, Copy)]
#[repr(C)]
struct IoVec {
    base: *mut u8,
    len: usize,
}

/// Header and payload, in this order, as the kernel expects them.
type IoVecs = [IoVec; 2];

/// The memory of one request.
pub struct Slot {
    /// Its place in the ring's table.
    index: usize,
    /// The kernel's queue that it belongs to: the number of a processor.
    queue: u16,
    header: NonNull<ReqHeader>,
    payload: NonNull<[u8]>,
    /// Read by the kernel when the slot is registered.
    iovecs: NonNull<IoVecs>,
}

// SAFETY: the pointers are the slot's own allocations; nothing else leads to them while it is with us.
unsafe impl Send for Slot {}

impl Slot {
    /// Memory for requests and replies of at most `payload_len` bytes besides headers. It costs nothing until it is used.
    pub fn new(index: usize, queue: u16, payload_len: usize) -> Slot {
        let header = NonNull::from(Box::leak(Box::new(ReqHeader::new_zeroed())));
        let payload = NonNull::from(Box::leak(vec![0u8; payload_len].into_boxed_slice()));
        let both = [
            IoVec { base: header.as_ptr().cast(), len: size_of::<ReqHeader>() },
            IoVec { base: payload.as_ptr().cast(), len: payload_len },
        ];
        Slot { index, queue, header, payload, iovecs: NonNull::from(Box::leak(Box::new(both))) }
    }

    /// The kernel's queue that it belongs to.
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// Header and payload.
    pub fn parts(&mut self) -> (&mut ReqHeader, &mut [u8]) {
        // SAFETY: allocated and initialised by `new`, freed by `drop` only, aligned as boxes are; two allocations, so the two
        // references do not overlap; borrowing the slot mutably makes them the only ones; and the kernel does not touch the
        // memory of a slot that is with us.
        unsafe { (self.header.as_mut(), self.payload.as_mut()) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // SAFETY: each pointer comes from the leak of a box of this very type in `new` and is turned back this once.
        unsafe { drop(Box::from_raw(self.header.as_ptr())) };
        // SAFETY: as above.
        unsafe { drop(Box::from_raw(self.payload.as_ptr())) };
        // SAFETY: as above.
        unsafe { drop(Box::from_raw(self.iovecs.as_ptr())) };
    }
}

/// A slot that came back.
pub enum Back {
    /// With a request.
    Request(Slot),
    /// For good: the kernel will not use it again. The reason is a positive errno.
    Ended(Slot, i32),
}

/// A submission and a completion queue, and the slots that are away.
pub struct Ring {
    uring: IoUring<squeue::Entry128>,
    /// The channel to the kernel's side of the file system.
    fuse: Arc<File>,
    /// An event counter that others raise to end a wait.
    wake: Arc<OwnedFd>,
    away: Vec<Option<Slot>>,
}

impl Ring {
    /// A ring for at most this number of slots, not enabled yet, so that any thread may become its user.
    ///
    /// # Errors
    /// The kernel has no io_uring, or this process may not use it.
    pub fn new(fuse: Arc<File>, wake: Arc<OwnedFd>, slots: usize) -> io::Result<Ring> {
        // One more for the event.
        let entries = u32::try_from(slots + 1).map_err(io::Error::other)?.next_power_of_two();
        let uring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().setup_r_disabled().build(entries)?;
        Ok(Ring { uring, fuse, wake, away: Vec::new() })
    }

    /// A slot beside those that the ring has, to be registered.
    pub fn another_slot(&mut self, queue: u16, payload_len: usize) -> Slot {
        self.away.push(None);
        Slot::new(self.away.len() - 1, queue, payload_len)
    }

    /// Makes the calling thread the one that uses the ring.
    ///
    /// # Errors
    /// The kernel does not want that.
    pub fn enable(&mut self) -> io::Result<()> {
        self.uring.submitter().register_enable_rings()?;
        self.listen()
    }

    /// Gives a new slot to the kernel, at the next [`wait`](Ring::wait) or [`submit`](Ring::submit).
    ///
    /// # Errors
    /// The queue is full, which a ring of the right size never is.
    pub fn register(&mut self, slot: Slot) -> io::Result<()> {
        self.give(slot, CMD_REGISTER, 0)
    }

    /// Submits the reply in the slot, and waits for the next request with it.
    ///
    /// # Errors
    /// The queue is full, which does not happen with a ring of the right size.
    pub fn commit(&mut self, mut slot: Slot) -> io::Result<()> {
        let commit_id = slot.parts().0.ent.commit_id;
        self.give(slot, CMD_COMMIT_AND_FETCH, commit_id)
    }

    fn give(&mut self, slot: Slot, command: u32, commit_id: u64) -> io::Result<()> {
        let mut area = [0; 80];
        let request = CmdReq { flags: 0, commit_id, qid: slot.queue, padding: [0; 6] };
        area[..size_of::<CmdReq>()].copy_from_slice(request.as_bytes());
        let index = slot.index;
        let entry = opcode::UringCmd80::new(types::Fd(self.fuse.as_raw_fd()), command)
            .cmd(area)
            .addr(Some(slot.iovecs.as_ptr() as u64))
            .build()
            .user_data(index as u64);
        let entry = with_len(entry, size_of::<IoVecs>() / size_of::<IoVec>());
        if self.away.len() <= index {
            self.away.resize_with(index + 1, || None);
        }
        assert!(self.away[index].is_none(), "a slot is away once");
        self.away[index] = Some(slot);
        self.push(&entry)
    }

    /// Asks for a completion when the event is raised.
    fn listen(&mut self) -> io::Result<()> {
        const READABLE: u32 = 1;
        let poll = opcode::PollAdd::new(types::Fd(self.wake.as_raw_fd()), READABLE).build().user_data(WAKE);
        self.push(&poll.into())
    }

    fn push(&mut self, entry: &squeue::Entry128) -> io::Result<()> {
        // SAFETY: what the entry points to lives as long as the operation: a slot's memory, because the slot stands in `away`
        // until its completion has been seen and is leaked if that never happens; the event's poll points to nothing. The
        // descriptors are open: the ring holds both files.
        unsafe { self.uring.submission().push(entry) }.map_err(io::Error::other)
    }

    /// Submits what was queued, without waiting.
    ///
    /// # Errors
    /// The ring broke.
    pub fn submit(&mut self) -> io::Result<()> {
        self.enter(0)
    }

    /// Submits what was queued and waits until something comes back. Returns whether the event was raised.
    ///
    /// # Errors
    /// The ring broke.
    pub fn wait(&mut self, back: &mut Vec<Back>) -> io::Result<bool> {
        self.enter(1)?;
        self.collect(back)
    }

    /// Collects what has come back already.
    ///
    /// # Errors
    /// The ring broke.
    pub fn collect(&mut self, back: &mut Vec<Back>) -> io::Result<bool> {
        let mut woken = false;
        for done in self.uring.completion() {
            if done.user_data() == WAKE {
                woken = true;
                continue;
            }
            let slot = usize::try_from(done.user_data()).ok().and_then(|index| self.away.get_mut(index)?.take());
            let Some(slot) = slot else { return Err(io::Error::other("a completion of nothing that was begun")) };
            back.push(if done.result() < 0 { Back::Ended(slot, -done.result()) } else { Back::Request(slot) });
        }
        if woken {
            let mut count = [0; 8];
            // Nothing to read: another wait took it.
            let _count = rustix::io::read(&*self.wake, &mut count);
            self.listen()?;
        }
        Ok(woken)
    }

    fn enter(&mut self, want: usize) -> io::Result<()> {
        loop {
            match self.uring.submit_and_wait(want) {
                Ok(_) => return Ok(()),
                Err(e) if e.raw_os_error() == Some(Errno::INTR.raw_os_error()) => {}
                // The completion queue has overflowed, or memory is short: what has come back must be taken first.
                Err(e) if e.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel may still write to these.
        self.away.drain(..).flatten().for_each(std::mem::forget);
    }
}

/// Sets the `len` of a submission, which `UringCmd80` leaves at zero and the kernel wants to be the number of vectors.
fn with_len(mut entry: squeue::Entry128, len: usize) -> squeue::Entry128 {
    const { assert!(size_of::<squeue::Entry128>() == 128) };
    let at = (&raw mut entry).cast::<u8>().wrapping_add(SQE_LEN_OFFSET).cast::<u32>();
    // SAFETY: `Entry128` is `repr(C)` and begins with `struct io_uring_sqe`, which has a `u32` at that offset; it is aligned to
    // eight bytes, 24 is a multiple of four, and the entry is ours alone.
    unsafe { at.write(len as u32) };
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the submission has `len` at the offset of `struct io_uring_sqe`, and nothing else changes. Method: the
    /// bytes of an entry before and after.
    #[test]
    fn the_length_is_where_the_kernel_looks() {
        let bytes = |entry: squeue::Entry128| -> [u8; 128] {
            // SAFETY: both types have 128 bytes without padding, and any bytes are a valid array.
            unsafe { std::mem::transmute(entry) }
        };
        let entry = || opcode::UringCmd80::new(types::Fd(5), 2).cmd([7; 80]).addr(Some(1 << 40)).build();
        let (before, after) = (bytes(entry()), bytes(with_len(entry(), 2)));
        let changed: Vec<usize> = (0..128).filter(|i| before[*i] != after[*i]).collect();
        assert_eq!(changed, [SQE_LEN_OFFSET]);
        assert_eq!(after[SQE_LEN_OFFSET], 2);
    }

    /// Goal: slots are memory like any other while they are with us. Method: write both parts from another thread, read them.
    #[test]
    fn slots_are_memory() {
        let mut slot = Slot::new(3, 1, 1 << 20);
        let mut slot = std::thread::spawn(move || {
            let (header, payload) = slot.parts();
            header.ent.commit_id = 77;
            payload.fill(9);
            slot
        })
        .join()
        .unwrap();
        let (header, payload) = slot.parts();
        assert_eq!(header.ent.commit_id, 77);
        assert!(payload.len() == 1 << 20 && payload.iter().all(|b| *b == 9));
    }
}
