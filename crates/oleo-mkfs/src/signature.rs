//! Recognises what is on a device already, by the signatures of formats.

use oleo_device::Device;
use oleo_format::{SUPER_MAGIC, SUPER_MAGIC_TEMPORARY, SUPER_OFFSETS};

use crate::MkfsError;

/// A btrfs file system.
pub const BTRFS: &str = "a btrfs file system";
/// A file system whose mkfs failed or was interrupted.
pub const UNFINISHED: &str = "a btrfs file system whose mkfs did not finish";
/// A disk image in qcow2, which holds a disk in a format of its own.
pub const QCOW: &str = "a qcow2 disk image";
const GPT: &str = "a GPT partition table";
const MBR: &str = "a partition table";

/// A signature: its owner, its offset, and its bytes.
const MARKS: [(&str, u64, &[u8]); 21] = [
    (BTRFS, 0x10040, &SUPER_MAGIC),
    (UNFINISHED, 0x10040, &SUPER_MAGIC_TEMPORARY),
    (QCOW, 0, b"QFI\xfb"),
    ("a VMDK disk image", 0, b"KDMV"),
    ("a VHDX disk image", 0, b"vhdxfile"),
    ("a VDI disk image", 0x40, b"\x7f\x10\xda\xbe"),
    ("an ext2, ext3 or ext4 file system", 0x438, b"\x53\xef"),
    ("an XFS file system", 0, b"XFSB"),
    ("an F2FS file system", 0x400, b"\x10\x20\xf5\xf2"),
    ("an EROFS file system", 0x400, b"\xe2\xe1\xf5\xe0"),
    ("a squashfs file system", 0, b"hsqs"),
    ("an ISO 9660 file system", 0x8001, b"CD001"),
    ("an NTFS file system", 3, b"NTFS    "),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("a FAT file system", 0x52, b"FAT32   "),
    ("a FAT file system", 0x36, b"FAT"),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("an encrypted LUKS volume", 0, b"LUKS\xba\xbe"),
    ("an LVM physical volume", 0x218, b"LVM2 001"),
    (GPT, 0x200, b"EFI PART"),
    (MBR, 0x1fe, b"\x55\xaa"),
];
/// The bytes that all marks lie in.
const LOOKED_AT: u64 = 0x10048;

/// Returns what a device holds, if it has a well-known signature.
///
/// # Errors
/// The device cannot be read.
pub fn signature(device: &dyn Device) -> Result<Option<&'static str>, MkfsError> {
    let mut start = vec![0; usize::try_from(device.len().min(LOOKED_AT)).unwrap_or(0)];
    device.read_at(0, &mut start)?;
    let found = MARKS.iter().find(|(_, at, mark)| {
        usize::try_from(*at).ok().and_then(|at| start.get(at..at + mark.len())).is_some_and(|bytes| bytes == *mark)
    });
    Ok(found.map(|(what, _, _)| *what))
}

/// The unit in which partition tables count. (Disks with blocks of 4096 bytes have other tables, which are not read.)
const BLOCK_LEN: u64 = 512;
/// Bytes of a GPT's table that are read: that of 1024 partitions.
const GPT_BYTES_MAX: u64 = 128 << 10;

/// A partition of a disk or disk image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Partition {
    /// Its first byte.
    pub start: u64,
    /// Its length in bytes.
    pub len: u64,
    /// It holds a btrfs file system.
    pub is_btrfs: bool,
}

/// Returns the partitions of a device, in the order of its table; `None` if it has no partition table. Extended partitions of
/// an MBR are not looked into. Entries that do not fit the device are left out.
///
/// # Errors
/// The device cannot be read.
pub fn partitions(device: &dyn Device) -> Result<Option<Vec<Partition>>, MkfsError> {
    let ranges = match signature(device)? {
        Some(GPT) => gpt(device)?,
        Some(MBR) => mbr(device)?,
        _ => return Ok(None),
    };
    let mut found = Vec::new();
    for (start, len) in ranges {
        let end = start.checked_add(len);
        if start == 0 || len == 0 || end.is_none_or(|end| end > device.len()) {
            continue;
        }
        let mut magic = [0; SUPER_MAGIC.len()];
        let at = start + SUPER_OFFSETS[0] + MAGIC_AT;
        let is_btrfs = at + magic.len() as u64 <= device.len() && {
            device.read_at(at, &mut magic)?;
            magic == SUPER_MAGIC
        };
        found.push(Partition { start, len, is_btrfs });
    }
    Ok(Some(found))
}

/// Where in a superblock the magic number is.
const MAGIC_AT: u64 = 0x40;

fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut whole = [0; 8];
    if let Some(part) = bytes.get(at..at + N) {
        whole[..N].copy_from_slice(part);
    }
    u64::from_le_bytes(whole)
}

/// Start and length of the partitions of a GPT, in bytes.
fn gpt(device: &dyn Device) -> Result<Vec<(u64, u64)>, MkfsError> {
    let mut header = [0; 92];
    if BLOCK_LEN + header.len() as u64 > device.len() {
        return Ok(Vec::new());
    }
    device.read_at(BLOCK_LEN, &mut header)?;
    let at = number::<8>(&header, 72).saturating_mul(BLOCK_LEN);
    let (count, entry_len) = (number::<4>(&header, 80), number::<4>(&header, 84));
    let len = count.saturating_mul(entry_len).min(GPT_BYTES_MAX);
    if entry_len < 128 || at.checked_add(len).is_none_or(|end| end > device.len()) {
        return Ok(Vec::new());
    }
    let mut table = vec![0; len as usize];
    device.read_at(at, &mut table)?;
    let is_used = |entry: &&[u8]| entry[..16].iter().any(|&b| b != 0);
    let range = |entry: &[u8]| {
        let (first, last) = (number::<8>(entry, 32), number::<8>(entry, 40));
        let blocks = last.checked_sub(first).map_or(0, |more| more.saturating_add(1));
        (first.saturating_mul(BLOCK_LEN), blocks.saturating_mul(BLOCK_LEN))
    };
    Ok(table.chunks_exact(entry_len as usize).filter(is_used).map(range).collect())
}

/// Start and length of the four primary partitions of an MBR, in bytes.
fn mbr(device: &dyn Device) -> Result<Vec<(u64, u64)>, MkfsError> {
    let mut block = [0; BLOCK_LEN as usize];
    device.read_at(0, &mut block)?;
    let range = |entry: &[u8]| (number::<4>(entry, 8) * BLOCK_LEN, number::<4>(entry, 12) * BLOCK_LEN);
    Ok(block[0x1be..0x1fe].chunks_exact(16).filter(|entry| entry[4] != 0).map(range).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use oleo_device::MemDevice;

    /// Goal: every signature is recognised, an empty device has none, and short devices do no harm.
    #[test]
    fn marks_are_found() {
        let device = MemDevice::new(1 << 20);
        assert_eq!(signature(&device).unwrap(), None);
        device.write_at(0x438, b"\x53\xef").unwrap();
        assert_eq!(signature(&device).unwrap(), Some("an ext2, ext3 or ext4 file system"));
        assert_eq!(signature(&MemDevice::new(100)).unwrap(), None);
        assert_eq!(partitions(&device).unwrap(), None);
    }

    /// Goal: the partitions of both kinds of table are found, those that leave the device are not, and a header of nonsense does no
    /// harm. Method: an MBR and a GPT written by hand, one partition with a superblock; then every byte of the header set.
    #[test]
    fn partitions_are_found() {
        let device = MemDevice::new(8 << 20);
        let mut mbr = [0; 512];
        mbr[0x1fe..].copy_from_slice(b"\x55\xaa");
        for (nth, (first, blocks)) in [(2048u32, 4096u32), (6144, 2048), (8192, 1 << 20)].into_iter().enumerate() {
            let at = 0x1be + 16 * nth;
            mbr[at + 4] = 0x83;
            mbr[at + 8..at + 12].copy_from_slice(&first.to_le_bytes());
            mbr[at + 12..at + 16].copy_from_slice(&blocks.to_le_bytes());
        }
        device.write_at(0, &mbr).unwrap();
        device.write_at((6144 << 9) + 0x10040, &SUPER_MAGIC).unwrap();
        let want = [
            Partition { start: 1 << 20, len: 2 << 20, is_btrfs: false },
            Partition { start: 3 << 20, len: 1 << 20, is_btrfs: true },
        ];
        assert_eq!(partitions(&device).unwrap().as_deref(), Some(&want[..]));

        let mut header = [0; 92];
        header[..8].copy_from_slice(b"EFI PART");
        for (at, value) in [(72, 2u64), (80, 128 | 128 << 32)] {
            header[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        device.write_at(512, &header).unwrap();
        let mut entry = [0; 128];
        entry[0] = 1;
        for (at, value) in [(32, 6144u64), (40, 8191)] {
            entry[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        device.write_at(1024 + 128, &entry).unwrap();
        assert_eq!(partitions(&device).unwrap().as_deref(), Some(&want[1..]));
        for at in 8..header.len() {
            let mut wrong = header;
            wrong[at] = 0xff;
            device.write_at(512, &wrong).unwrap();
            partitions(&device).unwrap();
        }
    }
}
