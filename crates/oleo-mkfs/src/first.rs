//! An empty file system, written in one go.
//!
//! 1. `plan` places the first chunks on the devices.
//! 2. `trees` writes all items and packs them into blocks.
//! 3. [`make`] clears old superblocks, writes the blocks to every copy, flushes, writes new superblocks, flushes.
//!
//! The options and the device sizes determine every byte: same input, same bytes.
//!
//! A crash or error before the last step leaves devices without a file system, old or new; the old one was given up
//! when the new one was requested.

mod plan;
mod trees;

use std::sync::Arc;

use oleo_device::Device;
use oleo_format::{
    ByteLen, CompatRo, Incompat, Logical, SUPER_LEN, SUPER_OFFSETS, SuperBlock, SuperFlags, TreeId, new_super_block,
    super_offsets,
};
use oleo_volume::{ChunkPlan, Profile, Volume};
use uuid::Uuid;

use self::plan::{Plan, plan};
use self::trees::{Built, FIRST_GENERATION, build};
use crate::MkfsError;
use crate::options::{MkfsOptions, Resolved};

/// Bytes of a superblock.
const SUPER_SIZE: u64 = SUPER_LEN as u64;
/// The part at the start of a device that is cleared of what other formats may have left.
const CLEARED: u64 = 1 << 20;

/// What was made.
#[derive(Clone, Debug)]
pub struct Made {
    /// The UUID of the file system.
    pub fsid: Uuid,
    /// Its label.
    pub label: String,
    /// Bytes of a tree block.
    pub nodesize: u32,
    /// Bytes of a data block.
    pub sectorsize: u32,
    /// Profile of data.
    pub data: Profile,
    /// Profile of tree blocks.
    pub metadata: Profile,
    /// Bytes of all devices together.
    pub total: ByteLen,
    /// For each device, the end of the last chunk on it.
    pub used_to: Vec<u64>,
}

/// Makes an empty file system on these devices; their contents are lost.
///
/// The devices get the numbers 1, 2, … in the order given.
///
/// # Errors
/// The options contradict each other or do not fit the devices, or a device fails.
pub fn make(devices: &[Arc<dyn Device>], options: &MkfsOptions) -> Result<Made, MkfsError> {
    if devices.is_empty() {
        return Err(MkfsError::Options("a file system needs at least one device".into()));
    }
    let resolved = options.resolve(devices.len())?;
    let lengths: Vec<u64> = devices.iter().map(|d| d.len()).collect();
    let plan = plan(&lengths, &resolved)?;
    let built = build(&plan, &resolved)?;

    for device in devices {
        clear(device.as_ref())?;
    }
    write_blocks(devices, &plan, &built, &resolved)?;
    for (index, device) in devices.iter().enumerate() {
        let len = plan.device_bytes[index];
        let sb = super_block(&plan, &built, &resolved, index);
        for offset in super_offsets(len) {
            device.write_at(offset, &sb.to_bytes(offset))?;
        }
    }
    for device in devices {
        device.flush()?;
    }
    Ok(Made {
        fsid: resolved.fsid,
        label: resolved.label,
        nodesize: resolved.nodesize,
        sectorsize: resolved.sectorsize,
        data: resolved.data,
        metadata: resolved.metadata,
        total: ByteLen(plan.device_bytes.iter().sum()),
        used_to: plan.used_to,
    })
}

/// Clears the start of a device and all copies of an old superblock. Zeros are not overwritten, so that a sparse file
/// stays sparse.
fn clear(device: &dyn Device) -> Result<(), MkfsError> {
    let later = SUPER_OFFSETS.into_iter().filter(|&offset| offset >= CLEARED).map(|offset| (offset, SUPER_SIZE));
    for (offset, len) in [(0, CLEARED)].into_iter().chain(later) {
        if offset + len > device.len() {
            continue;
        }
        let mut bytes = vec![0u8; len as usize];
        device.read_at(offset, &mut bytes)?;
        if bytes.iter().any(|&b| b != 0) {
            bytes.fill(0);
            device.write_at(offset, &bytes)?;
        }
    }
    Ok(())
}

/// Writes the blocks to all their copies, with parity.
fn write_blocks(devices: &[Arc<dyn Device>], plan: &Plan, built: &Built, o: &Resolved) -> Result<(), MkfsError> {
    let sb = super_block(plan, built, o, 0);
    let with_items = devices.iter().cloned().zip(built.dev_items.iter().copied()).collect();
    let volume = Volume::create(with_items, &sb, Uuid::nil())?;
    for chunk in plan.chunks() {
        let map = chunk.map(o.sectorsize, |device| Uuid::from_bytes(built.dev_items[device].uuid));
        let chunk_item = (map.key(), map.chunk().encode());
        // Its items are in the trees already.
        volume.add_chunk(&ChunkPlan { map, chunk_item, dev_extents: Vec::new(), dev_items: Vec::new() });
    }
    let parts: Vec<(Logical, &[u8])> = built.blocks.iter().map(|(at, bytes)| (*at, &bytes[..])).collect();
    volume.write(&parts)?;
    Ok(volume.flush()?)
}

fn super_block(plan: &Plan, built: &Built, o: &Resolved, device: usize) -> SuperBlock {
    let mut sb = new_super_block();
    sb.fsid = o.fsid.into_bytes();
    sb.flags = SuperFlags::WRITTEN.bits().into();
    sb.generation = FIRST_GENERATION.0.into();
    sb.root = built.root.0.0.into();
    sb.root_level = built.root.1;
    sb.chunk_root = built.chunk_root.0.0.into();
    sb.chunk_root_level = built.chunk_root.1;
    sb.chunk_root_generation = FIRST_GENERATION.0.into();
    sb.total_bytes = plan.device_bytes.iter().sum::<u64>().into();
    sb.bytes_used = built.bytes_used.0.into();
    sb.root_dir_objectid = TreeId::ROOT_DIR.0.into();
    sb.num_devices = (plan.device_bytes.len() as u64).into();
    sb.sectorsize = o.sectorsize.into();
    sb.nodesize = o.nodesize.into();
    sb.__unused_leafsize = o.nodesize.into();
    sb.stripesize = o.sectorsize.into();
    sb.sys_chunk_array_size = (built.sys_chunk_array.len() as u32).into();
    sb.sys_chunk_array[..built.sys_chunk_array.len()].copy_from_slice(&built.sys_chunk_array);
    sb.incompat_flags = incompat(o).bits().into();
    sb.compat_ro_flags = compat_ro(o).bits().into();
    sb.csum_type = o.csum.to_disk().into();
    sb.dev_item = built.dev_items[device];
    let fits = sb.set_label(o.label.as_bytes());
    assert!(fits, "the length of the label was checked with the options");
    // The UUID tree is complete: its generation says so, and the kernel need not scan for it.
    sb.uuid_tree_generation = FIRST_GENERATION.0.into();
    if !o.features.free_space_tree {
        // No cache of free space has been written (version 1, in files of the root tree), and the kernel may keep one.
        sb.cache_generation = u64::MAX.into();
    }
    sb
}

fn incompat(o: &Resolved) -> Incompat {
    let mut flags = Incompat::MIXED_BACKREF;
    let f = &o.features;
    for (on, flag) in [
        (f.extref, Incompat::EXTENDED_IREF),
        (f.skinny_metadata, Incompat::SKINNY_METADATA),
        (f.no_holes, Incompat::NO_HOLES),
        (f.mixed, Incompat::MIXED_GROUPS),
        (f.raid1c34, Incompat::RAID1C34),
        (f.raid56, Incompat::RAID56),
        (o.nodesize > 4096, Incompat::BIG_METADATA),
    ] {
        if on {
            flags |= flag;
        }
    }
    flags
}

fn compat_ro(o: &Resolved) -> CompatRo {
    let mut flags = CompatRo::empty();
    if o.features.free_space_tree {
        flags |= CompatRo::FREE_SPACE_TREE | CompatRo::FREE_SPACE_TREE_VALID;
    }
    if o.features.block_group_tree {
        flags |= CompatRo::BLOCK_GROUP_TREE;
    }
    flags
}

#[cfg(test)]
mod tests;
