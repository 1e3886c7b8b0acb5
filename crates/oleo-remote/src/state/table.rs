//! The segment table: every segment that a run names, by a number that runs have instead of the name.
//!
//! A row's live blocks are counted twice: as they are now, and as they are in the pages that are written, which is what a
//! checkpoint writes.

use std::collections::{BTreeSet, HashMap};

use oleo_format::Corruption;

use crate::error::RemoteError;
use crate::format::ObjectId;
use crate::format::map::{Row, TABLE_ROWS};

/// Most segments: at 48 bytes each 200 MiB of memory, and 64 TiB of segments of 16 MiB.
const ROW_COUNT_MAX: usize = 1 << 22;

/// See the module's text.
#[derive(Default, Debug)]
pub(crate) struct Table {
    rows: Vec<Option<Row>>,
    /// Live blocks in the pages that are written, for each row.
    written: Vec<u32>,
    /// Pages with rows that differ from what is written.
    dirty: BTreeSet<u32>,
    by_id: HashMap<ObjectId, u32>,
    /// Rows that no segment has.
    free: BTreeSet<u32>,
}

impl Table {
    /// All rows.
    pub(crate) fn rows(&self) -> &[Option<Row>] {
        &self.rows
    }

    /// Appends the rows of a page.
    pub(crate) fn restore(&mut self, rows: Vec<Option<Row>>) -> Result<(), RemoteError> {
        if self.rows.len() + rows.len() > ROW_COUNT_MAX {
            return Err(too_many());
        }
        for row in rows {
            if let Some(row) = &row {
                let twice = self.by_id.insert(row.id, self.rows.len() as u32);
                if twice.is_some() {
                    return Err(
                        Corruption::new("segment table", "row", format!("{} again", row.id), "each once").into()
                    );
                }
            }
            if row.is_none() {
                self.free.insert(self.rows.len() as u32);
            }
            self.written.push(row.as_ref().map_or(0, |row| row.live));
            self.rows.push(row);
        }
        Ok(())
    }

    /// All pages are written with the next checkpoint.
    pub(crate) fn touch_all(&mut self) {
        self.dirty.extend(0..(self.rows.len() as u32).div_ceil(TABLE_ROWS));
    }

    /// Pages that a checkpoint must write.
    pub(crate) fn take_dirty(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.dirty)
    }

    /// The rows of a page, with the counts of the pages that are written.
    pub(crate) fn page(&self, number: u32) -> Vec<Option<Row>> {
        let from = (number * TABLE_ROWS) as usize;
        let to = (from + TABLE_ROWS as usize).min(self.rows.len());
        let live = self.written[from..to].iter();
        let rows = self.rows[from..to].iter().zip(live);
        rows.map(|(row, &live)| row.map(|row| Row { live, ..row })).collect()
    }

    /// The counts of pages that are written change.
    pub(crate) fn settle(&mut self, row: u32, blocks: i64) -> Result<(), RemoteError> {
        let written = self.written.get_mut(row as usize);
        match written.and_then(|live| Some((u32::try_from(i64::from(*live) + blocks).ok()?, live))) {
            Some((sum, live)) => *live = sum,
            None => return Err(Corruption::new("segment table", "live blocks", blocks, "those of the pages").into()),
        }
        if blocks != 0 {
            self.dirty.insert(row / TABLE_ROWS);
        }
        Ok(())
    }

    /// The row of a number.
    pub(crate) fn get(&self, row: u32) -> Option<&Row> {
        self.rows.get(row as usize)?.as_ref()
    }

    /// The row of a segment.
    pub(crate) fn of(&self, id: ObjectId) -> Option<&Row> {
        self.get(*self.by_id.get(&id)?)
    }

    /// The number of a segment's row, which is made if there is none.
    pub(crate) fn find_or_add(&mut self, id: ObjectId, len: u32, born: u64) -> Result<u32, RemoteError> {
        if let Some(row) = self.by_id.get(&id) {
            return Ok(*row);
        }
        let new = Some(Row { id, len, live: 0, total: 0, born });
        let row = match self.free.pop_first() {
            Some(row) => {
                self.rows[row as usize] = new;
                row
            }
            None if self.rows.len() >= ROW_COUNT_MAX => return Err(too_many()),
            None => {
                self.rows.push(new);
                self.written.push(0);
                self.rows.len() as u32 - 1
            }
        };
        self.dirty.insert(row / TABLE_ROWS);
        self.by_id.insert(id, row);
        Ok(row)
    }

    /// Takes out the rows that no run in memory names, except those of some segments. `except` is given the segment and how many
    /// of its blocks the pages that are written name, and says yes where that is any: from now on the number of a row that is
    /// taken out may be that of another.
    pub(crate) fn take_dead(&mut self, except: impl Fn(ObjectId, u32) -> bool) -> Vec<Row> {
        let mut out = Vec::new();
        for (n, (row, written)) in self.rows.iter_mut().zip(&self.written).enumerate() {
            if let Some(dead) = row.take_if(|row| row.live == 0 && !except(row.id, *written)) {
                self.by_id.remove(&dead.id);
                self.free.insert(n as u32);
                self.dirty.insert(n as u32 / TABLE_ROWS);
                out.push(dead);
            }
        }
        out
    }

    fn row_mut(&mut self, row: u32) -> Result<&mut Row, RemoteError> {
        let of = self.rows.get_mut(row as usize).and_then(Option::as_mut);
        of.ok_or_else(|| Corruption::new("segment table", "row of a run", row, "one that there is").into())
    }

    /// A segment is as long as it will be, or has so many blocks.
    pub(crate) fn set(&mut self, row: u32, len: Option<u32>, total: Option<u32>) -> Result<(), RemoteError> {
        let of = self.row_mut(row)?;
        of.len = len.unwrap_or(of.len);
        of.total = total.unwrap_or(of.total);
        self.dirty.insert(row / TABLE_ROWS);
        Ok(())
    }

    /// Blocks of a segment have come to be named.
    pub(crate) fn gain(&mut self, row: u32, blocks: u32) -> Result<(), RemoteError> {
        let of = self.row_mut(row)?;
        of.live = of.live.saturating_add(blocks);
        // Pages of a checkpoint are of different moments, and name together more than is named at any: never more than this.
        of.total = of.total.saturating_add(blocks);
        Ok(())
    }

    /// Blocks of a segment are not named any more.
    pub(crate) fn lose(&mut self, row: u32, blocks: u32) -> Result<(), RemoteError> {
        let row = self.row_mut(row)?;
        match row.live.checked_sub(blocks) {
            Some(live) => row.live = live,
            None => {
                let want = format!("at least {blocks}");
                return Err(Corruption::new("segment table", "live blocks", row.live, want).within(row.id).into());
            }
        }
        Ok(())
    }
}

fn too_many() -> RemoteError {
    RemoteError::Limit { what: format!("a volume has at most {ROW_COUNT_MAX} segments") }
}
