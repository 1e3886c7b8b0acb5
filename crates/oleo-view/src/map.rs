//! The numbers behind the pictures of a volume.
//!
//! Normal path of [`Map::read`]: (1) devices and chunks come from the volume (`devices.rs`); (2) one pass over the extent tree fills the cells of the space map and the
//! generations (`space.rs`); (3) one pass over all subvolumes' trees, level by level, finds who reaches what (`shares.rs`); (4) the files that data belongs to get their
//! paths (`paths.rs`).
//!
//! Invariant: memory is bounded by [`MapOptions::table_bytes`] and the constants here, whatever the volume has. Where a table would grow beyond that, it keeps a sample, and [`Map::sample`]
//! says so; where a list would, it ends, and [`Map::notes`] says so.
//!
//! What is read is what the last commit left; on a volume that somebody writes to, blocks may be overwritten meanwhile. Then they count as unreadable.

mod cells;
mod devices;
mod error;
mod findings;
mod notes;
mod options;
mod paths;
mod shares;
mod sharing;
mod space;
mod tree;

use oleo::inspect::Inspector;
use serde::Serialize;

use crate::name_text;

pub use cells::Cells;
pub use devices::{DeviceBar, Group, Stripe};
pub use error::MapError;
pub use findings::{Finding, Findings};
pub use options::{MapOptions, Sample};
pub use paths::{PathNode, Paths};
pub use sharing::{Set, Sharing, Subvol};
pub use space::{Generations, Space};

/// A map of a volume. All sizes are in bytes; data counts as it is on disk, each copy once, unless said otherwise.
#[derive(Clone, Debug, Serialize)]
pub struct Map {
    /// Version of this form.
    pub format: u32,
    /// The label.
    pub label: String,
    /// The file system's UUID.
    pub uuid: String,
    /// The transaction that the map shows.
    pub generation: u64,
    /// Bytes of a tree block.
    pub nodesize: u32,
    /// Bytes of a sector.
    pub sectorsize: u32,
    /// The devices, by number.
    pub devices: Vec<DeviceBar>,
    /// Chunks with their block groups, by address.
    pub groups: Vec<Group>,
    /// The address space, in cells.
    pub space: Space,
    /// When what is there was written.
    pub generations: Generations,
    /// Subvolumes, and what they share.
    pub sharing: Sharing,
    /// Paths by the bytes that they alone hold.
    pub paths: Paths,
    /// What a check or scrub found.
    pub findings: Findings,
    /// If not all data extents were looked at for sharing, compression and paths.
    pub sample: Option<Sample>,
    /// What is not complete, and why.
    pub notes: Vec<String>,
    /// How often a tree block could not be read; on a volume that is in use they may be readable the next time.
    pub unread: u64,
}

impl Map {
    /// Reads a volume.
    ///
    /// # Errors
    /// None of its trees can be read.
    pub fn read(inspector: &Inspector, options: &MapOptions) -> Result<Map, MapError> {
        let sb = inspector.volume().super_block();
        let mut notes = notes::Notes::default();
        let roots = tree::Roots::read(inspector, &mut notes)?;
        let (devices, mut groups) = devices::read(inspector, &mut notes);
        let mut space = space::Builder::new(&groups, &sb);
        space.read(inspector, &roots, &mut groups, &mut notes);
        let mut sharing = Sharing::of_roots(&roots, &mut notes);
        let mut paths = Paths::default();
        let mut sample = None;
        if !options.space_only {
            let shares =
                shares::Shares::read(inspector, &roots, &sharing.tracked(), space.blocks(), options, &mut notes)?;
            sharing.fill(&shares);
            space.fill(&shares);
            paths = paths::read(inspector, &roots, &sharing, &shares, &mut notes);
            sample = shares.sample();
        }
        let (space, generations) = space.finish(&roots);
        Ok(Map {
            format: 1,
            label: name_text(sb.label()),
            uuid: sb.fsid().to_string(),
            generation: sb.generation.get(),
            nodesize: sb.nodesize.get(),
            sectorsize: sb.sectorsize.get(),
            devices,
            groups,
            space,
            generations,
            sharing,
            paths,
            findings: Findings::default(),
            sample,
            notes: notes.said,
            unread: notes.unread,
        })
    }

    /// Puts on the map what a check or scrub found.
    pub fn add_findings(&mut self, more: Findings) {
        self.findings.add(more, &self.space);
    }
}
