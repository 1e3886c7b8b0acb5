//! Fills a device that takes another's place with what the other has, or should have.
//!
//! Normal path of [`Volume::refill`], for a run of one chunk's stripe on the device: (1) nobody writes there meanwhile (`copying`),
//! so that nothing that is written is overwritten with what was read before; (2) each stripe unit is read from the first source whose
//! bytes the caller finds good, sector by sector: the device itself, if it has all, other copies, the rest of the row; parity is computed;
//! (3) it is written to the target. Several runs may be filled at the same time.
//!
//! What nothing names is left out, but for rows with parity of which anything is named: the parity there is that of all bytes.
//! Invariant: the places of superblocks are left alone.
//! Locks: `targets_stay`, read, and the run (`copying`), over one run. Crash: the same is done again.

use oleo_device::{Device, WriteReq};
use oleo_format::raid6::sums;
use oleo_format::{ByteLen, DevId, Logical, SUPER_LEN, SUPER_OFFSETS};

use crate::Volume;
use crate::copying::DeviceRange;
use crate::error::VolumeError;
use crate::geometry::{Piece, STRIPE_LEN};
use crate::losses::Failure;
use crate::rebuild::{rebuild, ways};
use crate::table::Placed;

/// Places that are named of those that could not be had.
const BAD_MAX: usize = 64;

/// Says whether bytes are what they should be.
pub trait Verify {
    /// Bytes that are looked at together: a sector, or a tree block.
    fn grain(&self) -> usize;
    /// Whether bytes read from an address, one grain, are good, as far as anybody knows.
    fn is_good(&self, at: Logical, bytes: &[u8]) -> bool;
}

/// A run of a chunk's stripe.
#[derive(Clone, Copy, Debug)]
pub struct RefillRun {
    /// The device.
    pub devid: DevId,
    /// The start of the chunk.
    pub chunk: Logical,
    /// Which of the chunk's stripes, which is on the device.
    pub stripe: usize,
    /// Bytes from the start of the stripe, a multiple of the stripe unit.
    pub from: u64,
    /// Bytes.
    pub len: u64,
}

/// What was done.
#[derive(Clone, Debug, Default)]
pub struct Refilled {
    /// Bytes that were written.
    pub written: u64,
    /// Grains of which no good copy was found: what could be read of them was written.
    pub bad: u64,
    /// Where some of them are.
    pub bad_at: Vec<Logical>,
}

/// A unit as it was read: what of it could not be is not `read`.
struct Unit {
    bytes: Vec<u8>,
    read: Vec<bool>,
}

impl Volume {
    /// Fills a run of a device's target.
    ///
    /// # Errors
    /// There is no such stripe; the device has no target, or it failed, which is the end of it.
    pub fn refill(&self, run: &RefillRun, verify: &dyn Verify) -> Result<Refilled, VolumeError> {
        self.may_write()?;
        let _targets_stay = self.targets_stay.read();
        let (placed, range) = self.place_of(run)?;
        let _nobody_writes_there = self.copying.copy(range);
        // Its place may have become another chunk's before it was ours.
        let (again, same_range) = self.place_of(run)?;
        if placed.map.stripes != again.map.stripes || range != same_range {
            return Err(VolumeError::Unmapped { at: run.chunk, len: 1 });
        }
        let (on, stripe) = (&placed.on[run.stripe], run.stripe);
        let mut done = Refilled::default();
        let output = on.target_output().ok_or(VolumeError::OnMissing { devid: run.devid })?;
        let mut units: Vec<(u64, Vec<u8>)> = Vec::new();
        let end = run.from + range.len();
        for offset in (run.from..end).step_by(STRIPE_LEN as usize) {
            let len = STRIPE_LEN.min(end - offset);
            let at = placed.map.physical(stripe, offset).0;
            let holds_super = |place: &u64| *place < at + len && at < *place + SUPER_LEN as u64;
            if SUPER_OFFSETS.iter().any(holds_super) || self.is_free_unit(&placed, stripe, offset, len) {
                continue;
            }
            if let Some(bytes) = self.good_unit(&placed, stripe, offset, len as usize, verify, &mut done) {
                units.push((at, bytes));
            }
        }
        let parts: Vec<[&[u8]; 1]> = units.iter().map(|(_, bytes)| [bytes.as_slice()]).collect();
        let reqs: Vec<_> = units.iter().zip(&parts).map(|((at, _), parts)| WriteReq { offset: *at, parts }).collect();
        done.written = reqs.iter().map(WriteReq::len).sum();
        // Nobody will read it soon, and other runs are read meanwhile.
        if let Err(error) = output.device.write_uncached(&reqs) {
            self.bear(vec![Failure::new(&output, error.clone())])?;
            return Err(error.into());
        }
        Ok(done)
    }

    /// Says that a run of a device will be copied soon: what of it is named is read ahead.
    pub fn will_refill(&self, run: &RefillRun) {
        let Ok((placed, range)) = self.place_of(run) else { return };
        let member = &placed.on[run.stripe];
        let Some(device) = member.plain().filter(|_| member.reluctance() == 0) else { return };
        let wanted =
            |at: &u64| !self.is_free_unit(&placed, run.stripe, *at, STRIPE_LEN.min(run.from + range.len() - at));
        if let Some(first) = (run.from..run.from + range.len()).step_by(STRIPE_LEN as usize).find(wanted) {
            device.will_read(range.from + (first - run.from), range.len() - (first - run.from));
        }
    }

    /// The chunk of a run, and its place on the device.
    fn place_of(&self, run: &RefillRun) -> Result<(Placed, DeviceRange), VolumeError> {
        let placed = self.placed(run.chunk)?;
        let on = placed.on.get(run.stripe).filter(|on| placed.map.start == run.chunk && on.devid == run.devid);
        on.ok_or(VolumeError::Unmapped { at: run.chunk, len: 1 })?;
        let end = run.from.saturating_add(run.len).min(placed.map.stripe_bytes().0);
        let place = |offset: u64| placed.map.physical(run.stripe, offset).0;
        let range = DeviceRange { devid: run.devid, from: place(run.from.min(end)), to: place(end) };
        Ok((placed, range))
    }

    /// Whether nothing names what a unit holds, or stands for.
    fn is_free_unit(&self, placed: &Placed, stripe: usize, offset: u64, len: u64) -> bool {
        let map = &placed.map;
        if map.profile.has_parity() {
            let row_len = map.data_stripes() * STRIPE_LEN;
            return self.rows.is_free(map.start + ByteLen(offset / STRIPE_LEN * row_len), ByteLen(row_len));
        }
        map.logical_of(stripe, offset).is_none_or(|at| self.rows.is_free(map.start + ByteLen(at), ByteLen(len)))
    }

    /// The bytes that belong into a unit; `None`: nothing can be read.
    fn good_unit(
        &self,
        placed: &Placed,
        stripe: usize,
        offset: u64,
        len: usize,
        verify: &dyn Verify,
        done: &mut Refilled,
    ) -> Option<Vec<u8>> {
        let map = &placed.map;
        let Some(at) = map.logical_of(stripe, offset) else {
            return map.profile.has_parity().then(|| self.parity_of(placed, stripe, offset, len, verify, done))?;
        };
        let at = map.start + ByteLen(at);
        let grain = verify.grain();
        let mut best: Option<Vec<u8>> = None;
        let mut bad: Vec<usize> = (0..len.div_ceil(grain)).collect();
        let range = |nth: usize| nth * grain..((nth + 1) * grain).min(len);
        for source in self.sources_of(placed, stripe, offset, len) {
            let Some(unit) = self.read_from(placed, source, offset, len, grain) else { continue };
            let good = |nth: usize| {
                unit.read[nth] && verify.is_good(at + ByteLen((nth * grain) as u64), &unit.bytes[range(nth)])
            };
            let (still_bad, found): (Vec<usize>, Vec<usize>) = bad.into_iter().partition(|&nth| !good(nth));
            bad = still_bad;
            match &mut best {
                None => best = Some(unit.bytes),
                Some(best) => found.iter().for_each(|&nth| best[range(nth)].copy_from_slice(&unit.bytes[range(nth)])),
            }
            if bad.is_empty() {
                break;
            }
        }
        done.bad += bad.len() as u64;
        let places = bad.iter().map(|nth| at + ByteLen((nth * grain) as u64));
        done.bad_at.extend(places.take(BAD_MAX.saturating_sub(done.bad_at.len())));
        best
    }

    /// Parity, of the data of its row.
    fn parity_of(
        &self,
        placed: &Placed,
        stripe: usize,
        offset: u64,
        len: usize,
        verify: &dyn Verify,
        done: &mut Refilled,
    ) -> Option<Vec<u8>> {
        let map = &placed.map;
        let (row, data) = (offset / STRIPE_LEN, map.data_stripes() as usize);
        let one = |unit: usize, done: &mut Refilled| {
            self.good_unit(placed, map.rotated(row, unit), offset, len, verify, done)
        };
        let units: Vec<Vec<u8>> = (0..data).map(|unit| one(unit, done)).collect::<Option<_>>()?;
        let views: Vec<&[u8]> = units.iter().map(Vec::as_slice).collect();
        let (mut p, mut q) = (vec![0; len], vec![0; len]);
        let is_q = map.unit_of(stripe, offset) > data;
        sums(&views, &mut p, is_q.then_some(&mut q[..]));
        Some(if is_q { q } else { p })
    }

    /// Where the bytes of a data unit can be had, the best first.
    fn sources_of(&self, placed: &Placed, stripe: usize, offset: u64, len: usize) -> Vec<From> {
        let map = &placed.map;
        if map.profile.has_parity() {
            let own = placed.on[stripe].is_readable().then_some(From::Stripe(stripe));
            let piece = Piece { at: 0, len: len as u64, stripe, copies: 1, offset };
            let mut all: Vec<From> = own.into_iter().collect();
            all.extend(ways(placed, &piece).into_iter().map(From::Row));
            if own.is_some() && placed.on[stripe].reluctance() > 0 {
                all.rotate_left(1);
            }
            return all;
        }
        let copies = usize::from(map.profile.shape().copies);
        let first = stripe / copies * copies;
        // What is there is as good as any other, and where it is sound it is nearest.
        let mut stripes: Vec<usize> = (first..first + copies).filter(|&s| placed.on[s].is_readable()).collect();
        stripes.sort_by_key(|&s| (placed.on[s].reluctance(), s != stripe));
        stripes.into_iter().map(From::Stripe).collect()
    }

    fn read_from(&self, placed: &Placed, source: From, offset: u64, len: usize, grain: usize) -> Option<Unit> {
        let mut bytes = vec![0; len];
        let count = len.div_ceil(grain);
        match source {
            From::Row(lost) => {
                rebuild(placed, offset, lost, &mut bytes, |_, _, _| {}).ok()?;
                Some(Unit { bytes, read: vec![true; count] })
            }
            From::Stripe(stripe) => {
                let (member, at) = (&placed.on[stripe], placed.map.physical(stripe, offset));
                if member.read(at, &mut bytes).is_ok() {
                    return Some(Unit { bytes, read: vec![true; count] });
                }
                let each = bytes.chunks_mut(grain).enumerate();
                let read: Vec<bool> =
                    each.map(|(nth, part)| member.read(at + ByteLen((nth * grain) as u64), part).is_ok()).collect();
                read.contains(&true).then_some(Unit { bytes, read })
            }
        }
    }
}

/// Where bytes come from.
#[derive(Clone, Copy)]
enum From {
    Stripe(usize),
    Row(crate::rebuild::Lost),
}
