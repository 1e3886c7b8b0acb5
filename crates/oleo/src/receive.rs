//! Streams of `btrfs send`, applied to an image; and printed.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let image = oleo::Image::create_in_memory(256 << 20)?;
//! use oleo::receive::{Command, Receive, header};
//!
//! let mut stream = header(1).to_vec();
//! Command::Subvol { path: b"home", uuid: oleo::Uuid::from_u128(7), ctransid: 9 }.encode(1, &mut stream);
//! Command::MkFile { path: b"file", ino: 257 }.encode(1, &mut stream);
//! Command::Write { path: b"file", offset: 0, data: b"contents" }.encode(1, &mut stream);
//! Command::End.encode(1, &mut stream);
//!
//! let report = image.receive(std::io::Cursor::new(stream), &Receive::default())?;
//! assert_eq!(report.subvols[0].path, b"home");
//! assert_eq!(image.read("home/file")?, b"contents");
//! # Ok(())
//! # }
//! ```

#[cfg(target_os = "linux")]
use std::ffi::OsStr;
use std::io::Read;
#[cfg(target_os = "linux")]
use std::os::unix::ffi::OsStrExt;
#[cfg(target_os = "linux")]
use std::path::{Path, PathBuf};

#[cfg(target_os = "linux")]
use oleo_stream::receive::{DirOptions, DirTarget};
use oleo_stream::receive::{FsTarget, FsTargetOptions};

use crate::error::AtPlace;
use crate::fs::InodeRef;
use crate::{Error, Image, Result, SubvolRef, TreeId};

pub use oleo_format::stream::{Command, header};
pub use oleo_stream::dump::Dumper;
pub use oleo_stream::receive::{Incomplete, MARK, ReceiveError, ReceiveOptions, ReceivedSubvol, Report};
pub use oleo_stream::{Commands, Limits, Next, StreamError};

/// How to receive into an image.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Receive {
    /// The directory where subvolumes are made, from the top level; empty: the top level.
    pub into: Vec<u8>,
    /// The subvolume to use as the parent of an incremental stream, in place of the one that the stream names. For
    /// `receive_to_dir` it is the path of a directory of the host.
    pub rebase: Option<SubvolRef>,
    /// All or nothing: nothing is committed before the end, and nothing at all is left where an error ends the work.
    pub atomic: bool,
    /// In a directory of another file system: keep modes as they are, whatever the umask says; root does so in any case.
    pub exact_modes: bool,
    /// The rest.
    pub options: ReceiveOptions,
}

oleo_format::setters!(Receive {
    into: Vec<u8>,
    rebase: Option<SubvolRef>,
    atomic: bool,
    exact_modes: bool,
    options: ReceiveOptions,
});

impl Image {
    /// Applies a stream, and makes what was received durable.
    ///
    /// With `atomic` the image should be opened with room for all changes in memory ([`Receive::open_options`]); where space is short the
    /// engine may have to commit all the same, and then a crash, not an error, leaves an incomplete subvolume, marked.
    ///
    /// # Errors
    /// The stream is damaged or cannot be applied. What is incomplete stays, marked, and is durable too, unless it
    /// is to be atomic.
    pub fn receive<R: Read + Send + 'static>(&self, input: R, how: &Receive) -> Result<Report> {
        let (report, result) = self.receive_report(input, how)?;
        result.map(|()| report)
    }

    /// The same; the report says what was done before an error, too.
    ///
    /// # Errors
    /// The place to receive into is not there. The second result is that of [`Image::receive`].
    pub fn receive_report<R: Read + Send + 'static>(&self, input: R, how: &Receive) -> Result<(Report, Result<()>)> {
        let into = self.find(&how.into)?;
        let rebase = how.rebase.clone().map(|which| self.subvol(which).map(|root| root.tree())).transpose()?;
        self.receive_into(&into, rebase, input, how)
    }

    /// The same for a directory and parent that are known.
    pub(crate) fn receive_into<R: Read + Send + 'static>(
        &self,
        into: &InodeRef,
        rebase: Option<TreeId>,
        input: R,
        how: &Receive,
    ) -> Result<(Report, Result<()>)> {
        let fs = self.fs();
        let mut options = how.options.clone();
        if how.atomic {
            options.incomplete = Incomplete::Deleted;
        }
        let before = fs.engine().durable();
        let commands_per_commit = (!how.atomic).then_some(options.commands_per_commit);
        let target = FsTarget::new(fs, into, FsTargetOptions { rebase, commands_per_commit });
        let mut target = target.map_err(|e| ReceiveError::Target { what: "begin", source: Box::new(e) })?;
        let (report, result) = oleo_stream::receive::receive(&mut target, input, &options);
        drop(target);
        let failed = result.is_err();
        // After an error nothing of it is on disk, unless space was so short that there were commits.
        if !(failed && how.atomic && fs.engine().durable() == before) {
            fs.sync().at(|| String::from_utf8_lossy(&how.into).into_owned())?;
        }
        if failed && options.incomplete == Incomplete::Deleted && !how.atomic {
            self.clean()?;
        }
        Ok((report, result.map_err(Error::from)))
    }
}

/// Applies a stream to a directory of any file system: subvolumes become directories, snapshots copies of their parent, which is one
/// received from the same input, or `rebase`, a directory too. `atomic` removes what was made where an error ends the work.
///
/// # Errors
/// As [`Image::receive`]; the report says what was done before.
#[cfg(target_os = "linux")]
pub fn receive_to_dir<R: Read + Send + 'static>(dir: &Path, input: R, how: &Receive) -> (Report, Result<()>) {
    let all = how.exact_modes || rustix::process::geteuid().is_root();
    // As tar does: without being asked, an ordinary user gets no set-ID bits at all.
    let umask = if all { 0 } else { oleo_device::process::umask() | 0o6000 };
    let parent = match &how.rebase {
        None => None,
        Some(SubvolRef::At(at)) if at.is_from_top() => Some(PathBuf::from(OsStr::from_bytes(&at.path.0))),
        Some(_) => {
            let error = Error::Request("directories have no IDs; name the parent by its path".into());
            return (Report::default(), Err(error));
        }
    };
    let mut target = DirTarget::new(dir, DirOptions { parent, umask });
    let mut options = how.options.clone();
    if how.atomic {
        options.incomplete = Incomplete::Deleted;
    }
    let (report, result) = oleo_stream::receive::receive(&mut target, input, &options);
    (report, result.map_err(Error::from))
}

impl Receive {
    /// What opening the image for this takes.
    pub fn open_options(&self, mut options: crate::OpenOptions) -> crate::OpenOptions {
        options.access = crate::Access::Write;
        if self.atomic {
            options.fs.dirty_inodes_max = usize::MAX;
        }
        options
    }
}
