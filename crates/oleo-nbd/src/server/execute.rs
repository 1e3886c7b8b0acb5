//! Requests, carried out on a device.
//!
//! What is wrong with a request by itself (range, flags, rights) is decided before the device sees it ([`refusal`]). A
//! round's reads go to the device as one batch, its writes as another; requests in flight have no order among each
//! other. Writes that overlap go one by one, because those of a batch must not.
//!
//! The device is behind a latch: after a write or a flush that failed, no later one succeeds, on any connection.

use oleo_device::{Device, DeviceError, ExtentKind, ReadReq, WriteReq, Zeroing};

use super::export::Served;
use super::receive::Round;
use crate::wire::reply::StatusExtent;
use crate::wire::{AllocationFlags, Command, CommandFlags, ReplyError, Request};

/// Most extents of one reply.
const EXTENTS_MAX: usize = 1024;

/// Why a request fails: a number, and words for people.
pub(super) struct Failure {
    pub(super) error: ReplyError,
    pub(super) text: String,
}

impl Failure {
    pub(super) fn new(error: ReplyError, text: impl Into<String>) -> Failure {
        Failure { error, text: text.into() }
    }

    /// What a device said to a request.
    fn of(error: &DeviceError, command: Command) -> Failure {
        let number = match error {
            _ if error.is_full() => ReplyError::NoSpace,
            DeviceError::ReadOnly { .. } => ReplyError::Perm,
            DeviceError::OutOfRange { .. } => beyond(command),
            _ => ReplyError::Io,
        };
        Failure::new(number, error.to_string())
    }
}

/// The error of a request beyond the end.
fn beyond(command: Command) -> ReplyError {
    match command {
        Command::Write | Command::WriteZeroes => ReplyError::NoSpace,
        _ => ReplyError::Inval,
    }
}

/// What is wrong with a request, whatever the device says to it.
pub(super) fn refusal(served: &Served, request: &Request) -> Result<Command, Failure> {
    let invalid = |what: &str| Err(Failure::new(ReplyError::Inval, what));
    let Some(command) = Command::of(request.command) else { return invalid("unknown command") };
    let changes = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes);
    if !command.flags().contains(request.flags) {
        return invalid("a flag that does not fit the command");
    }
    if changes && served.read_only {
        return Err(Failure::new(ReplyError::Perm, "the export is read-only"));
    }
    if command == Command::Flush {
        return if request.offset == 0 && request.len == 0 { Ok(command) } else { invalid("a flush has no range") };
    }
    if request.offset.checked_add(request.len.into()).is_none_or(|end| end > served.size) {
        return Err(Failure::new(beyond(command), format!("beyond the end at {}", served.size)));
    }
    if request.len == 0 && matches!(command, Command::Read | Command::BlockStatus) {
        return invalid("nothing is asked for");
    }
    if command == Command::Read && request.len > served.payload_max {
        return invalid("longer than the longest payload");
    }
    Ok(command)
}

/// Carries out a round of reads and writes; per request nothing, or why it failed. The data of reads lies behind that
/// of writes, in their order, with place for those that failed too.
pub(super) fn read_and_write(served: &Served, round: &mut Round<'_>) -> Vec<Option<Failure>> {
    round.extend_memory();
    let mut failures: Vec<Option<Failure>> =
        round.requests.iter().map(|request| refusal(served, request).err()).collect();
    let (written, read) = round.bytes.split_at_mut(round.payload_len);
    let written = round.large.as_ref().map_or(&*written, |large| large.bytes());
    write(served, &round.requests, written, &mut failures);
    let mut reads = Vec::new();
    let mut rest = read;
    for (index, request) in round.requests.iter().enumerate() {
        if request.command == Command::Read.number() {
            let (buf, after) = rest.split_at_mut(request.len as usize);
            rest = after;
            if failures[index].is_none() {
                reads.push((index, ReadReq::new(request.offset, buf)));
            }
        }
    }
    let (indices, mut reads): (Vec<usize>, Vec<ReadReq<'_>>) = reads.into_iter().unzip();
    served.device.read_batch(&mut reads);
    for (index, read) in indices.into_iter().zip(reads) {
        failures[index] = read.result.err().map(|e| Failure::of(&e, Command::Read));
    }
    failures
}

/// The writes of a round, with their data one after the other.
fn write(served: &Served, requests: &[Request], data: &[u8], failures: &mut [Option<Failure>]) {
    let mut rest = data;
    let mut pieces: Vec<(usize, u64, [&[u8]; 1])> = Vec::new();
    for (index, request) in requests.iter().enumerate() {
        if request.command == Command::Write.number() {
            let (data, after) = rest.split_at(request.len as usize);
            rest = after;
            if failures[index].is_none() && !data.is_empty() {
                pieces.push((index, request.offset, [data]));
            }
        }
    }
    let writes: Vec<WriteReq<'_>> =
        pieces.iter().map(|(_, offset, parts)| WriteReq { offset: *offset, parts }).collect();
    if writes.len() > 1 && !overlap(&writes) {
        match served.device.write_batch(&writes) {
            Ok(()) => return,
            // There may be space for some of them.
            Err(e) if e.is_full() => {}
            Err(e) => {
                pieces.iter().for_each(|(index, ..)| failures[*index] = Some(Failure::of(&e, Command::Write)));
                return;
            }
        }
    }
    for ((index, ..), write) in pieces.iter().zip(&writes) {
        let done = served.device.write_batch(std::slice::from_ref(write));
        failures[*index] = done.err().map(|e| Failure::of(&e, Command::Write));
    }
}

/// Whether two of them share a byte.
fn overlap(writes: &[WriteReq<'_>]) -> bool {
    let mut runs: Vec<(u64, u64)> = writes.iter().map(|w| (w.offset, w.offset + w.len())).collect();
    runs.sort_unstable();
    runs.windows(2).any(|pair| pair[0].1 > pair[1].0)
}

/// A write with FUA: durable when it returns.
pub(super) fn write_durable(served: &Served, request: &Request, data: &[u8]) -> Result<(), Failure> {
    let command = refusal(served, request)?;
    let write = WriteReq { offset: request.offset, parts: &[data] };
    served.device.write_durable(&[write]).map_err(|e| Failure::of(&e, command))
}

/// A command without data: flush, trim, zeros, a hint.
pub(super) fn change(served: &Served, request: &Request) -> Result<(), Failure> {
    let command = refusal(served, request)?;
    let (device, offset, len) = (&served.device, request.offset, u64::from(request.len));
    let failed = |e: DeviceError| Failure::of(&e, command);
    match command {
        Command::Flush => return device.flush().map_err(failed),
        Command::Cache => device.will_read(offset, len),
        Command::Trim => match device.discard(offset, len) {
            // Nobody may rely on it.
            Err(DeviceError::Unsupported { .. }) => {}
            other => other.map_err(failed)?,
        },
        Command::WriteZeroes if len > 0 => {
            let how = Zeroing {
                keep_allocated: request.flags.contains(CommandFlags::NO_HOLE),
                only_fast: request.flags.contains(CommandFlags::FAST_ZERO),
            };
            device.write_zeroes(offset, len, how).map_err(|e| match e {
                DeviceError::Unsupported { .. } => Failure::new(ReplyError::NotSup, e.to_string()),
                _ => failed(e),
            })?;
        }
        _ => {}
    }
    if request.flags.contains(CommandFlags::FUA) && !served.read_only {
        device.flush().map_err(failed)?;
    }
    Ok(())
}

/// What is where.
pub(super) fn status(served: &Served, request: &Request) -> Result<Vec<StatusExtent>, Failure> {
    refusal(served, request)?;
    let count_max = if request.flags.contains(CommandFlags::REQ_ONE) { 1 } else { EXTENTS_MAX };
    let len = u64::from(request.len);
    // Nothing is known if the device does not say, which is no reason to fail.
    let found = served.device.extents(request.offset, len, count_max).unwrap_or_default();
    let mut out: Vec<StatusExtent> = Vec::new();
    let mut left = request.len;
    for extent in found {
        let flags = match extent.kind {
            ExtentKind::Data => AllocationFlags::empty(),
            ExtentKind::Zeros => AllocationFlags::ZERO,
            ExtentKind::Hole => AllocationFlags::ZERO | AllocationFlags::HOLE,
        };
        let len = u32::try_from(extent.len).unwrap_or(u32::MAX).min(left);
        if len > 0 && out.len() < count_max {
            out.push(StatusExtent { len, flags });
        }
        left -= len;
    }
    if out.is_empty() {
        out.push(StatusExtent { len: request.len, flags: AllocationFlags::empty() });
    }
    Ok(out)
}
