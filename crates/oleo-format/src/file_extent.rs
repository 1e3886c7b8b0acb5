//! File extents: the places of the contents of a file. One EXTENT_DATA item each, keyed by the position in the file.

use zerocopy::IntoBytes;

use crate::error::{Corruption, ensure};
use crate::structs::{FileExtentHead, FileExtentItem};
use crate::{ByteLen, Generation, Logical};

/// How an extent is compressed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// A zlib stream.
    Zlib,
    /// LZO1X, sector by sector.
    Lzo,
    /// A zstd frame.
    Zstd,
}

impl Compression {
    /// The kind with this number.
    pub fn from_disk(value: u8) -> Option<Compression> {
        [Compression::None, Compression::Zlib, Compression::Lzo, Compression::Zstd].get(usize::from(value)).copied()
    }

    /// Its number on disk.
    pub fn to_disk(self) -> u8 {
        self as u8
    }

    /// The name that commands and the `btrfs.compression` property use.
    pub fn name(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Zlib => "zlib",
            Compression::Lzo => "lzo",
            Compression::Zstd => "zstd",
        }
    }
}

/// A part of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FileExtent {
    /// The data is in the item itself.
    Inline {
        /// The transaction that wrote it.
        generation: Generation,
        /// Its length in the file.
        ram_bytes: ByteLen,
        /// How `data` is compressed.
        compression: Compression,
        /// The bytes.
        data: Vec<u8>,
    },
    /// The data is on disk, or there is none and this is a hole.
    Regular(DiskExtent),
    /// Space is reserved on disk; it reads as zeros.
    Prealloc(DiskExtent),
}

/// A part of a file that is (a part of) an extent on disk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DiskExtent {
    /// The transaction that wrote the extent.
    pub generation: Generation,
    /// The length of the whole extent when decompressed.
    pub ram_bytes: ByteLen,
    /// How the extent is compressed.
    pub compression: Compression,
    /// Address of the whole extent; 0 is a hole.
    pub disk_bytenr: Logical,
    /// The length of the whole extent on disk.
    pub disk_num_bytes: ByteLen,
    /// Offset of this part in the decompressed extent.
    pub offset: ByteLen,
    /// The length of this part.
    pub num_bytes: ByteLen,
}

impl DiskExtent {
    /// Whether nothing is on disk.
    pub fn is_hole(&self) -> bool {
        self.disk_bytenr.0 == 0
    }

    /// A hole.
    pub fn hole(generation: Generation, num_bytes: ByteLen) -> DiskExtent {
        DiskExtent {
            generation,
            ram_bytes: num_bytes,
            compression: Compression::None,
            disk_bytenr: Logical(0),
            disk_num_bytes: ByteLen(0),
            offset: ByteLen(0),
            num_bytes,
        }
    }

    fn to_disk(self, kind: u8) -> FileExtentItem {
        FileExtentItem {
            generation: self.generation.0.into(),
            ram_bytes: self.ram_bytes.0.into(),
            compression: self.compression.to_disk(),
            encryption: 0,
            other_encoding: 0.into(),
            r#type: kind,
            disk_bytenr: self.disk_bytenr.0.into(),
            disk_num_bytes: self.disk_num_bytes.0.into(),
            offset: self.offset.0.into(),
            num_bytes: self.num_bytes.0.into(),
        }
    }
}

impl FileExtent {
    /// The extent in an EXTENT_DATA item.
    pub fn parse(item: &[u8]) -> Result<FileExtent, Corruption> {
        let (head, data) = FileExtentHead::parse_prefix(item)?;
        let compression = Compression::from_disk(head.compression)
            .ok_or_else(|| Corruption::new("file extent", "compression", head.compression, "0 to 3"))?;
        ensure!(head.encryption == 0, "file extent", "encryption", head.encryption, 0);
        let generation = Generation(head.generation.get());
        let ram_bytes = ByteLen(head.ram_bytes.get());
        if head.r#type == FileExtentItem::INLINE {
            return Ok(FileExtent::Inline { generation, ram_bytes, compression, data: data.to_vec() });
        }
        let e = FileExtentItem::parse(item)?;
        let extent = DiskExtent {
            generation,
            ram_bytes,
            compression,
            disk_bytenr: Logical(e.disk_bytenr.get()),
            disk_num_bytes: ByteLen(e.disk_num_bytes.get()),
            offset: ByteLen(e.offset.get()),
            num_bytes: ByteLen(e.num_bytes.get()),
        };
        match head.r#type {
            FileExtentItem::REG => Ok(FileExtent::Regular(extent)),
            FileExtentItem::PREALLOC => Ok(FileExtent::Prealloc(extent)),
            other => Err(Corruption::new("file extent", "type", other, "0 to 2")),
        }
    }

    /// The item.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            FileExtent::Inline { generation, ram_bytes, compression, data } => {
                let head = FileExtentHead {
                    generation: generation.0.into(),
                    ram_bytes: ram_bytes.0.into(),
                    compression: compression.to_disk(),
                    encryption: 0,
                    other_encoding: 0.into(),
                    r#type: FileExtentItem::INLINE,
                };
                [head.as_bytes(), data].concat()
            }
            FileExtent::Regular(e) => e.to_disk(FileExtentItem::REG).as_bytes().to_vec(),
            FileExtent::Prealloc(e) => e.to_disk(FileExtentItem::PREALLOC).as_bytes().to_vec(),
        }
    }

    /// How much of the file it covers. An inline extent covers its bytes, though the file may end within its sector.
    pub fn len(&self) -> ByteLen {
        match self {
            FileExtent::Inline { ram_bytes, .. } => *ram_bytes,
            FileExtent::Regular(e) | FileExtent::Prealloc(e) => e.num_bytes,
        }
    }

    /// Whether it covers nothing.
    pub fn is_empty(&self) -> bool {
        self.len().0 == 0
    }

    /// The extent on disk, unless inline.
    pub fn disk(&self) -> Option<&DiskExtent> {
        match self {
            FileExtent::Inline { .. } => None,
            FileExtent::Regular(e) | FileExtent::Prealloc(e) => Some(e),
        }
    }
}
