//! The file systems that are measured.

/// What serves the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Peer {
    /// The library, in-process.
    #[value(skip)]
    Library,
    /// `oleo mount`.
    #[value(skip)]
    Oleo,
    /// `oleo mount` of an older build.
    #[value(skip)]
    Old,
    /// `oleo mount` at `/dev/fuse`, beside the one over io_uring.
    #[value(skip)]
    AtDevice,
    /// The kernel's btrfs.
    Kernel,
    /// The kernel's ext4 with mb_optimize_scan=0.
    Ext4,
    /// The kernel's ext4 with mb_optimize_scan=1.
    Ext4Scan,
    /// A FUSE pass-through over a tmpfs.
    Pass,
    /// A server that only replies: files can be created, and nothing else.
    Null,
    /// QEMU's server of network block devices.
    QemuNbd,
    /// nbdkit's, with its file plugin.
    Nbdkit,
    /// The kernel's btrfs on a loop device over the file that s3backer shows.
    S3backer,
    /// The same over the file that nbdfuse shows of nbdkit's S3 plugin.
    NbdkitS3,
}

impl Peer {
    /// Those that are file systems, in the order in which they run.
    pub const FILES: &[Peer] = &[Peer::Oleo, Peer::Kernel, Peer::Pass];
    /// Those that files can be made on.
    pub const ALL: &[Peer] = &[Peer::Oleo, Peer::Kernel, Peer::Pass, Peer::Null];

    /// Whether this is the tree's own build.
    pub fn is_ours(self) -> bool {
        matches!(self, Peer::Library | Peer::Oleo)
    }

    /// Whether `oleo mount` serves it.
    pub fn is_oleo(self) -> bool {
        matches!(self, Peer::Oleo | Peer::Old | Peer::AtDevice)
    }

    /// As figures call it.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Library => "in-process",
            Peer::Oleo => "oleo",
            Peer::Old => "oleo before",
            Peer::AtDevice => "at /dev/fuse",
            Peer::Kernel => "kernel",
            Peer::Ext4 => "ext4 scan=0",
            Peer::Ext4Scan => "ext4 scan=1",
            Peer::Pass => "pass-through",
            Peer::Null => "answers only",
            Peer::QemuNbd => "qemu-nbd",
            Peer::Nbdkit => "nbdkit",
            Peer::S3backer => "s3backer",
            Peer::NbdkitS3 => "nbdkit S3",
        }
    }
}
