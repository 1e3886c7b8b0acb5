//! Why something did not work, and what to try.

use std::io;
use std::path::PathBuf;

use oleo_device::DeviceError;
use oleo_format::Corruption;
use oleo_fs::{FsError, errno};
use oleo_jobs::JobError;
use oleo_mkfs::MkfsError;
use oleo_stream::SendError;
use oleo_stream::receive::{ApplyError, ReceiveError};
use oleo_txn::TxnError;
use oleo_volume::VolumeError;
use serde::{Deserialize, Serialize};

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
    /// From a device.
    #[error(transparent)]
    Device(Box<DeviceError>),
    /// The volume has a log of what was synced before a crash, and it cannot be applied.
    #[error("the log of this volume cannot be replayed: {0}")]
    Log(#[source] Box<Error>),
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
    /// The image lies.
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
    /// A request to an open file system was not carried out.
    #[error(transparent)]
    Control(Box<crate::control::Error>),
}

/// The result of this library's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// The kinds of errors, which are never mixed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// It cannot be done as asked: not found, no room, not supported, in use.
    Refusal,
    /// What is on disk is not what the format allows.
    Corruption,
    /// A device or the host failed.
    Device,
}

impl Error {
    /// The same error, with the place that it is about.
    pub fn at(self, place: impl std::fmt::Display) -> Error {
        Error::At { place: place.to_string(), source: Box::new(self) }
    }

    /// The same error with the name of an image, unless it has it already.
    pub(crate) fn of_image(self, path: &std::path::Path) -> Error {
        let has_name = match &self {
            Error::Device(_) | Error::Host { .. } => true,
            Error::Volume(error) => matches!(
                **error,
                VolumeError::Device(_)
                    | VolumeError::NoSuper { .. }
                    | VolumeError::Stranger { .. }
                    | VolumeError::Twins { .. }
            ),
            Error::Mkfs(error) => matches!(**error, MkfsError::Device(_)),
            _ => false,
        };
        if has_name { self } else { self.at(path.display()) }
    }

    /// A failed call on a file of the host.
    pub(crate) fn host(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::Host { what, path, source }
    }

    /// Which kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::At { source, .. } | Error::Log(source) => source.kind(),
            Error::Control(error) => error.kind,
            Error::Job(error) => match &**error {
                JobError::Fs(FsError::Corruption(_)) => ErrorKind::Corruption,
                JobError::Fs(FsError::Txn(error)) => engine_kind(error),
                JobError::Volume(error) => volume_kind(error),
                _ => ErrorKind::Refusal,
            },
            Error::Corruption(_) | Error::Fs(FsError::Corruption(_)) => ErrorKind::Corruption,
            Error::Output(_) => ErrorKind::Device,
            Error::Device(error) => device_kind(error),
            Error::Mkfs(error) => mkfs_kind(error),
            Error::Receive(error) => receive_kind(error),
            Error::Send(error) => send_kind(error),
            Error::Volume(error) => volume_kind(error),
            Error::Fs(FsError::Txn(error)) => engine_kind(error),
            Error::Engine(error) => engine_kind(error),
            _ => ErrorKind::Refusal,
        }
    }

    /// The errno of a system call with this outcome.
    pub fn errno(&self) -> i32 {
        match self {
            Error::At { source, .. } | Error::Log(source) => source.errno(),
            Error::Control(error) => error.errno,
            Error::Job(error) => error.errno(),
            Error::Receive(error) => error.errno(),
            Error::Send(error) => error.errno(),
            Error::Host { source, .. } | Error::Output(source) => source.raw_os_error().unwrap_or(errno::EIO),
            Error::Request(_) => errno::EINVAL,
            Error::Fs(error) => error.errno(),
            Error::Corruption(_) => errno::EUCLEAN,
            Error::Engine(error) => match &**error {
                TxnError::NoSpace { .. } => errno::ENOSPC,
                TxnError::ReadOnly(_) => errno::EROFS,
                TxnError::Corrupt(_) => errno::EUCLEAN,
                TxnError::Volume(error) => volume_errno(error),
                _ => errno::EIO,
            },
            Error::Volume(error) => volume_errno(error),
            Error::Device(_) => errno::EIO,
            Error::Mkfs(error) => match &**error {
                MkfsError::Fs(error) => error.errno(),
                _ => errno::EIO,
            },
        }
    }

    /// What to try next, where there is something.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Error::At { source, .. } => source.hint(),
            Error::Log(_) => Some(LOG),
            Error::Control(error) => error.hint.as_deref(),
            Error::Device(error) if matches!(**error, DeviceError::InUse { .. }) => {
                Some("unmount it, or end the program that uses it")
            }
            Error::Volume(error) if matches!(**error, VolumeError::Missing { .. }) => {
                Some("--device names the others, --scan finds them, --degraded reads without them")
            }
            Error::Fs(FsError::NoSpace) => Some(NO_SPACE),
            Error::Mkfs(error) if matches!(**error, MkfsError::Fs(FsError::NoSpace)) => Some(NO_SPACE),
            Error::Fs(FsError::Exists) => Some("choose another name, or remove what is there first"),
            Error::Fs(FsError::CrossSubvolume) => Some("copy instead (oleo cp --reflink shares the data)"),
            Error::Fs(FsError::ReadOnly(_)) => Some("oleo property set IMG PATH ro false makes a subvolume writable"),
            Error::Fs(FsError::NotEmpty) => Some("-r removes what is inside too"),
            _ => None,
        }
    }
}

/// What to try when a log cannot be applied.
const LOG: &str = "--no-log-replay (mount option nologreplay) reads what was there at the last commit; `oleo rescue zero-log` \
                   drops the log, and with it what was synced since";
/// What to try when there is no room.
const NO_SPACE: &str = "make the image larger (--size), or delete something";

fn device_kind(error: &DeviceError) -> ErrorKind {
    if matches!(error, DeviceError::Io { .. }) { ErrorKind::Device } else { ErrorKind::Refusal }
}

fn mkfs_kind(error: &MkfsError) -> ErrorKind {
    match error {
        MkfsError::Device(error) => device_kind(error),
        MkfsError::Volume(error) => volume_kind(error),
        MkfsError::Engine(error) => engine_kind(error),
        MkfsError::Fs(FsError::Corruption(_)) => ErrorKind::Corruption,
        _ => ErrorKind::Refusal,
    }
}

fn receive_kind(error: &ReceiveError) -> ErrorKind {
    match error {
        ReceiveError::Command { source, .. } | ReceiveError::Target { source, .. } => match &**source {
            ApplyError::Fs(error) => match &**error {
                FsError::Corruption(_) => ErrorKind::Corruption,
                FsError::Txn(error) => engine_kind(error),
                _ => ErrorKind::Refusal,
            },
            _ => ErrorKind::Refusal,
        },
        ReceiveError::Stream(_) | ReceiveError::Rule { .. } => ErrorKind::Refusal,
    }
}

fn send_kind(error: &SendError) -> ErrorKind {
    match error {
        SendError::Fs(FsError::Corruption(_)) => ErrorKind::Corruption,
        SendError::Fs(FsError::Txn(error)) => engine_kind(error),
        SendError::Write(_) => ErrorKind::Device,
        _ => ErrorKind::Refusal,
    }
}

fn volume_kind(error: &VolumeError) -> ErrorKind {
    match error {
        VolumeError::Corrupt(_) | VolumeError::NoSuper { .. } => ErrorKind::Corruption,
        VolumeError::Device(error) => device_kind(error),
        _ => ErrorKind::Refusal,
    }
}

fn volume_errno(error: &VolumeError) -> i32 {
    match error {
        VolumeError::Corrupt(_) => errno::EUCLEAN,
        VolumeError::NoRoom { .. } => errno::ENOSPC,
        VolumeError::Device(error) if error.is_full() => errno::ENOSPC,
        VolumeError::Unsupported { .. } => errno::EOPNOTSUPP,
        _ => errno::EIO,
    }
}

fn engine_kind(error: &TxnError) -> ErrorKind {
    match error {
        TxnError::Corrupt(_) => ErrorKind::Corruption,
        TxnError::Volume(error) => volume_kind(error),
        _ => ErrorKind::Refusal,
    }
}

// Boxed, so that results stay small.
macro_rules! boxed {
    ($($variant:ident($from:ty),)*) => { $(
        impl From<$from> for Error {
            fn from(error: $from) -> Error {
                Error::$variant(Box::new(error))
            }
        }
    )* };
}
boxed! {
    Device(DeviceError),
    Volume(VolumeError),
    Engine(TxnError),
    Mkfs(MkfsError),
    Corruption(Corruption),
    Control(crate::control::Error),
    Job(JobError),
    Receive(ReceiveError),
    Send(SendError),
}

/// Adds a place to errors as they pass by.
pub(crate) trait AtPlace<T> {
    fn at(self, place: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<Error>> AtPlace<T> for std::result::Result<T, E> {
    fn at(self, place: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| error.into().at(place()))
    }
}
