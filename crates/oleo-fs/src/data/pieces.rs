//! Bytes of a file that are in memory only: an ordered set of byte runs that never overlap.
//!
//! Normal path: (1) `write` copies bytes in, over what is there and into the gaps; (2) `read_over` lays them over what
//! came from disk, or `fill` copies them out and returns what is missing; (3) [`runs`] gives the sector-aligned ranges that
//! are held; (4) `cut` forgets a range.
//!
//! Invariants: pieces do not overlap, none is empty, and none is longer than `PIECE_LEN_MAX`, so that growing one by
//! appending to it moves a bounded number of bytes. `bytes` is the sum of their lengths.
//! Not here: who may write when (`FileData`), and what the space will cost (`sectors_missing` only counts).

use std::collections::BTreeMap;
use std::ops::Range;

/// The longest single piece: long enough that a large file is few pieces, short enough that growing one is cheap.
const PIECE_LEN_MAX: usize = 1 << 20;

/// A piece of this many bytes that grows will hardly stop before it is as long as it can be.
const GROWN_LEN: usize = 64 << 10;

/// An ordered set of byte runs.
#[derive(Clone, Default, Debug)]
pub(crate) struct BufferPieces {
    /// File offset of the first byte, and the bytes.
    map: BTreeMap<u64, Vec<u8>>,
    bytes: u64,
}

impl BufferPieces {
    /// How many bytes are held.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// The offset after the last byte held, 0 if there is none.
    pub fn end(&self) -> u64 {
        self.map.last_key_value().map_or(0, |(at, p)| at + p.len() as u64)
    }

    /// Puts `data` at `at`, over whatever is there.
    pub fn write(&mut self, at: u64, data: &[u8]) {
        let end = at + data.len() as u64;
        let mut pos = at;
        while pos < end {
            let rest = &data[(pos - at) as usize..];
            let n = match self.piece_at(pos) {
                Some((start, piece)) => {
                    let skip = (pos - start) as usize;
                    let n = rest.len().min(piece.len() - skip);
                    piece[skip..skip + n].copy_from_slice(&rest[..n]);
                    n
                }
                None => {
                    let gap = self.next_start(pos).map_or(rest.len(), |next| rest.len().min((next - pos) as usize));
                    self.append(pos, &rest[..gap])
                }
            };
            pos += n as u64;
        }
    }

    /// Puts zeros into the parts of `range` that hold nothing yet.
    pub fn zero_gaps(&mut self, range: Range<u64>) {
        const ZEROS: [u8; 4096] = [0; 4096];
        for gap in self.missing(range) {
            let mut pos = gap.start;
            while pos < gap.end {
                let n = (gap.end - pos).min(ZEROS.len() as u64);
                self.write(pos, &ZEROS[..n as usize]);
                pos += n;
            }
        }
    }

    /// Forgets what is held in `range`.
    pub fn cut(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        if let Some((start, piece)) = self.piece_at(range.start) {
            let keep = (range.start - start) as usize;
            let tail = piece.split_off(keep);
            self.bytes -= tail.len() as u64;
            if keep == 0 {
                self.map.remove(&start);
            }
            let tail_end = range.start + tail.len() as u64;
            if tail_end > range.end {
                let kept = tail[(range.end - range.start) as usize..].to_vec();
                self.bytes += kept.len() as u64;
                self.map.insert(range.end, kept);
                return;
            }
        }
        while let Some((&start, piece)) = self.map.range_mut(range.clone()).next() {
            let len = piece.len() as u64;
            let tail = (start + len > range.end).then(|| piece.split_off((range.end - start) as usize));
            self.map.remove(&start);
            self.bytes -= len;
            if let Some(tail) = tail {
                self.bytes += tail.len() as u64;
                self.map.insert(range.end, tail);
            }
        }
    }

    /// Copies what is held into `out`, which stands for the file's bytes from `at` on; the rest of `out` is left alone.
    pub fn read_over(&self, at: u64, out: &mut [u8]) {
        let range = at..at + out.len() as u64;
        for (start, piece) in self.overlapping(range.clone()) {
            let from = start.max(range.start);
            let to = (start + piece.len() as u64).min(range.end);
            out[(from - at) as usize..(to - at) as usize]
                .copy_from_slice(&piece[(from - start) as usize..(to - start) as usize]);
        }
    }

    /// The parts of `range` that hold nothing.
    pub fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut pos = range.start;
        for (start, piece) in self.overlapping(range.clone()) {
            if start > pos {
                gaps.push(pos..start);
            }
            pos = start + piece.len() as u64;
        }
        if pos < range.end {
            gaps.push(pos..range.end);
        }
        gaps
    }

    /// The bytes of `range` where they are, if all are held and no piece ends within a sector.
    pub fn slices(&self, range: Range<u64>, sector: u64) -> Option<Vec<(u64, &[u8])>> {
        let mut slices = Vec::new();
        let mut pos = range.start;
        for (start, piece) in self.overlapping(range.clone()) {
            let end = (start + piece.len() as u64).min(range.end);
            if start > pos || !end.is_multiple_of(sector) {
                return None;
            }
            slices.push((pos, &piece[(pos - start) as usize..(end - start) as usize]));
            pos = end;
        }
        (pos == range.end).then_some(slices)
    }

    /// The first byte held at or after `pos`, and the end of the run it starts.
    pub fn next_run(&self, pos: u64) -> Option<Range<u64>> {
        let mut run: Option<Range<u64>> = None;
        for (start, piece) in self.overlapping(pos..u64::MAX) {
            let end = start + piece.len() as u64;
            match &mut run {
                None => run = Some(start.max(pos)..end),
                Some(r) if r.end == start => r.end = end,
                Some(_) => break,
            }
        }
        run
    }

    /// How many bytes of whole sectors a write of `range` would newly touch.
    pub fn sectors_missing(&self, range: Range<u64>, sector: u64) -> u64 {
        let from = range.start & !(sector - 1);
        let to = range.end.next_multiple_of(sector);
        let mut missing = 0;
        let mut pos = from;
        for (start, piece) in self.overlapping(from..to) {
            let covered_from = start & !(sector - 1);
            missing += covered_from.saturating_sub(pos);
            pos = pos.max((start + piece.len() as u64).next_multiple_of(sector));
        }
        missing + to.saturating_sub(pos)
    }

    /// Puts the bytes of an older set under this one: what is held here stays.
    pub fn put_under(&mut self, older: BufferPieces) {
        for (start, piece) in older.map {
            for gap in self.missing(start..start + piece.len() as u64) {
                self.write(gap.start, &piece[(gap.start - start) as usize..(gap.end - start) as usize]);
            }
        }
    }

    /// The pieces that overlap `range`, the first of which may begin before it.
    fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &Vec<u8>)> {
        let first = self.map.range(..=range.start).next_back().map_or(range.start, |(at, _)| *at);
        let (from, to) = (range.start, range.end);
        self.map.range(first.min(to)..to).map(|(at, p)| (*at, p)).filter(move |(at, p)| at + p.len() as u64 > from)
    }

    /// The piece that holds the byte at `pos`.
    fn piece_at(&mut self, pos: u64) -> Option<(u64, &mut Vec<u8>)> {
        let (start, piece) = self.map.range_mut(..=pos).next_back()?;
        (pos < start + piece.len() as u64).then_some((*start, piece))
    }

    fn next_start(&self, pos: u64) -> Option<u64> {
        self.map.range(pos..).next().map(|(at, _)| *at)
    }

    /// Puts bytes into a gap: onto the piece that ends there if it has room, else as a new piece. Answers how many went in.
    fn append(&mut self, pos: u64, data: &[u8]) -> usize {
        if let Some((start, piece)) = self.map.range_mut(..pos).next_back()
            && start + piece.len() as u64 == pos
            && piece.len() < PIECE_LEN_MAX
        {
            let n = data.len().min(PIECE_LEN_MAX - piece.len());
            if piece.len() >= GROWN_LEN {
                piece.reserve_exact(PIECE_LEN_MAX - piece.len());
            }
            piece.extend_from_slice(&data[..n]);
            self.bytes += n as u64;
            return n;
        }
        let n = data.len().min(PIECE_LEN_MAX);
        self.map.insert(pos, data[..n].to_vec());
        self.bytes += n as u64;
        n
    }
}

/// The first runs of what two sets hold, as whole sectors, apart from each other and rising, and how many bytes are in them.
pub(super) fn runs(sets: [&BufferPieces; 2], sector: u64, limit: usize) -> (Vec<Range<u64>>, u64) {
    let [mut one, mut other] =
        sets.map(|set| set.map.iter().map(|(start, piece)| *start..start + piece.len() as u64).peekable());
    let mut runs: Vec<Range<u64>> = Vec::new();
    let mut bytes = 0;
    loop {
        let next = match (one.peek(), other.peek()) {
            (Some(a), Some(b)) if b.start < a.start => other.next(),
            (Some(_), _) => one.next(),
            (None, _) => other.next(),
        };
        let Some(next) = next else { return (runs, bytes) };
        let (from, to) = (next.start & !(sector - 1), next.end.next_multiple_of(sector));
        let count = runs.len();
        match runs.last_mut() {
            Some(last) if last.end >= from => last.end = last.end.max(to),
            _ if count == limit => return (runs, bytes),
            _ => runs.push(from..to),
        }
        bytes += next.end - next.start;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small generator (xorshift), so that a failure is repeated by its seed.
    struct Rng(u64);
    impl Rng {
        fn below(&mut self, n: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % n
        }
    }

    const SPACE: usize = 5000;
    const SECTOR: u64 = 64;

    fn check(pieces: &BufferPieces, model: &[Option<u8>], seed: u64, step: usize) {
        let held = model.iter().flatten().count() as u64;
        assert_eq!(pieces.bytes(), held, "seed {seed} step {step}");
        let end = model.iter().rposition(Option::is_some).map_or(0, |p| p as u64 + 1);
        assert_eq!(pieces.end(), end);
        let mut out = vec![0u8; SPACE];
        pieces.read_over(0, &mut out);
        let want: Vec<u8> = model.iter().map(|b| b.unwrap_or(0)).collect();
        assert!(out == want, "seed {seed} step {step}");
        let mut missing = vec![false; SPACE];
        for gap in pieces.missing(0..SPACE as u64) {
            missing[gap.start as usize..gap.end as usize].fill(true);
        }
        assert!(missing.iter().zip(model).all(|(m, b)| *m == b.is_none()), "seed {seed} step {step}");
        let mut touched = vec![false; SPACE + SECTOR as usize];
        let (all, bytes) = runs([pieces, &BufferPieces::default()], SECTOR, usize::MAX);
        assert_eq!(bytes, held, "seed {seed} step {step}");
        let (first, bytes) = runs([&BufferPieces::default(), pieces], SECTOR, 2);
        assert_eq!(first, all[..all.len().min(2)], "seed {seed} step {step}");
        assert_eq!(bytes == held, all.len() <= 2, "seed {seed} step {step}");
        for run in all {
            touched[run.start as usize..run.end as usize].fill(true);
        }
        for (n, sector) in model.chunks(SECTOR as usize).enumerate() {
            assert_eq!(touched[n * SECTOR as usize], sector.iter().any(Option::is_some), "seed {seed} step {step}");
        }
    }

    /// Goal: pieces behave like an array of maybe-bytes. Method: random writes, zero fills, cuts and merges on both.
    #[test]
    fn like_an_array() {
        let mut in_place = 0;
        for seed in 1..60u64 {
            let mut rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            let mut pieces = BufferPieces::default();
            let mut model: Vec<Option<u8>> = vec![None; SPACE];
            for step in 0..120 {
                let at = rng.below(SPACE as u64);
                let len = (rng.below(400) + 1).min(SPACE as u64 - at);
                let span = at as usize..(at + len) as usize;
                let absent_sectors = {
                    let from = at / SECTOR;
                    let to = (at + len).div_ceil(SECTOR);
                    (from..to)
                        .filter(|s| {
                            let lo = (s * SECTOR) as usize;
                            !model[lo..(lo + SECTOR as usize).min(SPACE)].iter().any(Option::is_some)
                        })
                        .count() as u64
                };
                assert_eq!(pieces.sectors_missing(at..at + len, SECTOR), absent_sectors * SECTOR);
                match rng.below(8) {
                    0..=3 => {
                        let data: Vec<u8> = (0..len).map(|_| rng.below(256) as u8).collect();
                        pieces.write(at, &data);
                        model[span].iter_mut().zip(&data).for_each(|(m, b)| *m = Some(*b));
                    }
                    4 => {
                        pieces.zero_gaps(at..at + len);
                        model[span].iter_mut().for_each(|m| *m = Some(m.unwrap_or(0)));
                    }
                    5 => {
                        let mut newer = BufferPieces::default();
                        let data: Vec<u8> = (0..len).map(|_| rng.below(256) as u8).collect();
                        newer.write(at, &data);
                        newer.put_under(std::mem::take(&mut pieces));
                        pieces = newer;
                        model[span].iter_mut().zip(&data).for_each(|(m, b)| *m = Some(*b));
                    }
                    _ => {
                        pieces.cut(at..at + len);
                        model[span].fill(None);
                    }
                }
                check(&pieces, &model, seed, step);
                let sectors = at / SECTOR * SECTOR..(at + len).next_multiple_of(SECTOR).min(SPACE as u64);
                let slices = pieces.slices(sectors.clone(), SECTOR);
                if let Some(slices) = &slices {
                    let flat: Vec<u8> = slices.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
                    let want: Vec<Option<u8>> = flat.into_iter().map(Some).collect();
                    assert_eq!(want, model[sectors.start as usize..sectors.end as usize], "seed {seed} step {step}");
                    assert!(slices.iter().all(|(at, _)| at.is_multiple_of(SECTOR)));
                }
                in_place += u32::from(slices.is_some());
                let first = model.iter().skip(at as usize).position(Option::is_some).map(|p| p as u64 + at);
                assert_eq!(pieces.next_run(at).map(|r| r.start), first);
                if let Some(run) = pieces.next_run(at) {
                    assert!(model[run.start as usize..run.end as usize].iter().all(Option::is_some));
                    assert!(run.end as usize == SPACE || model[run.end as usize].is_none());
                }
            }
        }
        assert!(in_place > 100, "some ranges were held as a whole");
    }

    /// Goal: appending in small steps makes few pieces. Method: append 3 MiB in steps of 1000 bytes, count.
    #[test]
    fn appends_stay_few() {
        let mut pieces = BufferPieces::default();
        for n in 0..3000u64 {
            pieces.write(n * 1000, &[n as u8; 1000]);
        }
        assert!(pieces.map.len() <= 3);
        assert_eq!(
            runs([&pieces, &pieces], 4096, 9).0,
            std::slice::from_ref(&(0..3_000_000u64.next_multiple_of(4096)))
        );
    }
}
