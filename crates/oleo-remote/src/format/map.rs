//! Map objects: pages one after the other, which say where the blocks of the device are.
//!
//! The root page is what a head refers to; it refers to index pages, each of which refers to the pages of up to 1024
//! regions, to the pages of the segment table, and to those of the graves. Every reference carries the checksum of the
//! whole page, and every page its own, so that a page says by itself what it is.

use oleo_format::Corruption;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::segment::STORED_LEN_MAX;
use super::{
    DEVICE_LEN_MAX, FRAME_BLOCKS_MAX, Grave, OBJECT_LEN_MAX, ObjectId, ObjectRef, REGION_BLOCKS, RawGrave, RawId,
    RawRef, Sum, all_zero, ensure, list, push, raw,
};

/// Bytes that every page begins with.
pub const PAGE_HEADER_LEN: usize = 32;
/// Rows of a page of the segment table.
pub const TABLE_ROWS: u32 = 4096;
/// Regions of an index page: 1 TiB.
pub const INDEX_REGIONS: u32 = 1024;
/// Graves of a page.
pub const PAGE_GRAVES: u32 = 8192;
/// Most references of a root, of a kind: 2^20 TiB, or 4 G segments.
const ROOT_COUNT_MAX: u32 = 1 << 20;

const MAGIC: [u8; 4] = *b"OMAP";
const NO_ROW: u32 = u32::MAX;

raw! {
    /// What a page begins with.
    32 RawPage { magic: [u8; 4], kind: u8, zeros: [u8; 3], count: U32, number: U32, position: U64, xxh: U64, }
    /// Blocks that follow one another and are in one frame.
    16 RawRun { start: [u8; 3], blocks: u8, row: U32, off: U32, stored: [u8; 3], skip: u8, }
    /// A region of an index.
    36 RawIndex { region: U32, page: RawRef, }
    /// A segment of the table.
    40 RawRow { id: RawId, len: U32, live: U32, born: U64, total: U32, zero: U32, }
    /// How a root goes on after its header.
    16 RawRoot { device_len: U64, refs: U32, objects: U32, }
    /// A page that a root refers to.
    40 RawRootRef { kind: u8, zeros: [u8; 3], number: U32, page: RawRef, }
    /// A map object in which something lives.
    40 RawObject { id: RawId, len: U32, live: U32, born: U64, zeros: [u8; 8], }
}
const _: () = assert!(size_of::<RawPage>() == PAGE_HEADER_LEN);

/// What a page holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PageKind {
    /// The runs of a region; the number is its GiB.
    Region = 1,
    /// The pages of up to 1024 regions; the number is their TiB.
    Index = 2,
    /// 4096 rows of the segment table; the number counts such pages.
    Table = 3,
    /// Graves; the number counts such pages.
    Graves = 4,
    /// The root.
    Root = 5,
}

/// Blocks of a region that follow one another in one frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The first block, in the region.
    pub start: u32,
    /// How many, 1 to 64; never over a multiple of 64.
    pub blocks: u8,
    /// How many blocks of the frame's payload come before.
    pub skip: u8,
    /// The row of the segment.
    pub row: u32,
    /// Offset of the frame in the segment, bytes.
    pub off: u32,
    /// Length of the frame's payload, bytes.
    pub stored: u32,
}

impl Run {
    /// The block after the last, in the region.
    pub fn end(&self) -> u32 {
        self.start + u32::from(self.blocks)
    }
}

/// A row of the segment table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// The segment.
    pub id: ObjectId,
    /// Its length, bytes; 0 as long as it is not known.
    pub len: u32,
    /// Blocks that runs name.
    pub live: u32,
    /// Blocks that it has.
    pub total: u32,
    /// Sequence of the first head that named it.
    pub born: u64,
}

/// A map object in which pages live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapObject {
    /// The object.
    pub id: ObjectId,
    /// Its length, bytes.
    pub len: u32,
    /// Bytes of pages that the root reaches.
    pub live: u32,
    /// Sequence of the first head that named it.
    pub born: u64,
}

/// The root page.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Root {
    /// Length of the device, bytes.
    pub device_len: u64,
    /// Everything of frames before it is in the pages.
    pub position: u64,
    /// Index pages by TiB, rising.
    pub index: Vec<(u32, ObjectRef)>,
    /// Pages of the segment table, rising.
    pub table: Vec<(u32, ObjectRef)>,
    /// Pages of graves, rising.
    pub graves: Vec<(u32, ObjectRef)>,
    /// The map objects, by name.
    pub objects: Vec<MapObject>,
}

/// Lengthens `out` by a page around what `fill` appends.
fn page(out: &mut Vec<u8>, kind: PageKind, number: u32, position: u64, count: usize, fill: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.resize(at + PAGE_HEADER_LEN, 0);
    fill(out);
    let mut raw = RawPage {
        magic: MAGIC,
        kind: kind as u8,
        zeros: [0; 3],
        count: (count as u32).into(),
        number: number.into(),
        position: position.into(),
        xxh: 0.into(),
    };
    let sum = Sum::new().add(&raw.as_bytes()[..PAGE_HEADER_LEN - 8]).add(&out[at + PAGE_HEADER_LEN..]);
    raw.xxh = sum.get().into();
    out[at..at + PAGE_HEADER_LEN].copy_from_slice(raw.as_bytes());
}

/// The header of a page, and what follows it.
fn open_page(bytes: &[u8], kind: PageKind, number: u32) -> Result<(&RawPage, &[u8]), Corruption> {
    let what = "map page";
    ensure!(bytes.len() <= OBJECT_LEN_MAX as usize, what, "length", bytes.len(), format!("at most {OBJECT_LEN_MAX}"));
    let (raw, rest) = RawPage::ref_from_prefix(bytes)
        .map_err(|_| Corruption::new(what, "length", bytes.len(), format!("at least {PAGE_HEADER_LEN}")))?;
    ensure!(raw.magic == MAGIC, what, "magic", format!("{:02x?}", raw.magic), "OMAP");
    let have = Sum::new().add(&bytes[..PAGE_HEADER_LEN - 8]).add(rest).get();
    ensure!(have == raw.xxh.get(), what, "checksum", have, raw.xxh);
    ensure!(raw.kind == kind as u8, what, "kind", raw.kind, kind as u8);
    ensure!(raw.number.get() == number, what, "number", raw.number, number);
    all_zero(&raw.zeros, what, "bytes from 5")?;
    Ok((raw, rest))
}

/// The entries of a page, which are all that it has.
fn entries<T>(rest: &[u8], count: u32, count_max: u32) -> Result<&[T], Corruption>
where
    T: FromBytes + zerocopy::Immutable + zerocopy::KnownLayout + zerocopy::Unaligned,
{
    ensure!(count <= count_max, "map page", "count", count, format!("at most {count_max}"));
    let (out, after) = list::<T>(rest, count, "map page")?;
    ensure!(after.is_empty(), "map page", "bytes behind its entries", after.len(), 0);
    Ok(out)
}

/// Appends the page of a region to `out`.
pub fn encode_region(out: &mut Vec<u8>, region: u32, position: u64, runs: impl Iterator<Item = Run> + Clone) {
    page(out, PageKind::Region, region, position, runs.clone().count(), |out| {
        for run in runs {
            let u24 = |n: u32| [n as u8, (n >> 8) as u8, (n >> 16) as u8];
            let (start, stored) = (u24(run.start), u24(run.stored));
            let (row, off) = (run.row.into(), run.off.into());
            push(out, &RawRun { start, blocks: run.blocks, row, off, stored, skip: run.skip });
        }
    });
}

/// Reads the page of a region: runs in rising order, none over another.
pub fn parse_region(bytes: &[u8], region: u32) -> Result<Vec<Run>, Corruption> {
    let what = "run";
    let (raw, rest) = open_page(bytes, PageKind::Region, region)?;
    let raws = entries::<RawRun>(rest, raw.count.get(), REGION_BLOCKS as u32)?;
    let mut out = Vec::with_capacity(raws.len());
    let mut free_from = 0;
    for raw in raws {
        let u24 = |b: [u8; 3]| u32::from(b[0]) | u32::from(b[1]) << 8 | u32::from(b[2]) << 16;
        let (start, stored) = (u24(raw.start), u24(raw.stored));
        let run = Run { start, blocks: raw.blocks, skip: raw.skip, row: raw.row.get(), off: raw.off.get(), stored };
        ensure!(start >= free_from, what, "start", start, format!("at least {free_from}"));
        ensure!(u64::from(run.end()) <= REGION_BLOCKS, what, "end", run.end(), format!("at most {REGION_BLOCKS}"));
        let border = FRAME_BLOCKS_MAX - u64::from(start) % FRAME_BLOCKS_MAX;
        ensure!((1..=border).contains(&run.blocks.into()), what, "blocks", run.blocks, format!("1 to {border}"));
        let of_frame = u64::from(run.skip) + u64::from(run.blocks);
        ensure!(
            of_frame <= FRAME_BLOCKS_MAX,
            what,
            "blocks in the frame",
            of_frame,
            format!("at most {FRAME_BLOCKS_MAX}")
        );
        ensure!(
            (1..=STORED_LEN_MAX).contains(&stored),
            what,
            "stored length",
            stored,
            format!("1 to {STORED_LEN_MAX}")
        );
        ensure!(
            run.row != NO_ROW && run.off < OBJECT_LEN_MAX,
            what,
            "place",
            run.off,
            format!("less than {OBJECT_LEN_MAX}")
        );
        free_from = run.end();
        out.push(run);
    }
    Ok(out)
}

/// Appends an index page to `out`: regions with their pages, rising.
pub fn encode_index(out: &mut Vec<u8>, number: u32, position: u64, regions: &[(u32, ObjectRef)]) {
    page(out, PageKind::Index, number, position, regions.len(), |out| {
        for (region, at) in regions {
            push(out, &RawIndex { region: (*region).into(), page: at.raw() });
        }
    });
}

/// Reads an index page.
pub fn parse_index(bytes: &[u8], number: u32) -> Result<Vec<(u32, ObjectRef)>, Corruption> {
    let (raw, rest) = open_page(bytes, PageKind::Index, number)?;
    let mut out: Vec<(u32, ObjectRef)> = Vec::new();
    for raw in entries::<RawIndex>(rest, raw.count.get(), INDEX_REGIONS)? {
        let region = raw.region.get();
        let rises = out.last().is_none_or(|(before, _)| *before < region);
        ensure!(
            rises && region / INDEX_REGIONS == number,
            "index",
            "region",
            region,
            format!("those of {number}, rising")
        );
        out.push((region, ObjectRef::of_raw(&raw.page)?));
    }
    Ok(out)
}

/// Appends a page of the segment table to `out`. Rows that are free are `None`.
pub fn encode_table(out: &mut Vec<u8>, number: u32, position: u64, rows: &[Option<Row>]) {
    page(out, PageKind::Table, number, position, rows.len(), |out| {
        for row in rows {
            let free = Row { id: ObjectId { map: true, ..ObjectId::default() }, len: 0, live: 0, total: 0, born: 0 };
            let row = row.as_ref().unwrap_or(&free);
            let (len, live, born, total) = (row.len.into(), row.live.into(), row.born.into(), row.total.into());
            push(out, &RawRow { id: row.id.raw(), len, live, born, total, zero: 0.into() });
        }
    });
}

/// Reads a page of the segment table.
pub fn parse_table(bytes: &[u8], number: u32) -> Result<Vec<Option<Row>>, Corruption> {
    let what = "segment table";
    let (raw, rest) = open_page(bytes, PageKind::Table, number)?;
    let mut out = Vec::new();
    for raw in entries::<RawRow>(rest, raw.count.get(), TABLE_ROWS)? {
        ensure!(raw.zero.get() == 0, what, "bytes that are zero", raw.zero, 0);
        let id = ObjectId::of_raw(&raw.id)?;
        let (len, live, total, born) = (raw.len.get(), raw.live.get(), raw.total.get(), raw.born.get());
        if id.map {
            let blank = id == ObjectId { map: true, ..ObjectId::default() } && (len, live, total, born) == (0, 0, 0, 0);
            ensure!(blank, what, "free row", id, "blank");
            out.push(None);
            continue;
        }
        ensure!(len <= OBJECT_LEN_MAX, what, "length", len, format!("at most {OBJECT_LEN_MAX}"));
        ensure!(live <= total, what, "live blocks", live, format!("at most {total}"));
        out.push(Some(Row { id, len, live, total, born }));
    }
    Ok(out)
}

/// Appends a page of graves to `out`.
pub fn encode_graves(out: &mut Vec<u8>, number: u32, position: u64, graves: &[Grave]) {
    page(out, PageKind::Graves, number, position, graves.len(), |out| {
        for grave in graves {
            push(out, &grave.raw());
        }
    });
}

/// Reads a page of graves.
pub fn parse_graves(bytes: &[u8], number: u32) -> Result<Vec<Grave>, Corruption> {
    let (raw, rest) = open_page(bytes, PageKind::Graves, number)?;
    let raws = entries::<RawGrave>(rest, raw.count.get(), PAGE_GRAVES)?;
    raws.iter().map(Grave::of_raw).collect()
}

impl Root {
    /// Appends the page to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let refs = self.index.len() + self.table.len() + self.graves.len();
        page(out, PageKind::Root, 0, self.position, refs + self.objects.len(), |out| {
            let (refs, objects) = ((refs as u32).into(), (self.objects.len() as u32).into());
            push(out, &RawRoot { device_len: self.device_len.into(), refs, objects });
            let kinds =
                [(PageKind::Index, &self.index), (PageKind::Table, &self.table), (PageKind::Graves, &self.graves)];
            for (kind, refs) in kinds {
                for (number, at) in refs {
                    let raw = RawRootRef { kind: kind as u8, zeros: [0; 3], number: (*number).into(), page: at.raw() };
                    push(out, &raw);
                }
            }
            for o in &self.objects {
                let (len, live, born) = (o.len.into(), o.live.into(), o.born.into());
                push(out, &RawObject { id: o.id.raw(), len, live, born, zeros: [0; 8] });
            }
        });
    }

    /// Reads the page.
    pub fn parse(bytes: &[u8]) -> Result<Root, Corruption> {
        let what = "root page";
        let (header, rest) = open_page(bytes, PageKind::Root, 0)?;
        let (raw, rest) = RawRoot::ref_from_prefix(rest)
            .map_err(|_| Corruption::new(what, "length", bytes.len(), "that of a root"))?;
        let len = raw.device_len.get();
        ensure!(len <= DEVICE_LEN_MAX, what, "length of the device", len, format!("at most {DEVICE_LEN_MAX}"));
        let (refs, objects) = (raw.refs.get(), raw.objects.get());
        let sum = u64::from(refs) + u64::from(objects);
        ensure!(u64::from(header.count.get()) == sum, what, "count", header.count, sum);
        let (raw_refs, rest) = list::<RawRootRef>(rest, refs, what)?;
        let (raw_objects, rest) = list::<RawObject>(rest, objects, what)?;
        ensure!(rest.is_empty(), what, "bytes behind its entries", rest.len(), 0);
        let mut root = Root { device_len: len, position: header.position.get(), ..Root::default() };
        let mut before = None;
        for raw in raw_refs {
            let here = (raw.kind, raw.number.get());
            ensure!(before < Some(here), what, "order of its references", format!("{here:?}"), "rising");
            ensure!(here.1 < ROOT_COUNT_MAX, what, "number of a page", here.1, format!("less than {ROOT_COUNT_MAX}"));
            all_zero(&raw.zeros, what, "bytes that are zero")?;
            before = Some(here);
            let to = match raw.kind {
                2 => &mut root.index,
                3 => &mut root.table,
                4 => &mut root.graves,
                kind => return Err(Corruption::new(what, "kind of a reference", kind, "2 to 4")),
            };
            to.push((here.1, ObjectRef::of_raw(&raw.page)?));
        }
        for raw in raw_objects {
            let id = ObjectId::of_raw(&raw.id)?.expect_map(true)?;
            let (len, live) = (raw.len.get(), raw.live.get());
            let rises = root.objects.last().is_none_or(|before| before.id < id);
            ensure!(rises, what, "order of its objects", id, "rising");
            ensure!(live <= len && len <= OBJECT_LEN_MAX, what, "live bytes", live, format!("at most {len}"));
            all_zero(&raw.zeros, what, "bytes that are zero")?;
            root.objects.push(MapObject { id, len, live, born: raw.born.get() });
        }
        Ok(root)
    }
}
