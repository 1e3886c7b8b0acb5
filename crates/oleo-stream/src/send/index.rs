//! Where the receiver already has the bytes of an extent.
//!
//! For each extent the index holds ranges that do not overlap, and one place for each: a file of a clone source, or of
//! the part of the subvolume that was sent already. One known place is enough however often the extent is shared, so a
//! million references cost one entry and one look-up each. A longer range replaces shorter ones inside it, so that what
//! was cloned in pieces is cloned whole the next time.
//!
//! Places do not change: clone sources are read-only, and a file of the subvolume is neither changed nor renamed once
//! its range was sent (see `names`).
//!
//! Memory: 64 bytes for each range, and 32 for each extent. [`Index::is_full`] reports when the bound is reached; from
//! then on only extents with more than one reference are entered.

use hashbrown::HashMap;
use oleo_format::Logical;
use smallvec::SmallVec;

/// A place in a file that the receiver has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    /// Which of the sources; 0 is the subvolume that is being sent.
    pub source: u16,
    pub ino: u64,
    /// Offset in the file.
    pub at: u64,
}

/// A range of an extent, in decompressed bytes from its beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Known {
    pub start: u64,
    /// Within a sector only if the file ends there.
    pub end: u64,
    pub place: Place,
}

/// The known ranges of extents.
pub(super) struct Index {
    extents: HashMap<Logical, SmallVec<[Known; 1]>>,
    ranges: usize,
    ranges_max: usize,
    sector: u64,
}

/// What a range of an extent is to be made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// The receiver has it, up to `end`. To clone it, the range has to end at `clone_end`: at a sector, or at the end
    /// of the source file. That is behind `end` only if `end` is in the middle of a sector.
    Have { end: u64, clone_end: u64, place: Place },
    /// The receiver has it not, up to here.
    Lack { end: u64 },
}

impl Index {
    pub fn new(ranges_max: usize, sector: u64) -> Index {
        Index { extents: HashMap::new(), ranges: 0, ranges_max, sector }
    }

    /// Whether extents with one reference should stay out.
    pub fn is_full(&self) -> bool {
        self.ranges >= self.ranges_max
    }

    /// What to do with an extent's bytes from `start`, which is at a sector, to `end`, which is within a sector only if
    /// the file ends there.
    pub fn step(&self, extent: Logical, start: u64, end: u64) -> Step {
        let Some(ranges) = self.extents.get(&extent) else { return Step::Lack { end } };
        let from = ranges.partition_point(|known| known.end <= start);
        for known in &ranges[from..] {
            if known.start >= end {
                break;
            }
            if known.start > start {
                return Step::Lack { end: known.start };
            }
            let usable = if known.end >= end { end } else { known.end / self.sector * self.sector };
            if usable > start {
                let place = Place { at: known.place.at + (start - known.start), ..known.place };
                let clone_end = known.end.min(usable.next_multiple_of(self.sector));
                return Step::Have { end: usable, clone_end, place };
            }
        }
        Step::Lack { end }
    }

    /// Whether all of a range is there.
    pub fn has(&self, extent: Logical, start: u64, end: u64) -> bool {
        let mut at = start;
        while at < end {
            match self.step(extent, at, end) {
                Step::Have { end, .. } => at = end,
                Step::Lack { .. } => return false,
            }
        }
        true
    }

    /// Enters a range. Known ranges stay as they are, unless they are inside it.
    pub fn insert(&mut self, extent: Logical, new: Known) {
        if new.start >= new.end {
            return;
        }
        let ranges = self.extents.entry(extent).or_default();
        let before = ranges.len();
        if let [only] = ranges.as_slice()
            && only.start <= new.start
            && only.end >= new.end
        {
            return;
        }
        ranges.retain(|old| !(new.start <= old.start && old.end <= new.end));
        for old in ranges.iter_mut() {
            // The sector in which its file ends is whole in the new one.
            if old.end > new.start && old.end < new.end {
                old.end = old.end / self.sector * self.sector;
            }
        }
        ranges.retain(|old| old.start < old.end);
        let mut at = new.start;
        let mut pieces: SmallVec<[Known; 2]> = SmallVec::new();
        for old in ranges.iter() {
            if old.end <= at || old.start >= new.end {
                continue;
            }
            if old.start > at {
                pieces.push(new.part(at, old.start));
            }
            at = at.max(old.end);
        }
        if at < new.end {
            pieces.push(new.part(at, new.end));
        }
        for piece in pieces {
            let slot = ranges.partition_point(|old| old.start < piece.start);
            ranges.insert(slot, piece);
        }
        self.ranges = self.ranges + ranges.len() - before;
    }
}

impl Known {
    fn part(&self, start: u64, end: u64) -> Known {
        Known { start, end, place: Place { at: self.place.at + (start - self.start), ..self.place } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 4096;

    fn known(start: u64, end: u64, ino: u64) -> Known {
        Known { start, end, place: Place { source: 0, ino, at: 1_000_000 * S + start } }
    }

    /// Goal: every range in the index is right, at the right place, and nothing that was entered is missing. Method:
    /// random ranges entered in an extent; a model of one entry per sector; all queries compared.
    #[test]
    fn agrees_with_a_model() {
        let mut seed = 0x5eed_u64;
        let mut next = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % n
        };
        for _ in 0..300 {
            let mut index = Index::new(1000, S);
            let mut model = [false; 32];
            for ino in 0..12 {
                let start = next(32);
                let end = start + 1 + next(32 - start);
                index.insert(Logical(4096), known(start * S, end * S, ino));
                model[start as usize..end as usize].fill(true);
                let ranges = &index.extents[&Logical(4096)];
                assert!(ranges.windows(2).all(|w| w[0].end <= w[1].start), "{ranges:?}");
                let start = next(32);
                let end = (start + 1 + next(32 - start)) * S - next(2) * 100;
                let mut at = start * S;
                while at < end {
                    let (to, has) = match index.step(Logical(4096), at, end) {
                        Step::Have { end, place, .. } => {
                            assert_eq!(place.at, 1_000_000 * S + at);
                            (end, true)
                        }
                        Step::Lack { end } => (end, false),
                    };
                    assert!(to > at && to <= end);
                    for sector in at / S..to.div_ceil(S) {
                        assert_eq!(model[sector as usize], has, "{at} {to} {ranges:?}", ranges = index.extents);
                    }
                    at = to;
                }
            }
        }
    }

    /// Goal: the end of a file within a sector is a place for files that end there too, and for nothing longer.
    #[test]
    fn ends_within_a_sector() {
        let mut index = Index::new(1000, S);
        index.insert(Logical(4096), known(0, S + 100, 7));
        assert!(matches!(index.step(Logical(4096), 0, S + 100), Step::Have { end, .. } if end == S + 100));
        assert!(matches!(index.step(Logical(4096), 0, 2 * S), Step::Have { end: S, .. }));
        assert_eq!(index.step(Logical(4096), S, 2 * S), Step::Lack { end: 2 * S });
        // Shorter within the sector: all that the source has is cloned, and cut off afterwards.
        assert!(matches!(index.step(Logical(4096), S, S + 50), Step::Have { clone_end, .. } if clone_end == S + 100));
        index.insert(Logical(4096), known(0, 2 * S, 8));
        assert!(index.has(Logical(4096), 0, 2 * S));
    }
}
