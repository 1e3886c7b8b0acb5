//! The checksum tree as runs of bytes with checksums.
//!
//! Items that follow each other without a gap are one run, so memory is 16 bytes per gap, not per sector.

use oleo_format::{CheckedNode, ItemType, Logical, TreeId};

use crate::extents::{Early, note_early};
use crate::finding::{Kind, Place};
use crate::ranges::without;
use crate::refs::Extents;
use crate::walk::{Context, Visit, Visitor};

/// What one batch of blocks of the checksum tree yields.
#[derive(Default)]
pub(crate) struct CsumPart {
    runs: Vec<(u64, u64)>,
    pub early: Vec<Early>,
    pub refs: Vec<(u64, TreeId)>,
}

pub(crate) struct CsumVisitor {
    pub csum_len: usize,
    pub sectorsize: u64,
}

impl Visitor for CsumVisitor {
    type Out = CsumPart;

    fn block(&self, node: &CheckedNode, visit: &Visit<'_>, out: &mut CsumPart) -> usize {
        note_early(node, visit, &mut out.early, &mut out.refs);
        if node.is_leaf() {
            for (key, item) in node.iter().filter(|(key, _)| key.item_type == ItemType::EXTENT_CSUM) {
                let len = (item.len() / self.csum_len) as u64 * self.sectorsize;
                let end = key.offset.saturating_add(len);
                match out.runs.last_mut() {
                    Some((_, last)) if *last == key.offset => *last = end,
                    _ => out.runs.push((key.offset, end)),
                }
            }
        }
        0
    }
}

/// Runs with checksums: start and end, rising.
#[derive(Debug, Default)]
pub(crate) struct Csums {
    runs: Vec<(u64, u64)>,
}

impl Csums {
    /// Makes the list from runs that rise and do not touch.
    pub fn of_runs(runs: Vec<(u64, u64)>) -> Csums {
        Csums { runs }
    }

    /// Merges the parts.
    pub fn merge(cx: &Context<'_>, parts: &mut [CsumPart]) -> Csums {
        let mut all: Vec<(u64, u64)> = parts.iter_mut().flat_map(|p| std::mem::take(&mut p.runs)).collect();
        all.sort_unstable();
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (start, end) in all {
            match runs.last_mut() {
                Some((_, last)) if start <= *last => {
                    if start < *last {
                        let place = csum_place(start);
                        cx.error(Kind::CsumOverlap, place, format_args!("begins before {last}"), "no overlap");
                    }
                    *last = end.max(*last);
                }
                _ => runs.push((start, end)),
            }
        }
        runs.shrink_to_fit();
        Csums { runs }
    }

    /// How many bytes of the range have checksums.
    pub fn covered(&self, start: u64, len: u64) -> u64 {
        let end = start.saturating_add(len);
        let first = self.runs.partition_point(|run| run.1 <= start);
        self.runs[first..].iter().take_while(|run| run.0 < end).map(|run| run.1.min(end) - run.0.max(start)).sum()
    }

    /// All bytes with checksums.
    pub fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.1 - run.0).sum()
    }

    /// The runs.
    pub fn runs(&self) -> &[(u64, u64)] {
        &self.runs
    }

    /// The end of the run of checksums that covers the byte.
    pub fn end_of_run(&self, at: u64) -> Option<u64> {
        let run = self.runs.get(self.runs.partition_point(|run| run.1 <= at))?;
        (run.0 <= at).then_some(run.1)
    }

    /// Checks that every byte with a checksum is in a data extent, or in data that a log names (`logged`: start and
    /// end, rising). A crash may leave checksums of synced data in the checksum tree.
    pub fn check_extents(&self, cx: &Context<'_>, extents: &Extents, logged: &[(u64, u64)]) {
        let unit = u64::from(cx.env.rules.sectorsize);
        for &(start, end) in &self.runs {
            let mut at = start;
            let mut i = extents.first_beyond(start, unit);
            while at < end {
                // There is no extent between `at` and the next data extent.
                while i < extents.len() && (!extents.of[i].is_data() || extents.end(i, unit) <= at) {
                    i += 1;
                }
                let next = if i < extents.len() { extents.at[i].min(end) } else { end };
                if next > at {
                    for (start, end) in without(&[(at, next)], logged) {
                        let have = format_args!("checksums of {start}..{end}").to_string();
                        cx.error(Kind::CsumWithoutExtent, csum_place(start), have, "a data extent there");
                    }
                }
                at = if i < extents.len() { next.max(extents.end(i, unit)) } else { end };
            }
        }
    }
}

pub(crate) fn csum_place(at: u64) -> Place {
    Place { tree: Some(TreeId::CSUM), block: Some(Logical(at)), ..Place::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: coverage counts what lies in runs. Method: two runs, ranges before, across, between and after.
    #[test]
    fn coverage_counts_what_lies_in_runs() {
        let csums = Csums { runs: vec![(100, 200), (300, 400)] };
        let cases = [((0, 100), 0), ((50, 100), 50), ((100, 100), 100), ((150, 200), 100), ((200, 100), 0)];
        for ((start, len), want) in cases {
            assert_eq!(csums.covered(start, len), want, "{start}+{len}");
        }
        assert_eq!((csums.covered(0, u64::MAX), csums.bytes()), (200, 200));
        let ends = [99, 100, 199, 200, 300, 400].map(|at| csums.end_of_run(at));
        assert_eq!(ends, [None, Some(200), Some(200), None, Some(400), None]);
    }
}
