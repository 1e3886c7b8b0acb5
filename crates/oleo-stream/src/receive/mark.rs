//! The mark on an incomplete subvolume: what it is received from, and how much of the stream was applied.
//!
//! The digest covers the headers of all commands applied, each of which holds the length and the checksum of its
//! command. Equal digests mean the same stream, unless it was forged.

use sha2::{Digest, Sha256};
use uuid::Uuid;

/// The extended attribute of the subvolume's root directory that is the mark.
pub const MARK: &[u8] = b"trusted.oleo.receive";

/// How far a stream was applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mark {
    /// Bytes of the input.
    pub position: u64,
    /// Of the headers of the commands up to there.
    pub digest: [u8; 32],
}

/// The digest as it grows.
#[derive(Clone, Default)]
pub(super) struct Prefix(Sha256);

impl Prefix {
    /// One more command's header.
    pub fn add(&mut self, header: &[u8]) {
        self.0.update(header);
    }

    pub fn mark(&self, position: u64) -> Mark {
        Mark { position, digest: self.0.clone().finalize().into() }
    }
}

/// The value of the attribute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Stored {
    pub uuid: Uuid,
    pub ctransid: u64,
    /// The transaction that wrote the mark: a younger change of the subvolume is not covered by it.
    pub generation: u64,
    /// The position, if it is known exactly.
    pub mark: Option<Mark>,
}

impl Stored {
    /// As text: version, UUID, ctransid, generation, position, digest.
    pub fn encode(&self) -> Vec<u8> {
        let Stored { uuid, ctransid, generation, mark } = self;
        let head = format!("1 {uuid} {ctransid} {generation}");
        match mark {
            None => head.into_bytes(),
            Some(mark) => {
                let digest: String = mark.digest.iter().map(|b| format!("{b:02x}")).collect();
                format!("{head} {} {digest}", mark.position).into_bytes()
            }
        }
    }

    pub fn parse(bytes: &[u8]) -> Option<Stored> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut words = text.split(' ');
        if words.next()? != "1" {
            return None;
        }
        let uuid = words.next()?.parse().ok()?;
        let ctransid = words.next()?.parse().ok()?;
        let generation = words.next()?.parse().ok()?;
        let mark = match words.next() {
            None => None,
            Some(position) => {
                let hex = words.next().filter(|hex| hex.len() == 64 && hex.is_ascii())?;
                let mut digest = [0; 32];
                for (byte, at) in digest.iter_mut().zip((0..64).step_by(2)) {
                    *byte = u8::from_str_radix(&hex[at..at + 2], 16).ok()?;
                }
                Some(Mark { position: position.parse().ok()?, digest })
            }
        };
        Some(Stored { uuid, ctransid, generation, mark })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a mark is read as it was written, and nonsense is none.
    #[test]
    fn round_trip() {
        let mut prefix = Prefix::default();
        prefix.add(b"header");
        for mark in [None, Some(prefix.mark(77))] {
            let stored = Stored { uuid: Uuid::from_u128(5), ctransid: 6, generation: 7, mark };
            assert_eq!(Stored::parse(&stored.encode()), Some(stored));
        }
        for bad in [&b""[..], b"2", b"1 x", b"1 00000000-0000-0000-0000-000000000005 1 2 3 4", b"\xff"] {
            assert_eq!(Stored::parse(bad), None);
        }
    }
}
