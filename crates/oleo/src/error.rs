//! Why something did not work, and what to try.

use std::io;
use std::path::{Path, PathBuf};

use oleo_device::{FileDevice, FileOptions, User};
use oleo_fs::errno;
use oleo_mkfs::{BTRFS, Partition, QCOW, UNFINISHED, partitions, signature};

use crate::restore::report::RestoreReport;
use crate::{Hint, control};

pub use crate::background::BackgroundError;
pub use oleo_check::CheckError;
pub use oleo_device::DeviceError;
pub use oleo_format::{Class, Classified, Corruption, ErrorKind};
pub use oleo_fs::FsError;
pub use oleo_jobs::JobError;
pub use oleo_mkfs::MkfsError;
#[cfg(feature = "nbd")]
pub use oleo_nbd::NbdError;
#[cfg(feature = "remote")]
pub use oleo_remote::RemoteError;
pub use oleo_stream::lookup::LookupError;
pub use oleo_stream::receive::{ApplyError, ReceiveError};
pub use oleo_stream::{SendError, StreamError};
pub use oleo_tree::TreeError;
pub use oleo_txn::TxnError;
pub use oleo_volume::VolumeError;

/// An error of this library. It says what went wrong; [`Error::hint`] says what to try, [`Error::kind`] which of the
/// four kinds it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Something about one file or image, named here.
    #[error("{place}: {source}")]
    At {
        /// A path inside the image, or of the image.
        place: String,
        /// What went wrong there.
        source: Box<Error>,
    },
    /// An error with what to try that does not follow from the error itself.
    #[error("{source}")]
    Hinted {
        /// What to try.
        hint: Hint,
        /// What went wrong.
        source: Box<Error>,
    },
    /// A file of the host could not be used.
    #[error("cannot {what} {}: {source}", path.display())]
    Host {
        /// What was tried.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A stream could not be written.
    #[error("cannot write the output: {0}")]
    Output(io::Error),
    /// The request makes no sense as it is.
    #[error("{0}")]
    Request(String),
    /// It cannot be done as asked; the text says why.
    #[error("{text}")]
    Refused {
        /// What a system call would answer.
        errno: i32,
        /// Why.
        text: String,
    },
    /// A restore came to its end, but something was not restored, or not whole.
    #[error("{} entries were not restored, or not whole; the first: {first}", report.failed)]
    Incomplete {
        /// The entries that were restored.
        report: Box<RestoreReport>,
        /// The first of the errors that [`on_failure`](field@crate::restore::RestoreOptions::on_failure) is called with.
        first: Box<Error>,
    },
    /// From a device.
    #[error(transparent)]
    Device(Box<DeviceError>),
    /// The volume has a log of what was synced before a crash, and it cannot be applied.
    #[error("the log of this volume cannot be replayed: {0}")]
    Log(#[source] Box<Error>),
    /// From an export of a server, or its name.
    #[cfg(feature = "nbd")]
    #[error(transparent)]
    Nbd(Box<oleo_nbd::NbdError>),
    /// From a volume on an object store, or its name.
    #[cfg(feature = "remote")]
    #[error(transparent)]
    Remote(Box<oleo_remote::RemoteError>),
    /// From the volume: devices, chunks, copies.
    #[error(transparent)]
    Volume(Box<VolumeError>),
    /// From the transaction engine.
    #[error(transparent)]
    Engine(Box<TxnError>),
    /// From files and names.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// From making a file system.
    #[error(transparent)]
    Mkfs(Box<MkfsError>),
    /// The image is damaged.
    #[error(transparent)]
    Corruption(Box<Corruption>),
    /// From a job on a whole file system.
    #[error(transparent)]
    Job(Box<JobError>),
    /// A stream was not applied.
    #[error(transparent)]
    Receive(Box<ReceiveError>),
    /// A stream was not made.
    #[error(transparent)]
    Send(Box<SendError>),
    /// A file of a snapshot in a chain of streams was not found or not read.
    #[error(transparent)]
    Lookup(Box<LookupError>),
    /// A request to an open file system was not carried out.
    #[error(transparent)]
    Control(Box<control::Error>),
}

/// The result of this library's functions.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The same error, with the place that it is about.
    pub fn at(self, place: impl std::fmt::Display) -> Error {
        Error::At { place: place.to_string(), source: Box::new(self) }
    }

    /// The same error with the name of an image, unless it has it already.
    pub(crate) fn of_image(self, path: &Path) -> Error {
        if let Error::Volume(error) = &self
            && let VolumeError::NoSuper { name, .. } = &**error
            && let Some(error) = other_contents(Path::new(name))
        {
            return error;
        }
        let has_name = match &self {
            Error::Device(_) | Error::Host { .. } => true,
            Error::Volume(error) => matches!(
                **error,
                VolumeError::Device(_)
                    | VolumeError::NoSuper { .. }
                    | VolumeError::Stranger { .. }
                    | VolumeError::Twins { .. }
                    | VolumeError::Apart { .. }
            ),
            Error::Mkfs(error) => matches!(**error, MkfsError::Device(_)),
            #[cfg(feature = "nbd")]
            Error::Nbd(error) => matches!(**error, NbdError::Uri { .. } | NbdError::Device(_)),
            #[cfg(feature = "remote")]
            Error::Remote(error) => matches!(
                **error,
                RemoteError::Url { .. }
                    | RemoteError::NoVolume { .. }
                    | RemoteError::Exists { .. }
                    | RemoteError::Replaced { .. }
                    | RemoteError::Unsupported { .. }
            ),
            _ => false,
        };
        if has_name { self } else { self.at(path.display()) }
    }

    /// A failed call on a file of the host.
    pub(crate) fn host(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::Host { what, path, source }
    }

    /// The same error with what to try.
    pub(crate) fn with_hint(self, hint: Hint) -> Error {
        Error::Hinted { hint, source: Box::new(self) }
    }

    /// A refusal.
    pub(crate) fn refused(errno: i32, text: impl Into<String>) -> Error {
        Error::Refused { errno, text: text.into() }
    }

    /// Whether it is only that nobody reads the output any more.
    pub fn is_unread(&self) -> bool {
        match self {
            Error::At { source, .. } | Error::Hinted { source, .. } => source.is_unread(),
            Error::Output(source) => source.kind() == io::ErrorKind::BrokenPipe,
            _ => false,
        }
    }

    /// Which kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        self.class().kind
    }

    /// The errno of a system call with this outcome.
    pub fn errno(&self) -> i32 {
        self.class().errno
    }

    /// What to try next, where there is something.
    pub fn hint(&self) -> Option<Hint> {
        match self {
            Error::At { source, .. } => source.hint(),
            Error::Hinted { hint, .. } => Some(*hint),
            Error::Log(_) => Some(Hint::SkipOrDropLog),
            Error::Control(error) => error.hint,
            // Of a mount the error itself says what to do.
            Error::Device(error) => match &**error {
                DeviceError::InUse { by: User::Mounted { .. } | User::Served { .. }, .. } => None,
                DeviceError::InUse { .. } => Some(Hint::EndOtherUser),
                _ => None,
            },
            Error::Volume(error) => matches!(**error, VolumeError::Missing { .. }).then_some(Hint::NameOtherDevices),
            Error::Fs(error) => hint_of_fs(error),
            #[cfg(feature = "remote")]
            Error::Remote(error) => matches!(**error, RemoteError::Exists { .. }).then_some(Hint::Overwrite),
            Error::Mkfs(error) => match &**error {
                MkfsError::Fs(FsError::NoSpace) => Some(Hint::MakeRoom),
                _ => None,
            },
            Error::Job(error) => matches!(**error, JobError::FewerCopies(_)).then_some(Hint::AllowFewerCopies),
            Error::Receive(error) => match &**error {
                ReceiveError::Command { source, .. } | ReceiveError::Target { source, .. } => {
                    matches!(**source, ApplyError::UnknownParent(_)).then_some(Hint::NameParent)
                }
                _ => None,
            },
            _ => None,
        }
    }
}

fn hint_of_fs(error: &FsError) -> Option<Hint> {
    match error {
        FsError::NoSpace => Some(Hint::MakeRoom),
        FsError::Exists => Some(Hint::ChooseOtherName),
        FsError::CrossSubvolume => Some(Hint::CopyInstead),
        FsError::ReadOnly(FsError::OPENED_FOR_READING) => Some(Hint::OpenForChanges),
        FsError::ReadOnly(_) => Some(Hint::MakeWritable),
        FsError::NotEmpty => Some(Hint::RemoveContents),
        _ => None,
    }
}

/// The refusal that names what else than btrfs a file or device holds, as far as it is known.
fn other_contents(path: &Path) -> Option<Error> {
    // A name that is no path leads to no file: to say what went wrong, no server is asked once more.
    let device = FileDevice::open(path, &FileOptions::default().read_in_use(true)).ok()?;
    let what = signature(&device).ok().flatten().filter(|what| *what != BTRFS)?;
    let refused = |text: String| Error::refused(errno::EINVAL, format!("{}: holds {what}{text}", path.display()));
    if what == UNFINISHED {
        return Some(refused(String::new()).with_hint(Hint::MakeAgain));
    }
    let Some(partitions) = partitions(&device).ok().flatten().filter(|found| !found.is_empty()) else {
        let error = refused(", no btrfs".into());
        return Some(if what == QCOW { error.with_hint(Hint::UseNbd) } else { error });
    };
    let with_btrfs: Vec<&Partition> = partitions.iter().filter(|partition| partition.is_btrfs).collect();
    let starts = |of: &[&Partition]| {
        let starts: Vec<String> =
            of.iter().take(STARTS_SHOWN_MAX).map(|partition| partition.start.to_string()).collect();
        format!("{}{}", starts.join(", "), if of.len() > STARTS_SHOWN_MAX { ", ..." } else { "" })
    };
    let text = match with_btrfs.as_slice() {
        [] => format!(
            ", no btrfs; its partitions, none with btrfs, begin at bytes {}",
            starts(&partitions.iter().collect::<Vec<_>>())
        ),
        [one] => format!("; the partition with btrfs begins at byte {}", one.start),
        several => format!("; partitions with btrfs begin at bytes {}", starts(several)),
    };
    Some(refused(text).with_hint(Hint::GiveOffset))
}

/// How many partitions a message names.
const STARTS_SHOWN_MAX: usize = 8;

impl Classified for Error {
    #[deny(clippy::wildcard_enum_match_arm)]
    fn class(&self) -> Class {
        match self {
            Error::At { source, .. } | Error::Hinted { source, .. } | Error::Log(source) => source.class(),
            Error::Host { source, .. } => Class::of_io(source),
            // Whatever the system says, the output is not whole.
            Error::Output(source) => Class { kind: ErrorKind::Device, ..Class::of_io(source) },
            // Whatever the reason of each, a part of the result is missing.
            Error::Incomplete { .. } => Class::DATA,
            Error::Request(_) => Class::USAGE,
            Error::Refused { errno, .. } => Class::refusal(*errno),
            Error::Device(error) => error.class(),
            #[cfg(feature = "nbd")]
            Error::Nbd(error) => error.class(),
            #[cfg(feature = "remote")]
            Error::Remote(error) => error.class(),
            Error::Volume(error) => error.class(),
            Error::Engine(error) => error.class(),
            Error::Fs(error) => error.class(),
            Error::Mkfs(error) => error.class(),
            Error::Corruption(error) => error.class(),
            Error::Job(error) => error.class(),
            Error::Receive(error) => error.class(),
            Error::Send(error) => error.class(),
            Error::Lookup(error) => error.class(),
            Error::Control(error) => error.class(),
        }
    }
}

// Boxed, so that results stay small.
oleo_format::error_from!(Error {
    Device(DeviceError),
    Volume(VolumeError),
    Engine(TxnError),
    Mkfs(MkfsError),
    Corruption(Corruption),
    Control(control::Error),
    Job(JobError),
    Receive(ReceiveError),
    Send(SendError),
});

#[cfg(feature = "nbd")]
oleo_format::error_from!(Error { Nbd(oleo_nbd::NbdError), });

#[cfg(feature = "remote")]
oleo_format::error_from!(Error { Remote(oleo_remote::RemoteError), });

impl From<LookupError> for Error {
    fn from(error: LookupError) -> Error {
        match error {
            // What reads streams of stores fails as stores do.
            #[cfg(feature = "remote")]
            LookupError::Read(error) => match error.downcast::<RemoteError>() {
                Ok(error) => Error::Remote(error),
                Err(error) => Error::Lookup(Box::new(LookupError::Read(error))),
            },
            LookupError::Output(error) => Error::Output(error),
            other => Error::Lookup(Box::new(other)),
        }
    }
}

impl From<Error> for control::Error {
    fn from(error: Error) -> control::Error {
        match error {
            Error::Control(error) => *error,
            other => control::Error {
                errno: other.errno(),
                kind: other.kind(),
                hint: other.hint(),
                message: other.to_string(),
            },
        }
    }
}

// What the crates below report of a request goes the same way.
macro_rules! by_way_of_error {
    ($($from:ty),*) => { $(
        impl From<$from> for control::Error {
            fn from(error: $from) -> control::Error {
                Error::from(error).into()
            }
        }
    )* };
}
by_way_of_error!(FsError, TxnError, JobError, VolumeError);

/// Adds a place to errors as they pass by.
pub(crate) trait AtPlace<T> {
    fn at(self, place: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<Error>> AtPlace<T> for std::result::Result<T, E> {
    fn at(self, place: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| error.into().at(place()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every error is of its kind and has its errno.
    #[cfg(all(feature = "nbd", feature = "remote"))]
    #[test]
    fn classes() {
        let host = |errno| io::Error::from_raw_os_error(errno);
        let refused = || Error::refused(errno::EEXIST, "so");
        let exists = Class::refusal(errno::EEXIST);
        oleo_format::assert_classes!(Error {
            At: refused().at("here") => exists,
            Host: Error::host("read", "a")(host(errno::ENOENT)) => Class::refusal(errno::ENOENT),
            Host: Error::host("read", "a")(host(errno::EIO)) => Class::DEVICE,
            Output: Error::Output(host(errno::ENOSPC)) => Class { kind: ErrorKind::Device, errno: errno::ENOSPC },
            Incomplete: Error::Incomplete { report: Box::default(), first: Box::new(refused()) } => Class::DATA,
            Request: Error::Request("so".into()) => Class::USAGE,
            Refused: refused() => exists,
            Device: DeviceError::Kind { path: "a".into() }.into() => Class::refusal(errno::EINVAL),
            Nbd: NbdError::NoTls.into() => Class::refusal(errno::EOPNOTSUPP),
            Remote: RemoteError::Split { epoch: 2 }.into() => Class::DEVICE,
            Hinted: refused().with_hint(Hint::Overwrite) => exists,
            Log: Error::Log(Box::new(refused())) => exists,
            Volume: VolumeError::ReadOnly.into() => Class::refusal(errno::EROFS),
            Engine: TxnError::QuotaOff.into() => Class::refusal(errno::ENOTCONN),
            Fs: FsError::Exists.into() => exists,
            Mkfs: MkfsError::Options("so".into()).into() => Class::USAGE,
            Corruption: Corruption::new("node", "level", 9, 1).into() => Class::DAMAGE,
            Job: JobError::from(FsError::Exists).into() => exists,
            Receive: ReceiveError::from(oleo_stream::StreamError::Truncated { at: 0, within: "so" }).into() => Class::refusal(errno::EINVAL),
            Send: SendError::Stopped.into() => Class::refusal(errno::EINTR),
            Lookup: LookupError::NotFound("so".into()).into() => Class::refusal(errno::ENOENT),
            Control: control::Error::refused(errno::EEXIST, "so").into() => exists,
        });
    }
}
