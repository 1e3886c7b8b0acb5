//! Finding volumes among files and block devices.
//!
//! Only superblocks are read. What cannot be opened or read has none, for this purpose: who names it says what is wrong with it.

use std::collections::BTreeMap;
use std::fs::File;
#[cfg(target_os = "linux")]
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oleo_device::DeviceError;
use oleo_device::positioned::read_exact_at;
use oleo_format::{DevId, Generation, SUPER_LEN, SUPER_OFFSETS, SuperBlock};
use uuid::Uuid;

use crate::Volume;
use crate::error::VolumeError;

/// Names of a directory that are looked at, at most: far more than /dev has.
const NAMES_MAX: usize = 100_000;
/// The block devices that the system knows.
#[cfg(target_os = "linux")]
const BLOCK_DEVICES: &str = "/sys/class/block";

/// A device of a volume, as its superblock tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundDevice {
    /// Where it was found.
    pub path: PathBuf,
    /// Its number in the volume.
    pub devid: DevId,
    /// Its own UUID.
    pub uuid: Uuid,
    /// Of the last transaction that it knows.
    pub generation: Generation,
    /// Bytes that the file system may use.
    pub total: u64,
}

/// A volume of which at least one device was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundVolume {
    /// Its UUID.
    pub fsid: Uuid,
    /// Its label, as the newest superblock tells.
    pub label: Vec<u8>,
    /// How many devices it has, as the newest superblock tells.
    pub num_devices: u64,
    /// Those that were found, by number; one that was found under two names is there twice.
    pub devices: Vec<FoundDevice>,
}

impl FoundVolume {
    /// How many of its devices were not found.
    pub fn missing(&self) -> u64 {
        let mut numbers: Vec<DevId> = self.devices.iter().map(|d| d.devid).collect();
        numbers.dedup();
        self.num_devices.saturating_sub(numbers.len() as u64)
    }
}

/// The volumes on these files and block devices, by UUID. Of a directory, what is directly in it.
///
/// # Errors
/// A place that was named is not there, or a directory cannot be read.
pub fn discover(places: &[PathBuf]) -> Result<Vec<FoundVolume>, VolumeError> {
    let mut paths = Vec::new();
    for place in places {
        let named = |source| DeviceError::Open { path: place.clone(), source: Arc::new(source) };
        if std::fs::metadata(place).map_err(named)?.is_dir() {
            paths.extend(names_in(place).map_err(named)?);
        } else {
            paths.push(place.clone());
        }
    }
    paths.sort();
    paths.dedup();
    let mut volumes: BTreeMap<Uuid, (Generation, FoundVolume)> = BTreeMap::new();
    for path in paths {
        let Some(sb) = super_block(&path) else { continue };
        let item = &sb.dev_item;
        let device = FoundDevice {
            path,
            devid: DevId(item.devid.get()),
            uuid: Uuid::from_bytes(item.uuid),
            generation: sb.generation(),
            total: item.total_bytes.get(),
        };
        let none = FoundVolume { fsid: sb.fsid(), label: Vec::new(), num_devices: 0, devices: Vec::new() };
        let (newest, volume) = volumes.entry(sb.fsid()).or_insert((Generation(0), none));
        if volume.devices.is_empty() || device.generation > *newest {
            *newest = device.generation;
            volume.label = sb.label().to_vec();
            volume.num_devices = sb.num_devices.get();
        }
        volume.devices.push(device);
    }
    let mut found: Vec<FoundVolume> = volumes.into_values().map(|(_, volume)| volume).collect();
    found.iter_mut().for_each(|volume| volume.devices.sort_by_key(|d| (d.devid, d.path.clone())));
    Ok(found)
}

impl Volume {
    /// The files and block devices directly in `dir` that belong to the file system `fsid`, by name.
    pub fn scan(dir: &Path, fsid: Uuid) -> Result<Vec<PathBuf>, VolumeError> {
        let named = |e| DeviceError::Open { path: dir.to_path_buf(), source: Arc::new(e) };
        let mut found = names_in(dir).map_err(named)?;
        found.retain(|path| super_block(path).is_some_and(|sb| sb.fsid() == fsid));
        found.sort();
        Ok(found)
    }
}

fn names_in(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    std::fs::read_dir(dir)?.take(NAMES_MAX).map(|entry| Ok(entry?.path())).collect()
}

/// The block devices that the system knows, by name.
///
/// # Errors
/// The system does not list them.
#[cfg(target_os = "linux")]
pub fn block_devices() -> std::io::Result<Vec<PathBuf>> {
    // Names with a slash stand with an exclamation mark there.
    let name = |path: PathBuf| Some(path.file_name()?.to_string_lossy().replace('!', "/"));
    let mut devices: Vec<PathBuf> = names_in(Path::new(BLOCK_DEVICES))?
        .into_iter()
        .filter_map(name)
        .map(|name| Path::new("/dev").join(name))
        .collect();
    devices.retain(|path| path.exists());
    devices.sort();
    Ok(devices)
}

fn super_block(path: &Path) -> Option<SuperBlock> {
    let meta = std::fs::metadata(path).ok()?;
    #[cfg(target_os = "linux")]
    let is_block = meta.file_type().is_block_device();
    #[cfg(not(target_os = "linux"))]
    let is_block = false;
    if !meta.is_file() && !is_block {
        return None;
    }
    let mut bytes = vec![0; SUPER_LEN];
    read_exact_at(&File::open(path).ok()?, &mut bytes, SUPER_OFFSETS[0]).ok()?;
    SuperBlock::read(&bytes).ok()
}
