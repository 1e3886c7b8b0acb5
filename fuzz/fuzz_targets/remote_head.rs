//! The reader of heads and of lists of pins against any bytes, with and without checksums put right: what it accepts it writes as the same
//! bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use oleo_remote::format::head::Head;
use oleo_remote::format::pins::Pins;
use oleo_remote::format::xxh64;

fuzz_target!(|data: &[u8]| {
    read(data);
    if let Ok(pins) = Pins::parse(data) {
        assert_eq!(Pins::parse(&pins.encode()).expect("what was written is read"), pins);
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
        read(&bytes);
    }
});

fn read(bytes: &[u8]) {
    if let Ok(head) = Head::parse(bytes) {
        assert_eq!(head.encode(), bytes);
    }
}
