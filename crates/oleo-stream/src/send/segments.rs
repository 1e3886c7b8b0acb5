//! A file's extents on both sides, side by side.
//!
//! Items come in rising order, from either side ([`Sweep::push`]); everything before the next item can be sent
//! immediately. An interval not mentioned in the difference is the same on both sides. A side without a segment has a
//! hole.

use std::collections::VecDeque;
use std::ops::Range;

use oleo_format::{Compression, DiskExtent, FileExtent};

use super::SendError;

/// The contents of a range of a file.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Body {
    Data(DiskExtent),
    /// Space without data: zeros.
    Prealloc(DiskExtent),
    Inline {
        compression: Compression,
        ram_len: u64,
        data: Vec<u8>,
    },
}

/// A part of a file that has an extent.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Segment {
    pub start: u64,
    pub end: u64,
    pub body: Body,
}

impl Segment {
    /// The segment of an item at a position; `None` for a hole.
    pub fn parse(at: u64, item: &[u8], sector: u64) -> Result<Option<Segment>, SendError> {
        let (len, body) = match FileExtent::parse(item)? {
            FileExtent::Regular(d) if d.is_hole() => return Ok(None),
            FileExtent::Regular(d) => (d.num_bytes.0, Body::Data(d)),
            FileExtent::Prealloc(d) => (d.num_bytes.0, Body::Prealloc(d)),
            FileExtent::Inline { ram_bytes, compression, data, .. } => {
                let len = ram_bytes.0.max(1).checked_next_multiple_of(sector).unwrap_or(u64::MAX);
                (len, Body::Inline { compression, ram_len: ram_bytes.0, data })
            }
        };
        let end = at.saturating_add(len);
        Ok((end > at).then_some(Segment { start: at, end, body }))
    }

    /// The offset in the decompressed extent of a position in the file.
    pub fn inside(&self, d: &DiskExtent, at: u64) -> u64 {
        d.offset.0.saturating_add(at - self.start)
    }
}

/// A side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Old,
    New,
}

/// Segments that were not reported yet: those behind the last item.
#[derive(Default)]
pub(super) struct Sweep {
    at: u64,
    old: VecDeque<Segment>,
    new: VecDeque<Segment>,
}

/// An interval in which each side has one segment or none; one has one.
pub(super) struct Interval {
    pub range: Range<u64>,
    pub old: Option<Segment>,
    pub new: Option<Segment>,
}

impl Sweep {
    pub fn push(&mut self, side: Side, segment: Segment) {
        match side {
            Side::Old => self.old.push_back(segment),
            Side::New => self.new.push_back(segment),
        }
    }

    /// The next interval that ends at `limit` or before; more items come only from there on.
    pub fn next(&mut self, limit: u64) -> Option<Interval> {
        for side in [&mut self.old, &mut self.new] {
            while side.front().is_some_and(|s| s.end <= self.at) {
                side.pop_front();
            }
        }
        let fronts = [self.old.front(), self.new.front()];
        let start = fronts.into_iter().flatten().map(|s| s.start).min()?.max(self.at);
        if start >= limit {
            return None;
        }
        let mut end = limit;
        for segment in fronts.into_iter().flatten() {
            end = end.min(if segment.start > start { segment.start } else { segment.end });
        }
        let covering = |s: Option<&Segment>| s.filter(|s| s.start <= start).cloned();
        let interval = Interval { range: start..end, old: covering(fronts[0]), new: covering(fronts[1]) };
        self.at = end;
        Some(interval)
    }
}

#[cfg(test)]
mod tests {
    use oleo_format::{ByteLen, Generation, Logical};

    use super::*;

    fn data(start: u64, end: u64, disk: u64) -> Segment {
        let d = DiskExtent {
            generation: Generation(1),
            ram_bytes: ByteLen(end - start),
            compression: Compression::None,
            disk_bytenr: Logical(disk),
            disk_num_bytes: ByteLen(end - start),
            offset: ByteLen(0),
            num_bytes: ByteLen(end - start),
        };
        Segment { start, end, body: Body::Data(d) }
    }

    /// Goal: intervals cover each byte with what each side has there, in rising order, whatever the order of items.
    /// Method: random segments on both sides, pushed in rising order with limits as items give them; a model of bytes.
    #[test]
    fn says_what_each_side_has() {
        let mut seed = 0xfeed_u64;
        let mut next = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % n
        };
        for _ in 0..500 {
            let mut items: Vec<(u64, Side, Segment)> = Vec::new();
            let mut model = [[0u64; 2]; 64];
            for (column, side) in [Side::Old, Side::New].into_iter().enumerate() {
                let mut at = next(8);
                while at < 60 {
                    let end = (at + 1 + next(10)).min(64);
                    let disk = 1 + next(1 << 30);
                    items.push((at, side, data(at, end, disk)));
                    for byte in &mut model[at as usize..end as usize] {
                        byte[column] = disk;
                    }
                    at = end + next(6);
                }
            }
            items.sort_by_key(|(at, _, _)| *at);
            let mut seen = [[0u64; 2]; 64];
            let mut last = 0;
            let mut sweep = Sweep::default();
            let mut take = |sweep: &mut Sweep, limit: u64| {
                while let Some(interval) = sweep.next(limit) {
                    assert!(interval.range.start >= last && interval.range.end > interval.range.start);
                    last = interval.range.end;
                    let disk = |s: &Option<Segment>| match s {
                        Some(Segment { body: Body::Data(d), .. }) => d.disk_bytenr.0,
                        _ => 0,
                    };
                    for at in interval.range {
                        seen[at as usize] = [disk(&interval.old), disk(&interval.new)];
                    }
                }
            };
            for (at, side, segment) in items {
                take(&mut sweep, at);
                sweep.push(side, segment);
            }
            take(&mut sweep, u64::MAX);
            assert_eq!(seen, model);
        }
    }
}
