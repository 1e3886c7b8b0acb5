//! Writing rows with their parity, in an order that a crash may interrupt anywhere.
//!
//! Normal path of [`Volume::write_rows`], group by group: (1) the rows are taken; what parity needs is read (`stripes`), and parity that does not fit is
//! settled (`doubt`); (2) rows in whose touched columns nothing is
//! live that the batch does not have are written, data and parity in any order; so are those that the batch has whole; (3) of the others a record is made durable (`records`), then they
//! are written. As many as fit into one record go together.
//!
//! Crash: in (2) nothing is at stake; in (3) the record says what is, and the next opening makes parity right.
//! Errors: after a failure in (3) nothing is written any more. If it was only for want of room, parity is made to fit what did get there, and only if that fails
//! nothing is written any more either: the record is needed as long as parity does not fit.

use oleo_format::DevId;

use crate::Volume;
use crate::doubt::{Doubt, Settled};
use crate::error::VolumeError;
use crate::member::Count;
use crate::records::{Bases, Budget, LiveParity, Records, Units};
use crate::rows::{GRAIN, Held};
use crate::stripes::{ParityOf, Parts, RowWrite, RowWrites, whole_parity};
use crate::write::{HandOver, Writes};

/// Rows that are held, and kept in memory, together: enough for all devices to have something to do.
const ROWS_HELD_MAX: usize = 64;

/// How often rows are begun anew because parity does not fit: each time something was healed or settled, so that twice is enough unless what is read
/// changes by itself.
const ATTEMPTS_MAX: u32 = 8;

/// Rows that are held, and what is to be written of them.
struct Prepared<'r> {
    _held: Held<'r>,
    /// The turn, and the superblocks that may be the newest, of before it was asked what is live.
    turn: u64,
    bases: Bases,
    parts: Parts,
}

/// What is recorded of one row: sums, and where they go.
type RowRecord<'l> = Vec<(&'l LiveParity, [Option<DevId>; 2])>;

impl Volume {
    /// Takes the place of records (bytes 512 KiB to 1 MiB) on all devices where something else is in it, a boot loader say, which is lost. Returns on how
    /// many devices there was.
    ///
    /// # Errors
    /// The volume is not open for writing, or a device failed.
    pub fn take_record_places(&self) -> Result<usize, VolumeError> {
        self.may_write()?;
        let mut records = self.rows.records.lock();
        let mut taken = 0;
        for output in self.outputs().iter().filter(|output| !output.is_target) {
            taken += usize::from(records.claim(&output.member).map_err(|e| self.stop(e))?);
        }
        if taken > 0 {
            self.flush_members()?;
        }
        Ok(taken)
    }

    /// Writes rows with their parity, and the first of them together with `others`.
    pub(crate) fn write_rows<'a>(
        &self,
        rows: RowWrites<'a>,
        mut others: Writes<'a>,
        hand_over: HandOver,
    ) -> Result<(), VolumeError> {
        let (whole, partial) = rows.split();
        let parity = whole_parity(&whole);
        self.rows.count_whole(whole.len() as u64);
        let mut now: &[RowWrite<'_>] = &whole;
        let mut groups = partial.chunks(ROWS_HELD_MAX);
        // At least one turn, in which everything is written that needs nothing else.
        let mut group = groups.next().unwrap_or_default();
        loop {
            let prepared = self.prepare(group)?;
            let parts = &prepared.parts;
            self.rows.count_parts(parts.parity.len() as u64, parts.read_bytes);
            let live = parts.live(group);
            let mut of_row = vec![Vec::new(); group.len()];
            live.iter().for_each(|(row, live)| of_row[*row].push(live));

            let mut writes = std::mem::take(&mut others);
            self.add_rows(&mut writes, now.iter(), now.iter().zip(&parity))?;
            let safe = |row: &usize| of_row[*row].is_empty();
            self.add_some(&mut writes, group, parts, &safe)?;
            self.hand_over(writes, hand_over)?;
            self.write_recorded(group, &prepared, &of_row, hand_over)?;
            for row in group {
                let stamp = |(unit, from, len)| self.rows.stamp(row.place(), unit, from, len, prepared.turn);
                row.pieces().for_each(stamp);
            }
            now = &[];
            match groups.next() {
                Some(next) => group = next,
                None => return Ok(()),
            }
        }
    }

    /// Takes the rows of a group, and reads and computes what they need. Parity that does not fit something live is settled first, with the
    /// rows let go meanwhile; then everything is begun anew.
    fn prepare(&self, group: &[RowWrite<'_>]) -> Result<Prepared<'_>, VolumeError> {
        let is_live = |row: &RowWrite<'_>, unit: usize, grain: usize| {
            self.rows.is_live(row.place(), unit, grain, row.logical(unit, grain * GRAIN))
        };
        let mut known: Vec<(Doubt, Settled)> = Vec::new();
        let mut attempts = 0;
        loop {
            attempts += 1;
            let turn = self.rows.now();
            let held = self.rows.lock(group.iter().map(RowWrite::place));
            let bases = self.rows.bases();
            let mut parts = Parts::read(group, &is_live)?;
            let doubts = parts.doubts(group);
            let settled_as = |doubt: &Doubt| known.iter().find(|(of, _)| of.is(doubt)).map(|(_, settled)| settled);
            let Some(witness) = self.rows.witness().filter(|_| !doubts.is_empty()) else {
                parts.finish(group, &|_, _| false);
                return Ok(Prepared { _held: held, turn, bases, parts });
            };
            if attempts >= ATTEMPTS_MAX || doubts.iter().all(|(_, doubt)| settled_as(doubt).is_some()) {
                // What comes out otherwise each time keeps what relation it has.
                let keep = |part: usize, from: usize| {
                    let doubt = doubts.iter().find(|(nth, _)| *nth == part).map(|(_, doubt)| doubt);
                    doubt.is_some_and(|doubt| settled_as(doubt).is_none_or(|settled| settled.keeps(from)))
                };
                parts.finish(group, &keep);
                return Ok(Prepared { _held: held, turn, bases, parts });
            }
            let new: Vec<Doubt> =
                doubts.into_iter().map(|(_, doubt)| doubt).filter(|doubt| settled_as(doubt).is_none()).collect();
            drop(held);
            known.extend(new.into_iter().map(|doubt| {
                let settled = doubt.settle(&*witness);
                self.apply(&doubt, &settled);
                (doubt, settled)
            }));
        }
    }

    /// Counts what was found bad, and writes what it has to be, unless it is something else by now.
    fn apply(&self, doubt: &Doubt, settled: &Settled) {
        for &stripe in &settled.bad {
            doubt.placed.on[stripe].count(Count::Corruption);
        }
        let mut healed = 0;
        let _row = self.rows.lock_one(doubt.placed.map.start, doubt.row);
        for cure in &settled.cures {
            let member = &doubt.placed.on[cure.stripe];
            let at = doubt.placed.map.physical(cure.stripe, cure.offset);
            let mut found = vec![0; cure.was.len()];
            let is_read = member.plain().is_some_and(|device| device.read_at(at.0, &mut found).is_ok());
            if is_read && found == cure.was && member.heal(at, &cure.right).is_ok() {
                healed += cure.right.len().div_ceil(GRAIN) as u64;
            }
        }
        self.rows.count_misfit(healed, (settled.bad.len() as u64).saturating_sub(healed));
    }

    /// Those rows of a group that share columns with what is live: each with a record first.
    fn write_recorded(
        &self,
        group: &[RowWrite<'_>],
        Prepared { bases, parts, .. }: &Prepared<'_>,
        of_row: &[Vec<&LiveParity>],
        hand_over: HandOver,
    ) -> Result<(), VolumeError> {
        let mut left: Vec<usize> = (0..group.len()).filter(|&row| !of_row[row].is_empty()).collect();
        if left.is_empty() {
            return Ok(());
        }
        let mut records = self.rows.records.lock();
        while !left.is_empty() {
            let mut budget = Budget::default();
            let (mut together, mut recorded): (Vec<usize>, RowRecord<'_>) = (Vec::new(), Vec::new());
            for &row in &left {
                let of_row = self.places_of(&mut records, &group[row], &of_row[row]);
                let wanted: Vec<(DevId, usize)> = of_row
                    .iter()
                    .flat_map(|(live, on)| on.iter().flatten().map(|devid| (*devid, live.columns.len)))
                    .collect();
                if !budget.take(&wanted) {
                    break;
                }
                together.push(row);
                recorded.extend(of_row);
            }
            left.drain(..together.len());
            let unrecorded = recorded.iter().filter(|(_, on)| on.iter().all(Option::is_none)).count() as u64;
            let all = recorded.len() as u64;
            if unrecorded < all {
                // Without room for the record nothing is at stake: the columns are as they were.
                let failed = records.write(&self.outputs(), &self.rules, *bases, &recorded);
                self.bear(failed)?;
                self.flush_members().map_err(|e| self.stop_for_good(e))?;
            }
            self.rows.count_records(all - unrecorded, unrecorded, u64::from(unrecorded < all));
            let mut writes = Writes::default();
            self.add_some(&mut writes, group, parts, &|row: &usize| together.contains(row))?;
            if let Err(e) = self.hand_over(writes, hand_over) {
                let fits = e.is_full() && self.make_fit(group, parts, &together, hand_over).is_ok();
                return Err(if fits { e } else { self.stop_for_good(e) });
            }
        }
        Ok(())
    }

    /// Some of a batch found no room: parity is made to fit what is on the devices now, so that the record may be done with. That takes no
    /// room where there was parity before.
    fn make_fit(
        &self,
        group: &[RowWrite<'_>],
        parts: &Parts,
        rows: &[usize],
        hand_over: HandOver,
    ) -> Result<(), VolumeError> {
        let parity = parts.parity_of_devices(group, rows)?;
        let mut writes = Writes::default();
        self.add_rows(&mut writes, [].iter(), parity.iter().map(|(row, parity)| (&group[*row], parity)))?;
        self.hand_over(writes, hand_over)
    }

    /// What of a row is recorded where: each sum on the device of its parity, if that takes records.
    fn places_of<'l>(&self, records: &mut Records, row: &RowWrite<'_>, live: &[&'l LiveParity]) -> RowRecord<'l> {
        let placed = row.placed();
        let data = placed.map.data_stripes() as usize;
        let mut on = [None, None];
        for (nth, on) in on.iter_mut().enumerate().take(usize::from(placed.map.profile.shape().parities)) {
            let member = &placed.on[placed.map.rotated(row.place().1, data + nth)];
            *on = (data <= Units::MAX && records.is_usable(member)).then_some(member.devid);
        }
        live.iter().map(|live| (*live, on)).collect()
    }

    /// Data and parity of some rows of a group.
    fn add_some<'w>(
        &self,
        writes: &mut Writes<'w>,
        group: &'w [RowWrite<'w>],
        parts: &'w Parts,
        wanted: &dyn Fn(&usize) -> bool,
    ) -> Result<(), VolumeError> {
        let rows = group.iter().enumerate().filter(|(row, _)| wanted(row)).map(|(_, row)| row);
        let parity = parts.parity.iter().filter(|(row, _)| wanted(row)).map(|(row, parity)| (&group[*row], parity));
        self.add_rows(writes, rows, parity)?;
        for (row, put) in parts.free_rest(group, wanted) {
            writes.add_to_target(group[row].placed(), &put);
        }
        Ok(())
    }

    fn add_rows<'w>(
        &self,
        writes: &mut Writes<'w>,
        rows: impl Iterator<Item = &'w RowWrite<'w>>,
        parity: impl Iterator<Item = (&'w RowWrite<'w>, &'w ParityOf)>,
    ) -> Result<(), VolumeError> {
        for row in rows {
            row.data().try_for_each(|put| writes.add(row.placed(), &put))?;
        }
        for (row, parity) in parity {
            for put in parity.puts(row) {
                self.rows.count_parity(put.bytes.len() as u64);
                writes.add(row.placed(), &put)?;
            }
        }
        Ok(())
    }
}
