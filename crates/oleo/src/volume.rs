//! What lies below files: devices, chunks and copies ([`Volume`]), and the transactions on it ([`Engine`]).

pub use oleo_txn::{Engine, TxnError};
#[cfg(target_os = "linux")]
pub use oleo_volume::block_devices;
pub use oleo_volume::{DeviceInfo, FoundDevice, FoundVolume, Profile, Volume, VolumeError, discover};
