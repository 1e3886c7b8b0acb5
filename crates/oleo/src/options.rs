//! How to open a file system.

use std::path::PathBuf;

use oleo_fs::FsOptions;
use uuid::Uuid;

use crate::device::PlaceOptions;
use crate::notices::OnNotice;

/// What an image is opened for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Access {
    /// For reading. Nobody may write to it meanwhile.
    #[default]
    ReadOnly,
    /// For reading although someone else may write to it; what is read may be torn.
    ReadOnlyInUse,
    /// For reading and changes. Nobody else may use it meanwhile.
    Write,
}

/// How to open a file system. `OpenOptions::default()` reads; each field has a method that sets it.
///
/// ```
/// use oleo::{Access, OpenOptions};
///
/// let options = OpenOptions::default().access(Access::ReadOnlyInUse).degraded(true);
/// assert!(!options.writes());
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Reading, or changes too.
    pub access: Access,
    /// The other devices of a volume that has several.
    pub devices: Vec<PathBuf>,
    /// Directories in which to look for the other devices.
    pub scan: Vec<PathBuf>,
    /// Go on without devices that are missing: for reading as far as the profiles allow it, for changes if they allow it everywhere.
    pub degraded: bool,
    /// Where in the file the image begins, in bytes.
    pub offset: u64,
    /// The kernel holds the first device for this process, as the source of a mount that it serves.
    pub claimed: bool,
    /// Tell the devices what each commit frees. Those that say that they want it are told in any case.
    pub discard: bool,
    /// Where the newest roots cannot be read, go on from those of an earlier transaction (reading only).
    pub use_backup_root: bool,
    /// Go on without trees that cannot be read, as far as files can be read without them (reading only).
    pub ignore_bad_trees: bool,
    /// Use a tree block without a copy that fits its checksum if everything else about it is right (reading only).
    pub ignore_block_csums: bool,
    /// Do not apply the log that a crash left: what was synced after the last commit is not seen (reading only).
    pub no_log_replay: bool,
    /// Bytes of changes, over all devices, that applying the log in memory may make, and at most so many of the log itself (reading only). A log that needs more is an error;
    /// the volume can still be read without it.
    pub log_bytes_max: u64,
    /// On devices of volumes with parity: overwrite what somebody else has where records of stripes are kept (bytes 512 KiB to 1 MiB), such as a boot
    /// loader. Without them a crash and the loss of a device together may lose data (for changes only).
    pub wipe_stripe_records: bool,
    /// Leave a volume without free-space tree as it is. Without this, one that has a cache of free space of version 1, or a tree that is marked as
    /// not valid, gets a free-space tree when it is opened for changes, unless it is nearly full.
    pub keep_space_cache: bool,
    /// Bytes of tree blocks to keep in memory.
    pub cache_bytes: usize,
    /// How devices are reached that are no files of this machine.
    pub places: PlaceOptions,
    /// Clock, UUIDs, compression of new data.
    pub fs: FsOptions,
    /// The UUID of a volume that is made of this one, which is a seed.
    pub(crate) sprout: Option<Uuid>,
    /// Told what is not as it should be with the devices.
    pub on_notice: OnNotice,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            access: Access::ReadOnly,
            devices: Vec::new(),
            scan: Vec::new(),
            degraded: false,
            offset: 0,
            claimed: false,
            discard: false,
            use_backup_root: false,
            ignore_bad_trees: false,
            ignore_block_csums: false,
            no_log_replay: false,
            log_bytes_max: 1 << 30,
            wipe_stripe_records: false,
            keep_space_cache: false,
            cache_bytes: 64 << 20,
            places: PlaceOptions::default(),
            fs: FsOptions::default(),
            sprout: None,
            on_notice: OnNotice::default(),
        }
    }
}

oleo_format::setters!(OpenOptions {
    access: Access,
    devices: Vec<PathBuf>,
    scan: Vec<PathBuf>,
    degraded: bool,
    offset: u64,
    claimed: bool,
    discard: bool,
    use_backup_root: bool,
    ignore_bad_trees: bool,
    ignore_block_csums: bool,
    no_log_replay: bool,
    log_bytes_max: u64,
    wipe_stripe_records: bool,
    keep_space_cache: bool,
    cache_bytes: usize,
    places: PlaceOptions,
    fs: FsOptions,
    on_notice: OnNotice,
});

impl OpenOptions {
    /// For changes.
    pub fn writing() -> OpenOptions {
        OpenOptions { access: Access::Write, ..OpenOptions::default() }
    }

    /// Whether they allow changes. In WebAssembly none do: what asks for them is refused there, and the code for it is left out.
    pub fn writes(&self) -> bool {
        !cfg!(target_family = "wasm") && self.access == Access::Write
    }
}
