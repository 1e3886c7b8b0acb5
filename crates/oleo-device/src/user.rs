//! Who uses a device.

use std::fmt;
use std::path::PathBuf;

/// A user of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum User {
    /// The kernel has it mounted.
    Mounted {
        /// The mount point, if known.
        at: Option<PathBuf>,
    },
    /// A program serves it to a mount through FUSE.
    Served {
        /// The mount point.
        at: PathBuf,
    },
    /// Another process has it open for writing.
    Writer {
        /// Its process number.
        pid: u32,
        /// Its command name, as the system shows it.
        command: String,
    },
    /// Another Oleo holds its lock.
    Lock,
    /// The kernel holds it exclusively (mounted, or part of another device).
    Kernel,
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            User::Mounted { at: Some(at) } => write!(f, "mounted by the kernel at {}; unmount it first", at.display()),
            User::Mounted { at: None } => f.write_str("mounted by the kernel; unmount it first"),
            User::Served { at } => write!(f, "served to the mount at {}; unmount it first", at.display()),
            User::Writer { pid, command } => write!(f, "process {pid} ({command}) has it open for writing"),
            User::Lock => f.write_str("another oleo process, or another handle of this one, has it open"),
            User::Kernel => f.write_str("the kernel holds it exclusively: mounted, or part of another device"),
        }
    }
}
