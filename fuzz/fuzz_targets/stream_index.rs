//! Indexes of streams on a store, of any bytes: a typed error, or a chain whose files are found and read without a panic.

#![no_main]

use libfuzzer_sys::fuzz_target;
use oleo::layers::stream::lookup::{Chain, Link, LookupError, Places};
use uuid::Uuid;

const MEMORY_MAX: usize = 16 << 20;
/// Bytes that a file may come to, so that holes end.
const OUT_MAX: usize = 1 << 20;

/// Streams of zeros.
struct Zeros;

impl Places for Zeros {
    fn get(&mut self, _: usize, _: u64, len: u32) -> Result<Vec<u8>, LookupError> {
        if len > 1 << 20 {
            return Err(LookupError::NotFound("more than a part".into()));
        }
        Ok(vec![0; len as usize])
    }
}

struct Bounded(usize);

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(std::io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The uuid that an index says it is of: behind its magic, its version, and that of the stream.
fn uuid_of(index: &[u8]) -> Uuid {
    index.get(13..29).and_then(|bytes| Uuid::from_slice(bytes).ok()).unwrap_or_default()
}

fn link(index: &[u8], parent: Option<usize>) -> Link<'_> {
    Link { uuid: uuid_of(index), parent, index }
}

fuzz_target!(|data: (Vec<u8>, Vec<u8>)| {
    let [first, second] = [data.0, data.1].map(|rest| [b"OLEOSTRX\x01\0\0\0".as_slice(), &rest].concat());
    for links in [&[link(&first, None)][..], &[link(&first, None), link(&second, Some(0))]] {
        let Ok(chain) = Chain::new(links, MEMORY_MAX) else { continue };
        let mut paths = vec![Vec::new()];
        while let Some(path) = paths.pop() {
            if let Ok(found) = chain.find(&path) {
                let _ = chain.cat(&found, &mut Zeros, &mut Bounded(OUT_MAX));
            }
            let names = chain.list(&path).unwrap_or_default();
            paths.extend(names.iter().take(16).map(|name| [&path, &b"/"[..], name].concat()));
            paths.truncate(64);
        }
        let _ = chain.extract(b"", b"x", &mut Zeros, &mut Bounded(OUT_MAX));
    }
});
