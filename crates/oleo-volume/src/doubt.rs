//! Parity that does not fit live sectors when a part of their row is to be written: either a crash left it stale, or one of them has rotted.
//!
//! Computed anew from what was read, parity would make what rotted the truth, and the last way to rebuild it would be gone. Changed by the
//! difference only, parity that is stale would stay so for ever. So those are asked who know what the live sectors should be, a [`Witness`].
//!
//! Normal path of [`Doubt::settle`], which does no I/O of rows: (1) the live sectors of every unit are shown to the witness; (2) none is bad: parity is stale, and
//! is computed anew; (3) one is bad: every way to rebuild it from the others and the old parity is tried, until the witness finds the outcome
//! good ([`Cure`]); (4) where something is bad, rebuilt or not, parity keeps being off by as much as it is: what can be healed fits afterwards,
//! and what cannot is not less likely to be rebuilt than before, should another sector be had from elsewhere.
//!
//! Locks: none. The witness reads trees, which may have to be rebuilt from the same row, so whoever asks holds no row, and begins anew afterwards.
//! Crash: a cure is the only thing that is written, and is what the sector was.

use oleo_format::raid6::{self, Parity};
use oleo_format::{ByteLen, Logical};

use crate::geometry::STRIPE_LEN;
use crate::records::Columns;
use crate::rows::{GRAIN, Verdict, Witness};
use crate::table::Placed;

/// A part of a row whose parity does not fit.
#[derive(Clone)]
pub(crate) struct Doubt {
    pub placed: Placed,
    pub row: u64,
    /// Bytes from the start of each unit.
    pub from: usize,
    /// Where something is live.
    pub columns: Vec<Columns>,
    /// The data units in this run, as they were read.
    pub units: Vec<Vec<u8>>,
    /// Parity, as far as it was read.
    pub parity: Vec<Option<Vec<u8>>>,
}

/// What a bad run of a unit has to be.
pub(crate) struct Cure {
    pub stripe: usize,
    /// Bytes from the start of the stripe.
    pub offset: u64,
    pub was: Vec<u8>,
    pub right: Vec<u8>,
}

/// What came out.
#[derive(Default)]
pub(crate) struct Settled {
    pub cures: Vec<Cure>,
    /// The stripe of each bad grain.
    pub bad: Vec<usize>,
    /// Grains, by their first byte in the unit, in which something is bad.
    keep: Vec<usize>,
}

impl Settled {
    /// Whether parity is to be off by as much as before in the grain at a place of the unit.
    pub fn keeps(&self, from: usize) -> bool {
        self.keep.contains(&from)
    }
}

/// A run of a unit in a doubt: unit, first byte and end in the doubt's bytes.
type Run = (usize, usize, usize);

impl Doubt {
    /// Whether this is the same part with the same bytes.
    pub fn is(&self, other: &Doubt) -> bool {
        (self.placed.map.start, self.row, self.from) == (other.placed.map.start, other.row, other.from)
            && self.columns == other.columns
            && self.units == other.units
            && self.parity == other.parity
    }

    /// Where a run of a unit is in logical space.
    fn logical(&self, unit: usize, from: usize) -> Logical {
        let map = &self.placed.map;
        map.start + ByteLen((self.row * map.data_stripes() + unit as u64) * STRIPE_LEN + (self.from + from) as u64)
    }

    /// Finds out what is wrong, and how it is put right.
    pub fn settle(&self, witness: &dyn Witness) -> Settled {
        let bad = self.bad_runs(witness);
        let mut settled = Settled::default();
        for &(unit, from, to) in &bad {
            let stripe = self.placed.map.rotated(self.row, unit);
            for at in (from..to).step_by(GRAIN) {
                settled.bad.push(stripe);
                settled.keep.push(self.from + at);
            }
            if let Some(right) = self.rebuilt((unit, from, to), &bad, witness) {
                let offset = self.row * STRIPE_LEN + (self.from + from) as u64;
                settled.cures.push(Cure { stripe, offset, was: self.units[unit][from..to].to_vec(), right });
            }
        }
        settled
    }

    /// The runs of live grains that the witness finds bad.
    fn bad_runs(&self, witness: &dyn Witness) -> Vec<Run> {
        let mut bad = Vec::new();
        for unit in 0..self.units.len() {
            for (from, to) in self.live_runs(unit) {
                let verdicts = witness.verdicts(self.logical(unit, from), &self.units[unit][from..to]);
                let mut run: Option<Run> = None;
                for (at, verdict) in (from..to).step_by(GRAIN).zip(verdicts) {
                    let end = (at + GRAIN).min(to);
                    match (&mut run, verdict == Verdict::Bad) {
                        (Some(run), true) => run.2 = end,
                        (None, true) => run = Some((unit, at, end)),
                        (_, false) => bad.extend(run.take()),
                    }
                }
                bad.extend(run);
            }
        }
        bad
    }

    /// Where a unit is live, in the doubt's bytes; neighbours are one run.
    fn live_runs(&self, unit: usize) -> Vec<(usize, usize)> {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for columns in self.columns.iter().filter(|columns| columns.live.has(unit)) {
            let (from, to) = (columns.from - self.from, columns.from - self.from + columns.len);
            match runs.last_mut() {
                Some(last) if last.1 == from => last.1 = to,
                _ => runs.push((from, to)),
            }
        }
        runs
    }

    /// What a run has to be, if there is a way to rebuild it that the witness finds good.
    fn rebuilt(&self, (unit, from, to): Run, bad: &[Run], witness: &dyn Witness) -> Option<Vec<u8>> {
        let (data, parities) = (self.units.len(), self.parity.len());
        let also_bad = |&&(other, f, t): &&Run| other != unit && f < to && t > from;
        let mut lost = vec![unit];
        lost.extend(bad.iter().filter(also_bad).map(|run| run.0));
        lost.extend((0..parities).filter(|&nth| self.parity[nth].is_none()).map(|nth| data + nth));
        lost.sort_unstable();
        lost.dedup();
        // Where more could be lost something else may be wrong besides: parity, or what nobody knows. Without Q first.
        let others = (0..data + parities).rev().filter(|other| !lost.contains(other));
        let ways: Vec<Vec<usize>> = match parities.checked_sub(lost.len())? {
            0 => vec![lost],
            _ => others.map(|other| [&lost[..], &[other]].concat()).collect(),
        };
        let kind = if parities == 1 { Parity::Raid5 } else { Parity::Raid6 };
        ways.into_iter().find_map(|lost| {
            let zeros = || vec![0; to - from];
            let parity = self.parity.iter().map(|parity| parity.as_ref().map_or_else(zeros, |p| p[from..to].to_vec()));
            let mut row: Vec<Vec<u8>> = self.units.iter().map(|bytes| bytes[from..to].to_vec()).chain(parity).collect();
            let mut views: Vec<&mut [u8]> = row.iter_mut().map(Vec::as_mut_slice).collect();
            raid6::rebuild(&mut views, kind, &lost).ok()?;
            let right = row.swap_remove(unit);
            let verdicts = witness.verdicts(self.logical(unit, from), &right);
            verdicts.iter().all(|&verdict| verdict == Verdict::Good).then_some(right)
        })
    }
}
