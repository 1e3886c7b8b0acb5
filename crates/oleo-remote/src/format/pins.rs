//! Which heads are to be kept: the one object that lists pins, leases and branches. The head of a pin or a branch is in the
//! object `pin/NAME/ID`, whose key is never used a second time.
//!
//! The list of a sealed volume is not sealed as a whole, but each entry of it has a seal (`Pin::seal`): the store can neither
//! give a pin another head, nor read on whose behalf it was made. It sees names, kinds and times, and can leave entries out.

use oleo_format::Corruption;
use serde::{Deserialize, Serialize};

use super::ensure;
use crate::seal::{Key, Nonce, Use};

/// Longest list, bytes.
pub const PINS_LEN_MAX: usize = 1 << 20;
/// Most entries.
pub const PIN_COUNT_MAX: usize = 4096;
/// Longest name of a pin, bytes.
pub const PIN_NAME_LEN_MAX: usize = 64;

/// What an entry is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PinKind {
    /// Somebody wants this moment.
    Pin,
    /// Somebody reads this moment, for a while.
    Lease,
    /// Another volume goes back to this moment.
    Branch,
}

/// A head that is kept.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// Its name.
    pub name: String,
    /// Random, different for each entry: a name may come back, what was asked for under it must not.
    pub id: String,
    /// Sequence of the head.
    pub sequence: u64,
    /// Its epoch.
    pub epoch: u32,
    /// Its commit id, in hexadecimal.
    pub commit: String,
    /// What for.
    pub kind: PinKind,
    /// By whom, in words; for a branch which volume.
    pub by: String,
    /// When, in seconds of the store's clock since 1970.
    pub made: u64,
    /// Until when, for a lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
    /// Of a sealed volume: `by` as it is sealed, in hexadecimal, bound to what says which head it is. Then `by` is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<String>,
}

/// The list.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pins {
    /// 1.
    pub version: u32,
    /// The volume, in hexadecimal.
    pub uuid: String,
    /// Random, different in every list.
    pub commit: String,
    /// The entries.
    pub pins: Vec<Pin>,
}

/// Whether a pin may have this name.
pub fn is_pin_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    (1..=PIN_NAME_LEN_MAX).contains(&name.len()) && name.bytes().all(plain) && !name.starts_with('.')
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of hexadecimal digits.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let is_hex = text.len().is_multiple_of(2) && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    if is_hex { text.as_bytes().chunks_exact(2).map(byte).collect() } else { None }
}

impl Pin {
    /// Returns the bytes that the seal is bound to. A lease is renewed, so its end is not in it.
    fn beside(&self, volume: [u8; 16]) -> Vec<u8> {
        let kind = self.kind as u8;
        let fixed = [&b"pin"[..], &volume, &[kind], &self.sequence.to_le_bytes(), &self.epoch.to_le_bytes()].concat();
        // None of the texts has a zero byte.
        let texts = [&self.name, &self.id, &self.commit].map(|text| [text.as_bytes(), b"\0"].concat());
        [fixed, texts.concat()].concat()
    }

    /// Seals the entry of a volume.
    pub(crate) fn seal(&mut self, key: &Key, volume: [u8; 16], nonce: &Nonce) {
        let by = std::mem::take(&mut self.by);
        self.sealed = Some(hex(&key.seal(nonce, Use::Text, &[&self.beside(volume)], by.as_bytes())));
    }

    /// Opens the seal, and with it `by`.
    ///
    /// # Errors
    /// There is no seal, or it is that of another entry.
    pub(crate) fn unseal(&mut self, key: &Key, volume: [u8; 16]) -> Result<(), Corruption> {
        let Some(sealed) = &self.sealed else {
            return Err(Corruption::new("pin", "seal", "none, as of older versions", "that of its key"));
        };
        let text = unhex(sealed).and_then(|sealed| key.open(Use::Text, &[&self.beside(volume)], &sealed));
        let broken = || Corruption::new("pin", "seal", "broken", "that of its key");
        self.by = text.and_then(|text| String::from_utf8(text).ok()).ok_or_else(broken)?;
        self.sealed = None;
        Ok(())
    }
}

impl Pins {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads it.
    pub fn parse(bytes: &[u8]) -> Result<Pins, Corruption> {
        let what = "list of pins";
        ensure!(bytes.len() <= PINS_LEN_MAX, what, "length", bytes.len(), format!("at most {PINS_LEN_MAX}"));
        let pins: Pins =
            serde_json::from_slice(bytes).map_err(|e| Corruption::new(what, "text", e, "what it should be"))?;
        ensure!(pins.version == 1, what, "version", pins.version, 1);
        ensure!(pins.pins.len() <= PIN_COUNT_MAX, what, "count", pins.pins.len(), format!("at most {PIN_COUNT_MAX}"));
        let odd = pins.pins.iter().find(|pin| !is_pin_name(&pin.name) || !is_pin_name(&pin.id));
        if let Some(pin) = odd {
            return Err(Corruption::new(what, "name", pin.name.escape_debug(), "letters, digits, dots and dashes"));
        }
        Ok(pins)
    }
}
