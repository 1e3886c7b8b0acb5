//! Chunks with parity: all stripes of a run of rows are read together; data is looked at as anywhere, and parity has to fit it.
//!
//! Normal path: (1) [`read_rows`] goes through the rows that hold something, and announces a megabyte of each stripe at a time; (2) whoever has time reads some of them,
//! a megabyte of all stripes together, and looks at them ([`RowsRead::check`]); nothing is locked by that, so that a row may have changed in between; (3) a row in which something does not fit is settled ([`settle`]):
//! taken, read again, and looked at again.
//!
//! Settling: data that does not fit is rebuilt in every way that parity allows, and the checksum decides. Then the parity of each column that holds something
//! is compared with its data. Parity is only written anew if all of the column's data is known to be right, or to be nobody's: else rot, or a write that is
//! in no commit yet, would become what parity stands for. What is not known is known after the next commit, so that is waited for. Where parity
//! is left alone on a device that missed writes, that device does not become sound.
//!
//! Locks: a row is held while it is settled, over the reads and writes; plans are made, and commits, before it is taken.

use std::collections::BTreeMap;
use std::sync::Arc;

use oleo_format::DevId;
use oleo_format::raid6::{self, Parity};
use oleo_volume::{ChunkMap, ChunkStripes, STRIPE_LEN, StripeRead};

use super::DeviceScrub;
use super::buffers::{Buffer, Counted, READ_LEN, Wide, row_len};
use super::copies::{count_on_device, slice_len};
use super::plan::{Fault, Fit, Live, Plan, Why};
use super::run::{Job, Run, Task};

/// Rows that are announced together: a megabyte of each stripe.
const ROWS_MAX: u64 = 16;
/// How often a row is looked at again after a commit, before it is left for the next scrub.
const TRIES_MAX: usize = 3;
const UNIT: usize = STRIPE_LEN as usize;

/// Address of a data unit of a row.
fn unit_at(map: &ChunkMap, row: u64, unit: usize) -> u64 {
    map.start.0 + (row * map.data_stripes() + unit as u64) * STRIPE_LEN
}

/// The parts of extents in a data unit of a row; none beyond the end of the chunk.
fn live_in<'p>(plan: &'p Plan, map: &ChunkMap, row: u64, unit: usize) -> impl Iterator<Item = Live> + use<'p> {
    let at = unit_at(map, row, unit);
    plan.live(at, (at + STRIPE_LEN).min(map.end().0))
}

fn data_units(map: &ChunkMap) -> usize {
    map.data_stripes() as usize
}

/// Goes through the rows of a chunk from an offset of its stripes on, and gives out what is to be read.
pub(super) fn read_rows(run: &Run<'_>, task: &Task, chunk: ChunkStripes, stripe: usize, from: u64) {
    let chunk = Arc::new(chunk);
    let map = chunk.map().clone();
    let end = map.stripe_bytes().0.next_multiple_of(STRIPE_LEN);
    let mut from = from / STRIPE_LEN * STRIPE_LEN;
    while from < end && run.goes_on() {
        let to = (from + slice_len(&map)).min(end);
        let (first, last) = (from / STRIPE_LEN, to / STRIPE_LEN);
        let (low, high) = (unit_at(&map, first, 0), unit_at(&map, last, 0).min(map.end().0));
        if let Some(plan) = run.plan(low, high).map(Arc::new) {
            let is_used = |row: u64| (0..data_units(&map)).any(|unit| live_in(&plan, &map, row, unit).next().is_some());
            let mut row = first;
            while row < last {
                if !is_used(row) {
                    row += 1;
                    continue;
                }
                let count = (1..ROWS_MAX).find(|more| row + more >= last || !is_used(row + more)).unwrap_or(ROWS_MAX);
                if !announce(run, &chunk, row, count) {
                    return;
                }
                let end = row + count;
                while row < end {
                    let count = rows_together(&map).min(end - row);
                    let (chunk, plan, wide) = (chunk.clone(), plan.clone(), run.room_for_row(&map));
                    let read = RowsRead { reader: task.devid, chunk, plan, first: row, count, wide };
                    row += count;
                    // All of its devices are read for it, so it counts for one after the other.
                    task.hand_on(
                        run,
                        read.chunk.devid(read.begins_at()),
                        read,
                        map.physical(stripe, row * STRIPE_LEN).0,
                    );
                }
            }
            task.pass(run, map.physical(stripe, to).0);
        } else {
            task.leave_out(run);
        }
        from = to;
    }
}

/// How many rows are read together: one, if it is a wide one.
fn rows_together(map: &ChunkMap) -> u64 {
    (READ_LEN / row_len(map)).max(1)
}

/// Waits until a run of rows may be read, and says that it will be. `false`: the run is to stop.
fn announce(run: &Run<'_>, chunk: &ChunkStripes, first: u64, count: u64) -> bool {
    let len = count * STRIPE_LEN;
    for stripe in 0..chunk.map().stripes.len() {
        if !run.throttle().take(chunk.devid(stripe), len, &|| run.goes_on()) {
            return false;
        }
        chunk.will_read(stripe, first * STRIPE_LEN, len);
    }
    true
}

/// A run of rows that is to be read.
pub(super) struct RowsRead {
    /// The device whose thread goes through the chunk.
    reader: DevId,
    chunk: Arc<ChunkStripes>,
    plan: Arc<Plan>,
    first: u64,
    count: u64,
    /// What it is read into, if that is not the memory of whoever reads it.
    wide: Option<Wide>,
}

impl RowsRead {
    /// The stripe that is read first: another one each time, so that devices are read at the same time by several threads.
    fn begins_at(&self) -> usize {
        let total = self.chunk.map().stripes.len();
        (self.first / rows_together(self.chunk.map())) as usize % total
    }

    /// Reads the stripes one after the other. `false`: not all of them, or not all that was read is to be believed.
    fn read(&self, stripes: &mut [&mut [u8]]) -> bool {
        let (total, begin) = (stripes.len(), self.begins_at());
        let mut all = true;
        for stripe in (begin..total).chain(0..begin) {
            let read = self.chunk.read(stripe, self.first * STRIPE_LEN, stripes[stripe]);
            all &= read.is_ok() && !self.chunk.is_stale(stripe);
        }
        all
    }

    /// Looks at the rows, and settles those in which something does not fit; `false`: not all of them could be settled.
    fn check(&self, run: &Run<'_>, stripes: &mut [&mut [u8]], are_read: bool) -> bool {
        let map = self.chunk.map().clone();
        let mut all = true;
        let mut by_stripe: BTreeMap<usize, DeviceScrub> = BTreeMap::new();
        for row in self.first..self.first + self.count {
            for unit in 0..data_units(&map) {
                let stripe = map.rotated(row, unit);
                if self.chunk.is_present(stripe) {
                    let counts = by_stripe.entry(stripe).or_default();
                    live_in(&self.plan, &map, row, unit).for_each(|live| counts.add_live(&live));
                }
            }
            for stripe in (data_units(&map)..map.stripes.len()).map(|unit| map.rotated(row, unit)) {
                if self.chunk.is_present(stripe) {
                    by_stripe.entry(stripe).or_default().parity_bytes_scrubbed += STRIPE_LEN;
                }
            }
            if !are_read || !self.fits(run, (&map, row), stripes, &mut by_stripe) {
                all &= settle(run, self.reader, &self.chunk, &self.plan, row);
            }
        }
        for (stripe, counts) in by_stripe {
            run.add_of_row(self.reader, self.chunk.devid(stripe), &counts);
        }
        all
    }

    /// Whether all of a row fits, as it was read.
    fn fits(
        &self,
        run: &Run<'_>,
        (map, row): (&ChunkMap, u64),
        stripes: &mut [&mut [u8]],
        counts: &mut BTreeMap<usize, DeviceScrub>,
    ) -> bool {
        let from = ((row - self.first) * STRIPE_LEN) as usize;
        let mut faults = Vec::new();
        for unit in 0..data_units(map) {
            let (stripe, at) = (map.rotated(row, unit), unit_at(map, row, unit));
            for live in live_in(&self.plan, map, row, unit) {
                let start = from + (live.at - at) as usize;
                let bytes = &mut stripes[stripe][start..start + live.len as usize];
                let unknown = self.plan.check(run.volume(), &live, bytes, &mut |_, _| true, &mut faults);
                counts.entry(stripe).or_default().no_csum += unknown;
                if live.is_part_of_block() {
                    run.look_at_straddler(&live, counts.entry(stripe).or_default());
                }
            }
        }
        let units: Vec<&[u8]> =
            (0..map.stripes.len()).map(|unit| &stripes[map.rotated(row, unit)][from..from + UNIT]).collect();
        let (data, parities) = units.split_at(data_units(map));
        let columns = Columns::of(&self.plan, map, row, run.sector());
        let parity_fits = columns.ranges().all(|range| raid6::fits(data, parities, range));
        faults.is_empty() && parity_fits
    }
}

impl Job for RowsRead {
    fn look(mut self: Box<Self>, run: &Run<'_>, buffer: &mut Buffer) -> bool {
        let mut wide = self.wide.take();
        let buffer = wide.as_mut().map_or(buffer, Wide::buffer);
        let (total, len) = (self.chunk.map().stripes.len(), (self.count * STRIPE_LEN) as usize);
        let mut stripes: Vec<&mut [u8]> = buffer.of_len(total * len).chunks_exact_mut(len).collect();
        let are_read = self.read(&mut stripes);
        self.check(run, &mut stripes, are_read)
    }
}

fn sums_of(data: &[&[u8]], parities: usize) -> Vec<Vec<u8>> {
    let len = data.first().map_or(0, |unit| unit.len());
    let mut sums = vec![vec![0; len]; parities];
    if let [p, q @ ..] = &mut sums[..] {
        raid6::sums(data, p, q.first_mut().map(Vec::as_mut_slice));
    }
    sums
}

/// The columns of a row that hold something: sectors at the same offset in all units.
struct Columns {
    sector: usize,
    live: Vec<bool>,
}

impl Columns {
    fn of(plan: &Plan, map: &ChunkMap, row: u64, sector: usize) -> Columns {
        let mut columns = Columns { sector, live: vec![false; UNIT / sector] };
        for unit in 0..data_units(map) {
            let at = unit_at(map, row, unit);
            for live in live_in(plan, map, row, unit) {
                let (from, to) = ((live.at - at) as usize, (live.end() - at) as usize);
                columns.live[from / sector..to.div_ceil(sector)].fill(true);
            }
        }
        columns
    }

    /// Ranges of bytes in the units.
    fn ranges(&self) -> impl Iterator<Item = (usize, usize)> {
        let live = self.live.iter().enumerate().filter(|(_, live)| **live);
        live.map(|(nth, _)| (nth * self.sector, (nth + 1) * self.sector))
    }
}

/// A row in memory: data units, then P, then Q.
struct Row<'c> {
    chunk: &'c ChunkStripes,
    row: u64,
    /// Which look at it this is, from 0.
    attempt: usize,
    sector: usize,
    units: Vec<Vec<u8>>,
    _counted: Counted,
    /// Which sectors of the units could not be read, or are not known any more to be right.
    lost: Vec<Vec<bool>>,
}

impl<'c> Row<'c> {
    /// Reads all of it: whole units, and where that fails sector by sector.
    fn read(run: &Run<'_>, chunk: &'c ChunkStripes, row: u64, attempt: usize) -> Row<'c> {
        let sector = run.sector();
        let counted = run.buffers().count(row_len(chunk.map()));
        let total = chunk.map().stripes.len();
        let (mut units, mut lost) = (vec![vec![0; UNIT]; total], vec![vec![false; UNIT / sector]; total]);
        let mut reads: Vec<StripeRead<'_>> = units
            .iter_mut()
            .enumerate()
            .map(|(unit, buf)| StripeRead::new(chunk.map().rotated(row, unit), row * STRIPE_LEN, buf))
            .collect();
        chunk.read_all(&mut reads);
        let failed: Vec<usize> = (0..total).filter(|&unit| reads[unit].result.is_err()).collect();
        for unit in failed {
            let stripe = chunk.map().rotated(row, unit);
            for (nth, lost) in lost[unit].iter_mut().enumerate() {
                let buf = &mut units[unit][nth * sector..(nth + 1) * sector];
                let offset = row * STRIPE_LEN + (nth * sector) as u64;
                *lost = !chunk.is_present(stripe) || chunk.read(stripe, offset, buf).is_err();
            }
        }
        let data = data_units(chunk.map());
        for (unit, bytes) in units.iter_mut().enumerate().skip(data) {
            chunk.patch(chunk.map().rotated(row, unit), row * STRIPE_LEN, bytes);
        }
        Row { chunk, row, attempt, sector, units, _counted: counted, lost }
    }

    fn data(&self) -> usize {
        data_units(self.chunk.map())
    }

    fn is_lost(&self, unit: usize, from: usize, to: usize) -> bool {
        self.lost[unit][from / self.sector..to.div_ceil(self.sector)].iter().any(|lost| *lost)
    }

    fn set_lost(&mut self, unit: usize, from: usize, to: usize, is: bool) {
        self.lost[unit][from / self.sector..to.div_ceil(self.sector)].fill(is);
    }

    /// Every way to have a part of a data unit from the others, without those that are lost.
    fn rebuilt(&self, want: usize, from: usize, to: usize) -> Vec<Vec<u8>> {
        let (data, total) = (self.data(), self.units.len());
        let lost: Vec<usize> = (0..total).filter(|&unit| unit != want && self.is_lost(unit, from, to)).collect();
        let others: Vec<Option<usize>> = match total - data {
            1 => vec![None],
            _ => [data + 1, data].into_iter().chain((0..data).filter(|&unit| unit != want)).map(Some).collect(),
        };
        let usable = others.into_iter().filter(|other| lost.iter().all(|unit| Some(*unit) == *other));
        let one = |other: Option<usize>| {
            // Without Q the row is one of RAID5.
            let (parity, count, gone) = match other {
                Some(other) if other != data + 1 => (Parity::Raid6, total, vec![want, other]),
                _ => (Parity::Raid5, data + 1, vec![want]),
            };
            let mut parts: Vec<Vec<u8>> = self.units[..count].iter().map(|unit| unit[from..to].to_vec()).collect();
            let mut views: Vec<&mut [u8]> = parts.iter_mut().map(Vec::as_mut_slice).collect();
            raid6::rebuild(&mut views, parity, &gone).ok().map(|()| parts.swap_remove(want))
        };
        usable.filter_map(one).collect()
    }

    /// Writes a part of a unit, and reads it again.
    fn write(&self, unit: usize, from: usize, bytes: &[u8]) -> bool {
        let (stripe, offset) = (self.chunk.map().rotated(self.row, unit), self.row * STRIPE_LEN + from as u64);
        let mut there = vec![0; bytes.len()];
        self.chunk.heal(stripe, offset, bytes).is_ok()
            && self.chunk.read(stripe, offset, &mut there).is_ok()
            && there == bytes
    }
}

/// Looks at a row that did not fit, with nobody else in it, and heals it. `false`: it is to be looked at again, by a scrub that is resumed.
fn settle(run: &Run<'_>, reader: DevId, chunk: &ChunkStripes, plan: &Plan, row: u64) -> bool {
    let map = chunk.map().clone();
    // Whoever has bytes from elsewhere reads trees for that, so it is asked before the row is taken.
    let offered: Offered = match run.has_offers() {
        true => {
            let faults = faults_of(run, plan, &Row::read(run, chunk, row, 0));
            faults.iter().filter_map(|(_, fault)| Some((fault.at, run.offered(plan, fault)?))).collect()
        }
        false => Offered::new(),
    };
    let mut newer = None;
    for attempt in 0..=TRIES_MAX {
        if attempt > 0 {
            let end = unit_at(&map, row + 1, 0).min(map.end().0);
            newer = run.commit_and_load(map.start).then(|| run.plan(unit_at(&map, row, 0), end)).flatten();
            if newer.is_none() {
                return false;
            }
        }
        let settled = {
            let _held = chunk.hold_row(row);
            let plans = (newer.as_ref().unwrap_or(plan), plan);
            settle_once(run, reader, plans, Row::read(run, chunk, row, attempt), &offered)
        };
        if settled {
            return true;
        }
        if !run.goes_on() {
            return false;
        }
    }
    // Whoever writes there all the time writes parity, too.
    true
}

/// Good bytes from elsewhere, by address.
type Offered = BTreeMap<u64, Vec<u8>>;

/// What of the data of a row does not fit, with its unit.
fn faults_of(run: &Run<'_>, plan: &Plan, row: &Row<'_>) -> Vec<(usize, Fault)> {
    let map = row.chunk.map();
    let mut faults: Vec<(usize, Fault)> = Vec::new();
    for unit in 0..row.data() {
        let at = unit_at(map, row.row, unit);
        for live in live_in(plan, map, row.row, unit) {
            let (from, mut found) = ((live.at - at) as usize, Vec::new());
            let mut bytes = row.units[unit][from..from + live.len as usize].to_vec();
            let mut read = |at_unit: u64, bytes: &mut [u8]| {
                let from = (at_unit - at) as usize;
                !row.is_lost(unit, from, from + bytes.len())
            };
            let _no_csum = plan.check(run.volume(), &live, &mut bytes, &mut read, &mut found);
            if row.chunk.is_stale(map.rotated(row.row, unit)) {
                let outdated: Vec<Fault> = plan.outdated(&live, &found).collect();
                found.extend(outdated);
            }
            faults.extend(found.into_iter().map(|fault| (unit, fault)));
        }
    }
    faults
}

/// Settles a row that the caller has taken and read; `false`: it cannot be said yet whether parity may be written anew.
fn settle_once(run: &Run<'_>, reader: DevId, plans: (&Plan, &Plan), mut there: Row<'_>, offered: &Offered) -> bool {
    let plan = plans.0;
    let (chunk, row, attempt) = (there.chunk, there.row, there.attempt);
    let map = chunk.map();
    let mut counts: BTreeMap<usize, DeviceScrub> = BTreeMap::new();
    let faults = faults_of(run, plan, &there);
    for (unit, fault) in &faults {
        let from = (fault.at - unit_at(map, row, *unit)) as usize;
        there.set_lost(*unit, from, from + fault.len as usize, true);
    }
    for (unit, fault) in faults {
        let stripe = map.rotated(row, unit);
        let of_device = counts.entry(stripe).or_default();
        // A device that is not there has no errors; what was found before was counted before.
        if chunk.is_present(stripe) && attempt == 0 {
            of_device.count(&fault.why, plan.sectors(fault.len));
            count_on_device(chunk, stripe, &fault.why);
        }
        heal_data(run, plan, &mut there, (unit, &fault), offered, of_device);
    }
    let settled = settle_parity(run, plans, &there, &mut counts);
    for (stripe, counts) in counts {
        run.add_of_row(reader, chunk.devid(stripe), &counts);
    }
    settled
}

/// Rebuilds what does not fit. What nobody has stays lost.
fn heal_data(
    run: &Run<'_>,
    plan: &Plan,
    row: &mut Row<'_>,
    (unit, fault): (usize, &Fault),
    offered: &Offered,
    counts: &mut DeviceScrub,
) {
    let chunk = row.chunk;
    let map = chunk.map();
    let stripe = map.rotated(row.row, unit);
    let from = (fault.at - unit_at(map, row.row, unit)) as usize;
    let to = from + fault.len as usize;
    let fits = |bytes: &Vec<u8>| match plan.fit_of(run.volume(), fault, bytes) {
        Fit::Yes => true,
        // Nothing can be said about it but that this is what parity has.
        Fit::Unknown => matches!(fault.why, Why::Read | Why::Stale),
        Fit::No(_) => false,
    };
    let good = row.rebuilt(unit, from, to).into_iter().find(fits).or_else(|| offered.get(&fault.at).cloned());
    let sectors = plan.sectors(fault.len);
    let (attempt, place) = (row.attempt, map.physical(stripe, row.row * STRIPE_LEN + from as u64).0);
    let give_up = |counts: &mut DeviceScrub| {
        // What is tried again has been reported.
        if attempt == 0 {
            counts.uncorrectable_errors += if chunk.is_present(stripe) { sectors } else { 0 };
            run.unhealed(chunk.devid(stripe), place, fault);
        }
    };
    let Some(good) = good else { return give_up(counts) };
    row.units[unit][from..to].copy_from_slice(&good);
    row.set_lost(unit, from, to, false);
    if !run.repairs() || !chunk.is_present(stripe) {
        return;
    }
    match row.write(unit, from, &good) {
        true if matches!(fault.why, Why::Stale) => {}
        true => {
            counts.corrected_errors += sectors;
            run.healed(chunk.devid(stripe), place, fault);
        }
        false => give_up(counts),
    }
}

/// Compares parity with data, column by column, and writes it anew where that cannot take anything from anybody.
fn settle_parity(
    run: &Run<'_>,
    (plan, first): (&Plan, &Plan),
    row: &Row<'_>,
    counts: &mut BTreeMap<usize, DeviceScrub>,
) -> bool {
    let (chunk, map, data) = (row.chunk, row.chunk.map(), row.data());
    let units: Vec<&[u8]> = row.units[..data].iter().map(Vec::as_slice).collect();
    let sums = sums_of(&units, row.units.len() - data);
    let leave_alone = |stripe: usize| {
        if chunk.is_stale(stripe) {
            run.stays_stale(chunk.devid(stripe));
        }
    };
    let mut settled = true;
    for (from, to) in Columns::of(plan, map, row.row, row.sector).ranges() {
        if (0..data).any(|unit| row.is_lost(unit, from, to)) {
            // What is left of the relation may be of use to somebody, unless it is of an earlier time.
            (data..row.units.len()).map(|unit| map.rotated(row.row, unit)).for_each(leave_alone);
            continue;
        }
        for (nth, sum) in sums.iter().enumerate() {
            let (unit, stripe) = (data + nth, map.rotated(row.row, data + nth));
            let is_lost = row.is_lost(unit, from, to);
            if !chunk.is_present(stripe) || (!is_lost && row.units[unit][from..to] == sum[from..to]) {
                continue;
            }
            let known = is_known(&[plan, first], row, from, to);
            if run.repairs() && !known {
                settled = false;
                if row.attempt < TRIES_MAX {
                    continue;
                }
                leave_alone(stripe);
            }
            let counts = counts.entry(stripe).or_default();
            counts.parity_errors += 1;
            if is_lost {
                counts.read_errors += 1;
            } else {
                chunk.count_bad(stripe);
            }
            if run.repairs() && known {
                match row.write(unit, from, &sum[from..to]) {
                    true => counts.corrected_errors += u64::from(is_lost),
                    false => counts.uncorrectable_errors += 1,
                }
            }
        }
    }
    settled
}

/// Whether all data of a column is in one of the plans, or nobody's. What is in the first only was freed since, and is given to nobody while that lives.
fn is_known(plans: &[&Plan], row: &Row<'_>, from: usize, to: usize) -> bool {
    let map = row.chunk.map();
    (0..row.data()).all(|unit| {
        let at = unit_at(map, row.row, unit) + from as u64;
        let end = (at + (to - from) as u64).min(map.end().0);
        let is_in = |plan: &&Plan| plan.live(at, end).map(|live| live.len).sum::<u64>() == end.saturating_sub(at);
        plans.iter().any(is_in) || row.chunk.is_free(at - map.start.0, end - at)
    })
}
