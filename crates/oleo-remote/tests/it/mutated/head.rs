//! The reader of heads and of lists of pins against any bytes, with and without checksums put right: what it accepts it writes
//! as the same bytes.

use oleo_remote::format::head::Head;
use oleo_remote::format::pins::Pins;
use oleo_remote::format::xxh64;

/// Whether it was accepted.
pub fn body(data: &[u8]) -> bool {
    let mut taken = read(data);
    if let Ok(pins) = Pins::parse(data) {
        assert_eq!(Pins::parse(&pins.encode()).expect("what was written is read"), pins);
        taken = true;
    }
    let mut bytes = data.to_vec();
    if bytes.len() >= 256 {
        let len = (bytes.len() as u32).to_le_bytes();
        bytes[..12].copy_from_slice(b"OLEOHEAD\x01\0\0\0");
        bytes[12..16].copy_from_slice(&len);
        let sum = xxh64(&bytes[256..]).to_le_bytes();
        bytes[240..248].copy_from_slice(&sum);
        let sum = xxh64(&bytes[..248]).to_le_bytes();
        bytes[248..256].copy_from_slice(&sum);
        taken |= read(&bytes);
    }
    taken
}

fn read(bytes: &[u8]) -> bool {
    let head = Head::parse(bytes);
    if let Ok(head) = &head {
        assert_eq!(head.encode(), bytes);
    }
    head.is_ok()
}
