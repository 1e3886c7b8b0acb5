//! What a volume lies on: files, block devices, memory, or anything else that implements [`Device`].

pub use oleo_device::{Device, DeviceError, FileDevice, FileOptions, MemDevice, Op, ReadReq, User, WriteReq};
pub use oleo_format::DevId;
pub use oleo_volume::DeviceInfo;
