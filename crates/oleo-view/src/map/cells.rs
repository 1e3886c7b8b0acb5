//! The cells of the space map: the address space of all block groups, one behind the other, cut into equal parts.

use serde::Serialize;

use super::devices::Group;

/// The most cells: a square of 128 by 128.
const ORDER_MAX: u32 = 7;

/// The cells, in the order of addresses; the picture lays them out along a Hilbert curve. Each list has one number for each cell.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Cells {
    /// What the block group at the cell's beginning is for: 0 outside, 1 data, 2 metadata, 3 system, 4 data and metadata.
    pub kind: Vec<u8>,
    /// Bytes of data extents.
    pub data: Vec<u64>,
    /// Bytes of tree blocks.
    pub metadata: Vec<u64>,
    /// The mean generation of these bytes; 0 if there are none.
    pub generation: Vec<u64>,
    /// How many extents begin here.
    pub extents: Vec<u64>,
    /// How many runs of free space begin here.
    pub free_runs: Vec<u64>,
    /// Bytes of data and tree blocks that several subvolumes reach.
    pub shared: Vec<u64>,
    /// Bytes of data that are compressed.
    pub compressed: Vec<u64>,
}

/// From addresses to cells.
#[derive(Clone, Debug, Default)]
pub(super) struct Grid {
    /// Start, length and position of each block group, by address.
    groups: Vec<(u64, u64, u64)>,
    pub bytes: u64,
    pub cell_bytes: u64,
    pub order: u32,
}

impl Grid {
    pub fn new(groups: &[Group], unit: u64) -> Grid {
        let mut grid = Grid { groups: Vec::with_capacity(groups.len()), bytes: 0, cell_bytes: unit, order: 0 };
        for group in groups {
            grid.groups.push((group.start, group.len, grid.bytes));
            grid.bytes = grid.bytes.saturating_add(group.len);
        }
        while grid.order < ORDER_MAX && (unit << (2 * grid.order)) < grid.bytes {
            grid.order += 1;
        }
        let cells = 1u64 << (2 * grid.order);
        grid.cell_bytes = grid.bytes.div_ceil(cells).div_ceil(unit).max(1).saturating_mul(unit);
        grid
    }

    pub fn count(&self) -> usize {
        1 << (2 * self.order)
    }

    /// The position of an address among all block groups, and how many bytes its group has from there on.
    pub fn place(&self, at: u64) -> Option<(u64, u64)> {
        let next = self.groups.partition_point(|group| group.0 <= at);
        let (start, len, position) = *self.groups.get(next.checked_sub(1)?)?;
        let inside = at - start;
        (inside < len).then(|| (position.saturating_add(inside), len - inside))
    }

    /// The cell of an address.
    pub fn cell(&self, at: u64) -> Option<usize> {
        let (position, _) = self.place(at)?;
        usize::try_from(position / self.cell_bytes).ok().filter(|cell| *cell < self.count())
    }

    /// Calls `each` with every cell that a range touches, and how many of its bytes are there.
    pub fn spread(&self, at: u64, len: u64, mut each: impl FnMut(usize, u64)) {
        let Some((mut position, rest)) = self.place(at) else { return };
        let mut left = len.min(rest);
        while left > 0 {
            let cell = (position / self.cell_bytes) as usize;
            let here = (self.cell_bytes - position % self.cell_bytes).min(left);
            if cell >= self.count() {
                return;
            }
            each(cell, here);
            position += here;
            left -= here;
        }
    }

    /// The first and last address of a cell.
    pub fn addresses(&self, cell: usize) -> Option<(u64, u64)> {
        let position = (cell as u64).checked_mul(self.cell_bytes)?;
        let address = |position: u64| {
            let next = self.groups.partition_point(|group| group.2 <= position);
            let (start, len, first) = *self.groups.get(next.checked_sub(1)?)?;
            (position - first < len).then(|| start.saturating_add(position - first))
        };
        let last = position.saturating_add(self.cell_bytes).min(self.bytes).checked_sub(1)?;
        Some((address(position)?, address(last)?))
    }
}

/// How many cells all extents may touch together. Those of a sound volume do not overlap: they touch each cell once, and two more at
/// their ends. A crafted volume could have millions that each claim all cells.
#[derive(Debug)]
pub(super) struct Steps(u64);

impl Steps {
    pub fn new(grid: &Grid) -> Steps {
        Steps(grid.count() as u64)
    }

    /// The length of an extent that is spread: all of it, or the first part if it touches too many cells.
    pub fn take(&mut self, grid: &Grid, len: u64) -> u64 {
        self.0 = self.0.saturating_add(2);
        let touched = len.min(grid.bytes) / grid.cell_bytes + 2;
        match self.0.checked_sub(touched) {
            Some(left) => {
                self.0 = left;
                len
            }
            None => {
                self.0 = 0;
                len.min(grid.cell_bytes)
            }
        }
    }
}

impl Cells {
    pub(super) fn new(grid: &Grid, groups: &[Group]) -> Cells {
        let n = grid.count();
        let mut cells = Cells {
            kind: vec![0; n],
            data: vec![0; n],
            metadata: vec![0; n],
            generation: vec![0; n],
            extents: vec![0; n],
            free_runs: vec![0; n],
            shared: vec![0; n],
            compressed: vec![0; n],
        };
        for group in groups {
            let kind = match group.kind {
                "Data" => 1,
                "Metadata" => 2,
                "System" => 3,
                _ => 4,
            };
            grid.spread(group.start, group.len, |cell, here| {
                if cells.kind[cell] == 0 || here * 2 > grid.cell_bytes {
                    cells.kind[cell] = kind;
                }
            });
        }
        cells
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(start: u64, len: u64) -> Group {
        Group { start, len, used: None, kind: "Data", profile: "single", stripes: Vec::new() }
    }

    /// Goal: every byte of every group is in exactly one cell, gaps between groups are in none, and addresses come back. Method: groups of odd sizes with gaps, counted
    /// byte by byte.
    #[test]
    fn every_byte_has_a_cell() {
        let groups = [group(100, 50), group(150, 7), group(1000, 333)];
        let grid = Grid::new(&groups, 4);
        let mut counts = vec![0; grid.count()];
        for group in &groups {
            grid.spread(group.start, group.len, |cell, here| counts[cell] += here);
            for at in group.start..group.start + group.len {
                let cell = grid.cell(at).unwrap();
                let (first, last) = grid.addresses(cell).unwrap();
                assert!(first <= at && at <= last, "{at} in {cell}: {first} to {last}");
            }
        }
        assert_eq!(counts.iter().sum::<u64>(), 390);
        assert!(counts.iter().all(|count| *count <= grid.cell_bytes));
        for outside in [0, 99, 157, 999, 1333, u64::MAX] {
            assert_eq!(grid.cell(outside), None, "{outside}");
        }
    }

    /// Goal: extents that overlap cost bounded work, and those that do not are spread whole. Method: extents side by side; then many
    /// that each have all bytes.
    #[test]
    fn overlapping_extents_are_bounded() {
        let grid = Grid::new(&[group(0, 1 << 40)], 4096);
        let mut steps = Steps::new(&grid);
        let lens = [1 << 30, 4096, 3 << 28];
        let mut at = 0;
        while at < 1 << 40 {
            let len = lens[(at >> 12) as usize % 3].min((1 << 40) - at);
            assert_eq!(steps.take(&grid, len), len, "{at}");
            at += len;
        }
        let mut touched = 0;
        for _ in 0..100_000 {
            let len = steps.take(&grid, u64::MAX);
            grid.spread(0, len, |_, _| touched += 1);
        }
        assert!(touched <= 2 * 100_000 + grid.count(), "{touched}");
    }

    /// Goal: sizes that lie cost no memory and no panic.
    #[test]
    fn huge_groups() {
        let grid = Grid::new(&[group(0, u64::MAX), group(u64::MAX - 1, u64::MAX)], 4096);
        assert_eq!(grid.count(), 1 << 14);
        grid.spread(u64::MAX - 10, u64::MAX, |_, _| {});
        assert!(grid.cell(1 << 40).is_some());
        assert_eq!(Grid::new(&[], 4096).cell(0), None);
    }
}
