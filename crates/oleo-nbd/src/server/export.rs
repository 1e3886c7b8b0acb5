//! What is served.

use std::sync::Arc;

use oleo_device::{Device, Latched};

use crate::error::NbdError;
use crate::wire::option::BlockSizes;
use crate::wire::{self, STRING_LEN_MAX, TransmissionFlags};

/// Longest preferred request that is announced, in bytes.
const PREFERRED_LEN_MAX: u32 = 1 << 20;

/// A device under a name.
pub struct Export {
    /// The name; a server's only export also answers to the empty one.
    pub name: String,
    /// For people; may be empty.
    pub description: String,
    /// The device.
    pub device: Arc<dyn Device>,
    /// Whether clients may only read.
    pub read_only: bool,
}

/// An export as the server has it.
pub(crate) struct Served {
    pub(crate) name: String,
    pub(crate) description: String,
    /// Behind a latch: an error of a flush is told once to whoever asks first, and here all clients have to know it.
    pub(crate) device: Latched,
    pub(crate) read_only: bool,
    /// Bytes, from the beginning to the end: a change of the device's length is not noticed.
    pub(crate) size: u64,
    /// Longest payload of a request, in bytes.
    pub(crate) payload_max: u32,
}

impl Served {
    pub(crate) fn new(export: Export, payload_max: u32) -> Result<Served, NbdError> {
        let Export { name, description, device, read_only } = export;
        let (size, read_only) = (device.len(), read_only || device.read_only());
        if [&name, &description].into_iter().any(|text| wire::string(text.as_bytes()).is_none()) {
            let what =
                format!("the name or description of an export is longer than {STRING_LEN_MAX} bytes or has a NUL");
            return Err(NbdError::Usage { what });
        }
        if i64::try_from(size).is_err() {
            return Err(NbdError::Usage { what: format!("{}: {size} bytes are too many", device.name()) });
        }
        Ok(Served { name, description, device: Latched::new(device), read_only, size, payload_max })
    }

    /// What it can.
    pub(crate) fn flags(&self, structured: bool) -> TransmissionFlags {
        let mut flags = TransmissionFlags::HAS_FLAGS
            | TransmissionFlags::SEND_FLUSH
            | TransmissionFlags::SEND_FUA
            | TransmissionFlags::SEND_CACHE
            | TransmissionFlags::CAN_MULTI_CONN;
        flags.set(TransmissionFlags::SEND_DF, structured);
        flags |= match self.read_only {
            true => TransmissionFlags::READ_ONLY,
            false => {
                TransmissionFlags::SEND_TRIM | TransmissionFlags::SEND_WRITE_ZEROES | TransmissionFlags::SEND_FAST_ZERO
            }
        };
        flags
    }

    /// Any offset and length will do.
    pub(crate) fn block_sizes(&self) -> BlockSizes {
        let preferred = self.device.limits().preferred_len.max(4096).next_power_of_two().min(PREFERRED_LEN_MAX);
        BlockSizes { min: 1, preferred: preferred.min(self.payload_max), max: self.payload_max }
    }
}
