//! From commands to the stream's bytes: data is read, compared and encoded on all cores, and written in order.
//!
//! Normal path: (1) the planner appends commands to a batch, with descriptions of the data to be read; (2) a batch that
//! stands for enough bytes goes to any free worker; (3) workers read, decompress, leave out what the receiver turns out
//! to have, and encode; (4) the writer puts batches in order and writes them.
//!
//! Memory: the number of batches under way is bounded; the planner waits for the writer.
//! Errors: the first one ends everything; the planner learns of it at its next batch.

use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_channel::{Receiver, Sender, bounded};
use oleo_format::stream::Command;
use oleo_format::{Corruption, Logical};
use oleo_fs::data::{PackedExtent, read_plain};
use oleo_txn::{CsumCheck, Engine};
use parking_lot::Mutex;

use super::SendError;

/// Bytes of data in a batch: enough to pay for the hand-over.
const BATCH_BYTES: usize = 1 << 20;
/// Bytes of commands that make a batch without any data.
const BATCH_COMMAND_BYTES: usize = 128 << 10;
/// Data in one command of version 1: with all else it must fit into 64 KiB. A multiple of every usual sector size.
const WRITE_LEN_V1: usize = 48 << 10;
/// The same from version 2 on, as the kernel has it.
const WRITE_LEN_V2: usize = 128 << 10;

/// Decompressed extents that a worker keeps.
const UNPACKED_KEPT: usize = 2;

/// The source of the bytes of a range.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Bytes {
    Plain {
        at: Logical,
        check: CsumCheck,
    },
    /// Decompressed, from `skip` on.
    Packed {
        extent: PackedExtent,
        skip: u64,
        check: CsumCheck,
    },
    Here(Arc<[u8]>),
    Zeros,
}

/// A range of a write.
#[derive(Debug)]
pub(super) struct Part {
    pub bytes: Bytes,
    pub len: u64,
    /// What the receiver's file has there: sectors with the same contents are not sent. They have to be read to be
    /// compared.
    pub old: Option<Bytes>,
}

impl Part {
    /// Whether another one follows this one as one piece.
    pub fn goes_on(&self, next: &Bytes, next_old: Option<&Bytes>) -> bool {
        let old_too = match (&self.old, next_old) {
            (None, None) => true,
            (Some(old), Some(next)) => old.goes_on(self.len, next),
            _ => false,
        };
        old_too && self.bytes.goes_on(self.len, next)
    }
}

/// Data at a place in a file: parts that follow one another. But for the last one, they end at sectors.
#[derive(Debug)]
pub(super) struct DataWrite {
    pub path: Arc<[u8]>,
    pub at: u64,
    pub parts: Vec<Part>,
}

impl DataWrite {
    pub fn len(&self) -> u64 {
        self.parts.iter().map(|p| p.len).sum()
    }
}

/// A compressed extent as it is stored.
#[derive(Debug)]
pub(super) struct EncodedWrite {
    pub path: Arc<[u8]>,
    pub at: u64,
    pub file_len: u64,
    pub ram_len: u64,
    pub skip: u64,
    pub compression: u32,
    /// As it is stored, and decompressed.
    pub from: Bytes,
    pub disk_len: u64,
    pub plain: Bytes,
    /// What the receiver's file has there; if it is the same, nothing is sent.
    pub old: Option<Bytes>,
}

#[derive(Debug)]
enum Data {
    Write(DataWrite),
    Encoded(EncodedWrite),
}

#[derive(Default)]
struct Batch {
    number: u64,
    commands: Vec<u8>,
    /// Data to be read, and its position among the commands.
    data: Vec<(usize, Data)>,
    weight: usize,
}

/// Counts of what went into the stream.
#[derive(Default, Debug)]
pub(super) struct Counts {
    pub bytes: AtomicU64,
    pub commands: AtomicU64,
    pub data_bytes: AtomicU64,
    /// Bytes that were read to be sent, and were not.
    pub same_bytes: AtomicU64,
}

/// The planner's end.
pub(super) struct Pipe<'p> {
    version: u32,
    batch: Batch,
    next: u64,
    work: Sender<Batch>,
    /// One for each batch that may be under way.
    tickets: Receiver<()>,
    counts: &'p Counts,
}

struct Shared<'s> {
    engine: &'s Engine,
    version: u32,
    error: Mutex<Option<SendError>>,
    counts: &'s Counts,
}

/// Runs a planner, whose commands go to `out`.
pub(super) fn run<R>(
    engine: &Engine,
    version: u32,
    memory_bytes: usize,
    threads: usize,
    counts: &Counts,
    out: &mut (dyn Write + Send),
    plan: impl FnOnce(&mut Pipe<'_>) -> Result<R, SendError>,
) -> Result<R, SendError> {
    let shared = Shared { engine, version, error: Mutex::new(None), counts };
    // A batch is held once as it is made and once as it was encoded.
    let under_way = (memory_bytes / (2 * BATCH_BYTES)).clamp(2, 1 << 12);
    let (give_ticket, tickets) = bounded::<()>(under_way);
    for _ in 0..under_way {
        let _ = give_ticket.send(());
    }
    let (work, todo) = bounded::<Batch>(under_way);
    let (done, finished) = bounded::<(u64, Vec<u8>)>(under_way);
    let planned = std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            let (todo, done, shared) = (todo.clone(), done.clone(), &shared);
            scope.spawn(move || worker(shared, &todo, &done));
        }
        drop((todo, done));
        let shared = &shared;
        scope.spawn(move || writer(shared, out, &finished, &give_ticket));
        let mut pipe = Pipe { version, batch: Batch::default(), next: 0, work, tickets, counts };
        let planned = plan(&mut pipe);
        if planned.is_ok() {
            pipe.hand_out();
        }
        planned
    });
    match shared.error.into_inner() {
        Some(error) => Err(error),
        None => planned,
    }
}

impl Pipe<'_> {
    /// Appends a command.
    pub fn command(&mut self, command: &Command<'_>) -> Result<(), SendError> {
        let before = self.batch.commands.len();
        command.encode(self.version, &mut self.batch.commands);
        self.counts.commands.fetch_add(1, Ordering::Relaxed);
        self.batch.weight += (self.batch.commands.len() - before) * (BATCH_BYTES / BATCH_COMMAND_BYTES);
        self.roll()
    }

    /// Appends the header of a stream.
    pub fn header(&mut self) {
        self.batch.commands.extend_from_slice(&oleo_format::stream::header(self.version));
    }

    /// Appends writes of data that is still to be read.
    pub fn write(&mut self, write: DataWrite) -> Result<(), SendError> {
        let len = write.len();
        self.batch.weight += usize::try_from(len).unwrap_or(BATCH_BYTES) + write.path.len();
        self.batch.data.push((self.batch.commands.len(), Data::Write(write)));
        self.roll()
    }

    /// Appends a compressed extent that is still to be read.
    pub fn encoded(&mut self, write: EncodedWrite) -> Result<(), SendError> {
        self.batch.weight += usize::try_from(write.disk_len).unwrap_or(BATCH_BYTES) + write.path.len();
        self.batch.data.push((self.batch.commands.len(), Data::Encoded(write)));
        self.roll()
    }

    fn roll(&mut self) -> Result<(), SendError> {
        if self.batch.weight >= BATCH_BYTES && !self.hand_out() {
            // `run` knows the reason.
            return Err(SendError::Stopped);
        }
        Ok(())
    }

    /// Hands out the batch; false if there are no workers any more.
    fn hand_out(&mut self) -> bool {
        if self.tickets.recv().is_err() {
            return false;
        }
        let mut batch = std::mem::take(&mut self.batch);
        batch.number = self.next;
        self.next += 1;
        self.work.send(batch).is_ok()
    }
}

impl Shared<'_> {
    fn fail(&self, error: SendError) {
        self.error.lock().get_or_insert(error);
    }

    fn has_failed(&self) -> bool {
        self.error.lock().is_some()
    }
}

fn writer(
    shared: &Shared<'_>,
    out: &mut (dyn Write + Send),
    finished: &Receiver<(u64, Vec<u8>)>,
    tickets: &Sender<()>,
) {
    let mut next = 0;
    let mut early = BTreeMap::new();
    while let Ok((number, bytes)) = finished.recv() {
        early.insert(number, bytes);
        while let Some(bytes) = early.remove(&next) {
            next += 1;
            if let Err(error) = out.write_all(&bytes) {
                return shared.fail(SendError::Write(error));
            }
            shared.counts.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            let _ = tickets.send(());
        }
        if shared.has_failed() {
            return;
        }
    }
    if let Err(error) = out.flush() {
        shared.fail(SendError::Write(error));
    }
}

fn worker(shared: &Shared<'_>, todo: &Receiver<Batch>, done: &Sender<(u64, Vec<u8>)>) {
    let mut encoder = Encoder { shared, unpacked: VecDeque::new() };
    while let Ok(batch) = todo.recv() {
        let number = batch.number;
        let bytes = match encoder.batch(batch) {
            Ok(bytes) => bytes,
            Err(error) => {
                shared.fail(error);
                Vec::new()
            }
        };
        if done.send((number, bytes)).is_err() {
            return;
        }
    }
}

struct Encoder<'s> {
    shared: &'s Shared<'s>,
    /// The extents that were decompressed last: one to be sent, and one that it is compared with.
    unpacked: VecDeque<(PackedExtent, Vec<u8>)>,
}

impl Encoder<'_> {
    fn batch(&mut self, batch: Batch) -> Result<Vec<u8>, SendError> {
        if self.shared.has_failed() {
            return Ok(Vec::new());
        }
        if batch.data.is_empty() {
            return Ok(batch.commands);
        }
        let mut out = Vec::with_capacity(batch.commands.len() + batch.weight + (batch.weight >> 6));
        let mut from = 0;
        for (to, data) in batch.data {
            out.extend_from_slice(&batch.commands[from..to]);
            from = to;
            match data {
                Data::Write(write) => self.write(&write, &mut out)?,
                Data::Encoded(write) => self.encoded(&write, &mut out)?,
            }
        }
        out.extend_from_slice(&batch.commands[from..]);
        Ok(out)
    }

    fn write(&mut self, write: &DataWrite, out: &mut Vec<u8>) -> Result<(), SendError> {
        if write.parts.iter().all(|p| p.old.is_none()) {
            return self.emit(&write.path, write.at, &write.parts, out);
        }
        let mut run = Vec::new();
        let (mut run_at, mut at) = (write.at, write.at);
        for part in &write.parts {
            for (bytes, len) in self.pieces(part)? {
                match bytes {
                    Some(bytes) => run.push(Part { bytes, len, old: None }),
                    None => {
                        self.shared.counts.same_bytes.fetch_add(len, Ordering::Relaxed);
                        self.emit(&write.path, run_at, &run, out)?;
                        run.clear();
                        run_at = at + len;
                    }
                }
                at += len;
            }
        }
        self.emit(&write.path, run_at, &run, out)
    }

    /// The pieces of a part that are to be sent, in order; `None` for those that the receiver has.
    fn pieces(&mut self, part: &Part) -> Result<Vec<(Option<Bytes>, u64)>, SendError> {
        let Some(old) = &part.old else { return Ok(vec![(Some(part.bytes.clone()), part.len)]) };
        let len = part.len as usize;
        let (mut new_bytes, mut old_bytes) = (vec![0; len], vec![0; len]);
        self.read(&part.bytes, 0, &mut new_bytes)?;
        if self.read(old, 0, &mut old_bytes).is_err() {
            // Old bytes that cannot be read cannot be compared, so everything is sent.
            return Ok(vec![(Some(Bytes::Here(new_bytes.into())), part.len)]);
        }
        let sector = self.shared.engine.sectorsize() as usize;
        let sectors: Vec<(&[u8], bool)> =
            new_bytes.chunks(sector).zip(old_bytes.chunks(sector)).map(|(new, old)| (new, new == old)).collect();
        let runs = sectors.chunk_by(|a, b| a.1 == b.1);
        let piece = |run: &[(&[u8], bool)]| {
            let len = run.iter().map(|(bytes, _)| bytes.len() as u64).sum();
            let bytes = (!run[0].1).then(|| Bytes::Here(run.iter().flat_map(|(bytes, _)| *bytes).copied().collect()));
            (bytes, len)
        };
        Ok(runs.map(piece).collect())
    }

    /// Writes of parts, as long as the version has them.
    fn emit(&mut self, path: &[u8], at: u64, parts: &[Part], out: &mut Vec<u8>) -> Result<(), SendError> {
        let chunk = if self.shared.version == 1 { WRITE_LEN_V1 } else { WRITE_LEN_V2 };
        let mut left: u64 = parts.iter().map(|p| p.len).sum();
        self.shared.counts.data_bytes.fetch_add(left, Ordering::Relaxed);
        let mut at = at;
        let mut parts = parts.iter();
        let mut part: Option<&Part> = None;
        let mut done = 0;
        while left > 0 {
            let len = left.min(chunk as u64);
            self.shared.counts.commands.fetch_add(1, Ordering::Relaxed);
            Command::encode_write(self.shared.version, path, at, len as usize, out, |mut room| {
                while !room.is_empty() {
                    let Some(now) = part.or_else(|| parts.next()) else { break };
                    let (head, tail) = room.split_at_mut(room.len().min((now.len - done) as usize));
                    self.read(&now.bytes, done, head)?;
                    done += head.len() as u64;
                    room = tail;
                    part = Some(now);
                    if done == now.len {
                        (part, done) = (None, 0);
                    }
                }
                Ok::<_, SendError>(())
            })?;
            at += len;
            left -= len;
        }
        Ok(())
    }

    fn encoded(&mut self, write: &EncodedWrite, out: &mut Vec<u8>) -> Result<(), SendError> {
        if let Some(old) = &write.old {
            let len = usize::try_from(write.file_len).unwrap_or(usize::MAX);
            let (mut new_bytes, mut old_bytes) = (vec![0; len], vec![0; len]);
            self.read(&write.plain, 0, &mut new_bytes)?;
            if self.read(old, 0, &mut old_bytes).is_ok() && new_bytes == old_bytes {
                self.shared.counts.same_bytes.fetch_add(write.file_len, Ordering::Relaxed);
                return Ok(());
            }
        }
        let mut data = vec![0; usize::try_from(write.disk_len).unwrap_or(usize::MAX)];
        self.read(&write.from, 0, &mut data)?;
        self.shared.counts.commands.fetch_add(1, Ordering::Relaxed);
        self.shared.counts.data_bytes.fetch_add(write.disk_len, Ordering::Relaxed);
        Command::EncodedWrite {
            path: &write.path,
            offset: write.at,
            unencoded_file_len: write.file_len,
            unencoded_len: write.ram_len,
            unencoded_offset: write.skip,
            compression: write.compression,
            encryption: 0,
            data: &data,
        }
        .encode(self.shared.version, out);
        Ok(())
    }

    /// The bytes from `from` on. Plain ones: `from` is at a sector.
    fn read(&mut self, bytes: &Bytes, from: u64, out: &mut [u8]) -> Result<(), SendError> {
        let engine = self.shared.engine;
        match bytes {
            Bytes::Zeros => out.fill(0),
            Bytes::Here(bytes) => out.copy_from_slice(&bytes[from as usize..from as usize + out.len()]),
            Bytes::Plain { at, check } => read_plain(engine, Logical(at.0 + from), out, *check)?,
            Bytes::Packed { extent, skip, check } => {
                let known = self.unpacked.iter().position(|(known, _)| known == extent);
                if known.is_none() {
                    let bytes = extent.read(engine, *check)?;
                    self.unpacked.truncate(UNPACKED_KEPT - 1);
                    self.unpacked.push_front((*extent, bytes));
                }
                let (_, bytes) = &self.unpacked[known.unwrap_or(0)];
                let from = (skip + from) as usize;
                let Some(bytes) = bytes.get(from..from + out.len()) else {
                    return Err(Corruption::new("file extent", "end", from + out.len(), extent.ram_len)
                        .within(format!("extent {}", extent.at))
                        .into());
                };
                out.copy_from_slice(bytes);
            }
        }
        Ok(())
    }
}

impl Bytes {
    /// What is left of them without the first `skipped` bytes.
    pub fn after(&self, skipped: u64) -> Bytes {
        match self {
            Bytes::Zeros => Bytes::Zeros,
            Bytes::Plain { at, check } => Bytes::Plain { at: Logical(at.0.saturating_add(skipped)), check: *check },
            Bytes::Packed { extent, skip, check } => {
                Bytes::Packed { extent: *extent, skip: skip.saturating_add(skipped), check: *check }
            }
            Bytes::Here(bytes) => Bytes::Here(bytes.get(skipped as usize..).unwrap_or_default().into()),
        }
    }

    /// Whether others follow these, `len` in number, as one piece.
    pub fn goes_on(&self, len: u64, next: &Bytes) -> bool {
        !matches!(self, Bytes::Here(_)) && self.after(len) == *next
    }
}

impl Pipe<'_> {
    /// Bytes of the stream that are written.
    pub fn bytes_written(&self) -> u64 {
        self.counts.bytes.load(Ordering::Relaxed)
    }
}
