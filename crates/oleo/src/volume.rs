//! What lies below files: devices, chunks and copies ([`Volume`]), and the transactions on it ([`Engine`]).

pub use oleo_txn::{Engine, TxnError};
pub use oleo_volume::{DeviceInfo, FoundDevice, FoundVolume, Profile, Volume, VolumeError, block_devices, discover};
