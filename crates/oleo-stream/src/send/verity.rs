//! The fs-verity descriptor of a file, as the format stores it.
//!
//! VERITY_DESC_ITEM at offset 0 holds the length of the descriptor; its bytes follow in items at offset 1 and on.

use std::ops::ControlFlow;

use oleo_format::{Corruption, ItemType, Key, VerityDescriptor};

use super::SendError;
use super::walk::Sides;

/// Bytes of a descriptor (`FS_VERITY_MAX_DESCRIPTOR_SIZE`).
const LEN_MAX: usize = 16 << 10;

/// How a file is protected.
pub(super) struct Descriptor {
    pub algorithm: u8,
    pub block_size: u32,
    pub salt: Vec<u8>,
    pub signature: Vec<u8>,
}

/// The descriptor of a file of the subvolume.
pub(super) fn read(sides: &Sides<'_>, ino: u64) -> Result<Descriptor, SendError> {
    let mut bytes = Vec::new();
    let (from, to) =
        (Key::new(ino, ItemType::VERITY_DESC_ITEM, 1), Key::new(ino, ItemType::VERITY_DESC_ITEM, u64::MAX));
    sides.blocks.scan(&sides.new, from, to, |_, item| {
        bytes.extend_from_slice(item);
        let flow = if bytes.len() > LEN_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        Ok::<_, SendError>(flow)
    })?;
    parse(&bytes).ok_or_else(|| {
        Corruption::new("verity descriptor", "contents", format!("{} bytes", bytes.len()), "a descriptor of version 1")
            .within(format!("inode {ino}"))
            .into()
    })
}

fn parse(bytes: &[u8]) -> Option<Descriptor> {
    let (head, signature) = VerityDescriptor::parse_prefix(bytes).ok()?;
    if head.version != 1 || !(10..=16).contains(&head.log_blocksize) {
        return None;
    }
    let salt = head.salt.get(..usize::from(head.salt_size))?.to_vec();
    let signature = signature.get(..head.sig_size.get() as usize)?.to_vec();
    Some(Descriptor { algorithm: head.hash_algorithm, block_size: 1 << head.log_blocksize, salt, signature })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a descriptor yields the parameters it was made with; anything else yields nothing. Method: one laid out by
    /// hand; cut short, and with each field out of bounds.
    #[test]
    fn only_whole_descriptors_parse() {
        let head = size_of::<VerityDescriptor>();
        let mut bytes = vec![0; head + 3];
        bytes[..8].copy_from_slice(&[1, 2, 12, 4, 3, 0, 0, 0]);
        bytes[80..84].copy_from_slice(b"salt");
        bytes[head..].copy_from_slice(b"sig");
        let found = parse(&bytes).unwrap();
        assert_eq!((found.algorithm, found.block_size), (2, 4096));
        assert_eq!((found.salt.as_slice(), found.signature.as_slice()), (&b"salt"[..], &b"sig"[..]));
        assert!(parse(&bytes[..head + 2]).is_none());
        for (at, value) in [(0, 2), (2, 9), (2, 200), (3, 33), (4, 4)] {
            let mut bad = bytes.clone();
            bad[at] = value;
            assert!(parse(&bad).is_none(), "{at} {value}");
        }
    }
}
