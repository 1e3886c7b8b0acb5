//! The extent map against an array of sectors.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::*;

pub(crate) const SECTOR: u64 = 4096;

/// A map in memory: the double of an inode's items.
#[derive(Default)]
pub(crate) struct MemMap(pub BTreeMap<u64, Extent>);

impl ExtentMap for MemMap {
    fn sector(&self) -> u64 {
        SECTOR
    }
    fn last(&self, at_or_below: u64) -> Result<Option<(u64, Extent)>, FsError> {
        Ok(self.0.range(..=at_or_below).next_back().map(|(at, e)| (*at, e.clone())))
    }
    fn batch(&self, from: u64, to_incl: u64, limit: usize) -> Result<Vec<(u64, Extent)>, FsError> {
        Ok(self.0.range(from..=to_incl).take(limit).map(|(at, e)| (*at, e.clone())).collect())
    }
}
impl ExtentMapMut for MemMap {
    fn put(&mut self, at: u64, extent: Extent) {
        self.0.insert(at, extent);
    }
    fn delete(&mut self, at: u64) {
        assert!(self.0.remove(&at).is_some(), "deleted twice");
    }
}

struct Rng(u64);
impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// What one sector of the model is: (extent's address, offset in its uncompressed bytes), a hole item, or nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cell {
    Gap,
    Hole,
    Inline,
    At(u64, u64),
}

const CELLS: u64 = 200;

fn cells_of(map: &MemMap) -> Vec<Cell> {
    let mut cells = vec![Cell::Gap; CELLS as usize];
    let mut end_before = 0;
    for (at, extent) in &map.0 {
        assert!(*at >= end_before, "overlap at {at}");
        end_before = at + extent.len(SECTOR);
        for n in 0..extent.len(SECTOR) / SECTOR {
            cells[(at / SECTOR + n) as usize] = match extent {
                Extent::Inline { .. } => Cell::Inline,
                Extent::Hole { .. } => Cell::Hole,
                Extent::Span(s) => {
                    assert!(s.offset + s.len <= s.ram_len);
                    Cell::At(s.disk.0, s.offset + n * SECTOR)
                }
            };
        }
    }
    cells
}

fn nbytes_of(map: &MemMap) -> u64 {
    map.0.values().map(Extent::counted).sum()
}

/// Goal: dropping, putting and gap filling keep exactly what they should, and `nbytes` with it.
/// Method: random drops, puts of plain, compressed, preallocated, hole and inline extents; compare with an array.
#[test]
fn like_an_array_of_sectors() {
    for seed in 1..80u64 {
        let mut rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut map = MemMap::default();
        let mut model = vec![Cell::Gap; CELLS as usize];
        let mut nbytes = 0u64;
        let mut next_disk = 1u64 << 20;
        for step in 0..150 {
            let from = rng.below(CELLS);
            let to = (from + 1 + rng.below(40)).min(CELLS);
            let (lo, hi) = (from * SECTOR, to * SECTOR);
            let span = from as usize..to as usize;
            let generation = Generation(step);
            match rng.below(8) {
                0..=4 => {
                    nbytes -= drop_range(&mut map, lo, hi).unwrap();
                    let ram_len = (hi - lo) + rng.below(3) * SECTOR;
                    let offset = rng.below((ram_len - (hi - lo)) / SECTOR + 1) * SECTOR;
                    let compressed = rng.below(2) == 0;
                    let s = Span {
                        generation,
                        disk: Logical(next_disk),
                        disk_len: if compressed { SECTOR } else { ram_len },
                        ram_len,
                        offset,
                        len: hi - lo,
                        compression: if compressed { Compression::Zstd } else { Compression::None },
                        prealloc: rng.below(4) == 0,
                    };
                    next_disk += 1 << 20;
                    nbytes += s.len;
                    map.put(lo, Extent::Span(s));
                    for (n, cell) in model[span].iter_mut().enumerate() {
                        *cell = Cell::At(s.disk.0, offset + n as u64 * SECTOR);
                    }
                }
                5 => {
                    nbytes -= drop_range(&mut map, lo, hi).unwrap();
                    model[span].fill(Cell::Gap);
                }
                6 => {
                    fill_gaps(&mut map, lo, hi, generation).unwrap();
                    model[span].iter_mut().filter(|c| **c == Cell::Gap).for_each(|c| *c = Cell::Hole);
                }
                _ => {
                    nbytes -= drop_range(&mut map, 0, SECTOR).unwrap();
                    let data = vec![7u8; rng.below(2000) as usize + 1].into_boxed_slice();
                    nbytes += data.len() as u64;
                    let ram_len = data.len() as u64;
                    map.put(0, Extent::Inline { generation, ram_len, compression: Compression::None, data });
                    model[0] = Cell::Inline;
                }
            }
            assert_eq!(cells_of(&map), model, "seed {seed} step {step}");
            assert_eq!(nbytes_of(&map), nbytes, "seed {seed} step {step}");
            let mut seen = vec![Cell::Gap; CELLS as usize];
            walk(&map, lo, hi, |at, range, extent| {
                for n in (range.start..range.end).step_by(SECTOR as usize) {
                    seen[(n / SECTOR) as usize] = match extent {
                        Extent::Inline { .. } => Cell::Inline,
                        Extent::Hole { .. } => Cell::Hole,
                        Extent::Span(s) => Cell::At(s.disk.0, s.offset + n - at),
                    };
                }
                Ok(ControlFlow::Continue(()))
            })
            .unwrap();
            assert_eq!(seen[from as usize..to as usize], model[from as usize..to as usize], "seed {seed} step {step}");
        }
    }
}

/// Goal: a long map is dropped in steps of bounded size. Method: 1000 items, steps of 100, count them.
#[test]
fn drops_in_steps() {
    let mut map = MemMap::default();
    for n in 0..1000u64 {
        map.put(n * 2 * SECTOR, Extent::Hole { generation: Generation(1), len: SECTOR });
    }
    let mut pos = 0;
    let mut steps = 0;
    while pos < 2000 * SECTOR {
        (_, pos) = drop_some(&mut map, pos, 2000 * SECTOR, 100).unwrap();
        steps += 1;
    }
    assert!(map.0.is_empty());
    assert!((10..=11).contains(&steps), "{steps}");
}
