//! Control of a file system, the same whether it is an image that this process has opened or a mount that another one
//! serves: one type of request, one of reply, one function that carries a request out.
//!
//! Normal path on an image: the command opens it and calls [`execute()`]. Normal path on a mount: (1) the command asks
//! the mount, by an ioctl on the path it was given, where its control socket is and which inode the path is
//! ([`OLEO_IOC_CONTROL`], [`OLEO_IOC_IDENT`]); (2) it sends the request through the socket ([`Client`]); (3) the
//! server ([`serve`]) learns from the socket who asks ([`Caller`]), calls [`execute()`] on the image that it has open,
//! has the kernel forget what changed ([`Invalidation`]) and sends the reply. The ioctls of btrfs that reach a mount are
//! turned into the same requests.
//!
//! Objects are named by tree, inode number and the rest of a path ([`Location`]), so that neither side needs to know where
//! the other sees the file system.
//!
//! What callers may do is what the kernel lets them do: [`Caller`] has the rules.
//! Only what requests and replies are is there on other systems than Linux.
//! Not here: what the requests do; that is `oleo-fs`'s, `oleo-jobs`'s and the rest of this library's.

mod bytes;
#[cfg(target_os = "linux")]
mod caller;
mod error;
#[cfg(target_os = "linux")]
pub(crate) mod execute;
#[cfg(target_os = "linux")]
mod feed;
mod invalidation;
mod location;
mod reply;
mod request;
#[cfg(target_os = "linux")]
mod wire;

pub use crate::SubvolRef;
pub use crate::devices::WhichDevice;
pub use bytes::Bytes;

#[cfg(target_os = "linux")]
pub use caller::Caller;
pub use error::Error;
#[cfg(target_os = "linux")]
pub use execute::execute;
#[cfg(target_os = "linux")]
pub use feed::{Feed, STALL_MAX};
pub use invalidation::Invalidation;
pub use location::Location;
#[cfg(target_os = "linux")]
pub use oleo_device::ioctl::{OLEO_IOC_CONTROL, OLEO_IOC_IDENT, control_socket, ident, is_on_fuse, open_to_ask};
pub use oleo_jobs::{
    BalanceArgs, BalanceEnd, BalanceProgress, BalanceState, BalanceStatus, Bound, DefragOptions, Defragmented,
    DeviceJob, Filters, NewExtent, NewSize, Reclaimed, Removed, ReplaceState, ReplaceStatus, Resized, ScrubEnd,
    ScrubStatus, ScrubWant, Span, Unhealed, What,
};
pub use reply::{
    DeviceCounts, DeviceErrors, DeviceUsage, DuLine, GroupUsed, LogStats, MountShown, NewPart, Place, QgroupShown,
    QgroupStats, QuotaShown, Received, ReceivedSubvol, Reply, RowCounts, ScrubShown, SentShown, SizeLine, Stats,
    Subvol, SubvolShown, UnhealedShown, Usage,
};
pub use request::{
    BalanceChange, DeviceChange, MEMORY_MAX, NewLimit, Property, QuotaChange, ReceiveHow, Request, ScrubChange,
    SendHow, WhichGroup,
};
#[cfg(target_os = "linux")]
pub use wire::{Client, REPLY_MAX, REQUEST_MAX, connect_of, serve, stop};

#[cfg(test)]
mod tests;
