//! The reader of key objects against any bytes, with and without their checksums put right: what it accepts it writes as the
//! same bytes.

use oleo_remote::format::key::KeyObject;
use oleo_remote::format::xxh64;

/// Whether it was accepted.
pub fn body(data: &[u8]) -> bool {
    let mut taken = read(data);
    let mut bytes = data.to_vec();
    if bytes.len() >= 16 {
        bytes[..8].copy_from_slice(b"OLEOKEY1");
        // In the place of the checksum that there was, and behind everything.
        let end = bytes.len() - 8;
        let sum = xxh64(&bytes[..end]).to_le_bytes();
        bytes[end..].copy_from_slice(&sum);
        taken |= read(&bytes);
        bytes.extend(xxh64(&bytes).to_le_bytes());
        taken |= read(&bytes);
    }
    taken
}

fn read(bytes: &[u8]) -> bool {
    let object = KeyObject::parse(bytes);
    if let Ok(object) = &object {
        assert_eq!(object.encode(), bytes);
    }
    object.is_ok()
}
