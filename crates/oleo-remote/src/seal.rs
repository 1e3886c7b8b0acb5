//! Sealing: those without the key can neither read a text nor change it unnoticed. XChaCha20-Poly1305.
//!
//! A text that is sealed is bound to what is said beside it (associated data): which kind of text it is, of which volume, and
//! at which place. Nonces are random and of 24 bytes, so that a store that was put back to an older state does not make the
//! same one come again; the lowest two bits of their last byte say what they are for ([`Use`]), so that one nonce serves a
//! text and its place.
//!
//! The secret is wiped from memory when the key is dropped. Nothing here prints it.

use std::fmt;

use chacha20poly1305::{AeadInOut, KeyInit, Tag, XChaCha20Poly1305, XNonce};
use zeroize::Zeroizing;

/// Bytes of a nonce.
pub const NONCE_LEN: usize = 24;
/// Bytes of a tag.
pub const TAG_LEN: usize = 16;
/// Bytes of a secret.
pub const SECRET_LEN: usize = 32;
/// By how much a text becomes longer that is sealed with its nonce.
pub const SEAL_LEN: usize = NONCE_LEN + TAG_LEN;

/// A nonce.
pub type Nonce = [u8; NONCE_LEN];

/// What a nonce is for. One nonce may be used once for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Use {
    /// A text with a nonce of its own.
    Text = 0,
    /// The place of a text, which is known later than the text.
    Place = 1,
    /// A head, whose nonce is its commit id and its sequence.
    Head = 2,
    /// A directory, with the nonce of its first frame.
    Directory = 3,
}

/// The key of a volume.
pub struct Key {
    id: [u8; 16],
    secret: Zeroizing<[u8; SECRET_LEN]>,
    cipher: XChaCha20Poly1305,
}

impl Key {
    /// Of a secret, and the name of it, which is none.
    pub fn new(id: [u8; 16], secret: Zeroizing<[u8; SECRET_LEN]>) -> Key {
        let cipher = XChaCha20Poly1305::new(&(*secret).into());
        Key { id, secret, cipher }
    }

    /// Its name.
    pub fn id(&self) -> [u8; 16] {
        self.id
    }

    /// The secret, to be sealed with another key.
    pub(crate) fn secret(&self) -> &[u8; SECRET_LEN] {
        &self.secret
    }

    /// Seals in place; returns the tag.
    pub(crate) fn seal_in_place(&self, nonce: &Nonce, of: Use, beside: &[&[u8]], text: &mut [u8]) -> [u8; TAG_LEN] {
        match self.cipher.encrypt_inout_detached(&nonce_for(nonce, of), &beside.concat(), text.into()) {
            Ok(tag) => tag.into(),
            Err(_) => unreachable!("no text has 256 GiB"),
        }
    }

    /// Opens in place. False: it is not what was sealed; then the text is anything.
    #[must_use]
    pub(crate) fn open_in_place(&self, nonce: &Nonce, of: Use, beside: &[&[u8]], text: &mut [u8], tag: &[u8]) -> bool {
        let Ok(tag) = <[u8; TAG_LEN]>::try_from(tag) else { return false };
        let tag = Tag::from(tag);
        self.cipher.decrypt_inout_detached(&nonce_for(nonce, of), &beside.concat(), text.into(), &tag).is_ok()
    }

    /// Nonce, sealed text and tag, in one piece.
    pub(crate) fn seal(&self, nonce: &Nonce, of: Use, beside: &[&[u8]], text: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(text.len() + SEAL_LEN);
        out.extend_from_slice(nonce);
        out.extend_from_slice(text);
        let tag = self.seal_in_place(nonce, of, beside, &mut out[NONCE_LEN..]);
        out.extend_from_slice(&tag);
        out
    }

    /// The text of such a piece.
    pub(crate) fn open(&self, of: Use, beside: &[&[u8]], sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, rest) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let (text, tag) = rest.split_last_chunk::<TAG_LEN>()?;
        let mut text = text.to_vec();
        self.open_in_place(nonce, of, beside, &mut text, tag).then_some(text)
    }
}

fn nonce_for(nonce: &Nonce, of: Use) -> XNonce {
    let mut nonce = *nonce;
    nonce[NONCE_LEN - 1] = nonce[NONCE_LEN - 1] & !3 | of as u8;
    nonce.into()
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.id == other.id
    }
}

impl Eq for Key {}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:02x?})", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> Key {
        Key::new([byte; 16], Zeroizing::new([byte; SECRET_LEN]))
    }

    /// Goal: a text opens with its key, its nonce, its use and what is beside it, whole, and in no other way.
    #[test]
    fn opens_only_as_it_was_sealed() {
        let (key, nonce) = (key(1), [9; NONCE_LEN]);
        let sealed = key.seal(&nonce, Use::Text, &[b"page", &[1, 2]], b"a text");
        assert_eq!(sealed.len(), 6 + SEAL_LEN);
        assert_eq!(key.open(Use::Text, &[b"page", &[1, 2]], &sealed).as_deref(), Some(&b"a text"[..]));
        assert_eq!(key.open(Use::Text, &[b"page", &[1, 3]], &sealed), None);
        assert_eq!(self::key(2).open(Use::Text, &[b"page", &[1, 2]], &sealed), None);
        for at in 0..sealed.len() {
            let mut other = sealed.clone();
            other[at] ^= 4;
            assert_eq!(key.open(Use::Text, &[b"page", &[1, 2]], &other), None, "byte {at}");
            assert_eq!(key.open(Use::Text, &[b"page", &[1, 2]], &sealed[..at]), None, "cut at {at}");
        }
        let (mut text, tag) = (sealed[NONCE_LEN..][..6].to_vec(), &sealed[NONCE_LEN + 6..]);
        assert!(!key.open_in_place(&nonce, Use::Place, &[b"page", &[1, 2]], &mut text.clone(), tag));
        assert!(key.open_in_place(&nonce, Use::Text, &[b"page", &[1, 2]], &mut text, tag));
        assert!(!format!("{key:?}").contains("1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1"));
    }

    /// Goal: the cipher is the one that others call so. Method: the example of draft-irtf-cfrg-xchacha-03, A.3.1.
    #[test]
    fn is_the_published_cipher() {
        let mut secret = [0; SECRET_LEN];
        (0x80..).zip(&mut secret).for_each(|(n, byte)| *byte = n);
        let mut nonce = [0; NONCE_LEN];
        (0x40..).zip(&mut nonce).for_each(|(n, byte)| *byte = n);
        let beside = [0x50, 0x51, 0x52, 0x53, 0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7];
        let mut text = *b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, \
            sunscreen would be it.";
        let key = Key::new([0; 16], Zeroizing::new(secret));
        // Its last byte is 0x57, so the nonce itself is none of ours.
        let tag = key.cipher.encrypt_inout_detached(&nonce.into(), &beside, (&mut text[..]).into()).expect("short");
        assert_eq!(text[..4], [0xbd, 0x6d, 0x17, 0x9d]);
        assert_eq!(tag[..4], [0xc0, 0x87, 0x59, 0x24]);
    }
}
