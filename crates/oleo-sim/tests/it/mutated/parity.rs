//! Records of parity that lie, on a volume of RAID6 and RAID5 on four devices. One device may be missing.
//!
//! The first byte of the input says how to open the volume. Parts follow, for each half of each device in turn: a length of two
//! bytes, the number of entries, the number of the record, the length of its payload, the entries, and the payload's first
//! bytes. Fields that a reader compares with the superblock are put right, and so are the checksums.

use std::io;
use std::sync::{Arc, OnceLock};

use oleo::device::{Device, MemDevice};
use oleo::fs::Depth;
use oleo::mkfs::{MkfsOptions, Profile, make};
use oleo::restore::{RestoreOptions, restore_to_tar};
use oleo::{Image, OpenOptions};
use oleo_device::Overlay;
use oleo_format::{BlockGroupFlags, ByteLen, CsumType, SUPER_LEN, SUPER_OFFSETS, SuperBlock};
use oleo_volume::{STRIPE_LEN, Volume};

const DEVICES: usize = 4;
const DEVICE_LEN: u64 = 300 << 20;
/// Bytes that an opening may write on a device.
const WRITTEN_MAX: u64 = 16 << 20;
/// Where records are, and the bytes of each of the two halves.
const PLACE: u64 = 512 << 10;
const HALF_LEN: u64 = 256 << 10;
/// A half begins with a header; its fields, and those of its entries, by offset and length.
const HEADER_LEN: usize = 4096;
const ENTRIES_AT: usize = 216;
const ENTRY_LEN: usize = 64;
const ENTRIES_MAX: usize = 60;
const NUMBER_AT: usize = 168;
const COUNT_AT: usize = 176;
const PAYLOAD_LEN_AT: usize = 180;
const PAYLOAD_CSUM_AT: usize = 184;

/// Bits of the first byte, beside two that say which device is missing; 0: none.
const WRITE: u8 = 4;

/// The volume, and an archive of all that is in it.
struct Sound {
    devices: Vec<Arc<MemDevice>>,
    archive: Vec<u8>,
}

fn sound() -> &'static Sound {
    static SOUND: OnceLock<Sound> = OnceLock::new();
    SOUND.get_or_init(|| {
        let devices: Vec<_> =
            (0..DEVICES).map(|nth| Arc::new(MemDevice::named(&format!("disk{nth}"), DEVICE_LEN))).collect();
        let all = || devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect::<Vec<_>>();
        let mkfs = MkfsOptions::default().data(Some(Profile::Raid6)).metadata(Some(Profile::Raid5)).seed([1; 32]);
        make(&all(), &mkfs).expect("a volume");
        let image = Image::from_devices(all(), &OpenOptions::writing()).expect("the volume");
        for nth in 0..20u8 {
            image.write(format!("file{nth}"), &vec![nth; 10_000 * usize::from(nth)]).expect("write");
        }
        image.close().expect("close");
        let write = oleo_volume::OpenOptions { write: true, ..oleo_volume::OpenOptions::default() };
        let volume = Volume::open(all(), &write).expect("the volume");
        // All sectors count as live, since no allocator says which are free.
        for map in volume.chunks().iter().filter(|map| map.profile.has_parity()) {
            let row = if map.flags.contains(BlockGroupFlags::DATA) { 20 } else { 5 };
            let at = map.start + ByteLen(row * map.data_stripes() * STRIPE_LEN + 8192);
            volume.write(&[(at, &[7; 4096])]).expect("write");
        }
        drop(volume);
        let archive = archive(all()).expect("all files");
        Sound { devices, archive }
    })
}

fn archive(devices: Vec<Arc<dyn Device>>) -> Option<Vec<u8>> {
    let options = OpenOptions::default().degraded(devices.len() < DEVICES);
    let image = Image::from_devices(devices, &options).ok()?;
    let mut out = Vec::new();
    restore_to_tar(&image, &image.top().ok()?, b"", &mut out, &RestoreOptions::default().threads(1)).ok()?;
    Some(out)
}

/// The records of the sound devices, as an input.
#[allow(dead_code)]
pub fn seed(first: u8) -> Vec<u8> {
    let mut out = vec![first];
    for device in &sound().devices {
        for half in 0..2 {
            let mut bytes = vec![0; HALF_LEN as usize];
            device.read_at(PLACE + half * HALF_LEN, &mut bytes).expect("read");
            let (count, payload_len) = (bytes[COUNT_AT], u32_at(&bytes, PAYLOAD_LEN_AT) as usize);
            // Of columns that are live and zero, the first bytes say all.
            let payload = &bytes[HEADER_LEN..HEADER_LEN + payload_len.min(64)];
            let entries = &bytes[ENTRIES_AT..][..usize::from(count) * ENTRY_LEN];
            let fixed = [&[count], &bytes[NUMBER_AT..COUNT_AT], &bytes[PAYLOAD_LEN_AT..PAYLOAD_CSUM_AT]].concat();
            let part = [&fixed, entries, payload].concat();
            out.extend((part.len() as u16).to_le_bytes());
            out.extend(part);
        }
    }
    out
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Puts a record into a half.
fn put(device: &dyn Device, half: u64, part: &[u8]) {
    let Some((fixed, rest)) = part.split_first_chunk::<13>() else { return };
    let mut sb = vec![0; SUPER_LEN];
    device.read_at(SUPER_OFFSETS[0], &mut sb).expect("read");
    let sb = SuperBlock::read(&sb).expect("the superblock");
    let mut half_bytes = vec![0; HALF_LEN as usize];
    let (head, payload) = half_bytes.split_at_mut(HEADER_LEN);
    head[32..40].copy_from_slice(b"OleoStrp");
    head[40..56].copy_from_slice(&sb.fsid);
    head[56..72].copy_from_slice(&sb.dev_item.uuid);
    let base =
        [sb.generation, sb.root, sb.log_root, sb.__unused_log_root_transid].map(|field| field.get().to_le_bytes());
    head[72..104].copy_from_slice(base.as_flattened());
    head[NUMBER_AT..COUNT_AT].copy_from_slice(&fixed[1..9]);
    head[COUNT_AT] = fixed[0];
    head[PAYLOAD_LEN_AT..PAYLOAD_CSUM_AT].copy_from_slice(&fixed[9..]);
    let entries = rest.len().min(usize::from(fixed[0]).min(ENTRIES_MAX) * ENTRY_LEN);
    let (entries, first) = rest.split_at(entries);
    head[ENTRIES_AT..][..entries.len()].copy_from_slice(entries);
    let first = &first[..first.len().min(payload.len())];
    payload[..first.len()].copy_from_slice(first);
    let payload_len = (u32_at(head, PAYLOAD_LEN_AT) as usize).min(payload.len());
    let csum = CsumType::Crc32c.csum(&payload[..payload_len]);
    head[PAYLOAD_CSUM_AT..ENTRIES_AT].copy_from_slice(&csum);
    let csum = CsumType::Crc32c.csum(&head[32..]);
    head[..32].copy_from_slice(&csum);
    device.write_at(PLACE + half * HALF_LEN, &half_bytes).expect("write");
}

/// Whether all files were read.
pub fn body(data: &[u8]) -> bool {
    let Some((&first, mut rest)) = data.split_first() else { return false };
    let sound = sound();
    let over: Vec<Arc<dyn Device>> = sound
        .devices
        .iter()
        .map(|device| Arc::new(Overlay::new(device.clone(), WRITTEN_MAX)) as Arc<dyn Device>)
        .collect();
    for (device, half) in over.iter().flat_map(|device| [(device, 0), (device, 1)]) {
        let Some((len, more)) = rest.split_first_chunk() else { break };
        let (part, more) = more.split_at(usize::from(u16::from_le_bytes(*len)).min(more.len()));
        put(&**device, half, part);
        rest = more;
    }
    let missing = usize::from(first % 4);
    let there = over.into_iter().enumerate().filter(|(nth, _)| missing == 0 || *nth != missing);
    let there: Vec<Arc<dyn Device>> = there.map(|(_, device)| device).collect();
    let mut options = OpenOptions::default().degraded(missing > 0);
    if first & WRITE != 0 {
        options = OpenOptions::writing().degraded(missing > 0);
    }
    if let Ok(image) = Image::from_devices(there.clone(), &options) {
        let top = image.top();
        let _ = top.as_ref().map(|top| restore_to_tar(&image, top, b"", io::sink(), &RestoreOptions::default()));
        if first & WRITE != 0 {
            let _ = image.write("new", &[1; 100_000]).and_then(|()| image.sync());
            let _ = top.and_then(|top| image.remove(&top, "new", Depth::One));
            let _ = image.close();
        }
    }
    let read = archive(there);
    // Records are of parity, which is not read while all devices are there.
    if missing == 0 {
        assert!(read.is_some(), "no longer read");
        assert!(first & WRITE != 0 || read.as_ref() == Some(&sound.archive), "data changed");
    }
    read.is_some()
}
