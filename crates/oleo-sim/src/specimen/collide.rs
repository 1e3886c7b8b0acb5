//! Names with equal hashes.
//!
//! A directory item's key contains the crc32c of the name, so names with equal hashes share one item. A crc is linear:
//! the difference of two colliding names of one length can be xored to any third name without changing its hash. So two
//! colliding pairs, found among random names, give any number of four-way collisions.

use std::collections::HashMap;

use crate::rng::Rng;

/// Names are this long, bytes.
const LEN: usize = 12;

/// Random names tried: enough for about thirty pairs, and a fraction of a second.
const TRIED_MAX: usize = 500_000;

/// `count` sets of four names each; the names of one set have equal hashes (as directory entries and, with equal
/// prefixes, as extended attributes). Not UTF-8 everywhere.
pub fn colliding_names(seed: u64, count: usize) -> Vec<Vec<Vec<u8>>> {
    let mut rng = Rng::new(seed);
    let mut seen: HashMap<u32, [u8; LEN]> = HashMap::new();
    let mut differences = Vec::new();
    for _ in 0..TRIED_MAX {
        let name = letters(&mut rng);
        if let Some(other) = seen.insert(crc32c::crc32c(&name), name) {
            if other != name {
                differences.push(xor(&name, &other));
            }
            if differences.len() == 2 {
                break;
            }
        }
    }
    let [first, second] = differences[..] else { return Vec::new() };
    let mut out = Vec::new();
    while out.len() < count {
        let base = letters(&mut rng);
        let set = [base, xor(&base, &first), xor(&base, &second), xor(&xor(&base, &first), &second)];
        if set.iter().flatten().all(|b| *b != 0 && *b != b'/') {
            out.push(set.map(|n| n.to_vec()).to_vec());
        }
    }
    out
}

fn letters(rng: &mut Rng) -> [u8; LEN] {
    std::array::from_fn(|_| b'a' + u8::try_from(rng.below(26)).unwrap_or(0))
}

fn xor(a: &[u8; LEN], b: &[u8; LEN]) -> [u8; LEN] {
    std::array::from_fn(|i| a[i] ^ b[i])
}
