//! What a batch of writes means for rows of chunks with parity.
//!
//! Normal path: (1) `write` sorts the pieces of a batch by row ([`RowWrites::add`]); (2) rows that the batch has whole get their parity from the
//! batch ([`whole_parity`]): nothing is read; (3) of all others the *parts* are found, runs of bytes that are the same in all units and touched in some; what
//! the batch does not have of them is read, or rebuilt from the old parity ([`Parts::read`]); (4) if something in them is live, all of them is read, and the old
//! parity is compared; what does not fit ([`Parts::doubts`]) is for `doubt`; (5) parity is computed of all ([`Parts::finish`]);
//! (6) `write` hands data and parity to the devices together.
//!
//! Parity is computed anew and not from the difference, so that a part whose parity was wrong (its sectors were free, and a crash came) is
//! right afterwards. Only where something live has rotted, and could not be rebuilt, it is off by as much as before: computed anew it would
//! say that what rotted is right.
//!
//! Invariants: after a batch that succeeded the parity of every part that it touched fits, but for what rotted and is lost.
//! Locks: rows of (3) are held by the caller from before the reading until after the writing (`rows`). Rows of (2) are not: all their sectors are the
//! writer's, so nobody else writes there, and nobody has anything to rebuild there.
//! Crash: a part may be left with parity that does not fit, see `docs/crash-model.md`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use oleo_format::raid6::{sums, xor_into};
use oleo_format::{ByteLen, Logical};

use crate::batch::Batch;
use crate::copying::DeviceRange;
use crate::doubt::Doubt;
use crate::error::VolumeError;
use crate::geometry::{ChunkMap, Piece, STRIPE_LEN};
use crate::parallel::{PARALLEL_BYTES_MIN, each};
use crate::rebuild::{rebuild, ways};
use crate::records::{Columns, LiveParity, Units};
use crate::rows::GRAIN;
use crate::table::Placed;

/// Rows whose parity one thread computes before it looks for more.
const ROWS_PER_TASK: usize = 16;

/// A piece of a batch in a unit of a row.
#[derive(Clone, Copy)]
struct UnitPiece<'a> {
    unit: usize,
    /// Bytes from the start of the unit.
    from: usize,
    bytes: &'a [u8],
}

impl UnitPiece<'_> {
    fn end(&self) -> usize {
        self.from + self.bytes.len()
    }
}

/// All that a batch has of one row.
pub(crate) struct RowWrite<'a> {
    placed: Placed,
    row: u64,
    pieces: Vec<UnitPiece<'a>>,
}

/// Bytes for a place of a row.
pub(crate) struct Put<'r> {
    pub stripe: usize,
    /// Bytes from the start of the stripe.
    pub offset: u64,
    pub bytes: &'r [u8],
}

/// The rows of a batch.
#[derive(Default)]
pub(crate) struct RowWrites<'a>(BTreeMap<(u64, u64), RowWrite<'a>>);

impl<'a> RowWrites<'a> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a piece of a chunk with parity.
    pub fn add(&mut self, placed: &Placed, piece: &Piece, bytes: &'a [u8]) {
        let row = piece.offset / STRIPE_LEN;
        let new = || RowWrite { placed: placed.clone(), row, pieces: Vec::new() };
        let unit = placed.map.unit_of(piece.stripe, piece.offset);
        let from = (piece.offset % STRIPE_LEN) as usize;
        self.0.entry((placed.map.start.0, row)).or_insert_with(new).pieces.push(UnitPiece { unit, from, bytes });
    }

    /// The units of these rows on devices with targets.
    pub fn on_targets(&self) -> impl Iterator<Item = DeviceRange> {
        self.0.values().flat_map(|RowWrite { placed, row, .. }| {
            let has_target = |stripe: &usize| placed.on[*stripe].target().is_some();
            (0..placed.on.len()).filter(has_target).map(move |stripe| {
                let from = placed.map.physical(stripe, row * STRIPE_LEN).0;
                DeviceRange { devid: placed.on[stripe].devid, from, to: from + STRIPE_LEN }
            })
        })
    }

    /// Those that the batch has whole, and the others.
    pub fn split(self) -> (Vec<RowWrite<'a>>, Vec<RowWrite<'a>>) {
        self.0.into_values().partition(RowWrite::is_whole)
    }
}

impl<'a> RowWrite<'a> {
    /// The pieces of a batch do not overlap, so their lengths say whether they are all.
    fn is_whole(&self) -> bool {
        let bytes: u64 = self.pieces.iter().map(|p| p.bytes.len() as u64).sum();
        bytes == self.placed.map.data_stripes() * STRIPE_LEN
    }

    /// Where a part of a unit is in logical space.
    pub fn logical(&self, unit: usize, from: usize) -> Logical {
        let map = &self.placed.map;
        map.start + ByteLen((self.row * map.data_stripes() + unit as u64) * STRIPE_LEN + from as u64)
    }

    /// Unit, start in it and length of each piece.
    pub fn pieces(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        self.pieces.iter().map(|p| (p.unit, p.from, p.bytes.len()))
    }

    pub fn placed(&self) -> &Placed {
        &self.placed
    }

    /// The start of its chunk, and its number.
    pub fn place(&self) -> (Logical, u64) {
        (self.placed.map.start, self.row)
    }

    /// The data, where it goes.
    pub fn data(&self) -> impl Iterator<Item = Put<'a>> {
        self.pieces.iter().map(|piece| Put {
            stripe: self.placed.map.rotated(self.row, piece.unit),
            offset: self.row * STRIPE_LEN + piece.from as u64,
            bytes: piece.bytes,
        })
    }

    /// The bytes of each data unit of a row that is whole.
    fn units(&self) -> Vec<Cow<'a, [u8]>> {
        let mut pieces = self.pieces.clone();
        pieces.sort_unstable_by_key(|p| (p.unit, p.from));
        let joined = pieces.chunk_by(|a, b| a.unit == b.unit).map(|unit| match unit {
            [one] => Cow::Borrowed(one.bytes),
            several => Cow::Owned(several.iter().flat_map(|p| p.bytes).copied().collect()),
        });
        joined.collect()
    }

    /// The runs of offsets in units that the batch touches in some unit, rising.
    fn touched(&self) -> Vec<(usize, usize)> {
        let mut runs: Vec<(usize, usize)> = self.pieces.iter().map(|p| (p.from, p.end())).collect();
        runs.sort_unstable();
        let mut merged: Vec<(usize, usize)> = Vec::new();
        for (from, to) in runs {
            match merged.last_mut() {
                Some(last) if last.1 >= from => last.1 = last.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        merged
    }
}

/// Parity of a part of a row: P, and Q if there is one.
pub(crate) struct ParityOf {
    /// Bytes from the start of each stripe.
    offset: u64,
    sums: Vec<Vec<u8>>,
}

impl ParityOf {
    fn compute(map: &ChunkMap, offset: u64, units: &[&[u8]]) -> ParityOf {
        let len = units.first().map_or(0, |unit| unit.len());
        let mut found = vec![vec![0; len]; usize::from(map.profile.shape().parities)];
        if let [p, q @ ..] = &mut found[..] {
            sums(units, p, q.first_mut().map(Vec::as_mut_slice));
        }
        ParityOf { offset, sums: found }
    }

    /// Where it goes.
    pub fn puts<'r>(&'r self, row: &RowWrite<'_>) -> impl Iterator<Item = Put<'r>> {
        let map = row.placed.map.clone();
        let (number, data) = (row.row, map.data_stripes() as usize);
        self.sums.iter().enumerate().map(move |(nth, bytes)| Put {
            stripe: map.rotated(number, data + nth),
            offset: self.offset,
            bytes,
        })
    }
}

/// The parity of rows that a batch has whole, in their order; with all cores, if there is much.
pub(crate) fn whole_parity(rows: &[RowWrite<'_>]) -> Vec<ParityOf> {
    let bytes: u64 = rows.iter().map(|row| row.placed.map.data_stripes() * STRIPE_LEN).sum();
    let one = |row: &RowWrite<'_>| {
        let units = row.units();
        let units: Vec<&[u8]> = units.iter().map(|unit| &**unit).collect();
        ParityOf::compute(&row.placed.map, row.row * STRIPE_LEN, &units)
    };
    let tasks: Vec<&[RowWrite<'_>]> = rows.chunks(ROWS_PER_TASK).collect();
    let done = each(tasks, bytes >= PARALLEL_BYTES_MIN, |rows| rows.iter().map(one).collect::<Vec<_>>());
    done.into_iter().flatten().collect()
}

/// A part of a row with all of its data.
struct Part {
    /// Which row of the batch.
    row: usize,
    from: usize,
    to: usize,
    /// The columns in which something is live that the batch does not have.
    columns: Vec<Columns>,
    /// The data units in this run; in the end as they are to be.
    units: Vec<Vec<u8>>,
    /// If something is live: parity as it is on the devices, as far as it can be read.
    parity: Vec<Option<Vec<u8>>>,
    /// By how much it does not fit, if it does not: what has to be added to parity that fits.
    off: Vec<Vec<u8>>,
}

/// The parity of rows that a batch has in part.
pub(crate) struct Parts {
    /// With the row that it belongs to.
    pub parity: Vec<(usize, ParityOf)>,
    pub read_bytes: u64,
    parts: Vec<Part>,
}

/// Says whether a grain of a unit is live.
pub(crate) type IsLive<'f> = &'f dyn Fn(&RowWrite<'_>, usize, usize) -> bool;

impl Parts {
    /// Reads what the rows' parts need besides the batch; of those with something live all, so that parity can be compared. The caller holds the
    /// rows, until it has written.
    ///
    /// # Errors
    /// Something that the batch does not have can be neither read nor rebuilt.
    pub fn read(rows: &[RowWrite<'_>], is_live: IsLive<'_>) -> Result<Parts, VolumeError> {
        let mut parts = Vec::new();
        for (index, row) in rows.iter().enumerate() {
            parts.extend(row.touched().into_iter().map(|run| Part::new(index, row, run, is_live)));
        }
        let read_bytes = read_rest(rows, &mut parts)?;
        parts.iter_mut().for_each(Part::compare);
        Ok(Parts { parity: Vec::new(), read_bytes, parts })
    }

    /// The parts of which parity does not fit what is live, by their numbers.
    pub fn doubts(&self, rows: &[RowWrite<'_>]) -> Vec<(usize, Doubt)> {
        let of = |(nth, part): (usize, &Part)| Some((nth, part.doubt(&rows[part.row])?));
        self.parts.iter().enumerate().filter_map(of).collect()
    }

    /// Puts the batch over what was read, and computes parity. `keep` gets the number of a part and a place in the unit, and says whether parity that
    /// did not fit is to fit as little as before in the grain there.
    pub fn finish(&mut self, rows: &[RowWrite<'_>], keep: &dyn Fn(usize, usize) -> bool) {
        for (nth, part) in self.parts.iter_mut().enumerate() {
            let row = &rows[part.row];
            part.overlay(&row.pieces);
            let units: Vec<&[u8]> = part.units.iter().map(Vec::as_slice).collect();
            let offset = row.row * STRIPE_LEN + part.from as u64;
            let mut parity = ParityOf::compute(&row.placed.map, offset, &units);
            for (sum, off) in parity.sums.iter_mut().zip(&part.off) {
                for at in (0..off.len()).step_by(GRAIN).filter(|at| keep(nth, part.from + at)) {
                    let to = (at + GRAIN).min(off.len());
                    xor_into(&mut sum[at..to], &off[at..to]);
                }
            }
            self.parity.push((part.row, parity));
        }
    }

    /// What the parity of some rows' parts stands for besides the batch and what is live: bytes that are of nobody, but that a device which takes another's place
    /// lacks where its place was passed over or not reached yet. What is live it has from elsewhere, and verified. After [`finish`](Self::finish).
    pub fn free_rest<'p>(&'p self, rows: &'p [RowWrite<'_>], wanted: &dyn Fn(&usize) -> bool) -> Vec<(usize, Put<'p>)> {
        let parts = self.parts.iter().filter(|part| wanted(&part.row));
        parts.flat_map(|part| part.free_rest(&rows[part.row]).map(|put| (part.row, put))).collect()
    }

    /// The parity of what is on the devices now, in the parts of some rows.
    ///
    /// # Errors
    /// Something cannot be read. Nothing is rebuilt: it would be from parity that need not fit.
    pub fn parity_of_devices(
        &self,
        rows: &[RowWrite<'_>],
        wanted: &[usize],
    ) -> Result<Vec<(usize, ParityOf)>, VolumeError> {
        let one = |part: &Part| {
            let (placed, row) = (&rows[part.row].placed, rows[part.row].row);
            let offset = row * STRIPE_LEN + part.from as u64;
            let mut units = vec![vec![0; part.to - part.from]; part.units.len()];
            for (unit, buf) in units.iter_mut().enumerate() {
                let stripe = placed.map.rotated(row, unit);
                let member = &placed.on[stripe];
                if !member.is_sound() {
                    return Err(VolumeError::OnMissing { devid: member.devid });
                }
                member.read(placed.map.physical(stripe, offset), buf)?;
            }
            let units: Vec<&[u8]> = units.iter().map(Vec::as_slice).collect();
            Ok((part.row, ParityOf::compute(&placed.map, offset, &units)))
        };
        self.parts.iter().filter(|part| wanted.contains(&part.row)).map(one).collect()
    }

    /// The parity of what is live besides the batch, with the row that it belongs to.
    pub fn live(&self, rows: &[RowWrite<'_>]) -> Vec<(usize, LiveParity)> {
        self.parts
            .iter()
            .flat_map(|part| part.live(&rows[part.row].placed.map).map(move |live| (part.row, live)))
            .collect()
    }
}

impl Part {
    fn new(index: usize, row: &RowWrite<'_>, (from, to): (usize, usize), is_live: IsLive<'_>) -> Part {
        let map = &row.placed.map;
        let mut part = Part {
            row: index,
            from,
            to,
            columns: Vec::new(),
            units: vec![vec![0; to - from]; map.data_stripes() as usize],
            parity: Vec::new(),
            off: Vec::new(),
        };
        part.columns = part.live_columns(row, is_live);
        if !part.columns.is_empty() {
            part.parity = vec![Some(vec![0; to - from]); usize::from(map.profile.shape().parities)];
        }
        part
    }

    /// Whether the batch has all of a unit in this run.
    fn has(&self, pieces: &[UnitPiece<'_>], unit: usize) -> bool {
        let clipped = pieces.iter().filter(|p| p.unit == unit).map(|p| {
            let (from, to) = (p.from.max(self.from), p.end().min(self.to));
            to.saturating_sub(from)
        });
        clipped.sum::<usize>() == self.to - self.from
    }

    /// The runs of grains in which the same units are live; without those in which none is.
    fn live_columns(&self, row: &RowWrite<'_>, is_live: IsLive<'_>) -> Vec<Columns> {
        let mut runs: Vec<Columns> = Vec::new();
        for grain in self.from / GRAIN..self.to.div_ceil(GRAIN) {
            let (from, to) = (self.from.max(grain * GRAIN), self.to.min((grain + 1) * GRAIN));
            let mut live = Units::default();
            let is_touched = |unit| row.pieces.iter().any(|p| p.unit == unit && p.from < to && p.end() > from);
            let all = (0..self.units.len()).filter(|&unit| !is_touched(unit) && is_live(row, unit, grain));
            all.for_each(|unit| live.add(unit));
            match runs.last_mut() {
                Some(last) if last.live == live => last.len = to - last.from,
                _ => runs.push(Columns { chunk: row.placed.map.start, row: row.row, from, len: to - from, live }),
            }
        }
        runs.retain(|columns| !columns.live.is_empty());
        runs
    }

    /// The parity of live sectors, of each run of grains that has the same ones.
    fn live<'s>(&'s self, map: &'s ChunkMap) -> impl Iterator<Item = LiveParity> + 's {
        self.columns.iter().map(move |columns| {
            let run = columns.from - self.from..columns.from - self.from + columns.len;
            let units: Vec<&[u8]> = self.units.iter().map(|unit| &unit[run.clone()]).collect();
            LiveParity::of(*columns, map, &units)
        })
    }

    /// Finds out by how much parity does not fit what was read.
    fn compare(&mut self) {
        if self.parity.iter().all(Option::is_none) {
            return;
        }
        let units: Vec<&[u8]> = self.units.iter().map(Vec::as_slice).collect();
        let (mut p, mut q) = (vec![0; self.to - self.from], vec![0; self.to - self.from]);
        sums(&units, &mut p, (self.parity.len() > 1).then_some(&mut q[..]));
        let off = [p, q].into_iter().zip(&self.parity).map(|(mut sum, parity)| {
            match parity {
                Some(parity) => xor_into(&mut sum, parity),
                None => sum.fill(0),
            }
            sum
        });
        self.off = off.collect();
        if self.off.iter().flatten().all(|&byte| byte == 0) {
            self.off.clear();
        }
    }

    /// What does not fit, if something in it is live.
    fn doubt(&self, row: &RowWrite<'_>) -> Option<Doubt> {
        let is_off = |columns: &&Columns| {
            let run = columns.from - self.from..columns.from - self.from + columns.len;
            self.off.iter().any(|off| off[run.clone()].iter().any(|&byte| byte != 0))
        };
        self.columns.iter().find(is_off)?;
        Some(Doubt {
            placed: row.placed.clone(),
            row: row.row,
            from: self.from,
            columns: self.columns.clone(),
            units: self.units.clone(),
            parity: self.parity.clone(),
        })
    }

    /// The runs of grains that the batch does not touch and in which nothing is live, of units whose device is being replaced.
    fn free_rest<'p>(&'p self, row: &RowWrite<'_>) -> impl Iterator<Item = Put<'p>> {
        let mut puts = Vec::new();
        for (unit, bytes) in self.units.iter().enumerate() {
            let stripe = row.placed.map.rotated(row.row, unit);
            if row.placed.on[stripe].target().is_none() {
                continue;
            }
            let mut run: Option<(usize, usize)> = None;
            for grain in self.from / GRAIN..self.to.div_ceil(GRAIN) {
                let (from, to) = (self.from.max(grain * GRAIN), self.to.min((grain + 1) * GRAIN));
                let is_touched = row.pieces.iter().any(|p| p.unit == unit && p.from < to && p.end() > from);
                let is_here = |columns: &&Columns| (columns.from..columns.from + columns.len).contains(&from);
                let is_live = self.columns.iter().find(is_here).is_some_and(|columns| columns.live.has(unit));
                match (&mut run, is_touched || is_live) {
                    (Some(run), false) => run.1 = to,
                    (None, false) => run = Some((from, to)),
                    (_, true) => puts.extend(run.take().map(|run| (stripe, run, bytes))),
                }
            }
            puts.extend(run.map(|run| (stripe, run, bytes)));
        }
        let (start, base) = (row.row * STRIPE_LEN, self.from);
        puts.into_iter().map(move |(stripe, (from, to), bytes)| Put {
            stripe,
            offset: start + from as u64,
            bytes: &bytes[from - base..to - base],
        })
    }

    /// Puts the batch over what was read.
    fn overlay(&mut self, pieces: &[UnitPiece<'_>]) {
        for piece in pieces {
            let (from, to) = (piece.from.max(self.from), piece.end().min(self.to));
            if from < to {
                let bytes = &piece.bytes[from - piece.from..to - piece.from];
                self.units[piece.unit][from - self.from..to - self.from].copy_from_slice(bytes);
            }
        }
    }
}

/// Fills the units of parts that the batch does not have, and all of parts in which something is live; returns how many bytes that were.
fn read_rest(rows: &[RowWrite<'_>], parts: &mut [Part]) -> Result<u64, VolumeError> {
    let mut batch = Batch::default();
    // Part, unit of the row, where it is, and whether the batch has it.
    let mut wanted: Vec<(usize, usize, Piece, bool)> = Vec::new();
    let mut gone: Vec<usize> = Vec::new();
    let mut read_bytes = 0;
    for (index, part) in parts.iter_mut().enumerate() {
        let row = &rows[part.row];
        let (map, offset) = (&row.placed.map, row.row * STRIPE_LEN + part.from as u64);
        let data = part.units.len();
        let has: Vec<bool> = (0..data).map(|unit| part.has(&row.pieces, unit)).collect();
        let compared = !part.columns.is_empty();
        let units = part.units.iter_mut().map(Some).chain(part.parity.iter_mut().map(Option::as_mut));
        for (unit, buf) in units.enumerate() {
            let has = has.get(unit) == Some(&true);
            let Some(buf) = buf.filter(|_| !has || compared) else { continue };
            let stripe = map.rotated(row.row, unit);
            let tag = wanted.len();
            read_bytes += buf.len() as u64;
            wanted.push((index, unit, Piece { at: 0, len: buf.len() as u64, stripe, copies: 1, offset }, has));
            match row.placed.on[stripe].is_sound() {
                true => batch.add(&row.placed.on[stripe], map.physical(stripe, offset).0, buf, tag),
                false => gone.push(tag),
            }
        }
    }
    for (tag, result) in batch.run() {
        if let Err(e) = result {
            let (index, _, piece, _) = wanted[tag];
            // Counted; what is there comes from the others.
            let _ = rows[parts[index].row].placed.on[piece.stripe].read_failed(e);
            gone.push(tag);
        }
    }
    for tag in gone {
        let (index, unit, piece, has) = wanted[tag];
        let part = &mut parts[index];
        let placed = &rows[part.row].placed;
        if let Some(nth) = unit.checked_sub(part.units.len()) {
            part.parity[nth] = None;
            continue;
        }
        let mut why = VolumeError::OnMissing { devid: placed.on[piece.stripe].devid };
        let rebuilt = ways(placed, &piece).into_iter().any(|lost| {
            // Whoever may write has put all parity in order when the volume was opened.
            let done = rebuild(placed, piece.offset, lost, &mut part.units[unit], |_, _, _| {});
            done.map_err(|e| why = e).is_ok()
        });
        if !rebuilt && has {
            // What it was does not matter, but for the comparison.
            part.parity.fill(None);
        } else if !rebuilt {
            return Err(why);
        }
    }
    Ok(read_bytes)
}

#[cfg(test)]
mod tests;
