//! Serves a btrfs volume through FUSE: `oleo mount`.
//!
//! Normal path: (1) [`Mounted::new`] opens the image, finds the subvolume to show, mounts and agrees with the kernel;
//! (2) [`Mounted::serve`] answers requests with `server` until the file system is unmounted, while `background`
//! commits, writes back and cleans; (3) it writes everything to disk and closes the image. What cannot be written is
//! kept and tried again (`ending`).
//!
//! `wire` is the protocol, `transport` receives requests and sends replies, `attach` is mount(2) and `fusermount3`,
//! `nodes` has the kernel's numbers for inodes, `options` the mount options.
//!
//! Crash: a server that is killed leaves the image as of the last commit (or sync, or fsync) and the mount dead until
//! it is unmounted. A write that fails turns the volume read-only, with the old state on disk; reading continues.

mod ask;
mod attach;
mod background;
mod control;
mod ending;
mod follow;
mod memory;
mod mount;
mod nodes;
mod options;
mod server;
pub mod transport;
mod unmount;
pub mod wire;
mod writers;

pub use attach::{AttachOptions, attach, detach};
pub use mount::{MountError, Mounted, Plan, Stopper};
pub use options::{Atime, MountOptions, OptionError, Rescue, Uring};
pub use server::{Log, Server};
pub use unmount::{UnmountOptions, Unmounted, unmount};
