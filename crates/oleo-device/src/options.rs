//! How files are opened, on every system.

#[cfg(any(unix, windows))]
use std::time::Duration;

/// How long an opening waits for a server that has been unmounted and is ending, which still holds the file: the kernel does not wait for that.
#[cfg(any(unix, windows))]
pub(crate) const ENDING_PATIENCE: Duration = Duration::from_millis(1500);

/// How [`FileDevice::open`](crate::FileDevice::open) opens.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct FileOptions {
    /// Open for writing too, alone.
    pub write: bool,
    /// Make the file if there is none (only with `write`). What an existing file holds stays.
    pub create: bool,
    /// Offset in the file at which the image begins, in bytes.
    pub offset: u64,
    /// Length of the image in bytes, from `offset`; `None`: up to the end of the file. If a length is given, `set_len`
    /// is refused.
    pub len: Option<u64>,
    /// Open for reading although the kernel has it mounted or another process writes to it: reads may return torn data.
    /// Has no effect when opening for writing.
    pub read_in_use: bool,
    /// The kernel already holds the device for this process: it is the source of the process's own mount.
    pub claimed: bool,
}

oleo_format::setters!(FileOptions {
    write: bool,
    create: bool,
    offset: u64,
    len: Option<u64>,
    read_in_use: bool,
    claimed: bool,
});
