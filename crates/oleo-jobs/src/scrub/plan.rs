//! What lies in a range of addresses, and what its bytes have to be: extents of the last commit, with checksums.
//!
//! A plan holds a [`Reader`]: while it lives, nothing that it names is given to anybody else, so that bytes that do not fit are bad,
//! and may be overwritten. (Data without checksums may be overwritten by its owner in place.)

use std::ops::ControlFlow;

use oleo_format::{
    CheckedNode, Corruption, ExtentFlags, ExtentRecord, Generation, ItemType, Key, Logical, NodeExpect, TreeId,
};
use oleo_tree::TreeRoot;
use oleo_txn::{Engine, Reader};
use oleo_volume::Volume;

use crate::JobError;

/// An extent, whole, even if only a part of it is in the range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub start: u64,
    pub len: u64,
    pub kind: Kind,
}

/// What it holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Data,
    Block { generation: Generation, level: Option<u8> },
}

/// A part of an extent that lies together on a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Live {
    /// Address of its first byte.
    pub at: u64,
    pub len: u64,
    pub extent: Extent,
}

impl Live {
    pub fn end(&self) -> u64 {
        self.at + self.len
    }

    /// Whether it is a tree block that is not whole here: it reaches into another unit of the chunk.
    pub fn is_part_of_block(&self) -> bool {
        matches!(self.extent.kind, Kind::Block { .. }) && self.len < self.extent.len
    }
}

/// Bytes that are not what they have to be.
#[derive(Debug)]
pub(super) struct Fault {
    /// Address: of a sector, or of a tree block.
    pub at: u64,
    pub len: u64,
    pub extent: Extent,
    pub why: Why,
}

/// What is wrong with them.
#[derive(Debug)]
pub(super) enum Why {
    /// They do not fit their checksum.
    Sum,
    /// They are not the tree block that belongs there.
    Block(Box<Corruption>),
    /// They cannot be read.
    Read,
    /// They are on a device that missed writes, and nothing says that they are right: what is there may be of an earlier time.
    Stale,
}

/// Whether bytes are what they have to be.
#[derive(Debug)]
pub(super) enum Fit {
    Yes,
    /// They have no checksum.
    Unknown,
    No(Why),
}

/// See the text of the module.
pub(super) struct Plan {
    _reader: Reader,
    /// By address.
    extents: Vec<Extent>,
    /// Checksums: address of the first sector, and one for each sector from there.
    sums: Vec<(u64, Vec<u8>)>,
    sectorsize: u64,
    csum_len: usize,
}

impl Plan {
    /// What the last commit has in a range of addresses.
    ///
    /// # Errors
    /// The extent tree or the checksum tree cannot be read.
    pub fn read(engine: &Engine, from: u64, to: u64) -> Result<Plan, JobError> {
        let mut plan = Plan {
            _reader: engine.reader(),
            extents: Vec::new(),
            sums: Vec::new(),
            sectorsize: engine.sectorsize().into(),
            csum_len: engine.csum_type().csum_len(),
        };
        if let Some(root) = engine.root(TreeId::EXTENT)? {
            plan.read_extents(engine, &root, from, to)?;
        }
        let has_data = plan.extents.iter().any(|extent| matches!(extent.kind, Kind::Data));
        if has_data && let Some(root) = engine.root(TreeId::CSUM)? {
            plan.read_sums(engine, &root, from, to)?;
        }
        Ok(plan)
    }

    fn read_extents(&mut self, engine: &Engine, root: &TreeRoot, from: u64, to: u64) -> Result<(), JobError> {
        let nodesize = u64::from(engine.nodesize());
        let first = first_key(engine, root, from)?;
        let last = Key::new(to.saturating_sub(1), ItemType(u8::MAX), u64::MAX);
        engine.blocks().scan(root, first, last, |key, item| {
            let len = match key.item_type {
                ItemType::EXTENT_ITEM => key.offset,
                ItemType::METADATA_ITEM => nodesize,
                _ => return Ok::<_, JobError>(ControlFlow::Continue(())),
            };
            if key.objectid.checked_add(len).is_none_or(|end| end <= from) {
                return Ok(ControlFlow::Continue(()));
            }
            let record = ExtentRecord::parse_head(key, item)?.0;
            let kind = if record.flags.contains(ExtentFlags::TREE_BLOCK) {
                let skinny = (key.item_type == ItemType::METADATA_ITEM).then(|| u8::try_from(key.offset).ok());
                let level = skinny.unwrap_or(record.tree_block.map(|(_, level)| level));
                Kind::Block { generation: record.generation, level }
            } else {
                Kind::Data
            };
            self.extents.push(Extent { start: key.objectid, len, kind });
            Ok(ControlFlow::Continue(()))
        })
    }

    fn read_sums(&mut self, engine: &Engine, root: &TreeRoot, from: u64, to: u64) -> Result<(), JobError> {
        let mut cursor = engine.blocks().cursor(root);
        let before = cursor.seek_back(&Key::csum(Logical(from)))?;
        let before = cursor.key().filter(|key| before && key.item_type == ItemType::EXTENT_CSUM);
        let first = before.unwrap_or(Key::csum(Logical(from)));
        engine.blocks().scan(root, first, Key::csum(Logical(to.saturating_sub(1))), |key, item| {
            if key.item_type == ItemType::EXTENT_CSUM && self.sums_end(key.offset, item) > from {
                self.sums.push((key.offset, item.to_vec()));
            }
            Ok::<_, JobError>(ControlFlow::Continue(()))
        })
    }

    fn sums_end(&self, start: u64, sums: &[u8]) -> u64 {
        start.saturating_add((sums.len() / self.csum_len) as u64 * self.sectorsize)
    }

    /// The parts of extents in a range, by address.
    pub fn live(&self, from: u64, to: u64) -> impl Iterator<Item = Live> {
        let first = self.extents.partition_point(|extent| extent.start + extent.len <= from);
        let within = self.extents[first..].iter().take_while(move |extent| extent.start < to);
        let clipped = within.map(move |extent| {
            let at = extent.start.max(from);
            Live { at, len: (extent.start + extent.len).min(to).saturating_sub(at), extent: *extent }
        });
        // Extents that overlap are on damaged volumes only.
        clipped.filter(|live| live.len > 0)
    }

    /// The checksum of the sector at an address, if it has one.
    fn sum(&self, at: u64) -> Option<&[u8]> {
        let nth = self.sums.partition_point(|(start, _)| *start <= at).checked_sub(1)?;
        let (start, sums) = &self.sums[nth];
        let from = ((at - start) / self.sectorsize) as usize * self.csum_len;
        sums.get(from..from + self.csum_len)
    }

    /// Whether a sector of data, or a whole tree block, fits.
    pub fn fit(&self, volume: &Volume, extent: &Extent, at: u64, bytes: &[u8]) -> Fit {
        match extent.kind {
            Kind::Data => match self.sum(at) {
                None => Fit::Unknown,
                Some(sum) if volume.rules().csum.csum(bytes)[..self.csum_len] == *sum => Fit::Yes,
                Some(_) => Fit::No(Why::Sum),
            },
            Kind::Block { generation, level } => {
                let expect =
                    NodeExpect { generation: Some(generation), level, ..NodeExpect::at(Logical(extent.start)) };
                match CheckedNode::verify(bytes.into(), volume.rules_of(bytes), &expect) {
                    Ok(_) => Fit::Yes,
                    Err(why) => Fit::No(Why::Block(Box::new(why))),
                }
            }
        }
    }

    /// The same for bytes that are to take the place of what does not fit. Of a tree block that is not whole there nothing is known.
    pub fn fit_of(&self, volume: &Volume, fault: &Fault, bytes: &[u8]) -> Fit {
        match fault.extent.kind {
            Kind::Block { .. } if fault.len < fault.extent.len => Fit::Unknown,
            _ => self.fit(volume, &fault.extent, fault.at, bytes),
        }
    }

    /// The units of a part of an extent on a device that missed writes of which nothing says whether they are right; those that are known to be bad
    /// are left out.
    pub fn outdated<'p>(&'p self, live: &'p Live, bad: &'p [Fault]) -> impl Iterator<Item = Fault> + use<'p> {
        let is_unknown = |at: u64| match live.extent.kind {
            Kind::Data => self.sum(at).is_none(),
            Kind::Block { .. } => live.is_part_of_block(),
        };
        let units = self.units(live).filter(move |(at, _)| is_unknown(*at) && bad.iter().all(|fault| fault.at != *at));
        units.map(|(at, len)| Fault { at, len, extent: live.extent, why: Why::Stale })
    }

    /// Looks at the bytes of a part of an extent, unit by unit: sectors, or a whole tree block. `read` is asked first whether a unit, which
    /// is at an address, was read at all. Returns how many sectors have no checksum. Of a tree block that is not whole in the part
    /// nothing is known.
    pub fn check(
        &self,
        volume: &Volume,
        live: &Live,
        bytes: &mut [u8],
        read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
        faults: &mut Vec<Fault>,
    ) -> u64 {
        if live.is_part_of_block() {
            return 0;
        }
        let mut unknown = 0;
        for (at, len) in self.units(live) {
            let from = (at - live.at) as usize;
            let unit = &mut bytes[from..from + len as usize];
            let why = if read(at, unit) {
                match self.fit(volume, &live.extent, at, unit) {
                    Fit::Yes => continue,
                    Fit::Unknown => {
                        unknown += 1;
                        continue;
                    }
                    Fit::No(why) => why,
                }
            } else {
                Why::Read
            };
            faults.push(Fault { at, len, extent: live.extent, why });
        }
        unknown
    }

    /// The units that a part of an extent is looked at in.
    pub fn units(&self, live: &Live) -> impl Iterator<Item = (u64, u64)> + use<> {
        let step = match live.extent.kind {
            Kind::Data => self.sectorsize,
            Kind::Block { .. } => live.extent.len,
        };
        let (at, end) = (live.at, live.end());
        (at..end).step_by(step.max(1) as usize).map(move |from| (from, step.min(end - from)))
    }

    pub fn sectors(&self, len: u64) -> u64 {
        len / self.sectorsize
    }
}

/// The key of the extent that reaches into a range from before, or that at its start.
fn first_key(engine: &Engine, root: &TreeRoot, from: u64) -> Result<Key, JobError> {
    let start = Key::new(from, ItemType(0), 0);
    let mut cursor = engine.blocks().cursor(root);
    let mut there = cursor.seek_back(&start)?;
    // From references and block groups to the item of their extent, or to what is before.
    while there && let Some(key) = cursor.key() {
        match key.item_type {
            ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => return Ok(key),
            _ if key.item_type > ItemType::METADATA_ITEM => {
                there = cursor.seek_back(&Key::new(key.objectid, ItemType::METADATA_ITEM, u64::MAX))?;
            }
            _ => there = cursor.prev()?,
        }
    }
    Ok(start)
}
