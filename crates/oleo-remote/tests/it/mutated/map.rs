//! The readers of map pages against any bytes, with their checksums put right: what is accepted is in order and within its
//! bounds.

use oleo_remote::format::map::{Root, parse_graves, parse_index, parse_region, parse_table};
use oleo_remote::format::xxh64;

/// Whether any reader accepted it.
pub fn body(data: &[u8]) -> bool {
    let mut page = data.to_vec();
    let mut number = 0;
    if page.len() >= 32 {
        page[..4].copy_from_slice(b"OMAP");
        // The checksum is over the page without itself.
        let mut summed = page[..24].to_vec();
        summed.extend_from_slice(&page[32..]);
        let sum = xxh64(&summed).to_le_bytes();
        page[24..32].copy_from_slice(&sum);
        number = u32::from_le_bytes([page[12], page[13], page[14], page[15]]);
    }
    let mut taken = false;
    if let Ok(runs) = parse_region(&page, number) {
        assert!(runs.windows(2).all(|pair| pair[0].end() <= pair[1].start));
        taken = true;
    }
    if let Ok(root) = Root::parse(&page) {
        let mut again = Vec::new();
        root.encode(&mut again);
        assert_eq!(again, page);
        taken = true;
    }
    taken |= parse_index(&page, number).is_ok() | parse_table(&page, number).is_ok();
    taken | parse_graves(&page, number).is_ok()
}
