//! Writing rows with their parity, in an order that a crash may interrupt anywhere.
//!
//! Normal path of [`Volume::write_rows`], group by group: (1) the rows are taken; what parity needs is read (`stripes`); (2) rows in whose touched columns nothing is
//! live that the batch does not have are written, data and parity in any order; so are those that the batch has whole; (3) of the others a record is made durable (`records`), then they
//! are written. As many as fit into one record go together.
//!
//! Crash: in (2) nothing is at stake; in (3) the record says what is, and the next opening makes parity right.
//! Errors: after a failure in (3) nothing is written any more, not even if it was only for want of room: the record is needed as long as parity does not fit.

use oleo_format::DevId;

use crate::Volume;
use crate::error::VolumeError;
use crate::records::{Budget, LiveParity, Records, Units};
use crate::rows::GRAIN;
use crate::stripes::{ParityOf, Parts, RowWrite, RowWrites, whole_parity};
use crate::write::{HandOver, Writes};

/// Rows that are held, and kept in memory, together: enough for all devices to have something to do.
const ROWS_HELD_MAX: usize = 64;

/// What is recorded of one row: sums, and where they go.
type RowRecord<'l> = Vec<(&'l LiveParity, [Option<DevId>; 2])>;

impl Volume {
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
            let turn = self.rows.now();
            let _held = self.rows.lock(group.iter().map(RowWrite::place));
            let parts = Parts::prepare(group)?;
            self.rows.count_parts(parts.parity.len() as u64, parts.read_bytes);
            let is_live = |row: &RowWrite<'_>, unit: usize, grain: usize| {
                self.rows.is_live(row.place(), unit, grain, row.logical(unit, grain * GRAIN))
            };
            let live = parts.live(group, &is_live);
            let mut of_row = vec![Vec::new(); group.len()];
            live.iter().for_each(|(row, live)| of_row[*row].push(live));

            let mut writes = std::mem::take(&mut others);
            self.add_rows(&mut writes, now.iter(), now.iter().zip(&parity))?;
            let safe = |row: &usize| of_row[*row].is_empty();
            self.add_some(&mut writes, group, &parts, &safe)?;
            self.hand_over(writes, hand_over)?;
            self.write_recorded(group, &parts, &of_row, hand_over)?;
            for row in group {
                row.pieces().for_each(|(unit, from, len)| self.rows.stamp(row.place(), unit, from, len, turn));
            }
            now = &[];
            match groups.next() {
                Some(next) => group = next,
                None => return Ok(()),
            }
        }
    }

    /// Those rows of a group that share columns with what is live: each with a record first.
    fn write_recorded(
        &self,
        group: &[RowWrite<'_>],
        parts: &Parts,
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
                let members: Vec<_> = self.writable_members().into_iter().map(|(member, _)| member).collect();
                let written = records.write(&members, &self.rules, &recorded).map_err(VolumeError::from);
                written.and_then(|()| self.flush_members()).map_err(|e| self.stop_for_good(e))?;
            }
            self.rows.count_records(all - unrecorded, unrecorded, u64::from(unrecorded < all));
            let mut writes = Writes::default();
            self.add_some(&mut writes, group, parts, &|row: &usize| together.contains(row))?;
            self.hand_over(writes, hand_over).map_err(|e| self.stop_for_good(e))?;
        }
        Ok(())
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
        self.add_rows(writes, rows, parity)
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
