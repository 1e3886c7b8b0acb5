//! The file extents of one inode that have been seen so far: where they begin and end, whether they touch.

use oleo_format::{Compression, FileExtentHead, FileExtentItem};

/// The most bytes that an inline extent may have that is not compressed (`BTRFS_MAX_INLINE_DATA_SIZE` for the largest nodes).
const INLINE_LEN_MAX: u64 = 65535;

/// The file extents of an inode seen so far, from the first to the last. Not a list, so its size does not depend on
/// their number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    /// Offset of the first.
    pub start: u64,
    /// End of the last, in whole sectors. Of the last, not the highest: neighbours are compared, in any grouping.
    pub end: u64,
    /// Start of the first gap between them.
    pub gap: Option<u64>,
    /// The bytes that they take of the file: what `nbytes` counts.
    pub nbytes: u64,
    /// How many.
    pub count: u64,
    /// `ram_bytes` of the inline one.
    pub inline: Option<u64>,
    /// Some are compressed.
    pub compressed: bool,
}

/// One file extent, parsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    pub run: Run,
    /// The transaction that wrote it.
    pub generation: u64,
    /// What is wrong with it by itself: the value, and what it should be.
    pub odd: Option<(u64, &'static str)>,
    /// The data on disk that is read through it: address and length.
    pub data: Option<(u64, u64)>,
}

impl Extent {
    /// The extent in an EXTENT_DATA item at `offset`; `None` if it is no such item (which the block verifier says).
    pub(crate) fn parse(offset: u64, item: &[u8], sectorsize: u64) -> Option<Extent> {
        let (head, _) = FileExtentHead::parse_prefix(item).ok()?;
        let generation = head.generation.get();
        let round = |n: u64| n.checked_next_multiple_of(sectorsize.max(1)).unwrap_or(u64::MAX);
        let compressed = head.compression != Compression::None.to_disk();
        if head.r#type == FileExtentItem::INLINE {
            let len = head.ram_bytes.get();
            let end = round(offset.saturating_add(len.max(1)));
            let run = Run { start: offset, end, gap: None, nbytes: len, count: 1, inline: Some(len), compressed };
            let len_max = if compressed { sectorsize } else { sectorsize.saturating_sub(1).min(INLINE_LEN_MAX) };
            let odd = (len == 0 || len > len_max).then_some((len, "`ram_bytes` of some bytes within a sector"));
            return Some(Extent { run, generation, data: None, odd });
        }
        let e = FileExtentItem::parse(item).ok()?;
        let (at, len) = (e.disk_bytenr.get(), e.num_bytes.get());
        let nbytes = if at == 0 { 0 } else { len };
        let end = round(offset.saturating_add(len));
        let run = Run { start: offset, end, gap: None, nbytes, count: 1, inline: None, compressed };
        let data = (at != 0 && e.r#type == FileExtentItem::REG)
            .then(|| if !compressed { (at.saturating_add(e.offset.get()), len) } else { (at, e.disk_num_bytes.get()) });
        let part_end = e.offset.get().saturating_add(len);
        let odd = (part_end > e.ram_bytes.get()).then_some((e.ram_bytes.get(), "`ram_bytes` that holds the part used"));
        Some(Extent { run, generation, data, odd })
    }
}

impl Run {
    /// Joins two runs, `next` after `self`; also returns how far they overlap, if they do.
    pub(crate) fn then(self, next: Run) -> (Run, Option<(u64, u64)>) {
        let overlap = (self.end > next.start).then_some((next.start, self.end));
        let between = (self.end < next.start).then_some(self.end);
        let run = Run {
            start: self.start,
            end: next.end,
            gap: self.gap.or(between).or(next.gap),
            nbytes: self.nbytes.wrapping_add(next.nbytes),
            count: self.count.saturating_add(next.count),
            inline: self.inline.or(next.inline),
            compressed: self.compressed || next.compressed,
        };
        (run, overlap)
    }

    /// The first byte below `size` that no extent covers.
    pub(crate) fn hole_below(run: Option<&Run>, size: u64) -> Option<u64> {
        let Some(run) = run else { return (size > 0).then_some(0) };
        let first = if run.start > 0 { 0 } else { run.gap.unwrap_or(run.end) };
        (first < size).then_some(first)
    }
}
