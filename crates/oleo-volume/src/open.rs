//! Opening: from a list of devices to a chunk map.
//!
//! Steps: (1) `gather` reads each device's superblock and sorts the devices into members of the volume and of its
//! seeds; (2) the newest superblock is verified; (3) the system chunks of its array are enough to read the chunk tree,
//! which `walk_chunk_tree` does level by level; (4) its DEV_ITEMs are matched with the devices, its CHUNK_ITEMs make
//! the map; (5) the remap tree, if there is one, says which addresses of the map count no more (`remap`).
//!
//! Devices that were each written without the other are not used together (`apart`): that is looked at by their superblocks first, and by the roots that these
//! name as soon as there is a map.
//!
//! Nothing in an image is trusted before it is checked: the walk is bounded by level and by number of blocks, and no
//! chunk may overlap another. Opening for reading writes nothing. Opening for writing puts parity in order that a crash has left wrong (`recover`), and
//! gives the superblock that it goes by to devices that have another (`level`).

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use oleo_device::Device;
use oleo_format::{
    CheckedNode, Chunk, Corruption, DevId, DevItem, Generation, Incompat, ItemType, Key, Logical, NodeExpect,
    NodeRules, SuperBlock, SuperFlags, TreeId,
};
use oleo_lock::{Mutex, RwLock};
use uuid::Uuid;

use crate::Volume;
use crate::apart::{roots_differ, written_apart};
use crate::carve::used_runs;
use crate::copying::Copying;
use crate::error::VolumeError;
use crate::flushers::Flushers;
use crate::geometry::ChunkMap;
use crate::level::leads_elsewhere;
use crate::losses::{Losses, not_borne};
use crate::member::{Member, Standing};
use crate::records::{self, Base};
use crate::recover::{patches, put_in_order};
use crate::remap::{Emptied, Remaps};
use crate::replace::FoundTarget;
use crate::rows::{Patches, Rows};
use crate::supers::{check_features, check_fields, read_copy, read_super};
use crate::table::{Chunks, Table};

/// Most blocks that a chunk tree may have: with 4 KiB blocks, a good million chunks, that is more than an exabyte.
const CHUNK_TREE_BLOCKS_MAX: usize = 1 << 18;

/// How to open a volume.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Open for writing, too. Refused if a chunk cannot do without the devices that are missing or have missed more than one transaction.
    pub write: bool,
    /// Open even if devices are missing; data that only they hold cannot be read.
    pub degraded: bool,
    /// For reading: start from the roots that the superblock keeps of an earlier transaction; 0 is the last of these.
    pub backup: Option<usize>,
    /// For reading: of each device that copy of its superblock instead of the best; 0 to 2, in the order of their places.
    pub super_copy: Option<usize>,
    /// For reading: use a tree block without a copy that fits its checksum if everything else about it is right.
    pub ignore_block_csums: bool,
}

/// A device with its best superblock.
struct Found {
    device: Arc<dyn Device>,
    sb: SuperBlock,
}

impl Volume {
    /// Opens the volume on these devices. Every member must be present unless `degraded` is set; seeds that the volume
    /// grew from are members, too.
    pub fn open(devices: Vec<Arc<dyn Device>>, opts: &OpenOptions) -> Result<Volume, VolumeError> {
        Volume::open_as(devices, opts, None)
    }

    /// Opens seeds to make another volume of them, with this UUID: they are read, and what is written goes to the device that is to be
    /// added first ([`attach`](Self::attach)). Until that is committed nothing is on disk.
    ///
    /// # Errors
    /// As [`open`](Self::open); or they are no seeds.
    pub fn sprout(devices: Vec<Arc<dyn Device>>, fsid: Uuid) -> Result<Volume, VolumeError> {
        let opts = OpenOptions { write: true, ..OpenOptions::default() };
        Volume::open_as(devices, &opts, Some(fsid))
    }

    fn open_as(devices: Vec<Arc<dyn Device>>, opts: &OpenOptions, sprout: Option<Uuid>) -> Result<Volume, VolumeError> {
        if opts.write && opts.super_copy.is_some() {
            return Err(VolumeError::Unsupported { what: "writing from a chosen copy of the superblock".into() });
        }
        let Gathered { mut main, found, outdated } = gather(devices, opts.super_copy)?;
        if opts.backup.is_some() && main.features().remap_tree() {
            // They are not whole: the superblock keeps no earlier root of the remap tree.
            let what = "earlier roots of a volume with a remap tree".into();
            return Err(VolumeError::Unsupported { what });
        }
        if let Some(nth) = opts.backup
            && (opts.write || !main.use_backup(nth))
        {
            return Err(VolumeError::NoBackup(nth));
        }
        check_fields(&main).map_err(|e| e.within("superblock"))?;
        if let Some(fsid) = sprout {
            if !main.flags().contains(SuperFlags::SEEDING) {
                return Err(VolumeError::Unsupported { what: "making another volume of one that is no seed".into() });
            }
            main.flags = (main.flags() - SuperFlags::SEEDING).bits().into();
            main.fsid = fsid.into_bytes();
            main.metadata_uuid = [0; 16];
            main.incompat_flags = (main.features().incompat - Incompat::METADATA_UUID).bits().into();
        }
        check_features(&main, opts.write)?;
        // A chosen copy of the superblock, or older roots, are another moment on purpose.
        let of_volume = |f: &&Found| f.sb.fsid == main.fsid && f.sb.devid() != DevId(0);
        let compared = opts.backup.is_none() && opts.super_copy.is_none();
        let compared: Vec<&Found> = found.iter().filter(of_volume).filter(|_| compared).collect();
        let newest = compared.iter().find(|f| !leads_elsewhere(&f.sb, &main)).copied();
        if let Some(older) = compared.iter().find(|f| written_apart(&main, &f.sb)) {
            return Err(apart(newest, older));
        }
        if opts.write && found.iter().any(|f| f.sb.fsid == main.fsid && f.device.read_only()) {
            return Err(VolumeError::ReadOnly);
        }
        let mut members: Vec<_> = found.iter().map(|f| Arc::new(f.member(f.sb.dev_item, &main))).collect();
        let mut table = Table::default();
        for map in system_chunks(&main)? {
            table.insert(map, &members)?;
        }
        let rules = main.node_rules()?;
        // The chunk tree itself may have to be rebuilt.
        let (record_number, recorded) = records::find(&members, &rules, Base::from(&main));
        let of_system = patches(&table, &recorded);
        let seed_rules = found.iter().filter(|f| f.sb.fsid != main.fsid).map(|f| f.sb.node_rules()).collect();
        let mut volume = Volume {
            members: RwLock::default(),
            chunks: Chunks::new(table),
            super_block: RwLock::new(main),
            rules,
            seed_rules: seed_rules_of(seed_rules)?,
            chunk_tree_uuid: Uuid::nil(),
            write: false,
            ignore_block_csums: opts.ignore_block_csums && !opts.write,
            degraded: opts.degraded,
            flushers: Flushers::default(),
            rows: Rows::default(),
            losses: Losses::default(),
            left_out: outdated,
            remaps: Remaps::default(),
            targets: Mutex::default(),
            placement: OnceLock::new(),
            targets_stay: RwLock::default(),
            has_targets: AtomicBool::new(false),
            copying: Copying::default(),
            replaced: Mutex::default(),
            recovered: false,
            poisoned: OnceLock::new(),
            unfinished: AtomicBool::new(false),
        };
        volume.rows.set_patches(of_system);
        let ChunkTree { items, maps, emptied } = volume.walk_chunk_tree(&main)?;
        // The items know more than the superblocks: missing devices, and sizes as of the last transaction.
        let provisional = std::mem::take(&mut members);
        for item in items {
            let of = |f: &&Found| f.sb.dev_item.devid == item.devid && f.sb.dev_item.uuid == item.uuid;
            members.push(Arc::new(match found.iter().find(of) {
                Some(f) => {
                    // The next commit puts the item into the superblock, where an item of another file system would be
                    // refused.
                    if opts.write && f.sb.fsid == main.fsid && item.fsid != volume.rules.fsid.into_bytes() {
                        let (have, want) = (Uuid::from_bytes(item.fsid), volume.rules.fsid);
                        let place = format!("device {}", item.devid);
                        return Err(Corruption::new("device item", "fsid", have, want).within(place).into());
                    }
                    f.member(item, &main)
                }
                None => Member::new(item, None, item.fsid != volume.rules.fsid.into_bytes(), 0),
            }));
        }
        members.sort_by_key(|m| m.devid);
        for (new, old) in members.iter().flat_map(|m| provisional.iter().map(move |p| (m, p))) {
            if new.devid == old.devid && new.uuid == old.uuid {
                new.set_counters(old.counters());
            }
        }
        let mut table = Table::default();
        for map in maps.into_iter().chain(system_chunks(&main)?) {
            table.insert(map, &members)?;
        }
        for f in found.iter().filter(|f| f.sb.fsid == main.fsid) {
            let is_member =
                members.iter().any(|m| m.devid == f.sb.devid() && m.uuid.into_bytes() == f.sb.dev_item.uuid);
            match f.sb.devid() {
                _ if is_member => {}
                DevId(0) => {
                    let is_behind = leads_elsewhere(&f.sb, &main);
                    volume.targets.lock().push(FoundTarget { device: f.device.clone(), is_behind });
                }
                devid => {
                    let (name, generation) = (f.device.name(), f.sb.generation());
                    volume.left_out.push(LeftOut { devid, name, generation, why: WhyLeftOut::NotOfVolume });
                }
            }
        }
        let is_member =
            |f: &&&Found| members.iter().any(|m| m.devid == f.sb.devid() && m.uuid.into_bytes() == f.sb.dev_item.uuid);
        let of = |f: &Found| (f.sb.devid(), &volume.rules);
        let mut others =
            compared.iter().filter(is_member).filter(|f| newest.is_none_or(|newest| newest.sb.devid() != f.sb.devid()));
        if let Some(older) = others.find(|f| roots_differ(&main, &f.sb, of(f), &table)) {
            return Err(apart(newest, older));
        }
        check_presence(&members, &table, opts)?;
        if opts.write && members.iter().any(|m| m.standing() == Standing::Missing) {
            volume.losses.owe();
        }
        if opts.write {
            check_places(&members, &table)?;
        }
        let patches = patches(&table, &recorded);
        if opts.write {
            volume.rows.records.lock().number = record_number;
            volume.rows.is_newest(&main);
            if !recorded.is_empty() {
                put_in_order(&members, &patches)?;
                volume.recovered = true;
            }
            volume.rows.set_patches(Patches::default());
        } else {
            volume.rows.set_patches(patches);
        }
        volume.members = RwLock::new(members);
        volume.chunks = Chunks::new(table);
        volume.remaps = Remaps::read(&volume, &main, &emptied)?;
        volume.write = opts.write;
        if opts.write {
            let others = found.iter().filter(|f| f.sb.fsid == main.fsid && leads_elsewhere(&f.sb, &main));
            let others: Vec<DevId> = others.map(|f| f.sb.devid()).collect();
            if !others.is_empty() {
                volume.level_supers(&main, &others)?;
            }
        }
        Ok(volume)
    }

    /// A volume that is being made: these devices with these items, no chunks yet. Of the superblock only what does
    /// not change counts: fsid, sizes, checksum type, features.
    pub fn create(
        devices: Vec<(Arc<dyn Device>, DevItem)>,
        sb: &SuperBlock,
        chunk_tree_uuid: Uuid,
    ) -> Result<Volume, VolumeError> {
        if devices.is_empty() {
            return Err(VolumeError::NoDevices);
        }
        check_features(sb, true)?;
        let mut members: Vec<_> =
            devices.into_iter().map(|(device, item)| Arc::new(Member::new(item, Some(device), false, 0))).collect();
        members.sort_by_key(|m| m.devid);
        for pair in members.windows(2) {
            if pair[0].devid == pair[1].devid {
                return Err(twins(pair[0].devid, &pair[0].info().name, &pair[1].info().name));
            }
        }
        Ok(Volume {
            members: RwLock::new(members),
            chunks: Chunks::new(Table::default()),
            super_block: RwLock::new(*sb),
            rules: sb.node_rules()?,
            seed_rules: Vec::new(),
            chunk_tree_uuid,
            write: true,
            ignore_block_csums: false,
            degraded: false,
            flushers: Flushers::default(),
            rows: Rows::of_new_volume(),
            losses: Losses::default(),
            left_out: Vec::new(),
            remaps: Remaps::default(),
            targets: Mutex::default(),
            placement: OnceLock::new(),
            targets_stay: RwLock::default(),
            has_targets: AtomicBool::new(false),
            copying: Copying::default(),
            replaced: Mutex::default(),
            recovered: false,
            poisoned: OnceLock::new(),
            unfinished: AtomicBool::new(false),
        })
    }

    /// Reads the chunk tree: its device items and its chunks. Learns the chunk tree's uuid.
    fn walk_chunk_tree(&mut self, sb: &SuperBlock) -> Result<ChunkTree, VolumeError> {
        let root = NodeExpect {
            logical: sb.chunk_root(),
            generation: Some(Generation(sb.chunk_root_generation.get())),
            level: Some(sb.chunk_root_level),
            owner: Some(TreeId::CHUNK),
            first_key: None,
        };
        let (mut found, mut uuid, sectorsize) = (ChunkTree::default(), Uuid::nil(), self.rules.sectorsize);
        self.walk_tree("chunk tree", root, CHUNK_TREE_BLOCKS_MAX, &mut |node| {
            if node.logical() == sb.chunk_root() {
                uuid = Uuid::from_bytes(node.header().chunk_tree_uuid);
            }
            for (key, item) in node.is_leaf().then(|| node.iter()).into_iter().flatten() {
                match key.item_type {
                    ItemType::DEV_ITEM if key.objectid == Key::DEV_ITEMS => found.items.push(dev_item(&key, item)?),
                    ItemType::CHUNK_ITEM => match Emptied::of(Logical(key.offset), item)? {
                        Some(emptied) => found.emptied.push(emptied),
                        None => found.maps.push(ChunkMap::parse(Logical(key.offset), item, sectorsize)?),
                    },
                    _ => {}
                }
            }
            Ok(())
        })?;
        self.chunk_tree_uuid = uuid;
        Ok(found)
    }

    /// Calls `each` for the blocks of a tree, a level at a time, in the order of keys.
    pub(crate) fn walk_tree(
        &self,
        name: &'static str,
        root: NodeExpect,
        blocks_max: usize,
        each: &mut dyn FnMut(&CheckedNode) -> Result<(), VolumeError>,
    ) -> Result<(), VolumeError> {
        let owner = root.owner;
        let mut level = vec![root];
        let mut blocks = 0;
        while !level.is_empty() {
            blocks += level.len();
            if blocks > blocks_max {
                let want = format!("at most {blocks_max}");
                return Err(Corruption::new(name, "number of blocks", blocks, want).into());
            }
            let mut below = Vec::new();
            // In batches, so that memory is bounded by the batch and not by the level.
            for batch in level.chunks(64) {
                for node in self.read_blocks(batch) {
                    let node = node?;
                    each(&node)?;
                    if !node.is_leaf() {
                        let expect = |slot| NodeExpect { owner, ..NodeExpect::child(&node.child(slot), node.level()) };
                        below.extend((0..node.len()).map(expect));
                    }
                }
            }
            level = below;
        }
        Ok(())
    }
}

/// What is in a chunk tree.
#[derive(Default)]
struct ChunkTree {
    items: Vec<DevItem>,
    maps: Vec<ChunkMap>,
    /// Chunks without stripes.
    emptied: Vec<Emptied>,
}

impl Found {
    fn member(&self, item: DevItem, main: &SuperBlock) -> Member {
        let seed = self.sb.fsid != main.fsid;
        let behind = if seed { 0 } else { main.generation.get().saturating_sub(self.sb.generation.get()) };
        Member::new(item, Some(self.device.clone()), seed, behind).found_with(self.sb.generation())
    }
}

/// The devices that are named, sorted out.
struct Gathered {
    /// The newest superblock.
    main: SuperBlock,
    found: Vec<Found>,
    outdated: Vec<LeftOut>,
}

/// A device that was named and is not used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeftOut {
    /// The number that its superblock says.
    pub devid: DevId,
    /// Its name.
    pub name: String,
    /// The last transaction that it knows.
    pub generation: Generation,
    /// The reason.
    pub why: WhyLeftOut,
}

/// Why a device is not used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WhyLeftOut {
    /// Another has its number, and is newer: it was replaced, or is an old copy.
    Outdated,
    /// The volume has no such device: it was removed, or adding it was cut short.
    NotOfVolume,
}

/// Reads all superblocks and finds the newest of the volume: of the first device's file system, or, if that is a seed,
/// of the file system that is not a seed. Of two devices with one number the newer is taken; if neither is, that is an error.
fn gather(devices: Vec<Arc<dyn Device>>, super_copy: Option<usize>) -> Result<Gathered, VolumeError> {
    let mut found: Vec<Found> = Vec::with_capacity(devices.len());
    for device in devices {
        let sb = match super_copy {
            Some(nth) => read_copy(&*device, nth)?,
            None => read_super(&*device)?,
        };
        found.push(Found { device, sb });
    }
    let is_seed = |f: &&Found| f.sb.flags().contains(SuperFlags::SEEDING);
    let first = found.iter().find(|f| !is_seed(f)).or(found.first()).ok_or(VolumeError::NoDevices)?;
    let fsid = first.sb.fsid;
    for (i, f) in found.iter().enumerate() {
        if f.sb.fsid != fsid && !is_seed(&f) {
            return Err(VolumeError::Stranger {
                name: f.device.name(),
                fsid: f.sb.fsid(),
                want: Uuid::from_bytes(fsid),
            });
        }
        let same = |o: &&Found| {
            let equal = o.sb.dev_item.devid == f.sb.dev_item.devid && o.sb.generation == f.sb.generation;
            equal && o.sb.fsid == f.sb.fsid
        };
        if let Some(other) = found[..i].iter().find(same) {
            return Err(twins(f.sb.devid(), &other.device.name(), &f.device.name()));
        }
    }
    let mut outdated = Vec::new();
    let mut newest: BTreeMap<([u8; 16], u64), Found> = BTreeMap::new();
    found.sort_by_key(|f| f.sb.generation.get());
    for f in found {
        if let Some(older) = newest.insert((f.sb.fsid, f.sb.dev_item.devid.get()), f) {
            let (devid, name, generation) = (older.sb.devid(), older.device.name(), older.sb.generation());
            outdated.push(LeftOut { devid, name, generation, why: WhyLeftOut::Outdated });
        }
    }
    let found: Vec<Found> = newest.into_values().collect();
    let of_volume = found.iter().filter(|f| f.sb.fsid == fsid);
    let newest = of_volume.max_by_key(|f| f.sb.generation.get()).ok_or(VolumeError::NoDevices)?;
    Ok(Gathered { main: newest.sb, found, outdated })
}

fn twins(devid: DevId, first: &str, second: &str) -> VolumeError {
    VolumeError::Twins { devid, first: first.into(), second: second.into() }
}

fn apart(newest: Option<&Found>, older: &Found) -> VolumeError {
    let side = |f: &Found| (f.device.name(), f.sb.generation());
    VolumeError::Apart { newest: newest.map(side).unwrap_or_default(), other: side(older) }
}

fn seed_rules_of(rules: Vec<Result<NodeRules, Corruption>>) -> Result<Vec<NodeRules>, VolumeError> {
    Ok(rules.into_iter().collect::<Result<_, _>>()?)
}

/// The chunks of the superblock's array.
fn system_chunks(sb: &SuperBlock) -> Result<Vec<ChunkMap>, VolumeError> {
    let map = |(key, chunk): (Key, Chunk)| ChunkMap::new(Logical(key.offset), &chunk, sb.sectorsize.get());
    Ok(sb.parse_sys_chunks()?.into_iter().map(map).collect::<Result<_, _>>()?)
}

fn dev_item(key: &Key, item: &[u8]) -> Result<DevItem, Corruption> {
    let item = *DevItem::parse(item)?;
    if item.devid.get() != key.offset {
        return Err(Corruption::new("device item", "devid", item.devid, key.offset).within(key));
    }
    if item.bytes_used.get() > item.total_bytes.get() {
        let want = format!("at most {}", item.total_bytes);
        return Err(Corruption::new("device item", "bytes_used", item.bytes_used, want).within(key));
    }
    Ok(item)
}

/// Refuses what cannot be read or written with the devices that are there.
fn check_presence(members: &[Arc<Member>], table: &Table, opts: &OpenOptions) -> Result<(), VolumeError> {
    let named = members.iter().chain(table.iter().flat_map(|p| p.on.iter()));
    let mut missing: Vec<_> = named.filter(|m| m.standing() == Standing::Missing).map(|m| (m.devid, m.uuid)).collect();
    missing.sort_unstable();
    missing.dedup();
    match missing.first() {
        Some(&first) if !opts.degraded => return Err(VolumeError::Missing { first, count: missing.len() }),
        _ => {}
    }
    if opts.write
        && let Some((chunk, devid)) = not_borne(table, |m| !m.is_sound())
    {
        return Err(VolumeError::NotBorne { chunk, devid });
    }
    // What no row has whole would have its parity outside of the chunk.
    if opts.write
        && let Some(placed) = table.iter().find(|p| p.map.profile.has_parity() && !p.map.has_whole_rows())
    {
        let (profile, start, len) = (placed.map.profile, placed.map.start, placed.map.len);
        let what =
            format!("writing to a volume with a {profile} chunk of {len} bytes (at {start}), which are no whole rows");
        return Err(VolumeError::Unsupported { what });
    }
    Ok(())
}

/// No two stripes share a place, none reaches beyond its device: or writing one would overwrite the other.
fn check_places(members: &[Arc<Member>], table: &Table) -> Result<(), Corruption> {
    for member in members {
        let total = member.item.lock().total_bytes.get();
        if let Some(device) = member.device().filter(|d| d.len() < total) {
            let place = format!("device {} ({})", member.devid, device.name());
            return Err(Corruption::new("device item", "total_bytes", total, device.len()).within(place));
        }
    }
    for (devid, runs) in used_runs(table) {
        let total = members.iter().find(|m| m.devid == devid).map_or(0, |m| m.item.lock().total_bytes.get());
        let ends = runs.iter().map(|r| r.0).skip(1).chain([total]);
        for ((start, end), next) in runs.iter().zip(ends) {
            if *end > next {
                let have = format!("{start}..{end}");
                let place = format!("device {devid}");
                return Err(Corruption::new("chunk", "place of a stripe", have, format!("before {next}")).within(place));
            }
        }
    }
    Ok(())
}
