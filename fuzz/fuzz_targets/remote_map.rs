//! The readers of map pages against any bytes, with their checksums put right: what is accepted is in order and within its bounds.

#![no_main]

use libfuzzer_sys::fuzz_target;
use oleo_remote::format::map::{Root, parse_graves, parse_index, parse_region, parse_table};
use oleo_remote::format::xxh64;

fuzz_target!(|data: &[u8]| {
    let mut page = data.to_vec();
    if page.len() >= 32 {
        page[..4].copy_from_slice(b"OMAP");
        // The checksum is over the page without itself.
        let mut summed = page[..24].to_vec();
        summed.extend_from_slice(&page[32..]);
        let sum = xxh64(&summed).to_le_bytes();
        page[24..32].copy_from_slice(&sum);
    }
    if let Ok(runs) = parse_region(&page, 0) {
        assert!(runs.windows(2).all(|pair| pair[0].end() <= pair[1].start));
    }
    if let Ok(root) = Root::parse(&page) {
        let mut again = Vec::new();
        root.encode(&mut again);
        assert_eq!(again, page);
    }
    let _ = (parse_index(&page, 0), parse_table(&page, 0), parse_graves(&page, 0));
});
