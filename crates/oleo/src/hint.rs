//! What to try after an error, for programs to put into words.

use serde::{Deserialize, Serialize};

macro_rules! hints {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a user may try after an error ([`Error::hint`](crate::Error::hint)). It has no text: only the program knows what its
        /// options and commands are called.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum Hint {
            $($(#[$doc])* $name,)*
        }

        impl Hint {
            /// All of them, for programs that want to prove that they have words for each.
            pub const ALL: &[Hint] = &[$(Hint::$name,)*];
        }
    };
}

hints! {
    /// Someone else uses the device: unmount it, or end the program that uses it.
    EndOtherUser,
    /// The volume is in use and changes meanwhile: a scrub verifies it beside its users ([`scrub`](crate::scrub)).
    Scrub,
    /// Devices of the volume are missing: name them ([`OpenOptions::devices`](crate::OpenOptions::devices)), have them looked for, or
    /// read without them (`degraded`).
    NameOtherDevices,
    /// There is no space: make the image larger, or delete something.
    MakeRoom,
    /// The name is taken: choose another, or remove what has it.
    ChooseOtherName,
    /// Two subvolumes are concerned, so copy in place of moving or linking.
    CopyInstead,
    /// The subvolume is read-only: make it writable.
    MakeWritable,
    /// The directory is not empty: remove it with everything in it.
    RemoveContents,
    /// It is a directory: ask for everything in it, too.
    IncludeContents,
    /// The log of the volume cannot be applied: read without it (`no_log_replay`), or drop it ([`rescue`](crate::rescue)).
    SkipOrDropLog,
    /// A file is to be created, or is empty: give its size.
    GiveSize,
    /// Something is there already: ask for it to be overwritten (`force`).
    Overwrite,
    /// The profile gives up copies: ask for that (`force`).
    AllowFewerCopies,
    /// The subvolume was received, and incremental streams build on it: write to a snapshot of it, or ask for what it was received
    /// from to be forgotten (`force`).
    WriteToSnapshot,
    /// The parent of an incremental stream is unknown: name it ([`Receive::rebase`](crate::receive::Receive::rebase)).
    NameParent,
    /// Not everything could be written, and the file system is still mounted: save the files elsewhere, or abandon
    /// the rest. If the error is `ENOSPC`, make room below the image and unmount again.
    StillMounted,
    /// Not everything could be written; the file system is no longer mounted, and its server keeps the rest in memory and goes on
    /// trying. What to try is as for [`Hint::StillMounted`].
    KeptInMemory,
    /// Some bytes of files could not be written and are lost; the file system is unmounted and everything else is on disk.
    RestIsOnDisk,
    /// The image is a partition of the file or device: say where it begins ([`OpenOptions::offset`](crate::OpenOptions::offset)).
    GiveOffset,
    /// The image is in a format that another program reads: have it served as a network block device, and name that.
    UseNbd,
    /// The image was opened for reading: open it for changes ([`Access::Write`](crate::Access::Write)).
    OpenForChanges,
    /// The file system is being made or mkfs was interrupted: make it again.
    MakeAgain,
}
