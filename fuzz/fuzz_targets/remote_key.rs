//! The reader of key objects against any bytes, with their checksums put right: what it accepts it writes as the same bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use oleo_remote::format::key::KeyObject;
use oleo_remote::format::xxh64;

fuzz_target!(|data: &[u8]| {
    read(data);
    let mut bytes = data.to_vec();
    if bytes.len() >= 16 {
        bytes[..8].copy_from_slice(b"OLEOKEY1");
        let sum = xxh64(&bytes).to_le_bytes();
        bytes.extend(sum);
        read(&bytes);
    }
});

fn read(bytes: &[u8]) {
    if let Ok(object) = KeyObject::parse(bytes) {
        assert_eq!(object.encode(), bytes);
    }
}
