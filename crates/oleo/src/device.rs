//! What a volume lies on: files, block devices, memory, exports of a network, object stores, or anything else that implements [`Device`].

pub(crate) mod open;
mod place;

pub use oleo_device::{
    Device, DeviceError, DeviceStats, FileDevice, FileOptions, MemDevice, Op, ReadReq, User, Window, WriteReq,
};
pub use oleo_format::DevId;
#[cfg(feature = "nbd")]
pub use oleo_nbd::{ClientOptions, NbdDevice, NbdError, Uri};
#[cfg(feature = "remote")]
pub use oleo_remote::{RemoteDevice, RemoteError, StoreOptions, Url};
pub use oleo_volume::DeviceInfo;

pub use open::{PlaceOptions, open_named};
pub use place::{Identity, Place};
