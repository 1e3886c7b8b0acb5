//! Recognises what is on a device already, by the signatures of formats.

use oleo_device::Device;

use crate::MkfsError;

/// A signature: its owner, its offset, and its bytes.
const MARKS: [(&str, u64, &[u8]); 16] = [
    ("a btrfs file system", 0x10040, b"_BHRfS_M"),
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
    ("a GPT partition table", 0x200, b"EFI PART"),
    ("a partition table", 0x1fe, b"\x55\xaa"),
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
    }
}
