//! What space is for.

use std::fmt;

use oleo_format::BlockGroupFlags;

/// What space is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// Contents of files.
    Data,
    /// Tree blocks.
    Metadata,
    /// Blocks of the chunk tree.
    System,
}

impl Kind {
    /// All kinds, in order.
    pub const ALL: [Kind; 3] = [Kind::Data, Kind::Metadata, Kind::System];

    /// The bit that groups with space of this kind have in their type.
    pub fn flag(self) -> BlockGroupFlags {
        match self {
            Kind::Data => BlockGroupFlags::DATA,
            Kind::Metadata => BlockGroupFlags::METADATA,
            Kind::System => BlockGroupFlags::SYSTEM,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Data => "data",
            Kind::Metadata => "metadata",
            Kind::System => "system",
        })
    }
}
