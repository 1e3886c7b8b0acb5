//! Requests through `/dev/fuse`: one read a request, one write a reply.
//!
//! Normal path: (1) [`DevFuse::handshake`] answers INIT; (2) [`serve`](Transport::serve) starts a few threads, each
//! with a channel of its own to the connection, that read, handle and write; (3) a thread that takes a request which
//! may wait (a commit, a long copy) while no other thread is reading starts another one, up to `threads_max`, or beyond if it
//! waits for another request; (4) if all threads are stuck in requests that usually do not wait, `stalled` starts another, up to
//! [`RELIEVED_MAX`] beyond `threads_max`; (5) a
//! thread that finds enough others waiting when it is done ends; (6) reading fails with ENODEV when the file system is
//! unmounted, and all threads end.
//!
//! Few threads, because the kernel hands requests to waiting readers in turn: with many of them each request would be
//! handled on a cold stack and a cold core.
//!
//! Invariants: every request that was read is answered once, except those without reply. Locks: only `unjoined`, the
//! list of threads started, a leaf.

use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use oleo_device::fuse::clone_channel;
use oleo_lock::{Mutex, rank};
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::stalled::{Crew, Look, Relief, Watch, Watching};
use super::{Agree, BlockingClass, Handler, IO_LEN_MAX, Notifier, Outcome, Transport, blocking_class};
use crate::wire::abi;
use crate::wire::{Op, Reply, Request};

/// Room for headers and names around the data of one request.
const HEAD_ROOM: usize = 64 * 1024;
/// Threads beyond `threads_max` for requests that a device keeps waiting.
const RELIEVED_MAX: usize = 256;
/// Header of a reply.
const OUT_HEAD: usize = size_of::<abi::OutHeader>();

/// A connection through `/dev/fuse`.
pub struct DevFuse {
    fd: Arc<File>,
    threads_max: usize,
    faster: Option<&'static Path>,
}

impl DevFuse {
    /// Uses a mounted channel. At most `threads_max` threads will answer.
    pub fn new(fd: File, threads_max: usize) -> DevFuse {
        DevFuse { fd: Arc::new(fd), threads_max: threads_max.max(1), faster: None }
    }

    /// Limits the threads that answer from now on.
    pub fn limit_threads(&mut self, threads_max: usize) {
        self.threads_max = threads_max.max(1);
    }

    /// Notes the file in which root can switch a faster way on.
    pub(super) fn note_switch(&mut self, file: &'static Path) {
        self.faster = Some(file);
    }

    /// The channel.
    pub fn channel(&self) -> &Arc<File> {
        &self.fd
    }

    /// Answers INIT, the first request.
    ///
    /// # Errors
    /// The kernel speaks another protocol, or the connection broke.
    pub fn handshake(&self, agree: Agree<'_>) -> io::Result<()> {
        let mut buffer = Buffers::new();
        loop {
            let Some((head, body)) = buffer.receive(&self.fd)? else {
                return Err(io::Error::new(io::ErrorKind::NotConnected, "unmounted before it was ready"));
            };
            let request = Request::parse_whole(head, body).map_err(io::Error::other)?;
            let Op::Init(init) = request.op else {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the first request was not INIT"));
            };
            let (outcome, reply) = if init.major > abi::MAJOR {
                // The kernel asks again with a version that both know.
                (Outcome::Done, abi::InitOut { major: abi::MAJOR, minor: abi::MINOR, ..Default::default() })
            } else {
                match agree(&init) {
                    Ok(reply) => (Outcome::Done, reply),
                    Err(errno) => (Outcome::Failed(errno), abi::InitOut::default()),
                }
            };
            let error = if let Outcome::Failed(errno) = outcome { -errno } else { 0 };
            let bytes: &[u8] = if error == 0 { reply.as_bytes() } else { &[] };
            let out = abi::OutHeader { len: (OUT_HEAD + bytes.len()) as u32, error, unique: head.unique };
            rustix::io::write(&*self.fd, &[out.as_bytes(), bytes].concat())?;
            if error != 0 {
                return Err(io::Error::from_raw_os_error(-error));
            }
            if init.major <= abi::MAJOR {
                return Ok(());
            }
        }
    }
}

/// One thread's buffers, aligned as the structs of the protocol want it.
struct Buffers {
    request: Vec<u64>,
    reply: Vec<u64>,
}

impl Buffers {
    fn new() -> Buffers {
        let words = (IO_LEN_MAX + HEAD_ROOM) / size_of::<u64>();
        Buffers { request: vec![0; words], reply: vec![0; words] }
    }

    /// Waits for a request; `None` when the file system is unmounted.
    fn receive(&mut self, fd: &File) -> io::Result<Option<(abi::InHeader, &[u8])>> {
        let len = loop {
            match rustix::io::read(fd, self.request.as_mut_bytes()) {
                Ok(len) => break len,
                // A request was interrupted before it was read; a signal; or no request after all.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        };
        let bytes = &self.request.as_bytes()[..len];
        match abi::InHeader::read_from_prefix(bytes) {
            Ok((head, body)) => Ok(Some((head, body))),
            Err(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "a request shorter than its header")),
        }
    }
}

/// What the threads share.
struct Pool {
    fd: Arc<File>,
    handler: Arc<dyn Handler>,
    crew: Crew,
    watch: Watch,
    /// Threads there are.
    threads: AtomicUsize,
    threads_base: usize,
    threads_max: usize,
    /// Threads that were not joined yet: running ones, and those that ended since the last one was started. A thread
    /// that is not joined keeps its stack mapped, and a process may have 65 530 mappings.
    unjoined: Mutex<rank::FusePool, Vec<JoinHandle<()>>>,
    broken: OnceLock<io::Error>,
    /// There will be no more requests.
    ended: AtomicBool,
}

impl Relief for Pool {
    fn look(&self) -> Look {
        self.crew.look()
    }

    fn relieve(self: Arc<Self>) {
        if !self.ended.load(Ordering::Acquire) && self.threads.load(Ordering::Acquire) < self.threads_max + RELIEVED_MAX
        {
            // Without another thread the requests wait.
            let _ = self.start();
        }
    }
}

impl Transport for DevFuse {
    fn serve(&self, handler: Arc<dyn Handler>) -> io::Result<()> {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let base = (cores + 1).min(self.threads_max);
        let (pool, watching) = Watching::start(|watch| {
            Arc::new(Pool {
                fd: self.fd.clone(),
                handler,
                crew: Crew::default(),
                watch,
                threads: AtomicUsize::new(0),
                threads_base: base,
                threads_max: self.threads_max,
                unjoined: Mutex::default(),
                broken: OnceLock::new(),
                ended: AtomicBool::new(false),
            })
        })?;
        for _ in 0..base {
            pool.clone().start()?;
        }
        // Threads may start others until the last one has ended; afterwards only the watching thread does.
        pool.join_all();
        drop(watching);
        pool.join_all();
        match Arc::into_inner(pool).and_then(|mut pool| pool.broken.take()) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn notifier(&self) -> Arc<dyn Notifier> {
        Arc::new(Notices(self.fd.clone()))
    }

    fn switch(&self) -> Option<&'static Path> {
        self.faster
    }
}

impl Pool {
    fn start(self: Arc<Pool>) -> io::Result<()> {
        let number = self.threads.fetch_add(1, Ordering::AcqRel);
        // Without a channel of its own a thread shares the first one.
        let fd = clone_channel(&*self.fd).map_or_else(|_| self.fd.clone(), Arc::new);
        let pool = self.clone();
        let started = std::thread::Builder::new().name(format!("fuse-{number}")).spawn(move || pool.work(&fd));
        match started {
            Ok(thread) => {
                let mut unjoined = self.unjoined.lock();
                unjoined.push(thread);
                let ended: Vec<_> = unjoined.extract_if(.., |thread| thread.is_finished()).collect();
                drop(unjoined);
                ended.into_iter().for_each(|thread| self.join(thread));
                Ok(())
            }
            Err(e) => {
                self.threads.fetch_sub(1, Ordering::AcqRel);
                Err(e)
            }
        }
    }

    fn join_all(&self) {
        loop {
            let Some(thread) = self.unjoined.lock().pop() else { break };
            self.join(thread);
        }
    }

    /// Returns when a thread is gone, and its stack with it.
    fn join(&self, thread: JoinHandle<()>) {
        if thread.join().is_err() {
            let _ = self.broken.set(io::Error::other("a thread that answers requests panicked"));
        }
    }

    fn work(self: Arc<Pool>, fd: &File) {
        let mut buffers = Buffers::new();
        loop {
            self.crew.waits();
            let received = buffers.receive(fd);
            let left = self.crew.takes();
            let (head, waits) = match received {
                Ok(Some((head, body))) => (head, self.handler.waits_for_another(&head, body)),
                Ok(None) => break self.ended.store(true, Ordering::Release),
                Err(e) => {
                    let _ = self.broken.set(e);
                    break self.ended.store(true, Ordering::Release);
                }
            };
            // The other request must find a thread, however many wait for theirs.
            let may_start = waits || self.threads.load(Ordering::Acquire) < self.threads_max;
            if left == 0 {
                let starts = may_start && (waits || blocking_class(head.opcode) != BlockingClass::Quick);
                // Without another thread this one will do, as long as it is not stuck.
                if !(starts && self.clone().start().is_ok()) {
                    self.watch.wake();
                }
            }
            if let Err(e) = answer(fd, &*self.handler, &head, &mut buffers) {
                let _ = self.broken.set(e);
                break;
            }
            self.crew.answered();
            if self.crew.waiting() >= self.threads_base {
                break;
            }
        }
        self.threads.fetch_sub(1, Ordering::AcqRel);
    }
}

fn answer(fd: &File, handler: &dyn Handler, head: &abi::InHeader, buffers: &mut Buffers) -> io::Result<()> {
    let Buffers { request, reply } = buffers;
    let len = (head.len as usize).clamp(size_of::<abi::InHeader>(), request.len() * size_of::<u64>());
    let body = &request.as_bytes()[size_of::<abi::InHeader>()..len];
    let (out_head, out) = reply.as_mut_bytes().split_at_mut(OUT_HEAD);
    let mut reply_body = Reply::new(out);
    let outcome = match Request::parse_whole(*head, body) {
        // A request that is never answered blocks its caller for ever, and a thread that ends is missing. The panic has
        // been reported on standard error.
        Ok(request) => catch_unwind(AssertUnwindSafe(|| handler.handle(&request, &mut reply_body)))
            .unwrap_or(Outcome::Failed(Errno::IO.raw_os_error())),
        Err(_) => Outcome::Failed(Errno::IO.raw_os_error()),
    };
    let (len, error) = match outcome {
        Outcome::Silent => return Ok(()),
        Outcome::Done => (reply_body.len(), 0),
        Outcome::Failed(errno) => (0, -errno),
    };
    let header = abi::OutHeader { len: (OUT_HEAD + len) as u32, error, unique: head.unique };
    out_head.copy_from_slice(header.as_bytes());
    loop {
        match rustix::io::write(fd, &reply.as_bytes()[..OUT_HEAD + len]) {
            // The request was interrupted and nobody waits for it; or the file system was unmounted.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => return Ok(()),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Notifications go through the first channel.
struct Notices(Arc<File>);

impl Notices {
    fn send(&self, code: i32, body: &[&[u8]]) -> io::Result<()> {
        let len = OUT_HEAD + body.iter().map(|b| b.len()).sum::<usize>();
        let head = abi::OutHeader { len: len as u32, error: code, unique: 0 };
        let bytes = [&[head.as_bytes()], body].concat().concat();
        loop {
            match rustix::io::write(&*self.0, &bytes) {
                Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::NOTDIR | Errno::CONNABORTED) => return Ok(()),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

impl Notifier for Notices {
    fn inval_inode(&self, node: u64, off: i64, len: i64) -> io::Result<()> {
        self.send(abi::notify::INVAL_INODE, &[abi::NotifyInvalInode { ino: node, off, len }.as_bytes()])
    }

    fn inval_entry(&self, dir: u64, name: &[u8]) -> io::Result<()> {
        let args = abi::NotifyInvalEntry { parent: dir, namelen: name.len() as u32, flags: 0 };
        self.send(abi::notify::INVAL_ENTRY, &[args.as_bytes(), name, &[0]])
    }

    fn prune(&self, nodes: &[u64]) -> io::Result<()> {
        let args = abi::NotifyPrune { count: nodes.len() as u32, padding: 0, spare: 0 };
        match self.send(abi::notify::PRUNE, &[args.as_bytes(), nodes.as_bytes()]) {
            // The kernel's error for a code that it does not have.
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => Err(io::ErrorKind::Unsupported.into()),
            done => done,
        }
    }
}

#[cfg(test)]
mod tests;
