//! Chunks: the mapping from parts of the logical space to devices. They are items of the chunk tree, and system chunks
//! are also in the superblock, so that the chunk tree itself can be found.

use zerocopy::IntoBytes;

use crate::error::{Corruption, ensure};
use crate::flags::BlockGroupFlags;
use crate::layout::SYS_CHUNK_ARRAY_LEN;
use crate::structs::{ChunkItem, Stripe, SuperBlock};
use crate::{ByteLen, DiskKey, ItemType, Key, Logical, TreeId};

/// The bytes of one stripe element. The format has a field for it, but no other value exists.
pub const STRIPE_LEN: ByteLen = ByteLen(64 << 10);

/// A chunk with its stripes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Its bytes in logical space.
    pub length: ByteLen,
    /// The extent tree.
    pub owner: TreeId,
    /// [`STRIPE_LEN`].
    pub stripe_len: ByteLen,
    /// Its type and profile.
    pub flags: BlockGroupFlags,
    /// A hint, in bytes.
    pub io_align: u32,
    /// A hint, in bytes.
    pub io_width: u32,
    /// The sector size of the volume.
    pub sector_size: u32,
    /// 2 for RAID10, else 1.
    pub sub_stripes: u16,
    /// Its places on the devices.
    pub stripes: Vec<Stripe>,
}

impl Chunk {
    /// The key of the chunk that starts here.
    pub fn key(start: Logical) -> Key {
        Key::new(Key::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, start.0)
    }

    /// The chunk in a CHUNK_ITEM.
    pub fn parse(item: &[u8]) -> Result<Chunk, Corruption> {
        let (chunk, rest) = Chunk::parse_prefix(item)?;
        ensure!(rest.is_empty(), "chunk", "length of the item", item.len(), item.len() - rest.len());
        Ok(chunk)
    }

    /// The chunk at the start of `bytes`, and the rest.
    pub fn parse_prefix(bytes: &[u8]) -> Result<(Chunk, &[u8]), Corruption> {
        let (head, rest) = ChunkItem::parse_prefix(bytes)?;
        let count = usize::from(head.num_stripes.get());
        let (stripes, rest) = <[Stripe] as zerocopy::FromBytes>::ref_from_prefix_with_elems(rest, count)
            .map_err(|_| Corruption::new("chunk", "num_stripes", count, "as many as the item holds"))?;
        let chunk = Chunk {
            length: ByteLen(head.length.get()),
            owner: TreeId(head.owner.get()),
            stripe_len: ByteLen(head.stripe_len.get()),
            flags: BlockGroupFlags::from_bits_retain(head.r#type.get()),
            io_align: head.io_align.get(),
            io_width: head.io_width.get(),
            sector_size: head.sector_size.get(),
            sub_stripes: head.sub_stripes.get(),
            stripes: stripes.to_vec(),
        };
        Ok((chunk, rest))
    }

    /// The item.
    pub fn encode(&self) -> Vec<u8> {
        let head = ChunkItem {
            length: self.length.0.into(),
            owner: self.owner.0.into(),
            stripe_len: self.stripe_len.0.into(),
            r#type: self.flags.bits().into(),
            io_align: self.io_align.into(),
            io_width: self.io_width.into(),
            sector_size: self.sector_size.into(),
            num_stripes: u16::try_from(self.stripes.len()).expect("a chunk has at most 65535 stripes").into(),
            sub_stripes: self.sub_stripes.into(),
        };
        [head.as_bytes(), self.stripes.as_bytes()].concat()
    }
}

impl SuperBlock {
    /// The system chunks and their keys.
    pub fn parse_sys_chunks(&self) -> Result<Vec<(Key, Chunk)>, Corruption> {
        let mut rest = self.sys_chunks()?;
        let mut chunks = Vec::new();
        while !rest.is_empty() {
            let at = self.sys_chunk_array_size.get() as usize - rest.len();
            let place = |e: Corruption| e.within(format_args!("byte {at} of the superblock's system chunks"));
            let (key, after) = <DiskKey as zerocopy::FromBytes>::ref_from_prefix(rest)
                .map_err(|_| place(Corruption::new("system chunk", "length of its key", rest.len(), 17)))?;
            let key = Key::from(*key);
            let is_chunk = key.objectid == Key::FIRST_CHUNK_TREE && key.item_type == ItemType::CHUNK_ITEM;
            if !is_chunk {
                return Err(place(Corruption::new("system chunk", "key", key, "that of a chunk")));
            }
            let (chunk, after) = Chunk::parse_prefix(after).map_err(place)?;
            chunks.push((key, chunk));
            rest = after;
        }
        Ok(chunks)
    }

    /// Stores the system chunks; `false`, and nothing changes, if they need more than [`SYS_CHUNK_ARRAY_LEN`] bytes.
    pub fn set_sys_chunks<'a>(&mut self, chunks: impl IntoIterator<Item = (Key, &'a Chunk)>) -> bool {
        let mut bytes = Vec::new();
        for (key, chunk) in chunks {
            bytes.extend_from_slice(DiskKey::from(key).as_bytes());
            bytes.extend_from_slice(&chunk.encode());
        }
        if bytes.len() > SYS_CHUNK_ARRAY_LEN {
            return false;
        }
        self.sys_chunk_array = [0; SYS_CHUNK_ARRAY_LEN];
        self.sys_chunk_array[..bytes.len()].copy_from_slice(&bytes);
        self.sys_chunk_array_size = u32::try_from(bytes.len()).expect("at most 2048").into();
        true
    }
}
