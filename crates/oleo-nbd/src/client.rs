//! The client: a [`Device`] whose bytes are an export of a server.
//!
//! Normal path of a read or write: (1) it is cut into requests (`reads`, `writes`); (2) the state gives the session, or
//! waits until there is one (`calls`, `state`); (3) the requests go out and their answers are waited for (`batch`, `link`,
//! `slots`); (4) for a write the state notes that it is confirmed.
//!
//! What goes wrong: a connection that breaks, stalls or breaks the protocol ends the session. If everything that was
//! written is flushed, reads and new writes wait for the next session, which must be with the same export, and holding
//! the same bytes where that is known. If not, nothing is written any more: what was confirmed may be lost, and only the
//! caller knows what that means. Nothing that changes bytes is ever sent twice.
//! A flush that the server refuses counts as lost, too: the next one would prove nothing.
//!
//! Locks: `edges` while blocks of which only a part is written are read and written back; those of the modules.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use oleo_device::{Device, DeviceError, DeviceStats, Extent, ExtentKind, Limits, Op, ReadReq, WriteReq, Zeroing};
use oleo_lock::Mutex;

use crate::error::NbdError;
use crate::uri::Uri;
use crate::wire::{Command, CommandFlags, TransmissionFlags};

mod batch;
mod calls;
mod handshake;
mod keeper;
mod link;
mod options;
mod reads;
mod session;
mod slots;
mod state;
mod unflushed;
mod writes;

pub use options::ClientOptions;

use calls::{Counts, EFFECT_LEN_MAX, Shared, add};
use keeper::Keeper;
use reads::{Cut, Want};
use session::Session;
use state::State;

/// Largest blocks that are written in part: beyond, a write that is torn would change sectors of others.
const BLOCK_LEN_MAX: u32 = 4096;
/// Most questions for extents that one call asks: a server may tell little with each answer.
const STATUS_COUNT_MAX: usize = 16;

/// A device that is an export of a server; see the module's text.
pub struct NbdDevice {
    shared: Arc<Shared>,
    keeper: Option<Keeper>,
}

impl NbdDevice {
    /// Connects. For writing the server must be able to flush: without, nothing could ever be relied on.
    pub fn connect(uri: &Uri, write: bool, options: &ClientOptions) -> Result<NbdDevice, NbdError> {
        let open = Session::open(uri, options, Instant::now() + options.connect_max);
        let session = open.map_err(|error| match error {
            NbdError::Broken { source } if source.kind() == ErrorKind::TimedOut => {
                NbdError::TimedOut { after: options.connect_max }
            }
            other => other,
        })?;
        let agreed = *session.agreed();
        let name: Arc<str> = uri.to_string().into();
        let refused = |what: String| Err(NbdError::Unsupported { what });
        if write && agreed.can(TransmissionFlags::READ_ONLY) {
            return Err(DeviceError::ReadOnly { name, op: Op::Open }.into());
        } else if write && !agreed.can(TransmissionFlags::SEND_FLUSH) {
            return refused("cannot flush, so nothing written would ever be durable".into());
        } else if write && agreed.blocks.min > BLOCK_LEN_MAX {
            return refused(format!(
                "takes blocks of {} bytes only; up to {BLOCK_LEN_MAX} can be written",
                agreed.blocks.min
            ));
        }
        let shared = Arc::new(Shared {
            uri: uri.clone(),
            name,
            write,
            options: options.clone(),
            agreed,
            cut: Cut::new(agreed.blocks),
            state: State::new(session, options.reconnect_max),
            edges: Mutex::new(()),
            counts: Counts::default(),
        });
        let keeper = match write {
            true => Some(Keeper::start(shared.clone()).map_err(NbdError::broken)?),
            false => None,
        };
        Ok(NbdDevice { shared, keeper })
    }
}

impl Drop for NbdDevice {
    fn drop(&mut self) {
        self.keeper = None;
        let shared = &self.shared;
        if shared.state.is_dirty() {
            // Whoever wanted to know has flushed.
            let _unknown = shared.flush();
        }
        if let Some(session) = shared.state.session() {
            session.say_goodbye();
        }
    }
}

impl Device for NbdDevice {
    fn len(&self) -> u64 {
        self.shared.agreed.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let mut reqs = [ReadReq::new(offset, buf)];
        self.read_batch(&mut reqs);
        let [req] = reqs;
        req.result
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.shared.write(&[WriteReq { offset, parts: &[buf] }], false)
    }

    fn read_batch(&self, reqs: &mut [ReadReq<'_>]) {
        let shared = &self.shared;
        let mut wants = Vec::with_capacity(reqs.len());
        let mut places = Vec::with_capacity(reqs.len());
        for (number, ReadReq { offset, buf, result }) in reqs.iter_mut().enumerate() {
            let (offset, len) = (*offset, buf.len() as u64);
            *result = shared.inside(Op::Read, offset, len).map(drop);
            if result.is_ok() && len > 0 {
                wants.push(Want { offset, req: number as u32, buf });
                add(&shared.counts.read_bytes, len);
            }
            places.push((offset, len, result));
        }
        add(&shared.counts.reads, wants.len() as u64);
        shared.read(wants, &mut |number, trouble| {
            let (offset, len, result) = &mut places[number as usize];
            if result.is_ok() {
                **result = Err(shared.failed(Op::Read, *offset, *len, trouble));
            }
        });
    }

    fn write_batch(&self, reqs: &[WriteReq<'_>]) -> Result<(), DeviceError> {
        self.shared.write(reqs, false)
    }

    fn write_durable(&self, reqs: &[WriteReq<'_>]) -> Result<(), DeviceError> {
        if self.shared.agreed.can(TransmissionFlags::SEND_FUA) {
            return self.shared.write(reqs, true);
        }
        self.shared.write(reqs, false)?;
        self.flush()
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if !self.shared.write {
            return Ok(());
        }
        self.shared.flush().map_err(|why| self.shared.failed(Op::Flush, 0, 0, why.into()))
    }

    /// Blocks of which only a part is meant stay as they are.
    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let shared = &self.shared;
        shared.may_write(Op::Discard)?;
        let end = shared.inside(Op::Discard, offset, len)?;
        if !shared.agreed.can(TransmissionFlags::SEND_TRIM) {
            return Err(DeviceError::Unsupported { name: shared.name.clone(), op: Op::Discard });
        }
        add(&shared.counts.discards, 1);
        shared.effect(Op::Discard, Command::Trim, CommandFlags::empty(), shared.cut.up(offset), shared.cut.down(end))
    }

    fn write_zeroes(&self, offset: u64, len: u64, how: Zeroing) -> Result<(), DeviceError> {
        let shared = &self.shared;
        shared.may_write(Op::Zero)?;
        let end = shared.inside(Op::Zero, offset, len)?;
        let (start, stop) = (shared.cut.up(offset), shared.cut.down(end));
        let fast = shared.agreed.can(TransmissionFlags::SEND_WRITE_ZEROES | TransmissionFlags::SEND_FAST_ZERO);
        // Several requests could be refused after the first, edges be written before: nothing must have changed then.
        if how.only_fast && (!fast || (start, stop) != (offset, end) || len > EFFECT_LEN_MAX) {
            return Err(DeviceError::Unsupported { name: shared.name.clone(), op: Op::Zero });
        }
        if start >= stop || !shared.agreed.can(TransmissionFlags::SEND_WRITE_ZEROES) {
            return shared.write_zero_bytes(offset, end);
        }
        let mut flags = CommandFlags::empty();
        flags.set(CommandFlags::NO_HOLE, how.keep_allocated);
        flags.set(CommandFlags::FAST_ZERO, how.only_fast);
        match shared.effect(Op::Zero, Command::WriteZeroes, flags, start, stop) {
            // It offers what it cannot.
            Err(DeviceError::Unsupported { .. }) if !how.only_fast => shared.write_zero_bytes(offset, end),
            result => {
                result?;
                shared.write_zero_bytes(offset, start)?;
                shared.write_zero_bytes(stop, end)
            }
        }
    }

    fn extents(&self, offset: u64, len: u64, count_max: usize) -> Result<Vec<Extent>, DeviceError> {
        let shared = &self.shared;
        let end = shared.inside(Op::Status, offset, len)?;
        let mut out: Vec<Extent> = Vec::new();
        let mut at = offset;
        for _ in 0..STATUS_COUNT_MAX {
            if at >= end || out.len() >= count_max {
                break;
            }
            let (start, stop) = (shared.cut.down(at), shared.cut.up(end));
            let found = shared
                .extents_of(start, stop.min(start + EFFECT_LEN_MAX), count_max == 1)
                .map_err(|why| shared.failed(Op::Status, offset, len, why.into()))?;
            let mut from = start;
            for Extent { len, kind } in found {
                let to = (from + len).min(end);
                let len = to.saturating_sub(from.max(at));
                let full = out.len() == count_max;
                match out.last_mut() {
                    Some(last) if last.kind == kind => last.len += len,
                    _ if len == 0 => {}
                    _ if full => return Ok(out),
                    _ => out.push(Extent { len, kind }),
                }
                from = to;
                at = at.max(to);
            }
        }
        if out.is_empty() && len > 0 && count_max > 0 {
            out.push(Extent { len, kind: ExtentKind::Data });
        }
        Ok(out)
    }

    /// If it is already as long; an export has the length that it has.
    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        if len == self.len() {
            return Ok(());
        }
        Err(DeviceError::Unsupported { name: self.shared.name.clone(), op: Op::Resize })
    }

    fn name(&self) -> String {
        self.shared.name.to_string()
    }

    fn read_only(&self) -> bool {
        !self.shared.write
    }

    fn limits(&self) -> Limits {
        let blocks = &self.shared.agreed.blocks;
        let depth = self.shared.options.window_requests.clamp(1, 64) as u32;
        Limits::default().block_len(blocks.min).preferred_len(blocks.preferred).depth(depth)
    }

    fn stats(&self) -> Option<DeviceStats> {
        let (counts, mut stats) = (&self.shared.counts, DeviceStats::default());
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (stats.reads, stats.read_bytes) = (of(&counts.reads), of(&counts.read_bytes));
        (stats.writes, stats.write_bytes) = (of(&counts.writes), of(&counts.write_bytes));
        (stats.flushes, stats.discards) = (of(&counts.flushes), of(&counts.discards));
        (stats.retries, stats.reconnects) = (of(&counts.retries), self.shared.state.reconnects());
        Some(stats)
    }
}

#[cfg(test)]
mod tests;
