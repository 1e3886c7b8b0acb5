//! The block verifier against any bytes: it must refuse them with a typed error or accept them, and what it accepts
//! must be safe to look at with every accessor, without further checks.
//!
//! The first two bytes choose the node size and the checksum; the rest is the block. The checksum is put right, so that
//! the fuzzer gets past it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use oleo_format::{CheckedNode, CsumType, Features, HEADER_LEN, Logical, NodeExpect, NodeRules, data_use, seal};
use uuid::Uuid;

const NODE_SIZES: [u32; 3] = [4096, 16384, 65536];
const CSUMS: [CsumType; 4] = [CsumType::Crc32c, CsumType::Xxh64, CsumType::Sha256, CsumType::Blake2b];
/// Where the header keeps the file system's id and the block's address.
const FSID_AT: usize = 32;
const BYTENR_AT: usize = 48;

fuzz_target!(|data: &[u8]| {
    let [shape, csum, rest @ ..] = data else { return };
    let nodesize = NODE_SIZES[usize::from(*shape) % NODE_SIZES.len()];
    let rules = NodeRules {
        fsid: Uuid::from_bytes([7; 16]),
        nodesize,
        sectorsize: 4096,
        csum: CSUMS[usize::from(*csum) % CSUMS.len()],
        features: Features::default(),
    };
    let logical = Logical(30 << 20);
    let mut block = vec![0; nodesize as usize].into_boxed_slice();
    // The front of the input is the header and the table, its back is the items' data at the block's end.
    let half = rest.len().min(block.len()) / 2;
    block[..half].copy_from_slice(&rest[..half]);
    let tail = (rest.len() - half).min(block.len() - half);
    let at = block.len() - tail;
    block[at..].copy_from_slice(&rest[rest.len() - tail..]);
    block[FSID_AT..FSID_AT + 16].copy_from_slice(rules.fsid.as_bytes());
    block[BYTENR_AT..BYTENR_AT + 8].copy_from_slice(&logical.0.to_le_bytes());
    seal(&mut block, rules.csum);
    debug_assert!(half <= block.len() && HEADER_LEN < block.len());

    let Ok(node) = CheckedNode::verify(block, &rules, &NodeExpect::at(logical)) else { return };
    for slot in 0..node.len() {
        let key = node.key(slot);
        assert_eq!(node.search(&key), Ok(slot));
        if node.is_leaf() {
            let _ = data_use(&key, node.item(slot));
        } else {
            let _ = node.child(slot);
        }
    }
});
