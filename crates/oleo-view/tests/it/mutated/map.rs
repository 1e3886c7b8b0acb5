//! The map of an image that lies, as markup, too.

use oleo::OpenOptions;
use oleo::inspect::Inspector;
use oleo_view::{Map, MapOptions, to_html, to_svg};

use super::lying::{self, Which};

/// Bytes of tables: in some maps a sample is taken.
const TABLE_BYTES: [u64; 2] = [8 << 20, 1000];

/// Whether there was a map.
pub fn body(data: &[u8]) -> bool {
    lying::with(Which::Closed, data, |damaged| {
        let Ok(inspector) = Inspector::open(damaged.path, &OpenOptions::default()) else { return false };
        let maps = TABLE_BYTES.map(|table_bytes| {
            let options = MapOptions { table_bytes, ..MapOptions::default() };
            let map = Map::read(&inspector, &options).ok()?;
            Some((to_html(&map).len(), to_svg(&map).len()))
        });
        maps.iter().all(Option::is_some)
    })
}
