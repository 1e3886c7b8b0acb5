//! What a batch of writes means for rows of chunks with parity.
//!
//! Normal path: (1) `write` sorts the pieces of a batch by row ([`RowWrites::add`]); (2) rows that the batch has whole get their parity from the
//! batch ([`whole_parity`]): nothing is read; (3) of all others the *parts* are found, runs of bytes that are the same in all units and touched in some; what
//! the batch does not have of them is read, or rebuilt from the old parity, and parity is computed of all ([`Parts::prepare`]);
//! (4) `write` hands data and parity to the devices together.
//!
//! Parity is computed anew and not from the difference, so that a part whose parity was wrong (its sectors were free, and a crash came) is
//! right afterwards.
//!
//! Invariants: after a batch that succeeded the parity of every part that it touched fits.
//! Locks: rows of (3) are held by the caller from before the reading until after the writing (`rows`). Rows of (2) are not: all their sectors are the
//! writer's, so nobody else writes there, and nobody has anything to rebuild there.
//! Crash: a part may be left with parity that does not fit, see `docs/crash-model.md`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use oleo_format::raid6::sums;
use oleo_format::{ByteLen, Logical};

use crate::batch::Batch;
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
    /// The data units in this run.
    units: Vec<Vec<u8>>,
}

/// The parity of rows that a batch has in part.
pub(crate) struct Parts {
    /// With the row that it belongs to.
    pub parity: Vec<(usize, ParityOf)>,
    pub read_bytes: u64,
    parts: Vec<Part>,
}

impl Parts {
    /// Reads what the rows' parts need besides the batch, and computes their parity. The caller holds the rows.
    ///
    /// # Errors
    /// Something that the batch does not have can be neither read nor rebuilt.
    pub fn prepare(rows: &[RowWrite<'_>]) -> Result<Parts, VolumeError> {
        let mut parts = Vec::new();
        for (index, row) in rows.iter().enumerate() {
            let data = row.placed.map.data_stripes() as usize;
            let new = |(from, to): (usize, usize)| Part { row: index, from, to, units: vec![vec![0; to - from]; data] };
            parts.extend(row.touched().into_iter().map(new));
        }
        let read_bytes = read_rest(rows, &mut parts)?;
        let parity = parts.iter_mut().map(|part| {
            let row = &rows[part.row];
            part.overlay(&row.pieces);
            let units: Vec<&[u8]> = part.units.iter().map(Vec::as_slice).collect();
            (part.row, ParityOf::compute(&row.placed.map, row.row * STRIPE_LEN + part.from as u64, &units))
        });
        let parity = parity.collect();
        Ok(Parts { parity, read_bytes, parts })
    }

    /// The parity of what is live besides the batch, with the row that it belongs to. `is_live` gets a unit and a grain of it.
    pub fn live(
        &self,
        rows: &[RowWrite<'_>],
        is_live: &dyn Fn(&RowWrite<'_>, usize, usize) -> bool,
    ) -> Vec<(usize, LiveParity)> {
        self.parts
            .iter()
            .flat_map(|part| part.live(&rows[part.row], is_live).map(move |live| (part.row, live)))
            .collect()
    }
}

impl Part {
    /// Whether the batch has all of a unit in this run.
    fn has(&self, pieces: &[UnitPiece<'_>], unit: usize) -> bool {
        let clipped = pieces.iter().filter(|p| p.unit == unit).map(|p| {
            let (from, to) = (p.from.max(self.from), p.end().min(self.to));
            to.saturating_sub(from)
        });
        clipped.sum::<usize>() == self.to - self.from
    }

    /// The parity of live sectors, of each run of grains that has the same ones.
    fn live(
        &self,
        row: &RowWrite<'_>,
        is_live: &dyn Fn(&RowWrite<'_>, usize, usize) -> bool,
    ) -> impl Iterator<Item = LiveParity> {
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
        let of = |columns: Columns| {
            let run = columns.from - self.from..columns.from - self.from + columns.len;
            let units: Vec<&[u8]> = self.units.iter().map(|unit| &unit[run.clone()]).collect();
            LiveParity::of(columns, &row.placed.map, &units)
        };
        runs.into_iter().filter(|columns| !columns.live.is_empty()).map(of).collect::<Vec<_>>().into_iter()
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

/// Fills the units of parts that the batch does not have; returns how many bytes that were.
fn read_rest(rows: &[RowWrite<'_>], parts: &mut [Part]) -> Result<u64, VolumeError> {
    let mut batch = Batch::default();
    let mut wanted: Vec<(usize, usize, Piece)> = Vec::new();
    let mut gone: Vec<usize> = Vec::new();
    let mut read_bytes = 0;
    for (index, part) in parts.iter_mut().enumerate() {
        let row = &rows[part.row];
        let (map, offset) = (&row.placed.map, row.row * STRIPE_LEN + part.from as u64);
        let has: Vec<bool> = (0..part.units.len()).map(|unit| part.has(&row.pieces, unit)).collect();
        for (unit, buf) in part.units.iter_mut().enumerate().filter(|(unit, _)| !has[*unit]) {
            let stripe = map.rotated(row.row, unit);
            let tag = wanted.len();
            read_bytes += buf.len() as u64;
            wanted.push((index, unit, Piece { at: 0, len: buf.len() as u64, stripe, copies: 1, offset }));
            match row.placed.on[stripe].device.is_some() {
                true => batch.add(&row.placed.on[stripe], map.physical(stripe, offset).0, buf, tag),
                false => gone.push(tag),
            }
        }
    }
    for (tag, result) in batch.run() {
        if let Err(e) = result {
            let (index, _, piece) = wanted[tag];
            // Counted; what is there comes from the others.
            let _ = rows[parts[index].row].placed.on[piece.stripe].read_failed(e);
            gone.push(tag);
        }
    }
    for tag in gone {
        let (index, unit, piece) = wanted[tag];
        let part = &mut parts[index];
        let placed = &rows[part.row].placed;
        let mut why = VolumeError::OnMissing { devid: placed.on[piece.stripe].devid };
        let rebuilt = ways(placed, &piece).into_iter().any(|lost| {
            // Whoever may write has put all parity in order when the volume was opened.
            let done = rebuild(placed, piece.offset, lost, &mut part.units[unit], |_, _, _| {});
            done.map_err(|e| why = e).is_ok()
        });
        if !rebuilt {
            return Err(why);
        }
    }
    Ok(read_bytes)
}

#[cfg(test)]
mod tests;
